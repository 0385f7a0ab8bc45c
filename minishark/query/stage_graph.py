"""Which tasks of a query still have to run, whatever has been lost: a state machine.

                 step()  ─►  Step: jobs to submit, jobs to cancel
                    │
    task states:    ▼
        missing ──submitted──► running ──completed──► present
           ▲                      │                      │
           └── ended, cancelled ──┘                      │
           └───────── lost, lost_on, retracted ──────────┘

What has to run is derived in each step, backwards from the last stage: its missing tasks and, of
earlier stages, the outputs that missing tasks read. Nothing is remembered that a loss could make
wrong. So a lost output is computed again by its task alone, if a missing task needs it, and so are
the outputs that this task reads in turn.

A stage *varies* if its tasks may return other rows when they run again (indeterminate, in Spark).
What was computed from an output of such a stage does not fit the recomputed one: it is retracted
first, with all that was computed from it, and the jobs that read it are cancelled.

No IO happens here. Stages are numbered in topological order: each reads only earlier ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minishark.worker.protocol import TaskOutcome


@dataclass(frozen=True, slots=True)
class Read:
    """An edge of the graph: a stage reads an earlier one."""

    stage: int  # the number of the earlier stage
    # Whether task i reads only the output of task i; else each task reads all outputs.
    own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """A node of the graph: a stage."""

    index: int  # its number
    tasks: int  # its number of tasks
    reads: tuple[Read, ...] = ()  # the stages that it reads
    varies: bool = False  # whether its tasks may return other rows when they run again
    # The number of rows that suffices, taken from its tasks in order (a LIMIT); None for all rows.
    enough_rows: int | None = None
    # Stages that it waits for if they are to run, as their size may change what is left.
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The output of a task."""

    outcome: TaskOutcome  # what the task reported
    node: str  # where it ran
    # The nodes that store its file; none if it cannot be lost with a node.
    locations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Submission:
    """Tasks of a stage that run as one job; `number` identifies the submission."""

    number: int
    stage: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Jobs to submit now, and the numbers of submissions to cancel."""

    submit: tuple[Submission, ...]
    cancel: tuple[int, ...]


class StageGraph:
    """The stages of a query and their outputs."""

    def __init__(self, nodes: Sequence[StageNode]) -> None:
        """Start without outputs; the last of the stages gives the result."""
        self._nodes = {node.index: node for node in nodes}
        self._last = nodes[-1]
        self._outputs: dict[int, list[TaskOutput | None]] = {}
        # Exposed: a reader may have seen an output of this task, even if it was lost since. Set on
        # completion, which is earlier than necessary but needs no reports of who has read what.
        self._exposed: dict[int, list[bool]] = {}
        self._times: dict[int, list[int]] = {}
        self._rerun: dict[int, int] = {}
        self._started: dict[int, None] = {}
        self._files: dict[str, tuple[int, int]] = {}  # stage and task; also of lost files
        self._open: dict[int, Submission] = {}
        self._hopeless: dict[int, None] = {}  # submissions that read from dead nodes
        self._numbers = itertools.count()
        for node in nodes:
            self._begin(node)
        self._check_order()

    def _check_order(self) -> None:
        seen: set[int] = set()
        for node in self._nodes.values():
            assert all(read.stage in seen for read in node.reads), "stages are in order"
            seen.add(node.index)

    # --- queries -------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the last stage has all the output that is needed."""
        return self._is_done(self._last) and not self._is_open(self._last.index)

    def is_open(self, number: int) -> bool:
        """Whether a submission has neither ended nor been cancelled."""
        return number in self._open

    def outputs(self, stage: int) -> list[TaskOutput]:
        """The outputs of a stage that exist, in the order of its tasks."""
        return [made for made in self._outputs[stage] if made is not None]

    def at(self, stage: int, task: int) -> TaskOutput | None:
        """The output of a task, if it exists."""
        return self._outputs[stage][task]

    def locations(self) -> tuple[str, ...]:
        """All nodes that store outputs."""
        made = (
            output for outputs in self._outputs.values() for output in outputs if output is not None
        )
        return tuple(dict.fromkeys(node for output in made for node in output.locations))

    def done(self, stage: int) -> bool:
        """Whether all outputs that are needed of a stage exist, and none of its tasks runs."""
        return self._is_done(self._nodes[stage]) and not self._is_open(stage)

    def rerun(self, stage: int) -> int:
        """The number of tasks of a stage that were submitted again after they had completed."""
        return self._rerun[stage]

    def has_enough(self, stage: int) -> bool:
        """Whether the first tasks of a stage have returned as many rows as are needed of it."""
        missing = self._nodes[stage].enough_rows
        if missing is None:
            return False
        for made in self._outputs[stage]:
            if made is None:  # the first rows are wanted, not any
                return False
            missing -= made.outcome.figures.rows
            if missing <= 0:
                return True
        return False

    def _is_done(self, node: StageNode) -> bool:
        return None not in self._outputs[node.index] or self.has_enough(node.index)

    def _is_open(self, stage: int) -> bool:
        return any(job.stage == stage for job in self._open.values())

    @property
    def started(self) -> Collection[int]:
        """The stages of which a task was ever submitted, and those of adopted outputs."""
        return self._started.keys()

    def may_vary(self, stage: int) -> bool:
        """Whether a stage may return other rows when it, or what it reads, runs again."""
        node = self._nodes[stage]
        return node.varies or any(self.may_vary(read.stage) for read in node.reads)

    def varies(self, stage: int) -> bool:
        """Whether a stage may return other rows when it runs again on the same inputs."""
        return self._nodes[stage].varies

    # --- events --------------------------------------------------------------------------

    def completed(self, number: int, task: int, output: TaskOutput) -> None:
        """A task of a submission has completed; ignored if the submission is no longer open."""
        if number not in self._open:
            return
        stage = self._open[number].stage
        assert task in self._open[number].tasks, "jobs report their own tasks only"
        self._outputs[stage][task] = output
        self._exposed[stage][task] = True
        self._times[stage][task] += 1
        if output.outcome.file is not None:
            self._files[output.outcome.file] = (stage, task)

    def adopt(self, stage: int, task: int, output: TaskOutput) -> None:
        """A task's output exists already, that was computed for another query.

        Its stage counts as started, and so do those that it reads: what is missing has to fit.
        """
        self._outputs[stage][task] = output
        self._exposed[stage][task] = True
        self._start(stage)
        if output.outcome.file is not None:
            self._files[output.outcome.file] = (stage, task)

    def _start(self, stage: int) -> None:
        if stage not in self._started:
            self._started[stage] = None
            for read in self._nodes[stage].reads:
                self._start(read.stage)

    def ended(self, number: int) -> None:
        """A submission's job has ended, however it did."""
        self._open.pop(number, None)

    def lost(self, files: Iterable[str]) -> tuple[str, ...]:
        """Files are gone; returns those that are no task's output but inputs of the query."""
        unknown = []
        for file in files:
            place = self._files.get(file)
            if place is None:
                unknown.append(file)
                continue
            made = self._outputs[place[0]][place[1]]
            # A late report: the output may have been computed again already, as another file.
            if made is not None and made.outcome.file == file:
                self._outputs[place[0]][place[1]] = None
        return tuple(unknown)

    def lost_on(self, nodes: Collection[str]) -> int:
        """Outputs that only these nodes store are gone; returns the number of such outputs.

        Jobs that may be reading them would wait for a timeout: they are cancelled and start anew.
        Nodes that come back under their names are empty: they do not count as holders any more.
        """
        count = 0
        for stage, outputs in self._outputs.items():
            for task, made in enumerate(outputs):
                if made is None or not made.locations:
                    continue
                left = tuple(node for node in made.locations if node not in nodes)
                if not left:
                    outputs[task] = None
                    self._cancel_readers(stage, task)
                    count += 1
                elif left != made.locations:
                    outputs[task] = replace(made, locations=left)
        return count

    def revise(self, nodes: Sequence[StageNode]) -> None:
        """Other stages take the place of those that have not started.

        Args:
            nodes: all stages: those that have started as they were, and the others; the last one
                gives the result.
        """
        started = {node.index: node for node in nodes if node.index in self._started}
        assert started == {i: self._nodes[i] for i in self._started}, "started stages stay"
        for index in [i for i in self._nodes if i not in self._started]:
            for kept in (self._outputs, self._exposed, self._times, self._rerun):
                del kept[index]
        self._nodes = {node.index: node for node in nodes}
        self._last = nodes[-1]
        for node in nodes:
            if node.index not in self._started:
                self._begin(node)
        self._check_order()

    def _begin(self, node: StageNode) -> None:
        self._outputs[node.index] = [None] * node.tasks
        self._exposed[node.index] = [False] * node.tasks
        self._times[node.index] = [0] * node.tasks
        self._rerun[node.index] = 0

    def _cancel_readers(self, stage: int, task: int) -> None:
        """Mark the open submissions that still have to read an output."""
        # Their tasks that have completed keep their outputs; only the others start anew.
        for reader, read in self._readers(stage):
            for number, job in self._open.items():
                waiting = (t for t in job.tasks if self._outputs[reader.index][t] is None)
                if job.stage == reader.index and any(not read.own or t == task for t in waiting):
                    self._hopeless[number] = None

    def check(self) -> None:
        """Assert what holds between events."""
        stages = [job.stage for job in self._open.values()]
        assert len(dict.fromkeys(stages)) == len(stages), "one job per stage at a time"
        for index, node in self._nodes.items():
            outputs, is_started = self._outputs[index], index in self._started
            assert node.tasks == len(outputs) == len(self._exposed[index])
            assert is_started or not any(self._exposed[index]), "what has not run put out nothing"
            # A stage runs when all that it reads is there, so what it reads has started, too.
            assert not is_started or all(read.stage in self._started for read in node.reads)
            for task, made in enumerate(outputs):
                if made is not None:
                    assert self._exposed[index][task], "whoever saw it must be found"
                    file = made.outcome.file
                    assert file is None or self._files[file] == (index, task)

    # --- decisions --------------------------------------------------------------------

    def step(self) -> Step:
        """What can start now, and what is no longer needed."""
        cancelled = [number for number in self._hopeless if self._open.pop(number, None)]
        self._hopeless.clear()
        missing = self.missing()
        # A retraction makes more outputs missing, among them perhaps ones of varying stages. It
        # ends, as each clears an exposed flag.
        while self._retract(missing, cancelled):
            missing = self.missing()
        for number in [n for n, job in self._open.items() if self._is_useless(job, missing)]:
            del self._open[number]
            cancelled.append(number)
        assert self._open.keys().isdisjoint(cancelled), "what is cancelled is over"
        return Step(tuple(self._ready(missing)), tuple(cancelled))

    def missing(self) -> dict[int, tuple[int, ...]]:
        """The tasks of each stage that still have to complete because something needs them.

        The last stage's are the first.
        """
        wanted: dict[int, dict[int, None]] = {
            self._last.index: dict.fromkeys(range(self._last.tasks))
        }
        missing: dict[int, tuple[int, ...]] = {}
        # Backwards from the result: a stage is needed only by what is itself missing.
        for index, node in reversed(self._nodes.items()):
            if index not in wanted or self.has_enough(index):
                continue  # a lost output of a stage that nothing reads any more stays lost
            outputs = self._outputs[index]
            tasks = tuple(task for task in sorted(wanted[index]) if outputs[task] is None)
            if not tasks:
                continue
            missing[index] = tasks
            for read in node.reads:
                wanted.setdefault(read.stage, {}).update(dict.fromkeys(self._read(read, tasks)))
        return missing

    def _read(self, read: Read, tasks: tuple[int, ...]) -> Iterable[int]:
        """The tasks of an earlier stage whose outputs these tasks read."""
        return tasks if read.own else range(self._nodes[read.stage].tasks)

    def _retract(self, missing: dict[int, tuple[int, ...]], cancelled: list[int]) -> bool:
        """Retract what has read outputs that will differ when recomputed; whether there was any."""
        changed = False
        for index, tasks in missing.items():
            again = [task for task in tasks if self._exposed[index][task]]
            # A deterministic stage recomputes the rows that its readers have seen.
            if again and self._nodes[index].varies:
                self._take_back(index, again, cancelled)
                changed = True
        return changed

    def _take_back(self, stage: int, tasks: Sequence[int], cancelled: list[int]) -> None:
        """Drop these tasks' outputs and, transitively, everything computed from them."""
        for task in tasks:
            self._outputs[stage][task] = None
            self._exposed[stage][task] = False
        # Only what was exposed is taken back, and each only once: that ends at the last stage.
        for reader, read in self._readers(stage):
            affected = tasks if read.own else range(reader.tasks)
            for number, job in list(self._open.items()):
                if job.stage == reader.index and any(task in affected for task in job.tasks):
                    del self._open[number]
                    cancelled.append(number)
            # Readers need not vary themselves: other input gives them other output.
            exposed = [task for task in affected if self._exposed[reader.index][task]]
            if exposed:
                self._take_back(reader.index, exposed, cancelled)

    def _readers(self, stage: int) -> Iterator[tuple[StageNode, Read]]:
        for node in self._nodes.values():
            for read in node.reads:
                if read.stage == stage:
                    yield node, read

    def _is_useless(self, submission: Submission, missing: dict[int, tuple[int, ...]]) -> bool:
        """Whether some of its tasks still run, and none of these is needed."""
        outputs = self._outputs[submission.stage]
        running = [task for task in submission.tasks if outputs[task] is None]
        wanted = missing.get(submission.stage, ())
        return bool(running) and not any(task in wanted for task in running)

    def _ready(self, missing: dict[int, tuple[int, ...]]) -> Iterator[Submission]:
        for index, tasks in reversed(missing.items()):
            # One job per stage at a time: an open one may yet complete what is missing.
            if self._is_open(index) or not self._can_run(self._nodes[index], tasks, missing):
                continue
            self._rerun[index] += sum(self._times[index][task] > 0 for task in tasks)
            submission = Submission(next(self._numbers), index, tasks)
            self._open[submission.number] = submission
            self._started[index] = None
            yield submission

    def _can_run(
        self, node: StageNode, tasks: tuple[int, ...], missing: dict[int, tuple[int, ...]]
    ) -> bool:
        """Whether all outputs that these tasks read exist, and it need not wait for others."""
        for read in node.reads:
            # An open job of that stage might replace outputs while they are read.
            absent = missing.get(read.stage, ())
            if self._is_open(read.stage) or any(t in absent for t in self._read(read, tasks)):
                return False
        return not any(self._is_open(stage) or stage in missing for stage in node.after)
