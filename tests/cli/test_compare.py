"""The comparison of two answers."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.query.answers import differences

_TYPES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int64(): st.integers(-3, 3),
    pa.string(): st.text("ab", max_size=2),
    pa.float64(): st.floats(-1e6, 1e6) | st.just(math.nan) | st.just(math.inf),
    pa.decimal128(9, 2): st.integers(-300, 300).map(lambda cents: Decimal(cents) / 100),
    pa.date32(): st.dates(date(1990, 1, 1), date(1990, 1, 9)),
    pa.list_(pa.float64()): st.lists(st.floats(-10, 10), max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.none() | st.integers(0, 2), "b": st.sampled_from(["x", "y"])}
    ),
    pa.map_(pa.string(), pa.float64()): st.dictionaries(
        st.sampled_from("kl"), st.floats(-10, 10)
    ).map(lambda entries: list(entries.items())),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A table of up to four columns and eight rows, with nulls."""
    types = draw(st.lists(st.sampled_from(list(_TYPES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 8))
    columns = [
        pa.array(draw(st.lists(st.none() | _TYPES[kind], min_size=rows, max_size=rows)), kind)
        for kind in types
    ]
    return pa.table(columns, names=[f"c{index}" for index in range(len(types))])


@given(table=tables(), data=st.data())
def test_any_order_of_the_same_rows_is_right_without_an_order(
    table: pa.Table, data: st.DataObject
) -> None:
    """A permutation of the rows is no difference where the query orders nothing."""
    order = data.draw(st.permutations(range(table.num_rows)))
    shuffled = table.take(pa.array(order, pa.int64()))
    assert [] == differences(table, shuffled)


@given(table=tables(), data=st.data())
def test_a_lost_or_doubled_row_is_found(table: pa.Table, data: st.DataObject) -> None:
    """Replacing a row by a copy of another, different one is a difference."""
    numbered = table.append_column("id", pa.array(range(table.num_rows), pa.int64()))
    if table.num_rows < 2:
        return
    lost, doubled = data.draw(
        st.lists(st.integers(0, table.num_rows - 1), min_size=2, max_size=2, unique=True)
    )
    indices = [doubled if index == lost else index for index in range(table.num_rows)]
    assert [] != differences(numbered, numbered.take(pa.array(indices, pa.int64())))


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8), data=st.data())
def test_rounding_is_no_difference_and_more_than_rounding_is(
    values: list[float], data: st.DataObject
) -> None:
    """Floats may differ by a relative 1e-10, and not by 1e-6."""
    index = data.draw(st.integers(0, len(values) - 1))
    values[index] = abs(values[index]) + 1

    def scaled(factor: float) -> pa.Table:
        changed = [*values[:index], values[index] * factor, *values[index + 1 :]]
        return pa.table({"id": range(len(values)), "x": changed})

    assert [] == differences(scaled(1), scaled(1 + 1e-10))
    assert [] != differences(scaled(1), scaled(1 + 1e-6))


def test_rounding_that_swaps_the_ranks_of_rows_is_no_difference() -> None:
    """Rows are paired by closeness, not by the order that rounded sums happen to have."""
    low, high = 0.3, 0.1 + 0.2
    expected = pa.table({"x": [low, high], "y": [5.0, 3.0]})
    actual = pa.table({"x": [high, low], "y": [5.0, 3.0]})
    assert [] == differences(expected, actual)


@pytest.mark.parametrize(
    ("actual", "sentence"),
    [
        (pa.table({"a": [1, 2]}), "Columns are ['a'], expected ['a', 'b']."),
        (
            pa.table({"a": [1, 2], "b": ["1", "2"]}),
            "Column b is of type string, expected double.",
        ),
        (pa.table({"a": [1], "b": [1.0]}), "There are 1 rows, expected 2."),
        (pa.table({"a": [1, 2], "b": [1.0, None]}), "1 rows are missing: (2, 2.0)"),
    ],
)
def test_each_kind_of_difference_has_its_sentence(actual: pa.Table, sentence: str) -> None:
    """Names, types, number of rows and nulls are told apart."""
    expected = pa.table({"a": [1, 2], "b": [1.0, 2.0]})
    assert sentence == differences(expected, actual)[0]


def test_rows_may_change_places_only_where_their_keys_are_equal() -> None:
    """An ordered answer is judged by the sequence of its keys."""
    expected = pa.table({"k": [1, 1, 2], "v": ["a", "b", "c"]})
    tie_swapped = expected.take([1, 0, 2])
    out_of_order = expected.take([0, 2, 1])
    assert [] == differences(expected, tie_swapped, ordered_by=(0,))
    assert [] == differences(expected, out_of_order)
    assert ["Row 2 is out of order: its keys are (2), expected (1)."] == differences(
        expected, out_of_order, ordered_by=(0,)
    )


def test_layouts_of_one_type_are_one_type() -> None:
    """Dictionary encoding, views and small decimals are no difference."""
    plain = pa.table({"s": ["a", None], "d": pa.array([Decimal("1.50"), None])})
    other = pa.table(
        {
            "s": plain["s"].combine_chunks().dictionary_encode(),
            "d": plain["d"].cast(pa.decimal64(3, 2)),
        }
    )
    views = plain.set_column(0, "s", plain["s"].cast(pa.string_view()))
    assert [] == differences(plain, other)
    assert [] == differences(plain, views)


def test_every_duckdb_type_compares_with_itself() -> None:
    """Types that Python can't express, such as nanoseconds and infinite dates, work too."""
    with duckdb.connect() as connection:
        table = connection.sql("""
            SELECT 'infinity'::DATE, '290000-01-01'::DATE, INTERVAL 3 DAYS, uuid(),
                TIMESTAMP_NS '2020-01-01 00:00:00.123456789', 1::HUGEINT, 'a'::ENUM ('a', 'b'),
                [{'d': TIMESTAMP_NS '2020-01-01 00:00:00.123456789', 'n': NULL}], TIME '10:00:00',
                MAP {'k': 'NaN'::DOUBLE}, [1, 2]::INTEGER[2], union_value(num := 2), 1::BIGNUM
        """).to_arrow_table()
    assert [] == differences(table, table)


def test_large_groups_that_differ_in_floats_only_are_compared_by_rank() -> None:
    """A thousand rows of floats compare in reasonable time, and a wrong one is found."""
    values = [float(index) for index in range(2000)]
    wrong = [*values[:-1], 2000.5]
    assert [] == differences(pa.table({"x": values}), pa.table({"x": values[::-1]}))
    assert ["1 rows are missing: (1999.0)", "1 rows are not expected: (2000.5)"] == differences(
        pa.table({"x": values}), pa.table({"x": wrong})
    )
