"""Where this program's own sockets can be reached by a cluster."""

from __future__ import annotations

import socket
from pathlib import Path

from minishark.errors import ClusterError


def own_endpoint(service: str, folder: Path, name: str) -> str:
    """An endpoint for a socket of this program, by the transport of its cluster's service."""
    # That is ipc in `folder`, or any tcp port on the network interface towards the service.
    if service.startswith("ipc://"):
        return f"ipc://{folder}/{name}.sock"
    host, _, port = service.removeprefix("tcp://").partition("/")[0].rpartition(":")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, int(port)))  # looks up the route; UDP sends nothing
            return f"tcp://{probe.getsockname()[0]}:*"
    except OSError as error:
        raise ClusterError(f"Can't reach {host}: {error}") from error
