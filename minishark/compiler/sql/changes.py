"""What INSERT, DELETE, UPDATE, MERGE and CREATE TABLE say, read from their tokens. Pure.

DuckDB has parsed the statement, so what is read here has the right form. Who can't do what it says
refuses that: no table in memory has partitions, none of a warehouse has keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from minishark.compiler.sql.tokens import Cursor, Name, Token, names_in, unquoted
from minishark.errors import UnsupportedError
from minishark.model.expressions import quote

_READS = frozenset(
    ("SELECT", "FROM", "TABLE", "WITH", "PIVOT", "UNPIVOT", "DESCRIBE", "SHOW", "SUMMARIZE")
)
_VERBS = ("INSERT", "DELETE", "UPDATE", "MERGE", "TRUNCATE")
_STRING = re.compile(r"'((?:[^']|'')*)'")
_UNNAMED = "_minishark_mark_source"  # the alias of a MERGE's source that has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """INSERT INTO."""

    target: tuple[str, ...]
    columns: tuple[str, ...] | None  # None for all, in the table's order
    by_name: bool
    query: str  # the rows; empty for DEFAULT VALUES
    ctes: str = ""  # a WITH clause before the statement
    alias: str = ""
    otherwise: str = ""  # REPLACE or IGNORE, after OR
    clauses: str = ""  # ON CONFLICT and RETURNING
    on_conflict: bool = False  # whether it says what becomes of rows with keys that others have
    returning: bool = False
    may_read: bool = True  # whether it may read a table, besides through macros


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """DELETE FROM, or TRUNCATE."""

    target: tuple[str, ...]
    alias: str
    using: str = ""  # other tables
    condition: str = ""  # empty for all rows
    ctes: str = ""
    returning: bool = False
    may_read: bool = True  # whether it may read other tables, besides through views and macros
    reads_itself: bool = True  # whether it may name its own table once more


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """UPDATE."""

    target: tuple[str, ...]
    alias: str
    values: tuple[tuple[str, str], ...]  # column and expression
    source: str = ""  # other tables
    condition: str = ""
    ctes: str = ""
    returning: bool = False
    may_read: bool = True  # as above
    reads_itself: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """A clause of MERGE."""

    kind: str  # MATCHED, NOT MATCHED or NOT MATCHED BY SOURCE
    condition: str  # empty for none
    action: str  # UPDATE, DELETE, INSERT or DO NOTHING
    columns: tuple[str, ...] | None = None  # that are set; None for all
    values: tuple[str, ...] | None = None  # their expressions; None for the source's columns
    by_name: bool = True  # whether the source's columns are matched by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge:
    """MERGE INTO."""

    target: tuple[str, ...]
    alias: str
    source: str  # a table or subquery, with its alias
    source_alias: str
    condition: str
    clauses: tuple[When, ...]
    ctes: str = ""
    returning: bool = False
    source_names: tuple[str, ...] = ()  # the source's columns, once they are known
    reads_itself: bool = True
    may_read = True

    @property
    def changes_alone(self) -> bool:
        """Whether rows of the table may change that have no partner."""
        return any(clause.kind == "NOT MATCHED BY SOURCE" for clause in self.clauses)

    @property
    def adds(self) -> bool:
        """Whether it may add rows."""
        return any(clause.action == "INSERT" for clause in self.clauses)


Changed: TypeAlias = Delete | Update | Merge
Change: TypeAlias = Insert | Changed


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """CREATE TABLE."""

    target: tuple[str, ...]
    replaces: bool  # OR REPLACE
    exists_ok: bool  # IF NOT EXISTS
    columns: str  # the list of columns in brackets; empty if they are the query's
    query: str  # of AS; empty for none
    has_rows: bool = True  # those of the query; False after WITH NO DATA
    partitions: tuple[str, ...] = ()  # the list of PARTITIONED BY
    order: tuple[str, ...] = ()  # the list of SORTED BY
    properties: Mapping[str, str] = field(default_factory=dict)  # of WITH


def parse_create(sql: str) -> NewTable:
    """A CREATE TABLE."""
    return read_create(Cursor(sql))


def read_create(text: Cursor) -> NewTable:
    """As `parse_create`, from the beginning of a statement."""
    text.skip("CREATE")
    replaces = text.skip("OR", "REPLACE")
    text.skip_any("TEMP", "TEMPORARY", "PERSISTENT")
    text.skip("TABLE")
    exists_ok = text.skip("IF", "NOT", "EXISTS")
    target = text.name()
    columns = text.brackets() if text.next == "(" else ""
    lists: dict[str, list[str]] = {}
    while text.next in ("PARTITIONED", "SORTED", "WITH"):
        word = text.take()
        text.skip("BY")
        lists[word] = Cursor(text.brackets()[1:-1]).parts()
    query = text.until("WITH NO DATA") if text.skip("AS") else ""
    return NewTable(
        target=target,
        replaces=replaces,
        exists_ok=exists_ok,
        columns=columns,
        query=query,
        has_rows=query != "" and text.next == "",
        partitions=(*lists.get("PARTITIONED", ()),),
        order=(*lists.get("SORTED", ()),),
        properties=dict(map(_property, lists.get("WITH", ()))),
    )


def _property(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return text_value(name.strip()), text_value(value.strip())


def text_value(text: str) -> str:
    """The value of a string, a name or a number."""
    match = _STRING.fullmatch(text)
    return match[1].replace("''", "'") if match else unquoted(text)


def parse_change(sql: str) -> Change | None:
    """A statement that changes a table's rows; None if it is none.

    Raises:
        UnsupportedError: it has a form that is not read.
    """
    return read_change(Cursor(sql))


def read_change(text: Cursor) -> Change | None:
    """As `parse_change`, from the beginning of a statement."""
    ctes = ""
    if text.next == "WITH":
        ctes = text.until(*_VERBS) + " "
    match text.take():
        case "INSERT":
            return _insert(text, ctes)
        case "DELETE" | "TRUNCATE":
            return _delete(text, ctes)
        case "UPDATE":
            return _update(text, ctes)
        case "MERGE":
            return _merge(text, ctes)
    return None


def place_of_target(sql: str) -> tuple[Name, bool]:
    """Where a statement names the table that it changes, and whether an alias follows."""
    text = Cursor(sql)
    if text.next == "WITH":
        text.until(*_VERBS)
    verb = text.take()
    if text.skip("OR"):
        text.take()
    text.skip("INTO")
    text.skip("FROM")
    text.skip("TABLE")
    target = text.here()
    text.name()
    if verb == "INSERT":
        return target, text.next == "AS"
    return target, text.alias("", "USING", "WHERE", "SET", "RETURNING") != ""


def _insert(text: Cursor, ctes: str) -> Insert:
    otherwise = text.take() if text.skip("OR") else ""
    text.skip("INTO")
    target = text.name()
    alias = text.name()[0] if text.skip("AS") else ""
    is_query = any(text.comes("(", word) for word in ("SELECT", "FROM", "WITH", "VALUES", "("))
    columns = None if is_query else text.names_in_brackets()
    by_name = text.skip("BY", "NAME")
    if not by_name:
        text.skip("BY", "POSITION")
    is_default = text.skip("DEFAULT", "VALUES")
    query = text.until("RETURNING", "ON CONFLICT DO", "ON CONFLICT (")
    conflict, returning = text.until("RETURNING"), text.until()
    return Insert(
        target=target,
        columns=columns,
        by_name=by_name,
        query="" if is_default else query,
        ctes=ctes,
        alias=alias,
        otherwise=otherwise,
        clauses=f"{conflict} {returning}".strip(),
        on_conflict=conflict != "",
        returning=returning != "",
        may_read=_may_read(text.tokens),
    )


def _may_read(tokens: Iterable[Token]) -> bool:
    return any(token.is_name and token.word in _READS for token in tokens)


def _names_again(text: Cursor, target: tuple[str, ...]) -> bool:
    """Whether it names a table of that name, or something else, more than once, without a dot."""
    tokens = [*text.tokens, Token(len(text.sql), "", None)]
    key = target[-1].lower()
    return (
        sum(named.key[-1] == key and tokens[named.after].text != "." for named in names_in(tokens))
        > 1
    )


def _delete(text: Cursor, ctes: str) -> Delete:
    text.skip("FROM")
    text.skip("TABLE")
    target, start = text.name(), text.offset
    alias = text.alias(target[-1], "USING", "WHERE", "RETURNING")
    using = text.until("WHERE", "RETURNING") if text.skip("USING") else ""
    condition = text.until("RETURNING") if text.skip("WHERE") else ""
    return Delete(
        target=target,
        alias=alias,
        using=using,
        condition=condition,
        ctes=ctes,
        returning=bool(text.next),
        may_read=bool(ctes or using) or _may_read(t for t in text.tokens if t.first >= start),
        reads_itself=_names_again(text, target),
    )


def _update(text: Cursor, ctes: str) -> Update:
    target = text.name()
    alias = text.alias(target[-1], "SET")
    text.skip("SET")
    values = tuple(map(_assignment, text.parts("FROM", "WHERE", "RETURNING")))
    source = text.until("WHERE", "RETURNING") if text.skip("FROM") else ""
    condition = text.until("RETURNING") if text.skip("WHERE") else ""
    return Update(
        target=target,
        alias=alias,
        values=values,
        source=source,
        condition=condition,
        ctes=ctes,
        returning=text.next == "RETURNING",
        may_read=bool(ctes) or _may_read(text.tokens),
        reads_itself=_names_again(text, target),
    )


def _assignment(sql: str) -> tuple[str, str]:
    text = Cursor(sql)
    if text.next == "(":
        raise UnsupportedError("Write SET a = x, b = y instead of SET (a, b) = (x, y).")
    name = text.name()[-1]
    text.skip("=")
    return name, text.until()


def _merge(text: Cursor, ctes: str) -> Merge:
    text.skip("INTO")
    target = text.name()
    alias = text.alias(target[-1], "USING")
    text.skip("USING")
    start = text.offset
    default = ""
    if text.next != "(":  # a table, a call, or a file
        default = text.name()[-1] if not text.next.startswith("'") else text.take()
    if text.next == "(":
        text.brackets()
    source_alias = text.alias(default, "ON", "USING")
    text.names_in_brackets()
    source = text.sql[start : text.offset].strip()
    if text.skip("ON"):
        condition = text.until("WHEN")
    else:
        text.skip("USING")
        names = text.names_in_brackets() or ()
        sides = (alias, source_alias or _UNNAMED)
        pairs = [" = ".join(f"{quote(side)}.{quote(name)}" for side in sides) for name in names]
        condition = " AND ".join(pairs)
    clauses = []
    while text.skip("WHEN"):
        clauses.append(_when(text))
    return Merge(
        target=target,
        alias=alias,
        source=source if source_alias else f"{source} AS {_UNNAMED}",
        source_alias=source_alias or _UNNAMED,
        condition=condition,
        clauses=tuple(clauses),
        ctes=ctes,
        returning=text.next == "RETURNING",
        reads_itself=_names_again(text, target),
    )


def _when(text: Cursor) -> When:
    kind = "NOT MATCHED" if text.skip("NOT", "MATCHED") else "MATCHED"
    text.skip("MATCHED")
    if text.skip("BY", "SOURCE"):
        kind = "NOT MATCHED BY SOURCE"
    text.skip("BY", "TARGET")
    condition = text.until("THEN") if text.skip("AND") else ""
    text.skip("THEN")
    if text.skip("DO", "NOTHING"):
        return When(kind=kind, condition=condition, action="DO NOTHING")
    action = text.take()
    if action == "DELETE":
        return When(kind=kind, condition=condition, action=action)
    if action not in ("UPDATE", "INSERT"):
        raise UnsupportedError(f"MERGE on tables of the warehouse has no {action}.")
    columns, values, by_name = _changes(text, action)
    return When(
        kind=kind,
        condition=condition,
        action=action,
        columns=columns,
        values=values,
        by_name=by_name,
    )


def _changes(
    text: Cursor, action: str
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None, bool]:
    """The columns and values of UPDATE or INSERT in a MERGE, and whether they go by name."""
    if action == "UPDATE":
        text.skip("SET")
        if text.skip("*") or text.skip("BY", "NAME"):
            return None, None, True
        if text.skip("BY", "POSITION"):
            return None, None, False
        if text.next in ("WHEN", "RETURNING", "", ";"):
            return None, None, True
        columns, values = zip(*map(_assignment, text.parts("WHEN", "RETURNING")), strict=True)
        return columns, values, True
    if text.skip("BY", "NAME"):
        text.skip("*")
        return None, None, True
    text.skip("BY", "POSITION")
    names = text.names_in_brackets()
    if text.skip("VALUES"):
        inner = Cursor(text.brackets()[1:-1])
        return names, tuple(inner.parts()), False
    text.skip("*")
    return names, None, False
