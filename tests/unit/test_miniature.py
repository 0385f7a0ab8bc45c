from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import duckdb
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.compiler.sql.miniature import Miniatures, create_miniature, scaled
from minishark.model.catalog import ColumnStatistics, TableStatistics

TYPES = {
    "TINYINT": ("-100", "100"),
    "SMALLINT": ("-5", "30000"),
    "INTEGER": ("1", "2147483647"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "HUGEINT": ("-170141183460469231731687303715884105727", "5"),
    "UTINYINT": ("0", "255"),
    "USMALLINT": ("3", "65535"),
    "UINTEGER": ("7", "4294967295"),
    "UBIGINT": ("0", "18446744073709551615"),
    "UHUGEINT": ("0", "340282366920938463463374607431768211455"),
    "FLOAT": ("-1.5", "1e30"),
    "DOUBLE": ("nan", "inf"),
    "DECIMAL(4,2)": ("-0.10", "0.90"),
    "DECIMAL(15,2)": ("901.00", "104949.50"),
    "DECIMAL(38,10)": ("-1234567890123456789012345678.5", "9000000000000000000000000000"),
    "VARCHAR": (" it's", "zz"),
    "BLOB": ("a", "\\xFF"),
    "BOOLEAN": ("false", "true"),
    "BIT": (None, None),
    "DATE": ("1992-01-02", "1998-12-01"),
    "TIME": ("00:00:01", "23:59:59"),
    "TIME WITH TIME ZONE": ("00:00:01+00", "23:59:59+00"),
    "TIMESTAMP": ("1992-01-02 03:04:05", "infinity"),
    "TIMESTAMP_S": ("1992-01-02 03:04:05", "1999-01-01 00:00:00"),
    "TIMESTAMP_MS": ("1992-01-02 03:04:05", "1999-01-01 00:00:00"),
    "TIMESTAMP_NS": ("1992-01-02 03:04:05.123456789", "1999-01-01 00:00:00"),
    "TIMESTAMP WITH TIME ZONE": ("1992-01-02 03:04:05+00", "1999-01-01 00:00:00+00"),
    "INTERVAL": ("1 day", "3 years"),
    "UUID": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "BIGNUM": ("1", "2"),
    "ENUM('a', 'b''c', 'd')": ("a", "d"),
    "INTEGER[]": (None, None),
    "INTEGER[3]": (None, None),
    "STRUCT(a INTEGER, b VARCHAR[])": (None, None),
    "MAP(VARCHAR, INTEGER)": (None, None),
    "UNION(a INTEGER, b VARCHAR)": (None, None),
    "JSON": (None, None),
}
KEY = (("k", "BIGINT"),)


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A planning database; to make one takes longer than most of the tests."""
    with duckdb.connect(config={"threads": 1}) as connection:
        yield connection


@pytest.fixture
def con(database: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """The planning database without tables."""
    assert [] == database.execute("SHOW TABLES").fetchall()
    yield database
    for (table,) in database.execute("SHOW TABLES").fetchall():
        quoted = table.replace('"', '""')
        database.execute(f'DROP TABLE "{quoted}"')


def key_table(rows: int) -> TableStatistics:
    """Statistics of a table of one key column."""
    return TableStatistics(rows, rows * 8, (ColumnStatistics(0.0, rows, "1", str(rows)),))


def count(con: duckdb.DuckDBPyConnection, table: str) -> int:
    """The rows of a miniature."""
    return int(con.execute(f'SELECT count(*) FROM "{table}"').fetchall()[0][0])


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.floats(0.0, 1.0))
def test_scaled_keeps_order_and_never_grows(x: int, y: int, f: float) -> None:
    """More stays more or the same, nothing grows, and a factor of one changes nothing."""
    low, high = sorted((x, y))
    assert scaled(low, f) <= scaled(high, f) <= high
    assert x == scaled(x, 1.0)


def test_scaled_leaves_small_counts_alone() -> None:
    """Small tables stay as they are: their size can't be divided much."""
    assert (25, 1_000, 1_500) == (scaled(25, 0.01), scaled(1_000, 0.01), scaled(51_000, 0.01))


@pytest.mark.sample(4)
@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_has_a_miniature(con: duckdb.DuckDBPyConnection, type_name: str) -> None:
    """Each type keeps its name, and no value makes the table fail, whatever the statistics."""
    low, high = TYPES[type_name]
    statistics = tuple(
        ColumnStatistics(null_fraction, distinct, low, high)
        for null_fraction in (0.0, 0.25, 1.0)
        for distinct in (1, 2, 4_000, None)
    )
    columns = tuple((f"c{i}", type_name) for i in range(len(statistics)))
    create_miniature(con, "t", columns, TableStatistics(4_000, 1, statistics), 0.5)
    made = con.execute("SELECT column_type FROM (DESCRIBE t)").fetchall()
    ((expected,),) = con.execute(f"SELECT typeof(NULL::{type_name})").fetchall()
    assert [(expected,)] * len(statistics) == made
    assert scaled(4_000, 0.5) == count(con, "t")


@pytest.mark.parametrize("type_name", ["INTEGER", "BIGINT", "DECIMAL(15,2)", "DATE", "DOUBLE"])
def test_values_lie_between_the_bounds(con: duckdb.DuckDBPyConnection, type_name: str) -> None:
    """Values of ordered types are spread between the real minimum and maximum."""
    low, high = ("1992-01-02", "1998-12-01") if type_name == "DATE" else ("10", "90000")
    column = ColumnStatistics(0.0, 2_000, low, high)
    create_miniature(con, "t", (("c", type_name),), TableStatistics(5_000, 1, (column,)), 1.0)
    ((inside, distinct, reach),) = con.execute(
        f"SELECT bool_and(c BETWEEN '{low}'::{type_name} AND '{high}'::{type_name}), "
        f"count(DISTINCT c) > 500, max(c) > '{low}'::{type_name} FROM t"
    ).fetchall()
    assert (True, True, True) == (inside, distinct, reach)


@pytest.mark.sample(4)
@pytest.mark.parametrize("type_name", ["BIGINT", "DECIMAL(15,2)"])
@pytest.mark.parametrize("distinct", [1, 7, 900, 20_000, 60_000])
def test_duckdb_estimates_the_wanted_distinct_count(
    con: duckdb.DuckDBPyConnection, type_name: str, distinct: int
) -> None:
    """DuckDB's estimate is what it is meant to be, in the median: its sketch errs by itself."""
    estimates = []
    for low in range(1, 15 * 1_000_003, 1_000_003):
        column = ColumnStatistics(0.0, distinct, str(low), str(low + 100_000))
        statistics = TableStatistics(100_000, 1, (column,))
        create_miniature(con, "t", (("c", type_name),), statistics, 1.0)
        ((made,),) = con.execute("SELECT stats(c) FROM t LIMIT 1").fetchall()
        estimates.append(made["approx_unique"])
    assert distinct == pytest.approx(median(estimates), rel=0.3)


def test_a_key_is_made_of_different_values(con: duckdb.DuckDBPyConnection) -> None:
    """As many distinct values as rows, within the sketch's error, means that no two are equal."""
    column = ColumnStatistics(0.0, 93_000, "1", "600000")
    create_miniature(con, "t", KEY, TableStatistics(100_000, 1, (column,)), 0.5)
    assert [(count(con, "t"),)] == con.execute("SELECT count(DISTINCT k) FROM t").fetchall()


def test_nulls_come_in_their_share(con: duckdb.DuckDBPyConnection) -> None:
    """A column has the real share of nulls, also in one with few values."""
    column = ColumnStatistics(0.2, 3, "1", "3")
    create_miniature(con, "t", (("c", "INTEGER"),), TableStatistics(10_000, 1, (column,)), 1.0)
    assert [(2_000,)] == con.execute("SELECT count(*) - count(c) FROM t").fetchall()


def test_odd_names_are_quoted(con: duckdb.DuckDBPyConnection) -> None:
    """Tables and columns may be called anything."""
    statistics = TableStatistics(3, 1, (ColumnStatistics(0.0, 3, "1", "3"),) * 2)
    columns = (('a "b"', "BIGINT"), ("select", "BIGINT"))
    create_miniature(con, 'x "y" z', columns, statistics, 1.0)
    rows = con.execute('SELECT "a ""b""", "select" FROM "x ""y"" z"').fetchall()
    assert [(1, 1), (2, 2), (3, 3)] == rows


def test_an_empty_table_has_an_empty_miniature(con: duckdb.DuckDBPyConnection) -> None:
    """No rows are made of no rows."""
    create_miniature(con, "t", KEY, TableStatistics(0, 0, (ColumnStatistics(0.0, 0),)), 1.0)
    assert 0 == count(con, "t")


def test_all_tables_are_filled_with_one_factor(con: duckdb.DuckDBPyConnection) -> None:
    """The largest table stays below the cap, and the ratio to the others is kept."""
    miniatures = Miniatures(rows_cap=10_000)
    miniatures.put("big", KEY, key_table(100_000))
    miniatures.put("half", KEY, key_table(50_000))
    miniatures.fill(con)
    assert 1 / 16 == miniatures.factor
    assert scaled(100_000, 1 / 16) == count(con, "big")
    assert scaled(50_000, 1 / 16) == count(con, "half")


def test_a_larger_table_shrinks_the_others_when_they_are_filled_next(
    con: duckdb.DuckDBPyConnection,
) -> None:
    """A factor that shrinks makes again the tables that it changes, and only before planning."""
    miniatures = Miniatures(rows_cap=10_000)
    miniatures.put("first", KEY, key_table(10_000))
    miniatures.put("tiny", KEY, key_table(25))
    miniatures.fill(con)
    con.execute("CREATE TABLE witness AS FROM tiny")
    con.execute("DELETE FROM tiny")
    miniatures.put("larger", KEY, key_table(40_000))
    assert 10_000 == count(con, "first")
    miniatures.fill(con)
    assert scaled(10_000, 1 / 8) == count(con, "first")
    assert 0 == count(con, "tiny")


def test_the_version_counts_only_what_changes_something(
    con: duckdb.DuckDBPyConnection,
) -> None:
    """A cached plan is good as long as the version stays."""
    miniatures = Miniatures()
    versions = [miniatures.version]
    miniatures.put("t", KEY, key_table(10))
    for _ in range(2):
        miniatures.fill(con)
        versions.append(miniatures.version)
    miniatures.remove("T")
    miniatures.fill(con)
    versions.append(miniatures.version)
    assert [0, 1, 1, 2] == versions


def test_a_declared_table_has_its_columns_and_is_filled_later(
    con: duckdb.DuckDBPyConnection,
) -> None:
    """Rows are made when a plan needs them, which does not outdate what was bound."""
    miniatures = Miniatures(rows_cap=10_000)
    miniatures.put("large", KEY, key_table(5_000))
    miniatures.put("small", KEY, key_table(10))
    miniatures.declare(con)
    empty, version = con.sql("FROM large"), miniatures.version
    assert [0, 10] == [count(con, "large"), count(con, "small")]
    miniatures.fill(con)
    assert 5_000 == count(con, "large")
    assert (empty.types, version) == (con.sql("FROM large").types, miniatures.version)
    miniatures.put("largest", KEY, key_table(40_000))  # has the others shrink
    miniatures.declare(con)
    declared = miniatures.version
    miniatures.fill(con)
    assert version < declared < miniatures.version


def test_a_removed_table_is_dropped(con: duckdb.DuckDBPyConnection) -> None:
    """The planning database does not know the table any more."""
    miniatures = Miniatures()
    miniatures.put("t", KEY, key_table(10))
    miniatures.fill(con)
    miniatures.remove("t")
    miniatures.remove("never there")
    miniatures.fill(con)
    assert [] == con.execute("SHOW TABLES").fetchall()


def test_a_replaced_table_is_made_again(con: duckdb.DuckDBPyConnection) -> None:
    """Putting a table of the same name, in any case, replaces its miniature."""
    miniatures = Miniatures()
    miniatures.put("t", KEY, key_table(10))
    miniatures.fill(con)
    miniatures.put("T", KEY, key_table(20))
    miniatures.fill(con)
    assert 20 == count(con, "t")


@pytest.mark.parametrize("rows", [1, 10, 100_000])
def test_a_filter_of_nulls_stays_where_there_may_be_some(
    con: duckdb.DuckDBPyConnection, rows: int
) -> None:
    """DuckDB drops it only where there is surely no NULL; rows and values are the same."""
    column, text = ColumnStatistics(0.0, rows), (("k", "VARCHAR"),)
    for name, without_nulls in (("sampled", False), ("counted", True)):
        counted = msgspec.structs.replace(column, without_nulls=without_nulls)
        create_miniature(con, name, text, TableStatistics(rows, 1, (counted,)), 1.0)
    con.execute("SET disabled_optimizers = 'statistics_propagation,compressed_materialization'")
    filtered = "EXPLAIN FROM {} WHERE k LIKE '%'"
    assert "constant_or_null" in str(con.execute(filtered.format("sampled")).fetchall())
    assert "constant_or_null" not in str(con.execute(filtered.format("counted")).fetchall())
    same = "(FROM sampled EXCEPT ALL FROM counted) UNION ALL (FROM counted EXCEPT ALL FROM sampled)"
    assert [] == con.execute(same).fetchall()


def test_a_first_null_remakes_a_miniature(con: duckdb.DuckDBPyConnection) -> None:
    """What was planned before would drop filters that the new rows don't pass."""
    miniatures = Miniatures()
    counted = ColumnStatistics(0.0, 10, "1", "10", without_nulls=True)
    miniatures.put("t", KEY, TableStatistics(10, 1, (counted,)))
    miniatures.fill(con)
    version = miniatures.version
    miniatures.update("t", KEY, TableStatistics(11, 1, (counted,)))
    miniatures.fill(con)
    assert version == miniatures.version
    some = msgspec.structs.replace(counted, without_nulls=False)
    miniatures.update("t", KEY, TableStatistics(11, 1, (some,)))
    miniatures.fill(con)
    assert version < miniatures.version


def test_few_rows_more_leave_plans_as_they_are(con: duckdb.DuckDBPyConnection) -> None:
    miniatures = Miniatures()
    miniatures.put("t", KEY, TableStatistics(0, 1, (ColumnStatistics(0.0, 0),)))
    versions = []
    for rows in (0, 1, 2, 1000, 2048, 2049, 1000):
        miniatures.update("t", KEY, TableStatistics(rows, 1, (ColumnStatistics(0.0, rows),)))
        miniatures.fill(con)
        versions.append(miniatures.version)
    empty, one, two, thousand, vector, more, fewer = versions
    assert empty < one == two == thousand == vector < more < fewer
