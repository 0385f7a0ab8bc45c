"""The progress of running queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from minishark.model.events.figures import TaskFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgress:
    """The progress of a stage.

    Attributes:
        index: its number, as EXPLAIN prints it.
        tasks: its number of tasks.
        done: the number of tasks that have completed, or are not needed any more.
        figures: the sums of the figures of completed tasks.
        started: whether its tasks have been submitted.
        running: of the tasks that run on this host, how much is done: 0.4 for 40 % of one.
    """

    index: int
    tasks: int
    done: int
    figures: TaskFigures
    started: bool
    running: float = 0.0

    @property
    def rows(self) -> int:
        """The rows that the completed tasks returned."""
        return self.figures.rows


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The progress of a query.

    Attributes:
        stages: its stages, in topological order.
        elapsed_s: seconds since it started to run.
        query: its number in the session, by which tasks of `session.nodes()` name it.
    """

    stages: tuple[StageProgress, ...]
    elapsed_s: float
    query: int = 0


ProgressHandler: TypeAlias = Callable[[QueryProgress], None]
