"""Query results stored as the partitions of a table.

If the query's rows are partitioned already as the table should be, each task of the last stage
stores its partition. Otherwise that stage leaves pieces, and the tasks that load tables make
partitions of them: of equal size in the query's order, or by the hash of columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.repartition import hash_columns, hashed_on, ranged_on, together
from minishark.errors import CatalogError
from minishark.model.catalog import Table
from minishark.model.expressions import Column, Schema, numbered
from minishark.query.sinks import CompleteRun, Layout, Output, Sink
from minishark.tables.load import TableLayout, TableSource, stored_table
from minishark.tables.sources import SourceSize
from minishark.tables.tables import Tables
from minishark.worker.protocol import FileSlice, OutputKind, TaskFunction

_ENUM = re.compile(r"ENUM\('(?:[^']|'')*'(?:, '(?:[^']|'')*')*\)")


# Arrow forgets the tag of a UNION that is NULL; the others come back as other types.
_LOST = re.compile(r"\b(?:ENUM|TUPLE|UNION)\(|\b(?:AGGREGATE_STATE|VARIANT)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAsTable(Sink[Table]):
    """The rows of a query as a table that is not published yet."""

    tables: Tables
    name: str
    schema: Schema
    folder: str
    layout: Layout
    function: TaskFunction | None = None  # a Python function to which the rows are passed first
    lossless = True

    def distributes_files(self, options: PlannerOptions) -> bool:
        """A function takes longer than reading, and is called by all tasks that there may be.

        What one task reads as a whole has no name, and so is computed again by other sessions.
        """
        return self.function is not None or options.reuses

    @property
    def needs_tasks(self) -> bool:
        """Functions run in tasks, and so do the sorts that make ranges."""
        return self.function is not None or bool(self.layout.ranges)

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """With a function or partitions that the user made, several tasks even for few rows."""
        return options.in_stages() if self.function or self.layout.kept else options

    def shape(self, plan: PhysicalPlan) -> PhysicalPlan:
        """Rows with equal keys in one partition, if there are keys."""
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

    def _positions(self, names: tuple[str, ...]) -> tuple[int, ...]:
        columns = [column.name for column in self.schema]
        return tuple(columns.index(name) for name in names)

    def _partitioned_by(self, plan: PhysicalPlan) -> tuple[str, ...] | None:
        """The columns by which the plan's tasks hash-partition; None if tasks are no partitions."""
        # An empty tuple if tasks may become partitions, with rows anywhere.
        count = plan.distribution.partitions
        if self.layout.even or self.layout.partitions not in (None, count):
            return None
        if self.layout.ranges:
            return ()
        if self.function is not None:
            return None if self.layout.partition_by else ()
        positions = hash_columns(plan) if count > 1 else None
        names = tuple(self.schema[i].name for i in positions) if positions is not None else None
        if names is None and self.layout.kept:
            return ()
        return names if self.layout.partition_by in ((), names) else None

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        """Partitions, or pieces to load partitions from."""
        if self.function is None:
            columns = tuple(column.name for column in self.schema)
        if self._partitioned_by(plan) is None:
            return Output(
                kind=OutputKind.PIECE, columns=columns, function=self.function, cuts=self._count
            )
        return Output(
            kind=OutputKind.PARTITION,
            columns=columns,
            function=self.function,
            folder=self.folder,
            replicas=self.tables.copies(plan.distribution.partitions, self.layout.replicas),
        )

    def finish(self, run: CompleteRun) -> Table:
        if run.output.kind is OutputKind.PARTITION:
            keys = self._partitioned_by(run.stages[-1].plan)
            assert keys is not None, "only a plan that partitions as the table does has this output"
            loaded = stored_table([outcome for outcome, _ in run.outcomes()])
            return self.tables.described(
                self.name, self.schema, keys, loaded, replicas=run.output.replicas
            )
        source, size = _pieces(run, self.schema)
        layout = self.tables.layout(self.layout, size)
        return self.tables.load(self.name, self.folder, source, layout)

    def accept(self, rows: pa.Table) -> Table:
        rows = rows.rename_columns([column.name for column in self.schema])
        return self.tables.build(self.name, self.folder, rows, self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMany(Sink[pa.Table | Table]):
    """Rows to be added to a table: in the front end if they are few.

    If they are many, tasks store them in the table's folder, as the partitions of another table of
    the same layout, which is not published.
    """

    tables: Tables
    table: Table  # to which they will be added
    many: int  # so many rows, at least
    lossless = True
    leaves_plan = True
    needs_tasks = False

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        names = tuple(column.name for column in self.table.schema)
        return Output(kind=OutputKind.PIECE, columns=names, cuts=self.tables.partitions)

    def finish(self, run: CompleteRun) -> pa.Table | Table:
        table, tables = self.table, self.tables
        source, size = _pieces(run, table.schema)
        if size.rows is None or size.rows < self.many:
            return run.store.read(source.slices)
        count = len(table.partitions) if table.is_hashed else tables.partitions
        layout = TableLayout(table.partition_by, count, max(2, table.replicas))
        return tables.load(table.name, table.folder, source, layout, verb="add rows to")

    def accept(self, rows: pa.Table) -> pa.Table | Table:
        return rows.rename_columns([column.name for column in self.table.schema])


def _pieces(run: CompleteRun, schema: Schema) -> tuple[TableSource, SourceSize]:
    """The last stage's output as a source, in the query's order and in the layout of partitions."""
    assert run.output.kind is OutputKind.PIECE, "pieces have that layout, results have users' types"
    slices: list[FileSlice] = []
    counts: list[int] = []
    for outcome, node in run.outcomes():
        assert outcome.file is not None, "pieces are stored in files"
        for part in outcome.buckets:
            slices.append(FileSlice(outcome.file, (node,), part.first, part.last))
            counts.append(part.rows)
    size = SourceSize(sum(outcome.figures.bytes for outcome, _ in run.outcomes()), sum(counts))
    if not slices:
        # Without rows, one empty file still tells the columns.
        outcome, node = run.outcomes()[0]
        assert outcome.file is not None, "pieces are stored in files"
        slices, counts = [FileSlice(outcome.file, (node,))], [0]
    source = TableSource(schema=schema, slices=tuple(slices), rows=tuple(counts), are_stored=True)
    return source, size


def table_schema(schema: Schema) -> Schema:
    """A query's columns under names that a table can have: unique ones."""
    if not schema:
        raise CatalogError("A table needs at least one column.")
    names = numbered(column.name for column in schema)
    return tuple(Column(name, column.type) for name, column in zip(names, schema, strict=True))


def stored_schema(schema: Schema) -> Schema:
    """Columns in types that survive a round trip through Arrow: VARCHAR for ENUM."""
    return tuple(Column(c.name, _ENUM.sub("VARCHAR", c.type)) for c in schema)


def as_stored(sql: str, schema: Schema) -> str:
    """A query with its columns cast to the types of `stored_schema`."""
    if survives_arrow(schema):
        return sql
    names = [f"c{i}" for i in range(len(schema))]
    casts = [
        f"CAST({name} AS {column.type}) AS {name}"
        for name, column in zip(names, stored_schema(schema), strict=True)
    ]
    return f"SELECT {', '.join(casts)} FROM ({sql}) AS t({', '.join(names)})"


def survives_arrow(schema: Schema) -> bool:
    """Whether all columns keep their types in a round trip through Arrow."""
    return kept_by_arrow(column.type for column in schema)


def kept_by_arrow(types: Iterable[str]) -> bool:
    return not any(map(_LOST.search, types))
