"""Queries written to files: COPY ... TO, and checkpoints."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from minishark.errors import QueryError, UnsupportedError
from minishark.model.expressions import Schema, quote_text
from minishark.query.sinks import CollectRows
from minishark.session.engine import Engine, RefusedError
from minishark.session.scope import Scope
from minishark.sources.filesystems import exists, is_remote
from minishark.tables.copy import (
    Copy,
    WriteFiles,
    Written,
    check_options,
    parquet_files,
    parsed_copy,
    publish,
    staging_folder,
)
from minishark.tables.copy_remote import remote_staging
from minishark.tables.store import survives_arrow
from minishark.tables.stores import counted
from minishark.worker.uploads import upload


@dataclass(frozen=True, slots=True)
class FileWriter:
    """Writes the rows of queries to files."""

    engine: Engine  # runs the queries
    scope: Scope  # whose they are

    def copy(self, query: str, target: str, *, kept: bool = False) -> pa.Table:
        """COPY query TO target, in parallel files where tasks can write; the number of rows."""
        # With `kept`, few rows too are written in the partitions that the query has.
        with self.engine.up_to_date(self.scope):
            schema = self._bound_or_none(query)
            if schema is None:
                self._check_local(target)
                return self.engine.query_in_front_end(query, self.scope, target=target)
            copy = parsed_copy(target)
            if copy is not None and copy.uri:
                return counted(self._copy_remote(query, copy, schema, kept=kept))
            if copy is not None and survives_arrow(schema):
                with contextlib.suppress(RefusedError), staging_folder(copy) as staging:
                    check = partial(check_options, copy=copy, schema=schema, to=staging)
                    self.scope.planning.check(check)
                    sink = WriteFiles(copy, staging, kept=kept)
                    written, _ = self.engine.run(query, sink, self.scope)
                    publish(copy, staging, written)
                    return counted(sum(item.rows for item in written))
            self._check_local(target)
            rows, _ = self.engine.run(query, CollectRows(lossless=True), self.scope)
            return self.scope.scratch.copy(rows, target, schema)

    def has_files(self, target: str) -> bool:
        """Whether there is a file at a local path or URI, or any below it.

        Raises:
            DataError: the store does not answer, or denies access.
        """
        if not is_remote(target):
            path = Path(target)
            return any(path.iterdir()) if path.is_dir() else path.exists()
        return exists(target, self.engine.storage.access())

    def _check_local(self, target: str) -> None:
        """Raise UnsupportedError if the front end's DuckDB would have to write to a URI."""
        if is_remote(target.partition("(")[0]):
            raise UnsupportedError(
                "COPY to an object store takes a URI in quotes, and options in parentheses, and no "
                "RETURN_FILES, RETURN_STATS, tables of BEGIN ... COMMIT, or computed names."
            )

    def _copy_remote(self, query: str, copy: Copy, schema: Schema, *, kept: bool) -> int:
        """Write a query's rows to an object store; their number."""
        access, scratch = self.engine.storage.access(), self.engine.cluster.scratch
        with (
            remote_staging(copy, access) as staging,
            tempfile.TemporaryDirectory(dir=scratch) as to,
        ):
            check = partial(check_options, copy=copy, schema=schema, to=Path(to))
            self.scope.planning.check(check)
            written: tuple[Written, ...] = ()
            if survives_arrow(schema):
                with contextlib.suppress(RefusedError):
                    sink = WriteFiles(copy, staging.uri, access, kept)
                    written, _ = self.engine.run(query, sink, self.scope)
            if not written:
                rows, _ = self.engine.run(query, CollectRows(lossless=True), self.scope)
                entry = f"front{''.join(copy.path.suffixes)}"
                file = Path(to, entry)
                to_file = f"{quote_text(str(file))} ({copy.text})"
                self.scope.scratch.copy(rows, to_file, schema)
                upload(file, staging.uri, access)
                written = (Written(entry, rows.num_rows),)
            staging.publish(written)
        return sum(item.rows for item in written)

    def _bound_or_none(self, query: str) -> Schema | None:
        """A query's columns; None if only the scratch database may know what it names."""
        try:
            return self.scope.planner.bind(query).schema
        except QueryError:
            if not self.scope.scratch.has_own:
                raise
            return None

    def write_checkpoint(self, sql: str, path: str, *, kept: bool = False) -> str:
        """Write a query's rows to Parquet files in a new folder; a query that reads them back."""
        with self.engine.up_to_date(self.scope):
            schema = self.scope.planner.bind(sql).schema
            if is_remote(path):
                raise UnsupportedError(
                    "checkpoint() writes to local folders: use COPY to write to an object store, "
                    "and read what it wrote."
                )
            copy = Copy(Path(path).absolute(), {"format": "parquet", "per_thread_output": "true"})
            with staging_folder(copy) as staging:
                self.scope.planning.check(lambda con: check_options(con, copy, schema, staging))
                read_back = self.scope.planning.relation_schema(parquet_files(staging))
                for column, read in zip(schema, read_back, strict=True):
                    if column.type != read.type:
                        raise UnsupportedError(
                            f"Parquet does not keep column {column.name!r} as {column.type}; "
                            "cast it, or use checkpoint() without a path."
                        )
                written, _ = self.engine.run(sql, WriteFiles(copy, staging, kept=kept), self.scope)
                publish(copy, staging, written)
            return f"FROM {parquet_files(copy.path)}"
