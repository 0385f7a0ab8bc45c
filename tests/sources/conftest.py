"""What the tests of sources share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# Generators of tables are plain modules beside the tests.
sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("reading")
