"""Events as OpenTelemetry spans."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from page_events import BEGAN, query_events

import minishark
from minishark.model.events import kinds
from minishark.model.events.traces import Spans, trace_parent

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    yield made
    made.shutdown()


@pytest.fixture
def spans(provider: TracerProvider) -> Spans:
    return Spans(BEGAN, provider)


def _named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    found = exporter.get_finished_spans()
    assert len(found) == len({span.name for span in found})
    return {span.name: span for span in found}


def _parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def _id(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def test_stages_are_children_of_queries_and_tasks_of_stages(
    spans: Spans, exporter: InMemorySpanExporter
) -> None:
    spans.record(query_events(1, "select 1"))
    named = _named(exporter)
    assert {"SELECT", "stage 0", "task 0.0", "task 0.1"} == named.keys()
    query, stage, task = named["SELECT"], named["stage 0"], named["task 0.1"]
    assert [None, _id(query), _id(stage)] == [_parent(each) for each in (query, stage, task)]
    assert SpanKind.CLIENT is query.kind
    assert (1001_000_000_000, 1002_100_000_000) == (query.start_time, query.end_time)
    assert (1001_900_000_000, 1002_000_000_000) == (task.start_time, task.end_time)
    assert query.attributes is not None
    assert task.attributes is not None
    assert "minishark" == query.attributes["db.system.name"]
    assert "select 1" == query.attributes["db.query.text"]
    assert StatusCode.UNSET is query.status.status_code
    assert ("node-0", 10) == (task.attributes["minishark.node"], task.attributes["minishark.rows"])
    assert ["planned"] == [event.name for event in query.events]


def test_a_query_belongs_to_its_callers_span(spans: Spans, exporter: InMemorySpanExporter) -> None:
    began, *others = query_events(1)
    assert isinstance(began, kinds.QueryStarted)
    traced = msgspec.structs.replace(began, trace_parent=f"00-{TRACE}-{CALLER}-01")
    spans.record([traced, *others])
    query = _named(exporter)["SELECT"]
    context = query.get_span_context()
    assert context is not None
    assert int(TRACE, 16) == context.trace_id
    assert int(CALLER, 16) == _parent(query)


def test_a_failed_query_has_its_error(spans: Spans, exporter: InMemorySpanExporter) -> None:
    spans.record(query_events(1, state="failed"))
    query = _named(exporter)["SELECT"]
    assert (StatusCode.ERROR, "bad") == (query.status.status_code, query.status.description)
    assert query.attributes is not None
    assert "failed" == query.attributes["error.type"]


def test_spans_end_with_the_session(spans: Spans, exporter: InMemorySpanExporter) -> None:
    spans.record(query_events(1, state="running"))
    assert {"task 0.0"} == _named(exporter).keys()
    spans.close()
    named = _named(exporter)
    assert {"SELECT", "stage 0", "task 0.0"} == named.keys()
    assert StatusCode.ERROR is named["SELECT"].status.status_code


def test_open_queries_are_bounded(spans: Spans, exporter: InMemorySpanExporter) -> None:
    spans.record(kinds.QueryStarted(at=1.0, query=i, sql="x") for i in range(1_003))
    assert 3 == len(exporter.get_finished_spans())


def test_events_of_unknown_queries_are_ignored(
    spans: Spans, exporter: InMemorySpanExporter
) -> None:
    spans.record(query_events(1)[1:])
    assert () == exporter.get_finished_spans()


def test_the_current_span_travels_as_text(provider: TracerProvider) -> None:
    assert "" == trace_parent()
    with provider.get_tracer("test").start_as_current_span("caller") as span:
        context = span.get_span_context()
        assert trace_parent().startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")


def test_a_session_sends_spans(provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
    with minishark.connect(nodes=1, executors_per_node=2, in_process=True) as session:
        session.trace(provider)
        with provider.get_tracer("test").start_as_current_span("caller") as caller:
            session.sql("SELECT sum(range) FROM range(10)").collect()
        assert 3 == session.submit(lambda: 3).result()
    found = exporter.get_finished_spans()
    query = next(span for span in found if span.name == "SELECT")
    assert caller.get_span_context().span_id == _parent(query)
    tasks = [span for span in found if span.name.startswith("task ")]
    assert tasks
    assert all(span.context.trace_id == query.context.trace_id for span in tasks)
    assert any("lambda" in span.name for span in found)
