"""Whether the process that listened at an endpoint has ended, as its host knows."""

from __future__ import annotations

import socket


def refuses(endpoint: str, timeout_s: float = 1.0) -> bool:
    """Whether the host of an endpoint says that nobody listens there.

    False also if it does not answer in time: the network is cut, or the machine is down.
    """
    try:
        _connect(endpoint, timeout_s)
    except (ConnectionRefusedError, FileNotFoundError, ValueError):
        return True
    except OSError:
        return False
    return False


def is_listening(endpoint: str, timeout_s: float = 1.0) -> bool:
    """Whether the process at an endpoint is there, and its host says so in time.

    One that is suspended is: connections are accepted by its kernel.
    """
    try:
        _connect(endpoint, timeout_s)
    except BlockingIOError:  # too many wait to be accepted
        return True
    except (OSError, ValueError):
        return False
    return True


def _connect(endpoint: str, timeout_s: float) -> None:
    scheme, _, rest = endpoint.partition("://")
    if scheme != "ipc":
        host, _, port = rest.partition("/")[0].rpartition(":")  # without the key
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
        return
    with socket.socket(socket.AF_UNIX) as attempt:
        attempt.setblocking(False)
        attempt.connect(rest)
