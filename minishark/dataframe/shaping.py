"""Verbs that are composed of others: missing values, random splits, summaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Generic, TypeAlias

from minishark.dataframe.actions import to_arrow
from minishark.dataframe.column import (
    Column,
    Kind,
    call,
    case,
    column,
    combine,
    only_reference,
    value,
)
from minishark.dataframe.lazy_query import F, LazyQuery, framed, query_of
from minishark.dataframe.names import nearest, no_column
from minishark.dataframe.partitioned import cached_query
from minishark.dataframe.select import Select, is_number
from minishark.dataframe.verbs import filtered, project, with_columns
from minishark.errors import ColumnError, OptionError

Subset: TypeAlias = str | Sequence[str] | None

_STATISTICS: dict[str, Callable[[Column], Column]] = {
    "count": lambda item: call("count", item),
    "mean": lambda item: call("avg", item),
    "stddev": lambda item: call("stddev_samp", item),
    "min": lambda item: call("min", item),
    "25%": lambda item: call("quantile_cont", item, 0.25),
    "50%": lambda item: call("quantile_cont", item, 0.5),
    "75%": lambda item: call("quantile_cont", item, 0.75),
    "max": lambda item: call("max", item),
}
_OF_VALUES: dict[str, Callable[[Column], Column]] = {
    "25%": lambda item: call("quantile_disc", item, 0.25),
    "50%": lambda item: call("quantile_disc", item, 0.5),
    "75%": lambda item: call("quantile_disc", item, 0.75),
}  # quartiles that are values of the column
_FLOATS = ("FLOAT", "DOUBLE")
_OF_ALL_TYPES = ("count", "min", "max")
DESCRIBED = ("count", "mean", "stddev", "min", "max")


class MissingValues(Generic[F]):
    """`df.na`: `fillna`, `dropna` and `replace` of a DataFrame under PySpark's other names."""

    def __init__(self, frame: F) -> None:
        self._frame = frame

    def fill(self, value: Any, subset: Subset = None) -> F:
        """NULLs and NaNs replaced by a value; see `DataFrame.fillna`."""
        return self._derived(fillna(self._select, value, subset))

    def drop(self, how: str = "any", thresh: int | None = None, subset: Subset = None) -> F:
        """The rows without NULLs and NaNs; see `DataFrame.dropna`."""
        return self._derived(dropna(self._select, how, thresh, subset))

    def replace(self, to_replace: Any, value: Any = None, subset: Subset = None) -> F:
        """Values replaced by others; see `DataFrame.replace`."""
        return self._derived(replaced(self._select, to_replace, value, subset))

    @property
    def _select(self) -> Select:
        return query_of(self._frame).to_select()

    def _derived(self, select: Select) -> F:
        return framed(query_of(self._frame).derived(select), self._frame)


# Missing values


def fillna(select: Select, item: Any, subset: Subset) -> Select:
    """NULLs and NaNs replaced; `item` is a value, or a mapping of columns to values."""
    if isinstance(item, Mapping):
        if subset is not None:
            raise OptionError("fillna() takes a mapping or a subset, not both.")
        fillers = {_named(select, name): filler for name, filler in item.items()}
    else:
        fillers = dict.fromkeys(_fitting(select, item, subset), item)
    types = _types(select)
    for name, filler in fillers.items():
        _check_fits(filler, name, types[name])
    filled = {name: _filled(name, types[name], filler) for name, filler in fillers.items()}
    return with_columns(select, filled)


def dropna(select: Select, how: str, thresh: int | None, subset: Subset) -> Select:
    """The rows with enough values that are neither NULL nor NaN."""
    if how not in ("any", "all"):
        raise OptionError(f"how is 'any' or 'all', not {how!r}.")
    names, types = _listed(select, subset), _types(select)
    present = [_present(name, types[name]) for name in names]
    needed = thresh if thresh is not None else len(names) if how == "any" else 1
    if needed == len(names):
        return filtered(select, reduce(Column.__and__, present))
    counted = reduce(Column.__add__, (item.cast("INTEGER") for item in present))
    return filtered(select, counted >= needed)


def replaced(select: Select, to_replace: Any, item: Any, subset: Subset) -> Select:
    """Values replaced by others, in the columns that can hold them."""
    pairs = _pairs(to_replace, item)
    types = _types(select)
    names = {name: None for old, _ in pairs for name in _fitting(select, old, subset)}
    new = {}
    for name in names:
        fitting = [(old, instead) for old, instead in pairs if _fits(old, types[name])]
        chosen = case(column(name) == fitting[0][0], fitting[0][1])
        for old, instead in fitting[1:]:
            chosen = chosen.when(column(name) == old, instead)
        new[name] = chosen.otherwise(column(name))
    return with_columns(select, new)


def _types(select: Select) -> dict[str, str]:
    return {attribute.name: attribute.type for attribute in select.attributes}


def _named(select: Select, name: str) -> str:
    """The name as the column has it, whatever its case was typed in."""
    names = [attribute.name for attribute in select.attributes]
    folded = {item.lower(): item for item in names}
    if name.lower() not in folded:
        raise ColumnError(no_column(name, names))
    return folded[name.lower()]


def _listed(select: Select, subset: Subset) -> list[str]:
    if subset is None:
        return list(_types(select))
    return [_named(select, name) for name in ([subset] if isinstance(subset, str) else subset)]


def _fitting(select: Select, item: Any, subset: Subset) -> list[str]:
    """The columns of a value's kind; each of `subset` must be of it."""
    types = _types(select)
    names = _listed(select, subset)
    for name in names if subset is not None else ():
        _check_fits(item, name, types[name])
    fitting = [name for name in names if _fits(item, types[name])]
    if not fitting:
        raise OptionError(f"No column is of the kind of {item!r}.")
    return fitting


def _fits(item: Any, type_: str) -> bool:
    if isinstance(item, bool):
        return type_ == "BOOLEAN"
    if isinstance(item, str):
        return type_ == "VARCHAR"
    if is_number(type_) or type_ in ("BOOLEAN", "VARCHAR"):
        return is_number(type_) and hasattr(item, "__float__")
    return not hasattr(item, "__float__")


def _check_fits(item: Any, name: str, type_: str) -> None:
    if not _fits(item, type_):
        raise OptionError(f"{item!r} does not go into column {name!r} of type {type_}.")


def _filled(name: str, type_: str, item: Any) -> Column:
    fitting = value(item).cast(type_)  # the column keeps its type, as in PySpark
    if type_ not in _FLOATS:
        return call("coalesce", column(name), fitting)
    return case(_present(name, type_), column(name)).otherwise(fitting)


def _present(name: str, type_: str) -> Column:
    chosen = column(name)
    return chosen.is_not_null() & ~chosen.is_nan() if type_ in _FLOATS else chosen.is_not_null()


def _pairs(to_replace: Any, item: Any) -> list[tuple[Any, Any]]:
    if isinstance(to_replace, Mapping):
        if item is not None:
            raise OptionError("replace() takes a mapping alone, or values and replacements.")
        pairs = list(to_replace.items())
    elif isinstance(to_replace, list | tuple):
        news = item if isinstance(item, list | tuple) else [item] * len(to_replace)
        if len(news) != len(to_replace):
            raise OptionError("replace() takes as many replacements as values.")
        pairs = list(zip(to_replace, news, strict=True))
    else:
        pairs = [(to_replace, item)]
    if not pairs or any(old is None for old, _ in pairs):
        raise OptionError("replace() replaces values; fillna() replaces NULLs.")
    return pairs


# Columns to rows


def unpivot(query: LazyQuery, ids: Any, values: Any, names: tuple[str, str]) -> LazyQuery:
    """A row for each value column of each row; `names` are of the columns of names and values."""
    kept = _columns(ids)
    all_names = [attribute.name for attribute in query.to_select().attributes]
    held = [kept_one.name.lower() for kept_one in map(only_reference, kept) if kept_one]
    if values is None:
        chosen = [column(name) for name in all_names if name.lower() not in held]
    else:
        chosen = _columns(values)
    if not chosen:
        raise OptionError("unpivot() needs columns that become rows.")
    called = []
    for item in chosen:
        reference = only_reference(item)
        called.append(item.name or (reference.name if reference else ""))
    if not all(called):
        raise OptionError("unpivot() takes columns, or expressions with an alias().")
    texts = _unnested([value(name) for name in called], names[0])
    return project(query, [*kept, texts, _unnested(chosen, names[1])])


def _columns(items: Any) -> list[Column]:
    listed = items if isinstance(items, list | tuple) else [items]
    return [column(item) if isinstance(item, str) else item for item in listed]


# Random splits


def random_split(query: LazyQuery, weights: Sequence[float], seed: int | None) -> list[LazyQuery]:
    """Run a query and cache its rows, each with a random number that decides on its part."""
    import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

    if not weights or any(weight <= 0 for weight in weights):
        raise OptionError("random_split() takes positive weights.")
    rows = to_arrow(query)
    # Names may repeat in an answer, but not in a table.
    names = [f"c{index}" for index in range(rows.num_columns)]
    draws = pc.random(rows.num_rows, initializer="system" if seed is None else seed)
    cached = query.runtime.store_rows(rows.rename_columns(names).append_column("draw", draws))
    whole = cached_query(query.runtime, cached)
    select = whole.to_select()
    columns = [
        column(name).alias(called) for name, called in zip(names, rows.column_names, strict=True)
    ]
    # The last bound is exactly 1, whatever the division rounded to.
    total = float(sum(weights))
    bounds = [0.0, *itertools.accumulate(weight / total for weight in weights[:-1]), 1.0]
    draw = column("draw")
    return [
        project(whole.derived(filtered(select, (draw >= low) & (draw < high))), columns)
        for low, high in itertools.pairwise(bounds)
    ]


# Summaries


def summary(query: LazyQuery, statistics: Sequence[str], columns: Sequence[str]) -> LazyQuery:
    """A row for each statistic of columns; of all numbers and texts if none is named."""
    for name in statistics:
        if name not in _STATISTICS:
            near = nearest(name, _STATISTICS)
            offered = ", ".join(_STATISTICS)
            raise OptionError(f"There is no statistic {name!r}.{near} There are {offered}.")
    statistics = statistics or tuple(_STATISTICS)
    computed = _STATISTICS | (_OF_VALUES if query.runtime.dialect.is_sparks else {})
    select = query.to_select()
    types = _types(select)
    chosen = [_named(select, name) for name in columns] or [
        name for name, type_ in types.items() if is_number(type_) or type_ == "VARCHAR"
    ]
    items = [_unnested([value(name) for name in statistics], "summary")]
    for name in chosen:
        cells = [
            computed[statistic](column(name)).cast("VARCHAR")
            if is_number(types[name]) or statistic in _OF_ALL_TYPES
            else value(None)
            for statistic in statistics
        ]
        items.append(_unnested(cells, name))
    return project(query, items)


def _unnested(cells: Sequence[Column], name: str) -> Column:
    listed = combine("unnest(", call("list_value", *cells), ")", bare=True)
    return Column(listed.pieces, name, kind=Kind.FREE)
