"""The back end of ibis."""

from __future__ import annotations

from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest

from minishark.cli.tpch.queries import load_queries
from minishark.errors import ClusterError
from minishark.session.session import Session

# ibis asks pandas for an option that pandas is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:The 'future.infer_string' option is deprecated")


@pytest.fixture(scope="module")
def ibis() -> Any:
    """The library, which takes most of a second to import: only where these tests run."""
    return pytest.importorskip("ibis")


@pytest.fixture
def backend(ibis: Any, session: Session) -> Any:
    """The back end over the sample; what a test makes is dropped."""
    from minishark.adapters.ibis import Backend

    before = session.tables
    yield Backend.from_connection(session)
    for table in session.tables:
        if table not in before:
            session.drop_table(table)


def test_a_tpch_query_is_duckdbs(ibis: Any, backend: Any, plain: duckdb.DuckDBPyConnection) -> None:
    """TPC-H 3, written as an expression."""
    customer, orders, lineitem = map(backend.table, ("customer", "orders", "lineitem"))
    day = ibis.date("1995-03-15")
    joined = customer.join(orders, customer.c_custkey == orders.o_custkey)
    query = (
        joined.join(lineitem, lineitem.l_orderkey == orders.o_orderkey)
        .filter(lambda t: (t.c_mktsegment == "BUILDING") & (t.o_orderdate < day))
        .filter(lambda t: t.l_shipdate > day)
        .group_by("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(revenue=lambda t: (t.l_extendedprice * (1 - t.l_discount)).sum())
        .order_by(ibis.desc("revenue"), "o_orderdate")
        .limit(10)
        .select("l_orderkey", "revenue", "o_orderdate", "o_shippriority")
    )
    expected = plain.sql(load_queries([3])[3]).to_arrow_table()
    assert expected.to_pylist() == query.to_pyarrow().to_pylist()
    assert expected.num_rows == len(query.execute())
    assert expected.num_rows == query.to_pyarrow_batches(chunk_size=3).read_all().num_rows


@pytest.mark.slow
def test_tables_are_made_listed_and_dropped(ibis: Any, backend: Any) -> None:
    """From frames, expressions and schemas; replaced only if asked to."""
    assert 6 == backend.create_table("numbers", pd.DataFrame({"n": [1, 2, 3]})).n.sum().execute()
    assert 8 == backend.create_table("regions", backend.table("region")).count().execute() + 3
    empty = backend.create_table("empty", schema={"a": "int64"})
    assert (0, pa.schema([("a", pa.int64())])) == (
        empty.count().execute(),
        empty.schema().to_pyarrow(),
    )
    assert ["regions"] == backend.list_tables(like="regions")
    with pytest.raises(Exception, match="already"):
        backend.create_table("numbers", pa.table({"n": [1]}))
    backend.create_table("numbers", {"n": [1]}, overwrite=True)
    backend.create_view("v", backend.table("numbers").mutate(m=ibis._.n + 1))
    assert [{"n": 1, "m": 2}] == backend.table("v").to_pyarrow().to_pylist()
    backend.drop_view("v")
    for name in ("numbers", "regions", "empty"):
        backend.drop_table(name)
    backend.drop_table("numbers", force=True)
    with pytest.raises(ibis.common.exceptions.TableNotFound):
        backend.table("numbers")


def test_rows_in_memory_and_sql(ibis: Any, backend: Any) -> None:
    """Memory tables travel into the session; SQL text is DuckDB's; nulls and lists stay."""
    rows = ibis.memtable({"a": [1, 2, None], "b": ["x", "y", "z"]})
    assert ["y"] == backend.execute(rows.filter(rows.a > 1).b).to_list()
    found = backend.sql("SELECT 1 AS a, [1, NULL] AS l, NULL::INTEGER AS x").to_pyarrow()
    assert [{"a": 1, "l": [1, None], "x": None}] == found.to_pylist()


@pytest.mark.parametrize(
    "arguments", [{"database": "other"}, {"temp": True}, {"obj": None}], ids=lambda a: next(iter(a))
)
def test_what_does_not_exist_is_refused(ibis: Any, backend: Any, arguments: dict[str, Any]) -> None:
    """Databases, temporary tables, tables of nothing."""
    with pytest.raises((ibis.common.exceptions.UnsupportedArgumentError, ValueError)):
        backend.create_table("x", **({"obj": pa.table({"a": [1]})} | arguments))


def test_a_session_of_its_own_ends_with_it(backend: Any) -> None:
    """What connect starts, disconnect stops."""
    backend = type(backend)().connect(in_process=True, nodes=1)
    assert 3 == backend.sql("SELECT 3 AS a").a.execute()[0]
    backend.disconnect()
    with pytest.raises(ClusterError):
        backend.con.sql("SELECT 1")
