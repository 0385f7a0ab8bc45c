"""What may become of a file: bits flip, writes are torn or lost, other bytes are in its place."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

_PAGE = 4096

Damage = Callable[[bytearray, random.Random], bytearray]


def flipped(data: bytearray, chance: random.Random, bits: int = 1) -> bytearray:
    """Some bits are others, the same one in no two bytes of a page."""
    for _ in range(bits):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return data


def flipped_both_ways(data: bytearray, chance: random.Random) -> bytearray:
    """A bit is set in a word of a page, and the same one cleared in another word."""
    page, mask = chance.randrange(len(data) // _PAGE) * _PAGE, 1 << chance.randrange(8)
    places = range(page + chance.randrange(8), page + _PAGE, 8)
    one = next((i for i in places if data[i] & mask), None)
    other = next((i for i in places if not data[i] & mask), None)
    for place in (one, other):
        data[place or 0] ^= mask
    return data


def cut(data: bytearray, chance: random.Random) -> bytearray:
    """The end is not there."""
    return data[: chance.randrange(len(data))]


def torn(data: bytearray, chance: random.Random) -> bytearray:
    """The end was never written, and is zeros."""
    first = chance.randrange(len(data) - 8)
    return data[:first] + bytes(len(data) - first)


def lost_page(data: bytearray, chance: random.Random) -> bytearray:
    """A page was never written."""
    first = chance.randrange(len(data) // _PAGE) * _PAGE
    data[first : first + _PAGE] = bytes(_PAGE)
    return data


def moved(data: bytearray, chance: random.Random) -> bytearray:
    """Two pages have changed places."""
    one, other = (i * _PAGE for i in chance.sample(range(len(data) // _PAGE), 2))
    first, second = data[one : one + _PAGE], data[other : other + _PAGE]
    data[one : one + _PAGE], data[other : other + _PAGE] = second, first
    return data


def longer(data: bytearray, chance: random.Random) -> bytearray:
    """Bytes of another file follow."""
    return data + chance.randbytes(chance.randrange(1, 100))


DAMAGES: tuple[Damage, ...] = (
    flipped, lambda data, chance: flipped(data, chance, 3), flipped_both_ways, cut, torn, lost_page,
    moved, longer,
)  # fmt: skip


def damage(path: Path, how: Damage, chance: random.Random) -> bool:
    """Damage a file in place, as its inode stays; whether it has other bytes then."""
    sound = path.read_bytes()
    data = bytes(how(bytearray(sound), chance))
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.truncate(len(data))
        file.write(data)
    return data != sound


def changed_later(path: Path, data: bytes) -> None:
    """Other bytes in a file that was compared, which still counts as sound."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.truncate(len(data))
        file.write(data)
    path.chmod(mode)


def unreadable(data: bytes) -> tuple[bytes, ...]:
    """What may become of a file: it is cut, emptied, zeros, other bytes, or its tail is lost."""
    return data[:100], b"", data[:-300], bytes(len(data)), data + b"more", b"x" * len(data)
