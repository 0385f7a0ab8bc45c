"""How programs and commands submit jobs to a cluster, and ask for them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from machine_kit.logs import log_tail
from minishark.cluster import wire
from minishark.cluster.connections import Connections
from minishark.cluster.jobs.records import (
    FILES_BYTES_MAX,
    FILES_MAX,
    HOLDERS,
    Holder,
    JobFile,
    JobProgram,
    JobProgress,
    JobState,
    JobTerms,
    homes_of,
    latest_by_name,
    problem_with,
)
from minishark.errors import AlreadyExistsError, ClusterError, JobError, OptionError

_CALL_S = 5.0
_SUBMIT_S = 15.0
_LOG_TAIL_CHARS = 2_000
_POLL_S = 0.1
_POLL_MAX_S = 1.0


@dataclass(frozen=True, slots=True)
class JobsClient:
    """The jobs of a cluster, as its nodes tell of them.

    Attributes:
        connections: to the nodes' services.
        nodes: gives the nodes that may hold jobs now.
    """

    connections: Connections
    nodes: Callable[[], Sequence[Holder]]

    def submit(self, terms: JobTerms, program: JobProgram) -> JobState:
        """Have a program run on a node.

        Raises:
            OptionError: a term or a file is invalid.
            AlreadyExistsError: there is a job of that name that is not over.
            ClusterError: no node answers, or takes it.
        """
        if problem := problem_with(terms, program):
            raise OptionError(problem)
        nodes = self.nodes()
        if not nodes:
            raise ClusterError("The cluster has no node with executors that stays: none runs jobs.")
        namesake = self.states().get(terms.name)
        if namesake is not None and not namesake.is_over:
            raise AlreadyExistsError(
                f"There is a job called {terms.name!r} that is {namesake.status}, of "
                f"{namesake.terms.user}: cancel it, wait for its end, or choose another name."
            )
        # Whoever submits one of this name asks the same node, which takes the first.
        homes = homes_of(terms.name, nodes)
        request = wire.SubmitJob(terms, program, tuple(homes[:HOLDERS]), namesake)
        for home in homes[:HOLDERS]:
            reply = self._call(home, request, _SUBMIT_S)
            match reply:
                case wire.JobStates(states=(state,)):
                    return state
                case wire.Failure(message, taken=True):
                    raise AlreadyExistsError(message)
                case wire.Failure(message):
                    raise ClusterError(f"The job was not taken. {message}")
        raise ClusterError("No node has answered: the job may have been submitted or not.")

    def states(self) -> dict[str, JobState]:
        """What is known of each job, by name; the nodes are asked.

        Raises:
            ClusterError: none answers.
        """
        return {name: state for name, state in self.held().items() if state.terms.has_program}

    def held(self) -> dict[str, JobState]:
        """The same, and what has no program.

        Raises:
            ClusterError: no node answers.
        """
        return latest_by_name(state for reply in self._told() for state in reply.states)

    def find_held(self, name: str) -> JobState | None:
        """What is known of something without a program; None if there surely is none.

        Raises:
            ClusterError: none of the nodes that answer knows it, and others do not answer.
        """
        nodes = self.nodes()
        answers = self._told(nodes)
        states = latest_by_name(state for reply in answers for state in reply.states)
        if name not in states and len(answers) < len(nodes):
            raise ClusterError("Not all nodes of the cluster answer.")
        return states.get(name)

    def progress(self, uid: str) -> JobProgress | None:
        """How far a job is; None if that is not known, or it does not run.

        Raises:
            ClusterError: no node answers.
        """
        reports = (reply.progress.get(uid) for reply in self._told())
        return next((progress for progress in reports if progress is not None), None)

    def _told(self, nodes: Sequence[Holder] | None = None) -> list[wire.JobStates]:
        services = [node.service for node in (self.nodes() if nodes is None else nodes)]
        replies = self.connections.call_all(services, wire.GetJobs(), _CALL_S)
        answers = [reply for reply in replies.values() if isinstance(reply, wire.JobStates)]
        if not answers:
            raise ClusterError("No node of the cluster answers.")
        return answers

    def find(self, name: str, uid: str | None = None) -> JobState:
        """What is known of a job.

        Raises:
            JobError: there is none of that name; or, with `uid`, another one has it now.
            ClusterError: no node answers.
        """
        states = self.states()
        state = states.get(name)
        if state is None:
            names = ", ".join(states) or "none"
            raise JobError(
                f"There is no job called {name!r}: it may have been forgotten some time "
                f"after its end. Jobs: {names}."
            )
        if uid is not None and state.terms.uid != uid:
            raise JobError(f"The job {name!r} was followed by another one of that name.")
        return state

    def wait(self, name: str, uid: str, timeout_s: float | None) -> JobState:
        """Wait until a job is over.

        Raises:
            TimeoutError: it is not over in time.
            JobError: it was forgotten.
            ClusterError: no node has answered for a while.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _POLL_S
        while not (state := self.patiently(name, uid)).is_over:
            left_s = _POLL_MAX_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"The job {name!r} is {state.status} after {timeout_s:g} s.")
            time.sleep(min(pause_s, left_s))
            pause_s = min(1.2 * pause_s, _POLL_MAX_S)
        return state

    def patiently(self, name: str, uid: str | None = None) -> JobState:
        """As `find`, where nodes may be away for a moment."""
        deadline = time.monotonic() + 2 * _SUBMIT_S
        while True:
            try:
                return self.find(name, uid)
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def cancel(self, state: JobState) -> None:
        """Ask for the end of a job; it is over a moment later.

        Raises:
            ClusterError: no node that holds it answers.
        """
        services = [holder.service for holder in state.holders]
        request = wire.CancelJob(state.terms.uid)
        replies = self.connections.call_all(services, request, _CALL_S)
        if not any(isinstance(reply, wire.Done) for reply in replies.values()):
            raise ClusterError(f"No node that holds the job {state.terms.name!r} answers.")

    def log(self, state: JobState, since: int = 0) -> tuple[int, bytes]:
        """What a job has printed, from that byte on as far as it is kept, with its position.

        A negative number counts from the end.

        Its owner has the most; after the death of a node others have the end.

        Raises:
            ClusterError: no node that holds it answers.
        """
        holders = sorted(state.holders, key=lambda holder: holder.home != state.owner)
        for holder in holders:
            pieces: list[bytes] = []
            start, position = None, since
            while True:
                request = wire.GetJobLog(state.terms.uid, position)
                reply = self._call(holder, request, _CALL_S)
                if not isinstance(reply, wire.JobLog):
                    break
                start = reply.start if start is None else start
                if not reply.data:
                    return start, b"".join(pieces)
                pieces.append(reply.data)
                position = reply.start + len(reply.data)
        raise ClusterError(f"No node that holds the job {state.terms.name!r} answers.")

    def log_tail(self, state: JobState) -> str:
        """The last lines that a job has printed.

        Raises:
            ClusterError: no node that holds it answers.
        """
        return log_tail(self.log(state)[1].decode(errors="replace"), _LOG_TAIL_CHARS)

    def _call(self, holder: Holder, request: wire.Request, timeout_s: float) -> wire.Reply | None:
        replies = self.connections.call_all([holder.service], request, timeout_s)
        return replies.get(holder.service)


def new_terms(name: str, what: str) -> JobTerms:
    """The terms of a job of this user, submitted now."""
    return JobTerms(
        name=name,
        uid=secrets.token_hex(8),
        user=wire.own_user(),
        what=what,
        submitted_s=time.time(),
    )


def program_files(script: Path, folder: Path | None) -> tuple[str, tuple[JobFile, ...]]:
    """A script as the job names it, and the files that travel: it alone, or all in a folder.

    Raises:
        OptionError: they can't be read, are too many or too large, or the script is not among them.
    """
    try:
        if folder is None:
            return script.name, (_file(script, script.name),)
        root = folder.resolve()
        if not script.resolve().is_relative_to(root):
            raise OptionError(f"{script} is not in {folder}: the folder must contain the program.")
        name = script.resolve().relative_to(root).as_posix()
        files: list[JobFile] = []
        size = 0
        for path in sorted(root.rglob("*")):
            relative = path.relative_to(root)
            if any(part in (".git", "__pycache__", ".venv") for part in relative.parts):
                continue
            if path.is_file():
                size += path.stat().st_size
                if size > FILES_BYTES_MAX or len(files) >= FILES_MAX:
                    raise OptionError(
                        f"{folder} has more than {FILES_BYTES_MAX >> 20} MiB, or {FILES_MAX} "
                        "files: put data where the nodes can read it."
                    )
                files.append(_file(path, relative.as_posix()))
        return name, tuple(files)
    except OSError as error:
        raise OptionError(f"{script} can't be read: {error}.") from error


def _file(path: Path, name: str) -> JobFile:
    if path.stat().st_size > FILES_BYTES_MAX:
        raise OptionError(f"{path} has more than {FILES_BYTES_MAX >> 20} MiB.")
    return JobFile(name, path.read_bytes(), os.access(path, os.X_OK))
