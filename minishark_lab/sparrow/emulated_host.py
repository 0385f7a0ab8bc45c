"""A process of an emulated cluster: many nodes, or schedulers, behind one ZeroMQ driver.

Run as `python -m minishark_lab.sparrow.emulated_host` with settings on stdin; it exits at end of
file. All machines are the production ones; only slots sleep instead of running tasks.
"""

from __future__ import annotations

import sys
from random import Random

import msgspec

from machine_kit.addresses import Address, name_of
from machine_kit.local_driver import LocalDriver
from minishark_lab.simulator.cluster import SimulatedSlot
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.messages import SlotReady
from sparrow_core.runtime.transport.observe import observed
from sparrow_core.runtime.transport.process import calm_collector, run_until_stdin_ends
from sparrow_core.runtime.transport.zmq_driver import ZmqDriver

# Nothing fails, and hundreds of nodes share few cores: late heartbeats must not count.
_PATIENCE_S = 60.0


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the process."""

    name: str
    folder: str  # of the sockets of all
    nodes: tuple[str, ...] = ()  # names of its nodes, each with `slots` slots
    slots: int
    own_schedulers: tuple[str, ...] = ()  # names of its schedulers
    schedulers: tuple[str, ...]  # addresses of all
    heartbeat_s: float
    seed: int
    audit_dir: str | None


def host_node(
    driver: LocalDriver, name: NodeName, slots: int, schedulers: tuple[Address, ...],
    config: NodeMonitorConfig,
) -> None:  # fmt: skip
    monitor = driver.address(f"monitor-{name}")
    driver.host(f"monitor-{name}", NodeMonitor(name, monitor, schedulers, config=config))
    at = driver.address(f"{name}-e0")
    own = [driver.address(f"{name}-slot-{slot}") for slot in range(slots)]
    driver.host(name_of(at), Executor(at, name, monitor, own, heartbeat_s=config.heartbeat_s))
    for slot in own:
        driver.host(name_of(slot), SimulatedSlot(slot, at, lambda _: None, 1.0, name))
        driver.post(at, SlotReady(slot))


def run_host(settings: HostSettings) -> None:
    driver = ZmqDriver(f"ipc://{settings.folder}/{settings.name}.sock")
    schedulers = tuple(map(Address, settings.schedulers))
    for name in settings.own_schedulers:
        config = SchedulerConfig(
            node_timeout_s=_PATIENCE_S, lease_s=_PATIENCE_S, grace_s=_PATIENCE_S
        )
        rng = Random(f"{settings.seed} {name}")  # else all would choose the same nodes
        driver.host(name, Scheduler(driver.address(name), rng, config))
    limits = NodeMonitorConfig(
        heartbeat_s=settings.heartbeat_s, ask_timeout_s=_PATIENCE_S,
        grace_s=_PATIENCE_S, executor_timeout_s=_PATIENCE_S,
    )  # fmt: skip
    for node in settings.nodes:
        host_node(driver, NodeName(node), settings.slots, schedulers, limits)
    with observed(driver, settings.name, settings.audit_dir, metrics=False):
        run_until_stdin_ends(driver)
    driver.close()


def main() -> None:
    calm_collector()
    run_host(msgspec.json.decode(sys.stdin.buffer.readline(), type=HostSettings))


if __name__ == "__main__":
    main()
