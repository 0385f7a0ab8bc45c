"""What a slot keeps in mind of its DuckDB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from minishark.worker.duckdb_slot import EXCHANGE_SETTINGS, DuckDBSlot
from minishark.worker.memory import NodeMemory
from minishark.worker.storage import StorageMeter

_IN_A_NOTEBOOK = """
import sys
from pathlib import Path
from types import SimpleNamespace

import IPython

sys.modules["ipywidgets"] = None  # is not installed
IPython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})

from minishark.worker.duckdb_slot import DuckDBSlot
from minishark.worker.memory import NodeMemory
from minishark.worker.storage import StorageMeter

folder = Path(sys.argv[1])
slot = DuckDBSlot(NodeMemory(1 << 30, 1), StorageMeter(folder), str(folder))
print(*slot.con.execute("SELECT current_setting('enable_progress_bar')").fetchone())
slot.close()
"""


class _Interrupted:
    """A connection that is interrupted once, at a setting."""

    def __init__(self, con: duckdb.DuckDBPyConnection, at: str) -> None:
        self._con, self._at = con, at

    def execute(self, sql: str) -> Any:
        if self._at in sql:
            raise duckdb.InterruptException
        return self._con.execute(sql)


@pytest.mark.parametrize("interrupted_at", EXCHANGE_SETTINGS)
def test_an_interruption_leaves_no_doubt_about_types(tmp_path: Path, interrupted_at: str) -> None:
    """A task that is cancelled while they are set does not decide those of the next one."""
    slot = DuckDBSlot(NodeMemory(1 << 30, 1), StorageMeter(tmp_path), str(tmp_path))
    plain, con = slot.output_schema(["DECIMAL(9, 2)"]), slot.con
    slot.con = _Interrupted(con, interrupted_at)  # type: ignore[assignment]
    with pytest.raises(duckdb.InterruptException):
        slot.set_output_types(EXCHANGE_SETTINGS)
    slot.con = con
    slot.set_output_types({})
    assert slot.output_schema(["DECIMAL(9, 2)"]) == plain
    assert pa.types.is_decimal128(plain.field(0).type)


def test_progress_is_counted_in_a_notebook_without_widgets(tmp_path: Path) -> None:
    """DuckDB refuses that to connections that could draw nothing there."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_NOTEBOOK, str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ("True\n", "", 0) == (done.stdout, done.stderr, done.returncode)
