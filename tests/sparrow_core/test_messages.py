from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from machine_kit.addresses import Address, address, endpoint_of, name_of
from machine_kit.machine import Message, Tick
from sparrow_core.protocol import messages
from sparrow_core.protocol.events import JobFailed, JobFinished, TaskCompleted, TaskFailed
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import (
    AcceptTimer,
    AllNodesLost,
    AskNodes,
    AssignTasks,
    CancelJob,
    CancelReservations,
    ClientIn,
    Drain,
    Drained,
    EndJob,
    EndJobs,
    ExecutorIn,
    ExecutorLost,
    ExecutorStatus,
    Flush,
    ForgetJob,
    GetMetrics,
    GetNodes,
    GetShared,
    GetTasks,
    InterruptTask,
    JobAborted,
    JobAccepted,
    JobPlaced,
    JobShared,
    JobStatus,
    JobTimer,
    KillExecutor,
    KnownNodes,
    MetricsText,
    NodeLeft,
    NodeLoad,
    NodeLost,
    NodeMonitorIn,
    NodeRefused,
    Notes,
    Notify,
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
    ReturnTask,
    RunTasks,
    SchedulerIn,
    SchedulerLost,
    SchedulerSilent,
    SetSchedulers,
    SetWeights,
    SlotDone,
    SlotIn,
    SlotReady,
    StartJob,
    StartTasks,
    StopTask,
    StragglerTimer,
    SubmitJob,
    TakenOver,
    TakeOver,
    TakeOverTimer,
    TaskAbandoned,
    TaskError,
    TaskResults,
    TasksEnded,
    TasksWithdrawn,
    TellOutcomes,
    WatchTimer,
    WidenTimer,
    WithdrawTasks,
)
from sparrow_core.protocol.types import (
    Assignment,
    AttemptEnd,
    ExecutorInfo,
    HeldJob,
    JobReport,
    KeptJob,
    Loss,
    MovedJob,
    NodeInfo,
    NodeLevel,
    PlacementStep,
    Result,
    SlotOutcome,
    TaskKey,
    TaskSpec,
)

JOB, AT, NODE = JobId("j"), Address("e#a"), NodeName("n")
KEY, INFO = TaskKey(JOB, 1, 2), ExecutorInfo(AT, 42, 2)
SPECS = (TaskSpec(1, b"p", ("n",)),)
REPORTS = (JobReport(JOB, (3,), (Loss(1, 2, "n-e0", "lost"),)),)
ASSIGNED = (Assignment(1, 2, b"p"),)

# The wire format of each message, as JSON for reading: the order of fields is a promise.
WIRE: list[tuple[Message, str]] = [
    (Tick(3), '["Tick",3]'),
    (Flush(), '["Flush"]'),
    (JobTimer(JOB, 1), '["JobTimer","j",1]'),
    (StartJob(job_id=JOB, user="u", tasks=SPECS, shared=b"s"),
     '["StartJob","j","u",[[1,"cA==",["n"],null,0]],"cw==","sparrow",2.0,["",0,[],1.0,0.0,false,false,"",null]]'),
    (CancelJob(JOB), '["CancelJob","j"]'),
    (SchedulerLost(AT), '["SchedulerLost","e#a",false,""]'),
    (AllNodesLost(), '["AllNodesLost",""]'),
    (Notify(JOB, (JobFinished(),)), '["Notify","j",[{"type":"JobFinished","placement":[]}]]'),
    (SubmitJob(version=1, job_id=JOB, client=AT, user="u", tasks=SPECS, shared=b"s"),
     '["SubmitJob",1,"j","e#a","u",[[1,"cA==",["n"],null,0]],"cw==","sparrow",2.0,["",0,[],1.0,0.0,false,false,"",null],[],""]'),
    (JobAccepted(JOB), '["JobAccepted","j"]'),
    (JobAborted(JOB, "k", "m", ("s",)), '["JobAborted","j","k","m",["s"]]'),
    (JobPlaced(JOB, (PlacementStep(0.5, NODE, "asked", 2, (1,)),)),
     '["JobPlaced","j",[[0.5,"n","asked",2,[1]]]]'),
    (PingJob(JOB, AT, (1,)), '["PingJob","j","e#a",[1]]'),
    (JobStatus(JOB, True, (1,)), '["JobStatus","j",true,[1]]'),
    (RerunTasks(JOB, (1,)), '["RerunTasks","j",[1]]'),
    (GetNodes(AT), '["GetNodes","e#a"]'),
    (KnownNodes(AT, (NodeInfo(name=NODE, executors=(INFO,)),)),
     '["KnownNodes","e#a",[["n",[["e#a",42,2,""]],[],false,0,0,"",0,"",[]]]]'),
    (EndJob(JOB), '["EndJob","j",false,false]'),
    (TakeOver(AT, (MovedJob(JOB, (JOB,)),)), '["TakeOver","e#a",[["j",["j"]]]]'),
    (TakenOver(NODE, (KeptJob(JOB, (KEY,), (1,)),)),
     '["TakenOver","n",[["j",[["j",1,2]],[1]]]]'),
    (AskNodes(), '["AskNodes"]'),
    (RegisterNode(version=1, name=NODE, address=AT, executors=(INFO,),
                  held=(HeldJob(JOB, 3),), running=(KEY,)),
     '["RegisterNode",1,"n","e#a",[["e#a",42,2,""]],[["j",3]],[["j",1,2]],[],false,[0,0],["SetWeights",0,[]],[],0,"",[],[],""]'),
    (NodeRefused("m"), '["NodeRefused","m","",false]'),
    (NodeLost(NODE, "r"), '["NodeLost","n","r"]'),
    (PeerGone("e"), '["PeerGone","e"]'),
    (Reserve(JOB, AT, 2), '["Reserve","j","e#a",2,["","",0,1.0,1,false,""]]'),
    (GetTasks(job_id=JOB, node=NODE, request=1, count=2, reports=REPORTS, level=NodeLevel(-1, 4)),
     '["GetTasks","j","n",1,2,[["j",[3],[[1,2,"n-e0","lost",1]]]],[-1,4]]'),
    (ReportTasks(REPORTS), '["ReportTasks",[["j",[3],[[1,2,"n-e0","lost",1]]]],"",null]'),
    (Notes("p", b"s"), '["Notes","p","cw=="]'),
    (AssignTasks(job_id=JOB, scheduler=AT, client=AT, request=1,
                 tasks=(Assignment(1, 2, b"p"),), drained=True, has_shared=False),
     '["AssignTasks","j","e#a","e#a",1,[[1,2,"cA==",0]],true,false,["","",0,1.0,1,false,""],null]'),
    (CancelReservations(JOB, 1), '["CancelReservations","j",1]'),
    (JobShared(JOB, AT, b"s"), '["JobShared","j","e#a","cw=="]'),
    (GetShared(JOB, AT), '["GetShared","j","e#a"]'),
    (ExecutorStatus(INFO, (JOB,), (KEY,)),
     '["ExecutorStatus",["e#a",42,2,""],["j"],[["j",1,2]]]'),
    (ExecutorLost(AT, "r"), '["ExecutorLost","e#a","r"]'),
    (KillExecutor(AT, "r"), '["KillExecutor","e#a","r"]'),
    (RunTasks(JOB, AT, True, ASSIGNED), '["RunTasks","j","e#a",true,[[1,2,"cA==",0]],1.0]'),
    (TasksEnded(JOB, AT, (AttemptEnd(1, 2, None, "lost"),)),
     '["TasksEnded","j","e#a",[[1,2,null,"lost"]]]'),
    (TaskResults(JOB, NODE, "e", (Result(1, 2, 0.5, b"r"),)),
     '["TaskResults","j","n","e",[[1,2,0.5,"cg=="]]]'),
    (TaskError(KEY, NODE, "e", "m", b"d"), '["TaskError",["j",1,2],"n","e","m","ZA==",false]'),
    (SlotReady(AT), '["SlotReady","e#a"]'),
    (StartTasks(JOB, b"s", ASSIGNED), '["StartTasks","j","cw==",[[1,2,"cA==",0]]]'),
    (TellOutcomes(), '["TellOutcomes"]'),
    (InterruptTask(KEY), '["InterruptTask",["j",1,2]]'),
    (ForgetJob(JOB), '["ForgetJob","j"]'),
    (SlotDone(AT, (SlotOutcome(key=KEY, run_s=0.5, result=b"r", message="m", detail=b"d",
                                retryable=True),)),
     '["SlotDone","e#a",[[["j",1,2],0.5,"cg==","m","ZA==",true,false]]]'),
    (WatchTimer(1), '["WatchTimer",1]'),
    (StragglerTimer(JOB), '["StragglerTimer","j"]'),
    (AcceptTimer(), '["AcceptTimer"]'),
    (ProbeTimer(JOB), '["ProbeTimer","j"]'),
    (TakeOverTimer(JOB), '["TakeOverTimer","j"]'),
    (WidenTimer(JOB, (1,)), '["WidenTimer","j",[1]]'),
    (SchedulerSilent(AT, True), '["SchedulerSilent","e#a",true]'),
    (Ping(AT), '["Ping","e#a"]'),
    (Pong(AT), '["Pong","e#a"]'),
    (SetWeights(3, (("u", 2.0),)), '["SetWeights",3,[["u",2.0]]]'),
    (SetSchedulers((AT,)), '["SetSchedulers",["e#a"]]'),
    (NodeLeft(NODE), '["NodeLeft","n",[]]'),
    (RefuseReservations(JOB, NODE, 2), '["RefuseReservations","j","n",2]'),
    (ProbeLoad(JOB, AT), '["ProbeLoad","j","e#a"]'),
    (NodeLoad(JOB, NODE, -1), '["NodeLoad","j","n",-1]'),
    (Drain(), '["Drain",false]'),
    (Drained(), '["Drained"]'),
    (EndJobs((JOB,)), '["EndJobs",["j"]]'),
    (StopTask(KEY), '["StopTask",["j",1,2]]'),
    (ReturnTask(KEY, AT, JOB), '["ReturnTask",["j",1,2],"e#a","j"]'),
    (WithdrawTasks(JOB, (1,), True), '["WithdrawTasks","j",[1],true]'),
    (TasksWithdrawn(JOB, (1,)), '["TasksWithdrawn","j",[1]]'),
    (TaskAbandoned(JOB, 1, "m", ("s",)), '["TaskAbandoned","j",1,"m",["s"]]'),
    (GetMetrics(AT), '["GetMetrics","e#a"]'),
    (MetricsText("s", "t"), '["MetricsText","s","t"]'),
]  # fmt: skip
UNIONS: tuple[Any, ...] = (ClientIn, SchedulerIn, NodeMonitorIn, ExecutorIn, SlotIn)


@pytest.mark.parametrize(("message", "wire"), WIRE, ids=lambda each: type(each).__name__)
def test_the_wire_format_is_what_it_was(message: Message, wire: str) -> None:
    """Tag first, then fields in order; a change here is a new protocol version."""
    assert wire == msgspec.json.encode(message).decode()


@pytest.mark.parametrize("union", UNIONS)
def test_a_machine_decodes_what_is_meant_for_it_and_nothing_else(union: Any) -> None:
    """Each message of the union comes back equal; any other dies at the boundary."""
    for message, _ in WIRE:
        body = msgspec.msgpack.encode(message)
        if type(message) in get_args(union):
            assert message == msgspec.msgpack.decode(body, type=union)
        else:
            with pytest.raises(msgspec.ValidationError):
                msgspec.msgpack.decode(body, type=union)


def test_every_message_is_covered_and_has_a_receiver() -> None:
    """The table above has each message once, and all but those for actors have a machine."""
    defined = [
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, Message) and each is not Message
    ]
    assert sorted(map(str, defined)) == sorted(str(type(message)) for message, _ in WIRE)
    received = {each for union in UNIONS for each in get_args(union)}
    actors = {Notify, SchedulerSilent, Drained, KillExecutor, GetMetrics, MetricsText}
    assert actors == set(defined) - received


@pytest.mark.parametrize(
    "event",
    [TaskCompleted(task_id=1, result=b"r", node="n", executor="e", attempt=1, queue_s=0.1,
                   run_s=0.2), TaskFailed(1, "m", b"d", "n", "e"),
     JobFinished(), JobFailed("k", "m", ("s",))],
)  # fmt: skip
def test_events_travel_too(event: TaskCompleted | TaskFailed | JobFinished | JobFailed) -> None:
    """An event inside Notify comes back equal."""
    notify = Notify(JOB, (event,))
    assert notify == msgspec.msgpack.decode(msgspec.msgpack.encode(notify), type=Notify)


def test_addresses_have_a_process_and_a_name() -> None:
    """The name is what follows the last #, for endpoints of any kind."""
    for endpoint in ("ipc:///run/a#b.sock", "tcp://host:1"):
        at = address(endpoint, "machine")
        assert (endpoint, "machine") == (endpoint_of(at), name_of(at))
