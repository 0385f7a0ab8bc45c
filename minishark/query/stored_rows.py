"""Columns of a stored table as a query's rows: its batches as they are, without a task.

Tasks would copy them, and nothing would be read before the last one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from minishark.compiler.logical.operators import Project, Scan
from minishark.compiler.logical.plan import LogicalPlan
from minishark.expressions import ColumnRef
from minishark.query.inputs import partition_slices
from minishark.query.planner import QueryPlan
from minishark.worker.store import InputMissingError, Store

_Convert = Callable[[pa.Array], pa.Array]


def stored_rows(
    plan: QueryPlan, store: Store, schema: Callable[[], pa.Schema]
) -> pa.RecordBatchReader | None:
    """The rows of a plan that only chooses columns of a stored table; None for all others.

    Args:
        plan: the plan.
        store: where this process reads stored files; all of them must be on its host.
        schema: gives the query's columns, in the types in which users get them.

    Returns:
        The rows; also None if a file is missing, or has values in other types that only DuckDB
        converts.
    """
    chosen = _chosen(plan.logical)
    table = None if chosen is None else plan.tables.get(chosen[0].lower())
    if chosen is None or table is None or table.is_source or table.name.lower() in plan.sources:
        return None
    names, wanted = [name.lower() for name in (c.name for c in table.schema)], schema()
    positions = [names.index(name.lower()) for name in chosen[1]]
    parts: list[tuple[pa.Table, Sequence[_Convert]]] = []
    for item in (item for each in table.partitions for item in partition_slices(each)):
        try:
            stored = store.read((item,))
        except InputMissingError:
            return None
        part = stored.select(positions)
        found = [_conversion(a, b) for a, b in zip(part.schema.types, wanted.types, strict=True)]
        conversions = [each for each in found if each is not None]
        if len(conversions) < len(found):
            return None
        parts.append((part, conversions))
    parts.reverse()
    return pa.RecordBatchReader.from_batches(wanted, _drained(parts, wanted))


def _chosen(plan: LogicalPlan) -> tuple[str, tuple[str, ...]] | None:
    """The table, and the names of its columns, if a plan does nothing but choose some."""
    match plan.operator:
        case Scan(table=table, columns=columns):
            names = [name for name in columns if name is not None]
            return (table, tuple(names)) if names and len(names) == len(columns) else None
        case Project(outputs=outputs):
            below = _chosen(plan.children[0])
            positions = [each.index for each in outputs if isinstance(each, ColumnRef)]
            if below is None or len(positions) < len(outputs):
                return None
            return below[0], tuple(below[1][i] for i in positions)
        case _:
            return None


def _conversion(stored: pa.DataType, wanted: pa.DataType) -> _Convert | None:
    """How to get values of one type from those of another; None if only DuckDB can."""
    if pa.types.is_dictionary(wanted):  # each partition may have other values
        return None
    if stored == wanted:
        return _unchanged
    if pa.types.is_dictionary(stored) and stored.value_type == wanted:
        return _decoded
    if isinstance(stored, pa.Bool8Type) and pa.types.is_boolean(wanted):
        return _truth
    is_short = pa.types.is_decimal32(stored) or pa.types.is_decimal64(stored)
    if is_short and wanted == pa.decimal128(stored.precision, stored.scale):
        return partial(_cast, to=wanted)
    return None


def _unchanged(values: pa.Array) -> pa.Array:
    return values


def _decoded(values: pa.Array) -> pa.Array:
    return values.dictionary_decode()


def _truth(values: pa.Array) -> pa.Array:
    return values.storage.cast(pa.bool_())


def _cast(values: pa.Array, to: pa.DataType) -> pa.Array:
    return values.cast(to)


def _drained(
    parts: list[tuple[pa.Table, Sequence[_Convert]]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    while parts:
        table, conversions = parts.pop()
        for batch in table.to_batches():
            columns = [
                convert(column) for convert, column in zip(conversions, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
