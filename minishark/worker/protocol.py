"""What travels between the front end and executors: descriptions of stages and tasks, and outcomes.

A stage's description is sent once per node, a task's is small: it names its partition and files.
"""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from minishark.compiler.hints import NO_FRAGMENT_HINTS, FragmentHints


class FileSlice(msgspec.Struct, frozen=True, array_like=True):
    """Record batches `first` to `last` (exclusive; None: to the end) of a stored Arrow file.

    `file` is relative to the storage folder of each of the `locations`, which are nodes.
    """

    file: str
    locations: tuple[str, ...]
    first: int = 0
    last: int | None = None


class StoreLocation(msgspec.Struct, frozen=True, array_like=True):
    """Where the files of a node, or of a session, lie.

    Attributes:
        name: the node, or the session's name as a holder of files.
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
    """What a task does with its rows."""

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


class TaskFunction(msgspec.Struct, frozen=True, array_like=True):
    """A Python function that a task's rows go through before they are put out.

    Attributes:
        label: what users call it, such as "map_partitions".
        pickled: a `minishark.worker.functions.Function`, by cloudpickle.
        returns: names and DuckDB types of the columns that it gives.
        keys: positions of the columns whose equal values make a group; empty for no groups.
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
        returns: the DuckDB type that it gives.
        parameters: the DuckDB types that it takes; None for any.
        vectorized: whether it takes Arrow arrays instead of values.
        sees_nulls: whether it is called where an argument is NULL.
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
    """Where FILES go.

    Attributes:
        folder: an absolute path; each task makes an entry of its own in it.
        options: the text between the parentheses of DuckDB's COPY.
        suffix: how the entries' names end.
    """

    folder: str
    options: str
    suffix: str


class StageTask(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the tasks of a stage share.

    Attributes:
        sql: the fragment; empty for the rows of the input `in0` as they are.
        types: the DuckDB types of its output columns, without the bucket number; an empty tuple
            takes them as they come.
        output: what to do with the rows.
        folder: where output files go, relative to a node's storage folder; the front end makes it,
            and removes it when the query is over, after which nothing can be written any more.
        shared_inputs: inputs that are the same for every task, by the name in the fragment.
        prefix: what the names of output files begin with.
        buckets: the number of buckets, for BUCKETS.
        columns: the output columns as users know them, name and DuckDB type; for PARTITION, FILES
            and functions.
        lossless: whether a RESULT keeps DuckDB's types instead of those that users get.
        prelude: statements that must have run before: settings, and what the fragment names.
        rows: about how many rows a task puts out.
        stores: where the holders of files keep them; those that are not named use the same folders
            as the executor.
        cuts: into how many batches at least a PIECE is cut, if it has the rows; 0 for as they come.
        scalars: Python functions that the fragment calls.
        function: what the rows go through before they are put out.
        target: where the files go, for FILES.
        working_folder: the front end's, to which relative paths refer; empty if it has none.
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


class TaskPayload(msgspec.Struct, frozen=True, array_like=True):
    """What one task adds to its stage.

    Attributes:
        index: its number in the stage, which is the number of its partition.
        inputs: its own inputs, by the name in the fragment.
        relations: inputs that are a SQL relation, such as `read_parquet([...])`.
        replicas: the nodes that get a copy of the output, for PARTITION.
    """

    index: int
    inputs: dict[str, tuple[FileSlice, ...]]
    relations: dict[str, str] = {}
    replicas: tuple[str, ...] = ()


class BucketSlice(msgspec.Struct, frozen=True, array_like=True):
    """Where a bucket lies in an output file, and how large it is."""

    first: int
    last: int
    rows: int


class TaskOutcome(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a task has done.

    Attributes:
        rows: rows put out.
        nbytes: their size as Arrow data.
        file: the output file, relative to the node's storage folder; None for inline results. For
            FILES, the task's entry in the target folder.
        inline: the result as an Arrow IPC stream, if it is small.
        buckets: one entry per bucket of each run, for BUCKETS; one per batch, for a PIECE that was
            cut.
        statistics: the partition's statistics as an Arrow IPC stream, for PARTITION.
        on_disk: whether the output had to go to disk because shared memory was short.
        locations: for PARTITION, the nodes that have a copy.
        runs: in how many runs the rows of BUCKETS were written, each with all buckets; several if
            they were too many to be held.
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

    def bucket(self, index: int) -> tuple[BucketSlice, ...]:
        """Where the rows of a bucket are, one entry per run."""
        return self.buckets[index :: len(self.buckets) // self.runs]


class TaskProblem(StrEnum):
    """Why a task failed, in a form that crosses the wire."""

    BIND = "bind"
    """DuckDB does not accept the fragment; the whole statement may still run."""
    SQL = "sql"
    """DuckDB reported an error in the data or a conversion, as it would to any user."""
    INPUT = "input"
    """Input data is missing or unreadable."""
    RESOURCE = "resource"
    """Memory or disk ran out."""
    OUTPUT = "output"
    """Files for users can't be written."""
    FUNCTION = "function"
    """A user's function raised, or gave what it should not."""
    FOLDER = "folder"
    """The node has no folder for the output, as one has that was just started anew."""
    INTERRUPTED = "interrupted"
    """The job was cancelled."""


class ProblemDetail(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The detail that goes with a failed task.

    Attributes:
        problem: why it failed.
        message: for the user.
        partition: the task's number, for FUNCTION.
        traceback: where a user's function raised, as text.
        pickled: the exception that it raised, by cloudpickle; empty if it can't travel.
        missing: the stored files that are on none of their holders, for INPUT.
    """

    problem: TaskProblem
    message: str
    partition: int = 0
    traceback: str = ""
    pickled: bytes = b""
    missing: tuple[FileSlice, ...] = ()


encode = msgspec.msgpack.Encoder().encode
decode_stage = msgspec.msgpack.Decoder(StageTask).decode
decode_payload = msgspec.msgpack.Decoder(TaskPayload).decode
decode_outcome = msgspec.msgpack.Decoder(TaskOutcome).decode
decode_problem = msgspec.msgpack.Decoder(ProblemDetail).decode
