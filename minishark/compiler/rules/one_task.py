"""Queries in one task where that is estimated to be faster than stages.

Stages cost a scheduling round trip each, and what they exchange is written and read again. A single
task with a thread for each core shares memory instead, so it wins unless the work parallelizes well
and there is much of it.
"""

from __future__ import annotations

from typing import Protocol

from minishark.compiler.physical.options import PlannerOptions
from minishark.compiler.physical.order import depends_on_order
from minishark.compiler.physical.plan import PhysicalPlan
from minishark.compiler.physical.work import estimated, held_bytes, result_values
from minishark.compiler.rules.rule import Phase, Rule

_FEW_VALUES = 1_000_000
"""One thread writes a result of this size before several tasks could start."""


class Place(Protocol):
    """Makes the physical plan of a query."""

    def __call__(self, *, whole: bool) -> PhysicalPlan:
        """The plan in one task, or in stages."""


def choose(place: Place, options: PlannerOptions, _: None) -> PhysicalPlan:
    """The plan in one task or in stages, whichever is estimated to be faster."""
    whole = place(whole=True)
    # Several threads pass rows on in no certain order: the answer must not depend on it.
    threads = 1 if depends_on_order(whole) else options.threads
    if threads >= options.slots and _needs_no_stages(whole, options):
        return whole
    distributed = place(whole=False)
    memory = options.alone_bytes if threads >= options.slots else options.task_bytes
    if held_bytes(whole) > memory:
        return distributed  # rather than spill
    one, several = (estimated(plan, options, threads) for plan in (whole, distributed))
    is_better = one.burden_s(options.slots) <= several.burden_s(options.slots)
    return whole if is_better else distributed


def _needs_no_stages(whole: PhysicalPlan, options: PlannerOptions) -> bool:
    """Whether no division into stages is faster than one task with a thread for each slot.

    The same cores do the same work, and nothing is exchanged. In a session's own cluster it has the
    memory of all slots, too, and what does not fit DuckDB writes to disk: less than all rows of an
    exchange. Only a large result is written faster by several tasks. Else the plan in stages need
    not even be made, which saves half of the planning time of small queries.
    """
    return held_bytes(whole) <= options.alone_bytes and result_values(whole) <= _FEW_VALUES


ONE_TASK = Rule(
    name="one_task",
    doc="run queries over more than `single_task_rows` rows in one task where that is faster",
    phase=Phase.CHOICE,
    apply=choose,
)
