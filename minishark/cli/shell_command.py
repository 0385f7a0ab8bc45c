"""`minishark` on a terminal: the interactive shell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def shell(
    *,
    scale: float | None,
    data: Sequence[Path],
    nodes: int,
    cluster: str | None,
    memory_limit: int | None,
) -> None:
    """Load tables into a cluster, then read and run statements until the user quits.

    Raises:
        MinisharkError: The data is missing, or the cluster does not start.
    """
    import minishark
    from minishark.cli.console import open_reporter, standard_error, standard_output
    from minishark.cli.data import chosen_tables
    from minishark.cli.options import cluster_arguments
    from minishark.cli.output import Output
    from minishark.cli.shell.commands import load_sample
    from minishark.cli.shell.interpreter import Interpreter
    from minishark.cli.shell.prompt import ask_until_over, confirm
    from minishark.tpch.run import default_replicas
    from minishark.tpch.tables import load_tables

    named = scale is not None or bool(data)
    tables = chosen_tables(scale, data) if named else {}
    output = Output(standard_output())
    output.fits_screen = True
    with minishark.connect(**cluster_arguments(nodes, cluster, memory_limit)) as session:
        slots = f"{len(session.nodes())} nodes, {session.total_slots} slots"
        output.say(f"minishark {minishark.__version__}: {slots}. .help lists commands.")
        interpreter = Interpreter(session, output, standard_error(), timer=True)
        with open_reporter(verbose=False) as reporter:
            load_tables(session, tables, reporter, replicas=default_replicas(nodes))
            for warning in session.warnings:
                reporter.warning(warning)
        if not named and confirm("No data given. Load the bundled TPC-H sample?"):
            load_sample(interpreter)
        try:
            ask_until_over(interpreter)
        finally:
            output.close()
