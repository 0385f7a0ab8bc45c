"""Data that users pass -> pieces that loading tasks read in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import DataError
from minishark.model.expressions import Column, Schema
from minishark.model.predicates import Pushed
from minishark.query.sources import SourceTable
from minishark.sources.contract import Source
from minishark.tables.load import Origin, TableSource
from minishark.tables.pieces import Pieces
from minishark.worker.dictionaries import DICTIONARY_ROWS_MIN
from minishark.worker.digest import rows_digest
from minishark.worker.duckdb_slot import stored_types
from minishark.worker.outputs import BATCH_ROWS
from minishark.worker.protocol import FileSlice, OutputKind, StageTask
from minishark.worker.seals import Seal
from minishark.worker.store import Store
from minishark.worker.writing import disk_errors

PLAIN_TYPES: Mapping[pa.DataType, str] = {
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.date32(): "DATE",
    pa.timestamp("s"): "TIMESTAMP_S",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
}
"""Types of Arrow that DuckDB reads as these, and gives back as they were."""


@dataclass(frozen=True, slots=True)
class SourceSize:
    """The size of a source, as far as it is known without reading it."""

    bytes: int
    rows: int | None


def split_source(source: Source, pieces: int) -> tuple[TableSource, SourceSize]:
    """The rows of a source's current version, in about so many pieces.

    Raises:
        DataError: it can't be read.
    """
    table = SourceTable("", source, source.resolve()).opened()
    snapshot = table.snapshot
    planned = table.table(Pushed(), snapshot.splits(Pushed(), pieces), "", pieces)
    measured = snapshot.statistics
    size = SourceSize(
        planned.bytes if measured is None else measured.bytes,
        None if measured is None else measured.rows,
    )
    loaded = TableSource(
        schema=snapshot.schema,
        reads=tuple(partition.read for partition in planned.partitions),
        origin=Origin(source, snapshot.version),
        opened=snapshot,
    )
    return loaded, size


def arrow_table(data: Any) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if isinstance(data, duckdb.DuckDBPyRelation):
        return _relation_table(data)
    if hasattr(data, "to_arrow_table"):
        return data.to_arrow_table()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if type(data).__module__.startswith("pandas"):
        return pa.Table.from_pandas(data, preserve_index=False)
    if hasattr(data, "to_table"):
        return data.to_table()
    kind = type(data).__name__
    raise DataError(
        f"Can't make a table of a {kind}; give a path, a pyarrow, pandas or polars table, "
        "or a DuckDB relation."
    )


def check_text(table: pa.Table) -> None:
    """Raise DataError for text that is not UTF-8: whoever reads it fails, or gets it wrong."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                message = f"Column {name} has text that is not UTF-8: {error}"
                raise DataError(message) from error


def _relation_table(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """A relation's rows, without loss of types such as HUGEINT or TIMETZ."""
    setting = "arrow_lossless_conversion"

    def run(sql: str) -> Any:
        # A relation does not expose its connection, but runs statements on it.
        return relation.query("minishark_source", sql)

    if any("AGGREGATE_STATE" in str(type_) for type_ in relation.types):
        raise DataError("Aggregate states can't be loaded; finalize() them first.")
    before = run(f"SELECT current_setting('{setting}')").fetchall()[0][0]
    run(f"SET {setting} = true")
    try:
        return relation.to_arrow_table()
    finally:
        run(f"SET {setting} = {before}")


@dataclass(frozen=True, slots=True)
class FewRows:
    """Rows of this process that can be stored as they are: no task needs to see them."""

    schema: Schema
    rows: pa.Table
    digest: str  # as that of a `TableSource`


def few_rows(table: pa.Table, *, is_named: bool = False) -> FewRows | None:
    """Rows in the layout in which tasks would store them; None if that is another one.

    See `memory_source` for `is_named`.
    """
    if table.num_rows >= DICTIONARY_ROWS_MIN:
        return None
    names = {name.lower() for name in table.column_names}
    types = [PLAIN_TYPES.get(column.type) for column in table.schema if column.metadata is None]
    if (
        None in types
        or not names
        or "" in names
        or not len(names) == len(types) == len(table.schema)
    ):
        return None
    columns = zip(table.column_names, types, strict=True)
    schema = tuple(Column(name, type_) for name, type_ in columns if type_ is not None)
    arrow = pa.schema([pa.field(column.name, column.type) for column in table.schema])
    rows = pa.Table.from_arrays(table.columns, schema=arrow)
    return FewRows(schema, rows, _digest(table, table.num_rows) if is_named else "")


def _digest(table: pa.Table, rows: int) -> str:
    """Identifies rows in batches of `rows`."""
    return f"{rows_digest(table).hex()} {rows}"


def memory_source(
    table: pa.Table,
    store: Store,
    folder: str,
    store_name: str,
    planning: PlanningDatabase,
    pieces: int,
    *,
    is_named: bool = False,
) -> tuple[TableSource, SourceSize]:
    """A source of rows of this process, which are written to a file first.

    Args:
        table: the rows.
        store: where the file is written.
        folder: the file's.
        store_name: the node that has it.
        planning: reads the types of the columns.
        pieces: about how many there are to be.
        is_named: whether others are to know the rows when they see them again.

    Raises:
        DataError: DuckDB can't read a column.
        ResourceError: the disk is full.
    """
    schema = table_schema(table, planning)
    rows = max(1, min(BATCH_ROWS, -(-table.num_rows // pieces)))
    batches = table.combine_chunks().to_batches(rows)
    file = f"{folder}/source.arrow"
    with disk_errors():
        batched = ([batch] for batch in batches)
        stored = store.write(file, table.schema, batched, Seal.ON_DISK)
    file = stored.named(file)
    slices = tuple(FileSlice(file, (store_name,), i, i + 1) for i in range(len(batches)))
    source = TableSource(
        schema=schema,
        slices=slices or (FileSlice(file, (store_name,)),),
        digest=_digest(table, rows) if is_named else "",
    )
    return source, SourceSize(stored.bytes, stored.rows)


def pieces_source(
    pieces: Pieces, folder: str, planning: PlanningDatabase, count: int
) -> tuple[TableSource, SourceSize]:
    """A source of about `count` files; they may become partitions if Arrow keeps their types."""
    schema = table_schema(pieces.schema.empty_table(), planning)
    layout = _kept_layout(pieces.schema, schema)
    with disk_errors():
        stored = pieces.store(folder, layout or pieces.schema.remove_metadata(), count)
    slices = tuple(item for piece in stored for item in piece.slices())
    rows = tuple(count for piece in stored for count in piece.counts())
    whole = tuple(FileSlice(piece.file, (piece.node,)) for piece in stored) if layout else ()
    size = SourceSize(sum(piece.bytes for piece in stored), sum(rows))
    return TableSource(schema=schema, slices=slices, rows=rows, partitions=whole), size


def _kept_layout(given: pa.Schema, schema: Schema) -> pa.Schema | None:
    """The Arrow types in which tasks would store these columns; None if a cast can't give them."""
    types = tuple(column.type for column in schema)
    stage = StageTask(sql="", types=types, output=OutputKind.PARTITION, folder="")
    with duckdb.connect(config={"threads": 1}) as connection:
        for name, value in stored_types(stage, types).items():
            connection.execute(f"SET {name} = {value}")
        kept = connection.from_arrow(given.empty_table()).to_arrow_table().schema
    same = kept.names == given.names and all(map(_alike, given.types, kept.types))
    return kept if same else None


def _alike(given: pa.DataType, stored: pa.DataType) -> bool:
    if pa.types.is_large_string(given):
        return bool(pa.types.is_string(stored))
    if pa.types.is_decimal(given) and pa.types.is_decimal(stored):
        return (given.precision, given.scale) == (stored.precision, stored.scale)
    return bool(given == stored)


def table_schema(table: pa.Table, planning: PlanningDatabase) -> Schema:
    """The columns of a table as DuckDB reads them.

    Raises:
        DataError: it can't read a column.
    """
    connection = planning.connection()
    try:
        connection.register("source", table)
        relation = connection.table("source")
        names, types = relation.columns, [str(type_) for type_ in relation.types]
        connection.unregister("source")
    except duckdb.Error as error:
        raise DataError(f"DuckDB can't read the table: {error}") from error
    finally:
        connection.close()
    return tuple(Column(n, t) for n, t in zip(names, types, strict=True))
