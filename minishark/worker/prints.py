"""What user code prints in an executor, to be sent along with the outcome of its task.

What a task prints that takes a while is in a file before, in clusters that a session has started on
its host: its front end looks into the folder of the query, or of the calls.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PRINTS_FOLDER = "prints"
"""In the folder of a query or of calls."""
PRINTED_AFTER_S = 0.5
"""From the beginning of a task until what it prints is in a file."""

_CHARS_MAX = 16_384  # of a task
_FILES_MAX = 8  # of one process in a folder: a front end has read the others, or does not look
_MARK = "~"  # between an executor's name and the rest of a file's


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
        # Of the task that runs: its folder is only asked for by those that print for a while.
        self._folder: Callable[[], Path] | None = None
        self._file: Path | None = None
        self._began_s = 0.0
        self._numbers = itertools.count()
        self._written: list[Path] = []

    def begin(self, folder: Callable[[], Path]) -> None:
        """A task begins, until `end`: what it prints goes to a file in a folder.

        Args:
            folder: tells it. It is made when it is needed; that in which it is, is there.
        """
        with self._lock:
            self._folder, self._file, self._began_s = folder, None, time.monotonic()

    def end(self) -> None:
        """The task has ended."""
        with self._lock:
            self._folder = None

    def write(self, executor: str) -> None:
        """Write the lines that the task has printed to its file, if it has run for a while."""
        if not self._parts or time.monotonic() < self._began_s + PRINTED_AFTER_S:
            return
        with self._lock:
            lines, _, rest = "".join(self._parts).rpartition("\n")
            if self._folder is None or not lines:
                return
            if self._file is None:
                name = f"{executor}{_MARK}{os.getpid()}{_MARK}{next(self._numbers)}"
                self._file = self._folder() / name
            with contextlib.suppress(OSError):  # the query is over, or memory is full
                self._file.parent.mkdir(exist_ok=True)
                with self._file.open("a", encoding="utf-8", errors="replace") as file:
                    file.write(f"{lines}\n")
                self._parts = [rest] if rest else []
                if self._file not in self._written:
                    self._written.append(self._file)
                while len(self._written) > _FILES_MAX:
                    self._written.pop(0).unlink(missing_ok=True)

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
            text = f"{text.rstrip()}\n... and {left_out:,} more characters".lstrip("\n")
        return text


PRINTS = Prints()
"""That of this process."""


class PrintedFiles:
    """Reads what tasks that still run have printed, on the same host; each line once."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}  # bytes of each file that were read

    def new(self, folders: Iterable[Path]) -> list[tuple[str, str]]:
        """The executors that have printed since the last call, each with its lines."""
        printed = []
        for folder in folders:
            try:
                names = sorted(os.listdir(folder))  # noqa: PTH208 - mostly there is none
            except OSError:
                continue
            for name in names:
                file = folder / name
                with contextlib.suppress(OSError), file.open("rb") as opened:
                    opened.seek(self._read.get(file, 0))
                    written = opened.read()
                    lines = written[: written.rfind(b"\n") + 1]  # the last one may be half there
                    if lines:
                        self._read[file] = self._read.get(file, 0) + len(lines)
                        printed.append((name.partition(_MARK)[0], lines.decode(errors="replace")))
            gone = [f for f in self._read if f.parent == folder and f.name not in names]
            for file in gone:
                del self._read[file]
        return printed

    def remove(self) -> None:
        """Delete the files that were read, and their folders."""
        for file in self._read:
            file.unlink(missing_ok=True)
        for folder in {file.parent for file in self._read}:
            with contextlib.suppress(OSError):  # a task writes one yet
                folder.rmdir()
        self._read.clear()


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
