"""The scratch database: a DuckDB in the front end that runs what the cluster can't.

Tables in the cluster are immutable. A statement that changes one copies it here first; changed
tables are loaded into the cluster before the next query. Other statements read the cluster's
tables memory-mapped, without a copy.

Sessions over one engine have a connection each, with settings, temporary tables and a current
schema of its own. They share the tables that have changed: writes are made one after the other.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa

from minishark.compiler.sql.connection import ConnectionUse, check_prepared, undone
from minishark.compiler.sql.failures import failure_class
from minishark.compiler.sql.planning import REMOTE_FILES, message_of
from minishark.compiler.sql.statements import CreateEnum, SetVariable, Target, reads_catalog
from minishark.compiler.sql.times import ToldTime, defines_time, tells_time
from minishark.compiler.sql.tokens import (
    SETTINGS,
    Cursor,
    mentioned,
    names_in,
    sql_tokens,
    without_database,
)
from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    MinisharkError,
    QueryCancelledError,
    QueryError,
    ResourceError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.model.catalog import Catalog, Constraints, Table
from minishark.model.expressions import (
    DUCKDB_TYPE,
    WIDE_INTEGERS,
    Column,
    Schema,
    quote,
    quote_text,
)
from minishark.tables.interruption import stopped_by
from minishark.tables.store import kept_by_arrow
from minishark.worker.columns import integers
from minishark.worker.duckdb_slot import stored_types
from minishark.worker.protocol import OutputKind, StageTask
from minishark.worker.task_errors import internal_error
from minishark.worker.writing import disk_full

warnings.filterwarnings("ignore", "Arrow output on a DB-API result", module=__name__)

# All rows of a table in the cluster, memory-mapped, or of a source, read when they are needed.
ReadTable = Callable[[str], object]
# While a statement runs, gives what reads its tables: sources as of one moment.
Reading = Callable[[str], contextlib.AbstractContextManager[ReadTable]]
# A context for a statement that runs, given what interrupts it.
StoppedBy = Callable[[Callable[[], None]], contextlib.AbstractContextManager[None]]

_SETTINGS = {
    "python_enable_replacements": "false",
    "produce_arrow_string_view": "false",
    "arrow_lossless_conversion": "true",
}
ROWS = " minishark rows"  # the names of registered rows; no table of a user has them
_STORED = " minishark stored"
_STORED_ROWS = quote(_STORED)
NO_CATALOG = (
    "This statement can't read the catalog: store its answer as a table first (CREATE TABLE names "
    "AS FROM duckdb_tables()), and read that."
)

_CLUSTERS = "memory.main."  # the schema of the cluster's tables
_OURS = "schema_name = 'main' AND database_name IN ('memory', 'temp')"
_ROW_NUMBER = ("rowid",)
_COUNTED_UP = re.compile(r"_\d+$")
_SHARED = "schema_name = 'main' AND database_name = 'memory'"
# What a query may change something by, in WITH or in a call.
_CHANGES = ("nextval", "copy", "insert", "update", "delete", "merge")
_REPLACES_SEQUENCE = ("CREATE", "OR", "REPLACE", "SEQUENCE")
_LEADS_TO_MAIN = """
    SELECT current_database() = 'memory' AND count(*) = 0 FROM duckdb_tables()
    WHERE lower(table_name) = lower($1) AND schema_name IN current_schemas(false)
        AND (database_name, schema_name) <> ('memory', 'main')"""
# Whether names are looked up in the database of the cluster's tables at all.
_REACHES_MEMORY = """
    SELECT current_database() = 'memory' OR list_has_any(
        string_split(replace(current_setting('search_path'), '"', ''), ','),
        ['memory', 'memory.main'])"""
_TABLES_IN = "SELECT lower(table_name) FROM duckdb_tables() WHERE lower(database_name) = lower($1)"
_TEMPORARY = "SELECT lower(table_name) FROM duckdb_tables() WHERE database_name = 'temp'"
_DEFINED = (
    "SELECT view_name, coalesce(sql, ''), temporary FROM duckdb_views() WHERE NOT internal "
    "UNION ALL "
    "SELECT function_name, macro_definition, database_name = 'temp' FROM duckdb_functions() "
    "WHERE NOT internal AND contains(function_type, 'macro')"
)
# What must see other tables, or what Arrow does not have.
_SEES_MORE = ("references", "generated", "collate")


@dataclass(frozen=True, slots=True)
class ScratchTable:
    """A table that statements have changed."""

    name: str
    number: int  # identifies the change; later ones have higher numbers
    # Its rows; None if they do not survive Arrow (ENUM columns, collations): such a table stays
    # here, and queries that name it run here.
    rows: pa.Table | None
    # What a table in the cluster has to know besides (see `Table`); None if it must also be here.
    definition: str | None
    constraints: Constraints


@dataclass(frozen=True, slots=True)
class Written:
    """What a statement has answered and done, of which nothing is left here."""

    answer: pa.Table
    changed: tuple[ScratchTable, ...]
    gone: tuple[str, ...]  # tables that it has dropped or renamed


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """An empty table that stands for one in the cluster, while rows for that are made."""

    name: str
    create: str  # the statement that creates it
    types: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...] = ()  # those of which a statement may make new ones
    bucket: str = "0 AS bucket"  # an expression for the number of a row's partition


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """A table that is here."""

    name: str  # as it was created
    place: str  # its name, qualified
    has_collations: bool
    is_only_rows: bool  # whether statements on it need no other one, and Arrow can hold its rows
    definition: str  # what makes an empty one like it
    constraints: Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedColumn:
    """A column that a statement adds to a table, the same in all of its rows."""

    answer: pa.Table  # to the statement
    column: Column
    row: pa.Table  # its value
    definition: str  # what makes an empty table like the one with it
    constraints: Constraints


@dataclass(frozen=True, slots=True)
class NewKeys:
    """Keys that no row had before a statement: of rows that it has added or changed."""

    columns: tuple[str, ...]  # of a PRIMARY KEY or UNIQUE constraint
    values: pa.Table  # a column of text for each of them, none of it NULL


@dataclass(frozen=True, slots=True)
class MadeRows:
    """What a statement has answered, and the rows that it has added or changed."""

    answer: pa.Table
    rows: pa.Table  # the last column being their buckets
    keys: tuple[NewKeys, ...]  # of rows that are not in the shell
    replaced: pa.Table  # the numbers of stored rows that these replace


class SharedScratch:
    """The database, and what its connections share: changed tables, definitions, functions."""

    def __init__(
        self,
        config: Mapping[str, str],
        sources: Callable[[], list[str]],
        lock: contextlib.AbstractContextManager[object],
    ) -> None:
        """An empty database; `sources` gives the names of sources.

        The lock, which its holder may take again, is held while statements run, which read tables.
        """
        self._con = duckdb.connect(config=dict(config))
        self._con.execute("SET autoinstall_known_extensions = false")
        self._use = ConnectionUse(self._con)
        self.sources = sources
        self.changed: dict[str, int] = {}  # not loaded yet: the last change of each
        self.numbers = itertools.count()
        self.definitions: list[str] = []  # not made yet
        self.views: dict[str, str] = {}  # the last definition of each, by name in lower case
        self.of_catalog: frozenset[str] = frozenset()  # views and macros that read the catalog
        self.own: dict[str, None] = {}  # tables that only this database can hold
        self.gone: set[str] = set()  # tables that were renamed
        self.numbered: set[str] = set()  # tables whose row ids statements know
        self.has_own = False  # whether it may have tables or definitions of its own
        self.has_own_views = False
        self.has_definitions = False  # whether there may be views or macros
        self.hides_time = False  # whether a macro may have the name of a function that tells it
        # Held where tables are changed, listed as tables, or defined over: DuckDB would refuse one
        # of two such transactions.
        self.lock = lock

    def change(self, how: Callable[[duckdb.DuckDBPyConnection], object]) -> None:
        """Change what all connections have, such as the functions that statements may call."""
        with self._use:
            how(self._con)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Another connection, for use by one thread; the caller closes it."""
        with self._use:
            return self._con.cursor()

    def close(self) -> None:
        with self._use:
            self._con.close()


class ScratchDatabase:
    """A session's connection: runs statements, and tracks which tables must be loaded again."""

    def __init__(
        self,
        shared: SharedScratch,
        reading: Reading,
        tables: Callable[[], Catalog],
        *,
        settings: Sequence[str] = (),
        is_apart: bool = False,
        hidden: tuple[str, ...] = (),
        began: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """A connection with these settings; `is_apart` if others lack its temporary tables.

        `tables` gives those of the cluster as the session sees them; the names of those that no
        user has named start with one of `hidden`. `began` tells when the transaction did that
        statements are part of.
        """
        self._shared, self._reading, self._cluster = shared, reading, tables
        self._hidden = hidden
        self._listing: Callable[[], contextlib.AbstractContextManager[object]] = (
            contextlib.nullcontext
        )
        self._con = shared.connection()
        for name, value in _SETTINGS.items():
            self._con.execute(f"SET SESSION {name} = {value}")
        self._time = ToldTime(con=self._con, began=began, defined=lambda: self._shared.hides_time)
        self.is_apart = is_apart
        self._ours = _SHARED if is_apart else _OURS
        self._of_catalog: frozenset[str] = frozenset()  # own views and macros that read the catalog
        self._waiting = [*settings]  # own settings and definitions that were not made yet
        self._views: dict[str, str] = {}  # the last definition of each own one
        self._visible: set[str] = set()
        # Whether USE has made another schema the default than that of the cluster's tables.
        self.is_elsewhere = False
        self.temporary: frozenset[str] = frozenset()  # the tables that others lack
        self._lock = ConnectionUse(self._con)
        # What a transaction has defined, in which statements leave nothing here.
        self._uncommitted: list[tuple[str, bool]] | None = None  # whether each drops something
        self._is_undone = False  # whether what runs now is rolled back

    @property
    def has_own(self) -> bool:
        """Whether it may have tables or definitions of its own."""
        return self._shared.has_own

    def change(self, how: Callable[[duckdb.DuckDBPyConnection], object]) -> None:
        """Change what all connections have."""
        self._shared.change(how)

    def close(self) -> None:
        with self._lock:
            self._con.close()

    def interrupt(self) -> None:
        self._con.interrupt()

    def look_before_listing(
        self, look: Callable[[], contextlib.AbstractContextManager[object]]
    ) -> None:
        """Have something tell of more tables before the catalog is read, in its context."""
        self._listing = look

    def define(
        self,
        sql: str,
        *,
        alone: bool = False,
        own: bool = False,
        view: str = "",
        drops: bool = False,
    ) -> None:
        """Register a view, macro, type or setting; created when a statement runs here.

        Args:
            sql: the statement.
            alone: whether only this database accepts it, and says so now.
            own: whether it concerns this connection only.
            view: the view that it creates, replaces or drops.
            drops: whether it drops something.
        """
        with self._lock, self._shared.lock:
            self._shared.has_definitions |= Cursor(sql).next not in SETTINGS
            self._shared.hides_time |= defines_time(sql)
            waiting = self._waiting if own else self._shared.definitions
            views = self._views if own else self._shared.views
            if alone:
                with self._shows(sql, named_only=True):  # what was dropped before is gone
                    self._run(self._found(sql))
                self._shared.has_own = True
                self._shared.has_own_views |= view != ""
            if view:  # what was to be made of it before is made no more
                self._unregister(view)
                waiting[:] = [defined for defined in waiting if defined != views.get(view.lower())]
                views[view.lower()] = sql
            if alone:
                return
            if view and drops:
                self._defined(sql)  # now, or it would drop one that is created later
            else:
                waiting.append(sql)

    # Transactions

    def begin(self) -> None:
        """From now on, statements leave nothing here."""
        with self._lock:
            self._uncommitted = []

    def end(self) -> None:
        """Forget what was defined since `begin`."""
        with self._lock:
            self._uncommitted = None

    @property
    def uncommitted(self) -> tuple[str, ...]:
        """What the transaction has defined."""
        return tuple(sql for sql, _ in self._uncommitted or ())

    def has_view(self, name: str) -> bool:
        """Whether there is a view of this name only here."""
        if not self._shared.has_own_views:
            return False
        named = f"{_SHARED} AND lower(view_name) = {quote_text(name.lower())}"
        with self._lock:
            return self._run(f"SELECT 1 FROM duckdb_views() WHERE {named}") != []

    def note_catalog(self, *, reads: bool) -> None:
        """Note which views and macros read the catalog, as one that `reads` it may be new."""
        if not (reads or self._shared.of_catalog or self._of_catalog):
            return
        with self._lock:
            self._replay()
            defined = self._run(_DEFINED)
        noted = frozenset[str]()
        more = frozenset(name.lower() for name, text, _ in defined if reads_catalog(text))
        while not more <= noted:
            noted |= more
            more = frozenset(name.lower() for name, text, _ in defined if mentioned(text, noted))
        self._of_catalog = frozenset(n.lower() for n, _, own in defined if own) & noted
        self._shared.of_catalog = frozenset(n.lower() for n, _, own in defined if not own) & noted

    @property
    def _catalog_views(self) -> frozenset[str]:
        """The views and macros that read the catalog."""
        return self._shared.of_catalog | self._of_catalog

    def reads_catalog(self, sql: str) -> bool:
        """Whether a statement may read the catalog, or call a view or macro that does."""
        views = self._catalog_views
        return reads_catalog(sql) or (bool(views) and mentioned(sql, views) != [])

    def is_alone(self, sql: str) -> bool:
        """Whether only this database knows what names mean in a statement."""
        return self.is_elsewhere or self.names_temporary(sql)

    def defined_by(self, view: str) -> str | None:
        """The last definition of a view of all sessions."""
        return self._shared.views.get(view.lower())

    def define_uncommitted(self, sql: str, *, own: bool, drops: str) -> None:
        """Let later statements of the transaction see a view; not one, if it `drops` that."""
        with self._lock:
            assert self._uncommitted is not None, "there is a transaction"
            if drops:  # the real one, as tables of the cluster are registered as temporary views
                database = "temp" if own else "memory"
                sql = f"DROP VIEW IF EXISTS {database}.main.{quote(drops)}"
            self._uncommitted.append((sql, drops != ""))

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """A block that leaves nothing here, with what the transaction has defined."""
        if self._is_undone:
            yield
            return
        try:
            defined = self._uncommitted or ()
            with undone(self._con, [sql if drops else self._found(sql) for sql, drops in defined]):
                self._is_undone = True
                yield
        except BaseException as error:
            self._keep_types()  # it may have ended the transaction before a block within could
            if isinstance(error, duckdb.Error):
                raise _translated(error) from error
            raise
        finally:
            self._is_undone = False

    def write_uncommitted(self, sql: str, target: Target) -> Written:
        """Run a statement that changes tables, in a transaction."""
        types, shown = self._types_of_users(), self._seen(sql, (target.name,), named_only=True)
        with self._lock, self._shared.lock, types, shown as names:
            self._take_referenced(sql, (target.name,), names)
            before = self._tables()
            answer = self._answer(sql)
            self._keep_types()
            after = self._tables()
            own = target.name.lower()
            changed = [name for name in after if name not in before or name == own]
            gone = tuple(name for name in before if name not in after)
            return Written(answer, tuple(self._changed(name, 0) for name in changed), gone)

    def write(self, sql: str, target: Target | None, rows: pa.Table | None = None) -> pa.Table:
        """Run a statement that changes tables; the number of changed rows, or RETURNING's.

        It may read `rows` as `ROWS`.
        """
        name = target.name if target is not None else None
        with self._lock, self._shared.lock, self._shows(sql, named_only=True) as names:
            changed = (name,) if name is not None else mentioned(sql, names)
            taken = self._take_referenced(sql, changed, names)
            before = self._tables()
            try:
                noted = self._temporary_noted() if self.temporary else contextlib.nullcontext()
                with noted, self._types_of_users(), self._registered(rows):
                    answer = self._answer(sql)
            except MinisharkError:
                for copied in taken:  # nothing has changed: the cluster's are theirs again
                    self._run(f"DROP TABLE {_CLUSTERS}{quote(copied)}")
                raise
            after = self._tables()
            for table in after:
                if name is None or table not in before or table == name.lower():
                    self._shared.changed[table] = next(self._shared.numbers)
            gone = set(before).difference(after)
            if not gone.isdisjoint(self._shared.numbered):  # it keeps its sequences when renamed
                self._shared.numbered.update(set(after).difference(before))
            self._note_gone(gone)
            return answer

    def _take_referenced(self, sql: str, changed: Iterable[str], names: Iterable[str]) -> list[str]:
        """Copy tables that a statement changes, and with them those that they refer to.

        Views have no keys, so what is referenced is here, too.
        """
        taken = self._take(changed)
        return taken + self._take(mentioned(sql, names if mentioned(sql, ("references",)) else ()))

    def insert(
        self,
        sql: str,
        shell: Shell,
        given: pa.Table | None = None,
        stored: pa.Table | None = None,
    ) -> MadeRows:
        """Run an INSERT that reads no other table, for a table whose rows are in the cluster.

        Args:
            sql: the statement, which may read `given` as `ROWS`.
            shell: what its table is like.
            given: rows.
            stored: the rows of the table that have keys of added rows, and their numbers.
        """
        with self._lock:
            return self._in_shell(sql, shell, given, stored, keeps_same=True)

    def select(self, sql: str, rows: pa.Table, *, stoppable: StoppedBy) -> pa.Table:
        """Run a query that reads these rows alone, as `ROWS`; see `query` for `stoppable`."""
        with self._lock:
            self._replay()
            self._tell_time(sql)
            with stoppable(self._con.interrupt), self._registered(rows):
                return self._answer(sql)

    def change_some(self, sql: str, shell: Shell, rows: pa.Table, *, is_alone: bool) -> MadeRows:
        """Run a statement on a table that has these rows only.

        Args:
            sql: the statement.
            shell: what its table is like.
            rows: at least all rows that it changes, and their numbers.
            is_alone: whether it reads no other table.
        """
        with (
            self._lock,
            contextlib.nullcontext() if is_alone else self._shows(sql, named_only=True),
        ):
            return self._in_shell(sql, shell, None, rows, keeps_same=False)

    def check(self, sql: str, shell: Shell, *, is_alone: bool) -> None:
        """Raise what is wrong with a statement on a table like this, without running it."""
        seen = contextlib.nullcontext() if is_alone else self._shows(sql, named_only=True)
        with self._lock, seen, self._made(sql, shell):
            self._run(f"EXPLAIN {self._found(sql)}")

    @contextlib.contextmanager
    def _made(self, sql: str, shell: Shell, rows: Mapping[str, pa.Table] = {}) -> Iterator[None]:
        """While a statement runs, a shell is here, and rows are under these names."""
        with self._shared.lock, contextlib.ExitStack() as stack:
            self._replay()
            self._tell_time(sql, shell.create)
            self._hide(shell.name)
            for name, registered in rows.items():
                stack.enter_context(self._registered(registered, name))
            stack.enter_context(self._undone())
            self._run(shell.create)
            yield

    def _in_shell(
        self,
        sql: str,
        shell: Shell,
        given: pa.Table | None,
        stored: pa.Table | None,
        *,
        keeps_same: bool,
    ) -> MadeRows:
        read = {name: r for name, r in ((ROWS, given), (_STORED, stored)) if r is not None}
        types = self._types_of_users()
        with types, self._layout() as as_stored, self._made(sql, shell, read):
            table, before = f"{_CLUSTERS}{quote(shell.name)}", _STORED_ROWS
            if stored is not None:
                number = quote(stored.column_names[-1])
                self._run(f"INSERT INTO {table} SELECT * EXCLUDE ({number}) FROM {before}")
            answer = self._answer(sql)
            self._keep_types()
            as_stored(shell.types)
            keys = [
                self._new_keys(table, columns, has_stored=stored is not None)
                for columns in shell.keys
            ]
            made, replaced = f"{table} AS t", pa.table({"number": integers(())})
            if stored is not None:
                replaced = stored.select([stored.column_names[-1]])
                if keeps_same:  # rows with keys, so that no two are the same
                    same = " AND ".join(map(_is_same, stored.column_names[:-1]))
                    was = f"SELECT s.{number} FROM {before} AS s ANTI JOIN {made} ON {same}"
                    made += f" ANTI JOIN {before} AS s ON {same}"
                    replaced = self._read(was)
            rows = self._read(f"SELECT t.*, {shell.bucket} FROM {made}")
            return MadeRows(answer, rows, tuple(keys), replaced)

    def _new_keys(self, table: str, columns: tuple[str, ...], *, has_stored: bool) -> NewKeys:
        """The keys of rows in a shell that none of the stored rows have."""
        names = [quote(name) for name in columns]
        texts = ", ".join(f"CAST({name} AS VARCHAR)" for name in names)
        filled = " AND ".join(f"{name} IS NOT NULL" for name in names)
        of_old = f" ANTI JOIN {_STORED_ROWS} USING ({', '.join(names)})" if has_stored else ""
        values = self._read(f"SELECT {texts} FROM {table}{of_old} WHERE {filled}")
        return NewKeys(columns, values)

    def must_keep(self, name: str) -> bool:
        """Whether a table is here, and not to be left to the cluster when that loads it."""
        if not self._shared.has_own:
            return False
        with self._lock, self._shared.lock:
            described = self._described(name)
            if described is None:
                return False
            return name.lower() not in self._shared.changed or not described.is_only_rows

    def _described(self, name: str) -> _Described | None:
        """A table; None if it is not here."""
        key = name.lower()
        named = f"{self._ours} AND lower(table_name) = {quote_text(key)}"
        tables = self._run(
            "SELECT database_name, table_name, sql, index_count, temporary, comment "
            "FROM duckdb_tables() "
            f"WHERE {named} ORDER BY database_name DESC"
        )
        if not tables:
            return None
        database, name, sql, indexes, is_temporary, comment = tables[0]
        columns = self._run(
            "SELECT column_index - 1, column_name, column_default, comment FROM duckdb_columns() "
            f"WHERE {named} AND (column_default IS NOT NULL OR comment IS NOT NULL)"
        )
        constraint_rows = self._run(
            "SELECT constraint_type, constraint_column_names, expression FROM duckdb_constraints() "
            f"WHERE {named} UNION ALL SELECT 'REFERENCE', [], '' FROM duckdb_constraints() "
            f"WHERE {self._ours} AND lower(referenced_table) = {quote_text(key)}"
        )
        keys = tuple(
            tuple(names) for kind, names, _ in constraint_rows if kind in ("PRIMARY KEY", "UNIQUE")
        )
        filled = (quote(names[0]) for kind, names, _ in constraint_rows if kind == "NOT NULL")
        constraints = Constraints(
            {place: default for place, _, default, _ in columns if default is not None},
            (
                *(f"{column} IS NOT NULL" for column in filled),
                *(f"({text}) IS NOT FALSE" for kind, _, text in constraint_rows if kind == "CHECK"),
            ),
            keys,
        )
        stays = key in self._shared.own or key in self._shared.numbered
        sees_more = indexes != len(keys) or any(
            kind == "REFERENCE" for kind, _, _ in constraint_rows
        )
        return _Described(
            name=name,
            place=f"{quote(database)}.main.{quote(name)}",
            has_collations=any(token.word == "COLLATE" for token in sql_tokens(sql)),
            is_only_rows=not (is_temporary or stays or sees_more or mentioned(sql, _SEES_MORE)),
            definition=_definition(name, sql, comment, [(c[1], c[3]) for c in columns]),
            constraints=constraints,
        )

    def created_of_catalog(self, sql: str, target: Target) -> pa.Table:
        """The rows of a table as a statement makes it of the catalog, which lists the table, too.

        Raises:
            UnsupportedError: they do not survive Arrow.
        """
        with self._lock, self._seen(sql):
            self._run(self._found(sql))
            relation = self._con.sql(f"FROM {'.'.join(map(quote, target.path))}")
            if not kept_by_arrow(map(str, relation.types)):
                raise UnsupportedError(NO_CATALOG)
            return _rows_of(relation)

    def run(self, sql: str, *, comments: bool = False, rows: pa.Table | None = None) -> pa.Table:
        """Run a statement; one that `comments` may be about a table of the cluster.

        It may read `rows` as `ROWS`.
        """
        with self._lock, self._shared.lock, self._shows(sql) as names, self._registered(rows):
            self._shared.has_definitions = True
            self._shared.hides_time |= defines_time(sql)
            if comments:
                self._take(mentioned(sql, names))
            cursor = Cursor(sql)
            if cursor.comes("ALTER", "SEQUENCE"):  # tables that own sequences stay here
                self._take_numbered(mentioned(sql, names))
            drops = cursor.comes("DROP", "SEQUENCE") or cursor.comes(*_REPLACES_SEQUENCE)
            with self._dependent(names) if drops else contextlib.nullcontext():
                answer = self._answer(sql)
            ((here,),) = self._run("SELECT (current_database(), current_schema())")
            self.is_elsewhere = here != ("memory", "main")
            return answer

    def tables_in(self, database: str) -> frozenset[str]:
        """The names of a database's tables, in lower case, whatever schemas they are in."""
        with self._lock:
            rows = self._con.execute(_TABLES_IN, [database]).fetchall()
        return frozenset(name for (name,) in rows)

    def copy_database(self, sql: str, names: Iterable[str]) -> pa.Table:
        """Run a COPY FROM DATABASE, while these of the cluster's tables are here.

        Those that it copies, or of whose names it copies others: DuckDB refuses to replace these.
        """
        with self._lock, self._shared.lock, self._shows(sql):
            self._shared.has_definitions = True  # that it may have copied
            taken = self._take(names)
            before = self._tables()
            try:
                return self._answer(sql)
            finally:
                for name in taken:
                    self._run(f"DROP TABLE {_CLUSTERS}{quote(name)}")
                for table in set(self._tables()).difference(before):
                    self._shared.changed[table] = next(self._shared.numbers)

    def leads_to_main(self, name: str) -> bool:
        """Whether a name without a schema is that of a table in `memory.main`, after USE or SET."""
        with self._lock:
            ((leads,),) = self._con.execute(_LEADS_TO_MAIN, [name]).fetchall()
        return bool(leads)

    @contextlib.contextmanager
    def _dependent(self, names: Iterable[str]) -> Iterator[None]:
        """A block in which tables whose defaults may call sequences are here, without rows.

        DuckDB drops no sequence that a table depends on, unless CASCADE drops that, too.
        """
        made = []
        for name in self._shown(names):
            definition = self._definition(name)
            if "nextval" in definition.lower():
                self._hide(name)
                with self._at_home():
                    self._run(definition)
                made.append(name)
        before = self._tables()
        try:
            yield
        finally:
            left = self._tables()
            self._note_gone(set(before).difference(left))
            for name in made:
                if name.lower() in left:
                    self._run(f"DROP TABLE {_CLUSTERS}{quote(name)}")

    def _note_gone(self, names: Iterable[str]) -> None:
        """Note tables that a statement has dropped or renamed, of whose names others may be."""
        for name in names:
            self._shared.gone.add(name)
            self._shared.numbered.discard(name)
            self._shared.own.pop(name, None)

    def names_temporary(self, sql: str) -> bool:
        """Whether a statement may read or write temporary tables, which no executor has."""
        names = mentioned(sql, self.temporary) if self.temporary else []
        if not names or not mentioned(sql, ("memory",)):
            return names != []
        # All that is called so may be `memory.main.t`, and `t.c` its column.
        tokens = sql_tokens(sql)
        if any(mentioned(token.text, names) for token in tokens if token.is_text):
            return True
        keys = [name.key for name in names_in(tokens)]
        in_memory = {name for name in names for key in keys if _is_in_memory(key, name)}
        others = [key for key in keys if len(key) == 1 or key[0] not in names]
        return len(in_memory) < len(names) or any(
            name in key and not _is_in_memory(key, name) for key in others for name in names
        )

    def run_temporary(self, sql: str, rows: pa.Table | None = None) -> pa.Table:
        """Run a statement about temporary tables; it may read `rows` as `ROWS`."""
        types = self._types_of_users()
        with self._lock, self._temporary_noted(), types, self._shows(sql), self._registered(rows):
            return self._answer(sql)

    def put_temporary(self, create: str, name: str, rows: pa.Table | None) -> pa.Table:
        """Create a temporary table; the statement may read `rows` as `ROWS`."""
        with self._lock, self._temporary_noted(), self._shows(create), self._registered(rows):
            if name.lower() not in self.temporary:
                self._unregister(name)  # the view of the cluster's table of that name
            return self._answer(create)

    @contextlib.contextmanager
    def _temporary_noted(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.temporary = frozenset(name for (name,) in self._run(_TEMPORARY))

    def create_enum(self, statement: CreateEnum) -> str:
        """Run it; the statement with the values that its query has given."""
        with self._lock:
            with self._seen(statement.sql):
                self._run(statement.sql)
                type_ = ".".join(map(quote, statement.path))
                ((values,),) = self._run(f"SELECT enum_range(NULL::{type_})::VARCHAR[]")
            enum = f"{statement.create} AS ENUM ({', '.join(map(quote_text, values))})"
            if self.reads_catalog(statement.sql):
                self._run(enum)  # what it made before was undone
            return enum

    def set_variable(self, statement: SetVariable) -> str:
        """Run it; the statement with the value that its query has given."""
        value = f"getvariable({quote_text(statement.name)})"
        with self._lock, self._seen(statement.sql):
            self._run(statement.sql)
            ((type_, written),) = self._run(f"SELECT typeof({value}), {value}::VARCHAR")
            text = f"CAST({'NULL' if written is None else quote_text(written)} AS {type_})"
            try:
                same = self._run(f"SELECT {text} IS NOT DISTINCT FROM {value}")
            except (QueryError, TaskFailedError):
                same = []
            if same != [(True,)]:
                raise UnsupportedError(
                    f"A variable of type {type_} can't be sent to executors; use a table."
                )
            return f"SET VARIABLE {quote(statement.name)} = {text}"

    def query(
        self, sql: str, *, lossless: bool = False, stoppable: StoppedBy = stopped_by
    ) -> pa.Table:
        """Run a query here, over all rows of its tables.

        Args:
            sql: the query.
            lossless: whether DuckDB's types are kept.
            stoppable: a context in which it runs, which is given what interrupts it.
        """
        types = contextlib.nullcontext() if lossless else self._types_of_users()
        with self._lock, stoppable(self._con.interrupt), types, self._seen(sql) as names:
            if mentioned(sql, _ROW_NUMBER):
                self._take_numbered(mentioned(sql, names))
            if mentioned(sql, ("describe", "desc")):  # views have no keys
                stored = (self._stored(name) for name in mentioned(sql, names))
                self._take(t.name for t in stored if t is not None and t.constraints.keys)
            return self._answer(sql)

    def catalog(self, sql: str, search: str = "") -> pa.Table:
        """Answer a statement about the catalog.

        Args:
            sql: the statement.
            search: the schema in which names are looked up first, if not the cluster's tables'.
        """
        # Settings are changed outside of the transaction that is rolled back: a statement that
        # fails lets no other one run.
        with self._lock, self._types_of_users(), self._listed(sql, search=search):
            return self._answer(sql)

    @contextlib.contextmanager
    def _seen(
        self, sql: str, filled: Sequence[str] = (), *, named_only: bool = False
    ) -> Iterator[list[str]]:
        """As `_shows`; for a statement that reads the catalog, as `_listed`."""
        if self.reads_catalog(sql):
            shown = self._listed(sql, filled)
        else:
            shown = self._shows(sql, named_only=named_only)
        with shown as names:
            yield names

    @contextlib.contextmanager
    def _listed(
        self, sql: str, filled: Sequence[str] = (), *, search: str = ""
    ) -> Iterator[list[str]]:
        """A block in which the catalog lists the cluster's tables; it leaves nothing here.

        Those have rows that the statement may read, or that are to be `filled`.

        Raises:
            UnsupportedError: it reads rows of what the catalog does not list.
        """
        with self._listing(), self._shared.lock, self._reading(sql) as read:
            shown = self._shown_to(read, sql, None)
            names = [name for name in shown if not name.startswith(self._hidden)]
            filled = [*filled, *self._read_in(sql, shown)] if self.reads_catalog(sql) else ()
            is_hidden = any(name.startswith(self._hidden) for name in filled)
            if is_hidden or (filled and mentioned(sql, _ROW_NUMBER)):  # new rows lack their numbers
                raise UnsupportedError(NO_CATALOG)
            self._tell_time(sql, *map(self._definition, mentioned(sql, names)))
            with self._looked_up_in(search), self._undone():
                # Not for users; a statement names those that stand for its files.
                for name in self._visible.difference(names, mentioned(sql, self._visible)):
                    self._run(f"DROP VIEW IF EXISTS temp.{quote(name)}")
                keys = {name.lower() for name in filled}
                for name in self._shown(names):
                    view, table = f"temp.{quote(name)}", f"{_CLUSTERS}{quote(name)}"
                    create = f"CREATE TABLE {table} AS FROM {view} LIMIT 0"
                    self._run(self._definition(name) or create)
                    if name.lower() in keys:
                        self._run(f"INSERT INTO {table} FROM {view}")
                    self._run(f"DROP VIEW {view}")
                self._tell_of_cluster(sql, names)
                yield names

    def _tell_of_cluster(self, sql: str, names: Iterable[str]) -> None:
        """Have the catalog tell the rows of the cluster's tables, and of no macros of ours."""
        ours = [*self._time.names, "duckdb_functions"]
        if mentioned(sql, ("duckdb_tables", "pg_class", *self._catalog_views)):
            self._tell_sizes(names)
            ours.append("duckdb_tables")
        if len(ours) > 1 and mentioned(sql, ("duckdb_functions", *self._catalog_views)):
            self._run(
                "CREATE TEMP MACRO duckdb_functions() AS TABLE FROM system.main.duckdb_functions() "
                "WHERE database_name <> 'temp' "
                f"OR function_name NOT IN ({', '.join(map(quote_text, ours))})"
            )

    def _tell_sizes(self, names: Iterable[str]) -> None:
        """Have it tell the rows of the cluster's tables, which are empty here."""
        tables = (self._stored(name) for name in names)
        rows = ", ".join(
            f"{quote_text(table.name)}: {table.rows}"
            for table in tables
            if table is not None and table.is_computed
        )
        if rows:
            self._run(
                "CREATE TEMP MACRO duckdb_tables() AS TABLE SELECT * REPLACE (CASE WHEN "
                "database_name = 'memory' AND schema_name = 'main' THEN "
                f"greatest(map {{{rows}}}[table_name], estimated_size) ELSE estimated_size END "
                "AS estimated_size) FROM system.main.duckdb_tables()"
            )

    def _read_in(self, sql: str, names: list[str]) -> list[str]:
        """Those of the tables whose rows a statement may read, seen through views and macros."""
        own = mentioned(sql, self._views)
        with contextlib.closing(self._shared.connection()) as con:
            # DuckDB tells by binding the statement over tables without columns, which fails where
            # columns matter. This connection has none of the views that stand for tables, nor the
            # session's own ones.
            if not (own or self._uncommitted):
                with contextlib.suppress(duckdb.Error):
                    read = {name.lower() for name in con.get_table_names(sql)}
                    return [name for name in names if name.lower() in read]
            defined = [name for name, _, _ in con.execute(_DEFINED).fetchall()]
        text = " ".join((sql, *(self._views[name] for name in own)))
        is_known = not (self._uncommitted or mentioned(text, defined))
        if is_known and len(own) == len(mentioned(text, self._views)):
            return mentioned(text, names)
        return names

    @contextlib.contextmanager
    def _looked_up_in(self, schema: str) -> Iterator[None]:
        """A block in which names are looked up in a schema, if it is one."""
        if schema:
            self._run(f"USE {schema}")
        try:
            yield
        finally:
            if schema:
                self._run("USE memory.main")

    def explain(self, sql: str, *, analyze: bool) -> str:
        word = "EXPLAIN ANALYZE" if analyze else "EXPLAIN"
        with self._lock, self._shows(sql):
            return "\n".join(text for _, text in self._run(f"{word} {self._found(sql)}"))

    def can_prepare(self, sql: str) -> bool:
        """Whether a query with parameters has names and types that are known here."""
        with self._lock, self._shows(sql):
            try:
                check_prepared(self._con, self._found(sql))
            except duckdb.Error:
                return False
            return True

    def put(self, name: str, columns: Iterable[tuple[str, str]], rows: pa.Table) -> None:
        """Create or replace a table with columns of these types."""
        described = ", ".join(f"{quote(column)} {type_}" for column, type_ in columns)
        with self._lock, self._shared.lock:
            self._shared.has_own = True
            with self._registered(rows):
                self._run(f"CREATE OR REPLACE TABLE {_CLUSTERS}{quote(name)} ({described})")
                self._run(f"INSERT INTO {_CLUSTERS}{quote(name)} FROM {quote(ROWS)}")
            self._shared.changed[name.lower()] = next(self._shared.numbers)

    def copy(self, table: pa.Table, target: str, schema: Schema = ()) -> pa.Table:
        """Write rows to files: `COPY rows TO target`; DuckDB's answer.

        A `schema` says of which types they are: tuples come as structs, which have names.
        """
        rows = quote(ROWS)
        if any("TUPLE(" in column.type for column in schema):
            names = [f"c{i}" for i in range(len(schema))]
            columns = ", ".join(
                (f"CAST({name} AS {column.type})" if "TUPLE(" in column.type else name)
                + f" AS {quote(column.name)}"
                for name, column in zip(names, schema, strict=True)
            )
            rows = f"(SELECT {columns} FROM {rows} AS t({', '.join(names)}))"
        with self._lock:
            self._replay()
            with self._registered(table):
                return self._answer(f"COPY {rows} TO {target}")

    def names_renamed(self, sql: str) -> bool:
        """Whether a text may name tables that are gone, which the cluster still has."""
        return bool(self._shared.gone) and mentioned(sql, tuple(self._shared.gone)) != []

    def renamed(self) -> list[str]:
        """The tables that are gone since this was asked before, as ALTER TABLE renamed them."""
        gone: list[str] = []
        while self._shared.gone:
            gone.append(self._shared.gone.pop())
        return gone

    def changed(self) -> list[ScratchTable]:
        """The changed tables that the cluster has not loaded yet."""
        if not self._shared.changed:  # queries must not wait for a statement that runs here
            return []
        with self._lock, self._shared.lock:
            kept, changed = self._tables(), self._shared.changed
            for gone in [name for name in changed if name not in kept]:
                del changed[gone]
            return [self._changed(name, number) for name, number in changed.items()]

    def _changed(self, name: str, number: int) -> ScratchTable:
        """A table that is here."""
        described = self._described(name)
        assert described is not None, "it is here"
        rows = self._stored_as(described)
        definition = described.definition if rows is not None and described.is_only_rows else None
        return ScratchTable(name, number, rows, definition, described.constraints)

    def commented(self, sql: str, shell: Shell) -> str:
        """What makes an empty table like another one, after a COMMENT on it or its columns."""
        with self._lock, self._made(sql, shell):
            self._run(self._found(sql))
            described = self._described(shell.name)
            assert described is not None, "it was made just now"
            return described.definition

    def added_column(
        self, sql: str, shell: Shell, varies: Callable[[str], bool]
    ) -> AddedColumn | pa.Table | None:
        """Run an ALTER TABLE that adds a column; None if it does something else, or more.

        Its answer alone if it changes nothing, as there is the column.

        Args:
            sql: the statement.
            shell: what its table is like.
            varies: tells whether an expression may have another value in each row.
        """
        types_of_users = self._types_of_users()
        with self._lock, self._layout() as as_stored, self._made(sql, shell):
            before = self._described(shell.name)
            with types_of_users:
                answer = self._answer(sql)
            self._keep_types()
            after = self._described(shell.name)
            assert before is not None, "it was made just now"
            if after == before:
                return answer
            if after is None or not after.is_only_rows or after.has_collations:
                return None
            relation = self._con.sql(f"FROM {after.place} LIMIT 0")
            types = [str(type_) for type_ in relation.types]
            position, says = len(shell.types), after.constraints
            same = replace(says, defaults=before.constraints.defaults) == before.constraints
            if types[:-1] != [*shell.types] or not same or not kept_by_arrow(types[-1:]):
                return None
            default = says.defaults.get(position, "NULL")
            if varies(default):
                return None
            column = Column(relation.columns[position], types[position])
            as_stored(types[position:])
            try:
                value = f"SELECT CAST(({default}) AS {column.type}) AS {quote(column.name)}"
                row = self._read(value)
            except (QueryError, TaskFailedError):
                return None  # which a table without rows does not mind
            return AddedColumn(
                answer=answer,
                column=column,
                row=row,
                definition=after.definition,
                constraints=says,
            )

    @contextlib.contextmanager
    def _layout(self) -> Iterator[Callable[[Sequence[str]], None]]:
        """A block with a function, after which rows of types come as they are stored in tables.

        It is around transactions: what is set outlives them, and can't be reset in one that failed.
        """
        with contextlib.ExitStack() as stack:

            def as_stored(types: Sequence[str]) -> None:
                for name, value in stored_settings(types).items():
                    if name not in _SETTINGS:
                        stack.callback(self._run, f"RESET SESSION {name}")
                        self._run(f"SET SESSION {name} = {value}")

            yield as_stored

    def loaded(self, table: ScratchTable) -> None:
        """`table` was loaded, or stays here; if it has changed again since, it is still to load."""
        with self._lock, self._shared.lock:
            key = table.name.lower()
            if table.rows is None:
                self._shared.own[key] = None
            if self._shared.changed.get(key) == table.number:
                del self._shared.changed[key]
                if table.definition is not None:
                    # The cluster has the rows; they are here again when a statement needs them.
                    self._run(f"DROP TABLE {_CLUSTERS}{quote(table.name)}")

    @property
    def own_tables(self) -> list[str]:
        """The tables that only this database can hold."""
        own = tuple(self._shared.own)
        tables = self._tables() if own else []
        return [name for name in own if name in tables]

    def _stored_as(self, table: _Described) -> pa.Table | None:
        """A table's rows; None if they do not survive a round trip through Arrow."""
        relation = self._con.sql(f"FROM {table.place}")
        if table.has_collations or not kept_by_arrow(map(str, relation.types)):
            return None
        rows = relation.to_arrow_table()
        with self._registered(rows):
            same = self._con.table(ROWS).types == relation.types
        return rows if same else None

    def drop(self, name: str) -> bool:
        """Drop a table; returns whether it was here."""
        with self._lock, self._shared.lock:
            self._shared.changed.pop(name.lower(), None)
            self._shared.own.pop(name.lower(), None)
            self._shared.numbered.discard(name.lower())
            self._unregister(name)
            if not self._shared.has_own or name.lower() not in self._tables():
                return False
            described = self._described(name)
            assert described is not None, "it is one of the tables"
            self._run(f"DROP TABLE {described.place}")
            return True

    def _tables(self) -> list[str]:
        rows = self._con.execute(
            f"SELECT lower(table_name) FROM duckdb_tables() WHERE {self._ours}"
        ).fetchall()
        return [name for (name,) in rows]

    @contextlib.contextmanager
    def _shows(self, sql: str, *, named_only: bool = False) -> Iterator[list[str]]:
        """While a statement runs, the cluster's tables are visible; their names.

        With `named_only` those are enough that its text names, unless it may read others by views.
        """
        with self._reading(sql) as read:
            names = self._shown_to(read, sql, sql if named_only else None)
            self._tell_time(sql, *map(self._definition, mentioned(sql, names)))
            if self._uncommitted is None:
                yield names
                return
            numbered = mentioned(sql, names) if mentioned(sql, _ROW_NUMBER) else []
            with self._copied(numbered), self._undone():
                yield names

    def _shown_to(self, read: ReadTable, sql: str, named: str | None) -> list[str]:
        """Make tables visible to a statement; those at least that `named` has, if it is given."""
        try:
            return self._show(read, self._meant_here(sql), named)
        except duckdb.InterruptException as error:
            raise _translated(error) from error

    def _tell_time(self, *texts: str) -> None:
        """Before a statement, of these texts, that may tell the time."""
        if not self._is_undone:
            self._time.tell(lambda: self._shared.has_definitions or any(map(tells_time, texts)))

    @contextlib.contextmanager
    def _copied(self, names: Iterable[str]) -> Iterator[None]:
        """A block in which tables of the cluster are temporary ones, so that rows have numbers.

        What a transaction of DuckDB has added has others than those that begin at zero.
        """
        with contextlib.ExitStack() as stack:
            for name in self._shown(names):
                table = f"temp.main.{quote(name)}"
                rows = self._con.table(name).to_arrow_table()
                self._unregister(name)
                with self._registered(rows):
                    self._run(f"CREATE TEMP TABLE {quote(name)} AS FROM {quote(ROWS)}")
                stack.callback(self._run, f"DROP TABLE {table}")
            yield

    def _meant_here(self, sql: str) -> frozenset[str]:
        """The cluster's tables that a statement does not mean by their names alone.

        Tables of another current schema hide them, and after USE of another database they are not
        found.

        Raises:
            UnsupportedError: the statement names two tables that are called alike.
        """
        if self.temporary and mentioned(sql, ("memory",)):
            keys = [name.key for name in names_in(sql_tokens(sql))]
            for name in self.temporary:
                if any(_is_in_memory(key, name) for key in keys):
                    raise UnsupportedError(
                        f"Two tables are called {name}, this session's temporary one and one that "
                        "all sessions have, and a statement reads one of them: copy one of them "
                        "to another name."
                    )
        if not self.is_elsewhere:
            return frozenset()
        tables = self._run(
            "SELECT lower(table_name) FROM information_schema.tables "
            "WHERE table_catalog = current_database() AND table_schema = current_schema()"
        )
        named, names = [name.key for name in names_in(sql_tokens(sql))], set()
        for (name,) in tables:
            if not any(key[0] == name for key in named):
                continue
            if ("main", name) in _pairs(named):
                raise UnsupportedError(
                    f"Two tables are called {name} in this statement: USE memory.main, and write "
                    "the schema of the other one."
                )
            names.add(name)
        if self._run(_REACHES_MEMORY) != [(True,)]:
            qualified = {key[-1] for key in _pairs(named) if key[0] in ("memory", "main")}
            ours = {name.lower() for name in mentioned(sql, self._cluster().loaded)}
            names |= ours - qualified
        return frozenset(names)

    def _show(self, read: ReadTable, hidden: frozenset[str], sql: str | None) -> list[str]:
        """Make the cluster's tables visible, without a copy, and the definitions over them.

        Those at least that `sql` may read, if it is given.
        """
        self._shared.has_own = True
        names = [*self._cluster().loaded, *self._shared.sources()]
        own = [*self._tables(), *hidden]
        # What is registered stays mapped: the memory of dropped tables would not be free.
        # One that another connection has copied to change it must not hide the copy. All this goes
        # first: it may have the name of what comes, in other capitals.
        shown = {name for name in names if name.lower() not in own}
        stale = [name for name in self._visible if name not in shown]
        for name in stale:
            self._unregister(name)
        for name in names if sql is None else self._read_by(sql, names):
            if name.lower() not in own and name.lower() not in self.temporary:
                # Another thread may drop it meanwhile; a statement that names it fails then.
                with contextlib.suppress(CatalogError):
                    self._con.register(name, read(name))
                    self._visible.add(name)
        self._replay()
        numbered = [sql for sql in self._shared.definitions if mentioned(sql, _ROW_NUMBER)]
        if numbered:
            self._take_numbered(mentioned(" ".join(numbered), names))
            self._replay()
        return names

    def _stored(self, name: str) -> Table | None:
        """A table in the cluster, as the session sees it."""
        return self._cluster().find(name)

    def _definition(self, name: str) -> str:
        """How a table in the cluster is created; empty if columns tell all."""
        stored = self._stored(name)
        return stored.definition if stored is not None else ""

    def _read_by(self, sql: str, names: list[str]) -> list[str]:
        """Those of the tables that a statement may read: by name, a view or macro, or as text."""
        if self._shared.has_definitions or self._uncommitted or "query" in sql.lower():
            return names
        return mentioned(sql, names)

    def _unregister(self, name: str) -> None:
        self._visible.discard(name)
        self._con.unregister(name)

    def _hide(self, name: str) -> None:
        """Let statements not see a table of the cluster, or only those of this block."""
        if self._is_undone:  # what is registered must stay, as its view comes back
            self._run(f"DROP VIEW IF EXISTS temp.{quote(name)}")
        else:
            self._unregister(name)

    def _replay(self) -> None:
        """Run the definitions and settings that have not succeeded yet."""
        if self._is_undone:  # one that fails would end it
            return
        if not (self._waiting or self._shared.definitions):
            return
        self._time.tell(lambda: False)  # no user's macro replaces what a transaction was told with
        # A view over a table that does not exist (any more) waits until one of its name does.
        self._waiting = [sql for sql in self._waiting if not self._defined(sql)]
        if self._shared.definitions:
            with self._shared.lock:
                left = [sql for sql in self._shared.definitions if not self._defined(sql)]
                self._shared.definitions[:] = left

    def _defined(self, sql: str) -> bool:
        try:
            self._con.execute(self._found(sql)).fetchall()
        except duckdb.Error:
            return False
        return True

    def _found(self, sql: str) -> str:
        """A statement with names that are found here of the cluster's tables.

        What is registered is temporary, so `memory.main.t` is to be written as `main.t`.
        """
        return without_database(sql, "memory", {name.lower() for name in self._visible})

    def _shown(self, names: Iterable[str]) -> list[str]:
        """The cluster's tables among the names that are visible here as views."""
        asked = {name.lower() for name in names}
        if asked.isdisjoint(name.lower() for name in self._visible):
            return []
        rows = self._con.execute("SELECT view_name FROM duckdb_views() WHERE temporary").fetchall()
        own = self._tables()
        return [name for (name,) in rows if name.lower() in asked and name.lower() not in own]

    def takes_tables(self, sql: str) -> bool:
        """Whether tables of the cluster stay here after a statement; none may change meanwhile."""
        cursor = Cursor(sql)
        defined = any(mentioned(text, _ROW_NUMBER) for text in self._shared.definitions)
        return defined or cursor.comes("ALTER", "SEQUENCE") or mentioned(sql, _ROW_NUMBER) != []

    def _take_numbered(self, names: Sequence[str]) -> None:
        """Copy tables whose row ids are asked for, which views do not have; they stay the same."""
        if not self._is_undone:
            self._shared.numbered.update(name.lower() for name in names)
        self._take(names)

    def _take(self, names: Iterable[str]) -> list[str]:
        """Copy tables of the cluster, as they are about to change; which ones were not here."""
        taken = []
        with self._shared.lock:
            for name in names:
                for shown in self._shown((name,)):
                    rows = self._con.table(shown).to_arrow_table()
                    self._hide(shown)
                    table = f"memory.main.{quote(shown)}"
                    definition = self._definition(shown)
                    with self._registered(rows):
                        if not definition:
                            self._con.execute(f"CREATE TABLE {table} AS FROM {quote(ROWS)}")
                        else:
                            with self._at_home():
                                self._con.execute(definition)
                            self._con.execute(f"INSERT INTO {table} FROM {quote(ROWS)}")
                    taken.append(shown)
        return taken

    @contextlib.contextmanager
    def _at_home(self) -> Iterator[None]:
        """In the schema of the cluster's tables, for statements that do not name it."""
        ((path,),) = self._run("SELECT current_setting('search_path')")
        if self.is_elsewhere:
            self._run("USE memory.main")
        try:
            yield
        finally:
            if self.is_elsewhere:
                self._run(f"SET search_path = {quote_text(path)}")

    @contextlib.contextmanager
    def _registered(self, rows: pa.Table | None, name: str = ROWS) -> Iterator[None]:
        """Make rows visible to statements, if there are some."""
        if rows is None:
            yield
            return
        self._con.register(name, rows)
        try:
            with self._lock:
                yield
        finally:
            # An error has ended the transaction around this block, and what began in it is gone.
            with contextlib.suppress(duckdb.TransactionException):
                self._con.unregister(name)

    @contextlib.contextmanager
    def _types_of_users(self) -> Iterator[None]:
        """A block in which rows have the types in which users get results."""
        self._run("SET SESSION arrow_lossless_conversion = false")
        try:
            yield
        finally:
            # An error has ended the transaction around this block: `_undone` sees to it then.
            with contextlib.suppress(duckdb.TransactionException):
                self._keep_types()

    def _keep_types(self) -> None:
        """Have rows keep DuckDB's types."""
        self._con.execute("SET SESSION arrow_lossless_conversion = true")

    def _answer(self, sql: str) -> pa.Table:
        with stopped_by(self._con.interrupt):
            return self._executed(sql)

    def _executed(self, sql: str) -> pa.Table:
        try:
            answer = self._fetched(self._found(sql))
            # DuckDB counts no changed rows as an empty answer.
            nothing = answer.num_rows == 0 and answer.column_names == ["Count"]
            return pa.table({"Count": integers([0])}) if nothing else answer
        except duckdb.Error as error:
            raise _translated(error) from error

    def _fetched(self, sql: str) -> pa.Table:
        """The rows of a statement, whose columns are called as it says."""
        # A relation needs no copy of its rows, but counts up the names of columns that are equal;
        # then it has run all the same, so that nothing must be changed by that.
        if not mentioned(sql, _CHANGES):
            (first, *others) = self._con.extract_statements(sql)
            if not others and first.type == duckdb.StatementType.SELECT:
                relation = self._con.sql(first)
                if not any(map(_COUNTED_UP.search, relation.columns)):
                    return _rows_of(relation)
        answer = self._con.execute(sql)
        types = [column[1] for column in answer.description or ()]
        return _typed(answer.to_arrow_table(), types)

    def _read(self, sql: str) -> pa.Table:
        """The rows of a query of ours, which names what is here."""
        try:
            return _rows_of(self._con.sql(sql))
        except duckdb.Error as error:
            raise _translated(error) from error

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self._con.execute(sql).fetchall()
        except duckdb.Error as error:
            raise _translated(error) from error


def _definition(
    name: str, sql: str, comment: str | None, columns: Sequence[tuple[str, Any]]
) -> str:
    """What makes an empty table like one that a statement has created, with these comments."""
    create = Cursor(sql)
    create.skip("CREATE", "TABLE")
    create.path()
    table = f"{_CLUSTERS}{quote(name)}"
    made = [f"CREATE TABLE {table}{create.rest.rstrip(';')}"]
    made += [f"COMMENT ON TABLE {table} IS {quote_text(comment)}"] if comment is not None else []
    for column, text in columns:
        if text is not None:
            made.append(f"COMMENT ON COLUMN {table}.{quote(column)} IS {quote_text(text)}")
    return "; ".join(made)


def stored_settings(types: Sequence[str]) -> Mapping[str, str]:
    """DuckDB's settings for rows of these types that become part of a stored table."""
    stage = StageTask(sql="", types=tuple(types), output=OutputKind.PARTITION, folder="")
    return stored_types(stage, types)


def _rows_of(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    return _typed(relation.to_arrow_table(), relation.types)


def _typed(rows: pa.Table, types: Iterable[object]) -> pa.Table:
    """Rows of these types, where 128-bit integers are decimals that say what they are."""
    for place, type_ in enumerate(map(str, types)):
        if type_ in WIDE_INTEGERS and pa.types.is_decimal(rows.schema[place].type):
            field = rows.schema[place].with_metadata({DUCKDB_TYPE: type_})
            rows = rows.set_column(place, field, rows.column(place))
    return rows


def broken(error: duckdb.Error) -> TaskFailedError:
    """What to tell of a mistake of DuckDB's own, after which the database here takes no more."""
    advice = "That broke the DuckDB in the front end: connect again to change tables."
    return TaskFailedError(f"{internal_error(error)}\n{advice}")


def _translated(error: duckdb.Error) -> Exception:
    if isinstance(error, duckdb.InterruptException):
        return QueryCancelledError("The statement was cancelled.")
    if isinstance(error, duckdb.OutOfMemoryException):
        first = str(error).partition("\n")[0]
        return ResourceError(
            f"The statement needs more memory than the session has: raise memory_limit. ({first})"
        )
    if isinstance(error, duckdb.IOException) and "No space left" in str(error):
        return ResourceError(disk_full(error))
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        return broken(error)
    text = message_of(error)
    if isinstance(error, duckdb.CatalogException | duckdb.DependencyException):
        return AlreadyExistsError(text) if "already exists" in text else CatalogError(text)
    if isinstance(error, duckdb.BinderException | duckdb.ParserException) or REMOTE_FILES in text:
        return QueryError(text)
    return failure_class(error)(text)


def _is_in_memory(key: tuple[str, ...], name: str) -> bool:
    """Whether a name is that of a table of the cluster's, or of a column of it."""
    return key[:2] == ("memory", name) or key[:3] == ("memory", "main", name)


def _pairs(names: Iterable[tuple[str, ...]]) -> set[tuple[str, str]]:
    """The parts of names that follow each other."""
    return {pair for name in names for pair in itertools.pairwise(name)}


def _is_same(column: str) -> str:
    """Whether a column has the very same value in rows `t` and `s`, whatever a collation says."""
    one, other = f"t.{quote(column)}", f"s.{quote(column)}"
    shown = (f"encode({value}::VARCHAR)" for value in (one, other))
    return f"{one} IS NOT DISTINCT FROM {other} AND {' IS NOT DISTINCT FROM '.join(shown)}"
