from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from minishark.compiler.sql.statements import (
    AlterTable,
    CacheTable,
    ChangeRows,
    Comment,
    CopyFrom,
    CopyTo,
    CreateEnum,
    CreateIndex,
    CreateSchema,
    CreateTable,
    CreateTableAs,
    Deallocate,
    Definition,
    DropSchema,
    DropTable,
    Execute,
    Explain,
    FrontEndCommand,
    FrontEndQuery,
    ParsedStatement,
    Prepare,
    Query,
    Setting,
    SetVariable,
    Show,
    Target,
    Transaction,
    Use,
    Vacuum,
    Write,
    parse_statements,
    rewritten,
)
from minishark.compiler.sql.tokens import SqlText, fill_parameters, without_comments_around
from minishark.errors import QueryError, UnsupportedError


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """What parses."""
    with duckdb.connect() as connection:
        yield connection


def parsed(con: duckdb.DuckDBPyConnection, text: str) -> ParsedStatement:
    """The one statement in a text."""
    (statement,) = parse_statements(con, text)
    return statement


def test_duckdbs_catalog_views(con: duckdb.DuckDBPyConnection) -> None:
    """All that DuckDB has; a new version may bring more."""
    views = con.sql("SELECT view_name FROM duckdb_views() WHERE schema_name = 'pg_catalog'")
    for (name,) in views.fetchall():
        assert isinstance(parsed(con, f"FROM {name}"), Show), name


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SELECT 1", Query),
        ("FROM items", Query),
        ("WITH q AS (SELECT 1) FROM q", Query),
        ("VALUES (1), (2)", Query),
        ("SELECT ';'", Query),
        ("SHOW TABLES", Show),
        ("DESCRIBE items", Show),
        ("-- a comment\nSHOW TABLES", Show),
        ("SELECT * FROM duckdb_tables()", Show),
        ("PRAGMA version", Show),
        ("SELECT * FROM duckdb_tables", Show),
        ("SELECT key FROM (DESCRIBE SELECT 1 AS a)", Show),
        ("SELECT key FROM (\n desc SELECT 1 AS a)", Show),
        ("DESC items", Show),
        ("SELECT a FROM items ORDER BY a DESC", Query),
        ("-- first\n-- second\nSELECT * FROM duckdb_tables", Show),
        ("SELECT pg_/**/class FROM information_schema/**/.tables", Show),
        ("SELECT nextval('s')", FrontEndQuery),
        ("WITH c AS (DELETE FROM items RETURNING a) FROM c", ChangeRows),
        ("WITH c AS (SELECT 1) INSERT INTO items FROM c", ChangeRows),
        ("COMMENT ON TABLE items IS 'some'", Comment),
        ("ALTER TABLE items ADD COLUMN c INTEGER DEFAULT nextval('s')", AlterTable),
        ("CREATE TABLE x AS PIVOT items ON a USING sum(b)", CreateTableAs),
        ("SELECT current_setting('TimeZone')", Show),
        ("SELECT pg_typeof(a) FROM items", Query),
        ("SELECT pg_orders.pg_id FROM pg_orders", Query),
        ("SELECT pg_get_expr(a, 1) FROM items", Show),
        ("FROM read_csv('x.csv', store_rejects = true)", FrontEndQuery),
        ("SET threads = 1", Setting),
        ("SET VARIABLE x = 1", SetVariable),
        ("CREATE TYPE mood AS ENUM ('a', 'b')", Definition),
        ("CREATE TYPE mood AS ENUM (SELECT a FROM items)", CreateEnum),
        ("SET search_path = 'a,b'", FrontEndCommand),
        ("USE other", Use),
        ("ATTACH ':memory:' AS other", FrontEndCommand),
        ("CREATE SCHEMA other", CreateSchema),
        ("DROP SCHEMA other", DropSchema),
        ("CREATE SEQUENCE s", FrontEndCommand),
        ("CREATE OR REPLACE SECURE VIEW v AS SELECT 1", Definition),
        ("ALTER VIEW v RENAME TO w", Definition),
        ("RESET threads", Setting),
        ("CREATE TABLE x (a INTEGER)", CreateTable),
        ("CREATE OR REPLACE TABLE x AS SELECT 1", CreateTableAs),
        ("/* a comment */ CREATE TEMP TABLE x AS SELECT 1", CreateTableAs),
        ("CREATE INDEX i ON items (a)", CreateIndex),
        ("DROP TABLE items", DropTable),
        ("INSERT INTO items VALUES (1, 2)", ChangeRows),
        ("UPDATE items SET a = 1", ChangeRows),
        ("DELETE FROM items", ChangeRows),
        ("ALTER TABLE items RENAME a TO b", AlterTable),
        ("COPY items FROM 'x.csv'", CopyFrom),
        ("COPY items TO 'x.parquet'", CopyTo),
        ("COPY (SELECT 1) TO 'x.parquet'", CopyTo),
        ("CREATE VIEW v AS SELECT 1", Definition),
        ("CREATE MACRO f(a) AS a + 1", Definition),
        ("CREATE TYPE mood AS ENUM ('happy')", Definition),
        ("DROP VIEW v", Definition),
        ("PREPARE p AS SELECT 1", Prepare),
        ("EXECUTE p(1)", Execute),
        ("DEALLOCATE p", Deallocate),
    ],
)
def test_kinds(con: duckdb.DuckDBPyConnection, text: str, kind: type[ParsedStatement]) -> None:
    """A statement's type says what a session does with it; its text stays as it is."""
    found = parsed(con, text)
    assert kind is type(found)
    assert text.endswith(found.sql)  # DuckDB drops comments before it
    assert kind is type(rewritten(found, f"{found.sql} "))


@pytest.mark.parametrize(
    ("text", "sql", "analyze"),
    [
        ("EXPLAIN SELECT 1", "SELECT 1", False),
        ("explain analyze SELECT 1;", "SELECT 1", True),
        ("EXPLAIN\nSELECT 1", "SELECT 1", False),
        ("-- why\nEXPLAIN SELECT 1", "SELECT 1", False),
    ],
)
def test_explain(con: duckdb.DuckDBPyConnection, text: str, sql: str, analyze: bool) -> None:
    """The query is taken out of its EXPLAIN."""
    assert Explain(sql, analyze) == parsed(con, text)


def test_several_statements(con: duckdb.DuckDBPyConnection) -> None:
    """Each statement of a text comes without its semicolon; one inside text is none."""
    found = parse_statements(con, " SELECT ';' ; \n SELECT 2;; ")
    assert ["SELECT ';'", "SELECT 2"] == [statement.sql for statement in found]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT '\udc80'", "no valid Unicode"),
        ("SELEC 1", "syntax error at or near"),
        ("SELECT 'open", "unterminated"),
        ("", "There is no statement"),
        ("-- nothing", "There is no statement"),
    ],
)
def test_what_does_not_parse(con: duckdb.DuckDBPyConnection, text: str, message: str) -> None:
    """The message is DuckDB's, or says that there is nothing."""
    with pytest.raises(QueryError, match=message):
        parse_statements(con, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TRIGGER r AFTER INSERT ON a FOR EACH STATEMENT DELETE FROM b", "CREATE TRIGGER"),
        ("CREATE EXTERNAL RESOURCE 'a' AS b", "statements of this kind"),
        ("LOAD 'parquet'", "LOAD statements: only the extensions"),
        ("EXPORT DATABASE 'x'", "EXPORT statements: write tables with"),
        ("VACUUM ANALYZE", "Statistics are measured when tables are written"),
        ("EXPLAIN (FORMAT json) SELECT 1", "without options"),
        ("EXPLAIN CREATE TABLE x (a INTEGER)", "shows how queries"),
    ],
)
def test_unsupported(con: duckdb.DuckDBPyConnection, text: str, message: str) -> None:
    """What minishark does not run is refused by its name, with what to do instead."""
    with pytest.raises(UnsupportedError, match=message):
        parse_statements(con, text)


@pytest.mark.parametrize(
    ("sql", "values", "expected"),
    [
        ("SELECT ?, ?", [1, "it's"], (1, "it's")),
        ("SELECT $2, $1, $2", [1, 2], (2, 1, 2)),
        ("SELECT $a, $b", {"a": None, "b": True}, (None, True)),
        ("SELECT '?', ?", [1], ("?", 1)),
        ("SELECT 1 -- ?\n, ?", [2], (1, 2)),
        ('SELECT ? AS "?"', [1], (1,)),
        ("SELECT 5-?", [-3], (8,)),
        ("SELECT ?", [SqlText("1 + 1")], (2,)),
        ('/* ü */ SELECT \'ö\', ?, "€" FROM (SELECT $2 AS "€")', [1, 2], ("ö", 1, 2)),
    ],
)
def test_parameters(sql: str, values: object, expected: tuple[object, ...]) -> None:
    """Values take the place of parameters, and only of those."""
    with duckdb.connect() as con:
        assert [expected] == con.execute(fill_parameters(sql, values)).fetchall()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sql", "values", "message"),
    [
        ("SELECT ?, ?", [1], "Parameter 2 has no value"),
        ("SELECT $a", {"b": 1}, "Parameter a has no value"),
        ("SELECT ?", [1, 2], "no parameter for the value of 2"),
        ("SELECT 1", {"x": 1}, "no parameter for the value of x"),
    ],
)
def test_parameters_that_do_not_fit(sql: str, values: object, message: str) -> None:
    """A value too few or too many is an error."""
    with pytest.raises(QueryError, match=message):
        fill_parameters(sql, values)  # type: ignore[arg-type]


def test_prepared_statements(con: duckdb.DuckDBPyConnection) -> None:
    """A PREPARE has a name and a statement, an EXECUTE a name and arguments."""
    found = parsed(con, "-- x\nPREPARE P AS SELECT ?")
    assert isinstance(found, Prepare)
    assert ("p", "SELECT ?") == (found.name, found.statement)
    assert arguments(con, "EXECUTE p(1, f(2, 'a,b'))") == ["1", "f(2, 'a,b')"]
    assert arguments(con, "EXECUTE p(a := 1)") == {"a": "1"}
    assert arguments(con, "EXECUTE p") == []
    assert Deallocate("DEALLOCATE PREPARE p", "p") == parsed(con, "DEALLOCATE PREPARE p")


def arguments(con: duckdb.DuckDBPyConnection, text: str) -> object:
    """The arguments of an EXECUTE of `p`."""
    found = parsed(con, text)
    assert isinstance(found, Execute)
    assert "p" == found.name
    return found.arguments


def test_copied_query(con: duckdb.DuckDBPyConnection) -> None:
    """A COPY has a query, or a table that is one, and a destination with its options."""
    found = parsed(con, "COPY (SELECT 1 AS \"to\" -- TO\n) TO 'x.csv' (HEADER)")
    assert isinstance(found, CopyTo)
    assert "'x.csv' (HEADER)" == found.destination
    assert found.query.startswith('SELECT 1 AS "to"')
    for text, query in (
        ("COPY items TO 'x'", "FROM items"),
        ("COPY items (a, b) TO 'x'", "SELECT a, b FROM items"),
    ):
        assert CopyTo(text, query, "'x'") == parsed(con, text)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("INSERT OR REPLACE INTO Items VALUES (1)", Target("Items", is_main=True)),
        ("INSERT INTO main.items BY NAME SELECT 1 AS a", Target("items", is_main=True)),
        ("UPDATE memory.main.items SET a = 1", Target("items", is_main=True)),
        ('DELETE FROM other."my ""items"""', Target('my "items"', is_main=False)),
        ("TRUNCATE TABLE items", Target("items", is_main=True)),
        ("MERGE INTO items USING x ON a = b WHEN MATCHED THEN DELETE", Target("items", True)),
        ("ALTER TABLE IF EXISTS items RENAME a TO b", Target("items", is_main=True)),
        ("COPY items FROM 'x.csv'", Target("items", is_main=True)),
        ("DROP TABLE IF EXISTS items", Target("items", is_main=True)),
        ("CREATE UNIQUE INDEX IF NOT EXISTS i ON items (a)", Target("items", is_main=True)),
        ("CREATE TEMP TABLE IF NOT EXISTS x.items (a INT)", Target("items", is_main=False)),
        ("CREATE TABLE items AS SELECT 1", Target("items", is_main=True)),
        ("WITH x AS (SELECT 1) INSERT INTO items FROM x", Target("items", is_main=True)),
        ("DROP INDEX i", None),
    ],
)
def test_targets(con: duckdb.DuckDBPyConnection, text: str, target: Target | None) -> None:
    """The table that a statement writes, where it stands at the beginning."""
    found = parsed(con, text)
    assert isinstance(found, Write)
    if target is None:
        assert found.target is None
        return
    assert found.target is not None
    assert (target.name, target.is_main) == (found.target.name, found.target.is_main)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("INSERT INTO a.b.c VALUES (1)", ("a", "b", "c")),
        ('DELETE FROM "A b".c', ("A b", "c")),
        ("CREATE TABLE a.b (c INTEGER) PARTITIONED BY (c)", ("a", "b")),
        ("DROP TABLE IF EXISTS a", ("a",)),
    ],
)
def test_targets_with_their_whole_names(
    con: duckdb.DuckDBPyConnection, text: str, path: tuple[str, ...]
) -> None:
    found = parsed(con, text)
    assert isinstance(found, Write)
    assert found.target is not None
    assert path == found.target.path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BEGIN", Transaction("BEGIN", "BEGIN")),
        ("START TRANSACTION;", Transaction("START TRANSACTION", "BEGIN")),
        ("END", Transaction("END", "COMMIT")),
        ("ABORT", Transaction("ABORT", "ROLLBACK")),
        ("VACUUM", Vacuum("VACUUM", ())),
        ("VACUUM a.b.c", Vacuum("VACUUM a.b.c", ("a", "b", "c"))),
        ("cache table a.b;", CacheTable("cache table a.b", ("a", "b"), True, False)),
        (
            'UNCACHE TABLE IF EXISTS "x y"',
            CacheTable('UNCACHE TABLE IF EXISTS "x y"', ("x y",), False, True),
        ),
    ],
)
def test_statements_about_durable_tables(
    con: duckdb.DuckDBPyConnection, text: str, expected: ParsedStatement
) -> None:
    assert parsed(con, text) == expected


def test_what_follows_a_cached_table_is_an_error(con: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(QueryError, match="and nothing after it"):
        parsed(con, "CACHE TABLE t; SELECT 1")


def test_created_and_dropped_tables(con: duckdb.DuckDBPyConnection) -> None:
    """What takes rows of a query; what takes none, or may do nothing, is another statement."""
    found = parsed(con, "CREATE OR REPLACE TEMP TABLE t AS\nSELECT 1")
    assert isinstance(found, CreateTableAs)
    assert ("SELECT 1", True) == (found.query, found.replaces)
    for text in (
        "CREATE TABLE t AS SELECT 1 WITH NO DATA",
        "CREATE TABLE IF NOT EXISTS t AS FROM u",
    ):
        assert CreateTable is type(parsed(con, text))
    for text, missing_ok in (("DROP TABLE t", False), ("drop table if exists t", True)):
        dropped = parsed(con, text)
        assert isinstance(dropped, DropTable)
        assert missing_ok == dropped.missing_ok


@pytest.mark.parametrize(
    ("text", "is_reserved"),
    [
        ("SET threads = 1", True),
        ("SET GLOBAL memory_limit = '1GB'", True),
        ("RESET threads", True),
        ("SET TimeZone = 'threads'", False),
    ],
)
def test_reserved_settings(con: duckdb.DuckDBPyConnection, text: str, is_reserved: bool) -> None:
    """What minishark chooses itself, by the name of the setting."""
    assert Setting(text, is_reserved) == parsed(con, text)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("-- it's\n\n--\n SELECT 1\n -- done", "SELECT 1"),
        ("SELECT '\n-- a' FROM '\n-- a.csv'", "SELECT '\n-- a' FROM '\n-- a.csv'"),
        ("SELECT $$\n-- a$$", "SELECT $$\n-- a$$"),
        ("SELECT 1 /*\n-- */", "SELECT 1 /*\n-- */"),
        ("-- only\n-- comments", ""),
    ],
)
def test_comments_around_a_statement(sql: str, expected: str) -> None:
    """What looks like a comment but may end a constant stays."""
    assert expected == without_comments_around(sql)
