"""Sparrow: a decentralised, low-latency task scheduler to embed (after Ousterhout et al., SOSP'13).

Task payloads are opaque bytes; what runs them is a `Runner` of the embedding program.
"""

from sparrow_core.cluster import (
    ExecutorStatus,
    InProcessCluster,
    JobSpec,
    LocalCluster,
    NodeConfig,
    NodeStatus,
)
from sparrow_core.errors import (
    ClusterClosed,
    ClusterStartError,
    InvalidJob,
    SparrowError,
    TaskFailure,
)
from sparrow_core.events import JobEvent, JobFailed, JobFinished, TaskCompleted, TaskFailed
from sparrow_core.ids import JobId, NodeName
from sparrow_core.messages import TaskSpec
from sparrow_core.runner import Runner

__all__ = [
    "ClusterClosed",
    "ClusterStartError",
    "ExecutorStatus",
    "InProcessCluster",
    "InvalidJob",
    "JobEvent",
    "JobFailed",
    "JobFinished",
    "JobId",
    "JobSpec",
    "LocalCluster",
    "NodeConfig",
    "NodeName",
    "NodeStatus",
    "Runner",
    "SparrowError",
    "TaskCompleted",
    "TaskFailed",
    "TaskFailure",
    "TaskSpec",
]
