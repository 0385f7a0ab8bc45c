"""Canary beside NumPy, mpi4py, Ray and PySpark, all with the same kernels, in one run.

    python benchmarks/canary.py [SECTION ...] [--rounds 3] [--json FILE]

tasks         CPU time of the control plane per task, in one worker, by partitions of a core; and
              the tasks per second at which it takes 10 % of a core
iteration     an empty iteration (broadcast, map, reduce, signal) of a session with two executors,
              and beside it of one with a single one
scaling       busy tasks: two executors over one; and two plain processes over one with the same
              tasks, which is as much as the machine allows
controller    its messages in ten simulated seconds, by how many tasks there were
snapshots     iterations on partitions of a megabyte that change in each, with snapshots of all of
              them over those without; by the iterations between two
deaths        kills of one of two, three and four workers: seconds until the program is as far as it
              was, and whether the result is the same to the last bit
applications  logistic regression, k-means and PageRank, by size; systems alternate in rounds.
              mpi4py runs with as many partitions as Canary, and with one per process

Peers are left out where they are not installed: pip install mpi4py mpich ray pyspark (Java 17).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

import minishark
from canary_core import Run, Value
from canary_core.machines.controller import Settings
from machine_kit.addresses import Address, endpoint_of
from machine_kit.machine import Envelope, Message
from minishark.errors import ExecutionError
from minishark.session.programs.program import Program
from minishark.session.session import Session
from minishark_lab.canary.cases import APPLICATIONS, Case, Measured
from minishark_lab.canary.cluster import CONTROLLER, SimulatedRun, spend
from minishark_lab.canary.overhead import cost_of_tasks
from minishark_lab.canary.systems import installed_peers, run_cases
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script, run_sections

Row = dict[str, Any]
SIZES = {
    "logistic regression": (20_000, 1_000_000),
    "k-means": (20_000, 300_000),
    "PageRank": (20_000, 2_000_000, 10_000_000),
}
ITERATIONS = {0: 100, 1: 20, 2: 20}  # by place in SIZES
SLOW = frozenset({"Ray", "PySpark"})  # a fifth of the iterations: milliseconds for each


@dataclass(frozen=True, kw_only=True)
class CanaryOptions(Options):
    sections: Annotated[tuple[str, ...], described(choices=SECTIONS, positional=True)] = ()
    rounds: Annotated[Count, described("the best of them counts")] = 3
    workers: Count = 2
    partitions: Count = 8
    deaths_of: tuple[Count, ...] = (2, 3, 4)
    peers: tuple[str, ...] = ("mpi4py", "Ray", "PySpark")


def tasks(options: CanaryOptions) -> Iterator[Row]:
    for partitions in (1, 4, 10, 40):
        rounds = [cost_of_tasks(partitions, 200_000).control_ns for _ in range(options.rounds)]
        best = min(rounds)
        yield {
            "partitions": partitions,
            "control_plane_ns_per_task": round(best),
            "rounds_ns": list(map(round, rounds)),
            "tasks_per_s_at_10_percent": round(0.1 / best * 1e9),
        }


def empty(count: int, run: Run) -> Value:
    """A driver of empty iterations; its result is when they began and ended."""
    data, single = run.load(float), run.single(0.0)
    began = ended = run.map(_now, single)
    for number in range(count + 20):
        if number == 20:
            began = run.map(_now, single)
        single = run.reduce(_add, run.map(_left, data, run.broadcast(single)))
        ended = run.map(_now, single)
        if run.signal(_never, single):
            break
    return run.map(_pair, began, ended)


def busy(count: int, task_s: float, run: Run) -> Value:
    """The same with tasks that are busy for a while."""
    data, single = run.load(float), run.single(0.0)
    began = ended = run.map(_now, single)
    for number in range(count + 2):
        if number == 2:
            began = run.map(_now, single)
        work = run.map(partial(_spin, task_s), data, run.broadcast(single))
        single = run.reduce(_add, work)
        ended = run.map(_now, single)
        if run.signal(_never, single):
            break
    return run.map(_pair, began, ended)


def _now(_: float) -> float:
    return time.perf_counter()


def _left(a: float, _: float) -> float:
    return a


def _add(a: float, b: float) -> float:
    return a + b


def _never(value: float) -> bool:
    return value < 0


def _pair(a: float, b: float) -> tuple[float, float]:
    return a, b


def _spin(task_s: float, value: float, _: float) -> float:
    """Some CPU time, not wall time: on a busy machine they differ."""
    end = time.thread_time() + task_s
    while time.thread_time() < end:
        pass
    return value


def _took_s(session: Session, driver: Callable[[Run], Value], partitions: int) -> float:
    began, ended = session.program(driver, partitions=partitions).result()
    return float(ended - began)


def iteration(options: CanaryOptions) -> Iterator[Row]:
    count = 1000
    for workers in (1, 2):
        with minishark.connect(nodes=1, executors_per_node=workers) as session:
            took = [
                1000 * _took_s(session, partial(empty, count), 2 * workers) / count
                for _ in range(options.rounds)
            ]
        yield {"workers": workers, "ms": round(min(took), 3), "median_ms": _median(took)}


def scaling(options: CanaryOptions) -> Iterator[Row]:
    count, task_s, partitions = 20, 0.002, 20
    took: dict[int, list[float]] = {1: [], 2: []}
    alone: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(options.rounds):
        for workers, own in took.items():
            with minishark.connect(nodes=1, executors_per_node=workers) as session:
                own.append(_took_s(session, partial(busy, count, task_s), partitions) / count)
            alone[workers].append(_in_plain_processes(workers, count * partitions, task_s) / count)
    yield {
        "one_ms": round(1000 * min(took[1]), 3),
        "two_ms": round(1000 * min(took[2]), 3),
        "ideal_one_ms": 1000 * task_s * partitions,
        "two_over_one": round(min(took[1]) / min(took[2]), 3),
        "plain_two_over_one": round(min(alone[1]) / min(alone[2]), 3),
    }


def _in_plain_processes(workers: int, tasks: int, task_s: float) -> float:
    """The time that processes take that divide these tasks and need not speak to each other."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(_spin_often, [(1, 0.0)] * workers, chunksize=1)
        began_s = time.perf_counter()
        pool.map(_spin_often, [(tasks // workers, task_s)] * workers, chunksize=1)
        return time.perf_counter() - began_s


def _spin_often(work: tuple[int, float]) -> None:
    for _ in range(work[0]):
        _spin(work[1], 0.0, 0.0)


def controller(options: CanaryOptions) -> Iterator[Row]:
    del options
    for count in (1_000, 10_000, 100_000):
        run = SimulatedRun(partial(_timed, count // 10), Settings(partitions=10), workers=2)
        told = [0]
        run.world.taps.append(partial(_count_sent, told))
        run.result(100.0)
        yield {"tasks": count, "simulated_s": round(run.world.now, 2), "messages": told[0]}


def _timed(stages: int, run: Run) -> Value:
    """So many stages of ten tasks, in about ten seconds of simulated time on two workers."""
    data = run.load(int)
    task = partial(_spend, 2.0 / stages)
    for _ in range(stages):
        data = run.map(task, data)
    return data


def _spend(seconds: float, part: int) -> int:
    spend(seconds)
    return part


def _count_sent(
    told: list[int], to: Address, msg: Message, out: Sequence[Envelope], _: float
) -> None:
    del msg
    if to == CONTROLLER:
        told[0] += sum(endpoint_of(each.to) != endpoint_of(CONTROLLER) for each in out)


def snapshots(options: CanaryOptions) -> Iterator[Row]:
    count, partitions = 200, 8
    took: dict[int | None, list[float]] = {None: [], 50: [], 10: [], 2: []}
    with minishark.connect(nodes=2, executors_per_node=1) as session:
        for _ in range(options.rounds):
            for every, own in took.items():
                stages = every and every * _STAGES_OF_GROWTH
                program = session.program(
                    partial(growth, count), partitions=partitions, snapshot_every=stages
                )
                began, ended = program.result()
                own.append((ended - began) / count)
    for every, own in took.items():
        yield {
            "iterations_between": every,
            "ms": round(1000 * min(own), 3),
            "over_none": round(min(own) / min(took[None]), 3),
        }


_STAGES_OF_GROWTH = 6


def growth(count: int, run: Run) -> Value:
    """A driver that changes a megabyte in each partition in each iteration."""
    data, single = run.load(_megabyte), run.single(0.0)
    began = run.map(_now, run.reduce(_add, run.map(_sum, data)))
    for _ in range(count):
        data = run.map(_grown, data, run.broadcast(single))
        single = run.reduce(_add, run.map(_sum, data))
        if run.signal(_never, single):
            break
    return run.map(_pair, began, run.map(_now, single))


def _megabyte(index: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng([3, index]).random(1 << 17)


def _grown(part: npt.NDArray[np.float64], total: float) -> npt.NDArray[np.float64]:
    return np.sqrt(part) + total * 1e-9


def _sum(part: npt.NDArray[np.float64]) -> float:
    return float(part.sum())


def deaths(options: CanaryOptions) -> Iterator[Row]:
    count, driver = 10, partial(busy_sums, 300, 0.002)
    for workers in options.deaths_of:
        took: list[float] = []
        with minishark.connect(nodes=workers, executors_per_node=1) as session:
            expected = session.program(driver, partitions=8).result()
            same = True
            while len(took) < count * options.rounds:
                running = session.program(driver, partitions=8, snapshot_every=40)
                while (one := _death(session, running, workers)) is not None:
                    took.append(one)
                same = same and repr(running.result()) == repr(expected)
        yield {
            "workers": workers, "kills": len(took), "median_s": _median(took),
            "most_s": round(max(took), 3), "same_result": same,
        }  # fmt: skip


def busy_sums(count: int, task_s: float, run: Run) -> tuple[Value, Value]:
    """A driver whose result depends on the order of its sums."""
    parts, total = run.load(_thousand), run.single(0.1)
    for _ in range(count):
        parts = run.map(partial(_spun, task_s), parts, run.broadcast(total))
        total = run.reduce(_add, run.map(_sum, parts))
        if run.signal(_never, total):
            break
    return total, run.map(_sum, parts)


def _thousand(index: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng([5, index]).random(1000)


def _spun(task_s: float, part: npt.NDArray[np.float64], total: float) -> npt.NDArray[np.float64]:
    _spin(task_s, 0.0, 0.0)
    return part * 1.000001 + total * 1e-9


def _death(session: Session, running: Program, workers: int) -> float | None:
    """Kill a worker after a snapshot that all have taken; None if the program ends before."""
    first = None
    while not running.done():
        now = running.progress
        if now.workers == workers:
            first = now.snapshot or 0 if first is None else first
            if (now.snapshot or 0) > first:
                break
        time.sleep(0.01)
    alive = [each.pid for node in session.nodes() for each in node.executors if each.pid]
    if running.done() or len(alive) < workers:
        return None if running.done() else _death(session, running, workers)
    then, began_s = running.progress, time.monotonic()
    os.kill(alive[len(alive) // 2], signal.SIGKILL)
    while not running.done():
        now = running.progress
        if now.rollbacks > then.rollbacks and now.stage >= then.stage:
            break
        time.sleep(0.005)
    return time.monotonic() - began_s


def applications(options: CanaryOptions) -> Iterator[Row]:
    peers = [each for each in installed_peers() if each in options.peers]
    systems = ["NumPy", "minishark", *peers]
    if "mpi4py" in systems:
        systems.insert(systems.index("mpi4py") + 1, "mpi4py, 1 partition per process")
    cases = [
        (each, place, count) for each in APPLICATIONS for place, count in enumerate(SIZES[each])
    ]
    found: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):  # alternating, so that other load affects all alike
        for system in tuple(systems):
            asked = [_case(system, options, *each) for each in cases]
            try:
                told = run_cases(system.partition(",")[0], asked)
            except ExecutionError as error:
                yield {"system": system, "error": str(error)}
                systems.remove(system)
                continue
            for (application, _, count), case, one in zip(cases, asked, told, strict=True):
                times = _ms(case, one)
                found.setdefault((system, application, count), []).append(times)
    for application, _, count in cases:
        yield from _compared(systems, application, count, found)


def _case(system: str, options: CanaryOptions, application: str, place: int, count: int) -> Case:
    slow = 5 if system in SLOW else 1
    alone = system.startswith("mpi4py,")
    return Case(
        application=application, count=count, workers=options.workers,
        partitions=options.workers if alone else options.partitions,
        iterations=ITERATIONS[place] // slow,
    )  # fmt: skip


def _ms(case: Case, one: Measured) -> tuple[float, float]:
    return 1000 * one.wall_s / case.iterations, 1000 * one.cpu_s / case.iterations


def _compared(
    systems: Sequence[str],
    application: str,
    count: int,
    found: dict[tuple[str, str, int], list[tuple[float, float]]],
) -> Iterator[Row]:
    """A row per system, with minishark's time and CPU time over its own."""
    best = {
        system: [min(each[kind] for each in found[system, application, count]) for kind in (0, 1)]
        for system in systems
    }
    own = best["minishark"]
    for system in systems:
        wall_ms, cpu_ms = best[system]
        yield {
            "application": application,
            "count": count,
            "system": system,
            "ms": round(wall_ms, 3),
            "cpu_ms": round(cpu_ms, 3),
            "minishark_over_it": round(own[0] / wall_ms, 3),
            "cpu_of_minishark_over_it": round(own[1] / max(cpu_ms, 1e-9), 3),
            "rounds_ms": [round(wall, 3) for wall, _ in found[system, application, count]],
        }


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 3)


SECTIONS: dict[str, Callable[[CanaryOptions], Iterator[Row]]] = {
    "tasks": tasks,
    "iteration": iteration,
    "scaling": scaling,
    "controller": controller,
    "snapshots": snapshots,
    "deaths": deaths,
    "applications": applications,
}


def main(options: CanaryOptions) -> None:
    run_sections(SECTIONS, options.sections, options)


if __name__ == "__main__":
    run_script(
        main,
        quick={"rounds": 1, "peers": (), "sections": ("tasks", "iteration", "applications")},
    )
