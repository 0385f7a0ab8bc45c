"""The tokens of SQL texts, whatever characters these have, and edits of the texts."""

from __future__ import annotations

import re

import duckdb
import pytest

from minishark.compiler.sql.changes import text_value
from minishark.compiler.sql.statements import Query, Show, parse_statements, rewritten
from minishark.compiler.sql.tokens import (
    Cursor,
    Edit,
    edited,
    find_calls,
    mentioned,
    names_in,
    split_arguments,
    sql_tokens,
    syntax_tree,
    without_comments,
)

_TEXTS = [
    'SELECT \'ä\', "ö€"."𝄞" /* ü */, $$ß$$, t.größe -- ж\nFROM 😀.x WHERE a <> ?1 AND b = $név',
    '  WITH é AS (SELECT 1) INSERT INTO "t""ü" BY NAME FROM é;',
    "SELECT [{'ключ': 1}][1], E'\\'日本', x'00', a->>'$.ü', 1.5e3",
    "",
]


@pytest.mark.parametrize("sql", _TEXTS)
def test_tokens_stand_where_they_say(sql: str) -> None:
    """Each is a piece of the text, and between them are only spaces and comments."""
    tokens = sql_tokens(sql)
    assert [token.text for token in tokens] == [sql[token.first : token.last] for token in tokens]
    left = edited(sql, [Edit(token.first, token.last, "") for token in tokens])
    assert "" == without_comments(left)


def test_the_depth_of_tokens() -> None:
    """Brackets and CASEs are ended by what ends them; a field called end ends nothing."""
    sql = "f(CASE WHEN a.end THEN (b) END, [c]), CASE d END, (CASE e), g"
    depths = {token.text: token.depth for token in sql_tokens(sql) if token.is_name}
    expected = {"a": 2, "b": 3, "c": 2, "d": 1, "e": 2, "f": 0, "g": 0}
    assert expected == {name: depths[name] for name in expected}
    assert ["f(CASE WHEN a.end THEN (b) END, [c])", "CASE d END", "(CASE e)", "g"] == (
        split_arguments(sql)
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ('FROM a . "B ""c""".d AS e', [("FROM",), ("a", 'B "c"', "d"), ("AS",), ("e",)]),
        ("t.*, 't', größe.ü(1)", [("t",), ("größe", "ü")]),
        ("a$b.c[1].d", [("a$b", "c"), ("d",)]),
    ],
)
def test_names(sql: str, expected: list[tuple[str, ...]]) -> None:
    """All parts of a name are one, in quotes or not; places are those of the whole."""
    found = list(names_in(sql_tokens(sql)))
    assert expected == [name.path for name in found]
    for name in found:
        assert [each.path for each in names_in(sql_tokens(sql[name.first : name.last]))] == [
            name.path
        ]


def test_calls() -> None:
    """Outermost calls only, wherever their brackets end."""
    sql = "SELECT 'f(', F ( 1, '€)', f(2)) AS \"f(\", g(f(3)) -- f(4)"
    found = list(find_calls(sql, {"f"}))
    assert [("F ( 1, '€)', f(2))", " 1, '€)', f(2)"), ("f(3)", "3")] == [
        (sql[call.first : call.last], call.arguments) for call in found
    ]
    assert ["AS", ")"] == [sql_tokens(sql)[call.after].text for call in found]


def test_phrases_are_looked_for_outside_of_brackets() -> None:
    """All words of one follow each other; without any, all is left of the text."""
    cursor = Cursor("a ON b (ON CONFLICT DO) ON CONFLICT (c) RETURNING d;")
    assert "a ON b (ON CONFLICT DO)" == cursor.until("RETURNING", "ON CONFLICT (")
    assert "ON CONFLICT (c)" == cursor.until("RETURNING")
    assert not cursor.skip_to("WHERE")
    assert "RETURNING d" == cursor.until("WHERE")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a -- ü\n + b", "a + b"),
        ("a/* + */b", "a b"),
        ("'-- ä' || /* ö */ c", "'-- ä' || c"),
    ],
)
def test_texts_without_comments(sql: str, expected: str) -> None:
    assert expected == without_comments(sql)


def test_names_that_a_text_mentions() -> None:
    """As words, whatever their case, in quotes if need be; not as parts of other words."""
    names = ["Items", "item", "my table", 'a"b', "größe"]
    sql = 'FROM ITEMS, "my table", "a""b" WHERE query(\'Größe\')'
    assert ["Items", "my table", 'a"b', "größe"] == mentioned(sql, names)


def test_syntax_trees_count_characters() -> None:
    """A node's text is where the tree says, after characters of several bytes."""
    sql = "SELECT 'ä€😀', größe + 1 FROM \"ö\".t"
    with duckdb.connect() as con:
        ((text,),) = con.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
    node = syntax_tree(text, sql)["statements"][0]["node"]
    places = [each["query_location"] for each in (node["select_list"][0], node["from_table"])]
    assert [sql.index("'ä"), sql.index('"ö"')] == places


@pytest.mark.parametrize(
    ("text", "value"), [("'it''s'", "it's"), ('"a""b"', 'a"b'), ("1.5", "1.5"), ("''", "")]
)
def test_values(text: str, value: str) -> None:
    assert value == text_value(text)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t SELECT a FROM u RETURNING a",
        "CREATE OR REPLACE TABLE t AS FROM u",
        "CREATE VIEW v AS SELECT a FROM u",
        "COPY (FROM u) TO 'x.csv' (HEADER)",
        "SET VARIABLE x = (SELECT max(a) FROM u)",
        "CREATE TYPE mood AS ENUM (SELECT a FROM u)",
        "EXPLAIN SELECT a FROM u",
        "DESCRIBE FROM u",
        "WITH c AS (FROM u) DELETE FROM t USING c",
        "SELECT nextval('s') FROM u",
        "PIVOT u ON a",
        "PREPARE p AS SELECT a FROM u",
    ],
)
def test_a_rewritten_statement_is_the_one_that_its_text_is(text: str) -> None:
    """All that was read from the old text is read from the new one."""

    def renamed(sql: str) -> str:
        return re.sub(r"\bu\b", '"ü v"', sql)

    with duckdb.connect() as con:
        (old,) = parse_statements(con, text)
        (expected,) = parse_statements(con, renamed(text))
    assert expected == rewritten(old, renamed(old.sql))
    assert old is rewritten(old, old.sql)


def test_a_rewritten_query_may_be_of_another_kind() -> None:
    """Arguments of EXECUTE are SQL: they may ask for the catalog."""
    assert Query("SELECT 2") == rewritten(Query("SELECT ?"), "SELECT 2")
    sql = "SELECT (current_schema())"
    assert Show(sql, is_show=False) == rewritten(Query("SELECT ?"), sql)
