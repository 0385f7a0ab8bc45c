"""The record of a query: its events, folded. All that is told of queries is read from it.

    QueryStarted, QueryPlanned, StageStarted, TaskEnded, StageEnded, ... ──apply──► QueryRecord

A session keeps one of each query, which `DataFrame.metrics()` returns; a page folds the same events
into its own. Only tasks are measured: figures of stages and queries derive from theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec

from minishark.model.events.figures import (
    FIGURES,
    OperatorFigures,
    Sums,
    TaskFigures,
    names_of,
    skew,
    totals,
)
from minishark.model.events.kinds import (
    AnyEvent,
    PlanNode,
    QueryEnded,
    QueryPlanned,
    QueryStarted,
    StageEnded,
    StagePlaced,
    StagePlan,
    StageReused,
    StageStarted,
    TaskEnded,
    TaskFailed,
)
from minishark.model.events.placed import sentences


class Revision(NamedTuple):
    """A change of the plan while the query ran: the rule that made it and why, in a sentence."""

    rule: str
    reason: str


@dataclass(slots=True, kw_only=True)
class StageRecord:
    """A stage of a query.

    Attributes:
        index: its number in the plan.
        plan: it as planned; None if that is not known.
        tasks: its number of tasks.
        began_s: when its first job was submitted; 0 if none was.
        elapsed_s: from its submission to its last completion.
        is_open: whether a job of it runs.
        remade_tasks: tasks whose output was lost and computed again.
        reused_tasks: tasks that did not run, as their outputs existed.
        ended: its last completed attempt of each task, by number.
        beyond: how many completed tasks are not among them, as there are too many.
        failed: tasks that failed for good.
        placed: how its jobs were placed, if the scheduler was asked.
        operators: its operators, each after the one that reads it; only of explained queries.
    """

    index: int
    plan: StagePlan | None = None
    tasks: int = 0
    began_s: float = 0.0
    elapsed_s: float = 0.0
    is_open: bool = False
    remade_tasks: int = 0
    reused_tasks: int = 0
    ended: dict[int, TaskEnded] = field(default_factory=dict)
    beyond: int = 0
    failed: list[TaskFailed] = field(default_factory=list)
    placed: list[StagePlaced] = field(default_factory=list)
    operators: tuple[OperatorFigures, ...] = ()
    _beyond: tuple[TaskFigures, ...] = ()  # the sums over those tasks
    _totals: TaskFigures | None = None  # None if a task has ended since

    def add(self, event: TaskEnded, most: int) -> None:
        """A task has completed; a later attempt replaces an earlier one."""
        self._totals = None
        self.elapsed_s = max(self.elapsed_s, event.at - (self.began_s or event.at))
        if event.task in self.ended or len(self.ended) < most:
            self.ended[event.task] = event
        else:
            self.beyond += 1
            self._beyond = (totals((*self._beyond, event.figures)),)

    @property
    def by_task(self) -> tuple[TaskFigures, ...]:
        """Its completed tasks, in order."""
        return tuple(self.ended[number].figures for number in sorted(self.ended))

    @property
    def totals(self) -> TaskFigures:
        """The sums over its completed tasks."""
        if self._totals is None:
            self._totals = totals((*self._beyond, *(task.figures for task in self.ended.values())))
        return self._totals

    @property
    def done(self) -> int:
        """The number of its completed tasks."""
        return len(self.ended) + self.beyond

    @property
    def there(self) -> int:
        """Of how many tasks the output exists: completed ones, and those that need not run."""
        return self.done + self.reused_tasks

    @property
    def after(self) -> tuple[int, ...]:
        """The stages that it reads."""
        return self.plan.reads if self.plan is not None else ()

    @property
    def rows(self) -> int:
        """Output rows."""
        return self.totals.rows

    @property
    def skew(self) -> float | None:
        """How unevenly its rows are spread, as `figures.skew` says it."""
        return skew([task.figures.rows for task in self.ended.values()])

    @property
    def bytes(self) -> int:
        """The size of the output."""
        return self.totals.bytes

    @property
    def disk_bytes(self) -> int:
        """The part of the output that went to disk."""
        return self.totals.disk_bytes

    @property
    def received(self) -> Mapping[str, int]:
        """The bytes that came over the network, by the node or session that sent them."""
        return self.totals.received

    @property
    def run_s(self) -> tuple[float, ...]:
        """Run times of the completed tasks."""
        return tuple(task.run_s for task in self.by_task)

    @property
    def queue_s(self) -> tuple[float, ...]:
        """Queue times of the completed tasks."""
        return tuple(task.queue_s for task in self.by_task)

    @property
    def constrained_tasks(self) -> int:
        """Tasks that read table partitions, and so prefer nodes."""
        return sum(task.figures.local is not None for task in self.ended.values())

    @property
    def local_tasks(self) -> int:
        """Constrained tasks that ran on a preferred node."""
        return sum(task.figures.local is True for task in self.ended.values())

    @property
    def skipped_tasks(self) -> int:
        """Tasks that were cancelled or never started, as a LIMIT had enough rows."""
        return max(0, self.tasks - self.there)

    @property
    def retries(self) -> int:
        """Failed attempts of tasks that were repeated."""
        return sum(task.figures.attempt - 1 for task in self.ended.values())

    def values(self, name: str) -> list[Any]:
        """A figure of its completed tasks, in order."""
        return [FIGURES[name].of(task) for task in self.by_task]

    def why(self, task: int) -> tuple[str, ...]:
        """Why a task ran where it did, in sentences, as its last job tells; empty if none does."""
        event = self.ended.get(task)
        if event is None:
            return ()
        explanations = (sentences(event, placed) for placed in reversed(self.placed))
        return next(filter(None, explanations), ())

    def as_dict(self) -> dict[str, Any]:
        """All figures as dictionaries, lists and numbers."""
        numbers = ("index", "tasks", "elapsed_s", "after", "remade_tasks", "skew")
        others = ("constrained_tasks", "reused_tasks", "local_tasks", "skipped_tasks", "retries")
        return {
            **{name: getattr(self, name) for name in (*numbers, *others)},
            **{name: getattr(self.totals, name) for name in names_of(Sums.TOTAL, Sums.BY_KEY)},
            **{name: self.values(name) for name in names_of(Sums.SPREAD)},
            "by_task": [
                {**msgspec.structs.asdict(self.ended[number].figures), "why": [*self.why(number)]}
                for number in sorted(self.ended)
            ],
            "operators": [
                {**msgspec.structs.asdict(operator), "misestimate": operator.misestimate}
                for operator in self.operators
            ],
        }

    @property
    def weight(self) -> int:
        """About how much memory it takes, in units of half a kilobyte."""
        fragment = 1 + len(self.plan.sql) // 500 if self.plan is not None else 1
        steps = sum(len(placed.steps) // 2 for placed in self.placed)
        return fragment + len(self.operators) // 4 + len(self.ended) + steps + len(self.failed)


@dataclass(slots=True, kw_only=True)
class QueryRecord:
    """A query, or a load of a table.

    Attributes:
        number: its number in the session.
        kind: "query" or "load".
        state: "running", "done", "failed" or "cancelled"; "lost" if its session has ended.
        elapsed_s: from the call to the answer, planning included.
        planning_s: from the text to the stages.
        warnings: sentences for the user.
        in_front_end: whether no task ran it.
        plan: its operators, each after the one that reads it.
        by_index: its stages by number, in topological order.
        revisions: how its plan was changed while it ran, in this order.
        reused: what of it existed already; no stage ran if that is the answer.
        plans: the physical plan as it was made and as it ran, as text, if that was changed and the
            query was to be explained.
    """

    TASKS_MAX: ClassVar[int] = sys.maxsize
    """Of how many tasks of one stage the details are kept."""

    number: int = 0
    kind: str = "query"
    sql: str = ""
    began_s: float = 0.0
    ended_s: float | None = None
    state: str = "running"
    elapsed_s: float = 0.0
    planning_s: float = 0.0
    error: str = ""
    warnings: tuple[str, ...] = ()
    in_front_end: bool = False
    plan: tuple[PlanNode, ...] = ()
    by_index: dict[int, StageRecord] = field(default_factory=dict)
    revisions: tuple[Revision, ...] = ()
    reused: tuple[StageReused, ...] = ()
    plans: tuple[str, ...] = ()

    def apply(self, event: AnyEvent) -> None:
        """Change the record by an event of its query; others change nothing."""
        match event:
            case TaskEnded():
                self.stage(event.stage).add(event, self.TASKS_MAX)
            case QueryStarted():
                self.number, self.kind = event.query, event.kind
                self.sql, self.began_s = event.sql, event.at
            case QueryPlanned():
                self._planned(event)
            case StageStarted():
                stage = self.stage(event.stage)
                stage.began_s = stage.began_s or event.at
                stage.is_open, stage.remade_tasks = True, event.again
                stage.tasks = max(stage.tasks, event.tasks)
            case StageReused():
                self.reused = (*self.reused, event)
                if not event.is_answer:
                    self.stage(event.stage).reused_tasks += event.tasks
            case StagePlaced():
                self.stage(event.stage).placed.append(event)
            case StageEnded():
                stage = self.stage(event.stage)
                stage.is_open, stage.elapsed_s = False, event.elapsed_s
                stage.operators = event.operators or stage.operators
            case TaskFailed():
                self.stage(event.stage).failed.append(event)
            case QueryEnded():
                self._ended(event)
            case _:
                pass

    def stage(self, index: int) -> StageRecord:
        """The record of a stage, which begins if there is none."""
        stage = self.by_index.get(index)
        if stage is None:
            stage = self.by_index[index] = StageRecord(index=index)
        return stage

    def _planned(self, event: QueryPlanned) -> None:
        self.planning_s = event.planning_s or self.planning_s
        if event.rule:
            self.revisions = (*self.revisions, Revision(event.rule, event.reason))
        elif event.stages:
            self.revisions, self.reused = (), ()  # a new plan
        if not event.stages:
            return
        self.plan = event.plan
        before, self.by_index = (self.by_index if event.rule else {}), {}
        for plan in event.stages:
            stage = before.get(plan.stage) or StageRecord(index=plan.stage)
            stage.plan, stage.tasks = plan, plan.tasks
            self.by_index[plan.stage] = stage

    def _ended(self, event: QueryEnded) -> None:
        self.kind, self.state, self.ended_s = event.kind, event.state, event.at
        self.elapsed_s, self.error = event.elapsed_s, event.error
        self.planning_s = event.planning_s or self.planning_s
        self.warnings, self.in_front_end = event.warnings, event.in_front_end
        for stage in self.by_index.values():
            stage.is_open = False

    def has_all_of(self, stage: StageRecord) -> bool:
        """Whether a stage has put out what it was to; of a query that is done, with fewer tasks."""
        some = not stage.is_open and stage.there > 0
        return some and (self.state in ("running", "done") or stage.there >= stage.tasks)

    @property
    def by_stage(self) -> tuple[StageRecord, ...]:
        """Its complete stages, in topological order; none if the front end ran it."""
        if self.in_front_end:
            return ()
        return tuple(stage for stage in self.by_index.values() if self.has_all_of(stage))

    @property
    def stages(self) -> int:
        """The number of those stages."""
        return len(self.by_stage)

    @property
    def tasks(self) -> int:
        """The number of their tasks, without those whose outputs existed."""
        return sum(max(0, stage.tasks - stage.reused_tasks) for stage in self.by_stage)

    @property
    def constrained_tasks(self) -> int:
        """Tasks that read table partitions, and so prefer nodes."""
        return sum(stage.constrained_tasks for stage in self.by_stage)

    @property
    def local_tasks(self) -> int:
        """Constrained tasks that ran on a preferred node."""
        return sum(stage.local_tasks for stage in self.by_stage)

    @property
    def uses_disk(self) -> bool:
        """Whether an output went to disk for lack of shared memory."""
        return any(
            task.figures.disk_bytes
            for stage in self.by_index.values()
            for task in stage.ended.values()
        )

    def as_dict(self) -> dict[str, Any]:
        """All figures as dictionaries, lists and numbers."""
        numbers = ("elapsed_s", "planning_s", "stages", "tasks", "constrained_tasks", "local_tasks")
        return {
            **{name: getattr(self, name) for name in numbers},
            "warnings": [*self.warnings],
            "by_stage": [stage.as_dict() for stage in self.by_stage],
            "revisions": [revision._asdict() for revision in self.revisions],
            "plans": [*self.plans],
        }
