"""The scenarios of the simulator's faults over real sockets: frames lost, doubled and late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from harness import until

from machine_kit.addresses import Address
from machine_kit.machine import Message
from minishark_lab.simulator.cluster import Recorder, SimulatedSlot, payload_of
from sparrow_core.machines.client import Client, ClientConfig
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.protocol.events import JobFinished
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import CancelJob, GetNodes, SlotReady, StartJob
from sparrow_core.protocol.types import TaskSpec
from sparrow_core.runtime.transport import zmq_driver
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

MONITOR = NodeMonitorConfig(heartbeat_s=0.05, ask_timeout_s=0.1, grace_s=0.2)
SCHEDULER = SchedulerConfig(tick_s=0.05, grace_s=0.2, max_attempts=10)
CLIENT = ClientConfig(ping_s=0.1, result_wait_s=0.2, silence_min_s=0.5)
NODES = [NodeName(f"n{number}") for number in range(3)]


class FaultyDriver(ZmqDriver):
    """Loses, doubles and holds back frames; what is held back is overtaken by others."""

    def __init__(self, endpoint: str, rng: Random) -> None:
        super().__init__(endpoint)
        self._rng = rng
        self._late: list[tuple[float, str, list[tuple[str, Message]]]] = []
        self.faults = 0

    def turn(self) -> None:
        """One turn of the loop that waits for hardly anything."""
        self._wait(0.0002)
        self._take_posted()
        self._fire_timers()
        self._deliver()
        self._send()

    def _send(self) -> None:
        frames, self._outbox = list(self._outbox.items()), {}
        frames += [each[1:] for each in self._late if each[0] <= 0]
        self._late = [(turns - 1, *frame) for turns, *frame in self._late if turns > 0]
        for endpoint, messages in frames:
            dice = self._rng.random()
            self.faults += dice < 0.25
            if dice < 0.1:
                self._late.append((self._rng.randrange(20), endpoint, messages))
                continue
            for _ in range(0 if dice < 0.17 else 2 if dice < 0.25 else 1):
                self._outbox = {endpoint: messages}
                super()._send()


class Cluster:
    """Two schedulers, three nodes of one executor, and a client, each with a faulty driver."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.drivers: dict[str, FaultyDriver] = {}
        for name in ("s0", "s1", "front", *NODES, *(f"{name}-e" for name in NODES)):
            self.drivers[name] = FaultyDriver(f"ipc://{folder}/{name}.sock", self.rng)
        schedulers = [self.drivers[name].address("scheduler") for name in ("s0", "s1")]
        for name, at in zip(("s0", "s1"), schedulers, strict=True):
            self.drivers[name].host("scheduler", Scheduler(at, self.rng, SCHEDULER))
        for name in NODES:
            self._host_node(name, schedulers)
        front = self.drivers["front"]
        self.recorder = Recorder()
        self.client = front.address("client")
        sink = front.host("sink", self.recorder)
        front.host("client", Client(self.client, sink, schedulers, CLIENT))

    def _host_node(self, name: NodeName, schedulers: list[Address]) -> None:
        node, own = self.drivers[name], self.drivers[f"{name}-e"]
        at = node.address("monitor")
        node.host("monitor", NodeMonitor(name, at, schedulers, config=MONITOR))
        executor, slots = own.address("executor"), [own.address(f"slot-{i}") for i in range(2)]
        own.host("executor", Executor(executor, name, at, slots, heartbeat_s=0.05))
        for number, slot in enumerate(slots):
            own.host(f"slot-{number}", SimulatedSlot(slot, executor, lambda _: None, 1.0))
            own.post(executor, SlotReady(slot))

    def start(self, number: int) -> StartJob:
        """Start a job of some tasks, some of which prefer nodes."""
        tasks = tuple(
            TaskSpec(
                task_id,
                payload_of(self.rng.choice((0.00001, 0.001, 0.005))),
                (self.rng.choice(NODES),) if self.rng.random() < 0.3 else (),
            )
            for task_id in range(self.rng.randint(1, 15))
        )
        job = StartJob(
            job_id=JobId(f"job{number}"),
            user="u",
            tasks=tasks,
            shared=b"common",
        )
        self.drivers["front"].post(self.client, job)
        return job

    def turn_until_over(self, count: int) -> None:
        """Turn all loops until so many jobs have ended."""

        def over() -> bool:
            for driver in self.drivers.values():
                driver.turn()
            return len(self.recorder.ended) == count

        until(over, f"the end of {count} jobs")

    def close(self) -> None:
        """Close all sockets."""
        for driver in self.drivers.values():
            driver.close()


@pytest.fixture
def cluster(run_dir: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of the seed that the test asks for."""
    made = Cluster(run_dir, request.param)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", range(3), indirect=True)
def test_each_task_commits_once_over_faulty_sockets(cluster: Cluster) -> None:
    """A quarter of all frames is lost, doubled or late; every job ends with all its results."""
    jobs = [cluster.start(number) for number in range(8)]
    cluster.turn_until_over(len(jobs))
    assert {JobFinished()} == set(cluster.recorder.ended.values())
    expected = {job.job_id: {task.task_id: 1 for task in job.tasks} for job in jobs}
    assert expected == cluster.recorder.completed
    assert sum(driver.faults for driver in cluster.drivers.values()) > 50


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [7], indirect=True)
def test_cancelled_jobs_leave_faulty_nodes(cluster: Cluster) -> None:
    """Whatever of the cancellation is lost, the next jobs find their slots."""
    for number in range(4):
        job = cluster.start(number)
        cluster.drivers["front"].post(cluster.client, CancelJob(job.job_id))
    later = [cluster.start(number) for number in range(4, 7)]
    cluster.turn_until_over(7)
    assert {JobFinished()} == {cluster.recorder.ended[job.job_id] for job in later}


def test_a_peer_that_does_not_read_delays_nobody(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not take is dropped beyond the bound, and counted; others get theirs."""
    monkeypatch.setattr(zmq_driver, "_HIGH_WATER_MARK", 5)
    slow, other, sender = (ZmqDriver(f"ipc://{run_dir}/{name}.sock") for name in ("a", "b", "c"))
    try:
        # larger than what the kernel buffers between the two, so that the bound is reached
        msg = GetNodes(Address("x" * 1_000_000))
        for _ in range(50):
            sender.post(slow.address("m"), msg)
            sender._take_posted()
            sender._send()
        assert 0 < sender.overflowed < 50
        sender.post(other.address("m"), GetNodes(Address("y#y")))
        sender._take_posted()
        sender._send()
        other._wait(10.0)
        assert 1 == other.undeliverable, "it came: there is no such machine"
    finally:
        for driver in (slow, other, sender):
            driver.close()
