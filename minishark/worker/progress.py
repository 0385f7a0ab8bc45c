"""How far tasks are, for front ends of the same host: a small file beside a task's output.

No message tells it: front ends that show progress look into the folder of their query, once a
second. Those of other hosts see whole tasks only.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from minishark.worker.protocol import OutputKind, StageTask, TaskPayload
from minishark.worker.store import Store

_AFTER_S = 0.5  # from the beginning of a task
_ENDING = ".progress"


class TaskProgress:
    """Writes how far the task of a slot is; `tell` is called from another thread than the rest."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()  # guards the following
        self._file: Path | None = None  # of the task that runs
        self._began_s = 0.0

    @contextlib.contextmanager
    def of(self, stage: StageTask, task: TaskPayload) -> Iterator[None]:
        """A task runs, while the block does."""
        if stage.output is OutputKind.PARTITION:  # its folder is that of a table, and lasts
            yield
            return
        file = self._store.in_memory(f"{stage.folder}/{stage.prefix}{task.index}{_ENDING}")
        with self._lock:
            self._file, self._began_s = file, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._file = None

    def tell(self, progress: Callable[[], float]) -> None:
        """Write how far the task is, from 0 to 1, if one has run for a while."""
        with self._lock:
            if self._file is None or time.monotonic() < self._began_s + _AFTER_S:
                return
            with contextlib.suppress(OSError):  # the query is over, and its folder gone
                # Shorter than a page: who reads it sees the old or the new one.
                self._file.write_text(f"{progress():.4f}", encoding="ascii")


def parts_done(folder: Path, prefix: str) -> dict[int, float]:
    """How far the tasks of a stage are that run, or ran, on a node: 0 to 1, by their index."""
    done: dict[int, float] = {}
    with contextlib.suppress(OSError):  # another host's
        for name in os.listdir(folder):  # noqa: PTH208 - not an iterator that Ctrl-C leaves open
            if not (name.startswith(prefix) and name.endswith(_ENDING)):
                continue
            with contextlib.suppress(OSError, ValueError):  # it is being written
                index = int(name.removeprefix(prefix).removesuffix(_ENDING))
                done[index] = float((folder / name).read_text(encoding="ascii"))
    return done
