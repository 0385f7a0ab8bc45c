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
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Hashable, Sequence
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
}
# What is read when a process or a library starts, so that a template must have it, too.
_READ_AT_START = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "ARROW_",
    "JE_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
)
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of prctl(2)
_FORK_S = 30.0  # until a template has imported and forked
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
    """What a template is to fork. With it come the files of `Ends`, one for its number, and "."."""

    environment: dict[str, str]
    arguments: tuple[str, ...]
    new_session: bool


_templates: weakref.WeakSet[Template] = weakref.WeakSet()
_by_key: dict[Hashable, Template] = {}
_lock = threading.RLock()


def _let_go() -> None:
    """After fork: templates belong to the parent, and end with it."""
    for template in tuple(_templates):
        template.let_go()
    _by_key.clear()


os.register_at_fork(after_in_child=_let_go)


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
        limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
        key = (
            tuple(modules),
            tuple(sys.path),
            tuple(
                item for item in sorted(os.environ.items()) if item[0].startswith(_READ_AT_START)
            ),
            tuple(map(resource.getrlimit, limits)),
            frozenset(os.sched_getaffinity(0)),
        )
        with _lock:
            template = _by_key.get(key)
            if template is None or template.has_ended():
                try:
                    template = _by_key[key] = cls(key, modules)
                except OSError:
                    return None
            template.holders += 1
            return template

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
        except subprocess.TimeoutExpired:  # it is still importing
            self._process.kill()
            self._process.wait()

    def let_go(self) -> None:
        self._socket.close()

    def making(self, log: Path, *, new_session: bool) -> Make:
        """Make processes by it, or as without it if it does not answer."""

        def make(ends: Ends) -> Callable[[], int]:
            try:
                return self._make(ends, log, new_session=new_session)
            except OSError:
                return interpreter(log, new_session=new_session)(ends)

        return make

    def _make(self, ends: Ends, log: Path, *, new_session: bool) -> Callable[[], int]:
        order = Order(process_environment(), _arguments(log), new_session)
        number, told = os.pipe()
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            files = [ends.stdin, ends.output, ends.lives, told, here]
            with _lock:
                _Adoption.begin()
                try:
                    encoded = msgspec.msgpack.encode(order)
                    socket.send_fds(self._socket, [encoded], files, socket.MSG_NOSIGNAL)
                except BaseException:
                    _Adoption.end()
                    raise
        except BaseException:
            os.close(number)
            raise
        finally:
            os.close(told)
            os.close(here)
        return _Number(number)


class _Number:
    """Tells the number of a process that a template has been asked for."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._pid: int | None = None
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            if self._pid is None:
                ready = select.select([self._file], [], [], _FORK_S)[0]
                self._pid = int(os.read(self._file, 32) or 0) if ready else 0
                os.close(self._file)
                _Adoption.end()
            return self._pid


class _Adoption:
    """While children are made, orphans among this process's descendants become its children."""

    _awaited = 0
    _before = 0

    @classmethod
    def begin(cls) -> None:
        with _lock:
            if not cls._awaited:
                before = ctypes.c_int(0)
                ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before))
                cls._before = before.value
                if ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1) != 0:
                    raise OSError("this process can't adopt children")
            cls._awaited += 1

    @classmethod
    def end(cls) -> None:
        with _lock:
            cls._awaited -= 1
            if not cls._awaited:
                ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, cls._before)


def run_template(run: Callable[[], object]) -> None:
    """Fork processes that call `run`, as stdin orders, until its end."""
    orders = socket.socket(fileno=os.dup(0))
    while can_fork():  # unless a module has started a thread
        encoded, files, _, _ = socket.recv_fds(orders, 1 << 20, 5)
        if not encoded:
            return
        order = msgspec.msgpack.decode(encoded, type=Order)
        *ends, told, here = files
        adopting, first = os.getppid(), os.fork()
        if not first:
            if os.fork():
                os._exit(0)
            _await_adoption(adopting)
            os.write(told, str(os.getpid()).encode())
            os.fchdir(here)
            os.environ.clear()
            os.environ.update(order.environment)
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
