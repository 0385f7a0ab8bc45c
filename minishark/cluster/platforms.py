"""Platforms that launch our nodes, and other libraries' datasets: packages add them.

They are entry points, which are loaded when they are first asked for. One of the group
`minishark.platforms` is a `Platform`, and one of `minishark.datasets` is a `Datasets`. Its name is
what stands before the colon of an address, or the package of an object that stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from minishark.errors import ClusterError, OptionError

if TYPE_CHECKING:
    from minishark.cluster.backend import Workplace
    from minishark.cluster.contract import Cluster
    from minishark.cluster.keys import Keys
    from minishark.cluster.scaling import ScalingOptions

_PLATFORMS, _DATASETS = "minishark.platforms", "minishark.datasets"
# Those that come with us, with the extra that each needs.
_EXTRAS = {"ray": "ray", "dask": "dask", "distributed": "dask"}
_ADDRESSES = ("tcp", "ipc")
# Whose objects are rows already: nobody else is asked about them.
_ROWS = ("builtins", "duckdb", "minishark", "pandas", "polars", "pyarrow")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster to launch.

    Attributes:
        nodes: how many; None for one on each machine.
        cpus_per_node: cores that each takes; None for those of the smallest machine.
        executors_per_node: executor processes of each; None for one per core.
        schedulers: how many processes with a scheduler; None for as many as the platform needs.
        memory_limit_bytes: of all nodes together; None for shares of the machines' memory.
        most_nodes: how many there may be later; None for `nodes`.
    """

    nodes: int | None = None
    cpus_per_node: int | None = None
    executors_per_node: int | None = None
    schedulers: int | None = None
    memory_limit_bytes: int | None = None
    most_nodes: int | None = None

    def check(self) -> None:
        for name in ("nodes", "cpus_per_node", "executors_per_node", "schedulers"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} must be a whole number, at least 1.")


class Platform(Protocol):
    """Machines on which others let us launch nodes."""

    def launches(self, cluster: Any) -> bool:
        """Whether this means a new cluster; otherwise one that outlives sessions."""

    def launch(
        self,
        cluster: Any,
        shape: Shape,
        *,
        scaling: ScalingOptions | None,
        recovery_timeout_s: float,
        meanwhile: Callable[[], object],
    ) -> Cluster:
        """Launch a cluster for one session; `meanwhile` is called while its nodes start.

        Raises:
            OptionError: the shape has an invalid number, or the platform is not installed.
            ClusterError: the platform does not answer.
        """

    def contact(self, name: str) -> tuple[str, Keys]:
        """The address and the keys of a cluster that outlives sessions.

        Raises:
            ClusterError: there is none of that name.
        """

    def start(self, name: str, shape: Shape) -> tuple[str, ...]:
        """Start a cluster that outlives this program; sentences about nodes that did not come.

        Raises:
            OptionError: a number is invalid, or the platform's package is not installed.
            ClusterError: there is one of that name, or it does not start.
        """

    def stop(self, name: str) -> None:
        """End a cluster that outlives sessions.

        Raises:
            ClusterError: there is none of that name.
        """


class Datasets(Protocol):
    """Datasets of a library, as tables and as answers."""

    def pieces(self, data: Any, cluster: Workplace) -> Any:
        """A dataset as `tables.pieces.Pieces`, which nodes near them store.

        Raises:
            DataError: it can't be computed.
        """

    def sink(self, cluster: Workplace) -> Any:
        """A `query.sinks.HandOver` that makes a dataset of a query's rows.

        Raises:
            OptionError: the library is not installed, or this program is not connected to it.
        """

    def of_rows(self, rows: Any) -> Any:
        """A dataset of an Arrow table.

        Raises:
            OptionError: the library is not installed.
        """


def platform_of(cluster: Any) -> Platform | None:
    """The platform that an address or an object is of; None where our own clusters are meant.

    Raises:
        OptionError: it is not installed.
    """
    name = _name(cluster)
    may_be = name in _EXTRAS or (":" in cluster if isinstance(cluster, str) else True)
    if not may_be or name in _ADDRESSES:
        return None
    return cast("Platform | None", _loaded(_PLATFORMS, name))


def platform(name: str) -> Platform:
    """The platform of that name.

    Raises:
        OptionError: there is none, or it is not installed.
    """
    loaded = _loaded(_PLATFORMS, name)
    if loaded is None:
        raise OptionError(f"There is no platform called {name!r}.")
    return cast("Platform", loaded)


def kept(cluster: str) -> tuple[Platform, str] | None:
    """The platform and the name of a cluster there that outlives sessions; None if it is none."""
    platform = platform_of(cluster)
    if platform is None or platform.launches(cluster):
        return None
    name = cluster.partition(":")[2]
    if not name:
        raise ClusterError(f"{cluster!r} names no cluster.")
    return platform, name


def datasets(name: str) -> Datasets:
    """The datasets of a library.

    Raises:
        OptionError: it is not installed.
    """
    loaded = _loaded(_DATASETS, name)
    if loaded is None:
        raise OptionError(f"minishark makes no datasets of {name!r}.")
    return cast("Datasets", loaded)


def datasets_of(data: Any) -> Datasets | None:
    """The library that an object is a dataset of, if it is of one that we know."""
    name = type(data).__module__.partition(".")[0]
    return None if name in _ROWS else cast("Datasets | None", _installed(_DATASETS, name))


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item.partition(":")[0]
    return type(item).__module__.partition(".")[0]


def _installed(group: str, name: str) -> Any:
    for point in entry_points(group=group, name=name):
        return point.load()
    return None


def _loaded(group: str, name: str) -> Any:
    installed = _installed(group, name)
    if installed is None and name in _EXTRAS:
        raise OptionError(
            f"This needs {name}, which is not installed: pip install 'minishark[{_EXTRAS[name]}]'."
        )
    return installed
