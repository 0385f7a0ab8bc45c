"""The vectorized simulator, for FIFO queues only: a job is a few array operations.

Reservations are served in order of arrival, so a job's outcome follows from the times at which the
probed nodes are free next, whatever comes later: no event heap is needed. With late binding the
first m nodes to ask get the m tasks; the others lose the slot until the cancellation reaches them,
or nothing if it does so before they ask. All messages have the delays of `simulator.network`.
Given the same random choices, response times equal those of `simulator.world` on production
machines up to rounding; tests compare them.

Tasks that are bound to nodes at arrival are shipped with the decision, as in the papers' baselines.
Machines fetch them when a slot is free, like all tasks: `fetches` simulates that.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import (
    BIMODAL_LONG_SHARE,
    BIMODAL_RATIO,
    BIMODAL_SHORT,
    BURSTY_SHARE,
    PARETO_SHAPE,
    CentralQueue,
    Workload,
)
from sparrow_core.policy import sampling as policy

Floats = NDArray[np.float64]
Indexes = NDArray[np.int64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]
# Placements for which a job's outcome follows from the times at which slots are free.
VECTORIZED = ("central", "sparrow", "batch", "batch_filling", "per_task", "random")

_JOBS_AT_ONCE = 64  # for which random numbers are drawn together
_ORDER_S = 1e-12  # between messages that are sent together, so that they stay in order
_RING = 8  # initial number of remembered reservations per node


# Task times with mean 1, as in `workload.DISTRIBUTIONS`: one row per job.
DISTRIBUTIONS: dict[str, Draw] = {
    "exponential": lambda rng, shape: rng.exponential(size=shape),
    "exponential_jobs": lambda rng, shape: np.broadcast_to(
        rng.exponential(size=(shape[0], 1)), shape
    ),
    "constant": lambda _, shape: np.ones(shape),
    "pareto": lambda rng, shape: (1 + rng.pareto(PARETO_SHAPE, shape)) * (1 - 1 / PARETO_SHAPE),
    "bimodal": lambda rng, shape: np.where(
        rng.random(shape) < BIMODAL_LONG_SHARE, BIMODAL_SHORT * BIMODAL_RATIO, BIMODAL_SHORT
    ),
}


def _bursty(rng: np.random.Generator, count: int) -> Floats:
    rates = np.where(rng.random(count) < BURSTY_SHARE, BURSTY_SHARE, 1 - BURSTY_SHARE)
    gaps: Floats = rng.exponential(size=count) / (2 * rates)
    return gaps


# Times between jobs with mean 1, as in `workload.ARRIVALS`.
ARRIVALS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "poisson": lambda rng, count: rng.exponential(size=count),
    "regular": lambda _, count: np.ones(count),
    "bursty": _bursty,
}


class VectorCluster:
    """Nodes as arrays of the next free times of their slots.

    Jobs are submitted in order of arrival; methods return a job's response time in seconds.
    """

    def __init__(
        self,
        nodes: int,
        slots: int = 1,
        network: Network | None = None,
        *,
        cancellation: bool = True,  # of reservations when all tasks of a job are bound
        remembers: bool = False,  # whether nodes know their queue lengths, for `loads`
        fetches: bool = False,  # whether bound tasks are asked for, too, once a slot is free
    ) -> None:
        network = network or Network()
        self.nodes = nodes
        self._delay_s = network.delay_s
        self._local_s = network.local_delay_s
        self._fetch_s = 2 * network.delay_s if fetches else 0.0
        self._slots = slots
        self._cancellation = cancellation
        self._free = np.zeros((nodes, slots))
        self._ring = _Ring(nodes) if remembers else None

    def late_binding(self, at_s: float, probes: Indexes, times_s: Floats) -> float:
        """Reserve on the probed nodes; the first that ask get the tasks."""
        delay_s, tasks = self._delay_s, len(times_s)
        reserved_at = at_s + 2 * delay_s
        asks = np.maximum(self._free[probes, 0], reserved_at)
        idle = np.flatnonzero(asks == reserved_at)  # they ask in the order of their reservations
        if len(idle) >= tasks:
            first, bound_at = idle[:tasks], reserved_at
        else:
            busy = np.flatnonzero(asks > reserved_at)
            busy = busy[np.argsort(asks[busy])]
            first = np.concatenate((idle, busy[: tasks - len(idle)]))
            bound_at = asks[first[-1]]
        first_asks = asks[first]
        asks[first] = np.inf
        ends = first_asks + (2 * delay_s + self._local_s) + times_s
        # Nodes that ask in vain lose a slot until the cancellation comes; others never ask.
        cancelled_at = bound_at + 2 * delay_s
        if self._cancellation:
            vain = np.flatnonzero(asks < cancelled_at)
            lost_until = cancelled_at + np.arange(len(vain)) * _ORDER_S
        else:
            vain = np.flatnonzero(asks < np.inf)
            lost_until = asks[vain] + 2 * delay_s
        taken = probes[np.concatenate((first, vain))]
        self._occupy(taken, np.concatenate((ends + self._local_s, lost_until)))
        return float(ends.max() + delay_s - at_s)

    def late_binding_crowded(self, at_s: float, probes: Indexes, times_s: Floats) -> float:
        """As `late_binding`, where nodes may have several of the job's reservations."""
        delay_s = self._delay_s
        reserved_at = at_s + 2 * delay_s
        left: dict[int, int] = {}  # reservations with which no slot has asked, by node
        for node in probes.tolist():
            left[node] = left.get(node, 0) + 1
        free = {node: self._free[node].tolist() for node in left}
        # When slots are free to ask: time, order, node and slot.
        idle = [
            (max(free_s, reserved_at), order, node, slot)
            for order, node in enumerate(left)
            for slot, free_s in enumerate(free[node])
        ]
        heapq.heapify(idle)
        last_s, bound_at, last_node, order = 0.0, 0.0, -1, len(left)
        for time_s in times_s.tolist():
            while not left[idle[0][2]]:
                heapq.heappop(idle)
            bound_at, _, last_node, slot = heapq.heappop(idle)
            end_s = bound_at + 2 * delay_s + self._local_s + time_s
            last_s = max(last_s, end_s)
            free[last_node][slot] = end_s + self._local_s
            left[last_node] -= 1
            order += 1
            heapq.heappush(idle, (end_s + self._local_s, order, last_node, slot))
        # Slots that ask in vain. Nodes know that no task is left from the cancellation, or from the
        # answer with the last task or to the first request in vain.
        cancelled_at = bound_at + 2 * delay_s
        told_at = {last_node: cancelled_at}
        vain = 0
        for ask_s, _, node, slot in sorted(idle):
            cancelled = self._cancellation and node != last_node
            until_s = cancelled_at + vain * _ORDER_S if cancelled else ask_s + 2 * delay_s
            if left[node] and ask_s < told_at.setdefault(node, until_s):
                left[node] -= 1
                free[node][slot] = until_s
                vain += 1
        for other, slots in free.items():
            self._free[other] = sorted(slots)
        return last_s + delay_s - at_s

    def bound(self, at_s: float, chosen: Indexes, times_s: Floats, ways: int = 2) -> float:
        """Bind each task to a node at arrival; it gets there `ways` messages later."""
        reserved_at = at_s + ways * self._delay_s
        last_s = 0.0
        waiting = np.arange(len(chosen))
        while len(waiting):  # a round for the first task on each node, one for the second ...
            first = np.unique(chosen[waiting], return_index=True)[1]
            turn = waiting[np.sort(first)]
            nodes = chosen[turn]
            asks = np.maximum(self._free[nodes, 0], reserved_at)
            ends = asks + (self._fetch_s + self._local_s) + times_s[turn]
            self._occupy(nodes, ends + self._local_s)
            if self._ring is not None:
                self._ring.note(nodes, reserved_at, ends + self._local_s)
            last_s = max(last_s, float(ends.max()))
            waiting = np.delete(waiting, np.sort(first))
        return last_s + self._delay_s - at_s

    def loads(self, at_s: float, probes: Indexes) -> Indexes:
        """The answers of probed nodes: queue lengths, or minus free slots."""
        assert self._ring is not None, "made without memory"
        # The slots are full whenever there is a queue.
        return self._ring.count(probes, at_s + 2 * self._delay_s) - self._slots

    def _occupy(self, nodes: Indexes, until: Floats) -> None:
        """Take the first free slot of each of these distinct nodes until then."""
        if self._slots == 1:
            self._free[nodes, 0] = until
            return
        rows = self._free[nodes]
        rows[:, 0] = until
        rows.sort(axis=1)
        self._free[nodes] = rows


class _Ring:
    """The latest reservations of each node, by the times at which they release their slots."""

    def __init__(self, nodes: int) -> None:
        self._ends = np.zeros((nodes, _RING))
        self._next = np.zeros(nodes, np.int64)
        self._under_way: deque[tuple[float, Indexes, Floats]] = deque()

    def note(self, nodes: Indexes, reserved_at: float, ends: Floats) -> None:
        self._under_way.append((reserved_at, nodes, ends))

    def count(self, nodes: Indexes, at_s: float) -> Indexes:
        """Number of reservations that are queued or have a slot."""
        while self._under_way and self._under_way[0][0] <= at_s:
            self._arrive(*self._under_way.popleft())
        return np.asarray((self._ends[nodes] > at_s).sum(axis=1))

    def _arrive(self, at_s: float, nodes: Indexes, ends: Floats) -> None:
        place = self._next[nodes]
        while (self._ends[nodes, place] > at_s).any():
            self._grow()
            place = self._next[nodes]
        self._ends[nodes, place] = ends
        self._next[nodes] = (place + 1) % self._ends.shape[1]

    def _grow(self) -> None:
        """Double the capacity, because the oldest entries are still needed."""
        nodes, size = self._ends.shape
        oldest_first = (self._next[:, None] + np.arange(size)) % size
        ends = np.zeros((nodes, 2 * size))
        ends[:, size:] = np.take_along_axis(self._ends, oldest_first, axis=1)
        self._ends = ends
        self._next[:] = 0


def least_loaded(loads: Indexes, tasks: int) -> Indexes:
    """Batch sampling: the positions of the least loaded nodes, one task each.

    Nodes are in random order, so that ties are decided by lot. With fewer nodes than tasks, each
    has a task before one has a second.
    """
    order = np.argsort(loads, kind="stable")
    return order[np.arange(tasks) % len(order)]


def fill_levels(loads: Indexes, tasks: int) -> Indexes:
    """Batch filling: the position of the least loaded node, which then has one more, by task."""
    chosen: list[Indexes] = []
    missing = tasks
    level = int(loads.min())
    while missing:
        at_level = np.flatnonzero(loads <= level)[:missing]
        chosen.append(at_level)
        missing -= len(at_level)
        level += 1
    return np.concatenate(chosen)


def choose_each(probes: Indexes, loads: Indexes) -> Indexes:
    """Per-task sampling: each row's least loaded node; rows know nothing of each other."""
    chosen: Indexes = probes[np.arange(len(probes)), loads.argmin(axis=1)]
    return chosen


def distinct(rng: np.random.Generator, nodes: int, count: int, jobs: int) -> Iterator[Indexes]:
    """For each job, `count` distinct random nodes.

    The first distinct values of random draws are a uniform sample, and faster than a shuffle.
    """
    if count * 4 > nodes:
        for _ in range(jobs):
            yield rng.permutation(nodes)[:count]
        return
    extra = count + 8 + int(count * count / nodes)
    position = np.arange(extra)
    seen_at = np.zeros(nodes, np.int64)
    for draws in rng.integers(0, nodes, (jobs, extra)):
        seen_at[draws[::-1]] = position[::-1]  # the last assignment counts: the first occurrence
        first = draws[seen_at[draws] == position]
        yield first[:count] if len(first) >= count else rng.permutation(nodes)[:count]


def _rows_of_distinct(rng: np.random.Generator, nodes: int, shape: tuple[int, int]) -> Indexes:
    """Rows of distinct random nodes; rows with duplicates are redrawn."""
    rows = rng.integers(0, nodes, shape)
    while True:
        ordered = np.sort(rows, axis=1)
        doubled = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if not len(doubled):
            return rows
        rows[doubled] = rng.integers(0, nodes, (len(doubled), shape[1]))


def response_times_s(
    workload: Workload,
    *,
    nodes: int,
    slots: int = 1,
    seed: int,
    network: Network | None = None,
    cancellation: bool = True,
    on_jobs: Callable[[int], None] = lambda _: None,
) -> Floats:
    """Simulate a workload; returns response times of its jobs in order of arrival.

    A seed gives the same task times and arrivals (in units of their mean) under each placement and
    ratio, so that differences between them have less noise. `on_jobs` is called with the number of
    jobs done since the last call. ValueError for placement constraints, and for placements that are
    not in `VECTORIZED`.
    """
    if workload.replicas:
        raise ValueError("the vectorized simulator supports no constraints")
    if workload.placement not in VECTORIZED:
        raise ValueError(f"placement {workload.placement!r} is none of {', '.join(VECTORIZED)}")
    rng, choices = (np.random.default_rng((seed, stream)) for stream in range(2))
    place = _placer(
        workload, nodes, slots, network or Network(), choices, cancellation=cancellation
    )
    times_s: list[float] = []
    now_s = 0.0
    while (missing := workload.jobs - len(times_s)) > 0:
        jobs = min(_JOBS_AT_ONCE, missing)
        gaps_s = ARRIVALS[workload.arrivals](rng, jobs) * workload.interval_s(nodes * slots)
        arrivals_s = (now_s + np.cumsum(gaps_s)).tolist()
        now_s = arrivals_s[-1]
        times_s += place(arrivals_s, _task_times_s(workload, rng, jobs))
        on_jobs(jobs)
    return np.array(times_s)


Place = Callable[[list[float], Floats], Iterator[float]]


def _placer(
    workload: Workload,
    nodes: int,
    slots: int,
    network: Network,
    rng: np.random.Generator,
    *,
    cancellation: bool,
) -> Place:
    """What runs jobs, given their arrivals and a row of task times each."""
    tasks = workload.tasks
    probes = policy.reservation_count(tasks, workload.probe_ratio)
    remembers = workload.placement in ("batch", "batch_filling", "per_task")
    cluster = VectorCluster(nodes, slots, network, cancellation=cancellation, remembers=remembers)

    def central(arrivals_s: list[float], times_s: Floats) -> Iterator[float]:
        return map(queue.run, arrivals_s, times_s.tolist())

    def sparrow(arrivals_s: list[float], times_s: Floats) -> Iterator[float]:
        if probes > nodes:
            each, more = divmod(probes, nodes)
            spread = (
                np.concatenate((np.tile(order, each), order[:more]))
                for order in distinct(rng, nodes, nodes, len(arrivals_s))
            )
            return map(cluster.late_binding_crowded, arrivals_s, spread, times_s)
        sampled = distinct(rng, nodes, probes, len(arrivals_s))
        return map(cluster.late_binding, arrivals_s, sampled, times_s)

    def random(arrivals_s: list[float], times_s: Floats) -> Iterator[float]:
        return map(cluster.bound, arrivals_s, rng.integers(0, nodes, times_s.shape), times_s)

    def batch(arrivals_s: list[float], times_s: Floats) -> Iterator[float]:
        choose = least_loaded if workload.placement == "batch" else fill_levels
        sampled = distinct(rng, nodes, min(probes, nodes), len(arrivals_s))
        for at_s, each, times in zip(arrivals_s, sampled, times_s, strict=True):
            chosen = each[choose(cluster.loads(at_s, each), tasks)]
            yield cluster.bound(at_s, chosen, times, ways=4)

    def per_task(arrivals_s: list[float], times_s: Floats) -> Iterator[float]:
        count = min(nodes, policy.reservation_count(1, workload.probe_ratio))
        for at_s, times in zip(arrivals_s, times_s, strict=True):
            pairs = _rows_of_distinct(rng, nodes, (tasks, count))
            loads = cluster.loads(at_s, pairs.ravel()).reshape(pairs.shape)
            yield cluster.bound(at_s, choose_each(pairs, loads), times, ways=4)

    queue = CentralQueue(nodes * slots, network.delay_s)
    placers: dict[str, Place] = {
        "central": central, "sparrow": sparrow, "random": random,
        "batch": batch, "batch_filling": batch, "per_task": per_task,
    }  # fmt: skip
    return placers[workload.placement]


def _task_times_s(workload: Workload, rng: np.random.Generator, jobs: int) -> Floats:
    shape = (jobs, workload.tasks)
    return DISTRIBUTIONS[workload.distribution](rng, shape) * workload.task_s
