"""A third simulator: event-driven like `world`, but of what is decided alone, and so far quicker.

Production placers decide where reservations go and who gets which task, production disciplines
whose turn it is at a node. Left out is all that decides nothing while nothing fails: heartbeats,
reports, acknowledgements, executors, and messages as objects. Those of one instant to many nodes
are one event; all delays between nodes are equal, so they wait in a queue and not in a heap. With
the same seed, jobs take as long as on the production machines, to rounding: the tests hold it to
that. It is for a quiet network, tasks of a millisecond or more, and nodes that never change.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Any

from sparrow_core.disciplines import Discipline, Queued, make_discipline
from sparrow_core.ids import Address, JobId, NodeName
from sparrow_core.messages import StartJob
from sparrow_core.parts import Claim, TaskSpec
from sparrow_core.placement import Placer, make_placer
from sparrow_core.sim.cluster import duration_of
from sparrow_core.sim.network import Network
from sparrow_core.sim.workload import Arrival

_NOBODY = Address("")
_NO_CLAIM = Claim()


class _Ask:
    """Tasks of a job that a node asks for."""

    __slots__ = ("claim", "count", "live")

    def __init__(self, claim: Claim, count: int) -> None:
        self.claim = claim
        self.count = count
        self.live = True


class _Job:
    """An open job at its scheduler."""

    __slots__ = (
        "asks", "at_s", "cancelled", "job_id", "last_s", "left", "placer", "reserved", "start",
    )  # fmt: skip

    def __init__(self, start: StartJob, at_s: float, placer: Placer) -> None:
        self.start = start
        self.job_id = start.job_id
        self.at_s = at_s
        self.placer = placer
        self.cancelled: dict[NodeName, None] = {}
        self.reserved: dict[NodeName, int] = {}
        self.asks: dict[NodeName, list[_Ask]] = {}
        self.left = len(start.tasks)
        self.last_s = 0.0

    def claim_now(self) -> Claim:
        """What queue disciplines may know of the job now."""
        options = self.start.options
        return Claim(
            self.start.user, options.framework, options.priority, options.task_s,
            len(self.placer.waiting),
        )  # fmt: skip


class _Held(Queued):
    """A job's reservations on a node."""

    __slots__ = ("job",)

    def __init__(self, job: _Job, number: int, claim: Claim, now: float) -> None:
        super().__init__(_NOBODY, number, claim, now)
        self.job = job


class _Node:
    """A node's queue and slots."""

    __slots__ = ("discipline", "flush_due", "name", "plain", "queue", "queued", "room")

    def __init__(self, name: NodeName, slots: int, policy: str) -> None:
        self.name = name
        self.room = slots
        self.discipline = make_discipline(policy)
        self.plain = type(self.discipline) is Discipline  # first in, first out: nothing to keep
        self.queue: dict[JobId, _Held] = {}
        self.queued = 0
        self.flush_due = False

    def unqueue(self, job_id: JobId) -> None:
        queued = self.queue.pop(job_id, None)
        if queued is not None:
            self.queued -= queued.count

    def unclaimed(self, queued: Queued) -> int:
        wanted = queued.claim.waiting - queued.asked if self.discipline.sticky else queued.count
        return min(wanted, self.room)


class ExpressCluster:
    """Nodes and schedulers in which nothing fails.

    Attributes:
        ended_s: Response times of jobs that have ended, in seconds, by job.
        on_run: Called with each start of a task (job, node, time) and its end, if set.

    Args:
        nodes: How many; they are called n0, n1 ...
        slots: Of each.
        policy: Queue discipline of the nodes.
        seed: Of placement.
        network: Its delays; no loss, no jitter.
        cancellation: Whether reservations are withdrawn when all tasks of a job are bound.
    """

    def __init__(
        self,
        *,
        nodes: int,
        slots: int = 1,
        policy: str = "fifo",
        seed: int = 1,
        network: Network | None = None,
        cancellation: bool = True,
    ) -> None:
        """Start with idle nodes at time 0."""
        network = network or Network()
        self.ended_s: dict[JobId, float] = {}
        self.on_run: Callable[[StartJob, int, float], None] | None = None
        self.now = 0.0
        self._delay_s = network.delay_s
        self._local_s = network.local_delay_s
        self._cancellation = cancellation
        self._rng = Random(seed)
        self._names = [NodeName(f"n{number}") for number in range(nodes)]
        self._nodes = {name: _Node(name, slots, policy) for name in self._names}
        self._order = count()
        self._messages: deque[tuple[float, Callable[[], None]]] = deque()  # all take `delay_s`
        self._timers: list[tuple[float, int, Any]] = []
        self._flushes: deque[_Node] = deque()

    def run(self, arrivals: Sequence[Arrival], until_s: float = float("inf")) -> None:
        """Let jobs arrive, in order of time, and run until nothing is left or until a time."""
        timers, messages, flushes = self._timers, self._messages, self._flushes
        coming = deque(arrivals)
        never = float("inf")
        while True:
            next_s = coming[0].at_s if coming else never
            due = 0
            if messages and messages[0][0] <= next_s:
                next_s, due = messages[0][0], 1
            if timers and timers[0][0] < next_s:
                next_s, due = timers[0][0], 2
            while flushes and next_s > self.now:
                self._flush(flushes.popleft())
                if messages and messages[0][0] < next_s:
                    next_s, due = messages[0][0], 1
            if next_s > until_s or next_s == never:
                return
            self.now = next_s
            if due == 1:
                messages.popleft()[1]()
            elif due == 2:
                self._fire(heapq.heappop(timers)[2])
            else:
                self._send(partial(self._submit, coming.popleft()))

    def call(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._timers, (at_s, next(self._order), action))

    def _send(self, handle: Callable[[], None]) -> None:
        self._messages.append((self.now + self._delay_s, handle))

    def _fire(self, timer: Any) -> None:
        if type(timer) is tuple:
            self._end_task(*timer)
        else:
            timer()

    # --- schedulers ----------------------------------------------------------------------------

    def _submit(self, arrival: Arrival) -> None:
        start = arrival.job
        placer = make_placer(start.placement, self._rng, start.probe_ratio, start.tasks)
        job = _Job(start, arrival.at_s, placer)
        probes = placer.probes(start.tasks, self._names)
        if probes:
            self._send(partial(self._probe, job, probes))
        else:
            self._place(job)

    def _probe(self, job: _Job, probes: Sequence[NodeName]) -> None:
        nodes = self._nodes
        loads = {name: nodes[name].queued or -nodes[name].room for name in probes}
        self._send(partial(self._place_probed, job, loads))

    def _place_probed(self, job: _Job, loads: dict[NodeName, int]) -> None:
        job.placer.note_loads(loads)
        self._place(job)

    def _place(self, job: _Job) -> None:
        self._reserve(job, job.placer.place(job.start.tasks, self._names))
        waits: dict[float, list[int]] = {}
        for task in job.start.tasks:
            if task.wait_s is not None and task.preferred_nodes:
                waits.setdefault(task.wait_s, []).append(task.task_id)
        for wait_s, task_ids in waits.items():
            self.call(self.now + wait_s, partial(self._widen, job, task_ids))

    def _widen(self, job: _Job, task_ids: list[int]) -> None:
        if job.left:
            self._reserve(job, job.placer.widen(task_ids, self._names))

    def _reserve(self, job: _Job, reservations: Any) -> None:
        if not reservations:
            return
        held = job.reserved
        if held:
            for name, number in reservations.items():
                held[name] = held.get(name, 0) + number
        else:
            held.update(reservations)
        self._send(partial(self._queue, job, reservations, job.claim_now()))

    def _assign(self, job: _Job, node: _Node, ask: _Ask) -> None:
        placer, name = job.placer, node.name
        if name in job.cancelled and not placer.offers(name):
            return  # the cancellation answers
        tasks = placer.take(name, ask.count)
        held = job.reserved.get(name, 0) - len(tasks)
        drained = not placer.offers(name)
        if drained or held <= 0:
            job.reserved.pop(name, None)
        else:
            job.reserved[name] = held
        claim = _NO_CLAIM if node.plain else job.claim_now()
        self._send(partial(self._answer, job, node, ask, tasks, claim, drained))
        if not placer.waiting and job.reserved:
            cancelled = tuple(job.reserved)
            job.reserved.clear()
            if self._cancellation:
                job.cancelled = dict.fromkeys(cancelled)
                self._send(partial(self._cancel, job, cancelled))

    # --- nodes ---------------------------------------------------------------------------------

    def _wake(self, node: _Node) -> None:
        if not node.flush_due:
            node.flush_due = True
            self._flushes.append(node)

    def _queue(self, job: _Job, reservations: dict[NodeName, int], claim: Claim) -> None:
        nodes, flushes, job_id = self._nodes, self._flushes, job.job_id
        single = _Held(job, 1, claim, self.now)  # first in, first out takes it whole or not at all
        for name, number in reservations.items():
            node = nodes[name]
            held = node.queue.get(job_id)
            if held is None and number == 1 and node.plain:
                node.queue[job_id] = single
            elif held is None:
                node.queue[job_id] = _Held(job, number, claim, self.now)
            else:
                node.queue[job_id] = _Held(job, held.count + number, claim, held.since)
                node.queue[job_id].asked = held.asked
            node.queued += number
            if node.room and not node.flush_due:
                node.flush_due = True
                flushes.append(node)

    def _cancel(self, job: _Job, names: Sequence[NodeName]) -> None:
        nodes, job_id = self._nodes, job.job_id
        for name in names:
            node = nodes[name]
            node.unqueue(job_id)
            for ask in job.asks.pop(name, ()):
                if ask.live:
                    self._release(node, job_id, ask)
                    self._wake(node)

    def _flush(self, node: _Node) -> None:
        """Ask for as many tasks as slots are free, one message a job."""
        node.flush_due = False
        if node.plain:
            while node.room and node.queue:
                job_id, held = next(iter(node.queue.items()))
                number = min(held.count, node.room)
                if number == held.count:
                    del node.queue[job_id]
                else:
                    held.count -= number
                node.queued -= number
                self._ask(node, held.job, _Ask(_NO_CLAIM, number))
        elif node.room and node.queue:
            self._flush_by_discipline(node)

    def _ask(self, node: _Node, job: _Job, ask: _Ask) -> None:
        node.room -= ask.count
        job.asks.setdefault(node.name, []).append(ask)
        self._messages.append((self.now + self._delay_s, partial(self._assign, job, node, ask)))

    def _flush_by_discipline(self, node: _Node) -> None:
        asked: dict[JobId, tuple[_Job, _Ask]] = {}
        discipline, room = node.discipline, node.room
        while (job_id := self._choose(node)) is not None:
            held = node.queue[job_id]
            ask = asked.setdefault(job_id, (held.job, _Ask(held.claim, 0)))[1]
            number = node.unclaimed(held) if discipline.steady or len(node.queue) == 1 else 1
            ask.count += number
            node.room -= number
            for _ in range(number):
                discipline.taken(ask.claim)
            held.asked += number
            held.since = self.now
            if not discipline.sticky:
                held.count -= number
                node.queued -= number
                if not held.count:
                    del node.queue[job_id]
        node.room = room
        for job, ask in asked.values():
            self._ask(node, job, ask)

    def _choose(self, node: _Node) -> JobId | None:
        if not node.room:
            return None
        candidates = (
            (job_id, queued) for job_id, queued in node.queue.items() if node.unclaimed(queued) > 0
        )
        return node.discipline.choose(candidates, self.now)

    def _release(self, node: _Node, job_id: JobId, ask: _Ask) -> None:
        ask.live = False
        node.room += ask.count
        if not node.plain:
            for _ in range(ask.count):
                node.discipline.given_back(ask.claim, None)
            held = node.queue.get(job_id)
            if held is not None:
                held.asked = max(0, held.asked - ask.count)

    def _answer(
        self, job: _Job, node: _Node, ask: _Ask, tasks: list[TaskSpec], claim: Claim, drained: bool
    ) -> None:
        node.room -= len(tasks)
        if not node.plain:
            for _ in tasks:
                node.discipline.taken(claim)
        if ask.live:
            self._release(node, job.job_id, ask)
        if drained:
            node.unqueue(job.job_id)
        elif not node.plain and job.job_id in node.queue:
            node.queue[job.job_id].claim = claim
        for task in tasks:
            self._start_task(job, node, task, claim)
        if node.queue:
            self._wake(node)

    def _start_task(self, job: _Job, node: _Node, task: TaskSpec, claim: Claim) -> None:
        end_s = (self.now + self._local_s) + duration_of(task.payload, node.name)
        timer = (node, claim, self.now, job.start if self.on_run else None)
        heapq.heappush(self._timers, (end_s + self._local_s, next(self._order), timer))
        if self.on_run is not None:
            self.on_run(job.start, 1, self.now)
        job.left -= 1
        job.last_s = max(job.last_s, end_s + self._delay_s)
        if not job.left:
            self.ended_s[job.job_id] = job.last_s - job.at_s

    def _end_task(
        self, node: _Node, claim: Claim, started_s: float, start: StartJob | None
    ) -> None:
        node.room += 1
        if not node.plain:
            node.discipline.given_back(claim, self.now - started_s)
        if start is not None and self.on_run is not None:
            self.on_run(start, -1, self.now)
        if node.queue and not node.flush_due:
            node.flush_due = True
            self._flushes.append(node)
