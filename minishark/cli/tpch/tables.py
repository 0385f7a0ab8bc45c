"""Folders of files as tables of a session."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from minishark.compiler.sql.connection import aside
from minishark.compiler.sql.statements import reads_catalog
from minishark.compiler.sql.tokens import Token, mentioned, name_at, sql_tokens
from minishark.errors import DataError
from minishark.model.expressions import quote_text

if TYPE_CHECKING:
    from minishark.cli.console import Reporter
    from minishark.session.session import Session


_READS = ("SELECT", "FROM", "WITH", "EXPLAIN")
_LISTS = ("SHOW", "PRAGMA", "CALL")
_FILE = re.compile(r"[/*?]|\.(parquet|csv|tsv|json|jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)

_DEPTH_MAX = 4  # of folders in folders

FILES = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".ndjson")
"""What the names of files that are loaded as tables end in, with `.gz` or without."""
TABLES = {
    "region": None,
    "nation": None,
    "supplier": "s_suppkey",
    "part": "p_partkey",
    "partsupp": "ps_partkey",
    "customer": "c_custkey",
    "orders": "o_orderkey",
    "lineitem": "l_orderkey",
}
"""The column by whose hash each table is partitioned; None for one partition, on every node. So
lineitem and orders join without a shuffle. Small tables come first: errors show early."""


def find_tables(folder: Path) -> dict[str, str]:
    """The tables in a folder, by name: the path of `<table>.csv`, or a glob `<table>/*.csv`.

    Folders that have only folders are searched, too; those such as `year=2026` make one table.
    What would have the same name is called by its whole path: `a_csv`, `a_json`.

    Raises:
        DataError: it can't be read, has no tables, or two of one name.
    """
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"Can't read {folder} ({error.strerror}).") from error
    found = list(_found(entries))
    names = Counter(_name(entry).lower() for entry, _ in found)  # case makes no other table
    paths: dict[str, str] = {}
    taken: dict[str, str] = {}
    for entry, path in found:
        name = _name(entry)
        if names[name.lower()] > 1:  # a.csv and a.json are a_csv and a_json
            name = re.sub(r"\W+", "_", str(entry.relative_to(folder)))
        if other := taken.get(name.lower()):
            raise DataError(
                f"Both {other} and {path} would be the table {name}: rename one, or name "
                "files instead of the folder."
            )
        paths[name] = taken[name.lower()] = path
    if not paths:
        raise DataError(
            f"There are no tables in {folder}: files that end in {', '.join(FILES)}, "
            "or folders of such files."
        )
    return paths


def _found(entries: Iterable[Path], depth: int = 0) -> Iterator[tuple[Path, str]]:
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if path := _path_of_table(entry):
            yield entry, path
        elif entry.is_dir() and not entry.is_symlink() and depth < _DEPTH_MAX:
            with contextlib.suppress(OSError):  # one that can't be read has no tables
                yield from _found(sorted(entry.iterdir()), depth + 1)


def _name(entry: Path) -> str:
    return entry.name if entry.is_dir() else Path(entry.name.removesuffix(".gz")).stem


def is_table(path: Path) -> bool:
    """Whether a file's name says that it can be loaded."""
    return path.name.lower().removesuffix(".gz").endswith(FILES)


def _path_of_table(entry: Path) -> str:
    """The path of a file, or a glob of those in a folder; empty if they are no table."""
    if entry.is_file():
        return str(entry) if is_table(entry) else ""
    deep = "**/" if any(entry.glob("*=*/")) else ""
    endings = (f"{deep}*{ending}{packed}" for ending in FILES for packed in ("", ".gz"))
    return next((str(entry / ending) for ending in endings if any(entry.glob(ending))), "")


def load_tables(
    session: Session,
    tables: Mapping[str, str],
    reporter: Reporter,
    *,
    partitions: int | None = None,
    replicas: int,
    replace: bool = False,
) -> None:
    """Load tables (name to path, or glob) into a session, TPC-H's by their keys."""
    # `partitions` is for the partitioned ones; None for the session's default.
    for name, path in tables.items():
        reporter.step(f"Loading {name}")
        key = _key(name, path)
        session.create_table(
            name,
            path,
            partition_by=key,
            partitions=None if key is None else partitions,
            replicas=replicas,
            on_progress=reporter.progress,
            replace=replace,
        )


def default_replicas(nodes: int) -> int:
    """Two, to survive the loss of a node, or one on a single node."""
    return min(2, nodes)


def _key(name: str, path: str) -> str | None:
    """The column by which a table is partitioned: users have other tables called orders, too."""
    key = TABLES.get(name)
    if key is None:
        return None
    try:
        with aside() as connection:
            columns = connection.sql(f"FROM {quote_text(path)} LIMIT 0").columns
    except duckdb.Error:  # loading it says what is wrong
        return None
    return key if key in columns else None


def tpch_tables(folder: Path) -> dict[str, str]:
    """The eight TPC-H tables of a folder that `generate` wrote, small ones first."""
    tables = find_tables(folder)
    return {name: tables[name] for name in TABLES}


def tables_of_query(
    connection: duckdb.DuckDBPyConnection,
    text: str,
    tables: Mapping[str, str],
    earlier: str = "",
    *,
    has_others: bool = False,
) -> Mapping[str, str]:
    """The tables that a statement reads, so that only these are loaded.

    With `has_others`, what it names besides may be tables that there are already.
    """
    # All of them if it queries the catalog or names an unknown table, so that DuckDB's message can
    # suggest names. None if it does not parse. `connection` only parses; `earlier` are the
    # statements before this one, which may have made tables.
    try:
        connection.extract_statements(text)
    except duckdb.Error:
        return {}
    tokens = sql_tokens(text)
    first = next((token.word for token in tokens if token.text != "("), "")
    if (first in _LISTS or reads_catalog(text)) and not has_others:
        return tables
    try:
        written = {name.lower() for name in connection.get_table_names(text, qualified=True)}
        named = unknown = {name.lower() for name in connection.get_table_names(text)}
    except duckdb.Error:  # it binds, to tables without columns: no join has USING's
        named = {name.lower() for name in mentioned(text, tables)}
        unknown = written = set(_read_in(tokens))
    # What is in another schema is no misspelt one of these.
    unknown = unknown - {n for name in written if (own := _elsewhere(name)) for n in (own, name)}
    unknown = unknown - {name.lower() for name in tables}
    unknown = unknown.difference(mentioned(earlier, unknown))
    # DuckDB counts the files of `FROM 'x.parquet'` among the names.
    if first in _READS and not has_others and not all(map(_FILE.search, unknown)):
        return tables
    return {name: path for name, path in tables.items() if name.lower() in named}


def _read_in(tokens: Sequence[Token]) -> Iterator[str]:
    """What follows FROM and JOIN, but files."""
    for at, token in enumerate(tokens):
        if token.word in ("FROM", "JOIN") and (name := name_at(tokens, at + 1)) is not None:
            yield ".".join(name.key)


def _elsewhere(name: str) -> str:
    """The last part of a qualified name, if that is of a schema of the user's; or nothing."""
    schema, dot, own = name.rpartition(".")
    is_own = dot and '"' not in name and not _FILE.search(name) and schema != "main"
    return own if is_own and schema != "memory.main" else ""
