"""Which rows of a Parquet file are fetched, by the bounds of its row groups."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.model.predicates import Comparison, Predicate
from minishark.sources.parquet import row_runs

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "BIGINT": st.integers(-9, 9),
    "VARCHAR": st.text("aäz", max_size=3),
    "DOUBLE": st.sampled_from([-1.0, -0.0, 0.0, 2.5, math.inf, math.nan]),
    "DATE": st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 9)),
    "TIMESTAMP": st.datetimes(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)),  # noqa: DTZ001
    "DECIMAL(9,2)": st.integers(-9, 9).map(Decimal),
    "BOOLEAN": st.booleans(),
}


@given(data=st.data(), type_=st.sampled_from(sorted(VALUES)))
def test_no_row_that_is_needed_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, type_: str
) -> None:
    """As DuckDB evaluates the predicate, NULL and NaN included."""
    value = VALUES[type_]
    rows = data.draw(st.lists(st.none() | value, max_size=12))
    path = tmp_path_factory.getbasetemp() / "row_groups.parquet"
    comparison = data.draw(st.sampled_from([*Comparison]))
    count = {Comparison.IN: 2, Comparison.IS_NULL: 0, Comparison.IS_NOT_NULL: 0}.get(comparison, 1)
    values = tuple(data.draw(value) for _ in range(count))
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE t (n INTEGER, c {type_})")
        for number, each in enumerate(rows):
            connection.execute("INSERT INTO t VALUES (?, ?)", [number, each])
        pq.write_table(connection.table("t").to_arrow_table(), path, row_group_size=3)
        marks = ", ".join("?" for _ in values)
        marks = f"({marks})" if comparison is Comparison.IN else marks
        sql = f"SELECT n FROM t WHERE c {comparison} {marks}"
        needed = [n for (n,) in connection.execute(sql, values).fetchall()]
    runs = row_runs(pq.read_metadata(path), [Predicate("C", comparison, values)])
    assert all(any(first <= n < last for first, last in runs) for n in needed)
    assert all(0 <= first < last <= len(rows) for first, last in runs)


def test_row_groups_outside_of_the_bounds_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with duckdb.connect() as connection:
        rows = connection.sql("SELECT i, {'i': i} AS s, NULL::INT AS n FROM range(100) r(i)")
        pq.write_table(rows.to_arrow_table(), path, row_group_size=10)
    metadata = pq.read_metadata(path)

    def runs(*predicates: tuple[str, Comparison, Any]) -> list[tuple[int, int]]:
        return row_runs(metadata, [Predicate(c, kind, (v,)) for c, kind, v in predicates])

    assert [(30, 40)] == runs(("i", Comparison.EQUAL, 33))
    assert [(20, 40)] == runs(
        ("i", Comparison.GREATER_OR_EQUAL, 25), ("I", Comparison.LESS_OR_EQUAL, 35)
    )
    assert [] == runs(("i", Comparison.GREATER, 99))
    assert [] == runs(("n", Comparison.EQUAL, 1))
    assert [(0, 100)] == runs(("s.i", Comparison.EQUAL, "x"))
    assert [(0, 100)] == runs(("missing", Comparison.EQUAL, 1))
    assert [(0, 10), (90, 100)] == [
        run
        for kind, value in ((Comparison.LESS, 3), (Comparison.GREATER, 95))
        for run in runs(("i", kind, value))
    ]
