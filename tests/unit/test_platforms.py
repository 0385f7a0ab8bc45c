"""Platforms and datasets of other libraries are entry points, found by addresses and objects."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pyarrow as pa
import pytest

from minishark.cluster import platforms
from minishark.cluster.launch import resolve
from minishark.errors import ClusterError, OptionError

GROUPS = {"minishark.platforms": "cloud", "minishark.datasets": __name__.partition(".")[0]}


class Cloud:
    """A platform, and datasets, of another package."""

    def launches(self, cluster: Any) -> bool:
        """Addresses mean new clusters, names old ones."""
        return not isinstance(cluster, str) or cluster.startswith("cloud://")

    def contact(self, name: str) -> tuple[str, str]:
        """Where clusters are, by their names."""
        return f"tcp://{name}:1", "keys"


CLOUD = Cloud()


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up; the only ones there are lead to CLOUD."""
    names: list[str] = []

    def entry_points(*, group: str, name: str) -> list[EntryPoint]:
        names.append(name)
        there = [EntryPoint(GROUPS[group], f"{__name__}:CLOUD", group)]
        return [point for point in there if point.name == name]

    monkeypatch.setattr(platforms, "entry_points", entry_points)
    return names


def test_addresses_name_platforms() -> None:
    """What stands before the colon is the entry point's name; an address with a scheme launches."""
    assert CLOUD is platforms.platform_of("cloud://host:1")
    assert platforms.kept("cloud://host:1") is None
    assert (CLOUD, "mine") == platforms.kept("cloud:mine")
    assert ("tcp://mine:1", "keys") == resolve("cloud:mine", None)
    with pytest.raises(ClusterError, match="names no cluster"):
        platforms.kept("cloud:")


def test_names_and_addresses_of_our_clusters_are_not_looked_up(asked: list[str]) -> None:
    """Finding entry points takes longer than to join a cluster."""
    for cluster in ("default", "tcp://10.0.0.1:7077", "ipc:///run/head", "/run/cluster.json"):
        assert platforms.platform_of(cluster) is None
    for rows in (pa.table({"a": [1]}), [1], {"a": 1}):
        assert platforms.datasets_of(rows) is None
    assert [] == asked


@pytest.mark.parametrize("cluster", ["ray", "ray://host:1", "ray:etl", "dask"])
def test_a_platform_that_is_not_installed_is_a_sentence(cluster: str) -> None:
    """Those of ours name the extra that is missing."""
    extra = cluster.partition(":")[0]
    with pytest.raises(OptionError, match=rf"pip install 'minishark\[{extra}\]'"):
        platforms.platform_of(cluster)


def test_what_nobody_offers_is_an_error() -> None:
    with pytest.raises(OptionError, match="no platform called 'moon'"):
        platforms.platform("moon")
    with pytest.raises(OptionError, match="no datasets of 'moon'"):
        platforms.datasets("moon")
    with pytest.raises(OptionError, match=r"pip install 'minishark\[ray\]'"):
        platforms.datasets("ray")
    assert platforms.platform_of("moon:base") is None


def test_objects_belong_to_their_package() -> None:
    """A dataset is known by the package of its class."""
    assert CLOUD is platforms.datasets_of(Cloud())
