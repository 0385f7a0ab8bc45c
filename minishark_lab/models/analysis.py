"""Formulas of the papers (Batch Sampling, section 4), against which the simulator is tested.

`load` is the share of busy slots, `tasks` the number of tasks of a job, `ratio` the probes per
task. Messages take no time, and the number of nodes is infinite.
"""

from __future__ import annotations

import math

import numpy as np

_NOBODY = 1e-14  # share of queues that are so long


def zero_wait_probability(
    placement: str, load: float, tasks: int, ratio: int = 2, slots: int = 1
) -> float:
    """The probability that no task of a job waits, for "random", "per_task" or "batch"."""
    busy = load**slots
    match placement:
        case "random":
            return float((1 - busy) ** tasks)
        case "per_task":
            return float((1 - busy**ratio) ** tasks)
        case "batch":
            probes = ratio * tasks
            return sum(
                math.comb(probes, idle) * (1 - busy) ** idle * busy ** (probes - idle)
                for idle in range(tasks, probes + 1)
            )
        case _:
            raise ValueError(placement)


def mean_response(placement: str, load: float) -> float:
    """The mean response time of jobs of one exponential task of mean 1, with ratio 2, one slot.

    Random placement is M/M/1; per-task sampling joins the shorter of two queues; late binding joins
    the queue with less work, which nobody needs to know.
    """
    match placement:
        case "random":
            return 1 / (1 - load)
        case "per_task":
            return sum(math.pow(load, 2**step - 2) for step in range(1, 20))
        case "sparrow":
            return -math.log(1 - load**2) / load**2
        case _:
            raise ValueError(placement)


def late_binding_idle_share(ratio: float, round_trip_s: float, task_s: float) -> float:
    """Upper bound of the share of slot time spent waiting for answers to GetTasks."""
    return ratio * round_trip_s / (task_s + ratio * round_trip_s)


def random_response_quantile(load: float, tasks: int, share: float) -> float:
    """A quantile of the response time of a job of exponential tasks of mean 1, placed at random.

    The tasks meet independent M/M/1 queues, in which the time of a task is exponential with mean
    1 / (1 - load); the last of them ends the job.
    """
    return -math.log(1 - share ** (1 / tasks)) / (1 - load)


def pooled_relaxation_time(load: float, slots: int, spread: float) -> float:
    """The same of the work that slots which share it have to do, as a reflected Brownian motion.

    `spread`: the mean square of the work that comes at a time, over its mean, in the unit of the
    result: tasks + 1 for jobs of exponential tasks, in mean task times. Above capacity there is no
    steady state, and it is infinite.
    """
    if load >= 1:
        return math.inf
    return 2 * load * spread / (slots * (1 - load) ** 2)


def queue_relaxation_time(load: float, compared: float) -> float:
    """How long queues of which `compared` are compared take to forget, in mean task times.

    One queue is M/M/1, whose relaxation time is 1 / (1 - sqrt(load))^2 (Asmussen, Applied
    Probability and Queues). Of many, of which each task joins the shortest of d, the share with at
    least k tasks follows ds(k)/dt = load (s(k-1)^d - s(k)^d) - (s(k) - s(k+1)), which is at rest at
    s(k) = load^((d^k - 1) / (d - 1)) (Mitzenmacher, The Power of Two Choices in Randomized Load
    Balancing). The slowest way back is the largest eigenvalue of the equations made linear there.
    """
    if load >= 1:
        return math.inf
    if compared <= 1:
        return 1 / (1 - math.sqrt(load)) ** 2
    shares = [1.0]  # s(0), s(1), ...
    while shares[-1] > _NOBODY:
        shares.append(load * shares[-1] ** compared)
    size = len(shares) - 1
    joins = [load * compared * share ** (compared - 1) for share in shares]
    linear = np.zeros((size, size))
    for k in range(size):
        linear[k, k] = -joins[k + 1] - 1
        if k:
            linear[k, k - 1] = joins[k]
        if k + 1 < size:
            linear[k, k + 1] = 1
    return -1 / float(np.linalg.eigvals(linear).real.max())


def relaxation_time(placement: str, load: float, tasks: int, slots: int, ratio: float) -> float:
    """About how long queues take to forget their past, in mean task times; `slots` in all.

    The longer of two: that of single queues, and that of the work in the whole cluster, which comes
    in jobs: a Brownian motion that is reflected at no work, with drift a and variance s per unit of
    time, so that it is 2 s / a^2 (Asmussen). For tasks of infinite variance there is none; the
    value is that for exponential ones.
    """
    pooled = pooled_relaxation_time(load, slots, tasks + 1)
    if placement == "central":
        return pooled
    compared = 1.0 if placement in ("random", "round_robin") else ratio
    return max(pooled, queue_relaxation_time(load, compared))
