"""What an experiment is, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Literal, TypeVar

from sparrow_core.lab.findings import Finding
from sparrow_core.lab.rows import Row

P = TypeVar("P")
Advance = Callable[[float], None]
Kind = Literal["paper", "simulated", "emulated", "live"]


@dataclass(frozen=True)
class Chart:
    """How rows are drawn: a panel each `panel`, a line each `series`.

    Attributes:
        x: What the x axis shows.
        y: What the y axis shows.
        style: "responses" (medians with bars from the 5th to the 95th percentile), "lines", or
            "steps" (for distributions).
        log_x: Whether the x axis is logarithmic, `log_y` likewise.
        same_y: Whether all panels have one scale.
        figures: Panels that are not drawn: their rows are figures, not curves.
    """

    x: str
    y: str = "Response time (ms)"
    _: KW_ONLY
    style: Literal["responses", "lines", "steps"] = "responses"
    log_x: bool = False
    log_y: bool = False
    same_y: bool = True
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What is told at the end of a run, and whether what it tries has held."""

    text: str
    passed: bool


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[P]):
    """A table or figure that anyone can run again.

    Attributes:
        name: What is typed.
        title: What it shows, in a few words.
        source: The paper and figure, or what it goes beyond.
        kind: On paper, simulated, emulated (real control plane, tasks that sleep) or live.
        parameters: Those of the paper, as far as one machine allows.
        quick: Tiny ones, that show in a second or so that it works.
        run: From parameters and a seed to rows; tells how far it is in shares that add up to 1.
            What is on paper or simulated gives the same rows for the same seed.
        chart: How the rows are drawn.
        findings: Its main figures, beside the paper's.
        verdict: Sums the rows up, for experiments that try whether something holds.
    """

    name: str
    title: str
    source: str
    kind: Kind
    parameters: P
    quick: P
    run: Callable[[P, int, Advance], Sequence[Row]]
    chart: Chart
    findings: tuple[Finding, ...] = ()
    verdict: Callable[[Sequence[Row]], Verdict] | None = None


AnyExperiment = Experiment[Any]


def steps(advance: Advance, count: int) -> Advance:
    """Progress of one of `count` equal parts: it takes shares of its part."""
    return lambda share: advance(share / count)
