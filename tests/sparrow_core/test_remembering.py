from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from minishark_lab.models.express import ExpressCluster
from minishark_lab.models.traffic import messages
from minishark_lab.remembering import (
    AdaptiveRatio,
    Dodoor,
    Eagle,
    IdleShare,
    KnownIdle,
    Prequal,
)
from minishark_lab.simulator.cluster import SimulatedCluster, payload_of
from minishark_lab.simulator.workload import Workload, make_jobs, run_jobs
from minishark_lab.simulator.world import World
from sparrow_core.policy.placement import make_placement, placement_names
from sparrow_core.policy.placer import Placement, Placer, Reservations
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, NodeLevel, TaskSpec

REMEMBERING = ("adaptive", "known_idle", "eagle", "dodoor", "prequal")
JIQ = "minishark_lab.remembering:JoinIdleQueue"
NODES = [NodeName(f"n{number}") for number in range(20)]
ROUND_TRIP_S = 0.001


def job_of(name: str, tasks: int, *, task_s: float = 0.0, placement: str = "sparrow") -> StartJob:
    """A job of equal tasks."""
    specs = tuple(TaskSpec(task_id, payload_of(0.1)) for task_id in range(tasks))
    return StartJob(
        job_id=JobId(name), user="u", tasks=specs, placement=placement,
        options=JobOptions(task_s=task_s),
    )  # fmt: skip


def placed(
    placement: Placement, job: StartJob, now: float, nodes: list[NodeName] = NODES
) -> tuple[Placer, Reservations]:
    """Place a job, as a scheduler does."""
    placement.on_job(job, now)
    placer = placement.placer(job, Random(int(1000 * now)))
    placer.probes(job.tasks, nodes)
    reservations = placer.place(job.tasks, nodes)
    placement.on_reserved(job, reservations, now)
    return placer, reservations


def asks(
    placement: Placement, placer: Placer, job: StartJob, node: NodeName, now: float
) -> list[TaskSpec]:
    """A node asks for a task."""
    tasks = placer.take(node, 1)
    placement.on_asked(node, job, tasks, now)
    return tasks


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", REMEMBERING)
@pytest.mark.parametrize("slots", [1, 3])
def test_jobs_end_on_the_machines(name: str, slots: int) -> None:
    """Also on few nodes, with several schedulers, and with nodes that die."""
    assert name in placement_names()
    world = World(1, checked=True)
    cluster = SimulatedCluster(world, nodes=6, slots=slots, schedulers=2)
    load = Workload(load=0.8, jobs=40, tasks=7, placement=name)
    jobs = make_jobs(load, cluster.nodes, slots, Random(1))
    world.call(jobs[12].at_s, lambda: cluster.kill_node(NodeName("n2")))
    run_jobs(cluster, jobs)
    cluster.recorder.check()


@pytest.mark.parametrize("name", REMEMBERING)
def test_jobs_with_preferred_nodes_run_there(name: str) -> None:
    """What is remembered never overrides a constraint."""
    placement = make_placement(name)
    tasks = tuple(TaskSpec(number, b"", (NODES[number], NODES[number + 1])) for number in range(3))
    job = StartJob(job_id=JobId("j"), user="u", tasks=tasks)
    _, reservations = placed(placement, job, 1.0)
    assert set(reservations) <= set(NODES[:4])


def test_known_idle_nodes_are_used_first() -> None:
    """A scheduler that sees all jobs reserves once a task, and on no busy node, while it can."""
    placement = KnownIdle()
    busy: dict[NodeName, None] = {}
    for number in range(8):  # the first ones, to learn that what is free of ours is idle
        job = job_of(f"j{number}", 2)
        placer, reservations = placed(placement, job, float(number))
        assert not set(reservations) & set(busy)
        for node in list(reservations)[:2]:
            placement.on_level(node, NodeLevel(-1, number + 1), number + ROUND_TRIP_S)
            asks(placement, placer, job, node, number + ROUND_TRIP_S)
            busy[node] = None
    assert 2 <= len(reservations) <= 3
    assert 16 == len(busy) == len(placement.memory.load)
    job = job_of("end", 2)
    for number in range(8):
        done = job_of(f"j{number}", 2)
        for node in list(busy)[2 * number : 2 * number + 2]:
            placement.on_finished(node, done, 0.1, 20.0)
            placement.on_level(node, NodeLevel(-1, 20), 20.0)
    assert not placement.memory.load
    assert not placement.memory._open


def test_schedulers_tell_each_other_what_is_on_nodes() -> None:
    """What a node tells later overrules notes; those that are late, or nonsense, change nothing."""
    teller, hearer = KnownIdle(), KnownIdle()
    for node in NODES:
        teller.on_level(node, NodeLevel(-1, 1), 0.5)
    assert not teller.notes(9, 0.5), "too few nodes for so many schedulers"
    teller.levels.NEWS_SHARE = 20.0  # type: ignore[misc]
    _, reservations = placed(teller, job_of("j", 6), 1.0)
    first, second, *_ = reservations
    hearer.on_notes(teller.notes(9, 1.0), 1.0)
    assert {*reservations} == {node for node in NODES if not hearer.levels.is_free(node)}
    assert not teller.notes(9, 3.0), "nothing new"
    teller.on_level(first, NodeLevel(2, 7), 1.01)
    assert not teller.notes(9, 1.01), "too little yet"
    note = teller.notes(9, 2.0)
    hearer.on_level(second, NodeLevel(4, 5), 1.9)
    hearer.on_notes(note, 2.0)
    assert {first: 2, second: 4} == {node: hearer.levels.load[node] for node in (first, second)}
    hearer.on_level(first, NodeLevel(-3, 8), 2.0)
    hearer.on_notes(note, 2.1)
    hearer.on_notes(b"nonsense", 2.1)
    assert -3 == hearer.levels.load[first]
    hearer.on_node_lost(first, 3.0)
    assert hearer.levels.is_free(first)
    hearer.on_notes(note, 3.1)
    assert first not in hearer.levels.load, "it is dead, as the teller does not know yet"
    hearer.on_heartbeat(first, 0, {}, 4.0)
    hearer.on_notes(note, 4.1)
    assert 2 == hearer.levels.load[first], "it has come back"


def test_what_was_cancelled_is_forgotten() -> None:
    """Once all tasks are bound, only the nodes that run them have load."""
    placement = AdaptiveRatio()
    job = job_of("j", 2)
    placer, reservations = placed(placement, job, 1.0)
    assert len(reservations) > 2
    first, second, *_ = reservations
    for node in (first, second):
        asks(placement, placer, job, node, 1.0 + ROUND_TRIP_S)
    assert {first: 1, second: 1} == placement.memory.load
    placement.on_node_lost(first, 2.0)
    assert {second: 1} == placement.memory.load


def test_the_ratio_adapts_to_how_soon_nodes_ask() -> None:
    """Few reservations while all ask at once, many when most wait."""
    counts: dict[str, list[int]] = {"idle": [], "busy": []}
    for state, found in counts.items():
        placement = AdaptiveRatio()
        for number in range(40):
            job = job_of(f"j{number}", 4)
            placer, reservations = placed(placement, job, float(number))
            found.append(len(reservations))
            for rank, node in enumerate(list(reservations)[:4]):
                waits_s = 0.05 if state == "busy" and rank else 0.0
                asks(placement, placer, job, node, number + ROUND_TRIP_S + waits_s)
    assert counts["idle"][-1] <= 5
    assert counts["busy"][-1] >= 12


def test_the_idle_share_is_estimated() -> None:
    """From a round trip that is learned, and up when all of a job's tasks were taken at once."""
    share = IdleShare()
    assert share.prompt(0.002)
    assert share.prompt(0.001)
    assert not share.prompt(0.002)
    for _ in range(60):
        share.note(2, 10, 20)
    assert 0.1 == pytest.approx(share.value, abs=0.01)
    for _ in range(200):
        share.note(10, 10, 20)
    assert share.value > 0.95


def test_short_jobs_avoid_nodes_with_long_ones() -> None:
    """Those of the scheduler's own, and those that heartbeats tell of."""
    placement = Eagle()
    for number in range(20):
        placed(placement, job_of(f"usual{number}", 2, task_s=1.0), float(number))
    long = job_of("long", 6, task_s=1000.0)
    _, reservations = placed(placement, long, 30.0)
    assert not [node for node in reservations if placement.for_short(node)]
    told = next(node for node in NODES if node not in reservations)
    placement.on_heartbeat(told, 1, {JobId("other's"): 60.0}, 31.0)
    for number in range(20):
        _, short = placed(placement, job_of(f"short{number}", 2, task_s=1.0), 32.0 + number)
        assert not set(short) & ({told} | set(reservations))
    placement.on_heartbeat(told, 0, {}, 60.0)
    assert not placement.has_long(told)


def test_a_share_of_the_nodes_is_for_short_jobs() -> None:
    """A tenth, which all schedulers derive from the names alike."""
    names = [NodeName(f"n{number}") for number in range(5000)]
    partition = [name for name in names if Eagle().for_short(name)]
    assert 400 < len(partition) < 600
    assert partition == [name for name in names if Eagle().for_short(name)]


def test_dodoor_sees_others_by_heartbeats_and_itself_at_once() -> None:
    """Two choices each; a node that was told to be busy loses against any other."""
    placement = Dodoor()
    for node in NODES[1:]:
        placement.on_heartbeat(node, 5, {}, 1.0)
    job = job_of("j", 400)
    _, reservations = placed(placement, job, 1.0, NODES[:2])
    # The first five go to the node that was told to be idle, then they are even.
    assert 5 == pytest.approx(reservations[NODES[0]] - reservations[NODES[1]], abs=1)


def test_join_idle_queue_uses_each_idle_slot_once() -> None:
    """Who told first is first; where nobody is idle, any node will do."""
    placement = make_placement(JIQ)
    for number, (name, net) in enumerate((("n3", -2), ("n1", -1), ("n2", 0), ("n4", -1))):
        placement.on_level(NodeName(name), NodeLevel(net, number + 1), 1.0)
    placement.on_node_lost(NodeName("n4"), 1.0)
    placer, reservations = placed(placement, job := job_of("a", 3, placement=JIQ), 2.0)
    assert {"n3": 2, "n1": 1} == reservations
    placement.on_level(NodeName("n3"), NodeLevel(-2, 5), 3.0)  # as if the slots were still free
    assert 1 == len(asks(placement, placer, job, NodeName("n3"), 3.0))
    others = [NodeName("n3"), NodeName("n7")]
    _, reservations = placed(placement, job_of("b", 1, placement=JIQ), 4.0, others)
    assert {"n3": 1} == reservations  # a slot is left there
    _, reservations = placed(placement, job_of("c", 1, placement=JIQ), 5.0, [NodeName("n7")])
    assert {"n7": 1} == reservations


def test_prequal_uses_each_probe_once_and_not_for_long() -> None:
    """Answers are for later jobs, the shortest queue first."""
    placement = Prequal()
    for rank, node in enumerate(NODES[:6]):
        placement.on_load(node, rank, 1.0)
    _, reservations = placed(placement, job_of("j", 4), 1.1)
    assert set(NODES[:4]) == set(reservations)
    assert set(NODES[4:6]) == set(placement.pool)
    placement.on_job(job_of("later", 1), 3.0)
    placement.placer(job_of("later", 1), Random(1))
    assert not placement.pool, "too old"


@pytest.mark.slow
def test_schedulers_that_remember_are_near_an_omniscient_one() -> None:
    """At 90 % load, with about four messages a task; several of them are less so.

    The whole experiment is `minishark bench stale-information`.
    """
    load = Workload(load=0.9, jobs=300, tasks=50)
    jobs = make_jobs(load, [NodeName(f"n{number}") for number in range(500)], 1, Random(1))
    medians: dict[tuple[str, int], float] = {}
    for name, schedulers in (("sparrow", 1), ("known_idle", 1), ("known_idle", 10)):
        cluster = ExpressCluster(nodes=500, schedulers=schedulers, seed=1)
        cluster.run([type(each)(each.at_s, _under(each.job, name)) for each in jobs])
        times_s = sorted(cluster.ended_s[each.job.job_id] for each in jobs[100:])
        medians[name, schedulers] = times_s[len(times_s) // 2]
        if name == "known_idle":
            assert messages(cluster.sent) <= 4.2 * 300 * 50
    assert medians["known_idle", 1] < 0.97 * medians["sparrow", 1]
    assert medians["known_idle", 1] < medians["known_idle", 10]


def _under(job: StartJob, placement: str) -> StartJob:
    return StartJob(job_id=job.job_id, user=job.user, tasks=job.tasks, placement=placement)


def test_heartbeats_of_the_express_simulator_tell_load_and_long_tasks() -> None:
    """To each scheduler, a message later."""
    seen: list[tuple[float, int, dict[JobId, float]]] = []

    class Listening(Dodoor):
        def on_heartbeat(
            self, node: NodeName, load: int, running: Mapping[JobId, float], now: float
        ) -> None:
            seen.append((now, load, dict(running)))

    cluster = ExpressCluster(nodes=1, slots=2, heartbeat_s=1.0)
    cluster._placements[0]._made["dodoor"] = listening = Listening()
    cluster._placements[0].watching.append(listening)
    specs = tuple(TaskSpec(number, payload_of(2.5)) for number in range(3))
    job = StartJob(job_id=JobId("j"), user="u", tasks=specs, placement="dodoor")
    last = StartJob(job_id=JobId("k"), user="u", tasks=specs[:1], placement="dodoor")
    arrival = make_jobs(Workload(load=0.5, jobs=1), NODES[:1], 1, Random(1))[0]
    cluster.run([type(arrival)(0.1, job), type(arrival)(4.2, last)])
    assert [1.0005, 2.0005, 3.0005, 4.0005] == pytest.approx([at for at, _, _ in seen])
    assert [3, 3, 1, 1] == [load for _, load, _ in seen]
    assert 4 == cluster.sent["heartbeat"]
    assert {JobId("j"): pytest.approx(1.9, abs=0.02)} == seen[1][2]
    assert {} == seen[2][2]
