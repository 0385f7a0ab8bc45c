"""DataFrame: the lazy query that users build verb by verb, and run.

Each verb has DuckDB bind the query that it makes, so a misspelt name or a wrong type is an error
where it was typed. Nothing runs before an action.

    DataFrame ──► verbs, shaping, partitioned   Select -> Select, LazyQuery -> LazyQuery
        │    └──► actions                       LazyQuery -> rows, text
        └─ LazyQuery ─ Runtime                  binds, runs, caches
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from minishark.dataframe import actions, partitioned, shaping, statistics, verbs
from minishark.dataframe.applied import EachRow, check_callable
from minishark.dataframe.column import (
    Column,
    column_or_name,
    flat,
    generator,
)
from minishark.dataframe.dialect import Dialect
from minishark.dataframe.doors import doors
from minishark.dataframe.grouped import GroupedData
from minishark.dataframe.join import join, lateral_join
from minishark.dataframe.lazy_query import Frame, LazyQuery, query_of, wide_integers
from minishark.dataframe.local import SchemaLike, declared_columns, local_table
from minishark.dataframe.names import (
    CamelCase,
    camel_keywords,
    ident,
    listed,
    nearest,
    pyspark_method,
    spelt_otherwise,
)
from minishark.dataframe.pandas_names import frame_hint
from minishark.dataframe.partitioned import PartitionPlace, StorageLevel
from minishark.dataframe.plots import Plots
from minishark.dataframe.profile import Profile
from minishark.dataframe.row import Row
from minishark.dataframe.runtime import Runtime
from minishark.dataframe.select import QueryText, Select, relation
from minishark.dataframe.show import PlanText
from minishark.dataframe.structs import json_text, struct
from minishark.dataframe.subqueries import subquery
from minishark.dataframe.writer import DataFrameWriter, TableWriter
from minishark.errors import ColumnError, OptionError
from minishark.model.expressions import Schema
from minishark.query.metrics import QueryMetrics
from minishark.query.sinks import Layout
from minishark.query.sources import HeldSource
from minishark.sources.optional import library
from minishark.tables.cached import CachedRows
from minishark.worker.call_policy import CallPolicy
from minishark.worker.functions import MapBatches, MapFrames, MapTable

if TYPE_CHECKING:
    import pandas as pd


@doors
class DataFrame(Frame, CamelCase):
    """A lazy query; it runs for each action, and its rows are kept only by `persist`.

    Methods have PySpark's names in snake_case, and in camelCase too.

    Examples:
        >>> df = session.create_dataframe([("Ada", 36), ("Alan", 41)], ["name", "age"])
        >>> df.filter(df.age > 40).select("name").collect()
        [Row(name='Alan')]
        >>> print(df.filter("age > 40").select("name").sql())  # doctest: +ELLIPSIS
        SELECT name
        FROM ...
        WHERE age > 40
    """

    def _derived(self, select: Select, *others: LazyQuery) -> DataFrame:
        return DataFrame(self._query.derived(select, *others))

    @property
    def _select(self) -> Select:
        return self._query.to_select()

    # Schema and columns

    def sql(self) -> str:
        """The query in DuckDB's SQL."""
        return self._query.sql()

    @property
    def schema(self) -> Any:
        """The columns with their Arrow types: a `pyarrow.Schema`."""
        return self._dialect.schema(self._arrow_schema())

    @property
    def _dialect(self) -> Dialect:
        return self._query.runtime.dialect

    def _arrow_schema(self) -> pa.Schema:
        if self._query.local_rows is not None:
            return self._query.local_rows.schema
        return self._query.runtime.arrow_schema(self.sql())

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self._query.dtypes()]

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Name and DuckDB type of each column (Arrow type, for rows that are local already)."""
        return self._dialect.dtypes(self._query.dtypes(), self._arrow_schema)

    def print_schema(self, level: int | None = None) -> None:
        """Print the columns with their types; `level` is for sessions of `minishark.spark`."""
        print(self._dialect.tree(self._query.dtypes(), self._arrow_schema, level))  # noqa: T201

    def __getitem__(self, key: Any) -> Any:
        """`df["a"]` is a column, `df[["a", "b"]]` a selection, `df[condition]` a filter."""
        match key:
            case str():
                return self._select.column(key)
            case list() | tuple():
                return self.select(*key)
            case Column():
                return self.filter(key)
            case _:
                raise OptionError(
                    "df[...] takes a name, a list of names, or a condition. Rows have no "
                    "positions; collect(), take(n) and to_local_iterator() give them."
                )

    def __setitem__(self, key: Any, item: Any) -> NoReturn:
        """Refused: DataFrames do not change."""
        raise TypeError(
            f"DataFrames do not change: write df = df.with_column({key!r}, ...), where ... is an "
            'expression such as col("a") * 2.'
        )

    def __getattr__(self, name: str) -> Any:
        """A column, or a method in camelCase.

        Raises:
            AttributeError: it is neither; the message suggests the nearest names.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        methods = [item for item in dir(DataFrame) if not item.startswith("_")]
        if name in self.columns:
            return self._select.column(name)
        meant = spelt_otherwise(name, methods)
        if meant is not None:
            return pyspark_method(self, meant)
        if name == "rejected":
            raise AttributeError(
                'Only map_batches() and map_rows() with on_error="quarantine" have rejected rows.',
                name=name,
            )
        columns = self.columns
        near = frame_hint(name) or nearest(name, [*columns, *methods]) + listed(columns)
        raise AttributeError(f"DataFrame has no column or method {name!r}.{near}", name=name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self.columns if name.isidentifier())]

    def select(self, *columns: Any) -> DataFrame:
        """These columns: names, Columns, or "*" for all.

        Raises:
            ColumnError: there is no such column.
        """
        return DataFrame(verbs.project(self._query, columns))

    def select_expr(self, *expressions: str) -> DataFrame:
        """Expressions in SQL: `df.select_expr("a + 1 AS b", "upper(name)", "*")`."""
        texts = tuple(self._dialect.expression(text, named=True) for text in expressions)
        return DataFrame(verbs.project_expressions(self._query, texts))

    def with_column(self, name: str, column: Any) -> DataFrame:
        """All columns and one more, which replaces a column of the same name."""
        return self.with_columns({name: column})

    def with_columns(self, columns: Mapping[str, Any]) -> DataFrame:
        """All columns and more, which replace columns of the same names."""
        return self._derived(verbs.with_columns(self._select, columns))

    def with_column_renamed(self, existing: str, new: str) -> DataFrame:
        """All columns, one of them renamed."""
        return self.with_columns_renamed({existing: new})

    def with_columns_renamed(self, names: Mapping[str, str]) -> DataFrame:
        """All columns, some of them renamed: a mapping of old names to new ones."""
        there = self._dialect.there(list(names), self.columns)
        chosen = {name: names[name] for name in there}
        return self._derived(verbs.with_columns_renamed(self._select, chosen))

    def to_df(self, *names: str) -> DataFrame:
        """All columns under new names, by position."""
        return self._derived(verbs.to_df(self._select, names))

    def drop(self, *columns: str | Column) -> DataFrame:
        """All columns but these.

        Raises:
            ColumnError: there is no such column (PySpark ignores it).
        """
        there = self._dialect.there(flat(columns), self.columns)
        return self._derived(verbs.drop(self._select, there, all_named=self._dialect.is_sparks))

    def alias(self, name: str) -> DataFrame:
        """The same rows under an alias: `col("name.column")` means a column of it.

        An alias has columns of its own, so a DataFrame can be joined to itself:
        `a, b = df.alias("a"), df.alias("b")`, then `a.join(b, a.parent == b.id)`.
        """
        return DataFrame(self._query.over(self._select.aliased(name)))

    def transform(
        self, function: Callable[..., DataFrame], *arguments: Any, **named: Any
    ) -> DataFrame:
        """`function(self, ...)`, to chain functions of DataFrames like methods."""
        made = function(self, *arguments, **named)
        if not isinstance(made, DataFrame):
            raise OptionError(f"transform() got a {type(made).__name__} instead of a DataFrame.")
        return made

    # Rows

    def filter(self, condition: Any) -> DataFrame:
        """The rows that fulfil a condition: a Column, or SQL text."""
        if isinstance(condition, str):
            condition = self._dialect.expression(condition)
        return self._derived(verbs.filtered(self._select, condition))

    where = filter  # noqa: A003 - the method above

    def order_by(self, *columns: Any, ascending: bool | Sequence[bool] = True) -> DataFrame:
        """The rows sorted by columns; NULLs last unless the Column says otherwise.

        Args:
            columns: names or Columns, which may end in `.desc()`, `.asc_nulls_first()` ...
            ascending: False for the reverse; or a list with one for each column.
        """
        hidden = self._dialect.is_sparks
        return self._derived(verbs.ordered(self._select, columns, ascending, hidden=hidden))

    sort = order_by

    def limit(self, count: int) -> DataFrame:
        """The first `count` rows."""
        return self._derived(self._select.limited(count))

    def offset(self, count: int) -> DataFrame:
        """All but the first `count` rows."""
        return self._derived(self._select.skipped(count))

    def distinct(self) -> DataFrame:
        """The rows without duplicates."""
        return self._derived(verbs.distinct(self._select))

    def drop_duplicates(self, subset: Sequence[str] | None = None) -> DataFrame:
        """One row for each combination of values in `subset` (in all columns, if None).

        Of a sorted DataFrame it is the first; otherwise which one is undefined.
        """
        if subset is None:
            return self.distinct()
        return self._derived(verbs.distinct_on(self._select, subset))

    @camel_keywords
    def sample(
        self,
        with_replacement: float | bool | None = None,
        fraction: float | None = None,
        seed: int | None = None,
    ) -> DataFrame:
        """Each row with a probability of `fraction`.

        `with_replacement` may be left out: `sample(0.1)`, `sample(0.1, 42)`. A `seed` repeats the
        choice for the same rows in the same order, as tables and files have them; that runs in one
        task.

        Raises:
            OptionError: the fraction is not from 0 to 1.
            UnsupportedError: `with_replacement` is true.
        """
        return self._derived(verbs.sampled(self._select, with_replacement, fraction, seed))

    def random_split(self, weights: Sequence[float], seed: int | None = None) -> list[DataFrame]:
        """Each row in one of several DataFrames, whose sizes are in proportion to `weights`.

        This runs the query now, and caches its rows as long as any of the parts is in use.
        """
        return list(map(DataFrame, shaping.random_split(self._query, weights, seed)))

    # Missing values

    @property
    def na(self) -> shaping.MissingValues[DataFrame]:
        """`df.na.fill`, `df.na.drop` and `df.na.replace`, as in PySpark."""
        return shaping.MissingValues(self)

    def fillna(self, value: Any, subset: str | Sequence[str] | None = None) -> DataFrame:
        """NULLs, and NaNs of floats, replaced by a value.

        Args:
            value: a value for all columns of its kind (numbers, texts, booleans ...), or a mapping
                of names to values.
            subset: only these columns, which must be of the value's kind.

        Raises:
            OptionError: a value does not fit a column.
        """
        return self._derived(shaping.fillna(self._select, value, subset))

    def dropna(
        self, how: str = "any", thresh: int | None = None, subset: str | Sequence[str] | None = None
    ) -> DataFrame:
        """The rows without NULLs, and without NaNs of floats.

        Args:
            how: "any" drops rows in which any value is missing, "all" those in which all are.
            thresh: instead of `how`: how many values must not be missing.
            subset: the columns to look at; None for all.
        """
        return self._derived(shaping.dropna(self._select, how, thresh, subset))

    def replace(
        self, to_replace: Any, value: Any = None, subset: str | Sequence[str] | None = None
    ) -> DataFrame:
        """Values replaced by others.

        Args:
            to_replace: a value, a list of values, or a mapping of values to replacements.
            value: the replacement, or a list of as many.
            subset: only these columns; None for all columns of the values' kind.
        """
        return self._derived(shaping.replaced(self._select, to_replace, value, subset))

    # Statistics

    @property
    def stat(self) -> statistics.Statistics[DataFrame]:
        """`df.stat.corr`, `df.stat.crosstab` ..., as in PySpark."""
        return statistics.Statistics(self)

    def corr(self, col1: str, col2: str, method: str = "pearson") -> float | None:
        """The correlation of two columns; NULL rows are left out.

        Raises:
            OptionError: the method is not "pearson".
        """
        return statistics.correlation(self._query, col1, col2, method)

    def cov(self, col1: str, col2: str) -> float | None:
        """The sample covariance of two columns."""
        return statistics.covariance(self._query, col1, col2)

    def crosstab(self, col1: str, col2: str) -> DataFrame:
        """How often pairs of values occur: a row for each value of `col1`, a column for each other.

        The first column is called `col1_col2`. It runs a query for the values of `col2` now.
        """
        return DataFrame(statistics.crosstab(self._query, col1, col2))

    def freq_items(self, cols: Sequence[str], support: float = 0.01) -> DataFrame:
        """One row with, for each column, a list of its frequent values.

        Args:
            cols: names of columns.
            support: the share of rows that a value must have at least, from 0.0001.
        """
        return DataFrame(statistics.frequent(self._query, cols, support))

    def approx_quantile(
        self, col: str | Sequence[str], probabilities: Sequence[float], relative_error: float = 0.0
    ) -> list[Any]:
        """Quantiles of a column; a list of these lists, for several columns.

        They are exact, whatever `relative_error` is; NULLs and NaNs are left out.
        """
        del relative_error
        return statistics.quantiles(self._query, col, probabilities)

    def sample_by(
        self, col: str | Column, fractions: Mapping[Any, float], seed: int | None = None
    ) -> DataFrame:
        """Each row with the probability that `fractions` has for its value of a column.

        A seed is as in `sample`.
        """
        return self._derived(statistics.sampled_by(self._select, col, fractions, seed))

    # Rows to columns, columns to rows

    @camel_keywords
    def unpivot(
        self,
        ids: Any,
        values: Any,
        variable_column_name: str,
        value_column_name: str,
    ) -> DataFrame:
        """A row for each value column of each row, with its name and its value.

        Args:
            ids: columns that are kept: names or Columns, one or several.
            values: the columns that become rows; None for all others.
            variable_column_name: what the column of names is called.
            value_column_name: what the column of values is called.

        Examples:
            >>> df = session.create_dataframe([(1, 10, 20)], ["id", "a", "b"])
            >>> df.unpivot("id", ["a", "b"], "name", "n").collect()
            [Row(id=1, name='a', n=10), Row(id=1, name='b', n=20)]
        """
        names = (variable_column_name, value_column_name)
        return DataFrame(shaping.unpivot(self._query, ids, values, names))

    melt = unpivot

    @camel_keywords
    def transpose(self, index_column: Any = None) -> DataFrame:
        """A row for each column, and a column for each row, called by the first column's values.

        Runs the query now; for few rows.

        Args:
            index_column: the column whose values are the new names; None for the first.

        Raises:
            OptionError: the other columns have no common type.
        """
        keys = self.columns[0] if index_column is None else index_column
        names = [self.select(keys).columns[0]]
        rest = [name for name in self.columns if name != names[0]]
        if not rest:
            raise OptionError("transpose() needs a column besides the index.")
        cells = self.unpivot(names, rest, "key", "value").collect()
        rows: dict[Any, dict[str, Any]] = {name: {"key": name} for name in sorted(rest)}
        for index, key, item in cells:
            rows[key][str(index)] = item
        called = sorted({str(row[0]) for row in cells})
        data = [tuple(row.get(name) for name in ("key", *called)) for row in rows.values()]
        table = local_table(data, ["key", *called])
        return cached_frame(self._query.runtime, self._query.runtime.store_rows(table))

    def to(self, schema: SchemaLike) -> DataFrame:
        """The columns of a schema, in its order and of its types; others are left out."""
        return self.select(*(self[name].cast(type_) for name, type_ in declared_columns(schema)))

    def col_regex(self, pattern: str) -> Column:
        """The columns whose names match a regular expression, for `select`.

        Raises:
            ColumnError: there is none.
        """
        names = re.compile(pattern.strip("`"))
        columns = [self._select.column(name) for name in self.columns if names.fullmatch(name)]
        if not columns:
            raise ColumnError(f"No column matches {pattern!r}; there are {self.columns}.")
        return generator(None, columns)

    def zip_with_index(self, name: str = "index") -> DataFrame:
        """All columns, and the number of the row from 0, in the order of rows."""
        return self.with_column(name, Column(("row_number() OVER () - 1",)))

    # Several DataFrames

    def join(self, other: DataFrame, on: Any = None, how: str = "inner") -> DataFrame:
        """The pairs of rows that match.

        Args:
            other: the right side.
            on: names of columns that both have, which come first and once in the result; or a
                condition (or several), after which the result has all columns of both; None for
                all pairs of rows.
            how: "inner", "left", "right", "full", "semi" (rows of the left side with a match),
                "anti" (those without), "cross", "asof" or "asof_left"; or PySpark's names.

        Raises:
            ColumnError: a name means no column, or several.
            OptionError: there is no such kind of join.
        """
        right = self._same_session(other)
        sides = self._select, right.to_select()
        made = join(*sides, on, how, keys_first=self._dialect.is_sparks)
        return self._derived(made, right)

    def lateral_join(
        self, other: DataFrame, on: Column | None = None, how: str = "inner"
    ) -> DataFrame:
        """Each row with those of a DataFrame that is computed for it.

        Args:
            other: reads columns of this one with `Column.outer`.
            on: a condition; None for all pairs.
            how: "inner", "left" or "cross".

        Raises:
            OptionError: there is no such kind of lateral join.

        Examples:
            >>> from minishark import functions as F
            >>> df = session.create_dataframe([(1, [5, 3]), (2, [])], ["id", "xs"])
            >>> parts = session.range(1).select(F.explode(df.xs.outer()).alias("x"))
            >>> df.lateral_join(parts).select("id", "x").order_by("x").collect()
            [Row(id=1, x=3), Row(id=1, x=5)]
        """
        right = self._same_session(other)
        return self._derived(lateral_join(self._select, right, on, how), right)

    def scalar(self) -> Column:
        """The value of this DataFrame's one column and row; NULL if there is no row.

        What it reads of the query around it is named by `Column.outer`.

        Examples:
            >>> from minishark import functions as F
            >>> df = session.create_dataframe([(1,), (2,), (6,)], ["n"])
            >>> df.filter(df.n > df.agg(F.avg("n")).scalar()).collect()
            [Row(n=6)]
        """
        return subquery(self.sql(), self._query.held, "", "scalarsubquery()")

    def exists(self) -> Column:
        """Whether this DataFrame has rows, as a condition.

        Examples:
            >>> from minishark import functions as F
            >>> people = session.create_dataframe([("Ada", 1), ("Alan", 2)], ["name", "id"])
            >>> orders = session.create_dataframe([(1, 9.5)], ["id", "price"])
            >>> theirs = orders.filter(F.col("id") == people.id.outer())
            >>> people.filter(theirs.exists()).collect()
            [Row(name='Ada', id=1)]
        """
        return subquery(self.sql(), self._query.held, "EXISTS ", "exists()")

    def cross_join(self, other: DataFrame) -> DataFrame:
        """All pairs of rows."""
        return self.join(other, how="cross")

    def union(self, other: DataFrame) -> DataFrame:
        """The rows of both with duplicates; columns are matched by position."""
        return self._combined("UNION ALL", other)

    union_all = union

    def union_by_name(self, other: DataFrame, allow_missing_columns: bool = False) -> DataFrame:
        """The rows of both with duplicates; columns are matched by name.

        Args:
            other: the other rows.
            allow_missing_columns: whether a column that one side lacks is NULL there.

        Raises:
            ColumnError: a column is missing on one side.
        """
        right = self._same_session(other)
        combined = verbs.combined_by_name(self._query, right, allow_missing=allow_missing_columns)
        return DataFrame(combined)

    def intersect(self, other: DataFrame) -> DataFrame:
        """The rows that both have, without duplicates."""
        return self._combined("INTERSECT", other)

    def intersect_all(self, other: DataFrame) -> DataFrame:
        """The rows that both have, as often as both have them."""
        return self._combined("INTERSECT ALL", other)

    def subtract(self, other: DataFrame) -> DataFrame:
        """The rows that the other does not have, without duplicates."""
        return self._combined("EXCEPT", other)

    def except_all(self, other: DataFrame) -> DataFrame:
        """The rows, each as many times as it is here more often than in the other."""
        return self._combined("EXCEPT ALL", other)

    def _combined(self, operator: str, other: DataFrame) -> DataFrame:
        return DataFrame(verbs.combined(self._query, operator, self._same_session(other)))

    def _same_session(self, other: Any) -> LazyQuery:
        if not isinstance(other, DataFrame):
            kind = type(other).__name__
            raise OptionError(f"A DataFrame is needed, not a {kind}; see create_dataframe().")
        if query_of(other).runtime is not self._query.runtime:
            raise OptionError("Both DataFrames must be of the same session.")
        return query_of(other)

    def hint(self, name: str, *_: Any) -> DataFrame:
        """The same, with a warning: joins are planned by table statistics, not by hints."""
        warnings.warn(
            f"minishark takes no hints such as {name!r}: it decides by the sizes of tables.",
            stacklevel=2,
        )
        return self

    # Groups

    def group_by(self, *columns: Any) -> GroupedData[DataFrame]:
        """Groups of rows that are equal in these columns, for aggregates."""
        return self._grouped(columns)

    groupby = group_by

    def rollup(self, *columns: Any) -> GroupedData[DataFrame]:
        """As `group_by`, with subtotals for each prefix of the columns, and a total."""
        return self._grouped(columns, "ROLLUP")

    def cube(self, *columns: Any) -> GroupedData[DataFrame]:
        """As `group_by`, with subtotals for each subset of the columns."""
        return self._grouped(columns, "CUBE")

    def agg(self, *aggregates: Any) -> DataFrame:
        """One row: aggregates over all rows."""
        return self._grouped(()).agg(*aggregates)

    def grouping_sets(
        self, grouping_sets: Sequence[Sequence[Any]], *cols: Any
    ) -> GroupedData[DataFrame]:
        """As `group_by`, for several sets of columns: `grouping_sets([("a", "b"), ()], "a", "b")`.

        Raises:
            OptionError: a set names a column that is not among the others.
        """
        keys = [column_or_name(item) for item in flat(cols)]
        texts = [key.sql(lambda reference: reference.name) for key in keys]
        sets = []
        for columns in grouping_sets:
            names = [column_or_name(item).sql(lambda ref: ref.name) for item in columns]
            unknown = [name for name in names if name not in texts]
            if unknown:
                raise OptionError(f"grouping_sets(): {unknown[0]!r} is not among the columns.")
            sets.append(tuple(map(texts.index, names)))
        return GroupedData(
            frame=self, keys=tuple(keys), sets="GROUPING SETS", positions=tuple(sets)
        )

    def _grouped(self, columns: Sequence[Any], sets: str = "") -> GroupedData[DataFrame]:
        select = self._select
        keys = tuple(verbs.group_key(item, select) for item in flat(columns))
        return GroupedData(frame=self, keys=keys, sets=sets)

    def describe(self, *columns: str) -> DataFrame:
        """Count, mean, standard deviation, minimum and maximum of columns, as text.

        Args:
            columns: which; all numbers and texts, if none is named.
        """
        return DataFrame(shaping.summary(self._query, shaping.DESCRIBED, flat(columns)))

    def summary(self, *statistics: str) -> DataFrame:
        """As `describe`, with quartiles; or only some: "count", "mean", "stddev", "25%" ..."""
        return DataFrame(shaping.summary(self._query, statistics, ()))

    # Actions

    def to_arrow(self, *, verify: bool = False) -> pa.Table:
        """Run the query; its rows as an Arrow table.

        Args:
            verify: also run it on plain DuckDB in this process, over the same tables, and compare.
                What has several right answers (random(), LIMIT without an order) can differ.

        Raises:
            ExecutionError: the query failed while it ran, for example on a division by zero.
            VerificationError: plain DuckDB has another answer.
            ClusterError: the cluster is gone.
        """
        return actions.to_arrow(self._query, verify=verify)

    async def to_arrow_async(self) -> pa.Table:
        """`to_arrow` without blocking the event loop; cancelling the task cancels the query."""
        return await actions.to_arrow_async(self._query)

    def to_pandas(self, dtype_backend: str = "numpy") -> pd.DataFrame:
        """Run the query; its rows as a pandas frame (needs pandas).

        Args:
            dtype_backend: "numpy" for the dtypes of DuckDB's `df()`: numbers (decimals and 128-bit
                integers are float64), datetime64, str, category; nullable ones where there are
                nulls. "pyarrow" for Arrow's, which lose nothing.

        Raises:
            DataError: numpy has no type for a column.
            OptionError: pandas is not installed, or there is no such backend.
        """
        return actions.to_pandas(self._query, dtype_backend)

    @property
    def plot(self) -> Plots:
        """Plots of the rows, by pandas with matplotlib, or else by polars with Altair.

        The query runs when a plot is asked for; at most a million rows are plotted.

        Examples:
            >>> df.plot.scatter(x="day", y="price")  # doctest: +SKIP
        """
        return Plots(self._query)

    def to_polars(self) -> Any:
        """Run the query; its rows as a polars frame (needs polars)."""
        return library("polars", "polars").from_arrow(self.to_arrow())

    def to_ray_dataset(self) -> Any:
        """Run the query; its rows as a Ray dataset (needs Ray, see docs/cluster.md).

        On a session that Ray hosts, each machine's rows go to Ray's object store there, and do not
        pass through this program. The dataset belongs to this program, and outlives the session.

        Raises:
            OptionError: Ray is not installed, or this program is not connected to a Ray cluster.
            ExecutionError: Ray has no free core, of which its datasets need one.
        """
        return actions.to_dataset(self._query, "ray")

    def submit(
        self,
        name: str,
        *,
        priority: int = 0,
        time_limit_s: float | None = None,
        keep_s: float = 86_400.0,
        attempts: int = 5,
    ) -> Any:
        """Have the query run as a job of the cluster, which goes on without this program.

        Its text travels with the session's settings and definitions, and what it reads must be
        there for all: files and stores that the nodes reach. `session.job(name)` gives the job to
        any session of the cluster, later, too. docs/submitted.md says what is promised.

        Args:
            name: the job's name, unique among those that are not over.
            priority: of the jobs that wait for a place on a node, the highest goes first.
            time_limit_s: seconds after which it is ended; None for no limit.
            keep_s: for how long its result is kept in the cluster.
            attempts: how often it is started at most, if its process or its node dies.

        Returns:
            the Job, at once.

        Raises:
            UnsupportedError: it reads tables, rows or functions of this session alone.
            OptionError: the name, or an option, is not one that a job may have.
            AlreadyExistsError: there is a job of that name that is not over.
            ClusterError: the session's cluster ends with it, or does not answer.

        Examples:
            >>> job = session.sql("SELECT 42 AS answer").submit("nightly")  # doctest: +SKIP
            >>> job.result()  # doctest: +SKIP
        """
        terms = {
            "priority": priority,
            "time_limit_s": time_limit_s,
            "keep_s": keep_s,
            "attempts": attempts,
        }
        return actions.submit(self._query, name, terms)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Run the query; its rows as Arrow record batches.

        A large answer is not loaded at once: batches are mapped from the files that tasks wrote,
        and the memory of each task's rows is freed when they have been read.
        """
        return actions.batches(self._query)

    def to_local_iterator(self) -> Iterator[Row]:
        """Run the query; its rows one after another."""
        return actions.rows(self._query, map(pa.table, self.to_batches()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for any library that reads Arrow streams."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def collect(self) -> list[Row]:
        """Run the query; its rows as a list.

        Examples:
            >>> session.sql("SELECT 42 AS answer").collect()
            [Row(answer=42)]
        """
        return list(actions.rows(self._query, (self.to_arrow(),)))

    async def collect_async(self) -> list[Row]:
        """`collect` without blocking the event loop; cancelling the task cancels the query."""
        return list(actions.rows(self._query, (await self.to_arrow_async(),)))

    def take(self, count: int) -> list[Row]:
        """The first `count` rows."""
        return self.limit(count).collect()

    def tail(self, num: int) -> list[Row]:
        """The last rows."""
        return self.offset(max(self.count() - num, 0)).collect()

    def head(self, count: int | None = None) -> Row | list[Row] | None:
        """The first row, or None if there is none; with a number, a list of the first rows."""
        return self.first() if count is None else self.take(count)

    def first(self) -> Row | None:
        """The first row, or None if there is none."""
        return next(iter(self.take(1)), None)

    def count(self) -> int:
        """The number of rows."""
        if self._query.local_rows is not None:
            return int(self._query.local_rows.num_rows)
        return int(self.group_by().count().collect()[0][0])

    def is_empty(self) -> bool:
        """Whether there are no rows."""
        return not self.take(1)

    @property
    def is_streaming(self) -> bool:
        """Whether it is a stream: never."""
        return False

    def same_semantics(self, other: DataFrame) -> bool:
        """Whether both are the same query, as its text tells."""
        return self.sql() == other.sql()

    def semantic_hash(self) -> int:
        """A hash of the query's text."""
        return hash(self.sql())

    def is_local(self) -> bool:
        """Whether the rows are here already, as after a statement that needs no cluster."""
        return self._query.local_rows is not None

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Run the query for its first rows, and print them.

        Args:
            n: how many rows at most.
            truncate: whether texts and nested values are cut to 20 characters; or to how many.
            vertical: whether each value has a line of its own.
        """
        shown = actions.shown(self._query, n, truncate=truncate, vertical=vertical)
        print(shown)  # noqa: T201 - what the user asked for

    def __repr__(self) -> str:
        return f"DataFrame[{', '.join(f'{name}: {type_}' for name, type_ in self.dtypes)}]"

    def _repr_html_(self) -> str:
        """For notebooks: the first rows, if they come within two seconds; else the columns."""
        return actions.html(self._query)

    # Plans and metrics

    def explain(self, mode: str | bool = "all", *, extended: str | bool | None = None) -> None:
        """Print how the query runs; `plan_text` returns it.

        Args:
            mode: see `plan_text`.
            extended: PySpark's name of `mode`.
        """
        print(self.plan_text(mode if extended is None else extended))  # noqa: T201 - what the user asked for

    def plan_text(self, mode: str | bool = "all") -> PlanText:
        """How the query runs, as text.

        Args:
            mode: "logical", "physical", "stages", "sql" (the stages with their fragments), "all"
                (the first three), or "analyze" (runs it, and adds figures per stage). Of PySpark's,
                "simple" is "physical", and "extended", "formatted" and True are "all".

        Raises:
            OptionError: there is no such mode.
        """
        return actions.explain(self._query, mode)

    def profile(self) -> Profile:
        """Run the query; what each stage and each task did, and why it ran where it did.

        Raises:
            OptionError: it does not run on the cluster.
        """
        if not self._query.is_distributed:
            raise OptionError("Only queries that run on the cluster have a profile.")
        profile = self._query.runtime.profile(self.sql())
        self._query.metrics = profile.metrics
        return profile

    def metrics(self) -> QueryMetrics:
        """What the last run took.

        Raises:
            OptionError: the query has not run yet.
        """
        if self._query.local_rows is not None:
            raise OptionError("This statement ran in the front end, which records no metrics.")
        if self._query.metrics is None:
            raise OptionError(
                "This query has not run to its end (show() runs one for the first rows): call "
                "collect() or to_arrow() first, or profile()."
            )
        return self._query.metrics

    # Views, tables and files

    def create_or_replace_temp_view(self, name: str) -> None:
        """Make this a view for SQL; it runs each time that a statement reads it."""
        self._query.runtime.create_view(name, self._query, replace=True)

    def create_temp_view(self, name: str) -> None:
        """Make this a view for SQL.

        Raises:
            CatalogError: there is a table or view of that name.
        """
        self._query.runtime.create_view(name, self._query, replace=False)

    create_global_temp_view = create_temp_view
    create_or_replace_global_temp_view = create_or_replace_temp_view
    register_temp_table = create_or_replace_temp_view

    def write_to(self, table: str) -> TableWriter:
        """The rows as a table: `df.write_to("name").create_or_replace()`."""
        return TableWriter(self, table)

    @property
    def spark_session(self) -> Any:
        """The session that it belongs to."""
        return self._query.runtime.session

    @property
    def write(self) -> DataFrameWriter:
        """The rows as files or a table: `df.write.partition_by("day").parquet("out")`."""
        return DataFrameWriter(self)

    # Caching

    def persist(
        self,
        replicas: int | StorageLevel = 2,
        *,
        partition_by: str | Sequence[str] | None = None,
        partitions: int | None = None,
    ) -> DataFrame:
        """Cache the rows in the cluster when an action first computes them; returns this DataFrame.

        Args:
            replicas: on how many nodes each partition is stored; at most on all. Or a level of
                PySpark's, which tells no more than that.
            partition_by: columns whose hash decides a row's partition; None to leave rows where
                the query has them.
            partitions: how many; None for as many as fit.

        Raises:
            CatalogError: `partition_by` names no column.
            OptionError: a number is out of range.
        """
        keys = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        if not isinstance(replicas, StorageLevel):
            replicas = replace(StorageLevel.MEMORY_AND_DISK_DESER, replicas=replicas)
        layout = Layout(partition_by=keys, partitions=partitions, replicas=replicas.replicas)
        partitioned.persist(self._query, layout, replicas)
        return self

    def cache(self) -> DataFrame:
        """As `persist()`."""
        return self.persist()

    def unpersist(self, blocking: bool = False) -> DataFrame:
        """Free the rows that `persist` cached; this DataFrame runs for each action again.

        They are free when it returns, whether or not that is asked for by `blocking`.

        DataFrames that were derived from it meanwhile stay right: they compute the rows again.
        """
        del blocking
        partitioned.unpersist(self._query)
        return self

    @property
    def is_cached(self) -> bool:
        """Whether its rows are cached, or will be by the first action."""
        return self._query.persisted is not None

    @property
    def storage_level(self) -> StorageLevel:
        """Where its rows are cached."""
        persisted = self._query.persisted
        return StorageLevel.NONE if persisted is None else persisted.level

    def checkpoint(self, path: str | bool | None = None) -> DataFrame:
        """Run the query now; a DataFrame of its rows, without their lineage.

        Args:
            path: a folder for Parquet files that outlive the session, which must be new or empty;
                None stores the rows in the cluster, as does PySpark's `eager`, True or False.

        Raises:
            UnsupportedError: Parquet lacks the type of a column.
        """
        folder = path if isinstance(path, str) else None
        return DataFrame(partitioned.checkpoint(self._query, folder))

    local_checkpoint = checkpoint

    # Partitions

    @property
    def num_partitions(self) -> int:
        """The number of partitions, each of which a function gets in a task of its own."""
        return self._query.runtime.count_tasks(self.sql())

    def placement(self) -> tuple[PartitionPlace, ...]:
        """Which nodes store which partition, of a table or of cached rows.

        Raises:
            OptionError: the rows are computed for each action.
        """
        return partitioned.placement(self._query)

    def repartition(self, partitions: int | str | Column, *columns: Any) -> DataFrame:
        """The same rows in another number of partitions.

        Args:
            partitions: how many; may be left out where columns follow.
            columns: rows that are equal in these are in one partition; without any, partitions are
                of equal size and keep the order of rows.

        Raises:
            ColumnError: there is no such column.
            OptionError: a number is out of range.
        """
        return DataFrame(partitioned.repartition(self._query, partitions, columns))

    def repartition_by_range(self, partitions: int | str | Column, *columns: Any) -> DataFrame:
        """The same rows with one range of the columns' values in each partition, in their order.

        Ranges are of about the same size, as a sample of the values tells; equal values, and all
        NULLs, are in one partition, NULLs last.

        Args:
            partitions: how many; may be left out.
            columns: whose values decide.

        Raises:
            ColumnError: there is no such column.
            OptionError: a number is out of range, or there are no columns.
        """
        return DataFrame(partitioned.repartition_by_range(self._query, partitions, columns))

    def sort_within_partitions(
        self, *columns: Any, ascending: bool | Sequence[bool] = True
    ) -> DataFrame:
        """The same partitions, each sorted by columns; see `order_by`.

        Raises:
            OptionError: a key is no column, but an expression.
        """
        return DataFrame(partitioned.sorted_within(self._query, columns, ascending))

    def coalesce(self, partitions: int) -> DataFrame:
        """The same rows in at most `partitions` partitions."""
        return self if partitions >= self.num_partitions else self.repartition(partitions)

    # Python functions

    def map_partitions(self, fn: Callable[[pa.Table], Any], schema: SchemaLike) -> DataFrame:
        """What a function returns for each partition.

        Args:
            fn: takes a pyarrow table and returns a table: of pyarrow, pandas, polars, or anything
                else that offers an Arrow stream.
            schema: the columns that it returns: "id BIGINT, name VARCHAR", a mapping of names to
                types, or a pyarrow schema.

        Raises:
            DataError: the schema is not valid.
            OptionError: the function can't be pickled.

        Examples:
            >>> df = session.create_dataframe([(1,), (2,), (3,)], ["x"])
            >>> df.map_partitions(lambda t: t.slice(1), "x BIGINT").collect()
            [Row(x=2), Row(x=3)]
        """
        return self._mapped("map_partitions", MapTable, fn, schema)

    def map_in_arrow(
        self, fn: Callable[[Iterator[pa.RecordBatch]], Iterable[Any]], schema: SchemaLike
    ) -> DataFrame:
        """What a function returns for the record batches of each partition.

        Args:
            fn: takes and returns an iterator of record batches.
            schema: the columns that it returns; see `map_partitions`.
        """
        return self._mapped("map_in_arrow", MapBatches, fn, schema)

    def map_in_pandas(
        self, fn: Callable[[Iterator[pd.DataFrame]], Iterable[Any]], schema: SchemaLike
    ) -> DataFrame:
        """What a function returns for the rows of each partition, as pandas frames.

        Args:
            fn: takes and returns an iterator of frames.
            schema: the columns that it returns; see `map_partitions`.
        """
        return self._mapped("map_in_pandas", MapFrames, fn, schema)

    def map_batches(
        self,
        fn: Callable[..., Any],
        schema: SchemaLike,
        *,
        batch_rows: int = 1024,
        on_error: str = "raise",
        retries: int = 0,
        backoff_s: float = 0.1,
        timeout_s: float | None = None,
        concurrency: int = 1,
    ) -> DataFrame:
        """What a function returns for batches of rows, with a say in what becomes of failures.

        A batch that is done is not done again if its executor dies meanwhile, as long as its task
        is repeated on the same host.

        Args:
            fn: takes a pyarrow table and returns one of any kind (see `map_partitions`). Or a
                class: each executor makes an instance, once, and calls that with tables; a
                `functools.partial` of it has its arguments. Functions and `__call__` may be
                `async def`.
            schema: the columns that it returns; see `map_partitions`.
            batch_rows: the number of rows in a batch; the last of a partition has fewer.
            on_error: what becomes of a batch if `fn` raises, takes too long, or returns what does
                not fit the schema. "raise": the job ends. "null": it gives a row of NULLs for
                each of its rows. "quarantine": its rows are left out, and stand in `rejected`.
            retries: how many times a call is repeated before it counts as failed.
            backoff_s: seconds before it is repeated, twice as many each time, up to a minute; the
                half of it is left to chance.
            timeout_s: seconds that a call may take; None for any time.
            concurrency: how many calls of an async function run at a time in each task.

        Raises:
            DataError: the schema is not valid.
            OptionError: an option is not valid, or the function can't be pickled.

        Examples:
            >>> df = session.create_dataframe([(1,), (0,), (4,)], ["x"])
            >>> def inverse(rows):
            ...     return [{"y": 1 / x} for x in rows["x"].to_pylist()]
            >>> import pyarrow as pa
            >>> found = df.map_batches(
            ...     lambda rows: pa.Table.from_pylist(inverse(rows)),
            ...     "y DOUBLE",
            ...     batch_rows=1,
            ...     on_error="quarantine",
            ... )
            >>> found.collect()
            [Row(y=1.0), Row(y=0.25)]
            >>> found.rejected.select("x", "error").collect()
            [Row(x=0, error='division by zero')]
        """
        policy = CallPolicy(
            on_error=on_error,
            retries=retries,
            backoff_s=backoff_s,
            timeout_s=timeout_s,
            concurrency=concurrency,
        )
        return DataFrame(partitioned.mapped_batches(self._query, fn, schema, batch_rows, policy))

    def map_rows(
        self,
        fn: Callable[..., Any],
        schema: SchemaLike,
        *,
        on_error: str = "raise",
        retries: int = 0,
        backoff_s: float = 0.1,
        timeout_s: float | None = None,
        concurrency: int = 1,
    ) -> DataFrame:
        """What a function returns for each row, with a say in what becomes of rows that fail.

        Args:
            fn: takes a Row and returns a row: a tuple, a mapping or a Row; with a single column,
                its value will do. Or a class, or async, as for `map_batches`.
            schema: the columns that it returns; see `map_partitions`.
            on_error: as for `map_batches`, of single rows.
            retries: how many times a call is repeated before it counts as failed. A value that
                does not fit its column's type fails without.
            backoff_s: seconds before it is repeated; see `map_batches`.
            timeout_s: seconds that a call may take; None for any time.
            concurrency: how many calls of an async function run at a time in each task.

        Raises:
            DataError: the schema is not valid.
            OptionError: an option is not valid, or the function can't be pickled.

        Examples:
            >>> df = session.create_dataframe([("1",), ("2b",)], ["text"])
            >>> df.map_rows(lambda row: int(row.text), "number BIGINT", on_error="null").collect()
            [Row(number=1), Row(number=None)]
        """
        policy = CallPolicy(
            on_error=on_error,
            retries=retries,
            backoff_s=backoff_s,
            timeout_s=timeout_s,
            concurrency=concurrency,
        )
        return DataFrame(partitioned.mapped_rows(self._query, fn, schema, policy))

    @property
    def rejected(self) -> DataFrame:
        """The rows for which the function of `map_batches` or `map_rows` has failed.

        Their columns, and `error_type`, `error` and `attempts`: how many times it was called. To
        ask for them and for the other rows calls nothing twice.

        Raises:
            AttributeError: this DataFrame was not made with `on_error="quarantine"`.
        """
        if self._query.rejected is None:  # then Python goes on to __getattr__: a column, perhaps
            raise AttributeError(name="rejected")
        return DataFrame(self._query.rejected)

    def _mapped(self, label: str, kind: Any, fn: Any, schema: SchemaLike) -> DataFrame:
        return DataFrame(partitioned.mapped(self._query, label, kind, fn, schema))

    @property
    def rdd(self) -> Any:
        """The rows as Python objects: `df.rdd.map(lambda row: row.a).collect()`.

        They pass through this process when an action first needs them. For much data, verbs of
        DataFrames and `map_partitions` are faster, as rows stay where they are stored.

        Examples:
            >>> session.range(4).rdd.map(lambda row: row.id % 2).count_by_value()
            {0: 2, 1: 2}
        """
        return self._query.runtime.items(self.to_arrow, wide_integers(self._query))

    def to_json(self) -> Any:
        """The rows as texts of JSON, as `rdd` has them."""
        packed = struct(*(self._select.column(name) for name in self.columns))
        return self.select(json_text(packed).alias("value")).rdd.map(operator.itemgetter(0))

    def foreach_partition(self, fn: Callable[[Iterator[Row]], Any]) -> None:
        """Call a function with an iterator over each partition's Rows now, for its side effects.

        It runs where the rows are stored, and perhaps twice if something fails meanwhile.
        `map_partitions` passes tables of Arrow, which are faster.
        """
        partitioned.foreach_partition(self._query, "foreach_partition", fn)

    def foreach(self, fn: Callable[[Row], Any]) -> None:
        """Call a function with each Row now, for its side effects; see `foreach_partition`."""
        check_callable("foreach", fn)
        partitioned.foreach_partition(self._query, "foreach", EachRow(fn))


# DataFrames for sessions to make


def statement_frame(
    runtime: Runtime, sql: str, schema: Schema, *, explain: str | None = None
) -> DataFrame:
    """The rows of a bound query; or of its EXPLAIN, which is "plan" or "analyze"."""
    select, held = QueryText(sql, schema), runtime.handles(sql)
    return DataFrame(LazyQuery(runtime=runtime, select=select, explain=explain, held=held))


def relation_frame(runtime: Runtime, sql: str, schema: Schema, *, alias: str = "") -> DataFrame:
    """All rows of a relation in FROM: a table, with its name as the alias, or a table function."""
    select, held = relation(sql, schema, alias), runtime.handles(sql)
    return DataFrame(LazyQuery(runtime=runtime, select=select, held=held))


def source_frame(runtime: Runtime, held: HeldSource) -> DataFrame:
    """The rows of a source, which is known as long as this DataFrame or what is derived from it."""
    select = relation(ident(held.name), held.schema, held.name)
    return DataFrame(LazyQuery(runtime=runtime, select=select, held=(held,)))


def cached_frame(runtime: Runtime, cached: CachedRows) -> DataFrame:
    """All cached rows, which live as long as this DataFrame or what is derived from it."""
    return DataFrame(partitioned.cached_query(runtime, cached))


def local_frame(runtime: Runtime, rows: pa.Table) -> DataFrame:
    """The answer of a statement that has run in the front end."""
    return DataFrame(LazyQuery(runtime=runtime, local_rows=rows))


def explaining_frame(runtime: Runtime, text: str) -> DataFrame:
    """The answer of an EXPLAIN that has run in the front end."""
    rows = pa.table({"explain_value": [text]})
    return DataFrame(LazyQuery(runtime=runtime, explain="plan", local_rows=rows))


def reading(frame: DataFrame, others: Sequence[DataFrame]) -> DataFrame:
    """The same rows, for which what the others read is kept, too."""
    query = query_of(frame)
    if not others or query.select is None:
        return frame
    return DataFrame(query.over(query.select, *map(query_of, others)))


def view_frame(query: LazyQuery, name: str) -> DataFrame:
    """A view's rows; unlike with `alias`, SQL text can't use its name as a qualifier."""
    return DataFrame(query.over(query.to_select().aliased(name, in_sql=False)))


def verifying(frame: DataFrame) -> DataFrame:
    """The same rows, compared with plain DuckDB's on each action."""
    return DataFrame(replace(query_of(frame), verified=True))
