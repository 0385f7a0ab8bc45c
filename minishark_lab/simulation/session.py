"""A simulated process of users: production's engine and statements over a simulated cluster."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any, cast

import pyarrow as pa

from minishark.cluster.backend import Placement
from minishark.cluster.contract import Cluster
from minishark.model.catalog import Catalog, ColumnStatistics, Table, TableStatistics
from minishark.model.expressions import Schema
from minishark.model.predicates import Pushed
from minishark.query.sinks import Layout
from minishark.session.engine import Engine, Parts
from minishark.session.kept_outputs import Reuses
from minishark.session.runtime import Runtime
from minishark.session.scope import Scope
from minishark.session.statements import Statements
from minishark.session.tasks.verbs import Calls
from minishark.sources.contract import Snapshot, Source, Split
from minishark.sources.storage_options import Storage
from minishark.tables.cached import CachedRows, CachePlan
from minishark.tables.deltas import Sizes
from minishark.tables.load import LoadedTable
from minishark.tables.tables import Tables
from minishark_lab.simulation.attached import SimulatedAttached
from minishark_lab.simulation.fibers import Fibers, SimulatedClock
from minishark_lab.simulation.hosts import Hosts
from minishark_lab.simulation.planner import OPTIONS, SimulatedSharedPlanner
from minishark_lab.simulation.queries import FUNCTIONS, Query
from minishark_lab.simulation.work import COLUMNS, SCHEMA, Row, batch_of, rows_of

_SIZES = Sizes(delta=4, merged=3, patched=8)  # of tables with a dozen rows


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


class WatchedCatalog(Catalog):
    """Tells when tables are published: the moment at which a statement takes effect."""

    def __init__(self) -> None:
        super().__init__()
        self.published: Callable[[Sequence[Table]], None] = lambda _: None

    def add(self, *tables: Table) -> None:
        super().add(*tables)
        self.published(tables)

    def change(self, tables: Iterable[Table], gone: Iterable[str]) -> None:
        tables = tuple(tables)
        super().change(tables, gone)
        self.published(tables)


class _Tables(Tables):
    """The tables of an engine, without statistics, which DuckDB measures and merges."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(catalog=WatchedCatalog(), **parts)

    def statistics_of(self, loaded: LoadedTable, schema: Schema) -> TableStatistics:
        rows, size = (
            sum(getattr(p, name) for p in loaded.partitions) for name in ("rows", "bytes")
        )
        return TableStatistics(rows, size, tuple(ColumnStatistics() for _ in schema))


class SimulatedFront:
    """A process of users: an engine, and the sessions over it."""

    def __init__(
        self,
        *,
        hosts: Hosts,
        fibers: Fibers,
        endpoint: str,
        reuse: str = "off",
        lake: str = "",
    ) -> None:
        """Start it; `lake` is the folder of the files that its queries name."""
        self.hosts, self.fibers, self.endpoint = hosts, fibers, endpoint
        self.lake = lake or endpoint
        self.clock = SimulatedClock(fibers, endpoint)
        # Another one if it starts again: its files have the names of earlier ones then.
        self._random = Random(f"{endpoint} {self.clock.now_s()}")
        self.cluster = SimulatedAttached(hosts, endpoint, self.clock)
        self.engine = Engine(
            cast("Cluster", self.cluster),
            OPTIONS,
            self._placed,
            Storage(),
            prints=False,
            reuse=Reuses(by=reuse),
            parts=Parts(
                clock=self.clock,
                tables=_Tables,
                sizes=_SIZES,
                planner=SimulatedSharedPlanner,
                chance=self._random_text,
            ),
        )
        self.engine.set_functions(FUNCTIONS)
        self.tables, self.cached = self.engine.tables, self.engine.cached
        self.kept: dict[str, str] = {}  # kept rows: their own names by those of users
        # Of what users or queries hold, by name. Nothing else has a reference to one.
        self._handles: dict[str, CachedRows] = {}
        self._holders = Counter[str]()
        self.main = SimulatedSession(self, Scope(self.engine))
        self.keeper = fibers.start(endpoint, self.cluster.keep_alive)

    def _random_text(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def _placed(self) -> Placement:
        return self.cluster.placement("sparrow", 2.0)

    def session(self) -> SimulatedSession:
        """Another session over the same tables."""
        return SimulatedSession(self, Scope.of(self.main.scope))

    @contextlib.contextmanager
    def held(self, tables: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The names of tables, of which those that are kept stay while the block runs."""
        names = tuple(self.kept.get(name, name) for name in tables)
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
        self.hosts.disks.shared.put(f"{self.lake}/{name}", rows)
        self.open_file(name)

    def file_rows(self, name: str) -> Sequence[Row] | None:
        """What is in a file now; None if it is not there."""
        return self.hosts.disks.shared.rows_of(f"{self.lake}/{name}")

    def open_file(self, name: str) -> None:
        """Have a file that is there."""
        if name not in self.engine.sources:
            files = self.hosts.disks.shared
            self.engine.sources.add(name, files.source(f"{self.lake}/{name}", self.clock.sleep))

    def keep(self, name: str, query: Query, layout: Layout) -> None:
        """Keep the rows that a query has now, under a name that may be another one's."""
        engine, scope = self.engine, self.main.scope
        with engine.writing, engine.up_to_date(scope), self.held(query.tables) as names:
            text = Query(query.kind, names, query.number).text
            rows = engine.promise(CachePlan(text, COLUMNS, layout), scope)
            own = rows.name
            self._handles[own] = rows
            del rows
            self._holders[own] += 1
            try:
                engine.compute((own,), scope)
                before, self.kept[name] = self.kept.get(name, ""), own
            finally:
                self._holders[own] -= 1
                self._let_go(own)
            self._let_go(before)

    def refresh(self, name: str) -> None:
        """Free kept rows, and compute them again: those that their query has now."""
        engine, scope, own = self.engine, self.main.scope, self.kept[name]
        with engine.writing, engine.up_to_date(scope), self.held([name]):
            self.cached.forget(own)
            engine.compute((own,), scope)

    def release(self, name: str) -> None:
        """Keep the rows of this name no longer; who reads them may do so to the end."""
        with self.engine.up_to_date(self.main.scope):
            self._let_go(self.kept.pop(name))

    def kill(self) -> None:
        """Its process dies; nodes find that out."""
        self.fibers.kill(self.endpoint)
        self.hosts.world.kill(self.endpoint)
        self.cluster.forget()

    def close(self) -> None:
        """End the sessions; what runs in the background has ended then."""
        self.engine.stop(self.main.scope)
        self.fibers.join([self.keeper])


class SimulatedSession:
    """What a user holds."""

    def __init__(self, front: SimulatedFront, scope: Scope) -> None:
        self.front, self.scope = front, scope
        self.runtime = Runtime(
            front.engine, scope, cast("Calls", None), owner=lambda: None, progress=False
        )
        self._statements = Statements(self.runtime)

    def sql(self, text: str) -> pa.Table:
        """Run a statement that is not simulated; its answer."""
        return self._statements.run(text).to_arrow()

    def sql_at_once(self, text: str) -> None:
        """Run a statement that only the scratch database can: in a transaction, all or nothing.

        Alone, what it has made would be loaded by whichever statement follows.
        """
        self.sql("BEGIN")
        try:
            self.sql(text)
        except BaseException:
            self.sql("ROLLBACK")
            raise
        self.sql("COMMIT")

    def query(self, query: Query) -> list[Row]:
        """The rows of a query."""
        return self.answer(query)[0]

    def answer(self, query: Query) -> tuple[list[Row], bool]:
        """The rows of a query, and whether they are of outputs that there were: no task has run."""
        with self.front.held(query.tables) as names:
            text = Query(query.kind, names, query.number).text
            answer = self.runtime.run(text)
            return rows_of(answer.table), not any(
                stage.done for stage in answer.metrics.by_index.values()
            )

    def create(self, name: str, source: Source, layout: Layout) -> None:
        """Load a table, which may replace another."""
        self.runtime.create_table(name, source, layout=layout, replace=True)

    def load(self, name: str, file: str, layout: Layout) -> None:
        """Load a table from a file; it may replace another."""
        self.create(name, self.front.engine.sources.known([file])[file].source, layout)

    def store(self, name: str, query: Query, layout: Layout) -> None:
        """Store the rows of a query as a table, which may replace another."""
        with self.front.engine.up_to_date(self.scope), self.front.held(query.tables):
            self.runtime.named.store_query(name, query.text, layout, replace=True)

    def cancel(self) -> None:
        """Cancel what it runs."""
        for number in self.scope.tagged(None):
            self.front.engine.cancel(number)
