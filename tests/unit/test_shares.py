"""Shares of memory: what tasks with several threads take of idle slots."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from minishark.worker.shares import Shares


def test_a_task_takes_what_idle_slots_leave_and_gives_it_back(tmp_path: Path) -> None:
    a, b = (Shares(tmp_path / "shares", name, 2) for name in "ab")
    assert (a.taken(), b.taken()) == (1.0, 1.0)
    a.want(2)
    assert (a.taken(), b.taken()) == (2.0, 0.0)
    b.want(1)
    assert (a.taken(), b.taken()) == (1.0, 1.0)
    b.want(0)
    a.want(0)
    assert (a.taken(), b.taken()) == (1.0, 1.0)
    a.close()
    b.close()


@given(st.lists(st.integers(0, 8), min_size=1, max_size=8))
def test_shares_are_as_many_as_slots_at_most(wanted: list[int]) -> None:
    """Whatever tasks want, and each has one at least."""
    with tempfile.TemporaryDirectory() as folder:
        slots = [Shares(Path(folder), str(i), len(wanted)) for i in range(len(wanted))]
        for slot, shares in zip(slots, wanted, strict=True):
            slot.want(shares)
        taken = [slot.taken() for slot in slots]
        for slot in slots:
            slot.close()
    assert sum(taken) <= len(wanted) + 1e-9
    assert all(1 <= got <= most for got, most in zip(taken, wanted, strict=True) if most)


def test_a_task_may_begin_or_end_while_shares_are_counted(tmp_path: Path) -> None:
    """Another thread counts them from time to time."""
    for first, then in (0, 1), (2, 0):
        slot = Shares(tmp_path / "shares", f"{first}", 2)
        slot.want(first)

        def changing(slot: Shares = slot, then: int = then) -> Iterator[int]:
            slot.want(then)
            return iter(())

        with patch.object(slot, "_others", changing):
            assert slot.taken() == (2.0 if first else 1.0)
        slot.close()


def test_dead_processes_want_nothing(tmp_path: Path) -> None:
    code = f"from minishark.worker.shares import *; Shares(Path({str(tmp_path)!r}), 'b', 2).want(2)"
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
    own = Shares(tmp_path, "a", 2)
    own.want(2)
    assert len(list(tmp_path.iterdir())) == 2
    assert own.taken() == 2.0
    own.close()
