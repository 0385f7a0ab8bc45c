"""Views over files: their queries run in stages, as those that name the files do."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import minishark
from minishark.errors import QueryError
from minishark.query import names
from minishark.session.session import Session

DEFINITIONS = [
    "CREATE TABLE t AS SELECT range AS a, range * 2 AS z FROM range(20)",
    "CREATE VIEW v AS SELECT * FROM 'hive/*/*.parquet'",
    """CREATE VIEW named(x, "y y") AS
       SELECT a, b FROM read_parquet('hive/*/*.parquet', hive_partitioning = false)""",
    "CREATE VIEW by_name AS FROM read_parquet(['kinds/*.parquet'], union_by_name := true)",
    "CREATE VIEW with_file AS FROM read_parquet('hive/*/*.parquet', filename = true)",
    """CREATE TEMP VIEW nested AS
       WITH q AS (FROM v) SELECT q.*, named."y y" AS yy FROM q JOIN named ON q.a = named.x""",
    'CREATE VIEW mixed AS SELECT z, q.* FROM t JOIN "text.csv" q USING (a)',
    """CREATE VIEW typed AS
       FROM read_csv('text.csv', columns = {'a': 'INT', 'b': 'VARCHAR'}, header = true) r""",
    "CREATE VIEW of_both AS FROM mixed UNION ALL BY NAME SELECT 1 AS z FROM v WHERE a < 103",
    'CREATE VIEW "Odd one.ä" AS FROM v ORDER BY a DESC LIMIT 7',
    "CREATE VIEW few AS FROM v USING SAMPLE 3 ROWS",
    "CREATE VIEW of_table AS FROM t",
]
STAGES = [
    "SELECT b, count(*), sum(a) FROM v GROUP BY b ORDER BY b",
    "SELECT v.y, max(v.c) FROM V GROUP BY ALL ORDER BY ALL",
    "SELECT * FROM named ORDER BY x LIMIT 5",
    'SELECT u.x, u."y y" FROM named u ORDER BY ALL DESC LIMIT 3',
    "SELECT q FROM named AS u(q) ORDER BY ALL LIMIT 3",
    "SELECT sum(a), sum(b), sum(c) FROM by_name",
    "SELECT count(*), sum(yy) FROM nested",
    "SELECT * FROM mixed ORDER BY ALL",
    "SELECT count(b), min(b) FROM typed",
    "SELECT * FROM of_both ORDER BY ALL",
    "SELECT 'ä', * FROM \"Odd one.ä\"",
    "SELECT count(*) FROM v JOIN 'hive/*/*.parquet' w USING (a) JOIN of_table ON w.a = z + 100",
    "WITH q AS (FROM v) SELECT count(*) FROM q, mixed WHERE q.b = mixed.b",
    "WITH v AS (SELECT 5 AS a, 1 AS b) SELECT * FROM v",  # which is no view
    "FROM v WHERE a IN (SELECT x FROM named WHERE x % 7 = 0) ORDER BY a",
]
WHOLE = [
    "SELECT count(*) FROM with_file WHERE filename LIKE '%y=1%'",
    "SELECT count(*) FROM few",
    "SELECT main.v.a FROM main.v ORDER BY 1 LIMIT 1",
    # What the views read has the name of a part of the query, by which it is not meant.
    'WITH v AS (SELECT 5 AS a) SELECT count(*) FROM "Odd one.ä"',
    "WITH t AS (SELECT 7 AS a, 8 AS z) SELECT count(*) FROM mixed",
    "WITH v AS (SELECT 103 AS a) SELECT count(*) FROM nested JOIN v USING (a)",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Files that views name; the program works in their folder."""
    folder, before = tmp_path_factory.mktemp("files"), Path.cwd()
    with duckdb.connect() as con:

        def write(name: str, select: str) -> None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            con.execute(f"COPY ({select}) TO '{folder / name}'")

        for i in (1, 2):
            rows = f"range AS a, range % 3 AS b, 'x' || range AS c FROM range({i}00, {i}50)"
            write(f"hive/y={i}/p.parquet", f"SELECT {rows}")
        write("kinds/x.parquet", "SELECT 1 AS a, 5 AS b")
        write("kinds/y.parquet", "SELECT 2 AS b, 3 AS c")
        write("text.csv", "SELECT range AS a, range % 3 AS b FROM range(10)")
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


@contextlib.contextmanager
def connected(reuse: str = "off") -> Iterator[Session]:
    """A session that runs everything in stages."""
    with minishark.connect(
        in_process=True, nodes=1, executors_per_node=2, partitions=3, single_task_rows=0,
        reuse=reuse,
    ) as session:  # fmt: skip
        yield session


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[tuple[Session, duckdb.DuckDBPyConnection]]:
    """A session and a DuckDB with the same views."""
    with connected() as session, duckdb.connect() as con:
        for sql in DEFINITIONS:
            session.sql(sql)
            con.execute(sql)
        yield session, con


def in_stages(session: Session, sql: str) -> bool:
    """Whether EXPLAIN shows something else than one task that runs the whole statement."""
    return "Statement" not in session.sql(sql).plan_text("physical")


@pytest.mark.sample(7)
@pytest.mark.parametrize("sql", STAGES + WHOLE)
def test_answers_over_views_of_files_are_duckdbs(
    both: tuple[Session, duckdb.DuckDBPyConnection], sql: str
) -> None:
    """Rows, their order, names and types are DuckDB's, in stages wherever files would be."""
    session, con = both
    assert con.sql(sql).to_arrow_table() == session.sql(sql).to_arrow()
    assert (sql in STAGES) == in_stages(session, sql)


@pytest.fixture
def alike(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Runs statements here and in DuckDB, whose answers or errors must be the same."""
    with connected() as session, duckdb.connect() as con:

        def run(sql: str) -> None:
            sql = sql.replace("FILES", str(tmp_path))
            try:
                expected = con.execute(sql).to_arrow_table()
            except duckdb.Error:
                with pytest.raises(QueryError):
                    session.sql(sql).collect()
                return
            frame = session.sql(sql)
            if sql.startswith(("FROM", "SELECT")):
                assert expected == frame.to_arrow()
                assert in_stages(session, sql)

        yield run


def write(file: Path, **columns: list[int] | list[str]) -> None:
    """A Parquet file, in place of any other."""
    pq.write_table(pa.table(columns), file)


def test_what_a_view_means_now(alike: Callable[[str], None], tmp_path: Path) -> None:
    """Files and definitions that change count from the next query on, in transactions too."""
    write(tmp_path / "1.parquet", a=[1, 2], b=["x", "y"])
    alike("CREATE VIEW v AS FROM 'FILES/*.parquet'")
    alike("CREATE VIEW w AS SELECT count(*) AS n, max(a) AS m FROM v")
    alike("FROM w")
    write(tmp_path / "2.parquet", a=[7], b=["z"])
    alike("FROM w")
    alike("SELECT b FROM v ORDER BY a")
    write(tmp_path / "2.parquet", a=[8, 9, 10], b=["z", "z", "z"])
    alike("FROM w")
    alike("CREATE OR REPLACE VIEW v AS SELECT a * 10 AS a FROM 'FILES/2.parquet'")
    alike("FROM w")
    alike("SELECT b FROM v")  # which has no such column any more
    alike("BEGIN")
    alike("CREATE OR REPLACE VIEW v AS SELECT a * 100 AS a FROM 'FILES/1.parquet'")
    alike("FROM w")
    alike("ROLLBACK")
    alike("FROM w")
    alike("BEGIN")
    alike("CREATE OR REPLACE VIEW v AS SELECT a + 1 AS a FROM 'FILES/1.parquet'")
    alike("COMMIT")
    alike("FROM w")
    alike("CREATE TEMP VIEW v AS SELECT -a AS a FROM 'FILES/1.parquet'")  # comes before the other
    alike("FROM w")
    alike("DROP VIEW temp.v")
    alike("FROM w")
    write(tmp_path / "1.parquet", a=["other", "type"])
    alike("FROM w")
    write(tmp_path / "1.parquet", a=[5])
    alike("FROM w")
    (tmp_path / "1.parquet").unlink()
    alike("FROM w")
    alike("DROP VIEW v")
    alike("FROM v")


def test_views_of_another_session(tmp_path: Path) -> None:
    """What one session defines, others read; temporary views are its own."""
    for number in (1, 2):
        write(tmp_path / f"{number}.parquet", a=[number])
    with connected() as session:
        other = session.new_session()
        other.sql("SET TimeZone = 'Asia/Tokyo'")
        for number in (1, 2):
            session.sql(f"CREATE OR REPLACE VIEW v AS FROM '{tmp_path}/{number}.parquet'")
            for reader in (session, other):
                assert [(number,)] == [tuple(row) for row in reader.sql("FROM v").collect()]
                assert in_stages(reader, "FROM v")
        other.sql(f"CREATE TEMP VIEW v AS FROM '{tmp_path}/1.parquet'")
        assert [2, 1] == [s.sql("FROM v").collect()[0][0] for s in (session, other)]


def test_relative_paths(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in DuckDB, they are relative to where the program works when a query runs."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "f.parquet", a=[name])
    with connected() as session:
        for name in ("one", "two", "one"):
            monkeypatch.chdir(tmp_path / name)
            session.sql("CREATE VIEW IF NOT EXISTS v AS FROM 'f.parquet'")
            assert [name] == session.sql("FROM v").to_arrow()["a"].to_pylist()
            assert in_stages(session, "FROM v")


def test_outputs_over_views_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those over the files, until one is replaced."""
    monkeypatch.setattr(names, "_SETTLED_S", 0.0)  # for how long files count as being written
    file, groups = tmp_path / "f.parquet", "SELECT g, count(*) AS n FROM {} GROUP BY g ORDER BY g"
    with connected("session") as session:
        for values in ([1, 2, 2], [3, 3, 3, 4]):
            write(file, g=values)
            session.read.parquet(str(tmp_path)).create_or_replace_temp_view("v")
            session.sql("CREATE OR REPLACE VIEW w(g) AS FROM v")
            runs = [session.sql(groups.format(name)).profile() for name in (f"'{file}'", "v", "w")]
            assert [True, False, False] == [run.metrics.tasks > 0 for run in runs]
            expected = sorted(Counter(values).items())
            assert expected == [tuple(row) for row in session.sql(groups.format("w")).collect()]
