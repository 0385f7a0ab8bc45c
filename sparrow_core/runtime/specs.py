"""Descriptions of jobs, nodes and executors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.policy.placement import DEFAULT_PLACEMENT
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec


class JobSpec(Struct, frozen=True, kw_only=True):
    """A job: independent tasks.

    Attributes:
        tasks: Their ids are unique within the job.
        shared: Bytes common to all tasks; sent to each node once.
        user: For fair sharing between users.
        placement: A name of `placement_names()`, or "module:factory" for a plug-in.
        probe_ratio: Reservations or probes per task (d in the paper), at least 1.
        options: Priority, required attributes of nodes, framework, straggler mitigation.
        tag: By what the caller knows the job again in `NodeStatus.longest`; it is sent nowhere.
    """

    tasks: tuple[TaskSpec, ...]
    shared: bytes = b""
    user: str = "default"
    placement: str = DEFAULT_PLACEMENT
    probe_ratio: float = 2.0
    options: JobOptions = JobOptions()
    tag: Any = None


def start_of(job: JobSpec, job_id: JobId) -> StartJob:
    """The message that starts a job."""
    return StartJob(
        job_id=job_id, user=job.user, tasks=job.tasks, shared=job.shared,
        placement=job.placement, probe_ratio=job.probe_ratio, options=job.options,
    )  # fmt: skip


class ExecutorGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """Executors of one framework on a node.

    Attributes:
        runner: "module:factory", see `runner.load_factory`.
        runner_config: Passed to the factory.
        framework: Only jobs of this framework run here; "" for jobs without one.
        count: How many executors.
        slots: Slots in each.
    """

    runner: str
    runner_config: dict[str, str] = {}
    framework: str = ""
    count: int = 1
    slots: int = 1


class NodeConfig(Struct, frozen=True, kw_only=True):
    """A node to start.

    Attributes:
        name: Letters, digits, "-", "_" and "."; unique.
        executors: How many executors.
        slots: Slots in each executor.
        runner: "module:factory", see `runner.load_factory`.
        runner_config: Passed to the factory.
        attributes: What jobs may require, such as "gpu" or "zone=a".
        limits: Of the node monitor, with its queue discipline.
        others: Executors of other frameworks that share the node.
        orphaned_folders: Removed by the node if it ends because its parent was killed.
    """

    name: str
    executors: int
    slots: int
    runner: str
    runner_config: dict[str, str] = {}
    attributes: tuple[str, ...] = ()
    limits: NodeMonitorConfig = NodeMonitorConfig()
    others: tuple[ExecutorGroup, ...] = ()
    orphaned_folders: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[ExecutorGroup, ...]:
        """All executors of the node."""
        own = ExecutorGroup(self.runner, self.runner_config, count=self.executors, slots=self.slots)
        return (own, *self.others)

    @property
    def executor_count(self) -> int:
        """Executors of all frameworks."""
        return sum(group.count for group in self.groups)


def check_nodes(nodes: Sequence[NodeConfig], schedulers: int) -> None:
    """Validate the description of a cluster.

    Raises:
        SparrowError: No or duplicate nodes, invalid names, a node without executors or slots, no
            scheduler.
    """
    if not nodes or schedulers < 1:
        raise SparrowError("a cluster needs at least one node and one scheduler")
    if len({node.name for node in nodes}) < len(nodes):
        raise SparrowError("two nodes have the same name")
    for node in nodes:
        # Sockets and logs are named like this; an executor's is <node>-e<number>.
        if not re.fullmatch(r"(?!client$|.*-e\d)[A-Za-z0-9_][A-Za-z0-9_.-]*", node.name):
            raise SparrowError(f"{node.name!r} cannot be a node's name")
        if any(group.count < 1 or group.slots < 1 for group in node.groups):
            raise SparrowError(f"node {node.name} needs at least one executor and one slot")
