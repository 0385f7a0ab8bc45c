"""All messages of the protocol.

Between processes there is one, `Packet`: a link's sequence number and acknowledgement, the sender's
epoch, and bodies. Links (machines/links.py) deliver bodies once and in order, so bodies need not
care for loss. Every rollback begins an epoch; bodies of an earlier one are dropped, those of a
later one are kept until the receiver has begun it too.

    worker      Ready, Report, WantGroup, Failed, Suspect, Trail, Returned, ResultPart ─▶ controller
    worker      Leaving, Left ─▶ controller
    controller  Begin, MapChanged, Advance, Replicate, TellTrail, Rejoin, End ─▶ worker
    worker      Pieces, SignalsKnown, AskSignals, Moved, Keep, Farewell ─▶ worker

A struct is encoded as an array, so the order of fields is the wire format. A body's `frames` says
how many of its packet's frames are its own; bodies take theirs in order.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from machine_kit.addresses import Address
from machine_kit.machine import Message, Tick


class Record(Struct, frozen=True, array_like=True, gc=False):
    """Base of the parts of messages."""


class Entry(Record, frozen=True):
    """A row of the partition map.

    Attributes:
        size: The group: how many partitions its values have.
        index: The partition's index.
        worker: Who has it, or is about to.
        version: Counts the changes of this row.
        holder: In Begin: who has the snapshot that the partition continues from; "" for none.
    """

    size: int
    index: int
    worker: Address
    version: int
    holder: str = ""


class PartitionLoad(Record, frozen=True):
    """How far a partition is, and the time that its tasks took since the last report."""

    size: int
    index: int
    position: int
    busy_s: float


class HeldSnapshot(Record, frozen=True):
    """Partitions of a group of which the sender holds the snapshot of a stage."""

    stage: int
    size: int
    indices: tuple[int, ...]


class Call(Record, frozen=True):
    """A stage as its worker recorded it."""

    stage: int
    digest: int
    call: str


class Rules(Record, frozen=True):
    """What all workers of a program must agree on.

    Attributes:
        partitions: The program's default number of partitions.
        snapshot_every: Partitions are stored at multiples of this many stages; 0: never.
        copies: How many workers hold each snapshot.
        report_s: The period of reports.
        silence_s: After so long without a word, a peer is lost.
    """

    partitions: int
    snapshot_every: int
    copies: int
    report_s: float
    silence_s: float


class Failure(Record, frozen=True, kw_only=True):
    """Why a program ended without a result.

    Attributes:
        error: The name of a class in canary_core.errors.
        message: For the user.
        stage: The stage, or -1.
        call: The call of `run`.
        partition: The partition's index, or -1.
        traceback: As text.
        detail: The pickled exception of the user's code, if it could be pickled.
        calls: By worker, where copies of the driver diverged.
    """

    error: str
    message: str
    stage: int = -1
    call: str = ""
    partition: int = -1
    traceback: str = ""
    detail: bytes = b""
    calls: dict[str, str] = {}


# --- worker to controller ----------------------------------------------------------------------


class Ready(Message, frozen=True):
    """A worker is there.

    Attributes:
        worker: Its address.
        host: The machine that it runs on.
        epoch: The epoch that it is in; 0 for a new worker.
        held: The snapshots that it holds, for a controller that takes another's place.
        groups: The groups that exist at the stages of these snapshots.
    """

    worker: Address
    host: str
    epoch: int = 0
    held: tuple[HeldSnapshot, ...] = ()
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)


class Report(Message, frozen=True, kw_only=True):
    """What a worker tells at a fixed period, whatever the number of its tasks.

    Attributes:
        end: How many stages its driver has recorded.
        digest: Of these stages.
        busy_s: Time spent in tasks since the last report.
        span_s: Time since the last report.
        signals: How many signals its driver has seen: iterations, usually.
        loads: Of each partition that it has.
        held: Snapshots that it has come to hold since the last report.
        groups: The groups that exist at the stages of these snapshots.
    """

    end: int
    digest: int
    busy_s: float
    span_s: float
    signals: int
    tasks: int
    loads: tuple[PartitionLoad, ...]
    held: tuple[HeldSnapshot, ...]
    groups: dict[int, tuple[int, ...]]


class WantGroup(Message, frozen=True):
    """The driver has made values of a size that the partition map lacks."""

    size: int


class Failed(Message, frozen=True):
    """A task or the driver raised."""

    failure: Failure


class Suspect(Message, frozen=True):
    """A digest differs from the sender's: copies of the driver have diverged by this stage."""

    stage: int


class Trail(Message, frozen=True):
    """The stages that the sender still knows, for a comparison."""

    calls: tuple[Call, ...]
    end: int


class Returned(Message, frozen=True):
    """The sender's copy of the driver has returned.

    Attributes:
        digest: Of the whole program, with what it returned.
    """

    digest: int


class ResultPart(Message, frozen=True, kw_only=True):
    """A partition's part of the result: its values of the handles that the driver returned.

    Attributes:
        size: The group.
        index: The partition.
        stage: The stage of the return.
        digest: Of the whole program.
        tree: Of the single partition: what the driver returned, with handles cut out, as in
            values.dump_tree.
        handles: Of the single partition: the size of each handle, and its place in its group's
            list.
        groups: Of the single partition: all groups of the program.
        frames: The pickled list of values.
    """

    size: int
    index: int
    stage: int
    digest: int
    tree: bytes
    handles: tuple[tuple[int, int], ...]
    groups: tuple[int, ...]
    frames: int


class Leaving(Message, frozen=True):
    """A worker asks that its partitions be taken, so that it can end."""


class Left(Message, frozen=True):
    """A worker that leaves is through: all that it had or forwarded has arrived elsewhere."""


# --- controller to worker ----------------------------------------------------------------------


class Begin(Message, frozen=True, kw_only=True):
    """Enter the packet's epoch: (re)start from a snapshot, or join a running program.

    Attributes:
        rules: Of the program.
        stage: The snapshot's stage; 0 starts from nothing.
        floor: Stages before it are over everywhere.
        entries: The whole partition map.
        members: All workers of the epoch.
        hosts: The machine of each of them.
        cuts: Stages of snapshots that are due, beside those that the program prescribes.
        joining: The partitions exist already; none of them is the receiver's yet.
    """

    rules: Rules
    stage: int
    floor: int
    entries: tuple[Entry, ...]
    members: tuple[Address, ...]
    hosts: tuple[str, ...]
    cuts: tuple[int, ...] = ()
    joining: bool = False


class MapChanged(Message, frozen=True):
    """Rows of the partition map that are new, and the members if they have changed.

    A worker that has a partition which is another's by the map sends it there: this message is
    also the command to migrate.
    """

    created: tuple[Entry, ...]
    moved: tuple[Entry, ...]
    members: tuple[Address, ...] = ()
    hosts: tuple[str, ...] = ()


class Advance(Message, frozen=True):
    """The controller's heartbeat: how far all partitions are, and which snapshots count.

    Attributes:
        floor: Stages before it are over everywhere: their records can go.
        witness: A stage that every driver must have recorded the same...
        digest: ...with this digest.
        complete: The stage of the last complete snapshot of which there are copies; older ones
            can go.
        cuts: Stages of snapshots that are due, beside those that the program prescribes.
    """

    floor: int
    witness: int
    digest: int
    complete: int
    cuts: tuple[int, ...]


class Replicate(Message, frozen=True):
    """Send copies of a snapshot to another worker, as Keep: too few workers hold it.

    Attributes:
        stage: The snapshot's stage.
        partitions: Size and index of each partition whose snapshot is to be copied.
        to: Who shall hold it as well.
    """

    stage: int
    partitions: tuple[tuple[int, int], ...]
    to: Address


class TellTrail(Message, frozen=True):
    """Copies of the driver seem to have diverged: answer Trail."""


class Rejoin(Message, frozen=True):
    """The controller does not count this incarnation of a worker as its own: be Ready again."""

    born: int


class End(Message, frozen=True):
    """The program is over."""

    failure: Failure | None


# --- worker to worker --------------------------------------------------------------------------


class Pieces(Message, frozen=True, kw_only=True):
    """What a stage sends to partitions of one worker.

    Attributes:
        stage: The stage.
        digest: The sender's digest at this stage.
        size: The group of the targets.
        targets: Their indices.
        versions: The versions of their rows in the sender's map.
        frames: The pickled {target: {key: piece}}.
    """

    stage: int
    digest: int
    size: int
    targets: tuple[int, ...]
    versions: tuple[int, ...]
    frames: int


class SignalsKnown(Message, frozen=True):
    """Values of signals.

    Attributes:
        stages: Whose values they are.
        digest: Of the last of these stages; 0: not told.
        frames: See above.
        others: Workers to which the receiver shall pass them on.
    """

    stages: tuple[int, ...]
    digest: int
    frames: int
    others: tuple[Address, ...] = ()


class AskSignals(Message, frozen=True):
    """To the worker of the single partition: tell the asker all signals from this stage on."""

    asker: Address
    stage: int
    digest: int
    version: int


class Moved(Message, frozen=True, kw_only=True):
    """A partition with all that is its own: data, state, what arrived and waits.

    Attributes:
        size: The group.
        index: The partition.
        version: Of the row of the map by which it moves.
        position: The first stage that it has not run.
        known: How many stages the sender's driver has recorded.
        inside: How many of the frames are the pickled states and what is small.
        frames: All frames; the others are the pickled values.
    """

    size: int
    index: int
    version: int
    position: int
    known: int
    inside: int
    frames: int


class Farewell(Message, frozen=True):
    """The last word to a worker that leaves: nothing more comes from the sender."""


class Keep(Message, frozen=True, kw_only=True):
    """A copy of a partition's snapshot for the receiver to hold.

    Attributes:
        size: The group.
        index: The partition.
        stage: The snapshot's stage.
        pc: How many steps of its group the partition has run.
        blobs: For each value its id and version, and how many frames follow; 0: as sent before.
        sources: Ids of values that are loaded again.
        groups: The groups that exist at the stage.
        frames: All frames.
        restore: The receiver is the partition's worker and continues from it.
    """

    size: int
    index: int
    stage: int
    pc: int
    blobs: tuple[tuple[int, int, int, bool], ...]
    sources: tuple[int, ...]
    groups: tuple[int, ...]
    frames: int
    restore: bool = False


Body = (
    Ready | Report | WantGroup | Failed | Suspect | Trail | Returned | ResultPart | Leaving | Left
    | Begin | MapChanged | Advance | Replicate | TellTrail | Rejoin | End
    | Pieces | SignalsKnown | AskSignals | Moved | Keep | Farewell
)  # fmt: skip


class Packet(Message, frozen=True, kw_only=True):
    """All that travels between processes.

    Attributes:
        sender: Its address.
        born: Its incarnation.
        to_born: The receiver's incarnation as far as the sender knows; -1 if it does not.
        session: How many links to the receiver the sender had before this one.
        seq: The packet's number on this link, from 1; 0 if it only acknowledges.
        ack: The number up to which all packets of the receiver have arrived.
        epoch: The sender's epoch.
        bodies: Messages.
        frames: Large buffers of the bodies, in their order; a transport may send them apart.
    """

    sender: Address
    born: int
    to_born: int
    session: int
    seq: int
    ack: int
    epoch: int
    bodies: tuple[Body, ...] = ()
    frames: tuple[memoryview, ...] = ()


def with_frames(packet: Packet) -> Iterator[tuple[Body, tuple[memoryview, ...]]]:
    """The bodies of a packet, each with the frames that are its own."""
    place = 0
    for body in packet.bodies:
        count = getattr(body, "frames", 0)
        yield body, packet.frames[place : place + count]
        place += count


# --- a machine's own process -------------------------------------------------------------------


class Work(Message, frozen=True):
    """A worker's message to itself: run tasks for a while."""


class Leave(Message, frozen=True):
    """The host of a worker wants it to end without harm."""


class WorkerLost(Message, frozen=True):
    """The host of the controller knows that a worker's process has died."""

    worker: Address


class Drain(Message, frozen=True):
    """The host of the controller wants a worker to end without harm."""

    worker: Address


class Move(Message, frozen=True):
    """The host of the controller wants a partition to move."""

    size: int
    index: int
    to: Address


class Cancel(Message, frozen=True):
    """The host of the controller ends the program."""


class Kept(Message, frozen=True):
    """The host of the controller has the outcome: workers may end."""


class Ended(Message, frozen=True):
    """To the host of a worker: the program is over."""

    failure: Failure | None


class Part(Record, frozen=True):
    """The values of one partition that the driver returned, as frames."""

    size: int
    index: int
    frames: tuple[memoryview, ...]


class Outcome(Record, frozen=True):
    """How a program ended: results.result_of makes the result or the error of it."""

    failure: Failure | None
    tree: bytes = b""
    handles: tuple[tuple[int, int], ...] = ()
    parts: tuple[Part, ...] = ()


class Finished(Message, frozen=True):
    """To the host of the controller, once; it answers with `Kept`."""

    outcome: Outcome


class Progress(Message, frozen=True, kw_only=True):
    """To the host of the controller, at a fixed period.

    Attributes:
        stage: All partitions have run the stages before it.
        iterations: Signals seen.
        workers: Members of the epoch.
        epoch: 1, and one more for each rollback.
        snapshot: The stage of the last complete snapshot; 0: none.
        moves: Partitions moved so far.
        tasks: Tasks run so far, those that a rollback repeated included.
    """

    stage: int
    iterations: int
    workers: int
    epoch: int
    snapshot: int
    moves: int
    tasks: int


WorkerIn = Packet | Tick | Work | Leave
ControllerIn = Packet | Tick | WorkerLost | Drain | Move | Cancel | Kept
