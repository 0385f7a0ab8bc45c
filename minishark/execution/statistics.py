"""Measures a table's statistics: each executor its partitions, in one query; the front end merges.

A partition's measurements are one Arrow row that travels as it is: bounds keep their types, and
distinct counts are the state of DuckDB's `approx_count_distinct`, so merging is exact.

Text is dear to hash and to compare, and its bounds serve nobody: of a large partition, text is
measured in a sample (`text_sample`), without bounds, and distinct values are inferred with the
Good-Turing estimate that DuckDB uses for its own tables: of u distinct values in s sampled rows,
the share (u/s)^2 of them occurred once, so u + (u/s)^3 (n - s) among n rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from minishark.expressions import quote
from minishark.sql.connection import ConnectionUse
from minishark.statistics import ColumnStatistics, TableStatistics

_SAMPLE_ONE_IN = 8
_SAMPLE_SLICE_ROWS = 2_048
_SAMPLE_ABOVE_ROWS = 131_072
_TEXT_TYPES = ("VARCHAR", "BLOB")
_UNMEASURED_PREFIXES = ("STRUCT(", "MAP(", "UNION(")
# Of text for a BIGNUM there can be megabytes, which take minutes to make.
_UNMEASURED = ("JSON", "BIT", "VARIANT", "GEOMETRY", "BIGNUM", '"NULL"')
_PART = "statistics_parts"
_STATES = "statistics_states"


def text_sample(table: pa.Table) -> pa.Table | None:
    """Every eighth slice of a large table, without a copy; None where the whole is small."""
    if table.num_rows <= _SAMPLE_ABOVE_ROWS:
        return None
    distance = _SAMPLE_SLICE_ROWS * _SAMPLE_ONE_IN
    starts = range(0, table.num_rows, distance)
    return pa.concat_tables([table.slice(start, _SAMPLE_SLICE_ROWS) for start in starts])


def partition_statistics(
    con: duckdb.DuckDBPyConnection,
    relation_name: str,
    columns: Sequence[tuple[str, str]],
    sample_name: str | None = None,
) -> pa.Table:
    """One row of measurements of one partition.

    Args:
        con: a connection where the relations are registered.
        relation_name: the partition.
        columns: name and DuckDB type of each column.
        sample_name: a sample of the partition's rows (`text_sample`), which text is measured in;
            None measures it in the partition.
    """
    numbered = list(enumerate(columns))
    whole = ["count(*) AS rows", *_measures(numbered, text=False)]
    text = [
        f"{'true' if sample_name else 'false'} AS sampled",
        "count(*) AS text_rows",
        *_measures(numbered, text=True, bounds=sample_name is None),
    ]
    if sample_name is None:
        constant, *aggregates = text
        query = f"SELECT {', '.join([*whole, *aggregates, constant])} FROM {quote(relation_name)}"
    else:
        query = (
            f"FROM (SELECT {', '.join(whole)} FROM {quote(relation_name)}), "
            f"(SELECT {', '.join(text[1:])}, {text[0]} FROM {quote(sample_name)})"
        )
    return con.sql(query).to_arrow_table()


def merge_statistics(
    con: duckdb.DuckDBPyConnection,
    parts: Sequence[pa.Table],
    columns: Sequence[tuple[str, str]],
    size_bytes: int,
) -> TableStatistics:
    """A table's statistics from its partitions' measurements.

    Args:
        con: any connection.
        parts: what `partition_statistics` gave for each partition; at least one.
        columns: as it was given there.
        size_bytes: the table's size.
    """
    measured = pa.concat_tables(parts)
    con.register(_PART, measured)
    try:
        items = ["sum(rows)::BIGINT", "sum(text_rows)::BIGINT", "bool_or(sampled)"]
        for number, (_, type_name) in enumerate(columns):
            items += _merged(number) if is_measured(type_name) else ["NULL"] * 3
        with ConnectionUse(con):
            values = con.execute(f"SELECT {', '.join(items)} FROM {_PART}").fetchall()[0]
    finally:
        con.unregister(_PART)
    numbers = [i for i, (_, type_name) in enumerate(columns) if is_measured(type_name)]
    distinct = _distinct_counts(con, measured, numbers)
    rows, text_rows, sampled = values[:3]
    merged = tuple(
        _column_statistics(
            type_name,
            (*values[3 + 3 * number : 6 + 3 * number], distinct.get(number)),
            rows,
            text_rows,
            sampled,
        )
        for number, (_, type_name) in enumerate(columns)
    )
    return TableStatistics(rows, size_bytes, merged)


def _distinct_counts(
    con: duckdb.DuckDBPyConnection, measured: pa.Table, numbers: Sequence[int]
) -> dict[int, int]:
    """The distinct count of each measured column, by its number.

    All states in one column, those of a column after those of the one before: to bind a call for
    each would take milliseconds a column.
    """
    if not numbers:
        return {}
    chunks = [chunk for n in numbers for chunk in measured.column(f"distinct_{n}").chunks]
    con.register(_STATES, pa.table({"state": pa.chunked_array(chunks)}))
    try:
        with ConnectionUse(con):
            counted = con.execute(
                # A state is the same for every argument type.
                "SELECT (place - 1) // $1, finalize(combine_aggr("
                "to_aggregate_state(state, 'approx_count_distinct', ['BIGINT']))) "
                f"FROM (SELECT state, row_number() OVER () AS place FROM {_STATES}) GROUP BY 1",
                [measured.num_rows],
            ).fetchall()
        return {numbers[place]: count for place, count in counted}
    finally:
        con.unregister(_STATES)


def is_measured(type_name: str) -> bool:
    """Whether values of the type are counted and compared; nested and opaque types are not."""
    nested = type_name.endswith("]") or type_name.startswith(_UNMEASURED_PREFIXES)
    return not nested and type_name not in _UNMEASURED


def _measures(
    numbered: Sequence[tuple[int, tuple[str, str]]], *, text: bool, bounds: bool = True
) -> list[str]:
    """The measurements of the columns that are text, or of those that are not."""
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
    ]


def _merged(number: int) -> list[str]:
    return [
        f"sum(count_{number})::BIGINT",
        f"min(minimum_{number})::VARCHAR",
        f"max(maximum_{number})::VARCHAR",
    ]


def _column_statistics(
    type_name: str, values: Sequence[object], rows: int, text_rows: int, sampled: bool
) -> ColumnStatistics:
    count, minimum, maximum, distinct = values
    if distinct is None:
        return ColumnStatistics()
    assert isinstance(count, int)
    assert isinstance(distinct, int)
    is_text = type_name in _TEXT_TYPES
    seen = text_rows if is_text else rows
    distinct = min(distinct, count)
    null_fraction = 1.0 - count / seen if seen else 0.0
    if is_text and sampled:
        total = round(rows * (1.0 - null_fraction))
        return ColumnStatistics(null_fraction, _inferred(distinct, count, total))
    low, high = (str(bound) if bound is not None else None for bound in (minimum, maximum))
    return ColumnStatistics(null_fraction, distinct, low, high)


def _inferred(distinct: int, sampled: int, total: int) -> int:
    """Distinct values among `total`, of which `sampled` have `distinct`; see the module."""
    if sampled == 0:
        return 0
    return min(total, int(distinct + (distinct / sampled) ** 3 * (total - sampled)))
