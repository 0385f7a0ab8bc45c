"""The tests' own options."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite` makes the golden files say what the compiler does now; read the diff."""
    parser.addoption("--rewrite", action="store_true", help="write the golden files anew")
