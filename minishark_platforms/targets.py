"""The entry points: Ray and Dask as platforms, and Ray's datasets."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from minishark.cluster.platforms import Shape
from minishark.errors import ClusterError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from minishark.cluster.backend import Workplace
    from minishark.cluster.contract import Cluster
    from minishark.cluster.keys import Keys
    from minishark.cluster.scaling import ScalingOptions
    from minishark.query.sinks import HandOver
    from minishark.tables.pieces import Pieces
    from minishark_platforms.deployment import Deployment, Platform

RAY = "ray"
_CLIENT = "ray://"
_DASK = "dask"


class OnRay:
    """`connect("ray")`, `connect("ray://HOST:PORT")`, and clusters called `ray:NAME`."""

    def launches(self, cluster: Any) -> bool:
        """Whether this means a new cluster; `minishark.cluster.platforms` documents all methods."""
        return bool(cluster == RAY or cluster.startswith(_CLIENT))

    def launch(self, cluster: str, shape: Shape, **options: Any) -> Cluster:
        """Launch a cluster for one session."""
        return _for_session(deploy_on_ray(cluster, shape), **options)

    def contact(self, name: str) -> tuple[str, Keys]:
        """The address and the keys of a cluster that outlives sessions."""
        address, keys = _keeper().contact(name)
        return address, keys

    def start(self, name: str, shape: Shape) -> tuple[str, ...]:
        """Start a cluster that outlives this program."""
        shape.check()
        warnings: tuple[str, ...] = _keeper().start_kept(name, shape)
        return warnings

    def stop(self, name: str) -> None:
        """End a cluster that outlives sessions."""
        _keeper().end_kept(name)


class OnDask:
    """`connect("dask")` and `connect(client)`."""

    def launches(self, cluster: Any) -> bool:
        """Whether this means a new cluster: always, but for names that Dask keeps none of."""
        return not isinstance(cluster, str) or cluster == _DASK

    def launch(self, cluster: Any, shape: Shape, **options: Any) -> Cluster:
        """Launch a cluster for one session."""
        return _for_session(deploy_on_dask(cluster, shape), **options)

    def contact(self, name: str) -> NoReturn:
        """There is none."""
        raise ClusterError(f"There is no cluster called {name!r} on Dask, which keeps none.")

    def start(self, name: str, shape: Shape) -> NoReturn:
        """Dask keeps none."""
        raise OptionError("Clusters that outlive sessions start on Ray, not on Dask.")

    def stop(self, name: str) -> NoReturn:
        """There is none."""
        self.contact(name)


class RayDatasets:
    """Datasets of Ray; `minishark.cluster.platforms.Datasets` documents the methods."""

    def pieces(self, data: Any, cluster: Workplace) -> Pieces:
        """A dataset in pieces that nodes store."""
        from minishark_platforms.ray_data import DatasetPieces  # noqa: PLC0415 - an extra

        return DatasetPieces(data, cluster)

    def sink(self, cluster: Workplace) -> HandOver[Any]:
        """A sink that makes a dataset of a query's rows."""
        _require("ray.data", "ray[data]")
        from minishark_platforms.ray_data import dataset_of  # noqa: PLC0415 - an extra

        return dataset_of(cluster)

    def of_rows(self, rows: pa.Table) -> Any:
        """A dataset of a table."""
        return _require("ray.data", "ray[data]").from_arrow(rows)


on_ray, on_dask, ray_datasets = OnRay(), OnDask(), RayDatasets()


def deploy_on_ray(cluster: str, shape: Shape, name: str = "default") -> Deployment:
    """Begin to launch a cluster on Ray.

    Raises:
        OptionError: the shape has an invalid number, or Ray is not installed.
        ClusterError: Ray does not answer.
    """
    shape.check()
    _require("ray", "ray[data]")
    from minishark_platforms.ray_nodes import (  # noqa: PLC0415 - an extra
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
    machines = RayNodes(cores=cores, disconnect=disconnect)
    # One head, on the machine that Ray itself can't do without.
    return _launched(machines, shape, nodes=nodes, cores=cores, heads=1, name=name)


def deploy_on_dask(cluster: Any, shape: Shape) -> Deployment:
    """Begin to launch a cluster on Dask.

    Raises:
        OptionError: the shape has an invalid number, or Dask is not installed.
        ClusterError: Dask does not answer.
    """
    shape.check()
    _require("distributed", "distributed")
    from minishark_platforms.dask_nodes import (  # noqa: PLC0415 - an extra
        DaskNodes,
        connect_dask,
        shape_of_dask,
    )

    client, disconnect = connect_dask(None if isinstance(cluster, str) else cluster)
    try:
        nodes, cores = shape_of_dask(client, shape.nodes, shape.cpus_per_node)
    except BaseException:
        disconnect()
        raise
    machines = DaskNodes(client=client, disconnect=disconnect)
    # Two heads, as they are on workers, which die.
    heads = min(2, nodes)
    return _launched(machines, shape, nodes=nodes, cores=cores, heads=heads, name="default")


def _launched(
    machines: Platform, shape: Shape, *, nodes: int, cores: float, heads: int, name: str
) -> Deployment:
    from minishark_platforms.deployment import Deployment  # noqa: PLC0415 - slow to import

    limit = shape.memory_limit_bytes
    deployment = Deployment(
        platform=machines,
        nodes=nodes,
        executors_per_node=shape.executors_per_node or max(1, int(cores)),
        heads=shape.schedulers or heads,
        name=name,
        memory_limit_bytes=limit and limit // (shape.most_nodes or nodes),
    )
    deployment.launch()
    return deployment


def _for_session(
    deployment: Deployment,
    *,
    scaling: ScalingOptions | None,
    recovery_timeout_s: float,
    meanwhile: Callable[[], object],
) -> Cluster:
    """The cluster of a deployment that has begun, which ends with it."""
    try:
        meanwhile()
        from minishark_platforms.cluster import DeployedCluster  # noqa: PLC0415 - slow to import

        deployment.await_start()
        return DeployedCluster(deployment, scaling, recovery_timeout_s)
    except BaseException:
        deployment.close()
        raise


def _keeper() -> Any:
    _require("ray", "ray[data]")
    return importlib.import_module("minishark_platforms.ray_keeper")


def _require(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = package.split("[", maxsplit=1)[0].replace("distributed", "dask")
        raise OptionError(
            f"This needs {package}, which is not installed: pip install 'minishark[{extra}]'."
        ) from error
