"""Tables that stand for sources: those that users name, and files that queries name.

The planning database has a miniature of each. `FROM 'part-*.parquet'` and calls of readers such as
`read_parquet('...')` are replaced by the name of such a table before the query is planned. A query
reads one version of each source: what was there when it was planned.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import duckdb
import pyarrow as pa

from minishark.compiler.hints import UNNAMED_SOURCE, SourceScan
from minishark.compiler.logical.operators import Scan, Statement
from minishark.compiler.logical.plan import LogicalPlan
from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.rules import enabled
from minishark.compiler.rules.rule import Phase
from minishark.compiler.rules.source_pushdown import plan_over
from minishark.compiler.sql.planning import PlanningDatabase
from minishark.compiler.sql.tokens import (
    Call,
    Edit,
    edited,
    find_calls,
    mentioned,
    named_argument,
    split_arguments,
    unquoted,
)
from minishark.compiler.sql.views import View, may_name_files
from minishark.errors import (
    CatalogError,
    DataError,
    MinisharkError,
    OptionError,
    QueryError,
)
from minishark.model.catalog import ColumnStatistics, Partition, Table, TableStatistics
from minishark.model.expressions import Schema, quote
from minishark.model.predicates import Pushed
from minishark.query.remote_calls import LOCAL_READERS, RemoteFiles, without_remote_files
from minishark.sources.contract import Snapshot, Source, Split
from minishark.sources.files import FileSource, reader_of
from minishark.sources.filesystems import StoredFile, is_remote, list_files, stat_file
from minishark.sources.groups import steady_groups
from minishark.sources.mapped_parquet import MappedParquet
from minishark.sources.parquet import ParquetPart
from minishark.sources.parquet_parts import FilePart
from minishark.sources.registry import SCAN_FUNCTIONS, ScanFunction
from minishark.sources.storage_options import Storage
from minishark.worker.host_files import HostFiles
from minishark.worker.scans import Scans, SplitRead, joined

_FILES_MAX = 64
_TEXTS_MAX = 64
_CALLS_MAX = 256
"""How many calls of functions, and as many of readers, are known whose tables nobody holds."""
_READ_BYTES_MAX = 256 << 20
"""The bytes of splits that one task reads, about, where there are many splits."""
_SCANS_MAX = 100  # of files in one task that has several threads
_STEADY_GROUPS = 64
_STEADY_BYTES_MIN = 4 << 20  # less is not worth a task, even if others need not run again
_ROWS_UNKNOWN = 1_000_000
_ROW_BYTES = 100
_IMPLIED = {"read_ndjson": "newline_delimited", "read_ndjson_auto": "newline_delimited"}
_OPTIONS = {
    "read_parquet": "binary_as_string",
    "read_csv": """all_varchar allow_quoted_nulls auto_detect auto_type_candidates columns comment
        compression date_format dateformat decimal_separator delim delimiter dtypes escape
        force_not_null header max_line_size names new_line normalize_names null nullstr quote
        sample_size sep skip strict_mode thousands timestamp_format timestampformat types""",
    "read_json": """auto_detect columns compression convert_strings_to_integers dateformat
        field_appearance_threshold format map_inference_threshold maximum_depth
        maximum_object_size records sample_size timestampformat""",
}
"""Options with which parts of files are read as the whole, besides those of all readers."""
_COMMON_OPTIONS = frozenset(["union_by_name", "hive_partitioning", "hive_types_autocast"])
_TEXT = r"'(?:[^']|'')+'"
_NAMED = re.compile(rf'{_TEXT}|"(?:[^"]|"")+"')
_NAME = re.compile(r'"(?:[^"]|"")+"|\w+')
_UNNAMED = re.compile(rf'(?<!\w)("?)({UNNAMED_SOURCE}\d+)\1(?!\w)')
_MAY_MATCH = re.compile(r"[*?\[{~]")  # a pattern that is more than a path

_Settings: TypeAlias = tuple[str, ...]
"""The statements that have changed settings of a session, which may say how files are read."""

_Call: TypeAlias = tuple[_Settings, str, tuple[tuple[str, str], ...]]
"""Settings, a function, and the names and texts of its arguments."""

_RemoteKey: TypeAlias = tuple[_Settings, RemoteFiles]

_Key = TypeVar("_Key", _Call, _RemoteKey)

_FileKey: TypeAlias = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""A reader, patterns, and options."""


@dataclass(frozen=True, slots=True)
class _Reference:
    """A query names files or a view from `first` to `last`; `alias` qualifies their columns."""

    first: int
    last: int
    reads: _FileKey | View  # files, or a view that may read some
    alias: str


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table that stands for one version of a source."""

    name: str  # what queries call it
    source: Source
    snapshot: Snapshot

    def opened(self, others: Iterable[SourceTable] = ()) -> SourceTable:
        """The table for one query, which has opened `others` already."""
        opened = self.snapshot.opened([table.snapshot for table in others])
        return self if opened is self.snapshot else replace(self, snapshot=opened)

    @property
    def statistics(self) -> TableStatistics:
        """Those of the snapshot; guesses where it has none."""
        statistics = self.snapshot.statistics
        if statistics is not None:
            return statistics
        columns = (ColumnStatistics(),) * len(self.snapshot.schema)
        return TableStatistics(_ROWS_UNKNOWN, _ROWS_UNKNOWN * _ROW_BYTES, columns)

    def table(
        self,
        pushed: Pushed,
        splits: Sequence[Split],
        name: str,
        tasks: int,
        *,
        steady: bool = False,
    ) -> Table:
        """A table of the splits that a scan reads.

        Args:
            pushed: what the scan needs.
            splits: the splits.
            name: the table's.
            tasks: how many tasks read at a time.
            steady: whether its partitions are to stay the same where splits beside them change.
        """
        columns = self._columns(pushed)
        pushed = Pushed(
            columns=tuple(column.name for column in columns),
            predicates=pushed.predicates,
            limit=pushed.limit,
        )
        in_threads = self.snapshot.statistics is not None and _are_few_scans(splits)
        partitions = tuple(
            Partition(
                index=i,
                file="",
                locations=(),
                rows=sum(map(self._rows, group)),
                bytes=sum(split.bytes for split in group),
                read=SplitRead(columns, tuple(group), pushed).pickled(),
                reads_in_threads=in_threads
                and all(isinstance(s, MappedParquet | ParquetPart) and s.is_local for s in group),
            )
            for i, group in enumerate(_steady(splits, tasks) if steady else grouped(splits, tasks))
        )
        is_named = not self.name.startswith(UNNAMED_SOURCE)
        return Table(
            name=name,
            title=name if is_named else self.source.name,
            schema=self.snapshot.schema,
            partitions=partitions,
            partition_by=(),
            statistics=self.statistics,
        )

    def _columns(self, pushed: Pushed) -> Schema:
        schema = self.snapshot.schema
        if pushed.columns is None:
            return schema
        names = {name.lower() for name in pushed.columns}
        # Rows are counted by a column, as Arrow data without columns has none.
        return tuple(c for c in schema if c.name.lower() in names) or schema[:1]

    def _rows(self, split: Split) -> int:
        if split.rows is not None:
            return split.rows
        statistics = self.statistics
        return int(split.bytes * statistics.rows / max(1, statistics.bytes)) or 1


def _are_few_scans(splits: Sequence[Split]) -> bool:
    """Whether a task that reads all begins soon: DuckDB plans many scans with one thread."""
    return len(splits) <= _SCANS_MAX or len([*joined(splits)]) <= _SCANS_MAX


def grouped(splits: Sequence[Split], tasks: int) -> list[list[Split]]:
    """Splits that follow one another together, in groups of about equal bytes; at least one."""
    total = sum(split.bytes for split in splits)
    count = min(len(splits), max(tasks, -(-total // _READ_BYTES_MAX)))
    groups: list[list[Split]] = [[] for _ in range(max(1, count))]
    before = 0
    for index, split in enumerate(splits):
        middle = before + split.bytes / 2
        place = int(middle * count / total) if total else index * count // len(splits)
        groups[min(place, count - 1)].append(split)
        before += split.bytes
    return [group for group in groups if group] or [[]]


def _steady(splits: Sequence[Split], tasks: int) -> list[list[Split]]:
    """Splits in groups that stay the same where others change; as `grouped` if they have no names.

    Many small groups, so that little is read again when one file has changed.
    """
    keys = {id(split): _key(split) for split in splits}
    if len(splits) <= tasks or None in keys.values():
        return grouped(splits, tasks)
    size = sum(split.bytes for split in splits)
    count = max(tasks, min(_STEADY_GROUPS, size // _STEADY_BYTES_MIN), size // _READ_BYTES_MAX)
    return steady_groups(splits, count, lambda split: keys[id(split)] or "")


def _key(split: Split) -> str | None:
    """What a split is of, whatever that contains now; None if it does not tell."""
    made_of = split.made_of()
    return None if made_of is None else " ".join(file.path for file in made_of[0])


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A query over tables that stand for files."""

    sql: str  # its text, with the tables' names
    tables: tuple[SourceTable, ...]  # the tables; they may be evicted before they are used
    names: frozenset[str]  # of all relations that it names otherwise, in lower case


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class HeldSource:
    """A source without a name, for the DataFrames that hold this."""

    name: str  # of its table
    schema: Schema
    text: str  # what stands for it where users see SQL


@dataclass(slots=True, kw_only=True)
class SourceTables:
    """The tables that stand for sources; safe to use from several threads."""

    planning: PlanningDatabase  # knows them as tables, finds files and reads their schemas
    storage: Storage  # how object stores are reached
    host_files: HostFiles  # what is here of their files
    functions: Mapping[str, ScanFunction] = field(default_factory=lambda: SCAN_FUNCTIONS)
    _current: dict[str, SourceTable] = field(default_factory=dict)  # by name in lower case
    _named: dict[str, str] = field(default_factory=dict)  # those of users, by name in lower case
    _files: OrderedDict[tuple[_Settings, _FileKey], str] = field(default_factory=OrderedDict)
    _calls: OrderedDict[_Call, HeldSource] = field(default_factory=OrderedDict)
    _remote: OrderedDict[_RemoteKey, HeldSource] = field(default_factory=OrderedDict)
    # All handles, by the names of their tables; and those that views and macros need, by theirs.
    _handles: WeakValueDictionary[str, HeldSource] = field(default_factory=WeakValueDictionary)
    _defined: dict[str, tuple[HeldSource, ...]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _released: deque[str] = field(default_factory=deque)
    # A query's text is looked at for its name, and to plan it.
    _texts: OrderedDict[tuple[_Settings, str], _Text | None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # Sources that users name

    @property
    def names(self) -> list[str]:
        """The names of sources, those that stand for calls in queries included."""
        return list(self._named.values())

    @contextlib.contextmanager
    def reading(self, sql: str) -> Iterator[SourcesOfStatement]:
        """The sources for one statement that runs in this process.

        Raises:
            DataError: one that was read while the block ran can't be.
        """
        self.refreshed(sql)
        opened = SourcesOfStatement(self)
        with contextlib.closing(opened):
            try:
                yield opened
            except Exception as error:
                if opened.failed is not None:  # DuckDB hands on its text only, with a traceback
                    raise opened.failed from error
                raise

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._named

    def add(self, name: str, source: Source) -> SourceTable:
        """Let queries read a source by a name, in place of any source of that name.

        Raises:
            DataError: it can't be read.
        """
        self._sweep()
        source = source.within(self.storage.access)
        table = SourceTable(name, source, source.resolve())
        with self._lock:
            self._named[name.lower()] = name
            self._put(table)
        return table

    def hold(self, source: Source, text: str = "") -> HeldSource:
        """Let queries read a source until the handle is gone.

        Args:
            source: the source.
            text: SQL that means it; by default its name.
        """
        table = self.add_unnamed(source)
        held = HeldSource(table.name, table.snapshot.schema, text or quote(source.name))
        # A finalizer may run anywhere, even where the lock is held.
        weakref.finalize(held, self._released.append, table.name).atexit = False
        self._handles[table.name] = held
        return held

    def handles(self, sql: str) -> tuple[HeldSource, ...]:
        """The handles of the sources that a text names; who keeps the text has to keep them."""
        if UNNAMED_SOURCE not in sql:
            return ()
        names = dict.fromkeys(name for _, name in _UNNAMED.findall(sql))
        handles = map(self._handles.get, names)
        return tuple(held for held in handles if held is not None)

    def keep(self, defined: str, sql: str) -> None:
        """Keep the sources that a definition names, until another one has its name.

        Args:
            defined: the name of the view or macro.
            sql: the statement.
        """
        with self._lock:
            self._defined[defined.lower()] = self.handles(sql)

    def shown(self, sql: str) -> str:
        """A text, of SQL or of a message about some, with what users wrote for unnamed sources."""
        if UNNAMED_SOURCE not in sql:
            return sql

        def text(match: re.Match[str]) -> str:
            held = self._handles.get(match[2])
            return match[0] if held is None else held.text

        return _UNNAMED.sub(text, sql)

    def told(self, message: str) -> str:
        """A message of DuckDB about a statement, with what users wrote for unnamed sources."""
        lines = message.split("\n")
        for number, line in enumerate(lines[1:], 1):
            marks = line.strip()
            if marks and not marks.strip("^"):  # they stay below the same word
                before = lines[number - 1][: line.index("^")]
                lines[number] = " " * len(self.shown(before)) + marks
        return self.shown("\n".join(lines))

    def _known(self, calls: OrderedDict[_Key, HeldSource], key: _Key) -> str | None:
        with self._lock:
            if key not in calls:
                return None
            calls.move_to_end(key)
            return calls[key].name

    def _remembered(self, calls: OrderedDict[_Key, HeldSource], key: _Key, held: HeldSource) -> str:
        """Note what a call stands for; those that were not named for the longest time go."""
        with self._lock:
            held = calls.setdefault(key, held)  # another thread may have been faster
            gone = calls.popitem(last=False) if len(calls) > _CALLS_MAX else None
        del gone  # not where the lock is held
        return held.name

    def _sweep(self) -> None:
        """Remove the sources whose handles are gone."""
        while self._released:
            self.remove(self._released.popleft())

    def add_unnamed(self, source: Source) -> SourceTable:
        """Let queries read a source by a name that nobody else uses."""
        return self.add(f"{UNNAMED_SOURCE}{next(self._numbers)}", source)

    def remote(self, files: RemoteFiles, settings: _Settings) -> str:
        """The name of a table that stands for files of object stores.

        Raises:
            DataError: there are none, or they can't be read.
        """
        table = self._known(self._remote, (settings, files))
        if table is not None:
            return table
        source = self.reach(settings).source(
            files.name, files.reader, files.patterns, dict(files.options)
        )
        return self._remembered(self._remote, (settings, files), self.hold(source, files.sql))

    def remove(self, name: str) -> None:
        with self._lock:
            del self._named[name.lower()]
            self._drop(name)

    def _put(self, table: SourceTable) -> None:
        self._current[table.name.lower()] = table
        self.planning.put_table(table.table(Pushed(), (), table.name, 1))

    def _drop(self, name: str) -> None:
        del self._current[name.lower()]
        self.planning.remove_table(name)

    def get(self, name: str) -> SourceTable | None:
        """The current version of the source of that name; None if there is none.

        Raises:
            DataError: it can't be read.
        """
        held = self._current.get(name.lower())
        if held is None:
            return None
        snapshot = held.source.resolve()
        if snapshot.version == held.snapshot.version:
            return held
        table = replace(held, snapshot=snapshot)
        with self._lock:
            current = self._current.get(name.lower())
            if current is None or current.source is not held.source:
                return current
            if current.snapshot.version == snapshot.version:  # another thread was faster
                return current
            self._put(table)
        return table

    def mentioned(self, names: Iterable[str]) -> dict[str, SourceTable]:
        """The current versions of the sources among the names, by name in lower case."""
        tables = ((name.lower(), self.get(name)) for name in dict.fromkeys(names))
        return {name: table for name, table in tables if table is not None}

    def known(self, names: Iterable[str]) -> dict[str, SourceTable]:
        """The versions among the names that were current when somebody looked last."""
        with self._lock:
            keys = [name.lower() for name in names]
            return {key: self._current[key] for key in keys if key in self._current}

    def refreshed(self, sql: str) -> bool:
        """Look up the sources that a text names; whether the columns of one have changed."""
        text, changed = sql.lower(), False
        for key in list(self._named):
            before = self._current.get(key)
            if before is not None and key in text:
                with contextlib.suppress(DataError):  # the statement has an error of its own
                    now = self.get(key)
                    changed |= now is None or now.snapshot.schema != before.snapshot.schema
        return changed

    def is_current(self, table: SourceTable) -> bool:
        try:
            return self.get(table.name) is table
        except DataError:
            return False

    # Calls of functions that DuckDB does not have

    def with_calls(self, sql: str, planning: PlanningDatabase) -> str:
        """A text of SQL with tables in place of `SCAN_FUNCTIONS` and of files in object stores.

        Args:
            sql: the text.
            planning: the connection of the session whose it is.

        Raises:
            OptionError: a function does not take its arguments.
            QueryError: an argument is no constant.
            DataError: a source can't be read.
        """
        calls = [
            Edit(call.first, call.last, quote(self._called(call, planning)))
            for call in find_calls(sql, self.functions)
        ]
        remote = partial(self.remote, settings=planning.settings)
        return without_remote_files(edited(sql, calls) if calls else sql, remote)

    def _called(self, call: Call, planning: PlanningDatabase) -> str:
        """The table of a call; equal calls have the same one."""
        function, arguments = call.function, call.arguments
        texts = tuple(map(named_argument, split_arguments(arguments)))
        settings = planning.settings
        key = (settings, function, texts)
        table = self._known(self._calls, key)
        if table is not None:
            return table
        values = planning.constants([text for _, text in texts])
        pairs = [(name, value) for (name, _), value in zip(texts, values, strict=True)]
        unnamed = [value for name, value in pairs if not name]
        named = {name.lower(): value for name, value in pairs if name}
        try:
            source = self.functions[function](self.reach(settings), *unnamed, **named)
        except TypeError as error:
            raise OptionError(f"{function}: {error}") from error
        return self._remembered(self._calls, key, self.hold(source, f"{function}({arguments})"))

    # Files that queries name

    def rewritten(self, sql: str, planning: PlanningDatabase) -> Rewritten | None:
        """`sql` with files replaced by tables; None if there is nothing to replace.

        Files whose parts might not add up to what DuckDB reads stay in the text. `planning` is the
        connection of the session whose it is.
        """
        views = planning.views_over_files()
        if not (may_name_files(sql) or (views and mentioned(sql, views))):
            return None
        return self._rewritten(sql, planning, views, {})

    def _rewritten(
        self,
        sql: str,
        planning: PlanningDatabase,
        views: Mapping[str, View],
        done: dict[str, Rewritten | None],
    ) -> Rewritten | None:
        """`sql` with files replaced by tables, and views over files by their queries.

        `done` has the queries of views, by name in lower case.
        """
        text = self._text(sql, planning)
        if text is None:
            return None
        edits: list[Edit] = []
        tables: list[SourceTable] = []
        names = set(text.names)
        for reference in text.references(views, planning):
            alias = f" AS {quote(reference.alias)}" if reference.alias else ""
            if isinstance(reference.reads, View):
                query = self._of_view(reference.reads, planning, views, done)
                # A part of this text that has the name of what a view reads would come before it.
                if query is None or not query.names.isdisjoint(text.parts):
                    continue
                relation = reference.reads.relation(query.sql)
                tables += query.tables
                names |= query.names
            else:
                table = self._file_table(planning.settings, reference.reads)
                if table is None:
                    continue
                relation = f" {quote(table.name)}"
                tables.append(table)
            edits.append(Edit(reference.first, reference.last, f"{relation}{alias}"))
        if not tables:
            return None
        return Rewritten(edited(sql, edits), tuple(tables), frozenset(names))

    def _text(self, sql: str, planning: PlanningDatabase) -> _Text | None:
        key = (planning.settings, sql)
        with self._lock:
            if key in self._texts:
                return self._texts[key]
        text = _Text.of(sql, planning)
        with self._lock:
            self._texts[key] = text
            if len(self._texts) > _TEXTS_MAX:
                self._texts.popitem(last=False)
        return text

    def _of_view(
        self,
        view: View,
        planning: PlanningDatabase,
        views: Mapping[str, View],
        done: dict[str, Rewritten | None],
    ) -> Rewritten | None:
        key = view.name.lower()
        if key not in done:
            done[key] = None  # another session may just define one that reads itself
            done[key] = self._rewritten(view.query, planning, views, done)
        return done[key]

    def _file_table(self, settings: _Settings, files: _FileKey) -> SourceTable | None:
        # One table per pattern: when new files match one, those of others stay valid.
        (reader, patterns, options), key = files, (settings, files)
        with self._lock:
            name = self._files.get(key)
            if name is not None:
                self._files.move_to_end(key)
        try:
            named = None if name is None else self.get(name)
            if named is not None:
                return named
            name = f"{reader}({', '.join(map(repr, patterns))})"
            source = self.reach(settings).source(name, reader, patterns, dict(options))
            table = SourceTable(f"{UNNAMED_SOURCE}{next(self._numbers)}", source, source.resolve())
        except DataError:  # DuckDB says what it is, if the query is to read it
            return None
        with self._lock:
            if key in self._files and self._files[key] in self._current:
                return self._current[self._files[key]]  # another thread was faster
            self._files[key] = table.name
            self._put(table)
            if len(self._files) > _FILES_MAX:
                _, oldest = self._files.popitem(last=False)
                self._drop(oldest)
        return table

    def reach(self, settings: _Settings) -> FileReach:
        """How the front end gets at files, by the settings of a session."""
        return FileReach(self, settings)


@dataclass(frozen=True, slots=True)
class FileReach:
    """How the front end gets at files (`sources.formats.Reach`)."""

    tables: SourceTables
    settings: _Settings  # with which it reads them

    def source(
        self, name: str, reader: str, patterns: Sequence[str], options: Mapping[str, str]
    ) -> FileSource:
        """The files that match patterns, as a source."""

        def find() -> Sequence[StoredFile]:
            return [file for pattern in patterns for file in self.list(pattern)]

        return FileSource(name=name, reader=reader, find=find, options=options, reach=self)

    def list(self, pattern: str) -> Sequence[StoredFile]:
        if is_remote(pattern):
            return list_files(pattern, self.tables.storage.access())
        if Path(pattern).is_dir():
            return list_files(pattern)
        if _MAY_MATCH.search(pattern) is None and Path(pattern).is_file():
            return [stat_file(str(Path(pattern).absolute()))]
        try:
            paths = self.tables.planning.glob(pattern)
        except QueryError as error:
            raise DataError(str(error)) from error
        if not paths:
            raise DataError(f"There is no file {pattern}.")
        return [stat_file(str(Path(path).absolute())) for path in paths]

    def connect(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return self.tables.planning.reading(self.settings)

    def held(
        self, files: Sequence[StoredFile], parts: Sequence[FilePart]
    ) -> AbstractContextManager[Sequence[str]]:
        return self.tables.host_files.held(files, parts, self.tables.storage.access())


class SourcesOfStatement:
    """What one statement in this process sees of sources: one version of each, of one moment.

    Safe to use from several threads, as DuckDB reads several sources at a time.

    Attributes:
        failed: what reading a source has raised.
    """

    def __init__(self, tables: SourceTables) -> None:
        self._tables = tables
        self._opened: dict[str, SourceTable] = {}  # by name in lower case
        self._begun: list[Snapshot] = []  # to be closed
        self._scans: list[Scans] = []  # that have begun to read
        self._lock = threading.Lock()
        self.failed: MinisharkError | None = None

    def rows(self, name: str) -> SourceRows:
        """All rows of a source, as Arrow data that is read when something needs it.

        Raises:
            CatalogError: there is no such source (any more).
        """
        table = self._tables.known([name]).get(name.lower())
        if table is None:
            raise CatalogError(f"There is no source called {name!r}.")
        return SourceRows(table, self)

    def opened(self, table: SourceTable) -> SourceTable:
        """The version of a source that the statement reads, wherever it names it.

        Raises:
            DataError: it can't be read, or has other columns than `table`, which the statement
                relies upon.
        """
        key = table.name.lower()
        with self._lock:
            opened = self._opened.get(key)
            if opened is None:
                current = self._tables.get(table.name) or table
                if current.snapshot.schema != table.snapshot.schema:
                    raise DataError(
                        f"The columns of {table.source.name} have just changed: run the statement "
                        "again."
                    )
                opened = self._opened[key] = current.opened(self._opened.values())
                if opened is not current:
                    self._begun.append(opened.snapshot)
            return opened

    def close(self) -> None:
        """The statement has ended."""
        with self._lock:
            begun, self._begun = self._begun, []
            self._opened.clear()
        for snapshot in begun:
            snapshot.close()

    def scans(self, table: SourceTable) -> Scans:
        """Reads all rows of an opened table, as the input `rows`."""
        scan = table.table(Pushed(), table.snapshot.splits(Pushed(), 1), table.name, 1)
        scans = Scans(
            reads={"rows": tuple(partition.read for partition in scan.partitions)},
            hold=self._tables.host_files.held,
            access=self._tables.storage.access(),
        )
        self._scans.append(scans)
        return scans

    def cancel(self) -> None:
        """Nobody needs the statement's answer; may be called from another thread."""
        for scans in [*self._scans]:
            scans.cancel()

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Keep the error that the block raises."""
        try:
            yield
        except MinisharkError as error:
            self.failed = self.failed or error
            raise


class SourceRows:
    """All rows of a source; Arrow data that DuckDB may read several times."""

    def __init__(self, table: SourceTable, sources: SourcesOfStatement) -> None:
        self._table, self._sources = table, sources

    def __arrow_c_schema__(self) -> object:
        columns = ", ".join(
            f"CAST(NULL AS {c.type}) AS {quote(c.name)}" for c in self._table.snapshot.schema
        )
        with _lossless() as connection:
            return connection.sql(f"SELECT {columns}").to_arrow_table().schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        with self._sources.noting():
            batches = self._batches(self._sources.scans(self._sources.opened(self._table)))
            first = next(batches)  # has no rows
        reader = pa.RecordBatchReader.from_batches(first.schema, batches)
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self, scans: Scans) -> Iterator[pa.RecordBatch]:
        with self._sources.noting(), _lossless() as connection, scans.open():
            for name, stream in scans.streams.items():
                connection.register(name, stream)
            reader = connection.sql(f"FROM {scans.relations['rows']}").to_arrow_reader()
            yield pa.RecordBatch.from_pylist([], schema=reader.schema)
            yield from reader


@contextlib.contextmanager
def _lossless() -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that keeps types in Arrow data."""
    with duckdb.connect() as connection:
        connection.execute("SET arrow_lossless_conversion = true")
        connection.execute("SET produce_arrow_string_view = false")
        yield connection


def with_splits(
    plan: LogicalPlan,
    sources: Mapping[str, SourceTable],
    options: PlannerOptions,
    *,
    counts_all: bool,
) -> tuple[LogicalPlan, list[Table], dict[str, SourceTable]]:
    """A plan whose scans of sources read chosen splits.

    Args:
        plan: the logical plan.
        sources: the versions to read, by the names of their tables in lower case.
        options: which rules are on, and how many tasks read at a time.
        counts_all: whether scans say how many splits there are in all.

    Returns:
        the plan; for each different scan a table of its splits, and for each of these, by its name
        in lower case, the version of the source that it reads.
    """
    if isinstance(plan.operator, Statement):
        statement = plan.operator
        named = [name for name in statement.tables if name.lower() in sources]
        current: dict[str, SourceTable] = {}
        for name in named:
            current[name.lower()] = sources[name.lower()].opened(current.values())
        tables = [_table(current[name.lower()], Pushed(), name, options)[0] for name in named]
        shown = {table.name: table.title for table in tables}
        statement = replace(
            statement, titles=tuple(shown.get(name, name) for name in statement.tables)
        )
        return replace(plan, operator=statement), tables, current
    titles = {name: table.source.name for name, table in sources.items()}
    for rule, of_rule in enabled(Phase.SOURCES, options):
        plan = rule.apply(plan, titles, of_rule)
    chosen: dict[tuple[str, Pushed], tuple[Table, SourceScan]] = {}
    versions: dict[str, SourceTable] = {}
    opened: dict[str, SourceTable] = {}  # one for all scans of a source: they see one moment

    def read(scan: Scan) -> Scan:
        source = sources.get(scan.table.lower())
        if source is None:
            return scan
        hint = scan.hints.source or SourceScan(source.source.name, Pushed())
        key = (scan.table.lower(), hint.pushed)
        if key not in chosen:
            if key[0] not in opened:
                opened[key[0]] = source.opened(opened.values())
            source = opened[key[0]]
            others = sum(name == key[0] for name, _ in chosen)
            name = f"{source.name} ({others + 1})" if others else source.name
            table, count = _table(source, hint.pushed, name, options)
            hint = replace(hint, splits=count)
            splits = source.snapshot.all_splits(options.partitions) if counts_all else None
            if splits is not None:
                size = sum(split.bytes for split in splits)
                share = table.bytes / size if size else 1.0
                hint = replace(hint, all_splits=len(splits), share=share)
            chosen[key] = (table, hint)
            versions[name.lower()] = source
        table, hint = chosen[key]
        return replace(scan, table=table.name, hints=replace(scan.hints, source=hint))

    def walk(node: LogicalPlan) -> LogicalPlan:
        if isinstance(node.operator, Scan):
            return replace(node, operator=read(node.operator))
        return plan_over(node, map(walk, node.children))

    plan = walk(plan)
    return plan, [table for table, _ in chosen.values()], versions


def _table(
    source: SourceTable, pushed: Pushed, name: str, options: PlannerOptions
) -> tuple[Table, int]:
    splits = source.snapshot.splits(pushed, options.partitions)
    table = source.table(pushed, splits, name, options.partitions, steady=options.reuses)
    return table, len(splits)


@dataclass(frozen=True, slots=True)
class _Text:
    """A SELECT, and the relations in it."""

    sql: str
    relations: tuple[dict[str, Any], ...]  # nodes of its syntax tree
    parts: frozenset[str]  # the names of its CTEs, in whatever scope, in lower case

    @classmethod
    def of(cls, sql: str, planning: PlanningDatabase) -> _Text | None:
        try:
            tree = planning.syntax(sql)
        except (QueryError, json.JSONDecodeError):
            return None
        kinds = ("BASE_TABLE", "TABLE_FUNCTION")
        relations = tuple(node for node in _nodes(tree) if node.get("type") in kinds)
        return cls(sql, relations, frozenset(_common_table_expressions(tree)))

    @property
    def names(self) -> Iterator[str]:
        """The names of relations in it, in lower case."""
        return (node["table_name"].lower() for node in self.relations if "table_name" in node)

    def references(self, views: Mapping[str, View], planning: PlanningDatabase) -> list[_Reference]:
        """Where it names files, or one of these views; in order."""
        places = (self._reference(node, views, planning) for node in self.relations)
        named = [place for place in places if place is not None]
        return sorted(named, key=lambda place: place.first)

    def _reference(
        self, node: dict[str, Any], views: Mapping[str, View], planning: PlanningDatabase
    ) -> _Reference | None:
        first = node.get("query_location")
        # TABLE and SUMMARIZE name relations at no place, which DuckDB tells as one beyond the text.
        if not isinstance(first, int) or first >= len(self.sql) or node.get("sample"):
            return None
        if node["type"] == "TABLE_FUNCTION":
            return _called_reader(node, self.sql, first)
        name = node["table_name"]
        if name.lower() in self.parts:  # these may hide files and views
            return None
        if name.lower() in views:
            return _named_view(node, self.sql, first, views[name.lower()])
        return None if planning.has_relation(name) else _named_file(node, self.sql, first)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    left = [tree]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            yield item
            left += item.values()
        elif isinstance(item, list):
            left += item


def _common_table_expressions(tree: Any) -> set[str]:
    """The names of all CTEs, in whatever scope: they may hide files."""
    return {
        entry["key"].lower()
        for node in _nodes(tree)
        if "cte_map" in node
        for entry in node["cte_map"]["map"]
    }


def _named_view(node: dict[str, Any], sql: str, first: int, view: View) -> _Reference | None:
    """A view without the name of its schema."""
    match, name = _NAME.match(sql, first), node["table_name"]
    if match is None or unquoted(match[0]) != name or node.get("schema_name"):
        return None
    return _Reference(first, match.end(), view, "" if node.get("alias") else name)


def _named_file(node: dict[str, Any], sql: str, first: int) -> _Reference | None:
    """Files that stand in place of a table; DuckDB qualifies their columns by the name."""
    match = _NAMED.match(sql, first)
    if match is None:
        return None
    literal = match[0]
    pattern = literal[1:-1].replace(literal[0] * 2, literal[0])
    reader = reader_of(pattern)
    if reader not in _OPTIONS or "://" in pattern:
        return None
    alias = "" if node.get("alias") else Path(pattern).stem
    return _Reference(first, match.end(), (reader, (pattern,), ()), alias)


def _called_reader(node: dict[str, Any], sql: str, first: int) -> _Reference | None:
    """A call of a reader with constants, all of which can be told to tasks; None for any other."""
    function = node["function"]["function_name"].lower()
    reader = LOCAL_READERS.get(function, "")
    patterns: list[str] = []
    options = {"format": f"'{_IMPLIED[function]}'"} if function in _IMPLIED else {}
    if not reader:
        return None
    allowed = _COMMON_OPTIONS.union(_OPTIONS[reader].split())
    for argument in node["function"]["arguments"]:
        expression, name = argument["expression"], argument["name"]
        if expression["type"] == "COMPARE_EQUAL" and "column_names" in expression["left"]:
            name, expression = expression["left"]["column_names"][-1], expression["right"]
        if not name:
            texts = _texts(expression)
            if not texts:
                return None
            patterns += texts
            continue
        if name.lower() not in allowed:
            return None
        options[name.lower()] = _source_text(expression, sql)
    rest = sql[first:]
    call = next(find_calls(rest, (function,)), None)
    if not patterns or any("://" in pattern for pattern in patterns):
        return None
    if call is None or call.first:
        return None
    options = {
        name: text.lower() if name in _COMMON_OPTIONS else text for name, text in options.items()
    }
    alias = "" if node.get("alias") else node["function"]["function_name"]
    return _Reference(
        first, first + call.last, (reader, tuple(patterns), tuple(options.items())), alias
    )


def _texts(expression: dict[str, Any]) -> list[str]:
    """A text or a list of texts; empty for anything else."""
    literal = expression.get("literal")
    if literal is not None and literal.get("kind") == "STRING":
        return [literal["text"]]
    if expression.get("function_name") == "list_value":
        items = [_texts(argument["expression"]) for argument in expression["arguments"]]
        return [] if [] in items else [text for (text,) in items]
    return []


def _source_text(expression: dict[str, Any], sql: str) -> str:
    first = expression["query_location"]
    return sql[first : first + expression["query_location_length"]]
