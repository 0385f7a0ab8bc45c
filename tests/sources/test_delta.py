from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from delta_tables import RandomTable, _commit, _protocol
from deltalake import DeltaTable, write_deltalake
from reading import assert_equal, read

from minishark.errors import DataError, UnsupportedError
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources.bounds import Bounds, may_match
from minishark.sources.delta import DeltaSource

_SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(200)]


def rows(table: DeltaTable) -> pa.Table:
    """What deltalake itself reads."""
    return pa.RecordBatchReader.from_stream(table.scan()).read_all()


@pytest.mark.parametrize("seed", _SEEDS)
def test_rows_and_types_are_those_of_deltalake(seed: int, tmp_path: Path) -> None:
    """Whatever happened to a table: now, and at earlier versions."""
    path = tmp_path / "a table"
    made = RandomTable.created(path, seed)
    now = rows(DeltaTable(str(path)))
    predicates = list(made.predicates(now))
    chosen = made.chance.sample(predicates, min(len(predicates), 8))
    assert_equal(DeltaSource(path).resolve(), now, chosen)
    last = DeltaTable(str(path)).version()
    for version in range(max(last - 2, 0), last):
        then = rows(DeltaTable(str(path), version=version))
        some = list(made.predicates(then))[:2]
        assert_equal(DeltaSource(path, version=version).resolve(), then, some)


@pytest.fixture
def by_kind(tmp_path: Path) -> Path:
    """Ten files, one for each kind and day; numbers have NaN among them."""
    path = tmp_path / "kinds"
    for day in range(5):
        numbers = [day * 10 + each for each in range(10)] * 2
        moment = datetime(2024, 1, 1, 0, 0, day, 999_999, tzinfo=UTC)
        rows = {"kind": ["a/b c"] * 10 + [None] * 10, "day": [day] * 20, "id": numbers}
        rows |= {"x": [float("nan") if each % 10 == 9 else each / 2 for each in numbers]}
        rows |= {"at": [moment] * 20, "exact": [Decimal("12345678901234567.01")] * 20}
        write_deltalake(str(path), pa.table(rows), mode="append", partition_by=["kind"])
    return path


def files(path: Path, *predicates: Predicate) -> int:
    """How many files a query reads."""
    splits = DeltaSource(path).resolve().splits(Pushed(predicates=predicates), 4)
    return len({file.path for split in splits for file in split.files()})


@pytest.mark.slow
def test_a_query_reads_only_files_that_may_have_its_rows(by_kind: Path) -> None:
    """By values of partitions and by statistics, which know neither NaN nor microseconds."""
    assert 10 == files(by_kind)
    assert 5 == files(by_kind, Predicate("kind", Comparison.EQUAL, ("a/b c",)))
    assert 0 == files(by_kind, Predicate("kind", Comparison.EQUAL, ("a",)))
    assert 5 == files(by_kind, Predicate("KIND", Comparison.IS_NULL))
    assert 2 == files(by_kind, Predicate("day", Comparison.EQUAL, (3,)))
    assert 0 == files(by_kind, Predicate("id", Comparison.GREATER, (49,)))
    assert 10 == files(by_kind, Predicate("x", Comparison.GREATER, (1000.0,)))
    last = datetime(2024, 1, 1, 0, 0, 4, 999_999, tzinfo=UTC)
    assert 2 == files(by_kind, Predicate("at", Comparison.GREATER_OR_EQUAL, (last,)))
    exact = Decimal("12345678901234567.01")
    assert 10 == files(by_kind, Predicate("exact", Comparison.EQUAL, (exact,)))


def test_statistics_come_from_the_log(by_kind: Path) -> None:
    statistics = DeltaSource(by_kind).resolve().statistics
    assert statistics is not None
    names = [column.name for column in DeltaSource(by_kind).resolve().schema]
    columns = dict(zip(names, statistics.columns, strict=True))
    assert 100 == statistics.rows
    assert (0.5, 1, "a/b c") == (
        columns["kind"].null_fraction, columns["kind"].distinct, columns["kind"].maximum,
    )  # fmt: skip
    assert ("0", "49") == (columns["id"].minimum, columns["id"].maximum)


def test_what_is_not_known_of_the_protocol_is_refused_by_name(by_kind: Path) -> None:
    """A reader that overlooks a feature returns wrong rows."""
    table = DeltaTable(str(by_kind))
    _commit(by_kind, _protocol(table, ["variantType"]))
    with pytest.raises((UnsupportedError, DataError), match="variantType"):
        DeltaSource(by_kind).resolve()


def test_earlier_versions_and_tables_that_are_none(by_kind: Path, tmp_path: Path) -> None:
    assert 40 == read(DeltaSource(by_kind, version=1).resolve()).num_rows
    first = datetime(2024, 1, 1, tzinfo=UTC)
    for number, log in enumerate(sorted((by_kind / "_delta_log").glob("*.json"))):
        moment = first.timestamp() + 3600 * number
        os.utime(log, (moment, moment))  # versions begin when their files were written
    then = first + timedelta(hours=2, minutes=59)
    assert 60 == read(DeltaSource(by_kind, timestamp=then).resolve()).num_rows
    with pytest.raises(DataError, match="Can't read the Delta table"):
        DeltaSource(by_kind, version=99).resolve()
    with pytest.raises(DataError, match="Can't read the Delta table"):
        DeltaSource(tmp_path / "nothing").resolve()


@pytest.mark.parametrize(
    ("comparison", "value", "expected"),
    [
        ("=", 1, False), ("=", 2, True), ("=", 5, True), ("=", 6, False), ("=", "text", True),
        ("<", 2, False), ("<", 3, True), ("<=", 2, True), ("<=", 1, False), (">", 5, False),
        (">", 4, True), (">=", 5, True), (">=", 6, False), ("<>", 2, True),
    ],
)  # fmt: skip
def test_bounds(comparison: str, value: object, expected: bool) -> None:
    """Whether a file whose values are from 2 to 5 is read."""
    predicate = Predicate("x", Comparison(comparison), (value,))
    assert expected == may_match(predicate, Bounds(minimum=2, maximum=5, nulls=0, rows=3))
    assert may_match(predicate, Bounds())
    assert not may_match(predicate, Bounds(nulls=3, rows=3))


def test_bounds_of_nulls_and_constants() -> None:
    is_null, not_null = Predicate("x", Comparison.IS_NULL), Predicate("x", Comparison.IS_NOT_NULL)
    assert not may_match(is_null, Bounds(nulls=0))
    assert not may_match(not_null, Bounds(nulls=3, rows=3))
    assert may_match(is_null, Bounds())
    assert may_match(not_null, Bounds(nulls=3))
    same = Bounds(minimum=2, maximum=2, nulls=0, rows=3, is_constant=True)
    assert not may_match(Predicate("x", Comparison.NOT_EQUAL, (2,)), same)
    assert may_match(Predicate("x", Comparison.IN, (1, 2)), same)
    assert not may_match(Predicate("x", Comparison.IN, (1, 3)), same)
