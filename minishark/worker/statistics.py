"""Measures a table's statistics: executors measure partitions, the front end merges.

A partition's measurements are one Arrow row that travels as it is: bounds keep their types, and
distinct counts are the state of DuckDB's `approx_count_distinct`, so merging is exact. Whole
numbers and dates are bounded without DuckDB, and that batch by batch (`batch_bounds`), which tells
where rows with some values may be.

Text is expensive to hash and to compare, and its bounds have no use: in a large partition, text is
measured in a sample (`text_sample`), without bounds, and distinct values are inferred with the
Good-Turing estimate that DuckDB uses for its own tables: of u distinct values in s sampled rows,
the share (u/s)^2 of them occurred once, so u + (u/s)^3 (n - s) among n rows.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Container, Sequence
from decimal import Decimal
from typing import TypeAlias

import duckdb
import pyarrow as pa

from minishark.compiler.sql.connection import aside
from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import quote
from minishark.worker.columns import as_numbers, integers, numbers_of
from minishark.worker.outputs import BATCH_ROWS

_Bounds: TypeAlias = tuple[str | None, str | None]

_SAMPLE_ONE_IN = 8
_SAMPLE_SLICE_ROWS = 2_048
_SAMPLE_ABOVE_ROWS = 131_072
_TEXT_TYPES = ("VARCHAR", "BLOB")
_UNMEASURED_PREFIXES = ("STRUCT(", "MAP(", "UNION(")
# The text of a BIGNUM can have megabytes, which take minutes to produce.
_UNMEASURED = ("JSON", "BIT", "VARIANT", "GEOMETRY", "BIGNUM", '"NULL"')
_PLAIN_TYPE = re.compile(r"U?(?:TINY|SMALL|BIG)?INT(?:EGER)?|DATE|VARCHAR|DECIMAL\(.*\)")
_PART = "statistics_parts"
_STATES = "statistics_states"
_OF_BATCHES = "lows", "highs"
_DATE = pa.date32()


warnings.filterwarnings("ignore", "Arrow output on a DB-API result", module=__name__)


def text_sample(table: pa.Table) -> pa.Table | None:
    """Every eighth slice of a large table, without a copy; None for a small one."""
    if table.num_rows <= _SAMPLE_ABOVE_ROWS:
        return None
    distance = _SAMPLE_SLICE_ROWS * _SAMPLE_ONE_IN
    starts = range(0, table.num_rows, distance)
    return pa.concat_tables([table.slice(start, _SAMPLE_SLICE_ROWS) for start in starts])


def partition_statistics(
    con: duckdb.DuckDBPyConnection,
    relation_name: str,
    rows: pa.Table,
    columns: Sequence[tuple[str, str]],
    sample_name: str | None = None,
) -> pa.Table:
    """One row of measurements of one partition, whose rows are registered at `con`, too.

    Text is measured in a sample of the partition's rows (`text_sample`), if there is one.
    """
    numbered = list(enumerate(columns))
    plain = {
        number: column
        for number, column in enumerate(rows.columns)
        if has_batch_bounds(column.type)
    }
    whole = ["count(*) AS rows", *_measures(numbered, text=False, plain=plain)]
    text = [
        "count(*) AS text_rows",
        *_measures(numbered, text=True, bounds=sample_name is None),
        f"{'true' if sample_name else 'false'} AS sampled",
    ]
    if sample_name is None:
        query = f"SELECT {', '.join(whole + text)} FROM {quote(relation_name)}"
    else:
        query = (
            f"FROM (SELECT {', '.join(whole)} FROM {quote(relation_name)}), "
            f"(SELECT {', '.join(text)} FROM {quote(sample_name)})"
        )
    measured: pa.Table = con.execute(query).to_arrow_table()
    for number, column in plain.items():
        for name, values in _plain_measures(column).items():
            measured = measured.append_column(f"{name}_{number}", values)
    return measured


def has_batch_bounds(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are bounded batch by batch."""
    return bool(pa.types.is_integer(kind)) or kind == _DATE


def batch_bounds(measured: pa.Table, number: int) -> tuple[pa.Array, pa.Array] | None:
    """The least and the largest value of a column in each `BATCH_ROWS` rows of a partition.

    None if they were not measured; NULL where there is no value.
    """
    if f"lows_{number}" not in measured.column_names:
        return None
    low, high = (measured.column(f"{name}_{number}").chunk(0).values for name in _OF_BATCHES)
    return low, high


def _plain_measures(column: pa.ChunkedArray) -> dict[str, pa.Array]:
    """The measurements of a column of whole numbers or dates, but for the distinct count."""
    starts = range(0, len(column), BATCH_ROWS)
    extremes = [_extremes(column.slice(start, BATCH_ROWS).chunks) for start in starts]
    found = {"count": integers([len(column) - column.null_count])}
    for place, (name, of_batches, best) in enumerate(
        (("minimum", _OF_BATCHES[0], min), ("maximum", _OF_BATCHES[1], max))
    ):
        values = [extreme[place] for extreme in extremes]
        filled = [value for value in values if value is not None]
        found[name] = numbers_of([best(filled) if filled else None], column.type)
        ends = numbers_of([0, len(values)], pa.int32())
        found[of_batches] = pa.ListArray.from_arrays(ends, numbers_of(values, column.type))
    return found


def _extremes(chunks: Sequence[pa.Array]) -> tuple[int | None, int | None]:
    found = []
    for chunk in chunks:
        filled = chunk.drop_null() if chunk.null_count else chunk
        if len(filled):
            numbers = as_numbers(filled.view(pa.int32()) if filled.type == _DATE else filled)
            found += [int(numbers.min()), int(numbers.max())]
    return (min(found), max(found)) if found else (None, None)


def merge_statistics(
    parts: Sequence[pa.Table],
    columns: Sequence[tuple[str, str]],
    size_bytes: int,
) -> TableStatistics:
    """A table's statistics from its partitions' measurements, of which there is at least one."""
    measured = pa.concat_tables(parts)
    rows, text_rows = (_sum(measured, name) for name in ("rows", "text_rows"))
    sampled = any(measured.column("sampled").to_pylist())
    numbers = [i for i, (_, type_name) in enumerate(columns) if is_measured(type_name)]
    bounds = _bounds(measured, [(i, columns[i][1]) for i in numbers])
    distinct = _distinct_counts(measured, numbers)
    merged = [ColumnStatistics() for _ in columns]
    for i in numbers:
        counts = _sum(measured, f"count_{i}"), distinct[i]
        is_sampled = sampled and columns[i][1] in _TEXT_TYPES
        seen = text_rows if columns[i][1] in _TEXT_TYPES else rows
        merged[i] = _column_statistics(*counts, bounds[i], seen, rows if is_sampled else None)
    return TableStatistics(rows, size_bytes, tuple(merged))


def _sum(measured: pa.Table, name: str) -> int:
    return sum(measured.column(name).to_pylist())


def _bounds(measured: pa.Table, columns: Sequence[tuple[int, str]]) -> dict[int, _Bounds]:
    """Minimum and maximum of columns, by their numbers, as DuckDB writes them.

    DuckDB compares and writes only what Python might do otherwise: it takes longer to bind this.
    """
    plain = {number: _plain_bounds(measured, number, type_name) for number, type_name in columns}
    by_column = {number: bounds for number, bounds in plain.items() if bounds is not None}
    others = [number for number in plain if number not in by_column]
    if others:
        items = [f"{f}({f}imum_{i})::VARCHAR" for i in others for f in ("min", "max")]
        sql = f"SELECT {', '.join(items)} FROM {_PART}"
        values: Sequence[str | None] = [None] * len(items)
        # TIMESTAMP_S holds what DuckDB can't write: that is an error of its own, not of the table.
        with contextlib.suppress(duckdb.InternalException), aside() as con:
            values = con.register(_PART, measured).execute(sql).fetchall()[0]
        by_column |= dict(zip(others, zip(values[::2], values[1::2], strict=True), strict=True))
    return by_column


def _plain_bounds(measured: pa.Table, number: int, type_name: str) -> _Bounds | None:
    """Bounds that Python compares and writes as DuckDB does; None if it might do so otherwise."""
    if not _PLAIN_TYPE.fullmatch(type_name):
        return None
    bounds = []
    for name, first in ("minimum", min), ("maximum", max):
        try:
            values = measured.column(f"{name}_{number}").to_pylist()
        except (ValueError, OverflowError):  # dates that Python does not have
            return None
        best = first((value for value in values if value is not None), default=None)
        is_decimal = isinstance(best, Decimal)
        bounds.append(None if best is None else f"{best:f}" if is_decimal else str(best))
    return bounds[0], bounds[1]


def _distinct_counts(measured: pa.Table, numbers: Sequence[int]) -> dict[int, int]:
    """The distinct count of each measured column, by its number.

    All states in one column, those of a column after those of the one before: to bind a call for
    each would take milliseconds a column.
    """
    if not numbers or not any(measured.column("rows").to_pylist()):
        return dict.fromkeys(numbers, 0)
    chunks = [chunk for n in numbers for chunk in measured.column(f"distinct_{n}").chunks]
    owners = integers([n for n in numbers for _ in range(measured.num_rows)])
    states = pa.table({"owner": owners, "state": pa.chunked_array(chunks)})
    with aside() as con:
        counted = con.register(_STATES, states).execute(
            # A state is the same for every argument type.
            "SELECT owner, finalize(combine_aggr("
            "to_aggregate_state(state, 'approx_count_distinct', ['BIGINT']))) "
            f"FROM {_STATES} GROUP BY owner"
        )
        return dict(counted.fetchall())


def is_measured(type_name: str) -> bool:
    """Whether values of the type are counted and compared; nested and opaque types are not."""
    nested = type_name.endswith("]") or type_name.startswith(_UNMEASURED_PREFIXES)
    return not nested and type_name not in _UNMEASURED


def _measures(
    numbered: Sequence[tuple[int, tuple[str, str]]],
    *,
    text: bool,
    bounds: bool = True,
    plain: Container[int] = (),
) -> list[str]:
    """The measurements of the columns that are text, or of those that are not.

    Of those that are `plain`, only the distinct count.
    """
    return [
        f"{aggregate} AS {label}_{number}"
        for number, (name, type_name) in numbered
        if is_measured(type_name) and (type_name in _TEXT_TYPES) == text
        for label, aggregate in (
            ("count", f"count({quote(name)})"),
            ("minimum", f"min({quote(name)})" if bounds else f"NULL::{type_name}"),
            ("maximum", f"max({quote(name)})" if bounds else f"NULL::{type_name}"),
            ("distinct", f"approx_count_distinct({quote(name)}) EXPORT_STATE"),
        )
        if label == "distinct" or number not in plain
    ]


def _column_statistics(
    count: int, distinct: int, bounds: _Bounds, seen: int, total: int | None
) -> ColumnStatistics:
    """Statistics of a column with `count` values that are not NULL in the rows `seen`.

    `total` are all rows, if only a sample was measured.
    """
    distinct = min(distinct, count)
    null_fraction = 1.0 - count / seen if seen else 0.0
    if total is not None:
        values = round(total * (1.0 - null_fraction))
        return ColumnStatistics(null_fraction, inferred(distinct, count, values))
    return ColumnStatistics(null_fraction, distinct, *bounds, without_nulls=count == seen)


def inferred(distinct: int, sampled: int, total: int) -> int:
    """Distinct values among `total`, of which `sampled` have `distinct`; see the module."""
    if sampled == 0:
        return 0
    return min(total, int(distinct + (distinct / sampled) ** 3 * (total - sampled)))
