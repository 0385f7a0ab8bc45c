"""minishark: SQL over replicated in-memory Arrow partitions, scheduled by Sparrow.

>>> import minishark
>>> with minishark.connect() as session:
...     session.create_table("lineitem", "lineitem/*.parquet", partition_by="l_orderkey")
...     session.sql("SELECT count(*) FROM lineitem").show()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minishark import errors

if TYPE_CHECKING:
    from minishark.dataframe import DataFrame
    from minishark.session import Session, connect

__version__ = "0.1.0"
__all__ = ["DataFrame", "Session", "__version__", "connect", "errors"]


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used, so that `minishark --help` answers at once."""
    if name in ("Session", "connect"):
        from minishark import session  # noqa: PLC0415

        return getattr(session, name)
    if name == "DataFrame":
        from minishark.dataframe import DataFrame  # noqa: PLC0415

        return DataFrame
    raise AttributeError(f"module 'minishark' has no attribute {name!r}")
