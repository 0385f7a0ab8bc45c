"""What makes a DataFrame run, and what shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from minishark.cluster.query import QueryMetrics
from minishark.dataframe.row import Row, rows_of
from minishark.errors import OptionError
from minishark.expressions import Schema

if TYPE_CHECKING:
    import pandas as pd

    from minishark.dataframe.frame import DataFrame

EXPLAIN_MODES = ("all", "logical", "physical", "stages", "sql", "analyze")


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement and what running it took."""

    table: pa.Table
    metrics: QueryMetrics


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

    def run_statement(self, sql: str) -> Answer:
        """Run a SELECT."""
        ...

    def explain_statement(self, sql: str, mode: str) -> str:
        """Describe how a SELECT runs."""
        ...

    def keep_rows(self, data: Any) -> KeptRows:
        """Load rows into the cluster, for as long as a DataFrame needs them."""
        ...


class Actions:
    """The methods of a DataFrame that run it."""

    if TYPE_CHECKING:
        runner: Runner
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

        def counted(self) -> DataFrame:
            """The number of rows as a DataFrame."""
            ...

    @property
    def is_known(self) -> bool:
        """Whether the rows are here already: of statements that are no queries on the cluster."""
        return self._known is not None

    def to_arrow(self) -> pa.Table:
        """Run the statement; its rows as an Arrow table.

        Raises:
            ExecutionError: the statement failed while it ran, for example on a division by zero.
            ClusterError: the cluster is gone.
        """
        if self._known is not None:
            return self._known
        if self._explain:
            mode = "analyze" if self._explain == "analyze" else "all"
            return pa.table({"explain_value": [self.explain(mode)]})
        answer = self.runner.run_statement(self.sql())
        self._metrics = answer.metrics
        return answer.table

    def to_pandas(self) -> pd.DataFrame:
        """Run the statement; its rows as a pandas frame (needs pandas)."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Run the statement; its rows as a polars frame (needs polars)."""
        import polars as pl  # noqa: PLC0415 - an optional dependency

        return pl.from_arrow(self.to_arrow())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the statement; its rows as Arrow record batches."""
        yield from self.to_arrow().to_batches()

    def to_local_iterator(self) -> Iterator[Row]:
        """Run the statement; its rows one after another."""
        yield from rows_of(self.to_arrow(), self._wholes())

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

    def show(self, rows_max: int = 20) -> None:
        """Run the statement, and print its first rows as a table."""
        from rich.console import Console  # noqa: PLC0415 - slow to import

        from minishark.display import print_table  # noqa: PLC0415

        print_table(self.to_arrow(), Console(), rows_max=rows_max)

    def explain(self, mode: str = "all") -> str:
        """How the statement runs, as text.

        Args:
            mode: "logical", "physical", "stages", "sql" (the stages with their fragments), "all"
                (the first three), or "analyze" (runs it, and adds figures per stage).

        Raises:
            OptionError: there is no such mode.
        """
        if mode not in EXPLAIN_MODES:
            raise OptionError(f"Unknown mode {mode!r}; the modes are {', '.join(EXPLAIN_MODES)}.")
        if self._known is not None:
            raise OptionError("Only queries that run on the cluster can be explained.")
        return self.runner.explain_statement(self.sql(), mode)

    def metrics(self) -> QueryMetrics:
        """What the last run took.

        Raises:
            OptionError: it has not run yet.
        """
        if self._known is not None:
            raise OptionError("This statement ran in the front end, which has no figures.")
        if self._metrics is None:
            raise OptionError("This DataFrame has not run yet; call to_arrow() first.")
        return self._metrics

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for any library that reads Arrow streams."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)
