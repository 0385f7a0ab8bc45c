"""The public interface as text: a name or parameter that goes or changes shows in the diff."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import canary_core
import minishark
import sparrow_core
from minishark import dbapi, functions

GOLDEN = Path(__file__).with_name("public_names.txt")
CLASSES = (
    "minishark.Session",
    "minishark.DataFrame",
    "minishark.dataframe.GroupedData",
    "minishark.Column",
    "minishark.Row",
    "minishark.Window",
    "minishark.dataframe.WindowSpec",
    "minishark.session.programs.program.Program",
    "minishark.dbapi.Connection",
    "minishark.dbapi.Cursor",
    "sparrow_core.LocalCluster",
    "sparrow_core.InProcessCluster",
    "sparrow_core.RemoteCluster",
    "canary_core.Run",
)


def _parameters(item: Any) -> str:
    """What a function takes: names and kinds, `=` for those with a default; no types."""
    signature = inspect.signature(item)
    bare = [
        each.replace(
            annotation=inspect.Parameter.empty,
            default=each.empty if each.default is each.empty else _DEFAULT,
        )
        for each in signature.parameters.values()
    ]
    return str(inspect.Signature(bare)).replace(f"={_DEFAULT!r}", "=")


class _Default:
    def __repr__(self) -> str:
        return ""


_DEFAULT = _Default()


def _line(name: str, item: Any) -> str:
    """A name with what can be said of it without depending on the interpreter."""
    if inspect.isclass(item):
        return f"{name}: class"
    if inspect.ismodule(item):
        return f"{name}: module"
    return f"{name}{_parameters(item)}" if inspect.isroutine(item) else name


def _lines(owner: Any, names: Sequence[str]) -> list[str]:
    return [_line(name, getattr(owner, name)) for name in sorted(names)]


def _own(module: Any) -> list[str]:
    """The public names that a module itself defines: functions, classes, constants."""
    names: dict[str, None] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names[name] = None
            case ast.Assign(targets=targets):
                names.update({each.id: None for each in targets if isinstance(each, ast.Name)})
    return [name for name in names if not name.startswith("_")]


def _members(owner: type) -> list[str]:
    """The public attributes of a class, each with its parameters if it is a method."""
    lines = []
    for name in sorted(dir(owner)):
        if not name.startswith("_"):
            static = inspect.getattr_static(owner, name)
            item = getattr(owner, name) if inspect.isroutine(static) else None
            lines.append(name if item is None else _line(name, item))
    return lines


def _class(path: str) -> type:
    module, _, name = path.rpartition(".")
    found: type = getattr(importlib.import_module(module), name)
    return found


def public_names() -> str:
    """All that docs/stability.md calls public in Python, as text."""
    sections = {
        "minishark": _lines(minishark, minishark.__all__),
        "minishark.errors": _lines(minishark.errors, _own(minishark.errors)),
        "minishark.functions, besides DuckDB's": _lines(
            functions, _own(importlib.import_module("minishark.functions.public"))
        ),
        "minishark.dbapi": _lines(dbapi, _own(importlib.import_module("minishark.adapters.dbapi"))),
        "sparrow_core": _lines(sparrow_core, sparrow_core.__all__),
        "canary_core": _lines(canary_core, canary_core.__all__),
        "canary_core.errors": _lines(canary_core.errors, _own(canary_core.errors)),
    }
    sections |= {path: _members(_class(path)) for path in CLASSES}
    return "\n".join("\n  ".join([title, *lines]) + "\n" for title, lines in sections.items())


def test_public_names_are_as_recorded(pytestconfig: pytest.Config) -> None:
    """Names and parameters that users may rely on are, to the byte, those of the golden file."""
    found = public_names()
    if pytestconfig.getoption("rewrite"):
        GOLDEN.write_text(found)
    assert GOLDEN.read_text() == found


def test_promised_names_exist() -> None:
    """What `minishark.__all__` has can be imported."""
    assert [] == [name for name in minishark.__all__ if not hasattr(minishark, name)]


def _documented(owner: Any) -> list[tuple[str, Any]]:
    """The functions, classes and properties among an owner's public names."""
    found = []
    for name in _own(owner) if inspect.ismodule(owner) else dir(owner):
        item = inspect.getattr_static(owner, name)
        item = item.__func__ if isinstance(item, staticmethod | classmethod) else item
        if not name.startswith("_") and (
            inspect.isclass(item) or inspect.isroutine(item) or isinstance(item, property)
        ):
            found.append((f"{owner.__name__}.{name}", item))
    return found


def test_public_names_have_docstrings() -> None:
    """Small internal functions may be told by their names; what users call is explained."""
    homes = ("minishark.functions.public", "minishark.adapters.dbapi")
    owners: list[Any] = [importlib.import_module(home) for home in homes]
    owners += [_class(name) for name in CLASSES]
    named = [pair for owner in owners for pair in _documented(owner)]
    for package in (sparrow_core, canary_core):
        named += [(name, getattr(package, name)) for name in package.__all__]
    missing = [name for name, item in named if not isinstance(item, str) and not item.__doc__]
    assert [] == missing
    assert len(named) > 300
