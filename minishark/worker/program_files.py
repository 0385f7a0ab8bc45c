"""What a program's workers read from the store, and keep there: tables, and parts of the result."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from minishark.errors import CatalogError, DataError
from minishark.worker.protocol import StoredPartition
from minishark.worker.seals import Seal
from minishark.worker.store import Store


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of consecutive stored partitions: those from `first` to `last` (exclusive)."""

    first: int
    last: int
    offset: int  # the number of rows before, in the first of these partitions
    length: int  # the number of rows


def row_range(rows: Sequence[int], index: int, count: int) -> RowRange:
    """Where partition `index` of `count` is in a table that is stored in partitions of `rows` rows.

    A table that is stored in as many partitions keeps them, and with them its partitioning by hash.
    Otherwise, each partition is a range of the rows in the table's order, of about equal length.
    """
    if len(rows) == count:
        return RowRange(index, index + 1, 0, rows[index])
    ends = list(itertools.accumulate(rows))
    start, stop = (ends[-1] * i // count for i in (index, index + 1))
    first = next((i for i, end in enumerate(ends) if end > start), len(rows) - 1)
    last = next((i for i, end in enumerate(ends, 1) if end >= stop), len(rows))
    return RowRange(first, max(last, first + 1), start - (ends[first] - rows[first]), stop - start)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part of a program's result, stored as an Arrow file on a node."""

    file: str
    node: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """The store as the workers of one program use it."""

    store: Store  # the executor's view of the store
    folder: str  # the program's folder in it
    tables: Mapping[str, tuple[StoredPartition, ...]]  # the session's tables, by name in lower case

    def table(self, name: str, index: int, count: int) -> pa.Table:
        """A partition of a table, memory-mapped without a copy; `row_range` says of which rows.

        Raises:
            CatalogError: there was no such table when the program began.
            InputMissingError: no node stores its rows any more.
        """
        stored = self.tables.get(name.lower())
        if stored is None:
            names = ", ".join(sorted(self.tables)) or "none"
            raise CatalogError(f"There is no table called {name!r}; the tables are: {names}.")
        part = row_range([partition.rows for partition in stored], index, count)
        slices = [item for partition in stored[part.first : part.last] for item in partition.slices]
        return self.store.read(tuple(slices)).slice(part.offset, part.length)

    def keep(self, index: int, part: Any) -> StoredPart:
        """Store a part of a program's result, which becomes a partition of a table.

        Raises:
            DataError: it is no Arrow table.
            OSError: the disk is full, or the folder is gone.
        """
        rows = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        if not isinstance(rows, pa.Table):
            raise DataError(
                "A program's result becomes a table if each part is an Arrow table, not a "
                f"{type(part).__name__}: return run.map(to_arrow, value)."
            )
        # No two attempts at a task write the same file.
        file = f"{self.folder}/{index}-{secrets.token_hex(4)}.arrow"
        stored = self.store.write(file, rows.schema, [rows.to_batches()], Seal.ALWAYS)
        return StoredPart(stored.named(file), self.store.node, stored.rows, stored.bytes)


_serving = threading.local()


@contextlib.contextmanager
def serving(files: ProgramFiles) -> Iterator[None]:
    """While the block runs, `keep_part` in this thread stores to these files."""
    _serving.files = files
    try:
        yield
    finally:
        del _serving.files


def keep_part(index: int, part: Any) -> StoredPart:
    """Store a part of a program's result; a function for `run.map`."""
    files: ProgramFiles = _serving.files
    return files.keep(index, part)
