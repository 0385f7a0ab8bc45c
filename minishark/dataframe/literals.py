"""Python values as SQL literals of the same value and type."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from minishark.errors import OptionError
from minishark.model.expressions import quote_text

_INT64 = range(1 - (1 << 63), 1 << 63)
_INT128 = range(-(1 << 127), 1 << 127)
_DECIMAL_DIGITS_MAX = 38


def literal(value: Any) -> str:
    """`value` as SQL text (OptionError if there is no literal for it)."""
    # Whole numbers beyond 128 bits become BIGNUM; floats are DOUBLE, and Decimals keep their
    # digits. A list or tuple is a LIST, a dictionary of text keys a STRUCT, any other a MAP.
    for kind, render in _RENDERERS:
        if isinstance(value, kind):
            return render(value)
    for method in ("as_py", "item"):  # of scalars of pyarrow and numpy
        if hasattr(value, method):
            return literal(getattr(value, method)())
    raise OptionError(
        f"A value of type {type(value).__name__} can't be a literal; "
        "write it in SQL with functions.expr()."
    )


def _int(value: int) -> str:
    if value in _INT64:
        return str(int(value))
    return f"'{int(value)}'::{'HUGEINT' if value in _INT128 else 'BIGNUM'}"


def _float(value: float) -> str:
    if not math.isfinite(value):
        return f"'{value}'::DOUBLE"
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise OptionError(f"DECIMAL has no {value}; use a float.")
    text = format(value, "f")
    whole, _, fraction = text.lstrip("-").partition(".")
    digits = max(len(whole.lstrip("0")) + len(fraction), 1)
    if digits > _DECIMAL_DIGITS_MAX:
        raise OptionError(f"{value} has {digits} digits; a DECIMAL has at most 38.")
    return f"'{text}'::DECIMAL({digits}, {len(fraction)})"


def _str(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"This text is no valid Unicode: {error}.") from error
    # A literal can't contain NUL.
    return " || chr(0) || ".join(_piece(part) for part in value.split("\0"))


def _piece(text: str) -> str:
    # Escaped, as indentation of subqueries would change a literal with line breaks.
    if "\n" in text or "\r" in text:
        escaped = text.replace("\\", "\\\\").replace("'", "\\'")
        return "E'" + escaped.replace("\n", "\\n").replace("\r", "\\r") + "'"
    return quote_text(text)


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return "'" + "".join(f"\\x{byte:02X}" for byte in bytes(value)) + "'::BLOB"


def _datetime(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    return f"TIMESTAMPTZ '{value.astimezone(dt.UTC).isoformat(' ')}'"


def _timedelta(value: dt.timedelta) -> str:
    micros = value.seconds * 1_000_000 + value.microseconds
    return f"INTERVAL '{value.days} days {micros} microseconds'"


def _mapping(value: Mapping[Any, Any]) -> str:
    pairs = ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items())
    is_struct = bool(value) and all(isinstance(key, str) for key in value)
    return f"{{{pairs}}}" if is_struct else f"MAP {{{pairs}}}"


# Subclasses first: a bool is an int, and a datetime is a date.
_RENDERERS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    (type(None), lambda _: "NULL"),
    (bool, lambda value: str(value).lower()),
    (int, _int),
    (float, _float),
    (Decimal, _decimal),
    (str, _str),
    ((bytes, bytearray, memoryview), _bytes),
    (dt.datetime, _datetime),
    (dt.date, lambda value: f"DATE '{value.isoformat()}'"),
    (dt.time, lambda value: f"TIME{'TZ' if value.tzinfo else ''} '{value.isoformat()}'"),
    (dt.timedelta, _timedelta),
    (UUID, lambda value: f"'{value}'::UUID"),
    (Mapping, _mapping),
    ((list, tuple), lambda value: f"[{', '.join(map(literal, value))}]"),
)
