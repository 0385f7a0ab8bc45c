"""How blocks that lie on several machines become the pieces of a table: a pure function."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Block(msgspec.Struct, frozen=True):
    """A block of rows: its bytes, which may be a guess, and the node that is nearest to it."""

    size: int
    node: str


class Cut(msgspec.Struct, frozen=True):
    """A part of a block: its rows from the fraction `first / whole` to `last / whole`."""

    block: int  # its position in the dataset
    first: int
    last: int
    whole: int

    def rows(self, count: int) -> tuple[int, int]:
        """The first row and the number of rows, of a block that has `count`."""
        first = count * self.first // self.whole
        return first, count * self.last // self.whole - first


class Piece(msgspec.Struct, frozen=True):
    """What one node is to store as one file: cuts in the order of the dataset."""

    node: str
    cuts: tuple[Cut, ...]


def pieces_of(blocks: Sequence[Block], count: int) -> list[Piece]:
    """At most `count` pieces of about equal size, each of blocks that lie near its node.

    A node's rows keep their order. If blocks lie near more nodes than `count`, those of the
    smallest go to the fullest one.
    """
    held: dict[str, int] = {}
    for block in blocks:
        held[block.node] = held.get(block.node, 0) + max(1, block.size)
    fullest = sorted(held, key=lambda node: -held[node])[:count]
    for node in [node for node in held if node not in fullest]:
        held[fullest[0]] += held.pop(node)
    numbers = dict.fromkeys(held, 1)
    for _ in range(count - len(held)):
        # Whose pieces are largest gets one more.
        node = max(numbers, key=lambda name: held[name] / numbers[name], default="")
        if not node or numbers[node] >= held[node]:
            break
        numbers[node] += 1
    found: list[Piece] = []
    for node, number in numbers.items():
        near = [
            (position, max(1, block.size))
            for position, block in enumerate(blocks)
            if block.node == node or (node == fullest[0] and block.node not in numbers)
        ]
        found += [Piece(node, cuts) for cuts in _cut(near, held[node], number)]
    return found


def _cut(blocks: Sequence[tuple[int, int]], total: int, number: int) -> list[tuple[Cut, ...]]:
    """Blocks, given by position and size, cut into `number` runs of equal size."""
    runs: list[list[Cut]] = [[] for _ in range(number)]
    begin, run = 0, 0
    for position, size in blocks:
        first = 0
        while first < size:
            end = total * (run + 1) // number
            last = min(size, end - begin)
            if last > first:
                runs[run].append(Cut(position, first, last, size))
            first = last
            if begin + last == end and run < number - 1:
                run += 1
        begin += size
    return [tuple(run) for run in runs]
