"""The express simulator: event-driven like `world`, with production policies but no machines.

Production placers and queue disciplines make all decisions. Left out is whatever has no effect
without faults: heartbeats, reports, acknowledgements, executors, and messages as objects. Messages
to many nodes at one instant are one event; all delays between nodes are equal, so that events wait
in a queue instead of a heap. With the same seed, response times equal those of `simulator.world` up
to rounding; tests compare them. It requires a network without faults, tasks of at least a
millisecond, and a fixed set of nodes.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from machine_kit.addresses import Address
from minishark_lab.models.traffic import NOTE_BYTES
from minishark_lab.simulator.cluster import duration_of
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import Arrival
from sparrow_core.machines.scheduler import SchedulerConfig
from sparrow_core.policy.disciplines import Discipline, Lanes, Queued, make_discipline
from sparrow_core.policy.placement import Placements
from sparrow_core.policy.placer import Placer
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import JobId, NodeName, TaskId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import Claim, NodeLevel, TaskSpec, claim_of

_NOBODY = Address("")
_NO_CLAIM = Claim()
_Ends = dict[Placements, "list[tuple[_Job, TaskId]]"]
_MESSAGE, _TIMER, _ARRIVAL = range(3)  # kinds of events


@dataclass(slots=True, eq=False)
class _Ask:
    """A request for tasks of a job, and the scheduler's answer."""

    job: _Job
    node: _Node
    claim: Claim
    count: int
    # What the node tells the scheduler with it: tasks that have ended, of any of its jobs.
    ended: Sequence[tuple[_Job, TaskId]] = field(default=(), init=False)
    level: NodeLevel | None = field(default=None, init=False)
    tasks: Sequence[TaskSpec] = field(default=(), init=False)
    answered: Claim = field(default=_NO_CLAIM, init=False)
    drained: bool = field(default=False, init=False)


class _Job:
    __slots__ = (
        "at_s", "cancelled", "job_id", "last_s", "left", "placements", "placer", "reserved",
        "running", "start",
    )  # fmt: skip

    def __init__(
        self, start: StartJob, at_s: float, placer: Placer, placements: Placements
    ) -> None:
        self.placements = placements  # of its scheduler
        self.start = start
        self.job_id = start.job_id
        self.at_s = at_s
        self.placer = placer
        self.cancelled: dict[NodeName, None] = {}
        self.reserved: dict[NodeName, int] = {}
        # Nodes of tasks, and when they were bound, until the scheduler hears that they have ended;
        # only if a placement watches.
        self.running: dict[TaskId, tuple[NodeName, float]] = {}
        self.left = len(start.tasks)
        self.last_s = 0.0

    def claim_now(self) -> Claim:
        start, placer = self.start, self.placer
        return claim_of(start.user, start.options, len(placer.waiting), levels=placer.wants_levels)


class _Held(Queued):
    """A job's reservations on a node."""

    __slots__ = ("job",)

    def __init__(self, job: _Job, number: int, claim: Claim, now: float) -> None:
        super().__init__(scheduler=_NOBODY, count=number, claim=claim, since=now)
        self.job = job


class _Node:
    """A node's queue, free slots and unanswered requests."""

    __slots__ = (
        "asks", "discipline", "flush_due", "idle_to", "lanes", "levels", "name", "plain", "queue",
        "queued", "ready", "room", "running", "slots", "unreported",
    )  # fmt: skip

    def __init__(self, name: NodeName, slots: int, policy: str) -> None:
        self.name = name
        self.slots = self.room = slots
        self.discipline = make_discipline(policy)
        self.plain = type(self.discipline) is Discipline  # FIFO needs no state
        self.lanes = Lanes(self.discipline)  # unused if plain
        self.queue: dict[JobId, _Held] = {}
        self.asks: list[_Ask] = []
        self.queued = 0
        self.flush_due = False
        # Answers with tasks, by job: they start when the node has handled what else has come.
        self.ready: dict[_Job, list[_Ask]] = {}
        # Job, task and start, oldest first; if there are heartbeats.
        self.running: dict[tuple[JobId, TaskId, float], None] = {}
        # Ends that the next message to their scheduler tells, if its placements watch.
        self.unreported: _Ends = {}
        self.levels = 0  # that were told
        self.idle_to: Placements | None = None  # to be told when the node falls idle

    def level(self, asked: int = 0) -> NodeLevel:
        """As the node monitor's."""
        self.levels += 1
        return NodeLevel(self.queued - self.room - asked, self.levels)

    def busy(self) -> int:
        """Slots with a task."""
        return self.slots - self.room - sum(ask.count for ask in self.asks)

    def longest(self, now: float) -> dict[JobId, float]:
        """For how long tasks of each job have run at most."""
        return {job_id: now - at_s for job_id, _, at_s in reversed(self.running)}

    def unqueue(self, job_id: JobId) -> None:
        queued = self.queue.pop(job_id, None)
        if queued is not None:
            self.queued -= queued.count
            if not self.plain:
                self.lanes.remove(job_id)

    def unclaimed(self, queued: Queued) -> int:
        wanted = queued.claim.waiting - queued.asked if self.discipline.sticky else queued.count
        return min(wanted, self.room)


class ExpressCluster:
    """Nodes (n0, n1 ...) and schedulers without faults.

    Raises:
        SparrowError: There is no such queue discipline, or it is one that queues at executors.
    """

    def __init__(
        self,
        *,
        nodes: int,
        slots: int = 1,
        policy: str = "fifo",
        seed: int = 1,
        network: Network | None = None,  # loss and jitter are ignored
        cancellation: bool = True,  # of reservations when all tasks of a job are bound
        schedulers: int = 1,  # among which jobs are dealt in turn; each has its own policies
        heartbeat_s: float | None = None,  # of nodes, for placements that listen to them
    ) -> None:
        if make_discipline(policy).unbounded:
            text = f"policy {policy!r} queues at executors, which is not simulated here"
            raise SparrowError(text)
        network = network or Network()
        self.ended_s: dict[JobId, float] = {}  # response times of finished jobs
        # If set, called at the start (job, 1, time) and end (job, -1, time) of each task.
        self.on_run: Callable[[StartJob, int, float], None] | None = None
        # If set, called when a job's last task starts, with the time of its result at the client.
        self.on_last: Callable[[JobId, float], None] | None = None
        self.now = 0.0
        self._delay_s = network.delay_s
        self._local_s = network.local_delay_s
        self._cancellation = cancellation
        self._rng = Random(seed)
        self._placements = [Placements() for _ in range(schedulers)]
        self._hungry: dict[Placements, dict[JobId, _Job]] = {each: {} for each in self._placements}
        self._turn = itertools.cycle(self._placements)
        self._heartbeat_s = heartbeat_s
        # Messages between schedulers and nodes, by kind, as `models.traffic` has them.
        self.sent: Counter[str] = Counter()
        self._names = [NodeName(f"n{number}") for number in range(nodes)]
        self._nodes = {name: _Node(name, slots, policy) for name in self._names}
        self._order = itertools.count()
        # When schedulers tick: they then tell each other what has been new for long.
        self._tick_s = SchedulerConfig().tick_s if schedulers > 1 else float("inf")
        self._tick_at = self._tick_s
        # (time, handler, subject). All messages take `delay_s`, so they are in order.
        self._messages: deque[tuple[float, Callable[[Any], None], Any]] = deque()
        self._timers: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._flushes: deque[_Node] = deque()

    def run(self, arrivals: Sequence[Arrival], until_s: float = float("inf")) -> None:
        """Submit jobs, which are in order of time, and run until nothing is left or a time."""
        if self._heartbeat_s is not None:
            last_s = arrivals[-1].at_s if arrivals else 0.0
            beats = int((last_s - self.now) / self._heartbeat_s)
            for beat in range(1, beats + 1):
                self.call(self.now + beat * self._heartbeat_s, self._beat)
        with _without_collector():
            self._run(deque(arrivals), until_s)

    def _run(self, coming: deque[Arrival], until_s: float) -> None:
        timers, messages, flushes = self._timers, self._messages, self._flushes
        never = float("inf")
        while True:
            next_s, due = messages[0][0] if messages else never, _MESSAGE
            if coming and coming[0].at_s < next_s:
                next_s, due = coming[0].at_s, _ARRIVAL
            if timers and timers[0][0] < next_s:
                next_s, due = timers[0][0], _TIMER
            if flushes and next_s > self.now:
                while flushes:
                    self._flush(flushes.popleft())
                continue  # their requests may be due first
            if next_s > until_s or next_s == never:
                return
            if next_s > self._tick_at:
                self.now = self._tick_at
                self._tick_at += self._tick_s
                for placements in self._placements:
                    self._tell_peers(placements)
                continue
            self.now = next_s
            if due == _MESSAGE:
                _, handle, subject = messages.popleft()
                handle(subject)
            elif due == _TIMER:
                _, _, handle, subject = heapq.heappop(timers)
                handle(subject)
            else:
                self._arrive(coming.popleft())

    def submit(self, arrival: Arrival) -> None:
        """Submit a job at a time in the future; also from callbacks."""
        self._wait(arrival.at_s, self._arrive, arrival)

    def call(self, at_s: float, action: Callable[[], None]) -> None:
        self._wait(at_s, lambda run: run(), action)

    def _send(self, handle: Callable[[Any], None], subject: Any) -> None:
        self._messages.append((self.now + self._delay_s, handle, subject))

    def _wait(self, until_s: float, handle: Callable[[Any], None], subject: Any) -> None:
        heapq.heappush(self._timers, (until_s, next(self._order), handle, subject))

    def _arrive(self, arrival: Arrival) -> None:
        self._send(self._submit, arrival)

    # --- schedulers ----------------------------------------------------------------------------

    def _beat(self) -> None:
        """All nodes report to all schedulers; a message later they have."""
        self.sent["heartbeat"] += len(self._nodes) * len(self._placements)
        reports = [
            (name, node.queued + node.busy(), node.longest(self.now), node.unreported)
            for name, node in self._nodes.items()
        ]
        for node in self._nodes.values():
            node.unreported = {}
        self._send(self._on_beat, reports)

    def _on_beat(self, reports: Sequence[tuple[NodeName, int, dict[JobId, float], _Ends]]) -> None:
        assert self._heartbeat_s is not None
        for placements in self._placements:
            for name, queued, running, ended in reports:
                long = {job_id: s for job_id, s in running.items() if s > self._heartbeat_s}
                for placement in placements:
                    placement.on_heartbeat(name, queued, long, self.now)
                self._tell_ended(ended.get(placements, ()))

    def _tell_ended(self, ended: Sequence[tuple[_Job, TaskId]]) -> None:
        """A scheduler hears of the ends of tasks."""
        for job, task_id in ended:
            run = job.running.pop(task_id, None)
            if run is None:
                continue  # the client was earlier
            name, bound_s = run
            for placement in job.placements:
                placement.on_finished(name, job.start, self.now - bound_s, self.now)

    def _end_job(self, job: _Job) -> None:
        """The client has all results, and has told the scheduler."""
        self._tell_ended([(job, task_id) for task_id in job.running])

    def _submit(self, arrival: Arrival) -> None:
        start = arrival.job
        placements = next(self._turn)
        placements.of(start.placement)
        for placement in placements:
            placement.on_job(start, self.now)
        placer = placements.placer(start.placement, start, self._rng)
        job = _Job(start, arrival.at_s, placer, placements)
        probes = placer.probes(start.tasks, self._names)
        self.sent["probe"] += len(probes)
        self.sent["load"] += len(probes)
        if probes:
            self._send(self._probe, (job, probes))
        if not probes or not placer.waits_for_loads:
            self._place(job)

    def _probe(self, probe: tuple[_Job, Sequence[NodeName]]) -> None:
        job, names = probe
        nodes = self._nodes
        loads = {name: nodes[name].queued or -nodes[name].room for name in names}
        self._send(self._on_loads, (job, loads))

    def _on_loads(self, probed: tuple[_Job, dict[NodeName, int]]) -> None:
        job, loads = probed
        for placement in job.placements:
            for name, load in loads.items():
                placement.on_load(name, load, self.now)
        if job.placer.waits_for_loads:
            job.placer.note_loads(loads)
            self._place(job)

    def _place(self, job: _Job) -> None:
        if job.placer.uses_idle:
            self._hungry[job.placements][job.job_id] = job
        self._reserve(job, job.placer.place(job.start.tasks, self._names))
        waits: dict[float, list[int]] = {}
        for task in job.start.tasks:
            if task.wait_s is not None and task.preferred_nodes:
                waits.setdefault(task.wait_s, []).append(task.task_id)
        for wait_s, task_ids in waits.items():
            self._wait(self.now + wait_s, self._widen, (job, task_ids))

    def _widen(self, late: tuple[_Job, list[int]]) -> None:
        job, task_ids = late
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
        self.sent["reserve"] += len(reservations)
        for placement in job.placements:
            placement.on_reserved(job.start, reservations, self.now)
        self._tell_peers(job.placements)
        self._send(self._queue, (job, reservations, job.claim_now()))

    def _on_ask(self, ask: _Ask) -> None:
        placements = ask.job.placements
        self._tell_ended(ask.ended)
        if ask.level is not None:
            for placement in placements:
                placement.on_level(ask.node.name, ask.level, self.now)
        self._assign(ask)
        if ask.level is not None and not ask.tasks:
            self._feed(placements, ask.node.name, ask.level)
        if placements.noting:
            self._tell_peers(placements)

    def _on_idle(self, told: tuple[Placements, NodeName, NodeLevel, Sequence[Any]]) -> None:
        placements, name, level, ended = told
        self._tell_ended(ended)
        for placement in placements:
            placement.on_level(name, level, self.now)
        self._feed(placements, name, level)
        self._tell_peers(placements)

    def _feed(self, placements: Placements, name: NodeName, level: NodeLevel) -> None:
        """As the scheduler's."""
        hungry = self._hungry[placements]
        if level.net < 0 and hungry:
            job = next(iter(hungry.values()))
            if name not in job.reserved:
                self._reserve(job, {name: 1})

    def _tell_peers(self, placements: Placements) -> None:
        peers = len(self._placements) - 1
        for name, placement in placements.noting.items() if peers else ():
            if body := placement.notes(peers, self.now):
                self.sent["notes"] += peers
                self.sent[NOTE_BYTES] += peers * len(body)
                self._send(self._on_notes, (placements, name, body))

    def _on_notes(self, told: tuple[Placements, str, bytes]) -> None:
        teller, name, body = told
        for placements in self._placements:
            if placements is not teller and name in placements.noting:
                placements.noting[name].on_notes(body, self.now)

    def _assign(self, ask: _Ask) -> None:
        job = ask.job
        placer, name = job.placer, ask.node.name
        if name in job.cancelled and not placer.offers(name):
            return  # answered by the cancellation
        ask.tasks = tasks = placer.take(name, ask.count)
        for placement in job.placements:
            placement.on_asked(name, job.start, tasks, self.now)
        if job.placements.watching:
            job.running.update((task.task_id, (name, self.now)) for task in tasks)
        ask.drained = drained = not placer.offers(name)
        held = job.reserved.get(name, 0) - len(tasks)
        if held > 0 and not drained:
            job.reserved[name] = held  # in its old place: nodes are cancelled in this order
        else:
            job.reserved.pop(name, None)
        self.sent["answer"] += 1
        if not ask.node.plain:
            ask.answered = job.claim_now()
        self._messages.append((self.now + self._delay_s, self._answer, ask))
        if not placer.waiting:
            self._hungry[job.placements].pop(job.job_id, None)
        if not placer.waiting and job.reserved:
            cancelled = tuple(job.reserved)
            job.reserved.clear()
            if self._cancellation:
                job.cancelled = dict.fromkeys(cancelled)
                self.sent["cancel"] += len(cancelled)
                self._send(self._cancel, (job, cancelled))

    # --- nodes ---------------------------------------------------------------------------------

    def _wake(self, node: _Node) -> None:
        if not node.flush_due:
            node.flush_due = True
            self._flushes.append(node)

    def _queue(self, placed: tuple[_Job, dict[NodeName, int], Claim]) -> None:
        job, reservations, claim = placed
        nodes, flushes, job_id = self._nodes, self._flushes, job.job_id
        single = _Held(job, 1, claim, self.now)  # shared: FIFO takes it whole or not at all
        for name, number in reservations.items():
            node = nodes[name]
            if number > 1 or not node.plain or node.queue.setdefault(job_id, single) is not single:
                self._add_held(node, job, number, claim)
            node.queued += number
            if not node.flush_due:  # also without room: its place among others of this instant
                node.flush_due = True
                flushes.append(node)

    def _add_held(self, node: _Node, job: _Job, number: int, claim: Claim) -> None:
        held = node.queue.get(job.job_id)
        if held is None:
            node.queue[job.job_id] = _Held(job, number, claim, self.now)
            if not node.plain:
                node.lanes.add(job.job_id, claim)
        else:
            node.queue[job.job_id] = _Held(job, held.count + number, claim, held.since)
            node.queue[job.job_id].asked = held.asked

    def _cancel(self, cancelled: tuple[_Job, Sequence[NodeName]]) -> None:
        job, names = cancelled
        nodes, job_id = self._nodes, job.job_id
        for name in names:
            node = nodes[name]
            node.unqueue(job_id)
            for ask in tuple(node.asks):
                if ask.job is job:
                    self._release(ask)
                    self._wake(node)

    def _flush(self, node: _Node) -> None:
        """Start what has come; ask for as many tasks as slots are free, one request per job."""
        node.flush_due = False
        if node.ready:
            ready, node.ready = node.ready, {}
            for answer in itertools.chain.from_iterable(ready.values()):
                for task in answer.tasks:
                    self._start_task(answer, task)
        queue = node.queue
        asks: list[_Ask] = []
        if not node.plain:  # also if nothing waits, or may start: disciplines look at that
            asks = self._chosen_by_discipline(node)
        while node.plain and node.room and queue:
            job_id = next(iter(queue))
            held = queue[job_id]
            number = held.count
            if number <= node.room:
                del queue[job_id]
            else:
                number = node.room
                held.count -= number
            node.queued -= number
            node.room -= number
            asks.append(_Ask(held.job, node, _NO_CLAIM, number))
        for ask in asks:
            self._ask(ask)
        if (told := node.idle_to) is not None:
            if not asks and node.room:
                self.sent["idle"] += 1
                ended = node.unreported.pop(told, ())
                self._send(self._on_idle, (told, node.name, node.level(), ended))
            if asks or node.room:
                node.idle_to = None

    def _ask(self, ask: _Ask) -> None:
        self.sent["ask"] += 1
        ask.node.asks.append(ask)
        if ask.job.placer.wants_levels:
            ask.level = ask.node.level(ask.count)
        ask.ended = ask.node.unreported.pop(ask.job.placements, ())
        self._messages.append((self.now + self._delay_s, self._on_ask, ask))

    def _chosen_by_discipline(self, node: _Node) -> list[_Ask]:
        asked: dict[JobId, _Ask] = {}
        discipline = node.discipline
        while (job_id := self._choose(node)) is not None:
            held = node.queue[job_id]
            ask = asked.setdefault(job_id, _Ask(held.job, node, held.claim, 0))
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
                    node.lanes.remove(job_id)
        return list(asked.values())

    def _choose(self, node: _Node) -> JobId | None:
        queue = node.queue
        candidates = (
            (job_id, queue[job_id])
            for job_id in (node.lanes.heads() if node.room else ())
            if node.unclaimed(queue[job_id]) > 0
        )
        return node.discipline.choose(candidates, self.now)

    def _release(self, ask: _Ask) -> None:
        node = ask.node
        node.asks.remove(ask)
        node.room += ask.count
        if not node.plain:
            for _ in range(ask.count):
                node.discipline.given_back(ask.claim, None)
            held = node.queue.get(ask.job.job_id)
            if held is not None:
                held.asked = max(0, held.asked - ask.count)

    def _answer(self, ask: _Ask) -> None:
        node, job = ask.node, ask.job
        node.room -= len(ask.tasks)
        if not node.plain:
            for _ in ask.tasks:
                node.discipline.taken(ask.answered)
        if ask in node.asks:
            self._release(ask)
        if ask.drained:
            node.unqueue(job.job_id)
        elif not node.plain and job.job_id in node.queue:
            node.queue[job.job_id].claim = ask.answered
        if ask.tasks:
            node.ready.setdefault(job, []).append(ask)
        self._wake(node)

    def _start_task(self, ask: _Ask, task: TaskSpec) -> None:
        job = ask.job
        node = ask.node
        end_s = (self.now + self._local_s) + duration_of(task.payload, node.name)
        if self._heartbeat_s is not None:
            run = (job.job_id, task.task_id, self.now)
            node.running[run] = None
            self._wait(end_s, lambda each: node.running.pop(each, None), run)
        if node.plain and self.on_run is None and not job.placements.watching:
            self._wait(end_s + self._local_s, self._free_slot, node)
        else:
            self._wait(end_s + self._local_s, self._end_task, (ask, task.task_id, self.now))
            if self.on_run is not None:
                self.on_run(job.start, 1, self.now)
        job.left -= 1
        job.last_s = max(job.last_s, end_s + self._delay_s)
        if not job.left:
            self.ended_s[job.job_id] = job.last_s - job.at_s
            if job.placements.watching:
                self._wait(job.last_s + self._delay_s, self._end_job, job)
            if self.on_last is not None:
                self.on_last(job.job_id, job.last_s)

    def _free_slot(self, node: _Node) -> None:
        node.room += 1
        self._wake(node)

    def _end_task(self, run: tuple[_Ask, TaskId, float]) -> None:
        ask, task_id, started_s = run
        placements = ask.job.placements
        if ask.job.placer.wants_levels:
            ask.node.idle_to = placements
        if placements.watching:
            ask.node.unreported.setdefault(placements, []).append((ask.job, task_id))
        if not ask.node.plain:
            ask.node.discipline.given_back(ask.answered, self.now - started_s)
        if self.on_run is not None:
            self.on_run(ask.job.start, -1, self.now)
        self._free_slot(ask.node)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Disable the garbage collector: there are no cycles, but millions of objects to scan."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
