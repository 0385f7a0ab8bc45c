"""Names that users type: quoting, suggestions for misspelt ones, camelCase aliases."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, ParamSpec, TypeVar

from minishark.compiler.sql.advice import HEADER
from minishark.compiler.sql.connection import aside
from minishark.model.expressions import quote

_LISTED_MAX = 30
_UNNAMED = re.compile(r"_c\d+").fullmatch  # as CSV files have it that are read without a header
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])|(?<=[A-Z])([A-Z])(?=[a-z])")
_SUM = re.compile(r"\b(?:TRY_)?CAST\((?P<sum>sum\()")
_CLAUSE = re.compile(r" (?:FILTER|OVER) \(")
_DOUBLE = re.compile(r"(?<![\w.])(\d+\.\d+)e0\b")


@functools.cache
def _keywords() -> frozenset[str]:
    with aside() as connection:
        rows = connection.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
        ).fetchall()
    return frozenset(name for (name,) in rows)


def ident(name: str) -> str:
    """A SQL identifier, quoted only where it must be."""
    plain = _PLAIN.fullmatch(name) and name.lower() not in _keywords()
    return name if plain else quote(name)


def name_parts(name: str) -> list[str]:
    """A name split at dots that are not within backticks or quotes."""
    parts: list[str] = []
    current = mark = ""
    for char in name:
        if mark:
            mark, current = ("", current) if char == mark else (mark, current + char)
        elif char in '`"' and not current:
            mark = char
        elif char == ".":
            parts, current = [*parts, current], ""
        else:
            current += char
    return [name] if mark else [*parts, current]


def readable(text: str) -> str:
    """An expression as a column name, without what only makes its type.

    That is the `e0` of DOUBLE literals, and the cast around sums of whole numbers.
    """
    while (summed := _SUM.search(text)) is not None:
        end = _closing(text, summed.end())
        while (clause := _CLAUSE.match(text, end)) is not None:
            end = _closing(text, clause.end())
        if not text.startswith(" AS BIGINT)", end):
            break
        text = text[: summed.start()] + text[summed.start("sum") : end] + text[end + 11 :]
    return _DOUBLE.sub(r"\1", text)


def _closing(text: str, start: int) -> int:
    """The position after the parenthesis that closes the one before `start`."""
    depth, place = 1, start
    while depth and place < len(text):
        depth += (text[place] == "(") - (text[place] == ")")
        place += 1
    return place


def snake_case(name: str) -> str:
    return _HUMP.sub(lambda hump: f"_{hump[0]}", name).lower()


def nearest(name: str, names: Iterable[str], *, alike: float = 0.6) -> str:
    """A suggestion, " Did you mean x or y?"; empty if no name is similar.

    Args:
        name: what was typed.
        names: those that there are.
        alike: how similar they have to be, from 0 to 1.
    """
    by_folded = {snake_case(item): item for item in names}
    near = difflib.get_close_matches(snake_case(name), by_folded, n=3, cutoff=alike)
    if not near:
        return ""
    return f" Did you mean {' or '.join(by_folded[item] for item in near)}?"


def no_column(name: str, names: Sequence[str]) -> str:
    """What to say of a column that is not there: which there are, and what may be meant."""
    return f"There is no column {name!r}.{nearest(name, names)}{listed(names)}"


def listed(names: Sequence[str]) -> str:
    """The columns, and what to do if they are those of a file that was read without its header."""
    if not names:
        return ""
    rest = f" ... and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    hint = f" {HEADER}" if all(map(_UNNAMED, names)) else ""
    return f" The columns are {', '.join(names[:_LISTED_MAX])}{rest}.{hint}"


def spelt_otherwise(name: str, names: Iterable[str]) -> str | None:
    """The known name whose camelCase form is `name`, if any."""
    # Underscores are ignored, as PySpark's capitals do not mark all words: createDataFrame.
    if name.islower():
        return None
    joined = name.lower()
    return next((item for item in names if item.replace("_", "") == joined), None)


P = ParamSpec("P")
R = TypeVar("R")
Builder = TypeVar("Builder")


def changed(builder: Builder, **attributes: Any) -> Builder:
    """A copy of an object with other attributes, for builders whose methods chain."""
    made = object.__new__(type(builder))
    vars(made).update(vars(builder) | attributes)
    return made


def camel_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """A function that takes its keywords in camelCase, too: `allowMissingColumns=True`."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        names = inspect.signature(function).parameters
        named = {
            name if name in names or snake_case(name) not in names else snake_case(name): item
            for name, item in kwargs.items()
        }
        return function(*args, **named)  # type: ignore[arg-type]

    return called


def pyspark_method(holder: object, name: str) -> Any:
    """An attribute that was asked for in camelCase; a method then takes such keywords, too."""
    attribute = getattr(holder, name)
    return camel_keywords(attribute) if inspect.ismethod(attribute) else attribute


class CamelCase:
    """Makes each method of a class available in camelCase, as PySpark's users type it.

    Aliases are looked up, not defined, so that Tab completion lists each method once. It lists no
    fields of dataclasses, either, nor names in `_hidden`: they are for other modules, not users.
    """

    __slots__ = ()
    _hidden: ClassVar[tuple[str, ...]] = ()

    def __dir__(self) -> list[str]:
        internal = (*self._hidden, *getattr(self, "__dataclass_fields__", ()))
        return [name for name in super().__dir__() if name not in internal]

    def __getattr__(self, name: str) -> Any:
        """The snake_case attribute, or AttributeError with the nearest names."""
        attributes = [item for item in dir(type(self)) if not item.startswith("_")]
        meant = spelt_otherwise(name, attributes)
        if meant is not None:
            return pyspark_method(self, meant)
        kind = type(self).__name__
        raise AttributeError(
            f"{kind} has no attribute {name!r}.{nearest(name, attributes)}", name=name
        )
