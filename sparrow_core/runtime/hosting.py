"""Hosts schedulers, and executors with the threads of their slots, on a driver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from machine_kit.addresses import Address
from machine_kit.local_driver import LocalDriver
from sparrow_core.machines.executor import Executor
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.protocol.ids import NodeName
from sparrow_core.runtime.runner import SlotThread, load_factory
from sparrow_core.runtime.specs import ExecutorGroup


def host_scheduler(driver: LocalDriver, name: str, seed: int | None, release: str = "") -> None:
    """Host a scheduler; without a seed, its placement differs from run to run."""
    rng = Random(f"{seed}/{name}") if seed is not None else Random()
    config = SchedulerConfig(release=release)
    driver.host(name, Scheduler(driver.address(name), rng, config))


def host_executor(
    driver: LocalDriver,
    name: str,
    node: NodeName,
    node_monitor: Address,
    group: ExecutorGroup,
    on_broken: Callable[[str], None],
    *,
    on_crash: Callable[[], object] = lambda: None,
    slot_prefix: str = "",
) -> list[SlotThread]:
    """Host an executor and its slots, whose threads start; for callbacks see `SlotThread`.

    Raises:
        RunnerError: The runner's factory could not be loaded.
    """
    factory = load_factory(group.runner)
    at = driver.address(name)
    slots = [f"{slot_prefix}slot-{number}" for number in range(group.slots)]
    addresses = tuple(map(driver.address, slots))
    machine = Executor(
        at, node, node_monitor, addresses, pid=os.getpid(), framework=group.framework
    )
    driver.host(name, machine)
    threads = []
    for number, (slot, address) in enumerate(zip(slots, addresses, strict=True)):
        make = partial(factory, {**group.runner_config, "executor": name}, number)
        threads.append(SlotThread(address, at, make, driver.post, on_broken, on_crash))
        driver.host(slot, threads[-1])
    return threads


def end_slots(slots: Sequence[SlotThread], timeout_s: float) -> None:
    """Stop all slots, and wait at most so long for their runners."""
    for slot in slots:
        slot.stop()
    deadline = time.monotonic() + timeout_s
    for slot in slots:
        slot.join(max(0.0, deadline - time.monotonic()))
