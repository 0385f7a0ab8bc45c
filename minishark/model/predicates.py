"""What a query needs of a source's rows: columns, conditions on them, how many."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

_SHOWN_MAX = 5


class Comparison(StrEnum):
    """How a predicate compares a column with its values."""

    EQUAL = "="
    NOT_EQUAL = "<>"
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    IN = "IN"
    IS_NULL = "IS NULL"
    IS_NOT_NULL = "IS NOT NULL"


class Predicate(msgspec.Struct, frozen=True):
    """A condition on one column; rows for which it is false or NULL are not needed.

    Values are Python's, as `pyarrow.Scalar.as_py` gives them for the column's type, and not NULL.
    """

    column: str
    comparison: Comparison
    values: tuple[Any, ...] = ()  # one; several for IN; none for IS NULL and IS NOT NULL

    def __str__(self) -> str:
        shown = ", ".join(map(repr, self.values[:_SHOWN_MAX]))
        more = ", ..." if len(self.values) > _SHOWN_MAX else ""
        if self.comparison is Comparison.IN:
            return f"{self.column} IN ({shown}{more})"
        return f"{self.column} {self.comparison} {shown}".rstrip()


class Pushed(msgspec.Struct, frozen=True, kw_only=True):
    """What a query needs of a source's rows."""

    columns: tuple[str, ...] | None = None  # in this order; None for all
    predicates: tuple[Predicate, ...] = ()  # all of them have to be true
    limit: int | None = None  # any so many rows for which the predicates are true are enough

    @property
    def label(self) -> str:
        where = " AND ".join(map(str, self.predicates))
        limit = "" if self.limit is None else f" limit {self.limit}"
        return f"{f' where {where}' if where else ''}{limit}"
