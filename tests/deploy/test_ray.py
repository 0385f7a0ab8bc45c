"""Clusters on Ray: right answers, deaths, datasets, and nothing left behind.

The loops of deaths are short by default; MINISHARK_RAY_DEATHS=100 makes them longer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import minishark
from minishark.cli.tpch.queries import QUERY_COUNT, load_queries
from minishark.cli.tpch.tables import TABLES, tpch_tables
from minishark.errors import ClusterError, MinisharkError, OptionError
from minishark.query.answers import differences, output_order
from minishark.session.session import Session
from minishark_lab.tpch.generate import generate
from minishark_lab.tpch.reference import create_views

_DEATHS = int(os.environ.get("MINISHARK_RAY_DEATHS", "3"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600 + 60 * _DEATHS),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Ray's own code
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_WHOLE_S = 15.0
_LIMIT = "2GiB"
_QUERY = "SELECT g, count(*) AS n, sum(id) AS s FROM u GROUP BY g ORDER BY g"


@pytest.fixture
def session(ray_cluster: Any) -> Iterator[Session]:
    with minishark.connect("ray", nodes=2, cpus_per_node=1, memory_limit=_LIMIT) as found:
        yield found
    ray_cluster.await_nothing_left()


def _deployment(session: Session) -> Any:
    return session._runtime.cluster.deployment  # type: ignore[attr-defined]


def test_tpch_on_two_ray_nodes(session: Session, tmp_path: Path) -> None:
    """22 of 22 answers equal DuckDB's, from tables of partitions on both nodes."""
    files = tpch_tables(generate(0.01, tmp_path, parts=2, on_progress=lambda done, total: None))
    for name, key in TABLES.items():
        session.create_table(name, files[name], partition_by=key)
    wrong = {}
    with duckdb.connect() as connection:
        create_views(connection, files)
        for number, text in load_queries(range(1, QUERY_COUNT + 1)).items():
            expected = connection.sql(text).to_arrow_table()
            order = output_order(connection, text, expected.column_names)
            found = differences(expected, session.sql(text).to_arrow(), ordered_by=order)
            if found:
                wrong[number] = found
    assert {} == wrong


_PROGRAM = """
import minishark, time
session = minishark.connect("ray", nodes=2, cpus_per_node=1, memory_limit="2GiB")
session.sql("CREATE TABLE t AS FROM range(100000)")
cluster = session._runtime.cluster
found = [each for node in cluster.status() for each in node.attributes]
print(*[each.partition("=")[2] for each in found if each.startswith(("memory=", "disk="))],
      cluster.paths.memory, cluster.paths.disk, flush=True)
time.sleep(60)
"""


def _folders(cluster: Any) -> list[Path]:
    """The folders of all nodes and of the session."""
    found = [each.partition("=") for node in cluster.status() for each in node.attributes]
    nodes = [Path(value) for name, _, value in found if name in ("memory", "disk")]
    return [*nodes, cluster.paths.memory, cluster.paths.disk]


def test_nothing_is_left(ray_cluster: Any) -> None:
    """No actor, process, core or file, after `stop()`."""
    with minishark.connect("ray", nodes=2, cpus_per_node=1, memory_limit=_LIMIT) as session:
        session.sql("CREATE TABLE t AS FROM range(100000)")
        folders = _folders(session._runtime.cluster)
        assert len(folders) == 8
        assert all(folder.exists() for folder in folders)
    assert [] == [folder for folder in folders if folder.exists()]
    ray_cluster.await_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_program_that_was_ended(ray_cluster: Any, number: int) -> None:
    """By Ctrl-C; or killed, after which nodes end by themselves."""
    started = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={**os.environ, "RAY_ADDRESS": ray_cluster.cluster.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdout is not None
    with started.stdout as output:
        folders = [Path(each) for each in output.readline().split()]
        assert len(folders) == 8
        started.send_signal(number)
        started.wait(30)
    ray_cluster.await_nothing_left()
    minishark.connect(nodes=1).stop()  # removes the folder of a killed program
    deadline = time.monotonic() + _WHOLE_S
    while left := [folder for folder in folders if folder.exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


class _Load:
    """Queries one after the other, on a thread, each compared with what is right."""

    def __init__(self, session: Session) -> None:
        self.wrong, self.done, self.lost = 0, 0, list[str]()
        self._session = session
        self._right = session.sql(_QUERY).collect()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                found = self._session.sql(_QUERY).collect()
            except MinisharkError as error:
                self.lost.append(str(error))
                time.sleep(0.2)
            else:
                self.done += 1
                self.wrong += found != self._right

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


def _create(session: Session) -> None:
    session.sql("CREATE TABLE t AS SELECT range AS id, range % 97 AS g FROM range(300000)")
    rows = session.sql("SELECT id, g FROM t")
    session.create_table("u", rows, partition_by="g", partitions=4, replicas=2)


def _await_whole(session: Session, gone: set[str], nodes: int) -> float:
    """Wait until all partitions have two replicas on live nodes; the seconds that it took."""
    begun = time.monotonic()
    while True:
        alive = set(session._runtime.cluster.nodes)
        kept = [set(each.locations) & alive for each in session._runtime.partitions("u")]
        whole = all(len(each) >= 2 for each in kept)
        if whole and not alive & gone and len(alive) == nodes:
            return time.monotonic() - begun
        assert time.monotonic() - begun < 4 * _WHOLE_S, (alive, gone, kept)
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["node", "head"])
def test_actors_die(session: Session, kind: str) -> None:
    """No query is lost or wrong; replicas are whole again soon, and queries go on."""
    import ray

    _create(session)
    took = []
    platform = _deployment(session).platform
    with _Load(session) as load:
        for _ in range(_DEATHS):
            begun = time.monotonic()
            while not (names := [name for name in platform._nodes if name.startswith(kind)]):
                assert time.monotonic() < begun + _WHOLE_S  # the last one starts again
                time.sleep(0.05)
            victim = random.choice(names)
            begun = time.monotonic()
            ray.kill(platform.actor(victim))
            _await_whole(session, {victim}, nodes=2)
            before = load.done
            while load.done < before + 2:
                time.sleep(0.05)
            took.append(time.monotonic() - begun)
    print(f"\n{load.done} queries; whole after {max(took):.1f} s at most")  # noqa: T201
    assert (load.wrong, load.lost) == (0, [])
    assert max(took) < _WHOLE_S


def test_ray_nodes_are_removed(ray_cluster: Any) -> None:
    """A machine goes, with its actor, and another one comes: a node joins there."""
    with minishark.connect("ray", nodes=2, cpus_per_node=1, memory_limit=_LIMIT) as session:
        _create(session)
        took = []
        machines = _deployment(session).machines
        with _Load(session) as load:
            for number in range(_DEATHS):
                spare = ray_cluster.add_node()
                hosts = {node.node_id: node for node in ray_cluster.cluster.worker_nodes}
                gone = {name for name, machine in machines().items() if machine in hosts}
                (name,) = sorted(gone)[:1]
                victim = hosts[machines()[name]]
                assert victim is not spare
                ray_cluster.remove_node(victim, gracefully=bool(number % 2))
                took.append(_await_whole(session, {name}, nodes=2))
        print(f"\n{load.done} queries; whole after {max(took):.1f} s at most")  # noqa: T201
        assert (load.wrong, load.lost) == (0, [])
        assert max(took) < _WHOLE_S
    ray_cluster.await_nothing_left()


def test_fewer_machines_than_asked_for(ray_cluster: Any) -> None:
    """The session begins on those that came and says so; the others join when there are more."""
    with minishark.connect("ray", nodes=3, cpus_per_node=1, memory_limit="3GiB") as session:
        cluster = session._runtime.cluster
        assert len(cluster.nodes) == 2
        assert any("Ray gave 2 of 3 machines" in warning for warning in cluster.warnings)
        extra = ray_cluster.add_node()
        deadline = time.monotonic() + 30
        while len(cluster.nodes) < 3:
            assert time.monotonic() < deadline, "the third node did not join"
            time.sleep(0.1)
    ray_cluster.await_nothing_left()
    ray_cluster.remove_node(extra, gracefully=True)


def test_nodes_are_added_and_drained(ray_cluster: Any) -> None:
    """A node that was drained gives its core back, and none takes its place."""
    import ray

    with minishark.connect("ray", nodes=1, cpus_per_node=1, memory_limit=_LIMIT) as session:
        cluster = session._runtime.cluster
        _create(session)
        right = session.sql(_QUERY).collect()
        (first,) = cluster.nodes
        session.add_node()
        deadline = time.monotonic() + 60
        while len(cluster.nodes) < 2:
            assert time.monotonic() < deadline, "the second node did not join"
            time.sleep(0.1)
        session.drain_node(first)
        while ray.available_resources().get("CPU") != 1 or first in cluster.nodes:
            assert time.monotonic() < deadline, "the first node did not leave"
            time.sleep(0.1)
        assert session.sql(_QUERY).collect() == right
        time.sleep(2)
        assert 1 == len(cluster.nodes)
    ray_cluster.await_nothing_left()


def test_datasets(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into tables and back; what comes back outlives the session, and may be empty."""
    import ray.data

    blocks = [
        pa.table({"id": range(i * 1000, (i + 1) * 1000), "s": ["é"] * 1000}) for i in range(8)
    ]
    with minishark.connect("ray", nodes=1, cpus_per_node=1, memory_limit=_LIMIT) as session:
        session.create_table("t", ray.data.from_arrow(blocks), partition_by="id", partitions=3)
        assert session.sql("SELECT count(*) AS n, sum(id) AS s FROM t").collect() == [
            (8000, sum(range(8000)))
        ]
        back = session.sql("SELECT id, s FROM t WHERE id % 2 = 0").to_ray_dataset()
        empty = session.sql("SELECT id FROM t WHERE id < 0").to_ray_dataset()
        large = session.sql("SELECT range AS i FROM range(3000000)").to_ray_dataset()
        session.sql(
            "CREATE TABLE typed AS SELECT i, (i % 7)::VARCHAR AS few, i % 2 = 0 AS o, "
            "(i / 3)::DECIMAL(9, 2) AS d, i::HUGEINT AS h FROM range(40000) t(i)"
        )
        session.sql("DELETE FROM typed WHERE i % 3 = 0")
        for columns in ("o, d AS amount, few, i", "h, few, i"):  # only DuckDB converts a HUGEINT
            frame = session.sql(f"SELECT {columns} FROM typed")
            found = pa.concat_tables(ray.get(frame.to_ray_dataset().to_arrow_refs()))
            assert found.sort_by("i") == frame.to_arrow().sort_by("i")
        with pytest.raises(OptionError):
            session.create_table("v", ray.data.from_arrow(blocks), replicas=0)
        data = ray.data.from_arrow(blocks)
        with monkeypatch.context() as patch:
            patch.setattr(ray.util.client.ray, "is_connected", lambda: True)
            with pytest.raises(OptionError, match="Ray Client"):
                session.create_table("v", data)
            with pytest.raises(OptionError, match=r"ray\.init"):
                session.sql("SELECT 1").to_ray_dataset()
    rows = pa.concat_tables(ray.get(back.to_arrow_refs()))
    assert (rows.num_rows, pc.sum(rows["id"]).as_py()) == (4000, sum(range(0, 8000, 2)))
    assert set(rows["s"].to_pylist()) == {"é"}
    assert (empty.count(), large.count()) == (0, 3_000_000)
    del back, empty, large, data
    ray_cluster.await_nothing_left()


def test_blocks_become_partitions_where_they_are(ray_cluster: Any) -> None:
    """On both machines, without a copy by tasks; rows are right whatever Arrow calls the types."""
    import ray.data

    @ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
    def made(first: int, columns: Sequence[str]) -> pa.Table:
        texts = pa.array(["a", None] * 25_000, pa.large_string())
        kinds = pa.array(["x"] * 50_000).dictionary_encode()
        all_columns = {"id": range(first, first + 50_000), "s": texts, "k": kinds}
        return pa.table(all_columns).select(columns)

    machines = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    data = {}
    for columns in (("id", "s"), ("id", "s", "k")):  # a dictionary becomes an ENUM
        placed = [
            made.options(label_selector={"ray.io/node-id": machine}).remote(i * 50_000, columns)
            for i, machine in enumerate([*machines] * 3)
        ]
        data[columns] = ray.data.from_arrow_refs(placed)
    empty = ray.data.from_arrow(pa.table({"id": pa.array([], "int64")}))
    with minishark.connect("ray", nodes=2, cpus_per_node=1, memory_limit=_LIMIT) as session:
        for dataset in data.values():
            session.create_table("t", dataset, partitions=4, replace=True)
            found = session.sql("SELECT count(*), sum(id), count(s), min(s) FROM t").collect()
            assert found == [(300_000, sum(range(300_000)), 150_000, "a")]
        session.create_table("t", data["id", "s"], replace=True)
        kept = [each.locations for each in session._runtime.partitions("t")]
        assert {name for names in kept for name in names} == set(_deployment(session).machines())
        session.create_table("e", empty)
        assert session.sql("SELECT count(*) FROM e").collect() == [(0,)]
        with pytest.raises(MinisharkError, match="Ray has no free core"):
            session.create_table("l", data["id", "s"].select_columns(["id"]))
    del data, placed, empty, dataset
    ray_cluster.await_nothing_left()


def test_all_cores_taken(session: Session) -> None:
    """Ray needs a core for its datasets: said at once, instead of waiting for one for ever."""
    with pytest.raises(MinisharkError, match="Ray has no free core"):
        session.sql("SELECT range AS i FROM range(3000000)").to_ray_dataset()


def test_a_cluster_that_outlives_sessions(ray_cluster: Any) -> None:
    """`minishark cluster start --on ray`, two sessions, and its end."""
    environment = {**os.environ, "RAY_ADDRESS": ray_cluster.cluster.address}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "minishark.cli", "cluster", *arguments]
        return subprocess.run(
            line, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    started = command("start", "--on", "ray", "--name", "etl", "--memory-limit", _LIMIT)
    assert (started.returncode, started.stdout) == (0, "ray:etl\n"), started.stderr
    try:
        assert "already running" in command("start", "--on", "ray", "--name", "etl").stderr
        with minishark.connect("ray:etl") as one, minishark.connect("ray:etl") as other:
            one.sql("CREATE TABLE t AS SELECT 1 AS a")
            assert ([], ["t"]) == (other.tables, one.tables)
        status = command("status", "ray:etl")
        assert "node-" in status.stdout, status.stderr
    finally:
        stopped = command("stop", "ray:etl")
    assert stopped.returncode == 0, stopped.stderr
    with pytest.raises(ClusterError, match="no cluster called 'etl' on Ray"):
        minishark.connect("ray:etl")
    ray_cluster.await_nothing_left()
