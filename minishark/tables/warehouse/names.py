"""Where queries name tables of the warehouse. Pure, but for the syntax tree, which DuckDB gives.

The planning database knows each table of the warehouse by a name without dots that mean anything,
such as `"warehouse.sales.orders"`. `renamed` puts those names into a query's text; all rooms below
see no difference to other tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from minishark.expressions import quote

_PART = r'(?:"(?:[^"]|"")+"|[^\W\d]\w*)'
NAMES = rf"{_PART}(?:\s*\.\s*{_PART})*"
"""A pattern of names with any number of parts."""

_NAME = re.compile(NAMES.encode())
_PARTS = re.compile(_PART)
# After these words and after commas comes a table, in statements that are no queries.
_TABLE_WORDS = r"\b(?:FROM|JOIN|USING|PIVOT|UNPIVOT|PIVOT_WIDER|PIVOT_LONGER|SUMMARIZE)\s+|,\s*"
_REFERENCE = re.compile(rf"({_TABLE_WORDS})({_PART}(?:\s*\.\s*{_PART})+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class At:
    """AT (VERSION => value) or AT (TIMESTAMP => value)."""

    unit: str  # VERSION or TIMESTAMP
    expression: str  # SQL of the value


Resolve: TypeAlias = Callable[[tuple[str, ...], At | None], str | None]
"""Gives the planning database's name of what a query calls so; None if it is not the warehouse's.
Names of one part are no CTEs."""

Syntax: TypeAlias = Callable[[str], str]
"""Gives the syntax tree of a SELECT, as JSON; a QueryError for other statements."""


def renamed(sql: str, syntax: Syntax, resolve: Resolve) -> str:
    """A SELECT with the planning database's names of tables (QueryError if it is no SELECT)."""
    tree = json.loads(syntax(sql))
    encoded = sql.encode()  # DuckDB counts bytes
    expressions = {name.lower() for name in _common_table_expressions(tree)}
    edits: dict[int, tuple[int, bytes]] = {}
    for node in _nodes(tree):
        first = node.get("query_location")
        if not isinstance(first, int) or first >= len(encoded):  # DuckDB's "nowhere" is 2^64 - 1
            continue
        found = _NAME.match(encoded, first)
        if found is None:
            continue
        path = tuple(node.get("qualified_name", {}).get("path", ()))
        if node.get("type") == "BASE_TABLE" and path:
            if len(path) == 1 and path[0].lower() in expressions:
                continue
            name = resolve(path, _at(encoded, node.get("at_clause")))
            if name is not None:
                edits[found.start()] = _table_edit(node, path, name, found)
        elif node.get("type") == "COLUMN_REF" and len(node["column_names"]) > 2:
            edit = _column_edit(node["column_names"], found, resolve)
            if edit is not None:
                edits[found.start()] = edit
    text, last = b"", 0
    for first in sorted(edits):
        end, new = edits[first]
        text += encoded[last:first] + new
        last = end
    return (text + encoded[last:]).decode()


def renamed_anywhere(sql: str, resolve: Resolve) -> str:
    """Any statement with the planning database's names in the place of qualified ones."""

    def new(found: re.Match[str]) -> str:
        path = parts(found[2])
        name = resolve(path, None)
        return found[0] if name is None else f"{found[1]}{quote(name)} AS {quote(path[-1])}"

    return _REFERENCE.sub(new, sql)


def parts(name: str) -> tuple[str, ...]:
    """The parts of a name as it is written in SQL."""
    return tuple(
        part[1:-1].replace('""', '"') if part.startswith('"') else part
        for part in _PARTS.findall(name)
    )


def _table_edit(
    node: dict[str, Any], path: tuple[str, ...], name: str, found: re.Match[bytes]
) -> tuple[int, bytes]:
    """The end of a reference, and what comes in its place."""
    if node.get("at_clause") is None:
        alias = "" if node.get("alias") else f" AS {quote(path[-1])}"
        return found.end(), f"{quote(name)}{alias}".encode()
    columns = ", ".join(map(quote, node.get("column_name_alias") or ()))
    alias = quote(node.get("alias") or path[-1])
    text = f"{quote(name)} AS {alias}{f'({columns})' if columns else ''}"
    return node["query_location"] + node["query_location_length"], text.encode()


def _column_edit(
    names: list[str], found: re.Match[bytes], resolve: Resolve
) -> tuple[int, bytes] | None:
    """A column that is qualified by a table's whole name, by the table alone."""
    for count in (3, 2):
        if len(names) > count and resolve(tuple(names[:count]), None) is not None:
            kept = ".".join(map(quote, names[count - 1 :]))
            return found.end(), kept.encode()
    return None


def _at(sql: bytes, clause: dict[str, Any] | None) -> At | None:
    if clause is None:
        return None
    first = sql.rfind(b"=>", 0, clause["expr"]["query_location"] + 1) + 2
    depth, end = 0, first  # up to the bracket that ends the clause
    while depth >= 0 and end < len(sql):
        depth += (sql[end : end + 1] == b"(") - (sql[end : end + 1] == b")")
        end += 1
    return At(clause["unit"].upper(), sql[first : end - 1].decode().strip())


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from _nodes(item)


def _common_table_expressions(tree: Any) -> Iterator[str]:
    """The names of all CTEs, in whatever scope."""
    for node in _nodes(tree):
        if "cte_map" in node:
            for entry in node["cte_map"]["map"]:
                yield entry["key"]
