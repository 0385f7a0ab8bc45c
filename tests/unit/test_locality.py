from __future__ import annotations

import pytest

from minishark.model.events.figures import TaskFigures
from minishark.query.locality import hosts_of, near, stage_holdings
from minishark.worker.protocol import BucketSlice, StoreLocation, TaskOutcome

HOSTS = {"n0": "a", "n1": "a", "n2": "b"}


def peer(name: str, host: str) -> StoreLocation:
    """A peer of which only the host matters."""
    return StoreLocation(name, host, "", "", "")


def test_one_host_is_no_reason_to_prefer_any_node() -> None:
    """Hosts count only where there are several among the nodes; a session's own does not."""
    stores = [peer("n0", "a"), peer("n1", "a"), peer("s-1", "b")]
    assert {} == hosts_of(("n0", "n1"), stores)
    assert {"n0": "a", "s-1": "b"} == hosts_of(("n0", "s-1"), stores)


@pytest.mark.parametrize(
    ("holdings", "expected"),
    [
        ([], ()),
        ([(("n0",), 0.0)], ()),
        ([(("gone",), 9.0)], ()),
        ([(("n0",), 9.0), (("n2",), 1.0)], ("n0", "n1")),
        ([(("n0",), 9.0), (("n2",), 8.0)], ("n0", "n1", "n2")),
        ([(("n0", "n1"), 9.0), (("n2",), 10.0)], ("n0", "n1", "n2")),
        ([(("n0", "n2"), 9.0), (("n2",), 9.0)], ("n2",)),
    ],
)
def test_hosts_that_hold_most_are_near(
    holdings: list[tuple[tuple[str, ...], float]], expected: tuple[str, ...]
) -> None:
    """A host counts once for a part, however many of its nodes hold it; equal ones are alike."""
    assert frozenset(expected) == near(holdings, HOSTS)


def test_a_stage_lies_where_its_tasks_ran() -> None:
    """A task reads its buckets of each output, or all of it."""
    slices = (BucketSlice(0, 1, 30), BucketSlice(1, 2, 10))
    outcomes = [
        TaskOutcome(figures=TaskFigures(rows=40, bytes=400), file="f0", buckets=slices),
        TaskOutcome(figures=TaskFigures(rows=0, bytes=0), file="f1", buckets=slices),
    ]
    nodes = ["n0", "n2"]
    found = stage_holdings(outcomes[:1], nodes[:1], range(1, 2))
    assert [(("n0",), 100.0)] == found
    assert [(("n0",), 400.0), (("n2",), 0.0)] == stage_holdings(outcomes, nodes, None)
    assert [(("n0",), 400.0), (("n2",), 0.0)] == stage_holdings(outcomes, nodes, range(2))
