"""GroupedData: groups of rows, to aggregate."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from minishark.dataframe.actions import rows, to_arrow
from minishark.dataframe.applied import check_callable
from minishark.dataframe.column import (
    Column,
    Kind,
    SessionWindow,
    call,
    case,
    column,
    count_of_rows,
    mean_of,
    only_reference,
    row_number,
    star_call,
    sum_of,
    with_row_numbers,
)
from minishark.dataframe.doors import doors
from minishark.dataframe.lazy_query import F, LazyQuery, framed, query_of
from minishark.dataframe.local import SchemaLike
from minishark.dataframe.names import CamelCase, readable
from minishark.dataframe.partitioned import apply_to_groups
from minishark.dataframe.select import Select, is_number
from minishark.dataframe.structs import struct
from minishark.dataframe.verbs import (
    combined_by_name,
    distinct,
    filtered,
    ordered,
    project,
    with_columns,
)
from minishark.dataframe.window import UNBOUNDED, Window
from minishark.errors import OptionError, QueryError
from minishark.worker.functions import CoGroups

# Columns that users do not see: the number of a row's session, and its window.
_BEGINS, _SESSION = "minishark_session", "session_window"
_ROW = "minishark_row"  # the number of a row


@doors
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedData(CamelCase, Generic[F]):
    """The result of `DataFrame.group_by`; aggregates make a DataFrame of it.

    Attributes:
        frame: the rows.
        keys: the grouping columns.
        sets: "ROLLUP" or "CUBE", which add subtotals, or "GROUPING SETS"; empty for plain groups.
        pivot_on: the column whose values become columns.
        pivot_values: those values.
        positions: of GROUPING SETS, the positions among the keys of each set's.

    Examples:
        >>> from minishark import functions as F
        >>> df = session.create_dataframe([("a", 1), ("b", 2), ("a", 3)], ["k", "v"])
        >>> df.group_by("k").agg(F.sum("v").alias("total"), F.count()).order_by("k").collect()
        [Row(k='a', total=4, count=2), Row(k='b', total=2, count=1)]
    """

    frame: F
    keys: tuple[Column, ...]
    sets: str = ""
    pivot_on: Column | None = None
    pivot_values: tuple[Any, ...] = ()
    positions: tuple[tuple[int, ...], ...] = ()

    def __repr__(self) -> str:
        kind = {"": "GroupBy", "ROLLUP": "Rollup", "CUBE": "Cube"}.get(self.sets, "GroupingSets")
        keys = ", ".join(map(_label, self.keys))
        value = repr(self.frame).partition("[")[2]
        return f"GroupedData[grouping expressions: [{keys}], value: [{value}, type: {kind}]"

    def __getattr__(self, name: str) -> Any:
        """As of all such classes; groups have no rows, which people ask them for."""
        if name in (
            "collect",
            "show",
            "limit",
            "filter",
            "select",
            "to_pandas",
            "toPandas",
            "write",
        ):
            raise AttributeError(
                f"Groups have no rows, and so no {name}: aggregate them first, as in .count() or "
                '.agg(F.sum("column")).',
                name=name,
            )
        return CamelCase.__getattr__(self, name)

    def __getitem__(self, name: Any) -> Any:
        """Groups have no columns of their own.

        Raises:
            TypeError: always; the message says how columns are aggregated.
        """
        raise TypeError(
            f"Groups have no columns: aggregate, as in .agg(F.mean({name!r})) or .mean({name!r})."
        )

    def agg(self, *aggregates: Column | Mapping[str, str]) -> F:
        """One row for each group.

        Args:
            aggregates: Columns such as `functions.sum("v")`, or one mapping of columns to the names
                of aggregates.

        Raises:
            OptionError: an argument is no aggregate, or there are no arguments.
        """
        columns: list[Column] = []
        for item in aggregates:
            match item:
                case Column():
                    columns.append(item)
                case Mapping():
                    columns += [_named(name, function) for name, function in item.items()]
                case _:
                    raise OptionError(f"agg() takes Columns, not {type(item).__name__}.")
        if not columns or (not self.keys and any(c.kind is Kind.ROW for c in columns)):
            raise OptionError("agg() takes aggregates, such as functions.sum('a'), at least one.")
        if any(isinstance(key, SessionWindow) for key in self.keys):
            return _with_sessions(self).agg(*columns)
        # Neither aggregates nor GROUP BY can contain windows, by which seeds number the rows.
        keys = tuple(with_row_numbers(key, column(_ROW)) for key in self.keys)
        numbered = [with_row_numbers(column_, column(_ROW)) for column_ in columns]
        if not all(map(operator.is_, (*keys, *numbered), (*self.keys, *columns))):
            query = query_of(self.frame)
            query = query.derived(with_columns(query.to_select(), {_ROW: row_number()}))
            return replace(self, frame=framed(query, self.frame), keys=keys).agg(*numbered)
        made = query_of(self.frame).derived(self._select(self._pivoted(columns)))
        return framed(made, self.frame)

    def count(self) -> F:
        """The number of rows of each group."""
        return self.agg(count_of_rows())

    def sum(self, *columns: str) -> F:
        """The sum of each column; of all numeric columns if none is named."""
        return self._each("sum", columns)

    def avg(self, *columns: str) -> F:
        """The mean of each column; of all numeric columns if none is named."""
        return self._each("avg", columns)

    mean = avg

    def min(self, *columns: str) -> F:
        """The minimum of each column; of all numeric columns if none is named."""
        return self._each("min", columns)

    def max(self, *columns: str) -> F:
        """The maximum of each column; of all numeric columns if none is named."""
        return self._each("max", columns)

    def apply_in_arrow(self, fn: Callable[..., Any], schema: SchemaLike) -> F:
        """What a function returns for each group of rows.

        Args:
            fn: `fn(table)` or `fn(key, table)`; takes and returns a pyarrow table. The key is a
                tuple of Arrow scalars, one for each grouping column.
            schema: the columns that it returns: "id BIGINT, name VARCHAR", a mapping of names to
                types, or a pyarrow schema.

        Raises:
            DataError: the schema is not valid.
            OptionError: the function can't be pickled, or a key is not a plain column.
        """
        return self._applied(fn, schema, pandas=False)

    def apply_in_pandas(self, fn: Callable[..., Any], schema: SchemaLike) -> F:
        """What a function returns for each group of rows, as pandas frames.

        Args:
            fn: `fn(frame)` or `fn(key, frame)`, returns a frame. The key is a tuple of values.
            schema: the columns that it returns; see `apply_in_arrow`.
        """
        return self._applied(fn, schema, pandas=True)

    def cogroup(self, other: GroupedData[F]) -> CoGroupedData[F]:
        """The groups of two DataFrames with equal keys, for a function of both.

        Raises:
            OptionError: the numbers of keys differ.
        """
        if len(self.keys) != len(other.keys) or not self.keys:
            raise OptionError("cogroup() takes groups by as many columns on both sides.")
        return CoGroupedData(self, other)

    def _applied(self, fn: Callable[..., Any], schema: SchemaLike, *, pandas: bool) -> F:
        if self.sets or self.pivot_on is not None:
            raise OptionError("Functions apply to plain groups: without rollup, cube and pivot.")
        made = apply_to_groups(query_of(self.frame), self.keys, fn, schema, pandas=pandas)
        return framed(made, self.frame)

    def pivot(self, column_: str | Column, values: Sequence[Any] | None = None) -> GroupedData[F]:
        """The values of a column become columns, each with the aggregates of its rows.

        Each aggregate of an expression sees only the rows with the value. For a group without such
        rows the result is the expression over no rows: mostly NULL, but 0 for `count`, 1 for
        `count + 1`, 0 for `coalesce(sum, 0)` and [] for `collect_list`. (PySpark returns NULL for
        all of these that are numbers.)

        Args:
            column_: the column.
            values: which values; None runs a query for all distinct ones, sorted, NULL first.

        Raises:
            OptionError: there is a pivot already.
        """
        if self.pivot_on is not None:
            raise OptionError("There is one pivot at most.")
        on = column(column_) if isinstance(column_, str) else column_
        if values is None:
            values = _values(query_of(self.frame), on)
        return replace(self, pivot_on=on, pivot_values=tuple(values))

    def _each(self, function: str, names: Sequence[str]) -> F:
        keys = [reference.name for reference in map(only_reference, self.keys) if reference]
        query = query_of(self.frame)
        chosen = names or [
            name for name, type_ in query.dtypes() if is_number(type_) and name not in keys
        ]
        if query.runtime.dialect.is_sparks and function in {"sum", "avg"}:
            texts = [name for name, type_ in query.dtypes() if type_ == "VARCHAR" and name in names]
            if texts:
                raise QueryError(
                    f"{function}() of groups takes columns of numbers, and {texts[0]!r} is text:"
                    f" write agg(F.{function}({texts[0]!r})), which reads numbers from it."
                )
        return self.agg(*(_named(name, function) for name in chosen))

    def _pivoted(self, aggregates: Sequence[Column]) -> list[Column]:
        if self.pivot_on is None:
            return list(aggregates)
        out = []
        for item in self.pivot_values:
            condition = self.pivot_on.eq_null_safe(item)
            for aggregate in aggregates:
                called = "null" if item is None else str(item)
                called = called.lower() if isinstance(item, bool) else called
                name = called if len(aggregates) == 1 else f"{called}_{_label(aggregate)}"
                made = aggregate.filter(condition)
                if query_of(self.frame).runtime.dialect.is_sparks:
                    made = case(count_of_rows().filter(condition) > 0, made)
                out.append(made.alias(name))
        return out

    def _select(self, aggregates: Sequence[Column]) -> Select:
        inner = query_of(self.frame).to_select().opened([*self.keys, *aggregates])
        items = [inner.item(column) for column in (*self.keys, *aggregates)]
        # GROUP BY takes a literal number for a position, so constant keys are named by theirs.
        texts = [
            key.sql(inner.resolve) if key.references else str(position)
            for position, key in enumerate(self.keys, 1)
        ]
        listed = ", ".join(texts)
        if self.positions:
            listed = ", ".join(f"({', '.join(texts[i] for i in one)})" for one in self.positions)
        groups = f"{self.sets} ({listed})" if self.sets else listed
        return replace(inner, items=tuple(items), group_by=groups)


def _values(query: LazyQuery, on: Column) -> list[Any]:
    """The distinct values of a column, sorted, NULL first."""
    alone = project(query, [on.alias("value")])
    each_once = alone.derived(distinct(alone.to_select()))
    in_order = each_once.derived(ordered(each_once.to_select(), ["value"], ascending=True))
    values = [row[0] for row in rows(in_order, (to_arrow(in_order),))]
    return sorted(values, key=lambda value: value is not None)


def _with_sessions(groups: GroupedData[F]) -> GroupedData[F]:
    """The groups with a plain column in place of a window of sessions."""
    windows = [key for key in groups.keys if isinstance(key, SessionWindow)]
    if len(windows) > 1:
        raise OptionError("group_by() takes one session_window() at most.")
    (session,) = windows
    others = tuple(key for key in groups.keys if key is not session)
    in_time = Window.partition_by(*others).order_by(session.start)
    # A session begins where the time is later than the ends of all rows before.
    ended = call("max", session.end, kind=Kind.GROUP).over(in_time.rows_between(-UNBOUNDED, -1))
    begins = case(session.start <= ended, 0).otherwise(1)
    query = query_of(groups.frame)
    timed = query.derived(filtered(query.to_select(), session.start.is_not_null()))
    begun = timed.derived(with_columns(timed.to_select(), {_BEGINS: begins}))
    number = call("sum", column(_BEGINS), kind=Kind.GROUP).over(in_time.rows_between(-UNBOUNDED, 0))
    numbered = begun.derived(with_columns(begun.to_select(), {_BEGINS: number}))
    whole = Window.partition_by(*others, column(_BEGINS))
    window = struct(
        call("min", session.start, kind=Kind.GROUP).over(whole).alias("start"),
        call("max", session.end, kind=Kind.GROUP).over(whole).alias("end"),
    )
    made = numbered.derived(with_columns(numbered.to_select(), {_SESSION: window}))
    key = column(_SESSION).alias(session.name or _SESSION)
    keys = tuple(key if grouped is session else grouped for grouped in groups.keys)
    return replace(groups, frame=framed(made, groups.frame), keys=keys)


@dataclass(frozen=True, slots=True)
class CoGroupedData(CamelCase, Generic[F]):
    """The result of `GroupedData.cogroup`; a function makes a DataFrame of it.

    Attributes:
        left: the groups of one DataFrame.
        right: those of the other.

    Examples:
        >>> import pandas as pd
        >>> a = session.create_dataframe([(1, "x"), (2, "y")], ["id", "l"])
        >>> b = session.create_dataframe([(1, 10), (1, 20)], ["id", "r"])
        >>> def joined(left, right):
        ...     return pd.DataFrame({"l": left["l"], "n": [len(right)] * len(left)})
        >>> both = a.group_by("id").cogroup(b.group_by("id"))
        >>> sorted(both.apply_in_pandas(joined, "l VARCHAR, n BIGINT").collect())
        [Row(l='x', n=2), Row(l='y', n=0)]
    """

    left: GroupedData[F]
    right: GroupedData[F]

    def apply_in_pandas(self, fn: Callable[..., Any], schema: SchemaLike) -> F:
        """What a function returns for the rows of both with equal keys, as pandas frames.

        Args:
            fn: `fn(left, right)` or `fn(key, left, right)`, returns a frame. One side may be empty.
            schema: the columns that it returns; see `GroupedData.apply_in_arrow`.

        Raises:
            DataError: the schema is not valid.
            OptionError: the function can't be pickled.
        """
        return self._applied(fn, schema, pandas=True)

    def apply_in_arrow(self, fn: Callable[..., Any], schema: SchemaLike) -> F:
        """As `apply_in_pandas`, with pyarrow tables."""
        return self._applied(fn, schema, pandas=False)

    def _applied(self, fn: Callable[..., Any], schema: SchemaLike, *, pandas: bool) -> F:
        keys = [f"key{number}" for number, _ in enumerate(self.left.keys)]
        sides = []
        for groups, side in ((self.left, "left"), (self.right, "right")):
            query = query_of(groups.frame)
            names = [name for name, _ in query.dtypes()]
            row = struct(*map(query.to_select().column, names)).alias(side)
            renamed = [key.alias(name) for key, name in zip(groups.keys, keys, strict=True)]
            sides.append(project(query, [*renamed, row]))
        whole = combined_by_name(*sides, allow_missing=True)
        check_callable("apply_in_pandas", fn)
        with_key = len(inspect.signature(fn).parameters) == len(("key", *sides))
        both = CoGroups(fn, len(keys), with_key, pandas)
        groups = GroupedData(frame=framed(whole, self.left.frame), keys=tuple(map(column, keys)))
        return groups.apply_in_arrow(both, schema)


def _named(name: str, function: str) -> Column:
    if name == "*":
        return replace(star_call(function), name="count")
    if function.lower() == "sum":
        return sum_of(column(name))
    if function.lower() in {"avg", "mean"}:
        return mean_of(column(name))
    return call(function, column(name), kind=Kind.GROUP)


def _label(aggregate: Column) -> str:
    return aggregate.name or readable(aggregate.sql(lambda reference: reference.name))
