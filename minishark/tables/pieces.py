"""Data that another system holds in pieces on the cluster's machines, as a source of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
import pyarrow as pa

from minishark.worker.outputs import BATCH_ROWS
from minishark.worker.protocol import FileSlice


class StoredPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece in a node's store.

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
        """Each record batch."""
        return [FileSlice(self.file, (self.node,), i, i + 1) for i in range(len(self.batches))]


@runtime_checkable
class Pieces(Protocol):
    """Data in pieces that are not in this process."""

    schema: pa.Schema

    def store(self, folder: str) -> Sequence[StoredPiece]:
        """Write the pieces to the stores of nodes that are near them, into an existing folder.

        Raises:
            DataError: a piece can't be had.
        """


def split(table: pa.Table) -> list[pa.RecordBatch]:
    """A table as record batches of a size that tasks read well; at least one."""
    batches = table.combine_chunks().to_batches(BATCH_ROWS)
    return batches or [pa.RecordBatch.from_pylist([], table.schema)]
