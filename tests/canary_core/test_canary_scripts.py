"""The scenario scripts; `pytest --rewrite tests/canary_core/test_canary_scripts.py` renews them."""

from __future__ import annotations

from pathlib import Path

import pytest
from canary_scenario import played

SCRIPTS = sorted(Path(__file__).with_name("scenarios").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_each_step_causes_these_messages(script: Path, pytestconfig: pytest.Config) -> None:
    """Whoever changes a machine sees in the diff which messages change."""
    now = played(script)
    if pytestconfig.getoption("rewrite"):
        script.write_text(now)
    assert script.read_text() == now


def test_there_are_scripts() -> None:
    """The folder has been found."""
    assert len(SCRIPTS) >= 7
