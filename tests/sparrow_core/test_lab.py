from __future__ import annotations

import contextlib
import csv
import json
import math
import statistics
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from minishark_lab.harness import charts, findings
from minishark_lab.harness.experiment import AnyExperiment, Chart
from minishark_lab.harness.findings import Finding, available, value
from minishark_lab.harness.lengths import has_trend, run_length
from minishark_lab.harness.parameters import checked
from minishark_lab.harness.reports import write_report
from minishark_lab.harness.rows import (
    Point,
    Response,
    across,
    distribution,
    mean_and_interval,
    response,
)
from minishark_lab.harness.summary import summary
from minishark_lab.models.analysis import queue_relaxation_time, relaxation_time
from minishark_lab.models.central import shortest_first_response_times_s
from minishark_lab.models.express import ExpressCluster
from minishark_lab.registry import SPARROW as EXPERIMENTS
from minishark_lab.registry import run_experiment
from minishark_lab.simulator.cluster import duration_of, payload_of
from minishark_lab.simulator.workload import Arrival, central_response_times_s
from minishark_lab.sparrow import beyond, on_paper, past, placements
from minishark_lab.sparrow.emulation import EmulatedCluster, run_queries
from minishark_lab.sparrow.on_paper import IdleTime, ZeroWait, agreement
from minishark_lab.sparrow.queries import Query, QueryStage, simulate_queries
from minishark_lab.sparrow.recorded import TpchPlan, TpchUsers, shipped_recording
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.ids import JobId
from sparrow_core.protocol.messages import StartJob
from sparrow_core.protocol.types import JobOptions, TaskSpec
from sparrow_core.runtime.specs import JobSpec

REPEATED = ("zero-wait", "probe-ratio", "isolation", "soft-constraints", "past-sparrow")


def nothing(_: float) -> None:
    """Nobody looks at the progress."""


def quick_rows(experiment: AnyExperiment, seed: int = 1) -> list[Response | Point]:
    """What the quick form finds."""
    return list(experiment.run(experiment.quick, seed, nothing))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_writes_its_report(name: str, tmp_path: Path) -> None:
    """The quick form runs to its end, tells how far it is, and writes rows, parameters, a plot."""
    experiment = EXPERIMENTS[name]
    shares: list[float] = []
    rows = experiment.run(experiment.quick, 1, shares.append)
    files = write_report(experiment, experiment.quick, 1, [rows], tmp_path / "out")
    assert [f"{name}.csv", f"{name}.json", f"{name}.png"] == [file.name for file in files]
    with files[0].open(encoding="utf-8") as lines:
        assert len(rows) == len(list(csv.DictReader(lines)))
    described = json.loads(files[1].read_text())
    assert (name, 1, len(rows)) == (described["name"], described["seed"], described["rows"])
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert 1.0 == pytest.approx(sum(shares))


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", REPEATED)
def test_a_seed_gives_the_same_rows(name: str) -> None:
    """Same seed, same rows; another seed, others."""
    first, again, other = (str(quick_rows(EXPERIMENTS[name], seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_a_plot_is_the_same_for_the_same_rows(tmp_path: Path) -> None:
    """So a plot in version control changes only with what it shows."""
    experiment = EXPERIMENTS["isolation"]
    rows = quick_rows(experiment)
    plots = [
        write_report(
            experiment, experiment.quick, 1, [rows], tmp_path / str(number), ("svg", "pdf")
        )[2:]
        for number in range(2)
    ]
    for first, again in zip(*plots, strict=True):
        assert first.read_bytes() == again.read_bytes()


def test_unwritable_folders_and_missing_matplotlib_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are errors that say what to do."""
    experiment = EXPERIMENTS["failover"]
    rows = quick_rows(experiment)
    (tmp_path / "file").write_text("")
    with pytest.raises(SparrowError, match="cannot write"):
        write_report(experiment, experiment.quick, 1, [rows], tmp_path / "file")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SparrowError, match=r"minishark\[lab\]"):
        charts.draw(experiment.chart, "", rows)


# --- analysis against simulation -----------------------------------------------------------------


@pytest.mark.slow
def test_the_probability_of_no_wait_is_what_is_simulated() -> None:
    """Within the confidence interval, for jobs of ten tasks on nodes of one slot."""
    parameters = ZeroWait(shapes=((10, 1),), loads=(0.2,), nodes=4000, jobs=2500, warm_up=4.0)
    rows = on_paper.zero_wait(parameters, 3, nothing)
    assert 1.0 == agreement(rows, tolerance=0.02)


@pytest.mark.slow
def test_mean_responses_are_what_is_simulated() -> None:
    """M/M/1, the shorter of two queues, and the less work of two: within the interval."""
    parameters = on_paper.MeanResponse(
        loads=(0.5,), nodes=200, jobs=2000, random_nodes=50, random_jobs=2000
    )
    assert 1.0 == agreement(on_paper.mean_responses(parameters, 1, nothing), tolerance=0.02)


def test_agreement_notices_a_wrong_formula() -> None:
    """A curve outside all intervals does not agree."""
    rows = [Point(panel="", series="a", x=0.0, y=0.0), Point(panel="", series="a", x=1.0, y=1.0)]
    inside = Point(panel="", series="a, simulated", x=0.5, y=0.6, low=0.4, high=0.7)
    outside = Point(panel="", series="a, simulated", x=0.5, y=0.8, low=0.7, high=0.9)
    assert 0.5 == agreement([*rows, inside, outside])
    assert 1.0 == agreement([*rows, inside, outside], tolerance=0.25)


@pytest.mark.slow
def test_cancellation_saves_idle_time() -> None:
    """Without it, idle time is the paper's bound to the last digit; with it, far below."""
    rows = on_paper.idle_time(IdleTime((3.0,), nodes=40, jobs=40), 1, nothing)
    bound, without, with_it = (row.y for row in rows)
    assert bound == pytest.approx(without, rel=1e-6)
    assert with_it < 0.6 * bound


# --- the papers' shapes, at a scale that takes a second ------------------------------------------


def medians(rows: list[Response]) -> dict[str, float]:
    """By series."""
    return {row.series: row.p50_ms for row in rows}


@pytest.mark.slow
def test_each_step_of_sparrow_helps_on_thousands_of_slots() -> None:
    """Sparrow, figure 3 at 90 %: random > per-task > batch > late binding, near the optimum."""
    sweep = placements.Sweep(
        slots_in_all=400,
        tasks=20,
        loads=(0.9,),
        placements=placements.FIVE,
        jobs=500,
        jobs_max=20_000,
    )
    found = medians(list(placements.sweep_responses(sweep, 1, nothing)))
    names = [placements.NAMES[each] for each in placements.FIVE]
    ordered = [found[name] for name in names]
    assert ordered == sorted(ordered, reverse=True)
    assert found["random"] > 4 * found["per-task sampling"]
    assert found["batch + late binding"] < 1.4 * found["omniscient"]


def test_large_nodes_shelter_short_jobs_from_long_ones() -> None:
    """Sparrow, figure 13: medians stay near 100 ms with 16 slots a node, also beside 100 x."""
    mixture = placements.Mixture(
        slots=(16,), factors=(100.0,), long_shares=(0.5,), jobs=1500, jobs_max=2000
    )
    (row,) = placements.short_among_long(mixture, 1, nothing)
    assert row.p50_ms < 111


def test_soft_constraints_relieve_hot_partitions() -> None:
    """Delay scheduling: waiting a little for a home beats waiting for ever, where some are hot."""
    parameters = beyond.HotPartitions(
        nodes=20,
        slots=2,
        partitions=20,
        tasks=4,
        skew=1.2,
        waits_ms=(None, 50.0),
        loads=(0.7,),
        jobs=250,
        jobs_max=320,
    )
    hard, soft = beyond.soft_constraints(parameters, 1, nothing)
    assert hard.p95_ms > 1.2 * soft.p95_ms


def test_kinds_without_a_job_have_no_row() -> None:
    """With few jobs, none may be long."""
    parameters = replace(EXPERIMENTS["sticky-srpt"].quick, short_share=1.0)
    rows = beyond.sticky_srpt(parameters, 1, nothing)
    assert {"short jobs: 10 tasks of 0.1 s"} == {row.panel for row in rows}


def test_tasks_take_longer_away_from_home() -> None:
    """By their factor; tasks without homes are the same everywhere."""
    payload = payload_of(0.5, ("n1", "n22"), 1.5)
    assert [0.5, 0.5, 0.75] == [duration_of(payload, each) for each in ("n1", "n22", "n2")]
    assert [0.5, 0.5] == [duration_of(payload), duration_of(payload_of(0.5), "n2")]


def test_runs_are_as_long_as_queues_remember() -> None:
    """Longest under random placement at high load, and never beyond the limit."""
    sweep = placements.Sweep()
    random, late, central = (
        sweep.run_length(name, 0.9, 2.0) for name in ("random", "sparrow", "central")
    )
    assert random.jobs > late.jobs > central.jobs
    assert random.warm_up > 10_000
    limited = sweep.run_length("random", 0.99, 2.0)
    assert (sweep.jobs_max, sweep.jobs_max * 2 // 3) == (limited.jobs, limited.warm_up)
    assert 380 == pytest.approx(relaxation_time("random", 0.9, 1, 10_000, 2.0), rel=0.01)


def test_queues_that_are_compared_forget_sooner() -> None:
    """Without a choice it is M/M/1; the equations of many queues come near that for d near 1."""
    of_one, near_one, of_two, of_three = (
        queue_relaxation_time(0.8, d) for d in (1.0, 1.0001, 2.0, 3.0)
    )
    assert of_one == pytest.approx(near_one, rel=0.05)
    assert of_one > 10 * of_two > 10 * of_three
    # From far away, the longest way back takes e times less after each relaxation time.
    assert 6.3 == pytest.approx(of_two, rel=0.01)


def test_a_run_settles_if_it_is_long_enough_and_has_no_trend() -> None:
    """What is too short, or rises all the time, has not."""
    rng = Random(1)
    steady = [rng.expovariate(1.0) for _ in range(2000)]
    rising = [time_s + at / 1000 for at, time_s in enumerate(steady)]
    length = run_length(100.0, jobs=1000)
    assert (300, 1300) == (length.warm_up, length.jobs)
    assert [True, False] == [length.has_settled(each) for each in (steady, rising)]
    assert not run_length(100.0, jobs=1000, jobs_max=400).has_settled(steady)


def test_steady_runs_seldom_show_a_trend() -> None:
    """Of 500 runs without one, at most six: the test's level is one in 370."""
    rng = Random(2)
    runs = ([rng.expovariate(1.0) for _ in range(400)] for _ in range(500))
    assert sum(has_trend(each, 10.0) for each in runs) <= 6


@pytest.mark.slow
def test_what_has_not_settled_says_so() -> None:
    """In tables, findings and the plot, and in what is merged of several runs."""
    experiment = EXPERIMENTS["past-sparrow"]
    rows = quick_rows(experiment)
    assert {False} == {row.settled for row in rows}  # the quick run is far too short
    assert not any(row.settled for row in across([rows, rows]))
    tables = summary(experiment, [rows])
    assert any(table.title.startswith("Not settled") for table in tables)
    assert all(cell.endswith(" !") for line in tables[0].lines for cell in line[1:])
    finding = Finding("median", "", value("omniscient", 0.9), "{:.0f}")
    ((_, _, here),) = available([finding], [rows])
    assert here.endswith("(!)")
    legend = charts.draw(experiment.chart, "", rows).legends[0].get_title().get_text()
    assert "Hollow: not settled." in legend


def test_an_omniscient_scheduler_runs_the_shortest_job_first() -> None:
    """By what it is told of tasks' times; a task that runs is not interrupted."""

    def arrival(at_s: float, name: str, *task_s: float) -> Arrival:
        tasks = tuple(TaskSpec(number, payload_of(each)) for number, each in enumerate(task_s))
        options = JobOptions(task_s=task_s[0])
        return Arrival(at_s, StartJob(job_id=JobId(name), user="u", tasks=tasks, options=options))

    jobs = [arrival(0.0, "long", 10.0, 10.0), arrival(1.0, "short", 1.0), arrival(2.0, "next", 2.0)]
    assert [20.0, 20.0, 21.0] == central_response_times_s(jobs, 1, 0.0)
    assert [23.0, 10.0, 11.0] == shortest_first_response_times_s(jobs, 1, 0.0)


@pytest.mark.slow
def test_random_placement_settles_at_its_closed_form() -> None:
    """At 70 % load, within 4 %; a job's tasks that meet in a queue make it a little faster."""
    sweep = placements.Sweep(
        slots_in_all=2000, tasks=20, loads=(0.7,), placements=("random",), closed_form=True
    )
    simulated, formula = placements.sweep_responses(sweep, 1, nothing)
    assert isinstance(simulated, Response)
    assert isinstance(formula, Response)
    assert formula.p50_ms == pytest.approx(simulated.p50_ms, rel=0.04)


def test_jobs_that_did_not_end_are_counted() -> None:
    """Beyond capacity, low priority waits: those jobs are in no figure, and the summary says so."""
    experiment = EXPERIMENTS["isolation"]
    rows = quick_rows(experiment)
    late = [row for row in rows if isinstance(row, Response) and row.unfinished]
    assert ["low priority"] == [row.series for row in late]
    *_, told = (table for table in summary(experiment, [rows]) if "not ended" in table.title)
    assert f"{late[0].unfinished} of {late[0].jobs}" == told.lines[0][2]


def test_titles_and_notes_are_those_of_the_run() -> None:
    """A title names what was simulated, and the note below says what bars mean."""
    experiment = EXPERIMENTS["probe-ratio"]
    title = experiment.titled(replace(experiment.parameters, task_ms=20.0, slots=(4, 8)))
    assert "400 slots, 4, 8 a node" in title
    assert "20 ms" in title
    rows = [at("", "a", x, 100.0) for x in (0.5, 0.9)]
    figure = charts.draw(experiment.chart, title, rows, 3)
    (legend,) = figure.legends
    assert "medians" in legend.get_title().get_text()
    assert ["a"] == [text.get_text() for text in legend.get_texts()]


def test_the_papers_values_are_drawn_in() -> None:
    """Into the panels that they are of, where the rows allow it."""
    experiment = EXPERIMENTS["probe-ratio-10k"]
    omniscient = placements.NAMES["central"]
    rows = [
        at(panel, omniscient, 0.95, 100.0)
        for panel in ("without cancellation", "with cancellation")
    ]
    first, second = charts.draw(experiment.chart, "", rows).axes
    marks = [line for line in first.lines if line.get_label().startswith("paper")]
    assert [133.0] == [line.get_ydata()[0] for line in marks]
    assert not [line for line in second.lines if line.get_label().startswith("paper")]


def test_things_are_not_joined_by_lines() -> None:
    """Users and queries are named on the axis."""
    experiment = EXPERIMENTS["three-users"]
    rows = [at("", "a", x, 100.0) for x in (0.0, 1.0, 2.0)]
    (axes,) = charts.draw(experiment.chart, "", rows).axes
    assert ["user 0", "user 1", "user 2"] == [text.get_text() for text in axes.get_xticklabels()]
    assert "None" == axes.lines[0].get_linestyle()


BAD = (0, -1, 1.5, [], [0.0], [1.5], ["foo"], "foo", {"a": 1}, True)


@pytest.mark.slow
def test_all_panels_fit_and_simulations_look_like_their_formulas() -> None:
    """The common axis is as long as the tallest panel needs; logarithms are plain numbers."""
    rows = [
        Point(panel=panel, series=series, x=x, y=height, low=height - 1, high=height + 1)
        for panel, height in (("low", 10.0), ("high", 1000.0))
        for series in ("random", "random, simulated")
        for x in (1.0, 2.0)
    ]
    low, high = charts.draw(Chart(x="Load"), "", rows).axes
    assert low.get_ylim() == high.get_ylim()
    assert low.get_ylim()[0] == 0
    assert low.get_ylim()[1] >= 1001
    colours = {line.get_color() for line in low.get_lines() if line.get_linestyle() != "None"}
    assert 1 == len(colours)
    figure = charts.draw(Chart(x="Load", log_y=True), "", rows)
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert "1,000" in labels


@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items()])
def test_values_that_make_no_sense_are_refused_with_a_sentence(name: str) -> None:
    """ValueError that names the parameter, or values that the experiment takes."""
    kind = EXPERIMENTS[name].parameters
    values = msgspec.to_builtins(kind)
    sentences = []
    for parameter, bad in product(values, BAD):
        with contextlib.suppress(ValueError):
            checked(type(kind), {**values, parameter: bad})
            continue
        with pytest.raises(ValueError, match=": ") as refused:
            checked(type(kind), {**values, parameter: bad})
        sentences.append(str(refused.value))
    assert not [each for each in sentences if "$" in each]
    assert len(sentences) >= 4 * len(values)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("techniques", {"distributions": ["foo"]}, "'foo' is none of exponential"),
        ("techniques", {"placements": ["fastest"]}, "'fastest' is none of central"),
        ("probe-ratio", {"jobs": 0}, "jobs = 0: expected int >= 1"),
        ("probe-ratio", {"loads": [0.0]}, "expected float > 0.0"),
        ("probe-ratio", {"loads": [1.5]}, "expected float < 1.0"),
        ("probe-ratio", {"ratios": [0.5]}, "expected float >= 1.0"),
        ("isolation", {"nodes": 0}, "nodes = 0"),
        ("sticky-srpt", {"policies": ["lifo"]}, "policy 'lifo' is none of"),
        ("soft-constraints", {"replicas": 500}, "at most one on each of 100 nodes"),
        ("past-sparrow", {"placements": ["best"]}, "nor central"),
        ("past-sparrow", {"placements": ["no:Such"]}, "cannot load placement 'no:Such'"),
        ("replay", {"policies": ["no_queue"]}, "queues at executors, which is not simulated"),
    ],
)
def test_refusals_say_what_would_be_right(
    name: str, change: dict[str, object], message: str
) -> None:
    """The value, and what is wanted in its place."""
    kind = EXPERIMENTS[name].parameters
    with pytest.raises(ValueError, match=message):
        checked(type(kind), {**msgspec.to_builtins(kind), **change})


# --- rows ------------------------------------------------------------------------------------


def test_confidence_intervals_cover_the_mean() -> None:
    """In about 95 of 100 runs of independent values; too few values have none."""
    hits = 0
    for seed in range(200):
        rng = Random(seed)
        mean, half = mean_and_interval([rng.gauss(5, 2) for _ in range(400)])
        hits += abs(mean - 5) <= half
    assert 180 <= hits <= 198
    assert math.isnan(mean_and_interval([1.0, 2.0])[1])


def test_rows_sum_up_times() -> None:
    """Percentiles by nearest rank; a distribution climbs from 0 to 1."""
    row = response("p", "s", 0.5, [each / 1000 for each in range(1, 101)])
    assert (6.0, 51.0, 96.0) == pytest.approx((row.p5_ms, row.p50_ms, row.p95_ms))
    assert statistics.fmean(range(1, 101)) == pytest.approx(row.mean_ms)
    points = distribution("", "", [3.0, 1.0, 2.0])
    assert [(1.0, 0.0), (3.0, 1.0)] == [(p.x, p.y) for p in (points[0], points[-1])]
    assert [] == distribution("", "", [])


# --- figures beside the paper's ------------------------------------------------------------------


def at(panel: str, series: str, x: float, median: float) -> Response:
    """A row of which only the median matters."""
    return Response(
        panel=panel,
        series=series,
        x=x,
        jobs=1,
        mean_ms=median,
        ci_ms=0.0,
        p5_ms=median,
        p50_ms=median,
        p95_ms=2 * median,
    )


def test_findings_are_read_from_rows() -> None:
    """Ratios of series, at one x or over all; what the rows do not hold is left out."""
    rows = [at("p 1", "a", 0.8, 110.0), at("p 1", "b", 0.8, 100.0), at("p 1", "a", 0.9, 150.0),
            at("p 1", "b", 0.9, 100.0)]  # fmt: skip
    a, b = findings.value("a", 0.8, "p"), findings.value("b", 0.8)
    found = findings.available(
        [
            Finding("over", "within 12", findings.percent_over(a, b)),
            Finding("under", "", findings.percent_under(b, a), "{:.2f}"),
            Finding("tail", "", findings.times(findings.value("a", 0.8, "p", "p95_ms"), b)),
            Finding("all", "", findings.percent(findings.over_all_x(("p", "a"), ("p", "b")))),
            Finding("not there", "1", findings.value("a", 0.7)),
        ],
        [rows],
    )
    assert [
        ("over", "within 12", "10.0"), ("under", "", "9.09"), ("tail", "", "2.2"),
        ("all", "", "30.0"),
    ] == found  # fmt: skip


def test_findings_are_read_from_lines_and_distributions() -> None:
    """Means over a part of a line that is long enough, and quantiles."""
    line = [Point(panel="", series="user", x=float(x), y=10.0 * x) for x in range(5)]
    steps = distribution("", "noticed (median 3 ms)", [1.0, 2.0, 3.0, 4.0, 5.0])
    assert 15.0 == findings.mean_between("user", 1.0, 2.0)(line)
    assert 3.0 == findings.quantile("noticed", 0.5)(steps)
    for reading in (findings.mean_between("user", 3.0, 7.0), findings.quantile("x", 0.5)):
        with pytest.raises(LookupError):
            reading(line)


def test_the_figures_of_a_summary_are_those_of_the_rows() -> None:
    """A line a series, a column an x; long lines by parts; distributions by percentiles."""
    sweep = EXPERIMENTS["slots"]
    four, one = f"{placements.NAMES['sparrow']}, 4 slots", f"{placements.NAMES['sparrow']}, 1 slot"
    panel = "without cancellation"
    tables = summary(sweep, [[at(panel, one, 0.95, 1000.0), at(panel, four, 0.95, 750.0)]])
    assert ("Load (share of busy slots)", "0.95") == tables[0].header
    assert ((one, "1,000 (2,000)"), (four, "750 (1,500)")) == tables[0].lines
    assert (("over 20", "25.0"),) == tuple(line[1:] for line in tables[1].lines)
    line = [Point(panel="", series="user 1", x=float(x), y=1.0) for x in range(21)]
    (by_time, _) = summary(EXPERIMENTS["fair-share"], [line])
    assert ("Time (s)", "0 to 4", "4 to 8") == by_time.header[:3]
    assert ("user 1", *["1"] * 5) == by_time.lines[0]
    spread = distribution("", "service", map(float, range(101)))
    assert (("service", "5", "50", "95"),) == summary(EXPERIMENTS["breakdown"], [spread])[0].lines


def test_runs_are_summed_up_with_intervals() -> None:
    """Means over runs, and of ratios those of each run: what runs have in common cancels out."""
    sweep = EXPERIMENTS["slots"]
    four, one = f"{placements.NAMES['sparrow']}, 4 slots", f"{placements.NAMES['sparrow']}, 1 slot"
    panel = "without cancellation"
    runs = [
        [at(panel, one, 0.95, median), at(panel, four, 0.95, 0.75 * median)]
        for median in (900.0, 1000.0, 1100.0)
    ]
    tables = summary(sweep, runs)
    # Student's t for two degrees of freedom, times 100 / sqrt(3).
    assert (one, "1,000 ± 248 (2,000)") == tables[0].lines[0]
    assert (("over 20", "25.0 ± 0.0"),) == tuple(line[1:] for line in tables[1].lines)
    first, _ = across(runs)
    assert isinstance(first, Response)
    assert (3, 1000.0) == (first.jobs, first.p50_ms)
    points = [[Point(panel="", series="", x=1.0, y=y)] for y in (1.0, 3.0)]
    (point,) = across(points)
    assert isinstance(point, Point)
    assert (2.0, pytest.approx(2.0 - 12.706)) == (point.y, point.low)
    same = [[Point(panel="", series="formula", x=1.0, y=0.5)]] * 2
    assert same[0] == across(same)


def test_points_between_those_of_a_formula_are_interpolated() -> None:
    """And outside of a line there is none."""
    line = [Point(panel="", series="formula", x=x, y=10 * x) for x in (0.04, 0.06, 0.5)]
    dots = [Point(panel="", series="simulated", x=x, y=1.0) for x in (0.05, 0.9)]
    (table, *_) = summary(EXPERIMENTS["zero-wait"], [[*line, *dots]])
    assert ("formula", "0.5", "") == table.lines[0]


# --- emulation -------------------------------------------------------------------------------


@pytest.mark.slow
def test_emulated_queries_run_stage_after_stage() -> None:
    """A stage starts when those before it are done, so a query takes its critical path."""
    stage = JobSpec(tasks=tuple(TaskSpec(number, payload_of(0.05)) for number in range(3)))
    chain = (QueryStage(stage), QueryStage(stage), QueryStage(stage, (0, 1)))
    with EmulatedCluster(nodes=4, slots=2, schedulers=1, processes=1) as cluster:
        times = run_queries(cluster.client, [Query(0.0, chain), Query(0.3, chain[:1])])
    assert times[0] >= 0.1
    assert times[1] >= 0.05


def test_simulated_queries_run_stage_after_stage() -> None:
    """An idle cluster takes a query's critical path and, for each stage, seven messages' time."""
    short, long = (
        JobSpec(tasks=tuple(TaskSpec(number, payload_of(time_s)) for number in range(3)))
        for time_s in (0.1, 0.3)
    )
    chain = (QueryStage(short), QueryStage(long), QueryStage(short, (0, 1)))
    queries = [Query(0.0, chain), Query(5.0, chain[:1])]
    times = simulate_queries(ExpressCluster(nodes=20, slots=2), queries)
    assert [0.4, 0.1] == pytest.approx(times, abs=0.01)
    assert times[0] > 0.4


def test_tables_are_striped_and_users_ask_regularly() -> None:
    """No node has two replicas of a table; users ask for all queries about equally often."""
    parameters = TpchUsers(users=2, seconds=30.0)
    queries = TpchPlan(parameters, 0.5, 1).queries("sparrow")
    homes = {
        (task.task_id, task.preferred_nodes): None
        for query in queries
        for stage in query.stages
        for task in stage.job.tasks
        if stage.job.user == "user 0" and task.preferred_nodes
    }
    assert 90 == len({node for _, nodes in homes for node in nodes})
    times = [query.at_s for query in queries if query.stages[0].job.user == "user 1"]
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) == pytest.approx(max(gaps))
    blocks = TpchPlan(parameters, 0.5, 1).blocks([0.0] * len(queries))
    asked = Counter(each.number for block in blocks for each in block)
    assert {1, 3, 6, 12} == set(asked)
    assert max(asked.values()) - min(asked.values()) <= 4
    assert max(map(len, blocks)) - min(map(len, blocks)) <= 2
    with pytest.raises(ValueError, match="none of regular, poisson"):
        TpchPlan(replace(parameters, arrivals="never"), 0.5, 1)


def test_the_shipped_recording_is_sound() -> None:
    """Stages wait for earlier ones only, and some of each query read partitions."""
    for query in shipped_recording().queries:
        assert any(stage.reads_partitions for stage in query.stages)
        for number, stage in enumerate(query.stages):
            assert all(each < number for each in stage.after)
            assert all(time_ms > 0 for time_ms in stage.task_ms)


def test_an_interrupted_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had measured is not measured again, and the figures are those of a whole run."""
    experiment = EXPERIMENTS["past-sparrow"]
    parameters = replace(experiment.quick, placements=("central", "sparrow"), ratios=(2.0,))
    run = past._run
    measured: list[tuple[str, int]] = []

    def stops(parameters: Any, placement: str, **case: Any) -> Any:
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append((placement, case["seed"]))
        return run(parameters, placement, **case)

    def report(folder: str, **changes: Any) -> None:
        changed = replace(parameters, **changes)
        run_experiment(experiment, changed, tmp_path / folder, nothing, runs=2, plots=())

    report("whole")
    monkeypatch.setattr(past, "_run", stops)
    with pytest.raises(KeyboardInterrupt):
        report("halves")
    assert [("central", 1), ("sparrow", 1), ("central", 2)] == measured
    points = tmp_path / "halves" / "past-sparrow.points"
    points.write_text(points.read_text() + '["half a li')
    kept = points.read_text()
    with pytest.raises(KeyboardInterrupt):
        report("halves", jobs=61)  # of another run nothing is kept
    assert not points.exists()
    points.write_text(kept)

    measured.clear()
    report("halves")
    assert [("sparrow", 2)] == measured
    whole, halves = (tmp_path / each / "past-sparrow.csv" for each in ("whole", "halves"))
    assert whole.read_text() == halves.read_text()
    assert not points.exists()
