"""Options that several commands share, and checks of their values."""

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
"""How answers can be written; those of FILE_FORMATS are no text, and need a file."""
_DEBUG = "MINISHARK_DEBUG"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def debugging() -> bool:
    """Whether errors shall show where they happened."""
    return os.environ.get(_DEBUG, "") not in ("", "0")


def debug_option(command: _Command) -> _Command:
    """Adds --debug to a command; MINISHARK_DEBUG=1 in the environment does the same."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_enable_debugging,
        help=f"Show tracebacks; so does {_DEBUG}=1.",
    )(command)


def version_option(command: _Command) -> _Command:
    """Adds --version to a command."""
    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_print_version,
        help="Show the version and exit.",
    )(command)


def keys_option(command: _Command) -> _Command:
    """Adds --keys to a command."""
    return click.option(
        "--keys",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        metavar="FOLDER",
        envvar="MINISHARK_KEYS",
        show_envvar=True,
        help="The cluster's keys, needed for tcp; `minishark cluster keygen` makes them.",
    )(command)


def cluster_option(command: _Command) -> _Command:
    """Adds --cluster to a command."""
    return click.option(
        "--cluster",
        metavar="CLUSTER",
        help="Use a cluster that runs already: the name that it was started with on this machine, "
        "or the address of one of its nodes. MINISHARK_KEYS names the folder of its keys.",
    )(command)


def memory_option(command: _Command) -> _Command:
    """Adds --memory-limit to a command, as a number of bytes."""
    return click.option(
        "--memory-limit",
        metavar="SIZE",
        callback=_memory_size,
        help="What the nodes may use that are started, all together, such as 4GiB; what is above "
        "goes to disk.  [default: MINISHARK_MEMORY_LIMIT, else 75% of the machine's]",
    )(command)


def _memory_size(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> int | None:
    from minishark.worker.memory import parse_size

    return None if text is None else parse_size(text)


def cluster_arguments(nodes: int, cluster: str | None, memory_limit: int | None) -> dict[str, Any]:
    """What `minishark.connect` is told: a cluster that runs already, or what nodes to start."""
    started = {"nodes": nodes} if cluster is None else {"cluster": cluster}
    return {**started, "memory_limit": memory_limit}


def check_scale(
    _context: click.Context, _parameter: click.Parameter, scale: float | None
) -> float | None:
    """A click callback: a scale is a positive number.

    Raises:
        OptionError: It is not.
    """
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise OptionError(
            f"A scale of {scale:g} means nothing; give a positive number such as 0.1."
        )
    return scale


def check_output_file(
    _context: click.Context, _parameter: click.Parameter, file: Path | None
) -> Path | None:
    """A click callback: the file can be written, as is better known before a long run.

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
    """Adds --scale, --data, --nodes, --memory-limit and --cluster: on what a command works."""
    for option in (
        cluster_option,
        memory_option,
        click.option(
            "--nodes",
            type=click.IntRange(min=1),
            default=2,
            show_default=True,
            help="Nodes of the local cluster.",
        ),
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            metavar="PATH",
            multiple=True,
            help="Work on a file, or on a folder of Parquet tables: files <table>.parquet, or "
            "folders <table> of files; may be repeated. With --scale: where the scales are kept.",
        ),
        click.option(
            "--scale",
            type=float,
            callback=check_scale,
            help="Work on TPC-H data that `minishark tpch` made at this scale.  [default: 0.1 if "
            "it is there, else the bundled sample; the shell asks]",
        ),
    ):
        command = option(command)
    return command


def output_options(command: _Command) -> _Command:
    """Adds --format, --output and --rows: how and where answers are written."""
    for option in (
        click.option(
            "--rows",
            "rows_max",
            type=click.IntRange(min=0),
            default=100,
            show_default=True,
            help="Rows of a table to print at most; 0 prints all. Other formats have all rows.",
        ),
        click.option(
            "--output",
            "-o",
            type=click.Path(path_type=Path),
            metavar="FILE",
            callback=check_output_file,
            help="Write answers to this file, as its name says unless --format does.",
        ),
        click.option(
            "--format",
            "-f",
            "form",
            type=click.Choice(FORMATS),
            help="How answers are written.  [default: table]",
        ),
    ):
        command = option(command)
    return command
