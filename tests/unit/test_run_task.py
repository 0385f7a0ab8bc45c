from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import duckdb
import pyarrow as pa
import pytest

from minishark.compiler.hints import FragmentHints
from minishark.compiler.stages.fragment import bucket_column
from minishark.model.expressions import Column, ColumnRef
from minishark.model.predicates import Pushed
from minishark.sources.contract import FileSplit, Relation, Split
from minishark.sources.filesystems import StoredFile
from minishark.worker import duckdb_slot, run_task
from minishark.worker.memory import NodeMemory
from minishark.worker.outputs import stream
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import (
    FileSlice,
    OutputKind,
    StageTask,
    TaskOutcome,
    TaskPayload,
    TaskProblem,
)
from minishark.worker.run_task import TaskRunner
from minishark.worker.scans import SplitRead
from minishark.worker.store import FolderMissingError, Store
from minishark.worker.task_errors import TaskError, task_errors

KEY = ColumnRef(0, "INTEGER")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A node's store, with the folders that tasks write to."""
    paths = StorePaths(tmp_path, tmp_path)
    paths.make("queries/1", ("n0", "n1", "n2"))
    return Store(paths, "n0")


@pytest.fixture
def runner(store: Store, tmp_path: Path) -> Iterator[TaskRunner]:
    """A slot over the store."""
    found = TaskRunner(store, memory=NodeMemory(1 << 30, 1), spill_folder=str(tmp_path / "spill"))
    yield found
    found.close()


def stage_task(
    sql: str,
    types: tuple[str, ...] = (),
    output: OutputKind = OutputKind.RESULT,
    **more: Any,
) -> StageTask:
    """What the tasks of a stage share."""
    own = StageTask.__struct_fields__
    hints = {"prepares": True} | {name: more.pop(name) for name in [*more] if name not in own}
    return StageTask(
        sql=sql,
        types=types,
        output=output,
        folder="queries/1",
        prefix="0-",
        hints=FragmentHints(**hints),
        **more,
    )


def inline(outcome: TaskOutcome) -> pa.Table:
    """The rows of a small result."""
    assert outcome.inline is not None
    return pa.ipc.open_stream(outcome.inline).read_all()


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    """A table's rows, as DuckDB reads them."""
    return duckdb.from_arrow(table).fetchall()


def put(store: Store, file: str, sql: str) -> FileSlice:
    """A stored file with the rows of a query."""
    table = duckdb.sql(sql).to_arrow_table()
    store.write(file, table.schema, [table.to_batches()])
    return FileSlice(file, ("n0",))


EMPTY = TaskPayload(index=0, inputs={})


# Outputs


def test_small_result_travels_in_the_outcome(runner: TaskRunner) -> None:
    """A small result needs no file."""
    outcome = runner.run(stage_task("SELECT 42 AS c0", ("INTEGER",)), EMPTY)
    assert (1, None) == (outcome.figures.rows, outcome.file)
    assert [(42,)] == rows(inline(outcome))


def test_a_task_uses_as_many_threads_as_it_may(
    runner: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the stage says, but no more than there are cores; one again for the next."""
    monkeypatch.setattr(duckdb_slot, "usable_cores", lambda: 3)
    for allowed, used in ((1, 1), (2, 2), (8, 3), (1, 1)):
        stage = stage_task("SELECT current_setting('threads') AS c0", ("BIGINT",), threads=allowed)
        assert [(used,)] == rows(inline(runner.run(stage, EMPTY)))


def prepared(runner: TaskRunner) -> int:
    """How many fragments are prepared."""
    sql = "SELECT count(*) AS c0 FROM duckdb_prepared_statements() WHERE name LIKE 'fragment%'"
    (count,) = rows(inline(runner.run(stage_task(sql, ("BIGINT",)), EMPTY)))
    assert isinstance(count[0], int)
    return count[0]


def summed(runner: TaskRunner, item: FileSlice, **more: Any) -> int:
    """The sum of a file's numbers."""
    shared = {"in0": (item,)}
    stage = stage_task(
        "SELECT sum(i) AS c0 FROM in0", ("BIGINT",), rows=1, shared_inputs=shared, **more
    )
    ((total,),) = rows(inline(runner.run(stage, EMPTY)))
    assert isinstance(total, int)
    return total


def test_what_comes_again_is_prepared(runner: TaskRunner, store: Store, tmp_path: Path) -> None:
    """Over the same files of a table; until they are gone, or the settings are others."""
    paths = StorePaths(tmp_path, tmp_path)
    paths.make("tables/1", ("n0",))
    paths.make("tables/2", ("n0",))
    few = put(store, "tables/1/a.arrow", "SELECT i FROM range(10) r(i)")
    more = put(store, "tables/2/b.arrow", "SELECT i FROM range(100) r(i)")
    assert [45, 4950] == [summed(runner, few), summed(runner, more)]
    assert 0 == prepared(runner)
    for _ in range(3):
        assert [45, 4950] == [summed(runner, few), summed(runner, more)]
    assert 2 == prepared(runner)
    paths.remove("tables/2", ("n0",))
    runner.forget_removed()
    assert 1 == prepared(runner)
    assert 45 == summed(runner, few, prelude=("SET default_null_order = 'nulls_first'",))
    assert 0 == prepared(runner)


def test_fragments_over_outputs_of_stages_are_prepared_once(
    runner: TaskRunner, store: Store
) -> None:
    """They read other rows each time, in files or in messages; one reads a relation twice."""
    sql = "SELECT count(*) AS c0, sum(a.i) AS c1 FROM in0 AS a JOIN in0 AS b ON a.i = b.i"

    def joined(item: FileSlice) -> list[tuple[object, ...]]:
        task = TaskPayload(index=0, inputs={"in0": (item,)})
        return rows(inline(runner.run(stage_task(sql, ("BIGINT", "HUGEINT"), rows=1), task)))

    def sent(query: str) -> FileSlice:
        return FileSlice("", (), inline=stream(duckdb.sql(query).to_arrow_table()))

    for n in (10, 20, 30):
        item = put(store, f"queries/1/{n}.arrow", f"SELECT i FROM range({n}) r(i)")
        assert [(n, n * (n - 1) // 2)] == joined(item)
        assert [(n, n * (n - 1) // 2)] == joined(sent(f"SELECT i FROM range({n}) r(i)"))
    assert 1 == prepared(runner)
    assert [(0, None)] == joined(sent("SELECT i FROM range(0) r(i)"))
    assert [(3, 3)] == joined(sent("SELECT i FROM range(3) r(i)"))
    # Other columns are another plan; many rows are planned for what they are.
    assert [(3, 3)] == joined(sent("SELECT i::INTEGER AS i FROM range(3) r(i)"))
    assert [(50_000, 1_249_975_000)] == joined(sent("SELECT i FROM range(50000) r(i)"))
    assert 1 == prepared(runner)


def test_what_prepared_fragments_have_read_is_released(runner: TaskRunner, store: Store) -> None:
    """Else files of queries that have ended would take shared memory."""
    for n in range(4):
        item = put(store, f"queries/1/{n}.arrow", f"SELECT i FROM range({n}) r(i)")
        task = TaskPayload(index=0, inputs={"in0": (item,)})
        runner.run(stage_task("SELECT sum(i) AS c0 FROM in0", ("HUGEINT",), rows=1), task)
    assert 1 == prepared(runner)
    (known,) = runner._prepared._known.values()
    assert [0] == [len(source.table) for source in known.sources.values()]


def test_nothing_is_prepared_on_request(runner: TaskRunner, store: Store, tmp_path: Path) -> None:
    """To compare."""
    StorePaths(tmp_path, tmp_path).make("tables/1", ("n0",))
    item = put(store, "tables/1/a.arrow", "SELECT i FROM range(10) r(i)")
    assert [45, 45, 45] == [summed(runner, item, prepares=False) for _ in range(3)]
    assert 0 == prepared(runner)


def test_only_so_many_are_prepared(
    runner: TaskRunner, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was used longest ago goes first."""
    monkeypatch.setattr("minishark.worker.prepared._PREPARED_MAX", 3)
    StorePaths(tmp_path, tmp_path).make("tables/1", ("n0",))
    items = [put(store, f"tables/1/{n}.arrow", f"SELECT {n} AS i") for n in range(5)]
    for _ in range(3):
        assert list(range(5)) == [summed(runner, item) for item in items]
    assert 3 == prepared(runner)


def test_large_result_is_stored(runner: TaskRunner, store: Store) -> None:
    """A large result is a file on the node."""
    sql = "SELECT i AS c0 FROM range(200000) r(i)"
    outcome = runner.run(stage_task(sql, ("BIGINT",)), TaskPayload(index=3, inputs={}))
    assert (200_000, None) == (outcome.figures.rows, outcome.inline)
    assert outcome.file is not None
    assert outcome.file.startswith("queries/1/0-3-")
    assert 200_000 == store.read((FileSlice(outcome.file, ("n0",)),)).num_rows


def test_piece_is_stored(runner: TaskRunner, store: Store) -> None:
    """What later stages read is a file, however small; without rows it has its columns."""
    for sql, count in (("SELECT 1 AS c0", 1), ("SELECT 1 AS c0 WHERE false", 0)):
        outcome = runner.run(stage_task(sql, ("INTEGER",), OutputKind.PIECE), EMPTY)
        assert count == outcome.figures.rows
        assert outcome.file is not None
        runner.forget("queries/1")
        stored = store.read((FileSlice(outcome.file, ("n0",)),))
        assert (count, ["c0"]) == (stored.num_rows, stored.column_names)


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [0, 1, 7, 300_000])
def test_buckets_hold_the_rows_of_their_hash(runner: TaskRunner, store: Store, count: int) -> None:
    """Each bucket has exactly the rows whose key hashes to it, in their order."""
    key = bucket_column((KEY,), ("k",), 4)
    keyed = f"SELECT i, (i * 37 % 101)::INTEGER AS k FROM range({count}) r(i)"
    sql = f"SELECT k AS c0, i AS c1, {key} FROM ({keyed})"
    stage = stage_task(sql, ("INTEGER", "BIGINT"), OutputKind.BUCKETS, buckets=4)
    outcome = runner.run(stage, EMPTY)
    assert (4, count) == (len(outcome.buckets), sum(bucket.rows for bucket in outcome.buckets))
    assert outcome.file is not None
    for number, bucket in enumerate(outcome.buckets):
        item = FileSlice(outcome.file, ("n0",), bucket.first, bucket.last)
        found = store.read((item,))
        assert (bucket.rows, ["c0", "c1"]) == (found.num_rows, found.column_names)
        expected = duckdb.sql(f"SELECT c0, c1 FROM ({sql}) WHERE bucket = {number} ORDER BY c1")
        assert expected.fetchall() == rows(found)


def test_null_keys_share_a_bucket(runner: TaskRunner) -> None:
    """NULL is a key like any other."""
    key = bucket_column((KEY,), ("k",), 8)
    sql = f"SELECT k AS c0, {key} FROM (SELECT NULL::INTEGER AS k FROM range(9))"
    outcome = runner.run(stage_task(sql, ("INTEGER",), OutputKind.BUCKETS, buckets=8), EMPTY)
    assert [9] == [bucket.rows for bucket in outcome.buckets if bucket.rows]


def test_partition_is_named_measured_and_replicated(
    runner: TaskRunner, store: Store, tmp_path: Path
) -> None:
    """A table's partition has the table's column names, statistics, and copies."""
    stage = stage_task(
        "SELECT i AS c0, 'v' || i % 3 AS c1 FROM range(10) r(i)",
        ("BIGINT", "VARCHAR"),
        OutputKind.PARTITION,
        columns=(("id", "BIGINT"), ("odd name", "VARCHAR")),
    )
    outcome = runner.run(stage, TaskPayload(index=2, inputs={}, replicas=("n0", "n1")))
    file = outcome.file
    assert file is not None
    assert (10, ("n0", "n1")) == (outcome.figures.rows, outcome.locations)
    stored = store.read((FileSlice(file, ("n0",)),))
    assert ["id", "odd name"] == stored.column_names
    assert (tmp_path / "n1" / file).samefile(tmp_path / "n0" / file)
    assert outcome.statistics is not None
    measured = pa.ipc.open_stream(outcome.statistics).read_all()
    found = {name: measured.column(name)[0].as_py() for name in ("rows", "minimum_0", "maximum_0")}
    assert {"rows": 10, "minimum_0": 0, "maximum_0": 9} == found


@pytest.mark.parametrize("whole", [True, False])
def test_a_partition_from_a_stored_file(
    runner: TaskRunner, store: Store, tmp_path: Path, whole: bool
) -> None:
    """A whole file of the node becomes the partition as it is; slices of it are copied."""
    item = put(store, "a.arrow", "SELECT range AS id FROM range(10)")
    if not whole:
        item = FileSlice(item.file, item.locations, 0, 1)
    stage = stage_task("", (), OutputKind.PARTITION, columns=(("id", "BIGINT"),))
    outcome = runner.run(stage, TaskPayload(index=0, inputs={"in0": (item,)}, replicas=("n0",)))
    assert (outcome.figures.rows, outcome.figures.bytes, outcome.locations) == (10, 80, ("n0",))
    assert outcome.statistics is not None
    source, stored = (tmp_path / "n0" / str(file) for file in (item.file, outcome.file))
    assert stored.samefile(source) == whole
    assert source.exists()


# Inputs


@dataclass
class Rows(FileSplit):
    """The rows of some SQL."""

    sql: str

    def files(self) -> Sequence[StoredFile]:
        return ()

    def relation(self, paths: Sequence[str]) -> Relation:
        return Relation(self.sql)


def read_of(sql: str, column: str) -> bytes:
    """A read of a relation with one column."""
    schema = (Column(*column.split()),)
    return SplitRead(schema, (Rows(sql),), Pushed()).pickled()


@dataclass
class ArrowRows(Split):
    """A record batch for each of some lists of numbers."""

    numbers: list[list[int]]
    type: pa.DataType
    meanwhile: Callable[[], object] = list

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        schema = pa.schema([("a", self.type), ("b", pa.string())])

        def batches() -> Iterator[pa.RecordBatch]:
            for some in self.numbers:
                self.meanwhile()
                yield pa.record_batch([pa.array(some, self.type), list(map(str, some))], schema)

        return pa.RecordBatchReader.from_batches(schema, batches())


def stored_splits(runner: TaskRunner, *splits: Split) -> TaskOutcome:
    """What a task says of the partition that it makes of splits with columns a and b."""
    columns = (("a", "BIGINT"), ("b", "VARCHAR"))
    types = tuple(type_ for _, type_ in columns)
    stage = stage_task("", types, OutputKind.PARTITION, columns=columns)
    schema = tuple(Column(*column) for column in columns)
    read = cloudpickle.dumps(SplitRead(schema, splits, Pushed()))
    return runner.run(
        stage, TaskPayload(index=0, inputs={}, reads={"in0": (read,)}, replicas=("n0",))
    )


@pytest.mark.parametrize(
    "splits",
    [
        (ArrowRows([[1], [], [2, 3]], pa.int64()),),
        (ArrowRows([[1, 2, 3]], pa.int16()),),
        (ArrowRows([[1]], pa.int64()), ArrowRows([[2], [3]], pa.decimal128(20, 0))),
        (ArrowRows([[1], [2]], pa.int64()), Rows("(SELECT 3::TINYINT AS a, '3' AS b)")),
    ],
    ids=["as stored", "narrower", "of two types", "not all Arrow"],
)
def test_a_partition_of_splits(runner: TaskRunner, store: Store, splits: tuple[Split, ...]) -> None:
    """Whatever they come as, it has the rows in order, in the types of the columns."""
    outcome = stored_splits(runner, *splits)
    stored = store.read((FileSlice(str(outcome.file), ("n0",)),))
    assert [(1, "1"), (2, "2"), (3, "3")] == rows(stored)
    assert [("a", pa.int64()), ("b", pa.string())] == [(f.name, f.type) for f in stored.schema]
    assert outcome.statistics is not None


def test_rows_that_need_no_duckdb_can_be_interrupted(
    runner: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No statement of DuckDB's is there to notice it."""
    split = ArrowRows([[1], [2]], pa.int64(), runner.interrupt)
    read = SplitRead((), (split,), Pushed())
    monkeypatch.setattr(cloudpickle, "loads", lambda _: read)  # it holds the runner
    with pytest.raises(TaskError) as found:
        stored_splits(runner)
    assert TaskProblem.INTERRUPTED is found.value.detail.problem


def test_inputs_are_named(runner: TaskRunner, store: Store) -> None:
    """Shared inputs, a task's own ones and splits are tables of the fragment, then gone."""
    one = put(store, "a.arrow", "SELECT 1 AS c0")
    two = put(store, "b.arrow", "SELECT 2 AS c0")
    stage = stage_task(
        "SELECT in0.c0 + in1.c0 + in2.x AS c0 FROM in0, in1, in2",
        ("INTEGER",),
        shared_inputs={"in0": (one,)},
    )
    payload = TaskPayload(
        index=0, inputs={"in1": (two,)}, reads={"in2": (read_of("(SELECT 4 AS x)", "x INTEGER"),)}
    )
    assert [(7,)] == rows(inline(runner.run(stage, payload)))
    for name in ("in0", "in1", "in2"):
        with pytest.raises(TaskError) as found:
            runner.run(stage_task(f"SELECT * FROM {name}"), EMPTY)
        assert TaskProblem.BIND is found.value.detail.problem


# Types


def test_columns_are_cast_to_what_was_planned(runner: TaskRunner) -> None:
    """Bound again, a fragment may widen a type; later stages get the planned one."""
    sql = "SELECT 1::DECIMAL(18,2) + 1::DECIMAL(18,2) AS c0, 2::TINYINT AS c1"
    outcome = runner.run(stage_task(sql, ("DECIMAL(18,2)", "TINYINT")), EMPTY)
    assert [pa.decimal128(18, 2), pa.int8()] == inline(outcome).schema.types


def test_buckets_survive_a_cast(runner: TaskRunner, store: Store) -> None:
    """The bucket number is not cast, and not lost."""
    sql = f"SELECT 1::INTEGER AS c0, {bucket_column((KEY,), ('1::INTEGER',), 2)}"
    stage = stage_task(sql, ("BIGINT",), OutputKind.BUCKETS, buckets=2)
    outcome = runner.run(stage, EMPTY)
    assert 1 == sum(bucket.rows for bucket in outcome.buckets)
    assert outcome.file is not None
    assert [pa.int64()] == store.read((FileSlice(outcome.file, ("n0",)),)).schema.types


def test_states_travel_as_they_are(runner: TaskRunner, store: Store) -> None:
    """An aggregate's state has no type to cast to; what it was made for can be finished."""
    sql = "SELECT avg(i::DOUBLE) EXPORT_STATE AS c0 FROM range(4) r(i)"
    outcome = runner.run(stage_task(sql, ("STATE",), OutputKind.PIECE), EMPTY)
    assert outcome.file is not None
    final = (
        "SELECT finalize(combine_aggr(to_aggregate_state(c0, 'avg', ['DOUBLE']))) AS c0 FROM in0"
    )
    stage = stage_task(
        final, ("DOUBLE",), shared_inputs={"in0": (FileSlice(outcome.file, ("n0",)),)}
    )
    assert [(1.5,)] == rows(inline(runner.run(stage, EMPTY)))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "value",
    [
        "170141183460469231731687303715884105727::HUGEINT",
        "'00000000-0000-0000-0000-00000000000a'::UUID",
        "INTERVAL '1 month 2 days 3 microseconds'",
        "99999999999999999999999999999999999.999::DECIMAL(38,3)",
        "1.5::DECIMAL(9,2)",
        "TIMESTAMP_NS '2020-01-01 00:00:00.123456789'",
        "TIMESTAMPTZ '2020-01-01 00:00:00+00'",
        "'\\x00\\xFF'::BLOB",
        "'101'::BIT",
        "[1, NULL, 3]",
        "{'a': [1], 'b': NULL::VARCHAR}",
        "MAP {'k': 1.5::DOUBLE}",
        "'nan'::DOUBLE",
        "TIME '12:34:56.789'",
        "NULL::INTEGER",
    ],
)
def test_types_survive_an_exchange(runner: TaskRunner, store: Store, value: str) -> None:
    """A value that was stored between two stages is the same value of the same type."""
    type_ = str(duckdb.sql(f"SELECT {value}").types[0])
    piece = runner.run(stage_task(f"SELECT {value} AS c0", (type_,), OutputKind.PIECE), EMPTY)
    assert piece.file is not None
    stage = stage_task(
        f"SELECT typeof(c0) AS c0, c0 IS NOT DISTINCT FROM {value} AS c1 FROM in0",
        ("VARCHAR", "BOOLEAN"),
        shared_inputs={"in0": (FileSlice(piece.file, ("n0",)),)},
    )
    assert [(type_, True)] == rows(inline(runner.run(stage, EMPTY)))


# Errors


@pytest.mark.parametrize(
    ("sql", "problem", "message"),
    [
        ("SELECT nothing FROM in9", TaskProblem.BIND, "in9"),
        ("SELECT nofunction(1)", TaskProblem.BIND, "nofunction"),
        ("SELEC 1", TaskProblem.BIND, "syntax error"),
        ("SELECT CAST('x' || i AS INTEGER) AS c0 FROM range(2) r(i)", TaskProblem.VALUE, "x0"),
        ("SELECT error('my message') AS c0", TaskProblem.VALUE, "my message"),
        ("SELECT (SELECT i FROM range(2) r(i)) AS c0", TaskProblem.VALUE, "More than one row"),
        ("SELECT * FROM 'missing.parquet'", TaskProblem.SQL, "missing.parquet"),
    ],
)
def test_errors_of_duckdb(runner: TaskRunner, sql: str, problem: TaskProblem, message: str) -> None:
    """Each class of DuckDB's errors is a problem that the front end knows; the slot lives on."""
    with pytest.raises(TaskError, match=message) as found:
        runner.run(stage_task(sql), EMPTY)
    assert problem is found.value.detail.problem
    assert [(1,)] == rows(inline(runner.run(stage_task("SELECT 1 AS c0", ("INTEGER",)), EMPTY)))


def test_missing_input_is_named(runner: TaskRunner) -> None:
    """A stored file that is gone is an input problem, which may pass elsewhere."""
    stage = stage_task(
        "SELECT * FROM in0", shared_inputs={"in0": (FileSlice("gone.arrow", ("n0",)),)}
    )
    with pytest.raises(TaskError, match=r"gone\.arrow") as found:
        runner.run(stage, EMPTY)
    assert TaskProblem.INPUT is found.value.detail.problem


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(errno.ENOSPC, "full"), TaskProblem.RESOURCE),
        (OSError(errno.EDQUOT, "quota"), TaskProblem.RESOURCE),
        (OSError(errno.EIO, "broken"), TaskProblem.INPUT),
        (FolderMissingError("n0 has no folder q"), TaskProblem.FOLDER),
        (MemoryError(), TaskProblem.RESOURCE),
        (duckdb.OutOfMemoryException("no memory"), TaskProblem.RESOURCE),
        (duckdb.IOException("No space left on device"), TaskProblem.RESOURCE),
        (duckdb.IOException("broken"), TaskProblem.SQL),
        (duckdb.InterruptException("stop"), TaskProblem.INTERRUPTED),
        (duckdb.BinderException("bind"), TaskProblem.BIND),
        (duckdb.ConversionException("cast"), TaskProblem.VALUE),
        (pa.ArrowInvalid("arrow"), TaskProblem.SQL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_classes_of_errors(error: Exception, problem: TaskProblem) -> None:
    """Errors that tests can't provoke are sorted likewise."""
    with pytest.raises(TaskError) as found, task_errors():
        raise error
    assert problem is found.value.detail.problem
    assert found.value.detail.message


def test_bugs_are_not_hidden() -> None:
    """What is nobody's data or resource stays what it is."""
    with pytest.raises(ZeroDivisionError), task_errors():
        raise ZeroDivisionError


def test_slot_without_memory(store: Store, tmp_path: Path) -> None:
    """A fragment that needs more than the slot has is a resource problem."""
    runner = TaskRunner(store, memory=NodeMemory(192 << 20, 1), spill_folder="")
    try:
        with pytest.raises(TaskError) as found:
            runner.run(stage_task("SELECT list(i) AS c0 FROM range(20000000) r(i)"), EMPTY)
    finally:
        runner.close()
    assert TaskProblem.RESOURCE is found.value.detail.problem


def test_a_view_that_was_left_behind_is_replaced(runner: TaskRunner) -> None:
    """An interruption may come while a task cleans up; the next one has inputs of its own."""
    runner._duckdb.con.execute("CREATE TEMP VIEW in0 AS SELECT 1 AS a")
    payload = TaskPayload(
        index=0, inputs={}, reads={"in0": (read_of("(FROM range(3) AS t(a))", "a BIGINT"),)}
    )
    outcome = runner.run(stage_task("SELECT a AS c0 FROM in0", ("BIGINT",)), payload)
    assert [(0,), (1,), (2,)] == rows(inline(outcome))


def test_a_database_is_replaced_after_many_tasks(
    runner: TaskRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep a little of each task; definitions are made again in the new one."""
    monkeypatch.setattr(run_task, "_TASKS_MAX", 3)
    prelude = ("CREATE MACRO twice(x) AS 2 * x",)
    stage = stage_task("SELECT twice(4) AS c0", ("INTEGER",), prelude=prelude)
    used = []
    for _ in range(8):
        assert [(8,)] == rows(inline(runner.run(stage, TaskPayload(index=0, inputs={}))))
        used.append(runner._duckdb.con)
    assert [3, 3, 2] == [used.count(each) for each in dict.fromkeys(used)]


def test_settings_and_definitions_come_first(runner: TaskRunner) -> None:
    """A prelude holds for the stages that have it, and for no other."""
    prelude = ("CREATE MACRO twice(x) AS 2 * x", "SET default_null_order = 'nulls_first'")
    sql = "SELECT twice(x) AS c0 FROM (VALUES (1), (NULL)) v(x) ORDER BY x"
    stage = stage_task(sql, ("INTEGER",), prelude=prelude)
    assert [(None,), (2,)] == rows(inline(runner.run(stage, EMPTY)))
    with pytest.raises(TaskError, match="twice") as found:
        runner.run(stage_task(sql, ("INTEGER",)), EMPTY)
    assert TaskProblem.BIND is found.value.detail.problem


TWICE = "CREATE MACRO twice(x) AS 2 * x"
NULLS = "SET default_null_order = 'nulls_first'"
X_IS_1, X_IS_2 = "SET VARIABLE x = 1", "SET VARIABLE x = 2"
BROKEN = "CREATE VIEW v AS FROM missing"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("first", "then", "stays"),
    [
        ((), (NULLS,), True),  # nothing has run yet
        ((TWICE,), (TWICE, "CREATE MACRO thrice(x) AS twice(x) + x"), True),
        ((NULLS,), (NULLS, TWICE), True),
        ((NULLS,), (NULLS, X_IS_1, TWICE), True),
        ((X_IS_1, TWICE), (X_IS_2, TWICE), True),
        ((X_IS_1, NULLS), (NULLS,), True),
        ((X_IS_1, NULLS), (X_IS_2, TWICE), False),
        ((TWICE,), (TWICE, "CREATE OR REPLACE MACRO twice(x) AS 4 * x"), True),
        ((NULLS,), (NULLS, "SET threads = 1"), False),  # what tasks need comes after it
        ((NULLS, TWICE), (NULLS,), False),
        ((TWICE,), ("CREATE MACRO twice(x) AS 3 * x",), False),
        ((BROKEN,), (BROKEN, TWICE), False),  # it may be made by now
    ],
)
def test_a_database_stays_while_a_prelude_only_adds_definitions(
    runner: TaskRunner, first: tuple[str, ...], then: tuple[str, ...], stays: bool
) -> None:
    """Otherwise it is replaced; whatever is meant by names is what the prelude says."""
    before = runner._duckdb.con
    if first:
        runner.run(stage_task("SELECT 1 AS c0", ("INTEGER",), prelude=first), EMPTY)
        assert before is runner._duckdb.con
    twice = duckdb.connect()
    for sql in then:
        with contextlib.suppress(duckdb.Error):
            twice.execute(sql)
    for sql in (
        "SELECT x AS c0 FROM (VALUES (1), (NULL)) v(x) ORDER BY 1",
        "SELECT twice(4) AS c0",
        "SELECT getvariable('x') AS c0",
    ):
        for _ in range(3):  # later it is prepared
            stage = stage_task(sql, ("INTEGER",), prelude=then)
            try:
                expected = twice.sql(sql).fetchall()
            except duckdb.Error:
                with pytest.raises(TaskError, match="twice"):
                    runner.run(stage, EMPTY)
            else:
                assert expected == rows(inline(runner.run(stage, EMPTY)))
    twice.close()
    assert stays == (before is runner._duckdb.con)


@pytest.mark.parametrize("kind", [duckdb.FatalException, duckdb.InternalException])
def test_database_that_broke_is_replaced(
    runner: TaskRunner, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """After a bug of DuckDB's the slot starts anew, and the statement may be tried another way."""

    def broken(stage: StageTask, task: TaskPayload) -> TaskOutcome:
        raise kind("a bug")

    before = runner._duckdb.con
    stage = stage_task("SELECT 1 AS c0", ("INTEGER",))
    with monkeypatch.context() as patch:
        patch.setattr(runner, "_run", broken)
        with pytest.raises(TaskError, match="a bug") as found:
            runner.run(stage, EMPTY)
    assert TaskProblem.INTERNAL is found.value.detail.problem
    assert before is not runner._duckdb.con
    assert [(1,)] == rows(inline(runner.run(stage, EMPTY)))


@pytest.mark.parametrize(
    ("optimizer", "allowed"),
    [
        ("partial_aggregate_pushdown", {"aggregates_early": True}),
        ("build_side_probe_side", {"build_sides": False}),
    ],
)
def test_stages_choose_optimizers(
    runner: TaskRunner, optimizer: str, allowed: dict[str, bool]
) -> None:
    """A stage's choice of optimizers holds for its own tasks only."""
    sql = f"SELECT contains(current_setting('disabled_optimizers'), '{optimizer}') AS c0"
    disallowed = {name: not value for name, value in allowed.items()}
    found = [
        rows(inline(runner.run(stage_task(sql, ("BOOLEAN",), **choice), EMPTY)))
        for choice in (disallowed, allowed, disallowed)
    ]
    assert [[(True,)], [(False,)], [(True,)]] == found
