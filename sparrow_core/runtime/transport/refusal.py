"""Whether the process that listened at an endpoint has ended, as its host knows."""

from __future__ import annotations

import socket


def refuses(endpoint: str, timeout_s: float = 1.0) -> bool:
    """Whether the host of an endpoint says that nobody listens there.

    False also if it does not answer in time: the network is cut, or the machine is down.
    """
    scheme, _, rest = endpoint.partition("://")
    try:
        if scheme != "ipc":
            host, _, port = rest.partition("/")[0].rpartition(":")  # without the key
            socket.create_connection((host, int(port)), timeout_s).close()
            return False
        with socket.socket(socket.AF_UNIX) as attempt:
            attempt.settimeout(timeout_s)
            attempt.connect(rest)
    except (ConnectionRefusedError, FileNotFoundError, ValueError):
        return True
    except OSError:
        return False
    return False
