"""Groups as runs: where they are looked for, and that they are the groups of a GROUP BY."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minishark.compiler.hints import GroupRuns, InputGroupRuns
from minishark.compiler.logical.operators import Aggregate, Filter, Scan
from minishark.compiler.physical.plan import PartialAggregate, PhysicalPlan, Single
from minishark.compiler.rules.group_runs import GroupRunsOptions, with_group_runs
from minishark.model.catalog import Catalog, ColumnStatistics, Partition, Table, TableStatistics
from minishark.model.expressions import AggregateCall, Cast, Column, ColumnRef, Expression, Literal
from minishark.worker.group_runs import Runs, runs_of
from minishark.worker.helpers import Helpers

# What is found in rows

VALUES = (
    *(("count", ""), ("count", "d"), ("sum", "d"), ("min", "d"), ("max", "d")),
    *(("sum", "i"), ("min", "i"), ("max", "i"), ("sum", "w")),
)
HASHED = (
    "SELECT k, count(*), count(d), sum(d), min(d), max(d), sum(i), min(i), max(i), sum(w) "
    "FROM rows GROUP BY k ORDER BY k"
)
MERGED = (
    "SELECT c0, sum(c1), sum(c2), sum(c3), min(c4), max(c5), sum(c6), min(c7), max(c8), sum(c9) "
    "FROM runs GROUP BY c0 ORDER BY c0"
)
KEY_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.date32(), pa.timestamp("us")),
]


@pytest.fixture(scope="module")
def helpers() -> Iterator[Helpers]:
    """Threads that share the work."""
    helpers = Helpers()
    yield helpers
    helpers.close()


def rows_of(keys: list[int], key_type: pa.DataType, chunk: int) -> pa.Table:
    """Rows with these keys, in chunks."""
    numbers = range(len(keys))
    width = pa.int32() if key_type == pa.date32() else pa.int64()
    key = pa.array(keys, width).cast(key_type) if pa.types.is_temporal(key_type) else None
    table = pa.table(
        {
            "k": pa.array(keys, key_type) if key is None else key,
            "d": pa.array([Decimal(i % 7 - 3) / 4 for i in numbers], pa.decimal64(15, 2)),
            "i": pa.array([i % 11 - 5 for i in numbers], pa.int8()),
            "w": pa.array([2**32 - 1 - i for i in numbers], pa.uint32()),
            "text": [str(i) for i in numbers],
        }
    )
    parts = [table.slice(first, chunk) for first in range(0, len(keys), chunk)]
    return pa.concat_tables(parts) if parts else table


def wanted(
    values: tuple[tuple[str, str], ...] = VALUES, sum_max: int = 2**32, key: str = "k"
) -> InputGroupRuns:
    """Groups by `k`."""
    return InputGroupRuns(
        name="groups0",
        input="in0",
        key=key,
        values=values,
        sum_max=sum_max,
        hashed="",
        merged="",
        single="",
    )


CONNECTIONS: list[duckdb.DuckDBPyConnection] = []


@pytest.fixture(scope="module", autouse=True)
def database() -> Iterator[None]:
    """The connection of `answer`, which does not outlive the tests."""
    with duckdb.connect() as connection:
        CONNECTIONS.append(connection)
        yield
        CONNECTIONS.clear()


def answer(sql: str, **tables: pa.Table) -> list[tuple[object, ...]]:
    """What DuckDB makes of tables."""
    (connection,) = CONNECTIONS
    for name, table in tables.items():
        connection.register(name, table)
    return connection.execute(sql).fetchall()


def found_in(
    table: pa.Table, helpers: Helpers, each: InputGroupRuns, threads: int = 2
) -> Runs | None:
    """The runs, with much memory."""
    return runs_of(table, each, helpers, threads=threads, bytes_max=1 << 30)


@settings(deadline=None)
@given(
    runs=st.lists(st.tuples(st.integers(0, 40), st.integers(2, 9)), min_size=1, max_size=60),
    in_order=st.booleans(),
    key_type=st.sampled_from(KEY_TYPES),
    base=st.sampled_from([0, 60]),
    chunk=st.integers(1, 50),
    threads=st.integers(1, 3),
)
def test_runs_are_the_groups(
    runs: list[tuple[int, int]],
    in_order: bool,
    key_type: pa.DataType,
    base: int,
    chunk: int,
    threads: int,
    helpers: Helpers,
) -> None:
    """Merged, they are what a GROUP BY gives; and if they say so, they are it as they are."""
    runs = sorted(runs) if in_order else runs
    keys = [base + key for key, rows in runs for _ in range(rows)]
    table = rows_of(keys, key_type, chunk)
    found = found_in(table, helpers, wanted(), threads)
    if found is None:  # there are too many runs
        assert len(runs) > 0.4 * len(keys)
        return
    expected = answer(HASHED, rows=table)
    assert expected == answer(MERGED, runs=found.table)
    assert (len(set(keys)) == found.table.num_rows) == found.are_groups
    if found.are_groups:
        assert expected == answer("FROM runs ORDER BY c0", runs=found.table)
    if in_order:
        assert found.are_groups
        assert expected == answer("FROM runs", runs=found.table)


@pytest.mark.parametrize(
    ("sequences", "are_groups"),
    [
        ([range(100), range(200, 300), range(100, 200)], True),  # apart
        ([range(0, 100, 2), range(1, 100, 2)], True),  # hash partitions
        ([range(100), range(99, 200)], True),  # one that goes on in the next sequence
        ([range(100), range(98, 200)], False),
        ([[0, 2**40], [1, 2**40 + 1]], False),  # too far apart to be marked
        ([[0, 2**40], [2**40 + 1, 2**41]], True),
        ([[-5, 7], [-6, 6]], True),
        ([[-5, 7], [-6, 7]], False),
        ([[n, n + 1000] for n in range(100, 36, -1)], True),
        ([[n, n + 1000] for n in range(100, 35, -1)], False),  # too many sequences
    ],
)
def test_groups_are_told_from_parts_of_groups(
    sequences: list[list[int]], are_groups: bool, helpers: Helpers
) -> None:
    """Keys may ascend in a few sequences, as partitions do, if these share none."""
    keys = [key for sequence in sequences for key in sequence for _ in range(3)]
    found = found_in(rows_of(keys, pa.int64(), 7), helpers, wanted())
    assert found is not None
    assert are_groups == found.are_groups
    assert answer(HASHED, rows=rows_of(keys, pa.int64(), 7)) == answer(MERGED, runs=found.table)


def test_what_is_not_looked_for(helpers: Helpers) -> None:
    """Rows in any order, NULLs, wide decimals, sums that may be too large, no memory: None."""
    keys = [i // 4 for i in range(100)]
    table = rows_of(keys, pa.int64(), 30)
    assert found_in(table, helpers, wanted()) is not None
    assert found_in(table.slice(0, 0), helpers, wanted()) is None
    assert found_in(rows_of([i * 7 % 100 for i in keys], pa.int64(), 30), helpers, wanted())
    assert found_in(rows_of([*range(100)], pa.int64(), 30), helpers, wanted()) is None
    assert found_in(table, helpers, wanted(sum_max=2**59)) is None
    assert runs_of(table, wanted(), helpers, threads=1, bytes_max=100) is None
    wide = table.column("d").cast(pa.decimal128(15, 2))
    assert found_in(table.set_column(1, "d", wide), helpers, wanted()) is None
    for name, type_ in (("k", pa.int64()), ("d", pa.decimal64(15, 2))):
        place = table.column_names.index(name)
        nulls = pa.array([None, *table.column(name).to_pylist()[1:]], type_)
        assert found_in(table.set_column(place, name, nulls), helpers, wanted()) is None


def test_a_run_through_many_chunks_whose_sum_is_too_large(helpers: Helpers) -> None:
    """What fits in each chunk may not in all."""
    table = pa.table({"k": [1] * 8, "v": pa.array([2**62 - 1] * 8)})
    chunks = pa.concat_tables([table.slice(i, 1) for i in range(8)])
    assert found_in(chunks, helpers, wanted((("sum", "v"),), 2**62 - 1)) is None
    found = found_in(chunks, helpers, wanted((("max", "v"), ("count", "v")), 0))
    assert found is not None
    assert [(1, 2**62 - 1, 8)] == answer("FROM runs", runs=found.table)


def test_keys_keep_their_type(helpers: Helpers) -> None:
    """Dates come back as dates."""
    days = [dt.date(2024, 1, 1 + i // 4) for i in range(100)]
    found = found_in(pa.table({"k": days}), helpers, wanted(()))
    assert found is not None
    assert sorted(set(days)) == found.table.column("c0").to_pylist()


# Where it is planned

SCHEMA = (
    *(Column("k", "BIGINT"), Column("v", "DECIMAL(15,2)"), Column("w", "DECIMAL(19,2)")),
    *(Column("s", "VARCHAR"), Column("h", "BIGINT")),
    Column("i", "TINYINT"),
)
KEYS = ColumnStatistics(0.0, 1000, "1", "1000")
KNOWN = (
    *(KEYS, ColumnStatistics(0.0, 90, "-3.50", "2.00"), ColumnStatistics(0.0, 90, "0.00", "1.00")),
    *(ColumnStatistics(0.0, 900), ColumnStatistics(0.0, 900, "0", str(2**62))),
    ColumnStatistics(0.0, 10, "-9", "5"),
)
V = ColumnRef(1, "DECIMAL(15,2)")
SUM = AggregateCall(name="sum", arguments=(V,), type="DECIMAL(38,2)")
COUNT = AggregateCall(name="count_star", arguments=(), type="BIGINT")
BY_KEY: tuple[Expression, ...] = (ColumnRef(0, "BIGINT"),)


def planned(
    *calls: AggregateCall,
    groups: tuple[Expression, ...] = BY_KEY,
    rows: int = 5000,
    read: bytes = b"",
    below: bool = False,
    partial: bool = False,
    groups_min: float = 500,
) -> GroupRuns | None:
    """What the scan below an aggregate is told."""
    partition = Partition(
        index=0, file="tables/t/0", locations=("n",), rows=rows, bytes=rows * 16, read=read
    )
    catalog = Catalog()
    catalog.add(
        Table(
            name="t",
            schema=SCHEMA,
            partitions=(partition,),
            partition_by=(),
            statistics=TableStatistics(rows, rows * 16, KNOWN),
        )
    )
    columns = tuple(column.name for column in SCHEMA)
    scan = PhysicalPlan(Scan("t", columns, SCHEMA), (), SCHEMA, Single(), rows)
    child = scan
    if below:
        child = PhysicalPlan(Filter((), tuple(range(len(SCHEMA)))), (scan,), SCHEMA, Single(), rows)
    aggregate = Aggregate(groups, calls)
    operator = PartialAggregate(aggregate) if partial else aggregate
    plan = PhysicalPlan(operator, (child,), SCHEMA[:1], Single(), 1000)
    found = with_group_runs(plan, catalog, GroupRunsOptions(groups_min))
    assert (found is plan) == (found == plan)
    below_it = found.children[0].operator
    return below_it.hints.group_runs if isinstance(below_it, Scan) else None


def test_aggregates_of_columns_by_a_key_are_looked_for() -> None:
    """Sums, counts and extremes, in one phase or the first of two; no aggregate at all, too."""
    assert GroupRuns("k", (("sum", "v"), ("count", "")), 350) == planned(SUM, COUNT)
    assert GroupRuns("k", (("sum", "v"),), 350) == planned(SUM, partial=True)
    assert GroupRuns("k", (), 0) == planned()
    one = AggregateCall(name="count", arguments=(Literal("1", "INTEGER", 1),), type="BIGINT")
    assert GroupRuns("k", (("count", ""),), 0) == planned(one)
    small = Cast(ColumnRef(5, "TINYINT"), "BIGINT")
    assert GroupRuns("k", (("sum", "i"),), 9) == planned(replace(SUM, arguments=(small,)))
    extremes = [AggregateCall(name=name, arguments=(V,), type=V.type) for name in ("min", "max")]
    counted = AggregateCall(name="count", arguments=(V,), type="BIGINT")
    values = (("min", "v"), ("max", "v"), ("count", "v"))
    assert GroupRuns("k", values, 0) == planned(*extremes, counted)


@pytest.mark.parametrize(
    "call",
    [
        replace(SUM, distinct=True),
        replace(SUM, filter=Literal("true", "BOOLEAN", True)),
        replace(SUM, name="avg"),
        AggregateCall(name="count", arguments=(Literal("NULL", "INTEGER", None),), type="BIGINT"),
        replace(SUM, arguments=(Literal("1.00", "DECIMAL(15,2)", 1),)),
        replace(SUM, arguments=(ColumnRef(2, "DECIMAL(19,2)"),)),
        replace(SUM, arguments=(Cast(V, "BIGINT"),)),
        replace(SUM, arguments=(Cast(ColumnRef(5, "TINYINT"), "INTEGER", lenient=True),)),
        replace(SUM, arguments=(ColumnRef(4, "BIGINT"),)),
        replace(SUM, name="max", arguments=(ColumnRef(3, "VARCHAR"),)),
        replace(SUM, name="max", arguments=(V, Literal("2", "BIGINT", 2))),
    ],
)
def test_other_aggregates_are_not_looked_for(call: AggregateCall) -> None:
    """Nor such of which a sum might be no 64-bit integer."""
    assert planned(COUNT, call) is None


def test_other_groups_are_not_looked_for() -> None:
    """Groups by several columns, expressions or text, few or small ones, and those of files."""
    assert planned(SUM) is not None
    assert planned(SUM, groups=()) is None
    assert planned(SUM, groups=(*BY_KEY, V)) is None
    assert planned(SUM, groups=(ColumnRef(3, "VARCHAR"),)) is None
    assert planned(SUM, groups=(Literal("1", "BIGINT", 1),)) is None
    assert planned(SUM, rows=1999) is None
    assert planned(SUM, groups_min=1001) is None
    assert planned(SUM, read=b"splits") is None
    assert planned(SUM, below=True) is None
