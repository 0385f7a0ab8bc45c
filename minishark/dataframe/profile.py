"""Profile: what a query did, stage by stage and task by task."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from minishark.errors import OptionError
from minishark.query.metrics import QueryMetrics, StageMetrics, as_dict
from minishark.query.report import aligned, metrics_text

_TASK_HEADER = ("task", "executor", "attempt", "rows", "KB", "run ms", "queue ms", "local")
_FRAME_STYLE = "width: 100%; height: 40rem; border: 0; resize: vertical"


@dataclass(frozen=True, slots=True)
class Profile:
    """What a run did; printed, it is a table of its stages.

    Attributes:
        sql: the statement.
        metrics: the same for programs.
        page: makes its page, a document of HTML.

    Examples:
        >>> profile = session.range(1000).group_by("id").count().profile()
        >>> profile.metrics.stages
        1
        >>> print(profile.why(0, 0))  # doctest: +ELLIPSIS
        task 0 ran on ..., attempt 1
        ...
    """

    sql: str
    metrics: QueryMetrics
    page: Callable[[], str]

    def __str__(self) -> str:
        return metrics_text(self.metrics)

    __repr__ = __str__

    def text(self, *, tasks: bool = False) -> str:
        """The table of stages, and optionally one of the tasks of each stage."""
        if not tasks:
            return str(self)
        tables = (
            "\n".join([f"stage {stage.index}", *aligned([_TASK_HEADER, *_task_rows(stage)])])
            for stage in self.metrics.by_stage
        )
        return "\n\n".join([str(self), *tables])

    def why(self, stage: int, task: int) -> str:
        """Why a task ran where it did: its constraints, the nodes probed, and their answers.

        Raises:
            OptionError: there is no such task.
        """
        for found in self.metrics.by_stage:
            if found.index == stage and 0 <= task < len(found.by_task):
                return "\n".join(found.by_task[task].why)
        raise OptionError(f"The query has no task {task} in a stage {stage}.")

    def to_dict(self) -> dict[str, Any]:
        """All metrics as dictionaries, lists and numbers, for JSON."""
        return {"sql": self.sql, **as_dict(self.metrics)}

    def to_html(self) -> str:
        """The query's page as one document, to save and send; it needs no network.

        Examples:
            >>> profile = session.range(1000).group_by("id").count().profile()
            >>> profile.to_html().startswith("<!doctype html>")
            True
        """
        return self.page()

    def _repr_html_(self) -> str:
        """For notebooks: the page, and as text what shows where frames are left out."""
        # The frame's scripts may run, but reach neither the notebook nor any address.
        return (
            f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(self.to_html())}" '
            f'title="Profile of a query" style="{_FRAME_STYLE}"></iframe>'
            f"<details><summary>As text</summary><pre>{html.escape(str(self))}</pre></details>"
        )


def _task_rows(stage: StageMetrics) -> Iterator[tuple[str, ...]]:
    for number, task in enumerate(stage.by_task):
        yield (
            str(number),
            task.executor,
            str(task.attempt),
            f"{task.rows:,}",
            f"{task.bytes / 1024:,.0f}",
            f"{task.run_s * 1e3:.1f}",
            f"{task.queue_s * 1e3:.1f}",
            {None: "-", True: "yes", False: "no"}[task.local],
        )
