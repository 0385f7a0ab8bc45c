"""The command group; exit statuses and error messages of all commands."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, cast

import click
from click.core import ParameterSource

from minishark.cli.cluster_command import cluster as cluster_group
from minishark.cli.jobs_command import jobs, submit
from minishark.cli.options import data_options, debug_option, version_option
from minishark.cli.serve_command import serve
from minishark.cli.sql_command import ClosedPipeError, sql
from minishark.cli.sql_command import run as run_file
from minishark.cli.tables_command import tables
from minishark.cli.ui_command import ui
from minishark.errors import DataError, MinisharkError, OptionError
from minishark.model.debugging import debugging

# Errors that the user fixes by writing the command differently.
_BAD_USAGE = (DataError, OptionError)
# Entry points by which installed packages add commands; those of ours, with the extra they are in.
_COMMANDS = "minishark.commands"
_OPTIONAL = {"bench": "lab", "tpch": "tpch"}
_STATUS_FAILURE = 1
_STATUS_BAD_USAGE = 2
_STATUS_CLOSED_PIPE = 128 + signal.SIGPIPE
_STATUS_INTERRUPTED = 128 + signal.SIGINT
# Signals received. The exception that a handler raises may reach `run` as another one: DuckDB
# replaces it by its own, and cleaning up may fail on what was interrupted.
_received: list[int] = []


def main() -> NoReturn:
    """Run the `minishark` command as a program: install signal handlers, run, exit."""
    signal.signal(signal.SIGINT, _interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    status = run(sys.argv[1:])
    sys.exit(128 + _received[0] if _received else status)


def run(arguments: Sequence[str]) -> int:
    """Run one command, and print why it failed on stderr, if it did; the exit status."""
    try:
        # A command returns its status; click's own options, such as --help, end with 0.
        return int(group.main(list(arguments), prog_name="minishark", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _STATUS_INTERRUPTED
    except ClosedPipeError:
        # Flushing the rest of stdout's buffer at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _STATUS_CLOSED_PIPE
    except Exception as error:  # noqa: BLE001 - no traceback unless asked for
        if _received:
            return _STATUS_INTERRUPTED
        _complain(error)
        return _STATUS_BAD_USAGE if isinstance(error, _BAD_USAGE) else _STATUS_FAILURE


_EPILOG = """\b
Examples:
  minishark                            a shell; offers to load the bundled sample
  minishark --data events.parquet      a shell with the table events
  minishark sql "SELECT 42"            one statement
  minishark < statements.sql           a script

Help of a command: minishark tpch --help
"""


class _Commands(click.Group):
    """The commands here, and those of other packages, which are imported when they are called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted({*super().list_commands(context), *entry_points(group=_COMMANDS).names})

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if (command := super().get_command(context, name)) is not None:
            return command
        for entry in entry_points(group=_COMMANDS, name=name):
            return cast("click.Command", entry.load())
        if name in _OPTIONAL:
            raise click.UsageError(
                f"`minishark {name}` is not installed: pip install 'minishark[{_OPTIONAL[name]}]'."
            )
        return None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
    invoke_without_command=True,
)
@data_options
@version_option
@debug_option
@click.pass_context
def group(context: click.Context, /, **options: Any) -> None:
    """Distributed SQL on DuckDB executors and a Sparrow scheduler.

    Without a command: an interactive shell, or the statements on stdin if it is not a terminal.
    """
    if (command := context.invoked_subcommand) is not None:
        for parameter in context.command.params:  # those of the shell, which a command ignores
            given = context.get_parameter_source(parameter.name or "")
            if parameter.expose_value and given is ParameterSource.COMMANDLINE:
                wrong = f"{parameter.opts[0]} stands before {command}: write it after {command}."
                raise click.UsageError(wrong, context)
        return
    if sys.stdin.isatty() and sys.stdout.isatty():
        from minishark.cli.sql_command import shell

        shell(**options)
    else:
        context.invoke(run_file, file=Path("-"), **options)


for _command in (cluster_group, jobs, serve, sql, run_file, submit, tables, ui):
    group.add_command(_command)


def _complain(error: Exception) -> None:
    from minishark.cli.shell.interpreter import error_text

    if debugging():
        traceback.print_exc()
    if isinstance(error, MinisharkError):
        click.echo(f"Error: {error_text(error)}", err=True)
    else:
        message = f"{type(error).__name__}: {error_text(error)}"
        click.echo(f"Error: {message}\n(Run with --debug for a traceback.)", err=True)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    _received.append(number)
    raise KeyboardInterrupt


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    # Ends by an exception, so that `finally` blocks run and no process or file is left behind.
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    _received.append(number)
    raise SystemExit(128 + number)
