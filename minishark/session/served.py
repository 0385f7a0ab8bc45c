"""What `Session.serve` returns."""

from __future__ import annotations

from typing import Protocol, Self


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
