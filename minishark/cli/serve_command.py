"""`minishark serve`: a session for other programs, by Flight SQL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from minishark.cli.options import (
    cluster_arguments,
    cluster_option,
    count_option,
    debug_option,
    memory_option,
    nodes_option,
    verbose_option,
    warehouse_option,
)

_PORT = 31337
_POLL_S = 1.0
_EXAMPLES = """\b
Examples:
  minishark serve --data sales/                    tables for programs of this machine
  minishark serve --cluster default                tables of clients, in a running cluster
  minishark serve --warehouse ~/warehouse          tables that stay
  minishark serve --flight 10.0.0.1:31337 --certificate cert.pem key.pem --token-file token
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--flight",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{_PORT}",
    show_default=True,
    help="Where to listen for Flight SQL; port 0 for any that is free. Other machines reach a "
    "server only with --certificate, and --token-file or --password-file.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="PATH",
    multiple=True,
    help="Load a file, or a folder of tables. Repeatable.",
)
@nodes_option
@memory_option
@cluster_option
@warehouse_option
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with lines TOKEN, or TOKEN DATE for one that ends, of which clients must send one. "
    "It may change.",
)
@click.option(
    "--password-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with lines user:password, of which clients must send one. It may change.",
)
@click.option(
    "--certificate",
    nargs=2,
    metavar="CERTIFICATE KEY",
    type=click.Path(exists=True, dir_okay=False),
    help="PEM files of a certificate and its private key, for TLS.",
)
@count_option("--max-connections", "Connections at a time.", default=200)
@count_option("--max-running", "Statements that run at a time, in all.", default=100)
@count_option("--max-running-each", "The same, of one connection.", default=16)
@count_option(
    "--max-refused",
    "Calls from one address in a minute that show no valid token or password.",
    default=30,
)
@click.option(
    "--idle",
    "idle_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    default=1800.0,
    show_default=True,
    help="End connections that nobody uses for so long.",
)
@verbose_option
@debug_option
def serve(
    *,
    flight: str,
    data: Sequence[Path],
    nodes: int,
    memory_limit: int | None,
    cluster: str | None,
    warehouse: str | None,
    token_file: Path | None,
    password_file: Path | None,
    verbose: bool,
    **options: Any,
) -> None:
    """Serve a session to other programs by Arrow Flight SQL.

    Ctrl-C ends it. All clients see the same tables and views; settings, temporary tables, prepared
    statements and the current schema are each connection's own. docs/tools.md says how tools
    connect.
    """
    from minishark.adapters.flight.access import Access, check_exposure
    from minishark.cli.data import chosen_tables, load_all
    from minishark.session.connect import connect

    host, port = _place(flight)
    who: dict[str, Any] = {"token": token_file, "users": password_file or {}}
    check_exposure(host, Access(**who), has_tls=bool(options["certificate"]))
    tables = chosen_tables(None, data) if data else {}
    started = cluster_arguments(nodes, cluster, memory_limit, warehouse)
    with connect(**started) as session:
        load_all(session, tables, nodes, verbose=verbose)
        served = session.serve(host=host, port=port, **who, **options)
        click.echo(f"Serving {served.address}")
        while not served.wait(_POLL_S):
            pass


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter("write HOST:PORT, such as 127.0.0.1:31337.", param_hint="--flight")
    return host.strip("[]"), int(port)
