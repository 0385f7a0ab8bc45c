"""Making data: all or nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from minishark.cli.tpch.locations import default_data_folder, scale_folder
from minishark.cli.tpch.tables import TABLES
from minishark.errors import DataError, MinisharkError, ResourceError
from minishark_lab.tpch.generate import (
    GeneratorFailedError,
    GeneratorMissingError,
    generate,
)

Install = Callable[[str], Path]

_PRELUDE = f"""#!{sys.executable}
import pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--output-dir") + 1])
def make(tables):
    for table in tables:
        (folder / table).mkdir()
        (folder / table / (table + ".1.parquet")).write_bytes(b"x" * 100)
TABLES = {list(TABLES)!r}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a generator that does what a few lines of Python say."""

    def installed(body: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "tpchgen-cli"
        program.write_text(_PRELUDE + body)
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))
        return program

    return installed


def _make(root: Path, scale: float = 0.01) -> Path:
    return generate(scale, root, parts=4, on_progress=lambda done, total: None)


def test_all_tables_are_made_and_kept(tmp_path: Path, install: Install) -> None:
    """The second run takes what the first one made, without the generator."""
    program = install("make(TABLES)")
    root = tmp_path / "deep" / "down"
    folder = _make(root)
    assert root / "scale-0.01" == folder
    assert sorted(TABLES) == sorted(entry.name for entry in folder.iterdir())
    assert ["scale-0.01"] == [entry.name for entry in root.iterdir()]
    program.unlink()
    assert folder == _make(root)


def test_progress_ends_at_the_total(tmp_path: Path, install: Install) -> None:
    """The last report says that all is done."""
    install("make(TABLES)")
    reports: list[tuple[int, int]] = []
    generate(0.01, tmp_path / "data", parts=4, on_progress=lambda *report: reports.append(report))
    assert (3_630_000, 3_630_000) == reports[-1]


@pytest.mark.parametrize(
    ("body", "error", "words"),
    [
        ("make(TABLES[:3]); sys.exit('Error: no luck')", GeneratorFailedError, "Error: no luck"),
        ("make(TABLES[:3]); sys.exit(3)", GeneratorFailedError, "exit status 3"),
        (
            "make(TABLES[:3]); sys.exit('Error: No space left on device (os error 28)')",
            ResourceError,
            "disk is full",
        ),
        ("make(TABLES[:-1])", DataError, "lacks the table lineitem"),
    ],
)
def test_a_failure_leaves_nothing(
    tmp_path: Path, install: Install, body: str, error: type[MinisharkError], words: str
) -> None:
    """The error says what the generator said, and no folder is left half-made."""
    install(body)
    with pytest.raises(error, match=words.replace("(", r"\(")):
        _make(tmp_path / "data")
    assert [] == list((tmp_path / "data").iterdir())


def test_an_interrupt_ends_the_generator_and_leaves_nothing(
    tmp_path: Path, install: Install
) -> None:
    """Ctrl-C while the generator runs leaves neither its process nor its files."""
    install("make(TABLES); (folder / 'ready').touch(); time.sleep(600)")
    children: list[psutil.Process] = []
    others = psutil.Process().children()

    def interrupt(_done: int, _total: int) -> None:
        if any((tmp_path / "data").glob(".*/ready")):
            children.extend(c for c in psutil.Process().children() if c not in others)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(0.01, tmp_path / "data", parts=4, on_progress=interrupt)
    assert 1 == len(children)
    assert not children[0].is_running()
    assert [] == list((tmp_path / "data").iterdir())


def test_a_missing_generator_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where tpchgen-cli is neither beside Python nor on the PATH, the message names the extra."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GeneratorMissingError, match=r"pip install 'minishark\[tpch\]'"):
        _make(tmp_path / "data")


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path, install: Install) -> None:
    """An unusable data folder is an error that names it."""
    install("make(TABLES)")
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match="Can't write to the data folder"):
        _make(tmp_path / "data" / "below")


def test_a_disk_that_is_too_small_is_known_beforehand(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is started that can't fit."""
    install("raise SystemExit('started')")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(ResourceError, match="only 1 MB free"):
        _make(tmp_path / "data", scale=1.0)


def test_data_that_lacks_a_table_is_refused(tmp_path: Path) -> None:
    """A folder that somebody else has spoilt is not used."""
    scale_folder(tmp_path, 0.01).mkdir()
    with pytest.raises(DataError, match="lacks the table region"):
        _make(tmp_path)


def test_a_run_that_comes_second_takes_what_the_first_made(
    tmp_path: Path, install: Install
) -> None:
    """Two runs at once do not disturb each other."""
    install("import shutil; make(TABLES); shutil.copytree(folder, folder.parent / 'scale-0.01')")
    assert tmp_path / "data" / "scale-0.01" == _make(tmp_path / "data")
    assert ["scale-0.01"] == [entry.name for entry in (tmp_path / "data").iterdir()]


def test_what_a_killed_run_left_is_removed(tmp_path: Path, install: Install) -> None:
    """A folder of a process that is gone is removed; that of a living one stays."""
    install("make(TABLES)")
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    prefix = f".scale-0.01.{platform.node()}."
    (tmp_path / f"{prefix}{gone.pid}").mkdir()
    (tmp_path / f"{prefix}{os.getppid()}").mkdir()
    _make(tmp_path)
    assert not (tmp_path / f"{prefix}{gone.pid}").exists()
    assert (tmp_path / f"{prefix}{os.getppid()}").exists()


@pytest.mark.parametrize(
    ("scale", "name"),
    [(1.0, "scale-1"), (0.1, "scale-0.1"), (100.0, "scale-100"), (0.00123, "scale-0.00123")],
)
def test_a_scale_has_one_folder(tmp_path: Path, scale: float, name: str) -> None:
    """The folder's name is the scale as people write it."""
    assert tmp_path / name == scale_folder(tmp_path, scale)


@pytest.mark.parametrize(("cache", "parent"), [("/some/cache", "/some/cache"), ("relative", None)])
def test_an_installed_wheel_keeps_data_in_the_cache_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str, parent: str | None
) -> None:
    """Outside a checkout, XDG_CACHE_HOME counts if it is absolute, else ~/.cache."""
    monkeypatch.setattr("minishark.cli.tpch.locations.PACKAGE", tmp_path / "minishark")
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    expected = Path(parent) if parent else Path.home() / ".cache"
    assert expected / "minishark" / "tpch" == default_data_folder()


@pytest.mark.slow
def test_the_real_generator_makes_all_tables(tmp_path: Path) -> None:
    """What we ask of tpchgen-cli is what it understands."""
    folder = generate(0.001, tmp_path, parts=2, on_progress=lambda done, total: None)
    assert 2 == len(list((folder / "lineitem").glob("*.parquet")))
