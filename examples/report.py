"""A report over Parquet files: sales by region and month, with the best product of each.

Run it with `python examples/report.py`; it writes its data into a temporary folder.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import minishark
from minishark import DataFrame, Session, Window
from minishark import functions as F

REGIONS = ("north", "south", "east", "west")
PRODUCTS = ("apples", "bread", "cheese", "dates")


def write_sales(folder: Path, files: int = 4, rows: int = 5_000) -> None:
    """Write sales of a year as Parquet files."""
    rng = random.Random(7)
    for number in range(files):
        table = pa.table(
            {
                "region": [rng.choice(REGIONS) for _ in range(rows)],
                "product": [rng.choice(PRODUCTS) for _ in range(rows)],
                "day": pa.array([19_723 + rng.randrange(366) for _ in range(rows)], pa.date32()),
                "amount": [round(rng.expovariate(0.02), 2) for _ in range(rows)],
            }
        )
        pq.write_table(table, folder / f"sales-{number}.parquet")


def report(sales: DataFrame) -> DataFrame:
    """For each region and quarter: the sum, its share of the region's, and the best product."""
    by_product = sales.group_by("region", F.quarter("day").alias("quarter"), "product").agg(
        F.sum("amount").alias("amount")
    )
    quarters = by_product.group_by("region", "quarter").agg(
        F.sum("amount").alias("amount"), F.max_by("product", "amount").alias("best")
    )
    share = F.col("amount") / F.sum("amount").over(Window.partition_by("region"))
    return (
        quarters.with_column("share", F.round(100 * share, 1))
        .with_column("amount", F.round("amount", 2))
        .order_by("region", "quarter")
    )


def main(session: Session, folder: Path) -> DataFrame:
    """Write the data, load it, and print the report."""
    write_sales(folder)
    session.create_table("sales", folder / "*.parquet", partition_by="region", partitions=4)
    made = report(session.table("sales"))
    made.show()
    return made


if __name__ == "__main__":
    with minishark.connect() as opened, tempfile.TemporaryDirectory() as made_here:
        main(opened, Path(made_here))
