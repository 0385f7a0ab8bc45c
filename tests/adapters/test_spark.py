"""PySpark's API, by SQLFrame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pytest
from sqlframe.duckdb import functions as F

from minishark.adapters.spark import SparkDataFrame, SparkSession, connect
from minishark.cli.tpch.queries import load_queries
from minishark.errors import MinisharkDeprecationWarning, UnsupportedError
from minishark.session.session import Session


@pytest.fixture
def spark(session: Session) -> Iterator[SparkSession]:
    """A session of SQLFrame over the sample."""
    before = session.tables
    with pytest.warns(MinisharkDeprecationWarning, match="minishark.spark.session"):
        made = connect(session)
    yield made
    for table in session.tables:
        if table not in before:
            session.drop_table(table)


def test_a_tpch_query_is_duckdbs(spark: SparkSession, plain: duckdb.DuckDBPyConnection) -> None:
    """TPC-H 1, written with PySpark's functions and as text."""
    price = F.col("l_extendedprice") * (1 - F.col("l_discount"))
    frame = (
        spark.table("lineitem")
        .where(F.col("l_shipdate") <= F.lit("1998-09-02").cast("date"))
        .groupBy("l_returnflag", "l_linestatus")
        .agg(
            F.sum("l_quantity").alias("sum_qty"),
            F.sum("l_extendedprice").alias("sum_base_price"),
            F.sum(price).alias("sum_disc_price"),
            F.sum(price * (1 + F.col("l_tax"))).alias("sum_charge"),
            F.avg("l_quantity").alias("avg_qty"),
            F.avg("l_extendedprice").alias("avg_price"),
            F.avg("l_discount").alias("avg_disc"),
            F.count("*").alias("count_order"),
        )
        .orderBy("l_returnflag", "l_linestatus")
    )
    expected = plain.sql(load_queries([1])[1]).fetchall()
    # Spark's literal 1 is a double to SQLFrame, DuckDB's a decimal.
    assert [_rounded(row) for row in expected] == [_rounded(row) for row in frame.collect()]
    assert len(expected) == len(frame.toPandas())
    text = load_queries([6])[6]
    (revenue,) = plain.sql(text).fetchall()
    assert [_rounded(revenue)] == [_rounded(row) for row in spark.sql(text).collect()]


def _rounded(row: Sequence[Any]) -> list[Any]:
    return [value if isinstance(value, str) else round(float(value), 4) for value in row]


def test_rows_of_ones_own(spark: SparkSession) -> None:
    """createDataFrame, range, select without names."""
    frame = spark.createDataFrame([(1, "a"), (2, None)], ["x", "y"])
    assert [(1, "a"), (2, None)] == [tuple(row) for row in frame.collect()]
    assert 5 == spark.range(5).count()
    names = ["r_regionkey", "r_name", "r_comment"]
    assert names == spark.sql("SELECT * FROM region").columns


def test_kept_rows_are_in_the_cluster(spark: SparkSession) -> None:
    """Persist makes a table, unpersist frees it, and only that."""
    kept = spark.table("nation").where("n_regionkey = 1").persist()
    assert isinstance(kept, SparkDataFrame)
    names = [name for name in spark.minishark.tables if name.startswith("sqlframe_cached")]
    assert (1, 5) == (len(names), kept.count())
    kept.unpersist()
    assert names[0] not in spark.minishark.tables
    with pytest.raises(UnsupportedError):
        kept.unpersist()


def test_what_would_do_nothing_is_refused(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """Partitions and storage levels; explain tells minishark's plan."""
    frame = spark.table("nation")
    for refused in (
        lambda: frame.repartition(3),
        lambda: frame.coalesce(1),
        lambda: frame.persist("MEMORY_ONLY"),
    ):
        with pytest.raises(UnsupportedError):
            refused()
    frame.explain()
    assert "Stage 0" in capsys.readouterr().out
    batches = frame.toArrow(batch_size=10)
    assert [10, 10, 5] == [batch.num_rows for batch in batches]


def test_a_backslash_escapes_in_like(spark: SparkSession) -> None:
    """In columns and in Spark's SQL, as in Spark, with literals and with columns as patterns."""
    frame = spark.createDataFrame([("50%", "50\\%"), ("50x", "50_"), ("a_b", "x")], ["a", "p"])
    columns = frame.a.like(r"50\%"), frame.a.ilike(r"A\_B"), frame.a.like("50%")
    found = frame.select(*(each.alias(f"m{i}") for i, each in enumerate(columns)))
    assert [(True, False, True), (False, False, True), (False, True, False)] == _tuples(found)
    literals = r"SELECT '50%' LIKE '50\\%' AS a, '50x' LIKE '50\\%' AS b"
    assert [(True, False)] == _tuples(spark.sql(literals))
    assert [(True,)] == _tuples(spark.sql("SELECT 'ab' NOT LIKE 'a!%' ESCAPE '!' AS c"))


def _tuples(frame: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.collect()]
