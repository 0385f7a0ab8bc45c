"""When processes that died are started anew."""

from __future__ import annotations

import pytest

from sparrow_core.runtime.transport.deaths import Respawns, describe_exit


def test_what_dies_at_once_is_started_ever_more_slowly() -> None:
    """The pause doubles up to a limit, however often it dies, and is short again after a while."""
    respawns = Respawns()
    pauses = []
    for _ in range(3000):
        respawns.started(1.0)
        pauses.append(respawns.died(2.0))
    assert pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]) == pauses[:7]
    assert {5.0} == {*pauses[7:]}
    respawns.started(10.0)
    assert (pytest.approx(0.1), 3001) == (respawns.died(21.0), respawns.count)


def test_some_are_given_up() -> None:
    """A limit counts deaths in a row at the start; not of what has worked for some seconds."""
    respawns = Respawns(quick_max=1)
    for now in (0.0, 10.0, 20.0, 30.0):
        respawns.started(now)
        assert respawns.died(now + 4.0) is not None
    respawns.started(40.0)
    assert respawns.died(41.0) is not None
    respawns.started(41.0)
    assert respawns.died(42.0) is None


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (None, "still running"),
        (3, "exit status 3, peak memory 64 MiB"),
        (-9, "killed by SIGKILL, peak memory 64 MiB"),
        (-11, "killed by SIGSEGV, peak memory 64 MiB"),
        (-40, "killed by signal 40, peak memory 64 MiB"),
    ],
)
def test_exits_are_told_in_words(status: int | None, told: str) -> None:
    """Signals by name, but for real-time ones, which have none."""
    assert told == describe_exit(status, 64 << 20, out_of_memory=False)
