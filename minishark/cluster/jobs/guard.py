"""The process that watches over one program: starts it, keeps its output, ends all that it started.

It is run as a file, and imports the standard library only, so that it is up at once. Its first line
on stdin has its settings in JSON. Later bytes are signs of life of the node, or ask it to end the
program. At the end of stdin, or without a sign of life for too long, it kills the program at once,
with all its descendants. On stdout it says in lines of JSON which process the program is, and how
that has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_SET_CHILD_SUBREAPER = 36  # of prctl(2)
_SET_DEATH_SIGNAL = 1
_STOP_S = 2.0  # between SIGTERM and SIGKILL
_KILL_S = 5.0
_STEP_S = 0.2
_DRAIN_S = 0.5  # for the last of the output
_READ_BYTES = 1 << 16
ALIVE, END = b".", b"E"
"""What the node says."""
LOG_PREFIX = "log."
"""Of a log's files, which have the position of their first byte in the name."""


class Log:
    """The last bytes of a program's output, in two files of at most half the limit each."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        """Go on with the log in a folder."""
        self._folder, self._half = folder, max(1, limit_bytes // 2)
        files = log_files(folder)
        self._start = files[-1][0] if files else 0
        self._size = files[-1][1].stat().st_size if files else 0
        self._file = self._opened()

    def _opened(self) -> int:
        path = self._folder / f"{LOG_PREFIX}{self._start}"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes) -> None:
        """Append bytes; a full disk loses them."""
        while data:
            if self._size >= self._half:
                os.close(self._file)
                self._start, self._size = self._start + self._size, 0
                self._file = self._opened()
                for _, path in log_files(self._folder)[:-2]:
                    path.unlink(missing_ok=True)
            piece = data[: self._half - self._size]
            with contextlib.suppress(OSError):
                os.write(self._file, piece)
            self._size += len(piece)
            data = data[len(piece) :]


def log_files(folder: Path) -> list[tuple[int, Path]]:
    """The files of a log with the positions where they begin, in order."""
    with contextlib.suppress(OSError):
        logs = [path for path in folder.iterdir() if path.name.startswith(LOG_PREFIX)]
        return sorted((int(path.name.removeprefix(LOG_PREFIX)), path) for path in logs)
    return []


class Program:
    """A program with all processes that come of it."""

    def __init__(self, command: Sequence[str], folder: str, environment: Mapping[str, str]) -> None:
        """Start it, with a session of its own; OSError if that fails."""
        if sys.platform == "linux":  # orphans of the program become children of this process
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
        read, write = os.pipe()
        self.output = read
        os.set_blocking(read, False)
        try:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one thread
            )
        finally:
            os.close(write)
        self.pid = self._process.pid

    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def end(self, *, gently: bool) -> None:
        """End all its processes: after SIGTERM it has a moment, if `gently`."""
        if gently and self._process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        deadline = time.monotonic() + _KILL_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            descendants = _children()
            for pid in descendants:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if not descendants and self._process.poll() is not None:
                return
            self._process.poll()
            _reap(self.pid)
            time.sleep(0.005)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _children() -> list[int]:
    """The processes of which this one is the parent now, the dead ones left out."""
    children = []
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with contextlib.suppress(OSError, ValueError):
                    stat = Path(entry.path, "stat").read_bytes().rpartition(b")")[2].split()
                    if int(stat[1]) == os.getpid() and stat[0] != b"Z":
                        children.append(int(entry.name))
    return children


def _reap(program: int) -> None:
    """Wait for dead orphans, but not for the program itself, whose status is wanted."""
    with contextlib.suppress(ChildProcessError):
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        while dead is not None and dead.si_pid and dead.si_pid != program:
            os.waitpid(dead.si_pid, os.WNOHANG)
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)


def _say(**what: object) -> None:
    with contextlib.suppress(OSError):  # the node is dead
        os.write(1, json.dumps(what).encode() + b"\n")


def watch(program: Program, log: Log, fence_s: float) -> bool:
    """Keep a program's output until it ends; whether it has, or may, end by itself."""
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(program.output, selectors.EVENT_READ)
    with contextlib.suppress(OSError, AttributeError):
        selector.register(os.pidfd_open(program.pid), selectors.EVENT_READ)
    alive_s = time.monotonic()
    while program.status() is None:
        for key, _ in selector.select(_STEP_S):
            if key.fd == 0:
                said = os.read(0, _READ_BYTES)
                if not said or END in said:
                    program.end(gently=bool(said))
                    return False
                alive_s = time.monotonic()
            elif key.fd == program.output and not _copy(program.output, log):
                selector.unregister(program.output)  # it has closed its output, and runs on
        if time.monotonic() - alive_s > fence_s:
            return False
        _reap(program.pid)
    return True


def _copy(output: int, log: Log) -> bool:
    """Keep what was written; whether there may be more."""
    try:
        data = os.read(output, _READ_BYTES)
    except BlockingIOError:
        return True
    log.write(data)
    return bool(data)


def main() -> None:
    """Run the program that the first line of stdin describes."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the node tells when to end
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        line += byte
    settings = json.loads(line)
    log = Log(Path(settings["logs"]), settings["log_bytes"])
    log.write(settings["first_line"].encode())
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the program inherits this
    try:
        program = Program(settings["command"], settings["folder"], settings["environment"])
    except OSError as error:
        _say(problem=f"{settings['command'][0]} can't be started: {error}")
        return
    finally:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    _say(pid=program.pid)
    ended = watch(program, log, settings["fence_s"])
    program.end(gently=False)
    deadline = time.monotonic() + _DRAIN_S
    while time.monotonic() < deadline and _has_more(program.output) and _copy(program.output, log):
        pass
    _say(exit_status=program.status() if ended else None)


def _has_more(output: int) -> bool:
    selector = selectors.DefaultSelector()
    selector.register(output, selectors.EVENT_READ)
    return bool(selector.select(0))


if __name__ == "__main__":
    main()
