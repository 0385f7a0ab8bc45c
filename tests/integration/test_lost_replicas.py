"""Tables whose holders die: they heal, or come again from where they came from, or are named."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import until

import minishark
from minishark.cluster.backend import JobEvent
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.errors import PartitionsLostError
from minishark.query.run import QueryRun
from minishark.query.stage_graph import Submission
from minishark.session.session import Session
from minishark.tables.load import TableLoader
from sparrow_core import JobFinished

_ROWS = 40_000
_TOTAL = [{"n": _ROWS, "s": sum(range(_ROWS))}]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterRecord]:
    """Three nodes with one executor each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        yield start_cluster(StartOptions(name="three", nodes=3))
        stop_cluster("three")


def _rows() -> pa.Table:
    return pa.table({"k": [i % 8 for i in range(_ROWS)], "x": range(_ROWS)})


def _total(session: Session, table: str) -> list[dict[str, object]]:
    found = session.sql(f"SELECT count(*) AS n, sum(x)::BIGINT AS s FROM {table}").to_arrow()
    rows: list[dict[str, object]] = found.to_pylist()
    return rows


def _kill(cluster: ClusterRecord, number: int) -> None:
    """Kill a node; its executors end, and its files go."""
    victim = psutil.Process(cluster.nodes[number].pid)
    family = [victim, *victim.children(recursive=True)]
    os.kill(victim.pid, signal.SIGKILL)
    assert [] == psutil.wait_procs(family, timeout=20)[1]
    folders = [Path(folder) for folder in cluster.nodes[number].folders]
    until(lambda: not any(folder.exists() for folder in folders), "the end of its files")


def _replicas(session: Session, table: str) -> tuple[int | None, int | None, int]:
    info = session.catalog.get_table(table)
    return info.replicas, info.replicas_wanted, info.healing


@pytest.mark.slow
def test_tables_survive_their_nodes(cluster: ClusterRecord, tmp_path: Path) -> None:
    """Replicas heal, so that one node after the other may die; files and queries are run again."""
    file = tmp_path / "rows.parquet"
    pq.write_table(_rows(), file)
    with minishark.connect(cluster.address, single_task_rows=0) as session:
        session.create_table("t", _rows(), partition_by="k", partitions=6, replicas=2)
        session.create_table("from_file", str(file), partition_by="k", partitions=6, replicas=1)
        session.create_table("from_memory", _rows(), partitions=6, replicas=1)
        kept = session.sql("SELECT k, x FROM t WHERE x >= 0").persist(replicas=1)
        above = session.sql("SELECT k, x FROM from_file WHERE x >= 0").persist(replicas=1)
        assert _ROWS == above.count()
        drawn = session.sql("SELECT x, random() AS r FROM t").persist(replicas=1)
        assert (_ROWS, _ROWS) == (kept.count(), drawn.count())
        assert (2, 2, 0) == _replicas(session, "t")
        _kill(cluster, 2)
        assert _TOTAL == _total(session, "t")
        assert _TOTAL == _total(session, "from_file")
        assert any("from_file was lost with its nodes" in each for each in session.warnings)
        with pytest.raises(PartitionsLostError, match=r"partition [25] of table from_memory"):
            _total(session, "from_memory")
        assert (_ROWS, sum(range(_ROWS))) == (
            kept.count(),
            sum(kept.to_arrow().column("x").to_pylist()),
        )
        assert sum(range(_ROWS)) == sum(above.to_arrow().column("x").to_pylist())
        with pytest.raises(PartitionsLostError, match="might give other rows"):
            drawn.count()
        until(lambda: (2, 2, 0) == _replicas(session, "t"), "replicas of all partitions")
        _kill(cluster, 1)
        assert _TOTAL == _total(session, "t")
        assert _TOTAL == _total(session, "from_file")


@pytest.mark.slow
def test_changed_tables_survive_their_nodes(cluster: ClusterRecord, tmp_path: Path) -> None:
    """Replicas of deltas heal, too; a table of files is loaded again, and changed as it was."""
    file = tmp_path / "rows.parquet"
    pq.write_table(_rows(), file)
    with minishark.connect(cluster.address, single_task_rows=0) as session:
        session.create_table("t", _rows(), partition_by="k", partitions=6, replicas=2)
        session.create_table("from_file", str(file), partition_by="k", partitions=6, replicas=1)
        tables = ("t", "from_file")

        def change(number: int) -> None:
            for table in tables:
                session.sql(f"INSERT INTO {table} (k, x) SELECT i, {number} FROM range(8) r(i)")
                session.sql(f"UPDATE {table} SET x = x + 1 WHERE x = 3 AND k = 3")
                session.sql(
                    f"DELETE FROM {table} WHERE x BETWEEN {10 * number} AND {10 * number} + 4"
                )

        change(100)
        for table in tables:
            session.sql(f"ALTER TABLE {table} ADD COLUMN y INTEGER DEFAULT 7")
            session.sql(f"UPDATE {table} SET y = 8 WHERE k = 5")
        expected = [{"n": _ROWS + 3, "s": sum(range(_ROWS)) + 801 - sum(range(1000, 1005))}]
        assert [expected, expected] == [_total(session, table) for table in tables]
        for victim in (2, 1):
            _kill(cluster, victim)
            change(victim * 1000)
            after = [_total(session, table) for table in tables]
            assert after[0] == after[1]
            (ys, others) = (
                session.sql(f"SELECT y, count(*) FROM {t} GROUP BY y ORDER BY y") for t in tables
            )
            assert ys.collect() == others.collect()
            assert 3 == after[0][0]["n"] - expected[0]["n"]  # type: ignore[operator]
            expected = after[0]
            wanted = min(2, 3 - (victim == 2) - 2 * (victim == 1))
            until(
                lambda wanted=wanted: (wanted, wanted, 0) == _replicas(session, "t"),
                "replicas of all partitions",
            )


@pytest.mark.slow
def test_a_changed_file_is_not_loaded_again(cluster: ClusterRecord, tmp_path: Path) -> None:
    """Its rows would be others than those that the table had."""
    file = tmp_path / "rows.parquet"
    pq.write_table(_rows(), file)
    with minishark.connect(cluster.address, single_task_rows=0) as session:
        session.create_table("t", str(file), partition_by="k", partitions=3, replicas=1)
        pq.write_table(_rows().slice(1), file)
        _kill(cluster, 1)
        with pytest.raises(PartitionsLostError, match=r"rows\.parquet has changed since"):
            _total(session, "t")


@pytest.mark.slow
def test_a_load_goes_on_without_a_node(
    cluster: ClusterRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had been divided on the dead node is divided again; replicas lie on the others."""
    on_event, killed = TableLoader.on_event, []

    def hooked(loader: TableLoader, submission: Submission, event: JobEvent) -> None:
        on_event(loader, submission, event)
        if isinstance(event, JobFinished) and not killed:
            killed.append(submission.stage)
            _kill(cluster, 2)

    monkeypatch.setattr(TableLoader, "on_event", hooked)
    with minishark.connect(cluster.address, single_task_rows=0, partitions=6) as session:
        session.create_table("t", _rows(), partition_by="k", partitions=6, replicas=2)
        assert [0] == killed
        assert _TOTAL == _total(session, "t")
        until(lambda: (2, 2, 0) == _replicas(session, "t"), "replicas of all partitions")


@pytest.mark.slow
def test_rows_are_kept_although_a_node_dies(
    cluster: ClusterRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CREATE TABLE AS and an INSERT are right, too."""
    on_event, killed = QueryRun.on_event, []

    def hooked(run: QueryRun, submission: Submission, event: JobEvent) -> None:
        on_event(run, submission, event)
        if isinstance(event, JobFinished) and not killed and len(run.stages) > 1:
            killed.append(submission.stage)
            _kill(cluster, 2)

    with minishark.connect(cluster.address, single_task_rows=0, partitions=6) as session:
        session.create_table("t", _rows(), partition_by="k", partitions=6, replicas=2)
        monkeypatch.setattr(QueryRun, "on_event", hooked)
        session.sql("CREATE TABLE u AS SELECT k, x FROM t ORDER BY x")
        assert killed
        assert _TOTAL == _total(session, "u")
        session.sql("INSERT INTO u VALUES (0, 0)")
        assert [{"n": _ROWS + 1, "s": sum(range(_ROWS))}] == _total(session, "u")


@pytest.mark.slow
def test_a_stopped_node_is_not_waited_for(cluster: ClusterRecord) -> None:
    """Its tasks run elsewhere; when it goes on, it is used again."""
    with minishark.connect(cluster.address, single_task_rows=0) as session:
        session.create_table("t", _rows(), partition_by="k", partitions=6, replicas=2)
        victim = psutil.Process(cluster.nodes[1].pid)
        family = [victim, *victim.children(recursive=True)]
        for process in family:
            process.suspend()
        assert _TOTAL == _total(session, "t")
        until(lambda: 2 == len(session.nodes()), "the notice")
        assert _TOTAL == _total(session, "t")
        for process in family:
            process.resume()
        until(lambda: 3 == len([n for n in session.nodes() if n.executors]), "its return")
        for _ in range(3):
            assert _TOTAL == _total(session, "t")
