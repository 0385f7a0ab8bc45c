"""Settings of Spark's, which PySpark programs make, and which have no effect here."""

from __future__ import annotations

import warnings


def is_ignored(name: str) -> bool:
    """Whether a setting is Spark's; warns the caller's caller of it."""
    if not name.startswith("spark."):
        return False
    warnings.warn(
        f"minishark ignores the setting {name}: arguments of minishark.connect() are its "
        "settings, and it chooses memory and partitions itself.",
        stacklevel=3,
    )
    return True
