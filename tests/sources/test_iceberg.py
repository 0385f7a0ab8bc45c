from __future__ import annotations

import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import RandomTable, catalog, delete_equal, delete_positions
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from reading import assert_equal, database, read

from minishark.errors import DataError, UnsupportedError
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources import footers, mapped_parquet
from minishark.sources.iceberg import IcebergSource
from minishark.sources.mapped_parquet import MappedColumn, MappedFile, MappedParquet

_SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(200)]


@pytest.mark.filterwarnings("ignore:Delete operation did not match")
@pytest.mark.parametrize("seed", _SEEDS)
def test_rows_and_types_are_those_of_pyiceberg(seed: int, tmp_path: Path) -> None:
    """Whatever happened to a table: now, at each snapshot, and at each tag."""
    made = RandomTable.created(tmp_path, seed)
    now = made.table.scan().to_arrow()
    predicates = list(made.predicates(now))
    chosen = made.chance.sample(predicates, min(len(predicates), 8))
    assert_equal(IcebergSource(made.table).resolve(), now, chosen)
    for snapshot in made.table.snapshots()[:-1][-2:]:
        number = snapshot.snapshot_id
        then = made.table.scan(snapshot_id=number).to_arrow()
        source = IcebergSource(made.table, snapshot_id=number)
        assert_equal(source.resolve(), then, list(made.predicates(then))[:2])
    for tag in made.tags[:1]:
        then = made.table.scan().use_ref(tag).to_arrow()
        assert_equal(IcebergSource(made.table, ref=tag).resolve(), then, ())


@pytest.fixture
def by_kind(tmp_path: Path) -> Table:
    """Ten files, one for each kind and day; numbers have NaN among them."""
    schema = pa.schema(
        [("kind", pa.string()), ("day", pa.int64()), ("x", pa.float64()), ("id", pa.int64())]
    )
    table = catalog(tmp_path).create_table("n.kinds", schema)
    with table.update_spec() as update:
        update.add_identity("kind")
    for day in range(5):
        for kind in ("a", None):
            numbers = [day * 10 + each for each in range(10)]
            rows = {"kind": [kind] * 10, "day": [day] * 10, "id": numbers}
            rows |= {"x": [float("nan") if each % 10 == 9 else each / 2 for each in numbers]}
            table.append(pa.table(rows, schema=schema))
    return table


def files(table: Table, *predicates: Predicate) -> int:
    """How many files a query reads."""
    splits = IcebergSource(table).resolve().splits(Pushed(predicates=predicates), 4)
    return len({file.path for split in splits for file in split.files()})


def test_a_query_reads_only_files_that_may_have_its_rows(by_kind: Table) -> None:
    """By values of partitions and by bounds of columns; a bound does not know of NaN."""
    assert 10 == files(by_kind)
    assert 5 == files(by_kind, Predicate("kind", Comparison.EQUAL, ("a",)))
    assert 5 == files(by_kind, Predicate("KIND", Comparison.IS_NULL))
    assert 2 == files(by_kind, Predicate("day", Comparison.EQUAL, (3,)))
    assert 1 == files(
        by_kind,
        Predicate("day", Comparison.EQUAL, (3,)),
        Predicate("kind", Comparison.IS_NOT_NULL),
    )
    assert 0 == files(by_kind, Predicate("id", Comparison.GREATER, (49,)))
    assert 10 == files(by_kind, Predicate("x", Comparison.GREATER, (1000.0,)))
    assert 2 == files(by_kind, Predicate("x", Comparison.LESS, (2.0,)))
    assert 10 == files(by_kind, Predicate("x", Comparison.EQUAL, (float("nan"),)))


@pytest.mark.slow
def test_statistics_come_from_the_manifests(by_kind: Table) -> None:
    delete_positions(by_kind, *_first_rows(by_kind, 4))
    statistics = IcebergSource(by_kind).resolve().statistics
    assert statistics is not None
    kind, day, _, number = statistics.columns
    assert 96 == statistics.rows
    assert 0.5 == kind.null_fraction
    assert ("a", "a", "0", "4", "0", "49") == (
        kind.minimum, kind.maximum, day.minimum, day.maximum, number.minimum, number.maximum,
    )  # fmt: skip


def test_distinct_counts_come_from_bounds_and_sizes(tmp_path: Path) -> None:
    """Manifests do not tell them: codes of a dictionary take few bits."""
    chance, count = random.Random(1), 4_000
    data = {
        "number": [chance.randrange(100) for _ in range(count)],
        "kind": [chance.choice(["north", "east", "south", "west"]) for _ in range(count)],
        "name": [chance.randbytes(8).hex() for _ in range(count)],
    }
    table = catalog(tmp_path).create_table("n.counted", pa.table(data).schema)
    table.append(pa.table(data))
    statistics = IcebergSource(table).resolve().statistics
    assert statistics is not None
    number, kind, name = (column.distinct for column in statistics.columns)
    assert (100, count) == (number, name)
    assert 2 <= (kind or 0) <= 16


def _first_rows(table: Table, count: int) -> tuple[DataFile, list[tuple[str, int]]]:
    file = next(iter(table.scan().plan_files())).file
    return file, [(file.file_path, number) for number in range(count)]


@pytest.mark.slow
def test_equality_deletes_are_refused_by_name(by_kind: Table) -> None:
    """Rows that others have deleted do not come back."""
    file = _first_rows(by_kind, 1)[0]
    delete_equal(by_kind, file, pa.table({"id": pa.array([1], pa.int64())}), [4])
    with pytest.raises(UnsupportedError, match=r"n\.kinds has equality deletes"):
        IcebergSource(by_kind).resolve().splits(Pushed(), 1)


@pytest.mark.slow
def test_a_table_of_files_is_found_by_its_hint_or_its_numbers(by_kind: Table) -> None:
    """What a catalog alone knows is not guessed."""
    folder = Path(by_kind.location().removeprefix("file://"))
    newest = Path(by_kind.metadata_location.removeprefix("file://"))
    with pytest.raises(DataError, match=f"Only a catalog knows .*{newest.name}"):
        IcebergSource(folder).resolve()
    assert 100 == read(IcebergSource(newest).resolve()).num_rows
    older = sorted(newest.parent.glob("*.metadata.json"))[3]
    for number, file in enumerate((older, newest)):
        shutil.copy(file, newest.parent / f"v{number + 1}.metadata.json")
    assert 100 == read(IcebergSource(folder).resolve()).num_rows
    (newest.parent / "version-hint.text").write_text("1")  # behind
    assert 100 == read(IcebergSource(folder).resolve()).num_rows
    (newest.parent / "version-hint.text").write_text(older.name.removesuffix(".metadata.json"))
    assert 100 > read(IcebergSource(folder).resolve()).num_rows
    with pytest.raises(DataError, match="is no Iceberg table"):
        IcebergSource(folder / "data").resolve()


@pytest.mark.slow
def test_earlier_versions_by_time_and_by_number(by_kind: Table) -> None:
    moments = [datetime.fromtimestamp(each.timestamp_ms / 1000, UTC) for each in by_kind.history()]
    assert 30 == read(IcebergSource(by_kind, timestamp=moments[2]).resolve()).num_rows
    number = by_kind.history()[1].snapshot_id
    assert 20 == read(IcebergSource(by_kind, snapshot_id=number).resolve()).num_rows
    for wrong in ({"snapshot_id": 1}, {"ref": "nowhere"}, {"timestamp": datetime(1999, 1, 1)}):  # noqa: DTZ001
        with pytest.raises(DataError, match="has no snapshot"):
            IcebergSource(by_kind, **wrong).resolve()


@pytest.mark.slow
def test_a_table_is_read_again_only_when_it_changes(by_kind: Table) -> None:
    source = IcebergSource(by_kind)
    first = source.resolve()
    assert first is source.resolve()
    by_kind.delete("day = 1")
    assert first.version != source.resolve().version
    assert 80 == read(source.resolve()).num_rows
    assert 100 == read(first).num_rows


@pytest.mark.parametrize("values", [[1.0, float("nan")], [0.0, float("nan")]])
def test_filters_find_nan_in_files_whose_bounds_leave_it_out(
    values: list[float], tmp_path: Path
) -> None:
    """DuckDB decides filters by a file's bounds, which Arrow and others write without NaN."""
    path = tmp_path / "numbers"
    data = pa.table({"x": values})
    pq.write_table(data, path)
    column = mapped_parquet.MappedColumn(name="x", type="DOUBLE", stored=("x",))
    file = mapped_parquet.MappedFile(path=str(path), bytes=1, columns=(column,))
    sql = mapped_parquet.MappedParquet("t", [file]).relation([str(path)]).sql
    plain = database().from_arrow(data)
    for where in ("x > 7", "x = 'nan'", "x <> 1", "x = 0", "x IN (5, 'nan')", "x <= 0"):
        found = database().sql(f"SELECT count(*) FROM {sql} WHERE {where}").fetchall()
        assert plain.filter(where).aggregate("count(*)").fetchall() == found, where


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 8])
def test_each_row_group_of_a_large_file_is_read_once(
    tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row group belongs to the range of bytes that has its middle; ranges may have none."""
    monkeypatch.setattr(mapped_parquet, "_BYTES_MIN", 1)
    path = tmp_path / "part=9"  # not a column
    data = pa.table({"x": range(1000), "s": ["text" * (each % 50) for each in range(1000)]})
    pq.write_table(data, path, row_group_size=170)
    columns = [
        mapped_parquet.MappedColumn(name="x", type="INTEGER", stored=("x",)),
        mapped_parquet.MappedColumn(name="part", type="VARCHAR", constant="'it''s'"),
    ]
    file = mapped_parquet.MappedFile(
        path=str(path), bytes=path.stat().st_size, columns=tuple(columns), rows=1000
    )
    splits = mapped_parquet.divided("t", [file], tasks)
    expected = [(each, "it's") for each in range(1000)]
    assert expected == sorted(row for split in splits for row in rows_of(split))
    assert expected == [row for split in MappedParquet.joined(splits) for row in rows_of(split)]
    if tasks > 2:  # without its neighbours
        first, _, *others = splits
        (both,) = MappedParquet.joined([first, *others])
        assert rows_of(both) == [row for split in (first, *others) for row in rows_of(split)]


def rows_of(split: MappedParquet) -> list[tuple[object, ...]]:
    sql = split.relation([each.path for each in split.files()]).sql
    return database().sql(f"SELECT x, part FROM {sql}").fetchall()


def test_one_task_reads_files_in_one_scan_where_they_are_stored_alike(
    tmp_path: Path,
) -> None:
    """DuckDB would read the others with the types of the first one."""
    columns = (MappedColumn(name="x", type="BIGINT", stored=("x",)),)
    splits = []
    for number, type_ in enumerate(("int32", "int32", "int64", "int64", "int32")):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"x": pa.array([2**number * 10**9 % 2**31], type_)}), path)
        file = MappedFile(path=str(path), bytes=path.stat().st_size, columns=columns)
        splits.append(MappedParquet("t", [file]))
    (both,) = MappedParquet.joined(splits)
    sql = both.relation([each.path for each in both.files()]).sql
    assert 3 == sql.count("read_parquet")
    expected = [(2**number * 10**9 % 2**31,) for number in range(5)]
    assert expected == database().sql(f"FROM {sql}").fetchall()


def test_a_footer_is_read_once_for_each_version_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    first = footers.columns_of_file(str(path))
    assert first is footers.columns_of_file(str(path))
    pq.write_table(pa.table({"y": [1]}), path)
    assert ["y"] == footers.columns_of_file(str(path)).names
    pq.write_table(pa.table({"x": [2, 3]}), tmp_path / "alike.parquet")
    assert first is footers.columns_of_file(str(tmp_path / "alike.parquet"))
