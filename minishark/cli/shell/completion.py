"""Completion of SQL and dot-commands. Pure, except that `path_suggestions` lists folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_WORD = re.compile(r"\w*$")
_QUALIFIED = re.compile(r'(?:"([^"]+)"|(\w+))\.\w*$')
_OPEN_TEXT = re.compile(r"'([^'\n]*)$")
_BEFORE_TABLE = re.compile(
    r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|DESCRIBE|SUMMARIZE)\s+\w*$", re.IGNORECASE
)
_ALIAS = r'\b{table}"?\s+(?:AS\s+)?{alias}\b'
_PLAIN_NAME = re.compile(r"[a-z_]\w*", re.IGNORECASE)
_SUGGESTIONS_MAX = 200


@dataclass(frozen=True, slots=True)
class Names:
    """All names that completion can offer."""

    columns: Mapping[str, Sequence[str]]  # columns by table or view
    functions: Sequence[str]
    keywords: Sequence[str]  # SQL keywords, in upper case
    commands: Mapping[str, Sequence[str]]  # by dot-command, as `Command.arguments`


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A completion."""

    text: str
    length: int  # number of characters before the cursor that it replaces
    kind: str  # "table", "column", "function", "keyword", "command" or "path"


def suggestions(before: str, after: str, names: Names) -> list[Suggestion]:
    """Completions at the cursor, between `before` and `after`, the most likely first."""
    if before.lstrip().startswith("."):
        return _command_suggestions(before.lstrip(), names)
    statement = before.rpartition(";")[2]
    if opened := _OPEN_TEXT.search(statement):
        return path_suggestions(opened[1])
    word = _word(statement)
    if qualified := _QUALIFIED.search(statement):
        return _qualified(qualified[1] or qualified[2], word, statement + after, names)
    if _BEFORE_TABLE.search(statement):
        return list(_matching(word, names.columns, "table"))
    columns = dict.fromkeys(
        column for table in _named(statement + after, names) for column in names.columns[table]
    )
    matching = list(_matching(word, list(columns), "column"))
    if word:
        keywords = names.keywords if not word.islower() else [k.lower() for k in names.keywords]
        matching += _matching(word, keywords, "keyword")
        matching += _matching(word, names.columns, "table")
        matching += _matching(word, [f"{name}(" for name in names.functions], "function")
    return matching[:_SUGGESTIONS_MAX]


def path_suggestions(typed: str) -> list[Suggestion]:
    """Files and folders whose paths start with `typed`."""
    folder, name = os.path.split(typed)
    try:
        entries = sorted(Path(folder).expanduser().iterdir())
    except OSError:
        return []
    return [
        Suggestion(entry.name + ("/" if entry.is_dir() else ""), len(name), "path")
        for entry in entries
        if entry.name.startswith(name) and (name or not entry.name.startswith("."))
    ][:_SUGGESTIONS_MAX]


def _command_suggestions(line: str, names: Names) -> list[Suggestion]:
    command, space, rest = line.partition(" ")
    if not space:
        matching = [name for name in names.commands if name.startswith(command)]
        return [Suggestion(name, len(command), "command") for name in matching]
    offered: list[Suggestion] = []
    for argument in names.commands.get(command, ()):
        match argument:
            case "*path":
                offered += path_suggestions(rest)
            case "*table":
                offered += _matching(_word(rest), names.columns, "table")
            case "*statement":
                offered += suggestions(rest, "", names)
            case word if word.startswith(rest):
                offered.append(Suggestion(word, len(rest), "command"))
    return offered


def _qualified(qualifier: str, word: str, statement: str, names: Names) -> list[Suggestion]:
    """The columns after `table.` or `alias.`."""
    for table, columns in names.columns.items():
        alias = _ALIAS.format(table=re.escape(table), alias=re.escape(qualifier))
        if table.lower() == qualifier.lower() or re.search(alias, statement, re.IGNORECASE):
            return list(_matching(word, columns, "column"))
    return []


def _named(statement: str, names: Names) -> list[str]:
    words = {word.lower() for word in re.findall(r"\w+", statement)}
    return [table for table in names.columns if table.lower() in words]


def _matching(word: str, candidates: Iterable[str], kind: str) -> Iterator[Suggestion]:
    for candidate in candidates:
        if candidate.lower().startswith(word.lower()):
            text = candidate
            if kind in ("table", "column") and not _PLAIN_NAME.fullmatch(candidate):
                text = '"' + candidate.replace('"', '""') + '"'
            yield Suggestion(text, len(word), kind)


def _word(text: str) -> str:
    word = _WORD.search(text)
    assert word is not None
    return word[0]
