"""Functions for expressions: PySpark's names where DuckDB's differ, and all of DuckDB's.

A function that is not defined here is DuckDB's: `F.levenshtein("a", "b")` is `levenshtein(a, b)` in
SQL. A text argument is a column's name and other Python values are literals; `lit("text")` is a
text literal. Functions that are defined here take text literals where columns make little sense, as
in PySpark: `F.split("path", "/")`.

>>> from minishark import functions as F
>>> session.range(3).select(F.sum("id").alias("total"), F.max(F.col("id") * 2).alias("m")).collect()
[Row(total=3, m=4)]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from minishark.model.debugging import debugging, shorten

if TYPE_CHECKING:
    from minishark.functions.public import *  # noqa: F403 - this is its public path
    from minishark.functions.table_functions import TableFunctions as TableFunctions
    from minishark.functions.table_functions import TableValued as TableValued

_OF_SESSIONS = {"TableFunctions": "table_functions", "TableValued": "table_functions"}
"""What sessions take, and which module has it."""


def __getattr__(name: str) -> Any:
    """A function, or AttributeError with the nearest names.

    All are imported when one is asked for: executors import this room for those that they run.
    """
    if name in _OF_SESSIONS:
        return getattr(import_module(f"{__name__}.{_OF_SESSIONS[name]}"), name)
    public = import_module(f"{__name__}.public")
    if "__all__" not in globals():
        names = ("__all__", *public.__all__)
        globals().update({function: getattr(public, function) for function in names})
    try:
        return globals()[name] if name in globals() else public.__getattr__(name)
    except AttributeError as error:
        if not debugging():
            shorten(error)
        raise


def __dir__() -> list[str]:
    return dir(import_module(f"{__name__}.public"))
