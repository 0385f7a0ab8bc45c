"""When others were heard."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from machine_kit.peers import Peers

NAMES = st.sampled_from("abcd")
SECONDS = st.integers(0, 8).map(float)


def test_a_peer_is_silent_beyond_the_limit() -> None:
    """At the limit it is not; one that is not known was never heard."""
    peers = Peers[str]()
    peers.heard("a", 10.0)
    peers.heard("b", 12.0)
    assert [] == peers.silent(13.0, 3.0)
    assert ["a"] == peers.silent(13.5, 3.0)
    assert 3.5 == peers.silent_s("a", 13.5)
    assert math.inf == peers.silent_s("c", 13.5)
    peers.expect("a", 13.0)
    assert 3.5 == peers.silent_s("a", 13.5), "it is expected since 10"
    peers.forget("a")
    assert [] == peers.silent(13.5, 3.0)
    peers.expect("c", 13.0)
    assert ["b", "c"] == [*peers]
    assert 0.5 == peers.silent_s("c", 13.5), "from now on"
    peers.forget("c")
    assert ["b"] == [*peers]


def test_a_stall_of_our_own_is_no_silence() -> None:
    """It is forgiven, and nobody is heard in the future."""
    peers = Peers[str]()
    peers.heard("a", 10.0)
    peers.heard("b", 19.5)
    peers.forgive(9.0, 20.0)
    assert 1.0 == peers.silent_s("a", 20.0)
    assert 0.0 == peers.silent_s("b", 20.0)


class Told(RuleBasedStateMachine):
    """Peers beside a list of what was heard, in whole seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.peers = Peers[str]()
        self.story: dict[str, list[float]] = {}  # of each peer, how long ago each sign came

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.story = {name: [s + seconds for s in ago] for name, ago in self.story.items()}

    @rule(name=NAMES)
    def hear(self, name: str) -> None:
        self.peers.heard(name, self.now)
        self.story.setdefault(name, []).append(0.0)

    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        self.peers.forget(name)
        self.story.pop(name, None)

    @rule(seconds=SECONDS)
    def stall(self, seconds: float) -> None:
        """This process is stopped: nobody is silent for longer than before."""
        self.now += seconds
        self.peers.forgive(seconds, self.now)

    @rule(limit_s=SECONDS)
    def look(self, limit_s: float) -> None:
        expected = [name for name, ago in self.story.items() if min(ago) > limit_s]
        assert expected == self.peers.silent(self.now, limit_s)

    @invariant()
    def known(self) -> None:
        assert [*self.story] == [*self.peers]
        assert len(self.story) == len(self.peers)
        for name, ago in self.story.items():
            assert name in self.peers
            assert min(ago) == self.peers.silent_s(name, self.now)


TestTold = Told.TestCase


@given(st.lists(st.tuples(NAMES, SECONDS), max_size=20), SECONDS, SECONDS)
def test_who_is_silent_longer_is_never_better_off(
    signs: list[tuple[str, float]], limit_s: float, more_s: float
) -> None:
    """Whoever is silent by a greater limit is by a smaller one, and later."""
    peers = Peers[str]()
    for name, at in sorted(signs, key=lambda sign: sign[1]):
        peers.heard(name, at)
    strict = peers.silent(20.0, limit_s + more_s)
    assert {*strict} <= {*peers.silent(20.0, limit_s)}
    assert {*peers.silent(20.0, limit_s)} <= {*peers.silent(20.0 + more_s, limit_s)}
