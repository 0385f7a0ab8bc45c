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
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.experimental import get_object_locations

from minishark.cluster.backend import Cluster, FilesLostError
from minishark.deploy.cluster import DeployedCluster
from minishark.deploy.ray_nodes import RayNodes, sentence
from minishark.errors import DataError, ExecutionError, OptionError
from minishark.query.sinks import HandOver
from minishark.tables.pieces import StoredPiece, split
from minishark.worker.protocol import FileSlice
from minishark.worker.store import InputMissingError, Store

_CORE_S = 10.0
_POLL_S = 0.1
_BEHIND = 4  # blocks that each actor may be asked to store at a time


class DatasetPieces:
    """A Ray dataset, for `Tables`; see `tables.pieces.Pieces`."""

    def __init__(self, dataset: Any, cluster: Cluster) -> None:
        """Compute the dataset's blocks, if that has not been done.

        Raises:
            DataError: they can't be computed, or have no columns.
        """
        try:
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

    def store(self, folder: str) -> list[StoredPiece]:
        """Write the blocks to nodes on their machines.

        Raises:
            DataError: a block is lost, or has other columns.
        """
        actors = _actors(self._cluster)
        if not actors:
            return self._stored_here(folder)
        by_machine = {machine: name for name, (machine, _) in actors.items()}
        names = list(actors)
        asked: list[tuple[str, str, Any]] = []
        waiting: deque[Any] = deque()
        where = get_object_locations(self._blocks)
        for number, block in enumerate(self._blocks):
            machines = where.get(block, {}).get("node_ids", ())
            near = [by_machine[each] for each in machines if each in by_machine]
            name = near[0] if near else names[number % len(names)]
            file = f"{folder}/block-{number}.arrow"
            reply = actors[name][1].store.remote(block, self.schema, name, file)
            asked.append((name, file, reply))
            waiting.append(reply)
            while len(waiting) > _BEHIND * len(actors):
                _taken(waiting.popleft())
        return [
            StoredPiece(file=file, node=name, batches=tuple(rows), bytes=size)
            for name, file, reply in asked
            for rows, size in (_taken(reply),)
        ]

    def _stored_here(self, folder: str) -> list[StoredPiece]:
        store, found = self._cluster.store(), []
        for number, block in enumerate(self._blocks):
            file = f"{folder}/block-{number}.arrow"
            rows, size = store_block(store, _taken(block), self.schema, file)
            node = self._cluster.store_name
            found.append(StoredPiece(file=file, node=node, batches=tuple(rows), bytes=size))
        return found


def _actors(cluster: Cluster) -> dict[str, tuple[str, Any]]:
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


def _taken(reference: Any) -> Any:
    """What Ray has computed; DataError if it could not."""
    try:
        return ray.get(reference)
    except RayError as error:
        raise DataError(f"A block of the Ray dataset can't be stored: {sentence(error)}") from error


def store_block(
    store: Store, block: pa.Table, schema: pa.Schema, file: str
) -> tuple[list[int], int]:
    """Write a block to a store: the rows of each record batch, and the bytes of all."""
    if block.schema != schema:
        block = block.select(schema.names).cast(schema)
    batches = split(block)
    stored = store.write(file, schema, ([batch] for batch in batches))
    return [batch.num_rows for batch in batches], stored.bytes


def dataset_of(cluster: Cluster) -> HandOver[Any]:
    """A sink that makes a Ray dataset of a query's rows.

    Raises:
        OptionError: this program is not connected to Ray, or through a Ray Client.
    """
    if not ray.is_initialized() or ray.util.client.ray.is_connected():
        raise OptionError(
            "to_ray_dataset() makes a dataset for this program's Ray: call ray.init() first, in a "
            "program that runs on a machine of the Ray cluster."
        )
    return HandOver(lambda pieces, names: _dataset(cluster, pieces, names))


def _dataset(cluster: Cluster, pieces: Sequence[FileSlice | pa.Table], names: Sequence[str]) -> Any:
    actors, store = _actors(cluster), cluster.store()
    blocks: list[Any] = []
    lost: list[FileSlice] = []
    asked: list[tuple[FileSlice, Any]] = []
    for piece in pieces:
        if isinstance(piece, pa.Table):
            blocks.append(ray.put(piece.rename_columns(list(names))))
        elif (node := piece.locations[0]) in actors:
            call = actors[node][1].block.options(num_returns=2)
            block, found = call.remote(node, piece.file, list(names))
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
    deadline = time.monotonic() + _CORE_S
    while ray.available_resources().get("CPU", 0) < 1:  # in which Ray would wait for ever
        if time.monotonic() > deadline:
            raise ExecutionError(
                "Ray has no free core, and needs one for its datasets: connect with fewer "
                "cpus_per_node."
            )
        time.sleep(_POLL_S)
    from ray.data import from_arrow_refs  # noqa: PLC0415 - slow to import

    return from_arrow_refs(blocks)


def _found(reference: Any) -> bool:
    try:
        return bool(ray.get(reference))
    except RayError:  # the actor died
        return False
