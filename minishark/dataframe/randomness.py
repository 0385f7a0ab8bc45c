"""Random numbers, with and without a seed.

With a seed, a row's number is a hash of the seed and of the row's number, so that the same rows in
the same order get the same numbers, in whatever tasks and threads they are.
"""

from __future__ import annotations

from typing import Any

from minishark.dataframe.column import (
    Column,
    Kind,
    Level,
    call,
    column_or_name,
    combine,
    row_number,
)
from minishark.errors import OptionError

_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DRAW = "(hash(hash({mark})) >> 11)::DOUBLE / 9007199254740992"  # 53 bits, as a double has


def _draws(seed: Any, sql: str, **arguments: Column) -> Column:
    """An expression in which `{draw 1}`, `{draw i_}` ... are random numbers from 0 to 1."""
    parts: list[Any] = []
    kind = Kind.ROW if seed is not None else Kind.FREE
    for part in sql.split("{"):
        inside, brace, after = part.partition("}")
        if not brace:
            parts.append(part)
        elif inside.startswith("draw "):
            drawn = "random()"
            if seed is not None:
                mark = f"row_, {_seed(seed)}, {inside.removeprefix('draw ')}"
                drawn = f"({_DRAW.format(mark=mark)})"
            parts += [drawn, after]
        else:
            parts += [arguments[inside], after]
    made = combine(*parts)
    if seed is not None:  # a lambda can't contain the window itself
        made = combine(
            "list_transform([", row_number(), "], lambda row_: ", made, ")[1]", bare=True
        )
    return Column(made.pieces, level=Level.ATOM, kind=max(kind, made.kind))


def _seed(seed: Any) -> str:
    if isinstance(seed, Column):
        return seed.sql(lambda ref: ref.name)
    try:
        return str(int(seed))
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"A seed is a whole number, not {seed!r}.") from error


def rand(seed: int | None = None) -> Column:
    """A random number from 0 to 1.

    Args:
        seed: repeats the numbers for the same rows in the same order; that runs in one task.
    """
    if seed is None:
        return call("random", kind=Kind.FREE)
    return _draws(seed, "{draw 0}").alias(f"rand({_seed(seed)})")


random = rand


def randn(seed: int | None = None) -> Column:
    """A random number of the standard normal distribution; a seed is as in `rand`."""
    made = _draws(seed, "sqrt(-2 * ln(1 - {draw 1})) * cos(2 * pi() * {draw 2})")
    return made.alias("randn()" if seed is None else f"randn({_seed(seed)})")


def uniform(min: Any, max: Any, seed: int | None = None) -> Column:
    """A random number from `min` up to `max`, a double; a seed is as in `rand`."""
    low, high = column_or_name(min), column_or_name(max)
    return _draws(seed, "{low} + ({high} - {low}) * {draw 0}", low=low, high=high).alias("uniform")


def randstr(length: Any, seed: int | None = None) -> Column:
    """A random text of letters and digits; a seed is as in `rand`."""
    character = f"substring('{_CHARACTERS}', 1 + floor({{draw i_}} * 62)::INTEGER, 1)"
    sql = f"array_to_string(list_transform(range({{length}}), lambda i_: {character}), '')"
    return _draws(seed, sql, length=column_or_name(length)).alias("randstr")


def shuffle(col: Any, seed: int | None = None) -> Column:
    """The elements of a list in a random order; a seed is as in `rand`."""
    pairs = "list_transform({col}, lambda x_, i_: struct_pack(r := {draw i_}, x := x_))"
    return _draws(
        seed, f"list_transform(list_sort({pairs}), lambda p_: p_.x)", col=column_or_name(col)
    ).alias("shuffle")


__all__ = [
    name
    for name, item in globals().items()
    if not name.startswith("_") and getattr(item, "__module__", None) == __name__
]
