"""A server: where it listens, and the thread that looks after its clients."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import pyarrow as pa

from minishark.adapters.flight.access import Access, check_exposure
from minishark.adapters.flight.connections import Connections
from minishark.adapters.flight.limits import Limits
from minishark.adapters.flight.service import Calls, FlightSql
from minishark.errors import OptionError
from minishark.session.front import Front, Refusals, listening
from minishark.session.page.certificate import Certificate
from minishark.session.session import Session

_LOOK_S = 0.1  # between two looks for clients that have given up
_SWEEP_S = 2.0  # between two looks for clients that are gone
_STOP_S = 5.0  # for which calls may go on that do not end when they are cancelled


class Server:
    """Serves a session by Flight SQL; also a context manager, which stops it.

    Attributes:
        address: `grpc://host:port`, or `grpc+tls://host:port`.
    """

    def __init__(
        self,
        session: Session,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        access: Access | None = None,
        certificate: tuple[str | Path, str | Path] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Begin to serve.

        Args:
            session: whose cluster, tables and views clients use, each in a session of its own.
            host: the address to listen on.
            port: the port; 0 for any that is free.
            access: who may ask; None for anybody, on an address of this machine only.
            certificate: PEM files of a certificate and its private key, for TLS.
            limits: what it allows.

        Raises:
            OptionError: other machines could reach it unencrypted, or without a token or password;
                or it can't listen there.
            DataError: the certificate can't be read.
        """
        access, limits = access or Access(), limits or Limits()
        if not 0 <= port <= 65_535:  # which some resolvers of names take for others
            raise OptionError("The port must be between 0 and 65535.")
        check_exposure(host, access, has_tls=certificate is not None)
        tls = None if certificate is None else Certificate(certificate, protocols=["h2"])
        access.issued_s = max(access.issued_s, limits.idle_s)
        self.connections = Connections(
            session, limits, lambda identity: access.forget(identity.issued)
        )
        self._calls = Calls()
        scheme = "grpc" if tls is None else "grpc+tls"
        named = f"[{host}]" if ":" in host else host
        self._front: Front | None = None
        try:
            # Where anybody may ask, nobody is a stranger: nothing stands between, and no copy.
            if tls is not None or not access.is_open:
                self._front = Front(host, port, Refusals(limits.refused), tls)
            else:
                listening(host, port).close()  # gRPC would not say why it can't
            place = f"{scheme}://{named}:{port}" if self._front is None else self._front.location
            self._flight = FlightSql(place, access, self.connections, self._calls, self._front)
        except (pa.ArrowException, OSError) as error:
            if self._front is not None:
                self._front.stop()
            raise OptionError(
                f"The server can't listen on {host}, port {port}: {str(error).partition('. ')[0]}."
            ) from error
        if self._front is not None:
            self._front.start()
        self.port: int = self._flight.port if self._front is None else self._front.port
        self.address = f"{scheme}://{named}:{self.port}"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="minishark-serve", daemon=True)
        self._thread.start()
        session.on_stop(self.stop)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server is stopped; whether it is."""
        return self._stopped.wait(timeout)

    def stop(self) -> None:
        """End all connections, then serve no longer; may be called twice, and from any thread."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._calls.began.set()
        if self._front is not None:
            self._front.close()
        self.connections.close()
        # It waits for calls: one whose client reads no rows must not hold up the program.
        ending = threading.Thread(target=self._flight.shutdown, daemon=True)
        ending.start()
        ending.join(_STOP_S)
        if self._front is not None:
            self._front.stop()
        self._thread.join(_STOP_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _look(self) -> None:
        """Cancel what nobody waits for any more, and end the connections of who is gone."""
        sweep_s = time.monotonic() + _SWEEP_S
        while not self._stopped.is_set():
            if not self._calls.look():
                self._calls.began.wait(max(0.0, sweep_s - time.monotonic()))
                self._calls.began.clear()
            self._stopped.wait(_LOOK_S)
            if time.monotonic() >= sweep_s:
                with contextlib.suppress(psutil.Error, OSError):  # the next look will tell
                    if len(self.connections):
                        self.connections.sweep(self._peers())
                sweep_s = time.monotonic() + _SWEEP_S

    def _peers(self) -> frozenset[str]:
        """The other ends of clients' connections, as calls name them."""
        return _peers(self.port) if self._front is None else self._front.names()


def _peers(port: int) -> frozenset[str]:
    """The other ends of this process's TCP connections, as gRPC names them."""
    peers = set()
    for tcp in psutil.Process().net_connections("tcp"):
        if tcp.raddr and tcp.laddr.port == port and tcp.status == psutil.CONN_ESTABLISHED:
            ip = ipaddress.ip_address(tcp.raddr.ip.partition("%")[0])
            mapped = getattr(ip, "ipv4_mapped", None)
            peers.add(_named(ip, tcp.raddr.port))
            if mapped is not None:
                peers.add(_named(mapped, tcp.raddr.port))
    return frozenset(peers)


def _named(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    if isinstance(ip, ipaddress.IPv4Address):
        return f"ipv4:{ip}:{port}"
    return f"ipv6:{urllib.parse.quote(f'[{ip}]', safe=':')}:{port}"


def serve(
    session: Session,
    *,
    host: str,
    port: int,
    token: str | Path | None,
    users: Mapping[str, str] | Path,
    certificate: tuple[str | Path, str | Path] | None,
    **limits: Any,
) -> Server:
    """Serve a session; see `Session.serve`, and `Limits`."""
    return Server(
        session,
        host=host,
        port=port,
        access=Access(token=token, users=users),
        certificate=certificate,
        limits=Limits(**limits),
    )
