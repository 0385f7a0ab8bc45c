"""Sessions and clusters of different releases: the older one is built from the history."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import until

import minishark
from minishark.cluster.launch import StartOptions, find_cluster, start_cluster, stop_cluster
from minishark.errors import ClusterError

_ROOT = Path(__file__).parents[2]
_RELEASE = "0.1.0"
_CONNECT = (
    "import minishark\n"
    "from minishark.errors import MinisharkError\n"
    "try: minishark.connect({!r})\n"
    "except MinisharkError as error: print(type(error).__name__, error)"
)


class Older:
    """An installed older release."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *arguments: str) -> str:
        """What its Python prints."""
        environment = {**os.environ, "PYTHONPATH": str(self._folder)}
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=self._folder, check=True, text=True,
            stdout=subprocess.PIPE, timeout=60,
        ).stdout  # fmt: skip

    def cluster(self, *arguments: str) -> None:
        """Run its `minishark cluster`."""
        self.run("-m", "minishark.cli", "cluster", *arguments)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Older:
    """The older release: the last commit that names it in setup.py; skipped without history."""
    folder = tmp_path_factory.mktemp("older")
    git = ["git", "-C", str(_ROOT)]
    named = [*git, "log", "--format=%H", f'-Sversion="{_RELEASE}"', "--", "setup.py"]
    changes = subprocess.run(named, capture_output=True, text=True, check=False).stdout.split()
    if len(changes) < 2:  # the one that began to name it, and the one that ceased to
        pytest.skip("the history is not here")
    with (folder / "source.tar").open("wb") as file:
        subprocess.run([*git, "archive", f"{changes[0]}~1"], stdout=file, check=True)
    (folder / "source").mkdir()
    subprocess.run(["tar", "xf", "source.tar", "-C", "source"], cwd=folder, check=True)
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    target = ["--target", str(folder / "installed"), str(folder / "source")]
    subprocess.run([sys.executable, "-m", *install, *target], check=True)
    return Older(folder / "installed")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of the tests' own for what is known of clusters."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    for record in (tmp_path / "minishark").glob("*.json"):
        stop_cluster(record.stem)


def kill(name: str) -> None:
    """Kill the nodes of a cluster."""
    record = find_cluster(name)
    for node in record.nodes:
        os.kill(node.pid, signal.SIGKILL)
    until(lambda: not record.is_alive, "the end of its nodes")


@pytest.mark.slow
def test_each_refuses_the_other(older: Older) -> None:
    """Both name the versions, and what to do."""
    older.cluster("start", "--name", "old", "--nodes", "1")
    with pytest.raises(
        ClusterError, match=r"minishark 0\.1\.0 in the cluster and .* here.* Install the same"
    ):
        minishark.connect("old")
    stop_cluster("old")  # records of other versions can be read, and their clusters ended
    start_cluster(StartOptions(name="new", nodes=1))
    told = older.run("-c", _CONNECT.format("new"))
    assert told.startswith("ClusterError The cluster at ")
    assert "in the cluster and 0.1.0 here" in told


@pytest.mark.slow
def test_a_cluster_comes_back_as_another_version_and_then_as_its_own(older: Older) -> None:
    """An open session says so at once, and works again when the cluster has its version again."""
    start_cluster(StartOptions(name="same", nodes=1))
    with minishark.connect("same", recovery_timeout_s=30.0) as session:
        assert [(42,)] == session.sql("SELECT 42").collect()
        kill("same")
        older.cluster("start", "--name", "same", "--nodes", "1")
        began = time.monotonic()
        with pytest.raises(ClusterError, match=r"minishark 0\.1\.0 in the cluster"):
            session.sql("SELECT count(*) FROM range(9)").collect()
        assert time.monotonic() < began + 20.0
        older.cluster("stop", "same")
        start_cluster(StartOptions(name="same", nodes=1))
        assert [(9,)] == session.sql("SELECT count(*) FROM range(9)").collect()
