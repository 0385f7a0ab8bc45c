"""SQLAlchemy's own suite of tests for dialects, over sessions of the process and over a server.

Its plugin takes over the run of pytest that loads it: so it has one of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import minishark

pytest.importorskip("sqlalchemy")

_FOLDER = Path(__file__).parent / "sqlalchemy_suite"
_LIMIT_S = 1800


@pytest.fixture(params=["session", "flight"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """An engine's URL."""
    if request.param == "session":
        yield "minishark://"
        return
    pytest.importorskip("adbc_driver_flightsql")
    with minishark.connect(in_process=True, nodes=1) as session, session.serve(port=0) as served:
        yield served.address.replace("grpc://", "minishark+flight://")


@pytest.mark.slow
@pytest.mark.timeout(_LIMIT_S)
def test_the_suite(url: str) -> None:
    """All pass of what `requirements.py` does not exclude with a reason."""
    folders = [str(_FOLDER), str(Path(minishark.__file__).parents[1])]
    options = ["-c", os.devnull, "--rootdir", str(_FOLDER), "--noconftest", "-p", "plugin"]
    options += ["-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "-q", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--dburi", url, "--maxfail=100", "suite.py"],
        cwd=_FOLDER,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    assert int(found[1]) > 1000
