"""Ranges of lines: together they are the file, whatever its quotes hold; or it is not divided."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import threading
from pathlib import Path

import duckdb
import pytest

from minishark.errors import DataError
from minishark.model.predicates import Pushed
from minishark.sources import text, text_ranges
from minishark.sources.files import named_files
from minishark.sources.formats import OwnReach
from minishark.sources.text_ranges import Quoting, TextRange, line_ranges

COMMA = Quoting(ord('"'), ord(","))


def _open_files() -> set[Path]:
    """The files that this process has open; sockets of other threads may come and go."""
    opened = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            opened.add(descriptor.readlink())
    return opened


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges and blocks of some bytes, so that small files have many."""
    monkeypatch.setattr(text, "RANGE_BYTES", 200)
    monkeypatch.setattr(text_ranges, "_BLOCK_BYTES", 37)


def test_lines_without_quotes(tmp_path: Path) -> None:
    """Every newline ends a row."""
    path = tmp_path / "x.csv"
    path.write_text("".join(f"{i},x\n" for i in range(100)))
    content = path.read_bytes()
    found = line_ranges(str(path), 7, None)
    assert found is not None
    assert 7 == len(found)
    assert content == b"".join(content[first:last] for first, last in found)
    assert all(content[last - 1 : last] == b"\n" for _, last in found)


def test_newlines_in_quotes_end_no_row(tmp_path: Path) -> None:
    """Ranges end at row ends only, where quotes are even."""
    path = tmp_path / "x.csv"
    path.write_text("".join(f'{i},"a\n""b""\n,{i}"\n' for i in range(200)))
    content = path.read_bytes()
    found = line_ranges(str(path), 9, COMMA)
    assert found is not None
    assert 9 == len(found)
    assert all(content[first:last].count(b'"') % 2 == 0 for first, last in found)
    assert all(content[last - 2 : last] == b'"\n' for _, last in found)


@pytest.mark.parametrize(
    "row", ['1,5" disk\n', '1,6" x 5",y\n', '1, "x"\n', '1,"a" \n', '1,"open\n', '1,"a"b"\n']
)
def test_quotes_that_may_mean_something_else(tmp_path: Path, row: str) -> None:
    """The file is read whole."""
    path = tmp_path / "x.csv"
    path.write_text('1,"a"\n' * 50 + row + '1,"a"\n' * 50)
    assert None is line_ranges(str(path), 5, COMMA)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", range(16))
def test_parts_are_the_whole(tmp_path: Path, seed: int) -> None:
    """Rows of generated files in their order, read in ranges, and those that DuckDB reads."""
    rng = random.Random(seed)
    path = tmp_path / f"x.{'json' if seed % 4 == 3 else 'csv'}"
    pieces = ["a", '"', "\n", ",", "é", " ", "''", "\r\n", "b" * 30]
    rows = [
        (i, None if rng.random() < 0.1 else "".join(rng.choices(pieces, k=rng.randrange(5))))
        for i in range(rng.randrange(1, 120))
    ]
    quotes = rng.choice(["", ", FORCE_QUOTE *"])
    header = rng.choice(["true", "false"])
    options = "FORMAT json" if path.suffix == ".json" else f"HEADER {header}{quotes}"
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (i BIGINT, s VARCHAR)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
        connection.execute(f"COPY t TO '{path}' ({options})")
        try:
            expected = connection.execute(f"FROM '{path}'").fetchall()
        except duckdb.Error:
            return  # its own reader can't
    source = named_files(path, OwnReach())
    splits = source.resolve().splits(Pushed(), 5)
    if not isinstance(splits[0], TextRange):
        assert path.stat().st_size < 400 or path.suffix == ".csv"
        return
    found = []
    for split in splits:
        table = split.read(Pushed()).read_all()
        found += [tuple(row.values()) for row in table.to_pylist()]
    assert expected == found


def test_columns_are_chosen(tmp_path: Path) -> None:
    """A range gives the columns that are asked for."""
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(200)))
    splits = named_files(path, OwnReach()).resolve().splits(Pushed(), 4)
    assert 4 == len(splits)
    tables = [split.read(Pushed(columns=("b",))).read_all() for split in splits]
    assert {("b",)} == {tuple(table.column_names) for table in tables}
    assert [f"x{i}" for i in range(200)] == [b for t in tables for b in t["b"].to_pylist()]


def test_a_reader_that_stops_early_leaves_nothing(tmp_path: Path) -> None:
    """The thread that writes lines ends, and its files are closed."""
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "".join(f"{i},{'x' * 1000}\n" for i in range(20_000)))
    (split, *_) = named_files(path, OwnReach()).resolve().splits(Pushed(), 2)
    batches = split.read(Pushed())
    assert 0 < batches.read_next_batch().num_rows
    assert path in _open_files()
    batches.close()
    del batches
    gc.collect()
    assert "minishark-lines" not in {thread.name for thread in threading.enumerate()}
    assert path not in _open_files()


def test_a_file_that_became_shorter_is_named(tmp_path: Path) -> None:
    """Its rows are not taken for all of them."""
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "".join(f"{i},x{i}\n" for i in range(2000)))
    last = named_files(path, OwnReach()).resolve().splits(Pushed(), 4)[-1]
    os.truncate(path, 100)
    with pytest.raises(DataError, match=r"x\.csv"):
        last.read(Pushed()).read_all()
