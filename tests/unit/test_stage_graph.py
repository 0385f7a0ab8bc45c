"""Only what was lost and is needed is made again, and no output is mixed with a different one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minishark.model.events.figures import TaskFigures
from minishark.query.stage_graph import Read, StageGraph, StageNode, Step, Submission, TaskOutput
from minishark.worker.protocol import TaskOutcome

CHAIN = (
    StageNode(index=0, tasks=3),
    StageNode(index=1, tasks=2, reads=(Read(0),)),
    StageNode(index=2, tasks=1, reads=(Read(1),)),
)


def made(file: str, node: str = "a", rows: int = 1) -> TaskOutput:
    """An output of a task, as a file on a node."""
    return TaskOutput(
        TaskOutcome(figures=TaskFigures(rows=rows, bytes=8 * rows), file=file), node, (node,)
    )


def finish(graph: StageGraph, submission: Submission, nodes: str = "aaa", suffix: str = "") -> None:
    """All tasks of a submission complete, each on its node."""
    for task in submission.tasks:
        output = made(f"{submission.stage}-{task}{suffix}", nodes[task])
        graph.completed(submission.number, task, output)
    graph.ended(submission.number)


def submitted(step: Step) -> list[tuple[int, tuple[int, ...]]]:
    """The stages and tasks that a step submits."""
    return [(each.stage, each.tasks) for each in step.submit]


def up_to(graph: StageGraph, stage: int, nodes: str = "abc") -> Submission:
    """Run the stages before `stage`; its submission."""
    while True:
        (submission,) = graph.step().submit
        if submission.stage == stage:
            return submission
        finish(graph, submission, nodes)


def test_stages_run_one_after_the_other() -> None:
    """A stage starts when all that it reads is there, and the last one ends the run."""
    graph = StageGraph(CHAIN)
    for stage in (0, 1, 2):
        (submission,) = graph.step().submit
        assert (stage, tuple(range(CHAIN[stage].tasks))) == (submission.stage, submission.tasks)
        assert Step((), ()) == graph.step()
        finish(graph, submission)
    assert graph.is_complete
    assert [0, 0, 0] == [graph.rerun(stage) for stage in (0, 1, 2)]


def test_only_the_task_that_made_a_lost_output_runs_again() -> None:
    """Then the tasks that could not read it run, and no others."""
    graph = StageGraph(CHAIN)
    reader = up_to(graph, 1)
    graph.completed(reader.number, 0, made("1-0"))
    graph.ended(reader.number)
    assert () == graph.lost(["0-1"])
    (again,) = graph.step().submit
    assert (0, (1,)) == (again.stage, again.tasks)
    finish(graph, again, suffix="-again")
    assert [(1, (1,))] == submitted(graph.step())
    assert 1 == graph.rerun(0)


def test_what_nobody_needs_any_more_stays_lost() -> None:
    """Outputs whose readers are all complete are not made again."""
    graph = StageGraph(CHAIN)
    last = up_to(graph, 2)
    graph.lost(["0-0", "0-1", "0-2"])
    assert Step((), ()) == graph.step()
    finish(graph, last)
    assert graph.is_complete


def test_lost_inputs_of_lost_outputs_are_made_again_first() -> None:
    """What a node held of several stages comes back from the first of them on."""
    graph = StageGraph(CHAIN)
    last = up_to(graph, 2, "aba")
    graph.ended(last.number)
    assert 2 == graph.lost_on(("b",))
    step = graph.step()
    assert [(0, (1,))] == submitted(step)
    finish(graph, step.submit[0], suffix="-again")
    assert [(1, (1,))] == submitted(graph.step())


def test_jobs_that_wait_for_dead_nodes_begin_anew() -> None:
    """They would wait for answers of a node that is known to be dead."""
    graph = StageGraph(CHAIN)
    reader = up_to(graph, 1)
    graph.completed(reader.number, 0, made("1-0", "a"))
    graph.lost_on(("b",))
    step = graph.step()
    assert ((reader.number,), [(0, (1,))]) == (step.cancel, submitted(step))
    finish(graph, step.submit[0], "aaa", "-again")
    assert [(1, (1,))] == submitted(graph.step())


def test_a_stale_report_loses_nothing() -> None:
    """A file that was replaced meanwhile is nobody's output any more."""
    graph = StageGraph(CHAIN)
    reader = up_to(graph, 1)
    graph.lost(["0-0"])
    (again,) = graph.step().submit
    finish(graph, again, suffix="-again")
    assert () == graph.lost(["0-0"])
    assert Step((), ()) == graph.step()
    assert graph.is_open(reader.number)


def test_files_that_no_task_put_out_are_told() -> None:
    """They are inputs of the query, which it can't make again."""
    graph = StageGraph(CHAIN)
    up_to(graph, 1)
    assert ("tables/0",) == graph.lost(["0-0", "tables/0"])


def test_an_output_with_a_living_holder_is_not_lost() -> None:
    """Replicas are what they are for; and what lies nowhere can't go with a node."""
    graph = StageGraph([StageNode(index=0, tasks=2)])
    (submission,) = graph.step().submit
    graph.completed(
        submission.number,
        0,
        TaskOutput(TaskOutcome(figures=TaskFigures(rows=1, bytes=8), file="t/0"), "a", ("a", "b")),
    )
    graph.completed(
        submission.number,
        1,
        TaskOutput(
            TaskOutcome(figures=TaskFigures(rows=1, bytes=8), file=None, inline=b"inline"), "a"
        ),
    )
    graph.ended(submission.number)
    assert 0 == graph.lost_on(("a",))
    assert ("b",) == graph.locations()
    assert 1 == graph.lost_on(("b",)), "though a lives again: it has come back empty"


def test_readers_of_a_varying_output_start_again() -> None:
    """Else they would have read rows that do not fit together: complete ones, and running ones."""
    stages = (
        StageNode(index=0, tasks=2, varies=True),
        StageNode(index=1, tasks=2, reads=(Read(0),)),
        StageNode(index=2, tasks=1, reads=(Read(1),)),
    )
    graph = StageGraph(stages)
    reader = up_to(graph, 1)
    graph.completed(reader.number, 0, made("1-0"))
    graph.lost(["0-1"])
    step = graph.step()
    assert ([(0, (1,))], (reader.number,)) == (submitted(step), step.cancel)
    finish(graph, step.submit[0], suffix="-again")
    assert [(1, (0, 1))] == submitted(graph.step())


def test_own_readers_of_other_tasks_are_left_alone() -> None:
    """A task that reads only the output of its number is not concerned by others."""
    stages = (
        StageNode(index=0, tasks=3, varies=True),
        StageNode(index=1, tasks=3, reads=(Read(0, own=True),)),
    )
    graph = StageGraph(stages)
    reader = up_to(graph, 1)
    for task in (0, 1):
        graph.completed(reader.number, task, made(f"1-{task}", "b"))
    graph.ended(reader.number)
    graph.lost(["0-1"])
    step = graph.step()
    assert [(1, (2,))] == submitted(step)
    graph.ended(step.submit[0].number)
    graph.lost(["0-1", "1-1"])
    assert [(0, (1,))] == submitted(graph.step())


def test_a_stage_below_a_limit_ends_early() -> None:
    """Its other tasks are cancelled; if one of the first is lost, what is needed runs again."""
    graph = StageGraph(
        (StageNode(index=0, tasks=3, enough_rows=2), StageNode(index=1, tasks=1, reads=(Read(0),)))
    )
    (first,) = graph.step().submit
    graph.completed(first.number, 0, made("0-0", rows=5))
    assert graph.has_enough(0)
    step = graph.step()
    assert ((first.number,), [(1, (0,))]) == (step.cancel, submitted(step))
    graph.ended(step.submit[0].number)
    graph.lost(["0-0"])
    assert [(0, (0, 1, 2))] == submitted(graph.step())


# Any sequence of losses


@dataclass(frozen=True)
class Value:
    """What a task has computed: `draw` tells runs of a varying stage apart."""

    stage: int
    task: int
    draw: int
    inputs: tuple[Value, ...] = ()

    def all(self) -> Iterator[Value]:
        """This and everything that it was made of."""
        yield self
        for value in self.inputs:
            yield from value.all()


@dataclass
class World:
    """Executes submissions in random order, and loses files."""

    stages: Sequence[StageNode]
    rng: random.Random
    losses: int
    values: dict[str, Value] = field(default_factory=dict)
    running: dict[int, tuple[Submission, dict[int, tuple[str, ...]]]] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    draws: int = 0
    revisions: int = 0

    def run(self) -> tuple[StageGraph, list[Value]]:
        """Run to the end; the graph, and the values of the last stage."""
        graph = StageGraph(self.stages)
        for _ in range(100 * (1 + self.losses) * len(self.stages)):
            if graph.is_complete:
                last = self.stages[-1]
                found = [graph.at(last.index, task) for task in range(last.tasks)]
                return graph, [self.values[f.outcome.file or ""] for f in found if f is not None]
            self._act(graph)
        raise AssertionError("it never ends")

    def _act(self, graph: StageGraph) -> None:
        step = graph.step()
        graph.check()
        for number in step.cancel:
            del self.running[number]
        for submission in step.submit:
            inputs = {task: self._inputs(graph, submission, task) for task in submission.tasks}
            self.running[submission.number] = (submission, inputs)
        if self.revisions and graph.started and self.rng.random() < 0.3:
            self._revise(graph)
        elif self.losses and self.rng.random() < 0.3:
            self._lose(graph)
        elif self.running:
            self._advance(graph, self.rng.choice(list(self.running)))

    def _inputs(self, graph: StageGraph, submission: Submission, task: int) -> tuple[str, ...]:
        node = next(stage for stage in self.stages if stage.index == submission.stage)
        found = []
        for read in node.reads:
            count = next(stage.tasks for stage in self.stages if stage.index == read.stage)
            for other in (task,) if read.own else range(count):
                output = graph.at(read.stage, other)
                assert output is not None, "all that a task reads is there"
                found.append(output.outcome.file or "")
        return tuple(found)

    def _advance(self, graph: StageGraph, number: int) -> None:
        """A task completes, finds its input missing, or the job ends."""
        submission, waiting = self.running[number]
        if not waiting:
            graph.ended(number)
            del self.running[number]
            return
        task = self.rng.choice(list(waiting))
        files = waiting.pop(task)
        missing = [file for file in files if file in self.lost]
        if missing:
            graph.ended(number)
            del self.running[number]
            assert () == graph.lost(missing)
            return
        self.draws += 1
        varies = next(s.varies for s in self.stages if s.index == submission.stage)
        inputs = tuple(self.values[file] for file in files)
        value = Value(submission.stage, task, self.draws if varies else 0, inputs)
        file = f"{submission.stage}-{task}-{self.draws}"
        self.values[file] = value
        graph.completed(number, task, made(file, self.rng.choice("abc")))

    def _revise(self, graph: StageGraph) -> None:
        """Other stages take the place of those that have not started, which all read all."""
        self.revisions -= 1
        kept = [stage for stage in self.stages if stage.index in graph.started]
        if self.stages[-1] in kept:
            return
        number = 1 + max(stage.index for stage in kept)
        more = [
            StageNode(
                index=number + i,
                tasks=self.rng.randint(1, 3),
                reads=tuple(
                    Read(n) for n in (*(s.index for s in kept), *range(number, number + i))
                ),
                after=tuple(range(number, number + i)),
            )
            for i in range(self.rng.randint(1, 2))
        ]
        self.stages = [*kept, *more]
        graph.revise(self.stages)

    def _lose(self, graph: StageGraph) -> None:
        """A file goes unnoticed, or a node with all that it has is known to be dead."""
        self.losses -= 1
        if self.rng.random() < 0.5:
            self.lost.update(self.rng.sample(sorted(self.values), min(2, len(self.values))))
            return
        graph.lost_on((self.rng.choice("abc"),))


@st.composite
def stage_lists(draw: st.DrawFn) -> list[StageNode]:
    """A few stages, each of which reads some of those before it; the last one reads the rest."""
    count = draw(st.integers(1, 5))
    tasks = [draw(st.integers(1, 3)) for _ in range(count)]
    stages: list[StageNode] = []
    for index in range(count):
        others = draw(st.lists(st.integers(0, index - 1), unique=True)) if index else []
        reads = tuple(Read(o, own=tasks[o] == tasks[index] and draw(st.booleans())) for o in others)
        stages.append(
            StageNode(index=index, tasks=tasks[index], reads=reads, varies=draw(st.booleans()))
        )
    return stages


@given(stages=stage_lists(), seed=st.integers(0, 2**32), losses=st.integers(0, 8))
def test_answers_are_made_of_one_version_of_each_output(
    stages: list[StageNode], seed: int, losses: int
) -> None:
    """Whatever gets lost when, the run ends, and no two tasks have read different versions."""
    _, last = World(stages, random.Random(seed), losses).run()
    assert stages[-1].tasks == len(last)
    versions: dict[tuple[int, int], set[Value]] = {}
    for value in (each for output in last for each in output.all()):
        versions.setdefault((value.stage, value.task), set()).add(value)
    assert [1] * len(versions) == [len(found) for found in versions.values()]


@given(stages=stage_lists(), seed=st.integers(0, 2**32))
def test_nothing_runs_twice_without_a_loss(stages: list[StageNode], seed: int) -> None:
    """Each task that is needed runs once, and others not at all."""
    world = World(stages, random.Random(seed), 0)
    graph, _ = world.run()
    assert len(world.values) == len({(v.stage, v.task) for v in world.values.values()})
    assert 0 == sum(graph.rerun(stage.index) for stage in stages)


@given(
    stages=stage_lists(),
    seed=st.integers(0, 2**32),
    losses=st.integers(0, 8),
    revisions=st.integers(1, 3),
)
def test_revised_runs_end_with_one_version_of_each_output(
    stages: list[StageNode], seed: int, losses: int, revisions: int
) -> None:
    """Whatever is lost before or after a revision: what had started is made again as it was."""
    world = World(stages, random.Random(seed), losses, revisions=revisions)
    _, last = world.run()
    assert world.stages[-1].tasks == len(last)
    versions: dict[tuple[int, int], set[Value]] = {}
    for value in (each for output in last for each in output.all()):
        versions.setdefault((value.stage, value.task), set()).add(value)
    assert [1] * len(versions) == [len(found) for found in versions.values()]


def test_a_revision_replaces_what_has_not_started() -> None:
    """The run ends with the new last stage; outputs that exist are read, not made again."""
    graph = StageGraph(CHAIN)
    finish(graph, graph.step().submit[0])
    graph.revise((CHAIN[0], StageNode(index=1, tasks=1, reads=(Read(0),))))
    (last,) = graph.step().submit
    assert (1, (0,)) == (last.stage, last.tasks)
    finish(graph, last)
    assert graph.is_complete
    assert (0, 1) == tuple(graph.started)


def test_started_stages_stay() -> None:
    """A revision that changes one is a bug."""
    graph = StageGraph(CHAIN)
    graph.step()
    with pytest.raises(AssertionError, match="started stages stay"):
        graph.revise((StageNode(index=0, tasks=1),))


def test_what_a_revision_no_longer_reads_is_cancelled() -> None:
    """A running stage whose rows nobody needs any more, as what they were joined with is empty."""
    graph = StageGraph(
        (
            StageNode(index=0, tasks=1),
            StageNode(index=1, tasks=1),
            StageNode(index=2, tasks=1, reads=(Read(0), Read(1))),
        )
    )
    first, second = sorted(graph.step().submit, key=lambda each: each.stage)
    finish(graph, first)
    nodes = (StageNode(index=0, tasks=1), StageNode(index=1, tasks=1), StageNode(index=2, tasks=1))
    graph.revise(nodes)
    step = graph.step()
    assert (second.number,) == step.cancel
    assert [(2, (0,))] == submitted(step)


def test_a_stage_waits_for_one_whose_size_decides() -> None:
    """Until that is complete; not if it is not needed."""
    waiting = StageNode(index=1, tasks=1, after=(0,))
    both = StageNode(index=2, tasks=1, reads=(Read(0), Read(1)))
    graph = StageGraph((StageNode(index=0, tasks=1), waiting, both))
    (first,) = graph.step().submit
    assert 0 == first.stage
    finish(graph, first)
    assert [(1, (0,))] == submitted(graph.step())
    alone = StageGraph(
        (StageNode(index=0, tasks=1), waiting, StageNode(index=2, tasks=1, reads=(Read(1),)))
    )
    assert [(1, (0,))] == submitted(alone.step())


def test_what_reads_varying_rows_may_vary() -> None:
    """However many stages lie in between."""
    graph = StageGraph(
        (
            StageNode(index=0, tasks=1, varies=True),
            StageNode(index=1, tasks=1, reads=(Read(0),)),
            StageNode(index=2, tasks=1),
            StageNode(index=3, tasks=1, reads=(Read(1), Read(2))),
        )
    )
    assert [True, True, False, True] == [graph.may_vary(stage) for stage in range(4)]
