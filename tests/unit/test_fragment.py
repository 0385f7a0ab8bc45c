from __future__ import annotations

import duckdb
import pytest

from minishark.compiler.logical.operators import (
    Aggregate,
    Filter,
    Join,
    JoinCondition,
    JoinKind,
    Limit,
    Project,
    Sort,
    TopN,
    Values,
)
from minishark.compiler.stages import fragment
from minishark.compiler.stages.fragment import Aliases, Block
from minishark.model.expressions import (
    Column,
    ColumnRef,
    Expression,
    Infix,
    Literal,
    SortKey,
)

A, B = ColumnRef(0, "INTEGER"), ColumnRef(1, "INTEGER")
ONE = Literal("1", "INTEGER", 1)
SUM = Infix("+", (A, ONE), "INTEGER")
TRUE: tuple[Expression, ...] = (Infix(">", (A, ONE), "BOOLEAN"),)
UP = (SortKey(A, False, False),)
SCHEMA = (Column("a", "INTEGER"), Column("b", "INTEGER"))
TABLE = "SELECT t0.c0 AS c0, t0.c1 AS c1 FROM in0 AS t0"


@pytest.fixture
def aliases() -> Aliases:
    """Aliases of a fragment that has none yet."""
    return Aliases()


@pytest.fixture
def table(aliases: Aliases) -> Block:
    """An input of two columns."""
    return fragment.table_block("in0", ["c0", "c1"], aliases)


def test_scan_quotes_names_and_has_a_value_where_no_column_is_needed(aliases: Aliases) -> None:
    """A table of odd names can be read, and count(*) reads no column at all."""
    block = fragment.scan_block("in0", ['odd "name"', None], aliases)
    assert 'SELECT t0."odd ""name""" AS c0, true AS c1 FROM in0 AS t0' == fragment.select(block)


def test_plain_operators_make_one_select(table: Block, aliases: Aliases) -> None:
    """Filter, projection, order and limit extend the same SELECT."""
    block = fragment.filter_block(Filter(TRUE, (0, 1)), table, aliases)
    block = fragment.project_block(Project((B, A), ("b", "a")), block, aliases)
    block = fragment.sort_block(Sort((SortKey(B, True, True),), (0,)), block, aliases)
    block = fragment.limit_block(Limit(3, 2), block, aliases)
    expected = (
        "SELECT t0.c1 AS c0 FROM in0 AS t0 WHERE (t0.c0 > 1) "
        "ORDER BY t0.c0 DESC NULLS FIRST LIMIT 3 OFFSET 2"
    )
    assert expected == fragment.select(block)


def test_computed_columns_are_computed_once(table: Block, aliases: Aliases) -> None:
    """A predicate on a computed column reads it from a subquery."""
    block = fragment.project_block(Project((SUM,), ("x",)), table, aliases)
    block = fragment.filter_block(Filter(TRUE, (0,)), block, aliases)
    expected = (
        "SELECT t1.c0 AS c0 FROM (SELECT (t0.c0 + 1) AS c0 FROM in0 AS t0) AS t1 WHERE (t1.c0 > 1)"
    )
    assert expected == fragment.select(block)


def test_filter_above_a_limit_does_not_move_below_it(table: Block, aliases: Aliases) -> None:
    """What is limited is closed before it is filtered, sorted or limited again."""
    limited = fragment.limit_block(Limit(3, 0), table, aliases)
    inner = f"({TABLE} LIMIT 3) AS t1"
    filtered = fragment.filter_block(Filter(TRUE, (0,)), limited, aliases)
    assert f"SELECT t1.c0 AS c0 FROM {inner} WHERE (t1.c0 > 1)" == fragment.select(filtered)
    for again in (Limit(2, 0), TopN(UP, 2, 0)):
        sql = fragment.select(fragment.limit_block(again, limited, Aliases()))
        assert 2 == sql.count("LIMIT")
        assert 2 == sql.count("SELECT")


def test_top_n(table: Block, aliases: Aliases) -> None:
    """An order and a limit; without an offset none is written."""
    block = fragment.limit_block(TopN(UP, 5, 0), table, aliases)
    assert f"{TABLE} ORDER BY t0.c0 ASC NULLS LAST LIMIT 5" == fragment.select(block)


def test_distinct_closes(table: Block, aliases: Aliases) -> None:
    """DISTINCT comes after what stands below it, and before what stands above."""
    block = fragment.distinct_block(table, aliases)
    distinct = TABLE.replace("SELECT", "SELECT DISTINCT")
    assert f"SELECT t1.c0 AS c0, t1.c1 AS c1 FROM ({distinct}) AS t1" == fragment.select(block)


def test_grouping_sets(table: Block, aliases: Aliases) -> None:
    """Sets name their groups, and GROUPING() tells them apart."""
    aggregate = Aggregate((A, B), (), ((0, 1), (0,), ()), ((0, 1),))
    sql = fragment.select(fragment.aggregate_block(aggregate, table, aliases))
    assert "GROUPING(t0.c0, t0.c1) AS c2" in sql
    assert "GROUP BY GROUPING SETS ((t0.c0, t0.c1), (t0.c0), ())" in sql


def test_final_phase_groups_by_position(table: Block, aliases: Aliases) -> None:
    """Groups of the partial phase are columns, whatever expressions they were."""
    aggregate = Aggregate((SUM, B), ())
    sql = fragment.select(fragment.final_block(aggregate, table, aliases))
    assert f"SELECT t1.c0 AS c0, t1.c1 AS c1 FROM ({TABLE} GROUP BY 1, 2) AS t1" == sql


@pytest.mark.parametrize("rows", [(), ((ONE, ONE),), ((ONE, ONE), (ONE, ONE))])
def test_values(rows: tuple[tuple[Expression, ...], ...], aliases: Aliases) -> None:
    """Constant rows are as many as they are, and none has columns all the same."""
    sql = fragment.select(fragment.values_block(Values(rows, SCHEMA), aliases))
    relation = duckdb.sql(sql)
    assert ["c0", "c1"] == relation.columns
    assert [(1, 1)] * len(rows) == relation.fetchall()


def test_join_of_joins_keeps_its_shape(table: Block, aliases: Aliases) -> None:
    """The join order is the plan's: a side that is a join is a subquery."""
    others = [fragment.table_block(f"in{i}", ["c0"], aliases) for i in (1, 2)]
    on = (JoinCondition(A, "=", A),)
    join = Join(JoinKind.INNER, on, (), (0,), (0,))
    inner = fragment.join_block(join, others[0], others[1], SCHEMA[:1], aliases)
    block = fragment.join_block(join, table, inner, SCHEMA, aliases)
    expected = (
        "SELECT t0.c0 AS c0, t3.c0 AS c1 FROM in0 AS t0 JOIN (SELECT t1.c0 AS c0, t2.c0 AS c1 "
        "FROM in1 AS t1 JOIN in2 AS t2 ON t1.c0 = t2.c0) AS t3 ON t0.c0 = t3.c0"
    )
    assert expected == fragment.select(block)


def test_filtered_side_is_closed_before_the_join(table: Block, aliases: Aliases) -> None:
    """A predicate on one side of an outer join must not apply to the joined rows."""
    other = fragment.table_block("in1", ["c0"], aliases)
    filtered = fragment.filter_block(Filter(TRUE, (0, 1)), table, aliases)
    join = Join(JoinKind.RIGHT, (JoinCondition(A, "=", A),), (), (0,), (0,))
    sql = fragment.select(fragment.join_block(join, filtered, other, SCHEMA[:1], aliases))
    assert sql.index("WHERE") < sql.index("RIGHT JOIN")


def test_cross_join_has_a_condition(table: Block, aliases: Aliases) -> None:
    """A join on nothing is a join on true."""
    other = fragment.table_block("in1", ["c0"], aliases)
    join = Join(JoinKind.INNER, (), (), (0,), (0,))
    sql = fragment.select(fragment.join_block(join, table, other, SCHEMA[:1], aliases))
    assert sql.endswith("JOIN in1 AS t1 ON true")


def test_bucket_number_is_salted_and_stable() -> None:
    """A row's bucket depends on its keys, the salt and the count only; on equal values, equally."""
    sql = fragment.bucket_column((A, SUM), ("t0.c0", "t0.c1"), 4)
    assert "CAST(hash(t0.c0, (t0.c0 + 1), 7) % 4 AS USMALLINT) AS bucket" == sql
    pairs = ["0.0::DOUBLE, -0.0::DOUBLE", "1::DECIMAL(9,2), 1::DECIMAL(38,2)"]
    pairs += ["INTERVAL '1 month', INTERVAL '30 days'", "'nan'::DOUBLE, -('nan'::DOUBLE)"]
    for pair in pairs:
        left, right = pair.split(", ")
        found = duckdb.execute(f"SELECT hash({left}, 7) = hash({right}, 7)").fetchall()
        assert [(True,)] == found, pair
