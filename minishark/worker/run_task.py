"""Runs one task: a fragment's SQL on DuckDB over Arrow inputs, its rows stored as Arrow."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol

import cloudpickle
import duckdb
import pyarrow as pa

from minishark.compiler.hints import EarlyCte
from minishark.cores import usable_cores
from minishark.expressions import quote, quote_text
from minishark.worker import functions
from minishark.worker.dictionary_codes import CodedInputs, with_codes
from minishark.worker.helpers import Helpers
from minishark.worker.memory import NodeMemory
from minishark.worker.outputs import BATCH_ROWS, Outputs, attempt_name, output_columns, stream
from minishark.worker.prepared import Inputs, PreparedFragments
from minishark.worker.protocol import (
    CopyTarget,
    FileSlice,
    OutputKind,
    ProblemDetail,
    StageTask,
    TaskFunction,
    TaskOutcome,
    TaskPayload,
    TaskProblem,
)
from minishark.worker.reduction import Reduction, Tables
from minishark.worker.scalars import Scalars
from minishark.worker.statistics import partition_statistics, text_sample
from minishark.worker.store import FolderMissingError, InputMissingError, Store
from minishark.worker.streaming import batches_of, even_batches
from minishark.worker.writing import FULL, disk_full, mapped

_EXCHANGE_SETTINGS = {
    "arrow_output_version": "'1.5'",  # 64-bit decimals, which halve most TPC-H columns
    "arrow_lossless_conversion": "true",  # 128-bit integers, UUIDs, bits ... come back as they went
}
_BINARY_EXCHANGE_SETTINGS = _EXCHANGE_SETTINGS | {
    "arrow_output_version": "'1.0'",  # later ones have binary views, which Arrow can't take rows of
}
_BINARY_TYPE = re.compile(r"\b(?:BLOB|BIT|BIGNUM|VARIANT|GEOMETRY|STATE)\b")

_FUNCTIONS_MAX = 16
_LIMIT_TOLERANCE = 0.1

_COLLECTED_ROWS_MIN = 100_000
"""From here on, one copy of the rows less is worth binding the fragment twice."""

_EXCHANGED_TYPE = re.compile("DECIMAL|U?HUGEINT")
"""Types that lose something, or time, in DuckDB's default layout."""

_HELD_PART = 8
"""Steps, and inputs without the rows that no join wants, take DuckDB's limit through this."""

_FRAGMENT = compile("run(text)", "<fragment>", "eval")

warnings.filterwarnings("ignore", "Arrow output on a DB-API result", module=__name__)

_REJECTIONS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.NotImplementedException,
    duckdb.ParserException,
)


class TaskError(Exception):
    """A task failed in a way that the front end can act on."""

    def __init__(self, problem: TaskProblem, message: str) -> None:
        super().__init__(message)
        self.detail = ProblemDetail(problem=problem, message=message)

    @classmethod
    def of_missing(cls, missing: InputMissingError) -> TaskError:
        """Stored files are gone; the front end knows who can make them again."""
        error = cls(TaskProblem.INPUT, str(missing))
        error.detail = ProblemDetail(
            problem=TaskProblem.INPUT, message=str(missing), missing=missing.files
        )
        return error

    @classmethod
    def of_function(cls, failed: functions.FunctionFailedError, partition: int) -> TaskError:
        """User code failed."""
        error = cls(TaskProblem.FUNCTION, str(failed))
        error.detail = ProblemDetail(
            problem=TaskProblem.FUNCTION,
            message=str(failed),
            partition=partition,
            traceback=failed.traceback,
            pickled=failed.pickled,
        )
        return error


class PickledFunctions:
    """The functions that were used last, unpickled."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, functions.Function] = OrderedDict()

    def get(self, pickled: bytes) -> functions.Function:
        """A function.

        Raises:
            FunctionFailedError: it needs a module that is not here, or the like.
        """
        function = self._known.get(pickled)
        if function is None:
            try:
                function = cloudpickle.loads(pickled)
            except Exception as error:
                raise functions.FunctionFailedError.of(error) from error
            self._known[pickled] = function
            if len(self._known) > _FUNCTIONS_MAX:
                self._known.popitem(last=False)
        return function


class _Rows(Protocol):
    """A DuckDB relation or connection, which gives rows as Arrow."""

    def to_arrow_reader(self, batch_size: int, /) -> pa.RecordBatchReader: ...


class TaskRunner:
    """One slot: a DuckDB over the store's files, with one thread unless a task may use more."""

    def __init__(self, store: Store, *, memory: NodeMemory, spill_folder: str) -> None:
        self._store = store
        self._memory = memory
        self._outputs = Outputs(store, memory.buffer_bytes)
        self._limit_bytes = memory.duckdb_bytes(0)
        self._config = {
            "threads": "1",
            "temp_directory": spill_folder,
            "autoinstall_known_extensions": "false",
        }
        self._prelude: tuple[str, ...] = ()
        self._working_folder = ""
        self._con = self._connect()
        self._settings = self._con.cursor()  # knows what holds for all, also while a task runs
        self._fitting = threading.Lock()  # guards it
        self._output_settings: Mapping[str, str] = {}
        self._disabled_optimizers = ""
        self._threads = 1
        self._prepared = PreparedFragments()
        self._helpers = Helpers()
        self._running = threading.Lock()  # held while a task runs
        self._removed: set[str] = set()  # folders that prepared fragments may still hold files of
        self._user_code = functions.UserCode()
        self._functions = PickledFunctions()
        self._scalars = Scalars()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """A new DuckDB, with its default output types."""
        connection = duckdb.connect(config=dict(self._config))
        connection.execute(f"SET memory_limit = '{self._limit_bytes}B'")
        connection.execute("SET produce_arrow_string_view = false")
        return connection

    def run(self, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        """Run the fragment of `stage` on the inputs of `task`.

        Raises:
            TaskError: with the reason, for whatever is not a bug.
        """
        with self._running:
            return self._run_guarded(stage, task)

    def _run_guarded(self, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        try:
            if stage.prelude != self._prelude or self._is_elsewhere(stage):
                self._prepare(stage, task)
            self._choose_optimizers(stage)
            self._use_threads(stage.threads)
            self.fit_memory()
            if stage.function is None and not stage.scalars:
                return self._run(stage, task)
            with self._user_code.running():
                return self._run(stage, task)
        except functions.FunctionFailedError as failed:
            raise TaskError.of_function(failed, task.index) from failed
        except functions.Interrupted as error:
            self._restart()  # whatever it was doing
            raise TaskError(TaskProblem.INTERRUPTED, "The task was interrupted.") from error
        except (duckdb.FatalException, duckdb.InternalException) as error:
            # A bug of DuckDB's, after which this database may refuse all else. The fragment is
            # not to blame alone: the statement as a whole often takes another path.
            self._restart()
            raise TaskError(TaskProblem.BIND, str(error)) from error

    def _is_elsewhere(self, stage: StageTask) -> bool:
        """Whether a user's statement may mean other files than the one before, by the same names.

        What was defined over those, or read of them, is then of no use.
        """
        return not stage.types and stage.working_folder not in ("", self._working_folder)

    def _choose_optimizers(self, stage: StageTask) -> None:
        disabled = _disabled_optimizers(stage)
        if disabled != self._disabled_optimizers:
            self._con.execute(f"SET disabled_optimizers = '{disabled}'")
            self._disabled_optimizers = disabled

    def _use_threads(self, allowed: int) -> None:
        count = min(allowed, usable_cores())
        if count != self._threads:
            self._con.execute(f"SET threads = {count}")
            self._threads = count

    def fit_memory(self) -> None:
        """Give DuckDB what files leave now; may be called from another thread, while a task runs.

        It spills what is above a lower limit. What it can't spill it keeps until the next call.
        """
        limit = self._memory.duckdb_bytes(self._store.meter.used_bytes())
        if abs(limit - self._limit_bytes) <= _LIMIT_TOLERANCE * self._limit_bytes:
            return
        with self._fitting, contextlib.suppress(duckdb.OutOfMemoryException):
            self._settings.execute(f"SET memory_limit = '{limit}B'")
            self._limit_bytes = limit

    def _restart(self) -> None:
        with self._fitting:
            self._settings.close()
            self._con.close()
            self._con = self._connect()
            self._settings = self._con.cursor()
        self._output_settings = {}
        self._disabled_optimizers = ""
        self._threads = 1
        self._prepared.clear()
        self._prelude = ()
        self._scalars.forget()

    def _prepare(self, stage: StageTask, task: TaskPayload) -> None:
        """Start anew with the settings and definitions of `stage`.

        A definition over tables that are not here fails; a fragment that needs it will say so.
        """
        self._restart()
        with _problems(), self._inputs(stage, task):
            for sql in stage.prelude:
                with contextlib.suppress(duckdb.Error):
                    self._con.execute(sql).fetchall()
        self._prelude = stage.prelude
        self._working_folder = stage.working_folder or self._working_folder

    def _run(self, stage: StageTask, task: TaskPayload) -> TaskOutcome:
        if not stage.sql:
            with _problems():
                table = self._store.read(task.inputs["in0"])
                batches = even_batches(table, BATCH_ROWS)
                return self._store_partition(stage, task, table.schema, batches, table)
        with _problems(), self._inputs(stage, task) as variables, self._known(stage):
            if stage.target is not None:
                return self._write_files(stage, stage.target, task, variables)
            rows = self._rows(stage, task, variables)
            if stage.function is None:
                return self._put_out(stage, task, rows)
            try:
                return self._put_out(stage, task, self._passed(stage, stage.function, rows))
            finally:
                functions.release(self._con)

    def _known(self, stage: StageTask) -> contextlib.AbstractContextManager[None]:
        """While the fragment runs, the functions of users that it calls."""
        return self._scalars.known_to(self._con, stage.scalars)

    def _put_out(self, stage: StageTask, task: TaskPayload, rows: _Rows) -> TaskOutcome:
        reader = rows.to_arrow_reader(self._outputs.batch_rows)
        match stage.output:
            case OutputKind.BUCKETS:
                with reader:
                    return self._outputs.buckets(stage, task, reader)
            case OutputKind.PIECE:
                with reader:
                    return self._outputs.piece(stage, task, reader)
            case OutputKind.RESULT:
                with reader:
                    return self._outputs.result(stage, task, reader)
            case OutputKind.PARTITION:
                with reader:
                    batches = batches_of(reader)
                    return self._store_partition(stage, task, reader.schema, batches)
            case OutputKind.FILES:
                message = "files have a target"
                raise AssertionError(message)

    def _rows(
        self, stage: StageTask, task: TaskPayload, variables: Mapping[str, pa.Table]
    ) -> _Rows:
        """The fragment, bound or already run."""
        if not stage.types:
            relation = self._con.sql(stage.sql)
            self._set_output_types(_output_settings(stage, map(str, relation.types)))
            return relation
        lasting = _lasting_inputs(stage, task)
        if not stage.hints.reduces_inputs:
            self._set_output_types(_output_settings(stage, stage.types))
            scope = partial(with_codes, variables, stage.hints.dictionary_codes)
            return self._executed(_typed(stage), stage.rows, scope, lasting)
        coded = with_codes(variables, stage.hints.dictionary_codes)
        sql, reduced = self._reduced(_typed(stage), stage, coded, lasting)
        self._set_output_types(_output_settings(stage, stage.types))
        inputs = lasting if reduced.are_mapped else None
        return self._executed(sql, stage.rows, lambda: reduced, inputs)

    def _executed(
        self, sql: str, rows: float, scope: Callable[[], CodedInputs], inputs: Inputs | None
    ) -> _Rows:
        """Run SQL that gives about `rows` rows; prepared, if it comes again over `inputs`."""
        if rows >= _COLLECTED_ROWS_MIN:
            return _in_scope(self._con.sql, sql, scope().tables)
        execute = partial(_in_scope, self._con.execute)
        if inputs is None:
            return execute(sql, scope().tables)
        settings = (self._disabled_optimizers, self._threads)
        return execute(*self._prepared.statement(sql, inputs, settings, scope, execute))

    def _reduced(
        self, sql: str, stage: StageTask, coded: CodedInputs, lasting: Inputs | None
    ) -> tuple[str, CodedInputs]:
        """A fragment and its inputs, without rows that no join wants."""

        def run(cte: EarlyCte, tables: Tables, is_new: bool) -> pa.RecordBatchReader:
            if any(map(_EXCHANGED_TYPE.match, cte.types)):
                self._set_output_types(_EXCHANGE_SETTINGS)
            scope, inputs = CodedInputs(tables, coded.are_mapped), None if is_new else lasting
            text = _cast(cte.sql, cte.types)
            rows = self._executed(text, cte.rows, lambda: scope, inputs)
            return rows.to_arrow_reader(BATCH_ROWS)

        held_bytes = self._limit_bytes // _HELD_PART
        reduction = Reduction(stage.hints, self._helpers, run, self._threads, held_bytes)
        return reduction.reduced(sql, coded)

    def _passed(self, stage: StageTask, function: TaskFunction, rows: _Rows) -> _Rows:
        """What the stage's function makes of the rows."""
        names = [name for name, _ in stage.columns]
        try:
            call = self._functions.get(function.pickled)
            with rows.to_arrow_reader(self._outputs.batch_rows) as reader:
                tables = functions.called(call, reader, names)
        except BaseException:
            self._con.abort()  # or the rows that are left keep it from anything else
            raise
        relation = functions.conformed(self._con, tables, function.returns, function.label)
        self._set_output_types(_stored_types(stage, map(str, relation.types)))
        return relation

    def interrupt(self) -> float:
        """Stop the task that is running; may be called from another thread.

        Returns:
            For how many seconds user code that it runs has not obeyed.
        """
        with contextlib.suppress(duckdb.ConnectionException):  # it is just starting anew
            self._con.interrupt()
        return self._user_code.stop()

    def forget(self, folder: str) -> None:
        """Drop what is cached of a query's files."""
        self._store.forget(folder)

    def forget_removed(self) -> None:
        """Drop what is cached of tables that are gone; may be called from another thread."""
        self._removed.update(self._store.forget_removed(self._prepared.folders()))
        if self._removed and self._running.acquire(blocking=False):  # else the next time
            try:
                self._prepared.forget(self._removed, self._con.execute)
                self._removed.clear()
            finally:
                self._running.release()

    def close(self) -> None:
        """Close DuckDB and the files; open connections make it complain when the process ends."""
        with self._fitting:
            self._settings.close()
            self._con.close()
        self._helpers.close()
        self._store.forget_all()

    @contextlib.contextmanager
    def _inputs(self, stage: StageTask, task: TaskPayload) -> Iterator[Mapping[str, pa.Table]]:
        """The inputs, for as long as the task runs: variables for a fragment, or views."""
        slices: dict[str, tuple[FileSlice, ...]] = {**stage.shared_inputs, **task.inputs}
        tables = self._read(slices)
        views = () if stage.types else tuple(tables)  # a user's statement may use any name
        try:
            for name in views:
                self._con.register(name, tables[name])
            for name, relation in task.relations.items():
                self._con.execute(f"CREATE TEMP VIEW {quote(name)} AS FROM {relation}")
            yield tables
        finally:
            for name in views:
                self._con.unregister(name)
            for name in task.relations:
                self._con.execute(f"DROP VIEW IF EXISTS {quote(name)}")

    def _read(self, slices: Mapping[str, tuple[FileSlice, ...]]) -> dict[str, pa.Table]:
        """Each input; if files are missing, one error names those of all inputs."""
        tables, missing = {}, []
        for name, found in slices.items():
            try:
                tables[name] = self._store.read(found)
            except InputMissingError as error:
                missing.append(error)
        if missing:
            raise InputMissingError.of_all(missing)
        return tables

    def _set_output_types(self, settings: Mapping[str, str]) -> None:
        if settings == self._output_settings:
            return
        for name in _EXCHANGE_SETTINGS:
            value = settings.get(name)
            self._con.execute(f"RESET {name}" if value is None else f"SET {name} = {value}")
        self._output_settings = settings

    def _store_partition(
        self,
        stage: StageTask,
        task: TaskPayload,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        table: pa.Table | None = None,
    ) -> TaskOutcome:
        """Store and measure a partition; its rows in `table`, if they are in memory already."""
        columns = output_columns(stage)
        file, stored = self._outputs.partition(stage, task, schema, batches)
        try:
            table = mapped(stored) if table is None else table
            named = table.rename_columns([name for name, _ in columns])
            statistics = self._statistics(named, columns)
        except BaseException:
            stored.path.unlink(missing_ok=True)
            raise
        return self._outputs.replicated(task, file, stored, statistics)

    def _statistics(self, table: pa.Table, columns: Sequence[tuple[str, str]]) -> bytes:
        self._set_output_types(_EXCHANGE_SETTINGS)
        sample = text_sample(table)
        self._con.register("partition", table)
        try:
            if sample is None:
                return stream(partition_statistics(self._con, "partition", columns))
            self._con.register("sample", sample)
            return stream(partition_statistics(self._con, "partition", columns, "sample"))
        finally:
            self._con.unregister("partition")
            if sample is not None:
                self._con.unregister("sample")

    def _write_files(
        self,
        stage: StageTask,
        target: CopyTarget,
        task: TaskPayload,
        variables: Mapping[str, pa.Table],
    ) -> TaskOutcome:
        # Each attempt writes an entry of its own: an earlier one may have died half-way.
        entry = f"{attempt_name(task)}{target.suffix}"
        path = f"{target.folder}/{entry}"
        names = [f"c{i} AS {quote(name)}" for i, (name, _) in enumerate(stage.columns)]
        coded = with_codes(variables, stage.hints.dictionary_codes)
        sql = _typed(stage) if stage.types else stage.sql
        if stage.hints.reduces_inputs:
            sql, coded = self._reduced(sql, stage, coded, _lasting_inputs(stage, task))
        rows = f"SELECT {', '.join(names)} FROM ({sql})"
        copy = f"COPY ({rows}) TO {quote_text(path)} ({target.options})"
        try:
            with _in_scope(self._con.execute, copy, coded.tables).to_arrow_reader(1) as reader:
                answer = reader.read_all()
        except duckdb.IOException as error:
            if target.folder not in str(error):
                raise
            if _is_full(str(error)):
                message = f"The disk that the files are written to is full. ({error})"
                raise TaskError(TaskProblem.RESOURCE, message) from error
            raise TaskError(TaskProblem.OUTPUT, str(error)) from error
        (count,) = answer.column(0).to_pylist()
        return TaskOutcome(rows=count, nbytes=_size_bytes(Path(path)), file=entry)


def _disabled_optimizers(stage: StageTask) -> str:
    """What DuckDB leaves alone while a fragment runs: what was decided with better statistics."""
    disabled = ["projection_pullup"]  # it merges the joins that are kept apart, in their order
    if not stage.hints.aggregates_early:
        disabled.append("partial_aggregate_pushdown")
    if stage.hints.build_sides:
        disabled.append("build_side_probe_side")
    return ",".join(disabled)


def _in_scope(run: Callable[[str], _Rows], text: str, tables: Mapping[str, pa.Table]) -> _Rows:
    """Run SQL that names Arrow tables.

    DuckDB finds those that are variables where it is called from, which costs less than views. A
    scope of their own keeps all other names from being found.
    """
    rows: _Rows = eval(_FRAGMENT, {"run": run, "text": text, **tables})  # noqa: S307
    return rows


def _lasting_inputs(stage: StageTask, task: TaskPayload) -> Inputs | None:
    """What a fragment reads that may come again; None if that is more than stored tables.

    Outputs of stages have new names each time.
    """
    inputs = {**stage.shared_inputs, **task.inputs}
    if not stage.hints.prepares or stage.scalars or task.relations:
        return None
    is_new = any(item.file.startswith(f"{stage.folder}/") for item in chain(*inputs.values()))
    return None if is_new else inputs


def _typed(stage: StageTask) -> str:
    """The fragment with each column in the type that was planned."""
    others = ["bucket"] if stage.output is OutputKind.BUCKETS else []
    typed = _cast(stage.sql, stage.types, others)
    if stage.function is not None and stage.function.keys:
        return _grouped(typed, stage.function.keys)
    return typed


def _cast(sql: str, types: Sequence[str], others: Sequence[str] = ()) -> str:
    """SQL with its columns c0, c1, ... in the types that were planned, and `others` as they are.

    Rendered SQL is bound a second time, which can widen a type (a sum of decimals, say).
    """
    columns = [
        f"c{i}" if type_ == "STATE" else f"CAST(c{i} AS {type_}) AS c{i}"
        for i, type_ in enumerate(types)
    ]
    return f"SELECT {', '.join((*columns, *others))} FROM ({sql})"


def _output_settings(stage: StageTask, types: Iterable[str]) -> Mapping[str, str]:
    """DuckDB's settings for the rows of a fragment; users' functions get them as users do."""
    return _stored_types(stage, types) if stage.function is None else {}


def _stored_types(stage: StageTask, types: Iterable[str]) -> Mapping[str, str]:
    """DuckDB's settings for the layout of a stage's output; results have DuckDB's default one."""
    if stage.output is OutputKind.RESULT and not stage.lossless:
        return {}
    if not stage.types and any("AGGREGATE_STATE" in type_ for type_ in types):
        return {}  # a user's own states: DuckDB dies of some of them in the lossless layout
    binary = any(map(_BINARY_TYPE.search, types))
    return _BINARY_EXCHANGE_SETTINGS if binary else _EXCHANGE_SETTINGS


def _grouped(sql: str, keys: Sequence[int]) -> str:
    """The rows of `sql` group by group, with the group's number as one more column."""
    columns = ", ".join(f"c{i}" for i in keys)
    numbered = f"SELECT *, dense_rank() OVER (ORDER BY {columns}) AS g FROM ({sql})"
    return f"{numbered} ORDER BY g"


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def _out_of_memory(message: str) -> str:
    """What to do when memory ends; DuckDB's own proposals are about settings that are ours."""
    first = message.partition("\n")[0]
    return (
        "A task needs more memory than its executor has: raise memory_limit, start fewer "
        f"executors, or use more partitions. ({first})"
    )


def _is_full(message: str) -> bool:
    """Whether DuckDB complains of a disk that is full."""
    return "No space left" in message or "Could not write all bytes" in message


@contextlib.contextmanager
def _problems() -> Iterator[None]:
    """Errors of DuckDB, Arrow and the system as `TaskError`s."""
    try:
        yield
    except (duckdb.FatalException, duckdb.InternalException):
        raise
    except _REJECTIONS as error:
        raise TaskError(TaskProblem.BIND, str(error)) from error
    except duckdb.InterruptException as error:
        raise TaskError(TaskProblem.INTERRUPTED, "The task was interrupted.") from error
    except duckdb.OutOfMemoryException as error:
        raise TaskError(TaskProblem.RESOURCE, _out_of_memory(str(error))) from error
    except InputMissingError as error:
        raise TaskError.of_missing(error) from error
    except duckdb.IOException as error:
        # Of a file that the statement names; what stages hand on is not read by DuckDB.
        if _is_full(str(error)):
            raise TaskError(TaskProblem.RESOURCE, disk_full(error)) from error
        raise TaskError(TaskProblem.SQL, str(error)) from error
    except FolderMissingError as error:
        raise TaskError(TaskProblem.FOLDER, str(error)) from error
    except OSError as error:
        if error.errno in FULL:
            raise TaskError(TaskProblem.RESOURCE, disk_full(error)) from error
        raise TaskError(TaskProblem.INPUT, str(error)) from error
    except MemoryError as error:
        raise TaskError(TaskProblem.RESOURCE, _out_of_memory("MemoryError")) from error
    except (duckdb.Error, pa.ArrowException) as error:
        raise TaskError(TaskProblem.SQL, str(error)) from error
