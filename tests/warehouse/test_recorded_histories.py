"""Sessions that share a warehouse, some of which are killed, see each table as one copy."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

import minishark
from tests.chaos.linearizable import Operation, unexplained

_SCRIPT = Path(__file__).with_name("recorded_writer.py")
_WRITERS, _STATEMENTS, _ROUNDS = 3, 12, 4


def operations(lines: str) -> list[Operation]:
    """What a session recorded; the last statement of a killed one has no end."""
    found: list[Operation] = []
    begun: tuple[str, frozenset[int], float] | None = None
    for line in lines.splitlines(keepends=True):
        if not line.endswith("\n"):
            continue  # it was killed while it wrote
        kind, listed, at_s, what = line.rstrip("\n").split(" ")
        numbers = frozenset(int(number) for number in listed.split(",") if number)
        if what == "begins":
            begun = (kind, numbers, float(at_s))
            continue
        assert begun is not None
        assert len(numbers) == len(listed.split(",") if listed else []), "no row is there twice"
        if what == "done":
            found.append(Operation(kind, numbers, begun[2], float(at_s)))  # type: ignore[arg-type]
        begun = None
    if begun is not None:
        found.append(Operation(begun[0], begun[1], begun[2], math.inf))  # type: ignore[arg-type]
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_sessions_leave_one_copy(tmp_path: Path) -> None:
    """Three sessions add, delete and read at once, and one after the other is killed."""
    chance = random.Random(3)
    with minishark.connect(in_process=True, nodes=1, warehouse=tmp_path) as session:
        session.sql("CREATE TABLE warehouse.h (n INTEGER)")
    history: list[Operation] = []
    for turn in range(_ROUNDS):
        writers = [
            subprocess.Popen(
                [
                    sys.executable,
                    str(_SCRIPT),
                    str(tmp_path),
                    str(turn * _WRITERS + i),
                    str((turn * _WRITERS + i) * 1000),
                    str(_STATEMENTS),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(_WRITERS)
        ]
        first = writers[0].stdout
        assert first is not None
        begins = first.readline()  # it has its session
        time.sleep(chance.uniform(0.0, 1.5))
        writers[0].kill()
        for i, writer in enumerate(writers):
            told, _ = writer.communicate(timeout=300)
            history += operations(begins + told if i == 0 else told)
    with minishark.connect(in_process=True, nodes=1, warehouse=tmp_path) as session:
        began_s = time.monotonic()
        rows = [row[0] for row in session.sql("SELECT n FROM warehouse.h").collect()]
    assert len(rows) == len(set(rows))
    history.append(Operation("read", frozenset(rows), began_s, time.monotonic()))
    assert sum(math.isinf(each.ended_s) for each in history) > 0, "some were killed in a statement"
    assert unexplained(history) == ""
