"""Plays scenario scripts: each step is followed by the messages that it caused.

    > start workers=2 partitions=4       a step
    w0 -> controller: Ready              what arrived because of it, in order

Steps are the functions whose names begin with `do_`. Time is simulated, and the network is good.
Heartbeats (Report, Advance) and acknowledgements are not shown, nor payloads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from canary_core import Run
from canary_core.errors import CanaryError
from canary_core.machines.controller import Settings
from canary_core.protocol.messages import Advance, Entry, Move, Packet, Report
from canary_core.results import result_of
from machine_kit.addresses import Address, address
from machine_kit.machine import Message
from minishark_lab.canary.cluster import CONTROLLER, SimulatedRun, spend
from minishark_lab.simulator.network import Network

# Fields that say nothing in a script: sizes, digests, who sends, what is pickled.
SILENT_FIELDS = {
    "digest", "frames", "inside", "known", "worker", "host", "hosts", "rules", "tree", "handles",
    "blobs", "sources", "groups", "traceback", "detail", "floor", "joining", "epoch", "calls",
}  # fmt: skip


def _rounds(run: Run) -> Any:
    points = run.load(int)
    total = run.single(0)
    for _ in range(4):
        partial = run.map(lambda p, t: (spend(0.01), p + t)[1], points, run.broadcast(total))
        total = run.reduce(lambda a, b: a + b, partial)
        if run.signal(lambda t: t > 10_000, total):
            break
    return total


def _exchange(run: Run) -> Any:
    pieces = run.scatter(lambda p: {(p + 1) % 4: p}, run.load(int))
    return run.gather(sum, pieces)


_copies = itertools.count()


def _diverges(run: Run) -> Any:
    values = run.load(int)
    return run.map(abs if next(_copies) % 2 else float, values)


DRIVERS = {"rounds": _rounds, "exchange": _exchange, "diverges": _diverges}


def text_of(value: Any) -> str:
    """A message, or a part of one, as a script shows it."""
    match value:
        case Entry():
            held = f" from {_name(value.holder)}" if value.holder else ""
            return f"{value.size}.{value.index}@{_name(value.worker)}v{value.version}{held}"
        case msgspec.Struct():
            fields = [
                f"{each.name}={text_of(getattr(value, each.name))}"
                for each in msgspec.structs.fields(value)
                if each.name not in SILENT_FIELDS
                and getattr(value, each.name) not in ((), each.default)
            ]
            return " ".join([type(value).__name__, *fields])
        case tuple():
            return f"[{' '.join(map(text_of, value))}]"
        case str():
            return _name(value)
    return str(value)


def _name(at: str) -> str:
    return at.partition("#")[0]


class Scenario:
    """A simulated program, and what has arrived since the last step."""

    def __init__(self) -> None:
        self._run: SimulatedRun | None = None
        self._out: list[str] = []
        self._seen: set[tuple[Address, Address, int, int]] = set()

    def play(self, command: str) -> list[str]:
        """Take one step; the lines that it causes."""
        self._out = []
        name, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        step: Callable[..., None] = getattr(self, f"do_{name}")
        step(*plain, **options)
        return self._out or ["(nothing)"]

    def do_start(self, driver: str, workers: str = "2", partitions: str = "4", **more: str) -> None:
        """Start a program; nothing is delivered yet."""
        settings = Settings(
            partitions=int(partitions),
            workers=int(workers),
            balancer="none",
            snapshot_every=int(more["snapshot_every"]) if "snapshot_every" in more else None,
            wait_s=1.0,
            report_s=0.05,
        )
        self._run = SimulatedRun(
            DRIVERS[driver], settings, workers=int(workers), network=Network(delay_s=0.001),
            checked=True,
        )  # fmt: skip
        self._run.world.taps.append(self._note)

    def do_until(self, seconds: str) -> None:
        """Simulate until then."""
        self._the_run.world.run(float(seconds))

    def do_kill(self, worker: str) -> None:
        """A worker's process dies, and the controller's host knows."""
        self._the_run.kill_worker(_worker(worker))
        self._the_run.notice_death(_worker(worker))

    def do_join(self) -> None:
        """A worker comes late."""
        self._the_run.add_worker()

    def do_leave(self, worker: str) -> None:
        """A worker is asked to end."""
        self._the_run.leave(_worker(worker))

    def do_move(self, partition: str, to: str) -> None:
        """A partition, as size.index, is to go to a worker."""
        size, _, index = partition.partition(".")
        self._the_run.world.post(CONTROLLER, Move(int(size), int(index), _worker(to)))

    def do_restart(self) -> None:
        """The controller dies, and another takes its place."""
        self._the_run.kill_controller()
        self._the_run.start_controller()

    def do_result(self) -> None:
        """Simulate to the end."""
        self._the_run.run(100.0)
        assert self._the_run.outcome is not None
        try:
            self._out.append(f"result: {result_of(self._the_run.outcome)}")
        except CanaryError as error:
            self._out.append(f"{type(error).__name__}: {error}")

    @property
    def _the_run(self) -> SimulatedRun:
        assert self._run is not None, "the script has no start"
        return self._run

    def _note(self, to: Address, msg: Message, _out: Any, _now: float) -> None:
        # A worker that is busy gets a packet again when it is not: it is shown once.
        if (
            isinstance(msg, Packet)
            and (seen := (msg.sender, to, msg.seq, msg.born)) not in self._seen
        ):
            self._seen.add(seen)
            for body in msg.bodies:
                if not isinstance(body, Report | Advance):
                    self._out.append(f"{_name(msg.sender)} -> {_name(to)}: {text_of(body)}")


def _worker(name: str) -> Address:
    return address(name, "worker")


def played(script: Path) -> str:
    """The script with the lines that its steps cause now."""
    scenario, lines = Scenario(), list[str]()
    for line in script.read_text().splitlines():
        if line.startswith("> "):
            lines += [line, *scenario.play(line[2:])]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"
