"""The options of `connect` are one table: signature, docstring, checks, commands and page agree."""

from __future__ import annotations

import inspect
import math
import runpy
from pathlib import Path
from typing import Any

import click
import pytest

import minishark
from minishark.cli import options as commands
from minishark.errors import OptionError
from minishark.session.options import OPTIONS, Kind, Where, check_options

DOCS = Path(__file__).resolve().parents[2] / "docs"
ANNOTATIONS = {
    Kind.WHOLE: "int", Kind.NUMBER: "float", Kind.SECONDS: "float", Kind.SWITCH: "bool",
    Kind.SIZE: "int | str", Kind.NAMES: "Collection[str]",
}  # fmt: skip


def test_the_signature_is_the_tables() -> None:
    """Editors and mypy see the names, types and defaults that the table has, in its order."""
    parameters = inspect.signature(minishark.connect).parameters
    assert list(OPTIONS) == list(parameters)
    assert {name: option.default for name, option in OPTIONS.items()} == {
        name: parameter.default for name, parameter in parameters.items()
    }
    for name, option in OPTIONS.items():
        if option.kind in ANNOTATIONS:
            none = " | None" if option.default is None else ""
            assert ANNOTATIONS[option.kind] + none == parameters[name].annotation, name


def test_the_docstring_has_the_options() -> None:
    """Each as an argument, before what is raised, in lines that fit with an indent."""
    doc = inspect.getdoc(minishark.connect) or ""
    arguments = doc[doc.index("Args:") : doc.index("Raises:")]
    assert 96 >= max(map(len, doc.splitlines()))
    flat = " ".join(arguments.split())
    assert [] == [name for name, each in OPTIONS.items() if f" {name}: {each.text}" not in flat]


def test_defaults_are_values() -> None:
    """What an option is if it is not given may be given."""
    check_options({name: option.default for name, option in OPTIONS.items()}, Where.RUNNING)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("nodes", 0, "nodes must be a whole number, at least 1, or None."),
        ("nodes", True, "nodes must be a whole number, at least 1, or None."),
        ("nodes", 1.5, "nodes must be a whole number, at least 1, or None."),
        ("partitions", 5000, "partitions must be a whole number from 1 to 4096, or None."),
        ("single_task_rows", -1, "single_task_rows must be a whole number, at least 0."),
        ("single_task_rows", None, "single_task_rows must be a whole number, at least 0."),
        ("probe_ratio", 0.5, "probe_ratio must be a number, at least 1."),
        ("probe_ratio", math.inf, "probe_ratio must be a number, at least 1."),
        ("idle_s", 0, "idle_s must be a number of seconds above 0."),
        ("idle_s", math.nan, "idle_s must be a number of seconds above 0."),
        ("query_timeout_s", "5", "query_timeout_s must be a number of seconds above 0, or None."),
        ("prints", "no", "prints must be True or False."),
        ("progress", 1, "progress must be True or False, or None."),
        ("query_disk_limit", "lots", "query_disk_limit: 'lots' is no amount of memory"),
    ],
)
def test_values_out_of_range(name: str, value: Any, sentence: str) -> None:
    """Are refused by the sentence that the page has."""
    with pytest.raises(OptionError) as told:
        check_options({name: value}, Where.HERE)
    assert str(told.value).startswith(sentence.removesuffix("."))


@pytest.mark.parametrize(
    ("where", "values", "place"),
    [
        (Where.HERE, {"keys": "keys"}, "a running cluster"),
        (Where.HERE, {"cpus_per_node": 2}, "a new cluster on Ray or Dask"),
        (Where.PLATFORM, {"in_process": True}, "a new cluster on this machine"),
        (Where.PLATFORM, {"keys": "keys"}, "a running cluster"),
        (Where.RUNNING, {"nodes": 2}, "a new cluster"),
        (Where.RUNNING, {"memory_limit": "1GiB"}, "a new cluster"),
        (Where.RUNNING, {"audit": "audit"}, "a new cluster on this machine"),
    ],
)
def test_options_of_other_clusters(where: Where, values: dict[str, Any], place: str) -> None:
    """Are refused, with the clusters that take them."""
    (name,) = values
    with pytest.raises(OptionError) as told:
        check_options(values, where)
    expected = f"{name} is for {place}, and this is {where.value}: connect without it."
    assert expected == str(told.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("nodes", "3", 3),
        ("idle_s", "1.5", 1.5),
        ("task_timeout_s", "60", 60.0),
        ("in_process", "Yes", True),
        ("prints", "off", False),
        ("memory_limit", "4GiB", 4 << 30),
        ("disabled_optimizations", "one_task,collapse", ["one_task", "collapse"]),
        ("warehouse", "/data", "/data"),
    ],
)
def test_texts_of_urls(name: str, text: str, value: Any) -> None:
    """Become values that the option takes."""
    option = OPTIONS[name]
    assert value == option.parsed(name, text)
    option.check(name, value)


def test_commands_have_the_same_options() -> None:
    """Their ranges and texts are the table's; defaults of their own are shown instead."""

    @click.command()
    @commands.nodes_option
    @commands.memory_option
    @commands.session_option("partitions")
    def command() -> None: ...

    nodes, memory, partitions = (each for each in command.params if isinstance(each, click.Option))
    assert (1, None) == (nodes.type.min, nodes.type.max)  # type: ignore[attr-defined]
    assert (1, 4096) == (partitions.type.min, partitions.type.max)  # type: ignore[attr-defined]
    assert (2, "Number of nodes.") == (nodes.default, nodes.help)
    assert OPTIONS["memory_limit"].help() == memory.help
    assert "[default: MINISHARK_MEMORY_LIMIT, or 3/4 of" in (memory.help or "")


def test_the_page_is_current() -> None:
    """`python docs/generate.py` would change nothing."""
    page = DOCS / "options.md"
    generate = runpy.run_path(str(DOCS / "generate.py"))["generate_options"]
    assert generate(page.read_text()) == page.read_text(), "run: python docs/generate.py"
