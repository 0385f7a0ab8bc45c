"""Builds the Sparrow jobs of a query's stages: payloads, preferred nodes, memory needs.

Nothing here does input or output. What each task reads follows from the stage's inputs, the stored
tables, and the outputs that the stage graph has of earlier stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from msgspec import structs

from minishark.cluster.backend import Placement
from minishark.cluster.job_events import Job
from minishark.cluster.replicas import CALLS_REPLICAS, replica_locations
from minishark.compiler.physical.work import row_bytes
from minishark.compiler.stages.stage import ReadMode, Stage, StageInput, TableInput
from minishark.model.catalog import Table
from minishark.model.expressions import Schema
from minishark.query.inputs import (
    partition_slices,
    preferred_nodes,
    read_partitions,
    source_reads,
    stage_slices,
)
from minishark.query.locality import Holding, hosts_of, near, stage_holdings
from minishark.query.sinks import Output
from minishark.query.stage_graph import StageGraph, Submission
from minishark.sources.filesystems import FROM_ENVIRONMENT
from minishark.sources.storage_options import Storage
from minishark.worker.protocol import (
    FileSlice,
    OutputKind,
    ScalarFunction,
    StageTask,
    TaskOutcome,
    TaskPayload,
    encode,
)

# A Python function's task holds the rows that it gets, those that it returns, and these again
# while they are checked and stored. Everything else streams or is memory-mapped.
_FUNCTION_COPIES = 3


@dataclass(frozen=True, slots=True)
class TaskNames:
    """What is called by a name that outlives the query; empty for none."""

    output: str  # a task's output
    calls: str  # the logs of its calls
    logged: tuple[FileSlice, ...] = ()  # records of such logs, in files
    made: tuple[FileSlice, ...] = ()  # the partition of all of its calls, if there is one


NO_NAMES: Mapping[int, TaskNames] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Environment:
    """What holds for all queries of a session, and travels to executors with each stage."""

    settings: tuple[str, ...] = ()  # SET statements
    # Statements that create what a whole statement may name: views, macros, types.
    definitions: tuple[str, ...] = ()
    functions: tuple[ScalarFunction, ...] = ()  # Python functions that SQL may call
    storage: Storage = field(default_factory=Storage)  # how object stores are reached

    def called_by(self, stage: Stage) -> tuple[ScalarFunction, ...]:
        return functions_called(stage, self.functions)


def functions_called(
    stage: Stage, functions: tuple[ScalarFunction, ...]
) -> tuple[ScalarFunction, ...]:
    """The Python functions that a stage may call; a whole statement may do so by a macro."""
    if not functions or stage.is_statement:
        return functions
    text = " ".join((stage.sql, *(cte.sql for cte in stage.hints.ctes))).lower()
    return tuple(function for function in functions if function.name in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBuilder:
    """Builds the jobs of one run of a query."""

    graph: StageGraph  # the outputs of earlier stages
    last: int  # the number of the last stage
    output: Output  # what the last stage's tasks do with their rows
    folder: str  # the query's folder, relative to a node's storage folder
    working_folder: str  # the front end's, to which relative paths in SQL refer; empty for none
    environment: Environment  # settings, definitions and functions
    threads: int  # the number of threads for a large task that is alone in its stage
    traced: bool  # whether tasks report why they ran where they did
    profiled: bool  # whether they report what DuckDB's operators did
    kept: str = ""  # the folder of outputs that later queries may take; empty for none
    # Whether it is the only query of its session, so that slots are free for each of its tasks.
    is_alone: bool = False

    def job(
        self,
        stage: Stage,
        submission: Submission,
        stored: Mapping[str, Table],
        placement: Placement,
        names: Mapping[int, TaskNames] = NO_NAMES,
    ) -> tuple[Job, dict[int, frozenset[str]]]:
        """Tasks of a stage as a job, and the nodes that each of them prefers.

        Args:
            stage: the stage.
            submission: which of its tasks.
            stored: the tables with their current locations, by name in lower case.
            placement: how tasks are placed, and the live nodes.
            names: of what later queries may take, by task.
        """
        tables = {
            item.name: stored[item.table.lower()]
            for item in stage.inputs
            if isinstance(item, TableInput)
        }
        preferred = {i: self._preferred(stage, tables, i, placement) for i in submission.tasks}
        every = frozenset(placement.nodes)
        usual = _usual_node(stage, placement) if self.is_alone else ()
        tasks = []
        for index, nodes in preferred.items():
            wanted, wait_s = _constraint(nodes, every), None
            if usual and not wanted:
                wanted, wait_s = usual, _USUAL_WAIT_S
            tasks.append(
                placement.task(
                    index,
                    encode(self._payload(stage, tables, index, placement.nodes, names.get(index))),
                    wanted,
                    self._memory_bytes(stage, tables, index),
                    wait_s=wait_s,
                )
            )
        shared = encode(self._stage_task(stage, tables, placement))
        job = placement.job(tuple(tasks), shared, group=self.folder, explain=self.traced)
        return job, preferred

    def _preferred(
        self, stage: Stage, tables: Mapping[str, Table], index: int, placement: Placement
    ) -> frozenset[str]:
        nodes = preferred_nodes(stage, tables, index)
        if hosts := hosts_of(placement.nodes, placement.stores):
            # Between hosts, bytes travel: the host that has most of the input comes first.
            close = near(self._holdings(stage, tables, index), hosts)
            nodes = (nodes & close) or close or nodes
        if stage.index != self.last:
            return nodes
        return self.output.nodes(nodes, index, placement.nodes)

    def _memory_bytes(self, stage: Stage, tables: Mapping[str, Table], index: int) -> int:
        """What a task needs beside DuckDB's memory, as far as it can be foreseen.

        A node starts no task that would raise the sum of such needs above what it has for queries,
        unless no other task there has any.
        """
        if self.output.function is None or stage.index != self.last:
            return 0
        read_bytes = sum(size for _, size in self._holdings(stage, tables, index))
        return function_bytes(stage.schema, stage.plan.rows / stage.tasks, read_bytes)

    def _holdings(self, stage: Stage, tables: Mapping[str, Table], index: int) -> Iterator[Holding]:
        """The parts of a task's input: where each is stored, and its bytes."""
        for item in stage.inputs:
            if isinstance(item, TableInput):
                for partition in read_partitions(item, tables, stage.partitions_of(index)):
                    yield partition.locations, partition.bytes
            else:
                yield from stage_holdings(*self._outputs(stage, item, index))

    @staticmethod
    def prefix(stage: Stage) -> str:
        """What the names of a stage's files begin with."""
        return f"{stage.index}-"

    def _stage_task(
        self, stage: Stage, tables: Mapping[str, Table], placement: Placement
    ) -> StageTask:
        shared = {
            item.name: self._slices(stage, item, tables, 0)
            for item in stage.inputs
            if item.mode is ReadMode.ALL and not source_reads(item, tables, range(0))
        }
        access = FROM_ENVIRONMENT
        if any(table.is_source for table in tables.values()):
            access = self.environment.storage.access()
        return structs.replace(
            self.described(stage), shared_inputs=shared, stores=placement.stores, access=access
        )

    def described(self, stage: Stage) -> StageTask:
        """What the tasks of a stage have in common, but for what they read, and where."""
        environment, is_whole = self.environment, stage.is_statement
        task = StageTask(
            sql=stage.sql,
            types=() if is_whole else tuple(column.type for column in stage.schema),
            output=OutputKind.BUCKETS if stage.buckets else OutputKind.PIECE,
            folder=self.folder,
            kept=self.kept,
            prefix=self.prefix(stage),
            buckets=stage.buckets,
            prelude=environment.settings + (environment.definitions if is_whole else ()),
            rows=stage.plan.rows / stage.tasks,
            scalars=environment.called_by(stage),
            working_folder=self.working_folder,
            hints=stage.hints,
            profiled=self.profiled and not is_whole,
        )
        if stage.index == self.last:
            # What it puts out is a result, or is stored.
            hints = structs.replace(stage.hints, inline_bytes=0)
            task = self.output.stage_task(structs.replace(task, hints=hints), stage.schema)
        # Python holds the GIL, and files are written by one thread each.
        single = task.function is not None or task.scalars or task.output is OutputKind.FILES
        is_plain = not (stage.index == self.last and self.output.in_order)
        if stage.is_large_task and is_plain and not single:
            task = structs.replace(task, threads=self.threads)
        return task

    def _payload(
        self,
        stage: Stage,
        tables: Mapping[str, Table],
        index: int,
        nodes: Sequence[str],
        names: TaskNames | None,
    ) -> TaskPayload:
        numbers = stage.partitions_of(index)
        own = {
            item.name: self._slices(stage, item, tables, index)
            for item in stage.inputs
            if item.mode is not ReadMode.ALL and not source_reads(item, tables, numbers)
        }
        reads = {
            item.name: read
            for item in stage.inputs
            if (read := source_reads(item, tables, numbers))
        }
        payload = TaskPayload(index=index, inputs=own, reads=reads)
        if names is not None:
            payload = structs.replace(
                payload,
                name=names.output,
                calls=names.calls,
                logged=names.logged,
                made=names.made,
                spares=replica_locations(nodes, index, CALLS_REPLICAS) if names.calls else (),
            )
        return payload if stage.index != self.last else self.output.payload(payload, nodes)

    def _slices(
        self, stage: Stage, item: TableInput | StageInput, tables: Mapping[str, Table], index: int
    ) -> tuple[FileSlice, ...]:
        if isinstance(item, TableInput):
            read = read_partitions(item, tables, stage.partitions_of(index))
            return tuple(item for p in read for item in partition_slices(p))
        return stage_slices(*self._outputs(stage, item, index))

    def _outputs(
        self, stage: Stage, item: StageInput, index: int
    ) -> tuple[list[TaskOutcome], list[str], range | None]:
        """What a task reads of an earlier stage: outputs, their nodes, and which buckets of each.

        None for all rows.
        """
        if item.mode is ReadMode.OWN:
            output = self.graph.at(item.stage, index)
            assert output is not None, "a stage runs when those that it reads are complete"
            return [output.outcome], [output.node], None
        outputs, buckets = self.graph.outputs(item.stage), None
        if item.mode is ReadMode.BUCKET:
            share = stage.share(item, index)
            outputs = outputs[slice(*share.tasks)] if share.tasks else outputs
            buckets = range(share.first, share.last)
        return [output.outcome for output in outputs], [output.node for output in outputs], buckets


def function_bytes(schema: Schema, rows: float, read_bytes: float) -> int:
    """About how much memory a Python function takes for the rows of a task.

    Args:
        schema: the columns that it gets.
        rows: the estimated number of rows.
        read_bytes: the size of the task's input, an upper bound for what the function gets, since
            only joins add bytes.
    """
    size = rows * row_bytes(schema)
    return int(_FUNCTION_COPIES * (min(size, read_bytes) if read_bytes else size))


_DEAR_SQL_CHARS = 1_000
"""A shorter fragment is planned in less time than a choice of one node instead of two costs."""

_USUAL_WAIT_S = 0.005
"""A free node has taken a task by then."""


def _usual_node(stage: Stage, placement: Placement) -> tuple[str, ...]:
    """The node that always runs a stage of one task if it is free; empty if any is as good.

    The executors there have prepared its fragment since it came the second time. On random ones of
    n nodes it would be planned some 2n times.
    """
    if stage.tasks > 1 or stage.is_statement or not stage.hints.prepares:
        return ()
    return placement.usual_node(stage.sql) if len(stage.sql) >= _DEAR_SQL_CHARS else ()


def _constraint(nodes: frozenset[str], every: frozenset[str]) -> tuple[str, ...]:
    """Preferred nodes as a constraint; none if all nodes are as good, or no preferred one lives."""
    nodes &= every
    return () if nodes >= every else tuple(sorted(nodes))
