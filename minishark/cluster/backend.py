"""The seam between minishark and whatever runs its tasks; errors that come back through it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import cloudpickle
import msgspec

from minishark.errors import (
    ClusterError,
    DataError,
    ExecutionError,
    FunctionError,
    MinisharkError,
    QueryCancelledError,
    ResourceError,
    TaskFailedError,
    TasksLostError,
)
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import (
    FileSlice,
    ProblemDetail,
    StoreLocation,
    TaskProblem,
    decode_problem,
)
from minishark.worker.store import Store
from sparrow_core import (
    JobFailed,
    JobFinished,
    JobId,
    JobSpec,
    NodeStatus,
    TaskCompleted,
    TaskFailed,
)

JobEvent: TypeAlias = TaskCompleted | TaskFailed | JobFinished | JobFailed


class FragmentRejectedError(Exception):
    """DuckDB did not accept a fragment; the statement can still run as a whole."""


class FilesLostError(TasksLostError):
    """Stored files are gone with their nodes, and the run that misses them can't make them again.

    Attributes:
        files: which.
    """

    def __init__(self, files: Sequence[FileSlice]) -> None:
        names = ", ".join(dict.fromkeys(item.file for item in files))
        super().__init__(
            f"What tasks have to read is on no node that lives: {names}. Run it again."
        )
        self.files = tuple(files)


class Backend(Protocol):
    """Where tasks run: place these, with these preferences; tell me what finished."""

    def submit(self, job: JobSpec, on_event: Callable[[JobEvent], None]) -> JobId:
        """Place a job's tasks; events come on another thread, and the callback must not block."""
        ...

    def cancel(self, job_id: JobId) -> None:
        """Stop a job; its last event is a JobFailed of kind "cancelled"."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """How a query's tasks are placed.

    Attributes:
        policy: "sparrow" (batch sampling with late binding) or "random".
        probe_ratio: reservations per task.
        nodes: the nodes of the cluster, in order.
        user: on whose behalf, for nodes that share their slots fairly.
        wait_s: after how many seconds a task may run on nodes that it does not prefer; None: never,
            unless none of those lives.
        stores: where holders of files keep them, if they have folders of their own.
    """

    policy: str
    probe_ratio: float
    nodes: tuple[str, ...]
    user: str = "default"
    wait_s: float | None = None
    stores: tuple[StoreLocation, ...] = ()


class Cluster(Protocol):
    """Nodes and their storage, as a session uses them; its own, or one that it shares."""

    warnings: tuple[str, ...]
    """Sentences for the user."""

    paths: StorePaths
    """Where the session's own files are, and those of nodes without folders of their own."""

    scratch: Path
    """A folder on disk that goes with the session."""

    memory_limit_bytes: int
    """What the nodes on this machine may use; of a cluster that runs already, the default."""

    task_bytes: int
    """What a task may use of its node's memory at least, as far as is known."""

    loses_files: bool
    """Whether files go with the nodes that hold them."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that live, in order."""
        ...

    @property
    def total_slots(self) -> int:
        """How many tasks run at the same time."""
        ...

    @property
    def backend(self) -> Backend:
        """Where tasks are submitted."""
        ...

    @property
    def store_name(self) -> str:
        """The holder of what the session itself writes into the store."""
        ...

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        """How tasks are placed on the nodes that are there now."""
        ...

    def status(self) -> tuple[NodeStatus, ...]:
        """Each node with its processes."""
        ...

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        """Those of some nodes whose files are gone, as far as is known now."""
        ...

    def homes(self) -> dict[str, str]:
        """The nodes that live, each with the folder that tells it from an earlier one."""
        ...

    def copy_file(self, file: str, source: str, target: str) -> bool:
        """Give a node a file of another node's; whether it has it now."""
        ...

    def store(self) -> Store:
        """The session's own view of the store."""
        ...

    def folder(self, name: str) -> str:
        """Where, in each node's storage, a folder of the session's lies."""
        ...

    def make_folder(self, folder: str) -> None:
        """Make a folder of the store on every node."""
        ...

    def remove_folder(self, folder: str) -> None:
        """Delete a folder of the store on every node; tasks that still want to write to it fail."""
        ...

    def close(self) -> None:
        """Leave, or stop what is the session's own; remove its files. May be called twice."""
        ...


def task_error(event: TaskFailed, *, is_own_text: bool = False) -> Exception:
    """The exception for a task that failed for good.

    Args:
        event: the failure.
        is_own_text: whether the task ran the user's own statement, so that DuckDB's excerpt of it
            helps; an excerpt of a fragment would not.
    """
    try:
        detail = decode_problem(event.detail)
    except msgspec.DecodeError:
        return ExecutionError(f"A task failed on {event.node}: {event.message}")
    match detail.problem:
        case TaskProblem.BIND:
            return FragmentRejectedError(detail.message)
        case TaskProblem.RESOURCE:
            return ResourceError(detail.message)
        case TaskProblem.INTERRUPTED:
            return QueryCancelledError("The query was cancelled.")
        case TaskProblem.SQL:
            message = detail.message
            return TaskFailedError(message if is_own_text else message.partition("\n\nLINE ")[0])
        case TaskProblem.INPUT:
            return ExecutionError(f"Input data can't be read: {detail.message}")
        case TaskProblem.FOLDER:
            return TasksLostError(f"Rows can't be stored: {detail.message}")
        case TaskProblem.OUTPUT:
            return DataError(f"The files can't be written: {detail.message}")
        case TaskProblem.FUNCTION:
            return function_error(detail, event.node)


def function_error(detail: ProblemDetail, node: str) -> Exception:
    """What a user's function raised, or a FunctionError if it raised nothing that could travel.

    The exception that it raised comes with the remote traceback and the partition as a note, and
    with a FunctionError as its cause that has them as attributes.
    """
    place = f"in partition {detail.partition} on {node}"
    note = f"\n\n{detail.traceback}" if detail.traceback else ""
    cause = FunctionError(
        f"{detail.message} ({place}){note}",
        partition=detail.partition,
        node=node,
        traceback=detail.traceback,
    )
    if not detail.pickled:
        return cause
    try:
        error = cloudpickle.loads(detail.pickled)
    except Exception:  # noqa: BLE001 - whatever a user's exception does when it is made anew
        return cause
    assert isinstance(error, Exception)
    error.add_note(f"Raised {place}:\n{detail.traceback}")
    error.__cause__ = cause
    return error


def job_error(event: JobFailed, where: str = "") -> MinisharkError:
    """The exception for a job that ended without all results.

    Args:
        event: its end.
        where: which part of a query the job was, such as " in stage 2".
    """
    story = "".join(f"\n  {line}" for line in event.story)
    match event.kind:
        case "cancelled":
            return QueryCancelledError("The query was cancelled.")
        case "task_lost":
            return TasksLostError(f"The query failed{where}: {event.message}{story}")
        case "no_nodes" | "no_scheduler":
            return ClusterError(f"The cluster can't run the query: {event.message}{story}")
        case _:
            return ExecutionError(f"The query failed{where}: {event.message}{story}")
