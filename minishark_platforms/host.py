"""On a machine that a platform has given: one node as a child process, and its end.

The platform's own process there (an actor of Ray, a worker of Dask) holds a `NodeHost`. The node
never outlives it: its stdin is a pipe whose end of file tells it to exit. Light, as starting that
process is part of what users wait for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import msgspec

from machine_kit.logs import log_tail
from minishark.cluster.folders import ClusterFolders, make_folders, reap, remove_if_orphaned
from minishark.cluster.keys import Keys, write_keys
from minishark.cluster.rendezvous import hold_ports
from minishark.errors import ClusterError
from sparrow_core.runtime.transport.deaths import describe_exit
from sparrow_core.runtime.transport.spawning import process_environment

START_S = 60.0  # a machine that starts many processes at once takes long
_END_S = 5.0
_PORT_TRIES = 100
_OLD_PORT_S = 5.0
_POLL_S = 0.02
_LOG_TAIL_BYTES = 2_000
_KEYS = "keys"


class NodeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A node that a host is to start.

    Attributes:
        name: its name, unique in the cluster, also among nodes that are gone.
        cluster: the cluster's name.
        heads: addresses of the nodes with a scheduler; without an address of its own among them,
            the node runs none.
        executors: executor processes; 0 for schedulers only.
        memory_limit_bytes: for executors and files; None for the machine's share.
        keys: the cluster's keys. A host keeps them in memory, and in a file of mode 0600 in the
            node's folder in shared memory, for its executors.
    """

    name: str
    cluster: str
    heads: tuple[str, ...]
    executors: int
    memory_limit_bytes: int | None
    keys: Keys


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the child process is told on stdin."""

    spec: NodeSpec
    listen: str
    keys_folder: str
    folders: tuple[str, str]
    locks: tuple[int, ...]


class NodeStarted(msgspec.Struct, frozen=True):
    """What it answers on stdout when it listens: the address of its service."""

    service: str


class NodeEnd(msgspec.Struct, frozen=True):
    """How a node ended, as a sentence; and whether it left because it was drained."""

    how: str
    left: bool


class NodeHost:
    """Starts a node on this machine, watches it, ends it. Its methods may be called by threads."""

    def __init__(self, ip: str) -> None:
        """A host whose node listens at the interface with this address."""
        self._ip = ip
        self._reserved: tuple[socket.socket, ...] = ()
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folders: ClusterFolders | None = None
        self._log: IO[bytes] | None = None
        self._words = ""  # the end of the log of a node that has ended
        self._lock = threading.Lock()  # of the end

    def reserve(self, before: str = "") -> str:
        """Choose the address of a node that others must know before it runs.

        It is `before` if that is of this machine and free. Two ports are held until `start`.

        Raises:
            ClusterError: there are none.
        """
        deadline = time.monotonic() + _OLD_PORT_S
        first, (host, _, port) = None, before.removeprefix("tcp://").rpartition(":")
        while host == self._ip and first is None and time.monotonic() < deadline:
            first = self._pair(int(port))  # a node that was killed there may be about to end
            if first is None:
                time.sleep(_POLL_S)
        for _ in range(_PORT_TRIES):
            first = first or self._pair(0)
        if first is None:
            raise ClusterError(f"No two adjacent ports are free at {self._ip}.")
        self._port = first
        return f"tcp://{self._ip}:{first}"

    def _pair(self, port: int) -> int | None:
        held = hold_ports(self._ip, port)
        if held is None:
            return None
        self._reserved = held
        return int(held[0].getsockname()[1])

    @property
    def folders(self) -> tuple[Path, Path]:
        """The node's folders in shared memory and on disk."""
        assert self._folders is not None, "it was started"
        return self._folders.memory, self._folders.disk

    def start(self, spec: NodeSpec) -> str:
        """Start the node; the address of its service, once it listens.

        Raises:
            ClusterError: it did not start; with the end of its log.
        """
        folders = self._folders = make_folders()
        keys = folders.memory / _KEYS
        write_keys(keys, spec.keys)
        settings = NodeSettings(
            spec=spec,
            listen=f"tcp://{self._ip}:{'*' if self._port is None else self._port}",
            keys_folder=str(keys),
            folders=(str(folders.memory), str(folders.disk)),
            locks=folders.locks,
        )
        for held in self._reserved:
            held.close()
        # It outlives the node's folders, and leaves nothing.
        log = self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the host
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "minishark_platforms.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=process_environment(),
            pass_fds=folders.locks,
            start_new_session=True,  # Ctrl-C in a terminal is for the session
        )
        folders.release()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its log says why
            process.stdin.write(msgspec.json.encode(settings) + b"\n")
            process.stdin.flush()
        try:
            return self._answer(process)
        except BaseException:
            self.end()
            raise

    def _answer(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else b""
        if line:
            return msgspec.json.decode(line, type=NodeStarted).service
        how = "ended" if ready else f"did not answer within {START_S:g} s"
        raise ClusterError(f"The node on {socket.gethostname()} {how}.{self._last_words()}")

    def _last_words(self) -> str:
        """The end of the node's log, as a sentence."""
        assert self._log is not None
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 2 * _LOG_TAIL_BYTES))
        text = log_tail(self._log.read().decode(errors="replace"), _LOG_TAIL_BYTES)
        return f" It says: {text}" if text else ""

    def wait(self) -> NodeEnd:
        """Wait for the node's end."""
        assert self._process is not None, "it was started"
        self._process.wait()
        return self._ended()

    def poll(self) -> NodeEnd | None:
        """How the node ended; None if it runs, or was not started."""
        if self._process is None or self._process.poll() is None:
            return None
        return self._ended()

    def _ended(self) -> NodeEnd:
        words = self._finish()
        assert self._process is not None, "it was started"
        status = self._process.returncode
        how = describe_exit(status, 0, out_of_memory=False)
        return NodeEnd(f"The node ended: {how}.{words}", left=not status)

    def end(self) -> None:
        """End the node, if it runs, and remove its files; may be called twice."""
        for held in self._reserved:
            held.close()
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)  # SIGTERM would drain it
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._finish()

    def _finish(self) -> str:
        """Clean up after a node that has ended, once; its last words."""
        with self._lock:
            if self._log is not None:
                assert self._process is not None, "it was started"
                self._words = self._last_words()
                for stream in (self._process.stdin, self._process.stdout, self._log):
                    if stream is not None:
                        with contextlib.suppress(BrokenPipeError):
                            stream.close()
                self._log = None
                self._remove_folders()
        return self._words

    def _remove_folders(self) -> None:
        """Remove them; executors of a killed node need a moment to see that it is dead."""
        assert self._folders is not None
        deadline = time.monotonic() + _END_S
        for folder in self.folders:
            while folder.exists() and not remove_if_orphaned(folder):
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
            reap(folder.parent)
