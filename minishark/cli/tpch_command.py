"""`minishark tpch`: the 22 queries over generated data, each answer compared with DuckDB's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from minishark.cli.options import (
    check_output_file,
    check_scale,
    cluster_option,
    debug_option,
    memory_option,
)
from sparrow_core import PLACEMENTS

_EXAMPLES = """\b
Examples:
  minishark tpch                              scale 0.1, all 22 queries
  minishark tpch --scale 1 --repetitions 5    best and median of five
  minishark tpch --queries 1,3,5-7 --verbose  some of them, with details
  minishark tpch --nodes 3 --placement random --json random.json
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--scale",
    type=float,
    default=0.1,
    show_default=True,
    callback=check_scale,
    help="TPC-H's scale factor; 1 is a gigabyte as text.",
)
@click.option(
    "--queries",
    default="1-22",
    show_default=True,
    metavar="LIST",
    help="Which queries to run, such as 1,3,5-7.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Nodes of the local cluster.",
)
@click.option(
    "--executors",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Executors on each node.",
)
@cluster_option
@memory_option
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Partitions of each large table.  [default: as many as the cluster has slots]",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    help="Nodes that hold each partition.  [default: 2, or 1 on one node]",
)
@click.option(
    "--placement",
    type=click.Choice(list(PLACEMENTS)),
    default="sparrow",
    show_default=True,
    help="How tasks are placed on nodes that hold their data.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Runs of each query; the table shows the best and the median.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where generated data is kept.  [default: data/tpch in a checkout, else "
    "~/.cache/minishark/tpch]",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    callback=check_output_file,
    help="Write everything that was measured to this file.",
)
@click.option("--verbose", "-v", is_flag=True, help="Say more about each step, on stderr.")
@debug_option
def tpch(*, json_file: Path | None, verbose: bool, queries: str, **options: Any) -> int:
    """Run TPC-H and compare each answer with DuckDB's.

    Makes the data with tpchgen-cli unless it is there, starts a cluster on this machine, loads the
    eight tables into it, runs the queries, and prints a table. The last line says how many answers
    equal DuckDB's; the exit status is 1 if one does not.
    """
    from minishark.cli.console import open_reporter, standard_output
    from minishark.tpch.queries import parse_selection
    from minishark.tpch.report import print_report
    from minishark.tpch.run import TpchOptions, run_tpch

    chosen = TpchOptions(queries=parse_selection(queries), **options)
    if (chosen.replicas or 1) > chosen.nodes:
        message = f"{chosen.replicas} replicas need as many nodes; there are {chosen.nodes}."
        raise click.BadParameter(message, param_hint="--replicas")
    with open_reporter(verbose=verbose) as reporter:
        report = run_tpch(chosen, reporter)
    if json_file is not None:
        json_file.write_bytes(report.to_json())
    print_report(report, standard_output())
    return 0 if report.all_correct else 1
