"""Nodes that join and drain, and networks that split and heal, in the simulator."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from machine_kit.addresses import address, endpoint_of
from minishark_lab.simulator.cluster import SimulatedCluster, payload_of
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.world import World
from sparrow_core.protocol.events import JobFailed, JobFinished
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import Drain, SetSchedulers, StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

FEW = settings.default.max_examples // 3  # each is a history of seconds
NODES = 4
SLOTS = 2
# What must be empty when all jobs are over.
LEFT = ("jobs", "parked", "probing", "queued", "asking", "ready", "running", "waiting")


class Job(Struct, frozen=True):
    """A job of tasks that take about as long as each other, and when it is submitted."""

    at_s: float
    tasks: int
    task_s: float
    preferred: tuple[int, ...] = ()  # nodes of its first task, softly

    def start(self, number: int, rng: Random) -> StartJob:
        """The message that starts it."""
        tasks = tuple(
            TaskSpec(
                task_id,
                payload_of(self.task_s * rng.uniform(0.5, 1.5)),
                tuple(f"n{each}" for each in self.preferred) if task_id == 0 else (),
                0.05 if self.preferred and task_id == 0 else None,
            )
            for task_id in range(self.tasks)
        )
        options = JobOptions(task_s=self.task_s)
        return StartJob(job_id=JobId(f"job{number}"), user="u", tasks=tasks, options=options)


JOBS = st.lists(
    st.builds(
        Job,
        at_s=st.floats(0, 4),
        tasks=st.integers(1, 16),
        task_s=st.sampled_from((0.0001, 0.02, 0.3)),
        preferred=st.lists(st.integers(0, NODES - 1), max_size=2, unique=True).map(tuple),
    ),
    min_size=1,
    max_size=6,
)


class Fleet:
    """A simulated cluster under a history of jobs."""

    def __init__(self, seed: int, jobs: list[Job], network: Network | None = None) -> None:
        self.world = World(seed, network or Network(), checked=True)
        self.cluster = SimulatedCluster(self.world, nodes=NODES, slots=SLOTS, schedulers=2)
        rng = Random(seed)
        self.jobs = [job.start(number, rng) for number, job in enumerate(jobs)]
        for job, message in zip(jobs, self.jobs, strict=True):
            self.world.post(self.cluster.client, message, job.at_s)

    def run(self, until_s: float = 120.0) -> None:
        """Run until all jobs have ended."""
        ended = self.cluster.recorder.ended
        self.world.run(until_s, done=lambda: len(ended) == len(self.jobs))
        assert len(ended) == len(self.jobs), f"hangs: {len(self.jobs) - len(ended)} jobs"

    def check_finished(self) -> None:
        """All jobs have finished, with each task committed once."""
        recorder = self.cluster.recorder
        for job in self.jobs:
            assert isinstance(recorder.ended[job.job_id], JobFinished), recorder.ended[job.job_id]
            assert {task.task_id: 1 for task in job.tasks} == recorder.completed[job.job_id]

    def check_healed(self) -> None:
        """A new job runs on every node at once, and then nothing of any job is left."""
        tasks = NODES * SLOTS
        start = Job(0.0, tasks, 0.5).start(len(self.jobs), Random(0))
        self.jobs.append(start)
        self.world.post(self.cluster.client, start)
        before_s = self.world.now
        self.run(self.world.now + 30.0)
        assert isinstance(self.cluster.recorder.ended[start.job_id], JobFinished)
        # Two rounds at most: Sparrow's samples may leave a slot free.
        assert self.world.now - before_s < 2 * 0.5 * 1.5 + 0.6
        self.world.run(self.world.now + 15.0)
        left = {
            at: {name: count for name, count in machine.gauges().items() if name in LEFT and count}
            for at, machine in self.world.machines.items()
        }
        assert {} == {at: gauges for at, gauges in left.items() if gauges}


class Change(Struct, frozen=True):
    """A node that joins, or one that drains; with `hold`, it has to stay for a second."""

    at_s: float
    joins: bool
    which: int
    hold: bool


@given(
    seed=st.integers(0, 1 << 20),
    jobs=JOBS,
    changes=st.lists(
        st.builds(
            Change,
            at_s=st.floats(0.1, 5),
            joins=st.booleans(),
            which=st.integers(0, 7),
            hold=st.booleans(),
        ),
        max_size=8,
    ),
)
@settings(max_examples=FEW)
def test_joining_and_draining_lose_no_job_and_run_no_task_twice(
    seed: int, jobs: list[Job], changes: list[Change]
) -> None:
    """Whatever comes and goes at whatever step, as long as a node stays."""
    fleet = Fleet(seed, jobs)
    cluster, world = fleet.cluster, fleet.world
    staying = [NodeName(f"n{number}") for number in range(NODES)]
    joined = NODES

    def drain(name: NodeName, *, hold: bool) -> None:
        if hold:
            world.post(cluster.monitor_of(name), Drain(hold=True))
            world.call(world.now + 1.0, lambda: cluster.drain_node(name))
        else:
            cluster.drain_node(name)

    for change in sorted(changes, key=lambda each: each.at_s):
        if change.joins:
            name = NodeName(f"n{joined}")
            joined += 1
            staying.append(name)
            world.call(change.at_s, lambda name=name: cluster.start_node(name))
        elif len(staying) > 1:
            name = staying.pop(change.which % len(staying))
            at_s = max(change.at_s, 0.2)
            world.call(at_s, lambda name=name, hold=change.hold: drain(name, hold=hold))
    fleet.run()
    fleet.check_finished()
    starts = Counter((key.job_id, key.task_id) for key in cluster.starts)
    assert {1} == {*starts.values(), *cluster.starts.values()}
    world.run(world.now + 8.0)  # those that drain have left, and nobody waits for them
    live = {name for name in staying if cluster.monitor_of(name) in world.machines}
    gone = {endpoint_of(at) for at in world.machines} & {
        f"n{number}" for number in range(joined) if f"n{number}" not in staying
    }
    assert set() == gone
    assert set(staying) == live


def test_a_node_that_joins_takes_waiting_tasks() -> None:
    """Its share of what has not begun yet, in the middle of a job."""
    fleet = Fleet(3, [Job(1.0, 200, 0.1)])
    name = NodeName("n9")
    fleet.world.call(1.5, lambda: fleet.cluster.start_node(name))
    fleet.run()
    fleet.check_finished()
    at_work = [on for key, on in fleet.cluster.started_on.items()]
    # 200 tasks at 80 a second: 2.5 s without it, of which it misses the first 0.5 s.
    assert at_work.count(name) > 20


class Split(Struct, frozen=True):
    """A partition of the network."""

    at_s: float
    for_s: float
    hosts: tuple[str, ...]
    one_way: bool


HOSTS = (*(f"n{number}" for number in range(NODES)), "s0", "s1", "front")


def splits(longest_s: float) -> st.SearchStrategy[list[Split]]:
    """Up to four partitions, which may overlap."""
    return st.lists(
        st.builds(
            Split,
            at_s=st.floats(0.1, 5),
            for_s=st.floats(0.01, longest_s),
            hosts=st.lists(
                st.sampled_from(HOSTS), min_size=1, max_size=len(HOSTS) - 1, unique=True
            ).map(tuple),
            one_way=st.booleans(),
        ),
        min_size=1,
        max_size=4,
    )


def split_up(seed: int, jobs: list[Job], found: list[Split], network: Network) -> Fleet:
    """A fleet whose network is split so, after all jobs have ended and the links are whole."""
    fleet = Fleet(seed, jobs, network)
    for split in found:
        until_s = split.at_s + split.for_s
        fleet.world.call(
            split.at_s,
            lambda split=split, until_s=until_s: fleet.world.cut_off(
                split.hosts, until_s, one_way=split.one_way
            ),
        )
    fleet.run()
    healed_s = max(split.at_s + split.for_s for split in found)
    fleet.world.run(max(fleet.world.now, healed_s) + 6.0)
    return fleet


@given(
    seed=st.integers(0, 1 << 20),
    jobs=JOBS,
    found=splits(2.5),
    jitter_s=st.sampled_from((0.0, 0.01)),
    loss=st.sampled_from((0.0, 0.02)),
)
@settings(max_examples=FEW)
def test_short_partitions_lose_no_job(
    seed: int, jobs: list[Job], found: list[Split], jitter_s: float, loss: float
) -> None:
    """Of clients, schedulers and nodes, at any step, one way or both: all jobs finish."""
    fleet = split_up(seed, jobs, found, Network(jitter_s=jitter_s, loss=loss))
    fleet.check_finished()


@pytest.mark.parametrize("schedulers", [1, 2])
def test_a_job_goes_on_as_soon_as_the_link_is_whole(schedulers: int) -> None:
    """It was submitted in vain several times; the next time does not wait for the backoff."""
    world = World(1, checked=True)
    cluster = SimulatedCluster(world, nodes=2, schedulers=schedulers)
    world.call(0.9, lambda: world.cut_off(("front",), 6.0))
    world.post(cluster.client, Job(0.0, 2, 0.01).start(0, Random(1)), 1.0)
    ended = cluster.recorder.ended
    world.run(60.0, done=lambda: bool(ended))
    assert [JobFinished()] == list(ended.values())
    assert world.now < 6.3


def test_a_scheduler_may_come_back_under_another_address() -> None:
    """Nodes and client are told; jobs that the old one had go on, and new ones begin."""
    world = World(1, checked=True)
    cluster = SimulatedCluster(world, nodes=2, schedulers=1)
    (old,), new = cluster.schedulers, address("s9", "scheduler")
    world.post(cluster.client, Job(0.0, 8, 1.0).start(0, Random(1)), 1.0)
    world.call(2.0, lambda: world.kill(endpoint_of(old)))

    def come_back() -> None:
        cluster.start_scheduler(new)
        for at in (cluster.client, *map(cluster.monitor_of, cluster.nodes)):
            world.post(at, SetSchedulers((new,)))

    world.call(4.0, come_back)
    world.post(cluster.client, Job(0.0, 2, 0.1).start(1, Random(1)), 5.0)
    ended = cluster.recorder.ended
    world.run(60.0, done=lambda: len(ended) == 2)
    assert [JobFinished()] * 2 == list(ended.values())
    assert world.now < 12


def test_a_job_whose_nodes_are_all_lost_says_so() -> None:
    """Although the last of them is still being removed when its tasks are placed again."""
    fleet = Fleet(1, [Job(1.0, 8, 5.0)])
    nodes = tuple(f"n{number}" for number in range(NODES))
    fleet.world.call(1.5, lambda: fleet.world.cut_off(nodes, 100.0))
    fleet.run()
    (event,) = fleet.cluster.recorder.ended.values()
    assert isinstance(event, JobFailed)
    assert (event.kind, event.message) == ("no_nodes", "no live node is left")


def test_a_job_whose_nodes_come_back_goes_on() -> None:
    """For up to `recovery_s` nobody can run it; that costs time, but fails nothing."""
    fleet = Fleet(1, [Job(1.0, 8, 5.0)])
    nodes = tuple(f"n{number}" for number in range(NODES))
    fleet.world.call(1.5, lambda: fleet.world.cut_off(nodes, 20.0))
    fleet.run()
    assert [JobFinished()] == list(fleet.cluster.recorder.ended.values())


@pytest.mark.slow
@given(seed=st.integers(0, 1 << 20), jobs=JOBS, found=splits(30.0))
@settings(max_examples=FEW)
def test_long_partitions_end_in_an_answer_or_an_error_and_heal(
    seed: int, jobs: list[Job], found: list[Split]
) -> None:
    """No task is committed twice, no job hangs; what fails says why. Afterwards all is as before.

    A task may be lost a few times and a client may find no scheduler for long; nothing else fails.
    """
    fleet = split_up(seed, jobs, found, Network())
    for event in fleet.cluster.recorder.ended.values():
        if isinstance(event, JobFailed):
            assert event.kind in ("task_lost", "no_scheduler", "no_nodes"), event
            assert event.message
    fleet.check_healed()
