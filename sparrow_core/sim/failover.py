"""Interruption of a job by the death of its scheduler, on production machines."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec import Struct

from sparrow_core.protocol.ids import Address, JobId
from sparrow_core.protocol.machine import Envelope
from sparrow_core.protocol.messages import Message, RunTasks, StartJob
from sparrow_core.protocol.types import TaskSpec
from sparrow_core.sim.cluster import SimulatedCluster, payload_of
from sparrow_core.sim.network import Network
from sparrow_core.sim.workload import Arrival, run_jobs
from sparrow_core.sim.world import World

_TASK_S = 0.2


class FailoverTimes(Struct, frozen=True):
    """Times from a scheduler's death to its detection, and until a task runs again."""

    found_s: float
    again_s: float


def simulated_failover(nodes: int, slots: int, seed: int) -> FailoverTimes:
    """Kill one of two schedulers in the middle of a job."""
    world = World(seed, Network())
    cluster = SimulatedCluster(world, nodes=nodes, slots=slots, schedulers=2)
    killed_at_s = 1.3 + Random(seed).uniform(0, 0.1)
    world.call(killed_at_s, lambda: world.kill("s1"))
    again_s: list[float] = []

    def tap(to: Address, msg: Message, out: Sequence[Envelope], now: float) -> None:
        del to, out
        if isinstance(msg, RunTasks) and msg.job_id == "job~1":
            again_s.append(now)

    world.taps.append(tap)
    specs = tuple(TaskSpec(number, payload_of(_TASK_S)) for number in range(5 * nodes * slots))
    run_jobs(cluster, [Arrival(1.0, StartJob(job_id=JobId("job"), user="user", tasks=specs))])
    ((found_s, _),) = cluster.recorder.silences
    return FailoverTimes(found_s - killed_at_s, again_s[0] - killed_at_s)
