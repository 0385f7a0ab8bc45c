"""The DuckDB of one executor slot: its connection, and the settings that tasks change.

A setting takes DuckDB about as long as a small fragment, so each is only set when it differs.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import duckdb
import pyarrow as pa

from minishark.model.expressions import quote, quote_text
from minishark.worker.cores import usable_cores
from minishark.worker.memory import LEAST_BYTES, NodeMemory
from minishark.worker.profiles import profiled
from minishark.worker.protocol import OutputKind, Profiled, StageTask
from minishark.worker.shares import Shares
from minishark.worker.storage import StorageMeter

EXCHANGE_SETTINGS: Mapping[str, str] = {
    "arrow_output_version": "'1.5'",  # 64-bit decimals, which halve most TPC-H columns
    "arrow_lossless_conversion": "true",  # 128-bit integers, UUIDs, bits ... come back as they went
}
_BINARY_EXCHANGE_SETTINGS = {
    **EXCHANGE_SETTINGS,
    "arrow_output_version": "'1.0'",  # later ones have binary views, which Arrow can't take rows of
}
_BINARY_TYPE = re.compile(r"\b(?:BLOB|BIT|BIGNUM|VARIANT|GEOMETRY|STATE)\b")
EXECUTE = "EXECUTE "
"""How a statement begins that runs a prepared one."""

_LIMIT_TOLERANCE = 0.1
_WITH = "WITH "
_FRAGMENT = compile("_minishark_run(_minishark_text)", "<fragment>", "eval")


class Rows(Protocol):
    """A DuckDB relation or connection that can be read as Arrow."""

    def to_arrow_reader(self, batch_size: int, /) -> pa.RecordBatchReader:
        """The rows in batches."""


class DuckDBSlot:
    """A DuckDB with one thread, unless a task may use more."""

    def __init__(
        self,
        memory: NodeMemory,
        meter: StorageMeter,
        spill_folder: str,
        shares: Shares | None = None,
    ) -> None:
        """A new database, whose share of `memory` depends on what `meter` finds stored.

        With `shares`, it takes those of idle slots, too.
        """
        self._memory = memory
        self._shares = shares
        self._meter = meter
        self.limit_bytes = memory.duckdb_bytes(0)
        self._config = {
            "threads": "1",
            "temp_directory": spill_folder,
            "autoinstall_known_extensions": "false",
        }
        self.con = self._connect()
        self._settings = self.con.cursor()  # for settings of all connections while a task runs
        self._fitting = threading.Lock()  # guards it
        self._reset()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        # In a notebook without ipywidgets, DuckDB lets only cursors count progress.
        connection = duckdb.connect(config=dict(self._config)).cursor()
        connection.execute(f"SET memory_limit = '{self.limit_bytes}B'")
        connection.execute("SET produce_arrow_string_view = false")
        connection.execute("SET enable_progress_bar = true")  # which counts, for `progress`
        connection.execute("SET enable_progress_bar_print = false")
        return connection

    def progress(self) -> float:
        """How much of what runs is done, as DuckDB estimates it: 0 to 1; 0 if it does not know.

        May be called from another thread.
        """
        return min(1.0, max(0.0, self.con.query_progress() / 100))

    def _reset(self) -> None:
        """Note the settings of a new database."""
        self._output_settings: Mapping[str, str] | None = {}  # None if they are not known
        self._disabled_optimizers = ""  # as DuckDB has them
        self._wanted_off = ""  # as the stage needs them, when something is planned
        self._profiles = False
        self._scans = ""  # common table expressions that all SELECTs begin with
        self.threads = 1

    @property
    def plan_settings(self) -> tuple[str, int]:
        """The settings that the plan of a prepared statement depends on."""
        return self._wanted_off, self.threads

    def restart(self) -> None:
        """Replace the database by a new one, without anything that was defined."""
        with self._fitting:
            self._settings.close()
            self.con.close()
            self.con = self._connect()
            self._settings = self.con.cursor()
        self._reset()

    def close(self) -> None:
        """Close the database; open connections make it complain when the process ends."""
        with self._fitting:
            self._settings.close()
            self.con.close()

    def interrupt(self) -> None:
        """Interrupt the statement that is running; may be called from another thread."""
        with contextlib.suppress(duckdb.ConnectionException):  # it is just restarting
            self.con.interrupt()

    def configure(self, stage: StageTask) -> None:
        """Change settings to those that the fragment of `stage` needs."""
        self._wanted_off = _disabled_optimizers(stage)
        if stage.profiled != self._profiles:
            how = "enable_profiling = 'no_output'" if stage.profiled else "disable_profiling"
            self.con.execute(f"PRAGMA {how}")
            self._profiles = stage.profiled
        threads = min(stage.threads, usable_cores())
        if threads != self.threads:
            self.con.execute(f"SET threads = {threads}")
            self.threads = threads
        if self._shares is not None:
            self._shares.want(threads)
        self.fit_memory()

    def fit_memory(self) -> None:
        """Give DuckDB the memory that files leave; may be called from another thread.

        Above a lower limit it spills. What it can't spill it keeps until the next call.
        """
        shares = 1.0 if self._shares is None else self._shares.taken()
        limit = max(LEAST_BYTES, self._memory.duckdb_bytes(self._meter.used_bytes(), shares))
        if abs(limit - self.limit_bytes) <= _LIMIT_TOLERANCE * self.limit_bytes:
            return
        with self._fitting, contextlib.suppress(duckdb.OutOfMemoryException):
            self._settings.execute(f"SET memory_limit = '{limit}B'")
            self.limit_bytes = limit

    def set_output_types(self, settings: Mapping[str, str]) -> None:
        """Choose the Arrow layout of the rows that come out."""
        if settings == self._output_settings:
            return
        self._output_settings = None  # an interruption may leave some of each
        for name in EXCHANGE_SETTINGS:
            value = settings.get(name)
            self.con.execute(f"RESET {name}" if value is None else f"SET {name} = {value}")
        self._output_settings = settings

    def output_schema(self, types: Sequence[str]) -> pa.Schema:
        """The Arrow schema of rows with columns c0, c1, ... of these types, as they would come."""
        columns = ", ".join(f"CAST(NULL AS {type_}) AS c{i}" for i, type_ in enumerate(types))
        rows: Rows = self.con.execute(f"SELECT {columns} LIMIT 0")
        with rows.to_arrow_reader(1) as reader:
            return reader.schema

    def sql(self, text: str, tables: Mapping[str, object]) -> Rows:
        """Bind SQL over Arrow tables; it runs when the rows are read."""
        self.choose_optimizers()
        return _in_scope(self.con.sql, self._reading(text), tables)

    def profile(self) -> Profiled | None:
        """What the operators of the last relation did whose rows were read; None if unknown.

        DuckDB only knows it of relations (`sql`), and until something else runs.
        """
        return profiled(self.con.get_profiling_information(format="json"))

    def choose_optimizers(self) -> None:
        """Switch off the optimizers that the stage wants off, before something is planned."""
        if self._wanted_off != self._disabled_optimizers:
            self.con.execute(f"SET disabled_optimizers = '{self._wanted_off}'")
            self._disabled_optimizers = self._wanted_off

    def execute(self, text: str, tables: Mapping[str, object]) -> Rows:
        if not text.startswith(EXECUTE):  # a plan that exists
            self.choose_optimizers()
        return _in_scope(self.con.execute, self._reading(text), tables)

    def copy(self, sql: str, path: str, options: str, tables: Mapping[str, object]) -> Rows:
        """Write the rows of a SELECT over Arrow tables to files; the one row tells how many."""
        self.choose_optimizers()
        text = f"COPY ({self._reading(sql)}) TO {quote_text(path)} ({options})"
        return _in_scope(self.con.execute, text, tables)

    @contextlib.contextmanager
    def scans(self, streams: Mapping[str, object], relations: Mapping[str, str]) -> Iterator[None]:
        """While the block runs, SELECTs may read relations over files and Arrow streams, by name.

        They become common table expressions: DuckDB binds a view when it is created, too, and opens
        its files each time.
        """
        texts = (f"{quote(name)} AS NOT MATERIALIZED {sql}" for name, sql in relations.items())
        with self.views(streams, {}):
            self._scans = ", ".join(texts)
            try:
                yield
            finally:
                self._scans = ""

    def _reading(self, sql: str) -> str:
        if not self._scans:
            return sql
        others = sql.startswith(_WITH)
        return f"{_WITH}{self._scans}{',' if others else ''} {sql.removeprefix(_WITH)}"

    @contextlib.contextmanager
    def views(self, tables: Mapping[str, object], relations: Mapping[str, str]) -> Iterator[None]:
        """While the block runs, views of Arrow data, and of SQL relations over it, by name.

        A user's statement may name them anywhere.
        """
        try:
            for name, table in tables.items():
                self.con.register(name, table)
            for name, relation in relations.items():
                # A task that was interrupted while it cleaned up may have left one of this name.
                self.con.execute(f"CREATE OR REPLACE TEMP VIEW {quote(name)} AS FROM {relation}")
            yield
        finally:
            for name in relations:
                self.con.execute(f"DROP VIEW IF EXISTS {quote(name)}")
            for name in tables:
                self.con.unregister(name)


def _in_scope(run: Callable[[str], Rows], text: str, tables: Mapping[str, object]) -> Rows:
    """Run SQL that names Arrow tables.

    DuckDB finds tables that are variables where it is called from, which costs less than views. A
    scope of their own hides all other variables. What is evaluated is a constant: text and names
    reach it as values only.
    """
    scope = {**tables, "_minishark_run": run, "_minishark_text": text}
    rows: Rows = eval(_FRAGMENT, scope)  # noqa: S307
    return rows


def _disabled_optimizers(stage: StageTask) -> str:
    """The optimizers that are off for a fragment: the planner decided with better statistics."""
    disabled = ["projection_pullup"]  # it merges joins whose order was planned
    if not stage.hints.aggregates_early:
        disabled.append("partial_aggregate_pushdown")
    if stage.hints.build_sides:
        disabled.append("build_side_probe_side")
    return ",".join(disabled)


def output_settings(stage: StageTask, types: Iterable[str]) -> Mapping[str, str]:
    """DuckDB's settings for the rows of a fragment; users' functions get them as users do."""
    return stored_types(stage, types) if stage.function is None else {}


def stored_types(stage: StageTask, types: Iterable[str]) -> Mapping[str, str]:
    """DuckDB's settings for the layout of a stage's output; results have DuckDB's default one."""
    if stage.output is OutputKind.RESULT and not stage.lossless:
        return {}
    types = tuple(types)
    if not stage.types and any("AGGREGATE_STATE" in type_ for type_ in types):
        return {}  # a user's own states: some crash DuckDB in the lossless layout
    binary = any(map(_BINARY_TYPE.search, types))
    return _BINARY_EXCHANGE_SETTINGS if binary else EXCHANGE_SETTINGS
