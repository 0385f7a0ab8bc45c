"""TPC-H or TPC-DS with little memory, on minishark beside DuckDB, over the same Parquet files.

    python benchmarks/scarce.py --scale 10 --memory 2GiB
    python benchmarks/scarce.py FOLDER --memory 2GiB --engines minishark,polars

`FOLDER` has the tables and queries of TPC-DS, as `benchmarks/tpcds_data.py` makes them.

Each engine runs in a control group of its own, with all its processes, which may have `--memory`
in all: front end, nodes, executors, and files in shared memory. The kernel kills what exceeds it.
Engines know of the group what they look for themselves (DuckDB takes 80 % of its limit, minishark
75 % for its nodes); they spill to folders below `--temporary`. Nothing is loaded: tables are views
over files, and the files' pages are dropped from the system's cache before each query, as a group
would otherwise read what another one was charged for.

Memory is what can't be reclaimed, anonymous and shared, as the kernel counts it, sampled every
20 ms. CPU time is that of all processes. Answers are compared with DuckDB's; where it has none
within the limit, with its answer without one. The exit status is 1 if one of minishark's is missing
or differs.

Control groups are made beside the process's own, for which it needs rights (root, in most places);
`--groups` names another folder of the cgroup file system, in which groups with a memory controller
may be made. Version 1 is what this was tried on; of version 2 the files have other names.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Self

import duckdb
import msgspec
import pyarrow as pa
from engines import Answer, Engine, EngineError, RunningEngine

from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.query.answers import differences, output_order
from minishark.worker.memory import parse_size
from minishark_lab.harness.clocks import CpuClock
from minishark_lab.harness.parameters import Count, Positive
from minishark_lab.harness.script import TpchOptions, command, described, run_script
from minishark_lab.tpch.reference import create_views
from minishark_lab.tpch.run import versions

OURS, REFERENCE = "minishark", "DuckDB"
_SAMPLE_S = 0.02
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ScarceOptions(TpchOptions):
    folder: Annotated[Path | None, described("of TPC-DS", positional=True)] = None
    memory: Annotated[str, described("for all that an engine has")] = "2GiB"
    queries: Annotated[str | None, described("such as 1,3,5-7; default: all")] = None
    engines: Annotated[tuple[str, ...], described("besides DuckDB")] = (OURS,)
    threads: Count = 2
    limit: Annotated[Positive, described("seconds per query")] = 120.0
    temporary: Path = Path(tempfile.gettempdir())
    groups: Annotated[Path | None, described("folder of the cgroup file system")] = None

    def workload(self) -> tuple[dict[str, str], dict[int, str]]:
        """The tables (name to Parquet pattern), and the chosen queries by number."""
        most = 99 if self.folder else 22
        chosen = parse_selection(self.queries or f"1-{most}", most)
        if self.folder is None:
            return self.tables(), dict(load_queries(chosen))
        tables = {file.stem: str(file) for file in sorted(self.folder.glob("*.parquet"))}
        files = {number: self.folder / f"q{number:02}.sql" for number in chosen}
        if not tables or not all(file.exists() for file in files.values()):
            sys.exit(f"{self.folder} lacks tables or queries; see benchmarks/tpcds_data.py.")
        return tables, {number: file.read_text() for number, file in files.items()}


class ControlGroup:
    """A control group with a limit of memory; a context manager, which removes it."""

    def __init__(self, parent: Path, limit_bytes: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="scarce-", dir=parent))
        # Its files in version 2, else in version 1: of limits, counted memory and kills.
        second = (self.path / "memory.max").exists()
        self._limit = "memory.max" if second else "memory.limit_in_bytes"
        self._counted = ("anon", "shmem") if second else ("total_rss", "total_shmem")
        self._kills = "memory.events" if second else "memory.oom_control"
        (self.path / self._limit).write_text(str(limit_bytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _ in range(100):
            with suppress(OSError):  # its last processes are just ending
                self.path.rmdir()
                return
            time.sleep(0.1)

    def add(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def used_bytes(self) -> int:
        found = _numbers(self.path / "memory.stat")
        return sum(found[name] for name in self._counted)

    def kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        return _numbers(self.path / self._kills)["oom_kill"]


def _numbers(file: Path) -> dict[str, int]:
    lines = (line.split() for line in file.read_text().splitlines())
    return {name: int(value) for name, value in lines}


def own_group() -> Path:
    """The folder of this process's control group that limits memory; exits if there is none."""
    root = Path("/sys/fs/cgroup")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / "memory" if controllers == "memory" else root
        folder = top / path.removeprefix("/")
        if controllers in ("memory", "") and (folder / "memory.stat").exists():
            return folder
    sys.exit("There is no control group that limits memory: name one with --groups.")


def _spilling(tables: Mapping[str, str], threads: int, folder: str) -> Answer:
    connection = duckdb.connect(
        config={"threads": threads, "temp_directory": folder, "arrow_lossless_conversion": "false"}
    )
    connection.execute("SET enable_progress_bar = false")
    create_views(connection, tables)
    return lambda text: connection.sql(text).to_arrow_table()


def _minishark(tables: Mapping[str, str], threads: int, folder: str) -> Answer:
    import minishark

    os.environ["TMPDIR"] = tempfile.tempdir = folder
    session = minishark.connect(executors_per_node=max(1, threads // 2), nodes=min(2, threads))
    for name, path in tables.items():
        session.sql(f"CREATE VIEW {name} AS FROM '{path}'")
    return lambda text: session.sql(text).to_arrow()


def _polars(tables: Mapping[str, str], threads: int, folder: str) -> Answer:
    os.environ["POLARS_MAX_THREADS"] = str(threads)  # read when polars is imported
    os.environ["POLARS_TEMP_DIR"] = folder
    import polars as pl

    context = pl.SQLContext({name: pl.scan_parquet(path) for name, path in tables.items()})
    return lambda text: context.execute(text).collect(engine="streaming").to_arrow()


def _datafusion(tables: Mapping[str, str], threads: int, folder: str, pool: int) -> Answer:
    from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

    runtime = RuntimeEnvBuilder().with_disk_manager_specified(folder).with_fair_spill_pool(pool)
    context = SessionContext(SessionConfig().with_target_partitions(threads), runtime)
    for name, path in tables.items():
        context.register_parquet(name, str(Path(path).parent) if "*" in path else path)
    return lambda text: pa.table(context.sql(text))


def _daft(tables: Mapping[str, str], threads: int, _folder: str) -> Answer:
    import daft

    daft.set_runner_native(num_threads=threads)
    frames = {name: daft.read_parquet(path) for name, path in tables.items()}
    return lambda text: daft.sql(text, **frames).to_arrow()


def engines(names: Sequence[str], folder: Path, limit_bytes: int) -> list[Engine]:
    """DuckDB, and those of these that are installed; DataFusion's pool is as large as DuckDB's."""
    starts: Mapping[str, Callable[..., Answer]] = {
        REFERENCE: _spilling,
        OURS: _minishark,
        "Polars": _polars,
        "DataFusion": partial(_datafusion, pool=int(0.8 * limit_bytes)),
        "Daft": _daft,
    }
    wanted = {REFERENCE.lower(), *(name.lower() for name in names)}
    found = []
    for name, start in starts.items():
        spills = folder / name
        spills.mkdir()
        engine = Engine(name, name.lower(), partial(start, folder=str(spills)))
        if name.lower() in wanted and engine.is_installed:
            found.append(engine)
    return found


class Outcome(msgspec.Struct, kw_only=True):
    """What a query took of an engine, or why there is no answer."""

    wall_s: float = math.nan
    cpu_s: float = math.nan
    peak_bytes: int = 0
    kills: int = 0
    problem: str = ""

    def cell(self) -> str:
        if self.problem:
            return "- | - | -"
        return f"{self.wall_s:.2f} | {self.cpu_s:.2f} | {self.peak_bytes / _MIB:,.0f}"


class Contender:
    """An engine in a control group, started again when it has died; a context manager."""

    def __init__(
        self, engine: Engine, tables: Mapping[str, str], threads: int, group: ControlGroup
    ) -> None:
        self.name = engine.name
        self._start = partial(RunningEngine, engine, tables, threads, on_start=group.add)
        self._group = group
        self._running: RunningEngine | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.close()

    def run(self, text: str, limit_s: float) -> tuple[pa.Table | None, Outcome]:
        outcome = Outcome()
        killed = self._group.kills()
        answer = None
        try:
            if self._running is None or not self._running.is_alive:
                self._running = self._start()
            clock = CpuClock([self._running.pid], without=[os.getpid()])
            begun_s = clock.now_s()
            with self._peak(outcome):
                answer, outcome.wall_s = self._running.answer(text, limit_s)
            outcome.cpu_s = clock.now_s() - begun_s
        except (EngineError, OSError) as error:  # OSError: of a clock whose process was killed
            outcome.problem = str(error)
        outcome.kills = self._group.kills() - killed
        return answer, outcome

    @contextmanager
    def _peak(self, outcome: Outcome) -> Iterator[None]:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_SAMPLE_S):
                outcome.peak_bytes = max(outcome.peak_bytes, self._group.used_bytes())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


Outcomes = dict[int, dict[str, Outcome]]


def measure(
    contenders: Sequence[Contender],
    tables: Mapping[str, str],
    queries: Mapping[int, str],
    options: ScarceOptions,
) -> Outcomes:
    outcomes: Outcomes = {}
    with duckdb.connect(config={"arrow_lossless_conversion": "false"}) as unlimited:
        unlimited.execute("SET enable_progress_bar = false")
        create_views(unlimited, tables)
        for number, text in queries.items():
            expected = None
            outcomes[number] = {}
            for each in contenders:
                forget_files(tables)
                answer, outcome = each.run(text, options.limit)
                if each.name == REFERENCE or expected is None:
                    expected = (
                        answer if answer is not None else unlimited.sql(text).to_arrow_table()
                    )
                if answer is not None and answer is not expected:
                    outcome.problem = _difference(unlimited, text, expected, answer, each.name)
                outcomes[number][each.name] = outcome
                print(f"Q{number} {each.name}: {msgspec.json.encode(outcome).decode()}",
                      file=sys.stderr, flush=True)  # fmt: skip
    return outcomes


def forget_files(tables: Mapping[str, str]) -> None:
    """Drop the tables' pages from the system's cache."""
    for pattern in tables.values():
        path = Path(pattern)
        for file in path.parent.glob(path.name):
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _difference(
    connection: duckdb.DuckDBPyConnection,
    text: str,
    wanted: pa.Table,
    answer: pa.Table,
    name: str,
) -> str:
    if name != OURS:  # other engines have other types
        return "" if len(answer) == len(wanted) else f"{len(answer)} rows, not {len(wanted)}"
    order = output_order(connection, text, answer.column_names)
    return " ".join(differences(wanted, answer, ordered_by=order))


def main(options: ScarceOptions) -> int:
    limit_bytes = parse_size(options.memory)
    tables, queries = options.workload()
    folder = Path(tempfile.mkdtemp(prefix="scarce-", dir=options.temporary))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        contenders = []
        for engine in engines(options.engines, folder, limit_bytes):
            parent = options.groups or own_group()
            group = stack.enter_context(ControlGroup(parent, limit_bytes))
            contender = Contender(engine, tables, options.threads, group)
            contenders.append(stack.enter_context(contender))
        outcomes = measure(contenders, tables, queries, options)
    names = [each.name for each in contenders]
    _print(names, outcomes)
    options.write({"queries": {str(number): found for number, found in outcomes.items()}})
    return int(any(found[OURS].problem for found in outcomes.values() if OURS in found))


def _print(names: Sequence[str], outcomes: Outcomes) -> None:
    print(f"    {command()}\n")
    print(", ".join(f"{name} {value}" for name, value in versions().items()), end=".\n")
    print("Wall and CPU time in s, peak memory in MiB; ratios are of wall times over DuckDB's.\n")
    others = [name for name in names if name != REFERENCE]
    print("| query | " + " | ".join(f"{name} | CPU | MiB" for name in names), end=" | ")
    print(" | ".join(f"{name} / DuckDB" for name in others) + " |")
    print("|---|" + "---:|" * (3 * len(names) + len(others)))
    for number, found in outcomes.items():
        ratios = [f"{found[name].wall_s / found[REFERENCE].wall_s:.2f}" for name in others]
        print(f"| Q{number} | {' | '.join(found[name].cell() for name in names)} | "
              f"{' | '.join(ratios)} |")  # fmt: skip
    print()
    for name in names:
        print(_summary(name, outcomes))
    for number, found in outcomes.items():
        for name, outcome in found.items():
            if outcome.problem or outcome.kills:
                print(f"Q{number}, {name}: {outcome.problem} ({outcome.kills} processes killed)")


def _summary(name: str, outcomes: Outcomes) -> str:
    pairs = [
        (found[name], found[REFERENCE])
        for found in outcomes.values()
        if not found[name].problem and not found[REFERENCE].problem
    ]
    if not pairs:
        return f"{name}: no query that DuckDB answers, too."
    wall, other = (sum(pair[i].wall_s for pair in pairs) for i in (0, 1))
    cpu, other_cpu = (sum(pair[i].cpu_s for pair in pairs) for i in (0, 1))
    mean = statistics.geometric_mean(own.wall_s / its.wall_s for own, its in pairs)
    failed = sum(bool(found[name].problem) for found in outcomes.values())
    peak = max(found[name].peak_bytes for found in outcomes.values())
    return (
        f"{name}: {failed} of {len(outcomes)} failed; the {len(pairs)} that DuckDB answers, too: "
        f"{wall:.1f} s, {wall / other:.2f} of DuckDB's (geometric mean {mean:.2f}), CPU "
        f"{cpu / other_cpu:.2f}; at most {peak / _MIB:,.0f} MiB."
    )


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "queries": "1,6"})
