"""What the tests of programs share."""

from __future__ import annotations

import sys
from pathlib import Path

# Random programs and faults are modules of this folder.
sys.path.insert(0, str(Path(__file__).parent))
