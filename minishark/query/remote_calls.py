"""Files of object stores that SQL names: `FROM 's3://...'`, and calls of readers. Pure.

DuckDB can't bind these, so they are replaced by names of tables before it sees a statement, of
whatever kind. Files of this machine are found later, in DuckDB's syntax tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeAlias

import duckdb

from minishark.compiler.sql.tokens import (
    Edit,
    Token,
    edited,
    find_calls,
    named_argument,
    split_arguments,
    sql_tokens,
)
from minishark.errors import QueryError, UnsupportedError
from minishark.model.expressions import quote
from minishark.sources.files import reader_of

LOCAL_READERS = {
    "read_parquet": "read_parquet",
    "parquet_scan": "read_parquet",
    "read_csv": "read_csv",
    "read_csv_auto": "read_csv",
    "read_json": "read_json",
    "read_json_auto": "read_json",
    "read_ndjson": "read_json",
    "read_ndjson_auto": "read_json",
}
"""The functions of DuckDB that read files, and the format of each."""

_READERS = {**LOCAL_READERS, "read_arrow": "read_arrow"}
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

    @property
    def sql(self) -> str:
        """A call that means them."""
        return (
            ", ".join([self.name[:-1], *(f"{name} = {text}" for name, text in self.options)]) + ")"
        )


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

    def edit(place: _Place) -> Edit:
        alias = f" AS {quote(place.alias)}" if place.alias else ""
        return Edit(place.first, place.last, f"{quote(table_of(place.files))}{alias}")

    return edited(sql, map(edit, _places(sql)))


def _places(sql: str) -> list[_Place]:
    tokens = sql_tokens(sql)
    places = []
    for call in find_calls(sql, _READERS):
        arguments = split_arguments(call.arguments)
        if arguments and _URI.search(arguments[0]):
            alias = "" if _has_alias(tokens, call.after) else call.function
            files = _called(call.function, arguments)
            places.append(_Place(call.first, call.last, files, alias))
    # COPY t FROM 'file' is another statement.
    begin = 4 if tokens and tokens[0].word == "COPY" else 1
    for at in range(begin, len(tokens)):
        uri = _uri(tokens[at].text)
        if uri and tokens[at - 1].word in ("FROM", "JOIN"):
            places.append(_named(tokens, at, uri))
    return sorted(places, key=lambda place: place.first)


def _named(tokens: Sequence[Token], at: int, uri: str) -> _Place:
    reader = reader_of(uri)
    if not reader:
        raise QueryError(
            f"The name {uri} does not tell how to read it: call read_parquet('...'), "
            "read_csv('...') or read_json('...')."
        )
    alias = "" if _has_alias(tokens, at + 1) else PurePosixPath(uri).stem
    return _Place(tokens[at].first, tokens[at].last, RemoteFiles(reader, (uri,)), alias)


def _called(function: str, arguments: Sequence[str]) -> RemoteFiles:
    patterns = [_uri(argument) for argument in split_arguments(_bare(arguments[0]))]
    options = [named_argument(argument) for argument in arguments[1:]]
    if not all(patterns) or not all(name for name, _ in options):
        raise UnsupportedError(
            f"{function} of an object store takes a URI in quotes, or a list of some, and options "
            "as name = value."
        )
    named = tuple((name.lower(), text) for name, text in options)
    return RemoteFiles(_READERS[function.lower()], tuple(patterns), named)


def _bare(argument: str) -> str:
    """An argument without the brackets around it."""
    text = argument.strip()
    while text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        text = text[1:-1].strip()
    return text


def _uri(text: str) -> str:
    """The value of a string that is a URI; empty for all else."""
    match = _URI.fullmatch(_bare(text))
    return match[1].replace("''", "'") if match else ""


def _has_alias(tokens: Sequence[Token], at: int) -> bool:
    if at >= len(tokens):
        return False
    token = tokens[at]
    return token.word == "AS" or bool(token.type == duckdb.token_type.identifier)
