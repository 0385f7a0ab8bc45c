"""Small tables with everything that makes SQL go wrong: nulls, duplicates, skew, odd values."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pyarrow as pa

from minishark.session.session import Session


@dataclass(frozen=True)
class ToyTable:
    """A table: how DuckDB makes it, and how a session spreads it."""

    name: str
    select: str
    partition_by: str | None = None
    partitions: int | None = None


TOY_TABLES = (
    ToyTable(
        "t",
        """
        SELECT i::INTEGER AS id,
            CASE WHEN i % 7 <> 3 THEN (i * 5 % 11)::INTEGER END AS k,
            CASE WHEN i % 9 <> 0 THEN (i % 13) * 0.5 END::DOUBLE AS v,
            CASE WHEN i % 8 <> 1 THEN 'name' || (i % 6) END AS s,
            DATE '2020-01-31' + (i * 3 % 50)::INTEGER AS d,
            CASE WHEN i % 10 <> 4 THEN (i * 7 % 100) / 4 END::DECIMAL(12, 2) AS m,
            CASE WHEN i % 5 <> 2 THEN i % 2 = 0 END AS b
        FROM range(60) r(i)
        """,
        "id",
        3,
    ),
    ToyTable(
        "u",
        """
        SELECT i::INTEGER AS id,
            CASE WHEN i % 6 <> 5 THEN (i % 9)::INTEGER END AS k,
            'u' || (i % 4) AS name,
            (i * i % 17)::BIGINT AS w
        FROM range(40) r(i)
        """,
        "k",
        3,
    ),
    ToyTable("r", "SELECT i::INTEGER AS k, 'label ' || i AS label FROM range(2, 8) r(i)"),
    ToyTable("nn", "SELECT i::INTEGER AS k FROM range(0, 20, 2) r(i)", "k", 3),
    ToyTable("e", "SELECT 1::INTEGER AS a, 'x' AS b, 1.5::DECIMAL(9, 2) AS c LIMIT 0", "a", 3),
    ToyTable("one", "SELECT 7::INTEGER AS a, 'only' AS b", "a", 3),
    ToyTable(
        "nulls",
        "SELECT i::INTEGER AS id, NULL::INTEGER AS a, NULL::VARCHAR AS b, NULL::DOUBLE AS c "
        "FROM range(9) r(i)",
        "a",
        3,
    ),
    ToyTable(
        "skew",
        "SELECT i::INTEGER AS id, (CASE WHEN i % 10 < 8 THEN 1 ELSE i % 23 END)::INTEGER AS k, "
        "(i * 31 % 1009)::BIGINT AS x FROM range(3000) r(i)",
        "k",
        8,
    ),
    ToyTable(
        "f",
        """
        SELECT * FROM (VALUES (1, 'nan'::DOUBLE, 'nan'::FLOAT), (2, 'inf', 'inf'),
            (3, '-inf', '-inf'), (4, -0.0, -0.0), (5, 0.0, 0.0), (6, NULL, NULL),
            (7, 1e308, 3e38), (8, 5e-324, 1e-45), (9, 0.1, 0.1), (10, 'nan', 'nan'), (11, 0.1, 0.1)
        ) v(id, x, y)
        """,
        "x",
        3,
    ),
    ToyTable(
        "kinds",
        """
        SELECT i::INTEGER AS id,
            (i::HUGEINT * 12345678901234567890123456789 - 5) AS h,
            (i::DECIMAL(38, 0) * 1234567890123456789012345678)::DECIMAL(38, 0) AS big,
            (i / 7)::DECIMAL(38, 10) AS fine,
            (i * 1000)::UBIGINT AS ub,
            TIMESTAMP '2021-03-04 05:06:07.000008' + to_hours(i * 13) AS ts,
            TIMESTAMPTZ '2021-03-04 05:06:07+00' + to_hours(i * 5) AS tz,
            TIME '01:02:03' + to_minutes(i) AS tm,
            to_days((i % 4)::INTEGER) + to_months((i % 3)::INTEGER) AS iv,
            ('00000000-0000-0000-0000-' || lpad((i % 5)::VARCHAR, 12, '0'))::UUID AS uid,
            ('b' || i % 3)::BLOB AS bl,
            CASE WHEN i % 4 <> 3 THEN [i % 3, NULL, i] END::BIGINT[] AS li,
            CASE WHEN i % 5 <> 4 THEN {'p': i % 3, 'q': 'q' || i} END
                ::STRUCT(p INTEGER, q VARCHAR) AS st,
            MAP {'a': i % 2, 'b': i}::MAP(VARCHAR, BIGINT) AS mp,
            [i, i + 1]::INTEGER[2] AS arr
        FROM range(20) r(i)
        """,
        "id",
        3,
    ),
    ToyTable(
        'Odd "Name"',
        """
        SELECT i AS "select", 'é' || chr(128512) || i AS "日本 語", i % 3 AS "a""b",
            CASE WHEN i > 2 THEN 'it''s\n' || i END AS "x;--"
        FROM range(12) r(i)
        """,
        'a"b',
        3,
    ),
    ToyTable(
        "events",
        """
        SELECT i::INTEGER AS id, 'user' || (i * 7 % 10) AS who,
            TIMESTAMP '2024-01-01' + to_minutes(i * 17) AS at, (i * 13 % 29)::INTEGER AS n
        FROM range(80) r(i)
        """,
        None,
        3,
    ),
)


def quoted(name: str) -> str:
    """A table's name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


def toy_database() -> duckdb.DuckDBPyConnection:
    """All toy tables in plain DuckDB."""
    connection = duckdb.connect()
    for table in TOY_TABLES:
        connection.execute(f"CREATE TABLE {quoted(table.name)} AS {table.select}")
    return connection


def lossless(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    """A query's answer as Arrow that keeps all of DuckDB's types."""
    connection.execute("SET arrow_lossless_conversion = true")
    try:
        return connection.sql(sql).to_arrow_table()
    finally:
        connection.execute("RESET arrow_lossless_conversion")


def load_toy_tables(session: Session) -> None:
    """All toy tables in a session."""
    with toy_database() as connection:
        for table in TOY_TABLES:
            session.create_table(
                table.name,
                lossless(connection, f"FROM {quoted(table.name)}"),
                partition_by=table.partition_by,
                partitions=table.partitions,
            )
