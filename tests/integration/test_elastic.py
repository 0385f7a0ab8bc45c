"""Clusters that grow and shrink under a session, and nodes that only run a scheduler."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa
import pytest
from processes import free_port, program, until

import minishark
from minishark.cluster.launch import StartOptions, make_keys, node_name, start_cluster, stop_cluster
from minishark.errors import ClusterError, OptionError
from minishark.session.session import Session

_ROWS = 100_000
_SUM = "SELECT k, sum(x)::BIGINT AS total FROM t GROUP BY k ORDER BY k"
_ANSWER = [{"k": k, "total": sum(range(k, _ROWS, 8))} for k in range(8)]


def _fill(session: Session, replicas: int) -> None:
    rows = pa.table({"k": [i % 8 for i in range(_ROWS)], "x": range(_ROWS)})
    session.create_table("t", rows, partitions=6, replicas=replicas)


@pytest.mark.slow
def test_a_sessions_cluster_grows_while_tasks_wait_and_shrinks_when_idle() -> None:
    """All answers are right and no task runs twice; the node with the scheduler stays."""
    over = threading.Event()
    with minishark.connect(
        max_nodes=2, executors_per_node=1, idle_s=1.0, single_task_rows=0, partitions=6
    ) as session:
        _fill(session, 1)

        def ask() -> int:
            remade = 0
            while not over.is_set():
                frame = session.sql(_SUM)
                assert _ANSWER == frame.to_arrow().to_pylist()
                remade += sum(stage.remade_tasks for stage in frame.metrics().by_stage)
            return remade

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            try:
                until(lambda: "node-1" in _nodes_used(session), "tasks on a second node")
            finally:
                over.set()
            assert [0] * 4 == [each.result(30) for each in asking]
        until(lambda: ["node-0"] == [node.name for node in session.nodes()], "only one node")
        assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
        with pytest.raises(ClusterError, match="scheduler"):
            session.drain_node("node-0")
        with pytest.raises(OptionError, match="no node"):
            session.drain_node("node-7")
        session.add_node()
        with pytest.raises(OptionError, match="max_nodes"):
            session.add_node()


def _nodes_used(session: Session) -> set[str]:
    frame = session.sql(_SUM)
    frame.to_arrow()
    return {task.node for stage in frame.metrics().by_stage for task in stage.by_task}


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's keys, and a place of the tests' own for what is known of clusters."""
    make_keys(tmp_path / "keys")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "keys"


@pytest.mark.slow
def test_a_scheduler_comes_back_under_another_address(keys: Path) -> None:
    """The session finds it through a node that it knew, and goes on with its tables."""
    head, own, new = (f"tcp://127.0.0.1:{free_port()}" for _ in range(3))
    node = ("-m", "minishark.cli", "cluster", "node", "--keys", str(keys))
    with (
        program(*node, "--listen", head) as first,
        program(*node, "--listen", own, "--join", head),
    ):
        assert first.process.stdout is not None
        first.process.stdout.readline()  # it is up
        with minishark.connect(head, keys=keys, single_task_rows=0) as session:
            until(lambda: len(session.nodes()) == 2, "both nodes")
            _fill(session, 2)
            assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
            first.kill()
            with program(*node, "--listen", new, "--join", new, "--join", own):
                names = {node_name(own), node_name(new)}
                until(lambda: names == {each.name for each in session.nodes()}, "the new head")
                assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
                assert [] == list(session.warnings)


@pytest.mark.slow
def test_a_node_without_executors_runs_the_scheduler_only(keys: Path) -> None:
    """Tasks and tables are on the others."""
    head, own = (f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    start_cluster(
        StartOptions(name="e", nodes=1, executors_per_node=0, listen=head, keys=str(keys))
    )
    command = ("cluster", "node", "--listen", own, "--join", head, "--keys", str(keys))
    try:
        with (
            program("-m", "minishark.cli", *command),
            minishark.connect("e", single_task_rows=0) as session,
        ):
            _fill(session, 2)
            assert _ANSWER == session.sql(_SUM).to_arrow().to_pylist()
            assert {node_name(own)} == _nodes_used(session)
            stored = session._runtime.tables.catalog.get("t").partitions
            assert {(node_name(own),)} == {each.locations for each in stored}
            assert [0, 1] == sorted(node.slots for node in session.nodes())
            session.drain_node(node_name(own))
            # With nowhere to go it goes nevertheless, and the session says so.
            until(lambda: len(session.nodes()) == 1, "the end of the node")
            began_s = time.monotonic()
            with pytest.raises(ClusterError):
                session.sql(_SUM).to_arrow()
            assert time.monotonic() - began_s < 60  # it waits for a node, for 30 s
    finally:
        stop_cluster("e")


@pytest.mark.slow
def test_a_node_with_results_of_calls_stays_until_they_are_read(keys: Path) -> None:
    """What nobody has asked for yet is on the node that ran the call."""
    start_cluster(StartOptions(name="r", nodes=2, executors_per_node=1, keys=str(keys)))
    try:
        with minishark.connect("r") as session:
            calls = [session.submit(bytes, 1_000_000 + i) for i in range(8)]
            wait(calls)
            victim = calls[0].node
            assert victim is not None
            session.drain_node(victim)
            time.sleep(4)
            assert victim in {node.name for node in session.nodes()}
            assert [1_000_000 + i for i in range(8)] == [len(call.result()) for call in calls]
            until(lambda: victim not in {node.name for node in session.nodes()}, "it leaves")
    finally:
        stop_cluster("r")
