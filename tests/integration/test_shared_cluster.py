"""A cluster that outlives sessions: several of them at once, their ends, its own end."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pyarrow as pa
import pytest
from processes import program, until

import minishark
from minishark.cli.app import run as run_command
from minishark.cluster import joining
from minishark.cluster.connections import Connections
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark.cluster.status import survey
from minishark.cluster.wire import Failure, Hello, own_versions
from minishark.errors import ClusterError, OptionError, PartitionsLostError
from minishark.session.session import Session

_ROWS = 40_000
_SUM = "SELECT k, count(*) AS n, sum(x)::BIGINT AS total FROM t GROUP BY k ORDER BY k"
_ANSWER = [
    {"k": k, "n": _ROWS // 8, "total": sum(range(k, _ROWS, 8))} for k in range(8)
]  # fmt: skip


def _rows() -> pa.Table:
    return pa.table({"k": [i % 8 for i in range(_ROWS)], "x": range(_ROWS)})


def _fill(session: Session) -> None:
    session.create_table("t", _rows(), partition_by="k", partitions=4)


def _answer(session: Session) -> list[dict[str, object]]:
    found: list[dict[str, object]] = session.sql(_SUM).to_arrow().to_pylist()
    return found


def _processes(record: ClusterRecord) -> list[psutil.Process]:
    nodes = [psutil.Process(node.pid) for node in record.nodes]
    return [*nodes, *(child for node in nodes for child in node.children(recursive=True))]


def _held(record: ClusterRecord) -> list[Path]:
    """The folders of sessions on the nodes."""
    roots = [Path(folder, node.name) for node in record.nodes for folder in node.folders]
    return [path for root in roots for path in root.glob("s-*")]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the tests' own for what is known of clusters."""
    folder = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder / "minishark"


@pytest.fixture(scope="module")
def running(state: Path) -> Iterator[ClusterRecord]:
    """A cluster of two nodes with one executor each."""
    record = start_cluster(StartOptions(name="shared", nodes=2))
    yield record
    stop_cluster("shared")
    assert [] == list(state.iterdir())
    assert not any(Path(folder).exists() for node in record.nodes for folder in node.folders)


@pytest.fixture
def session(running: ClusterRecord) -> Iterator[Session]:
    """A session on it that distributes even the smallest query, with a table."""
    with minishark.connect(running.name, single_task_rows=0) as found:
        _fill(found)
        yield found


def test_sessions_share_a_cluster_and_nothing_else(
    session: Session, running: ClusterRecord
) -> None:
    """Each has its own tables, and the end of one frees only what it held."""
    with minishark.connect(running.address) as other:
        assert [] == other.tables
        other.create_table("t", pa.table({"a": [1, 2]}))
        assert [{"a": 1}, {"a": 2}] == other.sql("FROM t ORDER BY a").to_arrow().to_pylist()
        assert 2 == len(_sessions(running))
        both = set(_held(running))
    remaining = set(_held(running))
    assert remaining < both
    assert {session._runtime.cluster.store_name} == {path.name for path in remaining}
    assert _ANSWER == _answer(session)


@pytest.mark.slow
def test_calls_of_several_sessions_submit_calls(session: Session, running: ClusterRecord) -> None:
    """The same executor serves both, and is connected to the schedulers for each of them."""
    here, there = (node.name for node in running.nodes)

    def nested(session: Session) -> str | None:
        def parent() -> str | None:
            with session.executor(prefers=there) as executor:
                child = executor.submit(abs, -1)
            return child.node

        with session.executor(prefers=here) as executor:
            return executor.submit(parent).result(30)

    with minishark.connect(running.address) as other:
        assert [there] * 4 == [nested(each) for each in (session, other, session, other)]


@pytest.mark.slow
def test_nodes_that_are_started_anew_get_the_sessions_folders(
    session: Session, running: ClusterRecord
) -> None:
    """One that comes back empty can take part in what began before."""
    cluster = session._runtime.cluster
    folder = cluster.folder("queries/of-a-test")
    cluster.make_folder(folder)
    homes = [Path(node.folders[0], node.name, folder) for node in running.nodes]
    assert [True, True] == [home.is_dir() for home in homes]
    homes[0].rmdir()
    cluster.membership.folders.by_home.pop(running.nodes[0].folders[0])  # type: ignore[attr-defined]
    until(homes[0].is_dir, "the folder")
    cluster.remove_folder(folder)
    assert [False, False] == [home.exists() for home in homes]


def _sessions(record: ClusterRecord) -> list[str]:
    return [each.name for each in survey(record.address, record.keys).sessions]


def test_all_kinds_of_statements_run(session: Session) -> None:
    """Joins with shuffles, whole statements, tables made by statements: as on an own cluster."""
    joined = session.sql("SELECT count(*) AS n FROM t a JOIN t b ON a.x = b.x + 1")
    assert [{"n": _ROWS - 1}] == joined.to_arrow().to_pylist()
    session.sql("CREATE TABLE few AS SELECT k, x FROM t WHERE x < 3")
    session.sql("INSERT INTO few VALUES (9, 9)")
    assert [(0, 0), (1, 1), (2, 2), (9, 9)] == [
        tuple(row.values()) for row in session.sql("FROM few ORDER BY x").to_arrow().to_pylist()
    ]
    big = session.sql("SELECT a.x, repeat('y', 100) AS y FROM t a")
    assert (_ROWS, sum(range(_ROWS))) == (
        big.to_arrow().num_rows,
        sum(big.to_arrow().column("x").to_pylist()),
    )


def test_tables_of_like_names_are_changed(session: Session) -> None:
    """The first and the tenth load, say: the name of one's folder is a part of the other's."""
    names = [f"like_{i}" for i in range(12)]
    for name in names:
        session.create_table(name, pa.table({"i": range(20)}))
    for name in (*names[:2], *names[8:]):
        session.sql(f"DELETE FROM {name} WHERE i % 2 = 0")
        assert 10 == len(session.sql(f"FROM {name}").collect())


@pytest.mark.slow
def test_dropped_tables_free_memory(session: Session, running: ClusterRecord) -> None:
    """No executor keeps a dropped table's memory, even if no task comes any more."""
    assert _ANSWER == _answer(session)
    session.drop_table("t")
    executors = [each for each in _processes(running) if each.pid not in _node_pids(running)]

    def mapped() -> list[str]:
        maps = (found.path for each in executors for found in each.memory_maps())
        return [path for path in maps if f"/{session._runtime.cluster.store_name}/tables/" in path]

    until(lambda: [] == mapped(), "executors without the table")


def _node_pids(record: ClusterRecord) -> set[int]:
    return {node.pid for node in record.nodes}


def test_the_status_tells_what_is_there(
    session: Session, running: ClusterRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    """`minishark cluster status` knows nodes, executors and sessions, for people and as JSON."""
    assert 0 == run_command(["cluster", "status", running.name, "--json"])
    seen = json.loads(capsys.readouterr().out)
    assert ["node-0", "node-1"] == [node["name"] for node in seen["nodes"]]
    assert [node.pid for node in running.nodes] == [node["pid"] for node in seen["nodes"]]
    assert [1, 1] == [node["slots"] for node in seen["nodes"]]
    assert all(psutil.pid_exists(*node["executors"]) for node in seen["nodes"])
    assert all(node["memory_total_bytes"] > 0 for node in seen["nodes"])
    assert [True, True] == list(seen["schedulers"].values())
    own = session._runtime.cluster.store_name
    (mine,) = [each for each in seen["sessions"] if each["name"] == own]
    assert (os.getpid(), True) == (mine["pid"], mine["bytes"] > 16 * _ROWS)
    assert 0 == run_command(["cluster", "status", running.address])
    text = capsys.readouterr().out
    assert all(word in text for word in ("node-0", "node-1", own))


@pytest.mark.slow
def test_a_killed_session_leaves_nothing(running: ClusterRecord) -> None:
    """After SIGKILL the nodes remove its tables, and its own folders too."""
    script = """
import sys, time, minishark, pyarrow as pa
session = minishark.connect(sys.argv[1])
session.create_table("t", pa.table({"x": range(1000)}))
print("holder", session._runtime.cluster.store_name, file=sys.stderr)
time.sleep(600)
"""
    with program("-c", script, running.address) as started:
        started.wait_for("holder")
        store_name = started.seen.split()[-1]
        assert store_name in {path.name for path in _held(running)}
        started.kill()
        until(
            lambda: store_name not in {path.name for path in _held(running)}, "an end of its tables"
        )
        until(lambda: not started.remains(), f"the end of {started.remains()}")


def test_other_versions_are_refused(
    running: ClusterRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program with another DuckDB hears at once which versions differ."""
    monkeypatch.setattr(joining, "own_versions", lambda: own_versions() | {"DuckDB": "v1.0.0"})
    with pytest.raises(ClusterError, match=r"DuckDB 2\S+ in the cluster and v1\.0\.0 here"):
        minishark.connect(running.address)


def test_nonsense_is_refused(running: ClusterRecord) -> None:
    """Names that lead out of a node's storage, and bytes that are no request, get a refusal."""
    from minishark.cluster.wire import Chunk, Fetch, MakeFolder, Part, decode_reply

    connections = Connections()
    try:
        fetch = Fetch(parts=(Part("../../x"),), credit=1)
        for request in (fetch, MakeFolder("/tmp/x"), MakeFolder("a/../../b")):
            reply = connections.call(running.address, request, 5)
            assert isinstance(reply, Failure | Chunk)
            said = reply.message if isinstance(reply, Failure) else reply.problem
            assert "Invalid path in a node's storage" in said
        with connections.socket(running.address) as socket:
            socket.send(b"nonsense")
            assert isinstance(decode_reply(connections.receive(socket, 5)[0]), Failure)
        assert not isinstance(connections.call(running.address, Hello(own_versions()), 5), Failure)
    finally:
        connections.close()


def test_wrong_addresses(running: ClusterRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no cluster's name or address is told in one sentence."""
    monkeypatch.setattr(joining, "_HELLO_S", 0.2)
    with pytest.raises(ClusterError, match=r"no cluster called 'nobody' \(running: shared\)"):
        minishark.connect("nobody")
    with pytest.raises(ClusterError, match="No cluster answers"):
        minishark.connect(f"{running.address}.not")
    with pytest.raises(OptionError, match="Invalid address"):
        minishark.connect("http://localhost:1")
    with pytest.raises(ClusterError, match="tcp needs the cluster's keys"):
        minishark.connect("tcp://localhost:1")
    with pytest.raises(OptionError, match="nodes is for a new cluster"):
        minishark.connect(running.name, nodes=3)
    with pytest.raises(ClusterError, match="already running"):
        start_cluster(StartOptions(name="shared"))


def test_commands_use_it(running: ClusterRecord, capfd: pytest.CaptureFixture[str]) -> None:
    """--cluster takes a statement to a running cluster."""
    command = ["sql", "SELECT count(*) AS regions FROM region", "--cluster", running.name]
    assert 0 == run_command(command)
    assert "regions" in capfd.readouterr().out


# Clusters of their own


@pytest.mark.slow
def test_a_cluster_from_the_command_line(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`start` prints the address, `stop` leaves neither a process nor a file."""
    assert 0 == run_command(["cluster", "start", "--name", "one", "--nodes", "1"])
    address = capsys.readouterr().out.strip()
    record = msgspec.json.decode((state / "one.json").read_bytes(), type=ClusterRecord)
    assert address == record.address
    family = _processes(record)
    with minishark.connect(address) as session:
        session.create_table("t", pa.table({"x": [1]}))
        assert 0 == run_command(["cluster", "stop", "one"])
        assert [] == psutil.wait_procs(family, timeout=10)[1]
        assert not any(Path(folder).exists() for folder in record.nodes[0].folders)
        assert not (state / "one.json").exists()
        assert not list(state.glob("one.*"))
    with pytest.raises(ClusterError, match="no cluster called 'one'"):
        stop_cluster("one")


@pytest.mark.slow
def test_a_node_dies(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Replicas on the other node answer; executors and files of the dead one are gone.

    Commands find the cluster by its name, whose first node it was, and say that it has ended.
    """
    record = start_cluster(StartOptions(name="two", nodes=2))
    try:
        with minishark.connect("two", single_task_rows=0) as session:
            _fill(session)
            assert _ANSWER == _answer(session)
            victim = psutil.Process(record.nodes[0].pid)
            family = [victim, *victim.children(recursive=True)]
            os.kill(victim.pid, signal.SIGKILL)
            assert _ANSWER == _answer(session)
            assert [] == psutil.wait_procs(family, timeout=10)[1]
            folders = [Path(folder) for folder in record.nodes[0].folders]
            until(lambda: not any(folder.exists() for folder in folders), "the end of its files")
        for command in (["jobs"], ["tables"]):
            assert 0 == run_command([*command, "--cluster", "two"])
        assert 0 == run_command(["cluster", "status", "two"])
        assert f"node-0 has ended; its log: {record.nodes[0].log}" in capsys.readouterr().out
    finally:
        stop_cluster("two")
    assert not list(state.glob("two.*"))


@pytest.mark.slow
def test_a_cluster_whose_nodes_were_killed(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands say so; `stop`, or the next start, removes what is left of it."""
    record = start_cluster(StartOptions(name="killed", nodes=2))
    assert 0 == run_command(["cluster", "list"])
    assert ["killed", "2", "0"] in [
        line.split()[:3] for line in capsys.readouterr().out.splitlines()
    ]
    family = _processes(record)
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=10)
    folders = [Path(folder) for node in record.nodes for folder in node.folders]
    assert 1 == run_command(["cluster", "status", "killed"])
    assert "All nodes of cluster killed have ended" in capsys.readouterr().err
    assert 0 == run_command(["cluster", "stop", "killed"])
    assert not any(folder.exists() for folder in folders)
    assert 0 == run_command(["cluster", "list"])
    assert "killed" not in capsys.readouterr().out.partition("Stopped killed.")[2]
    assert not list(state.glob("killed.*"))


@pytest.mark.slow
def test_a_cluster_that_was_started_again_is_found(state: Path) -> None:
    """By its name, under new addresses: what runs meanwhile waits, and goes on."""
    record = start_cluster(StartOptions(name="three", nodes=2))
    try:
        with minishark.connect("three", single_task_rows=0) as session:
            _fill(session)
            for node in record.nodes:
                os.kill(node.pid, signal.SIGKILL)
            until(lambda: not record.is_alive, "the end of its nodes")
            query = threading.Thread(
                target=lambda: found.extend(session.sql("SELECT 42").collect())
            )
            found: list[object] = []
            query.start()
            again = start_cluster(StartOptions(name="three", nodes=2))
            assert again.address != record.address
            query.join(30.0)
            assert [(42,)] == found
            with pytest.raises(PartitionsLostError):
                _answer(session)
            session.create_table("t", _rows(), partition_by="k", partitions=4, replace=True)
            assert _ANSWER == _answer(session)
    finally:
        stop_cluster("three")


def test_a_node_that_cannot_start_leaves_nothing(state: Path, tmp_path: Path) -> None:
    """A start that fails says why, and ends what it had begun."""
    with pytest.raises(ClusterError, match="Can't use the keys"):
        start_cluster(StartOptions(name="bad", listen="tcp://127.0.0.1:9", keys=str(tmp_path)))
    assert not list(state.glob("bad.*"))
