"""A short connection to the jobs of a cluster, for commands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from machine_kit.keys import Keys
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.jobs.members import may_hold
from minishark.cluster.joining import peer_session


@contextlib.contextmanager
def jobs_of(address: str, keys_folder: str | Keys | None) -> Iterator[JobsClient]:
    """The jobs of a cluster, for as long as the block runs.

    Raises:
        ClusterError: it does not answer.
    """
    with peer_session(address, keys_folder) as (_, connections, sparrow):
        yield JobsClient(connections, lambda: may_hold(sparrow.nodes()))
