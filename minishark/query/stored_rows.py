"""Columns of a stored table as a query's rows: its batches as they are, without a task.

Tasks would copy them, and nothing would be read before the last one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from minishark.compiler.logical.operators import Project, Scan
from minishark.compiler.logical.plan import LogicalPlan
from minishark.model.catalog import Table
from minishark.model.expressions import ColumnRef
from minishark.query.inputs import partition_slices
from minishark.worker.columns import ChosenColumns
from minishark.worker.protocol import FileSlice
from minishark.worker.store import InputMissingError, Store


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows that are stored: columns of files, in their order."""

    slices: tuple[FileSlice, ...]
    columns: ChosenColumns

    def read(self, store: Store) -> pa.RecordBatchReader | None:
        """The rows, if they are on this process's host.

        Returns:
            None if a file is missing, or has values in other types that only DuckDB converts.
        """
        parts: list[Iterator[pa.RecordBatch]] = []
        for item in self.slices:
            try:
                rows = self.columns.of(store.read((item,)))
            except InputMissingError:
                return None
            if rows is None:
                return None
            parts.append(rows)
        parts.reverse()
        return pa.RecordBatchReader.from_batches(self.columns.schema, _drained(parts))


class _Plan(Protocol):
    """What is looked at of a query's plan."""

    @property
    def logical(self) -> LogicalPlan: ...

    @property
    def tables(self) -> Mapping[str, Table]: ...

    @property
    def sources(self) -> Collection[str]: ...


def stored_rows(plan: _Plan, schema: Callable[[], pa.Schema]) -> StoredRows | None:
    """The rows of a plan that only chooses columns of a stored table; None for all others.

    Args:
        plan: the plan.
        schema: gives the query's columns, in the types in which users get them.
    """
    chosen = _chosen(plan.logical)
    table = None if chosen is None else plan.tables.get(chosen[0].lower())
    if chosen is None or table is None or table.is_source or table.name.lower() in plan.sources:
        return None
    names = [column.name.lower() for column in table.schema]
    positions = tuple(names.index(name.lower()) for name in chosen[1])
    slices = tuple(item for partition in table.partitions for item in partition_slices(partition))
    return StoredRows(slices, ChosenColumns(positions, schema()))


def _drained(parts: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """All batches; a file is unmapped when its last one was read. Empties `parts`, from its end."""
    while parts:
        yield from parts.pop()


def _chosen(plan: LogicalPlan) -> tuple[str, tuple[str, ...]] | None:
    """The table, and the names of its columns, if a plan does nothing but choose some."""
    match plan.operator:
        case Scan(table=table, columns=columns):
            names = [name for name in columns if name is not None]
            return (table, tuple(names)) if names and len(names) == len(columns) else None
        case Project(outputs=outputs):
            below = _chosen(plan.children[0])
            positions = [output.index for output in outputs if isinstance(output, ColumnRef)]
            if below is None or len(positions) < len(outputs):
                return None
            return below[0], tuple(below[1][i] for i in positions)
        case _:
            return None
