"""An optimizer rule as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from minishark.compiler.physical.plan import PhysicalPlan

if TYPE_CHECKING:
    from minishark.compiler.hints import DictionaryCodes, InputGroupRuns, InputKeyFilter
    from minishark.compiler.logical import operators as ops
    from minishark.compiler.logical.plan import LogicalPlan
    from minishark.compiler.physical.estimate import Profile
    from minishark.compiler.physical.exchanges import Planned
    from minishark.compiler.stages.fragment import Aliases, Block
    from minishark.compiler.stages.stage import Stage
    from minishark.model.expressions import Schema


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


class Placer(Protocol):
    """What rules of the phase PLACEMENT may use of the planner, which applies them in turn.

    Each method places an operator over inputs that are placed.
    """

    def plan(self, logical: LogicalPlan) -> Planned:
        """A logical node with all below it."""

    def project(self, project: ops.Project, child: Planned, schema: Schema) -> Planned: ...

    def join(self, join: ops.Join, left: Planned, right: Planned, schema: Schema) -> Planned: ...

    def aggregate(self, aggregate: ops.Aggregate, child: Planned, schema: Schema) -> Planned:
        """In each partition if it holds whole groups, else in two phases."""

    def partial(self, aggregate: ops.Aggregate, child: Planned, names: Sequence[str]) -> Planned:
        """The first phase of an aggregate, whose groups get these names: groups and states."""

    def final(
        self, aggregate: ops.Aggregate, partial: Planned, schema: Schema, profile: Profile
    ) -> Planned:
        """The second phase, over groups and states; equal groups are brought together."""


class Fragment(Protocol):
    """What rules may use of a fragment that is being written, to whose inputs they add hints."""

    aliases: Aliases
    dictionary_codes: dict[str, DictionaryCodes]  # columns that inputs get in addition, by input
    key_filters: dict[str, InputKeyFilter]  # which rows inputs keep, by input
    group_runs: list[InputGroupRuns]

    def block(self, plan: PhysicalPlan) -> Block:
        """The SQL of a node and all below it in this stage."""

    def scanned(self, plan: PhysicalPlan, scan: ops.Scan) -> str:
        """The name in the fragment of a table that it scans, a partition or all of it."""

    def cte(self, index: int, *, whole: bool) -> str:
        """The name in the fragment of a common table expression, which is written if it is new."""


Lowering: TypeAlias = "Callable[[PhysicalPlan, Fragment], Block | None]"

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
