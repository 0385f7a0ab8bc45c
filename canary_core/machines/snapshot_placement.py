"""The controller's ledger of snapshots: who holds which partition at which stage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from canary_core.machines.partition import Key
from canary_core.protocol.messages import HeldSnapshot
from machine_kit.addresses import Address


class SnapshotPlacement:
    """Holders of snapshots. A stage can be restored if each partition has a live holder."""

    def __init__(self) -> None:
        self._holders: dict[int, dict[Key, dict[Address, None]]] = {}
        self._groups: dict[int, tuple[int, ...]] = {}

    def note(
        self,
        worker: Address,
        held: Sequence[HeldSnapshot],
        groups: Mapping[int, tuple[int, ...]],
    ) -> None:
        """A worker holds these."""
        self._groups.update(groups)
        for snapshot in held:
            stage = self._holders.setdefault(snapshot.stage, {})
            for index in snapshot.indices:
                stage.setdefault((snapshot.size, index), {})[worker] = None

    def lose(self, worker: Address) -> None:
        """A worker is gone, with all that it held."""
        for keys in self._holders.values():
            for holders in keys.values():
                holders.pop(worker, None)

    def retain(self, first: int, last: int | None = None) -> None:
        """Forget stages outside of these."""
        for stage in list(self._holders):
            if stage < first or (last is not None and stage > last):
                del self._holders[stage]
                self._groups.pop(stage, None)

    def latest(self, copies: int, without: Collection[Address] = ()) -> int:
        """The last stage of which each partition has so many holders; 0 if there is none."""
        return max(
            (stage for stage in self._holders if self._is_held(stage, copies, without)), default=0
        )

    def _is_held(self, stage: int, copies: int, without: Collection[Address]) -> bool:
        keys = self._holders[stage]
        return all(
            sum(holder not in without for holder in keys.get((size, index), ())) >= copies
            for size in self._groups[stage]
            for index in range(size)
        )

    def groups(self, stage: int) -> tuple[int, ...]:
        """The groups that exist at a stage."""
        return self._groups.get(stage, ())

    def holders(self, stage: int) -> dict[Key, tuple[Address, ...]]:
        """All live holders of each partition at a stage."""
        return {key: tuple(held) for key, held in self._holders.get(stage, {}).items()}

    def holder(self, stage: int, key: Key, worker: Address) -> Address:
        """Who gives a partition's snapshot: the worker that wants it, if it can; "" if none."""
        holders = self._holders.get(stage, {}).get(key, {})
        # What it has itself need not travel.
        if worker in holders or not holders:
            return worker if holders else Address("")
        return next(iter(holders))
