"""Sessions in which text, types and tables are Spark's."""

from __future__ import annotations

import datetime as dt
import decimal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minishark
from minishark import functions as F
from minishark import types
from minishark.errors import (
    AnalysisException,
    ColumnError,
    DataError,
    DataValueError,
    MinisharkError,
    OptionError,
    QueryError,
)
from minishark.functions.python import hashes
from minishark.session.session import Session
from minishark.spark import SparkSession
from minishark.spark import functions as SF
from minishark.spark import session as spark_session


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session of Spark's over a cluster of its own."""
    with spark_session(in_process=True, nodes=1, progress=False) as made:
        yield made


def test_imports_of_pyspark_sql_are_ported_by_name() -> None:
    """A program has the same imports but for the name of the package."""
    ported: dict[str, Any] = {}
    lines = """
        from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
        from pyspark.sql import functions as F, types as T
        from pyspark.sql.functions import *
        from pyspark.sql.types import IntegerType, StructField, StructType
        from pyspark.sql.window import Window as W, WindowSpec
    """
    exec(textwrap.dedent(lines).replace("pyspark.sql", "minishark.spark"), ported)
    assert ported["F"].col is ported["col"] is F.col
    assert ported["T"].StructType is ported["StructType"] is types.StructType
    assert ported["Window"] is ported["W"] is minishark.Window
    assert callable(ported["F"].damerau_levenshtein)  # DuckDB's functions are there as well
    with pytest.raises(AttributeError, match="Did you mean levenshtein") as raised:
        _ = ported["F"].levenstein
    assert [entry.name for entry in raised.traceback] == [
        "test_imports_of_pyspark_sql_are_ported_by_name"
    ]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT `id` FROM range(3) WHERE `id` > 0", [(1,), (2,)]),
        ("SELECT r.id FROM range(3) r WHERE id > 1", [(2,)]),
        ("SELECT named_struct('a', 1).a, array(1, 2)[0], map('k', 2)['k']", [(1, 1, 2)]),
        ("SELECT x FROM (SELECT array(1, 2) AS a) LATERAL VIEW explode(a) t AS x", [(1,), (2,)]),
        ("SELECT date_format(DATE '2026-03-04', 'yyyy/MM'), \"text\"", [("2026/03", "text")]),
        (r"SELECT '50%' LIKE '50\\%', '50x' LIKE '50\\%'", [(True, False)]),
        ("SELECT typeof(1), typeof('a'), typeof(1.5D), typeof(array(1))",
         [("int", "string", "double", "array<int>")]),
        ("SELECT dayofweek('2026-03-04'), 7 DIV 2", [(4, 3)]),
        ("SELECT x FROM VALUES (1), (NULL), (2) AS t(x) ORDER BY x", [(None,), (1,), (2,)]),
        ("SELECT substring('hello', 0, 2), left('abc', -1), ln(0), pmod(-7, 3), bround(2.5D)",
         [("he", "", None, 2, 2.0)]),
        (("SELECT weekday(DATE '2024-01-01'), extract(DOW FROM DATE '2024-01-07'),"
         " date_add(DATE '2024-01-31', 1), unix_timestamp('1970-01-02 00:00:00')"),
         [(0, 1, dt.date(2024, 2, 1), 86_400)]),
        (("SELECT array_contains(array(1, NULL), 2), array_position(array(1), 3), array(1, 2)[1],"
         " array_sort(array(3, NULL, 1)), cardinality(array(1)), ltrim('x', 'xa')"),
         [(None, 0, 2, [1, 3, None], 1, "a")]),
        (("SELECT id, x FROM range(2) LATERAL VIEW OUTER"
         " explode(CASE WHEN id = 1 THEN array(7) END) t AS x ORDER BY id"), [(0, None), (1, 7)]),
        ("SELECT percentile(x, 0.5), kurtosis(x), hex(max(x)) FROM VALUES (1), (2), (3), (4) t(x)",
         [(2.5, -1.36, "4")]),
        (("SELECT max(abs(x)) OVER (ORDER BY x), every(x < 2) OVER (ORDER BY x)"
         " FROM VALUES (-2), (1), (3) AS t(x)"), [(2, True), (2, True), (3, False)]),
        (("SELECT TRY_CAST('a' AS INT), datediff(MONTH, DATE '2024-01-01', DATE '2024-03-01'),"
         " timestampdiff(DAY, DATE '2024-01-01', DATE '2024-01-03')"), [(None, 2, 2)]),
    ],
)  # fmt: skip
def test_text_is_sparks(spark: SparkSession, text: str, rows: list[Any]) -> None:
    """Quotes, functions, escapes, the order of NULLs: as Spark reads them."""
    assert rows == [tuple(row) for row in spark.sql(text).collect()]


def test_division_by_zero_is_an_error_unless_a_setting_says_null(spark: SparkSession) -> None:
    """In text and between Columns; what is not zero is divided either way."""
    frame = spark.createDataFrame([(6, 0), (6, 4)], ["a", "b"])
    for asked in (lambda: frame.select(F.col("a") / F.col("b")), lambda: spark.sql("SELECT 7 % 0")):
        with pytest.raises(DataValueError, match=r"Division by zero\. Write try_divide"):
            asked().collect()
    spark.sql("SET spark.sql.ansi.enabled = false")
    try:
        assert [(None,), (1.5,)] == [tuple(r) for r in frame.selectExpr("a / b").collect()]
        assert [("spark.sql.ansi.enabled", "false")] == [
            tuple(row) for row in spark.sql("SET spark.sql.ansi.enabled").collect()
        ]
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    with pytest.raises(DataValueError, match="Division by zero"):
        spark.sql("SELECT 1 / 0").collect()


def test_functions_of_several_aggregates_have_windows_in_text(spark: SparkSession) -> None:
    """FILTER and OVER apply to each aggregate that a function is made of."""
    rows = "VALUES ('a', 1, 2), ('a', 2, 4), ('b', 1, 1) AS t(k, x, y)"
    text = f"SELECT k, corr(x, y) FILTER (WHERE k = 'a') OVER (PARTITION BY k) AS c FROM {rows}"
    assert [("a", 1.0), ("a", 1.0), ("b", None)] == [
        (row.k, row.c and round(row.c, 9)) for row in spark.sql(f"{text} ORDER BY k").collect()
    ]
    text = "SELECT x FROM VALUES (1), (NULL), (2) t(x) ORDER BY x DESC NULLS FIRST LIMIT 2"
    assert [None, 2] == [row.x for row in spark.sql(text).collect()]


def test_what_has_no_translation_is_told(spark: SparkSession) -> None:
    """Instead of being left out."""
    with pytest.raises(QueryError, match=r"stack\(\) takes a positive number of rows"):
        spark.sql("SELECT stack(0, 1)")
    with pytest.raises(QueryError, match="takes its columns' names in LATERAL VIEW"):
        spark.sql("SELECT inline(array(struct(1, 2))) AS (a, b)")


@pytest.mark.parametrize(
    "computed",
    ["a / b", "xs[0]", "element_at(xs, 1)", "m['k']", "size(slice(xs, 1, 1))", "ss[0].f"],
)
def test_what_may_be_an_error_runs_on_all_nodes(spark: SparkSession, computed: str) -> None:
    """The error of a division by zero, or of a wrong position, does not make a query one task."""
    rows = spark.createDataFrame(
        [(1.5, 2.0, [1, 2], {"k": 1}, [{"f": 1}])],
        "a double, b double, xs array<int>, m map<string,int>, ss array<struct<f:int>>",
    )
    spark.create_table("divided", rows.toArrow())
    text = spark.sql(f"SELECT sum({computed}) AS s FROM divided").plan_text()
    spark.drop_table("divided")
    assert "no distributed form" not in text


def test_a_literal_divisor_has_its_own_digits(spark: SparkSession) -> None:
    """As Spark, where 3.0 is a DECIMAL(2, 1)."""
    types = spark.sql("SELECT typeof(CAST(1 AS DECIMAL(10, 2)) / 3.0) AS t").collect()
    assert types[0].t.endswith(",6)")


def test_hashes_are_sparks(spark: SparkSession) -> None:
    """Also of more bytes than xxHash takes at once: its specification's example."""
    text = "Nobody inspects the spammish repetition"
    assert hashes.xxhash64(text, "VARCHAR", 0) == 0xFBCEA83C8A378BF1 - (1 << 64)
    frame = spark.createDataFrame([("ABC", "DEF")], ["c1", "c2"])  # as in PySpark's documentation
    made = frame.select(SF.hash("c1", "c2"), SF.xxhash64("c1", frame.c2))
    assert (599895104, 3233247871021311208) == tuple(made.first())
    assert made.columns == ["hash(c1, c2)", "xxhash64(c1, c2)"]


def test_texts_of_verbs_are_sparks(spark: SparkSession) -> None:
    """In filter and selectExpr; what does not parse is a QueryError."""
    frame = spark.createDataFrame([("a1", 1), ("b", None)], ["s", "n"])
    assert ["a1"] == [row.s for row in frame.filter("`s` RLIKE '[0-9]'").collect()]
    assert ["b"] == [row.s for row in frame.where("n <=> NULL").collect()]
    assert [(2,), (None,)] == [
        tuple(r) for r in frame.selectExpr("nvl(n, NULL) + 1 AS m").collect()
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT (1", r"Parser Error: this is no Spark SQL at line 1, column 9: SELECT \(1$"),
        ("SELECT 'abc", "Parser Error: a quote or comment is not closed: SELECT 'abc"),
        (f"SELECT {'(' * 3000}1{')' * 3000}", "Parser Error: the text is nested too deeply"),
        ("SELECT pmod(1)", r"Binder Error: pmod\(\): .*; it is pmod\(dividend, divisor\)"),
        ("SELECT CAST('a' AS INT)", r"Could not convert string 'a \(no whole number\)'"),
    ],
)
def test_mistakes_in_text_are_told(spark: SparkSession, text: str, told: str) -> None:
    """In plain words, without what sqlglot calls its parts."""
    with pytest.raises(MinisharkError, match=told):
        spark.sql(text).collect()


def test_functions_of_users_have_other_names(spark: SparkSession) -> None:
    """One of a name that text has would never be called."""
    with pytest.raises(OptionError, match="SQL has a function 'mask'; choose another name"):
        spark.udf.register("mask", len, "int")
    spark.udf.register("letters", lambda text: len(text), "int")  # noqa: PLW0108 - has a signature
    assert [(2,)] == [tuple(row) for row in spark.sql("SELECT letters('ab')").collect()]


def test_a_condition_is_one_expression(spark: SparkSession) -> None:
    """No statement follows it."""
    with pytest.raises(QueryError, match="no expression, but several statements"):
        spark.range(1).filter("id = 0; DROP TABLE t")


def test_tables_are_drawn_as_by_spark(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also nested values, doubles, bytes, times and intervals; cut ones, and records."""
    row = (1e10, 0.5, None, [1, None], {"k": True}, b"AB")
    row = (*row, dt.datetime(2026, 1, 2, 3, 4, 5, 600))  # noqa: DTZ001 - as Spark's timestamps
    frame = spark.createDataFrame([row, row], ["d", "h", "n", "l", "m", "b", "t"])
    frame.limit(1).select("d", "h", "n", "l", "m", "b").show()
    assert capsys.readouterr().out == (
        "+------+---+----+---------+-----------+-------+\n"
        "|     d|  h|   n|        l|          m|      b|\n"
        "+------+---+----+---------+-----------+-------+\n"
        "|1.0E10|0.5|NULL|[1, NULL]|{k -> true}|[41 42]|\n"
        "+------+---+----+---------+-----------+-------+\n\n"
    )
    frame.select("t").show(1)
    assert capsys.readouterr().out.endswith(
        "|2026-01-02 03:04:...|\n+--------------------+\nonly showing top 1 row\n\n"
    )
    frame.select("t", "h").show(1, truncate=False, vertical=True)
    records = capsys.readouterr().out
    assert f"{'-RECORD 0':-<32}\n t   | 2026-01-02 03:04:05.0006 \n" in records
    spark.sql("SELECT make_interval(1, 2, 0, 3, 4, 5, 6.5) AS i, named_struct('a', 'x') AS s").show(
        truncate=False
    )
    assert "|1 years 2 months 3 days 4 hours 5 minutes 6.5 seconds|{x}|" in capsys.readouterr().out
    spark.createDataFrame([(float("nan"), float("-inf"), 1.5e-5)], ["a", "b", "c"]).show()
    assert "|NaN|-Infinity|1.5E-5|" in capsys.readouterr().out


def test_types_are_sparks(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, the schema, and its tree, whole or to a depth."""
    rows = [(1, {"a": 1.5}, [minishark.Row(x=1, y="b")], (1, "z"), decimal.Decimal(1))]
    frame = spark.createDataFrame(iter(rows), ["i", "m", "l", "t", "d"])
    assert frame.dtypes == [
        ("i", "bigint"),
        ("m", "map<string,double>"),
        ("l", "array<struct<x:bigint,y:string>>"),
        ("t", "struct<_1:bigint,_2:string>"),
        ("d", "decimal(38,18)"),
    ]
    field = types.StructField("i", types.LongType(), True)
    assert types.StructType([field]) == frame.select("i").schema
    assert "StructType([StructField('i', LongType(), True)])" == repr(frame.select("i").schema)
    assert "DataFrame[i: bigint]" == repr(frame.select("i"))
    frame.select("i", "m", "l").printSchema()
    assert capsys.readouterr().out.splitlines() == [
        "root",
        " |-- i: long (nullable = true)",
        " |-- m: map (nullable = true)",
        " |    |-- key: string",
        " |    |-- value: double (valueContainsNull = true)",
        " |-- l: array (nullable = true)",
        " |    |-- element: struct (containsNull = true)",
        " |    |    |-- x: long (nullable = true)",
        " |    |    |-- y: string (nullable = true)",
    ]
    frame.select("l").printSchema(1)
    assert "root\n |-- l: array (nullable = true)\n" == capsys.readouterr().out


def test_types_of_rows_are_inferred_as_by_spark(spark: SparkSession) -> None:
    """What is mixed with texts is text; whole numbers and floats are floats; others do not mix."""
    frame = spark.createDataFrame([(1, [1, "a"], None), (2.5, [], "x")], ["n", "l", "s"])
    assert [("n", "double"), ("l", "array<string>"), ("s", "string")] == frame.dtypes
    assert ["1", "a"] == frame.first().l
    with pytest.raises(DataError, match="values of"):
        spark.createDataFrame([(1,), ([1],)], ["n"])
    with pytest.raises(DataError, match="Row 2 has 1 values"):
        spark.createDataFrame([(1, 2), (3,)], ["m", "n"])
    for value in (2**70, object()):
        with pytest.raises(DataError, match="No type of Spark's holds the values of 'n'"):
            spark.createDataFrame([(value,)], ["n"])
    alone = spark.createDataFrame([1, 2], types.IntegerType())
    assert ([("value", "int")], [(1,), (2,)]) == (alone.dtypes, [tuple(r) for r in alone.collect()])


def test_columns_that_are_left_out_sort_rows(spark: SparkSession) -> None:
    """And of two columns of a name, drop() drops both; pivots have NULL where no rows are."""
    frame = spark.createDataFrame([("a", 2, "x"), ("b", 1, "y")], ["s", "n", "k"])
    assert ["b", "a"] == [row.s for row in frame.select("s").orderBy("n").collect()]
    with pytest.raises(ColumnError, match="There is no column 'nowhere'"):
        frame.select("s").orderBy("nowhere")
    other = spark.createDataFrame([("a", 1)], ["s", "m"])
    assert ["n", "k", "m"] == frame.join(other, frame.s == other.s).drop("s").columns
    assert [("a", 1, None), ("b", None, 1)] == [
        tuple(row) for row in frame.groupBy("s").pivot("k").count().orderBy("s").collect()
    ]
    for mistake in (True, 1.5, None):
        with pytest.raises(OptionError, match=f"names, Columns and positions, not {mistake}"):
            frame.orderBy(mistake)


def test_names_that_are_not_there_are_ignored_where_spark_does(spark: SparkSession) -> None:
    """By drop and withColumnRenamed; select raises what programs catch."""
    frame = spark.range(1)
    assert ["id"] == frame.drop("nowhere").withColumnRenamed("nowhere", "x").columns
    with pytest.raises(AnalysisException):
        frame.select("nowhere")


def test_positions_are_columns(spark: SparkSession) -> None:
    """In sort, from the end if negative, and in groupBy."""
    frame = spark.createDataFrame([(1, "b"), (2, "a"), (2, "c")], ["n", "s"])
    assert ["a", "c", "b"] == [row.s for row in frame.sort(-1, 2).collect()]
    for one in (1, np.int64(1)):
        counted = frame.groupBy(one).count().sort(one)
        assert [(1, 1), (2, 2)] == [tuple(row) for row in counted.collect()]
    for place in (0, 3, -3, np.int64(3), 10**30):
        with pytest.raises(ColumnError, match="positions, from 1 to 2"):
            frame.sort(place)
        with pytest.raises(ColumnError, match="positions, from 1 to 2"):
            frame.groupBy(place)


def test_settings_of_sparks_are_kept(spark: SparkSession) -> None:
    """For who reads them again; the time zone has an effect."""
    assert "true" == spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", False)
    assert "false" == spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.unset("spark.sql.ansi.enabled")
    assert "true" == spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    assert (
        1428520332
        == spark.range(1).select(F.unix_timestamp(F.lit("2015-04-08 12:12:12"))).first()[0]
    )
    spark.conf.unset("spark.sql.session.timeZone")
    assert "other" == spark.conf.get("spark.no.such", "other")


def test_the_session_beside_it_keeps_duckdbs_meaning() -> None:
    """Over one cluster both have the same tables, and each its own text."""
    with minishark.connect(in_process=True, nodes=1) as native:
        native.create_table("t", native.sql("SELECT unnest([1, NULL]) AS x"))
        beside = spark_session(native)
        text = "SELECT typeof(x), x FROM t ORDER BY x"
        assert [("int", None), ("int", 1)] == [tuple(r) for r in beside.sql(text).collect()]
        assert [("INTEGER", 1), ("INTEGER", None)] == [tuple(r) for r in native.sql(text).collect()]
        assert ["x"] == beside.table("t").columns
        assert [("x", "INTEGER")] == native.table("t").dtypes
        assert beside.catalog.tableExists("t")
        beside.stop()
        assert 2 == native.table("t").count()


def _said(session: Session, functions: Any, text: str) -> str:
    """The first value of an expression in SQL or Python, as the documentation writes it."""
    people = session.create_dataframe([("a", 30), ("a", None)], "name string, age int")
    try:
        is_python = text.startswith("people")
        names = {"people": people, "F": functions}
        made = eval(text, names) if is_python else session.sql(f"SELECT {text}")
        value = made.collect()[0][0] if isinstance(made, minishark.DataFrame) else made
    except MinisharkError:
        return "error"
    return "NULL" if value is None else f"`{value}`"


def test_the_documentation_has_what_both_kinds_of_sessions_say() -> None:
    """Each row of its table is what the native session and Spark's say."""
    page = (Path(__file__).parents[2] / "docs" / "pyspark.md").read_text()
    inside = page.partition("<!-- begin doors -->")[2].partition("<!-- end doors -->")[0]
    rows = [line.strip("| ").split(" | ") for line in inside.split("\n") if line[:3] == "| `"]
    texts = [text.strip("`") for text, *_ in rows]
    with minishark.connect(in_process=True, nodes=1, progress=False) as native:
        beside = spark_session(native)
        said = [(_said(native, F, text), _said(beside, SF, text)) for text in texts]
    assert len(rows) > 30
    assert [tuple(row[1:]) for row in rows] == said


def test_a_builder_makes_it() -> None:
    """As PySpark's programs do; ending it ends its cluster."""
    builder = SparkSession.builder.appName("a").config("in_process", True).config("nodes", 1)
    made = builder.getOrCreate()
    assert isinstance(made, SparkSession)
    assert made is builder.getOrCreate() is SparkSession.getActiveSession()
    base: Session | None = made._own
    native = minishark.Session.builder.app_name("a").config("in_process", True).config("nodes", 1)
    with native.get_or_create() as other:
        assert not isinstance(other, SparkSession)
        assert other is not base
    made.stop()
    assert base is not None
    assert base.is_stopped
    assert made.is_stopped
