"""PySpark's ways to put values into the text of a query: `:name`, and `{name}`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import duckdb

from minishark.dataframe.column import Column
from minishark.dataframe.frame import DataFrame
from minishark.dataframe.literals import literal
from minishark.errors import OptionError

# Not `::`, and not what is between the parts of a struct, a map or a slice.
_COLON = re.compile(r"""(?<![:\w'"\])]):([A-Za-z_]\w*)""")
_BRACES = re.compile(r"\{(\w+)\}")


def with_dollars(text: str, params: Mapping[str, Any]) -> str:
    """The text with `$name` for each `:name` that there is a value for."""

    def dollar(found: re.Match[str]) -> str:
        return f"${found[1]}" if found[1] in params else found[0]

    return _outside_literals(text, lambda code: _COLON.sub(dollar, code))


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
    return _BRACES.sub(lambda found: _sql(named[found[1]]), text)


def _sql(item: Any) -> str:
    match item:
        case DataFrame():
            return f"({item.sql()})"
        case Column():
            return item.sql(lambda reference: reference.name)
    return literal(item)


def _outside_literals(text: str, change: Callable[[str], str]) -> str:
    if ":" not in text:
        return text
    marks = [*duckdb.tokenize(text), (len(text), None)]
    plain = (duckdb.token_type.string_const, duckdb.token_type.comment)
    out, code = [], text[: marks[0][0]]
    for (start, type_), (end, _) in itertools.pairwise(marks):
        if type_ in plain:
            out += [change(code), text[start:end]]
            code = ""
        else:
            code += text[start:end]
    return "".join([*out, change(code)])
