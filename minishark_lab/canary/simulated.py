"""The figures in simulation: production machines, tasks and messages that take simulated time.

What a task costs beside its own time is a parameter, measured by `canary-overhead`; so is what a
packet costs its sender and its receiver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Any, ClassVar

from msgspec import structs

from canary_core.driver import Driver, Run, Value
from canary_core.machines.controller import Settings
from canary_core.protocol.messages import Packet, Work, WorkerIn, WorkerLost
from machine_kit.machine import Envelope, Machine, Message
from minishark_lab.canary.cluster import CONTROLLER, SimulatedRun, SimulatedWorker, now_s, spend
from minishark_lab.harness.experiment import Advance, Chart, Experiment
from minishark_lab.harness.findings import (
    Finding,
    Reading,
    mean_between,
    percent_under,
    times,
    value,
)
from minishark_lab.harness.rows import Point
from minishark_lab.simulator.network import Network

_CENTRAL = "central scheduler (2,600 tasks/s)"
_CANARY = "Canary"
_IDEAL = "tasks alone"
_CENTRAL_RATE = 2600.0  # of Spark 1.5.2, as the paper measured it
_UNTIL_S = 1e6
_STAY = Settings(partitions=1, balancer="none")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the control plane costs, in microseconds.

    Attributes:
        task_us: Of a worker, per task, beside the task's own time.
        packet_us: Of sender and receiver, per packet between workers.
        network_us: From sender to receiver.
    """

    task_us: float = 0.7
    packet_us: float = 30.0
    network_us: float = 100.0


class Clock:
    """When the iterations of one simulated program ended; the first one loads the data."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []
        self.run: SimulatedRun | None = None

    def tick(self, _: object) -> bool:
        """A signal's function: it runs once per iteration, at one worker."""
        self.ends_s.append(now_s())
        return False

    @property
    def iteration(self) -> int:
        """The number of the present one; -1 for the first."""
        return len(self.ends_s) - 1

    def iterations_s(self) -> list[float]:
        """How long each took after the first."""
        return [after - before for before, after in pairwise(self.ends_s)]


Body = Callable[[Run, Value, Value], Value]  # with data and a single: the next single


def simulate(
    body: Body,
    *,
    workers: int,
    partitions: int,
    iterations: int,
    costs: Costs,
    settings: Settings = _STAY,
    seed: int = 0,
    clock: Clock | None = None,
    prepare: Callable[[SimulatedRun], None] = lambda _: None,
) -> tuple[list[float], SimulatedRun]:
    """Run a program of iterations; returns how long each took, and the run.

    Args:
        body: An iteration.
        workers: All of them are there at the start.
        partitions: In all.
        iterations: That are measured.
        costs: Of the control plane.
        settings: For the controller; its counts are replaced.
        seed: Of the network.
        clock: To be told by; a new one by default.
        prepare: Called before the start, for instance to plan faults.
    """
    clock = clock or Clock()

    def driver(run: Run) -> Value:
        data, single = run.load(int), run.single(0)
        for _ in range(iterations + 1):
            single = body(run, data, single)
            if run.signal(clock.tick, single):
                break
        return single

    clock.run = _simulated(driver, workers, partitions, costs, settings, seed)
    prepare(clock.run)
    clock.run.result(_UNTIL_S)
    return clock.iterations_s(), clock.run


class _Wake(Message, frozen=True):
    """A worker's time is its own again."""


class _Inbox(Machine[WorkerIn]):
    """A simulated worker whose packets cost time.

    While it is busy, messages wait; then what came from others is looked at before more tasks run.
    """

    inputs: ClassVar[Any] = SimulatedWorker.inputs

    def __init__(self, worker: SimulatedWorker, packet_s: float) -> None:
        self._worker = worker
        self._packet_s = packet_s
        self._busy_until = 0.0
        self._waiting: deque[WorkerIn] = deque()
        self._work: deque[WorkerIn] = deque()

    def on_message(self, msg: WorkerIn | _Wake, now: float) -> list[Envelope]:
        """Deliver a message, or keep it for later."""
        if isinstance(msg, _Wake):
            out = self._deliver((self._waiting or self._work).popleft(), now)
            return out + self._wake(now) if self._waiting or self._work else out
        if now >= self._busy_until and not self._waiting and not self._work:
            return self._deliver(msg, now)
        is_first = not self._waiting and not self._work
        (self._work if isinstance(msg, Work) else self._waiting).append(msg)
        return self._wake(now) if is_first else []

    def _wake(self, now: float) -> list[Envelope]:
        return [Envelope(self._worker.machine.address, _Wake(), self._busy_until - now)]

    def _deliver(self, msg: WorkerIn, now: float) -> list[Envelope]:
        out = self._worker.on_message(msg, now)
        packets = isinstance(msg, Packet) + sum(isinstance(each.msg, Packet) for each in out)
        cost_s = packets * self._packet_s
        self._busy_until = now + self._worker.spent_s + cost_s
        if not packets:
            return out
        return [Envelope(each.to, each.msg, each.delay_s + cost_s) for each in out]


def _simulated(
    driver: Driver, workers: int, partitions: int, costs: Costs, settings: Settings, seed: int
) -> SimulatedRun:
    run = SimulatedRun(
        driver,
        structs.replace(settings, workers=workers, partitions=partitions),
        workers=workers,
        seed=seed,
        network=Network(delay_s=costs.network_us / 1e6),
    )
    for at, worker in run.workers.items():
        run.world.machines[at] = _Inbox(worker, costs.packet_us / 1e6)
    return run


def _map_and_reduce(task_s: Callable[[int], float], costs: Costs, stages: int = 1) -> Body:
    """An iteration: a broadcast, some maps, and a sum.

    Args:
        task_s: How long a task takes, by partition.
        costs: Of the control plane.
        stages: How many maps.
    """
    more_s = costs.task_us / 1e6

    def work(index: int, _: int) -> int:
        spend(task_s(index) + more_s)
        return index

    def add(a: int, b: int) -> int:
        spend(more_s)
        return a + b

    def body(run: Run, data: Value, single: Value) -> Value:
        told = run.broadcast(single)
        for _ in range(stages):
            told = run.map(work, data, told)
        return run.reduce(add, told)

    return body


# --- task throughput by cores ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Iterations of a broadcast, many maps, a sum and a signal, as in the paper's figure 5.

    Attributes:
        workers: Of one core each.
        partitions: Per worker.
        task_us: Each task's own time.
        stages: Maps per iteration.
        iterations: The last is measured, since many workers do not start as one.
    """

    workers: tuple[int, ...] = (1, 10, 36, 144, 288, 576, 1000)
    partitions: int = 10
    task_us: float = 6.6
    stages: int = 300
    iterations: int = 2
    costs: Costs = Costs()


def throughput(parameters: Throughput, seed: int, advance: Advance) -> Sequence[Point]:
    """Tasks per second of all workers together, and their share of what tasks alone would reach."""
    rows: list[Point] = []
    task_s = parameters.task_us / 1e6
    body = _map_and_reduce(_always(task_s), parameters.costs, parameters.stages)
    for workers in parameters.workers:
        tasks = workers * parameters.partitions * parameters.stages
        took_s, _ = simulate(
            body, workers=workers, partitions=workers * parameters.partitions,
            iterations=parameters.iterations, costs=parameters.costs, seed=seed,
        )  # fmt: skip
        ideal = workers / task_s
        rates = {
            _CANARY: tasks / took_s[-1],
            _IDEAL: ideal,
            _CENTRAL: min(ideal, _CENTRAL_RATE),
        }
        for series, rate in rates.items():
            rows.append(Point(panel="tasks per second", series=series, x=workers, y=rate))
            share = 100 * rate / ideal
            rows.append(Point(panel="of the ideal (%)", series=series, x=workers, y=share))
        advance(workers / sum(parameters.workers))
    return rows


# --- iteration time against task length --------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TaskLengths:
    """Iterations of a broadcast, a map and a sum, with tasks of various lengths.

    Attributes:
        workers: Of one core each.
        partitions: Per worker.
        tasks_us: Their lengths.
        iterations: Measured per point.
    """

    workers: tuple[int, ...] = (100, 1000)
    partitions: int = 10
    tasks_us: tuple[float, ...] = (10.0, 100.0, 1000.0, 10_000.0, 100_000.0)
    iterations: int = 3
    costs: Costs = Costs()


def task_lengths(parameters: TaskLengths, seed: int, advance: Advance) -> Sequence[Point]:
    """Iteration times, beside the tasks' own time and a central scheduler."""
    rows: list[Point] = []
    for workers in parameters.workers:
        took_s = _lengths_in_turn(parameters, workers, seed)
        for task_us, own_s in zip(parameters.tasks_us, took_s, strict=True):
            ideal_s = parameters.partitions * task_us / 1e6
            central_s = max(ideal_s, workers * parameters.partitions / _CENTRAL_RATE)
            for series, y in ((_CANARY, own_s), (_IDEAL, ideal_s), (_CENTRAL, central_s)):
                rows.append(Point(panel=f"{workers} workers", series=series, x=task_us, y=1000 * y))
        advance(workers / sum(parameters.workers))
    return rows


def _lengths_in_turn(parameters: TaskLengths, workers: int, seed: int) -> list[float]:
    """Mean iteration times by length of tasks; one program has all of them, one after another."""
    clock, each, lengths = Clock(), parameters.iterations, parameters.tasks_us

    def task_s(_: int) -> float:
        return lengths[max(0, clock.iteration) // each] / 1e6

    took_s, _ = simulate(
        _map_and_reduce(task_s, parameters.costs), workers=workers,
        partitions=workers * parameters.partitions, iterations=each * len(lengths),
        costs=parameters.costs, seed=seed, clock=clock,
    )  # fmt: skip
    return [fmean(took_s[first : first + each]) for first in range(0, len(took_s), each)]


def _always(seconds: float) -> Callable[[int], float]:
    return lambda _: seconds


# --- more partitions than cores ----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """The same work cut into more and more partitions, some of which take twice as long.

    Attributes:
        workers: Of one core each.
        partitions: Per worker.
        work_ms: Of a worker per iteration, on average.
        spread: The longest task of a stage over the shortest, drawn uniformly; the paper saw 2.
        iterations: Per point; the second half is measured, after partitions have moved.
    """

    workers: int = 32
    partitions: tuple[int, ...] = (1, 2, 4, 8, 16)
    work_ms: float = 100.0
    spread: float = 2.0
    iterations: int = 40
    balancers: tuple[str, ...] = ("none", "straggler")
    costs: Costs = Costs()


def partitions(parameters: Partitions, seed: int, advance: Advance) -> Sequence[Point]:
    """Iteration times by partitions per core."""
    rows: list[Point] = []
    points = len(parameters.balancers) * len(parameters.partitions)
    for balancer in parameters.balancers:
        for each in parameters.partitions:
            rng, count = Random(f"{seed} {each}"), parameters.workers * each
            drawn = [1 + (parameters.spread - 1) * rng.random() for _ in range(count)]
            unit_s = parameters.work_ms / 1000 * parameters.workers / sum(drawn)
            took_s, _ = simulate(
                _map_and_reduce(_scaled(drawn, unit_s), parameters.costs),
                workers=parameters.workers, partitions=count, iterations=parameters.iterations,
                costs=parameters.costs, seed=seed,
                settings=Settings(partitions=1, balancer=balancer),
            )  # fmt: skip
            late_s = fmean(took_s[len(took_s) // 2 :])
            rows.append(Point(panel="", series=_BALANCING[balancer], x=each, y=1000 * late_s))
            advance(1 / points)
    return rows


_BALANCING = {"none": "partitions stay", "straggler": "partitions move", "even": "equal numbers"}


def _scaled(drawn: Sequence[float], unit_s: float) -> Callable[[int], float]:
    return lambda index: drawn[index] * unit_s


# --- a straggler -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """One worker becomes slow, and later fast again.

    Attributes:
        workers: Of one core each.
        partitions: Per worker.
        task_ms: On a fast worker.
        slowness: Of the straggler.
        slow: The iterations between which it is slow.
        iterations: In all.
    """

    workers: int = 20
    partitions: int = 8
    task_ms: float = 5.0
    slowness: float = 4.0
    slow: tuple[int, int] = (20, 80)
    iterations: int = 120
    balancers: tuple[str, ...] = ("none", "straggler")
    costs: Costs = Costs()


def straggler(parameters: Straggler, seed: int, advance: Advance) -> Sequence[Point]:
    """The time of each iteration, with and without migration."""
    rows: list[Point] = []
    for balancer in parameters.balancers:
        took_s = _with_straggler(parameters, balancer, seed)
        for number, each in enumerate(took_s):
            series = _BALANCING[balancer]
            rows.append(Point(panel="", series=series, x=number, y=1000 * each))
        advance(1 / len(parameters.balancers))
    return rows


def _with_straggler(parameters: Straggler, balancer: str, seed: int) -> list[float]:
    clock, (begin, end) = Clock(), parameters.slow

    def task_s(_: int) -> float:
        assert clock.run is not None
        victim = next(iter(clock.run.workers.values()))
        victim.slowness = parameters.slowness if begin <= clock.iteration < end else 1.0
        return parameters.task_ms / 1000

    took_s, _ = simulate(
        _map_and_reduce(task_s, parameters.costs), workers=parameters.workers,
        partitions=parameters.workers * parameters.partitions,
        iterations=parameters.iterations, costs=parameters.costs, seed=seed,
        settings=Settings(partitions=1, balancer=balancer), clock=clock,
    )  # fmt: skip
    return took_s


def _slowed(balancer: str) -> Reading:
    """Iterations late in the slow period over those before it."""
    series = _BALANCING[balancer]
    return times(mean_between(series, 50, 79), mean_between(series, 5, 19))


# --- snapshots and a death ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Deaths:
    """A worker dies once; the program goes back to its last snapshot.

    Attributes:
        workers: Of one core each.
        partitions: Per worker.
        task_ms: Of each task.
        every: Iterations between snapshots; 0: none, it begins anew.
        iterations: In all.
        deaths: Programs per point; in each, the worker dies at another time.
        noticed_s: After so long the controller knows.
    """

    workers: int = 20
    partitions: int = 8
    task_ms: float = 5.0
    every: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 0)
    iterations: int = 100
    deaths: int = 4
    noticed_s: float = 0.01
    costs: Costs = Costs()


_STAGES = 4  # of an iteration: broadcast, map, reduce, signal


def deaths(parameters: Deaths, seed: int, advance: Advance) -> Sequence[Point]:
    """The iterations that are repeated after a death, and how long it takes to go on."""
    rows: list[Point] = []
    programs = len(parameters.every) * parameters.deaths
    for every in parameters.every:
        found = []
        for number in range(parameters.deaths):
            share = (number + Random(f"{seed} {number}").random()) / parameters.deaths
            found.append(_after_a_death(parameters, every, share, seed))
            advance(1 / programs)
        x = every or parameters.iterations
        panels = ("repeated iterations", "until new ones (ms)")
        for panel, values in zip(panels, zip(*found, strict=True), strict=True):
            rows.append(
                Point(panel=panel, series="one death", x=x, y=fmean(values),
                      low=min(values), high=max(values))
            )  # fmt: skip
    return rows


def _after_a_death(parameters: Deaths, every: int, share: float, seed: int) -> tuple[float, float]:
    """Repeated iterations, and milliseconds from the death to the end of the first new one.

    Args:
        parameters: Of the experiment.
        every: Iterations between snapshots.
        share: Of the program, roughly, when a worker dies.
        seed: Of the network.
    """
    alone_s = parameters.iterations * parameters.partitions * parameters.task_ms / 1000
    died_s, clock = share * alone_s, Clock()

    def kill(run: SimulatedRun) -> None:
        victim = list(run.workers)[-1]
        run.world.call(died_s, lambda: run.kill_worker(victim))
        # Whoever started the process notices that it has died.
        run.world.post(CONTROLLER, WorkerLost(victim), died_s + parameters.noticed_s)

    simulate(
        _map_and_reduce(_always(parameters.task_ms / 1000), parameters.costs),
        workers=parameters.workers, partitions=parameters.workers * parameters.partitions,
        iterations=parameters.iterations, costs=parameters.costs, seed=seed, clock=clock,
        settings=Settings(
            partitions=1, balancer="none", snapshot_every=every * _STAGES or None
        ),
        prepare=kill,
    )  # fmt: skip
    before = sum(end <= died_s for end in clock.ends_s)
    # A repeated iteration asks its signal again, unless the snapshot knows it.
    repeated = len(clock.ends_s) - parameters.iterations - 1
    return float(repeated), 1000 * (clock.ends_s[before + repeated] - died_s)


EXPERIMENTS = (
    Experiment(
        name="canary-throughput",
        title="Tasks per second by cores; 10 partitions per core, tasks of 6.6 µs",
        source="Canary, figure 5",
        kind="simulated",
        parameters=Throughput(),
        quick=Throughput(workers=(1, 4), stages=50),
        run=throughput,
        chart=Chart(x="Workers of one core", y="", style="lines", log_x=True, same_y=False,
                    figures=("of the ideal (%)",), log_y=True),
        findings=(
            Finding("million tasks per second, 1,000 workers (paper: 1,152 cores)", "120 to 127",
                    lambda rows: value(_CANARY, 1000, "tasks")(rows) / 1e6),
            Finding("of the ideal at 1,000 workers (%)", "82", value(_CANARY, 1000, "of the")),
        ),
    ),
    Experiment(
        name="canary-iteration",
        title="Iteration time against task length; 10 partitions per core",
        source="Canary, sections 2.2 and 5.3",
        kind="simulated",
        parameters=TaskLengths(),
        quick=TaskLengths(workers=(4,), tasks_us=(100.0, 1000.0), iterations=2),
        run=task_lengths,
        chart=Chart(x="Task (µs)", y="Iteration (ms)", style="lines", log_x=True, log_y=True),
        findings=tuple(
            Finding(
                f"central scheduler over Canary, {workers} workers, tasks of {name} (times)", "",
                times(value(_CENTRAL, us, f"{workers} w"), value(_CANARY, us, f"{workers} w")),
            )
            for workers in (100, 1000)
            for us, name in ((1000.0, "1 ms"), (100_000.0, "100 ms"))
        ),
    ),
    Experiment(
        name="canary-partitions",
        title="The same work in more partitions; 32 workers, tasks that differ by up to 2 x",
        source="Canary, figures 7 and 8",
        kind="simulated",
        parameters=Partitions(),
        quick=Partitions(workers=4, partitions=(1, 4), iterations=20),
        run=partitions,
        chart=Chart(x="Partitions per core", y="Iteration (ms)", style="lines"),
        findings=tuple(
            Finding(
                f"iteration with {count} partitions per core below one, {name} (%)",
                "25" if balancer == "straggler" else "",
                percent_under(value(name, count), value(name, 1)),
            )
            for balancer, name in list(_BALANCING.items())[:2]
            for count in (4, 8)
        ),
    ),
    Experiment(
        name="canary-straggler",
        title="One of 20 workers gets 4 times slower for 60 iterations",
        source="Canary, sections 3.3 and 4.4",
        kind="simulated",
        parameters=Straggler(),
        quick=Straggler(workers=4, partitions=4, iterations=30, slow=(5, 20)),
        run=straggler,
        chart=Chart(x="Iteration", y="Iteration (ms)", style="lines"),
        findings=(
            Finding("slow iterations without migration over fast ones (times)", "",
                    _slowed("none"), "{:.2f}"),
            Finding("the same with migration", "", _slowed("straggler"), "{:.2f}"),
        ),
    ),
    Experiment(
        name="canary-deaths",
        title="A worker dies once in 100 iterations: time lost by the interval of snapshots",
        source="Canary, section 3.3 (which was not measured)",
        kind="simulated",
        parameters=Deaths(),
        quick=Deaths(workers=3, partitions=2, every=(2, 0), iterations=10, deaths=2),
        run=deaths,
        chart=Chart(x="Iterations between snapshots", y="", style="lines", log_x=True,
                    same_y=False),
    ),
)  # fmt: skip
