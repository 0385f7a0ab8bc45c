"""The compiled simulator beside `express`: equal in distribution, as its random numbers are not."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from minishark_lab.models import compiled
from minishark_lab.models.central import shortest_first_response_times_s
from minishark_lab.models.express import ExpressCluster
from minishark_lab.models.traffic import NOTE_BYTES, messages
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import Arrival, central_response_times_s
from minishark_lab.sparrow.past import Past, past_sparrow
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture(scope="module", autouse=True)
def program() -> Iterator[None]:
    """It is compiled once, and kept until the process ends, or the tests here."""
    yield
    if compiled._program.cache_info().currsize:
        compiled._program()[1].cleanup()
        compiled._program.cache_clear()


NODES, TASKS, JOBS, RUNS = 300, 12, 500, 8


def jobs_of(seed: int, load: float, slots: int) -> tuple[list[float], list[np.ndarray]]:
    """Arrival times, and task times: a job in ten has tasks that are forty times as long."""
    rng = np.random.default_rng(seed)
    mean_s = np.where(rng.random(JOBS) < 0.1, 0.8, 0.02)
    times_s = [np.maximum(rng.exponential(each, TASKS), 0.001) for each in mean_s]
    gaps_s = rng.exponential(0.098 * TASKS / (load * NODES * slots), JOBS)
    return (1 + np.cumsum(gaps_s)).tolist(), times_s


def figures(times_s: list[float], sent: dict[str, int]) -> list[float]:
    """What is compared: the middle and the mean of response times, and messages a task."""
    in_all = JOBS * TASKS
    middle, late = np.percentile(times_s, (50, 90))
    counted = messages(sent) / in_all, sent.get(NOTE_BYTES, 0) / in_all
    return [float(middle), float(late), statistics.fmean(times_s), *counted]


def arrivals_of(
    at_s: list[float], times_s: list[np.ndarray], placement: str, estimates_s: list[float]
) -> list[Arrival]:
    return [
        Arrival(
            at,
            StartJob(
                job_id=JobId(f"j{number}"),
                user="u",
                tasks=tuple(TaskSpec(i, payload_of(each)) for i, each in enumerate(tasks.tolist())),
                placement=compiled.PATHS.get(placement, placement),
                options=JobOptions(task_s=estimate_s),
            ),
        )
        for number, (at, tasks, estimate_s) in enumerate(
            zip(at_s, times_s, estimates_s, strict=True)
        )
    ]


def expressed(arrivals: list[Arrival], policy: str, slots: int, seed: int) -> list[float]:
    cluster = ExpressCluster(
        nodes=NODES, slots=slots, policy=policy, seed=seed, schedulers=2, heartbeat_s=0.5
    )
    cluster.run(arrivals)
    return figures([cluster.ended_s[each.job.job_id] for each in arrivals], cluster.sent)


@needs_compiler
@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("placement", "policy", "slots"),
    [
        ("sparrow", "fifo", 1),
        ("sparrow", "srpt", 1),
        ("sparrow", "fifo", 3),
        ("random", "fifo", 1),
        ("adaptive", "fifo", 1),
        ("known_idle", "fifo", 1),
        ("known_idle", "fifo", 2),
        ("jiq", "fifo", 1),
        ("eagle", "fifo", 1),
        ("eagle", "srpt", 1),
    ],
)
def test_figures_are_those_of_express(placement: str, policy: str, slots: int) -> None:
    differences: list[list[float]] = []
    scale: list[list[float]] = []
    for seed in range(RUNS):
        at_s, times_s = jobs_of(seed, 0.85, slots)
        estimates_s = [float(each.mean()) for each in times_s]
        arrivals = arrivals_of(at_s, times_s, placement, estimates_s)
        ours = expressed(arrivals, policy, slots, seed)
        response_s, sent = compiled.response_times_s(
            at_s, times_s, estimates_s=estimates_s,
            placement=placement, policy=policy, nodes=NODES, slots=slots, schedulers=2, seed=seed,
            heartbeat_s=0.5,
        )  # fmt: skip
        theirs = figures(response_s, sent)
        scale.append(ours)
        differences.append([a - b for a, b in zip(ours, theirs, strict=True)])
    # The bytes of notes are estimated from how many nodes they are about, so they are not compared.
    for number in range(4):
        found = [each[number] for each in differences]
        error = statistics.stdev(found) / math.sqrt(RUNS)
        size = statistics.fmean(each[number] for each in scale)
        # 5.4 standard errors with 7 degrees of freedom: one in a thousand. Eagle's partition is a
        # tenth of the nodes here, and a tenth but for chance there.
        assert abs(statistics.fmean(found)) < 5.4 * error + 0.02 * size, (number, found, size)


@needs_compiler
@pytest.mark.parametrize("policy", ["fifo", "srpt"])
def test_an_omniscient_scheduler_is_that_of_the_formulas(policy: str) -> None:
    """Nothing is random there: times are the same, job by job."""
    at_s, times_s = jobs_of(3, 0.95, 1)
    estimates_s = [float(each.mean()) for each in times_s]
    theirs, sent = compiled.response_times_s(
        at_s, times_s, estimates_s=estimates_s, placement="central", policy=policy, nodes=NODES
    )
    # Which task of a job goes first is open: the last one there, the first one by `fifo` here.
    ideal = shortest_first_response_times_s if policy == "srpt" else central_response_times_s
    ordered = times_s if policy == "srpt" else [each[::-1] for each in times_s]
    arrivals = arrivals_of(at_s, ordered, "central", estimates_s)
    assert theirs == pytest.approx(ideal(arrivals, NODES, Network().delay_s), abs=1e-9)
    assert JOBS * TASKS == messages(sent)


@needs_compiler
def test_a_seed_repeats() -> None:
    at_s, times_s = jobs_of(1, 0.9, 1)

    def run(seed: int) -> list[float]:
        return compiled.response_times_s(
            at_s, times_s, placement="known_idle", nodes=NODES, schedulers=3, seed=seed
        )[0]

    assert run(1) == run(1) != run(2)


@needs_compiler
def test_each_job_ends_and_no_message_is_lost() -> None:
    """Jobs of more tasks than nodes as well."""
    rng = Random(5)
    at_s = [1.0 + number / 20 for number in range(100)]
    times_s = [np.full(rng.choice((1, 7, 50)), 0.01) for _ in at_s]
    for placement in compiled.PLACEMENTS:
        for policy in compiled.POLICIES:
            response_s, sent = compiled.response_times_s(
                at_s, times_s, estimates_s=[0.01] * 100, placement=placement, policy=policy,
                nodes=20, schedulers=3, heartbeat_s=0.5,
            )  # fmt: skip
            assert len(response_s) == 100
            assert min(response_s) >= 0.01
            if placement != "central":
                assert sum(map(len, times_s)) / 20 <= sent["answer"] <= sent["ask"]


def test_without_a_compiler_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    tiny = Past(nodes=50, tasks=2, loads=(0.5,), jobs=10, jobs_max=20, placements=("sparrow",))
    with pytest.raises(SparrowError, match='set simulator to "express"'):
        past_sparrow(tiny, 1, lambda _share: None)
