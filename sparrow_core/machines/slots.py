"""A node monitor's components: its executors and their slots, and its memory budget.

A slot is *taken* from the request for a task until the task ends or none came. A node's cap lets
frameworks share slots, of which their executors may have more in sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from machine_kit.addresses import Address, name_of
from machine_kit.machine import Figure
from sparrow_core.policy import sampling as policy
from sparrow_core.policy.disciplines import Discipline
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import AssignTasks
from sparrow_core.protocol.types import Assignment, AttemptEnd, Claim, ExecutorInfo, TaskKey


@dataclass(slots=True)
class Asked:
    """A request for `count` tasks that has not been answered."""

    job_id: JobId
    scheduler: Address
    claim: Claim
    count: int
    at: float


class NodeTask(Struct, kw_only=True):
    """An attempt that is ready (`executor` is None) or runs, since `at`.

    `answer` is the message that brought it. `first_at`: since when it is the oldest of its
    executor, which has begun it; `unwanted_at`: since when its end is asked for. A Struct, because
    there is one per task.
    """

    assignment: Assignment
    answer: AssignTasks
    at: float
    executor: Address | None = None
    first_at: float | None = None
    unwanted_at: float | None = None

    def excuse(self, stall_s: float) -> None:
        """Its executor may have been suspended for so long, too."""
        if self.first_at is not None:
            self.first_at += stall_s
        if self.unwanted_at is not None:
            self.unwanted_at += stall_s

    def overtime_s(self, now: float) -> float:
        """For how long it goes on that should have ended; negative or 0 if it may."""
        if self.first_at is None:
            return 0.0
        due = math.inf if self.answer.limit_s is None else self.first_at + self.answer.limit_s
        if self.unwanted_at is not None:
            due = min(due, max(self.first_at, self.unwanted_at))
        return now - due


@dataclass(slots=True)
class NodeJob:
    """A job on a node.

    Attributes:
        shared: Its shared part; None if it has none or it has not come.
        mean_s: Running mean of its task times; None before the first.
        shared_with: Executors that were sent the shared part.
    """

    scheduler: Address
    shared: bytes | None = None
    mean_s: float | None = None
    shared_with: dict[Address, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class NodeExecutor:
    """An executor, its running attempts, and counters of those that have ended."""

    info: ExecutorInfo
    running: dict[TaskKey, None] = field(default_factory=dict)
    done: int = 0
    lost: int = 0
    run_s: float = 0.0

    @property
    def free(self) -> int:
        return self.info.slots - len(self.running)


class TaskTimes:
    """How far ahead the tasks of a node's jobs may be fetched, by their mean times.

    Kept as a count of jobs for each number of tasks: jobs that have ended stay until a heartbeat,
    and there may be hundreds of them, while the question comes with each message.
    """

    def __init__(self) -> None:
        self._jobs: Counter[int] = Counter()

    def add(self, job: NodeJob) -> None:
        self._jobs[policy.tasks_ahead(job.mean_s)] += 1

    def remove(self, job: NodeJob) -> None:
        self._jobs[policy.tasks_ahead(job.mean_s)] -= 1

    def note(self, job: NodeJob, mean_s: float | None) -> None:
        """The mean time of a job's tasks has changed, or is known now."""
        self.remove(job)
        job.mean_s = mean_s
        self.add(job)

    def least_ahead(self) -> int:
        """The number that suits all jobs; 0 if there are none."""
        return min((ahead for ahead, jobs in self._jobs.items() if jobs), default=0)

    def check(self, jobs: Iterable[NodeJob]) -> None:
        """Assert that exactly these jobs are counted."""
        assert +self._jobs == Counter(policy.tasks_ahead(job.mean_s) for job in jobs)


class MemoryBudget:
    """The declared memory of running tasks, against a limit.

    A task that would exceed the limit waits, and so do all later tasks that declare memory, so that
    none starves. A task that declares more than the limit runs when no other such task runs.

    Attributes:
        used: Sum of what running tasks declare, in bytes.
    """

    def __init__(self, limit: int | None) -> None:
        """Start with no running task; `limit` in bytes, None for none."""
        self.used = 0
        self._limit = limit
        self._is_awaited = False

    def look_again(self) -> None:
        """Begin a pass over the ready tasks, in order."""
        self._is_awaited = False

    def admits(self, needs: int) -> bool:
        """Whether the next ready task may start, which declares this much."""
        if self._limit is not None and self.used and self.used + needs > self._limit:
            self._is_awaited = True
        # While a task waits for memory, later ones that fit must not overtake it forever.
        return not self._is_awaited

    def take(self, needs: int) -> None:
        self.used += needs

    def give_back(self, needs: int) -> None:
        self.used -= needs

    def check(self, running: list[int]) -> None:
        """Assert that `used` is the sum of these, and within the limit unless one runs alone."""
        assert self.used == sum(running)
        together = sum(needs > 0 for needs in running)
        assert self._limit is None or self.used <= self._limit or together == 1


class SlotPool:
    """All executors of a node.

    Attributes:
        executors: Those that may have tasks.
        silent: Those that were given up because they were silent, and have not died.
        ahead: Tasks that an executor may have beyond one per slot.

    Args:
        discipline: Told of slots that are taken and released.
        cap: The node's slots, if fewer than those of its executors.
    """

    def __init__(self, discipline: Discipline, cap: int | None) -> None:
        self.executors: dict[Address, NodeExecutor] = {}
        self.silent: dict[Address, NodeExecutor] = {}
        self.ahead = 0
        self._discipline = discipline
        self._cap = cap
        # Per framework, so that room() does not depend on the number of executors.
        self._slots: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()

    def add(self, info: ExecutorInfo) -> None:
        self.silent.pop(info.address, None)
        self.executors[info.address] = NodeExecutor(info=info)
        self._slots[info.framework] += info.slots

    def remove(self, address: Address) -> NodeExecutor | None:
        """An executor is gone; the slots of its attempts are still to be released."""
        self.silent.pop(address, None)
        executor = self.executors.pop(address, None)
        if executor is not None:
            self._slots[executor.info.framework] -= executor.info.slots
        return executor

    def give_up(self, address: Address) -> NodeExecutor | None:
        """The same, but it may be heard again."""
        executor = self.remove(address)
        if executor is not None:
            self.silent[address] = executor
        return executor

    def room(self, framework: str, ahead: int) -> int:
        """Slots that may be taken for a framework, each `1 + ahead` times."""
        room = self._slots[framework] * (1 + ahead) - self._taken[framework]
        if self._cap is None:
            return room
        return min(room, self._cap * (1 + ahead) - self._taken.total())

    def total_room(self, ahead: int = 0) -> int:
        """The same over all frameworks."""
        slots = self._slots.total()
        slots = slots if self._cap is None else min(slots, self._cap)
        return slots * (1 + ahead) - self._taken.total()

    def take(self, claim: Claim, count: int = 1) -> None:
        self._taken[claim.framework] += count
        self._discipline.taken(claim, count)

    def release(self, claim: Claim, ran_s: float | None = None, count: int = 1) -> None:
        """Release a slot after a task of `ran_s` seconds, or `count` slots if no task came."""
        self._taken[claim.framework] -= count
        assert self._taken[claim.framework] >= 0, "released more slots than were taken"
        self._discipline.given_back(claim, ran_s, count)

    def idlest(self, framework: str) -> NodeExecutor | None:
        """The executor with the most free slots; None if none has room."""
        idlest, most = None, 0
        # Linear, but a node has few executors.
        for executor in self.executors.values():
            if executor.info.framework == framework and (idlest is None or executor.free > most):
                idlest, most = executor, executor.free
        if idlest is None or self._discipline.unbounded:
            return idlest
        return idlest if most + self.ahead * idlest.info.slots > 0 else None

    def sum_up(self, address: Address, end: AttemptEnd) -> None:
        executor = self.executors.get(address)
        if executor is None:
            return
        executor.lost += end.lost is not None
        if end.run_s is not None:
            executor.done += 1
            executor.run_s += end.run_s

    def figures(self) -> Iterator[Figure]:
        for executor in self.executors.values():
            labels = {"executor": name_of(executor.info.address)}
            yield Figure("executor_slots", labels, executor.info.slots)
            yield Figure("executor_running", labels, len(executor.running))
            yield Figure("executor_tasks_total", labels, executor.done, "counter")
            yield Figure("executor_lost_total", labels, executor.lost, "counter")
            yield Figure("executor_run_seconds_total", labels, executor.run_s, "counter")

    def check(self, taken: Counter[Claim]) -> None:
        """Assert that exactly these slots are taken, and that no executor is overloaded."""
        by_framework: Counter[str] = Counter()
        for claim, count in taken.items():
            by_framework[claim.framework] += count
        assert +self._taken == +by_framework
        self._discipline.check(taken)
        assert not self.executors.keys() & self.silent.keys()
        assert all(count >= 0 for count in self._taken.values())
        slots: Counter[str] = Counter()
        for executor in self.executors.values():
            slots[executor.info.framework] += executor.info.slots
            least = -policy.AHEAD_MAX * executor.info.slots
            assert self._discipline.unbounded or executor.free >= least
        assert +self._slots == slots
