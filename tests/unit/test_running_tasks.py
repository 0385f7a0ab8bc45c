"""The tasks that run now, as nodes report them, and what nodes on other hosts use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from msgspec import structs

from minishark.cluster.attributes import attributes_of
from minishark.cluster.connections import Connections
from minishark.cluster.endpoints import this_host
from minishark.cluster.running import RunningTasks
from minishark.cluster.status import node_changes, node_reports, usages_elsewhere
from minishark.cluster.wire import Failure, GetUsage, Usage
from minishark.model.events.kinds import NodeLeft, NodeReport, NodeUsage, StageTag
from minishark.worker.paths import StorePaths
from minishark.worker.protocol import StoreLocation
from sparrow_core import ExecutorStatus, JobId, NodeStatus, TaskId, TaskStatus


def _status(name: str, *tasks: tuple[Any, int, float], host: str = "elsewhere") -> NodeStatus:
    """A node that runs tasks, each with its tag, number, and for how long."""
    location = StoreLocation(name, host, "/nowhere/m", "/nowhere/d", f"ipc:///{name}")
    return NodeStatus(
        name=name,
        pid=1,
        alive=True,
        executors=(ExecutorStatus(f"{name}-e0", 1, 1), ExecutorStatus(f"{name}-e1", 7, 1)),
        attributes=attributes_of(location),
        longest=tuple(
            TaskStatus(
                tag=tag,
                job_id=JobId(f"job of {tag}"),
                task_id=TaskId(number),
                attempt=1,
                executor=f"{name}-e0",
                for_s=for_s,
            )
            for tag, number, for_s in tasks
        ),
    )


def test_the_longest_running_tasks_come_first() -> None:
    """With what they are for; told again only if others run."""
    running, stage = RunningTasks(), StageTag(query=3, stage=2)
    statuses = (_status("a", (stage, 5, 1.0)), _status("b", ("slow", 0, 60.0)))
    (event,) = running.changes(statuses, 100.0)
    assert [("slow", 0, 40.0), ("", 3, 99.0)] == [
        (task.what, task.query, task.began_s) for task in event.tasks
    ]
    assert ("a-e0", 2, 5, 1) == tuple(
        getattr(event.tasks[1], name) for name in ("executor", "stage", "task", "attempt")
    )
    # The same heartbeat, looked at a second later: the tasks have not begun later than they did.
    assert [] == list(running.changes(statuses, 101.0))
    (better,) = running.changes((_status("a", (stage, 5, 3.0)),), 101.5)
    assert [98.5] == [task.began_s for task in better.tasks], "an earlier estimate is better"
    (over,) = running.changes((), 102.0)
    assert () == over.tasks
    assert [] == list(running.changes((), 103.0))


def test_an_event_has_a_hundred_tasks_at_most() -> None:
    """The others are counted; all are told again when a new file begins."""
    running = RunningTasks()
    statuses = [_status(f"n{i}", *(("f", i, 1.0 + i) for i in range(50))) for i in range(3)]
    (event,) = running.changes(statuses, 100.0)
    assert (100, 50) == (len(event.tasks), event.more)
    running.forget()
    assert [event] == list(running.changes(statuses, 100.0))


class _Answers:
    """Services of which one tells, one fails, and one is silent."""

    def call_all(self, services: tuple[str, ...], request: GetUsage, _: float) -> dict[str, Any]:
        assert ("ipc:///a", "ipc:///b", "ipc:///c") == services
        assert GetUsage() == request
        usage = NodeUsage(pid=9, memory={7: 70}, stored_bytes=5, disk_bytes=6)
        return {"ipc:///a": Usage(usage), "ipc:///b": Failure("no")}


def test_nodes_on_other_hosts_tell_what_they_use() -> None:
    """Of those that do not, nothing is known; nodes on this host are not asked."""
    here = _status("here", host=this_host())
    statuses = (*(_status(name) for name in "abc"), here)
    usages = usages_elsewhere(cast("Connections", _Answers()), statuses, 1.0)
    nowhere = StorePaths(Path("/nowhere"), Path("/nowhere"))
    nodes = {node.name: node for node in node_reports(statuses, nowhere, usages)}
    told = nodes["a"]
    assert (70, 5, 6) == (told.memory_bytes, told.stored_bytes, told.disk_bytes)
    assert [None, 70] == [told.usage.memory.get(executor.pid) for executor in told.executors]
    assert (0, 0) == (nodes["b"].memory_bytes, nodes["c"].stored_bytes)
    assert nodes["here"].memory_bytes > 0, "process 1 is on this host"


def test_what_changes_all_the_time_is_no_event() -> None:
    """Of the tasks that run and the host's memory other events tell, or nobody."""
    first, later = (
        {"a": structs.replace(report, at=at, usage=NodeUsage(memory_free_bytes=free))}
        for at, free, (report,) in (
            (1.0, 10, _reports(_status("a", ("f", 0, 1.0)))),
            (2.0, 20, _reports(_status("a", ("f", 0, 2.0)))),
        )
    )
    (event,) = node_changes({}, first, 1.0)
    assert isinstance(event, NodeReport)
    assert ("a", (), NodeUsage()) == (event.name, event.tasks, event.usage)
    assert [] == list(node_changes(first, later, 2.0))
    assert ["f"] == [task.what for task in later["a"].tasks]
    died = {"a": structs.replace(later["a"], deaths=1, last_death="killed")}
    assert ["killed", "killed"] == [
        getattr(event, "last_death", "") or getattr(event, "reason", "")
        for event in node_changes(later, died, 3.0)
    ]
    assert [NodeLeft(at=4.0, node="a")] == list(node_changes(died, {}, 4.0))


def _reports(*statuses: NodeStatus) -> tuple[NodeReport, ...]:
    return node_reports(statuses, StorePaths(Path("/nowhere"), Path("/nowhere")), {})
