"""`python -m minishark_lab.simulator`: simulated response times of placements at a load."""

from __future__ import annotations

import argparse
import sys
from typing import TextIO

from minishark_lab.simulator.workload import DISTRIBUTIONS, Workload, percentile, response_times_s
from sparrow_core.policy.placement import make_placement, placement_names
from sparrow_core.protocol.errors import InvalidJob

_PERCENTS = (5, 50, 95, 99)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m minishark_lab.simulator", description=__doc__)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--schedulers", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--tasks", type=int, default=10, help="tasks per job")
    parser.add_argument("--task-ms", type=float, default=100.0, help="mean task time")
    parser.add_argument("--distribution", choices=tuple(DISTRIBUTIONS), default="exponential")
    parser.add_argument("--probe-ratio", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--placement", action="append", metavar="NAME", default=[],
        help="only these placements: their names, or module:factory",
    )  # fmt: skip
    options = parser.parse_args()
    if not 0 < options.load < 1:
        parser.error("--load must lie between 0 and 1")
    placements = options.placement or ("central", *placement_names())
    try:
        for placement in placements:
            if placement != "central":
                make_placement(placement)
    except InvalidJob as error:
        parser.error(str(error))
    heads = "".join(f"{f'p{percent}':>9}" for percent in _PERCENTS)
    _tell(sys.stdout, f"{'response time, ms':20}{heads}\n")
    for number, placement in enumerate(placements, 1):
        if sys.stderr.isatty():  # the next line takes its place
            _tell(sys.stderr, f"simulating {placement}, {number} of {len(placements)} ...\r")
        times_s = response_times_s(
            Workload(
                load=options.load,
                jobs=options.jobs,
                tasks=options.tasks,
                task_s=options.task_ms / 1000,
                distribution=options.distribution,
                placement=placement,
                probe_ratio=options.probe_ratio,
            ),
            nodes=options.nodes,
            slots=options.slots,
            schedulers=options.schedulers,
            seed=options.seed,
        )
        figures = "".join(f"{percentile(times_s, percent) * 1000:9.1f}" for percent in _PERCENTS)
        _tell(sys.stdout, f"{placement:20}{figures}\n")


def _tell(stream: TextIO, text: str) -> None:
    """Write at once: the next line takes its time."""
    stream.write(text)
    stream.flush()


if __name__ == "__main__":
    main()
