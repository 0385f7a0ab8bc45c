"""What the scheduler itself costs: empty tasks, on processes of this machine.

    python benchmarks/scheduler.py [--nodes 2] [--json FILE]

Latency: one empty task at a time, from `submit` to its result. Throughput: one job of many empty
tasks, from `submit` to JobFinished, with 1, 4 and 16 slots a node.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from sparrow_core import (
    InProcessCluster,
    JobEvent,
    JobFailed,
    JobFinished,
    JobSpec,
    LocalCluster,
    NodeConfig,
    TaskSpec,
)

sys.path.insert(0, str(Path(__file__).parent))  # children load the runner from here
LATENCY_REPETITIONS = 500
TASKS = 10_000


class EmptyRunner:
    """Does nothing."""

    def run(self, job_id: str, shared: bytes, payload: bytes) -> bytes:
        """Return at once."""
        del job_id, shared, payload
        return b""

    def cancel(self) -> None:
        """Nothing to interrupt."""

    def forget(self, job_id: str) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to close."""


def make_runner(config: dict[str, str], slot: int) -> EmptyRunner:
    """Make a runner."""
    del config, slot
    return EmptyRunner()


def run_s(
    cluster: LocalCluster | InProcessCluster, tasks: int, repetitions: int = 1
) -> list[float]:
    """Seconds from submission to the end, for each of some jobs one after the other."""
    job = JobSpec(tuple(TaskSpec(task_id, b"") for task_id in range(tasks)))
    seconds = []
    for _ in range(repetitions):
        over: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        started = time.perf_counter()
        cluster.submit(job, partial(_put_last, over))
        last = over.get()
        seconds.append(time.perf_counter() - started)
        assert last == JobFinished(), last
    return seconds


def _put_last(over: queue.SimpleQueue[JobEvent], event: JobEvent) -> None:
    if isinstance(event, JobFinished | JobFailed):
        over.put(event)


def measure(
    kind: type[LocalCluster | InProcessCluster], nodes: int, slots: int
) -> dict[str, float]:
    """Start a cluster and measure latency and throughput."""
    config = [NodeConfig(f"n{i}", 1, slots, "scheduler:make_runner") for i in range(nodes)]
    with tempfile.TemporaryDirectory() as run_dir:
        started = time.perf_counter()
        with kind(config, run_dir=Path(run_dir)) as cluster:
            start_s = time.perf_counter() - started
            run_s(cluster, 100)  # warm
            latency_ms = sorted(1000 * s for s in run_s(cluster, 1, LATENCY_REPETITIONS))
            best_s = min(run_s(cluster, TASKS, 3))
            closing = time.perf_counter()
        close_s = time.perf_counter() - closing
    return {
        "nodes": nodes,
        "slots": slots,
        "start_s": start_s,
        "close_s": close_s,
        "latency_median_ms": statistics.median(latency_ms),
        "latency_p95_ms": latency_ms[int(0.95 * len(latency_ms))],
        "tasks_per_s": TASKS / best_s,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    print(f"{'cluster':18}{'slots':>6}{'start s':>9}{'p50 ms':>8}{'p95 ms':>8}{'tasks/s':>10}")
    for kind in (LocalCluster, InProcessCluster):
        for slots in (1, 4, 16):
            row = measure(kind, options.nodes, slots)
            rows.append({"cluster": kind.__name__, **row})
            print(
                f"{kind.__name__:18}{slots:6}{row['start_s']:9.2f}{row['latency_median_ms']:8.2f}"
                f"{row['latency_p95_ms']:8.2f}{row['tasks_per_s']:10.0f}"
            )
    if options.json:
        options.json.write_text(json.dumps({"argv": sys.argv, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
