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
import time
from pathlib import Path
from typing import IO

import msgspec

from minishark.cluster.folders import ClusterFolders, make_folders, reap, remove_if_orphaned
from minishark.errors import ClusterError
from sparrow_core.runtime.transport.deaths import describe_exit
from sparrow_core.runtime.transport.keys import Keys, write_key_file

START_S = 60.0  # a machine that starts many processes at once takes long
_END_S = 5.0
_PORT_TRIES = 100
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


class NodeReport(msgspec.Struct, frozen=True):
    """What it answers on stdout when it listens: the address of its service."""

    service: str


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

    def reserve(self, port: int | None = None) -> str:
        """Choose the address of a node that others must know before it runs.

        It is of `port` if that is free, else any. Two ports are held until `start`.

        Raises:
            ClusterError: there are none.
        """
        first = self._pair(port) if port is not None else None
        for _ in range(_PORT_TRIES):
            if first is not None:
                break
            first = self._pair(0)
        if first is None:
            raise ClusterError(f"No two adjacent ports are free at {self._ip}.")
        self._port = first
        return f"tcp://{self._ip}:{first}"

    def _pair(self, port: int) -> int | None:
        with contextlib.ExitStack() as undo, contextlib.suppress(OSError, OverflowError):
            first = undo.enter_context(socket.socket())
            first.bind((self._ip, port))
            second = undo.enter_context(socket.socket())
            second.bind((self._ip, first.getsockname()[1] + 1))
            self._reserved = (first, second)
            undo.pop_all()
            return int(first.getsockname()[1])
        return None

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
        keys.mkdir(mode=0o700)
        write_key_file(keys / "own.key", spec.keys)
        (keys / "allowed.keys").write_text("\n".join((spec.keys.public, *spec.keys.allowed)))
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
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        process = self._process = subprocess.Popen(
            [sys.executable, "-m", "minishark.deploy.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path},
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
            return msgspec.json.decode(line, type=NodeReport).service
        how = "ended" if ready else f"did not answer within {START_S:g} s"
        raise ClusterError(f"The node on {socket.gethostname()} {how}.{self._last_words()}")

    def _last_words(self) -> str:
        """The end of the node's log, as a sentence."""
        assert self._log is not None
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_TAIL_BYTES))
        text = self._log.read().decode(errors="replace").strip()
        return f" It says: {text}" if text else ""

    def wait(self) -> str:
        """Wait for the node's end; how it ended, as in "killed by SIGKILL"."""
        assert self._process is not None, "it was started"
        self._process.wait()
        return self._ended()

    def poll(self) -> str | None:
        """How the node ended; None if it runs, or was not started."""
        if self._process is None or self._process.poll() is None:
            return None
        return self._ended()

    def _ended(self) -> str:
        assert self._process is not None, "it was started"
        self._clean()
        how = describe_exit(self._process.returncode, 0, out_of_memory=False)
        return f"{how}.{self._last_words()}"

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
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._clean()

    def _clean(self) -> None:
        """Remove the folders; executors of a killed node need a moment to see that it is dead."""
        assert self._folders is not None
        deadline = time.monotonic() + _END_S
        for folder in self.folders:
            while folder.exists() and not remove_if_orphaned(folder):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.02)
            reap(folder.parent)
