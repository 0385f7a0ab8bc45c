"""The cluster under test in folders of its own, and checks for leaks.

All processes of a run have a mark in their environment, which children inherit: only marked
processes are ever killed, and those that are still alive at the end are leaks.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias
from unittest.mock import patch

import msgspec
import psutil

from minishark.cluster.endpoints import HOST_VARIABLE
from minishark.cluster.folders import SHARED_MEMORY
from minishark.cluster.launch import (
    ClusterRecord,
    StartOptions,
    forget_cluster,
    make_keys,
    start_cluster,
    stop_cluster,
)
from minishark.errors import ClusterError
from minishark_lab.chaos.leftovers import abandoned_folders, unlocked_folders

ClusterKind: TypeAlias = Literal["own", "hosts"]
"""Where queries run: on the session's own cluster, or on nodes that emulate separate hosts (tcp,
keys, nothing shared), which an operator restarts when they die."""

_MARK = "MINISHARK_CHAOS"
_SETTLE_S = 20.0
_POLL_S = 0.05
_HEADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A node, as a session knows it."""

    name: str
    pid: int  # 0 on another host
    alive: bool
    executors: Mapping[str, int]  # pids by name
    home: tuple[str, ...] = ()  # its folders and address, on another host


@dataclass(slots=True, kw_only=True)
class Testbed:
    """Folders and a mark for one run."""

    folder: Path  # for temporary files of all processes of the run
    mark: str
    strange: tuple[Path, ...]  # unowned folders in shared memory from before the run
    _hosts: list[_Host] = field(default_factory=list)
    _peer_session: subprocess.Popen[bytes] | None = None
    _mender: threading.Thread | None = None
    _is_over: bool = False

    # Processes

    def is_ours(self, pid: int) -> bool:
        """Whether the process belongs to this run and is alive."""
        try:
            process = psutil.Process(pid)
            alive = process.status() != psutil.STATUS_ZOMBIE
            return bool(alive and process.environ().get(_MARK) == self.mark)
        except psutil.Error:
            return False

    def family(self) -> list[psutil.Process]:
        """All other processes of the run."""
        found = [each for each in psutil.process_iter() if each.pid != os.getpid()]
        return [each for each in found if self.is_ours(each.pid)]

    # Nodes that emulate separate hosts

    def start_hosts(self, count: int, executors: int) -> str:
        """Start nodes that share nothing but the network; returns the first one's address."""
        keys = self.folder / "keys"
        make_keys(keys)
        paths = [f"tcp://127.0.0.1:{port}" for port in _free_ports(count)]
        heads = tuple(paths[: min(_HEADS, count)])
        for number, place in enumerate(paths):
            options = StartOptions(
                name=f"host{number}", nodes=1, executors_per_node=executors, listen=place,
                join=heads, keys=str(keys),
            )  # fmt: skip
            self._hosts.append(_Host(options, _start_host(options)))
        return paths[0]

    def seen(self, nodes: Sequence[SeenNode]) -> tuple[SeenNode, ...]:
        """Nodes with their process ids, which a session does not know of other hosts."""
        if not self._hosts:
            return tuple(nodes)
        own = {host.record.nodes[0].name: host.record for host in self._hosts}
        return tuple(_with_processes(node, own[node.name]) for node in nodes)

    @property
    def keys(self) -> Path | None:
        return self.folder / "keys" if self._hosts else None

    def heads(self, nodes: int) -> frozenset[str]:
        own = [f"node-{i}" for i in range(nodes)]
        names = [host.record.nodes[0].name for host in self._hosts] or own
        return frozenset(names[:_HEADS])

    def mend(self) -> None:
        """Have dead nodes restarted at their addresses, as by an operator; returns at once."""
        if self._mender is None or not self._mender.is_alive():
            self._mender = threading.Thread(target=self._restart, name="chaos-mender", daemon=True)
            self._mender.start()

    def _restart(self) -> None:
        for host in self._hosts:
            if not host.record.is_alive and not self._is_over:
                forget_cluster(host.record)
                # Tried again later if its address is not free yet.
                with contextlib.suppress(ClusterError):
                    host.record = _start_host(host.options)

    # Another session

    def start_peer(self, address: str | None) -> None:
        """Start the other session's program unless it runs."""
        if self.peer_pid is None:
            self._end_peer()
            self._peer_session = subprocess.Popen(
                [sys.executable, "-m", "minishark_lab.chaos.peer_session"],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # The mender may be starting a node, as if on another host.
                env={
                    name: os.environ.get(name, "") for name in os.environ if name != HOST_VARIABLE
                },
            )
            assert self._peer_session.stdin is not None
            settings = msgspec.json.encode([address, self.keys and str(self.keys)])
            self._peer_session.stdin.write(settings + b"\n")
            self._peer_session.stdin.flush()

    @property
    def peer_pid(self) -> int | None:
        peer = self._peer_session
        return peer.pid if peer is not None and peer.poll() is None else None

    def _end_peer(self) -> None:
        if self._peer_session is not None and self._peer_session.stdin is not None:
            with contextlib.suppress(OSError):
                self._peer_session.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._peer_session.wait(_SETTLE_S)

    # The end

    def close(self) -> None:
        self._is_over = True
        self._end_peer()
        if self._mender is not None:
            self._mender.join()
        for host in self._hosts:
            with contextlib.suppress(ClusterError):
                stop_cluster(host.record.name)
            forget_cluster(host.record)

    def left_behind(self) -> list[str]:
        """Leaks: processes, sockets, files and folders that are still there after some seconds."""
        deadline = time.monotonic() + _SETTLE_S
        while (found := self._remains()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return found

    def _remains(self) -> list[str]:
        kept = {"keys", "minishark", "written"}
        files = [path for path in self.folder.iterdir() if path.name not in kept]
        known = [*(self.folder / "minishark").glob("*")]
        return [
            *(f"process {each.pid}: {_command(each)}" for each in self.family()),
            *(str(path) for path in (*files, *known, *abandoned_folders(SHARED_MEMORY))),
            *(str(path) for path in unlocked_folders(SHARED_MEMORY) if path not in self.strange),
        ]


@dataclass(slots=True)
class _Host:
    options: StartOptions
    record: ClusterRecord


@contextlib.contextmanager
def open_testbed() -> Iterator[Testbed]:
    """Folders for this process and its children; removed at the end, with all processes."""
    folder = Path(tempfile.mkdtemp(prefix="ms-chaos-"))
    strange = tuple(unlocked_folders(SHARED_MEMORY))
    testbed = Testbed(folder=folder, mark=secrets.token_hex(8), strange=strange)
    (folder / "written").mkdir()
    own = {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder), _MARK: testbed.mark}
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    with patch.dict(os.environ, own):
        try:
            yield testbed
        finally:
            testbed.close()
            for process in testbed.family():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            shutil.rmtree(folder, ignore_errors=True)
            tempfile.tempdir = before


def _start_host(options: StartOptions) -> ClusterRecord:
    # Other threads start processes meanwhile: `patch.dict` would empty all for a moment at its end.
    os.environ[HOST_VARIABLE] = options.name
    try:
        return start_cluster(options)
    finally:
        del os.environ[HOST_VARIABLE]


def _with_processes(node: SeenNode, record: ClusterRecord) -> SeenNode:
    pid = record.nodes[0].pid
    try:
        found = psutil.Process(pid).children() if record.is_alive else []
    except psutil.Error:
        found = []
    executors = {f"{node.name}-{each.pid}": each.pid for each in found}
    return replace(node, pid=pid, alive=node.alive and bool(found), executors=executors)


def _free_ports(count: int) -> list[int]:
    """Free ports whose successors are free, too."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with contextlib.suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                if all(abs(port - other) > 1 for other in found):
                    found.append(port)
    return found


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "gone"
