"""The interface between minishark and what runs its tasks; errors that come back through it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from zlib import crc32

import cloudpickle
import msgspec
from msgspec.structs import replace

from minishark.cluster.job_events import Job, JobEvent, JobFailed, JobId, Task, TaskFailed, TaskLost
from minishark.errors import (
    ClusterError,
    ConstraintError,
    DataError,
    DataValueError,
    ExecutionError,
    FunctionError,
    MinisharkError,
    QueryCancelledError,
    ResourceError,
    TaskFailedError,
    TasksLostError,
)
from minishark.worker.protocol import (
    FileSlice,
    ProblemDetail,
    StoreLocation,
    TaskProblem,
    decode_problem,
)
from minishark.worker.store import Store
from sparrow_core import JobOptions, SparrowError, TaskId

OnPrint: TypeAlias = Callable[[str, str], None]
"""Takes the name of an executor, and what user code has printed there."""

CALLS_FOLDER = "tasks"
"""The session's folder for large arguments and results of Python calls, which lasts."""

TRANSACTIONS_FOLDER = "transactions"
"""Has a folder for each transaction that is open."""

_LATE_BINDING = "sparrow"
"""The policy whose tasks wait for the node that is free first."""

BackendError: TypeAlias = SparrowError
"""What a backend raises when it is closed."""


class FragmentRejectedError(Exception):
    """DuckDB rejected a fragment; the statement can still run as a whole."""


class DatabaseBrokenError(FragmentRejectedError):
    """A fragment broke the executor's database; only an executor may try the statement again."""


_LOST_ADVICE = (
    "If it is always the same task, look for code that crashes, ends or stops its process, takes "
    "too much memory, or holds Python's lock (GIL) for long, and run that in a process of its own."
)


class FilesLostError(TasksLostError):
    """Input files are lost with their nodes, and the failing job can't recompute them."""

    def __init__(self, files: Sequence[FileSlice]) -> None:
        names = ", ".join(dict.fromkeys(item.file for item in files))
        super().__init__(f"Input files lost: no live node has {names}. Run the query again.")
        self.files = tuple(files)


class Backend(Protocol):
    """Runs the tasks of jobs, and reports when they complete."""

    def submit(self, job: Job, on_event: Callable[[JobEvent], None]) -> JobId:
        """Place a job's tasks; `on_event` is called on another thread and must not block."""

    def cancel(self, job_id: JobId) -> None:
        """Stop a job; its last event is a JobFailed of kind "cancelled"."""

    def withdraw(self, job_id: JobId, tasks: Sequence[TaskId], *, stop: bool) -> None:
        """Drop tasks that have not begun; with `stop`, also interrupt those that have.

        Without it, a TasksReturned names those that were dropped.
        """

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call back on the thread of `on_event`; SparrowError if there is none any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """How a query's tasks are placed."""

    policy: str  # "sparrow" (batch sampling with late binding), "batch", "per_task" or "random"
    probe_ratio: float  # reservations per task
    nodes: tuple[str, ...]  # names of the live nodes, in order
    user: str = "default"  # whose tasks they are, for nodes that share their slots fairly
    # Seconds until a task may run on a node that it does not prefer; None for never, unless all
    # preferred nodes are dead.
    wait_s: float | None = None
    stores: tuple[StoreLocation, ...] = ()  # the stores with folders of their own

    def task(
        self,
        number: int,
        payload: bytes,
        nodes: tuple[str, ...] = (),
        memory_bytes: int = 0,
        *,
        wait_s: float | None = None,
    ) -> Task:
        """A task of a job, which prefers some nodes, or else any will do.

        It waits for them as the placement says, or for `wait_s` seconds.
        """
        wait_s = self.wait_s if wait_s is None else wait_s
        return Task(TaskId(number), payload, nodes, wait_s, memory_bytes)

    def usual_node(self, text: str) -> tuple[str, ...]:
        """Where tasks that run a text go if that is free; empty if there is no such place.

        The same one as long as the nodes are the same. Policies that bind tasks to nodes at once
        would let them wait there.
        """
        if self.policy != _LATE_BINDING or len(self.nodes) < 2:
            return ()
        return (max(self.nodes, key=lambda node: crc32(f"{node} {text}".encode())),)

    def job(
        self,
        tasks: tuple[Task, ...],
        shared: bytes,
        *,
        group: str,
        tag: Any = None,
        by_policy: bool = True,
        explain: bool = False,
        independent: bool = False,
        task_s: float = 1.0,
        limit_s: float | None = None,
    ) -> Job:
        """Tasks as a job of the user.

        Args:
            tasks: made by `task`.
            shared: what all of them get besides their payloads.
            group: jobs of the user with the same group share slots as one.
            tag: what events of its tasks are told by.
            by_policy: whether the policy places it, or Sparrow's default.
            explain: whether its end tells the steps of placing the tasks.
            independent: whether tasks fail alone.
            task_s: the estimated time of a task.
            limit_s: how long a task may run; None for no limit.
        """
        job = Job(
            tasks=tasks,
            shared=shared,
            user=self.user,
            options=JobOptions(
                explain=explain,
                independent=independent,
                task_s=task_s,
                limit_s=limit_s,
                group=group,
            ),
            tag=tag,
        )
        if not by_policy:
            return job
        return replace(job, placement=self.policy, probe_ratio=self.probe_ratio)


class PlacementSource(Protocol):
    """Where tasks run."""

    task_bytes: int  # memory that each task can use at least

    @property
    def backend(self) -> Backend:
        """Runs tasks."""

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        """How tasks are placed on the live nodes."""

    @property
    def schedulers(self) -> tuple[str, ...]:
        """The schedulers' addresses, for tasks that submit tasks."""

    @property
    def total_slots(self) -> int:
        """How many tasks run concurrently."""

    @property
    def most_slots(self) -> int:
        """How many tasks run concurrently when it has grown as far as it may, as far as known."""

    @property
    def cores(self) -> int:
        """How many tasks run concurrently on a core of their own, as far as is known."""


class Files(Protocol):
    """The files of a session, on nodes that may be lost with them."""

    loses_files: bool  # whether files are lost with the nodes that store them

    recovery_s: float  # how long statements wait for nodes that do not answer

    @property
    def store_name(self) -> str:
        """The location of files that the session itself writes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the live nodes that store tables and run tasks, in order."""

    @property
    def draining(self) -> tuple[str, ...]:
        """Names of the live nodes that are about to leave: they only serve what they have."""

    @property
    def open_folders(self) -> frozenset[str]:
        """The folders that were made and not removed: of tables, and of what is being run."""

    def homes(self) -> dict[str, str]:
        """Live nodes by name, with a folder that identifies this incarnation of the node."""

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        """The subset of `nodes` whose files are lost, as far as is known."""

    def may_return(self, node: str) -> bool:
        """Whether a node that does not answer may have its files: it is cut off, or suspended."""

    def store(self) -> Store:
        """The session's own view of all stores."""

    def folder(self, name: str) -> str:
        """The path of a folder of the session, in each node's storage."""

    def make_folder(self, *folders: str) -> None:
        """Create folders of the session on every node; ResourceError if one can't."""

    def remove_folder(self, *folders: str) -> None:
        """Delete folders on every node; tasks that still write to them fail."""

    def copy_file(self, file: str, source: str, target: str) -> bool:
        """Replicate a file from one node to another; whether it succeeded."""

    def remove_copy(self, file: str, node: str) -> None:
        """Delete a node's replica of a file; no effect if the node does not answer."""

    def release(self, nodes: Collection[str]) -> None:
        """Release exactly these draining nodes."""


class Workplace(PlacementSource, Files, Protocol):
    """Where tasks run, and their files are."""


_FAILURES: Mapping[TaskProblem, type[TaskFailedError]] = {
    TaskProblem.SQL: TaskFailedError,
    TaskProblem.VALUE: DataValueError,
    TaskProblem.CONSTRAINT: ConstraintError,
}


def task_error(event: TaskFailed, *, is_own_text: bool = False) -> Exception:
    # DuckDB's excerpt of the text helps if the task ran the user's own statement (`is_own_text`);
    # an excerpt of a generated fragment would not.
    try:
        detail = decode_problem(event.detail)
    except msgspec.DecodeError:
        return ExecutionError(f"A task failed on {event.node}: {event.message}")
    match detail.problem:
        case TaskProblem.BIND:
            return FragmentRejectedError(detail.message)
        case TaskProblem.INTERNAL:
            return DatabaseBrokenError(detail.message)
        case TaskProblem.RESOURCE:
            return ResourceError(detail.message)
        case TaskProblem.INTERRUPTED:
            return QueryCancelledError("The query was cancelled.")
        case TaskProblem.SQL | TaskProblem.VALUE | TaskProblem.CONSTRAINT:
            message = detail.message
            message = message if is_own_text else message.partition("\n\nLINE ")[0]
            return _FAILURES[detail.problem](message)
        case TaskProblem.INPUT:
            return ExecutionError(f"Input data can't be read: {detail.message}")
        case TaskProblem.SOURCE:
            return DataError(detail.message)
        case TaskProblem.FOLDER:
            return TasksLostError(f"Can't store rows: {detail.message}")
        case TaskProblem.OUTPUT:
            return DataError(f"Can't write the files: {detail.message}")
        case TaskProblem.FUNCTION:
            return function_error(detail, event.node)


def printed_by(event: TaskFailed) -> str:
    """What user code had printed in a task that failed."""
    try:
        return decode_problem(event.detail).printed
    except msgspec.DecodeError:
        return ""


def function_error(detail: ProblemDetail, node: str, place: str = "") -> Exception:
    """The exception that a user's function raised; a FunctionError if it can't be unpickled."""
    # It carries the remote traceback and the partition in a note, and a FunctionError with them as
    # attributes as its cause.
    place = place or f"in partition {detail.partition} on {node}"
    error: Exception | None = None
    if detail.pickled:
        with contextlib.suppress(Exception):  # unpickling runs the user's code
            error = cloudpickle.loads(detail.pickled)
    note = f"\n\n{detail.traceback}" if detail.traceback and error is None else ""
    cause = FunctionError(
        f"{detail.message} ({place}){note}",
        partition=detail.partition,
        node=node,
        traceback=detail.traceback,
    )
    if error is None:
        return cause
    assert isinstance(error, Exception)
    error.add_note(f"Raised {place}:\n{detail.traceback}")
    if isinstance(error, MemoryError):  # which says nothing
        error.add_note(
            "An executor has as much memory as its node may take: raise memory_limit, start fewer "
            "executors, or give the function less at a time."
        )
    error.__cause__ = cause
    return error


def tasks_lost(what: str, event: TaskLost | JobFailed) -> TasksLostError:
    """`what` had tasks whose executors died or fell silent each time, as the event tells."""
    story = "".join(f"\n  {line}" for line in event.story)
    return TasksLostError(f"{what} failed: {event.message}{story}\n{_LOST_ADVICE}")


def job_error(event: JobFailed, where: str = "") -> MinisharkError:
    story = "".join(f"\n  {line}" for line in event.story)
    match event.kind:
        case "cancelled":
            return QueryCancelledError("The query was cancelled.")
        case "task_lost":
            return tasks_lost(f"The query{where}", event)
        case "no_nodes" | "no_executors" | "no_scheduler" | "protocol":
            return ClusterError(f"The cluster can't run the query: {event.message}{story}")
        case _:
            return ExecutionError(f"The query failed{where}: {event.message}{story}")
