"""The page of a session."""

from __future__ import annotations

import contextlib
import os
import webbrowser
from functools import partial

from minishark.cluster.sharing import SharedEvents
from minishark.session.engine import Engine
from minishark.session.page.server import PageServer
from minishark.session.page.site import Site
from minishark.session.page.sources import SessionSource
from minishark.session.watcher import Watcher

_EXPLAIN_S = 3.0  # after a page has asked for events, which it does several times a second


def serve_session(watcher: Watcher, engine: Engine, port: int) -> PageServer:
    """Serve the page of a session, whose events explain placements while somebody looks."""
    read = partial(engine.explain_for, _EXPLAIN_S)
    site = Site([SessionSource(watcher.began, engine.events, engine.cancel, read)])
    server = PageServer(site, port=port)
    watcher.start()
    server.start()
    return server


def share(watcher: Watcher, engine: Engine) -> None:
    """Let pages of the cluster ask for a session's events."""

    def asked(begins: bool, is_read: bool) -> None:
        if is_read:
            engine.explain_for(_EXPLAIN_S)
        if begins:
            watcher.start()

    shared = SharedEvents(watcher.began, engine.events, engine.cancel, asked)
    engine.cluster.share_events(shared.answer)


def show(address: str, is_wanted: bool | None) -> None:
    """Open a page in the user's browser; by default, only where there is a display."""
    # Without one, `webbrowser` would start a browser in the terminal, which is the user's.
    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if is_wanted or (is_wanted is None and has_display):
        with contextlib.suppress(webbrowser.Error):
            webbrowser.open(address)
