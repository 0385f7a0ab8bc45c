"""COPY ... TO: the files that DuckDB would write, written by tasks, all or none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import minishark
from minishark.errors import DataError, MinisharkError, QueryError, TaskFailedError
from minishark.session.session import Session
from minishark.tables import copy as copies

ROWS = 1000


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A session that distributes everything, and a table in four partitions."""
    with minishark.connect(in_process=True, nodes=2, partitions=4, single_task_rows=0) as found:
        rows = pa.table({"a": range(ROWS), "k": [i % 3 for i in range(ROWS)]})
        found.create_table("t", rows, partitions=4)
        yield found


@pytest.fixture
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the same table, on one thread."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT i AS a, i % 3 AS k FROM range({ROWS}) r(i)")
        yield connection


def _files(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def _entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _count(session: Session, sql: str) -> int:
    (count,) = session.sql(sql).to_arrow().column("Count").to_pylist()
    return int(count)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("query", "name", "options"),
    [
        ("t", "x.parquet", ""),
        ("(FROM t ORDER BY a DESC)", "x.csv", "(HEADER false, DELIMITER '|')"),
        ("t (k)", "x.csv.gz", ""),
        ("(FROM t WHERE a < 9)", "x.json", "WITH (ARRAY true)"),
        ("t", "no suffix", ""),
        ("t", "it's.csv", "(FORMAT csv)"),
        ("(SELECT 1 AS a, 2 AS a, 'x' AS \"A b\")", "x.csv", ""),
        ("(FROM t WHERE false)", "x.parquet", "(FORMAT parquet)"),
        ("(WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 9) FROM r)",
         "x.csv", ""),
        ("t", "old form.csv", "CSV HEADER"),
    ],
)  # fmt: skip
def test_one_file_is_what_duckdb_writes(
    session: Session,
    plain: duckdb.DuckDBPyConnection,
    tmp_path: Path,
    query: str,
    name: str,
    options: str,
) -> None:
    """Also where it was there before; the answer is the number of rows."""
    quoted = name.replace("'", "''")
    (tmp_path / name).write_text("older")
    ((expected,),) = plain.execute(
        f"COPY {query} TO '{tmp_path}/plain-{quoted}' {options}"
    ).fetchall()
    assert expected == _count(session, f"COPY {query} TO '{tmp_path}/{quoted}' {options}")
    wanted, found = tmp_path / f"plain-{name}", tmp_path / name
    if name.endswith(("parquet", "gz")):
        rows = [plain.execute(f"FROM '{file}'").fetchall() for file in (wanted, found)]
        assert rows[0] == rows[1]
    else:
        assert wanted.read_bytes() == found.read_bytes()
    assert 2 == len(list(tmp_path.iterdir()))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "options",
    [
        "FORMAT parquet, PER_THREAD_OUTPUT",
        "FORMAT csv, PER_THREAD_OUTPUT true, FILENAME_PATTERN 'part_{i}_of'",
        "FORMAT parquet, PARTITION_BY (k)",
        "FORMAT csv, PARTITION_BY k, FILE_EXTENSION 'txt'",
        "FORMAT json, PARTITION_BY (k), WRITE_PARTITION_COLUMNS",
        "FORMAT parquet, PARTITION_BY (k), FILENAME_PATTERN 'x{i}'",
    ],
)
def test_folders_are_written_by_all_tasks(
    session: Session, plain: duckdb.DuckDBPyConnection, tmp_path: Path, options: str
) -> None:
    """DuckDB's names, with numbers that go on where several tasks write to one folder."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    plain.execute(f"COPY t TO '{theirs}' ({options})")
    assert ROWS == _count(session, f"COPY t TO '{ours}' ({options})")
    names = _files(theirs)
    number = re.compile(r"(?<=data_)0|0(?=_of)|(?<=x)0")
    expected = [number.sub(str(i), name) for name in names for i in range(4)]
    assert sorted(expected) == _files(ours)
    reader = {"parquet": "read_parquet", "csv": "read_csv", "json": "read_json"}
    read = reader[options.split()[1].strip(",")]
    rows = [
        plain.execute(f"FROM {read}('{folder}/**', hive_partitioning = true) ORDER BY a").fetchall()
        for folder in (theirs, ours)
    ]
    assert rows[0] == rows[1]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "pattern",
    ['"part_{i}"', "$$p_{i}$$", "('q_{i}')", "E'q_{i}'", "'it''s_{i}'", "'f{i}_{i}'", "'{uuidv7}'"],
)
def test_no_row_is_lost_however_names_are_given(
    session: Session, tmp_path: Path, pattern: str
) -> None:
    """Each file of each task keeps a name of its own."""
    options = f"FORMAT parquet, PARTITION_BY (k), FILENAME_PATTERN {pattern}"
    assert ROWS == _count(session, f"COPY t TO '{tmp_path}/x' ({options})")
    rows = session.sql(f"SELECT a FROM '{tmp_path}/x/*/*.parquet' ORDER BY a").to_arrow()
    assert list(range(ROWS)) == rows.column("a").to_pylist()


def test_order_goes_on_from_file_to_file(session: Session, tmp_path: Path) -> None:
    """A query's order is that of the files' numbers."""
    session.sql(f"COPY t TO '{tmp_path}/x' (FORMAT parquet, PER_THREAD_OUTPUT)")
    assert list(range(ROWS)) == (
        session.sql(f"SELECT a FROM '{tmp_path}/x/*.parquet'").to_arrow().column("a").to_pylist()
    )


def test_folders_that_are_not_empty(session: Session, tmp_path: Path) -> None:
    """They are refused, replaced, or added to, as the options say."""
    to = f"TO '{tmp_path}/x' (FORMAT csv, PER_THREAD_OUTPUT"
    session.sql(f"COPY t {to})")
    (tmp_path / "x" / "mine.txt").write_text("mine")
    before = _files(tmp_path)
    with pytest.raises(DataError, match="is not empty"):
        session.sql(f"COPY t {to})")
    assert before == _files(tmp_path)
    session.sql(f"COPY (FROM t WHERE a < 0) {to}, OVERWRITE_OR_IGNORE)")
    assert before == _files(tmp_path)
    assert "a,k" == (tmp_path / "x" / "data_0.csv").read_text().strip()
    session.sql(f"COPY t {to}, APPEND)")
    assert 4 == len(set(_files(tmp_path)) - set(before))
    session.sql(f"COPY t {to}, OVERWRITE)")
    assert ["x/data_0.csv", "x/data_1.csv", "x/data_2.csv", "x/data_3.csv"] == _files(tmp_path)


@pytest.mark.parametrize(
    ("query", "target", "error"),
    [
        ("(SELECT CAST('x' || a AS INT) AS b FROM t)", "'x' (PER_THREAD_OUTPUT)", TaskFailedError),
        ("(SELECT CAST('x' || a AS INT) AS b FROM t)", "'x.csv'", TaskFailedError),
        ("t", "'x.csv' (NO_OPTION 1)", QueryError),
        ("t", "'x.csv' (FORMAT nothing)", QueryError),
        ("t", "'x' (PARTITION_BY (zz))", QueryError),
        ("t", "'x' (PARTITION_BY (k), PER_THREAD_OUTPUT)", QueryError),
        ("t", "'no/such/folder/x.csv'", DataError),
        ("t", "'file/x' (PER_THREAD_OUTPUT)", DataError),
        ("t", "'file' (PER_THREAD_OUTPUT)", DataError),
        ("t", "'folder'", DataError),
        ("nothing", "'x.csv'", QueryError),
    ],
)
def test_errors_leave_nothing(
    session: Session,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    target: str,
    error: type[MinisharkError],
) -> None:
    """Whatever is wrong: a typed error, and the folder is as it was."""
    (tmp_path / "file").write_text("file")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        session.sql(f"COPY {query} TO {target}")
    assert ["file", "folder"] == _entries(tmp_path)
    assert ["file"] == _files(tmp_path)


@pytest.mark.parametrize("mode", ["OVERWRITE", "OVERWRITE_OR_IGNORE", "APPEND"])
def test_a_move_that_fails_is_undone(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """What was there is there again, and none of the new files."""
    target = tmp_path / "x"
    to = f"TO '{target}' (FORMAT csv, PARTITION_BY (k)"
    session.sql(f"COPY (FROM t WHERE k < 2 AND a < 10) {to})")
    before = {name: (target / name).read_bytes() for name in _files(target)}
    renames: list[Path] = []
    really = Path.rename

    def rename(self: Path, to: Path) -> Path:
        renames.append(to)
        if len(renames) == 7:
            raise OSError(5, "Input/output error")
        return really(self, to)

    monkeypatch.setattr(copies.Path, "rename", rename)
    with pytest.raises(DataError, match="Input/output error"):
        session.sql(f"COPY t {to}, {mode})")
    assert before == {name: (target / name).read_bytes() for name in _files(target)}
    assert ["x"] == _entries(tmp_path)
    assert ["k=0", "k=1"] == _entries(target)


def test_what_tasks_do_not_write_the_front_end_does(session: Session, tmp_path: Path) -> None:
    """Answers of another form, and rows of statements that are no queries."""
    answer = session.sql(f"COPY t TO '{tmp_path}/x' (PARTITION_BY (k), RETURN_FILES)").to_arrow()
    assert ["Count", "Files"] == answer.column_names
    assert 0 < _count(session, f"COPY (SHOW TABLES) TO '{tmp_path}/tables.csv'")


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_tables_of_all_types_are_written_as_duckdb_writes_them(
    session: Session, tmp_path: Path, format_: str
) -> None:
    """Also of those that Arrow does not know, or that hold more than its types for users do."""
    with duckdb.connect() as connection:
        for ask, name in ((session.sql, "minishark"), (connection.execute, "duckdb")):
            ask("CREATE OR REPLACE TABLE wide AS FROM test_all_types()")
            ask(f"COPY wide TO '{tmp_path}/{name}' (FORMAT {format_})")
            rows = "SELECT (1, 'a') AS r, {'b': [(NULL, 2)]} AS s"
            ask(f"COPY ({rows}) TO '{tmp_path}/{name}.tuple' (FORMAT {format_})")
    written = (tmp_path / "minishark").read_text()
    assert str(-(2**127)) in written
    assert (tmp_path / "duckdb").read_text() == written
    tuples = [(tmp_path / f"{name}.tuple").read_text() for name in ("minishark", "duckdb")]
    assert tuples[0] == tuples[1]


@pytest.mark.parametrize("option", ["RETURN_STATS", "RETURN_FILES"])
def test_what_was_written_is_told_as_duckdb_tells_it(
    session: Session, tmp_path: Path, option: str
) -> None:
    """Files and statistics of columns; sizes alone depend on how rows come to the writer."""

    def told(answer: pa.Table) -> list[str]:
        sizes = r"('(?:column_size_bytes|file_size_bytes)'[,:] '?)\d+"
        return [re.sub(sizes, r"\1", str(row)) for row in answer.to_pylist()]

    rows = "SELECT i, i % 2 AS k, {'a': i} AS s FROM range(10) r(i) ORDER BY i"
    for number, partitions in enumerate(("", "PARTITION_BY (k), ")):
        sql = f"COPY ({rows}) TO '{tmp_path}/x{number}' (FORMAT parquet, {partitions}{option})"
        answer = session.sql(sql).to_arrow()
        target = tmp_path / f"x{number}"
        target.rename(tmp_path / f"minishark{number}")
        with duckdb.connect() as connection:
            expected = connection.sql(sql).to_arrow_table()
        assert expected.schema == answer.schema
        assert told(expected) == told(answer)
