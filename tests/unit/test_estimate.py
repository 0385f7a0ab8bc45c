from __future__ import annotations

import pytest

from minishark.compiler.logical.operators import Join, JoinCondition, JoinKind
from minishark.compiler.physical.estimate import (
    Profile,
    filtered_rows,
    grouped_rows,
    joined_rows,
    selectivity,
)
from minishark.model.catalog import ColumnStatistics
from minishark.model.expressions import (
    Call,
    Cast,
    ColumnRef,
    Expression,
    Infix,
    InList,
    IsNull,
    Literal,
    Prefix,
)

KEY, NUMBER, DAY, UNKNOWN = (
    ColumnRef(i, t) for i, t in enumerate(("BIGINT", "INTEGER", "DATE", "VARCHAR"))
)
PROFILE = Profile(
    1000.0,
    (
        ColumnStatistics(0.0, 1000, "1", "1000"),
        ColumnStatistics(0.0, 10, "0", "100"),
        ColumnStatistics(0.0, 100, "1992-01-01", "2002-01-01"),
        None,
    ),
)
EMPTY = Profile(1.0, (ColumnStatistics(), None, None, None))


def number(value: float) -> Literal:
    """A constant."""
    return Literal(str(value), "INTEGER", value)


def compare(operator: str, left: Expression, right: Expression) -> Infix:
    """A comparison."""
    return Infix(operator, (left, right), "BOOLEAN")


EQUAL = compare("=", NUMBER, number(5))


@pytest.mark.parametrize(
    ("predicate", "share"),
    [
        (EQUAL, 0.1),
        (compare("IS NOT DISTINCT FROM", NUMBER, number(5)), 0.1),
        (compare("<>", NUMBER, number(5)), 0.9),
        (compare("=", KEY, number(5)), 0.001),
        (compare("<", NUMBER, number(25)), 0.25),
        (compare(">=", NUMBER, number(25)), 0.75),
        (compare("<", NUMBER, number(500)), 1.0),
        (compare(">", NUMBER, number(500)), 0.0),
        (compare("<", NUMBER, KEY), 0.3),
        (compare("<", UNKNOWN, number(1)), 0.3),
        (compare("<", DAY, Literal("x", "VARCHAR", "no day")), 0.3),
        (Infix("AND", (EQUAL, EQUAL), "BOOLEAN"), 0.01),
        (Infix("OR", (EQUAL, EQUAL), "BOOLEAN"), 0.2),
        (Infix("OR", (EQUAL,) * 20, "BOOLEAN"), 1.0),
        (Prefix("NOT", EQUAL, "BOOLEAN"), 0.9),
        (InList(NUMBER, (number(1), number(2)), negated=False), 0.2),
        (InList(NUMBER, (number(1), number(2)), negated=True), 0.8),
        (InList(NUMBER, (number(1),) * 99, negated=False), 1.0),
        (IsNull(NUMBER, negated=False), 0.05),
        (IsNull(NUMBER, negated=True), 0.95),
        (Call("prefix", (UNKNOWN, number(1)), "BOOLEAN"), 0.25),
    ],
)
def test_selectivity(predicate: Expression, share: float) -> None:
    """Shares follow from distinct counts and bounds, or are the textbook's guesses."""
    assert share == pytest.approx(selectivity(predicate, PROFILE))


def test_range_of_dates() -> None:
    """Half of the years is about half of the rows."""
    middle = Literal("DATE '1997-01-01'", "DATE", "1997-01-01")
    assert 0.5 == pytest.approx(selectivity(compare("<", DAY, middle), PROFILE), abs=0.01)


def test_ends_of_a_range_belong_together() -> None:
    """Between a quarter and a half of a column's range are a quarter of the rows, not an eighth."""
    middle = (compare(">=", NUMBER, number(25)), compare("<", NUMBER, number(50)))
    assert 250.0 == pytest.approx(filtered_rows(middle, PROFILE))
    assert 0.25 == pytest.approx(selectivity(Infix("AND", middle, "BOOLEAN"), PROFILE))
    nothing = (compare(">", NUMBER, number(50)), compare("<", NUMBER, number(25)))
    assert 1.0 == filtered_rows(nothing, PROFILE)
    assert 25.0 == pytest.approx(filtered_rows((*middle, EQUAL), PROFILE))


def test_distinct_values() -> None:
    """Casts keep distinct values, constants have one, functions as many as their argument."""
    assert 10.0 == PROFILE.distinct(Cast(NUMBER, "BIGINT"))
    assert 1.0 == PROFILE.distinct(number(3))
    assert 10.0 == PROFILE.distinct(Infix("+", (NUMBER, number(3)), "INTEGER"))
    assert 1000.0 == PROFILE.distinct(UNKNOWN)
    assert 5.0 == Profile(5.0, PROFILE.columns).distinct(NUMBER)
    assert 1.0 == Profile(0.0, PROFILE.columns).distinct(NUMBER)


def test_filtered_rows_are_never_none() -> None:
    """An estimate below one row would make every plan above it look free."""
    assert 100.0 == pytest.approx(filtered_rows((EQUAL,), PROFILE))
    assert 1.0 == filtered_rows((EQUAL,) * 9, PROFILE)


def test_grouped_rows() -> None:
    """As many groups as combinations of values, at most one per row."""
    assert 1.0 == grouped_rows((), PROFILE)
    assert 10.0 == grouped_rows((NUMBER,), PROFILE)
    assert 1000.0 == grouped_rows((NUMBER, KEY), PROFILE)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (JoinKind.INNER, 200.0),
        (JoinKind.LEFT, 1000.0),
        (JoinKind.RIGHT, 200.0),
        (JoinKind.FULL, 1200.0),
        (JoinKind.SEMI, 200.0),
        (JoinKind.RIGHT_SEMI, 200.0),
        (JoinKind.ANTI, 500.0),
        (JoinKind.RIGHT_ANTI, 100.0),
        (JoinKind.MARK, 1000.0),
        (JoinKind.SINGLE, 1000.0),
    ],
)
def test_joined_rows(kind: JoinKind, rows: float) -> None:
    """A key joined with a foreign key gives the foreign key's rows; outer joins keep their side."""
    right = Profile(200.0, (ColumnStatistics(0.0, 200, "1", "200"),))
    join = Join(kind, (JoinCondition(KEY, "=", ColumnRef(0, "BIGINT")),), (), (0,), (0,))
    assert rows == joined_rows(join, PROFILE, right)


def test_conditions_that_are_no_equality_select_less() -> None:
    """Each condition more makes the join smaller."""
    right = Profile(200.0, (None,))
    less = JoinCondition(KEY, "<", ColumnRef(0, "BIGINT"))
    join = Join(JoinKind.INNER, (less,), (EQUAL,), (0,), (0,))
    assert 200_000.0 * 0.3 * 0.25 == pytest.approx(joined_rows(join, PROFILE, right))


def test_empty_relations_do_not_divide_by_zero() -> None:
    """Statistics of an empty table are no trap."""
    assert 1.0 == filtered_rows((compare("<", KEY, number(1)), EQUAL), EMPTY)


@pytest.mark.parametrize(
    ("low", "high", "share"),
    [
        ("forest", "foresu", 0.01),
        ("fo", "fp", 0.09),
        ("forest", "forests", 0.09),
        ("forest", "foresv", 0.09),
        ("ab\U0010ffff", "ac", 0.09),
    ],
)
def test_a_range_of_text_may_be_a_prefix(low: str, high: str, share: float) -> None:
    """As DuckDB writes LIKE 'forest%'."""
    bounds = (
        Infix(">=", (UNKNOWN, Literal(f"'{low}'", "VARCHAR", low)), "BOOLEAN"),
        Infix("<", (UNKNOWN, Literal(f"'{high}'", "VARCHAR", high)), "BOOLEAN"),
    )
    assert filtered_rows(bounds, PROFILE) == pytest.approx(1000 * share)
