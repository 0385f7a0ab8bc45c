"""Values of VARIANT columns as Python's: Arrow has them in Parquet's encoding of variants.

Its specification is VariantEncoding.md of apache/parquet-format. Integers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from uuid import UUID

import pyarrow as pa

_EXTENSION = {b"ARROW:extension:name": b"arrow.parquet.variant"}
_EPOCH, _FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
_BINARY, _TEXT = 15, 16  # primitives that have a length


def is_variant(field: pa.Field) -> bool:
    """Whether a column is of type VARIANT."""
    return _EXTENSION.items() <= (field.metadata or {}).items()


def variant_value(encoded: Mapping[str, bytes]) -> Any:
    """A value: objects are dictionaries, arrays are lists.

    Raises:
        ValueError: it is of a type that the encoding had not.
        OverflowError: Python can't represent it, for example a date after the year 9999.
    """
    return _decoded(encoded["value"], _names(encoded["metadata"]))


def _names(metadata: bytes) -> list[str]:
    """The names of fields, by their numbers."""
    size = (metadata[0] >> 6) + 1
    count = int.from_bytes(metadata[1 : 1 + size], "little")
    offsets = _integers(metadata[1 + size :], count + 1, size)
    names = metadata[1 + size * (count + 2) :]
    return [names[a:b].decode() for a, b in pairwise(offsets)]


def _integers(data: bytes, count: int, size: int) -> list[int]:
    places = range(0, count * size, size)
    return [int.from_bytes(data[place : place + size], "little") for place in places]


def _decoded(data: bytes, names: list[str]) -> Any:
    kind, header, rest = data[0] & 3, data[0] >> 2, data[1:]
    if kind == 0:
        return _primitive(header, rest)
    if kind == 1:
        return rest[:header].decode()
    offset_size, id_size = (header & 3) + 1, (header >> 2 & 3) + 1
    is_object = kind == 2  # else an array
    count_size = 4 if header >> (4 if is_object else 2) & 1 else 1
    count, rest = int.from_bytes(rest[:count_size], "little"), rest[count_size:]
    fields = _integers(rest, count, id_size) if is_object else []
    rest = rest[len(fields) * id_size :]
    values = rest[(count + 1) * offset_size :]
    # Offsets are in the order of the fields' names, values in any.
    items = [_decoded(values[at:], names) for at in _integers(rest, count, offset_size)]
    return dict(zip((names[field] for field in fields), items, strict=True)) if is_object else items


def _primitive(type_: int, data: bytes) -> Any:
    if type_ in (_BINARY, _TEXT):
        content = data[4 : 4 + int.from_bytes(data[:4], "little")]
        return content if type_ == _BINARY else content.decode()
    if type_ not in _PRIMITIVES:
        raise ValueError(f"a variant has a value of type {type_}")
    return _PRIMITIVES[type_](data)


def _unpacked(form: str) -> Callable[[bytes], Any]:
    layout = struct.Struct(f"<{form}")
    return lambda data: layout.unpack_from(data)[0]


def _decimal(size: int) -> Callable[[bytes], Decimal]:
    def decode(data: bytes) -> Decimal:
        digits = int.from_bytes(data[1 : 1 + size], "little", signed=True)
        return Decimal(f"{digits}E-{data[0]}")  # exact, whatever the context's precision

    return decode


def _microseconds(data: bytes, unit: int = 1) -> timedelta:
    return timedelta(microseconds=int.from_bytes(data[:8], "little", signed=True) // unit)


_PRIMITIVES: Mapping[int, Callable[[bytes], Any]] = {
    0: lambda _: None,
    1: lambda _: True,
    2: lambda _: False,
    3: _unpacked("b"),
    4: _unpacked("h"),
    5: _unpacked("i"),
    6: _unpacked("q"),
    7: _unpacked("d"),
    8: _decimal(4),
    9: _decimal(8),
    10: _decimal(16),
    11: lambda data: _FIRST_DAY + timedelta(int.from_bytes(data[:4], "little", signed=True)),
    12: lambda data: _EPOCH + _microseconds(data),
    13: lambda data: _EPOCH.replace(tzinfo=None) + _microseconds(data),
    14: _unpacked("f"),
    17: lambda data: (_EPOCH.replace(tzinfo=None) + _microseconds(data)).time(),
    18: lambda data: _EPOCH + _microseconds(data, 1000),
    19: lambda data: _EPOCH.replace(tzinfo=None) + _microseconds(data, 1000),
    20: lambda data: UUID(bytes=data[:16]),
}
"""How values of fixed sizes are decoded, by the numbers of their types."""
