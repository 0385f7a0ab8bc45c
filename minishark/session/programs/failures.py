"""What canary_core raises, as users of a session know errors."""

from __future__ import annotations

from canary_core.errors import (
    CanaryError,
    DriverFailed,
    ProgramCancelled,
    TaskFailed,
    WorkersLost,
)
from minishark.errors import FunctionError, ProgramError, QueryCancelledError, TasksLostError


def program_error(error: CanaryError) -> Exception:
    """The exception to raise for a program that failed.

    That is what the user's own code raised, if it could be sent, with the place in a note; its
    cause is then a FunctionError.
    """
    match error:
        case TaskFailed():
            place = f"in {error.call}, stage {error.stage}, partition {error.partition}"
            return _of_user_code(error, place, error.partition, error.traceback)
        case DriverFailed():
            place = f"in the driver, after stage {error.stage}"
            return _of_user_code(error, place, 0, error.traceback)
        case ProgramCancelled():
            return QueryCancelledError("The program was cancelled.")
        case WorkersLost():
            return TasksLostError(f"The program's workers were lost: {error}")
        case _:
            failure = ProgramError(str(error))
            failure.__cause__ = error
            return failure


def _of_user_code(error: CanaryError, place: str, partition: int, traceback: str) -> Exception:
    cause = FunctionError(
        f"{error} ({place})\n\n{traceback}", partition=partition, traceback=traceback
    )
    raised = error.__cause__
    if isinstance(raised, CanaryError):  # the driver misuses `run`
        raised = ProgramError(str(raised))
    if not isinstance(raised, Exception):
        return cause
    raised.add_note(f"Raised {place}:\n{traceback}")
    raised.__cause__ = cause
    return raised
