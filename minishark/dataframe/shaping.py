"""Verbs that are made of others: missing values, samples, summaries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from minishark.dataframe.actions import Actions, KeptRows, Runner
from minishark.dataframe.column import Column, Kind, call, case, column, combine, value
from minishark.dataframe.names import CamelCase, nearest
from minishark.dataframe.select import Select, is_number
from minishark.errors import ColumnError, OptionError, UnsupportedError

if TYPE_CHECKING:
    from minishark.dataframe.frame import DataFrame

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
_OF_ALL_TYPES = ("count", "min", "max")
_DESCRIBED = ("count", "mean", "stddev", "min", "max")


class Shaping(Actions):
    """Verbs of a DataFrame that are made of others."""

    if TYPE_CHECKING:

        @classmethod
        def of_kept(cls, runner: Runner, kept: KeptRows) -> DataFrame:
            """All rows that lie in the cluster."""
            ...

        @property
        def columns(self) -> list[str]:
            """The names of the columns."""
            ...

        @property
        def select_now(self) -> Select:
            """The SELECT that this stands for."""
            ...

        def derived(self, select: Select, *others: DataFrame) -> DataFrame:
            """A DataFrame of a SELECT over this one."""
            ...

        def with_columns(self, columns: Mapping[str, Any]) -> DataFrame:
            """All columns and more of them."""
            ...

        def filter(self, condition: Any) -> DataFrame:
            """The rows for which a condition holds."""
            ...

        def select(self, *columns: Any) -> DataFrame:
            """Some columns."""
            ...

    # Missing values

    @property
    def na(self) -> MissingValues:
        """`df.na.fill`, `df.na.drop` and `df.na.replace`, as in PySpark."""
        return MissingValues(self)

    def fillna(self, value: Any, subset: str | Sequence[str] | None = None) -> DataFrame:
        """NULLs, and NaNs of floats, replaced by a value.

        Args:
            value: a value for all columns of its kind (numbers, texts, booleans ...), or a mapping
                of names to values.
            subset: only these columns, which must be of the value's kind.

        Raises:
            OptionError: a value does not go with a column.
        """
        if isinstance(value, Mapping):
            if subset is not None:
                raise OptionError("fillna() takes a mapping or a subset, not both.")
            wanted = {self._named(name): item for name, item in value.items()}
        else:
            wanted = dict.fromkeys(self._fitting(value, subset), value)
        types = dict(self.dtypes)
        for name, item in wanted.items():
            _check_fits(item, name, types[name])
        return self.with_columns({n: _filled(n, types[n], item) for n, item in wanted.items()})

    def dropna(
        self,
        how: str = "any",
        thresh: int | None = None,
        subset: str | Sequence[str] | None = None,
    ) -> DataFrame:
        """The rows without NULLs, and without NaNs of floats.

        Args:
            how: "any" leaves out rows in which any value is missing, "all" those in which all are.
            thresh: instead of `how`: how many values must not be missing.
            subset: the columns that count; all, if None.
        """
        if how not in ("any", "all"):
            raise OptionError(f"how is 'any' or 'all', not {how!r}.")
        names = self._listed(subset)
        types = dict(self.dtypes)
        present = [_present(name, types[name]) for name in names]
        needed = thresh if thresh is not None else len(names) if how == "any" else 1
        if needed == len(names):
            condition = present[0]
            for item in present[1:]:
                condition = condition & item
            return self.filter(condition)
        counted = present[0].cast("INTEGER")
        for item in present[1:]:
            counted = counted + item.cast("INTEGER")
        return self.filter(counted >= needed)

    def replace(
        self, to_replace: Any, value: Any = None, subset: str | Sequence[str] | None = None
    ) -> DataFrame:
        """Values replaced by others.

        Args:
            to_replace: a value, a list of values, or a mapping of values to their replacements.
            value: the replacement, or a list of as many.
            subset: only these columns; None for all columns of the values' kind.
        """
        pairs = _pairs(to_replace, value)
        types = dict(self.dtypes)
        names = {n: None for old, _ in pairs for n in self._fitting(old, subset)}
        new = {}
        for name in names:
            fitting = [(old, item) for old, item in pairs if _fits(old, types[name])]
            chosen = case(column(name) == fitting[0][0], fitting[0][1])
            for old, item in fitting[1:]:
                chosen = chosen.when(column(name) == old, item)
            new[name] = chosen.otherwise(column(name))
        return self.with_columns(new)

    def _named(self, name: str) -> str:
        """The name as the column has it."""
        folded = {item.lower(): item for item in self.columns}
        if name.lower() not in folded:
            raise ColumnError(f"There is no column {name!r}.{nearest(name, self.columns)}")
        return folded[name.lower()]

    def _listed(self, subset: str | Sequence[str] | None) -> list[str]:
        wanted = [subset] if isinstance(subset, str) else self.columns if subset is None else subset
        return [self._named(name) for name in wanted]

    def _fitting(self, item: Any, subset: str | Sequence[str] | None) -> list[str]:
        """The columns that can hold a value: those of its kind, or all that the user named."""
        types = dict(self.dtypes)
        names = self._listed(subset)
        for name in names if subset is not None else ():
            _check_fits(item, name, types[name])
        found = [name for name in names if _fits(item, types[name])]
        if not found:
            raise OptionError(f"No column is of the kind of {item!r}.")
        return found

    # Samples

    def sample(
        self,
        fraction: float | None = None,
        seed: int | None = None,
        *,
        with_replacement: bool = False,
    ) -> DataFrame:
        """Each row with a probability of `fraction`.

        With a `seed` the choice depends on the order of the rows, so it is the same again only if
        that is: sort before. A sample runs in one task.

        Raises:
            UnsupportedError: `with_replacement`.
        """
        if with_replacement:
            raise UnsupportedError("minishark does not sample with replacement.")
        if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
            raise OptionError("sample() takes a fraction from 0 to 1.")
        text = f"bernoulli({100 * fraction:.12g}%)"
        seeded = "" if seed is None else f" REPEATABLE ({int(seed)})"
        select = self.select_now
        inner = select if select.is_bare else select.nested()
        return self.derived(replace(inner, sample=text + seeded))

    def random_split(self, weights: Sequence[float], seed: int | None = None) -> list[DataFrame]:
        """Each row in one of several DataFrames, which get parts in proportion to `weights`.

        This runs the DataFrame, and keeps its rows in the cluster until no part is needed.
        """
        import pyarrow.compute as pc  # noqa: PLC0415 - 30 ms that few processes need

        if not weights or any(weight <= 0 for weight in weights):
            raise OptionError("random_split() takes positive weights.")
        rows = self.to_arrow()
        names = [f"c{index}" for index in range(rows.num_columns)]
        draws = pc.random(rows.num_rows, initializer="system" if seed is None else seed)
        kept = self.runner.keep_rows(rows.rename_columns(names).append_column("draw", draws))
        whole = self.of_kept(self.runner, kept)
        bounds, total = [0.0], float(sum(weights))
        for weight in weights:
            bounds.append(bounds[-1] + weight / total)
        bounds[-1] = 1.0
        columns = [column(n).alias(name) for n, name in zip(names, self.columns, strict=True)]
        draw = column("draw")
        return [
            whole.filter((draw >= low) & (draw < high)).select(*columns)
            for low, high in itertools.pairwise(bounds)
        ]

    # Summaries

    def describe(self, *columns: str) -> DataFrame:
        """Count, mean, standard deviation, least and greatest value of columns, as text.

        Args:
            columns: which; all numbers and texts, if none is named.
        """
        return self._summarized(_DESCRIBED, columns)

    def summary(self, *statistics: str) -> DataFrame:
        """As `describe`, with quartiles; or just some: "count", "mean", "stddev", "25%" ..."""
        for name in statistics:
            if name not in _STATISTICS:
                near = nearest(name, _STATISTICS)
                known = ", ".join(_STATISTICS)
                raise OptionError(f"There is no statistic {name!r}.{near} There are {known}.")
        return self._summarized(statistics or tuple(_STATISTICS), ())

    def _summarized(self, statistics: Sequence[str], columns: Sequence[str]) -> DataFrame:
        types = dict(self.dtypes)
        chosen = [self._named(name) for name in columns] or [
            name for name, type_ in types.items() if is_number(type_) or type_ == "VARCHAR"
        ]
        items = [_unnested([value(name) for name in statistics], "summary")]
        for name in chosen:
            cells = [
                _STATISTICS[statistic](column(name)).cast("VARCHAR")
                if is_number(types[name]) or statistic in _OF_ALL_TYPES
                else value(None)
                for statistic in statistics
            ]
            items.append(_unnested(cells, name))
        return self.select(*items)

    # What there is not

    def hint(self, name: str, *_: Any) -> NoReturn:
        """Not needed, and refused, so that nobody believes in it.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"minishark takes no hints such as {name!r}: it decides by the sizes of tables."
        )


@dataclass(frozen=True, slots=True)
class MissingValues(CamelCase):
    """`df.na`: the methods for missing values under the names that they have there."""

    frame: Shaping

    def fill(self, value: Any, subset: str | Sequence[str] | None = None) -> DataFrame:
        """`DataFrame.fillna`."""
        return self.frame.fillna(value, subset)

    def drop(
        self,
        how: str = "any",
        thresh: int | None = None,
        subset: str | Sequence[str] | None = None,
    ) -> DataFrame:
        """`DataFrame.dropna`."""
        return self.frame.dropna(how, thresh, subset)

    def replace(
        self, to_replace: Any, value: Any = None, subset: str | Sequence[str] | None = None
    ) -> DataFrame:
        """`DataFrame.replace`."""
        return self.frame.replace(to_replace, value, subset)


def _unnested(cells: Sequence[Column], name: str) -> Column:
    return Column(
        combine("unnest(", call("list_value", *cells), ")", bare=True).pieces,
        name,
        kind=Kind.FREE,
    )


def _fits(item: Any, type_: str) -> bool:
    """Whether a value is of the kind of a column's type."""
    if isinstance(item, bool):
        return type_ == "BOOLEAN"
    if isinstance(item, str):
        return type_ == "VARCHAR"
    if is_number(type_) or type_ in ("BOOLEAN", "VARCHAR"):
        return is_number(type_) and not isinstance(item, str) and hasattr(item, "__float__")
    return not hasattr(item, "__float__")


def _check_fits(item: Any, name: str, type_: str) -> None:
    if not _fits(item, type_):
        raise OptionError(f"{item!r} does not go into column {name!r} of type {type_}.")


def _is_float(type_: str) -> bool:
    return type_ in ("FLOAT", "DOUBLE")


def _filled(name: str, type_: str, item: Any) -> Column:
    chosen = column(name)
    if not _is_float(type_):
        return call("coalesce", chosen, item)
    return case(_present(name, type_), chosen).otherwise(item)


def _present(name: str, type_: str) -> Column:
    chosen = column(name)
    # NULL = NULL is no answer, and NaN is equal to itself in SQL.
    return chosen.is_not_null() & ~chosen.is_nan() if _is_float(type_) else chosen.is_not_null()


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
