"""Sides of joins: which is the hash table's, and that rows and columns stay the same."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest

from minishark.compiler.logical.operators import (
    Join,
    JoinCondition,
    JoinKind,
    Scan,
    SetKind,
    SetOperation,
)
from minishark.compiler.physical.build_sides import are_as_written, turned_kind
from minishark.compiler.physical.plan import PhysicalPlan, Replicated, Shuffle, Single, Spread
from minishark.compiler.stages.split import split
from minishark.model.expressions import Column, ColumnRef

BIG = (Column("a", "INTEGER"), Column("x", "INTEGER"))
SMALL = (Column("b", "INTEGER"), Column("y", "INTEGER"))
TURNED = (JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT, JoinKind.FULL)
FIXED = (JoinKind.SEMI, JoinKind.ANTI)
FIXED_RIGHT = (JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)


def scan(name: str, rows: float) -> PhysicalPlan:
    """All of a table."""
    schema = BIG if name == "big" else SMALL
    columns = tuple(column.name for column in schema)
    return PhysicalPlan(Scan(name, columns, schema), (), schema, Replicated(), rows)


def joined(kind: JoinKind, left: PhysicalPlan, right: PhysicalPlan) -> PhysicalPlan:
    """Two tables, equal in their first columns; all columns that the kind has."""
    condition = JoinCondition(ColumnRef(0, "INTEGER"), "=", ColumnRef(0, "INTEGER"))
    lefts = () if kind in FIXED_RIGHT else (0, 1)
    rights = () if kind in FIXED else (1, 0)
    schema = (
        *(left.schema[i] for i in lefts),
        *(right.schema[i] for i in rights),
    )
    operator = Join(kind, (condition,), (), lefts, rights)
    return PhysicalPlan(operator, (left, right), schema, Single(), left.rows)


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    """A large and a small table, each with rows that match nothing."""
    con = duckdb.connect()
    con.execute("CREATE TABLE big AS SELECT range % 50 AS a, range AS x FROM range(1000)")
    con.execute("CREATE TABLE small AS SELECT range + 45 AS b, range AS y FROM range(10)")
    con.execute("INSERT INTO big VALUES (NULL, -1)")
    con.execute("INSERT INTO small VALUES (NULL, -1)")
    return con


@pytest.mark.parametrize("kind", TURNED)
def test_smaller_side_is_written_last(con: duckdb.DuckDBPyConnection, kind: JoinKind) -> None:
    """Whichever side the smaller table is on, it makes the hash table; nothing else changes."""
    answers = []
    for left, right in (("big", "small"), ("small", "big")):
        plans = {"big": scan("big", 1001.0), "small": scan("small", 11.0)}
        plan = joined(kind, plans[left], plans[right])
        (stage,) = split(plan)
        assert stage.hints.build_sides
        names = {item.table: item.name for item in stage.inputs if hasattr(item, "table")}
        assert stage.sql.index(f" {names['big']} ") < stage.sql.index(f" {names['small']} ")
        sql = stage.sql
        for table, name in names.items():
            sql = sql.replace(f" {name} ", f" {table} ")
        plain = (
            f"SELECT * REPLACE ({right}.{plan.schema[2].name} AS {plan.schema[2].name}) "
            f"FROM {left} {kind.name} JOIN {right} ON "
            f"{left}.{plans[left].schema[0].name} = {right}.{plans[right].schema[0].name}"
        )
        first, second, third, fourth = (column.name for column in plan.schema)
        expected = con.execute(
            f"SELECT {first}, {second}, {third}, {fourth} FROM ({plain}) ORDER BY ALL"
        ).fetchall()
        assert expected == con.execute(f"FROM ({sql}) ORDER BY ALL").fetchall()
        answers.append(len(expected))
    assert all(answers)


def test_small_side_stays_where_it_is() -> None:
    """Sides are exchanged only if that helps."""
    plan = joined(JoinKind.LEFT, scan("big", 1001.0), scan("small", 11.0))
    assert isinstance(plan.operator, Join)
    assert turned_kind(plan.operator, *plan.children) is None
    assert turned_kind(plan.operator, *reversed(plan.children)) is JoinKind.RIGHT


@pytest.mark.parametrize("kind", [*FIXED, *FIXED_RIGHT])
def test_sides_that_can_not_be_exchanged(kind: JoinKind) -> None:
    """DuckDB chooses where SQL can't say which side should make the hash table."""
    big, small = scan("big", 1001.0), scan("small", 11.0)
    kept_first = kind in FIXED
    assert kept_first == are_as_written(joined(kind, big, small))
    assert kept_first != are_as_written(joined(kind, small, big))


@pytest.mark.parametrize("kind", [JoinKind.MARK, JoinKind.SINGLE])
def test_subqueries_are_left_to_duckdb(kind: JoinKind) -> None:
    """A join that becomes a subquery has the sides that DuckDB gives it."""
    assert not are_as_written(joined(kind, scan("big", 1001.0), scan("small", 11.0)))


@pytest.mark.parametrize("kind", list(SetKind))
def test_only_unions_make_no_hash_table(kind: SetKind) -> None:
    """DuckDB joins for INTERSECT and EXCEPT."""
    children = (scan("big", 1001.0), scan("big", 11.0))
    plan = PhysicalPlan(SetOperation(kind, True), children, BIG, Single(), 1001.0)
    assert (kind is SetKind.UNION) == are_as_written(plan)


def test_sizes_of_outputs_are_known_to_duckdb_alone() -> None:
    """A stage that reads another one leaves its joins' sides to DuckDB."""
    spread = PhysicalPlan(Scan("big", ("a", "x"), BIG), (), BIG, Spread(2), 1001.0)
    shuffle = Shuffle((ColumnRef(0, "INTEGER"),), 2)
    moved = PhysicalPlan(shuffle, (spread,), BIG, Spread(2), 1001.0)
    plan = joined(JoinKind.INNER, moved, scan("small", 11.0))
    assert [True, False] == [stage.hints.build_sides for stage in split(plan)]


def test_what_counts_is_what_a_task_has() -> None:
    """A task has all rows of a replicated table, but only its part of a spread one."""
    spread = replace(scan("big", 1000.0), distribution=Spread(10))
    plan = joined(JoinKind.INNER, spread, scan("small", 500.0))
    assert isinstance(plan.operator, Join)
    assert turned_kind(plan.operator, *plan.children) is JoinKind.INNER
