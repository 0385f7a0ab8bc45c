from __future__ import annotations

from collections.abc import Iterator

import duckdb
import msgspec
import pyarrow as pa
import pytest

from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.worker.statistics import (
    batch_bounds,
    is_measured,
    merge_statistics,
    partition_statistics,
    text_sample,
)


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose Arrow output has the layout that executors hold."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET arrow_output_version = '1.5'")
        yield connection


def statistics(con: duckdb.DuckDBPyConnection, query: str, cuts: int = 1) -> TableStatistics:
    """Statistics of a query's result that is split into `cuts` partitions."""
    data = con.sql(query).to_arrow_table()
    columns = tuple(
        (str(row[0]), str(row[1])) for row in con.execute(f"DESCRIBE {query}").fetchall()
    )
    step = -(-data.num_rows // cuts) if data.num_rows else 1
    parts = []
    for start in range(0, max(1, data.num_rows), step):
        part = data.slice(start, step)
        sample = text_sample(part)
        con.register("part", part)
        if sample is not None:
            con.register("sample", sample)
        parts.append(partition_statistics(con, "part", part, columns, sample and "sample"))
    return merge_statistics(parts, columns, data.nbytes)


def test_values_are_counted_and_bounded(con: duckdb.DuckDBPyConnection) -> None:
    """Rows, nulls, distinct values and bounds are those of the data."""
    got = statistics(
        con,
        "SELECT i % 50 - 10 AS a, CASE WHEN i % 4 > 0 THEN 'v' || i % 3 END AS b, "
        "DATE '2020-01-01' + i::INTEGER AS c FROM range(60) r(i)",
    )
    assert 60 == got.rows
    a, b, c = got.columns
    counted = ColumnStatistics(0.0, 50, "-10", "39", without_nulls=True)
    assert counted == msgspec.structs.replace(a, distinct=50)
    assert 50 == pytest.approx(a.distinct, rel=0.1)
    assert ColumnStatistics(0.25, 3, "v0", "v2") == b
    assert ("2020-01-01", "2020-02-29") == (c.minimum, c.maximum)


def test_partitions_merge_to_the_statistics_of_the_whole(con: duckdb.DuckDBPyConnection) -> None:
    """Where rows lie changes nothing: sketches merge without loss."""
    query = (
        "SELECT i AS a, (i % 7)::DECIMAL(15,2) AS b, i % 100 || 'x' AS c, [i] AS d, "
        "nullif(i % 3, 0) AS e FROM range(9000) r(i)"
    )
    assert statistics(con, query) == statistics(con, query, cuts=9)


def test_whole_numbers_and_dates_are_bounded_batch_by_batch(
    con: duckdb.DuckDBPyConnection,
) -> None:
    """Each 122,880 rows; NULL where they have no value, and nothing of other columns."""
    query = (
        "SELECT i * 7 % 1000 - 500 AS a, nullif(i, 3) % 256 AS b, DATE '2020-01-01' + i::INT AS c, "
        "i::UBIGINT + 18446744073709000000 AS d, i / 2 AS e, "
        "CASE WHEN i < 122880 THEN (i % 100)::TINYINT END AS f FROM range(300000) r(i)"
    )
    con.sql(query).create_view("numbers", replace=True)
    rows = con.table("numbers").to_arrow_table()
    columns = [(name, "") for name in rows.column_names]
    con.register("part", rows)
    measured = partition_statistics(con, "part", rows, columns)
    for number, name in (*enumerate("abcd"), (5, "f")):
        bounds = batch_bounds(measured, number)
        assert bounds is not None
        expected = con.sql(
            f"SELECT min({name}) AS low, max({name}) AS high FROM "
            "(SELECT *, (row_number() OVER () - 1) // 122880 AS part FROM part) "
            "GROUP BY part ORDER BY part"
        ).to_arrow_table()
        assert expected.column("low").to_pylist() == bounds[0].to_pylist(), name
        assert expected.column("high").to_pylist() == bounds[1].to_pylist(), name
    assert batch_bounds(measured, 4) is None


@pytest.mark.parametrize(
    "value",
    [
        "[1]", "[1, 2]::INTEGER[2]", "{'a': 1}", "MAP {'a': 1}", "'{}'::JSON", "NULL",
        "'101'::BIT", "union_value(a := 1)",
    ],
)  # fmt: skip
def test_nested_and_opaque_types_are_left_out(con: duckdb.DuckDBPyConnection, value: str) -> None:
    """They have neither distinct count nor bounds, and don't disturb their neighbours."""
    got = statistics(con, f"SELECT {value} AS a, 5 AS b FROM range(3)")
    counted = ColumnStatistics(0.0, 1, "5", "5", without_nulls=True)
    assert (ColumnStatistics(), counted) == got.columns


def test_rows_of_nested_columns_alone_are_counted(con: duckdb.DuckDBPyConnection) -> None:
    """Where no column is measured, nothing is known but how many rows there are."""
    got = statistics(con, "SELECT [1] AS a, {'b': 1} AS c FROM range(3)")
    assert (3, (ColumnStatistics(), ColumnStatistics())) == (got.rows, got.columns)


@pytest.mark.parametrize(
    "value",
    [
        "true", "1.5::DOUBLE", "1::UHUGEINT", "uuid()", "now()", "'\\xAB'::BLOB", "TIME '10:00'",
        "INTERVAL 3 DAY", "'a'::ENUM('a', 'b')", "TIMESTAMP_NS '2020-01-01 00:00:00'",
    ],
)  # fmt: skip
def test_flat_types_are_measured(con: duckdb.DuckDBPyConnection, value: str) -> None:
    """Each flat type has a distinct count, and bounds that can be cast back to the type."""
    got = statistics(con, f"SELECT {value} AS a")
    assert 1 == got.columns[0].distinct
    type_name = str(con.execute(f"SELECT typeof({value})").fetchall()[0][0])
    bounds = (got.columns[0].minimum, got.columns[0].maximum)
    ((same,),) = con.execute(
        f"SELECT count(*) = 1 FROM (SELECT CAST($1 AS {type_name}) AS x "
        f"UNION SELECT CAST($2 AS {type_name}))",
        bounds,
    ).fetchall()
    assert None not in bounds
    assert same


def test_nothing_is_known_of_no_rows(con: duckdb.DuckDBPyConnection) -> None:
    """An empty table has zero distinct values, no bounds and no nulls."""
    got = statistics(con, "SELECT i, 'x' || i AS t FROM range(0) r(i)")
    empty = ColumnStatistics(0.0, 0, without_nulls=True)
    assert TableStatistics(0, got.bytes, (empty, empty)) == got


def test_all_nulls(con: duckdb.DuckDBPyConnection) -> None:
    """A column of nulls only has no distinct value."""
    got = statistics(con, "SELECT NULL::BIGINT AS a FROM range(5)")
    assert (ColumnStatistics(1.0, 0),) == got.columns


def test_text_of_a_large_table_is_sampled_and_inferred(con: duckdb.DuckDBPyConnection) -> None:
    """Few values are kept as counted, unique ones scale; bounds and rare NULLs are unknown."""
    got = statistics(
        con,
        "SELECT i % 11 AS n, 'v' || i % 9 AS few, i || 'u' AS every, "
        "CASE WHEN i % 2 = 0 THEN 'n' END AS half FROM range(400000) r(i)",
        cuts=2,
    )
    n, few, every, half = got.columns
    assert ("0", "10") == (n.minimum, n.maximum)
    assert ColumnStatistics(0.0, 9) == few
    assert every.distinct is not None
    assert 400_000 == pytest.approx(every.distinct, rel=0.2)
    assert ColumnStatistics(0.5, 1) == half


def test_a_sample_takes_every_eighth_slice_of_a_large_table_only() -> None:
    """Small tables are measured whole; of larger ones an eighth, from everywhere."""
    small, large = (pa.table({"a": range(n)}) for n in (131_072, 262_144))
    sample = text_sample(large)
    assert text_sample(small) is None
    assert sample is not None
    assert 262_144 // 8 == sample.num_rows
    assert 16_384 == sample["a"][2_048].as_py()


def test_odd_column_names_are_quoted(con: duckdb.DuckDBPyConnection) -> None:
    """Columns may be called anything, also alike but for case in different partitions' rows."""
    got = statistics(con, 'SELECT 1 AS "a ""b""", 2 AS "select", 3 AS "rows"')
    assert ("1", "2", "3") == tuple(column.minimum for column in got.columns)


def test_types_that_are_measured() -> None:
    """Lists, arrays, structs, maps, unions and opaque types are not; everything flat is."""
    names = ("BIGINT", "VARCHAR", "DECIMAL(15,2)", "STRUCT(a INTEGER)", "INTEGER[]", "JSON")
    assert [True, True, True, False, False, False] == [is_measured(name) for name in names]


@pytest.mark.parametrize(
    "values",
    [
        "-5::TINYINT, 9::TINYINT", "18446744073709551615::UBIGINT, 2::UBIGINT",
        "-0.05::DECIMAL(4, 2), 0::DECIMAL(4, 2)", "1e-20::DECIMAL(38, 30), 0::DECIMAL(38, 30)",
        "99999999999999999999999999999999999.5::DECIMAL(38, 1), -7::DECIMAL(38, 1)",
        "DATE '0044-03-15 (BC)', DATE '2020-02-29'", "DATE '12020-01-01', DATE '0001-01-01'",
        "'infinity'::DATE, '-infinity'::DATE, DATE '1970-01-01'",
        "'z', 'é', '', '\U0001f600', '\uffff'", "'NaN'::DOUBLE, '-inf'::DOUBLE, 1e300::DOUBLE",
        "true, false", "TIMESTAMP '1500-01-01 00:00:00.5', TIMESTAMP '2020-01-01'",
    ],
)  # fmt: skip
def test_bounds_are_what_duckdb_writes(con: duckdb.DuckDBPyConnection, values: str) -> None:
    """Of several partitions, some without a value."""
    query = f"SELECT unnest([{values}, NULL]) AS a"
    expected = con.execute(f"SELECT min(a)::VARCHAR, max(a)::VARCHAR FROM ({query})").fetchall()
    (column,) = statistics(con, query, cuts=4).columns
    assert expected == [(column.minimum, column.maximum)]
