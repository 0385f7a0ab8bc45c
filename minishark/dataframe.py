"""DataFrame: a statement that runs when its rows are asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from minishark.cluster.query import QueryMetrics
from minishark.errors import OptionError
from minishark.expressions import Schema

if TYPE_CHECKING:
    import pandas as pd

EXPLAIN_MODES = ("all", "logical", "physical", "stages", "sql", "analyze")


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a statement and what running it took."""

    table: pa.Table
    metrics: QueryMetrics


class Runner(Protocol):
    """What runs statements: a session."""

    def run_statement(self, sql: str) -> Answer:
        """Run a SELECT."""
        ...

    def explain_statement(self, sql: str, mode: str) -> str:
        """Describe how a SELECT runs."""
        ...


class DataFrame:
    """A lazy statement; it runs again for each action, and its rows are not kept.

    Examples:
        >>> session.sql("SELECT 42 AS answer").to_arrow().to_pylist()
        [{'answer': 42}]
    """

    def __init__(
        self,
        runner: Runner,
        sql: str,
        schema: Schema,
        explain: str | None = None,
        known: pa.Table | None = None,
    ) -> None:
        self._runner = runner
        self._sql = sql
        self._schema = schema
        self._explain = explain
        self._known = known
        self._metrics: QueryMetrics | None = None

    @property
    def is_known(self) -> bool:
        """Whether the rows are here already: of statements that are no queries on the cluster."""
        return self._known is not None

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        if self._known is not None:
            return list(self._known.column_names)
        return ["explain_value"] if self._explain else [column.name for column in self._schema]

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Name and DuckDB type of each column (Arrow type, for rows that are known already)."""
        if self._known is not None:
            return [(field.name, str(field.type)) for field in self._known.schema]
        if self._explain:
            return [("explain_value", "VARCHAR")]
        return [(column.name, column.type) for column in self._schema]

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
        answer = self._runner.run_statement(self._sql)
        self._metrics = answer.metrics
        return answer.table

    def to_pandas(self) -> pd.DataFrame:
        """Run the statement; its rows as a pandas frame (needs pandas)."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Run the statement; its rows as a polars frame (needs polars)."""
        import polars as pl  # noqa: PLC0415 - an optional dependency

        return pl.from_arrow(self.to_arrow())

    def collect(self) -> list[dict[str, Any]]:
        """Run the statement; its rows as a list of dictionaries."""
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the statement; its rows as Arrow record batches."""
        yield from self.to_arrow().to_batches()

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
        return self._runner.explain_statement(self._sql, mode)

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
