"""The pure parts: tree, digests, values, policies, the partition map's users."""

from __future__ import annotations

import functools
import subprocess
import sys
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canary_core import stages, values
from canary_core.policy.balance import BALANCERS, WorkerLoad, even, straggler
from canary_core.policy.placement import place, reassign
from canary_core.stages import Digester, Stage
from canary_core.tree import (
    FAN,
    Node,
    above,
    below,
    block_of,
    combine,
    first_block,
    middle,
    share_of,
)
from machine_kit.addresses import Address

# --- the tree ----------------------------------------------------------------------------------


@given(st.integers(2, 10_000), st.integers(0, 10_000))
def test_a_node_splits_at_the_greatest_power_of_two(width: int, low: int) -> None:
    left = middle(low, low + width) - low
    assert left < width <= 2 * left
    assert left & (left - 1) == 0


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_the_result_does_not_depend_on_who_combines_what(size: int, rng: Any) -> None:
    """Leaves combined in groups first, in any partition into groups, give the same expression."""
    owners = [rng.randrange(4) for _ in range(size)]

    def tree(pieces: dict[Node, Any]) -> list[tuple[Node, Any]]:
        return combine(lambda a, b: (a, b), pieces, 0, size)[0]

    nodes: dict[Node, Any] = {}
    for owner in rng.sample(range(4), 4):
        nodes.update(tree({(i, i + 1): i for i in range(size) if owners[i] == owner}))
    whole = tree({(i, i + 1): i for i in range(size)})
    assert whole == tree(nodes)
    assert [(0, size)] == [node for node, _ in whole]


@given(st.integers(129, 5000))
def test_relays_combine_what_the_whole_tree_would(size: int) -> None:
    """Each sends the node that is its block, of what it is sent, which is its block as well."""
    sent: dict[int | None, dict[Node, Any]] = {}
    for index in range(size):
        low, high = first_block(index, size)
        assert low <= index < high <= low + FAN
        sent.setdefault(low, {})[index, index + 1] = index
    for relay in sorted(sent, key=lambda each: block_of(each or 0, size)[0], reverse=True):
        assert relay is not None
        whole = combine(lambda a, b: (a, b), sent[relay], *block_of(relay, size))[0]
        assert [block_of(relay, size)] == [node for node, _ in whole]
        sent.setdefault(above(relay, size), {}).update(whole)
    leaves = {(index, index + 1): index for index in range(size)}
    whole = combine(lambda a, b: (a, b), sent[None], 0, size)[0]
    assert combine(lambda a, b: (a, b), leaves, 0, size)[0] == whole


@given(st.integers(1, 5000))
def test_a_broadcast_goes_the_way_of_a_reduction_back(size: int) -> None:
    """All partitions are reached once, and nobody sends to many."""
    reached = list(below(None, size))
    for index in reached:
        reached += below(index, size)
        assert all(index == above(each, size) for each in below(index, size))
        assert len(below(index, size)) <= 3 * FAN
    assert list(range(size)) == sorted(reached)
    assert len(below(None, size)) <= FAN


def test_few_are_told_directly() -> None:
    assert 1 == share_of(128)
    assert 16 == share_of(256)


# --- digests -----------------------------------------------------------------------------------


def _stage(fn: Any) -> Stage:
    return Stage(index=0, kind=stages.MAP, fn=fn, operands=(1, 2), size=4, target=4)


def _digest(fn: Any) -> int:
    return Digester().fold(_stage(fn))


def _scaled(by: Any) -> Any:
    return lambda x: x * by


def test_functions_with_the_same_code_and_constants_agree() -> None:
    assert _digest(_scaled(3)) == _digest(_scaled(3))
    assert _digest(functools.partial(max, 1, key=abs)) == _digest(
        functools.partial(max, 1, key=abs)
    )
    assert _digest(np.add) == _digest(np.add)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (_scaled(3), _scaled(4)),
        (_scaled((1, 0.1)), _scaled((1, 0.2))),
        (_scaled("a"), _scaled("b")),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (np.add, np.subtract),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x, y=1: x, lambda x, y=2: x),
        (len, sum),
    ],
)
def test_functions_that_differ_are_told_apart(one: Any, other: Any) -> None:
    """By code, constants, defaults, and what closures hold."""
    assert _digest(one) != _digest(other)


def test_a_closure_that_is_changed_is_another_function() -> None:
    """The same object may hold another number each time it is used."""
    count = 0

    def step(x: int) -> int:
        return x + count

    before = _digest(step)
    count = 1
    assert before != _digest(step)


def test_digests_are_the_same_in_processes_with_other_hash_seeds() -> None:
    """Strings, sets and enums hash differently in each process."""
    code = (
        "from canary_core.machines.replica import Replica\n"
        "def d(run):\n"
        "    v = run.map(lambda x: x in {'a', 'b', 'c'}, run.load(int), run.load(str))\n"
        "    run.scatter(lambda x: {0: 'text'}, v)\n"
        "    return run.reduce(max, v), run.single(['a', 1.5])\n"
        "r = Replica(d, 4, {}, 0, None); r.advance(99); print(r.digest, r.failure)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert 1 == len(found)
    assert "None" in found.pop()


# --- values ------------------------------------------------------------------------------------


class _Local:
    def __init__(self, x: int) -> None:
        self.x = x


def test_large_arrays_travel_apart_and_small_ones_inside() -> None:
    large, small = np.arange(10_000.0), np.arange(3)
    frames = values.dumps({"large": large, "small": small})
    assert 2 == len(frames)
    assert frames[1].nbytes == large.nbytes
    back = values.loads(frames)
    assert (back["large"] == large).all()
    assert np.shares_memory(back["large"], large)  # a worker's own frames are not copied


def test_what_is_changed_in_place_is_copied_and_stays_writable() -> None:
    array = np.arange(10_000.0)
    (frame,) = values.dumps_inside(array)
    array[0] = 99
    back = values.loads((frame,))
    back[1] = 7
    assert 0 == back[0]


def test_what_pickle_cannot_name_cloudpickle_can() -> None:
    doubled = values.loads(values.dumps(lambda x: 2 * x))
    assert 6 == doubled(3)


@pytest.mark.parametrize("array", [np.arange(20_000.0)[::2], np.asfortranarray(np.ones((90, 90)))])
def test_arrays_of_any_layout_travel(array: Any) -> None:
    assert (values.loads(values.dumps(array)) == array).all()


def test_nothing_stays_itself() -> None:
    """A target knows it by identity."""
    assert values.loads(values.dumps([values.NOTHING]))[0] is values.NOTHING


# --- policies ----------------------------------------------------------------------------------

A, B, C = Address("a"), Address("b"), Address("c")


def _load(worker: Address, *busy_s: float, first: int = 0) -> WorkerLoad:
    return WorkerLoad(worker, {(8, first + i): s for i, s in enumerate(busy_s)}, 1.0)


def test_a_straggler_loses_partitions() -> None:
    """Its partitions take longer only because of where they are."""
    moves = straggler([_load(A, 0.25, 0.25, 0.25, 0.25), _load(B, 0.1, 0.1, 0.1, 0.1, first=4)])
    assert {B} == {move.to for move in moves}
    assert 1 <= len(moves) <= 2


def test_a_worker_that_joins_gets_partitions() -> None:
    moves = straggler([_load(A, *[0.1] * 8), WorkerLoad(B, {}, 1.0)])
    assert 4 == len(moves)


@pytest.mark.parametrize(
    "loads",
    [
        [],
        [_load(A, 0.9)],
        [_load(A, 0.5), _load(B, 0.5, first=1)],
        [_load(A, 0.9), WorkerLoad(B, {}, 1.0)],  # the one partition would only move
        [_load(A, 0.01, 0.01), WorkerLoad(B, {}, 1.0)],  # nobody waits for it
    ],
)
def test_nothing_moves_without_gain(loads: list[WorkerLoad]) -> None:
    assert [] == straggler(loads)


@given(st.lists(st.lists(st.floats(0.001, 1.0), max_size=8), min_size=1, max_size=5))
def test_no_balancer_makes_the_longest_time_longer(busy: list[list[float]]) -> None:
    """By its own estimate, and it moves only what a worker has to one that exists."""
    loads = [
        WorkerLoad(Address(f"w{n}"), {(n + 2, i): s for i, s in enumerate(each)}, 1.0)
        for n, each in enumerate(busy)
    ]
    for balancer in BALANCERS.values():
        owners = {key: load.worker for load in loads for key in load.busy_s}
        for move in balancer(loads):
            assert owners[move.key] != move.to
            assert move.to in {load.worker for load in loads}


def test_even_evens_counts_out() -> None:
    moves = even([_load(A, *[0.1] * 7), WorkerLoad(B, {}, 1.0), WorkerLoad(C, {}, 1.0)])
    assert 4 == len(moves)
    assert {B, C} == {move.to for move in moves}


@given(st.integers(1, 40), st.integers(1, 7), st.randoms(use_true_random=False))
def test_places_differ_by_one_and_respect_data(size: int, count: int, rng: Random) -> None:
    workers = [Address(f"w{n}") for n in range(count)]
    hosts = {worker: f"h{n % 3}" for n, worker in enumerate(workers)}
    preferred = {i: [f"h{rng.randrange(3)}"] for i in range(size) if rng.random() < 0.5}
    placed = place(size, workers, hosts, preferred)
    counts = [placed.count(worker) for worker in workers]
    assert size == sum(counts)
    assert max(counts) - min(counts) <= 1


def test_neighbours_lie_together() -> None:
    """So a reduction combines them where they lie."""
    assert [A, A, A, B, B] == place(5, [A, B], {A: "h", B: "h"}, {})


def test_data_decide_where_there_is_room() -> None:
    assert [B, B, A, A] == place(4, [A, B], {A: "x", B: "y"}, {0: ["y"], 1: ["y"], 2: ["y"]})


def test_orphans_go_to_who_has_fewest() -> None:
    owners = {(4, 0): A, (4, 1): A, (4, 2): B, (4, 3): C, (1, 0): C}
    moved = reassign(owners, [A, B])
    assert {(4, 3): B, (1, 0): A} == moved
