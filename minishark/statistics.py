"""Statistics of a table: rows, bytes and, per column, nulls, distinct values and bounds.

Plain data that every layer may import; `minishark.worker.statistics` measures it.
"""

from __future__ import annotations

import msgspec


class ColumnStatistics(msgspec.Struct, frozen=True):
    """Statistics of one column.

    Attributes:
        null_fraction: the share of rows that are NULL, from 0 to 1.
        distinct: the estimated number of distinct values that are not NULL; None where it was not
            measured (nested types).
        minimum: the smallest value as text, such that CAST(text AS the column's type) gives it;
            None where there is none or it was not measured.
        maximum: the largest value, likewise.
    """

    null_fraction: float = 0.0
    distinct: int | None = None
    minimum: str | None = None
    maximum: str | None = None


class TableStatistics(msgspec.Struct, frozen=True):
    """Statistics of a table.

    Attributes:
        bytes: the size in memory, in bytes.
        columns: each column's statistics, in the table's order of columns.
    """

    rows: int
    bytes: int
    columns: tuple[ColumnStatistics, ...]
