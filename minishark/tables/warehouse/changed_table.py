"""A table of the warehouse as statements change it: places with rows that change are written anew.

A row's number tells its place, such as a file, by that's number among the table's, and which of the
rows there it is.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from minishark.compiler.sql import change_queries as queries
from minishark.errors import DataValueError
from minishark.model.catalog import PATCH_DELETES, ROW_NUMBER, Catalog, Constraints
from minishark.model.expressions import Schema, declared, quote
from minishark.query.sinks import CollectRows, Layout, Sink
from minishark.tables.cached import CachePlan
from minishark.tables.scratch_database import Shell
from minishark.tables.stores import (
    ChangedTable,
    NumberedRows,
    Result,
    StoreContext,
    Stored,
)
from minishark.tables.warehouse.contract import TableChange, TableName
from minishark.tables.warehouse.names import Resolve, change_in_scratch, references, renamed
from minishark.tables.warehouse.sink import WriteTable
from minishark.tables.warehouse.source import PLACE_SHIFT, FixedSource, LocatedRows
from minishark.tables.warehouse.writer import WriteRows


@dataclass(slots=True)
class Files:
    """Files in the place of others."""

    added: list[Any] = field(default_factory=list)  # as `TableChange` takes them
    removed: list[str] = field(default_factory=list)  # places


class WarehouseTable(ChangedTable[Files]):
    """A table as it is after what a change has done so far; its parts are places."""

    part = f"{ROW_NUMBER} >> {PLACE_SHIFT}"

    def __init__(
        self, name: TableName, change: TableChange, context: StoreContext, resolve: Resolve
    ) -> None:
        """A table.

        Args:
            name: its name.
            change: takes what is published.
            context: the session's.
            resolve: gives the planning database's names of tables of the warehouse.
        """
        self._name, self._change, self._context = name, change, context
        self._resolve, self._version = resolve, change.version
        self.called, self.schema = name.table, self._version.columns
        defaults, required = self._version.defaults, self._version.required
        self.constraints = Constraints(defaults)
        columns = declared(self.schema, required, defaults)
        self.shell = Shell(
            name=str(name),
            create=f"CREATE TABLE memory.main.{quote(str(name))} ({columns})",
            types=tuple(column.type for column in self.schema),
        )

    def run(
        self,
        sql: str,
        sink: Sink[Result],
        /,
        *,
        catalog: Catalog | None = None,
        told: str = "",
    ) -> Result:
        """Run a query that names tables of the warehouse."""
        return self._context.run(self.renamed(sql), sink, catalog=catalog, told=told)

    def bind(self, sql: str) -> Schema:
        """The columns of a query that names tables of the warehouse."""
        return self._context.planning.bind(self.renamed(sql)).schema

    def renamed(self, sql: str) -> str:
        """A query with the planning database's names of the warehouse's tables."""
        return renamed(sql, references(sql, self._context.planning.syntax), self._resolve)

    def in_scratch(self, sql: str) -> str:
        return change_in_scratch(sql, self.shell.name, self._resolve)

    # Rows that are there

    @contextlib.contextmanager
    def numbered(self, *, is_alone: bool) -> Iterator[NumberedRows]:
        with self._numbered(None) as relation:
            yield NumberedRows(relation)

    @contextlib.contextmanager
    def _numbered(self, places: frozenset[str] | None) -> Iterator[str]:
        """A relation of the rows, of all places or some, with their numbers."""
        numbers = {place: number for number, place in enumerate(self._version.places())}
        rows = LocatedRows(self._version.snapshot(str(self._name)), numbers, places)
        sources = self._context.sources
        registered = sources.add_unnamed(FixedSource(str(self._name), rows)).name
        try:
            yield quote(registered)
        finally:
            sources.remove(registered)

    # What becomes of them

    def emptied(self) -> Stored[Files]:
        with self.numbered(is_alone=True) as numbered:
            count = self.run(f"SELECT count(*) AS n FROM {numbered.relation}", CollectRows())
        return Stored(Files(removed=[*self._version.places()]), count.column(0)[0].as_py())

    def without(self, numbers: NDArray[Any]) -> Stored[Files]:
        patch = pa.table({"number": numbers})
        patch = patch.append_column("kind", pa.array([PATCH_DELETES] * len(patch), pa.int8()))
        with self._kept(patch) as relation:
            return self._patched(relation, ())

    def patched(
        self, query: str, columns: tuple[int, ...], rows: NumberedRows, *, many: int, told: str
    ) -> Stored[Files]:
        names = ("number", "kind", *(f"v{i}" for i in columns), "part")
        named = f"SELECT * FROM ({self.renamed(query)}) AS p({', '.join(names)})"
        # Stored, as it is read twice, and may be another one when it is computed again.
        with self._kept(named) as relation:
            return self._patched(relation, columns)

    @contextlib.contextmanager
    def _kept(self, rows: str | pa.Table) -> Iterator[str]:
        """A relation of the rows of a query, which are computed once, or of other ones."""
        context = self._context
        if isinstance(rows, str):
            schema = context.planning.bind(rows).schema
            kept = context.promise(CachePlan(rows, schema, Layout(replicas=2), None, ()))
        else:
            kept = context.cached.load(rows)
        try:
            yield quote(kept.name)
        finally:
            context.cached.forget(kept.name)

    def _patched(self, patch: str, columns: tuple[int, ...]) -> Stored[Files]:
        """The files that have rows of a patch, written anew."""
        counts = self.run(
            f"SELECT number >> {PLACE_SHIFT} AS part, count(*) AS n, "
            f"count(*) FILTER (kind = {PATCH_DELETES}) AS gone, "
            f"count(*) - count(DISTINCT number) AS more FROM {patch} GROUP BY ALL ORDER BY 1",
            CollectRows(),
        )
        places = [*self._version.places().items()]
        rows, made, left = 0, Files(), list[str]()
        for part, count, gone, more in zip(*(c.to_pylist() for c in counts.columns), strict=True):
            if more:
                raise DataValueError(queries.CHANGED_TWICE)
            place, stored = places[part]
            made.removed.append(place)
            rows += count
            if gone < stored:
                left.append(place)
        if left:
            names = ("number", "kind", *(f"v{i}" for i in columns))
            target = queries.Target(self.called, self.schema)
            with self._numbered(frozenset(left)) as some:
                made.added += self._written(queries.patched(target, columns, some, patch, names))
        return Stored(made, rows)

    # Rows to be added

    def added(self, query: str, rows: NumberedRows | None = None, *, told: str) -> Stored[Files]:
        files = self._written(query, told)
        return Stored(Files(files), sum(file.record_count for file in files))

    def filled(self, query: str) -> int:
        """Add the rows of a query, whatever their types; how many there are."""
        names = [f"v{i}" for i in range(len(self.schema))]
        columns = queries.Target(self.called, self.schema).typed(dict(enumerate(names)))
        added = self.added(f"SELECT {columns} FROM ({query}) AS v({', '.join(names)})", told=query)
        self.publish(None, added)
        return added.rows

    def _written(self, rows: str | pa.Table, told: str = "") -> list[Any]:
        """The rows of a query, or others, as data files; removed again if that fails."""
        layout = self._change.layout
        write = WriteRows(table=str(self._name), layout=layout, write_id=secrets.token_hex(8))
        try:
            if isinstance(rows, str):
                files = self.run(rows, WriteTable(write), told=told)
            else:
                files = WriteTable(write).accept(rows)
        except BaseException:
            layout.remove_written(write.write_id)
            raise
        self._change.files.extend(file.file_path for file in files)
        return files

    # Versions

    def publish(
        self, patched: Stored[Files] | None, added: Stored[Files] | pa.Table | None
    ) -> None:
        new = [] if patched is None else [*patched.made.added]
        if isinstance(added, Stored):
            new += added.made.added
        elif added is not None:
            new += self._written(added.remove_column(added.num_columns - 1))
        if patched is not None and patched.made.removed:
            self._change.replace(patched.made.removed, new)
        elif new:
            self._change.append(new)
