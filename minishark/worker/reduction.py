"""What a task does to the inputs of a fragment, so that DuckDB has less to do.

Inputs lose rows that the fragment's joins would drop: its steps are run one after the other, and
what a step gives filters inputs of those that follow. Groups that are runs of rows are found
without DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from msgspec import structs

from minishark.compiler.stages.inputs import Step, with_ctes
from minishark.worker.codes import CodedInputs
from minishark.worker.group_runs import runs_of
from minishark.worker.helpers import Helpers
from minishark.worker.protocol import StageTask
from minishark.worker.semi_join import semi_joined

Tables: TypeAlias = Mapping[str, pa.Table]
RunStep: TypeAlias = Callable[[Step, Tables, bool], pa.RecordBatchReader]


@dataclass(slots=True)
class Reduction:
    """Reduces the inputs of one task.

    Attributes:
        stage: the fragment's runs, steps and filters.
        helpers: threads that share the work.
        run: runs a step over tables, which are the inputs as they were unless `is_new`.
        threads: how many threads may work.
        left_bytes: how much may still be held of runs, steps and inputs.
    """

    stage: StageTask
    helpers: Helpers
    run: RunStep
    threads: int
    left_bytes: int
    _groups: dict[str, str] = field(default_factory=dict)

    def reduced(self, sql: str, coded: CodedInputs) -> tuple[str, CodedInputs]:
        """What to run for a fragment, and what the names in it mean.

        If its steps give more than may be held, it does them for itself, over all rows.

        Args:
            sql: the fragment.
            coded: its inputs.
        """
        with_runs = self._with_runs(coded)
        tables, has_filters = self._filtered(with_runs.tables, [*coded.tables])
        is_new = has_filters or not with_runs.are_mapped
        for step in self.stage.steps:
            with self.run(self._with_groups(step), tables, is_new) as reader:
                table = self._held(reader)
            if table is None:
                own = {step.name: step.sql for step in self.stage.steps}
                return with_ctes(sql, own, self._groups), with_runs
            tables, _ = self._filtered({**tables, step.name: table}, [step.name])
            is_new = True
        return with_ctes(sql, {}, self._groups), CodedInputs(tables, are_mapped=not is_new)

    def _with_runs(self, coded: CodedInputs) -> CodedInputs:
        """Inputs with the runs that groups are made of; how, is known from now on."""
        found = dict(coded.tables)
        for each in self.stage.runs:
            runs = runs_of(
                found[each.input],
                each,
                self.helpers,
                threads=self.threads,
                bytes_max=self.left_bytes,
            )
            if runs is None:
                self._groups[each.name] = each.hashed
                continue
            self.left_bytes -= runs.table.nbytes
            self._groups[each.name] = each.single if runs.are_groups else each.merged
            found[each.runs] = runs.table
        return CodedInputs(found, coded.are_mapped and len(found) == len(coded.tables))

    def _with_groups(self, step: Step) -> Step:
        """A step that knows the groups."""
        if not self._groups:
            return step
        return structs.replace(step, sql=with_ctes(step.sql, {}, self._groups))

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
            kept = semi_joined(
                table, each, keys, self.helpers, threads=self.threads, bytes_max=self.left_bytes
            )
            if kept is not table:
                self.left_bytes -= kept.nbytes
            found[each.name] = kept
        return found, bool(filters)
