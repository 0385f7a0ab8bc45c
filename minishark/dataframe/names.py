"""Names that users type: quoting them, finding the nearest, and camelCase for snake_case."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable
from typing import Any

import duckdb

from minishark.expressions import quote

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])|(?<=[A-Z])([A-Z])(?=[a-z])")
_DOUBLE = re.compile(r"(?<![\w.])(\d+\.\d+)e0\b")


@functools.cache
def _keywords() -> frozenset[str]:
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
        ).fetchall()
    return frozenset(name for (name,) in rows)


def ident(name: str) -> str:
    """`name` as SQL writes it: quoted only where it must be."""
    plain = _PLAIN.fullmatch(name) and name.lower() not in _keywords()
    return name if plain else quote(name)


def readable(text: str) -> str:
    """An expression as a name: a float without the exponent that makes it a DOUBLE in SQL."""
    return _DOUBLE.sub(r"\1", text)


def snake_case(name: str) -> str:
    """`withColumnRenamed` -> `with_column_renamed`; a name without capitals stays."""
    return _HUMP.sub(lambda found: f"_{found[0]}", name).lower()


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names what was probably meant, with a space before it; or nothing."""
    by_folded = {snake_case(item): item for item in known}
    found = difflib.get_close_matches(snake_case(name), by_folded, n=3, cutoff=0.6)
    if not found:
        return ""
    return f" Did you mean {' or '.join(by_folded[item] for item in found)}?"


def spelt_otherwise(name: str, known: Iterable[str]) -> str | None:
    """The one of the known names that `name` is in camelCase, if there is one.

    PySpark is not of one mind where words end: createDataFrame, but toPandas.
    """
    if name.islower():
        return None
    joined = name.lower()
    return next((item for item in known if item.replace("_", "") == joined), None)


class CamelCase:
    """Gives a class the camelCase form of each of its snake_case names.

    PySpark's users type `withColumn` where Python's style is `with_column`; both are one method.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """What `name` means in snake_case.

        Raises:
            AttributeError: nothing; the sentence has the nearest names.
        """
        known = [item for item in dir(type(self)) if not item.startswith("_")]
        meant = spelt_otherwise(name, known)
        if meant is not None:
            return getattr(self, meant)
        kind = type(self).__name__
        raise AttributeError(f"{kind} has no attribute {name!r}.{nearest(name, known)}", name=name)
