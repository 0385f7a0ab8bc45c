"""Ray clusters of several nodes on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

_STORE_BYTES = 200 << 20
_GONE_S = 15.0
_ROOT = Path(__file__).resolve().parents[2]


class RayCluster:
    """A Ray cluster, and this process's connection to it."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    def add_node(self) -> Any:
        """One more Ray node with a core."""
        return self.cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)

    def remove_node(self, node: Any, *, gracefully: bool) -> None:
        """Take a Ray node away, as a machine that is lost or that the autoscaler returns."""
        self.cluster.remove_node(node, allow_graceful=gracefully)

    def remains(self) -> list[str]:
        """What is left of minishark: its actors and groups, the cores that they took, its files."""
        import ray
        from ray.util import placement_group_table

        cores = ray.cluster_resources().get("CPU", 0) - ray.available_resources().get("CPU", 0)
        found = [f"{cores:g} cores"] if cores else []
        found += [f"group {name}" for name in placement_group_table()]
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                ours = (
                    "minishark_platforms.child" in line or "NodeActor" in line or "Keeper" in line
                )
                if ours and self._is_ours(process):
                    found.append(line)
        return found

    @staticmethod
    def _is_ours(process: psutil.Process) -> bool:
        """Whether the process was started by this test run: others may run at the same time."""
        return process.environ().get("MINISHARK_TEST_RUN") == str(os.getpid())

    def await_nothing_left(self) -> None:
        """Actors end a moment after they were told."""
        deadline = time.monotonic() + _GONE_S
        while left := self.remains():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    """Two Ray nodes, each with a core."""
    pytest.importorskip("ray.data", reason="Ray is not installed: pip install 'minishark[ray]'")
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("MINISHARK_TEST_RUN", str(os.getpid()))
        patch.setenv("PYTHONPATH", f"{_ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        head = {
            "num_cpus": 1,
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
        }
        started = Cluster(initialize_head=True, connect=False, head_node_args=head)
        try:
            started.add_node(num_cpus=1, object_store_memory=_STORE_BYTES)
            ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
            yield RayCluster(started)
        finally:
            ray.shutdown()
            started.shutdown()
            shutil.rmtree(Path(tempfile.gettempdir(), "ray"), ignore_errors=True)
