"""Random numbers of other kinds than `rand`, and random orders."""

from __future__ import annotations

from typing import Any

from minishark.dataframe.column import Column, column_or_name
from minishark.dataframe.randomness import draws, rand, seed_text

_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

random = rand


def randn(seed: int | None = None) -> Column:
    """A random number of the standard normal distribution; a seed is as in `rand`."""
    made = draws(seed, "sqrt(-2 * ln(1 - {draw 1})) * cos(2 * pi() * {draw 2})")
    return made.alias("randn()" if seed is None else f"randn({seed_text(seed)})")


def uniform(min: Any, max: Any, seed: int | None = None) -> Column:
    """A random number from `min` up to `max`, a double; a seed is as in `rand`."""
    low, high = column_or_name(min), column_or_name(max)
    return draws(seed, "{low} + ({high} - {low}) * {draw 0}", low=low, high=high).alias("uniform")


def randstr(length: Any, seed: int | None = None) -> Column:
    """A random text of letters and digits; a seed is as in `rand`."""
    character = f"substring('{_CHARACTERS}', 1 + floor({{draw i_}} * 62)::INTEGER, 1)"
    sql = f"array_to_string(list_transform(range({{length}}), lambda i_: {character}), '')"
    return draws(seed, sql, length=column_or_name(length)).alias("randstr")


def shuffle(col: Any, seed: int | None = None) -> Column:
    """The elements of a list in a random order; a seed is as in `rand`."""
    pairs = "list_transform({col}, lambda x_, i_: struct_pack(r := {draw i_}, x := x_))"
    return draws(
        seed, f"list_transform(list_sort({pairs}), lambda p_: p_.x)", col=column_or_name(col)
    ).alias("shuffle")


__all__ = ["rand", "randn", "random", "randstr", "shuffle", "uniform"]
