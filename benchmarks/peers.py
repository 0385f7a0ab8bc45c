"""The 22 TPC-H queries on minishark and on every other engine that is installed.

    python benchmarks/peers.py --scale 1 --repetitions 3 --json peers.json --plot peers.svg

All hold the tables in memory and use the same number of threads, each in its own process.
Their runs alternate, query by query and repetition by repetition. Answers are compared with
DuckDB's, up to types and rounding; an engine that fails, answers something else, or takes longer
than `--limit` has no time for that query. Totals count only the queries that the engine and
minishark both answered.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pyarrow as pa
from engines import ENGINES, Engine, EngineError, RunningEngine

from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark_lab.harness.parameters import Count, Positive
from minishark_lab.harness.script import TpchOptions, command, described, run_script
from minishark_lab.tpch.run import versions

OURS, REFERENCE = "minishark", "DuckDB"


class Outcome(msgspec.Struct):
    """Times of a query on an engine in seconds, or why there are none."""

    times_s: list[float] = []
    problem: str | None = None

    @property
    def best_s(self) -> float | None:
        """The shortest time, if the query was answered every time."""
        return min(self.times_s) if self.times_s and self.problem is None else None


Outcomes = dict[int, dict[str, Outcome]]


@dataclass(frozen=True, kw_only=True)
class PeersOptions(TpchOptions):
    repetitions: Count = 3
    queries: str = "1-22"
    engines: Annotated[tuple[str, ...], described("only these of those installed")] = ()
    threads: Count = 2
    limit: Annotated[Positive, described("seconds per query")] = 60.0
    plot: Path | None = None


def main(options: PeersOptions) -> int:
    """Run the benchmark; returns the exit status: 1 if a minishark answer is wrong."""
    queries = load_queries(parse_selection(options.queries))
    tables = options.tables()
    wanted = [e for e in ENGINES if e.is_installed and _is_wanted(e, options.engines)]
    with ExitStack() as stack:
        running = _start(stack, wanted, tables, options.threads)
        outcomes = _measure(running, queries, options.repetitions, options.limit)
    names = [engine.name for engine in running]
    _print(names, outcomes)
    options.write(
        {
            "load_s": {engine.name: engine.load_s for engine in running},
            "queries": {str(number): by_engine for number, by_engine in outcomes.items()},
            "totals": {name: _total(name, outcomes) for name in names},
        }
    )
    if options.plot:
        _plot(options.plot, names, outcomes)
    return int(any(by_engine[OURS].problem for by_engine in outcomes.values()))


def _is_wanted(engine: Engine, names: Sequence[str]) -> bool:
    chosen = [name.lower() for name in names]
    return not chosen or engine.name.lower() in chosen or engine.name in (OURS, REFERENCE)


def _start(
    stack: ExitStack, wanted: Sequence[Engine], tables: Mapping[str, str], threads: int
) -> list[RunningEngine]:
    running = []
    for engine in wanted:
        print(f"Starting {engine.name}", file=sys.stderr)
        try:
            started = RunningEngine(engine, tables, threads)
        except EngineError as error:
            print(f"{engine.name} does not start: {error}", file=sys.stderr)
            continue
        stack.callback(started.close)
        running.append(started)
    return running


def _measure(
    running: Sequence[RunningEngine], queries: Mapping[int, str], repetitions: int, limit_s: float
) -> Outcomes:
    """One round to warm up and compare answers, then `repetitions` measured ones."""
    outcomes: Outcomes = {n: {engine.name: Outcome() for engine in running} for n in queries}
    reference = next(engine for engine in running if engine.name == REFERENCE)
    for number, text in queries.items():
        print(f"Q{number}", file=sys.stderr)
        expected, _ = reference.answer(text, limit_s)
        for counted in [False] + [True] * repetitions:
            for engine in running:
                outcome = outcomes[number][engine.name]
                if outcome.problem is not None:
                    continue
                if not engine.is_alive:
                    outcome.problem = "was killed at an earlier query"
                    continue
                try:
                    answer, seconds = engine.answer(text, limit_s)
                except EngineError as error:
                    outcome.problem = str(error)
                    continue
                if counted:
                    outcome.times_s.append(seconds)
                elif not _agree(expected, answer):
                    outcome.problem = "another answer than DuckDB's"
    return outcomes


def _agree(expected: pa.Table, answer: pa.Table) -> bool:
    """Whether the rows are equal in any order, up to types and rounding."""
    if expected.num_rows != answer.num_rows or expected.num_columns != answer.num_columns:
        return False
    pairs = zip(_sorted_rows(expected), _sorted_rows(answer), strict=True)
    return all(_close(a, b) for left, right in pairs for a, b in zip(left, right, strict=True))


def _sorted_rows(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]

    def rounded(row: tuple[object, ...]) -> list[str]:
        return [f"{value:.5g}" if isinstance(value, float) else str(value) for value in row]

    return sorted(zip(*columns, strict=True), key=rounded)


def _plain(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, str):
        return value.rstrip()
    if hasattr(value, "isoformat"):
        return value.isoformat()[:10]
    return float(value)  # type: ignore[arg-type]


def _close(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=1e-6, abs_tol=0.01)
    return left == right


def _total(name: str, outcomes: Outcomes) -> dict[str, float]:
    """Totals over the queries that this engine and minishark answered."""
    pairs = [
        (by_engine[OURS].best_s, by_engine[name].best_s)
        for by_engine in outcomes.values()
        if by_engine[OURS].best_s is not None and by_engine[name].best_s is not None
    ]
    if not pairs:
        return {"queries": 0}
    return {
        "queries": len(pairs),
        "total_s": sum(theirs for _, theirs in pairs),
        "minishark_total_s": sum(ours for ours, _ in pairs),
        "ratio": sum(theirs for _, theirs in pairs) / sum(ours for ours, _ in pairs),
        "geometric_mean_of_ratios": statistics.geometric_mean(b / a for a, b in pairs),
    }


def _print(names: Sequence[str], outcomes: Outcomes) -> None:
    print(f"    {command()}\n")
    print(", ".join(f"{name} {value}" for name, value in versions().items()), end=".\n")
    print("Times in ms, best.\n")
    print(f"| query | {' | '.join(names)} |")
    print(f"|---|{'---:|' * len(names)}")
    for number, by_engine in outcomes.items():
        cells = [
            "-" if outcome.best_s is None else f"{1000 * outcome.best_s:.0f}"
            for outcome in by_engine.values()
        ]
        print(f"| Q{number} | {' | '.join(cells)} |")
    totals = [_total(name, outcomes) for name in names]
    for title, key, form in (
        ("queries answered", "queries", "{:.0f}"),
        ("total, s", "total_s", "{:.2f}"),
        ("minishark on the same, s", "minishark_total_s", "{:.2f}"),
        ("times minishark's total", "ratio", "{:.2f}"),
        ("geometric mean of ratios", "geometric_mean_of_ratios", "{:.2f}"),
    ):
        cells = [form.format(total[key]) if key in total else "-" for total in totals]
        print(f"| {title} | {' | '.join(cells)} |")
    for number, by_engine in outcomes.items():
        for name, outcome in by_engine.items():
            if outcome.problem:
                print(f"\nQ{number} on {name}: {outcome.problem}")


def _plot(path: Path, names: Sequence[str], outcomes: Outcomes) -> None:
    """Each query's best time by engine, on a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for position, name in enumerate(names):
        bars = [
            (number + (position - (len(names) - 1) / 2) * width, 1000 * best_s)
            for number, by_engine in enumerate(outcomes.values())
            if (best_s := by_engine[name].best_s) is not None
        ]
        axes.bar([x for x, _ in bars], [y for _, y in bars], width, label=name)
    axes.set_yscale("log")
    axes.set_ylabel("best time, ms")
    axes.set_xticks(range(len(outcomes)), [f"Q{number}" for number in outcomes])
    axes.legend(ncols=len(names), frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "queries": "1,6", "repetitions": 1})
