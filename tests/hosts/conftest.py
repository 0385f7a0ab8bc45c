"""Hosts for the tests in this folder: skipped where namespaces are not allowed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The helpers beside this file, and those of the integration tests.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "integration")]


@pytest.fixture(scope="session", autouse=True)
def _needs_namespaces() -> None:
    """Skip with the reason where hosts can't be made."""
    from bed import why_not

    if reason := why_not():
        pytest.skip(reason)
