"""Outputs of tasks that are lost while a query runs are made again, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import minishark
from minishark import functions as F
from minishark.cluster.backend import JobEvent
from minishark.cluster.local import OwnCluster
from minishark.errors import PartitionsLostError, TasksLostError
from minishark.model.catalog import Table
from minishark.query import stage_jobs
from minishark.query.run import QueryRun
from minishark.query.stage_graph import Submission
from minishark.query.stage_jobs import RECOVERIES_MAX
from minishark.session.session import Session
from minishark.tables.tables import Tables
from minishark.worker.protocol import (
    FileSlice,
    StageTask,
    TaskOutcome,
    TaskPayload,
    TaskProblem,
)
from minishark.worker.run_task import TaskRunner
from minishark.worker.task_errors import TaskError
from sparrow_core import JobFinished

_ROWS = 40_000
_JOIN = "SELECT count(*) AS n, sum(a.x)::BIGINT AS s FROM t a JOIN t b ON a.x = b.x + 1"
_JOINED = [{"n": _ROWS - 1, "s": sum(range(1, _ROWS))}]
_ALL = "SELECT x, repeat('y', 100) AS y FROM t ORDER BY x"


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that distributes even the smallest query by files, with a table."""
    with minishark.connect(
        in_process=True,
        nodes=2,
        partitions=3,
        single_task_rows=0,
        disabled_optimizations=["inline_outputs"],
    ) as found:
        rows = pa.table({"k": [i % 8 for i in range(_ROWS)], "x": range(_ROWS)})
        found.create_table("t", rows, partition_by="k", partitions=3)
        yield found


def _files(session: Session, pattern: str) -> list[Path]:
    """Files in the store, whatever node they are on."""
    return sorted(session._runtime.cluster.store()._paths.memory.glob(f"node-*/{pattern}"))


def _when_a_stage_ends(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[QueryRun, int], None]
) -> None:
    """Do something each time that a job of a stage has finished."""
    heard = QueryRun.on_event

    def hooked(run: QueryRun, submission: Submission, event: JobEvent) -> None:
        heard(run, submission, event)
        if isinstance(event, JobFinished):
            act(run, submission.stage)

    monkeypatch.setattr(QueryRun, "on_event", hooked)


def _remade(frame: minishark.DataFrame) -> dict[int, int]:
    return {s.index: s.remade_tasks for s in frame.metrics().by_stage if s.remade_tasks}


def test_a_lost_shuffle_output_is_made_again_by_its_task(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task runs again, the answer is right, and EXPLAIN ANALYZE tells of it."""
    lost: list[Path] = []

    def lose(run: QueryRun, stage: int) -> None:
        if not lost and stage == 0:
            lost.append(_files(session, f"{run.folder}/0-1-*.arrow")[0])
            lost[0].unlink()

    _when_a_stage_ends(monkeypatch, lose)
    frame = session.sql(_JOIN)
    assert _JOINED == frame.to_arrow().to_pylist()
    assert 1 == len(lost)
    assert {0: 1} == _remade(frame)
    lost.clear()
    assert "1 recomputed" in session.sql(_JOIN).plan_text("analyze")


def test_all_outputs_of_a_node_are_made_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node held of all stages, twice in a row."""
    lost: list[Path] = []

    def lose(run: QueryRun, stage: int) -> None:
        if stage == run.stages[-2].index and len(lost) < 4:
            lost.extend(found := _files(session, f"{run.folder}/*.arrow"))
            for file in found:
                file.unlink()

    _when_a_stage_ends(monkeypatch, lose)
    frame = session.sql(_JOIN)
    assert _JOINED == frame.to_arrow().to_pylist()
    assert lost
    assert _remade(frame)


def test_outputs_in_messages_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes lose their files after each stage, and an executor fails; nothing is made again."""
    sql = "SELECT a.k, count(*) AS n FROM t a JOIN t b ON a.x = b.x + 1 GROUP BY a.k ORDER BY a.k"
    attempts: list[dict[str, tuple[FileSlice, ...]]] = []
    run_task = TaskRunner.run

    def failing(runner: TaskRunner, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        inputs = {**stage.shared_inputs, **task.inputs}
        if any(item.inline for slices in inputs.values() for item in slices):
            attempts.append(inputs)
            if len(attempts) == 1:
                raise TaskError(TaskProblem.INPUT, "for a test")  # on another node, it may work
        return run_task(runner, stage, task)

    def lose(run: QueryRun, stage: int) -> None:
        del stage
        for file in _files(own, f"{run.folder}/*.arrow"):
            file.unlink()
        run._jobs._recover("for a test")

    with minishark.connect(in_process=True, nodes=2, partitions=3, single_task_rows=0) as own:
        rows = pa.table({"k": [i % 8 for i in range(600)], "x": range(600)})
        own.create_table("t", rows, partition_by="k", partitions=3)
        monkeypatch.setattr(TaskRunner, "run", failing)
        _when_a_stage_ends(monkeypatch, lose)
        frame = own.sql(sql)
        found = frame.to_arrow().to_pylist()
    assert [{"k": k, "n": 75 - (k == 0)} for k in range(8)] == found
    assert {} == _remade(frame)
    assert 1 < len(attempts)
    assert attempts[0] in attempts[1:]  # with the same rows


def test_a_lost_result_is_made_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where rows are read piece by piece, and where they are to be kept."""
    lost: list[Path] = []

    def lose(run: QueryRun, stage: int) -> None:
        if stage == run.stages[-1].index and not lost:
            lost.append(_files(session, f"{run.folder}/{stage}-0-*.arrow")[0])
            lost[0].unlink()

    _when_a_stage_ends(monkeypatch, lose)
    assert list(range(_ROWS)) == session.sql(_ALL).to_arrow().column("x").to_pylist()
    assert 1 == len(lost)
    lost.clear()
    batches = session.sql(_ALL).to_batches()
    assert _ROWS == sum(batch.num_rows for batch in batches)
    assert 1 == len(lost)
    lost.clear()
    session.create_table("kept", session.sql(_ALL), partitions=4, replace=True)
    assert 1 == len(lost)
    found = session.sql("SELECT count(*) AS n, sum(x)::BIGINT AS s FROM kept").to_arrow()
    assert [{"n": _ROWS, "s": sum(range(_ROWS))}] == found.to_pylist()


def test_volatile_rows_are_never_of_two_draws(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one output with random numbers is lost, all that has read the others starts again."""
    lost: list[Path] = []

    def lose(run: QueryRun, stage: int) -> None:
        if stage == run.stages[-2].index and not lost:
            lost.extend(_files(session, f"{run.folder}/{stage}-0-*.arrow"))
            lost.extend(_files(session, f"{run.folder}/0-0-*.arrow"))
            for file in lost:
                file.unlink(missing_ok=True)

    _when_a_stage_ends(monkeypatch, lose)
    drawn = session.sql("SELECT x, random() AS r FROM t ORDER BY r").to_arrow()
    assert lost
    assert list(range(_ROWS)) == sorted(drawn.column("x").to_pylist())
    assert sorted(drawn.column("r").to_pylist()) == drawn.column("r").to_pylist()


@pytest.mark.slow
def test_a_query_that_loses_again_and_again_ends(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of recoveries has a limit, and the session is as good as before."""
    with monkeypatch.context() as patch:

        def lose(run: QueryRun, stage: int) -> None:
            if stage == 0:
                for file in _files(session, f"{run.folder}/0-*.arrow"):
                    file.unlink()

        _when_a_stage_ends(patch, lose)
        with pytest.raises(TasksLostError, match=f"were lost {RECOVERIES_MAX + 1} times"):
            session.sql(_JOIN).to_arrow()
    assert _JOINED == session.sql(_JOIN).to_arrow().to_pylist()


def _remove_files(session: Session, tables: Sequence[str]) -> None:
    """Take from all nodes what they hold of tables."""
    for name in tables:
        for partition in session._runtime.tables.catalog.get(name).partitions:
            for file in _files(session, partition.file):
                file.unlink()


@pytest.fixture
def of_files(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ...]]:
    """Five tables of a file, all without their files in the store."""
    monkeypatch.setattr(stage_jobs, "_PAUSE_S", 0.0)
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": range(10)}), file)
    names = tuple(f"of_file_{i}" for i in range(5))
    for name in names:
        session.create_table(name, str(file), partitions=2)
    _remove_files(session, names)
    yield names
    for name in names:
        session.drop_table(name)


@pytest.mark.slow
def test_all_tables_of_a_query_are_loaded_again(
    session: Session, of_files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as there are; and what was computed of them is known to be of the same rows."""
    tables = session._runtime.tables
    before = {name: tables.content(tables.catalog.get(name)) for name in of_files}
    loaded: dict[str, str] = {}
    publish = Tables.publish

    def noted(self: Tables, table: Table, *, replace: bool, restores: Table | None = None) -> None:
        loaded[table.name] = self.content(table)
        publish(self, table, replace=replace, restores=restores)

    monkeypatch.setattr(Tables, "publish", noted)
    rows = " UNION ALL ".join(f"FROM {name}" for name in of_files)
    found = session.sql(f"SELECT count(*) AS n, sum(x)::BIGINT AS s FROM ({rows})").to_arrow()
    assert [{"n": 50, "s": 5 * sum(range(10))}] == found.to_pylist()
    assert before == loaded


def test_a_table_that_is_lost_again_and_again_is_named(
    session: Session, of_files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How often a query has a table loaded again has a limit."""
    tried: list[str] = []
    monkeypatch.setattr(
        session._runtime.engine, "restore", lambda lost, *_: tried.append(lost.table)
    )
    with pytest.raises(PartitionsLostError, match=f"of table {of_files[0]}"):
        session.sql(f"SELECT sum(x) FROM {of_files[0]}").to_arrow()
    assert [of_files[0]] * 3 == tried


def test_a_table_without_its_files_is_named(session: Session) -> None:
    """When no replica of a partition is left, the error says of which."""
    session.create_table("gone", pa.table({"x": range(10)}), partitions=2)
    for file in _files(session, session._runtime.tables.catalog.get("gone").partitions[1].file):
        file.unlink()
    with pytest.raises(PartitionsLostError, match="partition 1 of table gone") as found:
        session.sql("SELECT sum(x) FROM gone").to_arrow()
    assert ("gone", (1,)) == (found.value.table, found.value.partitions)


@pytest.mark.slow
def test_cached_rows_are_computed_again_unless_they_vary(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that varies counts where it is called, not for all rows of the session."""
    pytest.importorskip("cryptography")
    monkeypatch.setattr(OwnCluster, "loses_files", True)
    t, key = session.table("t"), F.lit("0" * 16)
    secrets = t.select(F.aes_encrypt(F.lit("w"), key).alias("s")).cache()
    assert _ROWS == secrets.distinct().count(), "drawn once for each row"
    again = t.select(F.aes_encrypt(F.lit("w"), key, iv=F.lit("0" * 12)).alias("s")).cache()
    doubled = t.selectExpr("2 * x AS y").cache()
    assert [1, _ROWS] == [frame.distinct().count() for frame in (again, doubled)]
    engine = session._runtime.engine
    lost = [
        PartitionsLostError(table.name, (0,), tuple(table.partitions[0].files))
        for table in engine.cached
    ]
    fingerprint = partial(engine._fingerprint, session._runtime.scope)
    with pytest.raises(PartitionsLostError, match="computing it again might give other rows"):
        engine.cached.restore(lost[0], fingerprint)
    for each in lost[1:]:
        engine.cached.restore(each, fingerprint)
        assert not engine.tables.catalog.get(each.table).is_computed
    assert [1, _ROWS] == [frame.distinct().count() for frame in (again, doubled)]
