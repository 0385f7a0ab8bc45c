"""All experiments by name, their parameters, and running them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

import minishark_lab
import sparrow_core
from minishark.dataframe.names import nearest
from minishark.errors import OptionError
from minishark_lab.canary import experiment as canary
from minishark_lab.canary import overhead as canary_overhead
from minishark_lab.canary import simulated as canary_simulated
from minishark_lab.chaos import experiment as chaos
from minishark_lab.clickbench import experiment as clickbench
from minishark_lab.cluster import live, load, scale
from minishark_lab.harness.charts import require_matplotlib
from minishark_lab.harness.experiment import AnyExperiment
from minishark_lab.harness.parameters import checked
from minishark_lab.harness.points import KEPT, Points
from minishark_lab.harness.reports import PlotFormat, write_report
from minishark_lab.harness.summary import Table, conclusion, summary
from minishark_lab.simulation import experiment as simulation
from minishark_lab.sparrow import (
    beyond,
    emulated,
    on_paper,
    past,
    placements,
    policies,
    replay,
    scale_out,
)  # fmt: skip
from sparrow_core.protocol.errors import SparrowError


def _named(modules: tuple[ModuleType, ...]) -> dict[str, AnyExperiment]:
    return {each.name: each for module in modules for each in module.EXPERIMENTS}


# A new experiment is a module with its parameters, a function from these to rows, and an entry in
# the module's EXPERIMENTS; and the module here.
SPARROW = _named((on_paper, placements, policies, beyond, past, replay, emulated, scale_out))
"""Those that need no SQL."""
EXPERIMENTS = SPARROW | _named(
    (live, chaos, simulation, load, scale, clickbench, canary, canary_overhead, canary_simulated)
)


def find(name: str) -> AnyExperiment:
    """The experiment of that name; OptionError if there is none."""
    if name not in EXPERIMENTS:
        raise OptionError(
            f"There is no experiment {name!r}.{nearest(name, EXPERIMENTS)} "
            "`minishark bench list` has them all."
        )
    return EXPERIMENTS[name]


def parameters_of(experiment: AnyExperiment, *, quick: bool, changes: Sequence[str]) -> Any:
    """An experiment's parameters, or with `quick` its tiny ones, with changes."""
    # Each change is `name=value`; the value is TOML: 0.8, [0.5, 0.9], "random".
    chosen = experiment.quick if quick else experiment.parameters
    values = msgspec.to_builtins(chosen)
    for change in changes:
        name, _, text = change.partition("=")
        if name not in values:
            raise OptionError(
                f"{experiment.name} has no parameter {name!r}; it has {', '.join(values)}."
            )
        try:
            values[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError as error:
            raise OptionError(
                f"{text!r} is no value for {name}; write it as in TOML: 0.8, [0.5, 0.9], "
                f"'\"text\"' (now it is {json.dumps(values[name])})."
            ) from error
    try:
        return checked(type(chosen), values)
    except ValueError as error:
        raise OptionError(f"{experiment.name} can't run with that: {error}.") from error


class Report(NamedTuple):
    """Tables or text for a terminal, the written files, and whether the checks passed, if any."""

    tables: list[Table]
    files: tuple[Path, ...]
    text: str = ""
    passed: bool = True


def run_experiment(
    experiment: AnyExperiment,
    parameters: Any,
    folder: Path,
    advance: Callable[[float], None],
    *,
    seed: int = 1,
    runs: int = 1,
    plots: Sequence[PlotFormat] = ("png",),
) -> Report:
    """Run an experiment `runs` times, with seeds from `seed` on, and report on all runs together.

    An experiment that passes or fails is run once. Of a simulation, points are kept in the folder
    until it ends: if it is interrupted, the same command continues.
    """
    require_matplotlib()  # before the work, not after it
    runs = 1 if experiment.verdict else runs
    points = _points(experiment, parameters, folder)
    token = KEPT.set(points)
    found = []
    try:
        for each in range(seed, seed + runs):
            if points is not None:
                points.begin(each)
            found.append(experiment.run(parameters, each, lambda share: advance(share / runs)))
        files = write_report(experiment, parameters, seed, found, folder, plots)
    except SparrowError as error:  # a trace that can't be read, no compiler, a full disk
        raise OptionError(f"{experiment.name}: {error}.") from error
    finally:
        KEPT.reset(token)
    if points is not None:
        points.drop()
    if experiment.verdict is None:
        return Report(summary(experiment, found), files, conclusion(experiment, found))
    verdict = experiment.verdict(found[0])
    return Report([], files, verdict.text, verdict.passed)


def _points(experiment: AnyExperiment, parameters: Any, folder: Path) -> Points | None:
    """Where the points of a simulation are kept; of others none are."""
    if experiment.kind != "simulated":
        return None
    code = hashlib.sha256()
    for package in (minishark_lab, sparrow_core):
        for file in sorted(Path(package.__path__[0]).rglob("*.[pc]*")):
            if file.suffix in (".py", ".c"):
                code.update(file.read_bytes())
    made_with = {"parameters": msgspec.to_builtins(parameters), "code": code.hexdigest()}
    return Points(folder / f"{experiment.name}.points", made_with)


def describe(experiment: AnyExperiment) -> dict[str, Any]:
    found = {name: getattr(experiment, name) for name in ("name", "source", "kind", "runs")}
    found["title"] = experiment.titled(experiment.parameters)
    parameters = json.loads(json.dumps(dataclasses.asdict(experiment.parameters)))
    return {**found, "parameters": parameters}
