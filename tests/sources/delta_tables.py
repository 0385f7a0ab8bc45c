"""Delta tables of every kind, made by chance: partitions, changed schemas, deletes, history."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from zmq.utils import z85

from minishark.model.predicates import Comparison, Predicate

_TEXTS = ("a", "b", "Ä", "it's", "x" * 40, "part=1", "a/b", "%41 +", "100%", "c d")
_TYPES: tuple[pa.DataType, ...] = (
    pa.int32(),
    pa.int64(),
    pa.int16(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.string(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("us"),
    pa.decimal128(9, 2),
    pa.decimal128(30, 4),
    pa.binary(),
    pa.list_(pa.int64()),
    pa.struct([("x", pa.int64()), ("y", pa.string())]),
)
_STEPS = ("append", "append", "append", "add_column", "delete", "update", "compact")


def value(type_: pa.DataType, chance: random.Random) -> Any:
    """A value of a type; NULL now and then. Few different ones, so that some are equal."""
    if chance.random() < 0.15:
        return None
    if pa.types.is_boolean(type_):
        return chance.random() < 0.5
    if pa.types.is_integer(type_):
        return chance.choice((-(2**15), -1, 0, 1, 2, 3, 2**15 - 1))
    if pa.types.is_floating(type_):
        return chance.choice((float("nan"), float("inf"), -0.0, 0.0, 0.5, 1.5, -3.25))
    if pa.types.is_decimal(type_):
        # deltalake can't write negative ones as values of partitions.
        digits = 300 if type_.precision < 20 else 10**20
        return Decimal(chance.randrange(digits)).scaleb(-type_.scale)
    if pa.types.is_string(type_):
        return chance.choice(_TEXTS)
    if pa.types.is_date(type_):
        return date(2023, 12, 30) + timedelta(days=chance.randrange(4))
    if pa.types.is_timestamp(type_):
        moment = datetime.fromisoformat("2023-12-31T23:59:59.999777") + timedelta(
            hours=chance.randrange(9)
        )
        return moment.replace(tzinfo=UTC) if type_.tz else moment
    if pa.types.is_binary(type_):
        # An empty one as a partition's value is NULL in the log, which deltalake reads as empty.
        return bytes([chance.randrange(255)] * chance.randrange(1, 3))
    if pa.types.is_list(type_):
        return [value(type_.value_type, chance) for _ in range(chance.randrange(3))]
    return {each.name: value(each.type, chance) for each in type_}


@dataclass
class RandomTable:
    """A Delta table that changes step by step."""

    path: Path
    chance: random.Random
    schema: pa.Schema
    partition_by: list[str]
    rows_made: int = 0

    @classmethod
    def created(cls, path: Path, seed: int) -> RandomTable:
        chance = random.Random(seed)
        fields = [pa.field(f"c{n}", chance.choice(_TYPES)) for n in range(chance.randrange(2, 6))]
        simple = [
            each.name
            for each in fields
            if not (pa.types.is_nested(each.type) or pa.types.is_floating(each.type))
        ]
        partition_by = chance.sample(simple, min(len(simple), chance.randrange(3)))
        if len(partition_by) == len(fields):
            partition_by = partition_by[1:]
        made = cls(path, chance, pa.schema([pa.field("id", pa.int64()), *fields]), partition_by)
        made.append()
        for _ in range(chance.randrange(1, 6)):
            getattr(made, chance.choice(_STEPS))()
        if chance.random() < 0.4:
            made.map_columns()
        if chance.random() < 0.5:
            made.delete_by_vectors()
        return made

    def rows(self) -> pa.Table:
        count = self.chance.randrange(1, 60)
        columns = {
            each.name: [value(each.type, self.chance) for _ in range(count)] for each in self.schema
        }
        columns["id"] = list(range(self.rows_made, self.rows_made + count))
        self.rows_made += count
        return pa.table(columns, schema=self.schema)

    def append(self) -> None:
        write_deltalake(
            str(self.path),
            self.rows(),
            mode="append",
            schema_mode="merge" if self.path.exists() else None,
            partition_by=self.partition_by or None,
        )

    def add_column(self) -> None:
        name = f"n{self.chance.randrange(10**6)}"
        structs = [n for n, each in enumerate(self.schema) if pa.types.is_struct(each.type)]
        if structs and self.chance.random() < 0.5:
            field = self.schema.field(structs[0])
            fields = [*field.type, pa.field(name, pa.string())]
            self.schema = self.schema.set(structs[0], field.with_type(pa.struct(fields)))
        else:
            self.schema = self.schema.append(pa.field(name, self.chance.choice(_TYPES)))
        self.append()

    def delete(self) -> None:
        low = self.chance.randrange(self.rows_made)
        DeltaTable(str(self.path)).delete(f"id >= {low} and id < {low + 5}")

    def update(self) -> None:
        low = self.chance.randrange(self.rows_made)
        DeltaTable(str(self.path)).update(predicate=f"id = {low}", updates={"id": "id + 100000"})

    def compact(self) -> None:
        DeltaTable(str(self.path)).optimize.compact()

    def map_columns(self) -> None:
        """From now on, columns have other names than in the files; one is gone."""
        table = DeltaTable(str(self.path))
        schema = json.loads(table.schema().to_json())
        fields = []
        for number, each in enumerate(schema["fields"]):
            mapping = {
                "delta.columnMapping.id": number + 1,
                "delta.columnMapping.physicalName": each["name"],
            }
            renamed = each["name"] not in self.partition_by and self.chance.random() < 0.4
            name = f"R {each['name']}" if renamed else each["name"]
            _map_inner(each["type"])
            fields.append({**each, "name": name, "metadata": mapping})
        gone = [each for each in fields if each["name"].startswith(("R c", "n"))]
        if gone and len(fields) - len(self.partition_by) > 2:
            fields.remove(gone[0])
        schema["fields"] = fields
        features = sorted({*(table.protocol().reader_features or ()), "columnMapping"})
        _commit(
            self.path,
            _protocol(table, features),
            _metadata(
                table,
                schema,
                {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"},
            ),
        )

    def delete_by_vectors(self) -> None:
        """Deletion vectors for some files."""
        table = DeltaTable(str(self.path))
        features = sorted({*(table.protocol().reader_features or ()), "deletionVectors"})
        actions: list[dict[str, Any]] = [_protocol(table, features)]
        for add in _adds(self.path, table.version()):
            rows = json.loads(add["stats"])["numRecords"]
            deleted = [n for n in range(rows) if self.chance.random() < 0.3]
            if deleted and self.chance.random() < 0.6:
                keep = {"path": add["path"], "partitionValues": add["partitionValues"]}
                remove = {**keep, "size": add["size"], "dataChange": True, "deletionTimestamp": 1}
                actions.append({"remove": remove})
                actions.append({"add": {**add, "deletionVector": _vector(deleted)}})
        _commit(self.path, *actions)

    def predicates(self, data: pa.Table) -> Iterator[Predicate]:
        """Conditions on columns that can be compared, with values of theirs."""
        for column in data.column_names:
            if pa.types.is_nested(data.schema.field(column).type):
                continue
            yield Predicate(column, Comparison.IS_NULL)
            yield Predicate(column, Comparison.IS_NOT_NULL)
            values = [each for each in data[column].to_pylist() if each is not None]
            if values:
                comparisons = [each for each in Comparison if "NULL" not in each and each != "IN"]
                for _ in range(2):
                    chosen = self.chance.choice(comparisons)
                    yield Predicate(column, chosen, (self.chance.choice(values),))
                yield Predicate(column, Comparison.IN, tuple(values[:2]))


def _map_inner(type_: Any) -> None:
    if isinstance(type_, dict):
        for number, each in enumerate(type_.get("fields", ())):
            each["metadata"] = {
                "delta.columnMapping.id": 50 + number,
                "delta.columnMapping.physicalName": each["name"],
            }
            _map_inner(each["type"])
        _map_inner(type_.get("elementType"))


def _protocol(table: DeltaTable, readers: list[str]) -> dict[str, Any]:
    writers = sorted({*(table.protocol().writer_features or ()), *readers})
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": readers,
            "writerFeatures": writers,
        }
    }


def _metadata(
    table: DeltaTable, schema: dict[str, Any], configuration: dict[str, str]
) -> dict[str, Any]:
    return {
        "metaData": {
            "id": str(table.metadata().id),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema),
            "partitionColumns": table.metadata().partition_columns,
            "configuration": {**table.metadata().configuration, **configuration},
            "createdTime": 1,
        }
    }


def _commit(path: Path, *actions: dict[str, Any]) -> None:
    """Write a version as other writers would, which deltalake can't."""
    version = DeltaTable(str(path)).version() + 1
    text = "\n".join(map(json.dumps, actions))
    (path / "_delta_log" / f"{version:020}.json").write_text(text)


def _adds(path: Path, version: int) -> Iterable[dict[str, Any]]:
    """The files of a version, as the log has them."""
    live: dict[str, dict[str, Any]] = {}
    for number in range(version + 1):
        for line in (path / "_delta_log" / f"{number:020}.json").read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = action["add"]
            if "remove" in action:
                live.pop(action["remove"]["path"], None)
    return live.values()


def _vector(deleted: list[int]) -> dict[str, Any]:
    """An inline deletion vector: a roaring bitmap with one container of sorted numbers."""
    numbers = struct.pack(f"<{len(deleted)}H", *deleted)
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(deleted) - 1, 16) + numbers
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded = data + bytes(-len(data) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85.encode(padded).decode(),
        "sizeInBytes": len(data),
        "cardinality": len(deleted),
    }
