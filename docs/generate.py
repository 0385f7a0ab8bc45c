"""Writes the generated parts of sparrow.md and performance.md: what the code knows.

python docs/generate.py          # rewrite
python docs/generate.py --check  # fail if it is not current
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from minishark.compiler.rules import rules_table
from sparrow_core.machines.client import Client
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.observe import audit
from sparrow_core.observe.metrics import Metrics
from sparrow_core.policy.disciplines import DISCIPLINES
from sparrow_core.policy.placement import PLACEMENTS
from sparrow_core.protocol import messages
from sparrow_core.protocol import types as parts
from sparrow_core.runtime.client_actor import ClientActor
from sparrow_core.runtime.runner import SlotThread
from sparrow_core.runtime.transport.process import Supervisor

PAGE = Path(__file__).with_name("sparrow.md")
PERFORMANCE_PAGE = Path(__file__).with_name("performance.md")
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
                    case ast.Call(func=ast.Name(id=name)) if hasattr(messages, name):
                        if machine not in found.setdefault(name, []):
                            found[name].append(machine)
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
    for name, kind in PLACEMENTS.items():
        yield f"| `{name}` | {_first(kind)} |"


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


def main() -> int:
    """Write, or check."""
    status = 0
    for page, make in ((PAGE, generate), (PERFORMANCE_PAGE, generate_performance)):
        text = page.read_text()
        current = make(text)
        if "--check" in sys.argv:
            status |= int(text != current)
        else:
            page.write_text(current)
    return status


if __name__ == "__main__":
    sys.exit(main())
