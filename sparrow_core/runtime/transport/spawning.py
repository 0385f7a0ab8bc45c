"""Starts processes by fork where that is possible: imports take most of the time of a start.

A process forks itself if it has one thread and has imported what the child needs: nodes do so for
their executors at their beginning (`fork`). Programs have threads. For them a template forks, a
process that does nothing else (`Template`). Otherwise a new interpreter is started (`interpreter`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import msgspec

_MODULES = "sparrow_core.runtime.transport"
_DEFAULTS = {
    # Otherwise importing numpy starts a thread per core in each process,
    "OPENBLAS_NUM_THREADS": "1",
    # and importing pyarrow one for a memory pool that is not used: then nothing can be forked.
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    # The pool that is used reserves a GiB at its first allocation, which would count as taken
    # where a process's memory is limited.
    "MIMALLOC_ARENA_EAGER_COMMIT": "0",
}
# What of /proc/self/status a process hands on.
_INHERITED = (
    "Umask:", "Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp:", "SigBlk:", "SigIgn:", "Cap",
    "Cpus_allowed:",
)  # fmt: skip
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of prctl(2)
_FORK_S = 15.0  # until a template has imported and forked
_POLL_S = 0.0005
_END_S = 1.0
TITLE_CHARS = 256
"""Room in the last argument of who forks, for what `ps` shows of the forked process."""


@dataclass(frozen=True, slots=True)
class Ends:
    """A new process's ends of its pipes, and its log."""

    stdin: int
    output: int
    lives: int  # nobody writes there: it is closed by the process's death


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was started, and our ends of its pipes.

    Attributes:
        pid: Tells its number, perhaps after a wait; 0 if it was not started after all.
        stdin: At its end the process exits.
        alive_fd: Becomes readable when it dies.
    """

    pid: Callable[[], int]
    stdin: int
    alive_fd: int


Make = Callable[[Ends], Callable[[], int]]
"""Makes a process; returns what tells its number."""


def started(log: Path, make: Make) -> Started:
    """Start a process whose output is appended to `log`.

    Raises:
        OSError: It can't be started.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        output = theirs.enter_context(log.open("ab"))
        stdin, told = os.pipe()
        alive, lives = os.pipe()
        for end in (stdin, lives):
            theirs.callback(os.close, end)
        for end in (told, alive):
            ours.callback(os.close, end)
        pid = make(Ends(stdin, output.fileno(), lives))
        ours.pop_all()
    return Started(pid, told, alive)


def interpreter(log: Path, *, new_session: bool) -> Make:
    """Make processes with an interpreter of their own."""

    def make(ends: Ends) -> Callable[[], int]:
        process = subprocess.Popen(
            _arguments(log),
            stdin=ends.stdin,
            stdout=ends.output,
            stderr=ends.output,
            pass_fds=(ends.lives,),
            start_new_session=new_session,
            env=process_environment(),
        )
        process.returncode = 0  # it is not reaped by this object
        return lambda: process.pid

    return make


def _arguments(log: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", f"{_MODULES}.process", str(log))  # the path is for `ps`


def process_environment() -> dict[str, str]:
    """The environment of processes that are started: as here, with the same modules."""
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    return {**_DEFAULTS, **os.environ, "PYTHONPATH": path}


def without_defaults(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for programs that are not ours, without what ours are given."""
    return {name: v for name, v in environment.items() if _DEFAULTS.get(name) != v}


def can_fork() -> bool:
    """Whether this process has no thread but this one: a lock of another would stay locked."""
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208


def fork(log: Path, run: Callable[[], object]) -> Make:
    """Make processes that are copies of this one, and call `run`; see `can_fork`."""

    def make(ends: Ends) -> Callable[[], int]:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            show_as(_arguments(log))
            become(ends, run)
        return lambda: pid

    return make


def become(ends: Ends, run: Callable[[], object]) -> NoReturn:
    """Be a new process from now on, which has only the files that it was given."""
    status = 1
    try:
        for number, end in enumerate((ends.stdin, ends.output, ends.output)):
            os.dup2(end, number)
        for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
            if number > 2 and number != ends.lives:
                with contextlib.suppress(OSError):  # it was the listing's
                    os.close(number)
        if (random := sys.modules.get("numpy.random")) is not None:
            random.seed()  # Python's own generator does that itself
        run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:  # noqa: BLE001 - it ends here, not where the other process was
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def show_as(arguments: Sequence[str]) -> None:
    """Let `ps` show these arguments for this process, as far as it was started with as many."""
    stat = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(stat[45]), int(stat[46])
    shown = b"\0".join(map(os.fsencode, arguments))[: end - start - 1]
    ctypes.memmove(start, shown.ljust(end - start - 1) + b"\0", end - start)


class Order(msgspec.Struct, frozen=True):
    """What a template is to fork. With it come the files of `Ends`, and one for its number."""

    arguments: tuple[str, ...]
    new_session: bool


_templates: weakref.WeakSet[Template] = weakref.WeakSet()
_by_key: dict[Hashable, Template] = {}
_lock = threading.RLock()
IGNORED: set[str] = set()
"""Variables of the environment that processes need not have as they are here."""


def _let_go() -> None:
    """After fork: templates belong to the parent, and end with it."""
    global _lock  # noqa: PLW0603 - a thread that is not here may hold it
    _lock = threading.RLock()
    for template in tuple(_templates):
        template.let_go()
    _by_key.clear()


os.register_at_fork(after_in_child=_let_go)


def _surroundings() -> Hashable:
    """All that processes inherit: a template that was started in others is another one."""
    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    try:
        folder = os.stat(".")  # noqa: PTH116
        here = (os.getcwd(), folder.st_dev, folder.st_ino)  # noqa: PTH109
    except OSError:  # it was removed
        here = ("", 0, 0)
    status = Path("/proc/self/status").read_text().splitlines()
    environment = process_environment()
    return (
        here,
        tuple((name, environment[name]) for name in sorted(environment) if name not in IGNORED),
        tuple(line for line in status if line.startswith(_INHERITED)),
        tuple(map(resource.getrlimit, limits)),
        os.getpriority(os.PRIO_PROCESS, 0),
    )


class Template:
    """A process of this program that has imported modules, and forks others.

    What it forks are children of this process, as if it had started them: each is forked twice, so
    that it is an orphan, which the kernel gives to the next ancestor that asks for orphans.
    """

    def __init__(self, key: Hashable, modules: Sequence[str]) -> None:
        """Start it."""
        self.holders = 0
        self._key = key
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            names = ",".join(modules).ljust(TITLE_CHARS)
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"{_MODULES}.template", names],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the program
                env=process_environment(),
            )
        _templates.add(self)

    @classmethod
    def held(cls, modules: Sequence[str]) -> Template | None:
        """The one of this program that has these modules, until `release`; None if none can be."""
        if sys.platform != "linux":
            return None
        try:
            key = (tuple(modules), _surroundings())
            with _lock:
                template = _by_key.get(key)
                if template is None or template.has_ended():
                    template = _by_key[key] = cls(key, modules)
                template.holders += 1
                return template
        except OSError:
            return None

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def release(self) -> None:
        """It ends when nobody holds it."""
        with _lock:
            self.holders -= 1
            if self.holders:
                return
            if _by_key.get(self._key) is self:
                del _by_key[self._key]
        self.let_go()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it is still importing, or suspended
            self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def let_go(self) -> None:
        self._socket.close()

    def making(self, log: Path, *, new_session: bool) -> Make:
        """Make processes by it, or with interpreters if it can't."""

        def make(ends: Ends) -> Callable[[], int]:
            with contextlib.suppress(OSError):
                if pid := self._forked(ends, Order(_arguments(log), new_session)):
                    return lambda: pid
            return interpreter(log, new_session=new_session)(ends)

        return make

    def _forked(self, ends: Ends, order: Order) -> int:
        """The number of the process that was ordered; 0 if there is none, nor will be."""
        number, told = os.pipe()
        try:
            files = [ends.stdin, ends.output, ends.lives, told]
            with _lock, _adopting():
                encoded = msgspec.msgpack.encode(order)
                socket.send_fds(self._socket, [encoded], files, socket.MSG_NOSIGNAL)
                os.close(told)
                told = -1
                waited = select.poll()
                waited.register(number, select.POLLIN)
                if not waited.poll(_FORK_S * 1000):
                    self._kill()  # else it might still fork
                return int(os.read(number, 32) or 0)
        finally:
            os.close(number)
            if told >= 0:
                os.close(told)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile orphans among this process's descendants become its children."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int(0)
    prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before))
    if prctl(_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError("this process can't adopt children")
    try:
        yield
    finally:
        prctl(_SET_CHILD_SUBREAPER, before.value)


def run_template(run: Callable[[], object]) -> None:
    """Fork processes that call `run`, as stdin orders, until its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else nobody could wait for a fork
    orders = socket.socket(fileno=os.dup(0))
    while can_fork():  # unless a module has started a thread
        encoded, files, _, _ = socket.recv_fds(orders, 1 << 20, 4)
        if not encoded:
            return
        order = msgspec.msgpack.decode(encoded, type=Order)
        *ends, told = files
        program, first = os.getppid(), os.fork()
        if not first:
            if os.fork():
                os._exit(0)
            _await_adoption(program)
            os.write(told, str(os.getpid()).encode())
            show_as(order.arguments)
            if order.new_session:
                os.setsid()
            become(Ends(*ends), run)
        os.waitpid(first, 0)
        for file in files:
            os.close(file)


def _await_adoption(pid: int) -> None:
    """Wait until the process that wants it is this one's parent, or has died."""
    deadline = time.monotonic() + _END_S
    while os.getppid() != pid and time.monotonic() < deadline:
        time.sleep(_POLL_S)
