"""Columns of numbers that are made without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.worker.columns import as_numbers, column_of, flags, integers, no_texts

VALUES = (
    st.integers(-(2**64), 2**64),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(),
    st.booleans(),
    st.integers(0, 9).map(np.int64),
    st.lists(st.integers(0, 9)),
)


def made(make: Any, values: list[Any]) -> Any:
    """A column as its type and how it is printed, where NaN is like NaN; or what goes wrong."""
    try:
        column = make(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        return type(error)
    column.validate(full=True)
    return column.type, column.null_count, str(column.to_pylist())


@given(st.one_of(*(st.lists(st.none() | some) for some in VALUES)) | st.lists(st.one_of(*VALUES)))
def test_values_become_the_columns_of_arrow(values: list[Any]) -> None:
    """Of any kind, also several."""
    assert made(pa.array, values) == made(column_of, values)


def test_texts_that_are_none_are_no_column() -> None:
    """Half of a surrogate pair."""
    assert made(pa.array, ["a", chr(0xD800)]) == made(column_of, ["a", chr(0xD800)])


@pytest.mark.parametrize("values", [[], [1], [-(2**63), 0, 2**63 - 1]])
def test_they_are_those_of_arrow(values: list[int]) -> None:
    """Down to the smallest and up to the largest."""
    assert pa.array(values, pa.int64()).equals(integers(values))


@pytest.mark.parametrize("type_", [np.int64, np.int8])
def test_arrays_of_numpy_are_columns(type_: type[np.signedinteger[Any]]) -> None:
    values = np.arange(-7, 20, 3, dtype=type_)
    assert pa.array(values, pa.int64()).equals(integers(values))
    assert pa.array(values > 1).equals(flags(values > 1))
    column = pa.chunked_array([pa.array(values).slice(1), pa.array(values)])
    assert [*values[1:], *values] == as_numbers(column).tolist()
    assert [] == as_numbers(column.slice(0, 0)).tolist()
    assert [0, 3] == as_numbers(pa.array([None, 3], pa.int8())).tolist()
    assert pa.array([], pa.string()).equals(no_texts())


PROGRAM = """
import sys, minishark, minishark.session.session
assert 'pyarrow.compute' not in sys.modules  # 30 ms, which few need
with minishark.connect(in_process=True, nodes=1, executors_per_node=1) as session:
    for sql in (
        "CREATE TABLE t AS SELECT i AS k, 't' || i % 9 AS s, i // 7 AS x FROM range(100000) r(i)",
        "SELECT s, count(*) FROM t WHERE s LIKE '%3%' GROUP BY s",
        "INSERT INTO t VALUES (-1, 'new', 3)",
        "DELETE FROM t WHERE k = 5",
        "UPDATE t SET x = x + 1 WHERE k = 6",
        "DELETE FROM t WHERE k % 2 = 0",
        "UPDATE t SET x = x + 1",
        "ALTER TABLE t ADD COLUMN y INTEGER DEFAULT 3",
        "SELECT sum(y), sum(x) FROM t",
    ):
        session.sql(sql).to_arrow()
    rows = session.create_dataframe([(1, "a"), (2, None), (3, "c")], ["a", "b"])
    assert [(2, "ax")] == rows.map_rows(
        lambda row: (2 * row.a, row.b and row.b + "x"), "a BIGINT, b VARCHAR"
    ).where("a = 2").collect()
assert 'pandas' not in sys.modules
"""


@pytest.mark.slow
def test_pandas_is_not_imported() -> None:
    """It would take longer than a query, in each process."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
