"""Real processes are killed and stopped while TPC-H runs: no wrong answer, no hang, no remains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minishark.bench.chaos.arena import ClusterKind
from minishark.bench.chaos.experiment import Chaos, run_chaos
from minishark.bench.chaos.findings import verdict

_SHORT = Chaos(
    faults=6,
    seconds=4.0,
    kinds=("executor-kill", "executor-stop", "session-kill"),
    scale=0.0,
    queries=(3, 5, 18),
    nodes=2,
    partitions=2,
    threads=2,
    stop_max_s=1.0,
    hang_s=60.0,
)


def test_a_short_run() -> None:
    """Executors and another session are hit: all answers are right, and nothing remains."""
    found = run_chaos(_SHORT, 1, lambda _: None)
    told = verdict(found.rows())
    assert told.passed, told.text
    assert 6 == len(found.injected) + len(found.skipped)
    assert 4 <= len(found.injected)
    assert [] == [done.failure for done in found.done if done.failure]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cluster", ["own", "hosts"])
def test_a_thousand_faults(cluster: ClusterKind) -> None:
    """Of all kinds: no answer is wrong, nothing hangs, all works afterwards, nothing is left."""
    parameters = replace(Chaos(), faults=1000, seconds=1500.0, cluster=cluster)
    told = verdict(run_chaos(parameters, 7, lambda _: None).rows())
    assert told.passed, told.text
