from __future__ import annotations

from typing import Any

from machine_kit.addresses import Address
from machine_kit.machine import Envelope, Tick
from sparrow_core.machines.executor import Executor
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    EndJob,
    ExecutorIn,
    ExecutorStatus,
    ForgetJob,
    GetShared,
    InterruptTask,
    JobShared,
    ReturnTask,
    RunTasks,
    SlotDone,
    SlotReady,
    StartTasks,
    StopTask,
    TaskError,
    TaskResults,
    TasksEnded,
    TasksWithdrawn,
    TellOutcomes,
)
from sparrow_core.protocol.types import (
    Assignment,
    AttemptEnd,
    ExecutorInfo,
    Result,
    SlotOutcome,
    TaskKey,
)

N, M, C = NodeName("n"), Address("n#monitor"), Address("c#client")
E, S0, S1 = Address("e#n-e0"), Address("e#slot-0"), Address("e#slot-1")
JOB = JobId("job")


def key(task_id: int) -> TaskKey:
    """An attempt."""
    return TaskKey(JOB, task_id, 1)


def run(*ids: int, shared: bool = False) -> RunTasks:
    """The message that runs tasks."""
    return RunTasks(JOB, C, shared, tuple(Assignment(i, 1, b"p") for i in ids))


def start(*ids: int, shared: bytes = b"") -> StartTasks:
    """The message that starts tasks on a slot."""
    return StartTasks(JOB, shared, tuple(Assignment(i, 1, b"p") for i in ids))


def done(slot: Address, task_id: int, run_s: float, result: bytes, **error: Any) -> SlotDone:
    """A slot's message that it is done with a task."""
    return SlotDone(slot, (SlotOutcome(key=key(task_id), run_s=run_s, result=result, **error),))


def ended(*ends: AttemptEnd) -> Envelope:
    """The message to the node monitor that tasks have ended."""
    return Envelope(M, TasksEnded(JOB, E, ends))


class Driven:
    """An executor with two ready slots that is checked after each message."""

    def __init__(self) -> None:
        self.machine = Executor(E, N, M, (S0, S1), pid=42)
        self(SlotReady(S0))
        self.registered = self(SlotReady(S1))

    def __call__(self, msg: ExecutorIn) -> list[Envelope]:
        """Deliver one message."""
        out = self.machine.on_message(msg, 0.0)
        self.machine.check()
        return out


def status(jobs: tuple[JobId, ...] = (), running: tuple[TaskKey, ...] = ()) -> Envelope:
    """The executor's heartbeat."""
    return Envelope(M, ExecutorStatus(ExecutorInfo(E, 42, 2), jobs, running))


def test_what_has_not_begun_is_given_back_under_the_name_that_is_asked_for() -> None:
    """The client knows the job by another id by now: it has moved to another scheduler."""
    executor = Driven()
    executor(run(*range(3)))
    again, took = JobId("job~1"), ReturnTask(key(0), C, JobId("job~1"))
    assert [Envelope(S0, took)] == executor(took), "perhaps the slot has begun it"
    out = executor(done(S0, 0, 0.0, b"", returned=True))
    assert Envelope(C, TasksWithdrawn(again, (0,))) == out[0]
    executor(run(3, 4))
    (ends, withdrawn) = executor(ReturnTask(key(4), C, again))
    assert (ended(AttemptEnd(4, 1)), Envelope(C, TasksWithdrawn(again, (4,)))) == (ends, withdrawn)
    assert [] == executor(ReturnTask(key(4), C, again))


def test_it_registers_when_all_slots_are_ready() -> None:
    """The last SlotReady registers; repetitions do not."""
    executor = Driven()
    assert [status()] == executor.registered
    assert [] == executor(SlotReady(S1))


def test_results_go_to_the_client_and_slots_to_the_node_monitor() -> None:
    """A finished task makes one message to each."""
    executor = Driven()
    assert [Envelope(S0, start(0))] == executor(run(0))
    assert [] == executor(run(0)), "told twice"
    expected = [
        Envelope(C, TaskResults(JOB, N, "n-e0", (Result(0, 1, 0.5, b"result"),))),
        ended(AttemptEnd(0, 1, 0.5)),
    ]
    assert expected == executor(done(S0, 0, 0.5, b"result"))
    assert [] == executor(done(S0, 0, 0.5, b"result")), "told twice"


def test_a_task_that_waits_is_told_once() -> None:
    """Even if it is told of as another kind of task the second time."""
    executor = Driven()
    for i in range(2):
        executor(run(i))
    assert [] == executor(run(2))
    assert [] == executor(run(2, shared=True))
    assert [Envelope(S0, start(2))] == [
        out for out in executor(done(S0, 0, 9.0, b"")) if out.to == S0
    ]


def test_failures_for_good_go_to_the_client_and_others_to_the_node_monitor() -> None:
    """TaskError ends a task; a retryable failure is a loss."""
    executor = Driven()
    executor(run(0))
    executor(run(1))
    expected = [
        Envelope(C, TaskError(key(0), N, "n-e0", "bad", b"detail")),
        ended(AttemptEnd(0, 1)),
    ]
    assert expected == executor(done(S0, 0, 0.5, b"", message="bad", detail=b"detail"))
    out = executor(done(S1, 1, 0.5, b"", message="try again", retryable=True))
    assert [ended(AttemptEnd(1, 1, None, "try again"))] == out


def test_tasks_wait_for_their_shared_part() -> None:
    """A task that came before JobShared starts with it; the executor asks for it meanwhile."""
    executor = Driven()
    assert [] == executor(run(0, shared=True))
    assert Envelope(M, GetShared(JOB, E)) == executor(Tick(0))[-1]
    assert [Envelope(S0, start(1))] == executor(run(1))
    expected = [Envelope(S1, start(0, shared=b"common"))]
    assert expected == executor(JobShared(JOB, M, b"common"))


def test_more_tasks_than_slots_wait() -> None:
    """A freed slot takes the next task at once."""
    executor = Driven()
    for task_id in (0, 1):
        executor(run(task_id))
    assert [] == executor(run(2))
    out = executor(done(S1, 1, 0.5, b""))
    assert Envelope(S1, start(2)) == out[-1]


def test_very_short_tasks_come_to_a_slot_in_batches() -> None:
    """Once tasks are known to take 40 us, a slot is woken for two; long ones make it stop."""
    executor = Driven()
    executor(run(0))
    executor(done(S0, 0, 40e-6, b""))
    starts = [executor(run(task_id))[0].to for task_id in range(1, 6)]
    assert [S0, S0, S1, S1, S0] == starts
    executor(done(S0, 1, 1.0, b""))
    assert [] == executor(run(6)), "both slots are busy, and tasks are not short any more"


def test_the_end_of_a_job_interrupts_its_tasks_and_silences_them() -> None:
    """Running tasks are interrupted (again at each tick), waiting ones go, results are withheld."""
    executor = Driven()
    for task_id in (0, 1, 2):
        executor(run(task_id))
    expected = [
        ended(AttemptEnd(2, 1)),
        *(Envelope(slot, InterruptTask(key(n))) for n, slot in enumerate((S0, S1))),
        *(Envelope(slot, ForgetJob(JOB)) for slot in (S0, S1)),
    ]
    assert expected == executor(EndJob(JOB))
    assert [] == executor(EndJob(JOB))
    assert Envelope(S0, InterruptTask(key(0))) in executor(Tick(0))
    out = executor(done(S0, 0, 0.1, b"", message="interrupted"))
    assert [ended(AttemptEnd(0, 1))] == out


def test_heartbeats_say_what_it_has() -> None:
    """Jobs that it keeps something of, and tasks; not before it is ready, nor for a stale timer.

    Slots are asked for what they have not told yet.
    """
    executor = Driven()
    executor(run(0))
    beat = [Envelope(E, Tick(1), 0.5), status((JOB,), (key(0),)), Envelope(S0, TellOutcomes())]
    assert beat == executor(Tick(0))
    assert [] == executor(Tick(0))
    unready = Executor(E, N, M, (S0,))
    assert [Envelope(E, Tick(1), 0.5)] == unready.on_message(Tick(0), 0.0)


def test_a_stopped_task_is_interrupted_and_silenced() -> None:
    """The node monitor has given the attempt up: neither result nor error leaves the executor."""
    executor = Driven()
    executor(run(0))
    assert [Envelope(S0, InterruptTask(key(0)))] == executor(StopTask(key(0)))
    out = executor(done(S0, 0, 0.1, b"result"))
    assert [TasksEnded] == [type(envelope.msg) for envelope in out]
    assert [] == executor(StopTask(key(7))), "unknown"


def test_what_ends_together_is_told_together() -> None:
    """Tasks of a job that come in one message, or end in one, make one message on their way."""
    executor = Driven()
    assert [Envelope(S0, start(0)), Envelope(S1, start(1))] == executor(run(0, 1))
    executor(done(S0, 0, 1e-6, b""))
    assert [Envelope(S1, start(2, 3))] == executor(run(2, 3))
    outcomes = tuple(SlotOutcome(key=key(i), run_s=1e-6, result=b"r") for i in (2, 3))
    results = tuple(Result(i, 1, 1e-6, b"r") for i in (2, 3))
    expected = [
        Envelope(C, TaskResults(JOB, N, "n-e0", results)),
        ended(AttemptEnd(2, 1, 1e-6), AttemptEnd(3, 1, 1e-6)),
    ]
    assert expected == executor(SlotDone(S1, outcomes))
