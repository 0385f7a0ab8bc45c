"""How a node's memory is shared: by files and queries, and among the slots that run them.

    limit = executor processes + files in shared memory + the slots' DuckDBs and buffers

What files do not take, queries may. But queries always keep a share: files beyond theirs go to
disk. Most of a slot's part is its DuckDB's, which spills where it would need more; the rest is for
what DuckDB does not count, such as rows on their way into a file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from minishark.errors import OptionError

LIMIT_VARIABLE = "MINISHARK_MEMORY_LIMIT"
DEFAULT_SHARE = 0.75
"""Of a machine's memory, what a cluster takes that is told no limit."""

PROCESS_BYTES = 112 << 20
"""What an executor takes whatever it does: 60 MB before its first task, then a batch or two."""

STORAGE_SHARE = 0.6
DUCKDB_SHARE = 0.75
_DUCKDB_MIN_BYTES = 24 << 20
_BUFFER_MIN_BYTES = 1 << 20
_BUFFER_MAX_BYTES = 64 << 20
_FRONT_END_SHARE = 0.25
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kKmMgGtT]?)(i?)[bB]?\s*")


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of one node.

    Attributes:
        limit_bytes: all that it may use.
        slots: how many tasks it runs at a time, each in a process of its own.
    """

    limit_bytes: int
    slots: int

    @property
    def usable_bytes(self) -> int:
        """What is left beside the processes themselves."""
        return max(0, self.limit_bytes - self.slots * PROCESS_BYTES)

    @property
    def storage_bytes(self) -> int:
        """What files in shared memory may take."""
        return int(self.usable_bytes * STORAGE_SHARE)

    def duckdb_bytes(self, stored_bytes: int) -> int:
        """What each slot's DuckDB may use while files take `stored_bytes`."""
        left = self.usable_bytes - min(stored_bytes, self.storage_bytes)
        return int(left / self.slots * DUCKDB_SHARE)

    @property
    def task_bytes(self) -> int:
        """What each slot's DuckDB may use at least, whatever files take."""
        return self.duckdb_bytes(self.storage_bytes)

    @property
    def query_bytes(self) -> int:
        """What queries always keep, whatever files take."""
        return self.usable_bytes - self.storage_bytes

    @property
    def beside_duckdb_bytes(self) -> int:
        """What all tasks together may hold of their outputs, which DuckDB does not count."""
        return int(self.query_bytes * (1 - DUCKDB_SHARE))

    @property
    def buffer_bytes(self) -> int:
        """How much of its output a task holds before it writes it to a file."""
        part = self.beside_duckdb_bytes // (2 * self.slots)
        return max(_BUFFER_MIN_BYTES, min(_BUFFER_MAX_BYTES, part))


def least_bytes(slots: int) -> int:
    """The limit with which a node of so many slots can run anything."""
    share = (1 - STORAGE_SHARE) * DUCKDB_SHARE
    return slots * (PROCESS_BYTES + math.ceil(_DUCKDB_MIN_BYTES / share))


def front_end_bytes(limit_bytes: int) -> int:
    """What the session's own DuckDB, for statements that write, may use beside the nodes."""
    return max(_DUCKDB_MIN_BYTES, int(limit_bytes * _FRONT_END_SHARE))


def parse_size(value: int | str) -> int:
    """Bytes, from a number of them or a text such as "4GiB", "800MB" or "1.5G".

    KiB, MiB ... are powers of 1024, KB, MB ... and K, M ... of 1000, as in DuckDB.

    Raises:
        OptionError: it is neither, or not above zero.
    """
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        number, unit, binary = found.groups()
        power = " KMGT".index(unit.upper()) if unit else 0
        size = int(float(number) * (1024 if binary else 1000) ** power)
        if size > 0 and not (binary and not unit):
            return size
    elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise OptionError(f"{value!r} is no amount of memory; write one such as 4GiB or 800MB.")


def machine_bytes(total_bytes: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int:
    """The memory of this machine, or of the container on it.

    Args:
        total_bytes: the physical memory.
        proc: where the kernel tells of processes.
        sys: where it tells of itself.
    """
    return min([total_bytes, *_cgroup_limits(proc / "self/cgroup", sys / "fs/cgroup")])


def _cgroup_limits(groups: Path, root: Path) -> list[int]:
    """The limits of this process's control groups, of either version, and of those above them."""
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
