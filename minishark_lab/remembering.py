"""Placements that remember what their scheduler has seen: past Sparrow, which is stateless.

Each is a `Placement` like a stranger's plug-in (docs/policies.md); an entry point gives it its
name. `dodoor` and `eagle` listen to heartbeats; `prequal` probes; under `known_idle` and `eagle`
nodes tell when they fall idle, and under `known_idle` schedulers tell each other what is on nodes.
What is remembered may be stale: it decides where tasks are likely to start soon, never whether they
run.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import msgspec

from sparrow_core.policy import sampling as policy
from sparrow_core.policy.early_binding import BoundPlacer
from sparrow_core.policy.late_binding import UnconstrainedPlacer, late_binding_placer
from sparrow_core.policy.placer import PlacedJob, Placement, Placer, Reservations
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.types import NodeLevel, TaskSpec

OPEN_MAX: Final = 4096  # jobs that are remembered; those that were aborted would stay for ever
GONE_MAX: Final = 4096  # lost nodes that are


@dataclass(slots=True, kw_only=True)
class _Open:
    """A job of which something may still be on nodes."""

    placer: Placer
    reserved_at: float = 0.0
    tried: dict[NodeName, None] = field(default_factory=dict)  # nodes that may have been idle
    prompt: int = 0  # those that were, as they asked at once
    held: dict[NodeName, int] = field(default_factory=dict)
    running: int = 0


class IdleShare:
    """An estimate of the share of nodes that are idle, from how soon they ask.

    A node that is idle asks a round trip after its reservation was sent; one that is busy later, or
    never. The round trip is the shortest time in which a node has asked so far.
    """

    SMOOTHING: Final = 0.2
    PROMPT: Final = 1.5  # round trips
    HOPE: Final = 1.1  # if all tasks were taken at once, more nodes may have been idle than asked

    def __init__(self) -> None:
        self.value = 0.5
        self._round_trip_s = float("inf")

    def prompt(self, took_s: float) -> bool:
        """Whether a node that asked so long after the reservations was idle."""
        self._round_trip_s = min(self._round_trip_s, max(took_s, 1e-6))
        return took_s <= self.PROMPT * self._round_trip_s

    def note(self, prompt: int, tasks: int, sent: int) -> None:
        """Of a job's reservations, which were for so many tasks, so many met idle nodes."""
        seen = prompt / sent
        if prompt >= tasks:
            seen = min(1.0, max(self.HOPE * self.value, seen))
        self.value += self.SMOOTHING * (seen - self.value)


class Memory:
    """What a scheduler has on each node: reservations and running tasks of certain jobs."""

    def __init__(self, *, free_only: bool = False) -> None:
        """`free_only`: the idle share is that of the nodes that had nothing of these jobs."""
        self.load: Counter[NodeName] = Counter()
        self.idle = IdleShare()
        self._free_only = free_only
        self._open: OrderedDict[JobId, _Open] = OrderedDict()

    def open(self, job: PlacedJob, placer: Placer) -> Placer:
        """Remember the job from now on; returns its placer."""
        self._open[job.job_id] = _Open(placer=placer)
        while len(self._open) > OPEN_MAX:
            _, oldest = self._open.popitem(last=False)
            self._release(oldest)
        return placer

    def reserved(self, job: PlacedJob, reservations: Reservations, now: float) -> None:
        open_ = self._open.get(job.job_id)
        if open_ is None:
            return
        open_.reserved_at = open_.reserved_at or now
        for node, count in reservations.items():
            if self.is_free(node) or not self._free_only:
                open_.tried[node] = None
            self._add(node, count)
            open_.held[node] = open_.held.get(node, 0) + count

    def asked(self, node: NodeName, job: PlacedJob, tasks: Sequence[TaskSpec], now: float) -> None:
        open_ = self._open.get(job.job_id)
        if open_ is None:
            return
        if tasks:
            open_.running += len(tasks)
            self._bound(node, len(tasks))
            open_.held[node] = open_.held.get(node, 0) - len(tasks)
            if node in open_.tried and self.idle.prompt(now - open_.reserved_at):
                open_.prompt += 1
        if not open_.placer.waiting:
            if open_.tried:
                self.idle.note(open_.prompt, len(job.tasks), len(open_.tried))
                open_.tried.clear()
            self._release(open_)

    def finished(self, node: NodeName, job: PlacedJob) -> None:
        open_ = self._open.get(job.job_id)
        if open_ is None:
            return
        self._ended(node)
        open_.running -= 1
        if not open_.running and not open_.placer.waiting:
            del self._open[job.job_id]

    def lost(self, node: NodeName) -> None:
        self.load.pop(node, None)
        for open_ in self._open.values():
            open_.held.pop(node, None)

    def _release(self, open_: _Open) -> None:
        """The scheduler cancels what the job still holds."""
        for node, count in open_.held.items():
            self._add(node, -count)
        open_.held.clear()

    def is_free(self, node: NodeName) -> bool:
        """Whether nothing that is remembered is there."""
        return node not in self.load

    def _bound(self, node: NodeName, tasks: int) -> None:
        """Reservations have become tasks, which are as much load, and new."""
        self._add(node, 0)

    def _ended(self, node: NodeName) -> None:
        """A task is no load any more."""
        self._add(node, -1)

    def _add(self, node: NodeName, count: int) -> None:
        """Nodes are kept in the order in which they last got work."""
        load = self.load[node] + count
        if load <= 0 or count >= 0:
            del self.load[node]
        if load > 0:
            self.load[node] = load

    def least_loaded(self, rng: Random, nodes: Sequence[NodeName], count: int) -> list[NodeName]:
        """That many nodes with the least load: free ones by lot, then those with the oldest work.

        A scheduler hears late of the end of a task: what began long ago may be over.
        """
        free = [node for node in nodes if self.is_free(node)]
        if len(free) >= count:
            return rng.sample(free, count)
        usable = dict.fromkeys(nodes)
        others = (node for node in self.load if node in usable and not self.is_free(node))
        return free + sorted(others, key=self.load.__getitem__)[: count - len(free)]


class Levels(Memory):
    """What is on each node, of whatever scheduler: what it told last, and what changed since.

    Schedulers tell each other both. What they tell is late, and may be lost: the node's next own
    word overrules it. A node that has told nothing is taken for one with a free slot. `load` is
    queued reservations minus free slots, and lacks nodes with one free slot.
    """

    # News of so many nodes, for each of the other schedulers, are told: a message in so many. So
    # are those that are that old.
    NEWS: Final = 10
    NEWS_S: Final = 0.05
    # Nothing is told where that would be more than this share of the nodes: so late, all schedulers
    # would choose the same nodes, and each does better on its own.
    NEWS_SHARE: Final = 0.05

    def __init__(self) -> None:
        super().__init__(free_only=True)
        self._stamps: dict[NodeName, int] = {}
        # Nodes that are lost, of which others may still tell: that is not to be remembered.
        self._gone: OrderedDict[NodeName, None] = OrderedDict()
        # To be told: the node, and its stamp and level, or 0 and a change of its level.
        self._news: dict[NodeName, list[Any]] = {}
        self._told_at = 0.0
        self.alone = False  # there are other schedulers, who are told nothing

    def is_free(self, node: NodeName) -> bool:
        return self.load.get(node, -1) < 0

    def told(self, node: NodeName, level: NodeLevel) -> None:
        """By the node itself."""
        if level.stamp > self._stamps.get(node, 0):
            self._news[node] = [node, level.stamp, level.net]
            self._stamps[node] = level.stamp
            self._set(node, level.net)

    def lost(self, node: NodeName) -> None:
        super().lost(node)
        self._stamps.pop(node, None)
        self._news.pop(node, None)
        self._gone[node] = None
        while len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)

    def joined(self, node: NodeName) -> None:
        """It lives, perhaps again."""
        self._gone.pop(node, None)

    def _bound(self, node: NodeName, tasks: int) -> None:
        self._add(node, tasks)  # it told its level as if the slots were free

    def _ended(self, node: NodeName) -> None:
        pass  # the node tells

    def _add(self, node: NodeName, count: int) -> None:
        news = self._news.get(node)
        if news is None:
            self._news[node] = [node, 0, count]
        else:
            news[2] += count
        self._change(node, count)

    def _change(self, node: NodeName, count: int) -> None:
        net = self.load.get(node, -1) + count
        if count < 0 and node in self.load and net != -1:
            self.load[node] = net
        else:
            self._set(node, net)

    def _set(self, node: NodeName, net: int) -> None:
        """Nodes are in the order in which they last got work."""
        self.load.pop(node, None)
        if net != -1:
            self.load[node] = net

    def news(self, peers: int, now: float) -> bytes:
        """What is new, if there is enough of it to be told, or it is old."""
        enough = self.NEWS * peers
        self.alone = enough > self.NEWS_SHARE * len(self._stamps)
        if self.alone:
            self._news.clear()
        if not self._news or (len(self._news) < enough and now < self._told_at + self.NEWS_S):
            return b""
        news, self._news, self._told_at = self._news, {}, now
        return _encoder.encode(list(news.values()))

    def heard(self, notes: bytes) -> None:
        """What is new at another scheduler; nonsense is ignored."""
        stamps = self._stamps
        try:
            news = _decoder.decode(notes)
        except msgspec.DecodeError:
            return
        for node, stamp, number in news:
            if node in self._gone:
                continue
            if not stamp:
                self._change(node, number)
            elif stamp > stamps.get(node, 0):  # else the node has told more since
                stamps[node] = stamp
                self._set(node, number)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[NodeName, int, int]])


class Remembering(Placement):
    """A placement with a memory of its own jobs."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()

    def on_reserved(self, job: PlacedJob, reservations: Reservations, now: float) -> None:
        self.memory.reserved(job, reservations, now)

    def on_asked(
        self, node: NodeName, job: PlacedJob, tasks: Sequence[TaskSpec], now: float
    ) -> None:
        self.memory.asked(node, job, tasks, now)

    def on_finished(self, node: NodeName, job: PlacedJob, took_s: float, now: float) -> None:
        self.memory.finished(node, job)

    def on_node_lost(self, node: NodeName, now: float) -> None:
        self.memory.lost(node)


# --- late binding --------------------------------------------------------------------------------


class AdaptiveRatio(Remembering):
    """Late binding with a probe ratio that adapts to load: 1.1 reservations per idle node needed.

    Tarcil's idea (Delimitrou et al., SoCC 2015) with what schedulers see anyway: how soon nodes
    ask. The job's own probe ratio is not used.
    """

    HEADROOM: Final = 1.1
    LEAST, MOST = 1.1, 6.0

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        wanted = self.HEADROOM / max(self.memory.idle.value, 0.01)
        ratio = min(max(wanted, self.LEAST), self.MOST)
        return self.memory.open(job, late_binding_placer(job, rng, ratio))


class KnownIdle(Remembering):
    """Late binding on the nodes that have least to do, as far as the scheduler knows.

    While enough nodes are idle, a job needs hardly more reservations than tasks, and no
    cancellations; what that saves is spent when none is idle, where more reservations help most,
    and on telling: nodes tell their level with each request, and when they fall idle (as in Join
    Idle Queue, Lu et al., 2011); schedulers tell each other what is new, in batches (as in Dodoor).
    """

    HEADROOM: Final = 1.02
    # Reservations a task where too few nodes are idle, also if other schedulers tell nothing: what
    # has four messages a task at 95 % load.
    CROWDED: Final = 1.15
    CROWDED_ALONE: Final = 1.35

    def __init__(self) -> None:
        self.levels = Levels()
        super().__init__(self.levels)

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        if any(task.preferred_nodes for task in job.tasks):
            return self.memory.open(job, late_binding_placer(job, rng, job.probe_ratio))
        return self.memory.open(job, _KnownIdlePlacer(rng, self))

    def on_heartbeat(
        self, node: NodeName, load: int, running: Mapping[JobId, float], now: float
    ) -> None:
        self.levels.joined(node)

    def on_level(self, node: NodeName, level: NodeLevel, now: float) -> None:
        self.levels.told(node, level)

    def notes(self, peers: int, now: float) -> bytes:
        return self.levels.news(peers, now)

    def on_notes(self, notes: bytes, now: float) -> None:
        self.levels.heard(notes)


class _KnownIdlePlacer(UnconstrainedPlacer):
    """Chooses nodes by what is on them."""

    wants_levels = True

    def __init__(self, rng: Random, placement: KnownIdle) -> None:
        alone = placement.levels.alone
        super().__init__(rng, placement.CROWDED_ALONE if alone else placement.CROWDED)
        self._placement = placement

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        usable, memory = policy.without(nodes, avoid), self._placement.memory
        free = sum(map(memory.is_free, usable))
        # That a node which is taken to be idle is that.
        likely = max(memory.idle.value, 0.01)
        needed = policy.reservation_count(len(tasks), self._placement.HEADROOM / likely)
        count = policy.reservation_count(len(tasks), self._probe_ratio)
        if needed <= min(free, count):
            count = needed
        if count > len(usable):
            return policy.spread_reservations(self._rng, usable, count)
        return dict.fromkeys(memory.least_loaded(self._rng, usable, count), 1)


# --- early binding -------------------------------------------------------------------------------


class Dodoor(Remembering):
    """Power of two choices on cached loads, which nodes tell from time to time.

    After Dodoor (Dhakal et al., 2024/25): heartbeats are its batches of loads; in between a
    scheduler counts its own tasks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[NodeName, int] = {}  # what others had there, at the last heartbeat

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return self.memory.open(job, _DodoorPlacer(rng, job.probe_ratio, self))

    def on_heartbeat(
        self, node: NodeName, load: int, running: Mapping[JobId, float], now: float
    ) -> None:
        self.told[node] = load - self.memory.load.get(node, 0)

    def on_node_lost(self, node: NodeName, now: float) -> None:
        super().on_node_lost(node, now)
        self.told.pop(node, None)


class _DodoorPlacer(BoundPlacer):
    def __init__(self, rng: Random, probe_ratio: float, placement: Dodoor) -> None:
        super().__init__(rng, probe_ratio)
        self._placement = placement
        self._dealt: Counter[NodeName] = Counter()

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        count = min(len(candidates), policy.reservation_count(1, self._probe_ratio))
        node = min(self._rng.sample(candidates, count), key=self._expected)
        self._dealt[node] += 1
        return node

    def _expected(self, node: NodeName) -> int:
        cached = self._placement.told.get(node, 0) + self._placement.memory.load.get(node, 0)
        return cached + self._dealt[node]


class Prequal(Placement):
    """Tasks go to the best of a pool of recent probes, which are sent beside jobs, not before them.

    After Prequal (Wydrowski et al., NSDI 2024). Each job probes as many nodes as it has tasks, and
    does not wait: the answers are for later jobs. A probe serves one task, and for at most a
    second. The best is that with the shortest queue; latency, its other signal, says little of
    nodes that run one task at a time.
    """

    POOL: Final = 16  # probes kept, or twice those of the latest job if that is more
    AGE_S: Final = 1.0

    def __init__(self) -> None:
        self.pool: OrderedDict[NodeName, tuple[int, float]] = OrderedDict()  # load, when
        self._room = self.POOL
        self._now = 0.0

    def on_job(self, job: PlacedJob, now: float) -> None:
        self._now = now

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        self._room = max(self.POOL, 2 * len(job.tasks))
        while self.pool and next(iter(self.pool.values()))[1] < self._now - self.AGE_S:
            self.pool.popitem(last=False)
        return _PrequalPlacer(rng, job.probe_ratio, self)

    def on_load(self, node: NodeName, load: int, now: float) -> None:
        self.pool[node] = (load, now)
        self.pool.move_to_end(node)
        while len(self.pool) > self._room:
            self.pool.popitem(last=False)

    def on_node_lost(self, node: NodeName, now: float) -> None:
        self.pool.pop(node, None)


class _PrequalPlacer(BoundPlacer):
    waits_for_loads = False

    def __init__(self, rng: Random, probe_ratio: float, placement: Prequal) -> None:
        super().__init__(rng, probe_ratio)
        self._placement = placement
        self._ranked: list[NodeName] | None = None  # best last

    def probes(self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName]) -> Sequence[NodeName]:
        return self._rng.sample(nodes, min(len(nodes), len(tasks)))

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        pool = self._placement.pool
        if self._ranked is None:
            self._ranked = sorted(pool, key=lambda node: -pool[node][0])
        usable = candidates if len(candidates) < len(pool) else dict.fromkeys(candidates)
        while self._ranked:
            node = self._ranked.pop()
            if node in usable:
                pool.pop(node, None)
                return node
        return self._rng.choice(candidates)


class JoinIdleQueue(Placement):
    """Tasks go to nodes that have said that they are idle, and else anywhere.

    Join-Idle-Queue (Lu et al., 2011). A node that falls idle tells the scheduler of its last task,
    where the paper's tells one at random.
    """

    def __init__(self) -> None:
        self.idle: OrderedDict[NodeName, int] = OrderedDict()  # free slots; who told first is first

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        return _JoinIdlePlacer(rng, job.probe_ratio, self)

    def on_level(self, node: NodeName, level: NodeLevel, now: float) -> None:
        self.idle.pop(node, None)
        if level.net < 0:
            self.idle[node] = -level.net

    def on_asked(
        self, node: NodeName, job: PlacedJob, tasks: Sequence[TaskSpec], now: float
    ) -> None:
        self.take(node, len(tasks))

    def take(self, node: NodeName, count: int) -> None:
        """So many of its free slots are to be used."""
        if node in self.idle:
            self.idle[node] -= count
            if self.idle[node] <= 0:
                del self.idle[node]

    def on_node_lost(self, node: NodeName, now: float) -> None:
        self.idle.pop(node, None)


class _JoinIdlePlacer(BoundPlacer):
    wants_levels = True

    def __init__(self, rng: Random, probe_ratio: float, placement: JoinIdleQueue) -> None:
        super().__init__(rng, probe_ratio)
        self._placement = placement

    def choose(self, task: TaskSpec, candidates: Sequence[NodeName]) -> NodeName:
        idle = self._placement.idle
        if not idle:
            return self._rng.choice(candidates)
        usable = dict.fromkeys(candidates)
        node = next((node for node in idle if node in usable), None)
        if node is None:
            return self._rng.choice(candidates)
        self._placement.take(node, 1)
        return node


# --- short jobs beside long ones -----------------------------------------------------------------


class Eagle(Placement):
    """Short jobs avoid nodes with long ones, and have nodes of their own.

    After Eagle (Delgado et al., SoCC 2016) and Hawk (ATC 2015). A job is long if its tasks are
    expected to take `LONG_TIMES` times the (geometric) mean of recent jobs. Long jobs may not use
    the short partition, a fixed share of the nodes, and reserve on those with least of the
    scheduler's long work. Short jobs reserve on nodes without a long job, as far as is known: from
    the scheduler's own jobs, and from heartbeats, which tell of tasks that run for long. In place
    of Eagle's bitmap, which nodes send with the answers to probes. In place of Hawk's stealing, a
    node that falls idle tells the scheduler of its last task, which reserves there for its oldest
    short job that waits.
    """

    LONG_TIMES: Final = 10.0
    TOLD_TIMES: Final = 3.0  # when a task that a heartbeat tells of is taken for a long one
    SHORT_PARTITION: Final = 0.1
    SMOOTHING: Final = 0.01

    def __init__(self) -> None:
        self.long = Memory()  # long jobs only
        self._told: dict[NodeName, None] = {}  # nodes that said that a task runs for long
        self._mean_log_s: float | None = None

    def placer(self, job: PlacedJob, rng: Random) -> Placer:
        if any(task.preferred_nodes for task in job.tasks):
            return late_binding_placer(job, rng, job.probe_ratio)
        if self._is_long(job):
            return self.long.open(job, _LongPlacer(rng, job.probe_ratio, self))
        return _ShortPlacer(rng, job.probe_ratio, self)

    def _is_long(self, job: PlacedJob) -> bool:
        """Whether a new job is long; jobs without an estimate are short."""
        if job.options.task_s <= 0:
            return False
        log_s = math.log(job.options.task_s)
        if self._mean_log_s is None:
            self._mean_log_s = log_s
        self._mean_log_s += self.SMOOTHING * (log_s - self._mean_log_s)
        return job.options.task_s > self.LONG_TIMES * self._usual_s()

    def _usual_s(self) -> float:
        """The geometric mean of estimates; infinite before a job with one has come."""
        return math.inf if self._mean_log_s is None else math.exp(self._mean_log_s)

    def has_long(self, node: NodeName) -> bool:
        """Whether a long task, or a reservation for one, is there as far as is known."""
        return node in self.long.load or node in self._told

    def for_short(self, node: NodeName) -> bool:
        """Whether the node is of the short partition: by its name, so that schedulers agree."""
        return zlib.crc32(node.encode()) % 1000 < 1000 * self.SHORT_PARTITION

    def on_reserved(self, job: PlacedJob, reservations: Reservations, now: float) -> None:
        self.long.reserved(job, reservations, now)

    def on_asked(
        self, node: NodeName, job: PlacedJob, tasks: Sequence[TaskSpec], now: float
    ) -> None:
        self.long.asked(node, job, tasks, now)

    def on_finished(self, node: NodeName, job: PlacedJob, took_s: float, now: float) -> None:
        self.long.finished(node, job)

    def on_heartbeat(
        self, node: NodeName, load: int, running: Mapping[JobId, float], now: float
    ) -> None:
        if running and max(running.values()) > self.TOLD_TIMES * self._usual_s():
            self._told[node] = None
        else:
            self._told.pop(node, None)

    def on_node_lost(self, node: NodeName, now: float) -> None:
        self.long.lost(node)
        self._told.pop(node, None)


class _EaglePlacer(UnconstrainedPlacer):
    def __init__(self, rng: Random, probe_ratio: float, placement: Eagle) -> None:
        super().__init__(rng, probe_ratio)
        self._placement = placement


class _LongPlacer(_EaglePlacer):
    wants_levels = True

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        usable = policy.without(nodes, avoid)
        general = [node for node in usable if not self._placement.for_short(node)] or usable
        count = policy.reservation_count(len(tasks), self._probe_ratio)
        if count > len(general):
            return policy.spread_reservations(self._rng, general, count)
        return dict.fromkeys(self._placement.long.least_loaded(self._rng, general, count), 1)


class _ShortPlacer(_EaglePlacer):
    wants_levels = True
    uses_idle = True

    def _place(
        self, tasks: Sequence[TaskSpec], nodes: Sequence[NodeName], avoid: Sequence[NodeName]
    ) -> Reservations:
        usable = policy.without(nodes, avoid)
        without = [node for node in usable if not self._placement.has_long(node)] or usable
        count = policy.reservation_count(len(tasks), self._probe_ratio)
        return policy.spread_reservations(self._rng, without, count)
