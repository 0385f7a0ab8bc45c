"""Tables that only DataFrames know: made when first needed, gone when none needs them.

A promise is a name with a recipe. The planning database knows its columns, so statements over it
bind; the first query that reads it makes it. `forget` takes the rows away and leaves the promise.

    promised ──make──► made ──forget──► promised ── its last handle dies ──► gone
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from minishark.catalog import Partition, Table
from minishark.errors import PartitionsLostError
from minishark.expressions import Column, Schema
from minishark.query.planner import Queries
from minishark.query.sinks import Layout
from minishark.statistics import ColumnStatistics, TableStatistics
from minishark.tables.kept import Keep, as_stored, stored_schema, table_schema
from minishark.tables.tables import Tables, check_layout, named_columns
from minishark.worker.protocol import TaskFunction


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a table is made.

    Attributes:
        sql: the query.
        schema: the table's columns.
        layout: how it is to lie.
        function: what the rows go through.
        needs: what must live as long as the recipe.
    """

    sql: str
    schema: Schema
    layout: Layout
    function: TaskFunction | None = None
    needs: tuple[object, ...] = ()


class Handle:
    """A table's DataFrames hold this; when it dies, the table goes."""

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(slots=True)
class _Derived:
    """A table, or the promise of one. It must not hold its handle.

    `basis` is the content of what it was made of, if the recipe gives the same rows of that again.
    `repeats` is the content that it had when it was lost.
    """

    recipe: Recipe | None
    made: bool = False
    basis: tuple[str, ...] | None = None
    repeats: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class DerivedTables:
    """The tables of a session that have no name for users.

    Attributes:
        tables: stores them.
        queries: runs the recipes.
    """

    tables: Tables
    queries: Queries
    _found: dict[str, _Derived] = field(default_factory=dict)
    _released: deque[str] = field(default_factory=deque)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def promise(self, recipe: Recipe) -> Handle:
        """A table that will be there when a query reads it."""
        handle = self._new(_Derived(recipe))
        self.tables.publish(_promised(handle.name, recipe.schema), replace=False)
        return handle

    def loaded(self, data: Any, partitions: int | None = None) -> Handle:
        """A table of rows that are here."""
        handle = self._new(_Derived(None, made=True))
        self.tables.create(handle.name, data, partitions=partitions)
        return handle

    def _new(self, derived: _Derived) -> Handle:
        # Names end in a mark, so that none is the beginning of another.
        handle = Handle(f"{KEPT_PREFIX}{next(self._numbers)}_")
        self._found[handle.name] = derived
        # A finalizer may run anywhere, also where locks are held: `sweep` does the work.
        weakref.finalize(handle, self._released.append, handle.name).atexit = False
        return handle

    def sweep(self) -> None:
        """Drop the tables whose last handle has died."""
        while self._released:
            name = self._released.popleft()
            derived = self._found.pop(name)
            if name in self.tables.catalog:  # else loading it failed
                self.tables.drop(name)
            del derived  # with what its recipe needs, which may release more

    def is_made(self, name: str) -> bool:
        """Whether a table's rows are there, or it is none of these tables."""
        derived = self._found.get(name)
        return derived is None or derived.made

    def make(self, names: Iterable[str]) -> bool:
        """Make those of the tables that are only promised; whether there were any."""
        promised = [name for name in dict.fromkeys(names) if not self.is_made(name)]
        for name in promised:
            derived = self._found[name]
            with derived.lock:
                if not derived.made and derived.recipe is not None:
                    derived.basis = self._basis(derived.recipe)
                    self._make(name, derived.recipe, derived.repeats)
                    derived.made = True
                    derived.repeats = None
        return bool(promised)

    def _basis(self, recipe: Recipe) -> tuple[str, ...] | None:
        """What the rows of a recipe depend on; None if on more than tables and settings."""
        if not self.tables.cluster.loses_files or recipe.function is not None:
            return None  # there it is of no use
        read = self.queries.repeatable_over(recipe.sql)
        if read is None:
            return None
        return (*self.queries.settings, *map(self.tables.content, read))

    def _make(self, name: str, recipe: Recipe, content: str | None) -> None:
        with self.tables.folder() as folder:
            goal = Keep(self.tables, name, recipe.schema, folder, recipe.layout, recipe.function)
            table, _ = self.queries.run_for(recipe.sql, goal)
            if content is not None:
                self.tables.repeats(table, content)
            self.tables.publish(table, replace=True)

    def forget(self, name: str) -> None:
        """Free a table's rows; a query that needs them makes them again."""
        derived = self._found[name]
        with derived.lock:
            self._forget(name, derived)

    def _forget(self, name: str, derived: _Derived) -> None:
        if derived.made and derived.recipe is not None:
            derived.made = False
            self.tables.publish(_promised(name, derived.recipe.schema), replace=True)

    def restore(self, lost: PartitionsLostError) -> None:
        """Make a table anew whose partitions are lost, now or when it is needed.

        Raises:
            PartitionsLostError: its rows might be others than before, or there is no way.
        """
        derived = self._found.get(lost.table)
        if derived is None:
            self.tables.restore(lost)
            return
        with derived.lock:
            table = self.tables.catalog.get(lost.table)
            if not any(partition.file in lost.files for partition in table.partitions):
                return  # another thread was faster
            recipe = derived.recipe
            if recipe is None or derived.basis is None or self._basis(recipe) != derived.basis:
                why = ", and computing it again might give other rows"
                raise PartitionsLostError("of a DataFrame", lost.partitions, lost.files, why)
            derived.repeats = self.tables.content(table)
            self._forget(lost.table, derived)

    def settle(self, name: str) -> None:
        """Make a table and forget its recipe, with all that it needed."""
        self.make((name,))
        self._found[name].recipe = None

    @property
    def made(self) -> list[Table]:
        """The tables whose rows are there."""
        with contextlib.suppress(RuntimeError):  # one more came meanwhile
            return [self.tables.catalog.get(n) for n, d in self._found.items() if d.made]
        return self.made


def recipe(
    sql: str,
    schema: Schema,
    layout: Layout,
    function: TaskFunction | None = None,
    needs: tuple[object, ...] = (),
) -> Recipe:
    """A recipe for the rows of a query.

    Args:
        sql: the query.
        schema: its columns.
        layout: how the rows are to lie; names of columns in any case.
        function: what they go through.
        needs: what must live as long as the recipe.

    Raises:
        CatalogError: `layout` names a column that there is not.
        OptionError: it has a number that makes no sense.
    """
    if function is None:
        sql, kept = as_stored(sql, schema), stored_schema(table_schema(schema))
    else:
        kept = tuple(Column(name, type_) for name, type_ in function.returns)
    check_layout(layout.partitions, layout.replicas)
    columns = [column.name for column in kept]
    keys = named_columns("of the DataFrame", layout.partition_by, columns)
    return Recipe(sql, kept, dataclasses.replace(layout, partition_by=keys), function, needs)


def _promised(name: str, schema: Schema) -> Table:
    """What the catalog says of a table that is not there yet: it has columns."""
    nowhere = Partition(0, f"promised/{name}/0.arrow", (), 0, 0)
    statistics = TableStatistics(0, 0, tuple(ColumnStatistics() for _ in schema))
    return Table(name, schema, (nowhere,), (), statistics)


KEPT_PREFIX = "_kept_"
"""How the names of tables start that only DataFrames know."""
