"""Drivers of programs that the tests run, which executors import by name."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from canary_core import Run

ITERATIONS = 12


def matrix(rows: pa.Table) -> tuple[Any, Any]:
    """Features and labels."""
    columns = [column.to_numpy() for column in rows.columns]
    return np.column_stack(columns[:-1]), columns[-1]


def gradient(data: tuple[Any, Any], weights: Any) -> Any:
    """Of the logistic loss."""
    features, labels = data
    return features.T @ (1 / (1 + np.exp(-features @ weights)) - labels)


def descend(weights: Any, change: Any) -> Any:
    """One step down."""
    return weights - 1e-4 * change


def logistic(run: Run) -> Any:
    """Logistic regression over the table "points": the weights, and the iterations it took."""
    points = run.map(matrix, run.table("points"))
    weights = run.single(np.zeros(4))
    number = 0
    while number < ITERATIONS:
        number += 1
        changes = run.map(gradient, points, run.broadcast(weights))
        weights = run.map(descend, weights, run.reduce(np.add, changes))
        if run.signal(lambda w: bool(np.abs(w).sum() > 1e6), weights):
            break
    return weights, number


def _deal(numbers: Any) -> list[Any]:
    """Each number to the partition of its remainder, as arrays."""
    return [numbers[numbers % 4 == target] for target in range(4)]


def _merged(pieces: list[Any]) -> Any:
    return np.sort(np.concatenate(pieces))


def _count(state: dict[int, int], numbers: Any) -> int:
    for number in numbers[:5].tolist():
        state[number] = state.get(number, 0) + 1
    return len(state)


def exchange(run: Run) -> Any:
    """All kinds of calls: an exchange all to all, states, reductions, nested loops."""
    numbers = run.load(lambda index: np.arange(1000) * 7 + index, 6)
    seen = run.state(lambda _: {}, run.load(int, 4))
    counts = []
    for _ in range(3):
        dealt = run.gather(_merged, run.scatter(_deal, numbers, partitions=4))
        updated = [run.update(_count, seen, dealt) for _ in range(2)]
        counts += [run.reduce(operator.add, each) for each in updated]
        numbers = run.map(lambda part: part + 1, numbers)
    return {"counts": counts, "seen": run.map(dict, seen), "left": numbers}


def slow_sum(pause_s: float, rounds: int, hurry: Path | None = None) -> Callable[[Run], Any]:
    """A driver whose tasks take time: sums that depend on their order, in floats.

    Once there is a file `hurry`, they take none.
    """

    def work(part: Any, total: float) -> Any:
        if hurry is None or not hurry.exists():
            time.sleep(pause_s)
        return part * 1.000001 + total * 1e-9

    def driver(run: Run) -> Any:
        parts = run.load(lambda index: np.random.default_rng([5, index]).random(500))
        total = run.single(0.1)
        for _ in range(rounds):
            parts = run.map(work, parts, run.broadcast(total))
            total = run.reduce(operator.add, run.map(lambda part: float(part.sum()), parts))
            if run.signal(lambda value: value < 0, total):
                break
        return total, parts

    return driver


def rank(run: Run) -> Any:
    """Rows of the table "points" as new rows."""
    return run.map(
        lambda rows: pa.table({"x": rows["a"], "y": pc.multiply(rows["b"], 2.0)}),
        run.table("points"),
    )


def failing(run: Run) -> Any:
    """A task that raises."""
    return run.map(lambda index: 1 // (index - 2), run.load(int))


def failing_driver(run: Run) -> Any:
    """A driver that raises."""
    run.load(int)
    return {}["absent"]


def endless(path: str, *, stubborn: bool = False) -> Callable[[Run], Any]:
    """A program that never ends, and makes a file when it has begun."""

    def spin(part: int) -> int:
        Path(path).touch()
        while stubborn or part >= 0:
            pass
        return part

    return lambda run: run.map(spin, run.load(int))
