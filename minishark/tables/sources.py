"""Data that users pass -> pieces that loading tasks read in parallel."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from minishark.compiler.sql.planning import REMOTE_FILES, PlanningDatabase
from minishark.errors import DataError, ResourceError
from minishark.expressions import Column, Schema, quote_text
from minishark.query.files import ROW_NUMBER, row_ranges
from minishark.tables.load import TableSource
from minishark.tables.pieces import Pieces
from minishark.worker.duckdb_slot import stored_types
from minishark.worker.outputs import BATCH_ROWS
from minishark.worker.protocol import FileSlice, OutputKind, StageTask
from minishark.worker.store import Store
from minishark.worker.writing import FULL, disk_full

_READERS = {
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".csv.gz": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
}


@dataclass(frozen=True, slots=True)
class SourceSize:
    """The size of a source, as far as it is known without reading it."""

    bytes: int
    rows: int | None


def files_source(
    pattern: str | Path, planning: PlanningDatabase, pieces: int
) -> tuple[TableSource, SourceSize]:
    files = _files(str(pattern))
    reader = _reader(files)
    relations = [f"{reader}({quote_text(file)})" for file in files]
    try:
        schemas = [planning.relation_schema(relation) for relation in relations]
        counts = planning.count_rows(relations) if reader == "read_parquet" else None
    except duckdb.Error as error:
        raise DataError(f"Can't read {pattern}: {error}") from error
    for file, schema in zip(files, schemas, strict=True):
        if schema != schemas[0]:
            raise DataError(
                f"{file} has other columns than {files[0]}; all files of a table need the same."
            )
    rows = sum(counts) if counts is not None else None
    size = SourceSize(sum(Path(file).stat().st_size for file in files), rows)
    if counts and not any(column.name.lower() == ROW_NUMBER for column in schemas[0]):
        relations = row_ranges(files, counts, -(-pieces // len(files)))
    return TableSource(schema=schemas[0], relations=tuple(relations), files=tuple(files)), size


def _files(pattern: str) -> list[str]:
    if "://" in pattern:
        raise DataError(REMOTE_FILES)
    path = Path(pattern)
    if path.is_dir():
        found = sorted(
            str(p) for p in path.rglob("*") if p.is_file() and _suffix(str(p)) in _READERS
        )
    elif path.exists():
        found = [pattern]
    else:
        found = sorted(glob.glob(pattern, recursive=True))  # noqa: PTH207 - patterns may be absolute
    if not found and path.is_dir():
        raise DataError(f"There are no files in {pattern} that end in {', '.join(_READERS)}.")
    if not found:
        raise DataError(f"There is no file {pattern}.")
    for file in found:
        if not Path(file).is_file():  # a pipe or device could give rows for ever, or none
            raise DataError(f"{file} is no regular file; copy what it gives to one first.")
    return [str(Path(file).absolute()) for file in found]


def _suffix(file: str) -> str:
    name = Path(file).name.lower()
    return next((s for s in sorted(_READERS, key=len, reverse=True) if name.endswith(s)), "")


def _reader(files: Sequence[str]) -> str:
    readers = dict.fromkeys(_READERS.get(_suffix(file), "") for file in files)
    if len(readers) != 1 or "" in readers:
        known = ", ".join(sorted(_READERS))
        raise DataError(f"Can't tell how to read {files[0]}; files may end in {known}, all alike.")
    return next(iter(readers))


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


def memory_source(
    table: pa.Table,
    store: Store,
    folder: str,
    store_name: str,
    planning: PlanningDatabase,
    pieces: int,
) -> tuple[TableSource, SourceSize]:
    schema = table_schema(table, planning)
    rows = max(1, min(BATCH_ROWS, -(-table.num_rows // pieces)))
    batches = table.combine_chunks().to_batches(rows)
    file = f"{folder}/source.arrow"
    try:
        stored = store.write(file, table.schema, ([batch] for batch in batches))
    except OSError as error:
        if error.errno in FULL:
            raise ResourceError(disk_full(error)) from error
        raise
    slices = tuple(FileSlice(file, (store_name,), i, i + 1) for i in range(len(batches)))
    source = TableSource(schema=schema, slices=slices or (FileSlice(file, (store_name,)),))
    return source, SourceSize(stored.bytes, stored.rows)


def pieces_source(
    pieces: Pieces, folder: str, planning: PlanningDatabase, count: int
) -> tuple[TableSource, SourceSize]:
    """A source of about `count` files; they may become partitions if Arrow keeps their types."""
    schema = table_schema(pieces.schema.empty_table(), planning)
    layout = _kept_layout(pieces.schema, schema)
    try:
        stored = pieces.store(folder, layout or pieces.schema.remove_metadata(), count)
    except OSError as error:
        if error.errno in FULL:
            raise ResourceError(disk_full(error)) from error
        raise
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
        found = connection.from_arrow(given.empty_table()).to_arrow_table().schema
    same = found.names == given.names and all(map(_alike, given.types, found.types))
    return found if same else None


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
