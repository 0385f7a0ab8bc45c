"""Which node runs a job: a state machine of each node over the jobs that it holds, without IO.

    waiting ──start──▶ running ──its program ends──▶ done, failed, cancelled
       ▲                  │
       └── a crash, with a delay; a stop as the node is cut off
       ▲
       └── incarnation + 1, by another holder: the owner died, was silent, or has let go

Holders of a job tell each other every second what they know of it. A holder is *silent* if nothing
was heard of it for a while, and *dead* if its host says that its process has ended, or after two
minutes. The first holder, in their order, that is neither takes a job over from an owner that is
silent or dead, if most of those that are not dead are with it; and were for as long as a silent
owner was not: who was cut off itself can't tell whether the owner was with the others meanwhile. An
owner that has less than half of them with it stops its program, sooner than others may take it
over. So two nodes run a job at the same time only if a network is cut for more than two minutes;
when they meet again, the one of the lower incarnation stops. With two holders, neither takes over
from a silent one before that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from machine_kit.peers import Peers
from minishark.cluster.jobs.records import (
    HOLDERS,
    JOBS_MAX,
    RESULTS_BYTES_MAX,
    Holder,
    JobState,
    Restart,
    Status,
    homes_of,
    merged,
)

FENCE_S = 7.0
SILENT_S = 10.0
DEAD_S = 120.0
# With others again, before a program is started again: until then, one that was started elsewhere,
# by a node that is cut off now, has told of that or has ended.
_BACK_S = FENCE_S + 1.0
_PAUSE_S = 2.0  # between signs of life; less than what is between FENCE_S and SILENT_S
FENCE_ALONE_S = 100.0  # of an owner of which no majority can take over
_DELAY_S = 0.5
_DELAY_MAX_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Who holds something that only needs an owner, as one of the holders knows it.

    Attributes:
        uid: tells it from others that had its name before.
        incarnation: one more whenever another node takes it over.
        owner: the home of the node that answers for it.
        is_mine: that is this node, and nobody else may have taken it over.
        others: the other holders that may live.
        majority: how many of all holders that may live, this node among them, are most of them.
    """

    uid: str
    incarnation: int
    owner: str
    is_mine: bool
    others: tuple[Holder, ...]
    majority: int


@dataclass(slots=True, kw_only=True)
class Jobs:
    """The jobs that a node holds; `now` is on its monotonic clock, `at` in seconds since 1970.

    Attributes:
        me: this node.
        places: how many programs it runs at the same time.
        is_leaving: it is being drained: takes nothing over, and starts nothing.
    """

    me: Holder
    places: int
    is_leaving: bool = False
    _states: dict[str, JobState] = field(default_factory=dict)  # by uid
    _heard: Peers[str] = field(default_factory=Peers)  # homes
    _since: dict[str, float] = field(default_factory=dict)  # of being heard without a pause
    _renewed: dict[str, float] = field(default_factory=dict)  # last with most holders, by uid
    _lapsed: dict[str, float] = field(default_factory=dict)  # when that was last too long ago
    _dead: dict[str, None] = field(default_factory=dict)
    _leaving: dict[str, bool] = field(default_factory=dict)
    _has: dict[str, dict[str, tuple[Any, ...]]] = field(default_factory=dict)  # by home and uid
    _due: dict[str, float] = field(default_factory=dict)  # when one may be started, by uid
    _running: dict[str, int] = field(default_factory=dict)  # here, with their incarnation

    def __iter__(self) -> Iterator[JobState]:
        return iter(tuple(self._states.values()))

    def state(self, uid: str) -> JobState | None:
        """What is known of a job."""
        return self._states.get(uid)

    # What comes from outside

    def hold(self, state: JobState, now: float) -> JobState | None:
        """Hold a job from now on; the one in its way, if its name is that of one that is not over.

        Of a name, only the job that was submitted last is held.
        """
        uid, name = state.terms.uid, state.terms.name
        other = self.in_the_way(name)
        if other is not None and other.terms.uid != uid:
            return other
        for job in self:
            if job.terms.name == name and job.terms.uid != uid:
                self.forget(job.terms.uid)
        held = self._states.get(uid)
        self._states[uid] = state if held is None else merged(held, state)
        for holder in state.holders:
            self._heard.expect(holder.home, now)
        self._make_room()
        return None

    def in_the_way(self, name: str) -> JobState | None:
        """The job of that name that is not over."""
        return next((job for job in self if job.terms.name == name and not job.is_over), None)

    def learn(self, state: JobState) -> None:
        """Somebody has told of a job, which may be held here."""
        uid = state.terms.uid
        if (held := self._states.get(uid)) is not None:
            self._states[uid] = merged(held, state)

    def own(self, state: JobState, now: float) -> JobState:
        """Hold a new job, and run it."""
        owned = structs.replace(state, incarnation=1, owner=self.me.home, node=self.me.name)
        assert self.hold(owned, now) is None
        return owned

    def hear(
        self,
        home: str,
        states: Iterable[JobState],
        now: float,
        *,
        asked: Iterable[str] = (),
        is_leaving: bool = False,
    ) -> None:
        """A node has told what it knows of jobs, perhaps as it was asked for some, by uid."""
        self._dead.pop(home, None)
        if home not in self._since or self._heard.silent_s(home, now) > _PAUSE_S:
            self._since[home] = now
        self._heard.heard(home, now)
        self._leaving[home] = is_leaving
        has = self._has.setdefault(home, {})
        for uid in asked:
            has.pop(uid, None)
        for state in states:
            has[state.terms.uid] = _version(state)
            self.learn(state)

    def bury(self, home: str) -> None:
        """The process of a node has ended."""
        self._dead[home] = None
        self._has.pop(home, None)

    def unwant(self, uid: str) -> JobState | None:
        """Somebody asks for the end of a job, which is returned."""
        job = self._states.get(uid)
        if job is None or job.is_over:
            return job
        self._states[uid] = structs.replace(job, is_unwanted=True)
        return self._states[uid]

    def replenish(self, nodes: Sequence[Holder], now: float) -> None:
        """Let other nodes hold the jobs here that too few do; `nodes` are those that there are."""
        for state in self._own():
            kept = [holder for holder in state.holders if self._is_usable(holder, now)]
            homes = {holder.home for holder in kept}
            more = [
                node
                for node in homes_of(state.terms.name, nodes)
                if node.home not in homes and node.home not in self._dead
            ][: max(0, HOLDERS - len(kept))]
            if more:
                for node in more:
                    self._heard.heard(node.home, now)
                self._update(state, holders=(*kept, *more))

    # What happens to programs here

    def started(self, uid: str, at: float) -> JobState:
        """Its program was started here."""
        state = self._states[uid]
        self._running[uid] = state.incarnation
        which = f" (start {state.starts + 1} of {state.terms.attempts})" if state.starts else ""
        return self._update(
            state,
            status=Status.RUNNING,
            starts=state.starts + 1,
            began_s=state.began_s or at,
            history=state.noted(f"Started on {self.me.name}{which}.", at),
        )

    def ended(
        self,
        uid: str,
        exit_status: int | None,
        how: str,
        *,
        now: float,
        at: float,
        result_bytes: int | None = None,
    ) -> None:
        """Its process here has ended, by itself or as it was no longer wanted (None)."""
        incarnation = self._running.pop(uid, None)
        state = self._states.get(uid)
        if state is None or not self._is_mine(state) or state.incarnation != incarnation:
            return
        if state.is_over or exit_status is None:
            if not state.is_over:
                self._update(state, status=Status.WAITING)
            return
        if state.is_unwanted:
            self._end(state, Status.CANCELLED, "Cancelled.", at)
        elif exit_status == 0:
            ending = {"exit_status": 0, "result_bytes": result_bytes}
            self._end(state, Status.DONE, "Done, with exit status 0.", at, **ending)
        elif not _may_restart(state.terms.restart, exit_status):
            self._end(state, Status.FAILED, f"It failed: {how}.", at, exit_status=exit_status)
        elif state.starts >= state.terms.attempts:
            why = f"It failed: {how}, at start {state.starts} of {state.terms.attempts}."
            self._end(state, Status.FAILED, why, at, exit_status=exit_status)
        else:
            delay_s = min(_DELAY_S * 2.0 ** (state.starts - 1), _DELAY_MAX_S)
            self._due[uid] = now + delay_s
            history = state.noted(f"It is started again in {delay_s:g} s: {how}.", at)
            self._update(state, status=Status.WAITING, exit_status=exit_status, history=history)

    def let_go(self, at: float) -> None:
        """The node is about to end: others may take over at once what it has."""
        for state in self._own():
            self._states[state.terms.uid] = structs.replace(
                state,
                incarnation=state.incarnation + 1,
                version=0,
                owner="",
                status=Status.WAITING,
                history=state.noted(f"{self.me.name} leaves.", at),
            )

    # What follows as time goes on

    def tick(self, now: float, at: float) -> None:
        """Take over what others have lost, end what is over time, forget what is old."""
        for state in self:
            if state.is_over:
                if at > state.ended_s + state.terms.keep_s:
                    self.forget(state.terms.uid)
            elif self._is_mine(state):
                self._renew(state, now)
                self._end_at_limits(state, at)
            else:
                self._take_over(state, now, at)

    def wanted(self, now: float) -> list[JobState]:
        """The jobs whose programs are to run here now: all others are to be stopped."""
        ready = [
            state
            for state in self._own()
            if state.terms.has_program
            if not state.is_unwanted and not self._is_cut_off(state, now)
            if state.terms.uid in self._running
            or (self._due.get(state.terms.uid, 0.0) <= now and self._may_start(state, now))
        ]
        ready.sort(
            key=lambda state: (
                state.terms.uid not in self._running,
                -state.terms.priority,
                state.terms.submitted_s,
            )
        )
        return ready[: self.places]

    def holding(self, name: str, now: float) -> Holding | None:
        """Who holds what has no program; None if this node does not."""
        state = self.in_the_way(name)
        if state is None:
            return None
        counted = [holder for holder in state.holders if not self._is_dead(holder.home, now)]
        return Holding(
            uid=state.terms.uid,
            incarnation=state.incarnation,
            owner=state.owner,
            is_mine=self._is_mine(state) and not self._is_cut_off(state, now),
            others=tuple(holder for holder in counted if holder.home != self.me.home),
            majority=len(counted) // 2 + 1,
        )

    def is_alive(self, state: JobState, now: float) -> bool:
        """Whether its guard gets a sign of life: this node has been with most holders just now.

        The guard counts from the last sign, so that a node that is cut off, and suspended before it
        knows, has its program ended before others take it over, too.
        """
        return now - self._with_most_s(state, now) <= _PAUSE_S

    def fence_s(self, state: JobState) -> float:
        """How long its program may run here without a sign of life of this node."""
        return FENCE_S if len(state.holders) >= HOLDERS else FENCE_ALONE_S

    def results(self) -> list[JobState]:
        """The jobs that have ended here with a result, which their other holders are to have."""
        return [state for state in self if state.result_bytes is not None and self._is_mine(state)]

    @property
    def version(self) -> tuple[Any, ...]:
        """Changes with what others are to be told soon."""
        return tuple(_version(state) for state in self if self._is_mine(state))

    def tells(self) -> dict[Holder, list[JobState]]:
        """What each other holder is to be told now: all that is not over, and what it lacks."""
        news: dict[Holder, list[JobState]] = {}
        for state in self:
            for holder in state.holders:
                if holder.home == self.me.home or holder.home in self._dead:
                    continue
                has = self._has.get(holder.home, {}).get(state.terms.uid)
                if not state.is_over or (has != _version(state) and self._is_mine(state)):
                    news.setdefault(holder, []).append(state)
        return news

    def lacks(self, holder: Holder, state: JobState) -> bool:
        """Whether this node is to hand a job to another, which does not hold it yet."""
        return self._is_mine(state) and state.terms.uid not in self._has.get(holder.home, {})

    def is_silent(self, holder: Holder, now: float) -> bool:
        """Whether nothing was heard of a node for a while."""
        return self._is_silent(holder.home, now)

    def lacking(self, now: float) -> bool:
        """Whether a job here has too few holders."""
        return any(
            sum(self._is_usable(holder, now) for holder in state.holders) < HOLDERS
            for state in self._own()
        )

    def forget(self, uid: str) -> None:
        """Hold a job no longer."""
        self._states.pop(uid, None)
        self._due.pop(uid, None)
        self._renewed.pop(uid, None)
        self._lapsed.pop(uid, None)
        for has in self._has.values():
            has.pop(uid, None)

    # Inside

    def _own(self) -> list[JobState]:
        return [state for state in self if not state.is_over and self._is_mine(state)]

    def _is_mine(self, state: JobState) -> bool:
        return state.owner == self.me.home

    def _update(self, state: JobState, **changes: Any) -> JobState:
        assert self._is_mine(state)
        updated = structs.replace(state, version=state.version + 1, **changes)
        self._states[state.terms.uid] = updated
        return updated

    def _end(self, state: JobState, status: Status, why: str, at: float, **more: Any) -> None:
        self._update(state, status=status, ended_s=at, history=state.noted(why, at), **more)

    def _end_at_limits(self, state: JobState, at: float) -> None:
        limit_s = state.terms.time_limit_s
        if state.is_unwanted and state.terms.uid not in self._running:
            self._end(state, Status.CANCELLED, "Cancelled.", at)
        elif limit_s is not None and state.began_s and at > state.began_s + limit_s:
            self._end(state, Status.FAILED, f"It failed: it took more than {limit_s:g} s.", at)

    def _take_over(self, state: JobState, now: float, at: float) -> None:
        """Run a job from now on whose owner can't, if that is this node's turn."""
        if state.owner and not self._is_silent(state.owner, now):
            return
        counted = [holder for holder in state.holders if not self._is_dead(holder.home, now)]
        heard = [holder for holder in counted if not self._is_silent(holder.home, now)]
        able = [holder for holder in heard if not self._is_leaving(holder)] or heard
        is_first = bool(able) and able[0].home == self.me.home
        if state.owner and state.owner not in self._dead:
            heard = [holder for holder in heard if self._is_steady(holder.home, now)]
        if not is_first or 2 * len(heard) <= len(counted):
            return
        why = f"{self.me.name} takes it over from {state.node}, which "
        if not state.owner:
            why += "has left."
        else:
            why += "has died." if state.owner in self._dead else "is silent."
        taken = structs.replace(
            state,
            incarnation=state.incarnation + 1,
            version=0,
            owner=self.me.home,
            node=self.me.name,
            # A silent owner still counts: it may be with a majority that this node is not part of.
            holders=tuple(holder for holder in counted if holder.home not in self._dead),
            status=Status.WAITING,
            history=state.noted(why, at),
        )
        self._states[state.terms.uid] = taken
        for of_former_time in (self._due, self._renewed, self._lapsed):
            of_former_time.pop(state.terms.uid, None)
        if state.starts >= state.terms.attempts and state.owner:
            why = f"It failed: {state.node} is gone, at start {state.starts}, the last."
            self._end(taken, Status.FAILED, why, at)

    def _renew(self, state: JobState, now: float) -> None:
        """Note whether this node is with most holders of its job, or was not for too long."""
        uid = state.terms.uid
        if now > self._renewed.setdefault(uid, now) + self.fence_s(state):
            self._lapsed[uid] = now
        self._renewed[uid] = max(self._renewed[uid], self._with_most_s(state, now))

    def _with_most_s(self, state: JobState, now: float) -> float:
        """When no majority of the holders can have been without this node."""
        homes = [holder.home for holder in state.holders if not self._is_dead(holder.home, now)]
        heard_s = sorted((self._heard_s(home, now) for home in homes), reverse=True)
        return heard_s[(len(homes) + 1) // 2 - 1] if homes else now

    def _is_cut_off(self, state: JobState, now: float) -> bool:
        """Whether others may soon take over what runs here, or may have done so."""
        uid = state.terms.uid
        if now > self._renewed.get(uid, now) + self.fence_s(state):
            return True
        # Who took it over meanwhile may not have told yet.
        return now < self._lapsed.get(uid, -math.inf) + _BACK_S

    def _may_start(self, state: JobState, now: float) -> bool:
        return not self.is_leaving and self.is_alive(state, now)  # its guard counts from now on

    def _is_usable(self, holder: Holder, now: float) -> bool:
        return not self._is_dead(holder.home, now) and not self._is_leaving(holder)

    def _is_leaving(self, holder: Holder) -> bool:
        return self.is_leaving if holder == self.me else self._leaving.get(holder.home, False)

    def _is_silent(self, home: str, now: float, after_s: float = SILENT_S) -> bool:
        return home in self._dead or now - self._heard_s(home, now) > after_s

    def _heard_s(self, home: str, now: float) -> float:
        if home == self.me.home:
            return now
        self._heard.expect(home, now)
        return now - self._heard.silent_s(home, now)

    def _is_steady(self, home: str, now: float) -> bool:
        """Whether this node has been with another for as long as a silent owner was not.

        And still is: the owner may be with who was not heard lately.
        """
        if home == self.me.home:
            return True
        is_with = self._heard.silent_s(home, now) <= _PAUSE_S
        return is_with and now - self._since.get(home, now) >= SILENT_S

    def _is_dead(self, home: str, now: float) -> bool:
        return self._is_silent(home, now, DEAD_S)

    def _make_room(self) -> None:
        size = sum(job.result_bytes or 0 for job in self)
        for job in sorted((job for job in self if job.is_over), key=lambda job: job.ended_s):
            if len(self._states) <= JOBS_MAX and size <= RESULTS_BYTES_MAX:
                return
            size -= job.result_bytes or 0
            self.forget(job.terms.uid)

    @property
    def is_full(self) -> bool:
        """Whether no other job fits in: all that it holds are not over."""
        return sum(not state.is_over for state in self) >= JOBS_MAX


def _may_restart(restart: Restart, exit_status: int) -> bool:
    if restart is Restart.NEVER:
        return False
    return restart is Restart.ERROR or exit_status < 0


def _version(state: JobState) -> tuple[Any, ...]:
    return (*state.order, state.is_unwanted)
