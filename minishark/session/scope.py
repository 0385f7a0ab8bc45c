"""Scope: what one session has of its own; all else is the engine's, which sessions share."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa

from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import UnsupportedError
from minishark.model.catalog import Catalog
from minishark.query.inputs import lost_partitions
from minishark.query.planner import QueryPlanner
from minishark.query.progress import ProgressHandler
from minishark.tables.interruption import stopped_by
from minishark.tables.scratch_database import ReadTable, ScratchDatabase
from minishark.tables.scratch_store import HIDDEN
from minishark.tables.transaction import SessionTransaction
from minishark.worker.store import InputMissingError

if TYPE_CHECKING:
    from minishark.session.engine import Engine

_numbers = itertools.count()
# By the numbers of scopes: of the queries that this thread, or asyncio task, runs. By these their
# user interrupts them.
_TAGS: ContextVar[Mapping[int, frozenset[str]]] = ContextVar("tags", default=MappingProxyType({}))


class Scope:
    """What one session has of its own; safe to use from several threads.

    Attributes:
        is_apart: whether other sessions lack its temporary tables and its DataFrames' views. Those
            of the session that `connect` gives are everybody's, and the tables are distributed; it
            may also change settings of all.
        planning: binds its statements; has its settings and temporary views.
        scratch: runs what the cluster can't; has its settings, temporary tables, current schema.
        definitions: of temporary views and macros, for executors.
        transaction: whether it is in one.
        before_statements: look at what may have changed elsewhere.
        progress_handlers: hear of its queries.
        running: the tags of its running queries, by their numbers.
        warnings: what its user should know, besides what all users should.
        is_stopped: whether it was closed.
    """

    def __init__(
        self, engine: Engine, settings: tuple[str, ...] = (), *, is_apart: bool = False
    ) -> None:
        """One that begins with these settings.

        Raises:
            ClusterError: the engine is stopped.
        """
        engine.check_open()
        self.is_apart = is_apart
        self.transaction = transaction = SessionTransaction()
        self.planning = PlanningDatabase(
            beside=engine.planning, settings=settings, began=transaction.began
        )
        self._engine = engine
        self.scratch = ScratchDatabase(
            engine.scratch,
            self._reading,
            lambda: self.catalog,
            settings=settings,
            is_apart=is_apart,
            hidden=HIDDEN,
            began=transaction.began,
        )
        self.definitions: tuple[str, ...] = ()
        self.before_statements: tuple[Callable[[], None], ...] = ()
        self.progress_handlers: tuple[ProgressHandler, ...] = ()
        self.running: dict[int, frozenset[str]] = {}
        self.warnings: tuple[str, ...] = ()
        self.is_stopped = False
        self._number = next(_numbers)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, parent: Scope) -> Scope:
        """One for a session beside another, with whose settings it begins."""
        return cls(parent._engine, parent.settings, is_apart=True)

    def close(self) -> bool:
        """End its connections; whether this call did it."""
        if self._engine.is_fork:  # they are the parent's
            return False
        with self._lock:
            stopped, self.is_stopped = self.is_stopped, True
        if stopped:
            return False
        self.scratch.interrupt()
        self.planning.close()
        self.scratch.close()
        return True

    # What statements mean

    @property
    def settings(self) -> tuple[str, ...]:
        """The statements that have changed its settings."""
        return self.planning.settings

    def change_setting(self, sql: str) -> None:
        """Change a setting of this session.

        Raises:
            QueryError: DuckDB does not accept it.
        """
        self.planning.change_setting(sql)
        self.scratch.define(sql, own=True)

    def define(self, sql: str) -> None:
        """Note a definition that both databases have, for executors."""
        with self._lock:
            self.definitions = (*self.definitions, sql)

    @property
    def catalog(self) -> Catalog:
        """The tables that its statements read: all, or those of its transaction."""
        view = self._view
        return self._engine.tables.catalog if view is None else view

    @property
    def _view(self) -> Catalog | None:
        store = self.transaction.store
        return None if store is None else store.view

    def check_read(self, sources: Collection[str]) -> None:
        """Raise UnsupportedError if a query reads, through a view, what its transaction changed."""
        store = self.transaction.store
        if store is not None and store.changed_source in sources:
            raise UnsupportedError(
                f"A view reads {store.changed_source} as it is committed, and this transaction has "
                "changed it: read the table itself, or COMMIT first."
            )

    @property
    def planner(self) -> QueryPlanner:
        """Plans its queries."""
        return self._engine.planner.over(self.planning, self.catalog)

    @contextlib.contextmanager
    def _reading(self, sql: str) -> Iterator[ReadTable]:
        shared = self._engine.sources
        with shared.reading(sql) as sources, stopped_by(sources.cancel):
            yield lambda name: sources.rows(name) if name in shared else self._rows(name)

    def _rows(self, name: str) -> pa.Table:
        """All rows of a table in the cluster, as the session sees it."""
        tables, view = self._engine.tables, self._view
        if view is None:
            return tables.read(name)
        table = view.get(name)
        try:
            return tables.stored_rows(table)
        except InputMissingError as error:
            raise lost_partitions(table, error.files) or error from error

    def look_before_statements(self, look: Callable[[], None]) -> None:
        """Have something look, before each statement, at what may have changed elsewhere."""
        self.before_statements = (*self.before_statements, look)

    # What runs

    def warn(self, sentence: str) -> None:
        """Tell its user something, once."""
        with self._lock:
            self.warnings = tuple(dict.fromkeys((*self.warnings, sentence)))

    def register_progress_handler(self, handler: ProgressHandler) -> None:
        with self._lock:
            self.progress_handlers = (*self.progress_handlers, handler)

    def remove_progress_handler(self, handler: ProgressHandler) -> None:
        with self._lock:
            left = tuple(other for other in self.progress_handlers if other != handler)
            self.progress_handlers = left

    @property
    def tags(self) -> frozenset[str]:
        """The tags of the queries that this thread runs in it."""
        return _TAGS.get().get(self._number, frozenset())

    def set_tags(self, tags: frozenset[str]) -> None:
        """Give other tags to the queries that this thread runs from now on."""
        others = {n: values for n, values in _TAGS.get().items() if n != self._number}
        _TAGS.set({**others, self._number: tags} if tags else others)

    def tagged(self, tag: str | None) -> list[int]:
        """The numbers of its running queries that have a tag; of all, for None."""
        running = tuple(self.running.items())
        return [number for number, tags in running if tag is None or tag in tags]
