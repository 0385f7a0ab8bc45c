"""Plain DuckDB over the same Parquet files: what is right, and what to compare times with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

import duckdb
import pyarrow as pa

from minishark.answers.ordering import output_order
from minishark.tpch.tables import create_views


class Reference:
    """A DuckDB of its own, with the tables as views over their files; a context manager.

    Queries run in a thread, since DuckDB sees a signal late or not at all while it runs in the
    main one: here Ctrl-C interrupts the query at once.
    """

    def __init__(self, tables: Mapping[str, str], threads: int) -> None:
        self._connection = duckdb.connect(config={"threads": threads})
        self._pool = ThreadPoolExecutor(max_workers=1)
        create_views(self._connection, tables)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._connection.interrupt()
        self._pool.shutdown()
        self._connection.close()

    def run(self, text: str) -> tuple[pa.Table, float]:
        """A query's answer, and how long it took in seconds."""
        return self._pool.submit(self._timed, text).result()

    def order(self, text: str, answer: pa.Table) -> tuple[int, ...]:
        """The columns of its answer that a query orders by; see `output_order`."""
        return output_order(self._connection, text, answer.column_names)

    def _timed(self, text: str) -> tuple[pa.Table, float]:
        start = time.perf_counter()
        answer = self._connection.sql(text).to_arrow_table()
        return answer, time.perf_counter() - start
