from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.cluster.placements import check_name
from minishark.errors import OptionError
from minishark_lab.early_binding import BatchFillingPlacer, BatchPlacer, PerTaskPlacer
from sparrow_core.policy.early_binding import RandomPlacer
from sparrow_core.policy.late_binding import ConstrainedPlacer, UnconstrainedPlacer
from sparrow_core.policy.placement import PLACEMENTS, Placements, placement_names
from sparrow_core.policy.placer import PlacedJob, Placement, Placer
from sparrow_core.protocol.errors import InvalidJob, NoNodes, Unsatisfiable
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import TaskSpec

NODES = [NodeName(f"n{i}") for i in range(6)]
SEED = 3  # with which a task that prefers n0 and n1 reserves on n1


def spec(task_id: int, *preferred: str) -> TaskSpec:
    """A task."""
    return TaskSpec(task_id, b"", tuple(map(NodeName, preferred)))


def make_placer(
    placement: str, rng: Random, probe_ratio: float, tasks: Sequence[TaskSpec]
) -> Placer:
    """The placer of a job of a new scheduler."""
    job = StartJob(job_id=JobId("job"), user="u", tasks=tuple(tasks), probe_ratio=probe_ratio)
    return Placements().placer(placement, job, rng)


def drain(placer: Placer, reserved: Counter[str], rng: Random) -> list[tuple[int, str]]:
    """Let nodes use their reservations in random order; who got what."""
    placed = []
    while +reserved:
        assert placer.covered(reserved)
        node = NodeName(rng.choice(sorted((+reserved).elements())))
        count = rng.randint(1, reserved[node])
        tasks = placer.take(node, count)
        placed += [(task.task_id, node) for task in tasks]
        reserved[node] -= len(tasks)
        if not placer.offers(node):
            assert len(tasks) <= count
            del reserved[node]
    return placed


preferences = st.lists(
    st.lists(st.sampled_from(NODES), max_size=3, unique=True).map(tuple), min_size=1, max_size=30
)


@given(
    preferences, st.sampled_from(sorted(placement_names())), st.floats(1, 4), st.integers(0, 10**6)
)
def test_every_task_is_placed_once_where_it_may_run(
    wanted: list[tuple[NodeName, ...]], placement: str, ratio: float, seed: int
) -> None:
    """However nodes ask, reservations suffice, and preferences are obeyed."""
    rng = Random(seed)
    tasks = [spec(task_id, *nodes) for task_id, nodes in enumerate(wanted)]
    placer = make_placer(placement, rng, ratio, tasks)
    placer.note_loads({node: rng.randint(-4, 9) for node in placer.probes(tasks, NODES)})
    placed = drain(placer, Counter(placer.place(tasks, NODES)), rng)
    assert list(range(len(tasks))) == sorted(task_id for task_id, _ in placed)
    assert all(node in wanted[task] for task, node in placed if wanted[task])


@given(preferences, st.floats(1, 4), st.integers(0, 10**6))
def test_tasks_survive_the_loss_of_a_node(
    wanted: list[tuple[NodeName, ...]], ratio: float, seed: int
) -> None:
    """When a node dies, its reservations and lost tasks move, as long as that can be satisfied."""
    rng = Random(seed)
    tasks = [spec(task_id, *nodes) for task_id, nodes in enumerate(wanted)]
    placer = make_placer("sparrow", rng, ratio, tasks)
    reserved = Counter(placer.place(tasks, NODES))
    dead, alive = NODES[0], NODES[1:]
    taken = placer.take(dead, reserved[dead] // 2)
    held = reserved.pop(dead, 0) - len(taken)
    hopeless = any(task.preferred_nodes == (dead,) for task in [*taken, *placer.waiting.values()])
    try:
        for task in taken:
            reserved.update(placer.place([task], alive, (dead,)))
        reserved.update(placer.node_lost(dead, held, alive))
    except Unsatisfiable:
        assert hopeless
        return
    assert not hopeless
    expected = sorted(placer.waiting)
    placed = drain(placer, reserved, rng)
    assert expected == sorted(task_id for task_id, _ in placed)
    assert dead not in [node for _, node in placed]


@given(preferences, st.lists(st.sampled_from(NODES), max_size=12), st.integers(0, 10**6))
def test_nodes_come_and_go_while_tasks_wait(
    wanted: list[tuple[NodeName, ...]], changes: list[NodeName], seed: int
) -> None:
    """Tasks may run anywhere as long as no node that they prefer is there."""
    rng = Random(seed)
    tasks = [TaskSpec(task_id, b"", nodes, 99.0) for task_id, nodes in enumerate(wanted)]
    placer = ConstrainedPlacer(rng, 2.0)
    alive = list(NODES[:2])
    reserved = Counter(placer.place(tasks, alive))
    for node in changes:
        asks = rng.choice(sorted(+reserved))
        taken = placer.take(asks, rng.randint(0, 1))
        reserved[asks] -= len(taken)
        if node not in alive:
            alive.append(node)
            reserved.update(placer.node_joined(node, len(alive)))
        elif len(alive) > 1:
            alive.remove(node)
            reserved.update(placer.node_lost(node, reserved.pop(node, 0), alive))
        for task in taken:  # each is lost, and placed again
            reserved.update(placer.place([task], alive, [asks]))
        assert placer.covered(reserved)
    placed = drain(placer, reserved, rng)
    assert list(range(len(tasks))) == sorted(task_id for task_id, _ in placed)
    assert {node for _, node in placed} <= {*alive}


def test_a_node_shares_what_it_learned_with_other_tasks_of_the_job() -> None:
    """A task that merely lists a node may be served by another task's reservation there."""
    placer = ConstrainedPlacer(Random(SEED), 1.0)
    assert {"n0": 1, "n1": 1} == dict(placer.place([spec(0, "n0"), spec(1, "n0", "n1")], NODES))
    assert [0, 1] == [task.task_id for task in placer.take(NODES[0], 2)]


def test_tasks_that_reserved_on_a_node_come_first_then_the_pool() -> None:
    """Own list first; then tasks which merely list the node; then unconstrained ones."""
    placer = ConstrainedPlacer(Random(SEED), 1.0)
    reserved = placer.place([spec(1, "n0", "n1"), spec(2, "n0")], NODES[:2])
    assert {"n0": 1, "n1": 1} == dict(reserved), "task 1 merely lists n0"
    placer.place([spec(0)], NODES)
    assert [2, 1, 0] == [task.task_id for task in placer.take(NODES[0], 3)]


def test_a_lost_task_avoids_its_node() -> None:
    """The next attempt runs on another preferred node if there is one, and on the same if not."""
    placer = ConstrainedPlacer(Random(1), 2.0)
    both, only = spec(0, "n0", "n1"), spec(1, "n0")
    placer.place([both, only], NODES)
    assert 2 == len(placer.take(NODES[0], 2))
    assert {"n1": 1} == dict(placer.place([both], NODES, (NODES[0],)))
    assert {"n0": 1} == dict(placer.place([only], NODES, (NODES[0],)))
    assert [1] == [task.task_id for task in placer.take(NODES[0], 2)]
    assert [0] == [task.task_id for task in placer.take(NODES[1], 2)]


def test_constraints_that_nothing_satisfies_are_an_error() -> None:
    """Unknown or dead preferred nodes: Unsatisfiable, and the placer is left as it was."""
    placer = ConstrainedPlacer(Random(1), 2.0)
    with pytest.raises(Unsatisfiable, match="task 1 may run only on elsewhere"):
        placer.place([spec(0, "n0"), spec(1, "elsewhere")], NODES)
    assert {} == placer.waiting
    assert not placer.offers(NODES[0])


def test_no_node_is_an_error() -> None:
    """Without a live node nothing can be placed."""
    for placer in (UnconstrainedPlacer(Random(1), 2.0), RandomPlacer(Random(1), 2.0)):
        with pytest.raises(NoNodes):
            placer.place([spec(0)], [])


@given(st.integers(1, 30), st.integers(0, 10**6))
def test_random_placement_binds_tasks_to_one_node(count: int, seed: int) -> None:
    """The baseline makes exactly one reservation a task, and withdrawn tasks vanish."""
    placer = RandomPlacer(Random(seed), 2.0)
    reserved = placer.place([spec(i, "n0") for i in range(count)], NODES)
    assert count == sum(reserved.values())
    placer.withdraw(0)
    taken = [task.task_id for node in NODES for task in placer.take(node, count)]
    assert list(range(1, count)) == sorted(taken)


@pytest.mark.parametrize(
    ("placement", "ratio", "ids"),
    [("elsewhere", 2.0, (1, 2)), ("sparrow", 0.9, (1, 2)), ("sparrow", float("nan"), (1, 2)),
     ("sparrow", 2.0, (1, 1))],
)  # fmt: skip
def test_impossible_jobs_are_refused(placement: str, ratio: float, ids: tuple[int, ...]) -> None:
    """Unknown placement, probe ratio below 1, doubled ids: InvalidJob."""
    with pytest.raises(InvalidJob):
        make_placer(placement, Random(1), ratio, [spec(task_id) for task_id in ids])


def test_per_task_sampling_gives_each_task_the_best_of_its_own_probes() -> None:
    """What one task learns does not help another."""
    placer = PerTaskPlacer(Random(1), 2.0)
    tasks = [spec(0, "n0", "n1"), spec(1, "n0", "n1"), spec(2, "n2", "n3")]
    assert {"n0", "n1", "n2", "n3"} == set(placer.probes(tasks, NODES))
    placer.note_loads({NODES[0]: 0, NODES[1]: 1, NODES[2]: 5, NODES[3]: 4})
    reserved = placer.place(tasks, NODES)
    assert {NODES[0]: 2, NODES[3]: 1} == reserved


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(BatchPlacer, {"n1": 1, "n3": 1, "n5": 1}), (BatchFillingPlacer, {"n1": 2, "n3": 1})],
)
def test_batch_sampling_shares_probes_among_tasks(
    kind: type[PerTaskPlacer], expected: dict[str, int]
) -> None:
    """The m least loaded of all that were probed have a task each; or their queues are filled."""
    placer = kind(Random(1), 2.0)
    tasks = [spec(task_id) for task_id in range(3)]
    assert set(NODES) == set(placer.probes(tasks, NODES))
    placer.note_loads(dict(zip(NODES, (9, 0, 9, 1, 9, 2), strict=True)))
    counts = placer.place(tasks, NODES)
    assert expected == dict(counts)


def test_with_few_nodes_batch_sampling_deals_tasks_in_rounds() -> None:
    """Each probed node has a task before one has a second."""
    placer = BatchPlacer(Random(1), 2.0)
    tasks = [spec(task_id) for task_id in range(8)]
    placer.probes(tasks, NODES)
    placer.note_loads(dict(zip(NODES, (9, 0, 9, 1, 9, 2), strict=True)))
    counts = placer.place(tasks, NODES)
    assert {"n1": 2, "n3": 2, "n5": 1, "n0": 1, "n2": 1, "n4": 1} == dict(counts)


def test_a_widened_task_may_run_anywhere_and_is_bound_once() -> None:
    """It stays on the lists of the nodes that it prefers, and joins the pool."""
    placer = ConstrainedPlacer(Random(1), 1.0)
    placer.place([TaskSpec(0, b"", ("n0",), 1.0), spec(1, "n0")], NODES)
    assert not placer.offers(NODES[1])
    assert 1 == sum(placer.widen([0, 7], NODES).values())
    assert {} == placer.widen([0], NODES), "told twice"
    assert [0] == [task.task_id for task in placer.take(NODES[1], 2)]
    assert [1] == [task.task_id for task in placer.take(NODES[0], 2)]


def test_soft_preferences_survive_the_loss_of_their_nodes() -> None:
    """When the last preferred node dies, the task may run anywhere."""
    placer = ConstrainedPlacer(Random(1), 1.0)
    placer.place([TaskSpec(0, b"", ("n0",), 99.0)], NODES)
    reserved = placer.node_lost(NODES[0], 1, NODES[1:])
    assert 1 == sum(reserved.values())
    assert placer.covered(reserved)


def test_round_robin_deals_evenly() -> None:
    """Tasks of a job share a node only if there are more of them than nodes."""
    placer = make_placer("round_robin", Random(1), 2.0, ())
    assert dict.fromkeys(NODES, 1) == placer.place([spec(i) for i in range(6)], NODES)
    more = placer.place([spec(i) for i in range(6, 10)], NODES)
    assert {1} == set(more.values())
    assert 4 == len(more)


def test_a_placement_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers and minishark take one that has been registered, by its name alone."""

    class FirstPlacer(RandomPlacer):
        def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
            del task
            return candidates[0]

    class First(Placement):
        """First: every task on the first node."""

        def placer(self, job: PlacedJob, rng: Random) -> Placer:
            return FirstPlacer(rng, job.probe_ratio)

    with pytest.raises(OptionError, match="Unknown placement 'first'"):
        check_name("first")
    monkeypatch.setitem(PLACEMENTS, "first", First)
    check_name("first")
    placer = make_placer("first", Random(1), 2.0, ())
    assert {NODES[0]: 3} == placer.place([spec(i) for i in range(3)], NODES)
