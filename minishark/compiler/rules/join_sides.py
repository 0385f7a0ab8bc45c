"""Build sides of joins chosen by the statistics of the plan (`physical/build_sides.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from minishark.compiler.hints import FragmentHints
from minishark.compiler.logical.operators import Join
from minishark.compiler.physical.build_sides import are_as_written
from minishark.compiler.rules.rule import Phase, Rule

if TYPE_CHECKING:
    from minishark.compiler.stages.stage import Stage


def choose_sides(stage: Stage, hints: FragmentHints, _: None) -> FragmentHints:
    """The hints of a stage, whose joins build their right sides if that is best for all of them."""
    # DuckDB's setting holds for all joins of a fragment, so one bad side forbids it.
    if stage.is_statement or stage.parents or not are_as_written(stage.plan):
        return hints
    return structs.replace(hints, build_sides=True)


def _explain(stage: Stage) -> Iterator[str]:
    if stage.hints.build_sides and any(isinstance(n.operator, Join) for n in stage.plan.nodes()):
        yield "builds hash tables from the right sides of joins"


JOIN_SIDES = Rule(
    name="join_sides",
    doc="build hash tables from the sides that the statistics say, instead of DuckDB's choice",
    phase=Phase.FRAGMENT,
    apply=choose_sides,
    explain=_explain,
)
