"""The board: what a page shows, as pure state that events change. It has no clock and does no IO.

    events of one session or several ──apply──► Board ──► views: plain dictionaries for a browser

Memory is bounded: of running queries and of the newest others everything is kept, up to a total
weight; of older ones a line; of still older ones only that they are counted.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from minishark.model.events.kinds import (
    AnyEvent,
    CallEnded,
    CallsSubmitted,
    EventsDropped,
    JobReport,
    NodeDied,
    NodeLeft,
    NodeReport,
    ProgramReport,
    QueryEnded,
    QueryPlanned,
    QueryStarted,
    RunningTask,
    SessionEnded,
    SessionStarted,
    StageEnded,
    StagePlaced,
    StageReused,
    StageStarted,
    TableDropped,
    TableReport,
    TaskEnded,
    TaskFailed,
    TasksRunning,
)
from minishark.model.events.record import QueryRecord
from minishark.session.page.figures import binding

SESSIONS_MAX = 200
"""How many sessions are remembered, those that are open aside."""
QUERIES_MAX = 1_000
"""How many queries are listed."""
WEIGHT_MAX = 60_000
"""How many tasks, operators and the like are kept of queries that are over."""
STAGE_TASKS_MAX = 20_000
"""Of how many tasks of one stage the details are kept."""
STREAM_MAX = 4_000
STREAM_S = 60.0
WAIT_S = 2.0
"""After how long without a task a query waits; what is heard of nodes is a second old."""
SECONDS_MAX = 300
_LISTED_SQL = 300
_LISTED = (
    "key", "session", "number", "kind", "state", "began_s", "elapsed_s", "planning_s"
)  # fmt: skip
_LONGEST = 20
_PLACED_MAX = 500
_FUNCTIONS_MAX = 200
_PROGRAMS_MAX = 100
_JOBS_MAX = 200
_DEATHS_MAX = 50


@dataclass(slots=True, kw_only=True)
class Query(QueryRecord):
    """A query; `key` identifies it among those of all sessions."""

    TASKS_MAX: ClassVar[int] = STAGE_TASKS_MAX

    key: str
    session: str
    binding: dict[int, dict[str, Any]] = field(default_factory=dict)  # by stage
    line: dict[str, Any] | None = None  # what is listed, of one that is over
    is_reduced: bool = False  # whether only its line is kept
    version: int = 0

    @property
    def weight(self) -> int:
        # In units of about half a kilobyte.
        own = 2 + 2 * len(self.plan) + len(self.sql) // 500
        return own + sum(stage.weight for stage in self.by_index.values())

    def reduce(self) -> None:
        """Forget all but what is listed."""
        self.line = self.listed()
        self.plan, self.by_index, self.binding, self.sql = (), {}, {}, self.sql[:_LISTED_SQL]
        self.warnings, self.is_reduced = (), True

    def listed(self) -> dict[str, Any]:
        if self.line is not None:
            return self.line
        stages = self.by_index.values()
        return {
            **{name: getattr(self, name) for name in _LISTED},
            "sql": self.sql[:_LISTED_SQL],
            "error": self.error[:_LISTED_SQL],
            "stages": len(self.by_index),
            "stages_done": sum(self.has_all_of(stage) for stage in stages),
            "tasks": sum(stage.tasks for stage in stages),
            "done": sum(stage.there for stage in stages),
            "bytes": sum(stage.bytes for stage in stages),
        }


@dataclass(slots=True)
class Session:
    """A session whose events arrive."""

    began: SessionStarted
    is_live: bool = True
    dropped: int = 0
    running: TasksRunning | None = None  # the tasks that run, as last heard


@dataclass(slots=True, kw_only=True)
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
        version: grows with each event but the reports of nodes.
        states: grows with those, and as time goes on; most views do not depend on either.
        now_s: the time of the latest event, in seconds since 1970.
    """

    def __init__(self, *, is_history: bool = False) -> None:
        """Begin empty; of a history, nodes and tables stay when their session has ended."""
        self._is_history = is_history
        self.version = 0
        self.states = 0
        self.now_s = 0.0
        self.sessions: dict[str, Session] = {}
        self.queries: OrderedDict[str, Query] = OrderedDict()
        self.counts = {"done": 0, "failed": 0, "cancelled": 0, "lost": 0}
        self.nodes: dict[tuple[str, str], NodeReport] = {}
        self.deaths: deque[tuple[float, str, str]] = deque(maxlen=_DEATHS_MAX)
        self.tables: dict[tuple[str, str], TableReport] = {}
        self.functions: OrderedDict[str, Function] = OrderedDict()
        self.programs: OrderedDict[tuple[str, int], ProgramReport] = OrderedDict()
        self.jobs: OrderedDict[str, JobReport] = OrderedDict()  # by uid
        self.stream: deque[tuple[str, float, float, str, str]] = deque(maxlen=STREAM_MAX)
        self.seconds: OrderedDict[int, list[float]] = OrderedDict()
        self.waits: deque[tuple[str, float, bool | None]] = deque(maxlen=STREAM_MAX)
        self.placed: deque[tuple[float, str, int, dict[str, Any]]] = deque(maxlen=_PLACED_MAX)
        self._waiting: dict[str, list[str] | None] = {}  # what running queries wait behind
        self._weight = 0
        self._weighed: OrderedDict[str, int] = OrderedDict()  # queries that are over, oldest first

    def running(self) -> list[Query]:
        """The queries that run."""
        return [query for query in self.queries.values() if query.state == "running"]

    def counted(self) -> dict[str, int]:
        """How many queries there are by state; loads are not counted."""
        running = sum(query.kind == "query" for query in self.running())
        return {**self.counts, "running": running}

    def running_tasks(self) -> Iterator[tuple[str, RunningTask]]:
        """The tasks that run, each with its session; of a query that was lost, those that ran."""
        for name, session in self.sessions.items():
            for task in session.running.tasks if session.running else ():
                if not task.query or self._runs(name, task):
                    yield name, task

    def _runs(self, session: str, task: RunningTask) -> bool:
        """Whether a query's task still runs, as far as is known by now."""
        query = self.queries.get(f"{session}-{task.query}")
        if query is None or query.state not in ("running", "lost"):
            return False
        stage = query.by_index.get(task.stage)
        ended = stage.ended.get(task.task) if stage is not None else None
        return ended is None or ended.at < task.began_s

    def behind(self, query: Query) -> list[str] | None:
        """What has the slots for which a query waits, as people call it; None if it does not wait.

        It waits if all slots are busy, no task of it is known to run, and none has ended lately.
        """
        stages = [stage for stage in query.by_index.values() if stage.is_open]
        if query.state != "running" or not stages:
            return None
        tasks = list(self.running_tasks())
        since = self.now_s - WAIT_S
        ends = [task.at for stage in stages for task in stage.ended.values()]
        began = [stage.began_s for stage in stages]
        if max(began + ends) > since or query.key in {
            f"{session}-{t.query}" for session, t in tasks
        }:
            return None
        cluster = self._cluster(query.session)
        nodes = [node for (name, _), node in self.nodes.items() if name == cluster and node.alive]
        slots = sum(node.slots for node in nodes)
        if not slots or sum(node.running for node in nodes) < slots:
            return None
        now = [
            (f"{session}-{task.query}" if task.query else "", task.what) for session, task in tasks
        ]
        now += [(key, label) for _, _, ended, key, label in self.stream if ended > since]
        return list(dict.fromkeys(self._called(key, label) for key, label in now))

    def _called(self, key: str, label: str) -> str:
        """A query by its number, anything else by its name."""
        return f"query {self.queries[key].number}" if key in self.queries else label

    # Events

    def apply(self, event: AnyEvent, session: str) -> None:
        """Change the board by an event of a session."""
        if isinstance(event, NodeReport):
            self.states += 1
        else:
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
            case QueryEnded():
                self._ended(event, session)
            case StagePlaced():
                self._stage_placed(event, session)
            case QueryPlanned() | StageStarted() | StageReused() | StageEnded() | TaskFailed():
                self._query(session, event.query).apply(event)
            case NodeReport():
                self.nodes[(self._cluster(session), event.name)] = event
            case TasksRunning():
                if session in self.sessions:
                    self.sessions[session].running = event
            case NodeDied():
                self.deaths.appendleft((event.at, event.node, event.reason))
            case NodeLeft():
                self.nodes.pop((self._cluster(session), event.node), None)
            case TableReport():
                self.tables[(session, event.table)] = event
            case TableDropped():
                self.tables.pop((session, event.table), None)
            case ProgramReport():
                self.programs[(session, event.program)] = event
                while len(self.programs) > _PROGRAMS_MAX:
                    self.programs.popitem(last=False)
            case JobReport():
                self.jobs.pop(event.uid, None)
                if event.status != "forgotten":
                    self.jobs[event.uid] = event
                while len(self.jobs) > _JOBS_MAX:
                    self.jobs.popitem(last=False)
            case SessionStarted():
                self._session_started(event)
            case SessionEnded():
                self.end(session)
            case EventsDropped():
                if session in self.sessions:
                    self.sessions[session].dropped += event.count

    def tick(self, now_s: float) -> None:
        """Time goes on, which counts if something runs or has just run."""
        recent = bool(self.stream) and self.stream[-1][2] > now_s - STREAM_S - 2
        runs = any(s.is_live and s.running and s.running.tasks for s in self.sessions.values())
        if recent or runs or self.running():
            self.now_s = max(self.now_s, now_s)
            self.states += 1
        waiting = {query.key: self.behind(query) for query in self.running()}
        if waiting != self._waiting:
            self._waiting = waiting
            self.version += 1

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
        for key, program in list(self.programs.items()):
            if key[0] == session and program.state == "running":
                self.programs.pop(key)
        if not self._is_history:
            self._forget_states(session)

    def _forget_states(self, session: str) -> None:
        """The tables of a session that has ended are gone, and so are nodes of its own."""
        for table in [key for key in self.tables if key[0] == session]:
            del self.tables[table]
        cluster = self._cluster(session)
        if not any(
            s.is_live and self._cluster(name) == cluster for name, s in self.sessions.items()
        ):
            for node in [key for key in self.nodes if key[0] == cluster]:
                del self.nodes[node]

    def _session_started(self, event: SessionStarted) -> None:
        before = self.sessions.pop(event.session, None)
        self.sessions[event.session] = Session(event, dropped=before.dropped if before else 0)
        ended = [name for name, session in self.sessions.items() if not session.is_live]
        for name in ended:
            self._forget_states(name)
        for name in ended[: max(0, len(self.sessions) - SESSIONS_MAX)]:
            del self.sessions[name]

    def _cluster(self, session: str) -> str:
        """The cluster of a session: its own, or one that it shares."""
        known_session = self.sessions.get(session)
        return (known_session.began.cluster if known_session else "") or session

    def _query(self, session: str, number: int) -> Query:
        key = f"{session}-{number}"
        query = self.queries.get(key)
        if query is None:  # its beginning was dropped
            query = self.queries[key] = Query(
                key=key, session=session, number=number, sql="", began_s=self.now_s
            )
        query.version = self.version
        return query

    def _started(self, event: QueryStarted, session: str) -> None:
        query = self._query(session, event.query)
        query.apply(event)
        while len(self.queries) > QUERIES_MAX:
            over = (key for key, query in self.queries.items() if query.state != "running")
            # The end of one that runs may have been dropped: those can't stay forever.
            oldest = next(over, None) or next(iter(self.queries))
            del self.queries[oldest]
            self._weight -= self._weighed.pop(oldest, 0)

    def _task_ended(self, event: TaskEnded, session: str) -> None:
        query = self._query(session, event.query)
        query.apply(event)
        task = event.figures
        self.waits.append((task.node, task.queue_s, task.local))
        self._ran(task.executor, event.at, task.run_s, query.key, f"stage {event.stage}")

    def _ran(self, executor: str, at: float, run_s: float, key: str, label: str) -> None:
        """Something ran on an executor until `at`."""
        self.stream.append((executor, at - run_s, at, key, label))
        bucket = self._second(int(at))
        bucket[0] += 1
        first = max(int(at - run_s), int(at) - SECONDS_MAX)
        for second in range(first, int(at) + 1):
            share = min(at, second + 1) - max(at - run_s, second)
            self._second(second)[1] += max(0.0, share)

    def _second(self, second: int) -> list[float]:
        """The figures of one second: tasks that ended, seconds of run time."""
        figures = self.seconds.get(second)
        if figures is None:
            figures = self.seconds[second] = [0, 0.0]
            while len(self.seconds) > SECONDS_MAX + 5:
                self.seconds.pop(min(self.seconds))
        return figures

    def _stage_placed(self, event: StagePlaced, session: str) -> None:
        query = self._query(session, event.query)
        query.apply(event)
        waits = binding(event)
        if waits is not None:
            query.binding[event.stage] = waits
            self.placed.append((event.at, query.key, event.stage, waits))

    def _ended(self, event: QueryEnded, session: str) -> None:
        query = self._query(session, event.query)
        if query.state != "running":  # its session seemed to have ended before
            self._count(query, -1)
            query.line = None
        query.apply(event)
        self._over(query)

    def _count(self, query: Query, change: int) -> None:
        if query.kind == "query":
            self.counts[query.state] += change

    def _over(self, query: Query) -> None:
        self._count(query, 1)
        query.line = query.listed()
        self._weight -= self._weighed.pop(query.key, 0)
        self._weighed[query.key] = weight = query.weight
        self._weight += weight
        while self._weight > WEIGHT_MAX and len(self._weighed) > 1:
            key, weight = self._weighed.popitem(last=False)
            self._weight -= weight
            if key in self.queries:
                self.queries[key].reduce()

    def _function(self, name: str) -> Function:
        function = self.functions.get(name)
        if function is None:
            function = self.functions[name] = Function()
            if len(self.functions) > _FUNCTIONS_MAX:
                self.functions.popitem(last=False)
        return function

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
