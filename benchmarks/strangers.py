"""What callers without a credential do to a server: its memory, and who else is answered.

    python benchmarks/strangers.py --mebibytes 700 --json strangers.json

`minishark serve` with a token is a process of its own. Three clients at once send it one message
each, of so many bytes, without the token: as the argument of an action, which gRPC would read whole
before it calls anybody, and as the rows of a load. Meanwhile one with the token runs statements.
The peak is that of the server's process, read every 5 ms.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
import pyarrow as pa
import pyarrow.flight as fl

from minishark.adapters.flight.client import RemoteSession
from minishark.adapters.flight.messages import packed
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script

_STRANGERS = 3
_TOKEN = "a-token-that-nobody-guesses"  # noqa: S105 - of a server that lives for seconds
_LOOK_S = 0.005
_POOL = "grpc.use_local_subchannel_pool"  # a connection of its own for each client


class Figures(msgspec.Struct):
    """Resident memory before and at most, and what a statement of another client took."""

    what: str
    before_mb: float
    peak_mb: float
    refused: int
    statements: int
    median_ms: float
    worst_ms: float


def _acts(client: fl.FlightClient, size: int) -> None:
    list(client.do_action(("CreatePreparedStatement", bytes(size))))


def _loads(client: fl.FlightClient, size: int) -> None:
    rows = pa.record_batch({"x": pa.array([bytes(size)], pa.large_binary())})
    command = packed("CommandStatementIngest", table="t")
    writer, _ = client.do_put(fl.FlightDescriptor.for_command(command), rows.schema)
    with writer:
        writer.write_batch(rows)


def _pressed(
    address: str, server: psutil.Process, send: Callable[[fl.FlightClient, int], None], size: int
) -> Figures:
    before, peak = server.memory_info().rss, 0
    times: list[float] = []
    is_over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not is_over.wait(_LOOK_S):
            peak = max(peak, server.memory_info().rss)

    def work() -> None:
        with RemoteSession(address, token=_TOKEN) as remote:
            while not is_over.is_set():
                began_s = time.perf_counter()
                remote.run("SELECT 42")
                times.append((time.perf_counter() - began_s) * 1e3)

    def stranger() -> bool:
        with fl.connect(address, generic_options=[(_POOL, 1)]) as client:
            try:
                send(client, size)
            except (fl.FlightError, pa.ArrowException):
                return True
        return False

    others = [threading.Thread(target=watch), threading.Thread(target=work)]
    for other in others:
        other.start()
    with ThreadPoolExecutor(_STRANGERS) as threads:
        refused = list(threads.map(lambda _: stranger(), range(_STRANGERS)))
    time.sleep(0.5)
    is_over.set()
    for other in others:
        other.join()
    return Figures(
        send.__name__.strip("_"),
        before / 1e6,
        peak / 1e6,
        sum(refused),
        len(times),
        statistics.median(times),
        max(times),
    )


def measure(size: int) -> Iterator[Figures]:
    """Both kinds of messages."""
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(_TOKEN)
        command = [sys.executable, "-u", "-m", "minishark.cli", "serve", "--nodes", "1"]
        command += ["--flight", "127.0.0.1:0", "--token-file", str(token)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                address = process.stdout.readline().split()[1]
                with RemoteSession(address, token=_TOKEN) as remote:
                    remote.run("SELECT 42")
                for send in (_acts, _loads):
                    yield _pressed(address, psutil.Process(process.pid), send, size)
            finally:
                process.terminate()


@dataclass(frozen=True, kw_only=True)
class StrangersOptions(Options):
    mebibytes: Annotated[Count, described("of each message")] = 700


def main(options: StrangersOptions) -> None:
    """Measure, and print a line for each figure."""
    figures = []
    for each in measure(options.mebibytes << 20):
        figures.append(each)
        print(
            f"{each.what:8}{each.before_mb:8.0f} MB, at most{each.peak_mb:8.0f} MB; "
            f"{each.refused} refused; {each.statements} other statements, median "
            f"{each.median_ms:.1f} ms, at most {each.worst_ms:.1f} ms",
            flush=True,
        )
    options.write({"figures": figures})


if __name__ == "__main__":
    run_script(main, quick={"mebibytes": 20})
