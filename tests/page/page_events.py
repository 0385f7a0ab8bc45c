"""Events as a session would tell them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minishark.model.events import kinds
from minishark.model.events.figures import TaskFigures

BEGAN = kinds.SessionStarted(at=1000.0, session="abc", user="me", pid=7, version="1", slots=4)


def task(
    query: int, stage: int, number: int, *, at: float = 1002.0, **figures: object
) -> kinds.TaskEnded:
    """A task that ended at second 1002 after a tenth of a second, unless said otherwise."""
    values: dict[str, object] = {
        "node": "node-0",
        "executor": "node-0-e0",
        "rows": 10,
        "bytes": 100,
        "run_s": 0.1,
        "queue_s": 0.01,
        **figures,
    }
    measured = TaskFigures(**values)  # type: ignore[arg-type]
    return kinds.TaskEnded(at=at, query=query, stage=stage, task=number, figures=measured)


def node_report(name: str, **others: Any) -> kinds.NodeReport:
    """A living node without executors, but for what is said otherwise."""
    status: dict[str, Any] = {"at": 1.0, "pid": 1, "alive": True, "executors": ()}
    return kinds.NodeReport(name=name, **(status | others))


def query_events(
    query: int, sql: str = "SELECT 1", tasks: int = 2, state: str = "done"
) -> Sequence[kinds.AnyEvent]:
    """The events of a query of one stage; without its end if `state` is "running"."""
    plan = (
        kinds.PlanNode(
            parent=None,
            name="Project",
            label="Project a",
            where="single",
            rows=5,
            stage=0,
            puts_out=True,
            keeps_rows=True,
        ),
        kinds.PlanNode(parent=0, name="Filter", label="Filter a", where="single", rows=7, stage=0),
    )
    stages = (kinds.StagePlan(stage=0, tasks=tasks, tables=("t",), table_bytes=1000),)
    events: list[kinds.AnyEvent] = [
        kinds.QueryStarted(at=1001.0, query=query, sql=sql),
        kinds.QueryPlanned(at=1001.1, query=query, planning_s=0.1, plan=plan, stages=stages),
        kinds.StageStarted(at=1001.2, query=query, stage=0, tasks=tasks),
        *(task(query, 0, number) for number in range(tasks if state == "done" else 1)),
    ]
    if state != "running":
        events += [
            kinds.StageEnded(at=1002.0, query=query, stage=0, elapsed_s=0.8),
            kinds.QueryEnded(
                at=1002.1, query=query, state=state, elapsed_s=1.1, planning_s=0.1, error="bad"
            ),
        ]
    return events
