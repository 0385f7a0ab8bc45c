"""The slots of a node: its executors, of one or several frameworks, and what takes which slot.

A slot is *taken* from the moment that a task is asked for until the task ends or none came. The
node's cap federates its slots among the frameworks, whose executors may have more in sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from sparrow_core.policy import sampling as policy
from sparrow_core.policy.disciplines import Discipline
from sparrow_core.protocol.ids import Address, JobId, name_of
from sparrow_core.protocol.machine import Figure
from sparrow_core.protocol.messages import AssignTasks
from sparrow_core.protocol.types import Assignment, AttemptEnd, Claim, ExecutorInfo, TaskKey


@dataclass(slots=True)
class Asked:
    """Tasks of a job that its scheduler was asked for."""

    job_id: JobId
    scheduler: Address
    claim: Claim
    count: int
    at: float


class NodeTask(Struct):
    """An attempt that waits for a slot (`executor` is None) or runs, since `at`.

    `answer` is the message that brought it. One is made for each task, so it is cheap.
    """

    assignment: Assignment
    answer: AssignTasks
    at: float
    executor: Address | None = None


@dataclass(slots=True)
class NodeJob:
    """What a node keeps of a job.

    `mean_s` is how long its tasks run lately, `told` are the executors that have had its shared
    part.
    """

    scheduler: Address
    shared: bytes | None = None
    mean_s: float | None = None
    told: dict[Address, None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class NodeExecutor:
    """An executor and the attempts that it has.

    `done`, `lost` and `run_s` sum up those that have ended.
    """

    info: ExecutorInfo
    heard_at: float
    running: dict[TaskKey, None] = field(default_factory=dict)
    done: int = 0
    lost: int = 0
    run_s: float = 0.0

    @property
    def free(self) -> int:
        """Slots without a task."""
        return self.info.slots - len(self.running)


class MemoryBudget:
    """What the tasks that run on a node need of its memory, as they say.

    A task that would bring them above the limit waits, and so do those behind it that need any:
    none is overtaken for ever. One that needs more than the limit runs when no other needs any.

    Attributes:
        used: What those need that run.
    """

    def __init__(self, limit: int | None) -> None:
        """Start without tasks."""
        self.used = 0
        self._limit = limit
        self._is_awaited = False

    def look_again(self) -> None:
        """The tasks that wait are about to be looked at, in their order."""
        self._is_awaited = False

    def admits(self, needs: int) -> bool:
        """Whether the next of them may start, which needs so much."""
        if self._limit is not None and self.used and self.used + needs > self._limit:
            self._is_awaited = True
        return not self._is_awaited

    def take(self, needs: int) -> None:
        """A task starts."""
        self.used += needs

    def give_back(self, needs: int) -> None:
        """It has ended."""
        self.used -= needs

    def check(self, running: list[int]) -> None:
        """Assert that these are the needs of what runs, and that more than one fit."""
        assert self.used == sum(running)
        together = sum(needs > 0 for needs in running)
        assert self._limit is None or self.used <= self._limit or together == 1


class SlotPool:
    """All executors of a node.

    Attributes:
        ahead: How many tasks an executor may have beyond one for each slot.

    Args:
        discipline: Hears of slots that are taken and given back.
        cap: The node's slots, if fewer than those of its executors.
    """

    def __init__(self, discipline: Discipline, cap: int | None) -> None:
        """Start with no executor."""
        self.executors: dict[Address, NodeExecutor] = {}
        self.ahead = 0
        self._discipline = discipline
        self._cap = cap
        self._slots: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._looked_at: float | None = None

    def add(self, info: ExecutorInfo, now: float) -> None:
        """An executor has come."""
        self.executors[info.address] = NodeExecutor(info=info, heard_at=now)
        self._slots[info.framework] += info.slots

    def remove(self, address: Address) -> NodeExecutor | None:
        """An executor has gone; its attempts still take slots until they are released."""
        executor = self.executors.pop(address, None)
        if executor is not None:
            self._slots[executor.info.framework] -= executor.info.slots
        return executor

    def room(self, framework: str, ahead: int) -> int:
        """How often a slot may be taken for a job of a framework, `ahead` times beyond once."""
        room = self._slots[framework] * (1 + ahead) - self._taken[framework]
        return room if self._cap is None else min(room, self._below(self._cap, ahead))

    def total_room(self, ahead: int = 0) -> int:
        """The same for jobs of any framework."""
        room = self._below(self._slots.total(), ahead)
        return room if self._cap is None else min(room, self._below(self._cap, ahead))

    def _below(self, slots: int, ahead: int) -> int:
        return slots * (1 + ahead) - self._taken.total()

    def take(self, claim: Claim, count: int = 1) -> None:
        """Slots are taken for a job."""
        self._taken[claim.framework] += count
        self._discipline.taken(claim, count)

    def release(self, claim: Claim, ran_s: float | None = None, count: int = 1) -> None:
        """A slot is free again after a task of `ran_s`, or `count` because none came."""
        self._taken[claim.framework] -= count
        self._discipline.given_back(claim, ran_s, count)

    def idlest(self, framework: str) -> NodeExecutor | None:
        """Where the framework's next task starts; None if it must wait for a slot."""
        idlest, most = None, 0
        for each in self.executors.values():
            if each.info.framework == framework and (idlest is None or each.free > most):
                idlest, most = each, each.free
        if idlest is None or self._discipline.unbounded:
            return idlest
        return idlest if most + self.ahead * idlest.info.slots > 0 else None

    def sum_up(self, address: Address, end: AttemptEnd) -> None:
        """Count what an executor says that has ended."""
        executor = self.executors.get(address)
        if executor is None:
            return
        executor.lost += end.lost is not None
        if end.run_s is not None:
            executor.done += 1
            executor.run_s += end.run_s

    def figures(self) -> Iterator[Figure]:
        """What each executor has, and has done."""
        for executor in self.executors.values():
            labels = {"executor": name_of(executor.info.address)}
            yield Figure("executor_slots", labels, executor.info.slots)
            yield Figure("executor_running", labels, len(executor.running))
            yield Figure("executor_tasks_total", labels, executor.done, "counter")
            yield Figure("executor_lost_total", labels, executor.lost, "counter")
            yield Figure("executor_run_seconds_total", labels, executor.run_s, "counter")

    def silent(self, now: float, timeout_s: float, interval_s: float) -> list[Address]:
        """The executors silent for too long; to be asked every `interval_s`.

        Time in which nobody asked, because this process did not run, is not their silence.
        """
        stall_s = 0.0 if self._looked_at is None else now - self._looked_at - interval_s
        self._looked_at = now
        if stall_s > interval_s:
            for executor in self.executors.values():
                executor.heard_at = min(now, executor.heard_at + stall_s)
        limit = now - timeout_s
        return [at for at, executor in self.executors.items() if executor.heard_at < limit]

    def check(self, taken: Counter[str]) -> None:
        """Assert that exactly these slots are taken, and that no executor has too many tasks."""
        assert +self._taken == +taken
        assert all(count >= 0 for count in self._taken.values())
        slots: Counter[str] = Counter()
        for executor in self.executors.values():
            slots[executor.info.framework] += executor.info.slots
            least = -policy.AHEAD_MAX * executor.info.slots
            assert self._discipline.unbounded or executor.free >= least
        assert +self._slots == slots
