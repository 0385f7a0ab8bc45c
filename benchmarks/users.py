"""Many users of one server: Flight SQL's clients of minishark, and those of DuckDB's Quack server.

    python benchmarks/users.py --quack PYTHON [--users 1,16,64] [--loads short,mixed]

Each user runs a deck of statements one after the other, as fast as answers come, in an order of
their own; both servers are given the same. Elapsed time ends with the last user.

short      25 short queries: each aggregates the customers of a nation
mixed      20 of these, one of TPC-H's queries 1, 9, 18 and 21, two queries that call a Python
           function on 25 rows, and two INSERTs of a row

A server is a process of its own with all of TPC-H's tables in memory, and two threads or slots for
each user's statements together on two cores. This process has the users: threads, each with an ADBC
connection; its CPU time is told apart. Answers are compared with DuckDB's when all users are done,
and rows that were inserted are counted. The servers take turns, after a round of one user that does
not count.

PYTHON is an interpreter with the packages `duckdb` (of the version that has an extension `quack`),
`duckdb-extension-quack`, `duckdb-extension-httpfs`, `duckdb-extensions`, `adbc-driver-quack` and
`numpy`. Without it the peer is the smallest Flight SQL server over DuckDB, of `flight.py`.

`--door session` compares without servers: threads of this process, each with a session of its own,
or with a cursor of its own on a DuckDB database.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import adbc_driver_flightsql.dbapi as flight_sql
import adbc_driver_manager.dbapi as adbc
import duckdb
import msgspec
import psutil
import pyarrow as pa

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import load_tables
from minishark.query.answers import differences
from minishark_lab.harness.clocks import CpuClock, native_duckdb
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, command, described, run_script
from minishark_lab.tpch.data import Silent
from minishark_lab.tpch.run import versions

MINISHARK, QUACK, SMALLEST, CURSORS = "minishark", "Quack", "smallest", "DuckDB"
SHORT, LONG, CALL, WRITE = "short", "long", "call", "write"
_TOKEN = "a-token-of-this-benchmark"  # noqa: S105 - of a server on this machine, for minutes

_SHORT = (
    "SELECT c_mktsegment, count(*) AS customers, sum(c_acctbal)::DOUBLE AS balance "
    "FROM customer WHERE c_nationkey = {} GROUP BY ALL ORDER BY ALL"
)
_CALL = "SELECT sum(twice(n_nationkey))::BIGINT AS answer FROM nation WHERE n_nationkey <> {}"
_LONG = (1, 9, 18, 21)
_NATIONS = 25
_DECKS = {
    "short": {SHORT: 25},
    "mixed": {SHORT: 20, LONG: 1, CALL: 2, WRITE: 2},
}
_STATEMENTS_MIN = 200  # of a round: few users run their decks several times

_QUACK_SERVER = """
import json, sys, duckdb, duckdb_extensions, adbc_driver_quack
for name in ("httpfs", "quack"):
    duckdb_extensions.import_extension(name)
tables, threads, token = json.loads(sys.argv[1])
database = duckdb.connect(config={"threads": threads})
database.execute("LOAD quack")
for name, path in tables.items():
    database.execute(f"CREATE TABLE {name} AS FROM read_parquet('{path}')")
database.execute("CREATE TABLE notes (writer INTEGER, number INTEGER, note VARCHAR)")
database.create_function("twice", lambda x: 2 * x, ["BIGINT"], "BIGINT")
database.execute("CALL quack_serve('quack:localhost:9494', token = ?)", [token])
print(json.dumps([duckdb.__version__, adbc_driver_quack._driver_path()]), flush=True)
sys.stdin.read()
"""

Ask = Callable[[str], pa.Table]
Statement = tuple[str, str]
"""Its kind, and its text."""


class Engine:
    """What users ask; a context manager.

    Attributes:
        pid: the server's process, or this one's.
    """

    name: str
    version: str
    pid: int

    def user(self) -> AbstractContextManager[Ask]:
        """One more user."""
        raise NotImplementedError

    def others(self) -> set[int]:
        """Processes below this one that are not the engine's."""
        me, its = psutil.Process(), psutil.Process(self.pid)
        mine = {self.pid, *(each.pid for each in its.children(recursive=True))}
        return {me.pid, *(each.pid for each in me.children(recursive=True))} - mine


class Served(Engine):
    """A server in a process of its own, asked through ADBC."""

    def __init__(
        self,
        name: str,
        serve: Sequence[str],
        connect: Callable[[str], Any],
        stack: ExitStack,
    ) -> None:
        self.name = name
        self._connect = connect
        process = subprocess.Popen(serve, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.enter_context(process)
        stack.callback(process.communicate)
        assert process.stdout is not None
        # DuckDB shows the progress of long loads before.
        line = next((line for line in process.stdout if line.startswith("[")), "")
        if not line:
            raise SystemExit(f"The server of {name} did not start; see above.")
        self.pid = process.pid
        self.version, self._address = json.loads(line)

    @contextlib.contextmanager
    def user(self) -> Iterator[Ask]:
        with self._connect(self._address) as connection, connection.cursor() as cursor:

            def ask(text: str) -> pa.Table:
                cursor.execute(text)
                table: pa.Table = cursor.fetch_arrow_table()
                return table

            yield ask


class Within(Engine):
    """Asked by threads of this process."""

    def __init__(self, name: str, user: Callable[[], AbstractContextManager[Ask]]) -> None:
        self.name = name
        self.version = versions()["minishark" if name == MINISHARK else "duckdb"]
        self.user = user  # type: ignore[method-assign]
        self.pid = os.getpid()


def _flight(address: str) -> Any:
    return flight_sql.connect(address, autocommit=True)


def _quack(driver: str) -> Any:
    kwargs = {"uri": "quack://localhost:9494", "adbc.quack.token": _TOKEN}
    return adbc.connect(
        driver=driver, entrypoint="QuackDriverInit", db_kwargs=kwargs, autocommit=True
    )


# Servers' processes


def twice(x: int) -> int:
    return 2 * x


def _prepare(session: minishark.Session, tables: Mapping[str, str]) -> None:
    load_tables(session, tables, Silent(), replicas=2)
    session.sql("CREATE TABLE notes (writer INTEGER, number INTEGER, note VARCHAR)")
    session.udf.register("twice", twice, "BIGINT", ["BIGINT"])


def _prepared_duckdb(tables: Mapping[str, str], threads: int) -> duckdb.DuckDBPyConnection:
    database = native_duckdb(tables, threads)
    database.execute("CREATE TABLE notes (writer INTEGER, number INTEGER, note VARCHAR)")
    database.create_function("twice", twice, ["BIGINT"], "BIGINT")
    return database


def serve(name: str, tables: Mapping[str, str], threads: int) -> None:
    """Serve until standard input ends."""
    with ExitStack() as stack:
        if name == MINISHARK:
            session = stack.enter_context(minishark.connect())
            _prepare(session, tables)
            address = stack.enter_context(session.serve(port=0)).address
        else:
            sys.path.insert(0, str(Path(__file__).parent))
            from flight import Smallest

            server = stack.enter_context(Smallest(_prepared_duckdb(tables, threads)))
            address = f"grpc://127.0.0.1:{server.port}"
        version = versions()["minishark" if name == MINISHARK else "duckdb"]
        print(json.dumps([version, address]), flush=True)
        sys.stdin.read()


# Users


class Load(msgspec.Struct):
    """A number of users on one engine, over all rounds."""

    load: str
    users: int
    engine: str
    elapsed_s: float = 0.0
    server_cpu_s: float = 0.0
    users_cpu_s: float = 0.0
    times_s: dict[str, list[float]] = {}
    failures: list[str] = []

    @property
    def statements(self) -> int:
        return sum(map(len, self.times_s.values()))


def _text(kind: str, draw: random.Random, user: int, number: int) -> str:
    if kind == SHORT:
        return _SHORT.format(draw.randrange(_NATIONS))
    if kind == CALL:
        return _CALL.format(draw.randrange(_NATIONS))
    if kind == LONG:
        which = _LONG[(user + number // 100) % len(_LONG)]
        return load_queries([which])[which]
    return f"INSERT INTO notes VALUES ({user}, {number}, 'a note of user {user}')"


def deck(load: str, user: int, users: int) -> list[Statement]:
    """What a user runs, in order."""
    draw = random.Random(f"{load} {user}")
    times = max(1, _STATEMENTS_MIN // 25 // users)
    statements: list[Statement] = []
    for turn in range(times):
        cards = [
            (kind, _text(kind, draw, user, 100 * turn + place))
            for kind, many in _DECKS[load].items()
            for place in range(many)
        ]
        draw.shuffle(cards)
        statements += cards
    return statements


def run(engine: Engine, load: str, users: int, found: Load) -> dict[str, list[pa.Table]]:
    """One round; the answers by their texts."""
    decks = [deck(load, user, users) for user in range(users)]
    answers: dict[str, list[pa.Table]] = {}
    lock = threading.Lock()
    with ExitStack() as stack:
        asks = [stack.enter_context(engine.user()) for _ in decks]
        begin = threading.Barrier(users + 1)

        def use(ask: Ask, statements: Sequence[Statement]) -> None:
            times, tables, failed = [], [], []
            begin.wait()
            for kind, text in statements:
                started = time.perf_counter()
                try:
                    table = ask(text)
                except Exception as error:  # noqa: BLE001 - counted and shown
                    failed.append(f"{kind}: {error}")
                    continue
                times.append((kind, time.perf_counter() - started))
                if kind != WRITE:
                    tables.append((text, table))
            with lock:
                for kind, time_s in times:
                    found.times_s.setdefault(kind, []).append(time_s)
                for text, table in tables:
                    answers.setdefault(text, []).append(table)
                found.failures += failed

        threads = [
            threading.Thread(target=use, args=item) for item in zip(asks, decks, strict=True)
        ]
        for thread in threads:
            thread.start()
        server = CpuClock([engine.pid], without=engine.others())
        cpu_s, own_s, started = server.now_s(), time.process_time(), time.perf_counter()
        begin.wait()
        for thread in threads:
            thread.join()
        found.elapsed_s += time.perf_counter() - started
        found.server_cpu_s += server.now_s() - cpu_s
        if engine.pid != os.getpid():
            found.users_cpu_s += time.process_time() - own_s
    return answers


class Checked:
    """Compares answers with DuckDB's; each one that is new."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database
        self._right: dict[str, list[pa.Table]] = {}

    def check(self, engine: Engine, answers: Mapping[str, Sequence[pa.Table]]) -> None:
        for text, tables in answers.items():
            if text not in self._right:
                self._right[text] = [self._database.sql(text).to_arrow_table()]
            right = self._right[text]
            for table in tables:
                if any(table.equals(each) for each in right):
                    continue
                wrong = differences(right[0], table.cast(right[0].schema))
                if wrong:
                    raise SystemExit(f"{engine.name} is wrong: {text}\n{wrong}")
                right.append(table)


@dataclass(frozen=True, kw_only=True)
class UsersOptions(TpchOptions):
    users: tuple[Count, ...] = (1, 4, 16, 64)
    loads: Annotated[tuple[str, ...], described(choices=_DECKS)] = ("short", "mixed")
    rounds: Count = 2
    door: Annotated[str, described(choices=("server", "session"))] = "server"
    quack: Annotated[str, described("an interpreter with DuckDB's Quack server")] = ""
    serve: Annotated[str, described("used by the script itself", choices=(MINISHARK, SMALLEST))] = (
        ""
    )


def _engines(options: UsersOptions, tables: Mapping[str, str], stack: ExitStack) -> list[Engine]:
    threads = len(os.sched_getaffinity(0))
    if options.door == "session":
        session = stack.enter_context(minishark.connect())
        _prepare(session, tables)
        database = stack.enter_context(_prepared_duckdb(tables, threads))

        @contextlib.contextmanager
        def in_session() -> Iterator[Ask]:
            with session.new_session() as own:
                yield lambda text: own.sql(text).to_arrow()

        @contextlib.contextmanager
        def on_cursor() -> Iterator[Ask]:
            with database.cursor() as cursor:
                yield lambda text: cursor.execute(text).to_arrow_table()

        return [Within(MINISHARK, in_session), Within(CURSORS, on_cursor)]

    def own(name: str) -> Engine:
        serve = [sys.executable, __file__, "--serve", name, "--scale", str(options.scale)]
        return Served(name, [*serve, "--data", str(options.data)], _flight, stack)

    if not options.quack:
        return [own(MINISHARK), own(SMALLEST)]
    given = json.dumps([tables, threads, _TOKEN])
    quack = Served(QUACK, [options.quack, "-c", _QUACK_SERVER, given], _quack, stack)
    return [own(MINISHARK), quack]


def main(options: UsersOptions) -> int:
    tables = options.tables()
    if options.serve:
        serve(options.serve, tables, len(os.sched_getaffinity(0)))
        return 0
    with ExitStack() as stack:
        engines = _engines(options, tables, stack)
        checked = Checked(stack.enter_context(_prepared_duckdb(tables, 2)))
        loads: list[Load] = []
        for load in options.loads:
            for engine in engines:
                checked.check(engine, run(engine, load, 1, Load(load, 1, engine.name)))
            for users in options.users:
                found = [Load(load, users, engine.name) for engine in engines]
                for number in range(options.rounds):
                    turns = list(zip(engines, found, strict=True))
                    for engine, each in turns[:: -1 if number % 2 else 1]:
                        print(f"{load}, {users}, {engine.name}", file=sys.stderr, flush=True)
                        with engine.user() as ask:
                            ask("DELETE FROM notes")
                        failures, writes = len(each.failures), len(each.times_s.get(WRITE, ()))
                        checked.check(engine, run(engine, load, users, each))
                        with engine.user() as ask:
                            counted = ask("SELECT count(*) FROM notes").column(0)[0].as_py()
                        writes = len(each.times_s.get(WRITE, ())) - writes
                        if counted != writes and len(each.failures) == failures:
                            raise SystemExit(f"{engine.name} has {counted} of {writes} notes.")
                loads += found
        _print(engines, loads)
        options.write({"loads": loads, "engines": {each.name: each.version for each in engines}})
    return int(any(each.failures for each in loads if each.engine == MINISHARK))


def _print(engines: Sequence[Engine], loads: Sequence[Load]) -> None:
    print(f"    {command()}\n")
    print(", ".join(f"{each.name} {each.version}" for each in engines), end=".\n\n")
    print("| load | users | server | statements/s | CPU, ms each | users' CPU | failed |", end="")
    kinds = [kind for kind in (SHORT, LONG, CALL, WRITE) if any(kind in x.times_s for x in loads)]
    print("".join(f" {kind}: p50, p95, p99, ms |" for kind in kinds))
    print(f"|---|---:|---|---:|---:|---:|---:|{'---:|' * len(kinds)}")
    for each in loads:
        cells = [
            each.load,
            f"{each.users}",
            each.engine,
            f"{each.statements / each.elapsed_s:.1f}",
            f"{1000 * each.server_cpu_s / each.statements:.2f}",
            f"{1000 * each.users_cpu_s / each.statements:.2f}",
            f"{len(each.failures)}",
        ]
        for kind in kinds:
            times_s = each.times_s.get(kind, [])
            if len(times_s) < 2:
                cells.append("")
                continue
            cuts = statistics.quantiles(times_s, n=100, method="inclusive")
            cells.append(", ".join(f"{1000 * cuts[part - 1]:.0f}" for part in (50, 95, 99)))
        print(f"| {' | '.join(cells)} |")
        for failure in sorted(set(each.failures))[:3]:
            print(f"    {failure[:300]}", file=sys.stderr)


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "users": [1, 4], "rounds": 1})
