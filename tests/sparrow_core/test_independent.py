"""The simulators beside an independent one, written from the papers' text alone.

independent_placement.c shares no code, method or random numbers with them. Its times run from the
scheduler to the end of the last task, ours from the client and back: as many messages are taken
off. What is compared at each point are medians and 95th percentiles of several runs each, which
start empty and have the same number of jobs, so that a queue need not be settled.
"""

from __future__ import annotations

import math
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from minishark_lab.models import vector
from minishark_lab.simulator.network import Network
from minishark_lab.simulator.workload import Workload

SOURCE = Path(__file__).with_name("independent_placement.c")
MESSAGE_MS = 0.5
# The papers' model has no time on the node between its monitor and its executor.
NETWORK = Network(delay_s=MESSAGE_MS / 1000, local_delay_s=0.0)
THEIRS = {
    "random": "random",
    "per_task": "per-task",
    "batch": "batch",
    "sparrow": "late",
    "central": "omniscient",
}
PERCENTS = (50, 95)


@pytest.fixture(scope="session")
def independent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the independent simulation is in C, and there is no compiler")
    program = tmp_path_factory.mktemp("independent") / "placement"
    flags = ("-O2", "-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, *flags, "-o", program, SOURCE, "-lm"], check=True)
    return program


class Case(NamedTuple):
    """A point of a figure."""

    placement: str
    load: float
    slots: int = 1
    ratio: float = 2.0
    distribution: str = "exponential"

    def ours_ms(self, slots_in_all: int, tasks: int, jobs: int, seed: int) -> np.ndarray:
        """Response times of a run."""
        workload = Workload(
            load=self.load, jobs=jobs, tasks=tasks, distribution=self.distribution,
            placement=self.placement, probe_ratio=self.ratio,
        )  # fmt: skip
        # From the client and back to it; ours takes a third one to start a task from the centre.
        messages = 3 if self.placement == "central" else 2
        times_s = vector.response_times_s(
            workload,
            nodes=slots_in_all // self.slots,
            slots=self.slots,
            seed=seed,
            network=NETWORK,
            cancellation=False,  # "future work"
        )
        return 1000 * times_s - messages * MESSAGE_MS

    def theirs_ms(
        self, program: Path, slots_in_all: int, tasks: int, jobs: int, seed: int
    ) -> np.ndarray:
        """Response times of a run of the independent program."""
        arguments = (
            THEIRS[self.placement], slots_in_all // self.slots, self.slots, tasks, self.ratio,
            self.load, self.distribution, jobs, seed,
        )  # fmt: skip
        done = subprocess.run(
            [program, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=600
        )
        return np.array(done.stdout.split(), float)


def deviations(
    program: Path, case: Case, seeds: range, *, slots_in_all: int, tasks: int, jobs: int
) -> Iterator[float]:
    """By how many standard errors the two differ, for each percentile."""
    size = (slots_in_all, tasks, jobs)
    ours = [case.ours_ms(*size, seed) for seed in seeds]
    theirs = [case.theirs_ms(program, *size, seed=seed) for seed in seeds]
    for percent in PERCENTS:
        found = [[float(np.percentile(run, percent)) for run in each] for each in (ours, theirs)]
        error = math.sqrt(sum(statistics.variance(each) for each in found) / len(seeds))
        difference = statistics.fmean(found[0]) - statistics.fmean(found[1])
        # Where nothing waits, runs do not differ at all but by the clock's rounding.
        yield 0.0 if abs(difference) < 1e-3 else difference / max(error, 1e-9)


def check(
    program: Path, cases: list[Case], *, slots_in_all: int, tasks: int, jobs: int, runs: int
) -> None:
    """Assert that the differences are those of a chance: of Student's t, with so many runs."""

    def measure(numbered: tuple[int, Case]) -> list[float]:
        number, case = numbered
        seeds = range(1000 * number + 1, 1000 * number + 1 + runs)  # or points would err alike
        size = {"slots_in_all": slots_in_all, "tasks": tasks, "jobs": jobs}
        return list(deviations(program, case, seeds, **size))

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(measure, enumerate(cases)))
    values = [abs(value) for each in found for value in each]
    far = {case: each for case, each in zip(cases, found, strict=True) if max(map(abs, each)) > 5}
    # 2.1 is the 97.5 % quantile for 18 degrees of freedom, and more with fewer: one in twenty lies
    # outside. Both percentiles of a point come from the same runs, hence the 2.
    outside = sum(value > 2.1 for value in values)
    expected = len(values) / 20
    assert not far
    assert outside <= expected + 3 * math.sqrt(2 * expected), list(zip(cases, found, strict=True))


@pytest.mark.sample(9)
@pytest.mark.parametrize("placement", THEIRS)
def test_techniques_are_those_of_an_independent_simulation(
    independent: Path, placement: str
) -> None:
    """All of them at 90 % load, on a small cluster."""
    check(independent, [Case(placement, 0.9)], slots_in_all=400, tasks=20, jobs=400, runs=6)


# The points of the papers' figures.
FIGURE_5 = [Case("sparrow", load, ratio=ratio)
            for ratio in (1.0, 1.2, 1.5, 2.0, 3.0)
            for load in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)]  # fmt: skip
FIGURE_5 += [Case("central", load) for load in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)]
# Figure 3 of the later paper is its panel of exponential tasks.
FIGURE_6 = [Case(placement, load, distribution=distribution)
            for distribution in ("exponential", "constant", "pareto")
            for placement in ("random", "per_task", "batch", "sparrow")
            for load in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)]  # fmt: skip
FIGURE_7 = [Case("sparrow", load, slots)
            for slots in (1, 2, 4)
            for load in (0.5, 0.7, 0.8, 0.9, 0.95)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)  # minutes, on a busy machine many
@pytest.mark.parametrize(
    "cases", [FIGURE_5, FIGURE_6, FIGURE_7], ids=["figure 5", "figures 3, 6", "figure 7"]
)
def test_all_points_of_the_figures_are_those_of_an_independent_simulation(
    independent: Path, cases: list[Case]
) -> None:
    """10,000 slots and jobs of 500 tasks, as in the papers."""
    check(independent, cases, slots_in_all=10_000, tasks=500, jobs=500, runs=10)
