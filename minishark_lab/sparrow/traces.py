"""Traces of clusters: jobs with their arrival and the durations of their tasks, from files.

Three public shapes are read, plain or compressed by gzip:

- `hawk`: of Hawk's and Eagle's simulators. A line per job: submission time, number of tasks, the
  mean of their durations (which is also what is expected of them), and each duration, in seconds.
- `google`: the task events of Google's traces of 2011. A line per event, in columns: a task runs
  from its last SCHEDULE (1) to its FINISH (4); its job comes with its first SUBMIT (0).
- `alibaba`: the batch tasks of Alibaba's traces of 2018. A line per group of equal tasks.

Other files of the latter two kinds have other columns: `columns` says which, by number from 0.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import IO, Final

from msgspec import Struct

from minishark_lab.harness.experiment import ExperimentError

_MICROSECOND_S: Final = 1e-6
_SUBMIT, _SCHEDULE, _FINISH = 0, 1, 4


class TracedJob(Struct, frozen=True):
    """A job of a trace."""

    at_s: float  # of its submission
    expected_s: float  # mean duration of a task, as an estimate made beforehand
    durations_s: tuple[float, ...]

    @property
    def work_s(self) -> float:
        """The time that its tasks take together."""
        return sum(self.durations_s)


@dataclass(frozen=True)
class _Format:
    """The columns of a kind of file, by what they hold; and its unit of time."""

    columns: Mapping[str, int]
    unit_s: float = 1.0


FORMATS: Final[dict[str, _Format]] = {
    "hawk": _Format({}),
    "google": _Format({"time": 0, "job": 2, "task": 3, "event": 5}, _MICROSECOND_S),
    "alibaba": _Format({"tasks": 1, "job": 2, "start": 5, "end": 6}),
}


def read_trace(
    file: Path, kind: str = "hawk", columns: Mapping[str, int] | None = None, *, jobs_max: int = 0
) -> list[TracedJob]:
    """The jobs of a trace, in order of submission, the first at 0; at most `jobs_max` if not 0.

    Tasks without an end, or that took no time, are left out, and jobs without a task.

    Raises:
        ExperimentError: The file can't be read, or a line is not of that kind; says which.
    """
    if kind not in FORMATS:
        raise ExperimentError(f"format {kind!r} is none of {', '.join(FORMATS)}")
    known = FORMATS[kind]
    unknown = set(columns or ()) - set(known.columns)
    if unknown:
        wanted = f"has {', '.join(known.columns)}" if known.columns else "has none to choose"
        raise ExperimentError(f"columns: {', '.join(sorted(unknown))}: {kind} {wanted}")
    chosen = {**known.columns, **(columns or {})}
    try:
        with _open(file) as lines:
            read = {"hawk": _hawk, "google": _google, "alibaba": _alibaba}[kind]
            jobs = read(_Lines(file, lines), chosen, known.unit_s)
            found = sorted(jobs, key=lambda job: job.at_s)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ExperimentError(f"cannot read the trace {file}: {error}") from error
    if not found:
        raise ExperimentError(f"the trace {file} has no job with a task that ended")
    first_s = found[0].at_s
    shifted = (TracedJob(job.at_s - first_s, job.expected_s, job.durations_s) for job in found)
    return [job for number, job in enumerate(shifted) if not jobs_max or number < jobs_max]


def _open(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8")
    return file.open(encoding="utf-8")


class _Lines:
    """Lines of a file that know their number, for errors."""

    def __init__(self, file: Path, lines: Iterable[str]) -> None:
        self._file = file
        self._lines = lines
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        for line in self._lines:
            self.number += 1
            if line.strip():
                yield line

    def wrong(self, error: Exception | str) -> ExperimentError:
        return ExperimentError(f"line {self.number} of {self._file} is not of that format: {error}")


def _hawk(lines: _Lines, columns: Mapping[str, int], unit_s: float) -> Iterator[TracedJob]:
    del columns
    for line in lines:
        try:
            at_s, tasks, expected_s, *durations = map(float, line.split())
        except ValueError as error:
            raise lines.wrong(error) from error
        if len(durations) != tasks:
            raise lines.wrong(f"{tasks:g} tasks, but {len(durations)} durations")
        ran = tuple(unit_s * each for each in durations if each > 0)
        if ran:
            yield TracedJob(unit_s * at_s, unit_s * expected_s, ran)


def _google(lines: _Lines, columns: Mapping[str, int], unit_s: float) -> Iterator[TracedJob]:
    submitted: dict[str, float] = {}
    scheduled: dict[tuple[str, str], float] = {}
    ran: dict[str, list[float]] = {}
    for row in csv.reader(iter(lines)):
        try:
            at_s = unit_s * float(row[columns["time"]])
            event = int(row[columns["event"]])
            job, task = row[columns["job"]], row[columns["task"]]
        except (ValueError, IndexError) as error:
            raise lines.wrong(error) from error
        if event == _SUBMIT:
            submitted[job] = min(at_s, submitted.get(job, at_s))
        elif event == _SCHEDULE:
            scheduled[job, task] = at_s
        elif event == _FINISH and (job, task) in scheduled:
            ran.setdefault(job, []).append(at_s - scheduled.pop((job, task)))
    for job, durations in ran.items():
        yield from _mean_expected(submitted.get(job), durations)


def _alibaba(lines: _Lines, columns: Mapping[str, int], unit_s: float) -> Iterator[TracedJob]:
    submitted: dict[str, float] = {}
    ran: dict[str, list[float]] = {}
    for row in csv.reader(iter(lines)):
        try:
            job = row[columns["job"]]
            if not row[columns["start"]] or not row[columns["end"]]:
                continue
            start_s, end_s = (unit_s * float(row[columns[each]]) for each in ("start", "end"))
            count = int(float(row[columns["tasks"]] or 1))
        except (ValueError, IndexError) as error:
            raise lines.wrong(error) from error
        submitted[job] = min(start_s, submitted.get(job, start_s))
        ran.setdefault(job, []).extend([end_s - start_s] * count)
    for job, durations in ran.items():
        yield from _mean_expected(submitted[job], durations)


def _mean_expected(at_s: float | None, durations: Sequence[float]) -> Iterator[TracedJob]:
    """A job for which the mean of its tasks is what was expected, as Hawk takes it."""
    positive = tuple(each for each in durations if each > 0)
    if at_s is not None and positive:
        yield TracedJob(at_s, sum(positive) / len(positive), positive)


def write_hawk(file: Path, jobs: Iterable[TracedJob]) -> None:
    """Write jobs in Hawk's format."""
    with file.open("w", encoding="utf-8") as out:
        for job in jobs:
            durations = " ".join(f"{each:.6g}" for each in job.durations_s)
            out.write(f"{job.at_s:.6f} {len(job.durations_s)} {job.expected_s:.6g} {durations}\n")


# --- a trace of the shape of public ones ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Class:
    """Jobs of one kind: medians and spreads (standard deviations of logarithms)."""

    tasks: float
    tasks_spread: float
    task_s: float
    task_spread: float


# Of the shape of Google's trace as Hawk describes it: a tenth of the jobs are long, have more than
# a quarter of the tasks, and five sixths of the task-seconds.
_SHORT = _Class(tasks=12, tasks_spread=1.0, task_s=100.0, task_spread=0.7)
_LONG = _Class(tasks=40, tasks_spread=1.0, task_s=1500.0, task_spread=0.5)
_LONG_SHARE = 0.1
_WITHIN = 0.4  # spread of a job's durations around their mean


def hawk_shaped(jobs: int, seed: int, interval_s: float = 1.0) -> list[TracedJob]:
    """A synthetic trace, with Poisson arrivals; its jobs are as in no real cluster's log."""
    rng = Random(f"trace {seed}")
    at_s, made = 0.0, []
    for _ in range(jobs):
        kind = _LONG if rng.random() < _LONG_SHARE else _SHORT
        count = max(1, round(rng.lognormvariate(math.log(kind.tasks), kind.tasks_spread)))
        mean_s = rng.lognormvariate(math.log(kind.task_s), kind.task_spread)
        durations = tuple(
            mean_s * rng.lognormvariate(-(_WITHIN**2) / 2, _WITHIN) for _ in range(count)
        )
        made.append(TracedJob(at_s, sum(durations) / count, durations))
        at_s += rng.expovariate(1 / interval_s)
    return made
