"""Text as the numbers that it has in the dictionaries which it is stored with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from minishark.compiler.stages.inputs import InputCodes


@dataclass(frozen=True, slots=True)
class CodedInputs:
    """What a fragment reads, by name.

    Attributes:
        tables: inputs with the columns of numbers that they get, and the relations that tell which
            text these stand for.
        are_mapped: whether it all lies in the inputs' files; else there are numbers in memory.
    """

    tables: Mapping[str, pa.Table]
    are_mapped: bool


def with_codes(inputs: Mapping[str, pa.Table], codes: Iterable[InputCodes]) -> CodedInputs:
    """Inputs with the numbers of text that a fragment wants.

    Nothing is copied where all partitions of a table have the same dictionary.
    """
    found = dict(inputs)
    are_mapped = True
    for each in codes:
        table, lists = found[each.name], {}
        for name, column in each.columns:
            text = table.column(column)
            if not _has_one_dictionary(text):
                text, are_mapped = _with_one_dictionary(text), False
            numbers, lists[column] = _numbers(text)
            table = table.append_column(name, numbers)
        found[each.name] = table
        found[each.relation] = pa.table(lists)
    return CodedInputs(found, are_mapped)


def _has_one_dictionary(text: pa.ChunkedArray) -> bool:
    return pa.types.is_dictionary(text.type) and all(
        chunk.dictionary == text.chunk(0).dictionary for chunk in text.chunks
    )


def _with_one_dictionary(text: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(text.type):
        return text.dictionary_encode()
    # Together they may have more values than their numbers were made for.
    return text.cast(pa.dictionary(pa.int32(), text.type.value_type)).unify_dictionaries()


def _numbers(text: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ListArray]:
    """The numbers of the values, of which NULL has none, and a row with the values as a list."""
    if not text.num_chunks:
        nothing = pa.chunked_array([], text.type.index_type)
        return nothing, pa.array([[]], pa.list_(text.type.value_type))
    values = text.chunk(0).dictionary
    numbers = pa.chunked_array([chunk.indices for chunk in text.chunks])
    return numbers, pa.ListArray.from_arrays([0, len(values)], values)
