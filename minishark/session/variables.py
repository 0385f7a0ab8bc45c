"""Advice for a Python variable in FROM, which DuckDB's own Python API would read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

from minishark.dataframe import DataFrame
from minishark.dataframe.names import nearest

_MISSING = re.compile(r"Table with name (\w+) does not exist")
_FRAMES_MAX = 100


def missing_table_advice(message: str, tables: Iterable[str]) -> str:
    """What to do if the table that a statement lacks is elsewhere; or nothing.

    That is in another schema, or in a variable of who runs it, or it has a name like it.

    Args:
        message: why the statement did not bind.
        tables: the names of all tables.
    """
    missing = _MISSING.search(message)
    if missing is None:
        return ""
    name = missing[1]
    elsewhere = [table for table in tables if table.lower().endswith(f".{name.lower()}")]
    if elsewhere:
        return f"\n\nThere is {' and '.join(elsewhere)}: write the schema, too."
    value = _variable(name)
    if isinstance(value, DataFrame):
        return f'\n\nThe variable {name} becomes a view by {name}.create_temp_view("{name}").'
    if value is not None:
        return f'\n\nThe variable {name} becomes a table by session.create_table("{name}", {name}).'
    near = nearest(name, tables) if "Did you mean" not in message else ""
    return f"\n{near.strip()}" if near else ""


def _variable(name: str) -> Any:
    """The frame or table in a variable of that name, of the innermost caller who has one."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, as inspect's is
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return None
        if not str(frame.f_globals.get("__name__", "")).startswith("minishark."):
            value = frame.f_locals.get(name, frame.f_globals.get(name))
            if has_rows(value):
                return value
        frame = frame.f_back
    return None


def has_rows(item: Any) -> bool:
    """Whether an object is a frame or table of some library."""
    return any(hasattr(type(item), name) for name in ("__arrow_c_stream__", "__dataframe__"))
