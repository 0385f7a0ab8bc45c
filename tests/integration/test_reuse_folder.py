"""Outputs that outlive clusters, in a folder or an object store."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3_server

import minishark
from minishark.cluster.launch import StartOptions, start_cluster, stop_cluster
from minishark.errors import DataError, OptionError
from minishark.query import names
from minishark.session.session import Session

ROWS = 60_000
WIDE = "SELECT a.k, a.s, b.g FROM '{0}' a JOIN '{0}' b ON a.k = b.k + 1"
GROUPS = "SELECT g, count(*) n, max(s) s FROM '{0}' GROUP BY g ORDER BY g"
TOTALS = f"SELECT count(*), sum(k), max(s) FROM ({WIDE})"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Rows in a file that is at once old enough to be told by its times."""
    path = tmp_path_factory.mktemp("data") / "t.parquet"
    numbers = list(range(ROWS))
    rows = {"k": numbers, "g": [i % 7 for i in numbers], "s": [f"{i:040}" for i in numbers]}
    pq.write_table(pa.table(rows), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(names, "_SETTLED_S", 0.0)
        yield path


def connected(folder: str | Path, **options: Any) -> Session:
    """A session on a new cluster that runs everything in stages."""
    options = {"reuse": "session", "reuse_folder": folder, **options}
    return minishark.connect(
        nodes=2, executors_per_node=1, in_process=True, single_task_rows=0, **options
    )


def asked(session: Session, sql: str) -> tuple[list[Any], int]:
    """An answer, and how many tasks it took."""
    frame = session.sql(sql)
    rows = sorted(tuple(row) for row in frame.collect())
    return rows, frame.metrics().tasks


def test_another_cluster_finds_what_one_has_computed(file: Path, tmp_path: Path) -> None:
    """Answers, and outputs that another query needs; nothing that was damaged."""
    wide, totals = WIDE.format(file), TOTALS.format(file)
    with connected(tmp_path / "kept") as session:
        expected, count = asked(session, wide)
        assert count
    with connected(tmp_path / "kept") as session:
        assert (expected, 0) == asked(session, wide)
        total, _ = asked(session, totals)
        assert session.warnings == ()
    entries = sorted((tmp_path / "kept").iterdir())
    assert max(path.stat().st_size for path in entries) > 1_000_000
    for path in entries:
        damaged = bytearray(path.read_bytes())
        damaged[-9] ^= 1
        path.write_bytes(damaged)
    with connected(tmp_path / "kept") as session:
        assert expected == asked(session, wide)[0]
        found, count = asked(session, totals)
        assert total == found
        assert count


def noted(folder: str, batch: pa.Table) -> pa.Table:
    """Notes its call; the 12th batch fails as long as a file says so."""
    first = batch["k"][0].as_py()
    with Path(folder, f"{first:02}").open("a", encoding="utf-8") as file:
        file.write("x")
    if first == 33 and Path(folder, "fails").exists():
        raise ValueError("not yet")
    return batch


@pytest.mark.parametrize("kind", ["collected", "stored"])
def test_another_cluster_makes_no_call_again(tmp_path: Path, kind: str) -> None:
    """Of a task that failed, or of one whose output was a table's."""
    calls, rows = tmp_path / "calls", pa.table({"k": list(range(60))})
    calls.mkdir()
    (calls / "fails").touch()

    def run() -> None:
        with connected(tmp_path / "kept") as session:
            session.create_table("t", rows, partitions=1)
            fn = functools.partial(noted, str(calls))
            mapped = session.table("t").map_batches(fn, "k BIGINT", batch_rows=3)
            if kind == "stored":
                mapped.write.mode("overwrite").save_as_table("mapped")
                mapped = session.table("mapped")
            assert list(range(60)) == sorted(row.k for row in mapped.collect())
            assert session.warnings == ()

    with pytest.raises(ValueError, match="not yet"):
        run()
    (calls / "fails").unlink()
    run()
    run()
    made = {path.name: path.read_text() for path in calls.iterdir()}
    again = {"33": "xx"}
    assert {f"{first:02}": "x" for first in range(0, 60, 3)} | again == made


@pytest.mark.parametrize("kind", ["partitions", "groups"])
def test_another_cluster_calls_no_function_again(tmp_path: Path, kind: str) -> None:
    """What functions returned for whole partitions is kept, whatever they were called by."""
    calls, rows = tmp_path / "calls", pa.table({"k": list(range(60)), "g": [1, 2, 3] * 20})
    calls.mkdir()
    for _ in range(2):
        with connected(tmp_path / "kept") as session:
            session.create_table("t", rows, partition_by="g", partitions=2)
            fn = functools.partial(noted, str(calls))
            t, schema = session.table("t"), "k BIGINT, g BIGINT"
            if kind == "partitions":
                mapped = t.map_partitions(fn, schema)
            else:
                mapped = t.group_by("g").apply_in_arrow(fn, schema)
            assert list(range(60)) == sorted(row.k for row in mapped.collect())
    made = {path.name: path.read_text() for path in calls.iterdir()}
    assert {"x"} == {*made.values()}


def test_the_folder_goes_with_reuse(tmp_path: Path) -> None:
    """And has to be one."""
    with pytest.raises(OptionError, match="reuse_folder goes with"):
        connected(tmp_path, reuse="off")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="Can't make the folder"):
        connected(tmp_path / "file" / "kept")


@pytest.mark.slow
def test_the_folder_stays_below_its_limit(file: Path, tmp_path: Path) -> None:
    """Answers are right, whatever has gone."""
    with connected(tmp_path, reuse_folder_limit="6MB") as session:
        for number in range(6):
            sql = f"SELECT k + {number} AS k, s FROM ({WIDE.format(file)})"
            assert ROWS - 1 == len(asked(session, sql)[0])
    assert 0 < sum(path.stat().st_size for path in tmp_path.iterdir()) < 12_000_000


@pytest.mark.slow
def test_a_cluster_that_was_started_again_finds_outputs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind what its nodes have."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    found = []
    for _ in range(2):
        record = start_cluster(StartOptions(name="again", nodes=2))
        try:
            for _ in range(2):
                with minishark.connect(
                    record.address,
                    single_task_rows=0,
                    reuse="cluster",
                    reuse_folder=tmp_path / "kept",
                    prints=False,
                ) as session:
                    texts = [text.format(file) for text in (WIDE, GROUPS, TOTALS)]
                    found.append([asked(session, text) for text in texts])
        finally:
            stop_cluster("again")
    assert all(count for _, count in found[0])
    for later in found[1:]:
        assert [(rows, 0) for rows, _ in found[0]] == later


@pytest.fixture(scope="module")
def server() -> Iterator[s3_server.S3Server]:
    """An S3 server on loopback."""
    with s3_server.running() as running:
        yield running


@pytest.mark.slow
def test_outputs_stay_in_an_object_store(file: Path, server: s3_server.S3Server) -> None:
    """Reached as all else in it is."""
    bucket = server.make_bucket()
    found = []
    for _ in range(2):
        with connected(f"{bucket}/outputs", storage_options=server.options) as session:
            found.append(asked(session, WIDE.format(file)))
            assert session.warnings == ()
    assert found[0][1]
    assert (found[0][0], 0) == found[1]
