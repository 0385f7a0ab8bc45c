"""Functions of lists and maps that take Python functions of Columns, and generators of rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minishark.dataframe.column import (
    Column,
    Generator,
    Kind,
    Level,
    Variable,
    atom,
    call,
    case,
    column_or_name,
    combine,
    flat,
    generator,
    value,
)
from minishark.dataframe.names import ident
from minishark.errors import OptionError


def _name(parameter: str) -> str:
    # A name that ends in an underscore is unlikely to hide a column.
    return f"{parameter.rstrip('_')}_"


def _variables(function: Callable[..., Any], counts: tuple[int, ...]) -> list[str]:
    """The lambda's variables: the function's parameters."""
    names = [_name(name) for name in inspect.signature(function).parameters]
    if len(names) not in counts:
        allowed = " or ".join(map(str, counts))
        raise OptionError(f"The function takes {allowed} arguments, not {len(names)}.")
    return names


def _variable(name: str, like: Column) -> Column:
    return Column((Variable(name, like),), level=Level.ATOM)


def _first(list_: Any) -> Column:
    """What has the type of a list's elements."""
    return call("list_extract", column_or_name(list_), 1)


def _with_index(function: Callable[..., Any], list_: Any) -> Column:
    """A lambda of an element, and perhaps of its position from 0."""
    names = _variables(function, (1, 2))
    variables = [
        _variable(names[0], _first(list_)),
        *(_variable(name, value(1)) - 1 for name in names[1:]),
    ]
    body = value(function(*variables))
    return combine(f"lambda {', '.join(names)}: ", body, bare=True)


def _of_lambda(function: str, list_: Any, lambda_: Column, *more: Any) -> Column:
    parts: list[Any] = [f"{function}(", atom(column_or_name(list_)), ", ", lambda_]
    for item in more:
        parts += [", ", atom(item)]
    return atom(combine(*parts, ")", bare=True))


# Lists


def transform(col: Any, f: Callable[..., Any]) -> Column:
    """`f` of each element of a list, and perhaps its position from 0.

    Examples:
        >>> from minishark import functions as F
        >>> df = session.sql("SELECT [5, 6] AS xs")
        >>> df.select(F.transform("xs", lambda x, i: x * 10 + i).alias("ys")).collect()
        [Row(ys=[50, 61])]
    """
    return _of_lambda("list_transform", col, _with_index(f, col))


def filter(col: Any, f: Callable[..., Any]) -> Column:
    """The elements of a list that fulfil a condition of them, and perhaps of their position."""
    return _of_lambda("list_filter", col, _with_index(f, col))


def exists(col: Any, f: Callable[[Column], Any]) -> Column:
    """Whether any element of a list fulfils a condition; NULL if none does, but one is NULL."""
    either = combine("lambda a_, b_: a_ OR b_", bare=True)
    return _of_lambda("list_reduce", transform(col, f), either, value(False))


def forall(col: Any, f: Callable[[Column], Any]) -> Column:
    """Whether all elements of a list fulfil a condition; NULL if none fails, but one is NULL."""
    both = combine("lambda a_, b_: a_ AND b_", bare=True)
    return _of_lambda("list_reduce", transform(col, f), both, value(True))


def aggregate(
    col: Any,
    initialValue: Any,
    merge: Callable[[Column, Column], Any],
    finish: Callable[[Column], Any] | None = None,
) -> Column:
    """The elements of a list reduced from the left: `merge(accumulator, element)`."""
    names, start = _variables(merge, (2,)), column_or_name(initialValue)
    body = value(merge(_variable(names[0], start), _variable(names[1], _first(col))))
    merging = combine(f"lambda {', '.join(names)}: ", body, bare=True)
    reduced = _of_lambda("list_reduce", col, merging, start)
    return reduced if finish is None else value(finish(reduced))


reduce = aggregate


def zip_with(left: Any, right: Any, f: Callable[[Column, Column], Any]) -> Column:
    """`f` of the elements at each position of two lists; the shorter one is filled with NULLs."""
    _variables(f, (2,))
    columns = column_or_name(left), column_or_name(right)
    pair = [_variable(f"pair_[{place}]", _first(each)) for place, each in enumerate(columns, 1)]
    body = combine("lambda pair_: ", value(f(*pair)), bare=True)
    made = _of_lambda("list_transform", call("list_zip", *columns), body)
    return case(columns[0].is_not_null() & columns[1].is_not_null(), made)


def array_sort(col: Any, comparator: Callable[[Column, Column], Any] | None = None) -> Column:
    """A list sorted, NULLs last.

    Args:
        col: the list.
        comparator: of two elements; negative if the first comes first, positive if the second
            does. An element is put where it belongs among those before it, which takes a time that
            grows with the square of their number.
    """
    if comparator is None:
        return call("list_sort", column_or_name(col), "ASC", "NULLS LAST")
    _variables(comparator, (2,))
    after = value(comparator(*(_variable(name, _first(col)) for name in ("item_", "sorted_"))))
    sides = ("list_filter(done_, lambda sorted_: coalesce((", after, ") {} 0, {}))")
    before, behind = (
        combine(*sides[:2], sides[2].format(*each), bare=True)
        for each in ((">=", True), ("<", False))
    )
    put = combine("list_concat(", before, ", [item_], ", behind, ")", bare=True)
    start = combine("list_resize(", column_or_name(col), ", 0)", bare=True)
    return _of_lambda("list_reduce", col, combine("lambda done_, item_: ", put, bare=True), start)


# Maps


def _entry(function: Callable[..., Any], map_: Any) -> Column:
    """The body of a lambda over a map's entries: a function of key and value."""
    _variables(function, (2,))
    parts = (("entry_.key", "map_keys"), ("entry_.value", "map_values"))
    of = column_or_name(map_)
    return value(function(*(_variable(name, _first(call(part, of))) for name, part in parts)))


def _map_of(entries: Column) -> Column:
    return call("map_from_entries", entries)


def map_filter(col: Any, f: Callable[[Column, Column], Any]) -> Column:
    """The entries of a map that fulfil a condition of key and value."""
    body = combine("lambda entry_: ", _entry(f, col), bare=True)
    return _map_of(_of_lambda("list_filter", call("map_entries", column_or_name(col)), body))


def transform_keys(col: Any, f: Callable[[Column, Column], Any]) -> Column:
    """A map with the keys `f(key, value)`."""
    pair = ("struct_pack(k := ", atom(_entry(f, col)), ", v := entry_.value)")
    body = combine("lambda entry_: ", *pair, bare=True)
    return _map_of(_of_lambda("list_transform", call("map_entries", column_or_name(col)), body))


def transform_values(col: Any, f: Callable[[Column, Column], Any]) -> Column:
    """A map with the values `f(key, value)`."""
    pair = ("struct_pack(k := entry_.key, v := ", atom(_entry(f, col)), ")")
    body = combine("lambda entry_: ", *pair, bare=True)
    return _map_of(_of_lambda("list_transform", call("map_entries", column_or_name(col)), body))


def map_zip_with(col1: Any, col2: Any, f: Callable[[Column, Column, Column], Any]) -> Column:
    """A map with the keys of both, and the values `f(key, first value, second value)`."""
    _variables(f, (3,))
    left, right = column_or_name(col1), column_or_name(col2)
    key = _variable("key_", _first(call("map_keys", left)))
    made = value(f(key, combine(left, "[", key, "]"), combine(right, "[", key, "]")))
    body = combine("lambda key_: struct_pack(k := key_, v := ", atom(made), ")", bare=True)
    keys = call("list_concat", call("map_keys", left), call("map_keys", right))
    made = _map_of(_of_lambda("list_transform", call("list_distinct", keys), body))
    return case(left.is_not_null() & right.is_not_null(), made)


# Generators


def _unnested(column: Column, name: str) -> Column:
    return call("unnest", column, kind=Kind.FREE).alias(name)


def _positions(column: Column) -> Column:
    return call("range", call("cardinality", column).cast("BIGINT"))


def _filled(column: Column, elements: Column) -> Column:
    """The elements, or a NULL where there are none."""
    return case(call("cardinality", column) > 0, elements).otherwise([None])


def explode(col: Any) -> Generator:
    """A row for each element of a list (`col`), or for each entry of a map (`key`, `value`).

    There is no row for an empty list or NULL.
    """
    chosen = column_or_name(col)
    keys, values = call("map_keys", chosen), call("map_values", chosen)
    return generator(
        chosen,
        [_unnested(chosen, "col")],
        [_unnested(keys, "key"), _unnested(values, "value")],
    )


def explode_outer(col: Any) -> Generator:
    """As `explode`, with one row of NULLs for an empty list or map, or NULL."""
    chosen = column_or_name(col)
    keys, values = call("map_keys", chosen), call("map_values", chosen)
    return generator(
        chosen,
        [_unnested(_filled(chosen, chosen), "col")],
        [
            _unnested(_filled(chosen, keys), "key"),
            _unnested(_filled(chosen, values), "value"),
        ],
    )


def posexplode(col: Any) -> Generator:
    """As `explode`, after the position from 0 (`pos`)."""
    chosen, plain = column_or_name(col), explode(col)
    position = _unnested(_positions(chosen), "pos")
    return generator(chosen, [position, *plain.of_list], [position, *plain.of_map])


def posexplode_outer(col: Any) -> Generator:
    """As `explode_outer`, after the position from 0 (`pos`)."""
    chosen, plain = column_or_name(col), explode_outer(col)
    position = _unnested(_filled(chosen, _positions(chosen)), "pos")
    return generator(chosen, [position, *plain.of_list], [position, *plain.of_map])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Inlined(Column):
    """The columns of a list of structs."""

    structs: Column | None = None

    def alias(self, *names: str) -> Column:
        """The same with a name for each field."""
        assert self.structs is not None
        fields = (f"{ident(n)} := struct_extract_at(s_, {i})" for i, n in enumerate(names, 1))
        renamed = f", lambda s_: struct_pack({', '.join(fields)}))"
        return _inlined(combine("list_transform(", atom(self.structs), renamed, bare=True))


def _inlined(structs: Column) -> Column:
    made = combine("unnest(", atom(structs), ", max_depth := 2)", bare=True)
    return _Inlined(made.pieces, level=Level.ATOM, kind=Kind.FREE, structs=structs)


def inline(col: Any) -> Column:
    """A row for each struct of a list, with its fields as columns."""
    return _inlined(column_or_name(col))


def inline_outer(col: Any) -> Column:
    """A row for each struct of a list, with its fields as columns; of NULLs if there is none."""
    chosen = column_or_name(col)
    return _inlined(_filled(chosen, chosen))


def stack(n: Any, *cols: Any) -> Generator:
    """`n` rows of the columns, from left to right: `col0`, `col1` ..."""
    if isinstance(n, Column):
        text = n.sql(lambda reference: reference.name)
        n = int(text) if text.isdecimal() else 0
    columns = [column_or_name(item) for item in flat(cols)]
    if not isinstance(n, int) or n < 1 or not columns:
        raise OptionError("stack() takes a positive number of rows, then columns.")
    width = -(-len(columns) // n)
    columns += [value(None)] * (n * width - len(columns))
    lists = [call("list_value", *columns[place::width]) for place in range(width)]
    return generator(None, [_unnested(list_, f"col{i}") for i, list_ in enumerate(lists)])


__all__ = [
    name
    for name, item in globals().items()
    if not name.startswith("_") and getattr(item, "__module__", None) == __name__
]
