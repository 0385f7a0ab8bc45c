"""Opens a warehouse by what `connect(warehouse=...)` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess
from minishark.sources.optional import library
from minishark.tables.warehouse.contract import Catalog

Where: TypeAlias = str | Path | Mapping[str, str]
"""A folder, the address of a REST catalog, or the properties of a catalog of PyIceberg's."""


def open_catalog(
    where: Where, access: Callable[[], StoreAccess] = lambda: FROM_ENVIRONMENT
) -> Catalog:
    """The catalog of a warehouse, which is made if `where` is a new folder.

    Args:
        where: the folder, address, or properties.
        access: how object stores are reached, asked again before each use.

    Raises:
        OptionError: `where` is no warehouse, or a library is missing.
        DataError: the folder can't be used, or the catalog does not answer.
    """
    for module in ("pyiceberg.catalog", "sqlalchemy"):
        library(module, "iceberg")
    from minishark.tables.warehouse.iceberg_catalog import open_iceberg  # noqa: PLC0415 - an extra

    return open_iceberg(where, access)
