"""Scripts of kinds that DuckDB's own test files have: each statement answers as DuckDB's does.

Cases are what `benchmarks/duckdb_tests.py` has found; it runs the files themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import minishark
from minishark.errors import ConflictError, MinisharkError
from minishark.query.answers import differences
from minishark.session.session import Session

pytestmark = pytest.mark.filterwarnings("ignore:Arrow output on a DB-API result")

# By their kinds: statements, each perhaps after the name of its connection.
SCRIPTS = {
    "names that are taken": """
        CREATE TABLE t (i INTEGER); CREATE VIEW v AS SELECT 1 AS a; CREATE SEQUENCE q;
        CREATE OR REPLACE VIEW v AS FROM v;
        CREATE VIEW v AS SELECT 2 AS a; FROM v; CREATE VIEW t AS SELECT 3; FROM t;
        CREATE VIEW IF NOT EXISTS t AS SELECT 4; FROM t; DROP VIEW IF EXISTS t; DROP VIEW t;
        DROP TABLE v; DROP TABLE IF EXISTS v; FROM v; CREATE OR REPLACE VIEW t AS SELECT 5;
        CREATE MACRO f(x) AS x + 1; CREATE MACRO f(x) AS x + 2; SELECT f(1) AS y;
        CREATE TYPE y AS INTEGER; CREATE TYPE y AS VARCHAR""",
    "names after USE": """
        CREATE TABLE t AS SELECT 1 AS i; CREATE TABLE u AS SELECT 2 AS i; ATTACH ':memory:' AS o;
        CREATE TABLE o.w (i INTEGER); INSERT INTO o.w VALUES (9); CREATE SCHEMA s;
        CREATE TABLE s.x AS SELECT 3 AS i; CREATE VIEW q AS FROM t;
        USE o; FROM t; FROM w; SELECT u.i FROM u; FROM memory.t; FROM memory.main.t; FROM memory.q;
        SELECT t.i, memory.i FROM memory.t, memory.u AS memory; DESCRIBE t;
        INSERT INTO t VALUES (5); INSERT INTO memory.t VALUES (6); UPDATE t SET i = 3; DROP TABLE t;
        CREATE VIEW v AS FROM t; CREATE VIEW v AS FROM w; FROM v; CREATE TABLE t (j INTEGER);
        INSERT INTO t VALUES (7); FROM t; FROM memory.main.t; USE memory; FROM t; FROM w; FROM v;
        SET search_path = 's'; FROM x; FROM t; INSERT INTO t VALUES (4); FROM t;
        SET search_path = 's,main'; FROM x; FROM t; USE memory.s; FROM t; FROM x; USE memory.main;
        SET search_path = 'o.main,memory.main'; FROM t; FROM u; USE memory;
        DROP SCHEMA s CASCADE; DETACH o""",
    "sizes in the catalog": """
        CREATE TABLE t AS FROM range(5000) r(i); CREATE TABLE u (a INTEGER PRIMARY KEY);
        SELECT table_name, estimated_size FROM duckdb_tables(); CREATE SCHEMA s;
        SELECT relname, reltuples FROM pg_catalog.pg_class WHERE relname IN ('t', 'u');
        INSERT INTO u VALUES (1), (2); INSERT INTO t VALUES (-1); CREATE TABLE s.t AS SELECT 1 AS i;
        CREATE VIEW v AS SELECT schema_name, table_name, estimated_size AS e FROM duckdb_tables();
        FROM v; SELECT e, t.i FROM v, t WHERE i < 1; SELECT estimated_size FROM duckdb_tables;
        DROP SCHEMA s CASCADE""",
    "views of what only the front end has": """
        CREATE SEQUENCE q; CREATE VIEW v AS SELECT 1 AS a; FROM v;
        CREATE OR REPLACE VIEW v AS SELECT nextval('q') AS b; FROM v;
        CREATE VIEW v AS SELECT 2; CREATE VIEW IF NOT EXISTS v AS SELECT 2; FROM v;
        CREATE TABLE v (i INTEGER); ALTER TABLE v RENAME TO w; FROM v; FROM w;
        CREATE OR REPLACE VIEW w AS SELECT 3 AS c; FROM w; DROP VIEW w; FROM w""",
    "ALTER TABLE of a view": """
        CREATE TABLE t AS SELECT 1 AS i; CREATE VIEW v AS FROM t;
        ALTER TABLE v RENAME TO w; FROM v; FROM w""",
    "views and macros of the catalog": """
        CREATE TABLE t (i INTEGER NOT NULL); CREATE VIEW v AS (SHOW TABLES); FROM v;
        CREATE VIEW w AS SELECT upper(table_name) AS u FROM duckdb_tables();
        CREATE VIEW x AS SELECT u || '!' AS u FROM w; CREATE TABLE s (i INTEGER); FROM x;
        CREATE MACRO m(n) AS (SELECT count(*) FROM duckdb_columns() WHERE table_name = n);
        SELECT m('t') AS c;
        CREATE OR REPLACE VIEW w AS SELECT 1 AS one; FROM w;
        CREATE OR REPLACE VIEW w AS SELECT table_name FROM duckdb_tables(); FROM w""",
    "the catalog beside rows": """
        CREATE TABLE t AS SELECT i, 'n' || i AS n FROM range(10) r(i); CREATE TABLE u (a INTEGER);
        CREATE VIEW v AS SELECT i + 1 AS j FROM t; INSERT INTO u VALUES (1), (2);
        SELECT count(*) AS c FROM duckdb_tables() JOIN t ON true;
        SELECT table_name, i FROM duckdb_tables() JOIN t ON i < 2;
        SELECT i FROM t WHERE i < (SELECT count(*) FROM duckdb_tables());
        SELECT table_name, j FROM duckdb_tables(), v;
        SELECT view_name, i FROM duckdb_views(), t WHERE NOT internal AND i = 1;
        SELECT column_name, i FROM duckdb_columns(), t WHERE NOT internal AND i = 1;
        SELECT table_name, table_type, a FROM information_schema.tables, u;
        SELECT relname, a FROM pg_catalog.pg_class, u WHERE relname IN ('t', 'u', 'v');
        SELECT table_name FROM duckdb_tables() UNION ALL SELECT n FROM t WHERE i < 2;
        SELECT name FROM sqlite_master JOIN (SELECT 't' AS name, a FROM u) USING (name);
        SELECT column_name, a FROM (DESCRIBE t), u; SELECT name, a FROM pragma_table_info('t'), u;
        WITH c AS (SELECT table_name FROM duckdb_tables()) SELECT count(*) AS c FROM c, t, u;
        PREPARE p AS SELECT count(*) AS c FROM duckdb_tables(), t WHERE i < ? AND table_name = ?;
        EXECUTE p(5, 't'); PIVOT (SELECT table_name, a FROM duckdb_tables(), u) ON table_name
        USING count(*) GROUP BY a; SET VARIABLE x = (SELECT count(*) FROM duckdb_tables(), t);
        SELECT getvariable('x') AS x;
        CREATE TYPE y AS ENUM (SELECT table_name FROM duckdb_tables(), u GROUP BY 1 ORDER BY 1);
        SELECT enum_range(NULL::y)::VARCHAR AS y""",
    "views and macros of the catalog beside rows": """
        CREATE TABLE t AS SELECT i FROM range(4) r(i);
        CREATE VIEW w AS SELECT table_name FROM duckdb_tables();
        SELECT table_name, i FROM w, t; CREATE VIEW x AS SELECT table_name, i FROM w, t; FROM x;
        SELECT count(*) AS c FROM x JOIN t USING (i);
        a: CREATE TEMP VIEW y AS SELECT table_name AS n, i FROM duckdb_tables(), t; a: FROM y;
        a: SELECT n FROM y JOIN t USING (i);
        CREATE MACRO m() AS TABLE SELECT table_name, i FROM duckdb_tables(), t; FROM m();
        CREATE MACRO f() AS (SELECT count(*) FROM duckdb_tables(), t); SELECT f() + i AS n FROM t;
        CREATE TABLE s AS FROM w; FROM s; INSERT INTO s SELECT table_name FROM w; FROM s;
        CREATE TABLE r AS SELECT f() AS n; FROM r; INSERT INTO r VALUES (f()); FROM r;
        UPDATE r SET n = f() WHERE n < f(); FROM r""",
    "tables of the catalog": """
        CREATE TABLE t AS SELECT i FROM range(4) r(i);
        CREATE TABLE u (k VARCHAR PRIMARY KEY, v INT);
        CREATE TABLE x AS SELECT table_name FROM duckdb_tables(); FROM x; DESCRIBE x;
        CREATE OR REPLACE TABLE x AS SELECT table_name AS n, column_name AS c, column_index AS i
            FROM duckdb_columns() WHERE NOT internal AND table_name <> 'x'; FROM x;
        CREATE TABLE x AS FROM duckdb_tables(); CREATE TABLE IF NOT EXISTS x AS FROM pg_class;
        CREATE TABLE IF NOT EXISTS y AS SELECT table_name FROM information_schema.tables; FROM y;
        CREATE TABLE z AS FROM duckdb_tables() WITH NO DATA; SELECT count(*) AS c FROM z;
        INSERT INTO x SELECT table_name, n, i FROM duckdb_tables(), x WHERE c = 'k'; FROM x;
        INSERT INTO x (n) SELECT table_name FROM duckdb_tables(); FROM x;
        INSERT INTO x BY NAME SELECT table_name AS c, 7 AS i FROM duckdb_tables(); FROM x;
        INSERT INTO u SELECT table_name, 1 FROM duckdb_tables(); FROM u;
        INSERT INTO u SELECT table_name, 1 FROM duckdb_tables();
        INSERT INTO u SELECT table_name, 2 FROM duckdb_tables() WHERE table_name < 'v'
            ON CONFLICT DO UPDATE SET v = excluded.v RETURNING k, v; FROM u;
        WITH c AS (SELECT table_name FROM duckdb_tables()) INSERT INTO u SELECT table_name || '!', 5
            FROM c; FROM u; DELETE FROM u WHERE k IN (SELECT table_name FROM duckdb_tables());
        FROM u;
        UPDATE u SET v = (SELECT count(*) FROM duckdb_tables()) WHERE k < 'v' RETURNING v; FROM u;
        MERGE INTO u USING (SELECT table_name || '!' AS k FROM duckdb_tables() UNION SELECT 'a') s
            ON s.k = u.k WHEN MATCHED THEN UPDATE SET v = 9 WHEN NOT MATCHED THEN INSERT VALUES
            (s.k, 3); FROM u; PREPARE p AS INSERT INTO u SELECT table_name, $1 FROM duckdb_tables()
            WHERE table_name = $2; EXECUTE p(8, 't'); FROM u; CREATE SCHEMA s;
        CREATE TABLE s.x AS SELECT table_name FROM duckdb_tables(); FROM s.x;
        INSERT INTO s.x SELECT table_name FROM duckdb_tables() WHERE table_name = 't'; FROM s.x;
        CREATE TABLE e AS SELECT 'a'::ENUM('a', 'b') AS e; SELECT e, table_name
        FROM duckdb_tables(), e; INSERT INTO e SELECT 'b' FROM duckdb_tables(); FROM e;
        DROP SCHEMA s CASCADE; DROP TABLE e""",
    "what INSERT reads of the catalog alone": """
        CREATE TABLE t (i INTEGER); CREATE TABLE u (k VARCHAR PRIMARY KEY, n INTEGER);
        INSERT INTO u SELECT table_name, column_count FROM duckdb_tables(); FROM u;
        INSERT INTO u VALUES ('v', (SELECT count(*) FROM duckdb_tables())), ('w', 1); FROM u;
        CREATE MACRO c() AS (SELECT count(*) FROM duckdb_tables());
        INSERT INTO u VALUES ('x', c()); INSERT INTO u VALUES ('w', 5) ON CONFLICT DO UPDATE
        SET n = excluded.n + c(); FROM u; BEGIN; CREATE TABLE v (i INTEGER);
        INSERT INTO u SELECT 'y', count(*) FROM duckdb_tables(); INSERT INTO u VALUES ('x', 9)
        ON CONFLICT DO UPDATE SET n = excluded.n + c(); FROM u; ROLLBACK; FROM u""",
    "what reads the catalog since it was defined": """
        CREATE TABLE t AS SELECT 1 AS i; FROM t; CREATE VIEW a AS SELECT 'none' AS table_name;
        CREATE VIEW b AS FROM a; CREATE OR REPLACE VIEW a AS SELECT table_name FROM duckdb_tables();
        FROM b; SELECT table_name, i FROM b, t; INSERT INTO t SELECT 10 + count(*) FROM b; FROM t;
        ALTER VIEW a RENAME TO c; FROM c; SELECT table_name, i FROM c, t;
        CREATE MACRO m() AS 1; CREATE MACRO n() AS m() + 1;
        CREATE OR REPLACE MACRO m() AS (SELECT count(*) FROM duckdb_tables()); SELECT n() AS n;
        SELECT n() AS n, i FROM t; UPDATE t SET i = n() WHERE i = 1; FROM t""",
    "temporary tables of the catalog": """
        CREATE TABLE t AS SELECT i FROM range(4) r(i); a: CREATE TEMP TABLE e AS SELECT 1 AS i;
        a: SELECT table_name, i FROM duckdb_tables(), e; a: SELECT e.i FROM duckdb_tables(), e, t;
        a: CREATE TEMP TABLE x AS SELECT table_name FROM duckdb_tables(); a: FROM x;
        a: INSERT INTO x SELECT table_name FROM duckdb_tables() WHERE table_name <> 'x'; a: FROM x;
        a: CREATE OR REPLACE TEMP TABLE x AS SELECT table_name, i FROM duckdb_tables(), t
            WHERE table_name <> 'x'; a: FROM x;
        a: INSERT INTO t SELECT count(*) FROM duckdb_tables(), e; FROM t;
        a: UPDATE t SET i = (SELECT count(*) FROM duckdb_tables(), e) WHERE i > 2; FROM t""",
    "the catalog in a transaction": """
        CREATE TABLE t AS SELECT i FROM range(4) r(i); BEGIN; INSERT INTO t VALUES (77);
        CREATE TABLE x AS SELECT table_name FROM duckdb_tables(); FROM x;
        INSERT INTO x SELECT column_name FROM duckdb_columns() WHERE table_name = 't'; FROM x;
        SELECT table_name, i FROM duckdb_tables(), t; CREATE VIEW v AS SELECT i + 1 AS j FROM t;
        SELECT view_name, j FROM duckdb_views(), v WHERE NOT internal;
        UPDATE t SET i = (SELECT count(*) FROM duckdb_tables()) WHERE i = 77; FROM t;
        a: SELECT table_name, i FROM duckdb_tables(), t; COMMIT; FROM x; FROM t""",
    "tables that depend on sequences": """
        CREATE SEQUENCE q; CREATE TABLE t (i INTEGER DEFAULT nextval('q'), j INTEGER);
        INSERT INTO t (j) VALUES (1); DROP SEQUENCE q; INSERT INTO t (j) VALUES (2); FROM t;
        ALTER TABLE t ALTER i DROP DEFAULT; DROP SEQUENCE q; FROM t; CREATE SEQUENCE q;
        ALTER TABLE t ALTER i SET DEFAULT nextval('q'); DROP SEQUENCE q CASCADE; FROM t""",
    "sequences that tables own": """
        CREATE SEQUENCE q; CREATE TABLE t (i INTEGER); INSERT INTO t VALUES (1);
        ALTER SEQUENCE q OWNED BY t; DROP SEQUENCE q; INSERT INTO t VALUES (2);
        SELECT nextval('q') AS n; FROM t; DROP TABLE t; SELECT nextval('q') AS n;
        CREATE SEQUENCE q; CREATE TABLE t (i INTEGER DEFAULT nextval('q')); CREATE SEQUENCE p;
        ALTER SEQUENCE p OWNED BY t; DROP SEQUENCE q CASCADE; FROM t; SELECT nextval('p') AS n""",
    "names and types of columns in RETURNING": """
        CREATE SEQUENCE q; SELECT nextval('q'), nextval('q');
        SELECT * FROM (SELECT nextval('q') AS a), (SELECT 2 AS a);
        CREATE TABLE t (i INTEGER, b BOOLEAN, h HUGEINT, u UUID, z TIMETZ);
        INSERT INTO t VALUES (1, true, 3, '00000000-0000-0000-0000-000000000001', '12:00:00+01')
            RETURNING *, i, i IN (1, 2), h + 1;
        INSERT INTO t SELECT i + 1, b, h, u, z FROM t RETURNING i, i, b;
        UPDATE t SET b = false WHERE i = 2 RETURNING i, i, b; DELETE FROM t RETURNING *, b""",
    "row ids in RETURNING": """
        CREATE TABLE t (i INTEGER); INSERT INTO t VALUES (7), (8), (9);
        UPDATE t SET i = 3 WHERE i = 9 RETURNING rowid;
        DELETE FROM t WHERE i = 8 RETURNING rowid""",
    "tables are no views": """
        CREATE TABLE t (i INTEGER); INSERT INTO t VALUES (1); ALTER VIEW t RENAME TO u; FROM u;
        FROM t; DROP VIEW t; FROM t; CREATE VIEW v AS FROM t; DROP TABLE v; FROM v""",
    "changes in WITH": """
        CREATE TABLE t (i INTEGER); CREATE TABLE s (i INTEGER);
        WITH n AS (INSERT INTO t VALUES (1), (2) RETURNING i) INSERT INTO s SELECT i + 1 FROM n;
        FROM t; FROM s; WITH n AS (INSERT INTO t VALUES (9) RETURNING i)
            UPDATE s SET i = n.i FROM n WHERE s.i = 2 RETURNING s.i; FROM t; FROM s;
        WITH d AS (DELETE FROM t WHERE i > 1 RETURNING i) SELECT sum(i) AS n FROM d; FROM t""",
    "names with capitals": """
        CREATE TABLE MixedCase (Id INTEGER PRIMARY KEY); SHOW TABLES;
        INSERT INTO mixedcase VALUES (1);
        ALTER TABLE MIXEDCASE ADD COLUMN Other INTEGER; CREATE TABLE "it's" AS SELECT 1 AS i;
        SELECT table_name, column_name FROM information_schema.columns; UPDATE mixedCASE SET id = 2;
        CREATE INDEX x ON mixedcase (Other); SHOW TABLES; FROM MixedCase; DROP INDEX x;
        ALTER TABLE mixedcase RENAME TO OtherCase; SHOW TABLES; FROM othercase""",
    "what was dropped": """
        CREATE SEQUENCE q; CREATE TYPE y AS ENUM ('a'); CREATE MACRO f(x) AS x; DROP TYPE y;
        DROP TYPE y; DROP MACRO f; DROP MACRO f; CREATE VIEW v AS SELECT 1; DROP VIEW v;
        DROP VIEW v""",
    "names that are free again": """
        CREATE TABLE t AS SELECT 1 AS i; ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME TO t;
        FROM t; ALTER TABLE t RENAME TO u; CREATE TABLE t (j INTEGER); FROM t; FROM u;
        ALTER TABLE u RENAME TO v; CREATE TABLE IF NOT EXISTS u (k INTEGER); FROM u; FROM v;
        ALTER TABLE v RENAME TO w; DROP TABLE v; ALTER TABLE v ADD COLUMN k INTEGER;
        CREATE INDEX x ON v (j); ALTER TABLE IF EXISTS v RENAME TO x; FROM v; FROM w""",
    "structs in structs": """
        CREATE TABLE t AS SELECT i, {'a': {'b': i, 'c': [{'d': {'e': i}}]}} AS s
        FROM range(2000) r(i); DELETE FROM t WHERE i = 3; SELECT sum(s.a.b) AS x FROM t;
        UPDATE t SET s = NULL WHERE i = 7; UPDATE t SET s = {'a': NULL} WHERE i = 8;
        FROM t WHERE s.a.b < 20; FROM t WHERE s.a IS NULL""",
    "USE": """
        CREATE TABLE t (i INTEGER); ATTACH ':memory:' AS d; USE d; CREATE TABLE u AS SELECT 1 AS i;
        USE memory.main; SELECT current_database() AS d, current_setting('search_path') AS p;
        CREATE TABLE v AS SELECT 2 AS i; FROM memory.main.v; FROM d.main.v; FROM d.u; DETACH d;
        SHOW ALL TABLES""",
    "tables after SET search_path": """
        CREATE SCHEMA s; CREATE TABLE t (i INTEGER); SET search_path = 's,main';
        CREATE TABLE k (i INTEGER PRIMARY KEY, j INTEGER DEFAULT 7); FROM s.k; FROM main.k;
        INSERT INTO t VALUES (1), (2); UPDATE t SET i = i + 5 WHERE i = 1; FROM t; DELETE FROM t
        WHERE i = 2; FROM t; ALTER TABLE t ADD COLUMN a INTEGER; FROM t; USE s; FROM t;
        INSERT INTO t VALUES (8, 9); FROM main.t; CREATE TABLE t (b INTEGER); INSERT INTO t
        VALUES (3); FROM t; FROM main.t; DROP TABLE t; FROM t; DROP TABLE t; FROM t; DROP TABLE k;
        USE memory.main; DROP SCHEMA s""",
    "types that Arrow lacks": """
        CREATE TABLE t AS SELECT ROW(1, 'a') AS r; DESCRIBE t; INSERT INTO t VALUES ((2, 'b'));
        SELECT r[2] AS x, typeof(r) AS y FROM t; CREATE TABLE v (i INTEGER, v VARIANT);
        INSERT INTO v VALUES (1, 7::UTINYINT), (2, {'a': 3::UINTEGER}), (3, 5::HUGEINT);
        UPDATE v SET i = 4 WHERE i = 1; SELECT i, variant_typeof(v) AS t FROM v ORDER BY i;
        CREATE TABLE w AS SELECT i, v FROM v; SELECT variant_typeof(v) AS t FROM w ORDER BY i""",
    "COPY FROM DATABASE": """
        CREATE TABLE t (i INTEGER PRIMARY KEY, j VARCHAR DEFAULT 'q'); INSERT INTO t (i) VALUES (1);
        CREATE VIEW v AS SELECT sum(i) AS s FROM t; ATTACH ':memory:' AS d;
        COPY FROM DATABASE memory TO d; FROM d.t; FROM d.v; INSERT INTO d.t (i) VALUES (1);
        INSERT INTO d.t (i) VALUES (3); CREATE TABLE d.u AS SELECT 7 AS z; FROM d.t; FROM t;
        SELECT name FROM pragma_database_list ORDER BY name; DROP VIEW v; DROP TABLE t;
        COPY FROM DATABASE d TO memory; FROM t; FROM v; INSERT INTO u VALUES (1); FROM u;
        COPY FROM DATABASE memory TO nowhere; DETACH d""",
    "COPY FROM DATABASE over tables that there are": """
        CREATE TABLE t AS SELECT 1 AS i; FROM t; ATTACH ':memory:' AS d;
        CREATE TABLE d.T AS SELECT 5 AS k; CREATE TABLE d.w AS SELECT 6 AS k;
        COPY FROM DATABASE d TO memory; FROM t; FROM w; COPY FROM DATABASE d TO memory (SCHEMA);
        FROM t; DROP TABLE d.t; COPY FROM DATABASE d TO memory; FROM t; FROM w; DETACH d""",
    "changes in WITH of a query whose columns are called the same": """
        CREATE TABLE t (i INTEGER); WITH n AS (INSERT INTO t VALUES (1), (2) RETURNING i)
        SELECT (SELECT count(*) FROM n), (SELECT count(*) FROM n); FROM t;
        WITH u AS (UPDATE t SET i = i + 1 RETURNING i) SELECT i, i FROM u; FROM t""",
    "sequences of tables that are renamed": """
        CREATE SEQUENCE q; CREATE TABLE t (i INTEGER); ALTER SEQUENCE q OWNED BY t;
        ALTER TABLE t RENAME TO u; CREATE TABLE t (i INTEGER); ALTER SEQUENCE q OWNED BY t;
        DROP SEQUENCE q; CREATE OR REPLACE SEQUENCE q; SELECT nextval('q') AS n; FROM u;
        CREATE SEQUENCE p; CREATE TABLE v (i INTEGER DEFAULT nextval('p'));
        CREATE OR REPLACE SEQUENCE p START 5; INSERT INTO v VALUES (DEFAULT); FROM v;
        CREATE OR REPLACE SEQUENCE r; CREATE OR REPLACE SEQUENCE r START 4;
        SELECT nextval('r') AS n; DROP TABLE v; DROP TABLE u; SELECT nextval('q') AS n""",
    "SET TIME ZONE": """
        SET TIME ZONE 'America/New_York'; SELECT current_setting('TimeZone') AS z, day(t) AS d
        FROM (VALUES ('2024-01-01 03:00:00+00'::TIMESTAMPTZ), ('2024-01-01 06:00:00+00')) r(t);
        SET SESSION TIME ZONE 'UTC'; SET TIME ZONE LOCAL; SELECT current_setting('TimeZone') AS z;
        SET TIME ZONE 'Mars'; RESET TimeZone; SET max_temp_directory_size = '1GB';
        RESET max_temp_directory_size""",
    "PREPARE binds": """
        CREATE TABLE t AS SELECT 1 AS i, 'a' AS v; PREPARE p AS SELECT none FROM t;
        EXECUTE p; PREPARE p AS FROM nowhere; PREPARE p AS SELECT i + $1 AS s FROM t WHERE v = $2;
        EXECUTE p(2, 'a'); PREPARE p AS SELECT $1 || ? AS s; PREPARE p AS SELECT i + [1] FROM t;
        CREATE SEQUENCE q; PREPARE p AS SELECT nextval('q') + $1 AS n; EXECUTE p(5);
        PREPARE p AS SELECT i FROM t ORDER BY none; DROP TABLE t; EXECUTE p(1);
        PREPARE p AS SELECT $1 AS x LIMIT ?; PREPARE p AS SELECT x FROM range($1) r(x);
        EXECUTE p(2)""",
    "DEALLOCATE": "DEALLOCATE p; PREPARE p AS SELECT 1 AS i; DEALLOCATE p; EXECUTE p",
    "PIVOT over values of rows": """
        CREATE TABLE t (c VARCHAR, v INTEGER); INSERT INTO t VALUES ('a', 1), ('b', 2);
        CREATE TABLE p AS PIVOT t ON c USING sum(v); FROM p;
        CREATE TEMP TABLE s AS SELECT * FROM (PIVOT t ON c USING sum(v)); FROM s;
        CREATE TABLE r (b BIGINT, a BIGINT);
        INSERT INTO r BY NAME PIVOT t ON c USING sum(v); FROM r;
        INSERT INTO r SELECT b, a FROM (PIVOT t ON c USING sum(v)); FROM r;
        UPDATE r SET a = x.b FROM (PIVOT t ON c USING sum(v)) AS x; FROM r;
        DELETE FROM r WHERE b IN (SELECT b FROM (PIVOT t ON c USING sum(v))); FROM r""",
    "variables by their names": """
        SET VARIABLE x = 42; SET VARIABLE word = 'duck'; SELECT $x + 1 AS y, $word AS w, '$x' AS t;
        CREATE TABLE t AS SELECT $x AS i; FROM t WHERE i = $x; PREPARE p AS SELECT $m * $x AS r;
        EXECUTE p(m := 3); EXECUTE p(m := 3, x := 5); EXECUTE p; SET VARIABLE m = 2; EXECUTE p;
        DELETE FROM t WHERE i = $x; FROM t; RESET VARIABLE x; SELECT $x AS y""",
    "what others alter during a transaction": """
        CREATE TABLE t (i INTEGER, v VARCHAR); INSERT INTO t VALUES (1, 'a');
        a: BEGIN; a: FROM t; ALTER TABLE t ADD COLUMN j INTEGER DEFAULT 3; a: FROM t;
        a: DESCRIBE t; FROM t;
        b: BEGIN; b: FROM t; ALTER TABLE t ALTER i TYPE BIGINT; a: FROM t; b: FROM t; c: BEGIN;
        c: FROM t; ALTER TABLE t RENAME v TO w; c: SELECT v || '!' AS x FROM t;
        a: SELECT i + 1 AS x FROM t; d: BEGIN; d: FROM t; ALTER TABLE t DROP w; d: FROM t;
        a: COMMIT; a: FROM t; b: COMMIT; c: COMMIT; d: COMMIT; d: FROM t""",
    "what others rename, drop and create during a transaction": """
        CREATE TABLE t AS SELECT 1 AS i; CREATE TABLE s AS SELECT 2 AS i; a: BEGIN; a: FROM t;
        ALTER TABLE t RENAME TO u; a: FROM t; b: BEGIN; b: FROM u; DROP TABLE s; DROP TABLE u;
        b: FROM u;
        CREATE TABLE s AS SELECT 'new' AS x; a: FROM s; a: SHOW TABLES; b: FROM s; FROM s;
        a: CREATE TABLE own AS SELECT t.i + s.i AS n FROM t, s; a: FROM own; a: COMMIT;
        a: FROM own; a: FROM s; b: CREATE TABLE u2 AS FROM u; b: COMMIT; b: FROM u2; b: FROM u""",
}

# Long ones: other kinds, and tests of transactions, are of the same paths.
SLOW = (
    "tables of the catalog",
    "views and macros of the catalog",
    "views and macros of the catalog beside rows",
    "what INSERT reads of the catalog alone",
    "what reads the catalog since it was defined",
    "the catalog in a transaction",
    "tables after SET search_path",
    "what others alter during a transaction",
    "what others rename, drop and create during a transaction",
)


_LEFT = """
    SELECT 'VIEW' AS noun, view_name AS name FROM duckdb_views() WHERE NOT internal
    UNION ALL SELECT 'TABLE', table_name FROM duckdb_tables()
    UNION ALL SELECT 'SEQUENCE', sequence_name FROM duckdb_sequences()
    UNION ALL SELECT 'MACRO', function_name FROM duckdb_functions() WHERE NOT internal
    UNION ALL SELECT 'TYPE', type_name FROM duckdb_types() WHERE type_name = 'y'"""


@pytest.fixture(scope="module")
def root() -> Iterator[Session]:
    """A session that distributes everything."""
    with minishark.connect(
        in_process=True, single_task_rows=0, nodes=2, partitions=2, executors_per_node=1
    ) as session:
        # Of a table that is created from the catalog, it depends on threads whether it is in there.
        session._runtime.engine.scratch.change(lambda con: con.execute("SET threads = 1"))
        yield session


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in SCRIPTS]
)
def test_answers_of_scripts(root: Session, kind: str) -> None:
    """Both give an error, or the same names, types and rows."""
    script = [sql.strip() for sql in SCRIPTS[kind].split(";")]
    with duckdb.connect(config={"threads": 1}) as native:
        natives, sessions = {"": native}, {"": root}
        try:
            for step in script:
                name, sql = (step[0], step[3:]) if step[1:3] == ": " else ("", step)
                if name not in natives:
                    natives[name], sessions[name] = native.cursor(), root.new_session()
                expected = _of_duckdb(natives[name], sql)
                actual = _of_minishark(sessions[name], sql)
                assert (expected is None) == (actual is None), f"{sql}: {expected} {actual}"
                if expected is not None and actual is not None:
                    assert [] == differences(expected, actual), sql
        finally:
            _clean(sessions, SCRIPTS[kind])
            for name in filter(None, natives):
                natives[name].close()


def test_row_ids_of_a_table_that_a_transaction_has_changed(root: Session) -> None:
    """They are asked for before it commits: both see the same rows afterwards."""
    root.sql("CREATE TABLE t AS SELECT 1 AS i")
    other = root.new_session()
    try:
        other.sql("BEGIN; UPDATE t SET i = 2")
        assert [{"i": 1, "rowid": 0}] == root.sql("SELECT i, rowid FROM t").to_arrow().to_pylist()
        with pytest.raises(ConflictError):
            other.sql("COMMIT")
        root.sql("INSERT INTO t VALUES (3)")
        for query in ("SELECT i FROM t ORDER BY i", "SELECT i FROM t ORDER BY rowid"):
            assert [{"i": 1}, {"i": 3}] == other.sql(query).to_arrow().to_pylist()
    finally:
        other.stop()
        root.sql("DROP TABLE t")


def test_copy_in_a_query(root: Session, tmp_path: Path) -> None:
    """It writes the tables' rows, once."""
    root.sql("CREATE TABLE t AS SELECT 7 * i AS i FROM range(5) AS r(i)")
    file = tmp_path / "t.csv"
    try:
        query = f"WITH c AS (COPY t TO '{file}' (FORMAT CSV)) SELECT a.Count, b.Count FROM c a, c b"
        copied = root.sql(query).to_arrow()
        assert ["i", "0", "7", "14", "21", "28"] == file.read_text().split()
        assert (["Count", "Count"], (1, 2)) == (copied.column_names, copied.shape)
    finally:
        root.sql("DROP TABLE t")


def _of_duckdb(native: duckdb.DuckDBPyConnection, sql: str) -> pa.Table | None:
    """The answer; None for an error."""
    try:
        answer = native.execute(sql).to_arrow_table()
    except duckdb.Error:
        return None
    return pa.table({}) if answer.column_names in (["Count"], ["Success"]) else answer


def _of_minishark(session: Session, sql: str) -> pa.Table | None:
    try:
        answer = session.sql(sql).to_arrow()
    except MinisharkError:
        return None
    return pa.table({}) if answer.column_names in (["Count"], ["Success"]) else answer


def _clean(sessions: dict[str, Session], script: str) -> None:
    """Drop what a script has left."""
    root = sessions[""]
    for name in filter(None, sessions):
        sessions[name].stop()
    for noun, name in zip(*root.sql(_LEFT).to_arrow().to_pydict().values(), strict=True):
        root.sql(f'DROP {noun} IF EXISTS "{name}"')
    for name in re.findall(r"SET VARIABLE (\w+)", script):
        root.sql(f"RESET VARIABLE {name}")
