"""The functions of SQL that give the rows of a source, and that DuckDB does not have.

`FROM iceberg_scan('folder', snapshot_id = 7)` calls the entry of that name as
`function(reach, 'folder', snapshot_id=7)`. Entries import their libraries when they are called, and
raise OptionError for arguments that they do not take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from minishark.sources.contract import Source

ScanFunction: TypeAlias = Callable[..., Source]

SCAN_FUNCTIONS: Mapping[str, ScanFunction] = {}
"""By name, in lower case."""
