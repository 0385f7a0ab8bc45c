"""Where DataFrames come from and where they go: rows, files, views, tables, other libraries."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import minishark
from minishark import DataFrame
from minishark import functions as F
from minishark.errors import (
    CatalogError,
    ColumnError,
    DataError,
    OptionError,
    QueryError,
    UnsupportedError,
)
from minishark.query.answers import differences
from minishark.session.session import Session

ROWS = [("Ada", 36, "x"), ("Alan", 41, "y"), ("Grace", None, "x")]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that distributes everything."""
    with minishark.connect(in_process=True, nodes=2, partitions=3, single_task_rows=0) as opened:
        yield opened


@pytest.fixture(scope="module")
def people(session: Session) -> DataFrame:
    """Three rows."""
    return session.create_dataframe(ROWS, ["name", "age", "k"])


# Rows that a program holds


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "data",
    [
        pa.table({"n": [1, None], "s": ["a", "b"]}),
        pa.table({"n": [1, None], "s": ["a", "b"]}).to_reader(),
        pd.DataFrame({"n": pd.array([1, None], dtype="Int64"), "s": ["a", "b"]}),
        pl.DataFrame({"n": [1, None], "s": ["a", "b"]}),
        [{"n": 1, "s": "a"}, {"s": "b"}],
        [minishark.Row(n=1, s="a"), minishark.Row(n=None, s="b")],
    ],
    ids=["arrow", "reader", "pandas", "polars", "dicts", "rows"],
)
def test_whatever_holds_a_table_becomes_a_frame(session: Session, data: Any) -> None:
    """The frames of all libraries, and lists of rows, are taken."""
    assert [(1, "a"), (None, "b")] == session.create_dataframe(data).order_by("s").collect()


def test_relations_of_duckdb_become_frames(session: Session) -> None:
    """A relation of the user's own connection is taken with its types."""
    with duckdb.connect() as connection:
        relation = connection.sql(f"SELECT {2**127 - 1} AS h, '1'::JSON AS j")
        frame = session.from_relation(relation)
    assert [(2**127 - 1, "1")] == frame.collect()


def test_other_libraries_take_a_frame(people: DataFrame) -> None:
    """A DataFrame is an Arrow stream, and has methods for what people use."""
    expected = [name for name, _, _ in ROWS]
    assert expected == pl.DataFrame(people)["name"].to_list()
    assert expected == pa.table(people)["name"].to_pylist()
    assert expected == people.to_pandas()["name"].to_list() == people.to_polars()["name"].to_list()
    assert expected == [row.name for row in people.to_local_iterator()]
    with duckdb.connect() as connection:
        assert [(3,)] == connection.from_arrow(pa.table(people)).count("*").fetchall()


@pytest.mark.slow
def test_schemas_are_kept_to(session: Session) -> None:
    """Names and types may be told in four ways, and types that Arrow lacks are met."""
    rows = [(1, "2.50"), (None, None)]
    expected = [(1, Decimal("2.50")), (None, None)]
    wanted = "a HUGEINT, b DECIMAL(9, 2)"
    for schema in (wanted, {"a": "hugeint", "b": "decimal(9, 2)"}):
        frame = session.create_dataframe(rows, schema)
        assert [("a", "HUGEINT"), ("b", "DECIMAL(9,2)")] == frame.dtypes
        assert expected == frame.collect()
    typed = session.create_dataframe([(1,)], pa.schema([("a", pa.int16())]))
    assert [("a", "SMALLINT")] == typed.dtypes
    assert ["_1", "_2"] == session.create_dataframe(rows).columns
    with pytest.raises(DataError, match="Row 2 has 1 values"):
        session.create_dataframe([(1, 2), (3,)], ["a", "b"])
    with pytest.raises(DataError, match="'a' do not fit"):
        session.create_dataframe([("x",)], "a INTEGER")
    assert [(2,)] == session.create_dataframe([(2.0,)], "a INTEGER").collect()
    with pytest.raises(DataError, match=r"1\.5 is no whole number"):
        session.create_dataframe([(2.0,), (1.5,)], "a INTEGER")
    with pytest.raises(DataError, match="pass a schema"):
        session.create_dataframe([])


# Files


def test_files_are_written_and_read(session: Session, people: DataFrame, tmp_path: Path) -> None:
    """What was written in each format is read back, from one file and from a folder."""
    for kind in ("parquet", "csv", "json"):
        for name in (f"out.{kind}", f"{kind} folder"):
            target = tmp_path / name
            options = {"header": True} if kind == "csv" else {}
            people.write.format(kind).options(**options).save(target)
            back = session.read.format(kind).options(**options).load(target)
            assert [] == differences(people.to_arrow(), back.to_arrow()), name


def test_a_folder_for_each_value(session: Session, people: DataFrame, tmp_path: Path) -> None:
    """partition_by makes folders, which are read back as a column; modes say what may be there."""
    target = tmp_path / "out"
    people.write.partition_by("k").parquet(target)
    assert ["k=x", "k=y"] == sorted(path.name for path in target.iterdir())
    assert 1 == session.read.parquet(target).filter("k = 'y'").count()
    with pytest.raises(DataError, match="exists already"):
        people.write.partition_by("k").parquet(target)
    people.write.mode("ignore").partition_by("k").parquet(target)
    people.write.mode("append").partition_by("k").parquet(target)
    assert 6 == session.read.parquet(target).count()
    people.write.mode("overwrite").partition_by("k").parquet(target)
    assert 3 == session.read.parquet(target).count()
    with pytest.raises(OptionError, match="one file"):
        people.write.mode("append").parquet(tmp_path / "one.parquet")


def test_options_of_readers(session: Session, people: DataFrame, tmp_path: Path) -> None:
    """PySpark's options and DuckDB's are understood; what is neither raises."""
    target = tmp_path / "out.csv"
    people.write.csv(target, header=True, delim=";")
    read = session.read.option("delimiter", ";").option("header", "true")
    assert ROWS == read.csv(target).collect()
    assert [("name", "VARCHAR"), ("age", "VARCHAR"), ("k", "VARCHAR")] == (
        read.option("inferSchema", "false").csv(target).dtypes
    )
    assert [("n", "VARCHAR"), ("a", "DOUBLE"), ("k", "VARCHAR")] == (
        read.schema("n VARCHAR, a DOUBLE, k VARCHAR").csv(target).dtypes
    )
    with pytest.raises(QueryError, match="heder"):
        session.read.csv(target, heder=True)
    with pytest.raises(UnsupportedError, match="Did you mean csv"):
        session.read.format("cvs")
    with pytest.raises(OptionError, match=r"Call format\(\)"):
        session.read.load(target)


def test_headers_of_csv_as_in_pyspark(session: Session, tmp_path: Path) -> None:
    """No line is a header unless asked for, in both directions; types are DuckDB's guess."""
    rows = session.sql("SELECT 7 AS a, 'x' AS b")
    rows.write.csv(tmp_path / "bare.csv")
    assert "7,x\n" == (tmp_path / "bare.csv").read_text()
    bare = session.read.csv(tmp_path / "bare.csv")
    assert [("_c0", "BIGINT"), ("_c1", "VARCHAR")] == bare.dtypes
    assert [(7, "x")] == bare.collect()
    rows.write.option("header", True).csv(tmp_path / "named.csv")
    assert [("a", "b"), ("7", "x")] == session.read.csv(tmp_path / "named.csv").collect()
    for header in (True, "true", "auto"):
        named = session.read.csv(tmp_path / "named.csv", header=header)
        assert (["a", "b"], [(7, "x")]) == (named.columns, named.collect())
    typed = session.read.schema("a INT, b VARCHAR").csv(tmp_path / "bare.csv")
    assert [("a", "INTEGER"), ("b", "VARCHAR")] == typed.dtypes


# Tables, views, settings


def test_tables_from_frames(session: Session, people: DataFrame) -> None:
    """save_as_table keeps rows, and its modes are those of files."""
    people.write.save_as_table("saved")
    with pytest.raises(CatalogError, match="already"):
        people.write.save_as_table("saved")
    people.write.mode("append").save_as_table("saved")
    assert 6 == session.table("saved").count()
    people.filter("age > 40").write.mode("overwrite").save_as_table("saved")
    assert ["Alan"] == [row.name for row in session.table("saved").collect()]
    session.drop_table("saved")


def test_views(session: Session) -> None:
    """A view keeps what it reads, can be replaced by what reads it, and is listed."""
    session.range(5).create_or_replace_temp_view("numbers")
    assert [(10,)] == session.sql("SELECT sum(id)::INT FROM numbers").collect()
    session.table("numbers").filter("id > 2").create_or_replace_temp_view("numbers")
    assert [3, 4] == [row.id for row in session.table("numbers").order_by("id").collect()]
    assert "numbers" in [info.name for info in session.catalog.list_tables()]
    assert session.catalog.table_exists("NUMBERS")
    assert [("id", "BIGINT")] == [(c.name, c.type) for c in session.catalog.list_columns("numbers")]
    with pytest.raises(CatalogError, match="already"):
        session.range(1).create_temp_view("numbers")
    with pytest.raises(CatalogError, match="would read itself"):
        session.sql("FROM numbers").create_or_replace_temp_view("numbers")
    assert session.catalog.drop_temp_view("numbers")
    assert not session.catalog.drop_temp_view("numbers")


def test_settings(session: Session) -> None:
    """Settings of DuckDB are read, changed and given back; others raise."""
    session.conf.set("TimeZone", "Asia/Tokyo")
    assert "Asia/Tokyo" == session.conf.get("timezone")
    hour = F.hour(F.lit(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)))
    assert [(9,)] == session.range(1).select(hour).collect()
    session.conf.unset("TimeZone")
    with pytest.raises(OptionError, match="Did you mean TimeZone"):
        session.conf.get("Time_Zone")
    with pytest.raises(UnsupportedError, match="itself"):
        session.conf.set("threads", 3)


def test_builders_make_a_session_once() -> None:
    """The same settings give the session that runs already, and a stopped one is made anew."""
    builder = (
        minishark.Session.builder.appName("a test").config("in_process", True).master("local[1]")
    )
    with builder.getOrCreate() as first:
        assert first is builder.get_or_create()
    assert "<minishark session, stopped>" == repr(first)
    with builder.getOrCreate() as second:
        assert [(1,)] == second.sql("SELECT 1").collect()
        second.create_table("mine", second.range(3))
        assert "<minishark session: nodes: 1, slots: 1, tables: mine>" == repr(second)
    with pytest.raises(OptionError, match="Did you mean partitions"):
        builder.config("partition", 3)
    with pytest.warns(UserWarning, match="ignores the setting spark.sql.shuffle.partitions"):
        builder.config("spark.sql.shuffle.partitions", 8)
    with pytest.raises(OptionError, match=r"local\[4\]"):
        builder.master("yarn")


# Looking at frames


def test_shown_rows(people: DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are shown aligned, cut to a width, and with how many there are."""
    people.order_by("name").show(2, truncate=4)
    assert "name  age  k\n────  ───  ─\nAda    36  x\nAlan   41  y\n" in capsys.readouterr().out
    people.filter("age IS NULL").show(vertical=True)
    assert "── row 1\nname  Grace\nage   NULL\nk     x\n1 row\n" == capsys.readouterr().out
    people.print_schema()
    assert (
        "root\n |-- name: VARCHAR\n |-- age: BIGINT\n |-- k: VARCHAR\n" == capsys.readouterr().out
    )
    assert "DataFrame[name: VARCHAR, age: BIGINT, k: VARCHAR]" == repr(people)


def test_numbers_times_and_plans_are_shown_whole(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only texts and nested values are cut; an EXPLAIN is its text."""
    session.sql(
        """SELECT TIMESTAMP '2026-01-02 03:04:05.678901' AS a_name_of_a_column, 'x'.repeat(30) AS x,
        12345678901234567890.123 AS n, range(20) AS many"""
    ).show()
    head, _, row, _ = capsys.readouterr().out.splitlines()
    assert head.startswith("a_name_of_a_column")
    assert "2026-01-02 03:04:05.678901 " in row
    assert f" {'x' * 19}…" in row
    assert "12345678901234567890.123" in row
    assert row.endswith("[0, 1, 2, 3, 4, 5, …")
    for text in ("EXPLAIN SELECT 42", "EXPLAIN CREATE TABLE made AS SELECT 42"):
        explained = session.sql(text)
        explained.show()
        plan = capsys.readouterr().out
        assert plan == f"{explained.collect()[0].explain_value}\n"
        assert "\nStage 0: 1 task\n" in plan
        assert "\nStage 0: 1 task\n" in explained._repr_html_()


def test_notebooks_show_rows_that_come_soon(
    session: Session, people: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook shows rows without markup of theirs; what takes long is cancelled, and said."""
    page = people.with_column("name", F.lit("<b>"))._repr_html_()
    assert "&lt;b&gt;" in page
    assert "3 rows" in page
    monkeypatch.setattr("minishark.dataframe.actions._HTML_WAIT_S", 0.05)
    long = session.sql("SELECT count(*) AS n FROM range(100000000000) r(i) WHERE hash(i) = 1")
    assert "not run" in long._repr_html_()


def test_queries_can_be_awaited(session: Session, people: DataFrame) -> None:
    """Several queries run at once in an event loop, and cancelling the task ends the query."""

    async def run() -> tuple[list[Any], int]:
        rows, table = await asyncio.gather(people.collect_async(), people.to_arrow_async())
        long = await session.sql_async("SELECT count(*) FROM range(100000000000) r(i) WHERE i = -1")
        task = asyncio.create_task(long.to_arrow_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return rows, table.num_rows

    rows, count = asyncio.run(run())
    assert (ROWS, 3) == (rows, count)
    assert 3 == people.count()


def test_frames_of_other_sessions_are_refused(people: DataFrame) -> None:
    """Two sessions have two clusters, so their frames can't be joined."""
    with (
        minishark.connect(in_process=True, nodes=1) as other,
        pytest.raises(OptionError, match="same session"),
    ):
        people.join(other.range(3), how="cross")


def test_the_frame_of_a_union_by_name_needs_all_names(people: DataFrame) -> None:
    """A column that one side lacks is an error unless NULLs are wanted."""
    with pytest.raises(ColumnError, match="Only one side has k"):
        people.union_by_name(people.drop("k"))
