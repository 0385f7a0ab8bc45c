"""A simulated session: production's tables and query runs over a simulated cluster."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from minishark.cluster.backend import Cluster, FragmentRejectedError, Placement
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.stages.stage import Stage
from minishark.errors import MinisharkError, PartitionsLostError
from minishark.model.catalog import (
    Catalog,
    CatalogView,
    ColumnStatistics,
    Table,
    TableStatistics,
)
from minishark.model.expressions import Schema
from minishark.query.ladder import climb
from minishark.query.observer import QueryObserver
from minishark.query.planner import TablesPromisedError
from minishark.query.run import QueryRun, Site, query_folder, site_of
from minishark.query.sinks import CollectRows, Layout, Sink
from minishark.query.sources import SourceTable, SourceTables
from minishark.sources.contract import Pushed, Snapshot, Source, Split
from minishark.sources.storage_options import Storage
from minishark.tables.attempts import attempted
from minishark.tables.cached import CachedRows, CachedTables, CachePlan, Fingerprint
from minishark.tables.deltas import Sizes, without_rows
from minishark.tables.load import LoadedTable
from minishark.tables.merging import Merger
from minishark.tables.replication import Replicator
from minishark.tables.store import StoreAsTable
from minishark.tables.tables import Tables
from minishark.worker.host_files import HostFiles
from minishark_lab.simulation.attached import SimulatedAttached
from minishark_lab.simulation.fibers import Fiber, Fibers, SimulatedClock
from minishark_lab.simulation.hosts import Hosts
from minishark_lab.simulation.queries import ENVIRONMENT, Query
from minishark_lab.simulation.work import COLUMNS, SCHEMA, Row, batch_of, bucket_of, rows_of

_HEAL_S = 1.0
_MERGE_S = 1.5
_SPLITS = 2  # of a file
_SIZES = Sizes(delta=4, merged=3)  # of tables with a dozen rows


class _Rows(Split):
    """A part of a simulated source."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.rows = len(rows)
        self.bytes = 16 * len(rows)

    def read(self, pushed: Pushed) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(SCHEMA, [batch_of(self._rows)])


class Given(Source, Snapshot):
    """A source with these rows, as one version."""

    schema = COLUMNS

    def __init__(self, rows: Sequence[Row]) -> None:
        self.name = "given"
        self.version = "1"
        self._rows = rows
        columns = (ColumnStatistics(), ColumnStatistics())
        self.statistics = TableStatistics(len(rows), 16 * len(rows), columns)

    def resolve(self) -> Snapshot:
        return self

    def splits(self, pushed: Pushed, tasks: int) -> Sequence[Split]:
        size = max(1, -(-len(self._rows) // tasks))
        parts = [self._rows[i : i + size] for i in range(0, len(self._rows), size)]
        return [_Rows(part) for part in parts or [self._rows]]


class _Planning:
    """In place of the planning database, which knows tables for DuckDB's sake."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def put_table(self, table: Table) -> None:
        self.names[table.name] = None

    def update_table(self, table: Table) -> None:
        """Nothing is planned here."""

    def remove_table(self, name: str) -> None:
        del self.names[name]


class _Tables(Tables):
    """The tables of a session, without statistics, which DuckDB measures and merges."""

    def statistics_of(self, loaded: LoadedTable, schema: Schema) -> TableStatistics:
        rows, size = (
            sum(getattr(p, name) for p in loaded.partitions) for name in ("rows", "bytes")
        )
        return TableStatistics(rows, size, tuple(ColumnStatistics() for _ in schema))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A planned query: its stages, and the versions of the tables and files that it reads."""

    stages: Sequence[Stage]
    tables: Mapping[str, Table]
    sources: Mapping[str, SourceTable]

    @property
    def stored(self) -> Iterator[Table]:
        """The tables that are no files."""
        return (table for name, table in self.tables.items() if name not in self.sources)


def _table_of(source: SourceTable) -> Table:
    """A table of all splits of a file."""
    opened = source.opened()
    splits = opened.snapshot.splits(Pushed(), _SPLITS)
    return opened.table(Pushed(), splits, source.name, _SPLITS)


@dataclass(slots=True, kw_only=True)
class _Rungs:
    """One query on the ladder."""

    session: SimulatedSession
    query: Query
    names: Sequence[str]  # of its tables
    catalog: Catalog
    sink: Sink[Any]
    observer: QueryObserver

    def plan(self, *, whole: bool) -> _Plan:
        assert not whole, "no fragment is ever rejected"
        sources = self.session.sources.mentioned(self.names)
        known = self.catalog.at_once()
        tables = [
            _table_of(sources[name]) if name in sources else known.get(name) for name in self.names
        ]
        if promised := tuple(table.name for table in tables if not table.is_computed):
            raise TablesPromisedError(promised)
        return _Plan(self.query.stages(tables), {t.name.lower(): t for t in tables}, sources)

    def compute(self, tables: Sequence[str]) -> None:
        for name in tables:
            self.session.compute(name)

    def execute(self, plan: _Plan, warnings: tuple[str, ...]) -> Any:
        session, cluster = self.session, self.session.cluster
        physical: PhysicalPlan = plan.stages[-1].plan
        with session.query_folder() as folder:
            run = QueryRun(
                stages=plan.stages,
                tables=lambda: {
                    name: self.catalog.again(table) or table for name, table in plan.tables.items()
                },
                site=session.site(folder),
                store=cluster.store(),
                folder=folder,
                output=self.sink.output(physical, ("k", "v", "row")[: len(physical.schema)]),
                environment=ENVIRONMENT,
                observer=self.observer,
            )
            run.run()
            return self.sink.finish(run)

    def is_current(self, plan: _Plan) -> bool:
        sources = plan.sources.values()
        return all(map(self.catalog.again, plan.stored)) and all(
            map(self.session.sources.is_current, sources)
        )

    def restore(self, lost: PartitionsLostError) -> None:
        self.session.restore(lost, self.observer.check)

    def run_in_front_end(self, rejected: FragmentRejectedError) -> Any:
        raise rejected


@dataclass(slots=True, kw_only=True)
class SimulatedSession:
    """What a user of the simulated cluster holds."""

    hosts: Hosts
    fibers: Fibers
    endpoint: str
    cluster: SimulatedAttached = field(init=False)
    tables: Tables = field(init=False)
    clock: SimulatedClock = field(init=False)
    writing: Any = field(init=False)
    threads: list[Fiber] = field(default_factory=list)  # that run until it is closed
    merger: Merger = field(init=False)
    cached: CachedTables = field(init=False)
    sources: SourceTables = field(init=False)
    kept: dict[str, str] = field(default_factory=dict)  # their own names by those of users
    # Of what users or queries hold, by name. Nothing else has a reference to one.
    _handles: dict[str, CachedRows] = field(default_factory=dict)
    _holders: Counter[str] = field(default_factory=Counter)
    _loading: Any = field(init=False)
    _replicator: Replicator = field(init=False)
    _folders: Iterator[int] = field(default_factory=itertools.count)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _running: dict[int, tuple[QueryObserver, Fiber]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = SimulatedClock(self.fibers, self.endpoint)
        self.cluster = SimulatedAttached(self.hosts, self.endpoint, self.clock)
        self.writing = self.clock.lock()
        cluster = cast("Cluster", self.cluster)
        self.tables = _Tables(
            cluster=cluster,
            planning=cast("PlanningDatabase", _Planning()),
            placement=self._placed,
            partitions=3,
            warn=lambda _: None,
            observed=self._observed,
            storage=Storage(),
            clock=self.clock,
            sizes=_SIZES,
        )
        self.cached = CachedTables(self.tables)
        self.sources = SourceTables(
            planning=cast("PlanningDatabase", _Planning()),
            storage=Storage(),
            host_files=cast("HostFiles", None),  # for object stores
        )
        self._loading = self.clock.lock()
        self.merger = Merger(
            tables=self.tables,
            writing=self.writing,
            is_open=lambda: self.cluster.is_open,
        )
        self._replicator = self.tables.replicator()

    def start(self) -> None:
        """Begin what runs in the background."""
        for each in (self.cluster.keep_alive, self._heal, self._merge):
            self.threads.append(self.fibers.start(self.endpoint, each))

    @contextlib.contextmanager
    def _observed(self, name: str) -> Iterator[QueryObserver]:
        number = next(self._numbers)
        observer = QueryObserver(number=number, emit=lambda _: None)
        self._running[number] = (observer, self.fibers.running())
        try:
            yield observer
        finally:
            del self._running[number]

    def cancel(self, fiber: Fiber) -> None:
        """Cancel what a thread runs: its query or load."""
        for observer, runs_in in tuple(self._running.values()):
            if runs_in is fiber:
                observer.cancel()

    def _heal(self) -> None:
        while self.cluster.is_open:
            self.clock.sleep(_HEAL_S)
            with contextlib.suppress(MinisharkError, OSError, RuntimeError):
                self._replicator.heal()

    def _merge(self) -> None:
        while self.cluster.is_open:
            self.clock.sleep(_MERGE_S)
            for table in tuple(self.tables.catalog):
                with contextlib.suppress(MinisharkError, OSError, RuntimeError):
                    self.merger.merge(table.name)

    def site(self, folder: str) -> Site:
        """As the engine's."""
        return site_of(cast("Cluster", self.cluster), self._placed, folder, clock=self.clock)

    def _placed(self) -> Placement:
        return self.cluster.placement("sparrow", 2.0)

    def query_folder(self) -> AbstractContextManager[str]:
        """As the engine's."""
        return query_folder(cast("Cluster", self.cluster), next(self._folders))

    # Statements

    @contextlib.contextmanager
    def up_to_date(self) -> Iterator[None]:
        """As the engine's: what nobody holds any more is dropped before each statement."""
        with self._loading:
            self.cached.sweep()
        yield

    def query(self, query: Query) -> list[Row]:
        """The rows of a query."""
        with self.up_to_date():
            return rows_of(self._climb(query, self.tables.catalog, CollectRows()))

    def _climb(self, query: Query, catalog: Catalog, sink: Sink[Any]) -> Any:
        with self._held(query.tables) as names, self._observed(query.kind) as observer:
            return climb(
                _Rungs(
                    session=self,
                    query=query,
                    names=names,
                    catalog=catalog,
                    sink=sink,
                    observer=observer,
                )
            )

    @contextlib.contextmanager
    def _held(self, tables: Sequence[str]) -> Iterator[list[str]]:
        """The names of tables, of which those that are kept stay while the block runs."""
        names = [self.kept.get(name, name) for name in tables]
        self._holders.update(names)
        try:
            yield names
        finally:
            self._holders.subtract(names)
            for name in names:
                self._let_go(name)

    def _let_go(self, name: str) -> None:
        """Release kept rows if neither a user nor a query holds them."""
        if name not in self.kept.values() and not self._holders[name]:
            self._handles.pop(name, None)

    def write_file(self, name: str, rows: Sequence[Row]) -> None:
        """Write a file, or replace it: nothing is told of that."""
        files, path = self.hosts.disks.shared, f"{self.endpoint}/{name}"
        files.put(path, rows)
        if name not in self.sources:
            self.sources.add(name, files.source(path, self.clock.sleep))

    def create(self, name: str, rows: Sequence[Row], layout: Layout) -> None:
        """Load a table, which may replace another."""
        self._load(name, Given(rows), layout)

    def load(self, name: str, file: str, layout: Layout) -> None:
        """Load a table from a file; it may replace another."""
        self._load(name, self.sources.known([file])[file].source, layout)

    def _load(self, name: str, source: Source, layout: Layout) -> None:
        with self.writing, self.up_to_date():
            self.tables.create(name, source, layout, replace=True)

    def store(self, name: str, query: Query, layout: Layout) -> None:
        """Store the rows of a query as a table, which may replace another."""
        with self.writing, self.up_to_date(), self.tables.folder() as folder:
            sink = StoreAsTable(
                tables=self.tables, name=name, schema=COLUMNS, folder=folder, layout=layout
            )
            self.tables.publish(self._climb(query, self.tables.catalog, sink), replace=True)

    def keep(self, name: str, query: Query, layout: Layout) -> None:
        """Keep the rows that a query has now, under a name that may be another one's."""
        with self.writing, self.up_to_date(), self._held(query.tables):
            own = self._promised(CachePlan(query.text, COLUMNS, layout))
            self._holders[own] += 1
            try:
                self.compute(own)
                before, self.kept[name] = self.kept.get(name, ""), own
            finally:
                self._holders[own] -= 1
                self._let_go(own)
            self._let_go(before)

    def _promised(self, plan: CachePlan) -> str:
        rows = self.cached.promise(plan)
        self._handles[rows.name] = rows
        return rows.name

    def refresh(self, name: str) -> None:
        """Free kept rows, and compute them again: those that their query has now."""
        own = self.kept[name]
        with self.writing, self.up_to_date(), self._held([name]):
            self.cached.forget(own)
            self.compute(own)

    def release(self, name: str) -> None:
        """Keep the rows of this name no longer; who reads them may do so to the end."""
        with self.up_to_date():
            self._let_go(self.kept.pop(name))

    def compute(self, name: str) -> None:
        """Compute a table that is kept."""

        def run(plan: CachePlan, sink: StoreAsTable) -> Table:
            table: Table = self._climb(Query.read(plan.sql), self.tables.catalog, sink)
            return table

        self.cached.compute(name, self._fingerprint, run)

    def _fingerprint(self, plan: CachePlan) -> Fingerprint | None:
        names = Query.read(plan.sql).tables
        if self.sources.known(names):
            return None
        found = [self.tables.catalog.find(name) for name in names]
        return tuple(self.tables.content(table) for table in found if table is not None)

    def drop(self, name: str) -> None:
        """Drop a table."""
        with self.writing, self.up_to_date():
            self.tables.drop(name)

    def change(
        self,
        name: str,
        goes: Callable[[Row], bool] | None,
        put: Callable[[Sequence[Row]], Sequence[Row]],
    ) -> None:
        """Delete some rows, none if `goes` is None, and add what `put` makes of them.

        So INSERT, DELETE and UPDATE do.
        """
        self._restoring(name, lambda table: self._changed(table, goes, put))

    def empty(self, name: str) -> None:
        """DELETE without a condition."""

        def emptied(table: Table) -> None:
            self.tables.changed((table, self.tables.deltas.emptied(table)))

        self._restoring(name, emptied)

    def restore(self, lost: PartitionsLostError, check: Callable[[], None] = lambda: None) -> None:
        """As the engine's."""
        try:
            if lost.table in self.cached:
                self.cached.restore(lost, self._fingerprint)
            else:
                self.tables.restore(lost)
        except PartitionsLostError:
            if not self.tables.come_back(lost, check):
                raise

    def _restoring(self, name: str, change: Callable[[Table], None]) -> None:
        """Change a table; again if it was restored meanwhile."""
        with self.writing, self.up_to_date():
            attempted(lambda: self.tables.catalog.get(name), change, self.restore, is_alone=True)

    def _changed(
        self,
        table: Table,
        goes: Callable[[Row], bool] | None,
        put: Callable[[Sequence[Row]], Sequence[Row]],
    ) -> None:
        new, found = table, [row for row in self._numbered(table) if goes(row)] if goes else []
        if found:
            new = without_rows(table, np.array(sorted(row[2] for row in found), np.int64))
        if added := put(found):
            count = len(table.partitions)
            buckets = (
                pa.array([bucket_of(row, count) for row in added]) if table.is_hashed else None
            )
            rows = pa.Table.from_batches([batch_of(added)])
            new = self.tables.deltas.with_rows(new, rows, buckets)
        if new is not table:
            self.tables.changed((table, self.tables.merged(new)))

    def _numbered(self, table: Table) -> list[Row]:
        """The rows of a table, each with its number in the third column."""
        numbered = self.tables.numbered(table)
        catalog = CatalogView(self.tables.catalog, [numbered])
        return rows_of(self._climb(Query("rows", (numbered.name,)), catalog, CollectRows()))

    def kill(self) -> None:
        """Its process dies; nodes find that out."""
        self.fibers.kill(self.endpoint)
        self.hosts.world.kill(self.endpoint)
        self.cluster.forget()

    def close(self) -> None:
        """End the session; its background threads have ended then."""
        self.cluster.is_open = False
        self._replicator.stop()
        self.fibers.join(self.threads)
        self.cluster.close()
