"""The page about Canary tells what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "canary.md"


@pytest.mark.slow
def test_the_blocks_of_the_page_run() -> None:
    """One after the other, as a reader would type them; what they assert holds."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert 5 == len(blocks)
    scope: dict[str, object] = {"__name__": "__main__"}
    code = "\n".join([*blocks, "session.stop()"])
    code = code.replace("connect(nodes=2)", "connect(nodes=2, in_process=True)")
    exec(compile(code, str(PAGE), "exec"), scope)
