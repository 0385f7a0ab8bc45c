"""`minishark sql`: one statement over TPC-H data, the bundled sample, or a folder of files."""

from __future__ import annotations

import re
from pathlib import Path

import click

from minishark.cli.options import check_scale, debug_option

_EXAMPLES = """\b
Examples:
  minishark sql "SELECT count(*) FROM lineitem"
  minishark sql "SELECT n_name, count(*) FROM nation JOIN supplier
                 ON n_nationkey = s_nationkey GROUP BY n_name ORDER BY 2 DESC" --scale 1
  minishark sql "EXPLAIN SELECT * FROM orders ORDER BY o_totalprice LIMIT 3"
  minishark sql "SELECT * FROM events" --data folder/with/events.parquet/in/it
"""
_DEFAULT_SCALE = 0.1
# EXPLAIN [ANALYZE], after blanks and comments.
_EXPLAIN = re.compile(
    r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*EXPLAIN\b(\s+ANALYZE\b)?", re.IGNORECASE | re.DOTALL
)


@click.command(epilog=_EXAMPLES)
@click.argument("statement")
@click.option(
    "--scale",
    type=float,
    callback=check_scale,
    help="Query TPC-H data that `minishark tpch` made at this scale.  [default: 0.1 if it is "
    "there, else the bundled sample]",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Query a folder of Parquet tables: files <table>.parquet, or folders <table> of files. "
    "With --scale: where generated data is kept.",
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Nodes of the local cluster.",
)
@click.option(
    "--rows",
    "rows_max",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Rows to print at most; 0 prints all.",
)
@click.option("--verbose", "-v", is_flag=True, help="Say more about each step, on stderr.")
@debug_option
def sql(
    *,
    statement: str,
    scale: float | None,
    data: Path | None,
    nodes: int,
    rows_max: int,
    verbose: bool,
) -> None:
    """Run one SQL statement and print its answer.

    EXPLAIN before a SELECT prints the logical plan, the physical plan and the stages instead;
    EXPLAIN ANALYZE runs it and prints what each stage did.
    """
    import duckdb

    import minishark
    from minishark.cli.console import open_reporter, standard_output
    from minishark.display import print_table
    from minishark.tpch.run import default_replicas
    from minishark.tpch.tables import load_tables, tables_of_query

    explained = _EXPLAIN.match(statement)
    query = statement[explained.end() :] if explained else statement
    tables = _choose_tables(scale, data)
    with duckdb.connect() as parser:
        needed = tables_of_query(parser, query, tables)
    with minishark.connect(nodes=nodes) as session, open_reporter(verbose=verbose) as reporter:
        reporter.detail(f"Tables: {', '.join(needed.values()) or 'none'}")
        load_tables(session, needed, reporter, replicas=default_replicas(nodes))
        for warning in session.warnings:
            reporter.warning(warning)
        reporter.step("Running the query")
        answer = session.sql(statement).to_arrow()
    if explained:
        click.echo(answer.column(0)[0].as_py())
    else:
        print_table(answer, standard_output(), rows_max=rows_max or None)


def _choose_tables(scale: float | None, data: Path | None) -> dict[str, str]:
    """A path, or a glob of paths, by table name.

    Raises:
        DataError: They are not there.
    """
    from minishark.errors import DataError
    from minishark.tpch.generate import scale_folder, scale_text
    from minishark.tpch.locations import default_data_folder, sample_folder
    from minishark.tpch.tables import find_tables, tpch_tables

    root = data or default_data_folder()
    if scale is not None:
        folder = scale_folder(root, scale)
        if not folder.is_dir():
            text = scale_text(scale)
            raise DataError(
                f"There is no TPC-H data at scale {text} in {root}: "
                f"make it with minishark tpch --scale {text}"
            )
        return tpch_tables(folder)
    if data is not None:
        return find_tables(data)
    folder = scale_folder(root, _DEFAULT_SCALE)
    return tpch_tables(folder) if folder.is_dir() else find_tables(sample_folder())
