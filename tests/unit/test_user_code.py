from __future__ import annotations

import _thread
import contextlib
import linecache
import threading
import time
from typing import Any

import pytest

from minishark.worker import functions
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
    assert 3 == code.run(lambda: 3)
    assert 2 == lock.taken
    assert 0.0 == code.stop()


def test_an_interrupt_that_has_not_come_is_withdrawn() -> None:
    """What the thread does next is left alone."""
    code = UserCode()

    def work() -> None:
        thread = threading.get_ident()
        with code._lock:  # where `stop` has looked for the thread, and is about to interrupt it
            code._asked_s = 1.0
            functions._raise_in(thread, Interrupted)

    with contextlib.suppress(Interrupted):
        code.run(work)
    for _ in range(1000):
        pass
    assert 0.0 == code.stop()


def test_user_code_is_not_stopped_while_it_starts_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new thread would get the exception and end, and its starter wait for it for ever."""
    code, ran = UserCode(), list[str]()
    joinable = hasattr(threading, "_start_joinable_thread")  # since Python 3.13
    name = "_start_joinable_thread" if joinable else "_start_new_thread"
    begin = getattr(threading, name)

    def started(*args: Any, **more: Any) -> Any:
        stopper = _thread.start_new_thread(code.stop, ())  # not by Thread.start, which is watched
        while code._asked_s is None:
            time.sleep(0.001)
        ran.append(f"asked by {stopper}"[:5])
        return begin(*args, **more)

    def work() -> None:
        thread = threading.Thread(target=ran.append, args=("new",))
        monkeypatch.setattr(threading, name, started)
        thread.start()
        monkeypatch.undo()
        thread.join()
        code.stop()  # asked again
        while True:
            pass

    with pytest.raises(Interrupted):
        code.run(work)
    assert ["asked", "new"] == ran


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
        code.run(run)
    assert [__file__, "all"] == read
