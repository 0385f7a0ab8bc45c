"""Iceberg tables of every kind, made by chance: partitions, changed schemas, deletes, history."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.typedef import Record

from minishark.model.predicates import Comparison, Predicate

_DAY = date(2023, 12, 30)
_TEXTS = ("", "a", "b", "Ä", "it's", "x" * 30, "part=1", "a/b", "%41 +", "100%")
_STEPS = (
    "append",
    "append",
    "append",
    "evolve",
    "partition",
    "delete",
    "positions",
    "foreign",
    "tag",
)


def catalog(folder: Path) -> SqlCatalog:
    folder.mkdir(parents=True, exist_ok=True)
    found = SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    found.create_namespace_if_not_exists("n")
    return found


def value(type_: iceberg.IcebergType, chance: random.Random) -> Any:
    """A value of a type; NULL now and then. Few different ones, so that some are equal."""
    if chance.random() < 0.15:
        return None
    match type_:
        case iceberg.BooleanType():
            return chance.random() < 0.5
        case iceberg.IntegerType() | iceberg.LongType():
            return chance.choice((-(2**31), -1, 0, 1, 2, 3, 7, 2**31 - 1))
        case iceberg.FloatType() | iceberg.DoubleType():
            return chance.choice((float("nan"), float("inf"), -0.0, 0.0, 0.5, 1.5, -3.25))
        case iceberg.DecimalType(scale=scale):
            return Decimal(chance.randrange(-300, 300)).scaleb(-scale)
        case iceberg.StringType():
            return chance.choice(_TEXTS)
        case iceberg.DateType():
            return _DAY + timedelta(days=chance.randrange(4))
        case iceberg.TimeType():
            return time(chance.randrange(24), 30, 0, 5)
        case iceberg.TimestampType():
            return datetime.fromisoformat("2023-12-31T23:59:59.999999") + timedelta(
                hours=chance.randrange(9)
            )
        case iceberg.TimestamptzType():
            return datetime(2023, 12, 31, 20, tzinfo=UTC) + timedelta(hours=chance.randrange(9))
        case iceberg.UUIDType():
            return UUID(int=chance.randrange(3)).bytes
        case iceberg.FixedType():
            return bytes([chance.randrange(3)] * len(type_))
        case iceberg.BinaryType():
            return bytes([chance.randrange(255)] * chance.randrange(3))
        case iceberg.ListType(element_type=element):
            return [value(element, chance) for _ in range(chance.randrange(3))]
        case iceberg.MapType():
            return [("k", chance.randrange(9))]
        case iceberg.StructType(fields=fields):
            return {each.name: value(each.field_type, chance) for each in fields}
        case _:
            raise AssertionError(type_)


def _types(chance: random.Random) -> iceberg.IcebergType:
    number = 1000 + chance.randrange(10**6)
    optional = {"required": False}
    kinds: list[iceberg.IcebergType] = [
        iceberg.IntegerType(),
        iceberg.IntegerType(),
        iceberg.LongType(),
        iceberg.FloatType(),
        iceberg.DoubleType(),
        iceberg.StringType(),
        iceberg.StringType(),
        iceberg.BooleanType(),
        iceberg.DateType(),
        iceberg.TimeType(),
        iceberg.TimestampType(),
        iceberg.TimestamptzType(),
        iceberg.DecimalType(9, 2),
        iceberg.DecimalType(20, 4),
        iceberg.BinaryType(),
        iceberg.FixedType(4),
        iceberg.UUIDType(),
        iceberg.ListType(number, iceberg.LongType(), element_required=False),
        iceberg.MapType(number, iceberg.StringType(), number + 1, iceberg.LongType(), False),
        iceberg.StructType(
            iceberg.NestedField(number, "x", iceberg.IntegerType(), **optional),
            iceberg.NestedField(number + 1, "y", iceberg.StringType(), **optional),
        ),
    ]
    return chance.choice(kinds)


@dataclass
class RandomTable:
    """An Iceberg table that changes step by step."""

    table: Table
    chance: random.Random
    tags: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    _number: int = 0

    @classmethod
    def created(cls, folder: Path, seed: int) -> RandomTable:
        chance = random.Random(seed)
        fields = [
            iceberg.NestedField(number + 1, f"c{number}", _types(chance), required=False)
            for number in range(chance.randrange(2, 6))
        ]
        schema = Schema(iceberg.NestedField(99, "id", iceberg.LongType(), required=False), *fields)
        name = f"n.t{seed}"
        # Small row groups, so that files have several.
        properties = {"format-version": "2", "write.parquet.row-group-limit": "13"}
        table = catalog(folder).create_table(name, schema, properties=properties)
        made = cls(table, chance)
        made.partition()
        made.append()
        for _ in range(chance.randrange(2, 9)):
            made.step(chance.choice(_STEPS))
        return made

    def step(self, name: str) -> None:
        getattr(self, name)()
        self.done.append(name)

    def rows(self) -> pa.Table:
        schema = self.table.schema()
        count = self.chance.randrange(1, 60)
        columns = {
            each.name: [value(each.field_type, self.chance) for _ in range(count)]
            for each in schema.fields
        }
        self._number += count
        columns["id"] = list(range(self._number - count, self._number))
        return pa.table(columns, schema=schema.as_arrow())

    def append(self) -> None:
        self.table.append(self.rows())

    def evolve(self) -> None:
        names = [each for each in self.table.schema().fields if each.name != "id"]
        sources = {each.source_id for each in self.table.spec().fields}
        free = [each for each in names if each.field_id not in sources]
        kind = self.chance.choice(("add", "drop", "rename", "promote", "nested"))
        structs = [each for each in names if isinstance(each.field_type, iceberg.StructType)]
        with self.table.update_schema() as update:
            match kind:
                case "add":
                    update.add_column(f"n{self.chance.randrange(10**6)}", _types(self.chance))
                case "drop" if len(free) > 1:
                    update.delete_column(self.chance.choice(free).name)
                case "rename" if names:
                    chosen = self.chance.choice(names).name
                    update.rename_column(chosen, f"r{self.chance.randrange(10**6)}")
                case "promote":
                    for each in free:
                        match each.field_type:
                            case iceberg.IntegerType():
                                update.update_column(each.name, iceberg.LongType())
                            case iceberg.FloatType():
                                update.update_column(each.name, iceberg.DoubleType())
                            case iceberg.DecimalType(precision=9):
                                update.update_column(each.name, iceberg.DecimalType(12, 2))
                case "nested" if structs and self.chance.random() < 0.5:
                    name = f"z{self.chance.randrange(10**6)}"
                    update.add_column((structs[0].name, name), iceberg.StringType())
                case "nested" if structs:
                    inner = structs[0].field_type.fields[0].name
                    update.rename_column((structs[0].name, inner), f"z{self.chance.randrange(99)}")

    def partition(self) -> None:
        """The table is partitioned otherwise from now on."""
        taken = {each.source_id for each in self.table.spec().fields}
        fields = [each for each in self.table.schema().fields if each.field_id not in taken]
        chosen = self.chance.choice(fields)
        transforms: list[Any] = []
        match chosen.field_type:
            case iceberg.StringType():
                transforms = [IdentityTransform(), BucketTransform(3), TruncateTransform(1)]
            case iceberg.IntegerType() | iceberg.DecimalType() | iceberg.LongType():
                transforms = [IdentityTransform(), BucketTransform(3), TruncateTransform(2)]
            case iceberg.DateType() | iceberg.TimestampType() | iceberg.TimestamptzType():
                transforms = [
                    IdentityTransform(),
                    DayTransform(),
                    MonthTransform(),
                    YearTransform(),
                ]
            case iceberg.BooleanType():
                transforms = [IdentityTransform()]
        if not find_spec("pyiceberg_core"):  # which writers of other transforms need
            transforms = [each for each in transforms if isinstance(each, IdentityTransform)]
        if not transforms or chosen.name == "id":
            return
        with self.table.update_spec() as update:
            update.add_field(chosen.name, self.chance.choice(transforms), f"p{chosen.field_id}")

    def delete(self) -> None:
        """Files with such rows are written anew."""
        low = self.chance.randrange(max(self._number, 1))
        self.table.delete(f"id >= {low} and id < {low + 5}")

    def positions(self) -> None:
        """Some rows of a file or two are deleted by a file with their positions."""
        files = [task.file for task in self.table.scan().plan_files()]
        if not files:
            return
        chosen = self.chance.choice(files)
        same = [
            file
            for file in files
            if (file.spec_id, file.partition) == (chosen.spec_id, chosen.partition)
        ]
        positions = [
            (file.file_path, number)
            for file in sorted(
                {chosen.file_path: chosen, same[0].file_path: same[0]}.values(),
                key=lambda f: f.file_path,
            )
            for number in range(file.record_count)
            if self.chance.random() < 0.3
        ]
        if positions:
            delete_positions(self.table, chosen, positions)

    def foreign(self) -> None:
        """A file without field ids, and without the columns whose values its partition has."""
        table = self.table
        if "schema.name-mapping.default" not in table.properties:
            with table.transaction() as change:
                change.set_properties(
                    {"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()}
                )
        spec = table.spec()
        if any(not isinstance(each.transform, IdentityTransform) for each in spec.fields):
            return
        data = self.rows()
        names = [table.schema().find_column_name(each.source_id) for each in spec.fields]
        values = [data[name][0].as_py() for name in names]
        data = data.drop_columns(names).replace_schema_metadata()
        plain = pa.schema([pa.field(each.name, each.type) for each in data.schema])
        if any(pa.types.is_nested(each.type) for each in plain):
            return  # whose fields would need ids
        path = f"{table.location()}/data/foreign{self.chance.randrange(10**9)}.parquet"
        pq.write_table(data.cast(plain), path.removeprefix("file://"), row_group_size=7)
        values = [_stored(each) for each in values]
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=data.num_rows,
            file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        )
        file.spec_id = spec.spec_id
        with table.transaction() as change, change.update_snapshot().fast_append() as append:
            append.append_data_file(file)

    def tag(self) -> None:
        snapshot = self.table.current_snapshot()
        name = f"tag{len(self.tags)}"
        if snapshot is not None:
            self.table.manage_snapshots().create_tag(snapshot.snapshot_id, name).commit()
            self.tags.append(name)

    def predicates(self, data: pa.Table) -> Iterator[Predicate]:
        """Conditions on columns that can be compared, with values of theirs."""
        for column in data.column_names:
            kind = data.schema.field(column).type
            if pa.types.is_nested(kind) or isinstance(kind, pa.ExtensionType):
                continue
            yield Predicate(column, Comparison.IS_NULL)
            yield Predicate(column, Comparison.IS_NOT_NULL)
            values = [each for each in data[column].to_pylist() if each is not None]
            if values:
                comparisons = [each for each in Comparison if "NULL" not in each and each != "IN"]
                chosen = self.chance.choice(values)
                yield Predicate(column, self.chance.choice(comparisons), (chosen,))
                yield Predicate(column, self.chance.choice(comparisons), (chosen,))
                yield Predicate(column, Comparison.IN, tuple(values[:2]))


def _stored(each: Any) -> Any:
    """A value as partitions have it."""
    match each:
        case datetime():
            moment = each if each.tzinfo else each.replace(tzinfo=UTC)
            return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        case date():
            return (each - date(1970, 1, 1)).days
        case _:
            return each


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _Deletes(_FastAppendFiles):
    """A snapshot that adds a delete file."""

    delete_file: DataFile

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        spec = self._transaction.table_metadata.specs()[self.delete_file.spec_id]
        writer = _DeleteManifest(
            spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression
        )
        entry = ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED,
            snapshot_id=self._snapshot_id,
            sequence_number=None,
            file_sequence_number=None,
            data_file=self.delete_file,
        )
        with writer:
            writer.add_entry(entry)
        return [*manifests, writer.to_manifest_file()]


def delete_positions(table: Table, like: DataFile, positions: list[tuple[str, int]]) -> None:
    """Add a file of positional deletes in the partition of the file `like`."""
    paths, numbers = zip(*positions, strict=True)
    data = pa.table(
        {"file_path": pa.array(paths, pa.string()), "pos": pa.array(numbers, pa.int64())}
    )
    _add_deletes(table, like, data, DataFileContent.POSITION_DELETES)


def delete_equal(table: Table, like: DataFile, data: pa.Table, ids: list[int]) -> None:
    """Add a file of equality deletes."""
    _add_deletes(table, like, data, DataFileContent.EQUALITY_DELETES, ids)


def _add_deletes(
    table: Table,
    like: DataFile,
    data: pa.Table,
    content: DataFileContent,
    ids: list[int] | None = None,
) -> None:
    number = len(table.metadata.snapshots)
    path = f"{table.location()}/data/delete-{number}.parquet"
    pq.write_table(data, path.removeprefix("file://"))
    file = DataFile.from_args(
        content=content,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=like.partition,
        record_count=data.num_rows,
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        equality_ids=ids,
    )
    file.spec_id = like.spec_id
    with table.transaction() as change:
        producer = _Deletes(operation=Operation.DELETE, transaction=change, io=table.io)
        producer.delete_file = file
        producer.commit()
