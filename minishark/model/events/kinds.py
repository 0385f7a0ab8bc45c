"""The events of a session. Times (`at`) are seconds since 1970, durations seconds, sizes bytes.

An event says what happened, with numbers and short texts only, so that it can be kept, sent and
written as a line of JSON. Texts of users are cut (`shortened`), so an event's size is bounded.
Fields are only ever added, with defaults, so newer versions read older files; `history` translates
what has changed otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from minishark.errors import redacted
from minishark.model.events.figures import OperatorFigures, TaskFigures
from sparrow_core import NodeStatus, PlacementStep, TaskStatus

FORMAT = 3
"""The version of the format of files; higher ones are not read."""

_SQL_CHARS = 20_000
_SECRET_CHARS = 512  # as long as secrets and their names are, at most
_MESSAGE_CHARS = 4_000
_WHAT_CHARS = 100


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all events; `at` is when it happened."""

    at: float

    @property
    def weight(self) -> int:
        """About how many kilobytes it takes in memory, at least 1."""
        return 1


# The session and its nodes


class SessionStarted(Event, frozen=True, kw_only=True):
    """The first event of every stream and file.

    Attributes:
        session: identifies the session.
        cluster: where it runs, for people.
        slots: how many tasks can run at the same time.
    """

    session: str
    user: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    cluster: str = ""
    slots: int = 0
    format: int = 1  # of files; those of the first format do not say it


class SessionEnded(Event, frozen=True):
    """The session was stopped."""


class EventsDropped(Event, frozen=True, kw_only=True):
    """So many events came faster than they were read, and are lost."""

    count: int


class StageTag(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is for, if it is of a query or load; other jobs are tagged with a text."""

    query: int
    stage: int


class RunningTask(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A task that runs since `began_s`.

    Attributes:
        query: whose it is; 0 if it is of no query or load.
        what: then, the function or program that it runs.
    """

    executor: str
    began_s: float
    task: int
    attempt: int = 1
    query: int = 0
    stage: int = 0
    what: str = ""

    @classmethod
    def of(cls, task: TaskStatus, now: float) -> RunningTask:
        """A task as schedulers report it."""
        is_stage = isinstance(task.tag, StageTag)
        return cls(
            executor=task.executor,
            began_s=now - task.for_s,
            task=task.task_id,
            attempt=task.attempt,
            query=task.tag.query if is_stage else 0,
            stage=task.tag.stage if is_stage else 0,
            what="" if is_stage else shortened(str(task.tag), _WHAT_CHARS),
        )


class TasksRunning(Event, frozen=True, kw_only=True):
    """The tasks of the session that have run for a while and run still, the longest first.

    Attributes:
        tasks: at most 100; a node tells at most 50.
        more: how many there are besides.
    """

    tasks: tuple[RunningTask, ...] = ()
    more: int = 0

    @property
    def weight(self) -> int:
        return 1 + len(self.tasks) // 4


class SessionUsage(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A session, and what one node or all of them store for it.

    Attributes:
        service: where the session answers requests.
    """

    name: str
    user: str
    pid: int
    host: str
    files: int
    bytes: int
    service: str = ""


class NodeUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node uses, as its service counts it.

    Attributes:
        pid: its process; 0 if it did not answer, and all else is not known.
        memory: resident memory of its executors and other children, by process.
        stored_bytes: size of its files in shared memory.
        disk_bytes: size of its files on disk, spilled data included.
        memory_free_bytes: of its host, as are the two below.
        sessions: those that store files there.
    """

    pid: int = 0
    memory: Mapping[int, int] = {}
    stored_bytes: int = 0
    disk_bytes: int = 0
    memory_free_bytes: int = 0
    memory_total_bytes: int = 0
    shared_memory_free_bytes: int = 0
    sessions: tuple[SessionUsage, ...] = ()


class NodeReport(NodeStatus, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """A node as schedulers know it, with what it uses; an event whenever that has changed.

    Attributes:
        at: when it was looked at.
        usage: what it uses; zeros if that is not known.
    """

    at: float
    usage: NodeUsage = NodeUsage()

    @property
    def weight(self) -> int:
        return 1

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its executors, and of its other children on other hosts."""
        return sum(self.usage.memory.values())

    @property
    def stored_bytes(self) -> int:
        """Size of its files in shared memory."""
        return self.usage.stored_bytes

    @property
    def disk_bytes(self) -> int:
        """Size of its files on disk, spilled data included."""
        return self.usage.disk_bytes

    @property
    def tasks(self) -> tuple[RunningTask, ...]:
        """The session's own that have run for a second and run still, at most 50."""
        return tuple(RunningTask.of(task, self.at) for task in self.longest)


class NodeDied(Event, frozen=True, kw_only=True):
    """A node's process or one of its executors died."""

    node: str
    reason: str


class NodeLeft(Event, frozen=True, kw_only=True):
    """A node is no longer part of the cluster."""

    node: str


# Queries


class PlanNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator of a physical plan.

    Attributes:
        parent: the position of the operator that reads it; None for the root.
        name: what kind of operator it is, such as `Join` or `Shuffle`.
        label: the operator as EXPLAIN prints it.
        where: how its rows are distributed.
        rows: the estimated number of rows.
        stage: the stage that computes it, or whose output it is.
        puts_out: whether its rows are the stage's output, so that they are counted.
        keeps_rows: whether it passes on as many rows as it reads from its last input.
        stored_rows: for all rows of a table, their number.
        place: its place among the operators of its stage (`StageEnded.operators`).
    """

    parent: int | None
    name: str
    label: str
    where: str
    rows: float
    stage: int
    puts_out: bool = False
    keeps_rows: bool = False
    stored_rows: int | None = None
    place: int | None = None


class StagePlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stage as planned.

    Attributes:
        stage: its number.
        reads: the stages that it reads.
        tables: the tables that it reads.
        table_bytes: the size of one replica of each of them together.
        does: its operators in short.
        sql: its fragment.
    """

    stage: int
    tasks: int
    reads: tuple[int, ...] = ()
    tables: tuple[str, ...] = ()
    table_bytes: int = 0
    buckets: int = 0
    does: str = ""
    sql: str = ""


class QueryStarted(Event, frozen=True, kw_only=True):
    """A query was asked for; `query` is its number in the session.

    Attributes:
        kind: "query", or "load" for a table that is loaded; `sql` says which.
        trace_parent: the caller's span, in the W3C's form, if it is traced.
    """

    query: int
    sql: str
    trace_parent: str = ""
    kind: str = "query"

    @property
    def weight(self) -> int:
        return 1 + len(self.sql) // 1_000


class QueryPlanned(Event, frozen=True, kw_only=True):
    """A query has a plan, or another one than before.

    Attributes:
        planning_s: from the text to the plan.
        plan: its operators, each after the one that reads it.
        stages: in topological order.
        rule: the rule that changed the plan while the query ran; empty for a new plan.
        reason: why.
    """

    query: int
    planning_s: float = 0.0
    plan: tuple[PlanNode, ...] = ()
    stages: tuple[StagePlan, ...] = ()
    rule: str = ""
    reason: str = ""

    @property
    def weight(self) -> int:
        fragments = sum([1_000 + len(stage.sql) for stage in self.stages])
        return 1 + len(self.plan) // 2 + fragments // 1_000


class StageStarted(Event, frozen=True, kw_only=True):
    """Tasks of a stage were submitted, as one job; so far, `again` had completed before."""

    query: int
    stage: int
    tasks: int
    again: int = 0


class TaskEnded(Event, frozen=True, kw_only=True):
    """A task has completed."""

    query: int
    stage: int
    task: int
    figures: TaskFigures

    @property
    def began_s(self) -> float:
        """When it began to run."""
        return self.at - self.figures.run_s


class TaskFailed(Event, frozen=True, kw_only=True):
    """A task has failed for good."""

    query: int
    stage: int
    task: int
    node: str
    executor: str
    message: str


class StagePlaced(Event, frozen=True, kw_only=True):
    """How a job of a stage was placed, which explains why its tasks ran where they did.

    Attributes:
        tasks: its tasks.
        steps: the messages between scheduler and nodes.
        preferred: the nodes that its tasks preferred, for those that did.
        wait_s: seconds until a task could run elsewhere; None for never.
        requires: attributes that nodes had to have.
    """

    query: int
    stage: int
    tasks: tuple[int, ...] = ()
    steps: tuple[PlacementStep, ...] = ()
    preferred: dict[int, tuple[str, ...]] = {}
    wait_s: float | None = None
    requires: tuple[str, ...] = ()

    @property
    def weight(self) -> int:
        return 1 + (len(self.steps) + len(self.preferred)) // 4


class StageReused(Event, frozen=True, kw_only=True):
    """Tasks of a stage do not run, as their outputs exist.

    Attributes:
        tasks: how many.
        age_s: how long ago the oldest was computed.
        saved_s: how long their tasks have run then.
        made_by: the sessions and queries that have computed them; at most 16.
        is_answer: whether they are the answer, and no stage runs.
    """

    query: int
    stage: int
    tasks: int
    age_s: float = 0.0
    saved_s: float = 0.0
    made_by: tuple[str, ...] = ()
    is_answer: bool = False


class StageEnded(Event, frozen=True, kw_only=True):
    """A stage's job has ended, `elapsed_s` after the stage's first was submitted.

    Attributes:
        operators: what its operators did, if the query is explained.
    """

    query: int
    stage: int
    elapsed_s: float
    operators: tuple[OperatorFigures, ...] = ()


class QueryEnded(Event, frozen=True, kw_only=True):
    """A query is over.

    Attributes:
        kind: as in `QueryStarted`.
        state: "done", "failed" or "cancelled".
        error: the message of what it raised.
        in_front_end: whether no task ran it.
    """

    query: int
    state: str
    elapsed_s: float
    planning_s: float = 0.0
    error: str = ""
    warnings: tuple[str, ...] = ()
    in_front_end: bool = False
    kind: str = "query"


# Tables


class PartitionReport(msgspec.Struct, frozen=True, array_like=True):
    """A partition of a table, and the nodes that store it."""

    rows: int
    bytes: int
    nodes: tuple[str, ...]


class TableReport(Event, frozen=True, kw_only=True):
    """A table, if it is new or has changed.

    Attributes:
        replicas: how many nodes are to store each partition.
        keys: the columns whose hash decides on the partition.
        is_cached: whether it holds the rows of a cached DataFrame.
        is_computed: False for one that is computed when first needed.
        columns: names and types.
    """

    table: str
    rows: int
    bytes: int
    replicas: int
    partitions: tuple[PartitionReport, ...] = ()
    keys: tuple[str, ...] = ()
    is_cached: bool = False
    is_computed: bool = True
    columns: tuple[tuple[str, str], ...] = ()

    @property
    def weight(self) -> int:
        return 1 + (len(self.partitions) + len(self.columns)) // 4


class TableDropped(Event, frozen=True, kw_only=True):
    """A table is gone."""

    table: str


# Python calls and iterative programs


class CallsSubmitted(Event, frozen=True, kw_only=True):
    """Calls of a Python function were sent to the cluster."""

    function: str
    count: int


class CallEnded(Event, frozen=True, kw_only=True):
    """A call of a Python function is over; `state` is "done", "raised" or "lost"."""

    function: str
    node: str = ""
    executor: str = ""
    run_s: float = 0.0
    state: str = "done"
    error: str = ""


class ProgramReport(Event, frozen=True, kw_only=True):
    """How far an iterative program is; figures as in `minishark.session.programs.program`.

    Attributes:
        state: "running", "done", "failed" or "cancelled"; "ended" if nobody waits for its result.
    """

    program: int
    name: str
    state: str
    stage: int = 0
    iterations: int = 0
    tasks: int = 0
    workers: int = 0
    snapshot: int | None = None
    migrations: int = 0
    rollbacks: int = 0
    elapsed_s: float = 0.0
    error: str = ""


# Jobs that outlive who submitted them


class JobReport(Event, frozen=True, kw_only=True):
    """What is known of a job of the cluster; it has changed.

    Attributes:
        uid: tells it from others of its name.
        status: "waiting", "running", "done", "failed", "cancelled"; "forgotten" at last.
        what: what it runs.
        why: what has happened to it, a sentence a line.
        log: the end of what it has printed.
    """

    uid: str
    name: str
    status: str
    user: str = ""
    node: str = ""
    what: str = ""
    starts: int = 0
    submitted_s: float = 0.0
    ended_s: float = 0.0
    why: str = ""
    log: str = ""


AnyEvent: TypeAlias = (
    SessionStarted | SessionEnded | EventsDropped | NodeReport | NodeDied | NodeLeft | TasksRunning
    | QueryStarted | QueryPlanned | StageStarted | TaskEnded | TaskFailed | StagePlaced | StageEnded
    | StageReused | QueryEnded | TableReport | TableDropped | CallsSubmitted | CallEnded
    | ProgramReport | JobReport
)  # fmt: skip


def shortened(text: str, limit: int = _SQL_CHARS) -> str:
    """A user's text for events: cut to keep them small, without secrets and lone surrogates."""
    shown = redacted(text[: limit + _SECRET_CHARS])  # not a part of one only
    if len(text) > limit:
        shown = f"{shown[:limit]} … ({len(text):,} characters)"
    return shown if shown.isascii() else shown.encode("utf-8", "backslashreplace").decode()


def message(error: BaseException) -> str:
    """What went wrong, cut so that events stay small."""
    return shortened(str(error) or type(error).__name__, _MESSAGE_CHARS)
