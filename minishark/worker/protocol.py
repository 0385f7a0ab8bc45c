"""The messages between the front end and executors: stages, tasks, outcomes.

A stage is sent once per node; a task is small: it names its partition and files.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias

import msgspec

from minishark.compiler.hints import NO_FRAGMENT_HINTS, FragmentHints


class FileSlice(msgspec.Struct, frozen=True, array_like=True):
    """Record batches `first` to `last` (exclusive; None: to the end) of a task's output or a table.

    Attributes:
        file: a stored Arrow file, relative to the storage folder of each of the locations; empty
            for an output that travels in messages.
        locations: the nodes that store it.
        inline: such an output, as an Arrow IPC stream.
    """

    file: str
    locations: tuple[str, ...]
    first: int = 0
    last: int | None = None
    inline: bytes = b""


class StoreLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a node, or a session, keeps its files.

    Attributes:
        name: the node, or the session's name as a location of files.
        host: processes of one host read each other's files by path.
        memory: its folder in shared memory.
        disk: its folder on disk.
        service: where it serves its files to other hosts.
    """

    name: str
    host: str
    memory: str
    disk: str
    service: str


class OutputKind(StrEnum):
    """The destination of a task's rows."""

    PIECE = "piece"
    """Store them as one file, for later stages."""
    BUCKETS = "buckets"
    """Store them as one file in which each bucket's batches stand together."""
    RESULT = "result"
    """As PIECE, in the types in which users get results; small ones travel in the outcome."""
    PARTITION = "partition"
    """Store them as a table's partition, with replicas and statistics."""
    FILES = "files"
    """Write them to files for users, as COPY does."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """A pickled value.

    Attributes:
        pickled: the pickle; empty if it is in `stream`.
        stream: the file of a large pickle.
        buffers: the files of its out-of-band buffers, in order.
        others: files of values that are parts of it.
    """

    pickled: bytes
    stream: FileSlice | None = None
    buffers: tuple[FileSlice, ...] = ()
    others: tuple[FileSlice, ...] = ()

    @property
    def files(self) -> tuple[FileSlice, ...]:
        """All files of the value."""
        own = self.buffers if self.stream is None else (self.stream, *self.buffers)
        return (*own, *self.others) if self.others else own


class TaskFunction(msgspec.Struct, frozen=True, array_like=True):
    """A Python function that is applied to a task's output rows.

    Attributes:
        label: what users call it, such as "map_partitions".
        pickled: a `minishark.worker.functions.Function`, by cloudpickle.
        returns: names and DuckDB types of its output columns.
        keys: positions of the grouping columns; empty for no groups.
    """

    label: str
    pickled: bytes
    returns: tuple[tuple[str, str], ...]
    keys: tuple[int, ...] = ()


class ScalarFunction(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A Python function that SQL calls.

    Attributes:
        name: in lower case.
        pickled: the function, by cloudpickle.
        returns: its DuckDB result type.
        parameters: its DuckDB parameter types; None for any.
        vectorized: whether it takes Arrow arrays instead of values.
        sees_nulls: whether it is called if an argument is NULL.
        volatile: whether equal arguments may give different results.
    """

    name: str
    pickled: bytes
    returns: str
    parameters: tuple[str, ...] | None = None
    vectorized: bool = False
    sees_nulls: bool = False
    volatile: bool = False


class CopyTarget(msgspec.Struct, frozen=True, array_like=True):
    """The destination of FILES.

    Attributes:
        folder: an absolute path; each task makes an entry of its own in it.
        options: the text between the parentheses of DuckDB's COPY.
        suffix: how the entries' names end.
    """

    folder: str
    options: str
    suffix: str


class StageTask(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="stage"):
    """The description that the tasks of a stage share.

    Attributes:
        sql: the fragment; empty to store the rows of the input `in0` unchanged.
        types: the DuckDB types of its output columns, without the bucket number; empty for the
            types that DuckDB finds.
        folder: where output files go, relative to a node's storage folder; the front end creates
            it, and removes it after the query, so that late tasks can't write any more.
        shared_inputs: inputs that are the same for every task, by the name in the fragment.
        prefix: what the names of output files begin with.
        buckets: the number of buckets, for BUCKETS.
        columns: the output columns as users know them, name and DuckDB type; for PARTITION, FILES
            and functions.
        lossless: whether a RESULT keeps DuckDB's types instead of those that users get.
        prelude: statements that must run first: settings and definitions.
        rows: the estimated number of output rows per task.
        stores: where nodes keep their files, if not in the same folders as the executor.
        cuts: the least number of batches of a PIECE, if it has enough rows; 0 for any.
        scalars: Python functions that the fragment calls.
        function: what is applied to the output rows.
        target: where the files go, for FILES.
        working_folder: the front end's working directory, for relative paths; empty if it has none.
        threads: how many cores a task may use.
        hints: what optimizer rules attach to the fragment.
    """

    sql: str
    types: tuple[str, ...]
    output: OutputKind
    folder: str
    shared_inputs: dict[str, tuple[FileSlice, ...]] = {}
    prefix: str = ""
    buckets: int = 0
    columns: tuple[tuple[str, str], ...] = ()
    lossless: bool = False
    prelude: tuple[str, ...] = ()
    rows: float = math.inf
    stores: tuple[StoreLocation, ...] = ()
    cuts: int = 0
    scalars: tuple[ScalarFunction, ...] = ()
    function: TaskFunction | None = None
    target: CopyTarget | None = None
    working_folder: str = ""
    threads: int = 1
    hints: FragmentHints = NO_FRAGMENT_HINTS


class StoredPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition of a table, for programs."""

    file: str
    locations: tuple[str, ...]
    rows: int


class ProgramJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="program"):
    """What the workers of a program share.

    Attributes:
        driver: by cloudpickle.
        controller: the address of its controller.
        folder: of snapshots and results, relative to a node's storage folder.
        tables: the session's tables when the program began, by name in lower case.
        stores: where nodes keep their files, if not in the same folders as the executor.
        working_folder: the front end's working directory; empty if it has none.
    """

    driver: bytes
    controller: str
    folder: str
    tables: dict[str, tuple[StoredPartition, ...]]
    stores: tuple[StoreLocation, ...] = ()
    working_folder: str = ""


class PythonJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="python"):
    """What calls of a Python function share.

    Attributes:
        function: what is called.
        folder: where large results go, relative to a node's storage folder.
        stores: where nodes keep their files, if not in the same folders as the executor.
        working_folder: the front end's working directory; empty if it has none.
        timeout_s: seconds after which a call is given up; None for no limit.
    """

    function: Value
    folder: str
    stores: tuple[StoreLocation, ...] = ()
    working_folder: str = ""
    timeout_s: float | None = None


Job: TypeAlias = StageTask | ProgramJob | PythonJob
"""What a job of Sparrow runs: its shared part."""


class WorkerFigures(msgspec.Struct, frozen=True, array_like=True):
    """What a worker of a program has done.

    Attributes:
        tasks: the number of tasks that it has run.
        stages: the number of stages that its driver has recorded.
        iterations: the number of signals that its driver has got.
        busy_s: the seconds that it spent in batches of them.
        cpu_s: the CPU time of its thread.
    """

    tasks: int
    stages: int
    iterations: int
    busy_s: float
    cpu_s: float


class TaskPayload(msgspec.Struct, frozen=True, array_like=True):
    """One task of a stage.

    Attributes:
        index: its index in the stage, and of its partition.
        inputs: its own inputs, by the name in the fragment.
        relations: inputs that are SQL relations, such as `read_parquet([...])`.
        replicas: the nodes that get a copy of the output, for PARTITION.
    """

    index: int
    inputs: dict[str, tuple[FileSlice, ...]]
    relations: dict[str, str] = {}
    replicas: tuple[str, ...] = ()


class BucketSlice(msgspec.Struct, frozen=True, array_like=True):
    """The record batches of a bucket in an output file, and its rows."""

    first: int
    last: int
    rows: int


def _joined(slices: tuple[BucketSlice, ...]) -> BucketSlice:
    return BucketSlice(slices[0].first, slices[-1].last, sum(each.rows for each in slices))


class TaskOutcome(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The outcome of a task.

    Attributes:
        rows: rows put out.
        nbytes: their size as Arrow data, in bytes.
        file: the output file, relative to the node's storage folder; None for inline output. For
            FILES, the task's entry in the target folder.
        inline: the output as an Arrow IPC stream, if it is small.
        buckets: one entry per bucket of each run, for BUCKETS; one per batch, for a PIECE that was
            cut.
        statistics: the partition's statistics as an Arrow IPC stream, for PARTITION.
        on_disk: whether the output went to disk, as shared memory was full.
        locations: for PARTITION, the nodes that have a copy.
        runs: how many times all buckets were written, for BUCKETS; several if the rows exceeded
            the buffer.
        received: the bytes that came over the network for it, by the store that sent them.
    """

    rows: int
    nbytes: int
    file: str | None = None
    inline: bytes | None = None
    buckets: tuple[BucketSlice, ...] = ()
    statistics: bytes | None = None
    on_disk: bool = False
    locations: tuple[str, ...] = ()
    runs: int = 1
    received: dict[str, int] = {}

    def bucket_runs(self, numbers: range) -> tuple[BucketSlice, ...]:
        """Where the rows of buckets are that follow one another: one entry per run."""
        count = len(self.buckets) // self.runs
        starts = range(0, len(self.buckets), count)
        return tuple(
            _joined(self.buckets[start + numbers.start : start + numbers.stop]) for start in starts
        )


class TaskProblem(StrEnum):
    """Why a task failed."""

    BIND = "bind"
    """DuckDB rejected the fragment; the whole statement may still run."""
    SQL = "sql"
    """DuckDB reported an error in the data or a conversion, as it would to any user."""
    INPUT = "input"
    """Input data is missing or unreadable."""
    RESOURCE = "resource"
    """Memory or disk ran out."""
    OUTPUT = "output"
    """Files for users can't be written."""
    FUNCTION = "function"
    """A user's function raised, or returned something invalid."""
    FOLDER = "folder"
    """The node has no folder for the output, as it was restarted."""
    INTERRUPTED = "interrupted"
    """The job was cancelled."""


class ProblemDetail(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Details of a failed task.

    Attributes:
        message: for the user.
        partition: the task's index, for FUNCTION.
        traceback: the traceback of a user's function, as text.
        pickled: the exception that it raised, by cloudpickle; empty if it can't be pickled.
        missing: the stored files that no location has, for INPUT.
    """

    problem: TaskProblem
    message: str
    partition: int = 0
    traceback: str = ""
    pickled: bytes = b""
    missing: tuple[FileSlice, ...] = ()


class PythonOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of a call: a value, or a problem; `timed_out` if it took too long."""

    value: Value | None
    problem: ProblemDetail | None = None
    timed_out: bool = False


encode = msgspec.msgpack.Encoder().encode
decode_job: Callable[[bytes], Job] = msgspec.msgpack.Decoder(Job).decode
decode_payload = msgspec.msgpack.Decoder(TaskPayload).decode
decode_outcome = msgspec.msgpack.Decoder(TaskOutcome).decode
decode_figures = msgspec.msgpack.Decoder(WorkerFigures).decode
decode_value = msgspec.msgpack.Decoder(Value).decode
decode_python_outcome = msgspec.msgpack.Decoder(PythonOutcome).decode
decode_problem = msgspec.msgpack.Decoder(ProblemDetail).decode
