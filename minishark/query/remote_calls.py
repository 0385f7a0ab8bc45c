"""Files of object stores that SQL names: `FROM 's3://...'`, and calls of readers. Pure.

DuckDB can't bind these, so they are replaced by names of tables before it sees a statement, of
whatever kind. Files of this machine are found later, in DuckDB's syntax tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

import duckdb

from minishark.compiler.sql.tokens import Token, split_arguments, sql_tokens
from minishark.errors import QueryError, UnsupportedError
from minishark.expressions import quote
from minishark.sources.files import reader_of

_READERS = {
    "read_parquet": "read_parquet",
    "parquet_scan": "read_parquet",
    "read_csv": "read_csv",
    "read_csv_auto": "read_csv",
    "read_json": "read_json",
    "read_json_auto": "read_json",
    "read_ndjson": "read_json",
    "read_ndjson_auto": "read_json",
}
_OPTION = re.compile(r"(\w+)\s*:?=\s*(.*)", re.DOTALL)
_URI = re.compile(r"'([a-z][a-z0-9]*://(?:[^']|'')*)'", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RemoteFiles:
    """Files of an object store, and how a statement reads them."""

    reader: str  # DuckDB's table function
    patterns: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()  # DuckDB's names in lower case, and values as SQL

    @property
    def name(self) -> str:
        """What plans and messages call them."""
        shown = ", ".join(map(repr, self.patterns))
        return f"{self.reader}({shown if len(self.patterns) == 1 else f'[{shown}]'})"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a statement names files: from its character `first` to `last`."""

    first: int
    last: int
    files: RemoteFiles
    alias: str  # by which columns are qualified, unless an alias follows


TableOf: TypeAlias = Callable[[RemoteFiles], str]
"""Gives the name of a table that stands for files."""


def without_remote_files(sql: str, table_of: TableOf) -> str:
    """A text of SQL with tables in place of files in object stores.

    Raises:
        QueryError: a name does not tell how to read the files.
        UnsupportedError: they are not named by constants.
    """
    if "://" not in sql:
        return sql
    text, done = "", 0
    for place in _places(sql):
        alias = f" AS {quote(place.alias)}" if place.alias else ""
        text += f"{sql[done : place.first]}{quote(table_of(place.files))}{alias}"
        done = place.last
    return text + sql[done:]


def _places(sql: str) -> Iterator[_Place]:
    tokens = sql_tokens(sql)
    copies = bool(tokens) and tokens[0][1].upper() == "COPY"
    at = 0
    while at < len(tokens):
        start, text, _ = tokens[at]
        before = tokens[at - 1][1].upper() if at else ""
        uri = _uri(text)
        if uri and before in ("FROM", "JOIN") and not (copies and at < 4):
            yield _named(tokens, at, uri)
        elif text.lower() in _READERS and _follows(tokens, at + 1).startswith("("):
            end = _closing(sql, tokens, at + 1)
            arguments = split_arguments(sql[tokens[at + 1][0] + 1 : end - 1])
            if arguments and _URI.search(arguments[0]):
                at = next((i for i in range(at, len(tokens)) if tokens[i][0] >= end), len(tokens))
                alias = "" if _has_alias(tokens, at) else text
                yield _Place(start, end, _called(text, arguments), alias)
                continue
        at += 1


def _named(tokens: Sequence[Token], at: int, uri: str) -> _Place:
    start, text, _ = tokens[at]
    reader = reader_of(uri)
    if not reader:
        raise QueryError(
            f"The name {uri} does not tell how to read it: call read_parquet('...'), "
            "read_csv('...') or read_json('...')."
        )
    alias = "" if _has_alias(tokens, at + 1) else PurePosixPath(uri).stem
    return _Place(start, start + len(text), RemoteFiles(reader, (uri,)), alias)


def _called(function: str, arguments: Sequence[str]) -> RemoteFiles:
    patterns = [_uri(each) for each in split_arguments(_bare(arguments[0]))]
    options = [_OPTION.fullmatch(each) for each in arguments[1:]]
    if not all(patterns) or None in options:
        raise UnsupportedError(
            f"{function} of an object store takes a URI in quotes, or a list of some, and options "
            "as name = value."
        )
    named = tuple((found[1].lower(), found[2]) for found in options if found is not None)
    return RemoteFiles(_READERS[function.lower()], tuple(patterns), named)


def _bare(argument: str) -> str:
    """An argument without the brackets around it."""
    text = argument.strip()
    while text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        text = text[1:-1].strip()
    return text


def _uri(text: str) -> str:
    """The value of a string that is a URI; empty for all else."""
    found = _URI.fullmatch(_bare(text))
    return found[1].replace("''", "'") if found else ""


def _follows(tokens: Sequence[Token], at: int) -> str:
    return tokens[at][1] if at < len(tokens) else ""


def _has_alias(tokens: Sequence[Token], at: int) -> bool:
    if at >= len(tokens):
        return False
    _, text, type_ = tokens[at]
    return text.upper() == "AS" or type_ == duckdb.token_type.identifier


def _closing(sql: str, tokens: Sequence[Token], at: int) -> int:
    """The character after the bracket that closes the one at a token."""
    depth = 0
    for start, text, type_ in tokens[at:]:
        if type_ != duckdb.token_type.operator:
            continue
        for offset, char in enumerate(text):
            depth += (char == "(") - (char == ")")
            if char == ")" and depth == 0:
                return start + offset + 1
    return len(sql)
