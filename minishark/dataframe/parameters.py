"""PySpark's ways to put values into the text of a query: `:name`, and `{name}`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from minishark.compiler.sql.tokens import Edit, edited, sql_tokens
from minishark.dataframe.column import Column
from minishark.dataframe.frame import DataFrame
from minishark.dataframe.literals import literal
from minishark.errors import OptionError

# Before a colon between the parts of a struct, a map or a slice.
_BEFORE_SLICE = re.compile(r"""[\w'"\])]""")
_BRACES = re.compile(r"\{(\w+)\}")


def with_dollars(text: str, params: Mapping[str, Any]) -> str:
    """The text with `$name` for each `:name` that there is a value for."""
    tokens = sql_tokens(text) if ":" in text else []
    return edited(
        text,
        (
            Edit(colon.first, name.last, f"${name.text}")
            for colon, name in itertools.pairwise(tokens)
            if colon.text == ":" and colon.last == name.first and name.text in params
            if _BEFORE_SLICE.match(text[: colon.first][-1:]) is None
        ),
    )


def with_values(text: str, named: Mapping[str, Any]) -> str:
    """The text with SQL of the values for each `{name}`.

    Raises:
        OptionError: there is no value of that name, or a value that the text does not name.
    """
    if not named:
        return text
    used = set(_BRACES.findall(text))
    for name in [*(used - named.keys()), *(named.keys() - used)]:
        missing = "the text has no" if name in named else "there is no value for"
        raise OptionError(f"sql(): {missing} {{{name}}}.")
    return _BRACES.sub(lambda brace: _sql(named[brace[1]]), text)


def _sql(item: Any) -> str:
    match item:
        case DataFrame():
            return f"({item.sql()})"
        case Column():
            return item.sql(lambda reference: reference.name)
    return literal(item)
