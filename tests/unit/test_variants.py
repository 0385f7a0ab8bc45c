"""VARIANT columns in Python: the values that DuckDB's own client gives."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import duckdb
import pytest

from minishark.adapters.dbapi import _python_rows
from minishark.dataframe.row import rows_of

VALUES = (
    "NULL", "true", "false", "1::UTINYINT", "-1::TINYINT", "300", "-70000", "5000000000",
    "1::UBIGINT", "1::HUGEINT", "1.5::FLOAT", "-2.25::DOUBLE", "1.50::DECIMAL(4, 2)",
    "-12345678901.25::DECIMAL(15, 2)", "12345678901234567890.5::DECIMAL(38, 5)",
    "DATE '1969-12-30'", "TIMESTAMP '1969-12-31 23:59:59.25'", "TIME '01:02:03.000004'",
    "TIMESTAMP_NS '2024-01-01 00:00:00.123456'", "'abc'::BLOB", "''", "'é'", "repeat('a', 300)",
    "'00000000-0000-0000-0000-000000000001'::UUID", "[]", "[1, NULL, 'x'::VARIANT]",
    "{'b': 1, 'a': {'c': [true]}}", "'{}'::JSON", "range(70000)", "[range(300), 'y'::VARIANT]",
    "'{\"z\": 1, \"y\": [null, 2.5]}'::JSON", "map {'k': 1}",
)  # fmt: skip


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database."""
    with duckdb.connect() as connection:
        yield connection


@pytest.mark.parametrize(
    "value",
    [pytest.param(each, marks=[pytest.mark.slow] * ("70000)" in each)) for each in VALUES],
)
def test_it_is_duckdbs_value(con: duckdb.DuckDBPyConnection, value: str) -> None:
    """Of each type that Parquet's encoding has; the DB-API gives the same."""
    sql = f"SELECT ({value})::VARIANT AS v"
    ((expected,),) = con.execute(sql).fetchall()
    table = con.execute(sql).to_arrow_table()
    (row,) = rows_of(table)
    ((same,),) = _python_rows(table, ["VARIANT"])
    assert (row.v, same, type(row.v)) == (expected, expected, type(expected))


def test_it_may_be_nested(con: duckdb.DuckDBPyConnection) -> None:
    """In structs, lists and maps, where the others of their values are as ever."""
    sql = "SELECT {'a': 1::VARIANT, 'b': [2::VARIANT, 'x'::VARIANT]} AS s, map {'k': 3::VARIANT} m"
    table = con.execute(sql).to_arrow_table()
    (row,) = rows_of(table)
    assert (row.s.a, row.s.b, row.m) == (1, [2, "x"], {"k": 3})
    assert [*_python_rows(table, ["STRUCT", "MAP"])] == con.execute(sql).fetchall()


def test_times_with_a_zone_are_utc(con: duckdb.DuckDBPyConnection) -> None:
    """As the encoding has them."""
    sql = "SELECT (TIMESTAMPTZ '2024-01-01 02:00:00+02')::VARIANT AS v"
    (row,) = rows_of(con.execute(sql).to_arrow_table())
    assert row.v == datetime(2024, 1, 1, tzinfo=UTC)
