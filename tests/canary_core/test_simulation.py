"""Programs in simulated time, with every fault: the result is always the sequential one."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from canary_faults import LIMIT_S, check_seed, same
from canary_programs import driver_of, make_ops, source
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from canary_core import Run, Value, run_sequentially, tree
from canary_core.errors import (
    ControllerLost,
    DriverFailed,
    ProgramCancelled,
    ProgramDiverged,
    TaskFailed,
    WorkersLost,
)
from canary_core.machines.controller import Settings
from canary_core.protocol.messages import Cancel, Drain, Move, Packet, Pieces
from canary_core.results import error_of
from machine_kit.addresses import Address, address
from machine_kit.machine import Envelope, Message
from minishark_lab.canary.cluster import CONTROLLER, SimulatedRun, spend
from minishark_lab.simulator.network import Network

SLOW_BLOCK = 500


def gradient(points: Any, w: Any) -> Any:
    spend(0.002)
    return points.sum(axis=0) * 1e-3 - w


def logistic(run: Run) -> Any:
    """Every kind of stage, in nested loops."""
    points = run.load(lambda index: np.random.default_rng([7, index]).random((30, 4)))
    w = run.single(np.zeros(4))
    state = run.state(lambda p: {"seen": p[0].copy()}, points)
    for _ in range(3):
        for _ in range(4):
            gradients = run.map(gradient, points, run.broadcast(w))
            w = run.map(lambda w, g: w + 0.1 * g, w, run.reduce(np.add, gradients))
            if run.signal(lambda w: bool(w.sum() > 1e9), w):
                break
        mixed = run.scatter(lambda s: {i: s["seen"] * i for i in range(3)}, state, partitions=3)
        sums = run.gather(sum, mixed)
        moved = run.broadcast(run.reduce(np.add, sums))
        run.update(lambda s, m: s.update(seen=s["seen"] * 0.9 + m), state, moved)
    return w, state, sums


def simulated(driver: Any, workers: int = 3, seed: int = 1, **options: Any) -> SimulatedRun:
    network, neighbours = options.pop("network", None), options.pop("neighbours", None)
    given_settings = {"partitions": 8, "workers": workers, "wait_s": 0.2, "silence_s": 2.0}
    return SimulatedRun(
        driver,
        Settings(**(given_settings | options)),
        workers=workers,
        seed=seed,
        network=network,
        checked=True,
        neighbours=neighbours,
    )


EXPECTED = run_sequentially(logistic, partitions=8)

# --- faults at random --------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_program_gives_the_sequential_result(rng: Random, workers: int) -> None:
    """Hypothesis makes the program; a failing one is shrunk."""
    driver = driver_of(make_ops(rng))
    run = SimulatedRun(
        driver,
        Settings(partitions=4, workers=workers, snapshot_every=3),
        workers=workers,
        source=source,
        checked=True,
    )
    assert same(run.result(LIMIT_S), run_sequentially(driver, partitions=4, source=source))


@pytest.mark.sample(6)
@pytest.mark.parametrize("first", range(0, 300, 50))
def test_programs_with_faults(first: int) -> None:
    """Loss, delay, duplication, moves, deaths, joins and leaves, of the controller too."""
    for seed in range(first, first + 50):
        check_seed(seed)


def test_a_sum_reaches_its_reduction_though_all_partitions_have_left_its_worker() -> None:
    """It waited there for that of a neighbour, which was made elsewhere."""
    check_seed(1189)


def test_older_snapshots_stay_until_that_of_an_epoch_has_its_copies() -> None:
    """Who held its only copies died before others had them: they had dropped those before."""
    check_seed(7635)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(1000, 11_000, SLOW_BLOCK))
def test_ten_thousand_programs_with_faults(first: int) -> None:
    """The same, at length."""
    for seed in range(first, first + SLOW_BLOCK):
        check_seed(seed)


class _Busy:
    """Nobody waits."""

    def await_data(self, worker: Address) -> bool:
        del worker
        return False

    def have_written(self) -> bool:
        return False


def test_data_for_workers_that_do_not_wait_share_a_message() -> None:
    """Those of all partitions in a round, instead of one after each task of a millisecond."""
    sent = []
    for neighbours in (None, _Busy):
        run, count = simulated(_exchanges, workers=2, neighbours=neighbours), [0]
        run.world.taps.append(functools.partial(_count_pieces, count))
        assert run_sequentially(_exchanges, partitions=8) == run.result(LIMIT_S)
        sent.append(count[0])
    assert sent[1] < sent[0] / 2


def _exchanges(run: Run) -> Value:
    data = run.load(int)
    for _ in range(20):
        data = run.gather(len, run.scatter(_everywhere, data))
        data = run.map(abs, data)
    return data


def _everywhere(part: int) -> list[int]:
    spend(0.001)
    return [part] * 8


def _count_pieces(
    count: list[int], to: Address, msg: Message, out: Sequence[Envelope], now: float
) -> None:
    del to, out, now
    if isinstance(msg, Packet):
        count[0] += sum(isinstance(body, Pieces) for body in msg.bodies)


@pytest.mark.slow
def test_no_worker_of_many_serves_all_others() -> None:
    """Of 256 workers, each takes and sends few messages an iteration: relays help the single."""
    run = simulated(_sums, workers=256, partitions=256, balancer="none")
    taken: dict[Address, int] = {}
    sent: dict[Address, int] = {}
    run.world.taps.append(functools.partial(_count_between_workers, taken, sent))
    assert run_sequentially(_sums, partitions=256) == run.result(LIMIT_S)
    assert len(taken) == 256
    # Broadcast, reduction and signal: 16 relays of 16 each. A star would take 255 of each.
    assert max(taken.values()) <= _SUMS * 40
    assert max(sent.values()) <= _SUMS * 70


_SUMS = 10


@pytest.mark.parametrize("size", range(3, 20))
def test_relays_change_no_bit(size: int) -> None:
    """Of few partitions, too, whatever their number; and while partitions move."""
    with patch.multiple(tree, STAR_MAX=2, FAN=2):
        run = simulated(_sums, partitions=size)
        for at_s in (0.001, 0.002, 0.003):
            move = Move(size, round(1000 * at_s) % size, max(run.workers))
            run.world.call(at_s, functools.partial(run.world.post, CONTROLLER, move))
        assert run_sequentially(_sums, partitions=size) == run.result(LIMIT_S)


def _sums(run: Run) -> Value:
    total, data = run.single(0.1), run.load(float)
    for _ in range(_SUMS):
        total = run.reduce(_mean, run.map(_sum_of, data, run.broadcast(total)))
        if run.signal(_is_large, total):
            break
    return total


def _mean(a: float, b: float) -> float:
    return (a + b) / 2.1


def _sum_of(a: float, b: float) -> float:
    return a + b


def _is_large(total: float) -> bool:
    return total > 1e9


def _count_between_workers(
    taken: dict[Address, int],
    sent: dict[Address, int],
    to: Address,
    msg: Message,
    out: Sequence[Envelope],
    _: float,
) -> None:
    """Packets that bring something, by receiver and by sender."""
    if to == CONTROLLER or to.endswith("#host"):
        return
    if isinstance(msg, Packet) and msg.seq and msg.sender != CONTROLLER:
        taken[to] = taken.get(to, 0) + 1
    for each in out:
        if isinstance(each.msg, Packet) and each.msg.seq and each.to != CONTROLLER:
            sent[to] = sent.get(to, 0) + 1


def test_the_same_seed_gives_the_same_run() -> None:
    """To the event."""
    runs = [check_seed(17).world for _ in range(2)]
    assert runs[0].events == runs[1].events
    assert runs[0].now == runs[1].now


# --- one fault at each place -------------------------------------------------------------------


def _count(act: Callable[[SimulatedRun], None], at: int, **options: Any) -> SimulatedRun:
    """Run with something happening after the so manieth message."""
    run = simulated(logistic, **options)
    counter = itertools.count()

    def tap(*_: Any) -> None:
        if next(counter) == at:
            run.world.call(run.world.now, lambda: act(run))

    run.world.taps.append(tap)
    return run


def _kill_one(run: SimulatedRun) -> None:
    worker = max(run.workers)
    run.kill_worker(worker)
    run.notice_death(worker)


def _kill_first(run: SimulatedRun) -> None:
    """The one that has the single partition."""
    worker = min(run.workers)
    run.kill_worker(worker)
    run.notice_death(worker)


def _replace_controller(run: SimulatedRun) -> None:
    run.kill_controller()
    run.world.call(run.world.now + 0.05, run.start_controller)


def _move_single(run: SimulatedRun) -> None:
    run.world.post(CONTROLLER, Move(1, 0, max(run.workers)))


def _move_other(run: SimulatedRun) -> None:
    run.world.post(CONTROLLER, Move(8, 0, sorted(run.workers)[1]))
    run.world.post(CONTROLLER, Move(3, 2, min(run.workers)))


def _leave(run: SimulatedRun) -> None:
    run.leave(min(run.workers))


ACTS = (_kill_one, _kill_first, _replace_controller, _move_single, _move_other, _leave)


@pytest.mark.sample(6)
@pytest.mark.parametrize("act", ACTS)
def test_a_fault_after_some_messages(act: Callable[[SimulatedRun], None]) -> None:
    """At a few places; the slow test does it at all."""
    for at in range(5, 600, 97):
        assert same(_count(act, at, snapshot_every=10).result(LIMIT_S), EXPECTED), at


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("act", ACTS)
def test_a_fault_after_any_message(act: Callable[[SimulatedRun], None]) -> None:
    """After each message of the run in turn."""
    whole = simulated(logistic, snapshot_every=10)
    whole.result(LIMIT_S)
    for at in range(whole.world.events):
        assert same(_count(act, at, snapshot_every=10).result(LIMIT_S), EXPECTED), at


# --- what each fault costs ---------------------------------------------------------------------


@pytest.mark.slow
def test_a_death_costs_no_more_than_what_came_after_the_snapshot() -> None:
    """The others take its partitions and go on from the last stage that is stored."""
    expected = run_sequentially(_busy, partitions=8)
    undisturbed = simulated(_busy, snapshot_every=10)
    undisturbed.result(LIMIT_S)
    run = simulated(_busy, snapshot_every=10)
    died_s = undisturbed.world.now / 2
    run.world.call(died_s, lambda: _kill_one(run))
    assert expected == run.result(LIMIT_S)
    assert run.progress is not None
    assert 2 == run.progress.epoch
    # One of two workers does the other half alone: from the start it would take twice as long.
    assert run.world.now - died_s < 1.3 * undisturbed.world.now


def test_the_death_of_each_first_worker_in_turn_does_not_cost_the_snapshot() -> None:
    """A worker that comes after the snapshot gets a copy of it before the next death."""
    first = [address(f"w{number}", "worker") for number in range(2)]
    run = simulated(_busy, workers=2, snapshot_every=200, report_s=0.01)  # one in all
    run.world.run(100.0, done=lambda: run.progress is not None and run.progress.snapshot == 200)
    begun_s = run.world.now
    for number, worker in enumerate(first):
        run.world.call(begun_s + 0.1 * number, run.add_worker)
        run.world.call(begun_s + 0.2 * number + 0.05, lambda worker=worker: _die(run, worker))
    run.world.run(begun_s + 0.3)
    assert run.progress is not None
    assert 3 == run.progress.epoch
    assert 200 == run.progress.snapshot
    assert run_sequentially(_busy, partitions=8) == run.result(LIMIT_S)


def _die(run: SimulatedRun, worker: Address) -> None:
    run.kill_worker(worker)
    run.notice_death(worker)


def test_without_snapshots_a_death_restarts_the_program() -> None:
    run = simulated(logistic)
    run.world.call(0.05, lambda: _kill_one(run))
    assert same(run.result(LIMIT_S), EXPECTED)


def test_snapshots_by_time_become_complete() -> None:
    run = simulated(_busy, snapshot_s=0.1, report_s=0.02)
    seen = set()
    run.world.taps.append(lambda *_: seen.add(run.progress.snapshot if run.progress else 0))
    assert run_sequentially(_busy, partitions=8) == run.result(LIMIT_S)
    assert len(seen) > 1


def test_late_workers_get_partitions() -> None:
    """The program starts with those that came."""
    run = simulated(logistic, workers=1, report_s=0.01)
    run.world.call(0.05, run.add_worker)
    assert same(run.result(LIMIT_S), EXPECTED)
    assert run.progress is not None
    assert run.progress.moves > 0
    assert 1 == run.progress.epoch  # nobody went back


def _busy(run: Run) -> Any:
    points = run.load(int)
    total = run.single(0)
    for _ in range(100):
        partial = run.map(lambda p, t: (spend(0.002), p + t)[1], points, run.broadcast(total))
        total = run.reduce(lambda a, b: (a + b) % 1009, partial)
    return total


def test_a_straggler_loses_partitions_and_the_program_gains() -> None:
    """Its tasks take three times as long."""
    times = {}
    for balancer in ("none", "straggler"):
        run = simulated(_busy, workers=0, balancer=balancer, report_s=0.02)
        run.add_worker(slowness=3.0)
        run.add_worker()
        assert run_sequentially(_busy, partitions=8) == run.result(LIMIT_S)
        times[balancer] = run.world.now
    assert times["straggler"] < 0.75 * times["none"]


def test_a_worker_that_leaves_costs_no_rollback() -> None:
    run = simulated(_busy)
    run.world.call(0.03, lambda: run.leave(min(run.workers)))
    assert run_sequentially(_busy, partitions=8) == run.result(LIMIT_S)
    assert run.progress is not None
    assert 1 == run.progress.epoch
    assert [None] == list(run.ended.values())


def test_messages_of_the_controller_do_not_grow_with_tasks() -> None:
    """Twenty times the stages in the same time: about as many messages."""

    def tasks(count: int, seconds: float) -> Any:
        def driver(run: Run) -> Any:
            v = run.load(int)
            for _ in range(count):
                v = run.map(lambda x: (spend(seconds), x + 1)[1], v)
            return v

        return driver

    counts = []
    for count in (100, 2000):
        run = simulated(tasks(count, 0.4 / count), report_s=0.05)
        sent = [0]

        def tap(to: Any, msg: Any, out: Any, _: float, sent: list[int] = sent) -> None:
            if to == CONTROLLER:
                sent[0] += sum(isinstance(each, Packet) for each in (msg, *(e.msg for e in out)))

        run.world.taps.append(tap)
        run.result(LIMIT_S)
        counts.append(sent[0])
    assert counts[1] < 1.5 * counts[0] + 10


# --- errors ------------------------------------------------------------------------------------


def _boom(x: int) -> int:
    if x == 5:
        raise ValueError("five")
    return x


def test_an_exception_in_a_task_comes_back_with_its_place() -> None:
    run = simulated(lambda r: r.map(_boom, r.load(int)))
    with pytest.raises(
        TaskFailed, match=r"map\(_boom\), stage 1, partition 5: ValueError: five"
    ) as e:
        run.result(LIMIT_S)
    assert isinstance(e.value.__cause__, ValueError)
    assert 'raise ValueError("five")' in e.value.traceback


class _StubbornError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not me")


def _stubborn(x: int) -> int:
    raise _StubbornError(x)


@pytest.mark.parametrize(
    "driver",
    [
        lambda r: r.reduce(lambda a, b: 1 // 0, r.load(int)),
        lambda r: r.signal(lambda v: 1 // 0, r.single(1)),
        lambda r: r.scatter(lambda v: {99: 1}, r.load(int)),
        lambda r: r.scatter(lambda v: {0: 1}, r.load(int), along=r.routes(lambda n: [n])),
        lambda r: r.state(lambda v: 1 // 0, r.load(int)),
        lambda r: r.load(lambda index: 1 // 0),
        lambda r: r.table("nowhere"),
        lambda r: r.map(_stubborn, r.load(int)),
        lambda r: r.map(lambda v: sys.exit(3), r.load(int)),
        lambda r: r.single(lambda: 0) and r.map(lambda v: (_ for _ in ()), r.load(int)),
    ],
)
def test_every_kind_of_task_may_fail(driver: Any) -> None:
    """None hangs or escapes, whatever is raised, returned or can't be pickled."""
    with pytest.raises((TaskFailed, DriverFailed)):
        simulated(driver).result(LIMIT_S)


def _lock(_: int) -> Any:
    return threading.Lock()


class _OneWay:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


@pytest.mark.parametrize(
    "driver",
    [
        lambda r: r.broadcast(r.map(lambda _: _OneWay(), r.single(1))),
        lambda r: r.reduce(lambda a, b: a, r.map(_lock, r.load(int))),
        lambda r: r.scatter(lambda x: [x] * 8, r.map(_lock, r.load(int))),
        lambda r: r.broadcast(r.map(_lock, r.single(1))),
        lambda r: r.signal(_lock, r.single(1)),
        lambda r: [r.map(_lock, r.load(int)), *(r.single(n) for n in range(9))],
    ],
)
def test_a_value_that_cannot_be_pickled_is_a_failed_task(driver: Any) -> None:
    """Or unpickled, where it has to travel, be stored, or come back."""
    with pytest.raises(TaskFailed, match="pickle"):
        simulated(driver, snapshot_every=3).result(LIMIT_S)


def test_a_move_of_what_cannot_be_pickled_fails_the_program() -> None:
    """A partition keeps it, which is fine until it has to move."""

    def driver(r: Run) -> Any:
        v = r.map(_lock, r.load(int))
        for _ in range(100):
            w = r.map(lambda x: spend(0.01), v)
        return w

    run = simulated(driver, balancer="none")
    run.world.call(0.1, lambda: _move_other(run))
    with pytest.raises(TaskFailed, match="pickle"):
        run.result(LIMIT_S)


def test_an_exception_in_the_driver_comes_back() -> None:
    def driver(r: Run) -> Any:
        r.map(abs, r.load(int))
        raise LookupError("lost")

    with pytest.raises(DriverFailed, match="LookupError: lost") as caught:
        simulated(driver).result(LIMIT_S)
    assert isinstance(caught.value.__cause__, LookupError)
    assert 2 == caught.value.stage


def test_misuse_of_run_is_an_error_of_the_driver() -> None:
    with pytest.raises(DriverFailed, match="broadcast the single first"):
        simulated(lambda r: r.map(max, r.load(int), r.single(1))).result(LIMIT_S)


def test_no_worker_is_an_error() -> None:
    with pytest.raises(WorkersLost, match="no worker has come within 3 s"):
        simulated(logistic, workers=0, patience_s=3.0).result(LIMIT_S)


def test_the_death_of_all_workers_is_an_error() -> None:
    run = simulated(logistic, patience_s=3.0)
    for worker in list(run.workers):
        run.world.call(0.05, lambda worker=worker: run.kill_worker(worker))
    with pytest.raises(WorkersLost):
        run.result(LIMIT_S)


def test_a_program_can_be_cancelled() -> None:
    run = simulated(logistic)
    run.world.call(0.02, lambda: run.world.post(CONTROLLER, Cancel()))
    with pytest.raises(ProgramCancelled):
        run.result(LIMIT_S)
    run.world.run(run.world.now + 1)
    assert 3 == len(run.ended)


@pytest.mark.parametrize("at_s", [0.0, 0.01, 0.05])
def test_workers_end_when_the_controller_stays_dead(at_s: float) -> None:
    """With a typed error, soon."""
    run = simulated(logistic, silence_s=1.0)
    run.world.call(0.005 + at_s, run.kill_controller)
    run.world.run(5.0)
    assert 3 == len(run.ended)
    for failure in run.ended.values():
        assert failure is not None
        assert isinstance(error_of(failure), ControllerLost)


def test_a_worker_that_never_hears_of_a_controller_ends() -> None:
    """It does not hold its slot for ever."""
    run = simulated(logistic)
    run.kill_controller()
    run.world.run(50.0)
    assert {} == run.ended
    run.world.run(70.0)
    assert 3 == len(run.ended)
    assert all(each is not None and each.error == "ControllerLost" for each in run.ended.values())


def test_a_worker_that_waits_for_others_does_not_end() -> None:
    """The controller acknowledges what it says, though the program has not begun."""
    two = Settings(partitions=8, workers=2, wait_s=90.0, patience_s=200.0)
    run = SimulatedRun(logistic, two, workers=1, checked=True)
    run.world.run(80.0)
    assert {} == run.ended
    run.add_worker()
    assert same(run.result(LIMIT_S), EXPECTED)


def test_the_last_worker_cannot_be_drained() -> None:
    """It goes on."""
    run = simulated(logistic, workers=1)
    run.world.post(CONTROLLER, Drain(address("w0", "worker")), 0.01)
    assert same(run.result(LIMIT_S), EXPECTED)


# --- what is held ------------------------------------------------------------------------------


class _Counted:
    """An object that knows how many there are, copies included."""

    alive = most = 0

    def __init__(self, number: int) -> None:
        self.number = number
        _Counted.alive += 1
        _Counted.most = max(_Counted.most, _Counted.alive)

    def __del__(self) -> None:
        _Counted.alive -= 1

    def __reduce__(self) -> Any:
        return _Counted, (self.number,)


def test_values_are_freed_though_something_waits_at_all_times() -> None:
    """Partitions that hear from their neighbours alone never have all that they could read."""

    def driver(run: Run) -> Any:
        numbers = run.load(int)
        to_next = run.routes(lambda index: [(index + 1) % 8])
        values = run.map(_Counted, numbers)
        for _ in range(100):
            sent = run.scatter(
                lambda index, v: {(index + 1) % 8: v}, numbers, values, along=to_next
            )
            values = run.gather(lambda pieces: _Counted(pieces[0].number + 1), sent)
        return run.map(lambda v: v.number, values)

    gc.collect()
    _Counted.alive = _Counted.most = 0
    assert [100 + (index - 100) % 8 for index in range(8)] == simulated(driver, workers=2).result(
        LIMIT_S
    )
    assert _Counted.most < 200


# --- drivers that are not deterministic --------------------------------------------------------


def _diverging(how: str) -> Any:
    copies = itertools.count()

    def driver(run: Run) -> Any:
        mine = next(copies)
        v = run.load(int)
        v = run.map(lambda x: x + 1, v)
        total = run.reduce(lambda a, b: a + b, v)
        if how == "function" and mine % 2:
            v = run.map(lambda x: x + 2, v)
        elif how == "function":
            v = run.map(lambda x: x + 3, v)
        if how == "closure":
            v = run.map(lambda x: x + mine, v)
        if how == "routes":
            run.scatter(lambda x: {}, v, along=run.routes(lambda index: [mine % 2]))
        if how == "constant":
            total = run.map(max, total, run.single(mine))
        if how == "signal instead" and mine % 2:
            run.signal(bool, total)
        if how == "more stages":
            for _ in range(mine * 100):
                v = run.map(abs, v)
        if how == "returns early" and mine % 2:
            return None
        if how == "what it returns":
            return mine
        for _ in range(5):
            w = run.broadcast(total)
            total = run.reduce(lambda a, b: a + b, run.map(max, v, w))
            run.signal(bool, total)
        return v, total

    return driver


@pytest.mark.parametrize(
    ("how", "stage"),
    [
        ("function", 3),
        ("closure", 3),
        ("routes", 3),
        ("constant", 3),
        ("signal instead", 3),
        ("more stages", 3),
        ("returns early", 3),
        ("what it returns", 3),
    ],
)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_driver_that_is_not_deterministic_is_found_out(
    how: str, stage: int, workers: int
) -> None:
    """And the first stage that differs is named, with what each copy called there."""
    run = simulated(_diverging(how), workers=workers)
    with pytest.raises(ProgramDiverged) as caught:
        run.result(10.0)
    assert stage == caught.value.stage
    assert workers == len(caught.value.calls)
    told = str(caught.value)
    assert "no clock, no random numbers" in told
    assert ("one called" if len(set(caught.value.calls.values())) > 1 else "all called") in told
    assert "#worker" not in told  # addresses say nothing to users


def _spent(seconds: float, x: int) -> int:
    spend(seconds)
    return x


def _of_singles(how: str) -> Any:
    copies = itertools.count()

    def driver(run: Run) -> Any:
        mine = next(copies)
        w = run.single(0)
        for _ in range(30 + 7 * mine if how == "rounds" else 30):
            w = run.map(lambda a: a + 1, w)
        if how == "last stage" and mine % 2:
            w = run.map(lambda a: -a, w)
        if how == "last function":
            w = run.map(functools.partial(max, mine), w)
        if how == "never ends" and mine % 2:
            while True:
                w = run.map(lambda a: a + 1, w)
        if how == "waits" and mine % 2:
            run.signal(bool, w)
        return (w, mine) if how == "what it returns" else w

    return driver


@pytest.mark.parametrize(
    "how", ["rounds", "last stage", "last function", "never ends", "waits", "what it returns"]
)
@pytest.mark.parametrize("workers", [2, 3])
def test_a_driver_of_singles_is_found_out_too(how: str, workers: int) -> None:
    """Its stages run on one worker, so only the ends of the other copies tell."""
    with pytest.raises(ProgramDiverged) as caught:
        simulated(_of_singles(how), workers=workers).result(10.0)
    assert 31 == caught.value.stage


_TEXT = "same"


@pytest.mark.parametrize(
    "equal",
    [
        ({0, 8}, {8, 0}),
        (frozenset({(0, "x"), (8, "x")}), frozenset({(8, "x"), (0, "x")})),
        ([_TEXT, _TEXT], [_TEXT, "".join([*_TEXT])]),
        ({"k": [1.5, None, np.arange(3)]}, {"k": [1.5, None, np.arange(3)]}),
    ],
    ids=["set", "frozenset", "one object", "array"],
)
def test_equal_values_are_no_divergence(equal: tuple[Any, Any]) -> None:
    """Whatever order a copy's sets have, and whichever of its objects are the same one."""
    copies = itertools.count()

    def driver(run: Run) -> Any:
        mine = equal[next(copies) % 2]
        return run.single(mine), mine

    simulated(driver, workers=2).result(10.0)


def test_a_driver_without_communication_is_found_out_too() -> None:
    """By the controller's heartbeat: no message between workers could tell."""
    copies = itertools.count()

    def driver(run: Run) -> Any:
        mine = next(copies)
        v = run.load(int)
        for turn in range(10_000):
            spent = functools.partial(_spent, 0.002 if turn + mine == 300 else 0.001)
            v = run.map(spent, v)
        return v

    with pytest.raises(ProgramDiverged):
        simulated(driver, workers=2).result(30.0)


def test_a_copy_that_never_ends_while_another_has_ended_is_found_out() -> None:
    """What the one that ended called last stays known at the other one."""
    copies = itertools.count()

    def driver(run: Run) -> Any:
        mine = next(copies)
        v = run.load(int)
        while mine % 2:
            v = run.map(functools.partial(_spent, 0.0001), v)
        return v

    with pytest.raises(ProgramDiverged) as caught:
        simulated(driver, workers=2).result(30.0)
    assert 1 == caught.value.stage


def test_faults_of_the_network_alone() -> None:
    """Half of all packets are lost, and those that arrive come late, twice, and out of order."""
    network = Network(delay_s=0.001, jitter_s=0.05, loss=0.5, duplication=0.3)
    run = simulated(logistic, network=network, silence_s=20.0)
    assert same(run.result(LIMIT_S), EXPECTED)
