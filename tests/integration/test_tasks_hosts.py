"""Calls of Python functions on two hosts that share nothing but the network."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import free_port

import minishark
from minishark.cluster.endpoints import HOST_VARIABLE
from minishark.cluster.launch import (
    ClusterRecord,
    StartOptions,
    make_keys,
    start_cluster,
    stop_cluster,
)
from minishark.session.session import Session

WAIT_S = 60.0


def _start(host: str, keys: Path, listen: str, heads: tuple[str, ...]) -> ClusterRecord:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST_VARIABLE, host)
        return start_cluster(
            StartOptions(
                name=host,
                nodes=1,
                executors_per_node=2,
                listen=listen,
                join=heads,
                keys=str(keys),
            )
        )


def _stop(record: ClusterRecord) -> None:
    if record.is_alive:  # else a test has killed it
        stop_cluster(record.name)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ClusterRecord, ...]]:
    """Two nodes, each on a host of its own."""
    folder = tmp_path_factory.mktemp("task-hosts")
    make_keys(folder / "keys")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv(HOST_VARIABLE, "front")
        heads = (f"tcp://127.0.0.1:{free_port()}", f"tcp://127.0.0.1:{free_port()}")
        found = []
        for number in range(2):
            found.append(_start(f"h{number}", folder / "keys", heads[number], heads))
            stack.callback(_stop, found[-1])
        yield tuple(found)


@pytest.fixture(scope="module")
def session(records: tuple[ClusterRecord, ...]) -> Iterator[Session]:
    keys = Path(os.environ["XDG_RUNTIME_DIR"], "keys")
    with minishark.connect(records[0].address, keys=keys) as found:
        yield found


def _stored(records: tuple[ClusterRecord, ...]) -> list[Path]:
    """Files of calls on the nodes, each in shared memory or on disk."""
    folders = [
        Path(folder, node.name) for r in records for node in r.nodes for folder in node.folders
    ]
    return [path for folder in folders for path in folder.glob("s-*/tasks/*") if path.is_file()]


@pytest.mark.slow
def test_large_values_travel_between_hosts(
    session: Session, records: tuple[ClusterRecord, ...]
) -> None:
    """An argument is fetched once per node; results come back as they are."""
    array = np.arange(1_250_000)
    names = session._runtime.cluster.nodes
    futures = [
        session.executor(prefers=names[i % 2]).submit(lambda a, i: (int(a[i]), a * 2), array, i)
        for i in range(8)
    ]
    for i, future in enumerate(futures):
        number, doubled = future.result(WAIT_S)
        assert i == number
        assert np.array_equal(doubled, array * 2)
    assert set(names) == {future.node for future in futures}
    copies = [path for path in _stored(records) if "@" in path.name]
    assert 2 == len(copies)
    # Results are read, so that their files go on all hosts, with the next heartbeats.
    deadline = time.monotonic() + WAIT_S
    while len(_stored(records)) > len(copies) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert copies == [path for path in _stored(records) if path.exists()]


@pytest.mark.slow
def test_calls_submit_calls_over_the_network(session: Session) -> None:
    """From any host to any other."""

    def fib(n: int) -> int:
        if n < 2:
            return n
        return sum(
            each.result() for each in [session.submit(fib, n - 1), session.submit(fib, n - 2)]
        )

    assert 21 == session.submit(fib, 8).result(WAIT_S)
    assert list(range(1, 101)) == list(session.map(lambda x: x + 1, range(100), chunksize=1))


@pytest.mark.slow
def test_a_call_uses_nodes_that_have_joined_since_it_began(
    session: Session, records: tuple[ClusterRecord, ...], tmp_path: Path
) -> None:
    """Also for large results, which are on the new node."""

    def parent(folder: Path) -> int:
        (folder / "begun").touch()
        while not (folder / "joined").exists():
            time.sleep(0.02)
        name = (folder / "joined").read_text()
        future = session.executor(prefers=name).submit(np.ones, 1_000_000)
        found = int(future.result().sum())
        assert name == future.node
        return found

    future = session.submit(parent, tmp_path)
    while not (tmp_path / "begun").exists():
        time.sleep(0.02)
    keys = Path(os.environ["XDG_RUNTIME_DIR"], "keys")
    heads = tuple(f"tcp://{record.address.removeprefix('tcp://')}" for record in records)
    record = _start("h2", keys, f"tcp://127.0.0.1:{free_port()}", heads)
    try:
        (name,) = [node.name for node in record.nodes]
        while name not in session._runtime.cluster.nodes:
            time.sleep(0.02)
        (tmp_path / "name").write_text(name)
        (tmp_path / "name").rename(tmp_path / "joined")
        assert 1_000_000 == future.result(WAIT_S)
    finally:
        _stop(record)


@pytest.mark.slow
def test_calls_survive_the_end_of_a_host(
    session: Session, records: tuple[ClusterRecord, ...]
) -> None:
    """Those that it had run again on the other one."""

    def slow(x: int) -> int:
        time.sleep(0.05)
        return x

    futures = [session.submit(slow, i) for i in range(60)]
    futures[3].result(WAIT_S)
    os.kill(records[1].nodes[0].pid, signal.SIGKILL)
    assert list(range(60)) == [future.result(WAIT_S) for future in futures]
