"""`df.stat`: correlations, contingency tables, frequent values, quantiles, stratified samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic

from minishark.dataframe.actions import rows, to_arrow
from minishark.dataframe.column import (
    Column,
    Kind,
    call,
    case,
    column,
    combine,
    count_of_rows,
    value,
)
from minishark.dataframe.grouped import GroupedData
from minishark.dataframe.lazy_query import F, Frame, LazyQuery, framed, query_of
from minishark.dataframe.names import CamelCase
from minishark.dataframe.randomness import rand
from minishark.dataframe.row import Row
from minishark.dataframe.select import Select
from minishark.dataframe.shaping import fillna
from minishark.dataframe.verbs import filtered, project
from minishark.errors import OptionError


class Statistics(CamelCase, Generic[F]):
    """`df.stat`: the same methods that DataFrames have under PySpark's other names.

    Examples:
        >>> df = session.range(101)
        >>> df.stat.approx_quantile("id", [0.5], 0.0)
        [50.0]
    """

    def __init__(self, frame: F) -> None:
        self._frame = frame

    def corr(self, col1: str, col2: str, method: str = "pearson") -> float | None:
        """The correlation of two columns; see `DataFrame.corr`."""
        return correlation(query_of(self._frame), col1, col2, method)

    def cov(self, col1: str, col2: str) -> float | None:
        """The sample covariance of two columns."""
        return covariance(query_of(self._frame), col1, col2)

    def crosstab(self, col1: str, col2: str) -> F:
        """How often pairs of values occur; see `DataFrame.crosstab`."""
        return framed(crosstab(query_of(self._frame), col1, col2), self._frame)

    def freq_items(self, cols: Sequence[str], support: float = 0.01) -> F:
        """Frequent values; see `DataFrame.freq_items`."""
        return framed(frequent(query_of(self._frame), cols, support), self._frame)

    def approx_quantile(
        self, col: str | Sequence[str], probabilities: Sequence[float], relative_error: float = 0.0
    ) -> list[Any]:
        """Quantiles; see `DataFrame.approx_quantile`."""
        del relative_error
        return quantiles(query_of(self._frame), col, probabilities)

    def sample_by(
        self, col: str | Column, fractions: Mapping[Any, float], seed: int | None = None
    ) -> F:
        """A stratified sample; see `DataFrame.sample_by`."""
        query = query_of(self._frame)
        sample = query.derived(sampled_by(query.to_select(), col, fractions, seed))
        return framed(sample, self._frame)


def correlation(query: LazyQuery, col1: str, col2: str, method: str) -> float | None:
    if method != "pearson":
        raise OptionError(f"corr() has no method {method!r}; there is only 'pearson'.")
    number: float | None = _aggregates(query, _of_pairs("corr", query, col1, col2))[0]
    return number


def covariance(query: LazyQuery, col1: str, col2: str) -> float | None:
    number: float | None = _aggregates(query, _of_pairs("covar_samp", query, col1, col2))[0]
    return number


def _of_pairs(function: str, query: LazyQuery, *names: str) -> Column:
    pair = [column(name) for name in names]
    if query.runtime.dialect.is_sparks:  # which takes NULL for 0
        pair = [call("coalesce", item, value(0)) for item in pair]
    return call(function, *pair, kind=Kind.GROUP)


def _aggregates(query: LazyQuery, *aggregates: Column) -> Row:
    """The one row of aggregates over all rows."""
    alone = query_of(GroupedData(frame=Frame(query), keys=()).agg(*aggregates))
    return next(iter(rows(alone, (to_arrow(alone),))))


def crosstab(query: LazyQuery, col1: str, col2: str) -> LazyQuery:
    """How often pairs of values occur: rows by the first, columns by the second."""
    called = f"{col1}_{col2}"
    texts = [call("coalesce", column(name).cast("VARCHAR"), "null") for name in (col1, col2)]
    pairs = project(query, [texts[0].alias(called), texts[1].alias("value")])
    groups = GroupedData(frame=Frame(pairs), keys=(column(called),)).pivot("value")
    counted = query_of(groups.agg(count_of_rows()))
    return counted.derived(fillna(counted.to_select(), 0, None))


def quantiles(
    query: LazyQuery, col: str | Sequence[str], probabilities: Sequence[float]
) -> list[Any]:
    """Exact quantiles of a column; a list of these lists, for several."""
    names = [col] if isinstance(col, str) else list(col)
    row = _aggregates(query, *(_quantile(name, probabilities) for name in names))
    lists = [list(values or ()) for values in row]
    return lists[0] if isinstance(col, str) else lists


def _quantile(name: str, probabilities: Sequence[float]) -> Column:
    """Exact quantiles of a column that are values of it, as a list."""
    if not all(0 <= p <= 1 for p in probabilities):
        raise OptionError("approx_quantile() takes probabilities from 0 to 1.")
    item = column(name)
    chosen = case(item.is_not_null() & ~item.cast("DOUBLE").is_nan(), item.cast("DOUBLE"))
    return call("quantile_disc", chosen, [float(p) for p in probabilities], kind=Kind.GROUP)


def frequent(query: LazyQuery, names: Sequence[str], support: float) -> LazyQuery:
    """One row: for each column, a list of the values of at least a share of the rows."""
    if not 0.0001 <= support <= 1:
        raise OptionError("freq_items() takes a support from 0.0001 to 1.")
    items = []
    for name in names:
        counts = call("histogram", column(name), kind=Kind.GROUP)
        total = call("count", column(name), kind=Kind.GROUP)
        few = combine("lambda entry_: entry_.value >= ", total * support, bare=True)
        entries = combine("list_filter(map_entries(", counts, "), ", few, ")", bare=True)
        keys = combine("list_transform(", entries, ", lambda entry_: entry_.key)", bare=True)
        items.append(keys.alias(f"{name}_freqItems"))
    return project(query, items)


def sampled_by(
    select: Select, key: Any, fractions: Mapping[Any, float], seed: int | None
) -> Select:
    """Rows with the probability that their key's value has; none of other values."""
    if not fractions or not all(0 <= share <= 1 for share in fractions.values()):
        raise OptionError("sample_by() takes fractions from 0 to 1, at least one.")
    chosen = column(key) if isinstance(key, str) else key
    shares = None
    for item, share in fractions.items():
        same = chosen.eq_null_safe(item)
        shares = case(same, share) if shares is None else shares.when(same, share)
    assert shares is not None
    return filtered(select, rand(seed) < shares.otherwise(value(0)))
