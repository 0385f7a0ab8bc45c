"""What becomes of the rows of a query's last stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import msgspec

from minishark.expressions import Schema
from minishark.query.locality import replica_locations
from minishark.worker.protocol import CopyTarget, OutputKind, StageTask, TaskFunction, TaskPayload


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows that stay in the cluster are to lie.

    Attributes:
        partition_by: columns whose hash decides a row's partition; none for the query's order.
        partitions: how many; None for as many as the query has, or as its size asks for.
        replicas: on how many nodes each lies.
        even: whether partitions shall be of equal size, however the query's rows lie.
        ranges: columns of whose values each partition shall have one range, in their order.
    """

    partition_by: tuple[str, ...] = ()
    partitions: int | None = None
    replicas: int = 1
    even: bool = False
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """They come to the front end.

    Attributes:
        lossless: whether they keep DuckDB's types instead of those in which users get results.
    """

    lossless: bool = False


@dataclass(frozen=True, slots=True)
class Pieces:
    """They stay in the query's folder, one file per task, for who reads them next.

    Attributes:
        cuts: into how many batches at least a task's rows are cut.
    """

    cuts: int


@dataclass(frozen=True, slots=True)
class Partitions:
    """Each task's rows become a partition of a table.

    Attributes:
        folder: the table's, relative to a node's storage folder.
        replicas: how many nodes get a copy of each.
    """

    folder: str
    replicas: int


@dataclass(frozen=True, slots=True)
class Files:
    """Each task's rows become files for users."""

    target: CopyTarget


Sink: TypeAlias = Gathered | Pieces | Partitions | Files


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a query: what its last stage's rows go through, and what becomes of them.

    Attributes:
        sink: what becomes of them.
        columns: what users call the columns of the last stage.
        function: what the rows go through before.
    """

    sink: Sink
    columns: tuple[str, ...]
    function: TaskFunction | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What users call the columns that come out."""
        if self.function is None:
            return self.columns
        return tuple(name for name, _ in self.function.returns)

    def stage(self, task: StageTask, schema: Schema) -> StageTask:
        """The last stage's description, with its end.

        Args:
            task: the description.
            schema: the columns that the fragment puts out.
        """
        if isinstance(self.sink, Gathered) and self.function is None:
            return msgspec.structs.replace(
                task, output=OutputKind.RESULT, lossless=self.sink.lossless
            )
        columns = zip(self.columns, (column.type for column in schema), strict=True)
        task = _with_columns(task, schema)
        task = msgspec.structs.replace(task, columns=tuple(columns), function=self.function)
        match self.sink:
            case Gathered(lossless):
                output = OutputKind.RESULT
                return msgspec.structs.replace(task, output=output, lossless=lossless)
            case Pieces(cuts):
                return msgspec.structs.replace(task, cuts=cuts)
            case Partitions(folder):
                output = OutputKind.PARTITION
                return msgspec.structs.replace(task, output=output, folder=folder, prefix="")
            case Files(target):
                return msgspec.structs.replace(task, output=OutputKind.FILES, target=target)
            case _:
                assert_never(self.sink)

    def payload(self, payload: TaskPayload, nodes: Sequence[str]) -> TaskPayload:
        """A task of the last stage, with where its rows go, of these nodes."""
        return msgspec.structs.replace(payload, replicas=self._holders(payload.index, nodes))

    def nodes(self, preferred: frozenset[str], index: int, nodes: Sequence[str]) -> frozenset[str]:
        """Where a task of the last stage should run: where its rows stay, if they do."""
        held = frozenset(self._holders(index, nodes))
        return (preferred & held) or held or preferred

    def _holders(self, index: int, nodes: Sequence[str]) -> tuple[str, ...]:
        """The nodes that get a task's rows as a partition, if it becomes one."""
        if not isinstance(self.sink, Partitions):
            return ()
        return replica_locations(nodes, index, self.sink.replicas)


def _with_columns(task: StageTask, schema: Schema) -> StageTask:
    """A fragment with columns c0, c1, ...; a whole statement has those that its user wrote."""
    if task.types:
        return task
    names = ", ".join(f"c{i}" for i in range(len(schema)))
    casts = ", ".join(f"CAST(c{i} AS {column.type}) AS c{i}" for i, column in enumerate(schema))
    return msgspec.structs.replace(task, sql=f"SELECT {casts} FROM ({task.sql}) AS t({names})")
