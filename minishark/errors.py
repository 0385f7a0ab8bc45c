"""Every error that minishark raises.

    MinisharkError
    ├── QueryError            the statement is wrong; the message is DuckDB's own
    │   └── ColumnError           a DataFrame has no such column, or several
    ├── CatalogError          a table that is unknown, or can't be made
    ├── DataError             input data that is missing, unreadable or unfit
    ├── OptionError           an option with a value that means nothing
    ├── UnsupportedError      right SQL that minishark does not run (yet)
    ├── ExecutionError        the statement failed while it ran
    │   ├── TaskFailedError       a task raised; carries the task's own message
    │   ├── FunctionError         a Python function failed, or gave what its schema does not say
    │   ├── TasksLostError        nodes died, with tasks or with what tasks need
    │   │   └── PartitionsLostError   with all replicas of a table's partition
    │   ├── ResourceError         memory, shared memory or disk ran out
    │   └── VerificationError     the answer is not the one that plain DuckDB gives
    ├── QueryCancelledError   somebody cancelled it
    └── ClusterError          the cluster did not start, or is gone

The first argument of each is one plain sentence that says what to do.

Names that will be removed warn with MinisharkDeprecationWarning; see docs/stability.md.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


class MinisharkError(Exception):
    """Base class of every error that minishark raises."""


class QueryError(MinisharkError):
    """The statement does not parse or bind; the message is DuckDB's own."""


class ColumnError(QueryError):
    """A name that means no column of a DataFrame, or more than one."""


class CatalogError(MinisharkError):
    """A table that does not exist, exists already, or can't be made."""


class DataError(MinisharkError):
    """Input data that is missing, unreadable or unfit."""


class OptionError(MinisharkError):
    """An option or argument with a value that means nothing here."""


class UnsupportedError(MinisharkError):
    """A correct statement that minishark does not run."""


class ExecutionError(MinisharkError):
    """The statement failed while it ran."""


class TaskFailedError(ExecutionError):
    """A task raised an error that a retry would not change."""


class FunctionError(ExecutionError):
    """A Python function failed in a task, or gave what its schema does not say.

    It is raised itself where there is no exception of the function's that could travel; else it is
    the `__cause__` of that one.

    Attributes:
        partition: the number of the partition that the function was on.
        node: where it ran.
        traceback: the remote traceback as text; empty if nothing was raised.
    """

    def __init__(
        self, message: str, *, partition: int = 0, node: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.node = node
        self.traceback = traceback


class TasksLostError(ExecutionError):
    """Tasks were lost with their nodes too often, or what they need is on no node that lives."""


class PartitionsLostError(TasksLostError):
    """All nodes that held partitions of a table are gone, and it can't be made again by itself.

    Attributes:
        table: its name.
        partitions: the numbers of those partitions.
        files: where they were stored.
    """

    def __init__(
        self,
        table: str,
        partitions: tuple[int, ...],
        files: tuple[str, ...] = (),
        why: str = "",
    ) -> None:
        numbers = ", ".join(map(str, partitions))
        several = "s" if len(partitions) > 1 else ""
        super().__init__(
            f"All nodes that held partition{several} {numbers} of table {table} are gone{why}. "
            "Load the table again; more replicas survive more nodes."
        )
        self.table = table
        self.partitions = partitions
        self.files = files


class ResourceError(ExecutionError):
    """Memory, shared memory or disk ran out."""


class VerificationError(ExecutionError):
    """The answer of a query that was to be verified is not the one that plain DuckDB gives."""


class QueryCancelledError(MinisharkError):
    """The query was cancelled before it ended."""


class ClusterError(MinisharkError):
    """The cluster did not start, lost all of its nodes, or was stopped."""


class MinisharkDeprecationWarning(DeprecationWarning):
    """A public name that a later version removes; the message says what to use instead."""


def deprecated(since: str, *, use: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a public function or method as deprecated: calling it emits a warning.

    Args:
        since: the version that deprecates it.
        use: what to use instead.

    Examples:
        >>> @deprecated("0.3", use="`new`")
        ... def old() -> int:
        ...     return 1
    """

    def mark(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def warning(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            message = f"{function.__qualname__}() is deprecated since {since}; use {use}."
            warnings.warn(message, MinisharkDeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        # What Python 3.13's `warnings.deprecated` sets, for editors and documentation.
        warning.__deprecated__ = f"Deprecated since {since}; use {use}."  # type: ignore[attr-defined]
        return warning

    return mark
