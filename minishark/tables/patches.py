"""Changes of rows that a query finds: by the front end if they are few, by tasks if they are many.

The query gives a patch (`worker/patches.py`): the numbers of rows, what becomes of each, and new
values. Tasks leave it in pieces, one for each partition of the table; if it is large, further tasks
near these store them again, each with its piece. Only the numbers of files and rows pass through
the front end.

An UPDATE or DELETE that reads its own table only needs no list of rows: a task for each partition
marks its rows, in their order, and leaves new values of all. Tasks store partitions again with
these values; where rows are deleted, that is noted (`deltas`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.cluster.backend import FilesLostError
from minishark.compiler.logical.operators import Project, Scan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.model.catalog import Table
from minishark.query.inputs import lost_partitions, stage_slices
from minishark.query.sinks import CompleteRun, Output, Sink
from minishark.tables.deltas import marked_numbers, without_marked
from minishark.tables.stores import Stored
from minishark.tables.tables import Tables
from minishark.worker.columns import as_numbers
from minishark.worker.protocol import OutputKind


class NotByMarksError(Exception):
    """A query whose tasks do not each read the rows of one partition, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPatch(Sink[pa.Table | Stored[Table]]):
    """A patch in the front end if it is small, or else the table that tasks have changed by it.

    The query's columns are the patch's, and last the index of the partition that has the row.
    """

    tables: Tables
    table: Table
    columns: tuple[int, ...]  # the positions of the columns that are set
    many: int  # so many rows, at least
    lossless = True
    leaves_plan = True
    needs_tasks = False

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        return Output(kind=OutputKind.BUCKETS, columns=columns, buckets=len(self.table.partitions))

    def finish(self, run: CompleteRun) -> pa.Table | Stored[Table]:
        try:
            return self._applied(run)
        except FilesLostError as lost:
            raise lost_partitions(self.table, lost.files) or lost from lost

    def _applied(self, run: CompleteRun) -> pa.Table | Stored[Table]:
        outcomes, nodes = zip(*run.outcomes(), strict=True)
        rows = sum(outcome.figures.rows for outcome in outcomes)
        if rows < self.many:
            return run.store.read(stage_slices(outcomes, nodes, None))
        patches = {}
        for index in range(len(self.table.partitions)):
            own = range(index, index + 1)
            if any(part.rows for outcome in outcomes for part in outcome.bucket_runs(own)):
                patches[index] = stage_slices(outcomes, nodes, own)
        if not patches:
            return Stored(self.table, 0)
        return Stored(self.tables.patched(self.table, patches, self.columns), rows)

    def accept(self, rows: pa.Table) -> pa.Table | Stored[Table]:
        return rows.remove_column(rows.num_columns - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyMarks(Sink[NDArray[Any] | Stored[Table]]):
    """The numbers of rows that are marked if they are few, or else the table that is changed.

    The query gives a mark for each row of the table, and what `columns` have afterwards; without
    such columns, the marked rows are deleted.
    """

    tables: Tables
    table: Table
    columns: tuple[int, ...]
    many: int  # so many rows, at least
    lossless = True

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """A task for each partition, also of few rows."""
        return options.in_stages()

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        """Pieces that have a row for each of a partition.

        Raises:
            NotByMarksError: it is no such plan.
        """
        *above, scan = plan.nodes()
        is_plain = all(isinstance(node.operator, Project) for node in above)
        count = plan.distribution.partitions
        if not (is_plain and isinstance(scan.operator, Scan) and count == self._count):
            raise NotByMarksError
        return Output(kind=OutputKind.PIECE, columns=columns, in_order=True)

    @property
    def _count(self) -> int:
        return len(self.table.partitions)

    def finish(self, run: CompleteRun) -> NDArray[Any] | Stored[Table]:
        outcomes, partitions = run.outcomes(), self.table.partitions
        counts = [outcome.figures.rows for outcome, _ in outcomes]
        if len(run.stages) > 1 or counts != [partition.rows for partition in partitions]:
            raise NotByMarksError
        try:
            return self._applied(run)
        except FilesLostError as lost:
            raise lost_partitions(self.table, lost.files) or lost from lost

    def _applied(self, run: CompleteRun) -> NDArray[Any] | Stored[Table]:
        slices = [stage_slices([outcome], [node], None) for outcome, node in run.outcomes()]
        marks = [
            as_numbers(run.store.read(piece).column(0)).view(np.bool_)  # which are searched faster
            for piece in slices
        ]
        rows = sum(map(np.count_nonzero, marks))
        if rows < self.many:
            return marked_numbers(self.table, marks)
        if not self.columns:
            return Stored(without_marked(self.table, marks), rows)
        values = {index: piece for index, piece in enumerate(slices) if marks[index].any()}
        return Stored(self.tables.with_values(self.table, values, self.columns), rows)
