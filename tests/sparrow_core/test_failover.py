"""A silent scheduler costs no task: in simulation, for stalls and partitions of every kind."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machine_kit.addresses import endpoint_of
from minishark_lab.simulator.cluster import SimulatedCluster, payload_of
from minishark_lab.simulator.world import World
from sparrow_core.machines.client import job_of
from sparrow_core.policy.suspicion import Suspicion
from sparrow_core.protocol.events import JobFinished, TasksReturned
from sparrow_core.protocol.ids import JobId, TaskId
from sparrow_core.protocol.messages import InterruptTask, Notify, StartJob, WithdrawTasks
from sparrow_core.protocol.types import JobOptions, TaskSpec

SLOTS = 8  # four nodes of two
few = settings(max_examples=settings.default.max_examples // 5)  # each simulates a minute
stalls = st.floats(0.0, 8.0)
starts = st.floats(1.0, 4.0)


class History:
    """Jobs on two schedulers, and what became of their tasks."""

    def __init__(self, seed: int, jobs: int = 3, task_s: float = 1.0, **shape: Any) -> None:
        self.world = World(seed, checked=True)
        self.cluster = SimulatedCluster(self.world, nodes=4, slots=2, **{"schedulers": 2, **shape})
        rng = Random(seed)
        self.jobs = [
            StartJob(
                job_id=JobId(f"job{number}"),
                user="u",
                tasks=tuple(TaskSpec(i, payload_of(task_s * rng.uniform(0.5, 1.5)))
                            for i in range(rng.randint(1, 12))),
                shared=rng.choice((b"", b"common")),
            )
            for number in range(jobs)
        ]  # fmt: skip
        self.interrupted = 0
        self.world.taps.append(self._watch)
        for job in self.jobs:
            self.world.post(self.cluster.client, job, 1.0 + rng.random())

    def _watch(self, to: object, msg: object, out: Any, now: float) -> None:
        del to, msg, now
        self.interrupted += sum(isinstance(each.msg, InterruptTask) for each in out)

    def run(self) -> float:
        """Run until all jobs have ended, as they must; returns when."""
        ended = self.cluster.recorder.ended
        self.world.run(200.0, done=lambda: len(ended) == len(self.jobs))
        assert [JobFinished()] * len(self.jobs) == list(ended.values())
        return max(self.cluster.recorder.ended_at.values())

    def starts(self) -> Counter[tuple[JobId, TaskId]]:
        """How often each task was started, under any submission of its job."""
        return Counter((job_of(key.job_id), key.task_id) for key in self.cluster.starts)

    def once(self) -> None:
        """Assert that each task ran once, and none was interrupted."""
        assert 0 == self.interrupted
        assert {1} == set(self.starts().values())
        assert sum(len(job.tasks) for job in self.jobs) == len(self.starts())

    def left(self) -> dict[str, float]:
        """What remains of jobs a while after all have ended."""
        self.world.run(self.world.now + 30.0)
        names = ("jobs", "taking_over", "queued", "asking", "ready", "running", "waiting")
        gauges = [machine.gauges() for machine in self.world.machines.values()]
        sums = {name: sum(each.get(name, 0.0) for each in gauges) for name in names}
        return {name: count for name, count in sums.items() if count}


@few
@given(st.integers(0, 10**6), starts, stalls, st.sampled_from([1, 2, 3]))
def test_a_stalled_scheduler_costs_no_task(
    seed: int, at_s: float, stall_s: float, schedulers: int
) -> None:
    """However long: the others adopt its jobs, or it goes on with them when it is back."""
    history = History(seed, schedulers=schedulers)
    history.world.call(at_s, lambda: history.world.freeze("s0", at_s + stall_s))
    history.run()
    history.once()
    assert {} == history.left()


@few
@given(st.integers(0, 10**6), starts, st.lists(st.tuples(stalls, stalls), max_size=4))
def test_schedulers_that_stall_again_and_again_cost_no_task(
    seed: int, at_s: float, stalls_s: list[tuple[float, float]]
) -> None:
    """Jobs move to and fro; but one of three always runs."""
    history = History(seed, schedulers=3)
    for number, (after_s, stall_s) in enumerate(stalls_s):
        at_s += after_s / 4
        name = f"s{number % 2}"

        def freeze(name: str = name, until_s: float = at_s + stall_s) -> None:
            history.world.freeze(name, until_s)

        history.world.call(at_s, freeze)
    history.run()
    history.once()
    assert {} == history.left()


@few
@given(st.integers(0, 10**6), starts, stalls, st.booleans())
def test_a_partition_between_client_and_scheduler_costs_no_task(
    seed: int, at_s: float, cut_s: float, both: bool
) -> None:
    """Nodes and the old scheduler hear each other: it is fenced, however alive."""
    history = History(seed)
    cut = ["front", "s0"] if both else ["front", "s1"]

    def separate() -> None:
        history.world.separate(*cut, until_s=at_s + cut_s)

    history.world.call(at_s, separate)
    history.run()
    history.once()
    assert {} == history.left()


@few
@given(st.integers(0, 10**6), starts)
def test_a_scheduler_that_dies_costs_no_task(seed: int, at_s: float) -> None:
    """And the job takes hardly longer than without."""
    lived, died = History(seed), History(seed)
    died.world.call(at_s, lambda: died.world.kill(endpoint_of(died.cluster.schedulers[0])))
    assert died.run() <= lived.run() + 1.5 * 1.0 + 0.3  # a task, as they are placed otherwise
    died.once()


@few
@given(st.integers(0, 10**6), starts, st.floats(0.0, 3.0))
def test_the_only_scheduler_may_be_restarted(seed: int, at_s: float, gone_s: float) -> None:
    """It knows nothing; its nodes and the client do."""
    history = History(seed, schedulers=1)
    (only,) = history.cluster.schedulers
    history.world.call(at_s, lambda: history.world.kill(endpoint_of(only)))
    history.world.call(at_s + gone_s, lambda: history.cluster.start_scheduler(only))
    history.run()
    history.once()
    assert {} == history.left()


@pytest.mark.parametrize("stall_s", [0.2, 1.0, 5.0])
def test_a_long_task_of_a_stalled_scheduler_ends_in_time(stall_s: float) -> None:
    """The job of 10 s takes 10 s, with a stall of 0.2 s as with one of 5 s."""
    history = History(1, jobs=0)
    tasks = tuple(TaskSpec(i, payload_of(10.0)) for i in range(SLOTS))
    history.jobs.append(StartJob(job_id=JobId("long"), user="u", tasks=tasks))
    history.world.post(history.cluster.client, history.jobs[0], 1.0)
    for at_s, name in ((3.9, "s0"), (9.9, "s1")):
        freeze = partial(history.world.freeze, name, at_s + stall_s)
        history.world.call(at_s, freeze)
    assert history.run() < 11.1
    history.once()


def test_a_job_waits_no_longer_than_the_silence() -> None:
    """Its last tasks are placed as soon as the nodes have answered."""
    history = History(1, jobs=0)
    tasks = tuple(TaskSpec(i, payload_of(0.4)) for i in range(2 * SLOTS))
    job = StartJob(job_id=JobId("j"), user="u", tasks=tasks)
    history.jobs.append(job)
    history.world.post(history.cluster.client, job, 1.0)
    history.world.call(1.1, lambda: [history.world.kill(f"s{n}") for n in (1,)])
    assert history.run() < 1.85
    history.once()


@pytest.mark.parametrize("withdrawn_s", [1.3, 3.0])
def test_tasks_of_a_job_that_has_moved_can_be_withdrawn(withdrawn_s: float) -> None:
    """Those that nodes have fetched ahead come back at once, also just after the move."""
    history = History(1, jobs=0)
    options = JobOptions(task_s=0.0001, independent=True)
    tasks = tuple(TaskSpec(i, payload_of(5.0)) for i in range(4 * SLOTS))
    job = StartJob(job_id=JobId("j"), user="u", tasks=tasks, options=options)
    history.jobs.append(job)
    history.world.post(history.cluster.client, job, 1.0)
    history.world.call(1.02, lambda: history.world.freeze("s1", 9.0))
    withdraw = WithdrawTasks(job.job_id, tuple(range(4 * SLOTS)), False)
    history.world.post(history.cluster.client, withdraw, withdrawn_s)
    returned: dict[float, int] = {}

    def watch(to: object, msg: object, out: Any, now: float) -> None:
        del to, out
        for event in msg.events if isinstance(msg, Notify) else ():
            if isinstance(event, TasksReturned):
                returned[now] = returned.get(now, 0) + len(event.task_ids)

    history.world.taps.append(watch)
    history.run()
    assert 3 * SLOTS == sum(returned.values())
    assert max(returned) < withdrawn_s + 0.05
    assert SLOTS == len(history.starts())
    assert 0 == history.interrupted


def test_silence_is_what_is_unusual() -> None:
    """Regular answers: the least limit. Irregular ones: longer, up to the most."""
    regular, irregular = Suspicion(0.1, 3.0), Suspicion(0.1, 3.0)
    rng = Random(1)
    now = 0.0
    for each in (regular, irregular):
        each.begin(now)
    for step in range(2000):
        regular.heard(0.025 * step)
        now += 0.025 if rng.random() < 0.95 else 0.4
        irregular.heard(now)
    assert 0.1 == regular.limit_s
    assert pytest.approx(0.6) == irregular.limit_s
    assert not irregular.is_silent(now + 0.5)
    assert irregular.is_silent(now + 0.7)
    irregular.forgive(0.5, now + 0.7)
    assert not irregular.is_silent(now + 0.7)
    for _ in range(2):  # no habit yet
        regular.heard(now + 1000.0)
        regular.begin(now)
    assert 0.1 == regular.limit_s
    regular.heard(now + 1000.0)
    assert 3.0 == regular.limit_s, "but no silence is usual that is longer"
    for step in range(2000):
        regular.heard(now + 1000.0 + 0.025 * step)
    assert 0.1 == regular.limit_s, "it is forgotten"


def test_a_noisy_machine_moves_no_job() -> None:
    """After a few pauses of 300 ms, such pauses are usual."""
    history = History(3, jobs=0)
    job = StartJob(job_id=JobId("long"), user="u", tasks=(TaskSpec(0, payload_of(60.0)),))
    history.jobs.append(job)
    history.world.post(history.cluster.client, job, 1.0)

    def pause() -> None:
        now = history.world.now
        for name in ("s0", "s1"):
            history.world.freeze(name, now + 0.3)
        history.world.call(now + 1.0, pause)

    history.world.call(5.0, pause)
    history.world.run(62.0)
    late = [at for at, silence in history.cluster.recorder.silences if silence.silent and at > 20]
    assert [] == late
