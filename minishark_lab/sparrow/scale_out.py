"""TPC-H on more machines and data than there are here: recorded stages in the simulator.

The costs of `scale_model` become the durations of simulated tasks; Sparrow's policies place them on
up to a thousand nodes. Queries run one after the other. What is left out makes real clusters
slower: memory that runs out, stragglers and failures, skew beyond that of TPC-H, contention of
memory bandwidth and caches between a node's cores, switches that are not as fast as their links.
Plans for the real size may be better than the recorded ones, which are those of small data.

The published figures are of other engines, on other machines; they say in which region such
clusters are, not who is faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated

from minishark_lab.harness.experiment import Advance, Chart, Experiment, over_cases
from minishark_lab.harness.findings import Finding, value
from minishark_lab.harness.parameters import Count, Counts, Natural, NotNegative, Positive, Some
from minishark_lab.harness.rows import Point, Row
from minishark_lab.models.express import ExpressCluster
from minishark_lab.simulator.cluster import payload_of
from minishark_lab.simulator.network import Network
from minishark_lab.sparrow.queries import Query, QueryStage, simulate_queries
from minishark_lab.sparrow.scale_model import (
    Machines,
    QueryModel,
    ScaleModel,
    shipped_recordings,
)
from sparrow_core.protocol.types import TaskSpec
from sparrow_core.runtime.specs import JobSpec

_LEAST_S = 0.001  # the simulator's shortest task
_IDLE_S = 1e5  # between two queries, so that each runs alone
# The 22 queries at SF 10 on 12 nodes, in seconds, as the project datafusion-distributed published.
PUBLISHED = (
    ("datafusion-distributed", "10"),
    ("Trino", "33"),
    ("Ballista", "42"),
    ("Spark", "51"),
)
_WORTH = 0.25


@dataclass(frozen=True, kw_only=True)
class ScaleOut:
    """Clusters of equal machines."""

    scale_factors: Annotated[tuple[Positive, ...], Some] = (10.0, 100.0, 1000.0, 10_000.0)
    nodes: Counts = (1, 2, 4, 8, 12, 16, 32, 64, 128, 256, 512, 1000)
    slots: Count = 8  # of each node, and cores
    gbit_s: Annotated[tuple[Positive, ...], Some] = (1.0, 10.0)  # of each node's link
    rtt_ms: NotNegative = 0.2
    speed: Positive = 1.0  # of a core, compared with the one that was recorded on
    request_ms: NotNegative = 0.3  # what fetching a file costs its reader, beside the round trip
    in_flight: Count = 1  # files that a task fetches at once
    overlap: bool = False  # whether a task works while it fetches
    tasks: Natural = 0  # per stage; 0 for the number with which all takes the least time


def scale_out(parameters: ScaleOut, seed: int, advance: Advance) -> Sequence[Row]:
    """The time of the 22 queries, one after the other."""
    model = ScaleModel(shipped_recordings())
    cases = [
        (scale, gbit_s, nodes)
        for scale in parameters.scale_factors
        for gbit_s in parameters.gbit_s
        for nodes in parameters.nodes
    ]

    def measure(case: tuple[float, float, int], part: Advance) -> Iterator[Point]:
        scale, gbit_s, nodes = case
        machines = Machines(
            nodes=nodes,
            slots=parameters.slots,
            gbit_s=gbit_s,
            rtt_ms=parameters.rtt_ms,
            speed=parameters.speed,
            request_ms=parameters.request_ms,
            in_flight=parameters.in_flight,
            overlap=parameters.overlap,
        )
        times_s = predict(model, scale, machines, seed, tasks=parameters.tasks)
        part(1.0)
        yield Point(
            panel=f"SF {scale:g}", series=f"{gbit_s:g} Gbit/s", x=nodes, y=sum(times_s.values())
        )

    return over_cases([(case,) for case in cases], measure, advance)


def predict(
    model: ScaleModel, scale: float, machines: Machines, seed: int, *, tasks: int = 0
) -> dict[str, float]:
    """The response time of each query in seconds, when it runs alone; `tasks` 0 for the best."""
    tasks = tasks or model.best_tasks(scale, machines)
    models = model.queries(tasks)
    rng = Random(f"{seed} {scale} {machines.nodes}")
    front_s = model.front_end_ms / 1000 / machines.speed
    queries = [
        Query(number * _IDLE_S, tuple(_stages(each, (scale, tasks), machines, front_s, rng)))
        for number, each in enumerate(models)
    ]
    cluster = ExpressCluster(
        nodes=machines.nodes,
        slots=machines.slots,
        seed=seed,
        network=Network(delay_s=machines.rtt_ms / 2000),
    )
    times_s = simulate_queries(cluster, queries)
    return {each.name: time_s for each, time_s in zip(models, times_s, strict=True)}


def _stages(
    query: QueryModel, size: tuple[float, int], machines: Machines, front_s: float, rng: Random
) -> Iterator[QueryStage]:
    scale, most = size
    for stage in query.stages:
        mean_s = query.stage_ms(stage, scale, machines, most) / 1000
        count = stage.tasks(most)
        skew = rng.choices(stage.skew, k=count) if stage.spread else [1.0]
        specs = tuple(
            TaskSpec(number, payload_of(max(_LEAST_S, mean_s * each)))
            for number, each in enumerate(skew)
        )
        # The front end makes the tasks before they start, one after the other.
        yield QueryStage(JobSpec(tasks=specs), stage.after, front_s * count)


def machines_worth(scale: float, gbit_s: float) -> Finding:
    """The fewest nodes with which all takes little longer than with the best number."""

    def read(rows: Sequence[Row]) -> float:
        times = {
            row.x: row.y
            for row in rows
            if isinstance(row, Point)
            and (row.panel, row.series) == (f"SF {scale:g}", f"{gbit_s:g} Gbit/s")
        }
        if not times:
            raise LookupError
        enough_s = (1 + _WORTH) * min(times.values())
        return min(nodes for nodes, took_s in times.items() if took_s <= enough_s)

    what = f"nodes for at most {_WORTH:.0%} more than the best time"
    return Finding(f"{what}, SF {scale:g} at {gbit_s:g} Gbit/s", "", read, "{:.0f}")


def _published(engine: str, seconds: str) -> Finding:
    here = value("10 Gbit/s", 12, "SF 10", "y")
    return Finding(f"SF 10 on 12 nodes, beside {engine} (s)", seconds, here)


EXPERIMENTS = (
    Experiment(
        name="scale",
        title="TPC-H on up to 1,000 machines, by recorded stages in the simulator",
        source="beside what datafusion-distributed published, of other machines",
        kind="simulated",
        parameters=ScaleOut(),
        quick=ScaleOut(scale_factors=(10.0,), nodes=(1, 4, 12), gbit_s=(10.0,), slots=2),
        run=scale_out,
        chart=Chart(x="Nodes", y="22 queries (s)", style="lines", log_x=True, log_y=True),
        findings=(
            *(_published(engine, seconds) for engine, seconds in PUBLISHED),
            *(
                machines_worth(scale, gbit_s)
                for scale in ScaleOut.scale_factors
                for gbit_s in ScaleOut.gbit_s
            ),
        ),
    ),
)
