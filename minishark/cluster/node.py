"""A node of a cluster that outlives sessions: one process, with its executors as children.

It owns two folders (shared memory and disk), which are locked for as long as it lives, and listens
at two neighbouring addresses: its service at the one that users know, the scheduler's machines at
the next.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from minishark.cluster.connections import Connections
from minishark.cluster.executor import load_keys
from minishark.cluster.folders import ClusterFolders, inherit_folders, make_folders
from minishark.cluster.machine import node_memory
from minishark.cluster.node_service import NodeService
from minishark.cluster.runner_config import RUNNER, shared_runner_config
from minishark.cluster.wire import Failure, Hello, own_versions
from minishark.errors import ClusterError, OptionError
from minishark.worker.memory import NodeMemory
from minishark.worker.protocol import StoreLocation
from sparrow_core import ExecutorGroup, SparrowError
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.protocol.ids import Address, address
from sparrow_core.runtime.transport.child import NodeSettings
from sparrow_core.runtime.transport.keys import Keys
from sparrow_core.runtime.transport.process import calm_collector, run_node
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

HOST_VARIABLE = "MINISHARK_HOST"
_SCHEDULER = "scheduler"
_TCP = re.compile(r"tcp://(?P<host>[^/]+):(?P<port>\d+|\*)(?:/(?P<key>[0-9a-f]{64}))?")
_HELLO_S = 1.0


class NodeOptions(msgspec.Struct, frozen=True):
    """A node to run.

    Attributes:
        name: unique in the cluster.
        cluster: the cluster's name.
        listen: where others reach its service, `ipc://path` or `tcp://host:port`; the scheduler's
            machines are at the next port.
        heads: the nodes with a scheduler, in the form of `listen` (over tcp with a public key, if
            it is not the node's own); the same for all nodes. A node that is one of them has a
            scheduler; none: it is the only one.
        executors: how many executor processes.
        memory_limit_bytes: what it may use, with its executors and files in shared memory; None for
            a share of the machine's.
        bind: where to listen over tcp if not at `listen`, `tcp://address`.
        keys: the folder of `own.key` and `allowed.keys`, needed for tcp.
        folders: the folders in shared memory and on disk, made already; None to make them.
        locks: open files that hold their locks.
        wait_s: how long to wait for one of the heads.
    """

    name: str
    listen: str
    cluster: str = "default"
    heads: tuple[str, ...] = ()
    executors: int = 1
    memory_limit_bytes: int | None = None
    bind: str | None = None
    keys: str | None = None
    folders: tuple[str, str] | None = None
    locks: tuple[int, ...] = ()
    wait_s: float = 30.0


def this_host() -> str:
    """A name for what shares files and processes: the machine, or the container on it."""
    if named := os.environ.get(HOST_VARIABLE):
        return named
    parts = [socket.gethostname()]
    for file in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/mnt", "/proc/self/ns/pid"):
        path = Path(file)
        try:
            parts.append(str(path.readlink()) if path.is_symlink() else path.read_text().strip())
        except OSError:
            continue
    return "/".join(parts)


def service_address(text: str, keys: Keys | None) -> str:
    """An address as users write it, with the public key that it lacks.

    Raises:
        OptionError: it is none.
        ClusterError: it needs keys.
    """
    if text.startswith("ipc://"):
        return text
    found = _TCP.fullmatch(text)
    if found is None:
        raise OptionError(f"{text!r} is no address; write ipc://PATH or tcp://HOST:PORT.")
    if keys is None:
        raise ClusterError(f"{text}: tcp needs the cluster's keys; name their folder.")
    return text if found["key"] else f"{text}/{keys.public}"


def sparrow_endpoint(service: str) -> str:
    """Where the scheduler's machines of the node with this service listen."""
    if service.startswith("ipc://"):
        return f"{service.removesuffix('.sock')}-sparrow.sock"
    found = _TCP.fullmatch(service)
    assert found is not None
    port = found["port"]
    following = port if port == "*" else int(port) + 1
    return f"tcp://{found['host']}:{following}" + (f"/{found['key']}" if found["key"] else "")


def run(options: NodeOptions, on_ready: Callable[[StoreLocation], None] = lambda _: None) -> int:
    """Be a node until SIGINT or SIGTERM; the exit status.

    Args:
        options: which.
        on_ready: called when it listens.

    Raises:
        ClusterError: it can't listen, has other versions than the cluster, or no head answers.
        OptionError: an address makes no sense, or the memory limit is too low.
        ResourceError: it can't make its folders.
    """
    memory = node_memory(options.memory_limit_bytes, 1, options.executors)
    keys = load_keys(options.keys)
    heads = tuple(service_address(head, keys) for head in options.heads or (options.listen,))
    own = service_address(options.listen, keys)
    schedulers = tuple(address(sparrow_endpoint(head), _SCHEDULER) for head in heads)
    _greet([head for head in heads if head != own], keys, options.wait_s, own in heads)
    if options.folders is None:
        folders = make_folders()
    else:
        in_memory, on_disk = map(Path, options.folders)
        folders = inherit_folders(in_memory, on_disk, options.locks)
    try:
        node = StoreLocation(options.name, this_host(), str(folders.memory), str(folders.disk), "")
        service = NodeService(
            options.listen,
            node,
            options.cluster,
            schedulers,
            bind=options.bind,
            keys=keys,
            storage_bytes=memory.storage_bytes,
            task_bytes=memory.task_bytes,
        )
        service.start()
        try:
            own_schedulers = (_SCHEDULER,) if own in heads else ()
            settings = _settings(
                options, service.node, memory, folders, schedulers, own_schedulers, keys
            )
            return _run_until_signal(settings, lambda: on_ready(service.node))
        finally:
            service.stop()
    finally:
        folders.remove()


def _greet(heads: list[str], keys: Keys | None, wait_s: float, is_head: bool) -> None:
    """Make sure that the cluster is there and has our versions; a head need not wait for others.

    Raises:
        ClusterError: it has others, or nobody answers.
    """
    connections = Connections(keys)
    try:
        tries = 1 if is_head else max(1, round(wait_s / _HELLO_S))
        for _ in range(tries if heads else 0):
            replies = connections.call_all(heads, Hello(own_versions()), _HELLO_S)
            for head, reply in replies.items():
                if isinstance(reply, Failure):
                    raise ClusterError(f"{head} refuses this node. {reply.message}")
            if replies:
                return
        if heads and not is_head:
            raise ClusterError(
                f"None of {', '.join(heads)} answers: a wrong address, not running, or it does "
                "not accept this node's key."
            )
    finally:
        connections.close()


def _settings(
    options: NodeOptions,
    node: StoreLocation,
    memory: NodeMemory,
    folders: ClusterFolders,
    schedulers: tuple[Address, ...],
    own_schedulers: tuple[str, ...],
    keys: Keys | None,
) -> NodeSettings:
    """What Sparrow must know of the node."""
    run_dir = folders.disk / "run"
    run_dir.mkdir(mode=0o700, exist_ok=True)
    config = shared_runner_config(node, memory, options.keys)
    return NodeSettings(
        name=options.name,
        endpoint=sparrow_endpoint(options.listen),
        run_dir=str(run_dir),
        groups=(ExecutorGroup(RUNNER, config, count=options.executors),),
        schedulers=schedulers,
        own_schedulers=own_schedulers,
        attributes=attributes_of(node),
        limits=NodeMonitorConfig(policy="fair", memory_bytes=memory.query_bytes),
        bind=options.bind and sparrow_endpoint(options.bind),
        keys=keys,
        metrics=True,
    )


def attributes_of(node: StoreLocation) -> tuple[str, ...]:
    """What a node tells schedulers, and so sessions, of where its files lie."""
    return tuple(f"{name}={getattr(node, name)}" for name in StoreLocation.__struct_fields__[1:])


def store_of(name: str, attributes: tuple[str, ...]) -> StoreLocation | None:
    """The reverse of `attributes_of`; None for a node that is not minishark's."""
    found = dict(attribute.split("=", 1) for attribute in attributes if "=" in attribute)
    try:
        return StoreLocation(name, *(found[field] for field in StoreLocation.__struct_fields__[1:]))
    except KeyError:
        return None


def _run_until_signal(settings: NodeSettings, on_ready: Callable[[], None]) -> int:
    def until_told(driver: ZmqDriver, _: Address) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: driver.stop())
        on_ready()
        driver.run()

    calm_collector()
    try:
        return run_node(settings, until_told, on_incompatible=_warn_of_version)
    except SparrowError as error:
        raise ClusterError(f"The node can't run: {error}") from error
    finally:
        gc.unfreeze()  # else DuckDB complains, when Python ends, of what is still there


def _warn_of_version(peer: str, version: int) -> None:
    sys.stderr.write(f"{peer} speaks protocol {version}: its messages are ignored\n")
    sys.stderr.flush()


def main() -> None:
    """Be the node that a line on stdin describes."""
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=NodeOptions)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` writes all threads' stacks into the log
    try:
        status = run(options)
    except Exception as error:  # noqa: BLE001 - the log is all that anybody will see
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
