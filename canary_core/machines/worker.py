"""A worker: runs the program's stages on the partitions that it has.

One `Work` message is one round of some passes: each partition that may have something to do runs
what is ready, then the driver goes on until it is WINDOW stages ahead of the slowest partition
here. So a task costs no message, no queue entry and no clock read; data for other workers leave at
the end of the round, one message for each stage and peer. A round ends early if somebody waits for
these data; as long as all others are busy, more data gather for the same message.

The controller is not asked for anything while a program runs. It may change the partition map (a
partition that is another's by the map is sent there, with all that is its own), tell which stages
are over everywhere (their records go), and begin a new epoch (all is dropped but snapshots, and
partitions continue from these).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, assert_never

from msgspec import structs

from canary_core import stages, values
from canary_core.driver import Driver, Source
from canary_core.machines import snapshot_store as snapshots
from canary_core.machines.digest_check import DigestCheck
from canary_core.machines.exchange import Exchange, Reductions
from canary_core.machines.links import Links
from canary_core.machines.meter import Meter
from canary_core.machines.moving import packed, unpacked
from canary_core.machines.partition import Key, PackError, Partition, TaskError, drain, has_more
from canary_core.machines.replica import Replica
from canary_core.machines.signals import Signals
from canary_core.machines.snapshot_store import by_group
from canary_core.machines.snapshotter import Snapshotter, plan_cuts
from canary_core.protocol.messages import (
    Advance,
    AskSignals,
    Begin,
    Body,
    Call,
    End,
    Ended,
    Entry,
    Failed,
    Failure,
    Farewell,
    Keep,
    Leave,
    Leaving,
    Left,
    MapChanged,
    Moved,
    Packet,
    Pieces,
    Ready,
    Rejoin,
    Replicate,
    ResultPart,
    Returned,
    SignalsKnown,
    Suspect,
    TellTrail,
    Trail,
    WantGroup,
    Work,
    WorkerIn,
    with_frames,
)
from canary_core.results import driver_failure, pack_failure, task_failure
from canary_core.sequential import no_tables
from canary_core.stages import UNTOLD, Stage
from canary_core.tree import Node, above, below, block_of, is_relayed
from canary_core.values import NOTHING, Frames
from machine_kit.addresses import Address, address, endpoint_of
from machine_kit.machine import Envelope, Machine, Tick
from machine_kit.peers import Peers
from machine_kit.ticks import Ticks

WINDOW = 16  # stages that the driver is ahead of the slowest partition here
SPREAD = 20_000  # ... and of the slowest anywhere, by the controller's last word
SLICE_S = 0.005  # a round ends after about so long, so that messages are looked at
PROMPT_S = 1e-4  # ... or after so long if other workers wait for data
PASSES_MAX = 4  # over the partitions in a round, if they give each other something to do
BATCH_MAX = 1024  # tasks of a partition between two looks at the clock
TICK_S = 0.05
ANNOUNCE_TICKS = 20
ANSWER_S = 60.0  # a worker that has never heard of a controller ends after so long
EARLY_MAX = 1 << 16  # packets; links bound them sooner, but for duplicates
TRAIL_MAX = 4096
IN_FLIGHT_MAX_BYTES = 1 << 28  # no more tasks are run while so much is not acknowledged
SINGLE_KEY: Key = (1, 0)


class _Pause(enum.Enum):
    """Why a round ends."""

    NONE = 0  # it goes on
    OVER = 1  # its time is over, or somebody waits for its data
    MAIL = 2  # messages have come; its data leave after the round that goes on when they are read


class Neighbours(Protocol):
    """What a worker may know of the others without a message; it decides on speed alone."""

    def await_data(self, worker: Address) -> bool:
        """Whether a worker waits for messages, or may."""
        ...

    def have_written(self) -> bool:
        """Whether messages of other workers are there."""
        ...


class _Unseen:
    """Nothing is known: whoever has data for others sends them."""

    def await_data(self, worker: Address) -> bool:
        del worker
        return True

    def have_written(self) -> bool:
        return False


class Worker(Machine[WorkerIn]):
    """A worker's state machine.

    Args:
        address: Its own address; its host is the machine "host" of the same process.
        controller: The controller's address.
        driver: The program.
        source: Reads partitions of tables.
        clock: For load reports: seconds, of any origin.
        host: The name of the machine; copies of snapshots go to other ones.
        born: Greater than that of an earlier worker with this address.
        neighbours: What is known of other workers without a message.
    """

    inputs: ClassVar[Any] = WorkerIn

    def __init__(
        self,
        address_: Address,
        controller: Address,
        driver: Driver,
        *,
        source: Source | None = None,
        clock: Callable[[], float],
        host: str = "",
        born: int = 0,
        neighbours: Neighbours | None = None,
    ) -> None:
        self.address = address_
        self.meter = Meter()
        self.stages = self.iterations = 0  # known at the end: stages recorded, signals seen
        self._controller = controller
        self._driver = driver
        self._source = source or no_tables
        self._clock = clock
        self._host = host
        self._born = born
        self._neighbours = neighbours or _Unseen()
        self._links = Links(self.address, self._born)
        self._snapshotter = Snapshotter(self._links)
        self._epoch = 0
        self._heard = Peers[Address]()  # the controller
        self._ticks = Ticks(address_, TICK_S)
        self._working = False  # a Work message is on its way
        self._ended = False
        self._early: list[Packet] = []
        self._begin: Begin | None = None
        self._forget()

    def _forget(self) -> None:
        """Drop all that an epoch has made."""
        self._exchange = Exchange(self.address, self._links)
        self._reductions = Reductions()
        self._must_look_at_leaves = False  # the neighbour that some wait for has gone
        self._counts: dict[int, int] = {}  # partitions here, by size of their group
        self._signals = Signals(self.address, self._links)
        self._members: tuple[Address, ...] = ()
        self._floor = 0
        self._replica: Replica | None = None
        self._digest_check = DigestCheck()
        self._wanted: set[int] = set()
        self._farewells: dict[Address, None] = {}
        self._said_left = False
        self._cuts_known = 0
        self._failed = False
        self.meter.restart()

    def on_message(self, msg: WorkerIn, now: float) -> list[Envelope]:
        """Take a message; Work runs tasks."""
        if self._ended and not isinstance(msg, Packet):
            return self._tick_after_end(msg, now) if isinstance(msg, Tick) else []
        try:
            out = self._take(msg, now)
        except PackError as error:
            self._fail(pack_failure(error.stage, error.index, error.__cause__ or error))
            out = []
        out += self._links.flush(now)
        if not self._working and self._has_work():
            self._working = True
            out.append(Envelope(self.address, Work()))
        return out

    def _take(self, msg: WorkerIn, now: float) -> list[Envelope]:
        match msg:
            case Work():
                self._working = False
                self._work()
            case Packet():
                return self._on_packet(msg, now)
            case Tick():
                return self._on_tick(msg, now)
            case Leave():
                self._links.post(self._controller, Leaving())
            case _:
                assert_never(msg)
        return []

    def check(self) -> None:
        """Assert the invariants."""
        counts: dict[int, int] = {}
        for key, part in self._exchange.parts.items():
            assert part.key == key
            counts[key[0]] = counts.get(key[0], 0) + 1
            assert part.pc >= 0
            assert part.blocked == sorted(part.blocked)
            assert part.blocked or not part.frees
        assert counts == {size: count for size, count in self._counts.items() if count}

    def gauges(self) -> dict[str, float]:
        """Sizes of internal tables."""
        return {
            "partitions": len(self._exchange.parts),
            "snapshot_bytes": self._snapshotter.held.nbytes,
            "bytes_in_flight": self._links.bytes_in_flight,
        }

    # --- running tasks -------------------------------------------------------------------------

    def _has_work(self) -> bool:
        replica = self._replica
        if replica is None or self._failed or self._ended:
            return False
        if self._links.bytes_in_flight > IN_FLIGHT_MAX_BYTES:
            return False  # the next acknowledgement comes by a message
        if self._exchange.runnable or self._must_look_at_leaves:
            return True
        return self._limit(replica) > replica.end

    def _limit(self, replica: Replica) -> int:
        """How many stages the driver may have recorded; 0 if it has to wait."""
        if not self._exchange.parts or replica.returned or replica.failure is not None:
            return 0
        if replica.waiting >= 0 and replica.waiting not in self._signals.values:
            return 0
        parts = self._exchange.parts.values()
        slowest = min([part.first_unrun(replica) for part in parts])
        # One that came from a worker whose driver was further ahead needs ours to be as far.
        needed = max([part.known for part in parts])
        return min(max(slowest + WINDOW, needed), self._floor + SPREAD)

    def _work(self) -> None:
        replica = self._replica
        if replica is None or self._failed or self._ended:
            return
        started, pause = self._clock(), _Pause.NONE
        for _ in range(PASSES_MAX):
            try:
                pause = self._run_partitions(replica, started)
                self._must_look_at_leaves = False
                if self._reductions.leaves:
                    self._combine_leaves(replica)
            except TaskError as error:
                self._fail(task_failure(error.stage, error.index, error.__cause__ or error))
                return
            limit = self._limit(replica)
            if limit > replica.end:
                self._advance(replica, limit)
            if pause is not _Pause.NONE or not self._exchange.runnable or self._is_awaited():
                break
        if pause is not _Pause.MAIL:
            self._exchange.flush()

    def _run_partitions(self, replica: Replica, started: float) -> _Pause:
        """Let each partition run what is ready, and say whether that ends the round."""
        exchange, clock = self._exchange, self._clock
        first = before = clock()
        pause = _Pause.NONE
        for key in list(exchange.runnable):
            part = exchange.parts[key]
            del exchange.runnable[key]
            ran = drain(part, replica, self, part.batch)
            after = clock()
            took_s, before = after - before, after
            self.meter.tasks += ran
            part.busy_s += took_s
            if has_more(part, replica):
                exchange.runnable[key] = None
                part.batch = _batch(part.batch, took_s)
            if part.cuts and _is_at_cut(part, replica):
                self._store(part, replica)
            pause = self._pause(part, after - started)
            if pause is not _Pause.NONE:
                break
        self.meter.busy_s += before - first
        return pause

    def _pause(self, last: Partition, took_s: float) -> _Pause:
        """Whether a round ends after a partition's turn."""
        if took_s >= SLICE_S:
            return _Pause.OVER
        if last.size == 1:  # all wait for what a single sends: it leaves before other tasks run
            has_outgoing = self._exchange.has_outgoing or self._links.has_pending
            return _Pause.OVER if has_outgoing else _Pause.NONE
        if took_s >= PROMPT_S and self._is_awaited():
            return _Pause.OVER
        if took_s >= PROMPT_S and self._exchange.runnable and self._neighbours.have_written():
            return _Pause.MAIL
        return _Pause.NONE

    def _is_awaited(self) -> bool:
        """Whether somebody waits for what is to leave."""
        if self._links.has_pending:
            return True
        await_data = self._neighbours.await_data
        return self._exchange.has_outgoing and any(map(await_data, self._exchange.destinations()))

    def _combine_leaves(self, replica: Replica) -> None:
        """Send leaves that wait in vain for a neighbour, which has gone to another worker."""
        for index in tuple(self._reductions.leaves):
            stage = replica.stage_at(index)
            parts = self._exchange.parts.values()
            here = [part for part in parts if part.size == stage.size]
            if all(part.has_sent(stage, replica) for part in here):
                self._send_leaves(stage)

    def _send_leaves(self, stage: Stage) -> None:
        try:
            nodes = self._reductions.take(stage.index, stage.fn, stage.size)
        except (Exception, SystemExit) as error:
            raise TaskError(stage, 0) from error
        for relay, node, value in nodes:
            self._send_node(stage, relay, node, value)

    def _send_node(self, stage: Stage, relay: int | None, node: Node, value: Any) -> None:
        if relay is None:
            self._exchange.send(stage, 1, node, {0: value})
        else:
            self._exchange.send(stage, stage.size, node, {relay: value})

    def _advance(self, replica: Replica, limit: int) -> None:
        """Let the driver record more stages."""
        before = replica.end
        replica.advance(limit)
        if replica.failure is not None:
            self._fail(driver_failure(replica.failure, replica.end))
            return
        self._exchange.runnable.update(dict.fromkeys(self._exchange.parts))
        for size in replica.tracks:
            if not self._exchange.map.knows(size) and size not in self._wanted:
                self._wanted.add(size)
                self._links.post(self._controller, WantGroup(size))
        if len(replica.cuts) != self._cuts_known:
            self._cuts_known = len(replica.cuts)
            for part in self._exchange.parts.values():
                plan_cuts(part, replica)
        for stage in self._digest_check.recorded(replica, before):
            self._links.post(self._controller, Suspect(stage))
        if replica.returned:
            self._links.post(self._controller, Returned(replica.digest))

    # --- effects of steps ----------------------------------------------------------------------

    def send(self, stage: Stage, index: int, pieces: Any) -> None:
        """Send what a partition has for others."""
        if stage.kind == stages.REDUCE:
            if self._reductions.add(stage.index, index, pieces) == self._counts[stage.size]:
                self._send_leaves(stage)
        elif stage.kind == stages.BROADCAST:
            size = stage.target
            first = below(None, size) if is_relayed(size) else range(size)
            self._exchange.send(stage, size, 0, dict.fromkeys(first, pieces))
        else:
            routes = stage.routes
            targets = range(stage.target) if routes is None else routes.targets[index]
            if len(pieces) < len(targets):
                pieces = {target: pieces.get(target, NOTHING) for target in targets}
            self._exchange.send(stage, stage.target, index, pieces)

    def relay(self, stage: Stage, index: int, value: Any) -> None:
        """Send what a relay of a broadcast or a reduction has: its value, or that of its block."""
        if stage.kind == stages.BROADCAST:
            size = stage.target
            self._exchange.send(stage, size, 0, dict.fromkeys(below(index, size), value))
        else:
            size = stage.size
            self._send_node(stage, above(index, size), block_of(index, size), value)

    def tell(self, stage: Stage, value: Any) -> None:
        """Tell the value of a signal to all copies of the driver."""
        self._signals.tell(stage, value, self._members)

    def give_back(self, stage: Stage, index: int, size: int, parts: list[Any]) -> None:
        """Send a partition's part of the result to the controller."""
        assert self._replica is not None
        tree, handles, groups = stage.fn if size == 1 else (b"", (), ())
        frames = values.dumps(parts)
        body = ResultPart(
            size=size,
            index=index,
            stage=stage.index,
            digest=self._replica.digest,
            tree=tree,
            handles=handles,
            groups=groups,
            frames=len(frames),
        )
        self._links.post(self._controller, body, frames)

    def read(self, table: str, index: int, partitions: int) -> Any:
        """A partition of a table."""
        return self._source(table, index, partitions)

    def _fail(self, failure: Failure) -> None:
        self._failed = True
        self._links.post(self._controller, Failed(failure))

    # --- messages ------------------------------------------------------------------------------

    def _on_packet(self, packet: Packet, now: float) -> list[Envelope]:
        if packet.sender != self._controller and packet.epoch != self._epoch:
            is_early = packet.epoch > self._epoch  # its sender has begun it, and so shall we
            if is_early and packet.seq and len(self._early) < EARLY_MAX:
                self._early.append(packet)
            return []
        ready, out = self._links.receive(packet, now)
        if self._ended:
            return out
        if packet.sender == self._controller:
            self._heard.heard(self._controller, now)
        if self._controller in self._links.restarted:
            self._announce()
        self._links.restarted.clear()
        for body in ready:
            out += self._on_bodies(body, now)
        return out

    def _on_bodies(self, packet: Packet, now: float) -> list[Envelope]:
        out: list[Envelope] = []
        for body, frames in with_frames(packet):
            if isinstance(body, Begin | Rejoin | End):
                out += self._on_order(body, packet.epoch, now)
            elif packet.epoch == self._epoch and self._begin is not None:
                self._on_body(packet.sender, body, frames)
        return out

    def _on_order(self, body: Begin | Rejoin | End, epoch: int, now: float) -> list[Envelope]:
        match body:
            case Begin():
                if epoch > self._epoch:
                    return self._on_begin(body, epoch, now)
            case Rejoin():
                if body.born == self._born:
                    self._rejoin()
            case End():
                self._end()
                return [Envelope(self._host_address, Ended(body.failure))]
            case _:
                assert_never(body)
        return []

    def _on_body(self, sender: Address, body: Body, frames: Frames) -> None:
        match body:
            case Pieces():
                self._compare(body.stage, body.digest)
                self._exchange.receive(body, frames)
            case SignalsKnown():
                self._on_signals(body, frames)
            case Moved():
                self._on_moved(body, frames)
            case MapChanged():
                self._on_map_changed(body)
            case Advance():
                self._on_advance(body)
            case AskSignals():
                self._on_ask_signals(body)
            case Keep():
                self._on_keep(body, frames)
            case Replicate():
                self._snapshotter.replicate(body)
            case TellTrail():
                self._on_tell_trail()
            case Farewell():
                self._farewells[sender] = None
            case _:
                raise AssertionError(f"{type(body).__name__} is not for workers")

    def _on_tick(self, tick: Tick, now: float) -> list[Envelope]:
        if not self._ticks.is_due(tick.generation, now):
            return []
        if tick.generation == 0:
            self._heard.heard(self._controller, now)
        self._heard.forgive(self._ticks.stall_s, now)
        silent_s = self._heard.silent_s(self._controller, now)
        out = [self._ticks.next()]
        if self._begin is None:
            # It may have told a controller that died since: it says again and again that it waits.
            if silent_s > ANSWER_S:  # one that lives acknowledges each time
                return self._lose_controller(ANSWER_S)
            if tick.generation % ANNOUNCE_TICKS == 0:
                self._announce()
            return out + self._links.tick(now)
        rules = self._begin.rules
        if silent_s > rules.silence_s:
            return self._lose_controller(rules.silence_s)
        if self._members and self.address not in self._members:
            return out + self._leave() + self._links.tick(now)
        if self._replica is not None and self.meter.is_due(now, rules.report_s):
            parts = self._exchange.parts.values()
            report = self.meter.report(now, self._replica, parts, self._snapshotter.held)
            self._links.post(self._controller, report)
        self._ask_if_waiting(now)
        return out + self._links.tick(now)

    def _lose_controller(self, silent_s: float) -> list[Envelope]:
        self._end()
        message = f"the controller {self._controller} has been silent for {silent_s:g} s"
        lost = Failure(error="ControllerLost", message=message)
        return [Envelope(self._host_address, Ended(lost))]

    def _leave(self) -> list[Envelope]:
        """No member any more: end when nothing can come that must be forwarded, and all is said."""
        if not all(
            member in self._farewells and self._links.is_idle(member) for member in self._members
        ):
            return []
        if not self._said_left:
            self._said_left = True
            self._links.post(self._controller, Left())
        elif self._links.is_idle(self._controller):
            self._end()
            return [Envelope(self._host_address, Ended(None))]
        return []

    def _tick_after_end(self, tick: Tick, now: float) -> list[Envelope]:
        """Acknowledge the end, as often as the controller wants."""
        if not self._ticks.is_due(tick.generation, now):
            return []
        return [self._ticks.next(), *self._links.tick(now)]

    def _announce(self) -> None:
        """Tell the controller that this worker is there, and what it holds."""
        held = by_group(self._snapshotter.held.inventory())
        ready = Ready(self.address, self._host, self._epoch, held, self._snapshotter.held.groups())
        self._links.post(self._controller, ready)

    def _end(self) -> None:
        self._ended = True
        if self._replica is not None:
            self.stages, self.iterations = self._replica.end, len(self._signals.values)
            self._replica.close()
        self._forget()

    def _rejoin(self) -> None:
        """The controller has given this worker up: come back as a new one."""
        self._born += 1
        self._links = Links(self.address, self._born)
        self._snapshotter = Snapshotter(self._links)
        if self._replica is not None:
            self._replica.close()
        self._forget()
        self._begin = None
        self._announce()

    # --- epochs --------------------------------------------------------------------------------

    def _on_begin(self, begin: Begin, epoch: int, now: float) -> list[Envelope]:
        signals = self._signals.before(begin.stage)
        if self._replica is not None:
            self._replica.close()
        self._forget()
        self._epoch, self._begin, self._floor = epoch, begin, begin.floor
        self._signals.values.update(signals)
        self._heard.heard(self._controller, now)
        self._snapshotter.held.retain(0, begin.stage)
        self._links.begin(epoch, lambda peer: peer == self._controller)
        self._replica = Replica(
            self._driver,
            begin.rules.partitions,
            self._signals.values,
            begin.floor,
            begin.rules.snapshot_every or None,
        )
        for stage in begin.cuts:
            self._replica.demand_cut(stage)
        self._set_members(begin.members, begin.hosts)
        for entry in begin.entries:
            self._exchange.map.learn(entry)
        if not begin.joining:
            for entry in begin.entries:
                self._place(entry, begin.stage)
        early, self._early = self._early, []
        out: list[Envelope] = []
        for packet in early:
            out += self._on_packet(packet, now)
        return out

    def _place(self, entry: Entry, stage: int) -> None:
        """Make a partition, restore it, or send its snapshot to the worker that shall have it."""
        key = (entry.size, entry.index)
        mine = entry.worker == self.address
        if not entry.holder:
            if mine:
                self._attach(Partition(*key))
        elif entry.holder == self.address:
            if mine:
                self._restore(key, stage)
            else:
                self._snapshotter.send(key, stage, entry.worker, restore=True)

    def _restore(self, key: Key, stage: int) -> None:
        snapshot, frames = self._snapshotter.held.get(stage, key)
        if key == SINGLE_KEY:
            self._signals.values.update(snapshots.signals_of(frames))
        self._attach(snapshots.restored(key, stage, snapshot, frames))

    def _attach(self, part: Partition) -> None:
        assert self._replica is not None
        self._exchange.add(part)
        self._counts[part.size] = self._counts.get(part.size, 0) + 1
        plan_cuts(part, self._replica)

    def _set_members(self, members: tuple[Address, ...], hosts: tuple[str, ...]) -> None:
        """Note who takes part, and choose who keeps copies of snapshots: other hosts first."""
        assert self._begin is not None
        self._members = members
        me = members.index(self.address) if self.address in members else 0
        order = [*range(me + 1, len(members)), *range(me)]
        order.sort(key=lambda place: hosts[place] == self._host)
        copies = self._begin.rules.copies - 1
        self._snapshotter.keepers = tuple([members[place] for place in order[:copies]])
        for part in self._exchange.parts.values():
            part.sent.clear()  # a keeper that was none for a while may have dropped blobs

    # --- partitions that move ------------------------------------------------------------------

    def _on_map_changed(self, body: MapChanged) -> None:
        if body.members:
            for gone in [member for member in self._members if member not in body.members]:
                if gone != self.address:
                    self._links.post(gone, Farewell())
            self._set_members(body.members, body.hosts)
        for entry in (*body.created, *body.moved):
            self._exchange.map.learn(entry)
        for entry in body.created:
            self._place(entry, 0)
        for entry in body.moved:
            key = (entry.size, entry.index)
            if key in self._exchange.parts and self._exchange.map.owner(key) != self.address:
                self._ship(key)
        self._exchange.forward_held()
        self._exchange.flush()

    def _ship(self, key: Key) -> None:
        """Send a partition to the worker that has it by the map, with all that is its own."""
        replica = self._replica
        assert replica is not None
        part = self._exchange.remove(key)
        self._counts[part.size] -= 1
        self._must_look_at_leaves = bool(self._reductions.leaves)
        owner = self._exchange.map.owner(key)
        assert owner is not None
        along: dict[str, Any] = {}
        if key == SINGLE_KEY:  # whoever has it tells signals
            along = {"signals": self._signals.values, "listeners": self._signals.listeners}
        try:
            body, frames = packed(part, replica, self._exchange.map.version(key), along)
        except Exception as error:
            raise PackError(part.first_unrun(replica), part.index) from error
        self._links.post(owner, body, frames)

    def _on_moved(self, body: Moved, frames: Frames) -> None:
        key = (body.size, body.index)
        routes = self._exchange.map
        routes.learn(Entry(body.size, body.index, self.address, body.version))
        owner = routes.owner(key)
        if owner != self.address:
            assert owner is not None  # it has moved on while it was on its way
            onward = structs.replace(body, version=routes.version(key))
            self._links.post(owner, onward, frames)
            return
        part, along = unpacked(body, frames)
        if along:
            self._signals.values.update(along["signals"])
            self._signals.listeners.update(along["listeners"])
        self._attach(part)

    # --- signals -------------------------------------------------------------------------------

    def _on_signals(self, body: SignalsKnown, frames: Frames) -> None:
        self._compare(body.stages[-1], body.digest)
        self._signals.learn(body, frames)

    def _ask_if_waiting(self, now: float) -> None:
        """Ask for a signal that is overdue: it was told before this worker was a member."""
        replica = self._replica
        if replica is None or not self._exchange.parts or SINGLE_KEY in self._exchange.parts:
            return
        if self._signals.is_overdue(replica.waiting, now):
            digest = replica.digest_of(replica.waiting) or UNTOLD
            version = self._exchange.map.version(SINGLE_KEY)
            self._on_ask_signals(AskSignals(self.address, replica.waiting, digest, version))

    def _on_ask_signals(self, body: AskSignals) -> None:
        """Answer, or pass on to whoever has the single partition."""
        self._compare(body.stage, body.digest)
        owner = self._exchange.map.owner(SINGLE_KEY)
        if SINGLE_KEY not in self._exchange.parts:
            if owner is not None and owner != self.address:
                self._links.post(owner, body)
            return  # it is on its way here: the asker asks again
        if body.asker != self.address:
            self._signals.answer(body.asker, body.stage)

    # --- snapshots -----------------------------------------------------------------------------

    def _store(self, part: Partition, replica: Replica) -> None:
        stage, _ = part.cuts[0]
        signals = self._signals.before(stage) if part.key == SINGLE_KEY else {}
        self._snapshotter.store(part, replica, signals)
        self._exchange.runnable[part.key] = None

    def _on_keep(self, body: Keep, frames: Frames) -> None:
        self._snapshotter.keep(body, frames)
        if body.restore:
            self._restore((body.size, body.index), body.stage)

    # --- reports and digests -------------------------------------------------------------------

    def _on_advance(self, body: Advance) -> None:
        replica = self._replica
        assert replica is not None
        self._floor = body.floor
        self._digest_check.forget(body.floor)
        self._compare(body.witness - 1, body.digest)
        for stage in body.cuts:
            replica.demand_cut(stage)
        replica.prune(body.floor)
        self._cuts_known = len(replica.cuts)
        self._snapshotter.held.retain(body.complete)

    def _compare(self, stage: int, digest: int) -> None:
        """Compare the digest of another copy of the driver with ours, now or when we get there."""
        replica = self._replica
        if replica is None or self._failed:
            return
        if self._digest_check.differs(replica, stage, digest):
            self._links.post(self._controller, Suspect(stage))

    def _on_tell_trail(self) -> None:
        assert self._replica is not None
        calls = [Call(*stage) for stage in self._replica.trail(TRAIL_MAX)]
        self._links.post(self._controller, Trail(tuple(calls), self._replica.end))

    @property
    def _host_address(self) -> Address:
        return address(endpoint_of(self.address), "host")


def _batch(last: int, took_s: float) -> int:
    """How many tasks a partition may run before the clock is looked at, after so many took long."""
    return min(2 * last, BATCH_MAX) if took_s < SLICE_S / 8 else max(1, last // 2)


def _is_at_cut(part: Partition, replica: Replica) -> bool:
    """Whether a partition has run all before the stage at which it is to be stored."""
    return (
        part.pc >= part.cuts[0][1]
        and replica.end >= part.known
        and not (part.blocked or part.reload)
    )
