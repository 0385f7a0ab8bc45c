"""What happens in a history, drawn from its seed: a cluster, statements of sessions, and faults.

Everything is drawn before anything runs, so a history with fewer statements or faults is the same
but for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from minishark.query.sinks import Layout
from minishark_lab.simulation.queries import KINDS, Query
from minishark_lab.simulation.work import Row

TABLES = ("t", "u", "w")
KEPT = "c"  # the rows of a query that a session keeps, as `CACHE TABLE` does
FILE = "f"  # that queries name
KEYED = "p"  # a table whose first column is its primary key
_READERS = 2  # sessions that only query, unless there are more of them
_CANCELLED = 0.08  # the share of statements that are cancelled
_CANCELLED_S = 0.05  # mean time after their begin
_TWO = ("joined", "broadcast")
_CHANGES = ("insert", "insert", "delete", "update")
_ENDS = ("commit", "rollback")
_CHANGED = (*TABLES, KEYED, KEYED)  # by clerks
_OF_KEYED = {"create_as": "upsert", "drop": "upsert"}
_ALONE = (*_CHANGES, "create_as", "begin", "begin", "begin")
_INSIDE = (*_CHANGES, "query", "query", "create_as", "drop", "commit", "commit", "rollback")
_WRITES = (
    *_CHANGES,
    "create",
    "store",
    "load",
    "empty",
    "drop",
    "keep",
    "refresh",
    "release",
    "rewrite",
)
_WRITTEN = {"keep": KEPT, "refresh": KEPT, "release": KEPT, "rewrite": FILE}
_BURSTS = (_CHANGES, _CHANGES, _CHANGES, (*_CHANGES, "rewrite"), ("rewrite",))
_MERGED = 0.3  # the share of INSERTs in whose place rows are merged
_RETURNING = 3  # UPDATE and DELETE of multiples of this return their rows
_WITH_BURSTS = 0.5  # the share of faults that come about when a burst does
FAULTS = (
    "kill_executor",
    "kill_node",
    "kill_nodes",
    "kill_scheduler",
    "stop_executor",
    "stop_node",
    "stop_front",
    "kill_front",
    "stop_scheduler",
    "cut_off",
    "cut_one_way",
    "separate",
    "full_disk",
    "lost_file",
    "lost_output",
    "lost_output",
    "drain",
    "join",
    "drift",
)
REUSE_FAULTS = ("evict", "evict", "restart_front", "lost_output", "kill_node")
_MOVING = ("join", "drain", "kill_node")  # after these, replicas move between nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement: a query, or what changes the table of this name."""

    kind: str
    query: Query
    table: str = ""
    layout: Layout = field(default_factory=Layout)
    rows: tuple[Row, ...] = ()
    modulo: int = 2  # rows whose value is a multiple of it are deleted or updated
    begins_s: float | None = None  # not before; None: after a pause
    cancelled_s: float | None = None  # how long after its begin it is cancelled
    clerk: int = 0  # which of the sessions with transactions runs it

    def goes(self, row: Row) -> bool:
        """Whether a DELETE or UPDATE means a row."""
        return row[1] % self.modulo == 0

    @property
    def returns(self) -> bool:
        """Whether a DELETE or UPDATE returns the rows that it means, or else their number."""
        return self.modulo == _RETURNING

    @property
    def names(self) -> tuple[str, ...]:
        """The tables without which it fails."""
        match self.kind:
            case "query" | "store" | "keep" | "create_as":
                return self.query.tables
            case "create" | "keyed" | "rewrite":
                return ()
            case "load":
                return (FILE,)
            case "refresh":
                return (*self.query.tables, self.table)
        return (self.table,)

    @property
    def sql(self) -> str:
        """Its text; empty if it is none of SQL."""
        rows = ", ".join(f"({key}, {value})" for key, value in self.rows)
        goes = f"WHERE v % {self.modulo} = 0{' RETURNING k, v' if self.returns else ''}"
        match self.kind:
            case "insert":
                return f"INSERT INTO {self.table} VALUES {rows}"
            case "upsert":
                update = "ON CONFLICT DO UPDATE SET v = excluded.v"
                return f"INSERT INTO {self.table} VALUES {rows} {update}"
            case "merge":
                return (
                    f"MERGE INTO {self.table} USING (VALUES {rows}) s(a, b) ON k = a "
                    "WHEN MATCHED THEN UPDATE SET v = b WHEN NOT MATCHED THEN INSERT VALUES (a, b)"
                )
            case "delete":
                return f"DELETE FROM {self.table} {goes}"
            case "update":
                return f"UPDATE {self.table} SET v = v + 1 {goes}"
            case "empty":
                return f"DELETE FROM {self.table}"
            case "drop":
                return f"DROP TABLE {self.table}"
            case "keyed":
                return f"CREATE OR REPLACE TABLE {self.table} (k BIGINT PRIMARY KEY, v BIGINT)"
            case "create_as":
                return f"CREATE OR REPLACE TABLE {self.table} AS {self.query.text}"
            case "begin" | "commit" | "rollback":
                return self.kind.upper()
        return ""

    def __str__(self) -> str:
        if self.kind == "query":
            return f"query {self.query.kind} of {', '.join(self.query.tables)}"
        return f"{self.kind} {self.table}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong; `target` chooses among those that can be hit then."""

    at_s: float
    kind: str
    target: int
    for_s: float

    def __str__(self) -> str:
        return f"{self.at_s:.3f} s: {self.kind} for {self.for_s:.3f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A history before it runs."""

    seed: int
    nodes: int
    schedulers: int
    slots: int
    jitter_s: float
    loss: float
    duplication: float
    pause_s: float  # mean time between statements
    copy_s: float  # mean time of copying a file to another node
    writers: tuple[tuple[Statement, ...], ...]  # of each process: of its main session
    readers: tuple[tuple[Statement, ...], ...]  # of each process: queries of other sessions
    clerks: tuple[tuple[Statement, ...], ...]  # of each process: transactions of two further ones
    faults: tuple[Fault, ...]
    reuse: str = "off"  # who takes outputs of earlier queries
    sessions: int = _READERS  # of each process, for its readers

    def kept(self, faults: Sequence[int] | None, statements: Sequence[int] | None) -> Script:
        """With these faults and statements only, by number; None keeps all."""
        script = self
        if faults is not None:
            script = replace(script, faults=tuple(self.faults[i] for i in faults))
        if statements is not None:
            wanted, first, lists = {*statements}, 0, []
            for each in (*self.writers, *self.readers, *self.clerks):
                lists.append(tuple(s for i, s in enumerate(each, first) if i in wanted))
                first += len(each)
            count = len(self.writers)
            script = replace(
                script,
                writers=tuple(lists[:count]),
                readers=tuple(lists[count : 2 * count]),
                clerks=tuple(lists[2 * count :]),
            )
        return script

    @property
    def statements(self) -> int:
        """How many there are."""
        return sum(map(len, (*self.writers, *self.readers, *self.clerks)))


def script_of(seed: int, statements: int, faults_max: int, readers: int = 2) -> Script:
    """The history of a seed.

    Args:
        seed: decides everything.
        statements: of each session.
        faults_max: the most faults.
        readers: the sessions of each process that only query. If there are more than two, each asks
            about as long as the others write.
    """
    rng = Random(f"history {seed}")
    sessions = rng.choice((1, 1, 2, 3))
    pause_s = rng.choice((0.005, 0.03, 0.1))
    horizon_s = 0.5 + statements * (pause_s + 0.05)
    writes = rng.choice((0.05, 0.2, 0.4))  # besides those in bursts
    bursts = sorted(rng.uniform(0.3, horizon_s) for _ in range(rng.randint(0, 3)))
    shares = [(at_s, at_s / horizon_s) for at_s in bursts]
    script = Script(
        seed=seed,
        faults=_faults(rng, faults_max, bursts, horizon_s),
        nodes=rng.randint(2, 5),
        schedulers=rng.choice((1, 2, 2)),
        slots=rng.choice((1, 2)),
        jitter_s=rng.choice((0.0, 0.002, 0.05)),
        loss=rng.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.01, 0.05)),
        duplication=rng.choice((0.0, 0.0, 0.05)),
        pause_s=pause_s,
        copy_s=rng.choice((0.02, 0.05, 0.5)),
        writers=tuple(
            _writer(rng, statements - statements // 2, writes, shares) for _ in range(sessions)
        ),
        readers=tuple(
            tuple(_statement(rng, 0.0) for _ in range(statements // 2)) for _ in range(sessions)
        ),
        clerks=tuple(_clerk(rng, statements // 4) for _ in range(sessions)),
    )
    if readers > _READERS:
        rng = Random(f"readers {seed}")
        queries = statements * readers
        script = replace(
            script,
            sessions=readers,
            readers=tuple(
                tuple(_statement(rng, 0.0) for _ in range(queries)) for _ in range(sessions)
            ),
        )
    return _merging(_reusing(script, faults_max, horizon_s))


def _merging(script: Script) -> Script:
    """Some statements that add rows merge them instead."""
    rng = Random(f"merge {script.seed}")

    def merged(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        return tuple(
            replace(each, kind="merge", rows=tuple({row[0]: row for row in each.rows}.values()))
            if each.kind == "insert" and rng.random() < _MERGED
            else each
            for each in statements
        )

    return replace(
        script, writers=tuple(map(merged, script.writers)), clerks=tuple(map(merged, script.clerks))
    )


def _reusing(script: Script, faults_max: int, horizon_s: float) -> Script:
    """Most histories reuse; these have faults of their own, and stages that vary and have names."""
    rng = Random(f"reuse {script.seed}")
    reuse = rng.choice(("off", "session", "cluster", "cluster"))
    if reuse == "off":
        return script
    faults = list(script.faults)
    for _ in range(rng.randint(0, faults_max // 2)):
        at_s, for_s = rng.uniform(0.3, horizon_s), rng.uniform(0.02, 2.0)
        faults.append(Fault(at_s, rng.choice(REUSE_FAULTS), rng.randrange(1 << 30), for_s))

    def repeated(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        """With few different queries, so that some are asked again."""
        return tuple(
            replace(each, query=replace(each.query, kind="drifting", number=2))
            if each.kind == "query" and each.query.kind == "varying"
            else replace(each, query=replace(each.query, number=2 + each.query.number % 2))
            for each in statements
        )

    return replace(
        script,
        reuse=reuse,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        writers=tuple(map(repeated, script.writers)),
        readers=tuple(map(repeated, script.readers)),
    )


def _faults(rng: Random, most: int, bursts: Sequence[float], horizon_s: float) -> tuple[Fault, ...]:
    """Faults at any time, and some a little before a burst, in which replicas move then."""
    found = []
    for _ in range(rng.randint(0, most)):
        at_s, kind = rng.uniform(0.3, horizon_s), rng.choice(FAULTS)
        if bursts and rng.random() < _WITH_BURSTS:
            at_s = max(0.3, rng.choice(bursts) + rng.uniform(-2.0, 0.5))
            kind = rng.choice((kind, rng.choice(_MOVING)))
        for_s = rng.choice((0.05, 0.5, 2.0, 6.0)) * rng.uniform(0.5, 1.5)
        found.append(Fault(at_s, kind, rng.randrange(1 << 30), for_s))
    return tuple(sorted(found, key=lambda fault: fault.at_s))


def _writer(
    rng: Random, count: int, writes: float, bursts: Sequence[tuple[float, float]]
) -> tuple[Statement, ...]:
    """The statements of a session's first thread: with pauses between them, and in bursts.

    Args:
        rng: decides.
        count: of statements.
        writes: the share of those that write.
        bursts: when, in seconds and as a share of the whole time. All sessions write then.
    """
    sizes = [rng.randint(1, max(1, count // 4)) for _ in bursts]
    found = [_statement(rng, writes) for _ in range(count - sum(sizes))]
    for (at_s, share), size in sorted(zip(bursts, sizes, strict=True), reverse=True):
        place = int(share * len(found))
        found[place:place] = _burst(rng, size, at_s)
    return tuple(found)


def _burst(rng: Random, size: int, at_s: float) -> list[Statement]:
    """Changes of one table or of the file, soon after one another."""
    kinds, table, lasts_s = rng.choice(_BURSTS), rng.choice(TABLES), rng.choice((0.05, 0.5, 2.0))
    begins_s = sorted(at_s + rng.uniform(0.0, lasts_s) for _ in range(size))
    return [replace(write(rng, rng.choice(kinds), table), begins_s=each) for each in begins_s]


def _clerk(rng: Random, count: int) -> tuple[Statement, ...]:
    """Changes, alone and in transactions, by two sessions."""
    found, is_inside = list[Statement](), [False, False]
    for place in range(count):
        clerk = place % 2
        kind, table = rng.choice(_INSIDE if is_inside[clerk] else _ALONE), rng.choice(_CHANGED)
        kind = _OF_KEYED.get(kind, kind) if table == KEYED else kind
        if kind in ("begin", *_ENDS):
            is_inside[clerk] = kind == "begin"
        statement = write(rng, kind, table)
        if kind in ("query", "create_as"):
            source = table if kind == "query" else rng.choice(TABLES)
            query = Query(rng.choice(("rows", "grouped")), (source,))
            statement = replace(statement, query=query)
        if table == KEYED:
            rows = {key: (key, value) for key, value in statement.rows}
            statement = replace(statement, rows=tuple(rows.values())[:2])
        found.append(replace(statement, clerk=clerk))
    return tuple(found)


def _statement(rng: Random, writes: float) -> Statement:
    kind = rng.choice(KINDS)
    tables = tuple(rng.sample((*TABLES, KEPT, FILE), 2 if kind in _TWO else 1))
    query = Query(kind, tables, rng.randint(1, 4))
    cancelled_s = rng.expovariate(1 / _CANCELLED_S) if rng.random() < _CANCELLED else None
    if rng.random() >= writes:
        return Statement(kind="query", query=query, cancelled_s=cancelled_s)
    statement = write(rng, rng.choice(_WRITES), rng.choice(TABLES))
    return replace(statement, cancelled_s=cancelled_s)


def write(rng: Random, kind: str, table: str) -> Statement:
    """A statement that changes a table."""
    is_hashed = rng.random() < 0.5
    layout = Layout(
        partition_by=("k",) if is_hashed else (),
        partitions=rng.randint(1, 4),
        replicas=rng.choice((1, 2, 2, 3)),
    )
    rows = tuple(
        (rng.randrange(12), rng.randrange(100))
        for _ in range(rng.randint(0 if kind == "create" else 1, 12))
    )
    source = Query(
        rng.choice(("rows", "grouped", "joined")), tuple(rng.sample((*TABLES, FILE), 2)), 2
    )
    return Statement(
        kind=kind,
        query=source,
        table=_WRITTEN.get(kind, table),
        layout=layout,
        rows=rows,
        modulo=rng.randint(2, 4),
    )
