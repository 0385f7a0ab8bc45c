"""Where statements name tables of the warehouse; here these are all of schema `s`, and `t`."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from minishark.compiler.sql.tokens import syntax_tree
from minishark.tables.warehouse.contract import TableName
from minishark.tables.warehouse.names import At, parts, references, renamed, token_references


def _found(path: tuple[str, ...], at: At | None) -> str | None:
    return "W." + ".".join(path) if path[0].lower() == "s" or path == ("t",) else None


def _syntax(sql: str) -> Any:
    ((tree,),) = duckdb.connect().execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
    return syntax_tree(tree, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO m SELECT 'from s.t, s.t', 'it''s, s.t', $$ join s.t $$, $x$ from s.t $x$",
        'INSERT INTO m SELECT "from s.t" /* from s.t */ -- , s.t',
        "DELETE FROM m WHERE b IN (SELECT s.c, s.d FROM q AS s WHERE s.c IS DISTINCT FROM s.d)",
        "UPDATE m SET a = extract(year FROM s.t), b = s.c, c = s.d WHERE trim(x FROM s.t) = 'a'",
        "WITH t AS (SELECT 1) PIVOT t ON a",
        "SELECT [1, s.t], (2, s.t) FROM range(3), s.t(1)",
        "MERGE INTO m USING x AS s ON a = s.b WHEN MATCHED THEN UPDATE SET x = 1, y = s.q",
    ],
)
def test_what_is_no_table_stays(sql: str) -> None:
    assert renamed(sql, token_references(sql), _found) == sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO m FROM s.t LIMIT 3", 'INSERT INTO m FROM "W.s.t" AS "t" LIMIT 3'),
        (
            'DELETE FROM m USING s.t AS x, s."a.b" y, S . u WHERE x.a = 1',
            'DELETE FROM m USING "W.s.t" AS x, "W.s.a.b" y, "W.S.u" AS "u" WHERE x.a = 1',
        ),
        ("PIVOT t ON a, s.b USING sum(c)", 'PIVOT "W.t" AS "t" ON a, s.b USING sum(c)'),
        (
            "FROM m JOIN s.größe ON m.x = 'ä', s.u",
            'FROM m JOIN "W.s.größe" AS "größe" ON m.x = \'ä\', "W.s.u" AS "u"',
        ),
        ("SUMMARIZE s.t", 'SUMMARIZE "W.s.t"'),
        ("FROM (PIVOT s.t ON a)", 'FROM (PIVOT "W.s.t" AS "t" ON a)'),
    ],
)
def test_tables_of_statements_that_are_no_queries(sql: str, expected: str) -> None:
    assert renamed(sql, token_references(sql), _found) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("WITH t AS (FROM t) FROM t", 'WITH t AS (FROM "W.t" AS "t") FROM t'),
        ("WITH T AS (SELECT 1), u AS (FROM t) FROM u, t", None),
        ("WITH u AS (FROM t), t AS (SELECT 1) FROM u, t", 'WITH u AS (FROM "W.t" AS "t"), t AS'),
        ("FROM (WITH t AS (SELECT 1) FROM t) q, t", 'FROM (WITH t AS (SELECT 1) FROM t) q, "W.t"'),
        ("WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL FROM t) FROM t", None),
        ("WITH t AS (SELECT 1) SELECT * FROM x WHERE EXISTS (FROM t)", None),
        ("SELECT 'from t', t.a FROM x AS t", None),
    ],
)
def test_common_table_expressions_shadow_tables_where_they_are_known(
    sql: str, expected: str | None
) -> None:
    new = renamed(sql, references(sql, _syntax), _found)
    assert new == sql if expected is None else new.startswith(expected)


@pytest.mark.parametrize("table", ["t", "a.b", 'a"b', "größe", "two words", "v@1", "9", "SELECT x"])
def test_names_mean_one_table_only(table: str) -> None:
    name = TableName("s.x", table)
    assert parts(str(name)) == ("warehouse", "s.x", table)
    assert str(TableName("s", f"x.{table}")) != str(name)
