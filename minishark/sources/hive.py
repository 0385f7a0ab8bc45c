"""Folders that are named by a key and a value, as Hive's: `day=2024-01-01/part-0.parquet`.

Keys are columns. As in DuckDB, they follow the files' own columns in the order of their names, or
replace the column of that name; the type is DATE, TIMESTAMP or BIGINT if all values have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import duckdb

from minishark.model.expressions import Column, Schema, quote, quote_text

_NULL = "__HIVE_DEFAULT_PARTITION__"
_TYPES = {
    "DATE": "TRY_CAST(v AS DATE) IS NOT NULL",
    "TIMESTAMP": "TRY_CAST(v AS TIMESTAMP) IS NOT NULL",
    # Leading zeros would be lost.
    "BIGINT": "TRY_CAST(v AS BIGINT) IS NOT NULL AND NOT regexp_matches(v, '^\\s*[+-]?0[0-9]')",
}


@dataclass(frozen=True, slots=True)
class FolderKeys:
    """The columns that folders are named by, and their values in each file."""

    columns: Schema = ()
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # by column, then by file
    literals: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the same, as SQL

    def of(self, index: int) -> FolderKeys:
        """The columns with their values in one file."""
        values = {name: [of_files[index]] for name, of_files in self.values.items()}
        literals = {name: [of_files[index]] for name, of_files in self.literals.items()}
        return FolderKeys(self.columns, values, literals)

    def schema(self, columns: Schema) -> Schema:
        """The columns of files that have these columns of their own."""
        keys = {column.name.lower(): column for column in self.columns}
        kept = tuple(keys.pop(c.name.lower(), c) for c in columns)
        return (*kept, *keys.values())

    def select(self, columns: Sequence[str], relation: str) -> str:
        """SQL for all columns of one file, of which `relation` has its own."""
        if not self.columns:
            return relation
        keys = {c.name.lower() for c in self.columns}
        parts = [quote(name) for name in columns if name.lower() not in keys]
        parts += [f"{self.literals[c.name][0]} AS {quote(c.name)}" for c in self.columns]
        return f"(SELECT {', '.join(parts)} FROM {relation})"


def folder_keys(
    connection: duckdb.DuckDBPyConnection,
    paths: Sequence[str],
    *,
    detects: bool = True,
) -> FolderKeys:
    """The keys that the folders of all files are named by; none if they differ.

    Args:
        connection: casts the values.
        paths: the files.
        detects: whether other types than VARCHAR are found out.
    """
    named = [_named(path) for path in paths]
    if not named or not named[0] or any(list(keys) != list(named[0]) for keys in named):
        return FolderKeys()
    columns, values, literals = [], {}, {}
    for key in sorted(named[0]):
        texts = [keys[key] for keys in named]
        distinct = list(dict.fromkeys(texts))
        type_ = _type(connection, distinct) if detects else "VARCHAR"
        sql = {text: _literal(text, type_) for text in distinct}
        row = connection.execute(f"SELECT {', '.join(sql.values())}").fetchall()[0]
        typed = dict(zip(sql, row, strict=True))
        columns.append(Column(key, type_))
        values[key] = [typed[text] for text in texts]
        literals[key] = [sql[text] for text in texts]
    return FolderKeys(tuple(columns), values, literals)


def _named(path: str) -> dict[str, str]:
    parts = (part.split("=") for part in path.split("/")[:-1] if part.count("=") == 1)
    return {key: unquote(value) for key, value in parts}


def _type(connection: duckdb.DuckDBPyConnection, texts: Sequence[str]) -> str:
    values = [text for text in texts if text != _NULL and text.upper() != "NULL"]
    if not values:
        return "VARCHAR"
    tests = ", ".join(f"bool_and({test})" for test in _TYPES.values())
    (holds_all,) = connection.execute(
        f"SELECT {tests} FROM (SELECT unnest($1::VARCHAR[]) AS v)", [values]
    ).fetchall()
    return next((type_ for type_, holds in zip(_TYPES, holds_all, strict=True) if holds), "VARCHAR")


def _literal(text: str, type_: str) -> str:
    if text == _NULL or (type_ != "VARCHAR" and text.upper() in ("NULL", "")):
        return f"CAST(NULL AS {type_})"
    return f"CAST({quote_text(text)} AS {type_})"
