"""Versions of tables, as they are computed from those before."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.model.catalog import (
    Catalog,
    CatalogView,
    ColumnStatistics,
    Delta,
    Partition,
    Table,
    TableStatistics,
    first_row_number,
    row_place,
)
from minishark.model.expressions import Column
from minishark.tables.changed_statistics import changed_statistics, statistics_of
from minishark.tables.deltas import (
    changed_files,
    must_merge,
    rebased,
    settled,
    should_merge,
    with_column,
    without_rows,
)
from minishark.worker.columns import integers
from minishark.worker.visible_rows import packed, row_numbers


def delta(name: str, rows: int) -> Delta:
    """A delta of so many rows."""
    return Delta(file=f"t/{name}", rows=rows, bytes=rows)


def partition(index: int, rows: int, *deltas: Delta) -> Partition:
    """A partition whose own file has so many rows."""
    rows += sum(each.rows for each in deltas)
    return Partition(
        index=index,
        file=f"t/{index}",
        locations=("a", "b"),
        rows=rows,
        bytes=rows,
        deltas=deltas,
    )


def table(*partitions: Partition) -> Table:
    """A table of these partitions."""
    rows = sum(each.rows for each in partitions)
    statistics = TableStatistics(rows, rows, (ColumnStatistics(),))
    schema = (Column("x", "INTEGER"),)
    return Table(
        name="t", schema=schema, partitions=partitions, partition_by=(), statistics=statistics
    )


def test_rows_are_deleted_from_the_files_that_they_are_in() -> None:
    """A delta without rows is gone; others keep their files."""
    old = table(partition(0, 10), partition(1, 10, delta("d", 2), delta("e", 1)))
    numbers = [
        *(first_row_number(0, 0) + 3, first_row_number(1, 0) + 9),
        *(first_row_number(1, 1), first_row_number(1, 1) + 1, first_row_number(1, 2)),
    ]
    assert (1, 2, 7) == row_place(first_row_number(1, 2) + 7)
    new = without_rows(old, np.array(numbers[:4], np.int64))
    assert [9, 10] == [part.rows for part in new.partitions]
    assert [[3], [9]] == [row_numbers(part.deleted).tolist() for part in new.partitions]
    assert ["t/e"] == [each.file for each in new.partitions[1].deltas]
    assert {"t/d": ("a", "b")} == changed_files(old, new)
    assert not new.same_rows(old)
    assert new.planned_as(old)


def test_when_a_partition_is_stored_again() -> None:
    """Before it is read where pieces are small; later where deltas, or gaps, are large."""
    assert not must_merge(partition(0, 10**6))
    few = packed(np.arange(0, 1000, 2))
    many = packed(np.arange(0, 5000, 2))
    one_run = packed(np.arange(0, 600_000))
    for deleted, expected in ((few, False), (many, True), (one_run, False)):
        part = Partition(index=0, file="f", locations=(), rows=500_000, bytes=0, deleted=deleted)
        assert expected == must_merge(part)
        assert (deleted is one_run) == should_merge(part)
    assert not should_merge(partition(0, 100_000, delta("a", 60_000), delta("b", 60_000)))
    assert not should_merge(partition(0, 900_000, delta("a", 120_000)))
    assert should_merge(partition(0, 100_000, delta("a", 120_000), delta("b", 5)))
    assert ("t/a",) == tuple(
        each.file for each in settled(partition(0, 9, delta("a", 70_000), delta("b", 5))).deltas
    )


def test_what_is_merged_keeps_what_came_meanwhile() -> None:
    """Later deltas stay; what was read must be what is there now."""
    first = partition(0, 100_000, delta("a", 120_000))
    merged = Partition(index=0, file="t/m", locations=("b", "c"), rows=220_000, bytes=220_000)
    now = table(partition(0, 100_000, delta("a", 120_000), delta("b", 5)), partition(1, 7))
    found = rebased(now, [first], [merged])
    assert found is not None
    assert ("t/m", "t/b") == found.partitions[0].files
    assert (220_005, ("b",)) == (found.partitions[0].rows, found.partitions[0].locations)
    assert now.partitions[1] == found.partitions[1]
    gone = without_rows(now, np.array([first_row_number(0, 1)]))
    assert None is rebased(gone, [first], [merged])
    wider = with_column(now, Column("y", "INTEGER"), pa.table({"y": pa.array([1], pa.int32())}))
    assert None is rebased(wider, [first], [merged])


@given(
    st.lists(
        st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)), max_size=8), max_size=5
    )
)
def test_bounds_hold_whatever_is_added(groups: list[list[int | None]]) -> None:
    """Statistics of a table that began empty."""
    schema = (Column("x", "INTEGER"), Column("t", "VARCHAR"), Column("f", "DOUBLE"))
    empty = ColumnStatistics(distinct=0)
    known, rows = TableStatistics(0, 0, (empty, empty, empty)), 0
    for group in groups:
        rows += len(group)
        texts = [None if value is None else str(value) for value in group]
        columns = [pa.array(group, pa.int32()), texts, pa.array(group, pa.float64())]
        added = pa.table(dict(zip("xtf", columns, strict=True)))
        known = changed_statistics(known, schema, added, rows, rows)
    values = [value for group in groups for value in group if value is not None]
    x, t, f = known.columns
    if values:
        assert (str(min(values)), str(max(values))) == (x.minimum, x.maximum)
        assert duckdb.execute("SELECT min(s), max(s) FROM (SELECT unnest($1) AS s)", [
            [*map(str, values)]
        ]).fetchall() == [(t.minimum, t.maximum)]  # fmt: skip
        assert (None, None) == (f.minimum, f.maximum)
        assert (x.null_fraction > 0) == (len(values) < rows)
        assert 0 < (x.distinct or 0) <= rows
    else:
        assert (None, None) == (x.minimum, x.maximum)


def test_a_view_of_a_catalog() -> None:
    """It has other versions of some tables, and sees what others there are, unless at once."""
    one, other = table(partition(0, 1)), table(partition(0, 2))
    catalog = Catalog([one])
    view = CatalogView(catalog, [other])
    assert (one, other) == (catalog.get("T"), view.get("t"))
    assert [other] == [*view]
    now = view.at_once()
    catalog.remove("t")
    assert [other] == [*view] == [*now]
    catalog.add(replace(one, name="u"))
    assert (["u", "t"], ["t"]) == (view.loaded, now.loaded)
    assert [] == CatalogView(catalog, shows=lambda name: name != "u").loaded


def test_distinct_values_of_many_rows_are_inferred() -> None:
    """From a sample: near the truth for values that are all alike, few, or all different."""
    schema = (Column("one", "BIGINT"), Column("few", "BIGINT"), Column("all", "BIGINT"))
    numbers = np.arange(400_000)
    added = pa.table([integers(numbers * 0), integers(numbers % 1000), integers(numbers)], [*"abc"])
    found = statistics_of(schema, added, 0)
    for expected, column in zip((1, 1_000, 400_000), found.columns, strict=True):
        assert expected == pytest.approx(column.distinct, rel=0.02)
