"""The site: a board that follows its sources, and what a browser may ask of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from minishark.errors import MinisharkError
from minishark.session.page import views
from minishark.session.page.board import Board
from minishark.session.page.metrics import Totals, exposition
from minishark.session.page.sources import Source

POLL_S = 0.25
READER_S = 30.0
"""A page that was not asked for a view for so long has no readers."""
_UNREAD_POLL_S = 0.5
_TICK_S = 1.0
_CACHED_MAX = 32

_encode = msgspec.json.Encoder().encode


class Site:
    """What pages show; safe to use from several threads."""

    def __init__(self, sources: Sequence[Source], *, can_cancel: bool = True) -> None:
        """Show the events of some sources; `can_cancel` if pages may cancel queries."""
        self.can_cancel = can_cancel
        self._sources = tuple(sources)
        self._board = Board(is_history=not can_cancel)
        self._totals = Totals()
        self._changed = threading.Condition()  # guards the board and what follows
        self._polling = threading.Lock()
        self._cached: dict[str, tuple[int, bytes]] = {}
        self._read_s = -READER_S
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Follow the sources in a thread; somebody is about to look."""
        self._read_s = time.monotonic()
        self.poll()
        self._thread = threading.Thread(target=self._follow, name="minishark-page", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        ticked_s = 0.0
        while not self._stopped.wait(POLL_S if self.is_read else _UNREAD_POLL_S):
            self._try_to_poll()
            if self.can_cancel and time.monotonic() >= ticked_s + _TICK_S:
                ticked_s = time.monotonic()
                self.tick()

    def _try_to_poll(self) -> None:
        # A file or a cluster is gone, or comes back: what is known stays on the page.
        with contextlib.suppress(OSError, MinisharkError):
            self.poll()

    def poll(self) -> None:
        """Take the new events of all sources."""
        with self._polling:
            for source in self._sources:
                events = list(source.poll(is_read=self.is_read))
                if events:
                    with self._changed:
                        for session, event in events:
                            self._board.apply(event, session)
                            self._totals.apply(event)
                        self._changed.notify_all()

    def tick(self) -> None:
        """Let time go on, for what shows the last minute."""
        with self._changed:
            self._board.tick(time.time())
            self._changed.notify_all()

    def stop(self) -> None:
        """Follow no more; streams end."""
        if not self._stopped.is_set():
            self._stopped.set()
            with self._changed:
                self._changed.notify_all()
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join(2.0)
            for source in self._sources:
                source.close()

    @property
    def is_read(self) -> bool:
        """Whether somebody looks at it: browsers ask again at least every few seconds."""
        return time.monotonic() < self._read_s + READER_S

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def await_stop(self, timeout_s: float) -> None:
        """Wait until it is stopped, for some time at most."""
        self._stopped.wait(timeout_s)

    # Views

    def view(self, name: str, options: Mapping[str, str]) -> bytes | None:
        """A view as JSON; None if there is none of that name, or what it shows is not known."""
        make = _VIEWS.get(name)
        if make is None:
            return None
        was_read, self._read_s = self.is_read, time.monotonic()
        if not was_read:
            self._try_to_poll()  # the first who looks after a while sees no old state
        key = repr((name, sorted(options.items())))
        with self._changed:
            version, data = self._cached.get(key, (-1, b""))
            if version == self._version(name):
                return data
            view = make(self._board, options)
            shown = {
                "view": name,
                "version": self._board.version,
                "now_s": self._board.now_s,
                "clock_s": time.time(),
                "can_cancel": self.can_cancel,
                "about": views.about(self._board),
                "data": view,
            }
            data = _encode(shown)
            while len(self._cached) >= _CACHED_MAX:
                self._cached.pop(next(iter(self._cached)))
            self._cached[key] = (self._version(name), data)
            return data

    def _version(self, name: str) -> int:
        """Grows with what a view shows: for most, it is no news that time goes on."""
        return self._board.version + (self._board.states if name in _OF_STATES else 0)

    def why(self, key: str, stage: int, task: int) -> bytes | None:
        """Why a task ran where it did, as JSON; None if that is not known."""
        with self._changed:
            reasons = views.why(self._board, key, stage, task)
        return None if reasons is None else _encode(reasons)

    def metrics(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        with self._changed:
            return exposition(self._totals, self._board).encode()

    def await_change(self, name: str, version: int, timeout_s: float) -> int:
        """Wait until a view is newer than `version`, or for some time; its version."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._version(name) > version or self.is_stopped, timeout_s
            )
            return self._version(name)

    def look(self, read: Callable[[Board], Any]) -> Any:
        """What a function reads from the board, which does not change meanwhile."""
        with self._changed:
            return read(self._board)

    def cancel(self, key: str) -> bool:
        """Cancel a query by its key; whether it was running."""
        with self._changed:
            query = self._board.queries.get(key)
        if query is None or not self.can_cancel:
            return False
        return any(source.cancel(query.session, query.number) for source in self._sources)


_VIEWS: dict[str, Callable[[Board, Mapping[str, str]], Any]] = {
    "cluster": lambda board, _: views.cluster(board),
    "queries": lambda board, options: views.listing(
        board, options.get("text", ""), options.get("state", "")
    ),
    "query": lambda board, options: views.query(board, options.get("key", "")),
    "tables": lambda board, _: views.tables(board),
    "placement": lambda board, _: views.placement(board),
    "python": lambda board, _: views.python(board),
}
_OF_STATES = frozenset({"cluster", "tables"})  # what shows nodes, or the last minute
