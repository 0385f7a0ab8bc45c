"""A table of the warehouse as statements change it: files with rows that change are written anew.

A row's number tells its file, by its place among the table's files, and its place in that.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from minishark.catalog import PATCH_DELETES, ROW_NUMBER, Catalog
from minishark.compiler.sql import change_queries as queries
from minishark.errors import DataValueError
from minishark.expressions import Schema, quote
from minishark.query.sinks import CollectRows, Layout, Sink
from minishark.tables.cached import CachePlan
from minishark.tables.scratch_database import Shell
from minishark.tables.stores import (
    Added,
    ChangedTable,
    NumberedRows,
    Patched,
    Result,
    StoreContext,
)
from minishark.tables.warehouse.catalog import TableName
from minishark.tables.warehouse.commits import append, replace
from minishark.tables.warehouse.names import Resolve, change_in_scratch, references, renamed
from minishark.tables.warehouse.sink import WriteTable
from minishark.tables.warehouse.source import (
    FILE_SHIFT,
    FixedSource,
    LocatedRows,
    WarehouseSource,
    as_it_is,
    remove_files,
)
from minishark.tables.warehouse.types import duckdb_schema
from minishark.tables.warehouse.writer import WriteRows


@dataclass(slots=True)
class Files:
    """Data files in the place of others, as pyiceberg describes them."""

    added: list[Any] = field(default_factory=list)
    removed: list[Any] = field(default_factory=list)


class WarehouseTable(ChangedTable[Files]):
    """A table as it is in one of pyiceberg's transactions; its parts are files."""

    part = f"{ROW_NUMBER} >> {FILE_SHIFT}"

    def __init__(
        self,
        name: TableName,
        table: Any,
        transaction: Any,
        context: StoreContext,
        *,
        resolve: Resolve,
        on_written: Callable[[Sequence[str]], None],
    ) -> None:
        """A table.

        Args:
            name: its name.
            table: pyiceberg's, as it is now.
            transaction: pyiceberg's, in which changes are published.
            context: the session's.
            resolve: gives the planning database's names of tables of the warehouse.
            on_written: told the paths of files that are written.
        """
        self._name, self._table, self._transaction = name, as_it_is(table), transaction
        self._context, self._resolve, self._on_written = context, resolve, on_written
        schema = transaction.table_metadata.schema()
        self.called, self.schema = name.table, duckdb_schema(schema)
        columns = ", ".join(
            f"{quote(c.name)} {c.type}{' NOT NULL' * f.required}"
            for c, f in zip(self.schema, schema.fields, strict=True)
        )
        self.shell = Shell(
            name=str(name),
            create=f"CREATE TABLE memory.main.{quote(str(name))} ({columns})",
            says_more=False,
            keys=(),
            types=tuple(column.type for column in self.schema),
            bucket="0 AS bucket",
        )
        tasks = list(self._table.scan().plan_files())
        self._has_deletes = any(task.delete_files for task in tasks)
        self._files = {task.file.file_path: task.file for task in tasks}

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
        return self._context.run(self._renamed(sql), sink, catalog=catalog, told=told)

    def bind(self, sql: str) -> Schema:
        """The columns of a query that names tables of the warehouse."""
        return self._context.planning.bind(self._renamed(sql)).schema

    def _renamed(self, sql: str) -> str:
        return renamed(sql, references(sql, self._context.planning.syntax), self._resolve)

    def in_scratch(self, sql: str) -> str:
        return change_in_scratch(sql, self.shell.name, self._resolve)

    # Rows that are there

    @contextlib.contextmanager
    def numbered(self, *, is_alone: bool) -> Iterator[NumberedRows]:
        with self._numbered(None) as relation:
            yield NumberedRows(relation)

    @contextlib.contextmanager
    def _numbered(self, files: frozenset[str] | None) -> Iterator[str]:
        """A relation of the rows, of all files or some, with their numbers."""
        snapshot = WarehouseSource(name=str(self._name), current=lambda: self._table).resolve()
        places = {path: place for place, path in enumerate(self._files)}
        sources = self._context.sources
        source = FixedSource(str(self._name), LocatedRows(snapshot, places, files))
        registered = sources.add_unnamed(source).name
        try:
            yield quote(registered)
        finally:
            sources.remove(registered)

    # What becomes of them

    def emptied(self) -> Patched[Files]:
        rows = sum(file.record_count for file in self._files.values())
        if self._has_deletes:
            with self.numbered(is_alone=True) as numbered:
                count = self.run(f"SELECT count(*) AS n FROM {numbered.relation}", CollectRows())
            rows = count.column(0)[0].as_py()
        return Patched(Files(removed=[*self._files.values()]), rows)

    def without(self, numbers: NDArray[Any]) -> Patched[Files]:
        patch = pa.table({"number": numbers})
        patch = patch.append_column("kind", pa.array([PATCH_DELETES] * len(patch), pa.int8()))
        with self._kept(patch) as relation:
            return self._patched(relation, ())

    def patched(
        self, query: str, columns: tuple[int, ...], rows: NumberedRows, *, many: int, told: str
    ) -> Patched[Files]:
        names = ("number", "kind", *(f"v{i}" for i in columns), "part")
        named = f"SELECT * FROM ({self._renamed(query)}) AS p({', '.join(names)})"
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

    def _patched(self, patch: str, columns: tuple[int, ...]) -> Patched[Files]:
        """The files that have rows of a patch, written anew."""
        counts = self.run(
            f"SELECT number >> {FILE_SHIFT} AS part, count(*) AS n, "
            f"count(*) FILTER (kind = {PATCH_DELETES}) AS gone, "
            f"count(*) - count(DISTINCT number) AS more FROM {patch} GROUP BY ALL ORDER BY 1",
            CollectRows(),
        )
        rows, paths = 0, [*self._files]
        made, left = Files(), list[str]()
        for part, count, gone, more in zip(*(c.to_pylist() for c in counts.columns), strict=True):
            if more:
                raise DataValueError(queries.CHANGED_TWICE)
            file = self._files[paths[part]]
            made.removed.append(file)
            rows += count
            if gone < file.record_count:
                left.append(file.file_path)
        if left:
            names = ("number", "kind", *(f"v{i}" for i in columns))
            target = queries.Target(self.called, self.schema)
            with self._numbered(frozenset(left)) as some:
                made.added += self._written(queries.patched(target, columns, some, patch, names))
        return Patched(made, rows)

    # Rows to be added

    def added(self, query: str, rows: NumberedRows | None = None, *, told: str) -> Added[Files]:
        files = self._written(query, told)
        return Added(Files(files), sum(file.record_count for file in files))

    def _written(self, rows: str | pa.Table, told: str = "") -> list[Any]:
        """The rows of a query, or others, as data files; removed again if that fails."""
        metadata = self._transaction.table_metadata
        io = self._transaction._table.io  # noqa: SLF001 - a new table has it nowhere else
        write = WriteRows(
            table=str(self._name),
            location=metadata.properties.get("write.data.path", f"{metadata.location}/data"),
            schema=metadata.schema().model_dump_json(),
            spec=metadata.spec().model_dump_json(),
            write_id=secrets.token_hex(8),
            properties=dict(metadata.properties),
            io={key: str(value) for key, value in io.properties.items()},
        )
        try:
            if isinstance(rows, str):
                files = self.run(rows, WriteTable(write), told=told)
            else:
                files = WriteTable(write).accept(rows)
        except BaseException:
            remove_files(io, write.location, write.write_id)
            raise
        self._on_written([file.file_path for file in files])
        return files

    # Versions

    def publish(
        self, patched: Patched[Files] | None, added: Added[Files] | pa.Table | None
    ) -> None:
        new = [] if patched is None else [*patched.made.added]
        if isinstance(added, Added):
            new += added.made.added
        elif added is not None:
            new += self._written(added.remove_column(added.num_columns - 1))
        if patched is not None and patched.made.removed:
            replace(self._transaction, patched.made.removed, new, secrets.token_hex(8))
        elif new:
            append(self._transaction, new, secrets.token_hex(8))

    def discard(self, *made: Patched[Files] | Added[Files] | pa.Table | None) -> None:
        io = self._table.io
        for each in made:
            if isinstance(each, Patched | Added):
                for file in each.made.added:
                    with contextlib.suppress(Exception):
                        io.delete(file.file_path)
