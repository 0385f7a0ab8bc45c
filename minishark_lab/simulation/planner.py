"""The planner of simulated sessions: queries of several shapes have stages that are given.

Planning by DuckDB takes most of a small query's time. So texts of `Query` say in a comment which
stages they have; all other texts, those of statements that write among them, are planned as in
production.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

from minishark.compiler.logical.operators import Values
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import StageOutput
from minishark.compiler.sql.planning import BoundStatement, PlanningDatabase
from minishark.model.catalog import Catalog, Table
from minishark.model.expressions import Schema
from minishark.model.predicates import Pushed
from minishark.query.planner import QueryPlan, QueryPlanner, SharedPlanner, TablesPromisedError
from minishark.query.sinks import Sink
from minishark.query.sources import SourceTable
from minishark_lab.simulation.queries import Query
from minishark_lab.simulation.work import COLUMNS

OPTIONS = PlannerOptions(partitions=3, single_task_rows=0)
_SPLITS = 2  # of a file


class SimulatedPlanner(QueryPlanner):
    """Plans the queries of a session."""

    __slots__ = ()

    def plan(self, sql: str, sink: Sink[Any], *, on_hosts: bool, whole: bool = False) -> QueryPlan:
        query = Query.read(sql)
        if query is None:
            return super().plan(sql, sink, on_hosts=on_hosts, whole=whole)
        assert not whole, "no fragment is ever rejected"
        sources = self.shared.sources.mentioned(query.tables)
        known = self.catalog.at_once()
        tables = [
            _table_of(sources[name]) if name in sources else known.get(name)
            for name in query.tables
        ]
        if promised := tuple(table.name for table in tables if not table.is_computed):
            raise TablesPromisedError(promised)
        stages = tuple(query.stages(tables))
        last = stages[-1].plan
        # As an output, from which nothing can be adapted; constants would be taken as they are.
        output = StageOutput(stages[-1].index, last.distribution, False, last.rows)
        logical = LogicalPlan(cast("Values", output), (), COLUMNS)
        return QueryPlan(
            bound=cast("BoundStatement", _Bound(last.schema)),
            logical=logical,
            physical=replace(last, operator=output),
            stages=stages,
            catalog=Catalog(tables),
            options=OPTIONS,
            has_any_layout=False,
            planned=logical,
            sources=sources,
            source_tables=frozenset(sources),
        )

    def deterministic_inputs(self, sql: str, *, on_hosts: bool) -> tuple[Table, ...] | None:
        query = Query.read(sql)
        if query is None:
            return super().deterministic_inputs(sql, on_hosts=on_hosts)
        if self.shared.sources.known(query.tables):
            return None
        tables = [self.catalog.find(name) for name in query.tables]
        return tuple(table for table in tables if table is not None)


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a query is bound to."""

    schema: Schema


class SimulatedSharedPlanner(SharedPlanner):
    """What the planners of the sessions of an engine share."""

    __slots__ = ()

    def over(self, planning: PlanningDatabase, catalog: Catalog) -> QueryPlanner:
        return SimulatedPlanner(self, planning, catalog)


def _table_of(source: SourceTable) -> Table:
    """A table of all splits of a file."""
    opened = source.opened()
    splits = opened.snapshot.splits(Pushed(), _SPLITS)
    return opened.table(Pushed(), splits, source.name, _SPLITS)
