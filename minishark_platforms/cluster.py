"""A session's cluster on machines of a platform; it ends with the session."""

from __future__ import annotations

import time

from minishark.cluster.attached import AttachedCluster
from minishark.cluster.backend import Placement
from minishark.cluster.jobs.client import JobsClient
from minishark.cluster.local import NO_JOBS, RECOVERY_S
from minishark.cluster.scaling import Autoscaler, Load, ScalingOptions, load_of
from minishark.errors import ClusterError
from minishark_platforms.deployment import Deployment

_POLL_S = 0.05


class DeployedCluster(AttachedCluster):
    """A cluster that was launched for one session; `Cluster` documents its methods."""

    has_jobs = False

    def __init__(
        self,
        deployment: Deployment,
        scaling: ScalingOptions | None = None,
        recovery_timeout_s: float = RECOVERY_S,
    ) -> None:
        """Connect to a deployment that has started, and own it from now on."""
        self.deployment = deployment
        self._scaler = None if scaling is None else Autoscaler(options=scaling, fleet=self)
        try:
            super().__init__(
                deployment.address,
                deployment.keys,
                slots=deployment.slots,
                recovery_timeout_s=recovery_timeout_s,
            )
        except BaseException:
            deployment.close()
            raise
        self._began_with = (*super().warnings, *deployment.warnings)
        if self._scaler is not None:
            self._scaler.start()

    @property
    def most_slots(self) -> int:
        scaling = self._scaler and self._scaler.options
        most = scaling.max_nodes if scaling else self.deployment.nodes
        return max(self.total_slots, most * self.deployment.executors_per_node)

    @property
    def warnings(self) -> tuple[str, ...]:
        problem = self.deployment.problem
        return (*self._began_with, problem) if problem else self._began_with

    def jobs(self) -> JobsClient:
        raise ClusterError(NO_JOBS)

    def start_node(self) -> None:
        """Ask the platform for one more machine; a node joins there."""
        self.deployment.grow()

    def load(self) -> Load:
        """The load of the nodes, for the policy that has them come and go."""
        statuses = self.status()
        up = sum(status.alive and bool(status.executors) for status in statuses)
        return load_of(statuses, max(0, self.deployment.wanted - up), self.membership.needed())

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        """As of any cluster; a head that is started again is waited for."""
        deadline = time.monotonic() + self.recovery_s
        while not self.nodes and not self._closed and time.monotonic() < deadline:
            if self.deployment.problem:
                raise ClusterError(f"No node is left. {self.deployment.problem}")
            time.sleep(_POLL_S)
        return super().placement(policy, probe_ratio)

    def close(self) -> None:
        """Leave the cluster, and end its nodes."""
        was_open = not self._closed
        if was_open and self._scaler is not None:
            self._scaler.stop()
        super().close()
        if self._closed:  # else this is a fork
            self.deployment.close()
