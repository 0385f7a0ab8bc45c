"""Plots of DataFrames by other libraries."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from minishark.dataframe.actions import first_rows
from minishark.dataframe.lazy_query import LazyQuery
from minishark.dataframe.pandas_frames import pandas_frame
from minishark.errors import OptionError
from minishark.sources.optional import library

_LIBRARIES = {"pandas": ("pandas", "matplotlib"), "polars": ("polars", "altair")}
_ROWS_MAX = 1_000_000


class Plots:
    """What pandas or polars plots: `df.plot(x="a", y="b")`, `df.plot.scatter(x="a", y="b")`.

    The query runs when a plot is asked for.
    """

    def __init__(self, query: LazyQuery) -> None:
        """Of a query's rows."""
        self._query = query

    def __call__(self, *args: Any, **options: Any) -> Any:
        """A plot of pandas' default kind.

        Raises:
            OptionError: pandas and matplotlib, or polars and Altair, are not installed, or there
                are too many rows.
        """
        return self._made()(*args, **options)

    def __getattr__(self, kind: str) -> Any:
        """A kind of plot, such as `scatter`; raises as calls do."""
        if kind.startswith("_"):
            raise AttributeError(kind)
        return getattr(self._made(), kind)

    def _made(self) -> Any:
        having = (name for name, needs in _LIBRARIES.items() if all(map(find_spec, needs)))
        chosen = next(having, None)
        if chosen is None:
            raise OptionError(
                "Plots need pandas and matplotlib, or polars and Altair: pip install them."
            )
        rows = first_rows(self._query, _ROWS_MAX + 1)
        if rows.num_rows > _ROWS_MAX:
            raise OptionError(
                f"There are more than {_ROWS_MAX:,} rows, too many for a plot: aggregate them, or "
                "plot some of them, such as df.sample(0.01)."
            )
        if chosen == "pandas":
            return pandas_frame(rows).plot
        return library("polars", "polars").from_arrow(rows).plot
