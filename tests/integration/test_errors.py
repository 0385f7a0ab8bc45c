"""Bad input ends with a typed error and one clear message, and the session goes on."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oracle import divergences
from toy_tables import lossless

import minishark
from minishark.cli.app import run
from minishark.errors import (
    CatalogError,
    ClusterError,
    DataError,
    MinisharkError,
    OptionError,
    QueryError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.session.session import Session


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session of this module's own: it makes, replaces and drops tables."""
    with minishark.connect(in_process=True, nodes=2, partitions=3, single_task_rows=0) as opened:
        opened.create_table("t", pa.table({"id": range(50), "s": ["x"] * 50}), partitions=3)
        yield opened


@pytest.mark.parametrize(
    ("sql", "excerpt"),
    [
        ("SELEC 1", "LINE 1: SELEC 1\n        ^^^^^"),
        ("SELECT id,\n nothing FROM t", "LINE 2:  nothing FROM t\n         ^^^^^^^"),
        ("SELECT * FROM nowhere", "LINE 1: SELECT * FROM nowhere\n                      ^^^^^^^"),
    ],
)
def test_errors_point_at_the_place(session: Session, sql: str, excerpt: str) -> None:
    """The message ends with the line and a mark under what is wrong."""
    with pytest.raises(QueryError) as found:
        session.sql(sql)
    assert str(found.value).rstrip().endswith(excerpt)


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC 1",
        "SELECT * FROM t WHERE",
        "SELECT * FROM nowhere",
        "SELECT nothing FROM t",
        "SELECT s + 1 FROM t",
        "SELECT id FROM t GROUP BY s",
        "SELECT unknown_function(id) FROM t",
        "SELECT $1",
        "SELECT * FROM 'no_such_file.parquet'",
        "SELECT id FROM t LIMIT -1",
    ],
)
def test_bad_statements_have_duckdbs_message(session: Session, sql: str) -> None:
    """What DuckDB rejects is a QueryError with the first line of DuckDB's own message."""
    with duckdb.connect() as plain:
        plain.execute("CREATE TABLE t (id BIGINT, s VARCHAR)")
        with pytest.raises(duckdb.Error) as expected:
            plain.sql(sql)
    with pytest.raises(QueryError) as actual:
        session.sql(sql)
    assert str(expected.value).splitlines()[0] == str(actual.value).splitlines()[0]


@pytest.mark.parametrize("sql", ["CREATE TABLE shared.t (i INTEGER)", "FROM shared.t"])
def test_shared_tables_need_a_cluster(session: Session, sql: str) -> None:
    """The session's own has none; the error says what to do, in SQL as in Python."""
    with pytest.raises(MinisharkError, match="minishark cluster start"):
        session.sql(sql)


@pytest.mark.parametrize("sql", ["", " ;", "-- nothing"])
def test_no_statement(session: Session, sql: str) -> None:
    """A text without a statement is an error that says so."""
    with pytest.raises(QueryError, match="no statement"):
        session.sql(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SET threads = 1",
        "LOAD extension",
        "VACUUM",
        "EXPORT DATABASE 'folder'",
        "EXPLAIN DROP TABLE t",
        "EXPLAIN ANALYZE DELETE FROM t",
        "EXPLAIN (FORMAT json) SELECT 1",
    ],
)
def test_unsupported_statements(session: Session, sql: str) -> None:
    """Statements that make no sense on a cluster are refused, and the session goes on."""
    with pytest.raises(UnsupportedError):
        session.sql(sql)
    assert [{"n": 50}] == session.sql("SELECT count(*) AS n FROM t").collect()


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO nowhere VALUES (1)",
        "INSERT INTO t VALUES (1, 2, 3)",
        "INSERT INTO t SELECT 'no number', s FROM t",
        "UPDATE t SET nothing = 1",
        "UPDATE t SET id = error('boom')",
        "DELETE FROM t WHERE nothing",
        "DROP TABLE nowhere",
        "CREATE TABLE t (a INTEGER)",
        "CREATE TABLE u AS SELECT nothing FROM t",
        "CREATE TABLE u AS SELECT error('boom') FROM t",
    ],
)
def test_failed_changes_change_nothing(session: Session, sql: str) -> None:
    """A statement that can't change what it says is a typed error, and all stays as it was."""
    before = session.tables
    with pytest.raises(MinisharkError):
        session.sql(sql).collect()
    assert before == session.tables
    sums = "SELECT count(*) AS n, sum(id)::BIGINT AS id, min(s) AS s FROM t"
    assert [{"n": 50, "id": 1225, "s": "x"}] == session.sql(sums).collect()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT CAST(s AS INTEGER) FROM t", "Could not convert string 'x'"),
        ("SELECT (id + 9223372036854775760)::BIGINT FROM t", "Overflow"),
        ("SELECT id::TINYINT + 100::TINYINT FROM t", "Overflow"),
        ("SELECT (SELECT id FROM t)", "More than one row"),
        ("SELECT id, (SELECT u.id FROM t u WHERE u.s = t.s) FROM t", "More than one row"),
        ("SELECT error('boom ' || s) FROM t", "boom x"),
        ("SELECT max(id // (id - 7)) FROM t", "Division by zero"),
        ("SELECT s::DATE FROM t ORDER BY id LIMIT 1", "date"),
    ],
)
def test_failures_at_run_time_are_typed(session: Session, sql: str, message: str) -> None:
    """A statement that fails while it runs ends with DuckDB's message; the session goes on."""
    with pytest.raises(TaskFailedError, match=re.escape(message)):
        session.sql(sql).to_arrow()
    assert [{"n": 1225}] == session.sql("SELECT sum(id)::BIGINT AS n FROM t").collect()


def test_a_failure_in_one_of_many_stages(session: Session) -> None:
    """An error deep in a plan of several stages ends the others; nothing of it is kept."""
    sql = (
        "SELECT a.id, count(*) FROM t a JOIN (SELECT id, error('late') AS e FROM t) b "
        "ON a.id = b.id AND b.e IS NULL GROUP BY a.id"
    )
    with pytest.raises(TaskFailedError, match="late"):
        session.sql(sql).to_arrow()
    for place in (session._runtime.cluster.paths.memory, session._runtime.cluster.paths.disk):
        assert [] == list(place.glob("*/queries/*"))


# Tables


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder of files, most of them bad."""
    (tmp_path / "bad.parquet").write_text("this is no Parquet file")
    (tmp_path / "bad.json").write_text('{"a":')
    (tmp_path / "good.csv").write_text("a,b\n1,x\n2,y\n")
    (tmp_path / "other.csv").write_text("q\n1\n")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "late.csv").write_text("a,b\n" + "1,2\n" * 30_000 + "x,2\n")
    (tmp_path / "empty").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "part1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "part2.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.parquet", "There is no file"),
        ("missing*.csv", "There is no file"),
        ("empty", r"no files in .*empty that end in \.parquet"),
        ("bad.parquet", "Can't read"),
        ("bad.json", "Can't read"),
        ("notes.txt", "Can't tell how to read"),
        ("late.csv", "can't be read"),
    ],
)
def test_bad_files(session: Session, files: Path, name: str, message: str) -> None:
    """Files that are missing or unreadable are a DataError; no table is made."""
    before = session.tables
    with pytest.raises(DataError, match=message):
        session.create_table("new", files / name, partitions=3)
    assert before == session.tables
    assert not any(session._runtime.cluster.paths.memory.glob("*/tables/*-source"))


def test_files_of_different_columns_are_united(session: Session, files: Path) -> None:
    """By name; types are those that hold the values of all."""
    pq.write_table(pa.table({"b": [2.5]}), files / "part3.parquet")
    session.create_table("united", files / "part*.parquet")
    try:
        found = session.sql("FROM united ORDER BY ALL").to_arrow().to_pylist()
    finally:
        session.drop_table("united")
    expected = [{"a": "1", "b": None}, {"a": "x", "b": None}, {"a": None, "b": 2.5}]
    assert expected == found


@pytest.mark.parametrize("data", [42, None, [1, 2], b"x", {"a": [1]}, pa.table({})])
def test_data_that_is_no_table(session: Session, data: Any) -> None:
    """Whatever is not a table, or has no columns, is a DataError."""
    with pytest.raises(DataError):
        session.create_table("new", data)


@pytest.mark.parametrize("rows", [1, 10_000])
def test_text_that_is_not_utf8(session: Session, rows: int) -> None:
    data = pa.table({"a": pa.array([b"\xff\xfe"] * rows).view(pa.string())})
    with pytest.raises(DataError, match="Column a has text that is not UTF-8"):
        session.create_table("new", data)


@pytest.mark.parametrize(
    "column", [pa.array([1.5], pa.float16()), pa.array([1], pa.decimal256(50, 0))]
)
def test_arrow_types_that_duckdb_lacks(session: Session, column: pa.Array) -> None:
    """A column of a type that DuckDB can't read is a DataError with DuckDB's message."""
    with pytest.raises(DataError, match="Unsupported"):
        session.create_table("new", pa.table({"a": column}))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"partition_by": "zz"}, CatalogError),
        ({"partitions": 0}, OptionError),
        ({"partitions": 100_000}, OptionError),
        ({"replicas": 0}, OptionError),
    ],
)
def test_bad_table_options(
    session: Session, options: dict[str, Any], error: type[MinisharkError]
) -> None:
    """Options of create_table that mean nothing are refused."""
    with pytest.raises(error):
        session.create_table("new", pa.table({"a": [1]}), **options)
    assert "new" not in session.tables


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_table_needs_a_name(session: Session, name: str) -> None:
    """A name that SQL can't write is refused, and spoils nothing."""
    with pytest.raises(CatalogError):
        session.create_table(name, pa.table({"a": [1]}))
    assert [{"one": 1}] == session.sql("SELECT 1 AS one").collect()


def test_make_replace_and_drop(session: Session) -> None:
    """A name is free once, in any case; replacing and dropping take effect at once."""
    session.create_table("Again", pa.table({"a": [1]}))
    with pytest.raises(CatalogError, match="already"):
        session.create_table("AGAIN", pa.table({"a": [2]}))
    frame = session.sql("SELECT * FROM again")
    assert [{"a": 1}] == frame.collect()
    session.create_table("again", pa.table({"b": ["x", "y"]}), replace=True, partitions=2)
    assert [{"b": "x"}, {"b": "y"}] == session.sql("FROM again ORDER BY b").collect()
    session.drop_table("AGAIN")
    with pytest.raises(CatalogError, match="no table"):
        session.drop_table("again")
    with pytest.raises(CatalogError, match="no table"):
        session.table("again")
    with pytest.raises(QueryError, match="does not exist"):
        session.sql("FROM again")
    with pytest.raises(QueryError, match="does not exist"):
        frame.to_arrow()


def test_tables_called_like_the_engines_own_names(session: Session) -> None:
    """Table and column names that the engine uses inside fragments are the user's to use."""
    rows = pa.table({"bucket": [1, 2], "c0": [3, 4], "in0": [5, 6], "t0": [7, 8]})
    for name in ("in0", "cte0", "t0", "source", "partition", "sample"):
        session.create_table(name, rows, partition_by="bucket", partitions=2)
    sql = "SELECT sum(in0.c0 + cte0.in0 + t0.t0)::BIGINT AS n FROM in0, cte0, t0, source, sample"
    assert [{"n": (3.5 + 5.5 + 7.5) * 32}] == session.sql(sql).collect()
    for name in ("in0", "cte0", "t0", "source", "partition", "sample"):
        session.drop_table(name)


_KINDS = {
    "JSON": "('{\"a\":' || i || '}')::JSON",
    "UUID": "('00000000-0000-0000-0000-00000000000' || i % 5)::UUID",
    "BIT": "(i % 4)::INTEGER::BIT",
    "TIMETZ": "('01:02:0' || i % 5 || '+02')::TIMETZ",
    "HUGEINT": "i::HUGEINT * -17014118346046923173168730371588410",
    "UHUGEINT": "i::UHUGEINT * 34028236692093846346337460743176821",
    "INTERVAL": "to_days((i % 4)::INTEGER) + to_months((i % 2)::INTEGER)",
    "TIMESTAMP_NS": "make_timestamp_ns(i * 1000000007 + 1)",
    "TIMESTAMP_S": "make_timestamp(i::BIGINT * 1000000)::TIMESTAMP_S",
    "TIMESTAMPTZ": "TIMESTAMPTZ '2020-01-01 00:00:00+00' + to_days((i % 4)::INTEGER)",
    "BLOB": "CASE WHEN i % 5 > 0 THEN ('\\x00' || i % 3)::BLOB END",
    "BIGNUM": "(i * 1000)::BIGNUM",
    "VARIANT": "i::VARIANT",
    "DECIMAL(38,5)": "i::DECIMAL(38, 5)",
    "BLOB[]": "[('x' || i)::BLOB, NULL]",
    "STRUCT": "{'a': i, 'b': {'c': [i]}, 'd': ('x' || i % 2)::BLOB}",
    "LIST": "CASE WHEN i % 4 > 0 THEN [{'a': [i], 'm': MAP {'k': i}}] END",
    "ARRAY": "[i, i % 2]::INTEGER[2]",
    "MAP": "MAP {'a': i % 3}",
    "UNION": "CASE WHEN i % 2 = 0 THEN union_value(n := i) END",
    "NULL": "NULL",
}


_BY_PLACE = (
    "SELECT c, count(*) AS n FROM x GROUP BY c",
    "SELECT a.n, b.n FROM x a JOIN x b ON a.c = b.c",
    "SELECT DISTINCT c FROM x",
)
_ANYWHERE = (
    "FROM x",
    "SELECT n FROM x WHERE c IS NOT NULL",
    "SELECT n, c FROM x ORDER BY c, n LIMIT 5",
    "SELECT min(c), max(c) FROM x",
)


@pytest.fixture(scope="module")
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """Plain DuckDB, for this module's own tables."""
    with duckdb.connect() as connection:
        yield connection


@pytest.mark.sample(7)
@pytest.mark.parametrize("kind", _KINDS)
def test_types_round_trip(session: Session, plain: duckdb.DuckDBPyConnection, kind: str) -> None:
    """Columns of all types come back as they went, and group, join and sort as in DuckDB.

    Groups and joins also where the table is partitioned by the column.
    """
    columns = f"i AS n, {_KINDS[kind]} AS c"
    plain.execute(f"CREATE OR REPLACE TABLE x AS SELECT {columns} FROM range(12) r(i)")
    rows = lossless(plain, "FROM x")
    for partition_by, queries in ((None, _ANYWHERE + _BY_PLACE), ("c", _BY_PLACE)):
        session.create_table("x", rows, partition_by=partition_by, partitions=3, replace=True)
        for sql in queries:
            assert (sql, []) == (sql, divergences(session, plain, sql))


def test_enums_of_a_relation_keep_their_order(session: Session) -> None:
    """A relation's ENUM stays one, which orders as it was defined; the table is not distributed."""
    with duckdb.connect() as plain:
        sql = "SELECT i AS n, ['b', 'a'][1 + i % 2]::ENUM('b', 'a') AS c FROM range(12) r(i)"
        session.create_table("x", plain.sql(sql), replace=True)
    counted = session.sql("SELECT c, typeof(c) AS t, count(*) AS n FROM x GROUP BY ALL ORDER BY c")
    t = "ENUM('b', 'a')"
    assert [{"c": "b", "t": t, "n": 6}, {"c": "a", "t": t, "n": 6}] == [
        dict(row) for row in counted.to_arrow().to_pylist()
    ]
    session.create_table("x", pa.table({"q": [1]}), replace=True)
    assert [{"q": 1}] == session.sql("FROM x").to_arrow().to_pylist()


def test_relations_keep_duckdbs_types(session: Session) -> None:
    """A DuckDB relation loses no type on its way, and its connection keeps its settings."""
    select = (
        "SELECT 340282366920938463463374607431768211455::UHUGEINT AS u, 1::HUGEINT AS h, "
        "'01:02:03+02'::TIMETZ AS t, '0101'::BIT AS b, "
        "'00000000-0000-0000-0000-000000000001'::UUID AS i"
    )
    with duckdb.connect() as plain:
        session.create_table("x", plain.sql(select), partitions=3, replace=True)
        types = list(map(str, plain.sql(select).types))
        setting = plain.sql("SELECT current_setting('arrow_lossless_conversion')").fetchall()
    assert types == [type_ for _, type_ in session.table("x").dtypes]
    texts = session.sql("SELECT u::VARCHAR AS u, t::VARCHAR AS t, b::VARCHAR AS b FROM x").collect()
    maximum = "340282366920938463463374607431768211455"
    assert [{"u": maximum, "t": "01:02:03+02", "b": "0101"}] == texts
    assert [(False,)] == setting


# The session


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": 0},
        {"executors_per_node": 0},
        {"schedulers": 0},
        {"partitions": 0},
        {"partitions": 1_000_000},
        {"placement": "best"},
        {"probe_ratio": 0.5},
        {"probe_ratio": "2"},
        {"probe_ratio": float("nan")},
        {"probe_ratio": float("inf")},
    ],
)
def test_bad_connect_options(options: dict[str, Any]) -> None:
    """Options of connect that mean nothing are refused before anything starts."""
    with pytest.raises(OptionError):
        minishark.connect(in_process=True, **options)


def test_a_stopped_session(tmp_path: Path) -> None:
    """After stop() each use says so, and stop() itself may be called again."""
    stopped = minishark.connect(in_process=True, nodes=1)
    frame = stopped.sql("SELECT 1")
    stopped.stop()
    stopped.stop()
    uses = (
        lambda: stopped.sql("SELECT 1"),
        lambda: stopped.create_table("t", pa.table({"a": [1]})),
        lambda: stopped.drop_table("t"),
        frame.to_arrow,
        frame.explain,
    )
    for use in uses:
        with pytest.raises(ClusterError, match="stopped"):
            use()


def test_bad_frame_options(session: Session) -> None:
    """An unknown EXPLAIN mode and figures of a query that has not run are refused."""
    with pytest.raises(OptionError, match="Unknown mode"):
        session.sql("SELECT 1").plan_text("everything")
    with pytest.raises(OptionError, match="call collect\\(\\)"):
        session.sql("SELECT 1").metrics()


# The command line

_SQL = ("sql", "--nodes", "1")


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([*_SQL, "SELEC 1"], 1, 'Error: Parser Error: syntax error at or near "SELEC"'),
        ([*_SQL, "SELECT * FROM nowhere"], 1, "Table with name nowhere does not exist!"),
        ([*_SQL, "SELECT nothing FROM nation"], 1, 'Referenced column "nothing" not found'),
        ([*_SQL, "COMMIT"], 1, "There is no transaction to commit"),
        ([*_SQL, "SELECT n_name::INTEGER FROM nation"], 1, "Could not convert string"),
        ([*_SQL, "SELECT 1", "--data", "/no/such/folder"], 2, "Can't read /no/such/folder"),
        (["tpch", "--queries", "23"], 2, "23"),
    ],
)
def test_the_command_line_explains_itself(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    """A mistake is told on stderr without a traceback, with the right exit status."""
    monkeypatch.setattr(minishark, "connect", partial(minishark.connect, in_process=True))
    assert status == run(arguments)
    out, err = capfd.readouterr()
    assert "" == out
    assert message in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_program_explains_itself() -> None:
    """So it is in a process of its own, over a cluster of processes."""
    done = subprocess.run(
        [sys.executable, "-m", "minishark.cli", *_SQL, "SELECT n_name::INTEGER FROM nation"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (1, "") == (done.returncode, done.stdout)
    assert "Could not convert string" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_python_variable_is_no_table(session: Session) -> None:
    """The message says how it becomes one; DuckDB's guess at internal tables is left out."""
    mine, derived, number = pa.table({"a": [1]}), session.range(3), 7
    with pytest.raises(QueryError, match=r'session\.create_table\("mine", mine\)') as raised:
        session.sql("SELECT * FROM mine")
    assert "LINE 1" in str(raised.value)
    assert "Did you mean" not in str(raised.value)
    with pytest.raises(QueryError, match=r'derived\.create_temp_view\("derived"\)'):
        session.sql("SELECT * FROM derived")
    with pytest.raises(QueryError, match="number does not exist") as raised:
        session.sql("SELECT * FROM number")
    assert "variable" not in str(raised.value)
    del mine, derived, number


def test_addresses_that_are_not_read(session: Session) -> None:
    """No advice to install what is refused; what to do instead."""
    address = "https://localhost/x.parquet"
    for read in (
        lambda: session.sql(f"FROM '{address}'"),
        lambda: session.read.parquet(address),
        lambda: session.create_table("remote", address),
    ):
        with pytest.raises(MinisharkError, match=r"pass what it gives to session\.create_table"):
            read()


def test_what_gives_rows_for_ever_is_no_file(session: Session, tmp_path: Path) -> None:
    """Pipes and devices are refused at once."""
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", "/dev/zero", tmp_path / "*.csv"):
        with pytest.raises(DataError, match=r"no regular file|There is no file"):
            session.create_table("endless", path)
    for reads in (
        f"FROM '{tmp_path}/pipe.csv'",
        f"FROM read_csv(['{tmp_path}/*.csv'])",
        "SELECT * FROM read_csv('/dev/zero')",
        f"CREATE VIEW endless AS FROM '{tmp_path}/pipe.csv'",
        f"CREATE TABLE endless AS FROM read_json('{tmp_path}/pipe.csv')",
    ):
        with pytest.raises(DataError, match="no regular file"):
            session.sql(reads)
    with pytest.raises(DataError, match="no regular file"):
        session.read.csv(str(tmp_path / "pipe.csv")).collect()
    assert [(42,)] == session.sql("SELECT 42").collect()


@contextlib.contextmanager
def _silent(file: Path) -> Iterator[None]:
    """While the block runs, whoever opens the file waits, as for a file server that is gone."""
    hold = (
        "import fcntl, signal, sys; signal.signal(signal.SIGIO, signal.SIG_IGN); "
        "file = open(sys.argv[1], 'r+'); fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); "
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != "held\n":
            pytest.skip("This file system has no leases.")
        yield
        holder.communicate()


def test_a_file_that_does_not_answer_holds_its_own_statement_only(
    session: Session, tmp_path: Path
) -> None:
    file = tmp_path / "silent.csv"
    file.write_text("a\n7\n")
    with ThreadPoolExecutor(2) as pool:
        with _silent(file):
            reads = [
                pool.submit(lambda: session.sql(f"FROM '{file}'").collect()),
                pool.submit(lambda: session.read.csv(str(file), header=True).collect()),
            ]
            assert [(42,)] == session.sql("SELECT 42").collect()
            session.sql("CREATE OR REPLACE TABLE beside_silence AS SELECT 1 AS a")
            assert not any(read.done() for read in reads)
        assert [[(7,)], [(7,)]] == [read.result(timeout=30) for read in reads]
    session.drop_table("beside_silence")


def test_a_file_that_does_not_answer_is_given_up(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minishark.sources.filesystems._FIRST_BYTE_MAX_S", 0.3)
    file = tmp_path / "silent.csv"
    file.write_text("a\n7\n")
    with _silent(file):
        for read in (
            lambda: session.sql(f"FROM '{file}'"),
            lambda: session.create_table("silent", file),
        ):
            with pytest.raises(DataError, match=r"silent\.csv does not answer"):
                read()
