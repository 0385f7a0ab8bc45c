"""`minishark tables`: the tables that belong to a running cluster."""

from __future__ import annotations

import time

import click

from minishark.cli.jobs_command import cluster_option


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@cluster_option
def tables(*, as_json: bool, which: str, keys: str | None) -> None:
    """List a cluster's tables that outlive sessions.

    They are called shared.NAME in SQL.
    """
    from minishark.cli.console import age, print_json, print_rows
    from minishark.cluster.launch import resolve
    from minishark.cluster.shared.visit import tables_of

    listed = [(held.table, held.replicas) for held in tables_of(*resolve(which, keys))]
    if as_json:
        print_json(
            [
                {
                    "name": table.name,
                    "rows": table.rows,
                    "bytes": table.replica_bytes,
                    "owner": table.owner,
                    "version": table.number,
                    "created_s": table.created_s,
                    "changed_s": table.changed_s,
                    "partitions": len(table.partitions),
                    "replicas": replicas,
                    "replicas_wanted": table.replicas,
                }
                for table, replicas in listed
            ]
        )
        return
    now_s = time.time()
    rows = [
        (
            table.name,
            f"{table.rows:,}",
            f"{table.replica_bytes:,}",
            table.owner,
            table.number,
            f"{age(now_s - table.changed_s)} ago",
            replicas,
        )
        for table, replicas in listed
    ]
    heads = ("table", "rows", "bytes", "owner", "version", "changed", "replicas")
    print_rows(heads, rows, none="no tables")
