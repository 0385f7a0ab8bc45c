"""Tables that belong to a running cluster: sessions come, change them, and go."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from processes import program, until

import minishark
from minishark.cli.app import run as run_command
from minishark.cluster.jobs.records import SHARED_TABLES, JobState
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.cluster.shared.client import SharedTablesClient
from minishark.cluster.shared.visit import tables_of
from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    ConflictError,
    OptionError,
    QueryError,
    UnsupportedError,
)
from minishark.session.session import Session

_CREATOR = """
import sys, time, minishark
session = minishark.connect(sys.argv[1], single_task_rows=0)
session.sql("CREATE TABLE shared.left AS SELECT i AS id, i % 7 AS k FROM range(10000) AS r(i)")
session.sql("DELETE FROM shared.left WHERE id >= 9000")
session.sql("CREATE TABLE own AS FROM range(5)")
print("created", file=sys.stderr)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecord]:
    """A cluster of three nodes with one executor each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield start_cluster(StartOptions(name="tables", nodes=3))
        stop_cluster("tables")


@pytest.fixture(scope="module")
def one(running: ClusterRecord) -> Iterator[Session]:
    """A session that distributes even the smallest query."""
    with minishark.connect(running.name, single_task_rows=0, partitions=3) as found:
        yield found


@pytest.fixture(scope="module")
def other(running: ClusterRecord) -> Iterator[Session]:
    """Another one."""
    with minishark.connect(running.name, single_task_rows=0, partitions=3) as found:
        yield found


def _rows(session: Session, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in session.sql(sql).collect()]


def _files(record: ClusterRecord) -> list[Path]:
    roots = [Path(folder, node.name) for node in record.nodes for folder in node.folders]
    return [path for root in roots for path in root.glob("shared/*/*")]


def _holding(session: Session) -> JobState:
    """Who holds the catalog."""
    return session._runtime.cluster.jobs().held()[SHARED_TABLES]


def test_a_session_sees_what_others_do(one: Session, other: Session) -> None:
    """At once: creating, changing, adding columns, replacing, dropping; names in every case."""
    one.create_table("t", pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}), shared=True)
    assert [(1, "x"), (2, "y"), (3, None)] == _rows(other, "FROM shared.t ORDER BY a")
    other.sql("INSERT INTO Shared.T VALUES (4, 'z')")
    one.sql("UPDATE shared.t SET b = 'w' WHERE shared.t.a = 1")
    other.sql("MERGE INTO shared.t USING (VALUES (2), (5)) AS n(k) ON a = k "
              "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (k, 'm')")  # fmt: skip
    assert [(1, "w"), (3, None), (4, "z"), (5, "m")] == _rows(one, "FROM shared.t ORDER BY a")
    one.sql("ALTER TABLE shared.t ADD COLUMN c INTEGER DEFAULT 7")
    assert [(7, 4)] == _rows(other, "SELECT c, count(*) FROM shared.t GROUP BY c")
    assert [("a", "BIGINT"), ("b", "VARCHAR"), ("c", "INTEGER")] == other.table("shared.t").dtypes
    assert ["a", "b", "c"] == [row[0] for row in _rows(other, "DESCRIBE shared.t")]
    other.sql("CREATE VIEW v AS SELECT sum(a)::BIGINT AS s FROM shared.t")
    one.sql("CREATE OR REPLACE TABLE shared.t AS SELECT 8 AS a UNION ALL SELECT a FROM shared.t")
    assert [(21,)] == _rows(other, "FROM v")
    assert [("t",)] == _rows(other, "SHOW TABLES FROM shared")
    assert ["shared.t"] == other.tables
    info = other.catalog.get_table("shared.t")
    assert ("table", 5, 3) == (info.kind, info.rows, info.replicas)
    with pytest.raises(AlreadyExistsError):
        other.create_table("shared.t", pa.table({"a": [1]}))
    other.drop_table("shared.t")
    assert [] == one.tables
    with pytest.raises(CatalogError, match=r"no table shared\.t; the shared tables are: none"):
        one.sql("FROM shared.t").collect()
    other.sql("DROP VIEW v")


def test_a_name_without_its_schema(one: Session) -> None:
    """The error says where there is a table of that name."""
    one.create_table("mine", pa.table({"a": [1]}), shared=True)
    with pytest.raises(QueryError, match=r"There is shared\.mine: write the schema, too"):
        one.sql("FROM mine")
    one.sql("DROP TABLE shared.mine")


def test_transactions_are_over_shared_tables_too(one: Session, other: Session) -> None:
    """All or nothing, with tables in memory; a COMMIT after another session's conflicts."""
    one.sql("CREATE TABLE shared.x AS FROM range(3) AS r(i)")
    one.sql("CREATE TABLE mine AS FROM range(3) AS r(i)")
    one.sql("BEGIN; UPDATE shared.x SET i = i + 10; DELETE FROM mine WHERE i = 0")
    assert [(3,)] == _rows(other, "SELECT sum(i)::BIGINT FROM shared.x")
    other.sql("UPDATE shared.x SET i = -1 WHERE i = 0")
    with pytest.raises(ConflictError):
        one.sql("COMMIT")
    assert [(2, 3)] == _rows(
        one, "SELECT (SELECT sum(i) FROM shared.x)::BIGINT, count(*) FROM mine"
    )
    one.sql("BEGIN; INSERT INTO shared.x VALUES (5); INSERT INTO mine VALUES (5)")
    other.sql("INSERT INTO shared.x VALUES (6)")  # both only add rows
    one.sql("COMMIT")
    assert [(5, 4)] == _rows(one, "SELECT (SELECT count(*) FROM shared.x), count(*) FROM mine")
    one.sql("DROP TABLE shared.x; DROP TABLE mine")


def test_who_names_no_shared_table_does_not_ask_for_any(
    running: ClusterRecord, one: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transactions look once, at BEGIN; who then names one sees what others did meanwhile."""
    one.create_table("counted", pa.table({"a": [1]}), replace=True, shared=True)
    with minishark.connect(running.name) as session:
        session.create_table("own", pa.table({"a": [1, 2]}))
        shared = session._runtime.tables.shared
        assert shared is not None
        asked: list[object] = []
        read = SharedTablesClient.read
        monkeypatch.setattr(
            SharedTablesClient, "read", lambda client: (asked.append(client), read(client))
        )
        for sql in ("BEGIN", "INSERT INTO own VALUES (3)", "FROM own", "COMMIT", "FROM own"):
            session.sql(sql).collect()
        assert [shared.client] == asked
        one.sql("INSERT INTO shared.counted VALUES (2)").collect()
        assert [(1,), (2,)] == session.sql("FROM shared.counted ORDER BY a").collect()
        one.sql("INSERT INTO shared.counted VALUES (3)").collect()
        assert [(3,)] == session.sql("SELECT count(*) FROM shared.counted").collect()
    one.drop_table("shared.counted")


@pytest.mark.slow
def test_what_two_sessions_write_at_once_is_all_there(one: Session, other: Session) -> None:
    """Statements that find another version run again: no row and no increment is lost."""
    one.sql("CREATE TABLE shared.n AS SELECT 0 AS n")
    failed: list[Exception] = []
    tries = [0]

    def write(session: Session, first: int) -> None:
        for number in range(first, first + 8):
            while True:
                try:
                    session.sql(f"INSERT INTO shared.n VALUES ({number})")
                    session.sql("UPDATE shared.n SET n = n + 1 WHERE n < 100")
                    break
                except ConflictError:  # after four tries
                    tries[0] += 1
                except Exception as error:  # noqa: BLE001 - the thread ends
                    failed.append(error)
                    return

    sessions = (one, other)
    threads = [
        threading.Thread(target=write, args=(s, 1000 * (i + 1))) for i, s in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == failed
    counted = _rows(one, "SELECT min(n), count(DISTINCT n) FROM shared.n WHERE n != 0")
    assert [(16, 17)] == counted
    one.sql("DROP TABLE shared.n")


@pytest.mark.slow
def test_a_query_reads_what_another_session_drops(one: Session, other: Session) -> None:
    """Files of a table stay as long as a session reads them, then they go from all nodes."""
    one.sql("CREATE TABLE shared.d AS FROM range(50000) AS r(i)")
    other.sql("FROM shared.d").collect()
    named = one.sql("SELECT d.i FROM shared.d")
    reader = iter(one.sql("SELECT i FROM shared.d").to_batches())
    first = next(reader)
    other.sql("DROP TABLE shared.d")
    with pytest.raises(QueryError, match=r"There is no table shared\.d any more\.$"):
        named.collect()
    rest = sum(batch.num_rows for batch in reader)
    assert 50_000 == first.num_rows + rest


@pytest.mark.slow
def test_a_job_reads_shared_tables(one: Session) -> None:
    """So may views that it takes along."""
    one.sql("CREATE TABLE shared.j AS FROM range(10) AS r(i)")
    one.sql("CREATE VIEW even AS FROM shared.j WHERE i % 2 = 0")
    job = one.sql("SELECT sum(o.i)::BIGINT AS s, count(*) AS n FROM even, shared.j AS o").submit(
        "sums"
    )
    rows = job.result(60)
    assert rows is not None
    assert [{"s": 225, "n": 50}] == rows.to_pylist()
    assert ["sums"] == [each.name for each in one.jobs()]
    one.sql("CREATE TABLE mine AS FROM range(3)")
    with pytest.raises(UnsupportedError, match="shared=True"):
        one.sql("FROM mine").submit("refused")
    one.sql("DROP TABLE mine; DROP VIEW even; DROP TABLE shared.j")


def test_what_cannot_be_done_is_said(one: Session) -> None:
    """By typed errors."""
    one.sql("CREATE TABLE shared.r AS FROM range(3) AS r(i)")
    for sql in (
        "ALTER TABLE shared.r RENAME TO s",
        "CREATE INDEX i ON shared.r (i)",
        "CREATE VIEW shared.v AS FROM shared.r",
        "DROP SCHEMA shared",
        "USE shared",
        "FROM shared.r AT (VERSION => 1)",
    ):
        with pytest.raises(UnsupportedError):
            one.sql(sql).collect()
    with pytest.raises(CatalogError):
        one.sql("INSERT INTO shared.none VALUES (1)")
    with pytest.raises(OptionError):
        one.submit_program(__file__, name=SHARED_TABLES)
    one.sql("CREATE SCHEMA IF NOT EXISTS shared; DROP TABLE shared.r")
    with (
        minishark.connect(in_process=True) as alone,
        pytest.raises(UnsupportedError, match="cluster start"),
    ):
        alone.create_table("t", pa.table({"a": [1]}), shared=True)


@pytest.mark.slow
def test_tables_outlive_who_was_killed(
    running: ClusterRecord, one: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own tables go, and what it had begun; `minishark tables` lists what is left."""
    with program("-c", _CREATOR, running.name) as creator:
        creator.wait_for("created")
        creator.kill()
        creator.process.wait()
        left = [path for path in creator.folders if path.is_relative_to("/dev/shm")]
        until(lambda: not any(path.exists() for path in left), "nodes remove its folder")
    assert [(9000, 7)] == _rows(one, "SELECT count(*), count(DISTINCT k) FROM shared.left")
    with pytest.raises(CatalogError):
        one.table("own")
    assert 0 == run_command(["tables", "--cluster", running.name])
    printed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert ["shared.left", "9,000"] in printed
    one.sql("DROP TABLE shared.left")


@pytest.mark.slow
def test_files_that_no_table_has_are_removed(
    running: ClusterRecord, one: Session, other: Session
) -> None:
    """Those of former versions when nobody reads them, those of a killed loader a bit later."""
    one.sql("CREATE TABLE shared.f AS FROM range(3) AS r(i)")
    first = {Path(file).name for file in tables_of(running.address, None)[0].table.files}
    other.sql("BEGIN; FROM shared.f")
    for _ in range(5):
        one.sql("UPDATE shared.f SET i = i + 1")
        one.sql("CREATE OR REPLACE TABLE shared.f AS FROM shared.f")
    (table,) = tables_of(running.address, None)
    wanted = {Path(file).name for file in table.table.files}
    assert first <= {path.name for path in _files(running)}
    assert [(0, 2)] == _rows(other, "SELECT min(i), max(i) FROM shared.f")
    other.sql("COMMIT")
    assert [(5, 7)] == _rows(other, "SELECT min(i), max(i) FROM shared.f")
    until(lambda: {path.name for path in _files(running)} == wanted, "only these are left", 60)
    one.sql("DROP TABLE shared.f")
    until(lambda: _files(running) == [], "nothing is left", 90)


@pytest.mark.slow
def test_replicas_and_the_catalog_survive_nodes(tmp_path: Path) -> None:
    """Without any session: the next owner goes on, and makes the replicas that were lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        record = start_cluster(StartOptions(name="dying", nodes=4))
        try:
            with minishark.connect("dying", single_task_rows=0, partitions=4) as session:
                session.sql("CREATE TABLE shared.t AS FROM range(1000) AS r(i)")
                session.sql("INSERT INTO shared.t VALUES (1000)")
                held = _holding(session)
            pids = {node.name: node.pid for node in record.nodes}
            schedulers = [node.name for node in record.nodes[:2]]
            owner = held.node
            victims = [owner, next(n for n in pids if n not in (*schedulers, owner))]
            left = next(node for node in record.nodes if node.name not in victims)

            def is_whole() -> bool:
                listed = tables_of(left.service, None)
                return [each.replicas >= 2 for each in listed] == [True]

            for victim in victims:
                os.kill(pids[victim], signal.SIGKILL)
                until(is_whole, "two replicas of all partitions", 60)
            with minishark.connect(left.service, single_task_rows=0) as session:
                assert [(1001, 1000)] == _rows(session, "SELECT count(*), max(i) FROM shared.t")
                session.sql("DELETE FROM shared.t WHERE i < 500")
                assert [(501,)] == _rows(session, "SELECT count(*) FROM shared.t")
                assert owner != _holding(session).node
        finally:
            stop_cluster("dying")


@pytest.mark.slow
def test_a_node_that_is_drained_leaves_its_replicas(tmp_path: Path) -> None:
    """Also if each has one, and no session is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        record = start_cluster(StartOptions(name="draining", nodes=3))
        try:
            with minishark.connect("draining", single_task_rows=0, partitions=3) as session:
                session.sql("CREATE TABLE rows AS FROM range(60000) AS r(i)")
                frame = session.table("rows")
                session.create_table("t", frame, partitions=3, replicas=1, shared=True)
                owner = _holding(session).node
            (left, *_) = [node for node in record.nodes if node.name != owner]
            assert 0 == run_command(["cluster", "drain", owner, "--cluster", "draining"])
            (gone,) = [node for node in record.nodes if node.name == owner]
            until(lambda: gone.process() is None, "the node has left", 60)
            with minishark.connect(left.service, single_task_rows=0) as session:
                sums = _rows(session, "SELECT count(*), sum(i)::BIGINT FROM shared.t")
                assert [(60_000, 60_000 * 59_999 // 2)] == sums
        finally:
            stop_cluster("draining")
