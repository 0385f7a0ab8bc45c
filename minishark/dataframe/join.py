"""Joins of two SELECTs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minishark.dataframe.column import Column, Reference
from minishark.dataframe.lazy_query import LazyQuery
from minishark.dataframe.names import ident, nearest
from minishark.dataframe.select import (
    Scoped,
    Select,
    Source,
    as_subquery,
    new_attribute,
    plain_item,
    select_from,
)
from minishark.dataframe.subqueries import correlated, new_alias
from minishark.errors import ColumnError, OptionError

_WORDS = {
    "inner": "JOIN",
    "cross": "CROSS JOIN",
    "left": "LEFT JOIN",
    "right": "RIGHT JOIN",
    "full": "FULL JOIN",
    "semi": "SEMI JOIN",
    "anti": "ANTI JOIN",
    "asof": "ASOF JOIN",
    "asof_left": "ASOF LEFT JOIN",
}
_ALIASES = {
    "outer": "full",
    "full_outer": "full",
    "fullouter": "full",
    "left_outer": "left",
    "leftouter": "left",
    "right_outer": "right",
    "rightouter": "right",
    "left_semi": "semi",
    "leftsemi": "semi",
    "left_anti": "anti",
    "leftanti": "anti",
}
_LEFT_ONLY = ("semi", "anti")


def join(left: Select, right: Select, on: Any, how: str, *, keys_first: bool = False) -> Select:
    """A join; of one that has the left side only, with `keys_first` names in `on` come first."""
    kind = _kind(how)
    parts = [] if on is None else [on] if isinstance(on, str | Column) else list(on)
    if not parts and kind in ("inner", "cross"):
        return _conditional(left, right, [], "cross")
    if not parts or kind == "cross":
        takes = "no `on`" if kind == "cross" else "`on`: names of columns, or a condition"
        raise OptionError(f"A join of kind {how!r} takes {takes}.")
    names = [part for part in parts if isinstance(part, str)]
    conditions = [part for part in parts if isinstance(part, Column)]
    if len(names) == len(parts):
        return _using(left, right, names, kind, keys_first=keys_first or kind not in _LEFT_ONLY)
    if len(conditions) == len(parts):
        return _conditional(left, right, conditions, kind)
    raise OptionError("`on` is a name, a condition, or a list of either; not of both.")


def lateral_join(left: Select, right: LazyQuery, on: Column | None, how: str) -> Select:
    """Each row of a SELECT with those of a subquery that reads it."""
    kind = _kind(how)
    if kind not in ("inner", "left", "cross"):
        raise OptionError("A lateral join is inner, left or cross.")
    one = left.as_relation(new_alias())
    text = correlated(right.sql(), select_from(one).resolve)
    other = as_subquery(text, right.to_select().attributes, new_alias())
    both = (*one.columns, *other.columns)
    words = "LEFT JOIN LATERAL" if kind == "left" else "JOIN LATERAL"
    scope = select_from(Source("", both, meanings=one.meanings))
    condition = "true" if on is None else on.sql(scope.resolve)
    sql = f"{one.sql}\n{words} {other.sql} ON {condition}"
    made = Source(sql, both, (*one.relations, *other.relations), meanings=one.meanings)
    return select_from(made)


def _kind(how: str) -> str:
    kind = str(how).lower().replace(" ", "_")
    kind = _ALIASES.get(kind, kind)
    if kind not in _WORDS:
        near = nearest(kind, [*_WORDS, *_ALIASES])
        raise OptionError(f"Unknown kind of join {how!r}.{near} There are {', '.join(_WORDS)}.")
    return kind


def _conditional(left: Select, right: Select, on: Sequence[Column], kind: str) -> Select:
    one = _left_side(left, right, ())
    other = _right_side(right, one.relations)
    both = (*one.columns, *other.columns)
    sql = f"{one.sql}\n{_WORDS[kind]} {other.sql}"
    if on:
        condition = functools.reduce(Column.__and__, on)
        scope = select_from(Source("", both, meanings=one.meanings))
        sql += f" ON {condition.sql(scope.resolve)}"
    columns = one.columns if kind in _LEFT_ONLY else both
    return select_from(Source(sql, columns, (*one.relations, *other.relations)))


def _using(
    left: Select, right: Select, names: Sequence[str], kind: str, *, keys_first: bool
) -> Select:
    one = _left_side(left, right, names)
    other = _right_side(right, one.relations)
    keys = [_key(name, one, other) for name in names]
    listed = ", ".join(ident(mine.name) for mine, _ in keys)
    sql = f"{one.sql}\n{_WORDS[kind]} {other.sql} USING ({listed})"
    relations = (*one.relations, *other.relations)
    if kind in _LEFT_ONLY:
        whole = select_from(Source(sql, one.columns, relations))
        first = [whole.items[one.columns.index(mine)] for mine, _ in keys if keys_first]
        return replace(whole, items=(*first, *(item for item in whole.items if item not in first)))
    merged = {id(mine): _merged(mine, theirs, kind) for mine, theirs in keys}
    rights = [id(theirs) for _, theirs in keys]
    columns = (
        *(merged.get(id(column), column) for column in one.columns),
        *(column for column in other.columns if id(column) not in rights),
    )
    whole = select_from(Source(sql, columns, relations))
    # PySpark's order: the keys, then the other columns.
    first = [plain_item(key, key.merged) for key in merged.values()]
    shared = [item.attribute for item in first]
    others = (item for item in whole.items if item.attribute not in shared)
    return replace(whole, items=(*first, *others))


def _key(name: str, left: Source, right: Source) -> list[Scoped]:
    """The columns of both sides that USING merges."""
    positions = []
    for side, source in (("left", left), ("right", right)):
        try:
            index, _ = select_from(source).find(Reference(name))
        except ColumnError as error:
            raise ColumnError(f"On the {side} side of the join: {error}") from None
        positions.append(source.columns[index])
    return positions


def _merged(mine: Scoped, theirs: Scoped, kind: str) -> Scoped:
    """The USING column: that of the side which the join does not pad with NULLs."""
    left, right = mine.attribute, theirs.attribute
    match kind:
        case "inner":
            attribute = replace(left, ids=left.ids | right.ids)
        case "right":
            attribute = replace(right, name=left.name)
        case "full":
            attribute = new_attribute(left.name, left.type)
        case _:
            attribute = left
    return Scoped(attribute, "", mine.name, merged=ident(mine.name))


def _left_side(left: Select, right: Select, names: Sequence[str]) -> Source:
    """The left side in FROM; a join is extended instead of nested, unless names would clash."""
    source = left.source
    if not left.is_bare or len(source.relations) < 2:
        return _side(left, ())
    # A USING column of this join can't be qualified: if the other side has a column of its name,
    # which is no key of the new join, it would be ambiguous. After FULL JOIN it is no column of
    # either side.
    merged = [column.name.lower() for column in source.columns if column.merged]
    others = [attribute.name.lower() for attribute in right.attributes]
    folded = [name.lower() for name in names]
    hidden = [name for name in merged if name in others and name not in folded]
    return _side(left, ()) if hidden or "FULL JOIN" in source.sql else source


def _right_side(right: Select, taken: Sequence[str]) -> Source:
    return _side(right, [alias.lower() for alias in taken])


def _side(select: Select, taken: Sequence[str]) -> Source:
    """A SELECT as a relation with a free alias."""
    source = select.source
    single = select.is_bare and len(source.relations) == 1
    if single and source.relations[0].lower() not in taken:
        return source
    numbered = (f"t{number}" for number in itertools.count(1))
    return select.as_relation(next(name for name in numbered if name not in taken))
