from __future__ import annotations

import linecache
import threading
from typing import Any

import pytest

from minishark.worker.functions import FunctionFailedError, Interrupted, UserCode


class _LateLock:
    """A lock at which an interrupt arrives the second time that it is taken."""

    def __init__(self) -> None:
        self.taken = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.taken += 1
        if self.taken == 2:
            raise Interrupted
        self._lock.acquire()

    def __exit__(self, *args: object) -> None:
        self._lock.release()


def test_an_interrupt_at_the_very_end_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """User code that is over is not stopped, even if an interrupt came while it ended."""
    code, lock = UserCode(), _LateLock()
    monkeypatch.setattr(code, "_lock", lock)
    with code.running():
        code._asked_s = 1.0
    assert 3 == lock.taken
    assert (None, None) == (code._thread, code._asked_s)
    assert 0.0 == code.stop()


def test_source_files_are_not_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt waits while the lines of a traceback are read; then it is asked for again."""
    code = UserCode()
    read: list[str] = []
    lines = linecache.getlines

    def interrupted(file: str, names: dict[str, Any] | None = None) -> list[str]:
        if not read:
            code.stop()
            for _ in range(1000):  # it would come here
                pass
            read.append(file)
        return lines(file, names)

    def run() -> None:
        with code.running():
            try:
                _ = 1 / 0
            except ZeroDivisionError as error:
                FunctionFailedError.of(error)
            read.append("all")
            code.stop()
            for _ in range(1000):
                pass

    monkeypatch.setattr(linecache, "getlines", interrupted)
    with pytest.raises(Interrupted):
        run()
    assert [__file__, "all"] == read
