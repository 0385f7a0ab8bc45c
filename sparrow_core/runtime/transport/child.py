"""Child processes that never outlive their parent.

The parent holds a pipe on the child's stdin: its first line is the child's settings, its end tells
the child to end. The child holds, without knowing, the writing end of another pipe: its end tells
the parent at once that the child is dead, whatever killed it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

import msgspec

from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.runtime.specs import ExecutorGroup
from sparrow_core.runtime.transport.deaths import describe_exit, oom_kills, wait_for_child
from sparrow_core.runtime.transport.keys import Keys

_POLL_S = 0.0005
_POLL_MAX_S = 0.05
_KILL_S = 10.0


class NodeSettings(msgspec.Struct, frozen=True, tag="node"):
    """What a node process is told.

    Attributes:
        name: The node.
        endpoint: Where it listens.
        run_dir: Folder of sockets.
        groups: Its executors.
        schedulers: Addresses of all schedulers.
        own_schedulers: Names of those that live in this process.
        front_endpoint: Where the embedding program listens (its socket file is removed if it was
            killed).
        seed: Of random choices.
        attributes: What jobs may require of a node.
        limits: The node monitor's.
        bind: See `ZmqDriver`.
        keys: Needed for tcp.
        audit_dir: Folder for audit logs, if they are wanted.
        metrics: Count messages, for metrics on request.
        orphaned_folders: What to remove at the end if the parent was killed.
        log_dir: Folder of logs; None for `run_dir`.
        restarts: How often the node was started before; its executors' names tell, as those of
            the node before may still be about to end.
    """

    name: str
    endpoint: str
    run_dir: str
    groups: tuple[ExecutorGroup, ...]
    schedulers: tuple[str, ...]
    own_schedulers: tuple[str, ...] = ()
    front_endpoint: str | None = None
    seed: int | None = None
    attributes: tuple[str, ...] = ()
    limits: NodeMonitorConfig = NodeMonitorConfig()
    bind: str | None = None
    keys: Keys | None = None
    audit_dir: str | None = None
    metrics: bool = False
    orphaned_folders: tuple[str, ...] = ()
    log_dir: str | None = None
    restarts: int = 0


class ExecutorSettings(msgspec.Struct, frozen=True, tag="executor"):
    """What an executor process is told; see `NodeSettings` and `ExecutorGroup`."""

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
    """In a copy of this process, which it made by fork: children are not the copy's to keep."""
    for child in tuple(_children):
        child.let_go()


os.register_at_fork(after_in_child=_let_go)


_ENVIRONMENT = {
    # Or each of them, when numpy is imported, starts a thread for each core, which takes time, and
    # is more than the slots' share.
    "OPENBLAS_NUM_THREADS": "1",
}
"""What children find in their environment, unless it is there already."""


class Child:
    """A child process; `alive_fd` becomes readable when it is dead."""

    def __init__(self, settings: Settings, log: Path, *, new_session: bool) -> None:
        """Start the process with its stdout and stderr appended to `log`."""
        self.settings = settings
        self.log = log
        self._peak_bytes = 0
        self._oom_kills = oom_kills()
        self.alive_fd, child_end = os.pipe()
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        environment = {**_ENVIRONMENT, **os.environ, "PYTHONPATH": path}
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    # the log's path is for readers of `ps`
                    [sys.executable, "-m", "sparrow_core.runtime.transport.process", str(log)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(child_end,),
                    start_new_session=new_session,
                    env=environment,
                )
        except BaseException:
            os.close(self.alive_fd)
            raise
        finally:
            os.close(child_end)
        self.pid = self._process.pid
        self._open = True
        _children.add(self)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
            self._process.stdin.flush()

    def exit_status(self) -> int | None:
        """Its exit status (negative: the signal), None while it lives."""
        if self._process.returncode is None and (found := wait_for_child(self.pid)) is not None:
            self._process.returncode, self._peak_bytes = found
        return self._process.returncode

    def wait(self, timeout_s: float) -> bool:
        """True if it is dead within the time."""
        deadline = time.monotonic() + timeout_s
        delay_s = _POLL_S
        while self.exit_status() is None:
            if (left_s := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(delay_s, left_s))
            delay_s = min(2 * delay_s, _POLL_MAX_S)
        return True

    def describe_exit(self) -> str:
        """How it ended, in words."""
        self.wait(1.0)
        out_of_memory = oom_kills() > self._oom_kills
        return describe_exit(self.exit_status(), self._peak_bytes, out_of_memory=out_of_memory)

    def ask_to_end(self) -> None:
        """Close its stdin: it ends by itself."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def let_go(self) -> None:
        """Close what is held of the child, without a word to it; another process has it, too."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._open:
            self._open = False
            os.close(self.alive_fd)

    def kill(self) -> None:
        """End it the hard way, and reap it."""
        if self.exit_status() is None:
            self._process.kill()
            self.wait(_KILL_S)

    def close(self) -> None:
        """Release what the parent holds; after the child is dead."""
        self.ask_to_end()
        if self._open:
            self._open = False
            os.close(self.alive_fd)


def end_children(children: Iterable[Child], timeout_s: float) -> None:
    """Ask children to end, all at once, and kill those that have not after the time."""
    children = tuple(children)
    for child in children:
        child.ask_to_end()
    deadline = time.monotonic() + timeout_s
    for child in children:
        if not child.wait(max(0.0, deadline - time.monotonic())):
            child.kill()
        child.close()


def read_settings() -> Settings:
    """The first line on stdin; leaves the rest (there is none but its end)."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            raise SystemExit(0)  # the parent died before it could say anything
        line += byte
    settings: Settings = msgspec.json.decode(line, type=Settings)
    return settings
