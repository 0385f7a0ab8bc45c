"""CONTRIBUTING.md and ARCHITECTURE.md, by which newcomers enter, say what is there."""

from __future__ import annotations

import ast
import re
import statistics
import tomllib
from pathlib import Path

import pytest

from benchmarks.rooms import measured
from tests.test_architecture import (
    CANARY_LAYERS,
    CONTRIBUTING,
    KIT_LAYERS,
    LAB_LAYERS,
    LAYERS,
    PACKAGES,
    POSITIONAL_ARGUMENTS_MAX,
    POSITIONAL_FIELDS_MAX,
    ROOT,
    _imports,
    _modules,
    _nodes,
    trees,
)

__all__ = ["trees"]

_CROSSINGS_BELOW = 120

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
# Paths in the text stand below one of these.
_BASES = (ROOT, *(ROOT / package for package in PACKAGES), ROOT / "minishark" / "compiler")


def _first_cells(page: Path, heading: str) -> list[str]:
    """What is `quoted` in the first cells of the table that has this first heading."""
    table = page.read_text().partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    assert table, f"{page.name} has no table headed {heading}"
    cells = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def _rooms(package: str) -> list[str]:
    entries = (ROOT / package).iterdir()
    python = [each for each in entries if each.suffix == ".py" or (each / "__init__.py").exists()]
    return sorted(each.stem for each in python if each.stem != "__init__")


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rooms_are_listed(package: str) -> None:
    """ARCHITECTURE.md lists each room of a package once, and no other but folders in rooms."""
    listed = _first_cells(ARCHITECTURE, f"`{package}/`")
    assert _rooms(package) == sorted(name for name in listed if "/" not in name)


@pytest.mark.parametrize(
    ("package", "layers"),
    [
        ("minishark", LAYERS),
        ("canary_core", CANARY_LAYERS),
        ("machine_kit", KIT_LAYERS),
        ("minishark_lab", LAB_LAYERS),
    ],
)
def test_the_rooms_are_in_order(package: str, layers: tuple[str, ...]) -> None:
    """The lists run from the highest layer to the lowest one."""
    assert list(reversed(layers)) == _first_cells(ARCHITECTURE, f"`{package}/`")


def test_the_folders_of_tests_are_listed() -> None:
    """CONTRIBUTING.md lists each folder of tests and each file beside them, and no other."""
    found = [f"tests/{file.name}" for file in (ROOT / "tests").glob("test_*.py")]
    folders = [each for each in (ROOT / "tests").iterdir() if each.is_dir()]
    found += [f"tests/{each.name}/" for each in folders if not each.name.startswith("_")]
    assert sorted(found) == sorted(_first_cells(CONTRIBUTING, "folder"))


def test_the_commands_are_listed() -> None:
    """CONTRIBUTING.md and `make help` list what the Makefile has."""
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)", makefile, re.MULTILINE)
    assert phony is not None
    targets = set(phony[1].split()) - {"help", "clean"}
    helped = "\n".join(re.findall(r'@echo "(.*)"', makefile))
    told = "\n".join(re.findall(r"`([^`]+)`", CONTRIBUTING.read_text()))
    for text in (helped, told):
        assert targets == set(re.findall(r"\bmake ([a-z-]+)(?=[^\w.-]|$)", text)) - {"clean"}


def test_the_site_has_every_page() -> None:
    """docs/index.md lists what is in docs/; decisions.md lists its own sections."""
    docs = ROOT / "docs"
    listed = re.findall(r"^.* <([a-z]+)>$", (docs / "index.md").read_text(), re.MULTILINE)
    assert sorted(page.stem for page in docs.glob("*.md") if page.stem != "index") == sorted(listed)
    contents, *sections = (docs / "decisions.md").read_text().split("\n## ")
    names = [section.partition("\n")[0].lower().replace(" ", "-") for section in sections]
    assert names == re.findall(r"\(#([\w-]+)\)", contents)


@pytest.mark.parametrize("page", [ARCHITECTURE, CONTRIBUTING], ids=lambda page: page.name)
def test_paths_exist(page: Path) -> None:
    """What is quoted and has a slash is a file, a folder or a pattern of some."""
    quoted = re.findall(r"`([\w.<>*-]+/[\w./<>*-]*)`", page.read_text())
    assert len(quoted) > 10
    links = re.findall(r"\]\(([\w./-]+)\)", page.read_text())
    assert [] == [link for link in links if not (ROOT / link).exists()]
    patterns = {path: re.sub(r"<\w+>", "*", path).rstrip("/") for path in quoted}
    assert [] == [
        path
        for path, pattern in patterns.items()
        if not path.startswith("dist/")  # which `make wheel` makes
        if not any([*base.glob(pattern), *base.glob(f"{pattern}.py")] for base in _BASES)
    ]


def _lengths() -> tuple[list[int], list[int]]:
    """The lines of all functions, and of all files."""
    functions, files = [], []
    for package in PACKAGES:
        for module in _modules(package):
            text = ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text()
            files.append(text.count("\n"))
            for node in _nodes(module):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    assert node.end_lineno is not None
                    functions.append(node.end_lineno - node.lineno + 1)
    return functions, files


def test_the_numbers_hold() -> None:
    """What CONTRIBUTING.md says of lengths and arguments is so."""
    text = " ".join(CONTRIBUTING.read_text().split())
    functions, files = _lengths()
    found = re.search(
        r"the median has fewer than (\d+) lines, "
        r"and fewer than 1 in ([\d,]+) has more than (\d+)\. "
        r"Fewer than 1 file in (\d+) has more than (\d+) lines",
        text,
    )
    assert found is not None
    median, share, long, files_share, long_file = (
        int(number.replace(",", "")) for number in found.groups()
    )
    assert statistics.median(functions) < median
    assert sum(lines > long for lines in functions) * share < len(functions)
    assert sum(lines > long_file for lines in files) * files_share < len(files)
    assert f"more than {POSITIONAL_ARGUMENTS_MAX} positional arguments" in text
    assert f"more than {POSITIONAL_FIELDS_MAX} fields" in text
    width = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    assert f"Lines have at most {width} columns" in text


@pytest.mark.slow
def test_updates_cross_few_rooms() -> None:
    """An UPDATE, also of a large table, crosses from room to room fewer than 120 times."""
    counts = {name: calls.total() for name, calls in measured() if "UPDATE" in name}
    assert 2 == len(counts)
    assert [] == [name for name, count in counts.items() if count >= _CROSSINGS_BELOW]


def _row(change: str) -> list[str]:
    """The files of minishark that ARCHITECTURE.md says a change needs, before its conditions."""
    (line,) = re.findall(rf"^\| {change} \| (.*) \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    return re.findall(r"`([\w/]+\.py)`", line)


def _path(module: str) -> str:
    """A module's file below minishark/."""
    return "/".join(module.split(".")[1:]) + ".py"


def _named(operator: str) -> set[str]:
    """The files that name a logical operator, but for that which defines it."""
    home = "minishark.compiler.logical.operators"
    return {
        _path(module)
        for module in _modules("minishark")
        if module != home and any(name.startswith(home) for name in _imports(module))
        for node in _nodes(module)
        if operator == getattr(node, "id", getattr(node, "attr", None))
    }


def test_an_operator_needs_the_files_that_are_listed() -> None:
    """Operators that have little in common are named in the same files, and in few others."""
    home, *listed = _row("SQL operator")[:5]
    assert "compiler/logical/operators.py" == home
    named = [_named(operator) for operator in ("DistinctOn", "Unnest", "Window")]
    assert {*listed} == set.intersection(*named)
    assert 6 >= max(map(len, named))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ("ducklake", {"sources/registry.py", "tables/warehouse/opening.py"}),
        ("shared_store", {"session/runtime.py"}),
    ],
)
def test_a_store_needs_the_files_that_are_listed(own: str, expected: set[str]) -> None:
    """A store stands in files of its own; few others name it, and these are listed."""
    importers = {
        _path(module)
        for module in _modules("minishark")
        if own not in module and any(f".{own}" in name for name in _imports(module))
    }
    assert expected == importers
    assert expected <= {*_row("store of tables")}
