"""What the functions of a program are called for, in workers and in the sequential runner alike."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from canary_core.errors import InvalidCall, TaskFailed
from canary_core.stages import Stage


def scattered(stage: Stage, index: int, operands: Iterable[Any]) -> dict[int, Any]:
    """Run a partition's task of a scatter; returns its pieces by target.

    Raises:
        InvalidCall: See `pieces_by_target`; or a piece is for a target that its routes lack.
    """
    pieces = pieces_by_target(stage.fn(*operands), stage.target)
    if stage.routes is not None:
        allowed = stage.routes.targets[index]
        astray = [target for target in pieces if target not in allowed]
        if astray:
            raise InvalidCall(
                f"a scatter function returned a piece for target {min(astray)}; the routes of"
                f" partition {index} lead to {', '.join(map(str, allowed)) or 'none'}"
            )
    return pieces


def pieces_by_target(pieces: Any, targets: int) -> dict[int, Any]:
    """What a scatter function returned, by target.

    Raises:
        InvalidCall: It is neither a mapping nor a sequence, or an index is out of range.
    """
    if isinstance(pieces, Mapping):
        if pieces and not (min(pieces) >= 0 and max(pieces) < targets):
            raise InvalidCall(
                f"a scatter function returned targets {min(pieces)} to {max(pieces)};"
                f" there are {targets} partitions, from 0"
            )
        return {int(target): piece for target, piece in pieces.items()}
    if hasattr(pieces, "__len__") and not isinstance(pieces, str | bytes):
        if len(pieces) != targets:
            raise InvalidCall(
                f"a scatter function returned {len(pieces)} pieces for {targets} partitions"
            )
        return {target: piece for target, piece in enumerate(pieces) if piece is not None}
    raise InvalidCall(
        "a scatter function returns a mapping from target to piece, or a sequence with a piece"
        f" for each target, not {type(pieces).__name__}"
    )


def task_failed(stage: Stage, partition: int, error: BaseException) -> TaskFailed:
    """What a user is told of an exception in a function; not raised here."""
    failed = TaskFailed(
        f"{stage.call}, stage {stage.index}, partition {partition}: {text_of(error)}",
        stage=stage.index,
        call=stage.call,
        partition=partition,
        traceback=traceback_of(error),
    )
    failed.__cause__ = error
    return failed


def text_of(error: BaseException) -> str:
    """An exception in a line."""
    return _sendable(f"{type(error).__name__}: {error}")


def traceback_of(error: BaseException) -> str:
    """The text of an exception, as Python prints it."""
    return _sendable("".join(traceback.format_exception(error)))


def _sendable(text: str) -> str:
    """Text without lone surrogates, as in names of files that are no UTF-8: messages are UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
