"""Recorded TPC-H queries, and users who submit them."""

from __future__ import annotations

import importlib.resources
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from minishark_lab.harness.lengths import RunLength, run_length
from minishark_lab.harness.paired import BLOCKS_MIN, Asked
from minishark_lab.harness.parameters import (
    Count,
    Loads,
    Names,
    NotNegative,
    Positive,
    check_names,
    check_placements,
)
from minishark_lab.models.analysis import queue_relaxation_time
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.sparrow.placements import COMPARED
from minishark_lab.sparrow.queries import Query, QueryStage
from sparrow_core.protocol.types import TaskSpec
from sparrow_core.runtime.specs import JobSpec


class RecordedStage(msgspec.Struct, frozen=True):
    """A recorded stage: its task times, and whether they read the user's partitions."""

    task_ms: tuple[float, ...]
    reads_partitions: bool
    after: tuple[int, ...] = ()


class RecordedQuery(msgspec.Struct, frozen=True):
    """The stages of a recorded query."""

    name: str
    stages: tuple[RecordedStage, ...]


class Recording(msgspec.Struct, frozen=True):
    """Recorded queries, and how they were recorded."""

    about: str
    queries: tuple[RecordedQuery, ...]


def shipped_recording() -> Recording:
    """TPC-H queries recorded on minishark, with 30 partitions."""
    text = (
        importlib.resources.files("minishark_lab.sparrow").joinpath("tpch_stages.json").read_bytes()
    )
    return msgspec.json.decode(text, type=Recording)


@dataclass(frozen=True, kw_only=True)
class TpchUsers:
    """Users with tables of their own who submit recorded queries."""

    users: Count = 10  # each has a table of as many partitions as stages that read it have tasks
    nodes: Count = 100  # of `slots` slots each, in `processes` processes
    slots: Count = 4
    schedulers: Count = 2
    processes: Count = 2
    # Of each partition, all replicas of a user's partitions striped over different nodes if there
    # are enough, as in the papers.
    replicas: Count = 3
    # Recorded task times are scaled to this mean: the longer, the less CPU time the messages of a
    # hundred nodes take of this machine.
    mean_task_ms: Positive = 400.0
    queries: Names = ("q1", "q3", "q6", "q12")
    # "regular" as in the papers: users submit at fixed intervals, in random permutations of the
    # queries; or "poisson": random queries as a Poisson process.
    arrivals: str = "regular"
    loads: Loads = (0.8,)  # shares of slots that are busy
    placements: Names = COMPARED
    # How long queries come that are measured, at least; `lengths` may ask for more.
    seconds: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_placements(self.placements)
        check_names("arrivals", (self.arrivals,), tuple(_ARRIVALS))
        check_names("queries", self.queries, [query.name for query in shipped_recording().queries])
        if self.replicas > self.nodes:
            raise ValueError(f"replicas: at most one on each of {self.nodes} nodes")

    def run_length(self, load: float) -> RunLength:
        """How many milliseconds queries come, and during how many of the first none is measured."""
        # The slots of a node share a queue, which forgets as many times as fast (M/M/c).
        relaxation_ms = queue_relaxation_time(load, 1) * self.mean_task_ms / self.slots
        return run_length(relaxation_ms, jobs=max(1, round(1000 * self.seconds)))


@dataclass(frozen=True)
class _Asked:
    """A user submits a query (by position) at a time."""

    at_s: float
    user: int
    query: int


class TpchPlan:
    """Which user submits which query when, and which nodes have the partitions."""

    def __init__(self, parameters: TpchUsers, load: float, seed: int) -> None:
        """Draw arrivals and homes of partitions."""
        recorded = {query.name: query for query in shipped_recording().queries}
        self._recorded = [recorded[name] for name in parameters.queries]
        self._parameters = parameters
        self.length = parameters.run_length(load)
        rng = Random(f"{seed} {load}")
        times = [
            time for query in self._recorded for stage in query.stages for time in stage.task_ms
        ]
        self._scale = parameters.mean_task_ms * len(times) / sum(times) / 1000
        work_s = self._scale * sum(times) / len(self._recorded)  # of a query, on average
        rate = load * parameters.nodes * parameters.slots / work_s
        partitions = max(len(s.task_ms) for query in self._recorded for s in query.stages)
        self._homes = [
            _striped(rng, parameters.nodes, partitions, parameters.replicas)
            for _ in range(parameters.users)
        ]
        asked = itertools.takewhile(
            lambda each: each.at_s < self.length.jobs / 1000,
            _ARRIVALS[parameters.arrivals](rng, parameters.users, rate, len(self._recorded)),
        )
        self._asked = list(asked)

    def queries(self, placement: str) -> list[Query]:
        """All queries, in order of submission."""
        return [
            Query(asked.at_s, tuple(
                QueryStage(self._job(placement, asked.user, stage), stage.after)
                for stage in self._recorded[asked.query].stages
            ))
            for asked in self._asked
        ]  # fmt: skip

    def _job(self, placement: str, user: int, stage: RecordedStage) -> JobSpec:
        homes = self._homes[user] if stage.reads_partitions else None
        tasks = tuple(
            TaskSpec(task_id, payload_of(time_ms * self._scale), homes[task_id] if homes else ())
            for task_id, time_ms in enumerate(stage.task_ms)
        )
        return JobSpec(tasks=tasks, user=f"user {user}", placement=placement)

    def ideal_s(self) -> list[float]:
        """Response times if each task started as soon as its stage can."""
        ideal = [_critical_path(query.stages, self._scale) for query in self._recorded]
        return [ideal[asked.query] for asked in self._asked]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the queries."""
        return tuple(int(query.name.removeprefix("q")) for query in self._recorded)

    def blocks(self, times_s: Sequence[float]) -> list[list[Asked]]:
        """The measured queries with their response times, by when they came."""
        blocks: list[list[Asked]] = [[] for _ in range(BLOCKS_MIN)]
        first_s = self.length.warm_up / 1000
        each_s = (self.length.jobs / 1000 - first_s) / BLOCKS_MIN
        for asked, took_s, ideal_s in zip(self._asked, times_s, self.ideal_s(), strict=True):
            if asked.at_s >= first_s:
                block = min(BLOCKS_MIN - 1, int((asked.at_s - first_s) / each_s))
                blocks[block].append(Asked(self.numbers[asked.query], took_s, ideal_s))
        return blocks


def _striped(rng: Random, nodes: int, partitions: int, replicas: int) -> list[tuple[str, ...]]:
    """Nodes of each partition: no node has a second replica of a table before all have one."""
    dealt: list[int] = []
    while len(dealt) < partitions * replicas:
        dealt += rng.sample(range(nodes), nodes - nodes % replicas)
    return [
        tuple(f"n{node}" for node in dealt[each * replicas : (each + 1) * replicas])
        for each in range(partitions)
    ]


def _critical_path(stages: Iterable[RecordedStage], scale: float) -> float:
    ends: list[float] = []
    for stage in stages:
        begin = max((ends[each] for each in stage.after), default=0.0)
        ends.append(begin + scale * max(stage.task_ms))
    return max(ends)


def _poisson(rng: Random, users: int, rate: float, queries: int) -> Iterator[_Asked]:
    at_s = 0.0
    while True:
        at_s += rng.expovariate(rate)
        yield _Asked(at_s, rng.randrange(users), rng.randrange(queries))


def _regular(rng: Random, users: int, rate: float, queries: int) -> Iterator[_Asked]:
    interval_s = users / rate
    first_s = [rng.random() * interval_s for _ in range(users)]
    permutations: list[list[int]] = [[] for _ in range(users)]
    in_turn = sorted(range(users), key=first_s.__getitem__)
    for number in itertools.count():
        for user in in_turn:
            permutations[user] = permutations[user] or rng.sample(range(queries), queries)
            yield _Asked(first_s[user] + number * interval_s, user, permutations[user].pop())


_ARRIVALS: dict[str, Callable[[Random, int, float, int], Iterator[_Asked]]] = {
    "regular": _regular,
    "poisson": _poisson,
}
