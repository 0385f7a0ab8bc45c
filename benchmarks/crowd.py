"""A short query beside a crowd: how long it waits, and what the crowd loses by it.

    python benchmarks/crowd.py [--calls 1500] [--rounds 3] [--crowds submit,map] [--json FILE]

alone      nothing else runs
submit     `--calls` calls of 20 ms, each submitted alone
map        a map over 400 items, each a call of 50 ms
load       `create_table` of a Parquet file of 6 million rows, again and again
query      a query that reads all of it several times, again and again

A query that sums 200,000 rows is asked every 100 ms, in the session of the crowd and in one of
`new_session()`. The crowd also runs without queries, in turns. CPU time is that of all processes.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
import msgspec

import minishark
from minishark_lab.harness.clocks import CpuClock
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, command, run_script

QUERY = "SELECT k, sum(v) AS s FROM small GROUP BY k ORDER BY s DESC LIMIT 5"
LONG = (
    "SELECT count(*), sum(n) FROM (SELECT a.k, a.t, count(*) AS n, median(a.v) FROM big AS a "
    "JOIN small AS s ON a.id % 200000 = s.id GROUP BY a.k, a.t)"
)
ROWS, SMALL_ROWS = 6_000_000, 200_000
CALL_S, ITEM_S, ITEMS = 0.020, 0.050, 400
PAUSE_S = 0.1
ASKED_MIN = 30  # queries for a crowd that ends sooner goes on until as many were asked


def rest(_number: int, seconds: float = CALL_S) -> None:
    time.sleep(seconds)


def rest_longer(number: int) -> None:
    rest(number, ITEM_S)


class Measured(msgspec.Struct):
    """Rounds of a crowd: times of the queries, and the crowd's own."""

    crowd: str
    session: str
    queries_s: list[float] = []
    crowd_s: list[float] = []
    cpu_s: list[float] = []


Crowd = Callable[[minishark.Session], None]


def submitted(calls: int) -> Crowd:
    def run(session: minishark.Session) -> None:
        for future in [session.submit(rest, i) for i in range(calls)]:
            future.result()

    return run


def mapped(session: minishark.Session) -> None:
    for _ in session.map(rest_longer, range(ITEMS), chunksize=1):
        pass


def loading(file: Path) -> Crowd:
    def run(session: minishark.Session) -> None:
        for _ in range(3):
            session.create_table("loaded", str(file), replace=True)

    return run


def querying(session: minishark.Session) -> None:
    for _ in range(3):
        session.sql(LONG).collect()


def ask(session: minishark.Session, until: Callable[[], bool]) -> list[float]:
    """Times of queries that are asked one after the other, with a pause between them."""
    times = []
    while not until():
        started = time.perf_counter()
        assert len(session.sql(QUERY).collect()) == 5
        times.append(time.perf_counter() - started)
        time.sleep(PAUSE_S)
    return times


def beside(crowd: Crowd, session: minishark.Session, asker: minishark.Session | None) -> Measured:
    """One round: the crowd in its session, and the queries in theirs if there are any."""
    found = Measured("", "")
    clock, failed = CpuClock(), []
    cpu, started = clock.now_s(), time.perf_counter()

    def run() -> None:
        try:
            crowd(session)
        except Exception as error:  # noqa: BLE001 - raised again on the main thread
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(PAUSE_S)  # the crowd stands in the queues
    if asker is not None:
        found.queries_s = ask(asker, lambda: not thread.is_alive())
    thread.join()
    if failed:
        raise failed[0]
    found.crowd_s.append(time.perf_counter() - started)
    found.cpu_s.append(clock.now_s() - cpu)
    return found


def alone(session: minishark.Session) -> Measured:
    left = itertools.count(1)
    clock = CpuClock()
    cpu = clock.now_s()
    times = ask(session, lambda: next(left) > ASKED_MIN)
    return Measured("alone", "", times, [], [clock.now_s() - cpu])


def make_file(folder: Path) -> Path:
    """Rows of a number, a small key, a text of 1,000 values and a fraction."""
    file = folder / "big.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT i AS id, (7 * i % 100)::INT AS k, 'text ' || 31 * i % 1000 AS t, "
            f"i % 977 / 7 AS v FROM range({ROWS}) AS r(i)) TO '{file}' (ROW_GROUP_SIZE 200_000)"
        )
    return file


@dataclass(frozen=True, kw_only=True)
class CrowdOptions(Options):
    calls: Count = 1500
    rounds: Count = 3
    crowds: tuple[str, ...] = ("submit", "map", "load", "query")


def measure(options: CrowdOptions) -> list[Measured]:
    rows: dict[tuple[str, str], Measured] = {}

    def note(found: Measured, crowd: str, session: str) -> None:
        row = rows.setdefault((crowd, session), Measured(crowd, session))
        row.queries_s += found.queries_s
        row.crowd_s += found.crowd_s
        row.cpu_s += found.cpu_s

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="minishark-crowd-"))
        file = make_file(Path(folder))
        session = stack.enter_context(minishark.connect())
        session.create_table("big", str(file))
        session.sql(f"CREATE TABLE small AS FROM big WHERE id < {SMALL_ROWS}")
        crowds: dict[str, Crowd] = {
            "submit": submitted(options.calls), "map": mapped, "load": loading(file),
            "query": querying,
        }  # fmt: skip
        other = stack.enter_context(session.new_session())
        alone(session)  # plans are made, and executors warm
        for _ in range(options.rounds):
            note(alone(session), "alone", "")
            for name in options.crowds:
                for label, asker in (("none", None), ("same", session), ("other", other)):
                    print(f"{name}, {label}", file=sys.stderr, flush=True)
                    note(beside(crowds[name], session, asker), name, label)
    return list(rows.values())


def table(rows: Sequence[Measured]) -> Iterator[str]:
    yield "| beside | session | queries | median, ms | p99, ms | crowd, s | over alone | CPU, s |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    undisturbed = {each.crowd: statistics.median(each.crowd_s)
                   for each in rows if each.session == "none"}  # fmt: skip
    for row in rows:
        if not row.queries_s:
            continue
        sorted_s = sorted(row.queries_s)
        cells = [
            row.crowd,
            row.session,
            f"{len(sorted_s)}",
            *(f"{1000 * sorted_s[int(part * len(sorted_s))]:.0f}" for part in (0.5, 0.99)),
        ]
        if row.crowd_s:
            crowd_s = statistics.median(row.crowd_s)
            cells += [f"{crowd_s:.1f}", f"{crowd_s / undisturbed[row.crowd]:.2f}"]
        else:
            cells += ["", ""]
        yield f"| {' | '.join(cells)} | {statistics.median(row.cpu_s):.1f} |"


def main(options: CrowdOptions) -> int:
    rows = measure(options)
    print(f"    {command()}\n")
    print("\n".join(table(rows)))
    options.write({"rows": rows})
    return 0


if __name__ == "__main__":
    run_script(main, quick={"calls": 50, "rounds": 1, "crowds": ["submit", "map"]})
