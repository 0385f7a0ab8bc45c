from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from minishark.compiler.sql.statements import (
    ParsedStatement,
    SqlText,
    StatementKind,
    copied_query_and_target,
    executed_name_and_values,
    fill_parameters,
    parse_statements,
    prepared_name_and_statement,
)
from minishark.errors import QueryError, UnsupportedError

KIND = StatementKind


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """What parses."""
    with duckdb.connect() as connection:
        yield connection


def parsed(con: duckdb.DuckDBPyConnection, text: str) -> ParsedStatement:
    """The one statement in a text."""
    (statement,) = parse_statements(con, text)
    return statement


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("SELECT 1", KIND.QUERY),
        ("FROM items", KIND.QUERY),
        ("WITH q AS (SELECT 1) FROM q", KIND.QUERY),
        ("VALUES (1), (2)", KIND.QUERY),
        ("SELECT ';'", KIND.QUERY),
        ("SHOW TABLES", KIND.SHOW),
        ("DESCRIBE items", KIND.SHOW),
        ("-- a comment\nSHOW TABLES", KIND.SHOW),
        ("SELECT * FROM duckdb_tables()", KIND.SHOW),
        ("PRAGMA version", KIND.SHOW),
        ("SELECT * FROM duckdb_tables", KIND.SHOW),
        ("SELECT key FROM (DESCRIBE SELECT 1 AS a)", KIND.SHOW),
        ("SELECT key FROM (\n desc SELECT 1 AS a)", KIND.SHOW),
        ("DESC items", KIND.SHOW),
        ("SELECT a FROM items ORDER BY a DESC", KIND.QUERY),
        ("-- first\n-- second\nSELECT * FROM duckdb_tables", KIND.SHOW),
        ("SELECT pg_/**/class FROM information_schema/**/.tables", KIND.SHOW),
        ("SELECT nextval('s')", KIND.HERE),
        ("WITH c AS (DELETE FROM items RETURNING a) FROM c", KIND.WRITE),
        ("COMMENT ON TABLE items IS 'some'", KIND.OWN),
        ("ALTER TABLE items ADD COLUMN c INTEGER DEFAULT nextval('s')", KIND.WRITE),
        ("CREATE TABLE x AS PIVOT items ON a USING sum(b)", KIND.WRITE),
        ("SELECT current_setting('TimeZone')", KIND.SHOW),
        ("SELECT pg_typeof(a) FROM items", KIND.QUERY),
        ("FROM read_csv('x.csv', store_rejects = true)", KIND.HERE),
        ("SET threads = 1", KIND.SETTING),
        ("SET VARIABLE x = 1", KIND.VARIABLE),
        ("CREATE TYPE mood AS ENUM ('a', 'b')", KIND.DEFINITION),
        ("CREATE TYPE mood AS ENUM (SELECT a FROM items)", KIND.ENUM),
        ("SET search_path = 'a,b'", KIND.OWN),
        ("USE other", KIND.OWN),
        ("ATTACH ':memory:' AS other", KIND.OWN),
        ("CREATE SCHEMA other", KIND.OWN),
        ("DROP SCHEMA other", KIND.OWN),
        ("CREATE SEQUENCE s", KIND.OWN),
        ("CREATE OR REPLACE SECURE VIEW v AS SELECT 1", KIND.DEFINITION),
        ("ALTER VIEW v RENAME TO w", KIND.DEFINITION),
        ("RESET threads", KIND.SETTING),
        ("CREATE TABLE x (a INTEGER)", KIND.WRITE),
        ("CREATE OR REPLACE TABLE x AS SELECT 1", KIND.WRITE),
        ("/* a comment */ CREATE TEMP TABLE x AS SELECT 1", KIND.WRITE),
        ("CREATE INDEX i ON items (a)", KIND.WRITE),
        ("DROP TABLE items", KIND.WRITE),
        ("INSERT INTO items VALUES (1, 2)", KIND.WRITE),
        ("UPDATE items SET a = 1", KIND.WRITE),
        ("DELETE FROM items", KIND.WRITE),
        ("ALTER TABLE items RENAME a TO b", KIND.WRITE),
        ("COPY items FROM 'x.csv'", KIND.WRITE),
        ("COPY items TO 'x.parquet'", KIND.COPY_OUT),
        ("COPY (SELECT 1) TO 'x.parquet'", KIND.COPY_OUT),
        ("CREATE VIEW v AS SELECT 1", KIND.DEFINITION),
        ("CREATE MACRO f(a) AS a + 1", KIND.DEFINITION),
        ("CREATE TYPE mood AS ENUM ('happy')", KIND.DEFINITION),
        ("DROP VIEW v", KIND.DEFINITION),
        ("PREPARE p AS SELECT 1", KIND.PREPARE),
        ("EXECUTE p(1)", KIND.EXECUTE),
        ("DEALLOCATE p", KIND.DEALLOCATE),
    ],
)
def test_kinds(con: duckdb.DuckDBPyConnection, text: str, kind: StatementKind) -> None:
    """A statement's kind says what a session does with it; its text stays as it is."""
    found = parsed(con, text)
    assert kind is found.kind
    assert text.endswith(found.sql)  # DuckDB drops comments before it


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
    assert ParsedStatement(KIND.EXPLAIN, sql, analyze) == parsed(con, text)


def test_several_statements(con: duckdb.DuckDBPyConnection) -> None:
    """Each statement of a text comes without its semicolon; one inside text is none."""
    found = parse_statements(con, " SELECT ';' ; \n SELECT 2;; ")
    assert ["SELECT ';'", "SELECT 2"] == [statement.sql for statement in found]


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
        ("BEGIN", "TRANSACTION statements: each statement is"),
        ("LOAD 'parquet'", "LOAD statements: only the extensions"),
        ("EXPORT DATABASE 'x'", "EXPORT statements: write tables with"),
        ("VACUUM", "VACUUM statements: statistics are measured"),
        ("EXPLAIN (FORMAT json) SELECT 1", "without options"),
        ("EXPLAIN CREATE TABLE x (a INTEGER)", "shows how queries run"),
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


def test_prepared_statements() -> None:
    """A PREPARE has a name and a statement, an EXECUTE a name and arguments."""
    assert ("p", "SELECT ?") == prepared_name_and_statement("-- x\nPREPARE P AS SELECT ?")
    assert ("p", ["1", "f(2, 'a,b')"]) == executed_name_and_values("EXECUTE p(1, f(2, 'a,b'))")
    assert ("p", {"a": "1"}) == executed_name_and_values("EXECUTE p(a := 1)")
    assert ("p", []) == executed_name_and_values("DEALLOCATE p")


def test_copied_query() -> None:
    """A COPY has a query, or a table that is one, and a target with its options."""
    sql = "COPY (SELECT 1 AS \"to\" -- TO\n) TO 'x.csv' (HEADER)"
    query, target = copied_query_and_target(sql)
    assert ("'x.csv' (HEADER)", True) == (target, query.startswith('SELECT 1 AS "to"'))
    assert ("FROM items", "'x'") == copied_query_and_target("COPY items TO 'x'")
