from __future__ import annotations

import math
import random

import pytest

from tests.chaos.linearizable import Kind, Operation, unexplained

NEVER = math.inf


def of(text: str) -> list[Operation]:
    """A history such as "add 1,2 0-3; read 1,2 4-5; add 3 4-?"."""
    found = []
    for line in text.split(";"):
        kind, *numbers, times = line.split()
        began, _, ended = times.partition("-")
        ended_s = NEVER if ended == "?" else float(ended)
        kinds: dict[str, Kind] = {"add": "add", "remove": "remove", "read": "read"}
        listed = frozenset(int(n) for n in "".join(numbers).split(",") if n)
        found.append(Operation(kinds[kind], listed, float(began), ended_s))
    return found


@pytest.mark.parametrize(
    "history",
    [
        "read 0-1",
        "add 1 0-3; read 1-2; read 1 2-3",
        "add 1 0-9; add 2 0-9; read 1 1-2; read 1,2 3-4",
        "add 1,2 0-1; remove 2 2-3; read 1 4-5",
        "add 1 0-?; read 5-6",
        "add 1 0-?; read 5-6; read 1 7-8",
        "add 1 0-1; remove 1 2-?; read 1 3-4; read 5-6",
    ],
)
def test_one_copy_behaves_so(history: str) -> None:
    """Concurrent operations may happen in any order; what nobody knows of, at any time or never."""
    assert unexplained(of(history)) == ""


@pytest.mark.parametrize(
    ("history", "what"),
    [
        ("add 1 0-1; read 2-3", "a write is lost"),
        ("add 1 0-9; read 1 1-2; read 3-4", "an older answer after a newer one"),
        ("add 1,2 0-9; read 1 1-2", "half a write"),
        ("add 1 3-4; read 1 0-1", "a write from the future"),
        ("read 7 0-1", "a row that nobody has written"),
        ("add 1 0-9; add 2 0-9; read 1 1-2; read 2 1-2", "two readers, two orders"),
        ("add 1 0-?; read 1 1-2; read 3-4", "a killed write that is undone after it was seen"),
        ("add 1 0-1; remove 1 2-3; read 1 4-5", "a row that comes back"),
        ("add 1 0-1; add 2 0-?; remove 1 2-3; read 1,2 4-5", "a killed write brings rows back"),
    ],
)
def test_bad_histories_are_refused(history: str, what: str) -> None:
    """What no table may do has no explanation."""
    assert "can be ordered, but not" in unexplained(of(history)), what


def recorded(rng: random.Random, count: int) -> list[Operation]:
    """What one copy does for operations that overlap, some of which nobody knows of."""
    rows: frozenset[int] = frozenset()
    history = []
    for number in range(count):
        began_s, ended_s = number - rng.random() * 3, number + rng.random() * 3
        kind: Kind = rng.choice(("add", "remove", "read"))
        numbers = {"add": frozenset((2 * number, 2 * number + 1)), "read": rows}.get(kind)
        if numbers is None:
            numbers = frozenset(sorted(rows)[:1])
        known = kind == "read" or rng.random() < 0.9
        happened = known or rng.random() < 0.5
        if happened:
            rows = rows | numbers if kind == "add" else rows - numbers if kind == "remove" else rows
        history.append(Operation(kind, numbers, began_s, ended_s if known else NEVER))
    rng.shuffle(history)
    return history


@pytest.mark.parametrize("seed", range(10))
def test_recorded_histories(seed: int) -> None:
    """Histories of one copy have an explanation; with a row less in an answer they have none."""
    rng = random.Random(seed)
    history = recorded(rng, 60)
    assert unexplained(history) == ""
    added = {n for each in history if each.kind == "add" for n in each.numbers}
    removed = {n for each in history if each.kind == "remove" for n in each.numbers}
    full = [
        i
        for i, each in enumerate(history)
        if each.kind == "read" and (each.numbers & added) - removed
    ]
    spoilt = history[rng.choice(full)]
    fewer = spoilt.numbers - {min((spoilt.numbers & added) - removed)}
    history.remove(spoilt)
    history.append(Operation("read", fewer, spoilt.began_s, spoilt.ended_s))
    assert unexplained(history) != ""
