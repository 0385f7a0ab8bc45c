"""The type of experiments, and what runs their cases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple

from minishark_lab.harness.findings import Finding, Reading
from minishark_lab.harness.points import KEPT
from minishark_lab.harness.rows import Row
from sparrow_core.protocol.errors import SparrowError


class ExperimentError(SparrowError):
    """An experiment can't be run or reported as it was asked for; says why."""


P = TypeVar("P")
R = TypeVar("R", bound=Row)
Case = TypeVarTuple("Case")
Advance = Callable[[float], None]
Kind = Literal["paper", "simulated", "emulated", "live"]


@dataclass(frozen=True)
class Mark:
    """A value of the paper, drawn into the panels whose name begins so; computed from our rows."""

    x: float
    y: Reading  # left out where it raises LookupError
    label: str
    panel: str = ""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """How rows are plotted: one panel per `panel`, one line per `series`."""

    x: str
    y: str = "Response time (ms)"
    _: KW_ONLY
    # "responses" (medians with bars from the 5th to the 95th percentile), "lines", or "steps" (for
    # distributions).
    style: Literal["responses", "lines", "steps"] = "responses"
    # If x stands for things and not for amounts: their names, with x in it ("Q{:g}").
    category: str = ""
    zero: str = ""  # the name at 0, where that is another
    marks: tuple[Mark, ...] = ()  # the paper's values
    log_x: bool = False  # whether the x axis is logarithmic, `log_y` likewise
    log_y: bool = False
    unit_ms: float = 1.0  # in which response times are plotted
    same_y: bool = True  # whether all panels share a y axis
    # How panels end that are not plotted: their rows are numbers, not curves.
    figures: tuple[str, ...] = ()

    def label(self, x: float) -> str:
        """What stands at x on the axis, and above a column."""
        return self.zero if self.zero and not x else (self.category or "{:g}").format(x)


@dataclass(frozen=True)
class Verdict:
    """The text at the end of a run, and whether its checks passed."""

    text: str
    passed: bool


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[P]):
    """A table or figure that can be reproduced."""

    name: str
    title: str  # may name parameters: "{nodes:,} nodes"
    source: str  # the paper and figure, or how it goes beyond them
    # Formulas ("paper"), simulated, emulated (real control plane, sleeping tasks) or live.
    kind: Kind
    parameters: P  # those of the paper, as far as one machine allows
    quick: P  # tiny parameters for a smoke test of a second or so
    # From parameters and a seed to rows; reports progress in shares that add up to 1. Formulas and
    # simulations are deterministic for a seed.
    run: Callable[[P, int, Advance], Sequence[Row]]
    chart: Chart
    findings: tuple[Finding, ...] = ()
    # How often it is run, with other random numbers each time, for confidence intervals.
    runs: int = 1
    # What the rows say, in a sentence or two: printed below the tables, and in the JSON.
    conclusion: Callable[[Sequence[Row]], str] | None = None
    # Evaluates the rows, for experiments that check something.
    verdict: Callable[[Sequence[Row]], Verdict] | None = None

    def titled(self, parameters: P) -> str:
        """The title of a run with these parameters."""
        values = {name: _plain(value) for name, value in vars(parameters).items()}
        return self.title.format_map(values)


def _plain(value: object) -> object:
    return _Listed(value) if isinstance(value, tuple) else value


class _Listed(tuple[object, ...]):
    """Values that are formatted one by one."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return ", ".join(format(each, spec) for each in self)


AnyExperiment = Experiment[Any]


def over_cases(
    cases: Iterable[tuple[*Case]],
    measure: Callable[[*Case, Advance], Iterable[R]],
    advance: Advance,
) -> list[R]:
    """The rows of all cases, which are equal parts of the progress; `measure` tells its own.

    Those that an interrupted run has left are not measured again.
    """
    every = list(cases)
    rows: list[R] = []
    kept = KEPT.get()
    for case in every:
        found = None if kept is None else kept.rows(case)
        if found is None:
            found = list(measure(*case, lambda share: advance(share / len(every))))
            if kept is not None:
                kept.keep(case, found)
        else:
            advance(1 / len(every))
        rows += found  # type: ignore[arg-type] # as `measure` made them
    return rows
