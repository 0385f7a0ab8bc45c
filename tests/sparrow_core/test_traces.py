from __future__ import annotations

import csv
import gzip
import statistics
from pathlib import Path

import pytest

from minishark_lab.harness.reports import write_report
from minishark_lab.harness.rows import Response
from minishark_lab.harness.summary import summary
from minishark_lab.registry import SPARROW as EXPERIMENTS
from minishark_lab.sparrow.replay import BYTES, HEARTBEATS, LONG, MESSAGES, SHORT, Replay, replayed
from minishark_lab.sparrow.traces import TracedJob, hawk_shaped, read_trace, write_hawk
from sparrow_core.protocol.errors import SparrowError

# Two jobs, the second with a task that was evicted (2) and ran again, and one that never ended.
GOOGLE = """\
600000000,,11,0,,0,u,2,9,0.1,0.1,0,0
600500000,,11,0,5,1,u,2,9,0.1,0.1,0,0
601000000,,12,0,,0,u,2,9,0.1,0.1,0,0
601000000,,12,1,,0,u,2,9,0.1,0.1,0,0
602000000,,12,0,6,1,u,2,9,0.1,0.1,0,0
603000000,,12,0,6,2,u,2,9,0.1,0.1,0,0
604000000,,12,0,7,1,u,2,9,0.1,0.1,0,0
610500000,,11,0,5,4,u,2,9,0.1,0.1,0,0
624000000,,12,0,7,4,u,2,9,0.1,0.1,0,0
"""
ALIBABA = """\
M1,3,j_1,1,Terminated,100,130,100,0.5
R2_1,1,j_1,1,Terminated,130,140,100,0.5
M1,2,j_2,1,Failed,90,,100,0.5
M1,2,j_3,1,Terminated,110,115,100,0.5
"""


def nothing(_: float) -> None:
    """Nobody looks at the progress."""


def test_hawks_format(tmp_path: Path) -> None:
    """A line per job; the first is at 0, and empty tasks are left out."""
    file = tmp_path / "trace.tr"
    file.write_text("7.5 2 10 12 8\n5 1 3 3\n\n9 2 1 0 2\n")
    expected = [
        TracedJob(0.0, 3.0, (3.0,)), TracedJob(2.5, 10.0, (12.0, 8.0)), TracedJob(4.0, 1.0, (2.0,)),
    ]  # fmt: skip
    assert expected == read_trace(file)
    assert expected[:2] == read_trace(file, jobs_max=2)


def test_googles_columns(tmp_path: Path) -> None:
    """A task runs from its last start; by gzip, and with columns in other places."""
    expected = [TracedJob(0.0, 10.0, (10.0,)), TracedJob(1.0, 20.0, (20.0,))]
    file = tmp_path / "part.csv.gz"
    file.write_bytes(gzip.compress(GOOGLE.encode()))
    assert expected == read_trace(file, "google")
    moved = tmp_path / "moved.csv"
    rows = [line.split(",") for line in GOOGLE.splitlines()]
    moved.write_text("".join(f"{r[2]},{r[3]},{r[5]},{r[0]}\n" for r in rows))
    columns = {"job": 0, "task": 1, "event": 2, "time": 3}
    assert expected == read_trace(moved, "google", columns)


def test_alibabas_columns(tmp_path: Path) -> None:
    """Groups of equal tasks; those without an end are left out."""
    file = tmp_path / "batch_task.csv"
    file.write_text(ALIBABA)
    assert [
        TracedJob(0.0, 25.0, (30.0, 30.0, 30.0, 10.0)), TracedJob(10.0, 5.0, (5.0, 5.0)),
    ] == read_trace(file, "alibaba")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "columns", "message"),
    [
        ("1 2 3 4\n", "hawk", {}, "line 1 .* 2 tasks, but 1 durations"),
        ("1 1 1 1\nx\n", "hawk", {}, "line 2 .* not of that format"),
        ("a,b\n", "google", {}, "line 1"),
        ("\n", "hawk", {}, "no job"),
        (ALIBABA, "alibaba", {"tasks": 77}, "line 1"),
        (ALIBABA, "alibaba", {"cpu": 7}, "alibaba has tasks, job, start, end"),
        ("", "hawk", {"job": 1}, "hawk has none to choose"),
        ("", "yahoo", {}, "none of hawk, google, alibaba"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(
    text: str, kind: str, columns: dict[str, int], message: str, tmp_path: Path
) -> None:
    """The line, and what it should be."""
    file = tmp_path / "trace"
    file.write_text(text)
    with pytest.raises(SparrowError, match=message):
        read_trace(file, kind, columns)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(SparrowError, match=r"cannot read the trace .*nothing"):
        read_trace(tmp_path / "nothing")


def test_the_synthetic_trace_has_the_shape_of_googles(tmp_path: Path) -> None:
    """A tenth of the jobs is long, with a quarter of the tasks and five sixths of the time.

    Written to a file and read again it is the same.
    """
    jobs = hawk_shaped(4000, 1)
    cutoff_s = 10 * statistics.geometric_mean(job.expected_s for job in jobs)
    long = [job for job in jobs if job.expected_s > cutoff_s / 2]
    assert 0.1 == pytest.approx(len(long) / len(jobs), abs=0.03)
    tasks = [sum(len(job.durations_s) for job in each) for each in (long, jobs)]
    assert 0.28 == pytest.approx(tasks[0] / tasks[1], abs=0.06)
    work = [sum(job.work_s for job in each) for each in (long, jobs)]
    assert 0.84 == pytest.approx(work[0] / work[1], abs=0.06)
    write_hawk(tmp_path / "trace", jobs[:50])
    again = read_trace(tmp_path / "trace")
    for job, read in zip(jobs, again, strict=False):
        assert job.durations_s == pytest.approx(read.durations_s, rel=1e-4)
        assert (job.at_s, job.expected_s) == pytest.approx((read.at_s, read.expected_s), rel=1e-4)


@pytest.mark.slow
def test_a_trace_is_replayed_by_class(tmp_path: Path) -> None:
    """Short and long jobs apart, under each placement and discipline; Eagle's help short ones."""
    write_hawk(tmp_path / "trace", hawk_shaped(500, 3))
    parameters = Replay(
        trace=str(tmp_path / "trace"), nodes=300, schedulers=1, loads=(0.9,),
        estimates=("exact",), simulator="express",
    )  # fmt: skip
    rows = replayed(parameters, 1, nothing)
    found = {
        (row.panel, row.series): row.p50_ms for row in rows if isinstance(row, Response)
    }  # fmt: skip
    assert {SHORT, LONG, MESSAGES, HEARTBEATS, BYTES} == {row.panel for row in rows}
    assert 6 == len({series for _, series in found})
    sparrow = found[SHORT, "batch + late binding, fifo"]
    assert found[SHORT, "Eagle's placement, srpt"] < 0.4 * sparrow
    assert found[SHORT, "omniscient, srpt"] < found[SHORT, "omniscient, fifo"] < sparrow


@pytest.mark.slow
def test_the_report_of_a_replay_tells_responses_and_messages(tmp_path: Path) -> None:
    """Rows of two kinds in one file: each value is in the column of its name."""
    experiment = EXPERIMENTS["replay"]
    rows = experiment.run(experiment.quick, 1, nothing)
    file, *_ = write_report(experiment, experiment.quick, 1, [rows], tmp_path)
    with file.open(encoding="utf-8") as lines:
        found = list(csv.DictReader(lines))
    messages = [row for row in found if row["panel"] == MESSAGES]
    assert all(1 <= float(row["y"]) < 8 and not row["p50_ms"] for row in messages)
    others = [row for row in found if row["panel"] in (HEARTBEATS, BYTES)]
    assert all(float(row["y"]) >= 0 and not row["p50_ms"] for row in others)
    rest = [row for row in found if row not in messages and row not in others]
    assert all(float(row["p50_ms"]) > 1 and not row["y"] for row in rest)
    tables = {table.title.split(", ")[0]: table for table in summary(experiment, [rows])}
    assert tables[MESSAGES].title == MESSAGES
    assert "Response time (s)" in tables[SHORT].title
    first = next(row for row in found if row["panel"] == SHORT)
    assert tables[SHORT].lines[0][1].startswith(f"{float(first['p50_ms']) / 1000:,.1f}")


def test_a_trace_keeps_its_own_times_if_no_load_is_wanted() -> None:
    """Then x is the load that it has."""
    parameters = Replay(
        jobs=150, nodes=2000, loads=(), placements=("central",), simulator="express"
    )
    (x,) = {row.x for row in replayed(parameters, 1, nothing)}
    assert x > 0
    parameters = Replay(jobs=150, nodes=2, loads=(), placements=("central",), simulator="express")
    rows = replayed(parameters, 1, nothing)
    assert all(row.x > 1 and not row.settled for row in rows), "queues only grow"
