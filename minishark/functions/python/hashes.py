"""Spark's hashes of values: Murmur3 of 32 bits, and xxHash of 64."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

_32, _64 = (1 << 32) - 1, (1 << 64) - 1
_PRIMES = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)  # fmt: skip
_INTS = {"boolean", "tinyint", "smallint", "integer", "utinyint", "usmallint"}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_type = functools.cache(duckdb.sqltype)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Hashes of whole numbers of 4 and 8 bytes, and of bytes, given a seed."""

    of_int: Callable[[int, int], int]
    of_long: Callable[[int, int], int]
    of_bytes: Callable[[bytes, int], int]


def murmur3(value: Any, type_: str, seed: int) -> int:
    return _signed(_of(_MURMUR3, value, _type(type_), seed & _32), 32)


def xxhash64(value: Any, type_: str, seed: int) -> int:
    return _signed(_of(_XXHASH64, value, _type(type_), seed & _64), 64)


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >> (bits - 1) else number


def _of(kind: _Kind, value: Any, type_: Any, seed: int) -> int:
    if value is None:
        return seed
    name = type_.id
    match value:
        case bool() | int() if name in _INTS:
            return kind.of_int(value & _32, seed)
        case int() if name in ("bigint", "uinteger"):
            return kind.of_long(value & _64, seed)
        case float() if name == "float":
            return kind.of_int(struct.unpack("<I", struct.pack("<f", value + 0.0))[0], seed)
        case float():
            return kind.of_long(struct.unpack("<Q", struct.pack("<d", value + 0.0))[0], seed)
        case str() | bytes() | bytearray():
            return kind.of_bytes(value.encode() if isinstance(value, str) else bytes(value), seed)
        case dt.datetime():
            since = (value if value.tzinfo else value.replace(tzinfo=dt.UTC)) - _EPOCH
            return kind.of_long(since // dt.timedelta(microseconds=1) & _64, seed)
        case dt.date():
            return kind.of_int((value - _EPOCH.date()).days & _32, seed)
        case int() | decimal.Decimal():
            children = dict(type_.children) if name == "decimal" else {"precision": 38, "scale": 0}
            whole = int(decimal.Decimal(value).scaleb(children["scale"], decimal.Context(prec=60)))
            if children["precision"] <= 18:
                return kind.of_long(whole & _64, seed)
            size = (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
            return kind.of_bytes(whole.to_bytes(size, "big", signed=True), seed)
        case list() if name in ("list", "array"):
            (item, *_) = (child for _, child in type_.children)
            return functools.reduce(lambda made, part: _of(kind, part, item, made), value, seed)
        case dict() if name == "struct":
            for field, part in type_.children:
                seed = _of(kind, value[field], part, seed)
            return seed
    raise ValueError(f"There is no hash of values of {type_}.")


def _turned(number: int, by: int, mask: int) -> int:
    return (number << by | number >> (mask.bit_length() - by)) & mask


def _mixed3(state: int, word: int) -> int:
    word = _turned(word * 0xCC9E2D51 & _32, 15, _32) * 0x1B873593 & _32
    return (_turned(state ^ word, 13, _32) * 5 + 0xE6546B64) & _32


def _ended3(state: int, size: int) -> int:
    state ^= size
    state = (state ^ state >> 16) * 0x85EBCA6B & _32
    state = (state ^ state >> 13) * 0xC2B2AE35 & _32
    return state ^ state >> 16


def _bytes3(data: bytes, seed: int) -> int:
    whole = len(data) // 4 * 4
    words = struct.unpack(f"<{whole // 4}I", data[:whole])
    rest = (byte & _32 for byte in struct.unpack(f"{len(data) - whole}b", data[whole:]))
    return _ended3(functools.reduce(_mixed3, (*words, *rest), seed), len(data))


_MURMUR3 = _Kind(
    lambda word, seed: _ended3(_mixed3(seed, word), 4),
    lambda word, seed: _ended3(_mixed3(_mixed3(seed, word & _32), word >> 32), 8),
    _bytes3,
)


def _lane(state: int, word: int) -> int:
    return _turned((state + word * _PRIMES[1]) & _64, 31, _64) * _PRIMES[0] & _64


def _with_long(state: int, word: int) -> int:
    return (_turned(state ^ _lane(0, word), 27, _64) * _PRIMES[0] + _PRIMES[3]) & _64


def _with_int(state: int, word: int) -> int:
    state ^= word * _PRIMES[0] & _64
    return (_turned(state, 23, _64) * _PRIMES[1] + _PRIMES[2]) & _64


def _ended64(state: int) -> int:
    state = (state ^ state >> 33) * _PRIMES[1] & _64
    state = (state ^ state >> 29) * _PRIMES[2] & _64
    return state ^ state >> 32


def _bytes64(data: bytes, seed: int) -> int:
    state, place = seed + _PRIMES[4], len(data) // 32 * 32
    if place:
        first, second = _PRIMES[:2]
        lanes = [seed + first + second & _64, seed + second & _64, seed, seed - first & _64]
        for words in struct.iter_unpack("<4Q", data[:place]):
            lanes = list(map(_lane, lanes, words))
        turned = zip(lanes, (1, 7, 12, 18), strict=True)
        state = sum(_turned(lane, by, _64) for lane, by in turned) & _64
        for lane in lanes:
            state = ((state ^ _lane(0, lane)) * first + _PRIMES[3]) & _64
    state = state + len(data) & _64
    while place + 8 <= len(data):
        state = _with_long(state, int.from_bytes(data[place : place + 8], "little"))
        place += 8
    if place + 4 <= len(data):
        state = _with_int(state, int.from_bytes(data[place : place + 4], "little"))
        place += 4
    for byte in data[place:]:
        state = _turned(state ^ byte * _PRIMES[4] & _64, 11, _64) * _PRIMES[0] & _64
    return _ended64(state)


_XXHASH64 = _Kind(
    lambda word, seed: _ended64(_with_int(seed + _PRIMES[4] + 4 & _64, word)),
    lambda word, seed: _ended64(_with_long(seed + _PRIMES[4] + 8 & _64, word)),
    _bytes64,
)
