"""Outputs that are larger than what a task may hold of them."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from minishark.compiler.stages.fragment import bucket_column
from minishark.model.expressions import ColumnRef
from minishark.query.inputs import stage_slices
from minishark.worker import run_task
from minishark.worker.memory import NodeMemory
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import FileSlice, OutputKind, StageTask, TaskPayload, TaskProblem
from minishark.worker.run_task import TaskRunner
from minishark.worker.storage import StorageMeter
from minishark.worker.store import Store
from minishark.worker.streaming import even_batches, grouped
from minishark.worker.task_errors import TaskError

COUNT = 300_000
ROWS = f"SELECT i AS c0, 'row ' || i AS c1 FROM range({COUNT}) r(i)"
TYPES = ("BIGINT", "VARCHAR")
SMALL = NodeMemory(166 << 20, 1)
EMPTY = TaskPayload(index=0, inputs={})


@pytest.fixture
def paths(tmp_path: Path) -> StorePaths:
    """Two places, of which the first plays shared memory."""
    found = StorePaths(tmp_path / "memory", tmp_path / "disk")
    found.memory.mkdir()
    found.make("q/1", ("n0",))
    return found


@pytest.fixture
def store(paths: StorePaths) -> Store:
    """A node's store whose files may take 3 MB of the first place."""
    return Store(paths, "n0", meter=StorageMeter(paths.memory / "n0", 3 << 20))


@pytest.fixture
def runner(store: Store, tmp_path: Path) -> Iterator[TaskRunner]:
    """A slot that holds a megabyte of its output."""
    assert 1 << 20 < SMALL.buffer_bytes < 3 << 20
    found = TaskRunner(store, memory=SMALL, spill_folder=str(tmp_path / "spill"))
    yield found
    found.close()


def _files(paths: StorePaths) -> list[str]:
    roots = (paths.memory, paths.disk)
    return [path.name for root in roots for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", [OutputKind.PIECE, OutputKind.RESULT])
def test_rows_go_to_disk_as_they_come(runner: TaskRunner, store: Store, kind: OutputKind) -> None:
    """A file that outgrows shared memory is whole, and in order, on disk."""
    outcome = runner.run(StageTask(sql=ROWS, types=TYPES, output=kind, folder="q/1"), EMPTY)
    assert outcome.file is not None
    assert (COUNT, True) == (outcome.figures.rows, outcome.figures.disk_bytes > 0)
    found = store.read((FileSlice(outcome.file, ("n0",)),))
    assert found.column("c0").to_pylist() == list(range(COUNT))


@pytest.mark.slow
def test_buckets_in_several_runs(runner: TaskRunner, store: Store) -> None:
    """A shuffle that is too large to be held has its buckets in several runs; none loses a row."""
    key = bucket_column((ColumnRef(0, "BIGINT"),), ("c0",), 3)
    sql = f"SELECT c0, c1, {key} FROM ({ROWS})"
    outcome = runner.run(
        StageTask(sql=sql, types=TYPES, output=OutputKind.BUCKETS, folder="q/1", buckets=3), EMPTY
    )
    assert outcome.runs > 2
    assert len(outcome.buckets) == 3 * outcome.runs
    for number in range(3):
        slices = stage_slices([outcome], ["n0"], range(number, number + 1))
        expected = duckdb.sql(f"SELECT c0, c1 FROM ({sql}) WHERE bucket = {number} ORDER BY c0")
        assert expected.fetchall() == duckdb.from_arrow(store.read(slices)).fetchall()


@pytest.mark.sample(2)
@pytest.mark.parametrize("text", ["'v' || i % 7", f"CASE i WHEN {COUNT - 5} THEN 'a' ELSE 'b' END"])
def test_large_partition_leaves_no_draft(
    runner: TaskRunner, store: Store, paths: StorePaths, text: str
) -> None:
    """A partition is compact, also where values come late; what was written before is gone."""
    sql = f"SELECT i AS c0, {text} AS c1 FROM range({COUNT}) r(i)"
    columns = (("id", "BIGINT"), ("kind", "VARCHAR"))
    stage = StageTask(
        sql=sql, types=TYPES, output=OutputKind.PARTITION, folder="q/1", columns=columns
    )
    outcome = runner.run(stage, EMPTY)
    assert outcome.file is not None
    assert [Path(outcome.file).name] == _files(paths)
    stored = store.read((FileSlice(outcome.file, ("n0",)),))
    assert pa.dictionary(pa.int8(), pa.string()) == stored.schema.field("kind").type
    expected = duckdb.sql(sql).to_arrow_table().rename_columns(stored.schema.names)
    assert expected == stored.cast(expected.schema)


def test_partition_that_is_not_measured_leaves_nothing(
    runner: TaskRunner, paths: StorePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that no outcome tells of is removed."""

    def fail(*_: object) -> None:
        raise duckdb.OutOfMemoryException

    monkeypatch.setattr(run_task, "partition_statistics", fail)
    columns = (("id", "BIGINT"), ("text", "VARCHAR"))
    with pytest.raises(TaskError):
        runner.run(
            StageTask(
                sql=ROWS, types=TYPES, output=OutputKind.PARTITION, folder="q/1", columns=columns
            ),
            EMPTY,
        )
    assert [] == _files(paths)


def test_cut_piece_has_a_slice_per_batch(runner: TaskRunner, store: Store) -> None:
    """A piece that is cut tells where its batches are, also if it is written as it comes."""
    columns = (("id", "BIGINT"), ("text", "VARCHAR"))
    stage = StageTask(
        sql=ROWS, types=TYPES, output=OutputKind.PIECE, folder="q/1", columns=columns, cuts=50
    )
    outcome = runner.run(stage, EMPTY)
    assert outcome.file is not None
    assert len(outcome.buckets) >= 50
    parts = [FileSlice(outcome.file, ("n0",), b.first, b.last) for b in outcome.buckets]
    assert [b.rows for b in outcome.buckets] == [store.read((p,)).num_rows for p in parts]
    assert ["id", "text"] == store.read((parts[0],)).column_names


@pytest.mark.parametrize("kind", [OutputKind.PIECE, OutputKind.PARTITION, OutputKind.BUCKETS])
def test_error_in_the_middle_of_the_rows(
    runner: TaskRunner, paths: StorePaths, kind: OutputKind
) -> None:
    """An error after the first rows is DuckDB's, not one of reading inputs; no file is left."""
    text = f"CASE WHEN i = {COUNT - 1} THEN 'x' ELSE '1' END"
    sql = f"SELECT CAST({text} AS INTEGER) AS c0, 0::UTINYINT AS bucket FROM range({COUNT}) r(i)"
    stage = StageTask(
        sql=sql,
        types=("INTEGER",),
        output=kind,
        folder="q/1",
        buckets=1,
        columns=(("a", "INTEGER"),),
    )
    with pytest.raises(TaskError, match="Could not convert") as found:
        runner.run(stage, EMPTY)
    assert TaskProblem.VALUE is found.value.detail.problem
    assert [] == _files(paths)
    assert (
        COUNT
        == runner.run(
            StageTask(sql=ROWS, types=TYPES, output=OutputKind.PIECE, folder="q/1"), EMPTY
        ).figures.rows
    )


@pytest.mark.parametrize("kind", [OutputKind.PIECE, OutputKind.PARTITION, OutputKind.BUCKETS])
def test_full_disk_is_a_resource_problem(
    runner: TaskRunner, paths: StorePaths, monkeypatch: pytest.MonkeyPatch, kind: OutputKind
) -> None:
    """A disk that fills up ends the task with what to do; nothing is left, and the slot goes on."""
    key = bucket_column((ColumnRef(0, "BIGINT"),), ("c0",), 2)
    sql = f"SELECT *, {key} FROM ({ROWS})" if kind is OutputKind.BUCKETS else ROWS
    columns = (("id", "BIGINT"), ("text", "VARCHAR"))
    stage = StageTask(sql=sql, types=TYPES, output=kind, folder="q/1", buckets=2, columns=columns)
    with _files_at_most(4 << 20), pytest.raises(TaskError, match="disk is full") as found:
        runner.run(stage, EMPTY)
    assert TaskProblem.RESOURCE is found.value.detail.problem
    assert [] == _files(paths)
    assert COUNT == runner.run(stage, EMPTY).figures.rows


class _files_at_most:  # noqa: N801 - reads as what it does
    """Within the block, no file of this process can grow beyond a size: a disk that is full."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def __enter__(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._size, self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


def test_memory_limit_follows_the_files(
    runner: TaskRunner, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What files take, DuckDB gives up, before the next task or in the middle of one."""
    stage = StageTask(
        sql="SELECT current_setting('memory_limit') AS c0",
        types=("VARCHAR",),
        output=OutputKind.RESULT,
        folder="q/1",
    )

    def limit() -> str:
        inline = runner.run(stage, EMPTY).inline
        assert inline is not None
        return str(pa.ipc.open_stream(inline).read_all().column(0)[0].as_py())

    before = limit()
    monkeypatch.setattr(store.meter, "used_bytes", lambda: SMALL.storage_bytes)
    assert (f"{SMALL.duckdb_bytes(0) / (1 << 20):.1f} MiB", True) == (before, before != limit())


@pytest.mark.slow
def test_spilling_beats_the_limit(tmp_path: Path, paths: StorePaths) -> None:
    """A sort of more than the slot's memory runs, and its spilled data is gone with the slot."""
    spill = tmp_path / "spill"
    runner = TaskRunner(Store(paths, "n0"), memory=SMALL, spill_folder=str(spill))
    sql = "SELECT i AS c0, repeat('x', 30) AS c1 FROM range(1500000) r(i) ORDER BY hash(i)"
    try:
        assert (
            1_500_000
            == runner.run(
                StageTask(sql=sql, types=TYPES, output=OutputKind.PIECE, folder="q/1"), EMPTY
            ).figures.rows
        )
        assert spill.is_dir()
    finally:
        runner.close()
    assert not spill.exists()


def test_groups_end_when_they_are_full() -> None:
    """Batches stay in order; each group but the last has the bytes that were asked for."""
    batches = [pa.record_batch({"x": pa.array(range(n), pa.int64())}) for n in (10, 1, 1, 30, 2)]
    groups = [[b.num_rows for b in group] for group in grouped(iter(batches), 80)]
    assert [[10], [1, 1, 30], [2]] == groups
    assert [] == list(grouped([], 80))


def test_even_batches_keep_rows_and_dictionaries() -> None:
    """Small chunks become batches of one size; others are only cut."""
    chunks = [pa.array(["a", "b"] * n).dictionary_encode() for n in (1, 5, 2)]
    table = pa.table({"x": pa.chunked_array(chunks)})
    assert [2, 5, 5, 4] == [batch.num_rows for batch in even_batches(table, 5)]
    batches = list(even_batches(table, 9))
    assert [9, 7] == [batch.num_rows for batch in batches]
    assert table.column("x").to_pylist() == pa.Table.from_batches(batches).column("x").to_pylist()
