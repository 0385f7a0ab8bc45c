"""Options that several commands share, and the validation of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from minishark.errors import OptionError

TEXT_FORMATS = ("csv", "tsv", "json", "jsonlines", "markdown", "line")
FILE_FORMATS = ("parquet", "arrow")
FORMATS = ("table", *TEXT_FORMATS, *FILE_FORMATS)
"""Output formats; those of FILE_FORMATS are binary and need a file."""
_DEBUG = "MINISHARK_DEBUG"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def debugging() -> bool:
    """Whether errors are printed with their traceback."""
    return os.environ.get(_DEBUG, "") not in ("", "0")


def debug_option(command: _Command) -> _Command:
    """Add --debug to a command; MINISHARK_DEBUG=1 in the environment does the same."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_enable_debugging,
        help=f"Show tracebacks; so does {_DEBUG}=1.",
    )(command)


def version_option(command: _Command) -> _Command:
    """Add --version to a command."""
    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Show the version and exit.",
    )(command)


def keys_option(command: _Command) -> _Command:
    """Add --keys to a command."""
    return click.option(
        "--keys",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
        envvar="MINISHARK_KEYS",
        show_envvar=True,
        help="Folder of the cluster's keys, required for tcp; see `minishark cluster keygen`.",
    )(command)


def cluster_option(command: _Command) -> _Command:
    """Add --cluster to a command."""
    return click.option(
        "--cluster",
        metavar="NAME|ADDRESS",
        help="Use a running cluster: its name, if it was started on this machine, or the address "
        "of one of its nodes. MINISHARK_KEYS names the folder of its keys.",
    )(command)


def nodes_option(command: _Command) -> _Command:
    """Add --nodes to a command."""
    return click.option(
        "--nodes",
        type=click.IntRange(min=1),
        metavar="N",
        default=2,
        show_default=True,
        help="Nodes of the local cluster.",
    )(command)


def memory_option(command: _Command) -> _Command:
    """Add --memory-limit to a command, as a number of bytes."""
    return click.option(
        "--memory-limit",
        metavar="SIZE",
        callback=_memory_size,
        help="Memory limit of all started nodes together, such as 4GiB; what exceeds it spills to "
        "disk.  [default: MINISHARK_MEMORY_LIMIT, else 75% of the machine's]",
    )(command)


def verbose_option(command: _Command) -> _Command:
    """Add --verbose to a command."""
    return click.option(
        "--verbose", "-v", is_flag=True, help="Print details of each step on stderr."
    )(command)


def _memory_size(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | None:
    from minishark.worker.memory import parse_size

    return None if text is None else parse_size(text)


def cluster_arguments(nodes: int, cluster: str | None, memory_limit: int | None) -> dict[str, Any]:
    """Arguments of `minishark.connect`: a running cluster, or the nodes to start."""
    started = {"nodes": nodes} if cluster is None else {"cluster": cluster}
    return {**started, "memory_limit": memory_limit}


def check_scale(
    _context: click.Context, _parameter: click.Parameter, scale: float | None
) -> float | None:
    """A click callback: the scale is a positive number.

    Raises:
        OptionError: It is not.
    """
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise OptionError(f"The scale must be a positive number such as 0.1, not {scale:g}.")
    return scale


def check_output_file(
    _context: click.Context, _parameter: click.Parameter, file: Path | None
) -> Path | None:
    """A click callback: the file can be written, which should fail before a long run, not after.

    Raises:
        OptionError: It can't.
    """
    if file is None:
        return None
    folder = file.parent
    if file.is_dir() or not folder.is_dir():
        raise OptionError(f"Can't write to {file}: {_reason(file)}.")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise OptionError(f"Can't write to {file}: permission denied.")
    return file


def _reason(file: Path) -> str:
    return "it is a folder" if file.is_dir() else f"there is no folder {file.parent}"


def _enable_debugging(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        os.environ[_DEBUG] = "1"


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"minishark {version('minishark')}")
    except PackageNotFoundError:
        click.echo("minishark, not installed (a checkout)")
    context.exit()


def data_options(command: _Command) -> _Command:
    """Add --scale, --data, --nodes, --memory-limit and --cluster: the tables and the cluster."""
    for option in (
        cluster_option,
        memory_option,
        nodes_option,
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            metavar="PATH",
            multiple=True,
            help="Load a file, or a folder of Parquet tables (files <table>.parquet, or folders "
            "<table>/*.parquet). Repeatable. With --scale: the folder of all TPC-H data.",
        ),
        click.option(
            "--scale",
            type=float,
            callback=check_scale,
            help="Load TPC-H data that `minishark tpch` generated at this scale factor.  "
            "[default: 0.1 if it exists, else the bundled sample; the shell asks]",
        ),
    ):
        command = option(command)
    return command


def output_options(command: _Command) -> _Command:
    """Add --format, --output, --rows and --verbose: how and where results are written."""
    for option in (
        verbose_option,
        click.option(
            "--rows",
            "rows_max",
            type=click.IntRange(min=0),
            metavar="N",
            default=100,
            show_default=True,
            help="Print at most N rows; 0 prints all. Only for the format table.",
        ),
        click.option(
            "--output",
            "-o",
            type=click.Path(path_type=Path),
            metavar="FILE",
            callback=check_output_file,
            help="Write results to this file; its extension sets the default format.",
        ),
        click.option(
            "--format",
            "-f",
            "form",
            type=click.Choice(FORMATS),
            help="Output format.  [default: table]",
        ),
    ):
        command = option(command)
    return command
