"""What later statements rely on: views, macros, types, settings, variables, Python functions.

Each is known in three places: the planning database, which binds statements; the scratch database;
and the environment that travels to executors with each stage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from minishark.compiler.sql.statements import (
    CreateEnum,
    SetVariable,
    asks_session,
    dropped_first,
    session_setting,
)
from minishark.compiler.sql.tokens import mentioned
from minishark.dataframe.lazy_query import LazyQuery
from minishark.dataframe.names import ident
from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    OptionError,
    QueryError,
    UnsupportedError,
)
from minishark.session.engine import Engine
from minishark.session.scope import Scope
from minishark.tables.memory_store import MemoryStore
from minishark.tables.memory_transaction import (
    NOT_IN_TRANSACTION,
    Defined,
    MemoryTransaction,
    in_memory,
)
from minishark.tables.scratch_store import ScratchTables
from minishark.worker.protocol import ScalarFunction
from minishark.worker.scalars import CurrentTask, callable_of, create_function, uncalled

# What DuckDB says of a name that there is already, or that is another kind of thing's.
_TAKEN = ("already exists", "Existing object", "depend on itself", "Can only modify")
# What it says of a setting that no connection has for itself.
_GLOBAL = ("cannot be set locally", "cannot be reset locally", "only be set globally")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """The definitions and settings of a session."""

    engine: Engine  # knows those of all sessions
    scope: Scope  # has the session's own
    named: MemoryStore  # the tables, whose names views can't have
    elsewhere: ScratchTables  # runs definitions of other schemas
    views: dict[str, LazyQuery] = field(default_factory=dict)  # by name in lower case
    # What the session's own definitions need, by their names in lower case.
    _held: dict[str, tuple[object, ...]] = field(default_factory=dict)

    def define(self, sql: str, *, own: bool = False, view: str = "", drops: bool = False) -> None:
        """Run a definition (of a view, macro, type ...), for all later statements.

        Args:
            sql: the statement.
            own: whether it counts for statements of this session only.
            view: the view that it creates, replaces or drops.
            drops: whether it drops something.
        """
        open_, scope = in_memory(self.scope.transaction), self.scope
        in_catalog = not drops and scope.scratch.reads_catalog(sql)
        is_here = in_catalog or (not drops and asks_session(sql))
        if open_ is not None and (not view or is_here or scope.scratch.is_elsewhere):
            raise UnsupportedError(NOT_IN_TRANSACTION)
        with self.engine.up_to_date(scope):
            if open_ is not None:
                with self.engine.writing:
                    self._define_in(open_, sql, own=own, view=view, drops=drops)
                return
            try:
                self._define_now(sql, own=own, view=view, drops=drops, is_here=is_here)
            finally:
                scope.scratch.note_catalog(reads=in_catalog)

    def _define_now(self, sql: str, *, own: bool, view: str, drops: bool, is_here: bool) -> None:
        scope = self.scope
        if scope.scratch.is_elsewhere:
            self.elsewhere.execute(sql)
            self._keep(sql, own=own, view=view)
            return
        if view and not drops and self._is_alone(view) and dropped_first(sql) is None:
            scope.scratch.define(sql, alone=True)  # which says that there is one already
            return
        is_new = not scope.planning.has_view(view) or dropped_first(sql) is not None
        if is_here and is_new:
            self._define_alone(sql, own=own, view=view)
            return
        exists = view != "" and scope.planning.has_relation(view)
        try:
            scope.planning.define(sql, own=own)
        except QueryError as error:
            # It may name what only the scratch database has: then it is defined there only.
            if not scope.scratch.has_own or _says(error, _TAKEN):
                raise
            self._define_alone(sql, own=own, view=view)
            return
        if exists and not drops and dropped_first(sql) is None:
            return  # IF NOT EXISTS
        self.views.pop(view.lower(), None)
        self._publish(sql, own=own, view=view, drops=drops)

    def _is_alone(self, view: str) -> bool:
        """Whether only the scratch database has a view of this name."""
        scope = self.scope
        return scope.scratch.has_view(view) and not scope.planning.has_view(view)

    def _define_alone(self, sql: str, *, own: bool, view: str) -> None:
        """Run a definition in the scratch database, where queries that name it run from now on."""
        scope = self.scope
        scope.scratch.define(sql, alone=True, own=own, view=view)
        self._keep(sql, own=own, view=view)
        replaced = dropped_first(sql)
        if replaced is not None:  # what the planning database has of that name counts no more
            scope.planning.define(replaced, own=own)
            (scope.define if own else self.engine.add_definition)(replaced)
            self.views.pop(view.lower(), None)

    def _publish(self, sql: str, *, own: bool, view: str, drops: bool) -> None:
        """Let the scratch database and executors know what the planning database accepts."""
        self.scope.scratch.define(sql, own=own, view=view, drops=drops)
        (self.scope.define if own else self.engine.add_definition)(sql)
        self._keep(sql, own=own, view=view)

    def _keep(self, sql: str, *, own: bool, view: str) -> None:
        """Keep the sources that a definition names as long as it is there."""
        if own:
            self._held[(view or sql).lower()] = self.engine.sources.handles(sql)
        else:
            self.engine.sources.keep(view or sql, sql)

    def _define_in(
        self, open_: MemoryTransaction, sql: str, *, own: bool, view: str, drops: bool
    ) -> None:
        """Run the definition of a view in a transaction."""
        scope, held, views = self.scope, self.engine.sources.handles(sql), dict(self.views)
        scope.planning.define_uncommitted(sql, own=own)
        scope.scratch.define_uncommitted(sql, own=own, drops=view if drops else "")
        self.views.pop(view.lower(), None)

        def publish(_: object = held) -> None:
            self._publish(sql, own=own, view=view, drops=drops)

        def undo() -> None:
            self.views.clear()
            self.views.update(views)

        open_.define(Defined(view, scope.scratch.defined_by(view), publish, undo))

    def set(self, sql: str) -> None:
        with self.engine.up_to_date(self.scope):
            local = session_setting(sql)
            if local is None:
                self._set_for_all(sql)
                return
            try:
                self.scope.change_setting(local)
            except QueryError as error:
                if not _says(error, _GLOBAL):
                    raise
                self._set_for_all(sql)

    def _set_for_all(self, sql: str) -> None:
        if self.scope.is_apart:
            raise UnsupportedError(
                "It would change a setting of other sessions: set it in the program's first "
                "session, or write SET without GLOBAL if each session can have its own."
            )
        self.engine.change_setting(sql, self.scope)

    def set_variable(self, statement: SetVariable) -> None:
        """Run a SET VARIABLE, whose value may come from a query."""
        with self._evaluating(statement.value):
            setting = self.scope.scratch.set_variable(statement)
            self.scope.planning.change_setting(setting)

    def create_enum(self, statement: CreateEnum) -> None:
        if in_memory(self.scope.transaction) is not None:
            raise UnsupportedError(NOT_IN_TRANSACTION)
        with self._evaluating(statement.query):
            enum = self.scope.scratch.create_enum(statement)
            self.scope.planning.define(enum)
            self.engine.add_definition(enum)

    @contextlib.contextmanager
    def _evaluating(self, value: str) -> Iterator[None]:
        """While a value is computed, which may read promised tables."""
        scope = self.scope
        with self.engine.up_to_date(scope):
            named = scope.planning.tables_in(f"SELECT {value}")  # in which views are seen through
            self.engine.compute(named, scope)
            yield

    # Views

    def create_view(self, name: str, query: LazyQuery, *, replace: bool) -> None:
        self.engine.check_open(self.scope)
        if name.lower() in (table.lower() for table in self.named.names):
            raise CatalogError(f"There is a table called {name!r}; a view needs another name.")
        if self.scope.planning.has_view(name):
            if not replace:
                raise AlreadyExistsError(f"There is a view called {name!r} already.")
            if mentioned(query.sql(), (name,)):
                raise CatalogError(f"The view {name!r} would read itself; use table({name!r}).")
            self.drop_view(name)
        own = self.scope.is_apart
        self.define(
            f"CREATE {'TEMP ' * own}VIEW {ident(name)} AS {query.sql()}", own=own, view=name
        )
        self.views[name.lower()] = query

    def drop_view(self, name: str) -> bool:
        if not self.scope.planning.has_view(name):
            return False
        own = self.scope.planning.has_own(name)
        self.define(f"DROP VIEW {ident(name)}", own=own, view=name, drops=True)
        return True

    # Python functions

    def register_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        engine, name = self.engine, function.name
        engine.check_open(self.scope)
        if name in engine.planner.functions:
            self.remove_function(name)
        elif engine.planning.has_function(name):
            raise OptionError(f"DuckDB has a function {name!r}; choose another name.")
        called = callable_of(function, fn, CurrentTask())
        engine.planning.change(lambda con: create_function(con, function, uncalled(function, fn)))
        engine.scratch.change(lambda con: create_function(con, function, called))
        engine.set_functions({**engine.planner.functions, name: function})

    def offer_function(self, function: ScalarFunction, fn: Callable[..., Any]) -> None:
        if self.engine.planner.functions.get(function.name) != function:
            self.register_function(function, fn)

    def remove_function(self, name: str) -> None:
        engine = self.engine
        engine.check_open(self.scope)
        if name not in engine.planner.functions:
            raise OptionError(f"There is no registered function {name!r}.")
        engine.set_functions({n: f for n, f in engine.planner.functions.items() if n != name})
        for database in (engine.planning, engine.scratch):
            database.change(lambda con: con.remove_function(name))


def _says(error: QueryError, phrases: Sequence[str]) -> bool:
    return any(phrase in str(error) for phrase in phrases)
