"""What a task reads: partitions of tables, files that the query names, what stages put out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minishark.catalog import Partition, Table
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput
from minishark.errors import PartitionsLostError
from minishark.worker.protocol import FileSlice, TaskOutcome


def preferred_nodes(stage: Stage, tables: Mapping[str, Table], index: int) -> frozenset[str]:
    """The nodes that hold most of what task `index` reads of tables; none if it reads no table.

    A task's own partitions decide; tables that it reads whole only if it has none of its own.
    """
    own, whole = (
        [p for i in stage.inputs if i.mode is mode for p in read_partitions(i, tables, index)]
        for mode in (ReadMode.OWN, ReadMode.ALL)
    )
    held: dict[str, int] = {}
    for partition in own or whole:
        for node in partition.locations:
            held[node] = held.get(node, 0) + partition.bytes + 1
    most = max(held.values(), default=0)
    return frozenset(node for node, size in held.items() if size == most)


def read_partitions(
    item: TableInput | StageInput, tables: Mapping[str, Table], index: int
) -> tuple[Partition, ...]:
    """The partitions that task `index` reads of a table."""
    if not isinstance(item, TableInput):
        return ()
    partitions = tables[item.name].partitions
    return partitions if item.mode is ReadMode.ALL else partitions[index : index + 1]


def lost_partitions(table: Table, files: Sequence[FileSlice]) -> PartitionsLostError | None:
    """The error for files that are gone, if partitions of a table are among them."""
    gone = frozenset(item.file for item in files)
    lost = [partition for partition in table.partitions if partition.file in gone]
    if not lost:
        return None
    return PartitionsLostError(
        table.name, tuple(p.index for p in lost), tuple(p.file for p in lost)
    )


def named_relation(item: TableInput | StageInput, tables: Mapping[str, Table], index: int) -> str:
    """What task `index` reads of files that the query names, as SQL; empty for all other inputs."""
    read = read_partitions(item, tables, index)
    relations = [partition.relation for partition in read if partition.relation]
    if len(relations) < 2:
        return "".join(relations)
    return f"({' UNION ALL '.join(f'FROM {relation}' for relation in relations)})"


def stage_slices(
    outcomes: Sequence[TaskOutcome], nodes: Sequence[str], mode: ReadMode, index: int
) -> tuple[FileSlice, ...]:
    """What a task reads of an earlier stage; empty parts are left out, but one for the schema."""
    found: list[tuple[int, FileSlice]] = []
    for position, (outcome, node) in enumerate(zip(outcomes, nodes, strict=True)):
        assert outcome.file is not None
        if mode is ReadMode.OWN and position != index:
            continue
        if mode is ReadMode.BUCKET:
            for part in outcome.bucket(index):
                piece = FileSlice(outcome.file, (node,), part.first, part.last)
                found.append((part.rows, piece))
        else:
            found.append((outcome.rows, FileSlice(outcome.file, (node,))))
    filled = tuple(item for rows, item in found if rows)
    return filled or (found[0][1],)
