"""A partition at its worker, and how its steps are run.

Steps are run in the order of the program, but one that waits for data from elsewhere is set aside
(`blocked`), and those after it are run if all that they read is there. Values never change, so that
is safe for all but states: a step that updates a state waits for earlier ones that use it, and the
other way round. While nothing is blocked, all operands are there by construction and nothing is
checked: that path runs a task in some hundred nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from canary_core import stages, values
from canary_core.machines import replica as steps_of
from canary_core.machines.replica import (
    MANY,
    ONE,
    RECEIVE,
    SEND,
    SPECIAL,
    TWO,
    Replica,
    Step,
    Track,
)
from canary_core.stages import Stage
from canary_core.tasks import scattered
from canary_core.tree import block_of, combine, first_block, is_relayed

Key = tuple[int, int]  # (size of the group, index)
_NO_PIECES: dict[Any, Any] = {}


class Effects(Protocol):
    """What running a step does beyond its partition."""

    def send(self, stage: Stage, index: int, pieces: Any) -> None:
        """Send what a partition has for others: a value, or pieces by target."""
        ...

    def relay(self, stage: Stage, index: int, value: Any) -> None:
        """Send what a relay of a broadcast or a reduction has: its value, or that of its block."""
        ...

    def tell(self, stage: Stage, value: Any) -> None:
        """Tell the value of a signal to all copies of the driver."""
        ...

    def give_back(self, stage: Stage, index: int, size: int, parts: list[Any]) -> None:
        """Send a partition's part of the result."""
        ...

    def read(self, table: str, index: int, partitions: int) -> Any:
        """A partition of a table."""
        ...


class TaskError(Exception):
    """A function raised; the cause is what it raised."""

    def __init__(self, stage: Stage, index: int) -> None:
        super().__init__(stage.call)
        self.stage = stage
        self.index = index


class PackError(Exception):
    """A value that has to travel or be stored can't be pickled or unpickled; the cause says why."""

    def __init__(self, stage: int, index: int) -> None:
        super().__init__(stage, index)
        self.stage = stage
        self.index = index


class Partition:
    """One partition of a group: its values, and where in the program it is.

    Attributes:
        pc: The number of the first step of its group that has not been looked at.
        blocked: Steps before it that wait.
        known: How many stages the driver must have recorded before its steps are all there: a
            partition may come from a worker whose driver was ahead.
        position: The first stage that it had not run when it came.
        inbox: What has arrived, by stage and key.
        awaited: How many pieces a blocked step waits for, by stage.
        frees: Values to free as soon as no blocked step reads or makes them.
        reload: Ids of values that are to be loaded again.
        cuts: (stage, step) where it is to be stored; it runs no further before.
        stored: The last stage at which it was.
        blobs: The pickles of its values that a snapshot has made.
        sent: The blobs that other workers hold, by worker.
    """

    __slots__ = (
        "awaited", "batch", "blobs", "blocked", "busy_s", "cuts", "frees", "inbox", "index", "key",
        "known", "pc", "position", "reload", "sent", "size", "states", "stored", "values",
    )  # fmt: skip

    def __init__(self, size: int, index: int) -> None:
        self.key: Key = (size, index)
        self.size = size
        self.index = index
        self.values: dict[int, Any] = {}
        self.states: dict[int, None] = {}
        self.pc = 0
        self.blocked: list[int] = []
        self.known = 0
        self.position = 0
        self.inbox: dict[int, dict[Any, Any]] = {}
        self.awaited: dict[int, int] = {}
        self.frees: list[int] = []
        self.reload: list[int] = []
        self.cuts: deque[tuple[int, int]] = deque()
        self.stored = 0
        self.batch = 1
        self.busy_s = 0.0
        self.blobs: dict[int, values.Frames] = {}
        self.sent: dict[str, set[tuple[int, int]]] = {}

    def deliver(self, stage: int, source: Any, piece: Any) -> bool:
        """Take what a stage sends here, perhaps again; False if a step still waits for more."""
        here = self.inbox.get(stage)
        if here is None:
            self.inbox[stage] = here = {}
        here[source] = piece
        return len(here) >= self.awaited.get(stage, 0)

    def first_unrun(self, replica: Replica) -> int:
        """The first stage that it has not run: all before it are over here."""
        if replica.end < self.known:
            return self.position
        track = replica.tracks.get(self.size)
        if track is None:
            return replica.end
        if self.blocked:
            return track.at(self.blocked[0])[4].index
        if self.pc < track.end:
            return track.at(self.pc)[4].index
        return replica.end

    def has_sent(self, stage: Stage, replica: Replica) -> bool:
        """Whether it has run the step of a stage that sends."""
        first = self.first_unrun(replica)
        if first != stage.index:
            return first > stage.index
        track = replica.tracks[self.size]
        steps = enumerate(track.steps, track.base)
        number = next(n for n, step in steps if step[0] == SEND and step[4].index == first)
        return number < self.pc and number not in self.blocked


def has_more(part: Partition, replica: Replica) -> bool:
    """Whether there are steps that the partition has not looked at, and may."""
    track = replica.tracks.get(part.size)
    if track is None or replica.end < part.known:
        return False
    return part.pc < (min(track.end, part.cuts[0][1]) if part.cuts else track.end)


def drain(part: Partition, replica: Replica, effects: Effects, limit: int) -> int:
    """Run steps of a partition until none is ready, or `limit` of them; returns how many.

    Raises:
        TaskError: A function raised.
    """
    if replica.end < part.known or part.size not in replica.tracks:
        return 0
    if part.reload:
        _load_again(part, replica, effects)
    track = replica.tracks[part.size]
    stop = min(track.end, part.pc + limit)
    if part.cuts:
        stop = min(stop, part.cuts[0][1])
    if part.blocked:
        return _drain_around(part, track, replica, effects, stop)
    first = part.pc
    ran = _drain_straight(part, track, effects, stop)
    if part.blocked:
        ran += _drain_around(part, track, replica, effects, min(stop, first + limit))
    return ran


def _drain_straight(part: Partition, track: Track, effects: Effects, stop: int) -> int:
    """The fast path: nothing is blocked."""
    held, first = part.values, part.pc
    pc = first - 1
    steps = track.steps[first - track.base : stop - track.base]
    step = None
    try:
        for pc, step in enumerate(steps, first):
            code, fn, operands, frees, stage = step
            if frees:
                for id_ in frees:
                    held.pop(id_, None)
            if code == ONE:
                held[stage.index] = fn(held[operands])
            elif code == TWO:
                held[stage.index] = fn(held[operands[0]], held[operands[1]])
            elif code == MANY:
                held[stage.index] = fn(*[held[id_] for id_ in operands])
            elif not _run_special(part, step, effects):
                part.blocked.append(pc)
                break
    except (Exception, SystemExit) as error:  # sys.exit() ends the program, not its worker
        assert step is not None
        raise TaskError(step[4], part.index) from error
    finally:  # a step that waits, or has failed, was looked at
        part.pc = pc + 1
    return part.pc - first


def _drain_around(
    part: Partition, track: Track, replica: Replica, effects: Effects, stop: int
) -> int:
    """Retry what waits, and run what does not depend on it."""
    waiting, part.blocked = part.blocked, []
    blocked, frees, states = part.blocked, part.frees, replica.states
    steps, base, first, held = track.steps, track.base, part.pc, part.values
    step = None
    try:
        for pc in (*waiting, *range(first, stop)):
            step = steps[pc - base]
            if pc >= first:
                frees += step[3]
                part.pc = pc + 1
            code, fn, _, _, stage = step
            if code == RECEIVE:
                # Once it waits, it is of no use to look again before something has come.
                has_run = pc >= first or stage.index in part.inbox
                has_run = has_run and _receive(part, stage, effects)
            elif not _is_ready(part, step, track, states):
                has_run = False
            elif code >= SPECIAL:
                has_run = _run_special(part, step, effects)
            else:
                held[stage.index] = fn(*[held[id_] for id_ in _operands(step)])
                has_run = True
            if not has_run:
                blocked.append(pc)
    except (Exception, SystemExit) as error:
        assert step is not None
        raise TaskError(step[4], part.index) from error
    if frees:
        _free(part, [steps[pc - base] for pc in blocked])
    return len(waiting) + stop - first - len(blocked)


def _free(part: Partition, waiting: list[Step]) -> None:
    """Free what no step that waits reads or makes.

    A partition may have something that waits at all times, as when it is ahead of its neighbours.
    """
    kept: set[int] = set()
    for step in waiting:
        kept.add(step[4].index)
        kept.update(_operands(step))
    for id_ in part.frees:
        if id_ not in kept:
            part.values.pop(id_, None)
    part.frees = [id_ for id_ in part.frees if id_ in kept]


def _is_ready(part: Partition, step: Step, track: Track, states: set[int]) -> bool:
    """Whether all that a step reads is there, and no blocked step before it minds."""
    held, operands = part.values, step[2]
    if step[0] == ONE:
        if operands not in held:
            return False
    else:
        for id_ in operands:
            if id_ not in held:
                return False
    if not states:
        return True
    before = [track.steps[pc - track.base] for pc in part.blocked]
    return not any(
        _minds(step, earlier, id_) for id_ in _operands(step) if id_ in states for earlier in before
    )


def _minds(step: Step, earlier: Step, state: int) -> bool:
    """Whether a step may not be run before an earlier one, which uses the same state."""
    updates = stages.UPDATE in {step[4].kind, earlier[4].kind}
    return updates and state in _operands(earlier)


def _operands(step: Step) -> Iterable[int]:
    return (step[2],) if step[0] == ONE else step[2]


def _run_special(part: Partition, step: Step, effects: Effects) -> bool:
    """Run a step that is more than a function of values; False if it has to wait."""
    code, fn, operands, _, stage = step
    held = part.values
    if code == RECEIVE:
        return _receive(part, stage, effects)
    if code == steps_of.RELAY:
        return _relay(part, stage, effects)
    if code == SEND:
        effects.send(stage, part.index, _sent(part, stage))
    elif code == steps_of.SIGNAL:
        effects.tell(stage, fn(*[held[id_] for id_ in operands]))
    elif code == steps_of.STATE:
        held[stage.index] = fn(*[held[id_] for id_ in operands])
        part.states[stage.index] = None
    elif code == steps_of.RETURN:
        effects.give_back(stage, part.index, part.size, [held[id_] for id_ in operands])
    else:
        held[stage.index] = _loaded(part, step, effects)
    return True


def _loaded(part: Partition, step: Step, effects: Effects) -> Any:
    code, fn, _, _, stage = step
    if code == steps_of.LOAD:
        return fn(part.index)
    if code == steps_of.TABLE:
        return effects.read(fn, part.index, stage.size)
    return values.copied(fn)


def _load_again(part: Partition, replica: Replica, effects: Effects) -> None:
    for id_ in part.reload:
        step = replica.loads.get(id_)
        if step is None:
            continue  # the driver has dropped it: nothing from here on reads it
        try:
            part.values[id_] = _loaded(part, step, effects)
        except (Exception, SystemExit) as error:
            raise TaskError(step[4], part.index) from error
    part.reload.clear()


def _sent(part: Partition, stage: Stage) -> Any:
    operands = [part.values[id_] for id_ in stage.operands]
    if stage.kind == stages.SCATTER:
        sent: Any = scattered(stage, part.index, operands)
    else:
        sent = operands[0]
    # What is sent of a state is what it is now, not what it becomes before it arrives.
    return sent if part.states.keys().isdisjoint(stage.operands) else values.copied(sent)


def _relay(part: Partition, stage: Stage, effects: Effects) -> bool:
    """Send what a block of partitions has for a reduction, if this one is their relay."""
    if first_block(part.index, part.size)[0] != part.index:
        return True
    low, high = block_of(part.index, part.size)
    arrived = part.inbox.get(stage.index, _NO_PIECES)
    if sum([last - first for first, last in arrived]) < high - low:
        return False
    ((_, value),), _ = combine(stage.fn, arrived, low, high)
    part.inbox.pop(stage.index)
    effects.relay(stage, part.index, value)
    return True


def _receive(part: Partition, stage: Stage, effects: Effects) -> bool:
    """Make the value of a stage that sends, if all of it has arrived."""
    arrived = part.inbox.get(stage.index, _NO_PIECES)
    if stage.kind == stages.SCATTER:
        awaited = stage.size if stage.routes is None else stage.routes.awaited[part.index]
        if len(arrived) < awaited:
            part.awaited[stage.index] = awaited
            return False
    elif not arrived:
        return False
    if stage.kind == stages.BROADCAST:
        value = arrived[0]
        if is_relayed(part.size):
            effects.relay(stage, part.index, value)
    elif stage.kind == stages.SCATTER:
        part.awaited.pop(stage.index, None)
        value = [piece for _, piece in sorted_pieces(arrived) if piece is not values.NOTHING]
    else:
        if sum(high - low for low, high in arrived) < stage.size:
            return False
        ((_, value),), _ = combine(stage.fn, arrived, 0, stage.size)
    part.values[stage.index] = value
    part.inbox.pop(stage.index, None)  # a target of no source has none
    return True


def sorted_pieces(pieces: dict[int, Any]) -> list[tuple[int, Any]]:
    """Pieces in order of their sources."""
    return sorted(pieces.items(), key=lambda pair: pair[0])
