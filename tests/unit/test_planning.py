from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from toy_cluster import ToyTable

from minishark.compiler.logical.operators import Scan, Statement
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.sql.planning import DISABLED_OPTIMIZERS, PlanningDatabase
from minishark.errors import QueryError
from minishark.model.catalog import Catalog
from minishark.model.expressions import Column

TABLE = ToyTable("Items", (("a", "INTEGER"), ("price", "DECIMAL(9,2)")), ())


@pytest.fixture
def planning() -> Iterator[PlanningDatabase]:
    """A planning database with one table."""
    database = PlanningDatabase()
    database.put_table(TABLE.catalog_table())
    yield database
    database.close()


# Binding


def test_bind(planning: PlanningDatabase) -> None:
    """A bound statement has its columns, as DuckDB names and types them, and its tables."""
    bound = planning.bind('SELECT a AS "X y", sum(price), 1 FROM ITEMS GROUP BY a')
    assert (
        Column("X y", "INTEGER"),
        Column("sum(price)", "DECIMAL(38,2)"),
        Column("1", "INTEGER"),
    ) == bound.schema
    assert ("Items",) == bound.tables


def test_tables_are_those_of_the_catalog(planning: PlanningDatabase) -> None:
    """Names of common table expressions are no tables."""
    assert () == planning.bind("WITH q AS (SELECT 1 AS a) FROM q").tables
    assert ("Items",) == planning.bind(
        "WITH q AS (FROM items) SELECT a FROM q JOIN q r USING (a)"
    ).tables


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nothing FROM items",
        "SELECT a FROM nowhere",
        "SELECT nofunction(a) FROM items",
        "SELECT sum(a), price FROM items",
        "SELECT a + DATE '2020-01-01' || 'x' - INTERVAL 1 DAY FROM items",
    ],
)
def test_bind_errors_are_duckdbs(planning: PlanningDatabase, sql: str) -> None:
    """The message of a statement that does not bind is the one that DuckDB gives."""
    with duckdb.connect() as con:
        con.execute('CREATE TABLE "Items" (a INTEGER, price DECIMAL(9,2))')
        with pytest.raises(duckdb.Error) as expected:
            con.sql(sql).fetchall()
    with pytest.raises(QueryError) as found:
        planning.bind(sql)
    assert str(expected.value).splitlines()[0] == str(found.value).splitlines()[0]


def test_several_statements_are_no_query(planning: PlanningDatabase) -> None:
    """A type in text may hold a second one; nothing of that runs."""
    with pytest.raises(QueryError, match="several statements"):
        planning.bind("SELECT CAST(a AS INT) FROM items; CREATE TABLE made (i INT); SELECT 1")
    with pytest.raises(QueryError, match="made"):
        planning.bind("FROM made")
    assert planning.bind("SELECT ';' AS a;").schema


def test_python_variables_are_no_tables(planning: PlanningDatabase) -> None:
    """A frame of the caller's that has a table's name does not become one."""
    frame = duckdb.sql("SELECT 1 AS a").to_arrow_table()
    assert 1 == frame.num_rows
    with pytest.raises(QueryError, match="frame"):
        planning.bind("SELECT a FROM frame")


def test_removed_table_is_gone(planning: PlanningDatabase) -> None:
    """After a removal the name does not bind, in any case of letters."""
    planning.bind("FROM items")
    planning.remove_table("ITEMS")
    with pytest.raises(QueryError, match="items"):
        planning.bind("FROM items")


# Planning


def scanned(plan: LogicalPlan) -> list[str]:
    """The tables that a plan scans."""
    own = [plan.operator.table] if isinstance(plan.operator, Scan) else []
    return own + [table for child in plan.children for table in scanned(child)]


def test_plans_are_cached_until_a_table_changes(planning: PlanningDatabase) -> None:
    """The same statement has the same plan, until a table is made anew."""
    sql = "SELECT a FROM items"
    first = planning.plan(planning.bind(sql))
    assert first is planning.plan(planning.bind(sql))
    columns = (("a", "BIGINT"), *TABLE.columns[1:])
    planning.put_table(replace(TABLE, columns=columns).catalog_table())
    changed = planning.plan(planning.bind(sql))
    assert (Column("a", "BIGINT"),) == changed.schema


def test_repeated_statement_is_bound_once_until_a_table_changes(
    planning: PlanningDatabase,
) -> None:
    """The same text means the same until the catalog changes."""
    bound = planning.bind("SELECT * FROM items")
    assert bound is planning.bind("SELECT * FROM items")
    planning.put_table(replace(TABLE, columns=(("b", "VARCHAR"),)).catalog_table())
    assert (Column("b", "VARCHAR"),) == planning.bind("SELECT * FROM items").schema


@pytest.mark.parametrize(
    "relation",
    [
        *("'{file}'", '"{file}"', "-- it's\n'{file}'", "'{file}'\n-- its", "items, '{file}'"),
        *("read_csv('{file}')", "seen", "looked()"),
    ],
)
def test_what_reads_files_is_bound_anew(
    relation: str, planning: PlanningDatabase, tmp_path: Path
) -> None:
    """Files can have other columns by the next run, however they are reached."""
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    if relation == "seen":
        planning.define(f"CREATE VIEW seen AS SELECT count(*) AS n FROM '{file}'")
    if relation == "looked()":
        planning.define(f"CREATE MACRO looked() AS TABLE FROM read_csv('{file}')")
    sql = f"FROM {relation.format(file=file)}"
    bound = planning.bind(sql)
    assert bound is not planning.bind(sql)


@pytest.mark.parametrize("relation", ["a . csv", 'a."csv"', '"a" . "CSV"', "a.geojson", "a.jsonl"])
def test_file_without_quotes_is_bound_anew(
    relation: str, planning: PlanningDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB takes `a.csv` for a file if there is no schema of that name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "a.CSV").write_text("a\n1\n")
    for name in ("a.geojson", "a.jsonl"):
        (tmp_path / name).write_text('{"a": 1}')
    bound = planning.bind(f"FROM {relation}")
    assert bound is not planning.bind(f"FROM {relation}")


def test_tables_are_those_that_the_text_mentions(planning: PlanningDatabase) -> None:
    """A table is not missed, however it is named; other words may be one too many."""
    for name in ("odd one", 'with "quotes"', "1st"):
        planning.put_table(replace(TABLE, name=name).catalog_table())
    for sql, tables in (
        ("FROM items", ("Items",)),
        ("SELECT 1 AS item", ()),
        ("SELECT a AS \"odd one\" FROM 'ITEMS'", ("Items", "odd one")),
        ('SELECT * FROM "with ""quotes""", "1st"', ("1st", 'with "quotes"')),
        ("FROM query_table('items')", ("Items",)),
    ):
        assert tables == planning.bind(sql).tables, sql


def test_whole_statement_is_over_the_tables_that_it_names(planning: PlanningDatabase) -> None:
    """What its text only mentions is not brought to the one task that runs it."""
    planning.put_table(replace(TABLE, name="price").catalog_table())
    bound = planning.bind("SELECT price FROM items")
    assert ("Items", "price") == bound.tables
    assert Statement(bound.sql, ("Items",), "why", bound.schema) == (
        planning.whole(bound, "why").operator
    )


def test_settings_reach_what_was_bound_before(planning: PlanningDatabase) -> None:
    """A setting can change what a text means."""
    sql = "SELECT a / 2 AS half FROM items"
    assert "DOUBLE" == planning.bind(sql).schema[0].type
    planning.define("SET integer_division = true")
    assert "INTEGER" == planning.bind(sql).schema[0].type


def test_cache_is_bounded(planning: PlanningDatabase) -> None:
    """Old plans are dropped, so that a program of many statements does not grow for ever."""
    for i in range(300):
        planning.plan(planning.bind(f"SELECT {i}"))
    assert 256 == len(planning._remembered.plans)


def test_time_is_not_cached(planning: PlanningDatabase) -> None:
    """What tells the time is planned each time."""
    bound = planning.bind("SELECT a, current_date FROM items")
    assert planning.plan(bound) is not planning.plan(bound)


def test_empty_tables_do_not_fold(planning: PlanningDatabase) -> None:
    """A table without rows, and values out of its bounds, are planned as any other."""
    empty = ToyTable("empty", (("a", "INTEGER"),), (), believed_rows=0)
    planning.put_table(empty.catalog_table())
    assert ["empty"] == scanned(planning.plan(planning.bind("SELECT a FROM empty")))
    plan = planning.plan(planning.bind("SELECT a FROM items WHERE a > 2000000000"))
    assert ["Items"] == scanned(plan)


def test_statement_that_is_not_lowered_says_why(planning: PlanningDatabase) -> None:
    """The way out is the statement as it was written, over its tables."""
    bound = planning.bind("SELECT a FROM items TABLESAMPLE 10%")
    plan = planning.plan(bound)
    assert isinstance(plan.operator, Statement)
    assert (bound.sql, ("Items",)) == (plan.operator.sql, plan.operator.tables)
    assert plan.operator.reason.endswith("has no distributed form")
    assert bound.schema == plan.schema


def test_whole_statement() -> None:
    """A fallback at run time has its own reason."""
    database = PlanningDatabase()
    plan = database.whole(database.bind("SELECT 1 AS x"), "why")
    database.close()
    operator = Statement("SELECT 1 AS x", (), "why", (Column("x", "INTEGER"),))
    assert operator == plan.operator


def test_disabled_optimizers_exist() -> None:
    """An optimizer that DuckDB renames would silently be on again."""
    with duckdb.connect() as con:
        known = {name for (name,) in con.execute("SELECT name FROM duckdb_optimizers()").fetchall()}
    assert [] == [name for name in DISABLED_OPTIMIZERS if name not in known]


QUERIES = sorted((Path(__file__).parents[2] / "queries").glob("q*.sql"))


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_tpch_queries_are_lowered(query: Path, tpch: tuple[PlanningDatabase, Catalog]) -> None:
    """Every TPC-H query has a distributed plan."""
    planning, catalog = tpch
    plan = planning.plan(planning.bind(query.read_text()))
    assert not isinstance(plan.operator, Statement)
    assert set(scanned(plan)) <= {table.name for table in catalog}
    assert scanned(plan)


@pytest.fixture(scope="module")
def tpch() -> Iterator[tuple[PlanningDatabase, Catalog]]:
    """The schema of TPC-H over tables of believed sizes."""
    database, catalog = PlanningDatabase(), Catalog()
    for name, columns in TPCH_SCHEMA.items():
        table = ToyTable(name, tuple(columns), (), believed_rows=2_000).catalog_table()
        database.put_table(table)
        catalog.add(table)
    yield database, catalog
    database.close()


MONEY, KEY, TEXT, DAY = "DECIMAL(15,2)", "BIGINT", "VARCHAR", "DATE"
TPCH_SCHEMA = {
    "region": [("r_regionkey", KEY), ("r_name", TEXT), ("r_comment", TEXT)],
    "nation": [("n_nationkey", KEY), ("n_name", TEXT), ("n_regionkey", KEY), ("n_comment", TEXT)],
    "supplier": [
        *(("s_suppkey", KEY), ("s_name", TEXT), ("s_address", TEXT), ("s_nationkey", KEY)),
        *(("s_phone", TEXT), ("s_acctbal", MONEY), ("s_comment", TEXT)),
    ],
    "part": [
        *(("p_partkey", KEY), ("p_name", TEXT), ("p_mfgr", TEXT), ("p_brand", TEXT)),
        *(("p_type", TEXT), ("p_size", "INTEGER"), ("p_container", TEXT)),
        *(("p_retailprice", MONEY), ("p_comment", TEXT)),
    ],
    "partsupp": [
        *(("ps_partkey", KEY), ("ps_suppkey", KEY), ("ps_availqty", "INTEGER")),
        *(("ps_supplycost", MONEY), ("ps_comment", TEXT)),
    ],
    "customer": [
        *(("c_custkey", KEY), ("c_name", TEXT), ("c_address", TEXT), ("c_nationkey", KEY)),
        *(("c_phone", TEXT), ("c_acctbal", MONEY), ("c_mktsegment", TEXT), ("c_comment", TEXT)),
    ],
    "orders": [
        *(("o_orderkey", KEY), ("o_custkey", KEY), ("o_orderstatus", TEXT)),
        *(("o_totalprice", MONEY), ("o_orderdate", DAY), ("o_orderpriority", TEXT)),
        *(("o_clerk", TEXT), ("o_shippriority", "INTEGER"), ("o_comment", TEXT)),
    ],
    "lineitem": [
        *(("l_orderkey", KEY), ("l_partkey", KEY), ("l_suppkey", KEY), ("l_linenumber", "INTEGER")),
        *(("l_quantity", MONEY), ("l_extendedprice", MONEY), ("l_discount", MONEY)),
        *(("l_tax", MONEY), ("l_returnflag", TEXT), ("l_linestatus", TEXT), ("l_shipdate", DAY)),
        *(("l_commitdate", DAY), ("l_receiptdate", DAY), ("l_shipinstruct", TEXT)),
        *(("l_shipmode", TEXT), ("l_comment", TEXT)),
    ],
}


def test_ctrl_c_is_a_keyboard_interrupt(planning: PlanningDatabase) -> None:
    """Ctrl-C while DuckDB runs comes out as KeyboardInterrupt, and the connection is ready."""
    planning.define("SET threads = 1")  # DuckDB looks for signals between the main thread's tasks

    def run(con: duckdb.DuckDBPyConnection) -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        con.execute("SELECT count(*) FROM range(100_000_000_000) WHERE range % 3 = 7").fetchall()

    with pytest.raises(KeyboardInterrupt):
        planning.check(run)
    assert ("Items",) == planning.bind("FROM items").tables


def test_what_tells_time_is_known_through_views(planning: PlanningDatabase) -> None:
    """Its plan holds the time as a constant, so it serves once; those over tables only are kept."""
    planning.define("CREATE VIEW dated AS SELECT current_date AS d, a FROM items")
    told = ["FROM dated", "SELECT current_date", "SELECT a FROM items"]
    assert [True, True, False] == list(map(planning.tells_time, told))
    plans = [planning.plan(planning.bind(sql)) for sql in ("FROM dated", "FROM dated")]
    assert plans[0] is not plans[1]
