"""Partitioned jobs: rows that are kept, and Python functions over partitions and groups."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minishark
from minishark.dataframe import DataFrame, Row
from minishark.errors import (
    CatalogError,
    ColumnError,
    DataError,
    FunctionError,
    OptionError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.session.session import Session

ROWS = 1000


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Two nodes, and a table in four partitions."""
    with minishark.connect(in_process=True, nodes=2, partitions=4) as found:
        rows = pa.table({"a": range(ROWS), "k": [i % 3 for i in range(ROWS)]})
        found.create_table("t", rows, partitions=4)
        yield found


@pytest.fixture
def t(session: Session) -> DataFrame:
    """The table."""
    return session.table("t")


def _column(frame: DataFrame, name: str) -> list[Any]:
    values: list[Any] = frame.to_arrow().column(name).to_pylist()
    return values


# Functions over partitions


def test_map_partitions(t: DataFrame) -> None:
    """The function sees each partition once, whole; SQL goes on over what it gives."""
    frame = t.map_partitions(
        lambda rows: pa.table({"n": [rows.num_rows], "least": [pc.min(rows["a"]).as_py()]}),
        "n BIGINT, least BIGINT",
    )
    assert [("n", "BIGINT"), ("least", "BIGINT")] == frame.dtypes
    assert [(250, 0), (250, 250), (250, 500), (250, 750)] == [tuple(row) for row in frame.collect()]
    assert [500] == _column(frame.filter("least >= 500").agg({"n": "sum"}), "sum(n)")


def test_the_query_before_runs_in_the_same_tasks(session: Session) -> None:
    """The function gets what the query gives, in the types in which users get results."""
    query = session.sql("SELECT a * 2 AS x, a::DECIMAL(9, 2) AS d, sum(a) OVER () AS s FROM t")
    types = query.to_arrow().schema
    seen = query.map_partitions(
        lambda rows: pa.table({"schema": [rows.schema.to_string()]}), "schema VARCHAR"
    )
    assert {types.to_string()} == set(_column(seen, "schema"))
    doubled = session.sql("SELECT a * 2 AS x FROM t WHERE a < 10 ORDER BY a")
    frame = doubled.map_partitions(lambda rows: rows.slice(1, 2), "x BIGINT")
    assert [2, 4] == _column(frame, "x")


def test_slices_of_structs_in_structs(session: Session) -> None:
    """A function may give a part of its rows, which DuckDB does not read as it is."""
    nested = session.sql("SELECT a, {'x': {'y': a}} AS s FROM t")
    frame = nested.map_partitions(
        lambda rows: rows.slice(2), "a BIGINT, s STRUCT(x STRUCT(y BIGINT))"
    )
    assert [0, ROWS - 4 * 2] == [
        sum(row["a"] != row["s"]["x"]["y"] for row in frame.to_arrow().to_pylist()),
        frame.to_arrow().num_rows,
    ]


def test_nothing_runs_before_an_action(t: DataFrame, tmp_path: Path) -> None:
    """Neither when it is made, nor when it is described; then once, for all actions."""
    calls = tmp_path / "calls"

    def counting(rows: pa.Table) -> pa.Table:
        with calls.open("a") as file:
            file.write("x")
        return rows

    frame = t.map_partitions(counting, {"a": "BIGINT", "k": "BIGINT"})
    later = frame.filter("a < 500").group_by("k").count()
    later.plan_text()
    assert not calls.exists()
    assert 3 == later.count()
    assert ROWS == frame.count()
    assert "xxxx" == calls.read_text()


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "convert",
    [lambda x: x, lambda x: x.to_pandas(), pl.from_arrow, lambda x: x.to_batches()[0]],
    ids=["arrow", "pandas", "polars", "batch"],
)
def test_any_kind_of_table_is_taken(t: DataFrame, convert: Any) -> None:
    """What offers an Arrow stream is a table."""
    frame = t.map_partitions(convert, pa.schema({"a": pa.int64(), "k": pa.int64()}))
    assert t.to_arrow() == frame.to_arrow()


def test_map_in_arrow_streams(t: DataFrame) -> None:
    """Batches go in and out one by one; none at all is fine."""

    def odd(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.equal(pc.bit_wise_and(batch["a"], 1), 1))

    assert list(range(1, ROWS, 2)) == _column(t.map_in_arrow(odd, "a BIGINT, k BIGINT"), "a")
    assert 0 == t.map_in_arrow(lambda batches: iter(()), "a BIGINT").count()


def test_map_in_pandas(t: DataFrame) -> None:
    """Frames go in and out; the index is not a column."""

    def scaled(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield pd.DataFrame({"half": frame["a"] / 2}).set_index(frame["a"] + 7)

    assert [i / 2 for i in range(ROWS)] == _column(t.map_in_pandas(scaled, "half DOUBLE"), "half")


def test_foreach_partition(t: DataFrame, tmp_path: Path) -> None:
    """It runs at once, once for each partition, over Rows."""

    def write(rows: Iterator[Row]) -> None:
        first = next(rows)
        (tmp_path / f"{first.a}").write_text(f"{sum(1 for _ in rows)} {type(first.big).__name__}")

    t.with_column("big", t.a.cast("HUGEINT")).foreach_partition(write)
    assert ["0", "250", "500", "750"] == sorted(path.name for path in tmp_path.iterdir())
    assert {"249 int"} == {path.read_text() for path in tmp_path.iterdir()}
    t.filter("a < 3").foreach(lambda row: (tmp_path / f"row {row.a}").touch())
    assert 3 == len(list(tmp_path.glob("row *")))


def test_a_function_may_return_the_iterator_that_it_got(t: DataFrame) -> None:
    """The identity of `map_in_arrow` and `map_in_pandas`."""
    schema = "a BIGINT, k BIGINT"
    assert t.to_arrow() == t.map_in_arrow(lambda batches: batches, schema).to_arrow()
    assert t.to_arrow() == t.map_in_pandas(lambda frames: frames, schema).to_arrow()


# Groups


@pytest.mark.sample(3)
@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_apply_in_arrow(session: Session, partitions: int) -> None:
    """Each group once, whole, with NULL and NaN as groups of their own; keys are Arrow scalars."""
    rows = session.sql("""
        SELECT CASE a % 4 WHEN 0 THEN NULL WHEN 1 THEN 'nan'::DOUBLE ELSE a % 4 END AS g,
            a % 2 = 0 AS even, a FROM t""").repartition(partitions)

    def summed(key: tuple[pa.Scalar, ...], group: pa.Table) -> pa.Table:
        assert group.column_names == ["g", "even", "a"]
        return pa.table({"key": [str(key[0])], "total": [pc.sum(group["a"]).as_py()]})

    frame = rows.group_by("g", rows.even).apply_in_arrow(summed, "key VARCHAR, total BIGINT")
    expected = {key: sum(range(i, ROWS, 4)) for i, key in enumerate(("None", "nan", "2.0", "3.0"))}
    found = [tuple(row) for row in frame.collect()]
    assert 4 == len(found)
    assert expected == dict(found)


def test_apply_in_pandas(t: DataFrame) -> None:
    """With the key or without."""
    with_key = t.group_by("k").apply_in_pandas(
        lambda key, group: pd.DataFrame({"k": key, "n": [len(group)]}), "k BIGINT, n BIGINT"
    )
    without = t.group_by("k").apply_in_pandas(
        lambda group: group.nlargest(1, "a"), {"a": int, "k": int}
    )
    assert [(0, 334), (1, 333), (2, 333)] == sorted(tuple(row) for row in with_key.collect())
    assert [997, 998, 999] == sorted(_column(without, "a"))


def test_groups_that_lie_together_are_not_shuffled(session: Session) -> None:
    """What is partitioned by a grouping column is grouped where it lies."""
    frame = session.table("t").repartition(5, "k")
    grouped = frame.group_by("k").apply_in_arrow(lambda g: g.slice(0, 1), "a BIGINT, k BIGINT")
    assert 5 == grouped.num_partitions
    assert [0, 1, 2] == sorted(_column(grouped, "a"))


@pytest.mark.parametrize(
    "group",
    [lambda t: t.rollup("k"), lambda t: t.group_by(t.a % 2), lambda t: t.group_by()],
)
def test_groups_that_no_function_applies_to(t: DataFrame, group: Any) -> None:
    """Subtotals, expressions, and no groups at all."""
    with pytest.raises(OptionError):
        group(t).apply_in_arrow(lambda g: g, "a BIGINT")


# What functions give


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("given", "schema"),
    [
        (pa.array([1, None], pa.int8()), "TINYINT"),
        (pa.array([1, None], pa.int64()), "TINYINT"),
        (pa.array([1.0, None]), "INTEGER"),
        (pa.array([None, None]), "STRUCT(a INTEGER)"),
        (pa.array([2**62, None]), "HUGEINT"),
        (pa.array([Decimal("1.50"), None]), "DECIMAL(38,10)"),
        (pa.array([Decimal("1.00"), None]), "BIGINT"),
        (pa.array(["x", None], pa.large_string()), "VARCHAR"),
        (pa.array(["x", None]).dictionary_encode(), "VARCHAR"),
        (pa.array([[1], None], pa.list_(pa.int64())), "SMALLINT[]"),
        (pa.array([1, None], pa.date32()), "TIMESTAMP"),
        (pa.array([86_400_000, None], pa.timestamp("ms")), "DATE"),
        (pa.array(["{}", None]), "JSON"),
    ],
)
def test_values_that_fit_are_cast(t: DataFrame, given: pa.Array, schema: str) -> None:
    """Types of one kind are cast if no value changes."""
    frame = t.coalesce(1).map_partitions(lambda _: pa.table({"x": given}), f"x {schema}")
    assert [("x", schema)] == frame.dtypes
    found = frame.to_arrow().column("x")
    assert given.null_count == found.null_count
    assert 2 == len(found)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("given", "schema", "words"),
    [
        ({"x": [300]}, "x TINYINT", "column 'x' .*TINYINT"),
        ({"x": [1.5]}, "x BIGINT", "column 'x' .*BIGINT"),
        ({"x": [0.1]}, "x FLOAT", "column 'x' .*FLOAT"),
        ({"x": ["1"]}, "x BIGINT", "column 'x' as VARCHAR, but its schema says BIGINT"),
        ({"x": [1]}, "x VARCHAR", "column 'x' as BIGINT"),
        ({"x": [[1]]}, "x BIGINT", r"column 'x' as BIGINT\[\]"),
        ({"y": [1]}, "x BIGINT", "does not give column 'x'"),
        ({"x": [1], "y": [1]}, "x BIGINT", "schema lacks: 'y'"),
        ({"x": [1], "X": [1]}, "x BIGINT", "schema lacks: 'X'"),
        ([1, 2], "x BIGINT", "gave list; it must give tables"),
        (None, "x BIGINT", "gave NoneType; it must give tables"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    t: DataFrame, given: Any, schema: str, words: str
) -> None:
    """The error names the column and both types, and the partition."""
    data = pa.table(given) if isinstance(given, dict) else given
    with pytest.raises(FunctionError, match=words) as caught:
        t.map_partitions(lambda _: data, schema).collect()
    assert caught.value.partition in range(4)


def test_columns_may_come_in_any_order(t: DataFrame) -> None:
    """The schema has the order."""
    frame = t.map_partitions(lambda rows: rows.select(["k", "a"]), "a BIGINT, k BIGINT")
    assert t.to_arrow() == frame.to_arrow()


@pytest.mark.parametrize("schema", ["", "x", "x NOTYPE", ["x"], {}, "x INT, x INT", None, 7,
                                    "x ENUM('a')"])  # fmt: skip
def test_schemas_that_are_none(t: DataFrame, schema: Any) -> None:
    """They are refused when the function is given, not when it runs."""
    with pytest.raises((DataError, OptionError, TypeError)):
        t.map_partitions(lambda rows: rows, schema)


# Functions that fail


class OwnError(Exception):
    """An exception that is made of two things, and does not say so to pickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "error",
    [ValueError("bad value"), KeyError("key"), ZeroDivisionError(), OSError(2, "no file"),
     MemoryError("much"), StopIteration(), pa.ArrowInvalid("arrow"), RecursionError("deep")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_exceptions_come_back_as_they_were_raised(t: DataFrame, error: Exception) -> None:
    """Type and arguments; the remote traceback and the partition stand in a note and the cause."""

    def fail(rows: pa.Table) -> pa.Table:
        if rows["a"][0].as_py() == 500:
            raise error
        return rows

    with pytest.raises(type(error)) as caught:
        t.map_partitions(fail, "a BIGINT, k BIGINT").collect()
    assert error.args == caught.value.args
    assert "in fail\n" in caught.value.__notes__[0]
    cause = caught.value.__cause__
    assert isinstance(cause, FunctionError)
    assert 2 == cause.partition
    assert cause.node in ("node-0", "node-1")
    assert "raise error" in cause.traceback
    assert "functions.py" not in cause.traceback


@pytest.mark.parametrize("kind", [OwnError, SystemExit, KeyboardInterrupt])
def test_exceptions_that_can_not_travel(t: DataFrame, kind: type[BaseException]) -> None:
    """Their text comes as a FunctionError, and no program ends by them."""

    def fail(rows: pa.Table) -> pa.Table:
        raise kind(1, 2)

    with pytest.raises(FunctionError, match=kind.__name__) as caught:
        t.map_partitions(fail, "a BIGINT").collect()
    assert "in fail\n" in caught.value.traceback


def test_errors_of_the_query_are_not_the_functions(session: Session) -> None:
    """What fails while the function asks for rows is reported as it would be without it."""
    query = session.sql("SELECT CAST('x' || a AS INTEGER) AS a FROM t")
    with pytest.raises(TaskFailedError, match="Could not convert string 'x"):
        query.map_partitions(lambda rows: rows, "a INTEGER").collect()
    with pytest.raises(TaskFailedError, match="Could not convert string 'x"):
        query.map_in_arrow(lambda batches: batches, "a INTEGER").collect()


def test_functions_that_can_not_travel(t: DataFrame, tmp_path: Path) -> None:
    """They are refused when they are given."""
    with (tmp_path / "file").open("w") as file, pytest.raises(OptionError, match="can't be sent"):
        t.map_partitions(lambda rows: file.write("x") and rows, "a BIGINT")
    with pytest.raises(OptionError, match="takes a function"):
        t.map_partitions("rows", "a BIGINT")  # type: ignore[arg-type]


def test_a_promise_that_failed_is_tried_again(t: DataFrame, tmp_path: Path) -> None:
    """An action that failed leaves a DataFrame that can run."""
    switch = tmp_path / "works"

    def fails_at_first(rows: pa.Table) -> pa.Table:
        if not switch.exists():
            raise ValueError("not yet")
        return rows

    frame = t.map_partitions(fails_at_first, "a BIGINT, k BIGINT")
    with pytest.raises(ValueError, match="not yet"):
        frame.count()
    switch.touch()
    assert ROWS == frame.count()


# Keeping rows


def test_persist(t: DataFrame, tmp_path: Path) -> None:
    """Rows are made by the first action, once, and freed by unpersist."""
    calls = tmp_path / "calls"

    def counting(rows: pa.Table) -> pa.Table:
        with calls.open("a") as file:
            file.write("x")
        return rows

    source = t.map_partitions(counting, "a BIGINT, k BIGINT")
    frame = source.filter("k = 1")
    before = frame.a
    assert not frame.is_cached
    assert frame is frame.persist(replicas=1, partitions=2)
    assert frame.is_cached
    assert 1 == frame.storage_level.replicas
    assert not calls.exists()
    assert 333 == frame.count()
    derived = frame.filter(before > 500).select(before)
    assert 166 == derived.count()
    assert {("node-0",), ("node-1",)} >= {place.nodes for place in frame.placement()}
    assert 333 == sum(place.rows for place in frame.placement())
    assert frame is frame.unpersist()
    assert not frame.is_cached
    assert 333 == frame.count()
    assert 166 == derived.count()
    assert "xxxx" == calls.read_text()


@pytest.mark.slow
def test_kept_rows_go_with_their_last_dataframe(session: Session, t: DataFrame) -> None:
    """Neither tables nor files are left, whichever way a DataFrame ends."""
    gc.collect()
    session.sql("SELECT 1").collect()
    names = {table.name for table in session._runtime.tables.catalog}
    folders = sorted(session._runtime.cluster.store()._paths.memory.glob("node-*/tables/*"))
    frame = t.filter("a > 3").cache()
    further = frame.map_partitions(lambda rows: rows, "a BIGINT, k BIGINT").repartition(3, "k")
    last = further.checkpoint()
    assert ROWS - 4 == last.count()
    del frame, further
    gc.collect()
    assert ROWS - 4 == last.count()
    del last
    gc.collect()
    session.sql("SELECT 1").collect()
    assert names == {table.name for table in session._runtime.tables.catalog}
    assert folders == sorted(session._runtime.cluster.store()._paths.memory.glob("node-*/tables/*"))


def test_what_is_kept_is_listed(session: Session, t: DataFrame) -> None:
    """With its size, from the first action until it is freed."""
    gc.collect()
    before = session.kept_rows()
    frame = t.persist(partition_by="k", partitions=5)
    assert before == session.kept_rows()
    frame.count()
    (added,) = set(session.kept_rows()) - set(before)
    assert (ROWS, 5, ("k",)) == (added.rows, added.partitions, added.partition_by)
    frame.unpersist()
    assert before == session.kept_rows()


def test_kept_rows_keep_names_and_types(session: Session) -> None:
    """Also names that come twice, and types that Arrow has not."""
    frame = session.sql("""
        SELECT 1 AS a, 2 AS "A", 'x'::ENUM('y', 'x') AS e, ['y']::ENUM('y', 'x')[] AS l,
            340282366920938463463374607431768211455::UHUGEINT AS u, '0101'::BIT AS b,
            TIMESTAMPTZ '2020-02-02 02:02:02+02' AS z, union_value(i := 3) AS n, NULL AS o
    """)
    before, dtypes = frame.to_arrow(), frame.dtypes
    frame.persist()
    assert dtypes == frame.dtypes
    assert before == frame.to_arrow()
    assert [1] == _column(frame.filter("e = 'x'").agg({"o": "count", "b": "count"}), "count(b)")
    assert before == frame.checkpoint().to_arrow()


def test_rows_that_are_kept_stay_as_they_are(session: Session) -> None:
    """A table that changes later changes nothing."""
    session.sql("CREATE OR REPLACE TABLE changing AS SELECT 1 AS x")
    frame = session.table("changing").persist()
    point = session.table("changing").checkpoint()
    assert [1] == _column(frame, "x")
    session.sql("CREATE OR REPLACE TABLE changing AS SELECT 2 AS x")
    assert ([1], [1]) == (_column(frame, "x"), _column(point, "x"))
    assert [2] == _column(frame.unpersist(), "x")
    session.drop_table("changing")


def test_checkpoint_to_files(t: DataFrame, tmp_path: Path) -> None:
    """Files in a new folder, which the DataFrame reads from now on."""
    frame = t.filter("a < 600").checkpoint(str(tmp_path / "x"))
    assert t.filter("a < 600").to_arrow() == frame.to_arrow()
    assert "data_0.parquet" in {path.name for path in (tmp_path / "x").iterdir()}
    with pytest.raises(DataError, match="not empty"):
        t.checkpoint(str(tmp_path / "x"))
    with pytest.raises(UnsupportedError, match="'h' as HUGEINT"):
        t.select(t.a.cast("HUGEINT").alias("h")).checkpoint(str(tmp_path / "y"))
    assert ["x"] == [path.name for path in tmp_path.iterdir()]


# Partitions


def test_repartition(t: DataFrame) -> None:
    """As many partitions as asked, in the same order and of equal size."""
    frame = t.repartition(8)
    assert 8 == frame.num_partitions
    assert [125] * 8 == [place.rows for place in frame.placement()]
    assert t.to_arrow() == frame.to_arrow()
    assert 2 == t.coalesce(2).num_partitions
    assert 4 == t.coalesce(9).num_partitions
    assert list(range(ROWS)) == _column(t.coalesce(2), "a")


@pytest.mark.slow
def test_what_is_stored_of_repartitioned_rows_keeps_their_partitions(
    session: Session, t: DataFrame, tmp_path: Path
) -> None:
    """Cached, as tables and as files, and after other verbs; but not if another number is asked."""
    frame = t.repartition(7)
    mapped = frame.map_partitions(lambda rows: rows, "a BIGINT, k BIGINT")
    for kept in (frame, frame.filter("a > 3"), mapped, t.repartition(7, "k")):
        assert 7 == kept.checkpoint().num_partitions
        assert 7 == kept.select("a").persist().num_partitions
    assert 2 == frame.select("a").persist(partitions=2).num_partitions
    assert 7 == t.repartition(7).persist().num_partitions
    session.create_table("created", frame)
    frame.write.save_as_table("saved")
    assert [7, 7] == [session.table(name).num_partitions for name in ("created", "saved")]
    assert t.to_arrow() == session.table("created").to_arrow()
    frame.write.parquet(tmp_path / "files")
    frame.checkpoint(str(tmp_path / "checkpoint"))
    for folder in ("files", "checkpoint"):
        assert 7 == len(list((tmp_path / folder).iterdir()))
    session.drop_table("created")
    session.drop_table("saved")


@pytest.mark.sample(3)
@pytest.mark.parametrize("partitions", [1, 2, 9])
def test_equal_keys_lie_in_one_partition(t: DataFrame, partitions: int) -> None:
    """Repartitioned by columns, each key is seen by one task alone."""
    numbered = t.with_column("j", t.a % 5)
    frame = numbered.repartition(partitions, "k", numbered.j)
    assert partitions == frame.num_partitions
    keys = frame.map_partitions(
        lambda rows: rows.group_by(["k", "j"]).aggregate([]), "k BIGINT, j BIGINT"
    )
    assert 15 == keys.count()
    assert ROWS == frame.count()


@pytest.mark.sample(3)
@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_ranges_of_values(session: Session, partitions: int) -> None:
    """Partitions hold one range each, in order; equal values are never apart."""
    rows = session.sql("SELECT CASE WHEN a % 9 > 0 THEN a * 7 % 50 END AS x, a FROM t")
    frame = rows.repartition_by_range(partitions, "x")
    bounds = frame.map_partitions(
        lambda r: pa.table({"low": [pc.min(r["x"]).as_py()], "high": [pc.max(r["x"]).as_py()]}),
        "low BIGINT, high BIGINT",
    )
    assert partitions == frame.num_partitions
    found = [bound for row in bounds.collect() for bound in row if bound is not None]
    assert sorted(found) == found
    assert len(set(found[1:-1])) == len(found[1:-1])
    assert rows.order_by("a").to_arrow() == frame.order_by("a").to_arrow()
    least = min(place.rows for place in frame.placement())
    assert least > ROWS / partitions / 3


def test_wrong_partitions(t: DataFrame) -> None:
    """What makes no sense is refused at once."""
    for wrong in (0, -1, 5000, True):
        with pytest.raises(OptionError):
            t.repartition(wrong)
    with pytest.raises(ColumnError):
        t.repartition(3, "zz")
    with pytest.raises(OptionError, match="needs columns"):
        t.repartition_by_range(3)
    with pytest.raises(CatalogError):
        t.persist(partition_by="zz")
    with pytest.raises(OptionError, match="persist"):
        t.filter("a > 1").placement()


def test_tables_and_files_of_derived_rows(session: Session, t: DataFrame, tmp_path: Path) -> None:
    """Tables, views and files can be made of rows that are only promised."""
    frame = t.map_partitions(lambda rows: rows.slice(0, 1), "a BIGINT, k BIGINT")
    session.create_table("firsts", frame)
    assert [0, 250, 500, 750] == _column(session.table("firsts"), "a")
    other = t.map_partitions(lambda rows: rows.slice(1, 1), "a BIGINT, k BIGINT")
    session.sql(f"COPY ({other.sql()}) TO '{tmp_path}/x.csv'")
    assert "a,k\n1,1\n251,2\n501,0\n751,1\n" == (tmp_path / "x.csv").read_text()
    third = t.map_partitions(lambda rows: rows.slice(2, 1), "a BIGINT, k BIGINT")
    session.sql(f"INSERT INTO firsts {third.sql()}")
    assert 8 == session.table("firsts").count()
    session.drop_table("firsts")


# Types that DuckDB writes and reads back, with some values of each.
_VALUES = {
    "BOOLEAN": ["true", "false"],
    "UTINYINT": ["255"],
    "HUGEINT": ["-170141183460469231731687303715884105728", "1"],
    "UHUGEINT": ["340282366920938463463374607431768211455"],
    "FLOAT": ["'nan'", "'-inf'", "0.1"],
    "DOUBLE": ["'nan'", "1e300", "-0.0"],
    "DECIMAL(38,10)": ["1.5", "-9999999999999999999999999999.9999999999"],
    "DECIMAL(4,1)": ["999.9"],
    "VARCHAR": ["''", "'\u00e4\U0001f600'"],
    "BLOB": ["'\\x00\\xFF'"],
    "BIT": ["'0101'"],
    "DATE": ["'infinity'", "'0044-03-15 (BC)'"],
    "TIME": ["'23:59:59.999999'"],
    "TIMESTAMP": ["'2020-02-02 02:02:02.000002'"],
    "TIMESTAMP_NS": ["'2020-02-02 02:02:02.000000002'"],
    "TIMESTAMP WITH TIME ZONE": ["'2020-02-02 02:02:02+02'"],
    "TIME WITH TIME ZONE": ["'02:02:02+05:30'"],
    "INTERVAL": ["INTERVAL 5 MONTH", "INTERVAL '-3 days 4 seconds'"],
    "UUID": ["'12345678-1234-5678-1234-567812345678'"],
    "BIGNUM": ["'123456789012345678901234567890123456789012345678901234567890'"],
    "ENUM('b', 'a')": ["'a'", "'b'"],
    "JSON": ["'{\"a\": 1}'"],
    "UNION(i INTEGER, s VARCHAR)": ["'x'", "7"],
}


@st.composite
def _typed_values(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A type, perhaps nested, and texts of values of it."""
    name = draw(st.sampled_from(sorted(_VALUES)))
    values = [f"CAST({v} AS {name})" for v in draw(st.lists(st.sampled_from(_VALUES[name])))]
    values += draw(st.lists(st.just("NULL"), max_size=2))
    match draw(st.sampled_from(["plain", "plain", "list", "struct", "map"])):
        case "list":
            return f"{name}[]", [f"[{value}, NULL]" for value in values]
        case "struct":
            return f"STRUCT(f {name}, g INTEGER)", [f"{{f: {v}, g: 1}}" for v in values]
        case "map":
            return f"MAP(INTEGER, {name})", [f"MAP {{1: {value}}}" for value in values]
        case _:
            return name, values


@settings(
    max_examples=settings.default.max_examples // 4, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.lists(_typed_values(), min_size=1, max_size=3), st.sampled_from([None, 1, 3]))
def test_kept_rows_are_what_they_were(
    session: Session, columns: list[tuple[str, list[str]]], partitions: int | None
) -> None:
    """Names, types, values and order survive, whatever the types and the partitions."""
    rows = max(len(values) for _, values in columns)
    items = [
        f"CAST(unnest([{', '.join((values + ['NULL'] * rows)[:rows])}]) AS {type_}) AS c{i}"
        for i, (type_, values) in enumerate(columns)
    ]
    frame = session.sql(f"SELECT {', '.join(items)}" if rows else f"SELECT 1 AS a, {rows} AS b")
    dtypes = frame.dtypes
    expected = _texts(frame)
    kept = frame.persist(partitions=partitions)
    assert dtypes == kept.dtypes
    assert expected == _texts(kept)


def _texts(frame: DataFrame) -> list[Any]:
    texts = [f"CAST({name} AS VARCHAR) AS {name}" for name, _ in frame.dtypes]
    return frame.select_expr(*texts).collect()
