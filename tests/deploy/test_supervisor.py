"""The supervisor of clusters on Ray and Dask: which nodes it launches, and when again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.errors import ClusterError
from minishark_platforms import deployment as deployment_module
from minishark_platforms.deployment import Deployment
from minishark_platforms.host import NodeSpec
from minishark_platforms.supervisor import (
    BRIEF_PAUSE_S,
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    End,
    Ended,
    Event,
    Launch,
    Placed,
    Start,
    Started,
    Supervisor,
)


def launches(supervisor: Supervisor, now: float = 0.0) -> list[Launch]:
    """What is to be launched, all of it."""
    found = [each for each in supervisor.due(now) if isinstance(each, Launch)]
    assert len(found) == len(supervisor.due(now)) + len(found), "nothing is launched twice"
    return found


def test_nodes_start_when_the_head_has_an_address() -> None:
    """A worker that has a machine before the head waits for the head's address, and for no more."""
    supervisor = Supervisor(nodes=3)
    head, first, _, _ = launches(supervisor)
    assert (head.head, first.head) == (True, False)
    assert [] == supervisor.on(Placed(first.name, "m1"), 0.0)
    found = supervisor.on(Placed(head.name, "m0", "tcp://h:70"), 0.0)
    assert [Start(head.name, ("tcp://h:70",)), Start(first.name, ("tcp://h:70",))] == found
    supervisor.on(Started(first.name, "tcp://w:80/k"), 0.1)
    assert supervisor.running == (first.name,)
    assert supervisor.missing == 2


def test_a_dead_node_comes_again_under_a_new_name() -> None:
    """Its machine may be taken again, those of the other nodes may not."""
    supervisor = Supervisor(nodes=2)
    head, first, second = launches(supervisor)
    supervisor.on(Placed(head.name, "m0", "tcp://h:70"), 0.0)
    for name, machine in ((first.name, "m1"), (second.name, "m2")):
        assert [Start(name, ("tcp://h:70",))] == supervisor.on(Placed(name, machine), 0.0)
        supervisor.on(Started(name, "tcp://w:80/k"), 0.0)
    assert [] == supervisor.on(Ended(first.name, "It died."), 1.0)
    assert [] == supervisor.due(1.0)
    (again,) = launches(supervisor, 1.0 + FIRST_PAUSE_S)
    assert again.name not in {head.name, first.name, second.name}
    assert again.avoid == {"m2"}


def test_a_head_comes_again_where_it_was() -> None:
    """Nodes and sessions know its address."""
    supervisor = Supervisor(nodes=1)
    head, _ = launches(supervisor)
    supervisor.on(Placed(head.name, "m0", "tcp://h:70"), 0.0)
    supervisor.on(Ended(head.name, "It died."), 1.0)
    (again,) = launches(supervisor, 2.0)
    assert again.before == "tcp://h:70"


def test_two_workers_never_share_a_machine() -> None:
    """The second one is ended, and launched again elsewhere."""
    supervisor = Supervisor(nodes=2)
    head, first, second = launches(supervisor)
    supervisor.on(Placed(head.name, "m0", "tcp://h:70"), 0.0)
    supervisor.on(Placed(first.name, "m1"), 0.0)
    assert [End(second.name)] == supervisor.on(Placed(second.name, "m1"), 0.0)
    (again,) = launches(supervisor, 1.0)
    assert again.avoid == {"m1"}
    assert supervisor.deaths == 0


def test_a_drained_node_is_not_replaced() -> None:
    """It left because somebody wanted fewer."""
    supervisor = Supervisor(nodes=1)
    head, worker = launches(supervisor)
    supervisor.on(Placed(head.name, "m0", "tcp://h:70"), 0.0)
    supervisor.on(Placed(worker.name, "m1"), 0.0)
    supervisor.on(Started(worker.name, "tcp://w:80/k"), 0.0)
    supervisor.on(Ended(worker.name, "It left.", left=True), 1.0)
    assert [] == supervisor.due(1000.0)
    supervisor.grow()
    assert 1 == len(launches(supervisor, 1001.0))


def test_pauses_grow_to_a_bound() -> None:
    """A node that can't start is tried at most twice a minute in the end, and for ever."""
    supervisor = Supervisor(nodes=1, heads=0)
    now, starts = 0.0, []
    while now < 600:
        for launch in launches(supervisor, now):
            starts.append(now)
            supervisor.on(Ended(launch.name, "No."), now)
        now += 0.05
    gaps = [b - a for a, b in pairwise(starts)]
    assert gaps[0] < 1
    assert max(gaps) <= LAST_PAUSE_S + 0.1
    assert gaps[-1] == pytest.approx(LAST_PAUSE_S, abs=0.1)


def test_a_node_that_often_dies_comes_again_soon() -> None:
    """Once it has listened, it is worth little waiting: replicas are made on it."""
    supervisor = Supervisor(nodes=1)
    head, first = launches(supervisor)
    supervisor.on(Placed(head.name, "m0", "tcp://h:70"), 0.0)
    name, now = first.name, 0.0
    for _ in range(20):
        supervisor.on(Placed(name, "m1"), now)
        supervisor.on(Started(name, "tcp://w:80/k"), now)
        now += 5.0
        supervisor.on(Ended(name, "It died."), now)
        now += BRIEF_PAUSE_S
        (again,) = launches(supervisor, now)
        name = again.name


@given(st.data())
def test_in_any_order_of_events_each_place_has_one_node(data: st.DataObject) -> None:
    """No more nodes than wanted, none on the machine of another, and all come in the end."""
    nodes, machines = data.draw(st.integers(1, 4)), 5
    supervisor = Supervisor(nodes=nodes, heads=data.draw(st.integers(1, 2)))
    now = 0.0
    launched: dict[str, str] = {}  # what the platform has: asked, placed, told or running
    where: dict[str, str] = {}

    def obey(commands: object) -> None:
        for command in commands:  # type: ignore[attr-defined]
            match command:
                case Launch():
                    assert command.name not in launched
                    launched[command.name] = "asked"
                case Start():
                    assert launched[command.name] == "placed"
                    launched[command.name] = "told"
                case End():
                    del launched[command.name]
                    where.pop(command.name, None)

    def happen(name: str, event: Event) -> None:
        if isinstance(event, Ended):
            del launched[name]
            where.pop(name, None)
        obey(supervisor.on(event, now))

    def forward(name: str) -> None:
        is_head = name.startswith("head")
        if launched[name] == "asked":
            launched[name] = "placed"
            taken = set() if is_head else {where[each] for each in where}
            free = sorted({f"m{i}" for i in range(machines)} - taken)
            where[name] = data.draw(st.sampled_from(free)) if not is_head else "m-head"
            happen(name, Placed(name, where[name], f"tcp://{name}:7" if is_head else ""))
        elif launched[name] == "told":
            launched[name] = "running"
            happen(name, Started(name, "tcp://s:8/k"))

    for _ in range(data.draw(st.integers(0, 30))):
        now += 1.0
        obey(supervisor.due(now))
        name = data.draw(st.sampled_from(sorted(launched))) if launched else ""
        if name and data.draw(st.booleans()):
            happen(name, Ended(name, "It died."))
        elif name:
            forward(name)
        assert sum(not each.startswith("head") for each in launched) <= nodes
    for _ in range(6):
        now += 2 * LAST_PAUSE_S
        obey(supervisor.due(now))
        for name in sorted(launched):
            if name in launched:
                forward(name)
    assert len(supervisor.running) == nodes
    assert set(launched.values()) == {"running"}
    machines_of = [supervisor.machine_of(name) for name in supervisor.running]
    assert len(set(machines_of)) == nodes


@dataclass
class ToyPlatform:
    """Gives machines at once, to as many workers as there are; starts nodes unless told not to."""

    machines: int
    broken: str = ""
    label: str = "Toy"
    running: dict[str, NodeSpec | None] = field(default_factory=dict)
    waiting: list[Event] = field(default_factory=list)
    closed: int = 0

    def launch(self, launch: Launch) -> None:
        used = sum(not name.startswith("head") for name in self.running)
        if launch.head or used < self.machines:
            self.running[launch.name] = None
            address = "tcp://h:70" if launch.head else ""
            self.waiting.append(Placed(launch.name, launch.name, address))

    def start(self, spec: NodeSpec) -> None:
        self.running[spec.name] = spec
        if self.broken and spec.executors:
            self.waiting.append(Ended(spec.name, self.broken))
            del self.running[spec.name]
        else:
            self.waiting.append(Started(spec.name, "tcp://n:80/key"))

    def end(self, names: object, timeout_s: float) -> None:
        del timeout_s
        for name in names:  # type: ignore[attr-defined]
            self.running.pop(name, None)

    def events(self, timeout_s: float) -> list[Event]:
        del timeout_s
        found, self.waiting = self.waiting, []
        return found

    def close(self) -> None:
        self.closed += 1


def test_a_platform_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nodes run it may come back; else users are told, as what dies does not come again."""
    monkeypatch.setattr(deployment_module, "_PATIENCE_S", 0.3)
    platform = ToyPlatform(machines=1)
    found = deployment(platform, nodes=1)
    found.await_start()
    answers = platform.events
    fails = threading.Event()

    def failing(timeout_s: float) -> list[Event]:
        if fails.is_set():
            raise ConnectionError("no route")
        return answers(timeout_s)

    monkeypatch.setattr(platform, "events", failing)
    fails.set()
    time.sleep(0.1)
    fails.clear()
    found.grow()
    assert "" == found.problem
    fails.set()
    deadline = time.monotonic() + 10
    while not found.problem:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "Toy does not answer" in found.problem
    assert "ConnectionError: no route" in found.problem
    with pytest.raises(ClusterError, match="do not come again"):
        found.grow()
    found.close()
    assert ({}, 1) == (platform.running, platform.closed)


def deployment(platform: ToyPlatform, nodes: int) -> Deployment:
    """A deployment that was launched."""
    found = Deployment(platform=platform, nodes=nodes, executors_per_node=2)
    found.launch()
    return found


@pytest.mark.slow
def test_a_session_begins_on_the_nodes_that_came() -> None:
    """Those that wait for a machine are told of, not waited for; the end ends all."""
    platform = ToyPlatform(machines=2)
    found = deployment(platform, nodes=3)
    found.await_start()
    assert found.slots == 4
    (warning,) = found.warnings
    assert "2 of 3 machines" in warning
    specs = [spec for spec in platform.running.values() if spec is not None]
    assert {spec.executors for spec in specs} == {0, 2}
    assert {spec.keys.public for spec in specs} == {found.keys.public}
    assert found.address == f"tcp://h:70/{found.keys.public}"
    found.close()
    found.close()
    assert ({}, 1) == (platform.running, platform.closed)


def test_an_interrupted_end_is_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while nodes are being ended: whoever closes again, as `connect` does, ends them."""
    platform = ToyPlatform(machines=1)
    found = deployment(platform, nodes=1)
    found.await_start()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ToyPlatform, "end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.close()
    assert (len(platform.running), platform.closed) == (2, 0)
    found.close()
    assert ({}, 1) == (platform.running, platform.closed)


def test_the_reason_why_no_node_starts_is_told() -> None:
    """And nothing is left running."""
    platform = ToyPlatform(machines=1, broken="There is no minishark there.")
    found = deployment(platform, nodes=1)
    with pytest.raises(ClusterError, match=r"No node started on Toy\. There is no minishark"):
        found.await_start()
    assert ({}, 1) == (platform.running, platform.closed)
