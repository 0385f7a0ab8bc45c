"""Small outputs of tasks travel in messages instead of files.

A file is written, mapped by each of its readers, and removed again, which takes longer than sending
a few rows along. What is in messages is in the front end's memory, and no node can lose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from minishark.compiler.hints import FragmentHints
from minishark.compiler.rules.rule import Phase, Rule

if TYPE_CHECKING:
    from minishark.compiler.stages.stage import Stage


@dataclass(frozen=True, slots=True)
class InlineOutputs:
    """The options of the rule."""

    task_bytes: int = 64 << 10  # the size below which a task's output travels in messages
    # How many bytes all tasks of a stage together may send in this way, if every bucket goes to a
    # task of its own, which gets the outputs whole.
    stage_bytes: int = 1 << 20


def send(stage: Stage, hints: FragmentHints, limits: InlineOutputs) -> FragmentHints:
    """The hints of a stage, with the size below which an output is small."""
    messages = stage.tasks * max(1, stage.buckets)
    return structs.replace(
        hints, inline_bytes=min(limits.task_bytes, limits.stage_bytes // messages)
    )


INLINE_OUTPUTS = Rule(
    name="inline_outputs",
    doc="small outputs of tasks travel in messages instead of files",
    phase=Phase.FRAGMENT,
    apply=send,
    options=InlineOutputs(),
    everywhere=InlineOutputs(),
)
