"""Plays scenario scripts: text in which each step is followed by the messages that it caused.

The model is etcd raft's testdata. A script drives production machines (schedulers, node monitors,
executors, one client) by hand, on a network that delivers nothing by itself:

    > submit j tasks=2                   a step
    c -> s0: SubmitJob j tasks=[0 1]     what was sent because of it; it is in flight now

Steps are the methods of `Scenario` whose names begin with `do_`. Not shown: what a machine sends
to itself, what passes between an executor and its slots, Ping and Pong, and heartbeats that say
the same as the one before.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, get_args

import msgspec

from machine_kit.addresses import Address, address, endpoint_of
from machine_kit.machine import Envelope, Machine, Message, Tick
from sparrow_core.machines.client import Client, ClientConfig
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    CancelJob,
    Drain,
    ExecutorLost,
    InterruptTask,
    KillExecutor,
    NodeLost,
    Notify,
    Ping,
    Pong,
    SchedulerLost,
    SetWeights,
    SlotDone,
    SlotReady,
    StartJob,
    StartTasks,
    WithdrawTasks,
)
from sparrow_core.protocol.types import (
    Assignment,
    AttemptEnd,
    Claim,
    HeldJob,
    JobOptions,
    Loss,
    Result,
    SlotOutcome,
    TaskKey,
    TaskSpec,
)

CLIENT = address("c", "client")
SINK = address("c", "sink")
HEARTBEATS = ("RegisterNode", "ExecutorStatus", "PingJob", "JobStatus")
# Fields that say nothing in a script: who sends is in its arrow, payloads are empty.
SILENT_FIELDS = {
    "version", "client", "scheduler", "address", "payload", "shared", "result", "node", "executor",
    "at_s", "queue_s", "run_s", "name", "pid", "monitor", "info", "asker", "has_shared", "detail",
    "probe_ratio", "placement", "executors", "generation", "mean_s", "user", "slot",
}  # fmt: skip


def text_of(value: Any) -> str:
    """A message, or a part of one, as a script shows it."""
    match value:
        case Assignment():
            return f"{value.task_id}#{value.attempt}"
        case TaskKey():
            return f"{value.job_id}/{value.task_id}#{value.attempt}"
        case TaskSpec():
            return "@".join((str(value.task_id), *value.preferred_nodes))
        case Result() | AttemptEnd():
            return f"{value.task_id}#{value.attempt}" + ("!" if getattr(value, "lost", 0) else "")
        case Loss():
            return f"{value.task_id}#{value.attempt} ({value.reason})"
        case HeldJob():
            return f"{value.job_id}:{value.reservations}"
        case Claim():
            return f"{value.waiting} waiting"
        case JobOptions():
            return " ".join(_fields_of(value))
        case msgspec.Struct():
            fields = " ".join(_fields_of(value))
            return f"{type(value).__name__} {fields}".strip()
        case tuple():
            parts = [text_of(part) for part in value]
            return f"[{('; ' if any(' ' in part for part in parts) else ' ').join(parts)}]"
        case _:
            return str(value)


def _fields_of(struct: msgspec.Struct) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.name in SILENT_FIELDS or value in (field.default, ()):
            continue
        if field.name == "drained" and not value:
            continue
        plain = field.name in ("job_id", "message", "task_id", "kind", "key", "options")
        yield text_of(value) if plain else f"{field.name}={text_of(value)}"


class Slots:
    """All slots of an executor: what each was given and has not ended."""

    def __init__(self, executor: Address, count: int) -> None:
        self.executor = executor
        endpoint = endpoint_of(executor)
        self.tasks: dict[Address, dict[TaskKey, None]] = {
            address(endpoint, f"slot-{number}"): {} for number in range(count)
        }

    def take(self, slot: Address, msg: Message) -> SlotDone | None:
        """Start or interrupt a task; an interrupted one ends at once."""
        if isinstance(msg, StartTasks):
            for task in msg.tasks:
                self.tasks[slot][TaskKey(msg.job_id, task.task_id, task.attempt)] = None
        if isinstance(msg, InterruptTask) and msg.key in self.tasks[slot]:
            del self.tasks[slot][msg.key]
            return SlotDone(
                slot, (SlotOutcome(key=msg.key, run_s=0.0, result=b"", message="interrupted"),)
            )
        return None


class Scenario:
    """Machines, a clock that steps move, and the messages in flight."""

    def __init__(self) -> None:
        self.now = 0.0
        self._machines: dict[Address, Machine[Any]] = {}
        self._slots: dict[str, Slots] = {}  # by the executor's endpoint
        self._flying: list[tuple[Address, Envelope]] = []
        self._timers: list[tuple[float, int, Envelope]] = []
        self._order = itertools.count()
        self._said: dict[tuple[Address, Address, str], str] = {}
        self._cut: set[str] = set()
        self._out: list[str] = []
        self._muted = False
        self._settings: dict[str, str] = {}
        self._rng = Random(1)

    def play(self, command: str) -> list[str]:
        """Take one step; the lines that it causes."""
        self._out = []
        name, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(self, f"do_{name.replace('-', '_')}")(
            *(word for word in words if "=" not in word), **options
        )
        return self._out or ["(nothing)"]

    # --- machines and the network --------------------------------------------------------------

    def _host(self, at: Address, machine: Machine[Any]) -> None:
        self._machines[at] = machine
        if Tick in get_args(machine.inputs):
            self._take(at, Tick(0))

    def _take(self, to: Address, msg: Message) -> None:
        """A machine takes a message; what it sends is in flight, or taken if it is local."""
        local = [(to, msg)]
        while local:
            at, each = local.pop(0)
            if at in self._machines:
                envelopes = self._machines[at].on_message(each, self.now)
                self._machines[at].check()
                local += [(e.to, e.msg) for e in envelopes if self._is_taken_now(at, e)]
            elif at == SINK and isinstance(each, Notify):
                for event in each.events:
                    where = f" on {event.executor}" if hasattr(event, "executor") else ""
                    self._say(f"c: {each.job_id} {text_of(event)}{where}")
            elif at == SINK:
                self._say(f"c: {text_of(each)} {endpoint_of(getattr(each, 'scheduler', at))}")
            elif (slots := self._slots.get(endpoint_of(at))) and at in slots.tasks:
                done = slots.take(at, each)
                local += [(slots.executor, done)] if done else []
            elif isinstance(each, KillExecutor):
                self._replace(each)
            else:
                self._lose(at, each, "is dead")

    def _is_taken_now(self, sender: Address, envelope: Envelope) -> bool:
        if envelope.delay_s:
            due = (self.now + envelope.delay_s, next(self._order), envelope)
            heapq.heappush(self._timers, due)
            return False
        if endpoint_of(sender) == endpoint_of(envelope.to):
            return True
        if not self._cut.isdisjoint((endpoint_of(sender), endpoint_of(envelope.to))):
            self._lose(envelope.to, envelope.msg, "is cut off")
            return False
        self._flying.append((sender, envelope))
        kind, text = type(envelope.msg).__name__, text_of(envelope.msg)
        if isinstance(envelope.msg, Ping | Pong):
            return False
        if kind not in HEARTBEATS or self._said.get((sender, envelope.to, kind)) != text:
            self._said[sender, envelope.to, kind] = text
            self._say(f"{endpoint_of(sender)} -> {endpoint_of(envelope.to)}: {text}")
        return False

    def _lose(self, to: Address, msg: Message, why: str) -> None:
        if not isinstance(msg, Ping | Pong) and type(msg).__name__ not in HEARTBEATS:
            self._say(f"lost, {endpoint_of(to)} {why}: {text_of(msg)}")

    def _say(self, line: str) -> None:
        if not self._muted:
            self._out.append(line)

    def _matching(self, patterns: tuple[str, ...]) -> list[tuple[Address, Envelope]]:
        """What is in flight and fits: `s0->n1`, `->n1`, `s0->`, a message's type, or all."""
        found = []
        for sender, envelope in self._flying:
            ends = (endpoint_of(sender), endpoint_of(envelope.to))
            if all(_fits(pattern, ends, envelope.msg) for pattern in patterns):
                found.append((sender, envelope))
        return found

    def _fly(self, picked: list[tuple[Address, Envelope]]) -> None:
        for each in picked:
            self._flying.remove(each)
        for _, envelope in picked:
            self._take(envelope.to, envelope.msg)

    # --- steps: the cluster --------------------------------------------------------------------

    def do_cluster(
        self, *, nodes: str = "1", slots: str = "1", schedulers: str = "1", **settings: str
    ) -> None:
        """Start machines and let the nodes register. Other settings: those of machines."""
        self._settings = {"slots": slots, "silence_min_s": "1.0", **settings}
        self._rng = Random(int(settings.get("seed", "1")))
        self._muted = True
        self._schedulers = [address(f"s{n}", "scheduler") for n in range(int(schedulers))]
        for at in self._schedulers:
            self.do_start(endpoint_of(at))
        for number in range(int(nodes)):
            self.do_start(f"n{number}")
        self._host(CLIENT, Client(CLIENT, SINK, self._schedulers, self._config(ClientConfig)))
        self.do_stabilize()
        self._muted = False
        self._say(f"{nodes} nodes, {schedulers} schedulers")

    def _config(self, kind: type[Any]) -> Any:
        # The policy of nodes is not to be mixed up with a name of a scheduler's limit.
        known = {f.name for f in msgspec.structs.fields(kind)} - {"slots"}
        chosen = {name: value for name, value in self._settings.items() if name in known}
        return msgspec.convert(chosen, kind, strict=False)

    def do_start(self, name: str) -> None:
        """Start a scheduler, or a node with its executor, perhaps anew."""
        self._said = {
            key: text for key, text in self._said.items() if name not in map(endpoint_of, key[:2])
        }
        if name.startswith("s"):
            at = address(name, "scheduler")
            self._host(at, Scheduler(at, self._rng, self._config(SchedulerConfig)))
            return
        at = address(name, "monitor")
        having = self._settings.get("attributes", "").split(",")
        attributes = [each.partition(":")[2] for each in having if each.startswith(f"{name}:")]
        monitor = NodeMonitor(
            NodeName(name), at, self._schedulers,
            supervisor=address(name, "supervisor") if "supervised" in self._settings else None,
            attributes=attributes, config=self._config(NodeMonitorConfig),
        )  # fmt: skip
        self._host(at, monitor)
        self.do_start_executor(name)

    def do_start_executor(self, node: str) -> None:
        """Start an executor of a node; it gets a fresh number."""
        number = sum(each.startswith(f"{node}-") for each in self._slots)
        name = f"{node}-e{number}"
        at = address(name, name)
        slots = Slots(at, int(self._settings["slots"]))
        self._slots[name] = slots
        self._host(at, Executor(at, NodeName(node), address(node, "monitor"), tuple(slots.tasks)))
        for slot in slots.tasks:
            self._take(at, SlotReady(slot))

    def do_kill(self, *names: str) -> None:
        """End processes: `s0`, `n1`, `n1-e0`. Nobody is told."""
        for at in [at for at in self._machines if endpoint_of(at) in names]:
            del self._machines[at]

    def do_cut(self, name: str) -> None:
        """Lose whatever a process sends or is sent, until it is healed."""
        self._cut.add(name)

    def do_heal(self, name: str) -> None:
        """Let messages pass again."""
        self._cut.remove(name)

    # --- steps: messages -----------------------------------------------------------------------

    def do_deliver(self, *patterns: str) -> None:
        """Deliver what is in flight and fits, in order of sending."""
        self._fly(self._matching(patterns))

    def do_drop(self, *patterns: str) -> None:
        """Lose what is in flight and fits."""
        for each in self._matching(patterns):
            self._flying.remove(each)
            self._say(f"dropped: {type(each[1].msg).__name__} to {endpoint_of(each[1].to)}")

    def do_duplicate(self, *patterns: str) -> None:
        """Have what is in flight and fits arrive twice."""
        for each in self._matching(patterns):
            self._flying.append(each)
            self._say(f"doubled: {type(each[1].msg).__name__} to {endpoint_of(each[1].to)}")

    def do_stabilize(self) -> None:
        """Deliver until nothing is in flight."""
        while self._flying:
            self._fly(self._flying[:1])

    def do_tick(self, seconds: str) -> None:
        """Let timers fire; what they cause stays in flight."""
        self._pass(float(seconds), lambda: None)

    def do_run(self, seconds: str) -> None:
        """Let time pass on a network without delay."""
        self.do_stabilize()
        self._pass(float(seconds), self.do_stabilize)

    def _pass(self, seconds: float, between: Callable[[], None]) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, envelope = heapq.heappop(self._timers)
            if envelope.to in self._machines:
                self._take(envelope.to, envelope.msg)
                between()
        self.now = end

    # --- steps: what users, tasks and supervisors do -------------------------------------------

    def do_submit(self, job_id: str, *, tasks: str, **options: str) -> None:
        """Submit a job: `tasks=3`; `prefer=n0,n1` and `wait=0.1` for all of them."""
        preferred = tuple(filter(None, options.pop("prefer", "").split(",")))
        wait_s = float(options.pop("wait")) if "wait" in options else None
        specs = tuple(TaskSpec(n, b"", preferred, wait_s) for n in range(int(tasks)))
        start = StartJob(
            job_id=JobId(job_id),
            user=options.pop("user", "user"),
            tasks=specs,
            shared=options.pop("shared", "").encode(),
            placement=options.pop("placement", "sparrow"),
            probe_ratio=float(options.pop("ratio", "2")),
            options=JobOptions(
                framework=options.pop("framework", ""),
                priority=int(options.pop("priority", "0")),
                requires=tuple(filter(None, options.pop("requires", "").split(","))),
                task_s=float(options.pop("task_s", "1")),
                straggler_factor=float(options.pop("straggler_factor", "0")),
                explain=bool(options.pop("explain", "")),
                independent=bool(options.pop("independent", "")),
                group=options.pop("group", ""),
            ),
        )
        assert not options, f"unknown options {options}"
        self._take(CLIENT, start)

    def do_withdraw(self, job_id: str, tasks: str, *, stop: str = "") -> None:
        """Withdraw tasks such as 0,2; with `stop=yes`, running ones too."""
        numbers = tuple(map(int, tasks.split(",")))
        self._take(CLIENT, WithdrawTasks(JobId(job_id), numbers, bool(stop)))

    def do_cancel(self, job_id: str) -> None:
        """The user cancels a job."""
        self._take(CLIENT, CancelJob(JobId(job_id)))

    def do_finish(self, *where: str) -> None:
        """Running tasks end well: all of an executor, or those named `j/0`."""
        for slots, slot, key in self._running(where):
            outcome = SlotOutcome(key=key, run_s=1.0, result=b"")
            del slots.tasks[slot][key]
            self._take(slots.executor, SlotDone(slot, (outcome,)))

    def do_fail(self, task: str, *message: str, retryable: str = "") -> None:
        """A running task fails, for good unless it is `retryable=yes`."""
        for slots, slot, key in self._running((task,)):
            text = " ".join(message)
            outcome = SlotOutcome(
                key=key, run_s=1.0, result=b"", message=text, retryable=bool(retryable)
            )
            del slots.tasks[slot][key]
            self._take(slots.executor, SlotDone(slot, (outcome,)))

    def _running(self, where: tuple[str, ...]) -> list[tuple[Slots, Address, TaskKey]]:
        return [
            (slots, slot, key)
            for endpoint, slots in self._slots.items()
            if slots.executor in self._machines
            for slot, keys in slots.tasks.items()
            for key in keys
            if endpoint in where or f"{key.job_id.partition('~')[0]}/{key.task_id}" in where
        ]

    def do_executor_lost(self, name: str) -> None:
        """A node's supervisor sees that an executor has died."""
        at = address(name, name)
        self.do_kill(name)
        self._take(address(name.partition("-")[0], "monitor"), ExecutorLost(at, "killed"))

    def _replace(self, msg: KillExecutor) -> None:
        """A node's supervisor kills an executor, and starts another."""
        name = endpoint_of(msg.executor)
        self._say(f"{name} is killed: {msg.reason}")
        self.do_kill(name)
        self.do_start_executor(name.partition("-")[0])

    def do_node_lost(self, name: str) -> None:
        """Whoever started a node tells the schedulers that it has died."""
        self.do_kill(name, *(each for each in self._slots if each.startswith(f"{name}-")))
        for at in self._schedulers:
            self._take(at, NodeLost(NodeName(name), "killed"))

    def do_scheduler_lost(self, name: str, *, returns: str = "") -> None:
        """Whoever started a scheduler tells the client that it has died."""
        self.do_kill(name)
        self._take(CLIENT, SchedulerLost(address(name, "scheduler"), bool(returns), "killed"))

    def do_drain(self, node: str) -> None:
        """An operator drains a node."""
        self._take(address(node, "monitor"), Drain())

    def do_weights(self, scheduler: str, **weights: str) -> None:
        """An operator sets the users' shares, at one scheduler."""
        shares = tuple((user, float(weight)) for user, weight in weights.items())
        self._take(address(scheduler, "scheduler"), SetWeights(1, shares))

    def do_state(self) -> None:
        """Show what each machine holds."""
        for at, machine in self._machines.items():
            held = " ".join(f"{k}={v:g}" for k, v in machine.gauges().items() if v)
            self._say(f"{endpoint_of(at)}: {held or 'nothing'}")


def _fits(pattern: str, ends: tuple[str, str], msg: Message) -> bool:
    if "->" not in pattern:
        return type(msg).__name__ == pattern
    sender, _, receiver = pattern.partition("->")
    return sender in ("", ends[0]) and receiver in ("", ends[1])


def played(script: Path) -> str:
    """The script with what its steps cause now."""
    scenario = Scenario()
    lines: list[str] = []
    for line in script.read_text().splitlines():
        if line.startswith("> "):
            lines += [line, *scenario.play(line[2:])]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"
