"""Reports from audit logs: response and queue times, utilization, shares, placement of a task.

Pure functions of events. Times between events on different hosts are only as accurate as their
clocks are synchronized.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from sparrow_core.observe.audit import AuditEvent

_RESUBMITTED = re.compile(r"~\d+$")


class Quantiles(Struct, frozen=True):
    """Quantiles of a distribution; all 0 if it is empty."""

    count: int
    p5: float
    median: float
    p95: float
    max: float


class Report(Struct, frozen=True, kw_only=True):
    """Summary of a cluster's work; times in milliseconds."""

    jobs: int
    failed: dict[str, int]  # jobs that ended without all results, by reason
    response_ms: Quantiles  # from a job's arrival at a scheduler to its end
    ideal_ms: Quantiles  # a job's longest task: its response time on an empty cluster
    queue_ms: Quantiles  # from a job's arrival to the launch of a task on a node
    get_task_ms: Quantiles  # from a node's request to the answer: the idle time of late binding
    run_ms: Quantiles  # from the launch of a task to its end
    refill_ms: Quantiles  # from the end of a task to the next launch in the slot
    utilization: float  # share of slot time in which tasks ran
    shares: dict[str, float]  # share of the running time by user
    reservations: int  # queued at nodes, in all
    useless: int  # reservations that launched no task
    removed: float  # share of useless reservations that were withdrawn without a request
    lost: int


@dataclass(slots=True)
class _Run:
    job: str
    node: str
    executor: str
    start_s: float
    end_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Log:
    arrived: dict[str, AuditEvent] = field(default_factory=dict)
    ended: dict[str, AuditEvent] = field(default_factory=dict)
    runs: dict[tuple[str, int | None, int], _Run] = field(default_factory=dict)
    asked: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    answers_s: list[float] = field(default_factory=list)
    slots: dict[str, int] = field(default_factory=dict)
    enqueued: int = 0
    requested: int = 0
    lost: int = 0


def quantiles(values: Iterable[float]) -> Quantiles:
    ranked = sorted(values)
    if not ranked:
        return Quantiles(0, 0.0, 0.0, 0.0, 0.0)

    def at(share: float) -> float:
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]

    return Quantiles(len(ranked), at(0.05), at(0.5), at(0.95), ranked[-1])


def report(events: Sequence[AuditEvent], start_s: float = 0.0, end_s: float = 1e18) -> Report:
    """Derive a report on the jobs that arrived from `start_s` to `end_s`, both included.

    The events are of all processes, in order of time.
    """
    log = _sort_out(events, start_s, end_s)
    useless = log.enqueued - len(log.runs)
    unasked = log.enqueued - log.requested
    return Report(
        jobs=len(log.arrived),
        failed=dict(Counter(event.text for event in log.ended.values() if event.text)),
        response_ms=quantiles(
            1000 * (event.at_s - log.arrived[job].at_s) for job, event in log.ended.items()
        ),
        ideal_ms=quantiles(_ideals_ms(log)),
        queue_ms=quantiles(
            1000 * (run.start_s - log.arrived[run.job].at_s) for run in log.runs.values()
        ),
        get_task_ms=quantiles(1000 * answer_s for answer_s in log.answers_s),
        run_ms=quantiles(1000 * (run.end_s - run.start_s) for run in _ended_runs(log)),
        refill_ms=quantiles(_refills_ms(log)),
        utilization=_utilization(log),
        shares=_shares(log),
        reservations=log.enqueued,
        useless=max(0, useless),
        removed=min(1.0, unasked / useless) if useless > 0 else 1.0,
        lost=log.lost,
    )


def _sort_out(events: Sequence[AuditEvent], start_s: float, end_s: float) -> _Log:
    log = _Log()
    for event in events:
        if event.event == "arrived" and start_s <= event.at_s <= end_s:
            log.arrived.setdefault(event.job, event)
    for event in events:
        if event.event == "node_monitor_registered":
            log.slots[event.node] = max(event.count, log.slots.get(event.node, 0))
        elif event.job in log.arrived:
            _note(log, event)
    return log


def _note(log: _Log, event: AuditEvent) -> None:
    key = (event.job, event.task, event.attempt)
    match event.event:
        case "scheduler_job_ended":
            log.ended.setdefault(event.job, event)
        case "reservation_enqueued":
            log.enqueued += event.count
        case "node_monitor_get_task_launch":
            log.requested += event.count
            log.asked[event.job, event.node].append(event.at_s)
        case "node_monitor_get_task_complete" | "node_monitor_get_task_no_task":
            asked = log.asked[event.job, event.node]
            if asked:
                log.answers_s.append(event.at_s - asked.pop(0))
        case "node_monitor_task_launch":
            log.runs.setdefault(key, _Run(event.job, event.node, event.text, event.at_s))
        case "task_completed":
            log.lost += bool(event.text)
            if key in log.runs:
                log.runs[key].end_s = event.at_s
        case _:
            return


def _ended_runs(log: _Log) -> Iterator[_Run]:
    return (run for run in log.runs.values() if run.end_s)


def _ideals_ms(log: _Log) -> Iterable[float]:
    longest: dict[str, float] = {}
    for run in _ended_runs(log):
        longest[run.job] = max(longest.get(run.job, 0.0), 1000 * (run.end_s - run.start_s))
    return longest.values()


def _refills_ms(log: _Log) -> Iterator[float]:
    """Match each launch on an executor with the slot that has been idle longest."""
    moments: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for run in _ended_runs(log):
        moments[run.executor] += [(run.start_s, 1), (run.end_s, 0)]
    for times in moments.values():
        idle: list[float] = []
        for at_s, starts in sorted(times):
            if not starts:
                idle.append(at_s)
            elif idle:
                yield 1000 * (at_s - idle.pop(0))


def _utilization(log: _Log) -> float:
    runs = list(_ended_runs(log))
    if not runs or not log.slots:
        return 0.0
    span_s = max(run.end_s for run in runs) - min(run.start_s for run in runs)
    busy_s = sum(run.end_s - run.start_s for run in runs)
    return busy_s / (span_s * sum(log.slots.values())) if span_s else 0.0


def _shares(log: _Log) -> dict[str, float]:
    busy_s: dict[str, float] = defaultdict(float)
    for run in _ended_runs(log):
        busy_s[log.arrived[run.job].user] += run.end_s - run.start_s
    total_s = sum(busy_s.values())
    return {user: user_s / total_s for user, user_s in sorted(busy_s.items())} if total_s else {}


_STEPS = {
    "scheduler_launch_enqueue_task": "{0.by} probes {0.node}: {0.count} reservation(s)",
    "reservation_enqueued": "{0.node} queues them",
    "node_monitor_get_task_launch": "{0.node} has a free slot and asks for {0.count}",
    "scheduler_get_task_no_task": "{0.by} has nothing (more) for {0.node}",
    "scheduler_assigned_task": "{0.by} gives the task to {0.node}, attempt {0.attempt}",
    "scheduler_adopted_task": "{0.node} has it already: {0.by} adopts it",
    "node_monitor_task_launch": "{0.node} starts it on {0.text}",
    "scheduler_launch_cancellation": "{0.by} withdraws the reservations on {0.node}",
}


def why_here(events: Sequence[AuditEvent], job: str, task: int) -> tuple[str, ...]:
    """Why a task ran where it did: lines of constraint, probes, answers, binding and result.

    The events are of all processes, in order of time. No lines if the job is not among them.
    """
    of_job = [event for event in events if _RESUBMITTED.sub("", event.job) == job]
    return tuple(
        f"{1000 * (event.at_s - of_job[0].at_s):10.3f} ms  {text}"
        for event in of_job
        if (text := _explain(event, task)) is not None
    )


def _explain(event: AuditEvent, task: int) -> str | None:
    """The line of an event; None if it does not concern the task."""
    if event.task not in (None, task):
        return None
    match event.event:
        case "arrived":
            return f"{event.by} has job {event.job} of {event.count} tasks; {_rule(event, task)}"
        case "task_completed":
            return f"{event.node}: " + (f"lost: {event.text}" if event.text else "done")
        case "scheduler_job_ended":
            return f"{event.by} gives the job up: {event.text}" if event.text else None
        case kind:
            return _STEPS[kind].format(event) if kind in _STEPS else None


def _rule(event: AuditEvent, task: int) -> str:
    nodes = event.constraints.get(task)
    rules = [f"this one prefers {', '.join(nodes)}"] if nodes else []
    if event.requires:
        rules.append(f"nodes must have {', '.join(event.requires)}")
    return " and ".join(rules) or "this one may run anywhere"
