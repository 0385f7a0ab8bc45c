"""`minishark bench simulate`: many histories, one after the other, and what was wrong with them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minishark.errors import OptionError
from minishark_lab.harness.experiment import Advance, Chart, Experiment, Verdict
from minishark_lab.harness.rows import Point, Row, distribution
from minishark_lab.simulation.history import Outcome, run_history
from minishark_lab.simulation.script import Script, script_of
from minishark_lab.simulation.shrink import shrink
from sparrow_core.observe.message_log import MessageLog

TOOK = "How long statements take, in simulated time"
FIGURES_PANEL, FAILURES, BROKEN = "figures", "failures", "broken promises"
_FAILING_MAX = 5  # histories that are shrunk; the run ends then
_TOOK_MAX = 100_000
_TEXT_MAX = 600


@dataclass(frozen=True, kw_only=True)
class Simulate:
    """Histories of the engine under faults, in simulated time."""

    seconds: float = 60.0  # real ones, after which no other history begins
    histories: int = 1_000_000  # at most; their seeds follow one another
    statements: int = 80  # of each session
    faults: int = 12  # of each history, at most
    # Sessions of each process that only query: if more than two, for as long as others write.
    readers: int = 2
    # Only these faults and statements of a history, by number: a failure, shrunk.
    faults_kept: tuple[int, ...] | None = None
    statements_kept: tuple[int, ...] | None = None
    messages: str = ""  # a file for all messages of these histories, as text


@dataclass(slots=True)
class _Total:
    """The sums over histories."""

    figures: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    failing: int = 0

    def add(self, outcome: Outcome) -> None:
        """Add the figures of a history."""
        self.figures.update(
            {
                "histories": 1,
                "queries": outcome.queries,
                "answered while a fault lasts": outcome.disturbed,
                "answered without a task": outcome.taken,
                "statements that write": outcome.writes,
                "faults": outcome.faults,
                "events": outcome.events,
                "wrong": len(outcome.wrong),
                "hangs": len(outcome.hangs),
                "leaks": len(outcome.leaks),
                "misplaced replicas": len(outcome.misplaced),
                "unexpected errors": len(outcome.broken),
            }
        )
        self.failures.update(outcome.failures)
        if len(self.took_s) < _TOOK_MAX:
            self.took_s += outcome.took_s

    def rows(self, seconds: float) -> Iterator[Row]:
        """A curve, and figures as points whose y is a count."""
        yield from distribution(TOOK, "statements", self.took_s or [0.0])
        for name, count in self.figures.items():
            yield Point(panel=FIGURES_PANEL, series=name, x=0.0, y=float(count))
        for name in ("queries", "events"):
            rate = self.figures[name] / max(seconds, 1e-9)
            yield Point(panel=FIGURES_PANEL, series=f"{name} a CPU-second", x=0.0, y=rate)
        for name, count in self.failures.most_common():
            yield Point(panel=FAILURES, series=name, x=0.0, y=float(count))
        for text in self.broken:
            yield Point(panel=BROKEN, series=text, x=0.0, y=1.0)


def simulate(parameters: Simulate, seed: int, advance: Advance) -> Sequence[Row]:
    """Run histories with seeds from `seed` on; those that fail are made smaller."""
    if min(parameters.histories, parameters.statements) < 1 or parameters.faults < 0:
        raise OptionError("Set histories and statements to 1 or more, and faults to 0 or more.")
    total, deadline, told = _Total(), time.monotonic() + parameters.seconds, 0.0
    cpu_s = 0.0
    log = MessageLog(Path(parameters.messages), offset_s=0.0) if parameters.messages else None
    for number in range(parameters.histories):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or total.failing >= _FAILING_MAX:
            break
        script = _script(seed + number, parameters)
        began_s = time.process_time()
        kept = script.kept(parameters.faults_kept, parameters.statements_kept)
        outcome = run_history(kept, log.taken if log else None)
        cpu_s += time.process_time() - began_s
        total.add(outcome)
        if outcome.complaints:
            total.failing += 1
            total.broken += _told(outcome, parameters)
        done = max((number + 1) / parameters.histories, 1 - left_s / parameters.seconds)
        advance(min(1.0, done) - told)
        told = min(1.0, done)
    if log is not None:
        log.close()
    return list(total.rows(cpu_s))


def _told(outcome: Outcome, parameters: Simulate) -> list[str]:
    """How a history fails, and what repeats that."""
    if parameters.faults_kept is not None or parameters.statements_kept is not None:
        happened = [*map(str, outcome.script.faults)]
        return [each[:_TEXT_MAX] for each in (*outcome.complaints[:_FAILING_MAX], *happened)]
    shrunk = shrink(outcome, _script(outcome.script.seed, parameters))
    complaint = shrunk.outcome.complaints[0][:_TEXT_MAX]
    drawn = {name: getattr(parameters, name) for name in ("statements", "faults", "readers")}
    return [f"{complaint}\n    {shrunk.command(**drawn)}"]


def _script(seed: int, parameters: Simulate) -> Script:
    return script_of(seed, parameters.statements, parameters.faults, parameters.readers)


def verdict(rows: Sequence[Row]) -> Verdict:
    """The figures as text; a run passes if no history fails."""
    points = [row for row in rows if isinstance(row, Point)]
    broken = [row.series for row in points if row.panel == BROKEN]
    failures = [row for row in points if row.panel == FAILURES]
    lines = [
        *(f"{row.series:28}{row.y:,.0f}" for row in points if row.panel == FIGURES_PANEL),
        f"{'statements failed':28}{sum(row.y for row in failures):,.0f}",
        *(f"  {row.series:26}{row.y:,.0f}" for row in failures),
        *broken,
    ]
    return Verdict("\n".join(lines), passed=not broken)


EXPERIMENTS = (
    Experiment(
        name="simulate",
        title="the engine in simulation: sessions, queries and tables under faults of every kind",
        source="every answer is the model's, nothing hangs, nothing is left behind",
        kind="simulated",
        parameters=Simulate(),
        quick=Simulate(seconds=5.0, histories=2, statements=12, faults=4),
        run=simulate,
        chart=Chart(
            x="Seconds",
            y="Share of statements",
            style="steps",
            figures=(FIGURES_PANEL, FAILURES, BROKEN),
        ),
        verdict=verdict,
    ),
)
