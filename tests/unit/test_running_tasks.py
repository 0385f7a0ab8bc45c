"""The tasks that run now, as nodes report them, and what nodes on other hosts use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from minishark.cluster.attributes import attributes_of
from minishark.cluster.connections import Connections
from minishark.cluster.node import this_host
from minishark.cluster.running import RunningTasks
from minishark.cluster.status import node_states, node_usages
from minishark.cluster.wire import Failure, GetUsage, Usage
from minishark.events.kinds import StageTag
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
        return {"ipc:///a": Usage(memory={7: 70}, stored=5, disk=6), "ipc:///b": Failure("no")}


def test_nodes_on_other_hosts_tell_what_they_use() -> None:
    """Of those that do not, nothing is known; nodes on this host are not asked."""
    here = _status("here", host=this_host())
    statuses = (*(_status(name) for name in "abc"), here)
    usages = node_usages(cast("Connections", _Answers()), statuses, 1.0)
    nowhere = StorePaths(Path("/nowhere"), Path("/nowhere"))
    states = {node.name: node for node in node_states(statuses, nowhere, usages)}
    told = states["a"]
    assert ([0, 70], 5, 6) == (
        [executor.memory_bytes for executor in told.executors],
        told.stored_bytes,
        told.disk_bytes,
    )
    assert (0, 0, 0) == (states["b"].memory_bytes, states["c"].stored_bytes, told.executors[1].pid)
    assert states["here"].memory_bytes > 0, "process 1 is on this host"
