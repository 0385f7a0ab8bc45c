from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec import structs

from machine_kit.addresses import Address, endpoint_of
from machine_kit.machine import Envelope, Tick
from minishark_lab.remembering import Levels
from sparrow_core.machines.scheduler import Scheduler, SchedulerConfig
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AcceptTimer,
    AskNodes,
    AssignTasks,
    CancelReservations,
    EndJob,
    EndJobs,
    GetNodes,
    GetShared,
    GetTasks,
    JobAborted,
    JobAccepted,
    JobPlaced,
    JobShared,
    JobStatus,
    KnownNodes,
    NodeLeft,
    NodeLoad,
    NodeLost,
    NodeRefused,
    Notes,
    PeerGone,
    Ping,
    PingJob,
    Pong,
    ProbeLoad,
    ProbeTimer,
    RefuseReservations,
    RegisterNode,
    ReportTasks,
    RerunTasks,
    Reserve,
    SchedulerIn,
    SetWeights,
    SubmitJob,
    TakenOver,
    TakeOver,
    TakeOverTimer,
    TaskAbandoned,
    WidenTimer,
)
from sparrow_core.protocol.types import (
    Assignment,
    Blame,
    Claim,
    ExecutorInfo,
    HeldJob,
    JobOptions,
    JobReport,
    KeptJob,
    Loss,
    MovedJob,
    NodeInfo,
    NodeLevel,
    PlacementStep,
    RunningTask,
    TaskKey,
    TaskSpec,
)

S, C, JOB = Address("s#scheduler"), Address("c#client"), JobId("job")
EXECUTORS = (ExecutorInfo(Address("e#e"), 1, 1),)
A, B = NodeName("a"), NodeName("b")


def monitor(name: str) -> Address:
    """The address of a node."""
    return Address(f"{name}#monitor")


def register(
    name: str, held: tuple[HeldJob, ...] = (), running: tuple[TaskKey, ...] = (), address: str = ""
) -> RegisterNode:
    """A heartbeat."""
    at = Address(address) if address else monitor(name)
    return RegisterNode(
        version=PROTOCOL_VERSION,
        name=NodeName(name),
        address=at,
        executors=EXECUTORS,
        held=held,
        running=running,
    )


def submit(*tasks: TaskSpec, shared: bytes = b"", placement: str = "sparrow") -> SubmitJob:
    """A submission."""
    return SubmitJob(
        version=PROTOCOL_VERSION,
        job_id=JOB,
        client=C,
        user="user",
        tasks=tasks,
        shared=shared,
        placement=placement,
    )


def renamed(msg: SubmitJob, job_id: str) -> SubmitJob:
    """The submission of another job."""
    return structs.replace(msg, job_id=JobId(job_id))


def task(task_id: int, *preferred: str) -> TaskSpec:
    """A task."""
    return TaskSpec(task_id, b"p%d" % task_id, tuple(map(NodeName, preferred)))


def get(node: str, count: int, *reports: JobReport, request: int = 1) -> GetTasks:
    """A request for tasks."""
    return GetTasks(
        job_id=JOB, node=NodeName(node), request=request, count=count, reports=reports
    )  # fmt: skip


def assign(*ids: int, attempt: int = 1, drained: bool, shared: bool = False) -> AssignTasks:
    """An answer to GetTasks."""
    tasks = tuple(Assignment(i, attempt, b"p%d" % i) for i in ids)
    return AssignTasks(
        job_id=JOB,
        scheduler=S,
        client=C,
        request=1,
        tasks=tasks,
        drained=drained,
        has_shared=shared,
    )


def done(*ids: int) -> JobReport:
    """The report that tasks have finished."""
    return JobReport(JOB, ids)


def loss(task_id: int, attempt: int, reason: str) -> JobReport:
    """The report of a lost attempt."""
    return JobReport(JOB, (), (Loss(task_id, attempt, "a-e0", reason),))


def key(task_id: int, attempt: int = 1) -> TaskKey:
    """An attempt."""
    return TaskKey(JOB, task_id, attempt)


class Driven:
    """A scheduler that is checked after each message."""

    def __init__(self, *nodes: str, **config: Any) -> None:
        config = {"settle_s": 0.0, **config}
        self.machine = Scheduler(S, Random(1), SchedulerConfig(**config))
        for node in nodes:
            self(register(node))

    def raw(self, msg: SchedulerIn, now: float = 0.0) -> list[Envelope]:
        """Deliver one message."""
        out = self.machine.on_message(msg, now)
        self.machine.check()
        return out

    def __call__(self, msg: SchedulerIn, now: float = 0.0) -> list[Envelope]:
        """Deliver one message; what comes out without claims, which most tests are not about."""
        return [
            structs.replace(envelope, msg=structs.replace(envelope.msg, claim=Claim()))
            if isinstance(envelope.msg, Reserve | AssignTasks)
            else envelope
            for envelope in self.raw(msg, now)
        ]


def test_batch_sampling_reserves_d_times_m_and_binds_late() -> None:
    """Reservations are spread with counts; the node that asks first gets the task."""
    scheduler = Driven("a", "b")
    out = scheduler(submit(task(0), task(1)))
    assert Envelope(S, AcceptTimer(), 0.01) == out[0]
    expected = {Envelope(monitor(n), Reserve(JOB, S, 2)) for n in "ab"}
    assert expected == set(out[1:])
    assert [Envelope(monitor("b"), assign(0, drained=False))] == scheduler(get("b", 1))


def test_reservations_are_cancelled_when_all_tasks_are_bound() -> None:
    """Nodes that still hold reservations of a job without waiting tasks drop them."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0), task(1)))
    expected = [
        Envelope(monitor("a"), assign(0, 1, drained=True)),
        Envelope(monitor("b"), CancelReservations(JOB, 2)),
    ]
    assert expected == scheduler(get("a", 2))
    assert [] == scheduler(get("b", 1)), "that was the answer"


def test_a_cancellation_tells_of_all_reservations_that_the_node_was_sent() -> None:
    """Also those before the last: a driver must not keep it back if the node may have asked."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0), task(1)))
    scheduler(get("a", 1))
    out = scheduler(get("a", 2, loss(0, 1, "died")))
    told = [each.msg for each in out if each.to == monitor("b")]
    assert [Reserve(JOB, S, 2), CancelReservations(JOB, 4)] == told
    assert [] == scheduler(get("b", 1)), "that was the answer"


def test_what_is_lost_with_messages_does_not_count_as_the_tasks_fault() -> None:
    """Only after many more tries is a task given up that never begins."""
    scheduler = Driven("a", max_attempts=2, max_tries=4)
    scheduler(submit(task(0)))
    lost = Loss(0, 1, "a-e0", "the executor does not know of it", Blame.NONE)
    for attempt in range(1, 4):
        assert (0,) == tuple(t.task_id for t in scheduler(get("a", 1))[0].msg.tasks)  # type: ignore[attr-defined]
        again = JobReport(JOB, (), (structs.replace(lost, attempt=attempt),))
        assert [Envelope(monitor("a"), Reserve(JOB, S, 2))] == scheduler(ReportTasks((again,)))
    scheduler(get("a", 1))
    last = JobReport(JOB, (), (structs.replace(lost, attempt=4),))
    (out,) = scheduler(ReportTasks((last,)))
    assert isinstance(out.msg, TaskAbandoned)


def test_a_node_that_falls_idle_gets_a_reservation_of_the_oldest_job_that_waits() -> None:
    """In place of stealing; only where the job may run, and only of short jobs."""
    scheduler = Driven("a", "b")
    idle = ReportTasks((), NodeName("c"), NodeLevel(-1, 1))
    older, newer = (renamed(submit(task(0), placement="eagle"), name) for name in ("old", "new"))
    gpu = structs.replace(renamed(older, "gpu"), options=JobOptions(requires=("gpu",)))
    scheduler(structs.replace(register("d"), attributes=("gpu",)))
    for job in (gpu, older, newer):
        scheduler(job)
    assert [] == scheduler(idle), "the node is not known"
    scheduler(structs.replace(register("c"), draining=True))
    assert [] == scheduler(idle), "it drains"
    scheduler.machine._ledger.nodes[NodeName("c")].draining = False
    assert [Envelope(monitor("c"), Reserve(JobId("old"), S, 1))] == scheduler(idle)
    assert [] == scheduler(idle), "it is on its way"
    busy = ReportTasks((), NodeName("c"), NodeLevel(0, 2))
    assert [] == scheduler(busy)
    taken = structs.replace(get("c", 1), job_id=JobId("old"), level=NodeLevel(-1, 3))
    assert 1 == len(scheduler(taken)[0].msg.tasks)  # type: ignore[attr-defined]
    assert [Envelope(monitor("c"), Reserve(JobId("new"), S, 1))] == scheduler(idle)
    in_vain = structs.replace(get("a", 1), job_id=JobId("over"), level=NodeLevel(-1, 1))
    scheduler(EndJob(JobId("new")))
    assert 1 == len(scheduler(in_vain)), "no job waits that may run there"


def test_placements_tell_those_of_other_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which nodes tell; what placements here do not know is for nobody."""
    monkeypatch.setattr(Levels, "NEWS", 0)
    other = Address("s2#scheduler")
    scheduler = Driven("a", "b")
    note = Notes("known_idle", b"\x90")
    assert [] == scheduler(note)
    job = submit(task(0), placement="known_idle")
    assert not [each for each in scheduler(job) if isinstance(each.msg, Notes)], "it is alone"
    scheduler(structs.replace(register("a"), schedulers=(S, other)))
    told = scheduler(renamed(job, "next"))
    notes = [each for each in told if isinstance(each.msg, Notes)]
    assert [(other, "known_idle")] == [(each.to, each.msg.placement) for each in notes]
    assert [] == scheduler(notes[0].msg)
    monkeypatch.setattr(Levels, "NEWS", 9)
    monkeypatch.setattr(Levels, "NEWS_SHARE", 100.0)
    idle = ReportTasks((), NodeName("a"), NodeLevel(-1, 1))
    assert [] == scheduler(idle), "too little is new"
    quiet = scheduler(Tick(0), 0.5)
    assert other in [each.to for each in quiet], "the last is told when all is quiet"
    assert other not in [each.to for each in scheduler(Tick(1), 1.0)]


def test_the_shared_part_travels_to_a_node_once() -> None:
    """It precedes the first tasks that the node gets, and can be asked for again."""
    scheduler = Driven("a")
    scheduler(submit(task(0), task(1), shared=b"common"))
    shared = JobShared(JOB, S, b"common")
    expected = [
        Envelope(monitor("a"), shared),
        Envelope(monitor("a"), assign(0, drained=False, shared=True)),
    ]
    assert expected == scheduler(get("a", 1))
    assert [Envelope(monitor("a"), assign(1, drained=True, shared=True))] == scheduler(get("a", 1))
    asker = Address("a-e0#a-e0")
    assert [Envelope(asker, shared)] == scheduler(GetShared(JOB, asker))


def test_a_constrained_task_runs_only_where_it_prefers() -> None:
    """A node that asks in vain is told that the job has nothing for it."""
    scheduler = Driven("a", "b")
    out = scheduler(submit(task(0, "b")))
    assert [Envelope(monitor("b"), Reserve(JOB, S, 1))] == out[1:]
    assert [Envelope(monitor("a"), assign(drained=True))] == scheduler(get("a", 1))
    assert [Envelope(monitor("b"), assign(0, drained=True))] == scheduler(get("b", 1))


def test_unsatisfiable_constraints_fail_at_once() -> None:
    """A job whose task prefers an unknown node is aborted with a kind of its own."""
    scheduler = Driven("a")
    message = "task 0 may run only on elsewhere: unknown or dead"
    aborted = Envelope(C, JobAborted(JOB, "unsatisfiable", message))
    assert aborted == scheduler(submit(task(0, "elsewhere")))[1]
    assert [aborted] == scheduler(submit(task(0, "elsewhere")))


def test_submission_is_idempotent() -> None:
    """A repeated SubmitJob is acknowledged and has no other effect."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    assert [Envelope(C, JobAccepted(JOB))] == scheduler(submit(task(0)))


def test_only_jobs_that_last_are_acknowledged() -> None:
    """The client of a job that ends at once has its result; the others are told by one timer."""
    scheduler = Driven("a")
    timer = Envelope(S, AcceptTimer(), 0.01)
    assert timer in scheduler(submit(task(0)))
    scheduler(EndJob(JOB))
    assert timer not in scheduler(renamed(submit(task(0)), "lasting"), 0.005)
    lasting = Envelope(C, JobAccepted(JobId("lasting")))
    assert [lasting] == scheduler(AcceptTimer(), 0.01)
    assert [] == scheduler(AcceptTimer(), 0.01)
    assert timer in scheduler(renamed(submit(task(0)), "later"), 0.02)


def test_another_protocol_is_refused() -> None:
    """A client or node of another version hears why, in words."""
    scheduler = Driven("a")
    old = SubmitJob(
        version=0,
        job_id=JOB,
        client=C,
        user="user",
        tasks=(task(0),),
    )
    text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the client 0"
    assert [Envelope(C, JobAborted(JOB, "protocol", text))] == scheduler(old)
    node = RegisterNode(version=99, name=B, address=monitor("b"), executors=(), held=(), running=())
    text = f"this scheduler speaks protocol {PROTOCOL_VERSION}, the node 99"
    assert [Envelope(monitor("b"), NodeRefused(text, S))] == scheduler(node)


def test_another_release_is_refused() -> None:
    """Nodes must have the scheduler's, and clients that name one."""
    scheduler = Driven(release="engine 2")
    text = "this scheduler has engine 2, the {}; install the same versions on all machines"
    for release, told in (("engine 1", "node engine 1"), ("", "node none")):
        refused = NodeRefused(text.format(told), S)
        node = structs.replace(register("b"), release=release)
        assert [Envelope(monitor("b"), refused)] == scheduler(node)
    scheduler(structs.replace(register("b"), release="engine 2"))
    aborted = JobAborted(JOB, "protocol", text.format("client engine 1"))
    job = submit(task(0))
    assert [Envelope(C, aborted)] == scheduler(structs.replace(job, release="engine 1"))
    for release in ("", "engine 2"):
        accepted = renamed(structs.replace(job, release=release), f"job {release}")
        assert any(isinstance(each.msg, Reserve) for each in scheduler(accepted))


@pytest.mark.parametrize(("placement", "text"), [("elsewhere", "placement 'elsewhere'")])
def test_an_invalid_job_is_refused(placement: str, text: str) -> None:
    """What no cluster could run is aborted as invalid."""
    out = Driven("a")(submit(task(0), placement=placement))
    aborted = out[-1].msg
    assert isinstance(aborted, JobAborted)
    assert "invalid" == aborted.kind
    assert text in aborted.message


def test_a_job_waits_for_the_first_node_but_not_for_ever() -> None:
    """Without a node a job is parked; it is admitted when one comes, or fails after 5 s."""
    scheduler = Driven()
    assert [Envelope(S, AcceptTimer(), 0.01)] == scheduler(submit(task(0)))
    assert [Envelope(C, JobStatus(JOB, True, ()))] == scheduler(PingJob(JOB, C, (0,)), 1.0)
    assert [Envelope(monitor("a"), Reserve(JOB, S, 2))] == scheduler(register("a"), 2.0)
    scheduler = Driven()
    scheduler(submit(task(0)))
    assert 1 == len(scheduler(Tick(0), 4.9))
    text = "no live node is left"
    assert [Envelope(C, JobAborted(JOB, "no_nodes", text))] == scheduler(Tick(1), 5.0)[1:]


def test_a_lost_task_is_placed_again_elsewhere() -> None:
    """A report of a loss makes a fresh reservation on another node, and attempt 2."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    lost = ReportTasks((loss(0, 1, "executor lost (killed by SIGKILL)"),))
    assert [Envelope(monitor("b"), Reserve(JOB, S, 2))] == scheduler(lost)
    assert [] == scheduler(lost), "told twice"
    expected = [Envelope(monitor("b"), assign(0, attempt=2, drained=True))]
    assert expected == scheduler(get("b", 1))


def test_a_task_is_tried_four_times_then_the_job_fails_with_its_story() -> None:
    """TaskAbandoned tells each attempt: node, executor, reason; the client ends the job.

    Unless it has the result: then the job goes on.
    """
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    for attempt in (1, 2, 3):
        scheduler(get("a", 1))
        scheduler(ReportTasks((loss(0, attempt, "gone"),)))
    scheduler(get("a", 1))
    out = scheduler(ReportTasks((loss(0, 4, "gone"),)))
    story = tuple(f"task 0 attempt {n}: a/a-e0: gone" for n in (1, 2, 3, 4))
    message = "task 0 was lost 4 times; at last: a/a-e0: gone"
    abandoned = Envelope(C, TaskAbandoned(JOB, 0, message, story))
    assert [abandoned] == out
    assert [Envelope(C, JobStatus(JOB, True, (0,)))] == scheduler(PingJob(JOB, C, (0,)))
    assert [abandoned] == scheduler(RerunTasks(JOB, (0,))), "the message may have been lost"
    assert [Envelope(monitor("a"), EndJob(JOB))] == scheduler(EndJob(JOB))


def test_finished_reports_ride_on_a_request() -> None:
    """GetTasks carries reports; a ping then learns that the task is finished."""
    scheduler = Driven("a")
    scheduler(submit(task(0), task(1)))
    scheduler(get("a", 1))
    scheduler(get("a", 1, done(0)))
    assert [Envelope(C, JobStatus(JOB, True, (0,)))] == scheduler(PingJob(JOB, C, (0, 1)))


def test_a_late_success_of_a_lost_attempt_counts() -> None:
    """A task that waits again is withdrawn when its first attempt turns out to have finished."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    scheduler(ReportTasks((loss(0, 1, "lost"),)))
    out = scheduler(ReportTasks((done(0),)))
    assert [Envelope(monitor("b"), CancelReservations(JOB, 3))] == out
    assert [] == scheduler(get("b", 1)), "that was the answer"


def test_a_result_that_never_came_is_made_again() -> None:
    """RerunTasks places a finished task anew, and ignores an unfinished one."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    assert [] == scheduler(RerunTasks(JOB, (0,)))
    scheduler(ReportTasks((done(0),)))
    assert [Envelope(monitor("a"), Reserve(JOB, S, 2))] == scheduler(RerunTasks(JOB, (0,)))
    assert [Envelope(monitor("a"), assign(0, attempt=2, drained=True))] == scheduler(get("a", 1))


def test_ending_a_job_reaches_every_node_that_may_hold_some_of_it() -> None:
    """EndJob goes to nodes with reservations or tasks; the job is forgotten."""
    scheduler = Driven("a", "b", "c")
    scheduler(submit(task(0, "a", "b")))
    assert {monitor("a"), monitor("b")} == {out.to for out in scheduler(EndJob(JOB))}
    assert [] == scheduler(EndJob(JOB))
    assert [] == scheduler(submit(task(0))), "a late repetition does not revive it"
    assert [Envelope(C, JobStatus(JOB, False, ()))] == scheduler(PingJob(JOB, C, (0,)))


def test_a_silent_node_is_dead() -> None:
    """After 3 s of silence its tasks and reservations move to other nodes."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0), task(1)))
    scheduler(get("a", 1))
    scheduler(register("b", held=(HeldJob(JOB, 2),)), 2.9)
    out = scheduler(Tick(0), 3.1)[1:]
    # a held one more reservation, and two are made for the lost task
    assert [Envelope(monitor("b"), Reserve(JOB, S, n)) for n in (2, 1)] == out
    answer = scheduler(get("b", 4))
    ids = [(each.task_id, each.attempt) for each in answer[0].msg.tasks]  # type: ignore[union-attr]
    assert [(0, 2), (1, 1)] == sorted(ids)


def test_losing_the_last_node_fails_the_job() -> None:
    """With nothing left to run on, the client hears it at once."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    out = scheduler(NodeLost(A, "its process died"))
    assert Envelope(C, JobAborted(JOB, "no_nodes", "no live node is left")) == out[0]
    assert [] == scheduler(NodeLost(A, "told twice"))


def test_a_node_that_is_coming_up_gets_what_the_last_one_had() -> None:
    """Its executors are awaited; one that has been without any for long is no help."""
    for joined_s, ends in ((2.0, False), (-20.0, True)):
        scheduler = Driven("a")
        bare = structs.replace(register("b"), executors=())
        scheduler(bare, joined_s)
        scheduler(submit(task(0), task(1)), 2.0)
        scheduler(get("a", 1), 2.0)
        out = scheduler(NodeLost(A, "its process died"), 2.5)
        aborted = [each.msg.kind for each in out if isinstance(each.msg, JobAborted)]
        assert ["no_nodes"] * ends == aborted
        if ends:
            continue
        scheduler(register("b", held=(HeldJob(JOB, 4),)), 3.0)
        (answer,) = scheduler(get("b", 4), 3.0)
        assert [(0, 2), (1, 1)] == sorted(
            (each.task_id, each.attempt)
            for each in answer.msg.tasks  # type: ignore[union-attr]
        )


def test_a_job_that_any_node_suits_waits_while_no_node_has_its_executors() -> None:
    """A node that was started again tells of one executor after the other."""
    scheduler = Driven(settle_s=0.0)
    scheduler(node_with("a", framework="f"), 1.0)
    assert not aborted(scheduler(optioned(task(0)), 2.0))
    assert {monitor("a"): 2} == reserved(scheduler(node_with("a"), 3.0))


def test_a_node_whose_process_has_ended_is_lost_at_once() -> None:
    """Other peers may have been anything."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    assert [] == scheduler(PeerGone("elsewhere"))
    out = scheduler(PeerGone(endpoint_of(monitor("a"))))
    assert {monitor("b")} == {each.to for each in out if isinstance(each.msg, Reserve)}


def test_losing_the_only_preferred_node_fails_the_job() -> None:
    """A constraint that can no longer be satisfied is an error, not a wait."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0, "a")))
    aborted = scheduler(NodeLost(A, "its process died"))[0].msg
    assert isinstance(aborted, JobAborted)
    assert "unsatisfiable" == aborted.kind


def test_a_node_started_anew_has_lost_its_tasks() -> None:
    """The same name at another address: the old incarnation is dead."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    scheduler(register("b"))
    out = scheduler(register("a", address="a2#monitor"))
    again = Address("a2#monitor")
    assert [Envelope(monitor("b"), Reserve(JOB, S, 2)), Envelope(again, Reserve(JOB, S, 1))] == out


def test_a_heartbeat_restores_lost_reservations() -> None:
    """A node that holds fewer than it should gets the rest again, after a time of grace."""
    scheduler = Driven("a")
    scheduler(submit(task(0), task(1)))
    assert [] == scheduler(register("a"), 0.5), "they may be on their way"
    out = scheduler(register("a", held=(HeldJob(JOB, 1),)), 1.5)
    assert [Envelope(monitor("a"), Reserve(JOB, S, 3))] == out


def test_a_heartbeat_reveals_lost_tasks() -> None:
    """A task that its node does not know is placed again, after a time of grace."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    held = (HeldJob(JOB, 0),)
    assert [] == scheduler(register("a", held, (key(0),)), 2.0)
    assert [Envelope(monitor("a"), Reserve(JOB, S, 2))] == scheduler(register("a", held), 2.0)


def test_a_heartbeat_reveals_what_is_over() -> None:
    """A node is told again of jobs that ended, and of reservations that were cancelled."""
    scheduler = Driven("a", "b")
    over = JobId("over")
    scheduler(EndJob(over))
    out = scheduler(register("a", held=(HeldJob(over, 3),)))
    assert [Envelope(monitor("a"), EndJobs((over,)))] == out
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    out = scheduler(register("b", held=(HeldJob(JOB, 1),)))
    assert [Envelope(monitor("b"), CancelReservations(JOB, 1))] == out


def test_a_job_without_a_client_ends() -> None:
    """A client that is silent for the lease does not occupy the cluster."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    for now in (3.0, 6.0, 9.0, 12.0):
        scheduler(register("a", held=(HeldJob(JOB, 2),)), now)
    assert [Envelope(monitor("a"), EndJob(JOB))] == scheduler(Tick(0), 12.0)[1:]


def test_its_own_stall_is_nobody_elses_silence() -> None:
    """A scheduler that was stopped for a minute does not take all others for dead."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    scheduler(Tick(0), 0.5)
    assert 1 == len(scheduler(Tick(1), 60.0))
    lost_at = [60 + n / 2 for n in range(1, 9) if len(scheduler(Tick(n + 1), 60 + n / 2)) > 1]
    assert [62.5] == lost_at, "more than 3 s that it witnessed, 1 of them before the stall"


def test_it_tells_which_nodes_it_knows() -> None:
    """KnownNodes lists live nodes and their executors."""
    scheduler = Driven()
    info = ExecutorInfo(Address("a-e0#a-e0"), 42, 2)
    scheduler(
        RegisterNode(
            version=PROTOCOL_VERSION,
            name=A,
            address=monitor("a"),
            executors=(info,),
            held=(),
            running=(),
        )
    )
    expected = [
        Envelope(C, KnownNodes(S, (NodeInfo(name=A, executors=(info,), monitor=monitor("a")),)))
    ]
    assert expected == scheduler(GetNodes(C))


def test_strangers_and_stale_timers_are_ignored() -> None:
    """Messages of unknown nodes, jobs and tasks, and doubled timers, change nothing."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    assert [] == scheduler(get("unknown", 1))
    stray = (JobReport(JobId("?"), (0,)), done(99))
    assert [] == scheduler(ReportTasks(stray))
    assert [] == scheduler(ReportTasks((loss(0, 7, "lost"),)))
    assert [] == scheduler(GetShared(JobId("?"), C))
    assert [] == scheduler(RerunTasks(JobId("?"), (1,)))
    assert [] == scheduler(Tick(5))


def optioned(*tasks: TaskSpec, placement: str = "sparrow", **options: Any) -> SubmitJob:
    """A submission with options."""
    return SubmitJob(
        version=PROTOCOL_VERSION,
        job_id=JOB,
        client=C,
        user="user",
        tasks=tasks,
        placement=placement,
        options=JobOptions(**options),
    )


def node_with(name: str, *attributes: str, framework: str = "", **more: Any) -> RegisterNode:
    """A heartbeat of a node with attributes."""
    executors = (ExecutorInfo(Address("e#e"), 1, 1, framework),)
    return RegisterNode(
        version=PROTOCOL_VERSION,
        name=NodeName(name),
        address=monitor(name),
        executors=executors,
        held=(),
        running=(),
        attributes=attributes,
        **more,
    )


def reserved(out: list[Envelope]) -> dict[Address, int]:
    """Reservations by node."""
    return {e.to: e.msg.count for e in out if isinstance(e.msg, Reserve)}


def aborted(out: list[Envelope]) -> list[tuple[str, str]]:
    """Kind and message of what is aborted."""
    return [(e.msg.kind, e.msg.message) for e in out if isinstance(e.msg, JobAborted)]


def test_reservations_say_what_disciplines_need() -> None:
    """User, framework, priority, task time and waiting tasks; answers bring them up to date."""
    scheduler = Driven("a")
    options = JobOptions(priority=3, task_s=0.5)
    out = scheduler.raw(optioned(task(0), task(1), priority=3, task_s=0.5))
    claim = Claim(
        user="user", priority=options.priority, task_s=options.task_s, waiting=2
    )  # fmt: skip
    assert Envelope(monitor("a"), Reserve(JOB, S, 4, claim)) == out[1]
    answer = scheduler.raw(get("a", 1))[0].msg
    assert isinstance(answer, AssignTasks)
    assert 1 == answer.claim.waiting


def test_jobs_run_only_on_nodes_with_what_they_require() -> None:
    """Attributes and framework; that no node has them all is an error at once."""
    scheduler = Driven()
    scheduler(node_with("a", "gpu", "zone=a"))
    scheduler(node_with("b", "zone=a", framework="f"))
    assert {monitor("a"): 2} == reserved(scheduler(optioned(task(0), requires=("gpu", "zone=a"))))
    scheduler(EndJob(JOB))
    for options, text in (
        ({"requires": ("gpu", "tpu")}, "no live node has gpu and tpu"),
        ({"framework": "f", "requires": ("gpu",)}, "no live node has gpu and framework f"),
    ):
        scheduler = Driven()
        scheduler(node_with("a", "gpu", "zone=a"))
        assert [("unsatisfiable", text)] == aborted(scheduler(optioned(task(0), **options)))


def test_a_young_scheduler_waits_for_more_nodes_before_it_gives_up() -> None:
    """Just restarted, it cannot know all nodes: a job is parked until it has settled."""
    scheduler = Driven("a", settle_s=1.0)
    accepting = Envelope(S, AcceptTimer(), 0.01)
    assert [accepting] == scheduler(optioned(task(0), requires=("gpu",)), 0.2)
    assert {monitor("b"): 2} == reserved(scheduler(node_with("b", "gpu"), 0.4))
    scheduler = Driven("a", settle_s=1.0)
    scheduler(optioned(task(0), requires=("gpu",)), 0.2)
    out = scheduler(Tick(0), 1.0)
    assert [("unsatisfiable", "no live node has gpu")] == aborted(out)


def test_losing_the_only_node_with_an_attribute_fails_the_job() -> None:
    """Running tasks have nowhere to go, although other nodes live."""
    scheduler = Driven("b")
    scheduler(node_with("a", "gpu"))
    scheduler(optioned(task(0), requires=("gpu",)))
    scheduler(get("a", 1))
    out = scheduler(NodeLost(A, "its process died"))
    assert [("unsatisfiable", "no live node has gpu")] == aborted(out)


def test_early_binding_probes_first() -> None:
    """Batch sampling asks 2 nodes for their load and binds the task to the less loaded one."""
    scheduler = Driven("a", "b")
    out = scheduler(optioned(task(0), placement="batch"))
    timer = Envelope(S, ProbeTimer(JOB), 0.02)
    probes = {Envelope(monitor(name), ProbeLoad(JOB, S)) for name in "ab"}
    assert ({*probes}, timer) == (set(out[1:3]), out[3])
    assert [Envelope(C, JobStatus(JOB, True, ()))] == scheduler(PingJob(JOB, C, (0,)))
    assert [] == scheduler(NodeLoad(JOB, A, 7))
    assert {monitor("b"): 1} == reserved(scheduler(NodeLoad(JOB, B, 0)))
    assert [] == scheduler(ProbeTimer(JOB))
    assert [] == scheduler(NodeLoad(JOB, B, 0)), "too late"


@pytest.mark.parametrize("placement", ["batch", "per_task"])
def test_probes_that_are_not_answered_are_not_waited_for(placement: str) -> None:
    """After the limit, nodes that did not answer count as loaded."""
    scheduler = Driven("a", "b")
    scheduler(optioned(task(0), placement=placement))
    scheduler(NodeLoad(JOB, A, 50))
    assert {monitor("a"): 1} == reserved(scheduler(ProbeTimer(JOB), 0.02))


def test_an_unanswered_probe_of_a_job_that_is_over_changes_nothing() -> None:
    """EndJob while probing forgets the job."""
    scheduler = Driven("a")
    scheduler(optioned(task(0), placement="batch"))
    scheduler(EndJob(JOB))
    assert [] == scheduler(ProbeTimer(JOB))


def test_a_soft_preference_widens_after_its_wait() -> None:
    """Delay scheduling: first the preferred node, after `wait_s` any node, hard ones never."""
    scheduler = Driven("a", "b")
    soft, hard = TaskSpec(0, b"p", ("a",), 0.3), task(1, "a")
    out = scheduler(submit(soft, hard))
    assert {monitor("a"): 2} == reserved(out)
    timer = out[-1]
    assert Envelope(S, WidenTimer(JOB, (0,)), 0.3) == timer
    assert [Envelope(monitor("b"), assign(drained=True))] == scheduler(get("b", 1))
    assert {monitor("a"): 1, monitor("b"): 1} == reserved(scheduler(WidenTimer(JOB, (0,)), 0.3))
    answer = scheduler(get("b", 2))[0].msg
    assert isinstance(answer, AssignTasks)
    assert ([0], True) == ([each.task_id for each in answer.tasks], answer.drained)
    assert [] == scheduler(WidenTimer(JOB, (0,)), 0.4), "it is bound"


def test_a_soft_preference_for_dead_nodes_is_none() -> None:
    """Any node will do at once."""
    scheduler = Driven("a")
    assert {monitor("a"): 2} == reserved(scheduler(submit(TaskSpec(0, b"p", ("gone",), 9.0))))


def test_refused_reservations_move_on() -> None:
    """A full queue's reservations go to other nodes; the job fails after too many refusals.

    When all nodes have refused twice, reservations wait for a heartbeat.
    """
    scheduler = Driven("a", "b", refusals_max=5)
    scheduler(submit(task(0)))
    for _ in range(2):
        assert {monitor("b"): 1} == reserved(scheduler(RefuseReservations(JOB, A, 1)))
        assert {monitor("a"): 1} == reserved(scheduler(RefuseReservations(JOB, B, 1)))
    assert [] == scheduler(RefuseReservations(JOB, A, 1))
    again = scheduler(register("a"), 1.5)
    assert {monitor("a"): 1} == reserved(again)
    out = scheduler(RefuseReservations(JOB, A, 1))
    assert [("overloaded", "nodes with full queues refused it 6 times")] == aborted(out)
    assert [] == scheduler(RefuseReservations(JOB, A, 2))


def test_a_refused_hard_constraint_is_tried_again() -> None:
    """There is no other node: the next heartbeat after a time of grace brings it back."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0, "a")))
    assert [] == scheduler(RefuseReservations(JOB, A, 1))
    assert {monitor("a"): 1} == reserved(scheduler(register("a"), 1.5))


def test_too_many_jobs_are_refused() -> None:
    """In words, at once, and only those beyond the limit."""
    scheduler = Driven("a", jobs_max=1)
    scheduler(submit(task(0)))
    other = structs.replace(submit(task(0)), job_id=JobId("other"))
    assert [("overloaded", "this scheduler has 1 jobs already")] == aborted(scheduler(other))


def test_a_draining_node_gets_no_new_jobs() -> None:
    """What it has reservations of stays there; when it leaves nothing is lost."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0)))
    scheduler(node_with("a", draining=True))
    other = structs.replace(submit(task(0)), job_id=JobId("other"))
    assert {monitor("b"): 2} == reserved(scheduler(other))
    scheduler(get("a", 1))
    scheduler(ReportTasks((done(0),)))
    assert [] == aborted(scheduler(NodeLeft(A)))


def test_weights_spread_in_both_directions() -> None:
    """Nodes hear of newer ones; a restarted scheduler learns them from a node, and tells others."""
    scheduler = Driven("a")
    weights = SetWeights(1, (("u", 2.0),))
    assert [Envelope(monitor("a"), weights)] == scheduler(weights)
    assert [] == scheduler(weights), "told twice"
    assert Envelope(monitor("b"), weights) in scheduler(register("b"))
    restarted = Driven("a")
    out = restarted(node_with("b", weights=weights))
    assert {monitor("a"), monitor("b")} == {e.to for e in out if e.msg == weights}


BEFORE, LATER = JobId("before"), 1.5  # by then a scheduler has settled
MOVED = structs.replace(submit(task(0), task(1), task(2)), replaces=(BEFORE,))


def taken(node: str, *running: int, done: tuple[int, ...] = ()) -> TakenOver:
    """What a node has of the job's earlier submission."""
    keys = tuple(TaskKey(BEFORE, task_id, 3) for task_id in running)
    return TakenOver(NodeName(node), (KeptJob(JOB, keys, done),))


def of(kind: type, out: list[Envelope]) -> list[Any]:
    """The messages of a kind."""
    return [envelope.msg for envelope in out if isinstance(envelope.msg, kind)]


def taking_over(*answers: TakenOver) -> tuple[Driven, list[Envelope]]:
    """A scheduler of two nodes to which a job has moved, and what it sent at the last answer."""
    scheduler = Driven("a", "b")
    assert Envelope(S, AskNodes()) in scheduler(MOVED, LATER)
    out = scheduler(AskNodes(), LATER)
    assert 2 == len(of(TakeOver, out))
    assert [] == scheduler(AskNodes(), LATER), "a duplicate"
    for answer in answers:
        assert [] == of(Reserve, out)
        out = scheduler(answer, LATER)
    return scheduler, out


def test_what_runs_is_adopted_when_a_job_moves() -> None:
    """One task runs, one has finished, and one is placed: no EndJobs, no second attempt."""
    scheduler, out = taking_over(taken("a", 0), taken("b", done=(1,)))
    assert 2 == sum(reserved(out).values())
    assert [] == of(EndJobs, out)
    (status,) = scheduler(PingJob(JOB, C, (0, 1, 2)), LATER)
    assert (1,) == status.msg.finished
    (answer,) = of(AssignTasks, scheduler(get("a", 1, JobReport(BEFORE, (0,))), LATER))
    assert [2] == [task.task_id for task in answer.tasks]
    (status,) = scheduler(PingJob(JOB, C, (0, 1, 2)), LATER)
    assert (0, 1) == status.msg.finished


def test_an_adopted_attempt_that_is_lost_is_tried_again() -> None:
    """Its number is of the earlier submission; others' reports are not about it."""
    scheduler, _ = taking_over(taken("a", 0, 1), taken("b", 2))
    lost = Loss(0, 3, "a-e0", "killed")
    assert [] == scheduler(ReportTasks((JobReport(JOB, (), (lost,)),)), LATER)
    out = scheduler(ReportTasks((JobReport(BEFORE, (), (lost,)),)), LATER)
    assert 2 == sum(reserved(out).values())


def test_what_ends_while_nodes_are_asked_is_not_placed() -> None:
    """A node that has answered reports to the new scheduler at once."""
    scheduler, _ = taking_over(taken("a", 0, 1))
    lost = Loss(1, 3, "a-e0", "killed")
    scheduler(ReportTasks((JobReport(BEFORE, (0,), (lost,)),)), LATER)
    out = scheduler(taken("b", 2), LATER)
    assert 2 == sum(reserved(out).values())


def test_a_node_that_does_not_answer_is_waited_for_a_while() -> None:
    """Then the rest is placed; but what its last heartbeat named is taken for running."""
    scheduler = Driven("a", "b")
    longest = (RunningTask(TaskKey(BEFORE, 1, 1), "b-e0", 2.0),)
    scheduler(structs.replace(register("b"), longest=longest), LATER)
    scheduler(MOVED, LATER)
    scheduler(AskNodes(), LATER)
    assert [] == scheduler(taken("a", 0), LATER)
    out = scheduler(TakeOverTimer(JOB), LATER + 1.0)
    assert 2 == sum(reserved(out).values())
    assert [] == scheduler(TakeOverTimer(JOB), LATER + 1.0)
    again = scheduler(register("b"), LATER + 1.1)
    assert [TakeOver(S, (MovedJob(JOB, (BEFORE,)),))] == of(TakeOver, again), (
        "the question may have been lost"
    )
    late = scheduler(taken("b", 1, 2), LATER + 1.2)
    assert of(CancelReservations, late), "it runs the last task that waited"
    assert [] == of(AssignTasks, scheduler(get("a", 1), LATER + 1.2))


def test_adopted_attempts_may_ask_for_the_shared_part() -> None:
    """By the id under which they began."""
    scheduler = Driven("a", "b")
    scheduler(structs.replace(MOVED, shared=b"shared"), LATER)
    for answer in (AskNodes(), taken("a", 0), taken("b", 1, 2)):
        scheduler(answer, LATER)
    asker = Address("a#a-e0")
    expected = [Envelope(asker, JobShared(BEFORE, S, b"shared"))]
    assert expected == scheduler(GetShared(BEFORE, asker), LATER)


def test_a_scheduler_that_has_just_been_started_waits_until_nodes_have_come() -> None:
    """It may know none of them when the first job moves to it."""
    scheduler = Driven(settle_s=4.0)
    timers = [each for each in scheduler(MOVED) if isinstance(each.msg, TakeOverTimer)]
    assert [4.0] == [each.delay_s for each in timers]


def presuming() -> Driven:
    """A scheduler that takes task 1 for running on b, which has not answered, and grace is over."""
    scheduler = Driven("a", "b")
    longest = (RunningTask(TaskKey(BEFORE, 1, 1), "b-e0", 2.0),)
    scheduler(structs.replace(register("b"), longest=longest), LATER)
    scheduler(MOVED, LATER)
    scheduler(AskNodes(), LATER)
    scheduler(taken("a", 0, 2), LATER)
    assert {} == reserved(scheduler(TakeOverTimer(JOB), LATER + 1.0)), "all three run"
    again = scheduler(register("b"), LATER + 2.5)
    assert {} == reserved(again), "to the old scheduler, it may still name the task"
    assert of(TakeOver, again)
    return scheduler


def test_what_is_presumed_to_run_is_not_placed_before_its_node_answers() -> None:
    """After the answer, its heartbeats tell of the task; one may have been sent before."""
    scheduler = presuming()
    assert [] == scheduler(taken("b", 1), LATER + 2.6)
    assert {} == reserved(scheduler(register("b"), LATER + 2.7))
    assert 2 == sum(reserved(scheduler(register("b"), LATER + 3.7)).values())


def test_what_was_presumed_to_run_may_have_finished_or_be_lost() -> None:
    scheduler = presuming()
    assert [] == scheduler(taken("b", done=(1,)), LATER + 2.6)
    assert {} == reserved(scheduler(register("b"), LATER + 9.0))
    assert [Envelope(C, JobStatus(JOB, True, (1,)))] == scheduler(PingJob(JOB, C, (0, 1, 2)))
    scheduler = presuming()
    assert [] == scheduler(taken("b"), LATER + 2.6)
    assert 2 == sum(reserved(scheduler(register("b"), LATER + 2.7)).values())


def test_a_dead_node_is_not_waited_for() -> None:
    """It is known to be dead: what it had is placed."""
    scheduler, _ = taking_over(taken("a", 0))
    out = scheduler(NodeLost(B, "killed"), LATER)
    assert 4 == sum(reserved(out).values())


def test_a_job_that_ends_before_a_node_has_answered_ends_there_too() -> None:
    """Its answer is what tells that it has something of it."""
    scheduler, _ = taking_over(taken("a"))
    scheduler(EndJob(JOB), LATER)
    assert [Envelope(monitor("b"), EndJob(JOB))] == scheduler(taken("b", 0), LATER)


def test_a_new_scheduler_ends_no_job_that_may_still_come() -> None:
    """Its clients bring the jobs of before; what nobody has claimed for the lease is over."""
    scheduler = Driven("a")
    held = (HeldJob(BEFORE, 0),)
    for now in (0.0, 3.0, 6.0, 9.0):
        assert [] == of(EndJobs, scheduler(register("a", held=held), now))
    assert [EndJobs((BEFORE,))] == of(EndJobs, scheduler(register("a", held=held), 11.0))


def test_a_job_that_has_moved_away_is_forgotten_in_silence() -> None:
    """The new scheduler may still be about to ask the nodes; much later they are told."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    assert [] == scheduler(EndJob(JOB, moved=True))
    held = (HeldJob(JOB, 0),)
    assert [] == of(EndJobs, scheduler(register("a", held=held), 0.5))
    assert [EndJobs((JOB,))] == of(EndJobs, scheduler(register("a", held=held), 10.5))


def test_it_answers_pings() -> None:
    """So that clients know it lives."""
    assert [Envelope(C, Pong(S))] == Driven()(Ping(C))


def test_a_finished_job_is_forgotten_without_haste() -> None:
    """No message for it, but to nodes with reservations; heartbeats that name it are answered."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0), task(1)))
    scheduler(get("a", 1))
    out = scheduler(EndJob(JOB, finished=True))
    assert {Envelope(monitor(name), EndJob(JOB)) for name in "ab"} == set(out)
    out = scheduler(register("a", held=(HeldJob(JOB, 0),)))
    assert [Envelope(monitor("a"), EndJobs((JOB,)))] == out


def test_a_node_that_joins_helps_open_jobs() -> None:
    """It gets its part of the reservations of tasks that wait, and those that prefer it."""
    scheduler = Driven("a")
    scheduler(submit(*(task(number) for number in range(4))))
    assert {monitor("b"): 4} == reserved(scheduler(register("b")))
    assert {} == reserved(scheduler(register("b", held=(HeldJob(JOB, 4),))))
    scheduler = Driven("a")
    scheduler(submit(TaskSpec(0, b"p", ("a", "b")), task(1, "a"), task(2)))
    assert {monitor("b"): 2} == reserved(scheduler(register("b")))
    answer = scheduler(get("b", 3))[0].msg
    assert isinstance(answer, AssignTasks)
    assert [0, 2] == [each.task_id for each in answer.tasks]
    assert {} == reserved(scheduler(node_with("c", "gpu", framework="other")))


def test_a_job_that_is_to_be_explained_is() -> None:
    """When all its tasks are bound its client is told who was probed, and who asked when."""
    scheduler = Driven("a", "b")
    scheduler(explained(submit(task(1, "a"), task(2))), 10.0)
    told = scheduler(get("a", 2), 10.5)[-1]
    assert C == told.to
    assert isinstance(told.msg, JobPlaced)
    kinds = [(step.node, step.what) for step in told.msg.steps]
    assert [("a", "reserved"), ("b", "reserved"), ("a", "asked")] == kinds
    assert PlacementStep(0.5, A, "asked", 2, (1, 2)) == told.msg.steps[-1]


def test_loads_are_explained_too() -> None:
    """Batch sampling: who was asked for its load, what it told, where the task went."""
    scheduler = Driven("a", "b")
    scheduler(explained(submit(task(1), placement="batch")), 1.0)
    scheduler(NodeLoad(JOB, A, 3), 1.25)
    scheduler(NodeLoad(JOB, B, -1), 1.5)
    told = scheduler(get("b", 1), 2.0)[-1].msg
    assert isinstance(told, JobPlaced)
    probed = {(step.node, step.what) for step in told.steps[:2]}
    assert {("a", "probed"), ("b", "probed")} == probed
    expected = (
        PlacementStep(0.25, A, "told", 3),
        PlacementStep(0.5, B, "told", -1),
        PlacementStep(0.5, B, "reserved", 1),
        PlacementStep(1.0, B, "asked", 1, (1,)),
    )
    assert expected == told.steps[2:]


def explained(msg: SubmitJob) -> SubmitJob:
    """A submission of a job that is to be explained."""
    return structs.replace(msg, options=structs.replace(msg.options, explain=True))


def test_jobs_end_when_no_executor_comes_back() -> None:
    """Nodes without executors are waited for, but not for ever; the error says how they died."""
    scheduler = Driven("a", "b")
    scheduler(submit(task(0)))
    bare = [
        structs.replace(register(n), executors=(), deaths=1, last_death=f"{n}-e0: {how}")
        for n, how in (("a", "killed by SIGKILL"), ("b", "exit status 1"))
    ]
    limit_s = SchedulerConfig().executors_wait_s

    def sent(at: float) -> list[Any]:
        for heartbeat in bare:
            scheduler(heartbeat, at)
        ping = scheduler(PingJob(JOB, C, (0,)), at)
        assert [Envelope(C, JobStatus(JOB, True, ()))] == ping
        out = scheduler(Tick(scheduler.machine._ticks._generation), at)
        return [each.msg for each in out if isinstance(each.msg, JobAborted)]

    quiet = [sent(at) for at in (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, limit_s)]
    assert [[]] * 8 == quiet
    text = "no executor has come up for 15 s; a-e0: killed by SIGKILL; b-e0: exit status 1"
    assert [JobAborted(JOB, "no_executors", text)] == sent(limit_s + 1.0)


def test_jobs_end_whose_tasks_wait_at_a_node_without_executors() -> None:
    """That a node has a task already is no reason to wait for ever."""
    scheduler = Driven("a")
    scheduler(submit(task(0)))
    scheduler(get("a", 1))
    bound = register("a", running=(TaskKey(JOB, 0, 1),))
    bare = structs.replace(bound, executors=(), deaths=1, last_death="a-e0: SIGKILL")

    def aborted(at: float) -> list[str]:
        scheduler(bare, at)
        scheduler(PingJob(JOB, C, (0,)), at)
        out = scheduler(Tick(scheduler.machine._ticks._generation), at)
        return [each.msg.message for each in out if isinstance(each.msg, JobAborted)]

    assert [[]] * 8 == [aborted(2.0 * number) for number in range(8)]
    assert ["no executor has come up for 15 s; a-e0: SIGKILL"] == aborted(16.0)


def test_a_job_that_moves_on_while_nodes_are_asked_goes_on() -> None:
    """Their answers are about a submission that has been replaced in its turn."""
    scheduler, _ = taking_over(taken("a", 0))
    scheduler(EndJob(JOB, moved=True), LATER)
    assert [] == scheduler(taken("b", 1), LATER)
