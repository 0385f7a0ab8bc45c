"""Text as the numbers that it has in the dictionaries which it is stored with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from minishark.execution.task import InputCodes


def with_codes(
    inputs: Mapping[str, pa.Table], codes: Iterable[InputCodes]
) -> Mapping[str, pa.Table]:
    """Inputs with columns of such numbers, and the relations that tell which text they stand for.

    Nothing is copied where all partitions of a table have the same dictionary.
    """
    found = dict(inputs)
    for each in codes:
        table, lists = found[each.name], {}
        for name, column in each.columns:
            numbers, values = _coded(table.column(column))
            table = table.append_column(name, numbers)
            lists[column] = pa.ListArray.from_arrays([0, len(values)], values)
        found[each.name] = table
        found[each.relation] = pa.table(lists)
    return found


def _coded(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.Array]:
    """The numbers of a text column's values, and these; NULL has no number."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    elif any(chunk.dictionary != column.chunk(0).dictionary for chunk in column.chunks):
        # Together they may have more values than their numbers were made for.
        column = column.cast(pa.dictionary(pa.int32(), column.type.value_type))
        column = column.unify_dictionaries()
    if not column.num_chunks:
        return pa.chunked_array([], column.type.index_type), pa.array([], column.type.value_type)
    numbers = pa.chunked_array([chunk.indices for chunk in column.chunks])
    return numbers, column.chunk(0).dictionary
