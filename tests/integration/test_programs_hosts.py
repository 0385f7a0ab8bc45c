"""Programs on a shared cluster of two hosts, whose workers talk over tcp with keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from iterative import exchange, logistic, rank, slow_sum
from processes import free_port, until

import minishark
from canary_core import run_sequentially
from minishark.cluster.endpoints import HOST_VARIABLE
from minishark.cluster.launch import (
    ClusterRecord,
    StartOptions,
    make_keys,
    start_cluster,
    stop_cluster,
)
from minishark.session.session import Session

_ROWS = 6_000


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ClusterRecord]]:
    """Two machines with a node each, as far as they can tell."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    make_keys(tmp_path / "keys")
    heads = tuple(f"tcp://127.0.0.1:{free_port()}" for _ in range(2))
    records = []
    for host, listen in zip(("pa", "pb"), heads, strict=True):
        monkeypatch.setenv(HOST_VARIABLE, host)
        records.append(
            start_cluster(
                StartOptions(
                    name=host, nodes=1, listen=listen, join=heads, keys=str(tmp_path / "keys")
                )
            )
        )
    monkeypatch.setenv(HOST_VARIABLE, "front")
    yield records
    for record in records:
        if record.is_alive:
            stop_cluster(record.name)
        assert not any(Path(folder).exists() for node in record.nodes for folder in node.folders)


def _points() -> pa.Table:
    numbers = np.random.default_rng(2).random((4, _ROWS))
    labels = (numbers.sum(axis=0) > 2).astype(float)
    return pa.table(dict(zip("abcdy", [*numbers, labels], strict=True)))


def _connected(hosts: list[ClusterRecord], keys: Path) -> Session:
    session = minishark.connect(hosts[0].address, keys=keys)
    session.create_table("points", _points(), partitions=4)
    return session


@pytest.mark.slow
def test_hosts_run_a_program_as_one_machine_does(
    hosts: list[ClusterRecord], tmp_path: Path
) -> None:
    """Tables, exchanges and results pass between hosts; results are the sequential program's."""
    size = _ROWS // 4
    with _connected(hosts, tmp_path / "keys") as session:
        running = session.program(logistic, partitions=4)
        weights, iterations = running.result(60)
        expected, _ = run_sequentially(
            logistic, partitions=4, source=lambda _, index, __: _points().slice(index * size, size)
        )
        assert 12 == iterations
        assert expected.tobytes() == weights.tobytes()
        assert 2 == running.progress.workers
        exchanged = run_sequentially(exchange, partitions=4)["counts"]
        assert exchanged == session.program(exchange, partitions=4).result(60)["counts"]
        ranks = session.program(rank, partitions=5, into="ranks").result(60)
        assert _points()["a"].to_pylist() == ranks.to_arrow()["x"].to_pylist()


@pytest.mark.slow
def test_a_host_is_lost(hosts: list[ClusterRecord], tmp_path: Path) -> None:
    """Its node and worker die together: the other host goes on from its copy of the snapshot."""
    driver = slow_sum(0.004, 100)
    expected = run_sequentially(driver, partitions=4)
    with _connected(hosts, tmp_path / "keys") as session:
        running = session.program(driver, partitions=4, snapshot_every=40)
        until(lambda: running.progress.workers == 2, "both workers")
        until(lambda: (running.progress.snapshot or 0) > 40, "a snapshot of both")
        node = psutil.Process(hosts[1].nodes[0].pid)
        snapshot = running.progress.snapshot
        for process in (node, *node.children(recursive=True)):
            process.kill()
        began_s = time.monotonic()
        until(lambda: running.progress.rollbacks > 0, "a rollback")
        assert running.progress.snapshot is not None
        assert snapshot is not None
        assert running.progress.snapshot >= snapshot
        assert time.monotonic() - began_s < 10
        total, parts = running.result(60)
        assert expected[0] == total
        assert all(
            mine.tobytes() == t.tobytes() for mine, t in zip(parts, expected[1], strict=True)
        )
