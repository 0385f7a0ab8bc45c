"""The tables of a session: loading, publishing, dropping and restoring them."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any, TypeAlias

import pyarrow as pa
from msgspec import structs

from minishark.cluster.backend import CALLS_FOLDER, TRANSACTIONS_FOLDER, Placement, Workplace
from minishark.cluster.platforms import datasets_of
from minishark.cluster.shared.client import SharedTablesClient
from minishark.compiler.physical.options import PARTITIONS_MAX, check_partitions, is_whole_number
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    ConflictError,
    DataError,
    OptionError,
    PartitionsLostError,
)
from minishark.model.catalog import (
    ROW_NUMBER,
    Catalog,
    ColumnStatistics,
    Partition,
    Table,
    TableStatistics,
)
from minishark.model.expressions import Column, Schema
from minishark.query.clock import SYSTEM_CLOCK, Clock
from minishark.query.inputs import lost_partitions, partition_slices
from minishark.query.names import load_name, named
from minishark.query.observer import QueryObserver
from minishark.query.run import site_of
from minishark.query.sinks import Layout
from minishark.sources.contract import Source
from minishark.sources.files import NamedFiles, named_files
from minishark.sources.storage_options import Storage
from minishark.tables.changed_statistics import statistics_of, with_columns
from minishark.tables.deltas import (
    SIZES,
    DeltaWriter,
    Sizes,
    changed_files,
    must_merge,
    replaced_meanwhile,
    versions,
)
from minishark.tables.load import LoadedTable, Origin, TableLayout, TableLoader, TableSource
from minishark.tables.pieces import Pieces
from minishark.tables.rebalancing import DrainTracker
from minishark.tables.replication import Replicator, come_back, doubtful, readable
from minishark.tables.shared_tables import SharedTables, is_shared
from minishark.tables.sources import (
    SourceSize,
    arrow_table,
    check_text,
    few_rows,
    memory_source,
    pieces_source,
    split_source,
)
from minishark.worker.protocol import FileSlice
from minishark.worker.statistics import merge_statistics
from minishark.worker.store import InputMissingError
from minishark.worker.visible_rows import row_numbers

NUMBERED = "_minishark_numbered_"  # how the names of tables with numbered rows start
_SMALL_TABLE_ROWS = 20_000
_SMALL_TABLE_BYTES = 1 << 20
_READS_MAX = 5

Observed: TypeAlias = Callable[[str], AbstractContextManager[QueryObserver]]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """How a table was loaded from a source."""

    origin: Origin
    layout: Layout
    pieces: int  # in how many pieces it was read
    files: tuple[str, ...]  # of its partitions


@dataclass(slots=True)
class _Numbered:
    """The names of a table's numbered rows in the planning database, and how many use them."""

    names: set[str] = field(default_factory=set)
    users: int = 0


@dataclass(slots=True, kw_only=True)
class Tables:
    """Loads tables into a cluster, and publishes them to the catalog and the planning database."""

    cluster: Workplace  # where they are stored
    planning: PlanningDatabase
    placement: Callable[[], Placement]  # gives the placement for loading tasks
    partitions: int  # the default number of partitions
    warn: Callable[[str], None]  # takes warnings for the user
    observed: Observed  # gives the observer of a load of no session, by what it is called
    storage: Storage  # how object stores are reached
    catalog: Catalog = field(default_factory=Catalog)  # the published tables
    client: SharedTablesClient | None = None  # of those that belong to the cluster
    clock: Clock = SYSTEM_CLOCK
    sizes: Sizes = SIZES  # of the files that changes make
    names_rows: bool = False  # whether sessions that load equal rows are to know that
    # What files of partitions were made from, where that is known: the same in every session.
    contents: dict[str, str] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _loads: itertools.count[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    # By the folder of a load: where its rows are from; the first load with the same rows; nodes'
    # storage folders.
    _origins: dict[str, _Loaded] = field(default_factory=dict)
    _same_as: dict[str, str] = field(default_factory=dict)
    _homes: dict[str, dict[str, str]] = field(default_factory=dict)
    # By the folder of a load: nodes that have lost its files, and which version was current then.
    _emptied: dict[str, dict[str, int]] = field(default_factory=dict)
    deltas: DeltaWriter = field(init=False)
    shared: SharedTables | None = field(init=False)
    _numbered: dict[str, _Numbered] = field(default_factory=dict)  # by the folder of a load
    _retired: DrainTracker = field(default_factory=DrainTracker)  # files of former versions
    # Folders of tables that are no more, with the transactions that may still read them.
    _forgotten: dict[str, frozenset[str]] = field(default_factory=dict)
    _restoring: AbstractContextManager[Any] = field(init=False)
    # By name in lower case: those that `connect`'s session calls temporary, though they are in the
    # catalog as others are. CREATE OR REPLACE TEMP TABLE may replace these alone.
    temporary: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.deltas = DeltaWriter(cluster=self.cluster, sizes=self.sizes)
        self.shared = None
        if self.client is not None:
            files, catalog = self.cluster, self.catalog
            self.shared = SharedTables(client=self.client, files=files, catalog=catalog)
        self._restoring = self.clock.lock()

    def build(
        self,
        name: str,
        folder: str,
        data: Any,
        layout: Layout,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        observed: Observed | None = None,
    ) -> Table:
        """Load data into a folder, as a table that is not published yet.

        Args:
            name: the table's.
            folder: where its files go.
            data: what `Session.create_table` takes, but for paths; or files with such.
            layout: how its rows are partitioned.
            on_progress: called with the number of tasks done and of all tasks.
            observed: gives the observer of the load, if another one than for loads of no session.
        """
        table, loaded = self._built(name, folder, data, layout, on_progress, observed=observed)
        if loaded is not None:
            self._origins[folder] = loaded
        return table

    def _built(
        self,
        name: str,
        folder: str,
        data: Any,
        layout: Layout,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        pieces: int | None = None,
        observed: Observed | None = None,
    ) -> tuple[Table, _Loaded | None]:
        """A table, and how to load it again if it comes from a source."""
        with self.loading(name, observed=observed) as observer, contextlib.ExitStack() as folders:
            if isinstance(data, NamedFiles):
                data = named_files(data.pattern, data.reach)
            if (theirs := datasets_of(data)) is not None:
                data = theirs.pieces(data, self.cluster)
            if not isinstance(data, Source | Pieces):
                data = arrow_table(data)
                check_text(data)
                small = self._stored_here(name, folder, data, layout)
                if small is not None:
                    if on_progress is not None:
                        on_progress(1, 1)
                    return small, None
            rows_folder, buckets = folders.enter_context(self.temporary_folders(folder))
            pieces = pieces or layout.partitions or self.partitions
            source, size = self._source(data, rows_folder, pieces)
            columns = [column.name for column in source.schema]
            keys = named_columns(name, layout.partition_by, columns)
            laid_out = self.layout(replace_fields(layout, partition_by=keys), size)
            loader = self._loader(
                folder, source, laid_out, observer, buckets=buckets, on_progress=on_progress
            )
            content = _content(source, laid_out)  # before files can have changed
            table = self._loaded_as(name, loader)
            self._note_content(table, content)
            if source.origin is None:
                return table, None
            again = Layout(
                partition_by=keys, partitions=len(table.partitions), replicas=laid_out.replicas
            )
            files = tuple(partition.file for partition in table.partitions)
            return table, _Loaded(source.origin, again, pieces, files)

    def _stored_here(self, name: str, folder: str, data: pa.Table, asked: Layout) -> Table | None:
        """A table of few rows, which the front end stores and measures itself; else None.

        That takes a tenth of the time of a task.
        """
        layout = self.layout(asked, SourceSize(data.nbytes, data.num_rows))
        if layout.partitions > 1 or layout.partition_by or self._shared_for(name) is not None:
            return None
        few = few_rows(data, is_named=self.names_rows)
        if few is None:
            return None
        part = self.deltas.stored(folder, few.rows, layout.replicas)
        table = Table(
            name=name,
            schema=few.schema,
            partitions=(part,),
            partition_by=(),
            statistics=statistics_of(few.schema, few.rows, part.bytes),
            replicas=layout.replicas,
        )
        source = TableSource(schema=few.schema, slices=partition_slices(part), digest=few.digest)
        self._note_content(table, _content(source, layout))
        return table

    def _note_content(self, table: Table, content: str | None) -> None:
        if content is not None:
            for part in table.partitions:
                self.contents[part.file] = named(content, str(part.index))

    @contextlib.contextmanager
    def folder(self, name: str = "") -> Iterator[str]:
        """A new table's folder on every node; removed again if loading fails."""
        if (shared := self._shared_for(name)) is not None:
            folder = shared.folder()
        else:
            folder = self.cluster.folder(f"tables/{next(self._numbers)}")
        self._homes[folder] = self.cluster.homes()
        try:
            self.cluster.make_folder(folder)
            yield folder
        except BaseException:
            self.forget(folder)
            raise

    @contextlib.contextmanager
    def temporary_folders(self, folder: str) -> Iterator[tuple[str, str]]:
        """Folders for a table's source and its buckets, removed when it is loaded.

        With a number, as several loads may store files in one table's folder at a time.
        """
        number = next(self._loads)
        if self.shared is not None and self.shared.is_own(folder):  # those are the session's
            folder = self.cluster.folder(f"tables/{folder.rpartition('/')[2]}")
        temporary = (f"{folder}-source{number}", f"{folder}-buckets{number}")
        try:
            self.cluster.make_folder(*temporary)
            yield temporary
        finally:
            self.cluster.remove_folder(*temporary)

    # Tables that belong to the cluster

    def _shared_for(self, name: str) -> SharedTables | None:
        """What knows a table of that name, if it is one that belongs to the cluster."""
        return self.shared if is_shared(name) else None

    def _commit(
        self, changes: Iterable[tuple[Table | None, Table | None]], *, whatever: bool = False
    ) -> dict[str, Table]:
        """Make those of tables, with the ones before, count that belong to the cluster."""
        of_cluster = [
            (old, new)
            for old, new in changes
            if (table := new or old) is not None and self._shared_for(table.name) is not None
        ]
        if self.shared is None or not of_cluster:
            return {}
        homes = self._homes
        return self.shared.commit(
            of_cluster, homes=lambda folder: homes.get(folder, {}), whatever=whatever
        )

    def read_shared(self) -> None:
        """Know the tables that belong to the cluster as they are now."""
        if self.shared is None:
            return
        with self._lock:
            gone = list[str]()
            for name, table in self.shared.read():
                old = self.catalog.find(name)
                if table is None:
                    self.catalog.remove(name)
                    self.planning.remove_table(name)
                else:
                    self.catalog.add(table)
                    self._see(table, old)
                if old is not None and (table is None or table.folder != old.folder):
                    gone.append(old.folder)
        for folder in gone:
            self.forget(folder)

    def _see(self, table: Table, old: Table | None) -> None:
        """Let statements see a version of a table that others may have made."""
        if old is not None and old.folder == table.folder and old.schema == table.schema:
            if not old.same_rows(table):
                self.planning.update_table(table)
            return
        self.planning.put_table(table)
        if table.folder not in self._homes:
            self._homes[table.folder] = {}
            self.cluster.make_folder(table.folder)

    def drop(self, name: str) -> None:
        with self._lock:
            table = self.catalog.get(name)
            self._commit([(table, None)], whatever=True)
            self.catalog.remove(name)
            self.planning.remove_table(name)
        self.forget(table.folder)

    def forget(self, folder: str) -> None:
        """Free the files of a load that is no table of the catalog any more."""
        for file in [file for file in list(self.contents) if file.startswith(f"{folder}/")]:
            self.contents.pop(file, None)
        self._origins.pop(folder, None)
        self._same_as.pop(folder, None)
        self.deltas.forget(folder)
        if readers := self._transactions():
            self._forgotten[folder] = readers
        self._homes.pop(folder, None)
        self._drop_numbered(folder)
        self._emptied.pop(folder, None)
        self.remove_if_dropped(folder)

    def remove_if_dropped(self, folder: str) -> None:
        """Remove the folder of a table that was dropped, unless a transaction may read it.

        Called when something has been written there, too, which makes the folder again.
        """
        if folder not in self._homes and folder not in self._forgotten:
            self._remove(folder)

    def _remove(self, folder: str) -> None:
        """Remove the folder of a table; others may still read those that belong to the cluster."""
        if self.shared is not None and not self.shared.may_remove(folder):
            self.shared.leave(folder)
        else:
            self.cluster.remove_folder(folder)

    def _transactions(self) -> frozenset[str]:
        """The folders of transactions that are open."""
        home = f"{self.cluster.folder(TRANSACTIONS_FOLDER)}/"
        return frozenset(folder for folder in self.cluster.open_folders if folder.startswith(home))

    def read(self, name: str) -> pa.Table:
        for _ in range(_READS_MAX - 1):
            table = self.catalog.get(name)
            try:
                return self.stored_rows(table)
            except (InputMissingError, OSError) as error:
                if self.is_current(table):  # else it was replaced, or its replicas moved
                    files = error.files if isinstance(error, InputMissingError) else ()
                    lost = lost_partitions(table, files)
                    if lost is None:
                        raise
                    self.restore(lost)
        return self.stored_rows(self.catalog.get(name))

    def stored_rows(self, table: Table) -> pa.Table:
        slices = [item for p in table.partitions for item in partition_slices(p)]
        return self.cluster.store().read(tuple(slices))

    # Changes

    def changed(
        self,
        *changes: tuple[Table, Table],
        created: Iterable[Table] = (),
        dropped: Iterable[Table] = (),
        planned: AbstractContextManager[None] | None = None,
    ) -> Sequence[Table]:
        """Publish the next versions of tables, all at once: each with the one before.

        Args:
            changes: of tables that stay the same load.
            created: tables that are published, too; what has their name is dropped.
            dropped: tables that are to be no more.
            planned: what the planning database has to know of created and dropped tables.

        Returns:
            The next versions as they are published.

        Raises:
            ConflictError: a table has another version by now; nothing was published.
        """
        gone = {table.name.lower(): table for table in dropped}
        with self._lock:
            for old in gone.values():
                self._current(old)
            for new in created:
                if new.name in self.catalog and new.name.lower() not in gone:
                    raise ConflictError(replaced_meanwhile(new.name))
            current = [self._current(old) for old, _ in changes]
            doubted = [self._doubted(old) for old in current]
            made = (new for _, new in changes)
            changed_tables = [*map(_relocated, made, current, doubted)]
            before = [(gone.get(new.name.lower()), new) for new in created]
            names = {new.name.lower() for new in created}
            ends = [(old, None) for name, old in gone.items() if name not in names]
            pairs = zip(current, changed_tables, strict=True)
            shared = self._commit([*pairs, *before, *ends])
            changed_tables = [shared.get(new.name, new) for new in changed_tables]
            created = [shared.get(new.name, new) for new in created]
            with planned or contextlib.nullcontext():
                self.catalog.change((*changed_tables, *created), gone)
            for new in changed_tables:
                self.planning.update_table(new)
            for old, nodes in zip(current, doubted, strict=True):
                if nodes:
                    self._ask_again(old.folder, nodes)
        for old in gone.values():
            self.forget(old.folder)
        for old, new in changes:
            if self._shared_for(old.name) is None:  # others may read them
                self.retire(changed_files(old, new))
        self.sweep()
        return changed_tables

    def replace(self, dropped: Sequence[Table], created: Sequence[Table]) -> None:
        """Publish tables in the place of others, all at once.

        Raises:
            ConflictError: one of these has another version by now; nothing was published.
        """

        @contextlib.contextmanager
        def planned() -> Iterator[None]:
            yield
            for old in dropped:
                self.planning.remove_table(old.name)
            for new in created:
                self.planning.put_table(new)

        try:
            self.changed(created=created, dropped=dropped, planned=planned())
        except BaseException:
            for new in created:
                self.forget(new.folder)
            raise

    def _doubted(self, old: Table) -> Collection[str]:
        """The nodes that lost files since a version was published.

        They may have come back since, but what a change of it has stored there may be gone.
        """
        if not self._emptied:
            return ()
        emptied = self._emptied.get(old.folder, {})
        return [node for node, version in emptied.items() if version == old.version]

    def _ask_again(self, folder: str, nodes: Collection[str]) -> None:
        """Let the replicator ask nodes anew what they have of a load, as if they had started again.

        In a new dict: what it is asking now is about former files.
        """
        homes = self._homes.get(folder, {})
        self._homes[folder] = {node: home for node, home in homes.items() if node not in nodes}

    def _current(self, old: Table) -> Table:
        current = self.catalog.again(old)
        if current is None:
            raise ConflictError(replaced_meanwhile(old.name))
        return current

    def retire(self, files: Mapping[str, Sequence[str]]) -> None:
        """Files that no version has any more, with their locations, are deleted some time."""
        if not files:
            return
        readers = self.cluster.open_folders
        for file, nodes in files.items():
            if self.shared is not None and not self.shared.may_retire(file):
                continue
            for node in nodes:
                self._retired.give_up(file, node, readers)

    def merged(self, table: Table) -> Table:
        """The same rows, with partitions stored again that have lost many."""
        worn = [partition for partition in table.partitions if must_merge(partition)]
        if not worn:
            return table
        partitions = list(table.partitions)
        for partition in self.stored_again(table, worn):
            partitions[partition.index] = partition
        return replace_fields(table, partitions=tuple(partitions), version=next(versions))

    def stored_again(self, table: Table, worn: Sequence[Partition]) -> list[Partition]:
        """Partitions of a table with the same rows, each in one file."""
        source = TableSource(schema=table.schema, merged=tuple(worn))
        return [*self._stored_again(table, source, table.replicas, "merge").partitions]

    def patched(
        self, table: Table, patches: Mapping[int, tuple[FileSlice, ...]], columns: Sequence[int]
    ) -> Table:
        """The next version of a table, of which tasks store partitions again as patches say.

        Args:
            table: the table.
            patches: stored patches (`worker/patches.py`) by the partitions' indices.
            columns: the positions of the columns that they set.

        Raises:
            DataError: they say two things of a row.
            FilesLostError: a file of the table or of a patch is lost.
        """
        concerned = [table.partitions[index] for index in patches]
        numbered = [replace_fields(part, is_numbered=True) for part in concerned]
        return self._with_columns(table, numbered, {"patch": patches}, columns)

    def with_values(
        self, table: Table, values: Mapping[int, tuple[FileSlice, ...]], columns: Sequence[int]
    ) -> Table:
        """The next version of a table, of which tasks store partitions again with new columns.

        Args:
            table: the table.
            values: what these have in each row, after another column, by the partitions' indices.
            columns: their positions.

        Raises:
            FilesLostError: a file of the table or of the values is lost.
        """
        concerned = [table.partitions[index] for index in values]
        return self._with_columns(table, concerned, {"values": values}, columns)

    def _with_columns(
        self,
        table: Table,
        concerned: Sequence[Partition],
        given: Mapping[str, Mapping[int, tuple[FileSlice, ...]]],
        columns: Sequence[int],
    ) -> Table:
        """The next version, of which partitions are stored again as further inputs say."""
        further = tuple(
            {name: slices[part.index] for name, slices in given.items()} for part in concerned
        )
        source = TableSource(
            schema=table.schema, merged=tuple(concerned), further=further, set=tuple(columns)
        )
        loaded = self._stored_again(table, source, max(2, table.replicas), "change")
        partitions = list(table.partitions)
        for part in loaded.partitions:
            partitions[part.index] = part
        new = replace_fields(table, partitions=tuple(partitions), version=next(versions))
        if not columns:
            return new
        measured = self.statistics_of(loaded, tuple(table.schema[i] for i in columns))
        statistics = with_columns(
            table.statistics, table.schema, columns, measured, rows=new.rows, size_bytes=new.bytes
        )
        return replace_fields(new, statistics=statistics)

    def _stored_again(
        self, table: Table, source: TableSource, replicas: int, verb: str
    ) -> LoadedTable:
        """Partitions of a table, each in one file, in the place of the old ones."""
        copies = self.copies(len(table.partitions), replicas)
        layout = TableLayout((), len(source.merged), copies)
        with (
            self._into(table),
            self.temporary_folders(table.folder) as (_, buckets),
            self.loading(table.name, verb) as observer,
        ):
            loader = self._loader(table.folder, source, layout, observer, buckets=buckets)
            try:
                loaded = loader.load()
            except BaseException:
                self.retire(loader.stored())
                raise
        partitions = tuple(
            replace_fields(new, index=old.index)
            for old, new in zip(source.merged, loaded.partitions, strict=True)
        )
        return replace_fields(loaded, partitions=partitions)

    @contextlib.contextmanager
    def _into(self, table: Table) -> Iterator[None]:
        """Tasks store files in the folder of a table, which may be dropped meanwhile."""
        try:
            yield
        finally:
            self.remove_if_dropped(table.folder)

    @contextlib.contextmanager
    def numbered(self, table: Table, *, is_alone: bool = False) -> Iterator[Table]:
        """The same rows with their numbers, as a table that only views of the catalog have.

        It can be planned within the block, also if others drop the table meanwhile.

        For a query that reads no other table (`is_alone`), nothing needs to be known of the rows to
        plan it, and large miniatures take long to make.
        """
        name = numbered_name(f"{'alone_' if is_alone else ''}{table.folder}")
        columns = (*table.statistics.columns, ColumnStatistics(distinct=table.rows))
        seen = replace_fields(
            table,
            name=name,
            title=table.title or table.name,
            schema=(*table.schema, Column(ROW_NUMBER, "BIGINT")),
            partitions=tuple(replace_fields(p, is_numbered=True) for p in table.partitions),
            statistics=structs.replace(table.statistics, columns=columns),
        )
        planned = seen
        if is_alone:
            unknown = TableStatistics(1, 0, tuple(ColumnStatistics() for _ in columns))
            planned = replace_fields(seen, statistics=unknown)
        with self._lock:
            numbered = self._numbered.setdefault(table.folder, _Numbered())
            if name in numbered.names:
                self.planning.update_table(planned)
            else:
                self.planning.put_table(planned)
                numbered.names.add(name)
            numbered.users += 1
        try:
            yield seen
        finally:
            with self._lock:
                numbered.users -= 1
            if table.folder not in self._homes:  # it was dropped
                self._drop_numbered(table.folder)

    def _drop_numbered(self, folder: str) -> None:
        with self._lock:
            numbered = self._numbered.get(folder)
            if numbered is None or numbered.users:
                return
            for name in self._numbered.pop(folder).names:
                self.planning.remove_table(name)

    def sweep(self) -> None:
        """Delete files of former versions, and tables, that nothing open can be reading."""
        cluster = self.cluster
        if self._forgotten:
            readers = self._transactions()
            for folder, then in tuple(self._forgotten.items()):
                if then.isdisjoint(readers):
                    self._forgotten.pop(folder, None)
                    self._remove(folder)
        lasting = {cluster.folder(CALLS_FOLDER), *self.catalog.folders}
        for file, node in self._retired.superfluous(cluster.open_folders - lasting):
            self.cluster.remove_copy(file, node)

    # Replication and restoring

    def replicator(self) -> Replicator:
        return Replicator(
            cluster=self.cluster,
            # The cluster sees to the replicas of its own.
            tables=lambda: tuple(t for t in self.catalog if self._shared_for(t.name) is None),
            homes=lambda table: self._homes.get(table.folder, {}),
            moved=self._moved,
            dropped=self.remove_if_dropped,
            clock=self.clock,
        )

    def doubted(self, table: Table) -> tuple[str, ...]:
        """Nodes that have started again and were not asked since what they have of a table."""
        shared = self._shared_for(table.name)
        known = self._homes.get(table.folder, {}) if shared is None else shared.homes(table.name)
        return tuple(doubtful(self.cluster.homes(), known))

    def _moved(
        self,
        table: Table,
        index: int,
        new_nodes: Sequence[str],
        gone: Sequence[str],
        left: Sequence[str],
    ) -> bool:
        """Change the locations of a partition.

        Args:
            table: the table.
            index: the partition's.
            new_nodes: nodes that have it now.
            gone: nodes that have lost it, with all their files.
            left: nodes from which it has moved: they have the others that they had.

        Returns:
            Whether they have changed: not if the table was replaced meanwhile, or the partition has
            other files. Former ones are nowhere, which says nothing about those.
        """
        with self._lock:
            if not self.is_current(table):
                return False  # it was dropped or replaced while it was copied
            current = self.catalog.get(table.name)
            partition = current.partitions[index]
            if partition.files != table.partitions[index].files:
                return False  # it has changed meanwhile: the next round sees to what it is now
            stored = [n for n in partition.locations if n not in (*gone, *left)]
            emptied = self._emptied.setdefault(table.folder, {})
            emptied.update(dict.fromkeys(gone, current.version))
            self.catalog.add(
                current.with_locations(index, tuple(dict.fromkeys((*stored, *new_nodes))))
            )
            return True

    def is_current(self, table: Table) -> bool:
        """Whether the table of that name is still the same load, wherever it is stored."""
        return table.name in self.catalog and self.catalog.get(table.name).folder == table.folder

    def content(self, table: Table) -> str:
        """Identifies a table's rows: the same for a load and those that repeat it."""
        content = self._same_as.get(table.folder, table.folder)
        return f"{content}@{table.version}" if table.version else content

    def repeats(self, table: Table, content: str) -> None:
        """A table about to be published has the same rows as a lost one, with this content."""
        self._same_as[table.folder] = content

    def come_back(self, name: str, lost: PartitionsLostError, check: Callable[[], None]) -> None:
        """Wait for lost partitions while nodes may have them that do not answer.

        Args:
            name: the table's, in the catalog.
            lost: says what was not found.
            check: called while this waits; what it raises ends the wait.

        Raises:
            PartitionsLostError: of those that nobody has.
        """
        come_back(self.cluster, lambda: self.catalog.find(name), lost, self.clock, check)

    def restore(self, lost: PartitionsLostError) -> None:
        """Load a table again whose partitions are lost, if its source has not changed."""
        with self._restoring:  # several queries may find the same table lost
            if is_of_cluster := self._shared_for(lost.table) is not None:
                self.read_shared()
            table = self.catalog.find(lost.table)
            if table is None:
                raise lost
            if not any(file in lost.files for part in table.partitions for file in part.files):
                return  # another thread was faster
            loaded = self._origins.get(table.folder)
            if loaded is None or is_of_cluster:
                raise lost
            origin = loaded.origin
            if not _is_unchanged(origin):
                raise _without_source(lost, origin)
            self.warn(f"Table {table.name} was lost with its nodes, and is loaded again.")
            # If a statement has changed or dropped the table meanwhile, its version stays: whoever
            # waits for the rows plans again.
            with contextlib.suppress(ConflictError):
                if table.version:
                    self._restore_changed(table, loaded, lost)
                else:
                    self._load_again(table, loaded, lost)

    def _load_again(self, table: Table, before: _Loaded, lost: PartitionsLostError) -> None:
        with self.folder() as folder:
            loaded, self._origins[folder] = self._built_again(table, folder, before, lost)
            self.repeats(loaded, self.content(table))
            self.publish(loaded, replace=True, restores=table)

    def _built_again(
        self, table: Table, folder: str, before: _Loaded, lost: PartitionsLostError
    ) -> tuple[Table, _Loaded]:
        """The rows that a table was loaded with, in a folder; raises `lost` if they have changed.

        They may do so after somebody has looked, and until the load begins.
        """
        built, loaded = self._built(
            table.name, folder, before.origin.source, before.layout, pieces=before.pieces
        )
        if loaded is None or loaded.origin.version != before.origin.version:
            self._retire_partitions(built.partitions)
            raise _without_source(lost, before.origin)
        return built, loaded

    def _restore_changed(self, table: Table, before: _Loaded, lost: PartitionsLostError) -> None:
        """Load lost files of a table again that statements have changed since.

        The same pieces of the same source give the same rows in the same order: what was deleted is
        known by its place. Rows that were added are on other nodes or in the session's own store.
        """
        there = readable(self.cluster)
        needed = [
            part
            for part in table.partitions
            if there.isdisjoint(part.locations) or any(file in lost.files for file in part.files)
        ]
        if any(before.files[part.index : part.index + 1] != (part.file,) for part in needed):
            raise _stored_again(lost)
        with self._into(table):
            loaded, _ = self._built_again(table, table.folder, before, lost)
        unused = {part.file: part for part in loaded.partitions}
        try:
            partitions = list(table.partitions)
            for old in needed:
                again = loaded.partitions[old.index]
                partitions[old.index] = self._with_changes(table, old, again, lost)
            version = next(versions)
            self.changed(
                (table, replace_fields(table, partitions=tuple(partitions), version=version))
            )
            for old in needed:
                del unused[loaded.partitions[old.index].file]
        finally:
            self._retire_partitions(unused.values())
            self.sweep()
        with self._lock:
            if table.folder in self._origins:  # else it was dropped just now
                files = {old.index: loaded.partitions[old.index].file for old in needed}
                first = tuple(files.get(i, file) for i, file in enumerate(before.files))
                self._origins[table.folder] = replace_fields(before, files=first)

    def _with_changes(
        self, table: Table, old: Partition, again: Partition, lost: PartitionsLostError
    ) -> Partition:
        """A partition that was loaded again, with what statements have changed in it since."""
        own = old.rows - sum(delta.rows for delta in old.deltas) + len(row_numbers(old.deleted))
        if again.rows != own:
            raise _stored_again(lost)
        new = replace_fields(old, file=again.file, locations=again.locations, deltas=())
        try:
            return self.deltas.with_same(table, new, old)
        except InputMissingError as error:
            raise lost from error

    def _retire_partitions(self, partitions: Iterable[Partition]) -> None:
        self.retire({part.file: part.locations for part in partitions})

    def _source(
        self, data: Source | Pieces | pa.Table, folder: str, pieces: int
    ) -> tuple[TableSource, SourceSize]:
        if isinstance(data, Source):
            return split_source(data.within(self.storage.access), pieces)
        if isinstance(data, Pieces):
            return pieces_source(data, folder, self.planning, pieces)
        return memory_source(
            data,
            self.cluster.store(),
            folder,
            self.cluster.store_name,
            self.planning,
            pieces,
            is_named=self.names_rows,
        )

    def layout(self, asked: Layout, size: SourceSize) -> TableLayout:
        """A layout with defaults by the size of the data: every node stores small tables."""
        small = size.bytes <= _SMALL_TABLE_BYTES and (size.rows or 0) <= _SMALL_TABLE_ROWS
        one = small and not asked.partition_by
        count = asked.partitions or (1 if one else self.partitions)
        return TableLayout(asked.partition_by, count, self.copies(count, asked.replicas))

    def copies(self, partitions: int, replicas: int) -> int:
        """The number of nodes that store each partition; all nodes store a single one."""
        nodes = len(self.cluster.nodes)
        return max(nodes, replicas) if partitions == 1 else replicas

    @contextlib.contextmanager
    def loading(
        self, name: str, verb: str = "load", observed: Observed | None = None
    ) -> Iterator[QueryObserver]:
        """The observer of a load, which is told when it is over."""
        began_s = time.perf_counter()
        with (observed or self.observed)(f"{verb} {name}") as observer:
            yield observer
            observer.ended(time.perf_counter() - began_s)

    def load(
        self,
        name: str,
        folder: str,
        source: TableSource,
        layout: TableLayout,
        *,
        verb: str = "load",
    ) -> Table:
        """Load a source into a folder, as a table that is not published yet.

        `verb` says in events what is done to the table.
        """
        with self.temporary_folders(folder) as (_, buckets), self.loading(name, verb) as observer:
            loader = self._loader(folder, source, layout, observer, buckets=buckets)
            return self._loaded_as(name, loader)

    def _loaded_as(self, name: str, loader: TableLoader) -> Table:
        layout, schema = loader.layout, loader.source.schema
        return self.described(
            name, schema, layout.partition_by, loader.load(), replicas=layout.replicas
        )

    def _loader(
        self,
        folder: str,
        source: TableSource,
        layout: TableLayout,
        observer: QueryObserver,
        *,
        buckets: str,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> TableLoader:
        return TableLoader(
            site=site_of(self.cluster, self.placement, folder, buckets, clock=self.clock),
            folder=folder,
            buckets=buckets,
            source=source,
            layout=layout,
            observer=observer,
            on_progress=on_progress,
            storage=self.storage,
        )

    def described(
        self,
        name: str,
        schema: Schema,
        keys: tuple[str, ...],
        loaded: LoadedTable,
        *,
        replicas: int,
    ) -> Table:
        if loaded.on_disk:
            self.warn(
                f"There is no room in shared memory: table {name} is on disk, which is slower."
            )
        self.deltas.note(loaded.partitions, loaded.measured)
        return Table(
            name=name,
            schema=schema,
            partitions=loaded.partitions,
            partition_by=keys,
            statistics=self.statistics_of(loaded, schema),
            replicas=replicas,
        )

    def statistics_of(self, loaded: LoadedTable, schema: Schema) -> TableStatistics:
        columns = [(column.name, column.type) for column in schema]
        size = sum(partition.bytes for partition in loaded.partitions)
        return merge_statistics(loaded.measured, columns, size)

    def publish(self, table: Table, *, replace: bool, restores: Table | None = None) -> None:
        """Let statements see a table, in the place of one of that name if it may `replace` it.

        Raises:
            AlreadyExistsError: there is one already.
            ConflictError: the version that it `restores` is not current any more.
        """
        with self._lock:
            if restores is not None:
                self._current(restores)
            replaced = self.catalog.get(table.name) if table.name in self.catalog else None
            if replaced is not None and not replace:
                raise AlreadyExistsError(f"There is a table called {table.name!r} already.")
            try:
                shared = self._commit([(None, table)], whatever=replace)
            except ConflictError as error:
                raise AlreadyExistsError(f"{table.name!r} exists: {error}") from error
            table = shared.get(table.name, table)
            self.catalog.add(table)
            self.planning.put_table(table)
        if replaced is not None:
            self.forget(replaced.folder)


def _content(source: TableSource, layout: TableLayout) -> str | None:
    """What the partitions of a load are made from; None if that can't be told."""
    if bool(source.slices) != bool(source.digest) or not (source.reads or source.slices):
        return None
    columns = (part for column in source.schema for part in (column.name, column.type))
    layout_parts = (str(layout.partitions), *layout.partition_by, "columns", *columns)
    return load_name(source.reads, *layout_parts, rows=source.digest)


def numbered_name(of: str) -> str:
    """The name of a table with numbered rows: one word, for which no text is searched in part."""
    return NUMBERED + re.sub(r"\W", "_", of)


def _relocated(new: Table, current: Table, doubted: Collection[str]) -> Table:
    """The next version of `current`, whose replicas may have moved while it was made.

    Nodes that are `doubted` may lack what was stored for it; if no other has that, they count.

    Raises:
        ConflictError: no node has both what was there and what was stored for it.
    """
    partitions = list(new.partitions)
    for i, now in enumerate(current.partitions):
        made = partitions[i]
        if made is now:  # what was changed is elsewhere
            continue
        if made.same_files(now):
            partitions[i] = replace_fields(made, locations=now.locations)
        else:
            still = now.locations if made.file == now.file else made.locations
            there = tuple(n for n in made.locations if n in still)
            if made.locations and not there:
                raise ConflictError(replaced_meanwhile(new.name))
            sure = tuple(n for n in there if n not in doubted)
            partitions[i] = replace_fields(made, locations=sure or there)
    return replace_fields(new, partitions=tuple(partitions))


def check_layout(layout: Layout) -> None:
    check_partitions(layout.partitions)
    if not is_whole_number(layout.replicas, PARTITIONS_MAX):
        raise OptionError("replicas must be a whole number, at least 1.")


def named_columns(table: str, names: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    by_name = {column.lower(): column for column in columns}
    for name in names:
        if name.lower() not in by_name:
            there = ", ".join(by_name.values())
            raise CatalogError(f"Table {table} has no column {name!r}; its columns are {there}.")
    return tuple(by_name[name.lower()] for name in names)


def _without_source(lost: PartitionsLostError, origin: Origin) -> PartitionsLostError:
    """What to raise for lost partitions whose source has other rows by now."""
    why = f", and {origin.source.name} has changed since"
    return PartitionsLostError(lost.table, lost.partitions, lost.files, why)


def _stored_again(lost: PartitionsLostError) -> PartitionsLostError:
    """What to raise for lost partitions that can't be told from those that were loaded."""
    why = ", and a task has stored it again since it was loaded"
    return PartitionsLostError(lost.table, lost.partitions, lost.files, why)


def _is_unchanged(origin: Origin) -> bool:
    """Whether a source still has the version that a table was loaded from."""
    try:
        return origin.source.resolve().version == origin.version
    except DataError:
        return False
