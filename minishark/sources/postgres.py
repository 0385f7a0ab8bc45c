"""Tables and views of PostgreSQL, read by COPY in parallel under one exported snapshot.

A connection of the front end exports its transaction's snapshot and keeps that transaction open
while a query reads; each task takes over the snapshot and reads a range of the table's blocks
(`ctid`, a TID range scan), so all tasks together see the rows of one moment. Columns and simple
predicates are part of the SQL that tasks send.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from minishark.errors import DataError
from minishark.model.catalog import ColumnStatistics, TableStatistics
from minishark.model.expressions import Column, Schema, quote, quote_text
from minishark.model.predicates import Pushed
from minishark.sources.arrow_types import memory_bytes
from minishark.sources.contract import Snapshot, Source, Split
from minishark.sources.optional import library
from minishark.sources.postgres_columns import (
    PostgresColumn,
    condition,
    converted,
    numeric_option,
    postgres_column,
)
from minishark.sources.postgres_server import (
    LOCK_OF_TASKS_S,
    Dsn,
    Moment,
    Server,
    complete,
    fetched,
)

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

_EXTRA = "postgres"
_DRIVER = "adbc_driver_postgresql.dbapi"
_HOLD_S = 3600
_BLOCK_BYTES = 8192
_BLOCKS_MIN = 1024  # of a split: 8 MiB
_CANCELLING = threading.Lock()  # a connection is not closed meanwhile
_TID_RANGES_SINCE = 140_000  # earlier servers read the whole table for each range of blocks


class PostgresSource(Source):
    """A table, partitioned table, view, materialized view or foreign table of PostgreSQL.

    Args:
        dsn: a URI or connection string of libpq, or a function that returns one; the function is
            called where a connection is made, so that no password travels. What the string leaves
            out comes from the environment of the front end (PGHOST, PGPASSWORD ...), from service
            files and from ~/.pgpass. `env:NAME` means the string in the variable NAME.
        schema: the schema.
        table: the table or view.
        numeric: the type of `numeric` columns without precision, or with one above 38:
            `DECIMAL(p, s)`, to which values are rounded, or `DOUBLE` or `VARCHAR`.
        statement_timeout: seconds after which the server ends a task's statement; None for its own.
        hold: seconds for which a query may read. Then the server ends the transaction that keeps
            the snapshot, and tasks that begin later fail.
    """

    def __init__(
        self,
        dsn: Dsn,
        schema: str,
        table: str,
        *,
        numeric: str = "DECIMAL(38,18)",
        statement_timeout: float | None = None,
        hold: float = _HOLD_S,
    ) -> None:
        library(_DRIVER, _EXTRA)
        self.name = f"postgres {schema}.{table}"
        self._server = Server(complete(dsn), self.name, statement_timeout)
        self._schema, self._table = schema, table
        self._numeric = numeric_option(numeric)
        self._hold = hold

    def __repr__(self) -> str:
        return f"PostgresSource({self.name!r})"

    def resolve(self) -> PostgresSnapshot:
        """Columns, sizes and estimates from the server's catalog.

        Raises:
            DataError: the server does not answer or denies access, or there is no such table.
        """
        with self._server.connected() as connection:
            relation = _relation(connection, self._schema, self._table, self.name)
            columns = tuple(
                postgres_column(row, self._numeric)
                for row in fetched(connection, _COLUMNS.format(relation.oid))
            )
            if not columns:
                raise DataError(f"{self.name} has no columns that you may read.")
            ((seen, version),) = fetched(connection, _SEEN)
            table = _Table(
                self.name,
                f"{quote(self._schema)}.{quote(self._table)}",
                relation,
                columns,
                int(version),
            )
            named = {"schema": quote_text(self._schema), "table": quote_text(self._table)}
            estimates = fetched(connection, _ESTIMATES.format(**named))
            rows = relation.rows
            if rows < 0:
                rows = _estimated_rows(connection, table)
        statistics = _statistics(table, rows, {name: estimate for name, *estimate in estimates})
        kept = Moment(self._server, self._hold)
        return PostgresSnapshot(self._server, table, seen, statistics, kept)


class PostgresSnapshot(Snapshot):
    """A table as it is when it is opened: all splits give the rows of that moment."""

    def __init__(
        self,
        server: Server,
        table: _Table,
        seen: str,
        statistics: TableStatistics,
        kept: Moment,
    ) -> None:
        self.statistics: TableStatistics = statistics
        self._server, self._table = server, table
        self._seen = seen
        self.version = f"{table.relation.oid}/{table.relation.file}/{seen}"
        self.schema: Schema = tuple(Column(column.name, column.type) for column in table.columns)
        self.moment = kept

    def __repr__(self) -> str:
        return f"PostgresSnapshot({self._table.name!r}, {self.version!r})"

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        """Ranges of the table's blocks; a view is one split.

        Raises:
            DataError: the server does not answer, or does not keep the moment any more.
        """
        relation = self._table.relation
        blocks = relation.blocks
        pieces = min(max(tasks, 1) * 2, max(blocks // _BLOCKS_MIN, 1))
        if not relation.has_blocks or self._table.server_version < _TID_RANGES_SINCE:
            pieces = 1
        if pushed.limit is not None and not pushed.predicates:
            pieces = 1  # the server stops by itself
        ends = [blocks * (number + 1) // pieces for number in range(pieces - 1)]
        exported = self.moment.exported(self._table.sql)
        size = self.statistics.bytes
        return [
            PostgresSplit(
                self._server,
                self._table,
                exported,
                _Range(first, last),
                size // pieces,
            )
            for first, last in zip([0, *ends], [*ends, None], strict=True)
        ]

    def opened(self, others: Sequence[Snapshot] = ()) -> PostgresSnapshot:
        """The same as of another moment: that of another table of the server, or from now on."""
        kept = self.moment.again()
        for other in others:
            if isinstance(other, PostgresSnapshot) and other.moment.serves(kept):
                kept = other.moment
                break
        return PostgresSnapshot(self._server, self._table, self._seen, self.statistics, kept)

    def close(self) -> None:
        """End the transaction that keeps the rows; `splits` begins another."""
        self.moment.end()


class PostgresSplit(Split):
    """A range of blocks of a table, read under the snapshot that the front end keeps.

    Pickled, it has the connection string with its password, unless that is a function; its
    representation has neither.
    """

    def __init__(
        self, server: Server, table: _Table, exported: str, blocks: _Range, size: int
    ) -> None:
        self._server, self._table, self._exported, self._blocks = server, table, exported, blocks
        self.bytes = size
        self._reading: Connection | None = None

    def __repr__(self) -> str:
        return f"PostgresSplit({self._table.name!r}, {self._blocks})"

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        """The rows, for which the server has evaluated what predicates it can.

        Raises:
            DataError: the server does not answer, the snapshot is gone, or a value does not fit
                its column's type.
        """
        library(_DRIVER, _EXTRA)
        names = {column.name: column for column in self._table.columns}
        columns = [names[name] for name in pushed.columns or names]
        sql = query(self._table.sql, columns, self._table.columns, pushed, self._blocks)
        target = pa.schema([pa.field(column.name, column.arrow) for column in columns])
        return pa.RecordBatchReader.from_batches(target, self._batches(sql, columns, target))

    def _batches(
        self, sql: str, columns: Sequence[PostgresColumn], target: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        with self._server.connected() as connection, self._cancellable(connection):
            fetched(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            fetched(connection, f"SET TRANSACTION SNAPSHOT {quote_text(self._exported)}")
            fetched(connection, f"SET LOCAL lock_timeout = {int(LOCK_OF_TASKS_S * 1000)}")
            with connection.cursor() as cursor:
                cursor.execute(sql)
                for batch in cursor.fetch_record_batch():
                    yield converted(batch, columns, target, self._table.name)

    @contextlib.contextmanager
    def _cancellable(self, connection: Connection) -> Iterator[None]:
        self._reading = connection
        try:
            yield
        finally:
            with _CANCELLING:
                self._reading = None

    def cancel(self) -> None:
        """Have the server end the statement."""
        with _CANCELLING, contextlib.suppress(Exception):  # it may be over
            if self._reading is not None:
                self._reading.adbc_cancel()


@dataclass(frozen=True, slots=True)
class _Range:
    """Blocks of a table from `first` up to `last`; None for its end."""

    first: int
    last: int | None

    @property
    def condition(self) -> str:
        bounds = [f"ctid >= '({self.first},0)'::tid"] if self.first else []
        if self.last is not None:
            bounds.append(f"ctid < '({self.last},0)'::tid")
        return " AND ".join(bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Relation:
    oid: int
    kind: str  # pg_class.relkind
    file: int  # changes when the table is truncated or written anew
    blocks: int  # of the largest of its partitions
    bytes: int
    rows: int  # estimated; negative if the server does not know
    has_blocks: bool


@dataclass(frozen=True, slots=True)
class _Table:
    name: str
    sql: str
    relation: _Relation
    columns: tuple[PostgresColumn, ...]
    server_version: int


def query(
    table: str,
    columns: Sequence[PostgresColumn],
    stored: Sequence[PostgresColumn],
    pushed: Pushed,
    blocks: _Range,
) -> str:
    """The SELECT of one split."""
    names = {column.name.lower(): column for column in stored}
    translated = [
        condition(names[predicate.column.lower()], predicate)
        for predicate in pushed.predicates
        if predicate.column.lower() in names
    ]
    conditions = [text for text in translated if text is not None]
    if blocks.condition:
        conditions.append(blocks.condition)
    selected = ", ".join(f"{column.read} AS {quote(column.name)}" for column in columns)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    limit = f" LIMIT {pushed.limit}" if pushed.limit is not None and not pushed.predicates else ""
    return f"SELECT {selected} FROM {table}{where}{limit}"


# What a query wants to know of a table

_RELATION = """
SELECT c.oid::int8, c.relkind::text, coalesce(c.relfilenode, 0)::int8,
       coalesce((SELECT max(pg_relation_size(p.oid)) FROM parts p), 0)::int8,
       coalesce((SELECT sum(pg_relation_size(p.oid)) FROM parts p), 0)::int8,
       coalesce((SELECT sum(p.reltuples) FROM parts p WHERE p.reltuples >= 0), -1)::int8,
       (c.relkind IN ('r', 'm', 'p') AND NOT EXISTS (SELECT FROM parts p WHERE p.relkind = 'f')),
       (SELECT min(p.reltuples) FROM parts p)::float8
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = {schema} AND c.relname = {table}
"""
_PARTS = """
WITH RECURSIVE tree(oid) AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema} AND c.relname = {table}
    UNION SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid),
parts AS (
    SELECT c.* FROM tree JOIN pg_class c ON c.oid = tree.oid WHERE c.relkind IN ('r', 'm', 'f'))
"""
_COLUMNS = """
WITH RECURSIVE kinds(number, name, oid, modifier, sorted) AS (
    SELECT attnum, attname, atttypid, atttypmod, attcollation FROM pg_attribute
    WHERE attrelid = {} AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT k.number, k.name, t.typbasetype, t.typtypmod, k.sorted
    FROM kinds k JOIN pg_type t ON t.oid = k.oid WHERE t.typtype = 'd')
SELECT k.name::text, t.typname::text, t.typtype::text, k.modifier::int4,
       e.typname::text, e.typtype::text, coalesce(c.collisdeterministic, true)
FROM kinds k JOIN pg_type t ON t.oid = k.oid AND t.typtype <> 'd'
LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
LEFT JOIN pg_collation c ON c.oid = k.sorted
ORDER BY k.number
"""
_SEEN = "SELECT pg_current_snapshot()::text, current_setting('server_version_num')"
_ESTIMATES = """
SELECT attname::text, null_frac::float8, n_distinct::float8 FROM pg_stats
WHERE schemaname = {schema} AND tablename = {table} AND NOT inherited
"""


def _relation(connection: Connection, schema: str, table: str, name: str) -> _Relation:
    names = {"schema": quote_text(schema), "table": quote_text(table)}
    relations = fetched(connection, (_PARTS + _RELATION).format(**names))
    if not relations:
        raise DataError(f"There is no {name}, or you may not see it.")
    oid, kind, file, largest, size, rows, has_blocks, least = relations[0]
    if kind not in ("r", "m", "p", "v", "f"):
        raise DataError(f"{name} is no table or view.")
    return _Relation(
        oid=oid,
        kind=kind,
        file=file,
        blocks=-(-largest // _BLOCK_BYTES),
        bytes=size,
        rows=-1 if least is None or least < 0 else rows,
        has_blocks=has_blocks,
    )


def _statistics(
    table: _Table, rows: int, estimates: Mapping[str, Sequence[float]]
) -> TableStatistics:
    columns = []
    for column in table.columns:
        nulls, distinct = estimates.get(column.name, (0.0, 0.0))
        # Negative ones are shares of the rows; 0 is unknown.
        count = int(-distinct * rows) if distinct < 0 else int(distinct)
        columns.append(ColumnStatistics(null_fraction=nulls, distinct=count or None))
    schema = tuple(Column(column.name, column.type) for column in table.columns)
    size = memory_bytes(schema, rows, table.relation.bytes)
    return TableStatistics(rows=rows, bytes=size, columns=tuple(columns))


def _estimated_rows(connection: Connection, table: _Table) -> int:
    """What the server's planner expects, for views and tables that it never analyzed."""
    ((plan,),) = fetched(connection, f"EXPLAIN (FORMAT JSON) SELECT * FROM {table.sql}")
    rows: int = json.loads(plan)[0]["Plan"]["Plan Rows"]
    return rows
