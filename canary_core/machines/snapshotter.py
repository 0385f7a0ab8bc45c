"""A worker's part in snapshots: it stores its partitions, and sends and holds copies.

When and where a partition is stored follows from the program, the same at all workers; which
snapshots are still needed is the controller's to say.
"""

from __future__ import annotations

from collections.abc import Mapping

from canary_core.machines.links import Links
from canary_core.machines.partition import Key, PackError, Partition
from canary_core.machines.replica import Replica
from canary_core.machines.snapshot_store import SnapshotStore, keep_message, kept, snapshot_of
from canary_core.protocol.messages import Keep, Replicate
from canary_core.values import Frames
from machine_kit.addresses import Address


class Snapshotter:
    """Snapshots at a worker.

    Attributes:
        held: The snapshots here; it outlives epochs.
        keepers: The workers that get a copy of what is stored here.
    """

    def __init__(self, links: Links) -> None:
        self.held = SnapshotStore()
        self.keepers: tuple[Address, ...] = ()
        self._links = links

    def store(self, part: Partition, replica: Replica, signals: Mapping[int, object]) -> None:
        """Store a partition at the cut where it is, and send copies to the keepers.

        Raises:
            PackError: One of its values can't be pickled.
        """
        stage, _ = part.cuts.popleft()
        groups = tuple([size for size, steps in replica.cuts.get(stage, {}).items() if steps])
        try:
            snapshot, frames = snapshot_of(part, replica.loads, groups, signals)
        except Exception as error:
            raise PackError(stage, part.index) from error
        self.held.store(stage, part.key, snapshot, frames)
        part.stored = stage
        for keeper in self.keepers:
            sent = frozenset(part.sent.get(keeper, ()))
            body, flat = keep_message(part.key, stage, snapshot, frames, stored=sent)
            self._links.post(keeper, body, flat)
            # The keeper may drop what this snapshot lacks. Values never change, so no later one has
            # that again.
            part.sent[keeper] = set(snapshot.blobs)

    def keep(self, body: Keep, frames: Frames) -> None:
        """Hold a copy."""
        self.held.store(body.stage, (body.size, body.index), *kept(body, frames))

    def replicate(self, body: Replicate) -> None:
        """Send copies of what is held; a later snapshot may have replaced it meanwhile."""
        for key in body.partitions:
            if self.held.holds(body.stage, key):
                self.send(key, body.stage, body.to)

    def send(self, key: Key, stage: int, to: Address, *, restore: bool = False) -> None:
        """Send a copy, to be held or to continue from."""
        snapshot, frames = self.held.get(stage, key)
        body, flat = keep_message(key, stage, snapshot, frames, restore=restore)
        self._links.post(to, body, flat)


def plan_cuts(part: Partition, replica: Replica) -> None:
    """Note where a partition is to be stored: cuts that it has not passed."""
    planned = {stage for stage, _ in part.cuts}
    for stage, steps in sorted(replica.cuts.items()):
        step = steps.get(part.size)
        # It may have been stored there before it came here.
        if step is None or stage in planned or stage <= part.stored:
            continue
        if part.pc <= step:  # beyond the cut, values of the stage may be freed already
            part.cuts.append((stage, step))
