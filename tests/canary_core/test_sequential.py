"""The model: what each call of `run` means, by the sequential runner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from canary_core import Run, run_sequentially
from canary_core.errors import InvalidCall, TaskFailed


def run(driver: Any, partitions: int = 4, **options: Any) -> Any:
    return run_sequentially(driver, partitions=partitions, **options)


def test_loaded_parts_come_back_in_order_of_their_indices() -> None:
    """A handle of partitions becomes the list of its parts."""
    assert [0, 10, 20, 30] == run(lambda r: r.load(lambda index: 10 * index))


def test_a_single_comes_back_as_its_value() -> None:
    assert {"w": 7, "x": [1, (2,)]} == run(lambda r: {"w": r.single(7), "x": [1, (2,)]})


def test_handles_are_found_anywhere_in_what_a_driver_returns() -> None:
    """In containers, and in other objects that can be pickled."""

    def driver(r: Run) -> Any:
        return slice(r.single(1), (r.load(int, partitions=2), {"deep": [r.single("s")]}))

    assert slice(1, ([0, 1], {"deep": ["s"]})) == run(driver)


def test_map_takes_one_part_of_each_operand() -> None:
    def driver(r: Run) -> Any:
        a = r.load(int)
        return r.map(lambda x, y, z: (x, y, z), a, a, r.map(lambda x: -x, a))

    assert [(0, 0, 0), (1, 1, -1)] == run(driver, 2)


def test_broadcast_makes_a_single_an_operand() -> None:
    def driver(r: Run) -> Any:
        return r.map(lambda x, w: x + w, r.load(int), r.broadcast(r.single(100)))

    assert [100, 101, 102] == run(driver, 3)


@pytest.mark.parametrize("partitions", [1, 2, 3, 5, 8])
def test_reduce_follows_the_tree_of_indices(partitions: int) -> None:
    """Not from left to right: [low, high) splits at the greatest power of two."""
    expected = {
        1: 0, 2: (0, 1), 3: ((0, 1), 2), 5: (((0, 1), (2, 3)), 4),
        8: (((0, 1), (2, 3)), ((4, 5), (6, 7))),
    }[partitions]  # fmt: skip
    found = run(lambda r: r.reduce(lambda a, b: (a, b), r.load(int)), partitions)
    assert expected == found


def test_scatter_delivers_pieces_in_order_of_their_sources() -> None:
    """Mappings leave targets out; in sequences None does."""

    def driver(r: Run) -> Any:
        by_key = r.scatter(lambda x: {x % 2: x}, r.load(int), partitions=2)
        by_place = r.scatter(lambda x: [x, None, -x], r.load(int), partitions=3)
        return by_key, r.gather(sum, by_place)

    assert ([[0, 2], [1, 3]], [6, 0, -6]) == run(driver)


def test_a_scatter_along_routes_goes_where_they_lead() -> None:
    """A target without sources gets an empty list."""

    def driver(r: Run) -> Any:
        routes = r.routes(lambda index: (index // 2,), targets=3)
        return r.scatter(lambda x: {x // 2: x}, r.load(int), partitions=3, along=routes)

    assert [[0, 1], [2, 3], []] == run(driver)


def test_a_piece_for_a_target_that_the_routes_lack_is_refused() -> None:
    def driver(r: Run) -> Any:
        routes = r.routes(lambda index: (index, 3))
        return r.scatter(lambda x: {2: x}, r.load(int), along=routes)

    with pytest.raises(TaskFailed, match="target 2; the routes of partition 0 lead to 0, 3"):
        run(driver)


def test_routes_lead_from_the_operands_to_the_targets() -> None:
    with pytest.raises(InvalidCall, match="from partition 1 to 4 to 4; there are 4 partitions"):
        run(lambda r: r.routes(lambda index: [4] if index else ()))
    with pytest.raises(InvalidCall, match="from 4 partitions to 4, but it sends from 4 to 3"):
        run(
            lambda r: r.scatter(
                lambda x: {}, r.load(int), partitions=3, along=r.routes(lambda _: (0,))
            )
        )


def test_a_state_is_changed_in_place_and_read_as_a_value() -> None:
    def driver(r: Run) -> Any:
        state = r.state(lambda x: [x], r.load(int))
        before = r.map(len, state)
        told = r.update(lambda log, x: log.append(x) or len(log), state, before)
        return before, told, state

    assert ([1, 1], [2, 2], [[0, 1], [1, 1]]) == run(driver, 2)


def test_what_is_sent_of_a_state_is_what_it_was_then() -> None:
    def driver(r: Run) -> Any:
        state = r.state(list, r.map(str, r.load(int)))
        sent = r.scatter(lambda s: {0: s}, state, partitions=1)
        r.update(lambda s: s.append("later"), state)
        return sent, state

    assert ([["0"], ["1"]], [["0", "later"], ["1", "later"]]) == run(driver, 2)


def test_control_flow_depends_on_signals() -> None:
    def driver(r: Run) -> Any:
        x, rounds = r.single(1), 0
        while not r.signal(lambda v: v > 100, x):
            x = r.map(lambda v: 3 * v, x)
            rounds += 1
        return x, rounds

    assert (243, 5) == run(driver)


def test_tables_come_from_the_host() -> None:
    assert [("t", 0, 2), ("t", 1, 2)] == run(lambda r: r.table("t"), 2, source=lambda *asked: asked)


def test_without_a_source_a_table_is_an_error_that_says_so() -> None:
    with pytest.raises(TaskFailed, match="there is no table 't'"):
        run(lambda r: r.table("t"))


def test_an_exception_of_a_function_names_stage_partition_and_place() -> None:
    """The cause is what the function raised."""

    def sink(x: int) -> int:
        return 1 // (x - 2)

    def driver(r: Run) -> Any:
        return r.map(sink, r.load(int))

    with pytest.raises(TaskFailed, match=r"map\(.*sink\), stage 1, partition 2") as caught:
        run(driver)
    error = caught.value
    assert (1, 2) == (error.stage, error.partition)
    assert "return 1 // (x - 2)" in error.traceback
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_exception_of_the_driver_passes_unchanged() -> None:
    def driver(r: Run) -> Any:
        raise KeyError(r.partitions)

    with pytest.raises(KeyError, match="4"):
        run(driver)


def _after(call: Any) -> Any:
    return lambda r: call(r, r.load(int), r.single(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r, many, one: r.map(abs, many, one), "broadcast the single first"),
        (lambda r, many, one: r.map(abs, many, r.load(int, partitions=3)), r"\[4, 3\] partitions"),
        (lambda r, many, one: r.map(None, many), "needs a function"),
        (lambda r, many, one: r.map(abs, 3), "needs handles of this run"),
        (lambda r, many, one: r.map(abs), "needs handles of this run"),
        (lambda r, many, one: r.broadcast(many), "needs a single"),
        (lambda r, many, one: r.signal(bool, many), "reduce them first"),
        (lambda r, many, one: r.update(abs, many), "changes what run.state made"),
        (lambda r, many, one: r.load(int, partitions=0), "positive integer"),
        (lambda r, many, one: r.load(int, partitions=2.5), "positive integer"),
        (lambda r, many, one: r.load(3), "needs a function"),
        (lambda r, many, one: 1 if one else 2, "branches on run.signal"),
        (lambda r, many, one: list(many), "sees no data"),
        (lambda r, many, one: len(many), r"\.partitions"),
    ],
)
def test_misuse_is_refused_where_it_stands(call: Any, message: str) -> None:
    """With a sentence that says what to do."""
    with pytest.raises(InvalidCall, match=message):
        run(_after(call))


def test_a_handle_of_another_run_is_refused() -> None:
    kept: list[Any] = []
    run(lambda r: kept.append(r.single(1)))
    with pytest.raises(InvalidCall, match="of another run"):
        run(lambda r: r.map(abs, kept[0]))


@pytest.mark.parametrize(
    ("pieces", "message"),
    [({4: 1}, "targets 4 to 4"), ([1, 2], "2 pieces for 4"), (7, "not int"), ("four", "not str")],
)
def test_a_scatter_function_that_returns_nonsense_is_told_so(pieces: Any, message: str) -> None:
    with pytest.raises(TaskFailed, match=message):
        run(lambda r: r.scatter(lambda _: pieces, r.load(int)))


def test_numpy_handles_do_not_become_arrays() -> None:
    """`np.add(handle, 1)` is a mistake that numpy would hide in an array of objects."""
    with pytest.raises(TypeError):
        run(lambda r: np.ones(3) + r.single(1))


def test_a_number_of_partitions_may_be_of_numpy() -> None:
    """As it is what a function such as np.sqrt or a shape returns."""
    handles: list[Any] = []
    assert [0, 1, 2] == run(lambda r: handles.append(r.load(int, np.int64(3))) or handles[0])
    assert type(handles[0].partitions) is int


def test_a_constant_is_copied() -> None:
    """What the driver does to its own object later does not matter."""

    def driver(r: Run) -> Any:
        mine = [1]
        handle = r.single(mine)
        mine.append(2)
        return handle

    assert [1] == run(driver)
