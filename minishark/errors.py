"""Every error that minishark raises.

    MinisharkError
    ├── QueryError            invalid statement; the message is DuckDB's
    │   ├── ColumnError           unknown or ambiguous column of a DataFrame
    │   └── TransactionError      BEGIN, COMMIT or a statement does not fit the transaction
    ├── CatalogError          unknown table, or invalid name
    │   └── AlreadyExistsError    a table, view or schema of that name exists
    ├── DataError             input data is missing, unreadable or unsuitable
    ├── OptionError           invalid option or argument
    ├── UnsupportedError      valid SQL that minishark does not run
    ├── ExecutionError        the statement failed during execution
    │   ├── QueryTimeoutError     it took longer than query_timeout_s
    │   ├── TaskFailedError       a task raised; carries the task's message
    │   │   ├── ConstraintError       a key, NOT NULL, CHECK or foreign key is violated
    │   │   └── DataValueError        a conversion, overflow, division or other operation on a value
    │   ├── FunctionError         a user's function failed, or returned what its schema excludes
    │   ├── ProgramError          a program's driver is not deterministic, or misuses `run`
    │   ├── TasksLostError        nodes died, with running tasks or with their input
    │   │   └── PartitionsLostError   all replicas of a table's partition are lost
    │   ├── JobError              a submitted job failed, was cancelled, or is not known
    │   ├── ConflictError         another writer changed the table meanwhile
    │   ├── ResourceError         out of memory, shared memory, disk or slots
    │   └── VerificationError     the answer differs from plain DuckDB's
    ├── QueryCancelledError   the query was cancelled
    └── ClusterError          the cluster did not start, or does not answer

The first argument of each is a plain sentence that says what to do.

Names that will be removed warn with MinisharkDeprecationWarning; see docs/stability.md.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


# Lengths are bounded so that the search takes linear time on any text.
_VALUE = r"""''[^']{0,256}'' | '(?:[^'\\]|\\.|''){0,256}' | "[^"]{0,256}" """
_SECRETS = re.compile(
    rf"""
    # scheme://user:password@host; a number that no @ follows closely is a port
    (?P<user> ://[^\s/@'":]{{0,64}}: ) (?! \d+(?:[\s,/?'"]|$) )
        (?: [^\s'"]{{1,128}} | [^'"\n/]{{1,128}} ) (?=@)
    # password=..., 'aws_secret_access_key': '...', SECRET '...'
    | (?P<key> \b\w{{0,32}}
               (?:password|passwd|pwd|secret|token|credential|account_key|sas_key)\w{{0,32}}
               ['"]? (?: \s{{0,8}}(?:=>|:=|=|:)\s{{0,8}} | \s{{1,8}}(?=') ) ) (?: {_VALUE} )
    | (?P<word> \b\w{{0,32}}(?:password|passwd|pwd|secret)\w{{0,32}}\s{{0,8}}=\s{{0,8}} )
        [^\s'"&,;()]+
    # parameters of URLs
    | (?P<parameter> [?&](?:sig|[\w-]{{0,32}}(?:token|signature|credential)) = ) [^\s'"&]+
    """,
    re.IGNORECASE | re.VERBOSE,
)
_MARKS = (
    *("://", "passw", "pwd", "secret", "token", "credent", "account_key", "sas_key"),
    *("?s", "&s", "gnature"),
)
"""What `_SECRETS` finds has one of these in it: most texts have none, which is quickly seen.

They have no i, for which IGNORECASE takes letters that `casefold` does not.
"""


@functools.lru_cache(maxsize=64)  # the same statements are told again and again
def redacted(text: str) -> str:
    """A text that others may read: passwords, keys and tokens in it are `***`.

    Found are those of URIs and connection strings, and what is assigned to a name such as
    `password` or `aws_secret_access_key`, in SQL or Python.
    """
    folded = text.casefold()
    if not any(mark in folded for mark in _MARKS):
        return text
    return _SECRETS.sub(lambda secret: f"{secret[secret.lastgroup or 0]}***", text)


class MinisharkError(Exception):
    """Base class of every error that minishark raises; their texts have no passwords."""

    def __init__(self, *arguments: object) -> None:
        shown = (
            redacted(argument) if isinstance(argument, str) else argument for argument in arguments
        )
        super().__init__(*shown)


class AnalysisException(MinisharkError):  # noqa: N818 - PySpark's name
    """What a statement or a verb names is wrong, or is not there: the base of such errors."""


class QueryError(AnalysisException):
    """The statement does not parse or bind; the message is DuckDB's."""


class ColumnError(QueryError):
    """A DataFrame has no column of that name, or several."""


class TransactionError(QueryError):
    """The transaction is aborted; or there is one already to BEGIN, or none to end."""


class CatalogError(AnalysisException):
    """The table does not exist, exists already, or has an invalid name."""


class AlreadyExistsError(CatalogError):
    """A table, view, schema or other object of that name exists already."""


class DataError(AnalysisException):
    """Input data is missing, unreadable or unsuitable."""


class OptionError(MinisharkError):
    """An option or argument is invalid."""


class UnsupportedError(MinisharkError):
    """The statement is valid, but minishark does not run it."""


class ExecutionError(MinisharkError):
    """The statement failed during execution."""


class TaskFailedError(ExecutionError):
    """A task raised an error that a retry would not change."""


class ConstraintError(TaskFailedError):
    """Rows violate a constraint of their table: a key, NOT NULL, CHECK or a foreign key."""


class DataValueError(TaskFailedError):
    """An operation is not defined for a value: a conversion, an overflow, a division by zero."""


class FunctionError(ExecutionError):
    """A user's Python function failed in a task, or returned rows that its schema excludes.

    If the function raised an exception that can be pickled, that one is raised, with a
    FunctionError as its `__cause__`.

    Attributes:
        partition: index of the partition that the function was processing.
        node: name of the node where it ran.
        traceback: the remote traceback as text; empty if the function did not raise.
    """

    def __init__(
        self, message: str, *, partition: int = 0, node: str = "", traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.node = node
        self.traceback = traceback


class ProgramError(ExecutionError):
    """A program's driver misuses `run`, or its copies diverged as it depends on more than signals.

    Its `__cause__` is the `canary_core.CanaryError` with stages and calls.
    """


class TasksLostError(ExecutionError):
    """Tasks were lost with their nodes too often, or no live node has their input."""


class TaskTimeoutError(ExecutionError, TimeoutError):
    """A call of a Python function took longer than its timeout, and was stopped."""


class QueryTimeoutError(ExecutionError, TimeoutError):
    """A query or load took longer than `query_timeout_s`, and was cancelled."""


class PartitionsLostError(TasksLostError):
    """All replicas of partitions of a table are lost or damaged, and it can't be recomputed.

    Attributes:
        table: its name.
        partitions: indexes of the lost partitions.
        files: their stored files.
        why: what stood in the way of loading them again, as the message has it.
    """

    def __init__(
        self, table: str, partitions: tuple[int, ...], files: tuple[str, ...] = (), why: str = ""
    ) -> None:
        numbers = ", ".join(map(str, partitions))
        several = "s" if len(partitions) > 1 else ""
        super().__init__(
            f"All replicas of partition{several} {numbers} of table {table} are lost or "
            f"damaged{why}. "
            "Load the table again; more replicas survive the loss of more nodes."
        )
        self.table = table
        self.partitions = partitions
        self.files = files
        self.why = why


class JobError(ExecutionError):
    """A submitted job failed, was cancelled, or is not known (any more)."""


class ConflictError(ExecutionError):
    """Another writer has changed a table meanwhile; nothing was written."""


class ResourceError(ExecutionError):
    """Memory, shared memory or disk is exhausted, or programs hold all slots."""


class VerificationError(ExecutionError):
    """The answer of a query that ran with `verify=True` differs from plain DuckDB's."""


class QueryCancelledError(MinisharkError):
    """The query was cancelled."""


class ClusterError(MinisharkError):
    """The cluster did not start, does not answer, or was stopped."""


# PySpark's names, for programs that catch them.
PySparkException = MinisharkError
ParseException = QueryError
IllegalArgumentException = OptionError


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
