"""Flight SQL with real clients: ADBC for Python, pandas and polars over it, and pyarrow."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import random
import re
import socket
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import minishark
from minishark.adapters.flight.messages import make, packed, parsed, unpacked
from minishark.adapters.flight.server import Server
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import TABLES
from minishark.errors import OptionError
from minishark.query.answers import differences
from minishark.session.served import Served
from minishark.session.session import Session

dbapi = pytest.importorskip("adbc_driver_flightsql.dbapi")

_ENDLESS = "SELECT sum(a.i * b.i % 7) AS s FROM range(1000000) a(i), range(1000000) b(i)"
_SOON_S = 10.0


@pytest.fixture(scope="module")
def session(tpch_files: dict[str, str]) -> Iterator[Session]:
    """A session with TPC-H's tables."""
    with minishark.connect(in_process=True, nodes=2) as found:
        for name, path in tpch_files.items():
            found.create_table(name, path, partition_by=TABLES.get(name))
        yield found


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Server]:
    """It, served."""
    with session.serve(port=0) as served:
        assert isinstance(served, Server)
        yield served


@contextlib.contextmanager
def _connected(served: Served, **options: str) -> Iterator[Any]:
    with dbapi.connect(served.address, db_kwargs=options, autocommit=True) as connection:
        yield connection


@pytest.fixture
def cursor(server: Server) -> Iterator[Any]:
    """A cursor of a connection of its own."""
    with _connected(server) as connection, connection.cursor() as found:
        yield found


def _rows(cursor: Any, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    cursor.execute(sql, parameters)
    return [tuple(row) for row in cursor.fetchall()]


def _fetched(client: fl.FlightClient, sql: str) -> pa.Table:
    asked = fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql))
    return client.do_get(client.get_flight_info(asked).endpoints[0].ticket).read_all()


def _read(client: fl.FlightClient, ticket: bytes) -> pa.Table:
    return client.do_get(fl.Ticket(ticket)).read_all()


def _acted(client: fl.FlightClient, name: str, body: bytes) -> list[fl.Result]:
    return list(client.do_action((name, body)))


def _eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SOON_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _running(session: Session) -> int:
    return len(session._runtime.engine.running)


# Answers


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 23))
def test_tpch(server: Server, tpch_files: dict[str, str], number: int) -> None:
    """Each TPC-H query by ADBC gives DuckDB's answer."""
    sql = load_queries((number,))[number]
    with duckdb.connect() as plain, _connected(server) as connection, connection.cursor() as cursor:
        for name, path in tpch_files.items():
            plain.execute(f"CREATE VIEW {name} AS FROM '{path}'")
        expected = plain.sql(sql).to_arrow_table()
        cursor.execute(sql)
        assert () == tuple(differences(expected, cursor.fetch_arrow_table(), ordered_by=()))


def test_values_of_all_types(cursor: Any) -> None:
    """Types arrive as DuckDB hands them to Arrow, with NULL among the values."""
    columns = {
        "true": True,
        "42::TINYINT": 42,
        "1e300": 1e300,
        "'ü\"'": 'ü"',
        "'x'::BLOB": b"x",
        "12.50::DECIMAL(9, 2)": decimal.Decimal("12.50"),
        "DATE '2024-02-29'": dt.date(2024, 2, 29),
        "TIMESTAMP '2024-02-29 12:00:00'": dt.datetime(2024, 2, 29, 12),  # noqa: DTZ001
        "TIME '12:00:01'": dt.time(12, 0, 1),
        "[1, NULL]": [1, None],
        "{'a': 1, 'b': 'c'}": {"a": 1, "b": "c"},
        "MAP {'k': 1}": [("k", 1)],
        "'a'::ENUM('a', 'b')": "a",
        "12345678901234567890123::HUGEINT": decimal.Decimal(12345678901234567890123),
        "NULL::INTEGER": None,
    }
    for table in ("", " FROM nation LIMIT 1"):
        cursor.execute(f"SELECT {', '.join(columns)}{table}")
        assert list(columns.values()) == list(cursor.fetchall()[0])


@pytest.mark.slow
def test_large_rows_come_in_messages_that_drivers_take(cursor: Any) -> None:
    """Batches are cut to less than the 16 MiB that the Go driver accepts; no row is lost."""
    cursor.execute("SELECT repeat('x', 100000) AS x, i FROM range(1000) t(i)")
    sizes, rows = [], []
    for batch in cursor.fetch_record_batch():
        sizes.append(batch.nbytes)
        rows += batch.column("i").to_pylist()
    assert max(sizes) < 8 << 20
    assert sum(sizes) > 100_000_000
    assert list(range(1000)) == sorted(rows)


def test_a_few_large_rows_among_small_ones(cursor: Any) -> None:
    """Rows that are much larger than most do not make a message that drivers refuse."""
    cursor.execute(
        "SELECT i, CASE WHEN i < 25 THEN repeat('x', 1000000) ELSE '' END AS x "
        "FROM range(20000) t(i) ORDER BY i"
    )
    rows = cursor.fetch_arrow_table()
    assert list(range(20000)) == rows.column("i").to_pylist()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 AS a, 2 AS a",
        "SELECT n_name AS a, n_nationkey AS a, n_regionkey AS a FROM nation",
        "SELECT n_name AS a, n_nationkey + 1 AS A, n_regionkey + 1 AS a FROM nation",
    ],
)
def test_columns_of_one_name(cursor: Any, sql: str) -> None:
    """Rows have the columns that were announced, also if several have one name."""
    cursor.execute(sql)
    rows = cursor.fetch_arrow_table()
    assert {"a"} == {name.lower() for name in rows.column_names}


def test_no_rows(cursor: Any) -> None:
    """An empty answer has its columns."""
    cursor.execute("SELECT n_name, n_nationkey FROM nation WHERE false")
    assert ["n_name", "n_nationkey"] == cursor.fetch_arrow_table().column_names


def test_statements_that_are_no_queries(cursor: Any) -> None:
    """DDL, writes, EXPLAIN, SHOW, PIVOT and several statements in a text all answer."""
    assert [(3,)] == _rows(cursor, "CREATE TABLE kinds AS SELECT unnest([1, 2, 2]) AS a")
    assert [(1,)] == _rows(cursor, "INSERT INTO kinds VALUES (9)")
    assert [(3,), (3,)] == _rows(cursor, "UPDATE kinds SET a = 3 WHERE a = 2 RETURNING a")
    assert "Physical plan" in _rows(cursor, "EXPLAIN FROM kinds")[0][0]
    assert ("kinds",) in _rows(cursor, "SHOW TABLES")
    assert [(1, 2, 1)] == _rows(cursor, "PIVOT kinds ON a USING count(*)")
    assert [(16,)] == _rows(cursor, "SET VARIABLE v = 1; SELECT sum(a)::BIGINT FROM kinds")
    cursor.execute("DROP TABLE kinds")


# Parameters


def test_parameters(cursor: Any) -> None:
    """Values go where `?` and `$1` stand, whatever their types; by names where they have names."""
    assert [("CANADA", 3)] == _rows(
        cursor,
        "SELECT n_name, n_nationkey FROM nation WHERE n_name = ? AND n_nationkey < ?",
        ["CANADA", 10],
    )
    day = dt.date(1995, 3, 15)
    assert [(day, None, 1.5, b"\x00", True)] == _rows(
        cursor, "SELECT $1, $2, $3, $4, $5", [day, None, 1.5, b"\x00", True]
    )
    assert [(5,)] == _rows(cursor, "SELECT $b - $a", [1, 6])  # in the order of their names


@pytest.mark.slow
def test_many_rows_of_values(cursor: Any) -> None:
    """A statement runs once for each row; rows of a query come one after another."""
    cursor.execute("CREATE TABLE many (i INTEGER, s VARCHAR)")
    cursor.executemany("INSERT INTO many VALUES (?, ?)", [(i, f"x'{i}") for i in range(20)])
    assert 20 == cursor.rowcount
    assert [(190, "x'9")] == _rows(cursor, "SELECT sum(i)::INTEGER, max(s) FROM many")
    cursor.execute("DROP TABLE many")


def test_wrong_values(cursor: Any, server: Server) -> None:
    """Too few values, or none, are told."""
    with pytest.raises(Exception, match="has 2 parameters, not 1"):
        cursor.execute("SELECT ? + ?", [1])
    with pytest.raises(Exception, match="bind their values"):
        cursor.execute("SELECT ?")
    assert [(1,)] == _rows(cursor, "SELECT 1")


def test_prepared_statements_say_what_they_take_and_give(server: Server) -> None:
    """A prepared statement has the columns of its parameters and of its rows; updates have none."""
    with fl.connect(server.address) as client:
        for sql, columns, parameters in (
            ("SELECT n_name FROM nation WHERE n_nationkey = ?", ["n_name"], ["1"]),
            ("SELECT $b + $a AS c", ["c"], ["a", "b"]),
            ("CREATE TABLE never (i INTEGER)", [], []),
            ("SHOW TABLES", ["name"], []),
        ):
            body = packed("ActionCreatePreparedStatementRequest", query=sql)
            (result,) = client.do_action(("CreatePreparedStatement", body))
            _, told = unpacked(result.body.to_pybytes())
            assert columns == pa.ipc.read_schema(pa.py_buffer(told.dataset_schema)).names
            assert parameters == pa.ipc.read_schema(pa.py_buffer(told.parameter_schema)).names
    assert "never" not in server.connections._session.tables


# Loads


@pytest.mark.sample(2)
@pytest.mark.parametrize("is_temporary", [False, True])
def test_bulk_ingestion(cursor: Any, server: Server, is_temporary: bool) -> None:
    """Rows are created, appended by the names of their columns, replaced; or refused."""
    rows = pa.table({"a": range(1000), "b": [str(i) for i in range(1000)]})
    load = {"temporary": is_temporary}
    name = f"loaded_{is_temporary}"
    assert 1000 == cursor.adbc_ingest(name, rows, mode="create", **load)
    assert 1000 == cursor.adbc_ingest(name, rows.select(["b", "a"]), mode="append", **load)
    assert [(2000, 999)] == _rows(cursor, f"SELECT count(*), max(a) FROM {name}")
    with pytest.raises(Exception, match="already"):
        cursor.adbc_ingest(name, rows, mode="create", **load)
    with pytest.raises(Exception, match="no table called"):
        cursor.adbc_ingest("missing", rows, mode="append", **load)
    assert 2 == cursor.adbc_ingest(name, rows.slice(0, 2), mode="replace", **load)
    assert [(2,)] == _rows(cursor, f"SELECT count(*) FROM {name}")
    assert (name in server.connections._session.tables) is not is_temporary
    cursor.execute(f"DROP TABLE {name}")


# The catalog


def test_what_the_server_has(cursor: Any, server: Server) -> None:
    """Tools see catalogs, schemas, tables with columns and types, and who serves."""
    connection = cursor.connection
    cursor.execute("CREATE SCHEMA IF NOT EXISTS other")
    cursor.execute("CREATE TABLE other.there (k INTEGER PRIMARY KEY, d DECIMAL(5, 1))")
    cursor.execute("CREATE VIEW seen AS SELECT n_name FROM nation")
    cursor.execute("CREATE TEMP TABLE passing AS SELECT 1 AS one")
    assert "minishark" == connection.adbc_get_info()["vendor_name"]
    assert {"TABLE", "VIEW", "LOCAL TEMPORARY"} == set(connection.adbc_get_table_types())
    found = connection.adbc_get_objects(depth="columns").read_all().to_pylist()
    kinds = {
        (catalog["catalog_name"], schema["db_schema_name"], table["table_name"]): (
            table["table_type"],
            [(c["column_name"], c["xdbc_type_name"]) for c in table["table_columns"]],
        )
        for catalog in found
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
    }
    assert ("TABLE", [("k", "INTEGER"), ("d", "DECIMAL(5,1)")]) == kinds["memory", "other", "there"]
    assert ("VIEW", [("n_name", "VARCHAR")]) == kinds["memory", "main", "seen"]
    assert "r_comment" in dict(kinds["memory", "main", "region"][1])
    assert {name for _, _, name in kinds} >= {"lineitem", "orders"}
    assert not [name for _, _, name in kinds if name.startswith(("_kept", "duckdb_", "pg_"))]
    only = connection.adbc_get_objects(depth="tables", table_name_filter="nat%").read_all()
    assert ["nation"] == [
        table["table_name"]
        for catalog in only.to_pylist()
        for schema in catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]
    ]
    assert ["n_name"] == connection.adbc_get_table_schema("seen").names
    cursor.execute("DROP VIEW seen")
    cursor.execute("DROP TABLE other.there")


@pytest.mark.parametrize(
    ("command", "columns", "rows"),
    [
        ("CommandGetCatalogs", 1, 1),
        ("CommandGetDbSchemas", 2, 1),
        ("CommandGetTables", 4, 8),
        ("CommandGetTableTypes", 1, 3),
        ("CommandGetPrimaryKeys", 6, 0),
        ("CommandGetExportedKeys", 13, 0),
        ("CommandGetImportedKeys", 13, 0),
        ("CommandGetCrossReference", 13, 0),
        ("CommandGetXdbcTypeInfo", 19, 15),
        ("CommandGetSqlInfo", 2, 80),
    ],
)
def test_catalog_calls(server: Server, command: str, columns: int, rows: int) -> None:
    """Each call of the catalog answers with the columns that it has announced."""
    with fl.connect(server.address) as client:
        asked = fl.FlightDescriptor.for_command(packed(command))
        info = client.get_flight_info(asked)
        table = client.do_get(info.endpoints[0].ticket).read_all()
        assert info.schema == table.schema == client.get_schema(asked).schema
        assert columns == table.num_columns
        assert table.num_rows >= rows
        table.validate(full=True)


@pytest.mark.slow
def test_what_database_browsers_ask(server: Server) -> None:
    """JDBC's calls in the order in which DBeaver opens a connection and a table are answered."""
    with fl.connect(server.address) as client:

        def asked(name: str, **fields: Any) -> list[dict[str, Any]]:
            info = client.get_flight_info(fl.FlightDescriptor.for_command(packed(name, **fields)))
            rows = client.do_get(info.endpoints[0].ticket).read_all()
            assert info.schema == rows.schema
            return list(rows.to_pylist())

        def fetched(sql: str) -> list[dict[str, Any]]:
            body = packed("ActionCreatePreparedStatementRequest", query=sql)
            (prepared,) = _acted(client, "CreatePreparedStatement", body)
            handle = unpacked(prepared.body.to_pybytes())[1].prepared_statement_handle
            rows = asked("CommandPreparedStatementQuery", prepared_statement_handle=handle)
            body = packed("ActionClosePreparedStatementRequest", prepared_statement_handle=handle)
            _acted(client, "ClosePreparedStatement", body)
            return rows

        fetched("CREATE TABLE browsed (id INTEGER PRIMARY KEY, name VARCHAR)")
        info = {row["info_name"]: row["value"] for row in asked("CommandGetSqlInfo")}
        assert ["minishark", '"', False] == [info[0], info[504], info[563]]
        assert {*range(500, 509), *range(513, 577)} <= set(info)
        assert "SELECT" in info[508]
        assert 562 == asked("CommandGetSqlInfo", info=[562])[0]["info_name"]
        assert {"catalog_name": "memory"} in asked("CommandGetCatalogs")
        schemas = asked("CommandGetDbSchemas", catalog="memory", db_schema_filter_pattern="%")
        assert {"catalog_name": "memory", "db_schema_name": "main"} in schemas
        kinds = [row["table_type"] for row in asked("CommandGetTableTypes")]
        assert ["LOCAL TEMPORARY", "TABLE", "VIEW"] == kinds
        place = {"catalog": "memory", "db_schema_filter_pattern": "main"}
        tables = asked("CommandGetTables", **place, table_types=["TABLE"])
        assert "browsed" in [row["table_name"] for row in tables]
        assert [] == asked("CommandGetTables", **place, table_types=["SYSTEM TABLE"])
        only = {"table_name_filter_pattern": "browsed", "include_schema": True}
        (table,) = asked("CommandGetTables", **place, **only)
        columns = pa.ipc.read_schema(pa.py_buffer(table["table_schema"]))
        assert ["id", "name"] == columns.names
        assert b"INTEGER" == columns.field(0).metadata[b"ARROW:FLIGHT:SQL:TYPE_NAME"]
        key = {"catalog": "memory", "db_schema": "main", "table": "browsed"}
        assert ["id"] == [row["column_name"] for row in asked("CommandGetPrimaryKeys", **key)]
        for name in ("CommandGetImportedKeys", "CommandGetExportedKeys"):
            assert [] == asked(name, **key)
        ends = {f"{end}_{part}": value for end in ("pk", "fk") for part, value in key.items()}
        assert [] == asked("CommandGetCrossReference", **ends)
        (integer,) = asked("CommandGetXdbcTypeInfo", data_type=4)
        assert "INTEGER" == integer["type_name"]
        assert [] == fetched('SELECT * FROM "memory"."main"."browsed"')
        fetched('DROP TABLE "memory"."main"."browsed"')


def test_primary_keys(cursor: Any, server: Server) -> None:
    """Declared keys are told, column by column."""
    cursor.execute("CREATE TABLE keyed (a INTEGER, b INTEGER, PRIMARY KEY (b, a))")
    with fl.connect(server.address) as client:
        asked = fl.FlightDescriptor.for_command(packed("CommandGetPrimaryKeys", table="keyed"))
        rows = client.do_get(client.get_flight_info(asked).endpoints[0].ticket).read_all()
    assert [("b", 1), ("a", 2)] == sorted(
        zip(*(rows.column(c).to_pylist() for c in ("column_name", "key_sequence")), strict=True),
        key=lambda pair: pair[1],
    )
    cursor.execute("DROP TABLE keyed")


@pytest.mark.slow
def test_options_of_a_connection(server: Server) -> None:
    """The schema and DuckDB's settings are options of a connection."""
    with _connected(server) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS apart")
        assert ("memory", "main") == (
            connection.adbc_current_catalog,
            connection.adbc_current_db_schema,
        )
        connection.adbc_current_db_schema = "apart"
        assert "apart" == connection.adbc_current_db_schema
        cursor.execute("CREATE OR REPLACE TABLE here AS SELECT 1 AS a")
        assert [(1,)] == _rows(cursor, "FROM apart.here")
        with pytest.raises(Exception, match="schema"):
            connection.adbc_current_db_schema = "nowhere"
        connection.adbc_connection.set_options(
            **{"adbc.flight.sql.session.option.default_null_order": "nulls_first"}
        )
        nulls = "SELECT unnest([1, NULL]) AS x ORDER BY x"
        assert [(None,), (1,)] == _rows(cursor, nulls)


# Connections


def test_connections_share_tables_and_nothing_else(server: Server) -> None:
    """One catalog; settings, temporary tables and the schema of a connection are its own."""
    with (
        _connected(server) as one,
        _connected(server) as other,
        one.cursor() as first,
        other.cursor() as second,
    ):
        first.execute("CREATE TABLE ours AS SELECT 1 AS a")
        first.execute("CREATE TEMP TABLE mine AS SELECT 2 AS a")
        first.execute("SET default_null_order = 'nulls_first'")
        first.execute("PREPARE one AS SELECT 1")
        assert [(1,)] == _rows(second, "FROM ours")
        assert [(2,)] == _rows(first, "FROM mine")
        for missing in ("FROM mine", "EXECUTE one"):
            with pytest.raises(Exception, match=r"mine|no prepared"):
                second.execute(missing)
        nulls = "SELECT unnest([1, NULL]) AS x ORDER BY x"
        assert [(None,), (1,)] == _rows(first, nulls)
        assert [(1,), (None,)] == _rows(second, nulls)
        second.execute("DROP TABLE ours")


def test_a_cached_table_is_there_once(session: Session, server: Server) -> None:
    """Two clients that read one cached DataFrame's view have its rows computed and kept once."""
    frame = session.range(1000).persist()
    frame.create_or_replace_temp_view("kept_once")
    session.sql("CREATE VIEW for_all AS FROM kept_once")
    with _connected(server) as one, _connected(server) as other:
        for connection in (one, other):
            with connection.cursor() as cursor:
                assert [(1000,)] == _rows(cursor, "SELECT count(*) FROM for_all")
        assert 1 == len(session.kept_rows())
    session.sql("DROP VIEW for_all")
    session.catalog.drop_temp_view("kept_once")
    frame.unpersist()


@pytest.mark.slow
@pytest.mark.parametrize(("connections", "queries"), [(10, 10), (50, 100)])
def test_many_connections_at_a_time(server: Server, connections: int, queries: int) -> None:
    """50 connections with 100 queries each are all answered right, and end."""

    def ask(number: int) -> int:
        with _connected(server) as connection, connection.cursor() as cursor:
            cursor.execute(f"SET VARIABLE mine = {number}")
            for i in range(queries):
                sql = f"SELECT getvariable('mine')::INTEGER, {i}"
                sql += "" if i % 20 else " FROM region WHERE r_regionkey = 0"
                assert [(number, i)] == _rows(cursor, sql)
        return number

    with ThreadPoolExecutor(connections) as threads:
        assert list(range(connections)) == list(threads.map(ask, range(connections)))
    _eventually(lambda: len(server.connections) == 0)


def test_limits(session: Session) -> None:
    """Connections and statements above the limits are refused by name; one that ends makes room."""
    with (
        session.serve(port=0, max_connections=2, max_running=2, max_running_each=1) as served,
        _connected(served) as one,
        _connected(served) as other,
        one.cursor() as first,
        other.cursor() as second,
    ):
        assert [(1,)] == _rows(first, "SELECT 1")
        assert [(1,)] == _rows(second, "SELECT 1")
        with (
            pytest.raises(Exception, match=r"2 connections, which is its limit"),
            _connected(served) as third,
            third.cursor() as cursor,
        ):
            cursor.execute("SELECT 1")
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(_rows, first, _ENDLESS)
            _eventually(lambda: _running(session) == 1)
            with one.cursor() as again, pytest.raises(Exception, match="runs 1 statements"):
                _rows(again, "SELECT count(*) FROM nation")
            first.adbc_cancel()
            with pytest.raises(Exception, match=r"(?i)cancel"):
                future.result(_SOON_S)
        other.close()
        _eventually(lambda: len(served.connections) < 2)  # type: ignore[attr-defined]
        with _connected(served) as third, third.cursor() as cursor:
            assert [(1,)] == _rows(cursor, "SELECT 1")


@pytest.mark.slow
def test_idle_connections_end(session: Session) -> None:
    """A connection that nobody uses ends; what comes after begins anew."""
    with (
        session.serve(port=0, idle_s=0.2) as served,
        _connected(served) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("CREATE TEMP TABLE mine AS SELECT 1")
        _eventually(lambda: len(served.connections) == 0)  # type: ignore[attr-defined]
        with pytest.raises(Exception, match="mine does not exist"):
            cursor.execute("FROM mine")


# Cancelling, and clients that are gone


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "sql",
    [
        _ENDLESS,
        "SELECT sum(l_quantity * a.i % 3) FROM lineitem, range(10000000) a(i)",
        f"CREATE TEMP TABLE never AS {_ENDLESS}",
        "SELECT sum(a.i * b.i % 7), nextval('s') FROM range(1000000) a(i), range(1000000) b(i)",
    ],
    ids=["query", "tables", "write", "front-end"],
)
def test_cancelling(server: Server, session: Session, sql: str) -> None:
    """A client that cancels hears so within a second, and nothing runs on."""
    with _connected(server) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE IF NOT EXISTS s")
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(_rows, cursor, sql)
            _eventually(lambda: any(c.is_busy for c in server.connections._by_key.values()))
            time.sleep(0.3)
            assert not future.done()
            began_s = time.monotonic()
            cursor.adbc_cancel()
            with pytest.raises(Exception, match=r"(?i)cancel"):
                future.result(_SOON_S)
            _eventually(lambda: not any(c.is_busy for c in server.connections._by_key.values()))
            assert time.monotonic() - began_s < 5  # 1 s on a machine with nothing else to do
        _eventually(lambda: _running(session) == 0)
        with connection.cursor() as again:
            assert [(1,)] == _rows(again, "SELECT 1")


@pytest.mark.parametrize("action", ["CancelFlightInfo", "CancelQuery"])
def test_cancelling_by_a_message(server: Server, action: str) -> None:
    """Both actions of Flight SQL cancel a statement that another call waits for."""
    with fl.connect(server.address) as client, ThreadPoolExecutor(1) as threads:
        asked = fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query=_ENDLESS))
        info = client.get_flight_info(asked)
        future = threads.submit(lambda: client.do_get(info.endpoints[0].ticket).read_all())
        _eventually(lambda: any(c.is_busy for c in server.connections._by_key.values()))
        message = parsed("FlightInfo", info.serialize())
        if action == "CancelQuery":
            body = packed("ActionCancelQueryRequest", info=message.SerializeToString())
            (result,) = client.do_action((action, body))
            assert 1 == unpacked(result.body.to_pybytes())[1].result
        else:
            body = make("CancelFlightInfoRequest", info=message).SerializeToString()
            (result,) = client.do_action((action, body))
            assert 1 == parsed("CancelFlightInfoResult", result.body.to_pybytes()).status
        with pytest.raises(fl.FlightCancelledError):
            future.result(_SOON_S)
        (again,) = client.do_action((action, body))
        assert again.body.to_pybytes() != result.body.to_pybytes()  # there is nothing to cancel


class _Relay:
    """Passes bytes on between a client and a server, until it is cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)

    def cut(self) -> None:
        """Reset all connections, as of a client that was killed."""
        self._listener.close()
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.mark.slow
@pytest.mark.parametrize("sql", [_ENDLESS, "SELECT repeat('x', 1000) FROM range(200000)"])
def test_clients_that_vanish(server: Server, session: Session, sql: str) -> None:
    """What nobody waits for any more is cancelled, and the connection ends with all it held."""
    relay = _Relay(server.port)
    client = fl.connect(relay.address)
    asked = fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql))
    info = client.get_flight_info(asked)

    def read() -> None:
        with contextlib.suppress(pa.ArrowException):
            reader = client.do_get(info.endpoints[0].ticket)
            reader.read_chunk()
            relay.cut()
            reader.read_all()

    thread = threading.Thread(target=read)
    thread.start()
    _eventually(lambda: any(c.is_busy for c in server.connections._by_key.values()))
    if sql == _ENDLESS:
        time.sleep(0.2)
        relay.cut()
    thread.join(_SOON_S)
    _eventually(lambda: not any(c.is_busy for c in server.connections._by_key.values()))
    _eventually(lambda: _running(session) == 0)
    _eventually(lambda: len(server.connections) == 0)
    client.close()


@pytest.mark.slow
def test_memory_after_many_clients_have_vanished(session: Session) -> None:
    """Memory is back where it was after many clients, each gone in the middle of its rows."""

    def vanish() -> None:
        relay = _Relay(served.port)
        sql = "SELECT repeat('x', 1000) FROM range(50000)"
        with contextlib.suppress(pa.ArrowException):
            client = fl.connect(relay.address)
            command = packed("CommandStatementQuery", query=sql)
            info = client.get_flight_info(fl.FlightDescriptor.for_command(command))
            client.do_get(info.endpoints[0].ticket).read_chunk()
            relay.cut()
            client.close()
        relay.cut()

    with session.serve(port=0) as served:
        for _ in range(20):
            vanish()
        before = psutil.Process().memory_info().rss
        for _ in range(60):
            vanish()
        _eventually(lambda: len(served.connections) == 0)  # type: ignore[attr-defined]
        assert psutil.Process().memory_info().rss - before < 60 << 20
    assert 0 == _running(session)


@pytest.mark.slow
def test_memory_after_many_results(session: Session) -> None:
    """1,000 results, read to the end or left, leave the memory of server and client as it was."""

    def ask(number: int) -> None:
        with connection.cursor() as cursor:
            table = "lineitem" if number % 2 else "lineitem WHERE l_quantity > 1"
            cursor.execute(f"SELECT l_orderkey, l_comment, {number} AS n FROM {table} LIMIT 20000")
            if number % 5:
                assert cursor.fetch_arrow_table().num_rows == 20000
            else:
                cursor.fetchone()

    with session.serve(port=0) as served, _connected(served) as connection:
        for i in range(300):  # until what libraries keep is there
            ask(i)
        before = psutil.Process().memory_full_info().uss
        for i in range(1000):  # of 1.5 MB each
            ask(i)
        assert psutil.Process().memory_full_info().uss - before < 100 << 20
        assert 1 == len(served.connections)  # type: ignore[attr-defined]
    _eventually(lambda: _running(session) == 0)


# Nonsense


@pytest.mark.slow
def test_nonsense_is_refused(server: Server) -> None:
    """1,000 malformed commands, tickets, actions and TCP streams are errors; the server goes on."""
    noise = random.Random(7)
    good = packed("CommandStatementQuery", query="SELECT 1")
    actions = ("CreatePreparedStatement", "CancelQuery", "SetSessionOptions", "x")
    refused = []
    with fl.connect(server.address) as client:
        for i in range(250):
            data = bytearray(good if i % 2 else noise.randbytes(noise.randrange(40)))
            for _ in range(noise.randrange(4)):
                if data:
                    data[noise.randrange(len(data))] = noise.randrange(256)
            sent = bytes(data)
            for call in (
                partial(client.get_flight_info, fl.FlightDescriptor.for_command(sent)),
                partial(_read, client, sent),
                partial(_acted, client, actions[i % 4], sent),
            ):
                try:
                    call()
                except pa.ArrowException as error:
                    refused.append(str(error))
    assert [] == [text for text in refused if "Traceback" in text or "mistake of its own" in text]
    assert len(refused) > 500
    for _ in range(250):
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + noise.randbytes(noise.randrange(200)))
    with _connected(server) as connection, connection.cursor() as cursor:
        assert [(1,)] == _rows(cursor, "SELECT 1")
    _eventually(lambda: len(server.connections) == 0)


def test_errors_have_our_message_and_a_code(cursor: Any) -> None:
    """Clients learn what is wrong and of which kind it is, and never see a traceback."""
    for sql, code, message in (
        ("SELECT * FROM nope", "INVALID_ARGUMENT", "Table with name nope does not exist"),
        ("SELEC 1", "INVALID_ARGUMENT", "syntax error"),
        ("DROP TABLE nope", "NOT_FOUND", "There is no table called 'nope'"),
        ("CREATE TABLE nation (a INTEGER)", "INVALID_ARGUMENT", "already exists"),
        ("SELECT 'a'::INTEGER FROM nation", "INVALID_ARGUMENT", "Could not convert string"),
        ("SET GLOBAL integer_division = true", "NOT_IMPLEMENTED", "other sessions"),
        ("SET threads = 1", "NOT_IMPLEMENTED", "minishark chooses this setting"),
    ):
        with pytest.raises(Exception, match=re.escape(message)) as caught:
            _rows(cursor, sql)
        assert str(caught.value).startswith(code)
        assert "Traceback" not in str(caught.value)
        assert ".py" not in str(caught.value)


def test_what_is_not_there_is_refused_by_name(server: Server) -> None:
    """Transactions without a warehouse, savepoints and Substrait plans are refused, not ignored."""
    with fl.connect(server.address) as client:
        with pytest.raises(pa.ArrowNotImplementedError, match="warehouse"):
            list(client.do_action(("BeginTransaction", packed("ActionBeginTransactionRequest"))))
        with pytest.raises(pa.ArrowNotImplementedError, match="no savepoints"):
            list(client.do_action(("BeginSavepoint", packed("ActionBeginSavepointRequest"))))
        for command, error, message in (
            (packed("CommandStatementSubstraitPlan"), pa.ArrowNotImplementedError, "Substrait"),
            (
                packed("CommandStatementQuery", query="SELECT 1", transaction_id=b"x"),
                pa.ArrowKeyError,
                "no such transaction",
            ),
        ):
            with pytest.raises(error, match=message):
                client.get_flight_info(fl.FlightDescriptor.for_command(command))
        with pytest.raises(pa.ArrowNotImplementedError, match="not paths"):
            client.get_flight_info(fl.FlightDescriptor.for_path("a"))
        assert "CancelFlightInfo" in [action.type for action in client.list_actions()]


def test_rows_are_fetched_once(server: Server) -> None:
    """A ticket holds for one reader, of its own connection."""
    with fl.connect(server.address) as client, fl.connect(server.address) as other:
        asked = fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query="SELECT 1"))
        ticket = client.get_flight_info(asked).endpoints[0].ticket
        with pytest.raises(pa.ArrowKeyError, match="no such result"):
            other.do_get(ticket)
        assert 1 == client.do_get(ticket).read_all().num_rows
        with pytest.raises(pa.ArrowKeyError, match="Run the statement again"):
            client.do_get(ticket)


# A warehouse


@pytest.mark.slow
def test_a_warehouse(tmp_path: Path) -> None:
    """Clients share its tables and have a schema of their own."""
    pytest.importorskip("pyiceberg")
    with (
        minishark.connect(in_process=True, nodes=1, warehouse=tmp_path / "warehouse") as root,
        root.serve(port=0) as served,
        _connected(served) as one,
        _connected(served) as other,
        one.cursor() as first,
        other.cursor() as second,
    ):
        first.execute("CREATE SCHEMA warehouse.lab")
        first.execute("CREATE TABLE lab.kept AS SELECT range AS i FROM range(10)")
        second.execute("INSERT INTO lab.kept VALUES (100)")
        first.execute("USE lab")
        assert [(11, 145)] == _rows(first, "SELECT count(*), sum(i)::INTEGER FROM kept")
        with pytest.raises(Exception, match="kept does not exist"):
            second.execute("FROM kept")
        rows = pa.table({"i": [1, 2]})
        place = {"catalog_name": "warehouse", "db_schema_name": "lab"}
        assert 2 == second.adbc_ingest("sent", rows, mode="create", **place)
        assert [(11,)] == _rows(second, "CACHE TABLE lab.kept")
        assert [(2,)] == _rows(second, "SELECT count(*) FROM lab.sent")
        found = other.adbc_get_objects(depth="tables", catalog_filter="warehouse").read_all()
        assert {("lab", "kept"), ("lab", "sent")} == {
            (schema["db_schema_name"], table["table_name"])
            for catalog in found.to_pylist()
            for schema in catalog["catalog_db_schemas"]
            for table in schema["db_schema_tables"]
        }


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Server]:
    """A server with a warehouse that has the tables lab.t and lab.u with a row each."""
    pytest.importorskip("pyiceberg")
    with (
        minishark.connect(in_process=True, nodes=1, warehouse=tmp_path / "warehouse") as root,
        root.serve(port=0) as served,
    ):
        root.sql("CREATE SCHEMA warehouse.lab")
        root.sql("CREATE TABLE lab.t AS SELECT 1 AS a")
        root.sql("CREATE TABLE lab.u AS SELECT 1 AS a")
        assert isinstance(served, Server)
        yield served


@pytest.mark.slow
def test_transactions(durable: Server) -> None:
    """Others see what a transaction has changed once it is committed, and never what is undone."""
    with (
        dbapi.connect(durable.address) as one,  # which begins a transaction at once
        _connected(durable) as other,
        one.cursor() as first,
        other.cursor() as second,
    ):
        assert [(1,)] == _rows(first, "FROM lab.t")
        assert [(1,)] == _rows(first, "INSERT INTO lab.t VALUES (2)")
        first.executemany("INSERT INTO lab.t VALUES (?)", [(3,), (4,)])
        first.adbc_ingest("t", pa.table({"a": pa.array([5], pa.int32())}), mode="append", **_LAB)
        assert [(5, 15)] == _rows(first, "SELECT count(*), sum(a)::INTEGER FROM lab.t")
        for reader in (second, durable.connections._session):
            assert [(1,)] == _seen(reader, "FROM lab.t")
        one.commit()
        assert [(5,)] == _rows(second, "SELECT count(*) FROM lab.t")
        first.execute("DELETE FROM lab.t")
        assert [] == _rows(first, "FROM lab.t")
        one.rollback()
        assert [(5,)] == _rows(first, "SELECT count(*) FROM lab.t")
        # What no transaction can hold is committed at once while there is nothing to commit.
        first.execute("CREATE TABLE in_memory AS SELECT 7 AS a")
        first.execute("CREATE TABLE lab.w (a INTEGER)")
        one.rollback()
        assert [(7,)] == _rows(second, "FROM in_memory")
        assert [] == _rows(second, "FROM lab.w")


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("INSERT INTO lab.u VALUES (2)", "can't be part of this one"),
        ("CREATE TABLE lab.v AS SELECT 1 AS a", "can't be part of a transaction"),
        ("INSERT INTO lab.t VALUES ('x')", "Could not convert"),
        ("SELECT error('told') FROM lab.t", "told"),
        ("SELEC 1", "syntax error"),
    ],
)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_aborted_transactions(durable: Server, sql: str, said: str, ends: str) -> None:
    """An error aborts the transaction of its connection: COMMIT ends it as ROLLBACK does."""
    with dbapi.connect(durable.address) as one, one.cursor() as first:
        first.execute("INSERT INTO lab.t VALUES (2)")
        with pytest.raises(Exception, match=said):
            _rows(first, sql)
        for refused in ("INSERT INTO lab.t VALUES (3)", "FROM lab.t"):
            with pytest.raises(Exception, match="transaction is aborted"):
                _rows(first, refused)
        getattr(one, ends)()
        assert [(1,)] == _rows(first, "FROM lab.t")
        first.execute("INSERT INTO lab.t VALUES (4)")
        one.commit()
        assert [(1,), (4,)] == _rows(first, "FROM lab.t ORDER BY a")


_LAB = {"catalog_name": "warehouse", "db_schema_name": "lab"}


def _seen(reader: Any, sql: str) -> list[tuple[Any, ...]]:
    if isinstance(reader, Session):
        return [tuple(row) for row in reader.sql(sql).collect()]
    return _rows(reader, sql)


@pytest.mark.slow
def test_temporary_definitions_beside_a_warehouse(durable: Server) -> None:
    """Temporary views and macros are a connection's own, also if there is a warehouse."""
    with (
        _connected(durable) as one,
        _connected(durable) as other,
        one.cursor() as first,
        other.cursor() as second,
    ):
        first.execute("CREATE TEMP MACRO mine() AS 1")
        first.execute("CREATE TEMP VIEW seen AS FROM lab.t")
        assert [(1, 1)] == _rows(first, "SELECT mine(), a FROM seen")
        for sql in ("SELECT mine()", "FROM seen"):
            with pytest.raises(Exception, match="does not exist"):
                _rows(second, sql)


@pytest.mark.slow
def test_transactions_that_conflict(durable: Server) -> None:
    """Of two that change the same rows, the second is told at COMMIT and has changed nothing."""
    with (
        dbapi.connect(durable.address) as one,
        dbapi.connect(durable.address) as other,
        one.cursor() as first,
        other.cursor() as second,
    ):
        first.execute("UPDATE lab.t SET a = 10")
        second.execute("UPDATE lab.t SET a = 20")
        assert [(20,)] == _rows(second, "FROM lab.t")
        one.commit()
        with pytest.raises(dbapi.OperationalError, match="changed"):
            other.commit()
        assert [(10,)] == _rows(second, "FROM lab.t")


@pytest.mark.slow
def test_transactions_of_clients_that_are_gone(durable: Server, tmp_path: Path) -> None:
    """They are rolled back, and the files that they have written are removed."""
    before = set(tmp_path.rglob("*.parquet"))
    connection = dbapi.connect(durable.address)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO lab.t SELECT range FROM range(1000)")
    assert set(tmp_path.rglob("*.parquet")) != before
    connection.close()
    _eventually(lambda: set(tmp_path.rglob("*.parquet")) == before)
    with _connected(durable) as other, other.cursor() as cursor:
        assert [(1,)] == _rows(cursor, "SELECT count(*) FROM lab.t")


@pytest.mark.slow
def test_transactions_by_messages(durable: Server) -> None:
    """A connection has one transaction; a statement that names another is refused."""
    with fl.connect(durable.address) as client, fl.connect(durable.address) as other:

        def begun(by: fl.FlightClient) -> bytes:
            (result,) = _acted(by, "BeginTransaction", packed("ActionBeginTransactionRequest"))
            handle: bytes = unpacked(result.body.to_pybytes())[1].transaction_id
            return handle

        def ended(by: fl.FlightClient, handle: bytes, action: int) -> None:
            fields = {"transaction_id": handle, "action": action}
            _acted(by, "EndTransaction", packed("ActionEndTransactionRequest", **fields))

        def asked(by: fl.FlightClient, sql: str, **fields: bytes) -> fl.FlightInfo:
            command = packed("CommandStatementQuery", query=sql, **fields)
            return by.get_flight_info(fl.FlightDescriptor.for_command(command))

        handle = begun(client)
        with pytest.raises(pa.ArrowInvalid, match="transaction already"):
            begun(client)
        with pytest.raises(pa.ArrowInvalid, match="aborted"):
            asked(client, "FROM lab.t", transaction_id=handle)
        ended(client, handle, 2)
        handle = begun(client)
        asked(client, "INSERT INTO lab.t VALUES (2)", transaction_id=handle)
        asked(client, "INSERT INTO lab.t VALUES (3)")  # drivers send no id with some statements
        assert 1 == _fetched(other, "FROM lab.t").num_rows
        for wrong in (handle, b"x"):
            with pytest.raises(pa.ArrowKeyError, match="no such transaction"):
                asked(other, "SELECT 1", transaction_id=wrong)
            with pytest.raises(pa.ArrowKeyError, match="no such transaction"):
                ended(other, wrong, 1)
        with pytest.raises(pa.ArrowInvalid, match="commit"):
            ended(client, handle, 3)
        ended(client, handle, 1)
        with pytest.raises(pa.ArrowKeyError, match="no such transaction"):
            ended(client, handle, 1)
        assert 3 == _fetched(other, "FROM lab.t").num_rows


# Who may ask

_TOKEN = "a-token-that-nobody-guesses"
_DENIED = "does not know this token"


@pytest.fixture(scope="module")
def guarded(session: Session) -> Iterator[Served]:
    """A server with a token and a user."""
    with session.serve(port=0, token=_TOKEN, users={"ann": "s3cret"}) as served:
        yield served


@pytest.mark.parametrize(
    "options",
    [
        {"adbc.flight.sql.authorization_header": f"Bearer {_TOKEN}"},
        {"username": "ann", "password": "s3cret"},
        {"username": "token", "password": _TOKEN},
    ],
)
def test_tokens_and_passwords(guarded: Served, options: dict[str, str]) -> None:
    """The token passes, as does a user with a password, and the token in the password's place."""
    with _connected(guarded, **options) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE mine AS SELECT 1 AS a")
        assert [(1,)] == _rows(cursor, "FROM mine")


def test_others_are_refused(guarded: Served) -> None:
    """Without a token, or with a wrong one or odd headers, no call is answered."""
    noise = random.Random(3)
    with fl.connect(guarded.address) as client:
        headers = [
            b"",
            b"Bearer",
            b"Bearer x",
            b"Basic",
            b"Basic !!",
            b"Basic YW5u",
            b"Basic YW5uOng=",
        ]
        headers += [b"Bearer " + noise.randbytes(20).hex().encode() for _ in range(3)]
        for header in headers:
            options = fl.FlightCallOptions(headers=[(b"authorization", header)] if header else [])
            with pytest.raises(fl.FlightUnauthenticatedError, match=f"{_DENIED}|asks for a token"):
                list(client.list_actions(options))
        for user, password in (("ann", "x"), ("bob", "s3cret"), ("", "")):
            with pytest.raises(fl.FlightUnauthenticatedError):
                client.authenticate_basic_token(user, password)
        pair = client.authenticate_basic_token("ann", "s3cret")
        assert list(client.list_actions(fl.FlightCallOptions(headers=[pair])))
    assert 0 == len(guarded.connections)  # type: ignore[attr-defined]


def test_other_machines_need_both(session: Session) -> None:
    """A server that others reach does not start without TLS and a token or password."""
    for options in ({}, {"token": _TOKEN}):
        with pytest.raises(OptionError, match="a certificate with its key"):
            session.serve(host="0.0.0.0", port=0, **options)
    with pytest.raises(OptionError, match="no address"):
        session.serve(host="no host", port=0)
    with session.serve(port=0) as served, pytest.raises(OptionError, match="already in use"):
        session.serve(port=served.port)
    with pytest.raises(OptionError, match="must be positive"):
        session.serve(port=0, max_connections=0)


# Other libraries


@pytest.mark.slow
def test_pandas_and_polars(server: Server) -> None:
    """Both read and write over ADBC."""
    with warnings.catch_warnings(), _connected(server) as connection:
        warnings.simplefilter("ignore")
        sql = "SELECT n_name, n_nationkey FROM nation ORDER BY 2"
        read = pd.read_sql(sql, connection)
        assert ("ALGERIA", 0) == tuple(read.iloc[0])
        read.to_sql("from_pandas", connection, index=False, if_exists="replace")
        assert 25 == len(pd.read_sql("SELECT * FROM from_pandas", connection))
        frame = pl.read_database(sql, connection)
        assert (25, 2) == frame.shape
        frame.write_database("from_polars", connection, engine="adbc", if_table_exists="replace")
        assert (25, 2) == pl.read_database("FROM from_polars", connection).shape
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE from_pandas")
            cursor.execute("DROP TABLE from_polars")


def test_a_stopped_server(session: Session) -> None:
    """Stopping ends what runs and all connections, within its limit; stopping twice is fine."""
    served = session.serve(port=0)
    with fl.connect(served.address) as client, ThreadPoolExecutor(1) as threads:
        future = threads.submit(_fetched, client, _ENDLESS)
        _eventually(lambda: _running(session) == 1)
        served.stop()
        served.stop()
        assert served.wait(0)
        assert isinstance(future.exception(_SOON_S), fl.FlightCancelledError)
        with pytest.raises(fl.FlightUnavailableError):
            _fetched(client, "SELECT 1")
    _eventually(lambda: _running(session) == 0)
    assert session.is_open


def test_servers_end_with_their_session() -> None:
    """A session that stops serves no longer."""
    with minishark.connect(in_process=True, nodes=1) as root:
        served = root.serve(port=0)
        with fl.connect(served.address) as client:
            assert 1 == _fetched(client, "SELECT 1").num_rows
            root.stop()
            with pytest.raises(fl.FlightUnavailableError):
                _fetched(client, "SELECT 1")
    assert served.wait(0)
