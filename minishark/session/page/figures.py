"""Figures of many tasks for people: percentiles, skew, and timelines that a browser can draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

from minishark.model.events.figures import OperatorFigures
from minishark.model.events.kinds import PlanNode, StagePlaced, TaskEnded

MARKS_MAX = 3_000
"""Of so many tasks, a timeline shows each."""

_BINS_MIN = 20


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Minimum, percentiles and maximum; None of nothing. The median is `statistics.median`'s."""
    if not values:
        return None
    ordered = sorted(values)
    return {
        "min": ordered[0],
        "p25": _rank(ordered, 0.25),
        "median": median(ordered),
        "p75": _rank(ordered, 0.75),
        "p95": _rank(ordered, 0.95),
        "max": ordered[-1],
    }


def _rank(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def timeline(tasks: Iterable[TaskEnded], began_s: float) -> dict[str, Any]:
    """When which executor ran tasks of which stage, for drawing.

    Returns:
        `lanes`: names of executors; `marks`: lists of lane, start and end in seconds from
        `began_s`, stage, number of tasks, and the number of the longest of them. If there are many
        tasks, those of one stage in one lane that begin at about the same time are one mark.
    """
    in_order = sorted(tasks, key=lambda task: task.began_s)
    lanes = sorted({task.figures.executor for task in in_order}, key=natural)
    number = {lane: i for i, lane in enumerate(lanes)}
    span = max((task.at for task in in_order), default=began_s) - began_s
    bins = max(_BINS_MIN, MARKS_MAX // max(1, len(lanes)))
    width = span / bins if len(in_order) > MARKS_MAX else 0.0
    marks: dict[object, list[float]] = {}
    longest: dict[object, float] = {}
    for i, task in enumerate(in_order):
        lane, last = number[task.figures.executor], round(task.at - began_s, 6)
        run_s = task.figures.run_s
        first = round(last - run_s, 6)
        key = (lane, task.stage, int(first / width)) if width else i
        mark = marks.get(key)
        if mark is None:
            marks[key] = [lane, first, last, task.stage, 1, task.task]
            longest[key] = run_s
            continue
        mark[2], mark[4] = max(mark[2], last), mark[4] + 1
        if run_s > longest[key]:
            mark[5], longest[key] = task.task, run_s
    return {"lanes": lanes, "marks": list(marks.values()), "span_s": max(0.0, span)}


@lru_cache(4_096)
def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts node-10 after node-2."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for char in f"{name}\0":
        if char.isdecimal():
            digits += char
            continue
        if digits:
            parts.append((int(digits), ""))
            digits = ""
        parts.append((-1, char))
    return tuple(parts)


def known_rows(
    plan: Sequence[PlanNode],
    put_out: Mapping[int, int],
    measured: Sequence[OperatorFigures] = (),
) -> list[int | None]:
    """The true rows of a plan's operators, as far as they are known.

    What a stage puts out is counted, and in explained queries what its operators do; operators that
    keep the number of rows pass it up and down.

    Args:
        plan: the operators, each after the one that reads it.
        put_out: by stage, the rows of its output, for stages that are complete.
        measured: what each of the operators did, if that was measured.
    """
    children: list[list[int]] = [[] for _ in plan]
    for i, node in enumerate(plan):
        if node.parent is not None:
            children[node.parent].append(i)
    rows: list[int | None] = [
        put_out.get(node.stage) if node.puts_out else node.stored_rows for node in plan
    ]
    for i, operator in enumerate(measured):
        if operator.rows is not None and not plan[i].puts_out:
            rows[i] = operator.rows
    for i in reversed(range(len(plan))):
        if rows[i] is None and plan[i].keeps_rows and children[i]:
            rows[i] = rows[children[i][-1]]
    for i, node in enumerate(plan):
        above = node.parent
        is_kept = above is not None and plan[above].keeps_rows and children[above][-1] == i
        if rows[i] is None and above is not None and is_kept:
            rows[i] = rows[above]
    return rows


def binding(placed: StagePlaced) -> dict[str, Any] | None:
    """How long tasks of a job waited for a slot, and how long without late binding.

    With late binding, a job's tasks go to the nodes that ask first. Without it, each reservation
    would be a task of its node from the start, and begin when that node asks for it; picked at
    random, a task would wait as long as a reservation does on average. Reservations that were never
    asked for count with the time of the last one that was, so that time is a lower bound.

    Returns:
        None if the steps are not known; else waits in seconds, numbers of tasks, reservations and
        probes, and by node, how much was reserved there and how much ran.
    """
    asked: list[tuple[float, str, int]] = []
    reserved: dict[str, int] = {}
    probed: dict[str, int] = {}
    for step in placed.steps:
        if step.what == "reserved":
            reserved[step.node] = reserved.get(step.node, 0) + step.count
        elif step.what == "probed":
            probed[step.node] = probed.get(step.node, 0) + 1
        elif step.what == "asked":
            asked.append((step.at_s, step.node, len(step.tasks)))
    waits = [at_s for at_s, _, bound in asked for _ in range(bound)]
    if not waits or not reserved:
        return None
    last = max(waits)
    served: list[float] = []
    left = dict(reserved)
    for at_s, node, bound in asked:
        took = min(left.get(node, 0), max(1, bound))
        served += [min(at_s, last)] * took
        left[node] = left.get(node, 0) - took
    unserved = sum(count for count in left.values() if count > 0)
    everywhere = served + [last] * unserved
    ran: dict[str, int] = {}
    for _, node, bound in asked:
        ran[node] = ran.get(node, 0) + bound
    nodes = sorted({*reserved, *probed, *ran}, key=natural)
    return {
        "tasks": len(waits),
        "reservations": sum(reserved.values()),
        "probes": sum(probed.values()),
        "late_s": sum(waits) / len(waits),
        "random_s": sum(everywhere) / len(everywhere),
        "unserved": unserved,
        "nodes": [
            [node, probed.get(node, 0), reserved.get(node, 0), ran.get(node, 0)] for node in nodes
        ],
    }
