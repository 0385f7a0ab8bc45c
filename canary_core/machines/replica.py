"""A worker's copy of the driver, and the steps that it makes for each group of partitions.

The driver runs in a greenlet of its own: a call of `run` appends a stage, and where it has come far
enough ahead of the partitions, or needs a signal that is not known yet, the greenlet is switched
away from until `advance` resumes it. A driver is never restored: after a rollback, or at a worker
that joins late, a fresh copy runs from its start with the signals that are known, and its stages
before `retain_from` leave no steps. Rollback, migration and joining are this one mechanism.

A stage becomes a step of the group that runs it, and if it sends, a second step of the group that
receives; a reduction of many partitions has a third one between them, in which relays combine what
they are sent. Steps are numbered for each group; the numbers are the same in all copies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from canary_core import stages, values
from canary_core.driver import Driver, Run, Value
from canary_core.errors import InvalidCall
from canary_core.stages import SCALARS, Digester, Routes, Stage
from canary_core.tree import is_relayed

# How a step runs. Those below SPECIAL call a function of one, two or any number of values.
ONE, TWO, MANY, SPECIAL = 0, 1, 2, 3
LOAD, TABLE, SINGLE, STATE, SIGNAL, SEND, RELAY, RECEIVE, RETURN = range(SPECIAL, SPECIAL + 9)
_CODES = {
    stages.LOAD: LOAD,
    stages.TABLE: TABLE,
    stages.SINGLE: SINGLE,
    stages.STATE: STATE,
    stages.SIGNAL: SIGNAL,
    stages.BROADCAST: SEND,
    stages.REDUCE: SEND,
    stages.SCATTER: SEND,
}
# (code, function, operands (the only one itself, for ONE), values to free before, stage)
Step = tuple[int, Any, Any, tuple[int, ...], Stage]


class Track:
    """The steps of a group; those before `base` are over everywhere, and gone."""

    __slots__ = ("base", "end", "frees", "steps")

    def __init__(self) -> None:
        self.base = 0
        self.end = 0  # base + len(steps), kept as a number: it is read for each task of a round
        self.steps: list[Step] = []
        self.frees: list[int] = []  # values that the next step frees

    def at(self, number: int) -> Step:
        """A step by its number."""
        return self.steps[number - self.base]


class Replica:
    """A copy of the driver; its recorder.

    Attributes:
        end: How many stages it has recorded.
        tracks: The steps, by size of the group.
        cuts: Stages at which partitions are to be stored: where that is in each group's steps.
        signals: Known values of signals, by stage; shared with the worker.
        waiting: The signal that it waits for, or -1.
        returned: It has ended.
        failure: It has raised this.
    """

    def __init__(
        self,
        driver: Driver,
        partitions: int,
        signals: dict[int, Any],
        retain_from: int,
        cut_every: int | None,
    ) -> None:
        self.end = 0
        self.tracks: dict[int, Track] = {1: Track()}
        self.cuts: dict[int, dict[int, int]] = {}
        self.signals = signals
        self.states: set[int] = set()
        self.loads: dict[int, Step] = {}
        self.waiting = -1
        self.returned = False
        self.failure: BaseException | None = None
        self._retain_from = retain_from
        self._cut_every = cut_every
        self._due: set[int] = set()
        self._released: deque[tuple[int, int]] = deque()  # loads, with the stage that freed them
        self._next_cut = -1
        self._plan_cut(0)
        self._limit = 0
        self._closed = False
        self._digester = Digester()
        self._stages: list[Stage] = []
        self._base = 0  # the stage of the first of these
        self._greenlet = greenlet(self._run)
        self._driver = driver
        self._partitions = partitions

    # --- what the worker asks ------------------------------------------------------------------

    def advance(self, limit: int) -> bool:
        """Resume the driver until it has recorded `limit` stages; whether it could do anything."""
        if self.returned or self.failure is not None or self.end >= limit:
            return False
        if self.waiting >= 0 and self.waiting not in self.signals:
            return False
        self._limit = limit
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()
        return True

    def close(self) -> None:
        """Throw the driver away, wherever it is."""
        self._closed = True
        if self._greenlet and not self._greenlet.dead:
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(GreenletExit)

    def prune(self, floor: int) -> None:
        """Forget stages that are over everywhere."""
        self._retain_from = max(self._retain_from, floor)
        for track in self.tracks.values():
            over = 0
            for step in track.steps:
                if step[4].index >= floor:
                    break
                over += 1
            del track.steps[:over]
            track.base += over
        # One more stays, to be compared: another copy may have ended there.
        over = max(0, min(floor - 1, self.end) - self._base)
        del self._stages[:over]
        self._base += over
        for stage in [stage for stage in self.cuts if stage < floor]:
            del self.cuts[stage]
        while self._released and self._released[0][0] < floor:
            del self.loads[self._released.popleft()[1]]

    def demand_cut(self, stage: int) -> None:
        """Partitions are to be stored at this stage, unless the driver has passed it."""
        if stage >= self.end:
            self._due.add(stage)
            self._plan_cut(self.end)

    def digest_at(self, end: int) -> int | None:
        """The digest of the first `end` stages; None if it is not known (any more)."""
        place = end - 1 - self._base
        return self._stages[place].digest if 0 <= place < len(self._stages) else None

    def digest_of(self, stage: int) -> int | None:
        """The digest of the stages up to this one."""
        return self.digest_at(stage + 1)

    def stage_at(self, index: int) -> Stage:
        """A stage that is not over yet."""
        return self._stages[index - self._base]

    @property
    def digest(self) -> int:
        """The digest of all stages so far."""
        return self._digester.digest

    def trail(self, most: int) -> list[tuple[int, int, str]]:
        """The first and last stages of those that are known: index, digest and call."""
        stages, half = self._stages, most // 2
        chosen = stages if len(stages) <= most else stages[:half] + stages[-half:]
        return [(stage.index, stage.digest, stage.call) for stage in chosen]

    # --- what the driver calls, in its greenlet ------------------------------------------------

    def record(
        self,
        kind: int,
        fn: Any,
        operands: tuple[int, ...],
        size: int,
        target: int,
        routes: Routes | None = None,
    ) -> int:
        index = self.end
        if index >= self._limit or self._closed:
            index = self._next()
        stage = Stage(
            index=index,
            kind=kind,
            fn=fn,
            operands=operands,
            size=size,
            target=target,
            routes=routes,
        )
        if kind == stages.SINGLE:
            self._digester.fold_constant(stage, values.content(fn))
        else:
            self._digester.fold(stage)
        self._append(stage)
        if kind <= stages.UPDATE:  # or MAP
            count = len(operands)
            if count == 1:
                self._step(size, ONE, operands[0], stage)
            else:
                self._step(size, TWO if count == 2 else MANY, operands, stage)
            return index
        self._step(size, _CODES[kind], operands, stage)
        if kind in {stages.BROADCAST, stages.REDUCE, stages.SCATTER}:
            if kind == stages.REDUCE and is_relayed(size):
                self._step(size, RELAY, (), stage)
            self._step(target, RECEIVE, (), stage)
        elif kind == stages.STATE:
            self.states.add(index)
        elif kind in {stages.LOAD, stages.TABLE}:
            self.loads[index] = (_CODES[kind], fn, operands, (), stage)
        return index

    def decide(self, fn: Callable[..., Any], operands: tuple[int, ...]) -> Any:
        index = self.record(stages.SIGNAL, fn, operands, 1, 1)
        while index not in self.signals:
            self.waiting = index
            self._pause()
        self.waiting = -1
        value = self.signals[index]
        return value if isinstance(value, SCALARS) else values.copied(value)

    def release(self, value: int, size: int) -> None:
        if not self._closed:
            self.tracks[size].frees.append(value)
            if value in self.loads:
                self._released.append((self.end, value))

    def _next(self) -> int:
        while self.end >= self._limit:
            self._pause()
        if self._closed:
            raise InvalidCall("the program is over; nothing can be called on this run")
        return self.end

    def _pause(self) -> None:
        if self._closed:
            raise GreenletExit
        self._greenlet.parent.switch()

    def _append(self, stage: Stage) -> None:
        index = stage.index
        if index == self._next_cut:
            self._cut(index)
        if index >= self._retain_from - 1:
            self._stages.append(stage)
        else:
            self._base = index + 1
        self.end = index + 1

    def _cut(self, index: int) -> None:
        self._due.discard(index)
        self.cuts[index] = {size: track.end for size, track in self.tracks.items()}
        self._plan_cut(index + 1)

    def _plan_cut(self, first: int) -> None:
        """Find the next stage from `first` on at which partitions are to be stored."""
        due = [stage for stage in self._due if stage >= first]
        if self._cut_every:
            due.append(max(1, -(-first // self._cut_every)) * self._cut_every)
        self._next_cut = min(due, default=-1)

    def _step(self, size: int, code: int, operands: Any, stage: Stage) -> None:
        track = self.tracks.get(size)
        if track is None:
            track = self.tracks[size] = Track()
        frees: tuple[int, ...] = ()
        if track.frees:
            frees = tuple(track.frees)
            track.frees.clear()
        if stage.index >= self._retain_from:
            track.steps.append((code, stage.fn, operands, frees, stage))
        else:
            track.base += 1
        track.end += 1

    def _run(self) -> None:
        try:
            self._return(self._driver(Run(self, self._partitions)))
        except GreenletExit:
            return
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the driver is the user's
            self.failure = error

    def _return(self, tree: Any) -> None:
        body, handles = values.dump_tree(tree, lambda item: isinstance(item, Value))
        for handle in handles:
            if handle._recorder is not self:  # noqa: SLF001 - its own handles
                raise InvalidCall(f"the driver returned {handle!r} of another run")
        # All groups end with it, so the program is not over before all of its tasks have run.
        ids: dict[int, list[int]] = {size: [] for size in self.tracks}
        places: list[tuple[int, int]] = []
        for handle in handles:
            group = ids[handle.partitions]
            places.append((handle.partitions, len(group)))
            group.append(handle._id)  # noqa: SLF001 - its own handles
        index = self._next()
        stage = Stage(
            index=index,
            kind=stages.RETURN,
            fn=(body, tuple(places), tuple(ids)),
            operands=(),
            size=1,
            target=1,
        )
        told = values.content(tree, lambda item: isinstance(item, Value))
        self._digester.fold_constant(stage, told + repr(ids).encode())
        self._append(stage)
        for size, group in ids.items():
            self._step(size, RETURN, tuple(group), stage)
        self.returned = True
