"""Where queries name tables of the warehouse. Pure, but for the syntax tree, which DuckDB gives.

The planning database knows each table of the warehouse by a name without dots that mean anything,
such as `"warehouse.sales.orders"`. `renamed` puts those names into a statement's text, where
`references` or `token_references` has found tables; all rooms below see no difference to others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb

from minishark.compiler.sql.changes import place_of_target
from minishark.compiler.sql.tokens import (
    Cursor,
    Edit,
    Name,
    Token,
    edited,
    name_at,
    names_in,
    sql_tokens,
    unquoted,
)
from minishark.errors import QueryError
from minishark.model.expressions import quote

_PART = r'(?:"(?:[^"]|"")+"|[^\W\d]\w*)'
_NAME = re.compile(rf"{_PART}(?:\s*\.\s*{_PART})*")
_PARTS = re.compile(_PART)
# After these words, and after commas in what follows the lists' ones, comes a table.
_LISTS = frozenset(["FROM", "USING"])
_TABLE_WORDS = _LISTS | frozenset(
    ["JOIN", "PIVOT", "UNPIVOT", "PIVOT_WIDER", "PIVOT_LONGER", "SUMMARIZE"]
)
_LISTS_END = frozenset(
    ["SELECT", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "ORDER", "LIMIT", "SET", "VALUES"]
)
# In their brackets, FROM means another thing.
_FUNCTIONS = frozenset(["EXTRACT", "SUBSTRING", "TRIM", "OVERLAY"])


@dataclass(frozen=True, slots=True)
class At:
    """AT (VERSION => value) or AT (TIMESTAMP => value)."""

    unit: str  # VERSION or TIMESTAMP
    expression: str  # SQL of the value


Resolve: TypeAlias = Callable[[tuple[str, ...], At | None], str | None]
"""Gives the planning database's name of what a query calls so; None if it is not the warehouse's.
Names of one part are no CTEs."""

Syntax: TypeAlias = Callable[[str], Any]
"""Gives the syntax tree of a SELECT; a QueryError for other statements."""


@dataclass(frozen=True, slots=True)
class TableReference:
    """A table that a query names from character `first` to `last`."""

    first: int
    last: int
    path: tuple[str, ...]
    at: At | None
    alias: str  # SQL that follows the table's name then, if the query says no alias itself

    def edit(self, resolve: Resolve) -> str | None:
        """What comes in its place; None if it is not the warehouse's."""
        name = resolve(self.path, self.at)
        return None if name is None else f"{quote(name)}{self.alias}"


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """A column that a query names from character `first` to `last`, with three parts or more."""

    first: int
    last: int
    path: tuple[str, ...]

    def edit(self, resolve: Resolve) -> str | None:
        """The column, qualified by the table alone; None if no table of the warehouse is named."""
        for count in (3, 2):
            if len(self.path) > count and resolve(self.path[:count], None) is not None:
                return ".".join(map(quote, self.path[count - 1 :]))
        return None


References: TypeAlias = tuple[TableReference | ColumnReference, ...]
"""Where a query names what may be the warehouse's, in order."""


def references(sql: str, syntax: Syntax) -> References:
    """Where a query names tables, and columns by tables."""
    try:
        nodes = list(_nodes(syntax(sql), frozenset()))
    except QueryError:  # no SELECT, as PIVOT is none
        return token_references(sql)
    by_place: dict[int, TableReference | ColumnReference] = {}
    for node, expressions in nodes:
        first = node.get("query_location")
        if not isinstance(first, int) or first >= len(sql):  # DuckDB's "nowhere" is 2^64 - 1
            continue
        name = _NAME.match(sql, first)
        if name is None:
            continue
        path = tuple(node.get("qualified_name", {}).get("path", ()))
        if node.get("type") == "BASE_TABLE" and path:
            if len(path) > 1 or path[0].lower() not in expressions:
                by_place[first] = _table_reference(node, path, name, sql)
        elif node.get("type") == "COLUMN_REF" and len(node["column_names"]) > 2:
            by_place[first] = ColumnReference(first, name.end(), tuple(node["column_names"]))
    if "summarize" in sql.lower():  # whose name has no place in the tree
        for summarized in names_after(sql, "SUMMARIZE"):
            by_place[summarized.first] = TableReference(
                summarized.first, summarized.last, summarized.path, None, ""
            )
    return tuple(by_place[first] for first in sorted(by_place))


def token_references(sql: str) -> References:
    """Where any statement names tables, as far as tokens show that."""
    tokens = sql_tokens(sql)
    words = [*(token.word for token in tokens), ""]
    expressions = {
        unquoted(tokens[i].text).upper()
        for i, token in enumerate(tokens[:-1])
        if token.is_name and words[i + 1] == "AS" and words[i + 2][:1] == "("
    }

    def found() -> Iterator[TableReference]:
        for at in _places_of_tables(tokens):
            name = name_at(tokens, at)
            if name is None or words[name.after] == "(":  # a subquery, a call
                continue
            if len(name.path) == 1 and name.path[0].upper() in expressions:
                continue
            following = tokens[name.after].type if name.after < len(tokens) else None
            has_alias = words[name.after] == "AS" or following == duckdb.token_type.identifier
            no_alias = has_alias or words[at - 1] == "SUMMARIZE"
            alias = "" if no_alias else f" AS {quote(name.path[-1])}"
            yield TableReference(name.first, name.last, name.path, None, alias)

    return tuple(found())


def renamed(sql: str, places: References, resolve: Resolve) -> str:
    """A statement with the planning database's names of tables."""
    new = ((reference, reference.edit(resolve)) for reference in places)
    return edited(sql, (Edit(old.first, old.last, text) for old, text in new if text is not None))


def change_in_scratch(sql: str, name: str, resolve: Resolve) -> str:
    """A change of a table as the scratch database runs it.

    Args:
        sql: the statement.
        name: what the table is called there.
        resolve: gives the names of other tables.
    """
    target, has_alias = place_of_target(sql)
    alias = "" if has_alias else f" AS {quote(target.path[-1])}"
    edits = {target.first: Edit(target.first, target.last, f"{quote(name)}{alias}")}
    columns = (n for n in names_in(sql_tokens(sql)) if len(n.path) > 2)
    for other in (
        *token_references(sql),
        *(ColumnReference(column.first, column.last, column.path) for column in columns),
    ):
        if other.first not in edits:
            text = other.edit(resolve)
            if text is not None:
                edits[other.first] = Edit(other.first, other.last, text)
    return edited(sql, sorted(edits.values()))


def _places_of_tables(tokens: Sequence[Token]) -> Iterator[int]:
    """Which of the tokens are tables, or subqueries and functions in the place of these."""
    in_list = [False]  # for each open bracket, whether a table comes after a comma
    in_function = [False]
    for at, token in enumerate(tokens[:-1]):
        word, before = token.word, tokens[at - 1].word if at else ""
        if word in ("(", "[", "{"):
            in_list.append(False)
            in_function.append(before in _FUNCTIONS)
        elif word in (")", "]", "}") and len(in_list) > 1:
            in_list.pop()
            in_function.pop()
        elif word == ",":
            if in_list[-1]:
                yield at + 1
        elif not token.is_name or in_function[-1]:
            continue
        elif word in _LISTS_END:
            in_list[-1] = False
        elif word in _TABLE_WORDS and before != "DISTINCT":  # IS DISTINCT FROM
            in_list[-1] = in_list[-1] or word in _LISTS
            yield at + 1


def names_after(sql: str, *phrases: str) -> Iterator[Name]:
    """The names in a text that follow one of these, but those that begin a query."""
    tokens = sql_tokens(sql)
    for name in names_in(tokens):
        before = [[token.word for token in tokens[: name.at][-len(p.split()) :]] for p in phrases]
        is_query = tokens[name.at].word in ("SELECT", "FROM", "WITH")
        if not is_query and any(w == p.split() for w, p in zip(before, phrases, strict=True)):
            yield name


def parts(name: str) -> tuple[str, ...]:
    """The parts of a name as it is written in SQL."""
    return tuple(
        part[1:-1].replace('""', '"') if part.startswith('"') else part
        for part in _PARTS.findall(name)
    )


def _table_reference(
    node: dict[str, Any], path: tuple[str, ...], name: re.Match[str], sql: str
) -> TableReference:
    clause = node.get("at_clause")
    if clause is None:
        alias = "" if node.get("alias") else f" AS {quote(path[-1])}"
        return TableReference(name.start(), name.end(), path, None, alias)
    # The clause ends the reference: its alias stands after it.
    columns = ", ".join(map(quote, node.get("column_name_alias") or ()))
    alias = f" AS {quote(node.get('alias') or path[-1])}{f'({columns})' if columns else ''}"
    last = node["query_location"] + node["query_location_length"]
    return TableReference(name.start(), last, path, _at(sql, clause), alias)


def _at(sql: str, clause: dict[str, Any]) -> At:
    first = sql.rfind("=>", 0, clause["expr"]["query_location"] + 1) + 2
    return At(clause["unit"].upper(), Cursor(sql[first:]).until(")"))


def _nodes(
    tree: Any, expressions: frozenset[str]
) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """The nodes of a syntax tree, each with the CTEs that are in scope there, in lower case."""
    if isinstance(tree, list):
        for item in tree:
            yield from _nodes(item, expressions)
    if not isinstance(tree, dict):
        return
    if tree.get("type") == "RECURSIVE_CTE_NODE":
        expressions |= {tree["cte_name"].lower()}
    if "cte_map" in tree:
        for entry in tree["cte_map"]["map"]:  # each sees those before it, and not itself
            yield from _nodes(entry["value"], expressions)
            expressions |= {entry["key"].lower()}
    yield tree, expressions
    for key, item in tree.items():
        if key != "cte_map":
            yield from _nodes(item, expressions)
