"""What users see of errors: their own lines, unless they look for a bug of ours."""

from __future__ import annotations

import os
import sys
from types import TracebackType

DEBUG = "MINISHARK_DEBUG"
"""The environment variable that asks for whole tracebacks."""
_OURS = ("minishark", "sparrow_core", "canary_core", "machine_kit", "duckdb")


def debugging() -> bool:
    """Whether errors are shown with their whole tracebacks."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def shorten(error: BaseException, *, cause: BaseException | None = None) -> None:
    """Leave an error the frames of users' code only, and no cause but `cause`.

    Who calls it raises again by a bare `raise`, which adds no frame: so the traceback ends at the
    user's line.
    """
    error.__traceback__ = _of_users(error.__traceback__)
    error.__cause__ = cause


def _of_users(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    further, frame = _of_users(traceback.tb_next), traceback.tb_frame
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    if package.startswith(_OURS) or package in sys.stdlib_module_names:
        return further
    return TracebackType(further, frame, traceback.tb_lasti, traceback.tb_lineno)
