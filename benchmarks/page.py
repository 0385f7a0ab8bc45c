"""What the page costs and how soon it tells: time, memory, bytes, delays.

    python benchmarks/page.py                       # all sections
    python benchmarks/page.py cost --rounds 9
    python benchmarks/page.py delays memory size

`cost`: the 22 TPC-H queries in four sessions, each a process of its own: one has its page open,
with as many streams of views as browsers would read; one serves a page at which nobody looks; of
the two without, one tells how much of a difference is noise. Rounds of all queries take turns, in
all orders. CPU time is a session's: its process, nodes and executors, without the readers; what
pages are sent shortly after a round counts. `delays`: from a query's start until a reader is told
that it runs, and from the request to cancel it until it has ended. `memory`: what a board grows by
in a fresh process, over events that the TPC-H queries made, each with another query number. `size`:
what page and events add to a wheel.
"""

from __future__ import annotations

import http.client
import itertools
import json
import multiprocessing
import statistics
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import psutil

import minishark
from minishark.cli.tpch.queries import load_queries
from minishark.cli.tpch.tables import load_tables
from minishark.errors import QueryCancelledError
from minishark.model.events import kinds
from minishark.session.page.board import Board
from minishark.session.page.site import READER_S
from minishark_lab.harness.clocks import CpuClock, timed
from minishark_lab.harness.parameters import Count, Positive
from minishark_lab.harness.script import TpchOptions, described, run_script
from minishark_lab.tpch.data import Silent

_SECTIONS = ("cost", "delays", "memory", "size")
_VIEWS = ("cluster", "queries", "placement")
_ENDLESS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range = 7"
_AWAIT_S = 60.0
_LATER_S = 0.7  # what pages are sent after a round counts as its cost, too
_ORDERS = tuple(itertools.permutations(range(4)))
_Round = tuple[float, float]  # elapsed time of the queries, CPU time of all


@dataclass(frozen=True, kw_only=True)
class PageOptions(TpchOptions):
    scale: Annotated[Positive, described("TPC-H's scale factor")] = 0.01
    sections: Annotated[tuple[str, ...], described(choices=_SECTIONS, positional=True)] = ()
    rounds: Annotated[Count, described("of the 22 queries")] = 12
    pages: Annotated[Count, described("pages that are open")] = 3
    queries: Annotated[Count, described("that a board is told of")] = 100_000


def main(options: PageOptions) -> None:
    sections = options.sections or _SECTIONS
    report: dict[str, Any] = {}
    if "cost" in sections:
        report["cost"] = _cost(options.tables(), options.rounds, options.pages)
    if "delays" in sections:
        report["delays"] = _delays()
    if "memory" in sections:
        report["memory"] = _memory(options.tables(), options.queries)
    if "size" in sections:
        report["size"] = _size()
    options.write(report)


# Cost


def _cost(tables: dict[str, str], rounds: int, pages: int) -> dict[str, Any]:
    with (
        _session(tables, has_page=False) as plain,
        _session(tables, has_page=False) as control,
        _session(tables, has_page=True) as served,
        _session(tables, has_page=True) as paged,
    ):
        sessions = [plain[0], control[0], served[0], paged[0]]
        time.sleep(READER_S)  # until the page that nobody opens counts as one without readers
        found: list[list[_Round]] = [[], [], [], []]
        with _readers(paged[1], pages) as received:
            for turn in range(rounds + 1):
                for which in _ORDERS[turn % len(_ORDERS)]:
                    sessions[which].send(True)
                    measured = sessions[which].recv()
                    if turn > 0:  # the first round warms up
                        found[which].append(measured)
            messages, size = received
        for session in sessions:
            session.send(None)
    print(f"TPC-H, {rounds} rounds; ratios to a session without a page, round by round:")
    report: dict[str, Any] = {"pages": pages, "messages": messages, "bytes": size}
    for which, name in enumerate(
        ("another one without", "served, and unread", f"with {pages} pages open"), start=1
    ):
        for kind, what in enumerate(("elapsed", "CPU")):
            pairs = zip(found[which], found[0], strict=True)
            ratios = [each[kind] / other[kind] for each, other in pairs]
            low, middle, high = statistics.quantiles(ratios, n=4)
            absolute = statistics.median(each[kind] for each in found[which])
            print(
                f"  {name:20} {what:8} {_percent(middle):>8} "
                f"(quartiles {_percent(low)} to {_percent(high)}; median {absolute:.3f} s)"
            )
            report[f"{name}: {what}"] = ratios
    print(f"  The pages were sent {messages:,} messages, {size / 1e6:.1f} MB.")
    return report


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %"


@contextmanager
def _session(tables: dict[str, str], *, has_page: bool) -> Iterator[tuple[Connection, str]]:
    """A session in a process that runs rounds when it is told to; its page's address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run_session, args=(there, tables, has_page))
    process.start()
    there.close()
    try:
        if not here.poll(_AWAIT_S):
            raise TimeoutError("a session did not start")
        yield here, here.recv()
        process.join(_AWAIT_S)
    finally:
        process.terminate()


def _run_session(pipe: Connection, tables: dict[str, str], has_page: bool) -> None:
    with minishark.connect(nodes=2, executors_per_node=1) as session:
        load_tables(session, tables, Silent(), replicas=1)
        clock, queries = CpuClock(), load_queries(range(1, 23)).values()
        pipe.send(session.ui(open_browser=False) if has_page else "")
        while pipe.recv():
            before_s = clock.now_s()
            elapsed_s = sum(timed(session.sql(sql).to_arrow) for sql in queries)
            time.sleep(_LATER_S)
            pipe.send((elapsed_s, clock.now_s() - before_s))


@contextmanager
def _readers(address: str, pages: int) -> Iterator[list[int]]:
    """Threads that read streams of views; yields the numbers of messages and of bytes so far."""
    received, lock = [0, 0], threading.Lock()

    def read(view: str) -> None:
        for message in _messages(address, view):
            with lock:
                received[0] += 1
                received[1] += len(message)

    views = itertools.islice(itertools.cycle(_VIEWS), pages)
    for view in views:
        threading.Thread(target=read, args=(view,), daemon=True).start()
    yield received


def _messages(address: str, view: str) -> Iterator[bytes]:
    """The messages of a stream of views, until the page ends."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_AWAIT_S)
    connection.request("GET", f"{parts.path}events?view={view}")
    answer = connection.getresponse()
    while line := answer.readline():
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ")


# Delays


def _delays(repetitions: int = 10) -> dict[str, Any]:
    seen, over = [], []
    with minishark.connect(nodes=2, executors_per_node=1) as session:
        session.sql("SELECT 1").collect()
        address = session.ui(open_browser=False)
        for i in range(repetitions):
            ended: list[float] = []

            def run(ended: list[float] = ended) -> None:
                try:
                    session.sql(_ENDLESS).collect()
                except QueryCancelledError:
                    ended.append(time.perf_counter())

            messages = _messages(address, "queries")
            next(messages)
            time.sleep(0.37 + 0.19 * (i % 7))  # not in step with the page's own waits
            thread = threading.Thread(target=run)
            began = time.perf_counter()
            thread.start()
            key = next(filter(None, map(_running, messages)))
            seen.append(time.perf_counter() - began)
            asked = time.perf_counter()
            _cancel(address, key)
            thread.join(_AWAIT_S)
            over.append(ended[0] - asked)
    print(f"A query is shown {_spread(seen)} after its start,")
    print(f"  and over {_spread(over)} after it was cancelled there")
    return {"seen_s": seen, "cancelled_s": over}


def _running(message: bytes) -> str | None:
    queries = json.loads(message)["data"]["queries"]
    return next((each["key"] for each in queries if each["state"] == "running"), None)


def _cancel(address: str, key: str) -> None:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_AWAIT_S)
    headers = {"X-Minishark-Token": parts.path.strip("/")}
    connection.request("POST", f"{parts.path}cancel", json.dumps({"key": key}), headers)
    connection.getresponse().read()
    connection.close()


def _spread(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s (longest)"


# Memory and size


def _memory(tables: dict[str, str], queries: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as recorder:
        recorded = recorder.apply(_recorded, (tables,))
    with context.Pool(1) as fresh:
        grown = fresh.apply(_grown, (recorded, queries))
    print(
        f"A board's memory after {queries:,} queries: {grown / 1e6:.1f} MB "
        f"(their events, as JSON: {sum(map(len, recorded)) / 22 * queries / 1e6:,.0f} MB)"
    )
    return {"queries": queries, "bytes": grown}


def _recorded(tables: dict[str, str]) -> list[bytes]:
    """The events of the 22 queries in several stages, as JSON."""
    with minishark.connect(
        nodes=2, executors_per_node=2, partitions=4, single_task_rows=0
    ) as session:
        load_tables(session, tables, Silent(), replicas=1)
        session.ui(open_browser=False)  # placements are told, too
        stream = session._runtime.engine.events  # noqa: SLF001 - there is no other way to them
        before = stream.since(0).last
        for sql in load_queries(range(1, 23)).values():
            session.sql(sql).to_arrow()
        events = stream.since(before).events
    return [msgspec.json.encode(each) for each in events if hasattr(each, "query")]


def _grown(recorded: list[bytes], queries: int) -> int:
    """By how many bytes this process grows with a board that is told of so many queries."""
    decode = msgspec.json.Decoder(kinds.AnyEvent).decode
    board, process = Board(), psutil.Process()
    board.apply(kinds.SessionStarted(at=1.0, session="s"), "s")
    first = min(decode(line).query for line in recorded)  # type: ignore[union-attr]
    before = process.memory_info().rss
    for again in range(0, queries, 22):
        for line in recorded:
            event = decode(line)
            number = again + event.query - first  # type: ignore[union-attr]
            board.apply(msgspec.structs.replace(event, query=number), "s")
    return process.memory_info().rss - before


def _size() -> dict[str, Any]:
    package = Path(minishark.__file__).parent
    target = BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file in sorted((package / "events").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                wheel.write(file, file.relative_to(package))
    size = len(target.getvalue())
    print(f"In a wheel, page and events are {size / 1e3:.1f} kB")
    return {"bytes": size}


if __name__ == "__main__":
    run_script(main, quick={"rounds": 1, "pages": 1, "queries": 1000, "scale": 0.01})
