"""DuckDB's own test files on minishark, each statement beside DuckDB itself.

    git clone https://github.com/duckdb/duckdb
    python benchmarks/duckdb_tests.py duckdb/test/sql --only transactions

A file runs as a whole, from its top, in one session of its own and in one DuckDB; its named
connections are sessions beside the first. What counts is DuckDB's answer here and now, not the one
that stands in the file: both give an error, or both the same rows (as a bag), names and types. Only
the first difference of a file counts, as later ones may follow from it. A statement that minishark
refuses by an UnsupportedError, as docs/sql.md says, ends its file without being a difference; so
does a conflict of two transactions that only one of the engines sees: here those conflict that
change one table, and COMMIT says so.

Files are left out, or end early, where they need an extension, reopen the database, load a file, or
run statements in threads. The exit status is 1 if anything differs.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

import duckdb
import pyarrow as pa

import minishark
from minishark.errors import ConflictError, MinisharkError, UnsupportedError
from minishark.query.answers import differences
from minishark.session.session import Session
from minishark_lab.harness.parameters import Natural, Positive
from minishark_lab.harness.script import Options, described, run_script

_REQUIRED = frozenset(
    ("json", "parquet", "icu", "core_functions", "skip_reload", "noforcestorage", "vector_size")
)
_ENDS = frozenset(("load", "restart", "reconnect", "concurrentloop", "concurrentforeach", "unzip"))
_EXPLAINS = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)
_LISTS = {
    "<signed>": "tinyint smallint integer bigint hugeint",
    "<unsigned>": "utinyint usmallint uinteger ubigint uhugeint",
    "<numeric>": "<integral> float double",
    "<integral>": "<signed> <unsigned>",
    "<alltypes>": "<numeric> bool interval varchar",
}


class LeftOutError(Exception):
    """The rest of a file can't be run here, and why."""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement or query of a file."""

    line: int  # from 1
    sql: str
    connection: str = ""  # the name of the one that it runs in; empty for the first


def steps_of(text: str, variables: Mapping[str, str]) -> Iterator[Step]:
    """The statements of a file, with its loops unrolled; LeftOutError where it can't go on.

    Args:
        text: the file.
        variables: what stands for `{NAME}`, `${NAME}` and `__NAME__`.
    """
    lines = [*enumerate(text.splitlines(), 1)]
    yield from _unrolled(lines, variables)


def _unrolled(lines: Sequence[tuple[int, str]], variables: Mapping[str, str]) -> Iterator[Step]:
    position, skips = 0, False
    while position < len(lines):
        number, line = lines[position]
        position += 1
        words = line.split()
        match words:
            case [] | ["#", *_]:
                pass
            case ["loop" | "foreach", *_]:
                end = _end_of_loop(lines, position)
                for values in _values_of_loop([_filled(word, variables) for word in words]):
                    yield from _unrolled(lines[position:end], {**variables, **values})
                position = end + 1
            case ["mode", "skip" | "unskip" as mode]:
                skips = mode == "skip"
            case ["halt"]:
                raise LeftOutError("halt")
            case [("skipif" | "onlyif") as word, engine]:
                # Of other engines, or of one run of a loop by name.
                name, _, value = engine.partition("=")
                is_it = variables.get(name) == value if value else engine == "duckdb"
                if is_it == (word == "skipif"):
                    position = _end_of_block(lines, position)
            case ["require", name, *_] if name not in _REQUIRED:
                raise LeftOutError(f"require {name}")
            case ["require-env", name, *_]:
                raise LeftOutError(f"require-env {name}")
            case [word, *_] if word in _ENDS:
                raise LeftOutError(word)
            case [("statement" | "query"), _, *others]:
                end = _end_of_block(lines, position)
                sql = "\n".join(
                    itertools.takewhile(
                        lambda each: each != "----", (text for _, text in lines[position:end])
                    )
                )
                position = end
                names = [w for w in others if not _is_of_query(w)]
                if words[0] == "statement" and words[1] == "maybe":
                    raise LeftOutError("statement maybe")
                if not skips and sql.strip():
                    yield Step(number, _filled(sql, variables), names[0] if names else "")
            case _:  # `set`, `hash-threshold`, `sleep`, expected rows after an empty line ...
                pass


def _is_of_query(word: str) -> bool:
    return word in ("nosort", "rowsort", "valuesort", "sort") or word.startswith("label")


def _end_of_block(lines: Sequence[tuple[int, str]], position: int) -> int:
    return next((i for i in range(position, len(lines)) if not lines[i][1].strip()), len(lines))


def _end_of_loop(lines: Sequence[tuple[int, str]], position: int) -> int:
    depth = 1
    for index in range(position, len(lines)):
        word = lines[index][1].split(maxsplit=1)[:1]
        depth += (word in (["loop"], ["foreach"])) - (word == ["endloop"])
        if not depth:
            return index
    raise LeftOutError("a loop without an end")


def _values_of_loop(words: Sequence[str]) -> Iterator[dict[str, str]]:
    if words[0] == "loop":
        _, name, first, last = words
        yield from ({name: str(value)} for value in range(int(first), int(last)))
        return
    _, names, *values = words
    left_out = {value[1:] for value in values if value.startswith("!")}
    for value in itertools.chain.from_iterable(map(_expanded, values)):
        if value not in left_out and not value.startswith("!"):
            yield dict(zip(names.split(","), value.split(","), strict=False))


def _expanded(value: str) -> Iterator[str]:
    if value not in _LISTS:
        yield value
        return
    for each in _LISTS[value].split():
        yield from _expanded(each)


def _filled(text: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        for form in (f"${{{name}}}", f"{{{name}}}", f"__{name}__"):
            text = text.replace(form, value)
    return text


@dataclass(slots=True)
class Pair:
    """The two engines that run a file, with their named connections."""

    session: Session
    native: duckdb.DuckDBPyConnection
    _sessions: dict[str, Session]
    _natives: dict[str, duckdb.DuckDBPyConnection]

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Pair]:
        with (
            minishark.connect(in_process=True, partitions=2, single_task_rows=0) as session,
            contextlib.closing(duckdb.connect()) as native,
        ):
            pair = cls(session, native, {"": session}, {"": native})
            try:
                yield pair
            finally:
                for name in filter(None, pair._sessions):
                    pair._sessions[name].stop()
                    pair._natives[name].close()

    def difference(self, step: Step, folder: Path) -> str | None:
        """How the answers to a statement differ, if they do.

        Each engine writes to a folder of its own for `{TEST_DIR}`.

        Raises:
            UnsupportedError: minishark refuses it.
            ConflictError: one of them sees a conflict with another transaction.
        """
        name = step.connection
        if name not in self._sessions:
            self._sessions[name] = self.session.new_session()
            self._natives[name] = self.native.cursor()
        expected: pa.Table | str
        actual: pa.Table | str
        try:
            sql = _filled(step.sql, {"TEST_DIR": str(folder / "duckdb")})
            expected = self._natives[name].execute(sql).to_arrow_table()
        except duckdb.Error as error:
            expected = _first_line(error)
        try:
            sql = _filled(step.sql, {"TEST_DIR": str(folder / "minishark")})
            actual = self._sessions[name].sql(sql).to_arrow()
        except (UnsupportedError, ConflictError):
            if not isinstance(expected, str):
                raise
            return None
        except MinisharkError as error:
            actual = f"{type(error).__name__}: {_first_line(error)}"
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it should not be
            return f"{type(error).__name__}, which is no MinisharkError: {_first_line(error)}"
        match expected, actual:
            case str(), str():
                return None
            case str(), _ if expected.startswith("TransactionContext Error"):
                raise ConflictError(expected)
            case str(), _:
                return f"DuckDB says: {expected}"
            case _, str():
                return actual
            case pa.Table(), pa.Table():
                if expected.column_names in (["Count"], ["Success"]) or _EXPLAINS.match(step.sql):
                    return None  # what a statement says of itself
                return next(iter(differences(expected, actual)), None)
        return None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a file has ended."""

    kind: str  # "same", "left out", "refused", "conflicts", "differs" or "late"
    statements: int  # that were answered alike
    why: str = ""


def compare(file: Path, limit_s: float) -> Verdict:
    """Run a file in both engines, up to what can't be run, or to the first difference."""
    count, line = 0, 0
    with tempfile.TemporaryDirectory() as folder, Pair.open() as pair, _limited(limit_s):
        for engine in ("duckdb", "minishark"):
            Path(folder, engine).mkdir()
        variables = {"UUID": "0a1b", "WORKING_DIR": str(_root_of(file))}
        try:
            for step in steps_of(file.read_text(errors="replace"), variables):
                line = step.line
                difference = pair.difference(step, Path(folder))
                if difference is not None:
                    sql = " ".join(step.sql.split())[:160]
                    return Verdict("differs", count, f"line {line}: {sql}\n    {difference[:300]}")
                count += 1
        except LeftOutError as error:
            return Verdict("left out", count, str(error))
        except UnsupportedError as error:
            return Verdict("refused", count, f"line {line}: {_first_line(error)}")
        except ConflictError as error:
            return Verdict("conflicts", count, f"line {line}: {_first_line(error)}")
        except TimeoutError:
            return Verdict("late", count, f"line {line}")
    return Verdict("same", count)


def _root_of(file: Path) -> Path:
    return next((each.parent for each in file.parents if each.name == "test"), file.parent)


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """A block that TimeoutError ends after a time."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, kw_only=True)
class DuckdbTestsOptions(Options):
    folder: Annotated[Path, described("DuckDB's test/sql, or a part of it", positional=True)]
    only: Annotated[str, described("files whose path matches this pattern")] = ""
    every: Annotated[Positive, described("one of so many files")] = 1
    most: Annotated[Natural, described("so many files at the most; 0 for all")] = 0
    limit_s: Annotated[Positive, described("for each file")] = 60


def chosen(options: DuckdbTestsOptions) -> Iterable[Path]:
    files = sorted(options.folder.rglob("*.test"))
    files = [file for file in files if re.search(options.only, str(file))][:: int(options.every)]
    return files[: options.most or None]


def main(options: DuckdbTestsOptions) -> int:
    """Compare the files; print each that differs, and how many ended how."""
    kinds, rows, statements = Counter[str](), [], 0
    for file in chosen(options):
        verdict = compare(file, float(options.limit_s))
        kinds[verdict.kind] += 1
        statements += verdict.statements
        name = str(file.relative_to(options.folder))
        rows.append({"file": name, "verdict": verdict.kind, "why": verdict.why})
        if verdict.kind in ("differs", "late"):
            print(f"{name}: {verdict.kind}, {verdict.why}", flush=True)
    options.write({"files": rows, "statements": statements})
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    print(f"{sum(kinds.values())} files, {statements} statements alike: {counts}")
    return int(any(kinds[kind] for kind in ("differs", "late")))


if __name__ == "__main__":
    run_script(main)
