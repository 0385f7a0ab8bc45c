"""Output of the commands, as tables or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
import msgspec
from rich.console import Console
from rich.table import Table

from machine_kit.addresses import Address, endpoint_of
from sparrow_core.observe.audit import AuditEvent
from sparrow_core.observe.report import Quantiles, Report
from sparrow_core.protocol.status import NodeStatus


def show_status(
    schedulers: Mapping[Address, int | None], nodes: Sequence[NodeStatus], *, as_json: bool
) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"schedulers": schedulers, "nodes": nodes}))
        return
    for scheduler, count in schedulers.items():
        state = "silent" if count is None else f"up, knows {count} node(s)"
        click.echo(f"scheduler {endpoint_of(scheduler)}: {state}")
    if not nodes:
        click.echo("no node has registered")
        return
    table = _table("node", "executors", "slots", "running", "queued", "attributes")
    for node in nodes:
        name = f"{node.name} (draining)" if node.draining else node.name
        counts = (len(node.executors), node.slots, node.running, node.queued)
        table.add_row(name, *map(str, counts), " ".join(node.attributes))
    Console().print(table)


def show_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(report))
        return
    table = _table("ms", "count", "p5", "median", "p95", "max")
    for name, value in msgspec.structs.asdict(report).items():
        if isinstance(value, Quantiles):
            times = (value.p5, value.median, value.p95, value.max)
            cells = (f"{time:.2f}" for time in times)
            table.add_row(name.removesuffix("_ms"), str(value.count), *cells)
    Console().print(table)
    shares = ", ".join(f"{user} {share:.1%}" for user, share in report.shares.items())
    failed = ", ".join(f"{count} x {text}" for text, count in report.failed.items())
    click.echo(
        f"jobs          {report.jobs} ({failed or 'none failed'}), {report.lost} lost attempts"
    )
    click.echo(f"utilization   {report.utilization:.1%}")
    click.echo(f"shares        {shares}")
    click.echo(
        f"reservations  {report.reservations}, {report.useless} of them useless, "
        f"{report.removed:.1%} of these removed"
    )


def show_jobs(events: Sequence[AuditEvent]) -> None:
    table = _table("job", "user", "tasks", "scheduler")
    for event in events:
        if event.event == "arrived":
            table.add_row(event.job, event.user, str(event.count), event.by)
    Console().print(table)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table
