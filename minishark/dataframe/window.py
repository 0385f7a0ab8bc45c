"""Window specifications: the rows over which a function is computed for each row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from minishark.dataframe.column import Column, column_or_name, combine, flat, separated
from minishark.dataframe.names import CamelCase

UNBOUNDED = 1 << 62  # a distance that stands for no bound


@dataclass(frozen=True, slots=True)
class WindowSpec(CamelCase):
    """Partition, order and frame of a window; made by `Window`.

    Attributes:
        partition: the PARTITION BY columns.
        order: the sort keys.
        frame: ROWS or RANGE BETWEEN; empty for SQL's default: up to the current row and its peers
            if there is an order, else the whole partition.
    """

    _hidden = ("definition",)

    partition: tuple[Column, ...] = ()
    order: tuple[Column, ...] = ()
    frame: str = ""

    def partition_by(self, *columns: Any) -> WindowSpec:
        """One window partition for rows that are equal in these columns."""
        return replace(self, partition=_columns(columns))

    def order_by(self, *columns: Any) -> WindowSpec:
        """Each partition is sorted by these columns."""
        return replace(self, order=_columns(columns))

    def rows_between(self, start: int, end: int) -> WindowSpec:
        """The frame from row `start` to row `end`, relative to the current row (0)."""
        return replace(self, frame=_frame("ROWS", start, end))

    def range_between(self, start: int, end: int) -> WindowSpec:
        """The frame of rows whose sort key differs from the current row's by `start` to `end`."""
        return replace(self, frame=_frame("RANGE", start, end))

    def definition(self) -> Column:
        """The text in the parentheses of OVER."""
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
    """Makes window specifications.

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

    partition_by = partitionBy = staticmethod(WindowSpec().partition_by)  # noqa: N815
    order_by = orderBy = staticmethod(WindowSpec().order_by)  # noqa: N815
    rows_between = rowsBetween = staticmethod(WindowSpec().rows_between)  # noqa: N815
    range_between = rangeBetween = staticmethod(WindowSpec().range_between)  # noqa: N815


def _columns(columns: tuple[Any, ...]) -> tuple[Column, ...]:
    return tuple(map(column_or_name, flat(columns)))


def _frame(unit: str, start: int, end: int) -> str:
    return f"{unit} BETWEEN {_bound(start)} AND {_bound(end)}"


def _bound(distance: int) -> str:
    side = "PRECEDING" if distance < 0 else "FOLLOWING"
    if abs(distance) >= UNBOUNDED:
        return f"UNBOUNDED {side}"
    return f"{abs(distance)} {side}" if distance else "CURRENT ROW"
