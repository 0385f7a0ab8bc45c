"""What user code prints in an executor, to be sent along with the outcome of its task."""

from __future__ import annotations

import sys
import threading
from typing import Any

_CHARS_MAX = 16_384  # of a task


class Prints:
    """Keeps a copy of what is written to sys.stdout and sys.stderr, as far as it is not too much.

    An executor's streams go to its log, which users hardly ever see. What C code writes to the file
    descriptors is only there. If several calls run at once in one process, because some of them
    wait for others, what they print goes with the one that ends first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: list[str] = []
        self._chars = 0
        self._left_out = 0

    def install(self) -> None:
        """Copy from now on; only for a process that runs nothing but tasks, one after another."""
        sys.stdout, sys.stderr = _Copied(sys.stdout, self), _Copied(sys.stderr, self)

    def add(self, text: str) -> None:
        with self._lock:
            kept = text[: _CHARS_MAX - self._chars]
            if kept:
                self._parts.append(kept)
                self._chars += len(kept)
            self._left_out += len(text) - len(kept)

    def take(self) -> str:
        """What was written since the last call; it says how much of it is left out."""
        if not self._chars:  # most tasks print nothing
            return ""
        with self._lock:
            text, left_out = "".join(self._parts), self._left_out
            self._parts.clear()
            self._chars = self._left_out = 0
        if left_out:
            text = f"{text.rstrip()}\n... and {left_out:,} more characters"
        return text


PRINTS = Prints()
"""That of this process."""


class _Copied:
    """A text stream that hands on what is written."""

    def __init__(self, stream: Any, prints: Prints) -> None:
        self._stream = stream
        self._prints = prints

    def write(self, text: str) -> int:
        self._prints.add(text)
        written: int = self._stream.write(text)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
