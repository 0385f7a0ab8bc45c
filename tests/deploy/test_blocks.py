"""Blocks of a dataset become pieces: every row once, near its machine, of equal size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minishark_platforms.blocks import Block, Cut, pieces_of

_BLOCKS = st.lists(st.builds(Block, st.integers(0, 1000), st.sampled_from("abc")), max_size=20)


@given(_BLOCKS, st.integers(1, 12), st.data())
def test_every_row_is_in_one_piece(blocks: list[Block], count: int, data: st.DataObject) -> None:
    """Whatever the sizes say: they are bytes, and perhaps unknown."""
    rows = [data.draw(st.integers(0, 50)) for _ in blocks]
    pieces = pieces_of(blocks, count)
    assert len(pieces) <= count
    found = []
    for piece in pieces:
        order = []
        for cut in piece.cuts:
            first, taken = cut.rows(rows[cut.block])
            order += [(cut.block, first + i) for i in range(taken)]
        assert order == sorted(order)
        found += order
    assert sorted(found) == [(i, row) for i, count in enumerate(rows) for row in range(count)]


@given(_BLOCKS, st.integers(3, 12))
def test_pieces_are_near_their_blocks(blocks: list[Block], count: int) -> None:
    """With pieces for all nodes, no block leaves its own."""
    for piece in pieces_of(blocks, count):
        assert {blocks[cut.block].node for cut in piece.cuts} <= {piece.node}


def test_a_large_block_is_divided() -> None:
    """So that all slots have work; pieces are of equal size over several blocks."""
    found = pieces_of([Block(100, "a"), Block(300, "a"), Block(200, "b")], 3)
    assert [piece.node for piece in found] == ["a", "a", "b"]
    assert found[0].cuts == (Cut(0, 0, 100, 100), Cut(1, 0, 100, 300))
    assert found[1].cuts == (Cut(1, 100, 300, 300),)


def test_fewer_pieces_than_nodes() -> None:
    """Blocks of the other nodes go to the fullest, in the dataset's order."""
    (piece,) = pieces_of([Block(10, "a"), Block(30, "b"), Block(10, "c")], 1)
    assert (piece.node, [cut.block for cut in piece.cuts]) == ("b", [0, 1, 2])
    assert pieces_of([], 4) == []
