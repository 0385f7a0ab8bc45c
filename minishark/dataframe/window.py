"""Window: over which rows a function is computed for each row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from minishark.dataframe.column import Column, column_or_name, combine, separated
from minishark.dataframe.names import CamelCase

UNBOUNDED = 1 << 62
"""A distance that no row is away."""


@dataclass(frozen=True, slots=True)
class WindowSpec(CamelCase):
    """Which rows belong together, in which order, and how many around each row; made by `Window`.

    Attributes:
        partition: the columns that rows have in common.
        order: the sort keys.
        frame: SQL's ROWS or RANGE BETWEEN; empty for SQL's own choice: up to the current row and
            its peers if there is an order, else all.
    """

    partition: tuple[Column, ...] = ()
    order: tuple[Column, ...] = ()
    frame: str = ""

    def partition_by(self, *columns: Any) -> WindowSpec:
        """Rows belong together that are equal in these columns."""
        return replace(self, partition=_columns(columns))

    def order_by(self, *columns: Any) -> WindowSpec:
        """Rows are sorted by these columns."""
        return replace(self, order=_columns(columns))

    def rows_between(self, start: int, end: int) -> WindowSpec:
        """Only the rows from `start` to `end`, counted from the current one (0)."""
        return replace(self, frame=_frame("ROWS", start, end))

    def range_between(self, start: int, end: int) -> WindowSpec:
        """Only the rows whose sort key lies from `start` to `end` away from the current one's."""
        return replace(self, frame=_frame("RANGE", start, end))

    def definition(self) -> Column:
        """What stands in the parentheses of OVER."""
        parts: list[Any] = []
        if self.partition:
            parts += ["PARTITION BY ", *separated(self.partition)]
        if self.order:
            parts += [" ORDER BY " if parts else "ORDER BY "]
            for index, key in enumerate(self.order):
                parts += [", "] * (index > 0) + [key, f" {key.order}".rstrip()]
        if self.frame:
            parts += [f" {self.frame}" if parts else self.frame]
        return combine(*parts, bare=True)


class Window:
    """Where windows start.

    Examples:
        >>> from minishark import Window, functions as F
        >>> df = session.create_dataframe([("a", 1), ("a", 5), ("b", 2)], ["k", "v"])
        >>> share = F.col("v") / F.sum("v").over(Window.partition_by("k"))
        >>> df.select("k", "v", F.round(share, 2).alias("share")).order_by("k", "v").collect()
        [Row(k='a', v=1, share=0.17), Row(k='a', v=5, share=0.83), Row(k='b', v=2, share=1.0)]
    """

    unbounded_preceding = unboundedPreceding = -UNBOUNDED  # noqa: N815 - PySpark's name
    unbounded_following = unboundedFollowing = UNBOUNDED  # noqa: N815
    current_row = currentRow = 0  # noqa: N815

    @staticmethod
    def partition_by(*columns: Any) -> WindowSpec:
        """Rows belong together that are equal in these columns."""
        return WindowSpec().partition_by(*columns)

    @staticmethod
    def order_by(*columns: Any) -> WindowSpec:
        """All rows, sorted by these columns."""
        return WindowSpec().order_by(*columns)

    @staticmethod
    def rows_between(start: int, end: int) -> WindowSpec:
        """The rows from `start` to `end`, counted from the current one (0)."""
        return WindowSpec().rows_between(start, end)

    @staticmethod
    def range_between(start: int, end: int) -> WindowSpec:
        """The rows whose sort key lies from `start` to `end` away from the current one's."""
        return WindowSpec().range_between(start, end)

    partitionBy = partition_by  # noqa: N815
    orderBy = order_by  # noqa: N815
    rowsBetween = rows_between  # noqa: N815
    rangeBetween = range_between  # noqa: N815


def _columns(columns: tuple[Any, ...]) -> tuple[Column, ...]:
    if len(columns) == 1 and isinstance(columns[0], list | tuple):
        columns = tuple(columns[0])
    return tuple(column_or_name(item) for item in columns)


def _frame(unit: str, start: int, end: int) -> str:
    return f"{unit} BETWEEN {_bound(start)} AND {_bound(end)}"


def _bound(distance: int) -> str:
    side = "PRECEDING" if distance < 0 else "FOLLOWING"
    if abs(distance) >= UNBOUNDED:
        return f"UNBOUNDED {side}"
    return f"{abs(distance)} {side}" if distance else "CURRENT ROW"
