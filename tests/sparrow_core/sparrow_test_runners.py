"""Runners for tests: payloads are small commands."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

from sparrow_core.protocol.errors import TaskFailure


class CommandRunner:
    """Runs `command argument` payloads."""

    def __init__(self, config: dict[str, str], slot: int) -> None:
        """Keep the configuration; `slot` is echoed by `whoami`."""
        self._config = config
        self._slot = slot
        self._cancelled = threading.Event()
        self.forgotten: list[str] = []

    def run(self, job_id: str, shared: bytes, payload: bytes) -> bytes:
        """Run one command."""
        self._cancelled.clear()
        command, _, argument = payload.decode().partition(" ")
        return getattr(self, f"_run_{command}")(argument, job_id, shared)

    def _run_echo(self, argument: str, job_id: str, shared: bytes) -> bytes:
        return shared + argument.encode()

    def _run_whoami(self, argument: str, job_id: str, shared: bytes) -> bytes:
        return f"{self._config['node']} {self._slot} {os.getpid()} {job_id}".encode()

    def _run_where(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """The working folder, and a variable of the environment."""
        return f"{Path.cwd()} {os.environ.get(argument, '')}".encode()

    def _run_fail(self, argument: str, job_id: str, shared: bytes) -> bytes:
        raise TaskFailure(argument, b"detail")

    def _run_crash(self, argument: str, job_id: str, shared: bytes) -> bytes:
        raise ValueError(argument)

    def _run_retry_until(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Fail, retryably, until the file `argument` has two lines."""
        path = Path(argument)
        with path.open("a") as file:
            file.write(f"{self._config['node']}\n")
        nodes = path.read_text().split()
        if len(nodes) < 2:
            raise TaskFailure("not yet", retryable=True)
        return " ".join(nodes).encode()

    def _run_never(self, argument: str, job_id: str, shared: bytes) -> bytes:
        raise TaskFailure("never", retryable=True)

    def _run_die_once(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Kill the own process at the first attempt."""
        path = Path(argument)
        if not path.exists():
            path.touch()
            os.kill(os.getpid(), 9)
        return b"survived"

    def _run_die(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Kill the own process."""
        os.kill(os.getpid(), 9)
        return b""

    def _run_freeze(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Stop the own process, of which a copy goes on."""
        if os.fork() == 0:
            time.sleep(20.0)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
        return b""

    def _run_hold(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Hold the interpreter's lock for long."""
        ctypes.PyDLL(None).sleep(60)
        return b""

    def _run_break(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Change what Python code stands on."""
        time.perf_counter = None
        return b""

    def _run_stuck(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Tell by a file that the task runs, then hang for ever."""
        Path(argument).write_text("stuck")
        threading.Event().wait()
        return b""

    def _run_hang(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Tell by a file that the task runs, then wait to be cancelled, and tell that."""
        path = Path(argument)
        path.write_text(str(os.getpid()))
        self._cancelled.wait()
        path.write_text("cancelled")
        raise TaskFailure("interrupted")

    def _run_sleep(self, argument: str, job_id: str, shared: bytes) -> bytes:
        time.sleep(float(argument))
        return b""

    def _run_wait_for(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Return as soon as the file `argument` is there."""
        while not Path(argument).exists():
            time.sleep(0.01)
        return b""

    def _run_note_and_sleep(self, argument: str, job_id: str, shared: bytes) -> bytes:
        """Tell by a character in a file that the task has begun, then sleep for four seconds."""
        with Path(argument).open("a") as file:
            file.write(".")
        time.sleep(4.0)
        return b""

    def cancel(self) -> None:
        """Let `hang` return."""
        self._cancelled.set()

    def forget(self, job_id: str) -> None:
        """Note the job in a file, if there is a folder for it."""
        if "forgotten" in self._config:
            Path(self._config["forgotten"], job_id).touch()

    def close(self) -> None:
        """Nothing to close."""


def make(config: dict[str, str], slot: int) -> CommandRunner:
    """Make a runner."""
    return CommandRunner(config, slot)


def broken(config: dict[str, str], slot: int) -> CommandRunner:
    """Fail to make a runner."""
    raise RuntimeError("no runner today")
