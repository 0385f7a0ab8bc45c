"""Snippets of ported programs against the answers that Spark has given: spark_snippets.py."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from spark_snippets import ANSWERS, answer, names

from minishark.errors import DataValueError, QueryError
from minishark.spark import Row, Window, functions
from minishark.spark import session as spark_session

SPARKS: dict[str, list[str] | None] = json.loads(ANSWERS.read_text())["answers"]
# What differs, or fails in one of the two only: beginnings of snippets by reason, which
# docs/pyspark.md has as well. All else is Spark's answer.
DIFFERENT = {
    "an error: a date plus a column of intervals": ("SELECT d + i, d - i",),
    "in text, a quotient of a sum has fewer zeros at its end, and of a quotient is a DOUBLE": (
        "SELECT sum(p) / count(*)",
        "SELECT sum(a) / sum(b), a / b / 2",
    ),
    "the last digit of a float": (
        "people.stat.corr(",
        "people.stat.cov(",
        "SELECT corr(x, y), covar_pop(x, y)",
        "SELECT pow(2, 10)",
        'people.agg(F.corr("age"',
        "people.describe(",
        "people.summary()",
    ),
    "names of types": (
        "SELECT ceil(5)",
        "SELECT sum(x), typeof(sum(x)), typeof(avg(x)) FROM VALUES (1.50)",
        "SELECT 1.0 / 3",
        "SELECT a / b, typeof(a / b)",
        "SELECT typeof(a + b)",
        "SELECT typeof(1 + 1L)",
        "SELECT typeof(DATE",
        "SELECT typeof(date_trunc(",
        "SELECT typeof(count(*))",
    ),
    "names of columns without an alias": (
        'people.select((F.col("age") + 1).alias("a"), (F.col("salary") * 2)',
        'people.select(F.avg("age"), F.sum("salary")',
        'people.select(F.col("age") / 2, F.lit(1)',
        'people.select(F.ceil("salary"), F.round("age")',
    ),
    "rows with equal keys come in another order": ("people.rollup(", "people.cube("),
    "there is one type of intervals, and days between dates are a number": (
        "SELECT DATE '2024-01-31' + 1",
        "SELECT INTERVAL '1' DAY",
    ),
    "an error: text compared with or added to a number": (
        "SELECT x FROM VALUES ('1'), ('2'), ('10')",
        'people.select(F.col("age") + F.lit("1"))',
    ),
    "an error: a unit, a pattern, a function or an argument that is not there": (
        "SELECT date_trunc('MONTH'",
        "SELECT to_char(1234.5",
        "SELECT mask('AbCD",
    ),
}
_KNOWN = tuple(beginning for snippets in DIFFERENT.values() for beginning in snippets)


@pytest.fixture(scope="module")
def given() -> Iterator[dict[str, Any]]:
    """What snippets refer to, here."""
    with spark_session(in_process=True, nodes=1, progress=False, prints=False) as spark:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        yield names(spark, functions, Window, Row)


def test_each_difference_is_of_a_snippet() -> None:
    """None is listed that is not tried."""
    assert [] == [known for known in _KNOWN if not any(t.startswith(known) for t in SPARKS)]


@pytest.mark.sample(12)
@pytest.mark.parametrize("part", range(24))
def test_snippets_have_sparks_answers(part: int, given: dict[str, Any]) -> None:
    """Rows as Spark's `show` draws them, or an error where Spark has one."""
    texts = [text for number, text in enumerate(SPARKS) if number % 24 == part]
    found = {text: answer(text, given) for text in texts}
    wrong = [
        f"{text}\n  Spark     {SPARKS[text]}\n  minishark {mine}"
        for text, mine in found.items()
        if (SPARKS[text] == mine) == text.startswith(_KNOWN)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("datediff(MONTH, DATE '2024-01-31', DATE '2024-02-29')", 0),
        ("datediff(MONTH, DATE '2024-02-29', DATE '2024-01-31')", 0),
        ("datediff(MONTH, DATE '2024-01-29', DATE '2024-02-29')", 1),
        ("timestampdiff(YEAR, DATE '2023-06-01', DATE '2025-05-31')", 1),
        ("timestampdiff(QUARTER, DATE '2024-07-15', DATE '2024-01-14')", -2),
        ("timestampdiff(HOUR, TIMESTAMP '2024-01-01 23:30:00', DATE '2024-01-02')", 0),
        ("datediff(DAY, TIMESTAMP '2024-01-01 23:30:00', TIMESTAMP '2024-01-02 01:00:00')", 0),
        ("datediff(DATE '2024-02-29', DATE '2024-01-31')", 29),
        ("7.9 DIV 2", 3),
        ("-7 DIV 2", -3),
        ("9007199254740993 DIV 1", 9007199254740993),
        ("typeof(7 DIV 2)", "bigint"),
        ("substring('hello', 2, -1)", ""),
        ("substr('hello', 2, 3)", "ell"),
        ("max(r) FROM (SELECT rank() OVER (PARTITION BY id % 3 ORDER BY id) r FROM range(6))", 2),
    ],
)  # fmt: skip
def test_units_and_quotients_are_whole(text: str, expected: Any, given: dict[str, Any]) -> None:
    """As in Spark, where DuckDB counts beginnings of units, and quotients have fractions."""
    ((value,),) = given["spark"].sql(f"SELECT {text}").collect()
    assert expected == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Elements: by positions from 0, also of a column's, and of maps by their keys.
        ("array(10, 20)[id] FROM range(2) WHERE id = 1", 20),
        ("m[1] FROM VALUES (map(1, 'a')) AS t(m)", "a"),
        ("m[k] FROM VALUES (map('b', 1), 'b') AS t(m, k)", 1),
        ("array(1, NULL)[1]", None),
        ("collect_list(id)[0] FROM range(1)", 0),
        ("try_element_at(array(1), 5)", None),
        ("CAST(array(array(1, 2), array(NULL)) AS STRING)", "[[1, 2], [null]]"),
        ("array(1)[NULL]", None),
        ("map(true, 'y')[true]", "y"),
        ("map(DATE '2024-01-31', 'y')[DATE '2024-01-31']", "y"),
        ("map(1, 'x', 8, 'y')[max(id)] FROM range(9)", "y"),
        ("element_at(array(10, 20, 30), min(id) + 2) FROM range(9)", 20),
        ("array(10, 20, 30)[max(id) - 7] FROM range(9)", 20),
        ("array_sort(collect_list(id))[count(id) - 1] FROM range(9)", 8),
        ("array(10, 20)[row_number() OVER (ORDER BY id) - 1] FROM range(1)", 10),
        # Aggregates, whose types DuckDB does not know where it chooses a macro.
        ("sum(x) FROM VALUES ('1'), ('2.5') AS t(x)", 3.5),
        ("avg(x) FROM VALUES ('1'), ('2.5') AS t(x)", 1.75),
        ("typeof(sum(x)) FROM VALUES (1), (2) AS t(x)", "bigint"),
        ("typeof(sum(x)) FROM VALUES (1.5), (2.5) AS t(x)", "decimal(21,1)"),
        ("sum(DISTINCT x) + sum(x) FILTER (WHERE x > 1) FROM VALUES (1), (2), (2) AS t(x)", 7),
        ("max(s) FROM (SELECT sum(x) OVER (ORDER BY x) AS s FROM VALUES (1), (2) AS t(x))", 3),
        ("ceil(sum(x) / 2) FROM VALUES (1), (2) AS t(x)", 2),
        ("CAST(avg(x) AS INT) FROM VALUES (1.5D), (2.7D) AS t(x)", 2),
        ("CAST(max(x) AS INT) FROM VALUES ('1'), ('2') AS t(x)", 2),
        ("max(x) + INTERVAL 1 DAY FROM VALUES (TIMESTAMP_NTZ '2024-01-01 10:00:00') AS t(x)",
         dt.datetime(2024, 1, 2, 10)),  # noqa: DTZ001 - it has none
        ("max(x) + INTERVAL 1 DAY FROM VALUES (DATE '2024-01-01') AS t(x)", dt.date(2024, 1, 2)),
        ("length(max(x)) FROM VALUES ('ä') AS t(x)", 1),
        ("sequence(min(x), max(x), INTERVAL 1 DAY)[0] FROM VALUES (DATE '2024-01-02') AS t(x)",
         dt.date(2024, 1, 2)),
        ("sequence(1, count(*)) FROM range(2)", [1, 2]),
        ("sequence(1, max(id) - 5) FROM range(4)", [1, 0, -1, -2]),
        ("sequence(min(id), max(id)) FROM range(2)", [0, 1]),
        ("last(x, true) FROM VALUES (1), (NULL) AS t(x)", 1),
        ("any(x) FROM VALUES (true), (false) AS t(x)", True),
        ("any(x) = true FROM VALUES (true), (false) AS t(x)", True),
        ("'a' LIKE ANY ('b', 'a')", True),
        ("y FROM (SELECT 'x' AS p) PIVOT (count(*) FOR p IN ('x', 'y'))", None),
        ("x FROM (SELECT 'x' p, id > 1 b FROM range(3)) PIVOT (count(NOT b) FOR p IN ('x'))", 3),
        ("x FROM (SELECT 'x' p, nullif(id, 1) i FROM range(3)) PIVOT (count(1, i) FOR p IN ('x'))",
         2),
        ("x FROM (SELECT 'x' p, id % 2 i FROM range(3)) PIVOT (count(DISTINCT i) FOR p IN ('x'))",
         2),
        ("x FROM (SELECT 'x' p, array(id) a FROM range(3)) PIVOT (count(get(a, 1)) FOR p IN ('x'))",
         0),
        ("typeof(x) FROM (SELECT 'x' p, 1 v) PIVOT (sum(v) FOR p IN ('x'))", "bigint"),
        ("CAST(x AS STRING) FROM (SELECT 'x' p, 1.5 v) PIVOT (avg(v) FOR p IN ('x'))", "1.50000"),
        ("`x_sum(v)` FROM (SELECT 'x' p, 2 v) PIVOT (sum(v), avg(v) FOR p IN ('x'))", 2),
        ("s + 1 FROM (SELECT 'x' p, 1 q, 2 v) PIVOT (sum(v) FOR (p, q) IN (('x', 1) AS s))", 3),
        ("listagg(x) FROM VALUES ('a'), ('b') AS t(x)", "ab"),
        # Dates and intervals
        ("element_at(sequence(DATE '2024-01-31', DATE '2024-04-30', INTERVAL 1 MONTH), 3)",
         dt.date(2024, 3, 31)),
        ("typeof(sequence(DATE '2024-01-31', TIMESTAMP '2024-04-30', INTERVAL 1 MONTH)[2])",
         "timestamp"),
        ("DATE '2024-01-31' + INTERVAL 1 MONTH + INTERVAL 1 DAY", dt.date(2024, 3, 1)),
        ("DATE '2024-01-31' + INTERVAL '1-1' YEAR TO MONTH", dt.date(2025, 2, 28)),
        ("INTERVAL '1 2:03:04' DAY TO SECOND = INTERVAL 93784 SECOND", True),
        ("INTERVAL '-3:04' MINUTE TO SECOND = INTERVAL -184 SECOND", True),
        # Numbers, and what is written as text
        ("'5' / 2", 2.5),
        ("'5' + 1", 6),
        ("'5' * 1.5D", 7.5),
        ("CAST('9007199254740993' AS BIGINT) + '1'", 9007199254740994),
        ("typeof(CAST(1.5D AS INT) % ('2'))", "bigint"),
        ("x + '1.5' FROM VALUES (1.5D) AS t(x)", 3.0),
        ("avg(x) * '2.5' FROM VALUES (1D), (3D) AS t(x)", 5.0),
        ("round(1.005D, 2)", 1.01),
        ("round(-0.285D, 2)", -0.29),
        ("round(avg(x), 2) FROM VALUES (1.125D) AS t(x)", 1.13),
        ("typeof(round(2.675, 2))", "decimal(4,2)"),
        ("typeof(to_number('12.50', '99.99'))", "decimal(4,2)"),
        ("lpad('ab', 5, '') || rpad('abc', 2, '')", "abab"),
        ("regexp_replace('abcabc', 'a', 'x', 2)", "abcxbc"),
        ("array_join(array('a', NULL), ',', NULL)", None),
        ("array_sort(array('bb', 'a', 'ccc'), (x, y) -> length(y) - length(x))[0]", "ccc"),
        ("current_catalog() || '.' || current_schema() || '.' || current_database()",
         "spark_catalog.default.default"),
    ],
)  # fmt: skip
def test_text_has_sparks_values(text: str, expected: Any, given: dict[str, Any]) -> None:
    """As Spark 4.0.1 has them."""
    ((value,),) = given["spark"].sql(f"SELECT {text}").collect()
    assert expected == value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("array(1, 2)[2]", r"There is no element at this position\. Write get\(\)"),
        ("array(1, 2)[-1]", "There is no element"),
        ("element_at(array(1, 2), 3)", "There is no element"),
        ("element_at(array(1, 2), 0)", "There is no element"),
        ("slice(array(1, 2), 0, 1)", "There is no element"),
        ("sum(x) FROM VALUES (9223372036854775807), (1) AS t(x)", "can't be cast"),
    ],
)
def test_what_is_not_there_is_an_error(text: str, told: str, given: dict[str, Any]) -> None:
    """In ANSI mode, as it is from the start; elements are NULL without it."""
    spark = given["spark"]
    with pytest.raises(DataValueError, match=told):
        spark.sql(f"SELECT {text}").collect()
    if told.startswith("There"):
        spark.conf.set("spark.sql.ansi.enabled", False)
        try:
            ((value,),) = spark.sql(f"SELECT {text}").collect()
        finally:
            spark.conf.unset("spark.sql.ansi.enabled")
        assert value is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("CAST(named_struct('a', id) AS STRING) FROM range(1)", r"write to_json\(\), or cast"),
        ("CAST(map('a', 1) AS STRING)", r"write to_json\(\), or cast"),
        ("CAST(array(array('a')) AS STRING)", r"write to_json\(\), or cast"),
        ("hex(lpad(X'01', 3, X'00'))", "Blobs are not padded"),
        ("percentile(v, 0.5, n) FROM VALUES (1, -1), (2, 1) AS t(v, n)", "value -1 can't be cast"),
        ("d + i FROM VALUES (DATE '2015-09-30', INTERVAL 1 YEAR) AS t(d, i)", "cast the date"),
        ("d - i * 2 FROM VALUES (DATE '2015-09-30', INTERVAL 1 DAY) AS t(d, i)", "cast the date"),
        ("'2' * '3'", "both operands are texts; cast one of them"),
        ("* FROM VALUES (1, 2) AS l(a, b) NATURAL JOIN VALUES (2, 3) AS r(b, c)", "JOIN ... USING"),
    ],
)
def test_what_would_differ_silently_is_refused(text: str, told: str, given: dict[str, Any]) -> None:
    """With what to write instead."""
    with pytest.raises((DataValueError, QueryError), match=told):
        given["spark"].sql(f"SELECT {text}").collect()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('spark.range(2).agg(F.expr("sum(id)"), F.expr("try_sum(id * 2)"))',
         [("sum(id)", "bigint"), ("try_sum((id * 2))", "bigint")]),
        ('people.agg(F.sum("age"), F.avg("tags"), F.sum(F.col("age") * 2))',
         [("sum(age)", "bigint"), ("avg(tags)", "double"),
          ("sum((age * 2))", "bigint")]),
        ('people.select(F.udf(lambda: "7")().cast("int").alias("u"))', [("u", "int")]),
        ('people.select(F.col("salary").cast("string"), F.split("tags", ",")[0].alias("t"))',
         [("salary", "string"), ("t", "string")]),
        ('people.select((F.col("hired") + F.expr("INTERVAL 1 DAY")).alias("d"))', [("d", "date")]),
        ("spark.sql(\"SELECT map(1, 'x') AS m\").select(F.col('m')[1]).select('m[1]')",
         [("m[1]", "string")]),
        ('people.select((F.col("age") * 2).cast("string"), F.split("tags", ",")[0])',
         [("CAST((age * 2) AS VARCHAR)", "string"),
          ("string_split_regex(tags, ',')[1]", "string")]),
    ],
)  # fmt: skip
def test_names_and_types_of_columns(text: str, expected: Any, given: dict[str, Any]) -> None:
    """Those of Spark's, also of functions of constants, which are not called for that."""
    frame = eval(text, given)
    assert expected == frame.dtypes
    assert [name for name, _ in expected] == frame.schema.names


def test_files_are_tables_in_text(given: dict[str, Any], tmp_path: Path) -> None:
    """By the name of their format, one or a folder of them."""
    spark = given["spark"]
    spark.range(3).write.parquet(f"{tmp_path}/one.parquet")
    spark.range(3).repartition(2).write.parquet(f"{tmp_path}/many")
    spark.range(1).write.parquet(f"{tmp_path}/many", mode="overwrite")
    spark.range(3).write.parquet(f"{tmp_path}/many", mode="overwrite", partitionBy=None)
    for name in ("one.parquet", "many"):
        ((total,),) = spark.sql(f"SELECT sum(id) FROM parquet.`{tmp_path}/{name}`").collect()
        assert total == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('people.agg(F.ceil(F.avg("salary")), F.round(F.avg("salary"), 1)).first()', (13, 12.8)),
        ('people.join(depts, "dept", "leftsemi").columns[0]', "dept"),
        ('people.join(depts, "dept", "leftanti").columns[:2]', ["dept", "name"]),
        ('people.select(F.create_map(F.lit(1), F.lit("a"))[1]).first()[0]', "a"),
        ('people.select(F.lit(Decimal("0.03")) / 32).first()[0]', Decimal("0.000938")),
        ('people.select(-F.lit(Decimal("0.01")) / 32).first()[0]', Decimal("-0.000313")),
        ('people.agg(F.sum(F.lit(Decimal("12345678901234567.89"))) / F.count("*")).first()[0]',
         Decimal("12345678901234567.8900000000")),
        ('people.select(F.lit(Decimal("7.25")) / F.lit(Decimal("2.5")) / 7).first()[0]',
         Decimal("0.41428571")),
        ('people.agg(F.avg(F.col("age").cast("decimal(20,2)")) / 3).first()[0]',
         Decimal("11.11111100")),
        ('people.sortWithinPartitions(-1).select("name").first()[0]', "d"),
        ("people.localCheckpoint(False).count()", 4),
        ("people.explain(extended=True)", None),
        ("people.agg(F.expr(\"any(sex = 'f')\")).first()[0]", True),
        ('people.agg(F.percentile_approx("age", F.lit(0.5), F.lit(100))).first()[0]', 30),
        ('people.select(F.to_unix_timestamp(F.lit("2024+01"), F.col("f"))).first()[0]', 1704067200),
        ('people.select(F.unhex(F.lit("41"))).first()[0]', bytearray(b"A")),
        ('people.agg(F.listagg(F.unhex(F.lit("41")), b"-")).first()[0]', b"A-A-A-A"),
        ('people.agg(F.listagg(F.lit("a"), F.lit(None))).first()[0]', "aaaa"),
        ('people.select(F.to_json(F.parse_json(F.lit("[ 1 ]")))).first()[0]', "[1]"),
        ('people.select(F.udf(lambda a, b: f"{a}{b}")(b="sex", a="name")).first()[0]', "af"),
        ('spark.createDataFrame([(Row(y=1, x=2),)], "v struct<x:int,y:int>").first().v', (1, 2)),
        ('spark.createDataFrame([({"y": 1, "x": 2},)], "v struct<x:int,y:int>").first().v', (2, 1)),
        ('spark.createDataFrame([({"x": 1, "z": 2},)], "v struct<x:int,y:int>").first().v',
         (1, None)),
        ('spark.createDataFrame([(Row(y=1, x=2),), (Row(x=1, y=2),)], ["v"]).collect()[1].v',
         (2, 1)),
        ('spark.createDataFrame([([b"x"],)], "v array<string>").first().v', ["x"]),
        ('people.select(F.to_number(F.lit("1,2.5"), F.lit("9,9.9"))).dtypes[0][1]', "decimal(3,1)"),
        ('spark.createDataFrame([((2, "y"),)], "v struct<a:int,b:string>").first().v.b', "y"),
        ('spark.createDataFrame([({"b": 2},)], "v map<string,string>").first().v', {"b": "2"}),
    ],
)  # fmt: skip
def test_columns_have_sparks_values(text: str, expected: Any, given: dict[str, Any]) -> None:
    """As Spark 4.0.1 has them."""
    people = given["people"].withColumn("f", given["F"].lit("yyyy+MM"))
    assert expected == eval(text, {**given, "people": people, "Decimal": Decimal})


@pytest.mark.parametrize(
    ("joins", "expected"),
    [
        ("JOIN VALUES ('a', 1) AS r(id, y) USING (id)", ["id", "v", "x", "y"]),
        ("FULL JOIN VALUES ('b', 1) AS r(id, y) USING (id)", ["id", "v", "x", "y"]),
        (
            "JOIN VALUES ('a', 1) AS r(id, y) USING (id) JOIN VALUES (7, 5) AS t(w, x) USING (x)",
            ["x", "id", "v", "y", "w"],
        ),
        ("CROSS JOIN VALUES (1) AS r(y)", ["v", "id", "x", "y"]),
    ],
)
def test_columns_of_using_are_first(joins: str, expected: list[str], given: dict[str, Any]) -> None:
    """Of the last join before those of others; DuckDB leaves them where they are."""
    query = f"SELECT * FROM VALUES (1, 'a', 5) AS l(v, id, x) {joins}"
    assert expected == given["spark"].sql(query).columns
