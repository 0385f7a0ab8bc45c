"""The texts of the 22 queries, and selections of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from minishark.cli.tpch.locations import queries_folder
from minishark.errors import OptionError

QUERY_COUNT = 22
_RANGE = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")


def parse_selection(text: str, most: int = QUERY_COUNT) -> tuple[int, ...]:
    """Parse a list of numbers of queries such as "1,3,5-7"; keeps the order, drops duplicates."""
    numbers: dict[int, None] = {}
    for item in text.split(","):
        numbers.update(dict.fromkeys(_parse_range(item.strip(), most)))
    return tuple(numbers)


def load_queries(numbers: Sequence[int]) -> dict[int, str]:
    folder = queries_folder()
    return {
        _checked(number): (folder / f"q{number:02}.sql").read_text(encoding="utf-8")
        for number in numbers
    }


def _parse_range(item: str, most: int) -> range:
    match = _RANGE.fullmatch(item)
    if match is None:
        raise OptionError(f"{item!r} is no query number or range; write for example 1,3,5-7.")
    first = _checked(int(match[1]), most)
    last = _checked(int(match[2] or match[1]), most)
    if last < first:
        raise OptionError(f"The range {item} of queries is empty; write {last}-{first}.")
    return range(first, last + 1)


def _checked(number: int, most: int = QUERY_COUNT) -> int:
    if not 1 <= number <= most:
        raise OptionError(f"There is no query {number}: choose from 1 to {most}.")
    return number
