"""Dictionary codes of text columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from minishark.compiler.hints import DictionaryCodes
from minishark.worker.columns import integers, no_texts


@dataclass(frozen=True, slots=True)
class CodedInputs:
    """The tables that a fragment reads, by name."""

    # Inputs with their additional columns of codes, and the dictionaries of these codes.
    tables: Mapping[str, pa.Table]
    # The names of those that are not stored tables as they are: outputs of stages, and what was
    # computed from inputs.
    new: frozenset[str] = frozenset()


def with_codes(
    inputs: Mapping[str, pa.Table],
    codes: Iterable[DictionaryCodes],
    new: frozenset[str] = frozenset(),
) -> CodedInputs:
    """Inputs, of which some are `new`, with the dictionary codes that a fragment reads.

    Nothing is copied where all partitions of a table have the same dictionary, or a longer one that
    begins with it, as rows have that were added later.
    """
    tables = dict(inputs)
    for code in codes:
        table, lists = tables[code.input], {}
        for name, column in code.columns:
            text = table.column(column)
            if not _have_same_codes(text):
                text, new = _with_one_dictionary(text), new | {code.input}
            codes_of_text, lists[column] = _codes_and_values(text)
            table = table.append_column(name, codes_of_text)
        tables[code.input] = table
        tables[code.relation] = pa.table(lists)
        if code.input in new:
            new |= {code.relation}
    return CodedInputs(tables, new)


def _have_same_codes(text: pa.ChunkedArray) -> bool:
    """Whether a code stands for the same text in all chunks."""
    if not pa.types.is_dictionary(text.type):
        return False
    if not text.num_chunks:
        return True
    longest = _longest_dictionary(text)
    return all(c.dictionary == longest[: len(c.dictionary)] for c in text.chunks)


def _longest_dictionary(text: pa.ChunkedArray) -> pa.Array:
    return max((chunk.dictionary for chunk in text.chunks), key=len)


def _with_one_dictionary(text: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(text.type):
        return text.dictionary_encode()
    # Together they may have more values than their narrow codes can count.
    return text.cast(pa.dictionary(pa.int32(), text.type.value_type)).unify_dictionaries()


def _codes_and_values(text: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ListArray]:
    """The codes, which are NULL for NULL, and one row with the list of values."""
    if not text.num_chunks:
        nothing = pa.chunked_array([], text.type.index_type)
        return nothing, _listed(no_texts().cast(text.type.value_type))
    values = _longest_dictionary(text)
    codes = pa.chunked_array([chunk.indices for chunk in text.chunks])
    return codes, _listed(values)


def _listed(values: pa.Array) -> pa.ListArray:
    """One row with the list of these values."""
    return pa.ListArray.from_arrays(integers((0, len(values))).cast(pa.int32()), values)
