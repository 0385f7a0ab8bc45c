from __future__ import annotations

import math

from msgspec import structs

from machine_kit.addresses import Address
from machine_kit.machine import Envelope
from sparrow_core.machines.client import Client, ClientConfig
from sparrow_core.protocol.events import JobFailed, JobFinished, TaskCompleted, TaskFailed
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    PROTOCOL_VERSION,
    AllNodesLost,
    CancelJob,
    ClientIn,
    EndJob,
    JobAborted,
    JobAccepted,
    JobPlaced,
    JobStatus,
    JobTimer,
    KnownNodes,
    Notify,
    Ping,
    PingJob,
    Pong,
    RerunTasks,
    SchedulerLost,
    SchedulerSilent,
    StartJob,
    StragglerTimer,
    SubmitJob,
    TaskAbandoned,
    TaskError,
    TaskResults,
    WatchTimer,
)
from sparrow_core.protocol.types import JobOptions, PlacementStep, Result, TaskKey, TaskSpec

C, SINK = Address("c#client"), Address("c#sink")
S0, S1 = Address("s0#scheduler"), Address("s1#scheduler")
JOB, AGAIN, N = JobId("job"), JobId("job~1"), NodeName("n")
TASKS = (TaskSpec(0, b"0"), TaskSpec(1, b"1"))
START = StartJob(job_id=JOB, user="user", tasks=TASKS, shared=b"shared")


def submit(job_id: JobId, *tasks: TaskSpec) -> SubmitJob:
    """A submission, which replaces the first one if it is the second."""
    replaces = (JOB,) if job_id == AGAIN else ()
    return SubmitJob(
        version=PROTOCOL_VERSION,
        job_id=job_id,
        client=C,
        user="user",
        tasks=tasks,
        shared=b"shared",
        replaces=replaces,
    )


def result(task_id: int, job_id: JobId = JOB, run_s: float = 0.25) -> TaskResults:
    """A task's result."""
    return TaskResults(job_id, N, "n-e0", (Result(task_id, 1, run_s, b"r"),))


def notify(event: TaskCompleted | TaskFailed | JobFinished | JobFailed) -> Envelope:
    """An event on its way to the sink."""
    return Envelope(SINK, Notify(JOB, (event,)))


def timer(generation: int, delay_s: float) -> Envelope:
    """The job's timer."""
    return Envelope(C, JobTimer(JOB, generation), delay_s)


class Driven:
    """A client that is checked after each message; `submitted` is what START made."""

    def __init__(self, *schedulers: Address, recovery_s: float = 30.0) -> None:
        config = ClientConfig(recovery_s=recovery_s)
        self.machine = Client(C, SINK, schedulers, config)
        self.submitted = self(START)

    def __call__(self, msg: ClientIn, now: float = 0.0) -> list[Envelope]:
        """Deliver one message."""
        out = self.machine.on_message(msg, now)
        self.machine.check()
        return out


def test_schedulers_take_turns() -> None:
    """Jobs go round robin."""
    client = Driven(S0, S1)
    other = StartJob(
        job_id=JobId("other"),
        user="user",
        tasks=TASKS,
    )
    watch = Envelope(C, WatchTimer(1), 0.025)
    assert [Envelope(S1, submit(JOB, *TASKS)), timer(1, 0.1), watch] == client.submitted
    assert S0 == client(other)[0].to


def test_a_job_finishes_with_its_last_result() -> None:
    """Each result is an event once; the last one ends the job at the scheduler too."""
    client = Driven(S0)
    assert [timer(2, 1.0)] == client(JobAccepted(JOB))
    assert [] == client(JobAccepted(JOB))
    completed = TaskCompleted(
        task_id=0, result=b"r", node="n", executor="n-e0", attempt=1, queue_s=0.75, run_s=0.25
    )
    assert [notify(completed)] == client(result(0), 1.0)
    assert [] == client(result(0), 1.5), "first completion wins"
    out = client(result(1), 2.0)
    assert [notify(JobFinished()), Envelope(S0, EndJob(JOB, finished=True))] == out[1:]
    assert [] == client(result(1), 3.0)
    assert [] == client(JobTimer(JOB, 2), 3.0)


def test_an_empty_job_finishes_at_once() -> None:
    """There is nothing to submit."""
    client = Client(C, SINK, (S0,))
    empty = StartJob(job_id=JOB, user="user", tasks=())
    assert [notify(JobFinished())] == client.on_message(empty, 0.0)


def test_an_unanswered_submission_goes_to_the_next_scheduler() -> None:
    """Under a new id, after twice the time; the first scheduler is told to forget the job."""
    client = Driven(S0, S1)
    expected = [
        Envelope(S1, EndJob(JOB, moved=True)),
        Envelope(S0, submit(AGAIN, *TASKS)),
        timer(2, 0.2),
    ]
    assert expected == client(JobTimer(JOB, 1), 0.1)
    assert [] == client(JobAccepted(JOB), 0.2), "too late"
    assert [timer(3, 1.0)] == client(JobAccepted(AGAIN), 0.2)


def test_an_answer_after_a_silence_is_one() -> None:
    """The job that it is about goes on; only others are submitted anew."""
    client = Driven(S0)
    client(structs.replace(START, job_id=JobId("other")))
    for step in range(1, 6):
        client(WatchTimer(step), 0.025 * step)
    for job in (JOB, JobId("other")):
        client(JobTimer(job, 1), 0.13)
    silent, end, again = client(JobAccepted(JOB), 6.0)[:3]
    assert Envelope(SINK, SchedulerSilent(S0, False)) == silent
    assert Envelope(S0, EndJob(JobId("other"), moved=True)) == end
    assert isinstance(again.msg, SubmitJob)
    assert "other~1" == again.msg.job_id


def test_the_only_scheduler_gets_the_same_submission_again_then_the_job_fails() -> None:
    """In growing intervals, for 30 s in which this process ran; then "no_scheduler"."""
    client = Driven(S0)
    waited_s, attempt = 0.1, 1
    while waited_s < 30:
        interval_s = min(1.6, 0.1 * 2**attempt)
        out = client(JobTimer(JOB, attempt), 1000.0)
        assert [Envelope(S0, submit(JOB, *TASKS)), timer(attempt + 1, interval_s)] == out
        waited_s, attempt = waited_s + interval_s, attempt + 1
    failed = JobFailed("no_scheduler", "no scheduler has answered for 30 s")
    assert notify(failed) == client(JobTimer(JOB, attempt), 1000.0)[0]


def test_a_job_may_wait_for_ever() -> None:
    """For a scheduler, however often it is asked, and for a node."""
    client = Driven(S0, recovery_s=math.inf)
    for attempt in range(1, 1_500):
        out = client(JobTimer(JOB, attempt), 1e9)
        assert [Envelope(S0, submit(JOB, *TASKS))] == out[:1]
    client(JobAccepted(JOB), 1e9)
    refused = JobAborted(JOB, "no_nodes", "no live node is left")
    assert [timer(1_502, 0.1)] == client(refused, 2e9)


def test_a_job_waits_for_a_node_and_fails_when_none_has_come_for_30_s() -> None:
    """Its schedulers are asked again and again; what was lost before the first refusal is told."""
    client = Driven(S0)
    refused = JobAborted(JOB, "no_nodes", "no live node is left", ("n: node lost",))
    client(JobAccepted(JOB), 1.0)
    assert [timer(3, 0.1)] == client(refused, 2.0)
    again = client(JobTimer(JOB, 3), 2.1)
    assert [Envelope(S0, EndJob(JOB, moved=True)), Envelope(S0, submit(AGAIN, *TASKS))] == again[:2]
    client(JobAccepted(AGAIN), 2.2)
    client(result(0, AGAIN), 3.0)
    refused = JobAborted(AGAIN, "no_nodes", "no live node is left")
    assert [timer(6, 0.1)] == client(refused, 31.9), "a node has come meanwhile"
    (_, third, _), name = client(JobTimer(JOB, 6), 32.0), JobId("job~2")
    assert isinstance(third.msg, SubmitJob)
    assert (name, TASKS[1:]) == (third.msg.job_id, third.msg.tasks)
    failed = JobFailed("no_nodes", "no live node is left")
    assert notify(failed) == client(JobAborted(name, "no_nodes", failed.message), 61.9)[0]


def test_an_open_job_pings_and_moves_when_the_scheduler_is_silent() -> None:
    """A ping each second names what is missing; after 3 s of silence the rest moves."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB), 0.0)
    client(result(0), 0.5)
    expected = [Envelope(S1, PingJob(JOB, C, (1,))), timer(3, 1.0)]
    assert expected == client(JobTimer(JOB, 2), 1.0)
    assert [] == client(JobTimer(JOB, 2), 1.0), "an old timer"
    client(JobTimer(JOB, 3), 2.0)
    out = client(JobTimer(JOB, 4), 3.0)
    assert [Envelope(S1, EndJob(JOB, moved=True)), Envelope(S0, submit(AGAIN, TASKS[1]))] == out[:2]
    assert notify(JobFinished()) in client(result(1, JOB), 3.1), "any submission's result counts"


def test_a_scheduler_that_forgot_the_job_gets_it_again() -> None:
    """JobStatus without the job: the unfinished tasks are submitted under a new id."""
    client = Driven(S0)
    client(JobAccepted(JOB))
    client(result(0))
    out = client(JobStatus(JOB, False, ()), 1.0)
    assert [Envelope(S0, EndJob(JOB, moved=True)), Envelope(S0, submit(AGAIN, TASKS[1]))] == out[:2]
    assert [] == client(JobStatus(JOB, False, ()), 1.0), "an answer to the old submission"


def test_a_lost_result_is_asked_for_again_after_a_while() -> None:
    """A task that stays finished without a result for 1 s is run again."""
    client = Driven(S0)
    client(JobAccepted(JOB))
    assert [] == client(JobStatus(JOB, True, (0,)), 1.0)
    assert [] == client(JobStatus(JOB, True, (0,)), 1.5)
    assert [Envelope(S0, RerunTasks(JOB, (0,)))] == client(JobStatus(JOB, True, (0,)), 2.0)
    assert [] == client(JobStatus(JOB, True, (0,)), 2.5), "the clock starts again"


def test_a_task_error_fails_the_job() -> None:
    """TaskFailed, then JobFailed, and the rest is ended; a stray error is ignored."""
    client = Driven(S0)
    client(JobAccepted(JOB))
    error = TaskError(TaskKey(JOB, 1, 2), N, "n-e0", "bad", b"detail")
    expected = [
        notify(TaskFailed(1, "bad", b"detail", "n", "n-e0")),
        notify(JobFailed("task_failed", "task 1 failed on n-e0: bad")),
        Envelope(S0, EndJob(JOB)),
    ]
    assert expected == client(error)
    assert [] == client(error)


def test_the_scheduler_can_abort_and_the_user_can_cancel() -> None:
    """Both end the job with a kind; neither has an effect on one that is over."""
    client = Driven(S0)
    aborted = JobAborted(JOB, "unsatisfiable", "no such node", ("story",))
    failed = JobFailed("unsatisfiable", "no such node", ("story",))
    assert [notify(failed), Envelope(S0, EndJob(JOB))] == client(aborted)
    assert [] == client(aborted)
    client = Driven(S0)
    failed = JobFailed("cancelled", "the job was cancelled")
    assert [notify(failed), Envelope(S0, EndJob(JOB))] == client(CancelJob(JOB))
    assert [] == client(CancelJob(JOB))


def test_a_task_that_was_lost_too_often_fails_the_job_unless_its_result_is_here() -> None:
    """Only the reports of its end were lost on their way to the scheduler, then."""
    client = Driven(S0)
    client(JobAccepted(JOB))
    client(result(0))
    assert [] == client(TaskAbandoned(JOB, 0, "task 0 was lost 4 times", ("story",)))
    failed = JobFailed("task_lost", "task 1 was lost 4 times", ("story",))
    out = client(TaskAbandoned(JOB, 1, "task 1 was lost 4 times", ("story",)))
    assert [notify(failed), Envelope(S0, EndJob(JOB))] == out


def test_a_dead_schedulers_jobs_move_at_once() -> None:
    """SchedulerLost moves its open jobs; without another scheduler they fail, as do new ones."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB))
    out = client(SchedulerLost(S1))
    assert Envelope(S0, submit(AGAIN, *TASKS)) == out[1]
    out = client(SchedulerLost(S0))
    assert notify(JobFailed("no_scheduler", "no scheduler is left")) == out[0]
    assert [notify(JobFailed("no_scheduler", "no scheduler is left"))] == client(START)


def test_a_job_whose_schedulers_die_again_and_again_fails() -> None:
    """Its tasks may kill them; a result shows that it gets on, and the count begins anew."""
    client = Driven(S0)
    lost = SchedulerLost(S0, returns=True, reason="n killed")
    latest = JOB

    def die(times: int) -> list[Envelope]:
        """It accepts the job, and dies; what the client says to the last of so many deaths."""
        nonlocal latest
        out: list[Envelope] = []
        for _ in range(times):
            client(JobAccepted(latest))
            out = client(lost)
            latest = next((e.msg.job_id for e in out if isinstance(e.msg, SubmitJob)), latest)
        return out

    assert not [e for e in die(3) if isinstance(e.msg, Notify)]
    client(result(0))
    assert not [e for e in die(3) if isinstance(e.msg, Notify)]
    for _ in range(9):  # it can't even start: that is not the job's fault
        assert not [e for e in client(lost) if isinstance(e.msg, Notify)]
    latest = client.machine._jobs[JOB].wire_id
    text = "its scheduler's process died 4 times before a task of it ended; at last: n killed"
    assert notify(JobFailed("task_lost", text)) in die(1)


def test_without_nodes_every_job_fails() -> None:
    """AllNodesLost ends open jobs and those to come."""
    client = Driven(S0)
    failed = notify(JobFailed("no_nodes", "no node is left"))
    assert failed == client(AllNodesLost())[0]
    assert [failed] == client(START)


def test_what_a_scheduler_knows_is_passed_on() -> None:
    """KnownNodes goes to the sink."""
    known = KnownNodes(S0, ())
    assert [Envelope(SINK, known)] == Driven(S0)(known)


def watch(
    client: Driven, until_s: float, *answering: Address, from_s: float = 0.0
) -> list[Envelope]:
    """Let the watch timer run, and these schedulers answer pings; all that the client sends."""
    sent: list[Envelope] = []
    steps = round((until_s - from_s) / 0.025)
    for step in range(1, steps + 1):
        now = from_s + 0.025 * step
        out = client(WatchTimer(client.machine._ticks._generation), now)
        sent += out
        for envelope in out:
            if isinstance(envelope.msg, Ping) and envelope.to in answering:
                sent += client(Pong(envelope.to), now)
    return sent


def test_a_scheduler_silent_for_100_ms_loses_its_jobs() -> None:
    """The embedding program hears of it; what is unfinished goes to one that answers."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB))
    client(result(0))
    sent = watch(client, 0.15, S0)
    silent = sent.index(Envelope(SINK, SchedulerSilent(S1, True)))
    assert [Envelope(S1, EndJob(JOB, moved=True)), Envelope(S0, submit(AGAIN, TASKS[1]))] == sent[
        silent + 1 :
    ][:2]
    assert Envelope(S1, Ping(C)) in sent[silent + 3 :], "in case that it comes back"


def test_a_scheduler_that_answers_keeps_its_jobs() -> None:
    """Pings go only to schedulers with open jobs."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB))
    sent = watch(client, 0.5, S1)
    assert {Ping, WatchTimer} == {type(envelope.msg) for envelope in sent}
    assert S0 not in {envelope.to for envelope in sent}


def test_a_scheduler_that_comes_back_is_told_what_it_lost() -> None:
    """EndJob again for each job that moved away, and new jobs may go there."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB))
    watch(client, 0.15, S0)
    out = client(Pong(S1), 0.2)
    assert [
        Envelope(SINK, SchedulerSilent(S1, False)),
        Envelope(S1, EndJob(JOB, moved=True)),
    ] == out
    assert [] == client(Pong(S1), 0.2)


def test_new_jobs_avoid_silent_schedulers() -> None:
    """Although it would be their turn."""
    client = Driven(S0, S1)
    watch(client, 0.15, S0)
    for number in range(3):
        start = StartJob(
            job_id=JobId(f"more{number}"),
            user="user",
            tasks=TASKS,
        )
        assert S0 == client(start, 0.2)[0].to


def test_the_only_scheduler_keeps_its_jobs_however_silent() -> None:
    """There is nowhere to go; the event comes all the same."""
    client = Driven(S0)
    client(JobAccepted(JOB))
    sent = watch(client, 0.3)
    assert Envelope(SINK, SchedulerSilent(S0, True)) in sent
    assert SubmitJob not in {type(envelope.msg) for envelope in sent}


def test_its_own_stall_is_no_schedulers_silence() -> None:
    """A client that was stopped for a minute does not leave its scheduler."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB))
    watch(client, 0.05, S1)
    out = client(WatchTimer(client.machine._ticks._generation), 60.0)
    assert [Envelope(S1, Ping(C))] == out[:1]
    assert [] == client(WatchTimer(1), 60.0), "a doubled timer"


def test_the_watch_ends_with_the_last_job() -> None:
    """An idle client is quiet, and watches again when a job starts."""
    client = Driven(S0)
    client(CancelJob(JOB))
    assert [] == client(WatchTimer(1), 0.025)
    assert WatchTimer(2) == client(START, 5.0)[-1].msg


def test_another_scheduler_may_have_nodes_or_room() -> None:
    """A job that is refused for such reasons fails when all schedulers have refused it."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB))
    out = client(JobAborted(JOB, "no_nodes", "no live node is left"))
    assert Envelope(S0, submit(AGAIN, *TASKS)) == out[1]
    out = client(JobAborted(AGAIN, "overloaded", "too many"))
    assert notify(JobFailed("overloaded", "too many")) == out[0]


def test_stragglers_are_submitted_again_beside_the_first() -> None:
    """When half is done, and the rest has taken twice as long: once; the first result counts."""
    client = Driven(S0, S1)
    options = JobOptions(straggler_factor=2.0)
    job = StartJob(
        job_id=JobId("slow"),
        user="user",
        tasks=TASKS,
        options=options,
    )
    client(job, 1.0)
    out = client(result(0, JobId("slow")), 1.5)
    assert Envelope(C, StragglerTimer(JobId("slow")), 0.5) == out[1]
    copy = JobId("slow~copy")
    (again,) = client(StragglerTimer(JobId("slow")), 2.0)
    assert isinstance(again.msg, SubmitJob)
    assert (S1, copy, TASKS[1:], ()) == (
        again.to, again.msg.job_id, again.msg.tasks, again.msg.replaces,
    )  # fmt: skip
    assert [] == client(JobAborted(copy, "no_nodes", "the copy may fail"))
    assert [] == client(StragglerTimer(JobId("slow")), 2.5)
    ends = client(result(1, copy), 3.0)[2:]
    assert [Envelope(S0, EndJob(JobId("slow"))), Envelope(S1, EndJob(copy))] == ends
    assert [] == client(StragglerTimer(JobId("slow")), 9.0)


STEP = PlacementStep(0.001, N, "asked", 2, (0, 1))
EXPLAINED = structs.replace(START, options=JobOptions(explain=True))


def explained() -> Driven:
    """A client with an open job that is to be explained."""
    client = Driven(S0)
    client(CancelJob(JOB))
    client(EXPLAINED)
    client(JobAccepted(JOB))
    return client


def test_an_explained_job_ends_with_its_placement() -> None:
    """What its scheduler told, whether that comes before the last result or after it."""
    end = [notify(JobFinished((STEP,))), Envelope(S0, EndJob(JOB, finished=True))]
    early = explained()
    assert [] == early(JobPlaced(JOB, (STEP,)))
    early(result(0), 1.0)
    assert end == early(result(1), 1.0)[1:]
    late = explained()
    late(result(0), 1.0)
    assert 1 == len(late(result(1), 1.0)), "the result, and no end yet"
    assert end == late(JobPlaced(JOB, (STEP,)), 1.0)
    assert [] == late(JobPlaced(JOB, (STEP,)), 1.0), "told twice"


def test_an_explained_job_does_not_wait_long_for_its_placement() -> None:
    """If the message was lost, the job ends at the next ping, or with its scheduler."""
    end = [notify(JobFinished()), Envelope(S0, EndJob(JOB, finished=True))]
    for last in (JobTimer(JOB, 2), SchedulerLost(S0), JobAborted(JOB, "task_lost", "m")):
        client = explained()
        client(result(0), 1.0)
        client(result(1), 1.0)
        assert end == client(last, 1.5)


def test_jobs_wait_for_a_scheduler_that_is_started_anew() -> None:
    """Without another one they are submitted to it again, as new: it will have forgotten them."""
    client = Driven(S0)
    client(JobAccepted(JOB))
    out = client(SchedulerLost(S0, returns=True))
    assert Envelope(SINK, SchedulerSilent(S0, True)) == out[0]
    assert Envelope(S0, submit(AGAIN, *TASKS)) in out
    out = client(JobAccepted(AGAIN), 0.5)
    assert Envelope(SINK, SchedulerSilent(S0, False)) == out[0]


def test_jobs_do_not_wait_where_another_scheduler_speaks() -> None:
    """They move at once, whether or not the dead one returns."""
    client = Driven(S0, S1)
    client(JobAccepted(JOB))
    assert Envelope(S0, submit(AGAIN, *TASKS)) in client(SchedulerLost(S1, returns=True))
