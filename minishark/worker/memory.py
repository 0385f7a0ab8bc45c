"""How a node's memory is divided between files and queries, and among its slots.

    limit = executor processes + files in shared memory + the slots' DuckDBs and buffers

Queries may use what files leave, and always keep a share: files beyond theirs go to disk. Most of
a slot's part belongs to its DuckDB, which spills above it; the rest is for what DuckDB does not
count, such as rows on their way into a file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from minishark.errors import OptionError

LIMIT_VARIABLE = "MINISHARK_MEMORY_LIMIT"
DEFAULT_SHARE = 0.75
"""The share of a machine's memory that a cluster without a limit uses."""

PROCESS_BYTES = 112 << 20
"""An executor process without DuckDB: 60 MB before its first task, then a batch or two."""

STORAGE_SHARE = 0.6
DUCKDB_SHARE = 0.75
LEAST_BYTES = 24 << 20
"""Of a DuckDB."""

_BUFFER_MIN_BYTES = 1 << 20
_BUFFER_MAX_BYTES = 64 << 20
_FRONT_END_SHARE = 0.25
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kKmMgGtT]?)(i?)[bB]?\s*")


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of one node."""

    limit_bytes: int
    slots: int  # how many tasks it runs at a time, each in a process of its own

    @property
    def usable_bytes(self) -> int:
        """The limit without the executor processes, in bytes."""
        return max(0, self.limit_bytes - self.slots * PROCESS_BYTES)

    @property
    def storage_bytes(self) -> int:
        """The most that files in shared memory may take, in bytes."""
        return int(self.usable_bytes * STORAGE_SHARE)

    def duckdb_bytes(self, stored_bytes: int, shares: float = 1.0) -> int:
        """The memory limit of each slot's DuckDB while files take `stored_bytes`.

        With more shares than its own, it has the others as a whole: no other task puts rows out.
        """
        left = self.usable_bytes - min(stored_bytes, self.storage_bytes)
        whole = max(0.0, shares - 1) + min(1.0, shares) * DUCKDB_SHARE
        return int(left / max(1, self.slots) * whole)

    @property
    def task_bytes(self) -> int:
        """The least memory limit of each slot's DuckDB, however large the files are."""
        return self.duckdb_bytes(self.storage_bytes)

    @property
    def query_bytes(self) -> int:
        """The memory that is reserved for queries, in bytes."""
        return self.usable_bytes - self.storage_bytes

    @property
    def beside_duckdb_bytes(self) -> int:
        """The memory for outputs of all tasks, which DuckDB does not count, in bytes."""
        return int(self.query_bytes * (1 - DUCKDB_SHARE))

    @property
    def buffer_bytes(self) -> int:
        """How many bytes of its output a task buffers before it writes them to a file."""
        part = self.beside_duckdb_bytes // (2 * max(1, self.slots))
        return max(_BUFFER_MIN_BYTES, min(_BUFFER_MAX_BYTES, part))


def least_bytes(slots: int) -> int:
    """The smallest workable memory limit of a node with `slots` slots, in bytes."""
    share = (1 - STORAGE_SHARE) * DUCKDB_SHARE
    return slots * (PROCESS_BYTES + math.ceil(LEAST_BYTES / share))


def front_end_bytes(limit_bytes: int) -> int:
    """The memory limit of the session's own DuckDB, beside the nodes, in bytes."""
    return max(LEAST_BYTES, int(limit_bytes * _FRONT_END_SHARE))


def parse_size(value: int | str, option: str = "") -> int:
    """Bytes, from a number of them or a text such as "4GiB", "800MB" or "1.5G".

    KiB, MiB ... are powers of 1024, KB, MB ... and K, M ... of 1000, as in DuckDB. Messages begin
    with the name of the option, if there is one.

    Raises:
        OptionError: it is neither, or not above zero.
    """
    parts = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if parts is not None:
        number, unit, binary = parts.groups()
        power = " KMGT".index(unit.upper()) if unit else 0
        size = int(float(number) * (1024 if binary else 1000) ** power)
        if size > 0 and not (binary and not unit):
            return size
    elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    named = f"{option}: " if option else ""
    raise OptionError(f"{named}{value!r} is no amount of memory; write one such as 4GiB or 800MB.")


def machine_bytes(total_bytes: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """The memory of this machine, with `total_bytes`, or of the container on it."""
    return min([total_bytes, *_cgroup_limits(proc / "self/cgroup", sys / "fs/cgroup")])


def _cgroup_limits(groups: Path, root: Path) -> list[int]:
    """The memory limits of this process's control groups (v1 or v2) and of their parents."""
    limits: list[int] = []
    try:
        lines = groups.read_text().splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            limits += _limit_in(top.joinpath(*parts[:depth], name))
    return limits


def _limit_in(file: Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # there is none, or "max"
        return []
