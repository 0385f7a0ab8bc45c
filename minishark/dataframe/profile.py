"""Profile: what a query did, stage by stage and task by task."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minishark.dataframe.show import html_table
from minishark.errors import OptionError
from minishark.query.metrics import QueryMetrics, StageMetrics, as_dict
from minishark.query.report import aligned, metrics_text, stage_rows

_TASK_HEADER = ("task", "executor", "attempt", "rows", "KB", "run ms", "queue ms", "local")


@dataclass(frozen=True, slots=True)
class Profile:
    """What a run did; printed, it is a table of its stages.

    Attributes:
        sql: the statement.
        metrics: the same for programs.

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

    def _repr_html_(self) -> str:
        """For notebooks: the stages, with collapsible tables of their tasks."""
        stages = stage_rows(self.metrics)
        parts = [
            html_table(stages[0], stages[1:]),
            f"<p>{html.escape(str(self).splitlines()[-1])}</p>",
        ]
        for stage in self.metrics.by_stage:
            inside = html_table(_TASK_HEADER, _task_rows(stage))
            why = "\n".join(line for task in stage.by_task for line in task.why)
            parts.append(
                f"<details><summary>stage {stage.index}: tasks</summary>{inside}"
                f"<pre>{html.escape(why)}</pre></details>"
            )
        return "".join(parts)


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
