"""Iceberg, Delta and PostgreSQL in queries: functions, readers, loads, refusals."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import s3_server
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from s3_server import S3Server

import minishark
from minishark.errors import DataError, MinisharkError, OptionError
from minishark.sources.delta import DeltaSource

ROWS = pa.table({"id": range(1000), "k": [each % 5 for each in range(1000)]})


@pytest.fixture(scope="module")
def session() -> Iterator[minishark.Session]:
    """Two nodes, and tasks for the smallest query."""
    with minishark.connect(in_process=True, nodes=2, partitions=3, single_task_rows=0) as found:
        yield found


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files, one for each `k`."""
    path = tmp_path_factory.mktemp("lake") / "delta"
    write_deltalake(str(path), ROWS, partition_by=["k"])
    return path


@pytest.fixture(scope="module")
def iceberg(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Five files, one for each `k`."""
    folder = tmp_path_factory.mktemp("warehouse")
    catalog = SqlCatalog("test", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}")
    catalog.create_namespace("n")
    table = catalog.create_table("n.t", ROWS.schema)
    with table.update_spec() as update:
        update.add_identity("k")
    table.append(ROWS)
    return table


@pytest.mark.slow
def test_functions_of_sql_read_only_what_a_query_needs(
    session: minishark.Session, delta: Path, iceberg: Table
) -> None:
    """EXPLAIN tells how many parts, and versions are arguments."""
    for scan in (f"delta_scan('{delta}')", f"iceberg_scan('{iceberg.metadata_location}')"):
        query = f"SELECT sum(id) FROM {scan} WHERE k = 3 AND id < 500"
        (row,) = session.sql(query).collect()
        assert sum(range(3, 500, 5)) == row[0]
        assert "1 of 5 splits" in session.sql(f"EXPLAIN {query}").collect()[0][0]
    joined = f"""
        SELECT count(*) FROM delta_scan('{delta}', version = 0) a
        JOIN iceberg_scan('{iceberg.metadata_location}') b USING (id) WHERE a.k = b.k"""
    assert 1000 == session.sql(joined).collect()[0][0]


def test_readers_and_loads(session: minishark.Session, delta: Path, iceberg: Table) -> None:
    """Frames see what was appended; tables in memory don't."""
    frame = session.read.iceberg(iceberg)
    before = frame.count()
    iceberg.append(ROWS.slice(0, 10))
    assert before + 10 == session.read.iceberg(iceberg).count()
    session.create_table("loaded", DeltaSource(delta))
    assert 1000 == session.sql("FROM loaded").count()
    assert 200 == session.read.delta(delta).filter("k = 1").count()


def test_wrong_arguments_are_errors_that_say_so(session: minishark.Session, delta: Path) -> None:
    with pytest.raises(OptionError, match="colour"):
        session.sql(f"FROM delta_scan('{delta}', colour = 7)").collect()
    with pytest.raises(DataError, match="version"):
        session.sql(f"FROM delta_scan('{delta}', version = 7)").collect()
    with pytest.raises(OptionError, match="must not have a password") as caught:
        session.sql("FROM postgres_scan('postgresql://u:pw9@h/d', 'public', 't')").collect()
    assert "pw9" not in str(caught.value)


def test_constants_of_wrong_types_are_the_errors_of_tables_in_memory(
    session: minishark.Session, delta: Path, iceberg: Table
) -> None:
    """Whether they are asked of a source or not."""
    session.create_table("in_memory", ROWS)
    scans = ("in_memory", f"delta_scan('{delta}')", f"iceberg_scan('{iceberg.metadata_location}')")
    for where in ("k = 'abc'", "k < 'x' AND k > 0", "k IN ('1', 'y')", "k = '2 January'"):
        errors = []
        for scan in scans:
            with pytest.raises(MinisharkError) as caught:
                session.sql(f"SELECT count(*) FROM {scan} WHERE {where}").collect()
            errors.append((type(caught.value), str(caught.value)))
        assert 1 == len(set(errors)), errors
    session.drop_table("in_memory")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """An S3 server that the environment says how to reach."""
    with s3_server.running() as found, pytest.MonkeyPatch.context() as patch:
        for name, text in {**found.environment, "AWS_ALLOW_HTTP": "true"}.items():
            patch.setenv(name, text)
        yield found


@pytest.mark.slow
def test_of_an_object_store_only_the_needed_files_are_asked_for(server: S3Server) -> None:
    """A filter on the column of a partition reads one data file; another query nothing again."""
    bucket = server.make_bucket()
    write_deltalake(f"{bucket}/delta", ROWS, partition_by=["k"])
    with tempfile.TemporaryDirectory() as folder:
        catalog = SqlCatalog(
            "s3",
            uri=f"sqlite:///{folder}/c.db",
            warehouse=f"{bucket}/warehouse",
            **{"s3.endpoint": server.url, "s3.region": "us-east-1"},
        )
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", ROWS.schema)
        with table.update_spec() as update:
            update.add_identity("k")
        table.append(ROWS)
    with minishark.connect(in_process=True, nodes=1, single_task_rows=0) as session:
        scans = (f"delta_scan('{bucket}/delta')", f"iceberg_scan('{table.metadata_location}')")
        for scan in scans:
            query = f"SELECT sum(id) FROM {scan} WHERE k = 3"
            server.requests.clear()
            assert sum(range(3, 1000, 5)) == session.sql(query).collect()[0][0]
            assert 1 == len(server.read(".parquet"))
            server.requests.clear()
            assert 200 == session.sql(f"SELECT count(id) FROM {scan} WHERE k = 3").collect()[0][0]
            assert not server.read(".parquet")
