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
from minishark.model.catalog import Constants, RowNumbers
from minishark.model.events.figures import TaskFigures
from minishark.sources.filesystems import FROM_ENVIRONMENT, StoreAccess


class _Batches(msgspec.Struct, frozen=True, array_like=True):
    """Record batches of a stored file, or of an output that travels in messages."""

    # A stored Arrow file, relative to the storage folder of each of the locations; empty for an
    # output that travels in messages.
    file: str
    locations: tuple[str, ...]  # the nodes that store it
    first: int = 0
    last: int | None = None
    inline: bytes = b""  # such an output, as an Arrow IPC stream


class FileSlice(_Batches, frozen=True, array_like=True, kw_only=True):
    """Record batches `first` to `last` (exclusive; None: the end) of a task's output or a table."""

    deleted: RowNumbers = b""  # rows that are left out, counted from the first of these batches
    constants: Constants = b""  # of further columns
    # The number of the first row, if rows have a further column with their numbers.
    numbered_from: int | None = None
    # Whether its query has just written it: what is in shared memory isn't compared before its
    # first row is read, as it lives for moments.
    is_new: bool = False


class StoreLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where a node, or a session, keeps its files."""

    name: str  # the node, or the session's name as a location of files
    host: str  # processes of one host read each other's files by path
    memory: str  # its folder in shared memory
    disk: str  # its folder on disk
    service: str  # where it serves its files to other hosts


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
    """A pickled value."""

    pickled: bytes  # the pickle; empty if it is in `stream`
    stream: FileSlice | None = None  # the file of a large pickle
    buffers: tuple[FileSlice, ...] = ()  # the files of its out-of-band buffers, in order
    others: tuple[FileSlice, ...] = ()  # files of values that are parts of it
    stream_bytes: int = 0  # the size of a large pickle that is kept
    is_fleeting: bool = False  # it holds what goes with the session: not to be kept

    @property
    def files(self) -> tuple[FileSlice, ...]:
        """All files of the value."""
        own = self.buffers if self.stream is None else (self.stream, *self.buffers)
        return (*own, *self.others) if self.others else own


class TaskFunction(msgspec.Struct, frozen=True, array_like=True):
    """A Python function that is applied to a task's output rows."""

    label: str  # what users call it, such as "map_partitions"
    pickled: bytes  # a `minishark.worker.functions.Function`, by cloudpickle
    returns: tuple[tuple[str, str], ...]  # names and DuckDB types of its output columns
    keys: tuple[int, ...] = ()  # positions of the grouping columns; empty for no groups
    # Whether it is called for what it returns alone, so that this may be kept.
    only_returns: bool = False


class ScalarFunction(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A Python function that SQL calls."""

    name: str  # in lower case
    pickled: bytes  # the function, by cloudpickle
    returns: str  # its DuckDB result type
    parameters: tuple[str, ...] | None = None  # its DuckDB parameter types; None for any
    vectorized: bool = False  # whether it takes Arrow arrays instead of values
    sees_nulls: bool = False  # whether it is called if an argument is NULL
    volatile: bool = False  # whether equal arguments may give different results
    takes_task: bool = False  # whether it takes the task's index, and nothing of SQL


class CopyTarget(msgspec.Struct, frozen=True, array_like=True):
    """The destination of FILES."""

    # An absolute path, or the URI of a folder in an object store; each task makes an entry of its
    # own in it.
    folder: str
    options: str  # the text between the parentheses of DuckDB's COPY
    suffix: str  # how the entries' names end
    access: StoreAccess = FROM_ENVIRONMENT  # if the folder is a URI


class StageTask(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="stage"):
    """The description that the tasks of a stage share."""

    # The fragment; empty to store the rows of the input `in0`: those of files unchanged, without a
    # copy if that is a whole file of the task's node, those of splits in the columns' types.
    sql: str
    # The DuckDB types of its output columns, without the bucket number; empty for the types that
    # DuckDB finds.
    types: tuple[str, ...]
    output: OutputKind
    # Where output files go, relative to a node's storage folder; the front end creates it, and
    # removes it after the query, so that late tasks can't write any more.
    folder: str
    # Where outputs with names go instead, which outlive the query.
    kept: str = ""
    # Inputs that are the same for every task, by the name in the fragment.
    shared_inputs: dict[str, tuple[FileSlice, ...]] = {}
    prefix: str = ""  # what the names of output files begin with
    buckets: int = 0  # the number of buckets, for BUCKETS
    # The output columns as users know them, name and DuckDB type; for PARTITION, FILES and
    # functions.
    columns: tuple[tuple[str, str], ...] = ()
    lossless: bool = False  # whether a RESULT keeps DuckDB's types instead of those that users get
    prelude: tuple[str, ...] = ()  # statements that must run first: settings and definitions
    rows: float = math.inf  # the estimated number of output rows per task
    # Where nodes keep their files, if not in the same folders as the executor.
    stores: tuple[StoreLocation, ...] = ()
    cuts: int = 0  # the least number of batches of a PIECE, if it has enough rows; 0 for any
    scalars: tuple[ScalarFunction, ...] = ()  # Python functions that the fragment calls
    function: TaskFunction | None = None  # what is applied to the output rows
    target: CopyTarget | None = None  # where the files go, for FILES
    # The front end's working directory, for relative paths; empty if it has none.
    working_folder: str = ""
    threads: int = 1  # how many cores a task may use
    hints: FragmentHints = NO_FRAGMENT_HINTS  # what optimizer rules attach to the fragment
    profiled: bool = False  # whether outcomes say what DuckDB's operators did
    access: StoreAccess = FROM_ENVIRONMENT  # to files of object stores that tasks read
    # For a PARTITION without SQL that is stored again, the positions of columns that are set in the
    # rows of `in0`: by the input `patch`, if these are numbered, or by the columns of `values` but
    # the first (`worker/patches.py`); None for other partitions.
    changed: tuple[int, ...] | None = None


class StoredPartition(msgspec.Struct, frozen=True, array_like=True):
    """A partition of a table, for programs."""

    slices: tuple[FileSlice, ...]
    rows: int


class ProgramJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="program"):
    """What the workers of a program share."""

    driver: bytes  # by cloudpickle
    controller: str  # the address of its controller
    folder: str  # of snapshots and results, relative to a node's storage folder
    # The session's tables when the program began, by name in lower case.
    tables: dict[str, tuple[StoredPartition, ...]]
    # Where nodes keep their files, if not in the same folders as the executor.
    stores: tuple[StoreLocation, ...] = ()
    working_folder: str = ""  # the front end's working directory; empty if it has none


class PythonJob(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="python"):
    """What calls of a Python function share."""

    function: Value  # what is called
    folder: str  # where large results go, relative to a node's storage folder
    # Where nodes keep their files, if not in the same folders as the executor.
    stores: tuple[StoreLocation, ...] = ()
    working_folder: str = ""  # the front end's working directory; empty if it has none
    timeout_s: float | None = None  # seconds after which a call is given up; None for no limit
    kept: str = ""  # where results go that later calls may take; empty if they may not


Job: TypeAlias = StageTask | ProgramJob | PythonJob
"""What a job of Sparrow runs: its shared part."""


class WorkerFigures(msgspec.Struct, frozen=True, array_like=True):
    """What a worker of a program has done."""

    tasks: int  # the number of tasks that it has run
    stages: int  # the number of stages that its driver has recorded
    iterations: int  # the number of signals that its driver has got
    busy_s: float  # the seconds that it spent in batches of them
    cpu_s: float  # the CPU time of its thread


class TaskPayload(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One task of a stage."""

    index: int  # its index in the stage, and of its partition
    inputs: dict[str, tuple[FileSlice, ...]]  # its own inputs, by the name in the fragment
    # Inputs that are read from sources, by the name in the fragment: pickled `SplitRead`s.
    reads: dict[str, tuple[bytes, ...]] = {}
    replicas: tuple[str, ...] = ()  # the nodes that get a copy of the output, for PARTITION
    name: str = ""  # that of the output for later queries (`query/names.py`); empty for none
    # What the logs of its calls are called that outlive the query; empty for none.
    calls: str = ""
    logged: tuple[FileSlice, ...] = ()  # records of such logs that are gone (`query/call_segments`)
    # The partition that another query has made by all of these calls; empty for none.
    made: tuple[FileSlice, ...] = ()
    # Two nodes: the first that is not the task's own gets a copy of the partition that it makes.
    spares: tuple[str, ...] = ()


class BucketSlice(msgspec.Struct, frozen=True, array_like=True):
    """The record batches of a bucket in an output file, and its rows."""

    first: int
    last: int
    rows: int


def _joined(slices: tuple[BucketSlice, ...]) -> BucketSlice:
    return BucketSlice(slices[0].first, slices[-1].last, sum(slice_.rows for slice_ in slices))


class Profiled(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What an operator of DuckDB's did for a task, and those that it read."""

    kind: str  # DuckDB's name for it, such as HASH_JOIN
    rows: int  # its output rows
    run_s: float  # its CPU time, without those that it read
    inputs: tuple[Profiled, ...] = ()
    join: str = ""  # the type of a join, such as RIGHT_SEMI
    columns: tuple[str, ...] = ()  # what a scan of Arrow data reads
    read_rows: int | None = None  # how many rows that data has; None for other operators


class TaskOutcome(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The outcome of a task."""

    figures: TaskFigures  # what is measured here; where and when it ran is added by others
    # The output file, relative to the node's storage folder; None for inline output. For FILES, the
    # task's entry in the target folder.
    file: str | None = None
    inline: bytes | None = None  # the output as an Arrow IPC stream, if it is small
    # One entry per bucket of each run, for BUCKETS; one per batch, for a PIECE that was cut.
    buckets: tuple[BucketSlice, ...] = ()
    # The partition's statistics as an Arrow IPC stream, for PARTITION.
    statistics: bytes | None = None
    locations: tuple[str, ...] = ()  # the nodes that have a copy; empty for the task's own only
    # How many times all buckets were written, for BUCKETS; several if the rows exceeded the buffer.
    runs: int = 1
    # What DuckDB's operators did, if the stage is profiled: the root of each early CTE by its name,
    # and that of the fragment by the empty one.
    profiles: dict[str, Profiled] = {}
    printed: str = ""  # what user code has printed
    # The log of its calls, if that stays, relative to the node's storage folder; empty for none.
    calls: str = ""
    kept: FileSlice | None = None  # a PARTITION of calls, as it stays for later queries
    is_taken: bool = False  # whether another query has left it

    def bucket_runs(self, numbers: range) -> tuple[BucketSlice, ...]:
        """Where the rows of buckets are that follow one another: one entry per run."""
        count = len(self.buckets) // self.runs
        starts = range(0, len(self.buckets), count)
        return tuple(
            _joined(self.buckets[start + numbers.start : start + numbers.stop]) for start in starts
        )


class KeptOutput(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """An output that has a name, for whoever asks for that."""

    outcome: TaskOutcome
    node: str  # that stores its file
    # What the names of outputs that are computed from it contain: its own name, or, if its stage
    # may put out other rows when it runs again, what no other run has.
    identity: str
    made_s: float  # when it was computed, in seconds since 1970
    run_s: float = 0.0  # how long that took
    made_by: str = ""  # which query of which session did

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that store its file; any of them will do."""
        return self.outcome.locations or (self.node,)


class TaskProblem(StrEnum):
    """Why a task failed."""

    BIND = "bind"
    """DuckDB rejected the fragment; the whole statement may still run."""
    INTERNAL = "internal"
    """DuckDB failed by a mistake of its own, which broke its database."""
    SQL = "sql"
    """DuckDB reported an error as it would to any user, which is none of the next two."""
    VALUE = "value"
    """A conversion, an overflow or another operation on a value failed."""
    CONSTRAINT = "constraint"
    """Rows violate a constraint of their table."""
    INPUT = "input"
    """Input data is missing or unreadable."""
    SOURCE = "source"
    """What a source has can't be read."""
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
    """Details of a failed task."""

    problem: TaskProblem
    message: str  # for the user
    partition: int = 0  # the task's index, for FUNCTION
    traceback: str = ""  # the traceback of a user's function, as text
    # The exception that it raised, by cloudpickle; empty if it can't be pickled.
    pickled: bytes = b""
    missing: tuple[FileSlice, ...] = ()  # the stored files that no location has, for INPUT
    printed: str = ""  # what user code has printed


class PythonOutcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of a call: a value, or a problem; `timed_out` if it took too long."""

    value: Value | None
    problem: ProblemDetail | None = None
    timed_out: bool = False
    printed: str = ""  # what it has printed


encode = msgspec.msgpack.Encoder().encode
decode_job: Callable[[bytes], Job] = msgspec.msgpack.Decoder(Job).decode
decode_payload = msgspec.msgpack.Decoder(TaskPayload).decode
decode_outcome = msgspec.msgpack.Decoder(TaskOutcome).decode
decode_figures = msgspec.msgpack.Decoder(WorkerFigures).decode
decode_value = msgspec.msgpack.Decoder(Value).decode
decode_python_outcome = msgspec.msgpack.Decoder(PythonOutcome).decode
decode_problem = msgspec.msgpack.Decoder(ProblemDetail).decode
