"""Queue disciplines: which job's reservation gets the next free slot of a node.

A discipline is chosen by name for each node. It sees the queued jobs in their order of arrival, and
hears when a slot is taken for a job and when it is given back. The queue itself belongs to the node
monitor. Jobs that a discipline does not tell apart but by arrival are in one *lane*, of which it
needs to see the first only: a choice costs as many steps as there are users, not jobs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import Address, JobId
from sparrow_core.protocol.types import Claim

_SMOOTHING = 0.2  # weight of a user's latest task in the running mean of its task times
_FIRST_GUESS_S = 0.1  # of that mean


@dataclass(slots=True, kw_only=True)
class Queued:
    """A job's reservations on a node.

    `asked` are slots that wait for its scheduler's answer, `ahead` how many tasks of it a slot may
    have beyond one.
    """

    scheduler: Address
    count: int
    claim: Claim
    since: float
    asked: int = 0
    ahead: int = 0


Candidates = Iterator[tuple[JobId, Queued]]


class Discipline:
    """First in, first out; the others say how they differ.

    Attributes:
        sticky: A reservation stays until its job has nothing left for the node (Eagle's sticky
            batch probing): a node that served a job asks for more of it.
        unbounded: Free slots limit nothing.
        steady: The next choice is the same, for as long as the job may have another slot.
    """

    sticky = False
    unbounded = False
    steady = True

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        """What the job has in common with those before which it is chosen only if it is older."""
        del job_id
        return claim.framework

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        """The job that gets a slot, out of those that may have one; None if there is none."""
        del now
        return next((job_id for job_id, _ in candidates), None)

    def taken(self, claim: Claim, count: int = 1) -> None:
        """Slots were taken for a job."""

    def given_back(self, claim: Claim, ran_s: float | None, count: int = 1) -> None:
        """Slots were given back, one after a task of `ran_s`, or `count` if no task came."""

    def set_weights(self, weights: dict[str, float]) -> None:
        """Shares of users from now on; 1 for those not named."""


class NoQueue(Discipline):
    """A task for every reservation at once; executors queue what exceeds their slots."""

    unbounded = True


class StrictPriority(Discipline):
    """Smallest priority number first, by arrival within one; nothing is preempted."""

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        """Jobs of one priority."""
        del job_id
        return claim.framework, claim.priority

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        """The first of the most urgent."""
        del now
        first = min(candidates, key=lambda each: each[1].claim.priority, default=None)
        return first[0] if first else None


class ShortestRemaining(Discipline):
    """Least remaining work first, with sticky reservations and a cap on starvation (Eagle).

    A reservation that was passed over for `_PATIENCE` times its own task time goes first.
    """

    sticky = True
    steady = False
    _PATIENCE = 5.0

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        """The work that is left of a job changes, so none is always behind another."""
        del claim
        return job_id

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        """The longest starving one, or the one with the least work waiting."""
        first = min(candidates, key=lambda each: self._rank(each[1], now), default=None)
        return first[0] if first else None

    def _rank(self, queued: Queued, now: float) -> tuple[bool, float]:
        claim = queued.claim
        if now - queued.since > self._PATIENCE * claim.task_s:
            return False, queued.since
        return True, claim.task_s * claim.waiting


@dataclass(slots=True)
class _Share:
    """A user's service so far in seconds by weight, running tasks, and mean task time."""

    served_s: float = 0.0
    running: int = 0
    mean_s: float = _FIRST_GUESS_S


class WeightedFair(Discipline):
    """Slot time in proportion to weights among the users that want it.

    Start-time fair queueing over users: the user with the least (service + what its running tasks
    are expected to take) / weight is next. Who comes back from idleness starts at the level of the
    user served last: idleness earns no credit.
    """

    steady = False

    def __init__(self) -> None:
        """Start with equal weights."""
        self._weights: dict[str, float] = {}
        self._shares: dict[str, _Share] = {}
        self._level_s = 0.0

    def lane(self, job_id: JobId, claim: Claim) -> Hashable:
        """Jobs of one user."""
        del job_id
        return claim.framework, claim.user

    def choose(self, candidates: Candidates, now: float) -> JobId | None:
        """The oldest job of the user that is furthest behind."""
        del now
        first: dict[str, JobId] = {}
        for job_id, queued in candidates:
            first.setdefault(queued.claim.user, job_id)
        if not first:
            return None
        user = min(first, key=self._level_of)
        self._level_s = self._level_of(user)
        return first[user]

    def _level_of(self, user: str) -> float:
        """The user's normalized service; at least the level of the user served last."""
        share = self._shares.setdefault(user, _Share())
        ahead_s = share.running * share.mean_s / self._weight(user)
        share.served_s = max(share.served_s, self._level_s - ahead_s)
        return share.served_s + ahead_s

    def _weight(self, user: str) -> float:
        return self._weights.get(user, 1.0)

    def taken(self, claim: Claim, count: int = 1) -> None:
        """The user has more slots."""
        self._shares.setdefault(claim.user, _Share()).running += count

    def given_back(self, claim: Claim, ran_s: float | None, count: int = 1) -> None:
        """Charge the user with the time of the task."""
        share = self._shares[claim.user]
        share.running -= count
        assert share.running >= 0
        if ran_s is not None:
            share.served_s += ran_s / self._weight(claim.user)
            share.mean_s += _SMOOTHING * (ran_s - share.mean_s)
        if not share.running and share.served_s <= self._level_s:
            del self._shares[claim.user]  # a newcomer would start at the same level

    def set_weights(self, weights: dict[str, float]) -> None:
        """Charge by the new weights from now on."""
        self._weights = weights


class Lanes:
    """The jobs of a queue by lane: of each lane, a discipline chooses the oldest job or none.

    A lane is of one framework, so that if its oldest job may not have a slot, none of it may.
    """

    def __init__(self, discipline: Discipline) -> None:
        """Start with no job."""
        self._discipline = discipline
        self._lane_of: dict[JobId, Hashable] = {}  # in order of arrival
        self._lanes: dict[Hashable, OrderedDict[JobId, int]] = {}
        self._arrivals = 0

    def add(self, job_id: JobId, claim: Claim) -> None:
        """A job that is not there comes last."""
        lane = self._discipline.lane(job_id, claim)
        self._lane_of[job_id] = lane
        self._arrivals += 1
        self._lanes.setdefault(lane, OrderedDict())[job_id] = self._arrivals

    def remove(self, job_id: JobId) -> None:
        """The job is queued no more."""
        lane = self._lane_of.pop(job_id)
        del self._lanes[lane][job_id]
        if not self._lanes[lane]:
            del self._lanes[lane]

    def heads(self) -> Iterable[JobId]:
        """The oldest job of each lane, in order of arrival; to be read before the next change."""
        if len(self._lanes) == len(self._lane_of):
            return self._lane_of
        oldest = [next(iter(lane.items())) for lane in self._lanes.values()]
        return [job_id for job_id, _ in sorted(oldest, key=lambda each: each[1])]

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
    """The discipline of that name.

    Raises:
        SparrowError: There is none.
    """
    if policy not in DISCIPLINES:
        raise SparrowError(f"policy {policy!r} is none of {', '.join(DISCIPLINES)}")
    return DISCIPLINES[policy]()
