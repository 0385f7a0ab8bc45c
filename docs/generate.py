"""Writes generated parts of sparrow.md, performance.md, pyspark.md, options.md: what code knows.

python docs/generate.py          # rewrite
python docs/generate.py --check  # fail if it is not current
"""

from __future__ import annotations

import ast
import fnmatch
import importlib
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec

from minishark import functions, types
from minishark.compiler.rules import rules_table
from minishark.dataframe import Column, DataFrame, Row, Window
from minishark.dataframe.grouped import GroupedData
from minishark.dataframe.reader import DataFrameReader
from minishark.dataframe.shaping import MissingValues
from minishark.dataframe.statistics import Statistics
from minishark.dataframe.udf import UserFunctions
from minishark.dataframe.window import WindowSpec
from minishark.dataframe.writer import DataFrameWriter
from minishark.functions.python_functions import PYTHON
from minishark.functions.tables import TEMPLATES
from minishark.session.builder import SessionBuilder
from minishark.session.catalog import SessionCatalog, Settings
from minishark.session.options import OPTIONS
from minishark.session.session import Session
from minishark.session.tasks.items import Items
from sparrow_core.machines.client import Client
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.observe import audit
from sparrow_core.observe.metrics import Metrics
from sparrow_core.policy.disciplines import DISCIPLINES
from sparrow_core.policy.placement import make_placement, placement_names
from sparrow_core.protocol import messages
from sparrow_core.protocol import types as parts
from sparrow_core.runtime.client_actor import ClientActor
from sparrow_core.runtime.runner import SlotThread
from sparrow_core.runtime.transport.process import Supervisor

PAGE = Path(__file__).with_name("sparrow.md")
PERFORMANCE_PAGE = Path(__file__).with_name("performance.md")
PYSPARK_PAGE = Path(__file__).with_name("pyspark.md")
OPTIONS_PAGE = Path(__file__).with_name("options.md")
PYSPARK_NAMES = Path(__file__).with_name("pyspark_names.json")
PYSPARK_NOTES = Path(__file__).with_name("pyspark_notes.toml")
# Who takes messages, and the modules in which it makes those that it sends.
MACHINES: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "client": (Client, ("machines.client",)),
    "scheduler": (Scheduler, ("machines.scheduler", "machines.ledger")),
    "node monitor": (
        NodeMonitor,
        ("machines.node_monitor", "machines.slots"),
    ),
    "executor": (Executor, ("machines.executor",)),
    "slot": (SlotThread, ("runtime.runner",)),
    "supervisor": (Supervisor, ("runtime.transport.process", "runtime.daemon")),
    "client actor": (
        ClientActor,
        ("runtime.client_actor", "runtime.specs", "runtime.cluster", "runtime.remote"),
    ),
    "metrics": (Metrics, ("observe.metrics", "runtime.transport.http_metrics")),
}


def senders() -> dict[str, list[str]]:
    """Which machine makes which message, found in the source."""
    found: dict[str, list[str]] = {}
    for machine, (_, modules) in MACHINES.items():
        for module in modules:
            source = inspect.getsource(importlib.import_module(f"sparrow_core.{module}"))
            for node in ast.walk(ast.parse(source)):
                match node:
                    case ast.Call(func=ast.Name(id="Ticks"), args=[*_, ast.Name(id=name)]):
                        made = name if hasattr(messages, name) else "Tick"
                    case ast.Call(func=ast.Name(id="Ticks")):
                        made = "Tick"
                    case ast.Call(func=ast.Name(id=name)) if hasattr(messages, name):
                        made = name
                    case _:
                        continue
                if machine not in found.setdefault(made, []):
                    found[made].append(machine)
    return found


def protocol() -> Iterator[str]:
    """Message by message: who sends it to whom, what it says."""
    yield f"Protocol version {messages.PROTOCOL_VERSION}.\n"
    sent_by = senders()
    for machine, (kind, _) in MACHINES.items():
        yield f"### To the {machine}\n"
        for message in get_args(kind.inputs) or (kind.inputs,):
            if not message.__name__.startswith("_"):
                yield from _describe(message, machine, sent_by.get(message.__name__, []))
    yield "### Parts of messages\n"
    for part in vars(parts).values():
        if isinstance(part, type) and part.__module__ == parts.__name__:
            yield from _describe(part, "", [])


def _describe(struct: type[Any], receiver: str, sent_by: list[str]) -> Iterator[str]:
    arrow = ", ".join("itself" if each == receiver else each for each in sent_by)
    yield f"**{struct.__name__}**" + (f" (from: {arrow})" if arrow else "") + "  "
    yield f"{_first(struct)}  "
    if issubclass(struct, Enum):
        fields = [f"`{each.name}`: {each.value}" for each in struct]
    else:
        fields = [
            f"`{each.name}`: {_type(struct, each.name)}" for each in msgspec.structs.fields(struct)
        ]
    if fields:
        yield "; ".join(fields)
    yield ""


def _first(struct: Any) -> str:
    """A docstring's text up to its list of attributes, in one line."""
    text = inspect.getdoc(struct) or ""
    return " ".join(re.split(r"\n\n(?:Attributes|Args):", text)[0].split())


def _type(struct: type[Any], field: str) -> str:
    for each in struct.__mro__:
        if field in (annotations := inspect.get_annotations(each)):
            return str(annotations[field])
    raise LookupError(field)


def policies() -> Iterator[str]:
    """The names that a node's `policy` may have."""
    yield "| policy | |\n|---|---|"
    for name, kind in DISCIPLINES.items():
        yield f"| `{name}` | {_first(kind)} |"


def placements() -> Iterator[str]:
    """The names that a job's `placement` may have."""
    yield "| placement | |\n|---|---|"
    for name in placement_names():
        yield f"| `{name}` | {_first(type(make_placement(name)))} |"


def limits() -> Iterator[str]:
    """Limits of machines and their defaults."""
    for title, kind in (("[scheduler]", SchedulerConfig), ("[node]", NodeMonitorConfig)):
        yield f"`limits` of {title}:\n"
        described = dict(
            re.findall(r"^    (\w+): ([^\n]*(?:\n        [^\n]*)*)", _doc(kind), re.MULTILINE)
        )
        for field in msgspec.structs.fields(kind):
            text = " ".join(described.get(field.name, "").split())
            yield f"- `{field.name}` = {msgspec.json.encode(field.default).decode()}: {text}"
        yield ""


def _doc(kind: type[Any]) -> str:
    return inspect.getdoc(kind) or ""


def events() -> Iterator[str]:
    """The events of the audit log."""
    yield "| event | |\n|---|---|"
    for name, text in audit.EVENTS.items():
        yield f"| `{name}` | {text} |"


SECTIONS: dict[str, Callable[[], Iterator[str]]] = {
    "protocol": protocol,
    "policies": policies,
    "placements": placements,
    "limits": limits,
    "events": events,
}


def generate(text: str) -> str:
    """The page with its generated parts written anew."""
    for name, section in SECTIONS.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + "\n\n" + "\n".join(section()).strip() + "\n\n" + end + after
    return text


def generate_performance(text: str) -> str:
    """docs/performance.md with a current table of optimizer rules."""
    begin, end = "<!-- begin rules -->", "<!-- end rules -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{rules_table()}\n{end}{after}"


def _pyspark_kinds() -> dict[str, Any]:
    """What has the names of each class of PySpark's."""
    return {
        "DataFrame": DataFrame,
        "DataFrameNaFunctions": MissingValues,
        "DataFrameStatFunctions": Statistics,
        "Column": Column,
        "GroupedData": GroupedData,
        "Window": Window,
        "WindowSpec": WindowSpec,
        "DataFrameReader": DataFrameReader,
        "DataFrameWriter": DataFrameWriter,
        "Catalog": SessionCatalog,
        "SparkSession": Session,
        "Builder": SessionBuilder,
        "UDFRegistration": UserFunctions,
        "RuntimeConfig": Settings,
        "Row": Row,
        "RDD": Items,
        "functions": functions,
        "types": types,
    }


def _has(holder: Any, name: str, makes: str) -> bool:
    if isinstance(holder, ModuleType):
        return hasattr(holder, name)
    folded = name.replace("_", "").lower()
    known = {each.replace("_", "").lower() for each in dir(holder)}
    return folded in known or f"self.{name} =" in makes


def _noted(notes: dict[str, dict[str, str]], kind: str) -> dict[str, str]:
    """A note for each name or pattern of names."""
    found = notes.get(kind, {})
    return {name: text for names, text in found.items() for name in names.split()}


def _note(notes: dict[str, str], name: str) -> str | None:
    return next((text for each, text in notes.items() if fnmatch.fnmatchcase(name, each)), None)


def coverage() -> Iterator[str]:
    """Which of PySpark's names there are, class by class."""
    names = json.loads(PYSPARK_NAMES.read_text())
    notes = tomllib.loads(PYSPARK_NOTES.read_text())
    yield f"Of PySpark {names.pop('version')}:\n"
    yield "| | there | of those that make sense without a JVM or streaming | of all |"
    yield "|---|---|---|---|"
    details: list[str] = []
    for kind, holder in _pyspark_kinds().items():
        senseless = _noted(notes["senseless"], kind)
        missing, differs = _noted(notes["missing"], kind), _noted(notes["differs"], kind)
        makes = "" if isinstance(holder, ModuleType) else inspect.getsource(holder)
        absent = [name for name in names[kind] if not _has(holder, name, makes)]
        there = len(names[kind]) - len(absent)
        out = [name for name in absent if _note(senseless, name) is not None]
        apply = len(names[kind]) - len(out)
        yield f"| {kind} | {there} | {there / apply:.0%} of {apply} | {len(names[kind])} |"
        unexplained = [name for name in absent if name not in out and _note(missing, name) is None]
        if unexplained:
            raise LookupError(f"{PYSPARK_NOTES.name} has no reason for {kind}: {unexplained}")
        present = set(names[kind]) - set(absent)
        for title, found in (
            ("differ", {n: t for n, t in differs.items() if n in present}),
            ("are missing", {n: _note(missing, n) for n in absent if n not in out}),
            ("make no sense here", {n: _note(senseless, n) for n in out}),
        ):
            if found:
                details += [f"\n**{kind}**: these {title}.\n", *_by_reason(found)]
    yield from details
    yield "\n**PySpark's doctests**, through `minishark.spark`: outputs of these differ.\n"
    yield from _by_reason(_noted(notes, "doctests"))


def _by_reason(found: Mapping[str, str | None]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for name, text in found.items():
        reasons.setdefault(text or "", []).append(f"`{name}`")
    for text, listed in reasons.items():
        yield f"- {', '.join(listed)}: {text}"


def pyspark_functions() -> Iterator[str]:
    """The functions that are data."""
    yield "| function | | in what it differs |"
    yield "|---|---|---|"
    for template in sorted({**TEMPLATES, **PYTHON}.values(), key=lambda each: each.name):
        signature = template.signature.replace(": value", "").replace("|", "\\|")
        yield f"| `{signature}` | {template.doc} | {template.note} |"


def generate_pyspark(text: str) -> str:
    """docs/pyspark.md with current tables."""
    for name, section in (("coverage", coverage), ("functions", pyspark_functions)):
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + "\n\n" + "\n".join(section()).strip() + "\n\n" + end + after
    return text


def options() -> Iterator[str]:
    """The options of `connect`."""
    yield "| option | default | values | for |\n|---|---|---|---|"
    for name, option in OPTIONS.items():
        default = "" if option.default is None else f"`{option.default!r}`"
        yield f"| `{name}` | {default} | {option.range} | {option.place} |"
    yield ""
    for name, option in OPTIONS.items():
        yield f"- `{name}`: {option.text}"


def generate_options(text: str) -> str:
    """docs/options.md with a current table."""
    begin, end = "<!-- begin options -->", "<!-- end options -->"
    before, _, rest = text.partition(begin)
    return "\n\n".join([before + begin, "\n".join(options()), end + rest.partition(end)[2]])


def main() -> int:
    """Write, or check."""
    status = 0
    pages = (
        (PAGE, generate),
        (PERFORMANCE_PAGE, generate_performance),
        (PYSPARK_PAGE, generate_pyspark),
        (OPTIONS_PAGE, generate_options),
    )
    for page, make in pages:
        text = page.read_text()
        current = make(text)
        if "--check" in sys.argv:
            status |= int(text != current)
        else:
            page.write_text(current)
    return status


if __name__ == "__main__":
    sys.exit(main())
