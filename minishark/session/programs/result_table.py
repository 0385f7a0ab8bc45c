"""The parts of a program's result as a table, without their rows in the front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minishark.errors import DataError
from minishark.model.expressions import Schema
from minishark.query.sinks import Layout
from minishark.tables.load import TableSource
from minishark.tables.sources import SourceSize, table_schema
from minishark.tables.tables import Tables
from minishark.worker.program_files import StoredPart
from minishark.worker.protocol import FileSlice
from minishark.worker.store import Store


@dataclass(frozen=True, slots=True)
class IntoTable:
    """The table that a result becomes.

    Attributes:
        made: gives what `Program.result` returns for it.
    """

    name: str
    layout: Layout
    replace: bool
    made: Callable[[], Any]


def load_parts(
    tables: Tables, into: IntoTable, parts: Sequence[StoredPart] | StoredPart, store: Store
) -> None:
    """Load the parts' files as a table, one partition for each part, and publish it.

    Raises:
        CatalogError: there is a table of that name.
        DataError: the parts have different columns, or types that DuckDB can't read.
        TasksLostError: a part was lost with its node.
    """
    stored = [parts] if isinstance(parts, StoredPart) else list(parts)
    slices = tuple(FileSlice(part.file, (part.node,)) for part in stored)
    schema = _schema(tables, store, slices)
    source = TableSource(schema=schema, slices=slices)
    size = SourceSize(sum(part.bytes for part in stored), sum(part.rows for part in stored))
    with tables.folder() as folder:
        table = tables.load(into.name, folder, source, tables.layout(into.layout, size))
        tables.publish(table, replace=into.replace)


def _schema(tables: Tables, store: Store, slices: Sequence[FileSlice]) -> Schema:
    schemas = [store.read((item,)).schema for item in slices]
    for index, schema in enumerate(schemas):
        if schema != schemas[0]:
            raise DataError(
                f"Part {index} of the program's result has other columns than part 0: "
                f"{schema.to_string()} instead of {schemas[0].to_string()}."
            )
    return table_schema(schemas[0].empty_table(), tables.planning)
