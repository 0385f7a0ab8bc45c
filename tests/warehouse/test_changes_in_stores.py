"""Statements that change rows do what DuckDB does, whichever store has the table.

Each group of statements runs one after the other on a table of each store, and on one of DuckDB's:
answers, rows and errors are the same after each.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

import minishark
from minishark.cluster.launch import StartOptions, start_cluster, stop_cluster
from minishark.errors import (
    AnalysisException,
    ConstraintError,
    DataValueError,
    MinisharkError,
    UnsupportedError,
)
from minishark.session.session import Session

ERRORS: dict[type[duckdb.Error], type[MinisharkError]] = {
    duckdb.ConstraintException: ConstraintError,
    duckdb.ConversionException: DataValueError,
    duckdb.OutOfRangeException: DataValueError,
    duckdb.InvalidInputException: DataValueError,
    duckdb.BinderException: AnalysisException,
    duckdb.ParserException: AnalysisException,
    duckdb.CatalogException: AnalysisException,
}
COLUMNS = "id INTEGER NOT NULL, v VARCHAR, n DECIMAL(9, 2), l INTEGER[], d DATE"
ROWS = """SELECT i::INTEGER, CASE WHEN i % 4 > 0 THEN 'v' || i % 3 END, (i / 2)::DECIMAL(9, 2),
    [i::INTEGER, NULL], DATE '2024-01-01' + i::INTEGER FROM range(40) AS r(i)"""
KEYED = "id INTEGER PRIMARY KEY, u VARCHAR UNIQUE, n INTEGER DEFAULT 7, CHECK (n < 100)"
KEYED_ROWS = "SELECT i, 'u' || i, i FROM range(40) AS r(i)"

GROUPS = {
    "INSERT": (
        "INSERT INTO {t} VALUES (100, 'x', 1, [1], NULL), (101, NULL, NULL, NULL, '2025-01-02')",
        "INSERT INTO {t} (v, id) SELECT 'y', 200 + id FROM {s}",
        "INSERT INTO {t} BY NAME SELECT 'z' AS v, 300 AS id",
        "WITH q AS (SELECT 400 AS id) INSERT INTO {t} (id, v) SELECT id, 'q' FROM q",
        "INSERT INTO {t} (SELECT id + 500, v, n, l, d FROM {t} WHERE id < 3)",
        "INSERT INTO {t} BY POSITION SELECT max(id) + 1, 'm', 1, [2], NULL FROM {t}",
        "INSERT INTO {t} (id) VALUES (600), (601) RETURNING id + 1 AS next, v",
        "INSERT INTO {t} SELECT id + 700, v, 1, l, d FROM {t} WHERE id < 2 RETURNING *",
        "INSERT INTO {t} (id) SELECT id FROM {s} WHERE false",
        "INSERT INTO {t} VALUES (1)",
        "INSERT INTO {t} (id, id) VALUES (1, 2)",
        "INSERT INTO {t} (id, none) VALUES (1, 2)",
        "INSERT INTO {t} (v) VALUES ('no id')",
        "INSERT INTO {t} DEFAULT VALUES",
        "INSERT INTO {t} (id) VALUES ('text')",
        "INSERT INTO {t} (id) SELECT v FROM {t}",
        "INSERT INTO {t} (id, n) VALUES (1, 1e9)",
        "INSERT INTO {t} (id) VALUES (1) ON CONFLICT (id) DO NOTHING",
        "INSERT OR REPLACE INTO {t} (id) VALUES (1)",
    ),
    "DELETE": (
        "DELETE FROM {t} WHERE id = 3",
        "DELETE FROM {t} AS x WHERE x.v IS NULL AND x.id > 30",
        "DELETE FROM {t} WHERE id IN (SELECT id FROM {s} WHERE id < 2)",
        "DELETE FROM {t} WHERE id IN (SELECT id + 1 FROM {t} WHERE v = 'v2' AND id < 20)",
        "DELETE FROM {t} AS x USING {s} AS o, (VALUES (1)) AS p(k) WHERE x.id = o.id + p.k",
        "WITH q AS (SELECT 5 AS k) DELETE FROM {t} USING q WHERE id = q.k",
        "DELETE FROM {t} WHERE id BETWEEN 10 AND 14 RETURNING id, v || '!' AS w, l",
        "DELETE FROM {t} WHERE id = -1 RETURNING *",
        "DELETE FROM {t} WHERE NULL",
        "DELETE FROM {t} WHERE none = 1",
        "DELETE FROM {t} WHERE v::INTEGER = 1",
        "DELETE FROM {t} USING nowhere AS o WHERE o.id = id",
        "DELETE FROM {t} WHERE id % 2 = 0",
        "TRUNCATE {t}",
        "DELETE FROM {t}",
    ),
    "UPDATE": (
        "UPDATE {t} SET v = 'new' WHERE id = 3",
        "UPDATE {t} AS x SET n = x.n + 1, v = concat(x.v, x.id) WHERE x.id % 7 = 0",
        "UPDATE {t} SET id = id + 1000, l = [id] WHERE id > 35",
        "UPDATE {t} SET v = o.v, n = o.id FROM {s} AS o WHERE o.id = {t}.id",
        "UPDATE {t} AS x SET v = o.w FROM (VALUES (5, 'five'), (6, 'six')) AS o(k, w) WHERE id = k",
        "WITH q AS (SELECT 8 AS k) UPDATE {t} SET v = 'q' FROM q WHERE id = q.k",
        "UPDATE {t} SET v = (SELECT max(v) FROM {s}) WHERE id < 3",
        "UPDATE {t} SET n = (SELECT max(id) FROM {t}) WHERE id = 20",
        "UPDATE {t} SET d = d + 1, n = -n WHERE id BETWEEN 10 AND 12 RETURNING id, n, d",
        "UPDATE {t} SET n = DEFAULT WHERE id = 13",
        "UPDATE {t} SET v = 'none' WHERE id = -1",
        "UPDATE {t} SET none = 1",
        "UPDATE {t} SET n = 1, n = 2",
        "UPDATE {t} SET id = NULL WHERE id = 7",
        "UPDATE {t} SET id = 'text'",
        "UPDATE {t} SET n = 1e9",
        "UPDATE {t} SET n = count(*)",
        "UPDATE {t} SET v = upper(v), d = NULL",
    ),
    "MERGE": (
        """MERGE INTO {t} USING {s} AS o ON {t}.id = o.id
        WHEN MATCHED AND o.id < 2 THEN DELETE WHEN MATCHED THEN UPDATE SET v = o.v
        WHEN NOT MATCHED THEN INSERT (id, v) VALUES (o.id, o.v)""",
        """MERGE INTO {t} AS x USING (SELECT id * 3 AS id, 'm' AS v FROM {s}) AS o USING (id)
        WHEN MATCHED AND x.id % 2 = 0 THEN DO NOTHING WHEN MATCHED THEN UPDATE SET n = -1
        WHEN NOT MATCHED AND o.id > 100 THEN INSERT BY NAME""",
        """WITH q AS (SELECT 4 AS id) MERGE INTO {t} AS x USING q ON x.id = q.id
        WHEN MATCHED THEN UPDATE SET v = 'with'""",
        """MERGE INTO {t} USING (VALUES (5)) AS o(k) ON id = k
        WHEN MATCHED THEN UPDATE SET v = 'five' WHEN NOT MATCHED BY SOURCE AND id > 36 THEN DELETE
        WHEN NOT MATCHED BY SOURCE AND v IS NULL THEN UPDATE SET v = 'alone'""",
        """MERGE INTO {t} USING (VALUES (6, 'six'), (900, 'n')) AS o(k, w) ON id = k
        WHEN MATCHED THEN UPDATE SET v = w WHEN NOT MATCHED THEN INSERT (id, v) VALUES (k, w)
        RETURNING merge_action, id, v""",
        """MERGE INTO {t} USING (SELECT max(id) AS k FROM {t}) AS o ON id = k
        WHEN MATCHED THEN UPDATE SET v = 'last' WHEN NOT MATCHED THEN INSERT (id) VALUES (k)""",
        """MERGE INTO {t} USING (SELECT max(id) AS k FROM {t}) AS o ON id = k
        WHEN MATCHED THEN DELETE""",
        """MERGE INTO {t} USING (VALUES (8), (8)) AS o(k) ON id = k
        WHEN MATCHED THEN UPDATE SET v = 'twice'""",
        """MERGE INTO {t} USING (VALUES (8, 1), (8, 2)) AS o(k, i) ON id = k
        WHEN MATCHED AND i = 2 THEN UPDATE SET v = 'second'""",
        "MERGE INTO {t} USING {s} AS o ON none WHEN MATCHED THEN DELETE",
        """MERGE INTO {t} USING (VALUES (950)) AS o(k) ON id = k
        WHEN NOT MATCHED THEN INSERT (v) VALUES ('no id')""",
        """MERGE INTO {t} USING (VALUES (9)) AS o(k) ON id = k
        WHEN MATCHED THEN UPDATE SET id = v""",
        """MERGE INTO {t} USING {s} AS o ON {t}.id = o.id WHEN MATCHED THEN DELETE
        WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 'rest'""",
    ),
    "keys": (
        "INSERT INTO {t} VALUES (5, 'x', 1)",
        "INSERT INTO {t} VALUES (500, 'u3', 1)",
        "INSERT INTO {t} VALUES (500, NULL, 1), (501, NULL, 1)",
        "INSERT INTO {t} (id, u) VALUES (3, 'z') ON CONFLICT (id) DO UPDATE SET u = 'z', n = n + 1",
        "INSERT INTO {t} VALUES (4, 'u9', 1) ON CONFLICT (id) DO UPDATE SET u = excluded.u",
        "INSERT INTO {t} VALUES (4, 'u9', 1), (70, 'n', 0) ON CONFLICT DO NOTHING RETURNING id",
        "INSERT OR IGNORE INTO {t} SELECT id, u, 1 FROM {t} WHERE id < 20",
        "INSERT OR REPLACE INTO {t} VALUES (8, 'eight', 8), (80, 'eighty', 80)",
        "INSERT INTO {t} (id) VALUES (81) RETURNING *",
        "INSERT INTO {t} (id, n) VALUES (82, 100)",
        "UPDATE {t} SET id = id + 1 WHERE id < 10",
        "UPDATE {t} SET u = 'u20' WHERE id = 30",
        "UPDATE {t} SET n = 100 WHERE id = 30",
        "UPDATE {t} SET id = 90, u = NULL WHERE id = 30 RETURNING id, u, n",
        """MERGE INTO {t} USING (VALUES (91, 'm'), (9, 'l')) AS o(k, w) ON id = o.k
        WHEN MATCHED THEN UPDATE SET u = w WHEN NOT MATCHED THEN INSERT VALUES (k, w, 1)""",
        """MERGE INTO {t} USING (VALUES (8, 'u27')) AS o(k, w) ON id = o.k
        WHEN MATCHED THEN UPDATE SET u = w""",
        """MERGE INTO {t} USING (VALUES (92, 'w'), (9, 'l')) AS o(k, w) ON id = o.k
        WHEN NOT MATCHED THEN INSERT (id, u) VALUES (k, w)
        WHEN NOT MATCHED BY SOURCE AND id < 5 THEN DELETE""",
        "DELETE FROM {t} WHERE id % 3 = 0 RETURNING id",
        "INSERT INTO {t} VALUES (3, 'again', 9)",
    ),
}


@dataclass(frozen=True, slots=True)
class Store:
    """Where a table is."""

    name: str
    create: str = "CREATE TABLE"
    schema: str = ""
    begins: bool = False  # whether each statement is a transaction


STORES = (
    Store("memory"),
    Store("transaction", begins=True),
    Store("temporary", "CREATE TEMP TABLE"),
    Store("warehouse", schema="warehouse.s."),
    Store("warehouse transaction", schema="warehouse.s.", begins=True),
    Store("ducklake", schema="warehouse.s."),
    Store("ducklake transaction", schema="warehouse.s.", begins=True),
    Store("shared", schema="shared."),
    Store("shared transaction", schema="shared.", begins=True),
)
NO_KEYS = ("keys",)
"""Groups of tables that a warehouse does not have."""


@pytest.fixture(scope="module")
def session(folder: Path) -> Iterator[Session]:
    """A session with all stores; its statements are distributed."""
    with minishark.connect(
        in_process=True, partitions=2, single_task_rows=0, warehouse=folder / "changes"
    ) as shared:
        shared.sql("CREATE SCHEMA IF NOT EXISTS s")
        with shared.new_session() as found:
            yield found


@pytest.fixture(scope="module")
def lake(folder: Path) -> Iterator[Session]:
    """A session with a DuckLake as its warehouse."""
    address = f"ducklake:sqlite:{folder}/lake.sqlite"
    with minishark.connect(
        in_process=True, partitions=2, single_task_rows=0, warehouse=address
    ) as found:
        found.sql("CREATE SCHEMA s")
        yield found


@pytest.fixture(scope="module")
def memory() -> Iterator[Session]:
    """A session without a warehouse, whose transactions are over tables in memory."""
    with minishark.connect(in_process=True, partitions=2, single_task_rows=0) as found:
        yield found


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session on a running cluster, to which shared tables belong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        start_cluster(StartOptions(name="changes", nodes=2))
        try:
            with minishark.connect("changes", partitions=2, single_task_rows=0) as found:
                yield found
        finally:
            stop_cluster("changes")


def answered(run: Any, sql: str) -> Counter[str] | type[Exception]:
    """The rows of an answer, in any order, or the class of an error."""
    try:
        return Counter(str(tuple(row)) for row in run(sql))
    except MinisharkError as error:
        return AnalysisException if isinstance(error, AnalysisException) else type(error)
    except duckdb.Error as error:
        return ERRORS[type(error)]


@pytest.mark.sample(10)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    "store",
    [
        pytest.param(s, id=s.name, marks=[pytest.mark.slow] * bool(s.schema and s.begins))
        for s in STORES
    ],
)
def test_changes_are_those_that_duckdb_makes(
    request: pytest.FixtureRequest, store: Store, group: str
) -> None:
    """Answers, rows and the classes of errors, one statement after the other."""
    fixtures = {"transaction": "memory", "ducklake": "lake", "shared": "attached"}
    of: Session = request.getfixturevalue(fixtures.get(store.name.split()[0], "session"))
    columns, rows = (KEYED, KEYED_ROWS) if group in NO_KEYS else (COLUMNS, ROWS)
    table, source = f"{store.schema}t", f"{store.schema}s"
    sources = "SELECT i::INTEGER AS id, 's' || i AS v FROM range(0, 45, 9) AS r(i)"
    creates = (f"{store.create} {source} AS {sources}", f"{store.create} {table} ({columns})")
    if store.schema.startswith("warehouse") and group in NO_KEYS:
        with pytest.raises(UnsupportedError, match="no CHECK"):
            of.sql(creates[1])
        return

    def ours(sql: str) -> list[Any]:
        if not store.begins:
            return list(of.sql(sql).collect())
        of.sql("BEGIN")
        try:
            answer = list(of.sql(sql).collect())
        except MinisharkError:
            of.sql("ROLLBACK")
            raise
        seen = answered(lambda sql: of.sql(sql).collect(), f"FROM {table}")
        of.sql("COMMIT")
        assert seen == answered(lambda sql: of.sql(sql).collect(), f"FROM {table}")
        return answer

    with duckdb.connect() as plain, contextlib.ExitStack() as stack:
        for name in (table, source):
            stack.callback(of.sql, f"DROP TABLE IF EXISTS {name}")
        plain.execute(
            "ATTACH ':memory:' AS warehouse; CREATE SCHEMA warehouse.s; CREATE SCHEMA shared"
        )
        for sql in (*creates, f"INSERT INTO {table} {rows}"):
            of.sql(sql)
            plain.execute(sql)
        for template in GROUPS[group]:
            sql = template.format(t=table, s=source)
            expected = answered(lambda sql: plain.execute(sql).fetchall(), sql)
            assert answered(ours, sql) == expected, sql
            everything = f"FROM {table}"
            expected = answered(lambda sql: plain.execute(sql).fetchall(), everything)
            assert answered(lambda sql: of.sql(sql).collect(), everything) == expected, sql
