"""Whether errors are shown with all that led to them: for who looks for a bug of ours."""

from __future__ import annotations

import os

DEBUG = "MINISHARK_DEBUG"
"""The environment variable that says so."""


def debugging() -> bool:
    """Whether errors are shown with their whole tracebacks."""
    return os.environ.get(DEBUG, "") not in ("", "0")
