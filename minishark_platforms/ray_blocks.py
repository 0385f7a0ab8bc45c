"""What an actor beside a node does with blocks of Ray datasets: to the node's files, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import ray
from ray.exceptions import RayError

from minishark.errors import DataError
from minishark.tables.pieces import StoredPiece
from minishark.worker.columns import ChosenColumns
from minishark.worker.outputs import BATCH_ROWS, Outputs
from minishark.worker.protocol import FileSlice
from minishark.worker.store import InputMissingError, Store
from minishark_platforms.blocks import Cut
from minishark_platforms.pieces import PieceFile, write_piece
from minishark_platforms.ray_errors import sentence


class ResultColumns(msgspec.Struct, frozen=True):
    """The names of columns whose types are right already."""

    names: tuple[str, ...]


def write_cuts(
    store: Store, buffer_bytes: int, file: PieceFile, cuts: Sequence[Cut], blocks: Sequence[Any]
) -> StoredPiece:
    """Write cuts of blocks, given by reference, to a store as one piece."""
    return write_piece(Outputs(store, buffer_bytes), file, _batches(cuts, blocks))


def _batches(cuts: Sequence[Cut], blocks: Sequence[Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a piece; one block after the other is fetched, as all may be too large."""
    for cut, reference in zip(cuts, blocks, strict=True):
        block = taken(reference)
        yield from block.slice(*cut.rows(block.num_rows)).to_batches(BATCH_ROWS)


def read_block(
    store: Store, item: FileSlice, columns: ChosenColumns | ResultColumns
) -> pa.Table | None:
    """The rows of a file, mapped; None if the node does not have it, or only DuckDB converts it."""
    try:
        rows = store.read((item,))
    except InputMissingError:
        return None
    if isinstance(columns, ResultColumns):
        return rows.rename_columns(list(columns.names))
    batches = columns.of(rows)
    return None if batches is None else pa.Table.from_batches(batches, columns.schema)


def taken(reference: Any) -> Any:
    """What Ray has computed; DataError if it could not."""
    try:
        return ray.get(reference)
    except RayError as error:
        raise DataError(f"A block of the Ray dataset can't be stored: {sentence(error)}") from error
