"""What a session knows of the nodes of a cluster that outlives it, and how long it waits for them.

Free of IO, so that the simulation has the same (`minishark_lab/simulation/attached.py`). A node's
home is what tells it from the one of its name before it: a restarted node has another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from minishark.cluster.backend import Placement
from minishark.cluster.node_service import CUT_OFF_MAX_S
from minishark.errors import ClusterError
from minishark.worker.protocol import StoreLocation

_NODES_STEP_S = 0.05
_LOCALITY_WAIT_S = 1.0
_REMOVED_MAX = 256  # folders that a node is told later to remove

Nodes = TypeVar("Nodes", bound=Collection[object])
Place = TypeVar("Place")


def awaited(
    look: Callable[[], Nodes],
    patience_s: float,
    *,
    now_s: Callable[[], float],
    sleep: Callable[[float], None],
    check: Callable[[], object],
) -> Nodes:
    """The live nodes, as soon as there are any.

    Args:
        look: gives those that there are.
        patience_s: how long to wait for one.
        now_s: the time.
        sleep: waits for so many seconds.
        check: called while there is none; what it raises ends the wait.

    Raises:
        ClusterError: there was none for so long.
    """
    deadline = now_s() + patience_s
    while not (nodes := look()):
        check()
        if now_s() > deadline:
            raise ClusterError(silent(patience_s))
        sleep(_NODES_STEP_S)
    return nodes


def silent(patience_s: float) -> str:
    """The message of the error when no node has answered for so long."""
    return (
        f"No node of the cluster has answered for {patience_s:g} s. Check the "
        "nodes and the network to them: statements work again when one answers."
    )


def placed_on(
    nodes: tuple[str, ...],
    *,
    policy: str,
    probe_ratio: float,
    user: str,
    stores: tuple[StoreLocation, ...] = (),
) -> Placement:
    """How a user's tasks are placed on nodes that are not being drained.

    Raises:
        ClusterError: there is none.
    """
    if not nodes:
        raise ClusterError("All nodes of the cluster are being drained: no task can run.")
    return Placement(
        policy=policy,
        probe_ratio=probe_ratio,
        nodes=nodes,
        user=user,
        wait_s=_LOCALITY_WAIT_S,
        stores=stores,
    )


@dataclass(slots=True)
class NodeFolders:
    """The folders of a session, and which node has made which; safe to use from several threads.

    Few names are used again: if a folder is made while a node is told late that it is to remove it,
    what tasks have stored there at that moment is lost, and computed again.
    """

    made: dict[str, None] = field(default_factory=dict)
    by_home: dict[str, dict[str, None]] = field(default_factory=dict)  # those that a node has
    # Those that are wanted no more, and that a node may have: it did not answer, or was not known
    # yet when it ran tasks that made them. The last ones only; others stay there with the session.
    left: dict[str, dict[str, None]] = field(default_factory=dict)
    _removed: dict[str, None] = field(default_factory=dict)  # the last ones, of all nodes

    def make(self, folders: Iterable[str]) -> None:
        """Folders are wanted on every node."""
        folders = tuple(folders)
        self.made.update(dict.fromkeys(folders))
        for known in (self._removed, *list(self.left.values())):
            for folder in folders:
                known.pop(folder, None)

    def are_at(self, homes: Iterable[str], folders: Iterable[str]) -> bool:
        """Whether nodes have made folders."""
        return all(self.by_home.get(home, {}).keys() >= {*folders} for home in homes)

    def made_at(self, home: str, folders: Iterable[str]) -> None:
        """A node has made folders."""
        self.by_home.setdefault(home, {}).update(dict.fromkeys(folders))

    def remove(self, folders: Iterable[str], homes: Iterable[str]) -> None:
        """Folders are wanted no more; these nodes and those that have made any may have them."""
        folders = tuple(folders)
        for folder in folders:
            self.made.pop(folder, None)
            for at in list(self.by_home.values()):
                at.pop(folder, None)
        _note(self._removed, folders)
        for home in dict.fromkeys((*homes, *list(self.by_home), *list(self.left))):
            _note(self._left_at(home), folders)

    def _left_at(self, home: str) -> dict[str, None]:
        known = self.left.get(home)
        return self.left.setdefault(home, dict(self._removed)) if known is None else known

    def removed_at(self, homes: Iterable[str], folders: Iterable[str]) -> None:
        """Nodes have removed folders."""
        for home in homes:
            at = self._left_at(home)
            for folder in folders:
                at.pop(folder, None)

    def forget_others(self, homes: Collection[str]) -> None:
        """Only these nodes may still have folders of the session."""
        for known in (self.by_home, self.left):
            for home in [home for home in list(known) if home not in homes]:
                known.pop(home, None)

    def complete(
        self, home: str, make: Callable[[str], bool], remove: Callable[[Sequence[str]], bool]
    ) -> None:
        """Make and remove folders at a node that was not there when all did, or did not answer.

        Args:
            home: the node's.
            make: makes a folder there; whether the node has answered.
            remove: removes some there, likewise.
        """
        at = self.by_home.setdefault(home, {})
        if left := [each for each in list(self._left_at(home)) if each not in self.made]:
            if not remove(left):
                return
            self.removed_at((home,), left)
            for folder in left:
                if folder in self.made:  # again, before that or after
                    at.pop(folder, None)
        for folder in [each for each in list(self.made) if each not in at]:
            if not make(folder):
                return  # do not wait for each folder of a silent node
            at[folder] = None
            if folder not in self.made:  # removed meanwhile
                at.pop(folder, None)
                if not remove([folder]):
                    _note(self._left_at(home), (folder,))


def _note(known: dict[str, None], folders: Iterable[str]) -> None:
    """Add folders to the last ones that are known."""
    known.update(dict.fromkeys(folders))
    for folder in list(known)[:-_REMOVED_MAX]:
        known.pop(folder, None)


@dataclass(slots=True)
class LastSeen(Generic[Place]):
    """Where nodes were last seen alive; one that is away for long has removed all files."""

    _seen: dict[str, tuple[Place, float]] = field(default_factory=dict)

    def note(self, live: Mapping[str, Place], now_s: float) -> None:
        """These live now."""
        kept = {name: seen for name, seen in self._seen.items() if now_s < seen[1] + CUT_OFF_MAX_S}
        self._seen = kept | {name: (place, now_s) for name, place in live.items()}

    @property
    def places(self) -> list[Place]:
        """Where they may be still."""
        return [place for place, _ in self._seen.values()]

    def last(self, name: str) -> Place | None:
        """Where a node was."""
        seen = self._seen.get(name)
        return None if seen is None else seen[0]
