"""Functions that are templates of SQL, for texts of dialects that have them by these names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from minishark.functions.public import expr
from minishark.functions.tables import TEMPLATES
from minishark.functions.templates import function_of

_ONE_CALL = re.compile(r"@\w+\([^@]*\)").fullmatch  # to which FILTER and OVER can be added

CALLABLE = frozenset(
    name
    for name, each in TEMPLATES.items()
    if "@" not in "".join(each.sql) or _ONE_CALL("".join(each.sql))
)
"""The names of those that text may call, as whatever stands after a call fits."""


def called(name: str, arguments: Sequence[str]) -> str:
    """The SQL of a call, given that of its arguments.

    Raises:
        OptionError, TypeError: it takes other arguments.
    """
    made = function_of(TEMPLATES[name])(*map(expr, arguments))
    text = made.sql(lambda reference: reference.name)
    return text if "@" in TEMPLATES[name].sql else f"({text})"
