"""docs/sql.md says what the planner does."""

from __future__ import annotations

import re
from pathlib import Path

from minishark.compiler.sql.lower import HANDLERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"


def test_every_operator_that_is_lowered_is_documented() -> None:
    """The page's table names exactly those that have a distributed form."""
    documented = re.findall(r"^\| `(\w+)` \| distributed: \w", PAGE.read_text(), re.MULTILINE)
    assert sorted(HANDLERS) == documented
