"""The ORDER BY columns of a query, from DuckDB's parse tree."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import duckdb
import msgspec


def output_order(
    connection: duckdb.DuckDBPyConnection, text: str, names: Sequence[str]
) -> tuple[int, ...]:
    """Positions of the answer's columns in the top-level ORDER BY, first key first."""
    # Stops at the first key that is no column of the answer (an expression, a column that is not
    # selected, an ambiguous name): the keys before it still determine an order to check.
    # fetchall, as a pending result would block the connection.
    ((serialized,),) = connection.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
    tree = msgspec.json.decode(serialized)
    if tree["error"]:
        return ()
    modifiers = tree["statements"][0]["node"].get("modifiers", [])
    orders = [item["orders"] for item in modifiers if item["type"] == "ORDER_MODIFIER"]
    indices: list[int] = []
    for key in itertools.chain.from_iterable(orders):
        index = _output_index(key["expression"], [name.lower() for name in names])
        if index is None:
            break
        indices.append(index)
    return tuple(indices)


def _output_index(expression: dict[str, Any], names: list[str]) -> int | None:
    match expression:
        # A bare name resolves to a select alias before a table's column.
        case {"class": "COLUMN_REF", "column_names": [str(name)]} if names.count(name.lower()) == 1:
            return names.index(name.lower())
        case {"class": "CONSTANT", "literal": {"kind": "INTEGER", "text": str(position)}}:
            return int(position) - 1
        case _:
            return None
