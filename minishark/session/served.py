"""What `Session.serve` calls, an entry point, and what it returns."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, Protocol, Self, cast

from minishark.errors import OptionError

_SERVERS = "minishark.servers"


class Served(Protocol):
    """A session that is served to other programs; as a context manager, until the block's end.

    Attributes:
        address: what clients connect to: `grpc://host:port`, or `grpc+tls://host:port`.
        port: the port.
    """

    address: str
    port: int

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is stopped, at most `timeout` seconds; whether it is."""

    def stop(self) -> None:
        """End all connections, and serve no longer; may be called twice, and from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Server(Protocol):
    """What serves sessions by a protocol."""

    def __call__(self, session: Any, **options: Any) -> Served:
        """Serve a session until it is stopped; see `Session.serve` for options and errors."""


def server(protocol: str) -> Server:
    """The server for a protocol; adapters are above sessions, which reach them so.

    Raises:
        OptionError: none is installed.
    """
    for entry_point in entry_points(group=_SERVERS, name=protocol):
        return cast("Server", entry_point.load())
    raise OptionError(f"No server for {protocol!r} is installed: pip install minishark.")
