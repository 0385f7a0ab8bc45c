"""What belongs to a session alone: schemas, attached databases, variables, odd types, row ids."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import minishark
from minishark.compiler.sql.statements import Target
from minishark.errors import (
    CatalogError,
    ClusterError,
    MinisharkError,
    QueryError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.model.catalog import Catalog, Table
from minishark.session.session import Session
from minishark.tables.scratch_database import ScratchDatabase, SharedScratch

Rows = list[tuple[object, ...]]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that distributes everything, with one table."""
    with minishark.connect(
        in_process=True, single_task_rows=0, nodes=2, partitions=3, executors_per_node=1
    ) as found:
        found.create_table("big", pa.table({"a": range(1000), "b": [i % 7 for i in range(1000)]}))
        yield found


def ask(session: Session, sql: str) -> Rows:
    """The rows of the last statement."""
    return [tuple(row.values()) for row in session.sql(sql).to_arrow().to_pylist()]


def test_tables_of_other_schemas(session: Session) -> None:
    """A table in a schema of its own can be written, joined with the cluster's, and dropped."""
    ask(session, "CREATE SCHEMA s; CREATE TABLE s.t (a INT); INSERT INTO s.t FROM range(5)")
    assert [(5,)] == ask(session, "SELECT count(*) FROM s.t JOIN big USING (a)")
    assert ["Runs in the front end"] == [
        text.splitlines()[0] for (text,) in ask(session, "EXPLAIN FROM s.t") if type(text) is str
    ]
    ask(session, "UPDATE s.t SET a = 7 WHERE a = 0; CREATE VIEW s.v AS SELECT max(a) AS m FROM s.t")
    assert [(7,)] == ask(session, "FROM s.v")
    ask(session, "DROP SCHEMA s CASCADE")
    with pytest.raises(QueryError, match='schema "s" does not exist'):
        ask(session, "FROM s.t")


def test_use_changes_what_names_mean(session: Session) -> None:
    """After USE, names mean that schema's tables first, then the cluster's."""
    ask(session, "CREATE SCHEMA s; USE s; CREATE TABLE t AS SELECT 1 AS x; CREATE VIEW v AS FROM t")
    assert [(1,)] == ask(session, "FROM v")
    assert [(1000, "s")] == ask(session, "SELECT count(*), current_schema() FROM big")
    total = session.sql("SELECT sum(a) AS s FROM big")  # as elsewhere, not a decimal
    assert [("s", "HUGEINT")] == total.dtypes
    assert [int] == [type(row.s) for row in total.collect()]
    ask(session, "USE memory.main")
    with pytest.raises(QueryError):
        ask(session, "FROM v")
    ask(session, "DROP SCHEMA s CASCADE")


def test_attached_databases(session: Session, tmp_path: Path) -> None:
    """A database file is attached, written and read beside the cluster's tables."""
    ask(session, f"ATTACH '{tmp_path / 'other.db'}' AS other; CREATE TABLE other.q AS FROM big")
    assert [(1000,)] == ask(session, "SELECT count(*) FROM other.q JOIN big USING (a, b)")
    ask(session, "DETACH other")
    with pytest.raises(QueryError):
        ask(session, "FROM other.q")


def test_memory_stays_attached(session: Session) -> None:
    """The session could not go on without it."""
    ask(session, "ATTACH ':memory:' AS other; USE other")
    for name in ("memory", "DATABASE IF EXISTS Memory"):
        with pytest.raises(UnsupportedError, match="DETACH other databases"):
            session.sql(f"DETACH {name}")
    ask(session, "USE memory; DETACH DATABASE other")
    assert [(1000,)] == ask(session, "SELECT count(*) FROM big")


def test_variables_hold_values_of_real_rows(session: Session) -> None:
    """SET VARIABLE computes over the data; distributed and whole statements know the value."""
    ask(session, "SET VARIABLE top = (SELECT max(a) FROM big)")
    distributed = session.sql("SELECT count(*) AS n FROM big WHERE a < getvariable('top')")
    assert "Statement" not in distributed.plan_text("logical")
    assert [{"n": 999}] == distributed.to_arrow().to_pylist()
    assert [(999, 3)] == ask(session, "SELECT getvariable('top'), i FROM range(3, 4) r(i)")
    ask(session, "SET VARIABLE names = ['a', 'b''c']; RESET VARIABLE top")
    assert [(["a", "b'c"], None)] == ask(
        session, "SELECT getvariable('names'), getvariable('top') FROM range(1)"
    )
    with pytest.raises(MinisharkError):
        ask(session, "SET VARIABLE nothing = (SELECT nothing FROM big)")


def test_variables_are_those_that_earlier_statements_have_set(session: Session) -> None:
    """`$name` is what the statements before it in a text have set, in any capitals."""
    assert [(12,)] == ask(session, "SET VARIABLE later = 11; SELECT $later + 1")
    assert [(12, "$later")] == ask(session, "SELECT $LATER + 1, '$later'")
    given = session.sql("SELECT $Later AS k", {"Later": 3})
    assert [{"k": 3}] == given.to_arrow().to_pylist()
    with pytest.raises(QueryError):
        ask(session, "RESET VARIABLE later; SELECT $later")


def test_lists_are_searched_for_values_of_parameters(session: Session) -> None:
    """A list after IN is searched, be it empty; in brackets it is one value."""
    ask(session, "PREPARE searched AS SELECT a IN $1, a NOT IN $2 FROM big WHERE a IN (?3)")
    assert [(True, False)] == ask(session, "EXECUTE searched([1, 2], [2], 2)")
    assert [(False, True)] == ask(session, "EXECUTE searched([], [], 2)")
    nothing = session.sql("SELECT 1 IN ? AS k", [None])
    assert [{"k": None}] == nothing.to_arrow().to_pylist()
    with pytest.raises(QueryError):
        ask(session, "EXECUTE searched(1, [2], 2)")
    ask(session, "DEALLOCATE searched")


def test_tables_are_listed_after_they_were_replaced_in_other_capitals(session: Session) -> None:
    """What stood for the table before does not hide it."""
    listed = "SELECT table_name FROM duckdb_tables() WHERE lower(table_name) = 'capital'"
    ask(session, "CREATE TABLE capital (a INTEGER)")
    assert [("capital",)] == ask(session, listed)
    ask(session, 'CREATE OR REPLACE TABLE "Capital" AS SELECT 1 AS a')
    assert [("Capital",)] == ask(session, listed)
    ask(session, "DROP TABLE capital")


def test_an_enum_of_a_querys_values(session: Session) -> None:
    """CREATE TYPE AS ENUM (query) takes the values of the real rows."""
    ask(session, "CREATE TYPE digits AS ENUM (SELECT DISTINCT b::VARCHAR FROM big ORDER BY 1 DESC)")
    assert [("6",), ("5",)] == ask(
        session, "SELECT b::VARCHAR::digits AS d FROM big WHERE b > 4 GROUP BY d ORDER BY d"
    )
    ask(session, "DROP TYPE digits")


def test_columns_with_defaults_are_added(session: Session) -> None:
    """ALTER TABLE with a DEFAULT, which DuckDB takes for two statements, changes the table."""
    ask(session, "CREATE SEQUENCE q; CREATE TABLE c AS SELECT 7 AS a")
    ask(session, "ALTER TABLE c ADD COLUMN n INTEGER DEFAULT nextval('q')")
    assert [(7, 1)] == ask(session, "FROM c")
    ask(session, "DROP TABLE c; DROP SEQUENCE q")


def test_comments_are_kept(session: Session) -> None:
    """COMMENT ON is told by the catalog."""
    ask(session, "COMMENT ON TABLE big IS 'many rows'")
    assert [("many rows",)] == ask(
        session, "SELECT comment FROM duckdb_tables() WHERE table_name = 'big'"
    )


def test_described_queries_can_be_queried(session: Session) -> None:
    """DESCRIBE as a subquery tells what DESCRIBE tells."""
    ask(session, "CREATE TABLE c (a INT PRIMARY KEY, b INT)")
    assert [("a", "PRI"), ("b", None)] == ask(
        session, "SELECT column_name, key FROM (DESCRIBE SELECT * FROM c)"
    )
    ask(session, "DROP TABLE c")


def test_row_ids(session: Session) -> None:
    """Rowid counts the rows of a table, in filters too."""
    assert [(2, 2), (3, 3)] == ask(session, "SELECT a, rowid FROM big WHERE rowid IN (2, 3)")
    assert [(997,)] == ask(session, "SELECT count(*) FROM big WHERE rowid >= 3")


def test_changes_by_row_ids(session: Session) -> None:
    """A large table, too, is changed by row ids, which only DuckDB's own tables have."""
    numbers = pa.array(range(200_000))
    session.create_table("numbered", pa.table({"k": numbers, "v": numbers}))
    ask(session, "UPDATE numbered SET v = -1 WHERE rowid = 3")
    ask(session, "DELETE FROM numbered WHERE rowid BETWEEN 10 AND 19")
    expected = [(199_990, sum(range(200_000)) - 4 - sum(range(10, 20)))]
    assert expected == ask(session, "SELECT count(*), sum(v) FROM numbered")
    ask(session, "DROP TABLE numbered")


def test_row_ids_in_a_view(session: Session) -> None:
    """A view of row numbers can be queried before its table was ever asked for them."""
    ask(session, "CREATE TABLE numbered_rows AS SELECT i FROM range(10) r(i)")
    ask(session, "CREATE VIEW last_rows AS SELECT i FROM numbered_rows WHERE rowid > 7")
    assert [(8,), (9,)] == ask(session, "SELECT i FROM last_rows JOIN big ON i = a ORDER BY i")
    ask(session, "INSERT INTO numbered_rows VALUES (500)")
    assert [(8,), (9,), (500,)] == ask(
        session, "SELECT i FROM last_rows JOIN big ON i = a ORDER BY i"
    )
    ask(session, "DROP VIEW last_rows")
    ask(session, "DROP TABLE numbered_rows")


def test_types_that_arrow_forgets(session: Session) -> None:
    """UNION tags and aggregate states are the same after CREATE TABLE AS and INSERT."""
    union = "UNION(k INT, z VARCHAR)"
    ask(session, f"CREATE TABLE un AS SELECT union_value(k := NULL::INT)::{union} AS u")
    ask(session, "INSERT INTO un VALUES ('text')")
    assert [("k", None), ("z", "text")] == ask(session, "SELECT union_tag(u), u FROM un")
    ask(session, "CREATE TABLE st AS SELECT b, sum(a) EXPORT_STATE AS s FROM big GROUP BY b")
    assert [(sum(range(1000)),)] == ask(session, "SELECT finalize(combine_aggr(s)) FROM st")
    ask(session, "DROP TABLE un; DROP TABLE st")


def test_states_of_aggregates_are_written_to_files(session: Session, tmp_path: Path) -> None:
    """A column of aggregate states can be copied to a file, and no executor dies of it."""
    ask(session, f"COPY (SELECT sum(a) EXPORT_STATE AS s FROM big) TO '{tmp_path / 's.parquet'}'")
    assert [(sum(range(1000)),)] == ask(session, f"FROM '{tmp_path / 's.parquet'}'")


def test_the_catalog_knows_constraints_and_defaults(session: Session) -> None:
    """DESCRIBE and the catalog's views tell of a table what CREATE TABLE said."""
    ask(session, "CREATE TABLE c (a INT PRIMARY KEY, b VARCHAR DEFAULT 'x')")
    described = [("a", "INTEGER", "NO", "PRI", None), ("b", "VARCHAR", "YES", None, "'x'")]
    assert described == [row[:5] for row in ask(session, "DESCRIBE c")]
    assert [("big", False), ("c", True)] == ask(
        session, "SELECT table_name, has_primary_key FROM duckdb_tables ORDER BY 1"
    )
    assert [("a", "BIGINT"), ("b", "BIGINT")] == [row[:2] for row in ask(session, "DESCRIBE big")]
    ask(session, "DROP TABLE c")


def test_rejected_rows_of_a_file_can_be_read(session: Session, tmp_path: Path) -> None:
    """What read_csv rejects is there for later statements."""
    (tmp_path / "x.csv").write_text("a\n1\nx\n3\n")
    read = f"read_csv('{tmp_path / 'x.csv'}', columns = {{'a': 'INT'}}, store_rejects = true)"
    assert [(2,)] == ask(session, f"SELECT count(a) FROM {read}")
    assert [("x",)] == ask(session, "SELECT csv_line FROM reject_errors")


def test_views_can_be_secure_and_renamed(session: Session) -> None:
    """CREATE SECURE VIEW and ALTER VIEW define what later statements see."""
    ask(session, "CREATE SECURE VIEW v AS SELECT max(a) AS m FROM big; ALTER VIEW v RENAME TO w")
    assert [(999,)] == ask(session, "FROM w")
    ask(session, "DROP VIEW w")


def test_numbered_question_marks(session: Session) -> None:
    """`?2` is the second parameter wherever it stands."""
    rows = session.sql("SELECT ?2 AS a, ?1 AS b", [1, 2]).to_arrow().to_pylist()
    assert [{"a": 2, "b": 1}] == rows


def test_views_are_what_the_last_statement_made_of_them(session: Session) -> None:
    """In the front end as well, which may not have seen the earlier ones; and in `table`."""
    session.sql("CREATE TABLE base (a INTEGER, b INTEGER)")
    session.sql("CREATE VIEW seen AS FROM base; DROP VIEW seen")
    session.sql("CREATE VIEW seen AS FROM base; DROP VIEW IF EXISTS seen")
    session.sql("CREATE VIEW seen AS SELECT a FROM base")
    columns = "SELECT column_name FROM duckdb_columns() WHERE table_name = 'seen'"
    assert [("a",)] == ask(session, columns)
    session.sql("SELECT b FROM base").create_or_replace_temp_view("seen")
    assert ["b"] == session.table("seen").columns
    session.sql("CREATE OR REPLACE VIEW seen AS SELECT a AS c FROM base")
    assert ["c"] == session.table("seen").columns
    assert [("c",)] == ask(session, columns)
    session.sql("DROP VIEW seen")
    assert [] == ask(session, columns)
    session.drop_table("base")


def test_unreadable_files_fail_at_once(session: Session, tmp_path: Path) -> None:
    """A file that is no Parquet is the statement's error; no other executor tries it again."""
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises((QueryError, TaskFailedError), match=r"bad\.parquet"):
        ask(session, f"FROM '{tmp_path / 'bad.parquet'}'")


def test_ctrl_c_in_a_statement_that_writes() -> None:
    """It comes out as KeyboardInterrupt; the statement changed nothing, and the next one runs."""
    shared = SharedScratch({}, list, threading.RLock())
    database = ScratchDatabase(shared, reading=lambda _: nullcontext(pa.table), tables=Catalog)
    database.define("SET threads = 1", alone=True)  # DuckDB looks for signals in the main thread

    def write(sql: str) -> pa.Table:
        return database.write(sql, Target("half", is_main=True))

    write("CREATE TABLE half (a BIGINT)")
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        write("INSERT INTO half SELECT a FROM range(100_000_000_000) r(a) WHERE a % 3 = 7")
    write("INSERT INTO half VALUES (1)")
    (changed,) = database.changed()
    assert pa.table({"a": [1]}) == changed.rows
    database.close()
    shared.close()


@pytest.mark.slow
def test_threads_write_tables_of_their_own(session: Session) -> None:
    """What one thread creates, fills and drops does not disturb the others' statements."""
    before = session.tables

    def work(number: int) -> list[Rows]:
        found = []
        for _ in range(5):
            ask(session, f"CREATE TABLE own_{number} (a BIGINT)")
            ask(session, f"INSERT INTO own_{number} VALUES ({number})")
            found.append(ask(session, f"SELECT sum(a) FROM own_{number}"))
            ask(session, f"DROP TABLE own_{number}")
        return found

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(work, range(3)))
    assert [[[(number,)]] * 5 for number in range(3)] == answers
    assert before == session.tables


def test_first_thing_in_a_session_may_be_a_table_of_its_own() -> None:
    """Before any statement: a relation with an ENUM, which only the session's database can hold."""
    with minishark.connect(in_process=True) as session:
        relation = duckdb.sql("SELECT 'b'::ENUM('b', 'a') AS c FROM range(3)")
        session.create_table("first", relation)
        assert [(3,)] == ask(session, "SELECT count(c) FROM first")


def test_cached_rows_are_not_listed_nor_held_after_they_are_dropped(session: Session) -> None:
    """The front end reads them in place; their memory is free when their frames are gone."""
    visible = session._runtime.scratch._visible
    frame = session.sql("SELECT a FROM big").cache()
    assert 1000 == frame.to_arrow(verify=True).num_rows
    assert any(name.startswith("_kept_") for name in visible)
    assert not any(str(name).startswith("_kept_") for (name,) in ask(session, "SHOW TABLES"))
    del frame
    session.sql("FROM big").to_arrow(verify=True)
    assert not any(name.startswith("_kept_") for name in visible)


def test_variables_and_enums_may_be_made_of_cached_rows(session: Session) -> None:
    """Rows that are only promised are computed first, also those that only a view names."""
    for name in ("of_a", "of_b"):
        frame = session.sql("SELECT max(a) AS m FROM big").cache()
        frame.create_or_replace_temp_view(name)
    ask(session, "SET VARIABLE highest = (SELECT max(m) FROM of_a)")
    ask(session, "CREATE TYPE one_of AS ENUM (SELECT m::VARCHAR FROM of_b)")
    assert [(999, "999")] == ask(
        session, "SELECT getvariable('highest'), '999'::one_of::VARCHAR FROM range(1)"
    )


def test_tables_of_the_front_end_are_replaced_only_if_asked_for(session: Session) -> None:
    """They are tables like others to those who create tables."""
    ask(session, "CREATE TYPE mood AS ENUM ('glad'); CREATE TABLE moods (m mood)")
    ask(session, "INSERT INTO moods VALUES ('glad')")
    for data in (pa.table({"a": [1]}), session.sql("SELECT 1 AS a")):
        with pytest.raises(CatalogError, match="already"):
            session.create_table("moods", data)
    assert [("glad",)] == ask(session, "FROM moods")
    session.create_table("moods", pa.table({"a": [1]}), replace=True)
    assert [(1,)] == ask(session, "FROM moods")
    session.drop_table("moods")


def test_settings_of_several_threads_all_hold(session: Session) -> None:
    """None is lost when two are made at the same time."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: ask(session, f"SET VARIABLE v{i} = {i}"), range(20)))
    values = ", ".join(f"getvariable('v{i}')" for i in range(20))
    assert [tuple(range(20))] == ask(session, f"SELECT {values} FROM big LIMIT 1")


def test_tables_are_published_while_no_changes_are_loaded(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a thread that loads an older table of the same name might replace them."""
    engine = session._runtime.engine
    publish, seen = engine.tables.publish, []

    def watched(table: Table, *, replace: bool) -> None:
        seen.append((table.name, engine.loading._is_owned()))
        publish(table, replace=replace)

    monkeypatch.setattr(type(engine.tables), "publish", staticmethod(watched))
    session.create_table("loaded", pa.table({"a": [1]}))
    ask(session, "CREATE TABLE queried AS FROM loaded")
    assert [("loaded", True), ("queried", True)] == seen
    session.drop_table("loaded")
    session.drop_table("queried")


def test_stopped_sessions_say_so() -> None:
    """Also where rows are loaded and views made."""
    with minishark.connect(in_process=True, nodes=1, executors_per_node=1) as stopped:
        frame = stopped.sql("SELECT 1 AS a")
    with pytest.raises(ClusterError, match="stopped"):
        stopped.create_dataframe([(1,)], ["a"])
    with pytest.raises(ClusterError, match="stopped"):
        frame.create_or_replace_temp_view("v")
