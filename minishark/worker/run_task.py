"""Runs one task: a fragment's SQL on DuckDB over Arrow inputs, its rows stored as Arrow."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import cloudpickle
import duckdb
import pyarrow as pa
from msgspec import structs

from minishark.compiler.hints import EarlyCte
from minishark.compiler.sql.statements import variables_of
from minishark.compiler.sql.tokens import SETTINGS, Cursor
from minishark.errors import DataError
from minishark.model.events.figures import TaskFigures
from minishark.model.expressions import quote
from minishark.sources.filesystems import is_remote
from minishark.worker import functions
from minishark.worker.call_log import CALLS_ENDING, CallLog
from minishark.worker.calls import CallRun, CallSlot, MapCalls
from minishark.worker.columns import integers
from minishark.worker.dictionary_codes import CodedInputs, with_codes
from minishark.worker.duckdb_slot import (
    EXCHANGE_SETTINGS,
    DuckDBSlot,
    Rows,
    output_settings,
    stored_types,
)
from minishark.worker.helpers import Helpers
from minishark.worker.host_files import OBJECTS, HostFiles
from minishark.worker.memory import NodeMemory
from minishark.worker.outputs import BATCH_ROWS, Outputs, attempt_name, output_columns, stream
from minishark.worker.patches import ChangedTwiceError, changed
from minishark.worker.prepared import Inputs, PreparedFragments
from minishark.worker.progress import TaskProgress
from minishark.worker.protocol import (
    CopyTarget,
    FileSlice,
    OutputKind,
    Profiled,
    StageTask,
    TaskFunction,
    TaskOutcome,
    TaskPayload,
    TaskProblem,
)
from minishark.worker.reduction import Reduction
from minishark.worker.scalars import Scalars
from minishark.worker.scans import Scans, SplitStream
from minishark.worker.shares import Shares
from minishark.worker.statistics import partition_statistics, text_sample
from minishark.worker.store import InputMissingError, Store
from minishark.worker.streaming import batches_of, even_batches
from minishark.worker.task_errors import TaskError, internal_error, is_full, task_errors
from minishark.worker.uploads import local_folder, upload
from minishark.worker.writing import StoredFile, mapped

_FUNCTIONS_MAX = 16

_TASKS_MAX = 1000
"""Tasks of one database: it keeps up to 2 KB of each, of a join, say, until it is closed.

(In its queue of what could be evicted, of which it drops what is gone after tens of thousands.)
"""

_COLLECTED_ROWS_MIN = 100_000
"""From here on, one copy of the rows less is worth binding the fragment twice."""

_EXCHANGED_TYPE = re.compile("DECIMAL|U?HUGEINT")
"""Types that lose precision, or time, in DuckDB's default layout."""

_HELD_PART = 8
"""Early CTEs and reduced inputs take at most 1/8 of the memory limit."""

warnings.filterwarnings("ignore", "Arrow output on a DB-API result", module=__name__)


class TaskRunner:
    """One slot of an executor: runs one task at a time, on a DuckDB of its own."""

    def __init__(
        self,
        store: Store,
        *,
        memory: NodeMemory,
        spill_folder: str,
        shares: Shares | None = None,
    ) -> None:
        self._store = store
        self._outputs = Outputs(store, memory.buffer_bytes)
        self._duckdb = DuckDBSlot(memory, store.meter, spill_folder, shares)
        self._spill_folder = Path(spill_folder)
        self._interrupted = threading.Event()  # the task that runs
        self._scanning: Scans | None = None  # what the task reads of sources
        self._host_files = HostFiles(store.disk / OBJECTS, is_interrupted=self._interrupted.is_set)
        self._prelude: tuple[str, ...] = ()  # what was set and defined in this database
        self._variables: Mapping[str, str] = {}  # what has set variables, by their names
        self._is_whole = True  # whether none of that failed
        self._tasks = 0  # of this database
        self._working_folder = ""
        self._prepared = PreparedFragments()
        self._helpers = Helpers()
        self._running = threading.Lock()  # held while a task runs
        self._removed: set[str] = set()  # folders that prepared fragments may still hold files of
        self._user_code = functions.UserCode()
        # Most tasks of a stage run in the same slot.
        self._unpickled = lru_cache(_FUNCTIONS_MAX)(_unpickled)
        self._scalars = Scalars()
        self._calls = CallSlot()
        self._ended_s = time.monotonic()  # the last task
        self._profiling = False
        self._profiles: dict[str, Profiled] = {}  # of the task that runs
        self._progress = TaskProgress(store)
        self._spilled_bytes = 0  # by the task that runs, at most

    def run(self, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        """Run the fragment of `stage` on the inputs of `task`.

        Raises:
            TaskError: with the reason, for whatever is not a bug.
        """
        with self._running:
            self._store.take_received()  # of a task that failed
            self._spilled_bytes = 0
            self._interrupted.clear()
            try:
                with self._progress.of(stage, task):
                    outcome = self._run_guarded(stage, task)
            finally:
                self._ended_s = time.monotonic()
            received = self._store.take_received()
            self.look_for_spilled()
            if received or self._spilled_bytes or self._profiles:
                figures = structs.replace(
                    outcome.figures, received=received, spilled_bytes=self._spilled_bytes
                )
                return structs.replace(outcome, figures=figures, profiles=self._profiles)
            return outcome

    def _run_guarded(self, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        self._profiling, self._profiles = stage.profiled, {}
        try:
            is_worn = self._tasks >= _TASKS_MAX
            if is_worn or stage.prelude != self._prelude or self._is_elsewhere(stage):
                self._prepare(stage, task)
            self._tasks += 1
            self._duckdb.configure(stage)
            if stage.function is None and not stage.scalars:
                return self._run(stage, task)
            return self._user_code.run(lambda: self._run(stage, task))
        except functions.FunctionFailedError as failed:
            raise TaskError(
                TaskProblem.FUNCTION,
                str(failed),
                partition=task.index,
                traceback=failed.traceback,
                pickled=failed.pickled,
            ) from failed
        except functions.Interrupted as error:
            self._restart()  # whatever it was doing
            raise TaskError(TaskProblem.INTERRUPTED, "The task was interrupted.") from error
        except (duckdb.FatalException, duckdb.InternalException) as error:
            # A bug of DuckDB's, after which this database may refuse all else. The fragment is
            # not to blame alone: the statement as a whole often takes another path.
            self._restart()
            raise TaskError(TaskProblem.INTERNAL, internal_error(error)) from error
        finally:
            self._prepared.release()

    def _is_elsewhere(self, stage: StageTask) -> bool:
        """Whether relative paths in a user's statement mean other files than in the last one.

        Views that were defined over those files are then wrong.
        """
        return not stage.types and stage.working_folder not in ("", self._working_folder)

    def tell_progress(self) -> None:
        """Tell front ends of this host how far the task is; may be called from another thread."""
        self._progress.tell(self._duckdb.progress)

    def look_for_spilled(self) -> None:
        """Note what DuckDB has on disk; may be called from another thread."""
        with contextlib.suppress(OSError), os.scandir(self._spill_folder) as entries:
            files = [entry.stat() for entry in entries if entry.is_file()]
            size = sum(file.st_blocks * 512 for file in files)
            self._spilled_bytes = max(self._spilled_bytes, size)

    def fit_memory(self) -> None:
        """Give DuckDB the memory that files leave; may be called from another thread."""
        self._duckdb.fit_memory()

    def _restart(self) -> None:
        self._duckdb.restart()
        self._prepared.clear()
        self._prelude, self._variables, self._is_whole = (), {}, True
        self._tasks = 0
        self._scalars.forget()

    def _prepare(self, stage: StageTask, task: TaskPayload) -> None:
        """Give DuckDB the settings and definitions of `stage`; restart it unless it has the first.

        A definition over tables that this task does not read fails; a fragment that needs it will
        raise its own error.
        """
        if not self._may_add(stage):
            self._restart()
        known, variables = self._variables, variables_of(stage.prelude)
        gone = (f"RESET VARIABLE {quote(name)}" for name in known if name not in variables)
        new = (sql for name, sql in variables.items() if known.get(name) != sql)
        more = _lasting(stage.prelude)[len(_lasting(self._prelude)) :]
        self._is_whole = False
        failed = 0
        with task_errors(), self._inputs(stage, task):
            for sql in (*gone, *new, *more):
                try:
                    self._duckdb.con.execute(sql).fetchall()
                except duckdb.Error:
                    failed += 1
        self._is_whole = not failed
        self._prelude, self._variables = stage.prelude, variables
        self._working_folder = stage.working_folder or self._working_folder

    def _may_add(self, stage: StageTask) -> bool:
        """Whether what a prelude has more than the last one may be made in the same database.

        Definitions may, and variables change. A setting may not: those that tasks need come after.
        """
        if not self._tasks:
            return self._is_whole and not self._prelude
        made, prelude = _lasting(self._prelude), _lasting(stage.prelude)
        return (
            self._is_whole
            and self._tasks < _TASKS_MAX
            and prelude[: len(made)] == made
            and not (made and self._is_elsewhere(stage))
            and not any(Cursor(sql).next in SETTINGS for sql in prelude[len(made) :])
        )

    def _run(self, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        if not stage.sql:
            with task_errors():
                if task.reads:
                    return self._stored_splits(stage, task)
                if stage.changed is not None:
                    return self._changed(stage, task, stage.changed)
                return self._stored_unchanged(stage, task, task.inputs["in0"])
        scalars = self._scalars.known_to(self._duckdb.con, stage.scalars, task.index)
        with task_errors(), self._inputs(stage, task) as variables, scalars:
            if stage.target is not None:
                return self._write_files(stage, stage.target, task, variables)
            if stage.function is None:
                return self._put_out(stage, task, self._rows(stage, task, variables))
            if task.made:
                # Perhaps its nodes have died since, or have had to make room.
                with contextlib.suppress(InputMissingError):
                    return self._stored_unchanged(stage, task, task.made)
            call, run = self._unpickled_for(stage, stage.function, task)
            # Calls with a name say which rows they are made for.
            tables = run.known() if run is not None and task.calls else None
            try:
                if tables is None:
                    tables = self._returned(stage, call, self._rows(stage, task, variables))
                outcome = self._put_out(stage, task, self._passed(stage, stage.function, tables))
            finally:
                functions.release(self._duckdb.con)
            if run is None:
                return outcome
            log = self._end_log(run.log, stage, task)
            return structs.replace(_with_calls(outcome, run), calls=log)

    def forget_code(self) -> None:
        """Unpickle functions again: modules of theirs have changed."""
        with self._running:  # no task uses them
            self._unpickled.cache_clear()
            self._scalars.forget_code()
            self._calls.close()

    def _unpickled_for(
        self, stage: StageTask, function: TaskFunction, task: TaskPayload
    ) -> tuple[functions.Function, CallRun | None]:
        """What is called with a task's rows; how its calls run, if it makes some of its own."""
        call = self._unpickled(function.pickled)
        if not isinstance(call, MapCalls):
            return call, None
        log = self._call_log(stage, task)
        run = CallRun(calls=call, function=function, slot=self._calls, log=log)
        return run, run

    def _call_log(self, stage: StageTask, task: TaskPayload) -> CallLog:
        folder, start, others = stage.folder, stage.prefix, list[Path]()
        if task.calls:
            # An output without a name is gone with its query, what it was made of need not be.
            folder, start = stage.kept, f"{task.calls}-{stage.folder.replace('/', '_')}-"
            others = self._store.on_disks(folder, f"{task.calls}-*{CALLS_ENDING}")
        earlier = self._store.on_disks(folder, f"{start}{task.index}-*{CALLS_ENDING}")
        log = CallLog(
            earlier=earlier,
            others=[path for path in others if path not in earlier],
            kept=self._records(task.logged),
            outlives=bool(task.calls) and not task.name,
        )
        with contextlib.suppress(OSError):
            own = f"{folder}/{start}{attempt_name(task)}{CALLS_ENDING}"
            log.path = self._store.on_disk(own)
        return log

    def _records(self, logged: tuple[FileSlice, ...]) -> Sequence[bytes]:
        """Records of calls that a front end has kept; none if its file is gone."""
        if not logged:
            return ()
        try:
            chunks = self._store.read(logged).column(0).chunks
        except InputMissingError:
            return ()
        return [memoryview(chunk.buffers()[1])[: len(chunk)].tobytes() for chunk in chunks]

    def _end_log(self, log: CallLog, stage: StageTask, task: TaskPayload) -> str:
        """The calls of a task are done, and what they came to is stored with its replicas.

        The log's name, if it stays.
        """
        log.done()
        if not (log.outlives and log.path is not None and log.path.exists()):
            return ""
        file = f"{stage.kept}/{log.path.name}"
        stored = StoredFile(log.path, bytes=log.path.stat().st_size, rows=0, on_disk=True)
        self._store.replicate(stored, file, task.replicas)
        return file

    def _put_out(self, stage: StageTask, task: TaskPayload, rows: Rows) -> TaskOutcome:
        reader = rows.to_arrow_reader(self._outputs.batch_rows)
        outputs = self._outputs
        with reader:
            match stage.output:
                case OutputKind.BUCKETS:
                    outcome = outputs.buckets(stage, task, reader)
                case OutputKind.PIECE:
                    outcome = outputs.piece(stage, task, reader)
                case OutputKind.RESULT:
                    outcome = outputs.result(stage, task, reader)
                case OutputKind.PARTITION:
                    batches = batches_of(reader)
                    return self._store_partition(stage, task, reader.schema, batches)
                case OutputKind.FILES:
                    message = "files have a target"
                    raise AssertionError(message)
        if stage.function is None:  # else these are what it returned
            self._note_profile()
        return outcome

    def _note_profile(self, name: str = "") -> None:
        """Keep what DuckDB's operators did for the fragment, or for an early CTE, just read."""
        if self._profiling and (profile := self._duckdb.profile()):
            self._profiles[name] = profile

    def _rows(self, stage: StageTask, task: TaskPayload, variables: Mapping[str, pa.Table]) -> Rows:
        """The fragment, bound or already run."""
        if not stage.types:
            self._duckdb.choose_optimizers()
            relation = self._duckdb.con.sql(stage.sql)
            self._duckdb.set_output_types(output_settings(stage, map(str, relation.types)))
            return relation
        repeats, new = _repeating(stage, task)
        scope = partial(with_codes, variables, stage.hints.dictionary_codes, new)
        if not stage.hints.reduces_inputs:
            self._duckdb.set_output_types(output_settings(stage, stage.types))
            return self._executed(typed(stage), stage.rows, scope, repeats)
        sql, reduced = self._reduced(typed(stage), stage, scope(), repeats)
        self._duckdb.set_output_types(output_settings(stage, stage.types))
        return self._executed(sql, stage.rows, lambda: reduced, repeats)

    def _executed(
        self, sql: str, rows: float, scope: Callable[[], CodedInputs], stored: Inputs | None
    ) -> Rows:
        """Run SQL with an estimated number of rows; prepared, if it comes again.

        `stored` are those of its inputs that are stored tables; None if it can't be prepared.
        """
        if rows >= _COLLECTED_ROWS_MIN or self._profiling:
            return self._duckdb.sql(sql, scope().tables)
        execute = self._duckdb.execute
        if stored is None:
            return execute(sql, scope().tables)
        settings = self._duckdb.plan_settings, self._prelude  # plans have values of variables
        return execute(*self._prepared.statement(sql, stored, settings, scope, execute))

    def _reduced(
        self, sql: str, stage: StageTask, coded: CodedInputs, stored: Inputs | None
    ) -> tuple[str, CodedInputs]:
        """A fragment and its inputs, reduced as its hints say."""

        def run(cte: EarlyCte, inputs: CodedInputs) -> pa.RecordBatchReader:
            if any(map(_EXCHANGED_TYPE.match, cte.types)):
                self._duckdb.set_output_types(EXCHANGE_SETTINGS)
            rows = self._executed(_cast(cte.sql, cte.types), cte.rows, lambda: inputs, stored)
            return rows.to_arrow_reader(BATCH_ROWS)

        reduction = Reduction(
            hints=stage.hints,
            helpers=self._helpers,
            run=run,
            ran=self._note_profile,
            threads=self._duckdb.threads,
            left_bytes=self._duckdb.limit_bytes // _HELD_PART,
        )
        return reduction.reduced(sql, coded)

    def _returned(self, stage: StageTask, call: functions.Function, rows: Rows) -> list[pa.Table]:
        """What the stage's function returns for rows."""
        names = [name for name, _ in stage.columns]
        try:
            with rows.to_arrow_reader(self._outputs.batch_rows) as reader:
                tables = functions.called(call, reader, names)
            self._note_profile()
        except BaseException:
            self._duckdb.con.abort()  # unread rows would block the connection
            raise
        return tables

    def _passed(self, stage: StageTask, function: TaskFunction, tables: Sequence[pa.Table]) -> Rows:
        """The rows that the stage's function has returned, in the types that it declares."""
        relation = functions.conformed(self._duckdb.con, tables, function.returns, function.label)
        self._duckdb.set_output_types(stored_types(stage, map(str, relation.types)))
        return relation

    def interrupt(self) -> float:
        """Stop the task that is running; may be called from another thread.

        Returns:
            For how many seconds user code has ignored the request.
        """
        self._interrupted.set()
        self._duckdb.interrupt()
        scans = self._scanning
        if scans is not None:
            scans.cancel()
        return self._user_code.stop()

    def forget(self, folder: str) -> None:
        """Drop cached tables of a query's files."""
        self._store.forget(folder)

    def forget_removed(self) -> None:
        """Drop cached files of tables that are gone; may be called from another thread."""
        self._removed.update(self._store.forget_removed(self._prepared.folders()))
        if self._removed and self._running.acquire(blocking=False):  # else the next time
            try:
                self._prepared.forget(self._removed, self._duckdb.con.execute)
                self._removed.clear()
            finally:
                self._running.release()

    @property
    def idle_s(self) -> float:
        """For how many seconds no task has run."""
        return 0.0 if self._running.locked() else time.monotonic() - self._ended_s

    def left_behind(self) -> bool:
        """Interrupt calls again that were given up and have not ended; whether there are any."""
        return self._calls.limited.left_behind()

    def close(self) -> None:
        self._calls.close()
        self._duckdb.close()
        self._helpers.close()
        self._store.forget_all()

    @contextlib.contextmanager
    def _inputs(self, stage: StageTask, task: TaskPayload) -> Iterator[Mapping[str, pa.Table]]:
        """The inputs, for as long as the task runs: variables for a fragment, or views."""
        slices: dict[str, tuple[FileSlice, ...]] = {**stage.shared_inputs, **task.inputs}
        tables = dict(zip(slices, self._store.read_all([*slices.values()]), strict=True))
        views = {} if stage.types else tables  # a user's statement may use any name
        if not task.reads:
            with self._duckdb.views(views, {}):
                yield tables
            return
        named = self._duckdb.scans if stage.types else self._duckdb.views
        with (
            self._scans(stage, task) as scans,
            named({**views, **scans.streams}, scans.relations),
        ):
            yield tables

    @contextlib.contextmanager
    def _scans(self, stage: StageTask, task: TaskPayload) -> Iterator[Scans]:
        scans = Scans(reads=task.reads, hold=self._host_files.held, access=stage.access)
        self._scanning = scans
        try:
            with scans.open():
                yield scans
        finally:
            self._scanning = None

    def _stored_splits(self, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        """Store the rows of splits in the types of the columns.

        What comes as Arrow data of these types need not pass DuckDB.
        """
        with self._scans(stage, task) as scans:
            self._duckdb.set_output_types(output_settings(stage, stage.types))
            streams = scans.streams_of("in0")
            if streams is not None:
                schema = self._duckdb.output_schema(stage.types)
                batches = (
                    batch for rows in streams for batch in self._converted(rows, stage, schema)
                )
                return self._store_partition(stage, task, schema, batches)
            with self._duckdb.scans(scans.streams, scans.relations):
                rows = self._duckdb.sql(_whole(stage), {})
                with rows.to_arrow_reader(self._outputs.batch_rows) as reader:
                    return self._store_partition(stage, task, reader.schema, batches_of(reader))

    def _converted(
        self, stream: SplitStream, stage: StageTask, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """A stream's batches with the schema that DuckDB would give them."""
        names = [name for name, _ in stage.columns]
        with pa.RecordBatchReader.from_stream(stream) as reader:
            if reader.schema.names == names and reader.schema.types == schema.types:
                for batch in reader:
                    if self._interrupted.is_set():
                        raise TaskError(TaskProblem.INTERRUPTED, "The task was interrupted.")
                    if batch.num_rows:
                        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                return
            rows = self._duckdb.sql(_whole(stage), {"in0": reader})
            with rows.to_arrow_reader(self._outputs.batch_rows) as converted:
                yield from batches_of(converted)

    def _stored_unchanged(
        self, stage: StageTask, task: TaskPayload, slices: tuple[FileSlice, ...]
    ) -> TaskOutcome:
        table = self._store.read(slices)
        taken = self._outputs.taken(stage, task, slices)
        if taken is not None:
            return self._measured(stage, task, taken, table)
        batches = even_batches(table, BATCH_ROWS)
        return self._store_partition(stage, task, table.schema, batches, table)

    def _changed(
        self, stage: StageTask, task: TaskPayload, columns: tuple[int, ...]
    ) -> TaskOutcome:
        """Store a partition again, and measure the new values of the columns that are set.

        There is no file in the outcome if a patch says two things of a row.
        """
        tables = self._store.read_all([*task.inputs.values()])
        inputs = dict(zip(task.inputs, tables, strict=True))
        try:
            change = changed(inputs["in0"], columns, inputs.get("patch"), inputs.get("values"))
        except ChangedTwiceError:
            # No failure: what other tasks of the stage store has to be known, to be removed.
            return TaskOutcome(figures=TaskFigures())
        partition = self._outputs.partition(stage, task, change.schema, change.batches)
        if not columns:
            count = stream(pa.table({"rows": integers([partition[1].rows])}))
            return self._outputs.replicated(stage, task, *partition, lambda: count)
        shown = structs.replace(stage, columns=tuple(stage.columns[i] for i in columns))
        return self._measured(shown, task, partition, change.new)

    def _store_partition(
        self,
        stage: StageTask,
        task: TaskPayload,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        table: pa.Table | None = None,
    ) -> TaskOutcome:
        """Store and measure a partition; its rows in `table`, if they are in memory already."""
        partition = self._outputs.partition(stage, task, schema, batches)
        return self._measured(stage, task, partition, table)

    def _measured(
        self,
        stage: StageTask,
        task: TaskPayload,
        partition: tuple[str, StoredFile],
        table: pa.Table | None,
    ) -> TaskOutcome:
        """Measure a partition, and give away its replicas meanwhile."""
        columns = output_columns(stage)
        file, stored = partition

        def measured() -> bytes:
            rows = mapped(stored) if table is None else table
            return self._statistics(rows.rename_columns([name for name, _ in columns]), columns)

        try:
            return self._outputs.replicated(stage, task, file, stored, measured)
        except BaseException:
            stored.path.unlink(missing_ok=True)
            raise

    def _statistics(self, table: pa.Table, columns: Sequence[tuple[str, str]]) -> bytes:
        self._duckdb.set_output_types(EXCHANGE_SETTINGS)
        sample = text_sample(table)
        con, name = self._duckdb.con, None if sample is None else "sample"
        con.register("partition", table)
        try:
            if sample is not None:
                con.register("sample", sample)
            return stream(partition_statistics(con, "partition", table, columns, name))
        finally:
            con.unregister("partition")
            if sample is not None:
                con.unregister("sample")

    def _write_files(
        self,
        stage: StageTask,
        target: CopyTarget,
        task: TaskPayload,
        variables: Mapping[str, pa.Table],
    ) -> TaskOutcome:
        # Each attempt writes an entry of its own: an earlier one may have died half-way.
        entry = f"{attempt_name(task)}{target.suffix}"
        if is_remote(target.folder):
            with local_folder(self._spill_folder) as folder:
                here = structs.replace(target, folder=str(folder))
                outcome = self._write_files(stage, here, task, variables)
                return self._uploaded(outcome, folder, target)
        path = f"{target.folder}/{entry}"
        names = [f"c{i} AS {quote(name)}" for i, (name, _) in enumerate(stage.columns)]
        coded = with_codes(variables, stage.hints.dictionary_codes)
        sql = typed(stage) if stage.types else stage.sql
        if stage.hints.reduces_inputs:
            sql, coded = self._reduced(sql, stage, coded, None)
        rows = f"SELECT {', '.join(names)} FROM ({sql})"
        try:
            copied = self._duckdb.copy(rows, path, target.options, coded.tables)
            with copied.to_arrow_reader(1) as reader:
                answer = reader.read_all()
        except duckdb.IOException as error:
            if target.folder not in str(error):
                raise
            if is_full(str(error)):
                message = f"The disk that the files are written to is full. ({error})"
                raise TaskError(TaskProblem.RESOURCE, message) from error
            raise TaskError(TaskProblem.OUTPUT, str(error)) from error
        (count,) = answer.column(0).to_pylist()
        figures = TaskFigures(rows=count, bytes=_size_bytes(Path(path)))
        return TaskOutcome(figures=figures, file=entry)

    def _uploaded(self, outcome: TaskOutcome, folder: Path, target: CopyTarget) -> TaskOutcome:
        """Files that a task has written to a folder here, stored where they belong."""
        assert outcome.file is not None, "it names the task's entry"
        try:
            upload(folder / outcome.file, target.folder, target.access)
        except DataError as error:
            raise TaskError(TaskProblem.OUTPUT, str(error)) from error
        return outcome


def _with_calls(outcome: TaskOutcome, run: CallRun) -> TaskOutcome:
    """The outcome of a task whose calls are done."""
    figures = structs.replace(
        outcome.figures,
        retried_calls=run.retried,
        reused_calls=run.reused,
        rejected_rows=run.rejected,
    )
    return structs.replace(outcome, figures=figures)


def _lasting(prelude: tuple[str, ...]) -> tuple[str, ...]:
    """The statements of a prelude but for those that set variables."""
    variables = variables_of(prelude).values()
    return tuple(sql for sql in prelude if sql not in variables)


def _unpickled(pickled: bytes) -> functions.Function:
    try:
        function: functions.Function = cloudpickle.loads(pickled)
    except Exception as error:  # it needs a module that is not here, or the like
        raise functions.FunctionFailedError.of(error) from error
    return function


def _repeating(stage: StageTask, task: TaskPayload) -> tuple[Inputs | None, frozenset[str]]:
    """The inputs that are stored tables, and the names of those that are new in each run.

    None for the former if the fragment can't be prepared.
    """
    inputs = {**stage.shared_inputs, **task.inputs}
    if not stage.hints.prepares or stage.scalars or task.reads:
        return None, frozenset()
    folders = (f"{stage.folder}/", f"{stage.kept}/") if stage.kept else f"{stage.folder}/"
    new = frozenset(
        name
        for name, slices in inputs.items()
        if any(item.inline or item.file.startswith(folders) for item in slices)
    )
    return {name: slices for name, slices in inputs.items() if name not in new}, new


def _whole(stage: StageTask) -> str:
    """A SELECT of all columns of the input `in0`."""
    columns = (f"in0.{quote(name)} AS c{i}" for i, (name, _) in enumerate(stage.columns))
    return _cast(f"SELECT {', '.join(columns)} FROM in0", stage.types)


def typed(stage: StageTask) -> str:
    """The fragment with each column in the type that was planned."""
    others = ["bucket"] if stage.output is OutputKind.BUCKETS else []
    fragment = _cast(stage.sql, stage.types, others)
    if stage.function is not None and stage.function.keys:
        return _grouped(fragment, stage.function.keys)
    return fragment


def _cast(sql: str, types: Sequence[str], others: Sequence[str] = ()) -> str:
    """SQL with its columns c0, c1, ... in the types that were planned, and `others` as they are.

    Rendered SQL is bound a second time, which can widen a type (a sum of decimals, say).
    """
    columns = [
        f"c{i}" if type_ == "STATE" else f"CAST(c{i} AS {type_}) AS c{i}"
        for i, type_ in enumerate(types)
    ]
    return f"SELECT {', '.join((*columns, *others))} FROM ({sql})"


def _grouped(sql: str, keys: Sequence[int]) -> str:
    """The rows of `sql` group by group, with the group's number as one more column."""
    columns = ", ".join(f"c{i}" for i in keys)
    numbered = f"SELECT *, dense_rank() OVER (ORDER BY {columns}) AS g FROM ({sql})"
    return f"{numbered} ORDER BY g"


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())
