"""EXPLAIN and EXPLAIN ANALYZE: plans and metrics as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from minishark.compiler.logical.plan import plan_text
from minishark.compiler.stages.display import stages_text
from minishark.compiler.stages.stage import Stage, TableInput
from minishark.errors import redacted
from minishark.model.events.figures import FIGURES, Figure, OperatorFigures, Sums, TaskFigures, Unit
from minishark.model.events.record import QueryRecord, StageRecord
from minishark.query.inputs import preferred_nodes
from minishark.query.planner import QueryPlan

_SOURCES_MAX = 3
_LABEL_CHARS = 120
_FAR_OFF = 2.0
"""Estimates that are off by a smaller factor are good ones."""


def metrics_text(metrics: QueryRecord) -> str:
    total = (
        f"{metrics.elapsed_s * 1e3:.1f} ms in all, {metrics.planning_s * 1e3:.1f} ms of it "
        f"planning; {_counted(metrics.stages, 'stage')}, {_counted(metrics.tasks, 'task')}"
    )
    stages = aligned(stage_rows(metrics)) if metrics.by_stage or not metrics.reused else ()
    tables = (*stages, total, *_reused(metrics), *_revised(metrics), *_operators(metrics))
    return "\n".join([*tables, *metrics.warnings])


def _operators(metrics: QueryRecord) -> Iterator[str]:
    """A table of operators for each stage, if they were measured."""
    worst = worst_estimate(metrics)
    for stage in metrics.by_stage:
        if not stage.operators:
            continue
        rows = [(*_operator_cells(operator),) for operator in stage.operators]
        lines = aligned([("estimated", "rows", "ms"), *rows])
        yield f"Stage {stage.index}"
        yield f"  {lines[0]}  operator"
        for operator, line in zip(stage.operators, lines[1:], strict=True):
            mark = f"  <-- {_misestimated(operator)}" if operator is worst else ""
            label = operator.label
            if len(label) > _LABEL_CHARS:
                label = f"{label[:_LABEL_CHARS]} ..."
            yield f"  {line}  {'  ' * operator.depth}{label}{mark}"


def _operator_cells(operator: OperatorFigures) -> Iterator[str]:
    yield f"~{operator.estimated_rows:,.0f}"
    ended = " so far" if operator.ended_early else ""
    yield "-" if operator.rows is None else f"{operator.rows:,}{ended}"
    yield "-" if operator.run_s is None else f"{operator.run_s * 1e3:.1f}"


def worst_estimate(metrics: QueryRecord) -> OperatorFigures | None:
    """The operator whose rows were misestimated most; None if all estimates were good."""
    operators = [operator for stage in metrics.by_stage for operator in stage.operators]
    # Of operators that hand the same rows on, the lowest is to blame.
    worst = max(reversed(operators), key=_factor, default=None)
    return worst if worst is not None and _factor(worst) >= _FAR_OFF else None


def _factor(operator: OperatorFigures) -> float:
    times = operator.misestimate
    return 1.0 if times is None else max(times, 1 / times)


def _misestimated(operator: OperatorFigures) -> str:
    than = "more" if (operator.misestimate or 1.0) > 1 else "fewer"
    return f"largest misestimate: {_factor(operator):,.1f} times {than} rows"


def _reused(metrics: QueryRecord) -> Iterator[str]:
    """What was not computed again, by whom it was, and when."""
    for reused in metrics.reused:
        yield (
            f"Reused: {_counted(reused.tasks, 'output')} of stage {reused.stage}, up to "
            f"{reused.age_s:,.1f} s old, of {', '.join(reused.made_by[:_SOURCES_MAX])}; they took "
            f"{reused.saved_s * 1e3:,.1f} ms"
        )


def _revised(metrics: QueryRecord) -> Iterator[str]:
    """How the plan was changed while the query ran, why, and both plans if they are known."""
    if metrics.revisions:
        yield "Revised while it ran:"
    yield from (f"  {revision.rule}: {revision.reason}" for revision in metrics.revisions)
    for title, plan in zip(("Planned", "As it ran"), metrics.plans, strict=False):
        yield f"{title}\n{plan}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line per row, with all columns right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def stage_rows(metrics: QueryRecord) -> list[tuple[str, ...]]:
    """The cells of the table of stages, the header first."""
    stages = metrics.by_stage
    columns: dict[str, Callable[[StageRecord], str]] = {
        "stage": lambda stage: str(stage.index),
        "tasks": _tasks,
    }
    for figure in shown_figures([task for stage in stages for task in stage.by_task]):
        columns[_heading(figure)] = partial(_of_stage, figure)
        if figure.name in _BESIDE:
            title, cell = _BESIDE[figure.name]
            columns[title] = cell
    cells = [tuple(column(stage) for column in columns.values()) for stage in stages]
    return [tuple(columns), *cells]


def task_rows(stage: StageRecord) -> list[tuple[str, ...]]:
    """The cells of the table of a stage's tasks, the header first."""
    tasks = stage.by_task
    figures = shown_figures(tasks)
    titles = (f"{figure.label} {_SCALES[figure.unit][1]}".strip() for figure in figures)
    cells = (
        (str(number), task.executor, *(_of_task(figure, task) for figure in figures))
        for number, task in enumerate(tasks)
    )
    return [("task", "executor", *titles), *cells]


def shown_figures(tasks: Sequence[TaskFigures]) -> list[Figure]:
    """The figures that have columns: rare ones only if they are not 0."""
    # On one host nothing passes over the network, and most readers have one.
    return [
        figure
        for figure in FIGURES.values()
        if not figure.part_of and (not figure.is_rare or any(map(figure.of, tasks)))
    ]


def rare_figures(totals: TaskFigures) -> Iterator[str]:
    """What is not usual, and so worth a word while a stage runs: `12 KB on disk`."""
    for figure in FIGURES.values():
        if (figure.is_rare or figure.part_of) and (value := figure.of(totals)):
            unit = _SCALES[figure.unit][1]
            yield " ".join(filter(None, (_scaled(figure, value), unit, figure.label)))


_SCALES = {Unit.COUNT: (1.0, ""), Unit.BYTES: (1 / 1024, "KB"), Unit.SECONDS: (1e3, "ms")}
"""Of each unit, what values are multiplied by, and what that is called."""


def _scaled(figure: Figure, value: float) -> str:
    value *= _SCALES[figure.unit][0]
    return f"{value:,.1f}" if figure.unit is Unit.SECONDS else f"{value:,.0f}"


def _heading(figure: Figure) -> str:
    name = figure.of_many or figure.label
    heading = figure.heading or f"{name} {_SCALES[figure.unit][1]}".strip()
    notes = {Sums.SPREAD: " min/median/max", Sums.BY_KEY: " (from)"}
    return heading + notes.get(figure.sums, "")


def _of_stage(figure: Figure, stage: StageRecord) -> str:
    if not stage.ended:
        return "-"
    value = figure.over(stage.by_task, stage.totals)
    match figure.sums:
        case Sums.SPREAD:
            return "/".join(f"{f(value) * 1e3:.1f}" for f in (min, median, max))
        case Sums.SHARE:
            yes, measured = value
            return f"{yes}/{measured}" if measured else "-"
    total = _scaled(figure, value)
    parts = getattr(stage.totals, figure.name)
    if figure.sums is Sums.BY_KEY:
        notes = [f"{key} {_scaled(figure, value)}" for key, value in parts.items()]
        more = f"{len(notes) - _SOURCES_MAX} more"
        notes = [*notes[:_SOURCES_MAX], more] if len(notes) > _SOURCES_MAX else notes
    else:
        inner = (part for part in FIGURES.values() if part.part_of == figure.name)
        notes = [
            f"{_scaled(part, value)} {part.label}"
            for part in inner
            if (value := part.of(stage.totals))
        ]
    return f"{total} ({', '.join(notes)})" if notes else total


def _of_task(figure: Figure, task: TaskFigures) -> str:
    value = figure.of(task)
    if figure.sums is Sums.SHARE:
        return {None: "-", True: "yes", False: "no"}[value]
    return _scaled(figure, value)


def _tasks(stage: StageRecord) -> str:
    notes = {
        "reused": stage.reused_tasks,
        "skipped": stage.skipped_tasks,
        "recomputed": stage.remade_tasks,
    }
    said = ", ".join(f"{count} {note}" for note, count in notes.items() if count)
    return f"{stage.tasks} ({said})" if said else str(stage.tasks)


_BESIDE: dict[str, tuple[str, Callable[[StageRecord], str]]] = {
    "rows": ("skew", lambda stage: "-" if stage.skew is None else f"{stage.skew:.1f}"),
    "bytes": ("ms", lambda stage: f"{stage.elapsed_s * 1e3:.1f}"),
}
"""What is derived for a stage, after the figure that it stands beside: title and cell."""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


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
