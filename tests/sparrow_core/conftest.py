"""What the scheduler's tests share."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Runners are loaded by dotted path, in this process and in its children.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A private folder with a path short enough for ipc sockets."""
    with tempfile.TemporaryDirectory(prefix="sparrow-", dir="/tmp") as folder:
        yield Path(folder)
