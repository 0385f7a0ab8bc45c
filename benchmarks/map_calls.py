"""What it costs that Python functions survive bad rows, and what becomes of these.

    python benchmarks/map_calls.py [--rows 1000000] [--asked 10000]

One of `--rows` rows is bad. CPU time is that of all processes, in microseconds per row, beside the
same loop in `map_partitions`, which has no bad row. A service on loopback then fails 5 % of the
first calls for each of `--asked` rows, of which none may be called again once it has succeeded.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import psutil
import pyarrow as pa

import minishark
from minishark.dataframe import DataFrame
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script

_SCHEMA = "a BIGINT, text VARCHAR"


@dataclass(frozen=True, kw_only=True)
class CallOptions(Options):
    """The options of the script."""

    rows: Annotated[Count, described("of which one is bad")] = 1_000_000
    asked: Annotated[Count, described("of a service on loopback")] = 10_000


def _of_row(bad: int, row: tuple[int, str]) -> tuple[int, str]:
    number, text = row
    if number == bad:
        raise ValueError("a bad row")
    return number + 1, text


def _of_rows(bad: int, rows: pa.Table) -> pa.Table:
    found = [_of_row(bad, pair) for pair in zip(*rows.to_pydict().values(), strict=True)]
    numbers, texts = zip(*found, strict=True)
    return pa.table({"a": numbers, "text": texts})


def _cpu_s() -> float:
    own = psutil.Process()
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def _measured(what: str, rows: int, make: Callable[[], DataFrame]) -> None:
    before = _cpu_s()
    found = make()
    count = found.count()
    cost = (_cpu_s() - before) / rows * 1e6
    try:
        aside = found.rejected.count()
    except AttributeError:
        aside = 0
    print(f"{what:<40} {count:>9} rows {aside:>6} rejected {cost:>7.2f} us CPU per row")


def _bad_rows(session: minishark.Session, count: int) -> None:
    session.sql(f"CREATE TABLE t AS SELECT range AS a, 'r' || range AS text FROM range({count})")
    t = session.table("t")
    t.map_partitions(partial(_of_rows, -1), _SCHEMA).limit(1).collect()  # modules are imported
    bad = count * 7 // 9
    _measured("map_partitions", count, lambda: t.map_partitions(partial(_of_rows, -1), _SCHEMA))
    for what, method, fn in (
        ("map_batches of 1,024", t.map_batches, _of_rows),
        ("map_rows", t.map_rows, _of_row),
    ):
        make: Any = partial(method, schema=_SCHEMA)
        _measured(f"{what}, none is bad", count, partial(make, partial(fn, -1)))
        aside = partial(make, partial(fn, bad), on_error="quarantine")
        _measured(f"{what}, one is bad, quarantine", count, aside)


class _Service:
    """Fails the first call for one row of twenty."""

    def __init__(self) -> None:
        self.asked: Counter[bytes] = Counter()
        self.succeeded: Counter[bytes] = Counter()
        self.port: asyncio.Future[int] | None = None
        self.started = threading.Event()
        self.address = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = (await reader.readline()).strip()
        self.asked[number] += 1
        if int(number) % 20 or self.asked[number] > 1:
            self.succeeded[number] += 1
            writer.write(number + b"\n")
            await writer.drain()
        writer.close()

    async def serve(self) -> None:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0, backlog=1000)
        self.address = server.sockets[0].getsockname()[1]
        self.started.set()
        async with server:
            await server.serve_forever()


async def _ask(port: int, row: Any) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"%d\n" % row.id)
        answer = await reader.readline()
        if not answer:
            raise ConnectionError("no answer")
        return int(answer)
    finally:
        writer.close()


def _service(session: minishark.Session, count: int) -> None:
    service = _Service()
    threading.Thread(target=lambda: asyncio.run(service.serve()), daemon=True).start()
    service.started.wait()
    found = (
        session.range(count)
        .repartition(2)
        .map_rows(
            partial(_ask, service.address), "id BIGINT", concurrency=16, retries=3, backoff_s=0.01
        )
    )
    total = found.agg({"id": "sum"}).collect()[0][0]
    print(
        f"service: {count} rows, {service.asked.total()} calls, "
        f"{max(service.succeeded.values())} at most succeeded for a row, "
        f"sum {'right' if total == sum(range(count)) else 'WRONG'}"
    )


def main(options: CallOptions) -> None:
    """Both parts."""
    with minishark.connect(nodes=2, executors_per_node=1) as session:
        _bad_rows(session, options.rows)
        _service(session, options.asked)


if __name__ == "__main__":
    run_script(main, quick={"rows": 2_000, "asked": 200})
