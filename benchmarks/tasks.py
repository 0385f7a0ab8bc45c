"""Calls of Python functions: minishark beside Ray, Dask, multiprocessing and joblib's loky.

    python benchmarks/tasks.py [--engines minishark,pool] [--tasks 20000] [--items 1000000]
                               [--rounds 3] [--json FILE]

latency    one empty call at a time, from submitting it to its result; the median
calls      many empty calls, each submitted alone, until all results are here
map        the same by the engine's map, one item per call
items      a map over many items in chunks of the engine's own choice
argument   an array of 10 MB for each of 8 calls

All engines have one worker process per core and take turns, round by round; the median round
counts. CPU time is that of all processes of an engine, its schedulers included: on a busy machine
it says more than wall time. Engines that are not installed are left out.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import psutil

from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, run_script

CORES = len(os.sched_getaffinity(0))
LATENCIES = 300
ARRAY = np.arange(1_250_000)


def successor(number: int) -> int:
    return number + 1


def first(array: np.ndarray[Any, Any], number: int) -> int:
    return int(array[number])


class Engine:
    """A way to run calls in processes."""

    needs: tuple[str, ...] = ()

    def call(self, number: int) -> int:
        """One call, and its result."""
        raise NotImplementedError

    def calls(self, count: int) -> Iterable[int]:
        """Calls that are submitted one by one."""
        raise NotImplementedError

    def map(self, count: int) -> Iterable[int]:
        """The map of the engine, one item per call."""
        raise NotImplementedError

    def items(self, count: int) -> Iterable[int]:
        """The map of the engine, in chunks."""
        raise NotImplementedError

    def argument(self) -> Iterable[int]:
        """Eight calls with the same array."""
        raise NotImplementedError

    def close(self) -> None: ...


class Minishark(Engine):
    """A session with its default options."""

    def __init__(self) -> None:
        import minishark

        self._session = minishark.connect(nodes=1, executors_per_node=CORES)

    def call(self, number: int) -> int:
        return self._session.submit(successor, number).result()

    def calls(self, count: int) -> Iterable[int]:
        with self._session.executor() as executor:
            futures = [executor.submit(successor, i) for i in range(count)]
            return [future.result() for future in futures]

    def map(self, count: int) -> Iterable[int]:
        return self._session.map(successor, range(count), chunksize=1)

    def items(self, count: int) -> Iterable[int]:
        return self._session.map(successor, range(count))

    def argument(self) -> Iterable[int]:
        futures = [self._session.submit(first, ARRAY, i) for i in range(8)]
        return [future.result() for future in futures]

    def close(self) -> None:
        self._session.stop()


class Pool(Engine):
    """`multiprocessing.Pool`: no scheduler, no retries, no nodes."""

    def __init__(self) -> None:
        import multiprocessing

        self._pool = multiprocessing.get_context("spawn").Pool(CORES)

    def call(self, number: int) -> int:
        return self._pool.apply(successor, (number,))

    def calls(self, count: int) -> Iterable[int]:
        return [
            each.get() for each in [self._pool.apply_async(successor, (i,)) for i in range(count)]
        ]

    def map(self, count: int) -> Iterable[int]:
        return self._pool.map(successor, range(count), chunksize=1)

    def items(self, count: int) -> Iterable[int]:
        return self._pool.map(successor, range(count))

    def argument(self) -> Iterable[int]:
        return self._pool.starmap(first, [(ARRAY, i) for i in range(8)], chunksize=1)

    def close(self) -> None:
        self._pool.terminate()


class Loky(Engine):
    """joblib's default back end, and the executor that it is made of."""

    needs = ("joblib",)

    def __init__(self) -> None:
        import joblib
        from joblib.executor import get_memmapping_executor

        self._executor = get_memmapping_executor(CORES, timeout=1000)
        self._parallel = joblib.Parallel(CORES)
        self._delayed = joblib.delayed

    def call(self, number: int) -> int:
        return self._executor.submit(successor, number).result()

    def calls(self, count: int) -> Iterable[int]:
        futures = [self._executor.submit(successor, i) for i in range(count)]
        return [future.result() for future in futures]

    def map(self, count: int) -> Iterable[int]:
        return self._executor.map(successor, range(count), chunksize=1)

    def items(self, count: int) -> Iterable[int]:
        return self._executor.map(successor, range(count), chunksize=count // (4 * CORES))

    def argument(self) -> Iterable[int]:
        found: list[int] = self._parallel(self._delayed(first)(ARRAY, i) for i in range(8))
        return found

    def close(self) -> None:
        self._executor.shutdown(kill_workers=True)


class Dask(Engine):
    """`distributed`, with a worker process of one thread per core."""

    needs = ("distributed",)

    def __init__(self) -> None:
        from distributed import Client, LocalCluster

        self._cluster = LocalCluster(n_workers=CORES, threads_per_worker=1, dashboard_address=None)
        self._client = Client(self._cluster)

    def call(self, number: int) -> int:
        return self._client.submit(successor, number, pure=False).result()

    def calls(self, count: int) -> Iterable[int]:
        futures = [self._client.submit(successor, i, pure=False) for i in range(count)]
        return self._client.gather(futures)

    def map(self, count: int) -> Iterable[int]:
        return self._client.gather(self._client.map(successor, range(count), pure=False))

    def items(self, count: int) -> Iterable[int]:
        import dask.bag

        return dask.bag.range(count, 4 * CORES).map(successor).compute()

    def argument(self) -> Iterable[int]:
        (array,) = self._client.scatter([ARRAY], broadcast=True)
        futures = [self._client.submit(first, array, i, pure=False) for i in range(8)]
        return self._client.gather(futures)

    def close(self) -> None:
        self._client.close()
        self._cluster.close()


class Ray(Engine):
    """Ray, with a CPU per core."""

    needs = ("ray",)

    def __init__(self) -> None:
        import ray

        ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)
        self._ray = ray
        self._successor = ray.remote(successor)
        self._first = ray.remote(first)

    def call(self, number: int) -> int:
        return self._ray.get(self._successor.remote(number))

    def calls(self, count: int) -> Iterable[int]:
        return self._ray.get([self._successor.remote(i) for i in range(count)])

    map = calls

    def items(self, count: int) -> Iterable[int]:
        from ray.util.multiprocessing import Pool as RayPool

        with RayPool(CORES) as pool:
            found: list[int] = pool.map(successor, range(count))
        return found

    def argument(self) -> Iterable[int]:
        array = self._ray.put(ARRAY)
        return self._ray.get([self._first.remote(array, i) for i in range(8)])

    def close(self) -> None:
        self._ray.shutdown()


ENGINES: dict[str, type[Engine]] = {
    "minishark": Minishark, "pool": Pool, "loky": Loky, "dask": Dask, "ray": Ray,
}  # fmt: skip


class Measured(msgspec.Struct):
    """One engine's rounds of one section: seconds and CPU seconds per call or item."""

    engine: str
    section: str
    count: int
    wall_s: list[float] = []
    cpu_s: list[float] = []


_seen: dict[tuple[int, float], float] = {}  # CPU seconds of processes, by pid and start


def cpu_s() -> float:
    """CPU seconds of this process and all those below it, as last seen of those that ended."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            times, started = process.cpu_times(), process.create_time()
        except psutil.NoSuchProcess:
            continue
        _seen[process.pid, started] = times.user + times.system
    return sum(_seen.values())


def measure(into: Measured, work: Callable[[], Iterable[int]], expected: Iterable[int]) -> None:
    cpu, started = cpu_s(), time.perf_counter()
    found = list(work())
    into.wall_s.append((time.perf_counter() - started) / into.count)
    into.cpu_s.append((cpu_s() - cpu) / into.count)
    assert found == list(expected), f"{into.engine} {into.section}: a wrong result"


def latency(into: Measured, engine: Engine) -> None:
    times, cpu = [], cpu_s()
    for number in range(LATENCIES):
        started = time.perf_counter()
        assert number + 1 == engine.call(number)
        times.append(time.perf_counter() - started)
    into.wall_s.append(statistics.median(times))
    into.cpu_s.append((cpu_s() - cpu) / LATENCIES)


@dataclass(frozen=True, kw_only=True)
class TasksOptions(Options):
    engines: tuple[str, ...] = tuple(ENGINES)
    tasks: Count = 20_000
    items: Count = 1_000_000
    rounds: Count = 3


def measure_engine(name: str, options: TasksOptions) -> list[Measured]:
    """One round of one engine, which is started before and stopped after it."""
    engine = ENGINES[name]()
    tasks, items = options.tasks, options.items
    try:
        list(engine.map(10 * CORES))  # the workers are up
        sections = [Measured(name, "latency", 1), Measured(name, "calls", tasks),
                    Measured(name, "map", tasks), Measured(name, "items", items),
                    Measured(name, "argument", 8)]  # fmt: skip
        latency(sections[0], engine)
        measure(sections[1], lambda: engine.calls(tasks), range(1, tasks + 1))
        measure(sections[2], lambda: engine.map(tasks), range(1, tasks + 1))
        measure(sections[3], lambda: engine.items(items), range(1, items + 1))
        measure(sections[4], engine.argument, range(8))
        return sections
    finally:
        engine.close()


def table(rows: Iterable[Measured]) -> str:
    lines = ["| section | engine | wall µs | per second | CPU µs |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: row.section):
        wall, cpu = statistics.median(row.wall_s), statistics.median(row.cpu_s)
        lines.append(
            f"| {row.section} | {row.engine} | {wall * 1e6:,.2f} | {1 / wall:,.0f} "
            f"| {cpu * 1e6:,.2f} |"
        )
    return "\n".join(lines)


def main(options: TasksOptions) -> None:
    warnings.simplefilter("ignore")  # of engines about each other's settings
    found: dict[tuple[str, str], Measured] = {}
    for number in range(options.rounds):
        for name in options.engines:
            if not all(map(importlib.util.find_spec, ENGINES[name].needs)):
                print(f"{name} is not installed", file=sys.stderr)
                continue
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            for row in measure_engine(name, options):
                known = found.setdefault((row.section, name), row)
                if known is not row:
                    known.wall_s += row.wall_s
                    known.cpu_s += row.cpu_s
    print(table(found.values()))
    options.write({"rows": list(found.values())})


if __name__ == "__main__":
    run_script(main, quick={"engines": ["minishark"], "tasks": 50, "items": 1000, "rounds": 1})
