"""What others write into Iceberg tables: wider types, defaults, deletion vectors, other files."""

from __future__ import annotations

import json
import struct
import zlib
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pytest
from iceberg_tables import _Deletes, catalog
from pyiceberg import types as iceberg
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record
from pyroaring import BitMap
from reading import assert_equal, read, rows

from minishark.errors import DataError, UnsupportedError
from minishark.model.predicates import Comparison, Predicate, Pushed
from minishark.sources.iceberg import IcebergSource


@pytest.mark.slow
def test_types_that_became_wider(tmp_path: Path) -> None:
    """Files and bounds keep the narrow type; also within lists and structs, and in partitions."""
    inner = pa.struct([("n", pa.int32())])
    schema = pa.schema(
        [("id", pa.int64()), ("i", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(9, 2)),
         ("p", pa.int32()), ("l", pa.list_(pa.int32())), ("s", inner)]
    )  # fmt: skip
    table = catalog(tmp_path).create_table("n.wider", schema)
    with table.update_spec() as update:
        update.add_identity("p")
    narrow = {
        "i": [2**31 - 1, -5],
        "f": [0.1, None],
        "d": [Decimal("1.50"), Decimal("-9999999.99")],
    }
    narrow |= {"p": [7, 8], "l": [[1, None], []], "s": [{"n": 1}, None]}
    table.append(pa.table({"id": [1, 2], **narrow}, schema=schema))
    with table.update_schema() as update:
        for name in ("i", ("l", "element"), ("s", "n")):
            update.update_column(name, iceberg.LongType())
        update.update_column("f", iceberg.DoubleType())
        update.update_column("d", iceberg.DecimalType(20, 2))
    wide = {"i": [2**40, 3], "f": [0.1, 1e300], "d": [Decimal("123456789012345678.25"), None]}
    wide |= {"p": [7, 9], "l": [[2**40], None], "s": [{"n": 2**40}, {"n": None}]}
    table.append(pa.table({"id": [3, 4], **wide}, schema=table.schema().as_arrow()))
    expected = table.scan().to_arrow()
    narrow_tenth = struct.unpack("f", struct.pack("f", 0.1))[0]
    predicates = [
        Predicate("i", Comparison.GREATER, (2**31 - 2,)),
        Predicate("i", Comparison.EQUAL, (2**31 - 1,)),
        Predicate("i", Comparison.LESS, (0,)),
        Predicate("i", Comparison.IN, (2**40, -5)),
        Predicate("f", Comparison.EQUAL, (narrow_tenth,)),
        Predicate("f", Comparison.LESS_OR_EQUAL, (0.1,)),
        Predicate("d", Comparison.EQUAL, (Decimal("-9999999.99"),)),
        Predicate("d", Comparison.GREATER, (Decimal(2),)),
        Predicate("p", Comparison.EQUAL, (7,)),
    ]
    snapshot = IcebergSource(table).resolve()
    assert {"i": "BIGINT", "f": "DOUBLE", "d": "DECIMAL(20,2)"}.items() <= {
        each.name: each.type for each in snapshot.schema
    }.items()
    assert_equal(snapshot, expected, predicates[:1])
    simple = ("id", "i", "f", "d", "p")  # DuckDB reads these, pyiceberg the nested ones
    with table.update_schema() as update:
        update.delete_column("l").delete_column("s")
    assert_equal(IcebergSource(table).resolve(), expected.select(simple), predicates)
    found = {row["id"]: row["f"] for row in read(IcebergSource(table).resolve()).to_pylist()}
    assert {1: narrow_tenth, 2: None, 3: 0.1, 4: 1e300} == found


def version_3(table: Table, *fields: dict[str, Any]) -> str:
    """A metadata file of the table in version 3, with more columns, as others write it."""
    newest = Path(table.metadata_location.removeprefix("file://"))
    metadata = json.loads(newest.read_text())
    metadata |= {"format-version": 3, "next-row-id": 0, "last-column-id": 999}
    for number, each in enumerate(fields):
        metadata["schemas"][-1]["fields"].append({"id": 900 + number, "required": False, **each})
    path = newest.with_name("v3.metadata.json")
    path.write_text(json.dumps(metadata))
    return str(path)


DEFAULTS: list[tuple[str, Any, Any]] = [
    ("int", 5, 5),
    ("double", 2.25, 2.25),
    ("boolean", True, True),
    ("string", "it's", "it's"),
    ("date", "2024-02-29", date(2024, 2, 29)),
    ("timestamp", "2024-02-29T01:02:03.000004", datetime(2024, 2, 29, 1, 2, 3, 4)),  # noqa: DTZ001
    ("timestamptz", "2024-02-29T01:02:03+00:00", datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)),
    ("decimal(9, 2)", "14.20", Decimal("14.20")),
    ("binary", "00ff", b"\x00\xff"),
    ("fixed[2]", "00ff", b"\x00\xff"),
    ("unknown", None, None),
]


def test_defaults_of_columns_that_files_lack(tmp_path: Path) -> None:
    """Version 3: rows of older files have a column's initial default, in each type."""
    table = catalog(tmp_path).create_table("n.defaults", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2, 3]}))
    fields = [
        {"name": f"c{number}", "type": type_, "initial-default": default, "write-default": default}
        for number, (type_, default, _) in enumerate(DEFAULTS)
    ]
    path = version_3(table, *fields)
    snapshot = IcebergSource(path).resolve()
    found = read(snapshot)
    for number, (type_, _, value) in enumerate(DEFAULTS):
        assert [value] * 3 == found[f"c{number}"].to_pylist(), type_
    equal = [
        Predicate(f"c{number}", Comparison.EQUAL, (value,))
        for number, (_, _, value) in enumerate(DEFAULTS)
        if value is not None
    ]
    assert 3 == read(snapshot, Pushed(predicates=tuple(equal))).num_rows
    assert (
        3 == read(snapshot, Pushed(predicates=(Predicate("c0", Comparison.IS_NOT_NULL),))).num_rows
    )
    assert rows(StaticTable.from_metadata(path).scan().to_arrow()) == rows(found)


@pytest.mark.parametrize("type_", ["variant", "shape"])
def test_types_that_are_not_known_are_refused_by_name(tmp_path: Path, type_: str) -> None:
    table = catalog(tmp_path).create_table("n.odd", pa.schema([("id", pa.int64())]))
    path = version_3(table, {"name": "v", "type": type_})
    with pytest.raises(DataError, match=f"(?s)v3.metadata.json.*{type_}"):
        IcebergSource(path).resolve()


def deletion_vectors(path: Path, deleted: dict[str, list[int]]) -> None:
    """A Puffin file with a vector for each data file, as the specification has it."""
    blobs, data = [], b"PFA1"
    for name, positions in deleted.items():
        keys = sorted({each >> 32 for each in positions})
        vector = struct.pack("<Q", len(keys))
        for key in keys:
            bits = BitMap([each & 0xFFFFFFFF for each in positions if each >> 32 == key])
            vector += struct.pack("<I", key) + bits.serialize()
        content = bytes.fromhex("d1d33964") + vector
        blob = struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))
        blobs.append(
            {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1,
             "offset": len(data), "length": len(blob),
             "properties": {"referenced-data-file": name, "cardinality": str(len(positions))}}
        )  # fmt: skip
        data += blob
    footer = json.dumps({"blobs": blobs}).encode()
    path.write_bytes(data + b"PFA1" + footer + struct.pack("<II", len(footer), 0) + b"PFA1")


def add_file(table: Table, path: Path, content: DataFileContent, **more: Any) -> None:
    """A snapshot with one more file, which pyiceberg would not write."""
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_size_in_bytes=path.stat().st_size,
        **{"partition": Record(), **more},
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as change:
        if content is DataFileContent.DATA:
            with change.update_snapshot().fast_append() as append:
                append.append_data_file(file)
            return
        producer = _Deletes(operation=Operation.DELETE, transaction=change, io=table.io)
        producer.delete_file = file
        producer.commit()


@pytest.mark.slow
def test_deletion_vectors(tmp_path: Path) -> None:
    """Rows that they name stay away: one Puffin file for several data files, and a later one."""
    table = catalog(tmp_path).create_table("n.vectors", pa.schema([("id", pa.int64())]))
    for first in (0, 100, 200):
        table.append(pa.table({"id": range(first, first + 100)}))
    paths = sorted(task.file.file_path for task in table.scan().plan_files())
    ids = {path: read_ids(path) for path in paths}
    gone = {paths[0]: [0, 5, 99], paths[1]: list(range(50))}
    for number, deleted in enumerate((gone, {paths[0]: [0, 5, 98, 99]})):
        puffin = Path(paths[0].removeprefix("file://")).with_name(f"{number}.puffin")
        deletion_vectors(puffin, deleted)
        add_file(
            table,
            puffin,
            DataFileContent.POSITION_DELETES,
            file_format=FileFormat.PUFFIN,
            record_count=sum(map(len, deleted.values())),
        )
    left = (
        set(range(300)) - {ids[paths[0]][each] for each in (0, 5, 98, 99)} - {*ids[paths[1]][:50]}
    )
    for source in (IcebergSource(table), IcebergSource(version_3(table))):
        assert left == set(read(source.resolve())["id"].to_pylist())
        some = Pushed(predicates=(Predicate("id", Comparison.LESS, (100,)),))
        assert {each for each in left if each < 100} <= set(
            read(source.resolve(), some)["id"].to_pylist()
        )


def read_ids(path: str) -> list[int]:
    return pa.parquet.read_table(path.removeprefix("file://"))["id"].to_pylist()


def test_a_broken_deletion_vector_is_an_error(tmp_path: Path) -> None:
    """Rows do not come back because their deletes can't be read."""
    table = catalog(tmp_path).create_table("n.broken", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": range(10)}))
    puffin = tmp_path / "broken.puffin"
    puffin.write_bytes(b"PFA1 nonsense")
    add_file(
        table,
        puffin,
        DataFileContent.POSITION_DELETES,
        file_format=FileFormat.PUFFIN,
        record_count=3,
    )
    with pytest.raises(DataError, match=r"Can't read .*\.parquet of n\.broken"):
        read(IcebergSource(table).resolve())


@pytest.mark.slow
def test_orc_is_read_and_avro_refused(tmp_path: Path) -> None:
    """Beside Parquet files."""
    table = catalog(tmp_path).create_table(
        "n.mixed", pa.schema([("id", pa.int64()), ("s", pa.string())])
    )
    table.append(pa.table({"id": [1], "s": ["a"]}))
    with table.transaction() as change:
        names = table.schema().name_mapping.model_dump_json()
        change.set_properties({"schema.name-mapping.default": names})
    more = pa.table({"id": [2, 3], "s": ["b", None]})
    path = tmp_path / "more.orc"
    pyarrow.orc.write_table(more, path)
    add_file(table, path, DataFileContent.DATA, file_format=FileFormat.ORC, record_count=2)
    assert_equal(
        IcebergSource(table).resolve(),
        table.scan().to_arrow(),
        [Predicate("id", Comparison.EQUAL, (2,)), Predicate("s", Comparison.IS_NULL)],
    )
    assert 3 == read(IcebergSource(table).resolve()).num_rows
    add_file(table, path, DataFileContent.DATA, file_format=FileFormat.AVRO, record_count=2)
    with pytest.raises(UnsupportedError, match=r"more\.orc of n\.mixed is a file of AVRO"):
        IcebergSource(table).resolve().splits(Pushed(), 1)
