from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from machine_kit.addresses import Address
from sparrow_core.policy.disciplines import (
    DISCIPLINES,
    Discipline,
    Lanes,
    Queued,
    WeightedFair,
    make_discipline,
)
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.types import Claim

S = Address("s#scheduler")
claims = st.builds(
    Claim,
    user=st.sampled_from(["u0", "u1", "u2"]),
    priority=st.integers(0, 3),
    task_s=st.sampled_from([0.1, 1.0, 10.0]),
    waiting=st.integers(1, 9),
    group=st.sampled_from(["", "g1", "g2"]),
)


def queue_of(*claims: Claim) -> dict[JobId, Queued]:
    """A queue of jobs j0, j1 ... that arrived in this order, a second apart."""
    return {
        JobId(f"j{number}"): Queued(scheduler=S, count=1, claim=claim, since=float(number))
        for number, claim in enumerate(claims)
    }


def order(discipline: Discipline, queue: dict[JobId, Queued], now: float) -> list[str]:
    """The order in which a discipline serves a queue, each job once."""
    served = []
    while (job_id := discipline.choose(iter(queue.items()), now)) is not None:
        discipline.taken(queue[job_id].claim)
        served.append(job_id)
        del queue[job_id]
    return served


@given(st.sampled_from(sorted(DISCIPLINES)), st.lists(claims, max_size=12))
def test_every_job_is_served_once(policy: str, jobs: list[Claim]) -> None:
    """Whatever the policy, no job is forgotten, and nothing is chosen from an empty queue."""
    assert sorted(queue_of(*jobs)) == sorted(order(make_discipline(policy), queue_of(*jobs), 20.0))


@st.composite
def steps_of_a_queue(draw: st.DrawFn) -> list[tuple[str, int, Claim]]:
    """Jobs that come, are served or are cancelled, in any order."""
    frameworks = st.sampled_from(["", "other"])
    kinds = st.sampled_from(["come", "come", "serve", "serve", "cancel"])
    step = st.tuples(kinds, st.integers(0, 99), st.tuples(claims, frameworks))
    return [
        (kind, number, structs.replace(claim, framework=framework))
        for kind, number, (claim, framework) in draw(st.lists(step, max_size=40))
    ]


@given(st.sampled_from(sorted(DISCIPLINES)), steps_of_a_queue(), st.booleans())
def test_to_see_the_oldest_of_each_lane_is_enough(
    policy: str, steps: list[tuple[str, int, Claim]], full: bool
) -> None:
    """A discipline that is shown the whole queue chooses the same, also if a framework is full."""
    shown_heads, shown_all = make_discipline(policy), make_discipline(policy)
    lanes = Lanes(shown_heads)
    queue: dict[JobId, Queued] = {}

    def open_to(jobs: Iterator[JobId]) -> Iterator[tuple[JobId, Queued]]:
        return ((job, queue[job]) for job in jobs if not (full and queue[job].claim.framework))

    for now, (kind, number, claim) in enumerate(steps):
        over = None
        if kind == "come":
            queue[JobId(f"j{now}")] = Queued(scheduler=S, count=1, claim=claim, since=float(now))
            lanes.add(JobId(f"j{now}"), claim)
        elif kind == "serve":
            over = shown_heads.choose(open_to(iter(lanes.heads())), float(now))
            assert over == shown_all.choose(open_to(iter(queue)), float(now))
        elif queue:
            over = list(queue)[number % len(queue)]
        if over is not None:
            if kind == "serve":
                for discipline in (shown_heads, shown_all):
                    discipline.taken(queue[over].claim)
            del queue[over]
            lanes.remove(over)
        lanes.check(queue)


def test_first_in_first_out() -> None:
    """Whatever the claims say."""
    queue = queue_of(Claim(priority=9), Claim(priority=1))
    assert ["j0", "j1"] == order(make_discipline("fifo"), queue, 2.0)


def test_strict_priority_is_first_in_first_out_within_one() -> None:
    """Smaller numbers first."""
    queue = queue_of(Claim(priority=2), Claim(priority=1), Claim(priority=2), Claim(priority=1))
    assert ["j1", "j3", "j0", "j2"] == order(make_discipline("priority"), queue, 4.0)


def test_least_remaining_work_goes_first_until_others_starve() -> None:
    """Work is tasks times time; who waits five times its task time is not passed over again."""
    long, short = Claim(task_s=10.0, waiting=3), Claim(task_s=1.0, waiting=9)
    srpt = make_discipline("srpt")
    assert ["j1", "j0"] == order(srpt, queue_of(long, short), 5.0)
    assert ["j0", "j1"] == order(srpt, queue_of(long, short), 51.0)


def serve(fair: WeightedFair, rounds: int, **task_s: float) -> Counter[str]:
    """Slot time by user, when each always wants more and one slot serves one task at a time."""
    used: Counter[str] = Counter()
    queue = queue_of(*(Claim(user=user) for user in task_s))
    for _ in range(rounds):
        job_id = fair.choose(iter(queue.items()), 0.0)
        assert job_id is not None
        claim = queue[job_id].claim
        fair.taken(claim)
        fair.given_back(claim, task_s[claim.user])
        used[claim.user] += round(1000 * task_s[claim.user])
    return used


def test_fair_shares_are_of_time_not_of_tasks() -> None:
    """A user with tasks ten times as long gets as much slot time, within a task."""
    used = serve(WeightedFair(), 1100, a=0.1, b=1.0)
    assert used["a"] == pytest.approx(used["b"], abs=1100)


@given(st.integers(1, 5), st.floats(0.05, 1.0), st.floats(0.05, 1.0))
def test_weights_are_proportions(weight: int, a_s: float, b_s: float) -> None:
    """Slot time divides as the weights do, within the longest task by weight."""
    fair = WeightedFair()
    fair.set_weights({"a": float(weight)})
    used = serve(fair, 400, a=a_s, b=b_s)
    assert used["a"] / weight == pytest.approx(used["b"], abs=1000 * max(a_s, b_s) + 400)


sizes_s = st.sampled_from([0.005, 0.02, 0.1])


@st.composite
def crowds(draw: st.DrawFn) -> dict[tuple[str, str], float]:
    """Groups of some users, and the time that the tasks of each take."""
    names = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["g0", "g1", "g2"]))
    found: dict[tuple[str, str], float] = draw(st.dictionaries(names, sizes_s, min_size=1))
    return found


class Node:
    """A node's slots, on which tasks of groups run that always want more; and of newcomers."""

    def __init__(self, slots: int, task_s: dict[tuple[str, str], float]) -> None:
        self.fair = WeightedFair()
        self.now = 0.0
        self.served_s: Counter[tuple[str, str]] = Counter()
        self._task_s = dict(task_s)
        self._queue = queue_of(*(Claim(user=user, group=group) for user, group in task_s))
        self._running: list[tuple[float, int, Claim]] = []
        self._slots = slots
        self._number = len(task_s)

    def come(self, user: str, group: str, task_s: float) -> None:
        """A group with one task comes."""
        self._task_s[user, group] = task_s
        claim = Claim(user=user, group=group, waiting=0)
        self._queue[JobId(f"j{self._number}")] = Queued(
            scheduler=S, count=1, claim=claim, since=self.now
        )
        self._number += 1

    def step(self) -> tuple[str, str] | None:
        """Give a free slot to a job, whose group is told; or let time pass until one is free."""
        if len(self._running) == self._slots:
            end_s, _, claim = heapq.heappop(self._running)
            self.now = end_s
            self.fair.given_back(claim, self._task_s[claim.user, claim.group])
            return None
        job_id = self.fair.choose(iter(self._queue.items()), self.now)
        assert job_id is not None, "a slot stays free although jobs wait"
        claim = self._queue[job_id].claim
        if not claim.waiting:
            del self._queue[job_id]
        self.fair.taken(claim)
        name = claim.user, claim.group
        self._number += 1
        heapq.heappush(self._running, (self.now + self._task_s[name], self._number, claim))
        self.served_s[name] += self._task_s[name]
        self.fair.check(Counter(claim for _, _, claim in self._running))
        return name


@given(crowds(), st.integers(1, 3))
def test_groups_of_a_user_share_its_slot_time(
    task_s: dict[tuple[str, str], float], weight: int
) -> None:
    """Users by weight, and within a user all groups alike, within a few of the longest tasks."""
    node = Node(1, task_s)
    node.fair.set_weights({"a": float(weight)})
    for _ in range(1500):
        node.step()
    slack_s = 4 * max(task_s.values())
    by_user: dict[str, list[float]] = {}
    for name in task_s:
        by_user.setdefault(name[0], []).append(node.served_s[name])
    for groups in by_user.values():
        assert max(groups) == pytest.approx(min(groups), abs=slack_s)
    if len(by_user) == 2:
        assert sum(by_user["a"]) / weight == pytest.approx(sum(by_user["b"]), abs=4 * slack_s)


@given(crowds(), st.integers(1, 4), st.integers(0, 200), st.booleans())
def test_a_newcomer_is_next(
    task_s: dict[tuple[str, str], float], slots: int, rounds: int, is_user: bool
) -> None:
    """A user, or a group of the only user, waits for one task of each other at most."""
    user = "c" if is_user else "a"
    if not is_user:
        task_s = {("a", group): each for (_, group), each in task_s.items()}
    node = Node(slots, task_s)
    for _ in range(rounds):
        node.step()
    node.come(user, "new", 0.01)
    before: Counter[tuple[str, str] | None] = Counter()
    while (served := node.step()) != (user, "new"):
        before[served] += 1
    del before[None]
    assert max(before.values(), default=0) <= 1


@given(st.lists(sizes_s, min_size=60, max_size=60), sizes_s, st.integers(1, 3))
def test_a_stream_of_newcomers_starves_nobody(
    newcomers: list[float], crowd_s: float, slots: int
) -> None:
    """What they get between two tasks of a group that waits is bounded by the tasks' lengths."""
    node = Node(slots, {("a", "crowd"): crowd_s})
    between_s, most_s = 0.0, 0.0
    for number, task_s in enumerate(newcomers):
        node.come("a", f"new{number}", task_s)
        while (served := node.step()) is None or served[1] == "crowd":
            if served is not None:
                most_s, between_s = max(most_s, between_s), 0.0
        between_s += task_s
    most_s = max(most_s, between_s)
    # By a part in (2 + slots) of what each has, later ones begin higher; the crowd is higher by two
    # tasks at most: one that has ended, and one that is expected to take as long as a first guess.
    assert most_s <= 3 * (2 + slots) * max(crowd_s, *newcomers, 0.1)


def test_groups_that_are_over_need_no_memory() -> None:
    """Though each of them was the last to be served, and no slot was ever idle."""
    node = Node(2, {("a", "crowd"): 0.02})
    for number in range(500):
        node.come("a", f"new{number}", 0.01)
        for _ in range(4):
            node.step()
    user = node.fair._all.parts["a"]
    assert len(user.parts) <= 4


def test_idleness_earns_no_credit() -> None:
    """Who comes back after a time away does not get all slots until it has caught up."""
    fair = WeightedFair()
    serve(fair, 100, a=0.1)
    used = serve(fair, 100, a=0.1, b=0.1)
    assert used["a"] == pytest.approx(used["b"], abs=300)


def test_a_long_task_earns_no_credit_while_its_group_waits_for_nothing() -> None:
    """When more of its group comes, others keep their part; nor is the group in debt afterwards."""
    fair = WeightedFair()
    task_s = {"long": 100.0, "crowd": 1.0, "more": 1.0}
    more = Queued(scheduler=S, count=10**6, claim=Claim(group="a"), since=90.5)
    queue = {
        JobId("long"): replace(more, count=1, since=0.0),
        JobId("crowd"): replace(more, claim=Claim(group="b"), since=0.0),
    }
    running: list[tuple[float, int, Claim, float]] = []
    began: dict[int, Counter[str]] = {}
    now, number = 0.0, 0
    while now < 160:
        while len(running) < 4:
            job_id = fair.choose(iter(queue.items()), now)
            assert job_id is not None
            claim, number = queue[job_id].claim, number + 1
            queue[job_id].count -= 1
            if not queue[job_id].count:
                del queue[job_id]
            fair.taken(claim)
            heapq.heappush(running, (now + task_s[job_id], number, claim, task_s[job_id]))
            began.setdefault(int(now) // 10, Counter())[job_id] += 1
        if running[0][0] > 90.0 and JobId("more") not in queue:
            queue[JobId("more")] = more
            assert fair.choose(iter(()), 90.5) is None, "all slots are taken"
        now, _, claim, ran_s = heapq.heappop(running)
        fair.given_back(claim, ran_s)
    shares = {tens: each["more"] / each.total() for tens, each in began.items() if tens >= 9}
    assert all(0.3 < share < 0.7 for share in shares.values()), shares


def test_running_tasks_count_before_they_end() -> None:
    """Slots that come free together are shared, though nothing has been charged yet."""
    fair = WeightedFair()
    queue = queue_of(Claim(user="a"), Claim(user="b"))
    got = Counter[str]()
    for _ in range(8):
        job_id = fair.choose(iter(queue.items()), 0.0)
        assert job_id is not None
        fair.taken(queue[job_id].claim)
        got[job_id] += 1
    assert {"j0": 4, "j1": 4} == got


def test_slots_without_a_task_cost_nothing() -> None:
    """A request that was answered with nothing is not held against the user."""
    fair = WeightedFair()
    claim = Claim(user="a")
    for _ in range(50):
        fair.taken(claim)
        fair.given_back(claim, None)
    queue = queue_of(claim, Claim(user="b"))
    assert ["j0", "j1"] == order(fair, queue, 0.0)


def test_unknown_policies_are_an_error() -> None:
    """In words that name those that exist."""
    with pytest.raises(SparrowError, match="policy 'lifo' is none of fifo, priority, fair"):
        make_discipline("lifo")
