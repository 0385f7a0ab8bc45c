"""`minishark cluster`: clusters that outlive sessions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minishark.cli.options import count_option, debug_option, keys_option, memory_option
from minishark.errors import OptionError

if TYPE_CHECKING:
    from minishark.cluster.launch import NodeProcess
    from minishark.cluster.status import Survey
    from minishark.model.events.kinds import NodeReport

_DEFAULT = "default"
# What --json says of sessions, and of what nodes use.
_SESSION = ("name", "user", "pid", "host", "files", "bytes")
_USAGE = ("memory_free_bytes", "memory_total_bytes", "shared_memory_free_bytes", "sessions")
_GROUP_EXAMPLES = """\b
Examples:
  minishark cluster start                  start a cluster on this machine
  minishark sql "FROM range(3)" --cluster default
  minishark cluster list                   those on this machine
  minishark cluster status                 nodes, memory and sessions of one
  minishark ui                             its page in the browser
  minishark cluster drain node-1           have a node leave without loss
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

_EXECUTORS_HELP = "Executor processes per node; each runs one task at a time."
_BIND_OPTION = click.option(
    "--bind", metavar="tcp://ADDRESS", help="Bind to this interface instead of HOST."
)
_DRAIN_OPTION = click.option(
    "--drain-limit",
    "drain_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="When it is drained (SIGTERM), end after this time even if sessions still need the node.",
)
_JOIN_OPTION = click.option(
    "--join",
    multiple=True,
    metavar="ADDRESS",
    help="Node of the cluster that runs a scheduler. Repeatable; pass the same list on all "
    "machines: a node runs a scheduler if its own address is in it. Or @FILE on a shared folder: "
    "the first node writes its address to it.",
)


@click.group(epilog=_GROUP_EXAMPLES)
def cluster() -> None:
    """Start, inspect and stop clusters that outlive sessions.

    Programs connect with minishark.connect("NAME or ADDRESS"), commands with --cluster.
    """


@cluster.command(epilog=_START_EXAMPLES)
@click.option("--name", default=_DEFAULT, show_default=True, help="Name of the cluster.")
@count_option("--nodes", "Nodes to start.  [default: 2, or 1 with --listen]")
@count_option("--executors-per-node", f"{_EXECUTORS_HELP}  [default: CPUs / nodes]", minimum=0)
@memory_option
@click.option(
    "--listen",
    metavar="tcp://HOST:PORT",
    help="Address of the first node for other machines; every node takes two ports, from PORT on."
    "  [default: this machine only]",
)
@_BIND_OPTION
@_JOIN_OPTION
@click.option(
    "--ui", "shows", is_flag=True, help="Serve the cluster's page, and print its address."
)
@keys_option
@click.option("--on", "platform", metavar="PLATFORM", help="Start it on a platform, such as ray.")
@count_option("--cpus-per-node", "With --on: cores that each node takes.  [default: a machine's]")
@debug_option
def start(
    *,
    shows: bool,
    nodes: int | None,
    executors_per_node: int | None,
    memory_limit: int | None,
    listen: str | None,
    platform: str | None,
    cpus_per_node: int | None,
    **options: Any,
) -> None:
    """Start a cluster in the background, and print its address.

    With --join, start more nodes of a running cluster. With --on ray, start one on the machines of
    a Ray cluster: by default a node on each.
    """
    if platform is not None:
        _start_on(platform, nodes, cpus_per_node, executors_per_node, memory_limit, options["name"])
        return
    if cpus_per_node is not None:
        raise OptionError("--cpus-per-node goes with --on; use --executors-per-node.")
    from minishark.cluster.launch import StartOptions, default_executors, start_cluster

    count = nodes or (1 if listen else 2)
    chosen = StartOptions(
        nodes=count,
        executors_per_node=(
            default_executors(count) if executors_per_node is None else executors_per_node
        ),
        memory_limit_bytes=memory_limit,
        listen=listen,
        **options,
    )
    click.echo(start_cluster(chosen).address)
    if shows:
        from minishark.cli.ui_command import start_page

        click.echo(start_page(chosen.name))


def _start_on(
    where: str,
    nodes: int | None,
    cpus_per_node: int | None,
    executors_per_node: int | None,
    memory_limit: int | None,
    name: str,
) -> None:
    from minishark.cluster.platforms import Shape, platform

    shape = Shape(
        nodes=nodes,
        cpus_per_node=cpus_per_node,
        executors_per_node=executors_per_node,
        memory_limit_bytes=memory_limit,
    )
    for sentence in platform(where).start(name, shape):
        click.echo(sentence, err=True)
    click.echo(f"{where}:{name}")


@cluster.command(epilog=_NODE_EXAMPLES)
@click.option("--name", help="Unique name of the node.  [default: from its address]")
@click.option(
    "--cluster", "cluster_name", default=_DEFAULT, show_default=True, help="Name of the cluster."
)
@count_option("--executors", f"{_EXECUTORS_HELP} 0 for a scheduler only.", default=1, minimum=0)
@memory_option
@click.option(
    "--listen",
    metavar="tcp://HOST:PORT",
    help="Address of the node for other machines; it takes the next port, too. Needed unless it "
    "joins @FILE: then a free port of this machine.",
)
@_BIND_OPTION
@_JOIN_OPTION
@_DRAIN_OPTION
@keys_option
@debug_option
def node(
    *,
    name: str | None,
    cluster_name: str,
    executors: int,
    memory_limit: int | None,
    listen: str | None,
    bind: str | None,
    join: tuple[str, ...],
    drain_s: float,
    keys: str | None,
) -> int:
    """Run one node in the foreground.

    For Slurm, ssh, systemd and other launchers. On SIGTERM it moves its data to other nodes, ends
    its tasks and leaves; on a second one, or Ctrl-C, it ends at once.
    """
    from minishark.cluster.launch import bind_address, node_name
    from minishark.cluster.node import NodeOptions, run
    from minishark.cluster.rendezvous import is_rendezvous, met, own_address

    meeting = [address for address in join if is_rendezvous(address)]
    if meeting and len(join) > 1:
        raise OptionError("A node that joins @FILE finds all in it: pass --join once.")
    if listen is None:
        if not meeting:
            raise OptionError("A node needs an address: pass --listen tcp://HOST:PORT.")
        listen = own_address()
    with met(meeting[0], listen) if meeting else nullcontext("") as head:
        options = NodeOptions(
            name=name or node_name(listen),
            listen=listen,
            cluster=cluster_name,
            heads=(head,) if meeting else join,
            executors=executors,
            memory_limit_bytes=memory_limit,
            bind=bind_address(bind, listen),
            keys=keys and str(Path(keys).absolute()),
            drain_s=drain_s,
        )
        return run(options, lambda own: click.echo(f"node {own.name} at {own.service}"))


@cluster.command(name="list")
@debug_option
def list_clusters() -> None:
    """List the clusters that were started on this machine."""
    from minishark.cli.console import print_rows
    from minishark.cluster.launch import running_clusters

    rows = [
        (record.name, len(record.nodes) - len(record.ended), len(record.ended), record.live_address)
        for record in running_clusters()
    ]
    print_rows(("cluster", "nodes", "ended", "address"), rows, none="no clusters")


@cluster.command()
@click.argument("which", metavar="[NAME|ADDRESS]", default=_DEFAULT)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with more details.")
@keys_option
@debug_option
def status(*, which: str, as_json: bool, keys: str | None) -> None:
    """Show a cluster's nodes, their memory, and its sessions."""
    import msgspec

    from minishark.cli.console import print_json
    from minishark.cluster.launch import located
    from minishark.cluster.status import survey

    address, found, record = located(which, keys)
    seen = survey(address, found)
    ended = () if record is None else record.ended
    if as_json:
        sessions = [
            {name: getattr(session, name) for name in _SESSION} for session in seen.sessions
        ]
        document = {
            **msgspec.structs.asdict(seen),
            "nodes": [_as_dict(node) for node in seen.nodes],
            "sessions": sessions,
            "ended": [node.name for node in ended],
        }
        print_json(document)
    else:
        _show(seen, ended)


@cluster.command()
@click.argument("name", metavar="NODE")
@click.option("--cluster", "which", metavar="NAME|ADDRESS", default=_DEFAULT, show_default=True)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=300.0,
    show_default=True,
    help="Wait so long for the node to leave; 0 to return at once.",
)
@keys_option
@debug_option
def drain(*, name: str, which: str, wait_s: float, keys: str | None) -> int:
    """Have a node leave without loss.

    It takes no new tasks, its tables' partitions move to other nodes, its tasks end, and queries
    that read its outputs are served to their end. Then it leaves. `minishark cluster status` shows
    the names of nodes.
    """
    from minishark.cluster.launch import resolve
    from minishark.cluster.status import drain_node

    if drain_node(*resolve(which, keys), name, wait_s):
        click.echo(f"{name} has left.")
        return 0
    click.echo(f"{name} drains.")
    return 1 if wait_s else 0


@cluster.command()
@click.argument("name", default=_DEFAULT)
@debug_option
def stop(*, name: str) -> None:
    """Stop a cluster's nodes on this machine.

    With ray:NAME, stop a cluster on Ray. Its sessions lose the tables stored on these nodes.
    """
    from minishark.cluster.launch import stop_cluster
    from minishark.cluster.platforms import kept

    if (elsewhere := kept(name)) is not None:
        platform, stopped = elsewhere
        platform.stop(stopped)
    else:
        stopped = stop_cluster(name).name
    click.echo(f"Stopped {stopped}.")


@cluster.command()
@click.argument("folder", type=click.Path(path_type=Path))
@debug_option
def keygen(*, folder: Path) -> None:
    """Generate keys in FOLDER, and print the public key.

    Copy FOLDER to all machines. Or generate keys on each, and add all public keys to each
    allowed.keys; addresses then include the public key of the node: tcp://HOST:PORT/KEY.
    """
    from minishark.cluster.launch import make_keys

    click.echo(make_keys(folder))


def _as_dict(node: NodeReport) -> dict[str, Any]:
    from minishark.cluster.attributes import store_of

    store = store_of(node)
    assert store is not None, "others are not surveyed"
    return {
        "name": node.name,
        "host": store.host,
        "service": store.service,
        "pid": node.usage.pid or None,
        "executors": [executor.pid for executor in node.executors],
        **{name: getattr(node, name) for name in ("slots", "running", "queued")},
        **{name: getattr(node.usage, name) for name in _USAGE},
        "draining": node.draining,
    }


def _show(survey: Survey, ended: Sequence[NodeProcess]) -> None:
    from minishark.cli.console import print_rows, standard_output

    console = standard_output()
    console.print(f"cluster {survey.cluster} at {survey.address}", markup=False)
    for scheduler, up in survey.schedulers.items():
        console.print(f"scheduler {scheduler}: {'up' if up else 'silent'}", markup=False)
    nodes = []
    for node in survey.nodes:
        usage = node.usage
        free = f"{_gb(usage.memory_free_bytes)} of {_gb(usage.memory_total_bytes)}"
        counts = (usage.pid or "silent", node.slots, node.running, node.queued)
        shared, state = _gb(usage.shared_memory_free_bytes), "draining" if node.draining else ""
        nodes.append((node.name, *counts, free, shared, state))
    heads = ("node", "pid", "slots", "running", "queued", "memory free", "shared free", "")
    print_rows(heads, nodes)
    for process in ended:
        console.print(f"{process.name} has ended; its log: {process.log}", markup=False)
    sessions = [
        (session.name, session.user, session.pid, session.files, _gb(session.bytes))
        for session in survey.sessions
    ]
    print_rows(("session", "user", "pid", "files", "held"), sessions, none="no sessions")


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"
