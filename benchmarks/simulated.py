"""Sparrow on emulated clusters of hundreds of slots, with the production machines.

    python benchmarks/simulated.py [--json FILE]

Scheduling delay: response time of jobs of ten 100 ms tasks beyond those 100 ms, at 80 % load, by
placement. Messages: between nodes (and the most frequent kinds of them), and within nodes, for each
task of jobs of 100 at probe ratio 2.
Cancellation: superfluous reservations that were withdrawn before a node asked for them, and slot
time spent waiting for answers. Failover: from the death of a scheduler to the
first task that runs again, as a client finds out by silence.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from random import Random

from minishark_lab.harness.script import Options, run_script
from minishark_lab.models.meter import Meter
from minishark_lab.simulator.cluster import quiet_cluster
from minishark_lab.simulator.workload import (
    Workload,
    make_jobs,
    percentile,
    response_times_s,
    run_jobs,
)
from minishark_lab.simulator.world import World
from minishark_lab.sparrow.policies import simulated_failover

Row = dict[str, float | int | str]
PLACEMENTS = ("central", "sparrow", "batch", "per_task", "random")
SHAPES = ((400, 1), (100, 4), (50, 8), (25, 16))
KINDS = ("Reserve", "GetTasks", "AssignTasks", "CancelReservations", "TaskResults")


def scheduling_delays(jobs: int = 1000) -> Iterator[Row]:
    """On 100 nodes of 4 slots at 80 % load."""
    for placement in PLACEMENTS:
        workload = Workload(load=0.8, jobs=jobs, distribution="constant", placement=placement)
        times_s = response_times_s(workload, nodes=100, slots=4, schedulers=10, seed=1)
        delays_ms = [1000 * (time_s - workload.task_s) for time_s in times_s]
        yield {
            "figure": "scheduling delay",
            "placement": placement,
            "median_ms": statistics.median(delays_ms),
            "p95_ms": percentile(delays_ms, 95),
        }


def _metered(workload: Workload, nodes: int, slots: int, *, cancellation: bool = True) -> Meter:
    cluster = quiet_cluster(
        World(1), nodes=nodes, slots=slots, schedulers=4, cancellation=cancellation
    )
    cluster.world.run(0.5)
    meter = Meter(cluster.world)
    run_jobs(cluster, make_jobs(workload, cluster.nodes, slots, Random(1)))
    return meter


def messages_a_task(jobs: int = 60) -> Iterator[Row]:
    """At 80 % load, m = 100, d = 2; by the shape of 400 slots."""
    for nodes, slots in SHAPES:
        meter = _metered(Workload(load=0.8, jobs=jobs, tasks=100), nodes, slots)
        yield {
            "figure": "messages a task",
            "nodes": nodes,
            "slots": slots,
            "network": meter.network.total() / meter.bound,
            **{kind: meter.network[kind] / meter.bound for kind in KINDS},
            "within_nodes": meter.local.total() / meter.bound,
        }


def cancellation(jobs: int = 300) -> Iterator[Row]:
    """At 80 % load, jobs of ten tasks on 100 nodes of one slot."""
    for on in (True, False):
        meter = _metered(Workload(load=0.8, jobs=jobs), 100, 1, cancellation=on)
        yield {
            "figure": "cancellation",
            "cancellation": "on" if on else "off",
            "useless_reservations": meter.useless,
            "removed_share": meter.removed / meter.useless,
            "waited_ms_a_task": 1000 * meter.waited_s / meter.bound,
        }


def failover(repetitions: int = 50) -> Iterator[Row]:
    """One of two schedulers dies in the middle of a job."""
    delays_ms = [1000 * simulated_failover(10, 2, seed)[1] for seed in range(repetitions)]
    median_ms, max_ms = statistics.median(delays_ms), max(delays_ms)
    yield {"figure": "failover by silence", "median_ms": median_ms, "max_ms": max_ms}


def figures() -> list[Row]:
    return [*scheduling_delays(), *messages_a_task(), *cancellation(), *failover()]


def main(options: Options) -> None:
    rows = figures()
    for row in rows:
        print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{v}" for k, v in row.items()))
    options.write({"rows": rows})


if __name__ == "__main__":
    run_script(main)
