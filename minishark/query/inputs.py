"""The inputs of tasks: partitions of tables, files named in the query, outputs of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minishark.catalog import Partition, Table
from minishark.compiler.physical.plan import Share
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput
from minishark.errors import PartitionsLostError
from minishark.worker.protocol import FileSlice, TaskOutcome


def preferred_nodes(stage: Stage, tables: Mapping[str, Table], index: int) -> frozenset[str]:
    """The nodes that store most of the table data that task `index` reads; none if it reads none.

    Tables that all tasks read whole count only if the task has no partitions of its own: they say
    the same for all tasks, and would send them all to one node.
    """
    own, whole = (
        [p for i in stage.inputs if i.mode is mode for p in read_partitions(i, tables, index)]
        for mode in (ReadMode.OWN, ReadMode.ALL)
    )
    stored: dict[str, int] = {}
    for partition in own or whole:
        for node in partition.locations:
            stored[node] = stored.get(node, 0) + partition.bytes + 1  # empty ones count, too
    most = max(stored.values(), default=0)
    return frozenset(node for node, size in stored.items() if size == most)


def read_partitions(
    item: TableInput | StageInput, tables: Mapping[str, Table], index: int
) -> tuple[Partition, ...]:
    """The partitions that task `index` reads of a table."""
    if not isinstance(item, TableInput):
        return ()
    partitions = tables[item.name].partitions
    return partitions if item.mode is ReadMode.ALL else partitions[index : index + 1]


def lost_partitions(table: Table, files: Sequence[FileSlice]) -> PartitionsLostError | None:
    """The error for lost files, if partitions of a table are among them."""
    gone = frozenset(item.file for item in files)
    lost = [partition for partition in table.partitions if partition.file in gone]
    if not lost:
        return None
    return PartitionsLostError(
        table.name, tuple(p.index for p in lost), tuple(p.file for p in lost)
    )


def named_relation(item: TableInput | StageInput, tables: Mapping[str, Table], index: int) -> str:
    """What task `index` reads of files named in the query, as SQL; empty for other inputs."""
    read = read_partitions(item, tables, index)
    relations = [partition.relation for partition in read if partition.relation]
    if len(relations) < 2:
        return "".join(relations)
    return f"({' UNION ALL '.join(f'FROM {relation}' for relation in relations)})"


def stage_slices(
    outcomes: Sequence[TaskOutcome],
    nodes: Sequence[str],
    mode: ReadMode,
    index: int,
    share: Share | None = None,
) -> tuple[FileSlice, ...]:
    """What a task reads of an earlier stage; of empty parts only one is read, for the schema.

    Args:
        outcomes: the outputs of the earlier stage.
        nodes: where they are stored.
        mode: which part of them a task reads.
        index: the task's number.
        share: the buckets that it reads; None for the one of its number.
    """
    share = share or Share(index, index + 1)
    found: list[tuple[int, FileSlice]] = []
    for position, (outcome, node) in enumerate(zip(outcomes, nodes, strict=True)):
        assert outcome.file is not None, "only results are inline"
        if mode is ReadMode.OWN and position != index:
            continue
        if mode is ReadMode.BUCKET:
            if not share.reads(position):
                continue
            for part in outcome.bucket_range(share.first, share.last):
                piece = FileSlice(outcome.file, (node,), part.first, part.last)
                found.append((part.rows, piece))
        else:
            found.append((outcome.rows, FileSlice(outcome.file, (node,))))
    filled = tuple(item for rows, item in found if rows)
    return filled or (found[0][1],)
