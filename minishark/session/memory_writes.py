"""INSERT, DELETE, UPDATE and MERGE on tables in the cluster's memory, at the cost of what changes.

DuckDB says what a statement means: an INSERT runs in the scratch database, on an empty table with
the columns, defaults and constraints of the real one, and the rows that are in it afterwards become
a delta. A query that gives these rows runs on the cluster before; if they are many, tasks store
them, and queries check that they meet the constraints: if they do not, DuckDB says so as above.

The others run on a table that has only the rows which they may change: a query finds those on the
cluster, with their numbers. They are deleted, and what is left of them becomes a delta, with rows
that a MERGE adds.

A key (PRIMARY KEY, UNIQUE) is that of one row only: a query on the cluster looks for stored rows
with the keys that a statement has made. If there are some, the statement runs again on a table that
has these rows, too, where DuckDB says what is wrong, or does what ON CONFLICT says. That is
repeated while there are others, as what it computes may vary.

What can't be done so is left to the scratch database with all rows of the table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from minishark.compiler.sql.changes import Changed, Delete, Insert, Merge, Update
from minishark.compiler.sql.statements import ChangeRows, Target
from minishark.compiler.stages.fragment import bucket_column
from minishark.dataframe.literals import literal
from minishark.errors import DataError, PartitionsLostError, QueryError, UnsupportedError
from minishark.model.catalog import (
    PARTITION_SHIFT,
    ROW_NUMBER,
    CatalogView,
    ColumnStatistics,
    Table,
)
from minishark.model.expressions import ColumnRef, quote
from minishark.query.sinks import CollectRows
from minishark.session.engine import Engine
from minishark.session.file_writer import counted
from minishark.session.memory_transactions import AddedRows, in_memory, measured, with_rows
from minishark.session.scope import Scope
from minishark.session.scratch_database import ROWS, MadeRows, NewKeys, Shell
from minishark.tables.attempts import attempted
from minishark.tables.changed_statistics import joined_statistics
from minishark.tables.deltas import (
    NEW_PARTITION_ROWS,
    SCATTERED_ROWS,
    changed_files,
    without_rows,
)
from minishark.tables.patches import ApplyPatch, Patched
from minishark.tables.store import StoreMany
from minishark.tables.tables import NUMBERED
from minishark.tables.warehouse import dml

_NEVER = sys.maxsize
_NONE = np.empty(0, np.int64)
_RUNS_MAX = 8  # of a statement whose rows have keys that stored rows have
_VALUES_MAX = 1_000  # in the text of a query; more go to the cluster as rows
_INTEGER = re.compile(r"U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?")


@dataclass(frozen=True, slots=True)
class MemoryWrites:
    """Runs statements that change rows of tables in memory; the caller lets one write at a time."""

    engine: Engine
    scope: Scope

    def run(self, statement: ChangeRows, target: Target) -> pa.Table | None:
        """Run a statement; its answer, or None if only the scratch database can run it."""
        engine, sql = self.engine, statement.sql

        def change(table: Table) -> pa.Table | None:
            match statement.change:
                case None:
                    return None
                case Insert() as insert:
                    return self._insert(sql, insert, table)
                case other:
                    return self._changed(sql, other, table)

        def restore(lost: PartitionsLostError) -> None:
            engine.restore(lost, self.scope)

        is_alone = in_memory(self.scope) is None
        return attempted(lambda: self._table(target.name), change, restore, is_alone=is_alone)

    def _table(self, name: str) -> Table | None:
        """The table that a statement changes; None if its rows are not in the cluster alone."""
        engine = self.engine
        if self.scope.scratch.must_keep(name):
            return None
        with engine.up_to_date(self.scope):
            table = self.scope.catalog.find(name)
        return table if table is not None and table.is_computed else None

    # INSERT

    def _insert(self, sql: str, change: Insert, table: Table) -> pa.Table | None:
        engine = self.engine
        insert, given = sql, None
        shell = _shell(table)
        if not self.scope.planning.reads_nothing(sql, surely=not change.may_read):
            try:
                if not change.query:  # DEFAULT VALUES
                    return None
                if not (change.otherwise or change.clauses):
                    found = self._selected(sql, change, table, shell)
                    if isinstance(found, pa.Table):
                        change, given = dml.all_columns(change), found
                    elif found is not None:
                        answer = self._joined(table, shell, found, change)
                        if answer is not None:
                            return answer
                if given is None:
                    query = f"{change.ctes}{change.query}"
                    given, _ = engine.run(query, CollectRows(lossless=True), self.scope, told=sql)
            except (UnsupportedError, QueryError):
                return None  # DuckDB says what is wrong, or knows what minishark does not
            insert = dml.of_rows(change, quote(ROWS))
        return self._published(
            table, lambda stored: self.scope.scratch.insert(insert, shell, given, stored), None
        )

    def _selected(
        self, sql: str, change: Insert, table: Table, shell: Shell
    ) -> pa.Table | Table | None:
        """The rows of an INSERT in the types of its table, as another one if they are many.

        None if its columns are to be filled otherwise than by a query.
        """
        engine = self.engine
        defaults = self.scope.scratch.constraints(shell).defaults
        if any(map(self.scope.planning.varies, defaults.values())):
            return None
        bound = self.scope.planning.bind(f"{change.ctes}{change.query}").schema
        names = [column.name for column in bound]
        typed = f"{change.ctes}{change.query}"
        if change.by_name or change.columns or [c.type for c in bound] != [*shell.types]:
            target = dml.Target(table.name, table.schema)
            typed = dml.inserted(change, target, names, defaults)
        sink = StoreMany(tables=engine.tables, table=table, many=NEW_PARTITION_ROWS)
        return engine.run(typed, sink, self.scope, told=sql)[0]

    def _joined(self, table: Table, shell: Shell, added: Table, change: Insert) -> pa.Table | None:
        """Publish a table with the rows of another one; None if they break a constraint.

        What DuckDB raises for some of the rows that break one comes first.
        """
        engine = self.engine
        files = {p.file: p.locations for p in added.partitions}
        try:
            wrong = self._wrong_rows(table, shell, added)
            if wrong is not None:
                insert = dml.of_rows(dml.all_columns(change), quote(ROWS))
                made = self.scope.scratch.insert(insert, shell, wrong)
                for keys in made.keys:
                    stored = self._holders(table, keys)
                    self.scope.scratch.insert(insert, shell, wrong, stored)
                engine.tables.retire(files)
                return None
        except BaseException:
            engine.tables.retire(files)
            raise
        self._next(table, self._with_table(table, added), None)
        return counted(added.rows)

    def _with_table(self, table: Table, added: Table) -> Table:
        """The next version of a table, with the rows of another one that tasks have stored."""
        tables = self.engine.tables
        files = {part.file: part.locations for part in added.partitions}
        try:
            new = tables.deltas.with_partitions(table, added)
        except BaseException:
            tables.retire(files)
            raise
        kept = {part.file for part in new.partitions}
        tables.retire({file: nodes for file, nodes in files.items() if file not in kept})
        known = joined_statistics(table.statistics, table.schema, added.statistics)
        return replace(new, statistics=known)

    def _wrong_rows(self, table: Table, shell: Shell, added: Table) -> pa.Table | None:
        """Some rows that break a constraint, of those that tasks have stored to be added."""
        engine = self.engine
        said = self.scope.scratch.constraints(shell)
        new = replace(added, name=f"{NUMBERED}new_{table.folder}")
        rows = quote(new.name)
        wrong = [f"FROM {rows} WHERE NOT ({each}) LIMIT 1" for each in said.checks]
        for columns in said.keys:
            names = ", ".join(map(quote, columns))
            filled = " AND ".join(f"{quote(name)} IS NOT NULL" for name in columns)
            twice = f"FROM {rows} WHERE {filled} GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
            wrong += [
                f"FROM {rows} SEMI JOIN (SELECT {names} {twice}) USING ({names}) LIMIT 2",
                f"FROM {rows} SEMI JOIN {quote(table.name)} USING ({names}) LIMIT 1",
            ]
        view = CatalogView(self.scope.catalog, [new])
        engine.planning.put_table(new)
        try:
            for each in wrong:
                told = f"constraints of {table.name}"
                found, _ = engine.run(
                    each, CollectRows(lossless=True), self.scope, catalog=view, told=told
                )
                if found.num_rows:
                    return found
            return None
        finally:
            engine.planning.remove_table(new.name)

    def _published(
        self, table: Table, run: Callable[[pa.Table | None], MadeRows], found: pa.Table | None
    ) -> pa.Table | None:
        """Run a statement on some of a table's rows, and publish what it makes of them.

        Args:
            table: the table.
            run: runs it on stored rows, which come with their numbers.
            found: the rows that it may change.

        Returns:
            Its answer; None if no run was the last.
        """
        for _ in range(_RUNS_MAX):
            made = run(found)
            others = [rows for keys in made.keys if (rows := self._holders(table, keys)).num_rows]
            if not others:
                self._publish(table, made.replaced.column(0).to_numpy(), made.rows)
                return made.answer
            found = _once([*([] if found is None else [found]), *others])
        return None

    def _holders(self, table: Table, keys: NewKeys) -> pa.Table:
        """The stored rows that have one of some keys, with their numbers."""
        by_name = {column.name.lower(): column for column in table.schema}
        columns = [by_name[name.lower()] for name in keys.columns]
        names = [f"c{i}" for i in range(len(columns))]
        values = keys.values.rename_columns(names)
        if len(columns) == 1 and _INTEGER.fullmatch(columns[0].type):
            values = _within(values, table.column_statistics(columns[0].name))
        if not values.num_rows:
            return values
        held = None
        if values.num_rows <= _VALUES_MAX:
            rows = zip(*(column.to_pylist() for column in values.columns), strict=True)
            texts = (f"({', '.join(map(literal, row))})" for row in rows)
            given = f"(VALUES {', '.join(texts)}) AS v({', '.join(names)})"
        else:
            held = self.engine.cached.load(values)
            given = quote(held.name)
        typed = ", ".join(
            f"CAST({name} AS {column.type}) AS {name}"
            for name, column in zip(names, columns, strict=True)
        )
        equal = " AND ".join(
            f"t.{quote(column.name)} = k.{name}"
            for name, column in zip(names, columns, strict=True)
        )
        wanted = f"SEMI JOIN (SELECT {typed} FROM {given}) AS k ON {equal}"
        if held is None and len(columns) == 1:  # which scans test
            casts = (
                f"CAST({literal(each)} AS {columns[0].type})" for each in values[0].to_pylist()
            )
            wanted = f"WHERE t.{quote(columns[0].name)} IN ({', '.join(casts)})"
        told = f"keys of {table.name}"
        # Mostly there is none: other columns need not be read, nor rows be numbered.
        some = f"SELECT t.{quote(columns[0].name)} FROM {quote(table.name)} AS t {wanted} LIMIT 1"
        if not self.engine.run(some, CollectRows(), self.scope, told=told)[0].num_rows:
            return values.slice(0, 0)
        view, numbered = self._numbered(table, is_alone=True)  # or beside a few keys
        whole = f"SELECT t.* FROM {numbered} AS t {wanted}"
        sink = CollectRows(lossless=True)
        return self.engine.run(whole, sink, self.scope, catalog=view, told=told)[0]

    # DELETE, UPDATE, MERGE

    def _changed(self, sql: str, change: Changed, table: Table) -> pa.Table | None:
        if dml.mentions(sql, table.name) > 1 or self.scope.planning.names_definition(sql):
            return None  # it may read the table besides, of which not all rows would be there
        if isinstance(change, Delete) and not (
            change.returning or change.condition or change.using
        ):
            self._next(table, self.engine.tables.deltas.emptied(table), None)
            return counted(table.rows)
        if isinstance(change, Merge) and (change.changes_alone or change.returning):
            return None  # any row may change, or DuckDB says what RETURNING has
        varies = self.scope.planning.varies(dml.search_of(change))
        if varies and not self._searches_once(change, table):
            return None  # another search would find other rows
        try:
            is_last = varies and not isinstance(change, Delete)  # to which numbers are enough
            patch = self._patch(sql, change, table, is_last=is_last)
            if isinstance(patch, Patched):
                return self._in_tasks(sql, change, table, patch)
            if isinstance(change, Delete) and not change.returning:
                numbers = patch.column(0).to_numpy()
                self._publish(table, numbers, None)
                return counted(len(numbers))
            found = self._found(sql, change, table, patch)
        except (UnsupportedError, QueryError):
            return None  # DuckDB says what is wrong, or knows what minishark does not

        def run(rows: pa.Table | None) -> MadeRows:
            assert rows is not None, "there are some, or none, but that is known"
            return self._in_shell(sql, change, table, rows)

        return self._published(table, run, found)

    def _in_shell(self, sql: str, change: Changed, table: Table, rows: pa.Table) -> MadeRows:
        is_alone = not dml.reads_others(change)
        return self.scope.scratch.change_some(sql, _shell(table), rows, is_alone=is_alone)

    def _patch(
        self, sql: str, change: Changed, table: Table, *, is_last: bool
    ) -> pa.Table | Patched:
        """What a statement does to rows by their numbers, or what tasks have made of the table.

        If only DuckDB can tell what it does, the numbers of rows that it may concern. If this is
        the last search (`is_last`), tasks change few rows, too.
        """
        engine, bucket = self.engine, f"{ROW_NUMBER} >> {PARTITION_SHIFT}"
        view, numbered = self._numbered(table, is_alone=not dml.reads_others(change))
        columns: tuple[int, ...] = ()
        if self._is_patch(change, table):
            change, target = self._with_names(change), dml.Target(table.name, table.schema)
            many = 1 if is_last else max(engine.tables.sizes.patched, table.rows // SCATTERED_ROWS)
            columns = () if isinstance(change, Delete) else dml.set_columns(change, target)
            query = dml.patch(change, target, numbered, bucket)
        else:
            many = _NEVER
            number = f"{quote(change.alias)}.{ROW_NUMBER}"
            query = dml.concerned(change, numbered, f"{number}, 0, {bucket}")
        sink = ApplyPatch(tables=engine.tables, table=table, columns=columns, many=many)
        try:
            return engine.run(query, sink, self.scope, catalog=view, told=sql)[0]
        except DataError as error:
            if isinstance(change, Merge):  # several rows of its source may change one
                raise QueryError(str(error)) from error
            raise

    def _with_names(self, change: Changed) -> Changed:
        """A statement that knows the columns of its source."""
        if not isinstance(change, Merge):
            return change
        source = self.scope.planning.bind(f"{change.ctes}SELECT * FROM {change.source}").schema
        return replace(change, source_names=tuple(column.name for column in source))

    def _searches_once(self, change: Changed, table: Table) -> bool:
        """Whether what a statement changes can be done after one search, however many rows."""
        adds = isinstance(change, Merge) and change.adds
        return not adds and self._is_patch(change, table)

    def _is_patch(self, change: Changed, table: Table) -> bool:
        """Whether a patch says all that a statement does.

        The rows that it makes can't break a constraint, stay in their partitions, and are not
        asked for.
        """
        if isinstance(change, Delete):
            return not change.returning
        said = self.scope.scratch.constraints(_shell(table))
        if isinstance(change, Update):
            if change.returning:
                return False
        elif change.adds and (said.checks or said.keys or said.defaults):
            return False
        target = dml.Target(table.name, table.schema)
        named = self._with_names(change)
        assert not isinstance(named, Delete), "it is the same statement"
        columns = dml.set_columns(named, target)
        kept = [name for names in (*said.keys, table.partition_by) for name in names]
        kept += [word for check in said.checks for word in dml.words(check)]
        names = {table.schema[i].name.lower() for i in columns}
        return names.isdisjoint(name.lower() for name in kept)

    def _numbered(self, table: Table, *, is_alone: bool) -> tuple[CatalogView, str]:
        """A catalog that also has a table's rows with their numbers, and under what name."""
        numbered = self.engine.tables.numbered(table, is_alone=is_alone)
        return CatalogView(self.scope.catalog, [numbered]), quote(numbered.name)

    def _found(self, sql: str, change: Changed, table: Table, patch: pa.Table) -> pa.Table:
        """The rows that a statement may change, with their numbers."""
        # A MERGE adds rows for those of its source that have no partner, changed or not.
        if not self.engine.on_hosts and not isinstance(change, Merge):
            return self.engine.tables.rows_at(table, np.sort(patch.column(0).to_numpy()))
        view, numbered = self._numbered(table, is_alone=not dml.reads_others(change))
        search = dml.concerned(change, numbered, "*")
        sink = CollectRows(lossless=True)
        return self.engine.run(search, sink, self.scope, catalog=view, told=sql)[0]

    def _in_tasks(self, sql: str, change: Changed, table: Table, patched: Patched) -> pa.Table:
        """Publish what tasks have made of a table, with the rows that a MERGE adds."""
        engine, new, count = self.engine, patched.table, patched.rows
        made = changed_files(new, table)
        try:
            # DuckDB says whether the statement is right, on a table without rows.
            self._in_shell(sql, change, table, engine.tables.rows_at(table, _NONE))
            if isinstance(change, Merge) and change.adds:
                new, added = self._with_added(sql, change, table, new)
                made, count = changed_files(new, table), count + added
            self._next(table, new, None)
        except BaseException:
            engine.tables.retire(made)
            raise
        return counted(count)

    def _with_added(self, sql: str, change: Merge, table: Table, new: Table) -> tuple[Table, int]:
        """A version of a table with the rows that a MERGE adds, and how many these are."""
        engine = self.engine
        view, numbered = self._numbered(table, is_alone=False)
        target = dml.Target(table.name, table.schema)
        named = self._with_names(change)
        assert isinstance(named, Merge), "it is the same statement"
        query = dml.merged_inserts(named, target, numbered)
        assert query is not None, "it adds rows"
        sink = StoreMany(tables=engine.tables, table=table, many=NEW_PARTITION_ROWS)
        found, _ = engine.run(query, sink, self.scope, catalog=view, told=sql)
        if isinstance(found, Table):
            return self._with_table(new, found), found.rows
        if not found.num_rows:
            return new, 0
        insert = f"INSERT INTO {quote(table.name)} FROM {quote(ROWS)}"
        rows = _added(self.scope.scratch.insert(insert, _shell(table), found).rows)
        return with_rows(engine, new, rows), found.num_rows

    # Versions

    def _publish(self, table: Table, deleted: NDArray[np.int64], added: pa.Table | None) -> None:
        """Make the version of a table without some rows, by their numbers, and with others.

        The last column of `added` has their buckets.
        """
        new, rows = table, None
        if len(deleted):
            new = without_rows(table, deleted)
        if added is not None and added.num_rows:
            rows = _added(added)
            new = with_rows(self.engine, new, rows)
        if new is not table:
            # Another transaction may add rows with the same keys: both can't be committed.
            is_alone = len(deleted) > 0 or bool(table.keys)
            self._next(table, new, None if is_alone else rows)

    def _next(self, old: Table, new: Table, added: AddedRows | None) -> None:
        """Let the next statements see a version; `added` if it only has more rows."""
        engine = self.engine
        new = measured(engine.tables.merged(new), new, None)
        open_ = in_memory(self.scope)
        if open_ is not None:
            open_.change(old, new, added)
        else:
            engine.tables.changed((old, new))
            engine.merger.look(old.name)


def _shell(table: Table) -> Shell:
    """What an empty table is like that stands for another one."""
    columns = ", ".join(f"{quote(column.name)} {column.type}" for column in table.schema)
    return Shell(
        name=table.name,
        create=table.definition or f"CREATE TABLE memory.main.{quote(table.name)} ({columns})",
        says_more=bool(table.definition),
        keys=table.keys,
        types=tuple(column.type for column in table.schema),
        bucket=_bucket(table),
    )


def _bucket(table: Table) -> str:
    """An expression for the number of a row's partition."""
    if not table.is_hashed:
        return "0 AS bucket"
    names = [quote(column.name) for column in table.schema]
    positions = {column.name.lower(): i for i, column in enumerate(table.schema)}
    keys = [positions[name.lower()] for name in table.partition_by]
    columns = [ColumnRef(i, table.schema[i].type) for i in keys]
    return bucket_column(columns, names, len(table.partitions))


def _within(values: pa.Table, known: ColumnStatistics | None) -> pa.Table:
    """The keys of a column of integers, as text, that are within its bounds."""
    if known is None or known.minimum is None or known.maximum is None:
        return values
    low, high = int(known.minimum), int(known.maximum)
    within = [low <= int(text) <= high for text in values.column(0).to_pylist()]
    return values.filter(pa.array(within, pa.bool_()))


def _added(rows: pa.Table) -> AddedRows:
    """Rows whose last column has the numbers of their partitions."""
    last = rows.num_columns - 1
    return AddedRows(rows.remove_column(last), rows.column(last).combine_chunks())


def _once(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of tables whose last column has their numbers: a row may hold several keys."""
    rows = pa.concat_tables(tables)
    _, first = np.unique(rows.column(rows.num_columns - 1).to_numpy(), return_index=True)
    kept = np.sort(first)
    # By slices, as Arrow can't take rows of all types: not of BLOBs as DuckDB gives them.
    runs = np.split(kept, np.flatnonzero(np.diff(kept) != 1) + 1)
    return pa.concat_tables([rows.slice(run[0], len(run)) for run in runs])
