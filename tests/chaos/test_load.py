"""Many queries at once: within a bound, and without anything that grows."""

from __future__ import annotations

import pytest

import minishark
from minishark.errors import ResourceError
from minishark.session.engine import OpenQueries
from minishark_lab.cluster.load import _METRICS, EXPERIMENTS, Load, fairness_of, load, verdict
from minishark_lab.harness.rows import Point, Row


def test_more_open_queries_than_the_bound_are_refused() -> None:
    """With what to do; those that are open go on, and make room when they are done."""
    queries = OpenQueries(open_max=1)
    with queries.counted():
        with pytest.raises(ResourceError, match="has 1 queries open, which is its limit: wait"):
            queries.counted().__enter__()
        other = OpenQueries(open_max=0)
        with pytest.raises(ResourceError, match="has 0 queries open, which is its limit: wait"):
            other.counted().__enter__()
    with queries.counted():
        assert 1 == queries.count
    assert 0 == queries.count


def test_a_session_refuses_and_recovers() -> None:
    """The error comes out of the query, and the next one runs when there is room."""
    with minishark.connect(in_process=True, nodes=1, executors_per_node=1) as session:
        queries = session._runtime.engine.open_queries
        bound, queries.open_max = queries.open_max, 0
        with pytest.raises(ResourceError, match="limit"):
            session.sql("SELECT 1 AS a").collect()
        queries.open_max = bound
        assert [{"a": 1}] == session.sql("SELECT 1 AS a").collect()


def _rows(growth: dict[str, float], shares: tuple[float, ...] = (10.0, 10.0)) -> list[Row]:
    return [
        *(
            Point(
                panel=name, series="all", x=float(at), y=1000 * growth.get(name, 1.0) ** (at / 40)
            )
            for name in _METRICS
            for at in range(40)
        ),
        *(
            Point(panel="queries of each session", series=str(n), x=0, y=y)
            for n, y in enumerate(shares)
        ),
    ]


def test_what_grows_is_told() -> None:
    """Steady resources pass; each that grows is named, and so are unfair shares."""
    assert verdict(_rows({})).passed
    for name in _METRICS:
        told = verdict(_rows({name: 3.0}))
        assert (False, True) == (told.passed, f"{name} grew" in told.text)
    assert "shares differ" in verdict(_rows({}, (30.0, 1.0))).text
    broken = [*_rows({}), Point(panel="broken promises", series="left behind: x", x=0.0, y=1.0)]
    assert not verdict(broken).passed


def test_fairness() -> None:
    """One if all are alike, a half if one of two has everything."""
    assert [1.0, 0.5] == [fairness_of([3.0, 3.0]), fairness_of([4.0, 0.0])]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_askers() -> None:
    """Ten sessions with five threads each, for a minute: all answers right, nothing grows."""
    told = verdict(load(Load(seconds=60.0), 1, lambda _: None))
    assert told.passed, told.text
    assert "load" == EXPERIMENTS[0].name
