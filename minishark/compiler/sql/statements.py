"""What kind of statement a text is, and statements with their parameters filled in. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

import duckdb

from minishark.errors import QueryError, UnsupportedError

Token: TypeAlias = tuple[int, str, Any]
"""A token's offset in the text, the token itself, and its type in DuckDB's words."""


class StatementKind(StrEnum):
    """What a session does with a statement."""

    QUERY = "query"
    """Plan and run it on the cluster."""
    SHOW = "show"
    """Answer it from the catalog: SHOW, DESCRIBE, PRAGMA, CALL."""
    EXPLAIN = "explain"
    """Describe how the query behind it runs."""
    HERE = "here"
    """A query that needs the session's own database: columns that depend on the data (PIVOT),
    sequences, or changes to tables in its CTEs."""
    DEFINITION = "definition"
    """Remember it for later statements: views, macros, types, sequences, schemas."""
    SETTING = "setting"
    """Remember it for later statements: SET, RESET."""
    VARIABLE = "variable"
    """Compute a value and remember it: SET VARIABLE."""
    ENUM = "enum"
    """Define a type of the values that a query has: CREATE TYPE AS ENUM (SELECT ...)."""
    OWN = "own"
    """What only the session's own database has: schemas, sequences, attached databases."""
    WRITE = "write"
    """Change tables."""
    COPY_OUT = "copy out"
    """Write the rows of a query to files."""
    PREPARE = "prepare"
    EXECUTE = "execute"
    DEALLOCATE = "deallocate"


COUNTED = (
    StatementKind.DEFINITION,
    StatementKind.SETTING,
    StatementKind.WRITE,
    StatementKind.COPY_OUT,
    StatementKind.PREPARE,
    StatementKind.DEALLOCATE,
)
"""Kinds of statements that answer with a number of rows in a column called Count, if not RETURNING
asks for more."""


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    """One statement.

    Attributes:
        kind: what a session does with it.
        sql: its text without the semicolon; of an EXPLAIN, the query.
        analyze: whether an EXPLAIN runs the query.
        parsed: a query, as DuckDB has parsed it.
    """

    kind: StatementKind
    sql: str
    analyze: bool = False
    parsed: duckdb.Statement | None = field(default=None, compare=False)


_TYPES = duckdb.StatementType
_KINDS = {
    _TYPES.SELECT: StatementKind.QUERY,
    _TYPES.MULTI: StatementKind.HERE,
    _TYPES.SET: StatementKind.SETTING,
    _TYPES.INSERT: StatementKind.WRITE,
    _TYPES.UPDATE: StatementKind.WRITE,
    _TYPES.DELETE: StatementKind.WRITE,
    _TYPES.MERGE_INTO: StatementKind.WRITE,
    _TYPES.PREPARE: StatementKind.PREPARE,
    _TYPES.EXECUTE: StatementKind.EXECUTE,
    _TYPES.PRAGMA: StatementKind.SHOW,
    _TYPES.CALL: StatementKind.SHOW,
    _TYPES.ATTACH: StatementKind.OWN,
    _TYPES.DETACH: StatementKind.OWN,
}
_INSTEAD = {
    "TRANSACTION": "each statement is a transaction of its own",
    "VACUUM": "statistics are measured when a table is loaded",
    "LOAD": "only the extensions that DuckDB brings along can be used",
    "EXPORT": "write tables with COPY ... TO",
}
_NOUN = re.compile(
    r"\s*(?:CREATE|DROP|ALTER)\s+"
    r"(?:OR\s+REPLACE\s+|(?:TEMP(?:ORARY)?|PERSISTENT|RECURSIVE|SECURE|UNIQUE)\s+)*(\w+)",
    re.IGNORECASE,
)
_USED = re.compile(
    r"\s*(?:USE\b|(?:RE)?SET\s+(?:(?:GLOBAL|LOCAL|SESSION)\s+)?(?:schema|search_path)\b)",
    re.IGNORECASE,
)
_ENUM_OF_QUERY = re.compile(
    r"\s*CREATE\b.*?\bAS\s+ENUM\s*\(\s*(?:SELECT|FROM|WITH|VALUES|\()", re.IGNORECASE | re.DOTALL
)
_VARIABLE = re.compile(r"\s*SET\s+VARIABLE\b", re.IGNORECASE)
_SHOWN = re.compile(r"\s*(?:SHOW|DESCRIBE|DESC)\b", re.IGNORECASE)
_RESERVED = re.compile(
    r"\b(threads|worker_threads|external_threads|memory_limit|max_memory|temp_directory|\w*arrow\w*"
    r"|disabled_\w+|debug_\w+|python_\w+|lock_configuration|enable_external_access|allowed_\w+)\b",
    re.IGNORECASE,
)
_CATALOG = re.compile(
    r"\b(?:duckdb_\w+|pragma_\w+\s*\(|information_schema\s*\.|sqlite_(?:temp_)?(?:master|schema)\b"
    r"|pg_(?!typeof\b)\w+|current_(?:schemas?|setting|database|catalog)\s*\()",
    re.IGNORECASE,
)
_INSIDE = re.compile(r"\(\s*(?:SHOW|DESCRIBE|DESC)\s+[\w\"(]", re.IGNORECASE)
_STATEFUL = re.compile(
    r"\b(nextval|currval)\s*\(|\b(?:store_rejects|rejects_\w+)\s*:?="
    r"|\bAS\s*(?:(?:NOT\s+)?MATERIALIZED\s*)?\(\s*(INSERT|UPDATE|DELETE|MERGE)\b",
    re.IGNORECASE,
)
_HEAD = re.compile(r"^\s*(?:--[^\n]*\n\s*)*")
_UNCOMMON = (
    *("--", "/*", "show", "describe", "duckdb_", "pragma_", "information_schema"),
    *("sqlite_", "pg_", "current_", "nextval", "currval", "rejects"),
    *("insert", "update", "delete", "merge"),
)
"""What a SELECT has in it, in lower case, that is more than a query, or may seem to be."""
_DESC_OF_QUERY = re.compile(r"(?:^|\()\s*desc\b")  # as opposed to that of an ORDER BY
_EXPLAINED = re.compile(r"\s*EXPLAIN\s+(ANALY[ZS]E\s+)?(?!\()", re.IGNORECASE)
_DEALLOCATED = re.compile(r"\s*DEALLOCATE\b", re.IGNORECASE)
_COPIED = re.compile(r"\s*COPY\b.*?\bTO\s+'", re.IGNORECASE | re.DOTALL)
_KINDS_BY_NOUN = {
    StatementKind.DEFINITION: ("VIEW", "MACRO", "FUNCTION", "TYPE"),
    StatementKind.WRITE: ("TABLE", "INDEX"),
    StatementKind.OWN: ("SCHEMA", "SEQUENCE", "DATABASE", "COMMENT"),
}


def parse_statements(con: duckdb.DuckDBPyConnection, text: str) -> list[ParsedStatement]:
    """The statements in `text`.

    Raises:
        QueryError: it does not parse; with DuckDB's message.
        UnsupportedError: minishark does not run one of them; says what to do instead.
    """
    try:
        found = con.extract_statements(text)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    if not found:
        raise QueryError("There is no statement in the text.")
    try:
        typed = [(item.type, item.query.strip().rstrip(";").rstrip()) for item in found]
    except ValueError as error:  # a kind of statement that DuckDB's Python client has no name for
        raise UnsupportedError("minishark does not run statements of this kind.") from error
    return [
        replace(statement, parsed=item) if statement.kind is StatementKind.QUERY else statement
        for item, (type_, sql) in zip(found, typed, strict=True)
        for statement in [_parsed(con, type_, sql)]
    ]


def _parsed(
    con: duckdb.DuckDBPyConnection, type_: duckdb.StatementType, sql: str
) -> ParsedStatement:
    if type_ == _TYPES.SELECT and _is_common(from_first_word(sql)):
        return ParsedStatement(StatementKind.QUERY, sql)
    tokens = sql_tokens(sql)
    bare = _without_comments(sql, tokens)
    kind = _KINDS.get(type_)
    if kind is StatementKind.QUERY and _SHOWN.match(bare):
        return ParsedStatement(StatementKind.SHOW, sql)
    code = _code(tokens) if kind is StatementKind.QUERY else ""
    if _CATALOG.search(code):
        return ParsedStatement(StatementKind.SHOW, sql)
    if _INSIDE.search(code):
        return ParsedStatement(StatementKind.SHOW, sql)
    if found := _STATEFUL.search(code):
        return ParsedStatement(StatementKind.WRITE if found[2] else StatementKind.HERE, sql)
    if kind is StatementKind.HERE and _NOUN.match(bare):
        kind, type_ = None, _TYPES.ALTER  # DuckDB takes a DEFAULT or PIVOT in it for several
    if kind is StatementKind.SETTING:
        return ParsedStatement(_setting_kind(bare), sql)
    if kind is not None:
        return ParsedStatement(kind, sql)
    if _DEALLOCATED.match(bare):
        return ParsedStatement(StatementKind.DEALLOCATE, sql)
    if type_ == _TYPES.EXPLAIN:
        return _explained(con, bare)
    if type_ in (_TYPES.CREATE, _TYPES.DROP, _TYPES.ALTER):
        found = _NOUN.match(bare)
        noun = found[1].upper() if found else bare.split()[0].upper()
        if noun == "TYPE" and _ENUM_OF_QUERY.match(bare):
            return ParsedStatement(StatementKind.ENUM, sql)
        for kind, nouns in _KINDS_BY_NOUN.items():
            if noun in nouns:
                return ParsedStatement(kind, sql)
        raise UnsupportedError(f"minishark does not run {type_.name} {noun}.")
    if type_ == _TYPES.COPY:
        out = _COPIED.match(bare)
        return ParsedStatement(StatementKind.COPY_OUT if out else StatementKind.WRITE, sql)
    name = type_.name.replace("_", " ")
    instead = _INSTEAD.get(type_.name, "it runs SELECT, CREATE, INSERT, UPDATE, DELETE and COPY")
    raise UnsupportedError(f"minishark does not run {name} statements: {instead}.")


def _is_common(sql: str) -> bool:
    """Whether a SELECT needs no closer look, which takes half as long as to parse it."""
    text = sql.lower()
    return not (any(word in text for word in _UNCOMMON) or _DESC_OF_QUERY.search(text))


def _setting_kind(sql: str) -> StatementKind:
    if _VARIABLE.match(sql):
        return StatementKind.VARIABLE
    return StatementKind.OWN if _USED.match(sql) else StatementKind.SETTING


def _explained(con: duckdb.DuckDBPyConnection, sql: str) -> ParsedStatement:
    found = _EXPLAINED.match(sql)
    if found is None:
        raise UnsupportedError("Write EXPLAIN or EXPLAIN ANALYZE without options in parentheses.")
    (inner,) = parse_statements(con, sql[found.end() :])
    if inner.kind is not StatementKind.QUERY:
        raise UnsupportedError("EXPLAIN shows how queries run; this is none.")
    return ParsedStatement(StatementKind.EXPLAIN, inner.sql, bool(found[1]))


def is_shown(sql: str) -> bool:
    """Whether a statement describes the catalog or a query: SHOW, DESCRIBE."""
    return _SHOWN.match(sql) is not None


def changes_reserved_setting(sql: str) -> bool:
    """Whether a SET or RESET concerns what minishark chooses itself."""
    return _RESERVED.search(sql) is not None


def from_first_word(sql: str) -> str:
    """A text without the lines of comments and the spaces before it."""
    return _HEAD.sub("", sql, count=1)


def sql_tokens(sql: str) -> list[Token]:
    """The tokens of a text, without comments."""
    encoded = sql.encode()  # DuckDB counts bytes
    marks = [*duckdb.tokenize(sql), (len(encoded), None)]
    texts, offset = [], len(encoded[: marks[0][0]].decode())
    for (start, type_), (end, _) in itertools.pairwise(marks):
        piece = encoded[start:end].decode()
        texts.append((offset, piece.strip(), type_))
        offset += len(piece)
    return [token for token in texts if token[2] != duckdb.token_type.comment]


def _without_comments(sql: str, tokens: Sequence[Token] | None = None) -> str:
    """`sql` from its first word on."""
    tokens = sql_tokens(sql) if tokens is None else tokens
    return sql[tokens[0][0] :] if tokens else sql


def _code(tokens: Sequence[Token]) -> str:
    """Tokens without string constants."""
    return " ".join(t for _, t, type_ in tokens if type_ != duckdb.token_type.string_const)


def fill_parameters(sql: str, values: Sequence[Any] | Mapping[str, Any]) -> str:
    """`sql` with a literal for each `?`, `$1` or `$name`.

    Args:
        sql: one statement.
        values: for `?` and `$1` a sequence, for `$name` a mapping; SQL texts wrapped in `SqlText`
            are put in as they are.

    Raises:
        QueryError: a parameter has no value, or a value no parameter.
    """
    named = values if isinstance(values, Mapping) else {str(i + 1): v for i, v in enumerate(values)}
    out: list[str] = []
    used: dict[str, None] = {}
    done = position = 0
    tokens = sql_tokens(sql)
    skip = False
    for (start, text, type_), following in zip(tokens, [*tokens[1:], None], strict=True):
        if skip:
            skip = False
            continue
        if type_ != duckdb.token_type.operator or text[:1] not in ("?", "$"):
            continue
        if text == "?" and following and following[0] == start + 1 and following[1].isdigit():
            name, end, skip = following[1], start + 1 + len(following[1]), True
        elif text.startswith("?"):
            position += 1
            name, end = str(position), start + 1
        else:
            name = text[1:] or (following[1] if following else "")
            end = start + 1 + len(name)
            skip = not text[1:]
        out += [sql[done:start], _literal(name, named)]
        used[name] = None
        done = end
    extra = [name for name in named if name not in used]
    if extra:
        raise QueryError(f"There is no parameter for the value of {', '.join(extra)}.")
    return "".join([*out, sql[done:]])


class SqlText(str):
    """SQL that stands for itself among parameter values."""

    __slots__ = ()


def _literal(name: str, values: Mapping[str, Any]) -> str:
    if name not in values:
        raise QueryError(f"Parameter {name} has no value; pass one in params.")
    value = values[name]
    if isinstance(value, SqlText):
        return f"({value})"
    try:
        return f"({duckdb.ConstantExpression(value)})"
    except (duckdb.Error, TypeError) as error:
        raise QueryError(f"Parameter {name}: {error}") from error


_PREPARED = re.compile(r'\s*PREPARE\s+("(?:[^"]|"")+"|\w+)\s*(?:\([^)]*\))?\s+AS\s+', re.IGNORECASE)
_EXECUTED = re.compile(
    r'\s*(?:EXECUTE|DEALLOCATE(?:\s+PREPARE)?)\s+("(?:[^"]|"")+"|\w+)\s*', re.IGNORECASE
)


def prepared_name_and_statement(sql: str) -> tuple[str, str]:
    """The name and the statement of a PREPARE."""
    bare = _without_comments(sql)
    found = _PREPARED.match(bare)
    if found is None:
        raise QueryError("Write PREPARE name AS statement.")
    return found[1].strip('"').lower(), bare[found.end() :]


def executed_name_and_values(sql: str) -> tuple[str, Sequence[SqlText] | Mapping[str, SqlText]]:
    """The name and the arguments of an EXECUTE or DEALLOCATE."""
    bare = _without_comments(sql)
    found = _EXECUTED.match(bare)
    if found is None:
        raise QueryError("Write EXECUTE name(arguments).")
    inside = bare[found.end() :].strip()
    arguments = split_arguments(inside[1:-1]) if inside.startswith("(") else []
    named = [re.match(r"(\w+)\s*:?=\s*(.*)", a, re.DOTALL) for a in arguments]
    if arguments and all(named):
        return found[1].strip('"').lower(), {n[1]: SqlText(n[2]) for n in named if n}
    return found[1].strip('"').lower(), [SqlText(a) for a in arguments]


def split_arguments(text: str) -> list[str]:
    """The parts of `text` between commas that stand in no brackets."""
    parts, depth, first = [], 0, 0
    for start, token, type_ in sql_tokens(text):
        if type_ != duckdb.token_type.operator:
            continue
        for offset, char in enumerate(token):
            depth += (char in "([{") - (char in ")]}")
            if char == "," and depth == 0:
                parts.append(text[first : start + offset].strip())
                first = start + offset + 1
    last = text[first:].strip()
    return [*parts, last] if last else parts


def copied_query_and_target(sql: str) -> tuple[str, str]:
    """Of a COPY ... TO: the query or table, and everything after TO."""
    bare = _without_comments(sql)
    tokens = sql_tokens(bare)
    depth = 0
    for start, text, type_ in tokens:
        if type_ == duckdb.token_type.operator:
            depth += text.count("(") - text.count(")")
        elif depth == 0 and text.upper() == "TO":
            source = bare[:start].strip()[len("COPY") :].strip()
            columns = re.fullmatch(r'("(?:[^"]|"")+"|[\w.]+)\s*\((.*)\)', source, re.DOTALL)
            query = f"SELECT {columns[2]} FROM {columns[1]}" if columns else f"FROM {source}"
            query = source[1:-1] if source.startswith("(") else query
            return query, bare[start + len("TO") :].strip()
    raise QueryError("Write COPY (query) TO 'file'.")
