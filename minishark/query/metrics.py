"""An answer, with the record of its query."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from minishark.events.record import QueryRecord


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query, and its metrics."""

    table: pa.Table
    metrics: QueryRecord
