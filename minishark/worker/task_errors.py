"""Errors of a task, in a form that the front end can act on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import pyarrow as pa

from minishark.compiler.sql.advice import advised
from minishark.compiler.sql.failures import failure_class
from minishark.errors import ConstraintError, DataError, DataValueError, TaskFailedError
from minishark.worker.host_files import FetchInterruptedError
from minishark.worker.protocol import ProblemDetail, TaskProblem
from minishark.worker.store import FolderMissingError, InputMissingError
from minishark.worker.writing import FULL, disk_full

_REJECTIONS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.NotImplementedException,
    duckdb.ParserException,
)


_PROBLEMS: Mapping[type[TaskFailedError], TaskProblem] = {
    TaskFailedError: TaskProblem.SQL,
    DataValueError: TaskProblem.VALUE,
    ConstraintError: TaskProblem.CONSTRAINT,
}


class TaskError(Exception):
    """A task failed in a way that the front end can act on."""

    def __init__(self, problem: TaskProblem, message: str, **details: Any) -> None:
        """With the `details` of a `ProblemDetail`."""
        super().__init__(message)
        self.detail = ProblemDetail(problem=problem, message=message, **details)


def out_of_memory(message: str) -> str:
    """Advice for a lack of memory; DuckDB's own is about settings that users can't reach."""
    first = message.partition("\n")[0]
    if "offload data block" in first:  # it may spill no more than that
        return (
            "A task has spilled as much as query_disk_limit or the disk allow: raise that limit, "
            f"or memory_limit. ({first})"
        )
    return (
        "A task needs more memory than its executor has: raise memory_limit, start fewer "
        f"executors, or use more partitions. ({first})"
    )


def internal_error(error: duckdb.Error) -> str:
    """What to tell of a mistake of DuckDB's own, without its stack."""
    text = str(error)
    # Once broken, a database says so of whatever comes next, and then quotes what broke it.
    cause = text.partition("Original error: ")[2].strip('"') or text
    return (
        "DuckDB failed by a mistake of its own, which another way to write this may avoid. "
        f"It said: {cause.splitlines()[0]}"
    )


def is_full(message: str) -> bool:
    return "No space left" in message or "Could not write all bytes" in message


@contextlib.contextmanager
def task_errors() -> Iterator[None]:
    """Turn errors of DuckDB, Arrow and the system into `TaskError`s."""
    try:
        yield
    except (duckdb.FatalException, duckdb.InternalException):
        raise  # a bug of DuckDB's, after which the slot restarts it
    except _REJECTIONS as error:
        raise TaskError(TaskProblem.BIND, str(error)) from error
    except (duckdb.InterruptException, FetchInterruptedError) as error:
        raise TaskError(TaskProblem.INTERRUPTED, "The task was interrupted.") from error
    except duckdb.OutOfMemoryException as error:
        raise TaskError(TaskProblem.RESOURCE, out_of_memory(str(error))) from error
    except InputMissingError as error:
        # The front end knows which tasks can produce the files again.
        raise TaskError(TaskProblem.INPUT, str(error), missing=error.files) from error
    except duckdb.IOException as error:
        # About a file that the statement names: stored files are not read by DuckDB.
        if is_full(str(error)):
            raise TaskError(TaskProblem.RESOURCE, disk_full(error)) from error
        raise TaskError(TaskProblem.SQL, str(error)) from error
    except DataError as error:
        raise TaskError(TaskProblem.SOURCE, str(error)) from error
    except FolderMissingError as error:
        raise TaskError(TaskProblem.FOLDER, str(error)) from error
    except OSError as error:
        if error.errno in FULL:
            raise TaskError(TaskProblem.RESOURCE, disk_full(error)) from error
        raise TaskError(TaskProblem.INPUT, str(error)) from error
    except MemoryError as error:
        raise TaskError(TaskProblem.RESOURCE, out_of_memory("MemoryError")) from error
    except (duckdb.Error, pa.ArrowException) as error:
        raise TaskError(_PROBLEMS[failure_class(error)], advised(str(error))) from error
