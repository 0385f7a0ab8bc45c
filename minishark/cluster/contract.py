"""What a session asks of a cluster: its own (`local`), or a running one (`attached`).

Callers take what they need of it: `backend` has the parts that tasks and tables need, without
anything of how nodes are reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from canary_core.runtime.mailbox import Mailbox
from minishark.cluster.backend import Workplace
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.outputs import SharedOutputs
from minishark.cluster.shared.client import SharedTablesClient
from minishark.cluster.wire import Reply, Request
from minishark.model.events.kinds import NodeUsage
from minishark.worker.paths import StorePaths
from sparrow_core import NodeStatus


class Nodes(Protocol):
    """The nodes as their user sees them."""

    address: str  # of a running cluster; empty for a session's own

    elastic: bool  # whether nodes join and leave

    has_jobs: bool  # whether it outlives the session, with jobs that do

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the user; there may be more of them later."""

    def status(self) -> tuple[NodeStatus, ...]:
        """Each node with its executors."""

    def usage(self, nodes: Sequence[NodeStatus]) -> Mapping[str, NodeUsage]:
        """The memory and storage that nodes on other hosts use, by name; of those that answer."""

    def share_events(self, answer: Callable[[Request], Reply | None]) -> None:
        """Answer requests for the session's events, if others can ask for them."""

    def jobs(self) -> JobsClient:
        """The jobs of the cluster, which outlive the session; ClusterError if nothing does."""

    def keep_nodes(self, needed: Callable[[], frozenset[str]]) -> None:
        """`needed` gives nodes with files that nobody moves.

        While it names a node, that is not released, nor does an autoscaler drain it.
        """

    def start_node(self) -> None:
        """Begin to start one more node; returns at once, the node joins when it is up.

        Raises:
            OptionError: it has as many nodes as it may.
            ClusterError: the session can't start nodes of this cluster.
        """

    def drain(self, node: str) -> None:
        """Begin to drain a node, which leaves when its tasks and their readers have ended.

        Raises:
            OptionError: there is no such node.
            ClusterError: the node does not answer, or must stay.
        """


class Cluster(Workplace, Nodes, Protocol):
    """Nodes and their storage, as a session uses them: its own cluster, or a shared one."""

    paths: StorePaths
    """The folders of the session's files, and of nodes without folders of their own."""

    scratch: Path  # a folder on disk that is removed with the session

    memory_limit_bytes: int
    """Memory limit of the nodes on this machine together; the default for a shared cluster."""

    def shared_outputs(self) -> SharedOutputs | None:
        """Outputs that outlive the session; None if nothing does."""

    def shared_tables(self) -> SharedTablesClient | None:
        """Tables that outlive the session; None if nothing does."""

    def mailbox(self, name: str) -> Mailbox:
        """A mailbox of the session, which executors can reach; the caller closes it."""

    def close(self) -> None:
        """Stop the session's own cluster, or disconnect; remove all files. Idempotent."""
