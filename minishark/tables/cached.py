"""Tables without a name for users: rows that DataFrames keep, computed when first needed.

A cached table is registered with a plan for computing it. The planning database knows its columns,
so statements over it bind; the first query that reads it computes it. `forget` frees the rows and
keeps the plan.

    promised ──compute──► computed ──forget──► promised ── last handle released ──► dropped

This module keeps the registry; the runtime runs the queries that compute tables.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from minishark.errors import CatalogError, MinisharkError, PartitionsLostError
from minishark.model.catalog import Table, promised_table
from minishark.model.expressions import Column, Schema
from minishark.query.sinks import Layout
from minishark.tables.store import StoreAsTable, as_stored, stored_schema, table_schema
from minishark.tables.tables import Observed, Tables, check_layout, named_columns
from minishark.worker.protocol import TaskFunction

CACHED_PREFIX = "_kept_"  # how the names of cached tables start

_CACHED_NAME = re.compile(rf"{CACHED_PREFIX}\d+_")

_OTHER_ROWS = ", and computing it again might give other rows"
Fingerprint = tuple[str, ...]  # the settings and table loads that decide a cached table's rows


@dataclass(frozen=True, slots=True)
class CachePlan:
    """How a cached table is computed."""

    sql: str
    schema: Schema
    layout: Layout
    function: TaskFunction | None = None  # a Python function to which the rows are passed first
    needs: tuple[object, ...] = ()  # must live as long as the plan: handles of other tables


@dataclass(slots=True, weakref_slot=True, eq=False)
class CachedRows:
    """An unnamed table that DataFrames read; when the last one is gone, so is the table."""

    name: str  # its internal name, for SQL
    schema: Schema


@dataclass(slots=True)
class CachedTable:
    """A cached table. It must not hold its CachedRows, which would then never be released."""

    plan: CachePlan | None  # how it is computed; None if it can't be computed again
    lock: AbstractContextManager[Any]  # held while it is computed
    fingerprint: Fingerprint | None = None  # what decided its rows; None if unknown
    repeats: str | None = None  # the content that it had before its rows were lost
    lost: PartitionsLostError | None = None  # how they were


@dataclass(slots=True)
class CachedTables:
    """The cached tables of a session."""

    tables: Tables  # stores them
    _cached: dict[str, CachedTable] = field(default_factory=dict)
    _released: deque[str] = field(default_factory=deque)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _handles: weakref.WeakValueDictionary[str, CachedRows] = field(
        default_factory=weakref.WeakValueDictionary
    )

    def promise(self, plan: CachePlan) -> CachedRows:
        """Register a table that is computed when a query reads it; `schema` is the query's."""
        if plan.function is None:
            sql, schema = as_stored(plan.sql, plan.schema), stored_schema(table_schema(plan.schema))
        else:
            sql = plan.sql
            schema = tuple(Column(name, type_) for name, type_ in plan.function.returns)
        check_layout(plan.layout)
        names = [column.name for column in schema]
        keys = named_columns("of the DataFrame", plan.layout.partition_by, names)
        layout = replace(plan.layout, partition_by=keys)
        plan = replace(plan, sql=sql, schema=schema, layout=layout)
        rows = self._register(CachedTable(plan, self.tables.clock.lock()), plan.schema)
        self.tables.publish(promised_table(rows.name, plan.schema), replace=False)
        return rows

    def load(
        self, data: Any, partitions: int | None = None, observed: Observed | None = None
    ) -> CachedRows:
        rows = self._register(CachedTable(None, self.tables.clock.lock()), ())
        layout = Layout(partitions=partitions, replicas=2)
        check_layout(layout)
        with self.tables.folder() as folder:
            table = self.tables.build(rows.name, folder, data, layout, observed=observed)
            self.tables.publish(table, replace=False)
        rows.schema = table.schema
        return rows

    def _register(self, cached: CachedTable, schema: Schema) -> CachedRows:
        # Names end in an underscore, so that none is a prefix of another.
        rows = CachedRows(f"{CACHED_PREFIX}{next(self._numbers)}_", schema)
        self._cached[rows.name] = cached
        self._handles[rows.name] = rows
        # A finalizer may run anywhere, even where locks are held: `sweep` does the work later.
        weakref.finalize(rows, self._released.append, rows.name).atexit = False
        return rows

    def handles(self, sql: str) -> tuple[CachedRows, ...]:
        """The handles of the cached rows that a text names; who keeps the text keeps them."""
        if CACHED_PREFIX not in sql:
            return ()
        named = map(self._handles.get, dict.fromkeys(_CACHED_NAME.findall(sql)))
        return tuple(rows for rows in named if rows is not None)

    def sweep(self) -> None:
        """Drop the tables whose last handle was released."""
        while self._released:
            name = self._released.popleft()
            cached = self._cached.pop(name)
            if name in self.tables.catalog:  # else loading it failed
                self.tables.drop(name)
            del cached  # its plan may hold handles: releasing them here queues more to sweep

    def plan(self, name: str) -> CachePlan | None:
        """How a table is computed; None if it can't be computed again, or is not cached."""
        cached = self._cached.get(name)
        return None if cached is None else cached.plan

    def __contains__(self, name: str) -> bool:
        return name in self._cached

    def __iter__(self) -> Iterator[Table]:
        """The cached tables whose rows are computed."""
        tables = (self.tables.catalog.find(name) for name in tuple(self._cached))
        return iter([table for table in tables if table is not None and table.is_computed])

    def compute(
        self,
        name: str,
        fingerprint: Callable[[CachePlan], Fingerprint | None],
        run: Callable[[CachePlan, StoreAsTable], Table],
    ) -> None:
        """Compute and publish a promised table, unless another thread has done so by now.

        Args:
            name: Of the table.
            fingerprint: What decides the rows of a plan now; None if that is unknown.
            run: Runs a plan's query; returns what the sink has made of its rows.

        Raises:
            CatalogError: The table is unknown.
            PartitionsLostError: Its rows were lost, and what they are computed from has changed
                since it was decided to compute them again.
        """
        cached = self._cached.get(name)
        if cached is None:
            raise self.tables.catalog.unknown(name)
        with cached.lock:
            plan = cached.plan
            if plan is None or self.tables.catalog.get(name).is_computed:
                return
            before = fingerprint(plan)
            _check_repeats(cached, before)
            with self.tables.folder() as folder:
                sink = StoreAsTable(
                    tables=self.tables,
                    name=name,
                    schema=plan.schema,
                    folder=folder,
                    layout=plan.layout,
                    function=plan.function,
                )
                table = run(plan, sink)
                after = None
                if before is not None:
                    # The query may have been planned again, and have read what others wrote.
                    with contextlib.suppress(MinisharkError):  # what it reads was dropped
                        after = fingerprint(plan)
                self._computed(cached, table, after if after == before else None)

    def _computed(self, cached: CachedTable, table: Table, fingerprint: Fingerprint | None) -> None:
        """Publish the rows of a table whose lock is held; None: it is unknown what decided them."""
        _check_repeats(cached, fingerprint)
        if cached.repeats is not None:
            self.tables.repeats(table, cached.repeats)
        self.tables.publish(table, replace=True)
        cached.fingerprint, cached.repeats, cached.lost = fingerprint, None, None
        if self._cached.get(table.name) is not cached:
            # Its last handle was released while it was computed: nobody else will drop it.
            with contextlib.suppress(CatalogError):
                self.tables.drop(table.name)

    def forget(self, name: str) -> None:
        """Free a table's rows; a query that needs them computes them again."""
        cached = self._cached[name]
        with cached.lock:
            cached.repeats = cached.lost = None
            self._forget(name, cached)

    def _forget(self, name: str, cached: CachedTable) -> None:
        if cached.plan is not None and self.tables.catalog.get(name).is_computed:
            self.tables.publish(promised_table(name, cached.plan.schema), replace=True)

    def settle(self, name: str) -> bool:
        """Drop a computed table's plan, with all that it needs; whether the table is computed."""
        # Another thread may just have forgotten its rows: without a plan they could never be
        # computed again, so it keeps it then.
        cached = self._cached[name]
        with cached.lock:
            computed = self.tables.catalog.get(name).is_computed
            if computed:
                cached.plan = None
            return computed

    def restore(
        self, lost: PartitionsLostError, fingerprint: Callable[[CachePlan], Fingerprint | None]
    ) -> None:
        """Let a table whose partitions are lost be computed again when it is needed."""
        cached = self._cached[lost.table]
        with cached.lock:
            table = self.tables.catalog.get(lost.table)
            if not any(file in lost.files for part in table.partitions for file in part.files):
                return  # another thread was faster
            plan, before = cached.plan, cached.fingerprint
            if plan is None or before is None or fingerprint(plan) != before:
                raise PartitionsLostError(
                    "of a DataFrame", lost.partitions, lost.files, _OTHER_ROWS
                )
            cached.repeats, cached.lost = self.tables.content(table), lost
            self._forget(lost.table, cached)


def _check_repeats(cached: CachedTable, fingerprint: Fingerprint | None) -> None:
    """Check that rows that were lost are computed from what they were computed from before."""
    lost = cached.lost
    if lost is not None and fingerprint != cached.fingerprint:
        raise PartitionsLostError("of a DataFrame", lost.partitions, lost.files, _OTHER_ROWS)
