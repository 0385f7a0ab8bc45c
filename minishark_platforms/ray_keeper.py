"""Clusters on Ray that outlive sessions: a detached actor keeps the nodes, and the keys in memory.

Programs find it by its name in Ray, as `ray:NAME`, and get the cluster's address and keys from it.
The actors of the nodes belong to the keeper: without it, no process of the cluster is left.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from minishark.cluster.keys import Keys
from minishark.cluster.platforms import Shape
from minishark.errors import ClusterError
from minishark_platforms.deployment import Deployment
from minishark_platforms.ray_errors import sentence
from minishark_platforms.ray_nodes import ON_HEAD, connect_ray
from minishark_platforms.targets import RAY, deploy_on_ray

_NAMESPACE = "minishark"
_START_S = 120.0
_CALL_S = 30.0


class Keeper:
    """The actor that keeps a cluster."""

    def __init__(self, name: str, shape: Shape) -> None:
        self._name, self._shape = name, shape
        self._deployment: Deployment | None = None

    def start(self) -> tuple[str, ...]:
        """Launch the cluster; sentences about nodes that have not come."""
        self._deployment = deploy_on_ray(RAY, self._shape, self._name)
        self._deployment.await_start()
        return self._deployment.warnings

    def contact(self) -> tuple[str, Keys]:
        """The address and the keys."""
        assert self._deployment is not None, "it has started, or nobody can find it"
        return self._deployment.address, self._deployment.keys

    def end(self) -> None:
        """End the nodes."""
        if self._deployment is not None:
            self._deployment.close()


def start_kept(name: str, shape: Shape) -> tuple[str, ...]:
    """Start a cluster that outlives this program; sentences about nodes that have not come.

    Raises:
        ClusterError: there is one of that name, or it does not start.
    """
    disconnect = connect_ray(RAY)
    try:
        made = ray.remote(Keeper).options(
            name=name,
            namespace=_NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            resources=ON_HEAD,
            max_concurrency=4,
        )
        try:
            keeper = made.remote(name, shape)
        except ValueError as error:
            raise ClusterError(f"Cluster {name} is already running on Ray.") from error
        try:
            warnings: tuple[str, ...] = ray.get(keeper.start.remote(), timeout=_START_S)
        except BaseException as error:
            ray.kill(keeper)
            if isinstance(error, RayError):
                raise ClusterError(sentence(error)) from error
            raise
        return warnings
    finally:
        disconnect()


def contact(name: str) -> tuple[str, Keys]:
    """The address and the keys of a cluster on Ray.

    Raises:
        ClusterError: there is none of that name, or it does not answer.
    """
    found: tuple[str, Keys] = _asked(name, "contact")
    return found


def end_kept(name: str) -> None:
    """End a cluster on Ray.

    Raises:
        ClusterError: there is none of that name, or it does not answer.
    """
    _asked(name, "end")


def _asked(name: str, what: str) -> Any:
    disconnect = connect_ray(RAY)
    try:
        keeper = ray.get_actor(name, namespace=_NAMESPACE)
        answer = ray.get(getattr(keeper, what).remote(), timeout=_CALL_S)
        if what == "end":
            ray.kill(keeper)
    except ValueError as error:
        raise ClusterError(
            f"There is no cluster called {name!r} on Ray; start one with "
            "`minishark cluster start --on ray`."
        ) from error
    except (RayError, GetTimeoutError) as error:
        raise ClusterError(f"Cluster {name} on Ray does not answer: {sentence(error)}") from error
    finally:
        disconnect()
    return answer
