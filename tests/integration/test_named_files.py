"""Files that queries name: distributed over them where that is exact, whole where it is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import minishark
from minishark.errors import DataError, ExecutionError, QueryError
from minishark.query.run import QueryRun
from minishark.session.session import Session


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet files of one kind, of another, in folders that name values, and text."""
    folder = tmp_path_factory.mktemp("files")
    with duckdb.connect() as con:

        def write(name: str, select: str, options: str = "FORMAT parquet") -> None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            con.execute(f"COPY ({select}) TO '{folder / name}' ({options})")

        rows = "SELECT i, i % 7 AS k, 's' || i AS s, [i, NULL] AS l FROM range"
        write("a.parquet", f"{rows}(300_000) r(i)", "FORMAT parquet, ROW_GROUP_SIZE 20_000")
        write("b.parquet", f"{rows}(300_000, 400_000) r(i)")
        write("none.parquet", f"{rows}(0) r(i)")
        write("kinds/x.parquet", "SELECT 1 AS a, 'x' AS b")
        write("kinds/y.parquet", "SELECT 2 AS b, 3 AS c")
        write("hive/year=2001/z.parquet", "SELECT 1 AS a")
        write("text.csv", "SELECT i FROM range(5) r(i)", "FORMAT csv")
        write("it''s odd.parquet".replace("''", "_"), "SELECT 5 AS five")
    return folder


@pytest.fixture(scope="module", params=[2, 5])
def session(request: pytest.FixtureRequest, files: Path) -> Iterator[Session]:
    """A session whose program works in the files' folder."""
    before = Path.cwd()
    os.chdir(files)
    try:
        with minishark.connect(
            in_process=True, nodes=1, executors_per_node=2, partitions=request.param,
            single_task_rows=0,
        ) as session:  # fmt: skip
            yield session
    finally:
        os.chdir(before)


DISTRIBUTED = [
    "SELECT k, count(*), sum(i), min(s) FROM '[ab].parquet' GROUP BY k ORDER BY k",
    "FROM 'a.parquet' LIMIT 5 OFFSET 3",
    "SELECT i, s FROM read_parquet('[ab].parquet')",
    "SELECT a.i, z.s FROM 'a.parquet' JOIN PARQUET_SCAN ( 'b.parquet' ) z ON a.i + 300_000 = z.i",
    "SELECT read_parquet.i FROM read_parquet('a.parquet') WHERE i < 5",
    "WITH q AS (FROM 'a.parquet') SELECT count(*) FROM q, q r WHERE q.i = r.i + 1",
    'SELECT x.c FROM "a.parquet" AS x(a, b, c, d) WHERE b = 4 ORDER BY a DESC LIMIT 3',
    "SELECT count(*) FROM 'none.parquet'",
    "SELECT count(*), 'b.parquet' FROM './a.parquet' WHERE EXISTS (FROM 'it_s odd.parquet')",
    "SELECT sum(i) FROM (SELECT i FROM 'b.parquet' UNION ALL SELECT i FROM 'a.parquet')",
    "SELECT year, a FROM 'hive/*/*.parquet'",
    "SELECT count(*), 'é' FROM 'b.parquet'",
    "SELECT b, c FROM read_parquet('kinds/*.parquet', union_by_name = true) ORDER BY ALL",
    "SELECT sum(i) FROM read_parquet(['b.parquet', 'a.parquet'])",
    "SELECT count(*) FROM 'text.csv'",
]
WHOLE = [
    "SELECT sum(i) FROM read_parquet('b.parquet', filename = true) WHERE filename LIKE '%b%'",
    "SELECT sum(i) FROM read_csv('text.csv', ignore_errors = true)",
    "SELECT parse_filename(filename), count(*) FROM '[ab].parquet' GROUP BY 1 ORDER BY 1",
    "SELECT file_row_number FROM 'a.parquet' LIMIT 3",
    "FROM 'text.csv' UNION ALL TABLE 'text.csv'",
    "SELECT column_name, min, max FROM (SUMMARIZE 'text.csv')",
]


@pytest.mark.sample(20)
@pytest.mark.parametrize("sql", DISTRIBUTED + WHOLE)
def test_answers_over_files_are_duckdbs(session: Session, sql: str) -> None:
    """Rows, their order, names and types are those of DuckDB over the same files."""
    frame = session.sql(sql)
    with duckdb.connect() as con:
        expected = con.sql(sql).to_arrow_table()
    found = frame.to_arrow()
    if " JOIN " in sql:
        expected, found = expected.sort_by("i"), found.sort_by("i")
    assert expected == found
    assert ("Statement" in frame.plan_text("physical")) == (sql in WHOLE)


def test_large_files_are_cut(session: Session) -> None:
    """Files give as many tasks as the session has partitions, if they have the rows."""
    frame = session.sql("SELECT count(*) FROM 'a.parquet'")
    frame.to_arrow()
    first = frame.metrics().by_stage[0]
    assert min(3, session._runtime.engine.planner.options.partitions) == first.tasks
    assert [] == session.tables


def test_files_that_change_are_read_anew(session: Session, tmp_path: Path) -> None:
    """A query sees what lies there when it runs, not what did when it was planned."""
    file = tmp_path / "changing.parquet"
    frame = None
    for rows in (5, 700):
        pq.write_table(pa.table({"i": range(rows)}), file)
        frame = frame or session.sql(f"SELECT count(*) AS n, max(i) AS m FROM '{file}'")
        assert [{"n": rows, "m": rows - 1}] == frame.to_arrow().to_pylist()
    file.unlink()
    assert frame is not None
    with pytest.raises(QueryError):
        frame.to_arrow()


def test_settings_say_how_files_are_read(session: Session, tmp_path: Path) -> None:
    """A setting that changes the columns of a file counts from the next query on."""
    file = tmp_path / "binary.parquet"
    pq.write_table(pa.table({"b": pa.array([b"x"], pa.binary())}), file)
    try:
        for text, type_ in ((True, "VARCHAR"), (False, "BLOB")):
            session.sql(f"SET binary_as_string = {text}")
            answer = session.sql(f"SELECT typeof(b) AS t FROM '{file}'").to_arrow()
            assert [{"t": type_}] == answer.to_pylist()
    finally:
        session.sql("RESET binary_as_string")


@pytest.mark.sample(4)
@pytest.mark.parametrize("columns", [("z",), ("i", "s", "z"), ("s", "i")], ids=",".join)
@pytest.mark.parametrize("streamed", [False, True], ids=["at once", "piece by piece"])
def test_columns_that_change_while_a_query_runs(
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    columns: tuple[str, ...],
    *,
    streamed: bool,
) -> None:
    """A file that is known by its time is read anew; what can't be told is an error of ours."""
    file = tmp_path / "changing.parquet"
    run = QueryRun.run
    changes: list[None] = []

    def changed_first(query: QueryRun) -> None:
        if not changes:
            changes.append(pq.write_table(pa.table({name: ["new"] for name in columns}), file))
        run(query)

    def rows(sql: str) -> list[dict[str, object]]:
        changes.clear()
        pq.write_table(pa.table({"i": [1, 2], "s": ["a", "b"]}), file)
        frame = session.sql(sql)
        with monkeypatch.context() as patch:
            patch.setattr(QueryRun, "run", changed_first)
            if streamed:
                return [row for batch in frame.to_batches() for row in batch.to_pylist()]
            return frame.to_arrow().to_pylist()

    assert [dict.fromkeys(columns, "new")] == rows(f"FROM '{file}'")
    with pytest.raises(ExecutionError, match="was planned with i, s"):
        rows(f"FROM read_parquet('{file}', file_row_number = false)")


@pytest.mark.sample(3)
@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_files_that_go_or_come_back_while_a_query_runs(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A removed file is named; one that is replaced again and again is, too; never a mixture."""
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]

    def write(file: Path, value: int) -> None:
        file.unlink(missing_ok=True)
        duckdb.execute(f"COPY (SELECT {value} AS v FROM range(5)) TO '{file}'")

    for file in files:
        write(file, 1)
    frame = session.sql(f"SELECT sum(v)::INTEGER AS s FROM '{tmp_path}/*.{ending}'")
    run = QueryRun.run
    values = iter(range(2, 10))

    def replaced_first(query: QueryRun) -> None:
        write(files[1], next(values))
        run(query)

    def removed_first(query: QueryRun) -> None:
        files[1].unlink(missing_ok=True)
        run(query)

    assert [{"s": 10}] == frame.to_arrow().to_pylist()
    with monkeypatch.context() as patch:
        patch.setattr(QueryRun, "run", replaced_first)
        with pytest.raises(DataError, match=f"b.{ending}"):
            frame.to_arrow()
    write(files[1], 3)
    assert [{"s": 20}] == frame.to_arrow().to_pylist()
    with monkeypatch.context() as patch:
        patch.setattr(QueryRun, "run", removed_first)
        assert [{"s": 5}] == frame.to_arrow().to_pylist(), "what is there when it is planned again"
    assert [{"s": 5}] == frame.to_arrow().to_pylist()


def test_a_broken_file_fails_its_query_only(session: Session, tmp_path: Path) -> None:
    """Data that can't be decoded is an error; the session goes on."""
    file = tmp_path / "broken.parquet"
    pq.write_table(pa.table({"i": range(50_000)}), file, compression="zstd")
    content = bytearray(file.read_bytes())
    content[100:20_000] = bytes(19_900)
    file.write_bytes(content)
    with pytest.raises((ExecutionError, QueryError)):
        session.sql(f"SELECT sum(i) FROM '{file}'").to_arrow()
    assert [{"n": 100_000}] == session.sql(
        "SELECT count(*) AS n FROM 'b.parquet'"
    ).to_arrow().to_pylist()


@pytest.mark.sample(2)
def test_names_that_are_not_files(session: Session) -> None:
    """Parts of queries, views and tables come before files of the same name."""
    name = "kinds/x.parquet"
    part = f'WITH "{name}" AS (SELECT 42 AS a) SELECT a FROM "{name}"'
    assert [{"a": 42}] == session.sql(part).to_arrow().to_pylist()
    inner = f"SELECT q.a FROM 'a.parquet' JOIN ({part}) q ON q.a = i"
    assert [{"a": 42}] == session.sql(inner).to_arrow().to_pylist()
    for kind in ("VIEW", "TABLE", "TEMP VIEW", "TEMP TABLE"):
        session.sql(f'CREATE {kind} "{name}" AS SELECT 43 AS a, NULL::VARCHAR AS b')
        assert [{"a": 43, "b": None}] == session.sql(f'FROM "{name}"').to_arrow().to_pylist()
        session.sql(f'DROP {kind.removeprefix("TEMP ")} "{name}"')
    assert [{"a": 1, "b": "x"}] == session.sql(f'FROM "{name}"').to_arrow().to_pylist()


@pytest.mark.slow
def test_relative_paths_are_the_front_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked for where the program works when the query runs, in executors as well."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for folder in ("one", "two"):
        (tmp_path / folder / "f.csv").write_text(f"v\n{folder}\n")
        (tmp_path / folder / "f.json").write_text(f'[{{"v": "{folder}"}}]')
        pq.write_table(pa.table({"v": [folder]}), tmp_path / folder / "f.parquet")
    relations = (
        "'f.csv'",
        "read_csv('./*.csv')",
        "'../two/f.csv'",
        "'f.json'",
        "'f.parquet' USING SAMPLE 1 ROWS",
        "read_parquet(['f.p*'])",
        "'f.parquet'",
        "v",
    )
    monkeypatch.chdir(tmp_path / "one")
    with minishark.connect(nodes=1, executors_per_node=1) as session:
        session.sql("CREATE VIEW v AS FROM 'f.csv'")
        frames = [session.sql(f"SELECT v FROM {relation}") for relation in relations]
        for folder in ("one", "two", "one"):
            monkeypatch.chdir(tmp_path / folder)
            expected = [folder, folder, "two", *[folder] * 5]
            assert expected == [frame.to_arrow()["v"][0].as_py() for frame in frames]
        (tmp_path / "two" / "f.csv").write_text("v\n5\n")
        monkeypatch.chdir(tmp_path / "two")
        assert [{"v": 5}] == frames[0].to_arrow().to_pylist()


@pytest.mark.slow
def test_threads_that_name_one_file(session: Session, tmp_path: Path) -> None:
    """Threads may meet a file for the first time at the same time."""
    threads = 6
    with ThreadPoolExecutor(threads) as pool:
        for number in range(5):
            file = tmp_path / f"{number}.parquet"
            pq.write_table(pa.table({"i": range(100)}), file)
            queries = [f"SELECT sum(i) + {i} AS s FROM '{file}'" for i in range(threads)]
            answers = pool.map(lambda sql: session.sql(sql).to_arrow()["s"].to_pylist(), queries)
            assert [[4950 + i] for i in range(threads)] == list(answers)


def test_patterns_that_find_the_same_files(session: Session, tmp_path: Path) -> None:
    """What one pattern finds later does not concern another that found the same before."""
    pq.write_table(pa.table({"i": [1]}), tmp_path / "a1.parquet")
    several = session.sql(f"SELECT sum(i) AS s FROM '{tmp_path}/a*.parquet'")
    one = session.sql(f"SELECT sum(i) AS s FROM '{tmp_path}/a1.parquet'")
    assert [1, 1] == [frame.to_arrow()["s"][0].as_py() for frame in (several, one)]
    pq.write_table(pa.table({"i": [2]}), tmp_path / "a2.parquet")
    assert [1, 3] == [frame.to_arrow()["s"][0].as_py() for frame in (one, several)]
