"""Connecting to a running cluster: the handshake with a node, the client of its schedulers."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from machine_kit.addresses import Address, endpoint_of
from machine_kit.keys import Keys
from minishark.cluster.attributes import store_of
from minishark.cluster.backend import Placement
from minishark.cluster.connections import Connections, NoAnswerError
from minishark.cluster.endpoints import own_endpoint, service_address
from minishark.cluster.folders import SESSION_PREFIX
from minishark.cluster.keys import load_keys
from minishark.cluster.local import RECOVERY_S
from minishark.cluster.wire import Failure, Hello, Welcome, own_release, own_versions
from minishark.errors import ClusterError
from sparrow_core import NodeStatus, RemoteCluster, SparrowError
from sparrow_core.machines.client import ClientConfig
from sparrow_core.runtime.transport.folders import socket_folder

_HELLO_S = 5.0
_NODES_S = 20.0
_POLL_S = 0.02
_numbers = itertools.count()  # of connections that tasks of this process have opened
_SILENCE_MIN_S = 0.25  # each ping costs the front end a wake-up


class RefusedError(ClusterError):
    """The cluster has other versions: no wait helps."""


def greet(connections: Connections, service: str, timeout_s: float | None = None) -> Welcome:
    """Handshake with a node: exchange versions, which must be equal; learn its schedulers."""
    try:
        reply = connections.call(service, Hello(own_versions()), timeout_s or _HELLO_S)
    except NoAnswerError as error:
        raise ClusterError(
            f"No cluster answers at {service}: wrong address, not running, or it does not "
            "accept your key."
        ) from error
    if isinstance(reply, Failure):
        raise RefusedError(f"The cluster at {service} rejected the connection. {reply.message}")
    if not isinstance(reply, Welcome):
        raise ClusterError(f"No minishark cluster at {service}.")
    return reply


def client_config(recovery_s: float = RECOVERY_S) -> ClientConfig:
    """How Sparrow's client follows the schedulers of a cluster that others have started."""
    return ClientConfig(silence_min_s=_SILENCE_MIN_S, recovery_s=recovery_s, release=own_release())


def open_schedulers(
    welcome: Welcome,
    listen: str,
    keys: Keys | None,
    complete: Callable[[Sequence[NodeStatus]], bool],
    recovery_s: float = RECOVERY_S,
) -> RemoteCluster:
    """Connect to a cluster's schedulers, at `listen`, and wait until enough nodes are known."""
    schedulers = tuple(map(Address, welcome.schedulers))
    config = client_config(recovery_s)
    sparrow = RemoteCluster(schedulers, listen=listen, keys=keys, config=config)
    try:
        sparrow.start()
        deadline = time.monotonic() + _NODES_S
        while not complete(sparrow.nodes()):
            if time.monotonic() > deadline:
                raise ClusterError(f"The executors of cluster {welcome.cluster} do not answer.")  # noqa: TRY301 - closes the client, too
            time.sleep(_POLL_S)
    except SparrowError as error:
        sparrow.close()
        raise ClusterError(f"Can't use cluster {welcome.cluster}: {error}") from error
    except BaseException:
        sparrow.close()
        raise
    return sparrow


def open_from_task(
    schedulers: Sequence[str], keys_folder: str | None, sockets: Path
) -> RemoteCluster:
    """Connect an executor to the schedulers of its cluster, for tasks that submit tasks.

    Raises:
        ClusterError: none of them answers.
    """
    # An executor may serve several sessions, and a socket at the same path would take its place.
    name = f"task-{os.getpid()}-{next(_numbers)}"
    endpoint = own_endpoint(endpoint_of(Address(schedulers[0])), sockets, name)
    sparrow = RemoteCluster(
        tuple(map(Address, schedulers)),
        listen=endpoint,
        keys=load_keys(keys_folder),
        config=client_config(),
    )
    try:
        sparrow.start()
    except SparrowError as error:
        sparrow.close()
        raise ClusterError(f"Can't submit tasks from this task: {error}") from error
    return sparrow


def on_live_nodes(placement: Placement, nodes: Sequence[NodeStatus]) -> Placement:
    """A placement on the nodes that live now, not on those of when the function was pickled.

    It stays as it is where nodes have no folders of their own: these are the session's own cluster.
    """
    stores = [store_of(node) for node in nodes]
    live = [store for store in stores if store is not None]
    if not live:
        return placement
    draining = {node.name for node in nodes if node.draining}
    staying = tuple(store.name for store in live if store.name not in draining)
    of_sessions = [store for store in placement.stores if store.name.startswith(SESSION_PREFIX)]
    return replace(placement, nodes=staying, stores=(*live, *of_sessions))


@contextlib.contextmanager
def peer_session(
    address: str,
    keys_folder: str | Keys | None,
    complete: Callable[[Sequence[NodeStatus]], bool] = bool,
) -> Iterator[tuple[Welcome, Connections, RemoteCluster]]:
    """A short connection to a cluster, to inspect it; see `open_schedulers`."""
    keys = load_keys(keys_folder)
    service = service_address(address, keys)
    with contextlib.ExitStack() as stack:
        connections = Connections(keys)
        stack.callback(connections.close)
        welcome = greet(connections, service)
        listen = own_endpoint(service, stack.enter_context(socket_folder()), "front")
        sparrow = open_schedulers(welcome, listen, keys, complete)
        stack.callback(sparrow.close)
        yield welcome, connections, sparrow
