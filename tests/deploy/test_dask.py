"""Clusters on Dask's distributed: answers, a worker's death, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minishark
from minishark.errors import ClusterError, OptionError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

_LIMIT = "2GiB"


@pytest.fixture(scope="module")
def dask() -> Iterator[Any]:
    """A Dask cluster of two workers of one thread; its client."""
    pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install 'minishark[dask]'"
    )
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client
    shutil.rmtree(Path(tempfile.gettempdir(), "dask-scratch-space"), ignore_errors=True)


def test_a_worker_dies(dask: Any) -> None:
    """Dask starts it again, a node joins there, and its replicas are made."""
    with minishark.connect(dask, memory_limit=_LIMIT) as session:
        session.sql("CREATE TABLE t AS SELECT range AS id, range % 7 AS g FROM range(100000)")
        rows = session.sql("FROM t")
        session.create_table("u", rows, partition_by="g", partitions=4, replicas=2)
        right = session.sql("SELECT g, sum(id) AS s FROM u GROUP BY g ORDER BY g").collect()
        cluster = session._runtime.cluster
        (victim, worker), _ = cluster.deployment.machines().items()  # type: ignore[attr-defined]
        pids = dask.run(os.getpid)
        os.kill(pids[worker], signal.SIGKILL)
        deadline = time.monotonic() + 60
        while victim in cluster.nodes or len(cluster.nodes) < 2:
            found = session.sql("SELECT g, sum(id) AS s FROM u GROUP BY g ORDER BY g").collect()
            assert found == right
            assert time.monotonic() < deadline
    assert [0, 0] == [len(hosts) for hosts in dask.run(_hosts).values()]


def _hosts() -> dict[str, Any]:
    from minishark_platforms import dask_nodes

    return dask_nodes._hosts


def test_the_client_of_the_program(dask: Any) -> None:
    """`connect("dask")` finds it; fewer nodes than workers are possible."""
    del dask
    with minishark.connect("dask", nodes=1, memory_limit=_LIMIT) as session:
        assert 1 == len(session._runtime.cluster.nodes)
        assert session.sql("SELECT 42 AS a").collect() == [(42,)]


def test_wrong_arguments(dask: Any) -> None:
    """Are told before anything is launched."""
    with pytest.raises(OptionError, match="nodes must be a whole number"):
        minishark.connect(dask, nodes=0)
    with pytest.raises(OptionError, match="keys is for a running cluster"):
        minishark.connect(dask, keys="keys")
    with pytest.raises(OptionError, match="cpus_per_node is for a new cluster on Ray or Dask"):
        minishark.connect(cpus_per_node=2)


def test_workers_are_yet_to_come(dask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them is awaited; if none comes, the error says what to do."""
    from minishark_platforms import dask_nodes

    dask.cluster.scale(0)
    while dask.scheduler_info()["workers"]:
        time.sleep(0.05)
    with monkeypatch.context() as patch:
        patch.setattr(dask_nodes, "_WORKERS_S", 0.2)
        with pytest.raises(ClusterError, match="No worker of the Dask cluster came"):
            minishark.connect(dask)
    dask.cluster.scale(2)
    with minishark.connect(dask, nodes=1, memory_limit=_LIMIT) as session:
        assert session.sql("SELECT 42 AS a").collect() == [(42,)]


def test_no_client() -> None:
    """A program without a client is told to make one."""
    pytest.importorskip("distributed")
    from distributed import default_client

    try:
        default_client()
    except ValueError:
        with pytest.raises(ClusterError, match="There is no Dask client"):
            minishark.connect("dask")
