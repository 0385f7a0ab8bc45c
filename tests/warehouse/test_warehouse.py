"""Durable tables: what statements do to them, and who else reads them."""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import minishark
from minishark.errors import (
    CatalogError,
    ConflictError,
    ConstraintError,
    DataError,
    MinisharkError,
    OptionError,
    QueryError,
    ResourceError,
    TaskFailedError,
    TransactionError,
    UnsupportedError,
)
from minishark.query.answers import differences
from minishark.session.session import Session
from minishark.tables.warehouse.changed_table import WarehouseTable

_EVERY_TYPE = """
    SELECT i::INTEGER AS i, i::BIGINT AS l, i % 2 = 0 AS o, i::FLOAT / 3 AS f, i::DOUBLE / 7 AS d,
    (i / 10)::DECIMAL(5, 1) AS e, (i::HUGEINT * 1000000007)::DECIMAL(38, 9) AS w,
    CASE WHEN i % 3 > 0 THEN 'v' || i END AS v, i::VARCHAR::BLOB AS b, DATE '2024-01-01' + i AS t,
    TIME '10:00:00' + to_seconds(i) AS h, TIMESTAMP '2024-01-01' + to_hours(i) AS s,
    (TIMESTAMP '2024-01-01' + to_hours(i)) AT TIME ZONE 'UTC' AS z,
    ('00000000-0000-0000-0000-' || lpad(i::VARCHAR, 12, '0'))::UUID AS u,
    [i, NULL] AS a, {'x': i, 'y': ['k']} AS r, MAP {'m': i} AS m
    FROM (SELECT i::INTEGER AS i FROM range(40) t(i))"""


def _rows(session: Session, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in session.sql(sql).collect()]


def _count(session: Session, sql: str) -> int:
    ((count,),) = _rows(session, sql)
    return int(count)


def _catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog("warehouse", uri=f"sqlite:///{folder}/catalog.sqlite")


def _files(folder: Path, table: str) -> list[Path]:
    return sorted(folder.glob(f"s/{table}-*/data/**/*.parquet"))


@pytest.mark.slow
def test_statements_give_what_duckdb_gives(session: Session) -> None:
    """Counts and rows of a series of changes, with a partitioned table and subqueries."""
    plain = duckdb.connect()
    plain.execute("CREATE SCHEMA s")
    partitioned = "PARTITIONED BY (bucket(3, id), day(t))"
    session.sql(f"CREATE TABLE s.t (id INTEGER NOT NULL, v VARCHAR, t TIMESTAMP) {partitioned}")
    plain.execute("CREATE TABLE s.t (id INTEGER NOT NULL, v VARCHAR, t TIMESTAMP)")
    for sql in (
        (
            "INSERT INTO s.t SELECT i, 'v' || i % 5, TIMESTAMP '2024-01-01' + to_hours(i * 2) "
            "FROM (SELECT i::INTEGER AS i FROM range(50) t(i))"
        ),
        "INSERT INTO s.t (id, v) VALUES (100, NULL), (101, 'x')",
        "UPDATE s.t SET v = upper(v), t = NULL WHERE id % 7 = 0",
        "DELETE FROM s.t WHERE id IN (SELECT id + 1 FROM s.t WHERE v = 'v3')",
        (
            "UPDATE s.t AS x SET v = n.v FROM (VALUES (5, 'five'), (6, 'six')) AS n(id, v) "
            "WHERE x.id = n.id"
        ),
        (
            "MERGE INTO s.t USING (SELECT i::INTEGER AS id FROM range(45, 60) r(i)) AS n "
            "ON t.id = n.id WHEN MATCHED AND t.id < 48 THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET v = '!'"
            " WHEN NOT MATCHED THEN INSERT (id, v) VALUES (n.id, 'new')"
        ),
        "DELETE FROM s.t USING (VALUES (1), (2)) AS u(id) WHERE t.id = u.id",
        "DELETE FROM s.t WHERE id > 1000",
    ):
        assert _count(session, sql) == plain.execute(sql).fetchall()[0][0], sql
        for query in ("FROM s.t ORDER BY ALL", "SELECT count(*) FROM s.t WHERE t < '2024-01-04'"):
            expected = plain.execute(query.replace("'2024", "TIMESTAMP '2024")).fetchall()
            assert _rows(session, query.replace("'2024", "TIMESTAMP '2024")) == expected, sql
    assert _count(session, "TRUNCATE s.t") == plain.execute("TRUNCATE s.t").fetchall()[0][0]
    assert _rows(session, "FROM s.t") == []


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")  # polars has an optional plugin
def test_others_read_what_was_written(session: Session, folder: Path) -> None:
    """All types, read by PyIceberg, DuckDB and polars as DuckDB would have stored them."""
    session.sql(f"CREATE TABLE s.every AS {_EVERY_TYPE}")
    plain = duckdb.connect()
    plain.execute("SET TimeZone = 'UTC'")
    plain.execute(f"CREATE TABLE every AS {_EVERY_TYPE}")
    described = plain.execute("SELECT column_name, column_type FROM (DESCRIBE every)").fetchall()
    assert session.table("s.every").dtypes == described
    expected = plain.sql("FROM every").to_arrow_table()
    plain.register("own", session.table("s.every").to_arrow())  # whose time zones are as here
    assert differences(expected, plain.sql("FROM own").to_arrow_table()) == []
    files = [str(file) for file in _files(folder, "every")]
    read = plain.sql(f"FROM read_parquet({files}, hive_partitioning = false)").to_arrow_table()
    assert differences(expected, read) == []
    table = _catalog(folder).load_table("s.every")
    plain.register("scanned", table.scan().to_arrow())
    assert differences(expected, plain.sql("FROM scanned").to_arrow_table()) == []
    frame = pl.scan_iceberg(table).select("i", "e", "v", "s").sort("i").collect()
    some = plain.execute("SELECT i, e, v, s FROM every ORDER BY i").fetchall()
    assert frame.rows() == some


def test_data_files_have_page_checksums(session: Session, folder: Path) -> None:
    """Readers that verify them find a flipped bit in the values of a column."""
    session.sql("CREATE TABLE s.pages AS SELECT hash(i) AS h FROM range(1000) r(i)")
    (file,) = _files(folder, "pages")
    assert 1000 == pq.read_table(file, page_checksum_verification=True).num_rows
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 4
    file.write_bytes(data)
    with pytest.raises(OSError, match="CRC checksum"):
        pq.read_table(file, page_checksum_verification=True)
    session.sql("DROP TABLE s.pages")


@pytest.mark.slow
def test_types_that_iceberg_lacks(session: Session) -> None:
    """Wider ones where these hold every value; others are refused by name, and nothing is left."""
    session.sql(
        "CREATE TABLE s.wide AS SELECT 1::TINYINT AS a, 2::USMALLINT AS b, 3::UINTEGER AS c, "
        "4::UBIGINT AS d, 5::HUGEINT AS e, '{}'::JSON AS f, TIMESTAMP_S '2024-01-01' AS g"
    )
    types = ["INTEGER", "INTEGER", "BIGINT", "DECIMAL(20,0)", "DECIMAL(38,0)", "VARCHAR"]
    assert [type_ for _, type_ in session.table("s.wide").dtypes] == [*types, "TIMESTAMP"]
    for type_ in ("INTERVAL", "BIT", "TIMESTAMP_NS", "UNION(a INTEGER)", "TIME WITH TIME ZONE"):
        with pytest.raises(UnsupportedError, match="which Iceberg tables do not have"):
            session.sql(f"CREATE TABLE s.none (a {type_})")
    assert _rows(session, "SHOW TABLES FROM s") == [("wide",)]


@pytest.mark.slow
def test_tables_outlive_the_session(tmp_path: Path) -> None:
    with minishark.connect(in_process=True, nodes=1, warehouse=tmp_path) as first:
        first.sql("CREATE TABLE warehouse.t AS SELECT 42 AS a")
    with minishark.connect(in_process=True, nodes=1, warehouse=tmp_path) as second:
        assert _rows(second, "FROM warehouse.t") == [(42,)]
        assert second.tables == ["warehouse.main.t"]


def test_versions(session: Session, folder: Path) -> None:
    """AT (VERSION) and AT (TIMESTAMP), in one query with the current version."""
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a")
    ((moment,),) = _rows(session, "SELECT now()")
    session.sql("INSERT INTO s.t VALUES (2)")
    session.sql("ALTER TABLE s.t ADD COLUMN b VARCHAR")
    first = _catalog(folder).load_table("s.t").snapshots()[0].snapshot_id
    query = f"SELECT (SELECT count(*) FROM s.t), count(*) FROM s.t AS old AT (VERSION => {first})"
    assert _rows(session, query) == [(2, 1)]
    at = f"s.t AT (TIMESTAMP => TIMESTAMPTZ '{moment.isoformat()}')"
    assert _rows(session, f"FROM {at}") == [(1,)]
    with pytest.raises(MinisharkError, match="12345"):
        session.sql("FROM s.t AT (VERSION => 12345)").collect()


@pytest.mark.slow
def test_names(session: Session) -> None:
    """With and without the warehouse, under USE, qualified columns, CTEs, views, macros, joins."""
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a")
    session.sql("CREATE OR REPLACE TABLE mem AS SELECT 1 AS a, 'm' AS b")
    assert _rows(session, "SELECT s.t.a, warehouse.s.t.a FROM s.t") == [(1, 1)]
    assert _rows(session, "WITH t AS (SELECT 7 AS a) FROM t, S.T AS u") == [(7, 1)]
    assert _rows(session, "SELECT b FROM mem JOIN warehouse.s.t USING (a)") == [("m",)]
    session.sql("CREATE OR REPLACE VIEW above AS SELECT a FROM s.t WHERE a > 0")
    session.sql("CREATE OR REPLACE MACRO most() AS (SELECT max(a) FROM s.t)")
    session.sql("INSERT INTO s.t VALUES (5)")
    assert _rows(session, "SELECT sum(a), most() FROM above") == [(6, 5)]
    session.sql("USE warehouse.s")
    assert _rows(session, "SELECT sum(a) FROM t") == [(6,)]
    assert _rows(session, "WITH t AS (SELECT 7 AS a) FROM t") == [(7,)]
    assert _rows(session, "FROM mem") == [(1, "m")]
    session.sql("CREATE TABLE own (x INTEGER)")
    assert _rows(session, "SHOW TABLES") == [("own",), ("t",)]
    session.sql("USE memory")
    assert ("mem",) in _rows(session, "SHOW TABLES")
    session.sql("INSERT INTO mem SELECT a, 'w' FROM s.t WHERE a > 1")
    assert _rows(session, "FROM mem ORDER BY a") == [(1, "m"), (5, "w")]
    session.sql("DROP VIEW above")
    session.sql("DROP TABLE mem")


@pytest.mark.slow
def test_names_that_could_mean_another_table(session: Session) -> None:
    """Dots in names, CTEs and tables in memory of the same name, text that looks like a table."""
    session.sql('CREATE TABLE s."t.u@1" AS SELECT 1 AS "a.b"')
    session.sql("CREATE OR REPLACE TABLE memory.t AS SELECT 'from s.t' AS a")
    session.sql("CREATE TABLE s.t AS SELECT 2 AS a UNION ALL SELECT 3")
    session.sql('INSERT INTO s."T.U@1" VALUES (5)')
    assert _rows(session, 'SELECT sum("t.u@1"."a.b") FROM s."t.u@1"') == [(6,)]
    session.sql("INSERT INTO memory.t SELECT ', s.t' || max(x.a) FROM s.t AS x, s.t y")
    session.sql("USE warehouse.s")
    assert _rows(session, "WITH t AS (SELECT a + 1 AS a FROM t) SELECT sum(a) FROM t") == [(7,)]
    assert _rows(session, "SELECT z, a FROM (WITH t AS (SELECT 1 AS z) FROM t), t WHERE a > 2") == [
        (1, 3)
    ]
    assert _rows(session, "SELECT a FROM memory.t ORDER BY a") == [(", s.t3",), ("from s.t",)]
    assert len(session.sql("PIVOT t ON a USING count(*)").columns) == 2
    session.sql("DROP TABLE memory.t")


@pytest.mark.slow
def test_conditions_that_vary_are_evaluated_once(session: Session) -> None:
    """What a statement counts is what it has done."""
    chance = random.Random(3)
    session.udf.register("coin", lambda _: chance.random() < 0.5, "BOOLEAN", deterministic=False)
    session.sql("CREATE OR REPLACE MACRO toss() AS random() < 0.5")
    session.sql("CREATE OR REPLACE VIEW chosen AS FROM range(300) t(i) WHERE random() < 0.5")
    session.sql("CREATE TABLE s.t AS SELECT i AS a, now() AS t FROM range(300) t(i)")
    varying = ("coin(a)", "toss()", "a IN (FROM chosen)", "a IN (SELECT a FROM s.t LIMIT 9)")
    rows = 300
    for condition in (*varying, "t < now() AND a % 2 = 0", "t::DATE <= current_date"):
        deleted = _count(session, f"DELETE FROM s.t WHERE a < 200 AND {condition}")
        rows -= deleted
        assert _count(session, "SELECT count(*) FROM s.t") == rows, condition
        merge = f"MERGE INTO s.t USING range(1) AS x(b) ON {condition} AND a < 100"
        rows -= _count(session, f"{merge} WHEN MATCHED THEN DELETE")
        assert _count(session, "SELECT count(*) FROM s.t") == rows, condition
    updated = _count(session, "UPDATE s.t SET a = -1 WHERE coin(a)")
    assert 0 < updated == _count(session, "SELECT count(*) FROM s.t WHERE a = -1") < rows
    session.sql("DROP VIEW chosen")
    session.sql("DROP MACRO toss")


def test_the_catalog(session: Session) -> None:
    session.sql("CREATE TABLE s.t (a INTEGER NOT NULL, b VARCHAR)")
    session.sql("COMMENT ON TABLE s.t IS 'a table'")
    session.sql("COMMENT ON COLUMN s.t.b IS 'it''s b'")
    assert _rows(session, "DESCRIBE s.t")[0][:3] == ("a", "INTEGER", "NO")
    assert _rows(session, "DESCRIBE SELECT b FROM s.t")[0][:2] == ("b", "VARCHAR")
    columns = (
        "SELECT column_name, comment FROM duckdb_columns() WHERE database_name = 'warehouse' "
        "AND table_name = 't' ORDER BY 1"
    )
    assert _rows(session, columns) == [("a", None), ("b", "it's b")]
    tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 's'"
    assert _rows(session, tables) == [("t",)]
    assert ("warehouse", "s", False) in _rows(session, "SHOW SCHEMAS")
    assert [row[0] for row in _rows(session, "SUMMARIZE s.t")] == ["a", "b"]
    session.sql("INSERT INTO s.t VALUES (1, 'x')")
    (info,) = [each for each in session.catalog.list_tables() if "warehouse.s" in each.name]
    assert (info.name, info.kind, info.rows) == ("warehouse.s.t", "table", 1)


def test_tables_of_the_catalog(session: Session) -> None:
    """The front end's answer is stored, of views and in transactions, too."""
    session.sql("CREATE TABLE s.t (a VARCHAR)")
    names = "SELECT table_name FROM duckdb_tables() WHERE schema_name = 's'"
    session.sql(f"CREATE TABLE s.names AS {names}")
    assert _rows(session, "FROM s.names") == [("t",)]
    session.sql(f"CREATE VIEW listed AS {names} ORDER BY table_name")
    session.sql("CREATE TABLE s.more AS FROM listed")
    assert _rows(session, "FROM s.more ORDER BY ALL") == [("names",), ("t",)]
    session.sql("BEGIN")
    session.sql(f"INSERT INTO s.t {names} AND table_name = 'more'")
    session.sql("INSERT INTO s.t FROM listed")
    session.sql("COMMIT")
    assert _rows(session, "FROM s.t ORDER BY ALL") == [("more",), ("more",), ("names",), ("t",)]


def test_altered_tables(session: Session) -> None:
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a, 'x' AS b")
    for sql in (
        "ALTER TABLE s.t ADD COLUMN c STRUCT(d INTEGER)",
        "ALTER TABLE s.t ADD COLUMN IF NOT EXISTS c INTEGER",
        "ALTER TABLE s.t RENAME COLUMN a TO aa",
        "ALTER TABLE s.t ALTER aa TYPE BIGINT",
        "ALTER TABLE s.t DROP COLUMN b",
        "ALTER TABLE s.t SET PARTITIONED BY (truncate(10, aa))",
        "INSERT INTO s.t VALUES (20, {'d': 2})",
        "ALTER TABLE s.t RENAME TO u",
    ):
        session.sql(sql)
    assert session.table("s.u").dtypes == [("aa", "BIGINT"), ("c", "STRUCT(d INTEGER)")]
    assert _rows(session, "SELECT aa, c.d FROM s.u ORDER BY aa") == [(1, None), (20, 2)]
    assert _count(session, "DELETE FROM s.u WHERE aa < 10") == 1
    session.sql("CREATE OR REPLACE TABLE s.u AS SELECT aa + 1 AS n FROM s.u")  # reads itself
    assert _rows(session, "FROM s.u") == [(21,)]
    session.sql("CREATE OR REPLACE TABLE s.u AS SELECT 'new' AS n")
    assert _rows(session, "FROM s.u") == [("new",)]
    for sql, what in (
        ("ALTER TABLE s.u ADD COLUMN n INTEGER", "is a column 'n' already"),
        ("ALTER TABLE s.u DROP COLUMN zz", "no column 'zz'; the columns are: n"),
        ("ALTER TABLE s.u ALTER n TYPE INTEGER", "can't be changed so"),
    ):
        with pytest.raises(QueryError, match=what):
            session.sql(sql)


@pytest.mark.sample(9)
@pytest.mark.parametrize(
    ("sql", "error", "what"),
    [
        ("CREATE TABLE s.n (a INTEGER PRIMARY KEY)", UnsupportedError, "no PRIMARY KEY"),
        ("CREATE TABLE s.n (a INTEGER DEFAULT 1)", UnsupportedError, "no defaults"),
        ("CREATE TABLE s.n (a INTEGER) SORTED BY (a)", UnsupportedError, "does not sort"),
        ("CREATE TABLE s.n (a INTEGER) PARTITIONED BY (b)", QueryError, "no column 'b'"),
        ("CREATE TABLE s.n (a INTEGER) PARTITIONED BY (f(a))", QueryError, "PARTITIONED BY takes"),
        ("CREATE TABLE s.t (a INTEGER)", CatalogError, "is a table called warehouse.s.t already"),
        ("CREATE TABLE warehouse.no.t (a INTEGER)", CatalogError, "no schema called 'no'"),
        ("CREATE VIEW s.v AS SELECT 1", UnsupportedError, "has no views"),
        ("CREATE INDEX i ON s.t (a)", UnsupportedError, "no indexes"),
        ("COPY s.t FROM 'file.csv'", UnsupportedError, "INSERT INTO warehouse.s.t FROM 'file'"),
        ("DROP TABLE s.none", CatalogError, "no table warehouse.s.none"),
        ("DROP SCHEMA s", CatalogError, "has tables"),
        ("SELECT * FROM warehouse.s.none", CatalogError, "tables of that schema are: t"),
        (
            "INSERT INTO s.t VALUES (1, 2)",
            QueryError,
            "1 (columns|values).* but 2 ",
        ),  # DuckDB's or ours
        ("INSERT INTO s.t VALUES (NULL)", ConstraintError, "NOT NULL constraint failed"),
        ("UPDATE s.t SET b = 1", QueryError, "no column 'b'"),
        ("CACHE TABLE mem", CatalogError, "no table of the warehouse"),
        ("VACUUM ANALYZE", UnsupportedError, "no ANALYZE"),
        ("SELECT a FROM duckdb_tables(), s.t", UnsupportedError, "store its answer as a table"),
        (
            "DELETE FROM s.t WHERE a IN (SELECT count(*) FROM duckdb_tables())",
            UnsupportedError,
            "store its answer as a table",
        ),
    ],
)
def test_refusals(session: Session, sql: str, error: type[Exception], what: str) -> None:
    session.sql("CREATE TABLE s.t (a INTEGER NOT NULL)")
    with pytest.raises(error, match=what):
        session.sql(sql).collect()
    assert _rows(session, "SHOW TABLES FROM s") == [("t",)]
    assert _rows(session, "FROM s.t") == []


@pytest.mark.slow
def test_failed_writes_leave_no_files(session: Session, folder: Path) -> None:
    session.sql("CREATE TABLE s.t (a INTEGER NOT NULL)")
    for sql in (
        "INSERT INTO s.t SELECT CASE WHEN i < 400000 THEN i END FROM range(500000) t(i)",
        (
            "CREATE TABLE s.u AS SELECT CASE WHEN i < 400000 THEN i ELSE error('no') END AS a "
            "FROM range(500000) t(i)"
        ),
    ):
        with pytest.raises(TaskFailedError):
            session.sql(sql)
    assert _files(folder, "*") == []
    assert _rows(session, "SHOW TABLES FROM s") == [("t",)]


def test_transactions(session: Session) -> None:
    """A transaction sees its own changes, others see them when it is committed, or never."""
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a")
    session.sql("CREATE TABLE s.u AS SELECT 1 AS a")
    session.sql("BEGIN")
    assert _count(session, "INSERT INTO s.t SELECT a + 1 FROM s.u") == 1
    assert _count(session, "UPDATE s.t SET a = a * 10") == 2
    assert _rows(session, "FROM s.t ORDER BY a") == [(10,), (20,)]
    with session.new_session() as other:
        assert _rows(other, "FROM s.t") == [(1,)]
        other.sql("BEGIN; INSERT INTO s.u VALUES (2)")
        assert _rows(other, "SELECT count(*) FROM s.u") == [(2,)]
        other.sql("ROLLBACK")
    session.sql("ROLLBACK")
    assert _rows(session, "FROM s.t") == [(1,)]
    session.sql("BEGIN; DELETE FROM s.t; INSERT INTO s.t VALUES (3); COMMIT")
    assert _rows(session, "FROM s.t") == [(3,)]
    with pytest.raises(TransactionError, match="BEGIN one"):
        session.sql("COMMIT")


def test_views_of_what_a_transaction_has_changed(session: Session) -> None:
    """They would have the rows from before: such a query is refused; of other tables it is not."""
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a; CREATE TABLE s.u AS SELECT 1 AS a")
    session.sql("CREATE VIEW tv AS FROM s.t; CREATE VIEW uv AS FROM s.u")
    session.sql("BEGIN")
    assert _rows(session, "FROM tv, uv") == [(1, 1)]
    session.sql("INSERT INTO s.t VALUES (2)")
    assert _rows(session, "FROM uv") == [(1,)]
    with pytest.raises(UnsupportedError, match="read the table itself, or COMMIT"):
        session.sql("SELECT count(*) FROM tv").collect()
    session.sql("ROLLBACK")
    assert _rows(session, "FROM tv") == [(1,)]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO s.u VALUES (1)",
        "CREATE TABLE s.v (a INTEGER)",
        "DROP TABLE s.t",
        "CREATE TABLE mem AS SELECT 1 AS a",
    ],
)
def test_what_a_transaction_does_not_take(session: Session, sql: str) -> None:
    """It is refused, which aborts the transaction; what that has written is removed."""
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a")
    session.sql("CREATE TABLE s.u AS SELECT 1 AS a")
    session.sql("BEGIN; INSERT INTO s.t VALUES (2)")
    with pytest.raises(UnsupportedError, match="transaction"):
        session.sql(sql)
    for refused in ("FROM s.t", "INSERT INTO s.t VALUES (3)", "BEGIN"):
        with pytest.raises(TransactionError, match="aborted"):
            session.sql(refused)
    session.sql("COMMIT")
    assert _rows(session, "FROM s.t") == [(1,)]


@pytest.mark.slow
def test_cached_tables_are_current(session: Session, folder: Path) -> None:
    """A table in memory is loaded again when another session has changed it."""
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a")
    assert _count(session, "CACHE TABLE s.t") == 1
    frame = session.table("s.t")
    assert "warehouse.s.t" in session._runtime.engine.tables.catalog.loaded
    for file in _files(folder, "t"):
        file.rename(file.with_suffix(".gone"))
    assert frame.count() == 1  # from memory
    for file in folder.glob("s/t-*/data/*.gone"):
        file.rename(file.with_suffix(".parquet"))
    with minishark.connect(in_process=True, nodes=1, warehouse=folder) as other:
        other.sql("INSERT INTO s.t VALUES (2)")
        assert frame.count() == 2
        other.sql("DROP TABLE s.t")
    with pytest.raises(MinisharkError, match="t"):
        session.sql("FROM s.t").collect()
    assert "warehouse.s.t" not in session._runtime.engine.tables.catalog.loaded


@pytest.mark.slow
def test_writers_at_the_same_time(
    session: Session, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends follow one another; of two changes of the same rows, one is a conflict."""
    session.sql("CREATE TABLE s.t AS SELECT i AS a FROM range(10) t(i)")
    with minishark.connect(in_process=True, nodes=1, warehouse=folder) as other:
        written = WarehouseTable._written
        now: list[str] = []

        def between(self: WarehouseTable, *arguments: Any, **options: Any) -> Any:
            answer = written(self, *arguments, **options)
            if now:
                other.sql(now.pop())
            return answer

        monkeypatch.setattr(WarehouseTable, "_written", between)
        now.append("INSERT INTO s.t VALUES (100)")
        assert _count(session, "INSERT INTO s.t VALUES (200)") == 1
        assert _count(session, "SELECT sum(a)::BIGINT FROM s.t") == 345
        now.append("UPDATE s.t SET a = a + 1000 WHERE a = 1")
        with pytest.raises(ConflictError, match=r"Another writer has changed warehouse\.s\.t"):
            session.sql("UPDATE s.t SET a = -1 WHERE a < 5")
        assert _rows(session, "SELECT min(a), max(a), count(*) FROM s.t") == [(0, 1001, 12)]
        now.append("DROP TABLE s.t")
        with pytest.raises(CatalogError, match="dropped meanwhile"):
            session.sql("INSERT INTO s.t VALUES (1)")


@pytest.mark.slow
def test_writers_in_threads_and_sessions(session: Session, folder: Path) -> None:
    """Appends are all kept; of two changes of the same rows, at most one is a conflict."""
    session.sql("CREATE TABLE s.t (a INTEGER)")
    failed: list[BaseException] = []

    def run(of: Session, *statements: str) -> None:
        for sql in statements:
            try:
                of.sql(sql)
            except BaseException as error:  # noqa: BLE001 - the test tells
                failed.append(error)

    def together(*runs: tuple[Session, Sequence[str]]) -> None:
        threads = [threading.Thread(target=run, args=(of, *texts)) for of, texts in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(80)

    with (
        minishark.connect(in_process=True, nodes=1, warehouse=folder) as other,
        session.new_session() as child,
    ):
        values = [[f"INSERT INTO s.t VALUES ({n * 10 + i})" for i in range(3)] for n in range(5)]
        together(*zip((session, session, other, other, child), values, strict=True))
        assert failed == []
        assert _rows(session, "SELECT count(*), count(DISTINCT a) FROM s.t") == [(15, 15)]
        before = _count(session, "SELECT sum(a)::BIGINT FROM s.t")
        updates = [f"UPDATE s.t SET a = a + {more}" for more in (1000, 10000)]
        together((session, updates[:1]), (other, updates[1:]))
        assert [type(error) for error in failed] in ([], [ConflictError])
        added = (_count(session, "SELECT sum(a)::BIGINT FROM s.t") - before) // 15
        assert added in ((1000, 10000) if failed else (11000,))


def test_a_session_of_its_own(session: Session) -> None:
    """It has the same tables, and its own USE and transaction."""
    session.sql("CREATE TABLE s.t AS SELECT 1 AS a")
    with session.new_session() as child:
        child.sql("USE warehouse.s; BEGIN; INSERT INTO t VALUES (2)")
        assert (_rows(child, "FROM t ORDER BY a"), _rows(session, "FROM s.t")) == (
            [(1,), (2,)],
            [(1,)],
        )
        with pytest.raises(QueryError, match="t does not exist"):
            session.sql("FROM t").collect()
        child.sql("COMMIT")
    assert _count(session, "SELECT sum(a)::BIGINT FROM s.t") == 3


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    mount = shutil.which("mount")
    target = tmp_path / "small"
    target.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(target)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system can't be mounted here")
    yield target
    subprocess.run(["umount", str(target)], check=True)


def test_a_full_disk_is_named(session: Session, small_disk: Path) -> None:
    """The table stays as it was, and nothing half is left."""
    session.sql(f"CREATE TABLE s.t (a VARCHAR) WITH ('write.data.path' = 'file://{small_disk}')")
    session.sql("INSERT INTO s.t VALUES ('x')")
    with pytest.raises(ResourceError, match=rf"The disk is full: can't write file://{small_disk}"):
        session.sql("INSERT INTO s.t SELECT uuid()::VARCHAR FROM range(200000)")
    assert _rows(session, "FROM s.t") == [("x",)]
    assert len(list(small_disk.iterdir())) == 1


@pytest.mark.slow
def test_vacuum(session: Session, folder: Path) -> None:
    """Old versions expire, and files that no version uses are removed, once they are old."""
    session.sql(
        "CREATE TABLE s.t (a INTEGER) WITH ('history.expire.max-snapshot-age-ms' = '0', "
        "'minishark.vacuum.file-age-s' = '0')"
    )
    session.sql("INSERT INTO s.t VALUES (1)")
    session.sql("UPDATE s.t SET a = 2")
    (file, _) = _files(folder, "t")
    shutil.copy(file, file.with_name("left-behind.parquet"))
    assert len(_files(folder, "t")) == 3
    assert _count(session, "VACUUM s.t") > 1
    assert len(_files(folder, "t")) == 1
    assert _rows(session, "FROM s.t") == [(2,)]
    assert _count(session, "VACUUM") == 0


@pytest.mark.slow
def test_python_names_tables_likewise(session: Session) -> None:
    session.create_table("s.t", pa.table({"a": [1, 2]}))
    session.range(3).write.save_as_table("warehouse.s.u")
    session.range(3).write.insert_into("s.u")
    assert (session.table("s.t").count(), session.table("warehouse.s.u").count()) == (2, 6)
    assert session.cache("s.u") == 6
    session.uncache("s.u")
    with pytest.raises(CatalogError, match="already"):
        session.create_table("s.t", pa.table({"a": [1]}))
    session.create_table("s.t", pa.table({"a": [1]}), replace=True)
    assert session.table("s.t").count() == 1
    session.drop_table("s.t")
    assert not session.catalog.table_exists("warehouse.s.t")


def test_where_a_warehouse_is(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="needs a catalog elsewhere"):
        minishark.connect(in_process=True, nodes=1, warehouse="gs://bucket/folder")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(DataError, match=r"Can't use .*file as a warehouse"):
        minishark.connect(in_process=True, nodes=1, warehouse=file)
    with minishark.connect(in_process=True, nodes=1) as session:
        for sql in ("VACUUM", "CACHE TABLE t"):
            with pytest.raises(UnsupportedError, match="warehouse="):
                session.sql(sql)
