"""Under a memory limit that the data does not fit: everything works, from disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

import minishark
from minishark.errors import OptionError, ResourceError
from minishark.session.session import Session
from minishark.worker.memory import NodeMemory
from minishark.worker.run_task import TaskRunner

LIMIT = 192 << 20
STORAGE = NodeMemory(LIMIT, 1).storage_bytes
ROWS = 600_000
FEWER = 450_000
TEXT = "hash(i) || repeat('x', 50)"
SOURCE = f"SELECT i AS id, i % 1000 AS kind, {TEXT} AS text FROM range({ROWS}) r(i)"


@pytest.fixture(scope="module")
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """The data in plain DuckDB."""
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t AS {SOURCE}")
        yield connection


@pytest.fixture(scope="module")
def session(plain: duckdb.DuckDBPyConnection) -> Iterator[Session]:
    """One executor with the least memory, and a table that is larger than its share."""
    with minishark.connect(
        nodes=1, executors_per_node=1, partitions=3, single_task_rows=0, memory_limit=LIMIT
    ) as found:
        found.create_table("t", plain.table("t"), partition_by="id", replicas=1)
        yield found


@pytest.mark.slow
def test_what_does_not_fit_lies_on_disk(session: Session) -> None:
    """Files keep to their share of shared memory; the rest is on disk, and both are told."""
    (node,) = session.nodes()
    assert node.stored_bytes <= STORAGE < node.stored_bytes + node.disk_bytes
    assert any("table t is on disk" in warning for warning in session.warnings)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*), count(DISTINCT text), sum(id) FROM t",
        pytest.param(
            """SELECT a.kind, count(*), max(b.text) FROM t a JOIN t b ON a.text = b.text
            GROUP BY ALL ORDER BY 1""",
            marks=pytest.mark.slow,
        ),
        """SELECT *, row_number() OVER (PARTITION BY kind ORDER BY text) AS n FROM t
        QUALIFY n = 500 ORDER BY kind""",
        "SELECT text, id FROM t ORDER BY text",
    ],
)
def test_queries_larger_than_memory(
    session: Session, plain: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """Aggregates, joins, windows and sorts that spill answer as plain DuckDB does."""
    expected, found = plain.sql(sql).to_arrow_table(), session.sql(sql).to_arrow()
    assert expected.equals(found.cast(expected.schema))


@pytest.mark.slow
def test_shuffles_on_disk_are_told(session: Session) -> None:
    """EXPLAIN ANALYZE tells what a stage has put on disk."""
    text = session.sql("SELECT text, id FROM t ORDER BY text").plan_text("analyze")
    assert " on disk)" in str(text)


@pytest.mark.slow
def test_what_duckdb_spills_is_told(session: Session) -> None:
    """Of each task, for programs, and by EXPLAIN ANALYZE; of others there is nothing to say."""
    profile = session.sql("SELECT text, id FROM t ORDER BY text").profile()
    assert "spilled KB" in str(profile)
    assert sum(stage.totals.spilled_bytes for stage in profile.metrics.by_stage) > 0
    assert "spilled" not in str(session.sql("SELECT count(*) FROM t").profile())


def test_what_can_not_spill_is_a_resource_error(session: Session) -> None:
    """What fits no limit ends with what to do, and the session goes on."""
    with pytest.raises(ResourceError, match="raise memory_limit"):
        session.sql("SELECT list(text || text || text || text) FROM t, range(9)").to_arrow()
    assert [(ROWS,)] == [tuple(row) for row in session.sql("SELECT count(*) FROM t").collect()]


@pytest.mark.slow
def test_functions_run_one_after_the_other_where_memory_is_short(session: Session) -> None:
    """Each partition's function gets all of its rows, whatever it needs."""
    counts = session.table("t").map_partitions(_counted, schema="n BIGINT").collect()
    assert ROWS == sum(row.n for row in counts)


def _counted(rows: object) -> object:
    import pyarrow as pa

    assert isinstance(rows, pa.Table)
    return pa.table({"n": pa.array([rows.num_rows], pa.int64())})


def test_a_function_gets_no_more_memory_than_its_node(session: Session) -> None:
    """It raises a MemoryError that says what to do, and the executor lives on.

    Mapped files do not count.
    """
    before = [each.pid for node in session.nodes() for each in node.executors]
    with pytest.raises(MemoryError) as raised:
        session.submit(lambda: len(bytearray(2 << 30))).result()
    assert "raise memory_limit" in raised.value.__notes__[-1]
    assert 1 << 25 == session.submit(lambda: len(bytearray(1 << 25))).result()
    assert before == [each.pid for node in session.nodes() for each in node.executors]


def test_an_update_of_a_table_on_disk(session: Session, plain: duckdb.DuckDBPyConnection) -> None:
    """Statements that write take a copy into the session's own database, which has a limit too."""
    session.sql("CREATE TABLE u AS SELECT id, kind FROM t WHERE kind < 500")
    session.sql("UPDATE u SET kind = kind + 1")
    expected = plain.sql("SELECT sum(kind + 1) FROM t WHERE kind < 500").fetchall()
    assert (
        expected == duckdb.from_arrow(session.sql("SELECT sum(kind) FROM u").to_arrow()).fetchall()
    )


def test_limits_are_kept_on_after_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever is raised where memory is fitted; the executor's log tells it once."""
    fitted, many = list[int](), threading.Event()

    def fit(self: TaskRunner) -> None:
        fitted.append(threading.get_ident())
        if len(fitted) > 2 * len(set(fitted)):
            many.set()
        raise ZeroDivisionError("of shares")

    monkeypatch.setattr(TaskRunner, "fit_memory", fit)
    with minishark.connect(in_process=True, nodes=1):
        assert many.wait(30)
    assert 1 <= capfd.readouterr().err.count("ZeroDivisionError: of shares") <= len(set(fitted))


def test_a_limit_that_is_too_low_says_what_is_needed() -> None:
    """Nothing is started with less than executors need."""
    with pytest.raises(OptionError, match="at least 384 MiB, not 100 MiB"):
        minishark.connect(nodes=2, executors_per_node=1, memory_limit="100MiB")
    with pytest.raises(OptionError, match="no amount of memory"):
        minishark.connect(memory_limit="lots")


def test_the_environment_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """MINISHARK_MEMORY_LIMIT holds where no other is named."""
    monkeypatch.setenv("MINISHARK_MEMORY_LIMIT", "10MB")
    with pytest.raises(OptionError, match="at least 384 MiB, not 9 MiB"):
        minishark.connect(nodes=2, executors_per_node=1)


# Small file systems, in a mount namespace of their own


@pytest.fixture(scope="session")
def run_with_mounts() -> Callable[[dict[str, str], str], str]:
    """Runs a program in a process that has file systems of its own: a size by mount point."""
    unshare = shutil.which("unshare")
    probe = [str(unshare), "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"]
    if unshare is None or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this user can't mount file systems")

    def run(sizes: dict[str, str], program: str) -> str:
        mounts = [
            f"mkdir -p {path} && mount -t tmpfs -o size={size} tmpfs {path}"
            for path, size in sizes.items()
        ]
        script = " && ".join([*mounts, 'exec "$@"'])
        command = [unshare, "-m", "sh", "-c", script, "sh", sys.executable, "-c", program]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    return run


_HEAD = f"""
import os, pathlib, duckdb, minishark
from minishark.errors import ResourceError
SOURCE = {SOURCE.replace(str(ROWS), str(FEWER))!r}
"""


@pytest.mark.slow
def test_shared_memory_of_a_container(run_with_mounts: Callable[..., str]) -> None:
    """With 64 MB of shared memory, as containers have, larger tables and shuffles work."""
    program = """
    with minishark.connect(nodes=2, partitions=2, single_task_rows=0) as session:
        session.create_table("a", duckdb.sql(SOURCE), partition_by="id")
        print(any("disk" in each for each in session.warnings))
        joined = "SELECT count(*), sum(a.kind) FROM a JOIN a b ON a.text = b.text"
        print(*session.sql(joined).collect()[0])
    print(os.listdir("/dev/shm"))
    """
    found = run_with_mounts({"/dev/shm": "64m"}, _HEAD + textwrap.dedent(program))
    kinds = sum(i % 1000 for i in range(FEWER))
    assert ["True", f"{FEWER} {kinds}", "[]"] == found.splitlines()


@pytest.mark.slow
def test_disk_that_fills_up(run_with_mounts: Callable[..., str]) -> None:
    """A full disk is a ResourceError; partial files are gone, and the session goes on."""
    target, scratch = Path("/mnt/target"), Path("/mnt/scratch")
    program = f"""
    os.environ["TMPDIR"] = {str(scratch)!r}
    def failing(run):
        try:
            run()
        except ResourceError as error:
            print("ResourceError", "full" in str(error))
    with minishark.connect(nodes=1, executors_per_node=1, single_task_rows=0) as session:
        failing(lambda: session.create_table("t", duckdb.sql(SOURCE), partitions=2))
        session.create_table("small", duckdb.sql(SOURCE + " LIMIT 600"), partition_by="id")
        pairs = "FROM small a, small b SELECT a.id, a.text, b.text"
        failing(session.sql(pairs + " ORDER BY a.text || b.text").to_arrow)
        failing(lambda: session.sql(f"COPY ({{pairs}}) TO '{target}/all.csv'"))
        print(os.listdir({str(target)!r}))
        print(session.sql("SELECT count(*) FROM small").collect()[0][0])
        kept = [p for p in pathlib.Path({str(scratch)!r}).rglob("*.arrow*")]
        print(sum(p.stat().st_size for p in kept) < 1 << 20)
    print(os.listdir({str(scratch)!r}))
    """
    sizes = {"/mnt": "1m", "/dev/shm": "4m", str(target): "2m", str(scratch): "24m"}
    found = run_with_mounts(sizes, _HEAD + textwrap.dedent(program))
    full = ["ResourceError True"]
    assert [*full * 3, "[]", "600", "True", "[]"] == found.splitlines()
