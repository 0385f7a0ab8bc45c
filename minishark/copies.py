"""COPY ... TO: files that tasks write side by side, and that are there when all are, or none.

Each task writes under a staging folder beside the target, with DuckDB's own COPY. When the last
has finished, the front end gives the files the names that DuckDB would, and moves them to the
target. An error or an interruption before that, or while they are moved, leaves the target as it
was. One file is written by one task; a folder (PER_THREAD_OUTPUT, PARTITION_BY, FILE_SIZE_BYTES)
by all.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from minishark.cluster.query import QueryRun
from minishark.cluster.sinks import Ending, Files
from minishark.dataframe.names import numbered
from minishark.errors import DataError, MinisharkError, ResourceError
from minishark.execution.task import CopyTarget
from minishark.expressions import Schema, quote, quote_text
from minishark.physical.plan import PhysicalPlan
from minishark.physical.planner import PlannerOptions
from minishark.physical.repartition import in_one_partition

_FOLDER_OPTIONS = ("per_thread_output", "partition_by", "file_size_bytes", "row_groups_per_file")
_MODES = ("overwrite", "overwrite_or_ignore", "append")
_FRONT_END_OPTIONS = ("return_files", "return_stats")
_FALSE = ("false", "0", "'false'", "off", "no")
_TARGET = re.compile(
    r"\s*'((?:[^']|'')*)'\s*(?:(?:WITH\s*)?\((.*)\)\s*)?", re.IGNORECASE | re.DOTALL
)
_OPTION = re.compile(r"(\w+)\s*=?\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Copy:
    """Where a COPY writes, and how.

    Attributes:
        path: the target, absolute.
        options: DuckDB's options, as they were written, by name in lower case.
    """

    path: Path
    options: Mapping[str, str]

    def has(self, option: str) -> bool:
        """Whether an option is given, and not as false."""
        return self.options.get(option, "false").lower() not in _FALSE

    @property
    def is_folder(self) -> bool:
        """Whether it writes several files."""
        return any(self.has(option) for option in _FOLDER_OPTIONS)

    @property
    def text(self) -> str:
        """The options that a task's COPY has."""
        options = {name: text for name, text in self.options.items() if name not in _MODES}
        if self.is_folder and self.has("append"):
            options.setdefault("filename_pattern", "'{uuid}'")
        return ", ".join(f"{name} {text}" for name, text in options.items()) or "USE_TMP_FILE false"


def parsed_copy(target: str, split: Callable[[str], Sequence[str]]) -> Copy | None:
    """What stands after TO; None for what the front end's DuckDB must write itself.

    That is: no local files, options in the old form without brackets, or answers of more than the
    number of rows.

    Args:
        target: the text after TO.
        split: cuts the text between brackets at its commas.
    """
    found = _TARGET.fullmatch(target)
    if found is None:
        return None
    path = found[1].replace("''", "'")
    if "://" in path or path.startswith("/dev/"):
        return None
    options: dict[str, str] = {}
    for text in split(found[2] or ""):
        option = _OPTION.fullmatch(text.strip())
        if option is None:
            return None
        options[option[1].lower()] = option[2] or "true"
    copy = Copy(Path(os.path.expanduser(path)).absolute(), options)  # noqa: PTH111 - as DuckDB
    return None if any(copy.has(option) for option in _FRONT_END_OPTIONS) else copy


@dataclass(frozen=True, slots=True)
class Written:
    """What a task has written: its entry in the staging folder, and how many rows."""

    entry: str
    rows: int


@dataclass(frozen=True, slots=True)
class CopyGoal:
    """The goal to have a query's rows in files of a staging folder.

    Attributes:
        copy: where they go at last.
        staging: where they go first.
    """

    copy: Copy
    staging: Path

    def options(self, options: PlannerOptions) -> PlannerOptions:
        """As they are."""
        return options

    def shaped(self, plan: PhysicalPlan) -> PhysicalPlan:
        """One file is written by one task."""
        return plan if self.copy.is_folder else in_one_partition(plan)

    def ending(self, plan: PhysicalPlan, columns: tuple[str, ...]) -> Ending:
        """Each task writes its rows."""
        del plan
        suffix = "".join(self.copy.path.suffixes)  # DuckDB tells format and compression by it
        target = CopyTarget(str(self.staging), self.copy.text, suffix)
        return Ending(Files(target), numbered(columns))

    def reached(self, run: QueryRun) -> tuple[Written, ...]:
        """What each task has written."""
        return tuple(Written(outcome.file or "", outcome.rows) for outcome, _ in run.outcomes())


@contextlib.contextmanager
def staging_folder(copy: Copy) -> Iterator[Path]:
    """A folder beside the target, gone afterwards.

    Raises:
        DataError: the target can't be written.
        ResourceError: the disk is full.
    """
    _check_target(copy)
    with _writing(copy):
        name = f".{copy.path.name}.{os.getpid()}-"
        staging = Path(tempfile.mkdtemp(prefix=name, dir=copy.path.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _check_target(copy: Copy) -> None:
    """Raise DataError for what DuckDB would not write to."""
    path = copy.path
    if not path.parent.is_dir():
        raise DataError(f"Can't write {path}: there is no folder {path.parent}.")
    if not copy.is_folder:
        if path.is_dir():
            raise DataError(f"Can't write the file {path}: it is a folder.")
        return
    if path.exists() and not path.is_dir():
        raise DataError(f"Can't write the folder {path}: it is a file.")
    if path.is_dir() and any(path.iterdir()) and not any(map(copy.has, _MODES)):
        raise DataError(
            f'Directory "{path}" is not empty! Add the option OVERWRITE, OVERWRITE_OR_IGNORE '
            "or APPEND."
        )


@contextlib.contextmanager
def _writing(copy: Copy) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _write_error(copy, error) from error


def _write_error(copy: Copy, error: OSError) -> MinisharkError:
    sentence = f"Can't write {copy.path}: {error.strerror}."
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ResourceError(sentence) if full else DataError(sentence)


def check_options(con: duckdb.DuckDBPyConnection, copy: Copy, schema: Schema, to: Path) -> None:
    """Let DuckDB judge the options, over no rows.

    Args:
        con: a connection.
        copy: the options.
        schema: the columns.
        to: a staging folder.

    Raises:
        duckdb.Error: it does not accept them.
    """
    names = numbered(column.name for column in schema)
    nulls = ", ".join(
        f"CAST(NULL AS {column.type}) AS {quote(name)}"
        for column, name in zip(schema, names, strict=True)
    )
    path = f"{to}/check{''.join(copy.path.suffixes)}"
    con.execute(f"COPY (SELECT {nulls} WHERE false) TO {quote_text(path)} ({copy.text})").fetchall()


def parquet_files(folder: Path) -> str:
    """A relation of all Parquet files of a folder, in the order in which COPY numbers them."""
    files = sorted(folder.rglob("*.parquet"), key=lambda file: (len(file.name), str(file)))
    return f"read_parquet([{', '.join(quote_text(str(file)) for file in files)}])"


def publish(copy: Copy, staging: Path, written: Sequence[Written]) -> None:
    """Move what tasks have written to the target: all of it, or nothing.

    Raises:
        DataError: the target can't be written.
    """
    filled = [item for item in written if item.rows] or list(written[:1])
    with _writing(copy), contextlib.ExitStack() as undo:
        if not copy.is_folder:
            (staging / filled[0].entry).replace(copy.path)
        elif not copy.path.exists() or copy.has("overwrite"):
            _replace_folder(copy, staging, filled, undo)
        else:
            _add_files(copy, staging, filled, undo)
        undo.pop_all()


def _replace_folder(
    copy: Copy, staging: Path, written: Sequence[Written], undo: contextlib.ExitStack
) -> None:
    """The target becomes a folder of the new files alone."""
    final = staging / "final"
    final.mkdir()
    final.chmod(0o777 & ~_umask())
    for source, name in _named(copy, staging, written):
        target = final / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    if copy.path.exists():
        old = staging / "old"
        copy.path.rename(old)
        undo.callback(old.rename, copy.path)
    final.rename(copy.path)


def _add_files(
    copy: Copy, staging: Path, written: Sequence[Written], undo: contextlib.ExitStack
) -> None:
    """New files beside those that are there; those of the same names are replaced."""
    backup = staging / "backup"
    backup.mkdir()
    for number, (source, name) in enumerate(_named(copy, staging, written)):
        target = copy.path / name
        for folder in reversed([p for p in target.parents if not p.exists()]):
            folder.mkdir()
            undo.callback(folder.rmdir)
        if target.exists():
            kept = backup / str(number)
            target.rename(kept)
            undo.callback(kept.rename, target)
        source.rename(target)
        undo.callback(target.unlink, missing_ok=True)


def _named(copy: Copy, staging: Path, written: Sequence[Written]) -> Iterator[tuple[Path, Path]]:
    """Each file, and its name below the target: numbers go on from task to task."""
    pattern = copy.options.get("filename_pattern", "'data_{i}'").strip("'")
    unique = "{uuid" in pattern or (copy.has("append") and "filename_pattern" not in copy.options)
    before, _, after = (pattern if "{i}" in pattern else f"{pattern}{{i}}").partition("{i}")
    name = re.compile(rf"{re.escape(before)}\d+{re.escape(after)}(\..*)?", re.DOTALL)
    numbers: dict[Path, Iterator[int]] = {}
    for item in written:
        entry = staging / item.entry
        for file in sorted(p for p in entry.rglob("*") if p.is_file()):
            relative = file.relative_to(entry)
            found = None if unique else name.fullmatch(relative.name)
            if found is not None:
                number = next(numbers.setdefault(relative.parent, itertools.count()))
                relative = relative.with_name(f"{before}{number}{after}{found[1] or ''}")
            yield file, relative


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
