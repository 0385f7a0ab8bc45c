"""Arguments of functions: literals that came as Columns, options."""

from __future__ import annotations

from typing import Any

import duckdb

from minishark.dataframe.column import Column
from minishark.dataframe.generated_functions import declare
from minishark.errors import OptionError, UnsupportedError


def literal_text(item: Any) -> str:
    """The text of a literal, as a Column or itself."""
    if isinstance(item, Column):
        text = "".join(piece for piece in item.pieces if isinstance(piece, str))
        if text.startswith("'") and text.endswith("'"):
            return text[1:-1].replace("''", "'")
        raise OptionError(f"{item!r} is no text literal: write lit('name').")
    return str(item)


def constant_text(item: Any) -> str:
    """As `literal_text`, also of an expression over constants, such as `schema_of_json(...)`."""
    if not isinstance(item, Column) or item.references or len(item.pieces) == 1:
        return literal_text(item)
    text = item.sql(lambda reference: reference.name)
    with duckdb.connect() as connection:
        declare(connection, text, run=True)
        try:
            ((found,),) = connection.execute(f"SELECT {text}").fetchall()
        except duckdb.Error as error:
            raise OptionError(f"{item!r} is no constant text: {error}") from error
    return str(found)


def no_options(function: str, options: Any) -> None:
    if options:
        raise UnsupportedError(f"{function}() takes no options, such as {next(iter(options))!r}.")
