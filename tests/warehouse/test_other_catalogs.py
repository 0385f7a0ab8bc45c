"""A warehouse in a REST catalog, and one whose files are in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
import s3_server
from pyiceberg.catalog.sql import SqlCatalog
from rest_catalog import running

import minishark
from minishark.errors import CatalogError, ExecutionError
from minishark.session.session import Session


def _used(session: Session) -> None:
    """Statements of all kinds."""
    session.sql("CREATE SCHEMA s")
    session.sql("CREATE TABLE s.t AS SELECT i::INTEGER AS a, 'x' AS b FROM range(10) t(i)")
    session.sql("INSERT INTO s.t VALUES (10, 'y')")
    session.sql("DELETE FROM s.t WHERE a < 2; UPDATE s.t SET b = 'z' WHERE a = 2")
    session.sql("ALTER TABLE s.t RENAME TO u; ALTER TABLE s.u RENAME COLUMN b TO c")
    query = "SELECT c, count(*), sum(a)::INTEGER FROM s.u GROUP BY c ORDER BY c"
    found = [tuple(row) for row in session.sql(query).collect()]
    assert found == [("x", 7, 42), ("y", 1, 10), ("z", 1, 2)]
    assert session.tables == ["warehouse.s.u"]


@pytest.mark.slow
def test_a_rest_catalog(tmp_path: Path) -> None:
    catalog = SqlCatalog("served", uri=f"sqlite:///{tmp_path}/c", warehouse=f"file://{tmp_path}/w")
    with (
        running(catalog) as address,
        minishark.connect(in_process=True, nodes=1, warehouse=address) as session,
    ):
        _used(session)
        assert catalog.load_table("s.u").scan().to_arrow().num_rows == 9
        catalog.load_table("s.u").delete("a > 3")
        assert session.table("s.u").count() == 2
        session.sql("DROP TABLE s.u")
        with pytest.raises(CatalogError, match=r"There is no table warehouse\.s\.u"):
            session.table("warehouse.s.u")
    with pytest.raises(ExecutionError, match=r"The catalog of the warehouse http://127\.0\.0\.1"):
        minishark.connect(in_process=True, nodes=1, warehouse=address)


@pytest.mark.slow
def test_files_in_an_object_store(tmp_path: Path) -> None:
    """The session's storage options reach them, from hosts, too; they are in no message."""
    with s3_server.running() as server:
        bucket = server.make_bucket()
        where = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c", "warehouse": bucket}
        with minishark.connect(
            in_process=True, nodes=1, warehouse=where, storage_options=server.options
        ) as session:
            _used(session)
            plan = session.sql("EXPLAIN FROM s.u").to_arrow().column(0)[0].as_py()
            assert s3_server.SECRET not in plan + repr(session)
            keys = server.keys(bucket)
            assert len([key for key in keys if key.endswith(".parquet")]) >= 2
            with pytest.raises(minishark.errors.TaskFailedError, match="no"):
                session.sql(
                    "INSERT INTO s.u SELECT CASE WHEN i < 200000 THEN i ELSE error('no') END, 'w' "
                    "FROM range(300000) t(i)"
                )
            assert server.keys(bucket) == keys
            assert session.table("s.u").count() == 9
