"""VACUUM: old versions of a table expire, and files that no version uses are removed.

Versions are kept for five days (the property `history.expire.max-snapshot-age-ms`). Files that no
version uses are left of writers that failed or were killed; they are removed after a day, as
younger ones may belong to a commit that is about to be made.
"""

from __future__ import annotations

import contextlib
import re
import time
from datetime import UTC, datetime
from typing import Any

from minishark.errors import DataError
from minishark.tables.warehouse.iceberg_catalog import ORPHAN_AGE_S
from minishark.tables.warehouse.iceberg_layout import listed

_SNAPSHOT_AGE_MS = 5 * 24 * 3600 * 1000
_OWN_FOLDER = re.compile(r"-[0-9a-f]{8}/?$")  # see IcebergCatalog.new_location
_AGE = "history.expire.max-snapshot-age-ms"
_ORPHAN_AGE = "minishark.vacuum.file-age-s"


def vacuum(table: Any) -> int:
    """Expire old versions of pyiceberg's table, and remove files; how many.

    Raises:
        DataError: its folder can't be listed.
    """
    age_ms = int(table.properties.get(_AGE, _SNAPSHOT_AGE_MS))
    oldest = datetime.fromtimestamp(time.time() - age_ms / 1000, UTC)
    if any(
        snapshot.timestamp_ms < oldest.timestamp() * 1000
        for snapshot in table.metadata.snapshots
        if snapshot.snapshot_id != table.metadata.current_snapshot_id
    ):
        table.maintenance.expire_snapshots().older_than(oldest).commit()
        table = table.refresh()
    # Only a folder that is surely the table's own: those of other catalogs may be shared.
    return _remove_unused(table) if _OWN_FOLDER.search(table.location()) else 0


def _remove_unused(table: Any) -> int:
    used = _used(table)
    latest = time.time() - float(table.properties.get(_ORPHAN_AGE, ORPHAN_AGE_S))
    location = table.location()
    try:
        files = listed(table.io, location)
    except (OSError, ValueError) as error:
        raise DataError(f"Can't list the files of {location}: {error}") from error
    removed = 0
    for uri, changed in files:
        if uri not in used and changed < latest:
            with contextlib.suppress(OSError):
                table.io.delete(uri)
                removed += 1
    return removed


def _used(table: Any) -> set[str]:
    """The URIs of all files that a version of a table uses."""
    metadata = table.metadata
    used = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    manifests: dict[str, Any] = {}
    for snapshot in metadata.snapshots:
        used.add(snapshot.manifest_list)
        manifests |= {file.manifest_path: file for file in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        used.add(path)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            used.add(entry.data_file.file_path)
    for statistics in metadata.statistics:
        used.add(statistics.statistics_path)
    return used
