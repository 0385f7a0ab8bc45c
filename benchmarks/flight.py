"""A served session through ADBC, beside the smallest Flight SQL server over DuckDB.

    python benchmarks/flight.py --rows 5000000 --repetitions 200 --json flight.json

The servers and the client are in this process, and take turns:

* SELECT 42, and a lookup in a small table: median time, and CPU time of the process.
* A large result, all columns of a table in memory, as the client reads it batch by batch; also from
  a server that does nothing but send an Arrow table of these rows, which shows what the client and
  the loopback take.
* A large result that is computed: a filter, and one more column.
* The time from a client's cancelling a statement that would run for hours to its error, and until
  no task runs any more; and from the death of a client's TCP connection until no task runs.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import adbc_driver_flightsql.dbapi as flight_sql
import duckdb
import msgspec
import psutil
import pyarrow as pa
import pyarrow.flight as fl

import minishark
from minishark.adapters.flight.messages import packed, unpacked
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script

MINISHARK, SMALLEST, ARROW = "minishark", "smallest", "arrow"
_ENDLESS = "SELECT sum(a.i * b.i % 7) FROM range(1000000) a(i), range(1000000) b(i)"
_COLUMNS = 8


class Figures(msgspec.Struct):
    """What was measured of one server; the ratio is to the smallest server's."""

    what: str
    server: str
    median: float
    unit: str
    cpu_s: float
    ratio: float | None = None


class Smallest(fl.FlightServerBase):
    """Statements without parameters, on DuckDB: no catalog, no limits, no connections."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._connection = connection
        self._texts: dict[bytes, str] = {}

    def get_flight_info(self, context: object, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        """Bind a statement."""
        _, command = unpacked(descriptor.command)
        text = getattr(command, "query", "") or self._texts[command.prepared_statement_handle]
        handle = uuid.uuid4().bytes
        self._texts[handle] = text
        schema = self._connection.cursor().sql(text).limit(0).to_arrow_table().schema
        ticket = packed("TicketStatementQuery", statement_handle=handle)
        return fl.FlightInfo(schema, descriptor, [fl.FlightEndpoint(ticket, [])], -1, -1)

    def do_get(self, context: object, ticket: fl.Ticket) -> fl.RecordBatchStream:
        """Run it."""
        text = self._texts.pop(unpacked(ticket.ticket)[1].statement_handle)
        rows = self._connection.cursor().sql(text).to_arrow_reader(65_536)
        return fl.RecordBatchStream(rows)

    def do_action(self, context: object, action: fl.Action) -> Iterator[fl.Result]:
        """Prepare a statement, or forget it."""
        name, request = unpacked(action.body.to_pybytes())
        if name == "ActionCreatePreparedStatementRequest":
            handle = uuid.uuid4().bytes
            self._texts[handle] = request.query
            told = packed("ActionCreatePreparedStatementResult", prepared_statement_handle=handle)
            yield fl.Result(told)


class Sends(fl.FlightServerBase):
    """The same Arrow table for any statement."""

    def __init__(self, table: pa.Table) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._table = table

    def get_flight_info(self, context: object, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
        """Always the same; drivers ask for what a server is first, and go on without."""
        if unpacked(descriptor.command)[0] != "CommandStatementQuery":
            raise NotImplementedError
        endpoint = fl.FlightEndpoint(packed("TicketStatementQuery", statement_handle=b"x"), [])
        return fl.FlightInfo(self._table.schema, descriptor, [endpoint], -1, -1)

    def do_get(self, context: object, ticket: fl.Ticket) -> fl.RecordBatchStream:
        """The table, 8,192 rows at a time, which was fastest of 8,192 to 131,072."""
        batches = self._table.to_batches(8_192)
        return fl.RecordBatchStream(pa.RecordBatchReader.from_batches(self._table.schema, batches))


Turn = Callable[[Any], float]


def _asked(sql: str) -> Turn:
    def turn(cursor: Any) -> float:
        began_s = time.perf_counter()
        cursor.execute(sql)
        cursor.fetchall()
        return (time.perf_counter() - began_s) * 1e3

    return turn


def _read(sql: str) -> Turn:
    def turn(cursor: Any) -> float:
        began_s, size = time.perf_counter(), 0
        cursor.execute(sql)
        for batch in cursor.fetch_record_batch():
            size += batch.nbytes
        return size / (time.perf_counter() - began_s) / 1e6

    return turn


def _cancelled(cursor: Any) -> float:
    began: list[float] = []

    def cancel() -> None:
        began.append(time.perf_counter())
        cursor.adbc_cancel()

    timer = threading.Timer(0.5, cancel)
    timer.start()
    with contextlib.suppress(flight_sql.Error):
        cursor.execute(_ENDLESS)
        cursor.fetchall()
    return (time.perf_counter() - began[0]) * 1e3


_LOOK_S = 0.05
_QUIET_S = 0.4


def _until_idle() -> float:
    """When executors, which are this process's children, used CPU time for the last time."""
    processes = psutil.Process().children(recursive=True)

    def used_s() -> float:
        total = 0.0
        for process in processes:
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:2])
        return total

    before_s, last_s = used_s(), time.perf_counter()
    while time.perf_counter() - last_s < _QUIET_S:
        time.sleep(_LOOK_S)
        now_s = used_s()
        if now_s - before_s > _LOOK_S / 4:  # heartbeats use less
            last_s = time.perf_counter()
        before_s = now_s
    return last_s


def _stopped(cursor: Any) -> float:
    began: list[float] = []

    def cancel() -> None:
        began.append(time.perf_counter())
        cursor.adbc_cancel()
        began.append(_until_idle())

    timer = threading.Timer(0.5, cancel)
    timer.start()
    with contextlib.suppress(flight_sql.Error):
        cursor.execute(_ENDLESS)
        cursor.fetchall()
    timer.join()
    return (began[1] - began[0]) * 1e3


_CLIENT = """
import sys, adbc_driver_flightsql.dbapi as flight_sql
with flight_sql.connect(sys.argv[1], autocommit=True) as connection, connection.cursor() as cursor:
    print("", flush=True)
    cursor.execute(sys.argv[2])
    cursor.fetchall()
"""


def _killed(address: str) -> Turn:
    def turn(_: Any) -> float:
        command = [sys.executable, "-c", _CLIENT, address, _ENDLESS]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as client:
            assert client.stdout is not None
            client.stdout.readline()
            time.sleep(0.5)
            client.kill()
            began_s = time.perf_counter()
            client.wait()
            return (_until_idle() - began_s) * 1e3

    return turn


def compared(
    what: str, unit: str, turn: Turn, cursors: dict[str, Any], repetitions: int
) -> Iterator[Figures]:
    """The servers in turns, after a turn that does not count."""
    values: dict[str, list[float]] = {name: [] for name in cursors}
    cpu_s = dict.fromkeys(cursors, 0.0)
    for i in range(repetitions + 1):
        for name, cursor in cursors.items():
            began_s = time.process_time()
            value = turn(cursor)
            if i:
                values[name].append(value)
                cpu_s[name] += time.process_time() - began_s
    medians = {name: statistics.median(found) for name, found in values.items()}
    for name, median in medians.items():
        has_ratio = name != SMALLEST and SMALLEST in medians
        ratio = median / medians[SMALLEST] if has_ratio else None
        yield Figures(what, name, median, unit, cpu_s[name] / repetitions, ratio)


def measure(rows: int, repetitions: int) -> Iterator[Figures]:
    """All figures."""
    numbers = pa.array(range(rows)).cast(pa.float64())
    large = pa.table({f"c{i}": numbers for i in range(_COLUMNS)})
    small = pa.table({"k": range(1000), "v": [str(i) for i in range(1000)]})
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(duckdb.connect())
        for name, table in (("large", large), ("small", small)):
            plain.register("source", table)
            plain.execute(f"CREATE TABLE {name} AS FROM source")
        plain.unregister("source")
        smallest = stack.enter_context(Smallest(plain))
        session = stack.enter_context(minishark.connect())
        session.create_table("large", large)
        session.create_table("small", small)
        served = stack.enter_context(session.serve(port=0))
        sends = stack.enter_context(Sends(large))
        addresses = {
            MINISHARK: served.address,
            SMALLEST: f"grpc://127.0.0.1:{smallest.port}",
            ARROW: f"grpc://127.0.0.1:{sends.port}",
        }
        all_cursors = {}
        for name, address in addresses.items():
            connection = stack.enter_context(flight_sql.connect(address, autocommit=True))
            all_cursors[name] = stack.enter_context(connection.cursor())
        cursors = {name: all_cursors[name] for name in (MINISHARK, SMALLEST)}
        yield from compared("SELECT 42", "ms", _asked("SELECT 42"), cursors, repetitions)
        lookup = _asked("SELECT v FROM small WHERE k = 77")
        yield from compared("lookup", "ms", lookup, cursors, max(1, repetitions // 4))
        yield from compared("stored rows", "MB/s", _read("FROM large"), all_cursors, 5)
        computed = _read("SELECT *, c0 + c1 AS s FROM large WHERE c2 >= 0")
        yield from compared("computed rows", "MB/s", computed, cursors, 5)
        only = {MINISHARK: cursors[MINISHARK]}
        yield from compared("cancel", "ms", _cancelled, only, 5)
        yield from compared("until idle", "ms", _stopped, only, 5)
        yield from compared("killed client", "ms", _killed(served.address), only, 5)


@dataclass(frozen=True, kw_only=True)
class FlightOptions(Options):
    rows: Annotated[Count, described("of the large table")] = 5_000_000
    repetitions: Count = 200


def main(options: FlightOptions) -> None:
    """Measure, and print a line for each figure."""
    figures = []
    for each in measure(options.rows, options.repetitions):
        figures.append(each)
        ratio = "" if each.ratio is None else f"   x {each.ratio:.2f}"
        print(
            f"{each.what:15}{each.server:10}{each.median:10.1f} {each.unit:5}"
            f"{each.cpu_s * 1e3:8.1f} ms CPU{ratio}",
            flush=True,
        )
    options.write({"figures": figures})


if __name__ == "__main__":
    run_script(main, quick={"rows": 20000, "repetitions": 4})
