"""What a job is, and what is known of it.

A job is held by a few nodes, one of which owns it, and runs its program. What changes is one
`JobState`, of which there may be several versions at a time; the greatest one counts, whoever has
seen which in what order (`merged`). Only its owner makes a next version, except that another holder
takes it over under the next incarnation, and that anyone may ask for its end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
from msgspec import structs

CLUSTER_VARIABLE, NAME_VARIABLE = "MINISHARK_JOB_CLUSTER", "MINISHARK_JOB"
RESULT_VARIABLE, PROGRESS_VARIABLE = "MINISHARK_JOB_RESULT", "MINISHARK_JOB_PROGRESS"
"""What a program finds in its environment: the address of its cluster, the name of its job, and the
paths of the files for its result (Arrow IPC) and its progress."""
RESULT = "result.arrow"
RESULT_BYTES_MAX = 1 << 30
RESULTS_BYTES_MAX = 8 << 30
"""Of all results that a node holds; of more, the jobs are forgotten that ended first."""
SHARED_TABLES = "_shared_tables"
"""The name of the job without a program, whose holders have the catalog of shared tables."""
HOLDERS = 3
"""The nodes that hold a job, if there are as many: the death of all but one loses nothing."""
JOBS_MAX = 1000
"""Jobs that a node holds; of more, those are forgotten that ended first."""
FILES_BYTES_MAX = 16 << 20
FILES_MAX = 2000
ARGUMENTS_BYTES_MAX = 128 << 10
TAIL_BYTES = 16 << 10
"""The end of a job's log that all its holders have."""
NAME_MAX = 100
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{NAME_MAX - 1}}}")
_HISTORY_MAX = 20
_WHY_CHARS = 500
_WAITS = "It waits for a place on its node."


class Status(StrEnum):
    """How far a job is."""

    WAITING = "waiting"  # for a free place on its node, or for its next start
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Restart(StrEnum):
    """After which ends of its process a program is started again."""

    NEVER = "never"
    CRASH = "crash"  # by a signal
    ERROR = "error"  # the same, and an exit status other than 0


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A node that may hold jobs. Its home, a folder, is new whenever the node is started."""

    name: str
    home: str
    service: str


class JobTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What was agreed on when a job was submitted.

    Attributes:
        uid: tells it from others that had its name before.
        user: who submitted it, as their program says.
        what: what it runs, for people.
        priority: of the jobs that wait for a place on a node, the highest goes first.
        time_limit_s: seconds from its first start after which it is ended; None for no limit.
        keep_s: for how long its result and log are kept when it has ended.
        attempts: how often it is started at most.
    """

    name: str
    uid: str
    user: str
    what: str
    submitted_s: float
    priority: int = 0
    time_limit_s: float | None = None
    keep_s: float = 86_400.0
    attempts: int = 5
    restart: Restart = Restart.CRASH

    @property
    def has_program(self) -> bool:
        """Whether there is something to run: what is held without that only needs an owner."""
        return self.name != SHARED_TABLES


class JobFile(msgspec.Struct, frozen=True, array_like=True):
    """A file that travels with a job; `path` is relative, with slashes."""

    path: str
    data: bytes
    executable: bool = False


class JobProgram(msgspec.Struct, frozen=True, kw_only=True):
    """What a job runs: one of its files, or a module that nodes have, with arguments."""

    script: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    files: tuple[JobFile, ...] = ()


class JobProgress(msgspec.Struct, frozen=True):
    """How far the statement is that a job's session runs now.

    Attributes:
        query: its number in the session.
        done: its tasks that have ended.
        tasks: all its tasks.
    """

    query: int
    done: int
    tasks: int


class JobEvent(msgspec.Struct, frozen=True, array_like=True):
    """What has happened to a job, in a sentence, and when, in seconds since 1970."""

    at_s: float
    sentence: str


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """A version of what is known of a job.

    Attributes:
        incarnation: one more whenever another node takes it over.
        owner: the home of the node that runs it, or has run it last; "" after it has let it go.
        version: counts what the owner has told of this incarnation.
        node: the name of the owner's node.
        starts: how often its program was started.
        exit_status: of its last process; negative for a signal.
        result_bytes: the size of its result; None if there is none.
        is_unwanted: somebody has asked for its end.
        began_s: when its program was started first, in seconds since 1970; 0 before.
        ended_s: when the job ended; 0 before.
        history: what has happened to it, the last events of it.
    """

    terms: JobTerms
    holders: tuple[Holder, ...]
    owner: str
    node: str
    incarnation: int = 1
    version: int = 0
    status: Status = Status.WAITING
    starts: int = 0
    exit_status: int | None = None
    result_bytes: int | None = None
    is_unwanted: bool = False
    began_s: float = 0.0
    ended_s: float = 0.0
    history: tuple[JobEvent, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.status not in (Status.WAITING, Status.RUNNING)

    @property
    def why(self) -> str:
        """What has happened to it, in sentences."""
        return "\n".join(event.sentence for event in self.history) or _WAITS

    @property
    def ending(self) -> str:
        """What has happened to it last, in a sentence."""
        return self.history[-1].sentence if self.history else _WAITS

    @property
    def order(self) -> tuple[int, str, int]:
        """Of two versions of a job, the one of the higher order counts."""
        return (self.incarnation, self.owner, self.version)

    def noted(self, sentence: str, at_s: float) -> tuple[JobEvent, ...]:
        """Its history with one event more."""
        return (*self.history, JobEvent(at_s, sentence[:_WHY_CHARS]))[-_HISTORY_MAX:]


def merged(one: JobState, other: JobState) -> JobState:
    """What is known after two versions of a job have met; the order does not matter."""
    assert one.terms.uid == other.terms.uid
    latest = max(one, other, key=lambda state: state.order)
    is_unwanted = one.is_unwanted or other.is_unwanted
    return (
        latest
        if latest.is_unwanted == is_unwanted
        else structs.replace(latest, is_unwanted=is_unwanted)
    )


def latest_by_name(states: Iterable[JobState]) -> dict[str, JobState]:
    """Of versions from several nodes, what is known of each name: of the job submitted last."""
    by_uid: dict[str, JobState] = {}
    for state in states:
        newest = by_uid.get(state.terms.uid)
        by_uid[state.terms.uid] = state if newest is None else merged(newest, state)
    by_name: dict[str, JobState] = {}
    for state in sorted(by_uid.values(), key=lambda job: (job.terms.submitted_s, job.terms.uid)):
        by_name[state.terms.name] = state
    return by_name


def result_file(uid: str) -> str:
    """A job's result, as a file of its holders' stores."""
    return f"jobs/{uid}/{RESULT}"


def homes_of(name: str, nodes: Sequence[Holder]) -> list[Holder]:
    """Nodes in the order in which they are to hold a job of that name (rendezvous hashing)."""

    def score(node: Holder) -> bytes:
        return hashlib.blake2b(f"{name}\0{node.name}".encode(), digest_size=16).digest()

    return sorted(nodes, key=score)


def problem_with(terms: JobTerms, program: JobProgram) -> str | None:
    """A sentence that says why nodes do not take a job, None if they do."""
    if not _NAME.fullmatch(terms.name):
        return (
            f"Invalid name of a job: {terms.name[:NAME_MAX]!r}; use at most {NAME_MAX} letters, "
            "digits, dots, dashes and underscores."
        )
    if terms.has_program == (program.module == SHARED_TABLES):
        return f"The name {SHARED_TABLES!r} is reserved."
    if bool(program.script) == bool(program.module):
        return "A job runs a script or a module."
    if terms.attempts < 1 or terms.keep_s < 0 or (terms.time_limit_s or 1.0) <= 0:
        return "Attempts and the time limit of a job must be above 0; results are kept 0 s or more."
    if len(program.files) > FILES_MAX:
        return f"A job takes at most {FILES_MAX} files along, not {len(program.files)}."
    size = sum(len(file.data) for file in program.files)
    if size > FILES_BYTES_MAX:
        return (
            f"The files of a job may have {FILES_BYTES_MAX >> 20} MiB together, not "
            f"{size / (1 << 20):.1f} MiB: put data where the nodes can read it."
        )
    paths = [file.path for file in program.files]
    if any(not path or path.startswith("/") or ".." in path.split("/") for path in paths):
        return "Files of a job have relative paths, without `..`."
    if program.script and program.script not in paths:
        return f"The job has no file {program.script!r}."
    given = [*program.arguments, *program.environment, *program.environment.values()]
    if any("\0" in text for text in given) or sum(map(len, given)) > ARGUMENTS_BYTES_MAX:
        return f"Arguments and environment: at most {ARGUMENTS_BYTES_MAX >> 10} KiB, without NULs."
    return None
