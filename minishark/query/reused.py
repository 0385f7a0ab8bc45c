"""What one query takes of outputs that others have computed, and what it leaves for others."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa
from msgspec import structs

from minishark.cluster.job_events import TaskCompleted
from minishark.cluster.replicas import CALLS_REPLICAS
from minishark.compiler.stages.stage import Stage
from minishark.model.catalog import Table
from minishark.model.events.figures import TaskFigures
from minishark.model.events.kinds import StageReused
from minishark.query.call_segments import CallSegments
from minishark.query.job_builder import Environment, JobBuilder, TaskNames
from minishark.query.names import KEPT, NoNameError, NotYetError, OutputNames
from minishark.query.planner import QueryPlan
from minishark.query.questions import KeptAnswer, Question, decode_answer
from minishark.query.reuse import Reuse
from minishark.query.sinks import CollectRows
from minishark.query.stage_graph import StageGraph, StageNode, Submission, TaskOutput
from minishark.query.stage_jobs import OnShared, SharedTask
from minishark.worker.protocol import (
    FileSlice,
    KeptOutput,
    OutputKind,
    StageTask,
    TaskFunction,
    TaskOutcome,
    encode,
)

_decode_names: Callable[[bytes], tuple[str, ...]] = msgspec.msgpack.Decoder(tuple[str, ...]).decode


_MADE_BY_MAX = 16


class OnTaken(Protocol):
    """Hears of outputs of a stage that were taken, perhaps as the whole answer."""

    def __call__(self, stage: int, outputs: Sequence[KeptOutput], *, is_answer: bool) -> None: ...


@dataclass(slots=True, kw_only=True)
class ReusedOutputs:
    """The outputs with names of one run of a query; `Sharing` for its jobs."""

    reuse: Reuse
    graph: StageGraph
    described: Callable[[Stage], StageTask]
    made_by: str  # which query it is, for those who take its outputs
    # Called with the number of a stage whose outputs have become complete without a job.
    on_complete: Callable[[int], None]
    lost_nodes: Callable[[Collection[str]], Collection[str]]  # of some nodes, those that are dead
    on_taken: OnTaken
    question: Question | None = None  # whose answer it is, for those who ask the same
    columns: Sequence[str] = ()  # the answer's
    names: OutputNames = field(init=False)
    adopted: dict[tuple[int, int], KeptOutput] = field(default_factory=dict)
    _identities: dict[tuple[int, int], str] = field(default_factory=dict)
    _named: dict[tuple[int, int], str] = field(default_factory=dict)  # names of existing outputs
    _looked: set[tuple[int, int]] = field(default_factory=set)
    _absent: frozenset[str] = frozenset()  # names that nobody had when the query began
    _told: set[int] = field(default_factory=set)  # stages that are known to be complete
    _claimed: dict[str, str] = field(default_factory=dict)  # who claimed each name
    _of_calls: dict[tuple[int, int], str] = field(default_factory=dict)  # names of partitions
    _taken: list[str] = field(default_factory=list)
    _held: list[str] = field(default_factory=list)  # those that it has computed
    _answer: str | None = None  # the answer's name
    _run: str = field(init=False)  # a random text
    _calls: CallSegments | None = field(init=False)

    def __post_init__(self) -> None:
        self._run = self.reuse.chance()
        self._calls = None if self.reuse.calls is None else self.reuse.calls()

    def plan(self, stages: Sequence[Stage], tables: Mapping[str, Table]) -> None:
        """These are the query's stages, and the tables that they read."""
        self.names = OutputNames(
            stages={stage.index: stage for stage in stages},
            tables=tables,
            described=self.described,
            leaves=self.reuse.leaves,
            identity=self._identity,
        )
        self._looked = {place for place in self._looked if place in self.adopted}

    def _identity(self, stage: int, task: int) -> str | None:
        if self.graph.at(stage, task) is not None:
            return self._identities.get((stage, task))
        return "never needed" if self.graph.has_enough(stage) else None  # a limit had enough rows

    def answer(self, stages: Sequence[Stage]) -> list[TaskOutput] | None:
        """The outputs of the last of the stages, if an earlier query has left all of them.

        They are of one run, and so fit together even where stages vary.
        """
        names = self.names.as_if_planned()
        if self.described(stages[-1]).output not in KEPT:
            return None
        try:
            self._answer = names.answer(stages[-1])
        except NoNameError:
            return None
        places = ((stage.index, task) for stage in stages for task in range(stage.tasks))
        outputs = [name for name in (self._kept_name(*place) for place in places) if name]
        self._absent = self.reuse.absent([self._answer, *outputs])
        kept = self._take([self._answer]).get(self._answer)
        if kept is None:
            return None
        self._taken.append(self._answer)
        assert kept.outcome.inline is not None, "answers are lists of names"
        wanted = _decode_names(kept.outcome.inline)
        there = self._alive(self.reuse.take(wanted))
        if len(there) < len(frozenset(wanted)):
            return None
        taken = [there[name] for name in wanted]
        self.on_taken(stages[-1].index, taken, is_answer=True)
        self._keep_answer(stages[-1].index, taken)
        return [_output(output) for output in taken]

    def _take(self, names: Sequence[str]) -> dict[str, KeptOutput]:
        """Those of outputs that there are, but for what others have kept since the query began."""
        held = self.reuse.look(names)
        return self.reuse.take([n for n in names if n in held or n not in self._absent])

    def _alive(self, outputs: Mapping[str, KeptOutput]) -> dict[str, KeptOutput]:
        """Those of outputs whose nodes live, as far as is known."""
        self._taken += outputs
        files = {name: output for name, output in outputs.items() if output.outcome.file}
        nodes = self.lost_nodes({node for output in files.values() for node in output.nodes})
        dead = {name for name, output in files.items() if {*output.nodes} <= {*nodes}}
        self.lost(files[name].outcome.file or "" for name in dead)
        return {name: output for name, output in outputs.items() if name not in dead}

    # For `StageJobs`

    def adopt(self) -> None:
        """Give the graph outputs that exist already, the last stage's first."""
        while self._adopt_some():
            pass

    def _adopt_some(self) -> bool:
        wanted: dict[str, list[tuple[int, int]]] = {}
        for stage, tasks in self.graph.missing().items():
            for task in tasks:
                if (stage, task) not in self._looked:
                    name = self._kept_name(stage, task)
                    if name is not None:
                        wanted.setdefault(name, []).append((stage, task))
        if not wanted:
            return False
        self._looked.update(place for places in wanted.values() for place in places)
        kept = self._alive(self._take([*wanted]))
        stages: dict[int, list[KeptOutput]] = {}
        # Forwards, so that a stage is known to be complete before those that read it.
        for place, name in sorted((p, n) for n in kept for p in wanted[n]):
            self._put(*place, name, kept[name])
            self.graph.adopt(*place, _output(kept[name]))
            stages.setdefault(place[0], []).append(kept[name])
        for stage, outputs in stages.items():
            self.on_taken(stage, outputs, is_answer=False)
        self._tell_complete(stages)
        return bool(kept)

    def _tell_complete(self, stages: Iterable[int]) -> None:
        for stage in stages:
            if stage not in self._told and self.graph.done(stage):
                self._told.add(stage)
                self.on_complete(stage)

    def _put(self, stage: int, task: int, name: str, output: KeptOutput) -> None:
        self.adopted[stage, task] = output
        self._note(stage, task, name, output.identity)

    def _note(self, stage: int, task: int, name: str | None, identity: str | None) -> None:
        """An output exists; those that are computed from it may have other names now."""
        if name is not None:
            self._named[stage, task] = name
        if identity is not None and self._identities.get((stage, task)) != identity:
            self._identities[stage, task] = identity
            if identity != name:
                self.names.forget()

    def _kept_name(self, stage: int, task: int) -> str | None:
        """The name of an output that is kept; None for others."""
        is_kept = self.described(self.names.stages[stage]).output in KEPT
        return self._name(stage, task) if is_kept else None

    def _name(self, stage: int, task: int) -> str | None:
        try:
            return self.names.of(stage, task)
        except (NoNameError, NotYetError):
            return None

    def shared(self, submission: Submission, tell: OnShared) -> frozenset[int]:
        """The tasks of a submission that other queries run now: told when these have ended."""
        shared = []
        for task in submission.tasks:
            name = self._kept_name(submission.stage, task)
            if name is None:
                self._named.pop((submission.stage, task), None)
                continue
            self._named[submission.stage, task] = name
            owner = self._owner(submission.stage, task)
            if self.reuse.claim(name, owner, partial(_tell, tell, task)):
                self._claimed[name] = owner
            else:
                shared.append(task)
        return frozenset(shared)

    def names_of(self, submission: Submission) -> dict[int, TaskNames]:
        """The names of what tasks leave that are to be computed.

        Calls of functions outlive the session with the outputs of others; an output that is a
        table's, and not kept, is made again of what they returned.
        """
        stage = submission.stage
        makes_calls = self.described(self.names.stages[stage]).function is not None
        names = {}
        for task in submission.tasks:
            output = self._named.get((stage, task), "")
            calls = ""
            if makes_calls and self.reuse.shared is not None:
                calls = output or self._name(stage, task) or ""
            if output or calls:
                names[task] = TaskNames(output, calls)
        of_calls = {task: each.calls for task, each in names.items() if each.calls}
        made = self._alive(self._take([*of_calls.values()])) if of_calls else {}
        if made:
            self.on_taken(stage, [*made.values()], is_answer=False)
        for task, name in of_calls.items():
            self._of_calls[stage, task] = name
            if (kept := made.get(name)) is not None and kept.outcome.file is not None:
                slices = (FileSlice(kept.outcome.file, kept.nodes),)
                left = len(kept.nodes) - len(self.lost_nodes(kept.nodes))
                # What lives on too few nodes is kept again.
                names[task] = replace(
                    names[task], made=slices, calls=name if left < CALLS_REPLICAS else ""
                )
        if self._calls is not None:
            logged = self._calls.found(each.calls for each in names.values() if not each.made)
            for task, each in names.items():
                names[task] = replace(each, logged=logged.get(each.calls, ()))
        return names

    def look(self) -> None:
        """To be called often: keep what calls of tasks that run have come to."""
        if self._calls is not None:
            self._calls.look()

    def on_shared(self, submission: Submission, event: SharedTask) -> None:
        """Another query has run a task."""
        stage = submission.stage
        name = self._named.get((stage, event.task))
        if event.output is not None and name is not None:
            kept = self.reuse.take([name]).get(name)
            if kept is not None:
                self._taken.append(name)
                self._put(stage, event.task, name, kept)
                self.on_taken(stage, [kept], is_answer=False)
        if self.graph.done(stage):
            self._told.add(stage)
            self.on_complete(stage)

    def ended(self, submission: Submission) -> None:
        """A submission is over: others may compute what it has not come to."""
        owners = {self._owner(submission.stage, task) for task in submission.tasks}
        claimed = {name: owner for name, owner in self._claimed.items() if owner in owners}
        for name in claimed:
            del self._claimed[name]
        self.reuse.disclaim(claimed)

    def _owner(self, stage: int, task: int) -> str:
        return f"{self._run} {stage} {task}"

    # What it leaves

    def completed(self, stage: int, event: TaskCompleted, output: TaskOutput) -> TaskOutput:
        """A task has computed an output, which others may take; the output for the graph.

        Only those check the file who take it later.
        """
        name = self._named.get((stage, event.task_id))
        if self._calls is not None and output.outcome.calls:
            self._calls.ended(output.outcome.calls, output.node)
        self._keep_partition(stage, event, output)
        identity = name
        if name is not None and self.graph.varies(stage):
            identity = self.reuse.chance()
        self.adopted.pop((stage, event.task_id), None)
        self._note(stage, event.task_id, name, identity)
        if name is not None and identity is not None:
            self._claimed.pop(name, None)
            kept = self._kept(output.outcome, output.node, identity, event.run_s)
            self.reuse.hold([name])
            self._held.append(name)
            self.reuse.keep({name: kept})
        return TaskOutput(output.outcome, output.node, output.locations)

    def _keep_partition(self, stage: int, event: TaskCompleted, output: TaskOutput) -> None:
        """Let later queries have what calls have made, but for what was made of varying rows."""
        name, kept = self._of_calls.get((stage, event.task_id)), output.outcome.kept
        if name is None or kept is None or self.graph.varies(stage):
            return
        outcome = structs.replace(
            output.outcome, file=kept.file, locations=kept.locations, kept=None, calls=""
        )
        self.reuse.keep({name: self._kept(outcome, output.node, name, event.run_s)})

    def _kept(
        self, outcome: TaskOutcome, node: str, identity: str, run_s: float = 0.0
    ) -> KeptOutput:
        return KeptOutput(
            outcome=structs.replace(outcome, printed="", profiles={}),
            node=node,
            identity=identity,
            made_s=time.time(),
            run_s=run_s,
            made_by=self.made_by,
        )

    def finished(self, last: Stage) -> None:
        """The query has its answer; another that asks the same may take it."""
        if self.described(last).output is OutputKind.PARTITION:
            self._note_contents(last)
        if self._answer is None:
            return
        tasks = [i for i in range(last.tasks) if self.graph.at(last.index, i) is not None]
        names = [self._named.get((last.index, task)) for task in tasks]
        if None in names:
            return
        data = encode(tuple(names))
        outcome = TaskOutcome(figures=TaskFigures(bytes=len(data)), inline=data)
        self.reuse.keep({self._answer: self._kept(outcome, "", self._answer)})
        outputs = self.reuse.look([name for name in names if name is not None])
        if len(outputs) == len(frozenset(names)):
            self._keep_answer(last.index, [outputs[name] for name in names if name is not None])

    def _keep_answer(self, stage: int, outputs: Sequence[KeptOutput]) -> None:
        """Keep the rows of a last stage under the name of the question, if they are few."""
        if self.question is None:
            return
        inline = [output.outcome.inline for output in outputs]
        answer = KeptAnswer.of(stage, self.columns, inline)
        if answer is not None:
            data = encode(answer)
            kept = KeptOutput(
                outcome=TaskOutcome(figures=TaskFigures(bytes=len(data)), inline=data),
                node="",
                identity=self.question.name,
                made_s=min(output.made_s for output in outputs),
                run_s=sum(output.run_s for output in outputs),
                made_by=outputs[0].made_by,
            )
            self.reuse.keep({self.question.name: kept})

    def _note_contents(self, last: Stage) -> None:
        """Partitions that it stores are called by what they were made from, for later queries."""
        for task in range(last.tasks):
            output = self.graph.at(last.index, task)
            name = None if self.graph.varies(last.index) else self._name(last.index, task)
            if output is not None and output.outcome.file is not None and name is not None:
                self.reuse.contents[output.outcome.file] = name

    def lost(self, files: Iterable[str]) -> None:
        """Files are gone, or damaged: nobody is to take them any more."""
        self.reuse.lost(frozenset(files))

    def close(self) -> None:
        """The query has ended, and has read what it took."""
        claimed, self._claimed = self._claimed, {}
        self.reuse.disclaim(claimed)
        taken, self._taken = self._taken, []
        self.reuse.give(taken)
        held, self._held = self._held, []
        self.reuse.let_go(held)
        if self._calls is not None:
            self._calls.close()


def _output(kept: KeptOutput) -> TaskOutput:
    outcome = structs.replace(kept.outcome, is_taken=True)
    return TaskOutput(outcome, kept.node, () if outcome.file is None else kept.nodes)


def _tell(tell: OnShared, task: int, kept: KeptOutput | None) -> None:
    tell(SharedTask(task, None if kept is None else _output(kept)))


def answered(reuse: Reuse, question: Question, query: int) -> tuple[pa.Table, StageReused] | None:
    """The rows that answer a question, and what is told of them; None if nobody has kept them."""
    kept = reuse.take([question.name]).get(question.name)
    if kept is None:
        return None
    reuse.give([question.name])
    assert kept.outcome.inline is not None, "answers are small"
    answer = decode_answer(kept.outcome.inline)
    event = reused_event(query, answer.stage, [kept], is_answer=True)
    return answer.rows(), structs.replace(event, tasks=len(answer.outputs))


def reused_event(
    query: int, stage: int, outputs: Sequence[KeptOutput], *, is_answer: bool
) -> StageReused:
    """What is told of outputs of a stage that were taken."""
    now_s = time.time()
    return StageReused(
        at=now_s,
        query=query,
        stage=stage,
        tasks=len(outputs),
        age_s=max((now_s - output.made_s for output in outputs), default=0.0),
        saved_s=sum(output.run_s for output in outputs),
        made_by=tuple(dict.fromkeys(output.made_by for output in outputs))[:_MADE_BY_MAX],
        is_answer=is_answer,
    )


def reuse_text(
    plan: QueryPlan,
    reuse: Reuse,
    environment: Environment,
    working_folder: str,
    called: TaskFunction | None = None,
) -> str:
    """What of a plan exists already, for EXPLAIN; and of the rest, why it could not.

    Of what varies, and what is computed from that, names are known only when it runs. The rows may
    be passed to a function whose results are stored as a table: then its calls are what is kept.
    """
    last = plan.stages[-1].index
    output = CollectRows().output(plan.physical, plan.columns)
    if called is not None:
        output = replace(output, function=called, kind=OutputKind.PARTITION)
    builder = JobBuilder(
        graph=StageGraph([StageNode(index=last, tasks=1)]),
        last=last,
        output=output,
        folder="",
        working_folder=working_folder,
        environment=environment,
        threads=1,
        traced=False,
        profiled=False,
    )
    names = OutputNames(
        stages={stage.index: stage for stage in plan.stages},
        tables=plan.tables,
        described=builder.described,
        leaves=reuse.leaves,
        as_planned=True,
    )
    if called is not None:
        before = [_stage_text(stage, names, reuse) for stage in plan.stages[:-1]]
        return "\n".join([*before, _calls_text(plan.stages[-1], names, reuse, called)])
    with contextlib.suppress(NoNameError):
        answer = names.answer(plan.stages[-1])
        answers = _existing(reuse, [answer])
        if answers:
            return f"The answer exists: {_made(answers[answer])}."
    return "\n".join(_stage_text(stage, names, reuse) for stage in plan.stages)


def _calls_text(stage: Stage, names: OutputNames, reuse: Reuse, called: TaskFunction) -> str:
    stage_text = f"Stage {stage.index}: {called.label}"
    try:
        wanted = [names.of(stage.index, task) for task in range(stage.tasks)]
    except NoNameError as error:
        return f"{stage_text} makes all calls again, as {error}"
    if reuse.shared is None:
        return f"{stage_text} makes all calls: none outlive this session"
    made = _existing(reuse, wanted)
    if len(made) == len(wanted):
        oldest = min(made.values(), key=lambda output: output.made_s)
        return f"{stage_text} makes no calls: what they returned exists, {_made(oldest)}"
    return f"{stage_text} makes the calls that were not made before"


def _stage_text(stage: Stage, names: OutputNames, reuse: Reuse) -> str:
    try:
        wanted = [names.of(stage.index, task) for task in range(stage.tasks)]
    except NoNameError as error:
        return f"Stage {stage.index}: not reused, as {error}"
    outputs = _existing(reuse, wanted)
    if not outputs:
        return f"Stage {stage.index}: no output exists"
    oldest = min(outputs.values(), key=lambda output: output.made_s)
    return f"Stage {stage.index}: {len(outputs)} of {stage.tasks} outputs exist: {_made(oldest)}"


def _existing(reuse: Reuse, names: Sequence[str]) -> Mapping[str, KeptOutput]:
    """Those of outputs that there are, also of other sessions."""
    outputs = reuse.take(names)
    reuse.give(outputs)
    return outputs


def _made(output: KeptOutput) -> str:
    return f"{time.time() - output.made_s:,.1f} s old, of {output.made_by}"
