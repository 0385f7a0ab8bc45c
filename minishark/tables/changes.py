"""INSERT, DELETE, UPDATE and MERGE on the tables of any store, at the cost of what changes.

DuckDB says what a statement means: an INSERT runs in the scratch database, on an empty table with
the columns, defaults and constraints of the real one, and the rows that are in it afterwards are
added to that. A query that gives these rows runs on the cluster before; if they are many, tasks
store them, and queries check that they meet the constraints: if they do not, DuckDB says so as
above.

What the others do is a patch: the numbers of rows, and what becomes of each, as a query on the
cluster finds out. Where it says all, tasks apply it if it is large. Otherwise the statement runs in
DuckDB on a table that has only the rows that are concerned: these are deleted, and what is left of
them is added, with rows that a MERGE adds. In a table of few rows, the scratch database finds them.

A key (PRIMARY KEY, UNIQUE) is that of one row only: the store looks for rows with the keys that a
statement has made. If there are some, the statement runs again on a table that has these rows, too,
where DuckDB says what is wrong, or does what ON CONFLICT says. That is repeated while there are
others, as what it computes may vary.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.compiler.sql import change_queries as queries
from minishark.compiler.sql.changes import Change, Changed, Delete, Insert, Merge
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.tokens import mentioned
from minishark.errors import DataError, DataValueError, QueryError, UnsupportedError
from minishark.model.catalog import ROW_NUMBER, Catalog
from minishark.model.expressions import Schema, quote
from minishark.query.sinks import CollectRows
from minishark.tables.scratch_database import (
    NO_CATALOG,
    ROWS,
    MadeRows,
    NewKeys,
    ScratchDatabase,
    Shell,
    StoppedBy,
)
from minishark.tables.stores import (
    ChangedTable,
    NumberedRows,
    RunQuery,
    StoreContext,
    Stored,
    counted,
)
from minishark.worker.columns import as_numbers

_NEVER = sys.maxsize
_RUNS_MAX = 8  # of a statement whose rows have keys that stored rows have
_CANDIDATES_MAX = 1_000  # rows that may be concerned, which are not searched once more
Made = TypeVar("Made")


class NotHereError(Exception):
    """A change that only DuckDB can make, on all rows of the table."""

    def __init__(self, reason: str, error: UnsupportedError | QueryError | None = None) -> None:
        super().__init__(reason)
        self.error = error or UnsupportedError(reason)
        """What to tell users if the table has no other way."""


@contextlib.contextmanager
def _left_to_duckdb() -> Iterator[None]:
    """A block whose errors DuckDB tells better, if they are any: it may know more."""
    try:
        yield
    except (UnsupportedError, QueryError) as error:
        raise NotHereError(str(error), error) from error


ON_ALL_ROWS = "The session's own DuckDB runs it, on all rows of the tables that it names."
_ADDED = "The session's own DuckDB makes the rows, which are added to the table."
_QUERIED = (
    "This query gives rows; tasks store them if they are many, and else the front end adds them. "
    "Queries find out whether they meet the constraints, if there are some."
)
_CONFLICTS = (
    "This query gives rows. The session's own DuckDB does with them what the statement says, on a "
    "table that has only the stored rows with their keys."
)
_EMPTIED = "All rows are deleted, without a look at them."
_SEARCHED_HERE = "The front end looks for the rows that it concerns, as few come into question."
_SEARCHED = "This query finds the rows that it concerns."
_PATCHED = (
    "This query says what becomes of which rows; if they are many, tasks store the parts of the "
    "table again that have them."
)
_MARKED = (
    "This query says of each row whether it changes, and gives its new values, in a task for each "
    "partition; if many change, tasks store the parts of the table again that have them."
)
_IN_SHELL = "The session's own DuckDB changes them, on a table that has only these rows."


@dataclass(frozen=True, slots=True)
class Changes:
    """Runs statements that change rows; the caller lets one write a table at a time."""

    planning: PlanningDatabase
    scratch: ScratchDatabase
    run: RunQuery
    bind: Callable[[str], Schema]
    searching: Callable[[], contextlib.AbstractContextManager[StoppedBy]]

    @classmethod
    def of(cls, context: StoreContext, run: RunQuery, bind: Callable[[str], Schema]) -> Changes:
        """Those of a store, whose queries are run and bound by these."""
        return cls(
            planning=context.planning,
            scratch=context.scratch,
            run=run,
            bind=bind,
            searching=context.searching,
        )

    def explain(
        self,
        sql: str,
        change: Change,
        table: ChangedTable[Any],
        stages: Callable[[str, Catalog | None], str],
    ) -> str:
        """How `apply` would run a statement; `stages` gives those of a query, which does not run.

        Raises:
            NotHereError: as `apply`, as far as that is known before it runs.
        """
        self._check(sql, change, table)
        self._check_bound(sql, change, table)
        if isinstance(change, Insert):
            if self._reads_nothing(sql, change, table):
                return _ADDED
            with _left_to_duckdb():
                is_stored = not (change.otherwise or change.clauses)
                typed = self._typed(change, table) if is_stored else None
                query = f"{change.ctes}{change.query}" if typed is None else typed
                return f"{_CONFLICTS if typed is None else _QUERIED}\n{stages(query, None)}"
        if _empties(change):
            return _EMPTIED
        with _left_to_duckdb():
            target = _target(table)
            is_patch = self._is_patch(change, table, target)
            search = queries.search_of(change)
            is_last = self._is_last(sql, change, search, is_patch=is_patch)
            is_done = isinstance(change, Delete) and not change.returning
            if not is_last and self._searchable_here(change, table, search) is not None:
                return _SEARCHED_HERE if is_done else f"{_SEARCHED_HERE} {_IN_SHELL}"
            marks = self._marks(change, table, target) if is_patch and not is_last else None
            if marks is not None:
                return f"{_MARKED}\n{stages(marks[0], None)}"
            with table.numbered(is_alone=not change.may_read) as rows:
                patched = target if is_patch else None
                query, _ = self._patch_query(change, table, patched, rows)
                how = _PATCHED if is_patch else f"{_SEARCHED} {_IN_SHELL}"
                return f"{how}\n{stages(query, rows.catalog)}"

    def apply(self, sql: str, change: Change, table: ChangedTable[Any]) -> pa.Table:
        """Run a statement; its answer.

        Raises:
            NotHereError: only DuckDB can run it, on all rows of the table; nothing was changed.
        """
        self._check(sql, change, table)
        if isinstance(change, Insert):
            return self._insert(sql, change, table)
        return self._changed(sql, change, table)

    def _check(self, sql: str, change: Change, table: ChangedTable[Any]) -> None:
        is_asked = not isinstance(change, Insert) or change.returning
        is_column = any(column.name.lower() == "rowid" for column in table.schema)
        if is_asked and not is_column and mentioned(sql, ("rowid",)):
            raise NotHereError("rowid is of DuckDB's own tables, which number their rows.")
        if self.scratch.reads_catalog(change.clauses if isinstance(change, Insert) else sql):
            raise NotHereError(NO_CATALOG)

    def _check_bound(self, sql: str, change: Change, table: ChangedTable[Any]) -> None:
        """Raise what is wrong with a statement's names and types; macros may read other tables."""
        is_alone = not (change.may_read or self.planning.names_definition(sql))
        self.scratch.check(table.in_scratch(sql), table.shell, is_alone=is_alone)

    # INSERT

    def _insert(self, sql: str, change: Insert, table: ChangedTable[Made]) -> pa.Table:
        insert, given, likely = table.in_scratch(sql), None, None
        if not self._reads_nothing(sql, change, table):
            with _left_to_duckdb():
                if not (change.otherwise or change.clauses or self.scratch.reads_catalog(sql)):
                    added = self._selected(sql, change, table)
                    if isinstance(added, pa.Table):
                        change, given = queries.all_columns(change), added
                    elif added is not None and self._is_right(change, table, added):
                        table.publish(None, added)
                        return counted(added.rows)
                if given is None:
                    query = f"{change.ctes}{change.query}"
                    given = self.run(query, CollectRows(lossless=True), told=sql)
            insert = queries.of_rows(change, (table.shell.name,), quote(ROWS))
            likely = self._conflicting(change, table, given) if change.on_conflict else None
        return self._published(
            table,
            lambda stored: self.scratch.insert(insert, table.shell, given, stored),
            likely,
            are_likely=change.on_conflict,
        )

    def _conflicting(
        self, change: Insert, table: ChangedTable[Made], given: pa.Table
    ) -> pa.Table | None:
        """The stored rows with the keys of rows that are to be added, where these have whole ones.

        Not for sure all, nor these only.
        """
        names = given.column_names if change.by_name else change.columns
        named = names or [column.name for column in table.schema]
        places = {name.lower(): place for place, name in enumerate(named)}
        found = []
        for columns in table.shell.keys:
            positions = [places.get(name.lower(), len(places)) for name in columns]
            if all(p < len(places) and _is_plain(given.schema.field(p).type) for p in positions):
                as_texts = pa.schema([(name, pa.string()) for name in columns])
                texts = given.select(positions).rename_columns([*columns]).cast(as_texts)
                found.append(table.holders(NewKeys(columns, texts.drop_null()), are_likely=True))
        filled = [rows for rows in found if rows.num_rows]
        return _once(filled) if filled else None

    def _reads_nothing(self, sql: str, change: Insert, table: ChangedTable[Any]) -> bool:
        """Whether DuckDB alone makes the rows, as they are of no table."""
        surely = not change.may_read
        if not self.scratch.reads_catalog(sql) and self.planning.reads_nothing(
            table.in_scratch(sql), surely=surely
        ):
            return True
        if not change.query:
            reason = "DEFAULT VALUES may call macros, which only the session's database has."
            raise NotHereError(reason)
        return False

    def _selected(
        self, sql: str, change: Insert, table: ChangedTable[Made]
    ) -> pa.Table | Stored[Made] | None:
        """The rows of an INSERT in the types of its table, stored by tasks if they are many.

        None if its columns are to be filled otherwise than by a query.
        """
        typed = self._typed(change, table)
        return None if typed is None else table.added(typed, told=sql)

    def _typed(self, change: Insert, table: ChangedTable[Any]) -> str | None:
        """The query for them; None if its columns are to be filled otherwise."""
        target = _target(table)
        if any(map(self.planning.varies, target.defaults.values())):
            return None
        typed = f"{change.ctes}{change.query}"
        bound = self.bind(typed)
        types = [column.type for column in bound]
        if change.by_name or change.columns or types != [*table.shell.types]:
            typed = queries.inserted(change, target, [column.name for column in bound])
        return typed

    def _is_right(self, change: Insert, table: ChangedTable[Made], added: Stored[Made]) -> bool:
        """Whether rows that tasks have stored meet all constraints; discards them if not.

        What DuckDB raises for some of the rows that break one comes first.
        """
        try:
            wrong = table.wrong_rows(added)
            if wrong is not None:
                all_columns = queries.all_columns(change)
                insert = queries.of_rows(all_columns, (table.shell.name,), quote(ROWS))
                made = self.scratch.insert(insert, table.shell, wrong)
                for keys in made.keys:
                    stored = table.holders(keys)
                    self.scratch.insert(insert, table.shell, wrong, stored)
                table.discard(added)
                return False
        except BaseException:
            table.discard(added)
            raise
        return True

    def _published(
        self,
        table: ChangedTable[Made],
        run: Callable[[pa.Table | None], MadeRows],
        stored: pa.Table | None,
        *,
        are_likely: bool = False,
    ) -> pa.Table:
        """Run a statement on some of a table's rows, and publish what it makes of them.

        Args:
            table: the table.
            run: runs it on stored rows, which come with their numbers.
            stored: the rows that it may change.
            are_likely: whether other rows with the keys that it makes are.

        Returns:
            Its answer.
        """
        for _ in range(_RUNS_MAX):
            made = run(stored)
            others = [
                rows
                for keys in made.keys
                if (rows := table.holders(keys, are_likely=are_likely)).num_rows
            ]
            if not others:
                numbers = as_numbers(made.replaced.column(0))
                patched = table.without(numbers) if len(numbers) else None
                table.publish(patched, made.rows if made.rows.num_rows else None)
                return made.answer
            stored = _once([*([] if stored is None else [stored]), *others])
        reason = "Each time that it runs, it makes other keys."
        raise NotHereError(reason)

    # DELETE, UPDATE, MERGE

    def _changed(self, sql: str, change: Changed, table: ChangedTable[Made]) -> pa.Table:
        if _empties(change):
            emptied = table.emptied()
            table.publish(emptied, None)
            return counted(emptied.rows)
        with _left_to_duckdb():
            target = _target(table)
            is_patch = self._is_patch(change, table, target)
            search = queries.search_of(change)
            is_last = self._is_last(sql, change, search, is_patch=is_patch)
            concerned = None if is_last else self._found_here(change, table, search)
            only_deletes = isinstance(change, Delete) and not change.returning
            if concerned is None:
                may_mark = is_patch and not is_last
                patch = self._marked(sql, change, table, target) if may_mark else None
                if patch is None:
                    patched = target if is_patch else None
                    patch = self._patch(sql, change, table, patched, is_last=is_last)
                if isinstance(patch, Stored):
                    return self._in_tasks(sql, change, table, patch)
                if only_deletes:
                    return _deleted(table, patch)
                concerned = self._found(sql, change, table, patch)
            elif only_deletes:
                return _deleted(table, as_numbers(concerned.column(concerned.num_columns - 1)))
        keys = () if is_patch else table.shell.keys
        shell = replace(table.shell, keys=keys)
        return self._published(
            table, lambda rows: self._in_shell(sql, change, table, shell, rows), concerned
        )

    def _found_here(
        self, change: Changed, table: ChangedTable[Made], search: str
    ) -> pa.Table | None:
        """The rows that a statement may change; None if it is better that tasks look for them."""
        rows = self._searchable_here(change, table, search)
        if rows is None:
            return None
        is_counted = isinstance(change, Delete) and not change.returning
        if rows.num_rows <= _CANDIDATES_MAX and not is_counted:
            return rows  # the statement itself sorts them out
        with self.searching() as stoppable:
            query = queries.concerned(change, quote(ROWS), "*")
            concerned = self.scratch.select(query, rows, stoppable=stoppable)
        return concerned if concerned.num_rows < table.many else None

    def _searchable_here(
        self, change: Changed, table: ChangedTable[Made], search: str
    ) -> pa.Table | None:
        if change.may_read or self.planning.calls_python(search):
            return None
        return table.few_rows(lambda relation: queries.concerned(change, relation, "1"))

    def _is_last(self, sql: str, change: Changed, search: str, *, is_patch: bool) -> bool:
        """Whether rows can't be searched again, where others would be found.

        Raises:
            NotHereError: more than one search is needed.
        """
        # On a table that has some rows only, what reads it besides would find those.
        if change.reads_itself or self.planning.names_definition(sql):
            if not is_patch:
                reason = "It reads its own table, or a view or macro that may."
                raise NotHereError(reason)
            return True
        if not self.planning.varies(search):
            return False
        if not is_patch or (isinstance(change, Merge) and change.adds):
            reason = (
                "It looks for rows several times, so what decides which ones takes no random(), "
                "uuid(), LIMIT or the like: store the rows of a subquery as a table first."
            )
            raise NotHereError(reason)
        return True

    def _in_shell(
        self,
        sql: str,
        change: Changed,
        table: ChangedTable[Made],
        shell: Shell,
        rows: pa.Table | None,
    ) -> MadeRows:
        assert rows is not None, "there are some, or none, but that is known"
        statement = table.in_scratch(sql)
        made = self.scratch.change_some(statement, shell, rows, is_alone=not change.may_read)
        changed = made.answer.num_rows if change.returning else made.answer.column(0)[0].as_py()
        if changed:
            return made
        # The rows are those that were there: a version of them would conflict with others'.
        return replace(made, rows=made.rows.slice(0, 0), replaced=made.replaced.slice(0, 0))

    def _marked(
        self, sql: str, change: Changed, table: ChangedTable[Made], target: queries.Target
    ) -> NDArray[Any] | Stored[Made] | None:
        """The same as `_patch` by marks for all rows; None if a patch is needed, or better."""
        marks = self._marks(change, table, target)
        return None if marks is None else table.marked(*marks, told=sql)

    def _marks(
        self, change: Changed, table: ChangedTable[Made], target: queries.Target
    ) -> tuple[str, tuple[int, ...]] | None:
        """The query that marks rows, and the positions of the columns that it sets."""
        if isinstance(change, Merge) or change.may_read:
            return None
        columns = () if isinstance(change, Delete) else queries.set_columns(change, target)
        relation = table.to_be_marked(
            lambda relation: queries.concerned(change, relation, "1"), sets=bool(columns)
        )
        return None if relation is None else (queries.marks(change, target, relation), columns)

    def _patch(
        self,
        sql: str,
        change: Changed,
        table: ChangedTable[Made],
        target: queries.Target | None,
        *,
        is_last: bool,
    ) -> NDArray[Any] | Stored[Made]:
        """The numbers of the rows that a statement changes, or what tasks have made of the table.

        If only DuckDB can tell what it does (`target` is None), those that it may concern. If this
        is the last search (`is_last`), tasks change few rows, too.
        """
        with table.numbered(is_alone=not change.may_read) as rows:
            query, columns = self._patch_query(change, table, target, rows)
            if target is None:
                numbers = self.run(query, CollectRows(), catalog=rows.catalog, told=sql)
                return as_numbers(numbers.column(0))
            # Numbers are enough to delete rows.
            many = 0 if is_last and not isinstance(change, Delete) else table.many
            try:
                patch = table.patched(query, columns, rows, many=many, told=sql)
                return patch if isinstance(patch, Stored) else as_numbers(patch.column(0))
            except DataError as error:
                if isinstance(change, Merge):  # the patch says two things of a row
                    raise DataValueError(queries.CHANGED_TWICE) from error
                raise

    def _patch_query(
        self,
        change: Changed,
        table: ChangedTable[Made],
        target: queries.Target | None,
        rows: NumberedRows,
    ) -> tuple[str, tuple[int, ...]]:
        """The query of `_patch`, and the positions of the columns that it sets."""
        if target is None:
            number = f"{quote(change.alias)}.{ROW_NUMBER}"
            return queries.concerned(change, rows.relation, f"{number}, 0, {table.part}"), ()
        change = self._with_names(change)
        columns = () if isinstance(change, Delete) else queries.set_columns(change, target)
        return queries.patch(change, target, rows.relation, table.part), columns

    def _with_names(self, change: Changed) -> Changed:
        """A statement that knows the columns of its source."""
        if not isinstance(change, Merge):
            return change
        source = self.bind(f"{change.ctes}SELECT * FROM {change.source}")
        return replace(change, source_names=tuple(column.name for column in source))

    def _is_patch(self, change: Changed, table: ChangedTable[Made], target: queries.Target) -> bool:
        """Whether a patch says all that a statement does.

        The rows that it makes can't break a constraint, stay in their parts, and are not asked for.
        """
        if change.returning:
            return False
        if isinstance(change, Delete):
            return True
        if any(map(self.planning.varies, target.defaults.values())):
            return False
        says = table.constraints
        if isinstance(change, Merge) and change.adds and (says.checks or says.keys):
            return False
        named = self._with_names(change)
        assert not isinstance(named, Delete), "it is the same statement"
        kept = [name for names in (*says.keys, table.placed_by) for name in names]
        kept += [word for check in says.checks for word in queries.words(check)]
        names = {table.schema[i].name.lower() for i in queries.set_columns(named, target)}
        return names.isdisjoint(name.lower() for name in kept)

    def _found(
        self, sql: str, change: Changed, table: ChangedTable[Made], numbers: NDArray[Any]
    ) -> pa.Table:
        """The rows that a statement may change, with their numbers."""
        # A MERGE adds rows for those of its source that have no partner, changed or not.
        if not isinstance(change, Merge):
            stored = table.rows_at(np.sort(numbers))
            if stored is not None:
                return stored
        with table.numbered(is_alone=not change.may_read) as rows:
            search = queries.concerned(change, rows.relation, "*")
            sink = CollectRows(lossless=True)
            return self.run(search, sink, catalog=rows.catalog, told=sql)

    def _in_tasks(
        self, sql: str, change: Changed, table: ChangedTable[Made], patched: Stored[Made]
    ) -> pa.Table:
        """Publish what tasks have made of a table, with the rows that a MERGE adds."""
        added: pa.Table | Stored[Made] | None = None
        count = patched.rows
        try:
            self._check_bound(sql, change, table)
            if isinstance(change, Merge) and change.adds:
                added = self._added(sql, change, table)
                count += added.num_rows if isinstance(added, pa.Table) else added.rows
            if isinstance(added, pa.Table):
                insert = f"INSERT INTO {quote(table.shell.name)} FROM {quote(ROWS)}"
                added = self.scratch.insert(insert, table.shell, added).rows
            table.publish(patched, added)
        except BaseException:
            table.discard(patched, added)
            raise
        return counted(count)

    def _added(self, sql: str, change: Merge, table: ChangedTable[Made]) -> pa.Table | Stored[Made]:
        """The rows that a MERGE adds."""
        named = self._with_names(change)
        assert isinstance(named, Merge), "it is the same statement"
        with table.numbered(is_alone=False) as rows:
            query = queries.merged_inserts(named, _target(table), rows.relation)
            assert query is not None, "it adds rows"
            return table.added(query, rows, told=sql)


def _empties(change: Changed) -> bool:
    """Whether it deletes all rows, and says no more."""
    return isinstance(change, Delete) and not (change.returning or change.condition or change.using)


def _deleted(table: ChangedTable[Any], numbers: NDArray[Any]) -> pa.Table:
    if len(numbers):
        table.publish(table.without(numbers), None)
    return counted(len(numbers))


def _target(table: ChangedTable[Any]) -> queries.Target:
    return queries.Target(table.called, table.schema, table.constraints.defaults)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether Arrow writes values as DuckDB does."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _once(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables whose last column has their numbers: a row may hold several keys."""
    rows = pa.concat_tables(tables)
    _, first = np.unique(as_numbers(rows.column(rows.num_columns - 1)), return_index=True)
    kept = np.sort(first)
    # By slices, as Arrow can't take rows of all types: not of BLOBs as DuckDB gives them.
    runs = np.split(kept, np.flatnonzero(np.diff(kept) != 1) + 1)
    return pa.concat_tables([rows.slice(run[0], len(run)) for run in runs])
