"""The controller: says which worker has which partitions, and nothing about tasks.

Its messages are a heartbeat at a fixed period, and the partition map when workers come, leave, die
or are unevenly busy. They do not grow with the number of tasks, stages or iterations.

    gathering ─▶ running ─▶ ended
        ▲          │ all workers are lost
        └──────────┘

A death begins an epoch: all workers continue from the last stage that is stored completely, or from
the start. A controller that takes another's place asks nobody: workers see by its greater `born`
that it is new, tell what snapshots they hold, and it begins an epoch from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, assert_never

from msgspec import Struct, field

from canary_core.machines.divergence_report import DivergenceReport
from canary_core.machines.links import Links
from canary_core.machines.partition import Key
from canary_core.machines.snapshot_placement import SnapshotPlacement
from canary_core.policy.balance import BALANCERS, PlannedMove, WorkerLoad
from canary_core.policy.placement import place, reassign, recopy
from canary_core.protocol.messages import (
    Advance,
    Begin,
    Body,
    Cancel,
    ControllerIn,
    Drain,
    End,
    Entry,
    Failed,
    Failure,
    Finished,
    Kept,
    Leaving,
    Left,
    MapChanged,
    Move,
    Outcome,
    Packet,
    Part,
    Progress,
    Ready,
    Rejoin,
    Replicate,
    Report,
    ResultPart,
    Returned,
    Rules,
    Suspect,
    TellTrail,
    Trail,
    WantGroup,
    WorkerLost,
    with_frames,
)
from canary_core.values import Frames
from machine_kit.addresses import Address, address, endpoint_of
from machine_kit.machine import Envelope, Machine, Tick
from machine_kit.peers import Peers
from machine_kit.ticks import Ticks

TICK_S = 0.05
BALANCE_REPORTS = 5  # reports of each worker between two looks at the balance
CUT_MARGIN = 4  # stages: a snapshot by time is at least so far ahead of all drivers
EPOCH_BITS = 20
CONFIRM_WAIT_S = 2.0  # for all copies of the driver to return, when one has
SINGLE_KEY: Key = (1, 0)


class Settings(Struct, frozen=True, kw_only=True):
    """How a program is run.

    Attributes:
        partitions: The default number of partitions.
        workers: The program starts when so many have come...
        wait_s: ...or with those that came within so long.
        patience_s: How long the controller waits for a first worker.
        balancer: A name in policy.balance.BALANCERS.
        report_s: The period of reports and heartbeats.
        silence_s: A worker that was silent for so long is given up; longer than any task.
        snapshot_every: Snapshots at multiples of this many stages.
        snapshot_s: Snapshots about every so many seconds.
        copies: How many workers hold each snapshot.
        preferred: The machines that have the data of a partition index.
    """

    partitions: int
    workers: int = 1
    wait_s: float = 5.0
    patience_s: float = 60.0
    balancer: str = "straggler"
    report_s: float = 0.1
    silence_s: float = 30.0
    snapshot_every: int | None = None
    snapshot_s: float | None = None
    copies: int = 2
    preferred: Mapping[int, Sequence[str]] = {}


class _Member(Struct, kw_only=True):
    """A worker of the current epoch."""

    host: str
    end: int = 0
    digest: int = 0
    signals: int = 0
    returned: int | None = None  # the digest with which its copy of the driver has returned
    has_partitions: bool = False
    reports: int = 0
    span_s: float = 0.0
    busy_s: dict[Key, float] = field(default_factory=dict)
    leaving: bool = False


class Controller(Machine[ControllerIn]):
    """The controller's state machine.

    Args:
        address: Its own address; its host is the machine "host" of the same process.
        settings: Of the program.
        born: Greater than that of an earlier controller with this address, below 2**42.
    """

    inputs: ClassVar[Any] = ControllerIn

    def __init__(self, address_: Address, settings: Settings, *, born: int = 0) -> None:
        self.address = address_
        self._settings = settings
        self._links = Links(address_, born)
        self._balance = BALANCERS[settings.balancer]
        self._members: dict[Address, _Member] = {}
        self._waiting: dict[Address, Ready] = {}  # workers that came before the start
        self._released: dict[Address, None] = {}  # that leave, and forward what still comes
        self._heard = Peers[Address]()  # members and those that leave
        self._ticks = Ticks(address_, TICK_S)
        self._running = False
        self._outcome: Outcome | None = None
        self._is_kept = False  # the host has it
        self._gathering_since = 0.0
        self._told_at = 0.0
        self._epoch = born << EPOCH_BITS  # greater than any of a predecessor
        self._placement = SnapshotPlacement()
        self._complete = 0
        self._kept = 0  # workers may drop the snapshots of stages before
        self._cuts: tuple[int, ...] = ()
        self._cut_ahead = 2
        self._end_before = 0
        self._cut_at = 0.0
        self._rows: dict[Key, Entry] = {}
        self._positions: dict[Key, int] = {}
        self._seen_at: dict[Key, Address] = {}  # who reported a partition last
        self._results: dict[Key, tuple[ResultPart, Frames]] = {}
        # The complete result, with when it was; it is not told before all copies have returned.
        self._ready: tuple[Outcome, float] | None = None
        self._divergence = DivergenceReport()
        self._moves = 0
        self._tasks = 0

    def on_message(self, msg: ControllerIn, now: float) -> list[Envelope]:
        """Take a message."""
        out = self._take(msg, now)
        return out + self._links.flush(now)

    def _take(self, msg: ControllerIn, now: float) -> list[Envelope]:
        match msg:
            case Packet():
                return self._on_packet(msg, now)
            case Tick():
                return self._on_tick(msg, now)
            case WorkerLost():
                self._lose(msg.worker, now)
            case Drain():
                self._drain(msg.worker)
            case Move():
                self._move([PlannedMove((msg.size, msg.index), msg.to)])
            case Cancel():
                return self._fail("ProgramCancelled", "the program was cancelled")
            case Kept():
                self._end_workers()
            case _:
                assert_never(msg)
        return []

    def check(self) -> None:
        """Assert the invariants."""
        if self._running and self._outcome is None:
            assert self._members
            assert all(row.worker in self._members for row in self._rows.values())
            sizes = {size for size, _ in self._rows}
            assert len(self._rows) == sum(sizes)
            assert self._positions.keys() == self._rows.keys()
            assert {*self._heard} == self._members.keys() | self._released.keys()

    def gauges(self) -> dict[str, float]:
        """Sizes of internal tables."""
        return {"workers": len(self._members), "partitions": len(self._rows)}

    # --- messages ------------------------------------------------------------------------------

    def _on_packet(self, packet: Packet, now: float) -> list[Envelope]:
        ready, out = self._links.receive(packet, now)
        restarted, self._links.restarted = self._links.restarted, []
        for worker in restarted:
            self._waiting.pop(worker, None)
            self._lose(worker, now)
        if packet.sender in self._heard:
            self._heard.heard(packet.sender, now)
        for each_packet in ready:
            for body, frames in with_frames(each_packet):
                out += self._on_body(each_packet, body, frames, now)
        return out

    def _on_body(self, packet: Packet, body: Body, frames: Frames, now: float) -> list[Envelope]:
        sender = packet.sender
        if self._outcome is not None:
            if isinstance(body, Ready):
                self._waiting[sender] = body
                if self._is_kept:
                    self._links.post(sender, End(self._outcome.failure))
            return []
        if isinstance(body, Ready):
            self._on_ready(body, now)
            return []
        if sender not in self._members and sender not in self._released:
            if isinstance(body, Report) and self._running:
                self._links.post(sender, Rejoin(packet.born))
            return []
        if packet.epoch != self._epoch:
            return []
        match body:
            case Report():
                self._on_report(sender, body)
            case WantGroup():
                self._on_want_group(body.size)
            case Failed():
                return self._finish(Outcome(body.failure))
            case Suspect():
                self._on_suspect(now)
            case Trail():
                self._divergence.answer(sender, body)
                return self._report_divergence(now)
            case ResultPart():
                return self._on_result_part(body, frames, now)
            case Returned():
                if sender in self._members:
                    self._members[sender].returned = body.digest
                return self._confirm(now)
            case Leaving():
                self._drain(sender)
            case Left():
                if sender in self._released:
                    del self._released[sender]
                    self._heard.forget(sender)
            case _:
                raise AssertionError(f"{type(body).__name__} is not for the controller")
        return []

    def _on_tick(self, tick: Tick, now: float) -> list[Envelope]:
        settings = self._settings
        if not self._ticks.is_due(tick.generation, now):
            return []
        if tick.generation == 0:
            self._gathering_since = self._told_at = self._cut_at = now
        out = [self._ticks.next(), *self._links.tick(now)]
        if self._outcome is not None:
            return out
        if not self._running:
            waited_s = now - self._gathering_since
            if self._waiting and waited_s >= settings.wait_s:
                self._start(now)
            elif waited_s >= settings.patience_s:
                text = f"no worker has come within {settings.patience_s:g} s"
                out += self._fail("WorkersLost", text)
            return out
        self._heard.forgive(self._ticks.stall_s, now)
        for worker in self._heard.silent(now, settings.silence_s):
            self._lose(worker, now)
        out += self._report_divergence(now)
        if self._members and now - self._told_at >= settings.report_s:
            self._told_at = now
            self._release_leavers(now)
            self._plan_cut(now)
            out.append(self._tell_all(*self._witness()))
        return [*out, *self._confirm(now)]

    # --- members -------------------------------------------------------------------------------

    def _on_ready(self, ready: Ready, now: float) -> None:
        if ready.worker in self._members:
            return  # it repeats itself
        if self._running:
            self._join(ready, now)
            return
        self._waiting[ready.worker] = ready
        self._placement.note(ready.worker, ready.held, ready.groups)
        if len(self._waiting) >= self._settings.workers:
            self._start(now)

    def _start(self, now: float) -> None:
        waiting, self._waiting = self._waiting, {}
        self._running = True
        for worker, ready in waiting.items():
            self._members[worker] = _Member(host=ready.host)
            self._heard.heard(worker, now)
        self._begin_epoch()

    def _join(self, ready: Ready, now: float) -> None:
        """A worker comes while the program runs: it gets partitions when the balance says so."""
        if ready.epoch > self._epoch:
            return  # it knows a controller that has taken our place
        self._members[ready.worker] = _Member(host=ready.host)
        self._heard.heard(ready.worker, now)
        self._released.pop(ready.worker, None)
        self._links.post(ready.worker, self._begin(0, self._floor, self._cuts, joining=True))
        self._announce_members([worker for worker in self._members if worker != ready.worker])
        self._replicate()

    def _announce_members(self, to: Sequence[Address]) -> None:
        members, hosts = self._roll()
        for worker in to:
            self._links.post(worker, MapChanged((), (), members, hosts))

    def _roll(self) -> tuple[tuple[Address, ...], tuple[str, ...]]:
        return tuple(self._members), tuple([member.host for member in self._members.values()])

    def _lose(self, worker: Address, now: float) -> None:
        """A worker is dead, or silent, or has restarted: its partitions continue elsewhere."""
        self._waiting.pop(worker, None)
        self._placement.lose(worker)
        # One that leaves counts until it is through: it may have had something to forward.
        counted = worker in self._members or worker in self._released
        self._members.pop(worker, None)
        self._released.pop(worker, None)
        self._heard.forget(worker)
        if not counted or self._outcome is not None:
            return
        if self._members:
            self._begin_epoch()
        else:
            self._running = False
            self._gathering_since = now

    # --- epochs --------------------------------------------------------------------------------

    def _begin_epoch(self) -> None:
        """Continue from the last stage that is stored completely, with the members of now."""
        self._epoch += 1
        self._links.begin(self._epoch, lambda _: True)
        stage = self._placement.latest(1)
        stored = self._placement.groups(stage)
        sizes = sorted({1, self._settings.partitions, *stored})
        owners = {key: row.worker for key, row in self._rows.items() if key[0] in sizes}
        for size in sizes:
            if (size, 0) not in owners:
                owners.update(self._placed(size))
        owners |= reassign(owners, self._stayers())
        self._rows = {
            key: Entry(*key, worker, 1, self._placement.holder(stage, key, worker))
            for key, worker in sorted(owners.items())
        }
        self._placement.retain(0, stage)
        # Older snapshots stay until this one has its copies, which the next death may prevent.
        self._complete, self._kept = stage, min(self._kept, stage)
        self._cuts = ()
        self._positions = dict.fromkeys(self._rows, stage)
        self._seen_at = {}
        self._results, self._ready = {}, None
        self._divergence.drop()
        for member in self._members.values():
            member.end, member.digest, member.has_partitions = 0, 0, False
            member.returned = None
            member.busy_s, member.reports, member.span_s = {}, 0, 0.0
        begin = self._begin(stage, stage, (), joining=False)
        for worker in self._members:
            self._links.post(worker, begin)
        self._replicate()
        for worker in self._released:  # all that they had to forward is of an earlier epoch
            self._links.post(worker, End(None))
            self._heard.forget(worker)
        self._released = {}

    def _replicate(self) -> None:
        """Have the last snapshot copied, if too few hold it: the next death must not cost it."""
        holders = self._placement.holders(self._complete)
        for key, row in self._rows.items():
            if row.holder and key in holders:  # it is on its way to its worker, who keeps it too
                holders[key] = tuple(dict.fromkeys((*holders[key], row.worker)))
        hosts = {worker: self._members[worker].host for worker in self._stayers()}
        for (holder, to), keys in recopy(holders, hosts, self._settings.copies).items():
            self._links.post(holder, Replicate(self._complete, tuple(keys), to))

    def _begin(self, stage: int, floor: int, cuts: tuple[int, ...], *, joining: bool) -> Begin:
        settings = self._settings
        members, hosts = self._roll()
        rules = Rules(
            settings.partitions,
            settings.snapshot_every or 0,
            settings.copies,
            settings.report_s,
            settings.silence_s,
        )
        return Begin(
            rules=rules,
            stage=stage,
            floor=floor,
            entries=tuple(self._rows.values()),
            members=members,
            hosts=hosts,
            cuts=cuts,
            joining=joining,
        )

    def _placed(self, size: int) -> dict[Key, Address]:
        hosts = {worker: member.host for worker, member in self._members.items()}
        preferred = self._settings.preferred if size == self._settings.partitions else {}
        workers = place(size, self._stayers(), hosts, preferred)
        return {(size, index): worker for index, worker in enumerate(workers)}

    def _stayers(self) -> list[Address]:
        stayers = [worker for worker, member in self._members.items() if not member.leaving]
        return stayers or list(self._members)

    def _on_want_group(self, size: int) -> None:
        if (size, 0) in self._rows:
            return
        created = tuple([Entry(*key, worker, 1) for key, worker in self._placed(size).items()])
        for row in created:
            self._rows[row.size, row.index] = row
            self._positions[row.size, row.index] = self._floor
        for worker in self._members:
            self._links.post(worker, MapChanged(created, ()))

    # --- reports, and what follows from them ---------------------------------------------------

    def _on_report(self, sender: Address, report: Report) -> None:
        member = self._members.get(sender)
        if member is None:
            return  # it is leaving, and has nothing left that counts
        member.end, member.digest, member.signals = report.end, report.digest, report.signals
        member.has_partitions = bool(report.loads)
        member.reports += 1
        member.span_s += report.span_s
        self._tasks += report.tasks
        for load in report.loads:
            key = (load.size, load.index)
            if key in self._positions:
                self._positions[key] = max(self._positions[key], load.position)
                self._seen_at[key] = sender
                member.busy_s[key] = member.busy_s.get(key, 0.0) + load.busy_s
        self._placement.note(sender, report.held, report.groups)
        if report.held:
            complete = self._placement.latest(min(self._settings.copies, len(self._members)))
            if complete > self._kept:
                self._complete, self._kept = max(complete, self._complete), complete
                self._placement.retain(complete)
        if all(member.reports >= BALANCE_REPORTS for member in self._members.values()):
            self._rebalance()

    @property
    def _floor(self) -> int:
        """All partitions have run the stages before it, as far as is known."""
        return min(self._positions.values(), default=0)

    def _rebalance(self) -> None:
        loads = []
        for worker, member in self._members.items():
            here = {
                k: member.busy_s.get(k, 0.0) for k, r in self._rows.items() if r.worker == worker
            }
            if not member.leaving:
                loads.append(WorkerLoad(worker, here, member.span_s))
            member.busy_s, member.reports, member.span_s = {}, 0, 0.0
        self._move(self._balance(loads))

    def _move(self, moves: Sequence[PlannedMove]) -> None:
        """Change the map: whoever has a partition that is another's by the map sends it there."""
        moved = []
        for move in moves:
            row = self._rows.get(move.key)
            if row is not None and row.worker != move.to and move.to in self._members:
                self._rows[move.key] = Entry(*move.key, move.to, row.version + 1)
                moved.append(self._rows[move.key])
        self._moves += len(moved)
        if moved:
            for worker in self._members:
                self._links.post(worker, MapChanged((), tuple(moved)))

    def _witness(self) -> tuple[int, int]:
        """How many stages some copy of the driver has recorded, and their digest."""
        ends = [m for m in self._members.values() if m.has_partitions and m.end]
        witness = min(ends, key=lambda member: member.end, default=None)
        return (witness.end, witness.digest) if witness else (0, 0)

    def _tell_all(self, witness: int, digest: int) -> Envelope:
        """The heartbeat to workers; returns that to the host."""
        body = Advance(
            floor=self._floor,
            witness=witness,
            digest=digest,
            complete=self._kept,
            cuts=self._cuts,
        )
        for worker in (*self._members, *self._released):
            self._links.post(worker, body)
        progress = Progress(
            stage=self._floor,
            iterations=max(member.signals for member in self._members.values()),
            workers=len(self._members),
            epoch=self._epoch & ((1 << EPOCH_BITS) - 1),
            snapshot=self._complete,
            moves=self._moves,
            tasks=self._tasks,
        )
        return Envelope(self._host_address, progress)

    def _plan_cut(self, now: float) -> None:
        """Choose the stage of a snapshot by time: one that no partition has passed, with luck.

        Workers learn of it when they may have passed it: drivers go on meanwhile, about as far as
        between the last two looks. Then the stage never becomes complete, which the floor tells,
        and the next try looks further ahead.
        """
        if self._settings.snapshot_s is None:
            return
        end = max((member.end for member in self._members.values()), default=0)
        pace, self._end_before = max(0, end - self._end_before), end
        if self._cuts and self._complete >= self._cuts[0]:
            self._cuts, self._cut_ahead = (), max(2, self._cut_ahead // 2)
        elif self._cuts and self._floor > self._cuts[0] + pace + CUT_MARGIN:
            self._cuts, self._cut_ahead = (), 2 * self._cut_ahead
            self._cut_at = now - self._settings.snapshot_s
        if not self._cuts and now - self._cut_at >= self._settings.snapshot_s:
            self._cut_at = now
            self._cuts = (end + CUT_MARGIN + self._cut_ahead * pace,)

    # --- workers that leave --------------------------------------------------------------------

    def _drain(self, worker: Address) -> None:
        """Take a worker's partitions; it is released when it has given all of them away."""
        member = self._members.get(worker)
        if member is None:
            return
        member.leaving = True
        self._evacuate()

    def _evacuate(self) -> None:
        stayers = [worker for worker, member in self._members.items() if not member.leaving]
        if stayers:
            owners = {key: row.worker for key, row in self._rows.items()}
            self._move([PlannedMove(k, to) for k, to in reassign(owners, stayers).items()])

    def _release_leavers(self, now: float) -> None:
        for worker in [leaver for leaver, member in self._members.items() if member.leaving]:
            self._evacuate()
            if self._can_go(worker):
                everyone = list(self._members)
                del self._members[worker]
                self._placement.lose(worker)
                self._released[worker] = None
                self._heard.heard(worker, now)
                self._announce_members(everyone)
                self._replicate()

    def _can_go(self, worker: Address) -> bool:
        """Whether a worker's partitions are known to be elsewhere, and the snapshot as well."""
        if any(row.worker == worker for row in self._rows.values()):
            return False
        if any(self._seen_at.get(key) in {worker, None} for key in self._rows):
            return False
        return self._placement.latest(1, {worker}) >= self._complete

    # --- results and divergence ----------------------------------------------------------------

    def _on_result_part(self, body: ResultPart, frames: Frames, now: float) -> list[Envelope]:
        self._results[body.size, body.index] = (body, frames)
        single = self._results.get(SINGLE_KEY)
        if single is None:
            return []
        if any(part.digest != single[0].digest for part, _ in self._results.values()):
            self._on_suspect(now)
            return []
        groups = sorted(single[0].groups)
        keys = [(size, index) for size in groups for index in range(size)]
        if self._ready is None and all(key in self._results for key in keys):
            parts = tuple([Part(*key, self._results[key][1]) for key in keys])
            outcome = Outcome(None, single[0].tree, single[0].handles, parts)
            self._ready = outcome, now
            told = self._tell_all(single[0].stage + 1, single[0].digest)
            return [told, *self._confirm(now)]
        return []

    def _confirm(self, now: float) -> list[Envelope]:
        """Tell the result, if the copies of the driver agree with the one that it is of.

        Where stages are of singles only, no message between workers would tell. A copy whose driver
        takes much longer than the others is not waited for.
        """
        if self._ready is None or self._outcome is not None:
            return []
        outcome, since = self._ready
        digest = self._results[SINGLE_KEY][0].digest
        busy = {row.worker for row in self._rows.values()}
        awaited = [m for worker, m in self._members.items() if worker in busy and not m.leaving]
        if any(member.returned not in {None, digest} for member in awaited):
            self._on_suspect(now)
            return []
        is_late = now - since > CONFIRM_WAIT_S and not self._divergence.is_open
        if is_late or all(member.returned is not None for member in awaited):
            return self._finish(outcome)
        return []

    def _on_suspect(self, now: float) -> None:
        """Copies of the driver differ: ask all for their stages, to name the first that does."""
        if self._divergence.open(now):
            for worker in self._members:
                self._links.post(worker, TellTrail())

    def _report_divergence(self, now: float) -> list[Envelope]:
        if self._divergence.is_answered(self._members, now):
            failure = self._divergence.close()
            if failure is not None:
                return self._finish(Outcome(failure))
        return []

    # --- the end -------------------------------------------------------------------------------

    def _fail(self, error: str, message: str) -> list[Envelope]:
        if self._outcome is not None:
            return []
        return self._finish(Outcome(Failure(error=error, message=message)))

    def _finish(self, outcome: Outcome) -> list[Envelope]:
        """Tell the host. Workers end when it has the outcome: until then a successor needs them."""
        self._outcome = outcome
        return [Envelope(self._host_address, Finished(outcome))]

    def _end_workers(self) -> None:
        assert self._outcome is not None
        self._is_kept = True
        for worker in (*self._members, *self._waiting, *self._released):
            self._links.post(worker, End(self._outcome.failure))

    @property
    def _host_address(self) -> Address:
        return address(endpoint_of(self.address), "host")
