"""Child processes that never outlive their parent.

The child's stdin is a pipe from the parent: its first line has the child's settings, end of file
tells the child to exit. The child also inherits the write end of a second pipe, which the kernel
closes when the child dies, however it dies: that tells the parent at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

import msgspec

from machine_kit.keys import Keys
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.runtime.specs import ExecutorGroup
from sparrow_core.runtime.transport.deaths import describe_exit, oom_kills, wait_for_child
from sparrow_core.runtime.transport.spawning import Started

_POLL_S = 0.0005
_POLL_MAX_S = 0.05
_KILL_S = 10.0
_NOT_STARTED = (1, 0)
_PF_EXITING = 0x4  # of the flags in /proc/PID/stat (linux/sched.h)


class NodeSettings(msgspec.Struct, frozen=True, tag="node", kw_only=True):
    """Settings of a node process."""

    name: str
    endpoint: str
    run_dir: str
    groups: tuple[ExecutorGroup, ...]
    schedulers: tuple[str, ...]  # addresses of all schedulers
    own_schedulers: tuple[str, ...] = ()  # names of those in this process
    # Where the embedding program listens; its socket file is removed if it was killed.
    client_endpoint: str | None = None
    seed: int | None = None
    attributes: tuple[str, ...] = ()
    limits: NodeMonitorConfig = NodeMonitorConfig()
    bind: str | None = None  # see `ZmqDriver`
    keys: Keys | None = None
    audit_dir: str | None = None  # folder for audit logs; None for no logs
    metrics: bool = False  # whether to answer GetMetrics
    orphaned_folders: tuple[str, ...] = ()  # removed at the end if the parent was killed
    log_dir: str | None = None  # folder of logs; None for `run_dir`
    # How often the node was started before. It is part of its executors' names, because those of
    # the previous process may still be exiting.
    restarts: int = 0


class ExecutorSettings(msgspec.Struct, frozen=True, tag="executor", kw_only=True):
    """Settings of an executor process; see `NodeSettings` and `ExecutorGroup`."""

    name: str
    endpoint: str
    node: str
    node_monitor: str
    group: ExecutorGroup
    keys: Keys | None
    audit_dir: str | None


Settings = NodeSettings | ExecutorSettings


_children: weakref.WeakSet[Child] = weakref.WeakSet()


def _let_go() -> None:
    """After fork: children belong to the parent, so close our ends of their pipes."""
    for child in tuple(_children):
        child.close()


os.register_at_fork(after_in_child=_let_go)


class Child:
    """A child process; `alive_fd` becomes readable when it dies."""

    def __init__(self, settings: Settings, log: Path, process: Started) -> None:
        """Give a process that was started its settings; its output is appended to `log`."""
        self.settings = settings
        self.log = log
        self._process = process
        self._status: int | None = None
        self._peak_bytes = 0
        self._oom_kills = oom_kills()
        self.alive_fd = process.alive_fd
        self._open = self._told = True
        _children.add(self)
        with contextlib.suppress(BrokenPipeError):
            os.write(process.stdin, msgspec.json.encode(settings) + b"\n")

    @property
    def pid(self) -> int:
        """Its number; 0 if it could not be started."""
        return self._process.pid()

    def exit_status(self) -> int | None:
        """Its exit status (negative: the signal); None while it runs."""
        if self._status is None:
            ended = wait_for_child(self.pid) if self.pid else _NOT_STARTED
            if ended is not None:
                self._status, self._peak_bytes = ended
        return self._status

    def wait(self, timeout_s: float) -> bool:
        """Wait for its death; False after the timeout."""
        deadline = time.monotonic() + timeout_s
        delay_s = _POLL_S
        while self.exit_status() is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(delay_s, left_s))
            delay_s = min(2 * delay_s, _POLL_MAX_S)
        return True

    def describe_exit(self) -> str:
        """How it ended, for messages."""
        self.wait(1.0)
        out_of_memory = oom_kills() > self._oom_kills
        return describe_exit(self.exit_status(), self._peak_bytes, out_of_memory=out_of_memory)

    def ask_to_end(self) -> None:
        """Close its stdin, upon which it exits."""
        if self._told:
            self._told = False
            os.close(self._process.stdin)

    def send_kill(self) -> None:
        """Kill it, without waiting for its death."""
        if self.exit_status() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill and reap it."""
        self.send_kill()
        self.wait(_KILL_S)

    def close(self) -> None:
        """Close the parent's ends of the pipes, after the child's death, or in a copy of it."""
        self.ask_to_end()
        if self._open:
            self._open = False
            os.close(self.alive_fd)


def end_children(children: Iterable[Child], timeout_s: float) -> None:
    """Ask all children to exit, and kill those that have not after the timeout."""
    children = tuple(children)
    for child in children:
        child.ask_to_end()
    deadline = time.monotonic() + timeout_s
    for child in children:
        if not child.wait(max(0.0, deadline - time.monotonic())):
            child.kill()
        child.close()


def has_lost_parent(parent: int) -> bool:
    """Whether this process's parent, once of that pid, has died: not if it told its child to end.

    The pipes of a dying process are closed a moment before its children are adopted. On a busy
    machine that moment may last longer than what the child has to do until then.
    """
    return os.getppid() != parent or _is_dying(parent)


def _is_dying(pid: int) -> bool:
    """Whether a process is about to end, where the system tells."""
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    except (OSError, IndexError):
        return False
    return bool(int(flags) & _PF_EXITING)


def read_settings() -> Settings:
    """Read the first line on stdin, unbuffered: the rest is watched for end of file."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            raise SystemExit(0)  # the parent died before it could write them
        line += byte
    settings: Settings = msgspec.json.decode(line, type=Settings)
    return settings
