"""DuckDB's operators laid over those of a stage: what is known of each."""

from __future__ import annotations

import json

import pytest

from minishark.compiler.logical.operators import (
    Aggregate,
    Filter,
    Join,
    JoinCondition,
    JoinKind,
    Limit,
    Operator,
    Scan,
    SetKind,
    SetOperation,
)
from minishark.compiler.physical.plan import Distribution, PhysicalPlan, Replicated, Single
from minishark.compiler.stages.stage import Stage
from minishark.model.events.figures import OperatorFigures, TaskFigures
from minishark.model.expressions import Column, ColumnRef, Literal
from minishark.query.operators import measured, own_operators
from minishark.worker.profiles import profiled
from minishark.worker.protocol import Profiled, TaskOutcome

KEY = ColumnRef(0, "BIGINT")
TRUE = Literal(True, "BOOLEAN")


def plan(
    operator: Operator, *children: PhysicalPlan, where: Distribution | None = None
) -> PhysicalPlan:
    """A node of a physical plan with an estimate that does not matter."""
    schema = operator.output_schema([child.schema for child in children])
    return PhysicalPlan(operator, children, schema, where or Single(), 10.0)


def scan(table: str, where: Distribution | None = None) -> PhysicalPlan:
    """A scan of a table with one column, which is named after it."""
    return plan(Scan(table, (f"{table}_k",), (Column(f"{table}_k", "BIGINT"),)), where=where)


def filtered(child: PhysicalPlan) -> PhysicalPlan:
    """A filter with a predicate."""
    return plan(Filter((TRUE,), (0,)), child)


def joined(left: PhysicalPlan, right: PhysicalPlan, kind: JoinKind) -> PhysicalPlan:
    """An equi-join."""
    return plan(Join(kind, (JoinCondition(KEY, "=", KEY),), (), (0,), (0,)), left, right)


def stage(root: PhysicalPlan, tasks: int = 1) -> Stage:
    """A stage that computes a plan."""
    return Stage(
        index=0, sql="SELECT", inputs=(), schema=root.schema, tasks=tasks, buckets=0, plan=root
    )


def ran(kind: str, rows: int, *inputs: Profiled, join: str = "") -> Profiled:
    """An operator of DuckDB's that took a millisecond."""
    return Profiled(kind=kind, rows=rows, run_s=0.001, inputs=inputs, join=join)


def read(table: str, rows: int, of: int | None = None) -> Profiled:
    """A scan of Arrow data with so many rows, by default all of it."""
    return Profiled(
        kind="TABLE_SCAN",
        rows=rows,
        run_s=0.001,
        columns=(f"{table}_k",),
        read_rows=rows if of is None else of,
    )


def outcome(root: Profiled, rows: int | None = None) -> TaskOutcome:
    """What a task says of its fragment, whose output rows are those of the root."""
    profiles = {"": ran("RESULT_COLLECTOR", 0, root)}
    return TaskOutcome(
        figures=TaskFigures(rows=root.rows if rows is None else rows, bytes=0), profiles=profiles
    )


def rows(root: PhysicalPlan, *tasks: TaskOutcome) -> list[int | None]:
    """The rows of each operator of a stage, as far as they are known."""
    return [each.rows for each in measured(stage(root, len(tasks)), tasks)]


def test_projections_and_filters_stand_anywhere() -> None:
    """DuckDB adds projections; a filter has the rows that leave its chain."""
    root = plan(Aggregate((KEY,), ()), filtered(scan("a")))
    scanned = ran("PROJECTION", 7, ran("FILTER", 7, ran("PROJECTION", 9, read("a", 9))))
    found = measured(stage(root), [outcome(ran("HASH_GROUP_BY", 3, scanned))])
    assert [3, 7, 9] == [each.rows for each in found]
    # Each millisecond counts once: projections for the operator that needs them.
    assert pytest.approx(0.005) == sum(each.run_s or 0.0 for each in found)


def test_rows_of_tasks_are_added_up() -> None:
    """Rows that each task reads alike count once, as the plan's estimate does; times add up."""
    root = joined(scan("a"), scan("b", Replicated()), JoinKind.INNER)
    tasks = [outcome(ran("HASH_JOIN", n, read("a", n), read("b", 5), join="INNER")) for n in (2, 3)]
    assert [5, 5, 5] == rows(root, *tasks)
    assert pytest.approx(0.002) == measured(stage(root, 2), tasks)[2].run_s
    others = [
        outcome(ran("HASH_JOIN", 1, read("a", 1), read("b", n), join="INNER")) for n in (4, 5)
    ]
    assert [2, 2, None] == rows(root, *others)


@pytest.mark.parametrize(
    ("kind", "name", "mirrored"),
    [
        (JoinKind.INNER, "INNER", "INNER"),
        (JoinKind.LEFT, "LEFT", "RIGHT"),
        (JoinKind.SEMI, "SEMI", "RIGHT_SEMI"),
        (JoinKind.RIGHT_ANTI, "RIGHT_ANTI", "ANTI"),
    ],
)
def test_sides_of_joins_are_found_by_their_columns(
    kind: JoinKind, name: str, mirrored: str
) -> None:
    """DuckDB may have swapped them; a join of another kind is not this one."""
    root = joined(scan("a"), scan("b"), kind)
    as_written = ran("HASH_JOIN", 1, read("a", 2), read("b", 3), join=name)
    swapped = ran("HASH_JOIN", 1, read("b", 3), read("a", 2), join=mirrored)
    other = ran("HASH_JOIN", 1, read("a", 2), read("b", 3), join="MARK")
    assert [1, 2, 3] == rows(root, outcome(as_written)) == rows(root, outcome(swapped))
    assert [1, None, None] == rows(root, outcome(other))


def test_what_both_orders_do_not_agree_on_is_unknown() -> None:
    """A table that is joined with itself: the join's rows are certain, those of its sides not."""
    root = joined(filtered(scan("a")), filtered(scan("a")), JoinKind.INNER)
    sides = (ran("FILTER", n, read("a", 9)) for n in (2, 3))
    assert [1, None, 9, None, 9] == rows(root, outcome(ran("HASH_JOIN", 1, *sides, join="INNER")))


def test_a_filter_that_moved_leaves_rows_unknown_in_between() -> None:
    """The join has other rows than planned, if its input is filtered instead of its output."""
    root = plan(Aggregate((KEY,), ()), filtered(joined(scan("a"), scan("b"), JoinKind.INNER)))
    moved = ran("HASH_JOIN", 4, ran("FILTER", 5, read("a", 9)), read("b", 8), join="INNER")
    assert [2, None, None, None, None] == rows(root, outcome(ran("HASH_GROUP_BY", 2, moved)))


def test_files_are_read_without_rows_that_nobody_wants() -> None:
    """What filters drop there is known; what joins find out is not. One scan may serve two."""
    files = ran("TABLE_SCAN", 7)
    grouped = plan(Aggregate((KEY,), ()), filtered(scan("a")))
    assert [3, 7, None] == rows(grouped, outcome(ran("HASH_GROUP_BY", 3, files)))
    both = joined(filtered(scan("a")), scan("b"), JoinKind.INNER)
    found = ran("HASH_JOIN", 4, files, read("b", 8), join="INNER")
    assert [4, None, None, None] == rows(both, outcome(found))
    once = [ran("FILTER", n, ran("CTE_SCAN", 9)) for n in (2, 3)]
    root = joined(filtered(scan("a")), filtered(scan("b")), JoinKind.INNER)
    found = ran("HASH_JOIN", 1, *once, join="INNER")
    assert [1, None, None, None, None] == rows(root, outcome(found))


@pytest.mark.parametrize("kind", ["UNGROUPED_AGGREGATE", "WINDOW", "A_NEW_OPERATOR"])
def test_where_the_trees_do_not_fit_only_the_output_is_known(kind: str) -> None:
    """Nothing is guessed; times are unknown as well."""
    root = plan(Aggregate((KEY,), ()), filtered(scan("a")))
    found = measured(stage(root), [outcome(ran(kind, 3, read("a", 9)))])
    assert [OperatorFigures(rows=3), OperatorFigures(), OperatorFigures()] == found
    assert [OperatorFigures(rows=3), OperatorFigures(), OperatorFigures()] == measured(
        stage(root), [TaskOutcome(figures=TaskFigures(rows=3, bytes=0))]
    )


def test_one_task_without_a_profile_makes_a_sum_unknown() -> None:
    """What some of the tasks have done is no figure of the stage."""
    root = filtered(scan("a"))
    known = outcome(ran("FILTER", 3, read("a", 9)))
    assert [6, None] == rows(root, known, TaskOutcome(figures=TaskFigures(rows=3, bytes=0)))


def test_a_union_has_the_rows_of_its_inputs() -> None:
    """DuckDB's own figure for it is 0."""
    root = plan(SetOperation(SetKind.UNION, keep_all=True), scan("a"), scan("b"))
    assert [5, 2, 3] == rows(root, outcome(ran("UNION", 0, read("a", 2), read("b", 3)), 5))


def test_scans_that_end_early_are_marked() -> None:
    """Up to the limit that had enough, or the join whose other side is empty."""
    root = plan(Limit(2, 0), filtered(scan("a")))
    limited = ran("STREAMING_LIMIT", 2, ran("FILTER", 3, read("a", 5, of=9)))
    found = measured(stage(root), [outcome(limited)])
    assert [(2, False), (3, True), (5, True)] == [(each.rows, each.ended_early) for each in found]
    empty = joined(scan("a"), scan("b"), JoinKind.INNER)
    join = ran("HASH_JOIN", 0, read("a", 4, of=9), read("b", 0), join="INNER")
    found = measured(stage(empty), [outcome(join)])
    assert [(0, False), (4, True), (0, False)] == [(each.rows, each.ended_early) for each in found]


def test_places_follow_the_tree() -> None:
    """Each operator comes after the one that reads it."""
    root = joined(filtered(scan("a")), scan("b"), JoinKind.INNER)
    found = own_operators(stage(root))
    assert [0, 1, 2, 1] == [depth for _, depth in found]
    assert [root, root.children[0], root.children[0].children[0], root.children[1]] == [
        node for node, _ in found
    ]


def test_a_profile_is_condensed() -> None:
    """Kinds, rows, times, and what tells scans and joins apart."""
    scanned = {
        "type": "TABLE_SCAN",
        "intermediate_rows": 3,
        "timing": 0.5,
        "extra_info": {
            "Function": "PYTHON_ARROW_SCAN",
            "Projections": "a_k",
            "Estimated Cardinality": "9",
        },
    }
    join = {
        "type": "HASH_JOIN",
        "intermediate_rows": 2,
        "timing": 0.25,
        "extra_info": {"Join Type": "LEFT", "Estimated Cardinality": "7"},
        "children": [scanned],
    }
    expected = Profiled(
        kind="HASH_JOIN",
        rows=2,
        run_s=0.25,
        join="LEFT",
        inputs=(Profiled(kind="TABLE_SCAN", rows=3, run_s=0.5, columns=("a_k",), read_rows=9),),
    )
    assert expected == profiled(json.dumps({"operator": [join]}))
    assert profiled('{"result": "empty"}') is None
    assert profiled(json.dumps({"operator": [{**join, "children": [scanned] * 2_000}]})) is None
