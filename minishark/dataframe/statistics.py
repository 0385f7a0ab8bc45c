"""`df.stat`: correlations, contingency tables, frequent values, quantiles, stratified samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minishark.dataframe.column import Column, Kind, call, case, column, combine, value
from minishark.dataframe.lazy_query import LazyQuery
from minishark.dataframe.names import CamelCase
from minishark.dataframe.randomness import rand
from minishark.dataframe.select import Select
from minishark.dataframe.verbs import filtered, project
from minishark.errors import OptionError

if TYPE_CHECKING:
    from minishark.dataframe.frame import DataFrame


class Statistics(CamelCase):
    """`df.stat`: the same methods that DataFrames have under PySpark's other names.

    Examples:
        >>> df = session.range(101)
        >>> df.stat.approx_quantile("id", [0.5], 0.0)
        [50.0]
    """

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame

    def corr(self, col1: str, col2: str, method: str = "pearson") -> float | None:
        """The correlation of two columns; see `DataFrame.corr`."""
        return self._frame.corr(col1, col2, method)

    def cov(self, col1: str, col2: str) -> float | None:
        """The sample covariance of two columns."""
        return self._frame.cov(col1, col2)

    def crosstab(self, col1: str, col2: str) -> DataFrame:
        """How often pairs of values occur; see `DataFrame.crosstab`."""
        return self._frame.crosstab(col1, col2)

    def freq_items(self, cols: Sequence[str], support: float = 0.01) -> DataFrame:
        """Frequent values; see `DataFrame.freq_items`."""
        return self._frame.freq_items(cols, support)

    def approx_quantile(
        self, col: str | Sequence[str], probabilities: Sequence[float], relative_error: float = 0.0
    ) -> list[Any]:
        """Quantiles; see `DataFrame.approx_quantile`."""
        return self._frame.approx_quantile(col, probabilities, relative_error)

    def sample_by(
        self, col: str | Column, fractions: Mapping[Any, float], seed: int | None = None
    ) -> DataFrame:
        """A stratified sample; see `DataFrame.sample_by`."""
        return self._frame.sample_by(col, fractions, seed)


def quantile(name: str, probabilities: Sequence[float]) -> Column:
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
