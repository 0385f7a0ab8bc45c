"""Types that do not survive a round trip through Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Arrow forgets the tag of a UNION that is NULL; the others come back as other types.
_LOST = re.compile(r"\b(?:ENUM|UNION)\(|\bAGGREGATE_STATE\b")


def kept_by_arrow(types: Iterable[str]) -> bool:
    return not any(map(_LOST.search, types))
