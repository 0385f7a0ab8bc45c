"""Tables in the cluster's memory as statements change them: by deltas, or stored again by tasks."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.compiler.rules.source_pushdown import predicates_of
from minishark.compiler.stages.fragment import bucket_column
from minishark.model.catalog import (
    PARTITION_SHIFT,
    ROW_NUMBER,
    CatalogView,
    ColumnStatistics,
    Table,
    TableStatistics,
)
from minishark.model.expressions import ColumnRef, declared, quote, quote_text
from minishark.model.predicates import Comparison, Predicate
from minishark.query.sinks import CollectRows
from minishark.tables.changed_statistics import joined_statistics, statistics_of
from minishark.tables.deltas import (
    SCATTERED_ROWS,
    changed_files,
    versions,
    with_column,
    without_rows,
)
from minishark.tables.memory_transaction import AddedRows, MemoryTransaction, measured, with_rows
from minishark.tables.patches import ApplyMarks, ApplyPatch, NotByMarksError
from minishark.tables.scratch_database import AddedColumn, NewKeys, Shell
from minishark.tables.store import StoreMany
from minishark.tables.stores import ChangedTable, NumberedRows, StoreContext, Stored
from minishark.tables.tables import numbered_name
from minishark.worker.columns import flags
from minishark.worker.statistics import is_measured

_VALUES_MAX = 1_000  # in the text of a query; more go to the cluster as rows
_FEW_BYTES = 1 << 20  # one process searches them in less time than a query takes to begin
_KEYS_MAX = 100_000  # that one process looks for
_INTEGER = re.compile(r"U?(?:TINY|SMALL|BIG)?INT(?:EGER)?")


class MemoryTable(ChangedTable[Table]):
    """A version of a table; its parts are partitions."""

    part = f"{ROW_NUMBER} >> {PARTITION_SHIFT}"

    def __init__(
        self, table: Table, context: StoreContext, open_: MemoryTransaction | None
    ) -> None:
        self._table, self._context, self._open = table, context, open_
        self.called, self.schema, self.placed_by = table.name, table.schema, table.partition_by
        self.shell = _shell(table)
        self.many = max(context.tables.sizes.patched, table.rows // SCATTERED_ROWS)
        self.constraints = table.constraints

    # Rows that are there

    @contextlib.contextmanager
    def numbered(self, *, is_alone: bool) -> Iterator[NumberedRows]:
        with self._context.tables.numbered(self._table, is_alone=is_alone) as numbered:
            view = CatalogView(self._context.catalog, [numbered])
            yield NumberedRows(quote(numbered.name), view)

    def few_rows(self, search: Callable[[str], str]) -> pa.Table | None:
        if self._context.on_hosts():
            return None
        deltas = self._context.tables.deltas
        if self._table.bytes <= _FEW_BYTES:
            return deltas.all_rows(self._table)
        predicates = self._predicates(search)
        return deltas.rows_within(self._table, predicates, self.many) if predicates else None

    def _predicates(self, search: Callable[[str], str]) -> Sequence[Predicate]:
        name = self._table.name
        plan = self._context.planning.plan_of(search(quote(name)))
        places = predicates_of(plan, (name.lower(),)).get(name.lower(), ())
        return places[0] if len(places) == 1 else ()

    def rows_at(self, numbers: NDArray[Any]) -> pa.Table | None:
        if self._context.on_hosts():
            return None
        return self._context.tables.deltas.rows_at(self._table, numbers)

    def holders(self, keys: NewKeys, *, are_likely: bool = False) -> pa.Table:
        context, table = self._context, self._table
        by_name = {column.name.lower(): column for column in table.schema}
        columns = [by_name[name.lower()] for name in keys.columns]
        names = [f"c{i}" for i in range(len(columns))]
        values = keys.values.rename_columns(names).slice(0, None if table.rows else 0)
        if len(columns) == 1 and _INTEGER.fullmatch(columns[0].type):
            numbers = [int(text) for text in values.column(0).to_pylist()]
            within = _within(numbers, table.column_statistics(columns[0].name))
            found = self._held_here(columns[0].name, [*itertools.compress(numbers, within)])
            if found is not None:
                return found
            values = values.filter(flags(np.array(within, np.bool_)))
        if not values.num_rows:
            return values
        held = None
        if values.num_rows <= _VALUES_MAX:
            rows = zip(*(column.to_pylist() for column in values.columns), strict=True)
            texts = (f"({', '.join(map(_literal, row))})" for row in rows)
            given = f"(VALUES {', '.join(texts)}) AS v({', '.join(names)})"
        else:
            held = context.cached.load(values)
            given = quote(held.name)
        typed = ", ".join(
            f"CAST({name} AS {column.type}) AS {name}"
            for name, column in zip(names, columns, strict=True)
        )
        equal = " AND ".join(
            f"t.{quote(column.name)} = k.{name}"
            for name, column in zip(names, columns, strict=True)
        )
        wanted = f"SEMI JOIN (SELECT {typed} FROM {given}) AS k ON {equal}"
        if held is None and len(columns) == 1:  # which scans test
            casts = (f"CAST({_literal(key)} AS {columns[0].type})" for key in values[0].to_pylist())
            wanted = f"WHERE t.{quote(columns[0].name)} IN ({', '.join(casts)})"
        told = f"keys of {table.name}"
        # Otherwise, mostly there is none: other columns need not be read, nor rows be numbered.
        some = f"SELECT t.{quote(columns[0].name)} FROM {quote(table.name)} AS t {wanted} LIMIT 1"
        if not (are_likely or context.run(some, CollectRows(), told=told).num_rows):
            return values.slice(0, 0)
        with self.numbered(is_alone=True) as numbered:  # or beside a few keys
            whole = f"SELECT t.* FROM {numbered.relation} AS t {wanted}"
            sink = CollectRows(lossless=True)
            return context.run(whole, sink, catalog=numbered.catalog, told=told)

    def _held_here(self, column: str, keys: Sequence[int]) -> pa.Table | None:
        """The rows that have one of these keys in a column; None if tasks look for them."""
        if self._context.on_hosts() or not 0 < len(keys) <= _KEYS_MAX:
            return None
        wanted = (
            Predicate(column, Comparison.GREATER_OR_EQUAL, (min(keys),)),
            Predicate(column, Comparison.LESS_OR_EQUAL, (max(keys),)),
            Predicate(column, Comparison.IN, tuple(keys)),
        )
        return self._context.tables.deltas.rows_within(self._table, wanted, len(keys))

    # Rows to be added

    def added(
        self, query: str, rows: NumberedRows | None = None, *, told: str
    ) -> pa.Table | Stored[Table]:
        tables = self._context.tables
        sink = StoreMany(tables=tables, table=self._table, many=tables.sizes.stored)
        catalog = None if rows is None else rows.catalog
        stored = self._context.run(query, sink, catalog=catalog, told=told)
        return Stored(stored, stored.rows) if isinstance(stored, Table) else stored

    def wrong_rows(self, added: Stored[Table]) -> pa.Table | None:
        context, table, says = self._context, self._table, self.constraints
        new = replace(added.made, name=numbered_name(f"new_{table.folder}"))
        rows = quote(new.name)
        wrong = [f"FROM {rows} WHERE NOT ({query}) LIMIT 1" for query in says.checks]
        for columns in says.keys:
            names = ", ".join(map(quote, columns))
            filled = " AND ".join(f"{quote(name)} IS NOT NULL" for name in columns)
            twice = f"FROM {rows} WHERE {filled} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
            wrong += [
                f"FROM {rows} SEMI JOIN (SELECT {names} {twice}) USING ({names}) LIMIT 2",
                f"FROM {rows} SEMI JOIN {quote(table.name)} USING ({names}) LIMIT 1",
            ]
        view, sink = CatalogView(context.catalog, [new]), CollectRows(lossless=True)
        context.tables.planning.put_table(new)
        try:
            for query in wrong:
                told = f"constraints of {table.name}"
                broken = context.run(query, sink, catalog=view, told=told)
                if broken.num_rows:
                    return broken
            return None
        finally:
            context.tables.planning.remove_table(new.name)

    def to_be_marked(self, search: Callable[[str], str], *, sets: bool) -> str | None:
        # What is marked is read here. And to find few rows, fewer values are computed.
        if self._context.on_hosts() or (sets and any(map(self._is_rare, self._predicates(search)))):
            return None
        return quote(self._table.name)

    def marked(
        self, query: str, columns: tuple[int, ...], *, told: str
    ) -> NDArray[Any] | Stored[Table] | None:
        table, context = self._table, self._context
        sink = ApplyMarks(tables=context.tables, table=table, columns=columns, many=self.many)
        catalog = CatalogView(context.catalog, [table])
        try:
            return context.run(query, sink, catalog=catalog, told=told)
        except NotByMarksError:
            return None

    def _is_rare(self, predicate: Predicate) -> bool:
        """Whether a predicate is true for few rows, as far as is known."""
        distinct = self._table.column_statistics(predicate.column)
        if predicate.comparison not in (Comparison.EQUAL, Comparison.IN) or distinct is None:
            return False
        rows = self._table.rows * len(predicate.values) / (distinct.distinct or 1)
        return rows < self.many

    # Versions

    def emptied(self) -> Stored[Table]:
        return Stored(self._context.tables.deltas.emptied(self._table), self._table.rows)

    def without(self, numbers: NDArray[Any]) -> Stored[Table]:
        return Stored(without_rows(self._table, numbers), len(numbers))

    def patched(
        self, query: str, columns: tuple[int, ...], rows: NumberedRows, *, many: int, told: str
    ) -> pa.Table | Stored[Table]:
        tables = self._context.tables
        sink = ApplyPatch(tables=tables, table=self._table, columns=columns, many=many)
        return self._context.run(query, sink, catalog=rows.catalog, told=told)

    def publish(
        self, patched: Stored[Table] | None, added: Stored[Table] | pa.Table | None
    ) -> None:
        new = self._table if patched is None else patched.made
        rows = None
        if isinstance(added, Stored):
            new = self._with_table(new, added.made)
        elif added is not None:
            rows = _added(added)
            new = with_rows(self._context.tables, new, rows)
        if new is self._table:
            return
        try:
            # Another transaction may add rows with the same keys: both can't be committed.
            self._next(new, rows, adds=patched is None and not self.constraints.keys)
        except BaseException:
            self._context.tables.retire(changed_files(new, self._table))
            raise

    def comment(self, sql: str) -> None:
        """Make the next version, after a COMMENT."""
        definition = self._context.scratch.commented(sql, self.shell)
        self._next(replace(self._table, definition=definition, version=next(versions)))

    def add_column(self, added: AddedColumn) -> None:
        """Make the next version, with a column."""
        table = self._table
        new = with_column(table, added.column, added.row)
        of_one = statistics_of((added.column,), added.row, 0).columns
        of_all = of_one if is_measured(added.column.type) else (ColumnStatistics(),)
        columns = (*table.statistics.columns, *of_all)
        statistics = TableStatistics(new.rows, new.bytes, columns)
        definition, says = added.definition, added.constraints
        new = replace(new, statistics=statistics, definition=definition, constraints=says)
        self._next(new)

    def discard(self, *made: Stored[Table] | pa.Table | None) -> None:
        for part in made:
            if isinstance(part, Stored):
                self._context.tables.retire(changed_files(part.made, self._table))

    def _with_table(self, table: Table, added: Table) -> Table:
        """A version, with the rows of another table that tasks have stored."""
        tables = self._context.tables
        files = {part.file: part.locations for part in added.partitions}
        try:
            new = tables.deltas.with_partitions(table, added)
        except BaseException:
            tables.retire(files)
            raise
        kept = {part.file for part in new.partitions}
        tables.retire({file: nodes for file, nodes in files.items() if file not in kept})
        joined = joined_statistics(table.statistics, table.schema, added.statistics)
        return replace(new, statistics=joined)

    def _next(self, new: Table, added: AddedRows | None = None, *, adds: bool = False) -> None:
        """Let the next statements see a version with these rows; `adds` if that is all."""
        tables, old = self._context.tables, self._table
        new = measured(tables.merged(new), new, added)
        if self._open is not None:
            self._open.change(old, new, added if adds else None)
        else:
            (published,) = tables.changed((old, new))
            self._context.merger.look(published)


def _shell(table: Table) -> Shell:
    """What an empty table is like that stands for another one."""
    columns = declared(table.schema)
    return Shell(
        name=table.name,
        create=table.definition or f"CREATE TABLE memory.main.{quote(table.name)} ({columns})",
        keys=table.constraints.keys,
        types=tuple(column.type for column in table.schema),
        bucket=_bucket(table),
    )


def _bucket(table: Table) -> str:
    """An expression for the number of a row's partition."""
    if not table.is_hashed:
        return "0 AS bucket"
    names = [quote(column.name) for column in table.schema]
    positions = {column.name.lower(): i for i, column in enumerate(table.schema)}
    keys = [positions[name.lower()] for name in table.partition_by]
    columns = [ColumnRef(i, table.schema[i].type) for i in keys]
    return bucket_column(columns, names, len(table.partitions))


def _literal(text: str) -> str:
    return " || chr(0) || ".join(map(quote_text, text.split("\0")))  # which no literal can contain


def _within(keys: Sequence[int], statistics: ColumnStatistics | None) -> Sequence[bool]:
    """Which keys are within the bounds of their column."""
    if statistics is None or statistics.minimum is None or statistics.maximum is None:
        return [True] * len(keys)
    low, high = int(statistics.minimum), int(statistics.maximum)
    return [low <= key <= high for key in keys]


def _added(rows: pa.Table) -> AddedRows:
    """Rows whose last column has the numbers of their partitions."""
    last = rows.num_columns - 1
    return AddedRows(rows.remove_column(last), rows.column(last).combine_chunks())
