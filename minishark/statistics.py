"""Statistics of a table: rows, bytes and, per column, nulls, distinct values and bounds.

Plain data that every layer may import; `minishark.worker.statistics` measures it.
"""

from __future__ import annotations

import msgspec


class ColumnStatistics(msgspec.Struct, frozen=True):
    """Statistics of one column."""

    null_fraction: float = 0.0  # the share of rows that are NULL, from 0 to 1
    # The estimated number of distinct values that are not NULL; None where it was not measured
    # (nested types).
    distinct: int | None = None
    # The smallest value as text, such that CAST(text AS the column's type) gives it; None where
    # there is none or it was not measured.
    minimum: str | None = None
    maximum: str | None = None  # the largest value, likewise


class TableStatistics(msgspec.Struct, frozen=True):
    """Statistics of a table."""

    rows: int
    bytes: int  # the size in memory, in bytes
    columns: tuple[ColumnStatistics, ...]
