"""`minishark sql` and `minishark run`: statements over files, TPC-H data, or the sample."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from minishark.cli.options import (
    FILE_FORMATS,
    cluster_arguments,
    data_options,
    debug_option,
    output_options,
)

if TYPE_CHECKING:
    from minishark.cli.output import Output
    from minishark.cli.shell.interpreter import Interpreter
    from minishark.session.session import Session


_SMALL_BYTES = 64 << 20  # of tables, which one node loads sooner than two have started
# Options that say which session to use, and details of its start.
_OF_A_SESSION = (
    "scale", "data", "cluster", "server", "token_file", "trust", "warehouse", "memory_limit",
    "verbose",
)  # fmt: skip
_SQL_EXAMPLES = """\b
Examples:
  minishark sql "SELECT count(*) FROM lineitem"
  minishark sql "SELECT n_name, count(*) FROM nation JOIN supplier
                 ON n_nationkey = s_nationkey GROUP BY n_name ORDER BY 2 DESC" --scale 1
  minishark sql "EXPLAIN SELECT * FROM orders ORDER BY o_totalprice LIMIT 3"
  minishark sql "FROM events SELECT kind, count(*) GROUP BY ALL" --data events.csv --format json
  minishark sql "FROM 'folder/*.parquet'" --output all.parquet
  minishark sql "SELECT count(*) FROM orders" --server grpc://127.0.0.1:31337
  minishark sql "CREATE TABLE warehouse.visits AS FROM 'visits.csv'" --warehouse ~/warehouse
"""
_RUN_EXAMPLES = """\b
Examples:
  minishark run report.sql --data folder/of/tables --format csv > report.csv
  echo "SELECT 42;" | minishark run -
"""


@click.command(epilog=_SQL_EXAMPLES)
@click.argument("statement")
@data_options
@output_options
@debug_option
def sql(*, statement: str, **options: Any) -> None:
    """Run SQL statements and print their results.

    EXPLAIN prints the logical plan, the physical plan and the stages of a query; EXPLAIN ANALYZE
    runs it and prints figures of each stage.

    Exit status: 0; 1 if a statement fails; 2 for wrong usage; 130 after Ctrl-C.
    """
    if not any(options[name] for name in _OF_A_SESSION):
        from minishark.cli.constants import constant_answer

        answer = constant_answer(statement)
        if answer is not None:
            with (
                _passed_on(),
                results_to(options["form"], options["output"], options["rows_max"]) as out,
            ):
                out.write(answer)
            return
    with interpreter(statement, **options) as shell:
        shell.run_text(statement, "")


@click.command(epilog=_RUN_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@data_options
@output_options
@debug_option
def run(*, file: Path, **options: Any) -> None:
    """Run a script of statements and dot-commands; - reads stdin.

    Stops at the first error and prints its line number. Exit status as of `minishark sql`.
    """
    from minishark.cli.shell.interpreter import read_script

    text = sys.stdin.read() if str(file) == "-" else read_script(file)
    with interpreter(text, **options) as shell:
        shell.run_text(text, "stdin" if str(file) == "-" else str(file))


class ClosedPipeError(Exception):
    """The reader of stdout is gone. Not an OSError, which click would turn into status 1."""


@contextmanager
def interpreter(
    text: str,
    *,
    form: str | None,
    output: Path | None,
    rows_max: int,
    verbose: bool,
    scale: float | None,
    data: Sequence[Path],
    nodes: int,
    **cluster: Any,
) -> Iterator[Interpreter]:
    """A session with the tables that a script needs, and an interpreter for it."""
    from minishark.cli.console import standard_error
    from minishark.cli.data import chosen_tables, load_all
    from minishark.cli.shell.interpreter import Interpreter

    named = scale is not None or bool(data)
    has_own = cluster["server"] is not None or cluster["warehouse"] is not None  # tables
    has_shared = cluster["cluster"] is not None and not named
    tables = chosen_tables(scale, data) if named or not has_own else {}
    needed = _needed(text, tables, has_others=has_shared) if tables else {}
    by_default = click.get_current_context().get_parameter_source("nodes")
    if by_default is ParameterSource.DEFAULT and _bytes(needed) < _SMALL_BYTES:
        nodes = 1
    with results_to(form, output, rows_max) as answers, _session(nodes, **cluster) as session:
        load_all(session, needed, nodes, verbose=verbose)
        with _passed_on():
            yield Interpreter(session=session, output=answers, errors=standard_error())


@contextmanager
def results_to(form: str | None, file: Path | None, rows_max: int) -> Iterator[Output]:
    """Where answers go."""
    from minishark.cli.console import standard_output
    from minishark.cli.formats import format_of
    from minishark.cli.output import Output

    form = form or (format_of(file) if file else "table")
    if form in FILE_FORMATS and file is None:
        raise click.BadParameter(f"{form} is a binary format: name a file with --output.")
    answers = Output(standard_output(), rows_max=rows_max or None)
    answers.set_form(form, file)
    try:
        yield answers
    finally:
        answers.close()


@contextmanager
def _passed_on() -> Iterator[None]:
    """Tells a closed pipe of results from other errors."""
    try:
        yield
    except BrokenPipeError as error:
        raise ClosedPipeError from error


@contextmanager
def _session(
    nodes: int,
    *,
    server: str | None,
    token_file: Path | None,
    trust: Path | None,
    **own: Any,
) -> Iterator[Session]:
    """The session to run statements in: one on a server, or one of this process."""
    if server is None:
        if token_file is not None or trust is not None:
            raise click.UsageError("--token-file and --trust go with --server.")
        from minishark.session.connect import connect

        with connect(**cluster_arguments(nodes, **own)) as session:
            yield session
        return
    if any(value is not None for value in own.values()):
        raise click.UsageError(
            "A server has its cluster: --cluster, --memory-limit and --warehouse are its options."
        )
    from minishark.adapters.flight.access import read_token
    from minishark.adapters.flight.client import RemoteSession

    token = None if token_file is None else read_token(token_file)
    with RemoteSession(server, token=token, certificate=trust) as remote:
        yield cast("Session", remote)  # it has what the shell asks of a session


def _needed(text: str, tables: Mapping[str, str], *, has_others: bool) -> Mapping[str, str]:
    """The tables that the statements of a script read, so that only these are loaded."""
    import duckdb

    from minishark.cli.shell.interpreter import split
    from minishark.cli.tpch.tables import tables_of_query

    needed: dict[str, str] = {}
    earlier = ""
    with duckdb.connect() as parser:
        for entry in split(text):
            if entry.is_command:
                return tables
            needed |= tables_of_query(parser, entry.text, tables, earlier, has_others=has_others)
            earlier += entry.text
    return {name: path for name, path in tables.items() if name in needed}


def _bytes(tables: Mapping[str, str]) -> int:
    """The size of the files that tables are read from."""
    files = (file for path in map(Path, tables.values()) for file in path.parent.glob(path.name))
    return sum(file.stat().st_size for file in files)


def shell(*, scale: float | None, data: Sequence[Path], nodes: int, **cluster: Any) -> None:
    """Load tables into a cluster, then read and run statements until the user quits."""
    from minishark.cli.console import standard_error, standard_output
    from minishark.cli.data import chosen_tables, load_all
    from minishark.cli.output import Output
    from minishark.cli.shell.commands import load_sample
    from minishark.cli.shell.interpreter import Interpreter
    from minishark.cli.shell.prompt import ask_until_over, confirm
    from minishark.cluster.wire import own_versions

    named = scale is not None or bool(data)
    tables = chosen_tables(scale, data) if named else {}
    output = Output(standard_output())
    output.fits_screen = output.pages = True
    server = cluster["server"]
    if server is None and cluster["cluster"] is None:
        output.say(f"Starting {nodes} nodes ...")
    with _session(nodes, **cluster) as session:
        place = server and urlsplit(server).netloc.rpartition("@")[2]
        place = place or f"{len(session.nodes())} nodes, {session.total_slots} slots"
        output.say(f"minishark {own_versions()['minishark']}: {place}. .help lists commands.")
        interpreter = Interpreter(
            session=session, output=output, errors=standard_error(), timer=True
        )
        load_all(session, tables, nodes)
        if (
            server is None
            and not named
            and cluster["warehouse"] is None
            and confirm("No data given. Load the bundled TPC-H sample?")
        ):
            load_sample(interpreter)
        try:
            ask_until_over(interpreter)
        finally:
            output.close()
