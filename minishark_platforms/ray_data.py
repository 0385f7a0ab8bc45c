"""Ray datasets into tables, and answers into Ray datasets.

A dataset's blocks are Arrow tables in Ray's object store. On a cluster that Ray hosts, the actor
beside each node maps the blocks of its machine and writes them to the node's store, and the other
way round; the program sees references only. Elsewhere the program reads and writes them itself,
one after the other.

What an actor returns belongs to who called it. So the blocks of a new dataset belong to the program
that asked for it, and outlive the session and its nodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.experimental import get_object_locations

from minishark.cluster.backend import FilesLostError, Workplace
from minishark.errors import DataError, ExecutionError, OptionError
from minishark.query.sinks import HandOver
from minishark.query.stored_rows import StoredRows
from minishark.tables.pieces import StoredPiece
from minishark.worker.columns import ChosenColumns
from minishark.worker.memory import NodeMemory
from minishark.worker.protocol import FileSlice
from minishark.worker.store import InputMissingError
from minishark_platforms.blocks import Block, Piece, pieces_of
from minishark_platforms.cluster import DeployedCluster
from minishark_platforms.pieces import PieceFile
from minishark_platforms.ray_blocks import ResultColumns, taken, write_cuts
from minishark_platforms.ray_errors import sentence
from minishark_platforms.ray_nodes import RayNodes

_CORE_S = 10.0
_POLL_S = 0.1
_BEHIND = 4  # pieces that each actor may be asked to store at a time


class DatasetPieces:
    """A Ray dataset, for `Tables`; see `tables.pieces.Pieces`."""

    def __init__(self, dataset: Any, cluster: Workplace) -> None:
        """Compute the dataset's blocks, if that has not been done.

        Raises:
            OptionError: this program is connected through a Ray Client.
            DataError: they can't be computed, or have no columns.
            ExecutionError: Ray has no core to compute them.
        """
        if ray.util.client.ray.is_connected():
            raise OptionError(
                "A Ray Client can't hand over datasets: run the program on a machine of the Ray "
                'cluster, and connect to "ray".'
            )
        from ray.data.dataset import MaterializedDataset  # noqa: PLC0415 - slow to import

        try:
            if not isinstance(dataset, MaterializedDataset) or not _is_arrow(dataset):
                _await_core()
            self._blocks = dataset.to_arrow_refs()
            schema = dataset.schema()
        except (RayError, ValueError, TypeError) as error:
            raise DataError(f"Ray can't compute the dataset: {sentence(error)}") from error
        found = getattr(schema, "base_schema", schema)
        if not isinstance(found, pa.Schema):
            try:
                found = ray.get(self._blocks[0]).schema
            except IndexError as error:
                raise DataError("The Ray dataset has no blocks, so no columns.") from error
        self.schema: pa.Schema = found
        self._cluster = cluster

    def store(self, folder: str, schema: pa.Schema, count: int) -> list[StoredPiece]:
        """Write the blocks to nodes on their machines; see `tables.pieces.Pieces`."""
        actors = _actors(self._cluster)
        self._cluster.make_folder(folder)  # some may have joined since it was made
        pieces = pieces_of(self._near(actors), count) or [Piece(next(iter(actors), ""), ())]
        files = [PieceFile(folder, number, schema) for number in range(len(pieces))]
        if not actors:
            store, buffer_bytes = self._cluster.store(), NodeMemory(0, 0).buffer_bytes
            return [
                write_cuts(store, buffer_bytes, file, piece.cuts, self._of(piece))
                for file, piece in zip(files, pieces, strict=True)
            ]
        asked: list[Any] = []
        for file, piece in zip(files, pieces, strict=True):
            if len(asked) >= _BEHIND * len(actors):
                taken(asked[len(asked) - _BEHIND * len(actors)])
            store = actors[piece.node][1].store
            asked.append(store.remote(piece.node, file, piece.cuts, self._of(piece)))
        return [taken(reference) for reference in asked]

    def _of(self, piece: Piece) -> list[Any]:
        return [self._blocks[cut.block] for cut in piece.cuts]

    def _near(self, actors: Mapping[str, tuple[str, Any]]) -> list[Block]:
        """The size of each block, and the node on its machine, or else one after the other."""
        by_machine = {machine: name for name, (machine, _) in actors.items()}
        names = [*actors] or [""]
        where = get_object_locations(self._blocks)
        found = []
        for number, block in enumerate(self._blocks):
            known = where.get(block, {})
            near = [
                by_machine[machine]
                for machine in known.get("node_ids", ())
                if machine in by_machine
            ]
            node = near[0] if near else names[number % len(names)]
            found.append(Block(known.get("object_size") or 0, node))
        return found


def _actors(cluster: Workplace) -> dict[str, tuple[str, Any]]:
    """The nodes of a cluster that Ray hosts, each with its machine and its actor."""
    if not isinstance(cluster, DeployedCluster):
        return {}
    platform = cluster.deployment.platform
    if not isinstance(platform, RayNodes):
        return {}
    live = frozenset(cluster.nodes)
    machines = cluster.deployment.machines()
    found = {
        name: (machine, platform.actor(name)) for name, machine in machines.items() if name in live
    }
    return {name: (machine, actor) for name, (machine, actor) in found.items() if actor is not None}


def dataset_of(cluster: Workplace) -> HandOver[Any]:
    """A sink that makes a Ray dataset of a query's rows.

    Raises:
        OptionError: this program is not connected to Ray, or through a Ray Client.
    """
    if not ray.is_initialized() or ray.util.client.ray.is_connected():
        raise OptionError(
            "to_ray_dataset() makes a dataset for this program's Ray: call ray.init() first, in a "
            "program that runs on a machine of the Ray cluster."
        )
    return HandOver(partial(_dataset, cluster), partial(_stored_dataset, cluster))


def _dataset(
    cluster: Workplace, pieces: Sequence[FileSlice | pa.Table], names: Sequence[str]
) -> Any:
    actors, store = _actors(cluster), cluster.store()
    blocks: list[Any] = []
    lost: list[FileSlice] = []
    asked: list[tuple[FileSlice, Any]] = []
    wanted = ResultColumns(tuple(names))
    for piece in pieces:
        if isinstance(piece, pa.Table):
            blocks.append(ray.put(piece.rename_columns(list(names))))
        elif (node := piece.locations[0]) in actors:
            block, found = _asked(actors, node, piece, wanted)
            blocks.append(block)
            asked.append((piece, found))
        else:
            try:
                blocks.append(ray.put(store.read((piece,)).rename_columns(list(names))))
            except InputMissingError as error:
                lost += error.files
    lost += [piece for piece, found in asked if not _found(found)]
    if lost:
        raise FilesLostError(lost)
    return _made(blocks)


def _stored_dataset(cluster: Workplace, rows: StoredRows) -> Any:
    """A dataset of stored files, of which the actor beside each makes a block; None if one can't.

    No task copies the rows before; if a file is lost, the query restores it.
    """
    actors = _actors(cluster)
    near = [next(filter(actors.__contains__, item.locations), "") for item in rows.slices]
    if not actors or not all(near):
        return None
    asked = [
        _asked(actors, node, item, rows.columns)
        for node, item in zip(near, rows.slices, strict=True)
    ]
    if all(_found(found) for _, found in asked):
        return _made([block for block, _ in asked])
    return None


def _asked(
    actors: Mapping[str, tuple[str, Any]],
    node: str,
    item: FileSlice,
    columns: ChosenColumns | ResultColumns,
) -> tuple[Any, Any]:
    """References to a block of a file's rows, and to whether the node has them."""
    block, found = actors[node][1].block.options(num_returns=2).remote(node, item, columns)
    return block, found


def _made(blocks: Sequence[Any]) -> Any:
    _await_core()
    from ray.data import from_arrow_refs  # noqa: PLC0415 - slow to import

    return from_arrow_refs(blocks)


def _await_core() -> None:
    """Wait for a free core: without one, Ray would wait for ever."""
    deadline = time.monotonic() + _CORE_S
    while ray.available_resources().get("CPU", 0) < 1:
        if time.monotonic() > deadline:
            raise ExecutionError(
                "Ray has no free core, and needs one for its datasets: connect with fewer "
                "cpus_per_node."
            )
        time.sleep(_POLL_S)


def _is_arrow(dataset: Any) -> bool:
    """Whether a computed dataset's blocks need no conversion."""
    schema = dataset.schema()
    return isinstance(getattr(schema, "base_schema", schema), pa.Schema)


def _found(reference: Any) -> bool:
    try:
        return bool(ray.get(reference))
    except RayError:  # the actor died
        return False
