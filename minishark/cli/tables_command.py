"""`minishark tables`: the tables that belong to a running cluster."""

from __future__ import annotations

import time

import click

from minishark.cli.jobs_command import age, cluster_option


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_option
def tables(*, as_json: bool, which: str, keys: str | None) -> None:
    """List the tables that belong to a cluster, and outlive sessions (shared.NAME in SQL)."""
    from minishark.cluster.launch import resolve
    from minishark.cluster.shared.visit import tables_of

    listed = tables_of(*resolve(which, keys))
    if as_json:
        import msgspec

        rows = [
            {
                "name": each.table.name,
                "rows": each.table.rows,
                "bytes": each.table.replica_bytes,
                "owner": each.table.owner,
                "version": each.table.number,
                "created_s": each.table.created_s,
                "changed_s": each.table.changed_s,
                "partitions": len(each.table.partitions),
                "replicas": each.replicas,
                "replicas_wanted": each.table.replicas,
            }
            for each in listed
        ]
        click.echo(msgspec.json.format(msgspec.json.encode(rows)))
        return
    from rich.table import Table

    from minishark.cli.console import standard_output

    heads = ("table", "rows", "bytes", "owner", "version", "changed", "replicas")
    shown = Table(*heads, box=None, pad_edge=False)
    for each in listed:
        table = each.table
        counts = (f"{table.rows:,}", f"{table.replica_bytes:,}")
        changed = f"{age(time.time() - table.changed_s)} ago"
        shown.add_row(
            table.name, *counts, table.owner, str(table.number), changed, str(each.replicas)
        )
    standard_output().print(shown if listed else "no tables")
