"""Figures of a chaos run, and whether all checks passed. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from minishark_lab.chaos.injector import Fault, Injected
from minishark_lab.chaos.work import Done
from minishark_lab.harness.experiment import Verdict
from minishark_lab.harness.rows import Point, Row, distribution, percentile

LONGER = "Queries that were hit: how much longer they took"
SILENT = "After a kill: how long no statement was answered"
NODES = "nodes and heads"
FAULTS, WORK, FAILURES, BROKEN = "faults", "work", "failures", "broken promises"
FIGURES = (FAULTS, WORK, FAILURES, BROKEN)
_TEXT_MAX = 300
_EXAMPLES_MAX = 5
_BROKEN_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Outcome of a run."""

    injected: Sequence[Injected]
    skipped: Sequence[Fault]  # faults without a possible victim
    quiet: Sequence[Done]  # before the first fault; `done` during faults, `after` after the last
    done: Sequence[Done]
    after: Sequence[Done]
    hung: Sequence[str]  # statements that did not end in time
    left: Sequence[str]  # leaks

    def rows(self) -> list[Row]:
        """Curves, and figures as points whose y is a count."""
        done = [*self.quiet, *self.done, *self.after]
        failed = [each for each in self.after if each.failure]
        late = [f"after the last fault, {each.work}: {each.failure}" for each in failed]
        wrong = [f"wrong answer of {each.work}: {each.wrong[0]}" for each in done if each.wrong]
        hung = [f"hung: {each}" for each in self.hung]
        left = [f"left behind: {each}" for each in self.left]
        return [
            *self._curves(),
            *self._silences(),
            *_counted(FAULTS, (each.fault.kind for each in self.injected)),
            *_counted(FAULTS, ("could hit nobody" for _ in self.skipped)),
            *_counted(WORK, (each.work for each in done)),
            *_counted(FAILURES, (each.failure for each in self.done if each.failure)),
            *_counted(BROKEN, [*wrong, *late, *hung, *left]),
        ]

    def _curves(self) -> list[Point]:
        usual = self._usual_s()
        found: list[Point] = []
        for kind in dict.fromkeys(each.fault.kind for each in self.injected):
            longer = [
                max(0.0, done.took_s - usual[done.work])
                for done in self.done
                if done.is_right and done.work in usual and self._hit_by(done, kind)
            ]
            found += distribution(LONGER, kind, longer)
        return found or [Point(panel=LONGER, series="none", x=0.0, y=1.0)]

    def _silences(self) -> list[Point]:
        """From each kill to the first answer of what began after it, beyond what is usual."""
        usual = self._usual_s()
        right = [done for done in (*self.done, *self.after) if done.is_right and done.work in usual]
        found: list[Point] = []
        gaps: dict[str, list[float]] = {}
        for kill in (each for each in self.injected if each.fault.is_kill):
            later = [done for done in right if done.began_s >= kill.began_s]
            ends = [done.ended_s - usual[done.work] - kill.began_s for done in later]
            for series in (kill.fault.kind, *((NODES,) if kill.fault.loses_node else ())):
                gaps.setdefault(series, []).extend([max(0.0, min(ends))] if ends else [])
        for series, values in gaps.items():
            found += distribution(SILENT, series, values)
        return found

    def _usual_s(self) -> dict[str, float]:
        calm = [d for d in (*self.quiet, *self.done) if d.is_right and not self._hit_by(d)]
        names = dict.fromkeys(done.work for done in calm)
        return {name: median(d.took_s for d in calm if d.work == name) for name in names}

    def _hit_by(self, done: Done, kind: str | None = None) -> bool:
        """Whether a fault (of that kind) overlapped with a statement."""
        return any(
            each.began_s <= done.ended_s and done.began_s <= each.ended_s
            for each in self.injected
            if kind in (None, each.fault.kind)
        )


def _counted(panel: str, names: Iterable[str]) -> list[Point]:
    counts = Counter(" ".join(name.split())[:_TEXT_MAX] for name in names)
    return [
        Point(panel=panel, series=name, x=0.0, y=float(count))
        for name, count in counts.most_common()
    ]


def verdict(rows: Sequence[Row]) -> Verdict:
    points = [row for row in rows if isinstance(row, Point)]
    figures = {panel: [row for row in points if row.panel == panel] for panel in FIGURES}
    hits = [row for row in figures[FAULTS] if row.series != "could hit nobody"]
    failed = Counter[str]()
    for row in figures[FAILURES]:
        failed[row.series.partition(":")[0]] += int(row.y)
    wrong = [row for row in figures[BROKEN] if row.series.startswith("wrong answer")]
    lines = [
        f"{'faults injected':28}{_total(hits)}",
        *(f"  {row.series:26}{row.y:.0f}" for row in figures[FAULTS]),
        f"{'statements run':28}{_total(figures[WORK])}",
        f"{'answers wrong':28}{_total(wrong)}",
        f"{'statements failed':28}{sum(failed.values())}",
        *(f"  {name:26}{count}" for name, count in failed.most_common()),
        "longer by (s)               p50     p95     p99     max",
        *_recoveries(points, LONGER),
        "no answer for (s)           p50     p95     p99     max",
        *_recoveries(points, SILENT),
        *(f"example: {row.series}" for row in figures[FAILURES][:_EXAMPLES_MAX]),
        f"{'promises broken':28}{_total(figures[BROKEN])}",
        *(f"  {row.series}" for row in figures[BROKEN][:_BROKEN_MAX]),
    ]
    return Verdict("\n".join(lines), passed=not figures[BROKEN])


def _total(rows: Sequence[Point]) -> int:
    return sum(int(row.y) for row in rows)


def _recoveries(points: Sequence[Point], panel: str) -> list[str]:
    curves = [row for row in points if row.panel == panel]
    lines = []
    for kind in dict.fromkeys(row.series for row in curves):
        own = [row.x for row in curves if row.series == kind]
        shown = [*(percentile(own, percent) for percent in (50, 95, 99)), own[-1]]
        lines.append(f"  {kind:22}{''.join(f'{value:8.2f}' for value in shown)}")
    return lines
