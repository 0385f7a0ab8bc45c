"""Background clusters on this machine: start, find by name, list, stop.

A record file for each cluster, in a folder private to the user, has its address and processes. A
record whose processes are dead is stale, and removed by whoever finds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from machine_kit.logs import log_tail
from minishark.cluster.connections import Connections
from minishark.cluster.endpoints import service_address
from minishark.cluster.folders import ClusterFolders, make_folders, reap_all, remove_folder
from minishark.cluster.joining import peer_session
from minishark.cluster.keys import Keys, fresh_keys, load_keys, write_keys
from minishark.cluster.machine import live_process, node_memory
from minishark.cluster.node import NodeOptions
from minishark.cluster.platforms import kept
from minishark.cluster.rendezvous import head_in, is_rendezvous
from minishark.cluster.wire import Hello, Welcome, own_versions
from minishark.errors import ClusterError, OptionError
from minishark.worker.cores import usable_cores
from sparrow_core import NodeStatus
from sparrow_core.runtime.transport.spawning import TITLE_CHARS, process_environment

DEFAULT_NAME = "default"
KEYS_VARIABLE = "MINISHARK_KEYS"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
_FIRST_LOCK = 200  # file descriptor of the first lock in a node's process, above all others
_START_S = 60.0
_STOP_S = 5.0
_POLL_S = 0.05
_HELLO_S = 0.2
_LOG_TAIL_CHARS = 2_000


class NodeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A node that was started on this machine."""

    name: str
    pid: int
    started_s: float  # start time of its process, in seconds since 1970
    service: str  # address of its file service
    folders: tuple[str, str]  # its folders in shared memory and on disk
    log: str

    def process(self) -> psutil.Process | None:
        return live_process(self.pid, self.started_s)


class ClusterRecord(msgspec.Struct, frozen=True):
    """A cluster with the nodes that were started on this machine; `keys` is a folder, for tcp."""

    name: str
    address: str
    keys: str | None
    nodes: tuple[NodeProcess, ...]

    @property
    def is_alive(self) -> bool:
        return any(node.process() is not None for node in self.nodes)

    @property
    def ended(self) -> tuple[NodeProcess, ...]:
        """Nodes that were started on this machine, and drained, killed or died since."""
        return tuple(node for node in self.nodes if node.process() is None)

    @property
    def live_address(self) -> str:
        """That of the first node that lives: the node of `address` may be dead."""
        live = (node.service for node in self.nodes if node.process() is not None)
        return next(live, self.address)


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster, or more nodes of one, to start on this machine."""

    name: str = DEFAULT_NAME  # the name by which other programs of the user find it
    nodes: int = 2
    executors_per_node: int = 1  # executor processes of each node
    memory_limit_bytes: int | None = None  # of all nodes; None for a share of the machine's
    # `tcp://host:port` of the first node, for clusters of several machines; each further node takes
    # the next two ports. None for ipc, on this machine only.
    listen: str | None = None
    bind: str | None = None  # the interface, if not that of `listen`: `tcp://0.0.0.0`
    join: tuple[str, ...] = ()  # the cluster's nodes with schedulers; empty for a new cluster
    keys: str | None = None  # the folder of the cluster's keys, for tcp

    def check(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise OptionError(f"Invalid cluster name {self.name!r}: use letters and digits.")
        if self.nodes < 1 or self.executors_per_node < 0:
            raise OptionError("A cluster needs at least one node; executors can't be below 0.")
        if self.join and self.listen is None:
            raise OptionError("A node that joins a cluster needs its own address: pass --listen.")
        if self.listen is not None and not re.fullmatch(r"tcp://[^/]+:\d+", self.listen):
            raise OptionError(f"Can't listen at {self.listen!r}: write tcp://HOST:PORT.")
        node_memory(self.memory_limit_bytes, self.nodes, max(1, self.executors_per_node))


def state_folder() -> Path:
    """The user's folder of cluster records; ClusterError if others can access it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        folder = Path(runtime, "minishark")
    else:
        folder = Path(tempfile.gettempdir(), f"minishark.{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise ClusterError(f"{folder} must be owned by you and have mode 0700.")
    return folder


def resolve(cluster: str, keys: str | None, *, waits: bool = True) -> tuple[str, str | Keys | None]:
    """The address and the keys (or their folder) of a running cluster, however it was named.

    That is an address, the name or record file of a cluster on this machine, a name on a platform,
    or `@FILE` in which its nodes meet, which it waits for. Without `keys` the cluster's own folder
    of keys counts, or MINISHARK_KEYS in the environment.

    Raises:
        ClusterError: there is none.
    """
    return located(cluster, keys, waits=waits)[:2]


def located(
    cluster: str, keys: str | None, *, waits: bool = True
) -> tuple[str, str | Keys | None, ClusterRecord | None]:
    """The same, and the record of a cluster that was named by one."""
    if is_rendezvous(cluster):
        cluster = head_in(cluster) if waits else head_in(cluster, 0.0)
    elif (elsewhere := kept(cluster)) is not None:
        platform, name = elsewhere
        return *platform.contact(name), None
    record = None if "://" in cluster else find_cluster(cluster)
    address = cluster if record is None else record.live_address
    folder = keys or (record and record.keys) or os.environ.get(KEYS_VARIABLE)
    return address, folder and str(Path(folder).expanduser()), record


def find_cluster(name: str) -> ClusterRecord:
    """The running cluster with that name or record file; ClusterError if there is none."""
    record = _read_record(name)
    if not record.is_alive:
        raise ClusterError(
            f"All nodes of cluster {record.name} have ended: start it again with "
            f"`minishark cluster start --name {record.name}`."
        )
    return record


def _read_record(name: str) -> ClusterRecord:
    path = Path(name) if "/" in name else state_folder() / f"{name}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterRecord)
    except FileNotFoundError:
        names = ", ".join(record.name for record in running_clusters()) or "none"
        raise ClusterError(
            f"There is no cluster called {name!r} (running: {names}); "
            "start one with `minishark cluster start`."
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ClusterError(f"{path} is not a cluster record: {error}") from error


def running_clusters() -> tuple[ClusterRecord, ...]:
    """The clusters on this machine, by name; removes records and folders of those that ended."""
    running = []
    for path in sorted(state_folder().glob("*.json")):
        try:
            record = msgspec.json.decode(path.read_bytes(), type=ClusterRecord)
        except (OSError, msgspec.MsgspecError):
            continue
        if record.is_alive:
            running.append(record)
        else:
            forget_cluster(record)
    return tuple(running)


def start_cluster(options: StartOptions) -> ClusterRecord:
    """Start a cluster in the background, or more nodes of one; returns when all nodes answer."""
    # All are stopped if one does not start.
    options.check()
    with _locked(options.name):
        for record in running_clusters():
            if record.name == options.name:
                where = record.address
                raise ClusterError(
                    f"Cluster {options.name} is already running at {where}. Use it by "
                    f'minishark.connect("{options.name}"), end it by `minishark cluster stop '
                    f"{options.name}`, or start another one with --name OTHER."
                )
        keys = options.keys and str(Path(options.keys).absolute())
        load_keys(keys)
        nodes: list[NodeProcess] = []
        folders = [make_folders() for _ in range(options.nodes)]
        try:
            nodes.extend(map(_spawn, _node_options(options, folders, keys), folders))
            _await_nodes(nodes, options)
        except BaseException:
            _end(nodes)
            for made in folders:
                made.remove()
            raise
        record = ClusterRecord(options.name, nodes[0].service, keys, tuple(nodes))
        file = _record_file(options.name)
        draft = file.with_suffix(".tmp")
        draft.write_bytes(msgspec.json.encode(record))
        draft.rename(file)
        return record


def _node_options(
    options: StartOptions, folders: Sequence[ClusterFolders], keys: str | None
) -> list[NodeOptions]:
    if options.listen is None:
        services = [f"ipc://{made.disk}/service.sock" for made in folders]
        names = [f"node-{i}" for i in range(options.nodes)]
    else:
        host, _, port = options.listen.removeprefix("tcp://").rpartition(":")
        ports = [int(port) + 2 * i for i in range(options.nodes)]
        services = [f"tcp://{host}:{port}" for port in ports]
        names = [node_name(service) for service in services]
    executors = max(1, options.executors_per_node)
    memory = node_memory(options.memory_limit_bytes, options.nodes, executors)
    return [
        NodeOptions(
            name=name,
            listen=service,
            cluster=options.name,
            heads=options.join or tuple(services[:2]),  # two schedulers: one may be lost
            executors=options.executors_per_node,
            memory_limit_bytes=memory.limit_bytes,
            bind=bind_address(options.bind, service),
            keys=keys,
            folders=(str(made.memory), str(made.disk)),
            locks=tuple(range(_FIRST_LOCK, _FIRST_LOCK + len(made.locks))),
        )
        for name, service, made in zip(names, services, folders, strict=True)
    ]


def default_executors(nodes: int) -> int:
    """Executors per node: one per core of this machine in all, at least one."""
    return max(1, usable_cores() // nodes)


def node_name(listen: str) -> str:
    """The default name of a node: its address in letters, digits and dots."""
    return re.sub("[^A-Za-z0-9]+", ".", listen.partition("://")[2]).strip(".")


def bind_address(bind: str | None, listen: str) -> str | None:
    return bind and f"{bind.rstrip('/')}:{listen.rpartition(':')[2]}"


def make_keys(folder: Path) -> str:
    keys = fresh_keys()
    write_keys(folder, keys)
    return keys.public


def _spawn(options: NodeOptions, folders: ClusterFolders) -> NodeProcess:
    log = state_folder() / f"{options.cluster}.{options.name}.log"
    service = service_address(options.listen, load_keys(options.keys))
    pid = _detached(msgspec.json.encode(options) + b"\n", log, folders.locks)
    folders.release()
    return NodeProcess(
        name=options.name,
        pid=pid,
        started_s=psutil.Process(pid).create_time(),
        service=service,
        folders=(str(folders.memory), str(folders.disk)),
        log=str(log),
    )


def _detached(settings: bytes, log: Path, locks: Sequence[int]) -> int:
    """Spawn a node that inherits only its settings on stdin, its log and its locks; its pid."""
    read, write = os.pipe()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "minishark.cluster.node", str(log).ljust(TITLE_CHARS)],
            process_environment(),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
                *((os.POSIX_SPAWN_DUP2, lock, _FIRST_LOCK + i) for i, lock in enumerate(locks)),
            ],
            setsid=True,
        )
        os.write(write, settings)  # fits into the pipe's buffer: does not block
        return pid
    finally:
        for descriptor in (read, write, output):
            os.close(descriptor)


def _await_nodes(nodes: Sequence[NodeProcess], options: StartOptions) -> None:
    """Wait until the nodes answer and the schedulers know their executors."""
    connections = Connections(load_keys(options.keys))
    deadline = time.monotonic() + _START_S
    try:
        waiting = {node.service: node for node in nodes}
        while waiting:
            replies = connections.call_all(list(waiting), Hello(own_versions()), _HELLO_S)
            for service, reply in replies.items():
                if isinstance(reply, Welcome):
                    del waiting[service]
            for node in nodes:
                if node.process() is None:
                    raise ClusterError(f"Node {node.name} did not start.{_log_tail(node)}")
            if time.monotonic() > deadline:
                names = ", ".join(node.name for node in waiting.values())
                raise ClusterError(f"Nodes {names} did not answer within {_START_S:g} s.")
            time.sleep(_POLL_S)
    finally:
        connections.close()

    def complete(statuses: Sequence[NodeStatus]) -> bool:
        counts = {node.name: len(node.executors) for node in statuses}
        return all(counts.get(node.name) == options.executors_per_node for node in nodes)

    with peer_session(nodes[0].service, options.keys, complete):
        pass


def _log_tail(node: NodeProcess) -> str:
    with contextlib.suppress(OSError):
        text = Path(node.log).read_text(errors="replace")
        return f" Its log ends with:\n{log_tail(text, _LOG_TAIL_CHARS)}"
    return ""


def stop_cluster(name: str) -> ClusterRecord:
    """End the nodes of a cluster on this machine, and remove what they and dead programs left.

    Raises:
        ClusterError: there is no record of it, or it is being started or stopped.
    """
    record = _read_record(name)
    with _locked(record.name):
        _end(record.nodes)
        _forget(record)
    reap_all()
    return record


def forget_cluster(record: ClusterRecord) -> None:
    if record.is_alive:
        raise ClusterError(f"Cluster {record.name} is running; stop it first.")
    _end(record.nodes)
    _forget(record)


def _end(nodes: Sequence[NodeProcess]) -> None:
    """End nodes at once, undrained, kill those that do not end, and remove their files."""
    processes = [process for node in nodes if (process := node.process()) is not None]
    family = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            family += process.children(recursive=True)
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGINT)
    for process in psutil.wait_procs(family, timeout=_STOP_S)[1]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(family, timeout=_STOP_S)
    for node in nodes:
        for folder in map(Path, node.folders):
            remove_folder(folder)
        Path(node.log).unlink(missing_ok=True)


def _forget(record: ClusterRecord) -> None:
    for node in record.nodes:
        Path(node.log).unlink(missing_ok=True)
    _record_file(record.name).unlink(missing_ok=True)


def _record_file(name: str) -> Path:
    return state_folder() / f"{name}.json"


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold the lock of a cluster's name: only one start or stop at a time."""
    path = state_folder() / f"{name}.lock"
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(f"Cluster {name} is being started or stopped.") from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
