"""Columns as a struct, and structs as JSON: what verbs and functions have in common."""

from __future__ import annotations

from typing import Any

from minishark.dataframe.column import (
    Column,
    atom,
    call,
    column_or_name,
    combine,
    flat,
    only_reference,
)
from minishark.dataframe.names import ident


def struct(*cols: Any) -> Column:
    """Columns as the fields of a struct; one without a name is called col1, col2 ..."""
    parts: list[Any] = []
    for number, item in enumerate(map(column_or_name, flat(cols)), 1):
        reference = only_reference(item)
        name = item.name or (reference.name.rpartition(".")[2] if reference else f"col{number}")
        parts += [", "] * bool(parts) + [f"{ident(name)} := ", item]
    return atom(combine("struct_pack(", *parts, ")", bare=True))


def json_text(item: Column) -> Column:
    """A value as a JSON text; fields of structs that are NULL are left out."""
    return call("json_merge_patch", "{}", call("to_json", item)).cast("VARCHAR")
