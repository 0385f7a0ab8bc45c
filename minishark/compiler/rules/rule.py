"""An optimizer rule as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from minishark.compiler.physical.plan import PhysicalPlan

if TYPE_CHECKING:
    from minishark.compiler.stages.fragment import Block
    from minishark.compiler.stages.stage import Stage
    from minishark.compiler.stages.writer import FragmentWriter


class Phase(StrEnum):
    """When a rule applies, and the signature of its function.

    Each is called as `apply(..., options)`, where `options` are the rule's own.
    """

    SOURCES = "sources"
    """`(LogicalPlan, sources, options) -> LogicalPlan`: what its scans ask of sources."""
    CHOICE = "choice"
    """`(place, PlannerOptions, options) -> PhysicalPlan`: one of the plans that `place` makes."""
    PLACEMENT = "placement"
    """`(LogicalPlan, Placer, options) -> Planned | None`: another way to compute a logical node."""
    PHYSICAL = "physical"
    """`(PhysicalPlan, Catalog, options) -> PhysicalPlan`: the same object if nothing changes."""
    FRAGMENT = "fragment"
    """`(Stage, FragmentHints, options) -> FragmentHints`: the hints of a stage so far, and more."""
    TASKS = "tasks"
    """`(stages, kept, PlannerOptions, options) -> stages`: how many tasks each stage has."""
    ADAPTIVE = "between stages"
    """`(PhysicalPlan, Situation, options) -> Revised`: what is left of a query, made better."""


@dataclass(frozen=True, slots=True)
class Revised:
    """A plan of what is left of a query, and what a rule has changed in it and why, in sentences.

    Without reasons it is the plan that the rule got.
    """

    plan: PhysicalPlan
    reasons: tuple[str, ...] = ()


Lowering: TypeAlias = "Callable[[PhysicalPlan, FragmentWriter], Block | None]"

Arrangement: TypeAlias = "Callable[[Sequence[Stage], Any], Sequence[Stage]]"


def _nothing(stage: Stage) -> Iterable[str]:
    del stage
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One optimization, which `connect(disabled_optimizations=...)` can switch off.

    The switch, EXPLAIN, the documentation and the golden file `tests/golden/rules/<name>.txt`
    derive from the entry.
    """

    name: str  # its switch
    doc: str  # what it does, in one line
    phase: Phase  # when it applies
    apply: Callable[..., Any]  # its function; see `Phase`
    options: Any = None  # its own options, a frozen dataclass; None for none
    everywhere: Any = None  # options with which it applies wherever it can, however small the data
    # Called for each node of a plan when its SQL is written: may attach hints to the fragment, and
    # may give a block in place of the node's own.
    lower: Lowering | None = None
    # Called when a plan has been cut into stages: may let some wait for others.
    arrange: Arrangement | None = None
    # The lines that EXPLAIN shows below a stage.
    explain: Callable[[Stage], Iterable[str]] = _nothing
