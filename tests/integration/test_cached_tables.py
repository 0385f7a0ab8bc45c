"""Queries whose rows stay in the cluster as a table."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import minishark
from minishark.errors import CatalogError, MinisharkError, OptionError, TaskFailedError
from minishark.model.catalog import Table
from minishark.query.progress import QueryProgress
from minishark.query.sinks import Layout
from minishark.session.scope import Scope
from minishark.session.session import Session

ROWS = 5000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Session]:
    """A session that distributes everything."""
    with minishark.connect(in_process=True, nodes=2, partitions=4, single_task_rows=0) as found:
        rows = pa.table({"a": range(ROWS), "k": [i % 7 for i in range(ROWS)]})
        found.create_table("t", rows, partitions=3)
        found.create_table("by_a", rows, partition_by="a", partitions=3)
        yield found


@pytest.fixture
def session(cluster: Session) -> Iterator[Session]:
    """The same, without the tables of other tests."""
    yield cluster
    for name in set(cluster.tables) - {"t", "by_a"}:
        cluster.drop_table(name)


def _table(session: Session, name: str) -> Table:
    return session._runtime.tables.catalog.get(name)


def _sizes(session: Session, name: str) -> list[int]:
    return [partition.rows for partition in _table(session, name).partitions]


def test_unkeyed_rows_keep_the_order_of_the_query(session: Session) -> None:
    """Partitions are runs of the query's order, of about the same size."""
    session.create_table("kept", session.sql("FROM t ORDER BY a DESC"), partitions=4)
    assert [ROWS // 4] * 4 == _sizes(session, "kept")
    kept = session.sql("SELECT a FROM kept").to_arrow().column("a").to_pylist()
    assert list(range(ROWS - 1, -1, -1)) == kept


@pytest.mark.sample(4)
@pytest.mark.parametrize("partitions", [1, 3, 8])
@pytest.mark.parametrize("where", ["true", "a < 3", "a < 0"])
def test_the_number_of_partitions_is_as_asked(
    session: Session, where: str, partitions: int
) -> None:
    """Also where there are fewer rows than partitions."""
    rows = session.sql(f"SELECT a, k FROM t WHERE {where}")
    session.create_table("kept", rows, partitions=partitions)
    session.create_table("keyed", rows, partition_by="k", partitions=partitions)
    expected = session.sql(f"SELECT * FROM t WHERE {where} ORDER BY a").to_arrow()
    for name in ("kept", "keyed"):
        assert partitions == len(_sizes(session, name))
        assert expected == session.sql(f"SELECT * FROM {name} ORDER BY a").to_arrow()


def test_a_query_that_lies_hashed_is_kept_as_it_lies(session: Session) -> None:
    """Its tasks store their rows, and joins on the key need no shuffle."""
    session.sql("CREATE TABLE kept AS SELECT k, a AS b FROM by_a WHERE a % 2 = 0")
    assert ("b",) == _table(session, "kept").partition_by
    joined = session.sql("SELECT count(*) AS n FROM kept JOIN by_a ON b = a")
    assert "Shuffle" not in joined.plan_text("physical")
    assert [ROWS // 2] == joined.to_arrow().column("n").to_pylist()


def test_partition_by_divides_by_the_hash_that_shuffles_use(session: Session) -> None:
    """Tables that were kept by the same column join partition by partition."""
    session.create_table("left", session.sql("SELECT k, a FROM t"), partition_by="A", partitions=5)
    session.create_table("right", session.sql("FROM by_a"), partition_by="a", partitions=5)
    joined = session.sql('SELECT count(*) AS n FROM "left" JOIN "right" USING (a)')
    assert "Shuffle" not in joined.plan_text("physical")
    assert [ROWS] == joined.to_arrow().column("n").to_pylist()


def test_small_results_lie_whole_on_every_node(session: Session) -> None:
    """What is known to be small when it is stored is one partition."""
    session.sql("CREATE TABLE kept AS SELECT k, count(*) AS n FROM t GROUP BY k ORDER BY k")
    (partition,) = _table(session, "kept").partitions
    assert ("node-0", "node-1") == partition.locations


def test_replicas(session: Session) -> None:
    """Each partition lies on as many nodes as was asked for."""
    session.create_table("kept", session.sql("FROM t"), partitions=4, replicas=1)
    session.create_table("keyed", session.sql("FROM t"), partition_by="a", replicas=1)
    expected = [("node-0",), ("node-1",)] * 2
    for name in ("kept", "keyed"):
        assert expected == [partition.locations for partition in _table(session, name).partitions]


def test_whole_statements_are_kept(session: Session) -> None:
    """A query without a distributed form gives a table like any other."""
    numbers = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 20) FROM r"
    session.create_table("kept", session.sql(numbers), partitions=3)
    session.create_table("keyed", session.sql(numbers), partition_by="n", partitions=3)
    expected = list(range(1, 21))
    assert expected == session.sql("FROM kept").to_arrow().column("n").to_pylist()
    assert expected == session.sql("FROM keyed ORDER BY n").to_arrow().column("n").to_pylist()


def test_columns_of_equal_names_get_numbers(session: Session) -> None:
    """As DuckDB does, in any case of letters."""
    sql = 'CREATE TABLE kept AS SELECT 1 AS a, 2 AS "A", 3 AS a_1, 4 AS a'
    session.sql(sql)
    with duckdb.connect() as plain:
        plain.execute(sql)
        expected = plain.table("kept").columns
    assert expected == session.table("kept").columns


def test_enums_of_a_dataframe_become_text(session: Session) -> None:
    """As those of Arrow tables do; comparisons are those of what the table says."""
    frame = session.sql("SELECT 'x'::ENUM('y', 'x') AS e UNION ALL SELECT 'y'")
    session.create_table("kept", frame, partitions=2)
    assert [("e", "VARCHAR")] == session.table("kept").dtypes
    found = session.sql("SELECT e FROM kept ORDER BY e").to_arrow()
    assert ["x", "y"] == found.column("e").to_pylist()


def test_a_table_can_be_made_of_itself(session: Session) -> None:
    """The new rows replace the old ones when all are there."""
    session.sql("CREATE TABLE kept AS SELECT a FROM t WHERE a < 100")
    for _ in range(3):
        session.sql("CREATE OR REPLACE TABLE kept AS SELECT a * 2 AS a FROM kept WHERE a % 2 = 0")
    assert list(range(0, 800, 16)) == (
        session.sql("FROM kept ORDER BY a").to_arrow().column("a").to_pylist()
    )


def test_a_query_that_fails_makes_no_table(session: Session) -> None:
    """Nothing is left of it, in the catalog or in memory."""
    folders = sorted(session._runtime.cluster.paths.memory.glob("node-*/tables/*"))
    with pytest.raises(TaskFailedError, match="Conversion Error"):
        session.create_table("kept", session.sql("SELECT CAST('x' || a AS INT) AS a FROM t"))
    assert "kept" not in session.tables
    assert folders == sorted(session._runtime.cluster.paths.memory.glob("node-*/tables/*"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"partition_by": "zz"}, CatalogError),
        ({"partitions": 0}, OptionError),
        ({"replicas": 0}, OptionError),
    ],
)
def test_wrong_layouts(
    session: Session, arguments: dict[str, object], error: type[MinisharkError]
) -> None:
    """They are refused before anything runs."""
    with pytest.raises(error):
        session.create_table("kept", session.sql("FROM t"), **arguments)  # type: ignore[arg-type]
    with pytest.raises(CatalogError, match="already"):
        session.create_table("t", session.sql("FROM t"))


def test_rows_that_are_released_while_they_materialize_are_computed_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a plan they could never be computed, and queries would wait for ever."""
    runtime = session._runtime
    cached = runtime.cache_query("SELECT 42 AS a", layout=Layout())
    engine, released = runtime.engine, []
    compute = engine.compute

    def compute_and_lose(names: Sequence[str], scope: Scope) -> None:
        compute(names, scope)
        if not released:
            released.append(names)
            runtime.release(cached)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "compute", compute_and_lose)
        runtime.materialize(cached)
    assert [(cached.name,)] == released
    runtime.release(cached)  # has no effect any more
    assert 42 == session.sql(f"FROM {cached.name}").to_arrow()["a"][0].as_py()


@pytest.mark.slow
def test_rows_whose_view_is_dropped_while_they_are_computed_are_dropped(session: Session) -> None:
    """The query fails, and their memory is free."""
    engine = session._runtime.engine
    before = set(engine.cached._cached)
    session.sql("SELECT k, sum(a) AS s FROM t GROUP BY k").cache().create_or_replace_temp_view("v")

    def drop(_: QueryProgress) -> None:
        session.remove_progress_handler(drop)
        session.catalog.drop_temp_view("v")
        gc.collect()
        session.sql("SELECT 1").collect()

    reading = session.sql("SELECT max(s) FROM v")
    session.register_progress_handler(drop)
    with pytest.raises(MinisharkError):
        reading.to_arrow()
    gc.collect()
    session.sql("SELECT 1").collect()
    names = {table.name for table in engine.tables.catalog}
    assert names <= {"t", "by_a", *before, *engine.cached._cached}


def test_ranges_of_what_one_task_reads(tmp_path: Path) -> None:
    """A file is read by one task; the others know its columns by their places."""
    file = tmp_path / "t.parquet"
    duckdb.sql(f"COPY (SELECT range k, range % 7 g FROM range(9_000)) TO '{file}'")
    with minishark.connect(in_process=True, nodes=2) as session:
        rows = session.read.parquet(file).repartition_by_range(3, "k")
        assert [row.k for row in rows.collect()] == list(range(9_000))
        assert sum(place.rows for place in rows.placement()) == 9_000
        assert len(rows.placement()) == 3


def test_a_stopped_session_leaves_nothing_in_memory() -> None:
    """Also if rows were kept of other kept rows."""
    with minishark.connect(in_process=True) as session:
        rows = session.range(5).persist()
        assert rows.filter("id > 1").persist().count() == 3
        engine = weakref.ref(session._runtime.engine)
    del rows, session
    gc.collect()
    assert engine() is None
