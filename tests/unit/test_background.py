"""Work in the background is done, dropped or given up, and never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from minishark.cluster import background
from minishark.cluster.background import Background


class Handled:
    """Notes what is handled, as soon as it may."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.begins, self.may = threading.Event(), threading.Event()

    def __call__(self, items: Sequence[int]) -> None:
        self.begins.set()
        assert self.may.wait(10)
        self.batches.append([*items])


def test_all_that_waits_is_handled_at_once() -> None:
    """What has come while the thread was busy is one batch, and is handled before the end."""
    handled = Handled()
    work = Background(handled, "test")
    work.put(1)
    assert handled.begins.wait(10)
    for item in (2, 3, 4):
        work.put(item)
    handled.may.set()
    work.close(10)
    assert [[1], [2, 3, 4]] == handled.batches


def test_items_wait_for_others_but_not_the_end() -> None:
    """What comes within the time is one batch; who closes does not wait for that."""
    batches: list[list[int]] = []
    work = Background(lambda items: batches.append([*items]), "test", gather_s=60.0)
    for item in (1, 2, 3):
        work.put(item)
    work.close(10)
    assert [[1, 2, 3]] == batches


def test_a_thread_that_does_not_keep_up_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what comes while it is busy, as much waits as there is room for; none of it blocks."""
    monkeypatch.setattr(background, "_QUEUED_MAX", 3)
    handled = Handled()
    said: list[str] = []
    work = Background(handled, "test", said.append)
    work.put(1)
    assert handled.begins.wait(10)
    for item in range(2, 10):
        work.put(item)
    assert (5, ["more than 3 of them waited"]) == (work.dropped, said)
    work.close(0.01)  # it is still busy
    assert [] == handled.batches
    handled.may.set()
    work.close(10)
    assert [[1], [2, 3, 4]] == handled.batches


def test_what_a_handler_raises_ends_with_its_batch() -> None:
    """What comes later is handled, and each reason is said once."""
    batches: list[list[int]] = []
    said: list[str] = []

    def handle(items: Sequence[int]) -> None:
        batches.append([*items])
        if items[0] < 3:
            message = "no such key"
            raise KeyError(message)

    work = Background(handle, "test", said.append)
    for item in (1, 2, 3):
        work.put(item)
        while not batches or batches[-1] != [item]:
            time.sleep(0.001)
    work.close(10)
    assert [[1], [2], [3]] == batches
    assert (2, ["KeyError: 'no such key'"]) == (work.dropped, said)
