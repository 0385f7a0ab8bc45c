"""DataFrames: each verb gives what the equivalent SQL gives in DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from minishark import DataFrame, Row, Window
from minishark import functions as F
from minishark.errors import (
    AnalysisException,
    ColumnError,
    DataError,
    MinisharkError,
    OptionError,
    ParseException,
    QueryError,
    UnsupportedError,
)
from minishark.query.answers import differences, output_order
from minishark.session.session import Session

Verbs = Callable[[DataFrame, DataFrame], DataFrame]

VERBS: dict[str, tuple[str, Verbs]] = {
    "select": ("SELECT id, k + 1 AS n FROM t", lambda t, u: t.select("id", (t.k + 1).alias("n"))),
    "filter": (
        "FROM t WHERE k > 3 AND s = 'name1'",
        lambda t, u: t.filter((t.k > 3) & (t.s == "name1")),
    ),
    "filter text": ("FROM t WHERE k > 3 OR b", lambda t, u: t.filter("k > 3 OR b")),
    "with_column": ("SELECT *, v * 2 AS w FROM t", lambda t, u: t.with_column("w", t.v * 2)),
    "with_column twice": (
        "SELECT *, v * 2 AS w, w + 1 AS x FROM t",
        lambda t, u: t.with_column("w", t.v * 2).with_column("x", F.col("w") + 1),
    ),
    "replace": ("SELECT * REPLACE (v * 2 AS v) FROM t", lambda t, u: t.with_column("v", t.v * 2)),
    "rename": ("SELECT * RENAME (v AS w) FROM t", lambda t, u: t.with_column_renamed("v", "w")),
    "drop": ("SELECT * EXCLUDE (v, s) FROM t", lambda t, u: t.drop("v", t.s)),
    "inner": (
        "SELECT k, t.* EXCLUDE (k), u.* EXCLUDE (k) FROM t JOIN u USING (k)",
        lambda t, u: t.join(u, "k"),
    ),
    "full": (
        "SELECT k, t.v, u.w FROM t FULL JOIN u USING (k)",
        lambda t, u: t.join(u, "k", "full").select("k", "v", "w"),
    ),
    "condition": (
        "SELECT t.id, u.id AS other FROM t LEFT JOIN u ON t.k = u.k AND u.w > 3",
        lambda t, u: t.join(u, (t.k == u.k) & (u.w > 3), "left").select(t.id, u.id.alias("other")),
    ),
    "semi": ("FROM t SEMI JOIN u USING (k)", lambda t, u: t.join(u, "k", "left_semi")),
    "anti": ("FROM t ANTI JOIN u USING (k)", lambda t, u: t.join(u, t.k == u.k, "anti")),
    "group": (
        "SELECT k, sum(v) AS total, count(*) AS n FROM t GROUP BY k",
        lambda t, u: t.group_by("k").agg(F.sum("v").alias("total"), F.count().alias("n")),
    ),
    "having": (
        "SELECT k, count(*) AS count FROM t GROUP BY k HAVING count(*) > 5",
        lambda t, u: t.group_by("k").count().filter("count > 5"),
    ),
    "rollup": (
        "SELECT b, k, avg(v) FROM t GROUP BY ROLLUP (b, k)",
        lambda t, u: t.rollup("b", "k").avg("v"),
    ),
    "pivot": (
        "SELECT k, sum(v) FILTER (b) AS yes, sum(v) FILTER (NOT b) AS no FROM t GROUP BY k",
        lambda t, u: t.group_by("k").pivot("b", [True, False]).sum("v").to_df("k", "yes", "no"),
    ),
    "order": (
        "FROM t ORDER BY k DESC NULLS FIRST, id",
        lambda t, u: t.order_by(t.k.desc_nulls_first(), "id"),
    ),
    "limit": (
        "FROM t ORDER BY id LIMIT 5 OFFSET 3",
        lambda t, u: t.order_by("id").offset(3).limit(5),
    ),
    "distinct": ("SELECT DISTINCT k FROM t", lambda t, u: t.select("k").distinct()),
    "union": (
        "SELECT k FROM t UNION ALL SELECT k FROM u",
        lambda t, u: t.select("k").union(u.select("k")),
    ),
    "by name": (
        "SELECT id, k, v FROM t UNION ALL BY NAME SELECT w, k FROM u",
        lambda t, u: t.select("id", "k", "v").union_by_name(u.select("w", "k"), True),
    ),
    "intersect": (
        "SELECT k FROM t INTERSECT SELECT k FROM u",
        lambda t, u: t.select("k").intersect(u.select("k")),
    ),
    "except": (
        "SELECT k FROM t EXCEPT ALL SELECT k FROM u",
        lambda t, u: t.select("k").except_all(u.select("k")),
    ),
    "window": (
        "SELECT id, row_number() OVER (PARTITION BY k ORDER BY id DESC) AS n FROM t QUALIFY n = 1",
        lambda t, u: t.select(
            "id", F.row_number().over(Window.partition_by("k").order_by(t.id.desc())).alias("n")
        ).filter("n = 1"),
    ),
}


@pytest.fixture
def t(toy_session: Session) -> DataFrame:
    """A toy table."""
    return toy_session.table("t")


@pytest.fixture
def u(toy_session: Session) -> DataFrame:
    """Another toy table."""
    return toy_session.table("u")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", VERBS)
def test_verbs_are_their_sql(
    name: str, t: DataFrame, u: DataFrame, plain: duckdb.DuckDBPyConnection
) -> None:
    """A chain of verbs has the names, types and rows that its SQL has in DuckDB."""
    sql, verbs = VERBS[name]
    frame, relation = verbs(t, u), plain.sql(sql)
    assert [
        (n, str(k)) for n, k in zip(relation.columns, relation.types, strict=True)
    ] == frame.dtypes
    expected = relation.to_arrow_table()
    order = output_order(plain, sql, expected.column_names)
    assert [] == differences(expected, frame.to_arrow(), ordered_by=order)


def test_a_column_of_a_frame_means_that_column(t: DataFrame, u: DataFrame) -> None:
    """Where both sides of a join have a name, the DataFrame's column tells which is meant."""
    joined = t.join(u, t.id == u.id).filter(u.k > 5).select(t.k, u.k)
    assert ["k", "k"] == joined.columns
    with pytest.raises(ColumnError, match=r"Column 'k' is ambiguous"):
        joined.select("k")


def test_names_are_checked_at_once(t: DataFrame) -> None:
    """What is misspelt raises where it is typed, and the nearest name is said."""
    with pytest.raises(ColumnError, match=r"Did you mean id"):
        t.select("idd")
    with pytest.raises(AttributeError, match=r"Did you mean group_by"):
        t.group_bi("k")
    with pytest.raises(AttributeError, match=r"Did you mean levenshtein"):
        F.levenstein("s", "s")
    with pytest.raises(QueryError, match=r"No function matches|Could not convert"):
        t.select(F.upper("s") + 1)


def test_camel_case_is_snake_case(t: DataFrame) -> None:
    """PySpark's spelling means the same method."""
    assert t.withColumn("x", F.lit(1)).orderBy("id").sql() == (
        t.with_column("x", F.lit(1)).order_by("id").sql()
    )


def test_rows_are_tuples_with_names(toy_session: Session) -> None:
    """A row answers to positions, names and attributes, and equals a tuple and a dictionary."""
    row = toy_session.sql("SELECT 1 AS a, {'b': [2]} AS s, MAP {'x': 3} AS m").first()
    assert isinstance(row, Row)
    assert (1, ([2],), {"x": 3}) == row == {"a": 1, "s": {"b": [2]}, "m": {"x": 3}}
    assert (1, [2], 3) == (row["a"], row.s.b, row[2]["x"])
    assert {"a": 1, "s": {"b": [2]}, "m": {"x": 3}} == row.asDict()


def test_sessions_do_not_mix(toy_session: Session, t: DataFrame) -> None:
    """Only DataFrames of one session can be combined."""
    with pytest.raises(OptionError, match="not a list"):
        t.join([1], "k")  # type: ignore[arg-type]


def test_rows_that_no_frame_needs_are_freed(toy_session: Session) -> None:
    """The rows of create_dataframe lie in the cluster as long as a DataFrame needs them."""
    before = toy_session.tables
    frame = toy_session.create_dataframe([(1, "a")], ["n", "s"]).filter("n = 1")
    catalog = toy_session._runtime.engine.tables.catalog
    kept = [name for name in catalog.loaded if name.startswith("_kept_")]
    assert [(1, "a")] == frame.collect()
    assert before == toy_session.tables
    del frame
    toy_session.sql("SELECT 1")
    left = [name for name in catalog.loaded if name in kept]
    assert kept[:-1] == left


def test_a_column_has_no_truth_value(t: DataFrame) -> None:
    """`and`, `or`, `not` and chained comparisons of Columns raise."""
    with pytest.raises(TypeError, match=r"combine conditions with & \| ~"):
        bool((t.k > 1) and (t.k < 3))
    with pytest.raises(MinisharkError, match="compare with =="):
        t.filter(t.k is None)


def test_missing_values(toy_session: Session) -> None:
    """fillna, dropna and replace treat NULL and NaN alike, and keep to columns of their kind."""
    frame = toy_session.create_dataframe(
        [(1, "a", 1.5), (None, None, float("nan")), (3, "b", None)], ["i", "s", "f"]
    )
    assert [(1, "a", 1.5), (0, None, 0.0), (3, "b", 0.0)] == frame.fillna(0).collect()
    assert [1, 9, 3] == [row.i for row in frame.na.fill({"I": 9}).collect()]
    assert [(1, "a", 1.5)] == frame.dropna().collect()
    assert 2 == frame.dropna(thresh=2).count() == frame.dropna("all").count()
    assert ["x", None, "b"] == [row.s for row in frame.replace({"a": "x"}).collect()]
    assert [10, None, 30] == [row.i for row in frame.replace([1, 3], [10, 30], "i").collect()]
    with pytest.raises(OptionError, match="does not go into column 's'"):
        frame.fillna(0, "s")
    with pytest.raises(OptionError, match="fillna"):
        frame.replace(None, 1)


def test_summaries(t: DataFrame, plain: duckdb.DuckDBPyConnection) -> None:
    """Both describe and summary have a row for each statistic, as text."""
    (figures,) = plain.sql("SELECT count(k), avg(k), stddev(k), min(k), max(k) FROM t").fetchall()
    described = t.describe("k", "s").collect()
    assert ["count", "mean", "stddev", "min", "max"] == [row.summary for row in described]
    assert pytest.approx(figures) == tuple(float(row.k) for row in described)
    assert [("50%", "4.5")] == t.filter("k BETWEEN 4 AND 5").select("k").summary("50%").collect()
    with pytest.raises(OptionError, match="There is no statistic 'medium'"):
        t.summary("medium")


def test_samples(toy_session: Session) -> None:
    """A sample has rows of the DataFrame, and a split has each row once."""
    numbers = toy_session.range(1000)
    drawn = {row.id for row in numbers.sample(0.5, seed=1).collect()}
    assert 300 < len(drawn) < 700
    assert drawn <= set(range(1000))
    parts = numbers.random_split([1, 3], seed=2)
    assert list(range(1000)) == sorted(row.id for part in parts for row in part.collect())
    for made in (
        numbers.sample(0.5, 1),
        numbers.sample(False, 0.5, 1),
        numbers.sample(None, 0.5, seed=1),
        numbers.sample(withReplacement=False, fraction=0.5, seed=1),
    ):
        assert drawn == {row.id for row in made.collect()}
    with pytest.raises(MinisharkError, match="with replacement"):
        numbers.sample(True, 0.5)


def test_pyspark_keywords(toy_session: Session) -> None:
    """Methods in camelCase take their keywords so, too."""
    few, more = toy_session.sql("SELECT 1 AS a"), toy_session.sql("SELECT 2 AS a, 3 AS b")
    found = few.unionByName(more, allowMissingColumns=True).collect()
    assert [(1, None), (2, 3)] == found
    with pytest.raises(TypeError, match="allowMissing"):
        few.unionByName(more, allowMissing=True)


def test_json_and_maps_as_in_pyspark(toy_session: Session) -> None:
    """A malformed text is NULL, schemas are text, and a map explodes to keys and values."""
    texts = ['{"a": 1, "b": ["x"]}', '{"a": "no"}', "{a", None]
    frame = toy_session.create_dataframe([(text,) for text in texts], ["j"])
    got = frame.select(F.get_json_object("j", "$.a").alias("a")).collect()
    assert [("1",), ("no",), (None,), (None,)] == got
    parsed = frame.select(F.from_json("j", "a INT, b VARCHAR[]").alias("s"))
    assert [(1, ["x"]), (None, None), (None, None), None] == [row.s for row in parsed.collect()]
    assert [("s", "STRUCT(a INTEGER, b VARCHAR[])")] == parsed.dtypes
    maps = toy_session.sql("SELECT 1 AS id, MAP {'x': 2, 'y': 3} AS m UNION ALL SELECT 4, MAP {}")
    assert [(1, "x", 2), (1, "y", 3)] == maps.select("id", F.explode("m")).collect()
    assert ["id", "key", "value"] == maps.select("id", F.explode(maps.m)).columns


def test_explain_prints(toy_session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    """As PySpark's does; `plan_text` returns it."""
    frame = toy_session.range(3)
    frame.explain("physical")
    assert capsys.readouterr().out == frame.plan_text("physical") + "\n"


def test_odd_keys_and_names(t: DataFrame, toy_session: Session) -> None:
    """Constants can be keys, fields keep their names, and all columns of a name are replaced."""
    frame = t.group_by(F.lit(3), "b").agg(F.count().alias("n")).order_by("n", "b")
    assert [(3, None, 12), (3, False, 24), (3, True, 24)] == frame.collect()
    assert [] == t.filter("false").group_by(F.lit(1)).count().collect()
    fields = toy_session.table("kinds").select("st.p", F.col("st.q").alias("other"))
    assert ["p", "other"] == fields.columns
    with pytest.raises(ColumnError, match=r"no column 'id\.zz'"):
        t.select("id.zz")
    assert [(0, 0)] == t.select("id", "id").with_column("id", F.lit(0)).distinct().collect()


def test_order_lasts_through_what_follows(t: DataFrame) -> None:
    """Rows that were sorted stay so when columns are computed and rows are left out."""
    down = t.order_by(t.id.desc())
    assert [-59, -58] == [row.id for row in down.select((-t.id).alias("id")).take(2)]
    assert [4, 3, 2, 1, 0] == [row.id for row in down.filter("id < 5").collect()]
    assert [118, 116] == [row.n for row in down.limit(2).select((t.id * 2).alias("n")).collect()]


@pytest.mark.slow
def test_many_threads_build_and_run_frames(toy_session: Session, t: DataFrame) -> None:
    """DataFrames are made, joined, run and freed by many threads at once."""

    def run(number: int) -> list[Row]:
        mine = toy_session.create_dataframe([(number, number * 10)], ["n", "tens"])
        return mine.join(t, mine.n == t.id).select("n", "tens", t.id).collect()

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(run, range(16)))
    assert [[(n, n * 10, n)] for n in range(16)] == found


def test_rows_without_names_are_not_listed(toy_session: Session) -> None:
    """SHOW TABLES and the catalog have no tables that only DataFrames know."""
    frame = toy_session.create_dataframe([(1,)], ["n"])
    shown = toy_session.sql("SHOW TABLES").to_arrow().column("name").to_pylist()
    assert [] == [name for name in shown if name.startswith("_kept")]
    assert toy_session.tables == [info.name for info in toy_session.catalog.list_tables()]
    assert 1 == frame.count()


@pytest.mark.sample(3)
@pytest.mark.parametrize("text", ["1.9", "1e3", "0x1", "1_000", "true", ""])
def test_text_that_is_no_whole_number_is_an_error(toy_session: Session, text: str) -> None:
    """As in PySpark, where SQL's CAST rounds it, or takes it for another number."""
    frame = toy_session.create_dataframe([(text,)], ["s"])
    with pytest.raises(MinisharkError, match=f"{re.escape(text)} .no whole number.' to INT32"):
        frame.select(frame["s"].cast("int")).collect()
    assert [(None,)] == [tuple(row) for row in frame.select(frame["s"].try_cast("int")).collect()]


def _values(frame: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.collect()]


def test_a_function_of_whole_numbers_cuts_fractions_off(toy_session: Session) -> None:
    """As in PySpark, where SQL's CAST rounds: floats, decimals, and NULLs."""
    frame = toy_session.create_dataframe([(1.5,), (-1.5,), (2.5,), (None,)], "x double")
    for type_ in ("int", "bigint"):
        same = F.udf(lambda x: x, type_)
        assert [(1,), (-1,), (2,), (None,)] == _values(frame.select(same("x")))
    exact = F.udf(lambda x: x if x is None else Decimal(repr(x)), "int")
    assert [(1,), (-1,), (2,), (None,)] == _values(frame.select(exact("x")))


def test_quantiles_are_values_of_the_column(toy_session: Session) -> None:
    """The least that is as great as the fraction of all, and its type is the column's."""
    frame = toy_session.create_dataframe([(x,) for x in (60, 70, 80, 100, 100)], "v int")
    quantiles = F.percentile_approx("v", 0.25), F.percentile_approx("v", [0.0, 0.5, 0.9], 100)
    assert [(70, [60, 80, 100])] == _values(frame.agg(*quantiles))
    few = toy_session.create_dataframe([(x,) for x in (1, 2, 2, 4)], "v int")
    assert [(1, 2)] == _values(
        few.agg(F.percentile_approx("v", 0.25), F.approx_percentile("v", 0.5))
    )


def test_columns_keep_their_types_when_they_are_filled(toy_session: Session) -> None:
    """A fraction for whole numbers is cut off, a whole number for floats is a float."""
    frame = toy_session.create_dataframe([(None, None)], "i int, d double")
    assert [(1, 1.7)] == _values(frame.fillna(1.7))
    assert [(-1, 3.0)] == _values(frame.fillna({"i": -1.7, "d": 3}))
    assert frame.dtypes == frame.fillna(1.7).dtypes == frame.fillna({"i": 2.9, "d": 3}).dtypes


def test_sparks_settings_are_ignored(toy_session: Session) -> None:
    """With a warning, as by the builder; a default is what they have."""
    name = "spark.sql.shuffle.partitions"
    with pytest.warns(UserWarning, match=f"minishark ignores the setting {name}"):
        toy_session.conf.set(name, 4)
    with pytest.warns(UserWarning, match=f"minishark ignores the setting {name}"):
        toy_session.conf.unset(name)
    assert "7" == toy_session.conf.get(name, "7")
    with pytest.raises(OptionError, match="There is no setting"):
        toy_session.conf.get(name)


def test_lines_of_text_files_are_items(toy_session: Session, tmp_path: Path) -> None:
    """Empty ones, too."""
    (tmp_path / "a.txt").write_text("to be or\n\nnot to be\n")
    lines = toy_session.spark_context.text_file(tmp_path / "a.txt")
    assert ["", "not to be", "to be or"] == sorted(lines.collect())
    counts = lines.flat_map(str.split).map(lambda word: (word, 1)).reduce_by_key(int.__add__)
    assert {"to": 2, "be": 2, "or": 1, "not": 1} == dict(counts.collect())


_MALFORMED = [
    ("DROPMALFORMED", [(1, "x"), (3, "z")]),
    ("PERMISSIVE", [(1, "x"), (None, "y"), (3, "z"), (4, None)]),
]


@pytest.mark.parametrize(("mode", "expected"), _MALFORMED)
def test_malformed_rows_of_csv(
    toy_session: Session, tmp_path: Path, mode: str, expected: list[tuple[object, ...]]
) -> None:
    """By their mode they are left out, or what is no value is NULL; else they are an error."""
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,x\nbad,y\n3,z\n4\n")
    read = toy_session.read.schema("a int, b string").option("header", True)
    assert expected == _values(read.option("mode", mode.lower()).csv(path))
    with pytest.raises(MinisharkError):
        read.option("mode", "FAILFAST").csv(path).collect()
    with pytest.raises(OptionError, match="There is no mode OTHER"):
        read.option("mode", "other").csv(path)


def test_malformed_lines_of_json(toy_session: Session, tmp_path: Path) -> None:
    """They are rows of NULLs, or an error; DuckDB does not drop them."""
    path = tmp_path / "a.json"
    path.write_text('{"a":1}\n{bad\n{"a":3}\n')
    read = toy_session.read
    assert [(1,), (None,), (3,)] == _values(read.option("mode", "PERMISSIVE").json(path))
    with pytest.raises(UnsupportedError, match="does not drop malformed lines of JSON"):
        read.option("mode", "DROPMALFORMED").json(path)


def test_values_may_have_line_breaks(toy_session: Session, tmp_path: Path) -> None:
    """With PySpark's option for it, too."""
    (tmp_path / "a.csv").write_text('a,b\n1,"x\ny"\n')
    (tmp_path / "a.json").write_text('{"a":1,\n "b":"x"}\n')
    read = toy_session.read.option("multiLine", True)
    assert [(1, "x\ny")] == _values(read.option("header", True).csv(tmp_path / "a.csv"))
    assert [(1, "x")] == _values(read.json(tmp_path / "a.json"))


def test_what_pyspark_programs_catch_is_raised(toy_session: Session, tmp_path: Path) -> None:
    """By the names that they know."""
    for wrong in (
        lambda: toy_session.sql("SELEC 1"),
        lambda: toy_session.table("none"),
        lambda: toy_session.range(3).select("none"),
        lambda: toy_session.read.parquet(tmp_path / "none.parquet"),
        lambda: toy_session.sql("SELECT * FROM 's3a:/none'"),
    ):
        with pytest.raises(AnalysisException):
            wrong()
    with pytest.raises(ParseException):
        toy_session.sql("SELEC 1")


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        ("delta", r"Use deltalake\.write_deltalake"),
        ("iceberg", r"Use connect\(warehouse"),
        ("orc", "$"),
    ],
)
def test_a_format_that_is_not_written_names_who_writes_it(
    toy_session: Session, kind: str, instead: str
) -> None:
    """Where there is something that does."""
    with pytest.raises(
        UnsupportedError, match=rf"writes parquet, csv, json, not '{kind}'\. ?{instead}"
    ):
        toy_session.range(1).write.format(kind)


@pytest.mark.parametrize(
    ("item", "type_", "expected"),
    [
        (Row(y=1, x=2), "struct<x:int,y:int>", (1, 2)),
        ([Row(y=1, x=2)], "array<struct<x:int,y:int>>", [(1, 2)]),
        ({"y": 1, "x": 2}, "struct<x:int,y:int>", (2, 1)),
        ({"x": 1, "z": 2}, "struct<x:int,y:int>", (1, None)),
        ([b"x", bytearray(b"y"), 1], "array<string>", ["x", "y", "1"]),
        ({"k": b"x"}, "map<string,string>", {"k": "x"}),
    ],
)
def test_nested_values_go_into_declared_types(
    toy_session: Session, item: Any, type_: str, expected: Any
) -> None:
    """Rows by place, dicts by name, as in PySpark; bytes are UTF-8."""
    assert [(1, expected)] == toy_session.createDataFrame(
        [(1, item)], f"a int, b {type_}"
    ).collect()


@pytest.mark.parametrize(
    ("item", "type_", "message"),
    [
        (["ab"], "array<array<string>>", "'ab' is no list"),
        (("x", 1, 2), "struct<p:string,q:int>", "does not have the 2 fields of a struct"),
    ],
)
def test_nested_values_that_do_not_fit(
    toy_session: Session, item: object, type_: str, message: str
) -> None:
    """Texts are not taken apart, nor are values left out."""
    with pytest.raises(DataError, match=message):
        toy_session.create_dataframe([(item,)], f"a {type_}")


def test_the_type_of_a_number_in_a_format_is_known_without_a_call(toy_session: Session) -> None:
    """Also of constants, which DuckDB would compute while it plans."""
    for function in (F.to_number, F.try_to_number):
        frame = toy_session.range(1).select(function(F.lit("1,234.5"), F.lit("9,999.9")))
        assert ["DECIMAL(5,1)"] == [kind for _, kind in frame.dtypes]
        assert [(Decimal("1234.5"),)] == frame.collect()


def test_a_schema_may_be_a_type(toy_session: Session) -> None:
    """As in PySpark, the column of values without names is called `value`."""
    for schema, kind in (("string", "VARCHAR"), ("int", "INTEGER"), ("array<int>", "INTEGER[]")):
        values = {"string": ["a", None], "int": [1, None], "array<int>": [([1],), (None,)]}[schema]
        frame = toy_session.create_dataframe(values, schema)
        assert [("value", kind)] == frame.dtypes
    numbers = toy_session.range(0, 10, 2, numPartitions=2)
    assert [0, 2, 4, 6, 8] == sorted(row.id for row in numbers.collect())


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", VERBS)
def test_verbs_at_the_end_of_a_long_chain_are_their_sql(
    name: str,
    toy_session: Session,
    plain: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are bound without the verbs before them."""
    monkeypatch.setattr("minishark.dataframe.select._LONG_TEXT", 1)
    monkeypatch.setattr("minishark.dataframe.select._MANY_CONDITIONS", 1)
    t, u = (toy_session.sql(f"SELECT * FROM {table}") for table in ("t", "u"))
    test_verbs_are_their_sql(name, t, u, plain)


def test_long_chains_of_verbs(t: DataFrame) -> None:
    """They run as one statement."""
    steps = 120
    ids = [row.id for row in t.select("id").collect()]
    longer, fewer, united = t.select("id"), t, t
    for step in range(steps):
        longer = longer.with_column("id", longer["id"] + step % 3)
        fewer = fewer.filter(fewer["id"] != step)
        united = united.union(t)
    added = sum(step % 3 for step in range(steps))
    assert sorted(i + added for i in ids) == sorted(row.id for row in longer.collect())
    assert sum(i >= steps for i in ids) == fewer.count()
    assert (steps + 1) * len(ids) == united.count()
    with pytest.raises(QueryError, match="wrong"):
        united.select(F.expr("wrong(id)"))


@pytest.mark.slow
def test_what_is_nested_too_deeply_to_be_divided_runs_whole(
    toy_session: Session, plain: duckdb.DuckDBPyConnection
) -> None:
    """DuckDB allows 1,000 levels, more than a plan that is divided."""
    for sql in (
        " UNION ALL ".join(f"SELECT id + {i} FROM t" for i in range(500)),
        f"SELECT id, {'abs(' * 400}id{')' * 400} FROM t",
    ):
        frame = toy_session.sql(sql)
        assert sorted(plain.sql(sql).fetchall()) == sorted(map(tuple, frame.collect()))
    assert "nested too deeply" in toy_session.sql(f"EXPLAIN {sql}").collect()[0][0]
