"""A writer that is killed at any moment leaves a table as it was before or after a statement."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from killed_writer import BATCH, STATEMENTS, Rows
from pyiceberg.catalog.sql import SqlCatalog

import minishark

_SCRIPT = Path(__file__).with_name("killed_writer.py")
_KILLS = {True: 60, False: 40}


def _rows(folder: Path) -> Rows:
    """The rows as another library reads them, from all files of the table."""
    catalog = SqlCatalog("warehouse", uri=f"sqlite:///{folder}/catalog.sqlite")
    rows = catalog.load_table("main.t").scan().to_arrow()
    assert rows.column("b").null_count <= len(rows)  # all columns can be read
    return Counter(rows.column("a").to_pylist())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("in_process", [True, False])
def test_no_half_commit(tmp_path: Path, *, in_process: bool) -> None:
    """Killed at moments spread over each statement's duration, from a table with rows."""
    with minishark.connect(in_process=True, nodes=1, warehouse=tmp_path) as session:
        session.sql(
            f"CREATE TABLE warehouse.t AS SELECT (i % 6)::INTEGER AS a, uuid()::VARCHAR AS b "
            f"FROM range({6 * BATCH}) r(i)"
        )
    command = [sys.executable, str(_SCRIPT), str(tmp_path), str(in_process).lower()]
    chance = random.Random(5)
    outcomes: Counter[str] = Counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None

        def ran(number: int, after_s: float | None) -> tuple[float, bool]:
            assert writers.stdin is not None
            assert writers.stdout is not None
            writers.stdin.write(f"{number} {'none' if after_s is None else after_s}\n")
            writers.stdin.flush()
            took_s, done = writers.stdout.readline().split()
            return float(took_s), done == "1"

        def checked(number: int, before: Rows, *, done: bool) -> Rows:
            rows = _rows(tmp_path)
            after = STATEMENTS[number].done(before)
            assert rows == after or (rows == before and not done), STATEMENTS[number].sql
            outcomes["after" if rows == after else "before"] += not done
            return rows

        known = _rows(tmp_path)
        durations = []
        for number in range(len(STATEMENTS)):
            took_s, done = ran(number, None)
            assert done
            durations.append(took_s)
            known = checked(number, known, done=True)
        for kill in range(_KILLS[in_process]):
            number = kill % len(STATEMENTS)
            _, done = ran(number, chance.uniform(0, 1.1 * durations[number]))
            known = checked(number, known, done=done)
            outcomes["done"] += done
        writers.stdin.close()
    assert min(outcomes["before"], outcomes["done"]) > 0, (outcomes, durations)
    with minishark.connect(in_process=True, nodes=1, warehouse=tmp_path) as session:
        for number, statement in enumerate(STATEMENTS):  # the next writer goes on
            session.sql(statement.sql)
            known = checked(number, known, done=True)
