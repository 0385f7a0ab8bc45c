"""Which faults happen, whom they can hit, and what is told of them: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minishark.errors import OptionError
from minishark_lab.chaos.findings import LONGER, SILENT, Findings, verdict
from minishark_lab.chaos.injector import (
    KINDS,
    Attacked,
    Fault,
    Injected,
    Injector,
    Scene,
    plan_faults,
)
from minishark_lab.chaos.testbed import SeenNode
from minishark_lab.chaos.testbed import Testbed as Bed
from minishark_lab.chaos.work import Done, Work, Worker
from minishark_lab.harness.rows import Point


def test_a_seed_gives_its_faults() -> None:
    """The same seed the same ones, another seed others; in order, within the time, of all kinds."""
    one, again, other = (plan_faults(seed, 200, 60.0, KINDS, 2.0) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert 200 == len(one)
    assert sorted(one, key=lambda fault: fault.at_s) == list(one)
    assert 0 <= one[0].at_s <= one[-1].at_s <= 60
    assert set(KINDS) == {fault.kind for fault in one}
    assert {kind.endswith("-stop") for kind in KINDS} == {True, False}
    assert all((fault.stopped_s > 0) == fault.kind.endswith("-stop") for fault in one)


@pytest.mark.parametrize(
    ("count", "seconds", "kinds", "stop_max_s"),
    [(0, 1.0, KINDS, 1.0), (1, 0.0, KINDS, 1.0), (1, 1.0, (), 1.0), (1, 1.0, ("x",), 1.0),
     (1, 1.0, KINDS, 0.0)],
)  # fmt: skip
def test_senseless_schedules_are_refused(
    count: int, seconds: float, kinds: tuple[str, ...], stop_max_s: float
) -> None:
    """With what to set instead."""
    with pytest.raises(OptionError, match=r"choose from|Set faults"):
        plan_faults(1, count, seconds, kinds, stop_max_s)


def _nodes(draws: list[tuple[bool, int]]) -> tuple[SeenNode, ...]:
    return tuple(
        SeenNode(
            name=f"node-{i}",
            pid=100 + i,
            alive=alive,
            executors={f"e{i}{j}": 1000 + 10 * i + j for j in range(executors)},
        )
        for i, (alive, executors) in enumerate(draws)
    )


@given(
    st.lists(
        st.tuples(st.sampled_from((True, True, False)), st.integers(0, 2)), min_size=2, max_size=4
    ),
    st.sets(st.sampled_from((100, 101, 102, 1000, 1010, 1011, 1020)), max_size=2),
    st.sampled_from([kind for kind in KINDS if kind != "session-kill"]),
    st.floats(0, 0.999),
)
@example([(True, 1), (True, 1), (True, 1)], {1010}, "node-kill", 0.0)
@example([(True, 1), (True, 1), (True, 1)], {102}, "head-stop", 0.5)
@example([(True, 1), (True, 1)], set(), "executor-kill", 0.5)
def test_somebody_is_always_left(
    draws: list[tuple[bool, int]], hit: set[int], kind: str, draw: float
) -> None:
    """After any fault an executor on a living node and a scheduler remain."""
    scene = Scene(nodes=_nodes(draws), heads={"node-0", "node-1"}, session=None, hit=hit)
    victim = scene.choose(Fault(0.0, kind, draw, 0.0))
    if victim is None:
        return
    assert victim.pid not in hit
    down = {*hit, victim.pid}
    up = [node for node in scene.nodes if node.alive and node.pid not in down]
    assert [pid for node in up for pid in node.executors.values() if pid not in down]
    if not kind.startswith("executor"):
        assert {"node-0", "node-1"} & {node.name for node in up}


def test_faults_hit_what_their_kind_says() -> None:
    """Executors, heads, other nodes, and the other session."""
    nodes = _nodes([(True, 1), (True, 1), (True, 1)])
    scene = Scene(nodes=nodes, heads={"node-0", "node-1"}, session=7, hit={100})

    def found(kind: str, scene: Scene = scene) -> list[int]:
        stopped_s = 1.0 if kind.endswith("-stop") else 0.0
        return [victim.pid for victim in scene.candidates(Fault(0.0, kind, 0.0, stopped_s))]

    assert ([102], [7]) == (found("node-kill"), found("session-kill"))
    assert [] == found("head-stop"), "the other one is stopped"
    assert [1010, 1020] == found("executor-kill")
    assert [] == found("executor-kill", replace(scene, may_lose=False))
    young, torn = replace(scene, young={102}), replace(scene, is_whole=False)
    for spared in (young, torn):
        assert ([], [102]) == (found("node-kill", spared), found("node-stop", spared))


def test_nodes_are_killed_only_when_replicas_are_whole() -> None:
    """The cluster has to notice a death, and to heal, before the next node is killed."""
    told, whole, dead = list(_nodes([(True, 1)] * 3)), [True], list[int]()
    bed = _Told()
    busy_s = [math.inf]
    attacked = Attacked(nodes=lambda: told, is_whole=lambda: whole[0], busy_s=lambda: busy_s[0])
    injector = Injector(cast("Bed", bed), (), attacked, lambda _: None)
    injector._heads = frozenset({"node-0", "node-1"})
    kill = Fault(0.0, "head-kill", 0.0, 0.0)

    def hit() -> bool:
        victim = injector._scene(kill).choose(kill)
        with patch("os.kill", lambda pid, _: dead.append(pid)):
            return victim is not None and injector._hit(kill, victim)

    assert (True, [100]) == (hit(), dead)
    told[0] = replace(told[0], executors={"new": 2000})
    assert not hit(), "not noticed: its pid is still told"
    told[0], whole[0] = replace(told[0], pid=200), False
    assert not hit(), "not whole"
    whole[0] = True
    assert (True, [100, 200]) == (hit(), dead)
    told[0] = replace(told[0], pid=300)
    assert hit()
    told[0] = replace(told[0], pid=400)
    assert not hit(), "a statement may have been hit three times"
    busy_s[0] = 0.0
    assert hit()


class _Told:
    """All processes are its own, and known by what the session tells."""

    peer_pid = None

    def seen(self, nodes: Sequence[SeenNode]) -> tuple[SeenNode, ...]:
        return tuple(nodes)

    def is_ours(self, pid: int) -> bool:
        return pid > 0


def _hit(kind: str, at_s: float) -> Injected:
    return Injected(Fault(at_s, kind, 0.0, 0.0), "x", at_s, at_s)


def test_a_verdict_tells_what_was_broken() -> None:
    """Wrong answers, hangs, failures after the last fault and remains do; typed failures do not."""
    hits = [_hit("node-kill", 2.5), _hit("executor-kill", 10.0)]
    quiet = [Done("q01", 0.0, 1.0)]
    during = [Done("q01", 2.0, 5.0), Done("q01", 6.0, 7.0), Done("q02", 2, 3, failure="E: gone")]
    calm = Findings(
        injected=hits,
        skipped=[],
        quiet=quiet,
        done=during,
        after=[Done("q01", 20, 21)],
        hung=[],
        left=[],
    )
    rows = calm.rows()
    longer = [row.x for row in rows if isinstance(row, Point) and row.panel == LONGER]
    assert ({2.0}, True) == (set(longer), verdict(rows).passed)
    silent = [row.x for row in rows if isinstance(row, Point) and row.panel == SILENT]
    assert {3.5, 10.0} == set(silent), "until the end of what began after the kill"
    text = verdict(rows).text
    assert "  nodes and heads           3.50    3.50    3.50    3.50" in text
    assert "answers wrong               0" in text
    assert "  E                         1" in text
    late = [Done("q01", 20.0, 21.0, failure="E: gone")]
    broken = [
        Findings(
            injected=hits,
            skipped=[],
            quiet=quiet,
            done=[Done("q01", 2, 3, ("1 row is missing",))],
            after=[],
            hung=[],
            left=[],
        ),
        Findings(injected=hits, skipped=[], quiet=quiet, done=during, after=late, hung=[], left=[]),
        Findings(
            injected=hits,
            skipped=[],
            quiet=quiet,
            done=during,
            after=[],
            hung=["q01 did not end"],
            left=[],
        ),
        Findings(
            injected=hits,
            skipped=[],
            quiet=quiet,
            done=during,
            after=[],
            hung=[],
            left=["process 1: python"],
        ),
    ]
    assert [False] * 4 == [verdict(each.rows()).passed for each in broken]


def test_workers_judge_answers_and_survive_errors() -> None:
    """A wrong answer and an exception are noted as what they are."""
    right, wrong = pa.table({"a": [1]}), pa.table({"a": [2]})

    def fail(*_: object) -> pa.Table:
        raise ValueError("no")

    works = [Work("good", lambda *_: right, right), Work("bad", lambda *_: wrong, right)]
    worker = Worker(0, None, works, None)  # type: ignore[arg-type]
    worker.once([*works, Work("worse", fail, right)])
    worker.run()
    assert [True, False, False] == [done.is_right for done in worker.done]
    assert ["", "", "ValueError: no"] == [done.failure for done in worker.done]
    assert worker.done[1].wrong
