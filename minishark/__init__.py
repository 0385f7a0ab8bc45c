"""minishark: SQL over replicated in-memory Arrow partitions, scheduled by Sparrow.

>>> import minishark
>>> with minishark.connect() as session:
...     session.create_table("numbers", session.range(10), partition_by="id")
...     session.sql("SELECT sum(id)::INTEGER AS total FROM numbers").collect()
[Row(total=45)]
"""

from __future__ import annotations

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minishark import errors

if TYPE_CHECKING:
    from minishark import functions
    from minishark.dataframe import Column, DataFrame, Row, Window
    from minishark.session import Session, connect

__version__ = "0.1.0"
__all__ = [
    "Column",
    "DataFrame",
    "Row",
    "Session",
    "Window",
    "__version__",
    "connect",
    "errors",
    "functions",
]


def load_ipython_extension(shell: Any) -> None:
    """Make `%sql` and `%%sql` known in a notebook: `%load_ext minishark`."""
    from minishark import notebook  # noqa: PLC0415 - needs IPython, which notebooks have

    notebook.load(shell)


def _imported(module: str) -> ModuleType:
    """A module, imported without looks for garbage, of which imports make none: an eighth less."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if collects:
            gc.enable()


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used, so that `minishark --help` answers at once."""
    if name in ("Session", "connect"):
        return getattr(_imported("minishark.session"), name)
    if name in ("Column", "DataFrame", "Row", "Window"):
        return getattr(_imported("minishark.dataframe"), name)
    if name == "functions":
        return _imported("minishark.functions")
    raise AttributeError(f"module 'minishark' has no attribute {name!r}")
