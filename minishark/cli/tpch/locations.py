"""Locations of the queries, the sample and generated data, in a checkout or a wheel.

A wheel has `queries/` and `data/sample/` inside the package (setup.py maps them); a checkout has
them at the top level, beside the package.
"""

from __future__ import annotations

import os
from decimal import Decimal
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]


def queries_folder() -> Path:
    return _resource("queries", PACKAGE.parent / "queries")


def sample_folder() -> Path:
    """The folder of the tiny sample: one Parquet file per table."""
    return _resource("sample", PACKAGE.parent / "data" / "sample")


def default_data_folder() -> Path:
    """The default folder of generated data: `data/tpch` in a checkout, else the user's cache."""
    checkout = PACKAGE.parent
    if (checkout / "setup.py").is_file() and (checkout / "data" / "sample").is_dir():
        return checkout / "data" / "tpch"
    # The XDG specification: relative paths must be ignored.
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    return cache / "minishark" / "tpch"


def scale_folder(root: Path, scale: float) -> Path:
    """The folder of one scale's data; it exists only when it is complete."""
    return root / f"scale-{scale_text(scale)}"


def scale_text(scale: float) -> str:
    """A scale without exponent or trailing zeros: 1, 0.1, 100."""
    return f"{Decimal(repr(scale)).normalize():f}"


def _resource(name: str, in_checkout: Path) -> Path:
    packaged = PACKAGE / "_resources" / name
    return packaged if packaged.is_dir() else in_checkout
