"""From an address to a conversation with a cluster: greeting a node, reaching the schedulers."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from minishark.cluster.connections import Connections, NoAnswerError
from minishark.cluster.wire import Failure, Hello, Welcome, own_versions
from minishark.errors import ClusterError
from sparrow_core import NodeStatus, RemoteCluster, SparrowError
from sparrow_core.machines.client import ClientConfig
from sparrow_core.protocol.ids import Address
from sparrow_core.runtime.transport.keys import Keys

_HELLO_S = 5.0
_NODES_S = 20.0
_POLL_S = 0.02
_SILENCE_MAX_S = 1.0  # a busy machine is not a dead scheduler


def greet(connections: Connections, service: str) -> Welcome:
    """Ask a node which cluster it belongs to.

    Raises:
        ClusterError: it does not answer, or has other versions than this process.
    """
    try:
        reply = connections.call(service, Hello(own_versions()), _HELLO_S)
    except NoAnswerError as error:
        raise ClusterError(
            f"No cluster answers at {service}: a wrong address, not running, or it does not "
            "accept your key."
        ) from error
    if isinstance(reply, Failure):
        raise ClusterError(f"The cluster at {service} refuses this program. {reply.message}")
    if not isinstance(reply, Welcome):
        raise ClusterError(f"What answers at {service} is no cluster.")
    return reply


class Listening:
    """Where a program listens: as its cluster does, in its own folder or on the way to it."""

    def __init__(self, service: str, folder: Path) -> None:
        """Listen for the cluster of the node with this service.

        Raises:
            ClusterError: there is no way to it.
        """
        self._folder = folder
        self._host = None if service.startswith("ipc://") else _address_towards(service)

    def endpoint(self, name: str) -> str:
        """For one of its sockets."""
        if self._host is None:
            return f"ipc://{self._folder}/{name}.sock"
        return f"tcp://{self._host}:*"


def _address_towards(service: str) -> str:
    """This machine's address on the network in which a node is."""
    host, _, port = service.removeprefix("tcp://").partition("/")[0].rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ClusterError(f"There is no way to {host}: {error}") from error


def open_schedulers(
    welcome: Welcome,
    listen: str,
    keys: Keys | None,
    complete: Callable[[Sequence[NodeStatus]], bool],
) -> RemoteCluster:
    """Open the connection to a cluster's schedulers.

    Args:
        welcome: the cluster.
        listen: where answers come to.
        keys: needed for tcp.
        complete: whether these nodes are enough to begin with.

    Raises:
        ClusterError: no scheduler answers, or the nodes never are enough.
    """
    config = ClientConfig(silence_max_s=_SILENCE_MAX_S)
    schedulers = tuple(map(Address, welcome.schedulers))
    sparrow = RemoteCluster(schedulers, listen=listen, keys=keys, config=config)
    try:
        sparrow.start()
        deadline = time.monotonic() + _NODES_S
        while not complete(sparrow.nodes()):
            _check_time(deadline, welcome.cluster)
            time.sleep(_POLL_S)
    except SparrowError as error:
        sparrow.close()
        raise ClusterError(f"Cluster {welcome.cluster} can't be used: {error}") from error
    except BaseException:
        sparrow.close()
        raise
    return sparrow


def _check_time(deadline: float, cluster: str) -> None:
    if time.monotonic() > deadline:
        raise ClusterError(f"The executors of cluster {cluster} do not answer.")


@contextlib.contextmanager
def visit(
    service: str, keys: Keys | None, complete: Callable[[Sequence[NodeStatus]], bool]
) -> Iterator[tuple[Welcome, Connections, RemoteCluster]]:
    """A short conversation with a cluster, to look at it; see `open_schedulers`.

    Raises:
        ClusterError: it does not answer.
    """
    with contextlib.ExitStack() as stack:
        connections = Connections(keys)
        stack.callback(connections.close)
        welcome = greet(connections, service)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="minishark-visit-"))
        listen = Listening(service, Path(folder)).endpoint("front")
        sparrow = open_schedulers(welcome, listen, keys, complete)
        stack.callback(sparrow.close)
        yield welcome, connections, sparrow
