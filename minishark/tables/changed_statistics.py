"""A table's statistics after a change, without measuring its rows again. Pure.

Bounds stay bounds: rows that are added widen them, rows that are deleted leave them. Counts of
distinct values are estimates anyway; they grow as if the new values were as rare as the old ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import Schema
from minishark.worker.statistics import inferred

_Bounds: TypeAlias = tuple[str | None, str | None]
_GROWTH_MAX = 1.05  # while a table's rows change by less, its statistics need not
_SAMPLED_ROWS, _SLICE_ROWS = 1 << 17, 1 << 11  # of more rows, distinct values are inferred
# Types whose bounds Python compares and writes as DuckDB does.
_COMPARED = re.compile(r"U?(?:TINY|SMALL|BIG)?INT(?:EGER)?|DATE|VARCHAR|DECIMAL\(.*\)")


def changed_statistics(
    old: TableStatistics, schema: Schema, added: pa.Table | None, rows: int, size_bytes: int
) -> TableStatistics:
    """The statistics of a table's next version; `old` itself if they are still right.

    Args:
        old: those of the version before.
        schema: the table's columns.
        added: the rows that were added, if any.
        rows: how many the table has now.
        size_bytes: how large it is now.
    """
    columns = old.columns
    if added is not None and added.num_rows:
        columns = tuple(
            _with_values(before, column.type, added.column(i), old.rows)
            for i, (before, column) in enumerate(zip(columns, schema, strict=True))
        )
    is_near = rows <= _GROWTH_MAX * old.rows and old.rows <= _GROWTH_MAX * rows
    return old if is_near and columns == old.columns else TableStatistics(rows, size_bytes, columns)


def statistics_of(schema: Schema, rows: pa.Table, size_bytes: int) -> TableStatistics:
    """The statistics of a table that has these rows, in columns of types with a plain order."""
    none = tuple(ColumnStatistics(distinct=0, without_nulls=True) for _ in schema)
    empty = TableStatistics(0, size_bytes, none)
    return changed_statistics(empty, schema, rows, rows.num_rows, size_bytes)


def joined_statistics(
    old: TableStatistics, schema: Schema, added: TableStatistics
) -> TableStatistics:
    """The statistics of a table to which the rows of another one are added."""
    rows = old.rows + added.rows
    columns = tuple(
        _joined(before, new, column.type, old.rows, added.rows)
        for before, new, column in zip(old.columns, added.columns, schema, strict=True)
    )
    return TableStatistics(rows, old.bytes + added.bytes, columns)


def with_columns(
    old: TableStatistics,
    schema: Schema,
    positions: Sequence[int],
    changed: TableStatistics,
    *,
    rows: int,
    size_bytes: int,
) -> TableStatistics:
    """The statistics of a table in which columns were set.

    Args:
        old: those of the version before.
        schema: the table's columns.
        positions: the columns that were set.
        changed: statistics of these, of the partitions that were stored again.
        rows: how many the table has now.
        size_bytes: how large it is now.
    """
    columns, left = list(old.columns), max(0, rows - changed.rows)
    for position, new in zip(positions, changed.columns, strict=True):
        before, type_ = columns[position], schema[position].type
        columns[position] = _joined(before, new, type_, left, changed.rows) if left else new
    return TableStatistics(rows, size_bytes, tuple(columns))


def _joined(
    before: ColumnStatistics, new: ColumnStatistics, type_: str, rows: int, new_rows: int
) -> ColumnStatistics:
    """Statistics of a column of `rows` rows, and of `new_rows` besides."""
    if before.distinct is None or new.distinct is None:
        return ColumnStatistics()
    if not rows or before.null_fraction >= 1.0:
        bounds: _Bounds = new.minimum, new.maximum
    elif not new_rows or new.null_fraction >= 1.0:
        bounds = before.minimum, before.maximum
    else:
        bounds = _outer((before.minimum, before.maximum), (new.minimum, new.maximum), type_)
    nulls = (before.null_fraction * rows + new.null_fraction * new_rows) / max(1, rows + new_rows)
    # All values are new if there are new bounds, and as rare as the old ones; else no more differ.
    is_within = rows > 0 and bounds == (before.minimum, before.maximum)
    distinct = max(before.distinct, new.distinct)
    if not is_within:
        distinct += min(before.distinct, new.distinct)
    without_nulls = before.without_nulls and new.without_nulls
    return ColumnStatistics(nulls, distinct, *bounds, without_nulls=without_nulls)


def _outer(one: _Bounds, other: _Bounds, type_: str) -> _Bounds:
    """Bounds of the values of both; unknown where Python might compare them otherwise."""
    texts = (*one, *other)
    if _COMPARED.fullmatch(type_) is None or None in texts:
        return None, None
    try:
        values = [_read(text, type_) for text in texts if text is not None]
    except (ValueError, ArithmeticError):  # dates that Python does not have
        return None, None
    return _text(min(values)), _text(max(values))


def _with_values(
    before: ColumnStatistics, type_: str, values: pa.ChunkedArray, rows: int
) -> ColumnStatistics:
    """Statistics of a column of `rows` rows, and of `values` besides."""
    if before.distinct is None:  # values of this type are not measured
        return before
    is_empty = not rows or before.null_fraction >= 1.0
    nulls = before.null_fraction
    if is_empty or (values.null_count > 0) != (nulls > 0):
        nulls = (nulls * rows + values.null_count) / (rows + len(values))
    bounds = before.minimum, before.maximum
    if values.null_count < len(values) and (is_empty or before.minimum is not None):
        bounds = _widened(before, type_, values)
    distinct = before.distinct
    if bounds != (before.minimum, before.maximum) or is_empty:
        rare = 1.0 if is_empty else before.distinct / rows
        distinct += round(rare * _distinct(values))
    without_nulls = before.without_nulls and not values.null_count
    return ColumnStatistics(nulls, distinct, *bounds, without_nulls=without_nulls)


def _distinct(values: pa.ChunkedArray) -> int:
    """How many values differ: of many, as a sample tells."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    sample = values
    if len(values) > _SAMPLED_ROWS:
        starts = range(0, len(values), len(values) * _SLICE_ROWS // _SAMPLED_ROWS)
        chunks = [chunk for start in starts for chunk in values.slice(start, _SLICE_ROWS).chunks]
        sample = pa.chunked_array(chunks, values.type)
    filled = len(values) - values.null_count
    try:
        seen = int(pc.count_distinct(sample, mode="only_valid").as_py())
        return inferred(seen, len(sample) - sample.null_count, filled)
    except pa.ArrowNotImplementedError:
        return int(filled)


def _widened(before: ColumnStatistics, type_: str, values: pa.ChunkedArray) -> _Bounds:
    """Bounds of old and new values; unknown where Python might compare them otherwise."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    if _COMPARED.fullmatch(type_) is None:
        return None, None
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.decimal128(38, values.type.scale))
    try:
        extremes = pc.min_max(values).as_py()
        old = [_read(text, type_) for text in (before.minimum, before.maximum) if text is not None]
    except (ValueError, OverflowError):  # dates that Python does not have
        return None, None
    return _text(min([extremes["min"], *old[:1]])), _text(max([extremes["max"], *old[1:]]))


def _read(text: str, type_: str) -> Any:
    match type_.partition("(")[0]:
        case "VARCHAR":
            return text
        case "DATE":
            return date.fromisoformat(text)
        case _:
            return Decimal(text)


def _text(value: Any) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
