"""The path of a query: from its text to the stages, and through the cluster to the answer."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

import pyarrow as pa

from minishark.catalog import Catalog, Table
from minishark.cluster.backend import Cluster, FragmentRejectedError, Placement
from minishark.compiler.logical.display import plan_text
from minishark.compiler.logical.operators import Statement
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.logical.volatile import called_functions
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.planner import plan_physical
from minishark.compiler.sql.planning import BoundStatement, PlanningDatabase
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.split import split
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.errors import (
    ExecutionError,
    MinisharkError,
    PartitionsLostError,
    QueryError,
    TaskFailedError,
)
from minishark.query.files import NamedFiles
from minishark.query.inputs import preferred_nodes
from minishark.query.limits import OpenQueries
from minishark.query.locality import hosts_of
from minishark.query.metrics import Answer, QueryMetrics
from minishark.query.progress import ProgressHandler, QueryProgress
from minishark.query.report import metrics_text
from minishark.query.run import QueryRun
from minishark.query.sinks import Ending, Gathered
from minishark.worker.protocol import ScalarFunction

_CACHED_PLANS_MAX = 256
_RESTORES_MAX = 3  # of each table, in one query


@dataclass(frozen=True, slots=True)
class _Logical:
    """A statement's logical plan, and the tables in it that stand for files."""

    bound: BoundStatement
    plan: LogicalPlan
    files: tuple[Table, ...] = ()


@dataclass(frozen=True)
class _Plan:
    """All phases of a statement's plan; it serves all runs of a statement that comes again."""

    bound: BoundStatement
    logical: LogicalPlan
    physical: PhysicalPlan
    stages: tuple[Stage, ...]
    tables: Mapping[str, Table]

    @cached_property
    def reads_files(self) -> bool:
        """Whether some of its tables stand for files that its text names."""
        return any(p.relation for table in self.tables.values() for p in table.partitions)


Result_co = TypeVar("Result_co", covariant=True)


class Goal(Protocol[Result_co]):
    """What a query is run for: what becomes of the rows of its last stage."""

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """How it is to be planned, where that matters."""
        ...

    def shaped(self, plan: PhysicalPlan) -> PhysicalPlan:
        """The plan with its rows spread over partitions as they are wanted."""
        ...

    def ending(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Ending:
        """The end of a run of `plan`, whose output columns users call `columns`."""
        ...

    def reached(self, run: QueryRun) -> Result_co:
        """What came of a run that is complete; its files are still there."""
        ...


@dataclass(frozen=True, slots=True)
class Rows:
    """The goal to have the rows here, as one Arrow table.

    Attributes:
        lossless: whether types stay as DuckDB has them, instead of those that users get.
    """

    lossless: bool = False

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """As they are."""
        return options

    def shaped(self, plan: PhysicalPlan) -> PhysicalPlan:
        """As it is."""
        return plan

    def ending(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Ending:
        """Rows come to the front end."""
        del plan
        return Ending(Gathered(self.lossless), columns)

    def reached(self, run: QueryRun) -> pa.Table:
        """All rows."""
        return run.result()


@dataclass(frozen=True, slots=True)
class Stream:
    """The goal to read the rows piece by piece, in the types that users get."""

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """As they are."""
        return options

    def shaped(self, plan: PhysicalPlan) -> PhysicalPlan:
        """As it is."""
        return plan

    def ending(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Ending:
        """Rows come to the front end."""
        del plan
        return Ending(Gathered(), columns)

    def reached(self, run: QueryRun) -> pa.RecordBatchReader:
        """A reader of rows that are mapped, not loaded."""
        return run.batches()


class RefusedError(TaskFailedError):
    """No executor accepts the statement; the session's own database may."""


def _raise(error: Exception) -> None:
    raise error


@dataclass(slots=True)
class Queries:
    """Plans and runs queries.

    Attributes:
        cluster: where they run.
        planning: binds and optimizes them.
        catalog: the tables in the cluster.
        placement: how tasks are placed now.
        options: what steers physical planning.
        warn: takes sentences for the user.
        run_here: runs a query in the session's own database, for what no executor accepts.
        settings: SET statements that hold for all queries.
        definitions: views, macros and types, for statements that run as a whole.
        scalars: Python functions that SQL may call, by name.
        restore: makes a table anew whose partitions are lost, or raises what it is given.
        make_tables: makes those of the named tables that are only promised; whether there were any.
        progress_handlers: who hears how far each query is.
        open_queries: bounds how many are open.
    """

    cluster: Cluster
    planning: PlanningDatabase
    catalog: Catalog
    placement: Callable[[], Placement]
    options: PlannerOptions
    warn: Callable[[str], None]
    run_here: Callable[[str], pa.Table]
    settings: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    scalars: dict[str, ScalarFunction] = field(default_factory=dict)
    make_tables: Callable[[Sequence[str]], bool] = lambda _: False
    restore: Callable[[PartitionsLostError], None] = _raise
    progress_handlers: tuple[ProgressHandler, ...] = ()
    open_queries: OpenQueries = field(default_factory=OpenQueries)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _plans: OrderedDict[tuple[str, int], _Plan] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _here: threading.local = field(default_factory=threading.local)
    _files: NamedFiles = field(init=False)

    def __post_init__(self) -> None:
        self._files = NamedFiles(self.planning, self.options.partitions)

    def set(self, statement: str) -> None:
        """Let a SET statement hold for all queries from now on."""
        self.settings = (*self.settings, statement)
        self._files.forget()

    def run(self, sql: str, *, lossless: bool = False, explained: bool = False) -> Answer:
        """Run a query to its end; `DataFrame.to_arrow` calls this.

        Args:
            sql: the query.
            lossless: keep types as DuckDB has them, instead of those in which users get results.
            explained: let the metrics tell why each task ran where it did.
        """
        started = time.perf_counter()
        try:
            return Answer(*self.run_for(sql, Rows(lossless), explained=explained))
        except RefusedError as refused:
            return self._run_here(sql, started, TaskFailedError(str(refused)))

    def stream(self, sql: str) -> tuple[pa.RecordBatchReader, QueryMetrics]:
        """Run a query to its end, and read its rows piece by piece.

        Nobody holds all rows in memory of their own: they lie in shared memory or on disk, from
        where each task's are freed when they have been read.
        """
        started = time.perf_counter()
        try:
            return self.run_for(sql, Stream())
        except RefusedError as refused:
            answer = self._run_here(sql, started, TaskFailedError(str(refused)))
        return answer.table.to_reader(), answer.metrics

    def _run_here(self, sql: str, started: float, refusal: TaskFailedError) -> Answer:
        """Run a query in the session's own database, which accepts more."""
        try:
            table = self.run_here(sql)
        except MinisharkError:
            raise refusal from None
        note = f"Ran in the front end, as an executor did not accept it: {refusal}"
        elapsed = time.perf_counter() - started
        return Answer(table, QueryMetrics(0, 0, 0, 0, elapsed, 0.0, (note,)))

    def run_for(
        self, sql: str, goal: Goal[Result_co], *, explained: bool = False
    ) -> tuple[Result_co, QueryMetrics]:
        """Run a query to its end, for more than its rows.

        Args:
            sql: the query.
            goal: what becomes of its rows.
            explained: let the metrics tell why each task ran where it did.

        Raises:
            RefusedError: no executor accepts it, not even as a whole.
            TasksLostError: tasks or their outputs were lost again and again.
            PartitionsLostError: all replicas of a table's partition are lost.
            ResourceError: too many queries are open.
        """
        started = time.perf_counter()
        restores = Counter[str]()
        with self.open_queries.entered():
            while True:
                try:
                    return self._attempt(sql, goal, started, explained)
                except PartitionsLostError as lost:
                    restores[lost.table] += 1
                    if restores[lost.table] > _RESTORES_MAX:
                        raise
                    self.restore(lost)

    def _attempt(
        self, sql: str, goal: Goal[Result_co], started: float, explained: bool
    ) -> tuple[Result_co, QueryMetrics]:
        plan = self._plan_for(sql, goal)
        planned = time.perf_counter()
        try:
            result = self._run(plan, goal, started, planned, explained)
            if not plan.reads_files or self._is_current(plan):
                return result
        except (ExecutionError, TaskFailedError):
            if self._is_current(plan):
                raise
        # A table was replaced while the query ran, and its old files are gone, or files that it
        # names have changed: once more.
        plan = self._plan_for(sql, goal)
        result = self._run(plan, goal, started, planned, explained)
        if plan.reads_files and not self._is_current(plan):
            raise ExecutionError("The files that the query reads keep changing; run it later.")
        return result

    def tasks(self, sql: str, goal: Goal[Result_co]) -> int:
        """In how many tasks the last stage of a query would run."""
        return self._plan_for(sql, goal).stages[-1].tasks

    def _plan_for(self, sql: str, goal: Goal[Result_co]) -> _Plan:
        if isinstance(goal, Rows | Stream):
            return self._plan(sql)
        return self._staged(_Logical(*self._over_tables(sql)), goal)

    def _logical(self, sql: str) -> _Logical:
        """A statement's logical plan, once all tables that it reads are there."""
        return self._over_files(sql) or _Logical(*self._over_tables(sql))

    def _over_files(self, sql: str) -> _Logical | None:
        """The same for a statement that names files, if it can be distributed over them."""
        rewritten = self._files.rewritten(sql)
        if rewritten is None:
            return None
        bound = self.planning.bind(sql)
        try:
            other, logical = self._over_tables(rewritten.sql)
        except QueryError:  # it uses what only files have, such as their names
            return None
        if other.schema != bound.schema or isinstance(logical.operator, Statement):
            return None
        return _Logical(bound, logical, rewritten.tables)

    def _over_tables(self, sql: str) -> tuple[BoundStatement, LogicalPlan]:
        while True:
            bound = self.planning.bind(sql)
            logical = self.planning.plan(bound)
            if not self.make_tables((*bound.tables, *logical.tables)):
                return bound, logical

    def _run(
        self, plan: _Plan, goal: Goal[Result_co], started: float, planned: float, explained: bool
    ) -> tuple[Result_co, QueryMetrics]:
        """Run a planned query; as a whole statement if an executor does not accept a fragment."""
        try:
            return self._execute(plan, goal, started, planned, explained, ())
        except FragmentRejectedError as rejected:
            whole = self.planning.whole(plan.bound, "DuckDB did not accept a fragment of it")
            note = f"Ran in a single task, as DuckDB did not accept a fragment: {rejected}"
        staged = self._staged(_Logical(plan.bound, whole), goal)
        try:
            return self._execute(staged, goal, started, planned, explained, (note,))
        except FragmentRejectedError as rejected:
            raise RefusedError(str(rejected)) from None

    @contextlib.contextmanager
    def heard_by(self, handler: ProgressHandler) -> Iterator[None]:
        """Tell a handler, too, of the queries that this thread runs meanwhile."""
        before = self._heard_here()
        self._here.handlers = (*before, handler)
        try:
            yield
        finally:
            self._here.handlers = before

    def _heard_here(self) -> tuple[ProgressHandler, ...]:
        handlers: tuple[ProgressHandler, ...] = getattr(self._here, "handlers", ())
        return handlers

    def _tell(self, progress: QueryProgress) -> None:
        for handler in (*self.progress_handlers, *self._heard_here()):
            handler(progress)

    def explain(self, sql: str, mode: str) -> str:
        """Describe how a SELECT runs; `DataFrame.explain` calls this."""
        plan = self._plan(sql, describe=True)
        parts = {
            "logical": lambda: plan_text(plan.logical),
            "physical": lambda: plan_text(plan.physical),
            "stages": lambda: self._stages_text(plan),
            "sql": lambda: self._stages_text(plan, sql=True),
            "analyze": lambda: metrics_text(self.run(sql).metrics),
        }
        if mode != "all":
            return parts[mode]()
        titles = (("Logical plan", "logical"), ("Physical plan", "physical"), ("Stages", "stages"))
        return "\n\n".join(f"{title}\n{parts[name]()}" for title, name in titles)

    def _stages_text(self, plan: _Plan, *, sql: bool = False) -> str:
        def preferred(stage: Stage, index: int) -> frozenset[str]:
            inputs = [item for item in stage.inputs if isinstance(item, TableInput)]
            return preferred_nodes(
                stage, {i.name: plan.tables[i.table.lower()] for i in inputs}, index
            )

        return stages_text(plan.stages, preferred, threads=self._threads(), sql=sql)

    def _plan(self, sql: str, *, describe: bool = False) -> _Plan:
        """All phases of a plan; to describe it only, its tables need not be there."""
        if describe:
            bound = self.planning.bind(sql)
            return self._staged(self._over_files(sql) or _Logical(bound, self.planning.plan(bound)))
        found = self._logical(sql)
        key = (sql, self.planning.version)
        with self._lock:
            known = self._plans.get(key)
        if known is not None and known.logical is found.plan and self._is_current(known):
            return known
        plan = self._staged(found)
        with self._lock:
            self._plans[key] = plan
            if len(self._plans) > _CACHED_PLANS_MAX:
                self._plans.popitem(last=False)
        return plan

    def _staged(self, found: _Logical, goal: Goal[Result_co] | None = None) -> _Plan:
        bound, logical = found.bound, found.plan
        files = {table.name.lower(): table for table in found.files}
        tables = Catalog()
        for name in (*bound.tables, *logical.tables):
            tables.add(files.get(name.lower()) or self.catalog.get(name))
        options = self.options if goal is None else goal.options(self.options)
        if files or self._is_spread() or self._calls_python(logical):
            options = options.without("one_task")  # what one task would take is not known
        physical = plan_physical(logical, tables, options)
        if goal is not None:
            physical = goal.shaped(physical)
        snapshot = {table.name.lower(): table for table in tables}
        return _Plan(bound, logical, physical, split(physical, options.disabled), snapshot)

    def _calls_python(self, logical: LogicalPlan) -> bool:
        """Whether a plan calls functions of the user, which may take any time."""
        scalars = self.scalars.keys()
        return bool(scalars) and not scalars.isdisjoint(called_functions(logical))

    def _is_spread(self) -> bool:
        """Whether nodes are on several hosts, so that reading all in one place means moving it."""
        placement = self.placement()
        return bool(hosts_of(placement.nodes, placement.stores))

    def _threads(self, queries: int = 1) -> int:
        """How many cores a task may use that is alone in its stage, while so many queries run.

        Several with a thread for each core would only take turns.
        """
        return 1 if self._is_spread() else max(1, self.options.threads // max(1, queries))

    def _is_current(self, plan: _Plan) -> bool:
        """Whether the tables that `plan` reads are still those in the catalog."""
        return all(
            self._loaded(table) or self._files.get(name) is table
            for name, table in plan.tables.items()
        )

    def _loaded(self, table: Table) -> Table | None:
        """A table with those who hold it now; None if it is no longer in the catalog."""
        found = self.catalog.find(table.name)
        same = found is table or (found is not None and found.folder == table.folder)
        return found if same else None

    def _held(self, plan: _Plan) -> Mapping[str, Table]:
        """The tables that a plan reads, with those who hold them now."""
        return {name: self._loaded(table) or table for name, table in plan.tables.items()}

    def repeatable_over(self, sql: str) -> tuple[Table, ...] | None:
        """The tables that decide which rows a query gives; None if nothing does for sure."""
        plan = self._plan(sql, describe=True)
        draws = any(function.volatile for function in self.scalars.values())
        if draws or plan.reads_files or self.planning.tells_time(sql):
            return None
        if any(stage.varies for stage in plan.stages):
            return None
        return tuple(plan.tables.values())

    def _place(self, folder: str) -> Placement:
        """How tasks are placed, on nodes that have the query's folder."""
        placement = self.placement()
        self.cluster.make_folder(folder)
        return placement

    def _execute(
        self,
        plan: _Plan,
        goal: Goal[Result_co],
        started: float,
        planned: float,
        explained: bool,
        warnings: tuple[str, ...],
    ) -> tuple[Result_co, QueryMetrics]:
        folder = self.cluster.folder(f"queries/{next(self._numbers)}")
        run = QueryRun(
            plan.stages,
            lambda: self._held(plan),
            self.cluster.backend,
            self.cluster.store(),
            lambda: self._place(folder),
            folder,
            goal.ending(plan.physical, tuple(column.name for column in plan.bound.schema)),
            self.settings,
            self.definitions,
            tuple(self.scalars.values()),
            self._tell if self.progress_handlers or self._heard_here() else None,
            explained,
            self.cluster.lost_nodes,
            self._threads(self.open_queries.count),
        )
        try:
            run.run()
            result = goal.reached(run)
        finally:
            self.cluster.remove_folder(folder)
        if run.uses_disk():
            self.warn(
                "There is no room in shared memory: shuffle data went to disk, which is slower."
            )
        stages = run.metrics()
        metrics = QueryMetrics(
            stages=len(stages),
            tasks=sum(stage.tasks for stage in stages),
            constrained_tasks=sum(stage.constrained_tasks for stage in stages),
            local_tasks=sum(stage.local_tasks for stage in stages),
            elapsed_s=time.perf_counter() - started,
            planning_s=planned - started,
            warnings=warnings,
            by_stage=stages,
        )
        return result, metrics
