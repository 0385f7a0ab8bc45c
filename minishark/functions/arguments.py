"""Arguments of functions: literals that came as Columns, options."""

from __future__ import annotations

from typing import Any

from minishark.dataframe.column import Column
from minishark.errors import OptionError, UnsupportedError


def literal_text(item: Any) -> str:
    """The text of a literal, as a Column or itself."""
    if isinstance(item, Column):
        text = "".join(piece for piece in item.pieces if isinstance(piece, str))
        if text.startswith("'") and text.endswith("'"):
            return text[1:-1].replace("''", "'")
        raise OptionError(f"{item!r} is no text literal: write lit('name').")
    return str(item)


def no_options(function: str, options: Any) -> None:
    if options:
        raise UnsupportedError(f"{function}() takes no options, such as {next(iter(options))!r}.")
