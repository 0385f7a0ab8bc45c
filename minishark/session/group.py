"""The sessions over one engine: what they share besides it, and their common end."""

from __future__ import annotations

import secrets
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from minishark.cluster.backend import CALLS_FOLDER
from minishark.query.run import working_folder
from minishark.session.engine import Engine
from minishark.session.kept_calls import kept_calls
from minishark.session.page.server import PageServer
from minishark.session.prints import CallPrints
from minishark.session.session_page import serve_session, share, show
from minishark.session.tasks.files import Files
from minishark.session.tasks.pool import CallPool
from minishark.session.tasks.verbs import Calls
from minishark.session.watcher import Watcher
from minishark.worker.prints import PRINTS_FOLDER

if TYPE_CHECKING:
    from minishark.tables.warehouse.shared import SharedWarehouse


class Stoppable(Protocol):
    """A session."""

    def stop(self) -> None: ...


class SessionGroup:
    """What the sessions over an engine share: calls, a warehouse, events, a page.

    Attributes:
        engine: runs their queries.
        calls: runs their functions.
        warehouse: named schemas and durable tables, if there are such.
        watcher: tells events.
        page: is served to browsers, if somebody has asked for it.
        sessions: those that somebody holds.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        warehouse: str | Path | Mapping[str, str] | None = None,
        event_log: str | Path | None = None,
    ) -> None:
        """Over an engine; the rest is as in `connect`."""
        cluster = engine.cluster
        self.engine = engine
        self.calls = _calls(engine)
        self.warehouse = None if warehouse is None else _warehouse(engine, warehouse)
        name = cluster.store_name if cluster.address else secrets.token_hex(3)
        self.watcher = Watcher(engine, name, cluster.address)
        self.page: PageServer | None = None
        self.sessions: weakref.WeakSet[Stoppable] = weakref.WeakSet()
        self._page_lock = threading.Lock()
        share(self.watcher, engine)
        if event_log is not None:
            self.watcher.write_to(event_log)

    def ui(self, port: int, open_browser: bool | None) -> str:
        """Serve the page; its address."""
        with self._page_lock:
            if self.page is None:
                self.page = serve_session(self.watcher, self.engine, port)
        show(self.page.address, open_browser)
        return self.page.address

    def stop(self) -> None:
        """End all but the engine; may be called twice."""
        self.calls.pool.close()
        self.watcher.stop()
        if self.page is not None:
            self.page.stop()

    def close(self) -> None:
        """Close what the engine has read from, once it has stopped."""
        if self.warehouse is not None:
            self.warehouse.catalog.close()


def _calls(engine: Engine) -> Calls:
    cluster = engine.cluster
    folder = cluster.folder(CALLS_FOLDER)
    files = Files(folder, cluster.store, partial(cluster.make_folder, folder))
    cluster.keep_nodes(files.unread_nodes)

    def printed() -> list[Path]:
        store = cluster.store()
        return [store.in_memory(f"{folder}/{PRINTS_FOLDER}", node) for node in cluster.nodes]

    prints = CallPrints(engine.prints, printed, lambda: pool.is_busy)
    pool = CallPool(
        cluster.backend,
        engine.placement,
        files,
        working_folder=working_folder,
        events=engine.events,
        on_print=prints.show,
        on_send=prints.wake,
        kept=kept_calls(engine),
    )
    return Calls(pool, lambda: cluster.total_slots)


def _warehouse(engine: Engine, where: str | Path | Mapping[str, str]) -> SharedWarehouse:
    from minishark.tables.warehouse.opening import open_catalog  # noqa: PLC0415 - often unused

    catalog = open_catalog(where, engine.storage.access)
    from minishark.tables.warehouse.shared import SharedWarehouse  # noqa: PLC0415

    return SharedWarehouse.of(catalog, engine.planning.syntax)
