"""The functions of SQL that give the rows of a source, and that DuckDB does not have.

`FROM iceberg_scan('folder', snapshot_id = 7)` calls the entry of that name as
`function(reach, 'folder', snapshot_id=7)`. Entries import their libraries when they are called, and
raise OptionError for arguments that they do not take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from minishark.errors import OptionError
from minishark.sources.contract import Source
from minishark.sources.files import FileSource
from minishark.sources.formats import Reach

ScanFunction: TypeAlias = Callable[..., Source]


def _iceberg(_: Reach, table: str, **options: Any) -> Source:
    from minishark.sources.iceberg import IcebergSource  # noqa: PLC0415 - an extra

    return IcebergSource(table, **options)


def _delta(_: Reach, table: str, **options: Any) -> Source:
    from minishark.sources.delta import DeltaSource  # noqa: PLC0415 - an extra

    return DeltaSource(table, **options)


def _postgres(_: Reach, dsn: str, schema: str, table: str, **options: Any) -> Source:
    from minishark.sources.postgres import PostgresSource  # noqa: PLC0415 - an extra
    from minishark.sources.postgres_server import passwords_in  # noqa: PLC0415

    if passwords_in(dsn):
        raise OptionError(
            "Events and logs show the text of queries, so it must not have a password. Put the "
            "connection string into a variable of the environment and write "
            "postgres_scan('env:NAME', ...), or use session.read.postgres."
        )
    return PostgresSource(dsn, schema, table, **options)


def _ducklake(_: Reach, lake: str, schema: str, table: str, **options: Any) -> Source:
    from minishark.sources.ducklake import DuckLakeSource  # noqa: PLC0415 - not always needed
    from minishark.sources.postgres_server import passwords_in  # noqa: PLC0415

    if passwords_in(lake):
        raise OptionError(
            "Events and logs show the text of queries, so it must not have a password: let "
            "PGPASSWORD or ~/.pgpass have it."
        )
    return DuckLakeSource(lake, schema, table, **options)


def _read_arrow(reach: Reach, files: str | list[str], **options: object) -> Source:
    patterns = [files] if isinstance(files, str) else files
    return FileSource(
        name=f"read_arrow({', '.join(map(repr, patterns))})",
        reader="read_arrow",
        find=lambda: [file for pattern in patterns for file in reach.list(pattern)],
        options={name: str(value).lower() for name, value in options.items()},
        reach=reach,
    )


SCAN_FUNCTIONS: Mapping[str, ScanFunction] = {
    "read_arrow": _read_arrow,
    "iceberg_scan": _iceberg,
    "delta_scan": _delta,
    "ducklake_scan": _ducklake,
    "postgres_scan": _postgres,
}
"""By name, in lower case."""
