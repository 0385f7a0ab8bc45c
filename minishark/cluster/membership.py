"""What a session knows of a cluster that outlives it: one state machine, free of IO.

    the nodes that schedulers tell of now ─┐
    folders are made and removed           ├─► Membership ─► Ask(nodes, request) ─► a driver asks
    it is time for a heartbeat             ┘        ▲                                 │
                                                    └──── which nodes have answered ◄─┘

`Members` is what all drivers have in common: `AttachedCluster`, which asks nodes over sockets, and
the simulated one (`minishark_lab/simulation/attached.py`). A node's home is what tells it from the
one of its name before it: a restarted node has another.
"""

from __future__ import annotations

import contextlib
import operator
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from minishark.cluster import wire
from minishark.cluster.backend import Placement
from minishark.cluster.node_service import CUT_OFF_MAX_S
from minishark.errors import ClusterError, OptionError, ResourceError
from minishark.worker.protocol import StoreLocation

_NODES_STEP_S = 0.05
_LOCALITY_WAIT_S = 1.0
_REMOVED_MAX = 256  # folders that a node may have, and is told later to remove


@dataclass(frozen=True, slots=True)
class Node:
    """A live node that has executors, and so stores tables, as schedulers tell of it."""

    at: StoreLocation  # where it stores files, and is asked
    is_draining: bool = False
    is_busy: bool = False  # whether tasks run there

    @property
    def name(self) -> str:
        """Its name, which it keeps when it starts again."""
        return self.at.name

    @property
    def home(self) -> str:
        """Its folder in shared memory, which is new at each start."""
        return self.at.memory


@dataclass(frozen=True, slots=True)
class Keep:
    """Renew the session's lease; it needs nothing more of the nodes that it has released."""

    released: tuple[str, ...]


Change: TypeAlias = wire.MakeFolder | wire.RemoveFolder | wire.RemoveFile
"""Of a session's folders, on a node and among its own files."""

Request: TypeAlias = Change | wire.DrainNode | wire.EndSession | Keep


@dataclass(frozen=True, slots=True)
class Ask:
    """A request to some nodes at once."""

    nodes: tuple[Node, ...]
    request: Request


Steps: TypeAlias = Generator[Ask, Collection[Node], None]
"""Requests one after the other; it is sent those nodes of each that have answered."""


def silent(patience_s: float) -> str:
    """The message of the error when no node has answered for so long."""
    return (
        f"No node of the cluster has answered for {patience_s:g} s. Check the "
        "nodes and the network to them: statements work again when one answers."
    )


@dataclass(slots=True)
class NodeFolders:
    """The folders of a session, and which node has made which; safe to use from several threads.

    Few names are used again: if a folder is made while a node is told late that it is to remove it,
    what tasks have stored there at that moment is lost, and computed again.
    """

    made: dict[str, None] = field(default_factory=dict)
    by_home: dict[str, dict[str, None]] = field(default_factory=dict)  # those that a node has
    # Those that are wanted no more, of each node that did not answer, or was not known yet when it
    # ran tasks that made them; and whether it has made them for sure. Of those that it may have
    # the last ones only: others stay there with the session.
    left: dict[str, dict[str, bool]] = field(default_factory=dict)
    _removed: dict[str, bool] = field(default_factory=dict)  # the last ones, of all nodes

    def make(self, folders: Iterable[str]) -> None:
        """Folders are wanted on every node."""
        folders = tuple(folders)
        self.made.update(dict.fromkeys(folders))
        for removed in (self._removed, *list(self.left.values())):
            for folder in folders:
                removed.pop(folder, None)

    def are_at(self, homes: Iterable[str], folders: Iterable[str]) -> bool:
        """Whether nodes have made folders."""
        return all(self.by_home.get(home, {}).keys() >= {*folders} for home in homes)

    def made_at(self, home: str, folders: Iterable[str]) -> None:
        """A node has made folders."""
        self.by_home.setdefault(home, {}).update(dict.fromkeys(folders))

    def leave(self, folder: str) -> None:
        """A folder is no longer the session's: others decide what becomes of it."""
        for made in (self.made, *list(self.by_home.values())):
            made.pop(folder, None)

    def remove(self, folders: Iterable[str], homes: Iterable[str]) -> None:
        """Folders are wanted no more; these nodes and those that have made any may have them."""
        folders = tuple(folders)
        for folder in folders:
            self.made.pop(folder, None)
        _note(self._removed, dict.fromkeys(folders, False))
        for home in dict.fromkeys((*homes, *list(self.by_home), *list(self.left))):
            at = self.by_home.get(home, {})
            _note(self._left_at(home), {folder: folder in at for folder in folders})
            for folder in folders:
                at.pop(folder, None)

    def _left_at(self, home: str) -> dict[str, bool]:
        left = self.left.get(home)
        return self.left.setdefault(home, dict(self._removed)) if left is None else left

    def removed_at(self, homes: Iterable[str], folders: Iterable[str]) -> None:
        """Nodes have removed folders."""
        for home in homes:
            at = self._left_at(home)
            for folder in folders:
                at.pop(folder, None)

    def forget_others(self, homes: Collection[str]) -> None:
        """Only these nodes may still have folders of the session."""
        for folders_of in (self.by_home, self.left):
            for home in [home for home in list(folders_of) if home not in homes]:
                folders_of.pop(home, None)

    def missing(self, home: str) -> Generator[wire.MakeFolder | wire.RemoveFolder, bool, None]:
        """What a node is to do that was not there when all others did, or did not answer.

        After each request it is sent whether the node has answered; the first that it did not
        answer is the last one, as silent nodes keep others waiting.
        """
        at = self.by_home.setdefault(home, {})
        if left := [folder for folder in list(self._left_at(home)) if folder not in self.made]:
            if not (yield wire.RemoveFolder.of(left)):
                return
            self.removed_at((home,), left)
            for folder in left:
                if folder in self.made:  # again, before that or after
                    at.pop(folder, None)
        for folder in [folder for folder in list(self.made) if folder not in at]:
            if not (yield wire.MakeFolder(folder)):
                return
            at[folder] = None
            if folder not in self.made:  # removed meanwhile
                at.pop(folder, None)
                if not (yield wire.RemoveFolder(folder)):
                    _note(self._left_at(home), {folder: True})


def _note(left: dict[str, bool], folders: Mapping[str, bool]) -> None:
    """Add folders, and forget the oldest that were perhaps never made if those are too many."""
    left.update(folders)
    unsure = [folder for folder, is_made in list(left.items()) if not is_made]
    for folder in unsure[:-_REMOVED_MAX]:
        left.pop(folder, None)


@dataclass(slots=True, kw_only=True)
class Membership:
    """The state of what a session knows of its nodes; safe to use from several threads."""

    folders: NodeFolders = field(default_factory=NodeFolders)
    _silent: frozenset[str] = frozenset()  # services that did not answer the last time
    _last: tuple[Node, ...] = ()  # those that there were when schedulers answered at last
    # Where nodes were seen alive, and when; one that is away for long has removed all files.
    _seen: dict[str, tuple[Node, float]] = field(default_factory=dict)
    _released: tuple[str, ...] = ()  # draining nodes that it needs no more
    needed: Callable[[], frozenset[str]] = frozenset  # nodes with files that nobody moves

    def heard(self, asked: Ask, answered: Collection[Node]) -> None:
        """These have answered a request, and the others have not."""
        services = {node.at.service for node in asked.nodes}
        assert all(node.at.service in services for node in answered), "only those asked answer"
        self._silent = (self._silent - services) | (services - {n.at.service for n in answered})

    def _asked(self, nodes: Iterable[Node], request: Request) -> Ask:
        # A node that does not answer is not asked again until it answers a heartbeat: each silent
        # node would delay every request by the timeout.
        return Ask(tuple(node for node in nodes if node.at.service not in self._silent), request)

    def note(self, nodes: Iterable[Node], now_s: float) -> None:
        """These live now."""
        kept = {name: seen for name, seen in self._seen.items() if now_s < seen[1] + CUT_OFF_MAX_S}
        self._seen = kept | {node.name: (node, now_s) for node in nodes}

    def away(self, name: str, nodes: Iterable[Node]) -> Node | None:
        """A node as it was seen last, unless another one, or it again, is in its place now."""
        if name not in self._seen:
            return None
        last, _ = self._seen[name]
        others = (node for node in nodes if node.at.service == last.at.service)
        return last if all(node.home == last.home for node in others) else None

    def release(self, names: Collection[str], nodes: Collection[Node]) -> None:
        """Release exactly these draining nodes: the session needs nothing of them any more."""
        if not all(node.is_draining for node in nodes):
            # A task that ends may leave a result there, of which the session does not know yet.
            busy = {node.name for node in nodes if node.is_busy} | self.needed()
            names = [name for name in names if name not in busy]
        self._released = tuple(names)

    def beat(self, nodes: tuple[Node, ...], now_s: float) -> Ask:
        """A heartbeat: also to nodes that were silent, and if no scheduler answers."""
        self.note(nodes, now_s)
        self.folders.forget_others([node.home for node, _ in self._seen.values()])
        self._last = nodes or self._last  # a scheduler may have come back elsewhere
        return Ask(self._last, Keep(self._released))

    def make(self, folders: tuple[str, ...], nodes: Collection[Node]) -> Steps:
        """Folders are wanted on every node."""
        self.folders.make(folders)
        if self.folders.are_at((node.home for node in nodes), folders):
            return
        for node in (yield self._asked(nodes, wire.MakeFolder.of(folders))):
            self.folders.made_at(node.home, folders)

    def remove(self, folders: tuple[str, ...], nodes: Collection[Node]) -> Steps:
        """Folders are wanted no more; a node that does not answer is told when it does."""
        self.folders.remove(folders, [node.home for node in nodes])
        answered = yield self._asked(nodes, wire.RemoveFolder.of(folders))
        self.folders.removed_at([node.home for node in answered], folders)

    def missing(self, nodes: Iterable[Node]) -> Iterator[Steps]:
        """For each node, what it was not there to do."""
        return (self._missing(node) for node in nodes if node.at.service not in self._silent)

    def _missing(self, node: Node) -> Steps:
        requests = self.folders.missing(node.home)
        request = next(requests, None)
        while request is not None:
            answered = yield Ask((node,), request)
            try:
                request = requests.send(node in answered)
            except StopIteration:
                return

    def end(self, session: str, nodes: Iterable[Node]) -> Ask:
        """The session ends."""
        return self._asked(nodes, wire.EndSession(session))


def spread_over_hosts(nodes: Sequence[StoreLocation]) -> tuple[str, ...]:
    """The names of nodes: the first of each host, then the next of each, and so on."""
    counts: Counter[str] = Counter()
    turns = []
    for node in nodes:
        turns.append((counts[node.host], node.name))
        counts[node.host] += 1
    return tuple(name for _, name in sorted(turns, key=operator.itemgetter(0)))


class Members(ABC):
    """The members of a cluster that outlives a session; `cluster.contract` documents its methods.

    Drivers add what is IO.
    """

    loses_files = True
    elastic = True

    def __init__(
        self,
        session: str,
        recovery_s: float,
        *,
        now_s: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """For a session of this name, in which its folders are on each node."""
        self.store_name = session
        self.recovery_s = recovery_s
        self.membership = Membership()
        self.now_s, self._sleep = now_s, sleep

    @abstractmethod
    def told(self) -> tuple[Node, ...]:
        """The nodes that schedulers tell of now."""

    @abstractmethod
    def ask(self, asked: Ask) -> Collection[Node]:
        """Ask nodes, and tell `membership` who has answered: these.

        Raises:
            ResourceError: one can't do what it is asked for.
        """

    @abstractmethod
    def refuses(self, node: Node) -> bool:
        """Whether a node's host says that its process has ended."""

    @abstractmethod
    def change_own(self, request: Change) -> None:
        """Do to the session's own files what nodes are asked for."""

    @abstractmethod
    def transfer(self, file: str, source: Node, target: Node) -> bool:
        """Have a node fetch a file from another one, into a folder that it has."""

    @abstractmethod
    def own_stores(self) -> tuple[StoreLocation, ...]:
        """Where the session itself has files that tasks may read."""

    @abstractmethod
    def check_awaited(self, since_s: float) -> None:
        """Raise ClusterError if it is no use to wait for nodes, as was done since then."""

    def _run(self, steps: Steps) -> None:
        asked = next(steps, None)
        while asked is not None:
            try:
                asked = steps.send(self.ask(asked))
            except StopIteration:
                return

    @property
    def nodes(self) -> tuple[str, ...]:
        # Replicas go to nodes that follow each other: to different hosts, as far as there are some.
        return spread_over_hosts([node.at for node in self.told() if not node.is_draining])

    @property
    def draining(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.told() if node.is_draining)

    @property
    def open_folders(self) -> frozenset[str]:
        return frozenset(self.membership.folders.made)

    def homes(self) -> dict[str, str]:
        return {node.name: node.home for node in self.told()}

    def release(self, nodes: Collection[str]) -> None:
        self.membership.release(nodes, self.told())

    def keep_nodes(self, needed: Callable[[], frozenset[str]]) -> None:
        self.membership.needed = needed

    def lost_nodes(self, nodes: Collection[str]) -> tuple[str, ...]:
        if not nodes:
            return ()
        live = {self.store_name, *self.homes()}
        # If no scheduler answers, nothing is known.
        return tuple(node for node in nodes if node not in live) if len(live) > 1 else ()

    def may_return(self, node: str) -> bool:
        nodes = self.told()
        self.membership.note(nodes, self.now_s())
        last = self.membership.away(node, nodes)
        return last is not None and not self.refuses(last)

    def folder(self, name: str) -> str:
        return f"{self.store_name}/{name}"

    def make_folder(self, *folders: str) -> None:
        self.change_own(wire.MakeFolder.of(folders))
        self._run(self.membership.make(folders, self.told()))

    def remove_folder(self, *folders: str) -> None:
        self.change_own(wire.RemoveFolder.of(folders))
        with contextlib.suppress(ResourceError, ClusterError):
            self._run(self.membership.remove(folders, self.told()))

    def leave_folder(self, folder: str) -> None:
        """Have a folder no longer, which stays on the nodes."""
        self.change_own(wire.RemoveFolder(folder))
        self.membership.folders.leave(folder)

    def make_missing_folders(self) -> None:
        """Have nodes do what they were not there to do."""
        for steps in self.membership.missing(self.told()):
            with contextlib.suppress(ResourceError):  # one can't: others may
                self._run(steps)

    def placement(self, policy: str, probe_ratio: float) -> Placement:
        """How tasks are placed on the live nodes, as soon as there are any.

        Raises:
            ClusterError: none came in time, or all are being drained.
        """
        began_s = self.now_s()
        while not (nodes := self.told()):
            self.check_awaited(began_s)
            if self.now_s() > began_s + self.recovery_s:
                raise ClusterError(silent(self.recovery_s))
            self._sleep(_NODES_STEP_S)
        staying = spread_over_hosts([node.at for node in nodes if not node.is_draining])
        if not staying:
            raise ClusterError("All nodes of the cluster are being drained: no task can run.")
        front = self.own_stores()
        return Placement(
            policy=policy,
            probe_ratio=probe_ratio,
            nodes=staying,
            user=self.store_name,
            wait_s=_LOCALITY_WAIT_S,
            stores=(*(node.at for node in nodes), *front) if front else (),
        )

    def copy_file(self, file: str, source: str, target: str) -> bool:
        nodes = {node.name: node for node in self.told()}
        if source not in nodes or target not in nodes:
            return False
        folder, taker = file.rpartition("/")[0], nodes[target]
        with contextlib.suppress(ResourceError):
            if self.ask(Ask((taker,), wire.MakeFolder(folder))):
                return self.transfer(file, nodes[source], taker)
        return False

    def remove_copy(self, file: str, node: str) -> None:
        if node == self.store_name:
            self.change_own(wire.RemoveFile(file))
        for live in self.told():
            if live.name == node:
                with contextlib.suppress(ResourceError):  # it is in the way, but does no harm
                    self.ask(Ask((live,), wire.RemoveFile(file)))

    def drain(self, node: str) -> None:
        nodes = [live for live in self.told() if live.name == node]
        if not nodes:
            names = ", ".join(self.nodes)
            raise OptionError(f"There is no node {node!r} to drain; the nodes are {names}.")
        if not self.ask(Ask((nodes[0],), wire.DrainNode())):
            raise ClusterError(f"Node {node} does not answer.")
