"""Iceberg tables as the warehouse changes them: versions, changes, commits.

Files that tasks have written become part of a table, all of them or none.

The catalog replaces a table's metadata in one step, if nobody has done so meanwhile. Who was too
late tries again where that changes nothing about the outcome: an append is appended to whatever is
there by then. What was computed from rows that another writer has replaced is a `ConflictError`.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyiceberg import transforms
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
    ValidationException,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import StaticTable
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
)
from sqlalchemy.exc import SQLAlchemyError

from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    ConflictError,
    ExecutionError,
    QueryError,
)
from minishark.model.expressions import Column, Schema
from minishark.sources.contract import Snapshot
from minishark.sources.iceberg import IcebergSource
from minishark.tables.warehouse.contract import Described, Moment, Transform
from minishark.tables.warehouse.iceberg_layout import IcebergLayout
from minishark.tables.warehouse.iceberg_types import duckdb_schema, iceberg_schema, iceberg_type

WRITE_ID = "minishark.write-id"
"""The property of a snapshot that says which write made it."""

RETRIES = {
    "commit.retry.num-retries": "30",
    "commit.retry.max-wait-ms": "1000",
    "commit.retry.total-timeout-ms": "60000",
}
"""How often an append that was too late is repeated, where a table's properties say nothing else.
Of ten writers that begin together, the last one is too late nine times."""


class IcebergVersion:
    """A version of pyiceberg's `Table`, which stays as it is."""

    def __init__(self, name: object, table: Any) -> None:
        """`name` is for messages."""
        self._name, self.table = name, table

    @cached_property
    def columns(self) -> Schema:
        return duckdb_schema(self.table.schema())

    @property
    def required(self) -> Collection[str]:
        return {column.name for column in self.table.schema().fields if column.required}

    @property
    def defaults(self) -> Mapping[int, str]:
        return {}  # of columns without a value, it is NULL

    @property
    def comments(self) -> Mapping[str, str]:
        texts = {column.name: column.doc for column in self.table.schema().fields}
        texts[""] = self.table.properties.get("comment")
        return {name: text for name, text in texts.items() if text}

    @property
    def size(self) -> tuple[int, int] | None:
        snapshot = self.table.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return None
        totals = [snapshot.summary[key] for key in ("total-records", "total-files-size")]
        return None if None in totals else (int(totals[0] or 0), int(totals[1] or 0))

    @cached_property
    def files(self) -> Mapping[str, DataFile]:
        """The data files, by path."""
        with committing(self._name):
            tasks = self._as_it_is().scan().plan_files()
            return {task.file.file_path: task.file for task in tasks}

    def places(self) -> Mapping[str, int]:
        return {path: file.record_count for path, file in self.files.items()}

    def snapshot(self, name: str, at: Moment | None = None) -> Snapshot:
        at = at or Moment()
        table = self._as_it_is()
        return IcebergSource(table, snapshot_id=at.number, timestamp=at.time, name=name).resolve()

    def _as_it_is(self) -> StaticTable:
        table = self.table
        return StaticTable(
            table.name(), table.metadata, table.metadata_location, table.io, NoopCatalog("fixed")
        )


@dataclass(slots=True, kw_only=True)
class IcebergChange:
    """A change of a table: pyiceberg's transaction."""

    name: object  # of the table, for messages
    table: Any  # pyiceberg's table before the change
    transaction: Any
    # What becomes of files and catalog if it is not committed, of a new table, or afterwards.
    abandoned: Callable[[], None] = lambda: None
    committed: Callable[[], None] = lambda: None
    files: list[str] = field(default_factory=list)
    _version: IcebergVersion | None = None

    @classmethod
    def of(cls, name: object, table: Any, committed: Callable[[], None]) -> IcebergChange:
        """A change of pyiceberg's table, whose commit is repeated where that changes nothing."""
        properties = {**RETRIES, **table.metadata.properties}
        copy = IcebergTable(
            table.name(),
            table.metadata.model_copy(update={"properties": properties}),
            table.metadata_location,
            table.io,
            table.catalog,
        )
        return cls(name=name, table=table, transaction=copy.transaction(), committed=committed)

    @property
    def version(self) -> IcebergVersion:
        metadata = self.transaction.table_metadata
        if self._version is None or self._version.table.metadata is not metadata:
            before = self.table
            table = IcebergTable(
                before.name(), metadata, before.metadata_location, before.io, before.catalog
            )
            self._version = IcebergVersion(self.name, table)
        return self._version

    @property
    def layout(self) -> IcebergLayout:
        metadata = self.transaction.table_metadata
        return IcebergLayout(
            location=metadata.properties.get("write.data.path", f"{metadata.location}/data"),
            schema_json=metadata.schema().model_dump_json(),
            spec_json=metadata.spec().model_dump_json(),
            options=dict(metadata.properties),
            io_properties={key: str(value) for key, value in self.table.io.properties.items()},
        )

    def append(self, files: Sequence[DataFile]) -> None:
        with committing(self.name), self._update().merge_append() as update:
            # Merging keeps the number of manifests, which every query reads, small.
            for file in files:
                update.append_data_file(file)

    def replace(self, places: Collection[str], files: Sequence[DataFile]) -> None:
        stored = self.version.files
        with committing(self.name), self._update().overwrite() as update:
            for path in places:
                update.delete_data_file(stored[path])
            for file in files:
                update.append_data_file(file)

    def _update(self) -> Any:
        return self.transaction.update_snapshot(
            snapshot_properties={WRITE_ID: secrets.token_hex(8)}
        )

    def redefine(self, columns: Described, partitions: Sequence[Transform]) -> None:
        # The old files first: how they are partitioned says something about old columns.
        self.replace([*self.version.files], ())
        schema = iceberg_schema(columns.schema, columns.required)
        replace_schema(self.transaction, schema, partition_spec(partitions, schema))

    def add_column(self, column: Column) -> None:
        type_ = iceberg_type(column.name, column.type, itertools.count(1))
        with self._schema() as update:
            update.add_column(column.name, type_)

    def drop_column(self, name: str) -> None:
        with self._schema() as update:
            update.delete_column(name)

    def rename_column(self, old: str, new: str) -> None:
        with self._schema() as update:
            update.rename_column(old, new)

    def change_type(self, name: str, type_: str) -> None:
        with self._schema() as update:
            update.update_column(name, field_type=iceberg_type(name, type_, itertools.count(1)))

    def drop_not_null(self, name: str) -> None:
        with self._schema() as update:
            update.update_column(name, required=False)

    def repartition(self, partitions: Sequence[Transform]) -> None:
        """Partition rows that are written from now on in another way."""
        with _changes(), self.transaction.update_spec() as update:
            for old in self.transaction.table_metadata.spec().fields:
                update.remove_field(old.name)
            for partition in partitions:
                name = _partition_name(partition)
                update.add_field(partition.column, iceberg_transform(partition), name)

    def comment(self, column: str, text: str | None) -> None:
        if column:
            with self._schema() as update:
                update.update_column(column, doc=text or "")
        elif text is None:
            self.transaction.remove_properties("comment")
        else:
            self.transaction.set_properties({"comment": text})

    @contextlib.contextmanager
    def _schema(self) -> Iterator[Any]:
        with _changes(), self.transaction.update_schema() as update:
            yield update

    def commit(self) -> None:
        try:
            with committing(self.name):
                self.transaction.commit_transaction()
        finally:
            self.committed()

    def roll_back(self) -> None:
        for path in self.files:
            with contextlib.suppress(Exception):
                self.table.io.delete(path)
        self.abandoned()


@contextlib.contextmanager
def _changes() -> Iterator[None]:
    """Errors of pyiceberg's updates, as users get them."""
    try:
        yield
    except (ValueError, ValidationError) as error:
        raise QueryError(f"The table can't be changed so: {error}") from error


_UNITS: Mapping[str, Callable[[], Any]] = {
    "identity": transforms.IdentityTransform,
    "year": transforms.YearTransform,
    "month": transforms.MonthTransform,
    "day": transforms.DayTransform,
    "hour": transforms.HourTransform,
}


def iceberg_transform(partition: Transform) -> Any:
    match partition.kind:
        case "bucket":
            return transforms.BucketTransform(partition.number)
        case "truncate":
            return transforms.TruncateTransform(partition.number)
    return _UNITS[partition.kind]()


def _partition_name(partition: Transform) -> str:
    if partition.kind == "identity":
        return partition.column
    return f"{partition.column}_{'trunc' if partition.kind == 'truncate' else partition.kind}"


def partition_spec(partitions: Sequence[Transform], schema: IcebergSchema) -> PartitionSpec:
    """Iceberg's partition spec for the list of a PARTITIONED BY.

    Raises:
        QueryError: a column's type does not have the transform.
    """
    fields = []
    for number, partition in enumerate(partitions):
        transform = iceberg_transform(partition)
        source = schema.find_field(partition.column)
        if not transform.can_transform(source.field_type):
            raise QueryError(
                f"A table can't be partitioned by {partition.kind}({partition.column}): it is "
                f"{source.field_type}."
            )
        name = _partition_name(partition)
        fields.append(PartitionField(source.field_id, 1000 + number, transform, name))
    return PartitionSpec(*fields)


def replace_schema(transaction: Any, schema: Any, spec: Any) -> None:
    """Give the table of a transaction other columns, none of which continues an old one."""
    metadata = transaction.table_metadata
    ids = itertools.count(metadata.last_column_id + 1)
    fresh = assign_fresh_schema_ids(schema, lambda: next(ids))
    number = max(known.schema_id for known in metadata.schemas) + 1
    fresh = fresh.model_copy(update={"schema_id": number})
    updates: list[Any] = [
        AddSchemaUpdate(schema=fresh),
        SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),  # the one that was added last
    ]
    if not (spec.is_unpartitioned() and metadata.spec().is_unpartitioned()):
        names = {field.field_id: field.name for field in schema.fields}
        fields = [
            field.model_copy(
                update={
                    "source_id": fresh.find_field(names[field.source_id]).field_id,
                    "field_id": (metadata.last_partition_id or 999) + 1 + index,
                }
            )
            for index, field in enumerate(spec.fields)
        ]
        own = max(known.spec_id for known in metadata.partition_specs) + 1
        updates.append(AddPartitionSpecUpdate(spec=type(spec)(*fields, spec_id=own)))
        updates.append(SetDefaultSpecUpdate.model_validate({"spec-id": -1}))
    transaction._apply(tuple(updates), ())  # noqa: SLF001 - it has no other way to do so


@contextlib.contextmanager
def committing(name: object) -> Iterator[None]:
    """Change and commit inside; errors as users get them.

    Raises:
        ConflictError: another writer has changed the table meanwhile.
        CatalogError: a table of that name was created, or dropped, meanwhile.
    """
    try:
        yield
    except (CommitFailedException, ValidationException) as error:
        raise ConflictError(
            f"Another writer has changed {name} meanwhile; nothing was written. "
            f"Run the statement again. ({error})"
        ) from error
    except CommitStateUnknownException as error:
        raise ExecutionError(
            f"The catalog did not say whether the change of {name} was made: look before you run "
            f"the statement again. ({error})"
        ) from error
    except TableAlreadyExistsError as error:
        raise AlreadyExistsError(f"There is a table called {name} already.") from error
    except NoSuchTableError as error:
        raise CatalogError(f"Table {name} was dropped meanwhile.") from error
    except FileNotFoundError as error:  # its metadata is gone
        raise CatalogError(f"Table {name} was dropped meanwhile, or lost files: {error}") from error
    except (OSError, SQLAlchemyError) as error:
        first = str(error).partition("\n")[0]
        raise ExecutionError(f"Can't commit the change of {name}: {first}") from error
