"""A short connection to the jobs of a cluster, for commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from machine_kit.keys import Keys
from minishark.cluster.endpoints import service_address
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.jobs.members import may_hold
from minishark.cluster.joining import peer_session
from minishark.cluster.keys import load_keys


@contextlib.contextmanager
def jobs_of(address: str, keys_folder: str | Keys | None) -> Iterator[JobsClient]:
    """The jobs of a cluster, for as long as the block runs.

    Raises:
        ClusterError: it does not answer.
    """
    keys = load_keys(keys_folder)
    with peer_session(service_address(address, keys), keys, bool) as (_, connections, sparrow):
        yield JobsClient(connections, lambda: may_hold(sparrow.nodes()))
