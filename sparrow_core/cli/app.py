"""The `sparrow` commands: run daemons, submit jobs, show status, analyze audit logs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from machine_kit.errors import TransportError
from sparrow_core import __version__
from sparrow_core.cli import tables
from sparrow_core.cli.submitting import Submission
from sparrow_core.policy.placement import DEFAULT_PLACEMENT, placement_names
from sparrow_core.protocol.errors import SparrowError
from sparrow_core.protocol.messages import PROTOCOL_VERSION
from sparrow_core.protocol.types import JobOptions, TaskSpec
from sparrow_core.runtime.specs import JobSpec

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_STATUS_S = 2.0  # a scheduler that has not answered by then is called silent
_config = click.argument("config", type=_FILE)


class _Group(click.Group):
    """Shows errors of this package as one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (SparrowError, TransportError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message=f"sparrow {__version__}, protocol {PROTOCOL_VERSION}")
def main() -> None:
    """Schedule tasks without a central scheduler.

    CONFIG is a TOML file; docs/sparrow.md describes it.
    """


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
def keygen(file: Path) -> None:
    """Make a key pair in FILE and print the public key, for other processes' allow-lists."""
    from machine_kit.keys import generate, write_key_file

    keys = generate()
    write_key_file(file, keys)
    click.echo(keys.public)


@main.command()
@_config
def scheduler(config: Path) -> None:
    """Run a scheduler until SIGINT or SIGTERM."""
    from sparrow_core.runtime.config import read_config
    from sparrow_core.runtime.daemon import run_scheduler

    sys.exit(run_scheduler(read_config(config)))


@main.command("node-monitor")
@_config
def node_monitor(config: Path) -> None:
    """Run a node until SIGINT or SIGTERM, which drain it; a second one ends it at once."""
    from sparrow_core.runtime.config import read_config
    from sparrow_core.runtime.daemon import run_node_monitor

    sys.exit(run_node_monitor(read_config(config)))


@main.command()
@_config
@click.argument("payloads", nargs=-1, required=True)
@click.option("--shared", type=_FILE, help="File with bytes that all tasks share.")
@click.option("--user", default="default", show_default=True)
@click.option(
    "--placement",
    metavar=f"[{'|'.join(placement_names())}|MODULE:FACTORY]",
    default=DEFAULT_PLACEMENT,
    show_default=True,
    help="How tasks are placed on nodes; a plug-in must be in the schedulers' configuration.",
)
@click.option("--probe-ratio", default=2.0, show_default=True, help="Reservations per task.")
@click.option("--prefer", multiple=True, metavar="NODE", help="Run on these nodes only.")
@click.option(
    "--wait", "wait_s", type=float, help="Seconds after which tasks may run on other nodes."
)
@click.option(
    "--require", multiple=True, metavar="ATTRIBUTE", help="Run on nodes with this attribute only."
)
@click.option("--framework", default="", help="Run on executors of this framework.")
@click.option(
    "--priority", default=0, help="Smaller runs first, on nodes with the policy priority."
)
@click.option("--why", is_flag=True, help="Explain at the end why each task ran where it did.")
@click.option("--json", "as_json", is_flag=True, help="Print events, one per line.")
def submit(
    *, config: Path, payloads: tuple[str, ...], shared: Path | None, prefer: tuple[str, ...],
    wait_s: float | None, require: tuple[str, ...], framework: str, priority: int, why: bool,
    as_json: bool, **placed: Any,
) -> None:  # fmt: skip
    """Run a job with a task for each of PAYLOADS and print the results in order."""
    from sparrow_core.cli.connection import connect

    tasks = tuple(
        TaskSpec(number, payload.encode(), prefer, wait_s)
        for number, payload in enumerate(payloads)
    )
    options = JobOptions(framework=framework, priority=priority, requires=require, explain=why)
    content = shared.read_bytes() if shared else b""
    job = JobSpec(tasks=tasks, shared=content, options=options, **placed)
    with connect(config) as cluster:
        submission = Submission(cluster, job)
        try:
            submission.show(as_json=as_json)
        except KeyboardInterrupt:
            submission.cancel()
            submission.show(as_json=as_json)
        if why and not as_json:
            submission.explain()
    sys.exit(int(submission.failed))


@main.command()
@_config
@click.option(
    "--metrics", is_flag=True, help="Metrics of all processes, in the format of Prometheus."
)
@click.option("--json", "as_json", is_flag=True)
def status(config: Path, metrics: bool, as_json: bool) -> None:
    """Show schedulers and nodes, with queued and running tasks."""
    from sparrow_core.cli.connection import connect

    with connect(config) as cluster:
        if metrics:
            click.echo("".join(cluster.metrics().values()), nl=False)
        else:
            schedulers = cluster.schedulers(_STATUS_S)
            tables.show_status(schedulers, cluster.nodes(), as_json=as_json)


@main.command()
@_config
@click.argument("node")
def drain(config: Path, node: str) -> None:
    """Drain NODE: it finishes its tasks, takes no new ones, and exits."""
    from sparrow_core.cli.connection import connect

    with connect(config) as cluster:
        if not cluster.drain(node):
            raise click.ClickException(f"no node {node!r} is known")
    click.echo(f"{node} takes no new task, and ends when its last one has")


@main.command()
@_config
@click.argument("weights", nargs=-1, required=True, metavar="USER=WEIGHT...")
def weights(config: Path, weights: tuple[str, ...]) -> None:
    """Set the users' shares of nodes whose policy is "fair"; users not named weigh 1."""
    from sparrow_core.cli.connection import connect

    try:
        parsed = {user: float(weight) for user, _, weight in (w.rpartition("=") for w in weights)}
    except ValueError as error:
        raise click.BadParameter("a weight is USER=NUMBER") from error
    if "" in parsed or not all(0 < weight < float("inf") for weight in parsed.values()):
        raise click.BadParameter("a weight is USER=NUMBER, above 0")
    with connect(config) as cluster:
        cluster.set_weights(parsed)


@main.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--why",
    nargs=2,
    type=(str, int),
    metavar="JOB TASK",
    help="Explain why this task ran where it did.",
)
@click.option("--jobs", is_flag=True, help="List the jobs.")
@click.option(
    "--from",
    "start_s",
    default=0.0,
    help="Only jobs that arrived at or after this time (Unix time).",
)
@click.option(
    "--to", "end_s", default=1e18, help="Only jobs that arrived at or before this time (Unix time)."
)
@click.option("--json", "as_json", is_flag=True)
def audit(
    logs: tuple[Path, ...],
    why: tuple[str, int] | None,
    jobs: bool,
    start_s: float,
    end_s: float,
    as_json: bool,
) -> None:
    """Report times, utilization and shares from audit LOGS (files, or folders of *.jsonl)."""
    from sparrow_core.observe.audit import read_events
    from sparrow_core.observe.report import report, why_here

    files = [
        file for log in logs for file in (sorted(log.glob("*.jsonl")) if log.is_dir() else [log])
    ]
    events = read_events(files)
    if why:
        lines = why_here(events, *why)
        if not lines:
            raise click.ClickException(f"job {why[0]} is not in the log")
        click.echo("\n".join(lines))
    elif jobs:
        tables.show_jobs(events)
    else:
        tables.show_report(report(events, start_s, end_s), as_json=as_json)
