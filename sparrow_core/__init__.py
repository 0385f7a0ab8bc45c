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
from sparrow_core.parts import JobOptions, TaskSpec
from sparrow_core.remote import RemoteCluster
from sparrow_core.runner import Runner
from sparrow_core.specs import ExecutorGroup
from sparrow_core.why import Why, explain

__version__ = "0.1.0"

__all__ = [
    "ClusterClosed",
    "ClusterStartError",
    "ExecutorGroup",
    "ExecutorStatus",
    "InProcessCluster",
    "InvalidJob",
    "JobEvent",
    "JobFailed",
    "JobFinished",
    "JobId",
    "JobOptions",
    "JobSpec",
    "LocalCluster",
    "NodeConfig",
    "NodeName",
    "NodeStatus",
    "RemoteCluster",
    "Runner",
    "SparrowError",
    "TaskCompleted",
    "TaskFailed",
    "TaskFailure",
    "TaskSpec",
    "Why",
    "__version__",
    "explain",
]
