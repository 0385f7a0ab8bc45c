"""What pickling finds: objects in arguments and functions that must live as long as the call."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

_KEPT = threading.local()


@dataclass(slots=True)
class keeping:  # noqa: N801 - a context manager reads like a function
    """While the block pickles, objects that call `keep` are collected."""

    before: list[object] | None = field(default=None)

    def __enter__(self) -> list[object]:
        self.before = getattr(_KEPT, "found", None)
        _KEPT.found = []
        kept: list[object] = _KEPT.found
        return kept

    def __exit__(self, *_: object) -> None:
        _KEPT.found = self.before


def keep(item: object) -> None:
    """An object is being pickled, which must live until whatever contains it is over."""
    collected = getattr(_KEPT, "found", None)
    if collected is not None:
        collected.append(item)
