"""Which bytes of a Parquet file a query needs.

Whatever is not surely a column chunk that nobody reads is needed: the metadata, page indexes and
Bloom filters, wherever a writer put them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import msgspec

Range: TypeAlias = tuple[int, int]
"""Bytes of a file: the first, and the one after the last."""

_MAGIC = 4
_TAIL = 8  # the length of the metadata, and the magic bytes
_TAIL_GUESS_BYTES = 64 << 10
_SLACK_BYTES = 128  # old writers leave the header of a dictionary page out of a chunk's size


class FilePart(msgspec.Struct, frozen=True, array_like=True):
    """What a query needs of a Parquet file; by default, all."""

    columns: tuple[str, ...] | None = None  # top-level columns; None for all
    rows: Range | None = None  # the first row, and the one after the last; None for all


WHOLE = FilePart()


def metadata_range(size: int, tail: bytes | None = None) -> Range:
    """Where a file of `size` bytes has its metadata: a guess, or with the file's last bytes, exact.

    Bytes in front of the metadata are included, so that both ranges are one request most times.
    """
    length = 0 if tail is None else int.from_bytes(tail[-_TAIL:-_MAGIC], "little") + _TAIL
    return max(0, size - max(_TAIL_GUESS_BYTES, length)), size


def needed_ranges(metadata: Any, size: int, part: FilePart) -> list[Range]:
    """The bytes of a file of `size` bytes that a query needs, in order.

    `metadata` is a `pyarrow.parquet.FileMetaData`.
    """
    columns = None if part.columns is None else frozenset(map(str.lower, part.columns))
    unneeded = sorted(_unneeded(metadata, columns, part.rows))
    needed, end = [], 0
    for first, last in unneeded:
        if first > end:
            needed.append((end, first))
        end = max(end, last)
    if end < size:
        needed.append((end, size))
    return needed


def _unneeded(
    metadata: Any, columns: Collection[str] | None, rows: Range | None
) -> Iterator[Range]:
    """The column chunks that are not read."""
    row = 0
    chunks: list[tuple[int, int, bool]] = []
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        end = row + group.num_rows
        is_read = rows is None or (row < rows[1] and rows[0] < end)
        row = end
        for j in range(group.num_columns):
            chunk = group.column(j)
            name = chunk.path_in_schema.partition(".")[0].lower()
            needed = is_read and (columns is None or name in columns)
            offsets = (chunk.dictionary_page_offset, chunk.data_page_offset)
            first = min(offset for offset in offsets if offset)
            chunks.append((first, first + chunk.total_compressed_size, needed))
    # Only what lies behind a needed chunk may belong to it, too.
    behind = 0
    for first, last, needed in sorted(chunks):
        if needed:
            behind = last + _SLACK_BYTES
        elif max(first, behind) < last:
            yield max(first, behind), last
