"""Fail if this checkout takes more CPU time than the last release, or than another checkout.

    python benchmarks/ratchet.py                               # against the last release
    python benchmarks/ratchet.py --quick                       # little data, in two minutes: CI
    python benchmarks/ratchet.py --against ../other            # or a commit
    python benchmarks/ratchet.py --checkout ../v0.2 --record   # at a release: docs/history.md

`ratchet.toml` names the commit of the last release, and figures that are allowed to be worse. The
exit status is 1 if a figure is more than 3 % worse (--quick: 15 %), each time of three.

On one machine, times drift by more than 3 % within minutes, so nothing is compared with a time that
was measured earlier. The contestants run in processes of their own and alternate: what one does is
done by the other right afterwards, and the order flips. They are two checkouts; or, to record a
release, a checkout and a yardstick: DuckDB, and `multiprocessing.Pool` for calls.

What counts is the CPU time of a contestant's processes together, which other programs on the
machine distort less than elapsed time. A figure is the median of the pairs' ratios, and its noise
half the width of its 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = Path(__file__).with_suffix(".toml")
RECORD = Path(__file__).with_suffix(".json")
HISTORY = ROOT / "docs" / "history.md"
YARDSTICK = "yardstick"
_RESAMPLES = 2000
_TRIES = 3  # a figure that is worse is measured so often

START = "start"
_STARTS = {
    "minishark": "import minishark\nwith minishark.connect() as s:\n"
    "    s.sql('SELECT 42').to_arrow()\n    print('answered', flush=True)",
    YARDSTICK: "import duckdb\nduckdb.connect().sql('SELECT 42').to_arrow_table()\n"
    "print('answered', flush=True)",
}
_CALLS = 2000
_SHORT = "SELECT count(*), max(n_name) FROM nation"
_GROUPS = "SELECT l_partkey, l_suppkey, any_value(l_comment) FROM lineitem GROUP BY ALL"

# What is measured, besides: how often for one sample, and what an engine does in a numbered turn.
FIGURES: dict[str, tuple[int, Callable[[Any, int], object]]] = {
    START: (1, lambda *_: None),
    "one call at a time": (150, lambda engine, turn: engine.call(turn)),
    "2,000 calls submitted alone": (2, lambda engine, _: engine.calls(_CALLS)),
    "map of 2,000, one item a call": (2, lambda engine, _: engine.map(_CALLS)),
    "a short query": (30, lambda engine, _: engine.query(_SHORT)),
    # A comment makes a text new to whatever has seen it before.
    "8 texts for the first time": (
        1,
        lambda engine, turn: [engine.query(f"-- {turn}\n{text}") for text in engine.texts[-8:]],
    ),
    "22 queries in one task": (1, lambda engine, _: [*map(engine.query, engine.texts)]),
    "22 queries in stages": (1, lambda engine, _: [*map(engine.in_stages, engine.texts)]),
    "INSERT": (4, lambda engine, _: engine.write("INSERT INTO written FROM orders LIMIT 10")),
    "UPDATE": (
        4,
        lambda engine, turn: engine.write(
            f"UPDATE written SET o_shippriority = 7 WHERE o_orderkey = {turn + 1}"
        ),
    ),
    "load": (2, lambda engine, turn: engine.create(f"t{turn}", engine.orders)),
    "shuffle": (2, lambda engine, _: engine.in_stages(_GROUPS)),
}

Sample = tuple[float, float]
"""Seconds that elapsed, and CPU seconds of all processes."""

_ELAPSED, _CPU = 0, 1  # in samples


# In the contestants' processes. This file runs older checkouts, too, so it uses public names only.


class Engine(ABC):
    """Does what is measured."""

    def load(self, tables: dict[str, str], texts: list[str]) -> None:
        """Load the tables into memory, and one more to write to, of the orders."""
        self.orders, self.texts = tables["orders"], texts
        for name, path in tables.items():
            self.create(name, path)
        self.create("written", self.orders)

    def measure(self, figure: str, number: int) -> Sample:
        """One sample; `number` is another one each time."""
        (count, do), pids = FIGURES[figure], _processes()
        cpu_s, started = sum(map(_cpu_s, pids)), time.perf_counter()
        for turn in range(number * count, (number + 1) * count):
            do(self, turn)
        elapsed_s = time.perf_counter() - started
        return elapsed_s / count, (sum(map(_cpu_s, pids)) - cpu_s) / count

    @abstractmethod
    def create(self, name: str, path: str) -> None:
        """Load a table of Parquet files."""


class Minishark(Engine):
    """The checkout that PYTHONPATH begins with: by default, and with all queries in stages."""

    def __init__(self) -> None:
        import minishark

        self._session = minishark.connect()
        self._staged = minishark.connect(
            task_threads=1, single_task_rows=0, disabled_optimizations=["one_task"]
        )
        expected = str(Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).resolve())
        for found in (_imported(), self._session.submit(_imported).result()):
            if found != expected:
                raise SystemExit(f"minishark is imported from {found} instead of {expected}")

    def load(self, tables: dict[str, str], texts: list[str]) -> None:
        super().load(tables, texts)
        for name, path in tables.items():
            self._staged.create_table(name, path, replicas=2)

    def call(self, number: int) -> object:
        return self._session.submit(_successor, number).result()

    def calls(self, count: int) -> object:
        sent = [self._session.submit(_successor, i) for i in range(count)]
        return [each.result() for each in sent]

    def map(self, count: int) -> object:
        return list(self._session.map(_successor, range(count), chunksize=1))

    def query(self, text: str) -> object:
        return self._session.sql(text).to_arrow()

    write = query

    def in_stages(self, text: str) -> object:
        return self._staged.sql(text).to_arrow()

    def create(self, name: str, path: str) -> None:
        """As the rows come, with a replica on each of two nodes."""
        self._session.create_table(name, path, replicas=2)


class Yardstick(Engine):
    """DuckDB's native tables in memory; a pool of processes."""

    def __init__(self) -> None:
        import multiprocessing

        import duckdb

        self._pool = multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)))
        self._database = duckdb.connect(config={"threads": len(os.sched_getaffinity(0))})

    def call(self, number: int) -> object:
        return self._pool.apply(_successor, (number,))

    def calls(self, count: int) -> object:
        sent = [self._pool.apply_async(_successor, (i,)) for i in range(count)]
        return [each.get() for each in sent]

    def map(self, count: int) -> object:
        return self._pool.map(_successor, range(count), chunksize=1)

    def query(self, text: str) -> object:
        return self._database.sql(text).to_arrow_table()

    in_stages = query

    def write(self, text: str) -> object:
        return self._database.execute(text)

    def create(self, name: str, path: str) -> None:
        self._database.execute(f"CREATE TABLE {name} AS FROM read_parquet('{path}')")


def _successor(number: int) -> int:
    return number + 1


def _imported() -> str:
    """The checkout that this process has imported."""
    import minishark

    return str(Path(minishark.__file__).resolve().parents[1])


def _processes() -> list[int]:
    """This process and all below it."""
    import psutil

    me = psutil.Process()
    return [each.pid for each in (me, *me.children(recursive=True))]


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process, on Linux to the nanosecond: psutil's are in ticks of 10 ms."""
    if sys.platform != "linux":
        import psutil

        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return time.clock_gettime(~pid << 3 | 2)  # the clock of clock_getcpuclockid(3)


def _serve(kind: str) -> None:
    """Do what lines on stdin say, until it ends; what else is printed goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    engine = Yardstick() if kind == YARDSTICK else Minishark()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(engine, name)(*arguments)), file=answers, flush=True)


# In the process that compares them.


class Contestant:
    """A checkout, or the yardstick, in a process of its own."""

    def __init__(self, checkout: Path | None) -> None:
        self._kind = YARDSTICK if checkout is None else "minishark"
        self._environment = {**os.environ, "PYTHONPATH": str((checkout or ROOT).resolve())}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a new checkout has none yet

    @contextmanager
    def running(self, tables: Mapping[str, str], texts: Sequence[str]) -> Iterator[Contestant]:
        """Start the process and load the tables."""
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", self._kind]
        with (
            tempfile.TemporaryDirectory() as folder,
            subprocess.Popen(
                command, env=self._environment, cwd=folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            ) as self._process,
        ):  # fmt: skip
            self._tell("load", tables, texts)
            yield self
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()

    def sample(self, figure: str, number: int) -> Sample:
        """One sample of a figure, as of `Engine.measure`."""
        if figure == START:
            return self.start()
        elapsed_s, cpu_s = self._tell("measure", figure, number)
        return elapsed_s, cpu_s

    def _tell(self, name: str, *arguments: object) -> Any:
        """Have one of Engine's methods called, and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"The process of {self._environment['PYTHONPATH']} ended; see above.")
        return json.loads(answer)

    def start(self) -> Sample:
        """From the start of a new Python to its first answer; the CPU time until it has ended."""
        started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", _STARTS[self._kind]]
        with (
            tempfile.TemporaryDirectory() as folder,
            subprocess.Popen(
                command, env=self._environment, cwd=folder, stdout=subprocess.PIPE
            ) as process,
        ):
            assert process.stdout is not None
            process.stdout.readline()
            taken = time.perf_counter() - started
        if process.returncode:
            raise SystemExit(f"{self._environment['PYTHONPATH']} does not start; see above.")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


Estimate = tuple[float, float]
"""A ratio and its noise."""


@dataclass
class Compared:
    """A figure of two contestants.

    Attributes:
        ours: what is judged.
        theirs: each sample was taken right before or after that of ours.
        tries: CPU time over the other's, each time that it was measured.
    """

    ours: list[Sample] = field(default_factory=list)
    theirs: list[Sample] = field(default_factory=list)
    tries: list[float] = field(default_factory=list)

    def add(self, ours: Sequence[Sample], theirs: Sequence[Sample]) -> None:
        """It was measured once more."""
        self.ours += ours
        self.theirs += theirs
        self.tries.append(Compared([*ours], [*theirs]).ratio(_CPU)[0])

    def ratio(self, of: int) -> Estimate:
        """Of elapsed or CPU time, this over the other."""
        return _ratio([each[of] for each in self.ours], [each[of] for each in self.theirs])

    def is_worse(self, limit: float) -> bool:
        """Whether it was above the limit each time, and is a loss beyond noise."""
        ratio, noise = self.ratio(_CPU)
        return min(self.tries) > limit and ratio - noise > 1


def main(arguments: Sequence[str]) -> int:
    """Measure, compare, print; the exit status."""
    options = _parse(arguments)
    if options.serve:
        _serve(options.serve)
        return 0
    settings = tomllib.loads(SETTINGS.read_text())
    limits = _limits(settings, 0.15 if options.quick else 0.03)
    if options.record:
        limits = dict.fromkeys(limits, math.inf)  # nothing is measured twice
    reference = options.against or settings["against"]
    with tempfile.TemporaryDirectory() as folder:
        against = None if options.record else _checkout(reference, Path(folder))
        if against is None and not options.record:
            print(f"ratchet: skipped, as {reference} is not in the history of this clone.")
            return 0
        tables, texts = _tpch(
            options.scale or (0.02 if options.quick else 1.0),
            Path(folder) if options.quick else options.data,
        )
        contestants = Contestant(options.checkout), Contestant(against)
        rounds = options.rounds or (6 if options.quick else 10)
        compared = _compare(contestants, tables, texts, rounds, limits)
    print(f"    {shlex.join(['python', 'benchmarks/ratchet.py', *arguments])}\n")
    print(_table(compared, limits))
    if options.record:
        _record(options.checkout, compared)
        return 0
    worse = [name for name, each in compared.items() if each.is_worse(limits[name])]
    if worse:
        print(f"\nratchet: these take more CPU time than in {reference}: {', '.join(worse)}. "
              f"Mend that, or allow it with a reason in benchmarks/{SETTINGS.name}.")  # fmt: skip
    return int(bool(worse))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, help="what is judged; default: this")
    parser.add_argument("--quick", action="store_true", help="little data, and a limit of 15 %%")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--against", metavar="COMMIT", help="or a checkout; default: last release")
    other.add_argument("--record", action="store_true", help=f"add to {HISTORY.name} instead")
    parser.add_argument("--scale", type=float, help="default: 1; quick: 0.02")
    parser.add_argument("--rounds", type=int, help="default: 10; quick: 6")
    parser.add_argument("--data", type=Path, help="where TPC-H data is kept, but for --quick")
    parser.add_argument("--serve", choices=("minishark", YARDSTICK), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _limits(settings: Mapping[str, Any], worse: float) -> dict[str, float]:
    """Up to where each figure's ratio is no loss.

    Raises:
        SystemExit: an allowance is for no figure, or gives no reason.
    """
    limits = dict.fromkeys(FIGURES, 1 + worse)
    for each in settings.get("allowances", ()):
        if each["figure"] not in limits or not each.get("reason"):
            raise SystemExit(f"{SETTINGS.name}: each allowance needs a figure and a reason: {each}")
        limits[each["figure"]] = max(limits[each["figure"]], each["at_most"])
    return limits


def _checkout(reference: str, folder: Path) -> Path | None:
    """The folder of that name, or the files of that commit, in a folder; None if there is none."""
    if Path(reference).is_dir():
        return Path(reference)
    archive = folder / "against.tar"
    command = ["git", "-C", str(ROOT), "archive", "--output", str(archive), reference]
    try:
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return None
    except OSError:  # there is no git
        return None
    files = folder / "against"
    with tarfile.open(archive) as tar:
        tar.extractall(files, filter="data")
    return files


def _compare(
    contestants: tuple[Contestant, Contestant],
    tables: Mapping[str, str],
    texts: Sequence[str],
    rounds: int,
    limits: Mapping[str, float],
) -> dict[str, Compared]:
    """Measure all figures, and again those that are worse: in new processes."""
    compared = {name: Compared() for name in limits}
    for _ in range(_TRIES):
        again = [
            name for name, each in compared.items() if not each.tries or each.is_worse(limits[name])
        ]
        if again:
            for name, sides in _measure(contestants, tables, texts, rounds, again).items():
                compared[name].add(*sides)
    return compared


def _measure(
    contestants: tuple[Contestant, Contestant],
    tables: Mapping[str, str],
    texts: Sequence[str],
    rounds: int,
    figures: Sequence[str],
) -> dict[str, tuple[list[Sample], list[Sample]]]:
    """The samples of both, by figure."""
    found: dict[str, tuple[list[Sample], list[Sample]]] = {name: ([], []) for name in figures}
    with ExitStack() as stack:
        for each in contestants:
            stack.enter_context(each.running(tables, texts))
        for number in range(rounds + 1):
            print(f"round {number} of {rounds}", file=sys.stderr)
            for position, (name, sides) in enumerate(found.items()):
                turns = list(zip(contestants, sides, strict=True))
                for contestant, samples in turns[:: -1 if (number + position) % 2 else 1]:
                    sample = contestant.sample(name, number)
                    if number:  # the first is a warm-up
                        samples.append(sample)
    return found


def _tpch(scale: float, data: Path | None) -> tuple[dict[str, str], list[str]]:
    """The tables' files and the queries' texts, made by this checkout."""
    sys.path.insert(0, str(ROOT))
    from minishark.cli.tpch.locations import default_data_folder
    from minishark.cli.tpch.queries import load_queries
    from minishark.cli.tpch.tables import tpch_tables
    from minishark_lab.tpch.generate import default_parts, generate

    folder = generate(
        scale,
        data or default_data_folder(),
        parts=default_parts(scale),
        on_progress=lambda *_: None,
    )
    return tpch_tables(folder), list(load_queries(range(1, 23)).values())


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The median of the pairs' ratios; half the width of its 95 % bootstrap interval."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)
    )
    low, high = medians[_RESAMPLES // 40], medians[-_RESAMPLES // 40]
    return statistics.median(ratios), (high - low) / 2


def _table(compared: Mapping[str, Compared], limits: Mapping[str, float]) -> str:
    lines = [
        "CPU time in ms, median; this over the other, all in all and each time.\n",
        "| figure | this | other | ratio | noise | each time | limit | elapsed | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, each in compared.items():
        ours, theirs = (
            f"{1000 * statistics.median(sample[_CPU] for sample in side):.3g}"
            for side in (each.ours, each.theirs)
        )
        (ratio, noise), (elapsed, _) = each.ratio(_CPU), each.ratio(_ELAPSED)
        times = ", ".join(f"{at:.2f}" for at in each.tries)
        verdict = "worse" if each.is_worse(limits[name]) else ""
        lines.append(
            f"| {name} | {ours} | {theirs} | {ratio:.2f} | {noise:.2f} | {times} "
            f"| {limits[name]:.2f} | {elapsed:.2f} | {verdict} |"
        )
    return "\n".join(lines)


def _record(checkout: Path, compared: Mapping[str, Compared]) -> None:
    """Add a release's ratios to the yardstick, and write the page of all releases."""
    version = subprocess.check_output(
        [sys.executable, "-c", "import minishark; print(minishark.__version__)"],
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        cwd=tempfile.gettempdir(),
        text=True,
    ).strip()
    figures = {
        name: [round(number, 4) for number in each.ratio(_CPU)] for name, each in compared.items()
    }
    records = [each for each in json.loads(RECORD.read_text()) if each["release"] != version]
    records.append({"release": version, "cpus": len(os.sched_getaffinity(0)), "figures": figures})
    RECORD.write_text(json.dumps(records, indent=2) + "\n")
    HISTORY.write_text(history(records))


def history(records: Sequence[Mapping[str, Any]]) -> str:
    """The page of all releases' figures."""
    lines = [
        "# Figures by release\n",
        "    python benchmarks/ratchet.py --record\n",
        "CPU time of all processes over that of a yardstick in the same run: of DuckDB with native",
        "tables or, for calls of Python functions, `multiprocessing.Pool`; in brackets the noise.",
        "Less is better. [performance.md](performance.md) says more of today's.\n",
        f"| figure | {' | '.join(each['release'] for each in records)} |",
        f"|---|{'---:|' * len(records)}",
    ]
    names = dict.fromkeys(name for each in records for name in each["figures"])
    for name in names:
        cells = []
        for each in records:
            ratio, noise = each["figures"].get(name, (None, None))
            cells.append("-" if ratio is None else f"{ratio:.3g} ({noise:.2g})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
