"""Splits a text into statements and dot-commands. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minishark.compiler.sql.tokens import sql_tokens


@dataclass(frozen=True, slots=True)
class Entry:
    """A statement with its semicolon, or a dot-command."""

    text: str
    line: int  # the line number of its start, from 1
    is_command: bool  # whether it is a dot-command, which is a single line
    is_complete: bool = True  # False for a statement without its semicolon


def split(text: str) -> tuple[Entry, ...]:
    """The statements and dot-commands in a text, in order, without comments between them."""
    # A line that starts with a dot where a statement could start is a command. Only the last entry
    # can be incomplete.
    return tuple(_entries(text))


def is_complete(text: str) -> bool:
    return all(entry.is_complete for entry in split(text))


def _entries(text: str) -> Iterator[Entry]:
    position = 0
    while True:
        start = next((position + offset for offset, _, _ in sql_tokens(text[position:])), None)
        if start is None:
            return
        if text[start] == ".":
            end = text.find("\n", start)
            end = len(text) if end < 0 else end
            yield Entry(text[start:end].rstrip(), _line(text, start), is_command=True)
            position = end
            continue
        position, entries = _statements(text, start)
        yield from entries


def _statements(text: str, start: int) -> tuple[int, list[Entry]]:
    """The end of the statements before the next dot-command, and the statements."""
    found: list[Entry] = []
    first: int | None = None
    for offset, _, _ in sql_tokens(text[start:]):
        position = start + offset
        if text[position] == ";":
            if first is not None:
                line = _line(text, first)
                found.append(Entry(text[first : position + 1], line, is_command=False))
            first = None
        elif first is None:
            if text[position] == "." and _starts_line(text, position):
                return position, found
            first = position
    if first is not None:
        rest = text[first:].rstrip()
        found.append(Entry(rest, _line(text, first), is_command=False, is_complete=False))
    return len(text), found


def _starts_line(text: str, position: int) -> bool:
    return not text[text.rfind("\n", 0, position) + 1 : position].strip()


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
