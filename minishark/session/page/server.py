"""The HTTP server of a page: assets, views as server-sent events, and cancelling.

Safe by default: it listens on 127.0.0.1; every address contains a random token; requests for other
hosts are refused, so that no other site's name can be pointed here; the content security policy
allows the page's own files only, without inline scripts; what changes something is a POST with a
header that other sites can't send.
"""

from __future__ import annotations

import contextlib
import http.client
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from minishark.errors import DataError, OptionError
from minishark.session.page.certificate import Certificate
from minishark.session.page.export import STATIC, export_query
from minishark.session.page.metrics import CONTENT_TYPE
from minishark.session.page.site import Site

CONNECTIONS_MAX = 64
_PUSH_S = (0.3, 1.0)  # at least and at most, between two updates of a stream
_PUSH_SHARE = 0.002  # of a core, that a stream takes, as far as the limits above allow
_BEAT_S = 10.0
_IDLE_S = 30.0  # until a silent connection is closed
_BODY_MAX = 10_000
_HEAD_MAX = 64 << 10  # bytes of a request's headers, which are read before the token is known
_STOP_S = 1.0  # until the server notices that it is to stop, where nothing wakes it
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_ASSETS = frozenset({"page.css", "page.js", "uplot.css", "uplot.js", "icon.svg"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class PageServer:
    """Serves a site to browsers, in threads of its own."""

    def __init__(
        self,
        site: Site,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: tuple[str, str] | None = None,
        token: str | None = None,
    ) -> None:
        """Bind the socket.

        Args:
            site: what is shown.
            host: the address to listen on. Other machines can reach only one with a certificate:
                without encryption, anybody on the way could read the token.
            port: 0 for any that is free.
            certificate: files of a certificate and its private key, for https.
            token: the token in its address; None for a random one.

        Raises:
            OptionError: the address is taken, not this machine's, or needs a certificate.
        """
        if host not in _LOOPBACK and certificate is None:
            raise OptionError(
                f"A page on {host} needs a certificate and its key, as other machines can reach "
                "it. Or listen on 127.0.0.1, and forward the port: ssh -L."
            )
        self.site = site
        self.token = token or secrets.token_urlsafe(24)
        try:
            self._server = _Server((host, port), _Handler)
        except OverflowError as error:
            raise OptionError("The port must be between 0 and 65535.") from error
        except OSError as error:
            raise OptionError(
                f"The page can't listen on {host}:{port}: {error.strerror}."
            ) from error
        self._server.page = self
        self.port = self._server.server_address[1]
        self._scheme = "http"
        if certificate is not None:
            try:
                self._server.certificate = Certificate(certificate)
            except DataError as error:
                self._server.server_close()
                raise OptionError(f"The page's certificate can't be used: {error}") from error
            self._scheme = "https"
        name = "127.0.0.1" if host in _LOOPBACK else host
        shown = socket.gethostname() if name == "0.0.0.0" else name  # noqa: S104 - asked for
        self.hosts = {f"{name}:{self.port}" for name in (*_LOOPBACK, host, shown, "[::1]")}
        self.address = f"{self._scheme}://{shown}:{self.port}/{self.token}/"
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(_STOP_S,),
            name="minishark-http",
            daemon=True,
        )

    def start(self) -> None:
        """Serve, and follow the site's sources."""
        self.site.start()
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and all connections. Idempotent."""
        self.site.stop()
        if self._thread.is_alive():
            self._server.wake()
            self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()

    def is_own(self, host: str) -> bool:
        """Whether a request's Host header names this server.

        Over https, the browser has compared the name with the certificate, which may be for names
        that are not known here.
        """
        return self._scheme == "https" or host.lower() in self.hosts

    def origin(self, host: str) -> str:
        """The origin of its pages under the name of a Host header."""
        return f"{self._scheme}://{host.lower()}"


def pause_s(took_s: float) -> float:
    """How long a stream rests after an update that took `took_s` of CPU time."""
    shortest_s, longest_s = _PUSH_S
    return max(shortest_s, min(longest_s, took_s / _PUSH_SHARE))


class _Server(ThreadingHTTPServer):
    """A bounded number of connections, each in a thread."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 32
    page: PageServer
    certificate: Certificate | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: dict[socket.socket, bool] = {}  # oldest first; whether it has shown the token
        self._lock = threading.Lock()
        self._closed = threading.Condition(self._lock)

    def get_request(self) -> tuple[Any, Any]:
        request, address = super().get_request()
        if self.certificate is not None:  # the handshake happens in the connection's own thread
            request = self.certificate.context().wrap_socket(
                request, server_side=True, do_handshake_on_connect=False
            )
        return request, address

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            # Those that have shown no token must not keep out one that may.
            strangers = (connection for connection, is_known in self._open.items() if not is_known)
            stranger = None if len(self._open) < CONNECTIONS_MAX else next(strangers, None)
            if stranger is not None:
                del self._open[stranger]
                with contextlib.suppress(OSError):
                    stranger.shutdown(socket.SHUT_RDWR)
            has_room = len(self._open) < CONNECTIONS_MAX
            if has_room:
                self._open[request] = False
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._closed:
            self._open.pop(request, None)
            self._closed.notify_all()
        super().shutdown_request(request)

    def is_known(self, request: socket.socket) -> None:
        """A connection has shown the token."""
        with self._lock:
            if request in self._open:
                self._open[request] = True

    def wake(self) -> None:
        """Wake the thread that waits for connections; it accepts no more."""
        with contextlib.suppress(OSError):  # not all systems can do that
            self.socket.shutdown(socket.SHUT_RDWR)

    def close_connections(self) -> None:
        """Close them, and wait a moment for their threads, which would keep the session alive."""
        with self._closed:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._closed.wait_for(lambda: not self._open, _STOP_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error."""


class _Head:
    """Reads the lines of a request's headers, but not many."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._left = _HEAD_MAX

    def readline(self, size: int) -> bytes:
        """The next line."""
        line = self._stream.readline(min(size, self._left))
        self._left -= len(line)
        if not self._left:
            raise http.client.LineTooLong("headers")
        return line


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "minishark"
    sys_version = ""
    timeout = _IDLE_S
    server: _Server

    def parse_request(self) -> bool:
        stream = self.rfile
        self.rfile = _Head(stream)  # type: ignore[assignment]
        try:
            return super().parse_request()
        finally:
            self.rfile = stream

    def do_GET(self) -> None:
        page = self.server.page
        try:
            address = urlsplit(self.path)
            options = dict(parse_qsl(address.query, max_num_fields=10))
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "The address is not valid.")
            return
        if address.path == "/metrics" and self._is_scraper():
            self.server.is_known(self.connection)
            self._send(HTTPStatus.OK, CONTENT_TYPE, page.site.metrics())
            return
        path = self._inside(address.path)
        if path is None:
            return
        if path == "":
            self._send_file("index.html")
        elif path in _ASSETS:
            self._send_file(path)
        elif path == "events":
            self._stream(options)
        elif path.startswith("view/"):
            self._send_json(page.site.view(path.removeprefix("view/"), options))
        elif path == "export":
            self._send_export(options.get("key", ""))
        elif path == "why":
            self._send_json(self._why(options))
        elif path == "metrics":
            self._send(HTTPStatus.OK, CONTENT_TYPE, page.site.metrics())
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such page.")

    def do_POST(self) -> None:
        page = self.server.page
        path = self._inside(self.path.partition("?")[0])
        if path is None:
            return
        origin = self.headers.get("Origin")
        if origin is not None and origin != page.origin(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.FORBIDDEN, "Another site can't change anything here.")
        elif not secrets.compare_digest(
            self.headers.get("X-Minishark-Token", "").encode(), page.token.encode()
        ):
            self._refuse(HTTPStatus.FORBIDDEN, "The header X-Minishark-Token is missing.")
        elif path != "cancel":
            self._refuse(HTTPStatus.NOT_FOUND, "There is nothing to change here.")
        elif not page.site.can_cancel:
            self._refuse(HTTPStatus.CONFLICT, "This page shows a history: nothing runs.")
        else:
            self._cancel()

    def _is_scraper(self) -> bool:
        """Whether a request has the token where Prometheus puts it: in the Authorization header."""
        page = self.server.page
        sent, expected = self.headers.get("Authorization", ""), f"Bearer {page.token}"
        return page.is_own(self.headers.get("Host", "")) and secrets.compare_digest(
            sent.encode(), expected.encode()
        )

    def _inside(self, path: str) -> str | None:
        """The part of a path after the token; None if the request was refused."""
        page = self.server.page
        if not page.is_own(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "This page has another address.")
            return None
        token, slash, rest = path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), page.token.encode()) or not slash:
            self._refuse(
                HTTPStatus.FORBIDDEN,
                "The address lacks its token: session.ui() and `minishark ui` print it.",
            )
            return None
        self.server.is_known(self.connection)
        return rest

    def _cancel(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", ""))
            body = self.rfile.read(size) if 0 <= size <= _BODY_MAX else b""
            key = msgspec.json.decode(body, type=dict[str, str])["key"]
        except (ValueError, KeyError, msgspec.MsgspecError):
            self._refuse(HTTPStatus.BAD_REQUEST, 'The body must be {"key": "..."}.')
            return
        cancelled = self.server.page.site.cancel(key)
        self._send_json(msgspec.json.encode({"cancelled": cancelled}))

    def _why(self, options: dict[str, str]) -> bytes | None:
        try:
            stage, task = int(options["stage"]), int(options["task"])
        except (KeyError, ValueError):
            return None
        return self.server.page.site.why(options.get("key", ""), stage, task)

    def _stream(self, options: dict[str, str]) -> None:
        """Send a view each time that it has changed; each message is complete in itself.

        So a browser that was away, or asleep, needs nothing but the next message.
        """
        site = self.server.page.site
        name = options.pop("view", "")
        if site.view(name, options) is None:
            self._refuse(HTTPStatus.NOT_FOUND, "There is no such view.")
            return
        self.close_connection = True
        self._begin(HTTPStatus.OK, "text/event-stream")
        self.wfile.write(b"retry: 1000\n\n")
        version, sent = -1, b""
        while not site.is_stopped:
            now = site.await_change(name, version, _BEAT_S)
            began_s = time.thread_time()
            data = site.view(name, options) or b"null"
            if now == version or data == sent:
                self.wfile.write(b": still here\n\n")
            else:
                self.wfile.write(b"id: %d\ndata: %s\n\n" % (now, data))
            self.wfile.flush()
            version, sent = now, data
            site.await_stop(pause_s(time.thread_time() - began_s))

    # Answers

    def _begin(
        self,
        status: HTTPStatus,
        kind: str,
        size: int | None = None,
        others: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        for name, value in (*_HEADERS.items(), *others.items()):
            self.send_header(name, value)
        if size is None:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self._begin(status, kind, len(body))
        self.wfile.write(body)

    def _send_file(self, name: str) -> None:
        path = STATIC / name
        self._send(HTTPStatus.OK, _TYPES[path.suffix], path.read_bytes())

    def _send_export(self, key: str) -> None:
        document = self.server.page.site.look(lambda board: export_query(board, key))
        if document is None:
            self._refuse(HTTPStatus.NOT_FOUND, "That query is not known, or not any more.")
            return
        kind, body = "text/html; charset=utf-8", document.encode()
        name = "".join(char for char in key if char.isalnum() or char == "-")
        disposition = {"Content-Disposition": f'attachment; filename="query-{name}.html"'}
        self._begin(HTTPStatus.OK, kind, len(body), disposition)
        self.wfile.write(body)

    def _send_json(self, data: bytes | None) -> None:
        if data is None:
            self._refuse(HTTPStatus.NOT_FOUND, "That is not known, or not any more.")
        else:
            self._send(HTTPStatus.OK, "application/json", data)

    def _refuse(self, status: HTTPStatus, sentence: str) -> None:
        self.close_connection = True
        self._send(status, "text/plain; charset=utf-8", sentence.encode() + b"\n")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse malformed requests and other methods, with the same headers as all answers."""
        del explain
        with contextlib.suppress(OSError):
            self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase)

    def log_message(self, *_: Any) -> None:
        """Say nothing: the terminal is the user's."""
