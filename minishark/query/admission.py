"""What a task needs of its node's memory beside DuckDB, which keeps to its own limit.

Outputs are written as they come, and stored inputs are mapped: only a Python function holds its
task's rows, and what it makes of them. A node starts no task that would bring the sum of such needs
above what it has for queries, unless no other runs that has any.
"""

from __future__ import annotations

from minishark.compiler.physical.work import row_bytes
from minishark.expressions import Schema

_COPIES = 3
"""The rows that a function gets, those that it gives, and those as they are checked and stored."""


def function_bytes(schema: Schema, rows: float, read_bytes: float) -> int:
    """About how much memory a Python function takes for the rows of a task.

    Args:
        schema: the columns that it gets.
        rows: about how many rows.
        read_bytes: what the task reads; fewer columns of it may come to the function, but joins
            apart not more.
    """
    size = rows * row_bytes(schema)
    return int(_COPIES * (min(size, read_bytes) if read_bytes else size))
