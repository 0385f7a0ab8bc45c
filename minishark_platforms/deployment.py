"""A cluster on machines of a platform: the supervisor, driven on a thread; sessions on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from minishark.cluster.keys import Keys, fresh_keys
from minishark.errors import ClusterError
from minishark_platforms.host import START_S, NodeSpec
from minishark_platforms.supervisor import Command, End, Ended, Event, Launch, Start, Supervisor

_STEP_S = 0.25
_PLACE_S = 30.0  # until the first node has a machine
_OTHERS_S = 2.0  # how long a session waits for nodes without a machine when one runs
_END_S = 10.0
_PATIENCE_S = 15.0  # for a platform that fails while nodes run: it may come back
_JOIN_S = 15.0  # longer than the thread takes to end a node


class Platform(Protocol):
    """Launches nodes on machines. All methods return at once, unless they say otherwise."""

    label: str
    """Its name in sentences, such as "Ray"."""

    def launch(self, launch: Launch) -> None:
        """Ask for a machine; the answer is an event."""

    def start(self, spec: NodeSpec) -> None:
        """Start a node on the machine that its name was given; the answer is an event."""

    def end(self, names: Sequence[str], timeout_s: float) -> None:
        """End nodes and give their machines back; returns when they are gone, or in time."""

    def events(self, timeout_s: float) -> list[Event]:
        """What has happened; waits for something to happen, at most for `timeout_s`."""

    def close(self) -> None:
        """Let go of the platform."""


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A cluster on a platform; `launch` and `close` are for one thread."""

    platform: Platform
    nodes: int
    executors_per_node: int
    heads: int = 1
    name: str = "default"
    memory_limit_bytes: int | None = None  # of each node; None for the platform's choice
    keys: Keys = field(default_factory=fresh_keys)
    _supervisor: Supervisor = field(init=False)
    _lock: threading.Condition = field(default_factory=threading.Condition)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _launched: set[str] = field(default_factory=set)
    _thread: threading.Thread | None = None
    _broken: BaseException | None = None
    _closed: bool = False

    def __post_init__(self) -> None:
        self._supervisor = Supervisor(nodes=self.nodes, heads=self.heads)

    def launch(self) -> None:
        """Begin to launch the nodes."""
        self._thread = threading.Thread(target=self._run, name="minishark-deploy", daemon=True)
        self._thread.start()

    def await_start(self) -> None:
        """Wait until a session can begin on the nodes that came; ends all if that fails.

        Raises:
            ClusterError: none came in time, or none that came did start.
        """
        try:
            self._await_first()
            self._await_others()
        except BaseException:
            self.close()
            raise

    def _await_first(self) -> None:
        begun = time.monotonic()
        with self._lock:
            while not self._supervisor.running:
                self._lock.wait(_STEP_S)
                if self._broken is not None:
                    raise ClusterError(f"{self.platform.label}: {self._broken}") from self._broken
                if self._supervisor.deaths >= self.nodes:
                    raise ClusterError(
                        f"No node started on {self.platform.label}. {self._supervisor.last_death}"
                    )
                waited = time.monotonic() - begun
                if waited > (START_S if self._supervisor.on_their_way else _PLACE_S):
                    raise ClusterError(
                        f"{self.platform.label} gave no machine within {waited:.0f} s: ask for "
                        "fewer cores per node, or free some."
                    )

    def _await_others(self) -> None:
        begun = time.monotonic()
        with self._lock:
            while self._supervisor.missing:
                waited = time.monotonic() - begun
                if waited > (START_S if self._supervisor.on_their_way else _OTHERS_S):
                    break
                self._lock.wait(_STEP_S)

    @property
    def address(self) -> str:
        """The address of the first head, with its key."""
        with self._lock:
            return f"{self._supervisor.head_addresses[0]}/{self.keys.public}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences about nodes that have not come."""
        with self._lock:
            missing = self._supervisor.missing
        if not missing:
            return ()
        come = self.nodes - missing
        label = self.platform.label
        return (f"{label} gave {come} of {self.nodes} machines; others join when it has them.",)

    @property
    def problem(self) -> str:
        """Why nodes that die do not come again any more, as a sentence; empty if they do."""
        broken = self._broken
        if broken is None:
            return ""
        return (
            f"{self.platform.label} does not answer: nodes that die do not come again. Open a new "
            f"session when it does. ({type(broken).__name__}: {broken})"
        )

    @property
    def slots(self) -> int:
        """How many executors the nodes have that run."""
        with self._lock:
            return len(self._supervisor.running) * self.executors_per_node

    @property
    def wanted(self) -> int:
        """How many nodes there are to be, besides the heads."""
        with self._lock:
            return self._supervisor.wanted

    def grow(self) -> None:
        """Want one node more; it joins when the platform has a machine for it.

        Raises:
            ClusterError: the platform does not answer any more.
        """
        if self.problem:
            raise ClusterError(self.problem)
        with self._lock:
            self._supervisor.grow()

    def machines(self) -> dict[str, str]:
        """The machine of each running node, by the node's name."""
        with self._lock:
            return {name: self._supervisor.machine_of(name) for name in self._supervisor.running}

    def _run(self) -> None:
        good_s = time.monotonic()
        try:
            while not self._stopped.is_set():
                try:
                    self._step()
                    good_s = time.monotonic()
                except Exception:
                    is_late = time.monotonic() - good_s > _PATIENCE_S
                    if is_late or not self._supervisor.running:  # a start fails at once
                        raise
                    self._stopped.wait(_STEP_S)
        except BaseException as error:  # noqa: BLE001 - sessions are told
            with self._lock:
                self._broken = error
                self._lock.notify_all()

    def _step(self) -> None:
        with self._lock:
            commands = self._supervisor.due(time.monotonic())
        self._obey(commands)
        for event in self.platform.events(_STEP_S):
            self._happened(event)

    def _happened(self, event: Event) -> None:
        with self._lock:
            commands = self._supervisor.on(event, time.monotonic())
            self._lock.notify_all()
        self._obey(commands)

    def _obey(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if self._stopped.is_set():
                return
            match command:
                case Launch():
                    self._launched.add(command.name)
                    self._asked(command.name, partial(self.platform.launch, command))
                case Start():
                    self._asked(command.name, partial(self.platform.start, self._spec(command)))
                case End():
                    self.platform.end((command.name,), _END_S)
                    self._launched.discard(command.name)

    def _asked(self, name: str, ask: Callable[[], None]) -> None:
        """Ask the platform for something; if it can't be asked, the node has ended."""
        try:
            ask()
        except Exception as error:
            if not self._supervisor.running:  # a start fails at once
                raise
            self._happened(Ended(name, f"{type(error).__name__}: {error}"))

    def _spec(self, start: Start) -> NodeSpec:
        head = start.name.startswith("head-")
        return NodeSpec(
            name=start.name,
            cluster=self.name,
            heads=start.heads,
            executors=0 if head else self.executors_per_node,
            memory_limit_bytes=None if head else self.memory_limit_bytes,
            keys=self.keys,
        )

    def close(self) -> None:
        """End all nodes and let go of the platform; again, if Ctrl-C has interrupted that."""
        if self._closed:
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)  # it may wait for a machine that does not answer
        try:
            self.platform.end(tuple(self._launched), _END_S)
        except Exception:
            self._let_go()
            raise
        self._let_go()

    def _let_go(self) -> None:
        self._closed = True
        self.platform.close()
