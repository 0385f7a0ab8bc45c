"""Chooses victims, sends signals at the scheduled times, and resumes stopped processes."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from minishark.errors import ClusterError, OptionError
from minishark_lab.chaos.testbed import SeenNode, Testbed

KINDS = (
    "executor-kill",
    "executor-stop",
    "node-kill",
    "node-stop",
    "head-kill",
    "head-stop",
    "session-kill",
)
"""Victims are an executor, a node without a scheduler, a head (a node with one), or the program of
another session. A kill is SIGKILL; a stop is SIGSTOP, then SIGCONT after a while."""

_STOP_MIN_S = 0.05


_LOSSES_MAX = 3  # of tasks of a statement; the fourth fails it: its task is probably the cause
_SUSPECT_S = 1.5  # tasks of a process that is stopped for longer may count as lost

_POLL_S = 0.02
_PATIENCE_S = 30.0
_MEND_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Fault:
    """A scheduled fault."""

    at_s: float  # seconds from the start
    kind: str  # one of KINDS
    draw: float  # from 0 to 1; selects one of the possible victims
    stopped_s: float  # how long the process is stopped; 0 for a kill

    @property
    def role(self) -> str:
        """Kind of victim: "executor", "node", "head" or "session"."""
        return self.kind.partition("-")[0]

    @property
    def is_kill(self) -> bool:
        return not self.stopped_s

    @property
    def loses_tasks(self) -> bool:
        return self.role != "session" and (self.is_kill or self.stopped_s > _SUSPECT_S)

    @property
    def loses_node(self) -> bool:
        return self.is_kill and self.role in ("node", "head")


def plan_faults(
    seed: int, count: int, seconds: float, kinds: Sequence[str], stop_max_s: float
) -> tuple[Fault, ...]:
    """Faults at random times within `seconds`, in order; all kinds have equal probability."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise OptionError(f"Unknown kinds of faults {unknown}; choose from {', '.join(KINDS)}.")
    if count < 1 or seconds <= 0 or stop_max_s < _STOP_MIN_S:
        raise OptionError(f"Set faults and seconds above 0, and stop_max_s to {_STOP_MIN_S}.")
    rng = Random(f"chaos {seed}")
    times = sorted(rng.uniform(0, seconds) for _ in range(count))
    faults = []
    for at_s in times:
        kind = rng.choice(list(kinds))
        draw, stopped_s = rng.random(), rng.uniform(_STOP_MIN_S, stop_max_s)
        faults.append(Fault(at_s, kind, draw, stopped_s if kind.endswith("-stop") else 0.0))
    return tuple(faults)


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that can be hit."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The possible victims at a moment."""

    nodes: Sequence[SeenNode]
    heads: Collection[str]  # the names of those with a scheduler
    session: int | None  # the process id of the other session, if it runs
    hit: Collection[int]  # not to be hit again: stopped, or killed and still reported
    young: Collection[int] = ()  # nodes not to be killed yet
    is_whole: bool = True  # whether tables survive the loss of a node
    may_lose: bool = True  # whether running statements survive the loss of a task

    def candidates(self, fault: Fault) -> tuple[Victim, ...]:
        if fault.loses_tasks and not self.may_lose:
            return ()
        match fault.role:
            case "session":
                return () if self.session is None else (Victim("session", self.session),)
            case "executor":
                homes = [(node, self._executors(node)) for node in self._up()]
                return tuple(v for node, own in homes if self._others(node) for v in own)
            case role:
                nodes = [n for n in self._up() if (n.name in self.heads) == (role == "head")]
                spared = [n for n in nodes if self._spared(n)]
                if fault.is_kill:
                    spared = [n for n in spared if self.is_whole and n.pid not in self.young]
                return tuple(Victim(node.name, node.pid) for node in spared)

    def choose(self, fault: Fault) -> Victim | None:
        found = self.candidates(fault)
        return found[int(fault.draw * len(found))] if found else None

    def _up(self) -> list[SeenNode]:
        return [node for node in self.nodes if node.alive and node.pid not in self.hit]

    def _executors(self, node: SeenNode) -> list[Victim]:
        return [
            Victim(name, pid) for name, pid in node.executors.items() if pid and pid not in self.hit
        ]

    def _others(self, node: SeenNode) -> list[SeenNode]:
        """Other nodes that can run tasks."""
        return [n for n in self._up() if n.name != node.name and self._executors(n)]

    def _spared(self, node: SeenNode) -> bool:
        """Whether there is a scheduler and an executor without this node."""
        heads = [n for n in self._up() if n.name in self.heads and n.name != node.name]
        return bool(heads) and bool(self._others(node))


@dataclass(frozen=True, slots=True)
class Injected:
    """An injected fault, its victim, and its times (`time.monotonic`)."""

    fault: Fault
    victim: str
    began_s: float
    ended_s: float


_Incarnation: TypeAlias = tuple[str, int, tuple[str, ...]]


def _incarnation(node: SeenNode) -> _Incarnation:
    """What is another after a node's restart: its process, or, on another host, its folders."""
    return node.name, node.pid, node.home


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """The cluster under attack, as a session sees it.

    Attributes:
        nodes: gives the state of its nodes.
        is_whole: whether every partition has all its replicas on live nodes.
        busy_s: how long the oldest running statement has been running.
        address: where another session connects; with None it has a cluster of its own.
        calm_s: how long a node is left alone after its start. Those that die at once several times
            in a row are not started again, which is no fault of theirs here.
    """

    nodes: Callable[[], Sequence[SeenNode]]
    is_whole: Callable[[], bool]
    busy_s: Callable[[], float]
    address: str | None = None
    calm_s: float = 0.0


class Injector(threading.Thread):
    """Injects faults, in order of time.

    A node is killed only when the cluster itself says that its tables survive that: it has noticed
    the deaths of the nodes that were killed before, and all replicas are whole again. No statement
    is hit so often that one of its tasks may have been lost four times.

    Attributes:
        injected: faults so far.
        skipped: faults for which there was no victim for half a minute.
        errors: of the harness itself.
    """

    def __init__(
        self,
        testbed: Testbed,
        faults: Sequence[Fault],
        attacked: Attacked,
        advance: Callable[[float], None],
    ) -> None:
        super().__init__(name="chaos-injector", daemon=True)
        self.injected: list[Injected] = []
        self.skipped: list[Fault] = []
        self.errors: list[BaseException] = []
        self._testbed = testbed
        self._faults = tuple(faults)
        self._attacked = attacked
        self._advance = advance
        self._has_peer = any(fault.role == "session" for fault in faults)
        self._heads: frozenset[str] = frozenset()
        self._killed: set[int] = set()
        self._lost: set[_Incarnation] = set()  # killed nodes that may not have been noticed
        self._first_seen: dict[int, float] = {}  # nodes' pids
        self._stopped: dict[int, float] = {}  # pids, and when to resume them
        self._mended_s = 0.0
        self._over = threading.Event()

    def run(self) -> None:
        try:
            self._heads = self._testbed.heads(len(self._attacked.nodes()))
            started = time.monotonic()
            for fault in self._faults:
                self._wait_until(started + fault.at_s)
                if self._over.is_set():
                    return
                self._inject(fault)
                self._advance(1 / len(self._faults))
            while self._stopped and not self._over.is_set():
                self._wait_until(time.monotonic() + _POLL_S)
        except Exception as error:  # noqa: BLE001 - raised again on the caller's thread
            self.errors.append(error)
        finally:
            self._resume(everybody=True)

    def finish(self) -> None:
        """End soon, and resume stopped processes."""
        self._over.set()
        self.join()

    def mend(self) -> None:
        """Restart what does not restart by itself: hosts, the other session."""
        if time.monotonic() - self._mended_s < _MEND_EVERY_S:
            return
        self._testbed.mend()
        if self._has_peer:
            self._testbed.start_peer(self._attacked.address)
        self._mended_s = time.monotonic()

    def _wait_until(self, moment: float) -> None:
        while not self._over.is_set():
            self._resume()
            self.mend()
            if (left := moment - time.monotonic()) <= 0:
                return
            self._over.wait(min(left, _POLL_S))

    def _inject(self, fault: Fault) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self._over.is_set():
            victim = self._scene(fault).choose(fault)
            if victim is not None and self._hit(fault, victim):
                return
            if time.monotonic() > deadline:
                self.skipped.append(fault)
                return
            self._wait_until(time.monotonic() + _POLL_S)

    def _scene(self, fault: Fault) -> Scene:
        told = self._told()
        nodes = self._testbed.seen(told)
        known = {node.pid for node in nodes} | {pid for n in nodes for pid in n.executors.values()}
        self._killed &= known  # pids of others may have been reused
        now = time.monotonic()
        self._first_seen = {n.pid: self._first_seen.get(n.pid, now) for n in nodes if n.alive}
        calm = now - self._attacked.calm_s
        # First what is noticed: after that, what is said of replicas takes account of it.
        is_noticed = fault.loses_node and not self._unnoticed(told)
        return Scene(
            nodes=nodes,
            heads=self._heads,
            session=self._testbed.peer_pid,
            hit=self._killed | set(self._stopped),
            young={pid for pid, seen in self._first_seen.items() if seen > calm},
            is_whole=is_noticed and self._attacked.is_whole(),
            may_lose=self._losses(now - self._attacked.busy_s()) < _LOSSES_MAX,
        )

    def _losses(self, since: float) -> int:
        """How often a task may have been lost that has been running since then."""
        return sum(each.fault.loses_tasks and each.ended_s >= since for each in self.injected)

    def _told(self) -> tuple[SeenNode, ...]:
        """The nodes as a session knows them."""
        try:
            return tuple(self._attacked.nodes())
        except ClusterError:
            return ()

    def _unnoticed(self, told: Sequence[SeenNode]) -> bool:
        """Whether a killed node still counts as living."""
        live = {_incarnation(node) for node in told if node.alive}
        self._lost &= live
        return bool(self._lost) or not live

    def _hit(self, fault: Fault, victim: Victim) -> bool:
        if not self._testbed.is_ours(victim.pid):
            self._killed.add(victim.pid)  # dead already, but the cluster has not noticed
            return False
        told = self._told() if fault.loses_node else ()  # before it can have been restarted
        now = time.monotonic()
        try:
            os.kill(victim.pid, signal.SIGSTOP if fault.stopped_s else signal.SIGKILL)
        except ProcessLookupError:
            return False
        if fault.stopped_s:
            self._stopped[victim.pid] = now + fault.stopped_s
        else:
            self._killed.add(victim.pid)
            self._lost |= {_incarnation(node) for node in told if node.name == victim.name}
        self.injected.append(Injected(fault, victim.name, now, now + fault.stopped_s))
        return True

    def _resume(self, *, everybody: bool = False) -> None:
        now = time.monotonic()
        for pid, until in list(self._stopped.items()):
            if everybody or until <= now:
                del self._stopped[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
