"""What runs or describes a query."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from minishark.dataframe.lazy_query import LazyQuery, wide_integers
from minishark.dataframe.pandas_frames import check_backend, pandas_frame
from minishark.dataframe.row import Row, rows_of
from minishark.dataframe.runtime import Cancellation
from minishark.dataframe.show import PlanText, columns_html, table_html
from minishark.errors import MinisharkError, OptionError, QueryCancelledError, UnsupportedError

if TYPE_CHECKING:
    import pandas as pd

_HTML_ROWS = 20
_HTML_WAIT_S = 2.0
_SHOWN_WIDTH = 20
_PYSPARK_MODES: dict[str | bool, str] = {
    True: "all",
    False: "physical",
    "simple": "physical",
    "extended": "all",
    "formatted": "all",
}
EXPLAIN_MODES = ("all", "logical", "physical", "stages", "sql", "analyze")


def to_arrow(query: LazyQuery, *, verify: bool = False) -> pa.Table:
    answer = run(query)
    if (verify or query.verified) and query.is_distributed:
        query.runtime.verify(query.sql(), answer)
    return answer


def run(
    query: LazyQuery, cancellation: Cancellation | None = None, *, lossless: bool = False
) -> pa.Table:
    if query.local_rows is not None:
        return query.local_rows
    if query.explain:
        return query.explanation()
    answer = query.runtime.run(query.sql(), cancellation=cancellation, lossless=lossless)
    query.metrics = answer.metrics
    return answer.table


def to_pandas(query: LazyQuery, backend: str) -> pd.DataFrame:
    check_backend(backend)
    if query.verified:
        to_arrow(query)
    return pandas_frame(run(query, lossless=backend == "numpy"), query.dtypes(), backend)


def to_dataset(query: LazyQuery, library: str) -> Any:
    rows = query.sql() if query.is_distributed else run(query)
    return query.runtime.to_dataset(rows, library)


def submit(query: LazyQuery, name: str, terms: Mapping[str, Any]) -> Any:
    """Have a query run as a job of the cluster."""
    if query.local_rows is not None or query.explain:
        raise UnsupportedError(
            "A job can't carry rows that this program has already: only queries are submitted."
        )
    return query.runtime.submit_query(query.sql(), name, terms)


async def to_arrow_async(query: LazyQuery) -> pa.Table:
    """Run a query on another thread; cancelling the asyncio task cancels the query."""
    import asyncio  # noqa: PLC0415 - slow to import, and most programs don't use it

    cancellation = Cancellation()
    running = asyncio.get_running_loop().run_in_executor(None, run, query, cancellation)
    try:
        # Without the shield, the cancelled future would forget the thread, which still runs.
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cancellation.cancel()
        await asyncio.wait([running])
        running.exception()  # retrieved, or asyncio logs the QueryCancelledError
        raise


def batches(query: LazyQuery) -> Iterator[pa.RecordBatch]:
    if not query.is_distributed:
        yield from run(query).to_batches()
        return
    reader, query.metrics = query.runtime.stream(query.sql())
    yield from reader


def rows(query: LazyQuery, tables: Iterable[pa.Table]) -> Iterator[Row]:
    integers, blob = wide_integers(query), query.runtime.dialect.blob
    for table in tables:
        yield from rows_of(table, integers, blob=blob)


def shown(query: LazyQuery, count: Any, *, truncate: bool | int, vertical: bool) -> str:
    if not isinstance(count, int) or count < 0:
        raise OptionError(f"show() takes a whole number of rows from 0, not {count!r}.")
    # One more row tells whether there are more.
    first = first_rows(query, count + 1)
    if query.explain:
        return str(first.column(0)[0])
    width = _SHOWN_WIDTH if truncate is True else int(truncate)
    return query.runtime.dialect.table_text(first, count, width=width, vertical=vertical)


def html(query: LazyQuery) -> str:
    if query.explain:
        return f"<pre>{escape(str(run(query).column(0)[0]))}</pre>"
    if query.local_rows is not None:
        return table_html(query.local_rows, query.dtypes(), _HTML_ROWS)
    cancellation = Cancellation()
    timer = threading.Timer(_HTML_WAIT_S, cancellation.cancel)
    timer.daemon = True
    timer.start()
    try:
        first = run(_first(query, _HTML_ROWS + 1), cancellation)
    except QueryCancelledError:
        return columns_html(query.dtypes(), f"not run: it takes more than {_HTML_WAIT_S:g} s")
    except MinisharkError as error:
        return columns_html(query.dtypes(), str(error))
    finally:
        timer.cancel()
    return table_html(first, query.dtypes(), _HTML_ROWS)


def first_rows(query: LazyQuery, count: int) -> pa.Table:
    # Rows that are here already are all handed out: they are not counted as a query of their own.
    return run(_first(query, count)) if query.is_distributed else run(query)


def _first(query: LazyQuery, count: int) -> LazyQuery:
    return query.derived(query.to_select().limited(count))


def explain(query: LazyQuery, mode: str | bool) -> PlanText:
    chosen = _PYSPARK_MODES.get(mode, str(mode))
    if chosen not in EXPLAIN_MODES:
        raise OptionError(f"Unknown mode {mode!r}; the modes are {', '.join(EXPLAIN_MODES)}.")
    if query.local_rows is not None:
        raise OptionError("Only queries that run on the cluster can be explained.")
    return PlanText(query.runtime.explain(query.sql(), mode=chosen))
