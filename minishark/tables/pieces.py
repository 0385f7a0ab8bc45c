"""Data that another system holds in pieces on the cluster's machines, as a source of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from minishark.worker.protocol import FileSlice


class StoredPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece in a node's store, as one file.

    Attributes:
        file: relative to the node's storage folder.
        node: the node that has it.
        batches: the number of rows of each record batch.
        bytes: the size of its data.
    """

    file: str
    node: str
    batches: tuple[int, ...]
    bytes: int

    def slices(self) -> list[FileSlice]:
        """Each record batch; of an empty file none, for its schema."""
        count = len(self.batches)
        whole = [FileSlice(self.file, (self.node,), i, i + 1) for i in range(count)]
        return whole or [FileSlice(self.file, (self.node,), 0, 0)]

    def counts(self) -> tuple[int, ...]:
        """The number of rows of each of the slices."""
        return self.batches or (0,)


@runtime_checkable
class Pieces(Protocol):
    """Data in pieces that are not in this process."""

    schema: pa.Schema

    def store(self, folder: str, schema: pa.Schema, count: int) -> Sequence[StoredPiece]:
        """Write about `count` pieces to the stores of nodes near them, into an existing folder.

        They are written as the partitions of a table with this Arrow schema would be, which has
        the names of `self.schema`.

        Raises:
            DataError: a piece can't be had, or has other columns.
            OSError: the disk is full.
        """
