"""Tables that SQL statements write: a DuckDB of the session's own, where every statement works.

Tables in the cluster are never changed in place. A statement that changes one takes a copy here
first; what has changed is loaded into the cluster again before the next query reads it. Statements
that only read the cluster's tables see them here without a copy.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

from minishark.errors import (
    CatalogError,
    QueryCancelledError,
    QueryError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.expressions import quote

ReadTable = Callable[[str], pa.Table]
"""All rows of a table in the cluster, memory-mapped."""

_ROWS = " minishark rows"
"""A name that no user's table has."""

_NAME = r'((?:"(?:[^"]|"")+"|\w+)(?:\.(?:"(?:[^"]|"")+"|\w+))*)'
_TARGETS = tuple(
    re.compile(rf"\s*{words}\s+{_NAME}", re.IGNORECASE)
    for words in (
        r"INSERT\s+(?:OR\s+\w+\s+)?INTO",
        r"UPDATE(?:\s+ONLY)?",
        r"DELETE\s+FROM",
        r"TRUNCATE(?:\s+TABLE)?",
        r"MERGE\s+INTO",
        r"ALTER\s+TABLE(?:\s+IF\s+EXISTS)?",
        r"COPY",
        r"DROP\s+TABLE(?:\s+IF\s+EXISTS)?",
        r"CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?:IF\s+NOT\s+EXISTS\s+)?.*?\bON",
        r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?TABLE(?:\s+IF\s+NOT\s+EXISTS)?",
    )
)


@dataclass(frozen=True, slots=True)
class ChangedTable:
    """A table that statements have changed.

    Attributes:
        name: its name.
        number: tells one change from a later one.
        rows: its rows; None if Arrow can't hold them as they are (ENUM columns, collations): then
            the table stays here, and queries that name it run here.
    """

    name: str
    number: int
    rows: pa.Table | None


class WrittenTables:
    """Runs statements that write, and knows which tables the cluster has old rows of."""

    def __init__(self) -> None:
        self._con = duckdb.connect()
        self._con.execute("SET python_enable_replacements = false")
        self._con.execute("SET autoinstall_known_extensions = false")
        self._con.execute("SET produce_arrow_string_view = false")
        self._con.execute("SET arrow_lossless_conversion = true")
        self._changed: dict[str, int] = {}
        self._changes = count()
        self._definitions: list[str] = []
        self._own: dict[str, None] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the database, when the statement that runs has ended."""
        with self._lock:
            self._con.close()

    def interrupt(self) -> None:
        """Stop the statement that is running."""
        self._con.interrupt()

    def define(self, sql: str, *, alone: bool = False) -> None:
        """Remember a view, macro, type or setting; made when a statement runs here.

        Args:
            sql: the statement.
            alone: whether only this database can know it, so that it must work at once.

        Raises:
            QueryError: DuckDB does not accept it, and it is `alone`.
        """
        with self._lock:
            if alone:
                self._run(sql)
                self._own[sql] = None
            else:
                self._definitions.append(sql)

    def write(self, sql: str, tables: Iterable[str], read: ReadTable) -> pa.Table:
        """Run a statement that changes tables.

        Args:
            sql: the statement.
            tables: the names of the cluster's tables.
            read: gives their rows.

        Returns:
            The number of rows that changed, or what RETURNING asked for.

        Raises:
            QueryError: DuckDB does not accept it.
            TaskFailedError: it failed on the data.
        """
        target = written_name(sql)
        with self._lock:
            self._show(tables, read)
            for name in (target,) if target is not None else _mentioned(sql, tables):
                self._take(name)
            before = self._tables()
            answer = self._answer(sql)
            for name in self._tables():
                if target is None or name not in before or name == target.lower():
                    self._changed[name] = next(self._changes)
            return answer

    def query(self, sql: str, tables: Iterable[str], read: ReadTable) -> pa.Table:
        """Run a query here, over all rows of the tables that it names.

        Raises:
            QueryError: DuckDB does not accept it.
            TaskFailedError: it failed on the data.
        """
        with self._lock:
            self._show(tables, read)
            self._run("RESET arrow_lossless_conversion")
            try:
                return self._answer(sql)
            finally:
                self._con.execute("SET arrow_lossless_conversion = true")

    def copy(self, table: pa.Table, target: str) -> int:
        """Write rows to files: `COPY rows TO target`; the number of rows."""
        with self._lock:
            self._con.register(_ROWS, table)
            try:
                return int(self._run(f"COPY {quote(_ROWS)} TO {target}")[0][0])
            finally:
                self._con.unregister(_ROWS)

    def changed(self) -> list[ChangedTable]:
        """The tables that changed and are not loaded yet, with their rows."""
        if not self._changed:  # every query asks; it need not wait for a statement that writes
            return []
        with self._lock:
            kept = self._tables()
            self._changed = {n: number for n, number in self._changed.items() if n in kept}
            return [ChangedTable(n, i, self._stored_as(n)) for n, i in self._changed.items()]

    def loaded(self, table: ChangedTable) -> None:
        """The cluster has the rows of `table`, or they stay here; it may have changed since."""
        with self._lock:
            if table.rows is None:
                self._own[table.name] = None
            if self._changed.get(table.name) == table.number:
                del self._changed[table.name]

    @property
    def own_tables(self) -> list[str]:
        """The tables that only this database can hold."""
        return [name for name in self._own if name in self._tables()]

    @property
    def has_own(self) -> bool:
        """Whether there is anything that only this database knows."""
        return bool(self._own)

    def _stored_as(self, name: str) -> pa.Table | None:
        """A table's rows, if Arrow brings its columns back as they are."""
        (text,) = self._con.execute(
            "SELECT sql FROM duckdb_tables() WHERE lower(table_name) = $1 AND schema_name = 'main'",
            [name],
        ).fetchall()[0]
        if re.search(r"\sCOLLATE\s", text, re.IGNORECASE):
            return None
        relation = self._con.sql(f"FROM main.{quote(name)}")
        rows = relation.to_arrow_table()
        self._con.register(_ROWS, rows)
        try:
            same = self._con.table(_ROWS).types == relation.types
        finally:
            self._con.unregister(_ROWS)
        return rows if same else None

    def drop(self, name: str) -> bool:
        """Forget a table; whether it was here."""
        with self._lock:
            self._changed.pop(name.lower(), None)
            self._own.pop(name.lower(), None)
            self._con.unregister(name)
            if name.lower() not in self._tables():
                return False
            self._run(f"DROP TABLE {quote(name)}")
            return True

    def _tables(self) -> list[str]:
        rows = self._con.execute(
            "SELECT lower(table_name) FROM duckdb_tables() WHERE schema_name = 'main'"
        ).fetchall()
        return [name for (name,) in rows]

    def _show(self, tables: Iterable[str], read: ReadTable) -> None:
        """Make the cluster's tables visible, without a copy, and the definitions over them."""
        own = self._tables()
        for name in tables:
            if name.lower() not in own:
                self._con.register(name, read(name))
        # A view over a table that was dropped waits until there is one of that name again.
        self._definitions = [sql for sql in self._definitions if not self._defined(sql)]

    def _defined(self, sql: str) -> bool:
        try:
            self._con.execute(sql).fetchall()
        except duckdb.Error:
            return False
        return True

    def _take(self, name: str) -> None:
        """Copy a table of the cluster that is about to change."""
        views = self._con.execute(
            "SELECT view_name FROM duckdb_views() WHERE lower(view_name) = lower($1) AND temporary",
            [name],
        ).fetchall()
        if views and name.lower() not in self._tables():
            rows = self._con.table(name).to_arrow_table()
            self._con.unregister(views[0][0])
            self._con.register(_ROWS, rows)
            self._con.execute(f"CREATE TABLE {quote(name)} AS FROM {quote(_ROWS)}")
            self._con.unregister(_ROWS)

    def _answer(self, sql: str) -> pa.Table:
        try:
            relation: duckdb.DuckDBPyRelation | None = self._con.sql(sql)
            answer = relation.to_arrow_table() if relation is not None else pa.table({"Count": []})
            nothing = answer.num_rows == 0 and answer.column_names == ["Count"]
            return pa.table({"Count": pa.array([0], pa.int64())}) if nothing else answer
        except duckdb.Error as error:
            raise _translated(error) from error

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self._con.execute(sql).fetchall()
        except duckdb.Error as error:
            raise _translated(error) from error


def _translated(error: duckdb.Error) -> Exception:
    if isinstance(error, duckdb.InterruptException):
        return QueryCancelledError("The statement was cancelled.")
    if isinstance(error, duckdb.CatalogException):
        return CatalogError(str(error))
    if isinstance(error, duckdb.BinderException | duckdb.ParserException):
        return QueryError(str(error))
    return TaskFailedError(str(error))


def _mentioned(sql: str, tables: Iterable[str]) -> list[str]:
    """Those of `tables` whose names stand in a statement."""
    text = sql.lower()
    return [name for name in tables if name.lower() in text]


def written_name(sql: str) -> str | None:
    """The table that a statement writes, without its schema; None if that can't be told.

    Raises:
        UnsupportedError: it lies in another schema than main.
    """
    for pattern in _TARGETS:
        found = pattern.match(sql)
        if found:
            *schema, name = (_unquoted(n) for n in re.findall(r'"(?:[^"]|"")+"|\w+', found[1]))
            if schema and schema[-1].lower() != "main":
                raise UnsupportedError("minishark keeps all tables in the schema main.")
            return name
    return None


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
