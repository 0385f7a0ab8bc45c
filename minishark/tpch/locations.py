"""Where the queries, the sample and generated data lie: in a checkout, or around a wheel.

A wheel carries `queries/` and `data/sample/` as folders inside the package (setup.py maps them);
in a checkout they stand at the top level, beside the package.
"""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def queries_folder() -> Path:
    """The folder of the .sql files."""
    return _resource("queries", PACKAGE.parent / "queries")


def sample_folder() -> Path:
    """The folder of the tiny sample: one Parquet file a table."""
    return _resource("sample", PACKAGE.parent / "data" / "sample")


def default_data_folder() -> Path:
    """Where generated TPC-H data goes when nobody says otherwise.

    That is `data/tpch` in a checkout, and the user's cache folder for an installed wheel.
    """
    checkout = PACKAGE.parent
    if (checkout / "setup.py").is_file() and (checkout / "data" / "sample").is_dir():
        return checkout / "data" / "tpch"
    # The XDG specification: a path that is not absolute is to be ignored.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    return cache / "minishark" / "tpch"


def _resource(name: str, in_checkout: Path) -> Path:
    packaged = PACKAGE / "_resources" / name
    return packaged if packaged.is_dir() else in_checkout
