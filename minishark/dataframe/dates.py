"""Date patterns: Spark's letters -> DuckDB's strftime format."""

from __future__ import annotations

import re

from minishark.errors import OptionError

_LETTERS = {
    "yyyy": "%Y",
    "yy": "%y",
    "MMMM": "%B",
    "MMM": "%b",
    "MM": "%m",
    "M": "%-m",
    "dd": "%d",
    "d": "%-d",
    "D": "%-j",
    "DDD": "%j",
    "HH": "%H",
    "H": "%-H",
    "hh": "%I",
    "h": "%-I",
    "mm": "%M",
    "m": "%-M",
    "ss": "%S",
    "s": "%-S",
    "SSS": "%g",
    "SSSSSS": "%f",
    "a": "%p",
    "EEEE": "%A",
    "E": "%a",
    "EEE": "%a",
}
_PARTS = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z']+)")


def date_pattern(pattern: str) -> str:
    """A Spark pattern ("dd.MM.yyyy") as a strftime format; one with % is returned unchanged."""
    if "%" in pattern:
        return pattern
    return "".join(_part(part) for part in _PARTS.finditer(pattern))


def _part(part: re.Match[str]) -> str:
    if part["quoted"] is not None:
        return part["quoted"].replace("''", "'") or "'"
    if part["other"] is not None:
        return part["other"]
    letters = part["letters"]
    if letters not in _LETTERS:
        raise OptionError(
            f"The letters {letters!r} of a pattern of dates have no counterpart in DuckDB; "
            "write a pattern with percent signs, such as '%d.%m.%Y'."
        )
    return _LETTERS[letters]
