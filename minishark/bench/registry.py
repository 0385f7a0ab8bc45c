"""All experiments by name, their parameters, and running them."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from canary_core.lab import overhead as canary_overhead
from canary_core.lab import simulated as canary_simulated
from minishark.bench import live, load, scale
from minishark.bench.canary import experiment as canary
from minishark.bench.chaos import experiment as chaos
from minishark.bench.simulation import experiment as simulation
from minishark.errors import OptionError
from sparrow_core.lab import table
from sparrow_core.lab.charts import require_matplotlib
from sparrow_core.lab.experiment import AnyExperiment, ExperimentError
from sparrow_core.lab.parameters import checked
from sparrow_core.lab.reports import PlotFormat, write_report
from sparrow_core.lab.summary import Table, summary

EXPERIMENTS: dict[str, AnyExperiment] = table.EXPERIMENTS | {
    experiment.name: experiment
    for module in (live, chaos, simulation, load, scale, canary, canary_overhead, canary_simulated)
    for experiment in module.EXPERIMENTS
}


def find(name: str) -> AnyExperiment:
    """The experiment of that name; OptionError if there is none."""
    if name not in EXPERIMENTS:
        raise OptionError(f"There is no experiment {name!r}; `minishark bench list` has them all.")
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

    An experiment that passes or fails is run once.
    """
    require_matplotlib()  # before the work, not after it
    runs = 1 if experiment.verdict else runs
    try:
        found = [
            experiment.run(parameters, each, lambda share: advance(share / runs))
            for each in range(seed, seed + runs)
        ]
        files = write_report(experiment, parameters, seed, found, folder, plots)
    except ExperimentError as error:  # a trace that can't be read, a folder that can't be written
        raise OptionError(f"{experiment.name}: {error}.") from error
    if experiment.verdict is None:
        return Report(summary(experiment, found), files)
    verdict = experiment.verdict(found[0])
    return Report([], files, verdict.text, verdict.passed)


def describe(experiment: AnyExperiment) -> dict[str, Any]:
    found = {name: getattr(experiment, name) for name in ("name", "source", "kind", "runs")}
    found["title"] = experiment.titled(experiment.parameters)
    parameters = json.loads(json.dumps(dataclasses.asdict(experiment.parameters)))
    return {**found, "parameters": parameters}
