"""`minishark` on a terminal: the interactive shell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def shell(*, scale: float | None, data: Sequence[Path], nodes: int, **cluster: Any) -> None:
    """Load tables into a cluster, then read and run statements until the user quits."""
    import minishark
    from minishark.cli.console import standard_error, standard_output
    from minishark.cli.data import chosen_tables, load_all
    from minishark.cli.options import cluster_arguments
    from minishark.cli.output import Output
    from minishark.cli.shell.commands import load_sample
    from minishark.cli.shell.interpreter import Interpreter
    from minishark.cli.shell.prompt import ask_until_over, confirm

    named = scale is not None or bool(data)
    tables = chosen_tables(scale, data) if named else {}
    output = Output(standard_output())
    output.fits_screen = True
    with minishark.connect(**cluster_arguments(nodes, **cluster)) as session:
        slots = f"{len(session.nodes())} nodes, {session.total_slots} slots"
        output.say(f"minishark {minishark.__version__}: {slots}. .help lists commands.")
        interpreter = Interpreter(
            session=session, output=output, errors=standard_error(), timer=True
        )
        load_all(session, tables, nodes)
        if not named and confirm("No data given. Load the bundled TPC-H sample?"):
            load_sample(interpreter)
        try:
            ask_until_over(interpreter)
        finally:
            output.close()
