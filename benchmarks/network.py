"""What a network costs: fetches, broadcasts and loads between hosts, beside plain TCP on the link.

    python benchmarks/network.py [--rate 1gbit] [--delay-ms 0] [--loss 0] [--megabytes 200]
    python benchmarks/network.py --only load --rate 10gbit [--scale 1] [--cores 0.6] [--data FOLDER]

Hosts are namespaces of this machine (`tests/hosts/bed.py`): root, iproute2 and nftables are needed.

`fetch` reads what the tasks of a shuffle read: many parts of several files, from one host. Its rows
are random numbers, of which nothing can be compressed, or the columns of a fact table (keys, prices
in cents, dates, few texts). `broadcast` gives one file to all hosts at a time. The link is what one
TCP connection carries in the same run, and the bytes are counted on the wire. `load` partitions
TPC-H's tables by hash, with two replicas, over three hosts with an executor each and on one host
with three; all share this machine's cores, so their CPU time tells more than the clock. With
`--cores`, each host has so many of its own, and one executor: three machines beside one of them.
That needs three times as many cores, which nobody else uses.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil

from minishark_lab.harness.parameters import Count, NotNegative, Positive
from minishark_lab.harness.script import Options, described, run_script

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from minishark_lab.tpch.data import tpch_folder
from tests.hosts.bed import Bed, hosts

_PORT = 7200
_LOADS = 4

_TCP_SERVER = """
import socket, sys
server = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("node ready", flush=True)
peer, _ = server.accept()
data = bytearray(1 << 20)
for _ in range(int(sys.argv[2])):
    peer.sendall(data)
peer.close()
"""

_TCP_CLIENT = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])))
data, count, began = bytearray(1 << 20), 0, time.perf_counter()
while got := peer.recv_into(data):
    count += got
print(count, time.perf_counter() - began)
"""

_SERVICE = """
import sys, time, numpy as np, pyarrow as pa
from pathlib import Path
from minishark.cluster.keys import load_keys
from minishark.cluster.service import Service
from minishark.worker.paths import StorePaths
from minishark.worker.store import Store

name, address, keys, megabytes, kind = sys.argv[1:]
paths = StorePaths(Path(f"/dev/shm/{address[-4:]}"), Path(f"/run/tmp/{address[-4:]}"))
for path in (paths.memory, paths.disk):
    path.mkdir(mode=0o700)
paths.make("q", (name,))
random = np.random.default_rng(0)
rows = int(float(megabytes) * 1e6 / 8 / (4 if kind == "random" else 4.5))
for file in range(8):
    count = rows // 8
    if kind == "random":
        columns = {f"c{i}": random.integers(0, 1 << 62, count) for i in range(4)}
    else:
        columns = {
            "key": np.sort(random.integers(0, 6_000_000, count)),
            "price": random.integers(90_000, 10_000_000, count),
            "date": random.integers(8_000, 10_600, count).astype("int32"),
            "quantity": random.integers(1, 51, count).astype("int32"),
            "mode": np.array(["AIR", "MAIL", "RAIL", "SHIP"])[random.integers(0, 4, count)],
        }
    table = pa.table(columns)
    Store(paths, name).write(f"q/{file}.arrow", table.schema, [table.to_batches(count // 16 + 1)])
service = Service(address, paths, name, keys=load_keys(keys))
service.start()
print("node", service.endpoint, flush=True)
time.sleep(3600)
"""

_FETCH = """
import sys, time
from minishark.cluster.connections import Connections
from minishark.cluster.keys import load_keys
from minishark.cluster.remote_files import RemoteFiles
from minishark.worker.protocol import FileSlice, StoreLocation

service, keys = sys.argv[1:]
files = RemoteFiles(Connections(load_keys(keys)))
source = StoreLocation("far", "far", "", "", service)
parts = [FileSlice(f"q/{i}.arrow", ("far",), j, j + 1) for i in range(8) for j in range(16)]
for _ in range(3):
    began, cpu = time.perf_counter(), time.process_time()
    tables = files.fetch([(source, part) for part in parts])
    elapsed = time.perf_counter() - began
    count, received = sum(table.nbytes for table in tables), sum(files.take_received().values())
    print(count, received, elapsed, time.process_time() - cpu, flush=True)
"""

_LOAD = """
import sys, time, minishark
from pathlib import Path
from minishark_lab.tpch.data import Silent
from minishark.cli.tpch.tables import load_tables, tpch_tables

tables = tpch_tables(Path(sys.argv[2]))
with minishark.connect(sys.argv[1]) as session:
    for _ in range(int(sys.argv[3])):
        began = time.perf_counter()
        load_tables(session, tables, Silent(), partitions=6, replicas=2, replace=True)
        print(time.perf_counter() - began)
"""

_COPY = """
import sys, time
from pathlib import Path
from minishark.cluster.connections import Connections
from minishark.cluster.keys import load_keys
from minishark.cluster.remote_files import RemoteFiles
from minishark.cluster.service import Service
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import FileSlice, StoreLocation
from minishark.worker.store import Store

service, keys, own, tree, start = sys.argv[1:]
name = f"copy-{time.time_ns()}"
paths = StorePaths(Path("/dev/shm/copies"), Path("/run/tmp/copies"))
for path in (paths.memory, paths.disk):
    path.mkdir(mode=0o700, exist_ok=True)
paths.make("q", (name,))
here = Service(own, paths, name, keys=load_keys(keys))
here.start()
store = Store(paths, name, "here", RemoteFiles(Connections(load_keys(keys))))
known = [StoreLocation("far", "far", "", "", service)]
if tree == "tree":
    known.append(StoreLocation(name, "here", str(paths.memory), str(paths.disk), here.endpoint))
store.meet(known)
time.sleep(max(0, float(start) - time.time()))
for number in range(8):
    store.read((FileSlice(f"q/{number}.arrow", ("far",)),))
print(time.time() - float(start), flush=True)
time.sleep(10)  # others may still read from here
here.stop()
"""


def served(bed: Bed, host: int, code: str, *arguments: str) -> str:
    """Start a server on a host; the second word that it says when it is ready."""
    program = bed.spawn(host, sys.executable, "-u", "-c", code, *arguments)
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line.startswith("node "):
        raise SystemExit(line + program.stdout.read())
    return line.split()[1]


def tcp(bed: Bed, megabytes: int) -> float:
    """The link's bytes per second, as one TCP connection has them."""
    served(bed, 0, _TCP_SERVER, str(_PORT), str(megabytes))
    count, seconds = map(float, bed.run(1, _TCP_CLIENT, bed.ip(0), str(_PORT)).split())
    return count / seconds


def fetch(bed: Bed, kind: str, port: int, megabytes: int, link: float) -> None:
    """Read a shuffle's parts."""
    address = f"tcp://{bed.ip(0)}:{port}"
    service = served(bed, 0, _SERVICE, "far", address, str(bed.keys), str(megabytes), kind)
    for number, line in enumerate(bed.run(1, _FETCH, service, str(bed.keys)).splitlines()):
        count, received, seconds, cpu_s = map(float, line.split())
        rows = (
            f"fetch of {kind} rows, time {number + 1}",
            f"{count / 1e6:.0f} MB in {seconds:.2f} s",
            f"{received / count:.2f} of the bytes on the wire",
            f"{received / seconds / link:.2f} of the link",
            f"{count / seconds / link:.2f} of its bytes' time",
            f"{cpu_s * 1e9 / count:.2f} ns/byte of the reader's CPU",
        )
        print("; ".join(rows), flush=True)


def broadcast(bed: Bed, tree: str, port: int, megabytes: int) -> None:
    """All hosts read the same files."""
    address = f"tcp://{bed.ip(0)}:{port}"
    service = served(bed, 0, _SERVICE, "far", address, str(bed.keys), str(megabytes), "random")
    before = [bed.bytes_sent(i) for i in range(len(bed))]
    start = str(time.time() + 4)

    def read(host: int) -> float:
        own = f"tcp://{bed.ip(host)}:{port}"
        lines = bed.run(host, _COPY, service, str(bed.keys), own, tree, start)
        return float(lines.split()[0])

    with ThreadPoolExecutor(len(bed)) as pool:
        times = list(pool.map(read, range(1, len(bed))))
    sent = [(bed.bytes_sent(i) - b) / 1e6 for i, b in enumerate(before)]
    shown = ", ".join(f"{each:.0f}" for each in sent)
    print(f"broadcast of {megabytes} MB, {tree}: {max(times):.1f} s; MB sent by host: {shown}")


def load(bed: Bed, executors: int, folder: Path) -> tuple[float, float]:
    """Load TPC-H's tables a few times: the median of the times but the first, CPU time of each."""
    nodes = [bed.start_node(i, "--memory-limit=4GiB", executors=executors) for i in range(len(bed))]
    before, sent = _cpu_s(nodes), sum(map(bed.bytes_sent, range(len(bed))))
    lines = bed.run(0, _LOAD, bed.address(0), str(folder), str(_LOADS)).split()
    seconds = statistics.median(map(float, lines[1:]))
    took = {kind: (used - before[kind]) / _LOADS for kind, used in _cpu_s(nodes).items()}
    sent = (sum(map(bed.bytes_sent, range(len(bed)))) - sent) / _LOADS / 1e6
    cpu_s = sum(took.values())
    shown = ", ".join(f"{kind} {used:.2f} s" for kind, used in took.items())
    figures = f"{seconds:.2f} s; CPU {cpu_s:.2f} s: {shown}; {sent:.0f} MB sent"
    print(f"load over {len(bed)} host(s): {figures}", flush=True)
    return seconds, cpu_s


def _cpu_s(nodes: Sequence[subprocess.Popen[str]]) -> dict[str, float]:
    """CPU seconds so far of the processes of nodes, and of their executors."""
    found = {"nodes": 0.0, "executors": 0.0}
    for node in nodes:
        (own,) = psutil.Process(node.pid).children() or [psutil.Process(node.pid)]
        for process in (own, *own.children(recursive=True)):
            times = process.cpu_times()
            found["nodes" if process == own else "executors"] += times.user + times.system
    return found


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(Options):
    rate: str = "1gbit"
    delay_ms: NotNegative = 0.0
    loss: NotNegative = 0.0
    megabytes: Count = 200
    hosts: Annotated[Count, described("for the broadcast")] = 6
    scale: Annotated[Positive, described("of TPC-H, for the load")] = 1.0
    data: Annotated[str, described("where TPC-H is, or is to be generated")] = ""
    cores: Annotated[Positive | None, described("of each host, for the load")] = None
    only: Annotated[str | None, described(choices=("fetch", "broadcast", "load"))] = None


def main(options: NetworkOptions) -> None:
    """Run all."""
    shape = {"rate": options.rate, "delay_ms": options.delay_ms, "loss": options.loss}
    if options.only in (None, "fetch"):
        with hosts(2, **shape) as bed:
            link = tcp(bed, options.megabytes)
            print(f"plain TCP: {link / 1e6:.1f} MB/s", flush=True)
            for number, kind in enumerate(("random", "fact")):
                fetch(bed, kind, 7300 + number, options.megabytes, link)
    if options.only in (None, "load"):
        folder = tpch_folder(options.scale, options.data)
        found = []
        for count in (1, 3):
            with hosts(count, **shape, cores=options.cores) as bed:
                found.append(load(bed, 1 if options.cores else 3 // count, folder))
        (one_s, one_cpu_s), (three_s, three_cpu_s) = found
        ratios = f"{three_s / one_s:.2f} by the clock, {three_cpu_s / one_cpu_s:.2f} in CPU time"
        print(f"three hosts / one: {ratios}", flush=True)
    if options.only in (None, "broadcast"):
        with hosts(options.hosts, **shape) as bed:
            for number, tree in enumerate(("one source", "tree")):
                broadcast(bed, tree, 7300 + number, options.megabytes // 10)


if __name__ == "__main__":
    run_script(main, quick={"megabytes": 4, "scale": 0.01, "hosts": 2, "rate": "1gbit"})
