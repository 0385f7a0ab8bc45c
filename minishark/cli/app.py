"""The command group, and what every way of ending a command looks like from outside."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from minishark.cli.options import debug_option, debugging, version_option
from minishark.cli.sql_command import sql
from minishark.cli.tpch_command import tpch
from minishark.errors import (
    CatalogError,
    DataError,
    MinisharkError,
    OptionError,
    QueryError,
    UnsupportedError,
)

# What the user can mend by asking for something else.
_BAD_INPUT = (CatalogError, DataError, OptionError, QueryError, UnsupportedError)
_STATUS_FAILURE = 1
_STATUS_BAD_INPUT = 2
_STATUS_INTERRUPTED = 128 + signal.SIGINT
# The signal that ends the command. What it raises may reach `run` as another exception: DuckDB
# turns it into one of its own, and tidying up may fail on what was interrupted.
_received: list[int] = []


def main() -> NoReturn:
    """The `minishark` command, as a program."""
    signal.signal(signal.SIGINT, _interrupt)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    status = run(sys.argv[1:])
    sys.exit(128 + _received[0] if _received else status)


def run(arguments: Sequence[str]) -> int:
    """Runs one command and says on stderr why it failed, if it did.

    Returns:
        The exit status.
    """
    try:
        # A command returns its status; click's own options, such as --help, end with 0.
        return int(group.main(list(arguments), prog_name="minishark", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _STATUS_INTERRUPTED
    except MinisharkError as error:
        if _received:
            return _STATUS_INTERRUPTED
        _complain(str(error))
        return _STATUS_BAD_INPUT if isinstance(error, _BAD_INPUT) else _STATUS_FAILURE
    except Exception as error:  # noqa: BLE001 - no traceback unless asked for
        if _received:
            return _STATUS_INTERRUPTED
        _complain(f"{type(error).__name__}: {error}\n(--debug shows where this happened.)")
        return _STATUS_FAILURE


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each command has its own help: minishark tpch --help",
)
@version_option
@debug_option
def group() -> None:
    """SQL over replicated in-memory Arrow partitions, scheduled by Sparrow."""


group.add_command(sql)
group.add_command(tpch)


def _complain(message: str) -> None:
    if debugging():
        traceback.print_exc()
    click.echo(f"Error: {message}", err=True)


def _interrupt(number: int, _frame: FrameType | None) -> NoReturn:
    _received.append(number)
    raise KeyboardInterrupt


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    # As an exception, so that what `finally` promises is done: no process or file is left.
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    _received.append(number)
    raise SystemExit(128 + number)
