"""When a cluster grows and shrinks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minishark
from minishark.cluster.scaling import (
    Autoscaler,
    Decision,
    History,
    Load,
    NodeLoad,
    ScalingOptions,
    decide,
)
from minishark.errors import ClusterError, OptionError

SLOTS = 2
OPTIONS = ScalingOptions(min_nodes=1, max_nodes=8, idle_s=10.0, wait_s=1.0)


def spread(nodes: int, demand: int) -> tuple[NodeLoad, ...]:
    """So many tasks on nodes of two slots; those that wait have two reservations each."""
    running = min(demand, nodes * SLOTS)
    waiting = 2 * (demand - running)
    return tuple(
        NodeLoad(
            name=f"n{number}",
            slots=SLOTS,
            running=running // nodes + (number < running % nodes),
            queued=waiting // nodes + (number < waiting % nodes),
        )
        for number in range(nodes)
    )


@dataclass
class ToyFleet:
    """Nodes that are up at once, under a given demand."""

    nodes: int
    demand: int = 0
    fails: bool = False
    sentences: list[str] = field(default_factory=list)

    def start_node(self) -> None:
        """One more."""
        if self.fails:
            raise ClusterError("no machine")
        self.nodes += 1

    def drain(self, node: str) -> None:
        """One fewer."""
        assert node == f"n{self.nodes - 1}"
        self.nodes -= 1

    def load(self) -> Load:
        """All tasks, evenly spread."""
        return Load(spread(self.nodes, self.demand))


def counts(fleet: ToyFleet, demands: list[int], step_s: float = 1.0) -> list[int]:
    """The number of nodes after each step, under these demands."""
    scaler = Autoscaler(options=OPTIONS, fleet=fleet, tell=fleet.sentences.append)
    found = []
    for number, demand in enumerate(demands):
        fleet.demand = demand
        scaler.step(number * step_s)
        found.append(fleet.nodes)
    return found


def test_it_grows_when_tasks_wait_and_shrinks_when_it_is_idle() -> None:
    """To as many as the tasks fill, at most doubling; back one by one after `idle_s` each."""
    fleet = ToyFleet(1)
    assert [1, 2, 2, 4, 4, 6] == counts(fleet, [12] * 6)
    fleet = ToyFleet(6)
    found = counts(fleet, [0] * 60)
    assert found[9] == 6
    assert found[10] == 5
    assert found[19] == 5
    assert found[20] == 4
    assert found[-1] == OPTIONS.min_nodes


def test_a_short_burst_starts_nothing() -> None:
    """Tasks that wait for less than `wait_s` are no reason."""
    assert {1} == set(counts(ToyFleet(1), [9, 0, 9, 0, 9, 0], 0.9))


@given(
    demands=st.lists(st.integers(0, 40), max_size=80),
    constant=st.integers(0, 40),
    nodes=st.integers(1, 8),
)
def test_a_constant_load_ends_all_changes(demands: list[int], constant: int, nodes: int) -> None:
    """Within the bounds always; and whatever was before, no node comes and goes for ever."""
    fleet = ToyFleet(nodes)
    found = counts(fleet, [*demands, *[constant] * 150])
    assert all(OPTIONS.min_nodes <= count <= OPTIONS.max_nodes for count in found)
    assert len(set(found[-50:])) == 1
    needed = max(OPTIONS.min_nodes, min(OPTIONS.max_nodes, math.ceil(constant / SLOTS)))
    assert found[-1] == needed


@given(nodes=st.integers(0, 12), demand=st.integers(0, 50), starting=st.integers(0, 3))
def test_nothing_is_started_and_drained_at_once(nodes: int, demand: int, starting: int) -> None:
    """Nor anything while nodes are on their way, unless there are too few with them.

    That they were asked for begins a new `idle_s`.
    """
    load = Load(spread(nodes, demand) if nodes else (), starting)
    _, decision = decide(OPTIONS, History(0.0, 0.0, nodes), load, 1000.0)
    assert not (decision.start and decision.drain)
    assert nodes + starting + decision.start <= max(OPTIONS.max_nodes, nodes + starting)
    if starting:
        assert not decision.drain
        assert decision.start == max(0, OPTIONS.min_nodes - nodes - starting)


def test_what_is_kept_or_has_no_slots_is_not_drained() -> None:
    """Nodes with schedulers stay; those without executors do not count."""
    load = Load((*spread(2, 0), NodeLoad(name="driver", slots=0)), kept=frozenset(("n0", "n1")))
    assert Decision() == decide(OPTIONS, History(None, 0.0, 2), load, 100.0)[1]
    few = Load((NodeLoad(name="driver", slots=0),))
    assert 1 == decide(OPTIONS, History(), few, 0.0)[1].start


def test_a_node_that_was_asked_for_is_not_drained_at_once() -> None:
    """Although the cluster has been idle for long."""
    fleet = ToyFleet(1)
    scaler = Autoscaler(options=OPTIONS, fleet=fleet)
    for now in range(100):
        scaler.step(float(now))
    fleet.nodes += 1
    assert [2] * 10 + [1] == [(scaler.step(100.0 + now), fleet.nodes)[1] for now in range(11)]


def test_nodes_that_never_come_do_not_keep_the_others() -> None:
    """A platform may have no machine for them: what is idle goes all the same."""
    options = ScalingOptions(min_nodes=2, max_nodes=8, idle_s=10.0)
    history, nodes, drained = History(), 4, []
    for now in range(100):
        history, decision = decide(options, history, Load(spread(nodes, 0), 3), float(now))
        assert not decision.start
        nodes -= len(decision.drain)
        drained += [now] * len(decision.drain)
    assert [10, 20] == drained


def test_one_node_drains_at_a_time() -> None:
    """Each moves its data to the rest, so the next waits."""
    busy = (*spread(3, 0), NodeLoad(name="n3", slots=SLOTS, draining=True))
    assert Decision() == decide(OPTIONS, History(None, 0.0, 3), Load(busy), 100.0)[1]


def test_a_start_that_fails_is_tried_again_after_a_while() -> None:
    """With a sentence each time."""
    fleet = ToyFleet(1, fails=True)
    counts(fleet, [20] * 10)
    assert 2 == len([text for text in fleet.sentences if "could not be started" in text])


@pytest.mark.parametrize(
    "options",
    [
        ScalingOptions(min_nodes=0, max_nodes=1),
        ScalingOptions(min_nodes=2, max_nodes=1),
        ScalingOptions(min_nodes=1, max_nodes=1, idle_s=0.0),
    ],
)
def test_bounds_must_make_sense(options: ScalingOptions) -> None:
    """At least one node, not more than there may be."""
    with pytest.raises(OptionError):
        options.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_nodes": 2}, "goes with max_nodes"),
        ({"min_nodes": 3, "max_nodes": 2}, "at most max_nodes"),
        ({"max_nodes": 2, "idle_s": 0}, "above 0"),
        ({"max_nodes": 2, "in_process": True}, "Threads"),
        (
            {"cluster": "default", "max_nodes": 2},
            "max_nodes is for a new cluster, and this is a running",
        ),
    ],
)
def test_connect_says_what_is_wrong(options: dict[str, Any], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(OptionError, match=message):
        minishark.connect(**options)
