"""Profile: what a query did, stage by stage and task by task."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minishark.errors import OptionError
from minishark.query.metrics import QueryMetrics
from minishark.query.report import aligned, metrics_text, task_rows

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
            "\n".join([f"stage {stage.index}", *aligned(task_rows(stage))])
            for stage in self.metrics.by_stage
        )
        return "\n\n".join([str(self), *tables])

    def why(self, stage: int, task: int) -> str:
        """Why a task ran where it did: its constraints, the nodes probed, and their answers.

        Raises:
            OptionError: there is no such task.
        """
        for record in self.metrics.by_stage:
            if record.index == stage and task in record.ended:
                return "\n".join(record.why(task))
        raise OptionError(f"The query has no task {task} in a stage {stage}.")

    def to_dict(self) -> dict[str, Any]:
        """All metrics as dictionaries, lists and numbers, for JSON."""
        return {"sql": self.sql, **self.metrics.as_dict()}

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
