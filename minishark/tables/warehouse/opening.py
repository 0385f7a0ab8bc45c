"""Opens a warehouse by what `connect(warehouse=...)` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess
from minishark.sources.optional import library
from minishark.tables.warehouse.contract import Catalog

Where: TypeAlias = str | Path | Mapping[str, str]
"""A folder, the address of a REST catalog or of a DuckLake, or the properties of a catalog."""

_LAKE = "ducklake:"


def open_catalog(
    where: Where, access: Callable[[], StoreAccess] = lambda: FROM_ENVIRONMENT
) -> Catalog:
    """The catalog of a warehouse, which is made if `where` is a new folder.

    Args:
        where: the folder, address, or properties: PyIceberg's, or `uri` and `data_path` of a lake.
        access: how object stores are reached, asked again before each use.

    Raises:
        OptionError: `where` is no warehouse, or a library is missing.
        DataError: the folder can't be used, or the catalog does not answer.
    """
    uri = str(where.get("uri", "") if isinstance(where, Mapping) else where)
    if uri.startswith(_LAKE):
        from minishark.tables.warehouse.ducklake import open_lake  # noqa: PLC0415 - often unused

        data_path = where.get("data_path") if isinstance(where, Mapping) else None
        return open_lake(uri.removeprefix(_LAKE), data_path, access)
    for module in ("pyiceberg.catalog", "sqlalchemy"):
        library(module, "iceberg")
    from minishark.tables.warehouse.iceberg_catalog import open_iceberg  # noqa: PLC0415 - an extra

    return open_iceberg(where, access)
