"""Expressions over aggregates: FILTER, OVER and PIVOT reach each aggregate in them.

What is expected is written without FILTER, OVER and PIVOT: for each group, row or value of a pivot,
a subquery computes the expression over the rows that count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minishark import Column, DataFrame, Window
from minishark import functions as F
from minishark.errors import OptionError, QueryError
from minishark.query.answers import differences
from minishark.session.session import Session

Made = tuple[Column, str]
"""A Column, and what it is in SQL over rows of the toy table t."""

NUMBERS: list[Made] = [
    (F.sum("v"), "sum(v)"),
    (F.sum(F.col("v") * 0.5), "sum(v / 2)"),
    (F.count("v"), "count(v)"),
    (F.count(), "count(*)"),
    (F.min("id"), "min(id)"),
    (F.max("m"), "max(m)"),
    (F.avg("v"), "avg(v)"),
    (F.count_distinct("s"), "count(DISTINCT s)"),
    (F.count_distinct("s", "b"), "count(DISTINCT s || b)"),
    (F.sum_distinct("v"), "sum(DISTINCT v)"),
    (F.percentile("v", 0.25), "quantile_cont(v, 0.25)"),
    (F.size(F.collect_list("s")), "count(s)"),
    (F.size(F.collect_set("s")), "count(DISTINCT s)"),
    (F.len(F.call_function("list", "s")), "len(list(s))"),
    (F.expr("max(v)"), "max(v)"),
    (F.sum(F.expr("v + id")), "sum(v + id)"),
]

WHOLE: dict[str, Made] = {
    "difference": (F.max("v") - F.min("v"), "max(v) - min(v)"),
    "quotient": (F.sum("v") / F.count("v"), "sum(v) / count(v)"),
    "plus a literal": (F.sum("v") + 1, "sum(v) + 1"),
    "literal minus": (1 - F.sum("id"), "1 - sum(id)::BIGINT"),
    "negative": (-F.sum("v"), "-sum(v)"),
    "function": (F.round(F.avg("v"), 1), "round(avg(v), 1)"),
    "coalesce": (F.coalesce(F.sum("v"), F.lit(0)), "coalesce(sum(v), 0)"),
    "cast": (F.sum("v").cast("string"), "CAST(sum(v) AS VARCHAR)"),
    "cast of a quotient": (
        (F.sum("id") / F.count()).cast("decimal(20, 3)"),
        "CAST(sum(id)::BIGINT / count(*) AS DECIMAL(20, 3))",
    ),
    "comparison": (F.max("v") > F.min("id"), "max(v) > min(id)"),
    "conditions": (
        (F.count("v") > 3) & ~(F.max("s") == "name5") | F.sum("v").is_null(),
        "(count(v) > 3 AND NOT max(s) = 'name5') OR sum(v) IS NULL",
    ),
    "between": (F.avg("v").between(F.lit(2), F.count()), "avg(v) BETWEEN 2 AND count(*)"),
    "case": (
        F.when(F.count("v") > 5, F.max("v")).when(F.min("v") > 1, 0).otherwise(-F.sum("v")),
        "CASE WHEN count(v) > 5 THEN max(v) WHEN min(v) > 1 THEN 0 ELSE -sum(v) END",
    ),
    "case in an aggregate": (
        F.sum(F.when(F.col("b"), F.col("v"))) / F.sum("v"),
        "sum(CASE WHEN b THEN v END) / sum(v)",
    ),
    "list": (
        F.array_sort(F.collect_list("s")),
        "coalesce(list_sort(list_filter(list(s), lambda x: x IS NOT NULL)), [])",
    ),
    "set": (F.array_sort(F.collect_set("s")), "coalesce(list_sort(list_distinct(list(s))), [])"),
    "struct": (
        F.struct(F.min("v").alias("low"), F.max("v").alias("high")),
        "{'low': min(v), 'high': max(v)}",
    ),
    "field": (F.struct(F.sum("v").alias("x"))["x"] * 2, "sum(v) * 2"),
    "text of one call": (F.expr("sum(v)"), "sum(v)"),
    "text in an expression": (F.expr("SUM( v )") * F.expr("2 + 1"), "sum(v) * 3"),
    "text with DISTINCT": (F.expr("count(DISTINCT s)") + 1, "count(DISTINCT s) + 1"),
    "greatest": (F.max_by("s", "id"), "arg_max_null(s, id)"),
    "any": (F.bool_or("b"), "bool_or(b)"),
    "decimal": (F.sum("m") - F.max("m"), "sum(m) - max(m)"),
    "date": (F.datediff(F.max("d"), F.min("d")), "max(d) - min(d)"),
}
CONDITION: Made = (F.col("id") % 3 > 0, "id % 3 > 0")
FEW: Made = (F.col("id") > 55, "id > 55")
VALUES = [True, False, None]
PARTITION = Window.partition_by("k")
RUNNING = PARTITION.order_by("id")
LAST_FOUR = Window.order_by("id").rows_between(-3, 0)

SAME_GROUP = "i.k IS NOT DISTINCT FROM o.k"


def _computed(texts: list[str], rows: str) -> str:
    """Expressions over the rows of t that count."""
    return f", LATERAL (SELECT {', '.join(texts)} FROM t AS i WHERE {rows})"


def _plain(frame: DataFrame, columns: list[Column]) -> DataFrame:
    return frame.group_by("k").agg(*columns)


def _filtered(condition: Column) -> Callable[[DataFrame, list[Column]], DataFrame]:
    def made(frame: DataFrame, columns: list[Column]) -> DataFrame:
        return frame.group_by("k").agg(*(column.filter(condition) for column in columns))

    return made


def _filtered_twice(frame: DataFrame, columns: list[Column]) -> DataFrame:
    both = (column.filter(F.col("id") % 3 > 0).filter(F.col("v") > 2) for column in columns)
    return frame.group_by("k").agg(*both)


def _windowed(window: Any) -> Callable[[DataFrame, list[Column]], DataFrame]:
    def made(frame: DataFrame, columns: list[Column]) -> DataFrame:
        return frame.select("id", "k", *(column.over(window) for column in columns))

    return made


def _windowed_filter(frame: DataFrame, columns: list[Column]) -> DataFrame:
    some = [column.filter(CONDITION[0]).over(RUNNING) for column in columns]
    return frame.select("id", "k", *some)


def _window_filtered_later(frame: DataFrame, columns: list[Column]) -> DataFrame:
    added = {f"c{number}": column.over(RUNNING) for number, column in enumerate(columns)}
    names = ["id", "k", *added]
    return frame.with_columns(added).filter("id > 9").select(*names)


def _pivoted(frame: DataFrame, columns: list[Column]) -> DataFrame:
    named = [column.alias(f"c{number}") for number, column in enumerate(columns)]
    return frame.group_by("k").pivot("b", VALUES).agg(*named)


def _of_groups(*rows: str) -> Callable[[list[str]], str]:
    """For each group, the expressions over some of its rows, and again over others."""

    def made(texts: list[str]) -> str:
        every = (_computed(texts, f"{SAME_GROUP} AND ({some})") for some in rows)
        return f"SELECT * FROM (SELECT DISTINCT k FROM t) AS o{''.join(every)}"

    return made


def _of_rows(rows: str, outer: str = "true") -> Callable[[list[str]], str]:
    """For each row, the expressions over rows that have to do with it."""

    def made(texts: list[str]) -> str:
        every = _computed(texts, rows)
        return f"SELECT * FROM (SELECT id, k FROM t) AS o{every} WHERE {outer}"

    return made


CONTEXTS: dict[
    str, tuple[Callable[[DataFrame, list[Column]], DataFrame], Callable[[list[str]], str]]
] = {
    "group": (_plain, _of_groups("true")),
    "filter": (_filtered(CONDITION[0]), _of_groups(CONDITION[1])),
    "filter of few": (_filtered(FEW[0]), _of_groups(FEW[1])),
    "two filters": (_filtered_twice, _of_groups("id % 3 > 0 AND v > 2")),
    "partition": (_windowed(PARTITION), _of_rows(SAME_GROUP)),
    "running": (_windowed(RUNNING), _of_rows(f"{SAME_GROUP} AND i.id <= o.id")),
    "frame": (_windowed(LAST_FOUR), _of_rows("i.id BETWEEN o.id - 3 AND o.id")),
    "filter and window": (
        _windowed_filter,
        _of_rows(f"{SAME_GROUP} AND i.id <= o.id AND i.id % 3 > 0"),
    ),
    "window in new columns": (
        _window_filtered_later,
        _of_rows(f"{SAME_GROUP} AND i.id <= o.id", "o.id > 9"),
    ),
    "pivot": (_pivoted, _of_groups("b", "NOT b", "b IS NULL")),
}


@pytest.fixture
def t(toy_session: Session) -> DataFrame:
    """A toy table."""
    return toy_session.table("t")


def _numbered(table: pa.Table) -> pa.Table:
    return table.rename_columns([f"c{number}" for number in range(table.num_columns)])


def _differences(expected: pa.Table, actual: pa.Table) -> list[str]:
    order = [("c0", "ascending")]
    tables = (_numbered(table).sort_by(order) for table in (expected, actual))
    return differences(*tables)


@pytest.mark.sample(4)
@pytest.mark.parametrize("context", CONTEXTS)
def test_expressions_compute_with_the_rows_that_count(
    context: str, t: DataFrame, plain: duckdb.DuckDBPyConnection
) -> None:
    """A compound of aggregates is what its SQL is over the rows of the group, window or pivot."""
    verbs, written = CONTEXTS[context]
    columns = [column for column, _ in WHOLE.values()]
    expected = plain.sql(written([sql for _, sql in WHOLE.values()])).to_arrow_table()
    assert [] == _differences(expected, verbs(t, columns).to_arrow())


def _combined(inner: st.SearchStrategy[Made]) -> st.SearchStrategy[Made]:
    one = st.tuples(inner, st.sampled_from(UNARY)).map(lambda drawn: drawn[1](drawn[0]))
    two = st.tuples(inner, inner, st.sampled_from(BINARY)).map(
        lambda drawn: drawn[2](drawn[0], drawn[1])
    )
    return one | two


UNARY: list[Callable[[Made], Made]] = [
    lambda a: (a[0] + 1, f"(({a[1]}) + 1)"),
    lambda a: (10 - a[0], f"(10 - ({a[1]}))"),
    lambda a: (-a[0], f"(-({a[1]}))"),
    lambda a: (F.round(a[0]), f"round({a[1]})"),
    lambda a: (F.coalesce(a[0], F.lit(-1)), f"coalesce({a[1]}, -1)"),
    lambda a: (a[0].cast("double"), f"CAST({a[1]} AS DOUBLE)"),
    lambda a: (a[0].cast("varchar").try_cast("double"), f"TRY_CAST(({a[1]})::VARCHAR AS DOUBLE)"),
    lambda a: (a[0].is_null().cast("int"), f"(({a[1]}) IS NULL)::INT"),
    lambda a: (F.size(F.array(a[0], a[0])), f"len([{a[1]}, {a[1]}])"),
    lambda a: (F.abs(a[0]), f"abs({a[1]})"),
]
BINARY: list[Callable[[Made, Made], Made]] = [
    lambda a, b: (a[0] + b[0], f"(({a[1]}) + ({b[1]}))"),
    lambda a, b: (a[0] - b[0], f"(({a[1]}) - ({b[1]}))"),
    lambda a, b: (a[0].cast("double") / b[0], f"(({a[1]})::DOUBLE / ({b[1]}))"),
    lambda a, b: (F.greatest(a[0], b[0]), f"greatest({a[1]}, {b[1]})"),
    lambda a, b: (
        F.when(a[0] > b[0], a[0]).otherwise(b[0]),
        f"CASE WHEN ({a[1]}) > ({b[1]}) THEN ({a[1]}) ELSE ({b[1]}) END",
    ),
    lambda a, b: (
        (a[0].isin(1, 2) | b[0].is_null()).cast("int"),
        f"((({a[1]}) IN (1, 2)) OR (({b[1]}) IS NULL))::INT",
    ),
]
EXPRESSIONS = st.recursive(st.sampled_from(NUMBERS), _combined, max_leaves=5)


@settings(max_examples=settings.default.max_examples // 2)
@given(st.lists(EXPRESSIONS, min_size=1, max_size=4), st.sampled_from(sorted(CONTEXTS)))
def test_any_expression_is_its_sql(
    toy_session: Session, plain: duckdb.DuckDBPyConnection, made: list[Made], context: str
) -> None:
    """Whatever is nested in what, and wherever it stands: the SQL of the verbs is right."""
    verbs, written = CONTEXTS[context]
    frame = verbs(toy_session.table("t"), [column for column, _ in made])
    expected = plain.sql(written([sql for _, sql in made])).to_arrow_table()
    assert [] == _differences(expected, plain.sql(frame.sql()).to_arrow_table())


# Which row a function picks

BEFORE = f"{SAME_GROUP} AND i.id <= o.id"
PICKED: dict[str, tuple[Column, str]] = {
    "last": (F.last("v").over(RUNNING), f"{BEFORE} ORDER BY i.id DESC"),
    "last of values": (
        F.last("v", ignorenulls=True).over(RUNNING),
        f"{BEFORE} AND v IS NOT NULL ORDER BY i.id DESC",
    ),
    "first of values": (
        F.first("v", ignorenulls=True).over(RUNNING),
        f"{BEFORE} AND v IS NOT NULL ORDER BY i.id",
    ),
    "first with a condition": (
        F.first("v").filter(F.col("id") > 8).over(RUNNING),
        f"{BEFORE} AND i.id > 8 ORDER BY i.id",
    ),
    "last with a condition": (
        F.last("v").filter(F.col("id") % 2 == 0).over(RUNNING),
        f"{BEFORE} AND i.id % 2 = 0 ORDER BY i.id DESC",
    ),
    "last of values with conditions": (
        F.last("v", True).filter(F.col("id") % 2 == 0).filter(F.col("b")).over(RUNNING),
        f"{BEFORE} AND i.id % 2 = 0 AND b AND v IS NOT NULL ORDER BY i.id DESC",
    ),
    "by a quoted name": (
        F.call_function("FIRST", "v").filter(F.col("id") > 8).over(RUNNING),
        f"{BEFORE} AND i.id > 8 ORDER BY i.id",
    ),
    "in an expression": (
        F.coalesce(F.last("v", True) * 1, F.lit(None)).over(LAST_FOUR),
        "i.id BETWEEN o.id - 3 AND o.id AND v IS NOT NULL ORDER BY i.id DESC",
    ),
}


@pytest.mark.parametrize("name", PICKED)
def test_values_of_one_row_can_have_conditions_and_windows(
    name: str, t: DataFrame, plain: duckdb.DuckDBPyConnection
) -> None:
    """Where DuckDB has no FILTER, first and last still pick among the rows that count."""
    column, rows = PICKED[name]
    sql = f"SELECT id, (SELECT v FROM t AS i WHERE {rows} LIMIT 1) FROM t AS o"
    assert [] == _differences(plain.sql(sql).to_arrow_table(), t.select("id", column).to_arrow())


def test_last_of_values_in_groups_and_pivots(toy_session: Session) -> None:
    """NULLs are left out besides the rows for which a condition does not hold."""
    rows = [(1, "x", 5, True), (1, "x", None, True), (1, "y", 7, False), (1, "y", None, True)]
    frame = toy_session.create_dataframe(rows, "k INT, p VARCHAR, v INT, b BOOLEAN")
    last = F.last("v", ignorenulls=True)
    columns = (last.filter(F.col("p") == "x"), last.filter(F.col("p") == "y").filter(F.col("b")))
    assert [(1, 5, None)] == frame.group_by("k").agg(*columns).collect()
    assert [(1, 5, 7)] == frame.group_by("k").pivot("p").agg(last).collect()


# Pivots


@pytest.fixture
def few(toy_session: Session) -> DataFrame:
    """Groups, one of which has no row with "y"."""
    rows = [("a", "x", 1.0), ("a", "x", 2.0), ("a", "y", 10.0), ("b", "x", 4.0)]
    return toy_session.create_dataframe(rows, "k VARCHAR, p VARCHAR, v DOUBLE")


def test_pivots_of_compounds(few: DataFrame) -> None:
    """Each aggregate in an expression sees the rows with the value only, not just the last one."""
    pivoted = few.group_by("k").pivot("p").agg(F.max("v") - F.min("v")).order_by("k")
    assert ["k", "x", "y"] == pivoted.columns
    assert [("a", 1.0, 0.0), ("b", 0.0, None)] == pivoted.collect()


def test_combinations_that_are_missing_are_expressions_of_no_rows(few: DataFrame) -> None:
    """A group without a row with the value has what the expression is for no rows."""
    of_none = (
        F.sum("v") + 1,
        F.count(),
        F.count("v") + 1,
        F.coalesce(F.sum("v"), F.lit(0)),
        F.sum("v") / F.count("v"),
        F.collect_list("v"),
    )
    for column, expected in zip(of_none, [None, 0, 1, 0.0, None, []], strict=True):
        pivoted = few.group_by("k").pivot("p", ["y"]).agg(column).filter("k = 'b'")
        assert [("b", expected)] == pivoted.collect()


def test_names_of_pivots(few: DataFrame) -> None:
    """Several aggregates are told apart by their aliases, or by their text."""
    aggregates = (F.round(F.avg("v"), 1).alias("mean"), F.sum("v") * 0.5, F.count())
    pivoted = few.group_by("k").pivot("p", ["x", "z"]).agg(*aggregates)
    names = ["x_mean", "x_sum(v) * 0.5", "x_count", "z_mean", "z_sum(v) * 0.5", "z_count"]
    assert ["k", *names] == pivoted.columns
    expected = [("a", 1.5, 1.5, 2, None, None, 0), ("b", 4.0, 2.0, 1, None, None, 0)]
    assert expected == pivoted.order_by("k").collect()


def test_pivots_of_windows_over_groups(few: DataFrame) -> None:
    """A window over the groups has the value's condition within, where the rows are."""
    share = F.sum("v") / F.sum(F.sum("v")).over(Window.partition_by())
    pivoted = few.group_by("k").pivot("p", ["x", "y"]).agg(share).order_by("k")
    assert [("a", 3 / 7, 1.0), ("b", 4 / 7, None)] == pivoted.collect()
    rank = F.rank().over(Window.order_by(F.sum("v").desc())).alias("rank")
    ranked = few.group_by("k").pivot("p", ["x"]).agg(rank).order_by("k")
    assert [("a", 2), ("b", 1)] == ranked.collect()


# Text


@pytest.mark.slow
def test_text_is_looked_into_as_far_as_that_is_certain(few: DataFrame) -> None:
    """One call, and what has no aggregate, take part; other text is refused, not misread."""
    one = F.expr("sum(v)").filter(F.col("p") == "x") * F.expr("if(true, 10, 0)")
    assert [("a", 30.0), ("b", 40.0)] == few.group_by("k").agg(one).order_by("k").collect()
    whole = F.expr("sum(v) FILTER (WHERE p = 'x')").over(Window.partition_by())
    assert [7.0] == [row[0] for row in few.select(whole).distinct().collect()]
    last = F.expr("last(v IGNORE NULLS)").over(Window.order_by("v").rows_between(0, 1))
    assert [2, 4, 10, 10] == [row[0] for row in few.select(last.alias("n")).order_by("n").collect()]
    macro = F.geomean("v").over(Window.partition_by("p"))
    assert [2.0] == [row[0] for row in few.filter("p = 'x'").select(macro).distinct().collect()]
    number = F.expr("row_number()").over(Window.order_by("v")) + F.expr("count(*)").over(
        Window.partition_by()
    )
    assert [5, 6, 7, 8] == [row[0] for row in few.select(number.alias("n")).order_by("n").collect()]
    accents = F.expr("max('é' || p)").filter(F.col("v") < 2)
    assert [("éx",)] == few.agg(accents).collect()
    for text in ("max(v) - min(v)", "round(sum(v))", "(SELECT 1)", "no expression", "geomean(v)+1"):
        with pytest.raises(OptionError, match=r"can't tell which aggregates"):
            few.group_by("k").pivot("p").agg(F.expr(text))
    with pytest.raises(OptionError, match=r"over\(\) can't tell which aggregates are in 'wavg'"):
        (F.call_function("wavg", "v", "v") + 1).over(Window.partition_by("k"))
    with pytest.raises(OptionError, match=r"can't tell which aggregates"):
        F.expr("sum(v) FILTER (WHERE p = 'x')").filter(F.col("v") > 1)
    with pytest.raises(QueryError, match=r"Macro Function"):
        few.agg(F.expr("geomean(v)").filter(F.col("v") > 1))


def test_text_within_windows_over_groups_is_looked_into(few: DataFrame) -> None:
    """A pivot's condition reaches an aggregate in text within a window, or is refused."""
    both = F.sum(F.expr("sum(v)") + F.sum("v")).over(Window.order_by(F.expr("count(*)")))
    pivoted = few.group_by("k").pivot("p", ["x"]).agg(both).order_by("k")
    assert [("a", 14.0), ("b", 8.0)] == pivoted.collect()
    hidden = F.sum(F.expr("1 + sum(v)") + F.sum("v")).over(Window.partition_by())
    with pytest.raises(OptionError, match=r"can't tell which aggregates"):
        few.group_by("k").pivot("p", ["x"]).agg(hidden)


def test_conditions_may_be_text(few: DataFrame) -> None:
    """A condition in SQL is held together; what is no condition raises."""
    some = F.sum("v").filter("p = 'y' OR v > 3").filter("k = 'b'")
    assert [(4.0,)] == few.agg(some).collect()
    with pytest.raises(OptionError, match=r"filter\(\) takes a Column or SQL text"):
        F.sum("v").filter(True)  # type: ignore[arg-type]


# Errors and names


def test_conditions_and_windows_need_aggregates(few: DataFrame) -> None:
    """What would have nothing to act on, or would act twice, raises and tells what to write."""
    window = Window.partition_by("k")
    for column in (F.col("v"), F.lit(1), F.round("v"), F.expr("v + 1"), F.grouping("k")):
        with pytest.raises(OptionError, match=r"over\(\) takes an aggregate"):
            column.over(window)
        with pytest.raises(OptionError, match=r"Only aggregates"):
            column.filter(F.col("v") > 1)
    with pytest.raises(OptionError, match=r"Only aggregates.*be pivoted"):
        few.group_by("k").pivot("p").agg(F.lit(1))
    with pytest.raises(OptionError, match=r"over\(\) takes an aggregate .* without a window"):
        F.sum("v").over(window).over(window)
    with pytest.raises(OptionError, match=r"row_number is a window function"):
        F.row_number().filter(F.col("v") > 1)
    with pytest.raises(OptionError, match=r"any more, and no pivot"):
        (F.sum("v") - F.sum("v").over(window)).filter(F.col("v") > 1)


def test_windows_stay_where_they_are() -> None:
    """Of an expression with windows, those get one that have none."""
    one, other = Window.partition_by("k"), Window.partition_by("b")
    column = (F.sum("v").over(one) / F.sum("v")).over(other)
    expected = "(sum(v) OVER (PARTITION BY k)) / sum(v) OVER (PARTITION BY b)"
    assert f"Column<'{expected}'>" == repr(column)


def test_columns_in_calls_are_seen(few: DataFrame) -> None:
    """A call names columns, but it is none: it can't be dropped, nor name a field."""
    names = [reference.name for reference in (F.sum("v").filter(F.col("p") == "x")).references]
    assert ["v", "p"] == names
    over = F.sum("v").over(Window.partition_by("k").order_by("p"))
    assert ["v", "k", "p"] == [reference.name for reference in over.references]
    with pytest.raises(OptionError, match=r"columns, not expressions"):
        few.drop(F.sum("v"))
    assert ({"col1": 17.0},) == few.agg(F.struct(F.sum("v"))).first()
    keyed = few.group_by(F.lit(1)).sum("v")
    assert [(1, 17.0)] == keyed.collect()


def test_aliases_stay(few: DataFrame) -> None:
    """A Column keeps its alias through filter() and over(); count(*) is no longer `count`."""
    total = F.sum("v").alias("total")
    window = Window.partition_by("k")
    assert ["k", "total"] == few.group_by("k").agg(total.filter(F.col("v") > 1)).columns
    assert ["total"] == few.select(total.over(window)).columns
    assert ["count", "n"] == few.agg(F.count(), F.count().filter(F.col("v") > 1).alias("n")).columns
    assert ["count() OVER (PARTITION BY k)"] == few.select(F.count().over(window)).columns


def test_approximate_percentiles(few: DataFrame) -> None:
    """A float is written as DuckDB takes it; PySpark's name gives one of the values."""
    columns = [
        F.percentile_approx("v", 0.5).alias("a"),
        F.approx_quantile(F.col("v") * 0.5, F.lit(0.5)).alias("b"),
        F.percentile_approx("v", [0.0, 1.0]).alias("c"),
        F.call_function("approx_quantile", "v", F.array(F.lit(1e-7), F.lit(1))).alias("d"),
        F.percentile_approx("v", 0.5).filter(F.col("v") > 5).alias("e"),
    ]
    assert [(2.0, 1.5, [1.0, 10.0], [1.0, 10.0], 10.0)] == few.agg(*columns).collect()
    pivoted = few.group_by("k").pivot("p").agg(F.percentile_approx("v", 1.0)).order_by("k")
    assert [("a", 2.0, 10.0), ("b", 4.0, None)] == pivoted.collect()
    over = F.percentile_approx("v", 1.0).over(Window.partition_by("p"))
    assert [("x", 4.0), ("y", 10.0)] == few.select("p", over).distinct().order_by("p").collect()


def test_floats_in_names_are_as_they_were_typed(few: DataFrame) -> None:
    """The exponent that makes a float a DOUBLE in SQL is in no name, unless the user wrote it."""
    frame = few.agg(F.percentile("v", 0.25), F.approx_quantile("v", 0.5), F.sum("v") * 2.0)
    assert ["percentile(v, 0.25)", "approx_quantile(v, 0.5)", "(sum(v) * 2.0)"] == frame.columns
    assert 2.25 == frame.collect()[0]["percentile(v, 0.25)"] + 0.5
    assert ["(v * 0.5e0)"] == few.select(F.expr("v * 0.5e0")).columns


def test_sql_of_simple_calls_is_plain() -> None:
    """FILTER and OVER stand right after the call that they belong to."""
    window = Window.partition_by("k").order_by("p")
    condition = F.col("p") == "x"
    expected = {
        "sum(v) FILTER (WHERE p = 'x')": F.sum("v").filter(condition),
        "sum(v) OVER (PARTITION BY k ORDER BY p)": F.sum("v").over(window),
        "last(v) FILTER (WHERE v IS NOT NULL)": F.last("v", True),
        "last(v IGNORE NULLS) OVER (PARTITION BY k ORDER BY p)": F.last("v", True).over(window),
        "v / (sum(v) OVER (PARTITION BY k ORDER BY p))": F.col("v") / F.sum("v").over(window),
        "round(sum(v) FILTER (WHERE p = 'x'), 2)": F.round(F.sum("v"), 2).filter(condition),
        "sum(v) FILTER (WHERE p = 'x' AND (v > 1 OR v < 0))": F.sum("v")
        .filter(condition)
        .filter((F.col("v") > 1) | (F.col("v") < 0)),
    }
    assert list(expected) == [column.sql(lambda ref: ref.name) for column in expected.values()]
