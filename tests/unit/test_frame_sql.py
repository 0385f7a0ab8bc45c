"""The SQL that verbs build: exact whatever the chain, and readable where it can be."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minishark import DataFrame, Window
from minishark import functions as F
from minishark.dataframe.dialect import DUCKDB
from minishark.dataframe.frame import relation_frame
from minishark.dataframe.literals import literal
from minishark.dataframe.names import ident, snake_case
from minishark.errors import ColumnError, OptionError, QueryError
from minishark.model.expressions import Column as TypedColumn
from minishark.model.expressions import Schema


class PlainRunner:
    """Binds and runs statements on plain DuckDB."""

    connection: duckdb.DuckDBPyConnection

    dialect = DUCKDB

    def bind(self, sql: str) -> Schema:
        """The columns of a SELECT."""
        relation = self.connection.sql(sql)
        pairs = zip(relation.columns, map(str, relation.types), strict=True)
        return tuple(TypedColumn(name, type_) for name, type_ in pairs)

    def handles(self, sql: str) -> tuple[object, ...]:
        """Nothing has to be kept."""
        return ()

    def frame(self, table: str) -> DataFrame:
        """A table as a DataFrame."""
        schema = self.bind(f"FROM {table}")
        return relation_frame(self, table, schema, alias=table)  # type: ignore[arg-type]

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a statement, sorted."""
        return sorted(self.connection.execute(sql).fetchall(), key=repr)


RUNNER = PlainRunner()


@pytest.fixture(scope="module", autouse=True)
def tables() -> Iterator[None]:
    """The runner's tables, in a connection that does not outlive the tests."""
    with duckdb.connect() as RUNNER.connection:
        RUNNER.connection.execute(
            "CREATE TABLE t AS SELECT (i % 4)::INT AS a, (i * 7 % 5)::INT AS b, "
            "CASE WHEN i % 3 > 0 THEN i % 6 END::INT AS c FROM range(17) r(i)"
        )
        RUNNER.connection.execute(
            "CREATE TABLE u AS SELECT (i % 5)::INT AS a, (i % 2)::INT AS d FROM range(6) r(i)"
        )
        yield
    del RUNNER.connection


@pytest.fixture
def t() -> DataFrame:
    """Integers."""
    return RUNNER.frame("t")


@pytest.fixture
def u() -> DataFrame:
    """Fewer integers."""
    return RUNNER.frame("u")


# Exactness


@dataclass(frozen=True)
class Chain:
    """A DataFrame, and the same as subqueries that are nested once for each verb."""

    frame: DataFrame
    sql: str
    names: tuple[str, ...]


def _start() -> Chain:
    return Chain(RUNNER.frame("t"), "SELECT a, b, c FROM t", ("a", "b", "c"))


NAMES = ("a", "b", "c", "x", "y")
FRESH = ("z", "v", "w", "p", "q", "r")


def _expression(draw: st.DrawFn, names: Sequence[str]) -> tuple[Any, str]:
    one, two = draw(st.sampled_from(names)), draw(st.sampled_from(names))
    number = draw(st.integers(-3, 3))
    window = (F.count().over(Window.partition_by(one)), f"count(*) OVER (PARTITION BY {one})")
    if draw(st.integers(0, 3)) == 0:
        return window
    return draw(
        st.sampled_from(
            [
                (F.col(one) + number, f"({one} + ({number}))"),
                (F.col(one) - F.col(two), f"({one} - {two})"),
                (-F.col(one), f"(- {one})"),
                (F.coalesce(one, F.lit(number)), f"coalesce({one}, {number})"),
                (F.expr(f"{one} % 3 + {two}"), f"({one} % 3 + {two})"),
                (
                    F.when(F.col(one) > number, F.col(two)).otherwise(number),
                    f"CASE WHEN {one} > {number} THEN {two} ELSE {number} END",
                ),
                (F.col(one), one),
                (F.lit(number), f"({number})"),
            ]
        )
    )


def _with_column(draw: st.DrawFn, chain: Chain) -> Chain:
    name = draw(st.sampled_from(NAMES))
    column, sql = _expression(draw, chain.names)
    items = [f"{sql} AS {n}" if n == name else n for n in chain.names]
    names = chain.names if name in chain.names else (*chain.names, name)
    items += [] if name in chain.names else [f"{sql} AS {name}"]
    return Chain(
        chain.frame.with_column(name, column),
        f"SELECT {', '.join(items)} FROM ({chain.sql})",
        names,
    )


def _select(draw: st.DrawFn, chain: Chain) -> Chain:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    made = [_expression(draw, chain.names) for _ in names]
    columns = [column.alias(name) for (column, _), name in zip(made, names, strict=True)]
    items = ", ".join(f"{sql} AS {name}" for (_, sql), name in zip(made, names, strict=True))
    return Chain(chain.frame.select(*columns), f"SELECT {items} FROM ({chain.sql})", tuple(names))


def _exploded(draw: st.DrawFn, chain: Chain) -> Chain:
    one, two = draw(st.sampled_from(chain.names)), draw(st.sampled_from(chain.names))
    name = next(name for name in (*NAMES, *FRESH) if name not in chain.names)
    frame = chain.frame.with_column(name, F.explode(F.array(one, two)))
    sql = f"SELECT *, unnest([{one}, {two}]) AS {name} FROM ({chain.sql})"
    return Chain(frame, sql, (*chain.names, name))


def _filter(draw: st.DrawFn, chain: Chain) -> Chain:
    one, two = draw(st.sampled_from(chain.names)), draw(st.sampled_from(chain.names))
    condition, sql = draw(
        st.sampled_from(
            [
                (F.col(one) > F.col(two), f"{one} > {two}"),
                ((F.col(one) > 1) | F.col(two).is_null(), f"{one} > 1 OR {two} IS NULL"),
                (~F.col(one).isin(1, 2) & (F.col(two) < 4), f"{one} NOT IN (1, 2) AND {two} < 4"),
                (F.expr(f"{one} < 3 OR {two} > 2"), f"{one} < 3 OR {two} > 2"),
            ]
        )
    )
    frame = chain.frame.filter(condition)
    return Chain(frame, f"SELECT * FROM ({chain.sql}) WHERE {sql}", chain.names)


def _rename(draw: st.DrawFn, chain: Chain) -> Chain:
    old = draw(st.sampled_from(chain.names))
    new = draw(st.sampled_from([name for name in (*NAMES, *FRESH) if name not in chain.names]))
    names = tuple(new if name == old else name for name in chain.names)
    items = ", ".join(f"{name} AS {new}" if name == old else name for name in chain.names)
    frame = chain.frame.with_column_renamed(old, new)
    return Chain(frame, f"SELECT {items} FROM ({chain.sql})", names)


def _drop(draw: st.DrawFn, chain: Chain) -> Chain:
    if len(chain.names) == 1:
        return chain
    gone = draw(st.sampled_from(chain.names))
    names = tuple(name for name in chain.names if name != gone)
    return Chain(chain.frame.drop(gone), f"SELECT {', '.join(names)} FROM ({chain.sql})", names)


def _top(draw: st.DrawFn, chain: Chain) -> Chain:
    first = draw(st.permutations(chain.names))
    count, skipped = draw(st.sampled_from([2, 5, 9])), draw(st.integers(0, 2))
    down = draw(st.booleans())
    head = F.col(first[0]).desc() if down else first[0]
    keys = f"{first[0]} {'DESC' if down else 'ASC'}, " + ", ".join([*first[1:], "1"])
    return Chain(
        chain.frame.order_by(head, *first[1:]).offset(skipped).limit(count),
        f"SELECT * FROM ({chain.sql}) ORDER BY {keys} LIMIT {count} OFFSET {skipped}",
        chain.names,
    )


def _sorted_by_expression(draw: st.DrawFn, chain: Chain) -> Chain:
    first = draw(st.permutations(chain.names))
    frame = chain.frame.order_by(-F.col(first[0]), *first[1:]).limit(5)
    keys = ", ".join([f"-{first[0]}", *first[1:]])
    return Chain(frame, f"SELECT * FROM ({chain.sql}) ORDER BY {keys} LIMIT 5", chain.names)


def _distinct(draw: st.DrawFn, chain: Chain) -> Chain:
    return Chain(chain.frame.distinct(), f"SELECT DISTINCT * FROM ({chain.sql})", chain.names)


def _group(draw: st.DrawFn, chain: Chain) -> Chain:
    key = draw(st.sampled_from(chain.names))
    over = draw(st.sampled_from(chain.names))
    frame = chain.frame.group_by(key).agg(F.max(over).alias("m"), F.count(over).alias("n"))
    sql = f"SELECT {key}, max({over}) AS m, count({over}) AS n FROM ({chain.sql}) GROUP BY {key}"
    return Chain(frame.to_df("a", "x", "y"), f"SELECT {key} AS a, m AS x, n AS y FROM ({sql})",
                 ("a", "x", "y"))  # fmt: skip


def _union(draw: st.DrawFn, chain: Chain) -> Chain:
    return Chain(
        chain.frame.union(chain.frame), f"({chain.sql}) UNION ALL ({chain.sql})", chain.names
    )


def _join(draw: st.DrawFn, chain: Chain) -> Chain:
    key = draw(st.sampled_from(chain.names))
    how = draw(st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]))
    if "d" in chain.names or len(chain.names) > 4:
        return chain
    other = RUNNER.frame("u").select(F.col("a").alias(key), "d")
    kept = how in ("semi", "anti")
    rest = [name for name in chain.names if name != key]
    items = ", ".join(chain.names) if kept else ", ".join([key, *rest, "d"])
    right = f"(SELECT a AS {key}, d FROM u)"
    sql = f"SELECT {items} FROM ({chain.sql}) {how} JOIN {right} USING ({key})"
    names = chain.names if kept else (key, *rest, "d")
    return Chain(chain.frame.join(other, key, how), sql, names)


VERBS = (_with_column, _with_column, _select, _filter, _filter, _rename, _drop, _top, _top,
         _sorted_by_expression, _distinct, _exploded, _group, _union, _join)  # fmt: skip


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """A chain of two to six verbs."""
    chain = _start()
    for verb in draw(st.lists(st.sampled_from(VERBS), min_size=2, max_size=6)):
        chain = verb(draw, chain)
    return chain


@settings(max_examples=2 * settings.default.max_examples)
@given(chains())
def test_clauses_share_a_select_only_where_that_is_exact(chain: Chain) -> None:
    """Whatever verbs follow each other, the rows are those of one subquery for each verb."""
    assert list(chain.names) == chain.frame.columns
    assert RUNNER.rows(chain.sql) == RUNNER.rows(chain.frame.sql())


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**130), 2**130)
        | st.floats()
        | st.text()
        | st.binary()
        | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20,
                      places=4)
        | st.dates()
        | st.datetimes()
        | st.times()
        | st.timedeltas(dt.timedelta(days=-10000), dt.timedelta(days=10000))
        | st.uuids(),
        lambda inner: st.lists(inner, max_size=1),
        max_leaves=3,
    )
)  # fmt: skip
def test_literals_come_back_as_they_were(value: Any) -> None:
    """DuckDB reads a literal as the Python value that it was made of."""
    ((found,),) = RUNNER.connection.execute(f"SELECT {literal(value)}").fetchall()
    assert _comparable(value) == _comparable(found)


def _comparable(value: Any) -> Any:
    match value:
        case list():
            return [_comparable(item) for item in value]
        case float():
            return repr(value)
        # BIGNUM comes back as text.
        case int() if abs(value) >= 2**127 and not isinstance(value, bool):
            return str(value)
        case str():
            return value
        case _:
            return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, "INTEGER"),
        (2**40, "BIGINT"),
        (2**100, "HUGEINT"),
        (-(2**63), "HUGEINT"),
        (2**200, "BIGNUM"),
        (1.5, "DOUBLE"),
        (Decimal("1.50"), "DECIMAL(3,2)"),
        (Decimal("1E+3"), "DECIMAL(4,0)"),
        (b"\x00\xff", "BLOB"),
        (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "TIMESTAMP WITH TIME ZONE"),
        (uuid.UUID(int=7), "UUID"),
        ({"a": 1}, "STRUCT(a INTEGER)"),
        ({1: "x"}, "MAP(INTEGER, VARCHAR)"),
        ((1, 2), "INTEGER[]"),
        (pa.scalar(5, pa.int8()), "INTEGER"),
    ],
)
def test_literals_have_the_right_type(value: Any, expected: str) -> None:
    """A Python type has one DuckDB type."""
    ((found,),) = RUNNER.connection.execute(f"SELECT typeof({literal(value)})").fetchall()
    assert expected == found


@pytest.mark.parametrize("value", [object(), Decimal("NaN"), Decimal(10) ** 40, "\ud800", {1, 2}])
def test_what_no_literal_can_hold_raises(value: Any) -> None:
    """A value without a literal is a typed error."""
    with pytest.raises(OptionError):
        literal(value)


def test_a_text_of_several_statements_is_no_expression(t: DataFrame) -> None:
    """It would run what follows; a semicolon in a text or a comment is part of it."""
    for made in (t.filter, lambda sql: t.select(F.expr(sql))):
        with pytest.raises(QueryError, match="several statements"):
            made("a > 1; DROP VIEW v")
    assert "c = ';'" in t.filter("c = ';' -- ; none").sql()


# Readability


def test_filters_and_columns_share_a_select(t: DataFrame) -> None:
    """A chain that one SELECT can hold is one SELECT."""
    frame = t.filter(t.a > 1).filter((t.b < 3) | t.c.is_null()).with_column("x", t.a + t.b)
    expected = """
SELECT *, a + b AS x
FROM t
WHERE a > 1 AND (b < 3 OR c IS NULL)
ORDER BY x DESC
LIMIT 3"""
    assert expected.strip() == frame.order_by(F.desc("x")).limit(3).sql()


def test_stars_have_exceptions(t: DataFrame) -> None:
    """Dropped and replaced columns are exceptions to `*`, where that is shorter."""
    assert "SELECT a, c\nFROM t" == t.drop("b").sql()
    wide = t.with_columns({f"long_name_{i}": F.lit(i) for i in range(9)}).limit(1)
    assert "SELECT * EXCLUDE (b)\n" in wide.drop("b").sql()
    assert "SELECT * REPLACE (a + 1 AS a)\n" in wide.with_column("a", F.col("a") + 1).sql()


def test_joins_are_one_list(t: DataFrame, u: DataFrame) -> None:
    """Joins of tables stand beside each other, and names are qualified where they must be."""
    other = RUNNER.frame("u").alias("v")
    frame = t.join(u, t.a == u.a).join(other, u.d == F.col("v.d")).select(t.a, u.d, t.b)
    assert (
        "SELECT t.a, u.d, b\nFROM t\nJOIN u ON t.a = u.a\nJOIN u AS v ON u.d = v.d" == frame.sql()
    )


def test_names_are_quoted_where_they_must_be() -> None:
    """Only names that SQL would misread are quoted."""
    expected = ["a", "_b1", "name", '"select"', '"a b"', '"x""y"', '"é"', '""']
    assert expected == [ident(n) for n in ("a", "_b1", "name", "select", "a b", 'x"y', "é", "")]


def test_names_in_both_spellings() -> None:
    """Humps of camels become underscores."""
    pairs = {"withColumnRenamed": "with_column_renamed", "toDF": "to_df", "agg": "agg"}
    assert list(pairs.values()) == [snake_case(name) for name in pairs]


# Names


def test_dots_and_qualifiers(t: DataFrame) -> None:
    """A name with dots is a column first, then a qualified one, then a field."""
    frame = t.select(t.a.alias("x.y"), F.struct("a", "b").alias("s")).alias("q")
    assert ["x.y"] == frame.select("x.y").columns
    assert ["x.y"] == frame.select("`x.y`").columns == frame.select("q.x.y").columns
    assert RUNNER.rows("SELECT b FROM t") == RUNNER.rows(frame.select("s.b").sql())
    assert RUNNER.rows("SELECT b FROM t") == RUNNER.rows(frame.select("q.s.b").sql())


def test_the_same_table_twice(t: DataFrame) -> None:
    """Aliases tell two uses of a table apart; without them a name is ambiguous."""
    one, two = t.alias("one"), t.alias("two")
    frame = one.join(two, one.a == two.b).select(one.c, two.c.alias("d"))
    assert RUNNER.rows("SELECT x.c, y.c AS d FROM t x JOIN t y ON x.a = y.b") == RUNNER.rows(
        frame.sql()
    )
    with pytest.raises(ColumnError, match="ambiguous"):
        t.join(t, t.a == t.b)


def test_columns_of_strangers(t: DataFrame, u: DataFrame) -> None:
    """A column of a DataFrame that has no part in this one raises."""
    with pytest.raises(ColumnError, match="no part of this one"):
        t.filter(u.d > 1)


def test_null_safe_equality(t: DataFrame) -> None:
    """eq_null_safe takes NULL for equal to NULL."""
    frame = t.filter(t.c.eq_null_safe(None)).select("c")
    assert RUNNER.rows("SELECT c FROM t WHERE c IS NULL") == RUNNER.rows(frame.sql())


def test_duplicates_of_some_columns(t: DataFrame) -> None:
    """One row stays for each key; of sorted rows it is the first."""
    frame = t.order_by(F.desc("b")).drop_duplicates(["a"]).select("a", "b")
    assert RUNNER.rows("SELECT a, max(b) FROM t GROUP BY a") == RUNNER.rows(frame.sql())


def test_tab_lists_what_is_for_users(t: DataFrame) -> None:
    """Methods and columns, once each: no camelCase aliases, no state, no plumbing."""

    def public(item: object) -> set[str]:
        return {name for name in dir(item) if not name.startswith("_")}

    internal = {"runtime", "query", "derived", "held", "keys", "frame", "pieces", "references"}
    listed = (t, t.a, t.group_by("a"), Window.partition_by("a"), t.write, t.na)
    for item in listed:
        assert not public(item) & (internal - set(t.columns)), item
        assert all(name == snake_case(name) for name in public(item)), item
    assert {"a", "b", "c", "select", "with_column", "collect"} <= public(t)
    assert {"alias", "cast", "over"} <= public(t.a)
    assert {
        "agg",
        "apply_in_arrow",
        "apply_in_pandas",
        "avg",
        "cogroup",
        "count",
        "max",
        "mean",
        "min",
    } | {
        "pivot",
        "sum",
    } == public(t.group_by("a"))
    assert {"col", "levenshtein", "size"} <= public(F)
    assert not public(F) & {"Column", "Any", "functools", "itertools"}
