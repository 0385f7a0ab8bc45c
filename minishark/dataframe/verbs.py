"""Verbs that make one SELECT of another: columns, rows, set operations.

A verb is a function of a Select that returns a Select, which `LazyQuery.derived` binds. The few
whose result is text that only DuckDB can tell the columns of work on LazyQueries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import duckdb

from minishark.dataframe.column import (
    Column,
    Generator,
    Level,
    Reference,
    column_or_name,
    filter_condition,
    flat,
    has_windows,
    only_reference,
    text_column,
    value,
)
from minishark.dataframe.lazy_query import LazyQuery
from minishark.dataframe.randomness import rand
from minishark.dataframe.select import Item, Select, parenthesized, statement
from minishark.errors import ColumnError, OptionError, UnsupportedError

_CONDITION = "minishark_condition"  # a column that users do not see
_COMBINED_MAX = 4_096  # sides of UNION and its like; planning takes 40 s then, and grows squared

# Columns


def project(query: LazyQuery, columns: Sequence[Any]) -> LazyQuery:
    given = [column_or_name(column) for column in flat(columns)]
    chosen = [part for column in given for part in _parts(column, query)]
    if not chosen:
        raise OptionError("select() needs at least one column.")
    stars = [_star_qualifier(column) for column in chosen]
    named = [column for column, star in zip(chosen, stars, strict=True) if star is None]
    inner = query.to_select().opened(named)
    items: list[Item] = []
    for column, star in zip(chosen, stars, strict=True):
        items += [inner.item(column)] if star is None else _all_items(inner, star)
    select = replace(inner, items=tuple(items))
    schema = query.schema_of(Select.sql, select)
    if len(schema) != len(items):  # text such as COLUMNS(*) is several columns
        return query.over(statement(select.sql(), schema))
    return query.over(select.typed(schema))


def _parts(column: Column, query: LazyQuery) -> tuple[Column, ...]:
    """The columns of a generator, which depend on its argument's type; other Columns alone."""
    if not isinstance(column, Generator):
        return (column,)
    if column.of_map and column.argument is not None:
        inner = query.to_select().opened([column.argument])
        alone = query.derived(replace(inner, items=(inner.item(column.argument),)))
        if alone.dtypes()[0][1].startswith("MAP("):
            return column.of_map
    return column.of_list


def project_expressions(query: LazyQuery, expressions: Sequence[str]) -> LazyQuery:
    names = [attribute.name.lower() for attribute in query.to_select().attributes]
    texts = [text.strip() for text in flat(expressions)]
    # A name alone keeps the column's identity; SQL text would make it a new column.
    plain = ("*", *names)
    return project(query, [t if t.lower() in plain else text_column(t) for t in texts])


def _star_qualifier(column: Column) -> str | None:
    """The alias before `.*`; empty for `*` alone, None for any other Column."""
    reference = only_reference(column)
    if reference is None or reference.id is not None:
        return None
    qualifier, _, star = reference.name.rpartition(".")
    return qualifier.lower() if star == "*" else None


def _all_items(select: Select, qualifier: str) -> list[Item]:
    items = [i for i in select.items if not qualifier or qualifier in i.attribute.qualifiers]
    return items or _all_fields(select, qualifier)


def _all_fields(select: Select, name: str) -> list[Item]:
    """The fields of a struct, for `name.*`."""
    try:
        index, fields = select.find(Reference(name))
    except ColumnError:
        index, fields = -1, ()
    type_ = "" if index < 0 or fields else select.items[index].attribute.type
    if not type_.startswith("STRUCT(") or type_.endswith("]"):
        raise ColumnError(
            f"There is no DataFrame with the alias {name!r} in this one, and no struct so called."
        )
    struct = Column((Reference(name),), level=Level.ATOM)
    names = [field for field, _ in duckdb.sqltype(type_).children]
    return [select.item(struct.get_field(field).alias(field)) for field in names]


def with_columns(select: Select, columns: Mapping[str, Any]) -> Select:
    new = {name: value(column).alias(name) for name, column in columns.items()}
    inner = select.opened(new.values())
    by_name = {name.lower(): inner.item(column) for name, column in new.items()}
    items = [by_name.get(item.attribute.name.lower(), item) for item in inner.items]
    names = [item.attribute.name.lower() for item in inner.items]
    added = [item for name, item in by_name.items() if name not in names]
    return replace(inner, items=(*items, *added))


def with_columns_renamed(select: Select, names: Mapping[str, str]) -> Select:
    inner = select.opened(())
    items = list(inner.items)
    for existing, new in names.items():
        index, _ = select.find(Reference(existing))
        items[index] = items[index].called(new)
    return replace(inner, items=tuple(items))


def to_df(select: Select, names: Sequence[str]) -> Select:
    if len(names) != len(select.items):
        raise OptionError(f"to_df() takes {len(select.items)} names, not {len(names)}.")
    inner = select.opened(())
    items = (item.called(name) for item, name in zip(inner.items, names, strict=True))
    return replace(inner, items=tuple(items))


def drop(select: Select, columns: Sequence[Any], *, all_named: bool = False) -> Select:
    inner = select.opened(())
    dropped = []
    for item in flat(columns):
        if all_named and isinstance(item, str):
            names = [attribute.name.lower() for attribute in inner.attributes]
            dropped += [i for i, name in enumerate(names) if name == item.lower().strip("`")]
            continue
        column = column_or_name(item)
        reference = only_reference(column)
        if reference is None:
            raise OptionError("drop() takes columns, not expressions.")
        index, fields = inner.find(reference)
        called = inner.attributes[index].name.lower() == reference.name.lower()
        if all_named and (fields or (called and "." in reference.name)):
            continue  # a field is no column
        dropped.append(index)
    items = tuple(item for index, item in enumerate(inner.items) if index not in dropped)
    if not items:
        raise OptionError("A DataFrame has at least one column; this would drop all.")
    return replace(inner, items=items)


# Rows


def filtered(select: Select, condition: Any) -> Select:
    column = filter_condition(condition)
    if has_windows(column):  # which WHERE can't contain: the condition is a column, for a moment
        inner = select.opened([column])
        item = inner.item(column.alias(_CONDITION))
        nested = replace(inner, items=(*inner.items, item)).nested()
        return replace(nested, items=nested.items[:-1], where=(nested.items[-1].sql,))
    inner = select.opened([column], filtering=True)
    return replace(inner, where=(*inner.where, column.sql(inner.resolve)))


def ordered(
    select: Select,
    columns: Sequence[Any],
    ascending: bool | Sequence[bool],
    *,
    hidden: bool = False,
) -> Select:
    keys = [sort_key(column, select) for column in flat(columns)]
    ups = list(ascending) if isinstance(ascending, list | tuple) else [ascending] * len(keys)
    if not keys or len(ups) != len(keys):
        raise OptionError("order_by() takes columns, and one `ascending` for each or for all.")
    keys = [key if up else key.desc() for key, up in zip(keys, ups, strict=True)]
    return (hidden and select.sorted_by_hidden(keys)) or select.sorted(keys)


def sort_key(item: Any, select: Select) -> Column:
    """A key of a sort; a whole number is the position of a column, or descending below 0."""
    if isinstance(item, str | Column):
        return column_or_name(item)
    if not _is_whole(item):
        raise OptionError(f"order_by() takes names, Columns and positions, not {item!r}.")
    key = _at(abs(item), select)
    return key.desc() if item < 0 else key


def group_key(item: Any, select: Select) -> Column:
    """A key of groups; a whole number is the position of a column, from 1."""
    return _at(item, select) if _is_whole(item) else column_or_name(item)


def _is_whole(item: Any) -> bool:
    return isinstance(item, Integral) and not isinstance(item, bool)


def _at(place: int, select: Select) -> Column:
    count = len(select.items)
    if not 0 < place <= count:
        raise ColumnError(
            f"There is no column {place}: whole numbers are positions, from 1 to {count}."
        )
    return select.column_at(place - 1)


def distinct(select: Select) -> Select:
    if select.distinct or select.order_by or select.is_cut:
        select = select.nested()
    return replace(select, distinct="DISTINCT")


def distinct_on(select: Select, subset: Sequence[str]) -> Select:
    """One row for each combination of values in `subset`: the first in the order of rows."""
    if isinstance(subset, str) or not subset:
        raise OptionError("drop_duplicates() takes a list of names.")
    # ORDER BY may stay in the same SELECT, as it decides which rows DISTINCT ON keeps; but all
    # that it names must be plain columns.
    unsorted = replace(select, order_by=())
    simple = unsorted.is_open and all(i.plain and not i.aliased for i in select.items)
    select = select if simple else select.nested()
    keys = [column_or_name(name).sql(select.resolve) for name in subset]
    return replace(select, distinct=f"DISTINCT ON ({', '.join(keys)})")


def sampled(select: Select, with_replacement: Any, fraction: Any, seed: int | None) -> Select:
    if not isinstance(with_replacement, bool | None):  # left out, the others are one place earlier
        seed = fraction if seed is None else seed
        with_replacement, fraction = None, with_replacement
    if with_replacement:
        raise UnsupportedError("minishark does not sample with replacement.")
    if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise OptionError("sample() takes a fraction from 0 to 1.")
    return filtered(select, rand(seed) < float(fraction))


# Set operations


def combined(left: LazyQuery, operator: str, right: LazyQuery) -> LazyQuery:
    sides = left.to_select(), right.to_select()

    def text(*sides: Select) -> str:
        return f"\n{operator}\n".join(
            side.sql() if side.is_open and not side.source.query else parenthesized(side.sql())
            for side in sides
        )

    whole = text(*sides)
    if whole.count(f"\n{operator}\n") >= _COMBINED_MAX:
        raise UnsupportedError(
            f"This combines more than {_COMBINED_MAX:,} queries, which would be planned for "
            "minutes: persist() some of them first, as df = df.union(df).persist(), or read many "
            "files at once by a list of paths."
        )
    return left.over(statement(whole, left.schema_of(text, *sides)), right)


def combined_by_name(left: LazyQuery, right: LazyQuery, *, allow_missing: bool) -> LazyQuery:
    mine, theirs = ({name.lower(): name for name, _ in q.dtypes()} for q in (left, right))
    missing = [theirs[name] for name in theirs if name not in mine]
    missing += [mine[name] for name in mine if name not in theirs]
    if missing and not allow_missing:
        raise ColumnError(
            f"Only one side has {', '.join(missing)}; allow_missing_columns=True makes NULLs."
        )
    return combined(left, "UNION ALL BY NAME", right)
