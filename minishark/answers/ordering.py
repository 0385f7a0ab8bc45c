"""Which columns of its answer a query orders by, read from DuckDB's syntax tree of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import msgspec


def output_order(
    connection: duckdb.DuckDBPyConnection, text: str, names: Sequence[str]
) -> tuple[int, ...]:
    """The answer's columns that the query's top-level ORDER BY names, first key first.

    Ends before the first key that is not simply a column of the answer (an expression, a column
    that is not selected, an ambiguous name): the keys before it must hold anyway.

    Args:
        connection: Any connection; it only parses.
        text: One SELECT statement.
        names: The names of the answer's columns.
    """
    # All rows are fetched: with a row left, the connection would refuse to do anything else.
    ((serialized,),) = connection.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
    tree = msgspec.json.decode(serialized)
    if tree["error"]:
        return ()
    indices: list[int] = []
    for key in _order_keys(tree["statements"][0]["node"]):
        index = _output_index(key["expression"], [name.lower() for name in names])
        if index is None:
            break
        indices.append(index)
    return tuple(indices)


def _order_keys(node: dict[str, Any]) -> list[dict[str, Any]]:
    modifiers = node.get("modifiers", [])
    return [
        key
        for modifier in modifiers
        if modifier["type"] == "ORDER_MODIFIER"
        for key in modifier["orders"]
    ]


def _output_index(expression: dict[str, Any], names: list[str]) -> int | None:
    match expression:
        # A bare name means the answer's column before a table's.
        case {"class": "COLUMN_REF", "column_names": [str(name)]} if names.count(name.lower()) == 1:
            return names.index(name.lower())
        case {"class": "CONSTANT", "literal": {"kind": "INTEGER", "text": str(position)}}:
            return int(position) - 1
        case _:
            return None
