"""What a statement that writes names as its target, and what concerns other schemas. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = r'(?:"(?:[^"]|"")+"|\w+)'
_NAME = rf"({_PART}(?:\.{_PART})*)"
_TARGETS = tuple(
    re.compile(rf"\s*{words}\s+{_NAME}", re.IGNORECASE)
    for words in (
        r"INSERT\s+(?:OR\s+\w+\s+)?INTO",
        r"UPDATE(?:\s+ONLY)?",
        r"DELETE\s+FROM",
        r"TRUNCATE(?:\s+TABLE)?",
        r"MERGE\s+INTO",
        r"ALTER\s+TABLE(?:\s+IF\s+EXISTS)?",
        r"COPY",
        r"DROP\s+TABLE(?:\s+IF\s+EXISTS)?",
        r"CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?:IF\s+NOT\s+EXISTS\s+)?.*?\bON",
        r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?TABLE(?:\s+IF\s+NOT\s+EXISTS)?",
    )
)
_CREATED_AS = re.compile(
    rf"\s*CREATE\s+(OR\s+REPLACE\s+)?(?:TEMP(?:ORARY)?\s+)?TABLE\s+{_NAME}\s+AS\b", re.IGNORECASE
)
_WITHOUT_DATA = re.compile(r"\bWITH\s+NO\s+DATA\s*$", re.IGNORECASE)
_DROPPED = re.compile(r"\s*DROP\s+TABLE\b(\s+IF\s+EXISTS\b)?", re.IGNORECASE)
_MAIN = (["main"], ["memory"], ["memory", "main"])
"""What may stand before the name of a table of the cluster."""


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a statement writes.

    Attributes:
        name: its name, unquoted.
        is_main: whether it lies where the cluster's tables do, and not in another schema.
    """

    name: str
    is_main: bool


@dataclass(frozen=True, slots=True)
class CreatedTable:
    """A CREATE TABLE AS.

    Attributes:
        query: what stands after AS.
        replaces: whether it may replace a table.
    """

    query: str
    replaces: bool


def created_table(sql: str) -> CreatedTable | None:
    """What a CREATE TABLE AS asks for; None for other statements, and where it takes no rows."""
    found = _CREATED_AS.match(sql)
    if found is None or _WITHOUT_DATA.search(sql):
        return None
    return CreatedTable(sql[found.end() :], found[1] is not None)


def drops_table(sql: str) -> bool:
    """Whether a statement is a DROP TABLE."""
    return _DROPPED.match(sql) is not None


def may_be_missing(sql: str) -> bool:
    """Whether a DROP TABLE is content when there is no such table."""
    found = _DROPPED.match(sql)
    return found is not None and found[1] is not None


def written_target(sql: str) -> Target | None:
    """The table that a statement writes; None if that can't be told."""
    for pattern in _TARGETS:
        found = pattern.match(sql)
        if found:
            *schema, name = map(_unquoted, re.findall(_PART, found[1]))
            return Target(name, not schema or [part.lower() for part in schema] in _MAIN)
    return None


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name
