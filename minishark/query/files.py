"""Parquet files named in queries, as tables whose partitions are ranges of rows.

`FROM 'part-*.parquet'` and `read_parquet('...')` without options are replaced by the name of such a
table before the query is planned. A table is identified by the paths, sizes and modification times
of its files: changed files are another table. Other statements that read files run in one task.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import duckdb

from minishark.catalog import ColumnStatistics, Partition, Table, TableStatistics
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import QueryError
from minishark.expressions import quote, quote_text
from minishark.worker.outputs import BATCH_ROWS

PREFIX = "minishark_files_"
_TABLES_MAX = 64
_READERS = ("read_parquet", "parquet_scan")
_TEXT = r"'(?:[^']|'')+'"
_NAMED = re.compile(rf'{_TEXT}|"(?:[^"]|"")+"')
_CALLED = re.compile(rf"(?:{'|'.join(_READERS)})\s*\(\s*({_TEXT})\s*\)", re.IGNORECASE)

Stamp: TypeAlias = tuple[tuple[str, int, int], ...]
"""Path, size and modification time of files, in the order in which DuckDB reads them."""

_Key: TypeAlias = tuple[str, Stamp]
"""A pattern and the files that it matched."""


@dataclass(frozen=True, slots=True)
class _Reference:
    """A query names files in its text from `first` to `last`; `alias` qualifies their columns."""

    first: int
    last: int
    pattern: str
    alias: str


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A query over tables that stand for files."""

    sql: str  # its text, with the tables' names
    tables: tuple[Table, ...]  # the tables; `NamedFiles` may evict them before they are used


@dataclass(slots=True, kw_only=True)
class NamedFiles:
    """The tables that stand for files; safe to use from several threads."""

    planning: PlanningDatabase  # DuckDB, which finds files and reads their schemas
    partitions: int  # the preferred number of partitions
    _tables: OrderedDict[_Key, Table] = field(default_factory=OrderedDict)
    _keys: dict[str, _Key] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rewritten(self, sql: str) -> Rewritten | None:
        """`sql` with files replaced by tables; None if there is nothing to replace.

        Files whose parts might not add up to what DuckDB reads stay in the text.
        """
        if not sql.isascii() or "parquet" not in sql.lower():
            return None
        text, last, tables = "", 0, []
        for reference in sorted(self._references(sql), key=lambda found: found.first):
            with self._lock:
                table = self._table(reference.pattern)
            if table is None:
                continue
            tables.append(table)
            alias = f" AS {quote(reference.alias)}" if reference.alias else ""
            text += f"{sql[last : reference.first]} {quote(table.name)}{alias}"
            last = reference.last
        return Rewritten(text + sql[last:], tuple(tables)) if tables else None

    def forget(self) -> None:
        """Evict all tables: a setting changed that may say how files are read."""
        with self._lock:
            while self._tables:
                self._forget_oldest()

    def get(self, name: str) -> Table | None:
        """The table of that name, unless its files were changed or removed."""
        with self._lock:
            key = self._keys.get(name.lower())
            table = None if key is None else self._tables[key]
        if key is None or key != (key[0], self._stamp(key[0])):
            return None
        return table

    def _references(self, sql: str) -> Iterator[_Reference]:
        try:
            tree = json.loads(self.planning.syntax(sql))
        except (QueryError, json.JSONDecodeError):
            return
        expressions = _common_table_expressions(tree)
        for node in _nodes(tree):
            first, kind = node.get("query_location"), node.get("type")
            if not isinstance(first, int) or kind not in ("BASE_TABLE", "TABLE_FUNCTION"):
                continue
            found = (_NAMED if kind == "BASE_TABLE" else _CALLED).match(sql, first)
            if found is None or node.get("sample"):
                continue
            if kind == "BASE_TABLE":
                name = node["table_name"]
                if name.lower() in expressions or self.planning.has_relation(name):
                    continue
            yield _reference(node, found)

    def _table(self, pattern: str) -> Table | None:
        stamp = self._stamp(pattern)
        if not stamp:
            return None
        # One table per pattern: when new files match one, those of others stay valid.
        key = (pattern, stamp)
        table = self._tables.get(key)
        if table is None:
            table = self._measured(stamp)
            if table is None:
                return None
            self._tables[key] = table
            self._keys[table.name.lower()] = key
            self.planning.put_table(table)
            if len(self._tables) > _TABLES_MAX:
                self._forget_oldest()
        self._tables.move_to_end(key)
        return table

    def _forget_oldest(self) -> None:
        _, oldest = self._tables.popitem(last=False)
        del self._keys[oldest.name.lower()]
        self.planning.remove_table(oldest.name)

    def _stamp(self, pattern: str) -> Stamp:
        """The files that match a pattern now; none if they must not be read in parts."""
        if not pattern.lower().endswith(".parquet") or "://" in pattern or "=" in pattern:
            return ()
        try:
            files = [Path(file).absolute() for file in self.planning.glob(pattern)]
            states = [(str(file), file.stat()) for file in files]
        except (QueryError, OSError):
            return ()
        if any("=" in file for file, _ in states):  # Hive partitioning: folders are columns
            return ()
        return tuple((file, state.st_size, state.st_mtime_ns) for file, state in states)

    def _measured(self, stamp: Stamp) -> Table | None:
        """A table of files; None if their columns differ."""
        files = [file for file, _, _ in stamp]
        relations = [f"read_parquet({quote_text(file)})" for file in files]
        try:
            first, *others = [self.planning.relation_schema(relation) for relation in relations]
            counts = self.planning.count_rows(relations)
        except duckdb.Error:
            return None
        names = [column.name.lower() for column in first]
        if any(schema != first for schema in others) or "file_row_number" in names:
            return None
        ranges = row_ranges(files, counts, -(-self.partitions // len(files)))
        rows, size = sum(counts), sum(size for _, size, _ in stamp)
        partitions = tuple(
            Partition(
                index=i,
                file="",
                locations=(),
                rows=rows // len(ranges),
                bytes=size // len(ranges),
                relation=relation,
            )
            for i, relation in enumerate(ranges)
        )
        statistics = TableStatistics(rows, size, (ColumnStatistics(),) * len(first))
        name = f"{PREFIX}{next(self._numbers)}"
        return Table(
            name=name, schema=first, partitions=partitions, partition_by=(), statistics=statistics
        )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from _nodes(item)


def _common_table_expressions(tree: Any) -> set[str]:
    """The names of all CTEs, in whatever scope: they may hide files."""
    return {
        entry["key"].lower()
        for node in _nodes(tree)
        if "cte_map" in node
        for entry in node["cte_map"]["map"]
    }


def _reference(node: dict[str, Any], found: re.Match[str]) -> _Reference:
    """A reference; without an alias, DuckDB qualifies columns by the file or the function."""
    called = node["type"] == "TABLE_FUNCTION"
    literal = found[1] if called else found[0]
    quoted = literal[0]
    pattern = literal[1:-1].replace(quoted * 2, quoted)
    default = node["function"]["function_name"] if called else Path(pattern).stem
    return _Reference(*found.span(), pattern, "" if node.get("alias") else default)


ROW_NUMBER = "file_row_number"


def row_ranges(files: Sequence[str], counts: Sequence[int], parts: int) -> list[str]:
    """SQL for consecutive ranges of rows of each Parquet file, at most `parts` per file."""
    relations = []
    for file, rows in zip(files, counts, strict=True):
        read = f"read_parquet({quote_text(file)}"
        cuts = min(parts, -(-rows // BATCH_ROWS))
        if cuts <= 1:
            relations.append(f"{read})")
            continue
        ends = [rows * (i + 1) // cuts for i in range(cuts)]
        relations += [
            f"(SELECT * EXCLUDE ({ROW_NUMBER}) FROM {read}, {ROW_NUMBER} = true) "
            f"WHERE {ROW_NUMBER} >= {first} AND {ROW_NUMBER} < {last})"
            for first, last in zip([0, *ends[:-1]], ends, strict=True)
        ]
    return relations
