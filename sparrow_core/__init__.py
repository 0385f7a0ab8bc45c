"""Sparrow: a decentralised, low-latency task scheduler to embed (after Ousterhout et al., SOSP'13).

Task payloads are opaque bytes; what runs them is a `Runner` of the embedding program.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrow_core.observe.why import Why, explain
    from sparrow_core.policy.placement import PLACEMENTS
    from sparrow_core.protocol.errors import (
        ClusterClosed,
        ClusterStartError,
        InvalidJob,
        SparrowError,
        TaskFailure,
    )
    from sparrow_core.protocol.events import (
        JobEvent,
        JobFailed,
        JobFinished,
        TaskCompleted,
        TaskFailed,
        TaskLost,
        TasksReturned,
    )
    from sparrow_core.protocol.ids import JobId, NodeName, TaskId
    from sparrow_core.protocol.types import JobOptions, PlacementStep, TaskSpec
    from sparrow_core.runtime.cluster import InProcessCluster, LocalCluster
    from sparrow_core.runtime.remote import RemoteCluster
    from sparrow_core.runtime.runner import Runner
    from sparrow_core.runtime.specs import (
        ExecutorGroup,
        ExecutorStatus,
        JobSpec,
        NodeConfig,
        NodeStatus,
        TaskStatus,
    )

__version__ = "0.2.0"

__all__ = [
    "PLACEMENTS",
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
    "PlacementStep",
    "RemoteCluster",
    "Runner",
    "SparrowError",
    "TaskCompleted",
    "TaskFailed",
    "TaskFailure",
    "TaskId",
    "TaskLost",
    "TaskSpec",
    "TaskStatus",
    "TasksReturned",
    "Why",
    "__version__",
    "explain",
]

_HOMES = {
    "runtime.cluster": ("InProcessCluster", "LocalCluster"),
    "policy.placement": ("PLACEMENTS",),
    "protocol.errors": (
        "ClusterClosed",
        "ClusterStartError",
        "InvalidJob",
        "SparrowError",
        "TaskFailure",
    ),
    "protocol.events": (
        "JobEvent",
        "JobFailed",
        "JobFinished",
        "TaskCompleted",
        "TaskFailed",
        "TaskLost",
        "TasksReturned",
    ),
    "protocol.ids": ("JobId", "NodeName", "TaskId"),
    "protocol.types": ("JobOptions", "PlacementStep", "TaskSpec"),
    "runtime.remote": ("RemoteCluster",),
    "runtime.runner": ("Runner",),
    "runtime.specs": (
        "ExecutorGroup",
        "ExecutorStatus",
        "JobSpec",
        "NodeConfig",
        "NodeStatus",
        "TaskStatus",
    ),
    "observe.why": ("Why", "explain"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is asked for, so that processes start with no more than they need."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sparrow_core' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"sparrow_core.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
