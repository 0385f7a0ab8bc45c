"""Conversion of Arrow tables to rows of Python values, as DuckDB's own client returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import pyarrow as pa

from minishark.errors import DataError

_BATCH_ROWS = 1024
_DAYS_PER_MONTH = 30  # as DuckDB converts INTERVAL to timedelta


def python_rows(table: pa.Table, types: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The rows of a table, converted one batch at a time.

    Args:
        table: the rows.
        types: DuckDB's type of each column, or Arrow's if that is unknown.

    Raises:
        DataError: Python can't represent a value, such as a date in the year 10000.
    """
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        columns = [
            _values(column, type_, name)
            for column, type_, name in zip(batch.columns, types, table.column_names, strict=True)
        ]
        yield from zip(*columns, strict=True) if columns else ((),) * batch.num_rows


def _values(column: pa.Array, type_: str, name: str) -> list[Any]:
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:
        raise DataError(f"Python can't represent a value of column {name}: {error}") from error
    convert = _converter(column.type, type_)
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _converter(arrow: pa.DataType, type_: str) -> Callable[[Any], Any] | None:
    if type_ in ("HUGEINT", "UHUGEINT"):
        return int
    if type_ == "UUID":
        return UUID
    if pa.types.is_interval(arrow):
        return _timedelta
    if pa.types.is_map(arrow):
        return dict
    return None


def _timedelta(interval: pa.MonthDayNano) -> timedelta:
    months, days, nanoseconds = interval
    return timedelta(days=months * _DAYS_PER_MONTH + days, microseconds=nanoseconds // 1000)
