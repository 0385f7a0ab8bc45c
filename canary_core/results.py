"""What a program leaves behind, as it travels: results, and errors of the user's code."""

from __future__ import annotations

from typing import Any

from canary_core import errors, values
from canary_core.protocol.messages import Failure, Outcome
from canary_core.stages import Stage
from canary_core.tasks import task_failed, text_of, traceback_of

DETAIL_MAX = 1 << 20  # bytes of a pickled exception; a larger one travels as text only


def task_failure(stage: Stage, partition: int, error: BaseException) -> Failure:
    """A task's exception as it travels."""
    failed = task_failed(stage, partition, error)
    return Failure(
        error="TaskFailed",
        message=str(failed),
        stage=failed.stage,
        call=failed.call,
        partition=partition,
        traceback=failed.traceback,
        detail=_pickled(error),
    )


def pack_failure(stage: int, partition: int, error: BaseException) -> Failure:
    """A value that can't be pickled or unpickled, and has to travel or to be stored."""
    return Failure(
        error="TaskFailed",
        message=f"a value of partition {partition}, sent or stored about stage {stage}, can't be"
        f" pickled or unpickled: {text_of(error)}",
        stage=stage,
        partition=partition,
        traceback=traceback_of(error),
    )


def driver_failure(error: BaseException, stage: int) -> Failure:
    """A driver's exception as it travels."""
    return Failure(
        error="DriverFailed",
        message=f"the driver, after {stage} stages: {text_of(error)}",
        stage=stage,
        traceback=traceback_of(error),
        detail=_pickled(error),
    )


def _pickled(error: BaseException) -> bytes:
    try:
        detail = bytes(values.dumps_inside(error)[0])
        values.loads((memoryview(detail),))  # some exceptions can be pickled, but not unpickled
    except Exception:  # noqa: BLE001 - whatever the user's class raises
        return b""
    return detail if len(detail) <= DETAIL_MAX else b""


def error_of(failure: Failure) -> errors.CanaryError:
    """The exception that a failure describes; not raised here."""
    match failure.error:
        case "TaskFailed":
            error: errors.CanaryError = errors.TaskFailed(
                failure.message,
                stage=failure.stage,
                call=failure.call,
                partition=failure.partition,
                traceback=failure.traceback,
            )
        case "DriverFailed":
            error = errors.DriverFailed(
                failure.message, stage=failure.stage, traceback=failure.traceback
            )
        case "ProgramDiverged":
            error = errors.ProgramDiverged(
                failure.message, stage=failure.stage, calls=failure.calls
            )
        case name:
            kind: type[errors.CanaryError] = getattr(errors, name, errors.CanaryError)
            error = kind(failure.message)
    if failure.detail:
        try:
            error.__cause__ = values.loads((memoryview(failure.detail),))
        except Exception:  # noqa: BLE001 - its class does not exist here; the text tells all
            error.__cause__ = None
    return error


def result_of(outcome: Outcome) -> Any:
    """The result of a program: what its driver returned, with values in the places of handles.

    Raises:
        CanaryError: The program failed; which class says how.
    """
    if outcome.failure is not None:
        raise error_of(outcome.failure)
    by_group: dict[int, list[list[Any]]] = {}
    for part in outcome.parts:  # in order of their indices
        by_group.setdefault(part.size, []).append(values.loads(part.frames))
    data = []
    for size, place in outcome.handles:
        parts = [group[place] for group in by_group[size]]
        data.append(parts[0] if size == 1 else parts)
    return values.load_tree(outcome.tree, data)
