from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from minishark.cli.app import run
from minishark.cli.tpch.locations import sample_folder
from minishark.errors import MinisharkError, OptionError
from minishark.model.events.figures import TaskFigures
from minishark.model.events.kinds import StagePlan, TaskEnded
from minishark.model.events.record import QueryRecord, StageRecord
from minishark_lab.cluster.live import LivePlacement, ideal_s, live_placement
from minishark_lab.harness.experiment import Verdict
from minishark_lab.harness.paired import OBSERVED
from minishark_lab.registry import EXPERIMENTS, find, parameters_of
from minishark_lab.sparrow.placements import NAMES


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, and as JSON with parameters."""
    assert 0 == run(["bench", "list"])
    table = capsys.readouterr().out
    assert [] == [name for name in EXPERIMENTS if name not in table]
    assert 0 == run(["bench", "list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert list(EXPERIMENTS) == [each["name"] for each in listed]
    assert 0.8 == next(each for each in listed if each["name"] == "idle-time")["parameters"]["load"]


def test_an_experiment_writes_three_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows, parameters as changed, and a plot in the wanted format; their names end stdout."""
    out = tmp_path / "out"
    options = ["--quick", "--seed", "3", "--set", "loads=[0.6]", "--format", "svg"]
    assert 0 == run(["bench", "probe-ratio", *options, "--out", str(out)])
    files = [out / f"probe-ratio.{kind}" for kind in ("csv", "json", "svg")]
    shown = capsys.readouterr().out
    assert [str(file) for file in files] == shown.split()[-3:]
    assert "omniscient" in shown
    with files[0].open(encoding="utf-8") as lines:
        assert {"0.6"} == {row["x"] for row in csv.DictReader(lines)}
    described = json.loads(files[1].read_text())
    assert ([0.6], 3) == (described["parameters"]["loads"], described["seed"])
    assert "<svg" in files[2].read_text()


@pytest.mark.slow
def test_several_runs_are_reported_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With their intervals, and plots in several formats."""
    options = ["--quick", "--set", "loads=[0.6]", "--runs", "3", "--out", str(tmp_path)]
    formats = ["--format", "svg", "--format", "pdf"]
    assert 0 == run(["bench", "probe-ratio", *options, *formats])
    assert "±" in capsys.readouterr().out
    assert (tmp_path / "probe-ratio.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "probe-ratio.svg").exists()
    assert 3 == json.loads((tmp_path / "probe-ratio.json").read_text())["runs"]
    with (tmp_path / "probe-ratio.csv").open(encoding="utf-8") as lines:
        assert all(float(row["p50_ci_ms"]) >= 0 for row in csv.DictReader(lines))


def test_a_trace_is_replayed_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is an argument; what is wrong with it is told by line."""
    trace = tmp_path / "jobs.tr"
    trace.write_text("".join(f"{number} 2 10 8 12\n" for number in range(40)))
    options = ["--set", "nodes=50", "--set", 'placements=["sparrow"]', "--runs", "1"]
    assert 0 == run(["bench", "replay", str(trace), *options, "--out", str(tmp_path / "out")])
    assert "short jobs" in capsys.readouterr().out
    trace.write_text("1 2 3\n")
    assert 2 == run(["bench", "replay", str(trace), *options, "--out", str(tmp_path / "out")])
    assert "line 1 of" in capsys.readouterr().err


def test_a_smoke_test_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--quick without --out prints the figures, and writes nothing below the current folder."""
    monkeypatch.chdir(tmp_path)
    assert 0 == run(["bench", "probe-ratio", "--quick", "--set", "loads=[0.6]"])
    shown = capsys.readouterr().out
    assert "omniscient" in shown
    assert "probe-ratio.csv" not in shown
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "bench list"),
        (["probe-ratio", "--set", "load=1"], "has no parameter 'load'"),
        (["probe-ratio", "--set", "loads=oops"], "is no value for loads"),
        (["probe-ratio", "--set", 'loads="much"'], "can't run with that"),
        (["all", "--set", "jobs=1"], "go with one experiment"),
        (["probe-ratio", "--set", "jobs=0"], "jobs = 0: expected int >= 1"),
        (["probe-ratio", "--queries", "file"], "has no parameter 'sql'"),
        (["probe-ratio", "file"], "Only `replay` takes a file"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit status 2 and what to do."""
    assert 2 == run(["bench", *arguments, "--quick"])
    assert message in capsys.readouterr().err


def test_parameters_can_be_changed_one_by_one() -> None:
    """All others stay as they are."""
    experiment = find("placement")
    changed = parameters_of(experiment, quick=True, changes=["load=0.5", "queries=[6]"])
    assert (0.5, (6,), experiment.quick.seconds) == (changed.load, changed.queries, changed.seconds)
    with pytest.raises(OptionError, match="no experiment"):
        find("nothing")


@pytest.mark.slow
def test_what_does_not_hold_is_an_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An experiment that tries something prints its verdict, and fails with it."""
    for passed, status in ((True, 0), (False, 1)):
        verdict = Verdict("so it was", passed=passed)
        trial = replace(EXPERIMENTS["zero-wait"], verdict=lambda _, told=verdict: told)
        monkeypatch.setitem(EXPERIMENTS, "zero-wait", trial)
        assert status == run(["bench", "zero-wait", "--quick", "--out", str(tmp_path)])
        assert "so it was" in capsys.readouterr().out


@pytest.mark.slow
def test_queries_are_placed_live_in_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Queries of one's own: each placement has rows for them, never shorter than the ideal."""
    sql = tmp_path / "my.sql"
    sql.write_text("SELECT count(*) FROM nation; -- and another\nSELECT max(r_name) FROM region")
    files = ["--queries", str(sql), "--data", str(sample_folder()), "--out", str(tmp_path)]
    assert 0 == run(["bench", "placement", "--quick", "--set=seconds=2.0", *files])
    with (tmp_path / "placement.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["panel"] == OBSERVED]
    means = {(row["series"], row["x"]): float(row["mean_ms"]) for row in rows}
    assert {"1", "2"} == {row["x"] for row in rows}
    for series, of in ((NAMES[name], x) for name in ("sparrow", "random") for x in ("1", "2")):
        assert means[series, of] > 0
    for x in ("1", "2"):
        assert means[NAMES["sparrow"], x] > means[f"ideal of {NAMES['sparrow']}", x]
    described = json.loads((tmp_path / "placement.json").read_text())
    assert described["conclusion"] in capsys.readouterr().out
    assert 2 == len(described["findings"])


@pytest.mark.slow
def test_the_quick_run_tells_placements_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though this machine has few cores: tasks sleep. Or it says that queues did not settle."""
    assert 0 == run(["bench", "placement", "--quick", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "Tasks slept" in said
    assert "70% load: With random, queries take" in said or "Not settled" in said
    described = json.loads((tmp_path / "placement.json").read_text())
    here = {each["what"]: each["here"] for each in described["findings"]}
    assert 4 == len(here)
    times = here["70% load: medians of random over its (times)"]
    assert times == "not settled" or 1.2 < float(times) < 4


@pytest.mark.parametrize(
    ("text", "data", "message"),
    [
        ("SELECT 1", "", "give their folder with --data"),
        ("DELETE FROM t", ".", "nothing but queries"),
        ("SELEC 1", ".", "is no SQL"),
        (None, ".", "Can't read"),
    ],
)
def test_queries_of_ones_own_are_checked_before_anything_starts(
    tmp_path: Path, text: str | None, data: str, message: str
) -> None:
    """With a sentence that says what is wrong with the file, or missing."""
    sql = tmp_path / "my.sql"
    if text is not None:
        sql.write_text(text)
    with pytest.raises(MinisharkError, match=message):
        live_placement(LivePlacement(sql=str(sql), data=data), 1, lambda _: None)


@pytest.mark.slow
def test_rounds_in_which_nothing_is_due_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to change, instead of drawing nothing."""
    changes = [
        f"--set={each}" for each in ("seconds=0.000001", "load=0.001", "nodes=1", "asleep=false")
    ]
    assert 2 == run(["bench", "placement", "--quick", *changes, "--out", str(tmp_path)])
    assert "set seconds or load higher" in capsys.readouterr().err


def test_the_ideal_is_the_critical_path() -> None:
    """Planning, then of each stage its longest task, after the slower of those that it reads."""

    def stage(index: int, run_s: tuple[float, ...], after: tuple[int, ...] = ()) -> StageRecord:
        plan = StagePlan(stage=index, tasks=len(run_s), reads=after)
        return StageRecord(
            index=index,
            plan=plan,
            tasks=len(run_s),
            ended={
                task: TaskEnded(
                    at=9.0, query=1, stage=index, task=task, figures=TaskFigures(run_s=each)
                )
                for task, each in enumerate(run_s)
            },
        )

    stages = (stage(0, (1.0, 3.0)), stage(1, (2.0,)), stage(4, (0.5, 0.25), (0, 1)))
    by_index = {each.index: each for each in stages}
    metrics = QueryRecord(elapsed_s=20.0, planning_s=0.25, by_index=by_index)
    assert 0.25 + 3.0 + 0.5 == pytest.approx(ideal_s(metrics))
