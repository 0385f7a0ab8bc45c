"""Load test: many sessions query a cluster for minutes, while its resources are sampled.

After a warm-up, processes, open files, memory and files in shared memory must not grow. Every
answer is compared with plain DuckDB's, and sessions must get equal shares.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import psutil

import minishark
from minishark.cli.tpch.tables import load_tables, tpch_tables
from minishark.cluster.launch import StartOptions, start_cluster, stop_cluster
from minishark.errors import OptionError
from minishark.session.session import Session
from minishark_lab.chaos.testbed import Testbed, open_testbed
from minishark_lab.chaos.work import Done, Worker, work_list
from minishark_lab.harness.experiment import Advance, Chart, Experiment, Verdict
from minishark_lab.harness.rows import Point, Row
from minishark_lab.tpch.data import Silent, tpch_folder

_SAMPLES = 40
_WARM = 0.4  # the share of a run after which resources must not grow
_GROWTH_MAX = 1.10
_FAIRNESS_MIN = 0.9
_NAME = "load"
_METRICS = ("processes", "open files", "memory (MB)", "files in shared memory")
# Fluctuation between samples, such as the files of running queries.
_SLACK = {"processes": 1.0, "open files": 40.0, "memory (MB)": 40.0, "files in shared memory": 100}
_SHARES, _ANSWERS, _BROKEN = "queries of each session", "queries", "broken promises"
_TEXT_MAX = 300


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load test."""

    sessions: int = 10  # concurrent sessions on one cluster, each with its own tables
    threads: int = 5  # per session; each runs one query after the other
    seconds: float = 600.0
    scale: float = 0.0  # TPC-H's scale factor; 0 for the bundled sample
    data: str = ""  # folder of generated data; "" for the default
    queries: tuple[int, ...] = (1, 3, 5, 6, 10, 12, 14, 18)  # of TPC-H, in random order
    nodes: int = 2
    executors: int = 1  # of each node


def load(parameters: Load, seed: int, advance: Advance) -> Sequence[Row]:
    if min(parameters.sessions, parameters.threads) < 1 or parameters.seconds <= 0:
        raise OptionError("Set sessions and threads to 1 or more, and seconds above 0.")
    tables = tpch_tables(tpch_folder(parameters.scale, parameters.data))
    with open_testbed() as testbed:
        works = [
            work
            for work in work_list(tables, parameters.queries, testbed.folder / "written")
            if work.name.startswith("q")
        ]
        with _sessions(parameters) as (sessions, folders):
            for session in sessions:
                load_tables(session, tables, Silent(), partitions=2, replicas=2)
            workers = [
                [
                    Worker(number, session, works, Random(f"{seed} {place} {number}"))
                    for number in range(parameters.threads)
                ]
                for place, session in enumerate(sessions)
            ]
            everybody = [worker for own in workers for worker in own]
            for worker in everybody:
                worker.start()
            try:
                rows = _sampled(testbed, folders, parameters.seconds, advance)
            finally:
                for worker in everybody:
                    worker.finish()
                for worker in everybody:
                    worker.join()
        rows += _outcomes([[done for worker in own for done in worker.done] for own in workers])
        left = _counts(_BROKEN, ((f"left behind: {each}", 1) for each in testbed.left_behind()))
    return [*rows, *left]


def _counts(panel: str, counts: Iterable[tuple[str, int]]) -> list[Row]:
    return [Point(panel=panel, series=name, x=0.0, y=float(count)) for name, count in counts]


@contextlib.contextmanager
def _sessions(parameters: Load) -> Iterator[tuple[list[Session], tuple[str, ...]]]:
    record = start_cluster(
        StartOptions(name=_NAME, nodes=parameters.nodes, executors_per_node=parameters.executors)
    )
    with contextlib.ExitStack() as stack:
        stack.callback(stop_cluster, _NAME)
        sessions = [
            stack.enter_context(
                minishark.connect(
                    _NAME,
                    single_task_rows=0,
                    partitions=2,
                    disabled_optimizations=["coalesced_tasks"],
                )
            )
            for _ in range(parameters.sessions)
        ]
        yield sessions, tuple(node.folders[0] for node in record.nodes)


def _sampled(
    testbed: Testbed, folders: Sequence[str], seconds: float, advance: Advance
) -> list[Row]:
    rows: list[Row] = []
    started = time.monotonic()
    for number in range(1, _SAMPLES + 1):
        time.sleep(max(0.0, started + number * seconds / _SAMPLES - time.monotonic()))
        at_s = time.monotonic() - started
        rows += [
            Point(panel=name, series="all", x=at_s, y=y)
            for name, y in _sample(testbed, folders).items()
        ]
        advance(1 / _SAMPLES)
    return rows


def _sample(testbed: Testbed, folders: Sequence[str]) -> dict[str, float]:
    family = [psutil.Process(), *testbed.family()]
    opened, memory = 0, 0
    for process in family:
        with contextlib.suppress(psutil.Error):
            opened += process.num_fds()
            memory += process.memory_full_info().pss
    shared = sum(len(files) for root in folders for _, _, files in os.walk(root))
    return dict(zip(_METRICS, (len(family), opened, memory / 1e6, shared), strict=True))


def _outcomes(done: Sequence[Sequence[Done]]) -> list[Row]:
    everything = [each for own in done for each in own]
    broken = Counter(
        " ".join((each.failure or f"wrong answer of {each.work}: {each.wrong[0]}").split())
        for each in everything
        if not each.is_right
    )
    return [
        *_counts(_SHARES, ((f"session {n}", len(own)) for n, own in enumerate(done))),
        *_counts(_ANSWERS, sorted(Counter(each.work for each in everything).items())),
        *_counts(_BROKEN, ((text[:_TEXT_MAX], n) for text, n in broken.most_common())),
    ]


def verdict(rows: Sequence[Row]) -> Verdict:
    """The summary, and whether nothing grew, all answers were right, and shares were fair."""
    points = [row for row in rows if isinstance(row, Point)]
    panels = {row.panel: [r for r in points if r.panel == row.panel] for row in points}
    lines = [f"{'queries':28}{sum(row.y for row in panels.get(_ANSWERS, ())):.0f}"]
    problems = [f"{row.series} ({row.y:.0f} times)" for row in panels.get(_BROKEN, ())]
    for name in _METRICS:
        warm, end = _levels(panels[name])
        lines.append(f"{name:28}{warm:.0f} when warm, {end:.0f} at the end")
        if end > warm * _GROWTH_MAX + _SLACK[name]:
            problems.append(f"{name} grew from {warm:.0f} to {end:.0f}")
    fairness = fairness_of([row.y for row in panels[_SHARES]])
    lines.append(f"{'fairness of shares':28}{fairness:.3f} (Jain's index)")
    if fairness < _FAIRNESS_MIN:
        problems.append(f"the sessions' shares differ: {fairness:.2f}")
    lines += [f"{'promises broken':28}{len(problems)}", *(f"  {each}" for each in problems)]
    return Verdict("\n".join(lines), passed=not problems)


def _levels(samples: Sequence[Point]) -> tuple[float, float]:
    """Means of samples just after the warm-up and at the end."""
    ys = [row.y for row in samples]
    first, part = int(len(ys) * _WARM), max(1, len(ys) // 5)
    warm, end = ys[first : first + part], ys[-part:]
    return sum(warm) / len(warm), sum(end) / len(end)


def fairness_of(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all shares are equal, 1/n if one of n has everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0


EXPERIMENTS = (
    Experiment(
        name="load",
        title="Sessions query a cluster for minutes; nothing grows, each gets its share",
        source="every answer is DuckDB's, nothing is left behind",
        kind="live",
        parameters=Load(),
        quick=Load(sessions=2, threads=2, seconds=2.0, queries=(1, 6)),
        run=load,
        chart=Chart(
            x="Seconds", y="", style="lines", same_y=False, figures=(_SHARES, _ANSWERS, _BROKEN)
        ),
        verdict=verdict,
    ),
)  # fmt: skip
