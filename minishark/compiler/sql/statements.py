"""Classifies statements, once, into typed values that say what a session does with them. Pure.

DuckDB parses a text and says which type each statement has; what it does not tell (targets, names,
which queries read the catalog) is read from the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import duckdb
import msgspec
from msgspec import structs

from minishark.compiler.sql.advice import advised
from minishark.compiler.sql.changes import (
    Change,
    NewTable,
    read_change,
    read_create,
    text_value,
)
from minishark.compiler.sql.tokens import (
    Cursor,
    SqlText,
    call_arguments,
    fill_variables,
    without_comments_around,
)
from minishark.errors import QueryError, UnsupportedError
from minishark.model.expressions import quote


class _Statement(msgspec.Struct, frozen=True):
    """A statement; `sql` is its text without the semicolon."""

    sql: str


class Query(_Statement, frozen=True):
    """Runs on the cluster; `parsed` is what DuckDB has parsed."""

    parsed: duckdb.Statement | None = None


class Explain(_Statement, frozen=True):
    """Describes how a query runs, or has run; `sql` is the query."""

    analyze: bool


class ExplainChange(_Statement, frozen=True):
    """Describes how a statement would run that changes rows, or creates a table of a query."""

    statement: ChangeRows | CreateTableAs


class Show(_Statement, frozen=True):
    """Answered from the catalog: SHOW and DESCRIBE, or else PRAGMA, CALL, catalog tables."""

    is_show: bool
    query: str = ""  # the query that a DESCRIBE is about


class FrontEndQuery(_Statement, frozen=True):
    """A query that needs the session's own database: PIVOT's columns depend on data, sequences."""


class FrontEndCommand(_Statement, frozen=True):
    """Concerns only the session's own database: schemas, sequences, attached databases."""


class CreateSchema(FrontEndCommand, frozen=True):
    """CREATE SCHEMA."""

    path: tuple[str, ...]
    exists_ok: bool


class DropSchema(FrontEndCommand, frozen=True):
    """DROP SCHEMA."""

    path: tuple[str, ...]
    missing_ok: bool
    cascade: bool


class Use(FrontEndCommand, frozen=True):
    """USE, of a database or schema."""

    path: tuple[str, ...]


class Comment(FrontEndCommand, frozen=True):
    """COMMENT ON noun path IS text."""

    noun: str  # such as TABLE or COLUMN
    path: tuple[str, ...]
    text: str | None  # None for NULL

    @property
    def table(self) -> tuple[str, ...]:
        """The table that it is about; empty if it is about something else."""
        return {"TABLE": self.path, "COLUMN": self.path[:-1]}.get(self.noun, ())

    @property
    def target(self) -> Target | None:
        """The same, as statements that write name theirs."""
        return _target_of(self.table)


class Definition(_Statement, frozen=True):
    """Defines something for later statements: views, macros, types."""

    path: tuple[str, ...] = ()  # its name; empty if unknown
    is_temporary: bool = False
    is_view: bool = False
    drops: bool = False
    query: str = ""  # that of a view that is created, at the statement's end

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else ""


class Setting(_Statement, frozen=True):
    """SET or RESET; `is_reserved` for settings that minishark chooses itself."""

    is_reserved: bool


class SetVariable(_Statement, frozen=True):
    """SET VARIABLE: the value may come from a query."""

    name: str
    value: str


class CreateEnum(_Statement, frozen=True):
    """CREATE TYPE AS ENUM (query): the values come from a query."""

    path: tuple[str, ...]
    create: str  # the text before AS
    query: str  # in brackets


class Target(msgspec.Struct, frozen=True):
    """The table that a statement writes."""

    name: str
    is_main: bool  # whether it is in the schema of the cluster's tables
    path: tuple[str, ...] = ()  # the whole name, as it is written


class Write(_Statement, frozen=True):
    """Changes tables; `target` is None if unknown."""

    target: Target | None


class ChangeRows(Write, frozen=True):
    """INSERT, DELETE, UPDATE, MERGE; `change` is None if it has a form that is not read."""

    change: Change | None


class CopyFrom(Write, frozen=True):
    """COPY ... FROM, or one whose destination is computed."""


class CopyDatabase(Write, frozen=True):
    """COPY FROM DATABASE `source` TO another."""

    source: str


class AlterTable(Write, frozen=True):
    """ALTER TABLE; `renamed` is the table's new name, or empty."""

    renamed: str
    adds: bool = False  # whether it may add a column


class CreateIndex(Write, frozen=True):
    """CREATE INDEX."""


class CreateTable(Write, frozen=True):
    """CREATE TABLE, in whatever form."""

    table: NewTable
    is_temporary: bool


class CreateTableAs(CreateTable, frozen=True):
    """CREATE TABLE AS query, which creates the table surely."""

    @property
    def query(self) -> str:
        return self.table.query

    @property
    def replaces(self) -> bool:
        return self.table.replaces


class DropTable(Write, frozen=True, kw_only=True):
    """DROP TABLE; `missing_ok` for IF EXISTS."""

    missing_ok: bool


class Transaction(_Statement, frozen=True):
    """BEGIN, COMMIT or ROLLBACK, whatever it is called."""

    verb: str


class Vacuum(_Statement, frozen=True):
    """VACUUM: removes files that no table needs; `path` is a table's name, empty for all."""

    path: tuple[str, ...]


class CacheTable(_Statement, frozen=True):
    """CACHE TABLE or UNCACHE TABLE."""

    path: tuple[str, ...]
    caches: bool  # False for UNCACHE
    missing_ok: bool  # IF EXISTS


class CopyTo(_Statement, frozen=True):
    """COPY ... TO: writes the rows of a query to files; `destination` is the text after TO."""

    query: str
    destination: str


class Prepare(_Statement, frozen=True):
    """PREPARE name AS statement."""

    name: str
    statement: str


class Execute(_Statement, frozen=True):
    """EXECUTE name(arguments)."""

    name: str
    arguments: Sequence[SqlText] | Mapping[str, SqlText]


class Deallocate(_Statement, frozen=True):
    """DEALLOCATE name."""

    name: str


ParsedStatement: TypeAlias = (
    Query
    | Explain
    | ExplainChange
    | Show
    | FrontEndQuery
    | FrontEndCommand
    | Definition
    | Setting
    | SetVariable
    | CreateEnum
    | Write
    | Transaction
    | Vacuum
    | CacheTable
    | CopyTo
    | Prepare
    | Execute
    | Deallocate
)

COUNTED = (Definition, Setting, Write, Transaction, Vacuum, CacheTable, CopyTo, Prepare, Deallocate)
"""Statements that answer with a number of rows in a column called Count, unless RETURNING asks for
more."""

_TYPES = duckdb.StatementType
_MAIN = (("main",), ("memory",), ("memory", "main"))  # qualifiers of the cluster's tables
_INSTEAD = {
    "LOAD": "only the extensions that DuckDB brings along can be used",
    "EXPORT": "write tables with COPY ... TO",
    "IMPORT": "load each file with CREATE TABLE name AS FROM 'file'",
}
_UNSUPPORTED = ("COPY_DATABASE", "UPDATE_EXTENSIONS")
_RESERVED = re.compile(
    r"threads|worker_threads|external_threads|memory_limit|max_memory|temp_directory|\w*arrow\w*"
    r"|disabled_\w+|debug_\w+|python_\w+|lock_configuration|enable_external_access|allowed_\w+"
    r"|default_transaction_invalidation_policy|enable_view_dependencies"
    r"|\w*profil\w*|\w*logging\w*|log_query_path",
    re.IGNORECASE,
)
# DuckDB's views of PostgreSQL's catalog; other names that begin so may be users'.
_PG_VIEWS = """am attrdef attribute class collation constraint database depend description enum
    index indexes namespace prepared_statements proc sequence sequences settings tables tablespace
    type views"""
# DuckDB's views of its own catalog.
_DUCKDB_VIEWS = "columns constraints databases indexes logs schemas tables types views"
# What reads the catalog, among the tokens of a query without strings.
_CATALOG = re.compile(
    rf"\b(?:duckdb_(?:(?:{'|'.join(_DUCKDB_VIEWS.split())})\b|\w+\s*\()"
    r"|pragma_(?:\w+\s*\(|database_list\b)"
    r"|information_schema\s*\.|sqlite_(?:temp_)?(?:master|schema)\b"
    rf"|pg_(?:{'|'.join(_PG_VIEWS.split())})\b|pg_catalog\s*\.|pg_(?!typeof\b)\w+\s*\()"
    r"|\(\s*(?:SHOW|DESCRIBE|DESC)\s+[\w\"(]",
    re.IGNORECASE,
)
# What else only the session's own database can tell.
_OF_SESSION = ("current_schema", "current_setting", "current_database", "current_catalog")
_SESSION = re.compile(r"\bcurrent_(?:schemas?|setting|database|catalog)\s*\(", re.IGNORECASE)
_STATEFUL = re.compile(
    r"\b(nextval|currval)\s*\(|\b(?:store_rejects|rejects_\w+)\s*:?="
    r"|\bAS\s*(?:(?:NOT\s+)?MATERIALIZED\s*)?\(\s*(?:(INSERT|UPDATE|DELETE|MERGE)|COPY)\b",
    re.IGNORECASE,
)
_OF_CATALOG = (
    *("duckdb_", "pragma_", "information_schema", "sqlite_", "pg_"),
    *("show", "describe", "desc"),
)
"""Lower-case text of which some is in whatever reads the catalog."""
_UNCOMMON = (
    *("--", "/*", "show", "describe", "duckdb_", "pragma_", "information_schema"),
    *("sqlite_", "pg_", "nextval", "currval", "rejects", *_OF_SESSION),
    *("insert", "update", "delete", "merge", "copy"),
)
"""Lower-case text that a SELECT may only contain if it needs a closer look."""
_DESC_OF_QUERY = re.compile(r"(?:^|\()\s*desc\b")  # as opposed to that of an ORDER BY
_COPIED_COLUMNS = re.compile(r'("(?:[^"]|"")+"|[\w.]+)\s*\((.*)\)', re.DOTALL)
_TEMPORARY = ("TEMP", "TEMPORARY")
_CACHE = re.compile(r"\s*(UN)?CACHE\s+TABLE\s+(IF\s+EXISTS\s+)?", re.IGNORECASE)
_VERBS = {"BEGIN": "BEGIN", "START": "BEGIN", "COMMIT": "COMMIT", "END": "COMMIT"}
_MODIFIERS = ("TEMP", "TEMPORARY", "PERSISTENT", "RECURSIVE", "SECURE", "UNIQUE")


def parse_statements(con: duckdb.DuckDBPyConnection, text: str) -> list[ParsedStatement]:
    """The statements in `text` (UnsupportedError if minishark does not run one of them)."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise QueryError(f"This text is no valid Unicode: {error}.") from error
    cached = _CACHE.match(text)
    if cached is not None:
        return [_cache(text, cached)]
    try:
        extracted = con.extract_statements(text)
    except duckdb.Error as error:
        raise QueryError(advised(str(error))) from error
    if not extracted:
        raise QueryError("There is no statement in the text.")
    try:
        typed = [(item, item.type, item.query.strip().rstrip(";").rstrip()) for item in extracted]
    except ValueError as error:  # a type of statement that DuckDB's Python client does not know
        raise UnsupportedError("minishark does not run statements of this kind.") from error
    return [_classified(con, item, type_, sql) for item, type_, sql in typed]


def _classified(
    con: duckdb.DuckDBPyConnection, parsed: duckdb.Statement, type_: duckdb.StatementType, sql: str
) -> ParsedStatement:
    if type_ == _TYPES.SELECT:
        return _query(sql, parsed)
    cursor = Cursor(sql)
    if type_ == _TYPES.EXPLAIN:
        return _explain(con, cursor)
    first = cursor.take()
    classify = _BY_FIRST_WORD.get(first)
    # By the first word, too: DuckDB takes what has a PIVOT or a DEFAULT in it for several (MULTI).
    if classify is not None and type_.name not in _UNSUPPORTED:
        return classify(sql, cursor, first)
    if type_ == _TYPES.MULTI:
        return FrontEndQuery(sql)
    if type_ in (_TYPES.INSERT, _TYPES.UPDATE, _TYPES.DELETE, _TYPES.MERGE_INTO):
        return _changed(sql, cursor, None)
    if type_ == _TYPES.SET and first == "PRAGMA":
        return _set(f"SET {sql[cursor.offset :]}", cursor, first)
    if first in ("CHECKPOINT", "FORCE"):
        raise UnsupportedError("There is no file to write tables to at once: no CHECKPOINT.")
    if type_ in (_TYPES.PRAGMA, _TYPES.CALL) and first != "IMPORT":
        if _RESERVED.fullmatch(cursor.next):
            raise UnsupportedError(
                "DuckDB's profiles and logs would be those of parts of a query: see EXPLAIN "
                "ANALYZE, DataFrame.profile() and the session's events."
            )
        return Show(sql, is_show=False)
    name = "IMPORT" if first == "IMPORT" else type_.name.replace("_", " ")
    instead = _INSTEAD.get(name, "it runs SELECT, CREATE, INSERT, UPDATE, DELETE and COPY")
    raise UnsupportedError(f"minishark does not run {name} statements: {instead}.")


def rewritten(statement: ParsedStatement, sql: str) -> ParsedStatement:
    """A statement with another text, in which other names, values or calls stand for the same."""
    if sql == statement.sql:
        return statement
    match statement:
        case Query():
            return _query(sql, None)
        case Explain() | FrontEndQuery() | CacheTable():
            return structs.replace(statement, sql=sql)
        case Show():
            return structs.replace(statement, sql=sql, query=_described(Cursor(sql)))
        case ExplainChange(statement=inner):
            return structs.replace(statement, sql=sql, statement=rewritten(inner, sql))
    cursor = Cursor(sql)
    first = cursor.take()
    classify = _BY_FIRST_WORD.get(first)
    return _changed(sql, cursor, None) if classify is None else classify(sql, cursor, first)


def with_variables(
    statement: ParsedStatement, names: Callable[[], Collection[str]]
) -> ParsedStatement:
    """A statement with the value of a variable, of these names in lower case, for each `$name`.

    Those of one that is prepared are its parameters.
    """
    if isinstance(statement, Prepare):
        return statement
    return rewritten(statement, fill_variables(statement.sql, names))


def _cache(text: str, match: re.Match[str]) -> ParsedStatement:
    """CACHE TABLE, which DuckDB does not parse."""
    sql = text.strip().rstrip(";").rstrip()
    cursor = Cursor(text[match.end() :])
    path = cursor.path()
    if not path or cursor.rest.strip(" \n;"):
        raise QueryError("Write CACHE TABLE name or UNCACHE TABLE name, and nothing after it.")
    return CacheTable(sql, path=path, caches=not match[1], missing_ok=bool(match[2]))


def _transaction(sql: str, cursor: Cursor, first: str) -> ParsedStatement:
    cursor.skip_any("TRANSACTION", "WORK")
    if cursor.skip("READ", "ONLY"):
        raise UnsupportedError(
            "Transactions are not read-only here: write BEGIN without READ ONLY."
        )
    return Transaction(sql, verb=_VERBS.get(first, "ROLLBACK"))


def _vacuum(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    if cursor.skip("ANALYZE"):
        raise UnsupportedError("Statistics are measured when tables are written: no ANALYZE.")
    return Vacuum(sql, path=cursor.path())


def _query(sql: str, parsed: duckdb.Statement | None) -> ParsedStatement:
    text = without_comments_around(sql).lower()
    if not (any(word in text for word in _UNCOMMON) or _DESC_OF_QUERY.search(text)):
        return Query(sql, parsed)  # to look at its tokens takes half as long as to parse it
    return _select(sql, Cursor(sql), parsed)


def _select(sql: str, cursor: Cursor, parsed: duckdb.Statement | None) -> ParsedStatement:
    if cursor.next in ("SHOW", "DESCRIBE", "DESC"):
        return Show(sql, is_show=True, query=_described(cursor))
    code = cursor.code
    if _CATALOG.search(code) or _SESSION.search(code):
        return Show(sql, is_show=False)
    if stateful := [*_STATEFUL.finditer(code)]:
        changes = any(match[2] for match in stateful)
        return _changed(sql, cursor, None) if changes else FrontEndQuery(sql)
    return Query(sql, parsed)


def _described(cursor: Cursor) -> str:
    """The query that a DESCRIBE is about; empty if it is about a name, or is none."""
    is_query = cursor.take() in ("DESCRIBE", "DESC") and cursor.next in ("SELECT", "FROM", "WITH")
    return cursor.rest if is_query else ""


def _explain(con: duckdb.DuckDBPyConnection, cursor: Cursor) -> ParsedStatement:
    cursor.skip("EXPLAIN")
    analyze = cursor.skip("ANALYZE") or cursor.skip("ANALYSE")
    if cursor.next.startswith("("):
        raise UnsupportedError("Write EXPLAIN or EXPLAIN ANALYZE without options in parentheses.")
    (inner,) = parse_statements(con, cursor.rest)
    if isinstance(inner, ChangeRows | CreateTableAs) and not analyze:
        return ExplainChange(inner.sql, inner)
    if not isinstance(inner, Query):
        raise UnsupportedError(
            "EXPLAIN shows how queries, changes of rows and CREATE TABLE AS run; EXPLAIN ANALYZE, "
            "how queries have run."
        )
    return Explain(inner.sql, analyze)


def _target(cursor: Cursor) -> Target | None:
    return _target_of(cursor.path())


def _target_of(path: tuple[str, ...]) -> Target | None:
    *schema, name = path or ("",)
    if not name:
        return None
    return Target(name, not schema or tuple(part.lower() for part in schema) in _MAIN, path)


def _change(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    """INSERT, MERGE, UPDATE, DELETE or TRUNCATE."""
    if not cursor.skip("OR", "REPLACE"):
        cursor.skip("OR", "IGNORE")
    cursor.skip_any("INTO", "FROM", "TABLE")
    return _changed(sql, cursor, _target(cursor))


def _changed(sql: str, cursor: Cursor, target: Target | None) -> ParsedStatement:
    stateful = _STATEFUL.finditer(cursor.code) if target is None else ()
    if any(match[2] for match in stateful):  # after WITH, what changes tables, too
        return ChangeRows(sql, None, None)
    try:
        change = read_change(cursor.again())
    except (QueryError, UnsupportedError):
        return ChangeRows(sql, target, None)
    if target is None and change is not None:  # after WITH
        target = _target_of(change.target)
    return ChangeRows(sql, target, change)


def _create(sql: str, cursor: Cursor, first: str) -> ParsedStatement:
    cursor.skip("OR", "REPLACE")
    is_temporary = cursor.next in _TEMPORARY
    cursor.skip_any(*_MODIFIERS)
    noun = cursor.take()
    match noun:
        case "TABLE":
            table = read_create(cursor.again())
            is_plain = not (table.columns or table.partitions or table.order or table.properties)
            computes = table.has_rows and is_plain and not table.exists_ok
            kind = CreateTableAs if computes else CreateTable
            return kind(sql, _target_of(table.target), table, is_temporary)
        case "INDEX":
            has_target = cursor.skip_to("ON") and cursor.take()
            return CreateIndex(sql, _target(cursor) if has_target else None)
        case "TYPE" if cursor.skip_to("AS ENUM ("):
            return _enum(sql, cursor)
        case _:
            return _defined(sql, cursor, first, noun, is_temporary=is_temporary)


def _drop(sql: str, cursor: Cursor, first: str) -> ParsedStatement:
    noun = cursor.take()
    if noun != "TABLE":
        return _defined(sql, cursor, first, noun)
    missing_ok = cursor.skip("IF", "EXISTS")
    return DropTable(sql, _target(cursor), missing_ok=missing_ok)


def _alter(sql: str, cursor: Cursor, first: str) -> ParsedStatement:
    noun = cursor.take()
    if noun != "TABLE":
        return _defined(sql, cursor, first, noun)
    cursor.skip("IF", "EXISTS")
    target = _target(cursor)
    adds = cursor.skip("ADD")
    renamed = cursor.path()[-1:] if cursor.skip("RENAME", "TO") else ()
    return AlterTable(sql, target, "".join(renamed), adds)


def _enum(sql: str, cursor: Cursor) -> ParsedStatement:
    """CREATE TYPE name AS ENUM, from its AS."""
    create, head = sql[: cursor.offset].rstrip(), cursor.again()
    head.skip_to("TYPE")
    head.take()
    cursor.skip("AS", "ENUM")
    query = cursor.rest
    cursor.take()
    if cursor.next not in ("SELECT", "FROM", "WITH", "VALUES", "("):
        return Definition(sql)
    head.skip("IF", "NOT", "EXISTS")
    return CreateEnum(sql, path=head.name(), create=create, query=query)


def _defined(
    sql: str, cursor: Cursor, first: str, noun: str, *, is_temporary: bool = False
) -> ParsedStatement:
    match noun:
        case "VIEW" | "MACRO" | "FUNCTION" | "TYPE":
            cursor.skip_any("TABLE")  # DROP MACRO TABLE
            cursor.skip_any("IF", "NOT", "EXISTS")
            path, is_view = cursor.path(), noun == "VIEW" and first != "ALTER"
            drops, has_query = first == "DROP", is_view and cursor.skip_to("AS") and cursor.take()
            return Definition(
                sql, path, is_temporary, is_view, drops, cursor.rest if has_query else ""
            )
        case "SCHEMA" if first == "CREATE":
            exists_ok = cursor.skip("IF", "NOT", "EXISTS")
            return CreateSchema(sql, path=cursor.path(), exists_ok=exists_ok)
        case "SCHEMA" if first == "DROP":
            missing_ok, path = cursor.skip("IF", "EXISTS"), cursor.path()
            return DropSchema(sql, path=path, missing_ok=missing_ok, cascade=cursor.skip("CASCADE"))
        case "SCHEMA" | "SEQUENCE" | "DATABASE":
            return FrontEndCommand(sql)
        case "INDEX":
            return Write(sql, None)
        case _:
            raise UnsupportedError(f"minishark does not run {first} {noun}.")


def _front_end(sql: str, _: Cursor, __: str) -> ParsedStatement:
    return FrontEndCommand(sql)


def _detach(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    cursor.skip("DATABASE")
    cursor.skip("IF", "EXISTS")
    if [part.lower() for part in cursor.path()] == ["memory"]:
        raise UnsupportedError("The session's tables are in memory: DETACH other databases.")
    return FrontEndCommand(sql)


def _use(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    return Use(sql, path=cursor.path())


def _comment(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    cursor.skip("ON")
    noun, path = cursor.take(), cursor.path()
    cursor.skip_to("IS")
    cursor.take()
    value = cursor.take()
    return Comment(sql, noun=noun, path=path, text=None if value == "NULL" else text_value(value))


def _set(sql: str, cursor: Cursor, first: str) -> ParsedStatement:
    if first == "SET" and cursor.skip("VARIABLE"):
        name = cursor.name()[-1]
        cursor.take()  # = or TO
        return SetVariable(sql, name=name, value=cursor.rest)
    cursor.skip_any("GLOBAL", "LOCAL", "SESSION")
    name = ".".join(cursor.path())
    if name.lower() in ("schema", "search_path"):
        return FrontEndCommand(sql)
    return Setting(sql, is_reserved=_RESERVED.fullmatch(name) is not None)


def session_setting(sql: str) -> str | None:
    """A SET or RESET as one that concerns its connection only; None if it asks for GLOBAL."""
    cursor = Cursor(sql)
    first = cursor.take()
    if cursor.skip("VARIABLE") or (cursor.skip("TIME") and cursor.skip("ZONE")):
        return sql
    if cursor.skip("GLOBAL"):
        return None
    cursor.skip_any("LOCAL", "SESSION")
    return f"{first} SESSION {cursor.rest}"


def with_setting(settings: tuple[str, ...], sql: str) -> tuple[str, ...]:
    """Statements that have changed settings, and one more: the last about each name says all."""
    name = _changed_setting(sql)
    left = tuple(setting for setting in settings if _changed_setting(setting) != name)
    is_gone = Cursor(sql).comes("RESET", "VARIABLE")
    return left if is_gone else (*left, sql)


def _changed_setting(sql: str) -> tuple[str, ...]:
    """What a statement changes: a variable or a setting, by name in lower case."""
    cursor = Cursor(sql)
    if not cursor.skip("SET") and not cursor.skip("RESET"):
        return (sql,)  # a PRAGMA, which does not say what it changes
    if cursor.skip("VARIABLE"):
        return "VARIABLE", cursor.name()[-1].lower()
    if cursor.skip("TIME", "ZONE"):
        return ("timezone",)
    cursor.skip_any("GLOBAL", "LOCAL", "SESSION")
    return tuple(part.lower() for part in cursor.path())


def variables_of(settings: Iterable[str]) -> dict[str, str]:
    """Those of the statements that set variables, by the variables' names in lower case."""
    return {_changed_setting(sql)[-1]: sql for sql in settings if sql.startswith("SET VARIABLE ")}


def reads_catalog(sql: str) -> bool:
    """Whether a statement may read the catalog: what tables, columns and the like there are."""
    text = sql.lower()
    if not any(word in text for word in _OF_CATALOG):
        return False
    if not ("--" in text or "/*" in text or _CATALOG.search(text)):
        return False  # the tokens alone, of a long text, take much longer
    return _CATALOG.search(Cursor(sql).code) is not None


def asks_session(sql: str) -> bool:
    """Whether a statement may ask for more that only the session's own database can tell."""
    text = sql.lower()
    return any(n in text for n in _OF_SESSION) and _SESSION.search(Cursor(sql).code) is not None


def dropped_first(sql: str) -> str | None:
    """What a CREATE OR REPLACE of a view, macro or type drops first; None for other statements."""
    cursor = Cursor(sql)
    if not cursor.skip("CREATE", "OR", "REPLACE"):
        return None
    database = "temp" if cursor.next in _TEMPORARY else "memory"
    cursor.skip_any(*_MODIFIERS)
    noun, path = cursor.take(), cursor.path()
    if noun in ("MACRO", "FUNCTION"):
        noun = "MACRO TABLE" if cursor.skip_to("AS TABLE") else "MACRO"
    return f"DROP {noun} IF EXISTS {database}.main.{quote(path[-1])}"


def _copy(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    if cursor.skip("FROM", "DATABASE"):
        return CopyDatabase(sql, target=None, source=".".join(cursor.path()))
    begin = cursor.offset
    target = _target(cursor)
    if not cursor.skip_to("TO"):
        return CopyFrom(sql, target)
    source = sql[begin : cursor.offset].strip()
    cursor.take()
    if not cursor.next.startswith("'"):  # a computed name
        return CopyFrom(sql, target)
    if source.startswith("("):
        return CopyTo(sql, query=source[1:-1], destination=cursor.rest)
    columns = _COPIED_COLUMNS.fullmatch(source)
    query = f"SELECT {columns[2]} FROM {columns[1]}" if columns else f"FROM {source}"
    return CopyTo(sql, query=query, destination=cursor.rest)


def _prepare(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    name = cursor.path()
    if not name or not cursor.skip_to("AS"):
        raise QueryError("Write PREPARE name AS statement.")
    cursor.skip("AS")
    return Prepare(sql, name=name[0].lower(), statement=cursor.rest)


def _execute(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    name = cursor.path()
    if not name:
        raise QueryError("Write EXECUTE name(arguments).")
    return Execute(sql, name=name[0].lower(), arguments=call_arguments(cursor.rest))


def _deallocate(sql: str, cursor: Cursor, _: str) -> ParsedStatement:
    cursor.skip("PREPARE")
    name = cursor.path()
    if not name:
        raise QueryError("Write DEALLOCATE name.")
    return Deallocate(sql, name=name[0].lower())


_BY_FIRST_WORD: Mapping[str, Callable[[str, Cursor, str], ParsedStatement]] = {
    "INSERT": _change,
    "MERGE": _change,
    "UPDATE": _change,
    "DELETE": _change,
    "TRUNCATE": _change,
    "CREATE": _create,
    "DROP": _drop,
    "ALTER": _alter,
    "BEGIN": _transaction,
    "START": _transaction,
    "COMMIT": _transaction,
    "END": _transaction,
    "ROLLBACK": _transaction,
    "ABORT": _transaction,
    "VACUUM": _vacuum,
    "COMMENT": _comment,
    "ATTACH": _front_end,
    "DETACH": _detach,
    "USE": _use,
    "SET": _set,
    "RESET": _set,
    "COPY": _copy,
    "PREPARE": _prepare,
    "EXECUTE": _execute,
    "DEALLOCATE": _deallocate,
}
