"""How long a submitted program takes to start, and to be taken over when its node dies.

    python benchmarks/submitted.py [--rounds 20]

`start` is the time from `submit` until the program's first line has run, `taken over` that from
SIGKILL to its node until its first line has run on another one. The cluster, new for each
take-over, has three nodes on this machine.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from minishark.cluster.jobs.client import JobsClient, new_terms, program_files
from minishark.cluster.jobs.records import Holder, JobProgram, JobState, homes_of
from minishark.cluster.jobs.visit import jobs_of
from minishark.cluster.launch import ClusterRecord, StartOptions, start_cluster, stop_cluster
from minishark_lab.harness.parameters import Count
from minishark_lab.harness.script import Options, described, run_script

_PROGRAM = "import time\nprint(f'began {time.time()}\\n', end='', flush=True)\ntime.sleep(600)\n"
_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class SubmittedOptions(Options):
    """The options of the script."""

    rounds: Annotated[Count, described("of each kind")] = 20


@contextmanager
def _cluster(name: str) -> Iterator[tuple[ClusterRecord, JobsClient]]:
    record = start_cluster(StartOptions(name=name, nodes=3))
    try:
        with jobs_of(record.nodes[-1].service, None) as jobs:
            yield record, jobs
    finally:
        stop_cluster(name)


def _submitted(jobs: JobsClient, name: str, script: Path) -> JobState:
    found, files = program_files(script, None)
    return jobs.submit(new_terms(name, name), JobProgram(script=found, files=files))


def _awaited_start(jobs: JobsClient, name: str, since_s: float) -> float:
    """When the program of a job began last, in seconds since then."""
    deadline = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline:
        text = jobs.log(jobs.patiently(name))[1].decode()
        times = [float(line.split()[1]) for line in text.split("\n")[:-1]]
        if times and times[-1] > since_s:
            return times[-1] - since_s
        time.sleep(0.05)
    raise TimeoutError(name)


def _start_s(jobs: JobsClient, number: int, script: Path) -> float:
    since_s = time.time()
    state = _submitted(jobs, f"start-{number}", script)
    took_s = _awaited_start(jobs, state.terms.name, since_s)
    jobs.cancel(state)
    jobs.wait(state.terms.name, state.terms.uid, _LIMIT_S)
    return took_s


def _taken_over_s(number: int, script: Path) -> float:
    with _cluster(f"over{number}") as (record, jobs):
        name = _name_for(record, number)
        state = _submitted(jobs, name, script)
        _awaited_start(jobs, name, 0.0)
        time.sleep(1.0 + number % 4 / 4)  # the holders' heartbeats come once a second
        victim = next(node for node in record.nodes if node.name == state.node)
        since_s = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        return _awaited_start(jobs, name, since_s)


def _name_for(record: ClusterRecord, number: int) -> str:
    """The name of a job whose home is not the node that this program asks."""
    nodes = [Holder(node.name, "", "") for node in record.nodes]
    names = (f"job-{number}-{turn}" for turn in itertools.count())
    return next(name for name in names if homes_of(name, nodes)[0] != nodes[-1])


def _report(what: str, rounds: int, measure: Callable[[int], float]) -> None:
    figures = sorted(measure(number) for number in range(rounds))
    median = statistics.median(figures)
    print(f"{what:<12}median {median:.2f} s, worst {figures[-1]:.2f} s of {rounds}", flush=True)


def main(options: SubmittedOptions) -> None:
    """Measure both."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "program.py")
        script.write_text(_PROGRAM)
        with _cluster("starts") as (_, jobs):
            _report("start", options.rounds, lambda number: _start_s(jobs, number, script))
        _report("taken over", options.rounds, lambda number: _taken_over_s(number, script))


if __name__ == "__main__":
    run_script(main, quick={"rounds": 2})
