"""Text columns with few distinct values become Arrow dictionaries, which DuckDB reads faster.

A dictionary's values are sorted, without NULL, and its indices have the smallest signed type that
fits: partitions of a column with the same values have the same dictionary.

A file has one dictionary per column, and all values are known only when all rows were seen. But
mostly the first rows contain them all: the rows that follow are encoded with these while they have
no new values (a part). If there are several parts, the last one's dictionaries have all values, and
the rows are written again with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from minishark.worker.columns import no_texts

DICTIONARY_ROWS_MIN = 8_192
"""Text stays plain among fewer rows."""

_VALUES_MAX = 1_024
_NARROW_VALUES_MAX = 127

Dictionaries = Mapping[int, pa.Array]
"""The values of dictionary columns, by column position."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that have the same dictionaries."""

    schema: pa.Schema  # the schema of all tables
    dictionaries: Dictionaries
    tables: Iterator[pa.Table]  # the rows, to be read before the next part


class Parts:
    """A table's rows in parts, streaming; at least one part."""

    def __init__(self, tables: Iterator[pa.Table], schema: pa.Schema) -> None:
        self._tables = tables
        self._texts = [i for i, field in enumerate(schema) if pa.types.is_string(field.type)]
        self._next: pa.Table | None = next(tables, pa.Table.from_batches([], schema))

    def __iter__(self) -> Iterator[Part]:
        assert self._next is not None
        texts = self._texts if self._next.num_rows >= DICTIONARY_ROWS_MIN else []
        dictionaries: Dictionaries = {position: no_texts() for position in texts}
        while self._next is not None:
            first, dictionaries = _encoded(self._next, dictionaries)
            yield Part(first.schema, dictionaries, self._conforming(first, dictionaries))

    def _conforming(self, first: pa.Table, dictionaries: Dictionaries) -> Iterator[pa.Table]:
        table: pa.Table | None = first
        while table is not None:
            yield table
            self._next = next(self._tables, None)
            if self._next is None:
                return
            table = _conformed(self._next, dictionaries)

    def joined(self, stored: Sequence[pa.Table], last: Part) -> Iterator[pa.Table]:
        """The rows of all parts, as they were stored, with the dictionaries of the last one."""
        plain = [position for position in self._texts if position not in last.dictionaries]
        for table in stored:
            for batch in table.to_batches():
                rows = without_dictionaries(pa.Table.from_batches([batch]), plain)
                yield _conformed(rows, last.dictionaries)


def without_dictionaries(table: pa.Table, positions: Collection[int]) -> pa.Table:
    """The same rows with some columns as plain text."""
    for position in positions:
        field = table.schema.field(position)
        if pa.types.is_dictionary(field.type):
            plain = table.column(position).cast(field.type.value_type)
            table = table.set_column(position, field.with_type(plain.type), plain)
    return table


def _encoded(table: pa.Table, before: Dictionaries) -> tuple[pa.Table, Dictionaries]:
    """Rows with those columns of `before` as dictionaries that have few values besides."""
    dictionaries: dict[int, pa.Array] = {}
    for position, values in before.items():
        looked_up = _looked_up(table.column(position), values)
        if looked_up is not None:
            chunks, dictionaries[position] = looked_up
            table = _with_chunks(table, position, chunks, dictionaries[position])
    return table, dictionaries


def _conformed(table: pa.Table, dictionaries: Dictionaries) -> pa.Table | None:
    """Rows encoded with given dictionaries; None if these lack a value."""
    for position, values in dictionaries.items():
        column = table.column(position)
        chunks = [_renumbered(chunk.dictionary_encode(), values) for chunk in column.chunks]
        if sum(chunk.null_count for chunk in chunks) > column.null_count:
            return None
        table = _with_chunks(table, position, chunks, values)
    return table


def _looked_up(
    column: pa.ChunkedArray, values: pa.Array
) -> tuple[list[pa.DictionaryArray], pa.Array] | None:
    """A column by its values, which are given too; None if there are many, with `values`."""
    if len(column[:DICTIONARY_ROWS_MIN].unique().drop_null()) > _VALUES_MAX:
        return None
    own = []
    for chunk in column.chunks:
        own.append(chunk.dictionary_encode())
        values = pa.concat_arrays([values, own[-1].dictionary]).unique()
        if len(values) > _VALUES_MAX:
            return None
    values = values.sort()
    return [_renumbered(encoded, values) for encoded in own], values


def _renumbered(texts: pa.DictionaryArray, values: pa.Array) -> pa.DictionaryArray:
    """The same text as indices into `values`; NULL for text that is not among them."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    kind = dictionary_type(values).index_type
    positions = pc.index_in(texts.dictionary, value_set=values).cast(kind)
    return pa.DictionaryArray.from_arrays(positions.take(texts.indices), values)


def _with_chunks(
    table: pa.Table, position: int, chunks: list[pa.DictionaryArray], values: pa.Array
) -> pa.Table:
    column = pa.chunked_array(chunks, dictionary_type(values))
    field = table.schema.field(position).with_type(column.type)
    return table.set_column(position, field, column)


def dictionary_type(values: pa.Array) -> pa.DictionaryType:
    """The type of codes into these values: signed, and as narrow as possible."""
    kind = pa.int8() if len(values) <= _NARROW_VALUES_MAX else pa.int16()
    return pa.dictionary(kind, values.type)
