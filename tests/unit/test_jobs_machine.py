"""Jobs that outlive who submitted them: who runs them, without processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import example, given
from msgspec import structs

from minishark.cluster.jobs.machine import DEAD_S, FENCE_S, SILENT_S, Jobs
from minishark.cluster.jobs.records import (
    HOLDERS,
    JOBS_MAX,
    Holder,
    JobFile,
    JobProgram,
    JobState,
    JobTerms,
    Restart,
    Status,
    homes_of,
    latest_by_name,
    merged,
    problem_with,
)

_STEP_S = 0.25
_WORK_S = 20.0


def _terms(name: str = "j", uid: str = "1", **more: object) -> JobTerms:
    agreed = JobTerms(name=name, uid=uid, user="u", what="p.py", submitted_s=0.0)
    return structs.replace(agreed, **more)


def _state(terms: JobTerms, holders: tuple[Holder, ...]) -> JobState:
    return JobState(terms=terms, holders=holders, owner="", node=holders[0].name, incarnation=0)


@dataclass
class World:
    """Nodes in simulated time, whose network can be cut and whose processes can be killed."""

    count: int
    places: int = 4
    now: float = 1000.0
    side: frozenset[int] = frozenset()  # cut off from the others
    dead: set[int] = field(default_factory=set)
    frozen: set[int] = field(default_factory=set)  # suspended: their guards end programs in time
    began: dict[tuple[int, str], tuple[int, float]] = field(default_factory=dict)
    most: int = 0  # programs of one job at the same time
    exits: list[int] = field(default_factory=list)  # of the next processes

    def __post_init__(self) -> None:
        """All nodes live."""
        self.holders = [Holder(f"n{i}", f"/h{i}", f"ipc://{i}") for i in range(self.count)]
        self.jobs = [Jobs(me=holder, places=self.places) for holder in self.holders]
        self.alive_s: dict[tuple[int, str], float] = {}  # the last signs of life to guards

    def submit(self, terms: JobTerms | None = None) -> int:
        """As a node does with a new job; the number of the node."""
        agreed = terms or _terms()
        homes = homes_of(agreed.name, self.holders)[:HOLDERS]
        state = _state(agreed, tuple(homes))
        numbers = [self.holders.index(home) for home in homes]
        for other in numbers[1:]:
            assert self.jobs[other].hold(state, self.now) is None
        self.jobs[numbers[0]].own(state, self.now)
        return numbers[0]

    def connected(self, one: int, other: int) -> bool:
        """Whether two nodes hear each other."""
        asleep = self.dead | self.frozen
        return {one, other}.isdisjoint(asleep) and (one in self.side) == (other in self.side)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self.now < end:
            self.now += _STEP_S
            tells = self.now % 1.0 == 0.0
            for number in range(self.count):
                if number not in self.dead and number not in self.frozen:
                    self._step(number, tells=tells)
            self._fence()
            for uid in {uid for _, uid in self.began}:
                here = [number for number, other in self.began if other == uid]
                self.most = max(self.most, len(here))

    def _step(self, number: int, *, tells: bool) -> None:
        jobs = self.jobs[number]
        jobs.tick(self.now, self.now)
        wanted = {state.terms.uid: state for state in jobs.wanted(self.now)}
        for (node, uid), (incarnation, since) in list(self.began.items()):
            if node != number:
                continue
            state = wanted.get(uid)
            if state is None or state.incarnation != incarnation:
                del self.began[node, uid]
                jobs.ended(uid, None, "", now=self.now, at=self.now)
            elif self.now >= since + _WORK_S:
                del self.began[node, uid]
                status = self.exits.pop(0) if self.exits else 0
                jobs.ended(uid, status, f"status {status}", now=self.now, at=self.now)
            elif jobs.is_alive(state, self.now):
                self.alive_s[number, uid] = self.now
        for uid, state in wanted.items():
            if (number, uid) not in self.began and jobs.state(uid) == state:
                incarnation = jobs.started(uid, self.now).incarnation
                self.began[number, uid] = (incarnation, self.now)
                self.alive_s[number, uid] = self.now
        if tells:
            self._tell(number)

    def _tell(self, number: int) -> None:
        jobs = self.jobs[number]
        for holder, states in jobs.tells().items():
            other = self.holders.index(holder)
            if other in self.dead and (other in self.side) == (number in self.side):
                jobs.bury(holder.home)
            elif self.connected(number, other):
                there = self.jobs[other]
                for state in states:
                    if jobs.lacks(holder, state):
                        there.hold(state, self.now)
                there.hear(jobs.me.home, states, self.now, is_leaving=jobs.is_leaving)
                uids = [state.terms.uid for state in states]
                held = [known for uid in uids if (known := there.state(uid)) is not None]
                jobs.hear(holder.home, held, self.now, asked=uids, is_leaving=there.is_leaving)
        if jobs.lacking(self.now):
            reached = [other for i, other in enumerate(self.holders) if self.connected(number, i)]
            jobs.replenish(reached, self.now)

    def _fence(self) -> None:
        """Guards end the programs of nodes that give no sign of life."""
        for number, uid in list(self.began):
            running = self.jobs[number].state(uid)
            assert running is not None
            silent_s = self.now - self.alive_s[number, uid]
            if number in self.dead or silent_s > self.jobs[number].fence_s(running):
                del self.began[number, uid]

    def known(self, uid: str = "1") -> JobState:
        """What a client that reaches all live nodes sees."""
        live = [jobs for i, jobs in enumerate(self.jobs) if i not in self.dead]
        states = [state for jobs in live for state in jobs if state.terms.uid == uid]
        return latest_by_name(states)[states[0].terms.name]


def test_a_job_runs_once_where_nothing_fails() -> None:
    """One node starts it; all that hold it know of its end."""
    world = World(5)
    home = world.submit()
    world.run(_WORK_S + 3)
    state = world.known()
    assert (Status.DONE, 1, world.holders[home].name) == (state.status, state.starts, state.node)
    held = [jobs.state("1") for jobs in world.jobs]
    assert HOLDERS == len([one for one in held if one == state])
    assert 1 == world.most


def test_a_dead_nodes_job_is_taken_over_once() -> None:
    """The next holder starts it under the next incarnation, and a third node holds it, too."""
    world = World(5)
    home = world.submit()
    world.run(3)
    world.dead.add(home)
    world.run(4)
    state = world.known()
    assert (2, 2, Status.RUNNING) == (state.incarnation, state.starts, state.status)
    assert HOLDERS == len(state.holders)
    assert world.holders[home] not in state.holders
    world.run(_WORK_S)
    assert Status.DONE is world.known().status
    assert 1 == world.most


def test_all_holders_but_one_may_die() -> None:
    """Also one after the other, and those that came later."""
    world = World(4)
    world.submit()
    for _ in range(3):
        world.run(3)
        world.dead.add(world.holders.index(_owner(world)))
    world.run(_WORK_S + 4)
    assert (Status.DONE, 4) == (world.known().status, world.known().starts)


def _owner(world: World) -> Holder:
    return next(holder for holder in world.holders if holder.home == world.known().owner)


def test_a_node_that_is_cut_off_stops_before_others_take_over() -> None:
    """Of three holders, two may go on; the third one ends its program sooner than they start it."""
    assert FENCE_S < SILENT_S < DEAD_S
    world = World(3)
    home = world.submit()
    world.run(3)
    world.side = frozenset({home})
    world.run(FENCE_S + 1)
    assert {} == world.began
    world.run(SILENT_S - FENCE_S + 1)
    assert [2] == [incarnation for incarnation, _ in world.began.values()]
    world.side = frozenset()
    world.run(_WORK_S + 3)
    state = world.known()
    assert (Status.DONE, 2, 1) == (state.status, state.incarnation, world.most)
    assert [state] * 3 == [jobs.state("1") for jobs in world.jobs]


def test_of_two_holders_neither_takes_over_from_a_silent_one() -> None:
    """It may run there still; after two minutes without a word it counts as dead."""
    world = World(2)
    home = world.submit()
    world.run(3)
    world.side = frozenset({home})
    world.run(DEAD_S - 10)
    assert (Status.DONE, 1) == (world.known().status, world.known().incarnation)
    assert 1 == world.most


def test_a_node_that_is_cut_off_and_suspended_has_its_program_ended() -> None:
    """Its guard counts from when it was last with most holders, not from when it last ran."""
    world = World(3)
    home = world.submit()
    world.run(3)
    world.side = frozenset({home})
    world.run(5)
    world.frozen.add(home)
    world.run(SILENT_S + 3)
    assert [False] == [number == home for number, _ in world.began]
    world.frozen.clear()
    world.side = frozenset()
    world.run(_WORK_S + 3)
    assert (Status.DONE, 1) == (world.known().status, world.most)


def test_a_suspended_nodes_program_is_ended_by_its_guard() -> None:
    """So it does not run beside the one that another node starts."""
    world = World(3)
    home = world.submit()
    world.run(3)
    world.frozen.add(home)
    world.run(SILENT_S + 3)
    assert 1 == len(world.began)
    world.frozen.clear()
    world.run(_WORK_S + 3)
    assert (Status.DONE, 1) == (world.known().status, world.most)


@st.composite
def _troubles(draw: st.DrawFn) -> list[tuple[float, str, int]]:
    kinds = st.sampled_from(["cut", "heal", "freeze", "thaw", "kill"])
    wait_s = st.floats(0.25, 30.0)
    return draw(st.lists(st.tuples(wait_s, kinds, st.integers(0, 3)), max_size=8))


@given(troubles=_troubles())
# The owner is cut off for 2 s, or for 9; then another is, which is about to take over.
@example(troubles=[(1.5, "cut", 1), (2.25, "cut", 2), (25.0, "heal", 0)])
@example(troubles=[(0.5, "cut", 1), (9.5, "cut", 2), (4.25, "freeze", 1)])
@example(troubles=[(1.25, "cut", 1), (10.0, "cut", 2), (26.75, "heal", 1)])
# The owner is suspended until just before another takes over.
@example(troubles=[(17.0, "freeze", 1), (10.75, "thaw", 1)])
def test_a_job_ends_and_never_runs_twice_at_a_time(troubles: list[tuple[float, str, int]]) -> None:
    """Whatever is cut, suspended or killed, for less than two minutes, if one node is left."""
    world = World(4)
    world.submit(_terms(attempts=100))
    for wait_s, kind, node in troubles:
        world.run(wait_s)
        match kind:
            case "cut":
                world.side = frozenset({node})
            case "heal":
                world.side = frozenset()
            case "freeze":
                world.frozen = {node} - world.dead
            case "thaw":
                world.frozen = set()
            case _ if len(world.dead) < 2:
                world.dead.add(node)
        if world.now > 1000.0 + DEAD_S - 10:
            break
    world.side, world.frozen = frozenset(), set()
    world.run(3 * SILENT_S + _WORK_S)
    assert (Status.DONE, 1) == (world.known().status, world.most)


def test_ends_of_programs_are_told_apart() -> None:
    """A signal starts it again, an error does not unless that is wanted; attempts are bounded."""
    for restart, exits, expected in (
        (Restart.CRASH, [-9, -11, 0], (Status.DONE, 3)),
        (Restart.CRASH, [-9, 3], (Status.FAILED, 2)),
        (Restart.ERROR, [3, -9, 0], (Status.DONE, 3)),
        (Restart.NEVER, [-9], (Status.FAILED, 1)),
        (Restart.CRASH, [-9] * 9, (Status.FAILED, 3)),
    ):
        world = World(3)
        world.exits = exits
        world.submit(_terms(restart=restart, attempts=3))
        world.run(5 * _WORK_S)
        state = world.known()
        assert expected == (state.status, state.starts)
        assert state.exit_status == (0 if state.status is Status.DONE else state.exit_status)


def test_a_restart_waits_longer_each_time() -> None:
    """A program that dies at once does not keep its node busy."""
    jobs = Jobs(me=Holder("n", "/h", ""), places=4)
    jobs.own(_state(_terms(attempts=9), (jobs.me,)), 0.0)
    waits, now = [], 0.0
    for _ in range(4):
        began = now
        while not jobs.wanted(now):
            now += 0.125
        waits.append(now - began)
        jobs.started("1", now)
        jobs.ended("1", -11, "killed", now=now, at=now)
    assert [0.0, 0.5, 1.0, 2.0] == waits


def test_a_cancelled_job_ends_wherever_it_is() -> None:
    """Also if the node that is asked does not run it, and if its owner is dead."""
    world = World(3)
    home = world.submit()
    world.run(3)
    other = (home + 1) % 3
    world.jobs[other].unwant("1")
    world.run(3)
    assert (Status.CANCELLED, {}) == (world.known().status, world.began)
    world = World(3)
    home = world.submit()
    world.run(3)
    world.dead.add(home)
    world.jobs[(home + 1) % 3].unwant("1")
    world.run(5)
    assert (Status.CANCELLED, 1) == (world.known().status, world.known().starts)


def test_a_job_over_its_time_fails_and_is_forgotten_later() -> None:
    """The time counts from its first start; its state is kept for as long as was agreed."""
    world = World(3)
    world.submit(_terms(time_limit_s=5.0, keep_s=30.0))
    world.run(10)
    assert (Status.FAILED, {}) == (world.known().status, world.began)
    assert "more than 5 s" in world.known().ending
    world.run(40)
    assert [] == [state for jobs in world.jobs for state in jobs]


def test_a_node_that_leaves_hands_over_at_once() -> None:
    """The next one need not wait for its silence; nor is the job handed to one that leaves."""
    world = World(4)
    home = world.submit()
    world.run(3)
    world.jobs[home].is_leaving = True
    world.run(3)
    assert [home] == [node for node, _ in world.began]
    world.jobs[home].let_go(world.now)
    world.began.clear()
    world.jobs[home]._running.clear()
    world.run(3)
    state = world.known()
    assert (3, Status.RUNNING) == (state.incarnation, state.status)
    assert world.holders[home].home != state.owner


def test_places_go_to_the_highest_priority_and_then_by_age() -> None:
    """What runs is not interrupted for it."""
    jobs = Jobs(me=Holder("n", "/h", ""), places=2)
    jobs.own(_state(_terms("a", "1"), (jobs.me,)), 0.0)
    jobs.started("1", 0.0)
    for name, uid, priority, submitted_s in (("b", "2", 0, 1.0), ("c", "3", 5, 2.0)):
        terms = _terms(name, uid, priority=priority, submitted_s=submitted_s)
        jobs.own(_state(terms, (jobs.me,)), 0.0)
    assert ["a", "c"] == [state.terms.name for state in jobs.wanted(0.0)]


def test_a_name_is_free_again_when_its_job_is_over() -> None:
    """Before that, the other job is in the way; afterwards it is forgotten."""
    jobs = Jobs(me=Holder("n", "/h", ""), places=2)
    first = jobs.own(_state(_terms(), (jobs.me,)), 0.0)
    assert first == jobs.hold(_state(_terms(uid="2"), (jobs.me,)), 0.0)
    jobs.started("1", 0.0)
    jobs.ended("1", 0, "", now=0.0, at=0.0)
    assert jobs.hold(_state(_terms(uid="2"), (jobs.me,)), 0.0) is None
    assert ["2"] == [state.terms.uid for state in jobs]


def test_a_node_holds_a_bounded_number_of_jobs() -> None:
    """Of more, it forgets those that ended first; it never forgets one that is not over."""
    jobs = Jobs(me=Holder("n", "/h", ""), places=2)
    for number in range(JOBS_MAX + 5):
        terms = _terms(f"j{number}", str(number))
        state = structs.replace(_state(terms, (jobs.me,)), ended_s=float(number))
        jobs.hold(structs.replace(state, status=Status.DONE), 0.0)
    assert [str(number) for number in range(5, JOBS_MAX + 5)] == [job.terms.uid for job in jobs]
    assert not jobs.is_full


_versions = st.builds(
    lambda incarnation, owner, version, is_unwanted: structs.replace(
        _state(_terms(), (Holder("n", "/h", ""),)),
        incarnation=incarnation,
        owner=owner,
        version=version,
        is_unwanted=is_unwanted,
    ),
    st.integers(0, 3),
    st.sampled_from(["a", "b"]),
    st.integers(0, 3),
    st.booleans(),
)


@given(one=_versions, other=_versions, third=_versions)
def test_versions_meet_in_any_order(one: JobState, other: JobState, third: JobState) -> None:
    """All nodes come to the same state, and a wish for a job's end is never lost."""
    together = merged(merged(one, other), third)
    assert together == merged(one, merged(other, third)) == merged(merged(third, one), other)
    assert together == merged(together, one)
    assert together.is_unwanted == any(job.is_unwanted for job in (one, other, third))


def test_what_nodes_do_not_take_is_said() -> None:
    """Names, paths, sizes and numbers are bounded."""
    program = JobProgram(script="p.py", files=(JobFile("p.py", b""),))
    assert problem_with(_terms(), program) is None
    for terms, wrong, words in (
        (_terms("a/b"), program, "Invalid name"),
        (_terms("x" * 101), program, "Invalid name"),
        (_terms(attempts=0), program, "above 0"),
        (_terms(), JobProgram(script="q.py", files=program.files), "no file"),
        (_terms(), JobProgram(), "script or a module"),
        (_terms(), JobProgram(script="../p", files=(JobFile("../p", b""),)), "relative"),
        (_terms(), JobProgram(script="p", files=(JobFile("p", bytes(17 << 20)),)), "16 MiB"),
        (_terms(), structs.replace(program, arguments=("\0",)), "NUL"),
    ):
        assert words in (problem_with(terms, wrong) or "")
