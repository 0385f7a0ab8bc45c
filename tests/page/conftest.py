"""A page over events that tests tell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minishark.model.events import kinds
from minishark.model.events.stream import EventStream
from minishark.session.page.server import PageServer
from minishark.session.page.site import Site
from minishark.session.page.sources import SessionSource

sys.path.insert(0, str(Path(__file__).parent))

from page_events import BEGAN


@pytest.fixture
def stream() -> EventStream:
    return EventStream()


@pytest.fixture
def cancelled() -> list[int]:
    """The queries that a page has cancelled."""
    return []


@pytest.fixture
def server(stream: EventStream, cancelled: list[int]) -> Iterator[PageServer]:
    """A page over the events of a stream."""

    def cancel(number: int) -> bool:
        cancelled.append(number)
        return True

    served = PageServer(Site([SessionSource(BEGAN, stream, cancel)]))
    served.start()
    yield served
    served.stop()


@pytest.fixture
def emit(stream: EventStream) -> Callable[..., None]:
    """Emits events."""

    def emit_all(*events: kinds.AnyEvent) -> None:
        for event in events:
            stream.emit(event)

    return emit_all
