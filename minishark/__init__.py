"""minishark: distributed SQL and DataFrames on DuckDB executors and a Sparrow scheduler.

>>> import minishark
>>> with minishark.connect() as session:
...     session.create_table("numbers", session.range(10), partition_by="id")
...     session.sql("SELECT sum(id)::INTEGER AS total FROM numbers").collect()
[Row(total=45)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minishark import errors
from minishark.session.lazy import imported

if TYPE_CHECKING:
    from minishark import functions, types
    from minishark.dataframe import Column, DataFrame, Row, Window
    from minishark.session.connect import connect
    from minishark.session.session import Session

__version__ = "0.2.0"
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
    "types",
]


def load_ipython_extension(shell: Any) -> None:
    """Make `%sql` and `%%sql` known in a notebook: `%load_ext minishark`."""
    from minishark.adapters import notebook  # noqa: PLC0415 - needs IPython, which notebooks have

    notebook.load(shell)


def __dir__() -> list[str]:
    """All public names, also those that `__getattr__` has not imported yet."""
    return sorted({*globals(), *__all__, *filter(_is_error, vars(errors))})


def __getattr__(name: str) -> Any:
    """Import the engine when it is first used, so that `minishark --help` answers at once."""
    if name == "connect":
        return imported("minishark.session.connect").connect
    if name == "Session":
        return imported("minishark.session.session").Session
    if name in ("Column", "DataFrame", "Row", "Window"):
        return getattr(imported("minishark.dataframe"), name)
    if name in ("functions", "types"):
        return imported(f"minishark.{name}")
    if _is_error(name):
        return getattr(errors, name)
    raise AttributeError(f"module 'minishark' has no attribute {name!r}")


def _is_error(name: str) -> bool:
    """Whether a class of `minishark.errors` is called so: they are all here, too."""
    kind = vars(errors).get(name)
    return isinstance(kind, type) and issubclass(kind, Exception)
