"""Entries of outputs in a folder: whole or none, and the oldest go."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from minishark.errors import DataError
from minishark.model.events.figures import TaskFigures
from minishark.query.output_folder import LocalEntries, entries_in, entry_of, read_entry
from minishark.sources.filesystems import FROM_ENVIRONMENT
from minishark.worker.protocol import KeptOutput, TaskOutcome


def output() -> KeptOutput:
    """An output in a file."""
    outcome = TaskOutcome(figures=TaskFigures(rows=1, bytes=10), file="f")
    return KeptOutput(outcome=outcome, node="n", identity="i", made_s=1.5, made_by="query 1")


def test_an_entry_is_read_as_it_was_written() -> None:
    """With its file, or without one."""
    for data in (b"", b"rows" * 1000):
        read = read_entry(entry_of(output(), data))
        assert read is not None
        assert (output(), data) == (read[0], bytes(read[1]))


def test_an_entry_that_was_changed_or_cut_is_none() -> None:
    """Wherever that is."""
    rng = random.Random(3)
    entry = entry_of(output(), b"rows" * 100)
    for _ in range(300):
        at, bit = rng.randrange(len(entry)), 1 << rng.randrange(8)
        damaged = bytearray(entry)
        damaged[at] ^= bit
        assert read_entry(bytes(damaged)) is None
        assert read_entry(entry[:at]) is None
    assert read_entry(entry + b"x") is None


def test_the_least_recently_used_entries_go(tmp_path: Path) -> None:
    """Down to nine tenths of the limit; what processes left that died, too, and nothing else."""
    entries = LocalEntries(tmp_path)
    names = [f"{number:032x}" for number in range(10)]
    for number, name in enumerate(names):
        entries.write(name, b"x" * 100)
        os.utime(tmp_path / f"{name}.output", (1_000 + number, 1_000 + number))
    left, young = (tmp_path / f".{name}.0123abcd.draft" for name in names[7:9])
    users = [tmp_path / "novel.draft", tmp_path / "job.output"]
    for path in (left, young, *users):
        path.write_bytes(b"x" * 1_000)
    for path in (left, *users):
        os.utime(path, (1_000, 1_000))
    assert b"x" * 100 == entries.read(names[2])
    entries.tidy(1_000)
    assert [] == [name for name in names if entries.read(name) is None]
    for number, name in enumerate(names):
        os.utime(tmp_path / f"{name}.output", (1_000 + number, 1_000 + number))
    os.utime(tmp_path / f"{names[2]}.output", (time.time(), time.time()))
    entries.tidy(500)
    assert [2, 7, 8, 9] == [i for i, name in enumerate(names) if entries.read(name)]
    assert not left.exists()
    assert all(path.exists() for path in (young, *users))


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    """By its path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/kept"):
        entries_in(tmp_path / "file" / "kept", lambda: FROM_ENVIRONMENT)
