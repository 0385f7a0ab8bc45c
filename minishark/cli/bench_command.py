"""`minishark bench`: the papers' experiments, simulated to live; faults; load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from minishark.cli.options import debug_option

if TYPE_CHECKING:
    from minishark.bench.registry import Report
    from minishark.tpch.reporter import Reporter

_EXAMPLES = """\b
Examples:
  minishark bench list                        every experiment, and where it comes from
  minishark bench techniques                  one of them; files go to ./experiments
  minishark bench probe-ratio --set loads=[0.8] --set jobs=100000 --seed 7
  minishark bench placement --set load=0.5    live, on this machine
  minishark bench chaos --set faults=50       kills processes while queries run, checks answers
  minishark bench all --quick                 all of them in a minute, to see that they work
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", metavar="NAME|list|all")
@click.option("--quick", is_flag=True, help="Tiny parameters: it works, and means nothing.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of all random choices.")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Change a parameter (values as in TOML); may be repeated.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("experiments"),
    show_default=True,
    metavar="FOLDER",
    help="Where CSV, JSON and plots go.",
)
@click.option(
    "--format",
    "plot",
    type=click.Choice(["png", "svg"]),
    default="png",
    show_default=True,
    help="Of plots.",
)
@click.option("--json", "as_json", is_flag=True, help="With list: as JSON, with parameters.")
@debug_option
def bench(
    *,
    name: str,
    quick: bool,
    seed: int,
    changes: tuple[str, ...],
    out: Path,
    plot: Literal["png", "svg"],
    as_json: bool,
) -> int:
    """Run an experiment: a table or figure of the Sparrow papers, faults (chaos), long load, more.

    Each prints its figures, beside the paper's where there are some, and writes NAME.csv (what was
    found), NAME.json (parameters, seed, versions) and a plot.
    """
    from minishark.bench.registry import EXPERIMENTS, find

    if name == "list":
        _list(as_json=as_json)
        return 0
    if name == "all" and changes:
        raise click.UsageError("--set goes with one experiment, as each has its own parameters.")
    chosen = tuple(EXPERIMENTS) if name == "all" else (find(name).name,)
    from minishark.cli.console import open_reporter

    passed = True
    with open_reporter(verbose=False) as reporter:
        for each in chosen:
            report = _run(each, quick, seed, changes, out, plot, reporter)
            _print(each, report)
            passed &= report.passed
    return 0 if passed else 1


def _run(
    name: str,
    quick: bool,
    seed: int,
    changes: tuple[str, ...],
    out: Path,
    plot: Literal["png", "svg"],
    reporter: Reporter,
) -> Report:
    from minishark.bench.registry import find, parameters_of, run_experiment

    experiment = find(name)
    parameters = parameters_of(experiment, quick=quick, changes=changes)
    reporter.step(f"{name}: {experiment.title}")
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        done = min(1.0, done + share)
        reporter.progress(round(1000 * done), 1000)

    return run_experiment(experiment, parameters, seed, out, plot, advance)


def _print(name: str, report: Report) -> None:
    """What was found, beside the paper's figures, and where the files are."""
    from rich import box
    from rich.table import Table

    from minishark.cli.console import standard_output

    console = standard_output()
    for found in report.tables:
        console.print(f"{name}: {found.title}", style="italic", soft_wrap=True)
        table = Table(box=box.SIMPLE)
        for column, head in enumerate(found.header):
            table.add_column(head, justify="right" if column else "left")
        for line in found.lines:
            table.add_row(*line)
        console.print(table)
    if report.text:
        click.echo(report.text)
    for file in report.files:
        click.echo(file)


def _list(*, as_json: bool) -> None:
    from minishark.bench.registry import EXPERIMENTS, describe

    found: list[dict[str, Any]] = [describe(each) for each in EXPERIMENTS.values()]
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    from rich import box
    from rich.table import Table

    from minishark.cli.console import standard_output

    table = Table("name", "kind", "what", "where from", box=box.SIMPLE)
    for each in found:
        table.add_row(each["name"], each["kind"], each["title"], each["source"])
    standard_output().print(table)
