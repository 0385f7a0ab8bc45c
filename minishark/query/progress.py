"""How far a query is, for whoever shows it while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class StageProgress:
    """How far a stage is.

    Attributes:
        index: the stage's number, as EXPLAIN prints it.
        tasks: how many tasks it has.
        done: how many of them have finished, or turned out not to be needed.
        rows: how many rows these gave.
        started: whether its tasks have been submitted.
    """

    index: int
    tasks: int
    done: int
    rows: int
    started: bool


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """How far a query is.

    Attributes:
        stages: every stage, in an order in which they can run.
        elapsed_s: since its first stage was submitted.
    """

    stages: tuple[StageProgress, ...]
    elapsed_s: float


ProgressHandler: TypeAlias = Callable[[QueryProgress], None]
