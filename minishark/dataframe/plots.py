"""Plots of DataFrames by other libraries."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from minishark.dataframe.actions import first_rows
from minishark.dataframe.lazy_query import LazyQuery
from minishark.dataframe.pandas_frames import pandas_frame
from minishark.errors import OptionError
from minishark.sources.optional import library

_LIBRARIES = {"matplotlib": ("pandas", "matplotlib"), "altair": ("polars", "altair")}
_ROWS_MAX = 1_000_000


class Plots:
    """What pandas or polars plots: `df.plot(x="a", y="b")`, `df.plot.scatter(x="a", y="b")`.

    The query runs when a plot is asked for.
    """

    def __init__(self, query: LazyQuery) -> None:
        """Of a query's rows."""
        self._query = query

    def __call__(self, *args: Any, backend: str | None = None, **options: Any) -> Any:
        """A plot of lines, or of the `kind` that is asked for.

        Args:
            args: as pandas or polars take them.
            backend: "matplotlib", or "altair" for a chart that answers the mouse; None for the
                first of them that is installed.
            options: as `args`.

        Raises:
            OptionError: the library is not installed, or there are too many rows.
        """
        chosen = _backend(backend)
        if chosen == "altair":
            return getattr(self, options.pop("kind", "line"))(*args, backend=chosen, **options)
        return self._made(chosen)(*args, **options)

    def __getattr__(self, kind: str) -> Any:
        """What makes a kind of plot, such as `scatter`; takes and raises what `plot` does."""
        if kind.startswith("_"):
            raise AttributeError(kind)

        def drawn(*args: Any, backend: str | None = None, **options: Any) -> Any:
            made = self._made(_backend(backend))
            try:
                draw = getattr(made, kind)
            except AttributeError as error:
                raise OptionError(f"There are no plots of the kind {kind!r}: {error}.") from error
            return draw(*args, **options)

        return drawn

    def _made(self, backend: str) -> Any:
        rows = first_rows(self._query, _ROWS_MAX + 1)
        if rows.num_rows > _ROWS_MAX:
            raise OptionError(
                f"There are more than {_ROWS_MAX:,} rows, too many for a plot: aggregate them, or "
                "plot some of them, such as df.sample(0.01)."
            )
        if backend == "matplotlib":
            return pandas_frame(rows).plot
        return library("polars", "polars").from_arrow(rows).plot


def _backend(asked: str | None) -> str:
    """The library that draws."""
    if asked is not None and asked not in _LIBRARIES:
        raise OptionError(f"backend is {' or '.join(_LIBRARIES)}, not {asked!r}.")
    for name, needs in _LIBRARIES.items():
        if asked in (None, name) and all(map(find_spec, needs)):
            return name
    needed = " or ".join(
        " and ".join(needs) for name, needs in _LIBRARIES.items() if asked in (None, name)
    )
    raise OptionError(f"Plots need {needed}: pip install them.")
