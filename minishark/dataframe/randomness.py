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
    combine,
    row_number,
)
from minishark.errors import OptionError

_DRAW = "(hash(hash({mark})) >> 11)::DOUBLE / 9007199254740992"  # 53 bits, as a double has


def draws(seed: Any, sql: str, **arguments: Column) -> Column:
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
                mark = f"row_, {seed_text(seed)}, {inside.removeprefix('draw ')}"
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


def seed_text(seed: Any) -> str:
    """A seed as SQL.

    Raises:
        OptionError: it is no whole number.
    """
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
    return draws(seed, "{draw 0}").alias(f"rand({seed_text(seed)})")
