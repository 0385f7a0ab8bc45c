"""DataFrame: a lazy statement, built verb by verb.

Each verb makes a new SELECT (`select.py`) and lets the planning database bind it at once, so that
a misspelt name or a wrong type is an error where it was typed. Nothing runs before an action.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from minishark.dataframe.actions import KeptRows, Runner
from minishark.dataframe.column import (
    Column,
    Level,
    Reference,
    column_or_name,
    text_column,
    value,
)
from minishark.dataframe.grouped import GroupedData
from minishark.dataframe.join import join
from minishark.dataframe.names import CamelCase, ident, nearest, spelt_otherwise
from minishark.dataframe.partitioned import Partitioned, Unkept
from minishark.dataframe.select import (
    Item,
    Select,
    Written,
    parenthesized,
    relation,
    statement,
)
from minishark.dataframe.shaping import Shaping
from minishark.errors import ColumnError, OptionError
from minishark.expressions import Schema
from minishark.query.metrics import QueryMetrics


class DataFrame(Shaping, Partitioned, CamelCase):
    """A lazy statement; it runs again for each action, and its rows are not kept.

    All methods have PySpark's names in snake_case, and answer to camelCase too.

    Attributes:
        runner: the session.
        held: what must live as long as this.
        verified: whether actions compare the answer with plain DuckDB's.

    Examples:
        >>> df = session.create_dataframe([("Ada", 36), ("Alan", 41)], ["name", "age"])
        >>> df.filter(df.age > 40).select("name").collect()
        [Row(name='Alan')]
        >>> print(df.filter("age > 40").select("name").sql())  # doctest: +ELLIPSIS
        SELECT name
        FROM ...
        WHERE age > 40
    """

    def __init__(
        self,
        runner: Runner,
        select: Select | Written | None,
        *,
        explain: str | None = None,
        known: pa.Table | None = None,
        held: tuple[object, ...] = (),
    ) -> None:
        self.runner = runner
        self._select = select
        self._explain = explain
        self._known = known
        self.held = held
        self.verified = False
        self._unkept: Unkept | None = None
        self._metrics: QueryMetrics | None = None

    @classmethod
    def of_statement(
        cls, runner: Runner, sql: str, schema: Schema, explain: str | None = None
    ) -> DataFrame:
        """The rows of a SELECT that is bound already."""
        return cls(runner, Written(sql, schema), explain=explain)

    @classmethod
    def of_relation(
        cls,
        runner: Runner,
        sql: str,
        schema: Schema,
        *,
        alias: str = "",
        held: tuple[object, ...] = (),
    ) -> DataFrame:
        """All rows of a table, or of a function in FROM.

        Args:
            runner: what runs it.
            sql: the relation as FROM has it.
            schema: its columns.
            alias: the name under which its columns can be qualified; its own, for a table.
            held: what must live as long as this DataFrame and all that are made of it.
        """
        return cls(runner, relation(sql, schema, alias), held=held)

    @classmethod
    def of_kept(cls, runner: Runner, kept: KeptRows) -> DataFrame:
        """All rows that lie in the cluster, for as long as this or what is made of it lives."""
        return cls.of_relation(
            runner, ident(kept.name), kept.schema, alias=kept.name, held=(kept.handle,)
        )

    def _frame(self) -> DataFrame:
        return self

    # Making others of it

    @property
    def select_now(self) -> Select:
        """The SELECT that this stands for; known rows are loaded into the cluster first."""
        if self._known is not None or self._explain or self._select is None:
            kept = self.runner.keep_rows(self.to_arrow())
            self.held = (*self.held, kept.handle)
            self._select = relation(ident(kept.name), kept.schema, kept.name)
            self._known = self._explain = None
        return self._select.select() if isinstance(self._select, Written) else self._select

    def derived(self, select: Select, *others: DataFrame) -> DataFrame:
        """A DataFrame of a SELECT over this one (and others), once DuckDB has accepted it."""
        bound = select.typed(self.runner.bind_statement(select.sql()))
        return self._holding(bound, *others)

    def _holding(self, select: Select, *others: DataFrame) -> DataFrame:
        """A DataFrame that needs what this one and the others need."""
        held = [*self.held, *(item for other in others for item in other.held)]
        return DataFrame(self.runner, select, held=tuple(dict.fromkeys(held)))

    # What it is

    def sql(self) -> str:
        """The statement that an action runs, in DuckDB's SQL."""
        return self.select_now.sql() if self._select is None else self._select.sql()

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        if self._known is not None:
            return self._known.schema
        return self.runner.arrow_schema(self.sql())

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self.dtypes]

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Name and DuckDB type of each column (Arrow type, for rows that are known already)."""
        if self._known is not None:
            return [(field.name, str(field.type)) for field in self._known.schema]
        if self._explain or self._select is None:
            return [("explain_value", "VARCHAR")]
        return [(attribute.name, attribute.type) for attribute in self.select_now.attributes]

    def __getitem__(self, key: Any) -> Any:
        """`df["a"]` is a column, `df[["a", "b"]]` a selection, `df[condition]` a filter."""
        match key:
            case str():
                return self._column(key)
            case list() | tuple():
                return self.select(*key)
            case Column():
                return self.filter(key)
            case _:
                raise OptionError(
                    "df[...] takes a name, a list of names, or a condition; rows have no positions."
                )

    def __getattr__(self, name: str) -> Any:
        """A method in camelCase, or a column.

        Raises:
            AttributeError: neither; the sentence has the nearest names.
        """
        if name.startswith("_"):
            raise AttributeError(name)
        methods = [item for item in dir(DataFrame) if not item.startswith("_")]
        if name in self.columns:
            return self._column(name)
        meant = spelt_otherwise(name, methods)
        if meant is not None:
            return getattr(self, meant)
        near = nearest(name, [*self.columns, *methods])
        raise AttributeError(f"DataFrame has no column or method {name!r}.{near}", name=name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self.columns if name.isidentifier())]

    def _column(self, name: str) -> Column:
        index, fields = self.select_now.find(Reference(name))
        if fields:
            return column_or_name(name)
        # The newest identity is the one that no other DataFrame's column has.
        identity = max(self.select_now.attributes[index].ids)
        return Column((Reference(name, identity),), level=Level.ATOM)

    # Columns

    def select(self, *columns: Any) -> DataFrame:
        """These columns: names, Columns, or "*" for all.

        Raises:
            ColumnError: there is no such column.
        """
        chosen = [column_or_name(column) for column in _flat(columns)]
        if not chosen:
            raise OptionError("select() needs at least one column.")
        stars = [_starred(column) for column in chosen]
        named = [column for column, star in zip(chosen, stars, strict=True) if star is None]
        inner = self.select_now.opened(named)
        items: list[Item] = []
        for column, star in zip(chosen, stars, strict=True):
            items += [inner.item(column)] if star is None else _all_items(inner, star)
        select = replace(inner, items=tuple(items))
        schema = self.runner.bind_statement(select.sql())
        if len(schema) != len(items):  # text such as COLUMNS(*) is several columns
            return self._holding(statement(select.sql(), schema))
        return self._holding(select.typed(schema))

    def select_expr(self, *expressions: str) -> DataFrame:
        """Expressions in SQL: `df.select_expr("a + 1 AS b", "upper(name)", "*")`."""
        texts = (text.strip() for text in _flat(expressions))
        names = [name.lower() for name in self.columns]
        simple = ("*", *names)
        return self.select(
            *(text if text.lower() in simple else text_column(text) for text in texts)
        )

    def with_column(self, name: str, column: Any) -> DataFrame:
        """All columns and one more; it takes the place of one that has its name."""
        return self.with_columns({name: column})

    def with_columns(self, columns: Mapping[str, Any]) -> DataFrame:
        """All columns and more of them; they take the places of those that have their names."""
        new = {name: value(column).alias(name) for name, column in columns.items()}
        inner = self.select_now.opened(new.values())
        by_name = {name.lower(): inner.item(column) for name, column in new.items()}
        items = [by_name.get(item.attribute.name.lower(), item) for item in inner.items]
        known = [item.attribute.name.lower() for item in inner.items]
        added = [item for name, item in by_name.items() if name not in known]
        return self.derived(replace(inner, items=(*items, *added)))

    def with_column_renamed(self, existing: str, new: str) -> DataFrame:
        """All columns, one with another name."""
        return self.with_columns_renamed({existing: new})

    def with_columns_renamed(self, names: Mapping[str, str]) -> DataFrame:
        """All columns, some with other names: old names to new ones."""
        inner = self.select_now.opened(())
        items = list(inner.items)
        for existing, new in names.items():
            index, _ = self.select_now.find(Reference(existing))
            items[index] = items[index].called(new)
        return self.derived(replace(inner, items=tuple(items)))

    def to_df(self, *names: str) -> DataFrame:
        """All columns with new names, in their order."""
        if len(names) != len(self.columns):
            raise OptionError(f"to_df() takes {len(self.columns)} names, not {len(names)}.")
        inner = self.select_now.opened(())
        items = [item.called(name) for item, name in zip(inner.items, names, strict=True)]
        return self.derived(replace(inner, items=tuple(items)))

    def drop(self, *columns: str | Column) -> DataFrame:
        """All columns but these.

        Raises:
            ColumnError: there is no such column (PySpark would say nothing).
        """
        inner = self.select_now.opened(())
        dropped = []
        for column in map(column_or_name, _flat(columns)):
            if column.reference is None:
                raise OptionError("drop() takes columns, not expressions.")
            dropped.append(inner.find(column.reference)[0])
        items = [item for index, item in enumerate(inner.items) if index not in dropped]
        if not items:
            raise OptionError("A DataFrame has at least one column; this would drop all.")
        return self.derived(replace(inner, items=tuple(items)))

    def alias(self, name: str) -> DataFrame:
        """The same, called `name`: its columns are also `col("name.column")`.

        The columns of the alias are columns of their own, so a DataFrame can be joined to itself:
        `a, b = df.alias("a"), df.alias("b")`, then `a.join(b, a.parent == b.id)`.
        """
        return self._holding(self.select_now.aliased(name))

    def named(self, name: str) -> DataFrame:
        """The same as what `session.table(name)` gives: as `alias`, but SQL text can't use it."""
        return self._holding(self.select_now.aliased(name, in_sql=False))

    def transform(
        self, function: Callable[..., DataFrame], *arguments: Any, **named: Any
    ) -> DataFrame:
        """`function(self, ...)`: so that own steps chain like methods."""
        made = function(self, *arguments, **named)
        if not isinstance(made, DataFrame):
            raise OptionError(f"transform() got a {type(made).__name__} instead of a DataFrame.")
        return made

    # Rows

    def filter(self, condition: Any) -> DataFrame:
        """The rows for which a condition holds; also SQL text."""
        column = text_column(condition) if isinstance(condition, str) else condition
        if not isinstance(column, Column):
            raise OptionError("filter() takes a Column or SQL text; compare with == and not `is`.")
        return self.derived(self.select_now.filtered(column))

    where = filter  # noqa: A003 - the method above

    def order_by(self, *columns: Any, ascending: bool | Sequence[bool] = True) -> DataFrame:
        """The rows in the order of columns; NULLs last unless the Column says otherwise.

        Args:
            columns: names or Columns, which may end in `.desc()`, `.asc_nulls_first()` ...
            ascending: False for the reverse; or a list, one for each column.
        """
        keys = [column_or_name(column) for column in _flat(columns)]
        ups = list(ascending) if isinstance(ascending, list | tuple) else [ascending] * len(keys)
        if not keys or len(ups) != len(keys):
            raise OptionError("order_by() takes columns, and one `ascending` for each or for all.")
        ordered = [key if up else key.desc() for key, up in zip(keys, ups, strict=True)]
        return self.derived(self.select_now.sorted(ordered))

    sort = order_by

    def limit(self, count: int) -> DataFrame:
        """The first `count` rows."""
        return self.derived(self.select_now.limited(_whole(count, "limit")))

    def offset(self, count: int) -> DataFrame:
        """All but the first `count` rows."""
        return self.derived(self.select_now.skipped(_whole(count, "offset")))

    def distinct(self) -> DataFrame:
        """Each row once."""
        select = self.select_now
        if select.distinct or select.order_by or select.is_cut or select.sample:
            select = select.nested()
        return self.derived(replace(select, distinct="DISTINCT"))

    def drop_duplicates(self, subset: Sequence[str] | None = None) -> DataFrame:
        """One row for each combination of values in `subset` (of all columns, if None).

        Which row that is, is not defined, unless the DataFrame is sorted: then the first.
        """
        if subset is None:
            return self.distinct()
        if isinstance(subset, str) or not subset:
            raise OptionError("drop_duplicates() takes a list of names.")
        select = self.select_now
        unsorted = replace(select, order_by=())
        simple = unsorted.is_open and all(i.plain and not i.aliased for i in select.items)
        select = select if simple else select.nested()
        keys = [column_or_name(name).sql(select.resolve) for name in subset]
        return self.derived(replace(select, distinct=f"DISTINCT ON ({', '.join(keys)})"))

    # Several DataFrames

    def join(self, other: DataFrame, on: Any = None, how: str = "inner") -> DataFrame:
        """The rows of both that belong together.

        Args:
            other: the other side.
            on: names of columns that both have, which come first and once in the result; or a
                condition (or several), after which the result has all columns of both; None for
                all pairs of rows.
            how: "inner", "left", "right", "full", "semi" (rows of this side that have a match),
                "anti" (those that have none), "cross", "asof" or "asof_left"; PySpark's names too.

        Raises:
            ColumnError: a name means no column, or several.
            OptionError: there is no such kind of join.
        """
        self._check_same_session(other)
        return self.derived(join(self.select_now, other.select_now, on, how), other)

    def cross_join(self, other: DataFrame) -> DataFrame:
        """All pairs of rows."""
        return self.join(other, how="cross")

    def union(self, other: DataFrame) -> DataFrame:
        """The rows of both, duplicates too; columns are matched by position."""
        return self._combined("UNION ALL", other)

    union_all = union

    def union_by_name(self, other: DataFrame, allow_missing_columns: bool = False) -> DataFrame:
        """The rows of both, duplicates too; columns are matched by name.

        Args:
            other: the other rows.
            allow_missing_columns: whether a column that one side lacks is NULL there.

        Raises:
            ColumnError: a column is missing on one side.
        """
        mine, theirs = ({n.lower(): n for n in frame.columns} for frame in (self, other))
        missing = [theirs[n] for n in theirs if n not in mine]
        missing += [mine[n] for n in mine if n not in theirs]
        if missing and not allow_missing_columns:
            raise ColumnError(
                f"Only one side has {', '.join(missing)}; allow_missing_columns=True makes NULLs."
            )
        return self._combined("UNION ALL BY NAME", other)

    def intersect(self, other: DataFrame) -> DataFrame:
        """Each row that both have, once."""
        return self._combined("INTERSECT", other)

    def intersect_all(self, other: DataFrame) -> DataFrame:
        """The rows that both have, as often as both have them."""
        return self._combined("INTERSECT ALL", other)

    def subtract(self, other: DataFrame) -> DataFrame:
        """Each row that the other does not have, once."""
        return self._combined("EXCEPT", other)

    def except_all(self, other: DataFrame) -> DataFrame:
        """The rows, each as often as it is here more often than in the other."""
        return self._combined("EXCEPT ALL", other)

    def _combined(self, operator: str, other: DataFrame) -> DataFrame:
        self._check_same_session(other)
        sides = (_operand(frame.select_now) for frame in (self, other))
        text = f"\n{operator}\n".join(sides)
        return self._holding(statement(text, self.runner.bind_statement(text)), other)

    def _check_same_session(self, other: Any) -> None:
        if not isinstance(other, DataFrame):
            kind = type(other).__name__
            raise OptionError(f"A DataFrame is needed, not a {kind}; see create_dataframe().")
        if other.runner is not self.runner:
            raise OptionError("Both DataFrames must be of the same session.")

    # Groups

    def group_by(self, *columns: Any) -> GroupedData:
        """Rows that are equal in these columns, for aggregates."""
        return GroupedData(self, _keys(columns))

    groupby = group_by

    def rollup(self, *columns: Any) -> GroupedData:
        """As `group_by`, with subtotals for each shorter list of the columns, and a total."""
        return GroupedData(self, _keys(columns), "ROLLUP")

    def cube(self, *columns: Any) -> GroupedData:
        """As `group_by`, with subtotals for each subset of the columns."""
        return GroupedData(self, _keys(columns), "CUBE")

    def agg(self, *aggregates: Any) -> DataFrame:
        """One row: aggregates over all rows."""
        return GroupedData(self, ()).agg(*aggregates)

    def counted(self) -> DataFrame:
        """One row with the number of rows."""
        return GroupedData(self, ()).count()


def _starred(column: Column) -> str | None:
    """The alias before `.*`; empty for `*` alone, None for any other Column."""
    reference = column.reference
    if reference is None or reference.id is not None:
        return None
    qualifier, _, star = reference.name.rpartition(".")
    return qualifier.lower() if star == "*" else None


def _all_items(select: Select, qualifier: str) -> list[Item]:
    found = [i for i in select.items if not qualifier or qualifier in i.attribute.qualifiers]
    if not found:
        raise ColumnError(f"There is no DataFrame with the alias {qualifier!r} in this one.")
    return found


def _flat(columns: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of a call; they may come as one list too."""
    one = len(columns) == 1 and isinstance(columns[0], list | tuple)
    return tuple(columns[0]) if one else tuple(columns)


def _keys(columns: Sequence[Any]) -> tuple[Column, ...]:
    return tuple(column_or_name(column) for column in _flat(columns))


def _whole(count: Any, verb: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise OptionError(f"{verb}() takes a whole number from 0.")
    return count


def _operand(select: Select) -> str:
    """A SELECT beside UNION, INTERSECT or EXCEPT."""
    simple = select.is_open and not select.source.query
    return select.sql() if simple else parenthesized(select.sql())
