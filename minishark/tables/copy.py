"""COPY ... TO: tasks write files in parallel, and either all of them appear, or none.

Each task writes into a staging folder beside the target, with DuckDB's own COPY. After the last
one, the front end names the files as DuckDB would, and moves them to the target. An error or
interruption before or during the move leaves the target unchanged. A single file is written by one
task, a folder (PER_THREAD_OUTPUT, PARTITION_BY, FILE_SIZE_BYTES) by all.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.repartition import in_one_partition
from minishark.compiler.sql.changes import text_value
from minishark.compiler.sql.tokens import Cursor, split_arguments, sql_tokens
from minishark.errors import DataError, ResourceError
from minishark.model.expressions import Schema, numbered, quote, quote_text
from minishark.query.sinks import CompleteRun, Output, Sink
from minishark.sources.filesystems import (
    FROM_ENVIRONMENT,
    StoreAccess,
    destination,
    is_remote,
)
from minishark.worker.protocol import CopyTarget, OutputKind

_FOLDER_OPTIONS = ("per_thread_output", "partition_by", "file_size_bytes", "row_groups_per_file")
MODES = ("overwrite", "overwrite_or_ignore", "append")
_FRONT_END_OPTIONS = ("return_files", "return_stats")
_FALSE = ("false", "0", "'false'", "off", "no")
_UNIQUE = ("{uuid}", "{uuidv4}", "{uuidv7}")
_NUMBERED = re.compile(r"(\d+)(.*)", re.DOTALL)
_REPLACED = "replaced"  # what was at the target, in the staging folder


@dataclass(frozen=True, slots=True)
class Copy:
    """The target and options of a COPY."""

    path: Path  # the target, absolute; of a URI, what follows the scheme
    options: Mapping[str, str]  # DuckDB's options as written, by name in lower case
    uri: str = ""  # the target if it is in an object store, without a slash at its end

    def has(self, option: str) -> bool:
        return self.options.get(option, "false").lower() not in _FALSE

    @property
    def is_folder(self) -> bool:
        """Whether it writes several files."""
        return any(self.has(option) for option in _FOLDER_OPTIONS)

    @property
    def pattern(self) -> str:
        """The pattern of file names in a folder: FILENAME_PATTERN, or DuckDB's default."""
        default = "'{uuid}'" if self.has("append") else "'data_{i}'"
        pattern, *others = sql_tokens(self.options.get("filename_pattern", default))
        is_plain = pattern.text[:1] in ("'", '"') and not others
        return text_value(pattern.text) if is_plain else ""

    @property
    def is_numbered(self) -> bool:
        """Whether numbers, not UUIDs, make the names of files in a folder unique."""
        return not any(label in self.pattern for label in _UNIQUE)

    @property
    def text(self) -> str:
        """The options for a task's COPY, as SQL."""
        options = {name: text for name, text in self.options.items() if name not in MODES}
        if self.is_folder:
            options["filename_pattern"] = quote_text("{i}" if self.is_numbered else self.pattern)
        return ", ".join(f"{name} {text}" for name, text in options.items()) or "USE_TMP_FILE false"


def parsed_copy(target: str) -> Copy | None:
    """The parsed text after TO; None for what the front end's DuckDB must write itself.

    Raises:
        DataError: the target's scheme is unknown.
    """
    # These are devices, options without parentheses, RETURN_FILES and
    # RETURN_STATS, and a FILENAME_PATTERN that is not a plain string.
    cursor = Cursor(target)
    literal = cursor.take()
    cursor.skip("WITH")
    listed = cursor.brackets() if cursor.next == "(" else "()"
    path = text_value(literal)
    if cursor.next or literal[:1] != "'" or path.startswith("/dev/"):
        return None
    options: dict[str, str] = {}
    for text in split_arguments(listed[1:-1]):
        option = Cursor(text)
        name = option.take().lower()
        option.skip("=")
        if not name.isidentifier():
            return None
        options[name] = option.rest or "true"
    place = destination(os.path.expanduser(path))  # noqa: PTH111 - as DuckDB
    if is_remote(place):
        copy = Copy(Path("/", place.partition("://")[2]), options, place)
    else:
        copy = Copy(Path(place), options)
    asks_more = any(copy.has(option) for option in _FRONT_END_OPTIONS)
    is_named = bool(copy.pattern) and "/" not in copy.pattern
    is_error = copy.has("append") and copy.is_numbered  # DuckDB says so
    return None if asks_more or is_error or not is_named else copy


@dataclass(frozen=True, slots=True)
class Written:
    """The output of a task: its entry in the staging folder, and the number of rows."""

    entry: str
    rows: int


@dataclass(frozen=True, slots=True)
class WriteFiles(Sink[tuple[Written, ...]]):
    """The rows of a query as files in a staging folder, from which `publish` moves them."""

    copy: Copy  # the final target
    staging: Path | str  # a folder, or the URI of one
    access: StoreAccess = FROM_ENVIRONMENT  # to a staging folder in an object store
    kept: bool = False  # whether the query's partitions are the user's: a file for each

    def options(self, options: PlannerOptions) -> PlannerOptions:
        return options.in_stages() if self.kept and self.copy.is_folder else options

    def shape(self, plan: PhysicalPlan) -> PhysicalPlan:
        return plan if self.copy.is_folder else in_one_partition(plan)

    def output(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Output:
        suffix = "".join(self.copy.path.suffixes)  # DuckDB infers format and compression from it
        target = CopyTarget(str(self.staging), self.copy.text, suffix, self.access)
        return Output(kind=OutputKind.FILES, columns=numbered(columns), target=target)

    def finish(self, run: CompleteRun) -> tuple[Written, ...]:
        return tuple(
            Written(outcome.file or "", outcome.figures.rows) for outcome, _ in run.outcomes()
        )


@contextlib.contextmanager
def staging_folder(copy: Copy) -> Iterator[Path]:
    """A folder beside the target, so that moving files there is atomic; removed afterwards."""
    # It stays only if it holds former files of the target that could not be moved back.
    _check_target(copy)
    with _writing(copy):
        name = f".{copy.path.name}.{os.getpid()}-"
        staging = Path(tempfile.mkdtemp(prefix=name, dir=copy.path.parent))
    try:
        yield staging
    except BaseException as error:
        if any(staging.glob(f"{_REPLACED}/*")):  # moving it back failed, or was interrupted
            error.add_note(f"Former files of {copy.path} are in {staging / _REPLACED}.")
        else:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    shutil.rmtree(staging, ignore_errors=True)


def _check_target(copy: Copy) -> None:
    """Raise DataError for targets that DuckDB would refuse, too."""
    path = copy.path
    if not path.parent.is_dir():
        raise DataError(f"Can't write {path}: there is no folder {path.parent}.")
    if not copy.is_folder:
        if path.is_dir():
            raise DataError(f"Can't write the file {path}: it is a folder.")
        return
    if path.exists() and not path.is_dir():
        raise DataError(f"Can't write the folder {path}: it is a file.")
    if path.is_dir() and any(path.iterdir()) and not any(map(copy.has, MODES)):
        raise DataError(
            f'Directory "{path}" is not empty! Add the option OVERWRITE, OVERWRITE_OR_IGNORE '
            "or APPEND."
        )


@contextlib.contextmanager
def _writing(copy: Copy) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        sentence = f"Can't write {copy.path}: {error.strerror}."
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise (ResourceError(sentence) if full else DataError(sentence)) from error


def check_options(con: duckdb.DuckDBPyConnection, copy: Copy, schema: Schema, to: Path) -> None:
    names = numbered(column.name for column in schema)
    nulls = ", ".join(
        f"CAST(NULL AS {column.type}) AS {quote(name)}"
        for column, name in zip(schema, names, strict=True)
    )
    path = f"{to}/check{''.join(copy.path.suffixes)}"
    con.execute(f"COPY (SELECT {nulls} WHERE false) TO {quote_text(path)} ({copy.text})").fetchall()


def parquet_files(folder: Path) -> str:
    files = sorted(folder.rglob("*.parquet"), key=lambda file: (len(file.name), str(file)))
    return f"read_parquet([{', '.join(quote_text(str(file)) for file in files)}])"


def publish(copy: Copy, staging: Path, written: Sequence[Written]) -> None:
    """Move all output of tasks to the target; if that fails, move everything back."""
    filled = [item for item in written if item.rows] or list(written[:1])
    with _writing(copy), contextlib.ExitStack() as undo:
        if not copy.is_folder:
            (staging / filled[0].entry).replace(copy.path)
            return
        files = _named(copy, staging, filled)
        (staging / _REPLACED).mkdir()
        if not copy.path.exists() or copy.has("overwrite"):
            _replace_folder(copy, staging, files, undo)
        else:
            _add_files(copy, staging, files, undo)
        undo.pop_all()


def _replace_folder(
    copy: Copy, staging: Path, files: Mapping[Path, Path], undo: contextlib.ExitStack
) -> None:
    final = staging / "final"
    final.mkdir()
    for name, source in files.items():
        target = final / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    if copy.path.exists():
        _move(copy.path, staging / _REPLACED / "all", undo)
    _move(final, copy.path, undo)


def _add_files(
    copy: Copy, staging: Path, files: Mapping[Path, Path], undo: contextlib.ExitStack
) -> None:
    """Add the new files to the target; existing files of the same names are replaced."""
    for number, (name, source) in enumerate(files.items()):
        target = copy.path / name
        for folder in reversed([p for p in target.parents if not p.exists()]):
            undo.callback(_remove_empty, folder)
            folder.mkdir()
        if target.exists():
            _move(target, staging / _REPLACED / str(number), undo)
        _move(source, target, undo)


def _move(source: Path, target: Path, undo: contextlib.ExitStack) -> None:
    """Rename; the undo is registered first, as Ctrl-C may come right after the rename."""
    undo.callback(_move_back, target, source)
    source.rename(target)


def _move_back(target: Path, source: Path) -> None:
    if os.path.lexists(target) and not os.path.lexists(source):
        target.rename(source)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # it does not exist yet, or others put files there
        folder.rmdir()


def _named(copy: Copy, staging: Path, written: Sequence[Written]) -> dict[Path, Path]:
    """The files by their names below the target."""
    entries = (
        (
            item.entry,
            [
                str(path.relative_to(staging / item.entry))
                for path in (staging / item.entry).rglob("*")
                if path.is_file()
            ],
        )
        for item in written
    )
    return {Path(name): staging / source for name, source in final_names(copy, entries).items()}


def final_names(copy: Copy, entries: Iterable[tuple[str, Iterable[str]]]) -> dict[str, str]:
    """The staged files by their names below the target; numbers continue from task to task.

    Args:
        copy: the target.
        entries: each task's entry in the staging folder, and the files in it.
    """
    pattern = copy.pattern if "{i}" in copy.pattern else f"{copy.pattern}{{i}}"
    numbers: dict[Path, Iterator[int]] = {}
    files: dict[str, str] = {}
    for entry, names in entries:
        paths = map(Path, names)
        for file in sorted(paths, key=lambda path: (path.parent, len(path.name), path.name)):
            name = file
            numbered_name = _NUMBERED.fullmatch(name.name)
            if copy.is_numbered and numbered_name is not None:
                number = next(numbers.setdefault(name.parent, itertools.count()))
                name = name.with_name(pattern.replace("{i}", str(number)) + numbered_name[2])
            if str(name) in files:
                target = copy.uri or copy.path
                raise DataError(f"Can't write {target}: two files would have the name {name}.")
            files[str(name)] = f"{entry}/{file}"
    return files
