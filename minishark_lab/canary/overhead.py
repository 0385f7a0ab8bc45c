"""What the control plane costs: one worker and its controller, in this process, in real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from canary_core.driver import Driver, Run, Value
from canary_core.machines.controller import Controller, Settings
from canary_core.machines.worker import Worker
from canary_core.protocol.messages import Finished, Outcome
from canary_core.results import result_of
from machine_kit.addresses import address
from machine_kit.machine import Envelope, Machine, Message
from minishark_lab.harness.experiment import Advance, Chart, Experiment
from minishark_lab.harness.findings import Finding, value
from minishark_lab.harness.rows import Point, Row
from minishark_lab.simulator.world import World
from sparrow_core.protocol.errors import SparrowError

_UNTIL_S = 3600.0
_SHARE, _RATE, _COST = "share of the core (%)", "tasks per second", "control plane (ns per task)"


def run_alone(driver: Driver, partitions: int) -> int:
    """Run a program on one worker in this process; returns how many tasks it ran.

    Messages arrive at once, in the order in which they were sent.
    """
    world, outcomes = World(0), list[Outcome]()
    controller, at = address("controller", "controller"), address("worker", "worker")
    worker = Worker(at, controller, driver, clock=time.perf_counter)
    world.host(controller, Controller(controller, Settings(partitions=partitions, workers=1)))
    world.host(at, worker)
    for endpoint in ("controller", "worker"):
        world.host(address(endpoint, "host"), _Host(outcomes))
    world.run(_UNTIL_S, done=lambda: bool(outcomes))
    if not outcomes:
        raise SparrowError("the program was not over after an hour of simulated time")
    result_of(outcomes[0])
    return worker.meter.tasks


class _Host(Machine[Message]):
    """Takes the outcome."""

    inputs: ClassVar[Any] = Finished

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes

    def on_message(self, msg: Message, now: float) -> list[Envelope]:
        """Note how the program ended."""
        del now
        if isinstance(msg, Finished):
            self._outcomes.append(msg.outcome)
        return []


@dataclass(frozen=True)
class Cost:
    """CPU time per task, in nanoseconds: the task's own, and the control plane's."""

    own_ns: float
    control_ns: float

    @property
    def share(self) -> float:
        """Of the control plane, from 0 to 1."""
        return self.control_ns / (self.own_ns + self.control_ns)


def cost_of_tasks(partitions: int, tasks: int, turns: int = 0) -> Cost:
    """Measure a worker.

    Args:
        partitions: That it has.
        tasks: How many are measured.
        turns: Of an empty loop, which a task consists of.
    """
    stages = max(1, tasks // partitions)
    task = partial(_turn, turns) if turns else _pass
    few = max(1, stages // 10)
    # Start and end of a program cancel out.
    spent_s = _cpu_s(task, partitions, few + stages) - _cpu_s(task, partitions, few)
    own_ns = _own_ns(task, stages * partitions)
    return Cost(own_ns, spent_s / (stages * partitions) * 1e9 - own_ns)


def _turn(turns: int, part: int) -> int:
    for _ in range(turns):
        pass
    return part


def _pass(part: int) -> int:
    return part


def _cpu_s(task: Callable[[int], int], partitions: int, stages: int) -> float:
    def driver(run: Run) -> Value:
        data = run.load(int)
        for _ in range(stages):
            data = run.map(task, data)
        return data

    before = time.process_time()
    run_alone(driver, partitions)
    return time.process_time() - before


def _own_ns(task: Callable[[int], int], count: int) -> float:
    before = time.process_time()
    for _ in range(count):
        task(0)
    return (time.process_time() - before) / count * 1e9


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Tasks of various lengths, at one worker.

    Attributes:
        partitions: Of the worker; the paper has 10.
        turns: Of an empty loop in each task.
        tasks: Measured per point, or as many as take about `seconds`.
        rounds: The best one counts, for this machine is not alone.
    """

    partitions: tuple[int, ...] = (1, 4, 10, 40)
    turns: tuple[int, ...] = (0, 30, 100, 300, 1000, 3000, 10_000)
    tasks: int = 100_000
    seconds: float = 1.0
    rounds: int = 2


def overhead(parameters: Overhead, seed: int, advance: Advance) -> Sequence[Point]:
    """The control plane's share of a core against the length of tasks."""
    del seed
    rows: list[Point] = []
    for partitions in parameters.partitions:
        for turns in parameters.turns:
            tasks = min(parameters.tasks, int(parameters.seconds / (1e-6 + turns * 2e-8)))
            rounds = [cost_of_tasks(partitions, tasks, turns) for _ in range(parameters.rounds)]
            best = min(rounds, key=lambda cost: cost.control_ns)
            series, task_us = f"{partitions} partitions", best.own_ns / 1000
            rows.append(Point(panel=_SHARE, series=series, x=task_us, y=100 * best.share))
            rate = 1e9 / (best.own_ns + best.control_ns)
            rows.append(Point(panel=_RATE, series=series, x=task_us, y=rate))
            if not turns:
                rows.append(Point(panel=_COST, series=_COST, x=partitions, y=best.control_ns))
            advance(1 / (len(parameters.partitions) * len(parameters.turns)))
    return rows


def _rate(rows: Sequence[Row]) -> float:
    """Tasks per second at which the control plane takes a tenth of the core."""
    return 0.1 / value(_COST, 10, _COST)(rows) * 1e9


EXPERIMENTS = (
    Experiment(
        name="canary-overhead",
        title="The control plane's share of a core, and tasks per second, by length of tasks",
        source="Canary, figure 4",
        kind="live",
        parameters=Overhead(),
        quick=Overhead(partitions=(10,), turns=(0, 100), tasks=5000, rounds=1),
        run=overhead,
        chart=Chart(
            x="Task (µs)", y="", style="lines", log_x=True, log_y=True, same_y=False,
            figures=(_COST,),
        ),
        findings=(
            Finding("control plane per task, 10 partitions (ns)", "700", value(_COST, 10, _COST),
                    "{:.0f}"),
            Finding("tasks per second with 10 % of a core for the control plane, 10 partitions",
                    "136,000", _rate, "{:,.0f}"),
        ),
    ),
)  # fmt: skip
