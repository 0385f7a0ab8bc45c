"""Columns of numbers that are made without pandas."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from minishark.worker.columns import as_numbers, flags, integers, no_texts


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
assert 'pandas' not in sys.modules
"""


@pytest.mark.slow
def test_pandas_is_not_imported() -> None:
    """It would take longer than a query, in each process."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
