"""Whatever well-formed messages come: no machine fails or loses its invariants."""

from __future__ import annotations

import typing
from enum import Enum
from random import Random
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from machine_kit.addresses import Address
from machine_kit.machine import Machine
from sparrow_core.machines.client import Client
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.machines.scheduler import Scheduler
from sparrow_core.policy.disciplines import DISCIPLINES
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import ClientIn, ExecutorIn, NodeMonitorIn, SchedulerIn

# Few values of each kind, so that messages are about each other's jobs, tasks and nodes.
NAMES = {
    "placement": ("sparrow", "batch", "per_task", "random", "unknown"),
    "kind": ("no_nodes", "invalid"),
    "requires": ("gpu",),
    "attributes": ("gpu",),
    "framework": ("", "f"),
    "preferred_nodes": ("x", "y", "z"),
    "name": ("x", "y"),
    "node": ("x", "y"),
}
ADDRESSES = ("e#x", "e#slot", "s#s0", "s#s1", "c#c")
JOBS = ("j", "k", "j~1", "j~copy")


def values(hint: Any, name: str) -> st.SearchStrategy[Any]:
    """Values of a type, for a field of that name."""
    match get_origin(hint):
        case origin if origin in (UnionType, typing.Union):
            parts = [part for part in get_args(hint) if part is not NoneType]
            return st.none() | st.one_of([values(part, name) for part in parts])
        case origin if origin is typing.Literal:
            return st.sampled_from(get_args(hint))
        case origin if origin is tuple:
            item, *rest = get_args(hint)
            if rest == [...]:
                return st.lists(values(item, name), max_size=3).map(tuple)
            return st.tuples(*(values(each, name) for each in (item, *rest)))
    if isinstance(hint, type) and issubclass(hint, Struct):
        return structs(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    base = getattr(hint, "__supertype__", hint)
    if base is str:
        kinds = {"Address": ADDRESSES, "JobId": JOBS}
        pool = NAMES.get(name) or kinds.get(getattr(hint, "__name__", ""), ("x", "y"))
        return st.sampled_from(pool)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.sampled_from((2, 0, 1, 1, 1, 3, -1)),
        float: st.sampled_from((1.0, 2.0, 0.0, 0.1, -1.0, float("nan"), float("inf"))),
        bool: st.booleans(),
        bytes: st.sampled_from((b"", b"p")),
    }
    return simple[base]


def structs(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Values of a message or of a part of one."""
    hints = typing.get_type_hints(kind)
    fields = {name: values(hints[name], name) for name in kind.__struct_fields__}
    return st.builds(kind, **fields)


def histories(union: Any) -> st.SearchStrategy[Any]:
    """Messages of a union, each with the time since the one before."""
    pause_s = st.sampled_from((0.0, 0.0, 0.01, 0.5, 5.0))
    message = st.one_of([structs(kind) for kind in get_args(union)])
    return st.lists(st.tuples(message, pause_s), max_size=40).map(
        lambda history: [(msg, pause_s) for msg, pause_s in history if is_well_formed(msg)]
    )


def is_well_formed(msg: Any) -> bool:
    """Whether a driver would let the message in."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(msg), type=type(msg))
    except msgspec.ValidationError:
        return False
    return True


def run(machine: Machine[Any], history: list[tuple[Any, float]]) -> None:
    """Deliver a history, and whatever the machine sends itself at once."""
    now = 0.0
    at = machine.address  # type: ignore[attr-defined]
    for msg, pause_s in history:
        now += pause_s
        waiting = [msg]
        for _ in range(20):
            if not waiting:
                break
            out = machine.on_message(waiting.pop(0), now)
            machine.check()
            to_itself = [each.msg for each in out if each.to == at and each.delay_s <= 0]
            waiting += [each for each in to_itself if type(each) in get_args(machine.inputs)]


@given(histories(SchedulerIn))
@settings(max_examples=2 * settings.default.max_examples)
def test_schedulers_bear_nonsense(history: list[tuple[Any, float]]) -> None:
    """Jobs, reports and heartbeats that contradict each other."""
    run(Scheduler(Address("s#s0"), Random(1)), history)


@pytest.mark.parametrize("policy", DISCIPLINES)
@given(histories(NodeMonitorIn))
def test_node_monitors_bear_nonsense(policy: str, history: list[tuple[Any, float]]) -> None:
    """Reservations, answers and executors that nobody knows."""
    schedulers = (Address("s#s0"), Address("s#s1"))
    config = NodeMonitorConfig(policy=policy)
    run(NodeMonitor(NodeName("x"), Address("e#monitor"), schedulers, config=config), history)


@given(histories(ClientIn))
@settings(max_examples=2 * settings.default.max_examples)
def test_clients_bear_nonsense(history: list[tuple[Any, float]]) -> None:
    """Results of tasks that never were, timers of jobs that are over."""
    run(Client(Address("c#c"), Address("c#sink"), (Address("s#s0"), Address("s#s1"))), history)


@given(histories(ExecutorIn))
@settings(max_examples=2 * settings.default.max_examples)
def test_executors_bear_nonsense(history: list[tuple[Any, float]]) -> None:
    """Tasks twice, slots that were never there."""
    run(Executor(Address("e#x"), NodeName("x"), Address("e#m"), (Address("e#slot"),)), history)
