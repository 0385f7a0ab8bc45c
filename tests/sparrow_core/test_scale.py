"""What recorded stages cost at other scales and on other machines."""

from __future__ import annotations

import pytest

from minishark_lab.harness.rows import Point
from minishark_lab.sparrow.scale_model import (
    Line,
    Machines,
    Recording,
    Recordings,
    ScaledQuery,
    ScaledStage,
    ScaleModel,
    StageRead,
    shipped_recordings,
)
from minishark_lab.sparrow.scale_out import ScaleOut, machines_worth, predict, scale_out

FAST = Machines(nodes=1, slots=4, gbit_s=1e9, rtt_ms=0.0, request_ms=0.0)


def recording(scale: float, partitions: int) -> Recording:
    """A scan of 1 ms and 10 ms per scale factor in all, shuffled to a sum, gathered by a task."""
    scan = ScaledStage(
        task_ms=(1.0 + 10.0 * scale / partitions,) * partitions,
        rows=int(1000 * scale),
        bytes=int(8_000_000 * scale),
        reads=(StageRead(mode="own", rows=int(1_000_000 * scale)),),
        after=(),
    )
    total = ScaledStage(
        task_ms=(1.0 + 4.0 * scale / partitions,) * partitions,
        rows=10,
        bytes=100 * partitions,
        reads=(StageRead(mode="bucket", stage=0),),
        after=(0,),
    )
    last = ScaledStage(
        task_ms=(2.0,), rows=10, bytes=100, reads=(StageRead(mode="all", stage=1),), after=(1,)
    )
    query = ScaledQuery(name="q1", stages=(scan, total, last))
    return Recording(scale=scale, partitions=partitions, queries=(query,))


def model(front_end_ms: float = 0.0) -> ScaleModel:
    """The model of that query."""
    found = tuple(recording(scale, 4) for scale in (1.0, 5.0))
    return ScaleModel(Recordings(about="", front_end_ms=front_end_ms, recordings=found))


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (((1.0, 3.0), (2.0, 5.0)), Line(1.0, 2.0)),
        (((1.0, 1.0), (2.0, 5.0)), Line(0.0, 2.5)),  # it would begin below zero
        (((1.0, 5.0), (2.0, 3.0)), Line(3.0, 0.0)),  # it would fall
    ],
)
def test_lines_do_not_predict_less_than_nothing(
    points: tuple[tuple[float, float], tuple[float, float]], expected: Line
) -> None:
    """Neither at no data, nor at much."""
    assert expected == Line.through(points)


def test_plans_are_those_of_the_next_smaller_number_of_tasks() -> None:
    """Or of the smallest that was recorded."""
    found = tuple(recording(scale, count) for count in (8, 2) for scale in (1.0, 5.0))
    models = ScaleModel(Recordings(about="", front_end_ms=0.0, recordings=found))
    recorded = [models.queries(tasks)[0].stages[0].partitions for tasks in (1, 2, 7, 8, 1000)]
    assert [2, 2, 2, 8, 8] == recorded


@pytest.mark.parametrize(("scale", "slots"), [(1.0, 4), (100.0, 4), (100.0, 64), (1e4, 8000)])
def test_work_is_divided_and_fixed_parts_are_not(scale: float, slots: int) -> None:
    """As the stages were made."""
    (query,) = model().queries(4)
    scan, total, last = query.stages
    assert pytest.approx(1.0 + 10.0 * scale / slots) == scan.cpu_ms(scale, slots)
    assert pytest.approx(1.0 + 4.0 * scale / slots) == total.cpu_ms(scale, slots)
    assert pytest.approx(2.0) == last.cpu_ms(scale, slots)
    assert pytest.approx(8e6 * scale, rel=1e-4) == scan.out_bytes(scale, slots)
    assert pytest.approx(100 * slots) == total.out_bytes(scale, slots)
    assert [slots, slots, 1] == [each.tasks(slots) for each in query.stages]


def test_a_broadcast_is_read_by_every_task() -> None:
    """What each task does with all of an input does not shrink with more tasks."""
    small, large = (
        ScaledQuery(
            name="q",
            stages=(
                ScaledStage(task_ms=(1.0,), rows=int(900 * scale), bytes=1, reads=(), after=()),
                ScaledStage(
                    task_ms=(10.0 * scale,) * 4,
                    rows=1,
                    bytes=1,
                    reads=(
                        StageRead(mode="all", stage=0),
                        StageRead(mode="own", rows=int(400 * scale)),
                    ),
                    after=(0,),
                ),
            ),
        )
        for scale in (1.0, 2.0)
    )
    found = ScaleModel(
        Recordings(
            about="",
            front_end_ms=0.0,
            recordings=(
                Recording(scale=1.0, partitions=4, queries=(small,)),
                Recording(scale=2.0, partitions=4, queries=(large,)),
            ),
        )
    )
    (query,) = found.queries(4)
    # 900 rows of the broadcast and 100 own: nine tenths of the time stay.
    assert pytest.approx(10.0) == query.stages[1].cpu_ms(1.0, 4)
    assert pytest.approx(9.0 + 0.1) == query.stages[1].cpu_ms(1.0, 40)


def test_what_does_not_read_more_does_not_take_longer() -> None:
    """A difference between its two recordings is noise."""
    queries = [
        ScaledQuery(
            name="q",
            stages=(
                ScaledStage(
                    task_ms=(took_ms,),
                    rows=1,
                    bytes=1,
                    reads=(StageRead(mode="all", rows=25),),
                    after=(),
                ),
            ),
        )
        for took_ms in (1.0, 3.0)
    ]
    recordings = tuple(
        Recording(scale=scale, partitions=4, queries=(query,))
        for scale, query in zip((1.0, 5.0), queries, strict=True)
    )
    found = ScaleModel(Recordings(about="", front_end_ms=0.0, recordings=recordings))
    assert 1.0 == found.queries(4)[0].stages[0].cpu_ms(1e4, 4)


def test_small_data_is_worth_few_tasks_and_large_data_many() -> None:
    """As many as there are slots, at most."""
    machines = Machines(nodes=100, slots=8, gbit_s=10.0, rtt_ms=0.2)
    small, large = (model(0.2).best_tasks(scale, machines) for scale in (0.1, 1e6))
    assert small < 20
    assert 800 == large


def test_fetching_takes_the_links_time_and_round_trips() -> None:
    """A node gets its part of a shuffle from the others, one file of each task after another."""
    (query,) = model().queries(4)
    total, last = query.stages[1:]
    machines = Machines(nodes=2, slots=4, gbit_s=0.8, rtt_ms=1.0, request_ms=0.5)
    # 8 MB to eight tasks: half of each MB comes from the other node, four tasks share 100 MB/s.
    shuffled = 1000 * 0.5 * 1e6 * 4 / 1e8 + 0.5 * 8 * 1.5
    assert pytest.approx(shuffled, rel=1e-4) == query.fetch_ms(total, 1.0, machines, 8)
    gathered = 1000 * 0.5 * 800 / 1e8 + 0.5 * 8 * 1.5
    assert pytest.approx(gathered) == query.fetch_ms(last, 1.0, machines, 8)
    assert 0 == query.fetch_ms(query.stages[0], 1.0, machines, 8)
    alone = Machines(nodes=1, slots=8, gbit_s=0.8, rtt_ms=1.0)
    assert 0 == query.fetch_ms(total, 1.0, alone, 8)


def test_a_prediction_adds_up_the_stages_that_wait_for_each_other() -> None:
    """With the front end's time for each task, and messages."""
    times = predict(model(), 10.0, FAST, 1, tasks=4)
    assert pytest.approx(0.001 * (26 + 11 + 2), rel=0.05) == times["q1"]
    slower = predict(model(1.0), 10.0, FAST, 1, tasks=4)
    assert pytest.approx(times["q1"] + 0.009, rel=0.05) == slower["q1"]


def test_more_bandwidth_never_hurts() -> None:
    """With the shipped recordings; and for much data, more machines help."""
    parameters = ScaleOut(scale_factors=(1000.0,), nodes=(4, 16), slots=4, gbit_s=(1.0, 100.0))
    rows = scale_out(parameters, 1, lambda _: None)
    times = {(row.series, row.x): row.y for row in rows if isinstance(row, Point)}
    assert times["100 Gbit/s", 4] > 2 * times["100 Gbit/s", 16]
    assert all(times["1 Gbit/s", n] >= 0.99 * times["100 Gbit/s", n] for n in (4, 16))
    assert 22 == len(shipped_recordings().recordings[0].queries)


def test_machines_are_worth_it_up_to_almost_the_best_time() -> None:
    """More would save little, or take longer."""
    times = {1: 100.0, 2: 60.0, 4: 40.0, 8: 33.0, 16: 30.0, 32: 45.0}
    rows = [Point(panel="SF 1", series="1 Gbit/s", x=x, y=y) for x, y in times.items()]
    assert 8 == machines_worth(1.0, 1.0).here(rows)
