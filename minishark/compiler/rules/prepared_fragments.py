"""Fragments that come again are prepared by executors (`worker/prepared.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from minishark.compiler.hints import FragmentHints
from minishark.compiler.rules.rule import Phase, Rule

if TYPE_CHECKING:
    from minishark.compiler.stages.stage import Stage


def prepare(stage: Stage, hints: FragmentHints, _: None) -> FragmentHints:
    """The hints of a stage, whose fragment is prepared when it comes a second time."""
    # Whether it is worth it only an executor can tell, which sees what comes again.
    del stage
    return structs.replace(hints, prepares=True)


PREPARED_FRAGMENTS = Rule(
    name="prepared_fragments",
    doc="parse, bind and optimize fragments of repeated queries once",
    phase=Phase.FRAGMENT,
    apply=prepare,
)
