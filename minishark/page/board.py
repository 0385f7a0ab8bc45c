"""The board: what a page shows, as pure state that events change. It has no clock and does no IO.

    events of one session or several ──apply──► Board ──► views: plain dictionaries for a browser

Memory is bounded: of running queries and of the newest others everything is kept, up to a total
weight; of older ones a line; of still older ones only that they are counted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from minishark.events.kinds import (
    AnyEvent,
    CallEnded,
    CallsSubmitted,
    EventsDropped,
    NodeDied,
    NodeLeft,
    NodeReport,
    PlanNode,
    ProgramReport,
    QueryEnded,
    QueryPlanned,
    QueryStarted,
    SessionEnded,
    SessionStarted,
    StageEnded,
    StagePlaced,
    StagePlan,
    StageStarted,
    TableDropped,
    TableReport,
    TaskEnded,
    TaskFailed,
)
from minishark.page.figures import binding, known_rows, natural, skew, spread, timeline

QUERIES_MAX = 1_000
"""How many queries are listed."""
WEIGHT_MAX = 60_000
"""How many tasks, operators and the like are kept of queries that are over."""
STAGE_TASKS_MAX = 20_000
"""Of how many tasks of one stage the details are kept."""
STREAM_MAX = 4_000
STREAM_S = 60.0
SECONDS_MAX = 300
_LISTED_SQL = 300
_LONGEST = 20
_PLACED_MAX = 500
_FUNCTIONS_MAX = 200
_PROGRAMS_MAX = 100
_DEATHS_MAX = 50


@dataclass(slots=True)
class Stage:
    """A stage of a query; its figures derive from its tasks."""

    plan: StagePlan | None = None
    began_s: float = 0.0
    elapsed_s: float = 0.0
    planned_tasks: int = 0
    is_open: bool = False
    again: int = 0
    tasks: dict[int, TaskEnded] = field(default_factory=dict)
    # The figures of tasks whose details are not kept: tasks, rows, bytes, bytes on disk.
    beyond: tuple[int, int, int, int] = (0, 0, 0, 0)
    failed: list[TaskFailed] = field(default_factory=list)
    why: dict[int, tuple[str, ...]] = field(default_factory=dict)
    binding: dict[str, Any] | None = None

    def ended(self, task: TaskEnded) -> None:
        """A task has completed; a later attempt replaces an earlier one."""
        if task.task in self.tasks or len(self.tasks) < STAGE_TASKS_MAX:
            self.tasks[task.task] = task
            return
        count, rows, size, disk = self.beyond
        self.beyond = (count + 1, rows + task.rows, size + task.bytes, disk + task.disk_bytes)

    @property
    def done(self) -> int:
        return len(self.tasks) + self.beyond[0]

    @property
    def rows(self) -> int:
        return sum(task.rows for task in self.tasks.values()) + self.beyond[1]

    @property
    def bytes(self) -> int:
        return sum(task.bytes for task in self.tasks.values()) + self.beyond[2]

    @property
    def disk_bytes(self) -> int:
        return sum(task.disk_bytes for task in self.tasks.values()) + self.beyond[3]

    @property
    def weight(self) -> int:
        return 1 + len(self.tasks) + len(self.why) + len(self.failed)


@dataclass(slots=True)
class Query:
    """A query; `key` identifies it among those of all sessions."""

    key: str
    session: str
    number: int
    sql: str
    began_s: float
    state: str = "running"
    ended_s: float | None = None
    elapsed_s: float = 0.0
    planning_s: float = 0.0
    error: str = ""
    warnings: tuple[str, ...] = ()
    in_front_end: bool = False
    plan: tuple[PlanNode, ...] = ()
    stages: dict[int, Stage] = field(default_factory=dict)
    revisions: list[tuple[str, str]] = field(default_factory=list)
    line: dict[str, Any] | None = None  # what is listed, of one that is over
    is_reduced: bool = False  # whether only its line is kept
    version: int = 0

    @property
    def weight(self) -> int:
        own = 2 + len(self.plan) + len(self.sql) // 500
        return own + sum(stage.weight for stage in self.stages.values())

    def reduce(self) -> None:
        """Forget all but what is listed."""
        self.line = self.listed()
        self.plan, self.stages, self.sql = (), {}, self.sql[:_LISTED_SQL]
        self.warnings, self.is_reduced = (), True

    def listed(self) -> dict[str, Any]:
        if self.line is not None:
            return self.line
        stages = self.stages.values()
        return {
            "key": self.key,
            "session": self.session,
            "number": self.number,
            "sql": self.sql[:_LISTED_SQL],
            "state": self.state,
            "began_s": self.began_s,
            "elapsed_s": self.elapsed_s,
            "planning_s": self.planning_s,
            "error": self.error[:_LISTED_SQL],
            "stages": len(self.stages),
            "stages_done": sum(not s.is_open and s.done > 0 for s in stages),
            "tasks": sum(stage.planned_tasks for stage in stages),
            "done": sum(stage.done for stage in stages),
            "bytes": sum(stage.bytes for stage in stages),
            "disk_bytes": sum(stage.disk_bytes for stage in stages),
        }


@dataclass(slots=True)
class Session:
    """A session whose events arrive."""

    began: SessionStarted
    is_live: bool = True
    dropped: int = 0


@dataclass(slots=True)
class Function:
    """The calls of a Python function, by its name."""

    submitted: int = 0
    done: int = 0
    raised: int = 0
    lost: int = 0
    run_s: float = 0.0
    longest_s: float = 0.0
    last_s: float = 0.0
    error: str = ""
    by_node: dict[str, int] = field(default_factory=dict)


class Board:
    """What is known of a cluster and its sessions.

    Attributes:
        version: grows with each change.
        now_s: the time of the latest event, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.version = 0
        self.now_s = 0.0
        self.sessions: dict[str, Session] = {}
        self.queries: OrderedDict[str, Query] = OrderedDict()
        self.counts = {"done": 0, "failed": 0, "cancelled": 0, "lost": 0}
        self._nodes: dict[tuple[str, str], NodeReport] = {}
        self._deaths: deque[tuple[float, str, str]] = deque(maxlen=_DEATHS_MAX)
        self._tables: dict[tuple[str, str], TableReport] = {}
        self._functions: OrderedDict[str, Function] = OrderedDict()
        self._programs: OrderedDict[tuple[str, int], ProgramReport] = OrderedDict()
        self._stream: deque[tuple[str, float, float, str, str]] = deque(maxlen=STREAM_MAX)
        self._seconds: OrderedDict[int, list[float]] = OrderedDict()
        self._waits: deque[tuple[str, float, bool | None]] = deque(maxlen=STREAM_MAX)
        self._placed: deque[tuple[float, str, int, dict[str, Any]]] = deque(maxlen=_PLACED_MAX)
        self._weight = 0
        self._weighed: OrderedDict[str, int] = OrderedDict()  # queries that are over, oldest first

    # Events

    def apply(self, event: AnyEvent, session: str) -> None:
        """Change the board by an event of a session."""
        self.version += 1
        self.now_s = max(self.now_s, event.at)
        match event:
            case TaskEnded():
                self._task_ended(event, session)
            case CallEnded():
                self._call_ended(event)
            case CallsSubmitted():
                self._function(event.function).submitted += event.count
            case QueryStarted():
                self._started(event, session)
            case QueryPlanned():
                self._planned(event, session)
            case StageStarted():
                self._stage_started(event, session)
            case StageEnded():
                stage = self._stage(session, event.query, event.stage)
                stage.is_open, stage.elapsed_s = False, event.elapsed_s
            case StagePlaced():
                self._stage_placed(event, session)
            case TaskFailed():
                self._stage(session, event.query, event.stage).failed.append(event)
            case QueryEnded():
                self._ended(event, session)
            case NodeReport():
                self._nodes[(self._cluster(session), event.node)] = event
            case NodeDied():
                self._deaths.appendleft((event.at, event.node, event.reason))
            case NodeLeft():
                self._nodes.pop((self._cluster(session), event.node), None)
            case TableReport():
                self._tables[(session, event.table)] = event
            case TableDropped():
                self._tables.pop((session, event.table), None)
            case ProgramReport():
                self._programs[(session, event.program)] = event
                while len(self._programs) > _PROGRAMS_MAX:
                    self._programs.popitem(last=False)
            case SessionStarted():
                before = self.sessions.get(event.session)
                self.sessions[event.session] = Session(event, dropped=before.dropped if before else 0)
            case SessionEnded():
                self.end(session)
            case EventsDropped():
                if session in self.sessions:
                    self.sessions[session].dropped += event.count

    def end(self, session: str) -> None:
        """No more events come of a session: what still runs of it will not be heard of."""
        self.version += 1
        if session in self.sessions:
            self.sessions[session].is_live = False
        for query in [q for q in self.queries.values() if q.session == session]:
            if query.state == "running":
                query.state, query.ended_s = "lost", self.now_s
                query.elapsed_s = self.now_s - query.began_s
                query.error = "The session ended, and nothing was heard of this query's end."
                self._over(query)
        for key, program in list(self._programs.items()):
            if key[0] == session and program.state == "running":
                self._programs.pop(key)
        for table in [key for key in self._tables if key[0] == session]:
            del self._tables[table]
        cluster = self._cluster(session)
        if not any(s.is_live and self._cluster(name) == cluster for name, s in self.sessions.items()):
            for node in [key for key in self._nodes if key[0] == cluster]:
                del self._nodes[node]

    def _cluster(self, session: str) -> str:
        """The cluster of a session: its own, or one that it shares."""
        found = self.sessions.get(session)
        return (found.began.cluster if found else "") or session

    def _query(self, session: str, number: int) -> Query:
        key = f"{session}-{number}"
        query = self.queries.get(key)
        if query is None:  # its beginning was dropped
            query = self.queries[key] = Query(key, session, number, "", self.now_s)
        query.version = self.version
        return query

    def _stage(self, session: str, query: int, stage: int) -> Stage:
        return self._query(session, query).stages.setdefault(stage, Stage())

    def _started(self, event: QueryStarted, session: str) -> None:
        query = self._query(session, event.query)
        query.sql, query.began_s = event.sql, event.at
        while len(self.queries) > QUERIES_MAX:
            oldest = next((k for k, q in self.queries.items() if q.state != "running"), None)
            if oldest is None:
                break
            del self.queries[oldest]
            self._weight -= self._weighed.pop(oldest, 0)

    def _planned(self, event: QueryPlanned, session: str) -> None:
        query = self._query(session, event.query)
        query.planning_s = event.planning_s or query.planning_s
        if event.rule:
            query.revisions.append((event.rule, event.reason))
        if not event.stages:
            return
        query.plan = event.plan
        kept = query.stages if event.rule else {}
        query.stages = {}
        for plan in event.stages:
            stage = kept.get(plan.stage) or Stage()
            stage.plan, stage.planned_tasks = plan, plan.tasks
            query.stages[plan.stage] = stage

    def _stage_started(self, event: StageStarted, session: str) -> None:
        stage = self._stage(session, event.query, event.stage)
        stage.began_s = stage.began_s or event.at
        stage.is_open = True
        stage.again += event.again
        stage.planned_tasks = max(stage.planned_tasks, event.tasks)

    def _task_ended(self, event: TaskEnded, session: str) -> None:
        query = self._query(session, event.query)
        query.stages.setdefault(event.stage, Stage()).ended(event)
        self._waits.append((event.node, event.queue_s, event.local))
        self._ran(event.executor, event.at, event.run_s, query.key, f"stage {event.stage}")

    def _ran(self, executor: str, at: float, run_s: float, key: str, what: str) -> None:
        """Something ran on an executor until `at`."""
        self._stream.append((executor, at - run_s, at, key, what))
        bucket = self._second(int(at))
        bucket[0] += 1
        first = max(int(at - run_s), int(at) - SECONDS_MAX)
        for second in range(first, int(at) + 1):
            share = min(at, second + 1) - max(at - run_s, second)
            self._second(second)[1] += max(0.0, share)

    def _second(self, second: int) -> list[float]:
        """The figures of one second: tasks that ended, seconds of run time."""
        found = self._seconds.get(second)
        if found is None:
            found = self._seconds[second] = [0, 0.0]
            while len(self._seconds) > SECONDS_MAX + 5:
                self._seconds.pop(min(self._seconds))
        return found

    def _stage_placed(self, event: StagePlaced, session: str) -> None:
        stage = self._stage(session, event.query, event.stage)
        stage.why.update(event.why)
        found = binding(event.steps)
        if found is not None:
            stage.binding = found
            key = f"{session}-{event.query}"
            self._placed.append((event.at, key, event.stage, found))

    def _ended(self, event: QueryEnded, session: str) -> None:
        query = self._query(session, event.query)
        query.state, query.ended_s, query.elapsed_s = event.state, event.at, event.elapsed_s
        query.planning_s, query.error = event.planning_s, event.error
        query.warnings, query.in_front_end = event.warnings, event.in_front_end
        for stage in query.stages.values():
            stage.is_open = False
        self._over(query)

    def _over(self, query: Query) -> None:
        self.counts[query.state] += 1
        query.line = query.listed()
        self._weighed[query.key] = weight = query.weight
        self._weight += weight
        while self._weight > WEIGHT_MAX and len(self._weighed) > 1:
            key, weight = self._weighed.popitem(last=False)
            self._weight -= weight
            if key in self.queries:
                self.queries[key].reduce()

    def _function(self, name: str) -> Function:
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = Function()
            if len(self._functions) > _FUNCTIONS_MAX:
                self._functions.popitem(last=False)
        return found

    def _call_ended(self, event: CallEnded) -> None:
        function = self._function(event.function)
        function.last_s = event.at
        if event.state == "done":
            function.done += 1
        elif event.state == "raised":
            function.raised += 1
        else:
            function.lost += 1
        function.error = event.error or function.error
        if event.node:
            function.run_s += event.run_s
            function.longest_s = max(function.longest_s, event.run_s)
            function.by_node[event.node] = function.by_node.get(event.node, 0) + 1
            self._ran(event.executor or event.node, event.at, event.run_s, "", event.function)

    # Views

    def _running(self) -> list[Query]:
        return [query for query in self.queries.values() if query.state == "running"]

    def cluster(self) -> dict[str, Any]:
        """The nodes, what runs on them, and what has run in the last minute."""
        nodes = sorted(self._nodes.items(), key=lambda each: natural(each[0][1]))
        since = self.now_s - STREAM_S
        recent = [mark for mark in self._stream if mark[2] >= since]
        executors = {each.name for _, node in nodes for each in node.executors}
        lanes = sorted(executors | {mark[0] for mark in recent}, key=natural)
        number = {lane: i for i, lane in enumerate(lanes)}
        keys = list(dict.fromkeys(mark[3] or mark[4] for mark in recent))
        position = {key: i for i, key in enumerate(keys)}
        marks = [
            [number[lane], round(first - since, 4), round(last - since, 4), position[key or what]]
            for lane, first, last, key, what in recent
        ]
        return {
            "nodes": [self._node(cluster, node) for (cluster, _), node in nodes],
            "deaths": [list(each) for each in self._deaths],
            "running": [_progress(query) for query in self._running()[-20:]],
            "counts": {**self.counts, "running": len(self._running())},
            "stream": {"lanes": lanes, "marks": marks, "keys": keys, "span_s": STREAM_S},
            "seconds": self._history(),
            "slots": sum(each.slots for _, node in nodes for each in node.executors),
        }

    def _node(self, cluster: str, node: NodeReport) -> dict[str, Any]:
        return {
            "cluster": cluster if len({key[0] for key in self._nodes}) > 1 else "",
            "name": node.node,
            "alive": node.alive,
            "draining": node.draining,
            "slots": sum(each.slots for each in node.executors),
            "running": node.running,
            "queued": node.queued,
            "memory_bytes": sum(each.memory_bytes for each in node.executors),
            "stored_bytes": node.stored_bytes,
            "disk_bytes": node.disk_bytes,
            "deaths": node.deaths,
            "last_death": node.last_death,
            "executors": [[e.name, e.pid, e.slots, e.memory_bytes] for e in node.executors],
        }

    def _history(self) -> list[list[float]]:
        """By second: time, tasks that ended, busy slots; the newest are not complete yet."""
        if not self._seconds:
            return [[], [], []]
        last = int(self.now_s)
        times = list(range(max(min(self._seconds), last - SECONDS_MAX), last + 1))
        found = [self._seconds.get(second, (0, 0.0)) for second in times]
        return [list(times), [each[0] for each in found], [round(each[1], 3) for each in found]]

    def listing(self, text: str = "", state: str = "", limit: int = 200) -> dict[str, Any]:
        """The newest queries, those that run first; with `text` in them, in a `state`."""
        wanted = text.lower()
        found: list[dict[str, Any]] = []
        more = 0
        for query in reversed(self.queries.values()):
            if state and query.state != state:
                continue
            if wanted and wanted not in query.sql.lower() and wanted not in query.error.lower():
                continue
            if len(found) < limit:
                found.append(_progress(query) if query.state == "running" else query.listed())
            else:
                more += 1
        found.sort(key=lambda line: line["state"] != "running")
        return {
            "queries": found,
            "more": more,
            "counts": {**self.counts, "running": len(self._running())},
            "sessions": len(self.sessions),
        }

    def query(self, key: str) -> dict[str, Any] | None:
        """All of one query; None if it is not known (any more)."""
        query = self.queries.get(key)
        if query is None:
            return None
        stages = list(query.stages.items())
        complete = {i: stage.rows for i, stage in stages if not stage.is_open and stage.done}
        rows = known_rows(query.plan, complete)
        tasks = [task for _, stage in stages for task in stage.tasks.values()]
        began = min((task.at - task.run_s for task in tasks), default=query.began_s)
        longest = sorted(tasks, key=lambda task: -task.run_s)[:_LONGEST]
        return {
            **_progress(query),
            "sql": query.sql,
            "error": query.error,
            "warnings": query.warnings,
            "in_front_end": query.in_front_end,
            "is_reduced": query.is_reduced,
            "is_live": query.session in self.sessions and self.sessions[query.session].is_live,
            "revisions": query.revisions,
            "plan": [
                [n.parent, n.name, n.label, n.where, n.rows, rows[i], n.stage, n.puts_out]
                for i, n in enumerate(query.plan)
            ],
            "stage_list": [_stage(index, stage) for index, stage in stages],
            "timeline": timeline(tasks, min(began, query.began_s)),
            "longest": [_task(task, query.stages[task.stage]) for task in longest],
            "failed": [
                [task.stage, task.task, task.executor, task.message]
                for _, stage in stages
                for task in stage.failed[:_LONGEST]
            ],
            "by_node": _by_node(tasks),
            "table_bytes": sum(s.plan.table_bytes for _, s in stages if s.plan),
        }

    def why(self, key: str, stage: int, task: int) -> dict[str, Any] | None:
        """Why a task ran where it did; None if that is not known."""
        query = self.queries.get(key)
        found = query.stages.get(stage) if query else None
        ended = found.tasks.get(task) if found else None
        if found is None or ended is None:
            return None
        return {**_task(ended, found), "why": found.why.get(task, ()), "binding": found.binding}

    def tables(self) -> dict[str, Any]:
        """The tables, and which node stores which of their partitions."""
        nodes = sorted({key[1] for key in self._nodes}, key=natural)
        live = {key[1] for key, node in self._nodes.items() if node.alive}
        return {
            "nodes": nodes,
            "tables": [
                _table(session, table, live, several=len(self.sessions) > 1)
                for (session, _), table in sorted(self._tables.items())
            ],
        }

    def placement(self) -> dict[str, Any]:
        """How long tasks waited, by node; and what late binding has saved."""
        by_node: dict[str, list[float]] = {}
        local = constrained = 0
        for node, queue_s, is_local in self._waits:
            by_node.setdefault(node, []).append(queue_s)
            constrained += is_local is not None
            local += is_local is True
        placed = [found for *_, found in self._placed]
        tasks = sum(each["tasks"] for each in placed)
        return {
            "tasks": len(self._waits),
            "all": spread([each[1] for each in self._waits]),
            "nodes": [
                {"name": name, "tasks": len(waits), "queue_s": spread(waits)}
                for name, waits in sorted(by_node.items(), key=lambda each: natural(each[0]))
            ],
            "local": local,
            "constrained": constrained,
            "binding": {
                "jobs": len(placed),
                "tasks": tasks,
                "probes": sum(each["probes"] for each in placed),
                "reservations": sum(each["reservations"] for each in placed),
                "late_s": _mean(placed, "late_s"),
                "random_s": _mean(placed, "random_s"),
            }
            if tasks
            else None,
            "jobs": [
                {"at": at, "key": key, "stage": stage, **found}
                for at, key, stage, found in list(self._placed)[-40:][::-1]
            ],
        }

    def python(self) -> dict[str, Any]:
        """Calls of Python functions, and iterative programs."""
        functions = sorted(self._functions.items(), key=lambda each: -each[1].last_s)
        return {
            "functions": [
                {
                    "name": name,
                    "submitted": f.submitted,
                    "done": f.done,
                    "raised": f.raised,
                    "lost": f.lost,
                    "mean_s": f.run_s / max(1, sum(f.by_node.values())),
                    "run_s": f.run_s,
                    "longest_s": f.longest_s,
                    "error": f.error,
                    "nodes": sorted(f.by_node.items(), key=lambda each: natural(each[0])),
                }
                for name, f in functions
            ],
            "programs": [
                {
                    "session": session,
                    "number": p.program,
                    "name": p.name,
                    "state": p.state,
                    "stage": p.stage,
                    "iterations": p.iterations,
                    "tasks": p.tasks,
                    "workers": p.workers,
                    "snapshot": p.snapshot,
                    "migrations": p.migrations,
                    "rollbacks": p.rollbacks,
                    "elapsed_s": p.elapsed_s,
                    "error": p.error,
                }
                for (session, _), p in reversed(self._programs.items())
            ],
        }

    def about(self) -> dict[str, Any]:
        """The sessions, for the head of every page."""
        return {
            "sessions": [
                {
                    "session": name,
                    "user": each.began.user,
                    "host": each.began.host,
                    "pid": each.began.pid,
                    "version": each.began.version,
                    "cluster": each.began.cluster,
                    "is_live": each.is_live,
                    "dropped": each.dropped,
                }
                for name, each in self.sessions.items()
            ][-50:],
            "counts": {**self.counts, "running": len(self._running())},
        }


def _progress(query: Query) -> dict[str, Any]:
    """A query's line, with the progress of its stages."""
    return {
        **query.listed(),
        "progress": [
            [index, stage.planned_tasks, stage.done, stage.is_open]
            for index, stage in query.stages.items()
        ],
    }


def _stage(index: int, stage: Stage) -> dict[str, Any]:
    """A stage with the figures of `minishark.query.metrics.StageMetrics`."""
    tasks = [stage.tasks[number] for number in sorted(stage.tasks)]
    plan = stage.plan
    return {
        "index": index,
        "tasks": stage.planned_tasks,
        "done": stage.done,
        "is_open": stage.is_open,
        "elapsed_s": stage.elapsed_s,
        "began_s": stage.began_s,
        "rows": stage.rows,
        "bytes": stage.bytes,
        "disk_bytes": stage.disk_bytes,
        "skew": skew([task.rows for task in tasks]),
        "run_s": spread([task.run_s for task in tasks]),
        "queue_s": spread([task.queue_s for task in tasks]),
        "task_rows": spread([task.rows for task in tasks]),
        "rows_by_task": _bars([task.rows for task in tasks]),
        "constrained": sum(task.local is not None for task in tasks),
        "local": sum(task.local is True for task in tasks),
        "retries": sum(task.attempt - 1 for task in tasks),
        "again": stage.again,
        "reads": plan.reads if plan else (),
        "tables": plan.tables if plan else (),
        "table_bytes": plan.table_bytes if plan else 0,
        "buckets": plan.buckets if plan else 0,
        "does": plan.does if plan else "",
        "sql": plan.sql if plan else "",
        "binding": stage.binding,
        "beyond": stage.beyond[0],
    }


def _bars(rows: Sequence[int], most: int = 200) -> list[int]:
    """The rows of each task for a small chart; of many tasks, the most of each group."""
    if len(rows) <= most:
        return list(rows)
    edges = [i * len(rows) // most for i in range(most + 1)]
    return [max(rows[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def _task(task: TaskEnded, stage: Stage) -> dict[str, Any]:
    return {
        "stage": task.stage,
        "task": task.task,
        "node": task.node,
        "executor": task.executor,
        "attempt": task.attempt,
        "rows": task.rows,
        "bytes": task.bytes,
        "disk_bytes": task.disk_bytes,
        "run_s": task.run_s,
        "queue_s": task.queue_s,
        "local": task.local,
        "has_why": task.task in stage.why,
    }


def _by_node(tasks: Sequence[TaskEnded]) -> list[list[Any]]:
    found: dict[str, list[Any]] = {}
    for task in tasks:
        line = found.setdefault(task.node, [task.node, 0, 0.0, 0, 0])
        line[1] += 1
        line[2] += task.run_s
        line[3] += task.rows
        line[4] += task.bytes
    return sorted(found.values(), key=lambda line: natural(line[0]))


def _table(
    session: str, table: TableReport, live: set[str], *, several: bool
) -> dict[str, Any]:
    stored = [[node for node in part.nodes if node in live] for part in table.partitions]
    wanted = min(table.replicas, len(live)) if live else table.replicas
    return {
        "session": session if several else "",
        "name": table.table,
        "rows": table.rows,
        "bytes": table.bytes,
        "keys": table.keys,
        "replicas": table.replicas,
        "fewest": min(map(len, stored), default=0),
        "healing": sum(len(nodes) < wanted for nodes in stored),
        "is_cached": table.is_cached,
        "is_computed": table.is_computed,
        "columns": table.columns,
        "partitions": list(_parts(table)),
    }


def _parts(table: TableReport) -> Iterator[list[Any]]:
    for part in table.partitions[:2_000]:
        yield [part.rows, part.bytes, part.nodes]


def _mean(placed: Sequence[dict[str, Any]], name: str) -> float:
    """The mean over tasks of a figure of jobs."""
    return sum(each[name] * each["tasks"] for each in placed) / sum(e["tasks"] for e in placed)

