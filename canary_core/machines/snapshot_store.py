"""Snapshots of partitions that a worker holds: of its own, and copies of others'.

All partitions are stored at the same stage, each when it gets there. What a stage before it sends
has been received by then, and what a later one sends is sent again, so nothing on its way needs to
be stored: no partition waits for another. Values never change, so a value that an earlier snapshot
has is not pickled or sent again; only states are. What `load` and `table` made is loaded again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from canary_core import values
from canary_core.machines.partition import Key, Partition
from canary_core.protocol.messages import HeldSnapshot, Keep
from canary_core.values import Frames

SIGNALS = -1  # the id of the signals that are known, which are stored with the single partition
Blob = tuple[
    int, int
]  # id of the value, version: 0, or for a state the step at which it was stored


class Snapshot(Struct, frozen=True):
    """A partition at a stage.

    Attributes:
        pc: How many steps of its group it had run.
        blobs: Its values, and whether each is a state.
        sources: Ids of values that are to be loaded again.
        groups: The groups that exist at the stage.
    """

    pc: int
    blobs: dict[Blob, bool]
    sources: tuple[int, ...]
    groups: tuple[int, ...]


class SnapshotStore:
    """What a worker holds. `news` are snapshots that the controller has not been told of."""

    def __init__(self) -> None:
        self.news: list[tuple[int, Key]] = []
        self._snapshots: dict[int, dict[Key, Snapshot]] = {}
        self._frames: dict[Key, dict[Blob, Frames]] = {}

    def store(self, stage: int, key: Key, snapshot: Snapshot, frames: dict[Blob, Frames]) -> None:
        """Take a snapshot; `frames` may leave out blobs that an earlier one of its key has.

        If one of these is gone, the snapshot is not taken: the controller does not count it.
        """
        stored = self._frames.setdefault(key, {})
        stored.update(frames)
        if not snapshot.blobs.keys() <= stored.keys():
            return
        self._snapshots.setdefault(stage, {})[key] = snapshot
        self.news.append((stage, key))

    def holds(self, stage: int, key: Key) -> bool:
        """Whether a snapshot is here."""
        return key in self._snapshots.get(stage, {})

    def get(self, stage: int, key: Key) -> tuple[Snapshot, dict[Blob, Frames]]:
        """A snapshot and all its blobs."""
        snapshot = self._snapshots[stage][key]
        stored = self._frames[key]
        return snapshot, {blob: stored[blob] for blob in snapshot.blobs}

    def retain(self, first: int, last: int | None = None) -> None:
        """Keep the snapshots of stages from `first` to `last` only."""
        gone = [s for s in self._snapshots if s < first or (last is not None and s > last)]
        for stage in gone:
            for key in self._snapshots.pop(stage):
                self._sweep(key)
        self.news = [place for place in self.news if place[0] in self._snapshots]

    def _sweep(self, key: Key) -> None:
        used = {b for held in self._snapshots.values() if key in held for b in held[key].blobs}
        frames = self._frames[key]
        self._frames[key] = {blob: frames[blob] for blob in frames if blob in used}

    def inventory(self) -> list[tuple[int, Key]]:
        """All that is held."""
        return [(stage, key) for stage, held in self._snapshots.items() for key in held]

    def groups(self) -> dict[int, tuple[int, ...]]:
        """The groups that exist at each stage of which something is held."""
        return {
            stage: next(iter(held.values())).groups
            for stage, held in self._snapshots.items()
            if held
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all blobs."""
        blobs = (frames for held in self._frames.values() for frames in held.values())
        return sum(frame.nbytes for frames in blobs for frame in frames)


def by_group(held: Iterable[tuple[int, Key]]) -> tuple[HeldSnapshot, ...]:
    """An inventory as it travels."""
    indices: dict[tuple[int, int], list[int]] = {}
    for stage, (size, index) in held:
        indices.setdefault((stage, size), []).append(index)
    return tuple(HeldSnapshot(*place, tuple(partitions)) for place, partitions in indices.items())


def snapshot_of(
    part: Partition, sources: Iterable[int], groups: tuple[int, ...], signals: object
) -> tuple[Snapshot, dict[Blob, Frames]]:
    """A partition as it is, between two stages; `signals` go with the single partition."""
    sources = [id_ for id_ in sources if id_ in part.values]
    loaded = frozenset(sources)
    frames: dict[Blob, Frames] = {}
    for id_, value in part.values.items():
        if id_ in part.states:
            frames[id_, part.pc] = values.dumps_inside(value)
        elif id_ not in loaded:
            if id_ not in part.blobs:
                part.blobs[id_] = values.dumps(value)
            frames[id_, 0] = part.blobs[id_]
    part.blobs = {id_: part.blobs[id_] for id_, version in frames if not version}
    if part.key == (1, 0):
        frames[SIGNALS, part.pc] = values.dumps_inside(signals)
    blobs = {blob: blob[0] in part.states for blob in frames}
    return Snapshot(part.pc, blobs, tuple(sources), groups), frames


def restored(key: Key, stage: int, snapshot: Snapshot, frames: dict[Blob, Frames]) -> Partition:
    """The partition of a snapshot; what is to be loaded again is listed in `reload`."""
    part = Partition(*key)
    part.pc = snapshot.pc
    part.position = part.known = part.stored = stage
    part.reload = list(snapshot.sources)
    for (id_, version), is_state in snapshot.blobs.items():
        if id_ == SIGNALS:
            continue
        part.values[id_] = values.loads(frames[id_, version])
        if is_state:
            part.states[id_] = None
        else:
            part.blobs[id_] = frames[id_, version]
    return part


def signals_of(frames: dict[Blob, Frames]) -> dict[int, object]:
    """The signals that are stored with the single partition."""
    for (id_, _), held in frames.items():
        if id_ == SIGNALS:
            signals: dict[int, object] = values.loads(held)
            return signals
    return {}


def keep_message(
    key: Key,
    stage: int,
    snapshot: Snapshot,
    frames: dict[Blob, Frames],
    *,
    stored: frozenset[Blob] = frozenset(),
    restore: bool = False,
) -> tuple[Keep, Frames]:
    """A snapshot as it travels; blobs that the receiver knows are only named."""
    sent = [
        (blob, () if blob in stored else frames[blob], is_state)
        for blob, is_state in snapshot.blobs.items()
    ]
    flat = tuple([frame for _, blob_frames, _ in sent for frame in blob_frames])
    body = Keep(
        size=key[0],
        index=key[1],
        stage=stage,
        pc=snapshot.pc,
        blobs=tuple([(*blob, len(blob_frames), is_state) for blob, blob_frames, is_state in sent]),
        sources=snapshot.sources,
        groups=snapshot.groups,
        frames=len(flat),
        restore=restore,
    )
    return body, flat


def kept(body: Keep, frames: Frames) -> tuple[Snapshot, dict[Blob, Frames]]:
    """What a message brings: the snapshot, and the blobs that came with it."""
    brought: dict[Blob, Frames] = {}
    place = 0
    for id_, version, count, _ in body.blobs:
        if count:
            brought[id_, version] = frames[place : place + count]
            place += count
    blobs = {(id_, version): is_state for id_, version, _, is_state in body.blobs}
    return Snapshot(body.pc, blobs, body.sources, body.groups), brought
