"""Metrics over HTTP, for Prometheus to scrape."""

from __future__ import annotations

import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from machine_kit.local_driver import LocalDriver
from machine_kit.machine import Envelope, Machine
from sparrow_core.protocol.errors import ConfigError
from sparrow_core.protocol.messages import GetMetrics, MetricsText

_ANSWER_S = 2.0
_NAME = "http"


class HttpMetrics(Machine[MetricsText]):
    """A server thread, and a machine that gets the metrics for it."""

    inputs: ClassVar[Any] = MetricsText

    def __init__(self, driver: LocalDriver, where: str) -> None:
        """Serve at `where` ("host:port"), until `close`.

        Raises:
            ConfigError: Cannot listen there.
        """
        self._driver = driver
        self._texts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()  # one request at a time
        driver.host(_NAME, self)
        host, _, port = where.rpartition(":")
        try:
            self._server = ThreadingHTTPServer((host, int(port)), _handler(self))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot serve metrics at {where!r}: {error}") from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="http", daemon=True).start()

    def on_message(self, msg: MetricsText, now: float) -> list[Envelope]:
        self._texts.put(msg.text)
        return []

    def fetch(self) -> str | None:
        """The current metrics; None if the driver does not answer in time."""
        with self._lock:
            while not self._texts.empty():
                self._texts.get()  # a late answer to an earlier request
            question = GetMetrics(self._driver.address(_NAME))
            self._driver.post(self._driver.address("metrics"), question)
            try:
                return self._texts.get(timeout=_ANSWER_S)
            except queue.Empty:
                return None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(metrics: HttpMetrics) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers `GET /metrics`."""

        def do_GET(self) -> None:
            text = metrics.fetch() if self.path == "/metrics" else None
            if text is None:
                self.send_error(404 if self.path != "/metrics" else 503)
                return
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests: the log is for errors."""

    return Handler
