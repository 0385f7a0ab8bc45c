"""Queue disciplines: which job gets the next free slot of a node.

A discipline is chosen by name per node, one of `DISCIPLINES` or "module:factory" for a plug-in. It
sees the queued jobs in order of arrival, and is told when slots are taken and released; the queue
itself belongs to the node monitor. Jobs between which a discipline decides by arrival alone form a
*lane*, and only the first job of each lane is a candidate: the cost of a choice depends on the
number of users, groups or priorities, not of jobs.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from machine_kit.addresses import Address
from sparrow_core.policy.plugins import is_path, made
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.types import Claim

_SMOOTHING = 0.2  # weight of the latest task in the running mean of a share's task times
_FIRST_GUESS_S = 0.1  # of that mean
_ALIKE: Mapping[str, float] = {}  # weights of 1
_Waiting = tuple[JobId, float]  # the oldest job of a group, and since when it waits
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class Queued:
    """A job's reservations on a node."""

    scheduler: Address
    count: int  # reservations in the queue
    claim: Claim
    since: float  # when it was queued or last chosen
    asked: int = 0  # slots that wait for the scheduler's answer
    ahead: int = 0  # tasks of it that a slot may have beyond one


Candidates = Iterator[tuple[JobId, Queued]]


class Discipline:
    """First in, first out."""

    # A reservation stays until its job has nothing left for the node, so that the node asks for one
    # task after the other (Eagle's sticky batch probing).
    sticky = False
    unbounded = False  # ignores the number of free slots
    steady = True  # the next choice is the same job, as long as it may have another slot

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        """Key of the job's lane: within a lane, the oldest job is always chosen."""
        return claim.framework

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        """The candidate that gets a slot; None if there is no candidate."""
        return next((job_id for job_id, _ in candidates), None)

    def taken(self, claim: Claim, count: int = 1) -> None:
        """Slots were taken for a job."""

    def given_back(self, claim: Claim, ran_s: float | None, count: int = 1) -> None:
        """Slots were released, one after a task of `ran_s` seconds, or `count` if none came."""

    def set_weights(self, weights: dict[str, float]) -> None:
        """Set the users' weights; 1 for those not named."""

    def check(self, taken: Mapping[Claim, int]) -> None:
        """Assert that it counts exactly these slots as taken."""


class NoQueue(Discipline):
    """No queue: a task for every reservation at once; executors queue what exceeds their slots."""

    unbounded = True


class StrictPriority(Discipline):
    """Strict priority: smallest number first, by arrival within a priority; no preemption."""

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        return claim.framework, claim.priority

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        first = min(candidates, key=lambda candidate: candidate[1].claim.priority, default=None)
        return first[0] if first else None


class ShortestRemaining(Discipline):
    """Shortest remaining work first, with sticky reservations and bounded starvation (Eagle).

    A job that has not been chosen for five times its task time goes first.
    """

    sticky = True
    steady = False
    _PATIENCE = 5.0

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        """A lane per job: remaining work changes, so no order is fixed."""
        return job_id

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        first = min(candidates, key=lambda candidate: self._rank(candidate[1], now), default=None)
        return first[0] if first else None

    def _rank(self, queued: Queued, now: float) -> tuple[bool, float]:
        claim = queued.claim
        # Long jobs would starve under a steady stream of short ones.
        if now - queued.since > self._PATIENCE * claim.task_s:
            return False, queued.since
        return True, claim.task_s * claim.waiting


@dataclass(slots=True, kw_only=True)
class _Share:
    """What a user, or a group of a user's jobs, has had; the node is the share of all users.

    Attributes:
        weight: Its part of what it shares with others, in proportion.
        served_s: The level where it began, and its service since then, in seconds / weight.
        running: Slots that it has.
        mean_s: Running mean of its task times.
        parts: Those among which it is divided that have tasks here: of a user its groups.
        start_s: The level where those begin that come.
        waited: The parts that waited when it was last chosen among them.
        chose_at: When that was.
        back_at: When it came back while tasks of it still ran. Their time before that is not
            charged: the level where it began again is no lower than that of those who waited.
    """

    weight: float = 1.0
    served_s: float = 0.0
    running: int = 0
    mean_s: float = _FIRST_GUESS_S
    parts: dict[str, _Share] = field(default_factory=dict)
    start_s: float = 0.0
    waited: Container[str] = ()
    chose_at: float = -math.inf
    back_at: float = -math.inf

    def part(self, name: str, weight: float = 1.0) -> _Share:
        """One of its parts; a new one has tasks as long as the others', as far as is known."""
        part = self.parts.get(name)
        if part is None:
            part = _Share(weight=weight, served_s=self.start_s, mean_s=self.mean_s)
            self.parts[name] = part
        return part

    @property
    def level_s(self) -> float:
        """Its normalized service."""
        # Running tasks count in advance: else one part would get all slots that are free at once.
        return self.served_s + self.running * self.mean_s / self.weight

    def serve_next(
        self,
        waiting: Mapping[str, T],
        weights: Mapping[str, float],
        since: Callable[[T], float],
        now: float,
    ) -> str:
        """The name of the part that is served next, of those that wait: the lowest.

        Of these, one that has no slot: how long others' tasks will run is a guess. Then the oldest.
        `since` tells when the oldest came of what waits of a part.
        """
        parts = self.parts
        if len(parts) > 1 or waiting.keys() != parts.keys():
            self._meet(waiting, weights, since, now)
            first = min(waiting, key=lambda name: (parts[name].level_s, parts[name].running))
        else:
            (first,) = waiting
        self.start_s = parts[first].level_s
        self.waited, self.chose_at = waiting, now
        return first

    def _meet(
        self,
        waiting: Mapping[str, T],
        weights: Mapping[str, float],
        since: Callable[[T], float],
        now: float,
    ) -> None:
        """Drop what is over, and let those begin that are new or back."""
        parts = self.parts
        for name in [name for name in parts if name not in waiting and not parts[name].running]:
            self._drop(name)
        # Nobody begins above one that waits, who may have been expected to take longer than it did.
        back = [
            name
            for name in waiting
            if name in parts and name not in self.waited and since(waiting[name]) > self.chose_at
        ]
        levels_s = [parts[name].level_s for name in waiting if name in parts and name not in back]
        self.start_s = min([self.start_s, *levels_s])
        for name in waiting:
            if name not in parts:
                self.part(name, weights.get(name, 1.0))
        for name in back:
            parts[name].come_back(self.start_s, now)

    def come_back(self, start_s: float, now: float) -> None:
        """What others have had meanwhile is no credit."""
        if self.level_s < start_s:
            self.served_s += start_s - self.level_s
            self.back_at = now

    def _drop(self, name: str) -> None:
        """Forget a part; for those that are left, time passes by what it had in it.

        Otherwise newcomers would begin at one level for ever, below whoever waits longer: a stream
        of them would starve it.
        """
        weights = sum(part.weight for part in self.parts.values())
        part = self.parts.pop(name)
        self.start_s += max(0.0, part.served_s - self.start_s) * part.weight / weights

    def charge(self, ran_s: float, now: float) -> None:
        charged_s = ran_s if self.back_at + ran_s <= now else max(0.0, now - self.back_at)
        self.served_s += charged_s / self.weight
        self.mean_s += _SMOOTHING * (ran_s - self.mean_s)


def _came_at(waiting: _Waiting) -> float:
    return waiting[1]


def _oldest(groups: Mapping[str, _Waiting]) -> float:
    return min(map(_came_at, groups.values()))


class WeightedFair(Discipline):
    """Weighted fair sharing of slot time among users, and of a user's among its groups of jobs.

    Start-time fair queueing in two levels, among those with queued jobs: of the users, and then of
    the user's groups (`JobOptions.group`), the one with the least (service + expected time of
    running tasks) / weight is next. Groups weigh the same; jobs of one are served in order of
    arrival. Whoever comes, also after a time away, begins at the level of the one served last: a
    newcomer is next, and idleness earns no more credit than that.
    """

    steady = False

    def __init__(self) -> None:
        self._weights: dict[str, float] = {}
        self._all = _Share()
        self._now = -math.inf  # when it was last asked to choose

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        return claim.framework, claim.user, claim.group

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        waiting: dict[str, dict[str, _Waiting]] = {}
        for job_id, queued in candidates:
            claim = queued.claim
            waiting.setdefault(claim.user, {}).setdefault(claim.group, (job_id, queued.since))
        self._now = now
        if not waiting:
            return None
        user = self._all.serve_next(waiting, self._weights, _oldest, now)
        groups = waiting[user]
        return groups[self._all.parts[user].serve_next(groups, _ALIKE, _came_at, now)][0]

    def taken(self, claim: Claim, count: int = 1) -> None:
        node = self._all
        user = node.part(claim.user, self._weights.get(claim.user, 1.0))
        group = user.part(claim.group)
        node.running += count
        user.running += count
        group.running += count

    def given_back(self, claim: Claim, ran_s: float | None, count: int = 1) -> None:
        self.taken(claim, -count)
        user = self._all.parts[claim.user]
        group = user.parts[claim.group]
        assert group.running >= 0
        if ran_s is not None:
            self._all.charge(ran_s, self._now)
            user.charge(ran_s, self._now)
            group.charge(ran_s, self._now)

    def set_weights(self, weights: dict[str, float]) -> None:
        self._weights = weights
        for user, share in self._all.parts.items():
            share.weight = weights.get(user, 1.0)

    def check(self, taken: Mapping[Claim, int]) -> None:
        running: Counter[tuple[str, str]] = Counter()
        for claim, count in taken.items():
            running[claim.user, claim.group] += count
        users = self._all.parts
        assert self._all.running == running.total()
        assert all(share.running == sum(part.running for part in share.parts.values())
                   for share in users.values())  # fmt: skip
        assert +running == +Counter({
            (user, group): part.running
            for user, share in users.items() for group, part in share.parts.items()
        })  # fmt: skip


class Lanes:
    """The jobs of a queue by lane.

    A lane has jobs of one framework only: if its oldest job has no free slot, none of it has.
    """

    def __init__(self, discipline: Discipline) -> None:
        self._discipline = discipline
        self._lane_of: dict[JobId, Hashable] = {}  # in order of arrival
        self._lanes: dict[Hashable, OrderedDict[JobId, int]] = {}
        self._arrivals = 0

    def add(self, job_id: JobId, claim: Claim) -> None:
        """Append a job that is not queued."""
        lane = self._discipline.lane(job_id, claim)
        self._lane_of[job_id] = lane
        self._arrivals += 1
        self._lanes.setdefault(lane, OrderedDict())[job_id] = self._arrivals

    def remove(self, job_id: JobId) -> None:
        lane = self._lane_of.pop(job_id)
        del self._lanes[lane][job_id]
        if not self._lanes[lane]:
            del self._lanes[lane]

    def heads(self) -> Iterable[JobId]:
        """The oldest job of each lane, in order of arrival; consume before the next change."""
        if len(self._lanes) == len(self._lane_of):  # one job per lane: no need to sort
            return self._lane_of
        oldest = [next(iter(lane.items())) for lane in self._lanes.values()]
        return [job_id for job_id, _ in sorted(oldest, key=lambda job: job[1])]

    def check(self, queue: Iterable[JobId]) -> None:
        """Assert that exactly these jobs are there, in this order of arrival."""
        assert list(queue) == list(self._lane_of)
        assert len(self._lane_of) == sum(map(len, self._lanes.values()))


DISCIPLINES: dict[str, type[Discipline]] = {
    "fifo": Discipline,
    "priority": StrictPriority,
    "fair": WeightedFair,
    "srpt": ShortestRemaining,
    "no_queue": NoQueue,
}


def make_discipline(policy: str) -> Discipline:
    """A new discipline of that name, or of a plug-in, "module:factory".

    Raises:
        SparrowError: There is none, or it can't be imported.
    """
    if is_path(policy):
        return made(policy, "policy", Discipline, SparrowError)
    if policy not in DISCIPLINES:
        names = ", ".join(DISCIPLINES)
        raise SparrowError(f"policy {policy!r} is none of {names}, and no module:factory")
    return DISCIPLINES[policy]()
