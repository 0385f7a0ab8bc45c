"""Queries over files in object stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import s3_server
from s3_server import DENIED, EXPIRED, KEY, SECRET, SLOW_DOWN, S3Server

import minishark
from minishark.errors import DataError, MinisharkError, QueryError, UnsupportedError
from minishark.session.session import Session

ROWS = 9000
CREATE = (
    "CREATE TABLE t AS SELECT i, i % 3 AS k, 'text ' || i AS text, "
    "DATE '2026-01-01' + (i % 7)::INT AS d, CASE WHEN i % 5 > 0 THEN i END AS n "
    f"FROM range({ROWS}) r(i)"
)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server.running() as running:
        yield running


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that are in the store, too."""
    folder = tmp_path_factory.mktemp("files")
    with duckdb.connect() as connection:
        connection.execute(CREATE)
        connection.execute(f"COPY t TO '{folder}/one.parquet' (ROW_GROUP_SIZE 3000)")
        connection.execute(f"COPY t TO '{folder}/one.csv.gz' (HEADER)")
        connection.execute(f"COPY t TO '{folder}/one.ndjson'")
        connection.execute(f"COPY t TO '{folder}/p' (FORMAT parquet, PARTITION_BY (k))")
    return folder


@pytest.fixture(scope="module")
def bucket(server: S3Server, local: Path) -> str:
    uri = server.make_bucket()
    for file in local.rglob("*.*"):
        server.put(f"{uri}/{file.relative_to(local)}", file.read_bytes())
    return uri


@pytest.fixture(scope="module")
def session(server: S3Server) -> Iterator[Session]:
    """Two executors, in this process."""
    with minishark.connect(
        in_process=True, nodes=2, partitions=2, single_task_rows=0, storage_options=server.options
    ) as session:
        yield session


@pytest.fixture(autouse=True)
def no_faults(server: S3Server) -> Iterator[None]:
    server.requests.clear()
    yield
    server.fault = lambda _: None


QUERIES = [
    "SELECT count(*), sum(i), min(text), sum(n) FROM '{}/one.parquet'",
    "SELECT one.i, x.text FROM '{0}/one.parquet' JOIN '{0}/one.parquet' x USING (i) WHERE i < 9",
    "SELECT count(*) FROM read_parquet('{}/*.parquet') WHERE d = DATE '2026-01-03'",
    "SELECT k, count(*), sum(i) FROM read_parquet('{}/p/**/*.parquet') GROUP BY k",
    "SELECT k, i FROM read_parquet('{}/p/*/*', hive_partitioning = true) WHERE k = 1 AND i < 9",
    "SELECT * FROM read_parquet(['{0}/one.parquet', '{0}/one.parquet']) AS x WHERE x.i = 7",
    "SELECT count(*), sum(i), max(d), count(n) FROM '{}/one.csv.gz'",
    "SELECT count(*), sum(i::INT) FROM read_csv('{}/one.csv.gz', header=true, all_varchar=true)",
    "SELECT count(*), sum(i), max(text), count(n) FROM read_json('{}/one.ndjson')",
    "WITH a AS (FROM '{}/one.parquet') SELECT count(*) FROM a WHERE i IN (SELECT 5)",
    "SELECT max(i) FROM (FROM '{}/one.parquet' LIMIT 5) HAVING max(i) < 0",
    "DESCRIBE SELECT * FROM '{}/one.parquet'",
]


@pytest.mark.sample(4)
@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_local_files(
    session: Session, bucket: str, local: Path, query: str
) -> None:
    expected = duckdb.sql(query.format(local)).fetchall()
    answer = [tuple(row) for row in session.sql(query.format(bucket)).collect()]
    assert sorted(map(repr, expected)) == sorted(map(repr, answer))


@pytest.mark.slow
def test_executors_know_the_store_from_the_options_only(
    server: S3Server, bucket: str, local: Path
) -> None:
    """In processes of their own."""
    query = "SELECT k, count(*), sum(i) FROM read_parquet('{}/p/**/*.parquet') GROUP BY k"
    with minishark.connect(
        nodes=2, partitions=2, single_task_rows=0, storage_options=server.options
    ) as session:
        test_answers_are_those_of_local_files(session, bucket, local, query)


@pytest.mark.slow
def test_statements_and_readers_take_uris(session: Session, bucket: str) -> None:
    total = [(ROWS, sum(range(ROWS)))]

    def sums(table: str) -> list[tuple[Any, ...]]:
        return [
            tuple(row) for row in session.sql(f"SELECT count(*), sum(i) FROM {table}").collect()
        ]

    session.sql(f"CREATE TABLE a AS FROM '{bucket}/one.parquet'")
    assert total == sums("a")
    session.sql(f"INSERT INTO a SELECT * FROM '{bucket}/one.parquet'")
    assert [(2 * ROWS, 2 * total[0][1])] == sums("a")
    session.sql(f"CREATE VIEW v AS FROM read_parquet('{bucket}/p/**/*.parquet')")
    assert total == sums("v")
    session.sql("DROP VIEW v")
    session.create_table("b", f"{bucket}/p/")
    assert total == sums("b")
    session.create_table("c", f"{bucket}/one.csv.gz", partition_by="k")
    assert total == sums("c")
    assert ROWS == session.read.parquet(f"{bucket}/one.parquet").count()
    assert ROWS == session.read.csv(f"{bucket}/one.csv.gz", header=True).count()
    assert ROWS == session.read.json(f"{bucket}/one.ndjson").filter("i >= 0").count()
    answer = session.sql("SELECT count(*) FROM read_parquet($1)", [f"{bucket}/one.parquet"])
    assert [(ROWS,)] == [tuple(row) for row in answer.collect()]
    for name in "abc":
        session.drop_table(name)


def fresh(server: S3Server, **options: Any) -> Session:
    """A session whose host has no files yet."""
    settings = {"in_process": True, "nodes": 1, "storage_options": server.options}
    return minishark.connect(**settings | options)


def test_a_filter_on_a_folder_reads_its_files_only(server: S3Server, bucket: str) -> None:
    """And the metadata of the first file, which tells the columns."""
    with fresh(server) as session:
        sql = f"SELECT sum(i) FROM read_parquet('{bucket}/p/**/*.parquet') WHERE k = 2"
        expected = sum(i for i in range(ROWS) if i % 3 == 2)
        assert [(expected,)] == [tuple(row) for row in session.sql(sql).collect()]
        read = {path.split("/")[3] for path in server.read(".parquet")}
        assert {"k=0", "k=2"} == read
        assert 1 == sum("k=0" in request.path for request in server.requests)
        server.requests.clear()
        session.sql(sql.replace("sum(i)", "count(i)")).collect()
        assert set() == server.read()


def test_columns_that_are_not_needed_are_not_fetched(server: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    duckdb.sql(
        f"COPY (SELECT i, hash(i) AS a, hash(i + 1) AS b FROM range(200000) r(i)) TO '{path}'"
    )
    uri = server.make_bucket()
    server.put(f"{uri}/wide.parquet", path.read_bytes())
    with fresh(server) as session:
        session.sql(f"SELECT bit_xor(a) FROM '{uri}/wide.parquet'").collect()
        fetched = sum(_length(request.range) for request in server.requests if request.range)
    assert fetched < 0.6 * path.stat().st_size


def _length(header: str) -> int:
    first, _, last = header.removeprefix("bytes=").partition("-")
    return int(last) - int(first) + 1


@pytest.mark.slow
def test_a_file_that_is_replaced_is_read_anew(server: S3Server, tmp_path: Path) -> None:
    uri = server.make_bucket()
    with fresh(server) as session:
        for number in range(3):
            path = tmp_path / f"{number}.parquet"
            duckdb.sql(f"COPY (SELECT {number} AS i FROM range({number + 1})) TO '{path}'")
            server.put(f"{uri}/a.parquet", path.read_bytes())
            answer = session.sql(f"SELECT count(*), max(i) FROM '{uri}/a.parquet'").collect()
            assert [(number + 1, number)] == [tuple(row) for row in answer]


@pytest.mark.slow
def test_a_file_that_is_replaced_in_mid_query_is_noticed(server: S3Server, tmp_path: Path) -> None:
    """The query is planned again; if the file is replaced each time, the error names it."""
    uri = server.make_bucket()
    contents = []
    for number in range(2):
        path = tmp_path / f"{number}.parquet"
        columns = "hash(i + {0}) AS a, hash(i * {0}) AS b".format(number + 1)
        duckdb.sql(f"COPY (SELECT i, {columns} FROM range(300000) r(i)) TO '{path}'")
        contents.append(path.read_bytes())
    sums = [
        duckdb.sql(f"SELECT bit_xor(a), bit_xor(b) FROM '{tmp_path}/{n}.parquet'").fetchall()
        for n in range(2)
    ]
    server.put(f"{uri}/a.parquet", contents[0])
    reads, often = [0], [0]

    def replace(request: s3_server.Request) -> None:
        if request.method == "GET" and request.range:
            reads[0] += 1
            if reads[0] in often:
                server.fault = lambda _: None
                server.put(f"{uri}/a.parquet", contents[reads[0] % 2])
                server.fault = replace

    sql = f"SELECT bit_xor(a), bit_xor(b) FROM '{uri}/a.parquet'"
    for once in range(1, 4):
        often = [once]
        server.put(f"{uri}/a.parquet", contents[0])
        reads[0] = 0
        server.fault = replace
        with fresh(server) as session:
            assert [tuple(row) for row in session.sql(sql).collect()] in sums
        server.fault = lambda _: None
    often = list(range(1, 1000))
    server.fault = replace
    with fresh(server) as session, pytest.raises(DataError, match=r"a\.parquet was replaced"):
        session.sql(sql).collect()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("fault", "text"), [(EXPIRED, "credentials have expired"), (DENIED, "access is denied")]
)
def test_errors_in_tasks_name_the_file(
    server: S3Server, bucket: str, fault: s3_server.Fault, text: str
) -> None:
    gets = [0]

    def later(request: s3_server.Request) -> s3_server.Fault | None:
        gets[0] += bool(request.range)
        return fault if gets[0] > 1 else None

    server.fault = later
    with fresh(server) as session, pytest.raises(DataError, match=text) as raised:
        session.sql(f"SELECT sum(i), max(text) FROM '{bucket}/one.parquet'").collect()
    assert f"{bucket}/one.parquet" in str(raised.value)
    assert KEY not in str(raised.value)


@pytest.mark.slow
def test_slow_answers_are_asked_for_again(server: S3Server, bucket: str) -> None:
    failed: set[tuple[str, str]] = set()
    lock = threading.Lock()

    def first_time(request: s3_server.Request) -> s3_server.Fault | None:
        with lock:
            key = (request.path, request.range)
            if key in failed:
                return None
            failed.add(key)
            return SLOW_DOWN

    server.fault = first_time
    with fresh(server) as session:
        answer = session.sql(f"SELECT sum(i) FROM read_parquet('{bucket}/p/**/*.parquet')")
        assert [(sum(range(ROWS)),)] == [tuple(row) for row in answer.collect()]
    assert len(failed) > 3


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("sql", "error", "text"),
    [
        ("FROM '{}/none.parquet'", DataError, "There is no file"),
        ("FROM '{}/*/none.parquet'", DataError, "There is no file"),
        ("FROM '{}/one'", QueryError, "does not tell how to read it"),
        ("FROM read_parquet('{}/one.csv.gz')", DataError, "it is not a Parquet file"),
        ("FROM read_parquet('{}/one' || '.parquet')", UnsupportedError, "takes a URI in quotes"),
        ("COPY z FROM '{}/one.parquet'", MinisharkError, "minishark reads files|z does not exist"),
        ("FROM 's3:///x.parquet'", DataError, "name of a bucket"),
        ("FROM 'https://example.com/x.parquet'", DataError, "files are local, or begin with s3://"),
        ("SELECT 'FROM ''{}/none.parquet''' AS x", None, ""),
    ],
)
def test_what_can_not_be_read_is_told(
    session: Session, bucket: str, sql: str, error: type[MinisharkError] | None, text: str
) -> None:
    if error is None:
        assert 1 == session.sql(sql.format(bucket)).count()
        return
    with pytest.raises(error, match=text):
        session.sql(sql.format(bucket)).collect()


@pytest.mark.slow
def test_no_secret_is_seen(server: S3Server, bucket: str, tmp_path: Path) -> None:
    """Neither in events, plans, metrics, pages, nor in files of the session or its event log."""
    sql = f"SELECT sum(i) FROM read_parquet('{bucket}/p/**/*.parquet')"
    audit, log = tmp_path / "audit", tmp_path / "log"
    with fresh(server, in_process=False, event_log=log, audit=audit) as session:
        frame = session.sql(sql)
        shown = [repr(frame.collect()), repr(session), repr(frame.metrics)]
        shown.append(repr(session.sql(f"EXPLAIN ANALYZE {sql}").collect()))
        engine, cluster = session._runtime.engine, session._runtime.cluster
        environment = engine.environment(session._runtime.scope)
        shown += [repr(engine.events.since(0)), repr(engine.sources), repr(environment)]
        files = [*cluster.paths.memory.rglob("*"), *cluster.paths.disk.rglob("*")]
        assert any(file.parent.name != "objects" for file in files)
        for file in files:
            if file.is_file():
                shown.append(file.read_bytes().decode("latin-1"))
    shown += [file.read_text() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(audit.iterdir())
    assert any("SELECT sum(i) FROM" in file.read_text() for file in log.rglob("*"))
    assert not any(SECRET in text for text in shown)
    assert not cluster.paths.disk.exists()


def test_row_groups_are_left_out_before_they_are_fetched(
    server: S3Server, bucket: str, session: Session, tmp_path: Path
) -> None:
    """And EXPLAIN reads nothing of files that the query does not read."""
    with duckdb.connect() as connection:
        connection.execute(
            "COPY (SELECT i, i % 2 AS k, hash(i) AS h, hash(i + 1) AS g FROM range(200000) r(i)) "
            f"TO '{tmp_path}' (FORMAT parquet, PARTITION_BY (k), ROW_GROUP_SIZE 10240, "
            "OVERWRITE_OR_IGNORE)"
        )
        query = "SELECT count(*), sum(i) FROM {} WHERE k = 1 AND i BETWEEN 50000 AND 50999"
        own = query.format(f"read_parquet('{tmp_path}/**/*.parquet')")
        expected = connection.execute(own).fetchall()
    files = [*tmp_path.rglob("*.parquet")]
    for file in files:
        server.put(f"{bucket}/groups/{file.relative_to(tmp_path)}", file.read_bytes())
    sql = query.format(f"read_parquet('{bucket}/groups/**/*.parquet')")
    server.requests.clear()
    plan = session.sql(f"EXPLAIN {sql}").collect()[0][0]
    assert ", 1 split where k = 1" in plan
    # The columns are those of the first file.
    assert len(server.read(".parquet")) <= 2
    assert expected == [tuple(row) for row in session.sql(sql).collect()]
    (one,) = (file.stat().st_size for file in files if "k=1" in str(file))
    fetched = [
        request.range.removeprefix("bytes=").split("-")
        for request in server.requests
        if request.method == "GET" and "k=1" in request.path
    ]
    assert sum(int(last) - int(first) + 1 for first, last in fetched) < one / 2
    none = f"SELECT count(*) FROM read_parquet('{bucket}/groups/**/*.parquet') WHERE i < 0"
    assert [(0,)] == [tuple(row) for row in session.sql(none).collect()]
