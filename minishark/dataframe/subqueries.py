"""DataFrames as parts of expressions and joins: `scalar`, `exists`, `lateral_join`.

A DataFrame is bound verb by verb, but what it reads of the query around it (`Column.outer`) is
known only when that query uses it. Until then its text has marks in place of such columns, which
are bound as NULLs. The query around it writes its columns with an alias that nobody else has, as
the subquery may have columns of the same names.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from minishark.dataframe.column import Column, Correlated, Level, Outer, Reference, Subquery
from minishark.model.expressions import quote

_MARK = re.compile(r'minishark_outer\."(\d*):((?:[^"]|"")*)"')
_numbers = itertools.count()


def new_alias() -> str:
    """An alias of the query around a subquery."""
    return f"outer_{next(_numbers)}"


def mark(outer: Outer) -> str:
    """What stands in a text for a column of the query around it."""
    identity = "" if outer.reference.id is None else outer.reference.id
    return f"minishark_outer.{quote(f'{identity}:{outer.reference.name}')}"


def unmarked(sql: str) -> str:
    """A text that can be bound alone."""
    return _MARK.sub("NULL", sql) if "minishark_outer." in sql else sql


def parts(sql: str) -> tuple[str | Outer, ...]:
    """A text, and the columns of the query around it."""
    pieces: list[str | Outer] = []
    place = 0
    for outer in _MARK.finditer(sql):
        identity = int(outer[1]) if outer[1] else None
        pieces += [
            sql[place : outer.start()],
            Outer(Reference(outer[2].replace('""', '"'), identity)),
        ]
        place = outer.end()
    return (*pieces, sql[place:])


def subquery(sql: str, held: tuple[object, ...], before: str, name: str) -> Column:
    """A query as an expression, which needs the handles that it holds."""
    piece = Subquery(before, parts(sql), held)
    return Column((piece,), name, level=Level.ATOM)


def correlated(sql: str, resolve: Any) -> str:
    """The text of a query whose columns of the query around it are resolved there."""
    return "".join(p if isinstance(p, str) else resolve(Correlated(p)) for p in parts(sql))
