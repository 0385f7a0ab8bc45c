"""Tables in the cluster's memory: created from data of any kind or from queries, changed, dropped.

What can't be done to them at the cost of what changes is left to the scratch database, with all
rows of the table.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa

from minishark.compiler.sql.changes import Insert, NewTable
from minishark.compiler.sql.statements import (
    AlterTable,
    ChangeRows,
    Comment,
    CopyDatabase,
    CreateTable,
    CreateTableAs,
    Definition,
    DropTable,
    ParsedStatement,
    Target,
    Write,
)
from minishark.errors import AlreadyExistsError, CatalogError, QueryError, UnsupportedError
from minishark.model.catalog import Table
from minishark.model.expressions import quote
from minishark.query.sinks import Layout
from minishark.sources.contract import Source
from minishark.sources.files import NamedFiles
from minishark.tables.attempts import attempted
from minishark.tables.cached import CachedTables
from minishark.tables.changes import ON_ALL_ROWS, Changes, NotHereError
from minishark.tables.memory_changes import MemoryTable
from minishark.tables.memory_transaction import (
    NOT_IN_TRANSACTION,
    MemoryTransaction,
    begin,
    in_memory,
)
from minishark.tables.scratch_database import (
    NO_CATALOG,
    AddedColumn,
    ScratchDatabase,
    ScratchTable,
    Written,
)
from minishark.tables.scratch_store import HIDDEN, ScratchTables, of_catalog
from minishark.tables.shared_tables import PREFIX, is_shared
from minishark.tables.sources import arrow_table
from minishark.tables.store import (
    StoreAsTable,
    as_stored,
    kept_by_arrow,
    stored_schema,
    survives_arrow,
    table_schema,
)
from minishark.tables.stores import (
    Explained,
    GivenRows,
    SelectedRows,
    StoreContext,
    TableStore,
    counted,
)
from minishark.tables.tables import Tables, check_layout, named_columns

ONLY_PLAIN = (
    "Columns, rows, defaults, checks and keys are all that there can be to know of a shared table, "
    "in types that Arrow has: no foreign keys, generated columns, indexes, ENUMs or collations."
)
_CONSTANT_BYTES_MAX = 1_024  # of a column that is added, as readers repeat it for each row


@dataclass(frozen=True, slots=True)
class MemoryStore(TableStore):
    """The tables in memory that users name."""

    context: StoreContext

    def begin(self, *, is_lazy: bool) -> bool:
        if is_lazy:
            raise UnsupportedError(
                "Without a warehouse (connect(warehouse=...)) transactions begin with BEGIN."
            )
        self.context.transaction.begin(lambda: begin(self.context))
        return True

    @property
    def _open(self) -> MemoryTransaction | None:
        return in_memory(self.context.transaction)

    def _refuse_in_transaction(self) -> None:
        if self._open is not None:
            raise UnsupportedError(NOT_IN_TRANSACTION)

    @property
    def names(self) -> list[str]:
        context = self.context
        names = [*context.catalog.loaded, *context.scratch.own_tables, *context.sources.names]
        return sorted(name for name in names if not name.startswith(HIDDEN))

    def add_source(self, name: str, source: Source, *, replace: bool) -> None:
        """Let queries read a source by a name."""
        with self.context.up_to_date():
            if name not in self.context.sources or not replace:
                self.check_new(name, replace=False)
            self.context.sources.add(name, source)

    def written(self, name: str) -> str | None:
        return f"memory.main.{quote(name)}" if self.context.scratch.is_elsewhere else None

    def create(self, name: str, given: GivenRows) -> bool:
        context, rows, layout, replace = self.context, given.rows, given.layout, given.replace
        context.tables.temporary.discard(name.lower())
        with context.up_to_date():
            if isinstance(rows, SelectedRows):
                self.store_query(name, rows.sql, layout, replace=replace)
                return True
            self.check_new(name, replace=replace)
            check_layout(layout)
            if isinstance(rows, duckdb.DuckDBPyRelation) and not kept_by_arrow(
                map(str, rows.types)
            ):
                self._refuse_in_transaction()
                columns = zip(rows.columns, map(str, rows.types), strict=True)
                context.scratch.put(name, columns, arrow_table(rows))
                context.warn(
                    f"Table {name} stays in the front end, as Arrow lacks types of its columns."
                )
                return True
            if isinstance(rows, str | Path):
                rows = NamedFiles(rows, context.sources.reach(context.planning.settings))
            with context.tables.folder(name) as folder:
                table = context.tables.build(
                    name,
                    folder,
                    rows,
                    layout,
                    on_progress=given.on_progress,
                    observed=context.observed,
                )
                self._publish(table, replace=replace)
        return True

    def check_new(self, name: str, *, replace: bool) -> None:
        """Raise CatalogError if there is something else of that name."""
        context = self.context
        if not name or "\0" in name:
            raise CatalogError("A table needs a name, without zero bytes.")
        if self._has_view(name):
            raise CatalogError(f"There is a view called {name!r}; drop it first.")
        if name in context.sources:
            raise CatalogError(f"There is a source called {name!r}; drop it first.")
        if not replace and (name in context.catalog or name.lower() in context.scratch.own_tables):
            raise AlreadyExistsError(
                f"There is a table called {name!r} already; pass replace=True, or to a writer "
                "mode('overwrite')."
            )

    def _has_view(self, name: str) -> bool:
        """Whether a view has a name, be it one of what only the scratch database has."""
        return self.context.planning.has_view(name) or self.context.scratch.has_view(name)

    def _publish(self, table: Table, *, replace: bool) -> None:
        context = self.context
        with context.writing:
            open_ = self._open
            if open_ is not None:
                self._check_only_rows(table.name)
                open_.put(table)
                return
        # Another thread may be loading what a statement made of a table of that name before: it
        # must not replace this one.
        with context.loading:
            context.tables.publish(table, replace=replace)
            context.scratch.drop(table.name)

    def _check_only_rows(self, name: str) -> None:
        """Refuse to replace or drop, in a transaction, what the scratch database has."""
        scratch = self.context.scratch
        if scratch.must_keep(name) or name.lower() in scratch.own_tables:
            raise UnsupportedError(NOT_IN_TRANSACTION)

    def store_query(self, name: str, sql: str, layout: Layout, *, replace: bool) -> None:
        """Store the rows of a query as a table, without bringing them to the front end."""
        tables = self.context.tables
        bound = self.context.planning.bind(sql).schema
        schema = stored_schema(table_schema(bound))
        check_layout(layout)
        self.check_new(name, replace=replace)
        keys = named_columns(name, layout.partition_by, [column.name for column in schema])
        layout = dataclasses.replace(layout, partition_by=keys)
        with tables.folder(name) as folder:
            sink = StoreAsTable(
                tables=tables, name=name, schema=schema, folder=folder, layout=layout
            )
            table = self.context.run(as_stored(sql, bound), sink)
            self._publish(table, replace=replace)

    def drop(self, name: str, *, missing_ok: bool = False) -> None:
        context = self.context
        context.check_open()
        if name in context.sources:
            self._refuse_in_transaction()
            context.sources.remove(name)
            return
        with context.writing:
            self._load_renamed(quote(name))
            open_ = self._open
            if open_ is not None:
                self._drop_in(open_, name, missing_ok=missing_ok)
                return
        with context.loading:  # or another thread, loading its last change, would create it again
            here = context.scratch.drop(name)
            if name in context.tables.catalog:
                context.tables.drop(name)
                return
        if not here and not missing_ok:
            raise context.tables.catalog.unknown(name)

    def _drop_in(self, open_: MemoryTransaction, name: str, *, missing_ok: bool) -> None:
        with self.context.up_to_date():
            self._check_only_rows(name)
            if name in self.context.catalog:
                open_.drop(name)
            elif not missing_ok:
                raise self.context.catalog.unknown(name)

    def run(self, statement: ParsedStatement) -> pa.Table | ParsedStatement:
        if not isinstance(statement, Write | Comment):
            return statement
        context, target = self.context, statement.target
        if target is None:
            if isinstance(statement, Comment):
                return statement
        elif not target.is_main or (len(target.path) == 1 and not self._is_main(statement)):
            return statement
        if isinstance(statement, Comment):
            return self._comment(statement.sql, target)
        if isinstance(statement, AlterTable | DropTable) and target is not None:
            is_view = self._has_view(target.name)
            if is_view and isinstance(statement, AlterTable):
                return Definition(statement.sql, target.path)
            if is_view:
                raise CatalogError(f"{target.name} is a view: write DROP VIEW.")
        is_here = context.scratch.is_alone(statement.sql)
        temporary: NewTable | None = None
        if isinstance(statement, CreateTable) and statement.is_temporary:
            temporary = statement.table
        if self._open is not None and (temporary is not None or is_here):
            raise UnsupportedError(NOT_IN_TRANSACTION)
        if temporary is not None and temporary.target[-1] in context.catalog:
            if temporary.exists_ok:
                return counted(0)
            self._check_replaces(temporary)
        answer = self._answer(statement, target)
        if temporary is not None:
            context.tables.temporary.add(temporary.target[-1].lower())
        elif target is not None and _ends(statement):
            context.tables.temporary.discard(target.name.lower())
        return answer

    def _answer(self, statement: Write, target: Target | None) -> pa.Table:
        context = self.context
        match statement:
            case CreateTableAs() if target is not None and context.scratch.reads_catalog(
                statement.sql
            ):
                return self._create_of_catalog(statement, target)
            case CreateTableAs() if target is not None and self._can_create(target.name, statement):
                layout = Layout(replicas=2)
                replaces = statement.replaces
                self.store_query(target.name, statement.query, layout, replace=replaces)
                return counted(context.catalog.get(target.name).rows)
            case DropTable(missing_ok=missing_ok) if target is not None:
                self.drop(target.name, missing_ok=missing_ok)
                return counted(0)
            case CopyDatabase(source=source):
                return self._copy_database(statement.sql, source)
        return self._write(statement, target)

    def explain(self, statement: Explained) -> str | Explained:
        context, target = self.context, statement.target
        if target is None or not target.is_main:
            return statement
        if len(target.path) == 1 and not self._is_main(statement):
            return statement
        name = target.name.removeprefix(PREFIX)
        begin = f"Concerns {name}, a {'shared ' * is_shared(target.name)}table in memory."
        if isinstance(statement, CreateTableAs):
            is_here = context.scratch.reads_catalog(statement.sql)
            if is_here or not self._can_create(target.name, statement):
                context.scratch.explain(statement.sql, analyze=False)  # says what is wrong with it
                return f"{begin} {ON_ALL_ROWS}"
            bound = context.planning.bind(statement.query).schema
            stages = context.explain(as_stored(statement.query, bound), None)
            return f"{begin} Tasks store the rows of this query.\n{stages}"
        table = self._stored(target.name)
        is_here = context.scratch.is_alone(statement.sql)
        if statement.change is None or table is None or is_here:
            context.scratch.explain(statement.sql, analyze=False)
            return f"{begin} {ON_ALL_ROWS}"
        changed = MemoryTable(table, context, self._open)
        try:
            told = self._changes().explain(
                statement.sql, statement.change, changed, context.explain
            )
        except NotHereError as error:
            told = f"{ON_ALL_ROWS} {error}"
        return f"{begin} {told}"

    def _create_of_catalog(self, statement: CreateTableAs, target: Target) -> pa.Table:
        """Create a table of what only the session's own database can tell."""
        context = self.context
        with context.up_to_date():
            sql, rows = of_catalog(context, statement)
            if statement.is_temporary:
                with context.writing:
                    return context.scratch.write(sql, target, rows)
            held = context.cached.load(rows, None, context.observed)
            layout = Layout(replicas=2)
            query = f"FROM {quote(held.name)}"
            self.store_query(target.name, query, layout, replace=statement.replaces)
        return counted(rows.num_rows)

    def _copy_database(self, sql: str, source: str) -> pa.Table:
        context = self.context
        self._refuse_in_transaction()
        with context.writing, context.up_to_date():
            names = context.scratch.tables_in(source)
            is_memory = source.lower() == "memory"
            tables = [
                name
                for name in self.names
                if name in context.catalog and (is_memory or name.lower() in names)
            ]
            context.compute(tables)
            return context.scratch.copy_database(sql, tables)

    def _is_main(self, statement: Write | Comment) -> bool:
        """Whether the name of a statement's table, without a schema, is that of one in memory."""
        scratch, target = self.context.scratch, statement.target
        if not scratch.is_elsewhere or target is None:
            return True
        has_it = not isinstance(statement, CreateTable) and target.name in self.context.catalog
        return has_it and scratch.leads_to_main(target.name)

    def _can_create(self, name: str, created: CreateTableAs) -> bool:
        """Whether a CREATE TABLE AS can run on the cluster."""
        # The scratch database runs the others: tables that exist already, and those with columns
        # that do not survive Arrow.
        context = self.context
        with context.up_to_date():
            if context.scratch.is_alone(created.query):
                return False
            exists = name in context.catalog or name.lower() in context.scratch.own_tables
            if (exists or name in context.sources) and not created.replaces:
                return False
            try:
                return survives_arrow(context.bind(created.query))
            except QueryError:  # perhaps it names what only the scratch database has
                return False

    def _write(self, statement: Write, target: Target | None) -> pa.Table:
        # The cluster loads the changes before the next query.
        context, sql = self.context, statement.sql
        if target is not None and target.name in context.sources:
            raise UnsupportedError(f"{target.name} is a source, which minishark only reads.")
        with context.writing:
            self._load_renamed(sql)
            is_here = context.scratch.is_alone(sql)
            if isinstance(statement, ChangeRows) and target is not None and not is_here:
                answer = self._change(statement, target)
                if answer is not None:
                    return answer
            if isinstance(statement, AlterTable) and target is not None and not is_here:
                answer = self._add_column(statement, target)
                if answer is not None:
                    return answer
            open_, reads_catalog = self._open, context.scratch.reads_catalog(sql)
            if reads_catalog and target is None:
                raise UnsupportedError(NO_CATALOG)
            if open_ is not None:
                if target is None:
                    raise UnsupportedError(NOT_IN_TRANSACTION)
                return self._write_in(open_, statement, target)
            if isinstance(statement, AlterTable) and statement.renamed and target is not None:
                self._check_free(statement.renamed, target)
            if target is not None and is_shared(target.name):
                return self._write_at_once(statement, target, ONLY_PLAIN)
            if target is not None and reads_catalog:
                if not isinstance(statement, ChangeRows):
                    return self._write_at_once(statement, target, NO_CATALOG)
                return self._change_of_catalog(statement, target)
            context.compute(context.planning.tables_in(sql))
            return context.scratch.write(sql, target)

    def _load_renamed(self, sql: str) -> None:
        """Have the cluster drop tables that were renamed, if a text may use these names."""
        if self.context.scratch.names_renamed(sql):
            with self.context.up_to_date():
                pass

    def _change_of_catalog(self, statement: ChangeRows, target: Target) -> pa.Table:
        """Run a statement on all rows of a table, which reads the catalog."""
        context, change = self.context, statement.change
        if not isinstance(change, Insert) or context.scratch.reads_catalog(change.clauses):
            return self._write_at_once(statement, target, NO_CATALOG)
        with context.up_to_date():
            sql, rows = of_catalog(context, statement)
            return context.scratch.write(sql, target, rows)

    def _change(self, statement: ChangeRows, target: Target) -> pa.Table | None:
        """Run a statement; its answer, or None if only the scratch database can run it."""
        change, context = statement.change, self.context
        if change is None:
            return None

        def changed(table: Table) -> pa.Table:
            memory = MemoryTable(table, context, self._open)
            return self._changes().apply(statement.sql, change, memory)

        try:
            find = partial(self._stored, target.name)
            return attempted(find, changed, context.restore, is_alone=self._open is None)
        except NotHereError:
            return None

    def _changes(self) -> Changes:
        return Changes.of(self.context, self.context.run, self.context.bind)

    def _add_column(self, statement: AlterTable, target: Target) -> pa.Table | None:
        """Add a column without a look at the rows; None if that is not what a statement does."""
        context = self.context
        if not statement.adds or self._open is not None or is_shared(target.name):
            return None
        table = self._stored(target.name)
        if table is None or context.scratch.reads_catalog(statement.sql):
            return None
        changed = MemoryTable(table, context, None)
        varies = context.planning.varies
        added = context.scratch.added_column(statement.sql, changed.shell, varies)
        if not isinstance(added, AddedColumn):
            return added
        if added.row.nbytes > _CONSTANT_BYTES_MAX:
            return None
        changed.add_column(added)
        return added.answer

    def _stored(self, name: str) -> Table | None:
        """A table whose rows are in the cluster alone."""
        context = self.context
        if context.scratch.must_keep(name):
            return None
        with context.up_to_date():
            table = context.catalog.find(name)
        return table if table is not None and table.is_computed else None

    def _comment(self, sql: str, target: Target | None) -> pa.Table:
        context = self.context
        with context.writing:
            is_here = target is None or context.scratch.is_alone(sql)
            table = None if target is None or is_here else self._stored(target.name)
            if table is not None:
                MemoryTable(table, context, self._open).comment(sql)
                return counted(0)
        return ScratchTables(context).execute(sql, comments=True)

    def _write_in(self, open_: MemoryTransaction, statement: Write, target: Target) -> pa.Table:
        """Run a statement in the scratch database, for a transaction."""
        with self.context.up_to_date():
            written = self._written(statement, target, NOT_IN_TRANSACTION)
            for name in written.gone:
                open_.drop(name)
            for table in self._built(written):
                open_.put(table)
        return written.answer

    def _write_at_once(self, statement: Write, target: Target, refusal: str) -> pa.Table:
        """The same without a transaction: nothing of it waits for the next query."""
        context = self.context
        with context.up_to_date():
            context.scratch.begin()
            try:
                written = self._written(statement, target, refusal)
            finally:
                context.scratch.end()
            names = (*written.gone, *(changed.name for changed in written.changed))
            dropped = [old for name in names if (old := context.catalog.find(name)) is not None]
            context.tables.replace(dropped, self._built(written))
        return written.answer

    def _written(self, statement: Write, target: Target, refusal: str) -> Written:
        """What a statement changes in the scratch database, where it leaves nothing.

        Raises:
            UnsupportedError: a table would be more than its columns, rows, defaults and keys.
        """
        context, sql = self.context, statement.sql
        planning = context.planning
        context.compute(planning.tables_in(sql))
        written = context.scratch.write_uncommitted(sql, target)
        exists_ok = isinstance(statement, CreateTable) and statement.table.exists_ok
        if exists_ok and (target.name in context.catalog or planning.has_view(target.name)):
            return Written(written.answer, (), ())
        if any(changed.definition is None for changed in written.changed):
            raise UnsupportedError(refusal)
        for changed in written.changed:
            self._check_free(changed.name, target)
        return written

    def _built(self, written: Written) -> list[Table]:
        """The tables that a statement has changed, not published yet."""
        made = []
        for changed in written.changed:
            with self.context.tables.folder(changed.name) as folder:
                made.append(built(self.context.tables, changed, folder))
        return made

    def _check_replaces(self, created: NewTable) -> None:
        """Raise AlreadyExistsError if a temporary table has another's name and may not replace it.

        It is in the same schema, in this session, and would take the other's place.
        """
        name = created.target[-1]
        if not (created.replaces and name.lower() in self.context.tables.temporary):
            raise AlreadyExistsError(
                f'Catalog Error: Table with name "{name}" already exists! Temporary tables of this '
                "session are in the schema main: take another name, or session.new_session(), "
                "whose temporary tables are its own."
            )

    def _check_free(self, name: str, target: Target) -> None:
        """Raise AlreadyExistsError if a table can't be created as, or renamed to, this name.

        The scratch database does not tell: it has neither the cluster's tables but the one that is
        changed, nor views of tables that a transaction has dropped.
        """
        exists = name in self.context.catalog
        if exists and name.lower() != target.name.lower():
            raise AlreadyExistsError(f'Catalog Error: Table with name "{name}" already exists!')
        if not exists and self.context.planning.has_view(name):
            raise AlreadyExistsError(f'Catalog Error: View with name "{name}" already exists!')


def _ends(statement: Write) -> bool:
    """Whether no temporary table has the name of a statement's table any more."""
    match statement:
        case DropTable():
            return True
        case CreateTable(table=created):
            return not created.exists_ok
    return False


def load_changed(tables: Tables, cached: CachedTables, scratch: ScratchDatabase) -> None:
    """Follow what has become of tables since this was called before; one thread at a time.

    Cached rows that nobody holds are freed, and what statements have changed in a session's scratch
    database is loaded, but for what only that can hold.
    """
    cached.sweep()
    for name in scratch.renamed():
        if name in tables.catalog:
            tables.drop(name)
    for table in scratch.changed():
        if table.rows is not None:
            with tables.folder() as folder:
                tables.publish(built(tables, table, folder), replace=True)
        elif table.name in tables.catalog:
            tables.drop(table.name)
        scratch.loaded(table)


def built(tables: Tables, changed: ScratchTable, folder: str) -> Table:
    """A table that a statement has changed in the scratch database, not published yet."""
    table = tables.build(changed.name, folder, changed.rows, Layout(replicas=2))
    return dataclasses.replace(
        table, definition=changed.definition or "", constraints=changed.constraints
    )
