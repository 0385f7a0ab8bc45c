from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import s3_server
from processes import until
from s3_server import DENIED, EXPIRED, KEY, SECRET, S3Server

import minishark
from minishark.errors import (
    DataError,
    MinisharkError,
    OptionError,
    QueryCancelledError,
    UnsupportedError,
)
from minishark.session.session import Session

ROWS = 30_000


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.running() as running:
        yield running


@pytest.fixture(scope="module")
def session(server: S3Server) -> Iterator[Session]:
    """Two executors that know the store from the session's options only."""
    with minishark.connect(
        nodes=2, partitions=4, single_task_rows=0, storage_options=server.options
    ) as session:
        session.sql(
            f"CREATE TABLE t AS SELECT i, i % 3 AS k, 'text ' || i AS text FROM range({ROWS}) r(i)"
        )
        yield session


@pytest.fixture
def bucket(server: S3Server) -> str:
    return server.make_bucket()


def rows(server: S3Server, uri: str, folder: Path, reader: str = "read_parquet") -> Any:
    """What DuckDB finds in the files below a URI, by a copy of them."""
    folder.mkdir(exist_ok=True)
    server.download(uri, folder)
    files = [str(file) for file in folder.rglob("*") if file.is_file()]
    return duckdb.sql(
        f"SELECT count(*), sum(i), bit_xor(hash(i, k, text)) FROM {reader}({files}, "
        "hive_partitioning = true)"
    ).fetchall()


@pytest.fixture
def expected(session: Session) -> Any:
    return session.sql("SELECT count(*), sum(i), bit_xor(hash(i, k, text)) FROM t").collect()


TARGETS = [
    ("/out.parquet", "", "read_parquet", {"out.parquet"}),
    ("/a/b c/out.csv.gz", "(HEADER)", "read_csv", {"a/b c/out.csv.gz"}),
    (
        "/out",
        "(FORMAT parquet, PER_THREAD_OUTPUT)",
        "read_parquet",
        {f"out/data_{i}.parquet" for i in range(4)},
    ),
    (
        "/out/",
        "(FORMAT parquet, PARTITION_BY (k), FILENAME_PATTERN 'part_{i}')",
        "read_parquet",
        {f"out/k={k}/part_{i}.parquet" for k in range(3) for i in range(4)},
    ),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "case", TARGETS, ids=[target + options for target, options, _, _ in TARGETS]
)
def test_rows_are_written_to_a_store(
    session: Session, server: S3Server, bucket: str, tmp_path: Path, expected: Any, case: Any
) -> None:
    target, options, reader, names = case
    answer = session.sql(f"COPY t TO '{bucket}{target}' {options}").collect()
    assert [(ROWS,)] == [tuple(row) for row in answer]
    assert names == server.keys(bucket)
    assert [tuple(row) for row in expected] == rows(server, bucket, tmp_path, reader)


def test_small_rows_and_rows_of_the_front_end_are_written(
    session: Session, server: S3Server, bucket: str, tmp_path: Path
) -> None:
    session.sql(f"COPY (SELECT 1 AS i, 2 AS k, 'a' AS text) TO '{bucket}/one.parquet'")
    session.sql(f"COPY (SELECT i FROM t WHERE i < 0) TO '{bucket}/none.parquet'")
    union = "union_value(a := 1)"  # which Arrow does not keep
    session.sql(f"COPY (SELECT 2 AS i, 2 AS k, {union}::VARCHAR AS text) TO '{bucket}/u.parquet'")
    assert {"one.parquet", "none.parquet", "u.parquet"} == server.keys(bucket)


@pytest.mark.slow
def test_a_folder_with_files_needs_a_mode(
    session: Session, server: S3Server, bucket: str, tmp_path: Path, expected: Any
) -> None:
    server.put(f"{bucket}/out/data_0.parquet", b"old")
    server.put(f"{bucket}/out/other", b"old")
    copy = f"COPY t TO '{bucket}/out' (FORMAT parquet, PER_THREAD_OUTPUT"
    with pytest.raises(DataError, match="is not empty! Add the option OVERWRITE"):
        session.sql(f"{copy})")
    assert {"out/data_0.parquet", "out/other"} == server.keys(bucket)
    session.sql(f"{copy}, OVERWRITE_OR_IGNORE)")
    new = {f"out/data_{i}.parquet" for i in range(4)}
    assert new | {"out/other"} == server.keys(bucket)
    session.sql(f"{copy}, OVERWRITE)")
    assert new == server.keys(bucket)
    assert [tuple(row) for row in expected] == rows(server, bucket, tmp_path)
    session.sql(f"{copy}, APPEND, FILENAME_PATTERN 'new_{{uuid}}')")
    assert 8 == len(server.keys(bucket))


@pytest.mark.sample(2)
@pytest.mark.parametrize("when", [1, 3, 5, 7])
def test_an_error_in_the_middle_changes_nothing(
    session: Session, server: S3Server, bucket: str, when: int
) -> None:
    """Whichever of the requests that write is refused."""
    server.put(f"{bucket}/out/data_0.parquet", b"old")
    server.put(f"{bucket}/out/other", b"old")
    written = []

    def fault(request: s3_server.Request) -> s3_server.Fault | None:
        if request.method == "PUT":
            written.append(request)
        return DENIED if request.method == "PUT" and len(written) == when else None

    server.fault = fault
    with pytest.raises(DataError, match=rf"Can't write .*{bucket}.*access is denied") as raised:
        session.sql(f"COPY t TO '{bucket}/out' (FORMAT parquet, PER_THREAD_OUTPUT, OVERWRITE)")
    assert KEY not in str(raised.value)
    # A task that could not be stopped removes its files itself.
    until(lambda: {"out/data_0.parquet", "out/other"} == server.keys(bucket), "what was before")
    assert b"old" == server.contents(bucket)["out/data_0.parquet"]


def test_expired_credentials_are_told(session: Session, server: S3Server, bucket: str) -> None:
    server.fault = lambda request: EXPIRED
    with pytest.raises(DataError, match=r"out\.parquet.* credentials have expired"):
        session.sql(f"COPY t TO '{bucket}/out.parquet'")


def test_a_cancelled_copy_leaves_nothing(session: Session, server: S3Server, bucket: str) -> None:
    begun = threading.Event()

    def fault(request: s3_server.Request) -> None:
        is_data = request.method == "PUT" and not request.path.endswith("/open")
        if is_data and not begun.is_set():
            begun.set()
            for number in list(session._runtime.engine.running):
                session._runtime.engine.cancel(number)

    server.fault = fault
    with pytest.raises(QueryCancelledError):
        session.sql(f"COPY t TO '{bucket}/out' (FORMAT parquet, PER_THREAD_OUTPUT)")
    assert begun.is_set()
    server.fault = lambda _: None
    until(lambda: set() == server.keys(bucket), "an empty bucket")


def test_what_copy_can_not_do_with_a_store_is_told(session: Session, bucket: str) -> None:
    for target in (f"'{bucket}/x' (FORMAT parquet, PARTITION_BY (k), RETURN_FILES)",):
        with pytest.raises(UnsupportedError, match="COPY to an object store"):
            session.sql(f"COPY t TO {target}")
    with pytest.raises(UnsupportedError, match=r"checkpoint\(\) writes to local folders"):
        session.table("t").checkpoint(f"{bucket}/x")


def test_no_secret_is_seen(session: Session, server: S3Server, bucket: str) -> None:
    """Neither in events, plans, representations, nor in files of the session."""
    engine = session._runtime.engine
    session.sql(f"COPY t TO '{bucket}/y.parquet'")
    seen = engine.events.since(0)
    assert seen.events
    assert SECRET not in f"{seen!r}{engine.storage!r}{session!r}"
    for root in {engine.cluster.paths.memory, engine.cluster.paths.disk}:
        for file in root.rglob("*"):
            if file.is_file():
                assert SECRET.encode() not in file.read_bytes(), file


def test_a_provider_is_asked_for_each_statement(server: S3Server, bucket: str) -> None:
    calls = []

    def provider() -> dict[str, str]:
        calls.append(1)
        if len(calls) > 1:
            raise ValueError(SECRET)
        return server.options

    with minishark.connect(in_process=True, nodes=1, storage_options={bucket: provider}) as session:
        session.sql(f"COPY (SELECT 1 AS i) TO '{bucket}/x.parquet'")
        assert {"x.parquet"} == server.keys(bucket)
        with pytest.raises(OptionError, match="provider of storage options failed") as raised:
            session.sql(f"COPY (SELECT 1 AS i) TO '{bucket}/y.parquet'")
        assert SECRET not in str(raised.value)


@pytest.mark.parametrize("options", [{"s3://a": {}, "region": "x"}, 3, {"s3://a": 3}])
def test_storage_options_are_checked(options: Any) -> None:
    with pytest.raises(OptionError, match="storage_options"):
        minishark.connect(in_process=True, storage_options=options)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_at_any_moment_leave_all_or_nothing(
    server: S3Server, bucket: str, tmp_path: Path
) -> None:
    """An executor is killed at random moments of a COPY, which tries again, or fails as a whole."""
    choices = random.Random(21)
    failed = 0
    with minishark.connect(
        nodes=2, partitions=4, single_task_rows=0, storage_options=server.options
    ) as session:
        session.sql(
            "CREATE TABLE t AS SELECT i, i % 3 AS k, 'text ' || hash(i) AS text "
            f"FROM range({10 * ROWS}) r(i)"
        )
        expected = session.sql("SELECT count(*), sum(i), bit_xor(hash(i, k, text)) FROM t")
        answer = [tuple(row) for row in expected.collect()]
        copy = "COPY t TO '{}' (FORMAT parquet, PARTITION_BY (k))"
        began_s = time.monotonic()
        session.sql(copy.format(f"{bucket}/first"))
        took_s = time.monotonic() - began_s
        for number in range(25):
            uri = server.make_bucket()
            killer = threading.Timer(
                choices.random() * took_s, _kill_an_executor, [session, choices]
            )
            killer.start()
            try:
                session.sql(copy.format(f"{uri}/out"))
            except MinisharkError:
                failed += 1
                assert set() == {key for key in server.keys(uri) if not key.startswith(".")}
            else:
                assert 12 == len(server.keys(uri))
                assert answer == rows(server, uri, tmp_path / str(number))
            finally:
                killer.join()
    assert failed < 15


def _kill_an_executor(session: Session, choices: random.Random) -> None:
    executors = [e.pid for node in session._runtime.cluster.status() for e in node.executors]
    if executors:
        with contextlib.suppress(ProcessLookupError):
            os.kill(choices.choice(executors), signal.SIGKILL)


def count(server: S3Server, uri: str, folder: Path, kind: str = "parquet") -> int:
    folder.mkdir(exist_ok=True)
    server.download(uri, folder)
    files = [str(file) for file in folder.rglob("*") if file.is_file()]
    return duckdb.sql(f"SELECT count(*) FROM read_{kind}({files})").fetchall()[0][0]


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which nothing may appear."""
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_data_frames_are_written_to_a_store(
    session: Session, server: S3Server, bucket: str, tmp_path: Path, empty_folder: Path, kind: str
) -> None:
    """By each format's method, as a folder of files; nothing is written here."""
    getattr(session.table("t").write, kind)(f"{bucket}/out")
    assert ROWS == count(server, bucket, tmp_path / "got", kind)
    assert {"out"} == {key.partition("/")[0] for key in server.keys(bucket)}
    assert [] == list(empty_folder.iterdir())


@pytest.mark.slow
def test_modes_and_partitions_of_writers_hold_in_a_store(
    session: Session, server: S3Server, bucket: str, tmp_path: Path, empty_folder: Path
) -> None:
    """As in a local folder: error, ignore, append, overwrite, and a file for itself."""
    write, target = session.range(6).write, f"{bucket}/a b/out"
    write.parquet(target)
    with pytest.raises(DataError, match=f"{target} exists already; mode\\('overwrite'\\)"):
        write.parquet(target)
    write.mode("ignore").parquet(target)
    assert 6 == count(server, bucket, tmp_path / "0")
    write.mode("append").parquet(target)
    assert 12 == count(server, bucket, tmp_path / "1")
    keyed = session.sql("SELECT i, i % 2 AS k FROM range(4) r(i)").write.partition_by("k")
    keyed.mode("overwrite").parquet(target)
    assert {"k=0", "k=1"} == {key.split("/")[2] for key in server.keys(bucket)}
    assert [4] == [session.read.parquet(target).count()]
    one = f"{bucket}/one.parquet"
    write.parquet(one)
    with pytest.raises(DataError, match=r"one\.parquet exists already"):
        write.parquet(one)
    session.range(2).write.mode("overwrite").parquet(one)
    assert 2 == session.read.parquet(one).count()
    assert [] == list(empty_folder.iterdir())


def test_no_scheme_becomes_a_local_folder(session: Session, empty_folder: Path) -> None:
    """Neither one that is unknown, nor that of a URI that was made a Path, nor for items."""
    for target in ("hdfs://host/out", "s3:/lake/out", Path("gs://lake/out"), "s3://", "file://h/x"):
        with pytest.raises(DataError, match=r"Can't write to .*files are local, or begin with s3"):
            session.range(3).write.parquet(target)
        with pytest.raises(DataError, match=r"Can't write to .*files are local, or begin with s3"):
            session.sql(f"COPY t TO '{target}' (FORMAT parquet, PER_THREAD_OUTPUT)")
        with pytest.raises(DataError, match="files are local, or begin with s3"):
            session.parallelize([1]).save_as_text_file(str(target))
    with pytest.raises(UnsupportedError, match=r"make them a DataFrame with to_df\(\)"):
        session.parallelize([1]).save_as_text_file("s3://lake/out")
    assert [] == list(empty_folder.iterdir())


@pytest.mark.sample(2)
@pytest.mark.parametrize("scheme", ["file://", "file:"])
def test_a_uri_of_a_file_is_a_local_path(session: Session, tmp_path: Path, scheme: str) -> None:
    """As in Spark."""
    session.range(3).write.parquet(f"{scheme}{tmp_path}/out")
    assert 3 == session.read.parquet(f"{tmp_path}/out").count()
    assert 3 == session.read.parquet(f"{scheme}{tmp_path}/out").count()
    session.sql(f"COPY t TO '{scheme}{tmp_path}/t.parquet'")
    assert ROWS == session.read.parquet(f"{tmp_path}/t.parquet").count()
    session.parallelize([1, 2], 1).save_as_text_file(f"{scheme}{tmp_path}/items")
    assert "1\n2\n" == (tmp_path / "items" / "part-00000").read_text()
