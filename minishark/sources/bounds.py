"""Which files may have rows for which a predicate is true, by the bounds of their columns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from minishark.model.predicates import Comparison, Predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is known of one column of a file."""

    minimum: Any = None  # no value is smaller; None if unknown
    maximum: Any = None  # no value but NaN is larger
    nulls: int | None = None
    rows: int | None = None
    is_constant: bool = False  # all values are `minimum`, or all are NULL


def may_match(predicate: Predicate, bounds: Bounds) -> bool:
    """Whether a row of the file may make the predicate true; True where that is not sure.

    Bounds leave out NaN, which DuckDB takes for larger than all other numbers.
    """
    is_filled = bounds.rows is None or bounds.nulls is None or bounds.nulls < bounds.rows
    match predicate.comparison:
        case Comparison.IS_NULL:
            return bounds.nulls is None or bounds.nulls > 0
        case Comparison.IS_NOT_NULL:
            return is_filled
    if not is_filled:
        return False
    try:
        return any(_may_be(predicate.comparison, value, bounds) for value in predicate.values)
    except TypeError:  # values of types that don't compare
        return True


def may_match_each(predicate: Predicate, bounds: Iterable[Bounds]) -> list[bool]:
    """The same of several files, or parts of one."""
    return [may_match(predicate, of_one) for of_one in bounds]


def _may_be(comparison: Comparison, value: Any, bounds: Bounds) -> bool:
    if _is_nan(value) or _is_nan(bounds.minimum) or _is_nan(bounds.maximum):
        return True
    low, high = bounds.minimum, bounds.maximum
    # Where a bound is a number, NaN may hide among the values.
    top = None if isinstance(high, float) and not bounds.is_constant else high
    match comparison:
        case Comparison.EQUAL | Comparison.IN:
            return (low is None or low <= value) and (high is None or value <= high)
        case Comparison.NOT_EQUAL:
            return not bounds.is_constant or low is None or bool(low != value)
        case Comparison.LESS:
            return low is None or bool(low < value)
        case Comparison.LESS_OR_EQUAL:
            return low is None or bool(low <= value)
        case Comparison.GREATER:
            return top is None or bool(top > value)
        case Comparison.GREATER_OR_EQUAL:
            return top is None or bool(top >= value)
        case _:
            return True


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
