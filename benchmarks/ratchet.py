"""Fail if this checkout is slower than the last release, or than another checkout.

    python benchmarks/ratchet.py                               # against the last release
    python benchmarks/ratchet.py --against ../other            # against another checkout
    python benchmarks/ratchet.py --checkout ../v0.2 --record   # at a release: record the baseline

The exit status is 1 if a figure is more than 3 % worse, beyond noise.

On one machine, times drift by more than 3 % within minutes, so nothing is compared with a time that
was measured earlier. The contestants run in processes of their own and alternate: each query, each
planned text and each start-up of one is followed at once by the other's, and the order flips. They
are two checkouts; or this checkout and a yardstick on the same machine, and only their ratio is
recorded. The yardstick is DuckDB for start-up, planning (its EXPLAIN) and queries, and
`multiprocessing.Pool` for tasks.

Every sample of a contestant has a partner of the other, taken right after it: the times of one text
in one round for planning, of all queries in one round, of one start. Reported is the median of the
pairs' ratios. Its noise is half the width of its 95 % bootstrap interval. Against a release there
are two such ratios, now and then, and the noise is that of their quotient.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("ratchet.json")
WORSE = 0.03
YARDSTICK = "yardstick"
_RESAMPLES = 2000

START = "start"
NEW_TEXT = "planning, new text"
REPEATED_TEXT = "planning, repeated text"
QUERIES = "22 queries"
QUERIES_CPU = "22 queries, CPU of all processes"
TASK = "one of many Python tasks"

_STARTS = {
    "minishark": "import minishark\nwith minishark.connect() as s:\n"
    "    s.sql('SELECT 42').to_arrow()\n    print('answered', flush=True)",
    YARDSTICK: "import duckdb\nduckdb.connect().sql('SELECT 42').to_arrow_table()\n"
    "print('answered', flush=True)",
}

Seconds = dict[str, list[float]]
"""A contestant's samples, by figure."""


# In the contestants' processes. This file runs older checkouts, too, so it uses public names only.


class Engine:
    """Commands of a contestant; each returns seconds or nothing."""

    def load(self, tables: dict[str, str], tasks: int) -> None:
        """Load the tables into memory and prepare as many tasks."""
        raise NotImplementedError

    def plan(self, text: str) -> float:
        """How long it takes to plan a text, without running it."""
        return _taken(lambda: self._plan(text))

    def query(self, text: str) -> float:
        return _taken(lambda: self._query(text))

    def tasks(self) -> float:
        """How long the tasks take that do next to nothing."""
        return _taken(self._tasks)

    def cpu(self) -> float:
        """CPU time of this process and all of its children, so far."""
        import psutil

        me = psutil.Process()
        times = [each.cpu_times() for each in (me, *me.children(recursive=True))]
        return sum(each.user + each.system for each in times)

    def _plan(self, text: str) -> object:
        raise NotImplementedError

    def _query(self, text: str) -> object:
        raise NotImplementedError

    def _tasks(self) -> object:
        raise NotImplementedError


class Minishark(Engine):
    """The checkout that PYTHONPATH begins with."""

    def __init__(self) -> None:
        import minishark

        found = Path(minishark.__file__).resolve().parents[1]
        expected = Path(os.environ["PYTHONPATH"].split(os.pathsep)[0]).resolve()
        if found != expected:
            raise SystemExit(f"minishark is imported from {found} instead of {expected}")
        self._session = minishark.connect()

    def load(self, tables: dict[str, str], tasks: int) -> None:
        """As the rows come, with a replica on each of two nodes."""
        for name, path in tables.items():
            self._session.create_table(name, path, replicas=2)
        self._items = self._session.parallelize(range(tasks), tasks)

    def _plan(self, text: str) -> object:
        return self._session.sql(text).plan_text("stages")

    def _query(self, text: str) -> object:
        return self._session.sql(text).to_arrow()

    def _tasks(self) -> object:
        return self._items.map(_successor).collect()


class Yardstick(Engine):
    """DuckDB's native tables in memory; a pool of processes."""

    def __init__(self) -> None:
        import multiprocessing

        import duckdb

        self._pool = multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)))
        self._database = duckdb.connect(config={"threads": len(os.sched_getaffinity(0))})

    def load(self, tables: dict[str, str], tasks: int) -> None:
        """CREATE TABLE AS."""
        for name, path in tables.items():
            self._database.execute(f"CREATE TABLE {name} AS FROM read_parquet('{path}')")
        self._count = tasks

    def _plan(self, text: str) -> object:
        return self._database.execute(f"EXPLAIN {text}").fetchall()

    def _query(self, text: str) -> object:
        return self._database.sql(text).to_arrow_table()

    def _tasks(self) -> object:
        return self._pool.map(_successor, range(self._count), chunksize=1)


def _successor(number: int) -> int:
    return number + 1


def _taken(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


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
        self.name = str(checkout or YARDSTICK)
        self._kind = YARDSTICK if checkout is None else "minishark"
        self._environment = {**os.environ, "PYTHONPATH": str((checkout or ROOT).resolve())}
        self.seconds: Seconds = {}

    @contextmanager
    def running(self, tables: Mapping[str, str], tasks: int) -> Iterator[Contestant]:
        """Start the process and load the tables."""
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", self._kind]
        with (
            tempfile.TemporaryDirectory() as folder,
            subprocess.Popen(
                command, env=self._environment, cwd=folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            ) as self._process,
        ):  # fmt: skip
            self.tell("load", tables, tasks)
            yield self
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()

    def tell(self, name: str, *arguments: object) -> Any:
        """Have one of Engine's methods called, and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, *arguments]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"The process of {self.name} ended; see above.")
        return json.loads(answer)

    def start(self) -> float:
        """Seconds from the start of a new Python to its first answer."""
        started = time.perf_counter()
        command = [sys.executable, "-c", _STARTS[self._kind]]
        with subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            taken = time.perf_counter() - started
        if process.returncode:
            raise SystemExit(f"{self.name} does not start; see above.")
        return taken

    def add(self, figure: str, seconds: float) -> None:
        self.seconds.setdefault(figure, []).append(seconds)


def main(arguments: Sequence[str]) -> int:
    """Measure, compare, print; the exit status."""
    options = _parse(arguments)
    if options.serve:
        _serve(options.serve)
        return 0
    recorded = None if options.record or options.against else _recorded(options)
    contestants = [Contestant(options.checkout), Contestant(options.against)]
    _measure(contestants, options)
    ours, theirs = (each.seconds for each in contestants)
    found = {name: _ratio(ours[name], theirs[name]) for name in ours}
    print(f"    {shlex.join(['python', 'benchmarks/ratchet.py', *arguments])}\n")
    if options.record:
        _record(options, found)
    compared = found if recorded is None else _quotients(found, recorded)
    status = _report(contestants, compared, against_release=recorded is not None)
    return 0 if options.record else status


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout", type=Path, default=ROOT, help="what is judged; default: this")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--against", type=Path, metavar="CHECKOUT", help="default: the last release")
    other.add_argument("--record", action="store_true", help=f"write {RECORD.name} instead")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--data", type=Path, help="where TPC-H data is kept")
    parser.add_argument("--serve", choices=("minishark", YARDSTICK), help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _measure(contestants: Sequence[Contestant], options: argparse.Namespace) -> None:
    """Run all rounds; the contestants keep their samples."""
    tables, texts = _tpch(options.scale, options.data)
    with ExitStack() as stack:
        for each in contestants:
            stack.enter_context(each.running(tables, options.tasks))
        for text in texts:
            for each in contestants:
                each.tell("query", text)  # warm-up, not recorded
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            _round(list(contestants), texts, number, options.tasks)


def _round(contestants: list[Contestant], texts: Sequence[str], number: int, tasks: int) -> None:
    if number % 2:
        contestants.reverse()
    for each in contestants:
        each.add(START, each.start())
    # A comment makes the text new to whatever has seen it in an earlier round.
    new = [f"-- {number}\n{text}" for text in texts]
    for figure in (NEW_TEXT, REPEATED_TEXT):
        for each, samples in _alternating(contestants, "plan", new):
            for seconds in samples:
                each.add(figure, seconds)
    before = {each.name: each.tell("cpu") for each in contestants}
    for each, samples in _alternating(contestants, "query", texts):
        each.add(QUERIES, sum(samples))
    for each in contestants:
        each.add(QUERIES_CPU, each.tell("cpu") - before[each.name])
    for each in contestants:
        each.add(TASK, each.tell("tasks") / tasks)


def _alternating(
    contestants: list[Contestant], name: str, texts: Sequence[str]
) -> list[tuple[Contestant, list[float]]]:
    """What each contestant took for each text, one text after the other by all of them."""
    turns: list[tuple[Contestant, list[float]]] = [(each, []) for each in contestants]
    for position, text in enumerate(texts):
        for each, samples in turns[:: -1 if position % 2 else 1]:
            samples.append(each.tell(name, text))
    return turns


def _tpch(scale: float, data: Path | None) -> tuple[dict[str, str], list[str]]:
    """The tables' files and the queries' texts, made by this checkout."""
    sys.path.insert(0, str(ROOT))
    from minishark.tpch.generate import default_parts, generate
    from minishark.tpch.locations import default_data_folder
    from minishark.tpch.queries import load_queries
    from minishark.tpch.tables import tpch_tables

    folder = generate(
        scale,
        data or default_data_folder(),
        parts=default_parts(scale),
        on_progress=lambda *_: None,
    )
    return tpch_tables(folder), list(load_queries(range(1, 23)).values())


Estimate = tuple[float, float]
"""A ratio and its noise."""


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """The median of the pairs' ratios; half the width of its 95 % bootstrap interval."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)
    )
    low, high = medians[_RESAMPLES // 40], medians[-_RESAMPLES // 40]
    return statistics.median(ratios), (high - low) / 2


def _quotients(now: Mapping[str, Estimate], then: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """How ratios to the yardstick have changed; relative noises add in quadrature."""
    found = {}
    for name, (ratio, noise) in now.items():
        old_ratio, old_noise = then[name]
        quotient = ratio / old_ratio
        found[name] = quotient, quotient * math.hypot(noise / ratio, old_noise / old_ratio)
    return found


def _report(
    contestants: Sequence[Contestant], compared: Mapping[str, Estimate], *, against_release: bool
) -> int:
    """Print a table of medians and ratios; 1 if a figure is worse beyond its noise."""
    ours, theirs = contestants
    print(f"Medians in ms of {ours.name} and {theirs.name}; a ratio above 1 is worse", end="")
    print(", beside the last release's.\n" if against_release else ".\n")
    print("| figure | this | other | ratio | noise | |\n|---|---:|---:|---:|---:|---|")
    for name, (ratio, noise) in compared.items():
        times = (1000 * statistics.median(each.seconds[name]) for each in contestants)
        cells = [*(f"{each:.3g}" for each in times), f"{ratio:.3f}", f"{noise:.3f}"]
        print(f"| {name} | {' | '.join(cells)} | {_verdict(ratio, noise)} |")
    tasks_a_second = [1 / statistics.median(each.seconds[TASK]) for each in contestants]
    print("\nPython tasks a second: {:,.0f} and {:,.0f}.".format(*tasks_a_second))
    return int(any(_verdict(*each) == "worse" for each in compared.values()))


def _verdict(ratio: float, noise: float) -> str:
    if ratio - noise > 1 + WORSE:
        return "worse"
    return "not certain: more --rounds" if ratio + noise > 1 + WORSE else ""


def _conditions(options: argparse.Namespace) -> dict[str, object]:
    """What the ratios to the yardstick depend on: they hold only under equal conditions."""
    return {"cpus": len(os.sched_getaffinity(0)), "scale": options.scale, "tasks": options.tasks}


def _record(options: argparse.Namespace, found: Mapping[str, Estimate]) -> None:
    version = subprocess.check_output(
        [sys.executable, "-c", "import minishark; print(minishark.__version__)"],
        env={**os.environ, "PYTHONPATH": str(options.checkout.resolve())},
        text=True,
    ).strip()
    figures = {name: [round(each, 4) for each in estimate] for name, estimate in found.items()}
    record = {"release": version, "conditions": _conditions(options), "ratio and noise": figures}
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


def _recorded(options: argparse.Namespace) -> dict[str, Estimate]:
    if not RECORD.exists():
        raise SystemExit(f"There is no {RECORD.name}: run --record at a checkout of the release.")
    record = json.loads(RECORD.read_text())
    if record["conditions"] != _conditions(options):
        raise SystemExit(
            f"{RECORD.name} was recorded under other conditions: {record['conditions']}. "
            "Compare with a checkout of the release instead: --against."
        )
    return {name: tuple(estimate) for name, estimate in record["ratio and noise"].items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
