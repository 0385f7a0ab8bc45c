"""What TPC-H's stages would cost on more machines and more data than there are here.

Recorded at two small scale factors, a stage's task costs ``c0 + c1 * S + c2 * S / P`` of CPU time
at scale factor S with P tasks per stage: a fixed part, what each task does with all of a broadcast
input, and what it does with its share of the others. Two recordings fit a constant and a slope; a
stage whose inputs do not grow with S has no slope. The slope is divided between c1 and c2 by the
rows that the task reads of either kind. What a stage puts out scales likewise: per task a fixed
part (as partial sums of a few groups have), and a share of S.

A task reads its share of a shuffle from all tasks of the stage before, all of a gather, or all of a
broadcast, which is fetched once per node. Of that, the part (n - 1) / n of n nodes comes over the
network, at the node's bandwidth divided by its slots, one request per file.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

_GROWTH_MIN = 1.5  # of a stage's input between the two scales, or else it is taken to be constant


class StageRead(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a stage: of an earlier `stage` (by position), or a table with so many `rows`."""

    mode: str  # a `ReadMode`: "own", "all" or "bucket"
    stage: int | None = None
    rows: int = 0


class ScaledStage(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded stage: the CPU time of each task, and what all of them put out."""

    task_ms: tuple[float, ...]
    rows: int
    bytes: int
    reads: tuple[StageRead, ...]
    after: tuple[int, ...]


class ScaledQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded query."""

    name: str
    stages: tuple[ScaledStage, ...]


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """TPC-H at one scale factor, planned for so many tasks per stage."""

    scale: float
    partitions: int
    queries: tuple[ScaledQuery, ...]


class Recordings(msgspec.Struct, frozen=True, kw_only=True):
    """All recordings; `front_end_ms` is the CPU time of the front end per task."""

    about: str
    front_end_ms: float
    recordings: tuple[Recording, ...]


def shipped_recordings() -> Recordings:
    """What `benchmarks/record_scale.py` has recorded."""
    file = importlib.resources.files("minishark_lab.sparrow").joinpath("tpch_scale.json")
    return msgspec.json.decode(file.read_bytes(), type=Recordings)


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Machines to predict for.

    Attributes:
        nodes: How many.
        slots: Of each node, and cores.
        gbit_s: The bandwidth of each node's link.
        rtt_ms: The time of a round trip between two nodes.
        speed: How fast a core is, compared with the one that the recordings come from.
        request_ms: What fetching one more file costs its reader, beside the round trip.
        in_flight: How many files a task fetches at once.
        overlap: Whether a task works while it fetches; otherwise it fetches first.
    """

    nodes: int
    slots: int
    gbit_s: float
    rtt_ms: float
    speed: float = 1.0
    request_ms: float = 0.3
    in_flight: int = 1
    overlap: bool = False


@dataclass(frozen=True)
class Line:
    """A straight line."""

    constant: float
    slope: float

    @staticmethod
    def through(points: Sequence[tuple[float, float]]) -> Line:
        """The line through two points; neither of its coefficients is below zero."""
        (x0, y0), (x1, y1) = points
        slope = max(0.0, (y1 - y0) / (x1 - x0))
        constant = y1 - slope * x1
        # A line that would fall below zero goes through the origin and the last point.
        return Line(constant, slope) if constant >= 0 else Line(0.0, y1 / x1)

    def __call__(self, x: float) -> float:
        return self.constant + self.slope * x


@dataclass(frozen=True, kw_only=True)
class StageModel:
    """A stage at any scale and number of slots.

    Attributes:
        spread: Whether it has a task per slot; otherwise it has one.
        partitions: Of the recording.
        task_ms: A task's mean CPU time by scale, with the recording's partitions.
        broadcast: The part of its slope that is for inputs which each task reads whole.
        task_bytes: What a task puts out, by scale, with the recording's partitions.
        skew: Tasks' times relative to their mean, at the larger recorded scale.
    """

    spread: bool
    partitions: int
    task_ms: Line
    broadcast: float
    task_bytes: Line
    skew: tuple[float, ...]
    reads: tuple[StageRead, ...]
    after: tuple[int, ...]

    def tasks(self, tasks: int) -> int:
        return tasks if self.spread else 1

    def cpu_ms(self, scale: float, tasks: int) -> float:
        """The mean CPU time of a task."""
        share = self.partitions / tasks if self.spread else 1.0
        per_scale = self.task_ms.slope * (self.broadcast + (1 - self.broadcast) * share)
        return self.task_ms.constant + per_scale * scale

    def out_bytes(self, scale: float, tasks: int) -> float:
        """What all tasks put out."""
        if not self.spread:
            return self.task_bytes(scale)
        return tasks * self.task_bytes.constant + self.partitions * self.task_bytes.slope * scale


@dataclass(frozen=True)
class QueryModel:
    """A query at any scale."""

    name: str
    stages: tuple[StageModel, ...]

    def fetch_ms(self, stage: StageModel, scale: float, machines: Machines, tasks: int) -> float:
        """How long a task of the stage fetches, while the other tasks of its node do, too."""
        away = (machines.nodes - 1) / machines.nodes
        busy = max(1.0, stage.tasks(tasks) / machines.nodes)
        seconds, requests = 0.0, 0.0
        for read in stage.reads:
            if read.stage is None or read.mode == "own":
                continue  # tables and their co-partitioned results are where their readers run
            before = self.stages[read.stage]
            size, files = before.out_bytes(scale, tasks), float(before.tasks(tasks))
            if read.mode == "bucket":
                size *= busy / stage.tasks(tasks)  # of all tasks of the node, which share its link
            else:
                files /= busy  # fetched once per node, for all of its tasks
            seconds += away * size * 8 / (machines.gbit_s * 1e9)
            requests += away * files
        waits_s = requests * (machines.request_ms + machines.rtt_ms) / machines.in_flight / 1000
        return 1000 * (seconds + waits_s)

    def stage_ms(self, stage: StageModel, scale: float, machines: Machines, tasks: int) -> float:
        """The mean time of a task: work, and fetching."""
        work = stage.cpu_ms(scale, tasks) / machines.speed
        fetch = self.fetch_ms(stage, scale, machines, tasks)
        return max(work, fetch) if machines.overlap else work + fetch


class ScaleModel:
    """TPC-H at any scale, on any number of machines."""

    def __init__(self, recordings: Recordings) -> None:
        """By recordings at two scales, for each number of partitions that was recorded."""
        self.front_end_ms = recordings.front_end_ms
        alike: dict[int, list[Recording]] = {}
        for each in recordings.recordings:
            alike.setdefault(each.partitions, []).append(each)
        self._queries = {count: tuple(_models(alike[count])) for count in sorted(alike)}

    def queries(self, tasks: int) -> tuple[QueryModel, ...]:
        """The queries as recorded with so many partitions, or the next smaller number.

        Plans differ: few partitions need fewer exchanges, and one needs none.
        """
        fitting = [count for count in self._queries if count <= tasks]
        return self._queries[max(fitting, default=min(self._queries))]

    def best_tasks(self, scale: float, machines: Machines) -> int:
        """The number of partitions with which all queries take the least time.

        That is one per slot for much data, and fewer for little.
        """
        counts = [machines.nodes * machines.slots]
        while counts[-1] > 1:
            counts.append(counts[-1] // 2)
        return min(counts, key=lambda tasks: self._roughly_ms(scale, machines, tasks))

    def _roughly_ms(self, scale: float, machines: Machines, tasks: int) -> float:
        """All queries, if tasks were all alike and were placed at once."""
        total = 0.0
        for query in self.queries(tasks):
            ends: list[float] = []
            for stage in query.stages:
                begins = max((ends[each] for each in stage.after), default=0.0)
                front = self.front_end_ms * stage.tasks(tasks) / machines.speed
                ends.append(begins + front + query.stage_ms(stage, scale, machines, tasks))
            total += max(ends)
        return total


def _models(recordings: Sequence[Recording]) -> Iterator[QueryModel]:
    small, large = sorted(recordings, key=lambda each: each.scale)
    for below, above in zip(small.queries, large.queries, strict=True):
        same = len(below.stages) == len(above.stages)
        stages = []
        for index, stage in enumerate(above.stages):
            less = (below, below.stages[index]) if same else None
            stages.append(_model(above, stage, less, (small.scale, large.scale), large.partitions))
        yield QueryModel(above.name, tuple(stages))


def _model(
    query: ScaledQuery,
    stage: ScaledStage,
    smaller: tuple[ScaledQuery, ScaledStage] | None,
    scales: tuple[float, float],
    partitions: int,
) -> StageModel:
    """A stage by its recordings at two scales; by the larger one only if the plans differ."""
    mean = sum(stage.task_ms) / len(stage.task_ms)
    size = stage.bytes / len(stage.task_ms)
    if smaller is not None and len(smaller[1].task_ms) == len(stage.task_ms):
        less = smaller[1]
        mean_less = sum(less.task_ms) / len(less.task_ms)
        size_less = less.bytes / len(less.task_ms)
        grows = _rows_read(query, stage) > _GROWTH_MIN * _rows_read(*smaller)
    else:
        mean_less = size_less = 0.0  # all of it is taken to grow with the data
        scales = (0.0, scales[1])
        grows = True
    times = Line.through([(scales[0], mean_less), (scales[1], mean)])
    return StageModel(
        spread=len(stage.task_ms) > 1,
        partitions=partitions,
        task_ms=times if grows else Line(min(mean_less, mean), 0.0),
        broadcast=_broadcast_share(query, stage),
        task_bytes=Line.through([(scales[0], size_less), (scales[1], size)]),
        skew=tuple(each / mean for each in stage.task_ms) if mean else (1.0,),
        reads=stage.reads,
        after=stage.after,
    )


def _rows_read(query: ScaledQuery, stage: ScaledStage) -> int:
    """The rows of all inputs of a stage."""
    found = (
        read.rows if read.stage is None else query.stages[read.stage].rows for read in stage.reads
    )
    return sum(found)


def _broadcast_share(query: ScaledQuery, stage: ScaledStage) -> float:
    """Of the rows that a task reads, the part that every other task of its stage reads, too."""
    whole = own = 0.0
    for read in stage.reads:
        rows = read.rows if read.stage is None else query.stages[read.stage].rows
        if read.mode == "all":
            whole += rows
        else:
            own += rows / len(stage.task_ms)
    return whole / (whole + own) if len(stage.task_ms) > 1 and whole else 0.0
