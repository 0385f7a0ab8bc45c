"""Compares answers to queries with LIMIT, of which ties leave some rows to choice."""

from __future__ import annotations

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.types

from minishark.query.answers import differences, output_order


def differences_but_for_ties(
    connection: duckdb.DuckDBPyConnection, text: str, expected: pa.Table, actual: pa.Table
) -> list[str]:
    """The differences between DuckDB's answer and another one, a sentence each; empty if none.

    Answers that are not equal may still both be right if the query has a LIMIT. Then the columns by
    which it orders have to be equal row by row, and all rows have to be of the answer that DuckDB
    gives without the LIMIT. Keys that are not selected can't be compared.
    """
    keys = output_order(connection, text, expected.column_names)
    found = differences(expected, actual, ordered_by=keys)
    if not found or expected.num_rows != actual.num_rows:
        return found
    whole = _without_limit(connection, text)
    if whole is None or differences(expected.slice(0, 0), actual.slice(0, 0)):
        return found
    if keys and differences(
        expected.select(list(keys)), actual.select(list(keys)), ordered_by=range(len(keys))
    ):
        return found
    return found if _surplus(connection, whole, actual) else []


def _without_limit(connection: duckdb.DuckDBPyConnection, text: str) -> str | None:
    """The query without its LIMIT and order; None if it has no LIMIT."""
    ((serialized,),) = connection.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
    tree = msgspec.json.decode(serialized)
    node = tree["statements"][0]["node"]
    if all(item["type"] != "LIMIT_MODIFIER" for item in node["modifiers"]):
        return None
    node["modifiers"] = []
    tree = msgspec.json.encode(tree).decode()
    ((whole,),) = connection.execute("SELECT json_deserialize_sql($1)", [tree]).fetchall()
    return str(whole)


def _surplus(connection: duckdb.DuckDBPyConnection, whole: str, actual: pa.Table) -> int:
    """How many rows are not of the whole answer; doubles are compared as floats."""
    names = [f"c{place}" for place in range(actual.num_columns)]
    shown = ", ".join(
        f"{name}::FLOAT" if pyarrow.types.is_float64(kind) else name
        for name, kind in zip(names, actual.schema.types, strict=True)
    )
    connection.register("found_rows", actual.rename_columns(names))
    try:
        counted = connection.execute(
            f"SELECT count(*) FROM (SELECT {shown} FROM found_rows EXCEPT ALL "
            f"SELECT {shown} FROM ({whole}) AS whole({', '.join(names)}))"
        )
        ((count,),) = counted.fetchall()
    finally:
        connection.unregister("found_rows")
    return int(count)
