"""Random faults for programs in simulation, and the check that nothing is wrong or hangs."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from canary_programs import driver_of, make_ops, source

from canary_core import tree
from canary_core.machines.controller import Settings
from canary_core.protocol.messages import Drain, Move
from canary_core.sequential import run_sequentially
from machine_kit.addresses import Address
from minishark_lab.canary.cluster import CONTROLLER, SimulatedRun
from minishark_lab.simulator.network import Network

LIMIT_S = 120.0  # simulated; fault-free programs take less than one


class GuessingNeighbours:
    """Tells a worker anything of the others: that must change nothing but how long it takes."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def await_data(self, worker: Address) -> bool:
        del worker
        return self._rng.random() < 0.5

    def have_written(self) -> bool:
        return self._rng.random() < 0.5


def settings_of(rng: Random, partitions: int, workers: int) -> Settings:
    return Settings(
        partitions=partitions,
        workers=workers,
        wait_s=0.2,
        report_s=rng.choice([0.05, 0.1]),
        silence_s=3.0,
        patience_s=20.0,
        snapshot_every=rng.choice([None, 1, 2, 3, 7, 20]),
        snapshot_s=rng.choice([None, None, 0.1]),
        copies=rng.choice([1, 2, 2, 3]),
        balancer=rng.choice(["none", "straggler", "even"]),
    )


def network_of(rng: Random, harshness: float) -> Network:
    return Network(
        delay_s=rng.choice([0.0001, 0.001]),
        jitter_s=rng.choice([0.0, 0.002, 0.03]),
        loss=rng.choice([0.0, 0.05, 0.2]) * harshness,
        duplication=rng.choice([0.0, 0.1]) * harshness,
    )


def inject(run: SimulatedRun, rng: Random, until_s: float, faults: int) -> None:
    """Plan faults: moves, deaths, joins, leaves, of the controller too."""
    for _ in range(faults):
        at_s = rng.random() * until_s
        kind = rng.choice(["move", "move", "move", "kill", "join", "leave", "drain", "controller"])
        number = rng.randrange(1000)
        run.world.call(at_s, lambda kind=kind, number=number: _act(run, kind, number))


def _act(run: SimulatedRun, kind: str, number: int) -> None:
    names = sorted(run.workers)
    match kind:
        case "move" if names:
            size = [1, 3, 4, 5, 8][number % 5]
            move = Move(size, number % size, names[(number // 7) % len(names)])
            run.world.post(CONTROLLER, move)
        case "kill" if names:
            worker = names[number % len(names)]
            run.kill_worker(worker)
            if number % 3:  # else the controller finds out by its silence
                run.notice_death(worker)
            if len(names) == 1:
                run.add_worker()
        case "join":
            run.add_worker(slowness=1 + number % 3)
        case "leave" if names:
            run.leave(names[number % len(names)])
        case "drain" if names:
            run.world.post(CONTROLLER, Drain(names[number % len(names)]))
        case "controller":
            run.kill_controller()
            run.world.call(run.world.now + (number % 4) * 0.1, run.start_controller)


def same(left: Any, right: Any) -> bool:
    """Equal bit for bit (pickles differ by shared references only, which a second pass removes)."""
    return repr_of(left) == repr_of(right)


def repr_of(value: Any) -> str:
    match value:
        case dict():
            return "{" + ",".join(f"{k}:{repr_of(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            return type(value).__name__ + "(" + ",".join(map(repr_of, value)) + ")"
    if hasattr(value, "tobytes"):
        return f"{value.dtype}{value.tobytes().hex()}"
    return repr(value)


def check_seed(seed: int) -> SimulatedRun:
    """Make a program and faults of a seed; the result must be the sequential one."""
    rng = Random(seed)
    ops = make_ops(rng)
    partitions = rng.choice([1, 2, 4, 4, 8])
    workers = rng.randint(1, 4)
    expected = run_sequentially(driver_of(ops), partitions=partitions, source=source)
    run = SimulatedRun(
        driver_of(ops, task_s=rng.choice([0.0, 0.0001, 0.002])),
        settings_of(rng, partitions, workers),
        workers=workers,
        seed=seed,
        network=network_of(rng, rng.choice([0, 1, 1])),
        source=source,
        wire=rng.random() < 0.1,
        checked=rng.random() < 0.3,
        neighbours=rng.choice([None, partial(GuessingNeighbours, Random(seed))]),
    )
    inject(run, rng, rng.choice([0.05, 0.3, 2.0]), rng.choice([0, 1, 2, 4, 8]))
    star, fan = rng.choice([(tree.STAR_MAX, tree.FAN), (2, 2)])  # relays for few partitions, too
    with patch.multiple(tree, STAR_MAX=star, FAN=fan):
        result = run.result(LIMIT_S)
    assert same(result, expected), f"seed {seed}: {result} instead of {expected}"
    return run
