"""Names of outputs: digests of all that decides their rows.

    name of task i's output of a stage =
        digest(the fragment and its settings, versions,      what is done
               names of what the task reads, in order)       with what

    a stored partition   its session's token, its files, and which of their rows are deleted
    a part of a source   what the source says it is made of, and the versions of its files
    an earlier output    its identity: its name, or, of a stage that may put out other rows when it
                         runs again, a random one of that run

So equal names mean that one output is as good as the other, whoever asks, wherever it was made.
What is neither clearly needed nor clearly not is part of a name: a forgotten ingredient is a wrong
answer, a superfluous one makes an output be computed again. Where something can't be told,
`NoNameError` says what.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from msgspec import structs

from minishark.cluster.jobs.records import RESULT_VARIABLE
from minishark.cluster.wire import own_versions
from minishark.compiler.hints import FragmentHints
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput
from minishark.model.catalog import Delta, Partition, Table
from minishark.query.digests import Digest, NoDigestError, digest, pickled_digest
from minishark.query.inputs import read_partitions
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoredFile, local_version
from minishark.worker.protocol import OutputKind, ScalarFunction, StageTask, encode
from minishark.worker.scans import unpickled_read

_BYTES = 16
_READS_MAX = 4096
_SETTLED_S = 2.0
"""The coarsest clock of a file system: within it, a file may change and keep its times."""

KEPT = (OutputKind.PIECE, OutputKind.BUCKETS, OutputKind.RESULT)
"""Outputs that are kept under their names: those of other kinds are a table's, or the user's."""


class NoNameError(Exception):
    """An output has no name; the text says why."""


class NotYetError(Exception):
    """An output has no name yet: it reads one that does not exist yet, and may vary."""


@lru_cache(1)
def _versions() -> bytes:
    """What executes fragments: the same fragment may give other rows with another."""
    versions = {
        **own_versions(),
        "Python": platform.python_version(),
        "machine": f"{platform.machine()} {sys.byteorder}",
    }
    return encode(versions)


def named(*parts: bytes | str) -> str:
    """The digest of parts, none of which can run into the next."""
    digest = hashlib.blake2b(digest_size=_BYTES)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def versioned(kind: str, *parts: bytes | str) -> str:
    """The digest of what is made of parts by what is installed."""
    return named(kind, _versions(), *parts)


# What is done


def fragment_name(task: StageTask) -> str:
    """The digest of what the tasks of a stage have in common, but for what they read.

    Fields that only say where rows go or how fast are blanked; all others count, also new ones.

    Raises:
        NoNameError: it calls what can't be told to do the same again.
    """
    if task.output is OutputKind.FILES:
        raise NoNameError("it writes files")
    if not task.types:
        raise NoNameError("it runs as a whole statement")
    texts = " ".join((task.sql, *(cte.sql for cte in task.hints.ctes))).lower()
    called = [scalar for scalar in task.scalars if _calls(texts, scalar)]
    functions = [function_digest(scalar.name, scalar.pickled) for scalar in called]
    for scalar in called:
        if scalar.volatile:
            raise NoNameError(f"{scalar.name} is not deterministic")
    if task.function is not None:
        if not task.function.only_returns:
            raise NoNameError(f"{task.function.label} is called for what else it does")
        functions.append(function_digest(task.function.label, task.function.pickled))
    opens_files = any(function.reach.opens_files for function in functions)
    blank = structs.replace(
        task,
        folder="",
        prefix="",
        kept="",
        shared_inputs={},
        stores=(),
        rows=0.0,
        threads=1,
        profiled=False,
        access=FROM_ENVIRONMENT,  # sources say who may read what when they are resolved
        working_folder=_folder_name(task.working_folder) if opens_files else "",
        hints=_without_sizes(task.hints),
        scalars=tuple(structs.replace(scalar, pickled=b"") for scalar in called),
        function=task.function and structs.replace(task.function, pickled=b""),
    )
    return versioned("fragment", encode(blank), *(function.text for function in functions))


def _folder_name(folder: str) -> str:
    """What a working folder is called: that of a submitted program is another one on each node.

    It begins with the same files there, and what the program adds it adds when it starts again.
    """
    result = os.environ.get(RESULT_VARIABLE)
    of_job = Path(result).parent.resolve() if result else None
    if of_job is None or not Path(folder).is_relative_to(of_job):
        return folder
    return f"job {of_job.name} {Path(folder).relative_to(of_job)}"


def _without_sizes(hints: FragmentHints) -> FragmentHints:
    """Hints but for numbers that follow from estimates, and from how many tasks there are."""
    ctes = tuple(structs.replace(cte, rows=0.0) for cte in hints.ctes)
    return structs.replace(hints, ctes=ctes, inline_bytes=0)


def takes_task(task: StageTask) -> bool:
    """Whether a fragment's rows depend on which of how many tasks runs it."""
    return any(scalar.takes_task for scalar in task.scalars)


def _calls(texts: str, function: ScalarFunction) -> bool:
    return re.search(rf"(?<!\w){re.escape(function.name)}(?!\w)", texts) is not None


def function_digest(label: str, pickled: bytes) -> Digest:
    """The digest of a pickled function, which is called `label`.

    Raises:
        NoNameError: it is not clear what it does.
    """
    digest = pickled_digest(pickled)
    if isinstance(digest, NoDigestError):
        raise NoNameError(f"the function {label or 'of rows'} can't be named: {digest}")
    return digest


def call_name(function: Digest, working_folder: str) -> str:
    """What the names of calls of a function have in common."""
    # Also if it opens no files itself: its arguments may be functions that do.
    return versioned("call", function.text, _folder_name(working_folder))


def arguments_name(label: str, arguments: object) -> str:
    """What tells calls of a function apart.

    Raises:
        NoNameError: it is not clear what the arguments are.
    """
    try:
        return digest(arguments)
    except NoDigestError as error:
        raise NoNameError(f"an argument of {label} can't be named: {error}") from error


# What it is done with


@dataclass(frozen=True, slots=True)
class Leaves:
    """Names of what is read from outside of a query."""

    token: str  # of the session, whose files have no other name than their paths
    # Names that files of tables have beside their paths, the same in every session.
    contents: Mapping[str, str] = field(default_factory=dict)
    now_s: Callable[[], float] = time.time

    def partition(self, table: Table, partition: Partition) -> str:
        """The name of a table's partition as it is now.

        Raises:
            NoNameError: it is a part of a source that can't be told from others.
        """
        if partition.read:
            return self.source(table.title or table.name, partition.read)
        parts: list[str | bytes] = []
        stored: tuple[Partition | Delta, ...] = (partition, *partition.deltas)
        for item in stored:
            parts += (self._stored(item.file), item.deleted)
            if item.constants:
                parts += ("constants", item.constants)
        number = str(partition.index) if partition.is_numbered else ""
        return named("partition", number, *parts)

    def _stored(self, file: str) -> str:
        return self.contents.get(file) or named("file", self.token, file)

    def source(self, name: str, pickled: bytes) -> str:
        """The name of a part of a source, which is called `name` where it has none.

        Raises:
            NoNameError: it has none.
        """
        read = _read_of(pickled)
        if isinstance(read, str):
            raise NoNameError(f"{name} {read}")
        return named("source", read.name, *map(self.file, read.files))

    def file(self, file: StoredFile) -> str:
        """The name of a file's contents.

        Raises:
            NoNameError: it is too young for its times to tell, or has changed since it was listed.
        """
        return _settled(file, self.now_s())


def load_name(reads: Sequence[bytes], *layout: str, rows: str = "") -> str | None:
    """The name of a table that is loaded from parts of a source or from rows; None if it has none.

    Args:
        reads: the parts, in order.
        layout: all else that decides the rows of its partitions.
        rows: a digest of the rows, where they are those of a program.
    """
    leaves = Leaves("")
    try:
        parts = [leaves.source("it", read) for read in reads]
    except NoNameError:
        return None
    return versioned("load", *layout, "of", *parts, rows)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a task reads of a source."""

    name: str  # the digest of all but the state of its files
    files: tuple[StoredFile, ...]


@lru_cache(_READS_MAX)
def _read_of(pickled: bytes) -> _Read | str:
    """What a pickled `SplitRead` says, or why that does not tell its rows."""
    read = unpickled_read(pickled)
    files: list[StoredFile] = []
    parts: list[object] = []
    for split in read.splits:
        made_of = split.made_of()
        if made_of is None:
            return "does not tell what its rows are made of"
        files += made_of[0]
        parts.append((type(split).__qualname__, made_of[1]))
    try:
        return _Read(digest((read.schema, read.pushed, parts)), tuple(files))
    except NoDigestError as error:
        return f"can't be named: {error}"


def _settled(file: StoredFile, now_s: float) -> str:
    """The name of a file's contents.

    Raises:
        NoNameError: it is too young for its times to tell, or has changed since it was listed.
    """
    if file.is_remote:
        if file.version and not file.version.startswith('"'):  # no ETag: times of whole seconds
            raise NoNameError(f"{file.path} has no version")
        return named(file.path, str(file.bytes), file.version)
    try:
        state = Path(file.path).stat()
    except OSError as error:
        raise NoNameError(f"{file.path} can't be found") from error
    if now_s - max(state.st_mtime, state.st_ctime) < _SETTLED_S:
        raise NoNameError(f"{file.path} has changed within the last {_SETTLED_S:.0f} seconds")
    if file.version != local_version(state):
        raise NoNameError(f"{file.path} has changed since the query was planned")
    # The time of the last change of an inode can't be set back, as that of its contents can.
    return named(file.path, file.version, str(state.st_ino), str(state.st_ctime_ns))


# The outputs of a query


@dataclass(slots=True, kw_only=True)
class OutputNames:
    """The names of what the tasks of one query put out."""

    stages: Mapping[int, Stage]
    tables: Mapping[str, Table]  # that it reads, by name in lower case
    described: Callable[[Stage], StageTask]  # what the tasks of a stage have in common
    leaves: Leaves
    # Of a task's output that exists, its identity; of others None.
    identity: Callable[[int, int], str | None] = lambda _stage, _task: None
    # Whether outputs count as if no stage varied: for a name of the answer as a whole.
    as_planned: bool = False
    _fragments: dict[int, str | NoNameError] = field(default_factory=dict)
    _by_task: set[int] = field(default_factory=set)  # stages whose rows depend on the task's number
    _partitions: dict[tuple[str, int], str] = field(default_factory=dict)
    _names: dict[tuple[int, int], str] = field(default_factory=dict)
    _many: dict[tuple[int, int, int], str] = field(default_factory=dict)

    def as_if_planned(self) -> OutputNames:
        """The names if no output existed, and no stage varied."""
        return replace(
            self, identity=lambda _stage, _task: None, as_planned=True, _names={}, _many={}
        )

    def of(self, stage: int, task: int) -> str:
        """The name of a task's output.

        Raises:
            NoNameError: it has none.
            NotYetError: it has none yet.
        """
        name = self._names.get((stage, task))
        if name is None:
            planned = self.stages[stage]
            fragment = self.fragment(planned)
            read = [part for item in planned.inputs for part in self._read(planned, item, task)]
            own = (str(task), str(planned.tasks)) if stage in self._by_task else ()
            name = self._names[stage, task] = named(fragment, *own, *read)
        return name

    def answer(self, last: Stage) -> str:
        """The name of the outputs of all tasks of the last stage.

        Raises:
            NoNameError: one has none.
        """
        return named("answer", *(self.of(last.index, task) for task in range(last.tasks)))

    def forget(self) -> None:
        """Outputs of a stage that varies have come or gone: what reads them has other names."""
        self._names.clear()
        self._many.clear()

    def fragment(self, stage: Stage) -> str:
        """The name of what a stage's tasks do.

        Raises:
            NoNameError: it has none.
        """
        name = self._fragments.get(stage.index)
        if name is None:
            try:
                name = self._fragment(stage)
            except NoNameError as error:
                name = error
            self._fragments[stage.index] = name
        if isinstance(name, NoNameError):
            raise NoNameError(str(name))
        return name

    def _fragment(self, stage: Stage) -> str:
        if stage.volatile_call is not None:
            raise NoNameError(f"{stage.volatile_call}() may have another value each time")
        task = self.described(stage)
        if takes_task(task):
            self._by_task.add(stage.index)
        return fragment_name(task)

    def _read(self, stage: Stage, item: TableInput | StageInput, task: int) -> list[str]:
        if isinstance(item, TableInput):
            # In a fragment that is none of a user's, inputs have names of their own.
            table = self.tables[item.table.lower()]
            read = read_partitions(item, {item.name: table}, stage.partitions_of(task))
            return [item.name, "table", *(self._partition(table, number) for number in read)]
        tasks = range(self.stages[item.stage].tasks)
        if item.mode is ReadMode.OWN:
            return [item.name, "own", self._identity(item.stage, task)]
        if item.mode is ReadMode.ALL:
            return [item.name, "all", self._identities(item.stage, tasks)]
        share = stage.share(item, task)
        some = tasks[slice(*share.tasks)] if share.tasks else tasks
        buckets = f"{share.first}-{share.last}"
        return [item.name, "buckets", buckets, self._identities(item.stage, some)]

    def _partition(self, table: Table, partition: Partition) -> str:
        key = (table.name, partition.index)
        if key not in self._partitions:
            self._partitions[key] = self.leaves.partition(table, partition)
        return self._partitions[key]

    def _identities(self, stage: int, tasks: range) -> str:
        key = (stage, tasks.start, tasks.stop)
        if key not in self._many:
            self._many[key] = named(*(self._identity(stage, task) for task in tasks))
        return self._many[key]

    def _identity(self, stage: int, task: int) -> str:
        identity = self.identity(stage, task)
        if identity is not None:
            return identity
        if self.stages[stage].varies and not self.as_planned:
            raise NotYetError
        return self.of(stage, task)
