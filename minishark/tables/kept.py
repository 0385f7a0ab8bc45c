"""Queries whose rows stay in the cluster, as the partitions of a table.

Where rows lie already as the table's shall, each task of the last stage stores its partition. Else
that stage leaves pieces, and the tasks that load tables make partitions of them: of equal size and
in the query's order, or divided by the hash of columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from minishark.catalog import Table
from minishark.cluster.backend import FilesLostError
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.repartition import hash_columns, hashed_on, ranged_on, together
from minishark.compiler.sql.arrow_types import kept_by_arrow
from minishark.errors import CatalogError
from minishark.expressions import Column, Schema, numbered
from minishark.query.run import QueryRun
from minishark.query.sinks import Ending, Gathered, Layout, Partitions, Pieces, Sink
from minishark.tables.load import TableSource, stored_table
from minishark.tables.sources import SourceSize
from minishark.tables.tables import Tables
from minishark.worker.protocol import FileSlice, TaskFunction


@dataclass(frozen=True, slots=True)
class Keep:
    """The goal to have the rows of a query as a table that nobody knows yet.

    Attributes:
        tables: makes it.
        name: what it is called.
        schema: its columns.
        folder: its folder.
        layout: how it lies.
        function: what the rows go through before.
    """

    tables: Tables
    name: str
    schema: Schema
    folder: str
    layout: Layout
    function: TaskFunction | None = None

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """Python takes its time with few rows, too: partitions stay apart for it."""
        return options.in_stages() if self.function else options

    def shaped(self, plan: PhysicalPlan) -> PhysicalPlan:
        """Equal keys in one partition, if there are keys."""
        if self.function is not None:
            keys = self.function.keys
            return together(plan, keys, self._count) if keys else plan
        if self.layout.ranges:
            return ranged_on(plan, self._positions(self.layout.ranges), self._count)
        keys = self._positions(self.layout.partition_by)
        return hashed_on(plan, keys, self._count) if keys and self._count > 1 else plan

    @property
    def _count(self) -> int:
        return self.layout.partitions or self.tables.partitions

    def _positions(self, wanted: tuple[str, ...]) -> tuple[int, ...]:
        names = [column.name for column in self.schema]
        return tuple(names.index(name) for name in wanted)

    def _kept_by(self, plan: PhysicalPlan) -> tuple[str, ...] | None:
        """The columns by which the tasks' rows are partitions already; None if they are not.

        No columns where rows may lie anywhere.
        """
        count = plan.distribution.partitions
        if self.layout.even or self.layout.partitions not in (None, count):
            return None
        if self.layout.ranges:
            return ()
        if self.function is not None:
            return None if self.layout.partition_by else ()
        found = hash_columns(plan) if count > 1 else None
        names = tuple(self.schema[i].name for i in found) if found is not None else None
        return names if self.layout.partition_by in ((), names) else None

    def ending(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Ending:
        """Partitions, or pieces to make them of."""
        if self.function is None:
            columns = tuple(column.name for column in self.schema)
        if self._kept_by(plan) is None:
            return Ending(Pieces(self._count), columns, self.function)
        copies = self.tables.copies(plan.distribution.partitions, self.layout.replicas)
        return Ending(Partitions(self.folder, copies), columns, self.function)

    def reached(self, run: QueryRun) -> Table:
        """The table."""
        sink: Sink = run.ending.sink
        if isinstance(sink, Partitions):
            keys = self._kept_by(run.stages[-1].plan)
            assert keys is not None
            loaded = stored_table([outcome for outcome, _ in run.outcomes()])
            return self.tables.described(self.name, self.schema, keys, loaded, sink.replicas)
        while True:
            try:
                return self._loaded(run)
            except FilesLostError as lost:
                run.remake(lost)

    def _loaded(self, run: QueryRun) -> Table:
        """The table, made of the pieces that the query's tasks have left."""
        source, size = _pieces(run, self.schema)
        layout = self.tables.layout(
            self.layout.partition_by, self.layout.partitions, self.layout.replicas, size
        )
        with self.tables.passing(self.folder):
            return self.tables.load(self.name, self.folder, source, layout)


@dataclass(frozen=True, slots=True)
class Passed:
    """The goal to have what a function makes of a query's rows here, as one Arrow table.

    Attributes:
        function: the function.
    """

    function: TaskFunction

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """Python takes its time with few rows, too: partitions stay apart for it."""
        return options.in_stages()

    def shaped(self, plan: PhysicalPlan) -> PhysicalPlan:
        """As it is."""
        return plan

    def ending(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Ending:
        """What the function gives comes to the front end."""
        del plan
        return Ending(Gathered(), columns, self.function)

    def reached(self, run: QueryRun) -> pa.Table:
        """All that it gave, partition by partition."""
        return run.result()


def _pieces(run: QueryRun, schema: Schema) -> tuple[TableSource, SourceSize]:
    """What the last stage left, as a source in the query's order."""
    slices: list[FileSlice] = []
    counts: list[int] = []
    for outcome, node in run.outcomes():
        assert outcome.file is not None
        for part in outcome.buckets:
            slices.append(FileSlice(outcome.file, (node,), part.first, part.last))
            counts.append(part.rows)
    size = SourceSize(sum(outcome.nbytes for outcome, _ in run.outcomes()), sum(counts))
    if not slices:
        outcome, node = run.outcomes()[0]
        assert outcome.file is not None
        slices, counts = [FileSlice(outcome.file, (node,))], [0]
    return TableSource(schema, slices=tuple(slices), rows=tuple(counts)), size


def table_schema(schema: Schema) -> Schema:
    """Columns with names that a table can have.

    Raises:
        CatalogError: there is no column.
    """
    if not schema:
        raise CatalogError("A table needs at least one column.")
    names = numbered(column.name for column in schema)
    return tuple(Column(name, column.type) for name, column in zip(names, schema, strict=True))


_ENUM = re.compile(r"ENUM\('(?:[^']|'')*'(?:, '(?:[^']|'')*')*\)")


def stored_schema(schema: Schema) -> Schema:
    """Columns in types that Arrow brings back as they are: text for ENUMs."""
    return tuple(Column(c.name, _ENUM.sub("VARCHAR", c.type)) for c in schema)


def as_stored(sql: str, schema: Schema) -> str:
    """A query with its columns in the types of `stored_schema`.

    Args:
        sql: the query.
        schema: its columns.
    """
    if kept_exactly(schema):
        return sql
    names = [f"c{i}" for i in range(len(schema))]
    casts = [
        f"CAST({name} AS {column.type}) AS {name}"
        for name, column in zip(names, stored_schema(schema), strict=True)
    ]
    return f"SELECT {', '.join(casts)} FROM ({sql}) AS t({', '.join(names)})"


def kept_exactly(schema: Schema) -> bool:
    """Whether Arrow brings all columns back in the type that they have."""
    return kept_by_arrow(column.type for column in schema)
