"""The views of a board, as plain dictionaries that travel to a browser as JSON."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import structs

from minishark.model.events.figures import (
    FIGURES,
    OperatorFigures,
    Sums,
    TaskFigures,
    names_of,
    totals,
)
from minishark.model.events.kinds import (
    NodeReport,
    PlanNode,
    RunningTask,
    StagePlan,
    TableReport,
    TaskEnded,
)
from minishark.model.events.record import StageRecord
from minishark.session.page.board import SECONDS_MAX, STREAM_S, Board, Query
from minishark.session.page.figures import known_rows, natural, spread, timeline

_LONGEST = 20
_RUNNING_SHOWN = 50
_WHAT_CHARS = 100
_OF_NODES = (
    "name", "alive", "draining", "slots", "running", "queued", "memory_bytes", "stored_bytes",
    "disk_bytes", "deaths", "last_death",
)  # fmt: skip
_OF_QUERIES = ("sql", "error", "warnings", "in_front_end", "is_reduced", "revisions")
_OF_STAGES = ("index", "tasks", "is_open", "elapsed_s", "began_s", "skew", "beyond")


def cluster(board: Board) -> dict[str, Any]:
    """The nodes, what runs on them, and what has run in the last minute."""
    nodes = sorted(board.nodes.items(), key=lambda item: natural(item[0][1]))
    since = board.now_s - STREAM_S
    recent = [mark for mark in board.stream if mark[2] >= since]
    running = _running_tasks(board)
    recent += [
        (task["executor"], max(since, task["began_s"]), board.now_s, task["key"], task["what"])
        for task in running
        if task["began_s"] < board.now_s
    ]
    executors = {executor.name for _, node in nodes for executor in node.executors}
    lanes = sorted(executors | {mark[0] for mark in recent}, key=natural)
    number = {lane: i for i, lane in enumerate(lanes)}
    keys = list(dict.fromkeys([mark[3] or mark[4] for mark in recent]))
    position = {key: i for i, key in enumerate(keys)}
    marks = [
        # Cut to a tenth of a millisecond: to round thousands of numbers takes three times as long.
        [
            number[lane],
            (first - since) * 1e4 // 1 / 1e4,
            (last - since) * 1e4 // 1 / 1e4,
            position[key or label],
        ]
        for lane, first, last, key, label in recent
    ]
    return {
        "nodes": [_node(board, cluster, node) for (cluster, _), node in nodes],
        "deaths": [list(death) for death in board.deaths],
        "running": [_progress(board, query) for query in board.running()[-20:]],
        "running_tasks": running,
        "counts": board.counted(),
        "stream": {"lanes": lanes, "marks": marks, "keys": keys, "span_s": STREAM_S},
        "seconds": _history(board),
        "slots": sum(node.slots for _, node in nodes),
    }


def _running_tasks(board: Board, key: str = "") -> list[dict[str, Any]]:
    """The tasks that have run the longest and run still, all of them or those of a query."""
    several = len(board.sessions) > 1
    longest = sorted(
        (
            (session, task)
            for session, task in board.running_tasks()
            if (key and key == f"{session}-{task.query}")
            or (not key and board.sessions[session].is_live)
        ),
        key=lambda pair: pair[1].began_s,
    )
    return [
        {
            **structs.asdict(task),
            "key": f"{session}-{task.query}" if task.query else "",
            "what": _what(board, session, task),
            "session": session if several else "",
        }
        for session, task in longest[:_RUNNING_SHOWN]
    ]


def _what(board: Board, session: str, task: RunningTask) -> str:
    """What a task is for, as people call it."""
    query = board.queries.get(f"{session}-{task.query}")
    return query.sql[:_WHAT_CHARS] if task.query and query is not None else task.what


def _node(board: Board, cluster: str, node: NodeReport) -> dict[str, Any]:
    return {
        "cluster": cluster if len({key[0] for key in board.nodes}) > 1 else "",
        **{name: getattr(node, name) for name in _OF_NODES},
        "executors": [
            [e.name, e.pid, e.slots, node.usage.memory.get(e.pid, 0)] for e in node.executors
        ],
    }


def _history(board: Board) -> list[list[float]]:
    """By second: time, tasks that ended, busy slots; the newest are not complete yet."""
    if not board.seconds:
        return [[], [], []]
    last = int(board.now_s)
    times = list(range(max(min(board.seconds), last - SECONDS_MAX), last + 1))
    figures = [board.seconds.get(second, (0, 0.0)) for second in times]
    return [list(times), [tasks for tasks, _ in figures], [round(busy, 3) for _, busy in figures]]


def listing(board: Board, text: str = "", state: str = "", limit: int = 100) -> dict[str, Any]:
    """The newest queries, those that run first; with `text` in them, in a `state`."""
    words = text.lower()
    lines: list[dict[str, Any]] = []
    more = 0
    for query in reversed(board.queries.values()):
        if state and query.state != state:
            continue
        if words and words not in query.sql.lower() and words not in query.error.lower():
            continue
        if len(lines) < limit:
            lines.append(_progress(board, query) if query.state == "running" else query.listed())
        else:
            more += 1
    lines.sort(key=lambda line: line["state"] != "running")
    return {
        "queries": lines,
        "more": more,
        "counts": board.counted(),
        "sessions": len(board.sessions),
    }


def query(board: Board, key: str) -> dict[str, Any] | None:
    """All of one query; None if it is not known (any more)."""
    query = board.queries.get(key)
    if query is None:
        return None
    stages = list(query.by_index.values())
    # Rows of tasks that need not run are not told.
    counted = [stage for stage in stages if query.has_all_of(stage) and not stage.reused_tasks]
    complete = {stage.index: stage.rows for stage in counted}
    measured = [_measured(node, query.by_index.get(node.stage)) for node in query.plan]
    rows = known_rows(query.plan, complete, measured)
    if query.state != "done":  # stored rows are read by stages that have run only
        rows = [
            count if node.stage in complete else None
            for node, count in zip(query.plan, rows, strict=True)
        ]
    behind = board.behind(query)
    tasks = [task for stage in stages for task in stage.ended.values()]
    began = min((task.began_s for task in tasks), default=query.began_s)
    longest = sorted(tasks, key=lambda task: -task.figures.run_s)[:_LONGEST]
    return {
        **_progress(board, query),
        **{name: getattr(query, name) for name in _OF_QUERIES},
        "is_live": query.session in board.sessions and board.sessions[query.session].is_live,
        "plan": [
            [
                *(n.parent, n.name, n.label, n.where, n.rows, rows[i], n.stage, n.puts_out),
                *(measured[i].run_s, measured[i].ended_early),
            ]
            for i, n in enumerate(query.plan)
        ],
        "stage_list": [
            {
                **_stage(stage),
                "binding": query.binding.get(stage.index),
                "state": _state(query, stage, behind),
            }
            for stage in stages
        ],
        "figures": [asdict(figure) for figure in FIGURES.values()],
        "timeline": timeline(tasks, min(began, query.began_s)),
        "running_tasks": _running_tasks(board, key),
        "longest": [_task(task) for task in longest],
        "failed": [
            [task.stage, task.task, task.executor, task.message]
            for stage in stages
            for task in stage.failed[:_LONGEST]
        ],
        "by_node": _by_node(tasks),
        "table_bytes": sum(s.plan.table_bytes for s in stages if s.plan),
    }


def _measured(node: PlanNode, stage: StageRecord | None) -> OperatorFigures:
    """What an operator did; unknown unless its query was explained and its stage is complete."""
    operators = stage.operators if stage is not None and not stage.is_open else ()
    is_measured = node.place is not None and node.place < len(operators)
    return operators[node.place or 0] if is_measured else OperatorFigures()


def why(board: Board, key: str, stage: int, task: int) -> dict[str, Any] | None:
    """Why a task ran where it did; None if that is not known."""
    query = board.queries.get(key)
    record = query.by_index.get(stage) if query else None
    ended = record.ended.get(task) if record else None
    if query is None or record is None or ended is None:
        return None
    return {**_task(ended), "why": record.why(task), "binding": query.binding.get(stage)}


def tables(board: Board) -> dict[str, Any]:
    """The tables, and which node stores which of their partitions."""
    nodes = sorted({key[1] for key in board.nodes}, key=natural)
    live = {key[1] for key, node in board.nodes.items() if node.alive}
    return {
        "nodes": nodes,
        "tables": [
            _table(session, table, live, several=len(board.sessions) > 1)
            for (session, _), table in sorted(board.tables.items())
        ],
    }


def placement(board: Board) -> dict[str, Any]:
    """How long tasks waited, by node; and what late binding has saved."""
    by_node: dict[str, list[float]] = defaultdict(list)
    for node, queue_s, _ in board.waits:
        by_node[node].append(queue_s)
    is_local = Counter([wait[2] for wait in board.waits])
    placed = [binding[3] for binding in board.placed]
    tasks = sum([job["tasks"] for job in placed])
    return {
        "tasks": len(board.waits),
        "all": spread([wait[1] for wait in board.waits]),
        "nodes": [
            {"name": name, "tasks": len(waits), "queue_s": spread(waits)}
            for name, waits in sorted(by_node.items(), key=lambda item: natural(item[0]))
        ],
        "local": is_local[True],
        "constrained": is_local[True] + is_local[False],
        "binding": {
            "jobs": len(placed),
            "tasks": tasks,
            "probes": sum([job["probes"] for job in placed]),
            "reservations": sum([job["reservations"] for job in placed]),
            "late_s": _mean(placed, "late_s"),
            "random_s": _mean(placed, "random_s"),
        }
        if tasks
        else None,
        "jobs": [
            {"at": at, "key": key, "stage": stage, **binding}
            for at, key, stage, binding in list(board.placed)[-40:][::-1]
        ],
    }


def python(board: Board) -> dict[str, Any]:
    """Calls of Python functions, iterative programs, and jobs that outlive their programs."""
    functions = sorted(board.functions.items(), key=lambda item: -item[1].last_s)
    return {
        "functions": [
            {
                **asdict(f),
                "name": name,
                "mean_s": f.run_s / sum(f.by_node.values()) if f.by_node else None,
                "longest_s": f.longest_s if f.by_node else None,
                "nodes": sorted(f.by_node.items(), key=lambda item: natural(item[0])),
            }
            for name, f in functions
        ],
        "running_tasks": [task for task in _running_tasks(board) if not task["key"]],
        "programs": [
            {**structs.asdict(report), "session": session, "number": number}
            for (session, number), report in reversed(board.programs.items())
        ],
        "jobs": [
            {
                **structs.asdict(job),
                "state": job.status,
                "took_s": (job.ended_s or job.at) - job.submitted_s,
            }
            for job in sorted(board.jobs.values(), key=lambda job: -job.submitted_s)
        ],
    }


def about(board: Board) -> dict[str, Any]:
    """The sessions, for the head of every page."""
    return {
        "sessions": [
            {
                **structs.asdict(session.began),
                "is_live": session.is_live,
                "dropped": session.dropped,
            }
            for session in board.sessions.values()
        ][-50:],
        "counts": board.counted(),
    }


def _state(query: Query, stage: StageRecord, behind: Sequence[str] | None) -> str:
    """What a stage does, or what has become of it."""
    if query.has_all_of(stage):
        return "done"
    if stage.is_open:
        return "running" if behind is None else "waiting"
    if stage.failed:
        return "failed"
    return "stopped" if stage.began_s else "not started"


def _progress(board: Board, query: Query) -> dict[str, Any]:
    """A query's line, with the progress of its stages, and what it waits behind."""
    return {
        **query.listed(),
        "behind": board.behind(query),
        "progress": [
            [index, stage.tasks, stage.there, stage.is_open]
            for index, stage in query.by_index.items()
        ],
    }


def _stage(stage: StageRecord) -> dict[str, Any]:
    plan = stage.plan or StagePlan(stage=stage.index, tasks=stage.tasks)
    return {
        **structs.asdict(plan),
        **{name: getattr(stage, name) for name in _OF_STAGES},
        "done": stage.there,
        **_of_many(stage.by_task, stage.totals),
        "rows_by_task": _bars(stage.values("rows")),
        "again": stage.remade_tasks,
    }


def _of_many(tasks: Sequence[TaskFigures], sums: TaskFigures) -> dict[str, Any]:
    """All figures of tasks by name, and those by key with their parts."""
    values = {name: figure.over(tasks, sums) for name, figure in FIGURES.items()}
    return {
        **values,
        **{name: spread(values[name]) for name in names_of(Sums.SPREAD)},
        "by_key": {name: getattr(sums, name) for name in names_of(Sums.BY_KEY)},
    }


def _bars(rows: Sequence[int], most: int = 200) -> list[int]:
    """The rows of each task for a small chart; of many tasks, the most of each group."""
    if len(rows) <= most:
        return list(rows)
    edges = [i * len(rows) // most for i in range(most + 1)]
    return [max(rows[a:b]) for a, b in itertools.pairwise(edges)]


def _task(task: TaskEnded) -> dict[str, Any]:
    return {
        "stage": task.stage,
        "task": task.task,
        "node": task.figures.node,
        "executor": task.figures.executor,
        **{figure.name: figure.of(task.figures) for figure in FIGURES.values()},
    }


def _by_node(tasks: Sequence[TaskEnded]) -> list[dict[str, Any]]:
    by_node: dict[str, list[TaskFigures]] = defaultdict(list)
    for task in tasks:
        by_node[task.figures.node].append(task.figures)
    return [
        {
            "node": node,
            "tasks": len(on_node),
            "busy_s": sum(task.run_s for task in on_node),
            **_of_many(on_node, totals(on_node)),
        }
        for node, on_node in sorted(by_node.items(), key=lambda item: natural(item[0]))
    ]


def _table(session: str, table: TableReport, live: set[str], *, several: bool) -> dict[str, Any]:
    stored = [[node for node in part.nodes if node in live] for part in table.partitions]
    replicas = min(table.replicas, len(live)) if live else table.replicas
    return {
        **structs.asdict(table),
        "session": session if several else "",
        "name": table.table,
        "fewest": min(map(len, stored), default=0),
        "healing": sum(len(nodes) < replicas for nodes in stored),
        "partitions": list(_parts(table)),
    }


def _parts(table: TableReport) -> Iterator[list[Any]]:
    for part in table.partitions[:2_000]:
        yield [part.rows, part.bytes, part.nodes]


def _mean(placed: Sequence[dict[str, Any]], name: str) -> float:
    """The mean over tasks of a figure of jobs."""
    total = sum([job[name] * job["tasks"] for job in placed])
    return float(total / sum([job["tasks"] for job in placed]))
