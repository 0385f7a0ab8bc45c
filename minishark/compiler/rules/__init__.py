"""The optimizer: a tuple of rules, one per file, each behind a switch of its own.

A new rule is a file here and an entry in `RULES`. If executors have to do something for it, also a
field of `FragmentHints` (`compiler/hints.py`) and its counterpart in `worker/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.rules.coalesced_tasks import COALESCED_TASKS
from minishark.compiler.rules.collapse import COLLAPSE
from minishark.compiler.rules.eager_aggregation import EAGER_AGGREGATION
from minishark.compiler.rules.empty_inputs import EMPTY_INPUTS
from minishark.compiler.rules.group_keys import GROUP_KEYS
from minishark.compiler.rules.group_runs import GROUP_RUNS
from minishark.compiler.rules.inline_outputs import INLINE_OUTPUTS
from minishark.compiler.rules.join_sides import JOIN_SIDES
from minishark.compiler.rules.join_switch import JOIN_SWITCH
from minishark.compiler.rules.one_task import ONE_TASK
from minishark.compiler.rules.prepared_fragments import PREPARED_FRAGMENTS
from minishark.compiler.rules.rule import Phase, Rule
from minishark.compiler.rules.semi_join_duplicates import SEMI_JOIN_DUPLICATES
from minishark.compiler.rules.semi_join_filters import SEMI_JOIN_FILTERS
from minishark.compiler.rules.skew_split import SKEW_SPLIT
from minishark.compiler.rules.source_pushdown import SOURCE_PUSHDOWN

RULES: tuple[Rule, ...] = (
    SOURCE_PUSHDOWN,
    ONE_TASK,
    EAGER_AGGREGATION,
    SEMI_JOIN_DUPLICATES,
    # Key filters look through the projections of dictionary codes; group runs leave out scans that
    # have either, as the codes and the kept rows are no longer as stored.
    GROUP_KEYS,
    SEMI_JOIN_FILTERS,
    GROUP_RUNS,
    JOIN_SIDES,
    PREPARED_FRAGMENTS,
    INLINE_OUTPUTS,
    COALESCED_TASKS,
    # What is not computed at all needs no better moves, and what is moved otherwise may be little.
    EMPTY_INPUTS,
    JOIN_SWITCH,
    COLLAPSE,
    SKEW_SPLIT,
)


def enabled(phase: Phase, options: PlannerOptions) -> Iterator[tuple[Rule, Any]]:
    """The rules of a phase that are switched on, in their order, each with its options."""
    for rule in RULES:
        if rule.phase is phase and rule.name not in options.disabled:
            default = rule.everywhere if options.everywhere else rule.options
            yield rule, options.rules.get(rule.name, default)


def rules_table() -> str:
    """The rules as a Markdown table, for the documentation."""
    rows = [f'| `"{rule.name}"` | {rule.phase} | {rule.doc} |' for rule in RULES]
    return "\n".join(["| optimization | phase | what it does |", "|---|---|---|", *rows])
