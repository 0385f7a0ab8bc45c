"""Real processes are killed and stopped while TPC-H runs: no wrong answer, no hang, no remains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minishark_lab.chaos.experiment import Chaos, run_chaos
from minishark_lab.chaos.findings import verdict
from minishark_lab.chaos.testbed import ClusterKind

_SHORT = Chaos(
    faults=3,
    seconds=1.5,
    kinds=("executor-kill", "executor-stop", "session-kill"),
    scale=0.0,
    queries=(3, 5, 18),
    nodes=2,
    partitions=2,
    threads=2,
    stop_max_s=1.0,
    hang_s=60.0,
)


@pytest.mark.slow
def test_a_short_run() -> None:
    """Executors and another session are hit: all answers are right, and nothing remains."""
    found = run_chaos(_SHORT, 1, lambda _: None)
    told = verdict(found.rows())
    assert told.passed, told.text
    assert 3 == len(found.injected) + len(found.skipped)
    assert 2 <= len(found.injected)
    assert [] == [done.failure for done in found.done if done.failure]


@pytest.mark.slow
def test_a_hang_is_a_failure_with_stacks(capfd: pytest.CaptureFixture[str]) -> None:
    """What takes too long ends the run; all processes tell what their threads do."""
    found = run_chaos(replace(_SHORT, faults=1, hang_s=0.0), 1, lambda _: None)
    told = verdict(found.rows())
    assert (False, True) == (told.passed, "did not end within 0 s" in told.text)
    stacks = capfd.readouterr().err
    assert "chaos/work.py" in stacks, "of this process"
    assert "transport/process.py" in stacks, "of nodes and executors"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hosts_that_share_nothing() -> None:
    """Nodes over tcp, which are started again empty: tables heal, or are loaded again."""
    parameters = replace(Chaos(), faults=15, seconds=60.0, scale=0.0, cluster="hosts")
    told = verdict(run_chaos(parameters, 3, lambda _: None).rows())
    assert told.passed, told.text


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("cluster", ["own", "hosts"])
def test_a_thousand_faults(cluster: ClusterKind) -> None:
    """Of all kinds: no answer is wrong, nothing hangs, all works afterwards, nothing is left."""
    seconds = 1500.0 if cluster == "own" else 3000.0
    parameters = replace(Chaos(), faults=1000, seconds=seconds, cluster=cluster)
    told = verdict(run_chaos(parameters, 7, lambda _: None).rows())
    assert told.passed, told.text
