"""Plain DuckDB over the same Parquet files: the expected answers, and times to compare with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Self

import duckdb
import pyarrow as pa

from minishark.model.expressions import quote, quote_text
from minishark.query.answers import output_order

_INTERRUPT_S = 0.05


class Reference:
    """A DuckDB database with the tables as views over their files; a context manager.

    Queries run on a thread: DuckDB notices signals late or not at all while it runs on the main
    one, and here Ctrl-C interrupts the query at once.
    """

    def __init__(self, tables: Mapping[str, str], threads: int) -> None:
        self._connection = duckdb.connect(config={"threads": threads})
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._running: Future[tuple[pa.Table, float]] | None = None
        create_views(self._connection, tables)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A query that has not started yet clears the interrupt: repeat it.
        while self._running is not None and not wait([self._running], _INTERRUPT_S).done:
            self._connection.interrupt()
        self._pool.shutdown()
        self._connection.close()

    def run(self, text: str) -> tuple[pa.Table, float]:
        self._running = self._pool.submit(self._timed, text)
        return self._running.result()

    def order(self, text: str, answer: pa.Table) -> tuple[int, ...]:
        """The indexes of the columns that a query orders by; see `output_order`."""
        return output_order(self._connection, text, answer.column_names)

    def _timed(self, text: str) -> tuple[pa.Table, float]:
        start = time.perf_counter()
        answer = self._connection.sql(text).to_arrow_table()
        return answer, time.perf_counter() - start


def create_views(connection: duckdb.DuckDBPyConnection, tables: Mapping[str, str]) -> None:
    for name, path in tables.items():
        connection.execute(f"CREATE VIEW {quote(name)} AS FROM {quote_text(path)}")
