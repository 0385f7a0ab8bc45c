from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest

from minishark.model.expressions import (
    AggregateCall,
    Call,
    Case,
    Cast,
    ColumnRef,
    Expression,
    Infix,
    InList,
    IsNull,
    Literal,
    Prefix,
    SortKey,
    children,
    quote,
    quote_text,
    references,
    render,
    render_aggregate,
    render_sort_keys,
    transform,
)

A, B, C = ColumnRef(0, "INTEGER"), ColumnRef(1, "INTEGER"), ColumnRef(2, "VARCHAR")
ONE, TWO = Literal("1", "INTEGER", 1), Literal("2", "INTEGER", 2)
NAMES = ("t.a", "t.b", "t.c")
RENDERED: list[tuple[Expression, str]] = [
    (A, "t.a"),
    (Literal("DATE '2020-01-01'", "DATE"), "DATE '2020-01-01'"),
    (Call("substring", (C, ONE, TWO), "VARCHAR"), '"substring"(t.c, 1, 2)'),
    (Call("pi", (), "DOUBLE"), '"pi"()'),
    (Infix("+", (A, B), "INTEGER"), "(t.a + t.b)"),
    (Infix("AND", (A, B, ONE), "BOOLEAN"), "(t.a AND t.b AND 1)"),
    (Infix("~~", (C, Literal("'x%'", "VARCHAR")), "BOOLEAN"), "(t.c ~~ 'x%')"),
    (Prefix("NOT", A, "BOOLEAN"), "(NOT t.a)"),
    (Prefix("-", Prefix("-", A, "INTEGER"), "INTEGER"), "(- (- t.a))"),
    (IsNull(A, negated=False), "(t.a IS NULL)"),
    (IsNull(A, negated=True), "(t.a IS NOT NULL)"),
    (InList(A, (ONE, TWO), negated=False), "(t.a IN (1, 2))"),
    (InList(A, (B,), negated=True), "(t.a NOT IN (t.b))"),
    (Cast(A, "DECIMAL(9,2)"), "CAST(t.a AS DECIMAL(9,2))"),
    (Cast(C, "DATE", lenient=True), "TRY_CAST(t.c AS DATE)"),
    (
        Case(((A, ONE), (B, TWO)), C, "INTEGER"),
        "(CASE WHEN t.a THEN 1 WHEN t.b THEN 2 ELSE t.c END)",
    ),
]
DEEP = Case(
    ((InList(A, (B, ONE), negated=False), Call("f", (C, Cast(A, "BIGINT")), "BIGINT")),),
    Infix("+", (Prefix("-", B, "INTEGER"), A), "INTEGER"),
    "BIGINT",
)


@pytest.mark.parametrize(("expression", "sql"), RENDERED, ids=lambda value: str(value)[:30])
def test_render(expression: Expression, sql: str) -> None:
    """Each kind of expression has one form in SQL, with parentheses where it needs them."""
    assert sql == render(expression, NAMES)


@pytest.mark.parametrize(("expression", "_sql"), RENDERED, ids=lambda value: str(value)[:30])
def test_transform_by_nothing_changes_nothing(expression: Expression, _sql: str) -> None:
    """Putting each reference in its own place gives an equal expression."""
    assert expression == transform(expression, lambda reference: reference)


def test_rendering_keeps_the_tree() -> None:
    """DuckDB computes what the tree says, whatever the precedence of its operators."""
    product = Infix("*", (Infix("+", (ONE, TWO), "INTEGER"), Infix("-", (ONE, TWO), "INTEGER")), "")
    assert [(-3,)] == duckdb.execute(f"SELECT {render(product, ())}").fetchall()


def test_references_come_left_to_right_with_repetitions() -> None:
    """All column references of a tree are found, in the order in which SQL writes them."""
    assert [A, B, C, A, B, A] == list(references(DEEP))


def test_children_are_direct_parts() -> None:
    """A CASE has its branches and its last value as children, a reference has none."""
    assert (DEEP.branches[0][0], DEEP.branches[0][1], DEEP.otherwise) == children(DEEP)
    assert () == children(A)
    assert (A, B, ONE) == children(InList(A, (B, ONE), negated=False))


def test_transform_reaches_every_reference() -> None:
    """Moving all references by ten moves every one of them, and nothing else."""
    moved = transform(DEEP, lambda reference: replace(reference, index=reference.index + 10))
    assert [10, 11, 12, 10, 11, 10] == [reference.index for reference in references(moved)]
    back = transform(moved, lambda reference: replace(reference, index=reference.index - 10))
    assert DEEP == back


def test_transform_can_put_expressions_in_place_of_columns() -> None:
    """A reference may become anything."""
    assert "(1 + t.b)" == render(
        transform(Infix("+", (A, B), "INTEGER"), lambda r: ONE if r == A else r), NAMES
    )


@pytest.mark.parametrize("name", ["plain", 'with "quotes"', "with space", "ünïcode", ""])
def test_quoted_names_are_read_back(name: str) -> None:
    """A quoted name is one SQL name, whatever is in it."""
    if not name:
        assert '""' == quote(name)
        return
    assert [name] == duckdb.sql(f"SELECT 1 AS {quote(name)}").columns


@pytest.mark.parametrize("text", ["plain", "it's", "", "a\nb", "\\", "''", "🦈"])
def test_quoted_text_is_read_back(text: str) -> None:
    """A SQL literal is the text that it was made of."""
    assert [(text,)] == duckdb.execute(f"SELECT {quote_text(text)}").fetchall()


@pytest.mark.parametrize(
    ("call", "sql"),
    [
        (AggregateCall(name="sum", arguments=(A,), type="HUGEINT"), '"sum"(t.a)'),
        (AggregateCall(name="count_star", arguments=(), type="BIGINT"), '"count"(*)'),
        (
            AggregateCall(
                name="count_star", arguments=(), type="BIGINT", filter=IsNull(A, negated=True)
            ),
            '"count"(*) FILTER (WHERE (t.a IS NOT NULL))',
        ),
        (
            AggregateCall(name="count", arguments=(A,), type="BIGINT", distinct=True),
            '"count"(DISTINCT t.a)',
        ),
        (AggregateCall(name="corr", arguments=(A, B), type="DOUBLE"), '"corr"(t.a, t.b)'),
        (
            AggregateCall(
                name="list", arguments=(A,), type="INTEGER[]", order_by=(SortKey(B, True, False),)
            ),
            '"list"(t.a ORDER BY t.b DESC NULLS LAST)',
        ),
        (
            AggregateCall(
                name="list",
                arguments=(A,),
                type="",
                distinct=True,
                filter=ONE,
                order_by=(SortKey(A, False, True),),
            ),
            '"list"(DISTINCT t.a ORDER BY t.a ASC NULLS FIRST) FILTER (WHERE 1)',
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_render_aggregate(call: AggregateCall, sql: str) -> None:
    """DISTINCT, ORDER BY and FILTER stand where SQL wants them."""
    assert sql == render_aggregate(call, NAMES)


def test_render_sort_keys() -> None:
    """Direction and place of NULLs are always written out."""
    keys = (SortKey(A, False, False), SortKey(B, True, True))
    assert "t.a ASC NULLS LAST, t.b DESC NULLS FIRST" == render_sort_keys(keys, NAMES)
