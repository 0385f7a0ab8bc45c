"""Outputs that outlive the session that computed them, on a running cluster."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import program

import minishark
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.errors import DataError, OptionError
from minishark.session.session import Session

ROWS = 120_000
GROUPS = "SELECT g, count(*) n, sum(k) s FROM t GROUP BY g ORDER BY g"
WIDE = "SELECT a.k, a.s, b.g FROM t a JOIN t b ON a.k = b.k + 1"
ASKED = f"SELECT count(*) n, sum(k) s, max(s) m FROM ({WIDE})"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRecord]:
    """A cluster of two nodes with one executor each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield start_cluster(StartOptions(name="reusing", nodes=2))
        stop_cluster("reusing")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in a file that is old enough to be told by its times."""
    path = tmp_path_factory.mktemp("data") / "t.parquet"
    numbers = list(range(ROWS))
    rows = {"k": numbers, "g": [i % 7 for i in numbers], "s": [f"{i:040}" for i in numbers]}
    pq.write_table(pa.table(rows), path)
    time.sleep(2.1)
    return path


def connected(record: ClusterRecord, reuse: str = "cluster") -> Session:
    """A session that runs everything in stages."""
    return minishark.connect(record.address, single_task_rows=0, reuse=reuse, prints=False)


def await_nodes(record: ClusterRecord, count: int) -> None:
    """Wait until sessions know of no other nodes than so many."""
    deadline = time.monotonic() + 30.0
    with connected(record) as session:
        while len(session.nodes()) != count:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def asked(session: Session, sql: str) -> tuple[list[Any], int]:
    """An answer, and how many tasks it took."""
    profile = session.sql(sql).profile()
    return [tuple(row) for row in session.sql(sql).collect()], profile.metrics.tasks


def outputs(record: ClusterRecord) -> list[Path]:
    """The files of outputs on the nodes."""
    roots = [Path(folder, node.name) for node in record.nodes for folder in node.folders]
    return [path for root in roots for path in root.glob("outputs/*.arrow")]


def forget(record: ClusterRecord) -> None:
    """Have no outputs any more."""
    for path in outputs(record):
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("loaded", [False, True])
def test_another_session_finds_what_one_has_computed(
    running: ClusterRecord, file: Path, loaded: bool
) -> None:
    """Over files, and over tables that both have loaded from them. EXPLAIN tells of it before."""
    table = "t" if loaded else f"'{file}'"
    found, told = [], list[str]()
    for reuse in ("cluster", "cluster", "off"):
        with connected(running, reuse) as session:
            if loaded:
                session.read.parquet(str(file)).write.save_as_table("t")
                session.create_table("u", file, partitions=2)
                table = "u"
            told.append(session._runtime.explain(ASKED.replace(" t ", f" {table} "), mode="stages"))
            found.append(
                [asked(session, sql.replace(" t ", f" {table} ")) for sql in (GROUPS, ASKED)]
            )
            time.sleep(0.3)  # until homes were told
    first, second, plain = found
    assert [rows for rows, _ in plain] == [rows for rows, _ in first]
    assert [rows for rows, _ in plain] == [rows for rows, _ in second]
    assert [0, 0] == [tasks for _, tasks in second]
    assert [False, True] == ["exists: " in text or "exist: " in text for text in told[:2]]


def test_a_session_that_does_not_begin_leaves_nothing(
    running: ClusterRecord, tmp_path: Path
) -> None:
    """Neither threads, nor a session that the cluster keeps alive."""
    (tmp_path / "file").write_text("")
    before = {thread.name for thread in threading.enumerate()}
    address = running.address
    with pytest.raises(DataError):
        minishark.connect(address, reuse="cluster", reuse_folder=tmp_path / "file" / "kept")
    with pytest.raises(OptionError):
        minishark.connect(
            address, reuse="cluster", reuse_folder=tmp_path, warehouse="unknown://lake"
        )
    assert {thread.name for thread in threading.enumerate()} <= before


@pytest.mark.slow
def test_rows_of_a_program_are_known_by_what_they_are(running: ClusterRecord, file: Path) -> None:
    """Equal rows are the same in another session, other rows are not; nor is what has changed."""
    joined = f"SELECT g, sum(t.k * u.k) s FROM '{file}' t JOIN u USING (g) GROUP BY g ORDER BY g"
    answers = []
    for factor, changed in ((1, False), (2, False), (1, False), (1, True)):
        with connected(running) as session:
            rows = [(i, factor * i) for i in range(7)]
            session.create_dataframe(rows, ["g", "k"]).create_or_replace_temp_view("u")
            if changed:
                session.create_table("v", pa.table({"g": list(range(7)), "k": list(range(7))}))
                session.sql("UPDATE v SET k = 2 * k").collect()
                session.table("v").create_or_replace_temp_view("u")
            answers.append(asked(session, joined))
            time.sleep(0.3)  # until homes were told
    sums = [(g, sum(k * g for k in range(g, ROWS, 7))) for g in range(7)]
    doubled = [(g, 2 * s) for g, s in sums]
    assert [sums, doubled, sums, doubled] == [rows for rows, _ in answers]
    assert [True, True, False, True] == [tasks > 0 for _, tasks in answers]


_PROGRAM = """
import sys, time, minishark

def slow(x: int) -> int:
    return x + len(str(time.altzone * 0))

session = minishark.connect(sys.argv[1], single_task_rows=0, reuse="cluster", prints=False)
session.udf.register("slow", slow, "BIGINT", ["BIGINT"])
session.create_table("u", sys.argv[2], partitions=4)
session.create_dataframe([(i, f"group {i}") for i in range(7)], ["g", "name"]).create_temp_view("n")
for number in range(3):
    sql = f"SELECT name, sum(slow(k)) + {number} s FROM u JOIN n USING (g) GROUP BY name"
    profile = session.sql(sql).profile()
    print(number, profile.metrics.tasks, flush=True)
if sys.argv[3:]:
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_program_that_was_killed_goes_on_where_it_was(running: ClusterRecord, file: Path) -> None:
    """Its second run finds what the first has computed; so does a third."""
    arguments = ("-c", _PROGRAM, running.address, str(file))
    with program(*arguments, "wait") as started:
        lines = [started.process.stdout.readline().split() for _ in range(3)]
        time.sleep(0.5)
        started.process.kill()
        started.process.wait(30)
    assert int(lines[0][1]) > 0
    with program(*arguments) as again:
        out, _ = again.process.communicate(timeout=120)
    assert ["0", "0", "0"] == [line.split()[1] for line in out.splitlines()]


_CALLING = """
import sys, time, minishark

LOG = sys.argv[3]

def slow(rows):
    time.sleep(0.02)
    if 50_500 in rows["k"].to_pylist():
        raise ValueError("a bad row")
    with open(LOG, "a") as log:
        log.write(f"{rows['k'][0]}\\n")
    return rows.select(["k"])

with minishark.connect(sys.argv[1], reuse="cluster", prints=False) as session:
    rows = session.read.parquet(sys.argv[2])
    kept = rows.map_batches(slow, "k BIGINT", batch_rows=1_000, on_error="quarantine")
    print(kept.count(), kept.rejected.count(), kept.rejected.select("error").first()[0])
"""


@pytest.mark.slow
def test_calls_that_were_made_when_a_program_was_killed_are_not_made_again(
    running: ClusterRecord, file: Path, tmp_path: Path
) -> None:
    """But for one that was being made then; what had failed is in the table of rejected rows."""
    log = tmp_path / "calls"

    def calls() -> list[str]:
        return log.read_text().split() if log.exists() else []

    arguments = ("-c", _CALLING, running.address, str(file), str(log))
    with program(*arguments) as started:
        deadline = time.monotonic() + 60
        while len(calls()) < 40 and time.monotonic() < deadline:
            time.sleep(0.02)
        started.process.kill()
        started.process.wait(30)
    time.sleep(1.0)
    before = calls()
    assert 40 <= len(before) < 119
    with program(*arguments) as again:
        out, _ = again.process.communicate(timeout=120)
    assert out.split("\n")[0] == "119000 1000 a bad row"
    assert {str(number) for number in range(0, ROWS, 1_000)} - {"50000"} == {*calls()}
    assert len(calls()) <= 119 + 1
    with program(*arguments) as third:
        out, _ = third.process.communicate(timeout=120)
    assert out.split("\n")[0] == "119000 1000 a bad row"
    assert len(calls()) <= 119 + 1


@pytest.mark.slow
def test_the_death_of_a_node_costs_no_calls(file: Path, tmp_path: Path) -> None:
    """What they came to is on two nodes when their task is done."""
    record = start_cluster(StartOptions(name="calling", nodes=3))
    try:
        log = tmp_path / "calls"
        arguments = ("-c", _CALLING, record.address, str(file), str(log))
        for nodes in (3, 2):
            with program(*arguments) as started:
                out, _ = started.process.communicate(timeout=120)
            assert out.split("\n")[0] == "119000 1000 a bad row"
            assert len(log.read_text().split()) == 119
            if nodes == 3:
                os.kill(record.nodes[1].pid, signal.SIGKILL)
                time.sleep(1.0)
    finally:
        stop_cluster("calling")


_MAPPING = """
import sys, minishark
from minishark import functions as F

LOG = sys.argv[3]

def noted(rows):
    with open(LOG, "a") as log:
        log.write("x\\n")
    return rows

with minishark.connect(sys.argv[1], reuse="cluster", single_task_rows=0, prints=False) as session:
    rows = session.read.parquet(sys.argv[2]).select("k", "g")
    kinds = {
        "batches": lambda: rows.map_batches(noted, "k BIGINT, g BIGINT"),
        "partitions": lambda: rows.map_partitions(noted, "k BIGINT, g BIGINT"),
        "stored": lambda: rows.repartition(6, "g").map_partitions(noted, "k BIGINT, g BIGINT"),
        "groups": lambda: rows.group_by("g").apply_in_arrow(noted, "k BIGINT, g BIGINT"),
    }
    mapped = kinds[sys.argv[4]]()
    mapped.explain("stages")
    print(mapped.count(), mapped.agg(F.sum("k")).first()[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["batches", "partitions", "stored", "groups"])
def test_what_functions_returned_outlives_a_program_and_a_node(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A second program calls them for no rows, and EXPLAIN says so where it can know."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    record = start_cluster(StartOptions(name="mapping", nodes=3))
    try:
        log, said = tmp_path / "calls", []
        for _ in range(3):
            arguments = (record.address, str(file), str(log), kind)
            with program("-c", _MAPPING, *arguments) as started:
                out, _ = started.process.communicate(timeout=120)
            assert out.splitlines()[-1] == f"{ROWS} {ROWS * (ROWS - 1) // 2}"
            said.append("makes no calls" in out)
            if len(said) == 1:
                calls = log.read_text()
            elif len(said) == 2:
                os.kill(record.nodes[1].pid, signal.SIGKILL)
                await_nodes(record, 2)
        # EXPLAIN does not know what rows are stored first, and how groups are shuffled.
        is_known = kind in ("batches", "partitions")
        assert (calls, [False, is_known, is_known]) == (log.read_text(), said)
    finally:
        stop_cluster("mapping")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flipped", "removed"])
def test_a_damaged_file_is_a_miss_for_other_sessions(
    running: ClusterRecord, file: Path, damage: str
) -> None:
    """Whoever reads it finds that."""
    forget(running)
    wide = WIDE.replace("t a", f"'{file}' a").replace("t b", f"'{file}' b")
    with connected(running) as session:
        rows = sorted(tuple(row) for row in session.sql(wide).collect())
        time.sleep(0.3)
    files = outputs(running)
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        path.unlink()
        if damage == "flipped":
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
    with connected(running) as session:
        assert rows == sorted(tuple(row) for row in session.sql(wide).collect())


@pytest.mark.slow
def test_deaths_of_executors_while_outputs_are_read_and_written(
    running: ClusterRecord, file: Path
) -> None:
    """Answers stay what they are."""
    forget(running)
    stop = threading.Event()

    def kill() -> None:
        for node in itertools.cycle(running.nodes):  # in turn, as each takes a while to come up
            if stop.wait(3.0):
                return
            for child in psutil.Process(node.pid).children(recursive=True)[:1]:
                child.kill()

    sql = ASKED.replace(" t ", f" '{file}' ")
    with connected(running, "off") as plain:
        expected = [tuple(row) for row in plain.sql(sql).collect()]
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for _ in range(4):
            with connected(running) as session:
                for number in range(2):
                    found = session.sql(f"SELECT n + {number}, s, m FROM ({sql})").collect()
                    n, s, m = expected[0]
                    assert [(n + number, s, m)] == [tuple(row) for row in found]
    finally:
        stop.set()
        killer.join()


@pytest.mark.slow
def test_the_death_of_a_node_costs_misses(file: Path) -> None:
    """It was the home of some names, and held some files; other names stay what they were."""
    record = start_cluster(StartOptions(name="dying", nodes=3))
    try:
        sql = ASKED.replace(" t ", f" '{file}' ")
        with connected(record) as session:
            expected, _ = asked(session, sql)
            groups, _ = asked(session, GROUPS.replace(" t ", f" '{file}' "))
            time.sleep(0.5)
            os.kill(record.nodes[-1].pid, signal.SIGKILL)
            assert expected == asked(session, sql)[0]
            assert expected == asked(session, f"SELECT * FROM ({sql}) WHERE n > 0")[0]
        with connected(record) as session:
            assert session.total_slots == 2, "the other one is dead"
            assert expected == asked(session, sql)[0]
            assert (groups, 0) == asked(session, GROUPS.replace(" t ", f" '{file}' "))
    finally:
        stop_cluster("dying")
