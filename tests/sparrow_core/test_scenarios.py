"""What the simulator is asked, asked of real clusters: every policy, placement and constraint."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Cluster, Submitted, appears, task, until

from sparrow_core import (
    InProcessCluster,
    JobFailed,
    JobSpec,
    LocalCluster,
    NodeConfig,
    NodeStatus,
    TaskCompleted,
    TaskSpec,
)
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.policy.disciplines import DISCIPLINES
from sparrow_core.policy.placement import placement_names
from sparrow_core.protocol.types import JobOptions
from sparrow_core.runtime.specs import ExecutorGroup

RUNNER = "sparrow_test_runners:make"
NODES = tuple(f"n{number}" for number in range(len(DISCIPLINES)))
GPUS = NODES[:2]


@pytest.fixture(
    scope="module",
    params=(InProcessCluster, pytest.param(LocalCluster, marks=pytest.mark.slow)),
    ids=lambda kind: kind.__name__,
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A node for each policy, two of them with an attribute, one with a second framework."""
    nodes = [
        NodeConfig(
            name=name, executors=1, slots=2, runner=RUNNER, runner_config={"node": name},
            attributes=("gpu",) if name in GPUS else (),
            limits=NodeMonitorConfig(policy=policy),
            others=(ExecutorGroup(RUNNER, {"node": name}, "other"),) if name == NODES[2] else (),
        )
        for name, policy in zip(NODES, DISCIPLINES, strict=True)
    ]  # fmt: skip
    with request.param(nodes, schedulers=2, run_dir=tmp_path_factory.mktemp("r"), seed=1) as opened:
        yield opened


def where(job: Submitted) -> set[str]:
    """The nodes on which a job ran, which it must have done completely."""
    job.results()
    return {event.node for event in job.events if isinstance(event, TaskCompleted)}


def echoes(count: int, *preferred: str, wait_s: float | None = None) -> tuple[TaskSpec, ...]:
    """Tasks that return their number."""
    return tuple(TaskSpec(n, b"echo %d" % n, preferred, wait_s) for n in range(count))


@pytest.mark.sample(5)
@pytest.mark.parametrize("placement", placement_names())
def test_every_placement_with_every_policy(cluster: Cluster, placement: str) -> None:
    """Jobs of several users and priorities at once: each task commits once, with its result."""
    rng = random.Random(placement)
    jobs = []
    for number in range(15):
        options = JobOptions(priority=number % 3, task_s=rng.choice((0.01, 1.0)))
        count = rng.randint(1, 30)
        spec = JobSpec(
            tasks=echoes(count, *rng.sample(NODES, rng.choice((0, 2)))),
            user=f"u{number % 2}", placement=placement, options=options,
        )  # fmt: skip
        jobs.append((count, Submitted(cluster, spec)))
    for count, job in jobs:
        assert {n: b"%d" % n for n in range(count)} == job.results()
        completed = [event for event in job.events if isinstance(event, TaskCompleted)]
        assert count == len(completed)


@pytest.mark.parametrize("placement", placement_names())
def test_constraints_hold_under_every_placement(cluster: Cluster, placement: str) -> None:
    """Preferred nodes, attributes and frameworks; and all of them together."""
    spec = JobSpec(tasks=echoes(10, NODES[3]), placement=placement)
    assert {NODES[3]} == where(Submitted(cluster, spec))
    gpu = JobSpec(tasks=echoes(10), placement=placement, options=JobOptions(requires=("gpu",)))
    assert where(Submitted(cluster, gpu)) <= set(GPUS)
    other = JobSpec(tasks=echoes(10), placement=placement, options=JobOptions(framework="other"))
    assert {NODES[2]} == where(Submitted(cluster, other))


@pytest.mark.parametrize(
    ("options", "preferred", "text"),
    [
        (JobOptions(requires=("gpu", "tpu")), (), "gpu and tpu"),
        (JobOptions(framework="unknown"), (), "framework unknown"),
        (JobOptions(requires=("gpu",)), (NODES[4],), "may run only on n4"),
        (JobOptions(), ("nowhere",), "may run only on nowhere"),
    ],
)
def test_what_cannot_be_satisfied_fails_at_once(
    cluster: Cluster, options: JobOptions, preferred: tuple[str, ...], text: str
) -> None:
    """With a kind of its own and a sentence, instead of a wait."""
    failure = Submitted(cluster, JobSpec(tasks=echoes(1, *preferred), options=options)).failure()
    assert "unsatisfiable" == failure.kind
    assert text in failure.message


def test_soft_preferences_give_way(cluster: Cluster, tmp_path: Path) -> None:
    """Delay scheduling: while the preferred node is busy, the task runs elsewhere after a while."""
    blockers = JobSpec(tasks=tuple(task(n, f"hang {tmp_path}/{n}", NODES[0]) for n in range(2)))
    busy = Submitted(cluster, blockers)
    for n in range(2):  # what nodes tell of themselves may be a second old
        appears(tmp_path / str(n))
    job = Submitted(cluster, JobSpec(tasks=echoes(1, NODES[0], wait_s=0.05)))
    assert where(job) <= set(NODES[1:])
    cluster.cancel(busy.job_id)
    assert "cancelled" == busy.failure().kind


def _node(cluster: Cluster, name: str) -> NodeStatus:
    return next(node for node in cluster.nodes() if node.name == name)


def test_cancellation_frees_slots_and_queues(cluster: Cluster, tmp_path: Path) -> None:
    """Running tasks are interrupted and reservations leave the queues: a new job runs at once."""
    tasks = tuple(task(n, f"hang {tmp_path}/{n}") for n in range(100))
    job = Submitted(cluster, JobSpec(tasks=tasks))
    until(lambda: sum(node.running for node in cluster.nodes()) >= 10, "all slots taken")
    cluster.cancel(job.job_id)
    assert JobFailed("cancelled", "the job was cancelled") == job.failure()
    assert 20 == len(Submitted(cluster, JobSpec(tasks=echoes(20))).results())
    until(lambda: not any(node.queued for node in cluster.nodes()), "empty queues")
