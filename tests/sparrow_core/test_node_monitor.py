from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec import structs

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Tick
from sparrow_core.machines.node_monitor import NodeMonitor, NodeMonitorConfig
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AssignTasks,
    CancelReservations,
    Drain,
    Drained,
    EndJob,
    EndJobs,
    ExecutorLost,
    ExecutorStatus,
    Flush,
    GetShared,
    GetTasks,
    JobShared,
    KillExecutor,
    NodeLeft,
    NodeLoad,
    NodeMonitorIn,
    NodeRefused,
    ProbeLoad,
    RefuseReservations,
    RegisterNode,
    ReportTasks,
    Reserve,
    ReturnTask,
    RunTasks,
    SetSchedulers,
    SetWeights,
    StopTask,
    TakenOver,
    TakeOver,
    TaskError,
    TasksEnded,
    TasksWithdrawn,
)
from sparrow_core.protocol.types import (
    Assignment,
    AttemptEnd,
    Blame,
    Claim,
    ExecutorInfo,
    HeldJob,
    JobReport,
    KeptJob,
    Loss,
    MovedJob,
    NodeLevel,
    RunningTask,
    TaskKey,
)

N, M, S, C = NodeName("n"), Address("n#monitor"), Address("s#scheduler"), Address("c#client")
E0, E1 = Address("e0#n-e0"), Address("e1#n-e1")
JOB, OTHER = JobId("job"), JobId("other")
SUPERVISOR = Address("n#supervisor")


def key(task_id: int, attempt: int = 1, job: JobId = JOB) -> TaskKey:
    """An attempt."""
    return TaskKey(job, task_id, attempt)


def get(
    job: JobId,
    request: int,
    count: int,
    reports: tuple[JobReport, ...] = (),
    level: NodeLevel | None = None,
) -> GetTasks:
    """A request for tasks."""
    return GetTasks(
        job_id=job, node=N, request=request, count=count, reports=reports, level=level
    )  # fmt: skip


def run(*ids: int, shared: bool = False) -> RunTasks:
    """The message that runs tasks."""
    return RunTasks(JOB, C, shared, tuple(Assignment(i, 1, b"p") for i in ids))


def ended(task_id: int, lost: str | None = None, run_s: float | None = None) -> TasksEnded:
    """An executor's message that a task has ended."""
    return TasksEnded(JOB, E0, (AttemptEnd(task_id, 1, run_s, lost),))


def loss(task_id: int, reason: str, blame: Blame = Blame.DEATH, *, attempt: int = 1) -> JobReport:
    """The report of a lost attempt."""
    return JobReport(JOB, (), (Loss(task_id, attempt, "n-e0", reason, blame),))


def assign(request: int, *ids: int, drained: bool = False, shared: bool = False) -> AssignTasks:
    """An answer to GetTasks."""
    return AssignTasks(
        job_id=JOB,
        scheduler=S,
        client=C,
        request=request,
        tasks=tuple(Assignment(i, 1, b"p") for i in ids),
        drained=drained,
        has_shared=shared,
    )


class Driven:
    """A node monitor that is checked after each message, and flushed as a driver would."""

    def __init__(self, supervisor: Address | None = SUPERVISOR, **slots: int) -> None:
        self.machine = NodeMonitor(N, M, (S,), supervisor=supervisor)
        self.generations = itertools.count()
        self.ticked_at = 0.0
        for name, count in slots.items():
            self(ExecutorStatus(info(name, count), (), ()))

    def ticks(self, until_s: float, step_s: float = 0.5) -> list[Envelope]:
        """Let time pass up to then; what is sent meanwhile."""
        out: list[Envelope] = []
        while self.ticked_at + step_s <= until_s:
            self.ticked_at += step_s
            out += self(Tick(next(self.generations)), now=self.ticked_at)
        return out

    def step(self, msg: NodeMonitorIn, now: float = 0.0) -> list[Envelope]:
        """Deliver one message."""
        out = self.machine.on_message(msg, now)
        self.machine.check()
        return out

    def __call__(self, *msgs: NodeMonitorIn, now: float = 0.0) -> list[Envelope]:
        """Deliver messages that arrive together, then the note to itself."""
        out = [envelope for msg in msgs for envelope in self.step(msg, now)]
        note = Envelope(M, Flush())
        assert out.count(note) <= 1
        if note in out:
            out.remove(note)
            out += self.step(Flush(), now)
        return out


def info(name: str, slots: int) -> ExecutorInfo:
    """An executor."""
    return ExecutorInfo(Address(f"{name}#n-{name}"), 7, slots)


def test_it_asks_for_as_many_tasks_as_slots_are_free_in_one_message() -> None:
    """Slots of all executors count; the rest of the reservations stays queued."""
    node = Driven(e0=2, e1=1)
    expected = [Envelope(S, get(JOB, 1, 3, ()))]
    assert expected == node(Reserve(JOB, S, 2), Reserve(JOB, S, 4))
    assert [] == node(Reserve(OTHER, S, 1)), "no slot is free"


def test_reservations_are_served_in_order_of_arrival() -> None:
    """First in, first out, over jobs."""
    node = Driven(e0=2)
    out = node(Reserve(OTHER, S, 1), Reserve(JOB, S, 2))
    expected = [
        Envelope(S, get(OTHER, 1, 1, ())),
        Envelope(S, get(JOB, 2, 1, ())),
    ]
    assert expected == out


def test_tasks_go_to_the_idlest_executor() -> None:
    """Assigned tasks run at once, spread over executors."""
    node = Driven(e0=2, e1=1)
    node(Reserve(JOB, S, 3))
    expected = [Envelope(E0, run(0, 1)), Envelope(E1, run(2))]
    out = node(assign(1, 0, 1, 2))
    assert sorted(map(repr, expected)) == sorted(map(repr, out))


def test_finished_tasks_ride_on_the_next_request() -> None:
    """Slots freed together make one GetTasks that carries all reports."""
    node = Driven(e0=2)
    node(Reserve(JOB, S, 9))
    node(assign(1, 0, 1))
    out = node(ended(0), ended(1))
    reports = (JobReport(JOB, (0, 1)),)
    assert [Envelope(S, get(JOB, 2, 2, reports))] == out


def test_reports_travel_alone_when_there_is_nothing_to_ask() -> None:
    """Without reservations a small message tells the scheduler; a repetition tells nothing."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, drained=True))
    out = node(ended(0, "retry"))
    expected = [Envelope(S, ReportTasks((loss(0, "retry"),)))]
    assert expected == out
    assert [] == node(ended(0))


def test_a_drained_job_gives_its_slots_to_the_next() -> None:
    """An answer without tasks drops the job's reservations and frees the slots asked for."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 3), Reserve(OTHER, S, 1))
    expected = [Envelope(S, get(OTHER, 2, 1, ()))]
    assert expected == node(assign(1, drained=True))


def test_cancelled_reservations_leave_the_queue() -> None:
    """CancelReservations drops what is queued, and nothing of other jobs."""
    node = Driven()
    node(Reserve(JOB, S, 3), Reserve(OTHER, S, 1), CancelReservations(JOB, 1))
    out = node(ExecutorStatus(info("e0", 4), (), ()))
    assert Envelope(S, get(OTHER, 1, 1, ())) == out[-1]
    assert GetTasks not in [type(envelope.msg) for envelope in out[:-1]]


def test_the_shared_part_goes_to_each_executor_once() -> None:
    """JobShared precedes the first task of the job to an executor."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 2))
    shared = JobShared(JOB, S, b"common")
    out = node(shared, assign(1, 0, shared=True))
    assert [Envelope(E0, shared), Envelope(E0, run(0, shared=True))] == out
    assert [Envelope(E0, shared)] == node(GetShared(JOB, E0))
    node(ended(0))
    assert [Envelope(E0, run(1, shared=True))] == node(assign(2, 1, shared=True))


def test_a_lost_shared_part_is_fetched_from_the_scheduler() -> None:
    """An executor's question is passed on; of an ended job it is told so."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, shared=True))
    assert [Envelope(S, GetShared(JOB, E0))] == node(GetShared(JOB, E0))
    assert [Envelope(E0, EndJob(OTHER))] == node(GetShared(OTHER, E0))


def test_a_lost_executor_gives_its_tasks_back() -> None:
    """Its tasks are reported lost, it is unregistered, and what it sent before is ignored."""
    node = Driven(e0=1, e1=1)
    node(Reserve(JOB, S, 2))
    node(assign(1, 0, 1))
    lost = node.step(ExecutorLost(E0, "killed by SIGKILL"))
    report = loss(0, "executor lost (killed by SIGKILL)")
    registered = RegisterNode(
        version=PROTOCOL_VERSION, name=N, address=M, executors=(info("e1", 1),),
        held=(HeldJob(JOB, 0),), running=(key(1),),
        load=(0, 1), reports=(report,), deaths=1,
        last_death="n-e0: killed by SIGKILL, while it had task 0", schedulers=(S,),
    )  # fmt: skip
    assert [Envelope(S, registered), Envelope(M, Flush())] == lost
    assert [] == node.step(Flush())
    assert [] == node(ExecutorLost(E0, "told twice"))
    assert [] == node(ExecutorStatus(info("e0", 1), (), ()))


def test_tasks_that_an_executor_does_not_know_are_lost() -> None:
    """After a time of grace, a heartbeat without the task means that RunTasks was lost."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, drained=True))
    status = ExecutorStatus(info("e0", 1), (), ())
    assert [] == node(status, now=0.5)
    lost = Loss(0, 1, "n-e0", "the executor does not know of it", Blame.NONE)
    expected = [Envelope(S, ReportTasks((JobReport(JOB, (), (lost,)),)))]
    assert expected == node(status, now=1.0)


def test_executors_hear_again_of_jobs_that_are_over() -> None:
    """A heartbeat that names an unknown job is answered with EndJob."""
    node = Driven(e0=1)
    status = ExecutorStatus(info("e0", 1), (OTHER,), ())
    assert [Envelope(E0, EndJobs((OTHER,)))] == node(status)


def test_the_end_of_a_job_empties_queue_and_executors() -> None:
    """Its reservations and waiting tasks go; executors are told; slots are asked for again."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 5))
    node(assign(1, 0))
    assert [Envelope(E0, EndJobs((JOB,)))] == node(EndJob(JOB))
    assert [] == node(EndJob(JOB))
    out = node(ended(0), Reserve(OTHER, S, 1))
    reports = (JobReport(JOB, (0,)),)
    assert [Envelope(S, get(OTHER, 2, 1, reports))] == out


def test_a_scheduler_that_does_not_answer_loses_its_place() -> None:
    """After the limit its reservations are dropped and the slots go to other schedulers' jobs."""
    node = Driven(e0=1)
    other = Address("s2#scheduler")
    node(Reserve(JOB, S, 5), Reserve(OTHER, other, 1))
    assert [] == [e for e in node(Tick(0), now=0.4) if isinstance(e.msg, GetTasks)]
    out = node(Tick(1), now=0.9)
    assert Envelope(other, get(OTHER, 2, 1, ())) == out[-1]


def test_a_late_answer_waits_for_a_slot() -> None:
    """Tasks that come after the limit, or twice, run once and never beyond the slots."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1), Reserve(OTHER, Address("s2#scheduler"), 1))
    node(Tick(0), now=0.6)
    late = assign(1, 0)
    assert [Envelope(E0, run(0))] == node(late, now=0.7)
    assert [] == node(late, assign(9, 1), now=0.7)
    out = node(ended(0), now=0.8)
    assert Envelope(E0, run(1)) == out[0]


def test_heartbeats_say_what_the_node_has_of_each_schedulers_jobs() -> None:
    """Queued reservations by job, jobs with tasks, and running tasks."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1), Reserve(OTHER, S, 2), Reserve(OTHER, S, 1))
    node(assign(1, 0))
    timer, beat = node(Tick(0))
    assert Envelope(M, Tick(1), 0.5) == timer
    held = (HeldJob(JOB, 0), HeldJob(OTHER, 3))
    expected = RegisterNode(
        version=PROTOCOL_VERSION,
        name=N,
        address=M,
        executors=(info("e0", 1),),
        held=held,
        running=(key(0),),
        load=(3, 1),
        schedulers=(S,),
    )
    assert Envelope(S, expected) == beat
    assert [] == node(Tick(0)), "a doubled timer"


def test_levels_are_told_to_those_who_want_them() -> None:
    """With requests as if nothing were asked, and once when the node falls idle."""
    node = Driven(e0=1, e1=1)
    levels = Claim(levels=True)
    asked = node(Reserve(JOB, S, 3, levels))
    assert [Envelope(S, get(JOB, 1, 2, (), NodeLevel(1 - 2, 1)))] == asked
    assert [] == node(CancelReservations(JOB, 1)), "it has told that its slots are free"
    node(Reserve(OTHER, S, 1, levels))
    answer = AssignTasks(
        job_id=OTHER, scheduler=S, client=C, request=2, tasks=(Assignment(0, 1, b""),),
        drained=True, has_shared=False, claim=levels,
    )  # fmt: skip
    node(answer)
    out = node(TasksEnded(OTHER, E0, (AttemptEnd(0, 1, 0.1),)))
    told = ReportTasks((JobReport(OTHER, (0,)),), N, NodeLevel(-2, 3))
    assert [Envelope(S, told)] == out
    assert [] == node(Tick(9), Flush())
    # Schedulers tell each other, for a while also of a process that is no more.
    restarted = Driven(e0=1)
    restarted(Tick(0), now=5.0)
    asked = restarted(Reserve(JOB, S, 1, levels), now=5.1)
    assert [Envelope(S, get(JOB, 1, 1, (), NodeLevel(-1, 5_000_001)))] == asked


def test_the_supervisor_hears_of_a_refusal() -> None:
    """NodeRefused is passed on; from then on, the node serves the other schedulers."""
    supervisor, other = Address("n#supervisor"), Address("t#scheduler")
    node = Driven()
    node(SetSchedulers((S, other)))
    refused = NodeRefused("other version", S)
    assert [Envelope(supervisor, structs.replace(refused, others=True))] == node(refused)
    assert {other} == {each.to for each in node(Tick(0)) if isinstance(each.msg, RegisterNode)}
    last = NodeRefused("other version", other)
    assert [Envelope(supervisor, last)] == node(last)
    assert [] == Driven()(Flush()), "a stray note"


def test_very_short_tasks_are_asked_for_ahead_of_free_slots() -> None:
    """A slot whose job's tasks take 0.1 ms may have ten more; not of a job that is unknown."""
    node = Driven(e0=1)
    assert [Envelope(S, get(JOB, 1, 1, ()))] == node(Reserve(JOB, S, 40))
    node(assign(1, 0))
    (ask,) = node(ended(0, run_s=0.0001))
    assert isinstance(ask.msg, GetTasks)
    assert 11 == ask.msg.count
    node(assign(2, *range(1, 12)))
    node(CancelReservations(JOB, 1))
    node(Reserve(OTHER, S, 1))
    for task_id in range(1, 11):
        assert [] == node(ended(task_id, run_s=0.0001))
    (ask,) = node(ended(11, run_s=0.0001))
    assert isinstance(ask.msg, GetTasks)
    assert (OTHER, 1) == (ask.msg.job_id, ask.msg.count)


def test_nobody_waits_behind_tasks_that_are_fetched_ahead() -> None:
    """While a job of another group waits, no more are fetched, and it gets the next free slot."""
    node = with_policy("fair")
    crowd, query = Claim(group="crowd"), Claim(group="query")
    node(executor("e0", 1))
    node(Reserve(JOB, S, 40, crowd))
    node(structs.replace(assign(1, 0), claim=crowd))
    (ask,) = node(ended(0, run_s=0.0001))
    assert isinstance(ask.msg, GetTasks)
    ahead = ask.msg.count
    assert ahead > 1
    node(structs.replace(assign(2, *range(1, 1 + ahead)), claim=crowd))
    assert [] == node(Reserve(OTHER, S, 1, query))
    for number in range(1, ahead):
        assert [] == asked(node(ended(number, run_s=0.0001), now=0.0001 * number))
    assert (OTHER, 1) == asked(node(ended(ahead, run_s=0.0001), now=0.0001 * ahead))[0]


def test_long_tasks_are_never_asked_for_ahead() -> None:
    """They are bound when a slot is free, and not before."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 40))
    node(assign(1, 0))
    (ask,) = node(ended(0, run_s=0.01))
    assert isinstance(ask.msg, GetTasks)
    assert 1 == ask.msg.count


def with_policy(policy: str = "fifo", **config: Any) -> Driven:
    """A node without executors."""
    node = Driven()
    node.machine = NodeMonitor(
        N, M, (S,), supervisor=Address("n#supervisor"), attributes=("gpu",),
        config=NodeMonitorConfig(policy=policy, **config),
    )  # fmt: skip
    return node


def executor(name: str, slots: int, framework: str = "") -> ExecutorStatus:
    """The first heartbeat of an executor."""
    return ExecutorStatus(ExecutorInfo(Address(f"{name}#n-{name}"), 7, slots, framework), (), ())


def asked(out: list[Envelope]) -> list[tuple[JobId, int]]:
    """For which jobs how many tasks are asked for."""
    return [(e.msg.job_id, e.msg.count) for e in out if isinstance(e.msg, GetTasks)]


def test_the_policy_decides_whose_turn_it_is() -> None:
    """The most urgent job is asked for first under strict priority."""
    node = with_policy("priority")
    node(Reserve(OTHER, S, 1, Claim(priority=5)), Reserve(JOB, S, 1, Claim(priority=2)))
    assert [(JOB, 1)] == asked(node(executor("e0", 1)))


def test_a_sticky_reservation_asks_for_more_until_the_job_is_drained() -> None:
    """One reservation serves a job's waiting tasks one after the other."""
    node = with_policy("srpt")
    node(executor("e0", 1))
    claim = Claim(waiting=3)
    assert [(JOB, 1)] == asked(node(Reserve(JOB, S, 1, claim)))
    answer = AssignTasks(
        job_id=JOB,
        scheduler=S,
        client=C,
        request=1,
        tasks=(Assignment(0, 1, b"p"),),
        drained=False,
        has_shared=False,
        claim=Claim(waiting=1),
    )
    assert [] == asked(node(answer))
    assert [(JOB, 1)] == asked(node(ended(0)))
    assert [] == asked(
        node(
            AssignTasks(
                job_id=JOB,
                scheduler=S,
                client=C,
                request=2,
                tasks=(),
                drained=True,
                has_shared=False,
            )
        )
    )
    assert {"queued": 0, "asking": 0} == {
        name: node.machine.gauges()[name] for name in ("queued", "asking")
    }


def test_without_a_queue_everything_starts_at_once() -> None:
    """Every reservation asks, and every task goes to an executor, beyond its slots."""
    node = with_policy("no_queue")
    node(executor("e0", 1))
    assert [(JOB, 5)] == asked(node(Reserve(JOB, S, 5)))
    out = node(assign(1, 0, 1, 2))
    assert [run(0, 1, 2)] == [e.msg for e in out if isinstance(e.msg, RunTasks)]


def test_frameworks_share_the_slots_of_a_node() -> None:
    """Each has executors of its own; together they run no more tasks than the node has slots."""
    node = with_policy("fifo", slots=3)
    node(executor("e0", 2, "a"), executor("e1", 2, "b"))
    out = node(Reserve(JOB, S, 4, Claim(framework="a")), Reserve(OTHER, S, 4, Claim(framework="b")))
    assert [(JOB, 2), (OTHER, 1)] == asked(out)
    tasks = (Assignment(0, 1, b"p"),)
    out = node(
        AssignTasks(
            job_id=OTHER,
            scheduler=S,
            client=C,
            request=2,
            tasks=tasks,
            drained=False,
            has_shared=False,
            claim=Claim(framework="b"),
        )
    )
    assert [E1] == [e.to for e in out if isinstance(e.msg, RunTasks)]
    assert [] == asked(node(Reserve(JobId("third"), S, 1, Claim(framework="c"))))


def test_a_full_queue_refuses_in_words() -> None:
    """Reservations beyond the limit go back to the scheduler; those that fit stay."""
    node = with_policy(queue_max=3)
    assert [Envelope(S, RefuseReservations(JOB, N, 2))] == node(Reserve(JOB, S, 5))
    assert [Envelope(S, RefuseReservations(OTHER, N, 1))] == node(Reserve(OTHER, S, 1))
    (beat,) = [e.msg for e in node(Tick(0)) if isinstance(e.msg, RegisterNode)]
    assert (HeldJob(JOB, 3),) == beat.held


def test_it_tells_its_load() -> None:
    """Queued reservations, or minus the free slots."""
    node = with_policy()
    node(executor("e0", 2))
    assert [Envelope(S, NodeLoad(JOB, N, -2))] == node(ProbeLoad(JOB, S))
    node(Reserve(JOB, S, 5))
    assert [Envelope(S, NodeLoad(JOB, N, 3))] == node(ProbeLoad(JOB, S))


def test_a_cancellation_answers_what_was_asked() -> None:
    """The slots that waited for the job's scheduler go to the next job at once."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 2), Reserve(OTHER, S, 1))
    assert [(OTHER, 1)] == asked(node(CancelReservations(JOB, 1)))


def test_a_replaced_job_frees_the_slots_that_waited_for_its_scheduler() -> None:
    """EndJobs of a submission whose scheduler is dead lets the node ask for others."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 2), Reserve(OTHER, Address("s2#scheduler"), 1))
    assert [(OTHER, 1)] == asked(node(EndJobs((JOB,))))


def test_successes_ride_on_heartbeats() -> None:
    """With nothing to ask for they wait for the next one; nothing is sent for them alone."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, drained=True))
    assert [] == node(ended(0))
    beat = node(Tick(0))[1].msg
    assert isinstance(beat, RegisterNode)
    assert (JobReport(JOB, (0,)),) == beat.reports


def test_a_silent_executor_is_lost_until_it_is_heard_again() -> None:
    """Its tasks are given back; when it goes on they are stopped, and it may run others."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 2))
    node(assign(1, 0))
    for generation in range(11):
        out = node(Tick(generation), now=0.5 * (generation + 1))
    lost = [each for e in out if isinstance(e.msg, RegisterNode) for each in e.msg.reports]
    assert [loss(0, "executor lost (silent for 5 s)", Blame.SILENCE)] == lost
    back = ExecutorStatus(info("e0", 1), (JOB,), (key(0),))
    out = node(back, now=6.0)
    assert Envelope(E0, StopTask(key(0))) == out[0]
    assert [(JOB, 1)] == asked(out)


HEARD = ExecutorStatus(info("e0", 1), (JOB,), (key(0),))


def kills(out: list[Envelope]) -> list[str]:
    """Why executors are killed."""
    assert all(e.to == SUPERVISOR for e in out if isinstance(e.msg, KillExecutor))
    return [e.msg.reason for e in out if isinstance(e.msg, KillExecutor)]


def reports(out: list[Envelope]) -> list[JobReport]:
    """What a scheduler hears of attempts."""
    told = [e.msg for e in out if isinstance(e.msg, RegisterNode | ReportTasks | GetTasks)]
    return [report for msg in told for report in msg.reports]


def with_task(
    attempt: int = 1, limit_s: float | None = None, supervisor: Address | None = SUPERVISOR
) -> Driven:
    """A node whose executor has a task since second 0."""
    node = Driven(supervisor, e0=1)
    node(Reserve(JOB, S, 1))
    tasks = (Assignment(0, attempt, b"p"),)
    node(structs.replace(assign(1, 0, drained=True), tasks=tasks, limit_s=limit_s))
    return node


def test_an_executor_that_stays_silent_is_killed() -> None:
    """Once; its tasks are lost long before, and what it sent before its death is not heard."""
    node = with_task()
    assert [] == kills(node.ticks(15.0))
    out = node.ticks(16.0)
    assert ["silent for 16 s"] == kills(out)
    beat = next(e.msg for e in out if isinstance(e.msg, RegisterNode))
    assert (1, "n-e0: silent for 16 s, and killed") == (beat.deaths, beat.last_death)
    assert [] == node(HEARD, now=16.1)
    assert [] == node(ExecutorLost(E0, "killed by SIGKILL"), now=16.1)
    assert [] == kills(node.ticks(40.0))


def test_a_task_is_not_blamed_for_a_silence_that_is_older() -> None:
    """It was given to an executor that had been suspended, say."""
    node = Driven(e0=1)
    node.ticks(2.0)
    node(Reserve(JOB, S, 1), now=2.0)
    node(assign(1, 0, drained=True), now=2.0)
    assert [loss(0, "executor lost (silent for 5 s)")] == reports(node.ticks(5.5))


def test_of_an_executors_tasks_only_those_are_blamed_that_may_have_silenced_it() -> None:
    """Not one that came to another slot of it three seconds later."""
    node = Driven(e0=2)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, drained=True))
    node.ticks(3.0)
    node(Reserve(OTHER, S, 1), now=3.0)
    node(structs.replace(assign(2, 0, drained=True), job_id=OTHER), now=3.0)
    lost = [(each.job_id, each.lost[0].blame) for each in reports(node.ticks(5.5))]
    assert [(JOB, Blame.SILENCE), (OTHER, Blame.DEATH)] == lost


def test_a_silent_executor_that_is_heard_in_time_lives() -> None:
    """As after a suspension; from then on it has as long again."""
    node = with_task()
    node.ticks(14.0)
    node(HEARD, now=14.0)
    assert [] == kills(node.ticks(28.0))
    assert 1 == len(kills(node.ticks(30.0)))


def test_a_silent_executor_keeps_what_was_lost_before_until_it_is_killed() -> None:
    """That may be what silences executors: no other is to have it meanwhile."""
    node = with_task(attempt=2)
    assert [] == reports(node.ticks(15.0))
    out = node.ticks(15.5)
    assert ["silent for 16 s"] == kills(out)
    text = "executor lost (silent for 16 s, and killed)"
    assert [loss(0, text, Blame.SILENCE, attempt=2)] == reports(out)


def test_without_a_supervisor_no_executor_is_killed() -> None:
    """Threads can't be; their tasks are lost after some seconds, whichever attempt it is."""
    node = with_task(attempt=2, supervisor=None)
    assert 1 == len(reports(node.ticks(6.0)))
    assert [] == kills(node.ticks(60.0))


def test_a_silent_executor_is_killed_soon_after_its_tasks_limit() -> None:
    """The client is told at once that the task took too long; it is not tried again."""
    node = with_task(limit_s=1.0)
    assert [] == kills(node.ticks(4.5))
    out = node.ticks(5.0)
    assert ["did not end a task 4 s after it should have"] == kills(out)
    text = "it ran longer than 1 s, and did not end"
    error = TaskError(key(0), N, "n-e0", text, b"", timed_out=True)
    assert [Envelope(C, error)] == [e for e in out if isinstance(e.msg, TaskError)]
    assert [JobReport(JOB, (0,))] == reports(out)


def test_an_executor_that_is_heard_has_longer_for_a_task_beyond_its_limit() -> None:
    """It may be fetching inputs, or storing a result; in the end it is killed all the same."""
    node = with_task(limit_s=1.0)
    for second in range(1, 12):
        node(HEARD, now=second)
        assert [] == kills(node.ticks(second))
    node(HEARD, now=12.0)
    assert ["did not end a task 10 s after it should have"] == kills(node.ticks(12.0))


def test_a_task_whose_executor_dies_after_its_limit_has_timed_out() -> None:
    """Before the limit it would be tried again."""
    for died_at, told in ((0.9, False), (1.9, True)):
        node = with_task(limit_s=1.0)
        node.ticks(0.5)
        out = node(ExecutorLost(E0, "exit status 1"), now=died_at)
        assert told == any(isinstance(e.msg, TaskError) for e in out)


@pytest.mark.parametrize("stop", [StopTask(key(0)), EndJob(JOB)])
def test_an_executor_that_does_not_stop_a_task_is_killed(stop: StopTask | EndJob) -> None:
    """Soon if it is silent, and at last in any case."""
    node = with_task()
    node(stop, now=0.5)
    assert ["did not end a task 4 s after it should have"] == kills(node.ticks(4.0))
    node = with_task()
    node(stop, now=0.5)
    for second in range(1, 11):
        node(HEARD, now=second)
        assert [] == kills(node.ticks(second))
    node(HEARD, now=11.0)
    assert ["did not end a task 10 s after it should have"] == kills(node.ticks(11.0))


def test_what_waits_behind_another_task_has_time() -> None:
    """Its limit counts from when it can have begun, and so does the wait for its end."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 2))
    short = Claim(task_s=0.0001)
    out = node(structs.replace(assign(1, 0, 1, drained=True), limit_s=20.0, claim=short))
    assert [2] == [len(e.msg.tasks) for e in out if isinstance(e.msg, RunTasks)]
    node(StopTask(key(1)), now=0.0)
    heard = structs.replace(HEARD, running=(key(0), key(1)))
    for second in range(1, 16):
        node(heard, now=second)
        assert [] == kills(node.ticks(second))
    node(ended(0), now=15.0)
    node(heard, now=20.0)
    assert [] == kills(node.ticks(20.0))


def test_its_own_stall_is_no_executors_silence() -> None:
    """A node monitor that was stopped for a minute does not give its executors up."""
    node = Driven(e0=1)
    node(Tick(0), now=0.5)
    out = node(Tick(1), now=60.0)
    assert [1] == [len(e.msg.executors) for e in out if isinstance(e.msg, RegisterNode)]


def test_its_own_stall_does_not_kill_a_silent_executor() -> None:
    """Both were suspended: it has the rest of its time, as if none had passed."""
    node = with_task()
    node.ticks(10.0)
    assert [] == kills(node.ticks(100.0, step_s=90.0))
    assert [] == kills(node.ticks(104.0))
    assert 1 == len(kills(node.ticks(107.0)))


@pytest.mark.parametrize("is_stopped", [False, True])
def test_its_own_stall_is_no_overtime(is_stopped: bool) -> None:
    """Both were suspended: a task has the rest of its time, and to end when it is asked to."""
    node = with_task(limit_s=20.0)
    node.ticks(2.0)
    if is_stopped:
        node(StopTask(key(0)), now=2.0)
    node(HEARD, now=2.0)
    assert [] == kills(node.ticks(92.0, step_s=90.0))
    killed_at = 102 if is_stopped else 121
    for second in range(93, killed_at):
        node(HEARD, now=second)
        assert [] == kills(node.ticks(second))
    node(HEARD, now=killed_at)
    assert ["did not end a task 10 s after it should have"] == kills(node.ticks(killed_at))


def test_a_repeated_wish_to_stop_a_task_grants_no_more_time() -> None:
    """Messages may be duplicated."""
    node = with_task()
    for second in range(1, 11):
        node(StopTask(key(0)), now=second)
        node(HEARD, now=second)
        assert [] == kills(node.ticks(second))
    node(HEARD, now=11.5)
    assert ["did not end a task 10 s after it should have"] == kills(node.ticks(11.5))


def test_a_draining_node_serves_what_it_has_and_leaves() -> None:
    """New reservations are refused; the last task's end makes it say goodbye, once."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, drained=True))
    (beat,) = node(Drain())
    assert isinstance(beat.msg, RegisterNode)
    assert beat.msg.draining
    assert [Envelope(S, RefuseReservations(OTHER, N, 2))] == node(Reserve(OTHER, S, 2))
    left = NodeLeft(N, (JobReport(JOB, (0,)),))
    expected = [Envelope(S, left), Envelope(Address("n#supervisor"), Drained())]
    assert expected == node(ended(0))
    assert [Envelope(M, Tick(1), 0.5)] == node(Tick(0)), "no heartbeat any more"


@pytest.mark.parametrize("order", ["in time", "duplicated", "swapped"])
def test_a_node_that_is_held_leaves_when_it_is_let_go(order: str) -> None:
    """It goes on to say that it drains; once it may leave, an old message does not keep it."""
    node = Driven(e0=1)
    hold, leave = Drain(hold=True), Drain()
    left = Envelope(S, NodeLeft(N))
    if order == "swapped":
        assert left in node(leave, hold)
        return
    assert left not in node(hold)
    beat = node(Tick(0))[1].msg
    assert isinstance(beat, RegisterNode)
    assert beat.draining
    assert left in node(leave, hold)
    assert order == "in time" or [] == node(leave)


def test_newer_weights_replace_older_ones() -> None:
    """And heartbeats carry them, so that a restarted scheduler learns them again."""
    node = with_policy("fair")
    weights = SetWeights(2, (("a", 3.0), ("b", -1.0)))
    node(weights)
    node(SetWeights(1, (("a", 5.0),)))
    beat = node(Tick(0))[1].msg
    assert isinstance(beat, RegisterNode)
    assert (weights, ("gpu",)) == (beat.weights, beat.attributes)


def test_executors_are_summed_up() -> None:
    """What each has, has done and has lost, for metrics; what is told twice counts once."""
    node = Driven(e0=2)
    node(Reserve(JOB, S, 3))
    node(assign(1, 0, 1))
    node(ended(0, run_s=0.5), ended(0, run_s=0.5), ended(1, "retry"))
    node(assign(2, 2))
    found = {each.name: each.value for each in node.machine.figures()}
    expected = {
        "executor_slots": 2,
        "executor_running": 1,
        "executor_tasks_total": 1,
        "executor_lost_total": 1,
        "executor_run_seconds_total": 0.5,
    }
    assert expected == found


# Memory


def needing(request: int, needs: dict[int, int]) -> AssignTasks:
    """An answer with tasks that say what memory they need."""
    tasks = tuple(Assignment(i, 1, b"p", size) for i, size in needs.items())
    return AssignTasks(
        job_id=JOB,
        scheduler=S,
        client=C,
        request=request,
        tasks=tasks,
        drained=True,
        has_shared=False,
    )


def started(out: list[Envelope]) -> list[int]:
    """The tasks that executors are sent."""
    return [t.task_id for each in out if isinstance(each.msg, RunTasks) for t in each.msg.tasks]


def limited(**slots: int) -> Driven:
    """A node whose tasks may need 100 bytes together."""
    node = with_policy(memory_bytes=100)
    for name, count in slots.items():
        node(executor(name, count))
    node(Reserve(JOB, S, 9))
    return node


def test_a_task_waits_until_others_have_given_its_memory_back() -> None:
    """What would be above the limit waits although a slot is free; then it runs."""
    node = limited(e0=3)
    assert [0, 1] == started(node(needing(1, {0: 60, 1: 40, 2: 1})))
    assert [] == started(node(Tick(0), now=1.0))
    assert [2] == started(node(ended(1)))


def test_a_task_above_the_limit_runs_alone() -> None:
    """It waits for others that need memory, and they for it; none starves."""
    node = limited(e0=3)
    assert [0] == started(node(needing(1, {0: 10, 1: 500, 2: 10})))
    assert [1] == started(node(ended(0)))
    assert [2] == started(node(ended(1)))


def test_tasks_that_say_nothing_do_not_wait() -> None:
    """Whoever needs no memory passes those that wait for some."""
    node = limited(e0=3)
    assert [0, 2] == started(node(needing(1, {0: 100, 1: 1, 2: 0})))


def test_memory_of_a_lost_executor_is_free_again() -> None:
    """What ran there needs nothing any more."""
    node = limited(e0=1, e1=1)
    assert [0] == started(node(needing(1, {0: 100, 1: 100})))
    (lost,) = [a for a, e in node.machine._pool.executors.items() if e.running]
    assert [1] == started(node(ExecutorLost(lost, "killed")))


def test_heartbeats_tell_the_tasks_that_run_the_longest() -> None:
    """Those that have run for a heartbeat or more, the oldest first, and no more than fifty."""
    node = Driven(e0=60)
    node(Reserve(JOB, S, 60))
    node(assign(1, *range(59)), now=0.0)
    node(Reserve(OTHER, S, 1), assign(2, 59), now=1.0)
    beat = next(e.msg for e in node(Tick(0), now=1.2) if isinstance(e.msg, RegisterNode))
    assert 50 == len(beat.longest)
    assert RunningTask(key(0), "n-e0", 1.2) == beat.longest[0]
    node(*(ended(i) for i in range(58)), now=1.2)
    beat = next(e.msg for e in node(Tick(1), now=1.4) if isinstance(e.msg, RegisterNode))
    assert [RunningTask(key(58), "n-e0", 1.4)] == list(beat.longest), "task 59 is too young"


AGAIN, S2 = JobId("job~1"), Address("s2#scheduler")
TAKEN = TakeOver(S2, (MovedJob(AGAIN, (JOB,)),))


def beside(out: list[Envelope]) -> list[Envelope]:
    """Without requests for tasks."""
    return [envelope for envelope in out if not isinstance(envelope.msg, GetTasks)]


def test_a_job_that_moves_keeps_what_runs() -> None:
    """The new scheduler is told what runs and what has ended; nobody is interrupted."""
    node = Driven(e0=2)
    node(Reserve(JOB, S, 9))
    node(assign(1, 0, 1))
    assert (JobReport(JOB, (0,)),) == node(ended(0))[0].msg.reports, "to the old scheduler"
    told = TakenOver(N, (KeptJob(AGAIN, (TaskKey(JOB, 1, 1),), (0,)),))
    assert [Envelope(S2, told)] == node(TAKEN)
    assert [Envelope(S2, told)] == node(TAKEN), "the answer may have been lost"
    assert [] == beside(node(ended(1)))
    heartbeats = {out.to: out.msg for out in node(Tick(0)) if isinstance(out.msg, RegisterNode)}
    assert () == heartbeats[S].held, "nothing is the old scheduler's any more"


def test_a_job_that_has_moved_is_fenced() -> None:
    """Its old scheduler was only slow: what it still sends has no effect."""
    node = Driven(e0=2)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, drained=True))
    node(TAKEN)
    for late in (Reserve(JOB, S, 3), assign(2, 1), EndJob(JOB), EndJobs((JOB,)),
                 JobShared(OTHER, S, b""), CancelReservations(JOB, 1)):  # fmt: skip
        assert [] == node(late), late
    assert [Envelope(E0, EndJobs((JOB,)))] == node(EndJob(AGAIN)), "the new one ends both"


def test_tasks_that_come_too_late_free_the_slots_that_wait_for_them() -> None:
    """The request was made before the job moved, and answered after."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    node(TAKEN)
    out = node(assign(1, 0), Reserve(OTHER, S, 1))
    assert [Envelope(S, get(OTHER, 2, 1, ()))] == out


def test_a_task_of_a_job_that_has_moved_is_given_back_to_the_new_scheduler_only() -> None:
    """The client heeds no answer about the earlier submission: the task would be gone for it."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 2))
    node(assign(1, 0, 1, drained=True))
    node(TAKEN)
    key = TaskKey(JOB, 1, 1)
    assert [] == node(ReturnTask(key, C, JOB)), "from the old one"
    assert [Envelope(C, TasksWithdrawn(AGAIN, (1,)))] == node(ReturnTask(key, C, AGAIN))


def test_a_task_that_was_given_back_before_the_job_moves_is_not_run() -> None:
    """The client has it back, or is about to; to the new scheduler it has ended."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 2))
    node(assign(1, 0, 1, drained=True))
    assert TasksWithdrawn(JOB, (1,)) == node(ReturnTask(TaskKey(JOB, 1, 1), C, JOB))[0].msg
    told = TakenOver(N, (KeptJob(AGAIN, (TaskKey(JOB, 0, 1),), (1,)),))
    assert [Envelope(S2, told)] == node(TAKEN)


def test_jobs_move_in_one_message() -> None:
    """Each has its own answer: what runs, what has finished, or nothing."""
    node = Driven(e0=2)
    node(Reserve(JOB, S, 1), Reserve(OTHER, S, 1))
    node(assign(1, 0, drained=True))
    other = JobId(f"{OTHER}~1")
    moved = (MovedJob(AGAIN, (JOB,)), MovedJob(other, (OTHER,)))
    kept = (KeptJob(AGAIN, (TaskKey(JOB, 0, 1),)), KeptJob(other))
    assert Envelope(S2, TakenOver(N, kept)) == node(TakeOver(S2, moved))[0]
    assert [] == node(Reserve(OTHER, S, 1), Reserve(JOB, S, 1))


def test_no_slot_waits_for_the_old_scheduler() -> None:
    """Its answer would not be taken, and may never come."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    assert [Envelope(S, get(OTHER, 2, 1, ()))] == node(TAKEN, Reserve(OTHER, S, 1))[1:]


def test_a_job_may_move_again() -> None:
    """What began under any of its ids goes on; a question of before is too late."""
    node = Driven(e0=1)
    node(Reserve(JOB, S, 1))
    node(assign(1, 0, drained=True))
    node(TAKEN)
    third, s3 = JobId("job~2"), Address("s3#scheduler")
    (told,) = node(TakeOver(s3, (MovedJob(third, (JOB, AGAIN)),)))
    assert Envelope(s3, TakenOver(N, (KeptJob(third, (TaskKey(JOB, 0, 1),)),))) == told
    late = Envelope(S2, TakenOver(N, (KeptJob(AGAIN),)))
    assert [late] == node(TAKEN), "it has nothing here any more, and need not be asked again"
    assert [] == node(EndJob(AGAIN))
    assert [Envelope(E0, EndJobs((JOB,)))] == node(EndJob(third))
