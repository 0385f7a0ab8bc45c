"""Addresses of nodes as users write them, and of this program's own sockets for a cluster."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

from machine_kit.keys import Keys
from minishark.errors import ClusterError, OptionError

HOST_VARIABLE = "MINISHARK_HOST"
_TCP = re.compile(r"tcp://(?P<host>[^/]+):(?P<port>\d+|\*)(?:/(?P<key>[0-9a-f]{64}))?")


def this_host() -> str:
    if named := os.environ.get(HOST_VARIABLE):
        return named
    parts = [socket.gethostname()]
    for file in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/mnt", "/proc/self/ns/pid"):
        path = Path(file)
        try:
            parts.append(str(path.readlink()) if path.is_symlink() else path.read_text().strip())
        except OSError:
            continue
    return "/".join(parts)


def service_address(text: str, keys: Keys | None) -> str:
    """Complete an address that a user wrote by the public key."""
    if text.startswith("ipc://"):
        return text
    match = _TCP.fullmatch(text)
    if match is None:
        raise OptionError(f"Invalid address {text!r}: write ipc://PATH or tcp://HOST:PORT.")
    if keys is None:
        raise ClusterError(f"{text}: tcp needs the cluster's keys; pass their folder.")
    return text if match["key"] else f"{text}/{keys.public}"


def sparrow_endpoint(service: str) -> str:
    """The endpoint of Sparrow's state machines on the node with this service."""
    if service.startswith("ipc://"):
        return f"{service.removesuffix('.sock')}-sparrow.sock"
    match = _TCP.fullmatch(service)
    assert match is not None
    port = match["port"]
    following = port if port == "*" else int(port) + 1
    return f"tcp://{match['host']}:{following}" + (f"/{match['key']}" if match["key"] else "")


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
