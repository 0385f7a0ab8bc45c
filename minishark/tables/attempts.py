"""Statements that change a table, run again when what they read was replaced meanwhile.

A query of another thread may find partitions lost and load the table again while a statement
changes it: what the statement has read, or the folder it writes to, is gone then. Nothing of it is
published, so it runs again on what there is now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from minishark.errors import ConflictError, PartitionsLostError
from minishark.model.catalog import Table
from minishark.tables.tables import NUMBERED

_TRIES_MAX = 4
T = TypeVar("T")


def attempted(
    find: Callable[[], Table | None],
    change: Callable[[Table], T],
    restore: Callable[[PartitionsLostError], None],
    *,
    is_alone: bool,
) -> T | None:
    """Change a table.

    Args:
        find: gives its current version; None if it can't be changed here.
        change: makes and publishes the next version, or raises and has published nothing.
        restore: loads lost partitions again, or raises.
        is_alone: whether the statement is its own transaction. Others have read the version that
            they began with, and can't go on with another one.

    Returns:
        What `change` returns; None if there is no table to change.

    Raises:
        ConflictError: the table was replaced each time.
        PartitionsLostError: partitions are lost, and can't be restored.
    """
    for tries in range(1, _TRIES_MAX + 1):
        table = find()
        if table is None:
            return None
        try:
            return change(table)
        except ConflictError:
            if tries == _TRIES_MAX or not is_alone:
                raise
        except PartitionsLostError as lost:
            is_its = lost.table == table.name or lost.table.startswith(NUMBERED)
            if tries == _TRIES_MAX or not is_its:
                raise
            # The version that was searched: there is another one when it is restored.
            restore(PartitionsLostError(table.name, lost.partitions, lost.files))
    message = "the last attempt returns or raises"
    raise AssertionError(message)
