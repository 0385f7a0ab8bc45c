"""Statements that change rows of tables in memory: as DuckDB does, and only what they change."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import minishark
from minishark.model.catalog import Table
from minishark.session.session import Session
from minishark.tables.deltas import SIZES, DeltaWriter
from minishark.tables.scratch_database import ScratchDatabase

COUNT = 20_000  # enough for dictionaries in every partition
ROWS = pa.table(
    {
        "k": range(COUNT),
        "g": [i // 3 for i in range(COUNT)],
        "s": [f"s{i % 7}" for i in range(COUNT)],
        "d": pa.array([None if i % 5 == 0 else i % 100 for i in range(COUNT)], pa.decimal128(9, 2)),
        "b": [i % 3 == 0 for i in range(COUNT)],
        "l": [[i, i + 1] for i in range(COUNT)],
    }
)
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"partitions": 1},
    "keyed": {"partition_by": "k", "partitions": 2, "replicas": 2},
    "ranges": {"partitions": 2},
}
UPDATE_NULLS = "UPDATE n SET s = nullif(s, 's7')"
# Each statement names the table as {t}; numbers and text come from Hypothesis.
STATEMENTS = (
    "INSERT INTO {t} VALUES ({n}, {m}, '{text}', 1.5, true, [1])",
    "INSERT INTO {t} (s, k) VALUES ('{text}', {n}), (NULL, {n} + 1)",
    "INSERT INTO {t} BY NAME SELECT '{text}' AS s, {n} AS k, {m} AS g",
    "INSERT INTO {t} SELECT k + {n}, g, s, d, b, l FROM {t} WHERE k % 1000 = {m}",
    "INSERT INTO {t} SELECT max(k) + 1, {m}, min(s), NULL, NULL, NULL FROM {t}",
    "DELETE FROM {t} WHERE k = {n}",
    "DELETE FROM {t} WHERE k % 100 = {m} AND s = '{text}'",
    "DELETE FROM {t} WHERE k BETWEEN {n} AND {n} + 3000",
    "DELETE FROM {t} USING (SELECT {n} AS a) AS o WHERE k = o.a",
    "UPDATE {t} SET d = d + 1 WHERE k = {n}",
    "UPDATE {t} SET s = '{text}', k = k + {m} WHERE g % 500 = {m}",
    """UPDATE {t} AS x SET g = o.n FROM (SELECT k + 0 AS a, {m} AS n FROM {t} WHERE k < 50) AS o
    WHERE x.k = o.a""",
    """MERGE INTO {t} USING (SELECT {n} AS a, '{text}' AS c) AS o ON k = o.a
    WHEN MATCHED AND g > 100 THEN DELETE WHEN MATCHED THEN UPDATE SET s = o.c
    WHEN NOT MATCHED THEN INSERT (k, s) VALUES (o.a, o.c)""",
)
QUERIES = (
    "SELECT k, g, s, d, b, l FROM {t}",
    "SELECT count(*), sum(k), min(d), max(k), count(l) FROM {t}",
    "SELECT s, count(*), sum(d) FROM {t} GROUP BY s",
    "SELECT g, count(*), max(k) FROM {t} GROUP BY g",
    "SELECT count(*) FROM {t} AS a JOIN {t} AS b USING (k) WHERE a.s > 's3'",
)

names = itertools.count()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that distributes everything."""
    with minishark.connect(
        in_process=True, single_task_rows=0, nodes=2, partitions=2, executors_per_node=1
    ) as found:
        yield found


def ask(session: Session, sql: str) -> Counter[tuple[object, ...]]:
    """The rows of a statement, in any order."""
    return counted(tuple(row) for row in session.sql(sql).collect())


def counted(rows: Any) -> Counter[tuple[object, ...]]:
    """Rows, of which lists are text."""
    return Counter(tuple(str(v) if isinstance(v, list) else v for v in row) for row in rows)


def stored(session: Session, name: str) -> Table:
    """A table as it is stored now."""
    return session._runtime.tables.catalog.get(name)


changes = st.tuples(
    st.sampled_from(STATEMENTS),
    st.integers(0, COUNT + 10),
    st.integers(0, 99),
    st.sampled_from(["s3", "new", "other"]),
)


def compare(
    session: Session,
    layout: str,
    statements: list[tuple[str, int, int, str]],
    queries: int,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Run statements, and after each some queries, in minishark and in DuckDB."""
    name = f"t{next(names)}"
    session.create_table(name, ROWS, **LAYOUTS[layout])
    with duckdb.connect() as plain:
        plain.execute(f"CREATE TABLE {name} AS FROM ROWS")
        for i, (template, n, m, text) in enumerate(statements):
            sql = template.format(t=name, n=n, m=m, text=text)
            meanwhile()
            assert counted(plain.execute(sql).fetchall()) == ask(session, sql), sql
            for j in range(queries):
                asked = QUERIES[(i + j) % len(QUERIES)].format(t=name)
                assert counted(plain.execute(asked).fetchall()) == ask(session, asked), (sql, asked)
    session.drop_table(name)


def test_changes_are_those_that_duckdb_makes(session: Session) -> None:
    """One of each kind after the other."""
    changes = [(sql, 17 * i, i, "new") for i, sql in enumerate(STATEMENTS)]
    compare(session, "keyed", changes, queries=1)


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],  # it would shrink for minutes
)
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    statements=st.lists(changes, min_size=3, max_size=8),
)
def test_any_changes_are_those_that_duckdb_makes(
    session: Session, layout: str, statements: list[tuple[str, int, int, str]]
) -> None:
    """Whatever was changed before, and however the table is partitioned."""
    compare(session, layout, statements, queries=2)


@pytest.mark.slow
def test_an_insert_leaves_the_stored_rows_where_they_are(session: Session) -> None:
    """It adds a file to one partition, and takes earlier small ones along."""
    session.create_table("w", ROWS, partition_by="k", partitions=2)
    before = stored(session, "w")
    for i in range(70):
        ask(session, f"INSERT INTO w VALUES ({COUNT + i}, 0, 'new{i % 9}', 1, true, [])")
    after = stored(session, "w")
    assert [p.file for p in before.partitions] == [p.file for p in after.partitions]
    assert [4, 4] >= [len(p.deltas) for p in after.partitions]
    assert COUNT + 70 == after.rows
    assert Counter({(f"new{i}", 8 - (i > 6)): 1 for i in range(9)}) == ask(
        session, "SELECT s, count(*) FROM w WHERE s LIKE 'new%' GROUP BY s"
    )
    session.drop_table("w")


@pytest.mark.slow
def test_large_deltas_are_merged_in_the_background(session: Session) -> None:
    """Rows that are added or deleted meanwhile stay so."""
    session.create_table("m", ROWS, partition_by="k", partitions=2)
    before = {p.file for p in stored(session, "m").partitions}
    ask(session, "INSERT INTO m SELECT i + 100000, 0, 'big', 1, true, [i] FROM range(300000) r(i)")
    ask(session, "INSERT INTO m VALUES (-1, 0, 'small', 1, true, [])")
    deadline = time.monotonic() + 30
    while before & {p.file for p in stored(session, "m").partitions}:
        assert time.monotonic() < deadline
        ask(session, "DELETE FROM m WHERE k = -5")
        time.sleep(0.05)
    ask(session, "DELETE FROM m WHERE k = 100005")
    assert COUNT + 300_000 == stored(session, "m").rows
    assert Counter({(COUNT + 300_000, 19_999, 1): 1}) == ask(
        session,
        "SELECT count(*), max(k) FILTER (WHERE s LIKE 's_'), count(*) FILTER (WHERE k < 0) FROM m",
    )
    session.drop_table("m")


def test_columns_keep_defaults_and_constraints(session: Session) -> None:
    """Rows that are added to a table of the cluster meet what CREATE TABLE said."""
    ask(session, "CREATE TABLE c (a INT NOT NULL DEFAULT 3, b VARCHAR, CHECK (a < 100))")
    ask(session, "INSERT INTO c(b) VALUES ('x')")
    ask(session, "INSERT INTO c SELECT a + 1, 'y' FROM c")
    assert stored(session, "c").version
    for rows, error in (("(NULL, '')", "NOT NULL"), ("(500, '')", "CHECK"), ("('x', '')", "'x'")):
        with pytest.raises(minishark.errors.TaskFailedError, match=error):
            session.sql(f"INSERT INTO c VALUES {rows}")
    with pytest.raises(minishark.errors.QueryError, match="2 columns but 1"):
        session.sql("INSERT INTO c VALUES (1)")
    assert Counter({(3, "x"): 1, (4, "y"): 1}) == ask(session, "FROM c")
    assert {("a", "NO", "3"), ("b", "YES", None)} == {
        (row[0], row[2], row[4]) for row in ask(session, "DESCRIBE c")
    }
    session.drop_table("c")


ADDED = (
    "ALTER TABLE {t} ADD COLUMN y INTEGER DEFAULT 40 + 2",
    "ALTER TABLE {t} ADD COLUMN IF NOT EXISTS y VARCHAR",
    "INSERT INTO {t} (k) VALUES (-1)",
    "INSERT INTO {t} (k, y) VALUES (-2, 7)",
    "ALTER TABLE {t} ADD n VARCHAR",
    "ALTER TABLE {t} ADD COLUMN o BOOLEAN DEFAULT true",
    "UPDATE {t} SET y = y + 1, n = 'x' WHERE k % 100 = 3",
    "ALTER TABLE {t} ADD COLUMN p INTEGER[] DEFAULT [1, NULL]",
    "ALTER TABLE {t} ADD COLUMN q DECIMAL(30, 2) DEFAULT 1.5",
    "DELETE FROM {t} WHERE k % 3 = 0",
    "ALTER TABLE {t} ADD COLUMN r VARCHAR DEFAULT 'a' || 'b'",
    "UPDATE {t} SET r = k WHERE k < 5000",
    "INSERT INTO {t} (k, n, r) SELECT k + 100000, 'many', NULL FROM {t}",
    "ALTER TABLE {t} ADD COLUMN u TIMESTAMP DEFAULT TIMESTAMP '2020-01-02 03:04:05'",
)


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_added_columns_leave_rows_where_they_are(session: Session, layout: str) -> None:
    """Whatever changes before and after: readers add them to files that lack them."""
    name = f"t{next(names)}"
    session.create_table(name, ROWS, **LAYOUTS[layout])
    with duckdb.connect() as plain:
        plain.execute(f"CREATE TABLE {name} AS FROM ROWS")
        for template in ADDED:
            sql = template.format(t=name)
            before = stored(session, name)
            plain.execute(sql)
            ask(session, sql)
            if " ADD " in sql:
                after = stored(session, name)
                assert [part.files for part in before.partitions] == [
                    part.files for part in after.partitions
                ]
            rows = f"SELECT count(*), sum(y), sum(hash(t)) FROM {name} AS t"
            for asked in (rows, f"DESCRIBE {name}"):
                assert counted(plain.execute(asked).fetchall()) == ask(session, asked), (sql, asked)
    session.drop_table(name)


@pytest.mark.parametrize("default", ["random()", "nextval('numbers')", "hash(now())", "(SELECT 1)"])
def test_columns_that_vary_are_computed_for_each_row(session: Session, default: str) -> None:
    with duckdb.connect() as plain:
        ask(session, "CREATE SEQUENCE IF NOT EXISTS numbers")
        ask(session, "CREATE OR REPLACE TABLE v AS SELECT i AS k FROM range(5) r(i)")
        plain.execute("CREATE SEQUENCE numbers; CREATE TABLE v AS SELECT i AS k FROM range(5) r(i)")
        sql = f"ALTER TABLE v ADD COLUMN x DOUBLE DEFAULT {default}"
        try:
            plain.execute(sql)
        except duckdb.Error:
            with pytest.raises(minishark.errors.MinisharkError):
                ask(session, sql)
        else:
            ask(session, sql)
            (told,) = plain.execute("SELECT count(DISTINCT x) FROM v").fetchall()
            assert Counter([told]) == ask(session, "SELECT count(DISTINCT x) FROM v")


@pytest.mark.parametrize(
    ("default", "wrong"),
    [("('x' || 'y')::INTEGER", "Could not convert string 'xy'"), ("error('no')", "no$")],
)
def test_defaults_that_fail_are_for_tables_without_rows(
    session: Session, default: str, wrong: str
) -> None:
    add = f"ALTER TABLE f ADD COLUMN x INTEGER DEFAULT {default}"
    ask(session, "CREATE OR REPLACE TABLE f AS SELECT 1 AS k")
    with pytest.raises(minishark.errors.DataValueError, match=wrong):
        ask(session, add)
    assert Counter({(1,): 1}) == ask(session, "FROM f")
    ask(session, "TRUNCATE f")
    ask(session, add)
    assert ["k", "x"] == session.table("f").columns
    session.drop_table("f")


def test_long_defaults_are_written(session: Session) -> None:
    """Rows of a batch with 30,000 bytes each would be more than readers can repeat."""
    ask(session, "CREATE TABLE w AS SELECT i AS k FROM range(300) AS r(i)")
    ask(session, "ALTER TABLE w ADD COLUMN x VARCHAR DEFAULT repeat('ab', 15000)")
    assert not any(part.constants for part in stored(session, "w").partitions)
    assert Counter({(30_000, 300): 1}) == ask(
        session, "SELECT length(x), count(*) FROM w GROUP BY ALL"
    )
    session.drop_table("w")


def test_searches_by_bounds_know_dates_that_python_lacks(session: Session) -> None:
    made = """CREATE TABLE o AS SELECT i AS k, CASE i WHEN 5 THEN DATE '0044-03-15 (BC)'
        WHEN 200000 THEN 'infinity' ELSE DATE '2020-01-01' + (i % 300)::INTEGER END AS d
        FROM range(300000) AS r(i)"""
    with duckdb.connect() as plain:
        for sql in (
            made,
            "ALTER TABLE o ADD COLUMN e DATE DEFAULT '-infinity'",
            "UPDATE o SET k = -1 WHERE d < DATE '0001-01-01'",
            "DELETE FROM o WHERE d = DATE '2020-01-05' AND k < 500",
            "DELETE FROM o WHERE d = 'infinity'",
            "DELETE FROM o WHERE e > DATE '2020-01-01'",
            "DELETE FROM o WHERE e = '-infinity' AND k BETWEEN 9 AND 11",
        ):
            plain.execute(sql)
            ask(session, sql)
            asked = "SELECT count(*), sum(k), max(d::VARCHAR) FROM o"
            assert counted(plain.execute(asked).fetchall()) == ask(session, asked), sql
    session.drop_table("o")


def test_changes_wait_for_other_statements(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of other threads that the session's own DuckDB runs, whose settings are theirs."""
    insert = ScratchDatabase.insert

    def insert_meanwhile(scratch: ScratchDatabase, *args: Any) -> Any:
        began = threading.Event()

        def run() -> None:
            with scratch._lock:
                began.set()
                scratch._con.execute("SELECT sum(hash(i)) FROM range(30000000) AS r(i)").fetchall()

        with ThreadPoolExecutor(1) as others:
            other = others.submit(run)
            began.wait()
            time.sleep(0.02)
            made = insert(scratch, *args)
            other.result()
        return made

    ask(session, "CREATE TABLE busy (k INTEGER)")
    monkeypatch.setattr(ScratchDatabase, "insert", insert_meanwhile)
    ask(session, "INSERT INTO busy VALUES (1)")
    assert Counter({(1,): 1}) == ask(session, "FROM busy")
    session.drop_table("busy")


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("condition", ["", " WHERE k >= 0"])
def test_emptied_tables_take_rows(session: Session, layout: str, condition: str) -> None:
    """Also where text has dictionaries: files without rows have none of these."""
    session.create_table("m", ROWS, **LAYOUTS[layout])
    ask(session, f"DELETE FROM m{condition}")
    for text in ("s3", "new"):
        ask(session, f"INSERT INTO m (k, s) VALUES (1, '{text}')")
    ask(session, "INSERT INTO m (k) VALUES (2)")
    rows = Counter({(1, "s3"): 1, (1, "new"): 1, (2, None): 1})
    assert rows == ask(session, "SELECT k, s FROM m")
    session.drop_table("m")


KEYED = (
    "INSERT INTO {t} VALUES (5, 'x', 1)",
    "INSERT INTO {t} VALUES (50000, 'u3', 1)",
    "INSERT INTO {t} VALUES (50000, NULL, 1), (50001, NULL, 1)",
    "INSERT INTO {t} VALUES (60000, 'a', 1), (60000, 'b', 1)",
    "INSERT INTO {t}(k, u) VALUES (3, 'z') ON CONFLICT (k) DO UPDATE SET u = 'z', v = v + 1",
    "INSERT INTO {t} VALUES (4, 'u9', 1) ON CONFLICT (k) DO UPDATE SET u = excluded.u",
    "INSERT INTO {t} VALUES (4, 'u9', 1), (70000, 'n', 0) ON CONFLICT DO NOTHING",
    """INSERT INTO {t} AS x SELECT k + 1, 'n' || k, 3 FROM {t} WHERE k BETWEEN 1990 AND 2010
    ON CONFLICT (k) DO UPDATE SET v = x.v - 1 RETURNING k, v""",
    "INSERT OR IGNORE INTO {t} SELECT k, u, 1 FROM {t} WHERE k < 200",
    "INSERT INTO {t} SELECT k, u, 1 FROM {t} WHERE k < 200",
    "UPDATE {t} SET v = v + 1 WHERE k = 3",
    "UPDATE {t} SET k = k + 1 WHERE k < 10",
    "UPDATE {t} SET k = 9 - k WHERE k < 10",
    "UPDATE {t} SET k = 80000, u = NULL WHERE k = 7",
    "UPDATE {t} SET u = 'u100' WHERE k = 50",
    """MERGE INTO {t} USING (VALUES (80001, 'm'), (8, 'l')) AS s(k, u) ON {t}.k = s.k
    WHEN MATCHED THEN UPDATE SET u = s.u WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.u, 1)""",
    """MERGE INTO {t} USING (VALUES (8, 'u77')) AS s(k, u) ON {t}.k = s.k
    WHEN MATCHED THEN UPDATE SET u = s.u""",
    "DELETE FROM {t} WHERE k % 3 = 0",
    "INSERT INTO {t} VALUES (3, 'u3', 99999)",
    "INSERT INTO {t} VALUES (3, 'u3', 9)",
)


@pytest.mark.slow
def test_keyed_tables_have_no_key_twice(session: Session) -> None:
    """Statements do what DuckDB does, or fail as there; the table is not loaded again."""
    sides = {"minishark": session.sql, "duckdb": duckdb.connect().execute}
    for run in sides.values():
        run("CREATE TABLE p (k INT PRIMARY KEY, u VARCHAR UNIQUE, v INT, CHECK (v < 90000))")
        run("INSERT INTO p SELECT i, 'u' || i, i FROM range(2000) AS r(i)")
    loaded = stored(session, "p").folder

    def answer(side: str, sql: str) -> object:
        try:
            found = sides[side](sql)
            return counted(found.collect() if side == "minishark" else found.fetchall())
        except (minishark.errors.TaskFailedError, duckdb.ConstraintException) as error:
            return "CHECK" if "CHECK" in str(error) else "uplicate key" in str(error)

    for template in KEYED:
        sql = template.format(t="p")
        assert answer("duckdb", sql) == answer("minishark", sql), sql
    assert answer("duckdb", "FROM p") == answer("minishark", "FROM p")
    assert loaded == stored(session, "p").folder
    session.drop_table("p")


def _lost_at_first(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables to which stored rows are added, the first of which are gone with their nodes."""
    calls: list[str] = []
    with_partitions = DeltaWriter.with_partitions

    def added(writer: DeltaWriter, table: Table, new: Table) -> Table:
        calls.append(table.name)
        if len(calls) == 1:
            gone = tuple(replace(part, file=f"{part.file}-gone") for part in new.partitions)
            new = replace(new, partitions=gone)
        return with_partitions(writer, table, new)

    monkeypatch.setattr(DeltaWriter, "with_partitions", added)
    return calls


@pytest.mark.slow
def test_tasks_store_the_rows_of_large_inserts(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As partitions, or deltas of those that their keys tell; constraints hold as for few rows."""
    monkeypatch.setattr(session._runtime.tables, "sizes", replace(SIZES, stored=5_000))
    made = "i BIGINT PRIMARY KEY, s VARCHAR NOT NULL, n INT DEFAULT 7, CHECK (n < 50)"
    session.create_table("r", ROWS)
    session.create_table("h", ROWS.select(["k", "s"]), partition_by="k", partitions=2)
    ask(session, f"CREATE TABLE l ({made})")
    ask(session, "INSERT INTO l (s, i) SELECT s, k FROM r ORDER BY k DESC")
    for wrong, error in (
        ("k, s, 1 FROM r", "uplicate key"),
        ("k // 2 + 50000, s, 1 FROM r", "uplicate key"),
        ("k + 50000, nullif(s, 's5'), 1 FROM r", "NOT NULL"),
        ("k + 50000, s, k % 60 FROM r", "CHECK"),
        ("k + 50000, s, 'x' FROM r", "'x'"),
    ):
        with pytest.raises(minishark.errors.TaskFailedError, match=error):
            session.sql(f"INSERT INTO l SELECT {wrong}")
    ask(session, "INSERT INTO l SELECT k + 50000, s, NULL FROM r")
    calls = _lost_at_first(monkeypatch)
    ask(session, "INSERT INTO h BY NAME SELECT 'new' || k % 9 AS s, k FROM r")
    assert calls == ["h", "h"]
    assert stored(session, "l").rows == 2 * COUNT
    assert len(stored(session, "l").partitions) > 2
    assert [1, 1] == [len(part.deltas) for part in stored(session, "h").partitions]
    first = session.sql("SELECT i, s, n FROM l LIMIT 1").collect()
    assert [{"i": COUNT - 1, "s": f"s{(COUNT - 1) % 7}", "n": 7}] == first
    with duckdb.connect() as plain:
        r = plain.execute("CREATE TABLE r AS FROM ROWS").table("r")
        plain.execute("CREATE TABLE h AS SELECT k, s FROM ROWS")
        plain.execute("INSERT INTO h BY NAME SELECT 'new' || k % 9 AS s, k FROM r")
        r.project("k AS i, s, 7 AS n").union(r.project("k + 50000, s, NULL")).create("l")
        for query in (
            "SELECT s, count(*), sum(i), count(n) FROM l GROUP BY s",
            "SELECT a.s, b.s, count(*) FROM h AS a JOIN h AS b USING (k) GROUP BY ALL",
        ):
            assert counted(plain.execute(query).fetchall()) == ask(session, query)
    for name in ("l", "h", "r"):
        session.drop_table(name)


@pytest.mark.slow
def test_keys_are_compared_as_their_type_says(session: Session) -> None:
    """A key of several columns, of many rows; a table that others refer to has all rows here."""
    ask(session, "CREATE TABLE q (a DATE, b VARCHAR, n INT, UNIQUE (a, b))")
    many = "SELECT DATE '2020-01-01' + i::INT, E'it''s\\n' || chr(0) || i, i FROM range(3000) r(i)"
    ask(session, f"INSERT INTO q {many}")
    ask(session, "INSERT INTO q VALUES (NULL, '', 1), (NULL, '', 2)")
    with pytest.raises(minishark.errors.TaskFailedError, match="uplicate key"):
        session.sql(f"INSERT INTO q SELECT * FROM ({many}) UNION ALL SELECT NULL, '', 3")
    ask(session, f"INSERT OR REPLACE INTO q {many.replace(', i FROM', ', -i FROM')}")
    assert Counter({(3002, 3 - 2999 * 1500): 1}) == ask(session, "SELECT count(*), sum(n) FROM q")
    ask(session, "CREATE TABLE z (k BLOB UNIQUE, u BIT UNIQUE, n INT)")
    ask(session, "INSERT INTO z VALUES ('a', '01', 1), ('b', '10', 2), ('c', '11', 3)")
    held = "('a', '01', 5), ('b', '11', 6), ('d', '00', 4)"  # by one row, by two, by none
    ask(session, f"INSERT INTO z VALUES {held} ON CONFLICT DO NOTHING")
    ask(session, "INSERT INTO z VALUES ('c', '000', 9) ON CONFLICT (k) DO UPDATE SET n = z.n + 10")
    assert Counter({(4, 20): 1}) == ask(session, "SELECT count(*), sum(n) FROM z")
    ask(session, "CREATE TABLE y (k INT PRIMARY KEY, u VARCHAR); INSERT INTO y VALUES (1, 'a')")
    with session.new_session() as other:
        other.sql("SET default_collation = 'NOCASE'")
        other.sql("INSERT INTO y VALUES (1, 'A') ON CONFLICT DO UPDATE SET u = excluded.u")
    assert Counter({(1, "A"): 1}) == ask(session, "FROM y")
    ask(session, "DELETE FROM q; CREATE TABLE parent (k INT PRIMARY KEY)")
    ask(session, "INSERT INTO parent VALUES (1); FROM parent")
    ask(session, "CREATE TABLE child (k INT REFERENCES parent (k)); INSERT INTO child VALUES (1)")
    for wrong in ("INSERT INTO child VALUES (2)", "DELETE FROM parent"):
        with pytest.raises(minishark.errors.TaskFailedError, match="foreign key"):
            session.sql(wrong)
    for name in ("q", "y", "z", "child", "parent"):
        session.drop_table(name)


def test_transactions_commit_no_key_twice(session: Session) -> None:
    """Both add a row with the same key: one of them fails, though neither changes a row."""
    ask(session, "CREATE TABLE o (k INT PRIMARY KEY); INSERT INTO o VALUES (1)")
    with session.new_session() as other:
        for each in (session, other):
            each.sql("BEGIN")
            each.sql("INSERT INTO o VALUES (2)")
        session.sql("COMMIT")
        with pytest.raises(minishark.errors.ConflictError):
            other.sql("COMMIT")
    assert Counter({(1,): 1, (2,): 1}) == ask(session, "FROM o")
    session.drop_table("o")


@pytest.mark.slow
def test_readers_see_whole_statements_of_several_writers(session: Session) -> None:
    """Each moves an amount between two rows; nobody ever sees one half."""
    rows = ROWS.select(["k", "g"])
    session.create_table("v", rows, partition_by="k", partitions=2, replace=True)
    total = ask(session, "SELECT count(*), sum(g) FROM v")
    seen, ended = [], threading.Event()

    def move(number: int) -> None:
        with session.new_session() as other:
            for i in range(6):
                rows = (number, 500 * number + 7 * i + 50)
                other.sql(
                    f"UPDATE v SET g = CASE k WHEN {rows[0]} THEN g - 1 ELSE g + 1 END "
                    f"WHERE k IN {rows}"
                )

    def look() -> None:
        with session.new_session() as other:
            while not ended.is_set():
                seen.append(ask(other, "SELECT count(*), sum(g) FROM v"))

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(look)
        for writer in [pool.submit(move, number) for number in (1, 2, 3)]:
            writer.result()
        ended.set()
        reader.result()
    assert seen
    assert all(each == total for each in seen)
    assert total == ask(session, "SELECT count(*), sum(g) FROM v")
    moved = Counter({(1, -6): 1, (2, -6): 1, (3, -5): 1})
    assert moved == ask(session, "FROM v WHERE k IN (1, 2, 3)")
    session.drop_table("v")


@pytest.mark.slow
def test_changes_while_executors_die() -> None:
    """A statement is done or it is not, and the next ones see which."""
    choices = random.Random(7)
    with minishark.connect(nodes=2, executors_per_node=2, single_task_rows=0) as session:

        def kill() -> None:
            time.sleep(choices.random() / 20)
            pids = [each.pid for node in session.nodes() for each in node.executors if each.pid]
            with contextlib.suppress(ProcessLookupError):
                os.kill(choices.choice(pids), signal.SIGKILL)

        with ThreadPoolExecutor(1) as pool:
            for layout in ("keyed", "one"):
                changes = [
                    (sql, choices.randrange(COUNT), choices.randrange(100), "new")
                    for sql in STATEMENTS
                ]
                compare(session, layout, changes, queries=1, meanwhile=lambda: pool.submit(kill))


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", ["INSERT INTO n VALUES (NULL, 'x'), (1, NULL)", UPDATE_NULLS])
def test_first_nulls_are_seen_by_filters(change: str) -> None:
    """Filters that only NULLs don't pass hold for those that come later, in transactions too."""
    query = "SELECT count(*) FROM n WHERE s LIKE '%'"
    with minishark.connect(in_process=True, partitions=2) as session:
        session.sql("CREATE TABLE n AS SELECT i, 's' || i AS s FROM range(10) r(i)")
        assert [10] == [row[0] for row in session.sql(query).collect()]
        session.sql("BEGIN")
        session.sql(change)
        kept = session.sql(query).to_arrow(verify=True)
        assert (9 if change == UPDATE_NULLS else 11) == kept.column(0)[0].as_py()
        session.sql("COMMIT")
        assert kept == session.sql(query).to_arrow(verify=True)
