"""Sparrow: a decentralised, low-latency task scheduler to embed (after Ousterhout et al., SOSP'13).

Task payloads are opaque bytes; what runs them is a `Runner` of the embedding program.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrow_core.observe.why import Why, explain
    from sparrow_core.policy.disciplines import Discipline
    from sparrow_core.policy.early_binding import BoundPlacer
    from sparrow_core.policy.late_binding import late_binding_placer
    from sparrow_core.policy.placement import (
        PLACEMENTS,
        check_placement,
        make_placement,
        placement_names,
    )
    from sparrow_core.policy.placer import PlacedJob, Placement, Placer
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
    from sparrow_core.protocol.status import ExecutorStatus, NodeStatus, TaskStatus
    from sparrow_core.protocol.types import JobOptions, NodeLevel, PlacementStep, TaskSpec
    from sparrow_core.runtime.cluster import InProcessCluster, LocalCluster
    from sparrow_core.runtime.remote import RemoteCluster
    from sparrow_core.runtime.runner import Runner
    from sparrow_core.runtime.specs import ExecutorGroup, JobSpec, NodeConfig

__version__ = "0.2.0"

__all__ = [
    "PLACEMENTS",
    "BoundPlacer",
    "ClusterClosed",
    "ClusterStartError",
    "Discipline",
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
    "NodeLevel",
    "NodeName",
    "NodeStatus",
    "PlacedJob",
    "Placement",
    "PlacementStep",
    "Placer",
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
    "check_placement",
    "explain",
    "late_binding_placer",
    "make_placement",
    "placement_names",
]

_HOMES = {
    "runtime.cluster": ("InProcessCluster", "LocalCluster"),
    "policy.disciplines": ("Discipline",),
    "policy.early_binding": ("BoundPlacer",),
    "policy.late_binding": ("late_binding_placer",),
    "policy.placement": (
        "PLACEMENTS",
        "check_placement",
        "make_placement",
        "placement_names",
    ),
    "policy.placer": ("PlacedJob", "Placement", "Placer"),
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
    "protocol.status": ("ExecutorStatus", "NodeStatus", "TaskStatus"),
    "protocol.types": ("JobOptions", "NodeLevel", "PlacementStep", "TaskSpec"),
    "runtime.remote": ("RemoteCluster",),
    "runtime.runner": ("Runner",),
    "runtime.specs": ("ExecutorGroup", "JobSpec", "NodeConfig"),
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
