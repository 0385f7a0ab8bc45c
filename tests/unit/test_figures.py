"""Figures of tasks: a field and its description are enough, and every display has the figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minishark.model.events import figures
from minishark.model.events.figures import FIGURES, Figure, Sums, TaskFigures, Unit
from minishark.model.events.kinds import (
    AnyEvent,
    QueryEnded,
    QueryPlanned,
    QueryStarted,
    SessionStarted,
    StageEnded,
    StagePlan,
    StageStarted,
    TaskEnded,
)
from minishark.model.events.record import QueryRecord
from minishark.query.progress import QueryProgress, StageProgress
from minishark.query.report import metrics_text, stage_rows, task_rows
from minishark.session.page import views
from minishark.session.page.board import Board
from minishark.session.page.metrics import Totals, exposition
from minishark.session.progress import progress_lines

_WHERE = {"node", "executor"}
PACKAGE = Path(figures.__file__).parents[2]


class Extended(TaskFigures, frozen=True, kw_only=True):
    """What a release with new figures would have."""

    widgets: int = 0
    dozing_s: float = 0.0
    given: Mapping[str, int] = {}


_NEW = (
    Figure(name="widgets", label="widgets", says="Widgets.", is_rare=True, metric="widgets_total"),
    Figure(
        name="dozing_s", unit=Unit.SECONDS, sums=Sums.SPREAD, label="doze", says="Time dozed.",
        is_rare=True, metric="task_doze_seconds",
    ),
    Figure(
        name="given", unit=Unit.BYTES, sums=Sums.BY_KEY, label="given", says="Bytes given.",
        is_rare=True, metric="task_given_bytes_total", attribute="given_bytes",
    ),
)  # fmt: skip


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> type[Extended]:
    """Tasks have more figures, with descriptions; nothing else is changed."""
    monkeypatch.setattr(figures, "TaskFigures", Extended)
    for figure in _NEW:
        monkeypatch.setitem(FIGURES, figure.name, figure)
    return Extended


def _events(*tasks: TaskFigures) -> list[AnyEvent]:
    stages = (StagePlan(stage=0, tasks=len(tasks)),)
    return [
        SessionStarted(at=1.0, session="s"),
        QueryStarted(at=1.0, query=1, sql="SELECT 1"),
        QueryPlanned(at=1.0, query=1, stages=stages),
        StageStarted(at=1.0, query=1, stage=0, tasks=len(tasks)),
        *(
            TaskEnded(at=2.0, query=1, stage=0, task=number, figures=each)
            for number, each in enumerate(tasks)
        ),
        StageEnded(at=2.0, query=1, stage=0, elapsed_s=1.0),
        QueryEnded(at=2.0, query=1, state="done", elapsed_s=1.0),
    ]


def _record(*tasks: TaskFigures) -> QueryRecord:
    record = QueryRecord()
    for event in _events(*tasks):
        record.apply(event)
    return record


def _tasks(kind: type[Extended]) -> tuple[TaskFigures, ...]:
    common: dict[str, Any] = {"node": "n", "executor": "e", "rows": 3, "run_s": 0.2}
    return (
        kind(**common, widgets=2, dozing_s=0.25, given={"a": 1024, "b": 2048}),
        kind(**common, widgets=3, dozing_s=0.75, given={"a": 4096}),
    )


def test_every_figure_is_described() -> None:
    """All fields but where a task ran; parts name figures."""
    assert {*TaskFigures.__struct_fields__} == {*FIGURES} | _WHERE
    assert {figure.part_of for figure in FIGURES.values()} <= {"", *FIGURES}
    assert all(figure.label and figure.says.endswith(".") for figure in FIGURES.values())
    metrics = [figure.metric for figure in FIGURES.values() if figure.metric]
    assert len(metrics) == len({*metrics})


def test_a_figure_costs_two_product_files() -> None:
    """One that means nothing special is named where it is described and where it is measured."""
    sources = [path for path in PACKAGE.rglob("*.*") if path.suffix in {".py", ".js"}]
    named = [path.name for path in sources if "spilled_bytes" in path.read_text("utf-8")]
    assert ["figures.py", "run_task.py"] == sorted(named)


def test_explain_analyze_has_a_new_figure(extended: type[Extended]) -> None:
    """In the tables of stages and of tasks."""
    record = _record(*_tasks(extended))
    (stage,) = record.by_stage
    cells = dict(zip(*stage_rows(record), strict=True))
    assert "5" == cells["widgets"]
    assert "250.0/500.0/750.0" == cells["doze ms min/median/max"]
    assert "7 (a 5, b 2)" == cells["given KB (from)"]
    header, first, _ = task_rows(stage)
    cells = dict(zip(header, first, strict=True))
    assert ("2", "250.0", "3") == (cells["widgets"], cells["doze ms"], cells["given KB"])


def test_what_is_rare_has_no_column_where_it_is_zero(extended: type[Extended]) -> None:
    """So tables stay as narrow as they were."""
    assert "widgets" not in metrics_text(_record(extended(rows=1)))


def test_profiles_have_a_new_figure(extended: type[Extended]) -> None:
    """Of stages and of tasks, for programs."""
    record = _record(*_tasks(extended))
    stage = record.as_dict()["by_stage"][0]
    assert (5, [0.25, 0.75], {"a": 5120, "b": 2048}) == tuple(
        stage[name] for name in ("widgets", "dozing_s", "given")
    )
    assert 3 == stage["by_task"][1]["widgets"]
    assert 5 == record.by_stage[0].totals.widgets  # type: ignore[attr-defined]


def test_the_progress_line_has_a_new_figure(extended: type[Extended]) -> None:
    """If it is rare and summed; spreads say little while a stage runs."""
    totals = _record(*_tasks(extended)).by_stage[0].totals
    stage = StageProgress(index=0, tasks=9, done=2, figures=totals, started=True)
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        console.print(progress_lines(QueryProgress((stage,), 1.0), 1.0, 0.0, None))
    assert "6 rows, 5 widgets, 7 KB given" in captured.get()


def test_the_page_has_a_new_figure(extended: type[Extended]) -> None:
    """With its description, by stage, task and node."""
    board = Board()
    for event in _events(*_tasks(extended)):
        board.apply(event, "s")
    shown = views.query(board, "s-1")
    assert shown is not None
    assert {"widgets", "dozing_s", "given"} <= {each["name"] for each in shown["figures"]}
    (stage,) = shown["stage_list"]
    assert (5, 0.75, 7168) == (stage["widgets"], stage["dozing_s"]["max"], stage["given"])
    assert {"a": 5120, "b": 2048} == stage["by_key"]["given"]
    assert (5, 7168) == tuple(shown["by_node"][0][name] for name in ("widgets", "given"))
    assert [(2, 3072), (3, 4096)] == [(each["widgets"], each["given"]) for each in shown["longest"]]
    told = views.why(board, "s-1", 0, 1)
    assert told is not None
    assert (3, 0.75, 4096) == (told["widgets"], told["dozing_s"], told["given"])


def test_prometheus_has_a_new_figure(extended: type[Extended]) -> None:
    """Counters of sums, histograms of spreads."""
    totals = Totals()
    for event in _events(*_tasks(extended)):
        totals.apply(event)
    text = exposition(totals, Board())
    assert "# HELP minishark_widgets_total Widgets.\n" in text
    assert "\nminishark_widgets_total 5\n" in text
    assert "\nminishark_task_given_bytes_total 7168\n" in text
    assert "\nminishark_task_doze_seconds_sum 1\n" in text


def test_spans_have_a_new_figure(extended: type[Extended]) -> None:
    """Those of tasks, as attributes."""
    export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from minishark.model.events.traces import Spans

    memory, provider = export.InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    began, *events = _events(*_tasks(extended))
    assert isinstance(began, SessionStarted)
    Spans(began, provider).record(events)
    task = next(span for span in memory.get_finished_spans() if span.name == "task 0.0")
    told = {name: task.attributes[f"minishark.{name}"] for name in ("widgets", "given_bytes")}
    assert {"widgets": 2, "given_bytes": 3072} == told
