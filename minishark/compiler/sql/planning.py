"""The planning database: binds and optimizes statements, without the data.

It holds a statistical miniature of each table (see `compiler.sql.miniature`), so that DuckDB's
optimizer sees the row and distinct counts that it would see in the real tables. Optimizers that
draw conclusions from *values* must not run, as the miniature's values are made up.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar

import duckdb
import msgspec
import pyarrow as pa

from minishark.compiler.logical.operators import Statement
from minishark.compiler.logical.plan import (
    LogicalPlan,
    called_functions,
    make_plan,
    volatile_reason,
)
from minishark.compiler.logical.rewrite import rewrite
from minishark.compiler.sql.advice import advised
from minishark.compiler.sql.connection import ConnectionUse, check_prepared, undone
from minishark.compiler.sql.failures import VALUE_FAILURES
from minishark.compiler.sql.lower import lower_plan
from minishark.compiler.sql.miniature import Miniatures
from minishark.compiler.sql.plan_json import PlanNotLowered
from minishark.compiler.sql.statements import ParsedStatement, parse_statements, with_setting
from minishark.compiler.sql.times import ToldTime, defines_time, tells_time
from minishark.compiler.sql.tokens import (
    find_calls,
    mentioned,
    sql_tokens,
    syntax_tree,
    without_comments_around,
)
from minishark.compiler.sql.views import View, over_files, view_of
from minishark.errors import ConflictError, DataValueError, QueryError
from minishark.model.catalog import Table
from minishark.model.expressions import Column, Schema, quote

DISABLED_OPTIMIZERS = {
    "statistics_propagation": "folds predicates with the miniature's minima and maxima",
    "compressed_materialization": "narrows types by the miniature's minima and maxima",
    "row_group_pruner": "prunes row groups, which only the miniature has",
    "late_materialization": "joins on row ids, which Arrow partitions do not have",
    "partial_aggregate_pushdown": "adds aggregate states to plans, which have no type in SQL",
    "aggregate_reuse": "adds aggregate states to plans too",
    "grouping_sets": "replaces grouping sets by aggregate states, or by a union",
    "partitioned_execution": "divides scans by row groups",
    "regex_range": "adds bounds for zone maps, which Arrow partitions do not have",
    "type_pushdown": "casts in scans, which Arrow data does not take",
    "scalar_fn_pushdown": "calls functions in scans, which Arrow data does not take",
    "sampling_pushdown": "samples in scans, while samples are not distributed",
    "remote_pushdown": "is for remote databases, of which there are none",
    "extension": "is for the optimizers of extensions, of which there are none",
}
"""Optimizers that are off while planning, and why; each takes time, if only to be verified."""

_SETTINGS = {
    # Without it DuckDB 2.0 fails to resolve the columns of about half of all plans.
    "debug_verify_column_bindings": "true",
    # A Python variable that has a table's name must not become one.
    "python_enable_replacements": "false",
}
_SERIALIZE = (
    "SELECT json_serialize_plan($1, optimize := true, skip_null := true, skip_empty := true, "
    "skip_default := true)"
)
_ZONE = "SELECT current_setting('TimeZone'), current_setting('Calendar')"
_TEXT_OR_NAN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\b(?:NAN|nan)\b')
# Evaluated twice, these give other values: functions, samples, and what the order of rows decides,
# which there may be none of, or ties in.
_VOLATILE = re.compile(
    r"\b(?:random|uuid\w*|gen_random_uuid|setseed|nextval|currval"
    r"|row_number|ntile|first_value|last_value|nth_value|lag|lead"
    r"|first|last|any_value|arbitrary|mode|arg_?(?:min|max)\w*|(?:min|max)_by|approx_\w+"
    r"|reservoir_quantile|list|array_agg|string_agg|group_concat|listagg)\s*\("
    r"|\b(?:TABLESAMPLE|USING\s+SAMPLE|LIMIT|FETCH|DISTINCT\s+ON)\b",
    re.IGNORECASE,
)
# Functions that may read files: the columns of such a statement can change between two runs.
_READS_FILES = re.compile(
    r"\b(?:\w*(?:read|scan|sniff|metadata|summary)\w*|glob|query|query_table|parquet_\w+"
    r"|json_execute_\w+)\s*\(",
    re.IGNORECASE,
)
# What DuckDB may take for a file name: `a.csv`, `a."csv"`, and anything quoted with a dot.
_FILE_ENDING = re.compile(
    r"\.\s*(?:parquet|[ct]sv|(?:nd|geo)?jsonl?|avro|fgb|gpkg|shp|xlsx)\b|\.\s*\"|--|/\*",
    re.IGNORECASE,
)
_PIVOTS = re.compile(r"\bPIVOT", re.IGNORECASE)
# What names files: texts after FROM and JOIN, and those in calls of such functions.
_READER = re.compile(r"\w*(?:read|scan|sniff|metadata)\w*", re.IGNORECASE)
_NAMES_FILES = re.compile(rf"\b(?:(?:FROM|JOIN)\s*['\"]|{_READER.pattern}\s*\()", re.IGNORECASE)
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_INTERNAL = re.compile(
    r'\nDid you mean "(?:_minishark|pg_|pragma_|duckdb_|sqlite_|information_schema)[^\n]*'
)
TOO_DEEP = "it is nested too deeply to be divided"
REMOTE_FILES = (
    "minishark reads files of its machines, and s3://, gs:// and az:// URIs that follow FROM or "
    "JOIN or are constants in calls of read_parquet, read_csv and read_json. Download others, or "
    "read them with another library and pass what it gives to session.create_table()."
)
_VIEWS = "SELECT sql FROM duckdb_views() WHERE NOT internal ORDER BY temporary"
_MACRO = re.compile(r"\b(?:MACRO|FUNCTION)\b", re.IGNORECASE)
_VIEW = re.compile(r"\bVIEW\b", re.IGNORECASE)
_UNCOMMITTED = "_minishark_uncommitted_"  # how the names of their miniatures start
_CACHED_MAX = 256
_REMEMBERED_CHARS = 10_000
_numbers = itertools.count()
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement that DuckDB has parsed and bound."""

    sql: str  # its text, without the semicolon
    schema: Schema
    tables: tuple[str, ...]  # of the catalog: those that it reads, and perhaps more


@dataclass(frozen=True, slots=True)
class _Views:
    """The views that statements of a connection see, by name in lower case."""

    version: int  # of the definitions
    all: Mapping[str, View]
    own: frozenset[str]  # the temporary ones
    over_files: Mapping[str, View]


class _Remembered:
    """What was parsed, bound and planned; the last of each."""

    def __init__(self) -> None:
        self.parsed: OrderedDict[str, tuple[ParsedStatement, ...]] = OrderedDict()
        self.bound: OrderedDict[tuple[str, int], BoundStatement] = OrderedDict()
        self.schemas: OrderedDict[BoundStatement, pa.Schema] = OrderedDict()
        self.plans: OrderedDict[tuple[BoundStatement, int], LogicalPlan] = OrderedDict()
        self.views: _Views | None = None
        self.zone: tuple[int, str] | None = None

    def clear(self) -> None:
        self.views = None
        for cache in (self.parsed, self.bound, self.schemas, self.plans):
            cache.clear()


@dataclass(slots=True, kw_only=True)
class _Shared:
    """What the connections to a database share: its tables, and what is known of definitions."""

    miniatures: Miniatures = field(default_factory=Miniatures)
    names: dict[str, str] = field(default_factory=dict)  # of tables, by those in lower case
    python: frozenset[str] = frozenset()  # Python functions
    volatile: frozenset[str] = frozenset()  # those whose results may differ
    has_macros: bool = False
    has_views: bool = False
    definitions: int = 0  # how often they have changed
    defines_time: bool = False  # whether a definition may tell the time
    hides_time: bool = False  # whether a macro may have the name of a function that does
    defines_volatile: bool = False  # whether one may be volatile
    remembered: _Remembered = field(default_factory=_Remembered)  # of who has set nothing


@dataclass(slots=True)
class _Instead:
    """What a connection sees in the place of the tables that all see.

    Others must see nothing of it, nor wait for it: each statement is bound in a transaction of
    DuckDB that begins with `statements`, and is rolled back. That is quick, as miniatures of tables
    are stored by names of their own, and are only renamed there.
    """

    # By names in lower case: the table, or None if there is none.
    tables: dict[str, Table | None] = field(default_factory=dict)
    stored: list[str] = field(default_factory=list)  # the names of miniatures
    statements: list[str] = field(default_factory=list)

    def put(self, table: Table, stored: str) -> None:
        """Have it see a table, whose miniature is stored by that name."""
        self.drop(table.name)
        self.tables[table.name.lower()] = table
        self.stored.append(stored)
        self.statements.append(
            f"ALTER TABLE memory.main.{quote(stored)} RENAME TO {quote(table.name)}"
        )

    def drop(self, name: str) -> None:
        """Have it see no table of a name."""
        self.tables[name.lower()] = None
        self.statements.append(f"DROP TABLE IF EXISTS memory.main.{quote(name)}")


class _Began:
    """The tables that there were when a transaction began: its statements see these.

    They are those of the shared catalog that `tables` gives: others come and go at any time.
    """

    def __init__(self, tables: Iterable[Table], current: Callable[[], Iterable[Table]]) -> None:
        self.tables = {table.name.lower(): table for table in tables}
        self.current = current
        self.version = -1  # of the miniatures when they were last compared
        self.held = _Instead()  # of what others have changed: as it was

    def changed(self, miniatures: Miniatures) -> Iterator[tuple[str, Table | None]]:
        """What others have changed, dropped or created since this was asked before."""
        for key, table in self.tables.items():
            if key not in self.held.tables and miniatures.columns(key) != _columns(table):
                yield table.name, table
        for table in self.current():
            key = table.name.lower()
            if key not in self.held.tables and key not in self.tables:
                yield table.name, None


@dataclass(slots=True, kw_only=True)
class _Uncommitted:
    """What the transaction of a connection has created, dropped and defined."""

    own: _Instead = field(default_factory=_Instead)
    stored: dict[str, str] = field(default_factory=dict)  # names of miniatures, by those of tables
    has_own: bool = False  # whether it has defined what concerns this connection only
    remembered: _Remembered = field(default_factory=_Remembered)


class PlanningDatabase:
    """Plans statements over registered tables; safe to use from several threads.

    It is a connection: others to the same database have the same tables and views, and settings and
    temporary views of their own.

    Methods that take SQL raise a `QueryError` with DuckDB's message if it does not accept that.

    Attributes:
        settings: the statements that have changed settings of this connection.
    """

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        *,
        beside: PlanningDatabase | None = None,
        settings: Sequence[str] = (),
        began: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        """A new database with a configuration; or a connection beside another one.

        It begins with these settings, and shares what was planned as long as it has none. `began`
        tells when the transaction did that statements are part of, if they are of one.
        """
        if beside is None:
            self._shared = _Shared()
            self._con = duckdb.connect(config=dict(config or {}))
            self._con.execute("SET autoinstall_known_extensions = false")
            self._con.execute(f"SET disabled_optimizers = '{','.join(DISABLED_OPTIMIZERS)}'")
            self._lock = ConnectionUse(self._con)
        else:
            self._shared = beside._shared  # noqa: SLF001 - of the same class
            self._con = beside.connection()
            self._lock = beside._lock.shared_by(self._con)  # noqa: SLF001
        _configure(self._con)
        self._time = ToldTime(con=self._con, began=began, defined=lambda: self._shared.hides_time)
        self._known = self._shared.remembered
        self._uncommitted: _Uncommitted | None = None
        self._began: _Began | None = None
        self._is_undone = False  # whether what runs now is rolled back
        self.settings: tuple[str, ...] = ()
        for setting in settings:
            self.change_setting(setting)

    def close(self) -> None:
        with self._lock:
            self._con.close()

    @property
    def time_definitions(self) -> tuple[str, ...]:
        """What has executors tell the time that its statements do, in a transaction."""
        return self._time.definitions

    @property
    def volatile(self) -> frozenset[str]:
        """The Python functions whose results may differ from call to call."""
        return self._shared.volatile

    def set_functions(self, python: Iterable[str], volatile: Iterable[str]) -> None:
        """Note the names of Python functions, and those whose results may differ."""
        self._shared.python = frozenset(name.lower() for name in python)
        self._shared.volatile = frozenset(volatile)

    @property
    def version(self) -> int:
        """A number that changes whenever earlier plans may be outdated."""
        return self._shared.miniatures.version

    def put_table(self, table: Table) -> None:
        with self._lock:
            self._shared.miniatures.put(table.name, _columns(table), table.statistics)
            self._shared.names[table.name.lower()] = table.name

    def update_table(self, table: Table) -> None:
        """The next version of a table; most leave plans as they are."""
        with self._lock:
            self._shared.miniatures.update(table.name, _columns(table), table.statistics)

    def remove_table(self, name: str) -> None:
        with self._lock:
            self._shared.miniatures.remove(name)
            self._shared.names.pop(name.lower(), None)

    def _refresh(self, *, filled: bool = False) -> None:
        """Have the catalog's tables; `filled` with their rows, by which plans are chosen."""
        if self._is_undone:
            return
        miniatures, began = self._shared.miniatures, self._began
        with _query_errors():
            miniatures.declare(self._con)
            if began is not None and began.version != miniatures.version:
                if self._hold(began):
                    miniatures.declare(self._con)
                began.version = miniatures.version
            if filled:
                miniatures.fill(self._con)

    # What a transaction sees: what there was when it began, and what it has done

    def begin(self, tables: Iterable[Table], current: Callable[[], Iterable[Table]]) -> None:
        """Have statements of this connection see these tables of the current ones as they are."""
        with self._lock:
            self._began = _Began(tables, current)

    def _hold(self, began: _Began) -> bool:
        """Note what others have changed since a transaction began; whether there is something."""
        changed = [*began.changed(self._shared.miniatures)]
        for name, table in changed:
            if table is None:
                began.held.drop(name)
            else:
                began.held.put(table, self._store_uncommitted(table))
        if changed:
            self._transaction()  # what was bound before may mean something else from now on
        return changed != []

    def _held(self) -> list[str]:
        """What gives a transaction tables as they were in the place of what others have made."""
        if self._began is None or not self._began.held.tables:
            return []
        views = self._con.execute(
            "SELECT view_name FROM duckdb_views() "
            "WHERE database_name = 'memory' AND schema_name = 'main' AND NOT internal"
        ).fetchall()
        held = self._began.held
        hidden = (name for (name,) in views if name.lower() in held.tables)
        dropped = (f"DROP VIEW memory.main.{quote(name)}" for name in hidden)
        return [*dropped, *held.statements]

    def _store_uncommitted(self, table: Table) -> str:
        """Store a miniature that others don't see; its name."""
        stored = f"{_UNCOMMITTED}{next(_numbers)}"
        self.put_table(replace(table, name=stored))
        del self._shared.names[stored]
        return stored

    def put_uncommitted(self, table: Table) -> None:
        """Let statements of this connection see a table, in the place of one of that name."""
        with self._lock:
            transaction, stored = self._transaction(), self._store_uncommitted(table)
            transaction.own.put(table, stored)
            transaction.stored[table.name.lower()] = stored

    def update_uncommitted(self, table: Table) -> None:
        """The next version of a table that the transaction has created."""
        with self._lock:
            stored = self._transaction().stored[table.name.lower()]
            self.update_table(replace(table, name=stored))

    def drop_uncommitted(self, name: str) -> None:
        """Hide a table from statements of this connection."""
        with self._lock:
            self._transaction().own.drop(name)

    def define_uncommitted(self, sql: str, *, own: bool) -> None:
        """Run a definition for statements of this connection; `own` if it will be so for ever."""
        with self._lock, _query_errors():
            transaction = self._transaction()
            with self._seen():
                self._con.execute(sql).fetchall()
            transaction.own.statements.append(sql)
            transaction.has_own = transaction.has_own or own
            self._note(sql)

    def _transaction(self) -> _Uncommitted:
        """What was done so far; what was bound before may mean something else from now on."""
        self._uncommitted = self._uncommitted or _Uncommitted()
        self._uncommitted.remembered = _Remembered()
        return self._uncommitted

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        """A block after which all connections see what was done.

        Raises:
            ConflictError: what others have done since does not fit; nothing has changed.
        """
        with self._lock:
            transaction, self._uncommitted = self._uncommitted, None
            self._end()
            if transaction is None:
                yield
                return
            self._refresh()
            try:
                self._con.execute("BEGIN")
                for sql in transaction.own.statements:
                    self._con.execute(sql)
                yield
                self._con.execute("COMMIT")
            except BaseException as error:
                self._con.execute("ROLLBACK")
                self._remove(transaction)
                if isinstance(error, duckdb.Error):
                    raise ConflictError(
                        "What a view reads, or something of the same name, was changed by another "
                        f"session: nothing is committed. ({message_of(error)})"
                    ) from error
                raise
            for stored in transaction.own.stored:
                self._shared.miniatures.forget(stored)
            for name, table in transaction.own.tables.items():
                self._shared.miniatures.forget(name)
                self._shared.names.pop(name, None)
                if table is not None:
                    self.put_table(table)
            self._outdate()
            if transaction.has_own:
                self._known = _Remembered()

    def roll_back(self) -> None:
        """Undo what was done."""
        with self._lock:
            transaction, self._uncommitted = self._uncommitted, None
            self._end()
            if transaction is not None:
                self._remove(transaction)

    def _end(self) -> None:
        """See what others see from now on."""
        began, self._began = self._began, None
        for stored in began.held.stored if began is not None else ():
            self._shared.miniatures.remove(stored)

    def _remove(self, transaction: _Uncommitted) -> None:
        for stored in transaction.own.stored:
            self._shared.miniatures.remove(stored)

    @contextlib.contextmanager
    def _seen(self) -> Iterator[None]:
        """A block in which names mean what they do for this connection."""
        with self._lock:
            self._refresh()
            if self._uncommitted is None or self._is_undone:
                yield
                return
            with undone(self._con, [*self._held(), *self._uncommitted.own.statements]):
                self._is_undone = True
                try:
                    yield
                finally:
                    self._is_undone = False

    @property
    def _remembered(self) -> _Remembered:
        return self._known if self._uncommitted is None else self._uncommitted.remembered

    @property
    def _names(self) -> Mapping[str, str]:
        """The names of tables, by those in lower case."""
        if self._uncommitted is None:
            return self._shared.names
        own = self._uncommitted.own.tables
        if self._began is not None:
            own = {**self._began.held.tables, **own}
        others = {key: name for key, name in self._shared.names.items() if key not in own}
        return {**others, **{key: table.name for key, table in own.items() if table is not None}}

    def has_view(self, name: str) -> bool:
        return self._shared.has_views and name.lower() in self._views().all

    def has_own(self, name: str) -> bool:
        """Whether a temporary view or macro of this connection has that name."""
        if self._shared.has_views and name.lower() in self._views().own:
            return True
        if not self._shared.has_macros:  # DuckDB takes long to list all functions
            return False
        query = "SELECT 1 FROM duckdb_functions() WHERE database_name = 'temp' AND NOT internal"
        return bool(self._text(f"{query} AND lower(function_name) = lower($1) LIMIT 1", name))

    def has_relation(self, name: str) -> bool:
        with self._lock:
            return name.lower() in self._names or self.has_view(name)

    def views(self) -> list[str]:
        if not self._shared.has_views:
            return []
        return sorted(view.name for view in self._views().all.values())

    def views_over_files(self) -> Mapping[str, View]:
        """The views that may read files, themselves or by others, by name in lower case."""
        return self._views().over_files if self._shared.has_views else {}

    def _views(self) -> _Views:
        # DuckDB takes milliseconds to list them, so it is asked once after each definition.
        with self._lock:
            version, views = self._shared.definitions, self._remembered.views
            if views is None or views.version != version:
                named = {view.name.lower(): view for view in map(view_of, self._text(_VIEWS))}
                own = frozenset(name for name, view in named.items() if view.is_temporary)
                views = self._remembered.views = _Views(version, named, own, over_files(named))
            return views

    def has_function(self, name: str) -> bool:
        functions = "SELECT 1 FROM duckdb_functions()"
        return bool(self._text(f"{functions} WHERE lower(function_name) = $1 LIMIT 1", name))

    def tables_in(self, sql: str) -> tuple[str, ...]:
        with self._lock:
            return self._tables_in(sql, self._relations_in(sql))

    def reads_nothing(self, sql: str, *, surely: bool) -> bool:
        """Whether an INSERT reads no relation; `surely` if none but through a macro."""
        with self._lock:
            return not self._shared.has_macros and (surely or self._relations_in(sql) == set())

    def relation_schema(self, relation: str) -> Schema:
        """The columns of a SQL relation such as `read_parquet('file')`."""
        # On another connection, as are all reads of users' files: one that hangs, as of a network
        # drive, must not hold other statements.
        with self.reading(self.settings) as connection:
            return _schema(connection.sql(f"FROM {relation}"))

    def syntax(self, sql: str) -> Any:
        """The syntax tree of a SELECT; a QueryError for any other statement."""
        with self._lock, _query_errors():  # which binds nothing
            rows = self._con.execute("SELECT json_serialize_sql($1)", [sql]).fetchall()
        return syntax_tree(rows[0][0], sql)

    def glob(self, pattern: str) -> list[str]:
        """The files that match a pattern, in the order in which DuckDB reads them."""
        return self._text("SELECT file FROM glob($1)", pattern)

    def _text(self, sql: str, *values: str) -> list[str]:
        with self._lock, _query_errors(), self._seen():
            return [row[0] for row in self._con.execute(sql, values).fetchall()]

    def constants(self, texts: Sequence[str]) -> list[Any]:
        """The values of constant expressions; a QueryError for any other."""
        with self._lock, _query_errors():
            self._time.tell(lambda: any(map(self.tells_time, texts)))
            return [self._con.execute(f"SELECT {text}").fetchall()[0][0] for text in texts]

    def check(self, test: Callable[[duckdb.DuckDBPyConnection], object]) -> None:
        """Try something with DuckDB, whose errors become QueryErrors."""
        with self._lock, _query_errors():
            test(self._con)

    def change(self, how: Callable[[duckdb.DuckDBPyConnection], object]) -> None:
        with self._lock:
            self.check(how)
            self._outdate()

    @contextlib.contextmanager
    def reading(self, settings: Sequence[str]) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection with settings of a session, to read users' files with."""
        with contextlib.closing(self.connection()) as connection, ConnectionUse(connection):
            _configure(connection)
            for setting in settings:  # such as `binary_as_string`, which says how files are read
                connection.execute(setting)
            yield connection

    def connection(self) -> duckdb.DuckDBPyConnection:
        """Another connection, for use by one thread; the caller closes it."""
        with self._lock:
            return self._con.cursor()

    def statements(self, text: str) -> list[ParsedStatement]:
        with self._lock:
            parsed = self._remembered.parsed.get(text)
            if parsed is None:
                parsed = tuple(parse_statements(self._con, text))
                _remember(self._remembered.parsed, text, parsed)
            return list(parsed)

    def define(self, sql: str, *, own: bool = False) -> None:
        """Run a definition; `own` if it concerns this connection only."""
        with self._lock:
            self._refresh()
            with _query_errors():
                self._time.tell(lambda: False)  # no user sees what a transaction was told with
                self._con.execute(sql).fetchall()
            self._note(sql)
            if own:
                self._known = _Remembered()
            else:
                self._outdate()

    def _note(self, sql: str) -> None:
        """Remember what statements may do that name what a definition defines."""
        shared = self._shared
        shared.has_macros = shared.has_macros or _MACRO.search(sql) is not None
        shared.has_views = shared.has_views or _VIEW.search(sql) is not None
        shared.defines_time = shared.defines_time or tells_time(sql)
        shared.hides_time = shared.hides_time or defines_time(sql)
        shared.defines_volatile = shared.defines_volatile or self._shows_volatile(sql)

    def change_setting(self, sql: str) -> None:
        """Change a setting of this connection."""
        with self._lock, _query_errors():
            self._con.execute(sql).fetchall()
            self._known = _Remembered()
            if self._uncommitted is not None:
                self._uncommitted.remembered = _Remembered()
            self.settings = with_setting(self.settings, sql)

    def _outdate(self) -> None:
        """Drop what was parsed, bound and planned: it may mean something else from now on."""
        self._remembered.clear()
        self._shared.definitions += 1
        self._shared.miniatures.outdate()

    def show(self, sql: str) -> pa.Table:
        """The answer to a statement about settings, not tables."""
        with self._lock, _query_errors(), self._seen():
            return self._con.sql(sql).to_arrow_table()

    def bind(self, sql: str, parsed: duckdb.Statement | None = None) -> BoundStatement:
        """Resolve the names and types of a SELECT; `parsed` saves to parse its text again."""
        with self._lock:
            self._refresh()
            key = (sql, self._shared.miniatures.version)
            bound = self._remembered.bound.get(key)
            if bound is None:
                self._check_pivots(sql)
                try:
                    if ";" in sql and parsed is None and len(self._con.extract_statements(sql)) > 1:
                        raise QueryError(f"This is no query, but several statements: {sql}")
                    with self._seen():
                        schema = _schema(self._con.sql(parsed or sql))
                except duckdb.Error as error:
                    # The made-up rows of tables have values that are none of the user's.
                    is_value = isinstance(error, VALUE_FAILURES) and not self._tables_in(sql, None)
                    kind = DataValueError if is_value else QueryError
                    raise kind(self._located(sql, error)) from error
                says_all = self._says_all(sql)
                named = None if says_all else self._relations_in(sql)
                bound = BoundStatement(sql, schema, self._tables_in(sql, named))
                if says_all or self._reads_tables_only(sql, named):
                    _remember(self._remembered.bound, key, bound)
            return bound

    def check_prepared(self, sql: str) -> None:
        """Resolve the names and types of a SELECT with parameters."""
        self._check_pivots(sql)
        with self._lock, _query_errors(), self._seen():
            check_prepared(self._con, sql)

    def _check_pivots(self, sql: str) -> None:
        """Refuse a PIVOT whose columns are values of rows, as those here are made up."""
        if _PIVOTS.search(sql) is None:
            return
        with _query_errors():
            parsed = self._con.extract_statements(sql)
        if any(statement.type == duckdb.StatementType.MULTI for statement in parsed):
            raise QueryError(
                "Only the session's own database runs a PIVOT without the values of its columns: "
                "write ON column IN (values)."
            )

    def mentioned(self, sql: str) -> tuple[str, ...]:
        """The catalog's tables whose names are among the words of a text."""
        with self._lock:
            return self._tables_in(sql, None)

    def means_more(self, sql: str) -> bool:
        """Whether more may decide a statement's rows than its text, settings, tables and files."""
        if self._uncommitted is not None or self._began is not None:
            return True
        return self.names_definition(sql) or self.tells_time(sql) or self.calls_python(sql)

    @property
    def zone(self) -> str:
        """What settings say that begin as the process does: how times are read."""
        with self._lock:
            known = self._remembered.zone
            if known is None or known[0] != self.version:
                rows = self._con.execute(_ZONE).fetchall()
                known = self._remembered.zone = (self.version, str(rows))
            return known[1]

    def _says_all(self, sql: str) -> bool:
        """Whether a statement reads only tables that its text mentions, and no files."""
        defined = self._shared.has_macros or self._shared.has_views
        return not (defined or _READS_FILES.search(sql) or _may_name_file(sql))

    def _reads_tables_only(self, sql: str, named: set[str] | None) -> bool:
        """Whether the catalog alone decides what a statement means."""
        if self._shared.has_macros or _READS_FILES.search(sql):
            return False
        return named is not None and named <= self._names.keys()

    def _located(self, sql: str, error: duckdb.Error) -> str:
        """The message of a statement that did not bind, with line and place of the error."""
        # Relations leave these out, but executing the statement, which fails likewise, does not.
        try:
            with self._seen():
                self._con.execute(sql).fetchall()
        except duckdb.Error as same:
            return message_of(same)
        return message_of(error)

    def arrow_schema(self, sql: str) -> pa.Schema:
        """The columns of a SELECT, in the types in which users get them."""
        with self._lock:
            self._refresh()
            bound = self._remembered.bound.get((sql, self.version))
            schema = self._remembered.schemas.get(bound) if bound is not None else None
            if schema is None:
                with _query_errors(), self._seen():
                    try:
                        schema = self._con.sql(sql).limit(0).to_arrow_table().schema
                    except duckdb.InvalidInputException:
                        if not self.calls_python(sql):
                            raise
                        bound = self.bind(sql)  # without a call of functions of constants
                        nulls = ", ".join(f"NULL::{column.type}" for column in bound.schema)
                        schema = self._con.sql(f"SELECT {nulls}").to_arrow_table().schema
                if bound is not None:  # DuckDB numbers columns of one name, which rows keep
                    named = zip(schema, bound.schema, strict=True)
                    schema = pa.schema([field.with_name(column.name) for field, column in named])
                    _remember(self._remembered.schemas, bound, schema)
            return schema

    def _tables_in(self, sql: str, named: set[str] | None) -> tuple[str, ...]:
        """The catalog's tables among the named relations; if None, among the words of the text."""
        tables = self._names
        if named is None:
            named = {*mentioned(sql, tables)}
        return tuple(tables[name] for name in sorted(named) if name in tables)

    def _relations_in(self, sql: str) -> set[str] | None:
        """The relations that a statement names, in lower case; None if that is unknown."""
        # DuckDB finds them by binding the statement over tables without columns, which fails where
        # columns matter (USING, NATURAL, ASOF, COLUMNS ...).
        try:
            with self._seen():
                return {name.lower() for name in self._con.get_table_names(sql)}
        except duckdb.Error:
            return None

    def tells_time(self, sql: str) -> bool:
        """Whether a plan must not be reused, as the statement may depend on time or state."""
        if tells_time(sql):
            return True
        return self._shared.defines_time and self._names_definition(sql)

    def names_definition(self, sql: str) -> bool:
        """Whether a statement may read a view or call a macro."""
        with self._lock:
            return self._names_definition(sql)

    def _names_definition(self, sql: str) -> bool:
        shared, text = self._shared, sql.lower()
        if shared.has_macros or not shared.has_views:
            return shared.has_macros
        return any(name.lower() in text for name in self.views())

    def varies(self, sql: str) -> bool:
        """Whether part of a statement may have another value when it is evaluated again."""
        if self._shows_volatile(sql) or self.tells_time(sql):
            return True
        return self._shared.defines_volatile and self._names_definition(sql)

    def _shows_volatile(self, sql: str) -> bool:
        text = sql.lower()
        return _VOLATILE.search(sql) is not None or any(n.lower() in text for n in self.volatile)

    def plan(self, bound: BoundStatement) -> LogicalPlan:
        with self._lock:
            self._refresh(filled=True)
            key = (bound, self._shared.miniatures.version)  # files may have other columns by now
            plan = self._remembered.plans.get(key)
            if plan is None:
                tells = self.tells_time(bound.sql)
                self._time.tell(lambda: tells)
                plan = self._plan(bound)
                if not tells:
                    _remember(self._remembered.plans, key, plan)
            return plan

    def plan_of(self, sql: str) -> LogicalPlan:
        """The plan of a query, for what it says of the tables that it reads."""
        return self.plan(self.bind(sql))

    def _plan(self, bound: BoundStatement) -> LogicalPlan:
        if self._tries_python(bound.sql):
            return self.whole(bound, "TRY of a Python function has no distributed form")
        try:
            plan = rewrite(lower_plan(self._serialized(bound.sql), bound.schema))
        except PlanNotLowered as reason:
            return self.whole(bound, f"{reason} has no distributed form")
        except RecursionError:
            return self.whole(bound, TOO_DEEP)
        called = called_functions(plan) if self.volatile else ()
        user_volatile = next((name for name in called if name in self.volatile), None)
        if user_volatile is not None:
            return self.whole(bound, f"function {user_volatile} is not deterministic")
        volatile = volatile_reason(plan)
        if volatile is not None:
            return self.whole(bound, f"{volatile} has no distributed form here")
        return plan

    def _tries_python(self, sql: str) -> bool:
        """Whether TRY is about a Python function: DuckDB would call it here for constants.

        It is not called while planning, and TRY would take that for an error of the function.
        """
        if not self._shared.python or "try" not in sql.lower():
            return False
        return self.calls_python(" ".join(call.arguments for call in find_calls(sql, {"try"})))

    def calls_python(self, sql: str) -> bool:
        """Whether part of a statement may call a Python function."""
        text = sql.lower()
        return any(name in text for name in self._shared.python)

    def whole(self, bound: BoundStatement, reason: str) -> LogicalPlan:
        """The plan of a statement as a whole, in one task over all rows of its tables."""
        return make_plan(Statement(bound.sql, self.tables_in(bound.sql), reason, bound.schema))

    def _serialized(self, sql: str) -> dict[str, Any]:
        try:
            with self._seen():
                rows: Sequence[tuple[str]] = self._con.execute(_SERIALIZE, [sql]).fetchall()
        except duckdb.Error as error:
            raise PlanNotLowered(f"the statement ({error})") from error
        try:
            plan = _decoded(rows[0][0])
        except json.JSONDecodeError as error:
            raise PlanNotLowered(f"the statement (its plan is no JSON: {error})") from error
        if plan.get("error"):
            raise PlanNotLowered(f"the statement ({plan.get('error_message', '')})")
        return plan


def _configure(connection: duckdb.DuckDBPyConnection) -> None:
    for name, value in _SETTINGS.items():
        connection.execute(f"SET SESSION {name} = {value}")


@contextlib.contextmanager
def _query_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise QueryError(message_of(error)) from error


def message_of(error: duckdb.Error) -> str:
    """DuckDB's message, with advice that helps and without what helps nobody here."""
    text = str(error)
    if "'httpfs'" in text or "'httpfs:" in text:
        place = text.partition("\n\nLINE ")
        return f"{REMOTE_FILES}{''.join(place[1:])}"
    return advised(_INTERNAL.sub("", text))


def _columns(table: Table) -> tuple[tuple[str, str], ...]:
    return tuple((column.name, column.type) for column in table.schema)


def _remember(cache: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    cache[key] = value
    if len(cache) > _CACHED_MAX:
        cache.popitem(last=False)


def _decoded(text: str) -> dict[str, Any]:
    """A serialized plan; DuckDB writes the number NaN as NAN, which no JSON parser takes."""

    def number(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else "NaN"

    try:
        plan: dict[str, Any] = msgspec.json.decode(text)
    except msgspec.DecodeError:  # takes fewer numbers, in less time
        plan = json.loads(_TEXT_OR_NAN.sub(number, text))
    return plan


def _may_name_file(sql: str) -> bool:
    """Whether DuckDB may take a name in a statement for a file; comments inside count as such."""
    text = without_comments_around(sql)
    return _FILE_ENDING.search(text) is not None or any("." in q for q in _QUOTED.findall(text))


def named_files(sql: str) -> tuple[str, ...]:
    """The files and patterns that a statement may read, by what it looks like."""
    return _files_of(sql) if len(sql) <= _REMEMBERED_CHARS else _files_of.__wrapped__(sql)


@lru_cache(_CACHED_MAX)
def _files_of(sql: str) -> tuple[str, ...]:
    if _NAMES_FILES.search(sql) is None:
        return ()  # the tokens of a long text take longer than to parse it
    tokens, reads = sql_tokens(sql), -1
    named = []
    for at, token in enumerate(tokens):
        if token.depth <= reads:
            reads = -1
        if at and token.text == "(" and reads < 0 and _READER.fullmatch(tokens[at - 1].text):
            reads = token.depth
        follows = at > 0 and tokens[at - 1].word in ("FROM", "JOIN")
        is_path = token.is_text or (token.text[:1] == '"' and "." in token.text)  # or a table
        if is_path and (follows or reads >= 0):
            named.append(token.text[1:-1])
    return tuple(named)


def _schema(relation: duckdb.DuckDBPyRelation) -> Schema:
    return tuple(
        Column(name, str(type_))
        for name, type_ in zip(relation.columns, relation.types, strict=True)
    )
