"""Statements that read nothing, which `minishark sql` answers without a session."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow as pa

from minishark.compiler.sql.connection import aside

_NOTHING = ("EMPTY", "EXPRESSION_LIST")  # no FROM, or VALUES


def constant_answer(text: str) -> pa.Table | None:
    """The answer of a single SELECT without FROM, or of VALUES; None for every other text.

    A cluster would take a second to start, and the engine half of one to be imported. What fails
    here is run once more by a session, whose errors say more.
    """
    with aside() as connection:
        try:
            if len(connection.extract_statements(text)) != 1:
                return None
            ((tree,),) = connection.execute("SELECT json_serialize_sql($1)", [text]).fetchall()
            if not _reads_nothing(json.loads(tree)):
                return None
            return connection.sql(text).to_arrow_table()
        except duckdb.Error:
            return None


def _reads_nothing(parsed: Any) -> bool:
    """Whether each SELECT in a parse tree is without FROM; False for the tree of an error."""
    match parsed:
        case {"error": True}:
            return False
        case {"from_table": {"type": kind}} if kind not in _NOTHING:
            return False
        case dict():
            return all(map(_reads_nothing, parsed.values()))
        case list():
            return all(map(_reads_nothing, parsed))
        case _:
            return True
