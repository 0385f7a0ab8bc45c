"""Who has which partition, and how data find their way there.

Each row of the partition map has a version. A sender addresses data by its own map and says with
which version. A worker that does not have the partition compares: if the sender's row is newer, or
its own says that the partition is coming here, it holds the data until the partition comes; else
it forwards them by its own map. So nobody has to agree with anybody on the map at any time.
"""

from __future__ import annotations

from typing import Any

from canary_core import values
from canary_core.machines.links import Links
from canary_core.machines.partition import Key, PackError, Partition
from canary_core.protocol.messages import Entry, Pieces
from canary_core.stages import UNTOLD, Stage
from canary_core.tree import Node, combine, first_block, is_relayed
from machine_kit.addresses import Address

Arrivals = dict[int, dict[Any, Any]]  # by target, by source


class PartitionMap:
    """A worker's rows of the partition map."""

    def __init__(self) -> None:
        self._rows: dict[Key, Entry] = {}
        self._sizes: set[int] = set()

    def learn(self, entry: Entry) -> bool:
        """Take a row if it is newer than what is known."""
        key = (entry.size, entry.index)
        row = self._rows.get(key)
        if row is not None and row.version >= entry.version:
            return False
        self._rows[key] = entry
        self._sizes.add(entry.size)
        return True

    def knows(self, size: int) -> bool:
        """Whether this group has been placed."""
        return size in self._sizes

    def owner(self, key: Key) -> Address | None:
        """Who has a partition, as far as is known."""
        row = self._rows.get(key)
        return None if row is None else row.worker

    def version(self, key: Key) -> int:
        """Of its row; 0 if it is not known."""
        row = self._rows.get(key)
        return 0 if row is None else row.version


class Exchange:
    """A worker's data on their way: what it sends, and what came before its partition."""

    def __init__(self, address: Address, links: Links) -> None:
        self.map = PartitionMap()
        self.parts: dict[Key, Partition] = {}
        self.runnable: dict[Key, None] = {}
        self._address = address
        self._links = links
        self._held: dict[Key, dict[int, dict[Any, Any]]] = {}
        # By stage and size of the target group: the stage's digest, and what goes where.
        self._outgoing: dict[tuple[int, int], tuple[int, Arrivals]] = {}

    def send(self, stage: Stage, size: int, source: Any, pieces: dict[int, Any]) -> None:
        """Deliver what a partition here has sent to a group of this size, by target.

        What goes elsewhere waits for `flush`.
        """
        index = stage.index
        for target, piece in pieces.items():
            part = self.parts.get((size, target))
            if part is not None:
                if part.deliver(index, source, piece):
                    self.runnable[part.key] = None
            else:
                _, waiting = self._outgoing.setdefault((index, size), (stage.digest, {}))
                waiting.setdefault(target, {})[source] = piece

    @property
    def has_outgoing(self) -> bool:
        """Whether data for other workers wait for `flush`."""
        return bool(self._outgoing)

    def destinations(self) -> set[Address]:
        """The workers for which data wait for `flush`."""
        return {
            owner
            for (_, size), (_, arrivals) in self._outgoing.items()
            for target in arrivals
            if (owner := self.map.owner((size, target))) is not None
        }

    def flush(self) -> None:
        """Post all that waits, in one message for each stage and worker."""
        outgoing, self._outgoing = self._outgoing, {}
        for (stage, size), (digest, arrivals) in outgoing.items():
            self._route(stage, digest, size, arrivals)

    def _route(self, stage: int, digest: int, size: int, arrivals: Arrivals) -> None:
        by_worker: dict[Address, Arrivals] = {}
        for target, pieces in arrivals.items():
            owner = self.map.owner((size, target))
            if owner is None:  # a group that the controller has not placed yet
                self._outgoing.setdefault((stage, size), (digest, {}))[1][target] = pieces
            elif owner == self._address:
                self._take(stage, (size, target), pieces)
            else:
                by_worker.setdefault(owner, {})[target] = pieces
        for owner, part in by_worker.items():
            self._post(owner, stage, digest, size, part)

    def _post(self, owner: Address, stage: int, digest: int, size: int, arrivals: Arrivals) -> None:
        try:
            frames = values.dumps(arrivals)
        except Exception as error:
            raise PackError(stage, min(arrivals)) from error
        body = Pieces(
            stage=stage,
            digest=digest,
            size=size,
            targets=tuple(arrivals),
            versions=tuple([self.map.version((size, target)) for target in arrivals]),
            frames=len(frames),
        )
        self._links.post(owner, body, frames)

    def receive(self, body: Pieces, frames: values.Frames) -> None:
        """Take pieces for partitions here; hold or forward those for others.

        Raises:
            PackError: They can't be unpickled here.
        """
        try:
            arrivals: Arrivals = values.loads(frames)
        except Exception as error:  # whatever the user's class raises
            raise PackError(body.stage, min(body.targets)) from error
        astray: Arrivals = {}
        for target, version in zip(body.targets, body.versions, strict=True):
            key = (body.size, target)
            mine = self.map.owner(key) in {self._address, None}
            if key in self.parts or mine or version > self.map.version(key):
                self._take(body.stage, key, arrivals[target])
            else:
                astray[target] = arrivals[target]
        if astray:
            self._route(body.stage, body.digest, body.size, astray)

    def _take(self, stage: int, key: Key, pieces: dict[Any, Any]) -> None:
        part = self.parts.get(key)
        if part is not None:
            for source, piece in pieces.items():
                if part.deliver(stage, source, piece):
                    self.runnable[key] = None
        else:
            self._held.setdefault(key, {}).setdefault(stage, {}).update(pieces)

    def add(self, part: Partition) -> None:
        """A partition has come: it gets what was held for it."""
        self.parts[part.key] = part
        self.runnable[part.key] = None
        for stage, pieces in self._held.pop(part.key, {}).items():
            for source, piece in pieces.items():
                part.deliver(stage, source, piece)

    def remove(self, key: Key) -> Partition:
        """A partition goes."""
        self.runnable.pop(key, None)
        return self.parts.pop(key)

    def forward_held(self) -> None:
        """After a change of the map: what was held for partitions that go elsewhere follows."""
        astray = [key for key in self._held if self.map.owner(key) not in {self._address, None}]
        for key in astray:
            for stage, pieces in self._held.pop(key).items():
                self._route(stage, UNTOLD, key[0], {key[1]: pieces})


class Reductions:
    """Leaves of reductions that wait to be combined with others of this worker."""

    def __init__(self) -> None:
        self.leaves: dict[int, dict[Node, Any]] = {}  # by stage

    def add(self, stage: int, index: int, value: Any) -> int:
        """Take a leaf; returns how many the stage has now."""
        leaves = self.leaves.setdefault(stage, {})
        leaves[index, index + 1] = value
        return len(leaves)

    def take(self, stage: int, fn: Any, size: int) -> list[tuple[int | None, Node, Any]]:
        """Combine as much as the tree allows below a relay, or below the single.

        Returns:
            Nodes and their values, each with the relay that it is for; None: for the single.
        """
        leaves = self.leaves.pop(stage)
        if not is_relayed(size):
            return [(None, *part) for part in combine(fn, leaves, 0, size)[0]]
        blocks: dict[Node, dict[Node, Any]] = {}
        for node, value in leaves.items():
            blocks.setdefault(first_block(node[0], size), {})[node] = value
        return [
            (low, *part)
            for (low, high), block in blocks.items()
            for part in combine(fn, block, low, high)[0]
        ]
