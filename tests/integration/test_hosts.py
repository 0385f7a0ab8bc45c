"""A cluster of two hosts that share nothing but the network, here over loopback with keys."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import psutil
import pyarrow as pa
import pytest
from oracle import divergences
from processes import free_port, program, until

import minishark
from minishark.cli import app as cli_app
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries
from minishark.cli.tpch.tables import TABLES
from minishark.cluster.endpoints import HOST_VARIABLE
from minishark.cluster.launch import (
    ClusterRecord,
    StartOptions,
    make_keys,
    node_name,
    start_cluster,
    stop_cluster,
)
from minishark.errors import ClusterError
from minishark.session.session import Session
from minishark_lab.tpch.reference import create_views

_ROWS = 40_000
_SUM = "SELECT k, count(*) AS n, sum(x)::BIGINT AS total FROM t GROUP BY k ORDER BY k"
_ANSWER = [
    {"k": k, "n": _ROWS // 8, "total": sum(range(k, _ROWS, 8))} for k in range(8)
]  # fmt: skip
_QUERIES = (
    _SUM,
    "SELECT count(*) AS n, sum(a.x)::BIGINT AS s FROM t a JOIN t b ON a.x = b.x + 1",
    "SELECT s, count(*) AS n FROM t JOIN names USING (k) GROUP BY s ORDER BY s",
    "SELECT x, row_number() OVER (PARTITION BY x % 10 ORDER BY x) AS r FROM t ORDER BY x LIMIT 9",
    "SELECT DISTINCT x % 7 AS m FROM t ORDER BY m",
    "SELECT *, repeat(chr((65 + k)::INTEGER), 50) AS long FROM t ORDER BY x",
)


def _start(host: str, keys: Path, ports: tuple[int, int], which: int) -> ClusterRecord:
    """A node as a machine of its own would start it."""
    heads = tuple(f"tcp://127.0.0.1:{port}" for port in ports)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST_VARIABLE, host)
        return start_cluster(
            StartOptions(name=host, nodes=1, listen=heads[which], join=heads, keys=str(keys))
        )


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cluster's keys, and a place of the tests' own for what is known of clusters."""
    folder = tmp_path_factory.mktemp("hosts")
    make_keys(folder / "keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv(HOST_VARIABLE, "front")
        yield folder / "keys"


@contextlib.contextmanager
def _two_hosts(keys: Path, names: tuple[str, str]) -> Iterator[tuple[ClusterRecord, ...]]:
    """A cluster of two hosts with one node each; both have a scheduler."""
    ports = (free_port(), free_port())
    records = tuple(_start(name, keys, ports, i) for i, name in enumerate(names))
    yield records
    for record in records:
        if record.is_alive:
            stop_cluster(record.name)
        assert not any(Path(folder).exists() for node in record.nodes for folder in node.folders)


@pytest.fixture(scope="module")
def hosts(keys: Path) -> Iterator[tuple[ClusterRecord, ...]]:
    """A cluster that all tests leave as it is."""
    with _two_hosts(keys, ("ha", "hb")) as records:
        yield records


@pytest.fixture
def frail(keys: Path) -> Iterator[tuple[ClusterRecord, ...]]:
    """A cluster to lose a host of."""
    with _two_hosts(keys, ("fa", "fb")) as records:
        yield records


def _connected(
    hosts: tuple[ClusterRecord, ...], keys: Path, disabled: tuple[str, ...] = ()
) -> Session:
    """A session on a third host, with tables."""
    session = minishark.connect(
        hosts[0].address, keys=keys, single_task_rows=0, disabled_optimizations=disabled
    )
    tables = _tables()
    session.create_table("t", tables["t"], partition_by="k", partitions=4)
    session.create_table("names", tables["names"])
    return session


def _tables() -> dict[str, pa.Table]:
    return {
        "t": pa.table({"k": [i % 8 for i in range(_ROWS)], "x": range(_ROWS)}),
        "names": pa.table({"k": range(8), "s": pa.array(list("aabbccdd")).dictionary_encode()}),
    }


@pytest.mark.slow
def test_hosts_answer_as_one_machine_does(hosts: tuple[ClusterRecord, ...], keys: Path) -> None:
    """Shuffles, broadcasts, loads and results pass between hosts; the answers are DuckDB's."""
    with duckdb.connect() as plain, _connected(hosts, keys) as session:
        for name, table in _tables().items():
            plain.register(name, table)
        assert {} == {sql: found for sql in _QUERIES if (found := divergences(session, plain, sql))}
        held = [_partitions(record) for record in hosts]
        assert [["0", "1", "2", "3"]] * 2 == held


def _partitions(record: ClusterRecord) -> list[str]:
    """What a host holds of the first table."""
    memory = Path(record.nodes[0].folders[0])
    return sorted(path.name.partition("-")[0] for path in memory.rglob("tables/0/*.arrow"))


@pytest.mark.slow
def test_nodes_elsewhere_tell_what_they_use(hosts: tuple[ClusterRecord, ...], keys: Path) -> None:
    """The memory of their executors, and the size of what they store."""
    with _connected(hosts, keys) as session:
        for node in session.nodes():
            assert all(node.usage.memory[executor.pid] > 1e6 for executor in node.executors)
            assert node.stored_bytes + node.disk_bytes > 0


@pytest.mark.slow
def test_other_keys_are_refused(
    hosts: tuple[ClusterRecord, ...], keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has no key of the cluster learns nothing from it, not even that it is there."""
    monkeypatch.setattr("minishark.cluster.joining._HELLO_S", 0.5)
    make_keys(tmp_path / "others")
    with pytest.raises(ClusterError, match="No cluster answers"):
        minishark.connect(hosts[0].address, keys=tmp_path / "others")
    with pytest.raises(ClusterError, match="needs the cluster's keys"):
        minishark.connect(hosts[0].address.rpartition("/")[0])


# Both work for some seconds; what the second one's tasks read was shuffled before.
_LONG = (
    "SELECT count(*) AS n FROM t a JOIN t b ON a.x % 2 = b.x % 2 AND a.x + b.x < 1",
    """SELECT count(*) // 1999 AS n
    FROM (SELECT x % 1999 AS g, count(*) AS c FROM t GROUP BY g)
    WHERE length(md5(repeat('x', (200000 + c)::INTEGER))) = 32""",
)


@pytest.mark.slow
@pytest.mark.parametrize(("which", "long"), [(0, _LONG[0]), (1, _LONG[1])])
def test_a_host_is_lost_in_the_middle_of_a_query(
    frail: tuple[ClusterRecord, ...], keys: Path, which: int, long: str
) -> None:
    """Replicas answer, and what lay there only is computed again; nothing is left of the host."""
    victim = psutil.Process(frail[which].nodes[0].pid)
    family = [victim, *victim.children(recursive=True)]
    # One task for all of the little data would leave one of the hosts without work.
    apart = _connected(frail, keys, ("coalesced_tasks", "collapse"))
    with apart as session, ThreadPoolExecutor(1) as pool:
        idle_s = family[1].cpu_times().user
        running = pool.submit(lambda: session.sql(long).to_arrow().to_pylist())
        until(lambda: family[1].cpu_times().user > idle_s + 0.3, "the query works")
        assert not running.done()
        victim.kill()
        assert [{"n": 1}] == running.result(120)
        assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
    assert [] == psutil.wait_procs(family, timeout=10)[1]
    folders = [Path(folder) for folder in frail[which].nodes[0].folders]
    until(lambda: not any(folder.exists() for folder in folders), "the end of its files")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["command", "signal"])
def test_a_node_joins_and_leaves(keys: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An open session's tables move to a node that joins, and away again before it leaves.

    There is one replica of each partition, and a query runs all the while: nothing is lost.
    """
    head, own = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    start_cluster(StartOptions(name="ja", nodes=1, listen=head, keys=str(keys)))
    command = ("cluster", "node", "--listen", own, "--join", head, "--keys", str(keys))
    warnings: list[str] = []
    try:
        with minishark.connect("ja", single_task_rows=0, partitions=4) as session:
            session.create_table("t", _tables()["t"], replicas=1)
            session.create_table("names", _tables()["names"])
            monkeypatch.setenv(HOST_VARIABLE, "jb")
            with (
                program("-m", "minishark.cli", *command) as joining,
                _queried(session, _ANSWER) as asked,
            ):
                name = node_name(own)
                began_s = time.monotonic()
                until(lambda: name in _users_of(session, "t"), "partitions on the new node")
                until(lambda: name in _users_of(session, "names"), "the small table there, too")
                until(lambda: name in _nodes_used(session), "tasks on the new node")
                assert time.monotonic() - began_s < 15  # 5 s on a quiet machine
                session.create_table("u", _tables()["t"], replicas=1)
                if how == "command":
                    assert 0 == cli_app.run(["cluster", "drain", name, "--cluster", "ja"])
                else:
                    joining.process.terminate()
                assert 0 == joining.process.wait(30)
                until(lambda: not joining.remains(), f"the end of {joining.remains()}")
            assert asked
            found = session.sql("SELECT count(*) AS n FROM t JOIN u USING (x)")
            assert [{"n": _ROWS}] == found.to_arrow().to_pylist()
            warnings += session.warnings
    finally:
        stop_cluster("ja")
    assert [] == warnings  # no table had to be loaded again


@contextlib.contextmanager
def _queried(session: Session, expected: list[dict[str, int]]) -> Iterator[list[None]]:
    """A thread that asks the same again and again, and must always get the same answer."""
    over, asked = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            frame = session.sql(_SUM)
            assert expected == frame.to_arrow().to_pylist()
            assert 0 == sum(stage.remade_tasks for stage in frame.metrics().by_stage)
            asked.append(None)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield asked
        finally:
            over.set()
        asking.result(60)


def _users_of(session: Session, table: str) -> set[str]:
    """The nodes that store a table."""
    partitions = session._runtime.tables.catalog.get(table).partitions
    return {node for partition in partitions for node in partition.locations}


def _nodes_used(session: Session) -> set[str]:
    """The nodes on which a query's tasks run."""
    frame = session.sql(_SUM)
    frame.to_arrow()
    return {task.node for stage in frame.metrics().by_stage for task in stage.by_task}


@pytest.mark.slow
def test_tpch_between_hosts(
    hosts: tuple[ClusterRecord, ...], keys: Path, tpch_files: dict[str, str]
) -> None:
    """All 22 answers are DuckDB's."""
    with (
        duckdb.connect() as plain,
        minishark.connect(hosts[0].address, keys=keys, single_task_rows=0) as session,
    ):
        create_views(plain, tpch_files)
        for name, key in TABLES.items():
            session.create_table(
                name,
                tpch_files[name],
                partition_by=key,
                partitions=4 if key else None,
                replicas=1,
            )
        queries = load_queries(range(1, QUERY_COUNT + 1))
        assert {} == {
            number: found
            for number, sql in queries.items()
            if (found := divergences(session, plain, sql))
        }
