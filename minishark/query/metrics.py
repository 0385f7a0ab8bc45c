"""An answer, with the metrics of its query: its record, as users see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from minishark.model.events.record import QueryRecord

QueryMetrics: TypeAlias = QueryRecord
"""What a query did."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a query, and its metrics."""

    table: pa.Table
    metrics: QueryMetrics
