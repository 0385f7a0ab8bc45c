"""Users of a simulated cluster: streams of equal jobs, and what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from msgspec import Struct

from minishark_lab.harness.experiment import Advance
from minishark_lab.models.express import ExpressCluster
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.simulator.workload import ARRIVALS, Arrival
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

START_S = 1.0  # time zero of streams: nodes have registered by then


class Stream(Struct, frozen=True, kw_only=True):
    """A user's jobs."""

    user: str
    demand: float  # average number of running tasks, given enough slots
    tasks: int = 10
    task_s: float = 0.1
    from_s: float = 0.0  # first arrival, in seconds from the start; `until_s` is the last
    until_s: float = 10.0
    arrivals: str = "poisson"  # of jobs, a name in `workload.ARRIVALS`
    options: JobOptions = JobOptions()
    probe_ratio: float = 2.0

    def jobs(self, seed: int) -> list[Arrival]:
        if self.demand <= 0:
            return []
        rng = Random(f"{seed} {self.user} {self.from_s}")
        tasks = tuple(TaskSpec(number, payload_of(self.task_s)) for number in range(self.tasks))
        interval_s = self.tasks * self.task_s / self.demand
        arrivals: list[Arrival] = []
        at_s = self.from_s
        while (at_s := at_s + ARRIVALS[self.arrivals](rng) * interval_s) < self.until_s:
            job_id = JobId(f"{self.user}/{self.from_s:g}/{len(arrivals)}")
            start = StartJob(
                job_id=job_id, user=self.user, tasks=tasks,
                probe_ratio=self.probe_ratio, options=self.options,
            )  # fmt: skip
            arrivals.append(Arrival(START_S + at_s, start))
        return arrivals


def run_for(
    cluster: ExpressCluster, jobs: Iterable[Arrival], until_s: float, advance: Advance
) -> dict[JobId, float]:
    """Run jobs until a time from the start; returns response times of finished jobs."""
    cluster.run(sorted(jobs, key=lambda job: job.at_s), START_S + until_s)
    advance(1.0)
    return cluster.ended_s


def response_times(
    streams: Sequence[Stream], *, nodes: int, slots: int, policy: str, seed: int,
    until_s: float, counted_from_s: float, advance: Advance,
) -> list[tuple[list[float], int]]:  # fmt: skip
    """For each stream, response times of its jobs that ended, in order of arrival, and other jobs.

    Streams run until a time from the start; jobs count that arrived after `counted_from_s`.
    """
    cluster = ExpressCluster(nodes=nodes, slots=slots, policy=policy, seed=seed)
    by_stream = [stream.jobs(seed) for stream in streams]
    ended_s = run_for(cluster, [job for jobs in by_stream for job in jobs], until_s, advance)
    found = []
    for jobs in by_stream:
        counted = [each.job.job_id for each in jobs if each.at_s >= START_S + counted_from_s]
        times_s = [ended_s[job_id] for job_id in counted if job_id in ended_s]
        found.append((times_s, len(counted) - len(times_s)))
    return found


class RunningTasks:
    """Counts running tasks by user."""

    def __init__(self, cluster: ExpressCluster) -> None:
        self.by_user: Counter[str] = Counter()
        cluster.on_run = self._on_run

    def _on_run(self, job: StartJob, change: int, now: float) -> None:
        self.by_user[job.user] += change
