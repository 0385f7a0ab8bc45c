"""Which tasks of a query are still to be run, whatever has been lost: a state machine.

    StageGraph  ──step──►  submit these tasks, cancel those jobs
        ▲ completed, ended, lost, lost_on

What is needed follows from the end: the last stage's tasks, and of earlier stages those outputs
that a task which is still to run reads. So a lost output is made again by its task alone, as far as
somebody needs it, and so are the outputs that this task reads in turn.

A stage *varies* if its tasks may put out other rows when they run again. What has read an output of
such a stage would not fit to the one that is made again: it is retracted first, with all that
depends on it, and the jobs that are about to read it are cancelled. (Spark calls such stages
indeterminate.)

Nothing here does input or output; stages are numbered so that each reads only earlier ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from minishark.worker.protocol import TaskOutcome


@dataclass(frozen=True, slots=True)
class Read:
    """What the tasks of a stage read of an earlier one.

    Attributes:
        stage: the earlier stage.
        own: whether task i reads only the output of task i; else each reads of all outputs.
    """

    stage: int
    own: bool = False


@dataclass(frozen=True, slots=True)
class StageNode:
    """A stage, as far as it matters here.

    Attributes:
        index: its number.
        tasks: how many tasks it has.
        reads: the stages that it reads.
        varies: whether its tasks may put out other rows when they run again.
        enough_rows: this many rows, of its tasks in their order, are enough; None for all.
    """

    index: int
    tasks: int
    reads: tuple[Read, ...] = ()
    varies: bool = False
    enough_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """The output of a task.

    Attributes:
        outcome: what the task said.
        node: where it ran.
        locations: the nodes on which its file lies; none for what can't go with a node.
    """

    outcome: TaskOutcome
    node: str
    locations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Submission:
    """Tasks of a stage that are to run as one job; `number` tells submissions apart."""

    number: int
    stage: int
    tasks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done now: jobs to submit, and the numbers of those to cancel."""

    submit: tuple[Submission, ...]
    cancel: tuple[int, ...]


class StageGraph:
    """The stages of a query and what has been made of them."""

    def __init__(self, nodes: Sequence[StageNode]) -> None:
        """Begin with nothing made; the last of the stages gives the result."""
        self._nodes = {node.index: node for node in nodes}
        self._last = nodes[-1]
        self._made: dict[int, list[Made | None]] = {n.index: [None] * n.tasks for n in nodes}
        # Whether somebody may have read an output of the task, and how often it was made.
        self._exposed = {node.index: [False] * node.tasks for node in nodes}
        self._times = {node.index: [0] * node.tasks for node in nodes}
        self._remade = dict.fromkeys(self._nodes, 0)
        self._files: dict[str, tuple[int, int]] = {}
        self._open: dict[int, Submission] = {}
        self._hopeless: dict[int, None] = {}  # submissions that wait for nodes that are dead
        self._numbers = itertools.count()

    # --- what is there -------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether the last stage has put out all that is needed."""
        return self._is_done(self._last) and not self._is_open(self._last.index)

    def is_open(self, number: int) -> bool:
        """Whether a submission has neither ended nor been cancelled."""
        return number in self._open

    def made(self, stage: int) -> list[Made]:
        """What there is of a stage, in the order of its tasks."""
        return [made for made in self._made[stage] if made is not None]

    def at(self, stage: int, task: int) -> Made | None:
        """What there is of a task."""
        return self._made[stage][task]

    def locations(self) -> tuple[str, ...]:
        """All nodes on which outputs lie."""
        made = (each for outputs in self._made.values() for each in outputs if each is not None)
        return tuple(dict.fromkeys(node for each in made for node in each.locations))

    def done(self, stage: int) -> bool:
        """Whether all that is needed of a stage is there, and nothing of it runs."""
        return self._is_done(self._nodes[stage]) and not self._is_open(stage)

    def remade(self, stage: int) -> int:
        """How many tasks of a stage were submitted again after they had been completed."""
        return self._remade[stage]

    def has_enough(self, stage: int) -> bool:
        """Whether the first tasks of a stage have given all rows that are needed of it."""
        missing = self._nodes[stage].enough_rows
        if missing is None:
            return False
        for made in self._made[stage]:
            if made is None:
                return False
            missing -= made.outcome.rows
            if missing <= 0:
                return True
        return False

    def _is_done(self, node: StageNode) -> bool:
        return None not in self._made[node.index] or self.has_enough(node.index)

    def _is_open(self, stage: int) -> bool:
        return any(each.stage == stage for each in self._open.values())

    # --- what happens --------------------------------------------------------------------------

    def completed(self, number: int, task: int, made: Made) -> None:
        """A task of a submission has been completed; it counts if the submission is open."""
        if number not in self._open:
            return
        stage = self._open[number].stage
        self._made[stage][task] = made
        self._exposed[stage][task] = True
        self._times[stage][task] += 1
        if made.outcome.file is not None:
            self._files[made.outcome.file] = (stage, task)

    def ended(self, number: int) -> None:
        """Nothing more comes of a submission."""
        self._open.pop(number, None)

    def lost(self, files: Iterable[str]) -> tuple[str, ...]:
        """Files are gone.

        Returns:
            Those of them that no task has put out.
        """
        unknown = []
        for file in files:
            place = self._files.get(file)
            if place is None:
                unknown.append(file)
                continue
            made = self._made[place[0]][place[1]]
            if made is not None and made.outcome.file == file:  # else it was made again already
                self._made[place[0]][place[1]] = None
        return tuple(unknown)

    def lost_on(self, nodes: Collection[str]) -> int:
        """All that lies on these nodes only is gone; how many outputs that is.

        Jobs that may be reading it from there would wait for long: they begin anew.
        """
        count = 0
        for stage, outputs in self._made.items():
            for task, made in enumerate(outputs):
                if made is not None and made.locations and all(n in nodes for n in made.locations):
                    outputs[task] = None
                    self._despair(stage, task)
                    count += 1
        return count

    def _despair(self, stage: int, task: int) -> None:
        """Note the jobs that still have to read an output."""
        for reader, read in self._readers(stage):
            for number, each in self._open.items():
                waiting = (t for t in each.tasks if self._made[reader.index][t] is None)
                if each.stage == reader.index and any(not read.own or t == task for t in waiting):
                    self._hopeless[number] = None

    # --- what is to be done --------------------------------------------------------------------

    def step(self) -> Step:
        """What can start now, and what is of no use any more."""
        cancelled = [number for number in self._hopeless if self._open.pop(number, None)]
        self._hopeless.clear()
        missing = self._missing()
        while self._retract(missing, cancelled):
            missing = self._missing()
        for number in [n for n, each in self._open.items() if self._is_useless(each, missing)]:
            del self._open[number]
            cancelled.append(number)
        return Step(tuple(self._ready(missing)), tuple(cancelled))

    def _missing(self) -> dict[int, tuple[int, ...]]:
        """The tasks of each stage that are still to be completed, as somebody needs them."""
        wanted: dict[int, dict[int, None]] = {
            self._last.index: dict.fromkeys(range(self._last.tasks))
        }
        missing: dict[int, tuple[int, ...]] = {}
        for index, node in reversed(self._nodes.items()):
            if index not in wanted or self.has_enough(index):
                continue
            outputs = self._made[index]
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
        """Take back what has read outputs that will be others; whether there was any."""
        changed = False
        for index, tasks in missing.items():
            again = [task for task in tasks if self._exposed[index][task]]
            if again and self._nodes[index].varies:
                self._take_back(index, again, cancelled)
                changed = True
        return changed

    def _take_back(self, stage: int, tasks: Sequence[int], cancelled: list[int]) -> None:
        """Outputs of these tasks will be others: so will be what was made of them."""
        for task in tasks:
            self._made[stage][task] = None
            self._exposed[stage][task] = False
        for reader, read in self._readers(stage):
            affected = tasks if read.own else range(reader.tasks)
            for number, each in list(self._open.items()):
                if each.stage == reader.index and any(task in affected for task in each.tasks):
                    del self._open[number]
                    cancelled.append(number)
            exposed = [task for task in affected if self._exposed[reader.index][task]]
            if exposed:
                self._take_back(reader.index, exposed, cancelled)

    def _readers(self, stage: int) -> Iterator[tuple[StageNode, Read]]:
        for node in self._nodes.values():
            for read in node.reads:
                if read.stage == stage:
                    yield node, read

    def _is_useless(self, submission: Submission, missing: dict[int, tuple[int, ...]]) -> bool:
        """Whether some of its tasks still run, and nobody needs any of them."""
        outputs = self._made[submission.stage]
        running = [task for task in submission.tasks if outputs[task] is None]
        wanted = missing.get(submission.stage, ())
        return bool(running) and not any(task in wanted for task in running)

    def _ready(self, missing: dict[int, tuple[int, ...]]) -> Iterator[Submission]:
        for index, tasks in reversed(missing.items()):
            if self._is_open(index) or not self._can_run(self._nodes[index], tasks, missing):
                continue
            self._remade[index] += sum(self._times[index][task] > 0 for task in tasks)
            submission = Submission(next(self._numbers), index, tasks)
            self._open[submission.number] = submission
            yield submission

    def _can_run(
        self, node: StageNode, tasks: tuple[int, ...], missing: dict[int, tuple[int, ...]]
    ) -> bool:
        """Whether all that these tasks read is there."""
        for read in node.reads:
            absent = missing.get(read.stage, ())
            if self._is_open(read.stage) or any(t in absent for t in self._read(read, tasks)):
                return False
        return True
