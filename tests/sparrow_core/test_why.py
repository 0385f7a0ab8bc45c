from __future__ import annotations

from sparrow_core.observe.why import explain
from sparrow_core.protocol.events import JobFinished, TaskCompleted
from sparrow_core.protocol.ids import NodeName
from sparrow_core.protocol.types import JobOptions, PlacementStep, TaskSpec
from sparrow_core.runtime.specs import JobSpec

A, B = NodeName("a"), NodeName("b")
STEPS = (
    PlacementStep(0.0, A, "probed", 1),
    PlacementStep(0.001, A, "told", -2),
    PlacementStep(0.001, A, "reserved", 2),
    PlacementStep(0.001, B, "reserved", 1),
    PlacementStep(0.002, B, "asked", 3),
    PlacementStep(0.003, A, "asked", 2, (0, 1)),
    PlacementStep(0.004, B, "asked", 1, (2,)),
)


def completed(task_id: int, node: str) -> TaskCompleted:
    """A result."""
    return TaskCompleted(
        task_id=task_id,
        result=b"",
        node=node,
        executor=f"{node}-e0",
        attempt=1,
        queue_s=0.0,
        run_s=0.0,
    )


def test_a_task_is_explained_up_to_its_binding() -> None:
    """The steps until a node was given the task, and the nodes that were probed until then."""
    job = JobSpec(tasks=tuple(TaskSpec(i, b"") for i in range(3)))
    events = [completed(1, "a"), completed(2, "b"), JobFinished(STEPS)]
    found = explain(job, events)
    assert [1, 2] == list(found)
    assert STEPS[:6] == found[1].steps
    assert STEPS == found[2].steps
    assert ("a", "b") == found[1].probed


def test_what_a_dead_scheduler_did_is_not_known() -> None:
    """A task whose binding is not among the steps has none, but it has a constraint."""
    found = explain(JobSpec(tasks=(TaskSpec(0, b""),)), [completed(0, "a"), JobFinished()])
    assert () == found[0].steps
    assert "it may run on any node" == found[0].constraint


def test_constraints_are_told_in_words() -> None:
    """Hard ones, soft ones that held or did not, and attributes."""
    tasks = (TaskSpec(0, b"", ("a",)), TaskSpec(1, b"", ("a",), 0.5), TaskSpec(2, b"", ("b",), 0.5))
    job = JobSpec(tasks=tasks, options=JobOptions(requires=("gpu",)))
    found = explain(job, [completed(i, "a") for i in range(3)])
    rules = [found[i].constraint.removeprefix("nodes must have gpu and ") for i in range(3)]
    expected = [
        "it may run only on a",
        "it prefers a for 0.5 s",
        "it prefers b for 0.5 s and none of them had a free slot in that time, or none lives",
    ]
    assert expected == rules


def test_the_story_is_told_line_by_line() -> None:
    """Each kind of step has its words."""
    job = JobSpec(tasks=tuple(TaskSpec(i, b"") for i in range(3)))
    found = explain(job, [completed(2, "b"), JobFinished(STEPS)])
    expected = [
        "task 2 ran on b-e0, attempt 1",
        "           it may run on any node",
        "  0.000 ms  a is asked for its load",
        "  1.000 ms  a answers: 2 free slots",
        "  1.000 ms  a gets 2 reservation(s)",
        "  1.000 ms  b gets 1 reservation(s)",
        "  2.000 ms  b has 3 free slot(s), asks, and is given nothing",
        "  3.000 ms  a has 2 free slot(s), asks, and is given 2 other(s)",
        "  4.000 ms  b has 1 free slot(s), asks, and is given this task",
    ]
    assert expected == list(found[2].lines())
