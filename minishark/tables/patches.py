"""Changes of rows that a query finds: by the front end if they are few, by tasks if they are many.

The query gives a patch (`worker/patches.py`): the numbers of rows, what becomes of each, and new
values. Tasks leave it in pieces, one for each partition of the table; if it is large, further tasks
near these store them again, each with its piece. Only the numbers of files and rows pass through
the front end.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from minishark.cluster.backend import FilesLostError
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.model.catalog import Table
from minishark.query.inputs import lost_partitions, stage_slices
from minishark.query.sinks import CompleteRun, Output, Sink
from minishark.tables.stores import Stored
from minishark.tables.tables import Tables
from minishark.worker.protocol import OutputKind


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
