"""The events of a session as OpenTelemetry traces: a query is a span, so are its stages and tasks.

Names and attributes follow OpenTelemetry's semantic conventions for database clients where those
have one; minishark's own begin with `minishark.`. Events tell when something happened, so spans are
made after the fact, with the events' times, on the thread that follows the stream.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minishark.errors import OptionError
from minishark.model.events.figures import FIGURES
from minishark.model.events.kinds import (
    AnyEvent,
    CallEnded,
    QueryEnded,
    QueryPlanned,
    QueryStarted,
    SessionStarted,
    StageEnded,
    StageStarted,
    TaskEnded,
    TaskFailed,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

_OPEN_MAX = 1_000  # queries whose end may have been dropped
_SYSTEM = "minishark"


@dataclass(slots=True)
class _OpenQuery:
    span: Span
    stages: dict[int, Span] = field(default_factory=dict)


class Spans:
    """Makes spans of events."""

    def __init__(self, began: SessionStarted, provider: TracerProvider | None = None) -> None:
        """Trace the session that `began`; None takes OpenTelemetry's global provider.

        Raises:
            OptionError: opentelemetry is not installed.
        """
        try:
            from opentelemetry import propagate, trace  # noqa: PLC0415 - optional
        except ImportError as error:
            raise OptionError(
                "Traces need OpenTelemetry: pip install 'minishark[otel]'."
            ) from error
        self._trace, self._propagate = trace, propagate
        self._tracer = trace.get_tracer("minishark", began.version or None, provider)
        self._common = {
            "db.system.name": _SYSTEM,
            "minishark.session": began.session,
            **({"db.namespace": began.cluster} if began.cluster else {}),
        }
        self._open: OrderedDict[int, _OpenQuery] = OrderedDict()

    def record(self, events: Iterable[AnyEvent]) -> None:
        """Begin and end spans."""
        for event in events:
            self._record(event)

    def close(self) -> None:
        """End the spans of queries whose end will not be heard of."""
        while self._open:
            self._abandon(next(iter(self._open)))

    def _record(self, event: AnyEvent) -> None:
        match event:
            case QueryStarted():
                self._query_started(event)
            case QueryPlanned() if event.query in self._open:
                self._query_planned(event)
            case StageStarted() if event.query in self._open:
                self._stage(self._open[event.query], event.stage, event.at)
            case TaskEnded() if event.query in self._open:
                self._task_ended(event)
            case TaskFailed() if event.query in self._open:
                stage = self._stage(self._open[event.query], event.stage, event.at)
                self._fail(stage, event.message)
            case StageEnded() if event.query in self._open:
                stages = self._open[event.query].stages
                if event.stage in stages:
                    stages.pop(event.stage).end(_ns(event.at))
            case QueryEnded() if event.query in self._open:
                self._query_ended(event)
            case CallEnded():
                self._call_ended(event)
            case _:
                pass

    def _query_started(self, event: QueryStarted) -> None:
        operation = event.sql.split(None, 1)[0].upper() if event.sql.strip() else "query"
        parent = self._propagate.extract({"traceparent": event.trace_parent})
        span = self._tracer.start_span(
            operation,
            context=parent,
            kind=self._trace.SpanKind.CLIENT,
            start_time=_ns(event.at),
            attributes={
                **self._common,
                "db.operation.name": operation,
                "db.query.text": event.sql,
                "minishark.query": event.query,
            },
        )
        self._open[event.query] = _OpenQuery(span)
        if len(self._open) > _OPEN_MAX:
            self._abandon(next(iter(self._open)))

    def _query_planned(self, event: QueryPlanned) -> None:
        attributes: dict[str, str | int] = {}
        if event.stages:
            attributes["minishark.stages"] = len(event.stages)
        if event.rule:
            attributes |= {"minishark.rule": event.rule, "minishark.reason": event.reason}
        name = "plan revised" if event.rule else "planned"
        self._open[event.query].span.add_event(name, attributes, _ns(event.at))

    def _stage(self, query: _OpenQuery, number: int, at: float) -> Span:
        span = query.stages.get(number)
        if span is None:
            span = query.stages[number] = self._tracer.start_span(
                f"stage {number}",
                context=self._trace.set_span_in_context(query.span),
                start_time=_ns(at),
                attributes={**self._common, "minishark.stage": number},
            )
        return span

    def _task_ended(self, event: TaskEnded) -> None:
        stage = self._stage(self._open[event.query], event.stage, event.began_s)
        attributes: dict[str, Any] = {
            **self._common,
            "minishark.stage": event.stage,
            "minishark.task": event.task,
            "minishark.node": event.figures.node,
            "minishark.executor": event.figures.executor,
        }
        for figure in FIGURES.values():
            if (value := figure.of(event.figures)) is not None:
                attributes[f"minishark.{figure.attribute or figure.name}"] = value
        self._tracer.start_span(
            f"task {event.stage}.{event.task}",
            context=self._trace.set_span_in_context(stage),
            start_time=_ns(event.began_s),
            attributes=attributes,
        ).end(_ns(event.at))

    def _call_ended(self, event: CallEnded) -> None:
        span = self._tracer.start_span(
            event.function,
            start_time=_ns(event.at - event.run_s),
            attributes={
                "minishark.session": self._common["minishark.session"],
                "minishark.node": event.node,
                "minishark.executor": event.executor,
            },
        )
        if event.state != "done":
            self._fail(span, event.error or event.state)
        span.end(_ns(event.at))

    def _query_ended(self, event: QueryEnded) -> None:
        query = self._open.pop(event.query)
        for stage in query.stages.values():
            stage.end(_ns(event.at))
        query.span.set_attribute("minishark.planning_s", event.planning_s)
        if event.state != "done":
            query.span.set_attribute("error.type", event.state)
            self._fail(query.span, event.error or event.state)
        query.span.end(_ns(event.at))

    def _fail(self, span: Span, message: str) -> None:
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, message))

    def _abandon(self, number: int) -> None:
        query = self._open.pop(number)
        for span in (*query.stages.values(), query.span):
            self._fail(span, "Nothing was heard of its end.")
            span.end()


def trace_parent() -> str:
    """The caller's span in W3C's form, so that its queries' spans belong to it; "" without one."""
    if "opentelemetry.sdk.trace" not in sys.modules:
        return ""  # no spans are made in this process
    from opentelemetry import propagate  # noqa: PLC0415 - optional

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent", "")


def _ns(at: float) -> int:
    return round(at * 1e9)
