from __future__ import annotations

from collections.abc import Iterator

import pytest
from toy_cluster import ToyTable, believed_catalog

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput

COLUMNS = (("a", "INTEGER"), ("b", "INTEGER"))
TABLES = (
    ToyTable("t", COLUMNS, (), ("a",), 3, 1_000_000),
    ToyTable("u", COLUMNS, (), ("a",), 3, 1_000_000),
    ToyTable("tiny", COLUMNS, (), ("b",), 3, 300),
    ToyTable("single", COLUMNS, (), (), 1, 300),
)
OPTIONS = PlannerOptions(partitions=4).in_stages()


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """A planning database with small tables of the same names."""
    database = PlanningDatabase()
    for table in TABLES:
        database.put_table(ToyTable(table.name, COLUMNS, ()).catalog_table())
    yield database
    database.close()


def stages_of(planning: PlanningDatabase, sql: str) -> tuple[Stage, ...]:
    """The stages of a query."""
    logical = planning.plan(planning.bind(sql))
    return split(plan_physical(logical, believed_catalog(TABLES), OPTIONS))


def test_query_without_exchange_is_one_stage(planning: PlanningDatabase) -> None:
    """Co-partitioned tables are read partition by partition by the tasks of one stage."""
    (stage,) = stages_of(planning, "SELECT t.a, t.b, u.b FROM t JOIN u ON t.a = u.a")
    assert (3, 0, ()) == (stage.tasks, stage.buckets, stage.parents)
    assert {"t": ReadMode.OWN, "u": ReadMode.OWN} == {
        item.table: item.mode for item in stage.inputs if isinstance(item, TableInput)
    }


def test_shuffle_cuts(planning: PlanningDatabase) -> None:
    """The stage below a shuffle makes buckets, and the one above reads its own of each."""
    below, above = stages_of(planning, "SELECT b, count(*) FROM t GROUP BY b")
    assert (3, 4) == (below.tasks, below.buckets)
    assert below.sql.count("AS bucket") == 1
    assert (4, 0, (0,)) == (above.tasks, above.buckets, above.parents)
    assert (StageInput("in0", 0, ReadMode.BUCKET),) == above.inputs


def test_gather_cuts(planning: PlanningDatabase) -> None:
    """The stage above a gather is one task that reads everything."""
    below, above = stages_of(planning, "SELECT a, b FROM t OFFSET 1")
    assert (3, 0) == (below.tasks, below.buckets)
    assert (1, (StageInput("in0", 0, ReadMode.ALL),)) == (above.tasks, above.inputs)


def test_small_table_is_read_directly(planning: PlanningDatabase) -> None:
    """A table that every task reads whole has no stage of its own."""
    (stage,) = stages_of(planning, "SELECT t.a, tiny.a FROM t JOIN tiny ON t.b = tiny.a")
    assert 3 == stage.tasks
    modes = {i.table: i.mode for i in stage.inputs if isinstance(i, TableInput)}
    assert {"t": ReadMode.OWN, "tiny": ReadMode.ALL} == modes


def test_table_that_is_read_twice_is_one_input(planning: PlanningDatabase) -> None:
    """The same table in the same way is registered once; in two ways, twice."""
    (same,) = stages_of(planning, "SELECT x.a, x.b, y.b FROM t x JOIN t y ON x.a = y.a")
    assert [TableInput("in0", "t", ReadMode.OWN)] == list(same.inputs)
    assert 2 == same.sql.count("in0 AS")
    (both,) = stages_of(planning, "SELECT x.b, y.b FROM tiny x JOIN tiny y ON x.a = y.b")
    assert {ReadMode.OWN, ReadMode.ALL} >= {item.mode for item in both.inputs}


def test_statement_without_tables_is_one_task(planning: PlanningDatabase) -> None:
    """Constants need no input."""
    (stage,) = stages_of(planning, "SELECT 1 + 1")
    assert (1, ()) == (stage.tasks, stage.inputs)


def test_cte_of_one_reader_stays_inside_its_fragment(planning: PlanningDatabase) -> None:
    """What is read partition by partition in one stage is not stored."""
    (stage,) = stages_of(
        planning,
        """WITH q AS MATERIALIZED (SELECT a, sum(b) AS s FROM t GROUP BY a)
        SELECT x.a, x.s, y.s FROM q x JOIN q y ON x.a = y.a""",
    )
    assert 1 == stage.sql.count("AS MATERIALIZED")
    assert stage.sql.startswith("WITH cte")
    assert 3 == stage.tasks


def test_cte_that_is_read_whole_is_a_stage(planning: PlanningDatabase) -> None:
    """A definition that is also needed as a whole is computed once and stored."""
    stages = stages_of(
        planning,
        """WITH q AS MATERIALIZED (SELECT a, sum(b) AS s FROM t GROUP BY a)
        SELECT a, s FROM q WHERE s > (SELECT avg(s) FROM q)""",
    )
    assert [] == [stage for stage in stages if "MATERIALIZED" in stage.sql]
    readers = [
        stage.index
        for stage in stages
        for item in stage.inputs
        if isinstance(item, StageInput) and item.stage == 0
    ]
    assert 2 == len(readers)
    assert 1 == sum(stage.sql.count("GROUP BY") for stage in stages)


def test_replicated_cte_is_computed_where_it_is_read(planning: PlanningDatabase) -> None:
    """A definition over replicated tables is cheaper to repeat than to store."""
    stages = stages_of(
        planning,
        """WITH q AS MATERIALIZED (SELECT a, b + 1 AS c FROM single)
        SELECT t.a, q.c, r.c FROM t JOIN q ON t.b = q.a JOIN q r ON t.a = r.c""",
    )
    assert 1 == len(stages)
    assert 1 == stages[0].sql.count("AS MATERIALIZED")


def test_whole_statement_reads_its_tables_by_name(planning: PlanningDatabase) -> None:
    """A statement that is not lowered is its own text over whole tables, and says why."""
    sql = "SELECT t.a FROM t, u TABLESAMPLE 10%"
    (stage,) = stages_of(planning, sql)
    assert (sql, True, 1) == (stage.sql, stage.is_statement, stage.tasks)
    assert stage.reason is not None
    assert {("t", "t", ReadMode.ALL), ("u", "u", ReadMode.ALL)} == {
        (item.name, item.table, item.mode) for item in stage.inputs if isinstance(item, TableInput)
    }


def test_stages_come_after_those_that_they_read(planning: PlanningDatabase) -> None:
    """The order of the stages is one in which they can run; the last gives the answer."""
    stages = stages_of(
        planning,
        """WITH q AS MATERIALIZED (SELECT b, count(*) AS n FROM t GROUP BY b)
        SELECT q.b, r.n, (SELECT max(n) FROM q) FROM q JOIN q r ON q.b = r.n ORDER BY 1""",
    )
    assert list(range(len(stages))) == [stage.index for stage in stages]
    assert all(parent < stage.index for stage in stages for parent in stage.parents)
    read = {parent for stage in stages for parent in stage.parents}
    assert set(range(len(stages) - 1)) == read
    assert stages[-1].reason is None


def test_joins_that_multiply_rows_may_be_aggregated_before(planning: PlanningDatabase) -> None:
    """DuckDB may aggregate before it joins only where the join makes many rows of few."""
    growing = stages_of(planning, "SELECT max(t.b) FROM t, u")
    shrinking = stages_of(planning, "SELECT max(t.b) FROM t JOIN u ON t.a = u.a")
    assert any(stage.hints.aggregates_early for stage in growing)
    assert not any(stage.hints.aggregates_early for stage in shrinking)
