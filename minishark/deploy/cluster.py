"""A session's cluster on machines of a platform; it ends with the session."""

from __future__ import annotations

from minishark.cluster.attached import AttachedCluster
from minishark.deploy.deployment import Deployment


class DeployedCluster(AttachedCluster):
    """A cluster that was launched for one session; `Cluster` documents its methods."""

    def __init__(self, deployment: Deployment) -> None:
        """Connect to a deployment that has started, and own it from now on."""
        self.deployment = deployment
        try:
            super().__init__(deployment.address, deployment.keys, slots=deployment.slots)
        except BaseException:
            deployment.close()
            raise
        self.warnings = (*self.warnings, *deployment.warnings)

    def close(self) -> None:
        """Leave the cluster, and end its nodes."""
        was_open = not self._closed
        super().close()
        if was_open and self._closed:  # else this is a fork
            self.deployment.close()
