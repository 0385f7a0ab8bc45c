"""What adaptive rules bring: skewed joins, and joins estimated a thousand times wrong.

    python benchmarks/adaptive.py --rows 10_000_000 --executors 1 --queries skew
    python benchmarks/adaptive.py --rows 8_000_000 --executors 4 --queries estimates
    python benchmarks/adaptive.py --rows 8_000_000 --executors 4 --queries estimates --shared

Two sessions hold the same tables and run in stages of one thread each; one of them has no adaptive
rules. Their runs alternate. CPU time is that of all processes. Answers are compared with DuckDB's
before anything is measured, and the exit status is 1 if one differs.

A session's own cluster has as many tasks as the machine has cores. With `--shared`, the sessions
attach to a cluster, where each slot counts as a core: with two nodes of eight executors, a plan is
that of sixteen cores, as on several machines. On fewer cores its CPU time still says how much work
that is.

    skew           80 % of the rows have one key: a join and an aggregate, and an aggregate alone,
                   beside the same over rows whose keys are uniform
    overestimated  an input that is shuffled turns out a thousand times smaller
    underestimated an input that is broadcast turns out a thousand times larger
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated

import duckdb
import msgspec

import minishark
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.compiler.rules import RULES
from minishark.compiler.rules.rule import Phase
from minishark.query.answers import differences
from minishark.session.session import Session
from minishark_lab.harness.clocks import CpuClock
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, command, described, run_script

ADAPTIVE = tuple(rule.name for rule in RULES if rule.phase is Phase.ADAPTIVE)
ON, OFF = "on", "off"

TABLES = {
    "uniform": "SELECT (hash(i) % {keys})::BIGINT AS k, i % 1000 AS v FROM range({rows}) r(i)",
    "skewed": (
        "SELECT CASE WHEN i % 5 < 4 THEN 42 ELSE (hash(i) % {keys})::BIGINT END AS k, "
        "i % 1000 AS v FROM range({rows}) r(i)"
    ),
    # Of `tag`, all but a few contain an x; a, b and c are equal, which no statistics tell.
    "items": (
        "SELECT i AS k, i % 100 AS w, CASE WHEN i % 4000 = 7 THEN 'rare' ELSE 'x' || i END AS tag, "
        "CASE WHEN i % 20 < 19 THEN 0 ELSE i % 11 END AS a, a AS b, a AS c "
        "FROM range({keys}) r(i)"
    ),
}
JOIN = (
    "SELECT count(*) AS n, sum(s) AS s FROM "
    "(SELECT f.k, sum(f.v * d.w) AS s FROM {fact} f JOIN items d ON f.k = d.k GROUP BY f.k)"
)
AGGREGATE = "SELECT count(*) AS n, max(s) AS s FROM (SELECT k, sum(v) AS s FROM {fact} GROUP BY k)"
FILTERED = "SELECT count(*) AS n, sum(f.v * d.w) AS s FROM uniform f JOIN items d ON f.k = d.k "
SKEW = {
    "join and aggregate, uniform": JOIN.format(fact="uniform"),
    "join and aggregate, skewed": JOIN.format(fact="skewed"),
    "aggregate, uniform": AGGREGATE.format(fact="uniform"),
    "aggregate, skewed": AGGREGATE.format(fact="skewed"),
}
ESTIMATES = {
    "overestimated": FILTERED + "WHERE NOT contains(d.tag, 'x')",
    "underestimated": FILTERED + "WHERE d.a = 0 AND d.b = 0 AND d.c = 0",
}


GROUPS = {"skew": SKEW, "estimates": ESTIMATES}


class Measurement(msgspec.Struct, frozen=True):
    """A query in one session: the times of its repetitions, and what was revised in the last.

    `longest` is, by repetition, the share that the longest task has of the time of all tasks of the
    same stage, in the stage that takes most time: what a query waits for on enough cores.
    """

    wall_s: list[float]
    cpu_s: list[float]
    revisions: list[str]
    longest: list[float]

    def best_s(self) -> tuple[float, float]:
        return min(self.wall_s), min(self.cpu_s)


@dataclass(frozen=True, kw_only=True)
class AdaptiveOptions(Options):
    rows: Count = 10_000_000
    nodes: Count = 2
    executors: Annotated[Count, described("per node")] = 1
    shared: Annotated[bool, described("attach to a cluster")] = False
    partitions: Count = 16
    keys: Annotated[Count, described("different ones, in percent of the rows")] = 100
    disable: Annotated[tuple[str, ...], described("in both sessions")] = ()
    queries: Annotated[str, described(choices=GROUPS)] = "skew"
    repetitions: Count = 3


def main(options: AdaptiveOptions) -> int:
    sizes = {"rows": options.rows, "keys": options.rows * options.keys // 100}
    queries = GROUPS[options.queries]
    with ExitStack() as stack:
        cluster = stack.enter_context(_cluster(options)) if options.shared else None
        judge = stack.enter_context(duckdb.connect(config={"threads": options.nodes}))
        sessions = {
            name: stack.enter_context(_session(options, disabled, cluster))
            for name, disabled in ((ON, ()), (OFF, ADAPTIVE))
        }
        for name, sql in TABLES.items():
            judge.execute(f"CREATE TABLE {name} AS {sql.format(**sizes)}")
            for session in sessions.values():
                session.create_table(name, judge.table(name), partitions=options.partitions)
        wrong = [text for text in queries.values() if _differs(judge, sessions, text)]
        clock = CpuClock(node.pid for node in (cluster.nodes if cluster else ()))
        measured = {
            name: _measure(sessions, text, options.repetitions, clock)
            for name, text in queries.items()
        }
    _print(measured)
    for text in wrong:
        print(f"\nWrong: {text}")
    options.write({"parameters": vars(options) | {"json": None}, "queries": measured})
    return 1 if wrong else 0


@contextmanager
def _cluster(options: AdaptiveOptions) -> Iterator[ClusterRecord]:
    name = f"benchmark{os.getpid()}"
    start = StartOptions(name=name, nodes=options.nodes, executors_per_node=options.executors)
    found = start_cluster(start)
    try:
        yield found
    finally:
        stop_cluster(name)


def _session(
    options: AdaptiveOptions, disabled: Sequence[str], cluster: ClusterRecord | None
) -> Session:
    return minishark.connect(
        None if cluster is None else cluster.name,
        nodes=None if cluster is not None else options.nodes,
        executors_per_node=None if cluster is not None else options.executors,
        partitions=options.partitions,
        task_threads=1,
        disabled_optimizations=("one_task", *options.disable, *disabled),
    )


def _differs(
    judge: duckdb.DuckDBPyConnection, sessions: dict[str, Session], text: str
) -> list[str]:
    expected = judge.sql(text).to_arrow_table()
    found = (differences(expected, each.sql(text).to_arrow()) for each in sessions.values())
    return [sentence for sentences in found for sentence in sentences]


def _measure(
    sessions: dict[str, Session], text: str, repetitions: int, clock: CpuClock
) -> dict[str, Measurement]:
    found = {name: Measurement([], [], [], []) for name in sessions}
    for _ in range(repetitions):
        for name, session in sessions.items():
            cpu_s, began_s = clock.now_s(), time.perf_counter()
            frame = session.sql(text)
            frame.to_arrow()
            found[name].wall_s.append(time.perf_counter() - began_s)
            found[name].cpu_s.append(clock.now_s() - cpu_s)
            stage = max(frame.metrics().by_stage, key=lambda each: sum(each.run_s))
            found[name].longest.append(max(stage.run_s) / sum(stage.run_s))
            found[name].revisions[:] = [
                f"{each.rule}: {each.reason}" for each in frame.metrics().revisions
            ]
    return found


def _print(measured: dict[str, dict[str, Measurement]]) -> None:
    """Print Markdown for the documentation."""
    print(f"    {command()}\n")
    print("Wall and CPU time in ms, the best of each.\n")
    print("The longest task's share is that of the time of all tasks of the longest stage.\n")
    print(
        "| query | rules off | rules on | off / on, wall | off / on, CPU | longest task, off | on |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, by_session in measured.items():
        off, on = by_session[OFF].best_s(), by_session[ON].best_s()
        cells = [f"{1e3 * wall:.0f}, {1e3 * cpu:.0f}" for wall, cpu in (off, on)]
        ratios = [f"{a / b:.2f}" for a, b in zip(off, on, strict=True)]
        ratios += [f"{min(by_session[each].longest):.0%}" for each in (OFF, ON)]
        print(f"| {name} | {' | '.join((*cells, *ratios))} |")
    kinds = ("join and aggregate", "aggregate")
    for kind in kinds if f"{kinds[0]}, skewed" in measured else ():
        for name in (OFF, ON):
            skewed, uniform = (
                measured[f"{kind}, {keys}"][name].best_s() for keys in ("skewed", "uniform")
            )
            wall, cpu = (a / b for a, b in zip(skewed, uniform, strict=True))
            print(f"\n{kind}, rules {name}: skewed / uniform {wall:.2f} (wall), {cpu:.2f} (CPU)")
    for name, by_session in measured.items():
        for revision in by_session[ON].revisions:
            print(f"\n{name}: {revision}")
    spread = statistics.median(
        max(m.wall_s) / min(m.wall_s) for each in measured.values() for m in each.values()
    )
    print(f"\nThe slowest repetition took {spread:.2f} times the best one (median).")


if __name__ == "__main__":
    run_script(main, quick={"rows": 20000, "repetitions": 1})
