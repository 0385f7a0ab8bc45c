"""Writes pieces of another system's data to the store of a node."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from minishark.errors import DataError
from minishark.tables.pieces import StoredPiece
from minishark.worker.outputs import Outputs
from minishark.worker.protocol import OutputKind, StageTask, TaskPayload
from minishark.worker.writing import mapped


class PieceFile(msgspec.Struct, frozen=True):
    """Where a piece is to be written: its number in a folder; and its Arrow schema."""

    folder: str
    number: int
    schema: pa.Schema


def write_piece(
    outputs: Outputs, file: PieceFile, batches: Iterable[pa.RecordBatch]
) -> StoredPiece:
    """Write a piece to a node's store.

    Raises:
        DataError: the rows have other columns.
    """
    names = file.schema.names
    stage = StageTask(
        sql="",
        types=(),
        output=OutputKind.PARTITION,
        folder=file.folder,
        columns=tuple((name, "") for name in names),
    )
    try:
        conforming = (batch.select(names).cast(file.schema) for batch in batches)
        task = TaskPayload(index=file.number, inputs={})
        name, stored = outputs.partition(stage, task, file.schema, conforming)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError) as error:
        raise DataError(f"A block does not have the dataset's columns: {error}") from error
    rows = tuple(batch.num_rows for batch in mapped(stored).to_batches())
    return StoredPiece(file=name, node=outputs.store.node, batches=rows, bytes=stored.bytes)
