"""Multi-stage queries, and their simulation.

A query is a directed acyclic graph of stages. Each stage is a job whose tasks take given times; it
is submitted when its predecessors have finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from minishark_lab.models.express import ExpressCluster
from minishark_lab.simulator.workload import Arrival
from minishark_lab.sparrow.streams import START_S
from sparrow_core.protocol.ids import JobId
from sparrow_core.runtime.specs import JobSpec, start_of


class QueryStage(msgspec.Struct, frozen=True):
    """A job, and its predecessors: indexes of stages of the query.

    `delay_s`: the front end's work between the end of the last of them and the job's submission.
    """

    job: JobSpec
    after: tuple[int, ...] = ()
    delay_s: float = 0.0


class Query(msgspec.Struct, frozen=True):
    """A query that is submitted at a time, in seconds from the start."""

    at_s: float
    stages: tuple[QueryStage, ...]


class Pending:
    """The unfinished stages of a query."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._unfinished = dict.fromkeys(range(len(query.stages)))
        self._waiting = dict(enumerate(query.stages))

    def ready(self) -> Iterator[tuple[int, QueryStage]]:
        """The stages that can be submitted now; each is returned once."""
        for index, stage in tuple(self._waiting.items()):
            if not any(each in self._unfinished for each in stage.after):
                yield index, self._waiting.pop(index)

    def finish(self, index: int) -> bool:
        """A stage has finished; returns whether the query has."""
        del self._unfinished[index]
        return not self._unfinished


def simulate_queries(cluster: ExpressCluster, queries: Sequence[Query]) -> list[float]:
    """Simulate queries, in order of time, on an idle cluster; returns response times in seconds."""
    pending = [Pending(query) for query in queries]
    times_s = [0.0] * len(queries)

    def submit(number: int, at_s: float) -> None:
        for index, stage in pending[number].ready():
            start = start_of(stage.job, JobId(f"{number}/{index}"))
            cluster.submit(Arrival(at_s + stage.delay_s, start))

    def on_last(job_id: JobId, ends_s: float) -> None:
        number, index = map(int, job_id.split("/"))
        cluster.call(ends_s, lambda: finish(number, index, ends_s))

    def finish(number: int, index: int, at_s: float) -> None:
        if pending[number].finish(index):
            times_s[number] = at_s - START_S - queries[number].at_s
        else:
            submit(number, at_s)

    cluster.on_last = on_last
    for number, query in enumerate(queries):
        submit(number, START_S + query.at_s)
    cluster.run(())
    return times_s
