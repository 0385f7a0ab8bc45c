"""What EXPLAIN ANALYZE says of the network."""

from __future__ import annotations

from minishark.model.events.figures import TaskFigures
from minishark.model.events.kinds import TaskEnded
from minishark.model.events.record import QueryRecord, StageRecord
from minishark.query.report import metrics_text


def stage(index: int, *received: dict[str, int]) -> StageRecord:
    """A stage with a task for each of these figures."""
    made = StageRecord(index=index, tasks=len(received), elapsed_s=1.0)
    for task, each in enumerate(received):
        figures = TaskFigures(rows=1, bytes=8, run_s=0.1, queue_s=0.1, received=each)
        made.ended[task] = TaskEnded(at=1.0, query=1, stage=index, task=task, figures=figures)
    return made


def text(*stages: StageRecord) -> str:
    """A query of these stages."""
    return metrics_text(QueryRecord(by_index={stage.index: stage for stage in stages}))


def test_bytes_and_where_they_came_from() -> None:
    """Per stage, the largest sources first; the figures are metrics, too."""
    told = stage(1, {"a": 1024, "b": 3072}, {"b": 1024, "c": 2048, "d": 512}, {})
    assert {"b": 4096, "c": 2048, "a": 1024, "d": 512} == told.received
    assert told.received == told.as_dict()["received"]
    head, first, second, *_ = text(stage(0, {}), told).splitlines()
    assert head.endswith("network KB (from)")
    assert first.endswith(" 0")
    assert second.endswith(" 8 (b 4, c 2, a 1, 1 more)")


def test_one_host_says_nothing_of_it() -> None:
    """As nothing passes over the network there."""
    assert "network" not in text(stage(0, {}))
