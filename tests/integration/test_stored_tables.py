"""Iceberg and Delta tables, and warehouses, in buckets that only the session's options reach."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
import s3_server
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table.update import SetPropertiesUpdate
from s3_server import DENIED, EXPIRED, KEY, SECRET, S3Server

import minishark
from minishark.errors import DataError, MinisharkError
from minishark.sources.delta import DeltaSource
from minishark.sources.filesystems import StoreAccess
from minishark.sources.iceberg import IcebergSource
from minishark.sources.store_settings import (
    access_of_properties,
    delta_options,
    iceberg_properties,
)
from minishark.tables.warehouse import stored_catalog
from minishark.tables.warehouse.stored_catalog import StoredCatalog

ROWS = pa.table({"id": range(1000), "k": [each % 5 for each in range(1000)]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    """A server of which the environment says nothing."""
    with s3_server.running() as found, pytest.MonkeyPatch.context() as patch:
        for name in found.environment:
            patch.delenv(name, raising=False)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield found


@pytest.fixture
def bucket(server: S3Server) -> str:
    return server.make_bucket()


def properties(server: S3Server) -> dict[str, str]:
    """As PyIceberg takes them."""
    return {
        "s3.endpoint": server.url,
        "s3.region": "us-east-1",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
    }


def catalog(server: S3Server, bucket: str) -> StoredCatalog:
    return StoredCatalog("test", warehouse=f"{bucket}/lake", **properties(server))


def write_tables(server: S3Server, bucket: str) -> str:
    """A Delta and an Iceberg table, of five files each; where the latter's metadata is."""
    options = {**server.options, "aws_allow_http": "true"}
    write_deltalake(f"{bucket}/delta", ROWS, partition_by=["k"], storage_options=options)
    found = catalog(server, bucket)
    found.create_namespace("n")
    table = found.create_table("n.t", ROWS.schema)
    with table.update_spec() as update:
        update.add_identity("k")
    table.append(ROWS)
    return table.metadata_location


@pytest.mark.slow
def test_tables_are_reached_with_the_options_of_the_session_or_their_own(
    server: S3Server, bucket: str
) -> None:
    """Hosts fetch their files, in several tasks; credentials are asked for with each statement."""
    location = write_tables(server, bucket)
    asked: list[int] = []

    def options() -> dict[str, str]:
        asked.append(1)
        return server.options

    one = {"in_process": True, "nodes": 1, "single_task_rows": 0}
    with minishark.connect(**one, storage_options=options) as session:
        for scan in (f"delta_scan('{bucket}/delta')", f"iceberg_scan('{location}')"):
            query = f"SELECT sum(id) FROM {scan} WHERE k = 3"
            server.requests.clear()
            assert sum(range(3, 1000, 5)) == session.sql(query).collect()[0][0]
            assert 1 == len(server.read(".parquet"))
            before = len(asked)
            server.requests.clear()
            assert 200 == session.sql(f"SELECT count(id) FROM {scan} WHERE k = 3").collect()[0][0]
            assert len(asked) > before
            assert not server.read(".parquet")
            plan = session.sql(f"EXPLAIN {query}").collect()[0][0]
            assert "where k = 3" in plan
            assert SECRET not in plan
        server.fault = lambda request: EXPIRED if "delta" in request.path else None
        with pytest.raises(DataError, match=f"{bucket}/delta") as raised:
            session.sql(f"SELECT count(*) FROM delta_scan('{bucket}/delta')").collect()
        assert SECRET not in str(raised.value)
        server.fault = lambda _: None
    with minishark.connect(**one) as session:
        sources = (
            DeltaSource(f"{bucket}/delta", storage_options=server.options),
            IcebergSource(location, properties=properties(server)),
            IcebergSource(catalog(server, bucket).load_table("n.t")),
        )
        for number, source in enumerate(sources):
            assert 200 == session.read.source(source).filter("k = 3").count()
            session.create_table(f"t{number}", source)
            assert 1000 == session.table(f"t{number}").count()
        assert SECRET not in repr(sources)


def test_settings_have_the_names_of_each_library() -> None:
    uri = "s3://b/t"
    settings = {"aws_access_key_id": "A", "secret_access_key": "S", "AWS_ENDPOINT_URL": "http://h"}
    access = StoreAccess({"s3://b": settings})
    theirs = {"s3.access-key-id": "A", "s3.secret-access-key": "S", "s3.endpoint": "http://h"}
    assert theirs == iceberg_properties(uri, access)
    assert {} == iceberg_properties("s3://c/t", access)
    assert {} == iceberg_properties("/b/t", access)
    ours = {"access_key_id": "A", "secret_access_key": "S", "endpoint": "http://h"}
    found = access_of_properties(uri, theirs)
    assert found is not None
    assert ours == found.of(uri)
    assert StoreAccess() == access_of_properties(uri, {"type": "sql", "s3.connect-timeout": "7"})
    assert access_of_properties(uri, {**theirs, "s3.role-arn": "arn"}) is None
    assert {
        "aws_access_key_id": "B",
        "aws_secret_access_key": "S",
        "aws_endpoint": "http://h",
        "allow_http": "true",
    } == delta_options(uri, access, {"aws_access_key_id": "B"})


@pytest.mark.slow
def test_a_warehouse_in_a_bucket(server: S3Server, bucket: str) -> None:
    """What one session writes another one reads, and PyIceberg, too."""
    lake = f"{bucket}/lake"
    with minishark.connect(
        in_process=True, nodes=2, storage_options=server.options, warehouse=lake
    ) as session:
        for sql in (
            "CREATE TABLE warehouse.t AS SELECT i, i % 5 AS k FROM range(1000) AS r(i)",
            "DELETE FROM warehouse.t WHERE i < 10",
            "UPDATE warehouse.t SET k = 9 WHERE i < 20",
            "INSERT INTO warehouse.t VALUES (5000, 1)",
            "CREATE SCHEMA s",
            "CREATE TABLE s.u (a INTEGER)",
            "ALTER TABLE s.u ADD COLUMN b VARCHAR",
            "INSERT INTO s.u VALUES (1, 'x')",
            "ALTER TABLE s.u RENAME TO v",
            "CREATE TABLE s.gone AS SELECT 1 AS one",
            "DROP TABLE s.gone",
            "VACUUM",
        ):
            session.sql(sql).collect()
        with pytest.raises(MinisharkError):
            session.sql("CREATE TABLE s.w AS SELECT error('no') AS x").collect()
    assert not [key for key in server.keys(bucket) if "gone" in key or "/w-" in key]
    with minishark.connect(
        in_process=True, nodes=1, storage_options=lambda: server.options, warehouse=lake
    ) as session:
        query = "SELECT count(*), sum(i), sum(k) FROM warehouse.t"
        expected = (991, sum(range(10, 1000)) + 5000, sum(i % 5 for i in range(20, 1000)) + 91)
        assert [expected] == [tuple(row) for row in session.sql(query).collect()]
        assert [(1, "x")] == [tuple(row) for row in session.sql("FROM s.v").collect()]
        server.fault = lambda _: DENIED
        with pytest.raises(MinisharkError, match=r"access is denied") as raised:
            session.sql(query).collect()
        assert lake in str(raised.value)
        assert SECRET not in str(raised.value)
        server.fault = lambda _: None
    theirs = load_catalog(
        "any",
        **{"py-catalog-impl": "minishark.tables.warehouse.stored_catalog.StoredCatalog"},
        warehouse=lake,
        **properties(server),
    )
    assert 991 == theirs.load_table("main.t").scan().to_arrow().num_rows
    assert SECRET.encode() not in b"".join(server.contents(bucket).values())


@pytest.mark.slow
def test_writers_of_one_catalog_lose_nothing(server: S3Server, bucket: str) -> None:
    """Each change is made once, on top of all others; of two commits to a table one fails."""
    catalog(server, bucket).create_namespace("n")
    failed: list[BaseException] = []

    def write(number: int) -> None:
        own = catalog(server, bucket)
        try:
            for each in range(3):
                own.create_namespace(f"n{number}-{each}")
                own.register_table(f"n.t{number}-{each}", f"{bucket}/{uuid.uuid4()}", False)
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    with pytest.MonkeyPatch.context() as patch:
        # Without a look at the metadata, which is not there.
        patch.setattr(StoredCatalog, "load_table", lambda *_: None)
        threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    entries = catalog(server, bucket).entries()
    assert 19 == len(entries.namespaces)
    assert 18 == len(entries.tables["n"])
    assert 18 == len({*entries.tables["n"].values()})


@pytest.mark.slow
def test_a_commit_to_an_older_version_fails(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer is faster at the last moment: when the metadata has been written."""
    mine, theirs = catalog(server, bucket), catalog(server, bucket)
    mine.create_namespace("n")
    first = mine.create_table("n.t", ROWS.schema)
    second = theirs.load_table("n.t")
    first.append(ROWS.slice(0, 10))
    write = StoredCatalog._write_metadata

    def late(*given: Any) -> None:
        monkeypatch.setattr(StoredCatalog, "_write_metadata", staticmethod(write))
        first.append(ROWS.slice(0, 5))
        write(*given)

    monkeypatch.setattr(
        StoredCatalog, "_write_metadata", staticmethod(lambda *a, **k: late(*a, *k.values()))
    )
    with pytest.raises(CommitFailedException, match="updated meanwhile"):
        theirs.commit_table(second, (), (SetPropertiesUpdate(updates={"a": "b"}),))
    assert 15 == mine.load_table("n.t").scan().to_arrow().num_rows
    with pytest.raises(TableAlreadyExistsError):
        theirs.create_table("n.t", ROWS.schema)
    with pytest.raises(NamespaceNotEmptyError):
        mine.drop_namespace("n")
    mine.rename_table("n.t", "n.u")
    with pytest.raises(NoSuchTableError):
        theirs.load_table("n.t")
    mine.drop_table("n.u")
    mine.drop_namespace("n")
    with pytest.raises(NoSuchNamespaceError):
        theirs.list_tables("n")


def test_a_change_whose_answer_was_lost_is_made_once(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is repeated then, and refused, as the file is a newer one by now."""
    real = stored_catalog.replace_data
    calls: list[bool] = []

    def lost(data: bytes, uri: str, version: str, access: StoreAccess) -> bool:
        calls.append(real(data, uri, version, access))
        return calls[-1] and len(calls) > 1

    monkeypatch.setattr(stored_catalog, "replace_data", lost)
    catalog(server, bucket).create_namespace("n")
    assert [("n",)] == catalog(server, bucket).list_namespaces()
    assert [True] == calls
