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
class WrittenRows:
    """What tasks have written."""

    files: tuple[Any, ...]  # data files, as the table's changes take them
    changed: int  # how many rows were marked to be counted

    @property
    def rows(self) -> int:
        return sum(file.record_count for file in self.files)


@dataclass(frozen=True, slots=True)
class WriteTable(Sink[WrittenRows]):
    """The rows of a query as data files that no table has yet."""

    write: WriteRows
    distributes_files = True
    needs_tasks = False

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """Many rows in several tasks: what writes them has one thread."""
        return replace(options, threads=1)

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        function = TaskFunction(self.write.table, cloudpickle.dumps(self.write), WRITTEN)
        return Output(kind=OutputKind.RESULT, columns=columns, function=function, lossless=True)

    def finish(self, run: CompleteRun) -> WrittenRows:
        return self._written(run.result())

    def accept(self, rows: pa.Table) -> WrittenRows:
        return self._written(pa.concat_tables(self.write(rows.to_reader())))

    def _written(self, answer: pa.Table) -> WrittenRows:
        described = answer.column("file").to_pylist()
        files = [self.write.layout.file(file) for file in described if file is not None]
        return WrittenRows(tuple(files), sum(answer.column("changed").to_pylist()))
