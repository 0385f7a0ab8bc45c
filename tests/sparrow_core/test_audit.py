"""The audit log, written by a tap on the simulator, and what is derived from it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from machine_kit.addresses import Address
from machine_kit.machine import Envelope
from minishark_lab.simulator.cluster import SimulatedCluster, payload_of
from minishark_lab.simulator.world import World
from sparrow_core.observe.audit import EVENTS, Audit, AuditEvent, AuditFile, read_events
from sparrow_core.observe.report import Quantiles, quantiles, report, why_here
from sparrow_core.protocol.ids import JobId, NodeName
from sparrow_core.protocol.messages import CancelReservations, PingJob, Reserve, StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec


def simulated(
    tasks: int, *preferred: str, jobs: int = 1, dies_at_s: float | None = None
) -> list[AuditEvent]:
    """The log of some jobs on three nodes of two slots; perhaps one of two schedulers dies."""
    cluster = SimulatedCluster(World(7), nodes=3, slots=2, schedulers=1 if dies_at_s is None else 2)
    if dies_at_s is not None:  # jobs take turns, beginning with the second
        cluster.world.call(dies_at_s, lambda: cluster.world.kill("s1"))
    events: list[AuditEvent] = []
    cluster.world.taps.append(Audit(events.append))
    cluster.world.run(2.0)
    specs = tuple(
        TaskSpec(number, payload_of(0.5), tuple(map(NodeName, preferred)))
        for number in range(tasks)
    )
    for number in range(jobs):
        start = StartJob(
            job_id=JobId(f"job{number}"),
            user=f"user{number}",
            tasks=specs,
            options=JobOptions(),
        )
        cluster.world.post(cluster.client, start)
    cluster.world.run(60.0, done=lambda: len(cluster.recorder.ended) == jobs)
    cluster.world.run(cluster.world.now + 2.0)
    return events


def test_every_event_has_a_meaning_and_happens() -> None:
    """The log has the events that are documented, and no other."""
    seen = {event.event for event in (*simulated(10), *simulated(6, dies_at_s=2.3))}
    assert set() == seen - EVENTS.keys()
    assert {"scheduler_get_task_no_task", "node_monitor_get_task_no_task"} >= EVENTS.keys() - seen


def test_adopted_tasks_are_told_of() -> None:
    """The scheduler died while they ran: each ran once, and why there, is still to be seen."""
    events = simulated(6, dies_at_s=2.3)
    assert (6, 0) == ((found := report(events)).run_ms.count, found.lost)
    lines = why_here(events, "job0", 0)
    assert any("has it already: scheduler adopts it" in line for line in lines), lines


def test_the_report_adds_up() -> None:
    """Ten tasks are ten runs on six slots; twenty reservations, what was useless is told."""
    derived = report(simulated(10, jobs=2))
    assert (2, {}, 0) == (derived.jobs, derived.failed, derived.lost)
    assert 20 == derived.run_ms.count == derived.queue_ms.count
    assert (40, 20) == (derived.reservations, derived.useless)
    assert 0 <= derived.removed <= 1
    assert 0.5 < derived.utilization <= 1
    assert {"user0", "user1"} == derived.shares.keys()
    assert 1 == pytest.approx(sum(derived.shares.values()))
    assert derived.response_ms.median > derived.ideal_ms.median > 0


def test_jobs_may_be_chosen_by_their_arrival() -> None:
    """Outside of the window nothing is counted."""
    events = simulated(4)
    assert 1 == report(events, 0.0, 10.0).jobs
    nothing = report(events, 10.0)
    assert (0, Quantiles(0, 0.0, 0.0, 0.0, 0.0), {}) == (
        nothing.jobs, nothing.response_ms, nothing.shares,
    )  # fmt: skip


def test_the_story_of_a_task_says_why_there() -> None:
    """The constraint, who was probed, who asked when, who was given it, in order of time."""
    lines = why_here(simulated(2, "n1"), "job0", 1)
    story = "\n".join(lines)
    for words in ("prefers n1", "probes n1", "n1 has a free slot", "gives the task to n1", "done"):
        assert words in story
    assert "n0" not in story
    times = [float(line.split()[0]) for line in lines]
    assert all(before <= after for before, after in pairwise(times))
    assert () == why_here(simulated(2), "other", 1)


def test_resubmissions_belong_to_the_story() -> None:
    """What happened under `job~1`, after a failover, is the job's too."""
    events = [
        AuditEvent(at_s=1.0, by="s0", event="arrived", job="j", count=1, requires=("gpu",)),
        AuditEvent(at_s=1.1, by="s1", event="arrived", job="j~1", count=1),
        AuditEvent(at_s=1.2, by="s1", event="scheduler_job_ended", job="j~1", text="no more"),
        AuditEvent(at_s=1.3, by="s1", event="scheduler_job_ended", job="j~12x", text="another"),
    ]
    story = why_here(events, "j", 0)
    assert 3 == len(story)
    assert "must have gpu" in story[0]
    assert "gives the job up: no more" in story[2]
    assert {"no more": 1} == report(events).failed


def test_a_log_survives_being_cut(tmp_path: Path) -> None:
    """Files are read together in order of time, without the line that a crash cut short."""
    for number, now in ((0, 20.0), (1, 10.0)):
        log = AuditFile(tmp_path / f"{number}.jsonl")
        msg = Reserve(JobId("j"), Address("s#s"), number)
        sent = [Envelope(Address("n#x"), CancelReservations(JobId("j"), 1))]
        log(Address("n#m"), msg, sent, now)
        log(Address("n#m"), PingJob(JobId("j"), Address("c#c"), ()), [], now + 1)
        log.close()
    with (tmp_path / "1.jsonl").open("ab") as file:
        file.write(b'{"at_s":')
    events = read_events(sorted(tmp_path.iterdir()))
    assert [1, 0] == [event.count for event in events if event.event == "reservation_enqueued"]
    assert 4 == len(events)
    line = (tmp_path / "0.jsonl").read_bytes().splitlines()[0]
    assert {"at_s", "by", "event", "job"} == msgspec.json.decode(line).keys()


def test_quantiles_are_values_that_occurred() -> None:
    """Of a hundred values the fifth and the ninety-fifth, and the middle."""
    assert Quantiles(100, 5, 50, 95, 99) == quantiles(range(99, -1, -1))
    assert Quantiles(1, 7, 7, 7, 7) == quantiles([7])
