"""Text columns with few different values become Arrow dictionaries, which DuckDB reads faster.

A dictionary's values are sorted, without NULL, and its indices are of the smallest signed type that
counts them: partitions of a column that have the same values have the same dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import pyarrow as pa

from minishark.execution.streaming import even_batches

_ROWS_MIN = 8_192
_VALUES_MAX = 1_024
_NARROW_VALUES_MAX = 127
_HELD_BYTES = 2  # of a text while the others are looked at


def compact_batches(
    table: pa.Table, rows: int, most_bytes: int
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A table in batches of about so many rows, text columns with few values as dictionaries.

    Texts are looked up once, and their places are held until all values are known: of as many
    rows as `most_bytes` have room for. Those of further rows are looked up again.
    """
    texts = [i for i, field in enumerate(table.schema) if pa.types.is_string(field.type)]
    if table.num_rows < _ROWS_MIN or not texts:
        return table.schema, even_batches(table, rows)
    held = most_bytes // (_HELD_BYTES * len(texts))
    first, rest = table.slice(0, held), table.slice(held)
    dictionaries: dict[int, pa.Array] = {}
    for position in texts:
        found = _few_values(first.column(position), rest.column(position))
        if found is not None:
            encoded, dictionaries[position] = found
            first = first.set_column(position, table.schema.field(position).name, encoded)
    return first.schema, _batches(first, rest, rows, dictionaries)


def _batches(
    first: pa.Table, rest: pa.Table, rows: int, dictionaries: Mapping[int, pa.Array]
) -> Iterator[pa.RecordBatch]:
    yield from even_batches(first, rows)
    for batch in even_batches(rest, rows):
        for position, values in dictionaries.items():
            encoded = _encoded(batch.column(position).dictionary_encode(), values)
            batch = batch.set_column(position, batch.schema.field(position).name, encoded)  # noqa: PLW2901
        yield batch


def _few_values(
    first: pa.ChunkedArray, rest: pa.ChunkedArray
) -> tuple[pa.ChunkedArray, pa.Array] | None:
    """The first rows of a column as a dictionary, and the values of all; None if they are many."""
    if len(first[:_ROWS_MIN].unique()) > _VALUES_MAX:
        return None
    values = pa.array([], first.type)
    places = []
    for number, chunk in enumerate(chain(first.chunks, rest.chunks)):
        own = chunk.dictionary_encode()
        values = pa.concat_arrays([values, own.dictionary]).unique()
        if len(values) > _VALUES_MAX:
            return None
        if number < first.num_chunks:
            narrow = own.indices.cast(pa.int16())
            places.append(pa.DictionaryArray.from_arrays(narrow, own.dictionary))
    values = values.sort()
    return pa.chunked_array([_encoded(each, values) for each in places]), values


def _encoded(texts: pa.DictionaryArray, values: pa.Array) -> pa.DictionaryArray:
    """The same texts by their places among `values`."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    kind = pa.int8() if len(values) <= _NARROW_VALUES_MAX else pa.int16()
    places = pc.index_in(texts.dictionary, value_set=values).cast(kind)
    return pa.DictionaryArray.from_arrays(places.take(texts.indices), values)
