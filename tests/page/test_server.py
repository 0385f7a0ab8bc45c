"""The page's server: what it answers, and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
from page_events import BEGAN, node_report, query_events

from minishark.errors import OptionError
from minishark.model.events import kinds
from minishark.model.events.history import HistoryWriter
from minishark.model.events.stream import EventStream
from minishark.session.page.export import STATIC, export_query, newest_query
from minishark.session.page.server import CONNECTIONS_MAX, PageServer, pause_s
from minishark.session.page.site import Site
from minishark.session.page.sources import HistorySource, SessionSource
from sparrow_core import PlacementStep

Emit = Callable[..., None]


def _ask(
    server: PageServer,
    path: str = "",
    *,
    method: str = "GET",
    token: str | None = None,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to a request; header names with `_` for `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        where = f"/{server.token if token is None else token}/{path}"
        connection.request(method, where, body, sent)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def _view(server: PageServer, path: str) -> Any:
    status, _, body = _ask(server, f"view/{path}")
    assert 200 == status, body
    return json.loads(body)["data"]


def _messages(server: PageServer, path: str) -> Iterator[Any]:
    """The messages of a stream."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", f"/{server.token}/events?{path}")
    answer = connection.getresponse()
    assert "text/event-stream" == answer.getheader("Content-Type")
    try:
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


def test_the_address_leads_to_the_page(server: PageServer) -> None:
    """It is on the loopback interface and holds the token; all assets are the page's own."""
    address = urlsplit(server.address)
    assert ("127.0.0.1", f"/{server.token}/") == (address.hostname, address.path)
    assert len(server.token) >= 32
    status, headers, body = _ask(server)
    assert (200, "text/html; charset=utf-8") == (status, headers["Content-Type"])
    for asset in ("page.js", "page.css", "uplot.js", "uplot.css", "icon.svg"):
        assert asset.encode() in body or asset.startswith("uplot")
        assert 200 == _ask(server, asset)[0]


@pytest.mark.parametrize("path", ["", "page.js", "view/queries", "events?view=queries", "none"])
@pytest.mark.parametrize("token", ["wrong", "", "é"])
def test_nothing_is_served_without_the_token(server: PageServer, path: str, token: str) -> None:
    quoted = token.encode("latin-1").decode("latin-1") if token.isascii() else "%C3%A9"
    status, _, body = _ask(server, path, token=quoted)
    assert 403 == status
    assert b"token" in body
    assert server.token.encode() not in body


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "a b"])
def test_requests_for_other_hosts_are_refused(server: PageServer, host: str) -> None:
    """Else a site whose name is pointed at 127.0.0.1 could read the page."""
    assert 421 == _ask(server, Host=host)[0]
    assert 200 == _ask(server, Host=f"localhost:{server.port}")[0]


@pytest.mark.parametrize("path", ["", "page.js", "view/queries", "nothing"])
def test_every_answer_forbids_foreign_content(server: PageServer, path: str) -> None:
    _, headers, _ = _ask(server, path)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert ("nosniff", "no-store") == (headers["X-Content-Type-Options"], headers["Cache-Control"])
    assert "no-referrer" == headers["Referrer-Policy"]


def test_the_page_has_no_inline_code() -> None:
    """Its policy would not run it."""
    text = (STATIC / "index.html").read_text()
    assert " style=" not in text
    assert " on" not in text.split("<body>")[1].replace(" one", "")
    assert "<style" not in text
    assert all("src=" in part.split(">")[0] for part in text.split("<script")[1:])


def test_texts_never_become_markup() -> None:
    """The script uses no interface that parses markup."""
    text = (STATIC / "page.js").read_text()
    for unsafe in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert unsafe not in text


@pytest.mark.parametrize("path", ["../server.py", "static/page.js", "%2e%2e/x", "view/", "view/x"])
def test_other_paths_lead_nowhere(server: PageServer, path: str) -> None:
    assert 404 == _ask(server, path)[0]


def test_only_get_and_post_are_answered(server: PageServer) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        status, headers, _ = _ask(server, method=method)
        assert 501 == status
        assert "Content-Security-Policy" in headers
        assert "Access-Control-Allow-Origin" not in headers


def test_a_query_is_cancelled_by_a_post_with_the_token(
    server: PageServer, emit: Emit, cancelled: list[int]
) -> None:
    emit(*query_events(3, state="running"))
    server.site.poll()
    body = json.dumps({"key": "abc-3"}).encode()
    status, _, answer = _ask(
        server, "cancel", method="POST", body=body, X_Minishark_Token=server.token
    )
    assert (200, {"cancelled": True}, [3]) == (status, json.loads(answer), cancelled)


def test_other_sites_cancel_nothing(server: PageServer, emit: Emit, cancelled: list[int]) -> None:
    """Neither without the header, which they can't send, nor with their origin, nor by GET."""
    emit(*query_events(3, state="running"))
    server.site.poll()
    body = json.dumps({"key": "abc-3"}).encode()
    refused = [
        _ask(server, "cancel", method="POST", body=body),
        _ask(server, "cancel", method="POST", body=body, X_Minishark_Token="wrong"),
        _ask(
            server, "cancel", method="POST", body=body, X_Minishark_Token=server.token,
            Origin="http://evil.example",
        ),
        _ask(server, "cancel", X_Minishark_Token=server.token),
    ]  # fmt: skip
    assert [403, 403, 403, 404] == [status for status, _, _ in refused]
    assert [] == cancelled


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"key": 3}', b"\xff", b"x" * 20_000])
def test_malformed_requests_are_refused(server: PageServer, body: bytes) -> None:
    headers = {"X_Minishark_Token": server.token}
    assert 400 == _ask(server, "cancel", method="POST", body=body, **headers)[0]


def test_a_stream_sends_a_view_when_it_has_changed(server: PageServer, emit: Emit) -> None:
    """Within a second on a quiet machine; each message is complete: a reader may begin anywhere."""
    messages = _messages(server, "view=queries")
    assert [] == next(messages)["data"]["queries"]
    began = time.monotonic()
    emit(*query_events(1, state="running"))
    assert [1] == [line["number"] for line in next(messages)["data"]["queries"]]
    assert time.monotonic() - began < 5.0
    emit(*query_events(2))
    assert [1, 2] == [line["number"] for line in next(messages)["data"]["queries"]]
    other = _messages(server, "view=query&key=abc-2")
    assert "done" == next(other)["data"]["state"]
    messages.close()
    other.close()


def test_time_and_nodes_change_only_what_shows_them(server: PageServer, emit: Emit) -> None:
    """Else every page would be sent the same again each second."""
    site = server.site
    emit(*query_events(3))
    site.poll()
    others = {name: site.await_change(name, -1, 0.0) for name in ("queries", "placement")}
    cluster = site.await_change("cluster", -1, 0.0)
    site.look(lambda board: board.tick(board.now_s + 1.0))
    later = site.await_change("cluster", cluster, 0.0)
    assert later > cluster
    emit(node_report("node-0", at=2.0, alive=True))
    site.poll()
    assert site.await_change("cluster", later, 0.0) > later
    assert others == {name: site.await_change(name, before, 0.0) for name, before in others.items()}


def test_who_looks_after_a_while_sees_what_is_new(stream: EventStream) -> None:
    """A page without readers takes events rarely."""
    site = Site([SessionSource(BEGAN, stream, lambda _: False)])
    assert not site.is_read
    for event in query_events(3):
        stream.emit(event)
    shown = json.loads(site.view("queries", {}) or b"")
    assert ["abc-3"] == [each["key"] for each in shown["data"]["queries"]]
    assert site.is_read


def test_updates_that_take_long_come_rarely() -> None:
    assert 0.3 == pause_s(0.0) == pause_s(0.0006)
    assert 0.5 == pytest.approx(pause_s(0.001))
    assert 1.0 == pause_s(0.5)


def test_streams_end_with_the_server(server: PageServer) -> None:
    messages = _messages(server, "view=queries")
    next(messages)
    server.stop()
    assert [] == list(messages)
    server.stop()


def test_connections_are_bounded(server: PageServer) -> None:
    """One that is too many is closed at once; when others end, there is room again."""
    many = [http.client.HTTPConnection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)]
    for each in many:
        each.request("GET", f"/{server.token}/icon.svg")
        assert each.getresponse().read()
    deadline = time.monotonic() + 5
    refused = False
    while not refused and time.monotonic() < deadline:
        try:
            refused = _ask(server)[0] != 200
        except OSError:
            refused = True
    assert refused
    for each in many:
        each.close()
    while time.monotonic() < deadline:
        try:
            if _ask(server)[0] == 200:
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail("there is no room after all others have ended")


def test_headers_are_bounded(server: PageServer) -> None:
    """Nobody without the token has the server keep more than a few headers."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20)
        with contextlib.suppress(OSError):
            for _ in range(20):
                connection.sendall(b"c: " + bytes([100]) * 5_000 + b"\r\n")
        assert _answer(connection).startswith(b"HTTP/1.1 431 ")


def test_why_a_task_ran_there_is_told(server: PageServer, emit: Emit) -> None:
    step = PlacementStep(0.1, "node-0", "asked", 1, (0,))
    emit(
        *query_events(1),
        kinds.StagePlaced(at=1002.0, query=1, stage=0, tasks=(0, 1), steps=(step,)),
    )
    server.site.poll()
    status, _, body = _ask(server, "why?key=abc-1&stage=0&task=0")
    first, rule, *steps = json.loads(body)["why"]
    assert (200, "task 0 ran on node-0-e0, attempt 1") == (status, first)
    assert "it may run on any node" == rule.strip()
    assert ["100.000 ms  node-0 has 1 free slot(s), asks, and is given this task"] == steps
    for wrong in ("key=abc-1&stage=0&task=9", "key=x&stage=0&task=0", "key=abc-1&stage=x", ""):
        assert 404 == _ask(server, f"why?{wrong}")[0]


def test_pages_elsewhere_need_a_certificate() -> None:
    with pytest.raises(OptionError, match="certificate"):
        PageServer(Site([]), host="0.0.0.0")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and page.example that nobody has signed, and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    files = str(folder / "cert.pem"), str(folder / "key.pem")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        " -subj /CN=page.example -addext subjectAltName=IP:127.0.0.1,DNS:page.example"
    )
    made = [*command.split(), "-out", files[0], "-keyout", files[1]]
    subprocess.run(made, check=True, capture_output=True)
    return files


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
def test_a_page_with_a_certificate_speaks_https(certificate: tuple[str, str]) -> None:
    """To whoever trusts it, under each of its names; silence and plain http hold nobody up."""
    served = PageServer(Site([]), certificate=certificate)
    served.start()
    silent = socket.create_connection(("127.0.0.1", served.port), timeout=5)
    plain = socket.create_connection(("127.0.0.1", served.port), timeout=5)
    plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
    trusting = ssl.create_default_context(cafile=certificate[0])

    def ask(method: str = "GET", path: str = "", **headers: str) -> int:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", served.port, timeout=5, context=trusting
        )
        with contextlib.closing(connection):
            connection.request(method, f"/{served.token}/{path}", None, headers)
            return connection.getresponse().status

    try:
        assert f"https://127.0.0.1:{served.port}/{served.token}/" == served.address
        assert (200, 200) == (ask(), ask(Host="page.example:443"))
        cancel = {"Host": "page.example", "X-Minishark-Token": served.token}
        assert 400 == ask("POST", "cancel", Origin="https://page.example", **cancel), "no body"
        assert 403 == ask("POST", "cancel", Origin="https://evil.example", **cancel)
        with pytest.raises(urllib.error.URLError, match="self-signed"):
            urllib.request.urlopen(served.address, timeout=5)
        assert b"HTTP" not in _answer(plain)
    finally:
        served.stop()
        silent.close()
        plain.close()


def _answer(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1_000)
    except ConnectionResetError:
        return b""


def test_files_that_are_no_certificate_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no")
    with pytest.raises(OptionError, match="certificate can't be used"):
        PageServer(Site([]), certificate=(str(tmp_path / "no.pem"), str(tmp_path / "no.pem")))


def test_a_port_that_is_taken_is_an_error_with_a_reason(server: PageServer) -> None:
    with pytest.raises(OptionError, match="in use"):
        PageServer(Site([]), port=server.port)


# Histories and exports


def test_a_history_is_followed_and_changes_nothing(tmp_path: Path) -> None:
    writer = HistoryWriter(tmp_path, BEGAN)
    writer.write(query_events(1))
    site = Site([HistorySource(tmp_path)], can_cancel=False)
    served = PageServer(site)
    served.start()
    try:
        assert 1 == len(_view(served, "queries")["queries"])
        writer.write(query_events(2, state="running"))
        site.poll()
        assert 2 == len(_view(served, "queries")["queries"])
        answer = _ask(
            served, "cancel", method="POST", body=b'{"key": "abc-2"}',
            X_Minishark_Token=served.token,
        )  # fmt: skip
        assert 409 == answer[0]
    finally:
        writer.close()
        served.stop()


def test_a_session_that_was_killed_has_ended(tmp_path: Path) -> None:
    """Its process is gone, so what ran is lost."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    began = msgspec.structs.replace(BEGAN, host=socket.gethostname(), pid=gone.pid)
    writer = HistoryWriter(tmp_path, began)
    writer.write(query_events(1, state="running"))
    writer.close()
    site = Site([HistorySource(tmp_path)], can_cancel=False)
    site.poll()
    assert "lost" == site.look(lambda board: board.queries["abc-1"].state)


def test_an_exported_query_is_one_file_without_connections(server: PageServer, emit: Emit) -> None:
    """Texts in it can't end the script that holds them."""
    emit(*query_events(1, "SELECT '</script><script>alert(1)</script><!--'"))
    server.site.poll()
    status, headers, body = _ask(server, "export?key=abc-1")
    text = body.decode()
    assert (200, 'attachment; filename="query-abc-1.html"') == (
        status,
        headers["Content-Disposition"],
    )
    assert "alert(1)</script>" not in text
    assert 2 == text.count("</script>")
    assert "default-src 'none'; script-src 'sha256-" in text.replace("&#x27;", "'")
    assert "src=" not in text.replace("script-src=", "").split("<script>")[0]
    found = json.loads(text.split('type="application/json">')[1].split("</script>")[0])
    assert "SELECT '</script><script>alert(1)</script><!--'" == found["query"]["sql"]
    assert "0.0" in found["why"]
    assert "abc-1" == server.site.look(newest_query)
    assert server.site.look(lambda board: export_query(board, "none")) is None
    assert 404 == _ask(server, "export?key=none")[0]


@pytest.mark.parametrize("path", ["http://[", "/?" + "a=1&" * 20], ids=["host", "options"])
def test_malformed_addresses_are_refused(server: PageServer, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert connection.recv(1_000).startswith(b"HTTP/1.1 400 ")


def test_a_port_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match="between 0 and 65535"):
        PageServer(Site([]), port=70_000)


def test_connections_without_a_token_keep_nobody_out(server: PageServer) -> None:
    """Anybody on this machine can open as many as there may be, and be silent."""
    silent = [
        socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(CONNECTIONS_MAX)
    ]
    try:
        assert 200 == _ask(server)[0]
        silent[0].settimeout(5)
        assert b"" == silent[0].recv(1)
    finally:
        for each in silent:
            each.close()
