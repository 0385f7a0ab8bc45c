"""Sessions over one cluster share tables and views; settings and temporary things are their own."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import minishark
from minishark.errors import (
    AlreadyExistsError,
    ClusterError,
    QueryCancelledError,
    QueryError,
    UnsupportedError,
)
from minishark.query.progress import ProgressHandler, QueryProgress
from minishark.session.session import Session
from minishark.sources.files import named_files
from minishark.sources.formats import OwnReach
from minishark.tables.interruption import Interruption, running

_ENDLESS = "SELECT sum(a.i * b.i % 7) FROM range(1000000) a(i), range(1000000) b(i)"
_NULLS = "SELECT x FROM (VALUES (1), (NULL)) AS v(x) ORDER BY x"


@pytest.fixture(scope="module")
def root() -> Iterator[Session]:
    """The session that the others are made of."""
    with minishark.connect(in_process=True, nodes=1) as found:
        found.create_table("shared", pa.table({"i": range(100)}))
        yield found


@pytest.fixture
def sessions(root: Session) -> Iterator[tuple[Session, Session, Session]]:
    """The first session and two others."""
    with root.new_session() as one, root.new_session() as other:
        yield root, one, other


def _rows(session: Session, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in session.sql(sql).collect()]


def _rows_in_front_end(session: Session, sql: str) -> list[tuple[object, ...]]:
    answer = session._runtime.query_in_front_end(sql)
    return [tuple(row.values()) for row in answer.to_pylist()]


def test_settings_stay_in_their_session(sessions: tuple[Session, Session, Session]) -> None:
    """SET in one session changes the answers of that session only, wherever the query runs."""
    root, one, other = sessions
    one.sql("SET default_null_order = 'nulls_first'")
    assert [(None,), (1,)] == _rows(one, _NULLS)
    for each in (root, other):
        assert [(1,), (None,)] == _rows(each, _NULLS)
    one.sql("SET VARIABLE limits = 7")
    assert [(7,)] == _rows(one, "SELECT getvariable('limits')")
    assert [(None,)] == _rows(other, "SELECT getvariable('limits')")
    one.sql("RESET default_null_order")
    assert [(1,), (None,)] == _rows(one, _NULLS)


def test_a_session_begins_with_the_settings_of_the_first(root: Session) -> None:
    """Settings of the first session hold in those made later, but not the other way round."""
    root.sql("SET default_null_order = 'nulls_first'")
    try:
        with root.new_session() as later:
            root.sql("RESET default_null_order")
            assert [(None,), (1,)] == _rows(later, _NULLS)
            assert [(1,), (None,)] == _rows(root, _NULLS)
    finally:
        root.sql("RESET default_null_order")


def test_settings_of_the_first_session_are_its_own(
    sessions: tuple[Session, Session, Session],
) -> None:
    """What it sets after others were opened holds for it alone, wherever a statement runs next."""
    root, one, other = sessions
    root.sql("SET VARIABLE chosen = 7")
    root.sql("SET default_null_order = 'nulls_first'")
    try:
        for each in (one, other):  # before the first one runs anything
            assert [(1,), (None,)] == _rows(each, _NULLS)
        for each in (one, other):
            assert [(1,), (None,)] == _rows_in_front_end(each, _NULLS)
            assert [(None,)] == _rows(each, "SELECT getvariable('chosen')")
        assert [(None,), (1,)] == _rows(root, _NULLS) == _rows_in_front_end(root, _NULLS)
        assert [(7,)] == _rows(root, "SELECT getvariable('chosen')")
    finally:
        root.sql("RESET default_null_order")


@pytest.mark.slow
def test_settings_say_how_each_session_reads_files(
    sessions: tuple[Session, Session, Session], tmp_path: Path
) -> None:
    """Sessions that read one file by different settings do so in turns, also as a table."""
    file = tmp_path / "binary.parquet"
    pq.write_table(pa.table({"b": pa.array([b"a"], pa.binary())}), file)
    root, one, other = sessions
    one.sql("SET binary_as_string = true")
    kinds = {root: "BLOB", one: "VARCHAR", other: "BLOB"}
    for _ in range(2):
        for session, kind in kinds.items():
            assert [(kind,)] == _rows(session, f"SELECT typeof(b) FROM '{file}'")
    for session, kind in kinds.items():
        session.create_table("of_file", str(file))
        assert [(kind,)] == _rows(session, "SELECT typeof(b) FROM of_file")
        root.drop_table("of_file")


@pytest.mark.slow
def test_temporary_definitions_of_the_first_session_are_its_own(
    sessions: tuple[Session, Session, Session],
) -> None:
    """Its temporary views and macros hide no others, on executors and in the front end."""
    root, one, other = sessions
    for number, session in enumerate(sessions):
        session.sql(f"CREATE TEMP VIEW numbered AS SELECT {number} AS n FROM shared LIMIT 1")
        session.sql(f"CREATE TEMP MACRO numbering() AS {number}")
    for number, session in enumerate(sessions):
        sql = "SELECT n, numbering() FROM numbered"
        whole = f"{sql} USING SAMPLE 5 ROWS"  # which runs as it is
        for found in _rows(session, sql), _rows(session, whole), _rows_in_front_end(session, sql):
            assert [(number, number)] == found
    root.sql("DROP VIEW numbered")
    root.sql("DROP MACRO numbering")
    with pytest.raises(QueryError):
        root.sql("FROM numbered")
    assert [(1,), (2,)] == [*_rows(one, "FROM numbered"), *_rows(other, "FROM numbered")]


@pytest.mark.slow
def test_sources_of_temporary_views_of_one_name_stay(
    sessions: tuple[Session, Session, Session], tmp_path: Path
) -> None:
    """A view keeps what it reads, whatever other sessions call by its name."""
    _, *few = sessions
    for number, session in enumerate(few):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"n": [number]}), file)
        frame = session.read.source(named_files(file, OwnReach()))
        session.sql(f"CREATE TEMP VIEW read_from AS {frame.sql()}")
        del frame
    gc.collect()
    few[0].read.source(named_files(file, OwnReach()))  # those that nobody holds go
    assert [[(0,)], [(1,)]] == [_rows(session, "FROM read_from") for session in few]


def test_transactions_stay_in_their_session(sessions: tuple[Session, Session, Session]) -> None:
    """A session has no part in what another has begun, and may be opened from one that has."""
    root, one, other = sessions
    root.sql("CREATE TABLE changing AS SELECT 1 AS i")
    try:
        for session in (root, one):
            session.sql("BEGIN")
        root.sql("INSERT INTO changing VALUES (2)")
        one.sql("INSERT INTO changing VALUES (3)")
        assert [True, True, False] == [session.in_transaction for session in sessions]
        assert [[1, 2], [1, 3], [1]] == [
            [i for (i,) in _rows(session, "FROM changing ORDER BY i")] for session in sessions
        ]
        with one.new_session() as later:
            assert not later.in_transaction
            assert [(1,)] == _rows(later, "FROM changing")
        root.sql("ROLLBACK")
        one.sql("COMMIT")
        for session in sessions:
            assert [(1,), (3,)] == _rows(session, "FROM changing ORDER BY i")
        one.sql("BEGIN")
        one.sql("INSERT INTO changing VALUES (4)")
        one.stop()
        assert [(2,)] == _rows(other, "SELECT count(*) FROM changing")
    finally:
        root.drop_table("changing")


def test_tags_and_interruptions_stay_in_their_session(
    sessions: tuple[Session, Session, Session],
) -> None:
    """A thread's tags are those of one session, which interrupts its own queries and loads only."""
    root, one, other = sessions
    root.add_tag("mine")
    one.add_tag("yours")
    try:
        assert [{"mine"}, {"yours"}, set()] == [session.get_tags() for session in sessions]
        found: dict[Session, list[list[str]]] = {}

        def hear(session: Session) -> ProgressHandler:
            def tagged(_: QueryProgress) -> None:
                scopes = [each._runtime.scope for each in sessions]
                found.setdefault(session, []).append(
                    [str(len(scope.tagged(None))) for scope in scopes]
                )

            return tagged

        for session in sessions:
            handler = hear(session)
            session.register_progress_handler(handler)
            _rows(session, "SELECT count(*) FROM shared WHERE i % 2 = 0")
            session.remove_progress_handler(handler)
        assert {
            root: ["1", "0", "0"],
            one: ["0", "1", "0"],
            other: ["0", "0", "1"],
        } == {session: told[0] for session, told in found.items()}
        one.clear_tags()
        assert [{"mine"}, set(), set()] == [session.get_tags() for session in sessions]
    finally:
        root.clear_tags()


def test_loads_are_interrupted_by_their_session() -> None:
    """`interrupt_all` cancels the load of a table in its session, and in no other."""

    def load(session: Session, other: Session) -> list[list[str]]:
        interrupted: list[list[str]] = []

        def tell(_: int, __: int) -> None:
            interrupted.extend([other.interrupt_all(), session.interrupt_all()])

        with pytest.raises(QueryCancelledError):
            session.create_table("loaded", pa.table({"i": range(100_000)}), on_progress=tell)
        return interrupted

    with minishark.connect(in_process=True, nodes=1) as root, root.new_session() as one:
        for session, other in ((root, one), (one, root)):
            theirs, own, *_ = load(session, other)
            assert (0, 1) == (len(theirs), len(own))
            assert "loaded" not in root.tables


@pytest.mark.slow
def test_promised_rows_are_computed_by_the_settings_of_their_session(
    sessions: tuple[Session, Session, Session],
) -> None:
    """Whoever needs them first; also when the session that promised them is over."""
    root, one, other = sessions
    for promises, needs in ((root, one), (one, root)):
        promises.sql("SET default_null_order = 'nulls_first'")
        kept = promises.sql(f"SELECT first(x) AS x FROM ({_NULLS})").cache()
        root.sql(f"CREATE OR REPLACE VIEW of_kept AS {kept.sql()}")
        assert [(None,)] == _rows(needs, "FROM of_kept")
        promises.sql("RESET default_null_order")
    with other.new_session() as gone:
        kept = gone.sql("SELECT 5 AS x").cache()
        root.sql(f"CREATE OR REPLACE VIEW of_kept AS {kept.sql()}")
    assert [(5,)] == _rows(root, "FROM of_kept")
    root.sql("DROP VIEW of_kept")


def test_settings_of_all_sessions_are_refused(sessions: tuple[Session, Session, Session]) -> None:
    """What a setting would change elsewhere is not changed silently."""
    _, one, _ = sessions
    with pytest.raises(UnsupportedError, match="a setting of other sessions"):
        one.sql("SET GLOBAL integer_division = true")
    with pytest.raises(UnsupportedError, match="a setting of other sessions"):
        one.sql("SET http_proxy = 'somewhere'")


@pytest.mark.slow
def test_temporary_tables_hide_shared_ones(sessions: tuple[Session, Session, Session]) -> None:
    """A temporary table of the name of a shared one is what its session sees, until it is gone."""
    root, one, other = sessions
    one.sql("CREATE TEMP TABLE shared AS SELECT i * 2 AS doubled FROM shared WHERE i < 3")
    assert [(0,), (2,), (4,)] == _rows(one, "FROM shared")
    one.sql("INSERT INTO shared VALUES (43)")
    assert [(4, 49)] == _rows(one, "SELECT count(*), sum(doubled) FROM shared")
    assert 4 == one.table("shared").count()
    for each in (root, other):
        assert [(100,)] == _rows(each, "SELECT count(*) FROM shared")
    one.sql("DROP TABLE shared")
    assert [(100,)] == _rows(one, "SELECT count(*) FROM shared")


@pytest.mark.slow
def test_temporary_views_and_macros(sessions: tuple[Session, Session, Session]) -> None:
    """Views and macros are shared, unless they are temporary or a DataFrame's."""
    root, one, other = sessions
    one.sql("CREATE TEMP VIEW mine AS SELECT 1 AS q")
    one.sql("CREATE TEMP MACRO more(x) AS x + 1")
    one.sql("CREATE VIEW ours AS SELECT count(*) AS n FROM shared")
    one.range(5).create_or_replace_temp_view("frames")
    try:
        assert [(2, 100, 5)] == _rows(
            one, "SELECT more(q), (SELECT n FROM ours), (SELECT count(*) FROM frames) FROM mine"
        )
        for each in (root, other):
            assert [(100,)] == _rows(each, "FROM ours")
            for missing in ("FROM mine", "SELECT more(1)", "FROM frames"):
                with pytest.raises(QueryError):
                    each.sql(missing)
        one.sql("DROP VIEW mine")
        with pytest.raises(QueryError):
            one.sql("FROM mine")
    finally:
        other.sql("DROP VIEW ours")
    with pytest.raises(QueryError):
        root.sql("FROM ours")


def test_writes_are_seen_everywhere(sessions: tuple[Session, Session, Session]) -> None:
    """What one session writes, the others read next, in queries, in the catalog and in schemas."""
    root, one, other = sessions
    one.sql("CREATE TABLE written AS SELECT i FROM shared")
    other.sql("INSERT INTO written VALUES (-1)")
    one.sql("UPDATE written SET i = -2 WHERE i = -1")
    other.sql("INSERT INTO written SELECT i FROM written WHERE i < 0")
    for each in sessions:
        assert [(102, -2)] == _rows(each, "SELECT count(*), min(i) FROM written")
        found = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'written'"
        assert [(1,)] == _rows(each, found)
    other.sql("DROP TABLE written")
    assert "written" not in root.tables


@pytest.mark.slow
def test_writes_from_temporary_tables_are_seen_everywhere(
    sessions: tuple[Session, Session, Session],
) -> None:
    """INSERT, MERGE, UPDATE and DELETE may read temporary tables; what they write is shared."""
    root, one, other = sessions
    one.sql("CREATE TABLE target AS SELECT i FROM shared WHERE i < 3")
    one.sql("CREATE TEMP TABLE few AS SELECT 10 AS i, 11 AS j")
    merge = (
        "MERGE INTO target USING (SELECT j AS i FROM few) AS few ON target.i = few.i "
        "WHEN NOT MATCHED THEN INSERT VALUES (few.i)"
    )
    for statement, expected in (
        ("INSERT INTO target SELECT i FROM few", [0, 1, 2, 10]),
        (merge, [0, 1, 2, 10, 11]),
        ("UPDATE target SET i = few.j + 9 FROM few WHERE target.i = few.j", [0, 1, 2, 10, 20]),
        ("DELETE FROM memory.main.target USING few WHERE target.i = few.i", [0, 1, 2, 20]),
        ("CREATE OR REPLACE TABLE target AS SELECT i + 1 AS i FROM few", [11]),
    ):
        one.sql(statement)
        for each in sessions:
            assert expected == [i for (i,) in _rows(each, "FROM target ORDER BY i")], statement
    one.sql("CREATE TABLE few AS SELECT 1 AS shared_one")
    assert [(10, 11)] == _rows(one, "FROM few")
    one.sql("INSERT INTO target SELECT i FROM few")
    assert [10, 11] == [i for (i,) in _rows(other, "FROM target ORDER BY i")]
    assert [(1,)] == _rows(other, "FROM few")
    one.sql("DROP TABLE few")  # the temporary one
    one.sql("DROP TABLE few")
    one.sql("DROP TABLE target")
    assert ["shared"] == root.tables


@pytest.mark.slow
def test_whole_names_in_statements_that_write(sessions: tuple[Session, Session, Session]) -> None:
    """`memory.main.t` is the shared table, whatever schema a session is in."""
    for session in sessions:
        session.sql("CREATE TABLE few AS SELECT i FROM shared WHERE i < 2")
        session.sql(
            'INSERT INTO memory.main.few SELECT "memory" . main.shared.i '
            'FROM memory.main."shared" -- memory.main.shared\n WHERE i = 7'
        )
        session.sql("CREATE SCHEMA IF NOT EXISTS away")
        session.sql("USE away")
        assert [(100,)] == _rows(session, "SELECT count(*) FROM memory.main.shared")
        session.sql("CREATE TABLE there AS SELECT 8 AS i")
        session.sql("CREATE TABLE memory.main.there AS SELECT -8 AS i")
        session.sql("INSERT INTO there SELECT i FROM memory.main.shared WHERE i = 9")
        with pytest.raises(UnsupportedError, match="Two tables are called there"):
            _rows(session, "SELECT count(*) FROM there, memory.main.there")
        assert [(8,), (9,)] == _rows(session, "FROM there ORDER BY i")
        assert [(-8,)] == _rows(session, "FROM memory.main.there")
        session.sql("INSERT INTO memory.main.few FROM there")
        session.sql("UPDATE memory.main.few SET i = 70 WHERE i = 7")
        for each in sessions:
            found = _rows(each, "SELECT i FROM memory.main.few ORDER BY i")
            assert [0, 1, 8, 9, 70] == [i for (i,) in found]
        session.sql("DELETE FROM memory.main.few WHERE i IN (SELECT i FROM there)")
        assert [(3,)] == _rows(session, "SELECT count(*) FROM memory.main.few")
        for name in ("there", "memory.main.there", "memory.main.few"):
            session.sql(f"DROP TABLE {name}")
        session.sql("USE memory.main")
        assert ["shared"] == session.tables


@pytest.mark.slow
def test_concurrent_writers_lose_nothing(sessions: tuple[Session, Session, Session]) -> None:
    """Sessions that write one table at the same time take turns."""
    root, *writers = sessions
    root.sql("CREATE TABLE counted (i INTEGER)")

    def write(session: Session) -> None:
        for i in range(20):
            session.sql(f"INSERT INTO counted VALUES ({i})")
            session.sql("SELECT table_name FROM information_schema.tables").collect()

    threads = [threading.Thread(target=write, args=(each,)) for each in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(40, 380)] == _rows(root, "SELECT count(*), sum(i) FROM counted")
    root.drop_table("counted")


def test_schemas_prepared_statements_and_functions(
    sessions: tuple[Session, Session, Session],
) -> None:
    """USE and PREPARE concern one session; Python functions are known to all."""
    _, one, other = sessions
    one.sql("CREATE SCHEMA apart")
    one.sql("USE apart")
    one.sql("CREATE TABLE here AS SELECT 5 AS z")
    assert [(5,)] == _rows(one, "FROM here")
    with pytest.raises(QueryError):
        other.sql("FROM here")
    assert [(5,)] == _rows(other, "FROM apart.here")
    one.sql("USE memory.main")
    one.sql("PREPARE plus AS SELECT 1 + $1")
    assert [(3,)] == _rows(one, "EXECUTE plus(2)")
    with pytest.raises(QueryError, match="no prepared statement"):
        other.sql("EXECUTE plus(2)")
    one.udf.register("next_number", lambda x: x + 1, "BIGINT")
    assert [(42,)] == _rows(other, "SELECT next_number(41)")


def test_stopping_one_session_leaves_the_others(root: Session) -> None:
    """A stopped session says so; the cluster and the other sessions stay."""
    one = root.new_session()
    one.stop()
    one.stop()
    assert one.is_stopped
    assert root.is_open
    with pytest.raises(ClusterError, match="stopped"):
        one.sql("SELECT 1")
    assert [(100,)] == _rows(root, "SELECT count(*) FROM shared")


def test_the_first_session_ends_all() -> None:
    """Sessions end with the one that they were made of."""
    with minishark.connect(in_process=True, nodes=1) as root:
        one = root.new_session().new_session()
    assert one.is_stopped
    with pytest.raises(ClusterError, match="stopped"):
        one.sql("SELECT 1")


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "sql",
    [
        _ENDLESS,
        f"CREATE TEMP TABLE slow AS {_ENDLESS}",
        f"INSERT INTO slow {_ENDLESS}",
    ],
)
def test_statements_are_interrupted_from_another_thread(root: Session, sql: str) -> None:
    """Whatever part of the engine runs a statement, another thread can end it."""
    interruption = Interruption()
    failed: list[BaseException] = []
    with root.new_session() as one:
        if sql.startswith("INSERT"):
            one.sql("CREATE TEMP TABLE slow (i HUGEINT)")

        def run() -> None:
            try:
                with running(interruption):
                    one.sql(sql).collect()
            except BaseException as error:  # noqa: BLE001 - looked at below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.2)
        interruption.cancel()
        thread.join(10)
        assert not thread.is_alive()
        assert isinstance(failed[0], QueryCancelledError)
        assert [(1,)] == _rows(one, "SELECT 1")


def test_temporary_tables_of_the_first_session_take_no_table_s_place() -> None:
    """They are in the schema main, where one of the same name would replace what is stored."""
    with minishark.connect(in_process=True) as session:
        session.sql("CREATE TABLE t AS SELECT i FROM range(10) r(i)")
        for columns in ("AS SELECT 100 AS i", "(i INTEGER)"):
            with pytest.raises(AlreadyExistsError, match="new_session"):
                session.sql(f"CREATE TEMP TABLE t {columns}")
            session.sql(f"CREATE TEMP TABLE IF NOT EXISTS t {columns}")
        assert [(45,)] == session.sql("SELECT sum(i) FROM t").collect()
        # A stored table is not replaced either, but by one that is stored.
        with pytest.raises(AlreadyExistsError, match="new_session"):
            session.sql("CREATE OR REPLACE TEMP TABLE t AS SELECT 100 AS i")
        assert [(45,)] == session.sql("SELECT sum(i) FROM t").collect()
        for i in (100, 200):
            session.sql(f"CREATE OR REPLACE TEMP TABLE own AS SELECT {i} AS i")
            assert [(i,)] == session.sql("FROM own").collect()
        session.sql("DROP TABLE own; CREATE TABLE own AS SELECT 300 AS i")
        with pytest.raises(AlreadyExistsError, match="new_session"):
            session.sql("CREATE OR REPLACE TEMP TABLE own AS SELECT 400 AS i")
        session.sql("CREATE OR REPLACE TEMP TABLE again AS SELECT 1 AS i")
        session.create_table("again", pa.table({"i": [2]}), replace=True)
        with pytest.raises(AlreadyExistsError, match="new_session"):
            session.sql("CREATE OR REPLACE TEMP TABLE again (i INTEGER)")
        assert [(300, 2)] == session.sql("SELECT o.i, a.i FROM own o, again a").collect()


def test_a_table_hidden_by_a_temporary_one_is_reached_by_its_whole_name(root: Session) -> None:
    """`memory.main.t` is the table of all sessions, as in DuckDB, and so are its columns' names."""
    root.sql("CREATE TABLE covered AS SELECT 1 AS i")
    with root.new_session() as one:
        one.sql("CREATE TEMP TABLE covered AS SELECT 2 AS i")
        for sql, i in (
            ("FROM covered", 2),
            ("FROM main.covered", 2),
            ("FROM temp.covered", 2),
            ("FROM memory.main.covered", 1),
            ("FROM memory.covered AS m", 1),
            ("SELECT covered.i FROM memory.main.covered", 1),
            ("SELECT i FROM memory.main.covered WHERE memory.main.covered.i = 1", 1),
        ):
            assert [(i,)] == _rows(one, sql)
        for sql in (
            "SELECT * FROM covered AS t, memory.main.covered AS m",
            "SELECT * FROM memory.main.covered, query('FROM covered')",
        ):
            with pytest.raises(UnsupportedError, match="Two tables are called covered"):
                _rows(one, sql)
        one.sql("UPDATE memory.main.covered SET i = i + 10")
        one.sql("INSERT INTO memory.main.covered VALUES (12)")
        one.sql("DELETE FROM covered")
        assert [] == _rows(one, "FROM covered")
        assert [(11,), (12,)] == _rows(root, "FROM covered ORDER BY i")
        one.sql("DROP TABLE memory.main.covered")
    assert "covered" not in root.tables
