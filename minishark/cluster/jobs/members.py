"""Which nodes of a cluster may hold jobs, as its schedulers know them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from machine_kit.addresses import Address
from machine_kit.keys import Keys
from minishark.cluster.attributes import IDLE, store_of
from minishark.cluster.endpoints import own_endpoint
from minishark.cluster.jobs.records import Holder
from minishark.cluster.wire import own_release
from minishark.errors import ClusterError
from sparrow_core import NodeStatus, RemoteCluster, SparrowError
from sparrow_core.machines.client import ClientConfig
from sparrow_core.runtime.transport.folders import socket_folder

_NODES_S = 5.0
_POLL_S = 0.02


def may_hold(statuses: Iterable[NodeStatus]) -> list[Holder]:
    """The nodes that live, have executors, and stay."""
    return [
        Holder(store.name, store.memory, store.service)
        for status in statuses
        if not status.draining and IDLE not in status.attributes
        if (store := store_of(status)) is not None
    ]


def live_nodes(schedulers: Sequence[str], service: str, keys: Keys | None) -> list[Holder]:
    """Ask a cluster's schedulers for its nodes; `service` is one of them.

    Raises:
        ClusterError: no scheduler answers.
    """
    with socket_folder() as folder:
        sparrow = RemoteCluster(
            tuple(map(Address, schedulers)),
            listen=own_endpoint(service, folder, "jobs"),
            keys=keys,
            config=ClientConfig(release=own_release()),
        )
        try:
            sparrow.start()
            deadline = time.monotonic() + _NODES_S
            while not (nodes := may_hold(sparrow.nodes())) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        except SparrowError as error:
            raise ClusterError(f"The cluster's schedulers do not answer: {error}") from error
        else:
            return nodes
        finally:
            sparrow.close()
