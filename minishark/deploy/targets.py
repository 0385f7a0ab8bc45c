"""What `connect` takes for a cluster that is to be launched on a platform."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import msgspec

from minishark.deploy.rendezvous import head_in, is_rendezvous
from minishark.errors import OptionError

if TYPE_CHECKING:
    from minishark.cluster.contract import Cluster
    from minishark.deploy.deployment import Deployment
    from minishark.query.sinks import HandOver
    from sparrow_core.runtime.transport.keys import Keys

RAY = "ray"
_CLIENT = "ray://"
_KEPT = "ray:"  # before the name of a cluster that outlives sessions
_DASK = "dask"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster to launch.

    Attributes:
        nodes: how many; None for one on each machine.
        cpus_per_node: cores that each takes; None for those of the smallest machine.
        executors_per_node: executor processes of each; None for one per core.
        schedulers: how many processes with a scheduler; None for one on Ray, two on Dask.
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


def resolve(cluster: str, keys: str | None, *, waits: bool = True) -> tuple[str, str | Keys | None]:
    """The address and the keys (or their folder) of a running cluster, however it was named.

    That is an address, a name on this machine, `ray:NAME`, or `@FILE` in which its nodes met, which
    it waits for.

    Raises:
        ClusterError: there is none.
    """
    from minishark.cluster.launch import resolve as resolve_here  # noqa: PLC0415 - slow to import

    if is_rendezvous(cluster):
        return resolve_here(head_in(cluster) if waits else head_in(cluster, 0.0), keys)
    if cluster.startswith(_KEPT) and not cluster.startswith(_CLIENT):
        _require("ray", "ray[data]")
        from minishark.deploy.ray_keeper import contact  # noqa: PLC0415 - an optional dependency

        return contact(cluster.removeprefix(_KEPT))
    return resolve_here(cluster, keys)


def start_kept(name: str, shape: Shape) -> tuple[str, ...]:
    """Start a cluster on Ray that outlives this program; sentences about nodes that did not come.

    Raises:
        OptionError: a number is invalid, or Ray is not installed.
        ClusterError: there is one of that name, or it does not start.
    """
    shape.check()
    _require("ray", "ray[data]")
    from minishark.deploy import ray_keeper  # noqa: PLC0415 - an optional dependency

    return ray_keeper.start_kept(name, shape)


def stop_kept(cluster: str) -> str | None:
    """End a cluster that is named `ray:NAME`, and return its name; None for other clusters.

    Raises:
        ClusterError: there is none of that name.
    """
    if not cluster.startswith(_KEPT):
        return None
    _require("ray", "ray[data]")
    from minishark.deploy import ray_keeper  # noqa: PLC0415 - an optional dependency

    name = cluster.removeprefix(_KEPT)
    ray_keeper.end_kept(name)
    return name


def is_platform(cluster: object) -> bool:
    """Whether `connect` is to launch a cluster there."""
    if isinstance(cluster, str):
        return cluster in (RAY, _DASK) or cluster.startswith(_CLIENT)
    return type(cluster).__module__.split(".")[0] == "distributed"


def deploy(cluster: Any, shape: Shape, name: str = "default") -> Deployment:
    """Begin to launch a cluster on a platform.

    Raises:
        OptionError: the shape has an invalid number, or the platform's package is not installed.
        ClusterError: the platform does not answer.
    """
    shape.check()
    from minishark.deploy.deployment import Deployment  # noqa: PLC0415 - slow to import

    platform: Any
    heads = 1  # on the machine that the platform itself can't do without
    if isinstance(cluster, str) and cluster != _DASK:
        _require("ray", "ray[data]")
        from minishark.deploy.ray_nodes import (  # noqa: PLC0415 - an optional dependency
            RayNodes,
            connect_ray,
            shape_of_ray,
        )

        disconnect = connect_ray(cluster)
        try:
            nodes, cores = shape_of_ray(shape.nodes, shape.cpus_per_node)
        except BaseException:
            disconnect()
            raise
        platform = RayNodes(cores=cores, disconnect=disconnect)
    else:
        _require("distributed", "distributed")
        from minishark.deploy.dask_nodes import (  # noqa: PLC0415 - an optional dependency
            DaskNodes,
            connect_dask,
            shape_of_dask,
        )

        client, disconnect = connect_dask(None if cluster == _DASK else cluster)
        try:
            nodes, cores = shape_of_dask(client, shape.nodes, shape.cpus_per_node)
        except BaseException:
            disconnect()
            raise
        heads = min(2, nodes)  # on workers, which die
        platform = DaskNodes(client=client, disconnect=disconnect)
    limit = shape.memory_limit_bytes
    deployment = Deployment(
        platform=platform,
        nodes=nodes,
        executors_per_node=shape.executors_per_node or max(1, int(cores)),
        heads=shape.schedulers or heads,
        name=name,
        memory_limit_bytes=limit and limit // (shape.most_nodes or nodes),
    )
    deployment.launch()
    return deployment


def from_platform(data: Any, cluster: Cluster) -> Any:
    """Data for a table, as it is; datasets of Ray in pieces that nodes store.

    Raises:
        DataError: a dataset can't be computed.
    """
    if not type(data).__module__.startswith("ray.data"):
        return data
    from minishark.deploy.ray_data import DatasetPieces  # noqa: PLC0415 - an optional dependency

    return DatasetPieces(data, cluster)


def ray_dataset_sink(cluster: Cluster) -> HandOver[Any]:
    """A sink that makes a Ray dataset of a query's rows.

    Raises:
        OptionError: Ray is not installed, or this program is not connected to it.
    """
    _require("ray.data", "ray[data]")
    from minishark.deploy.ray_data import dataset_of  # noqa: PLC0415 - an optional dependency

    return dataset_of(cluster)


def _require(module: str, package: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        extra = package.split("[", maxsplit=1)[0].replace("distributed", "dask")
        raise OptionError(
            f"This needs {package}, which is not installed: pip install 'minishark[{extra}]'."
        ) from error
