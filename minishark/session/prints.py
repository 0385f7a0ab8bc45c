"""What tasks print, shown to the user."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque

_WAITING_MAX = 10_000  # lines
_END_S = 1.0


class TaskPrints:
    """Writes lines of tasks to stderr, each with the executor's name before it.

    On a thread of its own: those that hear of tasks must not wait for a terminal or a full pipe.
    What is printed faster than it can be shown is left out, and counted.
    """

    def __init__(self) -> None:
        self.are_shown = True
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._left_out = 0
        self._is_over = False
        self._thread: threading.Thread | None = None

    def show(self, executor: str, text: str) -> None:
        """Show what a task has printed; returns at once. Safe to call from any thread."""
        lines = text.splitlines()
        with self._changed:
            if self._is_over or not self.are_shown:
                return
            room = max(0, _WAITING_MAX - len(self._waiting))
            self._waiting.extend(f"({executor}) {line}" for line in lines[:room])
            self._left_out += len(lines[room:])
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="minishark-prints", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Show what is left, if that does not take long, and no more."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._left_out or self._is_over)
                lines, left_out = list(self._waiting), self._left_out
                self._waiting.clear()
                self._left_out = 0
                ends = self._is_over
            if left_out:
                lines.append(f"(minishark) {left_out:,} more lines of tasks are not shown")
            # Looked up each time: progress on the terminal and notebooks replace it.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                if lines:
                    sys.stderr.write("\n".join(lines) + "\n")
                    sys.stderr.flush()
            if ends:
                return
