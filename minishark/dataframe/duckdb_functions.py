"""DuckDB's functions: their kinds, and whether SQL text contains aggregates."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from minishark.compiler.sql.connection import aside

WINDOW_FUNCTIONS = (
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "first_value",
    "last_value",
    "nth_value",
)
"""Not listed by duckdb_functions()."""
WINDOWS_ONLY = frozenset({*WINDOW_FUNCTIONS, "lag", "lead", "fill"})  # invalid without OVER

_PREFIX = "SELECT "
_CALL = re.compile(r'(\w+|"\w+")\s*\((.*)\)', re.DOTALL)
# Classes of parse nodes that may contain aggregates without a call, or be several columns.
_HIDING = ("SUBQUERY", "WINDOW", "STAR")


@functools.cache
def described() -> dict[str, tuple[str, str]]:
    """Kind and description of DuckDB's functions for expressions."""
    with aside() as connection:
        rows = connection.execute(
            "SELECT lower(function_name), function_type, min(description) FROM duckdb_functions() "
            "WHERE function_type IN ('scalar', 'aggregate', 'macro') GROUP BY ALL ORDER BY ALL DESC"
        ).fetchall()
    windows = dict.fromkeys(WINDOW_FUNCTIONS, ("aggregate", "A window function; see over()."))
    return {name: (kind, text or f"DuckDB's {name}.") for name, kind, text in rows} | windows


def is_aggregate(name: str) -> bool:
    """Whether a function is certainly an aggregate or window function."""
    kind = described().get(name.lower(), ("",))[0]
    return kind == "aggregate" or name.lower() in WINDOWS_ONLY


@functools.cache
def is_of_rows(name: str) -> bool:
    """Whether a function is certainly scalar: no aggregate, nor a macro that may call one."""
    definitions = _definitions().get(name.lower())
    if definitions is None:
        return described().get(name.lower(), ("",))[0] == "scalar"
    return all(map(is_text_of_rows, definitions))


@functools.cache
def _definitions() -> dict[str, tuple[str, ...]]:
    """The definitions of DuckDB's built-in macros that have no overload as a function."""
    with aside() as connection:
        rows = connection.execute(
            "SELECT lower(function_name), list(macro_definition) FROM duckdb_functions() "
            "WHERE function_type IN ('macro', 'scalar') "
            "GROUP BY ALL HAVING bool_and(function_type = 'macro')"
        ).fetchall()
    return {name: tuple(definitions) for name, definitions in rows}


@functools.lru_cache(maxsize=256)
def is_text_of_rows(sql: str) -> bool:
    """Whether an expression in SQL certainly contains no aggregate."""
    parsed = _parsed(sql)
    if parsed is None:
        return False
    nodes = list(_nodes(parsed))
    names = [node["function_name"] for node in nodes if "function_name" in node]
    return not any(node.get("class") in _HIDING for node in nodes) and all(map(is_of_rows, names))


@functools.lru_cache(maxsize=256)
def single_call(sql: str, following: str) -> tuple[str, str] | None:
    """Function and arguments of an expression in SQL that is a single call."""
    # None if it is not, or if the function is certainly scalar. All text in the parentheses, such
    # as IGNORE NULLS, counts as arguments. DuckDB must parse `sql` with the `following` clause,
    # such as OVER (), as one call.
    whole = f"{sql} {following}"
    node, called = _parsed(whole), _CALL.fullmatch(sql)
    if node is None or called is None or node["class"] not in ("FUNCTION", "WINDOW"):
        return None
    place = (node["query_location"], node["query_location_length"])
    if place != (len(_PREFIX), len(whole.encode())) or is_of_rows(node["function_name"]):
        return None
    return called[1], called[2]


def _parsed(sql: str) -> Any:
    """DuckDB's parse tree of an expression; None if it is not a single one."""
    with aside() as connection:
        text = connection.execute("SELECT json_serialize_sql($1)", [_PREFIX + sql]).fetchall()[0][0]
    parsed = json.loads(text)
    if parsed["error"] or len(parsed["statements"]) != 1:
        return None
    select = parsed["statements"][0]["node"]
    items = select.get("select_list", [])
    alone = len(items) == 1 and not items[0]["alias"] and select["from_table"]["type"] == "EMPTY"
    return items[0] if alone else None


def _nodes(json_: Any) -> Iterator[dict[str, Any]]:
    if isinstance(json_, dict):
        yield json_
    children = json_.values() if isinstance(json_, dict) else json_
    for child in children:
        if isinstance(child, dict | list):
            yield from _nodes(child)
