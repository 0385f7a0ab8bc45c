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


def test_a_session_imports_neither_pandas_nor_arrows_functions() -> None:
    """They would take longer than a query."""
    program = "import sys; import minishark.session.session; "
    program += "from minishark.worker.columns import integers; integers([1]); "
    program += "assert not {'pandas', 'pyarrow.compute'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True)
