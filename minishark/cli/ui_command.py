"""`minishark ui`: the page of a running cluster, or of a history."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minishark.cli.options import debug_option, keys_option

if TYPE_CHECKING:
    from minishark.session.page.server import PageServer
    from minishark.session.page.site import Site
    from minishark.session.page.sources import Source

_DEFAULT = "default"
_POLL_S = 0.5
_START_S = 30.0
_EXAMPLES = """\b
Examples:
  minishark ui                                     the running cluster `default`
  minishark ui tcp://10.0.0.1:7077 --keys ~/keys   a cluster of several machines
  minishark ui history/                            what connect(event_log="history") has written
  minishark ui history/ --export query.html        the newest query there, as one file
"""


@click.command(epilog=_EXAMPLES)
@click.argument("source", metavar="[CLUSTER|EVENTS]", default=_DEFAULT)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port.  [default: any that is free]"
)
@click.option(
    "--listen",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; other machines reach only one with --certificate.",
)
@click.option(
    "--certificate",
    nargs=2,
    metavar="CERTIFICATE KEY",
    type=click.Path(exists=True, dir_okay=False),
    help="PEM files of a certificate and its private key, for https.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Read the address's token from FILE, so that Prometheus and bookmarks keep it.",
)
@click.option("--open/--no-open", "opens", default=None, help="Open a browser, or don't.")
@click.option(
    "--export",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a query's page to FILE instead of serving pages.",
)
@click.option(
    "--query", "key", metavar="QUERY", help="Query to export.  [default: the newest that is over]"
)
@click.option(
    "--while-running", is_flag=True, hidden=True, help="End when the cluster has stopped."
)
@keys_option
@debug_option
def ui(
    *,
    source: str,
    port: int,
    listen: str,
    certificate: tuple[str, str] | None,
    token_file: Path | None,
    opens: bool | None,
    target: Path | None,
    key: str | None,
    while_running: bool,
    keys: str | None,
) -> None:
    """Show what a cluster does, or did, on a page in the browser.

    CLUSTER is the name or address of a running cluster, EVENTS a file or folder of events that
    connect(event_log=FOLDER) has written. A session of your own shows its page with session.ui().
    """
    from minishark.adapters.flight.access import read_token
    from minishark.session.page.server import PageServer
    from minishark.session.page.site import Site

    opened, is_live = _opened(source, keys)
    with contextlib.closing(opened):
        site = Site([opened], can_cancel=is_live)
        if target is not None:
            _export(site, target, key)
            return
        token = None if token_file is None else read_token(token_file)
        server = PageServer(site, host=listen, port=port, certificate=certificate, token=token)
        _serve(server, opens, source if while_running else None)


def start_page(cluster: str) -> str:
    """Serve a cluster's page from a process of its own, which ends with it; the page's address.

    Raises:
        ClusterError: the process did not start.
    """
    from minishark.errors import ClusterError

    command = [sys.executable, "-m", "minishark.cli", "ui", cluster]
    process = subprocess.Popen(
        [*command, "--no-open", "--while-running"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    said = process.stdout.readline().strip() if ready else "it said nothing"
    if not said.startswith("http"):
        process.kill()
        raise ClusterError(f"The page of cluster {cluster} did not start: {said}")
    return said


def _opened(source: str, keys: str | None) -> tuple[Source, bool]:
    """The source of events that an argument names, and whether it is live."""
    from minishark.cluster.launch import resolve
    from minishark.cluster.sharing import ClusterEvents
    from minishark.session.page.sources import HistorySource

    if source.endswith(".jsonl") or Path(source).exists():
        return HistorySource(source), False
    return ClusterEvents(*resolve(source, keys)), True


def _serve(server: PageServer, opens: bool | None, cluster: str | None) -> None:
    """Serve until the user has enough, or a cluster has stopped."""
    from minishark.cluster.launch import find_cluster
    from minishark.errors import ClusterError
    from minishark.session.session_page import show

    server.start()
    try:
        click.echo(server.address)
        show(server.address, opens)
        while not server.site.is_stopped:
            server.site.await_stop(_POLL_S)
            if cluster is not None:
                find_cluster(cluster)
    except ClusterError:
        pass  # it has stopped
    finally:
        server.stop()


def _export(site: Site, target: Path, key: str | None) -> None:
    from minishark.errors import DataError, OptionError
    from minishark.session.page.export import export_query, newest_query

    site.poll()
    chosen = key or site.look(newest_query)
    document = site.look(lambda board: export_query(board, chosen)) if chosen else None
    if document is None:
        raise OptionError(
            f"There is no query {key!r}; a query's address on the page ends with its name."
            if key
            else "There is no query that is over."
        )
    try:
        target.write_text(document, encoding="utf-8")
    except OSError as error:
        raise DataError(f"{target} can't be written: {error.strerror}.") from error
