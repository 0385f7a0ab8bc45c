"""Entries of outputs in a folder: whole or none, and the oldest go."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from minishark.errors import DataError
from minishark.events.figures import TaskFigures
from minishark.query.output_folder import LocalEntries, entries_in, entry_of, read_entry
from minishark.sources.filesystems import FROM_ENVIRONMENT
from minishark.worker.protocol import KeptOutput, TaskOutcome


def output() -> KeptOutput:
    """An output in a file."""
    outcome = TaskOutcome(figures=TaskFigures(rows=1, bytes=10), file="f", checksum=7)
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
    """Down to nine tenths of the limit; what processes left that died goes, too."""
    entries = LocalEntries(tmp_path)
    for number in range(10):
        entries.write(str(number), b"x" * 100)
        os.utime(tmp_path / f"{number}.output", (1_000 + number, 1_000 + number))
    left, young = tmp_path / ".7.ab.draft", tmp_path / ".8.ab.draft"
    left.write_bytes(b"x")
    os.utime(left, (1_000, 1_000))
    young.write_bytes(b"x")
    assert b"x" * 100 == entries.read("2")
    entries.tidy(1_000)
    assert [] == [number for number in range(10) if entries.read(str(number)) is None]
    for number in range(10):
        os.utime(tmp_path / f"{number}.output", (1_000 + number, 1_000 + number))
    os.utime(tmp_path / "2.output", (time.time(), time.time()))
    entries.tidy(500)
    assert [2, 7, 8, 9] == [number for number in range(10) if entries.read(str(number))]
    assert not left.exists()
    assert young.exists()


def test_a_folder_that_cannot_be_made_is_told_at_once(tmp_path: Path) -> None:
    """By its path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/kept"):
        entries_in(tmp_path / "file" / "kept", lambda: FROM_ENVIRONMENT)
