"""The rows of a query as data files of a table, written by the tasks of its last stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import pyarrow as pa

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.query.sinks import CompleteRun, Output, Sink
from minishark.tables.warehouse.writer import WRITTEN, WriteRows
from minishark.worker.protocol import OutputKind, TaskFunction


@dataclass(frozen=True, slots=True)
class WriteTable(Sink[list[Any]]):
    """The rows of a query as data files that no table has yet, as the table's changes take them."""

    write: WriteRows
    leaves_plan = True
    needs_tasks = False

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """Many rows in several tasks: what writes them has one thread."""
        return replace(options, threads=1)

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        function = TaskFunction(self.write.table, cloudpickle.dumps(self.write), WRITTEN)
        return Output(kind=OutputKind.RESULT, columns=columns, function=function, lossless=True)

    def finish(self, run: CompleteRun) -> list[Any]:
        return self._written(run.result())

    def accept(self, rows: pa.Table) -> list[Any]:
        return self._written(pa.concat_tables(self.write(rows.to_reader())))

    def _written(self, answer: pa.Table) -> list[Any]:
        return [self.write.layout.file(file) for file in answer.column("file").to_pylist()]
