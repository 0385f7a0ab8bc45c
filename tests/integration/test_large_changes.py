"""Changes of many rows, which tasks make where the partitions are: as DuckDB does."""

from __future__ import annotations

import itertools
import unittest.mock
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import minishark
from minishark.cluster.backend import FilesLostError
from minishark.errors import QueryTimeoutError
from minishark.model.catalog import Partition, Table
from minishark.session.session import Session
from minishark.tables import memory_changes
from minishark.tables.deltas import SIZES, DeltaWriter
from minishark.tables.memory_changes import MemoryTable
from minishark.tables.tables import Tables
from minishark.worker.protocol import FileSlice

COUNT = 20_000  # enough for dictionaries in every partition
QUERY = f"""SELECT i AS k, i // 3 AS g, 's' || i % 7 AS s, (i % 100)::DECIMAL(9, 2) AS d,
    CASE WHEN i % 3 > 0 THEN i % 3 = 1 END AS b, [i, i + 1] AS l, ('b' || i % 5)::BLOB AS o,
    (i * 1e20)::HUGEINT AS h, {{'a': i, 'c': 's' || i % 9}} AS n, DATE '2020-01-01' + i::INT AS y
    FROM range({COUNT}) AS r(i) ORDER BY i"""
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {"partitions": 1},
    "keyed": {"partition_by": "k", "partitions": 3, "replicas": 2},
    "ranges": {"partitions": 4},
}
# Each statement names the table as {t}; numbers and text come from Hypothesis.
STATEMENTS = (
    "DELETE FROM {t} WHERE k % 2 = {m} % 2",
    "DELETE FROM {t} AS x USING (SELECT i * 3 AS a FROM range({n}) r(i)) AS o WHERE x.k = o.a",
    "DELETE FROM {t} WHERE k BETWEEN {n} AND {n} + 9000 OR s = '{text}'",
    "DELETE FROM {t} WHERE k % 3 = {m} % 3 RETURNING k, s",
    "UPDATE {t} SET d = d + {m}",
    "UPDATE {t} SET s = '{text}' || g % 4, b = NOT b, l = [{m}] WHERE g % 5 <> {m} % 5",
    "UPDATE {t} SET o = 'x', h = h + {n}, n = {{'a': {m}, 'c': NULL}}, y = '2021-02-03' WHERE b",
    "UPDATE {t} SET s = NULL, d = k // 7 WHERE k > {n}",
    "UPDATE {t} SET k = k + {m} WHERE k % 4 = 1",
    "UPDATE {t} SET g = DEFAULT, d = 1 WHERE k % 9 = 1",
    "UPDATE {t} SET d = -1 WHERE k % 5 = 0 RETURNING k, d",
    """UPDATE {t} AS x SET g = o.n, s = o.c FROM (SELECT i AS a, {m} AS n, '{text}' AS c
    FROM range({n}) r(i), range(2)) AS o WHERE x.k = o.a""",
    """MERGE INTO {t} USING (SELECT i * 2 AS a, '{text}' || i % 3 AS c FROM range({n}) r(i)) AS o
    ON k = o.a WHEN MATCHED AND g % 3 = 0 THEN DELETE WHEN MATCHED AND g % 3 = 1 THEN DO NOTHING
    WHEN MATCHED THEN UPDATE SET s = o.c, d = d + 1
    WHEN NOT MATCHED THEN INSERT (k, s) VALUES (o.a + 100000, o.c)""",
    """MERGE INTO {t} USING (SELECT i AS k, 5.25 AS d FROM range({n}) r(i)) AS o USING (k)
    WHEN MATCHED AND {t}.k % 2 = 0 THEN UPDATE SET d = o.d, g = o.k
    WHEN MATCHED THEN UPDATE SET s = '{text}'""",
    "INSERT INTO {t} SELECT k + {n}, g, s, d, b, l, o, h, n, y FROM {t} WHERE k % 50 = {m} % 50",
)
WRONG = (
    "UPDATE {t} SET d = 1e12",
    "UPDATE {t} SET g = 'text'",
    "UPDATE {t} SET nothing = 1",
    "UPDATE {t} SET g = count(*)",
    "UPDATE {t} SET g = row_number() OVER ()",
    "UPDATE {t} SET g = 1, g = 2",
    """MERGE INTO {t} USING (SELECT 5 * i AS a FROM range(4000) r(i), range(2)) AS o ON k = o.a
    WHEN MATCHED THEN UPDATE SET g = 0""",
)
QUERIES = (
    "SELECT COLUMNS(*)::VARCHAR FROM {t}",
    "SELECT count(*), sum(k), min(d), max(k), count(l) FROM {t}",
    "SELECT s, count(*), sum(d) FROM {t} GROUP BY s",
    "SELECT count(*) FROM {t} AS a JOIN {t} AS b USING (k) WHERE a.s > 's3'",
)

names = itertools.count()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session in which tasks make changes of few rows, too."""
    with minishark.connect(
        in_process=True, single_task_rows=0, nodes=2, partitions=2, executors_per_node=1
    ) as found:
        found._runtime.tables.sizes = replace(SIZES, patched=1)
        yield found


@pytest.fixture
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB alone."""
    with duckdb.connect() as connection:
        yield connection


def rows(answer: Any) -> Counter[str]:
    """Rows, in any order."""
    return Counter(str(tuple(row)) for row in answer)


def create(
    session: Session, plain: duckdb.DuckDBPyConnection, layout: str = "keyed"
) -> tuple[str, list[Partition]]:
    """The same table on both sides: its name, and where it is stored."""
    name = f"t{next(names)}"
    plain.execute(f"CREATE TABLE {name} AS {QUERY}")
    session.create_table(name, plain.table(name), **LAYOUTS[layout])
    return name, [*stored(session, name).partitions]


def stored(session: Session, name: str) -> Table:
    """A table as it is stored now."""
    return session._runtime.tables.catalog.get(name)


def compare(
    session: Session, plain: duckdb.DuckDBPyConnection, name: str, sql: str, queries: int = 2
) -> None:
    """Run a statement on both sides, and some queries."""
    assert rows(plain.execute(sql).fetchall()) == rows(session.sql(sql).collect()), sql
    for query in QUERIES[:queries]:
        asked = query.format(t=name)
        expected = rows(plain.execute(asked).fetchall())
        assert expected == rows(session.sql(asked).collect()), (sql, asked)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["keyed", "ranges"])
def test_changes_are_those_that_duckdb_makes(
    session: Session, plain: duckdb.DuckDBPyConnection, layout: str
) -> None:
    """One of each kind after the other, also of rows that were changed before."""
    name, _ = create(session, plain, layout)
    for i, sql in enumerate(STATEMENTS):
        compare(session, plain, name, sql.format(t=name, n=3_000 + 7 * i, m=i, text="new"))
    loaded = stored(session, name).folder
    assert loaded.startswith(stored(session, name).partitions[0].file.rpartition("/")[0])
    session.drop_table(name)


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],  # it would shrink for minutes
)
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    least=st.sampled_from([1, 2_000, SIZES.patched]),
    statements=st.lists(
        st.tuples(
            st.sampled_from(STATEMENTS),
            st.integers(0, COUNT + 10),
            st.integers(0, 99),
            st.sampled_from(["s3", "new", "other"]),
        ),
        min_size=3,
        max_size=8,
    ),
)
def test_any_changes_are_those_that_duckdb_makes(
    session: Session,
    plain: duckdb.DuckDBPyConnection,
    layout: str,
    least: int,
    statements: list[tuple[str, int, int, str]],
) -> None:
    """Whatever was changed before and by whom, and however the table is partitioned."""
    name, _ = create(session, plain, layout)
    session._runtime.tables.sizes = replace(SIZES, patched=least)
    for template, n, m, text in statements:
        sql = template.format(t=name, n=n, m=m, text=text)
        compare(session, plain, name, sql, queries=len(QUERIES))
    session.drop_table(name)
    session._runtime.tables.sizes = replace(SIZES, patched=1)


@pytest.mark.slow
def test_tasks_replace_the_partitions_that_have_rows_to_change(
    session: Session, plain: duckdb.DuckDBPyConnection
) -> None:
    """Others stay as they are stored, and no rows are added to any."""
    name, before = create(session, plain, "ranges")
    compare(session, plain, name, f"UPDATE {name} SET d = d + 1 WHERE k < 6000")
    after = stored(session, name).partitions
    assert [True, True, False, False] == [
        old.file != new.file for old, new in zip(before, after, strict=True)
    ]
    assert not any(part.deltas or part.deleted for part in after)
    session.drop_table(name)


@pytest.mark.sample(7)
@pytest.mark.parametrize("sql", WRONG)
def test_what_duckdb_refuses_changes_nothing(
    session: Session, plain: duckdb.DuckDBPyConnection, sql: str
) -> None:
    """And it says why."""
    name, _ = create(session, plain)
    with pytest.raises(duckdb.Error) as refused:
        plain.execute(sql.format(t=name))
    with pytest.raises(minishark.errors.MinisharkError) as told:
        session.sql(sql.format(t=name))
    first = str(refused.value).partition("\n")[0].partition(": ")[2]
    assert first[:40] in str(told.value)
    asked = QUERIES[0].format(t=name)
    assert rows(plain.execute(asked).fetchall()) == rows(session.sql(asked).collect())
    session.drop_table(name)


@pytest.mark.slow
def test_constraints_hold(session: Session, plain: duckdb.DuckDBPyConnection) -> None:
    """Of columns that are set, also by a MERGE that adds rows; others need no look."""
    create_table = "CREATE TABLE c (k INT PRIMARY KEY, v INT NOT NULL, w INT, CHECK (w < 90000))"
    for run in (session.sql, plain.execute):
        run(create_table)
        run("INSERT INTO c SELECT i, i, i FROM range(20000) r(i)")
    source = "(SELECT i + 10000 AS k FROM range(20000) r(i)) AS s ON c.k = s.k"
    for sql in (
        "UPDATE c SET k = k + 1",
        "UPDATE c SET k = 7",
        "UPDATE c SET v = NULL",
        "UPDATE c SET w = k * 6",
        "UPDATE c SET w = w + 1",
        f"MERGE INTO c USING {source} WHEN MATCHED THEN UPDATE SET v = NULL",
        f"MERGE INTO c USING {source} WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)",
        f"""MERGE INTO c USING {source} WHEN MATCHED THEN UPDATE SET w = 1
        WHEN NOT MATCHED THEN INSERT VALUES (s.k, 1, 1)""",
        "DELETE FROM c WHERE k % 3 = 0",
        "INSERT INTO c VALUES (3, 1, 1), (6, 1, 1)",
    ):
        found = []
        for run, error in (
            (lambda sql: session.sql(sql).collect(), minishark.errors.TaskFailedError),
            (lambda sql: plain.execute(sql).fetchall(), duckdb.ConstraintException),
        ):
            try:
                found.append(rows(run(sql)))
            except error:
                found.append(Counter(["refused"]))
        assert found[1] == found[0], sql
        everything = "SELECT * FROM c"
        expected = rows(plain.execute(everything).fetchall())
        assert expected == rows(session.sql(everything).collect()), sql
    session.drop_table("c")


def test_a_transaction_can_take_back_what_tasks_have_stored(
    session: Session, plain: duckdb.DuckDBPyConnection
) -> None:
    """Others see it when it is committed."""
    name, before = create(session, plain)
    with session.new_session() as other:
        session.sql("BEGIN")
        session.sql(f"UPDATE {name} SET d = 7")
        session.sql(f"DELETE FROM {name} WHERE k % 2 = 0")
        count = f"SELECT count(*), sum(d)::INT FROM {name}"
        assert [(COUNT // 2, 7 * COUNT // 2)] == [tuple(r) for r in session.sql(count).collect()]
        assert [COUNT] == [row[0] for row in other.sql(count).collect()]
        session.sql("ROLLBACK")
        assert before == [*stored(session, name).partitions]
        session.sql("BEGIN")
        session.sql(f"DELETE FROM {name} WHERE k % 2 = 0")
        session.sql("COMMIT")
        assert [COUNT // 2] == [row[0] for row in other.sql(count).collect()]
    session.drop_table(name)


def test_statistics_follow_what_is_set(session: Session, plain: duckdb.DuckDBPyConnection) -> None:
    """New bounds, if all rows have new values; wider ones, if only some do."""
    name, _ = create(session, plain, "ranges")
    session.sql(f"UPDATE {name} SET g = k + 1000000")
    bounds = stored(session, name).column_statistics("g")
    assert bounds is not None
    assert ("1000000", str(1_000_000 + COUNT - 1)) == (bounds.minimum, bounds.maximum)
    session.sql(f"UPDATE {name} SET g = 5 WHERE k < 3000")
    bounds = stored(session, name).column_statistics("g")
    assert bounds is not None
    assert ("5", str(1_000_000 + COUNT - 1)) == (bounds.minimum, bounds.maximum)
    session.drop_table(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "source"), [("patched", "FROM (SELECT 2 AS two)"), ("with_values", "")]
)
def test_a_lost_patch_is_computed_again(
    session: Session,
    plain: duckdb.DuckDBPyConnection,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    source: str,
) -> None:
    """As any output of a query, and so are marks with new values."""
    name, _ = create(session, plain)
    stored_again, lost = getattr(Tables, step), []

    def fails_once(
        tables: Tables, table: Table, patches: dict[int, tuple[FileSlice, ...]], columns: Any
    ) -> Table:
        if not lost:
            lost.extend(item for slices in patches.values() for item in slices)
            raise FilesLostError(tuple(lost))
        return stored_again(tables, table, patches, columns)

    monkeypatch.setattr(Tables, step, fails_once)
    update = f"UPDATE {name} SET s = 'again', d = d + 1 {source} WHERE k % 3 < 2"
    compare(session, plain, name, update)
    assert lost
    session.drop_table(name)


def test_partitions_of_a_change_that_fails_are_removed(
    session: Session, plain: duckdb.DuckDBPyConnection
) -> None:
    """Some tasks have stored theirs before another one finds out that a row is changed twice."""
    name, before = create(session, plain, "ranges")
    merge = WRONG[-1].replace("range(2)", "range(CASE WHEN i > 3990 THEN 2 ELSE 1 END)")
    with pytest.raises(minishark.errors.MinisharkError):
        session.sql(merge.format(t=name))
    session._runtime.tables.sweep()
    cluster = session._runtime.engine.cluster
    folder = before[0].file.rpartition("/")[0]
    found = {
        file.name
        for node in cluster.nodes
        for file in cluster.store().in_memory(folder, node).glob("*.arrow")
    }
    assert {part.file.rpartition("/")[2] for part in before} == found
    session.drop_table(name)


def test_a_search_of_few_rows_ends_in_time() -> None:
    """In the front end as on the cluster; the table is as it was, and so is the session."""
    slow = "list_sum(list_transform(range(30000 + i % 7), lambda x: x % 7)) > 3"
    with minishark.connect(in_process=True, nodes=1, query_timeout_s=0.5) as session:
        session.create_table("t", pa.table({"i": range(60_000)}))
        with pytest.raises(QueryTimeoutError, match="longer than query_timeout_s"):
            session.sql(f"DELETE FROM t WHERE {slow}")
        assert session.sql("SELECT count(*) FROM t").collect()[0] == (60_000,)
        assert session.sql("DELETE FROM t WHERE i = 1").collect()[0] == (1,)


@pytest.mark.sample(2)
@pytest.mark.parametrize("change", ["DELETE FROM {t} WHERE k % 2 = 0", "UPDATE {t} SET d = 1"])
def test_texts_that_came_later_are_kept(
    session: Session, plain: duckdb.DuckDBPyConnection, change: str
) -> None:
    """They are in dictionaries of deltas, and then in the one of the partition."""
    name, _ = create(session, plain, "ranges")
    added = "INSERT INTO {t} SELECT k + 50000, g, 'new' || k % 200, d, b, l, o, h, n, y FROM {t}"
    compare(session, plain, name, f"{added} WHERE k < 300".format(t=name), queries=0)
    compare(session, plain, name, change.format(t=name), queries=3)
    session.drop_table(name)


def test_bounds_say_where_rows_may_be(
    session: Session, plain: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task searches rows that are in few batches by the bounds of their columns."""
    name, _ = create(session, plain, "one")
    monkeypatch.setattr(memory_changes, "_FEW_BYTES", 0)
    monkeypatch.setattr(session._runtime.tables, "sizes", SIZES)
    for sql, tasks in (
        ("DELETE FROM {t} WHERE k = 4000 + 3", False),
        ("UPDATE {t} SET s = 'here' WHERE k BETWEEN 5000 AND 5010 AND g % 2 = 0", False),
        ("ALTER TABLE {t} ADD COLUMN c INTEGER DEFAULT 8", False),
        ("UPDATE {t} SET c = c + 1, s = s || c WHERE k IN (4003, 5001, 5002, 17000)", False),
        ("DELETE FROM {t} WHERE y < DATE '2020-01-04' AND c = 8", False),
        ("DELETE FROM {t} WHERE k > 100000", False),
        ("UPDATE {t} SET d = 5 WHERE k = 7 OR c = 9", True),
        ("DELETE FROM {t} WHERE k = 2 * g", True),
    ):
        with unittest.mock.patch.object(
            MemoryTable, "marked", autospec=True, side_effect=MemoryTable.marked
        ) as marked:
            compare(session, plain, name, sql.format(t=name), queries=0)
        assert marked.called == tasks, sql
    whole = f"SELECT count(*), sum(hash(t)) FROM {name} AS t"
    assert rows(plain.execute(whole).fetchall()) == rows(session.sql(whole).collect())
    session.drop_table(name)


def test_queries_read_batches_that_may_have_their_rows(
    session: Session, plain: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was deleted before these, added since, or asked for in another order."""
    query = (
        "SELECT i AS k, i * 7919 % 10007 AS u, DATE '2020-01-01' + (i // 500)::INT AS y, "
        "CASE WHEN i % 3 = 0 THEN i END AS n, 's' || i % 9 AS s FROM range(400000) r(i)"
    )
    plain.execute(f"CREATE TABLE batches AS {query}")
    session.create_table("batches", plain.table("batches"), partitions=2)
    monkeypatch.setattr(session._runtime.tables, "sizes", SIZES)
    read, sums = list[int](), "count(*), sum(k), sum(u), sum(n), max(s), min(y)"

    def narrowed(self: DeltaWriter, partition: Partition, places: Any) -> Partition:
        found = narrow(self, partition, places)
        assert found.needed is not None, "there are two batches in each partition"
        read.append(sum(last - first for first, last, _ in found.needed))
        return found

    narrow = DeltaWriter._narrowed
    for change in (
        "DELETE FROM batches WHERE k BETWEEN 130000 AND 131000",
        "UPDATE batches SET s = 'here' WHERE k IN (5, 199999, 330000)",
        "DELETE FROM batches WHERE u = 77",
        "INSERT INTO batches SELECT k + 7, u, y, n, s FROM batches WHERE k < 3",
        "ALTER TABLE batches ADD COLUMN z INTEGER DEFAULT 8",
    ):
        compare(session, plain, "batches", change, queries=0)
        for condition, batches in (
            ("k = 330000", 1),
            ("k BETWEEN 150000 AND 199990 AND s < 's5'", 1),
            ("k IN (3, 399999)", 2),
            ("y = DATE '2020-01-10' AND n IS NOT NULL", 1),
            ("n >= 399000", 1),
            ("k < 0", 0),
        ):
            read.clear()
            sql = f"SELECT {sums} FROM batches WHERE {condition}"
            with unittest.mock.patch.object(DeltaWriter, "_narrowed", narrowed):
                compare(session, plain, "batches", sql, queries=0)
            assert sum(read) == batches, (change, condition)
        for others, both in (("WHERE k > 399990", 2), ("", None)):
            other = f"(FROM batches {others}) AS b ON a.k <> b.k"
            joined = f"(FROM batches WHERE k < 9) AS a JOIN {other}"
            read.clear()
            with unittest.mock.patch.object(DeltaWriter, "_narrowed", narrowed):
                compare(session, plain, "batches", f"SELECT count(*) FROM {joined}", queries=0)
            assert (sum(read) if read else None) == both, others
        compare(session, plain, "batches", f"SELECT {sums}, count(n) FROM batches", queries=0)
    session.drop_table("batches")


@pytest.mark.slow
def test_few_rows_are_found_where_they_are_stored(
    session: Session, plain: duckdb.DuckDBPyConnection
) -> None:
    """In a partition's file or a delta, and whatever was deleted before them."""
    name, _ = create(session, plain)
    session._runtime.tables.sizes = SIZES
    added = f"INSERT INTO {name} SELECT k + 50000, g, 'new' || k, d, b, l, o, h, n, y FROM {name}"
    for sql in (
        f"DELETE FROM {name} WHERE k IN (1, 4, 700)",
        f"{added} WHERE k < 300",
        f"UPDATE {name} SET s = s || '!', n = {{'a': 1, 'c': 'x'}} WHERE k IN (2, 50001, 50002)",
        f"UPDATE {name} SET d = 3 WHERE k IN (2, 699, 50002, 50003) RETURNING k, s, d, o",
        f"DELETE FROM {name} WHERE k IN (2, 50002) RETURNING k, s",
        f"UPDATE {name} SET d = 3 WHERE k = -1",
    ):
        compare(session, plain, name, sql)
    session._runtime.tables.sizes = replace(SIZES, patched=1)
    session.drop_table(name)


def test_macros_that_read_tables_give_new_values(
    session: Session, plain: duckdb.DuckDBPyConnection
) -> None:
    """Their own table or another one, which the statement does not name."""
    name, _ = create(session, plain)
    for sql in (
        "CREATE TABLE other AS SELECT 7 AS a",
        "CREATE MACRO of_other() AS (SELECT max(a) FROM other)",
        f"CREATE MACRO of_itself() AS (SELECT max(k) FROM {name})",
    ):
        plain.execute(sql)
        session.sql(sql)
    compare(session, plain, name, f"UPDATE {name} SET g = of_other()", queries=1)
    compare(session, plain, name, f"UPDATE {name} SET g = of_itself() WHERE k < 10", queries=1)
    for what in ("MACRO of_other", "MACRO of_itself", "TABLE other", f"TABLE {name}"):
        session.sql(f"DROP {what}")


@pytest.mark.sample(12)
@pytest.mark.parametrize("least", [1, SIZES.patched])
@pytest.mark.parametrize(
    "search",
    [
        "SELECT a FROM picked QUALIFY row_number() OVER (PARTITION BY b) = 1",
        "SELECT any_value(a) AS a FROM picked GROUP BY b",
        "SELECT mode(a) AS a FROM picked GROUP BY b",
        "SELECT DISTINCT ON (b) a FROM picked",
        "SELECT a FROM picked LIMIT 100",
        "SELECT a FROM picked WHERE b + 1e-9 * random() < 0.5",
    ],
)
def test_a_search_that_may_find_other_rows_is_made_once(
    session: Session, plain: duckdb.DuckDBPyConnection, search: str, least: int
) -> None:
    """All rows that it finds are changed, and none is taken for missing: it has 100 of the table's.

    Which ones, the order of rows decides.
    """
    name, _ = create(session, plain, "ranges")
    session._runtime.tables.sizes = replace(SIZES, patched=least)
    picked = plain.sql(f"SELECT i * 7 % {COUNT} AS a, i % 100 AS b FROM range(10000) r(i)")
    session.create_table("picked", picked, partition_by="a", partitions=5)

    def changed(sql: str) -> int:
        return len(session.sql(sql.format(t=name)).collect())

    marked = f"SELECT count(*), count(DISTINCT k), count(*) FILTER (d = -1) FROM {name}"
    changed(f"UPDATE {{t}} SET d = -1 WHERE k IN ({search})")
    assert [(COUNT, COUNT, 100)] == [tuple(row) for row in session.sql(marked).collect()]
    changed(f"UPDATE {{t}} SET d = -1 FROM ({search}) AS p WHERE k = p.a")
    merge = f"MERGE INTO {{t}} USING ({search}) AS p ON k = p.a WHEN"
    changed(f"{merge} MATCHED THEN DO NOTHING WHEN NOT MATCHED THEN INSERT (k) VALUES (p.a)")
    assert [(COUNT, COUNT)] == [tuple(row)[:2] for row in session.sql(marked).collect()]
    assert 100 == changed(f"DELETE FROM {{t}} WHERE k IN ({search}) RETURNING k")
    session.drop_table("picked")
    session.drop_table(name)
    session._runtime.tables.sizes = replace(SIZES, patched=1)


def test_a_patch_says_one_thing_of_a_row() -> None:
    """Rows may come in any order, but only once."""
    from minishark.worker.patches import ChangedTwiceError, changed

    stored_rows = pa.table({"v": [1, 2, 3, 4], "row": [10, 11, 13, 14]})
    patch = pa.table({"n": [14, 10, 13], "kind": pa.array([1, 2, 0], pa.int8()), "v": [9, 8, 7]})
    change = changed(stored_rows, (0,), patch)
    assert [2, 3, 9] == pa.Table.from_batches(change.batches, change.schema).column(0).to_pylist()
    assert [9] == change.new.column(0).to_pylist()
    with pytest.raises(ChangedTwiceError):
        changed(stored_rows, (0,), pa.concat_tables([patch, patch]))
