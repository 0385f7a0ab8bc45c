"""What EXPLAIN ANALYZE says of the network."""

from __future__ import annotations

from minishark.query.metrics import QueryMetrics, StageMetrics, TaskMetrics, as_dict
from minishark.query.report import metrics_text


def stage(index: int, *received: dict[str, int]) -> StageMetrics:
    """A stage with a task for each of these figures."""
    tasks = tuple(
        TaskMetrics(
            node="n", executor="e", attempt=1, rows=1, bytes=8, run_s=0.1, queue_s=0.1, local=None,
            received=each,
        )
        for each in received
    )  # fmt: skip
    return StageMetrics(index=index, tasks=len(tasks), elapsed_s=1.0, by_task=tasks)


def text(*stages: StageMetrics) -> str:
    """A query of these stages."""
    return metrics_text(QueryMetrics(elapsed_s=1.0, planning_s=0.1, by_stage=stages))


def test_bytes_and_where_they_came_from() -> None:
    """Per stage, the largest sources first; the figures are metrics, too."""
    told = stage(1, {"a": 1024, "b": 3072}, {"b": 1024, "c": 2048, "d": 512}, {})
    assert {"b": 4096, "c": 2048, "a": 1024, "d": 512} == told.received
    assert told.received == as_dict(told)["received"]
    head, first, second, *_ = text(stage(0, {}), told).splitlines()
    assert head.endswith("network KB (from)")
    assert first.endswith(" 0")
    assert second.endswith(" 8 (b 4, c 2, a 1, 1 more)")


def test_one_host_says_nothing_of_it() -> None:
    """As nothing passes over the network there."""
    assert "network" not in text(stage(0, {}))
