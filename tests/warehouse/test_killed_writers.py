"""A writer that is killed at any moment leaves a table as it was before or after a statement."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from killed_writer import BATCH
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import minishark

_SCRIPT = Path(__file__).with_name("killed_writer.py")
_MOST_S = {True: 1.5, False: 6.0}  # until the kill; executors have to import pyiceberg first


def _killed(folder: Path, after_s: float, *, in_process: bool) -> None:
    command = [sys.executable, str(_SCRIPT), str(folder), str(in_process).lower()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(after_s)
        process.kill()


def _checked(table: Table) -> int:
    """The number of rows, all of which can be read."""
    rows = table.scan().to_arrow()
    counts = Counter(rows.column("a").to_pylist())
    assert [n for n in counts.values() if n % BATCH] == []
    return len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("in_process", [True, False])
def test_no_half_commit(tmp_path: Path, *, in_process: bool) -> None:
    """Others read whole statements; the next writer goes on; VACUUM removes what was left."""
    chance = random.Random(5)
    seen = set()
    for _ in range(5):
        _killed(tmp_path, chance.uniform(0, _MOST_S[in_process]), in_process=in_process)
        catalog = SqlCatalog("warehouse", uri=f"sqlite:///{tmp_path}/catalog.sqlite")
        seen |= {_checked(catalog.load_table(name)) for name in catalog.list_tables("main")}
    assert len(seen) > 1
    with minishark.connect(in_process=True, nodes=1, warehouse=tmp_path) as session:
        for name in ("t", "u"):
            if session.catalog.table_exists(f"warehouse.main.{name}"):
                session.sql(f"COMMENT ON TABLE warehouse.{name} IS 'goes on'")
