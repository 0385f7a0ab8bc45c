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
