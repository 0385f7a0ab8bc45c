"""What the unit tests share."""

from __future__ import annotations

import sys
from pathlib import Path

# The stand-in for a cluster is a plain module beside the tests.
sys.path.insert(0, str(Path(__file__).parent))
