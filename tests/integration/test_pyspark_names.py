"""PySpark's names besides functions: what programs that move here call."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from minishark import DataFrame, Row, Window
from minishark import functions as F
from minishark import types as T  # noqa: N812 - as PySpark's users call it
from minishark.dataframe.types import duckdb_type
from minishark.errors import (
    CatalogError,
    ColumnError,
    ExecutionError,
    OptionError,
    QueryCancelledError,
    UnsupportedError,
)
from minishark.session.session import Session

ROWS = [("a", 1, 1.5), ("b", 2, 2.5), ("a", 3, None), (None, 3, 4.0)]


@pytest.fixture(scope="module")
def frame(toy_session: Session) -> DataFrame:
    """A few rows of text, integers and doubles."""
    return toy_session.create_dataframe(ROWS, "k string, v int, x double")


def values(found: DataFrame) -> list[tuple[Any, ...]]:
    """The rows in an order, whatever their types."""
    return sorted(map(tuple, found.collect()), key=str)


def test_types_and_rows(toy_session: Session) -> None:
    """Types by class and by name, and Rows by names."""
    schema = T.StructType([T.StructField("a", T.LongType())]).add("b", "array<string>")
    made = toy_session.create_dataframe([(1, ["x"])], schema)
    assert [("a", "BIGINT"), ("b", "VARCHAR[]")] == made.dtypes
    assert "struct<a:bigint,b:array<string>>" == schema.simpleString()
    assert "MAP(VARCHAR, DECIMAL(10, 2))" == T.MapType(T.StringType(), T.DecimalType(10, 2)).sql()
    assert 'STRUCT("a" INT, "b" VARCHAR[])' == duckdb_type("struct<a:INT,b:array<string>>")
    person = Row("name", "age")
    assert [Row(name="Ada", age=36)] == toy_session.create_dataframe([person("Ada", 36)]).collect()
    assert {"name": "Ada", "age": 36} == person("Ada", 36).asDict()
    for wrong in ("array<int", "map<int>"):
        with pytest.raises(OptionError, match="no type"):
            duckdb_type(wrong)


def test_sql_takes_values_and_frames(toy_session: Session, frame: DataFrame) -> None:
    """`:name` and `?` are parameters, `{name}` is a DataFrame or a value; literals stay."""
    text = "SELECT v::BIGINT AS v FROM {d} WHERE v >= :least AND ':least' <> k"
    named = text.replace("{d}", "(SELECT 'a' AS k, 5 AS v)")
    assert [(5,)] == values(toy_session.sql(named, args={"least": 5}))
    made = toy_session.sql("SELECT count(*) FROM {d} WHERE v > {n}", d=frame, n=1)
    assert [(3,)] == values(made)
    with pytest.raises(OptionError, match=r"no value for \{x\}"):
        toy_session.sql("SELECT {x}", y=1)


def test_generators(toy_session: Session) -> None:
    """A list or map becomes rows: with positions, as several columns, outer or not."""
    one = "xs array<int>, m map<string,int>, e array<int>, ps array<struct<a:int,b:string>>"
    frame = toy_session.create_dataframe([([5, 6], {"q": 1}, [], [(1, "x")])], one)
    assert ["pos", "col"] == frame.select(F.posexplode("xs")).columns
    assert [(0, 5), (1, 6)] == values(frame.select(F.posexplode("xs")))
    assert [("q", 1)] == values(frame.select(F.explode("m")))
    assert [(1, "v")] == values(frame.select(F.explode(F.create_map(F.lit(1), F.lit("v")))))
    assert ["i", "k", "v"] == frame.select(F.posexplode_outer("m").alias("i", "k", "v")).columns
    assert [] == values(frame.select(F.explode("e")))
    assert [(None,)] == values(frame.select(F.explode_outer("e")))
    assert [(1, "x")] == values(frame.select(F.inline("ps")))
    assert [(1, 2), (3, None)] == values(frame.select(F.stack(2, F.lit(1), F.lit(2), F.lit(3))))
    found = frame.select(F.json_tuple(F.lit('{"a": 1}'), "a", "b"))
    assert [("1", None)] == values(found)
    with pytest.raises(OptionError, match="takes 2 names"):
        F.posexplode("xs").alias("one")


def test_python_functions_of_columns(toy_session: Session, frame: DataFrame) -> None:
    """Functions of values, of pandas Series, and of the values of a group, without registration."""

    @F.udf("int")
    def next_one(x: int | None) -> int | None:
        return None if x is None else x + 1

    @F.pandas_udf("double")
    def twice(x: pd.Series) -> pd.Series:
        return 2 * x

    @F.pandas_udf("double")
    def middle(x: pd.Series) -> float:
        return float(x.median())

    assert [(2,), (3,), (4,), (4,)] == values(frame.select(next_one("v")))
    assert [(3.0,), (5.0,), (8.0,), (None,)] == values(frame.select(twice("x")))
    grouped = frame.groupBy("k").agg(middle("v").alias("m"))
    assert [("a", 2.0), ("b", 2.0), (None, 3.0)] == values(grouped)
    toy_session.udf.register("next_one_in_sql", next_one)
    assert [(8,)] == values(toy_session.sql("SELECT next_one_in_sql(7)"))
    toy_session.udf.remove("next_one_in_sql")


def test_types_decide(toy_session: Session) -> None:
    """A cast to a whole number cuts fractions off; `reverse`, `year` and fields go by the type."""
    made = toy_session.sql(
        "SELECT 2.7::DOUBLE AS x, -2.7::DECIMAL(38, 1) AS d, '2024-05-06' AS t, [1, 2] AS xs, "
        "{'a': 1, 'b': 2} AS p, TIMESTAMP '1970-01-01 00:00:01.9' AS ts, '8' AS n"
    )
    columns = [F.col(name).cast("int") for name in ("x", "d", "n")]
    found = made.select(*columns, F.col("ts").cast("long"), F.year("t"), F.reverse("xs"))
    assert [(2, -2, 8, 1, 2024, [2, 1])] == values(found)
    assert 5 == made.select((F.col("x") * 2).cast("int")).first()[0]
    whole = made.agg(F.sum("x").cast("bigint").alias("s"))
    assert [(2,)] == values(whole)
    over = F.sum("x").cast("int").over(Window.partitionBy("t"))
    assert [(2,)] == values(made.select(over))
    fields = made.select(F.col("p").b, F.col("p").dropFields("a"), F.col("p").withField("c", 3))
    assert [(2, (2,), (1, 2, 3))] == values(fields)
    with pytest.raises(AttributeError, match="startswith"):
        F.col("t").startwith  # noqa: B018 - a misspelt method, not a field


def test_frames(toy_session: Session, frame: DataFrame) -> None:
    """Statistics, reshaping, and what belongs to a DataFrame."""
    assert 1.25 == frame.stat.cov("v", "x") == frame.cov("v", "x")
    assert [1.0, 2.0, 3.0] == frame.approxQuantile("v", [0.0, 0.5, 1.0], 0.1)
    assert [("a", 1, 0, 1), ("b", 0, 1, 0), ("null", 0, 0, 1)] == values(frame.crosstab("k", "v"))
    assert 2 == frame.sampleBy("k", {"a": 1.0}).count()
    tall = frame.dropna().unpivot("k", ["v", "x"], "name", "value")
    assert [("a", "v", 1.0), ("a", "x", 1.5), ("b", "v", 2.0), ("b", "x", 2.5)] == values(tall)
    assert [(1, "a"), (2, "b"), (3, "a"), (3, None)] == values(frame.to("v BIGINT, k STRING"))
    assert ["k", "v"] == frame.select(frame.colRegex("`[kv]`")).columns
    assert [3, 3] == [row.v for row in frame.orderBy("v").tail(2)]
    sets = frame.groupingSets([("k",), ()], "k").agg(F.sum("v").cast("int").alias("s"))
    assert [("a", 4), ("b", 2), (None, 3), (None, 9)] == values(sets)
    wide = toy_session.create_dataframe([("p", 1, 2), ("q", 3, 4)], ["i", "a", "b"]).transpose()
    assert [("a", 1, 3), ("b", 2, 4)] == values(wide)
    within = frame.repartition(2, "v").sortWithinPartitions(F.desc("x"))
    assert 4 == within.count()
    assert frame.sparkSession is toy_session
    assert not frame.isStreaming
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert 4 == F.broadcast(frame).count()
    assert "takes no hints" in str(caught[0].message)


def test_cogroup(toy_session: Session) -> None:
    """A function of the rows of two DataFrames with equal keys, one of which may have none."""
    left = toy_session.create_dataframe([(1, "x"), (2, "y")], ["id", "l"])
    right = toy_session.create_dataframe([(1, 10), (1, 20), (3, 5)], ["id", "r"])

    def sizes(key: tuple[int], mine: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"k": [key[0]], "n": [len(mine)], "m": [len(theirs)]})

    both = left.groupBy("id").cogroup(right.groupBy("id"))
    found = both.applyInPandas(sizes, "k bigint, n bigint, m bigint")
    assert [(1, 1, 2), (2, 1, 0), (3, 0, 1)] == values(found)


def test_catalog_and_files(toy_session: Session, frame: DataFrame, tmp_path: Path) -> None:
    """The Catalog's names, tables by write_to, and text files."""
    catalog = toy_session.catalog
    assert "main" == catalog.currentDatabase()
    assert catalog.databaseExists("main")
    assert catalog.functionExists("levenshtein")
    frame.writeTo("written").create()
    with pytest.raises(CatalogError):
        frame.writeTo("written").create()
    frame.writeTo("written").append()
    assert 8 == toy_session.table("written").count()
    assert catalog.isCached("written")
    assert "CREATE TABLE written (k VARCHAR, v INTEGER, x DOUBLE)" == (
        catalog.getCreateTableString("written")
    )
    catalog.truncateTable("written")
    assert 0 == toy_session.table("written").count()
    catalog.dropTable("written")
    (tmp_path / "lines.txt").write_text('a,"b\n\nlast\n')
    lines = toy_session.read.text(tmp_path / "lines.txt")
    assert ['a,"b', "", "last"] == [row.value for row in lines.collect()]
    lines.write.text(tmp_path / "copy.csv")
    assert 'a,"b\n\nlast\n' == (tmp_path / "copy.csv").read_text()


def test_algebra_of_items(toy_session: Session, frame: DataFrame) -> None:
    """By key, joins, sorts and figures; rows of DataFrames are items, too."""
    pairs = toy_session.parallelize([("a", 1), ("b", 2), ("a", 3)], 2)
    other = toy_session.parallelize([("a", "x"), ("d", "y")], 2)
    assert {"a": 4, "b": 2} == pairs.reduceByKey(lambda a, b: a + b).collectAsMap()
    assert {"a": [1, 3], "b": [2]} == pairs.groupByKey().collectAsMap()
    assert [("a", (1, "x")), ("a", (3, "x"))] == sorted(pairs.join(other).collect())
    outer = [("a", (1, "x")), ("a", (3, "x")), ("b", (2, None)), ("d", (None, "y"))]
    assert outer == sorted(pairs.fullOuterJoin(other).collect(), key=str)
    numbers = toy_session.parallelize(range(20), 3)
    assert [19, 18] == numbers.sortBy(lambda x: -x).take(2) == numbers.top(2)
    assert (20, 9.5, 0, 19) == tuple(
        getattr(numbers.stats(), name)() for name in ("count", "mean", "min", "max")
    )
    assert list(enumerate("abc")) == [
        pair[::-1] for pair in toy_session.parallelize("abc", 2).zipWithIndex().collect()
    ]
    assert ([0.0, 9.5, 19], [10, 10]) == numbers.histogram(2)
    doubled = numbers.union(numbers)
    assert 20 == doubled.distinct().count()
    assert list(range(6)) == doubled.mapPartitionsWithIndex(lambda i, _: [i]).collect()
    assert {"a": 2, "b": 1, None: 1} == frame.rdd.map(lambda row: row.k).countByValue()
    assert [("a", 1), ("b", 2)] == values(pairs.filter(lambda p: p[1] < 3).toDF(["k", "v"]))
    with pytest.raises(Exception, match="can't be a key"):
        toy_session.parallelize([(object(), 1)]).groupByKey().collect()


def test_accumulators(toy_session: Session) -> None:
    """Calls add, the front end reads; elsewhere an error says so."""
    total = toy_session.accumulator(0)
    toy_session.sparkContext.parallelize(range(10), 3).foreach(total.add)
    assert 45 == total.value
    with pytest.raises(Exception, match="only the front end reads"):
        toy_session.parallelize([1]).map(lambda _: total.value).collect()


def test_sums_of_whole_numbers_are_bigint(toy_session: Session, frame: DataFrame) -> None:
    """A sum that is no BIGINT is an error, or NULL; stages still add partial sums."""
    window = Window.partition_by("k")
    made = frame.agg(
        F.sum("v"),
        F.sum("x"),
        F.sum_distinct("v"),
        F.sum("v").filter(F.col("v") > 1),
        F.sum("v") + 1,
    )
    assert ["BIGINT", "DOUBLE", "BIGINT", "BIGINT", "BIGINT"] == [type_ for _, type_ in made.dtypes]
    assert ["sum(v)", "sum(x)"] == made.columns[:2]
    assert "sum(v) OVER (PARTITION BY k)" == frame.select(F.sum("v").over(window)).columns[0]
    for grouped in (frame.group_by("k").sum(), frame.group_by("k").agg({"v": "sum"})):
        assert ("sum(v)", "BIGINT") == grouped.dtypes[1]
    big = toy_session.create_dataframe([(2**62,)] * 2, "x bigint")
    with pytest.raises(ExecutionError, match="BIGINT, as in PySpark"):
        big.agg(F.sum("x")).collect()
    assert [(None,)] == values(big.agg(F.try_sum("x")))
    assert [(2**63,)] == values(big.agg(F.expr("sum(x)")))
    spread = toy_session.range(20_000).repartition(4)
    spread.group_by((F.col("id") % 3).alias("k")).sum("id").to_arrow(verify=True)
    assert "PartialAggregate" in spread.agg(F.sum("id")).plan_text()


@pytest.mark.slow
def test_a_seed_repeats_random_numbers(toy_session: Session) -> None:
    """The same seed draws the same for the same rows; another seed draws otherwise."""
    rows = toy_session.range(5000).repartition(3).persist()
    draws = [F.rand(7), F.randn(7), F.uniform(F.lit(1), F.lit(9), 7), F.randstr(F.lit(5), 7)]
    drawn = rows.select("id", *draws)
    assert drawn.collect() == drawn.collect()
    assert rows.select(F.rand(7)).collect() != rows.select(F.rand(8)).collect()
    numbers = rows.select(F.randn(3).alias("n"), F.rand(3).alias("u"))
    mean, spread, middle = numbers.agg(F.avg("n"), F.stddev("n"), F.avg("u")).collect()[0]
    assert [0, 1, 0.5] == pytest.approx([mean, spread, middle], abs=0.1)
    shares = {0: 0.2, 1: 0.9}
    for chosen in (
        rows.sample(0.3, seed=4),
        rows.filter(F.rand(4) < 0.3),
        rows.withColumn("k", F.col("id") % 2).sampleBy("k", shares, seed=4).select("id"),
        rows.orderBy(F.rand(5)),
    ):
        assert chosen.collect() == chosen.collect()
        assert chosen.columns == ["id"]
    folds = rows.groupBy((F.rand(3) * 2).cast("int").alias("fold"))
    mean = folds.agg(F.avg(F.rand(3)).alias("m")).orderBy("fold").collect()
    assert [(0, 0.25), (1, 0.75)] == [(row.fold, round(row.m * 4) / 4) for row in mean]
    rows.unpersist()


def test_arguments_that_vary_are_drawn_once(toy_session: Session) -> None:
    """A template that names an argument twice draws it once."""
    same = F.pmod(F.floor(F.rand() * 10) - 5, F.lit(3))  # CASE WHEN x % 3 < 0 THEN x % 3 + 3 ...
    found = toy_session.range(300).select(same.alias("r")).collect()
    assert {0, 1, 2} == {row.r for row in found}


def test_session_windows(toy_session: Session) -> None:
    """Rows within a gap are one session, each key's on its own; other columns stay usable."""
    rows = [("a", 0, 1), ("a", 10, 2), ("a", 21, 3), ("b", 5, 4), ("a", None, 5)]
    made = toy_session.create_dataframe(rows, "k string, minute int, v int")
    times = made.withColumn("at", F.timestamp_seconds(F.col("minute") * 60))
    sessions = times.groupBy("k", F.session_window("at", "10 minutes")).agg(
        F.sum(times.v), F.count()
    )
    assert ["k", "session_window", "sum(v)", "count"] == sessions.columns
    ends = sessions.select("k", F.minute("session_window.end"), "sum(v)")
    assert [("a", 20, 3), ("a", 31, 3), ("b", 15, 4)] == values(ends)
    gap = F.when(F.col("k") == "a", "5 minutes").otherwise("1 minute")
    whole = times.groupBy(F.session_window("at", gap).alias("w")).sum("v")
    assert [(0, 5), (10, 2), (21, 3)] == values(whole.select(F.minute("w.start"), "sum(v)"))


def test_filters_on_windows(frame: DataFrame) -> None:
    """A condition may contain functions over windows, which SQL's WHERE may not."""
    latest = frame.filter(F.row_number().over(Window.partition_by("k").order_by("v")) == 1)
    assert [("a", 1, 1.5), ("b", 2, 2.5), (None, 3, 4.0)] == sorted(values(latest), key=str)
    assert ["k", "v", "x"] == latest.columns


def test_where_rows_are(toy_session: Session, tmp_path: Path) -> None:
    """The numbers of partitions, and the names of files."""
    spread = toy_session.range(8).repartition(4)
    by_place = spread.groupBy(F.spark_partition_id().alias("p")).count()
    assert [(0, 2), (1, 2), (2, 2), (3, 2)] == values(by_place)
    for kind in ("parquet", "csv", "json"):
        path = str(tmp_path / f"x.{kind}")
        toy_session.range(3).write.format(kind).save(path)
        read = toy_session.read.format(kind).load(path)
        assert [(path,)] * 3 == values(read.select(F.input_file_name()))
    with pytest.raises(UnsupportedError, match="right after"):
        spread.select(F.input_file_name())


def test_subqueries(toy_session: Session, frame: DataFrame) -> None:
    """DataFrames as values, conditions and sides of joins, with columns of what is around."""
    keys = toy_session.create_dataframe([("a", 10), ("c", 20)], "k string, w int")
    assert [("a", 3, None), (None, 3, 4.0)] == values(
        frame.filter(frame.v > frame.agg(F.avg("v")).scalar())
    )
    theirs = frame.filter(F.col("k") == F.col("k").outer())  # both have a k
    assert [("a", 10)] == values(keys.filter(theirs.exists()))
    assert [("c", 20)] == values(keys.filter(~theirs.exists()))
    total = theirs.agg(F.sum("v")).scalar()
    assert [("a", 10, 4), ("c", 20, None)] == values(keys.withColumn("total", total))
    largest = frame.filter(frame.k == keys.k.outer()).orderBy(F.desc("v")).limit(1).select("v")
    assert [("a", 10, 3)] == values(keys.lateralJoin(largest))
    assert [("a", 10, 3), ("c", 20, None)] == values(keys.lateralJoin(largest, how="left"))
    assert [] == values(keys.lateralJoin(largest, F.col("v") > F.col("w")))
    kept = keys.filter(keys.w > toy_session.create_dataframe([(15,)], "x int").scalar())
    assert [("c", 20)] == values(kept)  # whose rows live as long as the query
    with pytest.raises(OptionError, match="inner, left or cross"):
        keys.lateralJoin(largest, how="full")
    with pytest.raises(OptionError, match="goes with a column"):
        (keys.w + 1).outer()


def test_tags_interrupt_queries(toy_session: Session) -> None:
    """A thread's queries have its tags, by which others cancel them; one session is active."""
    with toy_session.new_session() as session:
        began = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            session.addTag("slow")
            began.set()
            try:
                session.sql("SELECT count(*) FROM range(1000000) a, range(1000000) b").collect()
            except QueryCancelledError as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        began.wait(10)
        assert set() == session.getTags()
        assert [] == session.interruptTag("other")
        deadline = time.monotonic() + 10
        while not (found := session.interruptTag("slow")) and time.monotonic() < deadline:
            time.sleep(0.01)
        thread.join(10)
        assert found
        assert 1 == len(failures)
        assert [] == session.interruptAll()
        assert [] == session.interruptOperation("none")
    assert toy_session.active().is_open
    with pytest.raises(OptionError, match="comma"):
        toy_session.addTag("a,b")


def test_settings_and_caches(toy_session: Session, tmp_path: Path) -> None:
    """All settings; rows in caches are freed, and computed again."""
    assert [] == toy_session.emptyDataFrame("a int").collect()
    assert "threads" in toy_session.conf.getAll
    assert toy_session.conf.isModifiable("timezone")
    assert not toy_session.conf.isModifiable("spark.sql.shuffle.partitions")
    kept = toy_session.range(3).persist()
    assert 3 == kept.count()
    toy_session.catalog.clearCache()
    assert 3 == kept.count()
    toy_session.range(1).createGlobalTempView("for_a_while")
    assert toy_session.catalog.dropGlobalTempView("for_a_while")
    items = toy_session.parallelize(range(6), 2)
    assert (6, 2.5, 15) == (items.countApprox(9), items.meanApprox(9), items.sumApprox(9))
    assert ["1", "2", "3", "4", "5"] == items.pipe("grep -v 0").collect()
    pairs = items.map(lambda n: (n % 2, n))
    assert [0, 2, 4] == sorted(n for _, n in pairs.sampleByKey(False, {0: 1.0}).collect())
    items.saveAsPickleFile(str(tmp_path / "pickles"))
    assert 2 == len(list((tmp_path / "pickles").iterdir()))


def test_functions_that_return_structs(toy_session: Session) -> None:
    """Tuples or Rows of fields in PySpark's notation; `s.*` are the fields, and NaN stays NaN."""
    pair = F.udf(lambda n: (n, str(n)) if n else None, "a bigint, b string")
    made = toy_session.range(2).select(pair("id").alias("s")).select("s.*")
    assert ["a", "b"] == made.columns
    assert [(1, "1"), (None, None)] == values(made)
    toy_session.udf.register("twin", lambda n: Row(a=n, b=n), "struct<a:int,b:int>")
    assert [({"a": 1, "b": 1},)] == values(toy_session.sql("SELECT twin(1) AS t"))
    wrong = F.udf(lambda n: float("nan"), "double")
    assert [(True,)] == values(toy_session.range(1).select(F.isnan(wrong("id"))))
    with pytest.raises(ColumnError, match="no struct"):
        toy_session.range(1).select("s.*")


@pytest.mark.slow
def test_table_functions(toy_session: Session) -> None:
    """Classes as table functions, in Python and in SQL; generators as DataFrames."""

    @F.udtf(returnType="a: int, b: string")
    class Counted:
        def __init__(self) -> None:
            self.n = 0

        def eval(self, up_to: int) -> Iterator[tuple[int, str]]:
            for number in range(up_to):
                self.n += 1
                yield number, "x" * number

        def terminate(self) -> Iterator[tuple[int, None]]:
            yield self.n, None

    class Greeting:
        def eval(self) -> Iterator[tuple[str, str]]:
            yield "hello", "world"

    assert [(0, ""), (1, "x"), (2, None)] == values(Counted(F.lit(2)))
    assert [("hello", "world")] == values(F.udtf(Greeting, returnType="a string, b string")())
    toy_session.udtf.register("counted", Counted)
    joined = "SELECT t.id, c.a FROM range(2) t(id), LATERAL counted(t.id::INT) c WHERE b IS NULL"
    assert [(0, 0), (1, 1)] == values(toy_session.sql(joined))
    rows = toy_session.create_dataframe([(1, [5, 3]), (2, [])], "id int, xs array<int>")
    parts = toy_session.tvf.explode(rows.xs.outer()).toDF("x")
    assert [(1, 3), (1, 5)] == values(rows.lateralJoin(parts).select("id", "x"))
    with pytest.raises(OptionError, match="returnType"):
        F.udtf(Greeting)


def test_names_and_files_as_written(toy_session: Session, tmp_path: Path) -> None:
    """An alias may differ in case alone; empty values are NULL besides `nullValue`."""
    made = toy_session.create_dataframe([(1, 2)], ["uid", "other"])
    assert ["UID", "other"] == made.select(F.col("uid").alias("UID"), "other").columns
    assert ["UID", "other"] == made.withColumn("UID", F.col("uid") + 1).columns
    (tmp_path / "x.csv").write_text("a,b\n1,NA\n2,\n3,x\n")
    read = toy_session.read.option("header", True).option("nullValue", "NA")
    assert 2 == read.csv(str(tmp_path / "x.csv")).filter("b IS NULL").count()
