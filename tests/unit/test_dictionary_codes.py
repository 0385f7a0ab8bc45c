"""Numbers of text in dictionaries, for all rows of a table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from minishark.compiler.hints import DictionaryCodes
from minishark.worker.dictionary_codes import with_codes

CODES = (DictionaryCodes("in0", "t#values", (("s#code", "s"),)),)
SMALL = pa.dictionary(pa.int8(), pa.string())


def dictionary(numbers: list[int | None], values: list[str]) -> pa.DictionaryArray:
    """Text as a partition stores it."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int8()), pa.array(values))


def decoded(column: pa.ChunkedArray) -> list[str | None]:
    """The text that the numbers of a column stand for."""
    tables = with_codes({"in0": pa.table({"n": range(len(column)), "s": column})}, CODES).tables
    assert ["n", "s", "s#code"] == tables["in0"].column_names
    assert 1 == tables["t#values"].num_rows
    values = tables["t#values"].column("s")[0].as_py()
    return [i if i is None else values[i] for i in tables["in0"].column("s#code").to_pylist()]


@pytest.mark.parametrize(
    "column",
    [
        pa.chunked_array([dictionary([1, 0, None], ["a", "b"]), dictionary([0], ["a", "b"])]),
        pa.chunked_array([dictionary([1, 0, None], ["b", "c"]), dictionary([0, 1], ["a", "b"])]),
        pa.chunked_array([["x", None], ["", "x"], []], pa.string()),
        pa.chunked_array([[None, None]], pa.string()),
        pa.chunked_array([], pa.string()),
        pa.chunked_array([], SMALL),
    ],
    ids=["same", "different", "plain", "null", "empty", "no chunk"],
)
def test_numbers_stand_for_the_same_text(column: pa.ChunkedArray) -> None:
    """However it is stored."""
    assert column.to_pylist() == decoded(column)


def test_partitions_may_have_more_values_than_their_numbers_allow() -> None:
    """Together: each has as many as its own numbers allow."""
    chunks = [dictionary([*range(100)], [f"{part}-{i}" for i in range(100)]) for part in range(3)]
    column = pa.chunked_array(chunks)
    assert column.to_pylist() == decoded(column)


def test_nothing_is_copied_where_dictionaries_are_the_same() -> None:
    """The numbers are those that are stored."""
    column = pa.chunked_array([dictionary([1, 0], ["a", "b"]), dictionary([0], ["a", "b"])])
    found = with_codes({"in0": pa.table({"s": column})}, CODES)
    assert not found.new
    stored = [chunk.indices.buffers()[1].address for chunk in column.chunks]
    numbers = found.tables["in0"].column("s#code").chunks
    assert stored == [chunk.buffers()[1].address for chunk in numbers]


def test_numbers_that_are_made_anew_are_known_to_be() -> None:
    """What is kept for long should not have them."""
    column = pa.chunked_array([dictionary([0], ["a"]), dictionary([0], ["b"])])
    found = with_codes({"in0": pa.table({"s": column})}, CODES)
    assert {"in0", *(each.relation for each in CODES)} == found.new
