"""`minishark tpch`: the 22 queries over generated data, all answers checked against DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from minishark.cli.options import (
    check_output_file,
    check_scale,
    cluster_option,
    count_option,
    debug_option,
    memory_option,
    nodes_option,
    session_option,
    verbose_option,
)
from minishark.cluster import placements
from minishark.errors import OptionError

_EXAMPLES = """\b
Examples:
  minishark tpch                              scale 0.1, all 22 queries
  minishark tpch --scale 1 --repetitions 5    best and median of five
  minishark tpch --queries 1,3,5-7 --verbose  some queries, with details
  minishark tpch --nodes 3 --placement random --json random.json
"""


def _check_placement(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Refuse what can't be a placement, with usage help."""
    try:
        placements.check_name(value)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.command(epilog=_EXAMPLES)
@click.option(
    "--scale",
    type=float,
    default=0.1,
    show_default=True,
    callback=check_scale,
    help="Scale factor; 1 is 1 GB as text.",
)
@click.option(
    "--queries",
    default="1-22",
    show_default=True,
    metavar="LIST",
    help="Queries to run, such as 1,3,5-7.",
)
@nodes_option
@count_option("--executors", "Executors of each node.", default=1)
@cluster_option
@memory_option
@session_option("partitions")
@count_option("--replicas", "Replicas of each partition.  [default: 2, or 1 on one node]")
@session_option(
    "placement",
    metavar=f"[{'|'.join(placements.names())}|MODULE:FACTORY]",
    callback=_check_placement,
    default="sparrow",
)
@count_option(
    "--repetitions",
    "Runs of each query, both ways; the table shows the best and the median.",
    default=1,
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder of generated data.  [default: data/tpch in a checkout, else "
    "~/.cache/minishark/tpch]",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    callback=check_output_file,
    help="Write all measurements to this file.",
)
@verbose_option
@debug_option
def tpch(*, json_file: Path | None, verbose: bool, queries: str, **options: Any) -> int:
    """Run TPC-H and check all answers against DuckDB.

    Generates the data with tpchgen-cli if it is missing, starts a local cluster, loads the eight
    tables, and runs each query twice: as the planner chooses (a single task, where that is faster),
    and in stages over all nodes. The exit status is 1 if an answer differs from DuckDB's.
    """
    from minishark.cli.console import open_reporter, standard_output
    from minishark.cli.tpch.queries import parse_selection
    from minishark_lab.tpch.report import print_report
    from minishark_lab.tpch.run import TpchOptions, run_tpch

    chosen = TpchOptions(queries=parse_selection(queries), **options)
    if (chosen.replicas or 1) > chosen.nodes:
        message = f"{chosen.replicas} replicas need {chosen.replicas} nodes, not {chosen.nodes}."
        raise click.BadParameter(message, param_hint="--replicas")
    with open_reporter(verbose=verbose) as reporter:
        report = run_tpch(chosen, reporter)
    if json_file is not None:
        json_file.write_bytes(report.to_json())
    print_report(report, standard_output())
    return 0 if report.all_correct else 1
