"""Which statements a transaction takes, and what of it is committed: as in DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import minishark
from minishark.errors import MinisharkError
from minishark.session.session import Session

TABLES = (
    "CREATE TABLE {prefix}t (k INTEGER PRIMARY KEY, v VARCHAR)",
    "INSERT INTO {prefix}t VALUES (1, 'a'), (2, 'b')",
    "CREATE TABLE {prefix}n (a INTEGER NOT NULL CHECK (a < 100), d DATE)",
)
# Tables of a warehouse have no keys, and a transaction changes one of them.
WAREHOUSE_TABLES = (
    "CREATE TABLE {prefix}t (k INTEGER, v VARCHAR)",
    "INSERT INTO {prefix}t VALUES (1, 'a'), (2, 'b')",
)
FAILING = (
    "INSERT INTO {prefix}t VALUES (CAST('x' AS INTEGER), 'x')",
    "INSERT INTO {prefix}t SELECT CAST(v AS INTEGER), v FROM {prefix}t",
    "SELECT CAST(v AS INTEGER) FROM {prefix}t",
    "SELECT k // 0 FROM {prefix}t",
    "SELECT k::TINYINT + 127::TINYINT FROM {prefix}t",
    "SELECT error('told') FROM {prefix}t",
    "UPDATE {prefix}t SET k = CAST(v AS INTEGER)",
    "SELEC 1",
    "SELECT none FROM {prefix}t",
    "FROM {prefix}none",
    "INSERT INTO {prefix}none VALUES (1)",
    "INSERT INTO {prefix}t VALUES (1)",
    "DELETE FROM {prefix}t WHERE none = 1",
    "EXECUTE none",
    "BEGIN",
)
FAILING_ON_KEYS = (
    "INSERT INTO {prefix}t VALUES (1, 'again')",
    "INSERT INTO {prefix}t SELECT 2, 'again' FROM range(3)",
    "UPDATE {prefix}t SET k = 1",
    "INSERT INTO {prefix}n VALUES (NULL, NULL)",
    "INSERT INTO {prefix}n VALUES (1000, NULL)",
)
WORKING = (
    "INSERT INTO {prefix}t VALUES (3, 'c')",
    "INSERT INTO {prefix}t SELECT max(k) + 1, 'd' FROM {prefix}t",
    "UPDATE {prefix}t SET v = v || 'x' WHERE k = 1",
    "DELETE FROM {prefix}t WHERE k = 2",
    "FROM {prefix}t",
    "DELETE FROM {prefix}t",
)
# Keyed tables are part of transactions like any other.
WORKING_ON_KEYS = (
    "INSERT INTO {prefix}t VALUES (1, 'again'), (5, 'e') ON CONFLICT DO NOTHING",
    "INSERT OR REPLACE INTO {prefix}t VALUES (2, 'other')",
    "UPDATE {prefix}t SET k = k + 10 WHERE v > 'a'",
    (
        "MERGE INTO {prefix}t USING (VALUES (1, 'm'), (6, 'n')) AS s(k, v) ON t.k = s.k "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.v)"
    ),
    "TRUNCATE {prefix}t",
    "INSERT INTO {prefix}n VALUES (7, '2020-01-01')",
)
ENDS = ("BEGIN", "COMMIT", "ROLLBACK")


class Beside:
    """A session, and DuckDB, that run the same statements."""

    def __init__(self, session: Session, setup: tuple[str, ...], schema: str = "") -> None:
        self.session, self.con = session, duckdb.connect()
        self.prefix = f"{schema}." if schema else ""
        self.names = [name for name in ("t", "n") if any(f"}}{name} (" in each for each in setup)]
        if schema:
            self.con.execute(f"CREATE SCHEMA {schema}")
        for name in self.names:
            session.sql(f"DROP TABLE IF EXISTS {self.prefix}{name}")
        for sql in setup:
            self.both(sql)

    def both(self, sql: str) -> tuple[str, str]:
        """How a statement ends here and there."""
        return self._here(sql), self._there(sql)

    def _here(self, sql: str) -> str:
        try:
            self.session.sql(sql.format(prefix=self.prefix)).to_arrow()
        except MinisharkError:
            return "error"
        return "ok"

    def _there(self, sql: str) -> str:
        try:
            self.con.execute(sql.format(prefix=self.prefix)).fetchall()
        except duckdb.Error:
            return "error"
        return "ok"

    def rows(self) -> tuple[list[object], list[object]]:
        """What the tables have, here and there."""
        here: list[object] = []
        there: list[object] = []
        for name in self.names:
            query = f"FROM {self.prefix}{name} ORDER BY ALL"
            here.append([tuple(row) for row in self.session.sql(query).collect()])
            there.append(self.con.execute(query).fetchall())
        return here, there

    def run(self, script: list[str]) -> None:
        """Run a script, statement by statement, and what follows it; compare."""
        pairs = [(sql, *self.both(sql)) for sql in [*script, "SELECT 1"]]
        assert [(sql, there) for sql, _, there in pairs] == [(s, here) for s, here, _ in pairs]
        self.both("ROLLBACK")
        here, there = self.rows()
        assert there == here, script


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session without a warehouse."""
    with minishark.connect(in_process=True, nodes=2, partitions=2, executors_per_node=1) as found:
        yield found


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A session with a warehouse that has one schema."""
    folder: Path = tmp_path_factory.mktemp("warehouse")
    with minishark.connect(in_process=True, nodes=1, warehouse=str(folder)) as found:
        found.sql("CREATE SCHEMA s")
        yield found


@pytest.mark.sample(26)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("failing", [*FAILING, *FAILING_ON_KEYS])
def test_every_error_aborts_a_transaction(session: Session, failing: str, end: str) -> None:
    """What came before is not committed, and nothing is taken before the transaction ends."""
    script = ["BEGIN", WORKING[0], failing, WORKING[3], "FROM {prefix}t", failing, end, end]
    Beside(session, TABLES).run(script)


@pytest.mark.sample(15)
@pytest.mark.parametrize("failing", FAILING)
def test_every_error_aborts_a_transaction_of_a_warehouse(warehouse: Session, failing: str) -> None:
    """As in memory."""
    script = ["BEGIN", WORKING[0], failing, WORKING[3], failing, "COMMIT", "COMMIT"]
    Beside(warehouse, WAREHOUSE_TABLES, "s").run(script)


def test_errors_outside_of_transactions_abort_nothing(session: Session) -> None:
    """Each statement stands for itself, and the next transaction begins anew."""
    beside = Beside(session, TABLES)
    beside.run([*FAILING[:-1], "COMMIT", "BEGIN", WORKING[0], "COMMIT", WORKING[3]])


def test_one_text_with_several_statements(session: Session) -> None:
    """A text ends where it fails, within its transaction."""
    beside = Beside(session, TABLES)
    for text in (
        f"BEGIN; {WORKING[0]}; {FAILING_ON_KEYS[0]}; {WORKING[3]}; COMMIT",
        WORKING[0],
        "COMMIT",
        f"BEGIN; {WORKING[0]}; COMMIT; {FAILING_ON_KEYS[0]}",
        WORKING[3],
        f"ROLLBACK; {WORKING[3]}",
    ):
        here, there = beside.both(text)
        assert there == here, text
    here_rows, there_rows = beside.rows()
    assert there_rows == here_rows


STATEMENTS = st.lists(
    st.sampled_from(
        [
            *(*WORKING, *WORKING_ON_KEYS, *ENDS, *ENDS),
            *(*FAILING[:4], *FAILING[7:11], *FAILING_ON_KEYS),
        ]
    ),
    max_size=12,
)


@settings(
    max_examples=settings.default.max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(script=STATEMENTS)
def test_any_script(session: Session, script: list[str]) -> None:
    """Each statement ends as in DuckDB, and so do the tables."""
    Beside(session, TABLES).run(script)


@settings(
    max_examples=settings.default.max_examples // 8,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    script=st.lists(
        st.sampled_from([*WORKING, *ENDS, *ENDS, *FAILING[:4], *FAILING[7:11]]), max_size=8
    )
)
def test_any_script_over_a_warehouse(warehouse: Session, script: list[str]) -> None:
    """Each statement ends as in DuckDB, and so does the table."""
    Beside(warehouse, WAREHOUSE_TABLES, "s").run(script)
