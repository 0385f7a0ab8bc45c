"""The inputs of tasks: partitions of tables, splits of sources, outputs of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput
from minishark.errors import PartitionsLostError
from minishark.model.catalog import Partition, Table, first_row_number
from minishark.query.locality import CLOSE_SHARE
from minishark.worker.protocol import FileSlice, TaskOutcome
from minishark.worker.visible_rows import without_first


def preferred_nodes(stage: Stage, tables: Mapping[str, Table], index: int) -> frozenset[str]:
    """The nodes that store most of the table data that task `index` reads; none if it reads none.

    Of several partitions, many nodes have about as much: tasks must not all go to one of them.

    Tables that all tasks read whole count only if the task has no partitions of its own: they say
    the same for all tasks, and would send them all to one node.
    """
    numbers = stage.partitions_of(index)
    own, whole = (
        [p for i in stage.inputs if i.mode is mode for p in read_partitions(i, tables, numbers)]
        for mode in (ReadMode.OWN, ReadMode.ALL)
    )
    stored: dict[str, int] = {}
    for partition in own or whole:
        for node in partition.locations:
            stored[node] = stored.get(node, 0) + partition.bytes + 1  # empty ones count, too
    least = CLOSE_SHARE * max(stored.values(), default=0)
    return frozenset(node for node, size in stored.items() if size >= least)


def read_partitions(
    item: TableInput | StageInput, tables: Mapping[str, Table], numbers: range
) -> tuple[Partition, ...]:
    """What a task reads of a table that computes the partitions of these `numbers`."""
    if not isinstance(item, TableInput):
        return ()
    partitions = tables[item.name].partitions
    return partitions if item.mode is ReadMode.ALL else partitions[numbers.start : numbers.stop]


def partition_slices(partition: Partition) -> tuple[FileSlice, ...]:
    """The rows of a stored partition: its own file, or what is needed of it, then its deltas."""
    own = FileSlice(
        partition.file,
        partition.locations,
        deleted=partition.deleted,
        constants=partition.constants,
    )
    items = (
        own,
        *(
            FileSlice(
                d.file, (*partition.locations, *d.held), deleted=d.deleted, constants=d.constants
            )
            for d in partition.deltas
        ),
    )
    if partition.is_numbered:
        items = tuple(
            structs.replace(item, numbered_from=first_row_number(partition.index, i))
            for i, item in enumerate(items)
        )
    if partition.needed is None:
        return items
    runs = partition.needed or ((0, 0, 0),)  # of no batch, for the schema
    return (*(_run(items[0], *run) for run in runs), *items[1:])


def _run(item: FileSlice, first: int, last: int, before: int) -> FileSlice:
    """Some batches of a whole file, with `before` rows before them."""
    numbered = item.numbered_from
    return structs.replace(
        item,
        first=first,
        last=last,
        deleted=without_first(item.deleted, before),
        numbered_from=None if numbered is None else numbered + before,
    )


def lost_partitions(table: Table, files: Sequence[FileSlice]) -> PartitionsLostError | None:
    """The error for lost files, if partitions of a table are among them."""
    gone = frozenset(item.file for item in files)
    lost = [partition for partition in table.partitions if not gone.isdisjoint(partition.files)]
    if not lost:
        return None
    return PartitionsLostError(
        table.name,
        tuple(p.index for p in lost),
        tuple(file for p in lost for file in p.files if file in gone),
    )


def source_reads(
    item: TableInput | StageInput, tables: Mapping[str, Table], numbers: range
) -> tuple[bytes, ...]:
    """The splits of a source that a task reads; empty for other inputs."""
    return tuple(p.read for p in read_partitions(item, tables, numbers) if p.read)


def stage_slices(
    outcomes: Sequence[TaskOutcome], nodes: Sequence[str], buckets: range | None
) -> tuple[FileSlice, ...]:
    """What a task reads of an earlier stage: these buckets of the outputs, or all rows.

    Of empty parts only one is read, for the schema. A task's buckets that follow one another in a
    file are one part.
    """
    slices: list[tuple[int, FileSlice]] = []
    for outcome, node in zip(outcomes, nodes, strict=True):
        whole = _slice(outcome, node)
        if buckets is None:
            slices.append((outcome.figures.rows, whole))
            continue
        slices += [
            (run.rows, structs.replace(whole, first=run.first, last=run.last))
            for run in outcome.bucket_runs(buckets)
        ]
    assert slices, "a stage has tasks, and each has put something out"
    filled = tuple(item for rows, item in slices if rows)
    return filled or (slices[0][1],)


def _slice(outcome: TaskOutcome, node: str) -> FileSlice:
    if outcome.inline is not None:
        return FileSlice("", (), inline=outcome.inline)
    return output_file(outcome, node)


def output_file(outcome: TaskOutcome, node: str) -> FileSlice:
    """The file of an output."""
    assert outcome.file is not None, "an output is inline or in a file"
    return FileSlice(outcome.file, (node,), is_new=not outcome.is_taken)
