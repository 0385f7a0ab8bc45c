from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pytest

from minishark.compiler.sql.planning import PlanningDatabase
from minishark.errors import DataError
from minishark.model.expressions import Column
from minishark.model.predicates import Pushed
from minishark.sources.contract import Source
from minishark.sources.files import named_files
from minishark.sources.formats import OwnReach
from minishark.tables.pieces import StoredPiece
from minishark.tables.sources import arrow_table, memory_source, pieces_source, split_source
from minishark.worker.outputs import Outputs
from minishark.worker.paths import StorePaths
from minishark.worker.scans import Scans, SplitRead
from minishark.worker.store import Store
from minishark_platforms.pieces import PieceFile, write_piece

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
SCHEMA = (Column("a", "BIGINT"), Column("b", "VARCHAR"))


@pytest.fixture(scope="module")
def planning() -> Iterator[PlanningDatabase]:
    """DuckDB, which reads schemas."""
    database = PlanningDatabase()
    yield database
    database.close()


def write(path: Path, sql: str = "SELECT 1::BIGINT AS a, 'x' AS b") -> Path:
    """A file in the format of its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = {".parquet": "parquet", ".json": "json"}.get(path.suffix, "csv")
    duckdb.execute(f"COPY ({sql}) TO '{str(path).replace(chr(39), chr(39) * 2)}' (FORMAT {kind})")
    return path


def read(source: Source, tasks: int = 1) -> list[tuple[object, ...]]:
    """The rows of a source, split by split."""
    snapshot = source.resolve()
    found = []
    for split in snapshot.splits(Pushed(), tasks):
        read_ = SplitRead(snapshot.schema, (split,), Pushed()).pickled()
        scans = Scans(
            reads={"rows": (read_,)}, hold=lambda files, parts, _: OwnReach().held(files, parts)
        )
        with scans.open(), duckdb.connect() as connection:
            for name, stream in scans.streams.items():
                connection.register(name, stream)
            found += connection.execute(f"FROM {scans.relations['rows']}").fetchall()
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.json", "X.PARQUET", "it's odd.csv"])
def test_one_file(name: str, tmp_path: Path) -> None:
    """A file's kind is told by its name; its columns are read, and its size."""
    path = tmp_path / name
    suffix = path.suffix.lower()
    write(tmp_path / f"made{suffix}").rename(path)
    source = named_files(path, OwnReach())
    loaded, size = split_source(source, 1)
    assert SCHEMA == loaded.schema
    assert [(1, "x")] == read(source)
    assert path.stat().st_size == size.bytes


@pytest.mark.sample(3)
@pytest.mark.parametrize("pattern", ["parts", "parts/*.parquet", "parts/**/*.parquet"])
def test_many_files(pattern: str, tmp_path: Path) -> None:
    """A folder or a glob is all its files, in the order of their names, one piece each."""
    for i in (2, 1, 3):
        write(tmp_path / f"parts/{i}.parquet", f"SELECT {i}::BIGINT AS a, 'x' AS b")
    (tmp_path / "parts/_SUCCESS").touch()
    source = named_files(str(tmp_path / pattern), OwnReach())
    assert [(1, "x"), (2, "x"), (3, "x")] == read(source)
    loaded, size = split_source(source, 3)
    assert (3, 3) == (len(loaded.reads), size.rows)


def test_large_parquet_file_is_cut(tmp_path: Path) -> None:
    """One file is as many pieces as are welcome; together they are its rows, in order."""
    path = write(tmp_path / "x.parquet", "SELECT i AS a FROM range(300000) r(i)")
    source = named_files(path, OwnReach())
    assert 3 == len(source.resolve().splits(Pushed(), 3))
    assert [(i,) for i in range(300_000)] == read(source, 3)


def test_small_parquet_file_is_not_cut(tmp_path: Path) -> None:
    """A piece is worth its task."""
    source = named_files(write(tmp_path / "x.parquet"), OwnReach())
    assert 1 == len(source.resolve().splits(Pushed(), 8))


def test_column_that_is_called_as_the_row_number(tmp_path: Path) -> None:
    """A file with a column of the name that DuckDB numbers rows with is read whole."""
    sql = "SELECT i AS file_row_number FROM range(300000) r(i)"
    source = named_files(write(tmp_path / "x.parquet", sql), OwnReach())
    assert 1 == len(source.resolve().splits(Pushed(), 3))
    assert [(i,) for i in range(300_000)] == read(source)


@pytest.mark.parametrize(
    ("files", "pattern", "message"),
    [
        ({}, "missing.parquet", "There is no file"),
        ({}, "*.parquet", "There is no file"),
        ({"empty/note.txt": b"x"}, "empty", "There are no files in"),
        ({"x.txt": b"x"}, "x.txt", "Can't tell how to read"),
        ({"x.parquet": b"no parquet"}, "x.parquet", "Can't read"),
        ({"x.parquet": b""}, "x.parquet", "Can't read"),
        ({"d/a.csv": b"a\n1\n", "d/b.json": b'{"a": 1}'}, "d", "files of a table are of one kind"),
    ],
)
def test_bad_files(files: dict[str, bytes], pattern: str, message: str, tmp_path: Path) -> None:
    """What is missing, unreadable, of an unknown kind or mixed is one sentence."""
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        named_files(str(tmp_path / pattern), OwnReach()).resolve()


@pytest.mark.parametrize(
    "make",
    [
        pa.Table.from_batches,
        lambda batches: batches[0],
        lambda batches: pa.RecordBatchReader.from_batches(TABLE.schema, batches),
        pyarrow.dataset.dataset,
        lambda batches: duckdb.from_arrow(pa.Table.from_batches(batches)),
    ],
    ids=["Table", "RecordBatch", "RecordBatchReader", "InMemoryDataset", "DuckDBPyRelation"],
)
def test_tables_in_memory(make: Callable[[list[pa.RecordBatch]], object]) -> None:
    """Whatever holds a table is one."""
    assert TABLE.to_pylist() == arrow_table(make(TABLE.to_batches())).to_pylist()


def test_anything_that_exports_arrow() -> None:
    """The Arrow C stream is enough."""

    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return TABLE.__arrow_c_stream__(requested_schema)

    assert TABLE.to_pylist() == arrow_table(Frame()).to_pylist()


@pytest.mark.parametrize("data", [3, None, {"a": [1]}, [1, 2], object()])
def test_what_is_no_table(data: object) -> None:
    """The error names what was given, and what can be."""
    with pytest.raises(DataError, match=f"Can't make a table of a {type(data).__name__}; give"):
        arrow_table(data)


def test_relation_keeps_its_types_and_its_settings() -> None:
    """128-bit integers of a relation stay what they are; its connection stays as it was."""
    with duckdb.connect() as con:
        table = arrow_table(con.sql("SELECT 170141183460469231731687303715884105727::HUGEINT AS a"))
        after = con.execute("SELECT current_setting('arrow_lossless_conversion')").fetchall()
        assert [("HUGEINT",)] == con.from_arrow(table).query(
            "t", "SELECT typeof(a) FROM t"
        ).fetchall()
    assert [(False,)] == after


def test_memory_source_is_stored_once_and_read_in_slices(
    tmp_path: Path, planning: PlanningDatabase
) -> None:
    """As many slices as pieces are welcome; together they are the table, in order."""
    paths = StorePaths(tmp_path, tmp_path)
    paths.make("tables/1-source", ("n0",))
    store = Store(paths, "n0")
    table = pa.table({"a": list(range(10))})
    source, size = memory_source(table, store, "tables/1-source", "n0", planning, 4)
    assert (Column("a", "BIGINT"),) == source.schema
    assert 4 == len(source.slices)
    assert list(range(10)) == store.read(source.slices).column("a").to_pylist()
    assert (10, table.nbytes) == (size.rows, size.bytes)


def test_equal_rows_of_a_program_have_the_same_digest(
    tmp_path: Path, planning: PlanningDatabase
) -> None:
    """Those with other values, orders, NULLs, names or types have another one, as other cuts do."""

    def digest(table: pa.Table, pieces: int = 1) -> str:
        paths = StorePaths(tmp_path, tmp_path)
        folder = f"tables/{len(list(tmp_path.rglob('*.arrow')))}-source"
        paths.make(folder, ("n0",))
        store = Store(paths, "n0")
        named = memory_source(table, store, folder, "n0", planning, pieces, is_named=True)
        return named[0].digest

    numbers = pa.table({"a": pa.array([1, 2, None], pa.int32())})
    longer = pa.table({"a": pa.array([7, 1, 2, None, 8], pa.int32())})
    assert digest(numbers) == digest(longer.slice(1, 3))
    others = [
        pa.table({"a": pa.array([1, 3, None], pa.int32())}),
        pa.table({"a": pa.array([2, 1, None], pa.int32())}),
        pa.table({"a": pa.array([1, 2, 0], pa.int32())}),
        pa.table({"a": pa.array([1, 2], pa.int32())}),
        pa.table({"b": pa.array([1, 2, None], pa.int32())}),
        pa.table({"a": pa.array([1, 2, None], pa.int64())}),
        pa.table({"a": pa.array(["1", "2", None])}),
        pa.table({"a": pa.array(["1", "2", None]).dictionary_encode()}),
        pa.table({"a": pa.array(["1", "3", None]).dictionary_encode()}),
    ]
    digests = [digest(numbers), digest(numbers, 3), *map(digest, others)]
    assert len(digests) == len(set(digests))


@pytest.mark.parametrize("table", [TABLE.slice(0, 0), pa.table({"a": pa.array([], pa.int64())})])
def test_empty_table_has_one_slice(
    table: pa.Table, tmp_path: Path, planning: PlanningDatabase
) -> None:
    """A table without rows still has its columns."""
    paths = StorePaths(tmp_path, tmp_path)
    paths.make("tables/1-source", ("n0",))
    store = Store(paths, "n0")
    source, size = memory_source(table, store, "tables/1-source", "n0", planning, 4)
    assert (1, 0) == (len(source.slices), size.rows)
    assert table.schema.names == store.read(source.slices).schema.names


def test_a_read_that_hangs_holds_nobody_else(tmp_path: Path, planning: PlanningDatabase) -> None:
    """Other statements are bound while one waits for a file, as for a pipe that nobody writes."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    reading = threading.Thread(target=planning.relation_schema, args=(f"read_csv('{pipe}')",))
    reading.start()
    with pipe.open("w") as writer:  # opens when the reader has
        assert 1 == len(planning.bind("SELECT 42").schema)
        writer.write("a,b\n1,2\n")
    reading.join()


class _InPieces:
    """Data of another system, stored as two files."""

    def __init__(self, table: pa.Table, store: Store) -> None:
        self.schema, self._table, self._store = table.schema, table, store

    def store(self, folder: str, schema: pa.Schema, count: int) -> list[StoredPiece]:
        assert count == 2
        outputs, half = Outputs(self._store, 1 << 20), len(self._table) // 2
        parts = (self._table.slice(0, half), self._table.slice(half))
        return [
            write_piece(outputs, PieceFile(folder, i, schema), part.to_batches())
            for i, part in enumerate(parts)
        ]


@pytest.mark.parametrize(
    ("type_", "kept"),
    [
        ("int64", True),
        (pa.large_string(), True),
        (pa.decimal128(9, 2), True),
        (pa.timestamp("us"), True),
        (pa.dictionary(pa.int8(), pa.string()), False),
        (pa.list_(pa.int64()), True),
    ],
)
def test_pieces_may_become_partitions(
    type_: pa.DataType, kept: bool, tmp_path: Path, planning: PlanningDatabase
) -> None:
    """If their types are those that DuckDB's rows are stored with, or a cast keeps the values."""
    values = pa.array([None, None], type_)
    table = pa.table({"a": values}, metadata={"pandas": "{}"})
    store = Store(StorePaths(tmp_path, tmp_path), "n0")
    (tmp_path / "n0" / "s").mkdir(parents=True)
    source, size = pieces_source(_InPieces(table, store), "s", planning, 2)
    assert (size.rows, source.rows) == (2, (1, 1))
    assert len(source.partitions) == (2 if kept else 0)
    stored = store.read(source.slices)
    assert stored.num_rows == 2
    assert duckdb.from_arrow(stored).types == duckdb.from_arrow(table).types


def test_pieces_without_rows_have_columns(tmp_path: Path, planning: PlanningDatabase) -> None:
    """An empty dataset is an empty table; one with other columns than it says is refused."""
    store = Store(StorePaths(tmp_path, tmp_path), "n0")
    (tmp_path / "n0" / "s").mkdir(parents=True)
    empty = pa.table({"a": pa.array([], "int64")})
    source, _ = pieces_source(_InPieces(empty, store), "s", planning, 2)
    assert store.read(source.slices).schema.names == ["a"]
    pieces = _InPieces(pa.table({"b": ["x", "y"]}), store)
    pieces.schema = empty.schema
    with pytest.raises(DataError, match="dataset's columns"):
        pieces_source(pieces, "s", planning, 2)
