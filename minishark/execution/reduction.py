"""Semi-join reduction: before a fragment runs, its inputs lose rows that its joins would drop.

Its steps are run one after the other; what a step gives filters inputs of those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from minishark.execution.codes import CodedInputs
from minishark.execution.semi_join import SemiJoins
from minishark.execution.task import StageTask
from minishark.stages.inputs import Step

Tables: TypeAlias = Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class Reducer:
    """Reduces the inputs of fragments.

    Attributes:
        semi_joins: finds the rows.
        threads: how many threads may search.
        bytes_max: how much may be held of a step, or of an input.
    """

    semi_joins: SemiJoins
    threads: int
    bytes_max: int

    def reduced(
        self,
        sql: str,
        stage: StageTask,
        coded: CodedInputs,
        run: Callable[[Step, Tables], pa.RecordBatchReader],
    ) -> tuple[str, CodedInputs]:
        """What to run for a fragment, and what the names in it mean.

        If a step gives more than may be held, the fragment does it for itself, over all rows.

        Args:
            sql: the fragment.
            stage: its steps and filters.
            coded: its inputs.
            run: runs a step over tables: `coded.tables` themselves if nothing was filtered yet.
        """
        tables = self._filtered(stage, coded.tables, [*coded.tables])
        for step in stage.steps:
            with run(step, tables) as reader:
                table = self._held(reader)
            if table is None:
                return _with_steps(sql, stage.steps), coded
            tables = self._filtered(stage, {**tables, step.name: table}, [step.name])
        return sql, CodedInputs(tables, are_mapped=False)

    def _held(self, reader: pa.RecordBatchReader) -> pa.Table | None:
        """All rows; None if they are too many."""
        batches, left = [], self.bytes_max
        for batch in reader:
            batches.append(batch)
            left -= batch.nbytes
            if left < 0:
                return None
        return pa.Table.from_batches(batches, reader.schema)

    def _filtered(self, stage: StageTask, tables: Tables, computed: Collection[str]) -> Tables:
        """Tables without the rows that have none of the keys that are `computed` now."""
        found = {
            each.name: self.semi_joins.filtered(
                tables[each.name],
                each,
                tables[each.keys].column(each.key),
                threads=self.threads,
                bytes_max=self.bytes_max,
            )
            for each in stage.filters
            if each.keys in computed
        }
        return {**tables, **found} if found else tables


def _with_steps(sql: str, steps: Iterable[Step]) -> str:
    """A fragment that does its steps for itself."""
    ctes = (f"{step.name} AS MATERIALIZED ({step.sql})" for step in steps)
    return f"WITH {', '.join(ctes)} {sql}"
