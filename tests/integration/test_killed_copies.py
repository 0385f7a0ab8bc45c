"""A front end that is killed in COPY TO leaves whole files, and a local folder whole as well."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import duckdb
import pytest
import s3_server
from killed_copy import PARTITIONS, ROWS
from processes import until
from s3_server import S3Server

_SCRIPT = Path(__file__).with_name("killed_copy.py")
_KILLS = 12
_FILES = 3 * PARTITIONS
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.running() as running:
        yield running


def killed(
    target: str, mode: str, until_then: Callable[[], None] | None = None, **more: str
) -> float | None:
    """Begin a COPY, and kill the front end then; how long it took if it had ended."""
    command = [sys.executable, str(_SCRIPT), target, mode]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | more, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert "begins\n" == process.stdout.readline()
        began_s = time.monotonic()
        if until_then is not None:
            until_then()
            os.kill(process.pid, signal.SIGKILL)
        done = process.stdout.readline() == "done\n"
        took_s = time.monotonic() - began_s
    until(lambda: not _is_alive(process.pid), "its end")  # its nodes and executors have ended, too
    return took_s if done else None


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def counted(files: list[Path]) -> int:
    """The rows in files, all of which are whole."""
    names = [str(file) for file in files]
    ((count, distinct),) = duckdb.sql(
        f"SELECT count(*), count(DISTINCT i) FROM read_parquet({names})"
    ).fetchall()
    assert count == distinct
    return int(count)


@pytest.mark.parametrize("mode", ["overwrite", "append, filename_pattern 'new_{uuid}'"])
def test_a_local_folder(tmp_path: Path, mode: str) -> None:
    """A new or replaced folder is whole, or was not touched; one that is added to has whole files.

    Between the renames of a folder that is replaced there is none: what was there is beside it.
    """
    chance = random.Random(17)
    took_s = killed(str(tmp_path / "first"), mode)
    assert took_s is not None
    outcomes: Counter[str] = Counter()
    for number in range(_KILLS):
        folder = tmp_path / str(number)
        before = 1 if number % 2 else 0
        if before:
            folder.mkdir()
            duckdb.sql(f"COPY (SELECT -1 AS i, 0 AS k, '' AS text) TO '{folder}/old.parquet'")
        wait = partial(time.sleep, chance.uniform(0, 1.3 * took_s))
        done = killed(str(folder), mode, wait) is not None
        found = sorted(folder.rglob("*.parquet"))
        kept = sorted(tmp_path.glob(f".{number}.*/replaced/**/old.parquet"))
        rows = counted(found) if found else 0
        if mode == "overwrite":
            assert rows in (0, before, ROWS), number
            assert rows or kept or not before, number
        assert rows == (ROWS + before * (mode != "overwrite")) or not done
        outcomes["done" if done else "new" if rows >= ROWS else "old" if rows else "none"] += 1
    assert outcomes["none"] + outcomes["old"] > 0, outcomes
    assert outcomes["done"] + outcomes["new"] > 0, outcomes


def test_a_prefix_of_a_store(server: S3Server, tmp_path: Path) -> None:
    """Files that are there are whole; what has no name yet is below a prefix that patterns miss."""
    first = server.make_bucket()
    assert killed(f"{first}/out", "overwrite", **server.environment)
    requests = sum(each.path.startswith(f"/{first[5:]}") for each in server.requests)
    outcomes: Counter[str] = Counter()
    for number in range(_KILLS):
        bucket, folder = server.make_bucket(), tmp_path / str(number)
        enough = len(server.requests) + requests * (number + 1) // _KILLS

        def seen(enough: int = enough) -> bool:
            return len(server.requests) >= enough

        then = partial(until, seen, "so many requests", 60)
        done = killed(f"{bucket}/out", "overwrite", then, **server.environment)
        keys = server.keys(bucket)
        named = [key for key in keys if key.startswith("out/")]
        assert all(key.startswith(("out/", ".out.minishark-")) for key in keys)
        folder.mkdir()
        server.download(bucket, folder)
        rows = counted(sorted((folder / "out").rglob("*.parquet"))) if named else 0
        assert (rows == ROWS) == (len(named) == _FILES)
        assert rows == ROWS or done is None
        outcomes["all" if rows == ROWS else "some" if rows else "none"] += 1
    assert min(outcomes["all"] + outcomes["some"], outcomes["none"]) > 0, outcomes
