"""What a node does for its jobs: keeps their files, runs their programs, tells other holders.

`machine.Jobs` says what is to be; a thread, which is started with the first job, makes it so. The
folder of a job on the node's disk has what it runs (`program`), its log, and its working folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import structs

from machine_kit.keys import Keys
from machine_kit.refusal import refuses
from minishark.cluster import wire
from minishark.cluster.connections import Connections
from minishark.cluster.jobs import guard
from minishark.cluster.jobs.machine import Holding, Jobs
from minishark.cluster.jobs.members import live_nodes
from minishark.cluster.jobs.records import (
    CLUSTER_VARIABLE,
    NAME_VARIABLE,
    PROGRESS_VARIABLE,
    RESULT,
    RESULT_BYTES_MAX,
    RESULT_VARIABLE,
    TAIL_BYTES,
    Holder,
    JobProgram,
    JobProgress,
    JobState,
    Status,
    problem_with,
    result_file,
)
from minishark.errors import ClusterError, MinisharkError
from minishark.worker.cores import usable_cores
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from sparrow_core.runtime.transport.deaths import describe_exit
from sparrow_core.runtime.transport.spawning import process_environment, without_defaults

_FOLDER = "jobs"
_PROGRAM, _PROGRESS, _DRAFT = "program", "progress", "result.part"
LOG_BYTES = 4 << 20
_KEYS_VARIABLE = "MINISHARK_KEYS"
_STEP_S = 0.25
_TELL_EVERY_S = 1.0
_TELL_SILENT_EVERY_S = 5.0
_CALL_S = 1.0
_HAND_OVER_S = 2.0
_REFUSAL_S = 0.2
_LOOK_EVERY_S = 10.0
_COPY_S = 120.0
_END_S = 2.0
_READ_BYTES = 1 << 16
_LOG_READ_BYTES = 1 << 20
_PLACES_PER_CORE = 4  # programs wait for the cluster most of the time


@dataclass(slots=True, kw_only=True)
class _Guarded:
    """A program that a guard watches over here."""

    state: JobState
    process: subprocess.Popen[bytes]
    said: bytes = b""
    program: int = 0  # its process
    is_ending: bool = False
    problem: str = ""
    exit_status: int | None = None


@dataclass(slots=True)
class _Peer:
    """Another holder of jobs, as far as it is talked to."""

    told_s: float = 0.0
    refused: bool = False  # the last time that it was looked


@dataclass(slots=True, kw_only=True)
class JobKeeper:
    """The jobs of one node.

    Attributes:
        location: of this node's files, and its service.
        schedulers: gives the cluster's schedulers.
        keys: the cluster's keys, for tcp.
        keys_folder: where programs find them.
    """

    location: StoreLocation
    schedulers: Callable[[], Sequence[str]]
    keys: Keys | None = None
    keys_folder: str | None = None
    me: Holder = field(init=False)
    _paths: StorePaths = field(init=False)
    _jobs: Jobs = field(init=False)
    _connections: Connections = field(init=False)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _guarded: dict[str, _Guarded] = field(default_factory=dict)  # by uid
    _peers: dict[str, _Peer] = field(default_factory=dict)  # by home
    _submitting: dict[str, JobState] = field(default_factory=dict)  # by name
    _tails: dict[str, int] = field(default_factory=dict)  # the end of those that were told
    _looked_s: float = 0.0
    _looking: Future[Sequence[Holder]] | None = None
    _thread: threading.Thread | None = None
    _is_stopping: bool = False
    _spread: dict[str, None] = field(default_factory=dict)  # results that others were told of
    _looker: ThreadPoolExecutor = field(init=False)
    _wake: tuple[int, int] = field(default_factory=os.pipe)

    def __post_init__(self) -> None:
        node = self.location
        self.me = Holder(node.name, node.memory, node.service)
        self._paths = StorePaths(Path(node.memory), Path(node.disk))
        self._jobs = Jobs(me=self.me, places=max(4, _PLACES_PER_CORE * usable_cores()))
        self._connections = Connections(self.keys)
        self._looker = ThreadPoolExecutor(1, thread_name_prefix="minishark-members")
        for end in self._wake:
            os.set_blocking(end, False)

    # Requests, on any thread

    def answer(self, request: wire.Request) -> wire.Reply | None:
        """Answer a request about jobs, which takes a moment; None to others."""
        match request:
            case wire.GetJobs():
                with self._lock:
                    states = self._states(tuple(self._jobs))
                    return structs.replace(states, progress=self._progress())
            case wire.TellJobs():
                return self._listen(request)
            case wire.HoldJob():
                return self._hold(request)
            case wire.CancelJob(uid):
                return self._cancel(uid)
            case _:
                return None

    def is_long(self, request: wire.Request) -> bool:
        """Whether `do` answers a request, on a thread of its own."""
        return isinstance(request, wire.SubmitJob | wire.GetJobLog)

    def do(self, request: wire.Request) -> wire.Reply:
        """Answer a request that takes longer."""
        if isinstance(request, wire.SubmitJob):
            return self._submit(request)
        assert isinstance(request, wire.GetJobLog)
        return self._log(request.uid, request.since)

    def _states(self, states: tuple[JobState, ...]) -> wire.JobStates:
        return wire.JobStates(home=self.me.home, states=states, is_leaving=self._jobs.is_leaving)

    def _listen(self, news: wire.TellJobs) -> wire.Reply:
        now = time.monotonic()
        uids = [state.terms.uid for state in news.states]
        with self._lock:
            self._jobs.hear(news.home, news.states, now, is_leaving=news.is_leaving)
            held = tuple(state for uid in uids if (state := self._jobs.state(uid)) is not None)
            for uid, (start, data) in news.tails.items():
                state = self._jobs.state(uid)
                if state is not None and state.owner == news.home:
                    self._keep_tail(uid, start, data)
            reply = self._states(held)
        self._wake_up()
        return reply

    def _hold(self, request: wire.HoldJob) -> wire.Reply:
        state, program = request.state, request.program
        if problem := problem_with(state.terms, program):
            return wire.Failure(problem)
        with self._lock:
            if request.before is not None:
                self._jobs.learn(request.before)
            if self._jobs.is_full and self._jobs.state(state.terms.uid) is None:
                return wire.Failure(f"{self.me.name} holds too many jobs that are not over.")
            other = self._jobs.hold(state, time.monotonic())
            if other is not None:
                return _taken(other)
            self._save(state.terms.uid, program)
        self._begin()
        return wire.Done()

    def _submit(self, request: wire.SubmitJob) -> wire.Reply:
        """Let the others hold a job, then own it."""
        if problem := problem_with(request.terms, request.program):
            return wire.Failure(problem)
        name = request.terms.name
        # Nobody's until all have agreed, and then this node's: the first one in the list. If this
        # node dies meanwhile, the next one takes it over.
        state = JobState(
            terms=request.terms,
            holders=tuple(dict.fromkeys((self.me, *request.holders))),
            owner="",
            node=self.me.name,
            incarnation=0,
        )
        with self._lock:
            if self._jobs.is_leaving or self._is_stopping:
                return wire.Failure(f"{self.me.name} is being drained.")
            if request.before is not None:
                self._jobs.learn(request.before)
            if self._jobs.is_full:
                return wire.Failure(f"{self.me.name} holds too many jobs that are not over.")
            if (other := self._jobs.in_the_way(name) or self._submitting.get(name)) is not None:
                is_it = other.terms.uid == request.terms.uid  # submitted once more
                return self._states((other,)) if is_it else _taken(other)
            self._submitting[name] = state
        try:
            return self._agree(wire.HoldJob(state, request.program, request.before))
        finally:
            del self._submitting[name]

    def _agree(self, request: wire.HoldJob) -> wire.Reply:
        """Run a job if no other holder has one of its name."""
        state, program = request.state, request.program
        others = [holder for holder in state.holders if holder.home != self.me.home]
        services = [holder.service for holder in others]
        replies = self._connections.call_all(services, request, _HAND_OVER_S)
        refusals = [reply for reply in replies.values() if isinstance(reply, wire.Failure)]
        if taken := [refusal for refusal in refusals if refusal.taken]:
            over = structs.replace(state, incarnation=1, status=Status.FAILED)  # and forgotten
            ending = wire.TellJobs(home=self.me.home, states=(over,))
            self._connections.call_all(services, ending, _HAND_OVER_S)
            return taken[0]
        held = [holder for holder in others if isinstance(replies.get(holder.service), wire.Done)]
        with self._lock:
            self._save(state.terms.uid, program)
            state = structs.replace(state, holders=(self.me, *held))
            state = self._jobs.own(state, time.monotonic())
        self._begin()
        return self._states((state,))

    def _cancel(self, uid: str) -> wire.Reply:
        with self._lock:
            state = self._jobs.unwant(uid)
        self._wake_up()
        return wire.Failure(f"{self.me.name} has no such job.") if state is None else wire.Done()

    def _log(self, uid: str, since: int) -> wire.Reply:
        files = guard.log_files(self._folder(uid))
        if since < 0 and files:  # counted from the end
            since = max(0, files[-1][0] + files[-1][1].stat().st_size + since)
        for start, path in files:
            with contextlib.suppress(OSError):
                size = path.stat().st_size
                if since < start + size:
                    position = max(0, since - start)
                    with path.open("rb") as file:
                        file.seek(position)
                        return wire.JobLog(start + position, file.read(_LOG_READ_BYTES))
        return wire.JobLog(max(since, 0), b"")

    # Life

    def drain(self) -> None:
        """Start no program any more, and take over none. Thread-safe."""
        with self._lock:
            self._jobs.is_leaving = True

    def holding(self, name: str) -> Holding | None:
        """Who holds what has no program; None if this node does not. Thread-safe."""
        with self._lock:
            return self._jobs.holding(name, time.monotonic())

    @property
    def is_idle(self) -> bool:
        """Whether no program runs here."""
        return not self._guarded

    def stop(self) -> None:
        """Kill all programs, and let others take over at once if the node is being drained."""
        self._is_stopping = True
        self._wake_up()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            processes = [guarded.process for guarded in self._guarded.values()]
            for process in processes:
                _close(process)
        deadline = time.monotonic() + _END_S
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._jobs.is_leaving:
            with self._lock:
                self._jobs.let_go(time.time())
            self._tell(time.monotonic(), all_now=True)
        self._looker.shutdown(wait=False, cancel_futures=True)
        self._connections.close()
        wake, self._wake = self._wake, (-1, -1)
        for end in wake:
            os.close(end)

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._is_stopping:
                self._thread = threading.Thread(
                    target=self._loop, name="minishark-jobs", daemon=True
                )
                self._thread.start()
        self._wake_up()

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake[1], b"\0")

    def _loop(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._wake[0], selectors.EVENT_READ)
        told_s, told_version = 0.0, self._jobs.version
        while not self._is_stopping:
            now = time.monotonic()
            try:
                for guarded in list(self._guarded.values()):
                    self._listen_to(guarded)
                with self._lock:
                    self._jobs.tick(now, time.time())
                    self._reconcile(now, selector)
                    version = self._jobs.version
                if now >= told_s + _TELL_EVERY_S or version != told_version or self._has_doubts():
                    told_s, told_version = now, version
                    self._tell(now)
                    self._replenish(now)
                    self._spread_results()
            except (OSError, MinisharkError) as error:  # the next round tries again
                sys.stderr.write(f"jobs: {error}\n")
            selector.select(_STEP_S)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake[0], _READ_BYTES)
        selector.close()

    # Programs

    def _reconcile(self, now: float, selector: selectors.BaseSelector) -> None:
        """Start what is to run here, end what is not, forget what is forgotten."""
        wanted = {state.terms.uid: state for state in self._jobs.wanted(now)}
        for uid, guarded in list(self._guarded.items()):
            state = wanted.get(uid)
            if guarded.process.poll() is not None:
                self._listen_to(guarded)
                assert guarded.process.stdout is not None
                selector.unregister(guarded.process.stdout)
                _close(guarded.process)
                del self._guarded[uid]
                self._end(uid, guarded, now)
            elif state is None or state.incarnation != guarded.state.incarnation:
                if not guarded.is_ending:
                    guarded.is_ending = True
                    _say(guarded.process, guard.END)
            elif self._jobs.is_alive(state, now):
                _say(guarded.process, guard.ALIVE)
        for uid, ready in wanted.items():
            if uid in self._guarded or self._jobs.state(uid) != ready:
                continue
            state = self._jobs.started(uid, time.time())
            try:
                process = self._start(state)
            except OSError as error:  # the disk is full, or there is no memory to fork
                how = f"it can't be started: {error}"
                self._jobs.ended(uid, 1, how, now=now, at=time.time())
                continue
            self._guarded[uid] = _Guarded(state=state, process=process)
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
        for path in self._folder().iterdir():
            if self._jobs.state(path.name) is None and path.name not in self._guarded:
                self._paths.remove(f"{_FOLDER}/{path.name}", (self.me.name,))
                self._spread.pop(path.name, None)

    def _start(self, state: JobState) -> subprocess.Popen[bytes]:
        uid = state.terms.uid
        folder = self._folder(uid)
        program = msgspec.msgpack.decode((folder / _PROGRAM).read_bytes(), type=JobProgram)
        work = folder / "work"
        work.mkdir(exist_ok=True)
        for file in program.files:
            path = work / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            path.chmod(0o700 if file.executable else 0o600)
        for name in (_DRAFT, _PROGRESS):
            (folder / name).unlink(missing_ok=True)
        what = ["-m", program.module] if program.module else [program.script]
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", guard.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        settings = {
            "command": [sys.executable, *what, *program.arguments],
            "folder": str(work),
            "environment": self._environment(state, program.environment),
            "logs": str(folder),
            "log_bytes": LOG_BYTES,
            "fence_s": self._jobs.fence_s(state),
            "first_line": _first_line(state),
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(settings).encode() + b"\n")
        process.stdin.flush()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        return process

    def _environment(self, state: JobState, variables: Mapping[str, str]) -> dict[str, str]:
        keys = {_KEYS_VARIABLE: self.keys_folder} if self.keys_folder else {}
        return {
            **without_defaults(process_environment()),
            "PYTHONUNBUFFERED": "1",
            **variables,
            **keys,
            CLUSTER_VARIABLE: self.me.service,
            NAME_VARIABLE: state.terms.name,
            RESULT_VARIABLE: str(self._folder(state.terms.uid) / _DRAFT),
            PROGRESS_VARIABLE: str(self._folder(state.terms.uid) / _PROGRESS),
        }

    def _listen_to(self, guarded: _Guarded) -> None:
        """Take in what a guard has said."""
        stdout = guarded.process.stdout
        assert stdout is not None
        with contextlib.suppress(BlockingIOError, ValueError):
            guarded.said += os.read(stdout.fileno(), _READ_BYTES)
        *lines, guarded.said = guarded.said.split(b"\n")
        for line in lines:
            said = json.loads(line)
            guarded.program = said.get("pid", guarded.program)
            guarded.problem = said.get("problem", guarded.problem)
            guarded.exit_status = said.get("exit_status", guarded.exit_status)

    def _end(self, uid: str, guarded: _Guarded, now: float) -> None:
        """A guard has ended: its program, too, or it must be now."""
        status = guarded.exit_status
        how = guarded.problem or describe_exit(status, 0, out_of_memory=False)
        if guarded.process.returncode != 0:  # the guard was killed
            _kill_group(guarded.program)
            status, how = -signal.SIGKILL, "the process that watched over it was killed"
        elif guarded.problem:
            status = 1
        elif guarded.is_ending or self._is_stopping:
            status = None
        size = self._take_result(uid) if status == 0 else None
        if size is not None and size > RESULT_BYTES_MAX:
            status, how = 1, f"its result has more than {RESULT_BYTES_MAX >> 30} GiB"
        self._jobs.ended(uid, status, how, now=now, at=time.time(), result_bytes=size)

    def _take_result(self, uid: str) -> int | None:
        """Keep the result that a program has written; its size, None if there is none."""
        folder = self._folder(uid)
        try:
            size = (folder / _DRAFT).stat().st_size
            if size <= RESULT_BYTES_MAX:
                (folder / _DRAFT).rename(folder / RESULT)
        except FileNotFoundError:
            return None
        return size

    def _progress(self) -> dict[str, JobProgress]:
        """How far the programs are that run here."""
        progress = {}
        for uid in self._guarded:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                text = (self._folder(uid) / _PROGRESS).read_bytes()
                progress[uid] = msgspec.json.decode(text, type=JobProgress)
        return progress

    # Other holders

    def _has_doubts(self) -> bool:
        return any(peer.refused for peer in self._peers.values())

    def _tell(self, now: float, *, all_now: bool = False) -> None:
        """Tell other holders what is known here, and hear what they know."""
        with self._lock:
            tells = self._jobs.tells()
            homes = {holder.home for holder in tells}
            self._peers = {home: peer for home, peer in self._peers.items() if home in homes}
            requests = []
            for holder, states in tells.items():
                peer = self._peers.setdefault(holder.home, _Peer())
                every_s = _TELL_SILENT_EVERY_S
                if not self._jobs.is_silent(holder, now) or now >= peer.told_s + every_s or all_now:
                    peer.told_s = now
                    requests.append((holder, states))
            tails = self._new_tails()
        for holder, states in requests:
            self._tell_one(holder, states, tails)

    def _tell_one(
        self, holder: Holder, states: list[JobState], tails: Mapping[str, tuple[int, bytes]]
    ) -> None:
        lacked = [state for state in states if self._jobs.lacks(holder, state)]
        for state in lacked:
            if (program := self._program(state.terms.uid)) is not None:
                hold = wire.HoldJob(state, program)
                self._connections.call_all([holder.service], hold, _CALL_S)
        uids = [state.terms.uid for state in states]
        request = wire.TellJobs(
            home=self.me.home,
            states=tuple(states),
            tails={uid: tails[uid] for uid in uids if uid in tails},
            is_leaving=self._jobs.is_leaving,
        )
        replies = self._connections.call_all([holder.service], request, _CALL_S)
        reply = replies.get(holder.service)
        now = time.monotonic()
        peer = self._peers[holder.home]
        with self._lock:
            if isinstance(reply, wire.JobStates):
                peer.refused = False
                if reply.home != holder.home:
                    self._jobs.bury(holder.home)  # another node has its address now
                    return
                self._jobs.hear(
                    reply.home, reply.states, now, asked=uids, is_leaving=reply.is_leaving
                )
                return
        was_refused, peer.refused = peer.refused, refuses(holder.service, _REFUSAL_S)
        if was_refused and peer.refused:  # twice: it is not about to be stopped or started
            with self._lock:
                self._jobs.bury(holder.home)

    def _replenish(self, now: float) -> None:
        """Find other nodes for jobs that too few hold."""
        if self._looking is not None:
            if not self._looking.done():
                return
            looking, self._looking = self._looking, None
            with contextlib.suppress(MinisharkError, OSError):
                nodes = looking.result()
                with self._lock:
                    self._jobs.replenish(nodes, now)
        elif now >= self._looked_s + _LOOK_EVERY_S:
            with self._lock:
                is_lacking = self._jobs.lacking(now)
            if is_lacking:
                self._looked_s = now
                self._looking = self._looker.submit(
                    live_nodes, self.schedulers(), self.me.service, self.keys
                )

    def _spread_results(self) -> None:
        """Let other holders copy results, which they then have when this node is gone."""
        with self._lock:
            new = [state for state in self._jobs.results() if state.terms.uid not in self._spread]
        for state in new:
            uid = state.terms.uid
            self._spread[uid] = None
            request = wire.Replicate(result_file(uid), self.location)
            others = [holder.service for holder in state.holders if holder.home != self.me.home]
            self._looker.submit(self._connections.call_all, others, request, _COPY_S)

    # Files

    def _folder(self, uid: str = "") -> Path:
        """A job's folder on disk, or that of all jobs."""
        if uid and not uid.isalnum():
            raise ClusterError(f"Invalid id of a job: {uid[:50]!r}.")
        return self._paths.disk / self.me.name / _FOLDER / uid

    def _save(self, uid: str, program: JobProgram) -> None:
        folder = self._folder(uid)
        self._paths.make(f"{_FOLDER}/{uid}", (self.me.name,))  # for copies of its result
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / _PROGRAM).write_bytes(msgspec.msgpack.encode(program))

    def _program(self, uid: str) -> JobProgram | None:
        with contextlib.suppress(OSError):
            return msgspec.msgpack.decode(
                (self._folder(uid) / _PROGRAM).read_bytes(), type=JobProgram
            )
        return None

    def _new_tails(self) -> dict[str, tuple[int, bytes]]:
        """The ends of the logs of this node's jobs that have grown since they were told."""
        tails = {}
        for state in self._jobs:
            uid = state.terms.uid
            if state.owner != self.me.home:
                continue
            files = guard.log_files(self._folder(uid))
            if not files:
                continue
            start, path = files[-1]
            end = start + path.stat().st_size
            if end != self._tails.get(uid):
                self._tails[uid] = end
                with path.open("rb") as file:
                    first = max(start, end - TAIL_BYTES)
                    file.seek(first - start)
                    tails[uid] = (first, file.read(TAIL_BYTES))
        return tails

    def _keep_tail(self, uid: str, start: int, data: bytes) -> None:
        """Keep the end of the log of a job that runs elsewhere."""
        folder = self._folder(uid)
        with contextlib.suppress(OSError):
            for _, path in guard.log_files(folder):
                path.unlink()
            (folder / f"{guard.LOG_PREFIX}{start}").write_bytes(data[-TAIL_BYTES:])


def _taken(other: JobState) -> wire.Failure:
    name = other.terms.name
    return wire.Failure(
        f"There is a job called {name!r} that is {other.status}, of {other.terms.user}: cancel it, "
        "wait for its end, or choose another name.",
        taken=True,
    )


def _first_line(state: JobState) -> str:
    """What a log says before what a program prints that is started again."""
    if state.starts == 1:
        return ""
    which = f"start {state.starts} of at most {state.terms.attempts}"
    return f"[minishark] Started again on {state.node}: {which}.\n"


def _say(process: subprocess.Popen[bytes], what: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):  # it has ended; or it is stopped, and full
        os.write(process.stdin.fileno(), what)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()


def _kill_group(pid: int) -> None:
    if pid > 0:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
