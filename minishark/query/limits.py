"""What a query may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from minishark.errors import ResourceError

if TYPE_CHECKING:
    from minishark.worker.protocol import (
        TaskOutcome,  # slow to import, and options are checked first
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of each query and call of a session; None for none."""

    query_timeout_s: float | None = None  # how long a query or load takes
    task_timeout_s: float | None = None  # how long a call takes that names no limit of its own
    query_disk_bytes: int | None = None  # what it writes to disk for itself: outputs, spilled rows

    def settings(self, slots: int) -> tuple[str, ...]:
        """DuckDB's settings for tasks that run in so many slots at a time."""
        if self.query_disk_bytes is None:
            return ()
        slot_bytes = self.query_disk_bytes // max(1, slots)
        return (f"SET max_temp_directory_size = '{slot_bytes}B'",)


@dataclass(slots=True)
class DiskUse:
    """What the outputs of a query take on disk."""

    limit_bytes: int | None
    used_bytes: int = 0

    def add(self, outcome: TaskOutcome) -> None:
        """Count a task's output.

        Raises:
            ResourceError: it is too much by now.
        """
        self.used_bytes += outcome.figures.disk_bytes
        if self.limit_bytes is not None and self.used_bytes > self.limit_bytes:
            raise ResourceError(
                f"The query has written {self.used_bytes >> 20} MiB to disk, as its rows did not "
                f"fit into shared memory; query_disk_limit is {self.limit_bytes >> 20} MiB. Raise "
                "it or memory_limit, or ask for less."
            )
