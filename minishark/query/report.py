"""What a query's stages did, as text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from minishark.query.metrics import QueryMetrics, StageMetrics

_HEADER = (
    "stage",
    "tasks",
    "rows",
    "KB",
    "ms",
    "task ms min/median/max",
    "queue ms min/median/max",
    "local",
    "retries",
)


def metrics_text(metrics: QueryMetrics) -> str:
    """A table with one line per stage, then the totals."""
    rows = stage_rows(metrics)
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    total = (
        f"{metrics.elapsed_s * 1e3:.1f} ms in all, {metrics.planning_s * 1e3:.1f} ms of it "
        f"planning; {_counted(metrics.stages, 'stage')}, {_counted(metrics.tasks, 'task')}"
    )
    return "\n".join([*lines, total, *metrics.warnings])


def stage_rows(metrics: QueryMetrics) -> list[tuple[str, ...]]:
    """The cells of that table, the titles first."""
    return [_HEADER, *(_cells(stage) for stage in metrics.by_stage)]


def _cells(stage: StageMetrics) -> tuple[str, ...]:
    local = f"{stage.local_tasks}/{stage.constrained_tasks}" if stage.constrained_tasks else "-"
    run, queued = _milliseconds(stage.run_s), _milliseconds(stage.queue_s)
    return (
        str(stage.index),
        _tasks(stage),
        f"{stage.rows:,}",
        _kilobytes(stage),
        f"{stage.elapsed_s * 1e3:.1f}",
        f"{min(run):.1f}/{median(run):.1f}/{max(run):.1f}",
        f"{min(queued):.1f}/{median(queued):.1f}/{max(queued):.1f}",
        local,
        str(stage.retries),
    )


def _kilobytes(stage: StageMetrics) -> str:
    size = f"{stage.bytes / 1024:,.0f}"
    return f"{size} ({stage.disk_bytes / 1024:,.0f} on disk)" if stage.disk_bytes else size


def _tasks(stage: StageMetrics) -> str:
    notes = {"skipped": stage.skipped_tasks, "made again": stage.remade_tasks}
    said = ", ".join(f"{count} {what}" for what, count in notes.items() if count)
    return f"{stage.tasks} ({said})" if said else str(stage.tasks)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    return [value * 1e3 for value in seconds]
