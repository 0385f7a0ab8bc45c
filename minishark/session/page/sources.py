"""Where a page's events come from: a session of this process, or files."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import psutil

from minishark.model.events.history import HistoryReader
from minishark.model.events.kinds import AnyEvent, EventsDropped, SessionEnded, SessionStarted
from minishark.model.events.stream import EventStream


class Source(Protocol):
    """Gives events, and passes on what a page may change."""

    def poll(self, *, is_read: bool) -> Iterator[tuple[str, AnyEvent]]:
        """The events since the last call, each with its session; must not block for long.

        `is_read`: whether somebody looks at the page.
        """

    def cancel(self, session: str, number: int) -> bool:
        """Cancel a query of a session; whether it was running."""

    def close(self) -> None:
        """Nothing more is asked for."""


class SessionSource:
    """The events of a session of this process."""

    def __init__(
        self,
        began: SessionStarted,
        stream: EventStream,
        cancel: Callable[[int], bool],
        read: Callable[[], None] | None = None,
    ) -> None:
        """`read` is called again and again while somebody looks at the page."""
        self._began = began
        self._read = read
        self._stream = stream
        self._cancel = cancel
        self._last = 0
        self._has_begun = False

    def poll(self, *, is_read: bool) -> Iterator[tuple[str, AnyEvent]]:
        if is_read and self._read is not None:
            self._read()
        batch = self._stream.since(self._last)
        name = self._began.session
        if not self._has_begun:
            # What fell out of the ring before anybody looked is no loss to a page.
            self._has_begun = True
            yield name, self._began
        elif batch.dropped:
            yield name, EventsDropped(at=batch.events[0].at, count=batch.dropped)
        self._last = batch.last
        for event in batch.events:
            yield name, event

    def cancel(self, session: str, number: int) -> bool:
        return session == self._began.session and self._cancel(number)

    def close(self) -> None:
        pass


class HistorySource:
    """The events in a file, or a folder of files; follows those that still grow."""

    def __init__(self, source: str | Path) -> None:
        """Open it.

        Raises:
            DataError: there is no such file, it holds no events, or a newer version wrote it.
        """
        self._reader = HistoryReader(source)
        self._session = ""
        self._open: dict[str, SessionStarted] = {}  # sessions that have not told their end

    def poll(self, *, is_read: bool) -> Iterator[tuple[str, AnyEvent]]:
        del is_read
        last = 0.0
        for event in self._reader.read():
            last = max(last, event.at)
            if isinstance(event, SessionStarted):
                self._session = event.session
                self._open[event.session] = event
            elif isinstance(event, SessionEnded):
                self._open.pop(self._session, None)
            yield self._session, event
        # One that was killed can't tell; of one on another host, the next line may still come.
        for name, began in list(self._open.items()):
            if began.host == socket.gethostname() and not psutil.pid_exists(began.pid):
                del self._open[name]
                yield name, SessionEnded(at=last or began.at)

    def cancel(self, session: str, number: int) -> bool:
        del session, number
        return False

    def close(self) -> None:
        pass
