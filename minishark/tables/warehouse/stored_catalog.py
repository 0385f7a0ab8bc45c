"""A catalog in a file of an object store: the warehouse whose folder is `s3://bucket/lake`.

`<folder>/catalog.json` says which metadata file each table has now. Who changes it replaces it on
the condition that it is still the version that was read (If-Match), and reads it again otherwise:
of two writers one is later, and sees what the other has done. So commits of one warehouse follow
one another, which is right for some a second; for more there are REST catalogs.

Other programs open it as PyIceberg's catalog of the type
`py-catalog-impl=minishark.tables.warehouse.stored_catalog.StoredCatalog`.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from pyiceberg.catalog import Catalog, MetastoreCatalog, PropertiesUpdateSummary
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
)
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table

from minishark.errors import DataError
from minishark.sources.filesystems import StoreAccess, read_file, replace_data
from minishark.sources.store_settings import access_of_properties

_FORMAT = 1
_CHANGES_KEPT = 64
_ATTEMPTS_MAX = 50
_WAIT_S = 0.05


class Entries(msgspec.Struct, kw_only=True):
    """What the file says; names of namespaces have dots between their parts."""

    format: int = _FORMAT
    namespaces: dict[str, dict[str, str]] = {}  # with their properties
    tables: dict[str, dict[str, str]] = {}  # locations of metadata, by namespace and name
    changes: list[str] = []  # the ids of the last changes

    def metadata(self, namespace: str, table: str) -> str:
        location = self.tables.get(namespace, {}).get(table)
        if location is None:
            raise NoSuchTableError(f"Table does not exist: {namespace}.{table}")
        return location

    def add(self, namespace: str, table: str, location: str) -> None:
        self.check_namespace(namespace)
        if table in self.tables.get(namespace, {}):
            raise TableAlreadyExistsError(f"Table {namespace}.{table} already exists")
        self.tables.setdefault(namespace, {})[table] = location

    def check_namespace(self, namespace: str) -> None:
        if namespace not in self.namespaces:
            raise NoSuchNamespaceError(f"Namespace does not exist: {namespace}")


class StoredCatalog(MetastoreCatalog):
    """A catalog in `<warehouse>/catalog.json`; `warehouse` is a property, a URI."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._uri = f"{properties['warehouse'].rstrip('/')}/catalog.json"

    @property
    def _access(self) -> StoreAccess:
        access = access_of_properties(self.properties["warehouse"], self.properties)
        if access is None:
            raise DataError(f"The properties of {self._uri} have settings that are not known.")
        return access

    # The file

    def entries(self) -> Entries:
        """What there is now.

        Raises:
            DataError: the file can't be read.
        """
        return self._read()[0]

    def _read(self) -> tuple[Entries, str]:
        stored = read_file(self._uri, self._access)
        if stored is None:
            return Entries(), ""
        data, version = stored
        try:
            entries = msgspec.json.decode(data, type=Entries)
        except msgspec.DecodeError as error:
            raise DataError(f"{self._uri} is no catalog of a warehouse: {error}") from error
        if entries.format != _FORMAT:
            raise DataError(f"{self._uri} was written by a newer version of minishark.")
        return entries, version

    def _change(self, change: Callable[[Entries], None]) -> None:
        """Change the entries; `change` is called again if another writer was faster."""
        own = uuid.uuid4().hex
        for attempt in range(_ATTEMPTS_MAX):
            entries, version = self._read()
            if own in entries.changes:  # the answer to a request that was repeated was lost
                return
            change(entries)
            entries.changes = [*entries.changes, own][-_CHANGES_KEPT:]
            if replace_data(msgspec.json.encode(entries), self._uri, version, self._access):
                return
            time.sleep(random.uniform(0, _WAIT_S * min(attempt + 1, 20)))
        raise CommitFailedException(f"Too many writers change {self._uri} at a time")

    # Tables

    def load_table(self, identifier: Any) -> Table:
        namespace, name = _parts(identifier)
        location = self.entries().metadata(namespace, name)
        io = self._load_file_io(location=location)
        metadata = FromInputFile.table_metadata(io.new_input(location))
        return Table(
            identifier=(*namespace.split("."), name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    def location(self, namespace: str, table: str) -> str | None:
        """Where a table's metadata is now; None if there is no such table."""
        return self.entries().tables.get(namespace, {}).get(table)

    def create_table(self, identifier: Any, schema: Any, *rest: Any, **options: Any) -> Table:
        namespace, name = _parts(identifier)
        self.entries().check_namespace(namespace)
        staged = self._create_staged_table(identifier, schema, *rest, **options)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._change(lambda entries: entries.add(namespace, name, staged.metadata_location))
        return self.load_table(identifier)

    def register_table(
        self, identifier: Any, metadata_location: str, overwrite: bool = False
    ) -> Table:
        namespace, name = _parts(identifier)

        def change(entries: Entries) -> None:
            if overwrite:
                entries.tables.get(namespace, {}).pop(name, None)
            entries.add(namespace, name, metadata_location)

        self._change(change)
        return self.load_table(identifier)

    def drop_table(self, identifier: Any) -> None:
        namespace, name = _parts(identifier)

        def change(entries: Entries) -> None:
            entries.metadata(namespace, name)
            del entries.tables[namespace][name]

        self._change(change)

    def rename_table(self, from_identifier: Any, to_identifier: Any) -> Table:
        old, new = _parts(from_identifier), _parts(to_identifier)

        def change(entries: Entries) -> None:
            location = entries.metadata(*old)
            entries.add(*new, location)
            del entries.tables[old[0]][old[1]]

        self._change(change)
        return self.load_table(to_identifier)

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        namespace, name = _parts(table.name())
        try:
            current: Table | None = self.load_table(table.name())
        except NoSuchTableError:
            current = None
        staged = self._update_and_stage_table(current, table.name(), requirements, updates)
        new = staged.metadata_location
        if current is not None and staged.metadata == current.metadata:
            return _response(current.metadata, current.metadata_location)
        self._write_metadata(staged.metadata, staged.io, new)

        def change(entries: Entries) -> None:
            if current is None:
                entries.add(namespace, name, new)
                return
            if entries.metadata(namespace, name) != current.metadata_location:
                raise CommitFailedException(f"Table was updated meanwhile: {namespace}.{name}")
            entries.tables[namespace][name] = new

        self._change(change)
        return _response(staged.metadata, new)

    def list_tables(self, namespace: Any) -> list[tuple[str, ...]]:
        name, entries = _name(namespace), self.entries()
        entries.check_namespace(name)
        return [(*name.split("."), table) for table in entries.tables.get(name, {})]

    # Namespaces

    def create_namespace(self, namespace: Any, properties: Mapping[str, str] = {}) -> None:
        name = _name(namespace)

        def change(entries: Entries) -> None:
            if name in entries.namespaces:
                raise NamespaceAlreadyExistsError(f"Namespace {name} already exists")
            entries.namespaces[name] = dict(properties)

        self._change(change)

    def drop_namespace(self, namespace: Any) -> None:
        name = _name(namespace)

        def change(entries: Entries) -> None:
            entries.check_namespace(name)
            if entries.tables.get(name):
                raise NamespaceNotEmptyError(f"Namespace {name} is not empty")
            del entries.namespaces[name]

        self._change(change)

    def list_namespaces(self, namespace: Any = ()) -> list[tuple[str, ...]]:
        outer = Catalog.identifier_to_tuple(namespace) if namespace else ()
        namespaces = [tuple(name.split(".")) for name in self.entries().namespaces]
        return [path for path in namespaces if path[:-1] == outer]

    def load_namespace_properties(self, namespace: Any) -> dict[str, str]:
        name, entries = _name(namespace), self.entries()
        entries.check_namespace(name)
        return entries.namespaces[name]

    def update_namespace_properties(
        self,
        namespace: Any,
        removals: set[str] | None = None,
        updates: Mapping[str, str] = {},
    ) -> PropertiesUpdateSummary:
        name = _name(namespace)
        summary, properties = self._get_updated_props_and_update_summary(
            self.load_namespace_properties(name), removals, dict(updates)
        )

        def change(entries: Entries) -> None:
            entries.check_namespace(name)
            entries.namespaces[name] = properties

        self._change(change)
        return summary

    # Views: none

    def list_views(self, namespace: Any) -> list[tuple[str, ...]]:
        return []

    def view_exists(self, identifier: Any) -> bool:
        return False

    def load_view(self, identifier: Any) -> Any:
        raise NoSuchViewError(f"The warehouse has no views: {identifier}")

    def drop_view(self, identifier: Any) -> None:
        raise NoSuchViewError(f"The warehouse has no views: {identifier}")

    def register_view(self, identifier: Any, metadata_location: str) -> Any:
        raise NotImplementedError


def _response(metadata: Any, location: str) -> CommitTableResponse:
    return CommitTableResponse(metadata=metadata, **{"metadata-location": location})


def _parts(identifier: Any) -> tuple[str, str]:
    """The namespace and the name of a table."""
    return (
        Catalog.namespace_to_string(Catalog.namespace_from(identifier)),
        Catalog.table_name_from(identifier),
    )


def _name(namespace: Any) -> str:
    return Catalog.namespace_to_string(namespace, NoSuchNamespaceError)
