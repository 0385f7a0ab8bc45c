"""What makes a DataFrame run, and what shows it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from minishark.dataframe.profile import Profile
from minishark.dataframe.row import Row, rows_of
from minishark.dataframe.show import PlanText, columns_html, table_html, table_text
from minishark.dataframe.writer import DataFrameWriter
from minishark.errors import MinisharkError, OptionError, QueryCancelledError
from minishark.expressions import Schema
from minishark.query.metrics import Answer, QueryMetrics
from minishark.query.progress import QueryProgress

if TYPE_CHECKING:
    import pandas as pd

    from minishark.dataframe.frame import DataFrame

_HTML_ROWS = 20
_HTML_WAIT_S = 2.0
_PYSPARK_MODES: dict[str | bool, str] = {
    True: "all",
    False: "physical",
    "simple": "physical",
    "extended": "all",
    "formatted": "all",
}
EXPLAIN_MODES = ("all", "logical", "physical", "stages", "sql", "analyze")


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows that lie in the cluster as a table without a name for users.

    Attributes:
        name: the table's name, for SQL.
        schema: its columns.
        handle: the table lives as long as somebody holds this.
    """

    name: str
    schema: Schema
    handle: object


class Cancellation:
    """A query can be told to end by whoever holds this."""

    def __init__(self) -> None:
        self._told = threading.Event()

    def cancel(self) -> None:
        """End the query; it raises QueryCancelledError soon."""
        self._told.set()

    def check(self, _: QueryProgress) -> None:
        """Hears of the query's progress.

        Raises:
            QueryCancelledError: it was cancelled.
        """
        if self._told.is_set():
            raise QueryCancelledError("The query was cancelled.")


class Runner(Protocol):
    """What binds and runs statements: a session."""

    def bind_statement(self, sql: str) -> Schema:
        """The columns of a SELECT.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        ...

    def arrow_schema(self, sql: str) -> pa.Schema:
        """The columns of a SELECT, as Arrow has them."""
        ...

    def run_statement(
        self, sql: str, cancellation: Cancellation | None = None, *, explained: bool = False
    ) -> Answer:
        """Run a SELECT."""
        ...

    def stream_statement(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
        """Run a SELECT, and read its rows piece by piece."""
        ...

    def verify_answer(self, sql: str, answer: pa.Table) -> None:
        """Compare an answer with plain DuckDB's.

        Raises:
            VerificationError: it is another.
        """
        ...

    def explain_statement(self, sql: str, mode: str) -> str:
        """Describe how a SELECT runs."""
        ...

    def keep_rows(self, data: Any) -> KeptRows:
        """Load rows into the cluster, for as long as a DataFrame needs them."""
        ...

    @property
    def tables(self) -> list[str]:
        """The names of the tables."""
        ...

    def sql(self, text: str) -> DataFrame:
        """Run statements."""
        ...

    def table(self, name: str) -> DataFrame:
        """All rows of a table or view."""
        ...

    def relation(self, sql: str, alias: str = "") -> DataFrame:
        """All rows of what stands after FROM."""
        ...

    def create_table(
        self,
        name: str,
        data: Any,
        *,
        partition_by: str | Sequence[str] | None = None,
        replicas: int = 2,
        replace: bool = False,
    ) -> None:
        """Load data into the cluster's memory as a table."""
        ...

    def register_view(self, name: str, frame: DataFrame, *, replace: bool) -> None:
        """Make a DataFrame a view for SQL."""
        ...


class Actions:
    """The methods of a DataFrame that run it."""

    if TYPE_CHECKING:
        runner: Runner
        verified: bool
        _explain: str | None
        _known: pa.Table | None
        _metrics: QueryMetrics | None

        def sql(self) -> str:
            """The statement."""
            ...

        @property
        def dtypes(self) -> list[tuple[str, str]]:
            """Name and type of each column."""
            ...

        def limit(self, count: int) -> DataFrame:
            """The first rows."""
            ...

        def _frame(self) -> DataFrame:
            """This."""
            ...

        def counted(self) -> DataFrame:
            """The number of rows as a DataFrame."""
            ...

    @property
    def is_known(self) -> bool:
        """Whether the rows are here already: of statements that are no queries on the cluster."""
        return self._known is not None

    def to_arrow(self, *, verify: bool = False) -> pa.Table:
        """Run the statement; its rows as an Arrow table.

        Args:
            verify: also run it on plain DuckDB in this process, over the same tables, and compare.
                What has several right answers (random(), LIMIT without an order) can differ.

        Raises:
            ExecutionError: the statement failed while it ran, for example on a division by zero.
            VerificationError: plain DuckDB has another answer.
            ClusterError: the cluster is gone.
        """
        answer = self.rows(None)
        if (verify or self.verified) and self._known is None and not self._explain:
            self.runner.verify_answer(self.sql(), answer)
        return answer

    def profile(self) -> Profile:
        """Run the statement; what each stage and each task did, and why it ran where it did.

        Raises:
            OptionError: it is no query that runs on the cluster.
        """
        if self._known is not None or self._explain:
            raise OptionError("Only queries that run on the cluster have a profile.")
        answer = self.runner.run_statement(self.sql(), explained=True)
        self._metrics = answer.metrics
        return Profile(self.sql(), answer.metrics)

    def rows(self, cancellation: Cancellation | None) -> pa.Table:
        """`to_arrow`, which another thread can cancel."""
        if self._known is not None:
            return self._known
        if self._explain:
            mode = "analyze" if self._explain == "analyze" else "all"
            return pa.table({"explain_value": [self.explain(mode)]})
        answer = self.runner.run_statement(self.sql(), cancellation)
        self._metrics = answer.metrics
        return answer.table

    async def to_arrow_async(self) -> pa.Table:
        """`to_arrow` without blocking the event loop; cancelling the task cancels the query."""
        import asyncio  # noqa: PLC0415 - slow to import, and most programs do not wait so

        cancellation = Cancellation()
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(None, self.rows, cancellation)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            cancellation.cancel()
            await asyncio.wait([running])
            # The thread's own error is what was asked for.
            running.exception()
            raise

    async def collect_async(self) -> list[Row]:
        """`collect` without blocking the event loop; cancelling the task cancels the query."""
        return list(rows_of(await self.to_arrow_async(), self._wholes()))

    def to_pandas(self) -> pd.DataFrame:
        """Run the statement; its rows as a pandas frame (needs pandas)."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Run the statement; its rows as a polars frame (needs polars)."""
        import polars as pl  # noqa: PLC0415 - an optional dependency

        return pl.from_arrow(self.to_arrow())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the statement; its rows as Arrow record batches.

        A large answer is not loaded: batches are mapped from where tasks put them, and the memory
        of each task's rows is freed when they have been read.
        """
        if self._known is not None or self._explain:
            yield from self.to_arrow().to_batches()
            return
        reader, self._metrics = self.runner.stream_statement(self.sql())
        yield from reader

    def to_local_iterator(self) -> Iterator[Row]:
        """Run the statement; its rows one after another."""
        wholes = self._wholes()
        for batch in self.to_batches():
            yield from rows_of(pa.table(batch), wholes)

    def collect(self) -> list[Row]:
        """Run the statement; its rows as a list.

        Examples:
            >>> session.sql("SELECT 42 AS answer").collect()
            [Row(answer=42)]
        """
        return list(rows_of(self.to_arrow(), self._wholes()))

    def _wholes(self) -> list[str]:
        """The columns of 128-bit integers, which Arrow has as decimals."""
        return [name for name, type_ in self.dtypes if type_ in ("HUGEINT", "UHUGEINT")]

    def take(self, count: int) -> list[Row]:
        """The first `count` rows."""
        return self.limit(count).collect()

    def head(self, count: int | None = None) -> Row | list[Row] | None:
        """The first row, or None if there is none; with a number, a list of the first rows."""
        if count is not None:
            return self.take(count)
        rows = self.take(1)
        return rows[0] if rows else None

    def first(self) -> Row | None:
        """The first row, or None if there is none."""
        rows = self.take(1)
        return rows[0] if rows else None

    def count(self) -> int:
        """The number of rows."""
        if self._known is not None:
            return int(self._known.num_rows)
        return int(self.counted().collect()[0][0])

    def is_empty(self) -> bool:
        """Whether there are no rows."""
        return not self.take(1)

    # Looking at it

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Run the statement for its first rows, and print them.

        Args:
            n: how many rows at most.
            truncate: whether values are cut to 20 characters; or to how many.
            vertical: whether each value has a line of its own.
        """
        print(self._shown(n, truncate, vertical))  # noqa: T201 - what the user asked for

    def _shown(self, n: int, truncate: bool | int, vertical: bool) -> str:
        is_query = self._known is None and not self._explain
        rows = self.limit(n + 1).to_arrow() if is_query else self.to_arrow()
        width = 20 if truncate is True else int(truncate)
        return table_text(rows, n, width=width, vertical=vertical)

    def print_schema(self) -> None:
        """Print the columns with their types."""
        lines = [f" |-- {name}: {type_}" for name, type_ in self.dtypes]
        print("\n".join(["root", *lines]))  # noqa: T201 - what the user asked for

    def __repr__(self) -> str:
        return f"DataFrame[{', '.join(f'{name}: {type_}' for name, type_ in self.dtypes)}]"

    def _repr_html_(self) -> str:
        """For notebooks: the first rows, if they come within two seconds; else the columns."""
        if self._known is not None:
            return table_html(self._known, self.dtypes, _HTML_ROWS)
        cancellation = Cancellation()
        timer = threading.Timer(_HTML_WAIT_S, cancellation.cancel)
        timer.daemon = True
        timer.start()
        try:
            rows = self.limit(_HTML_ROWS + 1).rows(cancellation)
        except QueryCancelledError:
            return columns_html(self.dtypes, f"not run: it takes more than {_HTML_WAIT_S:g} s")
        except MinisharkError as error:
            return columns_html(self.dtypes, str(error))
        finally:
            timer.cancel()
        return table_html(rows, self.dtypes, _HTML_ROWS)

    def explain(self, mode: str | bool = "all") -> PlanText:
        """How the statement runs, as text.

        Args:
            mode: "logical", "physical", "stages", "sql" (the stages with their fragments), "all"
                (the first three), or "analyze" (runs it, and adds figures per stage). Of PySpark's,
                "simple" is "physical", and "extended", "formatted" and True are "all".

        Raises:
            OptionError: there is no such mode.
        """
        chosen = _PYSPARK_MODES.get(mode, str(mode))
        if chosen not in EXPLAIN_MODES:
            raise OptionError(f"Unknown mode {mode!r}; the modes are {', '.join(EXPLAIN_MODES)}.")
        if self._known is not None:
            raise OptionError("Only queries that run on the cluster can be explained.")
        return PlanText(self.runner.explain_statement(self.sql(), chosen))

    # Giving it a name, or keeping its rows

    def create_or_replace_temp_view(self, name: str) -> None:
        """Make this a view for SQL; it runs each time that a statement reads it."""
        self.runner.register_view(name, self._frame(), replace=True)

    def create_temp_view(self, name: str) -> None:
        """Make this a view for SQL.

        Raises:
            CatalogError: something has that name already.
        """
        self.runner.register_view(name, self._frame(), replace=False)

    @property
    def write(self) -> DataFrameWriter:
        """Files or a table of the rows: `df.write.partition_by("day").parquet("out")`."""
        return DataFrameWriter(self._frame())

    def metrics(self) -> QueryMetrics:
        """What the last run took.

        Raises:
            OptionError: it has not run yet.
        """
        if self._known is not None:
            raise OptionError("This statement ran in the front end, which has no figures.")
        if self._metrics is None:
            raise OptionError("This query has not run to its end yet; run it first.")
        return self._metrics

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for any library that reads Arrow streams."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)
