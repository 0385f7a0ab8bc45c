"""An omniscient scheduler that knows how long tasks are: a bound for those that know little."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from minishark_lab.simulator.cluster import duration_of
from minishark_lab.simulator.workload import Arrival


def shortest_first_response_times_s(
    arrivals: Sequence[Arrival], slots: int, delay_s: float
) -> list[float]:
    """Response times where the next task is one of the job with the least work left.

    That is by its estimate (`JobOptions.task_s`), as far as it has not begun.
    """
    free_at = [0.0] * slots
    waiting: list[tuple[float, int]] = []  # a heap of work that has not begun, and job
    tasks = [[duration_of(task.payload) for task in arrival.job.tasks] for arrival in arrivals]
    ended_s = [0.0] * len(arrivals)

    def start(until_s: float, since_s: float) -> None:
        """Start tasks on slots that are free by then, not before `since_s`."""
        while waiting and free_at[0] <= until_s:
            _, job = waiting[0]
            end_s = max(since_s, free_at[0]) + tasks[job].pop()
            heapq.heapreplace(free_at, end_s)
            ended_s[job] = max(ended_s[job], end_s)
            if tasks[job]:  # it has less to do than before, so it stays the first
                estimate_s = arrivals[job].job.options.task_s * len(tasks[job])
                heapq.heapreplace(waiting, (estimate_s, job))
            else:
                heapq.heappop(waiting)

    for job, arrival in enumerate(arrivals):
        reached_s = arrival.at_s + 2 * delay_s
        start(reached_s, 0.0)  # of jobs that waited: there was no free slot before
        heapq.heappush(waiting, (arrival.job.options.task_s * len(tasks[job]), job))
        start(reached_s, reached_s)
    start(math.inf, 0.0)
    return [end + delay_s - arrival.at_s for end, arrival in zip(ended_s, arrivals, strict=True)]
