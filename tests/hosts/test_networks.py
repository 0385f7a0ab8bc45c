"""Clusters over real networks: long ones that lose packets, narrow ones, and such that are cut.

Few hosts are cut off by default; MINISHARK_HOST_CUTS=100 cuts more, and MINISHARK_HOST_FAULTS=100
has more faults of all kinds.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bed import Bed, hosts, until

from minishark_lab.tpch.generate import generate

_CUTS = int(os.environ.get("MINISHARK_HOST_CUTS", "3"))
_FAULTS = int(os.environ.get("MINISHARK_HOST_FAULTS", "8"))
_MEMORY = "--memory-limit=1GiB"
_WHOLE_S = 15.0  # until replicas are whole again

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 15 * _CUTS + 30 * _FAULTS)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TPC-H at scale 0.01."""
    root = tmp_path_factory.mktemp("tpch")
    return generate(0.01, root, parts=2, on_progress=lambda done, total: None)


@pytest.fixture(scope="module", params=["long", "narrow"])
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    """Two hosts 20 ms apart that lose 1 % of the packets; three with 200 Mbit/s each."""
    shapes: dict[str, dict[str, Any]] = {
        "long": {"count": 2, "delay_ms": 10, "loss": 0.01},
        "narrow": {"count": 3, "rate": "200mbit"},
    }
    with hosts(**shapes[request.param]) as made:
        made.start_nodes(_MEMORY)
        yield made


_TPCH = """
import json, sys, duckdb, minishark
from pathlib import Path
from tests.integration.oracle import divergences
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries
from minishark.cli.tpch.tables import TABLES, find_tables
from minishark_lab.tpch.reference import create_views

files = find_tables(Path(sys.argv[2]))
with duckdb.connect() as plain, minishark.connect(sys.argv[1], single_task_rows=0) as session:
    create_views(plain, files)
    for name, key in TABLES.items():
        session.create_table(
            name, files[name], partition_by=key, partitions=4 if key else None, replicas=2
        )
    queries = load_queries(range(1, QUERY_COUNT + 1))
    found = {number: divergences(session, plain, sql) for number, sql in queries.items()}
    print(json.dumps({number: str(text) for number, text in found.items() if text}))
"""


def test_tpch(bed: Bed, data: Path) -> None:
    """All 22 answers are DuckDB's, with tables of two replicas."""
    assert {} == json.loads(bed.run(0, _TPCH, bed.address(0), str(data)))


_EVERYDAY = """
import json, socket, sys, time, minishark, pyarrow as pa

rows = 1_000_000
numbers = pa.table({"k": [i % 97 for i in range(rows)], "x": range(rows)})
window = "SELECT k, x, row_number() OVER (PARTITION BY k ORDER BY x DESC) AS r FROM t"

def driver(run):
    sums = run.map(lambda rows: int(rows.column("x").to_numpy().sum()), run.table("t"))
    return run.reduce(lambda a, b: a + b, sums)

def where(number):
    time.sleep(0.05)
    return socket.gethostname()

found = {}
with minishark.connect(sys.argv[1], single_task_rows=0) as session:
    session.create_table("t", numbers, replicas=2)
    shuffled = session.sql(window)
    first = shuffled.to_arrow().to_pandas().query("r == 1")
    found["shuffled"] = int(first.x.sum())
    found["received"] = [stage.received for stage in shuffled.metrics().by_stage]
    found["explained"] = str(session.sql(window).plan_text("analyze"))
    session.sql(f"COPY (FROM t) TO '{sys.argv[2]}/copied.parquet'").to_arrow()
    copied = session.sql(f"SELECT count(*) AS n FROM '{sys.argv[2]}/copied.parquet'")
    found["copied"] = copied.to_arrow().to_pylist()
    found["calls"] = sum(session.map(lambda i: i * i, range(300)))
    found["hosts"] = sorted(set(session.map(where, range(60), chunksize=1)))
    found["program"] = session.program(driver, partitions=4).result(60)
print(json.dumps(found))
"""


def test_everyday_work(bed: Bed, tmp_path: Path) -> None:
    """A load, a shuffle, COPY TO, Python calls, a program; and what came over the network."""
    rows = 1_000_000
    found = json.loads(bed.run(0, _EVERYDAY, bed.address(1), str(tmp_path)))
    assert sum(range(rows - 97, rows)) == found["shuffled"]
    assert [{"n": rows}] == found["copied"]
    assert sum(i * i for i in range(300)) == found["calls"]
    assert [f"host-{i}" for i in range(len(bed))] == found["hosts"]
    assert sum(range(rows)) == found["program"]
    read = found["received"][1]
    assert set(read) <= {f"host-{i}" for i in range(len(bed))}
    assert 0 < sum(read.values()) < rows * 16
    assert "network KB (from)" in found["explained"]


# Asks until a file is there; then once more, and waits for all replicas to be whole.
_UNTIL_TOLD = """
import json, sys, threading, time, minishark, pyarrow as pa
from pathlib import Path
from minishark.errors import MinisharkError

address, told, rows = sys.argv[1], Path(sys.argv[2]), 40_000
group = "SELECT k, sum(x) AS s FROM t GROUP BY k"
queries = {
    "SELECT 42 AS n": 42,
    f"SELECT sum(s)::BIGINT AS n FROM ({group})": sum(range(rows)),
    "SELECT count(*) AS n FROM t a JOIN t b ON a.x = b.x + 1": rows - 1,
}
right, wrong, failed, longest, over = 0, [], [], 0.0, threading.Event()
with minishark.connect(address, single_task_rows=0) as session:

    def watch():
        # The longest time for which a partition has lacked a replica.
        global longest
        whole = time.monotonic()
        while not over.wait(0.1):
            if not session.catalog.list_tables()[0].healing:
                whole = time.monotonic()
            longest = max(longest, time.monotonic() - whole)

    def ask():
        global right
        for sql, expected in queries.items():
            try:
                found = session.sql(sql).to_arrow().to_pylist()[0]["n"]
            except MinisharkError as error:
                failed.append(f"{sql}: {type(error).__name__}: {error}")
                time.sleep(0.1)
            else:
                right += found == expected
                wrong.extend([(sql, found)] if found != expected else [])

    table = pa.table({"k": [i % 8 for i in range(rows)], "x": range(rows)})
    session.create_table("t", table, partition_by="k", partitions=6, replicas=2)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    print("ready", flush=True)
    while not told.exists():
        ask()
    before = len(failed)
    ask()
    began = time.monotonic()
    while session.catalog.list_tables()[0].healing and time.monotonic() < began + 15:
        time.sleep(0.1)
    healing = session.catalog.list_tables()[0].healing
    over.set()
    watching.join()
    after = {"failed_after": len(failed) - before, "healing": healing, "longest": longest}
    print(json.dumps({"right": right, "wrong": wrong, "failed": failed} | after), flush=True)
"""


class _Asking:
    """A session on a host that asks all the time, while a test does harm."""

    def __init__(self, bed: Bed, host: int, told: Path) -> None:
        self._told = told
        command = (sys.executable, "-u", "-c", _UNTIL_TOLD, bed.address(0), str(told))
        self._program = bed.spawn(host, *command)
        assert self._program.stdout is not None
        assert self._program.stdout.readline() == "ready\n"

    def figures(self) -> dict[str, Any]:
        """End it: what it has found."""
        self._told.touch()
        assert self._program.stdout is not None
        *before, last = self._program.stdout.read().splitlines()
        assert last.startswith("{"), "\n".join([*before, last])
        found: dict[str, Any] = json.loads(last)
        return found


@pytest.mark.parametrize(
    "cut",
    [pytest.param((2, None), id="session"), pytest.param((0, 1), id="link"),
     pytest.param((0, None), id="head")],
)  # fmt: skip
def test_a_cut_network_heals(tmp_path: Path, cut: tuple[int, int | None]) -> None:
    """No answer is wrong while hosts are apart, and all are right when they are not any more.

    Apart for longer than the lease of a session: its tables are there afterwards.
    """
    with hosts(3) as bed:
        bed.start_nodes(_MEMORY)
        asking = _Asking(bed, 2, tmp_path / "told")
        time.sleep(1)
        bed.cut(*cut)
        time.sleep(18)
        bed.heal()
        time.sleep(2)
        found = asking.figures()
    assert ([], 0, 0) == (found["wrong"], found["failed_after"], found["healing"]), found
    assert found["right"] > 10


_SERVED = """
import sys, time, numpy as np, pyarrow as pa
from pathlib import Path
from minishark.cluster.keys import load_keys
from minishark.cluster.service import Service
from minishark.worker.paths import StorePaths
from minishark.worker.store import Store

paths = StorePaths(Path("/dev/shm/files"), Path("/run/tmp/files"))
for path in (paths.memory, paths.disk):
    path.mkdir(mode=0o700)
paths.make("q", ("far",))
table = pa.table({"x": np.random.default_rng(0).integers(0, 1 << 62, 5_000_000)})
Store(paths, "far").write("q/0.arrow", table.schema, [table.to_batches(1 << 17)])
service = Service(sys.argv[1], paths, "far", keys=load_keys(sys.argv[2]))
service.start()
print("ready", service.endpoint, flush=True)
time.sleep(600)
"""

_FETCHES = """
import sys, time
from minishark.cluster.connections import Connections
from minishark.cluster.keys import load_keys
from minishark.cluster.remote_files import RemoteFiles
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.store import InputMissingError

files = RemoteFiles(Connections(load_keys(sys.argv[2])))
source = StoreLocation("far", "far", "", "", sys.argv[1])
print("ready", flush=True)
while True:
    began = time.monotonic()
    (found,) = files.fetch([(source, FileSlice("q/0.arrow", ("far",)))])
    failed = isinstance(found, InputMissingError)
    count = sum(files.take_received().values())
    print(int(failed), count, time.monotonic() - began, flush=True)
    time.sleep(0.5)
    if not failed:
        break
"""


def test_a_large_transfer_is_cut_half_way() -> None:
    """It counts as failed some seconds later; when the network has healed, all comes."""
    with hosts(2, rate="80mbit") as bed:
        keys = str(bed.keys)
        address = f"tcp://{bed.ip(0)}:7300"
        serving = bed.spawn(0, sys.executable, "-c", _SERVED, address, keys)
        assert serving.stdout is not None
        ready, service = serving.stdout.readline().split()
        assert ready == "ready"
        reader = bed.spawn(1, sys.executable, "-c", _FETCHES, service, keys)
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        before = bed.bytes_sent(0)
        assert until(lambda: bed.bytes_sent(0) - before > 8_000_000)
        bed.cut(0, 1)
        failed, count, seconds = reader.stdout.readline().split()
        assert "1" == failed
        assert 0 < int(count) < 40_000_000
        assert float(seconds) < 20
        bed.heal()
        results = [line.split() for line in reader.stdout]
        assert "0" == results[-1][0]
        assert int(results[-1][1]) > 40_000_000


def test_hosts_are_cut_off_one_after_the_other(tmp_path: Path) -> None:
    """No answer is wrong or lost, and what they store is copied before they come back."""
    chance = random.Random(19)
    with hosts(4) as bed:
        for host in range(3):
            bed.start_node(host, _MEMORY)
        asking = _Asking(bed, 3, tmp_path / "told")
        for _ in range(_CUTS):
            time.sleep(2)
            host = chance.randrange(3)
            bed.cut(host)
            time.sleep(chance.uniform(4, 6))  # longer than nodes may be silent
            bed.heal(host)
        time.sleep(2)
        found = asking.figures()
    print(f"\n{found}")  # noqa: T201
    assert ([], [], 0) == (found["wrong"], found["failed"], found["healing"]), found
    assert found["right"] > 3 * _CUTS
    assert 0 < found["longest"] < _WHOLE_S


# Asks until a file is there: the answers, and the longest time that one took.
_ONLY_REPLICAS = """
import json, sys, time, minishark, pyarrow as pa
from pathlib import Path
from minishark.errors import MinisharkError

found, longest = [], 0.0
with minishark.connect(sys.argv[1], single_task_rows=0) as session:
    session.create_table("t", pa.table({"x": range(1000)}), partitions=6, replicas=1)
    print("ready", flush=True)
    while not Path(sys.argv[2]).exists():
        began = time.monotonic()
        try:
            found += session.sql("SELECT sum(x)::BIGINT AS n FROM t").to_arrow()["n"].to_pylist()
        except MinisharkError as error:
            found.append(f"{type(error).__name__}: {error}")
        longest = max(longest, time.monotonic() - began)
    print(json.dumps({"found": sorted(set(map(str, found))), "longest": longest}), flush=True)
"""


def test_a_node_with_the_only_replicas_is_cut_off(tmp_path: Path) -> None:
    """Statements wait until it is back: rows that came from nowhere else are not lost yet."""
    told = tmp_path / "told"
    with hosts(3) as bed:
        bed.start_nodes(_MEMORY)
        command = (sys.executable, "-u", "-c", _ONLY_REPLICAS, bed.address(0), str(told))
        program = bed.spawn(2, *command)
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        bed.cut(1)
        time.sleep(14)
        bed.heal()
        time.sleep(3)
        told.touch()
        last = program.stdout.read().splitlines()[-1]
    found = json.loads(last)
    assert [str(sum(range(1000)))] == found["found"], found
    assert found["longest"] > 10


def test_all_nodes_are_started_again(tmp_path: Path) -> None:
    """A session whose cluster was away finds it again; what it has lost, it says."""
    with hosts(3) as bed:
        for host in (0, 1):
            bed.start_node(host, _MEMORY)
        asking = _Asking(bed, 2, tmp_path / "told")
        for host in (0, 1):
            bed.kill(host)
        for host in (0, 1):
            bed.start_node(host, _MEMORY)
        time.sleep(5)
        found = asking.figures()
    assert [] == found["wrong"]
    assert 2 == found["failed_after"], "two of the three queries read what is lost"
    lost = [text for text in found["failed"] if "PartitionsLostError" in text]
    assert lost[-2:] == found["failed"][-2:]
    assert not any(text.startswith("SELECT 42") for text in lost), "it reads no table"


def test_chaos(tmp_path: Path) -> None:
    """Hosts are cut off, slowed and lose their power, one at a time: no answer is wrong or lost."""
    chance = random.Random(7)
    with hosts(4) as bed:
        for host in range(3):
            bed.start_node(host, _MEMORY)
        asking = _Asking(bed, 3, tmp_path / "told")
        for _ in range(_FAULTS):
            time.sleep(2)
            host = chance.randrange(3)
            match chance.choice(("cut", "link", "power", "slow")):
                case "cut":
                    bed.cut(host)
                    time.sleep(chance.uniform(0.5, 6))
                    bed.heal()
                case "link":
                    bed.cut(host, (host + 1) % 3)
                    time.sleep(chance.uniform(0.5, 6))
                    bed.heal()
                case "power":
                    bed.kill(host)
                    time.sleep(chance.uniform(0, 4))
                    bed.start_node(host, _MEMORY)
                    time.sleep(6)  # until its replicas are whole again
                case "slow":
                    bed.set_rate(host, "20mbit")
        time.sleep(2)
        found = asking.figures()
    print(f"\n{found}")  # noqa: T201
    assert ([], 0, 0) == (found["wrong"], found["failed_after"], found["healing"]), found
    assert [] == found["failed"]
    assert found["right"] > 3 * _FAULTS
