"""`minishark cluster`: clusters that outlive the programs that use them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from minishark.cli.options import debug_option, keys_option, memory_option

if TYPE_CHECKING:
    from minishark.cluster.survey import Survey

_DEFAULT = "default"
_GROUP_EXAMPLES = """\b
Examples:
  minishark cluster start                  a cluster on this machine, in the background
  minishark sql "FROM range(3)" --cluster default
  minishark cluster status
  minishark cluster stop
"""
_START_EXAMPLES = """\b
Examples:
  minishark cluster start --nodes 2 --executors-per-node 2
  minishark cluster keygen ~/keys                      then copy ~/keys to all machines
  minishark cluster start --listen tcp://10.0.0.1:7077 --keys ~/keys
  minishark cluster start --listen tcp://10.0.0.2:7077 --keys ~/keys --join tcp://10.0.0.1:7077
"""
_NODE_EXAMPLES = """\b
Examples:
  minishark cluster node --listen tcp://10.0.0.1:7077 --keys ~/keys
  minishark cluster node --listen tcp://10.0.0.2:7077 --keys ~/keys --join tcp://10.0.0.1:7077
"""

_executors_help = "Executor processes of each node; each runs one task at a time."
_join_option = click.option(
    "--join",
    multiple=True,
    metavar="ADDRESS",
    help="A node of the cluster that has a scheduler; may be given several times, the same on all "
    "machines: a node whose own address is named has a scheduler.",
)


@click.group(epilog=_GROUP_EXAMPLES)
def cluster() -> None:
    """Start, look at and stop clusters that outlive sessions.

    Programs attach with minishark.connect("NAME or ADDRESS"), commands with --cluster.
    """


@cluster.command(epilog=_START_EXAMPLES)
@click.option("--name", default=_DEFAULT, show_default=True, help="To find it by.")
@click.option("--nodes", type=click.IntRange(min=1), help="[default: 2, or 1 with --listen]")
@click.option("--executors-per-node", type=click.IntRange(min=1), help=_executors_help)
@memory_option
@click.option(
    "--listen",
    metavar="tcp://HOST:PORT",
    help="Where other machines reach the first node; it needs the next port, too, and each further "
    "node two more.  [default: this machine only]",
)
@click.option("--bind", metavar="tcp://ADDRESS", help="Listen here if not at HOST.")
@_join_option
@keys_option
@debug_option
def start(
    *,
    name: str,
    nodes: int | None,
    executors_per_node: int | None,
    memory_limit: int | None,
    listen: str | None,
    bind: str | None,
    join: tuple[str, ...],
    keys: Path | None,
) -> None:
    """Start a cluster, or nodes of one, in the background.

    Prints the address for minishark.connect.
    """
    from minishark.cluster.launch import StartOptions, default_executors, start_cluster

    count = nodes or (1 if listen else 2)
    options = StartOptions(
        name,
        count,
        executors_per_node or default_executors(count),
        memory_limit,
        listen,
        bind,
        join,
        None if keys is None else str(keys),
    )
    record = start_cluster(options)
    click.echo(record.address)


@cluster.command(epilog=_NODE_EXAMPLES)
@click.option("--name", help="Unique in the cluster.  [default: from its address]")
@click.option("--cluster", "cluster_name", default=_DEFAULT, help="The cluster's name.")
@click.option("--executors", type=click.IntRange(min=1), default=1, help=_executors_help)
@memory_option
@click.option(
    "--listen",
    metavar="tcp://HOST:PORT",
    required=True,
    help="Where others reach it; it needs the next port, too.",
)
@click.option("--bind", metavar="tcp://ADDRESS", help="Listen here if not at HOST.")
@_join_option
@keys_option
@debug_option
def node(
    *,
    name: str | None,
    cluster_name: str,
    executors: int,
    memory_limit: int | None,
    listen: str,
    bind: str | None,
    join: tuple[str, ...],
    keys: Path | None,
) -> int:
    """Run one node until it is told to end, for Slurm, ssh, Ray and other launchers."""
    from minishark.cluster.launch import bind_address, node_name
    from minishark.cluster.node import NodeOptions, run

    options = NodeOptions(
        name or node_name(listen),
        listen,
        cluster_name,
        join,
        executors,
        memory_limit,
        bind_address(bind, listen),
        None if keys is None else str(keys.absolute()),
    )
    return run(options, lambda peer: click.echo(f"node {peer.name} at {peer.service}"))


@cluster.command()
@click.argument("which", metavar="[CLUSTER]", default=_DEFAULT)
@click.option("--json", "as_json", is_flag=True, help="All that is known, for programs.")
@keys_option
@debug_option
def status(*, which: str, as_json: bool, keys: Path | None) -> None:
    """Show nodes, processes, memory, and the sessions that use CLUSTER (a name or an address)."""
    import msgspec

    from minishark.cluster.launch import resolve
    from minishark.cluster.survey import survey

    found = survey(*resolve(which, None if keys is None else str(keys)))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)))
    else:
        _show(found)


@cluster.command()
@click.argument("name", default=_DEFAULT)
@debug_option
def stop(*, name: str) -> None:
    """Stop the nodes of cluster NAME that run on this machine; its sessions lose their tables."""
    from minishark.cluster.launch import stop_cluster

    record = stop_cluster(name)
    click.echo(f"Stopped {record.name}.")


@cluster.command()
@click.argument("folder", type=click.Path(path_type=Path))
@debug_option
def keygen(*, folder: Path) -> None:
    """Make the keys of a cluster in FOLDER, and print the public one.

    Copy FOLDER to all machines. Or make keys on each, and put the public ones of all into every
    allowed.keys; then addresses need the other's public key: tcp://HOST:PORT/KEY.
    """
    from minishark.cluster.launch import make_keys

    click.echo(make_keys(folder))


def _show(found: Survey) -> None:
    from rich.table import Table

    from minishark.cli.console import standard_output

    console = standard_output()
    console.print(f"cluster {found.cluster} at {found.address}", markup=False)
    for scheduler, up in found.schedulers.items():
        console.print(f"scheduler {scheduler}: {'up' if up else 'silent'}", markup=False)
    nodes = Table(box=None, pad_edge=False)
    for column in ("node", "pid", "slots", "running", "queued", "memory free", "shared free"):
        nodes.add_column(column)
    for each in found.nodes:
        free = f"{_gb(each.memory_free_bytes)} of {_gb(each.memory_total_bytes)}"
        counts = (each.pid or "silent", each.slots, each.running, each.queued)
        nodes.add_row(each.name, *map(str, counts), free, _gb(each.shared_memory_free_bytes))
    console.print(nodes)
    sessions = Table(box=None, pad_edge=False)
    for column in ("session", "user", "pid", "files", "held"):
        sessions.add_column(column)
    for one in found.sessions:
        sessions.add_row(one.name, one.user, str(one.pid), str(one.files), _gb(one.bytes))
    console.print(sessions if found.sessions else "no sessions")


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
