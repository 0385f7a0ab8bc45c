"""EXPLAIN and EXPLAIN ANALYZE: plans and metrics as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from minishark.compiler.logical.plan import plan_text
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.errors import redacted
from minishark.query.inputs import preferred_nodes
from minishark.query.metrics import OperatorMetrics, QueryMetrics, StageMetrics
from minishark.query.planner import QueryPlan

_SOURCES_MAX = 3
_LABEL_CHARS = 120
_FAR_OFF = 2.0
"""Estimates that are off by a smaller factor are good ones."""


def metrics_text(metrics: QueryMetrics) -> str:
    total = (
        f"{metrics.elapsed_s * 1e3:.1f} ms in all, {metrics.planning_s * 1e3:.1f} ms of it "
        f"planning; {_counted(metrics.stages, 'stage')}, {_counted(metrics.tasks, 'task')}"
    )
    stages = aligned(stage_rows(metrics)) if metrics.by_stage or not metrics.reused else ()
    tables = (*stages, total, *_reused(metrics), *_revised(metrics), *_operators(metrics))
    return "\n".join([*tables, *metrics.warnings])


def _operators(metrics: QueryMetrics) -> Iterator[str]:
    """A table of operators for each stage, if they were measured."""
    worst = worst_estimate(metrics)
    for stage in metrics.by_stage:
        if not stage.operators:
            continue
        rows = [(*_operator_cells(each),) for each in stage.operators]
        lines = aligned([("estimated", "rows", "ms"), *rows])
        yield f"Stage {stage.index}"
        yield f"  {lines[0]}  operator"
        for each, line in zip(stage.operators, lines[1:], strict=True):
            mark = f"  <-- {_misestimated(each)}" if each is worst else ""
            label = each.label
            if len(label) > _LABEL_CHARS:
                label = f"{label[:_LABEL_CHARS]} ..."
            yield f"  {line}  {'  ' * each.depth}{label}{mark}"


def _operator_cells(operator: OperatorMetrics) -> Iterator[str]:
    yield f"~{operator.estimated_rows:,.0f}"
    ended = " so far" if operator.ended_early else ""
    yield "-" if operator.rows is None else f"{operator.rows:,}{ended}"
    yield "-" if operator.run_s is None else f"{operator.run_s * 1e3:.1f}"


def worst_estimate(metrics: QueryMetrics) -> OperatorMetrics | None:
    """The operator whose rows were misestimated most; None if all estimates were good."""
    operators = [each for stage in metrics.by_stage for each in stage.operators]
    # Of operators that hand the same rows on, the lowest is to blame.
    worst = max(reversed(operators), key=_factor, default=None)
    return worst if worst is not None and _factor(worst) >= _FAR_OFF else None


def _factor(operator: OperatorMetrics) -> float:
    times = operator.misestimate
    return 1.0 if times is None else max(times, 1 / times)


def _misestimated(operator: OperatorMetrics) -> str:
    than = "more" if (operator.misestimate or 1.0) > 1 else "fewer"
    return f"largest misestimate: {_factor(operator):,.1f} times {than} rows"


def _reused(metrics: QueryMetrics) -> Iterator[str]:
    """What was not computed again, by whom it was, and when."""
    for each in metrics.reused:
        yield (
            f"Reused: {_counted(each.tasks, 'output')} of stage {each.stage}, up to "
            f"{each.age_s:,.1f} s old, of {', '.join(each.made_by[:_SOURCES_MAX])}; they took "
            f"{each.saved_s * 1e3:,.1f} ms"
        )


def _revised(metrics: QueryMetrics) -> Iterator[str]:
    """How the plan was changed while the query ran, why, and both plans if they are known."""
    if metrics.revisions:
        yield "Revised while it ran:"
    yield from (f"  {each.rule}: {each.reason}" for each in metrics.revisions)
    for title, plan in zip(("Planned", "As it ran"), metrics.plans, strict=False):
        yield f"{title}\n{plan}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line per row, with all columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def stage_rows(metrics: QueryMetrics) -> list[tuple[str, ...]]:
    """The cells of that table, the header first."""
    # On one host nothing passes over the network, and most readers have one.
    is_far = any(stage.received for stage in metrics.by_stage)
    columns = _COLUMNS | {"network KB (from)": _received} if is_far else _COLUMNS
    cells = [tuple(column(stage) for column in columns.values()) for stage in metrics.by_stage]
    return [tuple(columns), *cells]


def _received(stage: StageMetrics) -> str:
    """All that came over the network, and from where the most of it."""
    sources = stage.received
    if not sources:
        return "0"
    named = [f"{name} {size / 1024:,.0f}" for name, size in sources.items()]
    others = f", {len(named) - _SOURCES_MAX} more" if len(named) > _SOURCES_MAX else ""
    total = f"{sum(sources.values()) / 1024:,.0f}"
    return f"{total} ({', '.join(named[:_SOURCES_MAX])}{others})"


def _kilobytes(stage: StageMetrics) -> str:
    size = f"{stage.bytes / 1024:,.0f}"
    return f"{size} ({stage.disk_bytes / 1024:,.0f} on disk)" if stage.disk_bytes else size


def _tasks(stage: StageMetrics) -> str:
    notes = {
        "reused": stage.reused_tasks,
        "skipped": stage.skipped_tasks,
        "recomputed": stage.remade_tasks,
    }
    said = ", ".join(f"{count} {what}" for what, count in notes.items() if count)
    return f"{stage.tasks} ({said})" if said else str(stage.tasks)


def _local(stage: StageMetrics) -> str:
    return f"{stage.local_tasks}/{stage.constrained_tasks}" if stage.constrained_tasks else "-"


def _spread(seconds: Sequence[float]) -> str:
    """Minimum, median and maximum in milliseconds."""
    if not seconds:
        return "-"
    return "/".join(f"{f(seconds) * 1e3:.1f}" for f in (min, median, max))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


_COLUMNS: dict[str, Callable[[StageMetrics], str]] = {
    "stage": lambda stage: str(stage.index),
    "tasks": _tasks,
    "rows": lambda stage: f"{stage.rows:,}",
    "skew": lambda stage: "-" if stage.skew is None else f"{stage.skew:.1f}",
    "KB": _kilobytes,
    "ms": lambda stage: f"{stage.elapsed_s * 1e3:.1f}",
    "task ms min/median/max": lambda stage: _spread(stage.run_s),
    "queue ms min/median/max": lambda stage: _spread(stage.queue_s),
    "local": _local,
    "retries": lambda stage: str(stage.retries),
}
"""The columns by title: how each figure of a stage is written."""


def explain_text(plan: QueryPlan, mode: str, *, threads: int) -> str:
    """A plan as text; `mode` is "logical", "physical", "stages", "sql", or "all" but the last."""
    match mode:
        case "logical":
            return redacted(plan_text(plan.logical))
        case "physical":
            return redacted(plan_text(plan.physical))
        case "stages" | "sql":
            return redacted(_stages_text(plan, threads=threads, sql=mode == "sql"))
        case _:
            phases = (("Logical plan", "logical"), ("Physical plan", "physical"))
            texts = (
                f"{title}\n{explain_text(plan, phase, threads=threads)}"
                for title, phase in (*phases, ("Stages", "stages"))
            )
            return "\n\n".join(texts)


def _stages_text(plan: QueryPlan, *, threads: int, sql: bool) -> str:
    def preferred(stage: Stage, index: int) -> frozenset[str]:
        inputs = [item for item in stage.inputs if isinstance(item, TableInput)]
        tables = {item.name: plan.tables[item.table.lower()] for item in inputs}
        return preferred_nodes(stage, tables, index)

    titles = {name: table.title for name, table in plan.tables.items() if table.title}
    return stages_text(plan.stages, preferred, threads=threads, sql=sql, titles=titles)
