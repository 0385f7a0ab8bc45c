"""What has happened since a page began to follow its sources, in Prometheus' text format.

Counters never fall, whatever the board forgets; gauges are the board's present state. Names follow
Prometheus' conventions: base units, `_total` for counters, labels of bounded number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

from minishark.model.events.figures import FIGURES, Figure, Sums, TaskFigures
from minishark.model.events.kinds import (
    AnyEvent,
    CallEnded,
    EventsDropped,
    NodeDied,
    QueryEnded,
    StageEnded,
    TableReport,
    TaskEnded,
    TaskFailed,
)
from minishark.session.page.board import Board

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_QUERY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TASK_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


def _figures() -> list[Figure]:
    return [figure for figure in FIGURES.values() if figure.metric]


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each bound, their number and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Totals:
    """Counters over the events of all sources."""

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter({"done": 0, "failed": 0, "cancelled": 0})
        self.loads: Counter[str] = Counter({"done": 0, "failed": 0, "cancelled": 0})
        self.query_s = Histogram(_QUERY_BOUNDS)
        self.planning_s = Histogram(_QUERY_BOUNDS)
        self.stages = 0
        self.tasks: Counter[tuple[str, str]] = Counter()  # by node; local "yes", "no", "any"
        self.task_sums: Counter[str] = Counter()  # by figure
        self.task_spreads = {
            figure.name: Histogram(_TASK_BOUNDS)
            for figure in _figures()
            if figure.sums is Sums.SPREAD
        }
        self.failed_tasks = 0
        self.calls: Counter[str] = Counter({"done": 0, "raised": 0, "lost": 0})
        self.call_s = Histogram(_TASK_BOUNDS)
        self.deaths: Counter[str] = Counter()
        self.dropped = 0

    def apply(self, event: AnyEvent) -> None:
        """Count an event."""
        match event:
            case TaskEnded():
                self._count(event.figures)
            case CallEnded():
                self.calls[event.state] += 1
                self.call_s.add(event.run_s)
            case QueryEnded(kind="load"):
                self.loads[event.state] += 1
            case QueryEnded():
                self.queries[event.state] += 1
                self.query_s.add(event.elapsed_s)
                self.planning_s.add(event.planning_s)
            case StageEnded():
                self.stages += 1
            case TaskFailed():
                self.failed_tasks += 1
            case NodeDied():
                self.deaths[event.node] += 1
            case EventsDropped():
                self.dropped += event.count
            case _:
                pass

    def _count(self, task: TaskFigures) -> None:
        local = "any" if task.local is None else "yes" if task.local else "no"
        self.tasks[task.node, local] += 1
        for figure in _figures():
            value = figure.of(task)
            if figure.sums is Sums.SPREAD:
                self.task_spreads[figure.name].add(value)
            else:
                self.task_sums[figure.name] += value - (figure.sums is Sums.BEYOND_FIRST)


def exposition(totals: Totals, board: Board) -> str:
    """All metrics, as Prometheus reads them."""
    return "".join(f"{line}\n" for line in (*_counters(totals), *_gauges(board)))


_Sample: TypeAlias = tuple[dict[str, str], float]


def _counters(totals: Totals) -> Iterator[str]:
    yield from _metric(
        "queries_total", "counter", "Queries that are over.", _by("state", totals.queries)
    )
    yield from _histogram("query_seconds", "Time of queries.", totals.query_s)
    yield from _metric(
        "loads_total", "counter", "Loads of tables that are over.", _by("state", totals.loads)
    )
    yield from _histogram("planning_seconds", "Planning time of queries.", totals.planning_s)
    yield from _metric("stages_total", "counter", "Stages that are over.", [({}, totals.stages)])
    yield from _metric(
        "tasks_total",
        "counter",
        "Tasks completed, by node; local: whether it stored the task's input (any: had none).",
        [
            ({"node": node, "local": local}, count)
            for (node, local), count in sorted(totals.tasks.items())
        ],
    )
    for figure in _figures():
        if figure.sums is Sums.SPREAD:
            spread = totals.task_spreads[figure.name]
            yield from _histogram(figure.metric, figure.says, spread)
        else:
            samples: list[_Sample] = [({}, totals.task_sums[figure.name])]
            yield from _metric(figure.metric, "counter", figure.says, samples)
    for name, text, value in (
        ("failed_tasks_total", "Tasks that failed for good.", totals.failed_tasks),
        ("events_dropped_total", "Events that are missing here.", totals.dropped),
    ):
        yield from _metric(name, "counter", text, [({}, value)])
    yield from _metric(
        "calls_total", "counter", "Calls of Python functions.", _by("state", totals.calls)
    )
    yield from _histogram("call_seconds", "Run time of calls of Python functions.", totals.call_s)
    yield from _metric(
        "deaths_total", "counter", "Deaths of nodes and executors.", _by("node", totals.deaths)
    )


def _gauges(board: Board) -> Iterator[str]:
    # Nodes of several clusters, as in a folder of histories, may have the same names.
    several = len({cluster for cluster, _ in board.nodes}) > 1
    nodes = [
        ({"cluster": cluster, "node": node} if several else {"node": node}, report)
        for (cluster, node), report in sorted(board.nodes.items())
    ]
    live = [(labels, report) for labels, report in nodes if report.alive]
    tables = list(board.tables.values())
    alive = {report.name for _, report in live}
    missing = sum(_missing(table, alive) for table in tables)
    for name, text, samples in (
        ("sessions", "Sessions that are open.", _one(s.is_live for s in board.sessions.values())),
        ("running_queries", "Queries that run.", [({}, board.counted()["running"])]),
        ("node_up", "Whether a node lives.", [(node, report.alive) for node, report in nodes]),
        (
            "node_slots",
            "Tasks that a node can run at the same time.",
            [(node, report.slots) for node, report in live],
        ),
        (
            "longest_running_task_seconds",
            "For how long the task runs that began first.",
            [
                (
                    {},
                    max(
                        (board.now_s - task.began_s for _, task in board.running_tasks()), default=0
                    ),
                )
            ],
        ),
        ("node_running_tasks", "Tasks that run.", [(node, r.running) for node, r in live]),
        ("node_queued_tasks", "Queued reservations.", [(node, r.queued) for node, r in live]),
        (
            "node_executor_memory_bytes",
            "Resident memory of executors.",
            [(node, report.memory_bytes) for node, report in live],
        ),
        (
            "node_stored_bytes",
            "Files of tables and queries, in shared memory or on disk.",
            [
                ({**node, "place": place}, size)
                for node, r in live
                for place, size in (("memory", r.stored_bytes), ("disk", r.disk_bytes))
            ],
        ),
        ("tables", "Tables.", [({}, len(tables))]),
        ("table_rows", "Rows of all tables.", [({}, sum(table.rows for table in tables))]),
        (
            "table_bytes",
            "Bytes of one replica of all tables.",
            [({}, sum(t.bytes for t in tables))],
        ),
        (
            "missing_replicas",
            "Replicas of partitions that are declared, and stored on no live node.",
            [({}, missing)],
        ),
        (
            "running_programs",
            "Iterative programs that run.",
            _one(program.state == "running" for program in board.programs.values()),
        ),
    ):
        yield from _metric(name, "gauge", text, samples)


def _missing(table: TableReport, alive: Collection[str]) -> int:
    replicas = min(table.replicas, len(alive))
    return sum(max(0, replicas - len(set(part.nodes) & set(alive))) for part in table.partitions)


def _one(values: Iterable[bool]) -> list[_Sample]:
    return [({}, sum(values))]


def _by(label: str, counts: Counter[str]) -> list[_Sample]:
    return [({label: value}, count) for value, count in sorted(counts.items())]


def _metric(name: str, kind: str, text: str, samples: Iterable[_Sample]) -> Iterator[str]:
    yield f"# HELP minishark_{name} {text}"
    yield f"# TYPE minishark_{name} {kind}"
    for labels, value in samples:
        yield _sample(name, labels, value)


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    yield f"# HELP minishark_{name} {text}"
    yield f"# TYPE minishark_{name} histogram"
    bounds = [f"{bound:g}" for bound in histogram.bounds]
    for bound, count in zip([*bounds, "+Inf"], accumulate(histogram.counts), strict=True):
        yield _sample(f"{name}_bucket", {"le": bound}, count)
    yield _sample(f"{name}_sum", {}, histogram.sum)
    yield _sample(f"{name}_count", {}, sum(histogram.counts))


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    shown = f"{value:.9g}" if value % 1 else str(int(value))
    inside = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"minishark_{name}{'{' + inside + '}' if inside else ''} {shown}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
