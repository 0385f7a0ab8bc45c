"""The catalog of a warehouse of Iceberg tables, and which version of each is current.

By default the catalog is a SQLite file in the warehouse's folder, `catalog.sqlite`, which PyIceberg
opens as `SqlCatalog("warehouse", uri="sqlite:///FOLDER/catalog.sqlite")`; in a folder of S3, it is
`catalog.json` (`stored_catalog`). Any other catalog that PyIceberg knows will do as well.
"""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
)
from sqlalchemy.exc import SQLAlchemyError

from minishark.errors import (
    AlreadyExistsError,
    CatalogError,
    DataError,
    ExecutionError,
    OptionError,
)
from minishark.sources.filesystems import (
    FROM_ENVIRONMENT,
    StoreAccess,
    list_below,
    remove_files,
)
from minishark.sources.iceberg import from_environment
from minishark.sources.store_settings import access_of_properties, iceberg_properties
from minishark.tables.warehouse.contract import (
    MAIN,
    NAME,
    Catalog,
    Described,
    TableName,
    Transform,
    same_name,
)
from minishark.tables.warehouse.iceberg import (
    IcebergChange,
    IcebergVersion,
    committing,
    partition_spec,
)
from minishark.tables.warehouse.iceberg_types import iceberg_schema

ORPHAN_AGE_S = 24 * 3600
"""Files that no table uses are removed from this age on: younger ones may be about to be used."""

_LOCAL = "file://"
_STORED = ("s3://", "s3a://")
_LOCK_S = 30  # until another process must have released SQLite's lock


class Places:
    """Where the current metadata of tables is, as a catalog in SQLite says; for one thread a time.

    SQLite tells a connection whether others have changed the file, so that it is read only then.
    """

    def __init__(self, engine: Any) -> None:
        """`engine` is SQLAlchemy's."""
        pooled = engine.raw_connection()
        self._connection: sqlite3.Connection = pooled.driver_connection
        pooled.detach()  # a connection that nobody changes anything with
        self._version = -1
        self._known: dict[tuple[str, str], str | None] = {}

    def version(self) -> int:
        """Another one whenever anything was changed; errors are those of `of`."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)

    def of(self, schema: str, table: str) -> str | None:
        """None if there is no such table.

        Raises:
            sqlite3.Error: the file can't be read, or is locked for too long.
        """
        version = self.version()
        if version != self._version:
            self._known.clear()
            self._version = version
        key = (schema, table)
        if key not in self._known:
            row = self._connection.execute(
                "SELECT metadata_location FROM iceberg_tables "
                "WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?",
                (NAME, schema, table),
            ).fetchone()
            self._known[key] = None if row is None else row[0]
        return self._known[key]

    def close(self) -> None:
        self._connection.close()


@dataclass(slots=True, kw_only=True)
class IcebergCatalog(Catalog):
    """Schemas and tables of a warehouse; safe to use from several threads."""

    where: str  # what messages call it; without credentials
    catalog: Any  # PyIceberg's
    folder: str = ""  # the URI of the warehouse's folder, if the catalog is embedded there
    access: Callable[[], StoreAccess] = lambda: FROM_ENVIRONMENT  # how object stores are reached
    given: Mapping[str, str] = field(default_factory=dict, repr=False)  # what users said
    _session: dict[str, str] = field(default_factory=dict, repr=False)
    _tables: dict[TableName, IcebergVersion] = field(default_factory=dict)
    _places: Places | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    # Schemas

    def schemas(self) -> list[str]:
        with _reached(self.where):
            return sorted(".".join(name) for name in self.catalog.list_namespaces())

    def create_schema(self, name: str, *, exists_ok: bool = False) -> None:
        with self._lock:
            if self.schema(name) is not None:
                if exists_ok:
                    return
                raise AlreadyExistsError(f"There is a schema called {name!r} already.")
            with _reached(self.where):
                self.catalog.create_namespace(name)

    def drop_schema(self, name: str, *, missing_ok: bool = False, cascade: bool = False) -> None:
        with self._lock:
            if missing_ok and self.schema(name) is None:
                return
            schema = self.existing_schema(name)
            tables = self.tables(schema)
            if tables and not cascade:
                names = ", ".join(table.table for table in tables)
                raise CatalogError(
                    f"Schema {schema!r} has tables ({names}): drop them first, or write CASCADE."
                )
            for table in tables:
                self.drop(table)
            with _reached(self.where):
                self.catalog.drop_namespace(schema)

    # Tables

    def tables(self, schema: str | None = None) -> list[TableName]:
        """The tables of a schema, or of all of them."""
        with _reached(self.where):
            return sorted(
                TableName(name, identifier[-1])
                for name in ([schema] if schema is not None else self.schemas())
                for identifier in self.catalog.list_tables(name)
            )

    def find(self, schema: str, table: str) -> TableName | None:
        """A table's name as it was created; None if there is none of that name in any case."""
        with self._lock:
            for full_name in self._tables:
                if (full_name.schema.lower(), full_name.table.lower()) == (
                    schema.lower(),
                    table.lower(),
                ):
                    return full_name
        full_schema = self.schema(schema)
        if full_schema is None:
            return None
        name = same_name(table, [full_name.table for full_name in self.tables(full_schema)])
        return None if name is None else TableName(full_schema, name)

    def load(self, name: TableName) -> IcebergVersion:
        """The version as it is now; one look at the catalog if it has not changed."""
        self._renew()
        with self._lock:
            last = self._tables.get(name)
        try:
            with _reached(self.where):
                if last is not None and self._location(name) == last.table.metadata_location:
                    return last
                version = IcebergVersion(name, self.catalog.load_table((name.schema, name.table)))
        except NoSuchTableError as error:
            with self._lock:
                self._tables.pop(name, None)
            raise CatalogError(f"There is no table called {name}.") from error
        with self._lock:
            self._tables[name] = version
        return version

    def _location(self, name: TableName) -> str | None:
        """Where the current metadata of a table is, if that is cheaper to ask than to load it."""
        if not self.folder:
            return None
        if not self.folder.startswith(_LOCAL):
            location = self.catalog.location(name.schema, name.table)
            return None if location is None else str(location)
        with self._lock:
            return self._opened_places().of(name.schema, name.table)

    def version(self) -> int | None:
        """Another one whenever any table was changed; None if that is not cheap to ask."""
        if not self.folder.startswith(_LOCAL):
            return None
        with self._lock, _reached(self.where):
            return self._opened_places().version()

    def _opened_places(self) -> Places:
        if self._places is None:
            self._places = Places(self.catalog.engine)
        return self._places

    def _io(self) -> Any:
        """PyIceberg's access to files of the warehouse's folder."""
        return self.catalog._load_file_io(location=self.folder)  # noqa: SLF001 - as catalogs do

    def _renew(self) -> None:
        """Have the catalog use the credentials that the session has now."""
        properties = self.catalog.properties
        session = _session_properties(properties, self.access())
        with self._lock:
            if session != self._session:
                self._session = session
                properties.update({**session, **self.given})
                self._tables.clear()

    def forget(self, name: TableName) -> None:
        """Load a table anew the next time."""
        with self._lock:
            self._tables.pop(name, None)

    def drop(self, name: TableName) -> None:
        """Drop a table; of an embedded catalog, its files, too."""
        try:
            with _reached(self.where):
                table = self.catalog.load_table((name.schema, name.table))
                self.catalog.drop_table((name.schema, name.table))
        except NoSuchTableError as error:
            raise CatalogError(f"There is no table called {name}.") from error
        finally:
            self.forget(name)
        if self.folder:
            remove_folder(table.location(), table.io)

    def rename(self, name: TableName, to: TableName) -> None:
        try:
            with _reached(self.where):
                self.catalog.rename_table((name.schema, name.table), (to.schema, to.table))
        except TableAlreadyExistsError as error:
            raise AlreadyExistsError(f"There is a table called {to} already.") from error
        finally:
            self.forget(name)

    def new_location(self, name: TableName) -> str | None:
        """Where a new table's files go; None for where the catalog says."""
        # Never the folder of another table: one that was dropped or renamed may be in use.
        root = self.folder or self.catalog.properties.get("warehouse", "")
        if self.catalog.properties.get("type") == "rest" or "://" not in root:
            return None
        return f"{root.rstrip('/')}/{name.schema}/{name.table}-{secrets.token_hex(4)}"

    def change(self, name: TableName) -> IcebergChange:
        return IcebergChange.of(name, self.load(name).table, lambda: self.forget(name))

    def create(
        self,
        name: TableName,
        columns: Described,
        partitions: Sequence[Transform],
        properties: Mapping[str, str],
    ) -> IcebergChange:
        schema = iceberg_schema(columns.schema, columns.required)
        spec = partition_spec(partitions, schema)
        self._renew()
        with committing(name), _reached(self.where):
            transaction = self.catalog.create_table_transaction(
                (name.schema, name.table),
                schema,
                location=self.new_location(name),
                partition_spec=spec,
                properties=dict(properties),
            )
        location = transaction.table_metadata.location
        return IcebergChange(
            name=name,
            table=transaction._table,  # noqa: SLF001 - a new table is nowhere else
            transaction=transaction,
            abandoned=lambda: self._abandon(name, location),
        )

    def _abandon(self, name: TableName, location: str) -> None:
        """Remove the files of a table that was not created after all."""
        if not self.folder:
            return
        with contextlib.suppress(Exception):
            stored = self.catalog.load_table((name.schema, name.table))
            if stored.location() == location:
                return  # it was created
        remove_folder(location, self._io())

    def vacuum(self, name: TableName | None) -> int:
        from minishark.tables.warehouse.vacuum import vacuum  # noqa: PLC0415 - it needs this module

        removed = 0
        for table in self.tables() if name is None else [name]:
            with committing(table):
                removed += vacuum(self.load(table).table)
            self.forget(table)
        return removed if name is not None else removed + self._remove_unknown_folders()

    def _remove_unknown_folders(self) -> int:
        """Remove folders that no table of an embedded catalog uses; how many files that were.

        They are left of writers that were killed. Newer ones may be of tables that are being
        created.
        """
        from pyarrow.fs import FileSelector  # noqa: PLC0415 - slow to import

        if not self.folder:
            return 0
        self._renew()
        used = {self.load(name).table.location() for name in self.tables()}
        io = self._io()
        removed = 0
        for schema in self.schemas():
            system, root = file_system(f"{self.folder}/{schema}", io)
            selector = FileSelector(root, recursive=True, allow_not_found=True)
            files: dict[str, list[Any]] = {}
            for info in system.get_file_info(selector):
                table, _, inside = info.path.removeprefix(root).strip("/").partition("/")
                if info.is_file and inside and "-" in table:
                    files.setdefault(f"{self.folder}/{schema}/{table}", []).append(info)
            for folder, infos in files.items():
                newest = max(info.mtime.timestamp() for info in infos)
                if folder not in used and newest < time.time() - ORPHAN_AGE_S:
                    remove_folder(folder, io)
                    removed += len(infos)
        return removed

    def close(self) -> None:
        with self._lock, contextlib.suppress(Exception):
            if self._places is not None:
                self._places.close()
            self.catalog.close()


def open_iceberg(
    where: str | Path | Mapping[str, str], access: Callable[[], StoreAccess]
) -> IcebergCatalog:
    """See `opening.open_catalog`; PyIceberg is installed."""
    if isinstance(where, Mapping):
        named = where.get("uri", where.get("type", "warehouse"))
        return _opened(str(named).rpartition("@")[2], dict(where), access)
    text = str(where)
    if text.startswith(("http://", "https://")):
        return _opened(text.rpartition("@")[2], {"type": "rest", "uri": text}, access)
    if text.startswith(_STORED):
        uri = text.rstrip("/")
        properties = {"py-catalog-impl": f"{__package__}.stored_catalog.StoredCatalog"}
        return _embedded(uri, uri, {**properties, "warehouse": uri}, access)
    if "://" in text and not text.startswith(_LOCAL):
        raise OptionError(
            f"A warehouse at {text.partition('://')[0]}:// needs a catalog elsewhere: pass "
            'warehouse={"uri": "http://...", "warehouse": "gs://..."}, the properties of a '
            "catalog as PyIceberg takes them."
        )
    folder = Path(text.removeprefix(_LOCAL)).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"Can't use {folder} as a warehouse: {error.strerror}.") from error
    uri = f"{_LOCAL}{folder}"
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.sqlite?timeout={_LOCK_S}",
        "warehouse": uri,
    }
    return _embedded(str(folder), uri, properties, access)


def _embedded(
    where: str, folder: str, properties: Mapping[str, str], access: Callable[[], StoreAccess]
) -> IcebergCatalog:
    catalog = _opened(where, properties, access)
    catalog.folder = folder
    with contextlib.suppress(CatalogError):  # another session was faster
        catalog.create_schema(MAIN, exists_ok=True)
    return catalog


def _opened(
    where: str, properties: Mapping[str, str], access: Callable[[], StoreAccess]
) -> IcebergCatalog:
    given = dict(properties)
    session = _session_properties(given, access())
    environment = from_environment() if given.get("warehouse", "").startswith(_STORED) else {}
    with _reached(where):
        catalog = load_catalog(NAME, **{**environment, **session, **given})
    return IcebergCatalog(
        where=where, catalog=catalog, access=access, given=given, _session=session
    )


def _session_properties(properties: Mapping[str, str], access: StoreAccess) -> dict[str, str]:
    """The session's settings of the store that the files are in, as PyIceberg names them."""
    folder = properties.get("warehouse", "")
    # A catalog that is a server says where with each table.
    return iceberg_properties(folder if "://" in folder else "s3://", access)


@contextlib.contextmanager
def _reached(where: str) -> Iterator[None]:
    """Errors of a catalog's network, files and database, naming the catalog."""
    try:
        yield
    except (NoSuchTableError, TableAlreadyExistsError):
        raise
    except (NoSuchNamespaceError, NamespaceAlreadyExistsError) as error:
        raise CatalogError(f"{error}") from error
    except (OSError, RESTError, SQLAlchemyError, sqlite3.Error) as error:
        first = str(error).partition("\n")[0]
        raise ExecutionError(f"The catalog of the warehouse {where} failed: {first}") from error


def file_system(location: str, io: Any) -> tuple[Any, str]:
    """Pyarrow's file system of a URI, and the path there; with the settings of pyiceberg's `io`."""
    from pyarrow.fs import FileSystem  # noqa: PLC0415 - slow to import

    scheme, _, path = location.partition("://")
    if location.startswith(_LOCAL) or not hasattr(io, "fs_by_scheme"):
        system, path = FileSystem.from_uri(location)
        return system, path
    return io.fs_by_scheme(scheme, path.partition("/")[0]), path


def remove_folder(location: str, io: Any) -> None:
    """Remove a folder with all its files, as far as that is possible; a URI."""
    access = access_of_properties(location, io.properties)
    with contextlib.suppress(OSError, DataError):
        if location.startswith(_STORED) and access is not None:  # pyarrow leaves markers of folders
            remove_files([file.path for file in list_below(location, access)], access)
            return
        system, path = file_system(location, io)
        system.delete_dir(path)
