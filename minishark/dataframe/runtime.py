"""Runtime: what DataFrames need of the engine below them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from minishark.dataframe.dialect import Dialect
from minishark.dataframe.profile import Profile
from minishark.errors import QueryCancelledError
from minishark.model.catalog import Partition
from minishark.model.expressions import Schema
from minishark.query.metrics import Answer, QueryMetrics
from minishark.query.progress import QueryProgress
from minishark.query.sinks import Layout
from minishark.query.sources import HeldSource
from minishark.sources.contract import Source
from minishark.tables.cached import CachedRows
from minishark.worker.protocol import ScalarFunction, TaskFunction

if TYPE_CHECKING:
    from minishark.dataframe.lazy_query import LazyQuery


_latest: ContextVar[weakref.ref[Any] | None] = ContextVar("latest", default=None)
_sessions: list[weakref.ref[Any]] = []
_noting = threading.Lock()


def note_session(session: Any) -> None:
    """Note a new session: the latest of this thread, and of those that made none."""
    _latest.set(weakref.ref(session))
    with _noting:
        _sessions[:] = [reference for reference in _sessions if reference() is not None]
        _sessions.append(weakref.ref(session))


def latest_session() -> Any:
    """The open session that this thread made last, or else the process; None if there is none."""
    for reference in (_latest.get(), *reversed(_sessions)):
        session = None if reference is None else reference()
        if session is not None and session.is_open:
            return session
    return None


class Cancellation:
    """Cancels a running query from another thread."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """End the query; it raises QueryCancelledError soon."""
        self._cancelled.set()

    def check(self, _: QueryProgress) -> None:
        """Raise QueryCancelledError if the query was cancelled; a progress handler."""
        if self._cancelled.is_set():
            raise QueryCancelledError("The query was cancelled.")


class Runtime(Protocol):
    """Plans and runs queries, and stores tables; every method is safe to call from any thread."""

    @property
    def session(self) -> Any:
        """The session that it belongs to; None when that is gone."""

    @property
    def dialect(self) -> Dialect:
        """What texts mean, and how rows and types are shown."""

    def setting(self, name: str) -> Any:
        """The value of a setting of DuckDB's."""

    # Queries

    def bind(self, sql: str) -> Schema:
        """The columns of a query; raises QueryError if DuckDB rejects it."""

    def arrow_schema(self, sql: str) -> pa.Schema:
        """The columns of a query with their Arrow types."""

    def run(
        self, sql: str, *, cancellation: Cancellation | None = None, lossless: bool = False
    ) -> Answer:
        """Run a query to its end; `lossless` rows keep DuckDB's types."""

    def profile(self, sql: str) -> Profile:
        """Run a query to its end; what it did, and why each task ran where it did."""

    def stream(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
        """Run a query; its rows are freed as they are read."""

    def to_dataset(self, rows: str | pa.Table, library: str) -> Any:
        """Rows, or those of a query, as a dataset of a library (see `cluster.platforms`)."""

    def submit_query(self, sql: str, name: str, terms: Mapping[str, Any]) -> Any:
        """Have a query run as a job of the cluster, which outlives this program; the job."""

    def explain(self, sql: str, *, mode: str) -> str:
        """A query's plans as text; `mode` is one of `EXPLAIN_MODES`."""

    def verify(self, sql: str, answer: pa.Table) -> None:
        """Run a query on plain DuckDB; raises VerificationError if `answer` differs."""

    def copy(self, query: str, target: str, *, kept: bool = False) -> pa.Table:
        """COPY query TO target; `target` is the text after TO. Returns the number of rows."""
        # `kept`: few rows, too, are written in the partitions that the query has.

    def has_files(self, target: str) -> bool:
        """Whether there is a file at a local path or URI, or any below it."""

    def insert(self, name: str, query: str) -> None:
        """Append the rows of a query to a table."""

    # Named tables and views

    @property
    def table_names(self) -> list[str]:
        """The names of the tables that users know."""

    def hold_source(self, source: Source) -> HeldSource:
        """Let queries read a source while somebody has the handle."""

    def with_calls(self, sql: str) -> str:
        """A text of SQL with tables in place of sources that DuckDB can't read."""

    def handles(self, sql: str) -> tuple[object, ...]:
        """What has to be kept while somebody may run a text: sources, cached rows."""

    def create_table(self, name: str, data: Any, *, layout: Layout, replace: bool = False) -> None:
        """Store the rows of a DataFrame, or data of another kind, as a table."""

    def create_view(self, name: str, query: LazyQuery, *, replace: bool) -> None:
        """Make a query a view; what it reads is kept as long as the view exists."""

    # Cached rows

    def store_rows(self, rows: pa.Table, *, partitions: int | None = None) -> CachedRows:
        """Load rows into the cluster now."""

    def cache_query(
        self,
        sql: str,
        *,
        layout: Layout,
        function: TaskFunction | None = None,
        needs: tuple[object, ...] = (),
    ) -> CachedRows:
        """Promise a query's rows as a table; the first query that reads it computes them."""
        # `function` is applied to each task's rows; `needs` has handles of the tables it reads.

    def materialize(self, cached: CachedRows) -> None:
        """Compute promised rows now, and forget the query that they came from."""

    def release(self, cached: CachedRows) -> None:
        """Free cached rows; a query that reads them computes them again."""

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """A table's partitions; promised rows are computed first."""

    def write_checkpoint(self, sql: str, path: str, *, kept: bool = False) -> str:
        """Write a query's rows to Parquet files in a new folder; a query that reads them back."""

    # Python functions

    def apply_function(self, sql: str, function: TaskFunction) -> pa.Table:
        """Apply a function to the rows of a query, in its tasks; all that it returned."""

    def items(self, rows: Callable[[], pa.Table], integers: Sequence[str]) -> Any:
        """Rows as Python objects over partitions, when they are needed."""
        # `integers` are columns of 128-bit integers.

    def count_tasks(self, sql: str) -> int:
        """In how many tasks `apply_function` would run."""

    def register_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        """Make a Python function callable from SQL, replacing one of the same name."""

    def offer_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        """Make a Python function callable from SQL, unless it is already."""

    def remove_function(self, name: str) -> None:
        """Remove a registered function; raises OptionError if there is none."""
