"""A node of a cluster that outlives sessions: one process, with its executors as children.

It owns two folders (shared memory and disk), locked while it lives, and listens at two adjacent
addresses: the file service at the one that users know, Sparrow's state machines at the next.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from machine_kit.addresses import Address, address
from machine_kit.keys import Keys
from minishark.cluster.attributes import IDLE, attributes_of
from minishark.cluster.connections import Connections
from minishark.cluster.endpoints import service_address, sparrow_endpoint, this_host
from minishark.cluster.folders import inherit_folders, make_folders
from minishark.cluster.keys import load_keys
from minishark.cluster.machine import RUNNER, node_limits, node_memory, runner_config
from minishark.cluster.node_service import NodeControl, NodeService
from minishark.cluster.wire import Announce, Failure, Hello, Welcome, own_release, own_versions
from minishark.errors import ClusterError
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from sparrow_core import ExecutorGroup, SparrowError
from sparrow_core.protocol.messages import Drain, SetSchedulers
from sparrow_core.runtime.transport.child import NodeSettings
from sparrow_core.runtime.transport.process import begun_executors, calm_collector, run_node
from sparrow_core.runtime.transport.spawning import Started
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

_SCHEDULER = "scheduler"
_HELLO_S = 1.0
_AGAIN_S = 0.1


class NodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A node to run."""

    name: str  # its name, unique in the cluster
    # The address of its service for others, `ipc://path` or `tcp://host:port`; Sparrow's state
    # machines are at the next port.
    listen: str
    cluster: str = "default"
    # The nodes with a scheduler, in the form of `listen` (over tcp with a public key, if it differs
    # from the node's own); the same for all nodes. A node in this list runs a scheduler. Empty:
    # this node only.
    heads: tuple[str, ...] = ()
    executors: int = 1  # 0 for a node that only runs a scheduler
    memory_limit_bytes: int | None = None  # executors and files; None for a machine's share
    bind: str | None = None  # the interface for tcp, if not that of `listen`
    keys: str | None = None  # the folder of `own.key` and `allowed.keys`, needed for tcp
    folders: tuple[str, str] | None = None  # in shared memory and on disk; None to make them
    locks: tuple[int, ...] = ()  # inherited file descriptors that hold the locks of `folders`
    wait_s: float = 30.0  # seconds to wait for a head to answer
    drain_s: float = 300.0  # seconds that a drained node waits for its sessions and tasks at most


def run(options: NodeOptions, on_ready: Callable[[StoreLocation], None] = lambda _: None) -> int:
    """Run a node until it is drained (SIGTERM) or SIGINT; the exit status.

    `on_ready` is called when it listens.
    """
    memory = node_memory(options.memory_limit_bytes, 1, max(1, options.executors))
    keys = load_keys(options.keys)
    heads = tuple(service_address(head, keys) for head in options.heads or (options.listen,))
    own = service_address(options.listen, keys)
    others = [head for head in heads if head != own]
    if options.folders is None:
        folders = make_folders()
    else:
        in_memory, on_disk = map(Path, options.folders)
        folders = inherit_folders(in_memory, on_disk, options.locks)
    with contextlib.ExitStack() as stack:
        stack.callback(folders.remove)
        run_dir = folders.disk / "run"
        run_dir.mkdir(mode=0o700, exist_ok=True)
        paths = StorePaths(folders.memory, folders.disk)
        config = runner_config(options.name, paths, memory, host=this_host(), keys=options.keys)
        group = ExecutorGroup(RUNNER, config, count=options.executors)
        groups = (group,) if options.executors else ()
        begun = begun_executors(groups, options.name, run_dir)  # before there are threads
        welcomes = _greet(others, keys, options.wait_s, is_head=own in heads)
        schedulers = _schedulers(heads, welcomes)
        node = StoreLocation(options.name, this_host(), str(folders.memory), str(folders.disk), "")
        service = NodeService(
            options.listen, node, options.cluster, schedulers, memory=memory, bind=options.bind,
            keys=keys, keys_folder=options.keys,
        )  # fmt: skip
        stack.callback(service.stop)
        service.start()
        if own in heads and welcomes:
            _announce(list(welcomes), schedulers, keys)
        settings = NodeSettings(
            name=options.name,
            endpoint=sparrow_endpoint(options.listen),
            run_dir=str(run_dir),
            groups=groups,
            schedulers=schedulers,
            own_schedulers=(_SCHEDULER,) if own in heads else (),
            attributes=(*attributes_of(service.node), *((IDLE,) * (not groups))),
            limits=node_limits(memory, release=own_release()),
            bind=options.bind and sparrow_endpoint(options.bind),
            keys=keys,
            metrics=True,
        )
        return _run_until_signal(settings, service, options.drain_s, on_ready, begun)


def _schedulers(heads: Sequence[str], welcomes: Mapping[str, Welcome]) -> tuple[Address, ...]:
    """The schedulers of the cluster: on the heads, and those that nodes of it know.

    So any live node may be given for a head, if the heads have new addresses.
    """
    schedulers: dict[Address, None] = {}
    for head in heads:
        scheduler = address(sparrow_endpoint(head), _SCHEDULER)
        if head not in welcomes or scheduler in welcomes[head].schedulers:
            schedulers[scheduler] = None
    for welcome in welcomes.values():
        schedulers.update((Address(scheduler), None) for scheduler in welcome.schedulers)
    return tuple(schedulers)


def _announce(nodes: list[str], schedulers: tuple[Address, ...], keys: Keys | None) -> None:
    """Tell nodes of the cluster of the scheduler here; sessions tell the others."""
    connections = Connections(keys)
    try:
        connections.call_all(nodes, Announce(schedulers), _HELLO_S)
    finally:
        connections.close()


def _greet(
    heads: list[str], keys: Keys | None, wait_s: float, *, is_head: bool
) -> dict[str, Welcome]:
    """Check that the cluster answers and has our versions; ClusterError if not.

    Returns:
        The replies of the nodes that have answered.
    """
    # A head does not wait for the others: the first one to start would wait in vain.
    connections = Connections(keys)
    try:
        deadline = time.monotonic() + wait_s
        while heads:
            replies = connections.call_all(heads, Hello(own_versions()), _HELLO_S)
            for head, reply in replies.items():
                if isinstance(reply, Failure):
                    raise ClusterError(f"{head} rejected this node. {reply.message}")
            if replies:
                answers = replies.items()
                return {head: reply for head, reply in answers if isinstance(reply, Welcome)}
            if is_head:
                break
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"None of {', '.join(heads)} answers: wrong address, not running, or it does "
                    "not accept this node's key."
                )
            time.sleep(_AGAIN_S)  # where nobody listens yet, that is known at once
        return {}
    finally:
        connections.close()


def _run_until_signal(
    settings: NodeSettings,
    service: NodeService,
    drain_s: float,
    on_ready: Callable[[StoreLocation], None],
    begun: Sequence[Started],
) -> int:
    """Run a node until SIGINT; SIGTERM drains it first, a second one ends it at once."""

    def until_told(driver: ZmqDriver, monitor: Address) -> None:
        def on_terminate(*_: object) -> None:
            if not service.drain():
                driver.stop()

        service.control(
            NodeControl(
                set_schedulers=lambda addresses: driver.post(
                    monitor, SetSchedulers(tuple(map(Address, addresses)))
                ),
                hold=lambda: driver.post(monitor, Drain(hold=True)),
                release=lambda: driver.post(monitor, Drain()),
                stop=driver.stop,
                drain_s=drain_s,
            )
        )
        signal.signal(signal.SIGINT, lambda *_: driver.stop())
        signal.signal(signal.SIGTERM, on_terminate)
        on_ready(service.node)
        driver.run()

    calm_collector()
    try:
        return run_node(settings, until_told, on_incompatible=_warn_of_version, begun=begun)
    except SparrowError as error:
        raise ClusterError(f"The node can't run: {error}") from error
    finally:
        gc.unfreeze()  # else DuckDB's leak check complains at exit


def _warn_of_version(peer: str, version: int) -> None:
    sys.stderr.write(f"{peer} uses protocol version {version}: its messages are ignored\n")
    sys.stderr.flush()


def main() -> None:
    """Run the node that a line of JSON on stdin describes."""
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=NodeOptions)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)  # `kill -USR1` writes all threads' stacks into the log
    try:
        status = run(options)
    except Exception as error:  # noqa: BLE001 - `start_cluster` shows the end of the log
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
