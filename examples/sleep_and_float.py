"""A framework on sparrow_core alone, whose tasks sleep or multiply floats for a given time.

    python examples/sleep_and_float.py                       # a cluster of its own on this machine
    python examples/sleep_and_float.py --config client.toml  # one that `sparrow` commands started

Jobs of several tasks arrive as a Poisson process at a given load of the cluster; at the end their
response times are printed. The runner of a node in a TOML file is
`runner = "sleep_and_float:make_runner"`, with this folder on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from sparrow_core import (
    JobEvent,
    JobFailed,
    JobFinished,
    JobSpec,
    LocalCluster,
    NodeConfig,
    RemoteCluster,
    TaskFailure,
    TaskSpec,
)
from sparrow_core.observe.report import quantiles
from sparrow_core.runtime.config import read_config


class SleepAndFloat:
    """Runs payloads "sleep <seconds>" and "float <seconds>"; the result is a number as text."""

    def __init__(self) -> None:
        """Create an idle runner."""
        self._cancelled = threading.Event()

    def run(self, job_id: str, shared: bytes, payload: bytes) -> bytes:
        """Run a task for its duration, or until it is cancelled."""
        del job_id, shared
        self._cancelled.clear()
        kind, _, seconds = payload.decode().partition(" ")
        match kind:
            case "sleep":
                product = 0.0
                self._cancelled.wait(float(seconds))
            case "float":
                product = self._multiply(float(seconds))
            case _:
                raise TaskFailure(f"there is no task {kind!r}")
        if self._cancelled.is_set():
            raise TaskFailure("cancelled")
        return f"{product:.3f}".encode()

    def _multiply(self, seconds: float) -> float:
        """Multiply floats for a duration."""
        product, end = 1.0, time.perf_counter() + seconds
        while time.perf_counter() < end and not self._cancelled.is_set():
            for _ in range(1000):
                product = product * 1.000001 if product < 2 else 1.0
        return product

    def cancel(self) -> None:
        """Make `run` raise soon."""
        self._cancelled.set()

    def forget(self, job_id: str) -> None:
        """Jobs have no state here."""

    def close(self) -> None:
        """There is nothing to release."""


def make_runner(config: dict[str, str], slot: int) -> SleepAndFloat:
    """The runner of one slot."""
    del config, slot
    return SleepAndFloat()


class Jobs:
    """Running jobs, and how jobs ended."""

    def __init__(self) -> None:
        """Start without jobs."""
        self.response_s: list[float] = []
        self.failures: list[JobFailed] = []
        self._open = 0
        self._changed = threading.Condition()

    def submit(self, cluster: LocalCluster | RemoteCluster, job: JobSpec) -> None:
        """Submit a job."""
        with self._changed:
            self._open += 1
        cluster.submit(job, partial(self._on_event, time.perf_counter()))

    def _on_event(self, started_s: float, event: JobEvent) -> None:
        with self._changed:
            match event:
                case JobFinished():
                    self.response_s.append(time.perf_counter() - started_s)
                case JobFailed():
                    self.failures.append(event)
                case _:
                    return
            self._open -= 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all jobs have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)


@contextmanager
def open_cluster(options: argparse.Namespace) -> Iterator[LocalCluster | RemoteCluster]:
    """The cluster that the options select."""
    if options.config:
        config = read_config(options.config)
        listen, keys = config.client.listen, config.keys
        with RemoteCluster(config.scheduler_addresses, listen=listen, keys=keys) as remote:
            yield remote
        return
    sys.path.insert(0, str(Path(__file__).parent))  # nodes load the runner from here
    runner = "sleep_and_float:make_runner"
    nodes = [
        NodeConfig(name=f"n{i}", executors=1, slots=options.slots, runner=runner)
        for i in range(options.nodes)
    ]
    with (
        tempfile.TemporaryDirectory(prefix="sparrow-") as folder,
        LocalCluster(nodes, schedulers=2, run_dir=Path(folder)) as local,
    ):
        yield local


def run(options: argparse.Namespace) -> Jobs:
    """Submit jobs at random times and wait for all of them."""
    rng = Random(options.seed)
    payload = f"{options.kind} {options.task_ms / 1000}".encode()
    jobs = Jobs()
    with open_cluster(options) as cluster:
        slots = sum(each.slots for node in cluster.nodes() for each in node.executors)
        jobs_per_s = options.load * slots / (options.tasks * options.task_ms / 1000)
        for number in range(options.jobs):
            tasks = tuple(TaskSpec(task_id, payload) for task_id in range(options.tasks))
            user = f"user{number % options.users}"
            jobs.submit(cluster, JobSpec(tasks=tasks, user=user, probe_ratio=options.probe_ratio))
            time.sleep(rng.expovariate(jobs_per_s))
        jobs.wait()
    return jobs


def main() -> int:
    """Run the jobs and print their response times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="TOML file of a running cluster")
    parser.add_argument("--kind", choices=("sleep", "float"), default="sleep")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--slots", type=int, default=4, help="of each node")
    parser.add_argument("--users", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--tasks", type=int, default=10, help="of each job")
    parser.add_argument("--task-ms", type=float, default=100)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--probe-ratio", type=float, default=2)
    parser.add_argument("--seed", type=int, default=1)
    jobs = run(parser.parse_args())
    response = quantiles(1000 * each for each in jobs.response_s)
    print(
        f"{response.count} jobs: response {response.median:.1f} ms (median), "
        f"{response.p95:.1f} ms (95 %), {len(jobs.failures)} failed"
    )
    return len(jobs.failures)


if __name__ == "__main__":
    sys.exit(main())
