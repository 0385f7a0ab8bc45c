"""Plans queries: from text to stages; with a cache of plans for repeated statements."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import duckdb

from minishark.compiler.logical.operators import Join, JoinKind, Statement
from minishark.compiler.logical.plan import LogicalPlan, called_functions
from minishark.compiler.physical.options import SINGLE_TASK_ROWS, UNLIMITED, PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.rules.source_pushdown import predicates_of
from minishark.compiler.sql.planning import TOO_DEEP, BoundStatement, PlanningDatabase, named_files
from minishark.compiler.stages.split import split, with_tasks
from minishark.compiler.stages.stage import ReadMode, Stage, TableInput
from minishark.errors import QueryError
from minishark.model.catalog import Catalog, Table
from minishark.model.predicates import Predicate
from minishark.query import calibration
from minishark.query.job_builder import functions_called
from minishark.query.shown import Shown, shown
from minishark.query.sinks import Sink
from minishark.query.sources import SourceTable, SourceTables, with_splits
from minishark.sources.contract import Snapshot
from minishark.sources.filesystems import check_readable
from minishark.worker.protocol import ScalarFunction

_CACHED_PLANS_MAX = 256
_CHANGES_MAX = 3  # how often a query is bound while its sources change

_PlanKey: TypeAlias = tuple[str, int, PlannerOptions, bool]
"""A text, the version of what its names mean, and how it is planned."""


class TablesPromisedError(Exception):
    """A query reads tables that are only promised: they have to be computed first.

    Attributes:
        names: which.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__(f"not computed yet: {', '.join(names)}")
        self.names = names


@dataclass(frozen=True, slots=True)
class LogicalQuery:
    """A query's logical plan, and the sources in it."""

    bound: BoundStatement
    plan: LogicalPlan
    # The versions of sources that it reads, by the names of their tables in lower case.
    sources: Mapping[str, SourceTable] = field(default_factory=dict)

    def same_as(self, plan: QueryPlan) -> bool:
        """Whether a plan was made for this."""
        return plan.planned is self.plan and plan.sources == self.sources


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """All phases of a query's plan."""

    bound: BoundStatement
    logical: LogicalPlan  # what is computed
    physical: PhysicalPlan  # where rows are
    stages: tuple[Stage, ...]  # what tasks run, in topological order
    catalog: Catalog  # the tables that it reads, as they were when planned
    options: PlannerOptions  # how it was planned
    has_any_layout: bool  # whether any number of tasks may put the rows out
    planned: LogicalPlan  # `logical`, before the parts of sources were chosen
    # The versions of sources that it reads, by the names of their tables in lower case.
    sources: Mapping[str, SourceTable]
    source_tables: frozenset[str]  # the tables, by name in lower case, that are splits of them
    opened: tuple[Snapshot, ...] = ()  # versions of sources to be closed after the query

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.bound.schema)

    def close(self) -> None:
        """End what was opened for it: nobody reads its sources any more."""
        for snapshot in self.opened:
            snapshot.close()

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """The tables that it reads, by name in lower case."""
        return {table.name.lower(): table for table in self.catalog}

    @cached_property
    def predicates(self) -> Mapping[str, tuple[tuple[Predicate, ...], ...]]:
        """Conditions on rows that it needs of stored tables, by their names and where it does."""
        stored = [name for name, table in self.tables.items() if not table.is_source]
        return predicates_of(self.logical, stored)

    @cached_property
    def shown(self) -> Shown:
        """The plan as events tell it."""
        return shown(self.physical, self.stages, self.tables)


@dataclass(slots=True, kw_only=True)
class SharedPlanner:
    """What the planners of all sessions share."""

    options: PlannerOptions  # the options of physical planning
    sources: SourceTables  # the tables that stand for sources
    # How many cores tasks have now, as nodes come and go: the options may count others.
    cores: Callable[[], int]
    functions: Mapping[str, ScalarFunction] = field(default_factory=dict)  # of Python, by name
    # Physical plans are only reused for the same logical plan, so all sessions share them.
    plans: OrderedDict[_PlanKey, QueryPlan] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def over(self, planning: PlanningDatabase, catalog: Catalog) -> QueryPlanner:
        """Plans the queries of a session, as it sees names."""
        return QueryPlanner(self, planning, catalog)

    def set_functions(self, functions: Mapping[str, ScalarFunction]) -> None:
        """The Python functions that statements may call from now on."""
        self.functions = functions

    @contextlib.contextmanager
    def planned_with(self, options: PlannerOptions) -> Iterator[None]:
        """A block in which queries are planned with other options."""
        before, self.options = self.options, options
        try:
            yield
        finally:
            self.options = before

    def slots_now(self) -> PlannerOptions:
        """The options, with the slots that there are now; whoever counts none goes on so."""
        options, slots = self.options, self.cores()
        if options.reuses:  # a plan for fewer would find nothing that one for all has put out
            slots = max(slots, options.slots)
        if options.slots in (slots, UNLIMITED) or not slots:
            return options
        return replace(options, slots=slots)


@dataclass(frozen=True, slots=True)
class QueryPlanner:
    """Plans queries as a session sees names; safe to use from several threads."""

    shared: SharedPlanner
    planning: PlanningDatabase  # binds and optimizes statements
    catalog: Catalog  # the tables in the cluster

    def seeing(self, catalog: Catalog) -> QueryPlanner:
        """The same over other tables, for queries that run once: their plans are not kept."""
        shared = replace(self.shared, plans=OrderedDict(), lock=threading.Lock())
        return replace(self, shared=shared, catalog=catalog)

    def plan(self, sql: str, sink: Sink[Any], *, on_hosts: bool, whole: bool = False) -> QueryPlan:
        """All phases of a query's plan; with `whole`, one task runs the statement as it is."""
        # Where nodes are on several hosts, reading all in one place means moving it.
        over_files = sink.distributes_files(self.shared.slots_now())
        query = self._logical(sql, over_files=over_files)
        self._check_computed(query)
        if whole:
            query = self._whole(query, "DuckDB did not accept a fragment of it")
            return self._physical(query, sink, on_hosts=on_hosts)
        if not sink.leaves_plan:
            return self._physical(query, sink, on_hosts=on_hosts)
        # The sinks for rows leave the plan as it is, so one cached plan serves them all. Others
        # depend on the sink, and run once.
        key = (sql, self.planning.version, sink.options(self.shared.slots_now()), on_hosts)
        with self.shared.lock:
            kept = self.shared.plans.get(key)
        # The logical plan is a new object if the statement must be planned anew, as for now().
        if kept is not None and query.same_as(kept):
            if self._is_stored(kept):
                return kept
            kept = self._renewed(kept)
        else:
            kept = None
        plan_ = kept or self._physical(query, sink, on_hosts=on_hosts)
        if plan_.opened:
            return plan_
        with self.shared.lock:
            self.shared.plans[key] = plan_
            if len(self.shared.plans) > _CACHED_PLANS_MAX:
                self.shared.plans.popitem(last=False)
        return plan_

    def describe(self, sql: str, *, on_hosts: bool) -> QueryPlan:
        """A plan to be looked at, for which promised tables need not be computed."""
        query = self._logical(sql, over_files=True)
        plan = self._physical(query, None, on_hosts=on_hosts, counts_all=True)
        plan.close()  # it is not run
        return plan

    def _logical(self, sql: str, *, over_files: bool) -> LogicalQuery:
        query = self._over_sources(sql)
        distributed = self._over_files(sql, query.bound) if over_files else None
        return distributed or query

    def bind(self, sql: str, parsed: duckdb.Statement | None = None) -> BoundStatement:
        """Resolve the names and types of a SELECT, over the sources as they are now if need be.

        Raises:
            QueryError: they can't be resolved.
            DataError: a file that the text names is none, or does not answer.
        """
        check_files(sql)
        try:
            return self.planning.bind(sql, parsed)
        except QueryError as error:
            if self.shared.sources.refreshed(sql):
                return self.planning.bind(sql)
            raise QueryError(self.shared.sources.told(str(error))) from error

    def _over_sources(self, sql: str) -> LogicalQuery:
        """The plan over the current versions of the sources that a query names."""
        for _ in range(_CHANGES_MAX):
            bound = self.bind(sql)
            plan = self.planning.plan(bound)
            names = _read_by(bound, plan)
            before = self.shared.sources.known(names)
            sources = self.shared.sources.mentioned(names) if before else {}
            if sources == before:
                break
            # A source has changed, and perhaps its columns.
        return LogicalQuery(bound, plan, sources)

    def _over_files(self, sql: str, bound: BoundStatement) -> LogicalQuery | None:
        """The plan over ranges of rows of the files that a query names, if there is one."""
        rewritten = self.shared.sources.rewritten(sql, self.planning)
        if rewritten is None:
            return None
        try:
            other = self.planning.bind(rewritten.sql)
        except QueryError:  # it uses what only files have, such as their names
            return None
        plan = self.planning.plan(other)
        if other.schema != bound.schema or isinstance(plan.operator, Statement):
            return None
        files = {table.name.lower(): table for table in rewritten.tables}
        return LogicalQuery(bound, plan, self.shared.sources.known(_read_by(other, plan)) | files)

    def _check_computed(self, query: LogicalQuery) -> None:
        # The text names tables that the optimizer removes; the plan, those behind views.
        names = dict.fromkeys((*query.bound.tables, *query.plan.tables))
        tables = (self.catalog.find(name) for name in names)
        promised = tuple(table.name for table in tables if table and not table.is_computed)
        if promised:
            raise TablesPromisedError(promised)

    def _whole(self, query: LogicalQuery, reason: str) -> LogicalQuery:
        plan = self.planning.whole(query.bound, reason)
        named = self.shared.sources.mentioned(_read_by(query.bound, plan))
        return LogicalQuery(query.bound, plan, named)

    def _physical(
        self,
        query: LogicalQuery,
        sink: Sink[Any] | None,
        *,
        on_hosts: bool,
        counts_all: bool = False,
    ) -> QueryPlan:
        try:
            return self._divided(query, sink, on_hosts=on_hosts, counts_all=counts_all)
        except RecursionError:
            if isinstance(query.plan.operator, Statement):
                raise
            query = self._whole(query, TOO_DEEP)
            return self._divided(query, sink, on_hosts=on_hosts, counts_all=counts_all)

    def _divided(
        self, query: LogicalQuery, sink: Sink[Any] | None, *, on_hosts: bool, counts_all: bool
    ) -> QueryPlan:
        bound = query.bound
        options = self.shared.slots_now()
        options = options if sink is None else sink.options(options)
        logical, read, sources = with_splits(
            query.plan, query.sources, options, counts_all=counts_all
        )
        # A snapshot: tables replaced from here on are noticed by `is_current`.
        catalog, tables = self.catalog.at_once(), Catalog()
        for table in read:
            tables.add(table)
        for name in dict.fromkeys((*logical.tables, *bound.tables)):
            if name in tables or name.lower() in query.sources:
                continue
            # The text may only seem to name a table, and other queries' are none of this catalog.
            seen = catalog.get(name) if name in logical.tables else catalog.find(name)
            if seen is not None:
                tables.add(seen)
        python = self.shared.functions.keys()
        calls_python = bool(python) and not python.isdisjoint(called_functions(logical))
        unknown = any(not p.reads_in_threads for table in read for p in table.partitions)
        if unknown or on_hosts or calls_python:
            options = options.without("one_task", "coalesced_tasks")  # the cost can't be estimated
        if any(table.statistics.is_of_rows_alone for table in read) and not _has_semi(logical):
            options = options.without("join_sides")  # DuckDB reads bounds and rows of the files
        if options.reuses and any(len(table.partitions) > 1 for table in read):
            options = options.without("one_task")  # all would be read again if one file changes
        if calls_python:
            options = options.without("collapse")  # few rows may take a function long
        if options.threads < options.slots and sum(t.rows for t in tables) > SINGLE_TASK_ROWS:
            # One task or several, and how many: that depends on the machine.
            options = replace(options, costs=calibration.machine_costs())
        physical = plan_physical(logical, tables, options)
        if sink is not None:
            physical = sink.shape(physical)
        stages = split(physical, options.disabled)
        # What other sinks do with a task's rows, users see: files, partitions, calls of a function.
        has_any_layout = sink is None or sink.leaves_plan
        kept = {} if has_any_layout else {stages[-1].index: stages[-1].tasks}
        if options.reuses:
            kept |= _reading(stages, frozenset(sources))
        return QueryPlan(
            bound=bound,
            logical=logical,
            physical=physical,
            stages=with_tasks(stages, kept, options),
            catalog=tables,
            options=options,
            has_any_layout=has_any_layout,
            planned=query.plan,
            sources=query.sources,
            source_tables=frozenset(sources),
            opened=_opened(sources.values(), query.sources.values()),
        )

    # Whether a plan still holds

    def is_current(self, plan: QueryPlan) -> bool:
        """Whether the tables and sources that a plan reads are still those that it was made for."""
        is_current = self.shared.sources.is_current
        return self._is_stored(plan) and all(map(is_current, plan.sources.values()))

    def _is_stored(self, plan: QueryPlan) -> bool:
        return all(
            name in plan.source_tables or self.catalog.again(table)
            for name, table in plan.tables.items()
        )

    def _renewed(self, plan: QueryPlan) -> QueryPlan | None:
        """A plan for the versions that its tables have now; None if it might be another one."""
        catalog, tables = self.catalog.at_once(), Catalog()
        for name, table in plan.tables.items():
            current = table if name in plan.source_tables else catalog.find(name)
            if current is None or not current.planned_as(table):
                return None
            tables.add(current)
        return replace(plan, catalog=tables)

    def stored(self, plan: QueryPlan) -> Mapping[str, Table]:
        """The tables that a plan reads, with their current locations."""
        return {name: self.catalog.again(table) or table for name, table in plan.tables.items()}

    def deterministic_inputs(self, sql: str, *, on_hosts: bool) -> tuple[Table, ...] | None:
        """The tables that alone decide which rows a query returns; None if other things do too."""
        plan = self.describe(sql, on_hosts=on_hosts)
        if plan.sources or self.planning.tells_time(sql):
            return None
        functions = tuple(self.shared.functions.values())
        for stage in plan.stages:
            called = functions_called(stage, functions)
            if stage.varies or any(function.volatile for function in called):
                return None
        return tuple(plan.tables.values())


def check_files(sql: str) -> None:
    """Refuse a text that may read files which are none, or do not answer.

    Raises:
        DataError: there is one.
    """
    if patterns := named_files(sql):
        check_readable(patterns)


def _read_by(bound: BoundStatement, plan: LogicalPlan) -> tuple[str, ...]:
    """The tables that a statement may read: those of its text, and those behind views."""
    operator = plan.operator
    whole = operator.tables if isinstance(operator, Statement) else ()
    return (*bound.tables, *plan.tables, *whole)


def _has_semi(plan: LogicalPlan) -> bool:
    """Whether there is a semi or anti join, whose sides DuckDB swaps by guesses of their rows."""
    kinds = (JoinKind.SEMI, JoinKind.ANTI, JoinKind.RIGHT_SEMI, JoinKind.RIGHT_ANTI)
    own = isinstance(plan.operator, Join) and plan.operator.kind in kinds
    return own or any(map(_has_semi, plan.children))


def _reading(stages: Iterable[Stage], sources: frozenset[str]) -> dict[int, int]:
    """How many tasks run stages that read parts of sources, which have the size that is wanted."""
    return {
        stage.index: stage.tasks
        for stage in stages
        for item in stage.inputs
        if isinstance(item, TableInput)
        and item.mode is ReadMode.OWN
        and item.table.lower() in sources
    }


def _opened(
    tables: Iterable[SourceTable], originals: Iterable[SourceTable]
) -> tuple[Snapshot, ...]:
    """The versions that were opened for a plan."""
    before = {id(table.snapshot) for table in originals}
    snapshots = {id(table.snapshot): table.snapshot for table in tables}
    return tuple(snapshot for key, snapshot in snapshots.items() if key not in before)
