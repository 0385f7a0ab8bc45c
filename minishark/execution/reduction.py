"""Semi-join reduction: before a fragment runs, its inputs lose rows that its joins would drop.

Its steps are run one after the other; what a step gives filters inputs of those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from minishark.execution.codes import CodedInputs
from minishark.execution.semi_join import SemiJoins
from minishark.execution.task import StageTask
from minishark.stages.inputs import Step, with_ctes

Tables: TypeAlias = Mapping[str, pa.Table]
RunStep: TypeAlias = Callable[[Step, Tables, bool], pa.RecordBatchReader]


@dataclass(slots=True)
class Reduction:
    """Reduces the inputs of one task.

    Attributes:
        stage: the fragment's steps and filters.
        semi_joins: finds the rows.
        run: runs a step over tables, which are the inputs as they were unless `is_new`.
        threads: how many threads may search.
        left_bytes: how much may still be held of steps and inputs.
    """

    stage: StageTask
    semi_joins: SemiJoins
    run: RunStep
    threads: int
    left_bytes: int

    def reduced(self, sql: str, coded: CodedInputs) -> tuple[str, CodedInputs]:
        """What to run for a fragment, and what the names in it mean.

        If its steps give more than may be held, it does them for itself, over all rows.

        Args:
            sql: the fragment.
            coded: its inputs.
        """
        tables, is_new = self._filtered(coded.tables, [*coded.tables])
        for step in self.stage.steps:
            with self.run(step, tables, is_new) as reader:
                table = self._held(reader)
            if table is None:
                own = {step.name: step.sql for step in self.stage.steps}
                return with_ctes(sql, own), coded
            tables, _ = self._filtered({**tables, step.name: table}, [step.name])
            is_new = True
        return sql, CodedInputs(tables, are_mapped=False)

    def _held(self, reader: pa.RecordBatchReader) -> pa.Table | None:
        """All rows; None if they are too many."""
        batches = []
        for batch in reader:
            batches.append(batch)
            self.left_bytes -= batch.nbytes
            if self.left_bytes < 0:
                return None
        return pa.Table.from_batches(batches, reader.schema)

    def _filtered(self, tables: Tables, computed: Collection[str]) -> tuple[Tables, bool]:
        """Tables without the rows that have none of the keys that are `computed`; if there are."""
        found = dict(tables)
        filters = [each for each in self.stage.filters if each.keys in computed]
        for each in filters:
            table = found[each.name].select(each.columns)
            keys = found[each.keys].column(each.key)
            kept = self.semi_joins.filtered(
                table, each, keys, threads=self.threads, bytes_max=self.left_bytes
            )
            if kept is not table:
                self.left_bytes -= kept.nbytes
            found[each.name] = kept
        return found, bool(filters)
