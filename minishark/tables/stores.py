"""What a store of tables offers, so that statements change its tables; the stores of a session.

Tables are in memory (`memory_store`), in a warehouse (`warehouse/store`) or in the scratch database
(`scratch_store`). Each is a `TableStore`; a statement goes to the first that takes it. How one
changes rows is known once (`changes`); what it needs of a table is a `ChangedTable`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa
from numpy.typing import NDArray

from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.statements import ChangeRows, CreateTableAs, ParsedStatement
from minishark.errors import PartitionsLostError
from minishark.model.catalog import Catalog, Constraints
from minishark.model.expressions import Schema, quote
from minishark.query.sinks import Layout, Sink
from minishark.query.sources import SourceTables
from minishark.tables.cached import CachedRows, CachedTables, CachePlan
from minishark.tables.merging import Merger
from minishark.tables.scratch_database import NewKeys, ScratchDatabase, Shell, StoppedBy
from minishark.tables.tables import Observed, Tables
from minishark.tables.transaction import SessionTransaction
from minishark.worker.columns import integers

Result = TypeVar("Result")
Explained: TypeAlias = ChangeRows | CreateTableAs
Made = TypeVar("Made")  # what a store has made of a change that is not published yet


class RunQuery(Protocol):
    """Runs a query of a session to its end."""

    def __call__(
        self,
        sql: str,
        sink: Sink[Result],
        /,
        *,
        catalog: Catalog | None = None,
        told: str = "",
    ) -> Result:
        """Run it.

        Args:
            sql: the query.
            sink: what becomes of its rows.
            catalog: the tables that it reads, if others than those of the session.
            told: the statement that events tell, if the query is a part of one.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContext:
    """What a session hands down to its stores."""

    tables: Tables
    cached: CachedTables
    sources: SourceTables
    merger: Merger
    planning: PlanningDatabase  # the session's connections
    scratch: ScratchDatabase
    transaction: SessionTransaction
    writing: AbstractContextManager[Any]  # held while a statement changes tables, before `loading`
    loading: AbstractContextManager[Any]  # held while tables of the scratch database are loaded
    run: RunQuery
    explain: Callable[[str, Catalog | None], str]  # the stages of a query over these tables
    bind: Callable[[str], Schema]  # the columns of a query
    up_to_date: Callable[[], AbstractContextManager[None]]  # what every statement relies on
    check_open: Callable[[], None]
    compute: Callable[[Sequence[str]], None]  # promised tables
    promise: Callable[[CachePlan], CachedRows]
    restore: Callable[[PartitionsLostError], None]
    on_hosts: Callable[[], bool]
    warn: Callable[[str], None]
    observed: Observed  # gives the observer of a load
    searching: Callable[[], AbstractContextManager[StoppedBy]]  # gives what stops a search

    @property
    def catalog(self) -> Catalog:
        """The tables in memory as the session's statements see them."""
        store = self.transaction.store
        view = None if store is None else store.view
        return self.tables.catalog if view is None else view


class TableStore(ABC):
    """Tables of one kind, for one session."""

    __slots__ = ()

    @abstractmethod
    def run(self, statement: ParsedStatement) -> pa.Table | ParsedStatement:
        """Run a statement about its tables: the answer.

        Others are given back, in words in which the stores after it know this one's tables.

        Raises:
            UnsupportedError: it does what can't be done to these tables.
        """

    @abstractmethod
    def explain(self, statement: Explained) -> str | ParsedStatement:
        """How a statement about one of its tables would run; others are given back, as by `run`."""

    def begin(self, *, is_lazy: bool) -> bool:
        """Begin a transaction over its tables; whether it has such.

        One that is lazy commits what it can't hold, as long as it has changed nothing.
        """
        return False

    # Tables by the names that Python uses

    @property
    def names(self) -> list[str]:
        """Its tables."""
        return []

    def written(self, name: str) -> str | None:
        """What SQL calls one of its tables; None if there is none of that name."""
        return None

    def relation(self, name: str) -> str | None:
        """What queries read for one of its tables, if they know it by another name than SQL."""
        return None

    def size(self, name: str) -> tuple[int, int] | None:
        """The rows and stored bytes of one of its tables, if they are known without reading it."""
        return None

    def create(self, name: str, given: GivenRows) -> bool:
        """Create a table if a new one of that name belongs here; whether it does."""
        return False

    def clear_cache(self) -> int:
        """Free the memory of those tables that are elsewhere, too; how many."""
        return 0


@dataclass(frozen=True, slots=True)
class GivenRows:
    """What a program has a table made of.

    Attributes:
        rows: a `SelectedRows`, or anything else that `Session.create_table` takes.
        layout: how rows in memory are partitioned.
        replace: whether it may replace a table.
        on_progress: called with the number of tasks done and of all tasks.
    """

    rows: Any
    layout: Layout
    replace: bool
    on_progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """The rows of a query."""

    sql: str


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores of a session, in the order in which they are asked."""

    stores: tuple[TableStore, ...]

    def run(self, statement: ParsedStatement) -> pa.Table | ParsedStatement:
        """The answer to a statement about tables, or the statement as the session can run it."""
        for store in self.stores:
            answered = store.run(statement)
            if isinstance(answered, pa.Table):
                return answered
            statement = answered
        return statement

    def explain(self, statement: Explained) -> str:
        """How a statement would run."""
        for store in self.stores:
            answered = store.explain(statement)
            if isinstance(answered, str):
                return answered
            assert isinstance(answered, ChangeRows | CreateTableAs), "it is as it was"
            statement = answered
        message = "the last store tells of all of them"
        raise AssertionError(message)

    def begin(self, *, is_lazy: bool = False) -> None:
        """Begin a transaction."""
        any(store.begin(is_lazy=is_lazy) for store in self.stores)

    @property
    def names(self) -> list[str]:
        """All tables that users know."""
        return [name for store in reversed(self.stores) for name in store.names]

    def written(self, name: str) -> str:
        """What SQL calls a table."""
        names = (store.written(name) for store in self.stores)
        return next((name for name in names if name is not None), quote(name))

    def relation(self, name: str) -> str | None:
        """What queries read for a table, if they know it by another name than SQL."""
        relations = (store.relation(name) for store in self.stores)
        return next((relation for relation in relations if relation is not None), None)

    def size(self, name: str) -> tuple[int | None, int | None]:
        """The rows and stored bytes of a table, as far as they are known without reading it."""
        sizes = (store.size(name) for store in self.stores)
        return next((size for size in sizes if size is not None), (None, None))

    def create(self, name: str, given: GivenRows) -> None:
        """Create a table, as `TableStore.create` does."""
        any(store.create(name, given) for store in self.stores)

    def clear_cache(self) -> None:
        """Free the memory of those tables that are elsewhere, too."""
        for store in self.stores:
            store.clear_cache()


@dataclass(frozen=True, slots=True)
class NumberedRows:
    """A relation of a table's rows with their numbers."""

    relation: str  # as SQL names it
    catalog: Catalog | None = None  # in which queries find it, if not in the session's


@dataclass(frozen=True, slots=True)
class Stored(Generic[Made]):
    """What tasks have stored of a change, and how many rows it has changed or adds."""

    made: Made
    rows: int


class ChangedTable(ABC, Generic[Made]):
    """A version of a table that a statement changes: what its store offers for that.

    Rows have numbers, and are in parts that are stored again as a whole if many of their rows
    change. What is made of a change is not seen before it is published.

    Attributes:
        called: what statements call it, without a schema.
        schema: its columns.
        shell: an empty table of DuckDB's like it.
        constraints: what is said of its rows, but for what is tested where they are stored.
        part: an expression over `ROW_NUMBER`.
        placed_by: the columns that decide in which part a row is.
        many: how many rows a patch has at least that tasks apply.
    """

    called: str
    schema: Schema
    shell: Shell
    constraints: Constraints
    part: str
    placed_by: tuple[str, ...] = ()
    many = 0

    def in_scratch(self, sql: str) -> str:
        """A statement on it as the scratch database runs it on the shell."""
        return sql

    @abstractmethod
    def numbered(self, *, is_alone: bool) -> AbstractContextManager[NumberedRows]:
        """Its rows with their numbers, for queries that read no other table or (`is_alone`) do."""

    def few_rows(self, search: Callable[[str], str]) -> pa.Table | None:
        """At least the rows that a search finds, and their numbers; None if tasks search better.

        `search` is a query of these rows over a relation.
        """
        return None

    def rows_at(self, numbers: NDArray[Any]) -> pa.Table | None:
        """The rows of these numbers, with these; None if a query is to find them."""
        return None

    def to_be_marked(self, search: Callable[[str], str], *, sets: bool) -> str | None:
        """The relation of its rows if tasks are to mark them; None if a patch is needed, or better.

        `search` is a query of the rows to be marked; columns of them are set, or they are deleted.
        """
        return None

    def marked(
        self, query: str, columns: tuple[int, ...], *, told: str
    ) -> NDArray[Any] | Stored[Made] | None:
        """It after a change without a list of rows: the numbers of rows if it concerns few.

        Args:
            query: gives a mark for each row of the relation, and what `columns` have afterwards.
            columns: the positions of the columns that are set; none to delete marked rows.
            told: the statement.

        Returns:
            None if a patch is needed.
        """
        raise NotImplementedError

    @abstractmethod
    def emptied(self) -> Stored[Made]:
        """It without rows."""

    @abstractmethod
    def without(self, numbers: NDArray[Any]) -> Stored[Made]:
        """It without the rows of these numbers."""

    @abstractmethod
    def patched(
        self, query: str, columns: tuple[int, ...], rows: NumberedRows, *, many: int, told: str
    ) -> pa.Table | Stored[Made]:
        """It after a patch, unless that is small: then the patch.

        Args:
            query: gives the patch: numbers of rows, kinds, values, and the rows' parts.
            columns: the positions of the columns that it sets.
            rows: what the query reads.
            many: how many rows it has at least that tasks apply.
            told: the statement.
        """

    @abstractmethod
    def added(
        self, query: str, rows: NumberedRows | None = None, *, told: str
    ) -> pa.Table | Stored[Made]:
        """The rows of a query to be added: in the front end, unless tasks have stored them."""

    def wrong_rows(self, added: Stored[Made]) -> pa.Table | None:
        """Some of the rows to be added that break a constraint, if any do."""
        return None

    def holders(self, keys: NewKeys, *, are_likely: bool = False) -> pa.Table:
        """The rows that have one of these keys, with their numbers; they may be likely."""
        raise NotImplementedError

    @abstractmethod
    def publish(self, patched: Stored[Made] | None, added: Stored[Made] | pa.Table | None) -> None:
        """Make the next version: after a patch, with more rows, or both.

        Args:
            patched: what `without`, `patched` or `emptied` gave.
            added: what `added` gave, or rows whose last column has their places by the shell.
        """

    def discard(self, *made: Stored[Made] | pa.Table | None) -> None:
        """Forget what was made and is not published, if not done when a change is undone."""


def counted(rows: int) -> pa.Table:
    """DuckDB's answer to a statement that changes rows: their number."""
    return pa.table({"Count": integers([rows])})
