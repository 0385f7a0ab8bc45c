"""`minishark bench`: the papers' experiments, simulated and live; fault injection; load."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from minishark.cli.options import debug_option

if TYPE_CHECKING:
    from minishark.cli.console import Reporter
    from minishark_lab.registry import Report

_EXAMPLES = """\b
Examples:
  minishark bench list                        every experiment, and where it comes from
  minishark bench techniques                  run one; files go to ./experiments
  minishark bench probe-ratio --set loads=[0.8] --set jobs=100000 --seed 7 --runs 8
  minishark bench replay jobs.tr --set nodes=4000   a cluster's trace, under all placements
  minishark bench placement --quick           live, on this machine: is late binding faster?
  minishark bench placement --queries my.sql --data tables   your queries, your Parquet files
  minishark bench emulated-tpch               a hundred nodes on this machine; tasks sleep
  minishark bench clickbench                  43 queries over one wide table, beside DuckDB
  minishark bench canary                      iterative programs beside NumPy and installed peers
  minishark bench chaos --set faults=50       kill processes while queries run, check answers
  minishark bench all --quick                 smoke test of all, in a minute
"""


@click.command(epilog=_EXAMPLES)
@click.argument("name", metavar="NAME|list|all")
@click.argument("trace", required=False, metavar="[TRACE]")
@click.option(
    "--quick", is_flag=True, help="Smoke test with tiny parameters; writes files only with --out."
)
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed.")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Run it N times, with N seeds, for confidence intervals.  [default: the experiment's]",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a parameter; VALUE is TOML. Repeatable.",
)
@click.option(
    "--queries",
    "sql",
    metavar="FILE",
    help="Of placement: SQL queries of your own, over the tables of --data.",
)
@click.option("--data", metavar="FOLDER", help="Of experiments with queries: where tables are.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Folder for CSV, JSON and plots.  [default: experiments]",
)
@click.option(
    "--format",
    "plots",
    type=click.Choice(["png", "svg", "pdf"]),
    multiple=True,
    default=("png",),
    show_default=True,
    help="Of plots; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="With list: print JSON, with parameters.")
@debug_option
def bench(
    *,
    name: str,
    trace: str | None,
    quick: bool,
    seed: int,
    runs: int | None,
    changes: tuple[str, ...],
    sql: str | None,
    data: str | None,
    out: Path | None,
    plots: tuple[Literal["png", "svg", "pdf"], ...],
    as_json: bool,
) -> int:
    """Run an experiment and print its figures.

    Experiments reproduce the papers on Sparrow and Canary, replay a TRACE, inject faults, or
    sustain load. The
    figures stand next to the paper's, if it has them; NAME.csv (results), NAME.json (parameters,
    seed, versions) and a plot are written.
    """
    from minishark_lab.registry import EXPERIMENTS, find

    if name == "list":
        _list(as_json=as_json)
        return 0
    if trace is not None and name != "replay":
        raise click.UsageError("Only `replay` takes a file.")
    files = {"trace": trace, "sql": sql, "data": data}
    changes = (*(f"{key}={json.dumps(file)}" for key, file in files.items() if file), *changes)
    if name == "all" and changes:
        raise click.UsageError(
            "--set, --queries and --data go with one experiment, as each has its own parameters."
        )
    chosen = tuple(EXPERIMENTS) if name == "all" else (find(name).name,)
    from minishark.cli.console import open_reporter
    from minishark_lab.registry import parameters_of, run_experiment

    passed = True
    with open_reporter(verbose=False) as reporter, _folder(out, quick=quick) as folder:
        for each in chosen:
            experiment = find(each)
            parameters = parameters_of(experiment, quick=quick, changes=changes)
            reporter.step(f"{each}: {experiment.titled(parameters)}")
            advance = _progress(reporter)
            report = run_experiment(
                experiment,
                parameters,
                folder,
                advance,
                seed=seed,
                runs=runs or (1 if quick else experiment.runs),
                plots=plots,
            )
            _print(each, report, with_files=out is not None or not quick)
            passed &= report.passed
    return 0 if passed else 1


@contextmanager
def _folder(out: Path | None, *, quick: bool) -> Iterator[Path]:
    """Where the files go; those of a smoke test are deleted, unless --out names a folder."""
    if out is not None or not quick:
        yield out or Path("experiments")
        return
    with tempfile.TemporaryDirectory(prefix="minishark-bench-") as folder:
        yield Path(folder)


def _progress(reporter: Reporter) -> Callable[[float], None]:
    """A function that adds a share of the whole work to the progress."""
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        done = min(1.0, done + share)
        reporter.progress(round(1000 * done), 1000)

    return advance


def _print(name: str, report: Report, *, with_files: bool) -> None:
    """Print the figures, next to the paper's, and the paths of the files."""
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
    for file in report.files if with_files else ():
        click.echo(file)


def _list(*, as_json: bool) -> None:
    from minishark_lab.registry import EXPERIMENTS, describe

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
