"""DuckDB's own test files on minishark, each statement beside DuckDB itself.

    git clone https://github.com/duckdb/duckdb
    python benchmarks/duckdb_tests.py duckdb/test/sql --only transactions

A file runs as a whole, from its top, in one session of its own and in one DuckDB; its named
connections are sessions beside the first. What counts is DuckDB's answer here and now, not the one
that stands in the file: both give an error, or both the same rows (as a bag), names and types. A
file goes on after a query that differs, as that changes nothing; after any other statement it ends,
as later differences may follow from it.

What docs/sql.md names counts apart: statements that minishark refuses by an UnsupportedError; a
conflict of two transactions that only one of the engines sees (here those conflict that change one
table, and COMMIT says so); and `NAMED`, by their reasons.

Files are left out, or end early, where they need an extension, reopen the database, load a file, or
run statements in threads. The exit status is 1 if anything differs otherwise.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import minishark
from minishark.errors import ConflictError, MinisharkError, UnsupportedError
from minishark.query.answers import differences
from minishark.session.session import Session
from minishark_lab.harness.parameters import Natural, Positive
from minishark_lab.harness.script import Options, described, run_script

# What the wheel of DuckDB has, and what is said of other ways to run its tests.
_EXTENSIONS = ("json", "parquet", "icu", "core_functions")
_SIZES = ("vector_size", "exact_vector_size=2048", "block_size=262144", "64bit", "longdouble")
_OTHERWISE = (
    *("skip_reload", "noforcestorage", "no_force_storage", "no_latest_storage", "strinline"),
    *("no_alternative_verify", "no_vector_verification", "no_extension_autoloading"),
    *("notwindows", "notmingw"),
)
_REQUIRED = frozenset((*_EXTENSIONS, *_SIZES, *_OTHERWISE))
_ENDS = frozenset(("load", "restart", "reconnect", "concurrentloop", "concurrentforeach", "unzip"))
_FOLDERS = ("TEST_DIR", "TEMP_DIR")
_IDS = "Ids of objects differ."
_IS_ID = re.compile(r"(oid|relid|typid|objid|namespace|datdba)$")  # of columns of the catalog
_SORTS = ("nosort", "rowsort", "valuesort", "sort")
_EXPLAINS = re.compile(r"\s*EXPLAIN\b", re.IGNORECASE)
_LISTS = {
    "<signed>": "tinyint smallint integer bigint hugeint",
    "<unsigned>": "utinyint usmallint uinteger ubigint uhugeint",
    "<numeric>": "<integral> float double",
    "<integral>": "<signed> <unsigned>",
    "<alltypes>": "<numeric> bool interval varchar",
}


@dataclass(frozen=True, slots=True)
class Named:
    """A difference that docs/sql.md names."""

    reason: str
    statement: str = ""  # a pattern of statements
    difference: str = ""  # a pattern of what is said of them
    file: str = ""  # a pattern of files

    def names(self, file: Path, sql: str, difference: str) -> bool:
        """Whether it is this one."""
        pairs = ((self.statement, sql), (self.difference, difference), (self.file, str(file)))
        return all(re.search(pattern, text) for pattern, text in pairs)


NAMED = (
    Named("names of parameters' columns", r"(?i)\bEXECUTE\b|\$\w", "^Columns are"),
    Named("statistics of DuckDB's storage", r"(?i)\bstats\(|duckdb_(memory|table_sample)\("),
    Named("statistics of DuckDB's storage", r"(?i)PRAGMA.(storage_info|database_size)"),
    Named("statistics of DuckDB's storage", r"(?i)pragma_metadata_info\("),
    Named("statistics of DuckDB's storage", r"(?i)\bvector_type\(|_external_file_cache\("),
    Named("files that changed, without validation", file="external_file_cache_validate"),
    Named("encodings of variants, whose values are alike", file="variant_shredding_small"),
    Named("DuckDB's profiles and logs", r"(?i)\bduckdb_logs\w*\b"),
    Named(
        "DuckDB's profiles and logs",
        r"(?i)profil\w+'|tracked_metrics|query_(log|path)|log_query|_profil\w+\.json",
    ),
    Named("DuckDB's profiles and logs", r"'\{TEST_DIR\}/(test\.txt|\w*output\.json)'"),
    Named("DuckDB's profiles and logs", file=r"/profiling/|/logging/|detailed_profiler"),
    Named("statistics of DuckDB's storage", r"(?i)\bBITSTRING_AGG\(", "retrieve required statist"),
    Named("row ids of changed tables", r"(?i)\browid\b", "rows are missing"),
    Named("object ids", r"(?i)\w+_oid\b", "rows are missing"),
    Named("object ids", difference=_IDS),
    Named("keys that are added in a transaction", file="test_add_pk_rollback"),
    Named("current_query()", r"(?i)\bcurrent_query\(|captured"),
    Named(
        "settings that minishark chooses",
        r"(?i)\bSHOW\s+\W?threads|'temp_directory'|(duckdb|pg)_settings\b",
    ),
    Named("prepared statements in the catalog", r"(?i)(duckdb|pg)_prepared_statements\b"),
    Named("row numbers without an order, rows that a LIMIT keeps", file="cte_parallel_buffered"),
    Named("times", r"(?i)\b(local|current_)\w*time\w*\b", "rows are missing"),
    Named("times", r"(?i)\bpg_postmaster_start_time\("),
    Named("times", file=r"/test_now\.|column_current_timestamp"),
    Named("sizes of files", r"(?i)\bRETURN_STATS\b", "rows are missing"),
    Named("options of COPY", file="row_group_size_bytes|skip_empty_write|copy_overwrite_parquet"),
    Named("numbers of transactions", r"(?i)\btxid_current\("),
    Named("random values", file=r"/alp/|/alprd/|column_random"),
    Named("random values", r"(?i)\b(random|reservoir_quantile)\(|\bUSING SAMPLE\b"),
    Named("rows that a LIMIT keeps", r"(?i)\bLIMIT\b", file="test_big_insert"),
    Named(
        "rows that first() takes without an order", r"(?i)\bfirst\(\[a\]\)", file="parallel_nested"
    ),
    Named("prepared statements are bound by EXECUTE", r"(?i)^\s*PREPARE\b", "^DuckDB says"),
    Named("prepared statements are bound by EXECUTE", r"EXECUTE collated_delta"),
    Named("plans as JSON", r"(?i)\bjson_serialize_plan\("),
    Named("tables in queries as JSON", r"(?i)\bjson_execute_serialized_sql\("),
    Named("external resources", file="external_resource"),
    Named("temporary tables of the first session", r"DROP TABLE memory\.main\.integersx"),
    Named("variables by their names", r"DEFAULT \$"),
    Named("another session's DETACH", file="test_querying_from_detached_catalog"),
    Named("another session's ALTER VIEW", file="test_rename_view_many_transactions"),
    Named(
        "what follows refused settings",
        file=r"/settings/|_external_access|_with_dependencies|qualify_view|_abort\.test"
        r"|attach_invalidation|autocheckpoint_prop|failure_on_detach|wal_view_storage",
    ),
    Named("what follows refused settings", file="statement_tostring_roundtrip"),
    Named("what follows refused settings", "", "Out of Memory Error"),
    Named(
        "what follows refused settings",
        file=r"rename_(col|table)/test_rename_\w+_(rollback|collision|transactions)",
    ),
    Named("files in the place of folders", r"(?i)\bOVERWRITE\b", "it is a file"),
    Named("names after USE and ATTACH", file="attach_(default_table|did_you_mean|views)"),
    Named("files of attached databases", file="no_wal_writes|encryption_fallback"),
    Named("connections", r"(?i)\bduckdb_connection_count\("),
    Named(
        "random values",
        file=r"test_iejoin_events|test_art_issue_6799|hive_timestamps|split_partition_heap|virtual/group_by",
    ),
)
# Statements after which a file goes on, whatever they answered: they change no rows.
_READS = (duckdb.StatementType.SELECT,)
# Those that set something, or only concern DuckDB's storage.
_SETS = (
    duckdb.StatementType.SET,
    duckdb.StatementType.PRAGMA,
    duckdb.StatementType.VARIABLE_SET,
    duckdb.StatementType.CALL,
    duckdb.StatementType.VACUUM,
)


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
    for index, (_, line) in enumerate(lines):
        match line.split():
            case ["load", file, *_] if file.startswith(("{TEST_DIR}", "__TEST_DIR__")):
                del lines[index]  # it is new: what runs answers as in memory
                break
            case ["statement" | "query" | "loop" | "foreach", *_]:
                break
    yield from _unrolled(lines, variables)


def _is_there(name: str, values: Sequence[str]) -> bool:
    return name in _REQUIRED or "=".join((name, *values[:1])) in _REQUIRED


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
            case ["require", name, *values] if not _is_there(name, values):
                raise LeftOutError(f"require {name}")
            case ["require-env", name, *_]:
                raise LeftOutError(f"require-env {name}")
            case [word, *_] if word in _ENDS:
                raise LeftOutError(word)
            case [("statement" | "query"), _, *others]:
                end = _end_of_block(lines, position)
                texts = (text for _, text in lines[position:end])
                before = itertools.takewhile(lambda each: each != "----", texts)
                sql = "\n".join(each for each in before if not each.startswith("#"))
                position = end
                # The name after the order of a query's rows is that of its answer.
                names = [*itertools.takewhile(lambda word: word not in _SORTS, others)]
                if not skips and sql.strip():
                    yield Step(number, _filled(sql, variables), names[0] if names else "")
            case _:  # `set`, `hash-threshold`, `sleep`, expected rows after an empty line ...
                pass


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

        Each engine writes to a folder of its own for `{TEST_DIR}` and `{TEMP_DIR}`.

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
            sql = _filled(step.sql, dict.fromkeys(_FOLDERS, str(folder / "duckdb")))
            expected = self._natives[name].execute(sql).to_arrow_table()
        except duckdb.Error as error:
            expected = _first_line(error)
        try:
            sql = _filled(step.sql, dict.fromkeys(_FOLDERS, str(folder / "minishark")))
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
                expected = _without(str(folder / "duckdb"), expected)
                actual = _without(str(folder / "minishark"), actual)
                return _difference(expected, actual)
        return None

    def goes_on_after(self, step: Step, *, sets: bool) -> bool:
        """Whether a file can go on after a statement that differs: it has changed nothing.

        Args:
            step: the statement.
            sets: whether settings don't count, as minishark has refused them.
        """
        if self._sessions[step.connection].in_transaction:
            return False
        try:
            statements = self.native.extract_statements(step.sql)
        except duckdb.Error:
            return False
        harmless = (*_READS, *(_SETS if sets else ()))
        if not re.search(r"\bANALYZE\b", step.sql, re.IGNORECASE):
            harmless = (*harmless, duckdb.StatementType.EXPLAIN)
        try:
            return all(each.type in harmless for each in statements)
        except ValueError:  # of a type that its Python package has no name for
            return False


def _without(folder: str, table: pa.Table) -> pa.Table:
    """A table without the path of an engine's folder in names and texts."""
    names = [name.replace(folder, "") for name in table.column_names]
    columns = [
        pa.chunked_array([_text_without(folder, chunk) for chunk in column.chunks], column.type)
        for column in table.columns
    ]
    return pa.table(columns, names=names) if names else table


def _text_without(folder: str, values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type):
        return pc.replace_substring(values, folder, "")
    if pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type):
        texts = _text_without(folder, values.values)
        return pa.ListArray.from_arrays(values.offsets, texts, values.type, mask=values.is_null())
    return values


def _difference(expected: pa.Table, actual: pa.Table) -> str | None:
    """How two answers differ, if they do: `_IDS` if it is only by ids of objects."""
    difference = next(iter(differences(expected, actual)), None)
    others = [name for name in expected.column_names if not _IS_ID.search(name)]
    if difference is None or expected.column_names != actual.column_names:
        return difference
    if len(others) < expected.num_columns and len({*others}) == len(others):
        without = (expected.select(others), actual.select(others))
        if others and next(iter(differences(*without)), None) is None:
            return _IDS
    return difference


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0]


@dataclass(slots=True)
class Verdict:
    """What the statements of a file have given, and how it ended."""

    end: str = ""  # why before its last statement, if so
    alike: int = 0
    named: Counter[str] = field(default_factory=Counter)  # statements by reason
    others: list[str] = field(default_factory=list)  # the differences that have no name
    last: str = ""  # the statement that ran last

    @property
    def statements(self) -> int:
        return self.alike + self.named.total() + len(self.others)


def compare(file: Path, limit_s: float) -> Verdict:
    """Run a file in both engines, up to what can't be run, or to a difference of a change."""
    verdict = Verdict()
    with tempfile.TemporaryDirectory() as folder, Pair.open() as pair:
        for engine in ("duckdb", "minishark"):
            Path(folder, engine).mkdir()
        variables = {"UUID": "0a1b", "WORKING_DIR": str(_root_of(file))}
        try:
            with _limited(limit_s):
                for step in steps_of(file.read_text(errors="replace"), variables):
                    verdict.last = _place_of(step)
                    if not _compare_step(file, step, pair, Path(folder), verdict):
                        break
        except LeftOutError as error:
            verdict.end = str(error)
        except TimeoutError:
            verdict.others.append(f"{verdict.last}\n    late")
            verdict.end = "late"
    return verdict


def _place_of(step: Step) -> str:
    return f"line {step.line}: {' '.join(step.sql.split())[:160]}"


def _compare_step(file: Path, step: Step, pair: Pair, folder: Path, verdict: Verdict) -> bool:
    """Whether the file goes on."""
    place = verdict.last
    try:
        difference = pair.difference(step, folder)
        if difference is None:
            verdict.alike += 1
            return True
        named = (each.reason for each in NAMED if each.names(file, step.sql, difference))
        reason = next(named, None)
    except UnsupportedError as error:
        difference, reason = _first_line(error), "refused"
    except ConflictError as error:
        difference, reason = _first_line(error), "conflicts"
    if reason is None:
        verdict.others.append(f"{place}\n    {difference[:300]}")
    else:
        verdict.named[reason] += 1
    both_done = difference.startswith("Columns are")
    goes_on = both_done or pair.goes_on_after(step, sets=reason == "refused")
    if not goes_on:
        verdict.end = f"{reason or 'differs'}: {place}\n    {difference[:300]}"
    return goes_on


def _root_of(file: Path) -> Path:
    return next((each.parent for each in file.parents if each.name == "test"), file.parent)


@contextlib.contextmanager
def _limited(limit_s: float) -> Iterator[None]:
    """A block that TimeoutError ends after a time."""
    is_late = False

    def late(_signal: int, _frame: FrameType | None) -> None:
        nonlocal is_late
        is_late = True
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except KeyboardInterrupt:  # as a signal ends DuckDB's calls
        if not is_late:
            raise
        raise TimeoutError from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, kw_only=True)
class DuckdbTestsOptions(Options):
    folder: Annotated[Path, described("DuckDB's test/sql, or a part of it", positional=True)]
    only: Annotated[str, described("files whose path matches this pattern")] = ""
    every: Annotated[Positive, described("one of so many files")] = 1
    most: Annotated[Natural, described("so many files at the most; 0 for all")] = 0
    limit_s: Annotated[Positive, described("for each file")] = 180


def chosen(options: DuckdbTestsOptions) -> Iterable[Path]:
    files = sorted(options.folder.rglob("*.test"))
    files = [file for file in files if re.search(options.only, str(file))][:: int(options.every)]
    return files[: options.most or None]


def main(options: DuckdbTestsOptions) -> int:
    """Compare the files; print each difference without a name, and a table of the folders."""
    warnings.filterwarnings("ignore", message="Arrow output on a DB-API result")
    rows, folders = [], dict[str, list[Verdict]]()
    for file in chosen(options):
        verdict = compare(file, float(options.limit_s))
        name = str(file.relative_to(options.folder))
        folders.setdefault(_folder_of(file, options.folder), []).append(verdict)
        rows.append({"file": name, **asdict(verdict), "named": dict(verdict.named)})
        for difference in verdict.others:
            print(f"{name}: {difference}", flush=True)
    total = [verdict for verdicts in folders.values() for verdict in verdicts]
    options.write({"files": rows})
    for line in table_of({**folders, "all": total}):
        print(line)
    return int(any(verdict.others for verdict in total))


def _folder_of(file: Path, root: Path) -> str:
    """The folder in test/sql that a file stands in."""
    parts = file.parts
    return parts[parts.index("sql") + 1] if "sql" in parts[:-2] else root.name


def table_of(folders: Mapping[str, Sequence[Verdict]]) -> Iterator[str]:
    """What the files of each folder gave, as a table in Markdown."""
    yield "| folder | files | statements | alike | differ as named | differ otherwise |"
    yield "|---|---|---|---|---|---|"
    for folder, verdicts in folders.items():
        named = sum((verdict.named for verdict in verdicts), Counter[str]())
        reasons = ", ".join(f"{count} {reason}" for reason, count in named.most_common())
        cells = (
            folder,
            len(verdicts),
            sum(verdict.statements for verdict in verdicts),
            sum(verdict.alike for verdict in verdicts),
            f"{named.total()}: {reasons}" if reasons else 0,
            sum(len(verdict.others) for verdict in verdicts),
        )
        yield f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    run_script(main)
