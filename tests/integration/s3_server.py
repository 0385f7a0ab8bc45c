"""An S3 server for tests: moto, with a log of requests, and faults on demand."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY"


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the server got."""

    method: str
    path: str  # such as `/bucket/key`
    query: str
    range: str  # the header; empty without


@dataclass(frozen=True, slots=True)
class Fault:
    """An answer instead of the right one."""

    status: str
    code: str

    def body(self) -> bytes:
        return (
            f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>sorry</Message>"
            f"<AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>"
        ).encode()


SLOW_DOWN = Fault("503 Slow Down", "SlowDown")
EXPIRED = Fault("400 Bad Request", "ExpiredToken")
DENIED = Fault("403 Forbidden", "AccessDenied")


@dataclass(slots=True)
class S3Server:
    """A running server."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    # Called with each request: what it returns is the answer.
    fault: Callable[[Request], Fault | None] = lambda _: None
    conditional: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": "us-east-1",
        }

    @property
    def options(self) -> dict[str, str]:
        """As `connect(storage_options=...)` takes them."""
        return {
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_endpoint_url": self.url,
            "aws_region": "us-east-1",
        }

    def make_bucket(self) -> str:
        """The URI of a new bucket, before which nothing was asked."""
        self.fault = lambda _: None
        name = f"b{uuid.uuid4().hex}"
        self.client.create_bucket(Bucket=name)
        self.requests.clear()
        return f"s3://{name}"

    def put(self, uri: str, data: bytes = b"data", access: str = "private") -> None:
        bucket, key = _parts(uri)
        self.client.put_object(Bucket=bucket, Key=key, Body=data, ACL=access)

    def contents(self, uri: str) -> dict[str, bytes]:
        """The files of a bucket, by key."""
        bucket, _ = _parts(uri)
        return {
            key: self.client.get_object(Bucket=bucket, Key=key)["Body"].read()
            for key in self.keys(uri)
        }

    def keys(self, uri: str) -> set[str]:
        bucket, _ = _parts(uri)
        found = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {item["Key"] for item in found}

    def download(self, uri: str, folder: Path) -> None:
        """Copy the files of a bucket to a folder."""
        for key, data in self.contents(uri).items():
            path = folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    @property
    def client(self) -> Any:
        import boto3  # slow to import

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def read(self, ending: str = "") -> set[str]:
        """The paths of files whose bytes were asked for."""
        return {
            request.path
            for request in self.requests
            if request.method == "GET" and request.path.endswith(ending) and not request.query
        }

    def answer(
        self, app: Any, environ: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        request = Request(
            environ["REQUEST_METHOD"],
            environ["PATH_INFO"],
            environ.get("QUERY_STRING", ""),
            environ.get("HTTP_RANGE", ""),
        )
        self.requests.append(request)
        fault = self.fault(request)
        if fault is None:
            # moto looks at conditions before it writes, but does not keep others out meanwhile.
            one = {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environ.keys()
            with self.conditional if one else contextlib.nullcontext():
                answer: Iterable[bytes] = app(environ, start)
            return answer
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start(fault.status, [("Content-Type", "application/xml")])
        return [fault.body()]


def _parts(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


@contextlib.contextmanager
def running() -> Iterator[S3Server]:
    """A server on loopback, while the block runs."""
    # It takes a second to import, which every worker would spend when it collects the tests.
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    server = S3Server()
    app = DomainDispatcherApplication(create_backend_app)
    http = make_server(
        "127.0.0.1",
        0,
        lambda environ, start: server.answer(app, environ, start),
        threaded=True,
        request_handler=MotoRequestHandler,
    )
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, name="s3")
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
