"""Programs under test as process groups of their own, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

_MARK = "MINISHARK_TEST_MARK"


class Program:
    """A Python program with a temporary folder and an environment that its children inherit."""

    def __init__(self, arguments: list[str], temporary: Path) -> None:
        """Start it; its stderr is read by `wait_for`."""
        self.temporary = temporary
        environment = os.environ | {"TMPDIR": str(temporary), _MARK: str(temporary)}
        self.process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.seen = ""
        self.folders: set[Path] = set()

    def wait_for(self, text: str) -> None:
        """Read stderr to the line that has `text` in it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.seen += line
            if text in line:
                self.folders |= folders_of(self.process.pid)
                return
        message = f"{text!r} never came; all that came:\n{self.seen}"
        raise AssertionError(message)

    def interrupt(self) -> float:
        """Ctrl-C: SIGINT to the whole group; the seconds until the program's end."""
        self.folders |= folders_of(self.process.pid)
        start = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        self.seen += self.process.communicate(timeout=30)[1]
        return time.monotonic() - start

    def kill(self) -> None:
        """SIGKILL to the program alone."""
        self.folders |= folders_of(self.process.pid)
        self.process.kill()
        self.process.wait()

    def family(self) -> list[int]:
        """The program and all that it started, as long as they live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get(_MARK) == str(self.temporary):
                    found.append(process.pid)
        return found

    def remains(self) -> list[str]:
        """Processes and files that are still there."""
        files = [*self.temporary.iterdir(), *(f for f in self.folders if f.exists())]
        return [*(f"process {pid}" for pid in self.family()), *map(str, files)]


@contextlib.contextmanager
def program(*arguments: str) -> Iterator[Program]:
    """Start a program; whatever it leaves is removed at the end."""
    temporary = Path(tempfile.mkdtemp(prefix="ms-", dir="/tmp"))
    started = Program(list(arguments), temporary)
    try:
        yield started
    finally:
        for pid in started.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        started.process.wait()
        for stream in (started.process.stdout, started.process.stderr):
            assert stream is not None
            stream.close()
        shutil.rmtree(temporary)


def folders_of(pid: int) -> set[Path]:
    """The folders that a session in the process owns."""
    try:
        opened = psutil.Process(pid).open_files()
    except psutil.Error:
        return set()
    return {Path(file.path).parent for file in opened if file.path.endswith("/owner.lock")}


def free_port() -> int:
    """A port that is free, and so is the next."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def until(holds: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Wait until something holds."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.01
    while not holds():
        assert time.monotonic() < deadline, f"{what} within {timeout_s} s"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.1)  # some conditions look at all processes
