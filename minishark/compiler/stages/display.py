"""Stages as text: tasks, inputs, output, preferred nodes, and the SQL of the fragment."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from minishark.compiler.rules import RULES
from minishark.compiler.stages.stage import Input, Stage, TableInput

_WIDTH = 100
NO_TITLES: Mapping[str, str] = MappingProxyType({})


def stages_text(
    stages: Sequence[Stage],
    preferred: Callable[[Stage, int], frozenset[str]],
    *,
    threads: int = 1,
    sql: bool = False,
    titles: Mapping[str, str] = NO_TITLES,
) -> str:
    """All stages, in the order in which they can run.

    Args:
        stages: the stages.
        preferred: the nodes that a task prefers, by stage and task index; empty for any node.
        threads: how many cores a large task may use that is the only one of its stage.
        sql: whether to show the fragments too.
        titles: what users know tables as, by name in lower case, if not by their names.
    """
    texts = (
        _stage_text(stage, stages, preferred, threads=threads, sql=sql, titles=titles)
        for stage in stages
    )
    return "\n".join(texts)


def _stage_text(
    stage: Stage,
    stages: Sequence[Stage],
    preferred: Callable[[Stage, int], frozenset[str]],
    *,
    threads: int,
    sql: bool,
    titles: Mapping[str, str],
) -> str:
    noun = "task" if stage.tasks == 1 else "tasks"
    if stage.is_large_task and threads > 1:
        noun += f" with {threads} threads"
    why = f" (single task: {stage.reason})" if stage.reason else ""
    count = stage.plan.distribution.partitions
    if count > stage.tasks:
        noun += f" for {count} partitions"
    lines = [f"Stage {stage.index}: {stage.tasks} {noun}{why}"]
    lines += [f"  reads {_input_text(item, titles)}" for item in stage.inputs]
    lines += [f"  {line}" for rule in RULES for line in rule.explain(stage)]
    lines.append(f"  {_output_text(stage, stages)}")
    if stage.enough_rows is not None:
        lines.append(f"  ends early, after {stage.enough_rows:,} rows of its first tasks")
    lines += [f"  {line}" for line in _preference_lines(stage, preferred)]
    if sql:
        groups = (f"{groups.name}: {groups.hashed}" for groups in stage.hints.group_runs)
        ctes = (f"{cte.name}: {cte.sql}" for cte in stage.hints.ctes)
        for text in (*groups, *ctes, stage.sql):
            lines += [f"  | {line}" for line in textwrap.wrap(text, _WIDTH)]
    return "\n".join(lines)


def _input_text(item: Input, titles: Mapping[str, str]) -> str:
    if isinstance(item, TableInput):
        what = {"own": "its partition of", "all": "all of"}[item.mode.value]
        return f"{what} table {titles.get(item.table.lower(), item.table)} as {item.name}"
    what = {"own": "its piece of", "all": "all of", "bucket": "its bucket of"}[item.mode.value]
    if item.shares:
        what = "its share of the buckets of"
    return f"{what} stage {item.stage} as {item.name}"


def _output_text(stage: Stage, stages: Sequence[Stage]) -> str:
    if stage.index == stages[-1].index:
        return "returns the result"
    if stage.buckets:
        return f"writes {stage.buckets} buckets per task (shuffle)"
    return "writes one piece per task"


def _preference_lines(stage: Stage, preferred: Callable[[Stage, int], frozenset[str]]) -> list[str]:
    by_nodes: dict[tuple[str, ...], list[int]] = {}
    for index in range(stage.tasks):
        by_nodes.setdefault(tuple(sorted(preferred(stage, index))), []).append(index)
    lines = []
    for nodes, indexes in by_nodes.items():
        where = ", ".join(nodes) if nodes else "any node"
        noun = "task" if len(indexes) == 1 else "tasks"
        lines.append(f"{noun} {', '.join(map(str, indexes))} on {where}")
    return lines
