"""SQLAlchemy's dialects: `minishark://` in the process, `minishark+flight://` on a server.

    create_engine("minishark://")                     # a cluster of the engine's own
    create_engine("minishark://default")              # a running cluster
    create_engine("minishark:///?nodes=2&warehouse=/data/warehouse")
    create_engine("minishark://", connect_args={"session": session})
    create_engine("minishark+flight://ann:PASSWORD@db.example.com:31337/?tls=true")

The part after the host is the schema to begin in. Statements are committed one by one: `rollback`
undoes nothing.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Rows
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

from sqlalchemy import exc, types
from sqlalchemy.engine import default, reflection
from sqlalchemy.engine.url import URL
from sqlalchemy.schema import Sequence
from sqlalchemy.sql import compiler, text

from minishark.adapters import dbapi
from minishark.adapters.flight.failures import our_class
from minishark.errors import OptionError, TransactionError
from minishark.model.expressions import quote, quote_text
from minishark.session.connect import connect
from minishark.session.options import OPTIONS, Kind, Option
from minishark.session.session import Session
from minishark.tables.warehouse.contract import MAIN
from minishark.tables.warehouse.contract import NAME as WAREHOUSE

_OF_SERVERS = {"tls": Option(kind=Kind.SWITCH, sentence="encrypted", default=False)}

_SIMPLE: dict[str, type[types.TypeEngine[Any]]] = {
    "BIGINT": types.BIGINT,
    "BLOB": types.LargeBinary,
    "BOOLEAN": types.BOOLEAN,
    "DATE": types.DATE,
    "DOUBLE": types.DOUBLE,
    "FLOAT": types.REAL,
    "INTEGER": types.INTEGER,
    "JSON": types.JSON,
    "SMALLINT": types.SMALLINT,
    "TIME": types.TIME,
    "TIMESTAMP": types.TIMESTAMP,
    "UUID": types.UUID,
    "VARCHAR": types.VARCHAR,
}


class DuckDBType(types.UserDefinedType[Any]):
    """A type that SQLAlchemy has no class for, by DuckDB's name: `STRUCT(a INTEGER)`, `HUGEINT`."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        """The type in CREATE TABLE."""
        return self.name


def type_of(name: str) -> types.TypeEngine[Any]:
    """SQLAlchemy's type for DuckDB's name of one."""
    if name.endswith("[]"):
        item = name.rstrip("[]")
        return types.ARRAY(type_of(item), dimensions=(len(name) - len(item)) // 2)
    if name in _SIMPLE:
        return _SIMPLE[name]()
    if name == "TIMESTAMP WITH TIME ZONE":
        return types.TIMESTAMP(timezone=True)
    if decimal := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", name):
        return types.DECIMAL(int(decimal[1]), int(decimal[2]))
    if name.startswith("ENUM("):
        values = re.findall(r"'((?:[^']|'')*)'", name)
        return types.Enum(*(value.replace("''", "'") for value in values))
    return DuckDBType(name)


class _Uuid(types.Uuid[Any]):
    """Sent as text, which every driver has; drivers return objects, text or bytes."""

    def bind_processor(self, dialect: Any) -> Any:
        if not self.native_uuid:
            return super().bind_processor(dialect)
        return lambda value: None if value is None else str(uuid.UUID(str(value)))

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if not self.native_uuid:
            return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]

        def converted(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, bytes):
                value = uuid.UUID(bytes=value)
            return uuid.UUID(str(value)) if self.as_uuid else str(value)

        return converted


class _Numeric(types.Numeric[Any]):
    """DuckDB divides decimals as floats."""

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if not self.asdecimal:
            return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]
        return lambda value: Decimal(str(value)) if isinstance(value, float) else value


class _Blob(types.LargeBinary):
    """Bytes as they are: ADBC's modules have no `Binary`."""

    def bind_processor(self, dialect: Any) -> Any:
        return None


class _JsonPart(types.TypeEngine[Any]):
    """A place in a JSON value as a path, which is text to drivers: `$."key"[1]`."""

    def bind_processor(self, dialect: Any) -> Any:
        return lambda value: None if value is None else _json_path(value)

    def literal_processor(self, dialect: Any) -> Any:
        return lambda value: quote_text(_json_path(value))


class _JsonIndex(_JsonPart, types.JSON.JSONIndexType):
    """A key, or the number of an item."""


class _JsonPath(_JsonPart, types.JSON.JSONPathType):
    """Several of them, from the outside to the inside."""


def _json_path(value: Any) -> str:
    parts = value if isinstance(value, list | tuple) else (value,)
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f'."{part}"' for part in parts)


class _Compiler(compiler.SQLCompiler):
    """DuckDB's dialect where it differs from standard SQL."""

    def visit_json_getitem_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        affinity = binary.type._type_affinity  # noqa: SLF001 - SQLAlchemy's dialects do
        if affinity is types.JSON:
            return f"json_extract({left}, {right})"
        extracted = f"json_extract_string({left}, {right})"
        if affinity is types.String:
            return extracted
        return f"CAST({extracted} AS {self.dialect.type_compiler_instance.process(binary.type)})"

    def visit_json_path_getitem_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self.visit_json_getitem_op_binary(binary, operator, **kw)

    def visit_bitwise_xor_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"xor({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    def visit_sequence(self, sequence: Any, **_: Any) -> str:
        return f"nextval('{self.preparer.format_sequence(sequence)}')"

    def visit_empty_set_expr(self, element_types: Any, **kw: Any) -> str:
        return f"SELECT {', '.join('NULL' for _ in element_types or [None])} WHERE false"

    def visit_ilike_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._matched(binary, "ILIKE", kw)

    def visit_not_ilike_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._matched(binary, "NOT ILIKE", kw)

    def _matched(self, binary: Any, word: str, kw: dict[str, Any]) -> str:
        left, right = self.process(binary.left, **kw), self.process(binary.right, **kw)
        escape = binary.modifiers.get("escape")
        if escape is None:
            return f"{left} {word} {right}"
        return f"{left} {word} {right} ESCAPE {self.render_literal_value(escape, types.STRINGTYPE)}"

    def visit_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._by_pattern("regexp_matches", binary, kw)

    def visit_not_regexp_match_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"NOT {self.visit_regexp_match_op_binary(binary, operator, **kw)}"

    def visit_regexp_replace_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._by_pattern("regexp_replace", binary, kw)

    def _by_pattern(self, function: str, binary: Any, kw: dict[str, Any]) -> str:
        parts = [self.process(binary.left, **kw), self.process(binary.right, **kw)]
        if (flags := binary.modifiers.get("flags")) is not None:
            parts.append(self.render_literal_value(flags, types.STRINGTYPE))
        return f"{function}({', '.join(parts)})"

    def limit_clause(self, select: Any, **kw: Any) -> str:
        clauses = ""
        if select._limit_clause is not None:  # noqa: SLF001 - SQLAlchemy's compilers do
            limit = select._limit_clause  # noqa: SLF001
            clauses += f"\n LIMIT {self.process(limit, **kw)}"
        if select._offset_clause is not None:  # noqa: SLF001 - SQLAlchemy's compilers do
            offset = select._offset_clause  # noqa: SLF001
            clauses += f"\n OFFSET {self.process(offset, **kw)}"
        return clauses

    def for_update_clause(self, select: Any, **_: Any) -> str:
        raise exc.CompileError("minishark locks no rows: leave out with_for_update().")

    def update_from_clause(
        self, update_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        return f"FROM {self._others(extra_froms, from_hints, kw)}"

    def delete_extra_from_clause(
        self, delete_stmt: Any, from_table: Any, extra_froms: Any, from_hints: Any, **kw: Any
    ) -> str:
        return f"USING {self._others(extra_froms, from_hints, kw)}"

    def _others(self, tables: Any, from_hints: Any, kw: dict[str, Any]) -> str:
        kw = kw | {"asfrom": True, "fromhints": from_hints}
        return ", ".join(self.process(table, **kw) for table in tables)


class _DDLCompiler(compiler.DDLCompiler):
    """CREATE TABLE and DROP TABLE, with a sequence for each column that counts by itself."""

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        sequences = [
            f"CREATE {self._kind(create)}SEQUENCE IF NOT EXISTS "
            f"{self._sequence(column)}{self._options(column)}; "
            for column in create.element.columns
            if _counts(column)
        ]
        created: str = super().visit_create_table(create, **kw)  # type: ignore[no-untyped-call]
        return "".join(sequences) + created

    def visit_drop_table(self, drop: Any, **kw: Any) -> str:
        sequences = [
            f"; DROP SEQUENCE IF EXISTS {self._sequence(column)}"
            for column in drop.element.columns
            if _counts(column)
        ]
        dropped: str = super().visit_drop_table(drop, **kw)  # type: ignore[no-untyped-call]
        return dropped + "".join(sequences)

    def get_column_default_string(self, column: Any) -> str | None:
        if _counts(column):
            return f"nextval({quote_text(self._sequence(column))})"
        text_of_default: str | None = super().get_column_default_string(column)
        return text_of_default

    def _kind(self, create: Any) -> str:
        words = {str(word).upper() for word in create.element._prefixes}  # noqa: SLF001 - the same
        return "TEMPORARY " if words & {"TEMP", "TEMPORARY"} else ""

    def _sequence(self, column: Any) -> str:
        return str(self.preparer.format_sequence(_sequence_of(column)))

    def _options(self, column: Any) -> str:
        if column.identity is None:
            return ""
        if column.identity.always:
            raise exc.CompileError(
                f"minishark can't refuse values for {column.name}: leave out always=True."
            )
        return f" {self.get_identity_options(column.identity)}".rstrip()


def _counts(column: Any) -> bool:
    """Whether a column counts by itself: an integer key, or one with an Identity."""
    if column.identity is not None:
        return True
    is_key = column is column.table.autoincrement_column
    return is_key and column.default is None and column.server_default is None


def _sequence_of(column: Any) -> Sequence:
    """The sequence of a column that counts, named as PostgreSQL does."""
    table = column.table
    return Sequence(f"{table.name}_{column.name}_seq", schema=table.schema)


class _ExecutionContext(default.DefaultExecutionContext):
    """Asks for the next number of a column where a statement can't return it."""

    def fire_sequence(self, seq: Any, type_: Any) -> Any:
        name = self.identifier_preparer.format_sequence(seq)
        return self._execute_scalar(f"SELECT nextval({quote_text(name)})", type_)

    def get_insert_default(self, column: Any) -> Any:
        if _counts(column):
            return self.fire_sequence(_sequence_of(column), column.type)
        return super().get_insert_default(column)  # type: ignore[no-untyped-call]


class _TypeCompiler(compiler.GenericTypeCompiler):
    """DuckDB's names of types."""

    def visit_float(self, type_: Any, **kw: Any) -> str:
        return self.visit_DOUBLE(type_, **kw)  # as Python's are; DuckDB's FLOAT has 4 bytes

    def visit_TIMESTAMP(self, type_: Any, **_: Any) -> str:  # noqa: N802 - SQLAlchemy's name
        return "TIMESTAMP WITH TIME ZONE" if type_.timezone else "TIMESTAMP"

    visit_DATETIME = visit_TIMESTAMP  # noqa: N815 - SQLAlchemy's name

    def visit_ARRAY(self, type_: Any, **kw: Any) -> str:  # noqa: N802 - SQLAlchemy's name
        return self.process(type_.item_type, **kw) + "[]" * (type_.dimensions or 1)

    def visit_JSON(self, type_: Any, **_: Any) -> str:  # noqa: N802 - SQLAlchemy's name
        return "JSON"


class _Sessions:
    """The session of an engine: started by its first connection, stopped with the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._open = 0

    def enter(self, options: Mapping[str, Any]) -> Session:
        """The session; a new one for the first connection."""
        with self._lock:
            if self._session is None or not self._session.is_open:
                self._session, self._open = connect(**options), 0
            self._open += 1
            return self._session

    def leave(self, session: Session) -> None:
        """A connection is closed."""
        with self._lock:
            if session is not self._session:
                return
            self._open -= 1
            if self._open == 0:
                session.stop()
                self._session = None


class _Connection(dbapi.Connection):
    """A connection with temporary tables and settings of its own to the session of an engine."""

    def __init__(self, session: Session, sessions: _Sessions | None) -> None:
        super().__init__(session.new_session(), owns_session=True)
        self._shared, self._sessions = session, sessions

    def rollback(self) -> None:
        """Undo what follows a BEGIN, if there was one: pools roll back what they get back."""
        if not self._closed and self.session.in_transaction:
            super().rollback()

    def close(self) -> None:
        was_closed = self._closed
        super().close()
        if not was_closed and self._sessions is not None:
            self._sessions.leave(self._shared)


# Statements that answer with a number of rows, or with nothing.
_WITHOUT_ROWS = re.compile(
    r"(?:\s|--.*\n|/\*(?s:.*?)\*/)*(?:abort|alter|begin|comment|commit|copy|create|delete|drop|end"
    r"|insert|merge|reset|rollback|set|start|truncate|update|use|vacuum)\b"
    r"(?!(?s:.*)\breturning\b)",
    re.IGNORECASE,
)

_BEGINS = re.compile(r"(?:\s|--.*\n|/\*(?s:.*?)\*/)*(?:begin|start)\b", re.IGNORECASE)

# Schemas are those of memory and of the warehouse: their names are looked up in both, but that
# `warehouse` is the warehouse's schema `main`.
_WITHIN = (
    f"CASE WHEN database_name = '{WAREHOUSE}' AND schema_name = '{MAIN}' THEN '{WAREHOUSE}' "
    "ELSE schema_name END = coalesce(:schema, CASE WHEN current_database() = "
    f"'{WAREHOUSE}' AND current_schema() = '{MAIN}' THEN '{WAREHOUSE}' ELSE current_schema() END) "
    "AND database_name NOT IN ('system', 'temp')"
)


_WITHIN_OR_TEMPORARY = f"(({_WITHIN}) OR (database_name = 'temp' AND :schema IS NULL))"


def _inner(expression: str) -> str:
    """An expression without the brackets around it."""
    text = expression.strip()
    depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return _inner(text[1:-1]) if text[:1] == "(" and at == len(text) - 1 else text
    return text


class MinisharkDialect(default.DefaultDialect):
    """`minishark://`: sessions of this process."""

    name = "minishark"
    driver = "session"
    default_paramstyle = "qmark"
    supports_statement_cache = True

    statement_compiler = _Compiler
    ddl_compiler = _DDLCompiler
    execution_ctx_cls = _ExecutionContext
    type_compiler_cls = _TypeCompiler
    colspecs = {  # noqa: RUF012 - the base class says what it is
        types.JSON.JSONIndexType: _JsonIndex,
        types.JSON.JSONPathType: _JsonPath,
        types.LargeBinary: _Blob,
        types.Numeric: _Numeric,
        types.Uuid: _Uuid,
    }

    div_is_floordiv = False
    delete_returning = insert_returning = update_returning = True
    supports_alter = True
    supports_comments = True
    supports_default_values = True
    supports_multivalues_insert = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_uuid = True
    supports_sequences = True
    supports_views = True
    use_insertmanyvalues = True
    use_insertmanyvalues_wo_returning = True
    postfetch_lastrowid = False
    preexecute_autoincrement_sequences = True
    requires_name_normalize = False

    def __init__(
        self,
        json_serializer: Callable[[Any], str] | None = None,
        json_deserializer: Callable[[str], Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        # SQLAlchemy's type JSON looks for these.
        self._json_serializer, self._json_deserializer = json_serializer, json_deserializer
        self._sessions = _Sessions()

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """The driver."""
        return dbapi

    def create_connect_args(self, url: URL) -> Any:
        """The arguments of `minishark.connect`.

        Raises:
            ArgumentError: an option is none of those, or its value is.
        """
        options: dict[str, Any] = {name: _option(name, value) for name, value in url.query.items()}
        if url.host:
            options["cluster"] = f"tcp://{url.host}:{url.port}" if url.port else url.host
        return [url.database or None], options

    def connect(self, *cargs: Any, **cparams: Any) -> Any:
        """A connection to the engine's session, or to `connect_args={"session": ...}`."""
        given = cparams.pop("session", None)
        if given is None:
            session = self._sessions.enter(cparams)
            connection = _Connection(session, self._sessions)
        else:
            connection = _Connection(given, None)
        if cargs and cargs[0]:
            connection.execute(f"USE {_path(cargs[0])}")
        return connection

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Undo what follows a BEGIN, if a statement was one."""
        dbapi_connection.rollback()

    def do_commit(self, dbapi_connection: Any) -> None:
        """Commit what follows a BEGIN, if a statement was one."""
        dbapi_connection.commit()

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """Whether the session is gone."""
        return isinstance(e, dbapi.InterfaceError) and "closed" in str(e)

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        numbers = re.findall(r"\d+", str(connection.scalar(text("SELECT version()"))))
        return tuple(int(part) for part in numbers[:3])

    def _get_default_schema_name(self, connection: Any) -> str:
        return str(connection.scalar(text("SELECT current_schema()")))

    # Reflection

    @reflection.cache
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """The schemas in memory and in the warehouse."""
        query = (
            f"SELECT DISTINCT CASE WHEN database_name = '{WAREHOUSE}' AND schema_name = '{MAIN}' "
            f"THEN '{WAREHOUSE}' ELSE schema_name END AS name FROM duckdb_schemas() "
            "WHERE NOT internal OR schema_name = 'main' AND database_name NOT IN ('system', 'temp')"
            " ORDER BY name"
        )
        return list(connection.scalars(text(query)))

    def has_schema(self, connection: Any, schema_name: str, **kw: Any) -> bool:
        """Whether there is a schema of that name."""
        return schema_name in self.get_schema_names(connection, **kw)

    @reflection.cache
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """The tables of a schema."""
        return self._names(connection, "table", f"{_WITHIN} AND NOT temporary", schema)

    @reflection.cache
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """The views of a schema."""
        return self._names(connection, "view", f"{_WITHIN} AND NOT internal", schema)

    @reflection.cache
    def get_temp_table_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """The connection's temporary tables."""
        return self._names(connection, "table", "temporary AND :schema IS NULL", None)

    @reflection.cache
    def get_temp_view_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """The connection's temporary views."""
        where = "temporary AND NOT internal AND :schema IS NULL"
        return self._names(connection, "view", where, None)

    @reflection.cache
    def get_sequence_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """The sequences of a schema."""
        return self._names(connection, "sequence", _WITHIN, schema)

    def _names(self, connection: Any, kind: str, where: str, schema: str | None) -> list[str]:
        query = f"SELECT {kind}_name FROM duckdb_{kind}s() WHERE {where} ORDER BY 1"
        return list(connection.scalars(text(query), {"schema": schema}))

    @reflection.cache
    def has_table(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """Whether there is a table or view of that name."""
        self._ensure_has_table_connection(connection)
        return bool(self._columns(connection, table_name, schema))

    def has_sequence(
        self, connection: Any, sequence_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """Whether there is a sequence of that name."""
        return sequence_name in self.get_sequence_names(connection, schema, **kw)

    def _columns(self, connection: Any, table: str, schema: str | None) -> Rows[Any]:
        query = (
            "SELECT column_name, data_type, is_nullable, column_default, comment "
            f"FROM duckdb_columns() WHERE {_WITHIN_OR_TEMPORARY} AND table_name = :table "
            "ORDER BY column_index"
        )
        columns: Rows[Any] = connection.execute(
            text(query), {"schema": schema, "table": table}
        ).all()
        return columns

    @reflection.cache
    def get_columns(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """The columns of a table or view."""
        rows = self._columns(connection, table_name, schema)
        if not rows:
            raise exc.NoSuchTableError(f"{schema}.{table_name}" if schema else table_name)
        return [
            {
                "name": name,
                "type": type_of(type_),
                "nullable": nullable,
                "default": None if default_ in (None, "NULL") else default_,
                "comment": comment,
                "autoincrement": str(default_).startswith("nextval("),
            }
            for name, type_, nullable, default_, comment in rows
        ]

    def _constraints(
        self, connection: Any, table: str, schema: str | None, kind: str, kw: Any
    ) -> Rows[Any]:
        if not self._columns(connection, table, schema):
            raise exc.NoSuchTableError(f"{schema}.{table}" if schema else table)
        # Their names are DuckDB's: it does not keep those that they were given.
        query = (
            "SELECT constraint_column_names, expression, referenced_table, "
            f"referenced_column_names FROM duckdb_constraints() WHERE {_WITHIN_OR_TEMPORARY} "
            "AND table_name = :table AND constraint_type = :kind ORDER BY constraint_index"
        )
        constraints: Rows[Any] = connection.execute(
            text(query), {"schema": schema, "table": table, "kind": kind}
        ).all()
        return constraints

    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The primary key, if the table has one."""
        rows = self._constraints(connection, table_name, schema, "PRIMARY KEY", kw)
        if not rows:
            return reflection.ReflectionDefaults.pk_constraint()
        return {"name": None, "constrained_columns": list(rows[0][0])}

    def get_unique_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The unique constraints."""
        rows = self._constraints(connection, table_name, schema, "UNIQUE", kw)
        return [{"name": None, "column_names": list(row[0])} for row in rows]

    def get_check_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The checks."""
        rows = self._constraints(connection, table_name, schema, "CHECK", kw)
        return [{"name": None, "sqltext": _inner(row[1])} for row in rows]

    def get_foreign_keys(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The foreign keys; they name tables of the same schema."""
        rows = self._constraints(connection, table_name, schema, "FOREIGN KEY", kw)
        return [
            {
                "name": None,
                "constrained_columns": list(row[0]),
                "referred_schema": schema,
                "referred_table": row[2],
                "referred_columns": list(row[3]),
                "options": {},
            }
            for row in rows
        ]

    def get_indexes(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """None: queries use no indexes."""
        if not self._columns(connection, table_name, schema):
            raise exc.NoSuchTableError(f"{schema}.{table_name}" if schema else table_name)
        return []

    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The table's comment."""
        if not self._columns(connection, table_name, schema):
            raise exc.NoSuchTableError(f"{schema}.{table_name}" if schema else table_name)
        query = (
            f"SELECT comment FROM duckdb_tables() WHERE {_WITHIN_OR_TEMPORARY} "
            "AND table_name = :table UNION ALL SELECT comment FROM duckdb_views() "
            f"WHERE {_WITHIN_OR_TEMPORARY} AND view_name = :table"
        )
        return {"text": connection.scalar(text(query), {"schema": schema, "table": table_name})}

    @reflection.cache
    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        """The view's CREATE VIEW."""
        query = f"SELECT sql FROM duckdb_views() WHERE {_WITHIN_OR_TEMPORARY} AND view_name = :view"
        definition = connection.scalar(text(query), {"schema": schema, "view": view_name})
        if definition is None:
            raise exc.NoSuchTableError(f"{schema}.{view_name}" if schema else view_name)
        return str(definition)


@contextlib.contextmanager
def _classes_told() -> Iterator[None]:
    """Flight has fewer codes than DB-API has classes of errors, but the message tells ours."""
    import adbc_driver_manager.dbapi as adbc  # noqa: PLC0415 - an optional package

    try:
        yield
    except adbc.DatabaseError as error:
        ours = our_class(error)
        kind = None if ours is None else getattr(adbc, dbapi.standard_class(ours).__name__)
        if kind is None or isinstance(error, kind):
            raise
        translated = kind(
            str(error),
            status_code=error.status_code,
            sqlstate=error.sqlstate,
            details=error.details,
        )
        raise translated from error


class _FlightCursor:
    """A cursor of ADBC; of what is no query, it has the number of rows in place of rows."""

    def __init__(self, cursor: Any, connection: _FlightConnection) -> None:
        self._cursor, self._connection = cursor, connection
        self.description: Any = None
        self.rowcount = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, operation: str, parameters: Any = None) -> None:
        """Run a statement."""
        if _BEGINS.match(operation):
            self._connection.may_be_in_transaction = True
        with _classes_told():
            self._cursor.execute(operation, parameters or None)
        self.description, self.rowcount = self._cursor.description, self._cursor.rowcount
        if _WITHOUT_ROWS.match(operation):
            counted = [column[0] for column in self.description or ()] == ["Count"]
            rows = self._cursor.fetchall() if self.description else ()
            self.rowcount = sum(row[0] for row in rows) if counted else -1
            self.description = None

    def executemany(self, operation: str, parameters: Any) -> None:
        """Run a statement with each set of parameters."""
        with _classes_told():
            self._cursor.executemany(operation, parameters)
        self.description, self.rowcount = None, self._cursor.rowcount


class _FlightConnection:
    """A connection of ADBC, which commits each statement unless a BEGIN came before."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.may_be_in_transaction = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> _FlightCursor:
        """A new cursor."""
        return _FlightCursor(self._connection.cursor(), self)

    def commit(self) -> None:
        """Commit what follows a BEGIN, if a statement was one."""
        self._end("COMMIT")

    def rollback(self) -> None:
        """Undo what follows a BEGIN, if a statement was one."""
        self._end("ROLLBACK")

    def _end(self, verb: str) -> None:
        if not self.may_be_in_transaction:
            return
        self.may_be_in_transaction = False
        cursor = self.cursor()
        try:
            cursor.execute(verb)
        except self._connection.DatabaseError as error:
            if our_class(error) is not TransactionError:  # a statement has ended it
                raise
        finally:
            cursor.close()


class FlightDialect(MinisharkDialect):
    """`minishark+flight://`: connections to a server, by ADBC."""

    driver = "flight"
    supports_statement_cache = True

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """The driver."""
        import adbc_driver_flightsql.dbapi as flight_sql  # noqa: PLC0415 - an optional package

        return flight_sql

    def create_connect_args(self, url: URL) -> Any:
        """The address, the user, `tls`, `token` and `certificate` (a file to trust).

        Raises:
            ArgumentError: there is no such option, or no host.
        """
        query = {name: _text(name, value) for name, value in url.query.items()}
        encrypted = _option("tls", query.pop("tls", "no"), _OF_SERVERS)
        options: dict[str, str] = {}
        if url.username is not None:
            options |= {"username": url.username, "password": str(url.password or "")}
        if (token := query.pop("token", None)) is not None:
            options["adbc.flight.sql.authorization_header"] = f"Bearer {token}"
        if (certificate := query.pop("certificate", None)) is not None:
            pem = Path(certificate).expanduser().read_text(encoding="ascii")
            options["adbc.flight.sql.client_option.tls_root_certs"] = pem
        if query:
            raise exc.ArgumentError(
                f"There is no option {', '.join(query)}; there are tls, token and certificate."
            )
        if not url.host:
            raise exc.ArgumentError("Name the server: minishark+flight://HOST:31337")
        address = f"grpc{'+tls' if encrypted else ''}://{url.host}:{url.port or 31337}"
        return [url.database or None, address], {"db_kwargs": options, "autocommit": True}

    def connect(self, *cargs: Any, **cparams: Any) -> Any:
        """A connection to the server."""
        path, address = cargs
        connection = _FlightConnection(self.loaded_dbapi.connect(address, **cparams))
        if path:
            cursor = connection.cursor()
            cursor.execute(f"USE {_path(path)}")
            cursor.close()
        return connection

    def is_disconnect(self, e: Any, connection: Any, cursor: Any) -> bool:
        """Whether the server is gone, or has forgotten the connection."""
        return "UNAVAILABLE" in str(e) or "UNAUTHENTICATED" in str(e)


def _path(name: str) -> str:
    return ".".join(quote(part) for part in name.split("."))


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise exc.ArgumentError(f"The option {name} is given more than once.")


def _option(name: str, value: Any, options: Mapping[str, Option] = OPTIONS) -> Any:
    """A value of a URL as the type that `minishark.connect` takes."""
    if (option := options.get(name)) is None:
        raise exc.ArgumentError(f"There is no option {name}; there are {', '.join(options)}.")
    try:
        return option.parsed(name, _text(name, value))
    except OptionError as error:
        raise exc.ArgumentError(str(error)) from error
