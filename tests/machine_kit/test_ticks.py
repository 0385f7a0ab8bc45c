"""A machine's periodic timer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from machine_kit.addresses import address
from machine_kit.machine import Envelope, Tick
from machine_kit.ticks import Ticks

HERE = address("here", "machine")


def test_a_chain_goes_on() -> None:
    """Each tick that is due makes the next one."""
    ticks = Ticks(HERE, 0.5)
    assert ticks.is_due(0, 10.0)
    assert Envelope(HERE, Tick(1), 0.5) == ticks.next()
    assert ticks.is_due(1, 10.5)
    ticks.interval_s = 2.0
    assert Envelope(HERE, Tick(2), 2.0) == ticks.next()


@given(st.lists(st.integers(0, 12), max_size=60))
def test_there_is_one_chain(generations: list[int]) -> None:
    """Whatever is delivered twice, late or never sent: each generation is taken once, in order."""
    ticks, taken = Ticks(HERE, 1.0), []
    for now, generation in enumerate(generations):
        if ticks.is_due(generation, float(now)):
            taken.append(generation)
            assert Tick(generation + 1) == ticks.next().msg
    assert [*range(len(taken))] == taken


def test_a_chain_begins_anew() -> None:
    """What was on its way of an earlier one is void, and time without one is no stall."""
    ticks = Ticks(HERE, 0.5)
    first = ticks.begin(0.0)
    again = ticks.begin(100.0)
    assert not ticks.is_due(_generation(first), 100.4)
    assert ticks.is_due(_generation(again), 100.5)
    assert 0.0 == ticks.stall_s


def _generation(envelope: Envelope) -> int:
    assert isinstance(envelope.msg, Tick)
    return envelope.msg.generation


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=20))
def test_a_stall_is_what_is_late_by_more_than_an_interval(delays_s: list[float]) -> None:
    """A tick that is a little late is no stall; the first one says nothing."""
    ticks, now = Ticks(HERE, 0.5), 7.0
    assert ticks.is_due(0, now)
    assert 0.0 == ticks.stall_s
    for number, delay_s in enumerate(delays_s, start=1):
        ticks.next()
        before, now = now, now + 0.5 + delay_s
        assert ticks.is_due(number, now)
        late_s = now - before - 0.5
        assert (late_s if late_s > 0.5 else 0.0) == ticks.stall_s
