"""Columns of numbers that are made without pandas."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from minishark.worker.columns import integers


@pytest.mark.parametrize("values", [[], [1], [-(2**63), 0, 2**63 - 1]])
def test_they_are_those_of_arrow(values: list[int]) -> None:
    """Down to the smallest and up to the largest."""
    assert pa.array(values, pa.int64()).equals(integers(values))


def test_pandas_is_not_imported() -> None:
    """It would take longer than a query."""
    program = "import sys; from minishark.worker.columns import integers; integers([1]); "
    program += "assert 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
