"""What tasks print, shown to the user."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from minishark.worker.prints import PrintedFiles

_WAITING_MAX = 10_000  # lines
_END_S = 1.0
_LOOK_S = 0.25
_LINGER_S = 1.0  # for which a thread waits for more calls


class TaskPrints:
    """Writes lines of tasks to stderr, each with the executor's name before it.

    On a thread of its own: those that hear of tasks must not wait for a terminal or a full pipe.
    What is printed faster than it can be shown is left out, and counted.
    """

    def __init__(self, *, are_shown: bool = True) -> None:
        self.are_shown = are_shown
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._left_out = 0
        self._is_over = False
        self._thread: threading.Thread | None = None
        self.follower: threading.Thread | None = None  # looks for more, and ends with this

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
            self._changed.notify_all()

    @property
    def is_over(self) -> bool:
        """Whether nothing is shown any more."""
        return self._is_over

    def pause(self, seconds: float) -> None:
        """Wait for so long, or until nothing is shown any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, seconds)

    def close(self) -> None:
        """Show what is left, if that does not take long, and no more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for thread in (self.follower, self._thread):
            if thread is not None:
                thread.join(_END_S)

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


class CallPrints:
    """Shows what calls print while they run.

    A thread looks at their files, as long as there are calls: nobody else may be waiting for them.
    """

    def __init__(
        self,
        prints: TaskPrints,
        folders: Callable[[], Iterable[Path]],
        is_busy: Callable[[], bool],
    ) -> None:
        """Prints of calls.

        Args:
            prints: shows them.
            folders: gives those in which executors of this host leave them.
            is_busy: whether calls are open.
        """
        self._prints, self._folders, self._is_busy = prints, folders, is_busy
        self._files = PrintedFiles()
        self._lock = threading.Lock()  # guards the files and the thread
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Calls were submitted."""
        if self._thread is None and self._prints.are_shown:
            with self._lock:
                if self._thread is None:
                    self._thread = self._prints.follower = threading.Thread(
                        target=self._run, name="minishark-call-prints", daemon=True
                    )
                    self._thread.start()

    def show(self, executor: str, text: str) -> None:
        """Show what a call has printed at last, after what it has printed before."""
        self._look()
        self._prints.show(executor, text)

    def _look(self) -> None:
        with self._lock:
            for executor, text in self._files.new(self._folders()):
                self._prints.show(executor, text)

    def _run(self) -> None:
        busy_s = time.monotonic()
        while True:
            self._prints.pause(_LOOK_S)
            self._look()
            if self._is_busy():
                busy_s = time.monotonic()
            if self._prints.is_over or time.monotonic() > busy_s + _LINGER_S:
                with self._lock:
                    thread, self._thread = self._thread, None
                    if self._prints.is_over or not self._is_busy():
                        return
                    self._thread = thread  # calls came meanwhile, and did not start another one
