"""Which types Arrow does not bring back as they were."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Of a UNION's value that is NULL, Arrow forgets the tag; the others become other types.
_LOST = re.compile(r"\b(?:ENUM|UNION)\(|\bAGGREGATE_STATE\b")


def kept_by_arrow(types: Iterable[str]) -> bool:
    """Whether values of all these DuckDB types come back from Arrow as they went."""
    return not any(map(_LOST.search, types))
