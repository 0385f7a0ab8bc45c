"""What is done twice when a program, its node or the cluster is killed; and what reuse costs.

    python benchmarks/durable.py kills nodes cluster peers dashboards [--kills 50] [--scale 0.1]

`kills`: `durable_program.py` runs on a started cluster of two nodes, is killed by SIGKILL once, at
a moment drawn from the seed, and started again. Measured is the CPU time of nodes, executors, and
all starts of the program. `twice` is what that is more than in a run that nobody disturbs, as a
share of that run: with another start's imports, planning, and reading of what exists. `start_s` is
what these take alone: the program is started again when everything was done; `work_twice` is
`twice` without it. `nodes`: the same program is submitted to a cluster of three nodes, and the node
that runs it is killed. `cluster`: the program keeps outputs in a folder, too, and is killed with
all nodes and executors; a new cluster runs it again. Each kill has a new cluster; all answers are
compared with DuckDB's.

`peers`: `durable_peers.py` is the same work, or a part of it, on engines that are installed: pip
install pyspark (and Java 17) "dask[dataframe]" distributed "ray[data]". Its process is killed, what
it has started is given time to end, and it is started again. Answers are not compared.

`dashboards`: a user opens `--boards` dashboards of ten queries each over TPC-H tables in stages; a
second one, in a session of his own, opens the same. Times are those of `collect`.

Moments are CPU time, not wall time: a busy machine kills no later.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import itertools
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from durable_program import scored

import minishark
from minishark.cli.tpch.queries import load_queries, parse_selection
from minishark.cli.tpch.tables import TABLES, find_tables
from minishark.cluster.jobs.client import new_terms, program_files
from minishark.cluster.jobs.records import JobProgram, Status
from minishark.cluster.jobs.visit import jobs_of
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.query.answers import differences
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import TpchOptions, described, run_script, run_sections
from minishark_lab.tpch.data import tpch_folder
from minishark_lab.tpch.reference import Reference

_PROGRAM = Path(__file__).with_name("durable_program.py")
_PEERS_PROGRAM = Path(__file__).with_name("durable_peers.py")
_PEERS = {"pyspark": "pyspark", "dask": "distributed", "ray": "ray", "ray-checkpoint": "ray"}
_PEER_ENDS_S = 20.0
_LOOK_S = 0.05
_LIMIT_S = 600.0
_PLAIN_EVERY = 10  # after so many kills, one run that nobody disturbs
_MEMORY_BYTES = 3 << 30
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class DurableOptions(TpchOptions):
    """The options of the script."""

    sections: Annotated[
        tuple[str, ...],
        described(choices=("kills", "nodes", "cluster", "peers", "dashboards"), positional=True),
    ] = ()
    scale: Annotated[float, described("TPC-H's scale factor")] = 0.1
    kills: Annotated[Count, described("each of another run")] = 50
    minutes: Annotated[float, described("after which no other run begins")] = math.inf
    seed: int = 1
    boards: Annotated[Count, described("of ten queries each")] = 200

    @property
    def folder(self) -> Path:
        """The folder of TPC-H's tables."""
        return tpch_folder(self.scale, str(self.data))


# What is measured


def _spent_s(pid: int) -> float:
    """The CPU time of a process and of those that it has started, also of those that have ended.

    In hundredths of a second.
    """
    spent_s = 0.0
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{each.pid}/stat").read_text()
                spent_s += sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS
    return spent_s


@dataclass(slots=True)
class _Meter:
    """The CPU time of a cluster's nodes since it was made, and of programs that have ended."""

    record: ClusterRecord
    ended_s: float = 0.0
    _before: dict[int, float] = field(default_factory=dict)
    _last: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._before = {node.pid: _spent_s(node.pid) for node in self.record.nodes}

    def spent_s(self) -> float:
        """What was spent so far; of a node that is dead, up to the last look."""
        for pid in self._before:
            self._last[pid] = max(self._last.get(pid, 0.0), _spent_s(pid))
        return sum(self._last.values()) - sum(self._before.values()) + self.ended_s


@dataclass(frozen=True, slots=True)
class _Checked:
    """Compares what the program has left with DuckDB's answers."""

    expected: Mapping[str, pa.Table]

    @classmethod
    def over(cls, folder: Path) -> _Checked:
        """The answers over TPC-H tables in a folder."""
        with Reference(find_tables(folder), 2) as reference:
            queries = load_queries(parse_selection("1-22"))
            answers = {f"{n}.parquet": reference.run(text)[0] for n, text in queries.items()}
            comments, _ = reference.run("SELECT l_orderkey, l_linenumber, l_comment FROM lineitem")
        return cls({**answers, "scores": _sorted(scored(comments))})

    def check(self, out: Path) -> None:
        """Raise if an answer is another one."""
        for name, rows in self.expected.items():
            answer = pq.read_table(out / name)
            if name == "scores":
                assert _sorted(answer).equals(rows.cast(answer.schema)), "the scores are wrong"
            elif problems := differences(rows, answer):
                message = f"{name}: {problems[0]}"
                raise AssertionError(message)


def _sorted(rows: pa.Table) -> pa.Table:
    return rows.sort_by([("l_orderkey", "ascending"), ("l_linenumber", "ascending")])


@contextlib.contextmanager
def _cluster(nodes: int) -> Iterator[ClusterRecord]:
    name = f"durable{os.getpid()}"
    options = StartOptions(name=name, nodes=nodes, memory_limit_bytes=_MEMORY_BYTES)
    try:
        yield start_cluster(options)
    finally:
        stop_cluster(name)


def _kill(record: ClusterRecord) -> None:
    """Kill all nodes, and what they have started."""
    for node in map(psutil.Process, [node.pid for node in record.nodes]):
        for process in (node, *node.children(recursive=True)):
            process.kill()


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run of the program from its first start to its end, on a cluster of its own."""

    data: Path
    checked: _Checked
    kill_at_s: float = math.inf  # after so much CPU time
    spent_s: float = 0.0
    started_again_s: float = 0.0  # the CPU time of another start, when all was done
    is_killed: bool = False

    def of_program(self) -> None:
        """The program is this one's child."""
        with _cluster(2) as record, tempfile.TemporaryDirectory() as out:
            meter = _Meter(record)
            while not self._ends(meter, out):
                pass
            self.spent_s = meter.spent_s()
            self.checked.check(Path(out))
            if self.kill_at_s == math.inf:
                assert self._ends(meter, out), "nobody kills it"
                self.started_again_s = meter.spent_s() - self.spent_s

    def of_cluster(self) -> None:
        """The program, and all that it runs on, is killed, but for a folder of outputs."""
        with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as kept:

            def ends() -> tuple[bool, float]:
                with _cluster(2) as record:
                    meter = _Meter(record)
                    return self._ends(meter, out, kept), meter.spent_s()

            has_ended = False
            while not has_ended:
                has_ended, spent_s = ends()
                self.spent_s += spent_s
            self.checked.check(Path(out))
            if self.kill_at_s == math.inf:
                _, self.started_again_s = ends()

    def _ends(self, meter: _Meter, out: str, kept: str = "") -> bool:
        """Start the program; whether it has come to its end, or was killed.

        With a folder of outputs, all of its cluster is.
        """
        address = [meter.record.address, *filter(None, [kept])]
        arguments = [sys.executable, str(_PROGRAM), str(self.data), out, *address]
        with subprocess.Popen(arguments) as program:
            deadline = time.monotonic() + _LIMIT_S
            while True:
                pid, status, usage = os.wait4(program.pid, os.WNOHANG)
                if pid:
                    program.returncode = os.waitstatus_to_exitcode(status)
                    meter.ended_s += usage.ru_utime + usage.ru_stime
                    break
                if time.monotonic() > deadline:
                    program.kill()
                    raise TimeoutError
                due = not self.is_killed and self.kill_at_s < math.inf
                if due and meter.spent_s() + _spent_s(program.pid) >= self.kill_at_s:
                    self.is_killed = True
                    if kept:
                        _kill(meter.record)
                    program.kill()
                time.sleep(_LOOK_S)
        assert program.returncode in (0, -signal.SIGKILL), program.returncode
        return program.returncode == 0

    def of_job(self) -> None:
        """The program is submitted; the node that runs it is killed."""
        with _cluster(3) as record, tempfile.TemporaryDirectory() as out:
            meter = _Meter(record)
            with jobs_of(record.nodes[-1].service, None) as jobs:
                script, files = program_files(_PROGRAM, None)
                program = JobProgram(script=script, files=files, arguments=(str(self.data), out))
                state = jobs.submit(new_terms("etl", "etl"), program)
                deadline = time.monotonic() + _LIMIT_S
                while True:
                    spent_s = meter.spent_s()
                    if not self.is_killed and spent_s >= self.kill_at_s:
                        node = jobs.patiently("etl").node
                        os.kill(next(n.pid for n in record.nodes if n.name == node), signal.SIGKILL)
                        self.is_killed = True
                    state = jobs.patiently("etl")
                    if state.is_over:
                        break
                    if time.monotonic() > deadline:
                        raise TimeoutError
                    time.sleep(_LOOK_S)
                self.spent_s = meter.spent_s()
                assert state.status is Status.DONE, state
                self.checked.check(Path(out))
                if self.kill_at_s == math.inf:
                    jobs.submit(new_terms("again", "again"), program)
                    while not (state := jobs.patiently("again")).is_over:
                        time.sleep(_LOOK_S)
                    assert state.status is Status.DONE, state
                    self.started_again_s = meter.spent_s() - self.spent_s


def _killed(options: DurableOptions, kind: str) -> Iterator[dict[str, Any]]:
    """Runs with a kill each, some without one between them, and what the former took more."""
    checked = _Checked.over(options.folder)
    rng = random.Random(f"{kind} {options.seed}")
    plain, killed, again = list[float](), list[float](), list[float]()

    def run(kill_at_s: float) -> _Run:
        made = _Run(data=options.folder, checked=checked, kill_at_s=kill_at_s)
        {"kills": made.of_program, "nodes": made.of_job, "cluster": made.of_cluster}[kind]()
        return made

    package = Path(minishark.__file__).parent
    compileall.compile_dir(package, quiet=2)  # as any earlier start does
    ends_s = time.monotonic() + 60 * options.minutes
    for number in range(options.kills):
        if time.monotonic() > ends_s:
            break
        if number % _PLAIN_EVERY == 0:
            undisturbed = run(math.inf)
            plain.append(undisturbed.spent_s)
            again.append(undisturbed.started_again_s)
        share = rng.random()
        made = run(share * statistics.median(plain))
        if made.is_killed:  # else it had ended by then
            killed.append(made.spent_s)
        print(f"{number} {share:.2f} {made.spent_s:.2f} {plain[-1]:.2f}", file=sys.stderr)
    usual_s = statistics.median(plain)
    twice = sorted(spent_s / usual_s - 1.0 for spent_s in killed)
    start_s = statistics.median(again)
    yield {
        "kills": len(killed),
        "undisturbed_s": round(usual_s, 2),
        "undisturbed_from_to_s": [round(min(plain), 2), round(max(plain), 2)],
        "start_s": round(start_s, 2),
    } | {
        f"{name}_{figure}": round(value - less, 3)
        for name, less in (("twice", 0.0), ("work_twice", start_s / usual_s))
        for figure, value in (
            ("median", statistics.median(twice)),
            ("p90", twice[int(0.9 * len(twice))]),
            ("worst", twice[-1]),
        )
    }


# Peers


def _own_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _of_peer(arguments: list[str], kill_at_s: float) -> tuple[float, bool]:
    """The CPU time of a program and all that it starts, and whether it was killed."""
    spent_s: dict[psutil.Process, float] = {}  # by process, at the last look
    with subprocess.Popen(arguments) as program:
        root = psutil.Process(program.pid)
        deadline = time.monotonic() + _LIMIT_S
        is_killed = False
        while program.poll() is None:
            with contextlib.suppress(psutil.Error):
                for process in (root, *root.children(recursive=True)):
                    spent_s[process] = _own_s(process)
            if not is_killed and sum(spent_s.values()) >= kill_at_s:
                is_killed = True
                program.kill()
            if time.monotonic() > deadline:
                program.kill()
                raise TimeoutError
            time.sleep(_LOOK_S)
    _, alive = psutil.wait_procs(list(spent_s), timeout=_PEER_ENDS_S)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            spent_s[process] = _own_s(process)
            process.kill()
    assert is_killed or program.returncode == 0, program.returncode
    return sum(spent_s.values()), is_killed


def _identify(folder: Path, out: Path) -> None:
    """Write lineitem's comments with a column that identifies rows."""
    with duckdb.connect(config={"threads": 2}) as con:
        con.execute(
            "COPY (SELECT l_orderkey * 8 + l_linenumber AS id, l_orderkey, l_linenumber, l_comment"
            f" FROM '{folder}/lineitem/*.parquet') TO '{out}' (FORMAT parquet, PER_THREAD_OUTPUT)"
        )


def _peers(options: DurableOptions) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as data:
        for table in options.folder.iterdir():
            (Path(data) / table.name).symlink_to(table.resolve())
        _identify(options.folder, Path(data) / "identified")
        for engine, module in _PEERS.items():
            if importlib.util.find_spec(module) is None:
                continue
            rng = random.Random(f"peers {options.seed}")
            usual_s, twice = 0.0, list[float]()
            for number in range(options.kills + 1):
                with tempfile.TemporaryDirectory() as out:
                    arguments = [sys.executable, str(_PEERS_PROGRAM), engine, data, out]
                    kill_at_s = rng.random() * usual_s if number else math.inf
                    spent_s, is_killed = _of_peer(arguments, kill_at_s)
                    if is_killed:
                        spent_s += _of_peer(arguments, math.inf)[0]
                        twice.append(spent_s / usual_s - 1.0)
                    elif not number:
                        usual_s = spent_s
            yield {
                "engine": engine,
                "kills": len(twice),
                "undisturbed_s": round(usual_s, 2),
                "twice_median": round(statistics.median(twice), 3),
                "twice_worst": round(max(twice), 3),
            }


# Dashboards

_BOARD = (
    (
        "SELECT l_returnflag, sum(l_quantity) q, count(*) n FROM lineitem"
        " WHERE l_shipdate <= DATE '1998-09-02' - INTERVAL {0} DAY GROUP BY ALL ORDER BY ALL"
    ),
    (
        "SELECT o_orderpriority, count(*) n FROM orders"
        " WHERE o_orderdate >= DATE '1993-01-01' + INTERVAL {0} DAY GROUP BY ALL ORDER BY ALL"
    ),
    (
        "SELECT c_mktsegment, sum(o_totalprice) p FROM customer"
        " JOIN orders ON c_custkey = o_custkey"
        " WHERE o_orderdate < DATE '1995-01-01' + INTERVAL {0} DAY GROUP BY ALL ORDER BY ALL"
    ),
    (
        "SELECT sum(l_extendedprice * l_discount) r FROM lineitem WHERE l_quantity < 24"
        " AND l_shipdate >= DATE '1994-01-01' + INTERVAL {0} DAY"
    ),
    (
        "SELECT n_name, count(*) n FROM supplier JOIN nation ON s_nationkey = n_nationkey"
        " WHERE s_suppkey % 200 <> {0} GROUP BY n_name ORDER BY ALL"
    ),
    (
        "SELECT p_brand, min(p_retailprice) p FROM part WHERE p_size + {0} > 20"
        " GROUP BY p_brand ORDER BY ALL LIMIT 10"
    ),
    (
        "SELECT o_custkey, sum(o_totalprice) p FROM orders WHERE o_custkey % 200 = {0}"
        " GROUP BY o_custkey ORDER BY p DESC, o_custkey LIMIT 20"
    ),
    (
        "SELECT l_shipmode, count(*) n FROM orders JOIN lineitem ON o_orderkey = l_orderkey"
        " WHERE l_receiptdate >= DATE '1994-01-01' + INTERVAL {0} DAY"
        " AND o_orderpriority = '1-URGENT' GROUP BY l_shipmode ORDER BY ALL"
    ),
    (
        "SELECT ps_suppkey, sum(ps_supplycost * ps_availqty) v FROM partsupp"
        " WHERE ps_partkey % 200 = {0} GROUP BY ps_suppkey ORDER BY v DESC, ps_suppkey LIMIT 5"
    ),
    (
        "SELECT n_name, sum(l_extendedprice * (1 - l_discount)) r FROM customer"
        " JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey"
        " JOIN nation ON c_nationkey = n_nationkey"
        " WHERE o_orderdate < DATE '1992-03-01' + INTERVAL {0} DAY GROUP BY n_name ORDER BY ALL"
    ),
)


def _opened(record: ClusterRecord, options: DurableOptions) -> Iterator[tuple[float, float, int]]:
    """What each query of a user's dashboards takes.

    In seconds, in CPU seconds of this process, and in tasks.
    """
    with minishark.connect(
        record.address, reuse="cluster", single_task_rows=0, prints=False
    ) as session:
        tables = find_tables(options.folder)
        for name, key in TABLES.items():
            session.create_table(name, tables[name], partition_by=key, replicas=1)
        session.sql("SELECT 1").collect()
        for board, text in itertools.product(range(options.boards), _BOARD):
            frame = session.sql(text.format(board))
            began_s, cpu_s = time.perf_counter(), time.process_time()
            frame.collect()
            taken_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
            yield taken_s, cpu_s, frame.metrics().tasks


def _dashboards(options: DurableOptions) -> Iterator[dict[str, Any]]:
    with _cluster(2) as record:
        for user in ("first", "second"):
            meter = _Meter(record)
            rows = [*_opened(record, options)]
            times = sorted(seconds * 1e3 for seconds, _, _ in rows)
            yield {
                "user": user,
                "queries": len(rows),
                "median_ms": round(statistics.median(times), 2),
                "p95_ms": round(times[int(0.95 * len(times))], 2),
                "front_cpu_ms": round(statistics.mean(cpu for _, cpu, _ in rows) * 1e3, 2),
                "tasks": sum(tasks for _, _, tasks in rows),
                "nodes_cpu_s": round(meter.spent_s(), 1),
            }


_SECTIONS = {
    "kills": lambda options: _killed(options, "kills"),
    "nodes": lambda options: _killed(options, "nodes"),
    "cluster": lambda options: _killed(options, "cluster"),
    "peers": _peers,
    "dashboards": _dashboards,
}


def main(options: DurableOptions) -> None:
    """Measure the sections that are named, or all."""
    run_sections(_SECTIONS, options.sections, options)


if __name__ == "__main__":
    run_script(main, quick={"scale": 0.01, "kills": 2, "boards": 2})
