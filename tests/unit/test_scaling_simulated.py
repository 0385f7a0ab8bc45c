"""The scaling policy over the production state machines, in the simulator."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from minishark.cluster.scaling import Autoscaler, Load, NodeLoad, ScalingOptions
from minishark_lab.simulator.cluster import SimulatedCluster, payload_of
from minishark_lab.simulator.world import World
from sparrow_core.machines.node_monitor import NodeMonitor
from sparrow_core.protocol.events import JobFinished
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import TaskSpec

SLOTS = 2
OPTIONS = ScalingOptions(min_nodes=1, max_nodes=5, idle_s=3.0, wait_s=0.5)
START_S = 1.0
LOOK_S = 0.5


class SimulatedFleet:
    """A fleet whose nodes are up a second after they were asked for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = SimulatedCluster(world, nodes=1, slots=SLOTS, schedulers=2)
        self.starting = 0
        self.most = 1
        self._started = 1

    def start_node(self) -> None:
        """Another one, under a new name."""
        self.starting += 1
        name = NodeName(f"n{self._started}")
        self._started += 1

        def up() -> None:
            self.starting -= 1
            self.cluster.start_node(name)

        self.world.call(self.world.now + START_S, up)

    def drain(self, node: str) -> None:
        """It leaves when its tasks have ended."""
        self.cluster.drain_node(NodeName(node))

    def load(self) -> Load:
        """What heartbeats tell, without their delay."""
        nodes = []
        for machine in self.world.machines.values():
            if isinstance(machine, NodeMonitor):
                figures = machine.gauges()
                nodes.append(
                    NodeLoad(
                        name=machine.name,
                        slots=SLOTS,
                        running=int(figures["running"]),
                        queued=int(figures["queued"]),
                        draining=machine.draining,
                    )
                )
        return Load(tuple(nodes), self.starting, frozenset(("n0",)))


def simulate(jobs: list[tuple[float, int, float]], seed: int) -> SimulatedFleet:
    """Run jobs (their start, tasks, and seconds a task) on a fleet that scales."""
    world = World(seed, checked=True)
    fleet = SimulatedFleet(world)
    scaler = Autoscaler(options=OPTIONS, fleet=fleet)
    rng = Random(seed)

    def look() -> None:
        scaler.step(world.now)
        staying = [node for node in fleet.load().nodes if not node.draining]
        fleet.most = max(fleet.most, len(staying) + fleet.starting)
        assert OPTIONS.min_nodes <= len(staying) + fleet.starting <= OPTIONS.max_nodes
        world.call(world.now + LOOK_S, look)

    world.call(LOOK_S, look)
    recorder = fleet.cluster.recorder
    for number, (at_s, count, task_s) in enumerate(jobs):
        tasks = tuple(
            TaskSpec(task_id, payload_of(task_s * rng.uniform(0.5, 1.5)))
            for task_id in range(count)
        )
        job = StartJob(job_id=JobId(f"job{number}"), user="u", tasks=tasks)
        world.post(fleet.cluster.client, job, at_s)
    world.run(600.0, done=lambda: len(recorder.ended) == len(jobs))
    assert {JobFinished} == {type(event) for event in recorder.ended.values()}
    assert sum(count for _, count, _ in jobs) == sum(map(len, recorder.completed.values()))
    starts = Counter((key.job_id, key.task_id) for key in fleet.cluster.starts)
    assert {1} == {*starts.values(), *fleet.cluster.starts.values()}
    return fleet


@given(
    jobs=st.lists(
        st.tuples(st.floats(0, 20), st.integers(1, 60), st.sampled_from((0.001, 0.1, 1.0))),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=settings.default.max_examples // 4)
def test_scaling_loses_no_job_and_runs_no_task_twice(
    jobs: list[tuple[float, int, float]], seed: int
) -> None:
    """Whatever the load; and when all is over, the fleet shrinks to the fewest nodes."""
    fleet = simulate(jobs, seed)
    fleet.world.run(fleet.world.now + 6 * (OPTIONS.idle_s + LOOK_S) + START_S)
    assert ["n0"] == [node.name for node in fleet.load().nodes]


def test_a_long_job_has_all_nodes() -> None:
    """It grows to the most there may be, and is done in less time than one node would take."""
    fleet = simulate([(1.0, 200, 1.0)], 1)
    assert OPTIONS.max_nodes == fleet.most
    assert fleet.world.now < 1.0 + 200 / SLOTS / 3


def test_a_short_job_starts_none() -> None:
    """A node would come too late for it."""
    assert 1 == simulate([(1.0, 4, 0.05)], 1).most
