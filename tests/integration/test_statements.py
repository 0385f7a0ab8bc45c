"""Statements that write, define and ask about the catalog; and what they must not disturb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import minishark
from minishark.cluster.backend import FragmentRejectedError
from minishark.errors import (
    AlreadyExistsError,
    AnalysisException,
    CatalogError,
    MinisharkError,
    OptionError,
    QueryCancelledError,
    QueryError,
    ResourceError,
    TaskFailedError,
    UnsupportedError,
)
from minishark.query.observer import QueryObserver
from minishark.query.run import QueryRun
from minishark.query.sinks import CollectRows
from minishark.session.engine import _Query
from minishark.session.session import Session

ROWS = pa.table(
    {
        "a": list(range(4000)),
        "k": [i % 7 for i in range(4000)],
        "s": [f"s{i % 7}" for i in range(4000)],
    }
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Session]:
    """A session that distributes everything."""
    with minishark.connect(
        in_process=True, single_task_rows=0, nodes=2, partitions=4, executors_per_node=1
    ) as found:
        found.create_table("big", ROWS)
        found.create_table("keyed", ROWS, partition_by="a")
        found.create_table("one", ROWS.slice(0, 20), partitions=1)
        yield found


@pytest.fixture
def session(cluster: Session) -> Iterator[Session]:
    """The session, without the tables that a test makes."""
    yield cluster
    for name in cluster.tables:
        if name not in ("big", "keyed", "one"):
            cluster.drop_table(name)


def ask(session: Session, sql: str, params: Any = None) -> list[tuple[object, ...]]:
    """The rows of the last statement."""
    return [tuple(row) for row in session.sql(sql, params).collect()]


def test_tables_are_written_and_read(session: Session) -> None:
    """CREATE, INSERT, UPDATE, DELETE, ALTER and MERGE change what the next query sees."""
    ask(session, "CREATE TABLE t (a INT, b VARCHAR DEFAULT 'q')")
    assert [(2,)] == ask(session, "INSERT INTO t(a) VALUES (1), (2)")
    ask(session, "INSERT INTO t SELECT a, s FROM big WHERE a = 3; UPDATE t SET b = 'x' WHERE a = 1")
    assert [(1, "x"), (2, "q"), (3, "s3")] == ask(session, "FROM t ORDER BY a")
    ask(session, "DELETE FROM t WHERE a = 2; ALTER TABLE t ADD COLUMN c INT DEFAULT 7")
    ask(
        session,
        "MERGE INTO t USING (SELECT 1 AS a) m ON t.a = m.a WHEN MATCHED THEN UPDATE SET c = 9",
    )
    assert [(1, "x", 9), (3, "s3", 7)] == ask(session, "FROM t ORDER BY a")
    assert [(3,)] == ask(session, "DELETE FROM t WHERE a = 3 RETURNING a")


def test_loaded_tables_can_be_changed(session: Session) -> None:
    """A statement may change a table that was loaded from elsewhere, which stays distributed."""
    session.create_table("t", ROWS, partition_by="a")
    ask(session, "UPDATE t SET s = 'new' WHERE a = 17")
    assert [(4000, 1)] == ask(session, "SELECT count(*), count(*) FILTER (WHERE s = 'new') FROM t")


def test_a_table_can_be_made_from_its_own_changed_rows(session: Session) -> None:
    """CREATE OR REPLACE TABLE AS reads what was written just before."""
    ask(session, "CREATE TABLE t AS SELECT 1 AS a; INSERT INTO t VALUES (2)")
    ask(session, "CREATE OR REPLACE TABLE t AS SELECT a * 10 AS a FROM t")
    assert [(10,), (20,)] == ask(session, "FROM t ORDER BY a")


def test_a_refused_table_loses_no_rows(session: Session) -> None:
    """create_table without replace fails, and rows that were inserted before stay."""
    ask(session, "CREATE TABLE t AS SELECT 1 AS a; INSERT INTO t VALUES (2)")
    with pytest.raises(CatalogError, match="already"):
        session.create_table("t", ROWS)
    assert [(1,), (2,)] == ask(session, "FROM t ORDER BY a")


def test_a_failed_load_keeps_the_change(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while changed rows are loaded loses none of them."""
    ask(session, "CREATE TABLE t (a INT, b INT AS (a)); INSERT INTO t VALUES (1), (2)")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(session._runtime.tables), "build", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.sql("FROM t")
    assert [(1, 1), (2, 2)] == ask(session, "FROM t ORDER BY a")


def test_a_lazy_frame_reads_what_is_there_when_it_runs(session: Session) -> None:
    """Rows that were inserted after sql() and before collect() are seen."""
    ask(session, "CREATE TABLE t AS SELECT 1 AS a")
    frame = session.sql("SELECT count(*) AS n FROM t")
    ask(session, "INSERT INTO t VALUES (2)")
    assert [{"n": 2}] == frame.collect()


def test_a_plan_never_reads_a_replaced_table_in_part(session: Session) -> None:
    """A plan keeps the tables that it was made for; it answers for them, or fails."""
    session.create_table("t", ROWS, partitions=2)
    engine = session._runtime.engine
    observer = QueryObserver(number=0, emit=engine.events.emit)
    sql = "SELECT count(*) FROM t"
    scope = session._runtime.scope
    query = _Query(
        engine=engine,
        scope=scope,
        planner=scope.planner,
        sql=sql,
        sink=CollectRows(),
        observer=observer,
    )
    plan = query.plan(whole=False)
    session.create_table("t", ROWS, partitions=4, replace=True)
    with pytest.raises(MinisharkError):
        query.execute(plan, ())
    assert [(4000,)] == ask(session, "SELECT count(*) FROM t")


def test_tables_of_rejected_statements_have_the_types_of_their_queries(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front end computes what no executor accepts, in DuckDB's own types."""

    def reject(_: object) -> None:
        raise FragmentRejectedError("no such function")

    frame = session.sql("SELECT 1::HUGEINT AS h, uuid() AS u, '101'::BIT AS b").cache()
    with monkeypatch.context() as patch:
        patch.setattr(QueryRun, "run", reject)
        ask(session, "CREATE TABLE t AS SELECT 1::HUGEINT AS h, uuid() AS u, '101'::BIT AS b")
        assert 1 == frame.count()
    assert [("HUGEINT", "UUID", "BIT")] == ask(
        session, "SELECT typeof(h), typeof(u), typeof(b) FROM t"
    )
    assert [("HUGEINT", "UUID", "BIT")] == [
        tuple(frame.select_expr("typeof(h)", "typeof(u)", "typeof(b)").collect()[0])
    ]


@pytest.mark.parametrize("error", [QueryCancelledError("cancelled"), ResourceError("no memory")])
def test_the_front_end_says_why_it_ended_a_rejected_statement(
    session: Session, monkeypatch: pytest.MonkeyPatch, error: MinisharkError
) -> None:
    """Its rejection by executors would mislead."""

    def fail(*_: object, **__: object) -> None:
        raise error if _ and isinstance(_[0], str) else FragmentRejectedError("rejected")

    monkeypatch.setattr(QueryRun, "run", fail)
    monkeypatch.setattr(session._runtime.scratch, "query", fail)
    with pytest.raises(type(error), match=str(error)):
        session.sql("SELECT 1 AS a").to_arrow()


def test_functions_of_rejected_statements_do_not_run_in_the_front_end(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is computed there that nobody can use."""

    def reject(_: object) -> None:
        raise FragmentRejectedError("no such function")

    computed: list[str] = []
    monkeypatch.setattr(QueryRun, "run", reject)
    monkeypatch.setattr(session._runtime.engine, "query_in_front_end", computed.append)
    with pytest.raises(TaskFailedError, match="no such function"):
        session.sql("SELECT 1 AS a").map_in_arrow(lambda rows: rows, "a INT").collect()
    assert [] == computed


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT max(s) = 's6' FROM big -- sqlite_master",
        "SELECT count(*) = 4000 FROM big WHERE s <> 'information_schema.tables'",
        "SELECT count(*) = 4000 FROM big /* pg_catalog.x nextval('q') */",
    ],
)
def test_names_in_comments_and_texts_mean_nothing(session: Session, sql: str) -> None:
    """A query is answered from the data, whatever its comments and texts mention."""
    assert [(True,)] == ask(session, sql)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(DISTINCT r) FROM big, (VALUES (random())) v(r)", 1),
        ("SELECT count(DISTINCT r) FROM big, (SELECT sum(random()) r FROM one)", 1),
        ("SELECT count(DISTINCT r) FROM big, (SELECT unnest([random()]) r FROM (SELECT 1))", 1),
        (
            (
                "SELECT sum((r <> r2)::INT)::INT FROM (SELECT r, r AS r2 FROM "
                "(SELECT random() AS r FROM big) UNION ALL SELECT 1, 1)"
            ),
            0,
        ),
        (
            (
                "WITH a AS MATERIALIZED (SELECT random() r FROM one WHERE a = 1), "
                "b AS MATERIALIZED (SELECT r + 1 AS q FROM a) "
                "SELECT count(DISTINCT q) FROM keyed, b"
            ),
            1,
        ),
        ("SELECT count(*) FROM big x JOIN keyed y ON x.a + (random() * 0)::BIGINT = y.a", 4000),
    ],
)
def test_volatile_functions_are_computed_once(session: Session, sql: str, expected: int) -> None:
    """random() has one value where DuckDB gives it one, however the query is spread."""
    assert [(expected,)] == ask(session, sql)


def test_create_table_as_keeps_types(session: Session) -> None:
    """Columns are stored in DuckDB's types, not in those in which results are handed out."""
    ask(
        session,
        "CREATE TABLE t AS SELECT 340282366920938463463374607431768211455::UHUGEINT AS x, "
        "5::HUGEINT AS h, '00000000-0000-0000-0000-000000000001'::UUID AS u, '101'::BIT AS b, "
        "TIMETZ '10:00:00+02' AS z",
    )
    types = [row[1] for row in ask(session, "DESCRIBE t")]
    assert ["UHUGEINT", "HUGEINT", "UUID", "BIT", "TIME WITH TIME ZONE"] == types
    assert [("340282366920938463463374607431768211455", "10:00:00+02")] == ask(
        session, "SELECT x::VARCHAR, z::VARCHAR FROM t"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "VACUUM",
        "SET threads = 3",
        "SET lock_configuration = true",
    ],
)
def test_what_is_not_supported_says_so(session: Session, sql: str) -> None:
    """A statement that can't be run is refused, and changes nothing."""
    with pytest.raises(UnsupportedError):
        session.sql(sql)
    assert [(4000,)] == ask(session, "SELECT count(*) FROM big")


def test_views_macros_types_and_settings_last(session: Session) -> None:
    """What is defined is known to all later statements, distributed or whole."""
    ask(session, "CREATE VIEW evens AS FROM big WHERE a % 2 = 0; CREATE MACRO twice(x) AS x * 2")
    ask(session, "SET TimeZone = 'Asia/Tokyo'")
    assert [(2000, 8)] == ask(session, "SELECT count(*), twice(4) FROM evens")
    assert [(2000,)] == ask(session, "SELECT count(*) FROM evens, range(1)")
    assert [("2020-01-01 09:00:00+09",)] == ask(
        session, "SELECT (TIMESTAMPTZ '2020-01-01 00:00:00+00')::VARCHAR"
    )
    with pytest.raises(CatalogError, match="view"):
        ask(session, "CREATE TABLE evens AS SELECT 1 AS a")
    assert [(2000,)] == ask(session, "SELECT count(*) FROM evens")
    ask(session, "DROP VIEW evens; RESET TimeZone")
    with pytest.raises(QueryError):
        session.sql("FROM evens")


def test_tables_that_arrow_can_not_hold_stay_usable(session: Session) -> None:
    """ENUM columns and collations keep their meaning; queries that name them run here."""
    ask(session, "CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TABLE t (m mood, n INT)")
    ask(session, "INSERT INTO t VALUES ('glad', 1), ('sad', 2)")
    assert [("sad", 2), ("glad", 1)] == ask(session, "FROM t ORDER BY m")
    assert "t" in session.tables
    ask(session, "CREATE TABLE c (a VARCHAR COLLATE NOCASE); INSERT INTO c VALUES ('ABC')")
    assert [(1,)] == ask(session, "SELECT count(*) FROM c WHERE a = 'abc'")
    ask(session, "DROP TABLE t; DROP TYPE mood")


def test_parameters_and_prepared_statements(session: Session) -> None:
    """`?`, `$1` and `$name` take values; strings that look like parameters are left alone."""
    assert [(3, "?", "it's")] == ask(session, "SELECT ? + $2, '?', $3", [1, 2, "it's"])
    assert [(1.5, None)] == ask(session, "SELECT $a, $b", {"a": 1.5, "b": None})
    ask(session, "PREPARE p AS SELECT s FROM big WHERE a = ?")
    assert [("s3",)] == ask(session, "EXECUTE p(3)")
    ask(session, "DEALLOCATE p")
    for sql, params in (("EXECUTE p(3)", None), ("SELECT ?", []), ("SELECT 1", [1])):
        with pytest.raises(QueryError):
            session.sql(sql, params)
    with pytest.raises(QueryError):
        session.sql("SELECT ?", [object()])


def test_copy_writes_and_reads_files(session: Session, tmp_path: Path) -> None:
    """COPY TO writes a query's rows or a table's columns, COPY FROM reads them."""
    parquet, csv = tmp_path / "q.parquet", tmp_path / "c.csv"
    assert [(4000,)] == ask(session, f"COPY (FROM big) TO '{parquet}' (FORMAT parquet)")
    assert [(20,)] == ask(session, f"COPY one (a, s) TO '{csv}'")
    assert [(4000,)] == ask(session, f"SELECT count(*) FROM '{parquet}'")
    ask(session, f"CREATE TABLE t (a INT, s VARCHAR); COPY t FROM '{csv}'")
    assert [(20, "s6")] == ask(session, "SELECT count(*), max(s) FROM t")


def test_the_catalog_answers(session: Session) -> None:
    """SHOW, DESCRIBE and information_schema tell of the session's tables."""
    assert [("big",), ("keyed",), ("one",)] == ask(session, "SHOW TABLES")
    assert ["a", "k", "s"] == [row[0] for row in ask(session, "DESCRIBE big")]
    names = ask(session, "SELECT table_name FROM information_schema.tables ORDER BY 1")
    assert [("big",), ("keyed",), ("one",)] == names
    frame = session.sql("SHOW TABLES")
    assert frame.columns == [name for name, _ in frame.dtypes]
    with pytest.raises(OptionError):
        frame.plan_text()


def test_rows_of_dataframes_are_not_listed(session: Session) -> None:
    """Not even after a query in the front end, for which they were visible."""
    frame = session.create_dataframe([(1,)], ["n"])
    assert 1 == frame.select("n").to_arrow(verify=True).num_rows
    assert [("big",), ("keyed",), ("one",)] == ask(session, "SHOW TABLES")


def test_pivots_and_sequences_need_the_whole(session: Session) -> None:
    """Statements that depend on all rows or on a session's state are answered rightly."""
    (row,) = ask(session, "PIVOT (SELECT k FROM big WHERE k < 2) ON k USING count(*)")
    assert (572, 572) == row
    ask(session, "CREATE SEQUENCE seq")
    assert [(1,)] == ask(session, "SELECT nextval('seq')")
    assert [(2,)] == ask(session, "SELECT nextval('seq')")
    ask(session, "CREATE TABLE t AS SELECT nextval('seq') AS n FROM one")
    assert [(20, 3)] == ask(session, "SELECT count(*), min(n) FROM t")


def test_errors_show_no_generated_text(session: Session) -> None:
    """DuckDB's message comes without an excerpt of a fragment that the user never wrote."""
    with pytest.raises(TaskFailedError) as found:
        ask(session, "SELECT CAST(s AS INT) FROM big")
    assert "in0" not in str(found.value)


def test_settings_for_the_parser_hold_for_the_next_text(session: Session) -> None:
    """Not for the statements of their own text, which are parsed all at once, as in DuckDB."""
    for value, name in (("false", "foo"), ("true", "FoO")):
        session.sql(f"SET preserve_identifier_case = {value}; SELECT 1 AS FoO").to_arrow()
        assert [name] == session.sql("SELECT 1 AS FoO").to_arrow().column_names


def test_parameters_of_explain(session: Session) -> None:
    """The plan is shown, in which the values are; the query does not run."""
    ((plan,),) = ask(session, "EXPLAIN SELECT a FROM big WHERE a > $least", {"least": 3990})
    assert "3990" in str(plan)


def test_enums_and_variables_have_names_of_any_form(session: Session) -> None:
    ask(session, "CREATE TYPE main.grün AS ENUM (SELECT DISTINCT s FROM big ORDER BY s LIMIT 2)")
    assert [(["s0", "s1"],)] == ask(session, "SELECT enum_range(NULL::grün)")
    ask(session, "DROP TYPE grün")
    ask(session, 'SET VARIABLE "größte ""Zahl""" = (SELECT max(a) FROM big)')
    assert [(3999,)] == ask(session, "SELECT getvariable('größte \"Zahl\"')")


def test_statements_find_their_places_after_letters_of_several_bytes(session: Session) -> None:
    """DuckDB counts bytes in tokens."""
    condition = "'Zürich €' <> s -- größer als\n AND a > 3997"
    assert [(3998,), (3999,)] == [
        (row.a,) for row in session.table("big").filter(condition).collect()
    ]
    text = "SELECT 'äöü :least' AS t, count(*) AS n FROM big WHERE a >= :least AND 'ü' <> s"
    assert [("äöü :least", 5)] == [
        tuple(row) for row in session.sql(text, args={"least": 3995}).collect()
    ]


def test_what_is_wrong_with_a_change_is_said_when_it_is_prepared(session: Session) -> None:
    """Names, types and numbers of columns, as in DuckDB; what it is given may be anything."""
    duck = duckdb.connect()
    for begin in (session.sql, duck.execute):
        begin("CREATE TABLE kept (a INTEGER PRIMARY KEY, b VARCHAR NOT NULL, c TIMESTAMP)")
    for change in (
        "INSERT INTO nope VALUES (?)",
        "INSERT INTO kept VALUES (?)",
        "INSERT INTO kept SELECT ?, ?, ? FROM nope",
        "INSERT INTO kept VALUES (?, ?, ?) RETURNING z",
        "UPDATE kept SET a = $1 WHERE z = 3",
        "DELETE FROM kept WHERE nothing(a)",
        "INSERT INTO kept VALUES (?, ?, ?)",
        "INSERT INTO kept (a) SELECT * FROM range(?)",
        "UPDATE kept SET a = $b WHERE c = $a AND b IN $c",
        "DELETE FROM kept WHERE a = ?",
    ):
        refused = []
        for run in (duck.execute, session.sql):
            try:
                run(f"PREPARE p AS {change}")
            except (duckdb.Error, AnalysisException) as error:
                refused.append(str(error).partition("\n")[0])
        assert refused[:1] == refused[1:], change
    duck.close()
    session.sql("EXECUTE p(1)")


@pytest.mark.sample(2)
@pytest.mark.parametrize("begin", ["", "BEGIN"])
def test_a_table_is_not_renamed_to_another_one(session: Session, begin: str) -> None:
    """Nor to a view; nothing is lost, as in DuckDB."""
    ask(session, "CREATE TABLE t AS SELECT 1 AS a; CREATE TABLE e AS SELECT 2 AS b")
    ask(session, "CREATE VIEW w AS SELECT 3 AS c")
    for name in ("e", "E", "w"):
        if begin:
            session.sql(begin)
        with pytest.raises(AlreadyExistsError, match="already exists"):
            session.sql(f"ALTER TABLE t RENAME TO {name}")
        if begin:
            session.sql("ROLLBACK")
    assert [(1, 2, 3)] == ask(session, "SELECT * FROM t, e, w")
