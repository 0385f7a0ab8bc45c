"""`minishark sql` and `minishark run`: statements over tables, TPC-H data, or the sample."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minishark.cli.options import (
    FILE_FORMATS,
    cluster_arguments,
    data_options,
    debug_option,
    output_options,
)

if TYPE_CHECKING:
    from minishark.cli.shell.interpreter import Interpreter

_SQL_EXAMPLES = """\b
Examples:
  minishark sql "SELECT count(*) FROM lineitem"
  minishark sql "SELECT n_name, count(*) FROM nation JOIN supplier
                 ON n_nationkey = s_nationkey GROUP BY n_name ORDER BY 2 DESC" --scale 1
  minishark sql "EXPLAIN SELECT * FROM orders ORDER BY o_totalprice LIMIT 3"
  minishark sql "FROM events SELECT kind, count(*) GROUP BY ALL" --data events.csv --format json
  minishark sql "FROM 'folder/*.parquet'" --output all.parquet
"""
_RUN_EXAMPLES = """\b
Examples:
  minishark run report.sql --data folder/of/tables --format csv > report.csv
  echo "SELECT 42;" | minishark run -
"""


@dataclass(frozen=True)
class RunOptions:
    """What statements run over, and where their answers go; the options of the commands."""

    scale: float | None
    data: Sequence[Path]
    nodes: int
    memory_limit: int | None
    cluster: str | None
    form: str | None
    output: Path | None
    rows_max: int
    verbose: bool


@click.command(epilog=_SQL_EXAMPLES)
@click.argument("statement")
@data_options
@output_options
@click.option("--verbose", "-v", is_flag=True, help="Say more about each step, on stderr.")
@debug_option
def sql(*, statement: str, **options: Any) -> None:
    """Run a SQL statement, or several, and print the answers.

    EXPLAIN before a SELECT prints the logical plan, the physical plan and the stages instead;
    EXPLAIN ANALYZE runs it and prints what each stage did.

    The exit status is 0, 1 if a statement fails, 2 if the command is written wrongly, 130 after
    Ctrl-C.
    """
    with interpreter(statement, RunOptions(**options)) as shell:
        shell.run_text(statement, "")


@click.command(epilog=_RUN_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@data_options
@output_options
@click.option("--verbose", "-v", is_flag=True, help="Say more about each step, on stderr.")
@debug_option
def run(*, file: Path, **options: Any) -> None:
    """Run a file of statements and dot-commands; - reads them from stdin.

    It ends at the first statement that fails, and says in which line that stands. The exit status
    is that of `minishark sql`.
    """
    from minishark.cli.shell.interpreter import read_script

    text = sys.stdin.read() if str(file) == "-" else read_script(file)
    with interpreter(text, RunOptions(**options)) as shell:
        shell.run_text(text, "stdin" if str(file) == "-" else str(file))


class ClosedPipeError(Exception):
    """Who reads the answer has seen enough; not an OSError, of which click would make status 1."""


@contextmanager
def interpreter(text: str, options: RunOptions) -> Iterator[Interpreter]:
    """A session with the tables that a text needs, and what runs the text there.

    Raises:
        MinisharkError: the tables are not there, or the cluster does not start.
        ClosedPipeError: nobody reads the answer.
    """
    import minishark
    from minishark.cli.console import open_reporter, standard_error, standard_output
    from minishark.cli.data import chosen_tables
    from minishark.cli.formats import format_of
    from minishark.cli.output import Output
    from minishark.cli.shell.interpreter import Interpreter
    from minishark.tpch.run import default_replicas
    from minishark.tpch.tables import load_tables

    form = options.form or (format_of(options.output) if options.output else "table")
    if form in FILE_FORMATS and options.output is None:
        raise click.BadParameter(f"{form} is no text; name a file with --output.")
    needed = _needed(text, chosen_tables(options.scale, options.data))
    answers = Output(standard_output(), rows_max=options.rows_max or None)
    answers.set_form(form, options.output)
    cluster = cluster_arguments(options.nodes, options.cluster, options.memory_limit)
    with minishark.connect(**cluster) as session:
        with open_reporter(verbose=options.verbose) as reporter:
            reporter.detail(f"Tables: {', '.join(needed.values()) or 'none'}")
            load_tables(session, needed, reporter, replicas=default_replicas(options.nodes))
            for warning in session.warnings:
                reporter.warning(warning)
        try:
            yield Interpreter(session, answers, standard_error())
        except BrokenPipeError as error:
            raise ClosedPipeError from error
        finally:
            answers.close()


def _needed(text: str, tables: Mapping[str, str]) -> Mapping[str, str]:
    """Those tables that the statements of a text need, so that the others need not be loaded."""
    import duckdb

    from minishark.cli.shell.splitting import split
    from minishark.tpch.tables import tables_of_query

    needed: dict[str, str] = {}
    earlier = ""
    with duckdb.connect() as parser:
        for entry in split(text):
            if entry.is_command:
                return tables
            needed |= tables_of_query(parser, entry.text, tables, earlier)
            earlier += entry.text
    return {name: path for name, path in tables.items() if name in needed}
