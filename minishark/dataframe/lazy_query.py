"""LazyQuery: the state behind a DataFrame.

A DataFrame is a LazyQuery with the methods that users call. Modules that implement these methods
work on LazyQueries, or on the SELECTs in them. The objects that users get of a DataFrame, such as
groups, know it as a Frame: of it, they make others by other queries.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from minishark.dataframe.generated_functions import offer_called
from minishark.dataframe.names import ident
from minishark.dataframe.runtime import Runtime
from minishark.dataframe.select import QueryText, Select, relation
from minishark.dataframe.subqueries import unmarked
from minishark.errors import QueryError
from minishark.model.expressions import DUCKDB_TYPE, WIDE_INTEGERS, Schema
from minishark.query.metrics import QueryMetrics
from minishark.tables.cached import CachedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """What `unpersist` needs."""

    select: Select  # the SELECT before `persist` replaced it by a scan of the cached rows
    held: tuple[object, ...]  # the handles that it needs
    cached: CachedRows
    level: Any  # the StorageLevel


@dataclass(slots=True, kw_only=True)
class LazyQuery:
    """A query that runs on demand, an EXPLAIN of one, or rows that are here already."""

    runtime: Runtime  # plans and runs it
    select: Select | QueryText | None = None  # the query; None for local rows
    explain: str | None = None  # "plan" or "analyze" if the rows are an EXPLAIN of `select`
    local_rows: pa.Table | None = None  # the answer of a statement that has run in the front end
    held: tuple[object, ...] = ()  # handles of cached rows, which live as long as their readers
    repartitioned: bool = False  # whether `repartition` made its partitions, or those it reads
    verified: bool = False  # whether every answer is compared with plain DuckDB's
    persisted: Persisted | None = None  # set while `persist` is in effect
    metrics: QueryMetrics | None = None  # of the last run that ended
    rejected: LazyQuery | None = None  # the rows for which the function that made it has failed

    @property
    def is_distributed(self) -> bool:
        """Whether it runs on the cluster; otherwise its rows are local or an EXPLAIN's text."""
        return self.local_rows is None and self.explain is None

    def sql(self) -> str:
        return self.to_select().sql() if self.select is None else self.select.sql()

    def to_select(self) -> Select:
        """The query as a SELECT to build on; rows that are not the cluster's are loaded first."""
        if not self.is_distributed:
            rows = self.local_rows if self.local_rows is not None else self.explanation()
            cached = self.runtime.store_rows(rows)
            self.held = (*self.held, cached)
            self.select = relation(ident(cached.name), cached.schema, cached.name)
            self.local_rows = self.explain = None
        assert self.select is not None, "only local rows have no SELECT"
        made = self.select.select() if isinstance(self.select, QueryText) else self.select
        meanings = self.runtime.dialect.meanings
        if made.source.meanings is meanings or not meanings:
            return made
        meant = replace(made, source=replace(made.source, meanings=meanings))
        if made is self.select:
            self.select = meant
        return meant

    def explanation(self) -> pa.Table:
        mode = "analyze" if self.explain == "analyze" else "all"
        return pa.table({"explain_value": [self.runtime.explain(self.sql(), mode=mode)]})

    def dtypes(self) -> list[tuple[str, str]]:
        if self.local_rows is not None:
            return [(field.name, _type_of(field)) for field in self.local_rows.schema]
        if self.explain:
            return [("explain_value", "VARCHAR")]
        if isinstance(self.select, QueryText):  # needs not become a SELECT, which takes longer
            return [(column.name, column.type) for column in self.select.schema]
        return [(attribute.name, attribute.type) for attribute in self.to_select().attributes]

    def derived(self, select: Select, *others: LazyQuery) -> LazyQuery:
        """A query that was built on this one (and others), bound by DuckDB."""
        return self.over(select.typed(self.schema_of(Select.sql, select)), *others)

    def schema_of(self, text: Callable[..., str], *selects: Select) -> Schema:
        """The columns of the `text` of SELECTs built on this query, bound by DuckDB."""
        outlines = [select.outline() for select in selects]
        if any(map(operator.is_not, outlines, selects)):
            with contextlib.suppress(QueryError):  # the whole text tells where it is wrong
                return self.bind(text(*outlines))
        return self.bind(text(*selects))

    def bind(self, sql: str) -> Schema:
        """The columns of a text built on this query, whose functions are registered first."""
        offer_called(sql, self.runtime)
        return self.runtime.bind(unmarked(sql))

    def over(self, select: Select | QueryText, *others: LazyQuery) -> LazyQuery:
        """A bound query that needs all handles which this one and the others need."""
        named = self.runtime.handles(select.sql())  # in subqueries, too
        held = dict.fromkeys(
            (*self.held, *(item for other in others for item in other.held), *named)
        )
        return LazyQuery(
            runtime=self.runtime,
            select=select,
            held=tuple(held),
            repartitioned=self.repartitioned or any(other.repartitioned for other in others),
        )


def wide_integers(query: LazyQuery) -> list[str]:
    """The columns of 128-bit integers, which Arrow has as decimals."""
    return [name for name, type_ in query.dtypes() if type_ in WIDE_INTEGERS]


def _type_of(field: pa.Field) -> str:
    type_: bytes | None = (field.metadata or {}).get(DUCKDB_TYPE)
    return str(field.type) if type_ is None else type_.decode()


class Frame:
    """A query that users hold."""

    def __init__(self, query: LazyQuery) -> None:
        self._query = query


F = TypeVar("F", bound=Frame)


def query_of(frame: Frame) -> LazyQuery:
    return frame._query  # noqa: SLF001 - hidden from users only


def framed(query: LazyQuery, like: F) -> F:
    """A query as a frame of the same kind as another."""
    return type(like)(query)
