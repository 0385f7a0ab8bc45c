"""PostgreSQL behind a session: one moment, lost connections, and what is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import Server

import minishark
from minishark.errors import DataError, MinisharkError
from minishark.sources.postgres import PostgresSource

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_TRANSFER = """
\\set a random(1, 200000)
\\set b random(1, 200000)
\\set d random(1, 100)
BEGIN;
UPDATE money SET balance = balance + :d WHERE id = :a;
UPDATE money SET balance = balance - :d WHERE id = :b;
INSERT INTO debts VALUES (:d);
INSERT INTO claims VALUES (-:d);
COMMIT;
"""
_CONNECTIONS = (
    "SELECT count(*)::int8 FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


@pytest.fixture(scope="module")
def session() -> Iterator[minishark.Session]:
    """Two nodes, and tasks for the smallest query."""
    with minishark.connect(in_process=True, nodes=2, partitions=3, single_task_rows=0) as found:
        yield found


@pytest.fixture(scope="module")
def money(server: Server) -> Server:
    """A table of several splits."""
    server.sql(
        "CREATE TABLE money AS SELECT i AS id, 0::int8 AS balance, repeat('x', 120) AS filler "
        "FROM generate_series(1, 200000) i",
        "ALTER TABLE money ADD PRIMARY KEY (id)",
        "CREATE TABLE debts (amount int8)",
        "CREATE TABLE claims (amount int8)",
        "ANALYZE",
    )
    return server


def settled(server: Server, expected: int = 0, limit_s: float = 20) -> int:
    """How many connections there are; those that are being closed get a moment."""
    deadline = time.monotonic() + limit_s
    while True:
        count = int(server.sql(_CONNECTIONS)[0][0])
        if count <= expected or time.monotonic() > deadline:
            return count
        time.sleep(0.1)


_BOTH = "SELECT sum(amount)::BIGINT, count(*) FROM (FROM pg_debts UNION ALL FROM pg_claims)"
_APART = "SELECT (SELECT sum(amount) FROM pg_debts) + (SELECT sum(amount) FROM pg_claims), 0"
_TWICE = "SELECT count(*) - (SELECT count(*) FROM pg_debts), 0 FROM pg_debts"


def test_loads_and_queries_see_one_moment_while_others_write(
    session: minishark.Session, money: Server, tmp_path: Path
) -> None:
    """Money moves all the time; no table has a part of a transfer, nor do two of one statement.

    That holds where tasks read them, and where statements run in the front end.
    """
    script = tmp_path / "transfer.sql"
    script.write_text(_TRANSFER)
    writer = money.run("pgbench", "-n", "-c", "1", "-T", "120", "-f", str(script))
    try:
        for name in ("money", "debts", "claims"):
            session.register_source(f"pg_{name}", PostgresSource(money.dsn, "public", name))
        session.sql("CREATE TABLE counted (total BIGINT, n BIGINT)")
        session.sql("CREATE VIEW transfers AS FROM pg_debts UNION ALL FROM pg_claims")
        seen = set()
        for _ in range(3):
            session.create_table(
                "loaded", PostgresSource(money.dsn, "public", "money"), replace=True
            )
            assert (0, 200_000) == session.sql(
                "SELECT sum(balance)::BIGINT, count(*) FROM loaded"
            ).collect()[0]
            session.sql("DELETE FROM counted")
            for sql in (_BOTH, _APART, _TWICE, "SELECT sum(amount), 0 FROM transfers"):
                total, count = session.sql(sql).collect()[0]
                assert (0, 0) == (total or 0, count % 2), sql
                seen.add(count)
                session.sql(f"INSERT INTO counted {sql}")
                (answer,) = session._runtime.query_in_front_end(sql).to_pylist()
                assert 0 == (next(iter(answer.values())) or 0), sql
            session.sql(f"CREATE OR REPLACE TABLE copied AS {_BOTH}")
            session.sql("INSERT INTO counted FROM copied")
            assert [0] * 5 == [row[0] or 0 for row in session.table("counted").collect()]
        assert len(seen) > 2, "nobody wrote"
    finally:
        writer.kill()
        writer.wait(10)


def test_a_lost_connection_is_an_error_that_names_the_table(
    session: minishark.Session, money: Server
) -> None:
    """Nothing is left of the load: no table, and no connection."""
    assert 0 == settled(money)
    source = PostgresSource(money.dsn, "public", "money")
    stopped = threading.Event()

    def disturb() -> None:
        while not stopped.is_set():
            money.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        with pytest.raises(DataError, match=r"postgres public\.money"):
            _load_often(session, source)
    finally:
        stopped.set()
        disturber.join(30)
    assert "broken" not in session.tables
    assert 0 == settled(money)
    session.create_table("whole", source)
    assert 200_000 == session.sql("FROM whole").count()


def _load_often(session: minishark.Session, source: PostgresSource) -> None:
    for _ in range(20):
        session.create_table("broken", source)
        session.sql("DROP TABLE broken")


def test_a_cancelled_query_leaves_no_connection(session: minishark.Session, money: Server) -> None:
    """Whatever the server is doing for it."""
    money.sql("CREATE VIEW long AS SELECT i, pg_sleep(0.05)::text FROM generate_series(1, 200) i")
    frame = session.read.postgres(money.dsn, "public", "long")

    async def cancelled() -> None:
        task = asyncio.create_task(frame.collect_async())
        await asyncio.sleep(2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert 0 == settled(money, limit_s=5)


def test_many_loads_and_failures_leave_no_connection(
    session: minishark.Session, money: Server
) -> None:
    """Also where a value does not fit, after the snapshot was exported."""
    money.sql("CREATE TABLE bad AS SELECT 'NaN'::numeric(5, 2) AS x")
    good = PostgresSource(money.dsn, "public", "claims")
    for number in range(100):
        session.create_table("claims", good)
        session.sql("DROP TABLE claims")
        if number % 10 == 0:
            with pytest.raises(DataError, match=r"column x of postgres public\.bad"):
                session.create_table("bad", PostgresSource(money.dsn, "public", "bad"))
            session.read.postgres(money.dsn, "public", "debts").count()
    assert 0 == settled(money)


def test_no_password_reaches_a_disk(
    money: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither event logs, audit logs nor files of the cluster have it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    memory = set(Path("/dev/shm").glob("minishark*"))
    with minishark.connect(
        nodes=1,
        partitions=2,
        single_task_rows=0,
        event_log=tmp_path / "events",
        audit=tmp_path / "audit",
    ) as session:
        frame = session.read.postgres(money.dsn, "public", "money")
        assert 200_000 == frame.count()
        session.create_table("kept", PostgresSource(money.dsn, "public", "money"))
        with pytest.raises(MinisharkError):
            session.sql(f"FROM postgres_scan('{money.dsn}', 'public', 'money')").collect()
        with pytest.raises(MinisharkError):
            session.sql(f"SELECT nothing FROM kept WHERE filler = '{money.dsn}'").collect()
        time.sleep(2)
        found = [path for path in tmp_path.rglob("*") if path.is_file()]
        for folder in set(Path("/dev/shm").glob("minishark*")) - memory:
            found += [path for path in folder.rglob("*") if path.is_file()]
        _assert_clean(found)
    logs = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert logs
    _assert_clean(logs)


def _assert_clean(files: list[Path]) -> None:
    for path in files:
        if path.exists():
            assert b"sesame" not in path.read_bytes(), path
