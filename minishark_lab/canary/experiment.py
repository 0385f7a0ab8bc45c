"""`minishark bench canary`: the paper's three applications beside NumPy and installed peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minishark.errors import OptionError
from minishark_lab.canary.cases import APPLICATIONS, Case, Measured
from minishark_lab.canary.systems import installed_peers, run_cases
from minishark_lab.harness.experiment import Advance, Chart, Experiment, Verdict
from minishark_lab.harness.rows import Point, Row

_WALL, _CPU = "wall time", "CPU time"
_WRONG, _BITS = "differs from NumPy's result", "differs from the sequential runner's bits"
_TOLERANCE = 1e-9  # sums of floats in another order


@dataclass(frozen=True, kw_only=True)
class Applications:
    """Logistic regression and k-means over points of 20 dimensions, and PageRank over edges."""

    # Points, or edges: many tiny tasks, and tasks that NumPy dominates.
    counts: tuple[int, ...] = (20_000, 400_000)
    iterations: int = 10  # of each run
    workers: int = 2  # processes
    partitions: int = 8  # of all workers together
    # To compare with, as far as they are installed.
    peers: tuple[str, ...] = ("mpi4py", "Ray", "PySpark")


def applications(parameters: Applications, seed: int, advance: Advance) -> Sequence[Row]:
    """Time per iteration on each system, and whether the results are right."""
    del seed  # the data are always the same
    if min(parameters.workers, parameters.iterations, *parameters.counts) < 1:
        raise OptionError("Set workers, iterations and counts to 1 or more.")
    cases = [
        Case(
            application=each, count=count, partitions=parameters.partitions,
            workers=parameters.workers, iterations=parameters.iterations,
        )
        for each in APPLICATIONS
        for count in parameters.counts
    ]  # fmt: skip
    peers = [each for each in installed_peers() if each in parameters.peers]
    systems = ("NumPy", "sequential", "minishark", *peers)
    found: dict[str, list[Measured]] = {}
    for system in systems:
        found[system] = run_cases(system, cases)
        advance(1 / len(systems))
    return [row for system in systems for row in _rows(system, cases, found)]


def _rows(system: str, cases: Sequence[Case], found: dict[str, list[Measured]]) -> list[Row]:
    rows: list[Row] = []
    for number, case in enumerate(cases):
        one = found[system][number]
        result, expected = one.array(), found["NumPy"][number].array()
        is_wrong = not np.allclose(result, expected, rtol=_TOLERANCE, atol=0)
        values = {_WRONG: float(is_wrong)}
        if system != "sequential":
            values |= {_WALL: one.wall_s, _CPU: one.cpu_s}
        if system == "minishark":
            values[_BITS] = float(one.result != found["sequential"][number].result)
        for kind, value in values.items():
            is_time = kind in {_WALL, _CPU}
            y = 1000 * value / case.iterations if is_time else value
            panel = f"{case.application}, {kind}"
            rows.append(Point(panel=panel, series=system, x=case.count, y=y))
    return rows


def verdict(rows: Sequence[Row]) -> Verdict:
    """Milliseconds per iteration by application, size and system; which results are not right."""
    points = [row for row in rows if isinstance(row, Point)]
    times = {(row.panel, row.x, row.series): row.y for row in points}
    systems = list(dict.fromkeys(row.series for row in points if row.panel.endswith(_WALL)))
    lines = [_line("ms per iteration: wall (CPU of all processes)", systems)]
    for application in APPLICATIONS:
        panels = (f"{application}, {_WALL}", f"{application}, {_CPU}")
        for count in dict.fromkeys(row.x for row in points):
            pairs = [[times[panel, count, each] for panel in panels] for each in systems]
            cells = [f"{wall:.2f} ({cpu:.2f})" for wall, cpu in pairs]
            unit = "edges" if application == "PageRank" else "points"
            lines.append(_line(f"{application}, {count:,.0f} {unit}", cells))
    problems = [
        f"{row.panel}, {row.x:,.0f}: {row.series}"
        for row in points
        if row.panel.endswith((_WRONG, _BITS)) and row.y
    ]
    lines += ["", "all results are right" if not problems else "wrong:", *problems]
    missing = [each for each in Applications().peers if each not in installed_peers()]
    if missing:
        lines.append(f"not compared with {', '.join(missing)}: pip install them to see them here")
    return Verdict("\n".join(lines), passed=not problems)


def _line(name: str, cells: Sequence[str]) -> str:
    return f"{name:<46}" + "".join(f"{cell:>18}" for cell in cells)


EXPERIMENTS = (
    Experiment(
        name="canary",
        title="Logistic regression, k-means and PageRank beside NumPy and installed peers",
        source="Canary, section 5.3; results are NumPy's, and the sequential runner's to the bit",
        kind="live",
        parameters=Applications(),
        quick=Applications(counts=(20_000,), iterations=5, peers=()),
        run=applications,
        chart=Chart(
            x="Points, or edges",
            y="ms per iteration",
            style="lines",
            log_x=True,
            log_y=True,
            figures=tuple(
                f"{each}, {kind}" for each in APPLICATIONS for kind in (_CPU, _WRONG, _BITS)
            ),
        ),
        verdict=verdict,
    ),
)
