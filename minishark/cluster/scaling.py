"""How many nodes a cluster should have: a pure policy, and a thread that follows it.

    load of the nodes ──▶ decide(options, history, load, now) ──▶ start n, or drain one
                                                                       │
                       Fleet.start_node() · Fleet.drain(node) ◀────────┘

The policy looks at demand: tasks that run, and tasks that wait. It grows when all slots have been
busy and tasks have waited for `wait_s`, by as many nodes as the waiting tasks fill, but at most to
twice as many as there are. It shrinks by one node when one node fewer would have had slots for all
tasks throughout `idle_s`. What was drained would thus not have been needed for at least that long,
so a constant load never makes nodes come and go.

Whoever can start nodes implements `Fleet`: a session's own cluster by processes, others by asking
what launches their machines. A node that drains moves its data first (`cluster.draining`), and
then leaves by itself: whoever restarts dead nodes must not restart it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from minishark.errors import MinisharkError, OptionError
from sparrow_core import NodeStatus

_LOOK_EVERY_S = 0.5
_RETRY_S = 5.0  # after a node could not be started
_PROBES = 2.0  # reservations per waiting task, as the default placement makes them


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """The bounds of a cluster that grows and shrinks; nodes without executors do not count.

    Attributes:
        min_nodes: Nodes that there are at least.
        max_nodes: Nodes that there are at most.
        idle_s: One node goes when, for this long, one fewer would have sufficed.
        wait_s: Nodes are added when tasks have waited for slots for this long.
    """

    min_nodes: int
    max_nodes: int
    idle_s: float = 60.0
    wait_s: float = 1.0

    def check(self) -> None:
        """Raise OptionError if these are no bounds."""
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise OptionError("min_nodes must be at least 1, and at most max_nodes.")
        if not (0 < self.idle_s < math.inf and 0 <= self.wait_s < math.inf):
            raise OptionError("idle_s must be above 0 seconds, and wait_s not below.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """A node's load: its slots, the tasks that run there, the reservations that it has queued."""

    name: str
    slots: int
    running: int = 0
    queued: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """The load of all nodes; `starting` more have been asked for, and are not among them yet."""

    nodes: tuple[NodeLoad, ...]
    starting: int = 0
    kept: frozenset[str] = frozenset()  # must not be drained, as those with the schedulers


@dataclass(frozen=True, slots=True)
class History:
    """What the policy remembers: since when tasks wait, and since when one node is too many.

    A node that was just asked for, perhaps by somebody, or has just come is not too many at once.
    """

    waiting_since: float | None = None
    spare_since: float | None = None
    nodes: int = 0  # at the last look
    expected: int = 0  # then, with those that were starting


@dataclass(frozen=True, slots=True)
class Decision:
    """How many nodes to start, which ones to drain, and why (a sentence; empty for nothing)."""

    start: int = 0
    drain: tuple[str, ...] = ()
    why: str = ""


def decide(
    options: ScalingOptions, history: History, load: Load, now: float
) -> tuple[History, Decision]:
    """What to do now, given the load; and what to remember for the next time.

    Args:
        options: The bounds.
        history: What the last call returned; `History()` for the first.
        load: As last reported.
        now: Seconds on any clock that does not go back.
    """
    staying = [node for node in load.nodes if node.slots and not node.draining]
    count = len(staying) + load.starting
    if count < options.min_nodes:
        lacking = options.min_nodes - count
        return History(), Decision(lacking, (), f"there are fewer than {options.min_nodes} nodes")
    slots = sum(node.slots for node in staying)
    running = sum(node.running for node in staying)
    waiting = math.ceil(sum(node.queued for node in staying) / _PROBES) if running >= slots else 0
    history = _remembered(history, staying, count, running + waiting, waiting, now)
    if not staying:
        return history, Decision()
    since = history.waiting_since
    is_late = since is not None and now - since >= options.wait_s
    # What was asked for comes first.
    if is_late and not load.starting and count < options.max_nodes:
        nodes = math.ceil(waiting * count / slots)
        more = max(1, min(nodes, count, options.max_nodes - count))
        return replace(history, waiting_since=None), Decision(
            more, (), f"{waiting} tasks wait for slots"
        )
    since = history.spare_since
    spare = since is not None and now - since >= options.idle_s
    # What was asked for may never come: it is neither waited for here, nor counted on.
    surplus = 0 if load.starting else count - options.max_nodes
    if surplus <= 0 and (not spare or len(staying) <= options.min_nodes):
        return history, Decision()
    if any(node.draining for node in load.nodes):
        return history, Decision()  # one after the other: each moves its data to the rest
    free = [node for node in staying if node.name not in load.kept]
    if not free:
        return history, Decision()
    # The youngest of the least busy: names are in order of age.
    least = min(reversed(free), key=lambda node: node.running + node.queued)
    why = (
        f"{len(staying) - 1} nodes suffice"
        if surplus <= 0
        else f"there are over {options.max_nodes}"
    )
    return replace(history, spare_since=now), Decision(0, (least.name,), why)


def _remembered(
    history: History,
    staying: Sequence[NodeLoad],
    expected: int,
    demand: int,
    waiting: int,
    now: float,
) -> History:
    slots = [node.slots for node in staying]
    grown = len(staying) > history.nodes or expected > history.expected
    spare = demand <= sum(slots) - max(slots, default=0)
    return History(
        waiting_since=_since(history.waiting_since, now, holds=waiting > 0),
        spare_since=_since(None if grown else history.spare_since, now, holds=spare),
        nodes=len(staying),
        expected=expected,
    )


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def load_of(
    statuses: Sequence[NodeStatus], starting: int = 0, kept: frozenset[str] = frozenset()
) -> Load:
    """The load of the live nodes, as a cluster reports them."""
    nodes = (
        NodeLoad(
            name=status.name,
            slots=status.slots,
            running=status.running,
            queued=status.queued,
            draining=status.draining,
        )
        for status in statuses
        if status.alive
    )
    return Load(tuple(nodes), starting, kept)


class Fleet(Protocol):
    """Starts and drains the nodes of a cluster."""

    def start_node(self) -> None:
        """Begin to start one more node; returns at once, the node joins when it is up.

        Raises:
            MinisharkError: There is no machine for it now; it is tried again later.
        """

    def drain(self, node: str) -> None:
        """Begin to drain a node, which then leaves by itself; returns at once."""

    def load(self) -> Load:
        """The load now; `starting` counts the nodes that were started and are not up yet."""


@dataclass(slots=True, kw_only=True)
class Autoscaler:
    """A thread that asks the policy twice a second, and has the fleet do what it says."""

    options: ScalingOptions
    fleet: Fleet
    tell: Callable[[str], None] = lambda _: None  # is given a sentence about each change
    _history: History = History()
    _not_before: float = 0.0
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="minishark-scaling", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Decide nothing more; waits for a decision that is being carried out."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            with contextlib.suppress(MinisharkError, OSError):  # no load is known: look again
                self.step(time.monotonic())

    def step(self, now: float) -> Decision:
        """Look at the load once, and act."""
        self._history, decision = decide(self.options, self._history, self.fleet.load(), now)
        for node in decision.drain:
            self.tell(f"Draining {node}: {decision.why}.")
            self.fleet.drain(node)
        if decision.start and now >= self._not_before:
            self.tell(f"Starting {decision.start} more: {decision.why}.")
            try:
                for _ in range(decision.start):
                    self.fleet.start_node()
            except (MinisharkError, OSError) as error:
                self._not_before = now + _RETRY_S
                self.tell(f"A node could not be started: {error}")
        return decision
