"""The tests' own options."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` makes the golden files say what the compiler does now; read the diff."""
    parser.addoption("--rewrite", action="store_true", help="write the golden files anew")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than processors: many tests wait for processes more than they compute."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else 2
