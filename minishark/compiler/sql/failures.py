"""What a statement failed on that DuckDB ran, by DuckDB's exception."""

from __future__ import annotations

import duckdb

from minishark.errors import ConstraintError, DataValueError, TaskFailedError

VALUE_FAILURES = (
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.TypeMismatchException,
)
"""What a value can't be, whatever it is for."""


def failure_class(error: Exception) -> type[TaskFailedError]:
    """The class of the error that tells users of one that was raised where rows were computed."""
    if isinstance(error, duckdb.ConstraintException):
        return ConstraintError
    # There, an invalid input is a value: of a division by zero, a pattern, a subquery's rows.
    if isinstance(error, (*VALUE_FAILURES, duckdb.InvalidInputException)):
        return DataValueError
    return TaskFailedError
