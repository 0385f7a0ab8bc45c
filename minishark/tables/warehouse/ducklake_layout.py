"""How the files of a DuckLake's table are written: field ids, partitions, counts and bounds."""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from minishark.errors import UnsupportedError
from minishark.sources.ducklake import FileStatistics, LakeColumn, LakeFile, PartitionField
from minishark.sources.filesystems import (
    FROM_ENVIRONMENT,
    StoreAccess,
    is_remote,
    list_below,
    remove_files,
    write_file,
)
from minishark.tables.warehouse.partitions import Coded, coded, grouped

_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "time": pa.time64("us"),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp_us": pa.timestamp("us"),
    "timestamp_ms": pa.timestamp("ms"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamp_s": pa.timestamp("s"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "varchar": pa.string(),
    "json": pa.string(),
    "blob": pa.binary(),
    "uuid": pa.uuid(),
}
_UNBOUNDED = ("blob",)
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def arrow_field(column: LakeColumn) -> pa.Field:
    """A column as files store it.

    Raises:
        UnsupportedError: minishark does not write its type.
    """
    children = [arrow_field(child) for child in column.children]
    match column.type:
        case "list":
            type_: pa.DataType = pa.list_(children[0])
        case "map":
            type_ = pa.map_(children[0].with_nullable(False), children[1])
        case "struct":
            type_ = pa.struct(children)
        case text if text.startswith("decimal("):
            precision, scale = map(int, text[len("decimal(") : -1].split(","))
            type_ = pa.decimal128(precision, scale)
        case text if text in _ARROW:
            type_ = _ARROW[text]
        case _:
            raise UnsupportedError(
                f"Column {column.name!r} has DuckLake's type {column.type}, which minishark does "
                "not write."
            )
    number = {b"PARQUET:field_id": str(column.id).encode()}
    return pa.field(column.name, type_, nullable=column.nullable, metadata=number)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What is known so far of the values of one column of a file."""

    values: int = 0
    nulls: int = 0
    minimum: pa.Scalar | None = None
    maximum: pa.Scalar | None = None
    has_nan: bool = False

    def with_values(self, array: pa.ChunkedArray, column: LakeColumn) -> _Leaf:
        nulls = array.null_count
        has_nan, filled = self.has_nan, array
        if pa.types.is_floating(array.type):
            is_nan = pc.is_nan(array)
            if pc.any(is_nan).as_py():
                has_nan, filled = True, array.filter(pc.invert(pc.fill_null(is_nan, False)))
        low, high = self.minimum, self.maximum
        if column.type not in _UNBOUNDED:
            if isinstance(filled.type, pa.BaseExtensionType):
                filled = pa.chunked_array(
                    [c.storage for c in filled.chunks], filled.type.storage_type
                )
            bounds = pc.min_max(filled)
            low = _one(pc.less, low, bounds["min"])
            high = _one(pc.greater, high, bounds["max"])
        return _Leaf(self.values + len(array) - nulls, self.nulls + nulls, low, high, has_nan)


def _one(better: Any, old: pa.Scalar | None, new: pa.Scalar) -> pa.Scalar | None:
    if not new.is_valid:
        return old
    return new if old is None or better(new, old).as_py() else old


@dataclass(frozen=True)
class LakeLayout:
    """A `Layout` by a DuckLake's columns and partitions."""

    location: str
    columns: tuple[LakeColumn, ...]
    partition: tuple[PartitionField, ...]
    access: StoreAccess = FROM_ENVIRONMENT
    options: Mapping[str, str] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        own = (self.location, self.columns, self.partition, self.access, self.options)
        return LakeLayout, own  # without what was derived

    @cached_property
    def arrow(self) -> pa.Schema:
        return pa.schema([arrow_field(column) for column in self.columns])

    # Partitions

    def divided(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        if self.partition:
            yield from grouped(rows, [self._coded(rows, by) for by in self.partition])
        else:
            yield (), rows

    def _coded(self, rows: pa.Table, by: PartitionField) -> Coded:
        """The value of each row in the text of the catalog."""
        i = next(i for i, column in enumerate(self.columns) if column.id == by.column)
        column, values = self.columns[i], rows.column(i).combine_chunks()
        if by.transform == "identity":
            return coded(values, _texts)
        if by.transform.startswith("bucket("):
            buckets = int(by.transform[len("bucket(") : -1])
            return coded(values, lambda distinct: _buckets(distinct, column, buckets))
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp("us"))
        part = {"year": pc.year, "month": pc.month, "day": pc.day, "hour": pc.hour}[by.transform]
        return coded(part(values), _texts)

    def folder(self, partition: tuple[Any, ...]) -> str:
        names: list[str] = []
        by_id = {column.id: column.name for column in self.columns}
        for by in self.partition:
            kind = by.transform.partition("(")[0]
            name = by_id[by.column] if kind == "identity" else kind
            names.append(name if name not in names else f"{name}_{by_id[by.column]}")
        return "/".join(
            f"{quote(name, safe='')}={_NO_VALUE if value is None else quote(value, safe='')}"
            for name, value in zip(names, partition, strict=True)
        )

    # Statistics

    def measured(self, rows: pa.Table, so_far: Any) -> dict[int, _Leaf]:
        leaves: dict[int, _Leaf] = so_far or {}
        for column, array in zip(self.columns, rows.columns, strict=True):
            for leaf, values in _leaves(column, array):
                leaves[leaf.id] = leaves.get(leaf.id, _Leaf()).with_values(values, leaf)
        return leaves

    def described(
        self, path: str, size: int, partition: tuple[Any, ...], footer: Any, measured: Any
    ) -> bytes:
        stored = [leaf.id for top in self.columns for leaf in top.walk() if not leaf.children]
        sizes = dict.fromkeys(stored, 0)
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for i, number in enumerate(stored):
                sizes[number] += group.column(i).total_compressed_size
        types = {leaf.id: leaf.type for top in self.columns for leaf in top.walk()}
        statistics = {
            number: FileStatistics(
                values=leaf.values,
                nulls=leaf.nulls,
                minimum=_bound(leaf.minimum, types[number]),
                maximum=_bound(leaf.maximum, types[number]),
                has_nan=leaf.has_nan if types[number].startswith("float") else None,
                bytes=sizes[number],
            )
            for number, leaf in (measured or {}).items()
        }
        file = LakeFile(
            path=path,
            rows=footer.num_rows,
            bytes=size,
            partition=partition,
            statistics=statistics,
        )
        return msgspec.msgpack.encode(file)

    def file(self, described: bytes) -> LakeFile:
        return msgspec.msgpack.decode(described, type=LakeFile)

    # Files

    def create(self, path: str) -> Any:
        if is_remote(path):
            return _Upload(path, self.access)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Path(path).open("wb")

    def delete(self, path: str) -> None:
        if is_remote(path):
            remove_files([path], self.access)
        else:
            Path(path).unlink(missing_ok=True)

    def remove_written(self, write_id: str) -> None:
        with contextlib.suppress(Exception):
            for path, _ in listed(self.location, self.access):
                if path.rpartition("/")[2].startswith(write_id):
                    self.delete(path)


def listed(folder: str, access: StoreAccess) -> list[tuple[str, float]]:
    """The files below a folder, and when local ones were changed, in seconds since 1970."""
    if is_remote(folder):
        return [(file.path, 0.0) for file in list_below(folder, access)]
    files = (path for path in Path(folder).rglob("*") if path.is_file())
    return [(str(path), path.stat().st_mtime) for path in files]


class _Upload:
    """A file that goes to an object store when it is closed."""

    def __init__(self, uri: str, access: StoreAccess) -> None:
        self._uri, self._access = uri, access
        self._file = tempfile.NamedTemporaryFile(suffix=".parquet")  # noqa: SIM115 - closed below

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            try:
                write_file(Path(self._file.name), self._uri, self._access)
            finally:
                self._file.close()


def _leaves(
    column: LakeColumn, array: pa.ChunkedArray
) -> Iterator[tuple[LakeColumn, pa.ChunkedArray]]:
    """The columns without fields in a column; values of maps are not looked at."""
    match column.type:
        case "map":
            return
        case "struct":
            for child, values in zip(column.children, array.flatten(), strict=True):
                yield from _leaves(child, values)
        case "list":
            yield from _leaves(column.children[0], pc.list_flatten(array))
        case _:
            yield column, array


def _bound(value: pa.Scalar | None, type_: str) -> str | None:
    if value is None:
        return None
    if type_ == "uuid":
        return str(uuid.UUID(bytes=value.as_py()))
    (text,) = _texts(pa.array([value.as_py()], value.type))
    # Not every catalog can store NUL.
    return None if text is None or "\0" in text else text


def _texts(values: pa.Array) -> list[str | None]:
    """Values as the text that DuckDB has for them."""
    if isinstance(values.type, pa.UuidType):
        return [None if value is None else str(value) for value in values.to_pylist()]
    if pa.types.is_binary(values.type):
        return [None if v is None else v.hex().upper() for v in values.to_pylist()]
    texts: list[str | None] = values.cast(pa.string()).to_pylist()
    if not (pa.types.is_timestamp(values.type) or pa.types.is_time(values.type)):
        return texts
    return [None if text is None else _without_zeros(text) for text in texts]


def _without_zeros(text: str) -> str:
    """A time as DuckDB writes it: 10:11:12.5 for 10:11:12.500000."""
    zone = "+00" if text.endswith("Z") else ""
    text = text.removesuffix("Z")
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}{zone}"


# Buckets


def _buckets(values: pa.Array, column: LakeColumn, count: int) -> list[str | None]:
    """Which buckets values are in, as in Iceberg: by their murmur3 hash of 32 bits."""
    kind = column.type
    if kind == "varchar":
        data: Sequence[bytes | None] = [v if v is None else v.encode() for v in values.to_pylist()]
    elif kind.startswith(("int", "uint", "date", "timestamp", "boolean", "time")):
        if not pa.types.is_boolean(values.type) and not pa.types.is_integer(values.type):
            values = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        numbers = values.to_pylist()
        data = [
            None if v is None else (int(v) & (2**64 - 1)).to_bytes(8, "little") for v in numbers
        ]
    else:
        raise UnsupportedError(f"Column {column.name!r} of type {kind} can't be put into buckets.")
    return [None if v is None else str((murmur3(v) & 0x7FFFFFFF) % count) for v in data]


def murmur3(data: bytes) -> int:
    """The hash MurmurHash3_x86_32 of bytes, with the seed 0."""
    mask = 0xFFFFFFFF

    def mixed(block: int) -> int:
        block = block * 0xCC9E2D51 & mask
        return (block << 15 | block >> 17) * 0x1B873593 & mask

    hash_ = 0
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        hash_ ^= mixed(int.from_bytes(data[i : i + 4], "little"))
        hash_ = ((hash_ << 13 | hash_ >> 19 & 0x1FFF) & mask) * 5 + 0xE6546B64 & mask
    if len(data) > whole:
        hash_ ^= mixed(int.from_bytes(data[whole:], "little"))
    hash_ ^= len(data)
    hash_ = (hash_ ^ hash_ >> 16) * 0x85EBCA6B & mask
    hash_ = (hash_ ^ hash_ >> 13) * 0xC2B2AE35 & mask
    return hash_ ^ hash_ >> 16
