from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from toy_cluster import ToyTable, believed_catalog

from minishark.compiler.logical.operators import Aggregate, Distinct, Join, Limit, Scan, TopN
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import (
    Broadcast,
    FinalAggregate,
    Gather,
    Hashed,
    Materialize,
    PartialAggregate,
    PhysicalPlan,
    Replicated,
    Shuffle,
    Single,
    Spread,
)
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import CatalogError
from minishark.model.catalog import Catalog

MILLION = 1_000_000
OPTIONS = PlannerOptions(partitions=8).in_stages()
INTEGERS = (("a", "INTEGER"), ("b", "INTEGER"), ("s", "VARCHAR"))
EXCHANGES = (Shuffle, Broadcast, Gather)
TABLES = (
    ToyTable("t", INTEGERS, (), ("a",), 8, MILLION),
    ToyTable("u", INTEGERS, (), ("a",), 8, MILLION),
    ToyTable("six", INTEGERS, (), ("a",), 6, MILLION),
    ToyTable("two_keys", INTEGERS, (), ("a", "b"), 8, MILLION),
    ToyTable("loose", INTEGERS, (), (), 8, MILLION),
    ToyTable("huge", INTEGERS, (), (), 8, 500 * MILLION),
    ToyTable("medium", INTEGERS, (), ("a",), 8, 30_000),
    ToyTable("tiny", INTEGERS, (), ("b",), 8, 300),
    ToyTable("single", INTEGERS, (), (), 1, 1_000),
)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    """Tables of many sizes and partitionings."""
    return believed_catalog(TABLES)


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """Small tables of the same names: DuckDB's join order then is the one that is written."""
    database = PlanningDatabase()
    for table in TABLES:
        database.put_table(replace(table, believed_rows=1000).catalog_table())
    yield database
    database.close()


class Planned:
    """A planned query, and questions about its plan."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self.plan = plan
        self.nodes = list(_nodes(plan))

    def exchanges(self) -> list[str]:
        """The exchanges, from the root."""
        return [type(n.operator).__name__ for n in self.nodes if isinstance(n.operator, EXCHANGES)]

    def first(self, kind: type) -> PhysicalPlan:
        """The first node of a kind."""
        return next(node for node in self.nodes if isinstance(node.operator, kind))

    def count(self, kind: type) -> int:
        """How many nodes are of a kind."""
        return sum(isinstance(node.operator, kind) for node in self.nodes)

    def scans(self) -> dict[str, str]:
        """Where each scanned table lies."""
        return {
            node.operator.table: type(node.distribution).__name__
            for node in self.nodes
            if isinstance(node.operator, Scan)
        }


def _nodes(plan: PhysicalPlan) -> Iterator[PhysicalPlan]:
    yield plan
    for child in plan.children:
        yield from _nodes(child)


@pytest.fixture
def physical(planning: PlanningDatabase, catalog: Catalog) -> Iterator[type]:
    """Plans a query."""

    class Planner:
        def __new__(cls, sql: str, options: PlannerOptions = OPTIONS) -> Planned:  # type: ignore[misc]
            logical = planning.plan(planning.bind(sql))
            return Planned(plan_physical(logical, catalog, options))

    return Planner


# Scans


def test_scan_lies_as_its_table(physical: type) -> None:
    """A table that is partitioned by a column is hashed on it, wherever the scan puts it."""
    found = physical("SELECT b, a FROM t WHERE b > 0").first(Scan)
    position = found.operator.columns.index("a")
    assert Hashed((frozenset((position,)),), 8) == found.distribution


def test_scan_without_the_key_is_spread(physical: type) -> None:
    """A key that is not read can't be relied on."""
    assert Spread(8) == physical("SELECT b FROM t").first(Scan).distribution
    assert Spread(8) == physical("SELECT a FROM two_keys").first(Scan).distribution
    assert Spread(8) == physical("SELECT a FROM loose").first(Scan).distribution


def test_table_of_one_partition_is_everywhere(physical: type) -> None:
    """A table of one partition needs no exchange."""
    assert Replicated() == physical("SELECT a FROM single").plan.distribution


def test_small_statements_run_in_one_task(physical: type) -> None:
    """Below the limit of rows, all is read whole and nothing is exchanged."""
    sql = "SELECT t.b, count(*) FROM t JOIN loose ON t.b = loose.b GROUP BY t.b"
    found = physical(sql, replace(OPTIONS, single_task_rows=10 * MILLION))
    assert [] == found.exchanges()
    assert {"t": "Replicated", "loose": "Replicated"} == found.scans()


def test_query_runs_in_one_task_where_that_is_faster(physical: type) -> None:
    """Stages one after the other cost more than a second core saves on little work."""
    weighing = replace(OPTIONS, disabled=frozenset(), gather_rows=0, read_whole_rows=0)
    little = "SELECT m.b, count(*) FROM medium m JOIN tiny ON m.s = tiny.s GROUP BY m.b"
    assert [] != physical(little, weighing.without("one_task")).exchanges()
    assert [] == physical(little, weighing).exchanges()
    assert [] != physical("SELECT b, count(*) FROM huge GROUP BY b", weighing).exchanges()


def test_one_task_with_all_cores_needs_no_stages(physical: type) -> None:
    """Where a task may use all of them: if its memory is enough, and its result not large."""
    wide = replace(OPTIONS, disabled=frozenset(), threads=8, slots=8)
    groups = "SELECT b, count(*) FROM huge GROUP BY b"
    assert [] == physical(groups, wide).exchanges()
    assert [] != physical(groups, replace(wide, threads=1)).exchanges()
    assert [] != physical(groups, replace(wide, alone_bytes=1000.0)).exchanges()
    assert [] == physical(groups, replace(wide, task_bytes=1000.0)).exchanges()
    assert Replicated() == physical("SELECT max(a), min(b) FROM t", wide).first(Scan).distribution
    assert Spread(8) == physical("SELECT a, b, s FROM huge", wide).first(Scan).distribution


NOBODYS = """
    SELECT m.a FROM medium m JOIN tiny ON m.b = tiny.b
    WHERE {} (SELECT 1 FROM t WHERE t.a = m.a AND t.b <> tiny.a)
"""


@pytest.mark.parametrize("predicate", ["EXISTS", "NOT EXISTS"])
def test_joined_rows_are_counted_before_a_large_table_is_searched_for_them(
    physical: type, predicate: str
) -> None:
    """DuckDB would build a hash table of the large one, if it had to guess how few they are."""
    found = physical(NOBODYS.format(predicate), replace(OPTIONS, stage_cost=10_000.0))
    (stored,) = [node for node in found.nodes if isinstance(node.operator, Materialize)]
    assert stored.children[0].distribution == stored.distribution
    assert 0 == physical(NOBODYS.format(predicate)).count(Materialize)  # a stage costs more
    alone = "SELECT m.a FROM medium m WHERE EXISTS (SELECT 1 FROM t WHERE t.a = m.a)"
    assert 0 == physical(alone, replace(OPTIONS, stage_cost=10_000.0)).count(Materialize)


def test_unknown_table(planning: PlanningDatabase) -> None:
    """A plan over a table that was dropped meanwhile is an error with a name."""
    logical = planning.plan(planning.bind("SELECT a FROM t"))
    with pytest.raises(CatalogError, match="'t'"):
        plan_physical(logical, Catalog(), OPTIONS)


# Joins


def test_co_partitioned_tables_join_in_place(physical: type) -> None:
    """Tables that are hashed alike on the join keys need no exchange."""
    found = physical("SELECT t.a, t.b, u.b FROM t JOIN u ON t.a = u.a")
    assert [] == found.exchanges()
    assert isinstance(found.first(Join).distribution, Hashed)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x.b, u.b FROM (SELECT b, a AS k FROM t WHERE b > 0) x JOIN u ON x.k = u.a",
        "SELECT x.n, u.b FROM (SELECT a, count(*) AS n FROM t GROUP BY a) x JOIN u ON x.a = u.a",
        """SELECT x.n FROM (SELECT t.a, t.b + u.b AS n FROM t JOIN u ON t.a = u.a) x
        JOIN medium ON x.a = medium.a""",
        "SELECT t.b FROM t LEFT JOIN u ON t.a = u.a LEFT JOIN medium ON t.a = medium.a",
        "SELECT a, count(*) FROM t WHERE EXISTS (FROM u WHERE u.a = t.a) GROUP BY a",
    ],
    ids=["projection", "group", "join", "left joins", "semi join"],
)
def test_partitioning_is_known_through_operators(physical: type, sql: str) -> None:
    """Filters, projections, groups and joins keep the partitioning; later joins use it."""
    options = replace(OPTIONS, read_whole_rows=0)
    assert [] == physical(sql, options).exchanges()


def test_equal_columns_stand_for_each_other(physical: type) -> None:
    """After an inner join, rows are hashed on either side's key."""
    found = physical("SELECT u.a, count(*) FROM t JOIN u ON t.a = u.a GROUP BY u.a")
    assert [] == found.exchanges()


def test_null_extended_side_is_no_key(physical: type) -> None:
    """After a left join the right side's keys can be NULL anywhere, so their groups are spread."""
    found = physical("SELECT u.a, count(u.b) FROM t LEFT JOIN u ON t.a = u.a GROUP BY u.a")
    assert 1 == len(found.exchanges())


def test_full_join_is_on_nobodys_key(physical: type) -> None:
    """Both sides of a full join can be NULL anywhere."""
    found = physical("SELECT t.a, u.a, t.b FROM t FULL JOIN u ON t.a = u.a")
    assert Spread(8) == found.first(Join).distribution


def test_other_partition_count_must_move(physical: type) -> None:
    """Six and eight partitions do not match: one side moves to where the other lies."""
    found = physical("SELECT t.b, six.b FROM t JOIN six ON t.a = six.a")
    assert ["Shuffle"] == found.exchanges()
    assert found.first(Shuffle).operator.partitions in (6, 8)


def test_only_the_side_that_lies_wrongly_moves(physical: type) -> None:
    """A join on one table's key shuffles the other table to it."""
    found = physical("SELECT t.b, loose.b FROM t JOIN loose ON t.a = loose.b")
    assert ["Shuffle"] == found.exchanges()
    assert "loose" == next(_scans_below(found.first(Shuffle)))


def test_both_sides_move_where_neither_lies_right(physical: type) -> None:
    """Two large tables on other columns than their keys are shuffled both, to the same count."""
    found = physical("SELECT t.s, u.s FROM t JOIN u ON t.b = u.b")
    assert ["Shuffle", "Shuffle"] == found.exchanges()
    shuffles = [n.operator.partitions for n in found.nodes if isinstance(n.operator, Shuffle)]
    assert [8, 8] == shuffles


def test_small_side_is_broadcast(physical: type) -> None:
    """A small side is cheaper to copy than a large one to move."""
    found = physical("SELECT huge.s, medium.s FROM huge JOIN medium ON huge.b = medium.b")
    assert ["Broadcast"] == found.exchanges()
    assert "medium" == next(_scans_below(found.first(Broadcast)))


def test_very_small_table_is_read_whole(physical: type) -> None:
    """A tiny stored table is read by every task as it is, without a stage of its own."""
    found = physical("SELECT t.s, tiny.s FROM t JOIN tiny ON t.b = tiny.a WHERE tiny.b > 1")
    assert [] == found.exchanges()
    assert "Replicated" == found.scans()["tiny"]


def test_outer_side_is_never_copied(physical: type) -> None:
    """A copied outer side would give its unmatched rows once for each task."""
    found = physical("SELECT medium.s, huge.s FROM medium LEFT JOIN huge ON medium.b = huge.b")
    broadcast = [n for n in found.nodes if isinstance(n.operator, Broadcast)]
    assert [] == [n for n in broadcast if "medium" in _scans_below(n)]


def test_not_in_needs_the_whole_right_side(physical: type) -> None:
    """One NULL anywhere on the right makes every mark unknown, so each task sees all of it."""
    found = physical("SELECT s FROM t WHERE a NOT IN (SELECT a FROM u)")
    assert ["Broadcast"] == found.exchanges()


def _scans_below(plan: PhysicalPlan) -> Iterator[str]:
    return (n.operator.table for n in _nodes(plan) if isinstance(n.operator, Scan))


# Groups


def test_group_on_the_partitioning_key_is_one_phase(physical: type) -> None:
    """Groups that lie in one partition each are done there."""
    found = physical("SELECT a, b, median(b) FROM t GROUP BY a, b")
    assert [] == found.exchanges()
    assert 1 == found.count(Aggregate)


def test_other_groups_have_two_phases(physical: type) -> None:
    """Partial results are shuffled where there are many groups."""
    found = physical("SELECT b, sum(a) FROM t GROUP BY b")
    assert ["Shuffle"] == found.exchanges()
    assert (1, 1) == (found.count(PartialAggregate), found.count(FinalAggregate))
    assert Hashed((frozenset((0,)),), 8) == found.first(FinalAggregate).distribution


def test_few_groups_are_gathered(physical: type) -> None:
    """Few partial rows are not worth a shuffle, and no groups at all make one row a task."""
    options = replace(OPTIONS, gather_rows=10 * MILLION)
    assert ["Gather"] == physical("SELECT b, sum(a) FROM t GROUP BY b", options).exchanges()
    assert ["Gather"] == physical("SELECT sum(a) FROM t").exchanges()


def test_aggregates_that_do_not_split_move_all_rows(physical: type) -> None:
    """A median of a group needs its rows together, and of everything all rows in one task."""
    found = physical("SELECT b, median(a) FROM t GROUP BY b")
    assert ["Shuffle"] == found.exchanges()
    assert 0 == found.count(PartialAggregate)
    assert Single() == physical("SELECT median(a) FROM t").first(Aggregate).distribution


def test_grouping_sets_end_in_one_task(physical: type) -> None:
    """No key holds for all sets: the partial groups are gathered."""
    found = physical("SELECT a, b, count(*) FROM t GROUP BY ROLLUP (a, b)")
    assert ["Gather"] == found.exchanges()
    assert Single() == found.first(FinalAggregate).distribution


def test_duplicates_are_dropped_before_they_move(physical: type) -> None:
    """Each partition sends each value of count(DISTINCT) once."""
    found = physical("SELECT max(DISTINCT b), count(DISTINCT b) FROM t")
    gather = found.first(Gather)
    assert isinstance(gather.children[0].operator, Distinct | PartialAggregate)


def test_distinct_has_two_phases(physical: type) -> None:
    """DISTINCT first in each partition, then over what is left of them."""
    found = physical("SELECT DISTINCT b, s FROM t")
    assert 2 == found.count(Distinct)
    assert ["Shuffle"] == found.exchanges()
    in_place = physical("SELECT DISTINCT a, s FROM t")
    assert (1, []) == (in_place.count(Distinct), in_place.exchanges())


# Order and limits


def test_top_n_is_taken_before_the_gather(physical: type) -> None:
    """Each task gives no more rows than the answer can need, offset included."""
    found = physical("SELECT a FROM t ORDER BY a LIMIT 5 OFFSET 2")
    limits = [(n.operator.limit, n.operator.offset) for n in found.nodes if n_is(n, TopN)]
    assert [(5, 2), (7, 0)] == limits
    assert ["Gather"] == found.exchanges()
    assert Single() == found.plan.distribution


def n_is(node: PhysicalPlan, kind: type) -> bool:
    """Whether a node is of a kind."""
    return isinstance(node.operator, kind)


def test_limit_is_taken_before_the_gather(physical: type) -> None:
    """The same for rows in any order; an offset alone must see all rows."""
    found = physical("SELECT a FROM t LIMIT 5")
    limits = [n.operator.limit for n in found.nodes if n_is(n, Limit)]
    assert [5, 5] == limits
    offset = physical("SELECT a FROM t OFFSET 5")
    assert 1 == offset.count(Limit)
    assert ["Gather"] == offset.exchanges()


def test_limit_in_one_task_is_taken_once(physical: type) -> None:
    """Nothing is done twice where all rows are in one task already."""
    found = physical("SELECT a FROM single ORDER BY a LIMIT 5")
    assert (1, []) == (found.count(TopN), found.exchanges())


def test_sorting_gathers(physical: type) -> None:
    """A total order is made in one task."""
    assert ["Gather"] == physical("SELECT a FROM medium ORDER BY a").exchanges()


# Other operators


def test_window_runs_where_its_partitions_lie(physical: type) -> None:
    """Windows by the partitioning key stay in place; others move."""
    in_place = physical("SELECT rank() OVER (PARTITION BY a, b ORDER BY s) FROM t")
    assert [] == in_place.exchanges()
    assert ["Shuffle"] == physical(
        "SELECT rank() OVER (PARTITION BY b ORDER BY s) FROM t"
    ).exchanges()
    assert ["Gather"] == physical("SELECT rank() OVER (ORDER BY b) FROM t").exchanges()


def test_union_all_of_equal_counts_stays_in_place(physical: type) -> None:
    """Rows of UNION ALL may lie anywhere; other set operations need equal rows together."""
    assert [] == physical("SELECT b FROM t UNION ALL SELECT b FROM u").exchanges()
    assert [] == physical("SELECT a FROM t EXCEPT ALL SELECT a FROM u").exchanges()
    moved = physical("SELECT b FROM t EXCEPT ALL SELECT b FROM u").exchanges()
    assert ["Shuffle", "Shuffle"] == moved


def test_volatile_values_are_computed_once(physical: type) -> None:
    """Random values of a replicated relation must not differ from task to task."""
    found = physical("SELECT random() AS r, a FROM single")
    assert Single() == found.plan.distribution


def test_whole_statement_is_one_task(physical: type) -> None:
    """What is not lowered runs where one task reads everything."""
    assert Single() == physical("SELECT a FROM t TABLESAMPLE 10%").plan.distribution


def test_partition_count_is_the_options(physical: type) -> None:
    """A shuffle makes as many partitions as asked for."""
    options = replace(OPTIONS, partitions=7)
    found = physical("SELECT b, sum(a) FROM t GROUP BY b", options)
    assert 7 == found.first(Shuffle).distribution.partitions
