"""docs/sql.md says what the planner does."""

from __future__ import annotations

import runpy
from pathlib import Path

from minishark.compiler.sql.coverage import DISTRIBUTED
from minishark.compiler.sql.lower import HANDLERS

ROOT = Path(__file__).resolve().parents[2]


def test_every_operator_that_is_lowered_is_documented() -> None:
    """The table of operators names exactly those that have a distributed form."""
    assert set(HANDLERS) == set(DISTRIBUTED)


def test_the_documented_coverage_is_current() -> None:
    """`python docs/generate.py` would change nothing."""
    page = ROOT / "docs" / "sql.md"
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))["generate_sql"]
    assert generate(page.read_text()) == page.read_text(), "run: python docs/generate.py"
