"""Errors of a task, in a form that the front end can act on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import duckdb
import pyarrow as pa

from minishark.worker.functions import FunctionFailedError
from minishark.worker.protocol import ProblemDetail, TaskProblem
from minishark.worker.store import FolderMissingError, InputMissingError
from minishark.worker.writing import FULL, disk_full

_REJECTIONS = (
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.NotImplementedException,
    duckdb.ParserException,
)


class TaskError(Exception):
    """A task failed in a way that the front end can act on."""

    def __init__(self, problem: TaskProblem, message: str) -> None:
        super().__init__(message)
        self.detail = ProblemDetail(problem=problem, message=message)

    @classmethod
    def of_missing(cls, missing: InputMissingError) -> TaskError:
        """Stored files are gone; the front end knows which tasks can produce them again."""
        error = cls(TaskProblem.INPUT, str(missing))
        error.detail = ProblemDetail(
            problem=TaskProblem.INPUT, message=str(missing), missing=missing.files
        )
        return error

    @classmethod
    def of_function(cls, failed: FunctionFailedError, partition: int) -> TaskError:
        error = cls(TaskProblem.FUNCTION, str(failed))
        error.detail = ProblemDetail(
            problem=TaskProblem.FUNCTION,
            message=str(failed),
            partition=partition,
            traceback=failed.traceback,
            pickled=failed.pickled,
        )
        return error


def out_of_memory(message: str) -> str:
    """Advice for a lack of memory; DuckDB's own is about settings that users can't reach."""
    first = message.partition("\n")[0]
    return (
        "A task needs more memory than its executor has: raise memory_limit, start fewer "
        f"executors, or use more partitions. ({first})"
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
    except duckdb.InterruptException as error:
        raise TaskError(TaskProblem.INTERRUPTED, "The task was interrupted.") from error
    except duckdb.OutOfMemoryException as error:
        raise TaskError(TaskProblem.RESOURCE, out_of_memory(str(error))) from error
    except InputMissingError as error:
        raise TaskError.of_missing(error) from error
    except duckdb.IOException as error:
        # About a file that the statement names: stored files are not read by DuckDB.
        if is_full(str(error)):
            raise TaskError(TaskProblem.RESOURCE, disk_full(error)) from error
        raise TaskError(TaskProblem.SQL, str(error)) from error
    except FolderMissingError as error:
        raise TaskError(TaskProblem.FOLDER, str(error)) from error
    except OSError as error:
        if error.errno in FULL:
            raise TaskError(TaskProblem.RESOURCE, disk_full(error)) from error
        raise TaskError(TaskProblem.INPUT, str(error)) from error
    except MemoryError as error:
        raise TaskError(TaskProblem.RESOURCE, out_of_memory("MemoryError")) from error
    except (duckdb.Error, pa.ArrowException) as error:
        raise TaskError(TaskProblem.SQL, str(error)) from error
