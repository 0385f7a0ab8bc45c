"""What strangers are held to at a served session: memory, time, connections, tries."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pyarrow.flight as fl
import pytest

import minishark
from minishark.adapters.flight.access import Access
from minishark.adapters.flight.client import RemoteSession
from minishark.errors import ClusterError, DataError, OptionError
from minishark.session import front
from minishark.session.front import Frames, Refusals
from minishark.session.page.certificate import Certificate
from minishark.session.served import Served
from minishark.session.session import Session

_TOKEN = "a-token-that-nobody-guesses"
_POOL = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each client
_SOON_S = 10.0


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session."""
    with minishark.connect(in_process=True, nodes=1) as found:
        yield found


@pytest.fixture
def served(session: Session) -> Iterator[Served]:
    """It, served to who has a token or a password."""
    with session.serve(port=0, token=_TOKEN, users={"ann": "s3cret"}) as found:
        yield found


def _eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SOON_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_answered(served: Served) -> bool:
    with RemoteSession(served.address, token=_TOKEN) as remote:
        return 42 == remote.run("SELECT 42").column(0)[0].as_py()


def _is_over(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_no_large_message_of_a_stranger(served: Served) -> None:
    """A call without a credential is cut off where it would have to be kept in memory."""
    body = bytes(4 << 20)
    with (
        fl.connect(served.address, generic_options=_POOL) as client,
        pytest.raises(fl.FlightUnavailableError),
    ):
        list(client.do_action(("CreatePreparedStatement", body)))
    with fl.connect(served.address, generic_options=_POOL) as client:
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {_TOKEN}".encode())])
        assert list(client.list_actions(options))  # after which the connection is no stranger's
        with pytest.raises(fl.FlightUnauthenticatedError):
            list(client.do_action(("CreatePreparedStatement", body)))


def test_strangers_do_not_keep_others_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of too many the oldest goes, and one who says nothing for too long; others are answered."""
    monkeypatch.setattr(front, "_HASTY_S", 0.05)
    place = ("127.0.0.1", served.port)
    with contextlib.ExitStack() as stack, RemoteSession(served.address, token=_TOKEN) as remote:
        strangers = [
            stack.enter_context(socket.create_connection(place))
            for _ in range(front.STRANGERS_MAX + 8)
        ]
        assert _is_answered(served)
        _eventually(lambda: all(map(_is_over, strangers[:8])))
        assert not _is_over(strangers[-1])
        monkeypatch.setattr(front, "STRANGER_S", 0.05)
        _eventually(lambda: all(map(_is_over, strangers)))
        assert 1 == remote.run("SELECT 1").num_rows


def _guessed(call: Callable[[], object]) -> int:
    """How often a call is refused, until it is not answered."""
    for count in range(1000):
        with pytest.raises(fl.FlightError) as refused:
            call()
        if not isinstance(refused.value, fl.FlightUnauthenticatedError):
            return count
    return 1000


def test_who_fails_often_is_not_heard(served: Served) -> None:
    """After so many wrong tries an address gets no answer, whatever it sends; who is in stays."""

    def guess() -> None:
        with fl.connect(served.address, generic_options=_POOL) as client:
            client.authenticate_basic_token("ann", "guess")

    with RemoteSession(served.address, token=_TOKEN) as remote:
        assert 30 <= _guessed(guess) <= 31  # those of a minute, and what has faded meanwhile
        with pytest.raises(ClusterError):
            _is_answered(served)
        assert 1 == remote.run("SELECT 1").num_rows


def test_many_tries_of_a_connection(served: Served) -> None:
    """A connection is over when it has made more calls than one with a credential needs."""
    with fl.connect(served.address, generic_options=_POOL) as client:
        assert _guessed(lambda: list(client.list_actions())) <= 16


def test_many_calls_at_once_of_who_is_known(served: Served) -> None:
    """Those of one connection wait for the answers to the first of them, and are all answered."""
    with (
        fl.connect(served.address, generic_options=_POOL) as client,
        ThreadPoolExecutor(100) as pool,
    ):
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {_TOKEN}".encode())])
        answers = pool.map(lambda _: len(list(client.list_actions(options))), range(100))
        assert all(answers)


def test_refusals_fade_and_are_bounded() -> None:
    """Each address is counted for itself, networks of IPv6 as one; few are remembered."""
    refusals = Refusals(6)
    for _ in range(5):
        refusals.add("10.0.0.1", 0.0)
    assert not refusals.are_too_many("10.0.0.1", 0.0)
    refusals.add("10.0.0.1", 0.0)
    assert refusals.are_too_many("10.0.0.1", 0.0)
    assert refusals.are_too_many("10.0.0.1", 9.0)
    assert not refusals.are_too_many("10.0.0.1", 11.0)
    assert not refusals.are_too_many("10.0.0.2", 0.0)
    for i in range(6):
        refusals.add(f"2001:db8::{i}", 0.0)
    assert refusals.are_too_many("2001:db8::ffff", 0.0)
    for _ in range(1_000):  # however many there were: a minute or two
        refusals.add("10.0.0.3", 0.0)
    assert not refusals.are_too_many("10.0.0.3", 121.0)
    for i in range(10_000):
        refusals.add(f"10.1.{i >> 8}.{i & 255}", 0.0)
    assert len(refusals) <= 4096


@pytest.mark.parametrize("seed", range(5))
def test_frames_wherever_bytes_are_cut(seed: int) -> None:
    """Frames are seen once, however their bytes come."""
    noise = random.Random(seed)
    frames = [
        (noise.randrange(10), noise.randrange(256), noise.randrange(1 << 31), noise.randrange(300))
        for _ in range(200)
    ]
    data = memoryview(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + b"".join(
            size.to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + noise.randbytes(size)
            for kind, flags, stream, size in frames
        )
    )
    reader, found, place = Frames(24), [], 0
    while place < len(data):
        size = noise.choice((1, 2, 8, 9, 10, 1000))
        found += [frame[:3] for frame in reader.feed(data[place : place + size])]
        place += size
    assert [frame[:3] for frame in frames] == found


# Sockets


def test_a_connection_ends_for_who_has_its_socket_too(served: Served) -> None:
    """What a child process inherited in a fork does not keep a client waiting."""
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        assert client.recv(1)  # of what gRPC says first
        inherited = [
            os.dup(tcp.fd)
            for tcp in psutil.Process().net_connections("tcp")
            if tcp.raddr == client.getsockname()
        ]
        try:
            assert inherited
            client.sendall(b"\xff" * 50)  # no frame of HTTP/2, after which gRPC ends
            _eventually(lambda: _is_over(client))
        finally:
            for fileno in inherited:
                os.close(fileno)


def test_odd_folders(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files may be where no address could be; a path that is too long is told."""
    odd = tmp_path / "a b%20#?ä"
    odd.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(odd))
    with session.serve(port=0, token=_TOKEN) as served:
        assert _is_answered(served)
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(OptionError, match="set TMPDIR to a shorter one"):
        session.serve(port=0, token=_TOKEN)
    assert [] == [*odd.iterdir(), *long.iterdir()]


@contextlib.contextmanager
def _file_descriptors(count: int) -> Iterator[None]:
    """A block in which so many more may be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_too_many_open_files(served: Served) -> None:
    """A client for whom one file descriptor is missing is not served; the next one is."""
    with socket.socket() as client:
        with _file_descriptors(1):
            client.connect(("127.0.0.1", served.port))
            _eventually(lambda: _is_over(client))
        assert _is_answered(served)


def test_a_file_that_could_not_be_read_for_a_moment(tmp_path: Path) -> None:
    """It is read as soon as it can be, although it has not changed since."""
    file = tmp_path / "tokens"
    file.write_text("another-token-that-nobody-guesses\n")
    access = Access(token=file)
    with file.open("w") as written, _file_descriptors(0):
        written.write(_TOKEN)
        written.flush()
        assert access.identify({"authorization": ["Bearer another-token-that-nobody-guesses"]})
    with pytest.raises(fl.FlightUnauthenticatedError):
        access.identify({"authorization": ["Bearer another-token-that-nobody-guesses"]})
    assert access.identify({"authorization": [f"Bearer {_TOKEN}"]})


@pytest.mark.parametrize("port", [-1, 65_536, 70_000])
def test_no_such_port(session: Session, port: int) -> None:
    """A port that there is not is refused, not taken for another."""
    with pytest.raises(OptionError, match="port must be between"):
        session.serve(port=port, token=_TOKEN)


# Certificates


def _make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", key, "-out", cert]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


def _shown(port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def test_a_certificate_is_replaced(session: Session, tmp_path: Path) -> None:
    """New connections get the files as they are by then; those that there are go on."""
    old, new = (_make_certificate(tmp_path, name) for name in ("old", "new"))
    used = tmp_path / "cert.pem", tmp_path / "key.pem"
    for source, target in zip(old, used, strict=True):
        target.write_bytes(source.read_bytes())
    ders = [ssl.PEM_cert_to_DER_cert(pair[0].read_text()) for pair in (old, new)]
    with session.serve(port=0, certificate=used, token=_TOKEN) as served:
        assert ders[0] == _shown(served.port)
        with RemoteSession(served.address, token=_TOKEN, certificate=old[0]) as remote:
            used[0].write_bytes(new[0].read_bytes())
            assert ders[0] == _shown(served.port)  # its key is not there yet
            used[1].write_bytes(new[1].read_bytes())
            assert ders[1] == _shown(served.port)
            assert 1 == remote.run("SELECT 1").num_rows
        with RemoteSession(served.address, token=_TOKEN, certificate=new[0]) as remote:
            rows = remote.run("SELECT i, repeat('x', 1000) AS x FROM range(20000) t(i)")
            assert 20_000 == rows.num_rows
        used[1].unlink()
        assert ders[1] == _shown(served.port)


def test_certificates_that_are_none(tmp_path: Path) -> None:
    """Files that are not there, do not fit, or need a password are refused at once."""
    first, second = (_make_certificate(tmp_path, name) for name in ("first", "second"))
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-in", first[1], "-out", locked, "-aes128", "-passout", "pass:x"]
    subprocess.run(command, check=True, capture_output=True)
    for key in (tmp_path / "nowhere", second[1], first[0], locked):
        with pytest.raises(DataError, match="can't be read"):
            Certificate((first[0], key))


# Tokens and passwords in files


def test_tokens_and_passwords_change(session: Session, tmp_path: Path) -> None:
    """Who is added may ask, who is taken out may not, with what was issued for it; tokens end."""
    tokens, users = tmp_path / "tokens", tmp_path / "users"
    other = "another-token-that-nobody-guesses"
    tokens.write_text(f"# ours\n{_TOKEN} 2100-01-01\n")
    users.write_text("ann:s3cret\n")
    with (
        session.serve(port=0, token=tokens, users=users) as served,
        fl.connect(served.address) as client,
    ):

        def may(header: tuple[bytes, bytes]) -> bool:
            try:
                return bool(list(client.list_actions(fl.FlightCallOptions(headers=[header]))))
            except fl.FlightUnauthenticatedError:
                return False

        def shown(token: str) -> tuple[bytes, bytes]:
            return b"authorization", f"Bearer {token}".encode()

        issued = client.authenticate_basic_token("ann", "s3cret")
        for_token = client.authenticate_basic_token("", _TOKEN)
        assert all(map(may, (issued, for_token, shown(_TOKEN))))
        assert not may(shown(other))
        tokens.write_text(f"{other}\n{_TOKEN} 2001-01-01T12:00+01:00\n")
        assert may(shown(other))
        assert not may(shown(_TOKEN))
        assert not may(for_token)
        users.write_text("ann:another\n")
        assert not may(issued)
        tokens.write_text("short\n")  # a mistake lets nobody in, and nobody out
        assert may(shown(other))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold 20 or more"),
        ("short 2100-01-01", "line 1 must hold 20 or more"),
        (f"{_TOKEN}\n{_TOKEN} tomorrow", "line 2: a token ends at a date"),
    ],
)
def test_files_without_tokens(session: Session, tmp_path: Path, text: str, message: str) -> None:
    """What can't be read is told at the start."""
    (tmp_path / "tokens").write_text(text)
    with pytest.raises(OptionError, match=message):
        session.serve(port=0, token=tmp_path / "tokens")
    with pytest.raises(DataError, match="can't be read"):
        session.serve(port=0, users=tmp_path / "nowhere")
