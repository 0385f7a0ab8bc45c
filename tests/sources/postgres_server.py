"""A PostgreSQL server of the tests' own, in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pytest

PASSWORD = "open sesame"  # with a blank, which has to be quoted
_LIMIT_S = 60


@dataclass(frozen=True)
class Server:
    """A running server."""

    programs: Path
    port: int
    user: str | None  # whom its programs run as; None for who runs the tests

    @property
    def uri(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    @property
    def dsn(self) -> str:
        return self.uri.replace("tester@", f"tester:{PASSWORD.replace(' ', '%20')}@")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; the rows of the last."""
        rows: list[tuple[Any, ...]] = []
        with adbc.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": False})
                    cursor.execute(statement)
                    rows = cursor.fetchall() if cursor.description else []
        return rows

    def run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of PostgreSQL's programs, connected to the server."""
        environment = {**os.environ, "PGPASSWORD": PASSWORD, "PGUSER": "tester"}
        environment |= {"PGHOST": "127.0.0.1", "PGPORT": str(self.port), "PGDATABASE": "postgres"}
        command = [str(self.programs / program), *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)  # fmt: skip


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server that ends with the block; skips where none can run."""
    programs = _programs()
    user = _unprivileged()
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    # Another user's server has to reach its folder.
    for each in (folder, Path(tempfile.gettempdir())):
        each.chmod(each.stat().st_mode | 0o011)
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if user is not None:
        for each in (folder, secret):
            shutil.chown(each, user)
    data = str(folder / "data")
    try:
        _done(user, programs / "initdb", "-D", data, "-U", "tester", "-A", "scram-sha-256",
              "--pwfile", str(secret), "-N", "--locale-provider=libc", "--locale=C.UTF-8",
              "-E", "UTF8")  # fmt: skip
        port = _free_port()
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _done(user, programs / "pg_ctl", "-D", data, "-w", "-t", str(_LIMIT_S), "-o", options,
              "-l", str(folder / "log"), "start")  # fmt: skip
        try:
            yield Server(programs, port, user)
        finally:
            _done(user, programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    if found:
        return found[-1]
    server = shutil.which("postgres")
    if server is None:
        pytest.skip("PostgreSQL is not installed")
    return Path(server).parent


def _unprivileged() -> str | None:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    pytest.skip("PostgreSQL can't run as root, and there is no other user")


def _done(user: str | None, program: Path, *arguments: str) -> None:
    done = subprocess.run([str(program), *arguments], check=False, capture_output=True,
                          timeout=_LIMIT_S, user=user, cwd="/",
                          env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]})  # fmt: skip
    if done.returncode:
        pytest.skip(f"{program.name} failed: {done.stderr.decode()[-300:]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
