"""One test per claim of the papers, at a scale that takes seconds.

SOSP: Sparrow (Ousterhout et al., 2013). TR: Batch Sampling (2012). Eagle: Delgado et al., 2016.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Message
from minishark_lab.models import vector
from minishark_lab.models.analysis import (
    late_binding_idle_share,
    mean_response,
    zero_wait_probability,
)
from minishark_lab.models.meter import Meter
from minishark_lab.simulator.cluster import SimulatedCluster, payload_of, quiet_cluster
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import (
    Arrival,
    Workload,
    central_response_times_s,
    make_jobs,
    percentile,
    response_times_s,
    run_jobs,
)
from minishark_lab.simulator.world import World
from sparrow_core.machines.client import ClientConfig
from sparrow_core.machines.node_monitor import NodeMonitorConfig
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import RunTasks, SetWeights, StartJob, TasksEnded
from sparrow_core.protocol.types import JobOptions, TaskSpec


@functools.cache
def times_s(workload: Workload, nodes: int, slots: int = 1, seed: int = 1) -> list[float]:
    """Response times in order; several claims are about the same runs."""
    return response_times_s(workload, nodes=nodes, slots=slots, schedulers=4, seed=seed)


def median_ms(workload: Workload, nodes: int, slots: int = 1) -> float:
    """The median response time."""
    return 1000 * statistics.median(times_s(workload, nodes, slots))


def medians_ms(
    load: float, distribution: str, nodes: int = 300, slots: int = 1
) -> dict[str, float]:
    """The median response time under each placement, of jobs of 50 tasks."""
    return {
        placement: median_ms(
            Workload(load=load, jobs=120, tasks=50, distribution=distribution, placement=placement),
            nodes,
            slots,
        )
        for placement in ("central", "sparrow", "batch", "per_task", "random")
    }


def quiet(nodes: int, slots: int, *, schedulers: int = 4, **options: Any) -> SimulatedCluster:
    """A cluster in which nothing fails."""
    return quiet_cluster(World(1), nodes=nodes, slots=slots, schedulers=schedulers, **options)


def stream(
    prefix: str, user: str, *, tasks: int, task_s: float, rate: float, until_s: float,
    from_s: float = 1.0, options: JobOptions | None = None, regular: bool = False,
) -> list[Arrival]:  # fmt: skip
    """Jobs of equal tasks of one user, `rate` tasks running on average; Poisson or regular."""
    rng = Random(prefix)
    specs = tuple(TaskSpec(task_id, payload_of(task_s)) for task_id in range(tasks))
    arrivals: list[Arrival] = []
    interval_s = task_s * tasks / rate
    at_s = from_s
    while (at_s := at_s + (interval_s if regular else rng.expovariate(1 / interval_s))) < until_s:
        job_id = JobId(f"{prefix}{len(arrivals)}")
        start = StartJob(
            job_id=job_id,
            user=user,
            tasks=specs,
            options=options or JobOptions(),
        )
        arrivals.append(Arrival(at_s, start))
    return arrivals


def run_streams(cluster: SimulatedCluster, *streams: Sequence[Arrival]) -> list[float]:
    """Run streams together; the median response time of each, in milliseconds."""
    times = run_jobs(cluster, [arrival for each in streams for arrival in each])
    medians = []
    for each in streams:
        own, times = times[: len(each)], times[len(each) :]
        medians.append(1000 * statistics.median(own))
    return medians


# --- analysis ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "load", "tasks", "slots", "expected"),
    [
        ("per_task", 0.2, 100, 1, 0.0169),
        ("batch", 0.79, 100, 4, 0.9992),
        ("batch", 0.7, 10, 4, 0.9972),
        ("batch", 0.5, 10, 1, 0.588),
        ("batch", 0.5, 100, 1, 0.528),
    ],
)
def test_probability_of_no_wait(
    placement: str, load: float, tasks: int, slots: int, expected: float
) -> None:
    """TR 4: the printed numbers (its sum must start at m, not at 0)."""
    assert expected == pytest.approx(
        zero_wait_probability(placement, load, tasks, slots=slots), rel=0.01
    )


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["random", "per_task", "batch"])
def test_simulated_probability_of_no_wait(placement: str) -> None:
    """TR 4: so many jobs of constant tasks take no longer than a task and the messages."""
    workload = Workload(load=0.3, jobs=200, tasks=10, distribution="constant", placement=placement)
    times = times_s(workload, 200)
    simulated = sum(time < 0.1 + 0.006 for time in times) / len(times)
    assert zero_wait_probability(placement, 0.3, 10) == pytest.approx(simulated, abs=0.1)


@pytest.mark.parametrize(
    "placement",
    [
        pytest.param("random", marks=pytest.mark.slow),
        pytest.param("per_task", marks=pytest.mark.slow),
        pytest.param("sparrow", marks=pytest.mark.slow),
    ],
)
def test_mean_response_of_single_tasks(placement: str) -> None:
    """The simulator's oracle: M/M/1, shorter of two queues, less loaded of two queues."""
    jobs = 4000 if placement == "random" else 2500  # its queues change slowly
    workload = Workload(load=0.7, jobs=jobs, tasks=1, placement=placement)
    mean = statistics.fmean(times_s(workload, 100)[:]) / 0.1
    assert mean_response(placement, 0.7) == pytest.approx(mean, rel=0.12)


@pytest.mark.slow
def test_late_binding_costs_little_idle_time() -> None:
    """TR 4.4: slots wait for answers at most d RTT / (t + d RTT) of their time, 2 % here."""
    cluster = quiet(50, 1)
    meter = Meter(cluster.world)
    run_jobs(cluster, stream("j", "u", tasks=10, task_s=0.1, rate=40, until_s=6))
    share = meter.waited_s / (meter.bound * 0.1 + meter.waited_s)
    assert 0 < share < late_binding_idle_share(2.0, 0.001, 0.1) < 0.02


# --- placement ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_step_of_sparrow_helps() -> None:
    """SOSP Fig. 3: random > per-task > batch > late binding, which is close to omniscient."""
    ms = medians_ms(0.9, "exponential")
    assert ms["random"] > 1.7 * ms["per_task"]
    assert ms["per_task"] > 1.1 * ms["batch"]
    assert ms["batch"] > 1.2 * ms["sparrow"]
    assert ms["sparrow"] < 1.14 * ms["central"]


@pytest.mark.slow
def test_late_binding_helps_constant_jobs() -> None:
    """TR Fig. 6: with tasks of equal length, sampling without late binding is slower.

    The report has a factor of two over both; here it is 1.3 to 1.4 over batch sampling
    (docs/experiments.md).
    """
    ms = medians_ms(0.8, "constant")
    assert ms["random"] > 2 * ms["per_task"]
    assert ms["per_task"] > 1.3 * ms["batch"]
    assert ms["batch"] > 1.25 * ms["sparrow"]


@pytest.mark.slow
def test_late_binding_is_robust_to_heavy_tails() -> None:
    """TR Fig. 6: under Pareto times, queue lengths say little: twice as good as per-task."""
    ms = medians_ms(0.8, "pareto")
    assert ms["per_task"] > 2 * ms["sparrow"]
    assert ms["batch"] > 1.3 * ms["sparrow"]


@pytest.mark.slow
def test_more_slots_a_node_help() -> None:
    """TR Fig. 7: four slots a node instead of one lower the median at 95 % load.

    With exponential tasks, as in the figure; the report has over 20 %, simulations here and
    elsewhere about 14 (docs/experiments.md).
    """
    one, four = (
        statistics.fmean(
            statistics.median(
                vector.response_times_s(
                    Workload(load=0.95, jobs=2000, tasks=50),
                    nodes=nodes, slots=slots, seed=seed, cancellation=False,
                )[500:]
            )
            for seed in range(6)
        )
        for nodes, slots in ((1000, 1), (250, 4))
    )  # fmt: skip
    assert 0.80 < four / one < 0.92


@pytest.mark.slow
def test_two_probes_are_close_to_omniscient_at_moderate_load() -> None:
    """TR Fig. 5: within 4 % at 60 % load."""
    sparrow, central = (
        median_ms(Workload(load=0.6, jobs=80, tasks=50, placement=placement), 300)
        for placement in ("sparrow", "central")
    )
    assert sparrow < 1.04 * central


@pytest.mark.slow
def test_few_more_probes_than_tasks_gain_most() -> None:
    """TR Fig. 5, SOSP Fig. 12: d = 1.2 is far better than 1, and 1.5 nearly as good as 2."""
    one, some, more, two = (
        median_ms(Workload(load=0.8, jobs=80, tasks=50, probe_ratio=ratio), 300)
        for ratio in (1.0, 1.2, 1.5, 2.0)
    )
    assert one > 1.3 * some
    assert more < 1.1 * two


@pytest.mark.slow
def test_responses_of_100_ms_jobs_on_100_nodes() -> None:
    """TR Fig. 9: at 70 % load the median is 2.5 ms, or five messages, more than a task takes."""
    workload = Workload(load=0.7, jobs=300, tasks=10, distribution="constant")
    assert median_ms(workload, 100, 4) == pytest.approx(102.5, abs=0.2)


@pytest.mark.slow
def test_scheduling_delay_at_80_percent_load() -> None:
    """SOSP 5: a median delay below 8 ms; we aim at 3, on the paper's 100 nodes of 4 slots."""
    workload = Workload(load=0.8, jobs=300, tasks=10, distribution="constant")
    assert median_ms(workload, 100, 4) < 100 + 3


def test_more_reservations_than_nodes() -> None:
    """A job with more probes than nodes puts several on each; it runs in waves, and ends."""
    cluster = quiet(5, 2, schedulers=1)
    specs = tuple(TaskSpec(task_id, payload_of(0.1)) for task_id in range(50))
    job = StartJob(job_id=JobId("j"), user="u", tasks=specs)
    (time_s,) = run_jobs(cluster, [Arrival(1.0, job)])
    assert 0.5 <= time_s < 0.55, "five waves of ten"


# --- messages ----------------------------------------------------------------------------------


def metered(workload: Workload, nodes: int, slots: int, *, cancellation: bool = True) -> Meter:
    """Run a workload; what passed once the nodes had registered."""
    cluster = quiet(nodes, slots, cancellation=cancellation)
    cluster.world.run(0.5)
    meter = Meter(cluster.world)
    run_jobs(cluster, make_jobs(workload, cluster.nodes, slots, Random(1)))
    return meter


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "slots"), [(25, 16), (50, 8)])
def test_four_messages_a_task(nodes: int, slots: int) -> None:
    """At m = 100, d = 2 at most 4 messages a task pass between nodes; 18 in the original."""
    meter = metered(Workload(load=0.8, jobs=25, tasks=100), nodes, slots)
    assert meter.network.total() <= 4 * 25 * 100


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.9])
def test_cancellation_removes_useless_reservations(load: float) -> None:
    """95 % of those that get no task are gone before anybody asks for them in vain."""
    with_it, without_it = (
        metered(Workload(load=load, jobs=100), 100, 1, cancellation=cancellation)
        for cancellation in (True, False)
    )
    assert with_it.removed > 0.95 * with_it.useless
    assert without_it.removed < 0.3 * without_it.useless
    assert without_it.waited_s > 1.4 * with_it.waited_s, "slots wait for nothing"


# --- policies ----------------------------------------------------------------------------------


def running_by_user(cluster: SimulatedCluster, users: dict[str, str]) -> Counter[str]:
    """Tap a cluster: tasks that run, by the prefix of their job's id."""
    running: Counter[str] = Counter()

    def tap(to: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        del now
        if to.endswith("#monitor"):
            if isinstance(msg, TasksEnded):
                running[users[msg.job_id[0]]] -= len(msg.ends)
            for envelope in out:
                if isinstance(envelope.msg, RunTasks):
                    running[users[envelope.msg.job_id[0]]] += len(envelope.msg.tasks)

    cluster.world.taps.append(tap)
    return running


@pytest.mark.slow
def test_fair_shares_follow_demand() -> None:
    """SOSP Fig. 11: a user gets what it asks for up to its half, and gives back what it does not.

    100 slots; user a wants all of them, user b 0, 25, 50, 25 and 0 for two seconds each.
    """
    cluster = quiet(25, 4, monitor=NodeMonitorConfig(policy="fair"))
    running = running_by_user(cluster, {"a": "a", "b": "b"})
    demands = [("a", 1.0, 11.0, 130), ("b1.", 3.0, 5.0, 25), ("b2.", 5.0, 7.0, 60),
               ("b3.", 7.0, 9.0, 25)]  # fmt: skip
    streams = [
        stream(prefix, prefix[0], tasks=5, task_s=0.1, rate=rate,
               from_s=from_s, until_s=until_s, regular=True)
        for prefix, from_s, until_s, rate in demands
    ]  # fmt: skip
    means: list[float] = []
    for part in range(5):
        samples = [1.0 + 2 * part + 0.5 + 0.05 * step for step in range(30)]
        seen: list[int] = []
        for at_s in samples:
            cluster.world.call(at_s, lambda seen=seen: seen.append(running["b"]))
        cluster.world.call(3.0 + 2 * part, lambda seen=seen: means.append(statistics.fmean(seen)))
    run_jobs(cluster, [arrival for each in streams for arrival in each])
    assert means == [
        0,
        pytest.approx(25, abs=8),
        pytest.approx(50, abs=8),
        pytest.approx(25, abs=8),
        pytest.approx(0, abs=1),
    ]


@pytest.mark.slow
def test_weights_may_change_while_it_runs() -> None:
    """Two users who want everything share 1 : 1, and 3 : 1 from the change on."""
    cluster = quiet(10, 4, schedulers=2, monitor=NodeMonitorConfig(policy="fair"))
    running = running_by_user(cluster, {"a": "a", "b": "b"})
    streams = [stream(user, user, tasks=10, task_s=0.1, rate=60, until_s=9) for user in ("a", "b")]
    weights = SetWeights(1, (("a", 3.0),))
    cluster.world.call(5.0, lambda: cluster.world.post(cluster.schedulers[1], weights))
    shares: list[float] = []
    for begin in (3.0, 7.0):
        seen: list[float] = []
        for step in range(30):
            at_s = begin + 0.05 * step
            cluster.world.call(at_s, lambda seen=seen: seen.append(running["a"] / 40))
        cluster.world.call(begin + 1.6, lambda seen=seen: shares.append(statistics.fmean(seen)))
    run_jobs(cluster, [arrival for each in streams for arrival in each])
    assert shares == [pytest.approx(0.5, abs=0.06), pytest.approx(0.75, abs=0.06)]


@pytest.mark.slow
def test_fairness_protects_modest_users_from_a_greedy_one() -> None:
    """TR Table 4: users below their share get it at once, whatever the third one asks for."""
    cluster = quiet(30, 4, monitor=NodeMonitorConfig(policy="fair"))
    modest, also_modest, greedy = run_streams(
        cluster,
        stream("a", "a", tasks=10, task_s=0.1, rate=30, until_s=8),
        stream("b", "b", tasks=10, task_s=0.1, rate=30, until_s=8),
        stream("c", "c", tasks=10, task_s=0.1, rate=100, until_s=8),
    )
    assert max(modest, also_modest) < 200
    assert greedy > 3 * modest


@pytest.mark.slow
def test_priorities_isolate() -> None:
    """SOSP Table 3: low priority work far beyond capacity slows high priority by 40 % at most."""
    medians = []
    for low in (1, 160):
        cluster = quiet(25, 4, monitor=NodeMonitorConfig(policy="priority"))
        high_ms, _ = run_streams(
            cluster,
            stream("h", "h", tasks=10, task_s=0.1, rate=25, until_s=3.5),
            stream("l", "l", tasks=10, task_s=0.1, rate=low, until_s=3.5,
                   options=JobOptions(priority=7)),
        )  # fmt: skip
        medians.append(high_ms)
    alone, crowded = medians
    assert crowded < 1.4 * alone


@pytest.mark.slow
def test_short_jobs_pass_long_ones() -> None:
    """Eagle: by shortest remaining work, short jobs wait far less than first in, first out."""
    medians = {}
    for policy in ("fifo", "srpt"):
        cluster = quiet(20, 2, monitor=NodeMonitorConfig(policy=policy))
        medians[policy] = run_streams(
            cluster,
            stream("s", "s", tasks=5, task_s=0.05, rate=8, until_s=10,
                   options=JobOptions(task_s=0.05)),
            stream("l", "l", tasks=20, task_s=1.0, rate=28, until_s=10,
                   options=JobOptions(task_s=1.0)),
        )  # fmt: skip
    short, long = 0, 1
    assert medians["fifo"][short] > 1.5 * medians["srpt"][short]
    assert medians["srpt"][long] < 1.5 * medians["fifo"][long]


@pytest.mark.slow
def test_long_tasks_hardly_hurt_short_jobs_on_large_nodes() -> None:
    """SOSP Fig. 13: with 16 slots a node short jobs stay near 100 ms beside tasks of 10 s."""
    medians = []
    for nodes, slots in ((16, 16), (64, 4)):
        cluster = quiet(nodes, slots)
        short_ms, _ = run_streams(
            cluster,
            stream("s", "s", tasks=10, task_s=0.1, rate=100, until_s=5),
            stream("l", "l", tasks=10, task_s=10.0, rate=100, until_s=5),
        )
        medians.append(short_ms)
    assert medians[0] < 111
    assert medians[0] <= medians[1]


# --- constraints -------------------------------------------------------------------------------


@pytest.mark.slow
def test_constraints_with_three_replicas_cost_little() -> None:
    """SOSP 3.2: per-task sampling over three nodes each, sharing information across tasks."""
    free, bound = (
        median_ms(Workload(load=0.6, jobs=150, tasks=10, replicas=replicas), 50, 4)
        for replicas in (0, 3)
    )
    assert bound < 1.25 * free


def test_job_level_constraints_hold() -> None:
    """SOSP 3.2: all tasks of a job run on nodes with what it requires."""
    cluster = SimulatedCluster(
        World(1, Network()), nodes=10, slots=2,
        attributes=lambda name: ("gpu", "zone=a") if name in ("n1", "n2", "n3") else ("zone=a",),
    )  # fmt: skip
    options = JobOptions(requires=("gpu", "zone=a"))
    run_jobs(cluster, stream("j", "u", tasks=5, task_s=0.05, rate=4, until_s=3, options=options))
    assert {"n1", "n2", "n3"} == set(cluster.started_on.values())


def test_nodes_that_join_are_used_at_once() -> None:
    """A job that waits for slots ends sooner when there are three times as many nodes."""
    times = []
    for joining in (0, 4):
        cluster = quiet(2, 2, schedulers=1)
        for number in range(joining):
            name = NodeName(f"n{2 + number}")
            cluster.world.call(2.0, lambda name=name, c=cluster: c.start_node(name))
        specs = tuple(TaskSpec(task_id, payload_of(0.1)) for task_id in range(120))
        job = StartJob(
            job_id=JobId("j"),
            user="u",
            tasks=specs,
        )
        times += run_jobs(cluster, [Arrival(1.0, job)])
    assert times == [pytest.approx(3.0, abs=0.2), pytest.approx(1.0 + 2.0 / 3, abs=0.2)]


# --- failures ----------------------------------------------------------------------------------


def test_failover_takes_little_more_than_the_timeout() -> None:
    """SOSP 6.3, 7.3: a scheduler silent for 100 ms is left; its jobs run again within 120 ms."""
    delays = []
    for seed in range(12):
        world = World(seed, Network())
        cluster = SimulatedCluster(world, nodes=10, slots=2, schedulers=2, client=ClientConfig())
        specs = tuple(TaskSpec(task_id, payload_of(0.2)) for task_id in range(200))
        job = StartJob(
            job_id=JobId("j"),
            user="u",
            tasks=specs,
        )
        killed_at_s = 1.3 + Random(seed).uniform(0, 0.1)
        world.call(killed_at_s, lambda world=world: world.kill("s1"))
        again: list[float] = []

        def tap(
            to: Address, msg: Message, out: Sequence[Envelope], now: float,
            again: list[float] = again,
        ) -> None:  # fmt: skip
            del to, out
            if isinstance(msg, RunTasks) and msg.job_id == "j~1":
                again.append(now)

        world.taps.append(tap)
        run_jobs(cluster, [Arrival(1.0, job)])
        ((_, silent),) = cluster.recorder.silences
        assert (cluster.schedulers[1], True) == (silent.scheduler, silent.silent)
        assert [1] * 200 == list(cluster.recorder.completed[JobId("j")].values())
        delays.append(again[0] - killed_at_s)
    assert statistics.median(delays) < 0.12


@pytest.mark.slow
def test_resubmission_of_stragglers() -> None:
    """SOSP 3.4: a front end may submit slow tasks again, and the first result counts."""
    slowest = []
    for factor in (0.0, 2.0):
        cluster = quiet(20, 2, schedulers=1, slowness=lambda name: 20.0 if name == "n0" else 1.0)
        options = JobOptions(straggler_factor=factor)
        jobs = stream("j", "u", tasks=20, task_s=0.1, rate=12, until_s=8, options=options)
        slowest.append(percentile(sorted(run_jobs(cluster, jobs)), 95))
    assert slowest[0] > 3 * slowest[1]


def test_an_omniscient_scheduler_never_lets_a_slot_idle() -> None:
    """The bound of the comparisons: first come first served on whatever slot is free first."""
    specs = tuple(TaskSpec(task_id, payload_of(1.0)) for task_id in range(3))
    jobs = [
        Arrival(
            0.0,
            StartJob(
                job_id=JobId(f"j{n}"),
                user="u",
                tasks=specs,
            ),
        )
        for n in (0, 1)
    ]
    expected = [pytest.approx(2.0), pytest.approx(3.0)]
    assert expected == central_response_times_s(jobs, slots=2, delay_s=0.0)
