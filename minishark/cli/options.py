"""Options that several commands share, and the validation of their values."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from minishark.errors import OptionError
from minishark.model.debugging import DEBUG
from minishark.session.options import OPTIONS, Kind

TEXT_FORMATS = ("csv", "tsv", "json", "jsonlines", "markdown", "line")
FILE_FORMATS = ("parquet", "arrow")
FORMATS = ("table", *TEXT_FORMATS, *FILE_FORMATS)
"""Output formats; those of FILE_FORMATS are binary and need a file."""
_Command = TypeVar("_Command", bound=Callable[..., Any])


def cluster_arguments(
    nodes: int, cluster: str | None, memory_limit: int | None, warehouse: str | None
) -> dict[str, Any]:
    """Arguments of `minishark.connect`: a running cluster, or the nodes to start."""
    started = {"nodes": nodes} if cluster is None else {"cluster": cluster}
    return {**started, "memory_limit": memory_limit, "warehouse": warehouse}


# Click's callbacks: each checks or converts a value.


def _enable_debugging(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        os.environ[DEBUG] = "1"


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"minishark {version('minishark')}")
    except PackageNotFoundError:
        click.echo("minishark, not installed (a checkout)")
    context.exit()


def check_scale(
    _context: click.Context, _parameter: click.Parameter, scale: float | None
) -> float | None:
    """The scale is a positive number."""
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise OptionError(f"The scale must be a positive number such as 0.1, not {scale:g}.")
    return scale


def check_output_file(
    _context: click.Context, _parameter: click.Parameter, file: Path | None
) -> Path | None:
    """The file can be written, which should fail before a long run, not after."""
    if file is None:
        return None
    problem = None
    if file.is_dir():
        problem = "it is a folder"
    elif not file.parent.is_dir():
        problem = f"there is no folder {file.parent}"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        problem = "permission denied"
    if problem is not None:
        raise OptionError(f"Can't write to {file}: {problem}.")
    return file


# Decorators of commands, each of which adds one or several options.


debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_enable_debugging,
    help=f"Show tracebacks; so does {DEBUG}=1.",
)
version_option = click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)


def session_option(name: str, **settings: Any) -> Callable[[_Command], _Command]:
    """One of `connect`'s options, as OPTIONS has it; `settings` are click's that differ."""
    option = OPTIONS[name]
    derived: dict[str, Any] = {
        "metavar": option.kind.metavar,
        "help": option.help(default=settings.get("default") is None),
        "show_default": settings.get("default") is not None,
    }
    if option.kind is Kind.WHOLE:
        most = None if math.isinf(option.most) else int(option.most)
        derived["type"] = click.IntRange(int(option.least), most)
    flag = f"--{name.replace('_', '-')}"
    if option.kind is Kind.SIZE:
        derived["callback"] = lambda _context, _parameter, text: text and option.parsed(flag, text)
    return click.option(flag, **derived | settings)


keys_option = session_option(
    "keys",
    type=click.Path(exists=True, file_okay=False),
    metavar="FOLDER",
    envvar="MINISHARK_KEYS",
)
cluster_option = session_option("cluster", metavar="NAME|ADDRESS")
memory_option = session_option("memory_limit")
warehouse_option = session_option("warehouse", metavar="FOLDER|ADDRESS")
nodes_option = session_option("nodes", default=2)
verbose_option = click.option(
    "--verbose", "-v", is_flag=True, help="Print details of each step on stderr."
)


def count_option(
    name: str, description: str, *, default: int | None = None, minimum: int = 1
) -> Callable[[_Command], _Command]:
    """An option that takes an integer, at least `minimum`; `description` is its help."""
    return click.option(
        name,
        type=click.IntRange(min=minimum),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=description,
    )


def _several(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """A decorator that adds options, which `--help` lists in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# A session on a server.
_server_options = _several(
    click.option(
        "--server",
        metavar="ADDRESS",
        help="Use the session that `minishark serve` serves there: grpc://HOST:PORT, "
        "grpc+tls://HOST:PORT, or with USER:PASSWORD@ before the host.",
    ),
    click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="File with the server's token.",
    ),
    click.option(
        "--trust",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="PEM file of the certificate that the server has, or of who signed it.  "
        "[default: the system's]",
    ),
)

# The tables and the cluster, or a server.
data_options = _several(
    click.option(
        "--scale",
        type=float,
        callback=check_scale,
        help="Load TPC-H data that `minishark tpch` generated at this scale factor.  "
        "[default: 0.1 if it exists, else the bundled sample; the shell asks]",
    ),
    click.option(
        "--data",
        type=click.Path(path_type=Path),
        metavar="PATH",
        multiple=True,
        help="Load a file, or a folder of tables (files <table>.parquet, .csv, .json ..., or "
        "folders of such files). Repeatable. With --scale: the folder of all TPC-H data.",
    ),
    nodes_option,
    memory_option,
    _several(cluster_option, warehouse_option),
    _server_options,
)

# How and where results are written.
output_options = _several(
    click.option(
        "--format",
        "-f",
        "form",
        type=click.Choice(FORMATS),
        help="Output format.  [default: table]",
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
        "--rows",
        "rows_max",
        type=click.IntRange(min=0),
        metavar="N",
        default=100,
        show_default=True,
        help="Print at most N rows; 0 prints all. Only for the format table.",
    ),
    verbose_option,
)
