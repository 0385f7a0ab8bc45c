"""What EXPLAIN ANALYZE says of operators."""

from __future__ import annotations

from minishark.model.events.figures import OperatorFigures, TaskFigures
from minishark.model.events.kinds import TaskEnded
from minishark.model.events.record import QueryRecord, StageRecord
from minishark.query.report import metrics_text, worst_estimate


def operator(
    label: str, estimated_rows: float, rows: int | None, depth: int = 0, *, early: bool = False
) -> OperatorFigures:
    """An operator that took a millisecond and a half, if its rows are known."""
    return OperatorFigures(
        name=label,
        label=label,
        depth=depth,
        estimated_rows=estimated_rows,
        rows=rows,
        run_s=None if rows is None else 0.0015,
        ended_early=early,
    )


def query(*operators: OperatorFigures) -> QueryRecord:
    """A query of one stage with these operators."""
    task = TaskEnded(at=1.0, query=1, stage=0, task=0, figures=TaskFigures(rows=1))
    return QueryRecord(
        by_index={0: StageRecord(index=0, tasks=1, ended={0: task}, operators=operators)}
    )


def test_each_operator_has_a_line() -> None:
    """Estimated and real rows and time; a dash for what is unknown, a mark for the worst guess."""
    told = query(
        operator("Sort", 100, 95),
        operator("Join", 1000, None, 1),
        operator("Filter", 20, 4000, 2),
        operator("Scan", 9000, 7, 3, early=True),
    )
    assert [
        "Stage 0",
        "  estimated      rows   ms  operator",
        "       ~100        95  1.5  Sort",
        "     ~1,000         -    -    Join",
        "        ~20     4,000  1.5      Filter  <-- largest misestimate: 200.0 times more rows",
        "     ~9,000  7 so far  1.5        Scan",
    ] == metrics_text(told).splitlines()[3:]


def test_good_estimates_are_not_marked() -> None:
    """Nor is one that less than one row makes look bad, or a scan that ended early."""
    told = query(
        operator("Join", 100, 180), operator("Filter", 0.01, 0), operator("Scan", 10, 1, early=True)
    )
    assert worst_estimate(told) is None
    assert "misestimate" not in metrics_text(told)
    assert [1.8, 1.0, None] == [
        each["misestimate"] for each in told.as_dict()["by_stage"][0]["operators"]
    ]


def test_the_lowest_of_equal_misestimates_is_marked() -> None:
    """The others only hand its rows on."""
    told = query(operator("Project", 10, 100), operator("Join", 10, 100, 1))
    worst = worst_estimate(told)
    assert worst is not None
    assert "Join" == worst.label


def test_other_queries_have_no_operators() -> None:
    """Their text is that of stages alone."""
    assert 3 == len(metrics_text(query()).splitlines())
