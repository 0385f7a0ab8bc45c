"""`minishark serve`, and the shell and `minishark sql` over a server."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import minishark
from minishark.adapters.flight.client import RemoteSession
from minishark.cli.app import run
from minishark.errors import (
    CatalogError,
    ClusterError,
    DataError,
    OptionError,
    QueryError,
    UnsupportedError,
)
from minishark.session.served import Served
from minishark.session.session import Session

_TOKEN = "a-token-that-nobody-guesses"
_START_S = 60.0


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session with a table."""
    with minishark.connect(in_process=True, nodes=1) as found:
        found.sql("CREATE TABLE numbers AS SELECT range AS i FROM range(100)")
        yield found


@pytest.fixture(scope="module")
def served(session: Session) -> Iterator[Served]:
    """It, served to who has a token or a password."""
    with session.serve(port=0, token=_TOKEN, users={"ann": "s3:cret"}) as found:
        yield found


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """The token, in a file."""
    file = tmp_path / "token"
    file.write_text(f"{_TOKEN}\n")
    return file


def test_sql_over_a_server(
    served: Served, token_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Statements run on the server, in one session; nothing is started or loaded here."""
    sql = "CREATE TEMP TABLE few AS FROM numbers WHERE i < 2; SELECT sum(i) AS total FROM few"
    options = ["--server", served.address, "--token-file", str(token_file), "--format", "csv"]
    assert 0 == run(["sql", sql, *options])
    assert capfd.readouterr().out.endswith("total\n1\n")
    assert 1 == run(["sql", "FROM few", *options])
    assert "few does not exist" in capfd.readouterr().err


def test_a_script_over_a_server(
    served: Served, token_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Dot-commands work that need no cluster; the others say so, with the line."""
    (tmp_path / "more.csv").write_text("a,b\n1,x\n2,y\n")
    script = tmp_path / "script.sql"
    script.write_text(
        f".load {tmp_path / 'more.csv'}\n.tables\n.schema more\n"
        "SELECT sum(a) AS a FROM more;\n.explain SELECT sum(a) FROM more\n"
        "DROP TABLE more;\n.cluster\n"
    )
    options = ["--server", served.address, "--token-file", str(token_file)]
    assert 1 == run(["run", str(script), *options])
    shown = capfd.readouterr()
    for text in ("numbers", "b VARCHAR", "Physical plan"):
        assert text in shown.out
    assert "a server shows it to the cluster's own sessions" in shown.err
    assert "line 7" in shown.err


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--server", "grpc://127.0.0.1:1"], 1, "(?i)connect"),
        (["--server", "http://127.0.0.1:1"], 2, "is no server; write grpc://HOST:PORT"),
        (["--server", "grpc://127.0.0.1"], 2, "has no port"),
        (["--server", "grpc://127.0.0.1:1", "--cluster", "x"], 2, "A server has its cluster"),
        (["--trust", __file__], 2, "go with --server"),
    ],
)
def test_wrong_servers(
    options: list[str], status: int, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What can't be a server, or does not answer, is told."""
    assert status == run(["sql", "SELECT 1", *options])
    assert re.search(message, " ".join(capfd.readouterr().err.split()))


def test_who_may_ask(served: Served, capfd: pytest.CaptureFixture[str]) -> None:
    """A user with a password may; others learn what the server asks for."""
    place = served.address.removeprefix("grpc://")
    assert 0 == run(["sql", "SELECT 42 AS a", "--server", f"grpc://ann:s3%3Acret@{place}"])
    assert "42" in capfd.readouterr().out
    assert 2 == run(["sql", "SELECT 42", "--server", f"grpc://ann:wrong@{place}"])
    assert "does not know" in capfd.readouterr().err
    assert 2 == run(["sql", "SELECT 42", "--server", served.address])
    assert "asks for a token" in capfd.readouterr().err


def test_errors_of_a_server_are_ours(served: Served, session: Session, tmp_path: Path) -> None:
    """A statement fails on a server with the same error as in a session."""
    (tmp_path / "numbers.csv").write_text("i\n1\n")
    with RemoteSession(served.address, token=_TOKEN) as remote:
        for sql, error in (
            ("FROM nope", QueryError),
            ("DROP TABLE nope", CatalogError),
            ("VACUUM", UnsupportedError),
        ):
            with pytest.raises(error) as here:
                session.sql(sql)
            with pytest.raises(error) as there:
                remote.sql(sql)
            assert str(here.value) == str(there.value)
        with pytest.raises(DataError, match="can't be read"):
            remote.create_table("t", "/nowhere.parquet")
        with pytest.raises(CatalogError, match="already"):
            remote.create_table("numbers", str(tmp_path / "numbers.csv"))
        with pytest.raises(ClusterError):
            remote.nodes()
        with pytest.raises(OptionError):
            remote.sql("SELECT 1").metrics()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of this machine that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    try:
        subprocess.run(
            [*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


def test_tls(
    session: Session, certificate: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """With TLS, clients that trust the certificate are answered, and others are not."""
    with session.serve(port=0, certificate=certificate, token=_TOKEN) as served:
        assert served.address.startswith("grpc+tls://")
        with RemoteSession(served.address, token=_TOKEN, certificate=certificate[0]) as remote:
            assert 100 == remote.sql("SELECT count(*) FROM numbers").to_arrow().column(0)[0].as_py()
        with pytest.raises(ClusterError):
            RemoteSession(served.address, token=_TOKEN)
        with pytest.raises(ClusterError):
            RemoteSession(served.address.replace("+tls", ""), token=_TOKEN)
    with session.serve(host="0.0.0.0", port=0, certificate=certificate, token=_TOKEN) as served:
        address = f"grpc+tls://localhost:{served.port}"
        with RemoteSession(address, token=_TOKEN, certificate=certificate[0]) as remote:
            assert ["numbers"] == remote.tables
    with pytest.raises(DataError, match="can't be read"):
        session.serve(port=0, certificate=("nowhere.pem", "nowhere.key"))


@contextlib.contextmanager
def _serving(*options: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command while it serves, and its address."""
    command = [sys.executable, "-m", "minishark.cli", "serve", "--flight", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--nodes", "1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            assert process.stdout is not None
            deadline, line = time.monotonic() + _START_S, ""
            while not line.startswith("Serving") and time.monotonic() < deadline:
                line = process.stdout.readline()
            yield process, line.split()[1]
        finally:
            process.kill()


@pytest.mark.slow
def test_serve_until_it_is_interrupted(tmp_path: Path) -> None:
    """The command says where it serves, serves what it has loaded, and ends at Ctrl-C."""
    (tmp_path / "few.csv").write_text("a\n1\n2\n")
    with _serving("--data", tmp_path / "few.csv") as (process, address):
        with RemoteSession(address) as remote:
            assert 3 == remote.sql("SELECT sum(a) FROM few").to_arrow().column(0)[0].as_py()
            process.send_signal(signal.SIGINT)
            assert 130 == process.wait(_START_S)
        assert process.stdout is not None
        assert "Traceback" not in process.stdout.read()


@pytest.mark.slow
def test_serve_a_warehouse(tmp_path: Path) -> None:
    """Tables of the warehouse that clients make are there when the server is not."""
    pytest.importorskip("pyiceberg")
    folder = str(tmp_path / "warehouse")
    with _serving("--warehouse", folder) as (process, address):
        with RemoteSession(address) as remote, RemoteSession(address) as other:
            remote.sql("CREATE TABLE warehouse.kept AS SELECT range AS i FROM range(3)")
            other.sql("BEGIN; INSERT INTO warehouse.kept VALUES (10); COMMIT")
            rows = remote.sql("SELECT sum(i)::INTEGER FROM warehouse.kept").to_arrow()
            assert 13 == rows.column(0)[0].as_py()
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(_START_S)
    with minishark.connect(in_process=True, nodes=1, warehouse=folder) as session:
        assert 4 == session.sql("FROM warehouse.kept").count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--flight", "0.0.0.0:0"], "needs a certificate with its key and a token"),
        (["--flight", "nonsense"], "write HOST:PORT"),
        (["--flight", "127.0.0.1:70000"], "write HOST:PORT"),
        (["--max-running", "0"], "0 is not in the range"),
    ],
)
def test_wrong_options(options: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What can't be served is refused before a cluster is started."""
    assert 2 == run(["serve", *options])
    assert message in " ".join(capfd.readouterr().err.split())


def test_wrong_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Tokens that can be guessed, and files without passwords, are refused."""
    file = tmp_path / "file"
    for text, option, message in (
        ("short", "--token-file", "must hold 20 or more"),
        ("", "--password-file", "has no line user:password"),
        ("ann", "--password-file", "line 1: write user:password"),
    ):
        file.write_text(text)
        assert 2 == run(["serve", option, str(file)])
        assert message in capfd.readouterr().err
