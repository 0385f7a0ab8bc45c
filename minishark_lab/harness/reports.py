"""Writes the report of an experiment: rows as CSV, parameters as JSON, and a plot."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from minishark_lab.harness.charts import draw, save
from minishark_lab.harness.experiment import AnyExperiment, ExperimentError
from minishark_lab.harness.findings import available
from minishark_lab.harness.rows import Row, across
from minishark_lab.harness.summary import conclusion, unsettled

_PACKAGES = ("minishark", "numpy", "pyzmq", "msgspec", "duckdb", "matplotlib")
PlotFormat = Literal["png", "svg", "pdf"]


def write_report(
    experiment: AnyExperiment,
    parameters: Any,
    seed: int,
    runs: Sequence[Sequence[Row]],
    folder: Path,
    plots: Sequence[PlotFormat] = ("png",),
) -> tuple[Path, ...]:
    """Write `<name>.csv`, `<name>.json` and the plots into a folder, which is created.

    The first of the runs has the seed, others those that follow.
    """
    rows = across(runs)
    title = f"{experiment.titled(parameters)}\n{experiment.source}"
    figure = draw(experiment.chart, title, rows, len(runs))
    files = tuple(folder / f"{experiment.name}.{kind}" for kind in ("csv", "json", *plots))
    described = _describe(experiment, parameters, seed, runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_rows(files[0], rows)
        files[1].write_text(json.dumps(described, indent=2))
        for file in files[2:]:
            save(figure, file)
    except OSError as error:
        raise ExperimentError(f"cannot write to {folder}: {error}") from error
    return files


def _write_rows(file: Path, rows: Sequence[Row]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        # Rows of both kinds may stand in one file, with empty cells for what a kind has not.
        names = dict.fromkeys(field.name for row in rows for field in dataclasses.fields(row))
        writer = csv.DictWriter(out, names)
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(each) for name, each in vars(row).items()})


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"


def _describe(
    experiment: AnyExperiment, parameters: Any, seed: int, runs: Sequence[Sequence[Row]]
) -> Mapping[str, Any]:
    rows = across(runs)
    findings = available(experiment.findings, runs)
    return {
        "name": experiment.name,
        "title": experiment.titled(parameters),
        "source": experiment.source,
        "kind": experiment.kind,
        "parameters": dataclasses.asdict(parameters),
        "seed": seed,
        "runs": len(runs),
        "rows": len(rows),
        "findings": [dict(zip(("what", "paper", "here"), each, strict=True)) for each in findings],
        "conclusion": conclusion(experiment, runs),
        "not_settled": dict(unsettled(rows)),  # series: where
        "versions": {"python": platform.python_version(), **dict(_versions())},
        "machine": platform.machine(),
    }


def _versions() -> list[tuple[str, str]]:
    found = []
    for package in _PACKAGES:
        # Some may not be installed: minishark in a checkout, and optional extras.
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append((package, metadata.version(package)))
    return found
