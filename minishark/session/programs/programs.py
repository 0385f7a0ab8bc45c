"""Starts programs: what workers get, where they should run, what becomes of the result."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, TypeAlias

import cloudpickle

from canary_core.driver import Driver, Run, Value
from canary_core.machines.controller import Settings
from canary_core.policy.balance import BALANCERS
from canary_core.protocol.messages import Outcome
from canary_core.results import result_of
from canary_core.runtime.control import ControlThread
from minishark.cluster.backend import Placement
from minishark.cluster.contract import Cluster
from minishark.errors import OptionError, ProgramError
from minishark.model.catalog import Table
from minishark.query.inputs import partition_slices
from minishark.query.run import working_folder
from minishark.session.programs.program import Program, Shown, unseen
from minishark.session.programs.result_table import IntoTable, load_parts
from minishark.session.programs.run import ProgramRun
from minishark.session.programs.workers import WorkerJobs
from minishark.tables.tables import Tables
from minishark.worker.program_files import keep_part
from minishark.worker.protocol import ProgramJob, StoredPartition, encode
from minishark.worker.values import unsendable
from sparrow_core import JobOptions, JobSpec, NodeName, TaskSpec

ProgramDriver: TypeAlias = Driver
"""What a user writes: a function of a `Run`."""

_PARTITIONS_PER_WORKER = 4
_WAIT_S = 1.0  # for all workers to come, before the program starts with those that have
_SILENCE_S = 3600.0  # longer than any task: dead workers are noticed otherwise
_SPREAD_S = 0.2  # until a worker may share a node with another


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """How a program runs; `Session.program` says what they mean."""

    partitions: int | None = None
    workers: int | None = None
    snapshot_every: int | None = None
    snapshot_s: float | None = None
    copies: int = 2
    balancer: str = "straggler"

    def check(self) -> None:
        """Raise OptionError for a number out of range."""
        for name in ("partitions", "workers", "snapshot_every", "copies"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} must be a whole number, at least 1.")
        if self.snapshot_s is not None and not self.snapshot_s > 0:
            raise OptionError("snapshot_s must be above 0.")
        if self.balancer not in BALANCERS:
            names = ", ".join(BALANCERS)
            raise OptionError(f"There is no balancer {self.balancer!r}; the names are {names}.")


class Programs:
    """The programs of a session; thread-safe."""

    def __init__(self, cluster: Cluster, tables: Tables, placing: Callable[[], Placement]) -> None:
        """Run programs on a cluster, over its tables."""
        self._cluster = cluster
        self._tables = tables
        self._placing = placing
        self._numbers = itertools.count()
        self._open: weakref.WeakSet[ProgramRun] = weakref.WeakSet()
        self._known: weakref.WeakValueDictionary[int, ProgramRun] = weakref.WeakValueDictionary()

    def start(
        self,
        driver: Driver,
        options: ProgramOptions,
        into: IntoTable | None = None,
        shown: Shown = unseen,
    ) -> Program:
        """Start a program; `Session.program` says what the arguments mean.

        `shown` shows who waits for the result how far it is.
        """
        if not callable(driver):
            raise OptionError(f"program() takes a function, not {type(driver).__name__}.")
        options.check()
        slots = self._cluster.total_slots
        workers = options.workers or slots
        if workers > slots:
            raise OptionError(f"There are {slots} slots, too few for {workers} workers.")
        pickled = _pickled(driver if into is None else partial(_with_kept_result, driver))
        stored = {table.name.lower(): table for table in self._tables.catalog if table.is_computed}
        placement = self._placing()
        number = next(self._numbers)
        folder = self._cluster.folder(f"programs/{number}")
        self._cluster.make_folder(folder)
        control = ControlThread(
            self._cluster.mailbox(f"program-{number}"),
            _settings(options, workers, partial(_preferred, driver, stored)),
        )
        shared = ProgramJob(
            driver=pickled,
            controller=control.address,
            folder=folder,
            tables={name: _partitions(table) for name, table in stored.items()},
            stores=placement.stores,
            working_folder=working_folder(),
        )
        run = ProgramRun(
            control,
            result_of if into is None else partial(self._load, into),
            partial(self._cluster.remove_folder, folder),
        )
        jobs = _jobs(placement, encode(shared), workers, name=_name(driver), group=folder)
        self._open.add(run)
        run.name = _name(driver)
        self._known[number] = run
        run.start(WorkerJobs(self._cluster.backend, jobs, run.stage, run.fail))
        return Program(_name(driver), run, shown)

    def _load(self, into: IntoTable, outcome: Outcome) -> Any:
        parts = result_of(outcome)
        load_parts(self._tables, into, parts, self._cluster.store())
        return into.made()

    def known(self) -> dict[int, ProgramRun]:
        """The programs that run, and those that are over and still in use, by number."""
        return dict(self._known)

    @property
    def slots(self) -> int:
        """How many slots programs hold or wait for."""
        return sum(run.slots for run in tuple(self._open))

    def stop(self) -> None:
        """Cancel all programs, and wait until they have ended."""
        runs = [run for run in tuple(self._open) if not run.over.is_set()]
        for run in runs:
            run.cancel()
        for run in runs:
            run.await_end()


def _settings(
    options: ProgramOptions, workers: int, preferred: Callable[[int], Mapping[int, Sequence[str]]]
) -> Settings:
    size = options.partitions or _PARTITIONS_PER_WORKER * workers
    return Settings(
        partitions=size,
        workers=workers,
        wait_s=_WAIT_S,
        silence_s=_SILENCE_S,
        balancer=options.balancer,
        snapshot_every=options.snapshot_every,
        snapshot_s=options.snapshot_s,
        copies=options.copies,
        preferred=preferred(size),
    )


def _jobs(
    placement: Placement, shared: bytes, workers: int, *, name: str, group: str
) -> list[JobSpec]:
    """A job for each worker; they spread over the nodes, and share slots with others as one."""
    nodes = itertools.islice(itertools.cycle(placement.nodes), workers)
    return [
        JobSpec(
            tasks=(TaskSpec(0, b"", (NodeName(node),), _SPREAD_S),),
            shared=shared,
            user=placement.user,
            options=JobOptions(group=group),
            tag=f"program {name}, worker {number}",
        )
        for number, node in enumerate(nodes)
    ]


def _pickled(driver: Driver) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(driver)
    except Exception as error:
        raise unsendable("The driver", error) from error
    return data


def _name(driver: Driver) -> str:
    return str(getattr(driver, "__name__", type(driver).__name__))


def _partitions(table: Table) -> tuple[StoredPartition, ...]:
    return tuple(StoredPartition(partition_slices(p), p.rows) for p in table.partitions)


def _preferred(
    driver: Driver, tables: Mapping[str, Table], size: int
) -> dict[int, tuple[str, ...]]:
    """The nodes where partitions should be: those that store the same ones of a table it names.

    A guess from the texts in the driver's code: it decides on speed alone.
    """
    for name in _texts(getattr(driver, "__code__", None)):
        table = tables.get(name.lower())
        if table is not None and len(table.partitions) == size:
            return {p.index: p.locations for p in table.partitions}
    return {}


def _texts(code: CodeType | None) -> Iterator[str]:
    for constant in code.co_consts if code is not None else ():
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, CodeType):
            yield from _texts(constant)


def _with_kept_result(driver: Driver, run: Run) -> Value:
    """A driver whose result stays at the workers, as files."""
    result = driver(run)
    if not isinstance(result, Value):
        raise ProgramError(
            "A program's result becomes a table if the driver returns one value of `run`, not a "
            f"{type(result).__name__}."
        )
    return run.map(keep_part, run.load(int, result.partitions), result)
